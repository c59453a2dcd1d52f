"""Consumer groups: who reads what, how far they have got, and where they go on.

All types are listed: classic, consumer (KIP-848), share and streams. Members and committed offsets are known of the
first two; no Python client speaks the requests for the others yet, so theirs are None.
A group is never changed while it has members: they would overwrite the change with their next commit.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from headrace.errors import Failed, HeadraceError, NotFound, UsageError
from headrace.kafka.asking import Questions
from headrace.kafka.bounds import Start
from headrace.kafka.model import Group, Member, Offset, TopicPartition, known_total, whole_topics

if TYPE_CHECKING:
    from confluent_kafka.admin import ConsumerGroupDescription, MemberDescription

# librdkafka's names of the states, in Kafka's own words; those it does not know are taken from the listing.
STATES = {
    "PREPARING_REBALANCING": "PreparingRebalance",
    "COMPLETING_REBALANCING": "CompletingRebalance",
    "STABLE": "Stable",
    "DEAD": "Dead",
    "EMPTY": "Empty",
}
_REBALANCING = {"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"}


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
    """The groups of a Kafka: `Kafka(…).groups`."""

    def __init__(self, kafka: Questions) -> None:
        self._kafka = kafka

    def list(self) -> tuple[Group, ...]:
        """The groups of all types by name, with their members."""
        found = self._listed()
        described = self._described([group.group for group in found if group.describable])
        return tuple(replace(g, members=_members_of(described[g.group])) if g.group in described else g for g in found)

    def describe(self, name: str) -> Group:
        """State, members and lag of the group; one that does not exist is an error with the nearest name.

        kafka.groups.describe("reporting").lag
        """
        listed = self._require([name])[0]
        if not listed.describable:
            return listed
        found = self._described([name])[name]
        described = replace(
            listed,
            state=STATES.get(found.state.name, listed.state),
            assignor=found.partition_assignor or None,
            coordinator=found.coordinator.id,
            members=_members_of(found),
        )
        offsets = self._offsets(described)
        return replace(described, offsets=offsets, lag=known_total(offset.lag for offset in offsets))

    def plan_reset(
        self, name: str, to: ResetTo, topics: Sequence[tuple[str, int | None]] = ()
    ) -> tuple[PlannedOffset, ...]:
        """What a reset would commit; nothing is changed. Without topics: those in which the group has an offset.

        kafka.groups.plan_reset("reporting", ResetTo.parse("-1h"), [("breadcrumbs", None)])
        """
        self._require_resettable(name)
        committed = self._committed(name)
        if topics:
            places = self._places(topics)
        else:
            places = sorted(committed) if to.kind == "shift" else self._whole_topics(committed)
        if not places:
            raise UsageError(
                f"the group {name} has committed no offset, so it is not known what to reset",
                hint=f"name the topics: headrace group reset {name} --topic T",
            )
        begins, ends = self._kafka.begins_and_ends(places)
        at = self._kafka.offsets_at(places, to.value) if to.kind == "time" else {}
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

        kafka.groups.reset("reporting", kafka.groups.plan_reset("reporting", ResetTo("beginning")))
        """
        from confluent_kafka import ConsumerGroupTopicPartitions
        from confluent_kafka import TopicPartition as At

        # Asked again: between the plan and now somebody may have joined.
        self._require_resettable(name)
        wanted = ConsumerGroupTopicPartitions(name, [At(p.topic, p.partition, p.target) for p in plan])
        futures = self._kafka.client.alter_consumer_group_offsets([wanted], request_timeout=self._kafka.timeout_s)
        answer = self._kafka.settle(futures, f"reset group {name}", lambda *_: self._busy(name))[name]
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
        futures = self._kafka.client.delete_consumer_groups(list(names), request_timeout=self._kafka.timeout_s)
        self._kafka.settle(futures, "delete group {name}", lambda name, _: self._busy(name))

    # -- how it is asked ----------------------------------------------------------------------------------------

    def _listed(self) -> tuple[Group, ...]:
        """What every live broker says of the groups it coordinates; a broker that died a moment ago has none."""
        answers = self._kafka.ask_each(
            self._kafka.live_brokers(), lambda client, broker: client.list_groups(broker_ids=[broker])
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

    def _described(self, names: Sequence[str]) -> dict[str, ConsumerGroupDescription]:
        if not names:
            return {}
        futures = self._kafka.client.describe_consumer_groups(list(names), request_timeout=self._kafka.timeout_s)
        return self._kafka.settle(futures, "describe group {name}")

    def _committed(self, name: str) -> dict[TopicPartition, int]:
        from confluent_kafka import ConsumerGroupTopicPartitions

        futures = self._kafka.client.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(name)], request_timeout=self._kafka.timeout_s
        )
        answer = self._kafka.settle(futures, "list the offsets of group {name}")[name]
        return {(p.topic, p.partition): p.offset for p in answer.topic_partitions if p.offset >= 0}

    def _offsets(self, group: Group) -> tuple[Offset, ...]:
        committed, readers = self._committed(group.group), group.readers
        places = self._whole_topics({*committed, *readers})
        begins, ends = self._kafka.begins_and_ends(places)

        def offset(place: TopicPartition) -> Offset:
            at, begin, end, member = committed.get(place), begins[place], ends[place], readers.get(place)
            return Offset(
                *place, at, begin, end, Offset.lag_of(at, begin, end),
                member_id=member.member_id if member else None, client_id=member.client_id if member else None,
            )  # fmt: skip

        return tuple(map(offset, places))

    def _whole_topics(self, places: Iterable[TopicPartition]) -> Sequence[TopicPartition]:
        wanted = set(places)
        topics = self._kafka.topics(internal=True) if wanted else ()
        return whole_topics(wanted, {topic.name: topic for topic in topics})

    def _places(self, topics: Sequence[tuple[str, int | None]]) -> Sequence[TopicPartition]:
        places: set[TopicPartition] = set()
        for name, wanted in topics:
            has = [p.partition for p in self._kafka.topic(name).partitions]
            if wanted is not None and wanted not in has:
                raise UsageError(f"{name} has no partition {wanted}", why=f"it has {len(has)}: 0 to {len(has) - 1}")
            places.update((name, number) for number in ([wanted] if wanted is not None else has))
        return sorted(places)

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
        members = _members_of(found)
        if not members and STATES.get(found.state.name) not in _REBALANCING:
            return None
        named = ", ".join(f"{m.client_id} at {m.host} ({m.member_id})" for m in members[:5])
        more = f" and {len(members) - 5} more" if len(members) > 5 else ""
        return Failed(
            f"the group {name} has {len(members)} member{'s' if len(members) != 1 else ''}: {named}{more}",
            why="offsets can be changed only while the group has no members: they would overwrite them",
            hint="stop them; one that was killed leaves the group after its session.timeout.ms",
        )


def member_of(member: MemberDescription) -> Member:
    """The member in a confluent-kafka MemberDescription."""
    assigned = member.assignment.topic_partitions if member.assignment else []
    return Member(
        member.member_id,
        member.client_id,
        member.host.removeprefix("/"),
        member.group_instance_id or None,
        tuple(sorted((p.topic, p.partition) for p in assigned)),
    )


def _members_of(group: ConsumerGroupDescription) -> tuple[Member, ...]:
    return tuple(sorted(map(member_of, group.members), key=lambda member: (member.client_id, member.member_id)))


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
