"""The sampler against real brokers: its numbers are Kafka's."""

from __future__ import annotations

import gc
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from headrace.cluster import Cluster
from headrace.kafka import Broker, Kafka, Start, survey
from headrace.kafka.client import HasBootstrap, connect
from headrace.kafka.survey import Survey, leaders_of
from headrace.kafka.write.producer import produce
from headrace.monitor import prometheus_text
from headrace.monitor.history import History
from headrace.monitor.poller import Poller, Target
from headrace.monitor.sampler import Sampler
from headrace.monitor.snapshot import Snapshot
from headrace.runtime.waiting import eventually

MakeTopic = Callable[..., str]


@pytest.fixture
def sampler(headrace_cluster: HasBootstrap, tmp_path: Path) -> Iterator[Sampler]:
    history = History(tmp_path / "history.sqlite")
    cluster = headrace_cluster if isinstance(headrace_cluster, Cluster) else None
    made = Sampler(Target(connect(headrace_cluster), cluster), history)
    yield made
    made.stop()
    history.close()
    gc.collect()  # see test_groups_stay_while_their_coordinator_is_away


def look(sampler: Sampler, *, times: int = 1) -> Snapshot:
    for _ in range(times):
        sampler._poller.everything_is_due()
        found = sampler.sample()
    return found


