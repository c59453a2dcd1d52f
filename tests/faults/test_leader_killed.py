"""SIGKILL of a leader under load.

Every record that was acknowledged (acks=all, idempotent producer) is read back: acked ⊆ read. None is read twice, and
the records of a key are read in the order in which they were written. That holds for each broker, and for the one
which is the active controller too: then the cluster must first elect a new controller before it can elect a leader.
How long some partition took no writes is recorded and printed, not asserted: a busy machine says nothing about it.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable

import pytest

from headrace.cluster import Cluster
from headrace.runtime.waiting import eventually
from tests.faults.writer import Writer
from tests.records import Record, leaders, read

_PARTITIONS = 3


@pytest.mark.parametrize("which", ["broker-1", "broker-2", "broker-3", "active controller"])
def test_no_acknowledged_record_is_lost_doubled_or_disordered(
    headrace_faults: Cluster,
    headrace_topic: Callable[..., str],
    record_property: Callable[[str, object], None],
    which: str,
) -> None:
    cluster = headrace_faults
    topic = headrace_topic(partitions=_PARTITIONS, replication=3)
    controller = cluster.status().controller
    victim = cluster.spec.node(str(controller) if which == "active controller" else which)
    assert victim.node_id in leaders(cluster.bootstrap, topic).values()

    with Writer(cluster, topic, _PARTITIONS) as writer:
        eventually(lambda: writer.has_written(200), 60)
        killed = time.monotonic()
        cluster.kill(victim.name)
        eventually(lambda: writer.has_written(200, since=killed + 1.0), 60)
        cluster.start(victim.name)
        eventually(lambda: cluster.status().state == "up", 60)
    assert writer.failures == []

    gap = writer.longest_gap_s()
    record_property("longest_gap_s", round(gap, 2))
    role = "leader and active controller" if victim.node_id == controller else "leader"
    print(f"\n{victim.name} ({role}) killed: longest gap in acknowledgements {gap:.2f} s")
    found = read(cluster.bootstrap, topic)
    require_all_read(writer, found, victim.name)
    require_none_twice(found)
    require_order_per_key(found)


def require_all_read(writer: Writer, found: list[Record], victim: str) -> None:
    there = {(record.partition, record.key, record.value) for record in found}
    for partition, records in writer.acknowledged.items():
        assert records
        lost = [pair for pair in records if (partition, *pair) not in there]
        assert not lost, f"partition {partition} lost {len(lost)} acknowledged records with {victim}, first {lost[0]}"


def require_none_twice(found: list[Record]) -> None:
    twice = [pair for pair, times in Counter((record.key, record.value) for record in found).items() if times > 1]
    assert not twice, f"{len(twice)} records were written twice, {twice[0]} among them"


def require_order_per_key(found: list[Record]) -> None:
    by_key: dict[bytes | None, list[int]] = defaultdict(list)
    for record in found:
        by_key[record.key].append(int(record.value))
    for key, sequence in by_key.items():
        assert sequence == list(range(len(sequence))), f"the records of key {key!r} are not in order"
