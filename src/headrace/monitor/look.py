"""One look at everything: what a survey tells, composed into a Snapshot.

A number that nobody could tell this time is the last that was known; whose number it is shows as down or quiet
meanwhile. What costs more is asked less often: begins and bytes. With more than some thousand partitions the pace slows
down in proportion, so that watching stays below a tenth of a core.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict, TypeVar

from msgspec.structs import replace

from headrace.cluster import Cluster
from headrace.errors import HeadraceError, Unreachable
from headrace.monitor.rates import Rates, Trail
from headrace.monitor.services import NeighbourWatch
from headrace.monitor.snapshot import (
    BrokerView,
    ConnectorView,
    GroupView,
    MemberView,
    NodeView,
    OffsetView,
    PartitionView,
    QuorumView,
    Snapshot,
    SubjectView,
    TopicView,
    Totals,
    VoterView,
)
from headrace.transport.client import Connection
from headrace.transport.connectors import Connectors
from headrace.transport.groups import Member
from headrace.transport.schemas import Registry
from headrace.transport.survey import (
    EARLIEST,
    LATEST,
    Metadata,
    SeenBroker,
    SeenDisk,
    SeenGroup,
    SeenPartition,
    SeenQuorum,
    Survey,
    leaders_of,
)
from headrace.transport.topics import TopicPartition

N = TypeVar("N", int, float)

EVERY_S = 2.0
# So many partitions can be looked at every second without taking more than a few hundredths of a core.
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


class Looker:
    """Composes one snapshot after the other from a survey."""

    def __init__(self, target: Target, neighbours: NeighbourWatch) -> None:
        self.target = target
        self.neighbours = neighbours
        self.survey = Survey(target.connection)
        self.begins: dict[TopicPartition, int] = {}
        self.ends: dict[TopicPartition, int] = {}
        self.disks: dict[int, SeenDisk] = {}
        self.round = 0
        self._rates = Rates()
        # Bytes are looked at less often: a window shorter than their pace would show nothing but steps.
        self._byte_rates = Rates(window_s=20.0)
        self._trails: dict[TopicPartition, Trail] = {}
        self._topics: dict[str, TopicView] = {}
        #: What groups read of each topic per second, in the look that is being composed.
        self._read: dict[str, float] = {}
        self._quorum: SeenQuorum | None = None
        #: Partitions whose records are dated though no group reads them: pipelines do.
        self._also_dated: set[TopicPartition] = set()

    def everything_is_due(self) -> None:
        self.round = 0

    def age(self, place: TopicPartition, offset: int) -> float | None:
        """How long ago the record was written, if that was seen; its partition is watched from then on."""
        self._also_dated.add(place)
        trail = self._trails.get(place)
        written, seen = (trail.written_at(offset) if trail else None) or (0.0, False)
        return max(0.0, time.time() - written) if seen else None

    def look(self, before: Snapshot) -> Snapshot:
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
        # A number belongs to the time at which it was told, not to the time at which asking began.
        told_at = self._ask_for_numbers(seen)
        groups = self.survey.groups(b.broker_id for b in seen.brokers if not b.fenced)
        now = time.time()
        new_bytes = self._disks(seen)
        group_views = self._groups(now, groups, seen)
        topics = self._topic_views(told_at, seen, new_bytes)
        quorum = self._quorum_view(seen)
        self.round += 1
        partitions = sum(len(found) for found in seen.topics.values())
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
        """Ends, and begins where they are due; returns when the ends were told."""
        leaders = leaders_of(seen.topics)
        self.ends.update(self.survey.offsets(leaders, LATEST))
        told_at = time.time()
        unknown = any((name, p.partition) not in self.begins for name, ps in seen.topics.items() for p in ps)
        if unknown or self.round % _BEGINS_EVERY == 0:
            self.begins.update(self.survey.offsets(leaders, EARLIEST))
        places = {(name, p.partition) for name, partitions in seen.topics.items() for p in partitions}
        for gone in self.ends.keys() - places:
            del self.ends[gone]
            self.begins.pop(gone, None)
            self._trails.pop(gone, None)
        return told_at

    def _disks(self, seen: Metadata) -> bool:
        """Whether the bytes are new."""
        if self.round % _DISKS_EVERY:
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
        memory = self.neighbours.latest.memory_bytes
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
        found, target = self.neighbours.latest, self.target
        return {
            "registry": target.registry.url if target.registry else None,
            "subjects": found.subjects,
            "connect": target.connectors.url if target.connectors else None,
            "connectors": found.connectors,
        }

    # -- composing ----------------------------------------------------------------------------------------------

    def _topic_views(self, at: float, seen: Metadata, new_bytes: bool) -> dict[str, TopicView]:
        views: dict[str, TopicView] = {}
        for name, partitions in seen.topics.items():
            made = tuple(self._partition(name, p) for p in partitions)
            old = self._topics.get(name)
            written = sum(p.end for p in made if p.end is not None)
            size = _sum(p.size_bytes for p in made)
            bytes_rate = old.in_bytes_per_s if old else None
            if new_bytes:
                bytes_rate = self._byte_rates.add(name, at, size)
            views[name] = TopicView(
                name=name,
                internal=name.startswith("__"),
                partitions=old.partitions if old and old.partitions == made else made,
                replication=max((len(p.replicas) for p in made), default=0),
                under_replicated=sum(p.under_replicated for p in made),
                offline=sum(p.leader < 0 for p in made),
                offsets=_sum(p.offsets for p in made),
                size_bytes=size,
                stored_bytes=_sum(_sum(p.replica_bytes) for p in made),
                in_per_s=self._rates.add(("in", name), at, written),
                in_bytes_per_s=bytes_rate,
                out_per_s=self._read.get(name, 0.0),
            )
        self._topics = views
        self._byte_rates.keep(views)
        return views

    def _partition(self, topic: str, p: SeenPartition) -> PartitionView:
        place = (topic, p.partition)
        sizes = tuple(self.disks[b].partitions.get(place) if b in self.disks else None for b in p.replicas)
        of_leader = sizes[p.replicas.index(p.leader)] if p.leader in p.replicas else None
        known = [size for size in sizes if size is not None]
        return PartitionView(
            partition=p.partition,
            leader=p.leader,
            replicas=p.replicas,
            isr=p.isr,
            begin=self.begins.get(place),
            end=self.ends.get(place),
            size_bytes=of_leader if of_leader is not None else max(known, default=None),
            replica_bytes=sizes,
        )

    def _groups(self, at: float, seen: Sequence[SeenGroup], metadata: Metadata) -> dict[str, GroupView]:
        self._read = {}
        views = {group.group: self._group(at, group, metadata) for group in seen}
        for place in {place for group in seen for place in group.committed or ()} | self._also_dated:
            end = self.ends.get(place)
            if end is not None:
                self._trails.setdefault(place, Trail()).add(at, end)
        self._rates.keep(
            [("in", name) for name in metadata.topics]
            + [("read", g.group, place) for g in seen for place in g.committed or ()]
        )
        return views

    def _group(self, at: float, group: SeenGroup, metadata: Metadata) -> GroupView:
        readers = {place: member for member in group.members or () for place in member.assignment}
        offsets = None
        exact = True
        if group.committed is not None:
            offsets = []
            for place in _whole_topics({*group.committed, *readers}, metadata):
                view, is_exact = self._offset(at, place, group, readers.get(place))
                exact &= is_exact
                offsets.append(view)
        lags = [o.lag_s for o in offsets or () if o.lag_s is not None]
        read = self._reading(at, group)
        return GroupView(
            group=group.group,
            type=group.type,
            state=group.state,
            protocol=group.protocol,
            coordinator=group.coordinator,
            assignor=group.assignor,
            members=_members(group),
            offsets=tuple(offsets) if offsets is not None else None,
            topics=tuple(sorted({o.topic for o in offsets or ()})),
            lag=_known_sum(o.lag for o in offsets or ()),
            lag_s=max(lags, default=None),
            lag_s_at_least=not exact,
            stale=group.stale,
            read_per_s=read,
        )

    def _reading(self, at: float, group: SeenGroup) -> float | None:
        """Records per second, by how the committed offsets advance; added up by topic, too."""
        rates = []
        for (topic, partition), committed in (group.committed or {}).items():
            rate = self._rates.add(("read", group.group, (topic, partition)), at, committed)
            if rate is not None:
                self._read[topic] = self._read.get(topic, 0.0) + rate
                rates.append(rate)
        return sum(rates) if rates else None

    def _offset(
        self, at: float, place: TopicPartition, group: SeenGroup, member: Member | None
    ) -> tuple[OffsetView, bool]:
        committed = (group.committed or {}).get(place)
        begin, end = self.begins.get(place), self.ends.get(place)
        lag = lag_s = None
        exact = True
        if committed is not None and begin is not None and end is not None:
            first_unread = max(committed, begin)
            lag = max(0, end - first_unread)
            lag_s = 0.0
            if lag:
                trail = self._trails.get(place)
                written = trail.written_at(first_unread) if trail else (at, False)
                if written:
                    lag_s, exact = max(0.0, at - written[0]), written[1]
        return (
            OffsetView(
                topic=place[0], partition=place[1], committed=committed, begin=begin, end=end, lag=lag, lag_s=lag_s,
                member_id=member.member_id if member else None, client_id=member.client_id if member else None,
            ),
            exact,
        )  # fmt: skip

    def _quorum_view(self, seen: Metadata) -> QuorumView | None:
        found = self.survey.quorum()
        # Without an answer the last is shown, unless the controller that it names is known to be gone.
        fenced = {b.broker_id for b in seen.brokers if b.fenced}
        if found is not None:
            self._quorum = found
        elif self._quorum and self._quorum.leader_id in fenced:
            self._quorum = None
        quorum = self._quorum
        if quorum is None:
            return None
        end = max((r.log_end_offset for r in quorum.replicas), default=0)
        return QuorumView(
            leader_id=quorum.leader_id,
            leader_epoch=quorum.leader_epoch,
            high_watermark=quorum.high_watermark,
            voters=tuple(
                VoterView(
                    node_id=r.node_id,
                    voter=r.voter,
                    log_end_offset=r.log_end_offset,
                    lag=max(0, end - r.log_end_offset),
                )
                for r in sorted(quorum.replicas)
            ),
        )

    def _brokers(
        self, seen: Metadata, quorum: QuorumView | None, nodes: Sequence[NodeView], before: Sequence[BrokerView]
    ) -> tuple[BrokerView, ...]:
        leaders: dict[int, int] = {}
        replicas: dict[int, int] = {}
        missing: dict[int, int] = {}
        for partitions in seen.topics.values():
            for p in partitions:
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

    def _state(self, broker: SeenBroker, node: NodeView | None) -> Literal["up", "quiet", "down"]:
        if node is not None and node.state in {"dead", "stopped"}:
            return "down"  # the system knows it seconds before the controller does
        if node is not None and node.state == "paused":
            return "quiet"
        # One that hangs elsewhere is quiet at first; once the controller has given it up it is down.
        if broker.fenced:
            return "down"
        return "quiet" if self.survey.quiet(broker.broker_id) else "up"


def _members(group: SeenGroup) -> tuple[MemberView, ...] | None:
    if group.members is None:
        return None
    return tuple(
        MemberView(
            member_id=m.member_id,
            client_id=m.client_id,
            host=m.host,
            instance_id=m.instance_id,
            partitions=m.assignment,
        )
        for m in group.members
    )


def _whole_topics(places: Iterable[TopicPartition], metadata: Metadata) -> list[TopicPartition]:
    """These and the other partitions of their topics: what a group has never got to is shown too."""
    known = set(places)
    for name in {name for name, _ in known}:
        known.update((name, p.partition) for p in metadata.topics.get(name, ()))
    return sorted(place for place in known if place[0] in metadata.topics)


def _totals(topics: Mapping[str, TopicView], groups: Mapping[str, GroupView]) -> Totals:
    own = [topic for topic in topics.values() if not topic.internal]
    everything = topics.values()
    return Totals(
        topics=len(own),
        partitions=sum(len(t.partitions) for t in own),
        under_replicated=sum(t.under_replicated for t in everything),
        offline=sum(t.offline for t in everything),
        offsets=_known_sum(t.offsets for t in own),
        size_bytes=_known_sum(t.size_bytes for t in everything),
        stored_bytes=_known_sum(t.stored_bytes for t in everything),
        lag=_known_sum(g.lag for g in groups.values()),
        in_per_s=_known_sum(t.in_per_s for t in own),
        in_bytes_per_s=_known_sum(t.in_bytes_per_s for t in own),
        out_per_s=_known_sum(t.out_per_s for t in own),
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    """The sum, unless a part of it is unknown."""
    known = list(counts)
    return None if None in known else sum(count or 0 for count in known)


def _known_sum(counts: Iterable[N | None]) -> N | None:
    """The sum of what is known; None if nothing is."""
    known = [count for count in counts if count is not None]
    return sum(known[1:], known[0]) if known else None
