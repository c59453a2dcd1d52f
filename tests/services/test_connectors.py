"""File → topic → file through Kafka Connect, by the command and by the library."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cluster import Cluster
from headrace.connect import Connectors
from headrace.errors import ConfigError, UsageError
from headrace.kafka import Kafka, NewTopic
from headrace.kafka.read.consumer import consume
from headrace.runtime.waiting import eventually
from tests.conftest import Headrace
from tests.services.conftest import lines_of


@pytest.fixture
def topic(serviced: Cluster) -> str:
    name = f"lines-{uuid.uuid4().hex[:8]}"
    Kafka(serviced).create_topics([NewTopic(name, 1, 1)])
    return name


@pytest.fixture
def file_to_file(serviced: Cluster, topic: str, tmp_path: Path) -> Callable[[], tuple[Connectors, Path, Path]]:
    """A source file, a topic and a sink file, connected."""

    def make() -> tuple[Connectors, Path, Path]:
        source, sink = tmp_path / "in.txt", tmp_path / "out.txt"
        source.write_text("foo\nbar\n")
        worker = serviced.connectors
        worker.create(f"{topic}-in", {"connector.class": "FileStreamSource", "file": str(source), "topic": topic})
        worker.create(f"{topic}-out", {"connector.class": "FileStreamSink", "file": str(sink), "topics": topic})
        return worker, source, sink

    return make


def append(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def test_lines_flow_from_file_to_file_while_it_runs(
    serviced: Cluster, topic: str, file_to_file: Callable[[], tuple[Connectors, Path, Path]]
) -> None:
    worker, source, sink = file_to_file()
    eventually(lambda: lines_of(sink) == ["foo", "bar"], 60)
    first = next(iter(consume(serviced, topic)))
    assert json.loads(first.value or b"") == {"schema": {"type": "string", "optional": False}, "payload": "foo"}
    append(source, "baz")
    eventually(lambda: lines_of(sink) == ["foo", "bar", "baz"], 60)
    eventually(lambda: worker.offsets(f"{topic}-in")[0]["offset"] == {"position": 12}, 30)


def test_after_the_worker_was_killed_nothing_is_lost_or_doubled(
    whole: Cluster, file_to_file: Callable[[], tuple[Connectors, Path, Path]], topic: str
) -> None:
    worker, source, sink = file_to_file()
    eventually(lambda: lines_of(sink) == ["foo", "bar"], 60)
    # The sink commits what it wrote twice a second; a kill in between would make it write those lines again.
    eventually(lambda: worker.offsets(f"{topic}-out") != [], 30)
    eventually(lambda: worker.offsets(f"{topic}-out")[0]["offset"] == {"kafka_offset": 2}, 30)
    whole.kill("connect")
    append(source, "written while it was dead")
    whole.start("connect")
    append(source, "written after")
    wanted = ["foo", "bar", "written while it was dead", "written after"]
    eventually(lambda: lines_of(sink) == wanted, 90)


def test_files_of_a_standalone_worker_make_connectors_and_the_source_its_topic(
    serviced: Cluster, tmp_path: Path, run: Headrace
) -> None:
    topic, home = f"made-{uuid.uuid4().hex[:8]}", serviced.home.root
    for kind, key in (("Source", "topic"), ("Sink", "topics")):
        (run.folder / f"{kind}.properties").write_text(
            f"# as connect-standalone reads it\nname={topic}-{kind}\nconnector.class : FileStream{kind}\ntasks.max=1\n"
            f"file={tmp_path}/{kind}.txt\n{key} = \\\n    {topic}\n"
        )
    (tmp_path / "Source.txt").write_text("foo\nbar\n")
    waits = run("connector", "create", "Sink.properties", home=home)
    assert (waits.code, f"{topic}-Sink is waiting: topic {topic} not found" in waits.err) == (0, True)
    found = run("status", "--json", home=home).json()["connectors"]
    assert {c["name"]: c["waiting"] for c in found}[f"{topic}-Sink"] == f"topic {topic} not found"
    assert f"waiting: topic {topic} not found" in run("status", home=home).out
    made = run("connector", "create", f"{topic}-named", "Source.properties", home=home)
    assert (made.code, f"{topic}-named" in made.out) == (0, True)
    eventually(lambda: lines_of(tmp_path / "Sink.txt") == ["foo", "bar"], 60)
    assert serviced.connectors.status(f"{topic}-Sink").waiting is None
    (run.folder / "worker.properties").write_text("bootstrap.servers=localhost:9092\n")
    wrong = run("connector", "create", "worker.properties", "Source.properties", home=home)
    assert (wrong.code, "settings of a worker" in wrong.err) == (2, True)
    for name in (f"{topic}-Sink", f"{topic}-named"):
        serviced.connectors.delete(name)


def test_pause_resume_restart_delete(
    serviced: Cluster, topic: str, file_to_file: Callable[[], tuple[Connectors, Path, Path]], run: Headrace
) -> None:
    _, source, sink = file_to_file()
    name, home = f"{topic}-out", serviced.home.root
    eventually(lambda: lines_of(sink) == ["foo", "bar"], 60)
    assert run("connector", "pause", name, "--json", home=home).json()["state"] == "PAUSED"
    append(source, "later")
    assert run("connector", "resume", name, "--json", home=home).json()["state"] == "RUNNING"
    eventually(lambda: lines_of(sink)[-1] == "later", 60)
    assert run("connector", "restart", name, home=home).code == 0
    assert name in run("connector", "list", home=home).out
    assert run("connector", "delete", name, "--yes", home=home).code == 0
    gone = run("connector", "status", name, home=home)
    assert gone.code == 2
    assert f"there is no connector '{name}'" in gone.err


def test_plugins_are_listed(serviced: Cluster, run: Headrace) -> None:
    done = run("connector", "plugins", home=serviced.home.root)
    assert "org.apache.kafka.connect.file.FileStreamSinkConnector" in done.out
    assert "com.example.connectors.ofmine.MineStreamSinkConnector" in done.out


def test_a_connector_of_the_users_own_moves_lines(serviced: Cluster, topic: str, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("mine\nown\n")
    mine = {"connector.class": "MineStreamSource", "file": str(tmp_path / "in.txt"), "topic": topic}
    serviced.connectors.create(f"{topic}-mine", mine)
    values = [json.loads(record.value or b"") for record in consume(serviced, topic, until="count:2")]
    assert [value["payload"] for value in values] == ["mine", "own"]


def test_another_plugin_folder_restarts_the_worker(whole: Cluster, tmp_path: Path) -> None:
    Cluster(whole.home.root, plugins=tmp_path).up()
    assert not any("MineStream" in plugin.name for plugin in whole.connectors.plugins())


def test_wrong_settings_are_explained_before_anything_is_created(serviced: Cluster, run: Headrace) -> None:
    home = serviced.home.root
    unknown = run("connector", "create", "bad", "--set", "connector.class=FileStreamSorce", home=home)
    assert unknown.code == 2
    assert "did you mean org.apache.kafka.connect.file.FileStreamSourceConnector?" in unknown.err
    lacking = run("connector", "validate", "--set", "connector.class=FileStreamSink", home=home)
    assert lacking.code == 1
    assert "Must configure one of topics or topics.regex" in lacking.out
    assert "bad" not in serviced.connectors.names()
    with pytest.raises(ConfigError, match="1 setting is wrong"):
        serviced.connectors.create("bad", {})


def test_a_file_that_is_not_there_and_one_that_is_no_json(serviced: Cluster, run: Headrace) -> None:
    home = serviced.home.root
    assert run("connector", "create", "bad", "nowhere.json", home=home).code == 2
    (run.folder / "bad.json").write_text("{")
    done = run("connector", "create", "bad", "bad.json", home=home)
    assert done.code == 2
    assert "is not valid JSON" in done.err


def test_a_sink_that_cannot_write_fails_with_its_error_in_full(
    serviced: Cluster, topic: str, tmp_path: Path, run: Headrace
) -> None:
    config = {"name": f"{topic}-bad", "config": {
        "connector.class": "FileStreamSink", "topics": topic, "file": str(tmp_path / "no" / "such" / "out.txt"),
    }}  # fmt: skip
    (run.folder / "sink.json").write_text(json.dumps(config))
    run("connector", "create", f"{topic}-bad", "sink.json", home=serviced.home.root)
    worker = serviced.connectors
    eventually(lambda: [t.state for t in worker.status(f"{topic}-bad").tasks] == ["FAILED"], 60)
    shown = run("connector", "status", f"{topic}-bad", home=serviced.home.root)
    assert shown.code == 1
    assert "Couldn't find or create file" in shown.err
    worker.delete(f"{topic}-bad")


def test_two_of_one_name_are_refused(
    serviced: Cluster, topic: str, file_to_file: Callable[[], tuple[Connectors, Path, Path]]
) -> None:
    worker, source, _ = file_to_file()
    with pytest.raises(UsageError, match="of that name exists"):
        worker.create(f"{topic}-in", {"connector.class": "FileStreamSource", "file": str(source), "topic": topic})


def test_connects_own_group_is_listed_and_told_apart_from_consumers(serviced: Cluster, run: Headrace) -> None:
    home = serviced.home.root
    listed = run("group", "list", "--json", home=home)
    assert listed.code == 0
    assert "headrace-connect" in listed.out
    described = run("group", "describe", "headrace-connect", home=home)
    assert (described.code, "Connect workers" in described.err) == (0, True)
    reset = run("group", "reset", "headrace-connect", "--to", "end", "--yes", home=home)
    assert (reset.code, "a connect group" in reset.err) == (1, True)


def test_a_connector_is_installed(whole: Cluster, run: Headrace) -> None:
    """By the command: the running worker is restarted with it, and its connectors go on."""
    name = "io.debezium.connector.postgresql.PostgresConnector"
    assert name not in {plugin.name for plugin in whole.connectors.plugins()}
    home = whole.home.root
    unknown = run("connector", "install", "oracle", home=home)
    assert (unknown.code, "headrace knows postgres" in unknown.err) == (2, True)
    done = run("connector", "install", "postgres", "--json", home=home)
    assert (done.code, done.json()) == (0, {"connector": "postgres", "restarted": True})
    eventually(lambda: name in {plugin.name for plugin in whole.connectors.plugins()}, 60)
    assert run("connector", "install", "postgres", "--json", home=home).json()["restarted"] is False
    wrong = whole.connectors.validate({"name": "shop", "connector.class": name, "topic.prefix": "shop"})
    assert "database.hostname" in {error.name for error in wrong}
