"""A cluster's life from the first `up` to the last `down`, in homes of its own."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from headrace.cluster import Cluster, readiness, settings
from headrace.cluster.ports import is_free
from headrace.cluster.spec import ClusterSpec, Node
from headrace.errors import SetupError, TimedOut, Unreachable
from headrace.home import Home, read_json, write_json
from headrace.kafka import Kafka
from headrace.progress import SILENT
from headrace.runtime.jars import JarCache, default_cache
from headrace.runtime.java import find_java
from headrace.runtime.process import MARKER, Supervised
from headrace.runtime.waiting import eventually
from tests.conftest import Headrace, processes_of
from tests.records import read, write

MakeHome = Callable[[str], Path]


def status(run: Headrace, home: Path) -> dict[str, Any]:
    found: dict[str, Any] = run("status", "--json", home=home).json()
    return found


def create_topic(bootstrap: str, name: str, partitions: int, replication: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, replication)])[name].result(30)


def broker_settings(bootstrap: str, node_id: int) -> dict[str, str]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    [future] = admin.describe_configs([ConfigResource(ResourceType.BROKER, str(node_id))]).values()
    return {name: entry.value for name, entry in future.result(20).items()}


def test_up_and_down_can_be_repeated_and_records_stay(run: Headrace, home: Path) -> None:
    done = run("up", "--brokers", 1, home=home)
    assert done.code == 0
    bootstrap = done.out.strip()
    create_topic(bootstrap, "kept", 2, 1)
    values = [b"%d" % number for number in range(500)]
    assert len(write(bootstrap, "kept", values)) == 500
    ports = Cluster(home).spec.ports

    for _ in range(2):
        assert run("down", home=home).code == 0
        assert processes_of(home) == []
        assert all(is_free(port) for port in ports)
        found = status(run, home)
        assert (found["state"], found["nodes"][0]["state"], found["nodes"][0]["pid"]) == ("down", "stopped", None)
    for _ in range(2):
        assert run("up", home=home).out.strip() == bootstrap
    assert sorted(record.value for record in read(bootstrap, "kept")) == sorted(values)


def test_wipe_says_what_it_removes_asks_and_keeps_foreign_files(run: Headrace, home: Path) -> None:
    run("up", "--brokers", 1, home=home)
    (home / "notes.txt").write_text("mine", encoding="utf-8")
    for answer, code, word in (
        ("n\n", 1, "nothing was removed: the answer was no"),
        ("", 2, "cannot ask without a terminal"),
    ):
        refused = run("down", "--wipe", home=home, stdin=answer)
        assert refused.code == code
        assert word in refused.err
        assert f"  {home / 'broker-1'}  " in refused.err
        assert "remove it? [y/N]" in refused.err
        assert status(run, home)["state"] == "up"
    with full_disk():
        done = run("down", "--wipe", home=home, stdin="y\n")
    assert done.code == 0, done.err
    assert f"removed: the cluster and its records; kept in {home}: notes.txt (4 B)" in done.err
    assert [path.name for path in home.iterdir()] == ["notes.txt"]
    assert processes_of(home) == []
    (home / "notes.txt").unlink()
    assert run("down", "--wipe", "--yes", home=home).code == 0


@contextmanager
def full_disk() -> Iterator[None]:
    """What is started now can write to no file, as on a disk without room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_where_there_is_no_room_for_a_lock_the_folder_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, opened = Home(tmp_path), os.open

    def without_room(name: Path, flags: int, *more: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(name, flags, *more)

    monkeypatch.setattr(os, "open", without_room)
    with home.lock("down"), pytest.raises(SetupError, match="running on"), home.lock("down"):
        pytest.fail("two held the lock")
    with home.lock("down"):
        pass


def test_a_broker_that_is_slow_to_tell_its_settings_is_not_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_: object) -> Kafka:
        raise Unreachable("no Kafka answers", why="Timed out waiting for a node")

    monkeypatch.setattr(settings, "Kafka", nothing)
    nodes = (Node("broker-1", 1, broker=True, controller=True),)
    with pytest.raises(TimedOut, match="they keep running"):  # which is what `up` leaves its nodes running for
        settings.require_in_force(ClusterSpec("id", "4.2.2", nodes, {}), {"num.partitions": "2"})


