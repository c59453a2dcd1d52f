"""Acknowledged records that are gone from a broker's files are named when it starts."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

from headrace import Kafka, consume, produce
from headrace.cluster import Cluster
from headrace.cluster.losses import Loss, losses
from headrace.cluster.segments import partitions_in, segments_in
from headrace.runtime.waiting import eventually
from tests.conftest import Headrace
from tests.records import batch_of


def test_a_log_that_was_cut_off_is_named_and_filled_again(
    headrace_faults: Cluster, headrace_topic: Callable[..., str], run: Headrace
) -> None:
    cluster, topic = headrace_faults, headrace_topic(replication=3)
    produce(cluster, topic, [f"record {number}" for number in range(3000)])
    admin = Kafka(cluster)
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


def test_a_leaders_log_that_was_cut_off_does_not_empty_the_others(
    headrace_faults: Cluster, headrace_topic: Callable[..., str]
) -> None:
    """Who was stopped well stays eligible to lead: the broker that has lost records comes back as a follower."""
    cluster, topic = headrace_faults, headrace_topic(replication=3)
    produce(cluster, topic, [f"record {number}" for number in range(3000)])
    data = {broker: cluster.home.node(f"broker-{broker}") / "data" for broker in (1, 2, 3)}
    noted = [folder / "replication-offset-checkpoint" for folder in data.values()]
    eventually(lambda: all(f"{topic} 0 3000" in file.read_text(encoding="utf-8") for file in noted), 60)
    leader = Kafka(cluster).topic(topic).partitions[0].leader
    cluster.down()
    marks = [json.loads((folder / ".kafka_cleanshutdown").read_bytes()) for folder in data.values()]
    assert all(mark["brokerEpoch"] > 0 for mark in marks)
    [segment] = segments_in(partitions_in(data[leader], topic)[0])
    os.truncate(segment.log, segment.size_bytes // 2)

    cluster.up()
    assert sum(1 for _ in consume(cluster, topic)) == 3000
    eventually(lambda: len(Kafka(cluster).topic(topic).partitions[0].isr) == 3 and segment.next_offset == 3000, 60)


def data_folder(home: Path, name: str) -> Path:
    """Three segments of t-0, each with three batches of five records, all of them committed."""
    data = home / name
    (data / "t-0").mkdir(parents=True)
    (data / "replication-offset-checkpoint").write_text("0\n1\nt 0 45\n", encoding="utf-8")
    for base in (0, 15, 30):
        batches = [batch_of(b"", "none", base=base + number, records=5) for number in (0, 5, 10)]
        (data / "t-0" / f"{base:020}.log").write_bytes(b"".join(batches))
        index = struct.pack(">4i", 5, len(batches[0]), 10, 2 * len(batches[0]))
        (data / "t-0" / f"{base:020}.index").write_bytes(index)
    return data


def test_older_segments_are_looked_at_too(tmp_path: Path) -> None:
    folders = {name: data_folder(tmp_path, name) for name in ("broker-1", "broker-2")}
    found = folders["broker-1"] / "t-0"

    def missing() -> list[tuple[int, int, tuple[str, ...]]]:
        return [(loss.first, loss.behind, loss.holders) for loss in losses("broker-1", folders)]

    assert missing() == []
    os.truncate(found / f"{15:020}.log", (found / f"{15:020}.log").stat().st_size - 1)
    assert missing() == [(25, 30, ("broker-2",))]
    assert str(Loss("broker-1", "t-0", 25, 30, ("broker-2",))).startswith(
        "5 acknowledged records of t-0 are gone from broker-1: offsets 25 to 29; broker-2"
    )
    (found / f"{15:020}.log").unlink()
    os.truncate(found / f"{30:020}.log", 0)
    assert missing() == [(15, 30, ("broker-2",)), (30, 45, ("broker-2",))]
    # Compaction leaves gaps, but not at the end.
    (folders["broker-1"] / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 30\n", encoding="utf-8")
    assert missing() == [(30, 45, ("broker-2",))]


def test_a_damaged_list_of_offsets_says_nothing(tmp_path: Path) -> None:
    folders = {"broker-1": data_folder(tmp_path, "broker-1")}
    os.truncate(folders["broker-1"] / "t-0" / f"{30:020}.log", 0)
    noted = folders["broker-1"] / "replication-offset-checkpoint"
    for text, found in ((b"0\n2\nt 0 45\nu ", 1), (b"0\n1\n\0\0\xff\xfe", 0), (bytes(50), 0), (b"", 0)):
        noted.write_bytes(text)
        assert len(list(losses("broker-1", folders))) == found
