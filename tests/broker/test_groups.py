"""Groups of every type, alive and gone, as a person at the shell and a program in Python see them."""

from __future__ import annotations

import re
import subprocess
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from headrace.cluster import Cluster
from headrace.errors import Failed, UsageError
from headrace.kafka import Kafka, ResetTo
from headrace.kafka.client import HasBootstrap, connect
from headrace.kafka.groups import Groups
from headrace.runtime.jars import JarCache, default_cache
from headrace.runtime.java import find_java
from headrace.runtime.waiting import eventually
from tests.broker.shell import Shell

MakeTopic = Callable[..., str]
PROTOCOLS = ("classic", "consumer")
# One second apart and far in the past, so that a time names a record exactly.
FIRST_MS = 1_600_000_000_000


@pytest.fixture
def shell(headrace_cluster: HasBootstrap) -> Shell:
    return Shell(headrace_cluster.bootstrap)


@pytest.fixture
def groups(headrace_cluster: HasBootstrap) -> Iterator[Groups]:
    with Kafka(headrace_cluster) as kafka:
        yield kafka.groups


@pytest.fixture
def topic(headrace_cluster: HasBootstrap, headrace_topic: MakeTopic) -> str:
    """Two partitions with a hundred records each."""
    name = headrace_topic(partitions=2, retention_ms="-1")
    producer = connect(headrace_cluster).producer()
    for number in range(100):
        for partition in range(2):
            producer.produce(name, str(number), partition=partition, timestamp=FIRST_MS + number * 1000)
    assert producer.flush(30) == 0
    return name


def new_name() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


@contextmanager
def member(where: HasBootstrap, group: str, topic: str, protocol: str = "classic", **more: Any) -> Iterator[Any]:
    """A member that has got its partitions; it commits only what it is told to."""
    consumer = connect(where).consumer(
        {
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **more,
        }
    )
    consumer.subscribe([topic])
    try:
        eventually(lambda: consumer.poll(0.2) and consumer.assignment(), within_s=30)
        yield consumer
    finally:
        consumer.close()


def commit(where: HasBootstrap, group: str, topic: str, offsets: list[int], protocol: str = "classic") -> None:
    """The group has come, committed these offsets and gone."""
    from confluent_kafka import TopicPartition

    with member(where, group, topic, protocol) as consumer:
        consumer.commit(
            offsets=[TopicPartition(topic, at, offset) for at, offset in enumerate(offsets)], asynchronous=False
        )


@pytest.fixture(params=PROTOCOLS)
def group(request: pytest.FixtureRequest, headrace_cluster: HasBootstrap, topic: str) -> str:
    """A group without members that stands at 40 and 70."""
    name = new_name()
    commit(headrace_cluster, name, topic, [40, 70], request.param)
    return name


def committed(groups: Groups, group: str) -> list[int | None]:
    return [offset.committed for offset in groups.describe(group).offsets or ()]


# -- list and describe ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_living_group_shows_its_members_and_their_partitions(
    shell: Shell, headrace_cluster: HasBootstrap, topic: str, protocol: str
) -> None:
    name = new_name()
    with member(headrace_cluster, name, topic, protocol, **{"client.id": "reader-one"}) as consumer:
        consumer.commit(asynchronous=False)
        found = eventually(
            lambda: (d := shell("group", "describe", name, "--json").json)["state"] == "Stable" and d, within_s=20
        )
        row = next(row for row in shell("group", "list", "--json").json if row["group"] == name)
        text = shell("group", "describe", name).out
    assert (found["type"], found["protocol"]) == (protocol, "consumer")
    assert found["assignor"] == {"classic": "range", "consumer": "uniform"}[protocol]
    assert re.fullmatch(r"broker \d \(127\.0\.0\.1:\d+\)", found["coordinator"])
    [only] = found["members"]
    assert (only["client_id"], only["host"]) == ("reader-one", "127.0.0.1")
    assert only["assignment"] == [{"topic": topic, "partition": at} for at in range(2)]
    assert [offset["member_id"] for offset in found["offsets"]] == [only["member_id"]] * 2
    # One record was read and committed, so one partition stands at 1 and the other nowhere.
    assert sorted(str(offset["committed"]) for offset in found["offsets"]) == ["1", "None"]
    assert found["lag"] == 99
    assert (row["type"], row["state"], row["members"]) == (protocol, "Stable", 1)
    assert re.search(rf"^\S+ +reader-one +127\.0\.0\.1 +{topic}/0,1$", text, re.MULTILINE)


