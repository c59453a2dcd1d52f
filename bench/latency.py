"""How long a record takes from topic to topic: headrace in real time and in small batches, beside plain PySpark.

    python -m bench.latency [--seconds 20] [--rate 1000] [--rounds 1] [--with quix --python PYTHON]

A contestant runs; once it copies, records with the time in them are sent at an even rate, a few seconds of them to warm
up; whoever reads the target takes the difference to the clock. Every record must arrive, once. One broker, replication
factor 1. They take turns; ratios are taken within a round. Quix Streams is installed in an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, Producer

from bench.contest import expect, headrace_command, plain_spark_environment
from headrace.cluster import Cluster
from headrace.kafka import Kafka, NewTopic
from headrace.runtime.process import plain_environment

_REAL_TIME, _BATCHES, _PLAIN = "headrace realtime", "headrace batches", "plain pyspark"
_TRIGGERS = {_REAL_TIME: "realtime", _BATCHES: "0 seconds"}
_PIPELINE = """
[pipelines.copy]
from    = "SOURCE"
decode  = { json = "id long, sent long" }
where   = "id is not null"
trigger = "TRIGGER"
into    = { topic = "TARGET" }
dead_letters = { topic = "TARGET-dead" }
"""
_START_WITHIN_S = 300.0
_WARM_S = 5.0

#: Milliseconds: the median and the 99th percentile.
Latency = tuple[float, float]


@dataclass
class Course:
    kafka: Cluster
    folder: Path
    rate: int
    seconds: float
    python: Path | None
    runs: int = 0

    def run(self, name: str) -> Latency:
        """The contestant has copied every record, and was stopped."""
        self.runs += 1
        source, target = f"source-{self.runs}", f"target-{self.runs}"
        Kafka(self.kafka).create_topics([NewTopic(topic, 1, 1, {}) for topic in (source, target)])
        command = self._command(name, source, target, self.folder / f"run-{self.runs}")
        environment = plain_spark_environment(self.folder) if name == _PLAIN else {}
        with _running(command, environment, self.folder / f"run-{self.runs}.log") as check:
            return self._measure(source, target, check)

    def _measure(self, source: str, target: str, check: Callable[[], None]) -> Latency:
        reader = Consumer({
            "bootstrap.servers": self.kafka.bootstrap, "group.id": target, "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
        })  # fmt: skip
        reader.subscribe([target])
        _wait_until_it_copies(self.kafka.bootstrap, source, reader, check)
        warm, count = int(_WARM_S * self.rate), int((_WARM_S + self.seconds) * self.rate)
        sending = multiprocessing.Process(target=_send, args=(self.kafka.bootstrap, source, count, self.rate))
        sending.start()
        waits: dict[int, float] = {}
        deadline = time.monotonic() + count / self.rate + 60
        while len(waits) < count and time.monotonic() < deadline:
            message = reader.poll(0.1)
            if message is None or message.error():
                continue
            now = time.time_ns()
            row = json.loads(message.value() or b"")
            if row["id"] >= 0:
                expect(row["id"] not in waits, f"record {row['id']} came twice")
                waits[row["id"]] = (now - row["sent"]) / 1e6
        sending.join()
        reader.close()
        expect(len(waits) == count, f"{len(waits)} of {count} records arrived")
        measured = [waits[number] for number in range(warm, count)]
        return statistics.median(measured), statistics.quantiles(measured, n=100)[98]

    def _command(self, name: str, source: str, target: str, place: Path) -> Sequence[str]:
        if name in _TRIGGERS:
            text = _PIPELINE.replace("SOURCE", source).replace("TARGET", target).replace("TRIGGER", _TRIGGERS[name])
            return headrace_command(place, text, "copy", self.kafka.bootstrap)
        python, program = (sys.executable, "copy_pyspark") if name == _PLAIN else (str(self.python), f"copy_{name}")
        return [python, "-m", f"bench.peers.{program}", self.kafka.bootstrap, source, target, str(place)]


@contextmanager
def _running(command: Sequence[str], environment: dict[str, str], log: Path) -> Iterator[Callable[[], None]]:
    """The process, and how to make sure that it still runs."""

    def check() -> None:
        expect(process.poll() is None, f"{command[1:4]} ended: {log.read_text()[-1500:]}")

    with log.open("w") as said:
        process = subprocess.Popen(command, env=plain_environment(environment), stdout=said, stderr=said)
        try:
            yield check
            check()
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_it_copies(bootstrap: str, source: str, reader: Consumer, check: Callable[[], None]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    deadline = time.monotonic() + _START_WITHIN_S
    while time.monotonic() < deadline:
        check()
        producer.produce(source, b'{"id": -1, "sent": 0}')
        producer.flush(5)
        message = reader.poll(0.5)
        if message is not None and not message.error():
            return
    expect(condition=False, words="it copies nothing")


def _send(bootstrap: str, topic: str, count: int, rate: int) -> None:
    """Records at an even rate; one that is due is not held back for others."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    began = time.monotonic()
    for number in range(count):
        while (ahead := began + number / rate - time.monotonic()) > 0:
            producer.poll(0)
            time.sleep(min(ahead, 0.001))
        producer.produce(topic, json.dumps({"id": number, "sent": time.time_ns()}).encode())
    producer.flush(30)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.latency", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--with", dest="others", default="", metavar="NAMES", help="quix")
    parser.add_argument("--python", type=Path, help="the Python that has it")
    options = parser.parse_args(words)
    names = [_REAL_TIME, _BATCHES, _PLAIN, *(name for name in options.others.split(",") if name)]
    found: dict[str, list[Latency]] = {name: [] for name in names}
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        Cluster(Path(folder, "home"), brokers=1) as kafka,
    ):
        course = Course(kafka, Path(folder), options.rate, options.seconds, options.python)
        for _ in range(options.rounds):
            for name in names:
                found[name].append(course.run(name))
    for name, figures in found.items():
        p50, p99 = (statistics.median(figure[which] for figure in figures) for which in (0, 1))
        ratios = [
            statistics.median(plain[which] / own[which] for plain, own in zip(found[_PLAIN], figures, strict=True))
            for which in (0, 1)
        ]
        print(f"{name:18} p50 {p50:8.1f} ms  p99 {p99:8.1f} ms  plain PySpark's are {ratios[0]:.1f}x, {ratios[1]:.1f}x")


if __name__ == "__main__":
    main()
