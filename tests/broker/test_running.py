"""A running cluster of three, seen and handled through the commands."""

from __future__ import annotations

import itertools
import json
import logging
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.cluster import Cluster
from headrace.errors import Unreachable
from headrace.kafka import Kafka
from headrace.runtime.jars import jar_lock
from headrace.runtime.waiting import eventually
from tests.conftest import Headrace, processes_of
from tests.records import leaders, read, write

MakeTopic = Callable[..., str]


@pytest.fixture
def home(headrace_cluster: Cluster) -> Path:
    return headrace_cluster.home.root


def status(run: Headrace, home: Path) -> dict[str, Any]:
    done = run("status", "--json", home=home)
    found: dict[str, Any] = done.json()
    assert done.code == any(node["state"] == "dead" for node in found["nodes"])
    return found


def state_of(run: Headrace, home: Path, node: str) -> str:
    return str(next(found["state"] for found in status(run, home)["nodes"] if found["name"] == node))


def test_status_is_a_table_of_all_nodes(run: Headrace, home: Path, headrace_cluster: Cluster) -> None:
    done = run("status", home=home)
    assert done.code == 0
    facts = dict(line.split("  ", 1) for line in done.out.split("\n\n")[0].splitlines())
    facts = {name: text.strip() for name, text in facts.items()}
    assert facts["state"] == "up"
    assert facts["bootstrap"] == headrace_cluster.bootstrap
    assert facts["home"] == str(home)
    assert facts["controller"].startswith("broker-")
    for node in headrace_cluster.nodes:
        assert f"{node} lag " in facts["quorum"]
    assert facts["topics"].endswith("0 under-replicated, 0 offline (with internal topics)")
    heading, *rows = done.out.split("\n\n")[1].splitlines()
    assert heading.split() == ["NODE", "ID", "ROLES", "STATE", "PID", "PORT", "UPTIME", "MEMORY", "DATA"]
    assert [row.split()[:4] for row in rows] == [
        [f"broker-{number}", str(number), "broker,controller", "running"] for number in (1, 2, 3)
    ]


def test_a_broker_loads_the_locked_codecs(home: Path, headrace_cluster: Cluster, headrace_topic: MakeTopic) -> None:
    topic = headrace_topic(compression_type="gzip")  # so that the broker has to unpack what it is sent
    for codec in ("snappy", "lz4"):
        producer = Producer({"bootstrap.servers": headrace_cluster.bootstrap, "compression.type": codec})
        for number in range(200):
            producer.produce(topic, f"{codec} {number} ".encode() * 20)
        assert producer.flush(30) == 0
    assert len(read(headrace_cluster.bootstrap, topic)) == 400
    [leader] = leaders(headrace_cluster.bootstrap, topic).values()
    [broker] = [p for p in processes_of(home) if any(word.endswith(f"broker-{leader}") for word in p.cmdline())]
    opened = {Path(file.path).name for file in broker.open_files() if file.path.endswith(".jar")}
    assert opened == {artifact.file_name for artifact in jar_lock()["kafka"]}
    mapped = " ".join(each.path for each in broker.memory_maps())
    assert "-libsnappyjava.so" in mapped
    assert "liblz4-java" in mapped


def test_status_for_scripts_names_every_address_and_every_node(
    run: Headrace, home: Path, headrace_topic: MakeTopic
) -> None:
    headrace_topic(partitions=4, replication=2)
    found = status(run, home)
    assert list(found)[:4] == ["bootstrap", "registry", "connect", "console"]
    assert found["state"] == "up"
    assert found["bootstrap"] == ",".join(f"127.0.0.1:{node['port']}" for node in found["nodes"])
    for node in found["nodes"]:
        assert psutil.Process(node["pid"]).name() == "java"
        assert node["uptime_s"] > 0
        assert node["memory_bytes"] > 10_000_000
        assert node["log_dir_bytes"] > 0
        assert node["controller_port"] != node["port"]
    assert found["controller"] == found["quorum"]["leader_id"]
    assert sorted(voter["node_id"] for voter in found["quorum"]["voters"]) == [1, 2, 3]
    assert all(voter["lag"] >= 0 for voter in found["quorum"]["voters"])
    assert found["topics"] >= 1
    assert found["partitions"] >= 4
    assert (found["under_replicated"], found["offline"]) == (0, 0)


