"""What a topic stores, who has read it, and how to empty it.

A consumer of a group that runs a second time reads nothing: its group stands at the end. The records are still there,
on the brokers' disks; how many bytes that are is asked of the brokers and compared with the files on disk, which are on
this machine. The size is shown now, and over time while records are written, as a series:
{"data": [{"timestamp": …, "value": …}]}.

`topic clean` then empties the topic, either by reading and throwing away everything, or by having Kafka delete it.
"""

from __future__ import annotations

import json

from headrace import Topic, consume, produce
from headrace.labs.expect import at_least, between
from headrace.labs.figures import BLUE, Figure
from headrace.labs.lab import Lab, Parameter
from headrace.labs.workbench import Workbench


def run(lab: Workbench) -> None:
    lab.step("Records are sent once and read twice, by the same group")
    topic = lab.topic("stored", partitions=3)
    sample = lab.sample("breadcrumbs", lab.p.records, "bcsample.json")
    size = sample.stat().st_size
    lab.types("wc bcsample.json")
    lab.check("records acknowledged", lab.p.records, lab.produce(topic, "bcsample.json"))
    group = lab.group("lab-storage")
    lab.check("records of the first run", lab.p.records, lab.count(topic, group))
    lab.check("records of the second run", 0, lab.count(topic, group))
    lab.check("records without a group", lab.p.records, lab.count(topic))

    lab.step("Where are they?", "In files of the brokers, a copy on each replica.")
    (measured,) = lab.kafka.topic_sizes([topic])
    printed = json.loads(lab.types(f"headrace topic size {topic} --json").out)
    lab.check("bytes that the command prints", measured.size_bytes, printed["data"][-1]["value"])
    on_disk = _bytes_on_disk(lab, topic)
    lab.table("bytes by broker", ["broker", "as the broker says", "its log files"],
              [(broker, count, on_disk[broker]) for broker, count in measured.broker_bytes.items()])  # fmt: skip
    lab.check("the brokers' sizes are those of the files on disk", on_disk, measured.broker_bytes)
    lab.check("bytes of one copy", between(0.9 * size, 1.2 * size, "bytes"), measured.size_bytes)

    lab.step("Over time, while records are written")
    lab.shows(f"for round in $(seq {lab.p.rounds}) ; do headrace produce {topic} bcsample.json ; "
              f"headrace topic size {topic} --json ; done")  # fmt: skip
    series = [measured]
    for _ in range(lab.p.rounds):
        produce(lab.cluster, topic, sample)
        series += lab.kafka.topic_sizes([topic])
    values = [each.size_bytes or 0 for each in series]
    points = [point for each in series for point in each.sizes_to_json()["data"]]
    lab.table("the series", ["timestamp", "value"], [(point["timestamp"], point["value"]) for point in points])
    lab.check("each round adds as much as the first", between(0.95, 1.05, "times the first"),
              (values[-1] - values[0]) / lab.p.rounds / max(values[0], 1))  # fmt: skip
    lab.figure("bytes", "Bytes of one copy of the topic over time", _draw, series, height=2.8)
    total = lab.p.records * (lab.p.rounds + 1)
    lab.watch(topic, total, {group: total - lab.p.records}, note="The group has read what the first round sent.")
    _clean(lab, topic)


def _clean(lab: Workbench, topic: str) -> None:
    total = lab.p.records * (lab.p.rounds + 1)
    lab.step("Clean by reading", "Everything is read and discarded; the records stay until retention removes them.")
    lab.shows(f"headrace topic clean {topic} --how read")
    lab.check("records read and discarded", total, lab.kafka.clean_topic(topic, how="read").records)
    lab.check("records still there", total, lab.describe(topic).offsets)
    lab.step("Clean by deleting")
    lab.shows(f"headrace topic clean {topic} --yes")
    lab.check("records deleted", total, lab.kafka.clean_topic(topic).offsets)
    found = lab.describe(topic)
    lab.check("records left", 0, found.offsets)
    lab.check("offsets continue", at_least(total), sum(p.end or 0 for p in found.partitions))
    lab.check("records that a new consumer gets", 0, sum(1 for _ in consume(lab.cluster, topic)))


def _bytes_on_disk(lab: Workbench, topic: str) -> dict[int, int]:
    """The bytes of the log files of the topic, by broker."""
    sizes = {node.node_id: 0 for node in lab.cluster.spec.brokers}
    for (broker, _), segments in lab.cluster.segments(topic).items():
        sizes[broker] += sum(segment.size_bytes for segment in segments)
    return sizes


def _draw(figure: Figure, series: list[Topic]) -> None:
    axes = figure.subplots()
    times = [each.at for each in series if each.at]
    axes.step([(at - times[0]).total_seconds() for at in times], [(each.size_bytes or 0) / 1000 for each in series],
              where="post", marker="o", markersize=3, color=BLUE)  # fmt: skip
    axes.set_xlabel("seconds")
    axes.set_ylabel("kB")
    axes.set_ylim(0)


LAB = Lab(
    "S2",
    ("S2.C",),
    run,
    parameters=(
        Parameter("records", 1000, "breadcrumbs of the sample", least=100, most=100_000),
        Parameter("rounds", 10, "how often they are sent again while bytes are watched", fast=4, most=100),
    ),
)
