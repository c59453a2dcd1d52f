"""What changed between two snapshots, in words: leaders, ISR, controller, brokers, membership, ownership, states.

Pure functions: two snapshots in, events out. Where one cause touches many topics (a broker dies), one event reports it
for the cluster and the events of the single topics are marked `minor`: they belong to the page of their topic.
A snapshot that reached no broker knows nothing about topics and groups, so nothing is concluded from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Literal

from headrace.kafka import Partition
from headrace.monitor.snapshot import BrokerView, GroupView, Snapshot, TopicView, View

Kind = Literal[
    "broker", "controller", "leader", "isr", "topic", "group", "member", "ownership", "connector", "schema", "pipeline",
    "node", "console",
]  # fmt: skip
Level = Literal["info", "warning", "error", "good"]

# More topics than this at once have one cause, and are reported once.
_TOLD_ONE_BY_ONE = 8
_NAMED = 12


class Event(View, frozen=True, kw_only=True):
    """Something that happened. `level` is good when something has mended."""

    at: float
    kind: Kind
    level: Level
    text: str
    topic: str | None = None
    group: str | None = None
    minor: bool = False


def changes(before: Snapshot | None, after: Snapshot) -> list[Event]:
    """The events that lie between the two, in the order in which they matter."""
    if before is None:
        return []
    found = [*_reachability(before, after), *_nodes(before, after)]
    if not after.reachable:
        return found
    found += [*_brokers(before, after), *_controller(before, after)]
    if before.topics or before.reachable:
        found += [*_topics(before, after)]
    found += [*_groups(before, after), *_services(before, after), *_pipelines(before, after)]
    return found


def _reachability(before: Snapshot, after: Snapshot) -> Iterator[Event]:
    if before.reachable and not after.reachable:
        yield Event(at=after.at, kind="console", level="error", text="no broker answers any more")
    elif after.reachable and not before.reachable and before.brokers:
        yield Event(at=after.at, kind="console", level="good", text="the cluster answers again")


def _nodes(before: Snapshot, after: Snapshot) -> Iterator[Event]:
    """Of services only: what a broker's process does shows in the broker."""
    was = {node.name: node.state for node in before.nodes}
    for node in after.nodes:
        old = was.get(node.name)
        if node.node_id is None and old not in (None, node.state):
            level: Level = "good" if node.state == "running" else "error" if node.state == "dead" else "warning"
            yield Event(at=after.at, kind="node", level=level, text=f"{node.name} is {node.state}, was {old}")


def _brokers(before: Snapshot, after: Snapshot) -> Iterator[Event]:
    was = {broker.broker_id: broker for broker in before.brokers}
    levels: Mapping[str, Level] = {"up": "good", "quiet": "warning", "down": "error"}
    words = {"up": "is up", "quiet": "does not answer", "down": "is down"}
    for broker in after.brokers:
        old = was.get(broker.broker_id)
        if old is None and was:
            yield _broker_event(after.at, broker, "info", "has joined the cluster")
        elif old is not None and old.state != broker.state:
            yield _broker_event(after.at, broker, levels[broker.state], words[broker.state])
    for broker_id in was.keys() - {broker.broker_id for broker in after.brokers}:
        yield Event(at=after.at, kind="broker", level="warning", text=f"broker {broker_id} has left the cluster")


def _broker_event(at: float, broker: BrokerView, level: Level, text: str) -> Event:
    return Event(at=at, kind="broker", level=level, text=f"broker {broker.broker_id} {text}")


def _controller(before: Snapshot, after: Snapshot) -> Iterator[Event]:
    old, new = before.controller_id, after.controller_id
    if new is not None and new >= 0 and old is not None and old != new:
        epoch = after.quorum.leader_epoch if after.quorum else 0
        text = f"controller: {old} → {new} (epoch {epoch})"
        yield Event(at=after.at, kind="controller", level="warning", text=text)


# -- topics -----------------------------------------------------------------------------------------------------


