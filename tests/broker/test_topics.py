"""Topics, as a person at the shell and a program in Python see them, on a real cluster."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.cluster import Cluster
from headrace.errors import AlreadyExists, Failed, UsageError
from headrace.kafka import Kafka, bounds
from headrace.kafka.client import Connection, HasBootstrap, connect
from headrace.kafka.model import NewTopic
from headrace.kafka.write.shaping import partition_of
from headrace.runtime.jars import JarCache, default_cache
from headrace.runtime.java import find_java
from headrace.runtime.waiting import eventually
from tests.broker.shell import Shell

MakeTopic = Callable[..., str]


@pytest.fixture
def shell(headrace_cluster: HasBootstrap) -> Shell:
    return Shell(headrace_cluster.bootstrap)


@pytest.fixture
def admin(headrace_cluster: HasBootstrap) -> Iterator[Kafka]:
    with Kafka(headrace_cluster) as admin:
        yield admin


def new_name() -> str:
    return f"topic-{uuid.uuid4().hex[:12]}"


def fill(where: HasBootstrap, topic: str, records: int, **settings: Any) -> None:
    producer = connect(where).producer(settings)
    for number in range(records):
        producer.produce(topic, f"value {number}", key=str(number))
    assert producer.flush(30) == 0


# -- create -----------------------------------------------------------------------------------------------------


def test_create_shows_what_was_made(shell: Shell) -> None:
    name = new_name()
    ran = shell("topic", "create", name, "--partitions", 6, "--replication", 3, "--set", "retention.ms=3600000")
    assert ran.code == 0
    facts = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in ran.out.splitlines())
    assert facts == {
        "topic": name,
        "partitions": "6",
        "replication": "3",
        "min.insync.replicas": "2",
        "cleanup.policy": "delete",
        "retention.ms": "3600000 (1 h 0 min)",
        "retention.bytes": "-1 (no limit)",
    }


def test_without_numbers_the_brokers_defaults_hold(shell: Shell, admin: Kafka) -> None:
    configs = admin.broker_configs(min(admin.live_brokers()))
    made = shell("topic", "create", new_name(), "--json").json
    assert made["partitions"] == int(configs["num.partitions"].value or 0)
    assert made["replication"] == int(configs["default.replication.factor"].value or 0)


def test_an_assignment_places_each_replica(shell: Shell, admin: Kafka) -> None:
    name = new_name()
    assert shell("topic", "create", name, "--assignment", "3:1,1:2,2:3,2:1").code == 0
    found = admin.topic(name)
    assert [p.replicas for p in found.partitions] == [(3, 1), (1, 2), (2, 3), (2, 1)]
    assert [p.leader for p in found.partitions] == [3, 1, 2, 2]


def test_a_topic_is_visible_on_every_broker_as_soon_as_create_returns(admin: Kafka) -> None:
    names = [new_name() for _ in range(5)]
    for name in names:
        admin.create_topics([NewTopic(name, 4, 3)])
        assert admin.describe(name).offsets == 0
        for address in admin.live_brokers().values():
            with Kafka(address) as another:
                assert all(p.leader > 0 for p in another.topic(name).partitions)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--replication", "7"], ["7 replicas need as many brokers, and 3 are alive", "--replication 3 at most"]),
        (["--set", "retension.ms=1"], ["a topic has no setting 'retension.ms'", "did you mean retention.ms?"]),
        (["--set", "retention.ms=soon"], ["was refused", "Invalid value soon for configuration retention.ms"]),
        (["--set", "retention.ms"], ["'retention.ms' is not of the form name=value"]),
        (["--partitions", "0"], ["0 is not in the range x>=1"]),
        (["--assignment", "1:9"], ["broker 9, but no such broker is registered"]),
        (["--assignment", "1:1"], ["the broker 1 more than once"]),
        (["--assignment", "one"], ["'one' is not of the form 1:2:3,2:3:1"]),
        (["--assignment", "1:2", "--replication", "2"], ["both an assignment and other numbers"]),
    ],
)
def test_what_cannot_be_created_is_said_in_words(
    shell: Shell, admin: Kafka, words: list[str], expected: list[str]
) -> None:
    name = new_name()
    ran = shell("topic", "create", name, *words)
    assert ran.code == 2
    assert ran.out == ""
    for text in expected:
        assert text in ran.err
    assert name not in {topic.name for topic in admin.topics()}


@pytest.mark.parametrize("name", ["two words", "schlüssel", "a/b", "..", "x" * 250, ""])
def test_an_illegal_name_is_refused(shell: Shell, name: str) -> None:
    ran = shell("topic", "create", name)
    assert ran.code == 2
    assert "cannot be created" in ran.err
    assert "Topic name is invalid" in ran.err
    assert len(ran.err) < 700


def test_an_existing_topic_is_an_error_unless_that_is_fine(shell: Shell, headrace_topic: MakeTopic) -> None:
    name = headrace_topic(partitions=3)
    again = shell("topic", "create", name)
    assert (again.code, f"the topic '{name}' exists already" in again.err) == (2, True)
    fine = shell("topic", "create", name, "--if-not-exists", "--partitions", 5, "--json")
    assert fine.code == 0
    assert (fine.json["partitions"], fine.json["created"]) == (3, False)
    assert "partitions 3, not 5" in fine.err


# -- list and describe ------------------------------------------------------------------------------------------


def test_many_who_need_the_same_topic_at_once_all_get_it(headrace_cluster: HasBootstrap) -> None:
    name = new_name()
    together = threading.Barrier(8)

    def ensure(partitions: int) -> bool:
        with Kafka(headrace_cluster) as own:
            together.wait()
            return own.ensure_topic(NewTopic(name, partitions, 1))

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(ensure, [1, 2] * 4))
    assert any(made)
    with Kafka(headrace_cluster) as own:
        assert len(own.topic(name).partitions) in {1, 2}


def _first_then(answers: Iterator[Any], ask: Callable[..., Any], *given: Any, **named: Any) -> Any:
    return next(answers, None) or ask(*given, **named)


def test_a_create_that_was_repeated_by_the_client_is_a_create(admin: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request made the topic and its answer was lost: the repeated one is told that the topic exists."""
    name = new_name()
    before = admin._metadata()
    admin.create_topics([NewTopic(name, 2, 1, {"retention.ms": "7200000"})])
    for wanted, fine in (
        (NewTopic(name, 2, 1, {"retention.ms": "7200000"}), True), (NewTopic(name), True),
        (NewTopic(name, 3, 1), False), (NewTopic(name, 2, 1, {"retention.ms": "1"}), False),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(admin, "_metadata", partial(_first_then, iter([before]), admin._metadata))
            if fine:
                admin.create_topics([wanted])
            else:
                with pytest.raises(AlreadyExists, match="exists already"):
                    admin.create_topics([wanted])


def test_list_counts_and_hides_kafkas_own(
    shell: Shell, headrace_topic: MakeTopic, headrace_cluster: HasBootstrap
) -> None:
    name = headrace_topic(partitions=4, replication=2)
    fill(headrace_cluster, name, 100)
    rows = {row["topic"]: row for row in shell("topic", "list", "--size", "--json").json}
    row = rows[name]
    assert row.pop("bytes") > 100 * len("value 1")
    assert row == {
        "topic": name, "partitions": 4, "replication": 2, "under_replicated": 0, "offline": 0, "offsets": 100,
    }  # fmt: skip
    assert not any(topic.startswith("__") for topic in rows)
    assert any(row["topic"].startswith("__") for row in shell("topic", "list", "--internal", "--json").json)
    assert re.search(rf"^{name} +4 +2 +0 +0$", shell("topic", "list").out, re.MULTILINE)


def test_describe_tells_everything(shell: Shell, headrace_topic: MakeTopic, headrace_cluster: HasBootstrap) -> None:
    name = headrace_topic(partitions=3, replication=3, segment_bytes="2000000")
    fill(headrace_cluster, name, 300)
    found = shell("topic", "describe", name, "--json").json
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", found["topic_id"])
    assert (found["partition_count"], found["replication"], found["offsets"]) == (3, 3, 300)
    setting = found["configs"]["segment.bytes"]
    assert (setting["value"], setting["source"], setting["default"]) == ("2000000", "topic", "1073741824")
    for at, p in enumerate(found["partitions"]):
        assert p["partition"] == at
        assert p["leader"] == p["replicas"][0]
        assert sorted(p["isr"]) == sorted(p["replicas"]) == [1, 2, 3]
        assert (p["elr"], p["begin"], p["end"]) == ([], 0, p["offsets"])
        assert [entry["broker"] for entry in p["replica_bytes"]] == [1, 2, 3]
        assert p["bytes"] > 0
    assert sum(p["bytes"] for p in found["partitions"]) == found["bytes"]


def test_describe_shows_only_what_differs_unless_all_is_wanted(shell: Shell, headrace_topic: MakeTopic) -> None:
    name = headrace_topic(retention_ms="60000")
    few, every = shell("topic", "describe", name).out, shell("topic", "describe", name, "--all").out
    assert re.search(r"^retention\.ms +60000 \(1 min\) +topic +604800000 \(7 d 0 h\)$", few, re.MULTILINE)
    assert "flush.ms" not in few
    assert re.search(r"^flush\.ms .*\(no limit\) +default", every, re.MULTILINE)


def test_a_missing_topic_comes_with_the_nearest_name(shell: Shell, headrace_topic: MakeTopic) -> None:
    name = headrace_topic()
    for words in (["describe"], ["alter", "--partitions", 2], ["size"], ["clean", "--yes"], ["delete", "--yes"]):
        ran = shell("topic", words[0], f"{name}x", *words[1:])
        assert ran.code == 2
        assert f"there is no topic '{name}x'" in ran.err
        assert f"the nearest name is '{name}'" in ran.err
        assert f"try: did you mean {name}?" in ran.err
    assert "try: headrace topic create" in shell("topic", "describe", "nothing-like-it").err
    assert "try: headrace topic list" in shell("topic", "delete", "nothing-like-it", "--yes").err
    assert shell("topic", "which-partition", f"{name}x", "key").code == 2


def test_nobody_at_the_address_is_exit_4(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    # The same question with less patience.
    monkeypatch.setattr("headrace.cli.topic._admin", lambda app: Kafka(app.connection(), timeout_s=1))
    ran = shell("topic", "list", bootstrap="127.0.0.1:1")
    assert (ran.code, "no Kafka answers at 127.0.0.1:1" in ran.err) == (4, True)


def test_the_address_can_come_from_a_properties_file(
    shell: Shell, headrace_topic: MakeTopic, headrace_cluster: HasBootstrap, tmp_path: Path
) -> None:
    name = headrace_topic(partitions=2)
    file = tmp_path / "client.properties"
    file.write_text(f"# an address\nbootstrap.servers = {headrace_cluster.bootstrap}\nclient.id=tester\n")
    found = shell("topic", "describe", name, "-F", file, "--json", bootstrap="")
    assert found.json["partition_count"] == 2
    file.write_text(f"bootstrap.servers={headrace_cluster.bootstrap}\nno.such.property=1\n")
    refused = shell("topic", "list", "-F", file, bootstrap="")
    assert (refused.code, "no.such.property" in refused.err) == (2, True)


# -- alter and delete -------------------------------------------------------------------------------------------


def test_alter_changes_partitions_and_settings(shell: Shell, headrace_topic: MakeTopic, admin: Kafka) -> None:
    name = headrace_topic(partitions=2, segment_ms="60000")
    ran = shell("topic", "alter", name, "--partitions", 5, "--set", "retention.ms=1000", "--unset", "segment.ms")
    assert ran.code == 0
    assert "keys map to other partitions from now on (2 became 5)" in ran.err
    found = admin.describe(name)
    assert len(found.partitions) == 5
    assert (found.configs["retention.ms"].value, found.configs["retention.ms"].source) == ("1000", "topic")
    assert found.configs["segment.ms"].source == "default"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--partitions", "2"], "has 3 partitions; they cannot become 2"),
        (["--set", "cleanup.polcy=compact"], "did you mean cleanup.policy?"),
        (["--unset", "cleanup.polcy"], "did you mean cleanup.policy?"),
        (["--partitions", "9", "--set", "retention.ms=soon"], "Invalid value soon"),
        (["--set", "retention.ms=1", "--unset", "retention.ms"], "both set and unset"),
        ([], "nothing to change was given"),
    ],
)
def test_a_refused_alter_changes_nothing(
    shell: Shell, headrace_topic: MakeTopic, admin: Kafka, words: list[str], expected: str
) -> None:
    name = headrace_topic(partitions=3)
    before = admin.describe(name)
    ran = shell("topic", "alter", name, *words)
    assert ran.code == 2
    assert expected in ran.err
    after = admin.describe(name)
    assert (len(after.partitions), after.configs) == (3, before.configs)


