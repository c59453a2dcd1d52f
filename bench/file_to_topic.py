"""File to topic: headrace beside its peers, interleaved, on one cluster.

    python -m bench.file_to_topic --bootstrap 127.0.0.1:9092 --replication 3

Every contestant sends the same NDJSON file into a fresh topic of its own; headrace also validates every
record. A round runs them all, one after another, in an order that rotates; the first round only warms the
brokers up. The clock runs until the last record is acknowledged (kcat: until it exits, start included),
and the topic's end offsets must then add up to the number of records. Ratios are taken within a round and
then summed up, so that what else the machine does in a minute weighs on both sides. The CPU time is the
client's own, without the brokers: on a busy machine it says more than the clock.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.contest import contest, expect, report, write_file
from headrace.kafka.write.bulk import BulkSender
from headrace.kafka.write.inputs import RecordReader

_READ_BYTES = 1 << 20

Send = Callable[[Path, str, Mapping[str, Any]], None]


def send_with_headrace(path: Path, topic: str, config: Mapping[str, Any]) -> None:
    with RecordReader(path) as reader, BulkSender(config, topic) as sender:
        for batch in reader:
            sender.send(batch.values)
    expect(sender.tally.acknowledged == reader.records, "headrace: a record was not acknowledged")


class Reports:
    """A delivery callback as anybody writes it: count, and the offsets of each partition."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.first: dict[int, int] = {}
        self.last: dict[int, int] = {}

    def __call__(self, error: Any, record: Any) -> None:
        expect(error is None, f"delivery failed: {error}")
        self.acknowledged += 1
        partition = record.partition()
        self.last[partition] = record.offset()
        self.first.setdefault(partition, self.last[partition])


def send_with_produce(path: Path, topic: str, config: Mapping[str, Any]) -> None:
    producer, reports, sent = Producer(dict(config)), Reports(), 0
    with path.open("rb") as file:
        for line in file:
            while True:
                try:
                    producer.produce(topic, line.rstrip(b"\n"), on_delivery=reports)
                    break
                except BufferError:
                    producer.poll(0.1)
            producer.poll(0)
            sent += 1
    producer.flush()
    expect(reports.acknowledged == sent, "produce(): a record was not acknowledged")


def send_with_produce_batch(path: Path, topic: str, config: Mapping[str, Any]) -> None:
    producer, reports, sent, rest = Producer(dict(config)), Reports(), 0, b""
    with path.open("rb") as file:
        while block := file.read(_READ_BYTES):
            *lines, rest = (rest + block).split(b"\n")
            waiting: list[dict[str, Any]] = [{"value": line} for line in lines]
            sent += len(waiting)
            while waiting and producer.produce_batch(topic, waiting, on_delivery=reports) < len(waiting):
                producer.poll(0.1)
                waiting = [{"value": record["value"]} for record in waiting if "_error" in record]
            producer.poll(0)
    producer.flush()
    expect(reports.acknowledged == sent, "produce_batch(): a record was not acknowledged")


def send_with_kcat(path: Path, topic: str, config: Mapping[str, Any]) -> None:
    settings = [word for name, value in config.items() for word in ("-X", f"{name}={str(value).lower()}")]
    subprocess.run(["kcat", "-P", "-t", topic, *settings, "-l", path], check=True)


def contestants() -> dict[str, Send]:
    found: dict[str, Send] = {
        "headrace": send_with_headrace,
        "produce() loop": send_with_produce,
        "produce_batch()": send_with_produce_batch,
    }
    if shutil.which("kcat"):
        found["kcat -P -l"] = send_with_kcat
    else:
        print("kcat is not installed: left out")
    return found


def run_one(send: Send, path: Path, arguments: argparse.Namespace) -> tuple[float, float]:
    """Seconds by the clock and of CPU, from the first read to the last acknowledgement, in a topic of its own."""
    admin = AdminClient({"bootstrap.servers": arguments.bootstrap})
    topic = f"bench-{uuid.uuid4().hex[:12]}"
    wanted = NewTopic(topic, arguments.partitions, arguments.replication)
    admin.create_topics([wanted])[topic].result()
    config = {"bootstrap.servers": arguments.bootstrap, "acks": "1"}
    if arguments.replication > 1:
        config |= {"acks": "all", "enable.idempotence": True}
    began, before = time.perf_counter(), os.times()
    send(path, topic, config)
    took_s, after = time.perf_counter() - began, os.times()
    stored = count(arguments.bootstrap, topic, arguments.partitions)
    expect(stored == arguments.records, f"{stored} of {arguments.records} records are in the topic")
    admin.delete_topics([topic])[topic].result()
    return took_s, sum(after[:4]) - sum(before[:4])


def count(bootstrap: str, topic: str, partitions: int) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    ends = [consumer.get_watermark_offsets(TopicPartition(topic, number)) for number in range(partitions)]
    consumer.close()
    return sum(high - low for low, high in ends)


def main() -> None:
    parser = argparse.ArgumentParser(description="NDJSON file to topic: headrace beside its peers")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--replication", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "records.ndjson")
        write_file(path, arguments.records)
        print(f"{arguments.records:,} records, {path.stat().st_size / arguments.records:.0f} bytes each")
        figures = contest(contestants(), lambda send: run_one(send, path, arguments), arguments.rounds)
    report(figures, arguments.records)


if __name__ == "__main__":
    main()
