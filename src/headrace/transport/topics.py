"""Topics as headrace knows them: what they are made of, what they hold, how they are asked for.

The questions themselves are asked by `Admin`; nothing here opens a connection. What nobody could answer is None.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal

from headrace.errors import Failed, UsageError

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")

#: A topic and the number of one of its partitions.
TopicPartition = tuple[str, int]


@dataclass(frozen=True)
class Partition:
    """A partition as of now. `leader` is -1 while it has none."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)


@dataclass(frozen=True)
class Topic:
    """A topic and its partitions."""

    name: str
    partitions: tuple[Partition, ...]

    @property
    def internal(self) -> bool:
        return self.name.startswith("__")

    @property
    def replication(self) -> int:
        return max((len(p.replicas) for p in self.partitions), default=0)


@dataclass(frozen=True)
class ConfigValue:
    """A setting of a broker or topic: what holds, where it comes from, what it would be otherwise."""

    name: str
    value: str | None
    source: str
    default: str | None
    sensitive: bool
    read_only: bool


@dataclass(frozen=True)
class NewTopic:
    """A topic to be. `assignment` names the replicas of each partition, the preferred leader first."""

    name: str
    partitions: int | None = None
    replication: int | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    assignment: Sequence[Sequence[int]] | None = None


@dataclass(frozen=True)
class PartitionSize:
    """The bytes of a partition on each of its replicas; None where the broker did not answer."""

    partition: int
    leader: int
    replica_bytes: Mapping[int, int | None]

    @property
    def size_bytes(self) -> int | None:
        """The bytes of one copy: the leader's, or the largest known while the leader is silent."""
        of_leader = self.replica_bytes.get(self.leader)
        known = [count for count in self.replica_bytes.values() if count is not None]
        return of_leader if of_leader is not None else max(known, default=None)


@dataclass(frozen=True)
class TopicSize:
    """The bytes of a topic at a moment, by partition and broker."""

    topic: str
    at: datetime
    partitions: tuple[PartitionSize, ...]
    silent_brokers: tuple[int, ...] = ()

    @property
    def size_bytes(self) -> int | None:
        """The bytes of one copy of every partition; None if nobody knows those of some partition."""
        return _total(partition.size_bytes for partition in self.partitions)

    @property
    def broker_bytes(self) -> dict[int, int | None]:
        """The bytes on each broker; None for a broker that did not answer."""
        brokers = sorted({broker for partition in self.partitions for broker in partition.replica_bytes})
        return {
            broker: None
            if broker in self.silent_brokers
            else sum(partition.replica_bytes.get(broker) or 0 for partition in self.partitions)
            for broker in brokers
        }

    def to_json(self) -> dict[str, Any]:
        """The series `data` of one point, and where the bytes lie."""
        return {
            "data": [{"timestamp": self.at.isoformat(timespec="milliseconds"), "value": self.size_bytes}],
            "topic": self.topic,
            "all_replicas_bytes": sum(count or 0 for count in self.broker_bytes.values()),
            "brokers": [{"broker": broker, "bytes": count} for broker, count in self.broker_bytes.items()],
            "partitions": [
                {
                    "partition": p.partition,
                    "leader": p.leader,
                    "bytes": p.size_bytes,
                    "replicas": [{"broker": broker, "bytes": count} for broker, count in p.replica_bytes.items()],
                }
                for p in self.partitions
            ],
            "silent_brokers": list(self.silent_brokers),
        }


@dataclass(frozen=True)
class PartitionDescription:
    """All that is known of a partition. `elr` and the offsets are None where nobody answered."""

    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...] | None
    begin: int | None
    end: int | None
    size: PartitionSize

    @property
    def offsets(self) -> int | None:
        """Offsets from begin to end: at most so many records, fewer if compacted or written in transactions."""
        return None if self.begin is None or self.end is None else self.end - self.begin

    def to_json(self) -> dict[str, Any]:
        sizes = self.size.replica_bytes
        return {
            **{name: value for name, value in asdict(self).items() if name != "size"},
            "offsets": self.offsets,
            "bytes": self.size.size_bytes,
            "replica_bytes": [{"broker": broker, "bytes": count} for broker, count in sizes.items()],
        }


