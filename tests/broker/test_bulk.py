"""Records in bulk: nothing lost, nothing doubled, everything counted, by both paths into librdkafka."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from headrace.errors import UsageError
from headrace.kafka.write.bulk import BulkSender, Undelivered
from headrace.kafka.write.shaping import partition_of
from tests.records import read

BOTH_PATHS = pytest.mark.parametrize("rich", [False, True], ids=["native", "client"])
NOBODY = "127.0.0.1:1"


@BOTH_PATHS
def test_what_is_acknowledged_can_be_read_where_the_tally_says(
    headrace_cluster: Any, headrace_topic: Callable[..., str], rich: bool
) -> None:
    topic = headrace_topic(partitions=6, replication=3)
    values = [b"value-%d" % number for number in range(20_000)]
    keys = [b"key-%d" % (number % 97) for number in range(20_000)]
    with BulkSender({"bootstrap.servers": headrace_cluster.bootstrap, "acks": "all"}, topic, rich=rich) as sender:
        assert sender.native is not rich
        for start in range(0, len(values), 3000):
            sender.send(values[start : start + 3000], keys[start : start + 3000])
    found = read(headrace_cluster.bootstrap, topic)
    assert sorted(record.value for record in found) == sorted(values)
    assert (sender.tally.acknowledged, sender.tally.failed, sender.pending) == (20_000, 0, 0)
    assert sender.tally.accepted_bytes == sum(map(len, values)) + sum(map(len, keys))
    for number, span in sender.tally.partitions.items():
        offsets = [record.offset for record in found if record.partition == number]
        assert (span.records, span.first_offset, span.last_offset) == (len(offsets), min(offsets), max(offsets))
    for record in found:
        assert record.key is not None
        assert record.partition == partition_of(record.key, 6)
    for key in set(keys):
        sent = [int(record.value[6:]) for record in found if record.key == key]
        assert all(earlier < later for earlier, later in pairwise(sent))


@BOTH_PATHS
def test_null_empty_and_binary_parts_arrive_as_they_are(
    headrace_cluster: Any, headrace_topic: Callable[..., str], rich: bool
) -> None:
    topic = headrace_topic(partitions=1)
    values = [None, b"", b"\x00\xff", b"plain"]
    keys = [b"gone", None, b"", b"\xfe\x00"]
    with BulkSender({"bootstrap.servers": headrace_cluster.bootstrap}, topic, rich=rich) as sender:
        sender.send(values, keys)
    consumer = Consumer({"bootstrap.servers": headrace_cluster.bootstrap, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = consumer.consume(4, timeout=20)
    consumer.close()
    assert [(record.key(), record.value()) for record in found] == list(zip(keys, values, strict=True))


@BOTH_PATHS
def test_partitions_can_be_given_for_all_or_for_each(
    headrace_cluster: Any, headrace_topic: Callable[..., str], rich: bool
) -> None:
    topic = headrace_topic(partitions=3)
    with BulkSender({"bootstrap.servers": headrace_cluster.bootstrap}, topic, rich=rich) as sender:
        sender.send([b"a", b"b"], partition=2)
        sender.send([b"c", b"d", b"e"], [b"same"] * 3, partition=[0, 1, 0])
    found = read(headrace_cluster.bootstrap, topic)
    assert [(record.partition, record.value) for record in found] == [
        (0, b"c"),
        (0, b"e"),
        (1, b"d"),
        (2, b"a"),
        (2, b"b"),
    ]


@BOTH_PATHS
def test_a_record_that_cannot_be_delivered_is_handed_back_whole_with_its_reason(
    headrace_cluster: Any, headrace_topic: Callable[..., str], rich: bool
) -> None:
    topic = headrace_topic(partitions=2)
    huge = b"x" * 1_500_000
    config = {"bootstrap.servers": headrace_cluster.bootstrap}
    with BulkSender(config, topic, rich=rich) as sender:
        sender.send([b"small", huge, b"also small"], [b"1", b"2", b"3"])
        sender.send([b"nowhere"], partition=[77])
    assert (sender.tally.acknowledged, sender.tally.failed) == (2, 2)
    too_large, nowhere = sender.failures
    assert (too_large.value, too_large.key) == (huge, b"2")
    assert "too large" in too_large.reason
    assert (nowhere.value, nowhere.key) == (b"nowhere", None)
    assert "partition" in nowhere.reason
    assert sender.tally.failed_bytes == len(huge) + 1 + len(b"nowhere")
    assert sorted(record.value for record in read(headrace_cluster.bootstrap, topic)) == [b"also small", b"small"]


@BOTH_PATHS
def test_a_full_queue_makes_send_wait_and_loses_nothing(
    headrace_cluster: Any, headrace_topic: Callable[..., str], rich: bool
) -> None:
    topic = headrace_topic(partitions=3)
    config = {"bootstrap.servers": headrace_cluster.bootstrap, "queue.buffering.max.messages": 100}
    with BulkSender(config, topic, rich=rich) as sender:
        for start in range(0, 5000, 70):
            sender.send([b"%d" % number for number in range(start, min(start + 70, 5000))])
            assert sender.pending <= 100
    numbers = sorted(int(record.value) for record in read(headrace_cluster.bootstrap, topic))
    assert numbers == list(range(5000))


@BOTH_PATHS
def test_without_acks_the_records_count_and_their_offsets_are_unknown(
    headrace_cluster: Any, headrace_topic: Callable[..., str], rich: bool
) -> None:
    topic = headrace_topic(partitions=1)
    with BulkSender({"bootstrap.servers": headrace_cluster.bootstrap, "acks": 0}, topic, rich=rich) as sender:
        sender.send([b"x"] * 50)
    assert sender.tally.acknowledged == 50
    assert sender.tally.partitions[0].first_offset == -1


def test_headers_and_timestamps_need_the_rich_path(headrace_cluster: Any, headrace_topic: Callable[..., str]) -> None:
    topic = headrace_topic(partitions=1)
    config = {"bootstrap.servers": headrace_cluster.bootstrap}
    with BulkSender(config, topic) as sender, pytest.raises(UsageError, match="headers and timestamps"):
        sender.send([b"x"], timestamps_ms=[1])
    with BulkSender(config, topic, rich=True) as sender:
        sender.send([b"x"], timestamps_ms=[1_600_000_000_000], headers=[[("from", b"test"), ("none", None)]])
    consumer = Consumer({"bootstrap.servers": headrace_cluster.bootstrap, "group.id": topic})
    consumer.assign([TopicPartition(topic, 0, 0)])
    (record,) = consumer.consume(1, timeout=20)
    consumer.close()
    assert record.timestamp()[1] == 1_600_000_000_000
    assert record.headers() == [("from", b"test"), ("none", None)]


@BOTH_PATHS
def test_with_no_broker_every_record_ends_as_failed(rich: bool) -> None:
    failed: list[Undelivered] = []
    config = {"bootstrap.servers": NOBODY, "message.timeout.ms": 60_000}
    with BulkSender(config, "anywhere", on_failed=failed.append, rich=rich) as sender:
        sender.send([b"%d" % number for number in range(1000)])
        assert sender.flush(0.5) == 1000
        assert (sender.accepted, sender.tally.failed) == (1000, 0)
        sender.close()
    assert sorted(int(record.value or b"") for record in failed) == list(range(1000))
    assert (sender.accepted, sender.tally.failed, sender.pending) == (1000, 1000, 0)
    assert sender.last_error


@BOTH_PATHS
def test_a_setting_that_does_not_exist_is_named(rich: bool) -> None:
    with pytest.raises(UsageError) as caught:
        BulkSender({"bootstrap.servers": NOBODY, "linger.mss": 5}, "anywhere", rich=rich)
    assert "linger.mss" in str(caught.value)


@pytest.mark.parametrize("value", ["abc", "-5", "99999999999"])
@pytest.mark.parametrize("name", ["message.timeout.ms", "delivery.timeout.ms"])
def test_a_timeout_that_cannot_be_is_refused(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"invalid value for {name}: '{value}'"):
        BulkSender({"bootstrap.servers": NOBODY, name: value}, "anywhere")


def test_a_python_callback_in_the_settings_takes_the_other_path() -> None:
    with BulkSender({"bootstrap.servers": NOBODY, "stats_cb": print}, "anywhere") as sender:
        assert not sender.native
        assert sender.native_refusal is not None
        assert "stats_cb" in sender.native_refusal


def test_values_without_as_many_keys_are_refused() -> None:
    with BulkSender({"bootstrap.servers": NOBODY}, "anywhere") as sender:
        with pytest.raises(UsageError, match="3 values"):
            sender.send([b"1", b"2", b"3"], [b"only one"])
        assert sender.accepted == 0


INTERRUPTED = """
import sys
from headrace.kafka.write.bulk import BulkSender
sender = BulkSender({"bootstrap.servers": sys.argv[1]}, sys.argv[2], rich=sys.argv[3] == "rich")
number = 0
try:
    while True:
        sender.send([b"%d" % (number + index) for index in range(500)])
        number += 500
        if number == 20_000:
            print("started", flush=True)
except KeyboardInterrupt:
    left = sender.flush(30)
    sender.close()
print(sender.accepted, sender.tally.acknowledged, sender.tally.failed, left)
"""


@BOTH_PATHS
def test_ctrl_c_leaves_honest_counts(headrace_cluster: Any, headrace_topic: Callable[..., str], rich: bool) -> None:
    topic = headrace_topic(partitions=3)
    words = [headrace_cluster.bootstrap, topic, "rich" if rich else "native"]
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, *words], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        accepted, acknowledged, failed, left = map(int, process.stdout.read().split())
    assert process.returncode == 0
    assert (failed, left) == (0, 0)
    assert accepted == acknowledged >= 20_000
    numbers = sorted(int(record.value) for record in read(headrace_cluster.bootstrap, topic))
    assert numbers == list(range(acknowledged))
