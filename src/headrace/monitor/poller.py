"""One poll of everything: the answers of a survey, composed into a Snapshot.

A number without an answer this time keeps its last value; its broker is shown as down or quiet meanwhile. What costs
more is polled less often: begins and bytes. With more than some thousand partitions the pace slows down in proportion,
so that monitoring stays below a tenth of a core.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from msgspec.structs import replace

from headrace.cluster import Cluster
from headrace.connect import Connectors
from headrace.errors import HeadraceError, Unreachable
from headrace.kafka import (
    Broker,
    Connection,
    Disk,
    Group,
    Member,
    Metadata,
    Offset,
    Partition,
    Quorum,
    Start,
    Survey,
    Topic,
    TopicPartition,
    known_total,
    whole_topics,
)
from headrace.monitor.rates import Rates, Trail
from headrace.monitor.services import ServicesWatch
from headrace.monitor.snapshot import (
    BrokerView,
    ConnectorView,
    GroupView,
    NodeView,
    Snapshot,
    SubjectView,
    TopicView,
    Totals,
)
from headrace.schemas import Registry

EVERY_S = 2.0
# So many partitions can be polled every second without taking more than a few hundredths of a core.
_PARTITIONS_PER_S = 2500
_BEGINS_EVERY = 5
_DISKS_EVERY = 3


class _Beside(TypedDict):
    registry: str | None
    subjects: tuple[SubjectView, ...] | None
    connect: str | None
    connectors: tuple[ConnectorView, ...] | None


@dataclass(frozen=True)
class Target:
    """What is watched: a Kafka, and what is known beside it."""

    connection: Connection
    cluster: Cluster | None = None
    registry: Registry | None = None
    connectors: Connectors | None = None


class Poller:
    """Composes one snapshot after the other from a survey."""

    def __init__(self, target: Target, services: ServicesWatch) -> None:
        self.target = target
        self.services = services
        self.survey = Survey(target.connection)
        self.begins: dict[TopicPartition, int] = {}
        self.ends: dict[TopicPartition, int] = {}
        self.disks: dict[int, Disk] = {}
        self.polls = 0
        self._rates = Rates()
        # Bytes are polled less often: a window shorter than their pace would show nothing but steps.
        self._byte_rates = Rates(window_s=20.0)
        self._trails: dict[TopicPartition, Trail] = {}
        self._topics: dict[str, TopicView] = {}
        #: What groups read of each topic per second, in the poll that is being composed.
        self._read: dict[str, float] = {}
        self._quorum: Quorum | None = None
        #: Partitions whose records are dated though no group reads them: pipelines do.
        self._also_dated: set[TopicPartition] = set()

    def everything_is_due(self) -> None:
        self.polls = 0

    def age(self, place: TopicPartition, offset: int) -> float | None:
        """How long ago the record was written, if that was seen; its partition is watched from then on."""
        self._also_dated.add(place)
        trail = self._trails.get(place)
        written, seen = (trail.written_at(offset) if trail else None) or (0.0, False)
        return max(0.0, time.time() - written) if seen else None

    def poll(self, before: Snapshot) -> Snapshot:
        began, at = time.monotonic(), time.time()
        nodes, beside = self._nodes(), self._beside()
        try:
            seen = self.survey.metadata()
        except Unreachable as error:
            brokers = tuple(replace(b, state="down", controller=False, latency_ms=None) for b in before.brokers)
            return replace(
                before, at=at, took_s=time.monotonic() - began, reachable=False, problem=error.why, brokers=brokers,
                quorum=None, nodes=nodes, **beside,
            )  # fmt: skip
        # A number belongs to the time of its answer, not to the time at which asking began.
        told_at = self._ask_for_numbers(seen)
        groups = self.survey.groups(b.broker_id for b in seen.brokers if not b.fenced)
        now = time.time()
        new_bytes = self._disks(seen)
        group_views = self._groups(now, groups, seen)
        topics = self._topic_views(told_at, seen, new_bytes)
        quorum = self._quorum_view(seen)
        self.polls += 1
        partitions = sum(len(topic.partitions) for topic in seen.topics.values())
        return Snapshot(
            at=now,
            took_s=time.monotonic() - began,
            every_s=max(EVERY_S, partitions / _PARTITIONS_PER_S),
            reachable=True,
            bootstrap=self.target.connection.bootstrap,
            cluster_id=seen.cluster_id,
            brokers=self._brokers(seen, quorum, nodes, before.brokers),
            quorum=quorum,
            topics=topics,
            groups=group_views,
            totals=_totals(topics, group_views),
            nodes=nodes,
            **beside,
        )

    # -- asking -------------------------------------------------------------------------------------------------

    def _ask_for_numbers(self, seen: Metadata) -> float:
        """Ends, and begins where they are due; returns when the ends were answered."""
        leaders = seen.leaders
        self.ends.update(self.survey.offsets(leaders, Start("end")))
        told_at = time.time()
        places = {(name, p.partition) for name, topic in seen.topics.items() for p in topic.partitions}
        if self.polls % _BEGINS_EVERY == 0 or not places <= self.begins.keys():
            self.begins.update(self.survey.offsets(leaders, Start("beginning")))
        for gone in self.ends.keys() - places:
            del self.ends[gone]
            self.begins.pop(gone, None)
            self._trails.pop(gone, None)
        return told_at

    def _disks(self, seen: Metadata) -> bool:
        """Whether the bytes are new."""
        if self.polls % _DISKS_EVERY:
            return False
        live = [b.broker_id for b in seen.brokers if not b.fenced]
        found = self.survey.disks(live)
        self.disks.update(found)
        for gone in self.disks.keys() - {b.broker_id for b in seen.brokers}:
            del self.disks[gone]
        return bool(found)

    def _nodes(self) -> tuple[NodeView, ...]:
        if self.target.cluster is None:
            return ()
        try:
            states = self.target.cluster.node_states()
        except (HeadraceError, OSError):
            return ()
        memory = self.services.latest.memory_bytes
        return tuple(
            NodeView(
                name=n.name,
                node_id=n.node_id,
                roles=n.roles,
                state=n.state,
                pid=n.pid,
                port=n.port or n.controller_port,
                uptime_s=n.uptime_s,
                memory_bytes=memory.get(n.name) if n.pid else None,
                data_bytes=sum(self.disks[n.node_id].partitions.values()) if n.node_id in self.disks else None,
            )
            for n in states
        )

    def _beside(self) -> _Beside:
        found, target = self.services.latest, self.target
        return {
            "registry": target.registry.url if target.registry else None,
            "subjects": found.subjects,
            "connect": target.connectors.url if target.connectors else None,
            "connectors": found.connectors,
        }

    # -- composing ----------------------------------------------------------------------------------------------

    def _topic_views(self, at: float, seen: Metadata, new_bytes: bool) -> dict[str, TopicView]:
        views: dict[str, TopicView] = {}
        for name, seen_topic in seen.topics.items():
            topic = Topic(name, tuple(self._partition(name, p) for p in seen_topic.partitions))
            made, size, old = topic.partitions, topic.size_bytes, self._topics.get(name)
            written = sum(p.end for p in made if p.end is not None)
            bytes_rate = old.in_bytes_per_s if old else None
            if new_bytes:
                bytes_rate = self._byte_rates.add(name, at, size)
            views[name] = TopicView(
                name=name,
                internal=topic.internal,
                partitions=old.partitions if old and old.partitions == made else made,
                replication=topic.replication,
                under_replicated=topic.under_replicated,
                offline=topic.offline,
                offsets=topic.offsets,
                size_bytes=size,
                stored_bytes=topic.stored_bytes,
                in_per_s=self._rates.add(("in", name), at, written),
                in_bytes_per_s=bytes_rate,
                out_per_s=self._read.get(name, 0.0),
            )
        self._topics = views
        self._byte_rates.keep(views)
        return views

    def _partition(self, topic: str, p: Partition) -> Partition:
        place = (topic, p.partition)
        sizes = {b: self.disks[b].partitions.get(place) if b in self.disks else None for b in p.replicas}
        return p.measured(self.begins.get(place), self.ends.get(place), sizes)

    def _groups(self, at: float, seen: Sequence[Group], metadata: Metadata) -> dict[str, GroupView]:
        self._read = {}
        committed = {group.group: group.committed for group in seen}
        views = {group.group: self._group(at, group, committed[group.group], metadata) for group in seen}
        for place in self._also_dated.union(*committed.values()):
            end = self.ends.get(place)
            if end is not None:
                self._trails.setdefault(place, Trail()).add(at, end)
        self._rates.keep(
            [("in", name) for name in metadata.topics]
            + [("read", name, place) for name, places in committed.items() for place in places]
        )
        return views

    def _group(self, at: float, group: Group, committed: Mapping[TopicPartition, int], metadata: Metadata) -> GroupView:
        readers, offsets, exact = group.readers, None, True
        if group.offsets is not None:
            places = [p for p in whole_topics({*committed, *readers}, metadata.topics) if p[0] in metadata.topics]
            dated = [self._offset(at, place, committed.get(place), readers.get(place)) for place in places]
            offsets, exact = tuple(offset for offset, _ in dated), all(is_exact for _, is_exact in dated)
        return GroupView(
            group=group.group,
            type=group.type,
            state=group.state,
            protocol=group.protocol,
            coordinator=group.coordinator,
            assignor=group.assignor,
            members=group.members,
            offsets=offsets,
            topics=tuple(sorted({o.topic for o in offsets or ()})),
            lag=known_total(o.lag for o in offsets or ()),
            lag_s=max((o.lag_s for o in offsets or () if o.lag_s is not None), default=None),
            lag_s_at_least=not exact,
            stale=group.stale,
            read_per_s=self._reading(at, group.group, committed),
        )

    def _reading(self, at: float, group: str, committed: Mapping[TopicPartition, int]) -> float | None:
        """Records per second, by how the committed offsets advance; added up by topic, too."""
        rates = []
        for place, offset in committed.items():
            rate = self._rates.add(("read", group, place), at, offset)
            if rate is not None:
                self._read[place[0]] = self._read.get(place[0], 0.0) + rate
                rates.append(rate)
        return known_total(rates)

    def _offset(
        self, at: float, place: TopicPartition, committed: int | None, member: Member | None
    ) -> tuple[Offset, bool]:
        """The group's offset, and whether the time that it is behind is exact."""
        begin, end = self.begins.get(place), self.ends.get(place)
        lag = Offset.lag_of(committed, begin, end)
        lag_s, exact = None if lag is None else 0.0, True
        if lag and end is not None:
            trail = self._trails.get(place)
            written = trail.written_at(end - lag) if trail else (at, False)
            if written:
                lag_s, exact = max(0.0, at - written[0]), written[1]
        member_id, client_id = (member.member_id, member.client_id) if member else (None, None)
        return Offset(*place, committed, begin, end, lag, lag_s, member_id, client_id), exact

    def _quorum_view(self, seen: Metadata) -> Quorum | None:
        found = self.survey.quorum()
        # Without an answer the last is shown, unless the controller that it names is known to be gone.
        fenced = {b.broker_id for b in seen.brokers if b.fenced}
        if found is not None:
            self._quorum = found
        elif self._quorum and self._quorum.leader_id in fenced:
            self._quorum = None
        return self._quorum

    def _brokers(
        self, seen: Metadata, quorum: Quorum | None, nodes: Sequence[NodeView], before: Sequence[BrokerView]
    ) -> tuple[BrokerView, ...]:
        leaders: dict[int, int] = {}
        replicas: dict[int, int] = {}
        missing: dict[int, int] = {}
        for topic in seen.topics.values():
            for p in topic.partitions:
                leaders[p.leader] = leaders.get(p.leader, 0) + 1
                for number in p.replicas:
                    replicas[number] = replicas.get(number, 0) + 1
                    if number not in p.isr:
                        missing[number] = missing.get(number, 0) + 1
        names = {node.node_id: node for node in nodes if node.node_id is not None}
        views = []
        for broker in seen.brokers:
            number = broker.broker_id
            state = self._state(broker, names.get(number))
            disk = self.disks.get(number)
            latency = self.survey.latency_s.get(number) if state == "up" else None
            views.append(
                BrokerView(
                    broker_id=number,
                    host=broker.host,
                    port=broker.port,
                    rack=broker.rack,
                    fenced=broker.fenced,
                    state=state,
                    controller=quorum is not None and quorum.leader_id == number,
                    leaders=leaders.get(number, 0),
                    replicas=replicas.get(number, 0),
                    out_of_sync=missing.get(number, 0),
                    latency_ms=latency * 1000 if latency is not None else None,
                    size_bytes=sum(disk.partitions.values()) if disk else None,
                    disk_total_bytes=disk.total_bytes if disk else None,
                    disk_free_bytes=disk.usable_bytes if disk else None,
                    node=names[number].name if number in names else None,
                )
            )
        # A local broker that starts again is not registered for a moment: it has not left the cluster.
        known = {view.broker_id for view in views}
        views += [
            replace(view, state="down", controller=False, leaders=0, latency_ms=None)
            for view in before
            if view.broker_id in names and view.broker_id not in known
        ]
        return tuple(sorted(views, key=lambda view: view.broker_id))

    def _state(self, broker: Broker, node: NodeView | None) -> Literal["up", "quiet", "down"]:
        if node is not None and node.state in {"dead", "stopped"}:
            return "down"  # the system knows it seconds before the controller does
        if node is not None and node.state == "paused":
            return "quiet"
        # One that hangs elsewhere is quiet at first; once the controller has given it up it is down.
        if broker.fenced:
            return "down"
        return "quiet" if self.survey.quiet(broker.broker_id) else "up"


def _totals(topics: Mapping[str, TopicView], groups: Mapping[str, GroupView]) -> Totals:
    own = [topic for topic in topics.values() if not topic.internal]
    everything = topics.values()
    return Totals(
        topics=len(own),
        partitions=sum(len(t.partitions) for t in own),
        under_replicated=sum(t.under_replicated for t in everything),
        offline=sum(t.offline for t in everything),
        offsets=known_total(t.offsets for t in own),
        size_bytes=known_total(t.size_bytes for t in everything),
        stored_bytes=known_total(t.stored_bytes for t in everything),
        lag=known_total(g.lag for g in groups.values()),
        in_per_s=known_total(t.in_per_s for t in own),
        in_bytes_per_s=known_total(t.in_bytes_per_s for t in own),
        out_per_s=known_total(t.out_per_s for t in own),
    )
