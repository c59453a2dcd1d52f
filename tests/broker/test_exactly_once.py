"""Batches with a mark: written once, whoever dies, hangs or comes back when.

A reader that sees only what is committed is asked at the end; it must find each record of each batch once.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import uuid
from collections.abc import Callable

import pytest

from headrace.errors import Failed, Fenced, Unreachable
from headrace.kafka.client import Connection, HasBootstrap
from headrace.kafka.read.consumer import consume
from headrace.kafka.write.exactly_once import MARKS, Mark, MarkedWriter, prepare, settle
from headrace.kafka.write.shaping import partition_of
from headrace.kafka.write.writer import Records
from headrace.runtime.waiting import eventually
from tests.records import wait_settled

MakeTopic = Callable[..., str]

#: Where a process is killed, and whether its batch is committed then.
_POINTS = {"opened": False, "begun": False, "sent": False, "flushed": False, "marked": False, "committed": True}


@pytest.fixture
def connection(headrace_cluster: HasBootstrap) -> Connection:
    made = Connection(headrace_cluster.bootstrap, {"transaction.timeout.ms": "60000"})
    prepare(made)
    return made


@pytest.fixture
def name() -> str:
    return f"writer-{uuid.uuid4().hex[:12]}"


def records(topic: str, *values: bytes, key: bytes | None = b"k") -> Records:
    return Records([topic] * len(values), [key] * len(values), values, None, lambda at: f"made of source/0 offset {at}")


def write(writer: MarkedWriter, topic: str, batch: int, *values: bytes) -> None:
    writer.begin()
    writer.send(records(topic, *values))
    writer.commit_batch(Mark(batch, len(values)))


def values_in(connection: Connection, topic: str) -> list[bytes | None]:
    """What is committed, once every transaction in the topic has ended: a commit is answered before it is visible."""
    wait_settled(connection.bootstrap, topic)
    return sorted(record.value for record in consume(connection, topic))  # type: ignore[type-var]


def test_a_batch_is_remembered(connection: Connection, headrace_topic: MakeTopic, name: str) -> None:
    topic = headrace_topic(partitions=2)
    writer = MarkedWriter(connection, name)
    assert writer.mark is None
    write(writer, topic, 0, b"a", b"b")
    write(writer, topic, 1, b"c")
    assert writer.has(1)
    assert not writer.has(2)
    again = MarkedWriter(connection, name)
    assert again.mark == Mark(1, 1)
    assert MarkedWriter(connection, f"{name}-other").mark is None
    assert values_in(connection, topic) == [b"a", b"b", b"c"]


def test_the_topic_of_marks_is_compacted_and_made_once(connection: Connection) -> None:
    from headrace.kafka import Kafka

    prepare(connection)
    configs = Kafka(connection).topic_configs(MARKS)
    assert configs["cleanup.policy"].value == "compact"


def test_a_writer_that_hung_cannot_commit_any_more(
    connection: Connection, headrace_topic: MakeTopic, name: str
) -> None:
    topic = headrace_topic()
    zombie = MarkedWriter(connection, name)
    zombie.begin()
    zombie.send(records(topic, b"from the zombie"))
    zombie.flush()
    newcomer = MarkedWriter(connection, name)
    assert not newcomer.has(0)
    write(newcomer, topic, 0, b"from the newcomer")
    with pytest.raises(Fenced, match="was replaced by another one"):
        zombie.commit_batch(Mark(0, 1))
    zombie.close()
    assert values_in(connection, topic) == [b"from the newcomer"]


def test_a_writer_that_was_replaced_while_idle_is_told_with_its_first_record(
    connection: Connection, headrace_topic: MakeTopic, name: str
) -> None:
    topic = headrace_topic()
    old = MarkedWriter(connection, name)
    write(old, topic, 0, b"0")
    write(MarkedWriter(connection, name), topic, 1, b"1")
    old.begin()
    with pytest.raises(Fenced):  # noqa: PT012 - which of the two it is depends on how fast the broker answers
        old.send(records(topic, b"1 again"))
        old.flush()
    assert values_in(connection, topic) == [b"0", b"1"]


_DYING = """
    import os, signal, sys
    from headrace.kafka.client import Connection
    from headrace.kafka.write.exactly_once import Mark, MarkedWriter
    from headrace.kafka.write.writer import Records

    bootstrap, name, topic, point = sys.argv[1:]

    def at(here):
        if here == point:
            os.kill(os.getpid(), signal.SIGKILL)

    class Dying(MarkedWriter):
        def _call(self, call, failure=None):
            deciding = getattr(call, "__name__", "") == "commit_transaction"
            if deciding:
                at("marked")
            super()._call(call, failure)
            if deciding:
                at("committed")

    writer = Dying(Connection(bootstrap, {"transaction.timeout.ms": "60000"}), name)
    at("opened")
    writer.begin()
    at("begun")
    writer.send(Records([topic] * 3, [b"k"] * 3, [b"1", b"2", b"3"], None, str))
    at("sent")
    writer.flush()
    at("flushed")
    writer.commit_batch(Mark(7, 3))
