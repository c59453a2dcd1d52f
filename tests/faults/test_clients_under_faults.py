"""Our own consumer while the cluster goes away and comes back.

A reading "until the end" must not take an outage for the end: a group that lost its partitions with the brokers gets
them back with the brokers, so every record that was acknowledged is read before the reading says that it is done. And
a leader that hangs is as silent as a topic without writers, which is no reason to leave its records unread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from headrace.cluster import Cluster
from headrace.runtime.waiting import eventually
from headrace.transport.consume import ConsumeOptions, Reading, reading
from headrace.transport.offsets import Until
from headrace.transport.produce import produce
from tests.records import leaders

MakeTopic = Callable[..., str]

_RECORDS = 60_000
# Small steps, so that most records are still at the brokers when something happens to these.
_SMALL = {"session.timeout.ms": 6000, "max.partition.fetch.bytes": 5000, "queued.min.messages": 10}


def test_a_restart_of_the_whole_cluster_is_not_the_end(headrace_faults: Cluster, headrace_topic: MakeTopic) -> None:
    cluster = headrace_faults
    topic = headrace_topic(partitions=3, replication=3)
    _fill(cluster, topic)
    run = reading(cluster, [topic], options=ConsumeOptions(group=f"{topic}-g", settings=_SMALL))
    batches = run.batches()
    seen = {int(message.value()) for message in next(batches).messages}
    for node in cluster.nodes:
        cluster.kill(node)
    down = time.monotonic()
    eventually(lambda: time.monotonic() - down > 7, 20)
    cluster.up()
    for batch in batches:
        seen |= {int(message.value()) for message in batch.messages}
    assert seen == set(range(_RECORDS))


def test_a_hanging_leader_is_not_idle(headrace_faults: Cluster, headrace_topic: MakeTopic) -> None:
    cluster = headrace_faults
    topic = headrace_topic(replication=1)
    _fill(cluster, topic)
    run = reading(cluster, [topic], options=ConsumeOptions(until=Until("idle", 1.0), settings=_SMALL))
    seen: set[int] = set()
    reader = threading.Thread(target=_collect, args=(run, seen))
    leader = leaders(cluster.bootstrap, topic)[0]
    reader.start()
    eventually(lambda: bool(seen), 60)
    cluster.pause(leader)
    eventually(lambda: time.monotonic() - run.last_record > 4, 60)
    assert len(seen) < _RECORDS
    assert reader.is_alive(), "four times the silence, and the records are still there to be read"
    cluster.resume(leader)
    reader.join(120)
    assert seen == set(range(_RECORDS))


def _fill(cluster: Cluster, topic: str) -> None:
    assert produce(cluster, topic, (f"{n:0100}" for n in range(_RECORDS))).complete


def _collect(run: Reading, seen: set[int]) -> None:
    for batch in run.batches():
        seen.update(int(message.value()) for message in batch.messages)
