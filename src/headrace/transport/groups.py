"""Look at and change groups: who reads what, how far they have got, and where they go on.

All types are listed: classic, consumer (KIP-848), share and streams. Members and committed offsets are known of the
first two; no Python client speaks the requests for the others yet, so theirs are None.
A group is never changed while it has members: they would overwrite the change with their next commit.
Lag counts what can still be read: records that retention has removed are not waited for. Of a partition in which
nothing was ever committed it is None: where the group begins there is its members' choice (auto.offset.reset).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Literal

from headrace.errors import Failed, HeadraceError, NotFound, UsageError
from headrace.transport.admin import Admin
from headrace.transport.client import HasBootstrap
from headrace.transport.offsets import Start
from headrace.transport.topics import TopicPartition

# librdkafka's names of the states, in Kafka's own words; those it does not know are taken from the listing.
STATES = {
    "PREPARING_REBALANCING": "PreparingRebalance",
    "COMPLETING_REBALANCING": "CompletingRebalance",
    "STABLE": "Stable",
    "DEAD": "Dead",
    "EMPTY": "Empty",
}
_DESCRIBABLE = {"classic", "consumer"}
# A group without members that has only committed offsets names no protocol.
_CONSUMERS = {"consumer", "-"}
_REBALANCING = {"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"}


@dataclass(frozen=True)
class Group:
    """A group in the list. `members` is None for the types whose members cannot be asked for."""

    group: str
    type: str
    state: str
    protocol: str
    coordinator: int
    members: int | None = None

    @property
    def describable(self) -> bool:
        """True if members and offsets can be asked for. Connect's workers are a classic group of another protocol."""
        return self.type in _DESCRIBABLE and self.protocol in _CONSUMERS


@dataclass(frozen=True)
class Member:
    """A client that reads for the group, and the partitions it has now."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True)
class GroupOffset:
    """How far the group has got in a partition. None: nothing committed, or no leader that answers."""

    topic: str
    partition: int
    committed: int | None
    begin: int | None
    end: int | None
    member_id: str | None = None

    @property
    def lag(self) -> int | None:
        """The records that are still to be read."""
        if self.committed is None or self.begin is None or self.end is None:
            return None
        return max(0, self.end - max(self.committed, self.begin))


@dataclass(frozen=True)
class GroupDescription:
    """All that is known of a group."""

    group: str
    type: str
    state: str
    protocol: str
    assignor: str | None
    coordinator: str
    members: tuple[Member, ...] | None
    offsets: tuple[GroupOffset, ...] | None

    @property
    def lag(self) -> int | None:
        """The sum over the partitions whose lag is known; None if there is no such partition."""
        known = [offset.lag for offset in self.offsets or () if offset.lag is not None]
        return sum(known) if known else None

    def to_json(self) -> dict[str, Any]:
        offsets = None if self.offsets is None else [{**asdict(o), "lag": o.lag} for o in self.offsets]
        members = None
        if self.members is not None:
            members = [
                {**asdict(m), "assignment": [{"topic": t, "partition": p} for t, p in m.assignment]}
                for m in self.members
            ]
        return {**asdict(self), "members": members, "offsets": offsets, "lag": self.lag}


@dataclass(frozen=True)
class ResetTo:
    """Where a group shall go on. `value` is an offset, a distance, or milliseconds since 1970."""

    kind: Literal["beginning", "end", "offset", "time", "shift"]
    value: int = 0

    @classmethod
    def parse(cls, text: str) -> ResetTo:
        """`beginning`, `end`, `1500` (an offset), `shift:-100`, `2026-05-01T12:00`, `-1h`."""
        if text.startswith("shift:"):
            try:
                return cls("shift", int(text.removeprefix("shift:")))
            except ValueError:
                raise UsageError(f"invalid shift: {text!r}", hint="shift:-100 or shift:+100") from None
        start = Start.parse(text)
        if start.kind == "committed":
            raise UsageError("'committed' is the current position of the group", hint="beginning, end, shift:-100, -1h")
        return cls(start.kind, start.value)


@dataclass(frozen=True)
class PlannedOffset:
    """A partition's part of a reset: from, to, and why it is not exactly what was asked for."""

    topic: str
    partition: int
    committed: int | None
    target: int
    note: str | None = None


