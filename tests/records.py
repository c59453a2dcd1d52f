"""Records in and out with confluent-kafka alone: the tests' own eyes, independent of headrace's transport."""

from __future__ import annotations

import gzip
import struct
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from kafka.record.util import calc_crc32c as crc32c

from headrace.cluster.unpack import Codec
from headrace.kafka.batches import CODECS
from headrace.runtime.waiting import eventually


@dataclass(frozen=True)
class Record:
    partition: int
    offset: int
    key: bytes | None
    value: bytes


def write(bootstrap: str, topic: str, values: Iterable[bytes]) -> list[bytes]:
    """The values that were acknowledged by all in-sync replicas."""
    acknowledged: list[bytes] = []

    def delivered(error: object, record: Any) -> None:
        if error is None:
            acknowledged.append(record.value())

    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": 30_000})
    for value in values:
        producer.produce(topic, value, on_delivery=delivered)
    producer.flush(40)
    return acknowledged


def read(bootstrap: str, topic: str) -> list[Record]:
    """Every record of the topic, in the order of each partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": f"test-{uuid.uuid4().hex}"})
    try:
        partitions = consumer.list_topics(topic, timeout=60).topics[topic].partitions
        ends: dict[int, int] = {}

        def know_the_ends() -> bool:
            for p in partitions.keys() - ends.keys():
                with suppress(KafkaException):  # a broker that was just resumed does not lead again yet
                    ends[p] = consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=20)[1]
            return len(ends) == len(partitions)

        eventually(know_the_ends, 60)
        consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
        found: list[Record] = []
        reached = dict.fromkeys(partitions, 0)

        def at_the_end() -> bool:
            came: list[Any] = consumer.consume(10_000, timeout=0.2)
            for record in came:
                assert record.error() is None, record.error()
                found.append(Record(record.partition(), record.offset(), record.key(), record.value()))
                reached[record.partition()] = record.offset() + 1
            return all(reached[p] >= ends[p] for p in partitions)

        eventually(at_the_end, 60)
        return sorted(found, key=lambda record: (record.partition, record.offset))
    finally:
        consumer.close()


def leaders(bootstrap: str, topic: str) -> dict[int, int]:
    """The leader of each partition; -1 where there is none."""
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=60).topics[topic]
    return {number: partition.leader for number, partition in found.partitions.items()}


def wait_settled(bootstrap: str, *topics: str, within_s: float = 60) -> None:
    """Every transaction in the topics has ended, so a read_committed reader sees whatever it ever will.

    A commit is answered when it is decided; the partitions hear of it a moment later.
    """
    client = AdminClient({"bootstrap.servers": bootstrap})
    known = client.list_topics(timeout=60).topics
    latest = {TopicPartition(name, p): OffsetSpec.latest() for name in topics for p in known[name].partitions}

    def ends(isolation: IsolationLevel) -> dict[tuple[str, int], int]:
        found = client.list_offsets(latest, isolation_level=isolation)
        return {(place.topic, place.partition): future.result(20).offset for place, future in found.items()}

    eventually(lambda: ends(IsolationLevel.READ_COMMITTED) == ends(IsolationLevel.READ_UNCOMMITTED), within_s)


def batch_of(payload: bytes, codec: Codec, *, base: int = 0, records: int = 1, checksum: int | None = None) -> bytes:
    """A record batch as it lies in a log and travels to a broker, whatever is in it; the checksum is right or given."""
    checked = struct.pack(">hiqqqhii", CODECS.index(codec), records - 1, 0, 0, -1, -1, -1, records) + payload
    return (
        struct.pack(">qiibI", base, 9 + len(checked), 0, 2, crc32c(checked) if checksum is None else checksum) + checked
    )


def oversized_batch() -> bytes:
    """A batch with one record: small as it is stored, 70 MB without compression."""
    # Length, attributes, times and offsets of a record without a key, whose lengths are written as varints.
    record = bytes.fromhex("92f6e0420000000180f6e042") + bytes(70_000_000) + b"\0"
    return batch_of(gzip.compress(record, 6), "gzip")
