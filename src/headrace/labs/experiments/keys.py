"""The key decides: on the partition, on what is read together, on the order.

Every record gets a random key from 1 to 5. All records of a key lie in one partition, hash(key) mod partitions, so they
keep their order; between keys there is none. A consumer that wants one key, or a few, reads and filters; one that wants
a key that was never used gets nothing and ends as well. The counts of the keys add up to all records.

Which partition a key goes to is computed beforehand (murmur2, as Java's clients do) and compared with where its records
really are.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from math import sqrt

from headrace import ConsumeOptions, Filter, ProduceOptions, Record, Shaping, consume, partition_of, produce
from headrace.labs.expect import between
from headrace.labs.figures import COLOURS, Figure
from headrace.labs.lab import Lab, Parameter
from headrace.labs.workbench import Workbench

_ABSENT = "100"


def run(lab: Workbench) -> None:
    count, most = lab.p.records, lab.p.keys
    keys = [str(key) for key in range(1, most + 1)]
    lab.step(f"{count:,} records with a random key from 1 to {most}")
    topic = lab.topic("keyed", partitions=lab.p.partitions)
    file = lab.numbers(count, "numbers.ndjson")
    lab.shows(f"headrace produce {topic} numbers.ndjson --random-key 1-{most} --seed {lab.seed}")
    shaping = Shaping(random_key=(1, most), seed=lab.seed)
    report = produce(lab.cluster, topic, file, options=ProduceOptions(shaping=shaping))
    lab.check("records acknowledged", count, report.acknowledged)

    lab.step("Where each key goes", "hash(key) mod partitions, computed before any record is read.")
    lab.shows(*(f"headrace topic which-partition {topic} {key}" for key in keys))
    everything = list(consume(lab.cluster, topic))
    places: dict[str, set[int]] = defaultdict(set)
    for record in everything:
        places[(record.key or b"").decode()].add(record.partition)
    for key in keys:
        lab.check(f"partition of key {key}", {partition_of(key.encode(), lab.p.partitions)}, places[key])
    lab.figure("partitions", "Records by key and partition",
               _draw, everything, keys, height=2.8)  # fmt: skip

    lab.step("One key at a time", "Read in any order of the keys, each one is in the order in which it was sent.")
    counts = {}
    for key in reversed(keys):
        lab.shows(f"headrace consume {topic} --key {key}")
        read = _read(lab, topic, [key])
        counts[key] = len(read)
        lab.check(f"key {key}: nothing but this key", {key}, {(record.key or b"").decode() for record in read})
        numbers = [json.loads(record.value or b"")["n"] for record in read]
        lab.check(f"key {key}: in the order of sending", True, numbers == sorted(numbers))
    rarest = min(counts.values())
    lab.table("records by key", ["key", "records"], sorted(counts.items()))
    lab.check("the counts add up", count, sum(counts.values()))
    fair = count / most
    # Five standard deviations: the die would have to be loaded.
    lab.check("the rarest key is as frequent as chance allows", between(max(1, fair - 5 * sqrt(fair)), fair), rarest)

    lab.step("Some keys, and one that does not exist")
    lab.shows(f"headrace consume {topic} --key 1 --key 3", f"headrace consume {topic} --key {_ABSENT}")
    lab.check("keys 1 and 3 together", counts["1"] + counts["3"], len(_read(lab, topic, ["1", "3"])))
    lab.check(f"key {_ABSENT}: nothing, and the reading ends", 0, len(_read(lab, topic, [_ABSENT])))
    lab.watch(topic, count)


def _read(lab: Workbench, topic: str, keys: Sequence[str]) -> list[Record]:
    wanted = Filter(keys=frozenset(key.encode() for key in keys))
    return list(consume(lab.cluster, topic, options=ConsumeOptions(filter=wanted)))


def _draw(figure: Figure, records: Sequence[Record], keys: Sequence[str]) -> None:
    axes = figure.subplots()
    partitions = range(max(record.partition for record in records) + 1)
    below = [0] * len(partitions)
    for key, colour in zip(keys, COLOURS, strict=False):
        counts = [sum(r.partition == p and r.key == key.encode() for r in records) for p in partitions]
        axes.bar(partitions, counts, bottom=below, label=f"key {key}", color=colour, width=0.6)
        below = [a + b for a, b in zip(below, counts, strict=True)]
    axes.set_xticks(list(partitions))
    axes.set_xlabel("partition")
    axes.set_ylabel("records")
    axes.legend(ncols=len(keys), loc="upper center", bbox_to_anchor=(0.5, 1.18))


LAB = Lab(
    "S2",
    ("S2.F", "S3.3"),
    run,
    parameters=(
        Parameter("records", 1000, "records with a random key", least=100),
        Parameter("keys", 5, "the highest key", least=3, most=8),
        Parameter("partitions", 6, "partitions of the topic", most=100),
    ),
)
