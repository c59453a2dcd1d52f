"""Records between offsets, read by a consumer that joins no group and commits nothing; and batches, raw."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headrace.errors import Failed
from headrace.kafka.bounds import Isolation
from headrace.kafka.client import Connection
from headrace.kafka.model import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

    from headrace.kafka.client import Consumer, Message
    from headrace.kafka.survey import Survey

_AT_ONCE = 10_000
_POLL_S = 0.1
_FETCH_BYTES = 1_000_000


def make_reader(connection: Connection, settings: Mapping[str, object]) -> Consumer:
    """A confluent-kafka Consumer without a group, to be assigned and closed by the caller."""
    return connection.consumer(
        {
            "group.id": "headrace-reader",  # librdkafka wants a name; the group is never joined
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            **settings,
        }
    )


@contextmanager
def reader_at(
    connection: Connection, positions: Mapping[TopicPartition, int], settings: Mapping[str, object]
) -> Iterator[Consumer]:
    """Such a Consumer, assigned to these positions; closed at the end of the block."""
    consumer = make_reader(connection, settings)
    try:
        assign(consumer, positions)
        yield consumer
    finally:
        consumer.close()


def assign(consumer: Consumer, positions: Mapping[TopicPartition, int]) -> None:
    from confluent_kafka import TopicPartition as At

    consumer.assign([At(*place, offset) for place, offset in positions.items()])


def is_end(error: KafkaError) -> bool:
    """True if the error of a Message only says that the end of its partition is reached."""
    from confluent_kafka import KafkaError

    return bool(error.code() == KafkaError._PARTITION_EOF)


def records_between(
    connection: Connection,
    begins: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    isolation: Isolation,
    timeout_s: float,
) -> Iterator[Message]:
    """Every record from the begins up to the ends, as confluent-kafka's Messages.

    Nothing for `timeout_s` is an error: a broker is away, or with isolation "committed" a transaction is open.
    """
    # The end is reported by a fetch that brings nothing; a broker would hold it back for half a second.
    settings = {"isolation.level": f"read_{isolation}", "fetch.wait.max.ms": 10}
    positions = {place: begin for place, begin in begins.items() if begin < ends[place]}
    if not positions:
        return
    deadline = time.monotonic() + timeout_s
    with reader_at(connection, positions, settings) as consumer:
        while positions:
            # `consume` alone would wait for the whole batch or the whole time.
            first = consumer.poll(_POLL_S)
            if first is None:
                if time.monotonic() > deadline:
                    raise _silent(positions, ends, isolation, timeout_s)
                continue
            for message in (first, *consumer.consume(_AT_ONCE, timeout=0)):
                yield from _taken(message, positions, ends)
            deadline = time.monotonic() + timeout_s


def _taken(
    message: Message, positions: dict[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> Iterator[Message]:
    """The message, if it is before the end; a partition that is read to its end leaves the positions."""
    place, error = (message.topic(), message.partition()), message.error()
    if error is not None and not is_end(error):
        if not error.retriable():
            topic = place[0] or next(iter(positions))[0]  # an error of the whole client names no topic
            raise Failed(f"{topic} could not be read", why=f"{error.str()} ({error.name()})")
        return
    if place in positions:
        if error is None and message.offset() < ends[place]:
            yield message
        positions[place] = message.offset() + (error is None)
        if positions[place] >= ends[place]:
            del positions[place]


def _silent(
    positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], isolation: Isolation, timeout_s: float
) -> Failed:
    (topic, partition), position = next(iter(positions.items()))
    end = ends[topic, partition]
    reason = "a broker is away" + (", or a transaction is open" if isolation == "committed" else "")
    return Failed(
        f"{topic}/{partition} could not be read to its end",
        why=f"it ends at {end}, and nothing came after {position} for {timeout_s:g} s: {reason}",
        hint="an abandoned transaction is ended by its timeout; try again then" if isolation == "committed" else None,
    )


def next_records(
    connection: Connection,
    positions: Mapping[TopicPartition, int],
    isolation: Isolation = "committed",
    within_s: float = 3.0,
) -> dict[TopicPartition, tuple[int, int]]:
    """Offset and timestamp (ms) of the first record at or after each position; those that have none are missing."""
    from confluent_kafka import TopicPartition as At

    if not positions:
        return {}
    # One record of each partition is wanted, so little is asked for at a time.
    little = {"fetch.message.max.bytes": 1024, "queued.min.messages": 1, "fetch.wait.max.ms": 50}
    found: dict[TopicPartition, tuple[int, int]] = {}
    waiting = set(positions)
    deadline = time.monotonic() + within_s
    with reader_at(connection, positions, {"isolation.level": f"read_{isolation}", **little}) as consumer:
        while waiting and time.monotonic() < deadline:
            for record in consumer.consume(len(waiting), timeout=0.1):
                place, error = (record.topic(), record.partition()), record.error()
                if place not in waiting or (error is not None and not is_end(error)):
                    continue
                waiting.discard(place)
                consumer.pause([At(*place)])
                if error is None:
                    found[place] = (record.offset(), record.timestamp()[1])
    return found


def fetch_batches(
    survey: Survey,
    topic: str,
    partition: int,
    leader: int,
    offset: int,
    *,
    committed: bool,
    most_bytes: int = _FETCH_BYTES,
) -> Any:
    """What the leader gives for the offset: whole batches, raw; None if it gives nothing in time."""
    from kafka.protocol.consumer import FetchRequest

    topics = FetchRequest.FetchTopic
    request = FetchRequest(
        replica_id=-1, max_wait_ms=5, min_bytes=0, max_bytes=most_bytes, isolation_level=int(committed),
        session_id=0, session_epoch=-1, rack_id="", forgotten_topics_data=[],
        topics=[topics(topic=topic, partitions=[topics.FetchPartition(
            partition=partition, current_leader_epoch=-1, fetch_offset=offset, last_fetched_epoch=-1,
            log_start_offset=-1, partition_max_bytes=most_bytes)])],
        max_version=12,  # later ones name topics by their ids
    )  # fmt: skip
    # An answer that comes later may be about another topic, or from before the end of a transaction.
    found = survey.ask_once(leader, request)
    if found is None or not found.responses:
        return None
    answer = found.responses[0].partitions[0]
    return answer if answer.error_code == 0 else None