def test_a_group_without_members_shows_its_lag(shell: Shell, group: str, topic: str) -> None:
    found = shell("group", "describe", group, "--json").json
    assert (found["state"], found["members"], found["lag"]) == ("Empty", [], 60 + 30)
    assert [(o["topic"], o["partition"], o["committed"], o["end"], o["lag"]) for o in found["offsets"]] == [
        (topic, 0, 40, 100, 60),
        (topic, 1, 70, 100, 30),
    ]
    text = shell("group", "describe", group).out
    assert re.search(r"^lag +90$", text, re.MULTILINE)
    assert re.search(rf"^{topic} +1 +70 +0 +100 +30 +-$", text, re.MULTILINE)


def test_two_members_share_the_partitions(shell: Shell, headrace_cluster: HasBootstrap, topic: str) -> None:
    name, where = new_name(), connect(headrace_cluster)
    ones = [
        where.consumer({"group.id": name, "group.protocol": "consumer", "client.id": client}) for client in ("a", "b")
    ]
    for one in ones:
        one.subscribe([topic])

    def shared() -> bool:
        for one in ones:
            one.poll(0.1)
        return all(len(one.assignment()) == 1 for one in ones)

    eventually(shared, within_s=40)
    found = shell("group", "describe", name, "--json").json
    for one in ones:
        one.close()
    assert [m["client_id"] for m in found["members"]] == ["a", "b"]
    assert sorted(place["partition"] for m in found["members"] for place in m["assignment"]) == [0, 1]


def test_lag_does_not_wait_for_records_that_are_gone(shell: Shell, group: str, topic: str) -> None:
    assert shell("topic", "clean", topic, "--yes").code == 0
    found = shell("group", "describe", group, "--json").json
    assert [(o["committed"], o["begin"], o["end"], o["lag"]) for o in found["offsets"]] == [
        (40, 100, 100, 0),
        (70, 100, 100, 0),
    ]


