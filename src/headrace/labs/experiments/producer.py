"""What a producer can say with a record, and what happens when its buffer is full.

A record has a topic and a value, and may have a key, a partition, a timestamp and headers. If the producer names no
time, it is the time of sending; with message.timestamp.type=LogAppendTime the broker puts its own time in place of
whatever the producer said.

Records that are sent wait in a buffer (32 MB by default in Java's client) until the brokers take them. When the brokers
do not, the buffer fills up. Then sending waits for room, and after a certain time it fails with a clear error; nothing
is thrown away without a word. To show it all brokers are frozen, and a producer with a buffer of 32 MB goes on sending.
"""

from __future__ import annotations

import time
from typing import Any

from headrace import Record, consume
from headrace.labs.expect import at_least, between, contains
from headrace.labs.figures import BLUE, GREY, ORANGE, Figure
from headrace.labs.lab import Lab, Needs, Parameter
from headrace.labs.workbench import Workbench

_BIRTHDAY_MS = 1_600_000_000_000  # in September 2020
_VALUE_BYTES = 1000
_FULL = f'{{"key": "a key", "at": {_BIRTHDAY_MS}, "text": "everything"}}'


def run(lab: Workbench) -> None:
    _parts(lab)
    _append_time(lab)
    _full_buffer(lab)


def _parts(lab: Workbench) -> None:
    lab.step("Key, partition, timestamp, headers")
    # A record of 2020 would expire at once.
    topic = lab.topic("parts", partitions=3, configs={"retention.ms": "-1"})
    lab.types(f"echo '{_FULL}' > one.ndjson")
    before = int(time.time() * 1000)
    lab.types(
        f"headrace produce {topic} one.ndjson --key-field key --partition 2 --timestamp-field at --header source=lab"
    )
    lab.types(f"echo 'only a value' | headrace produce {topic}")
    lab.types(f"echo nothing | headrace produce {topic} --key 'a key' --null-value nothing")
    after = int(time.time() * 1000)
    records = {(record.value or b"null").decode(): record for record in consume(lab.cluster, topic)}
    lab.table("what came out", ["value", "key", "partition", "timestamp", "kind of time", "headers"],
              [_row(record) for record in records.values()])  # fmt: skip
    full, bare = records[_FULL], records["only a value"]
    lab.check("key", b"a key", full.key)
    lab.check("partition", 2, full.partition)
    lab.check("timestamp", _BIRTHDAY_MS, full.timestamp_ms)
    lab.check("headers", (("source", b"lab"),), full.headers)
    lab.check("kind of time", "create", full.timestamp_type)
    lab.check("without a time: that of sending", between(before, after), bare.timestamp_ms)
    lab.check("without a key", None, bare.key)
    lab.check("a null value (a tombstone)", None, records["null"].value)


def _row(record: Record) -> tuple[object, ...]:
    headers = ", ".join(f"{name}={(value or b'').decode()}" for name, value in record.headers)
    return record.value, record.key, record.partition, str(record.timestamp_ms), record.timestamp_type, headers


def _append_time(lab: Workbench) -> None:
    lab.step("Create time and append time", "The same record with a time of 2020, into two topics.")
    seen = {}
    for kind in ("CreateTime", "LogAppendTime"):
        topic = lab.topic(f"time-{kind.lower()}", configs={"message.timestamp.type": kind, "retention.ms": "-1"})
        began = int(time.time() * 1000)
        lab.types(f"headrace produce {topic} one.ndjson --timestamp-field at")
        (seen[kind],) = consume(lab.cluster, topic)
    lab.table("timestamps", ["message.timestamp.type", "timestamp", "type"],
              [(kind, str(r.timestamp_ms), r.timestamp_type) for kind, r in seen.items()])  # fmt: skip
    lab.check("create time: what the producer said", _BIRTHDAY_MS, seen["CreateTime"].timestamp_ms)
    lab.check(
        "append time: the broker's clock", between(began - 1000, began + 60_000), seen["LogAppendTime"].timestamp_ms
    )
    lab.check("and it says so", ["create", "append"], [record.timestamp_type for record in seen.values()])