"""


@pytest.mark.parametrize("point", _POINTS)
def test_a_killed_writer_has_written_all_or_nothing(
    connection: Connection, headrace_topic: MakeTopic, name: str, point: str
) -> None:
    topic = headrace_topic(partitions=2)
    script = [sys.executable, "-c", textwrap.dedent(_DYING), connection.bootstrap, name, topic, point]
    assert subprocess.run(script, check=False).returncode == -9
    writer = MarkedWriter(connection, name)
    assert writer.has(7) == _POINTS[point]
    if not writer.has(7):
        write(writer, topic, 7, b"1", b"2", b"3")
    assert values_in(connection, topic) == [b"1", b"2", b"3"]
    assert MarkedWriter(connection, name).mark == Mark(7, 3)


def test_a_mark_behind_an_open_transaction_is_waited_for(connection: Connection, headrace_topic: MakeTopic) -> None:
    """The mark of another writer lies open in the same partition: what is behind it cannot be read yet."""
    topic = headrace_topic()
    theirs, ours = _two_in_one_partition()
    other = MarkedWriter(connection, theirs)
    other.begin()
    other.send(records(MARKS, b"{}", key=theirs.encode()))
    other.flush()
    found: list[Mark | None] = []

    def open_and_write() -> None:
        writer = MarkedWriter(connection, ours)
        write(writer, topic, 5, b"x")
        found.append(writer.mark)

    opening = threading.Thread(target=open_and_write)
    opening.start()
    assert not _happens(lambda: bool(found), 3), "the marks were not read to their end"
    settle(connection, [theirs])
    opening.join(60)
    assert found == [Mark(5, 1)]
    assert MarkedWriter(connection, ours).mark == Mark(5, 1)


def _two_in_one_partition() -> tuple[str, str]:
    first = f"writer-{uuid.uuid4().hex}"
    place = partition_of(first.encode(), 12)
    while partition_of((second := f"writer-{uuid.uuid4().hex}").encode(), 12) != place:
        continue
    return first, second


def _happens(condition: Callable[[], bool], within_s: float) -> bool:
    try:
        return eventually(condition, within_s)
    except AssertionError:
        return False


def test_a_record_that_is_too_large_is_named(connection: Connection, headrace_topic: MakeTopic, name: str) -> None:
    topic = headrace_topic(max_message_bytes="1000")
    writer = MarkedWriter(connection, name)
    writer.begin()
    with pytest.raises(Failed) as refused:  # noqa: PT012 - the broker may answer to either
        writer.send(records(topic, b"small", b"x" * 5000))
        writer.flush()
    writer.close()
    assert "a record of 5,000 bytes" in refused.value.problem
    assert "source/0 offset 1" in refused.value.problem
    assert "too large" in (refused.value.why or "")
    assert values_in(connection, topic) == []


def test_a_topic_that_does_not_exist_is_told(connection: Connection, name: str) -> None:
    quick = Connection(connection.bootstrap, {**connection.properties, "topic.metadata.propagation.max.ms": "500"})
    writer = MarkedWriter(quick, name)
    writer.begin()
    with pytest.raises(Failed, match="no-such-topic"):  # noqa: PT012
        writer.send(records("no-such-topic", b"x"))
        writer.flush()
    writer.close()


def test_nobody_answers() -> None:
    silent = Connection("127.0.0.1:1", {"transaction.timeout.ms": "2000"})
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"):
        MarkedWriter(silent, "nobody")