def test_delete_says_what_goes_asks_and_waits(
    shell: Shell, headrace_topic: MakeTopic, headrace_cluster: HasBootstrap, admin: Kafka
) -> None:
    name, other = headrace_topic(partitions=2), headrace_topic()
    fill(headrace_cluster, name, 50)
    no = shell("topic", "delete", name, typed="n\n")
    assert (no.code, "nothing was deleted: the answer was no" in no.err) == (1, True)
    assert re.search(rf"{name}  2 partitions, up to 50 records, \d", no.err)
    nobody = shell("topic", "delete", name)
    assert (nobody.code, "--yes deletes without asking" in nobody.err) == (2, True)
    assert len(admin.topic(name).partitions) == 2
    yes = shell("topic", "delete", name, other, typed="y\n")
    assert yes.code == 0
    assert not {name, other} & {topic.name for topic in admin.topics()}
    with pytest.raises(UsageError, match="there is no topic"):
        admin.topic(name)


def test_one_unknown_name_keeps_delete_from_all(shell: Shell, headrace_topic: MakeTopic, admin: Kafka) -> None:
    name = headrace_topic()
    assert shell("topic", "delete", name, "no-such-topic-at-all", "--yes").code == 2
    assert admin.topic(name).name == name


def test_a_deleted_topic_can_be_created_again_at_once(admin: Kafka) -> None:
    name = new_name()
    for partitions in (1, 2, 3):
        admin.create_topics([NewTopic(name, partitions, 3)])
        assert len(admin.topic(name).partitions) == partitions
        admin.delete_topics([name])