def test_status_and_doctor_of_a_kafka_elsewhere(
    run: Headrace, make_home: Callable[[str], Path], headrace_cluster: Cluster
) -> None:
    empty, address = make_home("empty"), headrace_cluster.bootstrap
    found = run("status", "--bootstrap", address, "--json", home=empty).json()
    assert (found["state"], found["home"], found["bootstrap"]) == ("up", None, address)
    assert [(n["node_id"], n["host"], n["port"], n["state"]) for n in found["nodes"]] == [
        (node.node_id, "127.0.0.1", node.port, "running") for node in headrace_cluster.spec.brokers
    ]
    assert found["cluster_id"] == headrace_cluster.spec.cluster_id
    assert found["controller"] in {1, 2, 3}
    shown = run("status", "--bootstrap", address, home=empty).out
    assert all(f"127.0.0.1:{node.port}" in shown for node in headrace_cluster.spec.brokers)
    (empty.parent / "client.properties").write_text(f"bootstrap.servers={address}\n", encoding="utf-8")
    done = run("doctor", "-F", "client.properties", home=empty)
    assert done.code == 0, done.out
    assert "broker-3 answers at " in done.out
    assert run("status", "--bootstrap", "127.0.0.1:1", home=empty).code == 4
    assert not empty.exists()


def test_up_can_be_repeated_and_touches_nothing(run: Headrace, home: Path, headrace_cluster: Cluster) -> None:
    before = {process.pid for process in processes_of(home)}
    done = run("up", home=home)
    assert done.code == 0
    assert done.out.strip() == headrace_cluster.bootstrap
    assert "ready in " in done.err
    assert {process.pid for process in processes_of(home)} == before


def test_every_listener_binds_loopback(headrace_cluster: Cluster) -> None:
    nodes = [process for process in processes_of(headrace_cluster.home.root) if process.name() == "java"]
    listening = [
        connection.laddr
        for process in nodes
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    # Java's IPv6 sockets show an IPv4 address in its mapped form.
    assert {address.ip for address in listening} <= {"127.0.0.1", "::ffff:127.0.0.1"}
    assert sorted(address.port for address in listening) == sorted(headrace_cluster.spec.ports)


def test_records_are_nobody_elses_business(headrace_cluster: Cluster, headrace_topic: MakeTopic) -> None:
    write(headrace_cluster.bootstrap, headrace_topic(), [b"secret"])
    root = headrace_cluster.home.root
    assert root.stat().st_mode & 0o777 == 0o700
    for path in root.rglob("*"):
        try:
            mode = path.stat().st_mode & 0o777
        except FileNotFoundError:  # Kafka writes beside a file and renames
            continue
        wanted = {0o700} if path.is_dir() else {0o600}
        if path.suffix == ".so":  # a library that Java unpacks for itself may be run, by its owner
            wanted |= {0o700}
        assert mode in wanted, f"{path} has {mode:o}"


def test_topics_do_not_appear_behind_the_users_back(headrace_cluster: Cluster) -> None:
    failures: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": headrace_cluster.bootstrap,
            "allow.auto.create.topics": True,
            "message.timeout.ms": 2000,
        },
        logger=_silent(),
    )
    producer.produce("no-such-topic", b"x", on_delivery=lambda error, _: failures.append(error))
    producer.flush(60)
    assert [error is None for error in failures] == [False]
    admin = AdminClient({"bootstrap.servers": headrace_cluster.bootstrap})
    assert "no-such-topic" not in admin.list_topics(timeout=60).topics


def _silent() -> logging.Logger:
    logger = logging.getLogger("tests.silent")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


def test_logs_shows_the_last_lines(run: Headrace, home: Path) -> None:
    log = (home / "broker-2" / "server.log").read_text(encoding="utf-8").splitlines()
    shown = run("logs", "2", "-n", "5", home=home).out.splitlines()
    assert len(shown) == 5
    assert shown[0] in log


def test_logs_follows_until_it_is_interrupted(run: Headrace, home: Path, headrace_topic: MakeTopic) -> None:
    with run.start("logs", "broker-1", "-f", "-n", "1", home=home) as following:
        assert following.stdout is not None
        assert following.stderr is not None
        assert following.stdout.readline().startswith("[")
        topic = headrace_topic(partitions=3, replication=3)
        assert any(topic in line for line in itertools.islice(following.stdout, 2000))
        following.send_signal(signal.SIGINT)
        _, err = following.communicate(timeout=20)
    assert following.returncode == 130
    assert err.strip().endswith("interrupted")
    assert "Traceback" not in err