def test_a_share_group_is_listed_and_described_as_far_as_it_can_be(
    shell: Shell, headrace_cluster: HasBootstrap, topic: str
) -> None:
    name = new_name()
    java, jars = find_java(), JarCache(default_cache())
    classpath = [*jars.classpath("kafka", java), *jars.classpath("tools", java)]
    subprocess.run(
        [
            java.executable, "-cp", ":".join(map(str, classpath)),
            "org.apache.kafka.tools.consumer.ConsoleShareConsumer", "--bootstrap-server", headrace_cluster.bootstrap,
            "--topic", topic, "--group", name, "--timeout-ms", "5000",
        ],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    row = next(row for row in shell("group", "list", "--json").json if row["group"] == name)
    assert (row["type"], row["protocol"], row["members"]) == ("share", "share", None)
    described = shell("group", "describe", name)
    assert (described.code, "no Python client supports the request yet" in described.err) == (0, True)
    assert shell("group", "reset", name, "--to", "end").code == 1
    assert shell("group", "delete", name, "--yes").code == 0


def test_an_unknown_group_comes_with_the_nearest_name(shell: Shell, group: str) -> None:
    for words in (["describe"], ["reset", "--to", "end"], ["delete", "--yes"]):
        ran = shell("group", words[0], f"{group}x", *words[1:])
        assert ran.code == 2
        assert f"there is no group '{group}x'" in ran.err
        assert f"the nearest name is '{group}'" in ran.err


def test_a_partition_that_was_never_read_is_shown_and_reset_too(
    shell: Shell, groups: Groups, headrace_cluster: HasBootstrap, topic: str
) -> None:
    name = new_name()
    commit(headrace_cluster, name, topic, [40])
    found = shell("group", "describe", name, "--json").json
    assert [(o["committed"], o["end"], o["lag"]) for o in found["offsets"]] == [(40, 100, 60), (None, 100, None)]
    assert [p.target for p in groups.plan_reset(name, ResetTo("shift", -1))] == [39]
    assert [p.target for p in groups.plan_reset(name, ResetTo("end"))] == [100, 100]


# -- reset ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "targets", "words"),
    [
        ("beginning", [0, 0], []),
        ("end", [100, 100], []),
        ("25", [25, 25], []),
        ("500", [100, 100], ["500 is after the last record: the end"]),
        ("shift:-50", [0, 20], ["-10 is before the first record: the beginning"]),
        ("shift:+5", [45, 75], []),
        (datetime.fromtimestamp(FIRST_MS / 1000 + 10, UTC).isoformat(), [10, 10], []),
        (datetime.fromtimestamp(FIRST_MS / 1000 + 10.5, UTC).isoformat(), [11, 11], []),
        ("-1h", [100, 100], ["no record since", "the end"]),
    ],
)
def test_reset_shows_first_and_then_does(
    shell: Shell, groups: Groups, headrace_cluster: HasBootstrap, topic: str, to: str, targets: list[int],
    words: list[str],
) -> None:  # fmt: skip
    name = new_name()
    commit(headrace_cluster, name, topic, [40, 70])
    preview = shell("group", "reset", name, "--to", to, "--json")
    assert preview.code == 0
    assert preview.json["executed"] is False
    assert [planned["target"] for planned in preview.json["offsets"]] == targets
    assert "nothing was changed: --execute applies it" in preview.err
    for text in words:
        assert text in preview.err
    assert committed(groups, name) == [40, 70]
    assert shell("group", "reset", name, "--to", to, "--execute").code == 0
    assert committed(groups, name) == targets


def test_after_a_reset_the_group_reads_from_there(
    shell: Shell, headrace_cluster: HasBootstrap, group: str, topic: str
) -> None:
    assert shell("group", "reset", group, "--to", "97", "--yes").code == 0
    consumer = connect(headrace_cluster).consumer({"group.id": group, "auto.offset.reset": "error"})
    consumer.subscribe([topic])
    records = consumer.consume(6, timeout=30)
    consumer.close()
    assert sorted((r.partition(), r.offset()) for r in records) == [(p, o) for p in (0, 1) for o in (97, 98, 99)]


def test_reset_can_be_limited_to_a_partition_or_reach_a_new_topic(
    shell: Shell, groups: Groups, group: str, topic: str, headrace_topic: MakeTopic
) -> None:
    assert shell("group", "reset", group, "--to", "end", "--topic", f"{topic}:1", "--execute").code == 0
    assert committed(groups, group) == [40, 100]
    other = headrace_topic(partitions=3)
    assert shell("group", "reset", group, "--to", "beginning", "--topic", other, "--execute").code == 0
    assert {o.partition for o in groups.describe(group).offsets or () if o.topic == other} == {0, 1, 2}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_reset_and_delete_are_refused_while_somebody_reads(
    shell: Shell, groups: Groups, headrace_cluster: HasBootstrap, topic: str, protocol: str
) -> None:
    name = new_name()
    commit(headrace_cluster, name, topic, [40, 70], protocol)
    with member(headrace_cluster, name, topic, protocol, **{"client.id": "busy-reader"}):
        for words in (["reset", name, "--to", "end", "--execute"], ["delete", name, "--yes"]):
            ran = shell("group", *words)
            assert ran.code == 1
            assert f"the group {name} has 1 member: busy-reader at 127.0.0.1" in ran.err
        assert committed(groups, name) == [40, 70]
    eventually(lambda: shell("group", "reset", name, "--to", "end", "--execute").code == 0, within_s=20)
    assert committed(groups, name) == [100, 100]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--to", "yesterday"], "invalid value for --to: 'yesterday'"),
        (["--to", "shift:many"], "invalid shift: 'shift:many'"),
        (["--to", "committed"], "the current position of the group"),
        (["--to", "end", "--topic", "no-such-topic-anywhere"], "there is no topic"),
        (["--to", "end", "--topic", "TOPIC:9"], "has no partition 9"),
        (["--to", "end", "--topic", "TOPIC:x"], "neither TOPIC nor TOPIC:PARTITION"),
        ([], "Missing option '--to'"),
    ],
)
def test_a_reset_that_cannot_be_meant_is_refused(
    shell: Shell, groups: Groups, headrace_cluster: HasBootstrap, topic: str, words: list[str], expected: str
) -> None:
    name = new_name()
    commit(headrace_cluster, name, topic, [1, 2])
    ran = shell("group", "reset", name, *(word.replace("TOPIC", topic) for word in words), "--execute")
    assert (ran.code, expected in ran.err) == (2, True), ran.err
    assert committed(groups, name) == [1, 2]