# -- clean ------------------------------------------------------------------------------------------------------


def test_clean_by_reading_counts_every_record_and_keeps_them(
    shell: Shell, headrace_topic: MakeTopic, headrace_cluster: HasBootstrap
) -> None:
    name = headrace_topic(partitions=3)
    fill(headrace_cluster, name, 1000)
    for _ in range(2):
        assert shell("topic", "clean", name, "--how", "read", "--json").json["records"] == 1000
    assert "headrace-clean" not in shell("group", "list").out


def test_clean_by_truncating_leaves_nothing_to_read(
    shell: Shell, headrace_topic: MakeTopic, headrace_cluster: HasBootstrap, admin: Kafka
) -> None:
    name = headrace_topic(partitions=3)
    fill(headrace_cluster, name, 1000)
    no = shell("topic", "clean", name, typed="n\n")
    assert (no.code, "1,000 records" in no.err) == (1, True)
    done = shell("topic", "clean", name, "--yes", "--json")
    assert (done.json["offsets"], done.json["records"]) == (1000, None)
    assert done.json["bytes"] > 0
    found = admin.describe(name)
    assert [p.begin for p in found.partitions] == [p.end for p in found.partitions]
    assert sum(p.end or 0 for p in found.partitions) == 1000
    assert shell("topic", "clean", name, "--how", "read", "--json").json["records"] == 0
    fill(headrace_cluster, name, 7)
    assert shell("topic", "clean", name, "--how", "read", "--json").json["records"] == 7