@dataclass(frozen=True)
class TopicDescription:
    """All that is known of a topic."""

    topic: str
    topic_id: str | None
    partitions: tuple[PartitionDescription, ...]
    configs: Mapping[str, ConfigValue]
    silent_brokers: tuple[int, ...] = ()

    @property
    def replication(self) -> int:
        return max((len(p.replicas) for p in self.partitions), default=0)

    @property
    def offsets(self) -> int | None:
        """See `PartitionDescription.offsets`; None if those of some partition are unknown."""
        return _total(p.offsets for p in self.partitions)

    @property
    def size_bytes(self) -> int | None:
        """The bytes of one copy of every partition; None if nobody knows those of some partition."""
        return _total(p.size.size_bytes for p in self.partitions)

    def to_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "topic_id": self.topic_id,
            "partition_count": len(self.partitions),
            "replication": self.replication,
            "offsets": self.offsets,
            "bytes": self.size_bytes,
            "configs": {name: asdict(config) for name, config in self.configs.items()},
            "partitions": [p.to_json() for p in self.partitions],
            "silent_brokers": list(self.silent_brokers),
        }


@dataclass(frozen=True)
class Cleaned:
    """What a clean took away (truncate) or read through (read): offsets and bytes that the topic held before.

    `records` were counted as they were read; what is truncated is not read.
    """

    topic: str
    how: Literal["truncate", "read"]
    offsets: int
    size_bytes: int | None
    records: int | None = None


@dataclass(frozen=True)
class Elected:
    """The partitions that got their preferred leader, and why others did not."""

    moved: tuple[TopicPartition, ...]
    refused: Mapping[TopicPartition, str]

    def as_json(self) -> dict[str, list[dict[str, str | int]]]:
        return {
            "moved": [{"topic": topic, "partition": number} for topic, number in self.moved],
            "refused": [{"topic": topic, "partition": number, "why": w} for (topic, number), w in self.refused.items()],
        }


def count_until(consumer: Any, ends: dict[int, int], patience_s: float) -> int:
    """Reads until every partition has reached its end. Silence for as long as the patience lasts is a failure."""
    from confluent_kafka import KafkaError

    open_ends, count, deadline = dict(ends), 0, time.monotonic() + patience_s
    while open_ends:
        # It waits for the whole batch or the whole time, so the time is short.
        batch = consumer.consume(10_000, timeout=0.05)
        if batch:
            deadline = time.monotonic() + patience_s
        elif time.monotonic() > deadline:
            raise Failed(
                f"{count} records were read, then no more arrived",
                why=f"no answer for {patience_s:g} s; partitions not read to their end: {sorted(open_ends)}",
            )
        for record in batch:
            partition, error = record.partition(), record.error()
            end = open_ends.get(partition)
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise Failed("the topic could not be read", why=f"{error.str()} ({error.name()})")
            # What was written after the clean began does not belong to it.
            if error is None and end is not None and record.offset() < end:
                count += 1
            if end is not None and (error is not None or record.offset() >= end - 1):
                del open_ends[partition]
    return count


def is_topic_name(text: str) -> bool:
    """True if Kafka takes it as the name of a topic."""
    return _TOPIC_NAME.fullmatch(text) is not None and text not in {".", ".."}


def wanted_topic(topic: NewTopic) -> Any:
    """The topic in the words of confluent-kafka; numbers that contradict each other are an error."""
    from confluent_kafka.admin import NewTopic as Wanted

    if topic.assignment is None:
        numbers = {"partitions": topic.partitions, "replicas": topic.replication}
        for what, number in numbers.items():
            if number is not None and number < 1:
                raise UsageError(f"the topic {short(topic.name)} cannot have {number} {what}")
        return Wanted(
            topic.name,
            num_partitions=topic.partitions or -1,
            replication_factor=topic.replication or -1,
            config=dict(topic.configs),
        )
    if topic.partitions not in (None, len(topic.assignment)) or topic.replication is not None:
        raise UsageError(
            f"the topic {topic.name} is given both an assignment and other numbers of partitions or replicas",
            hint="the assignment alone says how many there are",
        )
    return Wanted(
        topic.name,
        num_partitions=len(topic.assignment),
        replica_assignment=[list(replicas) for replicas in topic.assignment],
        config=dict(topic.configs),
    )


def partition_bytes(log_dirs: Iterable[Mapping[str, Any]]) -> dict[TopicPartition, int]:
    """The bytes of each partition in a broker's log directories, moves between directories aside."""
    dirs = list(log_dirs)
    if any(log_dir["error_code"] for log_dir in dirs) or not dirs:
        raise Failed("a broker did not describe its log directories", why="it is not allowed, or a disk has failed")
    return {
        (topic["name"], p["partition_index"]): p["partition_size"]
        for log_dir in dirs
        for topic in log_dir["topics"]
        for p in topic["partitions"]
        if not p["is_future_key"]
    }


def _total(counts: Iterable[int | None]) -> int | None:
    """The sum, unless a part of it is unknown."""
    known = list(counts)
    return None if None in known else sum(count or 0 for count in known)


def short(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