def test_a_group_that_committed_nothing_needs_a_topic(
    groups: Groups, headrace_cluster: HasBootstrap, topic: str
) -> None:
    name = new_name()
    with member(headrace_cluster, name, topic, "consumer"):
        pass
    eventually(lambda: groups.describe(name).state == "Empty", within_s=20)
    with pytest.raises(UsageError, match="committed no offset"):
        groups.plan_reset(name, ResetTo("end"))
    with pytest.raises(UsageError, match="nothing to shift from"):
        groups.plan_reset(name, ResetTo("shift", -1), [(topic, None)])
    groups.reset(name, groups.plan_reset(name, ResetTo("end"), [(topic, None)]))
    assert committed(groups, name) == [100, 100]


# -- delete, and a broker that is gone --------------------------------------------------------------------------


def test_delete_asks_and_the_group_is_gone(shell: Shell, group: str) -> None:
    no = shell("group", "delete", group, typed="n\n")
    assert (no.code, f"{group}  " in no.err, "committed offsets 2, lag 90" in no.err) == (1, True, True)
    assert group in shell("group", "list").out
    assert shell("group", "delete", group, typed="y\n").code == 0
    assert group not in shell("group", "list").out


@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_groups_are_seen_while_a_broker_is_gone(headrace_faults: Cluster, shell: Shell, topic: str, fault: str) -> None:
    name = new_name()
    commit(headrace_faults, name, topic, [40, 70], "consumer")
    getattr(headrace_faults, fault)(1)

    def seen() -> Any:
        """The group moves to another coordinator; until then the answer is an honest failure."""
        ran = shell.outside("group", "describe", name, "--json")
        return ran.json if ran.code == 0 and ran.json["lag"] == 90 else None

    try:
        found = eventually(seen, within_s=60)
        assert name in shell.outside("group", "list").out
    finally:
        if fault == "pause":
            headrace_faults.resume(1)
    assert [o["committed"] for o in found["offsets"]] == [40, 70]


def test_a_refusal_is_an_error_of_headrace(groups: Groups, headrace_cluster: HasBootstrap, topic: str) -> None:
    name = new_name()
    with member(headrace_cluster, name, topic), pytest.raises(Failed, match="has 1 member"):
        groups.delete([name])


def test_a_group_that_two_brokers_name_is_listed_once(
    groups: Groups, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its coordinator moves, the old one may still name the group."""
    ask = groups._kafka.ask_each

    def by_all(brokers: Iterable[int], question: Callable[[Any, int], Any]) -> dict[int, Any]:
        answers = ask(brokers, question)
        everything = [listed for of_broker in answers.values() for listed in of_broker]
        return dict.fromkeys(answers, everything)

    monkeypatch.setattr(groups._kafka, "ask_each", by_all)
    listed = groups.list()
    assert [found.group for found in listed] == sorted({found.group for found in listed})
    assert group in {found.group for found in listed}