def test_doctor_finds_nothing_wrong_with_a_running_cluster(
    run: Headrace, home: Path, headrace_cluster: Cluster
) -> None:
    done = run("doctor", home=home)
    assert done.code == 0
    findings = [line for line in done.out.splitlines() if not line.startswith(" ")]
    assert not [line for line in findings if line.startswith("problem")]
    for words in ("Java 21", "pyspark 4.2.0", "Kafka jars in", "GB free at", "of memory available", f"home {home}"):
        assert any(line.startswith("ok") and words in line for line in findings), words
    ports = ", ".join(map(str, headrace_cluster.spec.ports))
    assert any(f"this cluster's ports: {ports}" in line for line in findings)
    told = run("doctor", "--json", home=home).json()
    assert all(set(finding) == {"level", "what", "fix"} for finding in told)


def test_config_tells_what_this_cluster_remembers(run: Headrace, home: Path, headrace_cluster: Cluster) -> None:
    told = run("config", "--json", home=home).json()
    assert told["cluster.brokers"]["value"] == 3
    assert told["cluster.brokers"]["origin"] == "this cluster"
    assert told["cluster.base_port"]["value"] == headrace_cluster.spec.ports[0]


def test_during_an_election_there_is_no_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    partition = {"error": "[Error 6] NotLeaderForPartitionError", "leader_id": 0, "leader_epoch": 0}
    answer = {"topics": [{"partitions": [partition]}]}
    monkeypatch.setattr(Kafka, "ask_other", lambda *_: answer)
    with pytest.raises(Unreachable, match="no leader at the moment"):
        Kafka("127.0.0.1:1").quorum()


def test_an_unknown_node_is_refused_with_those_that_exist(run: Headrace, home: Path) -> None:
    for verb in ("start", "stop", "restart", "kill", "pause", "resume", "logs"):
        done = run(verb, "broker-9", home=home)
        assert done.code == 2
        assert "error: there is no node 'broker-9' in this cluster" in done.err
        assert "why: its nodes are broker-1, broker-2, broker-3" in done.err


def test_a_killed_leader_is_followed_by_another_and_comes_back(
    run: Headrace, home: Path, headrace_faults: Cluster, headrace_topic: MakeTopic
) -> None:
    bootstrap = headrace_faults.bootstrap
    topic = headrace_topic(partitions=3, replication=3)
    acknowledged = write(bootstrap, topic, [b"before %d" % n for n in range(100)])
    pid = next(node["pid"] for node in status(run, home)["nodes"] if node["node_id"] == 2)

    done = run("kill", "2", home=home)
    assert done.code == 0
    assert "broker-2 is dead" in done.err
    assert pid not in [process.pid for process in processes_of(home)]
    eventually(lambda: set(leaders(bootstrap, topic).values()) == {1, 3}, 30)
    found = status(run, home)
    assert found["state"] == "degraded"
    # Topics of other tests may have their only replica there, so nothing is said of offline partitions.
    assert found["under_replicated"] > 0
    assert state_of(run, home, "broker-2") == "dead"
    assert "broker-2 is dead: ended by `headrace kill`" in run("doctor", home=home).out
    acknowledged += write(bootstrap, topic, [b"without %d" % n for n in range(100)])

    again = run("kill", "2", home=home)
    assert again.code == 2
    assert "error: broker-2 cannot be killed: it is dead" in again.err
    assert "try: headrace start broker-2" in again.err

    assert run("start", "broker-2", home=home).code == 0
    assert state_of(run, home, "broker-2") == "running"
    assert run("start", "2", home=home).code == 2
    eventually(lambda: status(run, home)["state"] == "up", 60)
    assert sorted(acknowledged) == sorted(record.value for record in read(bootstrap, topic))
    assert len(acknowledged) == 200