def test_reading_ends_behind_aborted_and_compacted_records(
    headrace_topic: MakeTopic, headrace_cluster: HasBootstrap, admin: Kafka
) -> None:
    name = headrace_topic(partitions=1)
    producer = connect(headrace_cluster).producer({"transactional.id": name})
    producer.init_transactions(30)
    for ends in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for number in range(5):
            producer.produce(name, str(number))
        producer.flush(30)
        ends(30)
    # Ten records and two markers: the last offset before the end is a marker, which no consumer is given.
    eventually(lambda: admin.describe(name).offsets == 12, within_s=10)
    assert admin.clean_topic(name, how="read").records == 10


def test_a_compacted_topic_is_not_truncated_and_the_reason_is_given(shell: Shell, headrace_topic: MakeTopic) -> None:
    name = headrace_topic(cleanup_policy="compact")
    ran = shell("topic", "clean", name)
    assert ran.code == 2
    assert "cleanup.policy is compact" in ran.err
    assert f"headrace topic alter {name} --set cleanup.policy=compact,delete" in ran.err
    assert "delete it?" not in ran.err
    assert shell("topic", "alter", name, "--set", "cleanup.policy=compact,delete").code == 0
    assert shell("topic", "clean", name, "--yes").code == 0


# -- size -------------------------------------------------------------------------------------------------------


