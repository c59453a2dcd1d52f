"""What is concluded from two snapshots."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from headrace.connect import Task
from headrace.kafka import Member, Partition, Quorum
from headrace.monitor.events import changes
from headrace.monitor.snapshot import (
    BrokerView,
    ConnectorView,
    GroupView,
    Snapshot,
    TopicView,
)


def broker(number: int, state: Any = "up") -> BrokerView:
    return BrokerView(
        broker_id=number, host="127.0.0.1", port=9092, rack=None, state=state, controller=False, leaders=0, replicas=0,
        out_of_sync=0,
    )  # fmt: skip


def topic(name: str, *partitions: tuple[int, tuple[int, ...]]) -> TopicView:
    made = tuple(
        Partition(partition=at, leader=leader, replicas=(1, 2, 3), isr=isr)
        for at, (leader, isr) in enumerate(partitions)
    )
    return TopicView(
        name=name, internal=False, partitions=made, replication=3,
        under_replicated=sum(p.under_replicated for p in made), offline=sum(p.leader < 0 for p in made),
    )  # fmt: skip


def group(name: str, state: str = "Stable", **owned: tuple[tuple[str, int], ...]) -> GroupView:
    members = tuple(
        Member(member_id=f"{client}-id", client_id=client, host="h", instance_id=None, partitions=places)
        for client, places in owned.items()
    )
    return GroupView(group=name, type="classic", state=state, protocol="consumer", coordinator=1, members=members)


def snapshot(**parts: Any) -> Snapshot:
    topics = {t.name: t for t in parts.pop("topics", ())}
    groups = {g.group: g for g in parts.pop("groups", ())}
    known: dict[str, Any] = {
        "at": 10.0, "took_s": 0.1, "every_s": 2.0, "reachable": True, "bootstrap": "b",
        "brokers": (broker(1), broker(2), broker(3)),
    }  # fmt: skip
    return Snapshot(**{**known, **parts}, topics=topics, groups=groups)


def told(before: Snapshot, after: Snapshot) -> list[tuple[str, str, str]]:
    return [(e.kind, e.level, e.text) for e in changes(before, after) if not e.minor]


def test_a_broker_that_goes_and_comes_back() -> None:
    up, down = snapshot(), snapshot(brokers=(broker(1), broker(2, "down"), broker(3)))
    assert told(up, down) == [("broker", "error", "broker 2 is down")]
    assert told(down, up) == [("broker", "good", "broker 2 is up")]


def test_leaders_and_isr_of_one_topic_are_told_by_partition() -> None:
    before = snapshot(topics=[topic("orders", (1, (1, 2, 3)), (2, (1, 2, 3)))])
    after = snapshot(topics=[topic("orders", (1, (1, 3)), (3, (1, 3)))])
    assert told(before, after) == [
        ("leader", "warning", "orders: leader of 1: 2 → 3"),
        ("isr", "warning", "orders: ISR of 0: [1,2,3] → [1,3], 1: [1,2,3] → [1,3]"),
    ]
    assert told(after, before)[1][:2] == ("isr", "good")


def test_a_partition_without_a_leader_is_an_error() -> None:
    before, after = snapshot(topics=[topic("t", (1, (1,)))]), snapshot(topics=[topic("t", (-1, (1,)))])
    assert told(before, after) == [("leader", "error", "t: leader of 0: 1 → no broker")]


def test_many_topics_at_once_are_one_event_and_the_rest_is_minor() -> None:
    before = snapshot(topics=[topic(f"t{n}", (2, (1, 2, 3))) for n in range(50)])
    after = snapshot(topics=[topic(f"t{n}", (1, (1, 3))) for n in range(50)])
    assert [text for _, _, text in told(before, after)] == [
        "leaders of 50 partitions in 50 topics moved: 50 from 2 to 1",
        "ISR of 50 partitions in 50 topics: broker 2 left 50",
    ]
    minor = [e for e in changes(before, after) if e.minor and e.topic == "t7"]
    assert [e.kind for e in minor] == ["leader", "isr"]


def test_topics_come_grow_and_go() -> None:
    none, small = snapshot(), snapshot(topics=[topic("t", (1, (1,)))])
    large = snapshot(topics=[topic("t", (1, (1,)), (2, (2,)))])
    assert told(none, small) == [("topic", "info", "t was created: 1 partitions, 3 replicas")]
    assert told(small, large) == [("topic", "info", "t has grown from 1 to 2 partitions")]
    assert told(large, none) == [("topic", "info", "t was deleted")]


def test_the_controller_moves() -> None:
    one = Quorum(leader_id=1, leader_epoch=3, high_watermark=5, voters=())
    before, after = snapshot(quorum=one), snapshot(quorum=replace(one, leader_id=3, leader_epoch=4))
    assert told(before, after) == [("controller", "warning", "controller: 1 → 3 (epoch 4)")]
    assert told(before, snapshot(quorum=None)) == [], "not to know is no change"


def test_members_and_what_they_own() -> None:
    before = snapshot(groups=[group("g", a=(("t", 0), ("t", 1)))])
    after = snapshot(groups=[group("g", a=(("t", 0),), b=(("t", 1),))])
    assert told(before, after) == [
        ("member", "info", "b joined group g"),
        ("ownership", "info", "group g: t/1: a → b"),
    ]
    gone = told(after, snapshot(groups=[group("g", "Empty")]))
    assert ("member", "warning", "a left group g") in gone
    assert ("group", "info", "group g: Stable → Empty") in gone


def test_nothing_is_concluded_from_a_look_that_reached_nobody() -> None:
    before = snapshot(topics=[topic("t", (1, (1,)))], groups=[group("g")])
    away = snapshot(reachable=False, topics=before.topics.values(), groups=before.groups.values())
    assert told(before, away) == [("console", "error", "no broker answers any more")]
    assert told(away, before) == [("console", "good", "the cluster answers again")]


def test_a_connector_fails() -> None:
    def connector(state: str) -> ConnectorView:
        task = Task(task=0, state=state, worker="w")
        return ConnectorView(name="lines", kind="source", state="RUNNING", worker="w", tasks=(task,))

    before, after = snapshot(connectors=(connector("RUNNING"),)), snapshot(connectors=(connector("FAILED"),))
    assert told(before, after) == [("connector", "error", "connector lines is FAILED, was RUNNING")]


def test_the_first_look_has_nothing_to_compare_with() -> None:
    assert changes(None, snapshot(topics=[topic("t", (1, (1,)))])) == []