def test_a_paused_node_is_noticed_and_runs_on(
    run: Headrace, home: Path, headrace_faults: Cluster, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic(partitions=3, replication=3)
    assert run("resume", "3", home=home).code == 2
    assert run("pause", "3", home=home).code == 0
    assert state_of(run, home, "broker-3") == "paused"
    survivors = ",".join(f"127.0.0.1:{node.port}" for node in headrace_faults.spec.brokers if node.node_id != 3)
    eventually(lambda: 3 not in leaders(survivors, topic).values(), 30)
    done = run("doctor", "--bootstrap", survivors)
    assert done.code == 3
    assert re.search(r"problem +broker-3 .* is fenced", done.out)
    done = run("resume", "3", home=home)
    assert done.code == 0
    assert "broker-3 is resumed" in done.err
    eventually(lambda: status(run, home)["state"] == "up", 60)


def test_a_stopped_node_hands_over_first(
    run: Headrace, home: Path, headrace_faults: Cluster, headrace_topic: MakeTopic
) -> None:
    bootstrap = headrace_faults.bootstrap
    topic = headrace_topic(partitions=3, replication=3)
    assert run("stop", "1", home=home).code == 0
    assert state_of(run, home, "broker-1") == "stopped"
    assert 1 not in leaders(bootstrap, topic).values()
    assert "STARTED to SHUTTING_DOWN" in (home / "broker-1" / "server.log").read_text(encoding="utf-8")
    assert len(write(bootstrap, topic, [b"x"] * 10)) == 10
    assert run("start", "1", home=home).code == 0
    before = {node["name"]: node["pid"] for node in status(run, home)["nodes"]}
    assert run("restart", "broker-1", home=home).code == 0
    after = {node["name"]: node["pid"] for node in status(run, home)["nodes"]}
    assert {name for name in before if before[name] != after[name]} == {"broker-1"}


def test_up_mends_what_is_paused_dead_or_stopped(run: Headrace, home: Path, headrace_faults: Cluster) -> None:
    run("kill", "1", home=home)
    run("start", "1", home=home)
    run("pause", "2", home=home)
    run("kill", "3", home=home)
    done = run("up", home=home)
    assert done.code == 0
    assert "resuming broker-2" in done.err
    assert "starting broker-3" in done.err
    assert [node["state"] for node in status(run, home)["nodes"]] == ["running"] * 3


def committed(consumer: Consumer, topic: str) -> int | None:
    """What the group has committed; None while its coordinator is moving."""
    try:
        found = consumer.committed([TopicPartition(topic, 0)], timeout=30)
    except KafkaException:
        return None
    return int(found[0].offset)


def test_internal_topics_survive_a_dead_broker(
    run: Headrace, home: Path, headrace_faults: Cluster, headrace_topic: MakeTopic
) -> None:
    bootstrap = headrace_faults.bootstrap
    topic = headrace_topic(partitions=1, replication=3)
    write(bootstrap, topic, [b"x"] * 10)
    transact(bootstrap, topic)
    settings = {"bootstrap.servers": bootstrap, "group.id": topic, "enable.auto.commit": False}
    consumer = Consumer(settings, logger=_silent())
    consumer.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)

    metadata = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=60)
    internal = {name: found for name, found in metadata.topics.items() if name.startswith("__")}
    assert {"__consumer_offsets", "__transaction_state"} <= set(internal)
    for name, found in internal.items():
        assert {len(partition.replicas) for partition in found.partitions.values()} == {3}, name

    for victim in (1, 2, 3):
        run("kill", victim, home=home)
        assert eventually(partial(committed, consumer, topic), 30) == 3 + victim
        eventually(partial(commits, consumer, TopicPartition(topic, 0, 4 + victim)), 30)
        transact(bootstrap, topic)
        run("start", victim, home=home)
        eventually(lambda: status(run, home)["state"] == "up", 60)
    consumer.close()


def commits(consumer: Any, offset: Any) -> bool:
    """True once the commit was taken; a coordinator that moves refuses for a moment."""
    try:
        consumer.commit(offsets=[offset], asynchronous=False)
    except KafkaException as error:
        if error.args[0].name() not in {"NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE", "_TIMED_OUT", "_TRANSPORT"}:
            raise
        return False
    return True


def transact(bootstrap: str, topic: str) -> None:
    settings = {"bootstrap.servers": bootstrap, "transactional.id": topic, "transaction.timeout.ms": 20_000}
    producer = Producer(settings, logger=_silent())
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"in a transaction")
    producer.commit_transaction(30)


def test_a_later_start_maps_the_class_archive(run: Headrace, home: Path, headrace_faults: Cluster) -> None:
    def made() -> bool:
        return any("class archive kafka-" in finding["what"] for finding in run("doctor", "--json", home=home).json())

    eventually(made, 120, every_s=0.5)
    run("restart", "3", home=home)
    pid = next(node["pid"] for node in status(run, home)["nodes"] if node["node_id"] == 3)
    assert any(path.endswith(".jsa") for path in mapped_files(pid))


def mapped_files(pid: int) -> set[str]:
    return {mapping.path for mapping in psutil.Process(pid).memory_maps()}


def test_output_is_data_and_errors_are_words(run: Headrace, home: Path) -> None:
    done = run("--json", "up", home=home)
    assert json.loads(done.out)["state"] == "up"
    assert done.err == ""
    quiet = run("-q", "up", home=home)
    assert (quiet.code, quiet.err) == (0, "")
    assert quiet.out.startswith("127.0.0.1:")
    assert run("no-such-command", home=home).code == 2
    assert run("up", "--brokers", "three", home=home).code == 2