def test_size_has_the_shape_of_a_series_and_adds_up(
    shell: Shell, headrace_topic: MakeTopic, headrace_cluster: HasBootstrap
) -> None:
    name = headrace_topic(partitions=2, replication=2)
    fill(headrace_cluster, name, 200)
    found = shell("topic", "size", name, "--json").json
    [point] = found["data"]
    assert set(point) == {"timestamp", "value"}
    assert abs(datetime.fromisoformat(point["timestamp"]) - datetime.now().astimezone()) < timedelta(minutes=1)
    assert point["value"] == sum(p["bytes"] for p in found["partitions"])
    replicas = [replica["bytes"] for p in found["partitions"] for replica in p["replicas"]]
    assert found["all_replicas_bytes"] == sum(replicas) == sum(broker["bytes"] for broker in found["brokers"])
    assert len(replicas) == 4


def test_size_is_what_lies_on_the_disk(headrace_topic: MakeTopic, headrace_cluster: HasBootstrap, admin: Kafka) -> None:
    if not isinstance(headrace_cluster, Cluster):
        pytest.fail("the test looks into the folders of a local cluster")
    name = headrace_topic(partitions=1, replication=3)
    fill(headrace_cluster, name, 500)
    size = admin.topic_sizes([name])[0]
    logs = headrace_cluster.home.root.glob(f"broker-{size.partitions[0].leader}/**/{name}-0/*.log")
    assert size.size_bytes == sum(log.stat().st_size for log in logs) > 0


def test_size_of_several_topics_and_of_all(shell: Shell, headrace_topic: MakeTopic) -> None:
    names = [headrace_topic(), headrace_topic(partitions=2)]
    assert [found["topic"] for found in shell("topic", "size", *names, "--json").json["topics"]] == names
    assert set(names) <= {found["topic"] for found in shell("topic", "size", "--json").json["topics"]}
    assert re.search(rf"^{names[1]} +2 +0 +0", shell("topic", "size").out, re.MULTILINE)


# -- which-partition --------------------------------------------------------------------------------------------

KEYS = ["", "1", "2", "3404", "a", "ab", "abc", "abcd", "abcde", "Zürich", "鍵", "x" * 1000, *map(str, range(100, 160))]