def _topics(before: Snapshot, after: Snapshot) -> Iterator[Event]:
    for name in sorted(after.topics.keys() - before.topics.keys()):
        found = after.topics[name]
        if before.reachable and not found.internal:
            text = f"{name} was created: {len(found.partitions)} partitions, {found.replication} replicas"
            yield Event(at=after.at, kind="topic", level="info", text=text, topic=name)
    for name in sorted(before.topics.keys() - after.topics.keys()):
        if not before.topics[name].internal:
            yield Event(at=after.at, kind="topic", level="info", text=f"{name} was deleted", topic=name)
    leaders: list[tuple[TopicView, list[tuple[Partition, Partition]]]] = []
    isrs: list[tuple[TopicView, list[tuple[Partition, Partition]]]] = []
    for name, new in after.topics.items():
        old = before.topics.get(name)
        if old is None or old is new:
            continue
        if len(new.partitions) > len(old.partitions):
            text = f"{name} has grown from {len(old.partitions)} to {len(new.partitions)} partitions"
            yield Event(at=after.at, kind="topic", level="info", text=text, topic=name)
        pairs = list(zip(old.partitions, new.partitions, strict=False))
        moved = [(a, b) for a, b in pairs if a.leader != b.leader]
        if moved:
            leaders.append((new, moved))
        changed = [(a, b) for a, b in pairs if a.isr != b.isr]
        if changed:
            isrs.append((new, changed))
    yield from _leader_events(after.at, leaders)
    yield from _isr_events(after.at, isrs)


def _leader_events(at: float, moved: list[tuple[TopicView, list[tuple[Partition, Partition]]]]) -> Iterator[Event]:
    many = len(moved) > _TOLD_ONE_BY_ONE
    if many:
        routes = Counter((a.leader, b.leader) for _, pairs in moved for a, b in pairs)
        lost = sum(count for (_, new), count in routes.items() if new < 0)
        changes = ", ".join(f"{count} from {_who(a)} to {_who(b)}" for (a, b), count in routes.most_common(4))
        text = f"leaders of {sum(routes.values())} partitions in {len(moved)} topics moved: {changes}"
        yield Event(at=at, kind="leader", level="error" if lost else "warning", text=text)
    for topic, pairs in moved:
        changes = ", ".join(f"{b.partition}: {_who(a.leader)} → {_who(b.leader)}" for a, b in pairs[:_NAMED])
        level: Level = "error" if any(b.leader < 0 for _, b in pairs) else "warning"
        text = f"{topic.name}: leader of {changes}{_rest(len(pairs))}"
        yield Event(at=at, kind="leader", level=level, text=text, topic=topic.name, minor=many or topic.internal)


def _isr_events(at: float, changed: list[tuple[TopicView, list[tuple[Partition, Partition]]]]) -> Iterator[Event]:
    many = len(changed) > _TOLD_ONE_BY_ONE
    if many:
        pairs = [pair for _, of_topic in changed for pair in of_topic]
        left = Counter(broker for a, b in pairs for broker in set(a.isr) - set(b.isr))
        joined = Counter(broker for a, b in pairs for broker in set(b.isr) - set(a.isr))
        changes = [f"broker {broker} left {count}" for broker, count in sorted(left.items())]
        changes += [f"broker {broker} is back in {count}" for broker, count in sorted(joined.items())]
        text = f"ISR of {len(pairs)} partitions in {len(changed)} topics: {', '.join(changes)}"
        yield Event(at=at, kind="isr", level="warning" if left else "good", text=text)
    for topic, pairs in changed:
        told_one = ", ".join(f"{b.partition}: {_ids(a.isr)} → {_ids(b.isr)}" for a, b in pairs[:_NAMED])
        shrunk = any(len(b.isr) < len(a.isr) for a, b in pairs)
        text = f"{topic.name}: ISR of {told_one}{_rest(len(pairs))}"
        level: Level = "warning" if shrunk else "good"
        yield Event(at=at, kind="isr", level=level, text=text, topic=topic.name, minor=many or topic.internal)


def _who(broker: int) -> str:
    return "no broker" if broker < 0 else str(broker)


def _ids(brokers: tuple[int, ...]) -> str:
    return "[" + ",".join(map(str, brokers)) + "]"


def _rest(count: int) -> str:
    return f" and {count - _NAMED} more" if count > _NAMED else ""


