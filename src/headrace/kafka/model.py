"""What a Kafka holds: brokers, quorum, topics, partitions, groups, members, offsets.

`Kafka`, `Survey` and the monitor's Snapshot answer with these; commands, pages and metrics only format them. All are
immutable; nothing here opens a connection. What no broker answered, or nobody asked for, is None. msgspec's structs
instead of dataclasses: with a thousand topics, the monitor makes some ten thousand of them every other second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeVar

import msgspec

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
# The types and protocols of groups whose members and offsets can be asked for. Connect's workers are a classic group of
# another protocol; a group that has only committed offsets names no protocol.
_DESCRIBABLE = {"classic", "consumer"}
_CONSUMERS = {"consumer", "-"}

N = TypeVar("N", int, float)

#: A topic and the number of one of its partitions.
TopicPartition = tuple[str, int]


class Broker(msgspec.Struct, frozen=True):
    """A broker in the cluster's own list. `fenced` is what the controller calls one that it does not hear from."""

    broker_id: int
    host: str
    port: int
    rack: str | None
    fenced: bool = False


class Voter(msgspec.Struct, frozen=True):
    """A replica of the metadata log: how far it has got, and how far behind the leader that is."""

    node_id: int
    log_end_offset: int
    lag: int
    voter: bool


class Quorum(msgspec.Struct, frozen=True):
    """The controllers: who leads, in which epoch, and who follows how closely."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[Voter, ...]


class Disk(msgspec.Struct, frozen=True):
    """What a broker's log directories hold, and the disk below them; None where the broker is too old to tell."""

    partitions: Mapping[TopicPartition, int]
    total_bytes: int | None
    usable_bytes: int | None


class Partition(msgspec.Struct, frozen=True, gc=False):
    """A partition. `leader` is -1 while it has none; `replica_bytes` stand in the order of `replicas`.

    `size_bytes` are those of one copy: the leader's, or the largest known while the leader is silent.
    """

    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    begin: int | None = None
    end: int | None = None
    size_bytes: int | None = None
    replica_bytes: tuple[int | None, ...] = ()

    @property
    def under_replicated(self) -> bool:
        return len(self.isr) < len(self.replicas)

    @property
    def offsets(self) -> int | None:
        """Offsets from begin to end: at most so many records, fewer if compacted or written in transactions."""
        return None if self.begin is None or self.end is None else self.end - self.begin

    @property
    def bytes_by_broker(self) -> dict[int, int | None]:
        return dict(sorted(zip(self.replicas, self.replica_bytes, strict=False)))

    @property
    def stored_bytes(self) -> int | None:
        """The bytes of all replicas."""
        return total(self.replica_bytes)

    def measured(self, begin: int | None, end: int | None, by_broker: Mapping[int, int | None]) -> Partition:
        """The partition with these offsets and bytes."""
        sizes = tuple(by_broker.get(broker) for broker in self.replicas)
        size = by_broker.get(self.leader)
        if size is None:
            size = max((count for count in sizes if count is not None), default=None)
        return Partition(self.partition, self.leader, self.replicas, self.isr, begin, end, size, sizes)


@dataclass(frozen=True)
class ConfigValue:
    """A setting of a broker or topic: what holds, where it comes from, what it would be otherwise."""

    name: str
    value: str | None
    source: str
    default: str | None
    sensitive: bool
    read_only: bool