def consumed_partitions(where: HasBootstrap, topic: str, count: int) -> dict[bytes | None, int]:
    consumer = connect(where).consumer({"group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    records = consumer.consume(count, timeout=30)
    consumer.close()
    assert [record.error() for record in records] == [None] * count
    return {record.key(): record.partition() for record in records}


def test_which_partition_is_where_librdkafka_puts_the_record(
    shell: Shell, headrace_topic: MakeTopic, headrace_cluster: HasBootstrap
) -> None:
    name = headrace_topic(partitions=7)
    # A bare client, not ours: the promise is about every client with this partitioner.
    producer = Connection(headrace_cluster.bootstrap).producer({"partitioner": "murmur2_random"})
    landed: dict[str, int] = {}

    def delivered(error: Any, record: Any) -> None:
        assert error is None
        landed[record.key().decode()] = record.partition()

    for key in KEYS:
        producer.produce(name, b"value", key=key.encode(), on_delivery=delivered)
    producer.flush(30)
    told = shell("topic", "which-partition", name, *KEYS, "--json")
    assert {row["key"]: row["partition"] for row in told.json} == landed


def test_which_partition_is_where_java_puts_the_record(
    headrace_topic: MakeTopic, headrace_cluster: HasBootstrap
) -> None:
    name = headrace_topic(partitions=5)
    keys = [key for key in KEYS if key]
    java, jars = find_java(), JarCache(default_cache())
    classpath = [*jars.classpath("kafka", java), *jars.classpath("tools", java)]
    subprocess.run(
        [
            java.executable, "-Dfile.encoding=UTF-8", "-Dstdin.encoding=UTF-8", "-cp", ":".join(map(str, classpath)),
            "org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", headrace_cluster.bootstrap,
            "--topic", name, "--property", "parse.key=true",
        ],
        input="".join(f"{key}\tvalue\n" for key in keys).encode(), check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    landed = consumed_partitions(headrace_cluster, name, len(keys))
    assert landed == {key.encode(): partition_of(key.encode(), 5) for key in keys}


# -- the console script, and brokers that are gone --------------------------------------------------------------


def test_the_console_script_keeps_data_and_words_apart(shell: Shell, headrace_topic: MakeTopic) -> None:
    name = headrace_topic(partitions=2)
    good = shell.outside("topic", "describe", name, "--json")
    assert (good.json["topic"], good.err) == (name, "")
    bad = shell.outside("topic", "describe", "nope")
    assert (bad.code, bad.out) == (2, "")


def test_list_loads_only_one_of_the_clients(headrace_cluster: HasBootstrap) -> None:
    code = (
        "import sys\nfrom headrace.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    print('kafka' in sys.modules, 'confluent_kafka' in sys.modules)"
    )
    for words, loaded in ((["--help"], "False False"), (["topic", "list"], "False True")):
        argv = [sys.executable, "-c", code, "--bootstrap", headrace_cluster.bootstrap, *words]
        ran = subprocess.run(argv, capture_output=True, text=True, check=True)
        assert ran.stdout.splitlines()[-1] == loaded


@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_a_broker_that_is_gone_holds_up_nothing(
    headrace_faults: Cluster, shell: Shell, headrace_topic: MakeTopic, fault: str
) -> None:
    name = headrace_topic(partitions=3, replication=3)
    fill(headrace_faults, name, 300)
    getattr(headrace_faults, fault)(2)
    try:
        began = datetime.now()
        found = shell.outside("topic", "describe", name, "--json")
        assert datetime.now() - began < timedelta(seconds=20)
    finally:
        if fault == "pause":
            headrace_faults.resume(2)
    assert found.code == 0
    assert 2 in found.json["silent_brokers"]  # a busy machine may keep another one from answering in time
    assert "broker 2 does not answer" in found.err
    for p in found.json["partitions"]:
        assert {entry["broker"]: entry["bytes"] for entry in p["replica_bytes"]}[2] is None
        assert p["bytes"] > 0
        assert p["leader"] != 2 or p["end"] is None


def test_a_broker_that_has_not_heard_of_a_topic_yet_does_not_deny_it(
    headrace_cluster: HasBootstrap, headrace_topic: MakeTopic, admin: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which broker is behind, and for how long, nobody can arrange: the first three answers are like those of one."""
    name, answer, denials = headrace_topic(), Kafka._found, iter("123")
    monkeypatch.setattr(Kafka, "_found", lambda self, name: None if next(denials, None) else answer(self, name))
    assert admin.topic(name).name == name
    assert next(denials, None) is None
    denials = iter("123")
    with pytest.raises(UsageError, match="there is no topic"):
        admin.topic(new_name())


def test_a_partition_without_leader_is_shown_and_not_cleaned(
    headrace_faults: Cluster, shell: Shell, admin: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = new_name()
    admin.create_topics([NewTopic(name, assignment=[[1], [3]])])
    fill(headrace_faults, name, 20)
    headrace_faults.stop(3)
    ran = shell.outside("topic", "describe", name)
    assert ran.code == 0
    assert re.search(r"^ +1 +none +3 +- +3 +- +- +- +-$", ran.out, re.MULTILINE), ran.out
    assert {row["topic"]: row["offline"] for row in shell.outside("topic", "list", "--json").json}[name] == 1
    with pytest.raises(Failed, match="partition 1 of topic-"):
        admin.clean_topic(name)
    assert admin.describe(name).partitions[0].offsets is not None

    place = (name, 1)
    monkeypatch.setattr(bounds, "_SETTLED_WITHIN_S", 0.5)
    with pytest.raises(Failed, match=f"{name}/1 has no leader") as failed:
        bounds.look_up(connect(headrace_faults), [place], bounds.Start("end"))
    assert failed.value.why == "broker 3 is down"
    # An election, or a restart, is waited for.
    monkeypatch.setattr(bounds, "_SETTLED_WITHIN_S", 120)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(bounds.look_up, connect(headrace_faults), [place], bounds.Start("end"))
        headrace_faults.start(3)
        assert found.result(180)[place] > 0


def test_preferred_leaders_are_elected_where_they_are_in_sync(
    headrace_faults: Cluster, shell: Shell, admin: Kafka
) -> None:
    name, other = new_name(), new_name()
    admin.create_topics([NewTopic(name, assignment=[[3, 1], [1, 2]]), NewTopic(other, assignment=[[3, 2]])])
    headrace_faults.stop(3)
    eventually(lambda: admin.topic(name).partitions[0].leader == 1, 30)
    refused = shell.outside("topic", "elect", name, "--json").json
    assert (refused["moved"], [r["partition"] for r in refused["refused"]]) == ([], [0])
    assert "preferred leader" in refused["refused"][0]["why"].lower()
    headrace_faults.start(3)
    eventually(lambda: all(set(admin.topic(t).partitions[0].isr) > {3} for t in (name, other)), 60)
    assert shell.outside("topic", "elect", name, "--json").json == {
        "moved": [{"topic": name, "partition": 0}],
        "refused": [],
    }
    assert [admin.topic(t).partitions[0].leader for t in (name, other)] == [3, 2]
    assert "0 partitions got the preferred leader" in shell.outside("topic", "elect", name).err
    missing = shell.outside("topic", "elect", name + "x")
    assert missing.code != 0
    assert name in missing.err
    assert (other, 0) in admin.elect_preferred().moved
    assert admin.topic(other).partitions[0].leader == 3


# -- connections ------------------------------------------------------------------------------------------------


def test_a_kafka_that_is_closed_leaves_no_connection(headrace_cluster: HasBootstrap, headrace_topic: MakeTopic) -> None:
    """Of neither client: librdkafka's describes the topic, kafka-python's asks for its bytes and for the groups."""
    topic = headrace_topic(partitions=3)
    with Kafka(headrace_cluster) as kafka:
        ports = {int(address.rpartition(":")[2]) for address in kafka.live_brokers().values()}

    def connections() -> set[int]:
        return {c.laddr.port for c in psutil.Process().net_connections("tcp") if c.raddr and c.raddr.port in ports}

    gc.collect()
    before = connections()
    with Kafka(headrace_cluster) as kafka:
        assert kafka.describe(topic).size_bytes == 0
        assert kafka.quorum().voters
        kafka.groups.list()
        assert len(connections() - before) >= 2
    eventually(lambda: not connections() - before, 10)


def test_the_settings_of_a_topic_are_known_before_every_broker_has_heard_of_it(headrace_cluster: Cluster) -> None:
    """Each client asks another broker, and the topic is so new that most of them do not know it."""
    names = [f"new-{uuid.uuid4().hex[:8]}" for _ in range(12)]
    try:
        for name in names:
            with Kafka(headrace_cluster) as one, Kafka(headrace_cluster) as other:
                other.brokers()
                one.create_topics([NewTopic(name, configs={"retention.ms": "3600000"})], wait=False)
                assert other.topic_configs(name)["retention.ms"].value == "3600000"
        with Kafka(headrace_cluster) as admin, pytest.raises(Failed, match="UNKNOWN_TOPIC_OR_PART"):
            admin.topic_configs("no-such-topic")
    finally:
        with Kafka(headrace_cluster) as admin:
            admin.delete_topics([topic.name for topic in admin.topics() if topic.name in names])
