"""The settings that everybody meets first, each shown to work.

    retention.ms          old segments vanish, offsets continue
    retention.bytes       so do those before the last so many bytes of a partition
    cleanup.policy        compact keeps the last value of each key, and forgets the earlier ones
    tombstones            a null value makes compaction forget the key altogether
    partitions            can grow, and never shrink
    auto.offset.reset     where a group begins that has no offset yet: earliest or latest
    acks                  what a producer waits for: 0 nothing, 1 the leader, all every replica in the ISR

By default Kafka checks every five minutes for segments to delete, and every 15 seconds for something to compact. The
labs' cluster checks every second.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from functools import partial
from statistics import median

from headrace import ConsumeOptions, ProduceOptions, Shaping, consume, produce
from headrace.labs.clusters import OWN_SETTINGS
from headrace.labs.expect import at_least, at_most, between, contains
from headrace.labs.figures import BLUE, Figure
from headrace.labs.lab import Lab, Needs, Parameter
from headrace.labs.workbench import Workbench

_WARM_UP = 20
# Kafka refuses smaller segments; so many breadcrumbs fill more than six of them.
_SMALLEST = 1_048_576
_MANY = 25_000


def run(lab: Workbench) -> None:
    _retention(lab)
    _retention_bytes(lab)
    _compaction(lab)
    _partitions(lab)
    _offset_reset(lab)
    _acks(lab)


def _retention(lab: Workbench) -> None:
    keeps_ms = int(lab.p.retention_s * 1000)
    lab.step(
        f"retention.ms={keeps_ms}", "A segment whose youngest record is older than that is deleted as a whole file."
    )
    configs = {"retention.ms": str(keeps_ms), "segment.ms": "500", "file.delete.delay.ms": "100"}
    topic = lab.topic("expiring", configs=configs)
    began = time.time()
    first = lab.produce(topic, pipe=f"seq -f 'old %.0f' {lab.p.records}")
    before = _segments(lab, topic)
    lab.check("records before", first, lab.describe(topic).offsets)
    lab.until(lambda: not lab.describe(topic).offsets, lab.p.retention_s + 60, "the expiry")
    age = time.time() - began
    lab.measure("age of the records when all were gone", age, "s")
    lab.check("not before their time", at_least(lab.p.retention_s, "s"), age)
    after = lab.describe(topic).partitions[0]
    lab.check("first offset now", first, after.begin)
    lab.until(lambda: not set(before) & set(_segments(lab, topic)), 30, "the removal of the files")
    lab.table("log files on disk", ["", "files"], [("before", before), ("after", _segments(lab, topic))])
    lab.check("old files that are still there", set(), set(before) & set(_segments(lab, topic)))
    lab.produce(topic, pipe="echo new")
    lab.check("the next record's offset", first, (lab.describe(topic).partitions[0].end or 0) - 1)


def _retention_bytes(lab: Workbench) -> None:
    keeps, segment = 3 * _SMALLEST, _SMALLEST
    lab.step(
        f"retention.bytes={keeps}",
        "Whole segments are deleted, the oldest first, as long as the rest of the partition is at least that large.",
    )
    configs = {"retention.bytes": str(keeps), "segment.bytes": str(segment), "file.delete.delay.ms": "100"}
    topic = lab.topic("limited", configs=configs)
    lab.sample("breadcrumbs", _MANY, "many.json")
    lab.check("records acknowledged", _MANY, lab.produce(topic, "many.json", "--set batch.size=16384"))
    (size,) = lab.kafka.topic_sizes([topic])
    lab.measure("bytes before", size.size_bytes or 0, "bytes")

    def trimmed() -> bool:
        (now,) = lab.kafka.topic_sizes([topic])
        return keeps <= (now.size_bytes or 0) < keeps + segment

    lab.until(trimmed, 90, "the deletion of the oldest segments", every_s=0.5)
    (size,) = lab.kafka.topic_sizes([topic])
    found = lab.describe(topic).partitions[0]
    lab.check("bytes that are left", between(keeps, keeps + segment, "bytes"), size.size_bytes)
    lab.check("the oldest records are gone", at_least(1, "of them"), found.begin)
    lab.check("the newest are there", _MANY, found.end)


def _segments(lab: Workbench, topic: str) -> list[str]:
    """The names of the log files of partition 0, on the broker that leads it."""
    leader = lab.kafka.topic(topic).partitions[0].leader
    return [segment.log.name for segment in lab.cluster.segments(topic)[leader, 0]]


def _compaction(lab: Workbench) -> None:
    keys, rounds = lab.p.keys, 5
    lab.step("cleanup.policy=compact", f"{keys} keys get {rounds} values each; only the last one of each must stay.")
    configs = {"cleanup.policy": "compact", "segment.ms": "500", "min.cleanable.dirty.ratio": "0.01",
               "min.compaction.lag.ms": "0", "delete.retention.ms": "100"}  # fmt: skip
    topic = lab.topic("latest", configs=configs)
    options = ProduceOptions(shaping=Shaping(key_field="key"))
    rows = [{"key": f"k{key}", "value": number} for number in range(1, rounds + 1) for key in range(keys)]
    lab.types(f"for value in $(seq {rounds}); do for key in $(seq 0 {keys - 1}); do "
              f"echo '{{\"key\":\"k'$key'\",\"value\":'$value'}}'; done; done > values.ndjson")  # fmt: skip
    lab.check("lines of the file", rows, [json.loads(line) for line in _lines(lab, "values.ndjson")])
    lab.produce(topic, "values.ndjson", "--key-field key")
    lab.check("values before", keys * rounds, sum(1 for _ in consume(lab.cluster, topic)))

    def compacted() -> bool:
        # Only closed segments are compacted, and a segment is closed by the next record after its time.
        produce(lab.cluster, topic, [{"key": "closing", "value": 0}], options=options)
        return bool(len(_values(lab, topic, "k")) == keys)

    lab.until(compacted, 90, "the compaction", every_s=1.0)
    left = _values(lab, topic, "k")
    lab.check("values of these keys that are left", keys, len(left))
    lab.check("they are the last ones", {rounds}, {value for _, value in left})
    lab.check("keys that are left", keys, len({key for key, _ in left}))
    offsets = sorted(record.offset for record in consume(lab.cluster, topic))
    lab.check("offsets stay what they were", at_least(keys * (rounds - 1)), offsets[0])
    _tombstones(lab, topic, keys, options)


def _lines(lab: Workbench, file: str) -> list[bytes]:
    return (lab.files / file).read_bytes().splitlines()


def _tombstones(lab: Workbench, topic: str, keys: int, options: ProduceOptions) -> None:
    lab.step(
        "A tombstone for k0", "A record with that key and no value: compaction removes the key, and then the tombstone."
    )
    lab.types(f"echo gone | headrace produce {topic} --key k0 --null-value gone")
    stones = [record for record in consume(lab.cluster, topic) if record.key == b"k0" and record.value is None]
    lab.check("tombstones in the topic", 1, len(stones))

    def forgotten() -> bool:
        produce(lab.cluster, topic, [{"key": "closing", "value": 0}], options=options)
        return not any(record.key == b"k0" for record in consume(lab.cluster, topic))

    lab.until(forgotten, 120, "the removal of the key", every_s=1.0)
    left = {key for key, _ in _values(lab, topic, "k")}
    lab.check("records of k0, tombstones too", 0, sum(r.key == b"k0" for r in consume(lab.cluster, topic)))
    lab.check("all other keys are there", {f"k{number}" for number in range(1, keys)}, left)


def _values(lab: Workbench, topic: str, prefix: str) -> list[tuple[str, int]]:
    records = (json.loads(record.value) for record in consume(lab.cluster, topic) if record.value)
    return [(row["key"], row["value"]) for row in records if row["key"].startswith(prefix)]


def _partitions(lab: Workbench) -> None:
    lab.step("partitions", "More of them let more consumers read at once; there is no way back.")
    topic = lab.topic("growing", partitions=2)
    lab.types(f"headrace topic alter {topic} --partitions 4")
    lab.check("partitions after growing", 4, len(lab.kafka.topic(topic).partitions))
    refused = lab.types(f"headrace topic alter {topic} --partitions 2", code=2)
    lab.check("shrinking is refused", contains("cannot remove partitions"), refused.err)
    lab.check("replication factor", 3, lab.kafka.topic(topic).replication)


def _offset_reset(lab: Workbench) -> None:
    lab.step(
        "auto.offset.reset", "Two new groups on a topic with records; one begins at the beginning, one at the end."
    )
    topic = lab.topic("resetting")
    lab.produce(topic, pipe="seq -f 'before %.0f' 10")
    seen: dict[str, int] = {}
    for reset in ("earliest", "latest"):
        group = lab.group(f"lab-configs-{reset}")
        lab.shows(f"headrace consume {topic} --group {group} --set auto.offset.reset={reset}")
        options = ConsumeOptions(group=group, settings={"auto.offset.reset": reset})
        seen[reset] = sum(1 for _ in consume(lab.cluster, topic, options=options))
    lab.check("earliest: records of the past", 10, seen["earliest"])
    lab.check("latest: records of the past", 0, seen["latest"])
    lab.produce(topic, pipe="seq -f 'after %.0f' 5")
    lab.check("latest: records that came afterwards", 5, lab.count(topic, group))
    offsets = lab.kafka.groups.describe(group).offsets or ()
    lab.check("its committed offset then", [15], [offset.committed for offset in offsets])


def _acks(lab: Workbench) -> None:
    lab.step("acks", "The same records with 0, 1 and all: one after another (how long each takes), and in bulk.")
    topic = lab.topic("acknowledged", partitions=3)
    lab.types(f"seq -f '%0100.0f' {lab.p.bulk} > numbers.txt")
    rows: list[tuple[str, float, float, str]] = []
    latencies: dict[str, list[float]] = {}
    for acks in ("0", "1", "all"):
        lab.shows(f"headrace produce {topic} numbers.txt --acks {acks} --no-idempotence")
        settings = {"acks": acks, "enable.idempotence": False}
        before = _grown(lab, topic, 0) + lab.p.singles + _WARM_UP
        waits, offsets = _one_by_one(lab, topic, settings)
        lab.until(partial(_has_grown, lab, topic, before), 30, "the arrival of the single records")
        bulk = produce(
            lab.cluster, topic, (b"%0100d" % n for n in range(lab.p.bulk)), options=ProduceOptions(settings=settings)
        )
        # With acks=0 they are on their way when the producer is done with them.
        lab.until(partial(_has_grown, lab, topic, before + lab.p.bulk), 30, "the arrival of all records")
        latencies[acks] = waits
        rows.append((acks, median(waits) * 1000, bulk.acknowledged / bulk.seconds, "known" if offsets else "unknown"))
        lab.check(f"acks={acks}: records in the topic", lab.p.bulk, _grown(lab, topic, before))
    lab.table("measured", ["acks", "one record, ms (median)", "in bulk, records/s", "offset in the report"], rows)
    lab.check("acks=0: the report has no offset, because no broker answered", "unknown", rows[0][3])
    lab.check("acks=1 and all: it does", ["known", "known"], [rows[1][3], rows[2][3]])
    lab.check("acks=0 waits less than acks=all", at_most(median(latencies["all"])), median(latencies["0"]),
              timing=True)  # fmt: skip
    lab.figure("acks", "How long one record takes, by acks", _draw, latencies, height=2.6)


def _grown(lab: Workbench, topic: str, before: int) -> int:
    return (lab.describe(topic).offsets or 0) - before


def _has_grown(lab: Workbench, topic: str, to: int) -> bool:
    return _grown(lab, topic, to) >= 0


def _one_by_one(lab: Workbench, topic: str, settings: Mapping[str, object]) -> tuple[list[float], bool]:
    """Seconds from each record to its report, and whether reports name an offset."""
    producer = lab.connection.producer({**settings, "linger.ms": 0})
    offsets: list[int | None] = []
    waits: list[float] = []
    for number in range(lab.p.singles + _WARM_UP):
        began = time.monotonic()
        producer.produce(topic, str(number), on_delivery=lambda _, message: offsets.append(message.offset()))
        producer.flush(30)
        if number >= _WARM_UP:
            waits.append(time.monotonic() - began)
    return waits, all(offset is not None and offset >= 0 for offset in offsets)


def _draw(figure: Figure, latencies: Mapping[str, Iterable[float]]) -> None:
    axes = figure.subplots()
    values = [[seconds * 1000 for seconds in waits] for waits in latencies.values()]
    axes.boxplot(values, orientation="horizontal", showfliers=False, widths=0.5,
                 medianprops={"color": BLUE, "linewidth": 2}, tick_labels=[f"acks={a}" for a in latencies])  # fmt: skip
    axes.set_xlabel("milliseconds")
    axes.set_xlim(0)


LAB = Lab(
    "S3",
    ("S3.4",),
    run,
    needs=Needs(kafka=OWN_SETTINGS),
    parameters=(
        Parameter("records", 1000, "records that expire", fast=200),
        Parameter("retention_s", 5.0, "seconds that they are kept", fast=4.0, least=2, most=600),
        Parameter("keys", 20, "keys of the compacted topic", least=2, most=1000),
        Parameter(
            "singles", 300, "records that are sent one after another, for each acks", fast=100, least=20, most=10_000
        ),
        Parameter("bulk", 100_000, "records that are sent in bulk, for each acks", fast=10_000, least=100),
    ),
)