def test_an_up_that_is_late_counts_from_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    clock: Any = SimpleNamespace(monotonic=lambda: clock.now, now=100.0)

    def register(*_: object) -> None:
        clock.now += 170

    def write_in_vain(*_: object) -> None:
        clock.now += 12
        raise readiness._Late("a write on every broker")

    monkeypatch.setattr(readiness, "time", clock)
    monkeypatch.setattr(readiness, "_wait_registered", register)
    monkeypatch.setattr(readiness, "_prove_writes", write_in_vain)
    nodes = (Node("broker-1", 1, broker=True, controller=True, port=1),)
    with pytest.raises(TimedOut, match="not ready after 182 s"):
        readiness.wait_until_ready(ClusterSpec("id", "4.2.2", nodes, {}), (), within_s=180, progress=SILENT)


def test_two_clusters_run_side_by_side(run: Headrace, make_home: MakeHome) -> None:
    homes = [make_home("one"), make_home("two")]
    starting = [run.start("up", "--brokers", 1, home=home) for home in homes]
    bootstraps = [process.communicate(timeout=120)[0].strip() for process in starting]
    assert [process.returncode for process in starting] == [0, 0]
    for bootstrap, other in zip(bootstraps, reversed(bootstraps), strict=True):
        create_topic(bootstrap, f"at-{bootstrap.split(':')[1]}", 1, 1)
        assert bootstrap != other
    run("down", "--wipe", "--yes", home=homes[0])
    topics = AdminClient({"bootstrap.servers": bootstraps[1]}).list_topics(timeout=60).topics
    assert f"at-{bootstraps[1].split(':')[1]}" in topics
    assert f"at-{bootstraps[0].split(':')[1]}" not in topics


def test_racks_node_ids_and_separate_controllers(run: Headrace, home: Path) -> None:
    shape = ("up", "--node-ids", "101,205", "--racks", "a,b", "--controllers", 1)
    done = run(*shape, home=home)
    assert done.code == 0
    nodes = {node["name"]: node for node in status(run, home)["nodes"]}
    assert {name: (node["node_id"], node["roles"], node["rack"]) for name, node in nodes.items()} == {
        "controller-1": (1001, "controller", None),
        "broker-101": (101, "broker", "a"),
        "broker-205": (205, "broker", "b"),
    }
    assert status(run, home)["controller"] == 1001
    assert nodes["controller-1"]["port"] is None
    assert broker_settings(done.out.strip(), 205)["broker.rack"] == "b"
    for verb in ("restart", "kill", "start"):
        assert run(verb, "controller-1", home=home).code == 0
    assert run(*shape, home=home).code == 0

    for other, why in (
        (("--brokers", 3, "--node-ids", "1,2,3"), "it was made with brokers = 2"),
        (("--racks", "b,a"), "it was made with racks = a,b"),
        (("--controllers", 3), "it was made with controllers = 1"),
    ):
        refused = run("up", *other, home=home)
        assert refused.code == 2
        assert why in refused.err
        assert "try: " in refused.err
    assert status(run, home)["state"] == "up"


def test_properties_are_read_back_rolled_out_and_taken_back(run: Headrace, home: Path) -> None:
    done = run("up", "--brokers", 1, "--set", "log.retention.ms=1234567", home=home)
    assert done.code == 0
    bootstrap = done.out.strip()
    assert broker_settings(bootstrap, 1)["log.retention.ms"] == "1234567"
    [node] = status(run, home)["nodes"]

    for wrong, problem, what_to_try in (
        ("log.retention.sm=5", "Kafka does not know the property log.retention.sm", "did you mean log.retention.ms?"),
        ("num.partitions=many", "broker-1 died while it was starting", "correct the property"),
        ("listeners=PLAINTEXT://:1", "the Kafka property listeners is set by headrace", "headrace up --base-port"),
    ):
        refused = run("up", "--set", wrong, home=home)
        assert refused.code == 2, refused.err
        assert f"error: {problem}" in refused.err
        assert f"try: {what_to_try}" in refused.err
        assert status(run, home)["state"] == "up"
        assert broker_settings(bootstrap, 1)["log.retention.ms"] == "1234567"
    assert run("up", "--set", "nonsense", home=home).code == 2

    changed = run("up", "--set", "num.partitions=4", home=home)
    assert changed.code == 0
    assert "restarting broker-1: its settings have changed" in changed.err
    assert [node["pid"]] != [found["pid"] for found in status(run, home)["nodes"]]
    settings = broker_settings(bootstrap, 1)
    assert (settings["log.retention.ms"], settings["num.partitions"]) == ("1234567", "4")
    assert run("config", "--json", home=home).json()["cluster.kafka"]["value"] == {
        "log.retention.ms": "1234567",
        "num.partitions": "4",
    }

    assert run("up", "--set", "log.retention.ms=", home=home).code == 0
    settings = broker_settings(bootstrap, 1)
    assert (settings.get("log.retention.ms"), settings["num.partitions"]) != ("1234567", "4")
    assert settings["num.partitions"] == "4"


