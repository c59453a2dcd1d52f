"""Whatever is wrong: a problem, a cause, what to try, the right exit code, and nothing lost."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.cluster import Cluster
from headrace.runtime.jars import locked_version
from tests.conftest import Done, Headrace, processes_of, take_down
from tests.records import read, write

_VALUES = [b"%d" % number for number in range(100)]


@pytest.fixture(scope="module")
def asleep(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of a cluster that was up, holds records, and is down."""
    home = tmp_path_factory.mktemp("asleep") / "home"
    with Cluster(home, brokers=1) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("kept", 1, 1)])["kept"].result(30)
        write(cluster.bootstrap, "kept", _VALUES)
    yield home
    take_down(home)


@pytest.fixture
def copy(asleep: Path, make_home: Callable[[str], Path]) -> Path:
    """A copy of it, to be damaged."""
    home = make_home("copy")
    shutil.copytree(asleep, home)
    return home


def explained(done: Done, code: int, problem: str, why: str, hint: str) -> None:
    lines = done.err.splitlines()
    errors = [number for number, line in enumerate(lines) if line.startswith("error: ")]
    assert len(errors) == 1, done.err
    told = lines[errors[0] :]
    assert problem in told[0]
    assert told[1].startswith("  why: ")
    assert why in told[1]
    assert told[2].startswith("  try: ")
    assert hint in told[2]
    assert (done.code, done.out) == (code, "")


@pytest.mark.parametrize("brokers", [0, -1, 100])
def test_a_number_of_brokers_that_cannot_be(run: Headrace, home: Path, brokers: int) -> None:
    done = run("up", "--brokers", brokers, home=home)
    explained(done, 2, f"invalid number of brokers: {brokers}", "1 to 9 are possible", "headrace up --brokers 3")


def test_a_port_that_somebody_else_holds(run: Headrace, home: Path) -> None:
    with socket.socket() as foreign:
        foreign.bind(("127.0.0.1", 0))
        foreign.listen()
        port = foreign.getsockname()[1]
        done = run("up", "--brokers", 1, "--base-port", port, home=home)
        explained(done, 3, f"port {port} is taken", f"held by pid {os.getpid()} (", "headrace up --base-port ")
        assert foreign.fileno() >= 0
    assert processes_of(home) == []


def test_a_remembered_port_that_somebody_took_meanwhile(run: Headrace, copy: Path) -> None:
    port = Cluster(copy).spec.ports[0]
    with socket.socket() as foreign:
        foreign.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        foreign.bind(("127.0.0.1", port))
        foreign.listen()
        done = run("up", home=copy)
        explained(done, 3, f"port {port} is taken", f"held by pid {os.getpid()} (", "headrace up --base-port ")
        assert f"port {port} of broker-1 is held by pid {os.getpid()}" in run("doctor", home=copy).out
        assert run("doctor", home=copy).code == 3
        other = done.err.rpartition("--base-port ")[2].strip()
        moved = run("up", "--base-port", other, home=copy)
        assert moved.code == 0
        assert moved.out.strip() == f"127.0.0.1:{other}"
        assert [record.value for record in read(moved.out.strip(), "kept")] == _VALUES


def test_a_port_that_cannot_be(run: Headrace, home: Path) -> None:
    done = run("up", "--base-port", 80, home=home)
    explained(done, 2, "ports 80 to 85 cannot be used", "1024 to 65535", "headrace up --base-port 19092")


def test_not_enough_disk(run: Headrace, home: Path) -> None:
    done = run("up", home=home, env={"HEADRACE_MIN_FREE_DISK": "100TB"})
    explained(done, 3, f"not enough disk for a cluster in {home}", "100.0 TB are required", "make room")
    assert "problem" in run("doctor", home=home, env={"HEADRACE_MIN_FREE_DISK": "100TB"}).out