# -- groups -----------------------------------------------------------------------------------------------------

Owners = dict[tuple[str, int], tuple[str, str]]


def owners(group: GroupView) -> Owners:
    """Which member has which partition: member id and client id by topic and partition."""
    return {
        place: (member.member_id, member.client_id) for member in group.members or () for place in member.partitions
    }


def _groups(before: Snapshot, after: Snapshot) -> Iterator[Event]:
    for name in sorted(before.groups.keys() - after.groups.keys()):
        yield Event(at=after.at, kind="group", level="info", text=f"group {name} is gone", group=name)
    for name, new in after.groups.items():
        old = before.groups.get(name)
        if old is None:
            if before.reachable:
                yield Event(at=after.at, kind="group", level="info", text=f"group {name} is new", group=name)
        elif old is not new:
            yield from _group(after.at, old, new)


def _group(at: float, old: GroupView, new: GroupView) -> Iterator[Event]:
    name = new.group
    if old.state != new.state:
        level: Level = "info" if new.state in {"Stable", "Empty"} else "warning"
        yield Event(at=at, kind="group", level=level, text=f"group {name}: {old.state} → {new.state}", group=name)
    if old.members is None or new.members is None:
        return
    was, now = ({m.member_id: m.client_id for m in group.members or ()} for group in (old, new))
    for member in now.keys() - was.keys():
        yield Event(at=at, kind="member", level="info", text=f"{now[member]} joined group {name}", group=name)
    for member in was.keys() - now.keys():
        yield Event(at=at, kind="member", level="warning", text=f"{was[member]} left group {name}", group=name)
    owned, owns = owners(old), owners(new)
    moved = sorted(place for place in owned.keys() | owns.keys() if owned.get(place) != owns.get(place))
    if moved:
        changes = ", ".join(_handed_over(place, owned.get(place), owns.get(place)) for place in moved[:_NAMED])
        text = f"group {name}: {changes}{_rest(len(moved))}"
        yield Event(at=at, kind="ownership", level="info", text=text, group=name)


def _handed_over(place: tuple[str, int], old: tuple[str, str] | None, new: tuple[str, str] | None) -> str:
    """Members of one client's name are distinguished by the end of their ids."""
    alike = old is not None and new is not None and old[1] == new[1]
    names = [f"{m[1]} …{m[0][-4:]}" if m and alike else m[1] if m else "no member" for m in (old, new)]
    return f"{place[0]}/{place[1]}: {names[0]} → {names[1]}"


# -- what stands beside -----------------------------------------------------------------------------------------


def _services(before: Snapshot, after: Snapshot) -> Iterator[Event]:
    if before.subjects is not None and after.subjects is not None:
        was = {s.subject: s.versions for s in before.subjects}
        for subject in after.subjects:
            old = was.get(subject.subject)
            if subject.subject not in was:
                text = f"schema subject {subject.subject} was registered"
                yield Event(at=after.at, kind="schema", level="info", text=text)
            elif old and subject.versions and old[-1] != subject.versions[-1]:
                text = f"schema {subject.subject} has version {subject.versions[-1]}"
                yield Event(at=after.at, kind="schema", level="info", text=text)
    if before.connectors is not None and after.connectors is not None:
        states = {c.name: c.shown_state for c in before.connectors}
        for connector in after.connectors:
            state, earlier = connector.shown_state, states.get(connector.name)
            if earlier != state:
                level: Level = "error" if state == "FAILED" else "info"
                changes = f", was {earlier}" if earlier else ""
                text = f"connector {connector.name} is {state}{changes}"
                yield Event(at=after.at, kind="connector", level=level, text=text)


def _pipelines(before: Snapshot, after: Snapshot) -> Iterator[Event]:
    was = {p.name: p.state for p in before.pipelines}
    for pipeline in after.pipelines:
        old = was.get(pipeline.name)
        if old is not None and old != pipeline.state:
            level: Level = "error" if pipeline.state == "failed" else "info"
            text = f"pipeline {pipeline.name} is {pipeline.state}, was {old}"
            yield Event(at=after.at, kind="pipeline", level=level, text=text)
