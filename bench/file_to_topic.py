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
import json
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.transport.bulk import BulkSender
from headrace.transport.inputs import RecordReader

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


def write_file(path: Path, records: int) -> None:
    """So many bus positions of about 330 bytes, one JSON object a line."""
    rng = random.Random(4)
    with path.open("w") as file:
        for number in range(records):
            row = {
                "EVENT_NO_TRIP": str(160_000_000 + number // 500),
                "EVENT_NO_STOP": str(160_000_000 + number // 40),
                "OPD_DATE": "10-SEP-20",
                "VEHICLE_ID": str(1700 + number % 90),
                "METERS": str(number % 90_000),
                "ACT_TIME": str(20_000 + number % 66_000),
                "VELOCITY": str(rng.randrange(30)),
                "DIRECTION": str(rng.randrange(360)),
                "RADIO_QUALITY": "",
                "GPS_LONGITUDE": f"-122.{rng.randrange(10**6):06}",
                "GPS_LATITUDE": f"45.{rng.randrange(10**6):06}",
                "GPS_SATELLITES": str(rng.randrange(4, 13)),
                "GPS_HDOP": "0.7",
                "SCHEDULE_DEVIATION": str(rng.randrange(-300, 300)),
            }
            file.write(json.dumps(row) + "\n")


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


def expect(condition: bool, words: str) -> None:
    if not condition:
        raise SystemExit(f"error: {words}")


def spread(numbers: list[float], unit: str) -> str:
    return f"{statistics.median(numbers):6.2f}{unit} ({min(numbers):.2f}-{max(numbers):.2f})"


def report(figures: Mapping[str, list[tuple[float, float]]], records: int) -> None:
    """Times, rates, and how many times headrace's time each of the others took."""
    for name, theirs in figures.items():
        clock = [took_s for took_s, _ in theirs]
        cpu = [cpu_s for _, cpu_s in theirs]
        ratios = [their / our for their, (our, _) in zip(clock, figures["headrace"], strict=True)]
        rate = records / statistics.median(clock)
        print(f"{name:16} {spread(clock, ' s')}  {rate:9,.0f} records/s  cpu {spread(cpu, ' s')}", end="")
        print(f"  {spread(ratios, 'x')} headrace's time")


def main() -> None:
    parser = argparse.ArgumentParser(description="NDJSON file to topic: headrace beside its peers")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--replication", type=int, default=1)
    arguments = parser.parse_args()
    everyone = contestants()
    figures: dict[str, list[tuple[float, float]]] = {name: [] for name in everyone}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "records.ndjson")
        write_file(path, arguments.records)
        print(f"{arguments.records:,} records, {path.stat().st_size / arguments.records:.0f} bytes each")
        for number in range(arguments.rounds + 1):
            order = list(everyone)[number % len(everyone) :] + list(everyone)[: number % len(everyone)]
            for name in order:
                figure = run_one(everyone[name], path, arguments)
                if number:
                    figures[name].append(figure)
    report(figures, arguments.records)


if __name__ == "__main__":
    main()
