"""One poll of everything: what the sampler makes and the console shows.

All of it is immutable and can be encoded as JSON as it is, so a page and its JSON twin are the same data.
What is unknown is None.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.connect import Task
from headrace.kafka import Broker, Group, Partition, Quorum
from headrace.text import plural

Health = Literal["up", "degraded", "critical", "down"]


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a snapshot."""


class TopicView(View, frozen=True, kw_only=True):
    """A topic with the sums over its partitions. Bytes are those of one copy, the leaders'."""

    name: str
    internal: bool
    partitions: tuple[Partition, ...]
    replication: int
    under_replicated: int
    offline: int
    offsets: int | None = None
    size_bytes: int | None = None
    stored_bytes: int | None = None
    in_per_s: float | None = None
    in_bytes_per_s: float | None = None
    out_per_s: float | None = None


class GroupView(Group, frozen=True, kw_only=True):
    """A group, with what is known from watching it.

    Where `lag_s_at_least` is set, the console has not watched long enough to know all of it.
    """

    topics: tuple[str, ...] = ()
    lag_s: float | None = None
    lag_s_at_least: bool = False
    read_per_s: float | None = None


class BrokerView(Broker, frozen=True, kw_only=True):
    """A broker. `quiet` is one that runs, but owes answers; `size_bytes` counts every replica on it."""

    state: Literal["up", "quiet", "down"]
    controller: bool
    leaders: int
    replicas: int
    out_of_sync: int
    latency_ms: float | None = None
    size_bytes: int | None = None
    disk_total_bytes: int | None = None
    disk_free_bytes: int | None = None
    node: str | None = None


class NodeView(View, frozen=True, kw_only=True):
    """A process of a local cluster: a broker, a controller or a service."""

    name: str
    node_id: int | None
    roles: str
    state: str
    pid: int | None
    port: int | None
    uptime_s: float | None
    memory_bytes: int | None
    data_bytes: int | None


class SubjectView(View, frozen=True, kw_only=True):
    """A subject of the schema registry. What has not been polled yet is None."""

    subject: str
    versions: tuple[int, ...] | None = None
    schema_id: int | None = None
    kind: str | None = None
    level: str | None = None


class ConnectorView(View, frozen=True, kw_only=True):
    """A connector of the Connect worker."""

    name: str
    kind: str
    state: str
    worker: str
    tasks: tuple[Task, ...]
    connector_class: str | None = None
    topics: tuple[str, ...] = ()
    trace: str | None = None
    #: What a running connector waits for, if it does; Connect itself says RUNNING then.
    waiting: str | None = None

    @property
    def failed(self) -> bool:
        return self.state == "FAILED" or any(task.state == "FAILED" for task in self.tasks)

    @property
    def shown_state(self) -> str:
        return "FAILED" if self.failed else "WAITING" if self.waiting else self.state


class PipelineOffsetView(View, frozen=True, kw_only=True):
    """How far a pipeline has got in a partition, by its checkpoint. `lost` expired before it was read."""

    topic: str
    partition: int
    offset: int | None
    end: int | None
    lag: int | None
    lag_s: float | None = None
    lost: int = 0


class LedgerView(View, frozen=True, kw_only=True):
    """What became of the records that a pipeline has read, over all of its runs."""

    read: int
    written: int
    dead: int
    late: int
    filtered: int
    duplicate: int
    balanced: bool


class PipelineView(View, frozen=True, kw_only=True):
    """A Spark pipeline, running or not: all of it is read from its files, so a stopped one has a lag too."""

    name: str
    state: Literal["running", "waiting", "stopped", "failed", "never run"]
    sources: tuple[str, ...]
    sinks: tuple[str, ...]
    trigger: str | None = None
    #: Where records go that cannot be used: `topic …` or `table …`.
    dead_letters: str | None = None
    steps: tuple[str, ...] = ()
    offsets: tuple[PipelineOffsetView, ...] = ()
    lag: int | None = None
    lag_s: float | None = None
    rate_per_s: float | None = None
    catch_up_s: float | None = None
    batch: int | None = None
    batch_s: float | None = None
    batch_records: int | None = None
    batch_ended: float | None = None
    #: What the stateful operators hold on disk, and the event time that they have closed their windows up to.
    state_bytes: int | None = None
    watermark_ms: int | None = None
    ledger: LedgerView | None = None
    problem: str | None = None
    warnings: tuple[str, ...] = ()


class Totals(View, frozen=True, kw_only=True):
    """Sums over the cluster; topics of Kafka's own are left out of all but the bytes and the replicas."""

    topics: int = 0
    partitions: int = 0
    under_replicated: int = 0
    offline: int = 0
    offsets: int | None = None
    size_bytes: int | None = None
    stored_bytes: int | None = None
    lag: int | None = None
    in_per_s: float | None = None
    in_bytes_per_s: float | None = None
    out_per_s: float | None = None


class Snapshot(View, frozen=True, kw_only=True):
    """Everything at one moment. While no broker answers, the last that was known stays and `reachable` is false."""

    at: float
    took_s: float
    every_s: float
    reachable: bool
    bootstrap: str
    cluster_id: str | None = None
    problem: str | None = None
    brokers: tuple[BrokerView, ...] = ()
    quorum: Quorum | None = None
    topics: dict[str, TopicView] = {}
    groups: dict[str, GroupView] = {}
    totals: Totals = Totals()
    nodes: tuple[NodeView, ...] = ()
    #: None: there is no registry here. `subjects` is None while it does not answer.
    registry: str | None = None
    subjects: tuple[SubjectView, ...] | None = None
    connect: str | None = None
    connectors: tuple[ConnectorView, ...] | None = None
    pipelines: tuple[PipelineView, ...] = ()

    @property
    def controller_id(self) -> int | None:
        return self.quorum.leader_id if self.quorum else None

    @property
    def health(self) -> Health:
        """Critical is what costs availability: a broker that is down, a partition without a leader."""
        if not self.reachable:
            return "down"
        if self.totals.offline or any(broker.state == "down" for broker in self.brokers):
            return "critical"
        return "degraded" if self.complaints() else "up"

    def complaints(self) -> tuple[str, ...]:
        """What is not as it should be, in words, the worst first."""
        if not self.reachable:
            return (self.problem or "no broker answers",)
        found = [f"broker {b.broker_id} is {_STATE_WORDS[b.state]}" for b in self.brokers if b.state != "up"]
        totals = self.totals
        if totals.offline:
            found.insert(0, f"{plural(totals.offline, 'partition')} without a leader")
        if totals.under_replicated:
            found.append(f"{plural(totals.under_replicated, 'partition')} under-replicated")
        if self.registry and self.subjects is None:
            found.append("the schema registry does not answer")
        if self.connect and self.connectors is None:
            found.append("the Connect worker does not answer")
        found += [f"connector {c.name} has failed" for c in self.connectors or () if c.failed]
        found += [f"connector {c.name} is waiting: {c.waiting}" for c in self.connectors or () if c.waiting]
        found += [f"pipeline {p.name} has failed" for p in self.pipelines if p.state == "failed"]
        found += [
            f"the ledger of {p.name} does not balance" for p in self.pipelines if p.ledger and not p.ledger.balanced
        ]
        return tuple(found)


_STATE_WORDS = {"down": "down", "quiet": "not answering"}
