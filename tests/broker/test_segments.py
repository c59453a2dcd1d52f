"""The files of a partition, read without Kafka, hold what Kafka was given."""

from __future__ import annotations

import json
import os
import shutil
import struct
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from headrace import Kafka, consume, produce, transaction
from headrace.cluster import Cluster
from headrace.cluster.segments import Segment, partitions_in, removals, segments_in
from headrace.cluster.unpack import unpack
from headrace.errors import Failed, UsageError
from headrace.kafka.batches import CODECS
from headrace.kafka.survey import Survey
from headrace.kafka.transactions import TransactionPlan, produce_in_transactions
from headrace.kafka.write.producer import ProduceOptions
from headrace.kafka.write.shaping import Shaping
from headrace.runtime.waiting import eventually
from tests.conftest import Headrace
from tests.records import oversized_batch


def folder_of(cluster: Cluster, topic: str, partition: int = 0) -> Path:
    leader = Kafka(cluster).topic(topic).partitions[partition].leader
    return partitions_in(cluster.home.node(f"broker-{leader}") / "data", topic)[partition]


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_gives_back_what_was_sent(
    headrace_cluster: Cluster, headrace_topic: Callable[..., str], codec: str
) -> None:
    topic = headrace_topic()
    shaping = Shaping(key_field="n", headers=[("source", b"test"), ("empty", b"")])
    options = ProduceOptions(shaping=shaping, settings={"compression.type": codec, "linger.ms": 200})
    produce(headrace_cluster, topic, ({"n": n, "padding": "x" * 200} for n in range(300)), options=options)
    (segment,) = segments_in(folder_of(headrace_cluster, topic))
    batches = list(segment.batches())
    assert {batch.codec for batch in batches} == {codec}
    assert all(segment.checksum_holds(batch) for batch in batches)
    stored = [record for batch in batches for record in segment.records(batch)]
    read = list(consume(headrace_cluster, topic))
    assert [(r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in stored] == [
        (r.offset, r.timestamp_ms, r.key, r.value, r.headers) for r in read
    ]
    ratio = (segment.plain_bytes(batches[0]) or 0) / batches[0].size_bytes
    assert ratio == 1 if codec == "none" else ratio > 2
    assert batches[0].producer_id >= 0
    assert batches[0].base_sequence == 0


def test_segments_roll_and_are_named_after_their_first_offset(
    headrace_cluster: Cluster, headrace_topic: Callable[..., str]
) -> None:
    topic = headrace_topic(segment_bytes="1048576", index_interval_bytes="4096")
    options = ProduceOptions(settings={"batch.size": 16_384})
    produce(headrace_cluster, topic, (b"%01000d" % n for n in range(4000)), options=options)
    found = segments_in(folder_of(headrace_cluster, topic))
    assert len(found) >= 4
    for older, newer in pairwise(found):
        assert newer.base_offset == older.next_offset == next(newer.batches()).base_offset
    assert found[-1].next_offset == 4000
    for offset in (0, 1, 1999, 3999):
        holder = [segment for segment in found if segment.base_offset <= offset][-1]
        batch = holder.find(offset)
        assert batch
        assert batch.base_offset <= offset <= batch.last_offset
    assert found[0].find(10_000) is None
    for segment in found:
        positions = {batch.position: batch for batch in segment.batches()}
        assert segment.index() or segment is found[-1]
        for entry in segment.index():
            assert entry.position in positions
        for when in segment.time_index():
            assert (
                max(b.max_timestamp_ms for b in segment.batches() if b.base_offset <= when.offset) == when.timestamp_ms
            )


def test_transactions_leave_control_records_and_an_index_of_the_aborted(
    headrace_cluster: Cluster, headrace_topic: Callable[..., str]
) -> None:
    topic = headrace_topic()
    with transaction(headrace_cluster) as good:
        good.send(topic, "one")
    produce_in_transactions(headrace_cluster, topic, ["two"], TransactionPlan(size=1, commit_probability=0))
    (segment,) = segments_in(folder_of(headrace_cluster, topic))

    def controls() -> list[str | None]:
        return [r.control for b in segment.batches() if b.control for r in segment.records(b)]

    assert eventually(lambda: len(controls()) == 2 and controls(), 10) == ["commit", "abort"]
    assert all(batch.transactional for batch in segment.batches())
    (aborted,) = segment.aborted()
    assert (aborted.first_offset, aborted.last_offset) == (2, 3)


def test_append_time_is_the_brokers(headrace_cluster: Cluster, headrace_topic: Callable[..., str]) -> None:
    topic = headrace_topic(message_timestamp_type="LogAppendTime")
    produce(headrace_cluster, topic, ["a", "b"])
    (segment,) = segments_in(folder_of(headrace_cluster, topic))
    stored = [record for batch in segment.batches() for record in segment.records(batch)]
    assert [r.timestamp_ms for r in stored] == [r.timestamp_ms for r in consume(headrace_cluster, topic)]


@pytest.fixture
def copied(headrace_cluster: Cluster, headrace_topic: Callable[..., str], tmp_path: Path) -> Segment:
    """A segment of several batches, to be damaged."""
    topic = headrace_topic()
    for number in range(3):
        produce(headrace_cluster, topic, [f"record {number}"])
    (segment,) = segments_in(folder_of(headrace_cluster, topic))
    return Segment(Path(shutil.copy(segment.log, tmp_path)))


def test_a_file_that_ends_in_the_middle_of_a_batch_gives_the_whole_ones(copied: Segment) -> None:
    whole = copied.log.read_bytes()
    last = list(copied.batches())[-1]
    for cut in (1, 30, last.size_bytes - 5):
        copied.log.write_bytes(whole[:-cut])
        assert len(list(copied.batches())) == 2
    copied.log.write_bytes(whole + bytes(500))  # preallocated
    assert len(list(copied.batches())) == 3
    copied.log.write_bytes(b"")
    assert list(copied.batches()) == []
    assert (copied.next_offset, copied.largest_timestamp_ms) == (0, None)


def test_damage_is_told_with_its_place(copied: Segment) -> None:
    batches = list(copied.batches())
    data = bytearray(copied.log.read_bytes())
    data[batches[1].position + 70] ^= 0xFF
    copied.log.write_bytes(data)
    assert [copied.checksum_holds(batch) for batch in copied.batches()] == [True, False, True]
    data[batches[1].position + 16] = 1
    copied.log.write_bytes(data)
    with pytest.raises(Failed, match=f"byte {batches[1].position}"):
        list(copied.batches())
    with pytest.raises(UsageError, match="not a segment"):
        Segment(copied.log.with_name("notes.log"))


def test_the_empty_part_of_an_index_is_not_read(tmp_path: Path) -> None:
    segment = Segment(tmp_path / f"{100:020}.log")
    index = segment.log.with_suffix(".index")
    index.write_bytes(struct.pack(">4i", 5, 70, 10, 140))
    os.truncate(index, 10 << 20)  # as Kafka makes it, and as a killed broker leaves it
    began = time.process_time()
    for _ in range(200):
        assert [(entry.offset, entry.position) for entry in segment.index()] == [(105, 70), (110, 140)]
    assert time.process_time() - began < 1
    for size in (0, 10 << 20):
        os.truncate(index, 0)
        os.truncate(index, size)
        assert segment.index() == []


def test_what_retention_will_remove(headrace_cluster: Cluster, headrace_topic: Callable[..., str]) -> None:
    topic = headrace_topic(segment_bytes="1048576")
    produce(headrace_cluster, topic, (b"%01000d" % n for n in range(4000)))
    found = segments_in(folder_of(headrace_cluster, topic))
    by_time = removals(found, 1000, -1)
    assert [r.at_ms for r in by_time] == [(s.largest_timestamp_ms or 0) + 1000 for s in found]
    by_size = removals(found, -1, sum(s.size_bytes for s in found[1:]))
    assert [(r.segment, r.by) for r in by_size] == [(found[0], "size")]
    assert removals(found, -1, -1) == []


def test_the_command_shows_segments_batches_and_records(
    headrace_cluster: Cluster, headrace_topic: Callable[..., str], run: Headrace
) -> None:
    topic, home = headrace_topic(partitions=2), headrace_cluster.home.root
    produce(headrace_cluster, topic, ["<b>", b"\xff", "c"], options=ProduceOptions(shaping=Shaping(partition=1)))
    shown = run("topic", "segments", topic, home=home)
    assert "00000000000000000000.log" in shown.out
    told = run("topic", "segments", topic, "--partition", "1", "--json", home=home).json()
    assert (told["records"], told["next_offset"], told["codecs"]) == (3, 3, ["none"])
    batches = run("topic", "segments", topic, "--batches", "--json", home=home)
    assert '"records": 3' in batches.out
    records = run("topic", "segments", topic, "--records", "--offset", "1", "--json", home=home)
    assert '{"base64": "/w=="}' in records.out
    assert run("topic", "segments", topic, "--partition", "9", home=home).code == 2
    assert run("topic", "segments", "nowhere", home=home).code == 2


def send(cluster: Cluster, topic: str, batch: bytes) -> None:
    """The broker has taken the batch as it is."""
    from kafka.protocol.producer import ProduceRequest

    data = ProduceRequest.TopicProduceData
    place = data(name=topic, partition_data=[data.PartitionProduceData(index=0, records=batch)])
    with Kafka(cluster) as admin, Survey(cluster, timeout_s=30) as survey:
        survey.metadata()
        request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=20_000, topic_data=[place], max_version=12)
        answer = survey.ask_once(admin.topic(topic).partitions[0].leader, request)
    assert answer.responses[0].partition_responses[0].error_code == 0


