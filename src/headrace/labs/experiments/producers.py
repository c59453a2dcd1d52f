"""Two producers write at once into one topic.

Each of them sends all 1,000 breadcrumbs of the sample, with a key of its own. A key decides on the partition, so each
producer fills one: from the offsets at its beginning and end one can count what it has sent, as end - begin + 1. One
consumer then reads all 2,000 records, each producer's in the order in which it sent them.
"""

from __future__ import annotations

from collections import defaultdict

from headrace import ProduceOptions, consume, partition_of, produce, samples
from headrace.labs.lab import Lab, Parameter
from headrace.labs.workbench import Workbench

_PARTITIONS = 6


def run(lab: Workbench) -> None:
    count, producers = lab.p.records, lab.p.producers
    lab.step("An empty topic, and the sample as a file")
    topic = lab.topic("two-producers", partitions=_PARTITIONS)
    sample = lab.sample("breadcrumbs", count, "bcsample.json")
    lab.check("records in the topic", 0, lab.describe(topic).offsets)

    lab.step(f"{producers} producers at once", "Each sends the whole file, with its number as the key.")
    lab.shows(f"headrace produce {topic} bcsample.json --producers {producers} --key-per-producer")
    report = produce(lab.cluster, topic, sample, options=ProduceOptions(producers=producers, key_per_producer=True))
    spans = report.partitions[topic]
    lab.table("what the producers report", ["partition", "first offset", "last offset", "last - first + 1"],
              [(p, s.first_offset, s.last_offset, s.last_offset - s.first_offset + 1)
               for p, s in sorted(spans.items())])  # fmt: skip
    lab.check("records acknowledged", count * producers, report.acknowledged)
    keys = [str(number) for number in range(1, producers + 1)]
    expected: dict[int, int] = defaultdict(int)
    for key in keys:
        expected[partition_of(key.encode(), _PARTITIONS)] += count
    lab.shows(*(f"headrace topic which-partition {topic} {key}" for key in keys))
    lab.check("records by partition", dict(sorted(expected.items())),
              {p: s.last_offset - s.first_offset + 1 for p, s in sorted(spans.items())})  # fmt: skip

    lab.step("One consumer reads them all")
    lab.shows(f"headrace consume {topic}")
    read: dict[bytes, list[bytes]] = defaultdict(list)
    for record in consume(lab.cluster, topic):
        read[record.key or b""].append(record.value or b"")
    lab.check("records read", count * producers, sum(map(len, read.values())))
    lab.check(
        "records of each producer", dict.fromkeys(keys, count), {k.decode(): len(v) for k, v in sorted(read.items())}
    )
    sent = [made.text for made in samples.breadcrumbs(count, lab.seed).made()]
    in_order = [key.decode() for key, got in sorted(read.items()) if got == sent]
    lab.check("producers whose records are in the order of the file", keys, in_order)
    lab.watch(topic, count * producers)


LAB = Lab(
    "S2",
    ("S2.D",),
    run,
    parameters=(
        Parameter("records", 1000, "records that each producer sends"),
        Parameter("producers", 2, "producers at once", most=20),
    ),
)
