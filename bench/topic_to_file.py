"""Topic to file: `headrace consume -o` beside its peers, interleaved, on one cluster.

    python -m bench.topic_to_file --bootstrap 127.0.0.1:9092

One topic of NDJSON records is read again and again. Every contestant is a process of its own, from start to end,
and the file that it leaves must have as many lines as the topic has records. kcat and the `consume()` loop run twice:
with their defaults, and with the fetch settings that headrace uses.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from bench.contest import Figure, contest, expect, report, write_file
from headrace.kafka import Kafka, NewTopic
from headrace.kafka.write.producer import produce

# What anybody writes first; with a second argument: with the settings that matter.
_LOOP = """
import sys
from confluent_kafka import Consumer, TopicPartition
bootstrap, topic, path, *tuned = sys.argv[1:]
more = {"fetch.queue.backoff.ms": 5, "max.partition.fetch.bytes": 8388608} if tuned else {}
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "loop", "enable.auto.commit": False,
                     "enable.partition.eof": True, **more})
partitions = consumer.list_topics(topic).topics[topic].partitions
consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
ended = set()
with open(path, "wb") as file:
    while len(ended) < len(partitions):
        for record in consumer.consume(10000 if tuned else 500, 1.0):
            if record.error():
                ended.add(record.partition())
            else:
                file.write(record.value() + b"\\n")
"""


def commands(bootstrap: str, topic: str, path: Path) -> dict[str, list[str]]:
    loop = [sys.executable, "-c", _LOOP, bootstrap, topic, str(path)]
    found = {
        "headrace": [
            sys.executable,
            "-m",
            "headrace",
            "--bootstrap",
            bootstrap,
            "consume",
            topic,
            "-q",
            "-o",
            str(path),
        ],
        "consume() loop": loop,
        "consume() tuned": [*loop, "tuned"],
    }
    kcat = shutil.which("kcat")
    if kcat:
        read = f"{kcat} -C -e -q -b {bootstrap} -t {topic}"
        found["kcat -C -e"] = ["sh", "-c", f"{read} > {path}"]
        tuned = "-X queued.min.messages=1000000 -X max.partition.fetch.bytes=8388608"
        found["kcat tuned"] = ["sh", "-c", f"{read} {tuned} > {path}"]
    else:
        print("kcat is not installed: left out")
    return found


def run_one(command: list[str], path: Path, records: int) -> Figure:
    path.unlink(missing_ok=True)
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True)
    took_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    with path.open("rb") as file:
        lines = sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
    expect(lines == records, f"{command[0]}: {lines} of {records} records are in the file")
    return took_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description="topic to file: headrace beside its peers")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    topic = f"bench-{uuid.uuid4().hex[:12]}"
    admin = Kafka(arguments.bootstrap)
    admin.create_topics([NewTopic(topic, partitions=6, replication=1)])
    with tempfile.TemporaryDirectory() as folder:
        source, path = Path(folder, "in.ndjson"), Path(folder, "out.txt")
        write_file(source, arguments.records)
        expect(produce(arguments.bootstrap, topic, source).complete, "the topic could not be filled")
        everyone = commands(arguments.bootstrap, topic, path)
        figures = contest(everyone, lambda command: run_one(command, path, arguments.records), arguments.rounds)
    admin.delete_topics([topic])
    report(figures, arguments.records)


if __name__ == "__main__":
    main()