def test_the_command_names_a_batch_that_claims_too_much_and_goes_on(
    headrace_cluster: Cluster, headrace_topic: Callable[..., str], run: Headrace
) -> None:
    topic, home = headrace_topic(), headrace_cluster.home.root
    produce(headrace_cluster, topic, ["before"])
    send(headrace_cluster, topic, oversized_batch())
    produce(headrace_cluster, topic, ["after"])
    lines = run("topic", "segments", topic, "--records", "--json", home=home)
    assert lines.code == 1
    told = [json.loads(line) for line in lines.out.splitlines()]
    assert [document.get("value") for document in told] == ["before", None, "after"]
    assert told[1]["problem"].endswith("bytes of gzip decompress to more than 64 MB")
    records = run("topic", "segments", topic, "--records", home=home)
    assert told[1]["problem"] in records.out
    assert "batches that could not be read: 1" in records.err
    assert run("topic", "segments", topic, "--batches", home=home).out.splitlines()[2].split()[7] == "?"


def test_java_clients_snappy_frames_are_read() -> None:
    block = pa.Codec("snappy").compress(b"hello " * 50, asbytes=True)
    framed = b"\x82SNAPPY\x00" + bytes(8) + len(block).to_bytes(4, "big") + block
    assert unpack("snappy", framed) == b"hello " * 50 == unpack("snappy", block)
