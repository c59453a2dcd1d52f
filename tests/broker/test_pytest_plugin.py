"""The fixtures that ship with headrace, used by somebody else's tests."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cluster import Cluster
from headrace.kafka import Kafka
from headrace.runtime.jars import default_cache
from tests.conftest import processes_of

# Before pytester gives its tests another HOME: there the jars would be fetched again.
_CACHE = default_cache()

_THEIR_TESTS = """
from pathlib import Path
from confluent_kafka.admin import AdminClient
from headrace.runtime.waiting import eventually

def remember(name, text):
    with Path(name).open("a") as file:
        file.write(f"{text}\\n")

def partitions(bootstrap, topic):
    return AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=60).topics[topic].partitions

def test_topics_are_fresh(headrace_cluster, headrace_topic):
    first, second = headrace_topic(partitions=3, retention_ms=5000), headrace_topic()
    assert first != second
    remember("topics", first)
    assert len(partitions(headrace_cluster.bootstrap, first)) == 3

def test_topics_can_be_deleted(headrace_cluster, headrace_topic):
    admin = AdminClient({"bootstrap.servers": headrace_cluster.bootstrap})
    name = headrace_topic()
    admin.delete_topics([name])[name].result(60)
    eventually(lambda: name not in admin.list_topics(timeout=60).topics, 60)

def test_nodes_can_be_killed(headrace_faults, headrace_topic):
    remember("homes", headrace_faults.home.root)
    headrace_faults.kill(1)
    assert headrace_faults.status().state == "down"

def test_they_run_again(headrace_cluster, headrace_topic):
    eventually(lambda: headrace_cluster.status().state == "up", 60)
    assert headrace_cluster.config.cluster.kafka == {"num.partitions": "4"}
    remember("homes", headrace_cluster.home.root)
    assert headrace_topic() == "a name that is not random"
"""


def test_a_foreign_cluster_can_be_used(pytester: pytest.Pytester, headrace_cluster: Cluster) -> None:
    pytester.makepyfile(_THEIR_TESTS)
    done = pytester.runpytest_subprocess(
        f"--headrace-bootstrap={headrace_cluster.bootstrap}",
        "-k",
        "fresh or deleted or killed",
        "-rs",
        "-p",
        "no:cacheprovider",
    )
    done.assert_outcomes(passed=2, skipped=1)
    done.stdout.fnmatch_lines("*headrace_faults needs a local cluster: it cannot kill nodes of --headrace-bootstrap*")
    with Kafka(headrace_cluster) as admin:
        assert Path("topics").read_text(encoding="utf-8").strip() not in {topic.name for topic in admin.topics()}


def test_one_cluster_for_all_workers_is_started_mended_shown_and_removed(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("HEADRACE_CACHE", str(_CACHE))
    pytester.makepyfile(_THEIR_TESTS)
    done = pytester.runpytest_subprocess("-n2", "--headrace-brokers=1", "--headrace-set=num.partitions=4")
    done.assert_outcomes(passed=3, failed=1)
    done.stdout.fnmatch_lines(["*- headrace broker-1 -*", "*INFO*Created log for partition test-*"])
    first, second = map(Path, Path("homes").read_text(encoding="utf-8").split())
    assert first == second
    assert first.parent.parent == tmp_path
    assert not first.parent.exists()
    assert not processes_of(first)


def test_the_tests_of_the_page_about_testing_pass(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("HEADRACE_CACHE", str(_CACHE))
    page = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    pytester.makepyfile(code)
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_a_cluster_that_cannot_start_leaves_its_log_and_nothing_else(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("HEADRACE_CACHE", str(_CACHE))
    pytester.makepyfile(_THEIR_TESTS)
    done = pytester.runpytest_subprocess("--headrace-brokers=1", "--headrace-set=num.io.threads=-3", "-k", "fresh")
    done.assert_outcomes(errors=1)
    line = next(line for line in done.outlines if line.startswith("headrace: the folder of the test cluster is kept: "))
    home = Path(line.rpartition(" ")[2]) / "home"
    assert "num.io.threads" in (home / "broker-1" / "server.log").read_text(encoding="utf-8")
    assert not processes_of(home)


_A_LONG_TEST = """
import threading

def test_that_takes_its_time(headrace_cluster):
    print("home", headrace_cluster.home.root, flush=True)
    threading.Event().wait(60)
"""


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_no_cluster(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: signal.Signals
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("HEADRACE_CACHE", str(_CACHE))
    pytester.makepyfile(_A_LONG_TEST)
    words = [sys.executable, "-m", "pytest", "-s", "--headrace-brokers=1", "-p", "no:cacheprovider"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout
        home = next(line for line in running.stdout if "home " in line).split()[-1]
        assert processes_of(Path(home))
        running.send_signal(end)
        # Its end is also that of the child which removes the cluster after a SIGKILL: that has the same output.
        assert ("KeyboardInterrupt" in running.stdout.read()) == (end == signal.SIGTERM)
    assert running.returncode == (2 if end == signal.SIGTERM else -signal.SIGKILL)
    assert not Path(home).parent.exists()
    assert not processes_of(Path(home))


def test_the_options_explain_themselves(pytester: pytest.Pytester) -> None:
    done = pytester.runpytest_subprocess("--help")
    done.stdout.fnmatch_lines(["*a real Kafka cluster:*", "*--headrace-brokers=*", "*--headrace-bootstrap=ADDRESS*"])
