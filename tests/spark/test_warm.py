"""The JVM of `headrace up --with spark`: it gives what a JVM of one's own would give, and keeps nothing of it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from headrace.cluster import Cluster
from headrace.pipeline.spark.warm import WarmFolder
from headrace.runtime.waiting import eventually
from tests.conftest import Done, Headrace, processes_of
from tests.spark.children import told
from tests.spark.pipelines import send

_PROJECT = """
[cluster]
brokers = 1
services = ["spark"]
ready_timeout_s = 500
[topics.numbers]
partitions = 2
replication = 1
[pipelines.p]
from = "numbers"
decode = { json = "n int" }
select = { python = "beside:doubled" }
into = { delta = "tables/p" }
trigger = "1 second"
max_records_per_batch = 50
[pipelines.larger]
from = "numbers"
decode = { json = "n int" }
into = { delta = "tables/larger" }
[pipelines.larger.spark]
"spark.driver.memory" = "600m"
"""
# A worker has to import the module to find what `double` calls.
_BESIDE = """
import os
from pyspark.sql import functions as F

def double(n):
    return 2 * n

def doubled(rows):
    return rows.withColumn("doubled", F.udf(double, "int", useArrow=False)("n"))
"""


class Project:
    """A folder with a cluster and a JVM that is kept ready."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "headrace.toml").write_text(_PROJECT)
        (folder / "beside.py").write_text(_BESIDE)
        self.cluster = Cluster(folder / ".headrace")
        self.kept = WarmFolder(self.cluster.home.node("spark"))
        self.run = Headrace(folder)
        self.sent = 0

    def send(self, count: int) -> None:
        send(self.cluster, "numbers", [{"n": n} for n in range(self.sent, self.sent + count)])
        self.sent += count

    def pipeline(self, *words: str) -> Done:
        return self.run("pipeline", *words, env=self.environment, timeout_s=800)

    @property
    def environment(self) -> dict[str, str]:
        import headrace

        return {"PYTHONPATH": f"{Path(headrace.__file__).parents[1]}:{self.folder}"}

    def rows(self) -> list[tuple[int, int]]:
        found = self.run("sql", "select n, doubled from p", "--json")
        assert found.code == 0, found.err
        return sorted((row["n"], row["doubled"]) for row in map(json.loads, found.out.splitlines()))

    def wait_ready(self) -> int:
        """The pid of the JVM, as soon as it is ready and nobody uses it."""

        def ready() -> int | None:
            free = not Path(self.kept.root, "in-use").exists()
            return self.kept.jvm.pid if free and self.kept.address.get("warm") else None

        return eventually(ready, 500) or 0

    def require_all(self) -> None:
        """Each record is in the table once, and the ledger says so."""
        assert self.rows() == [(n, 2 * n) for n in range(self.sent)]
        done = self.run("pipeline", "ledger", "p", "--json")
        assert done.code == 0
        assert sum(run["read"] for run in done.json()["runs"]) == self.sent


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    made = Project(tmp_path_factory.mktemp("warm"))
    try:
        made.cluster.up()
        made.run("topic", "create", "numbers", "--partitions", "2")
        yield made
    finally:
        made.cluster.down(wipe=True)
        assert not processes_of(made.cluster.home.root)


def test_runs_share_a_jvm_and_give_what_their_own_would(project: Project) -> None:
    jvm = project.wait_ready()
    for _ in range(2):
        project.send(100)
        done = project.pipeline("run", "p", "--once")
        assert done.code == 0, done.err
        assert "100 records read, balanced" in done.err
        assert "another one is started" not in done.err
    assert project.wait_ready() == jvm
    project.require_all()


def test_status_shows_its_memory_and_that_it_is_bounded(project: Project) -> None:
    jvm = psutil.Process(project.wait_ready())
    [node] = [node for node in project.cluster.status().nodes if node.name == "spark"]
    assert (node.state, node.roles, node.port) == ("running", "spark driver", None)
    assert node.memory_bytes
    assert node.memory_bytes > 200_000_000
    assert any(word.startswith("-Xmx") for word in jvm.cmdline())
    assert jvm.nice() > 0
    shown = project.run("status")
    assert any(line.split()[:4] == ["spark", "-", "spark", "driver"] for line in shown.out.splitlines())
    assert project.run("logs", "spark").code == 0


