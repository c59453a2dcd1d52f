"""Segments: the files of a partition, opened and compared with Kafka's own tool.

A partition is a folder; in it lie segments, each named after the first offset in it. A segment is closed when it is
large enough or old enough, and a new one begun. Beside each log file lie two indexes: from an offset to a position in
the file, and from a time to an offset. Records are stored in batches, as the producer sent them.

Without settings of its own a topic closes a segment at 1 GB or after a week; that is read from a broker. The segments
here are smaller, so that there are several of them within seconds.

Everything shown here is read from the files by headrace's own reader. Kafka's kafka-dump-log then reads the same files,
and both must agree batch by batch: offsets, positions, sizes, codec, producer, sequence numbers, checksum.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from headrace import Segment, TransactionPlan, produce, produce_in_transactions
from headrace.labs.expect import at_least
from headrace.labs.figures import BLUE, ORANGE, Figure
from headrace.labs.lab import Lab, Parameter
from headrace.labs.workbench import Workbench

# Kafka refuses smaller segments.
_SMALLEST = 1_048_576
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def run(lab: Workbench) -> None:
    _defaults(lab)
    rolled = _roll_by_size(lab)
    _roll_by_age(lab)
    packed = _codecs(lab)
    marked = _transactions(lab)
    _agrees(lab, [rolled, *packed, marked])


def _defaults(lab: Workbench) -> None:
    lab.step(
        "1 GB or 1 week",
        "A segment is closed when it is as large or as old as that, whichever comes first, unless a topic says else.",
    )
    topic = lab.topic("by-default")
    configs = lab.kafka.topic_configs(topic)
    broker = lab.kafka.broker_configs(min(lab.kafka.live_brokers()))
    settings = ("segment.bytes", "segment.ms", "retention.ms")
    lab.shows(f"headrace topic describe {topic} --all")
    lab.table("of a topic without settings of its own", ["setting", "value"], [(s, configs[s].value) for s in settings])
    lab.check("segment.bytes: 1 GB", str(1 << 30), configs["segment.bytes"].value)
    lab.check("segment.ms: 1 week", str(7 * 24 * 3600 * 1000), configs["segment.ms"].value)
    lab.check("log.segment.bytes, as a broker says", str(1 << 30), broker["log.segment.bytes"].value)
    lab.check("log.roll.hours, as a broker says: 168 are a week", "168", broker["log.roll.hours"].value)


def _roll_by_size(lab: Workbench) -> Segment:
    lab.step(f"A new segment every {_SMALLEST:,} bytes", "The name of each is the offset of its first record.")
    topic = lab.topic("rolling", configs={"segment.bytes": str(_SMALLEST)})
    lab.sample("breadcrumbs", lab.p.records, "day.json")
    sent = lab.produce(topic, "day.json", "--set batch.size=16384")
    found = _segments(lab, topic)
    folder = found[0].log.parent
    output = lab.types(f"headrace topic segments {topic}")
    lab.check("segments that are listed", len(found), sum(output.out.count(s.log.stem) > 0 for s in found))
    output = lab.types(f"ls {lab.shown_path(folder)}", most=14)
    lab.check("files that are there", {file.name for file in folder.iterdir()}, set(output.out.split()))
    rows = [(s.log.name, s.next_offset - 1, s.size_bytes, len(list(s.batches())), len(s.index()), len(s.time_index()))
            for s in found]  # fmt: skip
    lab.table("segments", ["file", "last offset", "bytes", "batches", "index entries", "time index entries"], rows)
    total = sum(segment.size_bytes for segment in found)
    lab.check("segments", at_least(max(2, total // _SMALLEST)), len(found))
    lab.check("each is named after its first offset", [s.base_offset for s in found],
              [next(s.batches()).base_offset for s in found])  # fmt: skip
    lab.check(
        "each begins where the one before ends", True, all(b.base_offset == a.next_offset for a, b in pairwise(found))
    )
    lab.check("none but the last is larger than it may be", True, all(s.size_bytes <= _SMALLEST for s in found))
    lab.check("records in all of them", sent, sum(b.records for s in found for b in s.batches()))
    _indexes(lab, found)
    return found[0]


def _indexes(lab: Workbench, found: list[Segment]) -> None:
    lab.step(
        "The indexes", "An offset is looked up as a broker does it: the entry before it, then onwards in the log file."
    )
    segment = found[0]
    lab.table("the first entries", ["offset", "position"], [(e.offset, e.position) for e in segment.index()[:4]])
    starts = {batch.position: batch for s in found[:1] for batch in s.batches()}
    lab.check(
        "every entry points to the beginning of a batch", True, all(e.position in starts for e in segment.index())
    )
    lab.check("and that batch holds the offset", True, all(
        starts[e.position].base_offset <= e.offset <= starts[e.position].last_offset for e in segment.index()
    ))  # fmt: skip
    wanted = [lab.random.randrange(found[-1].next_offset) for _ in range(lab.p.lookups)]
    hits = 0
    for offset in wanted:
        holder = [each for each in found if each.base_offset <= offset][-1]
        batch = holder.find(offset)
        hits += bool(batch and batch.base_offset <= offset <= batch.last_offset)
    lab.check(f"{lab.p.lookups} random offsets found through the index", lab.p.lookups, hits)
    late = [
        (entry, batch)
        for entry in segment.time_index()
        for batch in segment.batches()
        if batch.base_offset <= entry.offset and batch.max_timestamp_ms > entry.timestamp_ms
    ]
    lab.check("time index entries with a younger record before them", 0, len(late))


def _roll_by_age(lab: Workbench) -> None:
    age_ms = int(lab.p.age_s * 1000)
    lab.step(f"A new segment every {lab.p.age_s:g} s", "A segment is closed by the first record after its time.")
    topic = lab.topic("ageing", configs={"segment.ms": str(age_ms)})
    lab.shows(f'for n in $(seq 0 {lab.p.ages - 1}) ; do echo "record $n" | headrace produce {topic} ; '
              f"sleep {lab.p.age_s * 1.2:g} ; done", f"headrace topic segments {topic}")  # fmt: skip
    for number in range(lab.p.ages):
        if number:
            lab.wait(lab.p.age_s * 1.2)
        produce(lab.cluster, topic, [f"record {number}"])
    found = _segments(lab, topic)
    lab.table("segments", ["file", "bytes"], [(segment.log.name, segment.size_bytes) for segment in found])
    lab.check("segments, one for each record", [f"{n:020}.log" for n in range(lab.p.ages)], [s.log.name for s in found])


def _codecs(lab: Workbench) -> list[Segment]:
    lab.step(
        "What one record costs",
        "The same breadcrumbs, compressed by the producer in five ways. Brokers store what they get.",
    )
    rows: list[tuple[str, int, float, float]] = []
    packed: list[Segment] = []
    lab.sample("breadcrumbs", 1000, "bcsample.json")
    for codec in _CODECS:
        topic = lab.topic(f"packed-{codec}")
        lab.produce(topic, "bcsample.json", f"--compression {codec} --set linger.ms=50")
        (segment,) = _segments(lab, topic)
        packed.append(segment)
        batches = list(segment.batches())
        plain = sum(segment.plain_bytes(batch) or 0 for batch in batches)
        records = [record for batch in batches for record in segment.records(batch)]
        lab.check(f"{codec}: codec of the batches", {codec}, {batch.codec for batch in batches})
        lab.check(f"{codec}: records unpacked", 1000, len(records))
        lab.check(f"{codec}: batches whose checksum holds", len(batches),
                  sum(map(segment.checksum_holds, batches)))  # fmt: skip
        rows.append((codec, segment.size_bytes, plain / segment.size_bytes, segment.size_bytes / len(records)))
        if codec != "none":
            lab.check(f"{codec}: smaller than without", at_least(1.5, "times"), plain / segment.size_bytes)
    lab.table("1,000 breadcrumbs", ["codec", "bytes", "ratio", "bytes a record"], rows)
    lab.figure("codecs", "Bytes on disk of one breadcrumb, by codec", _draw, rows, height=2.6)
    return packed


def _transactions(lab: Workbench) -> Segment:
    lab.step("Control batches", "The end of a transaction is a record too: a marker that no consumer is ever given.")
    topic = lab.topic("marked")
    plan = TransactionPlan(size=3, commit_probability=0.5, seed=lab.seed)
    numbers = lab.numbers(18)
    lab.shows(f"headrace produce {topic} numbers.txt --transaction 3 --commit-probability 0.5 --seed {lab.seed}")
    report = produce_in_transactions(lab.cluster, topic, numbers, plan)
    (segment,) = _segments(lab, topic)
    lab.until(lambda: len(_markers(segment)) == 6, 20, "the writing of the markers")
    lab.shows(f"headrace topic segments {topic} --batches")
    rows = [
        (f"{b.base_offset} to {b.last_offset}", b.records, str(b.producer_id), str(b.producer_epoch),
         str(b.base_sequence), "control" if b.control else "transactional")
        for b in list(segment.batches())[:6]
    ]  # fmt: skip
    lab.table("the first batches", ["offsets", "records", "producer", "epoch", "sequence", "kind"], rows)
    outcomes = [transaction.outcome for transaction in report.transactions]
    lab.check(
        "markers, in order", [{"committed": "commit", "aborted": "abort"}[o] for o in outcomes], _markers(segment)
    )
    lab.check("aborted transactions in the .txnindex", outcomes.count("aborted"), len(segment.aborted()))
    return segment


def _markers(segment: Segment) -> list[str | None]:
    return [record.control for batch in segment.batches() if batch.control for record in segment.records(batch)]


# -- what Kafka's own tool says ---------------------------------------------------------------------------------

_LINE = re.compile(
    r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+) baseSequence: (-?\d+) lastSequence: -?\d+ producerId: (-?\d+) "
    r"producerEpoch: (-?\d+) partitionLeaderEpoch: (\d+) isTransactional: (\w+) isControl: (\w+) .*?position: (\d+) "
    r"(?:CreateTime|LogAppendTime): (\d+) size: (\d+) magic: 2 compresscodec: (\w+) crc: (\d+) isvalid: (\w+)"
)


def _agrees(lab: Workbench, found: list[Segment]) -> None:
    lab.step("What Kafka's own tool says", "It reads the same files: log files and offset indexes.")
    files = [file for segment in found for file in (segment.log, segment.log.with_suffix(".index"))]
    output = lab.types(f"headrace lab tool kafka-dump-log --files {','.join(lab.shown_path(file) for file in files)}",
                     most=4, within_s=300).out  # fmt: skip
    by_file = dict(re.findall(r"^Dumping (\S+)\n(.*?)(?=^Dumping |\Z)", output, re.MULTILINE | re.DOTALL))
    lab.check("files that it reads", len(files), len(by_file), look=output[:200])
    for segment in found:
        name = segment.log.parent.name
        theirs = [tuple(words) for words in _LINE.findall(by_file[lab.shown_path(segment.log)])]
        ours = list(_as_told(segment))
        lab.check(f"{name}: batches that it reads", len(ours), len(theirs))
        differing = [(a, b) for a, b in zip(ours, theirs, strict=False) if a != b]
        lab.check(f"{name}: batches of which it says something else", 0, len(differing), look=str(differing[:1]))
        entries = _index_entries(by_file[lab.shown_path(segment.log.with_suffix(".index"))])
        lab.check(f"{name}: index entries alike", True, entries == [(e.offset, e.position) for e in segment.index()])


def _as_told(segment: Segment) -> Iterator[tuple[str, ...]]:
    """The batches in the order of words of the tool."""
    for batch in segment.batches():
        facts = (
            batch.base_offset, batch.last_offset, batch.records, batch.base_sequence, batch.producer_id,
            batch.producer_epoch, batch.leader_epoch, str(batch.transactional).lower(), str(batch.control).lower(),
            batch.position, batch.max_timestamp_ms, batch.size_bytes, batch.codec, batch.checksum, "true",
        )  # fmt: skip
        yield tuple(map(str, facts))


def _index_entries(output: str) -> list[tuple[int, int]]:
    # The tool prints an index without entries as one entry of zeros.
    found = [(int(offset), int(position)) for offset, position in re.findall(r"offset: (\d+) position: (\d+)", output)]
    return [entry for entry in found if entry[1]]


def _segments(lab: Workbench, topic: str) -> list[Segment]:
    """The segments of partition 0, on the broker that leads it."""
    return lab.cluster.segments(topic)[lab.kafka.topic(topic).partitions[0].leader, 0]


def _draw(figure: Figure, rows: list[tuple[str, int, float, float]]) -> None:
    axes = figure.subplots()
    bars = axes.barh(
        [row[0] for row in rows], [row[3] for row in rows], color=[ORANGE, BLUE, BLUE, BLUE, BLUE], height=0.6
    )
    axes.bar_label(bars, [f" {row[3]:.0f} bytes" for row in rows], fontsize=8.5)
    axes.invert_yaxis()
    axes.set_xlabel("bytes a record")
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.15)


LAB = Lab(
    "S4",
    ("S4.2",),
    run,
    parameters=(
        Parameter("records", 12_000, "breadcrumbs that fill several segments", fast=7000, least=6000),
        Parameter("lookups", 200, "random offsets that are looked up", fast=50, most=10_000),
        Parameter("age_s", 2.0, "seconds after which a segment is closed", fast=0.5, least=0.3, most=60),
        Parameter("ages", 4, "segments that are made by age", fast=3, least=2, most=20),
    ),
)
