"""Two million writes a second? Measured here, beside Kafka's own tool.

The document says that Kafka "performs 2 million writes/sec". That figure is of three producers on three machines, which
wrote to three more machines that brokers had for themselves. Here brokers and producer share the cores of one machine,
so what can be said is what this machine does, and how headrace compares with the tool that Kafka brings for this
question, kafka-producer-perf-test.

Both write the same number of records of 100 bytes into a topic of six partitions, three times: one copy and acks=1,
three copies and acks=1, three copies and acks=all. headrace reads its records from a file, Kafka's tool makes them up
as it goes; each reports its own rate, without the start of its process. Every record must be in its topic.
"""

from __future__ import annotations

import json
import re

from headrace.labs.expect import at_least
from headrace.labs.figures import BLUE, GREY, Figure
from headrace.labs.lab import Lab, Parameter
from headrace.labs.workbench import Workbench

_HEADLINE = 2_000_000
_SIZE = 100
_PARTITIONS = 6
#: Copies and acks.
_SETTINGS = ((1, "1"), (3, "1"), (3, "all"))
# Its own batches are of 16 kB and leave at once; with these it writes more.
_TUNED = "batch.size=200000 linger.ms=10 buffer.memory=134217728"

Row = tuple[str, float, float]


def run(lab: Workbench) -> None:
    count = lab.p.records
    lab.step(f"{count:,} records of {_SIZE} bytes", "A number each, with zeros in front.")
    lab.types(f"seq -f '%0{_SIZE}.0f' {count} > records.txt")
    lab.types("wc records.txt")
    rows: list[Row] = []
    for copies, acks in _SETTINGS:
        name = f"{copies} {'copy' if copies == 1 else 'copies'}, acks={acks}"
        lab.step(name)
        rows.append((name, _headrace(lab, copies, acks), _kafkas_tool(lab, copies, acks)))
    lab.step("What this machine does")
    lab.table(
        "records a second",
        ["", "headrace", "Kafka's tool", "headrace : Kafka's tool", "headrace : 2 million"],
        [(name, ours, theirs, f"{ours / theirs:.2f}", f"{ours / _HEADLINE:.2f}") for name, ours, theirs in rows],
    )
    for name, ours, theirs in rows:
        lab.check(f"{name}: against Kafka's tool", at_least(lab.p.least, "times"), ours / theirs, timing=True)
    lab.figure("rates", "Records a second of one producer", _draw, rows, height=2.6)


def _headrace(lab: Workbench, copies: int, acks: str) -> float:
    topic = lab.topic(f"writes-headrace-{copies}-{acks}", partitions=_PARTITIONS, replication=copies)
    output = lab.types(f"headrace produce {topic} records.txt --acks {acks} --json", most=3, within_s=600)
    report = json.loads(output.out)
    lab.check("headrace: records acknowledged", lab.p.records, report["acknowledged"])
    return _stored(lab, topic, report["acknowledged"] / report["seconds"])


def _kafkas_tool(lab: Workbench, copies: int, acks: str) -> float:
    topic = lab.topic(f"writes-kafka-{copies}-{acks}", partitions=_PARTITIONS, replication=copies)
    idempotent = str(acks == "all").lower()
    output = lab.types(
        f"headrace lab tool kafka-producer-perf-test --topic {topic} --num-records {lab.p.records} "
        f"--record-size {_SIZE} --throughput -1 "
        f"--command-property acks={acks} enable.idempotence={idempotent} {_TUNED}",
        most=4, within_s=600,
    )  # fmt: skip
    rates = re.findall(rf"^{lab.p.records} records sent, ([\d.]+) records/sec", output.out, re.MULTILINE)
    lab.check("Kafka's tool reports its rate", 1, len(rates), needed=True)
    return _stored(lab, topic, float(rates[0]))


def _stored(lab: Workbench, topic: str, rate: float) -> float:
    """Every record lies in the topic, which is then removed: the next one shall have the same room."""
    lab.measure(topic, rate, "records/s", f"{rate * _SIZE / 1e6:.0f} MB/s")
    # With acks=1 the leader answers before its followers have a record, and readers get it only when they do.
    lab.until(lambda: (lab.describe(topic).offsets or 0) >= lab.p.records, 60, f"every record in {topic}")
    lab.check(f"records in {topic}", lab.p.records, lab.describe(topic).offsets)
    lab.kafka.delete_topics([topic])
    return rate


def _draw(figure: Figure, rows: list[Row]) -> None:
    axes = figure.subplots()
    places = range(len(rows))
    axes.barh([at - 0.2 for at in places], [row[1] for row in rows], height=0.36, color=BLUE, label="headrace")
    axes.barh([at + 0.2 for at in places], [row[2] for row in rows], height=0.36, color=GREY, label="Kafka's tool")
    axes.set_yticks(list(places), [row[0] for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("records a second")
    axes.legend()


LAB = Lab(
    "S1",
    ("S1.6",),
    run,
    parameters=(
        Parameter(
            "records", 2_000_000, "records that each writes, three times", fast=20_000, least=1000, most=20_000_000
        ),
        Parameter("least", 0.5, "headrace's rate, as a share of Kafka's tool's", fast=0.01, least=0.01, most=10),
    ),
    alone=True,
)