def test_a_home_that_is_a_file(run: Headrace, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for home in (tmp_path / "file", tmp_path / "file" / "below"):
        explained(run("up", home=home), 3, f"the home folder {home} cannot be written", "", "headrace --home DIR")


def test_a_home_where_nothing_can_be_written(run: Headrace) -> None:
    done = run("up", home=Path("/proc/headrace"))
    explained(done, 3, "the home folder /proc/headrace cannot be written", "No such file", "headrace --home DIR")


def test_a_home_with_a_comma(run: Headrace, tmp_path: Path) -> None:
    done = run("up", home=tmp_path / "a,b")
    explained(done, 2, "has a comma in its name", "Kafka separates log directories with commas", "--home")


@pytest.mark.parametrize("damage", ["meta.properties gone", "wrong cluster id", "wrong node id", "folder gone"])
def test_a_damaged_data_folder(run: Headrace, copy: Path, damage: str) -> None:
    data = copy / "broker-1" / "data"
    meta = data / "meta.properties"
    why = {
        "meta.properties gone": "meta.properties: No such file",
        "wrong cluster id": "meta.properties says cluster.id=AAAAAAAAAAAAAAAAAAAAAA, expected ",
        "wrong node id": "meta.properties says node.id=7, expected 1",
        "folder gone": "the folder is gone",
    }[damage]
    if damage == "meta.properties gone":
        meta.unlink()
    elif damage == "folder gone":
        shutil.rmtree(data)
    else:
        name, value = ("cluster.id", "A" * 22) if damage == "wrong cluster id" else ("node.id", "7")
        lines = [line for line in meta.read_text(encoding="utf-8").splitlines() if not line.startswith(name)]
        meta.write_text("\n".join([*lines, f"{name}={value}\n"]), encoding="utf-8")
    for verb in (("up",), ("start", "1")):
        done = run(*verb, home=copy)
        explained(done, 3, "the data folder of broker-1 is damaged", why, f"restore {data} from a copy")
    assert processes_of(copy) == []
    if damage != "folder gone":
        assert list(data.glob("kept-0/*.log"))


@pytest.mark.parametrize("text", [None, "garbage", "{}", "[1]", '{"format": 2}'])
def test_a_damaged_plan(run: Headrace, copy: Path, text: str | None) -> None:
    plan = copy / "cluster.json"
    whole = plan.read_text(encoding="utf-8")
    if text is None:
        plan.unlink()
    else:
        plan.write_text(text, encoding="utf-8")
    done = run("up", home=copy)
    assert done.code == 3
    assert "  why: " in done.err
    assert "headrace down --wipe" in done.err
    assert list(copy.glob("broker-1/data/kept-0/*.log"))
    assert run("down", home=copy).code == 0
    if text is not None:
        assert run("status", home=copy).code == 3
        doctor = run("doctor", home=copy)
        assert (doctor.code, doctor.out.startswith("problem")) == (3, True)
    plan.write_text(whole, encoding="utf-8")
    assert run("status", home=copy).code == 0
    plan.write_text(text or "", encoding="utf-8")
    assert run("down", "--wipe", "--yes", home=copy).code == 0
    assert not copy.exists()


def test_a_cluster_of_another_kafka_version(run: Headrace, copy: Path) -> None:
    plan = copy / "cluster.json"
    document = json.loads(plan.read_text(encoding="utf-8"))
    plan.write_text(json.dumps({**document, "kafka_version": "3.9.0"}), encoding="utf-8")
    ours = locked_version("kafka_2.13")
    for verb in (("up",), ("start", "1")):
        done = run(*verb, home=copy)
        problem = f"the cluster in {copy} was written by Kafka 3.9.0, this headrace runs {ours}"
        explained(done, 3, problem, "never be downgraded", "use the headrace that made it")
    assert processes_of(copy) == []


def test_a_copy_of_a_cluster_holds_its_records(run: Headrace, copy: Path) -> None:
    done = run("up", home=copy)
    assert done.code == 0
    assert [record.value for record in read(done.out.strip(), "kept")] == _VALUES


def test_a_misspelt_setting(run: Headrace, tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text("[cluster]\nbroker = 1\n", encoding="utf-8")
    done = run("up", home=tmp_path / "home")
    problem = "headrace.toml, line 2: unknown setting cluster.broker"
    explained(done, 2, problem, "known are ", "did you mean cluster.brokers?")


def test_a_wrong_option_is_a_usage_error(run: Headrace, home: Path) -> None:
    for words in (("up", "--node-ids", "1,x"), ("up", "--set", "novalue"), ("up", "--nonsense"), ("nonsense",)):
        done = run(*words, home=home)
        assert done.code == 2
        assert "Error: " in done.err
        assert "Try 'headrace" in done.err