class Topic(msgspec.Struct, frozen=True):
    """A topic and its partitions, with as much of it as was asked for. `at` is when its bytes were asked for.

    `eligible_leaders` are, by partition, the replicas outside the ISR that may still lead (KIP-966).
    """

    name: str
    partitions: tuple[Partition, ...]
    topic_id: str | None = None
    configs: Mapping[str, ConfigValue] = {}
    eligible_leaders: Mapping[int, tuple[int, ...]] = {}
    at: datetime | None = None

    @property
    def internal(self) -> bool:
        return self.name.startswith("__")

    @property
    def replication(self) -> int:
        return max((len(p.replicas) for p in self.partitions), default=0)

    @property
    def under_replicated(self) -> int:
        return sum(p.under_replicated for p in self.partitions)

    @property
    def offline(self) -> int:
        """Partitions without a leader."""
        return sum(p.leader < 0 for p in self.partitions)

    @property
    def offsets(self) -> int | None:
        """See `Partition.offsets`; None if those of some partition are unknown."""
        return total(p.offsets for p in self.partitions)

    @property
    def size_bytes(self) -> int | None:
        """The bytes of one copy of every partition; None if those of some partition are unknown."""
        return total(p.size_bytes for p in self.partitions)

    @property
    def stored_bytes(self) -> int | None:
        """The bytes of all replicas; None if those of some replica are unknown."""
        return total(p.stored_bytes for p in self.partitions)

    @property
    def silent_brokers(self) -> tuple[int, ...]:
        """The brokers that did not tell their bytes."""
        return tuple(broker for broker, count in self.broker_bytes.items() if count is None)

    @property
    def broker_bytes(self) -> dict[int, int | None]:
        """The bytes on each broker; None for a broker that did not answer."""
        counts: dict[int, list[int | None]] = {}
        for partition in self.partitions:
            for broker, count in partition.bytes_by_broker.items():
                counts.setdefault(broker, []).append(count)
        return {broker: total(counts[broker]) for broker in sorted(counts)}

    @property
    def retention_ms(self) -> int | None:
        """How long records are kept; None: for ever, as long as their key has no newer one, or not known."""
        return self._limit("retention.ms")

    @property
    def retention_bytes(self) -> int | None:
        """How many bytes of a partition are kept; None: all, or not known."""
        return self._limit("retention.bytes")

    def _limit(self, config: str) -> int | None:
        if config not in self.configs or "delete" not in (self.configs["cleanup.policy"].value or ""):
            return None
        limit = int(self.configs[config].value or -1)
        return limit if limit >= 0 else None

    def partition(self, number: int) -> Partition | None:
        """The partition of that number, if there is one."""
        return next((p for p in self.partitions if p.partition == number), None)

    def to_json(self) -> dict[str, object]:
        """All that is known of the topic."""
        return {
            "topic": self.name,
            "topic_id": self.topic_id,
            "partition_count": len(self.partitions),
            "replication": self.replication,
            "offsets": self.offsets,
            "bytes": self.size_bytes,
            "configs": {name: asdict(config) for name, config in self.configs.items()},
            "partitions": [
                {
                    "partition": p.partition,
                    "leader": p.leader,
                    "replicas": p.replicas,
                    "isr": p.isr,
                    "elr": self.eligible_leaders.get(p.partition),
                    "begin": p.begin,
                    "end": p.end,
                    "offsets": p.offsets,
                    "bytes": p.size_bytes,
                    "replica_bytes": _by_broker(p.bytes_by_broker),
                }
                for p in self.partitions
            ],
            "silent_brokers": list(self.silent_brokers),
        }

    def sizes_to_json(self) -> dict[str, Any]:
        """The series `data` of one point, and where the bytes lie."""
        at = self.at.isoformat(timespec="milliseconds") if self.at else None
        return {
            "data": [{"timestamp": at, "value": self.size_bytes}],
            "topic": self.name,
            "all_replicas_bytes": sum(count or 0 for count in self.broker_bytes.values()),
            "brokers": _by_broker(self.broker_bytes),
            "partitions": [
                {
                    "partition": p.partition,
                    "leader": p.leader,
                    "bytes": p.size_bytes,
                    "replicas": _by_broker(p.bytes_by_broker),
                }
                for p in self.partitions
            ],
            "silent_brokers": list(self.silent_brokers),
        }