def test_an_unknown_property_at_the_first_start_leaves_nothing_running(run: Headrace, home: Path) -> None:
    refused = run("up", "--brokers", 1, "--set", "offsets.retention.minute=5", home=home)
    assert refused.code == 2
    assert "try: did you mean offsets.retention.minutes?" in refused.err
    assert processes_of(home) == []
    assert status(run, home)["state"] == "down"


def test_a_refused_value_at_the_first_start_is_explained(run: Headrace, home: Path) -> None:
    refused = run("up", "--brokers", 1, "--set", "num.io.threads=-3", home=home)
    assert refused.code == 2
    assert "error: broker-1 died while it was starting" in refused.err
    assert "num.io.threads" in refused.err.partition("why: ")[2].splitlines()[0]
    assert f"log: {home / 'broker-1'}" in refused.err
    assert processes_of(home) == []


def test_settings_come_from_the_file_beside_the_home(run: Headrace, make_home: MakeHome, tmp_path: Path) -> None:
    home = make_home(".headrace")
    (tmp_path / "headrace.toml").write_text(
        "[cluster]\nbrokers = 1\n[cluster.kafka]\nauto.create.topics.enable = true\n", encoding="utf-8"
    )
    done = run("up")
    assert done.code == 0
    assert home.is_dir()
    assert broker_settings(done.out.strip(), 1)["auto.create.topics.enable"] == "true"
    assert len(write(done.out.strip(), "made-by-writing", [b"x"])) == 1


def test_after_the_death_of_everything_no_acknowledged_record_is_missing(run: Headrace, home: Path) -> None:
    bootstrap = run("up", home=home).out.strip()
    create_topic(bootstrap, "precious", 6, 3)
    acknowledged = write(bootstrap, "precious", [b"%d" % number for number in range(20_000)])
    assert len(acknowledged) == 20_000
    for process in processes_of(home):
        process.kill()
    eventually(lambda: processes_of(home) == [], 20)
    found = status(run, home)
    assert (found["state"], {node["state"] for node in found["nodes"]}) == ("down", {"dead"})

    assert run("up", home=home).out.strip() == bootstrap
    assert sorted(record.value for record in read(bootstrap, "precious")) == sorted(acknowledged)


def test_what_a_reboot_leaves_behind_harms_nobody(run: Headrace, home: Path) -> None:
    """Pids that now belong to somebody else, a lock file that nobody holds, a half-written record."""
    run("up", "--brokers", 1, "--controllers", 1, home=home)
    for process in processes_of(home):
        process.kill()
    eventually(lambda: processes_of(home) == [], 20)
    with subprocess.Popen(["sleep", "600"]) as foreign:
        record = {
            "pid": foreign.pid,
            "started": psutil.Process(foreign.pid).create_time(),
            "marker": f"{MARKER}{home / 'broker-1'}",
        }
        write_json(home / "broker-1" / "process.json", record)
        (home / "controller-1" / "process.json").write_text('{"pid": 1', encoding="utf-8")
        (home / "lock").write_text("`headrace up` runs as pid 1\n", encoding="utf-8")

        assert run("kill", "broker-1", home=home).code == 2
        assert run("up", home=home).code == 0
        assert run("down", home=home).code == 0
        write_json(home / "broker-1" / "process.json", record)
        assert run("down", "--wipe", "--yes", home=home).code == 0
        assert foreign.poll() is None
        foreign.kill()


@pytest.mark.parametrize("lost", ["the record", "the plan"])
def test_processes_are_found_without_their_files(run: Headrace, home: Path, lost: str) -> None:
    bootstrap = run("up", "--brokers", 1, home=home).out.strip()
    [node] = status(run, home)["nodes"]
    if lost == "the record":
        (home / "broker-1" / "process.json").unlink()
        assert f"pid {node['pid']} runs without a record" in run("doctor", home=home).out
        again = run("up", home=home)
        assert again.out.strip() == bootstrap, again.err
        assert node["pid"] != status(run, home)["nodes"][0]["pid"]
    else:
        (home / "cluster.json").write_text("garbage", encoding="utf-8")
    assert run("down", home=home).code == 0
    assert processes_of(home) == []


