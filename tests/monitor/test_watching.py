"""The sampler against real brokers: its numbers are Kafka's."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.cluster import Cluster
from headrace.monitor import metrics
from headrace.monitor.history import History
from headrace.monitor.look import Target
from headrace.monitor.sampler import Sampler
from headrace.monitor.snapshot import Snapshot
from headrace.runtime.waiting import eventually
from headrace.transport.admin import Admin
from headrace.transport.client import HasBootstrap, connect
from headrace.transport.groups import Groups
from headrace.transport.produce import produce
from headrace.transport.survey import EARLIEST, LATEST, Survey, leaders_of

MakeTopic = Callable[..., str]


@pytest.fixture
def sampler(headrace_cluster: HasBootstrap, tmp_path: Path) -> Iterator[Sampler]:
    history = History(tmp_path / "history.sqlite")
    cluster = headrace_cluster if isinstance(headrace_cluster, Cluster) else None
    made = Sampler(Target(connect(headrace_cluster), cluster), history)
    yield made
    made.stop()
    history.close()


def look(sampler: Sampler, *, times: int = 1) -> Snapshot:
    for _ in range(times):
        sampler._looker.everything_is_due()
        found = sampler.sample()
    return found


def test_a_survey_tells_what_the_admin_tells(headrace_cluster: HasBootstrap, headrace_topic: MakeTopic) -> None:
    topic = headrace_topic(partitions=4)
    produce(headrace_cluster, topic, (str(n) for n in range(1000)))
    with Survey(headrace_cluster) as survey, Admin(headrace_cluster) as admin:
        seen = survey.metadata()
        described = admin.describe(topic)
        assert {b.broker_id for b in seen.brokers if not b.fenced} == set(admin.live_brokers())
        assert [(p.partition, p.leader, p.replicas, set(p.isr)) for p in seen.topics[topic]] == [
            (p.partition, p.leader, p.replicas, set(p.isr)) for p in described.partitions
        ]
        leaders = leaders_of(seen.topics, lambda name: name == topic)
        assert sum(survey.offsets(leaders, LATEST).values()) == 1000
        assert sum(survey.offsets(leaders, EARLIEST).values()) == 0
        disks = survey.disks(b.broker_id for b in seen.brokers)
        assert sum(disk.partitions.get((topic, p), 0) for disk in disks.values() for p in range(4)) == sum(
            count or 0 for p in described.partitions for count in p.size.replica_bytes.values()
        )
        assert survey.quorum() is not None


def test_a_snapshot_has_the_numbers_of_the_cluster(
    sampler: Sampler, headrace_cluster: HasBootstrap, headrace_topic: MakeTopic
) -> None:
    topic, group = headrace_topic(partitions=3), f"group-{uuid.uuid4().hex[:8]}"
    produce(headrace_cluster, topic, (str(n) for n in range(900)))
    consumer = connect(headrace_cluster).consumer(
        {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False, "client.id": "reader"}
    )
    consumer.subscribe([topic])
    try:
        messages = eventually(lambda: consumer.consume(200, 1.0), 20)
        consumer.commit(messages[-1], asynchronous=False)
        now = look(sampler)
        with Admin(headrace_cluster) as admin, Groups(headrace_cluster) as groups:
            described, wanted = admin.describe(topic), groups.describe(group)
        view, of_group = now.topics[topic], now.groups[group]
        assert view.records == described.records == 900
        assert view.size_bytes == described.size_bytes
        assert of_group.lag == wanted.lag
        assert of_group.state == wanted.state == "Stable"
        assert {(o.topic, o.partition): o.committed for o in of_group.offsets or ()} == {
            (o.topic, o.partition): o.committed for o in wanted.offsets or ()
        }
        assert [(m.client_id, set(m.partitions)) for m in of_group.members or ()] == [
            ("reader", {(topic, 0), (topic, 1), (topic, 2)})
        ]
        assert now.health in {"up", "degraded"}
        assert {b.state for b in now.brokers} == {"up"}
        assert now.controller_id is not None
    finally:
        consumer.close()


def test_a_group_of_the_new_protocol_has_members_too(
    sampler: Sampler, headrace_cluster: HasBootstrap, headrace_topic: MakeTopic
) -> None:
    topic, group = headrace_topic(partitions=2), f"group-{uuid.uuid4().hex[:8]}"
    consumer = connect(headrace_cluster).consumer({"group.id": group, "group.protocol": "consumer", "client.id": "new"})
    consumer.subscribe([topic])
    try:

        def owned() -> bool:
            consumer.poll(0.1)
            found = look(sampler).groups.get(group)
            return bool(found and found.members and found.members[0].partitions == ((topic, 0), (topic, 1)))

        eventually(owned, 30)
        assert sampler.latest.groups[group].type == "consumer"
    finally:
        consumer.close()


def test_rates_and_lag_in_seconds_follow_the_records(
    sampler: Sampler, headrace_cluster: HasBootstrap, headrace_topic: MakeTopic
) -> None:
    topic, group = headrace_topic(), f"group-{uuid.uuid4().hex[:8]}"
    consumer = connect(headrace_cluster).consumer({"group.id": group, "enable.auto.commit": False})
    from headrace.transport.groups import PlannedOffset

    with Groups(headrace_cluster) as groups:
        produce(headrace_cluster, topic, ["first"])
        consumer.subscribe([topic])
        eventually(lambda: consumer.poll(0.2) is None and bool(consumer.assignment()), 20)
        consumer.close()
        groups.reset(group, [PlannedOffset(topic, 0, None, 1)])
        eventually(lambda: group in look(sampler).groups, 10)
        assert sampler.latest.groups[group].lag_s == 0
        produce(headrace_cluster, topic, (str(n) for n in range(500)))
        eventually(lambda: look(sampler).groups[group].lag == 500, 10)
        behind = sampler.latest
        assert (behind.topics[topic].in_per_s or 0) > 0
        assert not behind.groups[group].lag_s_at_least
        first = behind.groups[group].lag_s or 0.0
        eventually(lambda: (look(sampler).groups[group].lag_s or 0) > first + 0.5, 10)
        groups.reset(group, [PlannedOffset(topic, 0, None, 501)])
        caught_up = look(sampler, times=2).groups[group]
        assert (caught_up.lag, caught_up.lag_s) == (0, 0)
        assert (caught_up.read_per_s or 0) > 0


def test_what_happens_is_written_down(
    sampler: Sampler, headrace_cluster: HasBootstrap, headrace_topic: MakeTopic
) -> None:
    look(sampler)
    topic = headrace_topic(partitions=2)
    look(sampler)
    assert sampler.history.events(topic=topic)[0].text.startswith(f"{topic} was created: 2 partitions")
    produce(headrace_cluster, topic, (str(n) for n in range(10)))
    look(sampler, times=2)
    assert sampler.history.series("topic", topic, "records", since=0)[-1][1] == 10
    assert (sampler.history.series("topic", topic, "bytes", since=0)[-1][1] or 0) > 0


def test_the_page_for_prometheus_can_be_read_line_by_line(
    sampler: Sampler, headrace_cluster: HasBootstrap, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic()
    produce(headrace_cluster, topic, ["a", "b", "c"])
    text = metrics.text(look(sampler))
    line = re.compile(r'[a-z_]+(\{[a-z]+="(\\.|[^"\\])*"(,[a-z]+="(\\.|[^"\\])*")*\})? -?[0-9.e+-]+')
    for each in text.splitlines():
        assert each.startswith("#") or line.fullmatch(each), each
    assert f'headrace_topic_end_offset_total{{topic="{topic}"}} 3' in text
    assert "headrace_up 1" in text