class Member(msgspec.Struct, frozen=True):
    """A client that reads for a group, and the partitions that it has now."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    partitions: tuple[TopicPartition, ...]


class Offset(msgspec.Struct, frozen=True):
    """How far a group has got in a partition. None: nothing committed, or no leader that answers.

    Lag counts what can still be read: records that retention has removed are not waited for. `lag_s` is how long ago
    the first unread record was written.
    """

    topic: str
    partition: int
    committed: int | None
    begin: int | None = None
    end: int | None = None
    lag: int | None = None
    lag_s: float | None = None
    member_id: str | None = None
    client_id: str | None = None

    @staticmethod
    def lag_of(committed: int | None, begin: int | None, end: int | None) -> int | None:
        """The records that are still to be read.

        None if nothing was committed: where the group begins is its members' choice then (auto.offset.reset).
        """
        if committed is None or begin is None or end is None:
            return None
        return max(0, end - max(committed, begin))


class Group(msgspec.Struct, frozen=True):
    """A group. `members` and `offsets` are None for the types for which nobody can be asked.

    One that is `stale` is shown as it was last seen: its coordinator does not answer, or does not know it yet.
    """

    group: str
    type: str
    state: str
    protocol: str
    coordinator: int
    assignor: str | None = None
    members: tuple[Member, ...] | None = None
    offsets: tuple[Offset, ...] | None = None
    #: The sum over the partitions whose lag is known; None if there is no such partition.
    lag: int | None = None
    stale: bool = False

    @property
    def describable(self) -> bool:
        """True if members and offsets can be asked for."""
        return self.type in _DESCRIBABLE and self.protocol in _CONSUMERS

    @property
    def readers(self) -> dict[TopicPartition, Member]:
        """The member that has each partition."""
        return {place: member for member in self.members or () for place in member.partitions}

    @property
    def committed(self) -> dict[TopicPartition, int]:
        """The committed offset of each partition that has one."""
        return {(o.topic, o.partition): o.committed for o in self.offsets or () if o.committed is not None}

    def to_json(self) -> dict[str, object]:
        """All that is known of the group."""
        members = offsets = None
        if self.members is not None:
            members = [
                {
                    "member_id": m.member_id,
                    "client_id": m.client_id,
                    "host": m.host,
                    "instance_id": m.instance_id,
                    "assignment": [{"topic": topic, "partition": number} for topic, number in m.partitions],
                }
                for m in self.members
            ]
        if self.offsets is not None:
            names = ("topic", "partition", "committed", "begin", "end", "member_id", "lag")
            offsets = [{name: getattr(offset, name) for name in names} for offset in self.offsets]
        return {
            "group": self.group,
            "type": self.type,
            "state": self.state,
            "protocol": self.protocol,
            "assignor": self.assignor,
            "coordinator": self.coordinator,
            "members": members,
            "offsets": offsets,
            "lag": self.lag,
        }


@dataclass(frozen=True)
class NewTopic:
    """A topic to be. `assignment` names the replicas of each partition, the preferred leader first."""

    name: str
    partitions: int | None = None
    replication: int | None = None
    configs: Mapping[str, str] = field(default_factory=dict)
    assignment: Sequence[Sequence[int]] | None = None


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


def is_topic_name(text: str) -> bool:
    """True if Kafka takes it as the name of a topic."""
    return _TOPIC_NAME.fullmatch(text) is not None and text not in {".", ".."}


def quorum_of(leader: int, epoch: int, high_watermark: int, replicas: Iterable[tuple[int, int, bool]]) -> Quorum:
    """The quorum with these replicas: id, log end offset, whether it votes."""
    known = list(replicas)
    end = max((log_end for _, log_end, _ in known), default=0)
    voters = tuple(Voter(node, log_end, max(0, end - log_end), voter) for node, log_end, voter in known)
    return Quorum(leader, epoch, high_watermark, voters)


def whole_topics(places: Iterable[TopicPartition], topics: Mapping[str, Topic]) -> list[TopicPartition]:
    """These and the other partitions of their topics: what a group has never got to is shown too."""
    known = set(places)
    for name in {name for name, _ in known} & topics.keys():
        known.update((name, p.partition) for p in topics[name].partitions)
    return sorted(known)


def total(counts: Iterable[int | None]) -> int | None:
    """The sum, unless a part of it is unknown."""
    known = list(counts)
    return None if None in known else sum(count or 0 for count in known)


def known_total(counts: Iterable[N | None]) -> N | None:
    """The sum of what is known; None if nothing is."""
    known = [count for count in counts if count is not None]
    return sum(known[1:], known[0]) if known else None


def _by_broker(counts: Mapping[int, int | None]) -> list[dict[str, int | None]]:
    return [{"broker": broker, "bytes": count} for broker, count in counts.items()]