def test_up_while_another_up_runs(run: Headrace, home: Path) -> None:
    with run.start("up", "--brokers", 1, home=home) as first:
        eventually((home / "broker-1").is_dir, 60)
        second = run("up", "--brokers", 1, home=home)
        assert second.code == 3
        assert f"error: another headrace command is running on {home}" in second.err
        assert f"why: `headrace up` runs as pid {first.pid}" in second.err
        _, err = first.communicate(timeout=120)
    assert first.returncode == 0, err
    assert status(run, home)["state"] == "up"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_an_interrupted_up_can_be_repeated(run: Headrace, home: Path, number: signal.Signals, code: int) -> None:
    with run.start("up", "--brokers", 1, home=home) as first:
        eventually((home / "broker-1" / "process.json").is_file, 60)
        first.send_signal(number)
        _, err = first.communicate(timeout=60)
    assert first.returncode == code
    assert "Traceback" not in err
    if number == signal.SIGINT:
        assert processes_of(home) == []
    assert run("up", home=home).code == 0
    assert status(run, home)["state"] == "up"


def test_the_archives_builder_dies_with_down(run: Headrace, home: Path, tmp_path: Path) -> None:
    """The first start on a machine: the archive is being made in the background when `down` comes."""
    cache = shared_jars(tmp_path / "cache")
    environment = {"HEADRACE_CACHE": str(cache)}
    first = run("up", "--brokers", 1, home=home, env=environment)
    assert "the first start with this Java" in first.err
    [builder] = [process for process in processes_of(home) if "headrace.runtime.archive" in process.cmdline()]
    [dumping] = eventually(builder.children, 30)
    assert run("down", home=home, env=environment).code == 0
    assert processes_of(home) == []
    eventually(lambda: not dumping.is_running() or dumping.status() == psutil.STATUS_ZOMBIE, 10)
    assert list((cache / "archives").glob("*.jsa")) == []

    assert run("up", home=home, env=environment).code == 0
    eventually(lambda: list((cache / "archives").glob("*.jsa")), 120)
    eventually(lambda: not (home / "archive" / "process.json").exists(), 20)
    # The lock, the archive, and the list of classes that it was made from.
    assert {path.suffix for path in (cache / "archives").iterdir()} <= {"", ".jsa", ".lst"}


def shared_jars(cache: Path) -> Path:
    """A cache of its own with the user's jars in it, and nothing else."""
    (cache / "jars").mkdir(parents=True)
    for jar in JarCache(default_cache()).classpath("kafka", find_java()):
        (cache / "jars" / jar.name).symlink_to(jar)
    shutil.copy(default_cache() / "jars" / "verified.json", cache / "jars")
    return cache


def test_down_ends_the_background_driver_and_leaves_a_run_in_the_foreground(run: Headrace, home: Path) -> None:
    spark, driver = (Supervised(home / name) for name in ("spark", "driver"))
    for process in (spark, driver):
        process.folder.mkdir(parents=True)
        sleeping = [sys.executable, "-c", "import time; time.sleep(100)", process.marker]
        process.spawn(sleeping, output=process.folder / "log", environment={})
    try:
        done = run("down", home=home)
        assert done.code == 0
        assert "stopping background pipelines" in done.err
        assert driver.find() is None
        assert spark.find() is not None, "it is for the run to end its JVM; it waits for brokers that come back"
    finally:
        spark.kill()


def test_a_home_may_have_any_letters(run: Headrace, make_home: MakeHome) -> None:
    home = make_home("with  blanks # Größe = 日本語 : кафка 100% \\ 'quoted' 🐘")
    done = run("up", "--brokers", 1, home=home)
    assert done.code == 0
    bootstrap = done.out.strip()
    create_topic(bootstrap, "t", 1, 1)
    assert len(write(bootstrap, "t", [b"x"])) == 1
    assert broker_settings(bootstrap, 1)["log.dirs"] == str(home / "broker-1" / "data")
    assert (home / "broker-1" / "data" / "t-0").is_dir()
    assert run("logs", "1", "-n", "3", home=home).out.count("\n") == 3
    assert status(run, home)["home"] == str(home)
    assert run("restart", "1", home=home).code == 0
    assert [record.value for record in read(bootstrap, "t")] == [b"x"]


def test_the_library_is_the_command_without_words(home: Path) -> None:
    with Cluster(home, brokers=1, kafka={"num.partitions": 5}) as cluster:
        assert cluster.nodes == ("broker-1",)
        assert cluster.status().state == "up"
        assert broker_settings(cluster.bootstrap, 1)["num.partitions"] == "5"
        document = read_json(cluster.home.cluster_file)
        assert json.loads(json.dumps(document))["kafka"] == {"num.partitions": "5"}
    assert processes_of(home) == []