def test_settings_and_views_end_with_the_session(project: Project) -> None:
    jvm, home = project.wait_ready(), project.cluster.home.root
    [first] = told("of_home", home, "spark.sql.globalTempDatabase=theirs", "spark.sql.shuffle.partitions=7")
    assert first["jvm"] == jvm
    assert first["settings"] == {"spark.sql.globalTempDatabase": "theirs", "spark.sql.shuffle.partitions": "7"}
    [second] = told("of_home", home)
    assert second["jvm"] == jvm
    assert second["settings"]["spark.sql.globalTempDatabase"] == "global_temp"
    assert second["settings"]["spark.sql.shuffle.partitions"] != "7"


def test_workers_have_the_environment_of_the_process(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    home = project.cluster.home.root
    jvm = project.wait_ready()
    monkeypatch.setenv("WORD", "mine")
    [found] = told("of_home", home)
    assert (found["jvm"], found["word"]) == (jvm, ["mine"])
    monkeypatch.delenv("WORD")
    [found] = told("of_home", home)
    assert (found["jvm"], found["word"]) == (jvm, [None])


def test_what_needs_another_jvm_gets_one(project: Project) -> None:
    jvm = project.wait_ready()
    done = project.pipeline("explain", "larger")
    assert done.code == 0, done.err
    assert "cannot have spark.driver.memory: another one is started" in done.err
    assert project.wait_ready() == jvm


def test_who_comes_second_has_its_own_and_ctrl_c_leaves_the_jvm_to_the_next(project: Project) -> None:
    jvm = project.wait_ready()
    project.send(100)
    with project.run.start("pipeline", "run", "p", env=project.environment) as running:
        try:
            eventually(lambda: len(project.rows()) == project.sent, 300)
            second = project.pipeline("explain", "p")
            assert second.code == 0, second.err
            assert "the Spark that is kept ready is in use: another one is started" in second.err
            running.send_signal(signal.SIGINT)
            _, err = running.communicate(timeout=300)
        finally:
            running.kill()
    assert running.returncode == 0, err
    assert "balanced" in err
    assert project.wait_ready() == jvm
    project.require_all()


def test_the_queries_of_a_killed_process_end_with_it(project: Project) -> None:
    jvm = psutil.Process(project.wait_ready())
    before = len(project.rows())
    with project.run.start("pipeline", "run", "p", env=project.environment) as running:
        project.send(400)
        eventually(lambda: len(project.rows()) > before, 300)  # in the middle: a batch has 50
        running.kill()
        running.communicate()
    eventually(lambda: not jvm.is_running() or jvm.status() == psutil.STATUS_ZOMBIE, 60)
    done = project.pipeline("run", "p", "--once")
    assert done.code == 0, done.err
    assert project.wait_ready() != jvm.pid
    project.require_all()


def test_it_stops_and_starts_like_any_node(project: Project) -> None:
    jvm = project.wait_ready()
    assert project.run("stop", "spark").code == 0
    assert not psutil.pid_exists(jvm)
    done = project.pipeline("explain", "p")
    assert (done.code, "another" in done.err) == (0, False)
    assert project.run("start", "spark", timeout_s=600).code == 0
    other = project.wait_ready()
    assert other != jvm
    project.send(10)
    assert project.pipeline("run", "p", "--once").code == 0
    assert project.wait_ready() == other
    project.require_all()


def test_what_was_interrupted_cannot_go_on_in_the_jvm(project: Project) -> None:
    jvm = project.wait_ready()
    [found] = told("interrupted", project.cluster.home.root)
    assert found["jvm"] == jvm
    assert eventually(lambda: project.kept.jvm.pid, 60) != jvm  # another one is started


def test_it_ends_with_the_process_that_keeps_it(project: Project) -> None:
    jvm = psutil.Process(eventually(lambda: project.kept.jvm.pid, 60) or 0)
    project.cluster.kill("spark")
    eventually(lambda: not jvm.is_running(), 60)
