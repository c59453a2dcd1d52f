"""Acknowledged records that are gone from a broker's files are named when it starts."""

from __future__ import annotations

import os
from collections.abc import Callable

from headrace import Admin, produce
from headrace.cluster import Cluster
from headrace.cluster.segments import partitions_in, segments_in
from headrace.runtime.waiting import eventually
from tests.conftest import Headrace


def test_a_log_that_was_cut_off_is_named_and_filled_again(
    headrace_faults: Cluster, headrace_topic: Callable[..., str], run: Headrace
) -> None:
    cluster, topic = headrace_faults, headrace_topic(replication=3)
    produce(cluster, topic, [f"record {number}" for number in range(3000)])
    admin = Admin(cluster)
    partition = admin.topic(topic).partitions[0]
    victim = next(broker for broker in partition.replicas if broker != partition.leader)
    # A follower hears of the high watermark with its next fetch, and notes it every five seconds.
    noted = cluster.home.node(f"broker-{victim}") / "data" / "replication-offset-checkpoint"
    eventually(lambda: f"{topic} 0 3000" in noted.read_text(encoding="utf-8"), 60)
    cluster.stop(victim)
    [segment] = segments_in(partitions_in(cluster.home.node(f"broker-{victim}") / "data", topic)[0])
    assert segment.next_offset == 3000
    os.truncate(segment.log, segment.size_bytes // 2)
    end = segment.next_offset
    assert end < 3000

    started = run("start", victim, home=cluster.home.root)
    assert started.code == 0
    others = ", ".join(f"broker-{broker}" for broker in sorted(partition.replicas) if broker != victim)
    assert f"{3000 - end} acknowledged records of {topic}-0 are gone from broker-{victim}" in started.err
    assert f"{others} still hold them" in started.err
    eventually(lambda: len(admin.topic(topic).partitions[0].isr) == 3 and segment.next_offset == 3000, 60)
    cluster.stop(victim)
    assert "are gone" not in run("start", victim, home=cluster.home.root).err