def test_a_survey_tells_what_the_admin_tells(headrace_cluster: HasBootstrap, headrace_topic: MakeTopic) -> None:
    topic = headrace_topic(partitions=4)
    produce(headrace_cluster, topic, (str(n) for n in range(1000)))
    with Survey(headrace_cluster) as survey, Kafka(headrace_cluster) as admin:
        seen = survey.metadata()
        described = admin.describe(topic)
        assert {b.broker_id for b in seen.brokers if not b.fenced} == set(admin.live_brokers())
        assert [(p.partition, p.leader, p.replicas, set(p.isr)) for p in seen.topics[topic].partitions] == [
            (p.partition, p.leader, p.replicas, set(p.isr)) for p in described.partitions
        ]
        leaders = leaders_of([seen.topics[topic]])
        assert sum(survey.offsets(leaders, Start("end")).values()) == 1000
        assert sum(survey.offsets(leaders, Start("beginning")).values()) == 0
        disks = survey.disks(b.broker_id for b in seen.brokers)
        assert sum(disk.partitions.get((topic, p), 0) for disk in disks.values() for p in range(4)) == sum(
            count or 0 for p in described.partitions for count in p.replica_bytes
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
        with Kafka(headrace_cluster) as admin, Kafka(headrace_cluster) as kafka:
            described, wanted = admin.describe(topic), kafka.groups.describe(group)
        view, of_group = now.topics[topic], now.groups[group]
        assert view.offsets == described.offsets == 900
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
    from headrace.kafka import PlannedOffset

    with Kafka(headrace_cluster) as kafka:
        produce(headrace_cluster, topic, ["first"])
        consumer.subscribe([topic])
        eventually(lambda: consumer.poll(0.2) is None and bool(consumer.assignment()), 20)
        consumer.close()
        kafka.groups.reset(group, [PlannedOffset(topic, 0, None, 1)])
        eventually(lambda: group in look(sampler).groups, 10)
        assert sampler.latest.groups[group].lag_s == 0
        produce(headrace_cluster, topic, (str(n) for n in range(500)))
        eventually(lambda: look(sampler).groups[group].lag == 500, 10)
        behind = sampler.latest
        assert (behind.topics[topic].in_per_s or 0) > 0
        assert not behind.groups[group].lag_s_at_least
        first = behind.groups[group].lag_s or 0.0
        eventually(lambda: (look(sampler).groups[group].lag_s or 0) > first + 0.5, 10)
        kafka.groups.reset(group, [PlannedOffset(topic, 0, None, 501)])
        caught_up = look(sampler, times=2).groups[group]
        assert (caught_up.lag, caught_up.lag_s) == (0, 0)
        assert (caught_up.read_per_s or 0) > 0


@pytest.mark.parametrize(
    ("fenced", "quiet", "state"), [(True, True, "down"), (False, True, "quiet"), (False, False, "up")]
)
def test_a_foreign_broker_that_the_controller_gave_up_is_down(
    monkeypatch: pytest.MonkeyPatch, fenced: bool, quiet: bool, state: str
) -> None:
    poller = Poller(Target(connect("127.0.0.1:1")), None)  # type: ignore[arg-type]
    monkeypatch.setattr(poller.survey, "quiet", lambda _: quiet)
    assert poller._state(Broker(1, "127.0.0.1", 1, None, fenced), None) == state


# kafka-python leaves the sockets of refused connections to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_groups_stay_while_their_coordinator_is_away(
    sampler: Sampler, headrace_faults: Cluster, headrace_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight groups, so that each broker coordinates some; then one of the brokers is killed, and comes back."""
    from confluent_kafka import KafkaException, TopicPartition

    topic, prefix = headrace_topic(partitions=3), f"group-{uuid.uuid4().hex[:8]}"
    produce(headrace_faults, topic, (str(n) for n in range(90)))
    names = {f"{prefix}-{number}" for number in range(8)}
    for name in names:
        with closing(connect(headrace_faults).consumer({"group.id": name})) as consumer:

            def commits(consumer: Any = consumer) -> bool:
                with suppress(KafkaException):  # a coordinator may have moved a moment ago
                    consumer.commit(offsets=[TopicPartition(topic, p, 0) for p in range(3)], asynchronous=False)
                    return True
                return False

            eventually(commits, 30)

    def watched() -> Snapshot:
        """A look; whatever it finds, no group is gone and none has come nearer to the end."""
        now = look(sampler)
        assert {name: now.groups[name].lag for name in names if name in now.groups} == dict.fromkeys(names, 90)
        return now

    eventually(lambda: names <= look(sampler).groups.keys(), 30)
    # On a busy machine a successor denies its groups for longer than the patience of a watch.
    monkeypatch.setattr(survey, "_DENIED_FOR_S", 120)
    victim = watched().groups[f"{prefix}-0"].coordinator
    headrace_faults.kill(victim)
    orphaned = watched().groups
    assert all(orphaned[name].stale for name in names if orphaned[name].coordinator == victim)
    eventually(lambda: not any(watched().groups[name].stale for name in names), 60)
    headrace_faults.start(victim)
    eventually(lambda: all(b.state == "up" for b in watched().brokers), 60)
    assert not [event for event in sampler.history.events() if event.group in names]
    monkeypatch.undo()
    with Kafka(headrace_faults) as kafka:
        kafka.groups.delete([f"{prefix}-0"])
    eventually(lambda: f"{prefix}-0" not in look(sampler).groups, 30)
    assert [event.text for event in sampler.history.events(group=f"{prefix}-0")] == [f"group {prefix}-0 is gone"]


def test_what_happens_is_written_down(
    sampler: Sampler, headrace_cluster: HasBootstrap, headrace_topic: MakeTopic
) -> None:
    look(sampler)
    topic = headrace_topic(partitions=2)
    look(sampler)
    assert sampler.history.events(topic=topic)[0].text.startswith(f"{topic} was created: 2 partitions")
    produce(headrace_cluster, topic, (str(n) for n in range(10)))
    look(sampler, times=2)
    assert sampler.history.series("topic", topic, "offsets", since=0)[-1][1] == 10
    assert (sampler.history.series("topic", topic, "bytes", since=0)[-1][1] or 0) > 0


def test_the_page_for_prometheus_can_be_read_line_by_line(
    sampler: Sampler, headrace_cluster: HasBootstrap, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic()
    produce(headrace_cluster, topic, ["a", "b", "c"])
    text = prometheus_text(look(sampler))
    line = re.compile(r'[a-z_]+(\{[a-z]+="(\\.|[^"\\])*"(,[a-z]+="(\\.|[^"\\])*")*\})? -?[0-9.e+-]+')
    for each in text.splitlines():
        assert each.startswith("#") or line.fullmatch(each), each
    assert f'headrace_topic_end_offset_total{{topic="{topic}"}} 3' in text
    assert "headrace_up 1" in text