class Groups:
    """Questions about groups, and changes of them.

    As a context manager it closes its connections at the end:

        with Groups("127.0.0.1:9092") as groups:
            print({group.group: groups.describe(group.group).lag for group in groups.list()})
    """

    def __init__(self, where: HasBootstrap | str, *, timeout_s: float = 10.0) -> None:
        self._admin = Admin(where, timeout_s=timeout_s)

    def __enter__(self) -> Groups:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The connection is given back."""
        self._admin.close()

    def list(self) -> tuple[Group, ...]:
        """The groups of all types by name, with the number of their members."""
        found = self._listed()
        counts = {
            name: len(description.members)
            for name, description in self._described([g.group for g in found if g.describable]).items()
        }
        return tuple(replace(group, members=counts.get(group.group)) for group in found)

    def describe(self, name: str) -> GroupDescription:
        """State, members and lag of the group; one that does not exist is an error with the nearest name.

        groups.describe("reporting").lag
        """
        listed = self._require([name])[0]
        where = self._admin.live_brokers().get(listed.coordinator, "?")
        facts = (listed.group, listed.type, listed.state, listed.protocol)
        if not listed.describable:
            return GroupDescription(*facts, None, f"broker {listed.coordinator} ({where})", None, None)
        found = self._described([name])[name]
        members = tuple(sorted((member_of(m) for m in found.members), key=lambda m: (m.client_id, m.member_id)))
        state = STATES.get(found.state.name, listed.state)
        return GroupDescription(
            listed.group,
            listed.type,
            state,
            listed.protocol,
            found.partition_assignor or None,
            f"broker {found.coordinator.id} ({found.coordinator.host}:{found.coordinator.port})",
            members,
            self._offsets(name, members),
        )

    def plan_reset(
        self, name: str, to: ResetTo, topics: Sequence[tuple[str, int | None]] = ()
    ) -> tuple[PlannedOffset, ...]:
        """What a reset would commit; nothing is changed. Without topics: those in which the group has an offset.

        groups.plan_reset("reporting", ResetTo.parse("-1h"), [("breadcrumbs", None)])
        """
        self._require_resettable(name)
        committed = self._committed(name)
        if topics:
            places = self._places(topics)
        else:
            places = tuple(sorted(committed)) if to.kind == "shift" else self._whole_topics(committed)
        if not places:
            raise UsageError(
                f"the group {name} has committed no offset, so it is not known what to reset",
                hint=f"name the topics: headrace group reset {name} --topic T",
            )
        begins, ends = self._admin.begins_and_ends(places)
        at = self._admin.offsets_at(places, to.value) if to.kind == "time" else {}
        plan = []
        for place in places:
            begin, end = begins[place], ends[place]
            if begin is None or end is None:
                raise Failed(
                    f"partition {place[1]} of {place[0]} has no leader that answers, so nothing was reset",
                    hint=f"headrace topic describe {place[0]}",
                )
            wanted, note = _target(to, committed.get(place), (begin, end), at.get(place))
            plan.append(PlannedOffset(*place, committed.get(place), wanted, note))
        return tuple(plan)

    def reset(self, name: str, plan: Iterable[PlannedOffset]) -> None:
        """The group goes on at the planned offsets.

        groups.reset("reporting", groups.plan_reset("reporting", ResetTo("beginning")))
        """
        from confluent_kafka import ConsumerGroupTopicPartitions
        from confluent_kafka import TopicPartition as At

        # Asked again: between the plan and now somebody may have joined.
        self._require_resettable(name)
        wanted = ConsumerGroupTopicPartitions(name, [At(p.topic, p.partition, p.target) for p in plan])
        futures = self._admin.client.alter_consumer_group_offsets([wanted], request_timeout=self._admin.timeout_s)
        answer = self._admin.settle(futures, f"reset group {name}", lambda *_: self._busy(name))[name]
        refused = [p for p in answer.topic_partitions if p.error is not None]
        if refused:
            first = refused[0]
            raise self._busy(name) or Failed(
                f"Kafka refused to reset {len(refused)} of {len(answer.topic_partitions)} partitions of group {name}",
                why=f"{first.topic}/{first.partition}: {first.error.str()} ({first.error.name()})",
            )

    def delete(self, names: Sequence[str]) -> None:
        """The groups and their committed offsets are gone."""
        self._require(names)
        futures = self._admin.client.delete_consumer_groups(list(names), request_timeout=self._admin.timeout_s)
        self._admin.settle(futures, "delete group {name}", lambda name, _: self._busy(name))

    # -- how it is asked ----------------------------------------------------------------------------------------

    def _listed(self) -> tuple[Group, ...]:
        """What every live broker says of the groups it coordinates; a broker that died a moment ago has none."""
        answers = self._admin.ask_each(
            self._admin.live_brokers(), lambda client, broker: client.list_groups(broker_ids=[broker])
        )
        if not answers:
            raise Failed("no broker has listed its groups", why="no broker answered in time, or none allows it")
        found = [
            Group(
                group["group_id"],
                group.get("group_type") or "classic",
                group.get("group_state") or "-",
                group["protocol_type"] or "-",
                broker,
            )
            for broker, groups in answers.items()
            for group in groups
        ]
        # While a group moves from one coordinator to another both may name it: the one where it lives counts.
        found.sort(key=lambda group: (group.group, group.state not in {"Dead", "Empty", "-"}))
        return tuple({group.group: group for group in found}.values())

    def _require(self, names: Sequence[str]) -> tuple[Group, ...]:
        known = {group.group: group for group in self._listed()}
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                raise NotFound(
                    f"there is no group {name!r}",
                    why=f"the nearest name is {near[0]!r}"
                    if near
                    else f"none of the cluster's {len(known)} has a similar name",
                    hint="headrace group list",
                )
        return tuple(known[name] for name in names)

    def _described(self, names: Sequence[str]) -> dict[str, Any]:
        if not names:
            return {}
        futures = self._admin.client.describe_consumer_groups(list(names), request_timeout=self._admin.timeout_s)
        return self._admin.settle(futures, "describe group {name}")

    def _committed(self, name: str) -> dict[TopicPartition, int]:
        from confluent_kafka import ConsumerGroupTopicPartitions

        futures = self._admin.client.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(name)], request_timeout=self._admin.timeout_s
        )
        answer = self._admin.settle(futures, "list the offsets of group {name}")[name]
        return {(p.topic, p.partition): p.offset for p in answer.topic_partitions if p.offset >= 0}

    def _offsets(self, name: str, members: Iterable[Member]) -> tuple[GroupOffset, ...]:
        committed = self._committed(name)
        readers = {place: member.member_id for member in members for place in member.assignment}
        places = self._whole_topics({*committed, *readers})
        begins, ends = self._admin.begins_and_ends(places)
        return tuple(
            GroupOffset(*place, committed.get(place), begins[place], ends[place], readers.get(place))
            for place in places
        )

    def _whole_topics(self, places: Iterable[TopicPartition]) -> tuple[TopicPartition, ...]:
        """These and the other partitions of their topics: what a group has never got to is shown too."""
        known = set(places)
        names = {name for name, _ in known}
        topics = self._admin.topics(internal=True) if names else ()
        return tuple(
            sorted(
                known | {(topic.name, p.partition) for topic in topics if topic.name in names for p in topic.partitions}
            )
        )

    def _places(self, topics: Sequence[tuple[str, int | None]]) -> tuple[TopicPartition, ...]:
        places: set[TopicPartition] = set()
        for name, wanted in topics:
            has = [p.partition for p in self._admin.topic(name).partitions]
            if wanted is not None and wanted not in has:
                raise UsageError(f"{name} has no partition {wanted}", why=f"it has {len(has)}: 0 to {len(has) - 1}")
            places.update((name, number) for number in ([wanted] if wanted is not None else has))
        return tuple(sorted(places))

    def _require_resettable(self, name: str) -> None:
        group = self._require([name])[0]
        if not group.describable:
            of_workers = group.protocol == "connect"
            kind = group.protocol if of_workers else group.type
            raise Failed(
                f"{name} is a {kind} group, and its offsets cannot be reset from here",
                why="its members are not consumers" if of_workers else "no Python client supports the request yet",
            )
        busy = self._busy(name)
        if busy:
            raise busy

    def _busy(self, name: str) -> HeadraceError | None:
        """The error that names the members, if the group has any."""
        try:
            found = self._described([name])[name]
        except HeadraceError:
            return None
        members = [member_of(member) for member in found.members]
        if not members and STATES.get(found.state.name) not in _REBALANCING:
            return None
        named = ", ".join(f"{m.client_id} at {m.host} ({m.member_id})" for m in members[:5])
        more = f" and {len(members) - 5} more" if len(members) > 5 else ""
        return Failed(
            f"the group {name} has {len(members)} member{'s' if len(members) != 1 else ''}: {named}{more}",
            why="offsets can be changed only while the group has no members: they would overwrite them",
            hint="stop them; one that was killed leaves the group after its session.timeout.ms",
        )


def member_of(member: Any) -> Member:
    """The member in a confluent-kafka MemberDescription."""
    assigned = member.assignment.topic_partitions if member.assignment else []
    return Member(
        member.member_id,
        member.client_id,
        member.host.removeprefix("/"),
        member.group_instance_id or None,
        tuple(sorted((p.topic, p.partition) for p in assigned)),
    )


def _target(to: ResetTo, committed: int | None, bounds: tuple[int, int], at: int | None) -> tuple[int, str | None]:
    """The offset that is meant, and a note if it is not the one that was named."""
    begin, end = bounds
    if to.kind == "beginning":
        return begin, None
    if to.kind == "end":
        return end, None
    if to.kind == "time":
        since = datetime.fromtimestamp(to.value / 1000).astimezone().isoformat(timespec="seconds")
        return (at, None) if at is not None else (end, f"no record since {since}: the end")
    if to.kind == "shift" and committed is None:
        raise UsageError(
            "there is nothing to shift from", why="the group has committed no offset", hint="--to beginning or end"
        )
    wanted = to.value if to.kind == "offset" else (committed or 0) + to.value
    if wanted < begin:
        return begin, f"{wanted} is before the first record: the beginning"
    if wanted > end:
        return end, f"{wanted} is after the last record: the end"
    return wanted, None