def _full_buffer(lab: Workbench) -> None:
    limit_kb = lab.p.buffer_mb * 1024
    lab.step(
        f"A buffer of {lab.p.buffer_mb} MB fills up",
        """Every broker is frozen, so no record is accepted. Without room sending fails at once; a program may wait and
        try again, and each record expires after a time of its own.""",
    )
    topic = lab.topic("buffered", partitions=3)
    nodes = [node.node_id for node in lab.cluster.spec.nodes]
    lab.shows(*(f"headrace pause {node}" for node in nodes),
              f"seq -f '%0{_VALUE_BYTES}.0f' 1000000 | headrace produce {topic} "
              f"--set queue.buffering.max.kbytes={limit_kb} --set message.timeout.ms=5000")  # fmt: skip
    timeout_ms = int(lab.p.timeout_s * 1000)
    producer = lab.connection.producer(
        {"queue.buffering.max.kbytes": limit_kb, "queue.buffering.max.messages": 10_000_000,
         "message.timeout.ms": timeout_ms + int(lab.p.wait_s * 1000)}
    )  # fmt: skip
    producer.produce(topic, b"warm")
    producer.flush(30)
    reports: list[str] = []
    for node in nodes:
        lab.cluster.pause(node)
    try:
        filled, took, curve = _fill(producer, topic, reports)
        lab.measure("records in the buffer when it was full", filled, "", f"of {_VALUE_BYTES} bytes each")
        lab.measure("until it was full", took, "s")
        lab.check("bytes in the buffer", between(0.8 * limit_kb, 1.1 * limit_kb, "kB"), filled * _VALUE_BYTES / 1024)
        refusal, waited = _wait_for_room(lab, producer, topic)
        lab.say(f"The error: {refusal}")
        lab.check("it waited for room", at_least(lab.p.wait_s, "s"), waited)
        lab.check("and then failed with a clear error", contains("Queue full"), refusal)
        lab.check("records lost without a word", 0, filled - len(producer) - len(reports))
    finally:
        for node in nodes:
            lab.cluster.resume(node)
    _after(lab, producer, topic, filled, reports)
    lab.figure(
        "buffer",
        "Records in the buffer while no broker accepts them",
        _draw,
        curve,
        filled,
        height=2.6,
    )


def _fill(producer: Any, topic: str, reports: list[str]) -> tuple[int, float, list[tuple[float, int]]]:
    """Sends until there is no room; how many went in, how long it took, and the curve."""
    value, began, sent = b"x" * _VALUE_BYTES, time.monotonic(), 0
    curve: list[tuple[float, int]] = []
    while True:
        try:
            producer.produce(topic, value, on_delivery=lambda error, _: reports.append(error.name() if error else "ok"))
        except BufferError:
            curve.append((time.monotonic() - began, sent))
            return sent, time.monotonic() - began, curve
        sent += 1
        if sent % 500 == 0:
            curve.append((time.monotonic() - began, sent))


def _wait_for_room(lab: Workbench, producer: Any, topic: str) -> tuple[str, float]:
    """What a patient program does: it waits and tries again, until its time is up. The error, and the wait."""
    began = time.monotonic()
    while True:
        try:
            producer.produce(topic, b"x" * _VALUE_BYTES)
        except BufferError as error:
            if time.monotonic() - began > lab.p.wait_s:
                return f"BufferError: {error}", time.monotonic() - began
            producer.poll(0.1)
        else:
            return "there was room", time.monotonic() - began


def _after(lab: Workbench, producer: Any, topic: str, filled: int, reports: list[str]) -> None:
    lab.step("The brokers go on", "What is still in the buffer is delivered; what has expired was reported as such.")
    lab.shows(*(f"headrace resume {node.node_id}" for node in lab.cluster.spec.nodes))
    producer.flush(lab.p.timeout_s + 60)
    by_outcome = {kind: reports.count(kind) for kind in sorted(set(reports))}
    lab.table("reports", ["outcome", "records"], by_outcome.items())
    lab.check("every record has a report", filled, len(reports))
    lab.check("records left in the buffer", 0, len(producer))
    stored = sum(1 for _ in consume(lab.cluster, topic)) - 1  # the first one was for warming up
    # One that expired may have been written all the same: its answer came too late to count.
    lab.check("records in the topic: those that were acknowledged", between(by_outcome.get("ok", 0), filled), stored)


def _draw(figure: Figure, curve: list[tuple[float, int]], filled: int) -> None:
    axes = figure.subplots()
    axes.plot([at for at, _ in curve], [count * _VALUE_BYTES / 1e6 for _, count in curve], color=BLUE)
    axes.axhline(filled * _VALUE_BYTES / 1e6, color=ORANGE, linestyle="--", label="full: no further record is taken")
    axes.set_xlabel("seconds")
    axes.set_ylabel("MB in the buffer")
    axes.legend(loc="lower right")
    axes.grid(color=GREY, alpha=0.2)


LAB = Lab(
    "S4",
    ("S4.6",),
    run,
    needs=Needs(faults=True),
    parameters=(
        Parameter("buffer_mb", 32, "size of the buffer in MB", fast=4, most=256),
        Parameter("wait_s", 5.0, "seconds that the program waits for room", fast=1.0, least=0.5, most=30),
        Parameter("timeout_s", 60.0, "seconds that a record may wait in the buffer", least=10, most=600),
    ),
)
