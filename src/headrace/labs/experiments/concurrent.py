"""Three slow producers and two consumers of one group, all at the same time.

Each producer pauses a quarter of a second after every record, so 1,000 records take more than four minutes; the
consumers read what there is as it comes. The two share the partitions between them: every record is read exactly once,
and it is known which member read it. Each producer has a key of its own, so its records are in one partition and are
read by one of the two, in order.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import Future
from math import inf
from statistics import median

from headrace import ConsumeOptions, Pace, ProduceOptions, ProduceReport, Until, eventually, produce, reading
from headrace.labs.expect import at_most, between
from headrace.labs.figures import COLOURS, Figure
from headrace.labs.lab import Lab, Parameter
from headrace.labs.workbench import Stopped, Workbench

_PARTITIONS = 6
_JOINED_WITHIN_S = 60.0


def run(lab: Workbench) -> None:
    count, producers = lab.p.records, lab.p.producers
    lab.step("An empty topic, and the sample as a file")
    topic, group = lab.topic("concurrent", partitions=_PARTITIONS), lab.group("lab-concurrent")
    sample = lab.sample("breadcrumbs", count, "bcsample.json")

    lab.step(f"Two consumers wait, then {producers} producers begin", "The consumers end when nothing comes any more.")
    lab.shows(
        f"headrace consume {topic} --group {group} --members 2 --until idle:{lab.p.idle_s:g}s &",
        f"headrace produce {topic} bcsample.json --producers {producers} --key-per-producer "
        f"--pause-ms {lab.p.pause_ms:g}",
    )
    sent: Future[ProduceReport] = Future()

    def end_if_asked(_: ProduceReport) -> None:
        try:
            lab.stop_if_asked()
        except Stopped:
            raise KeyboardInterrupt from None  # as Ctrl-C does: no more is read

    options = ProduceOptions(producers=producers, key_per_producer=True, pace=Pace(pause_s=lab.p.pause_ms / 1000),
                             on_progress=end_if_asked)  # fmt: skip
    wanted = ConsumeOptions(group=group, members=2, until=Until("idle", lab.p.idle_s))
    run = reading(lab.cluster, [topic], options=wanted)

    def write() -> None:
        try:
            eventually(run.everybody_is_here, _JOINED_WITHIN_S)
            sent.set_result(produce(lab.cluster, topic, sample, options=options))
        except BaseException as error:
            sent.set_exception(error)

    got: list[tuple[float, int, int, int, bytes]] = []
    delays: list[float] = []
    began = time.time()
    threading.Thread(target=write, daemon=True).start()
    for batch in run.batches():
        lab.stop_if_asked()
        now = time.time()
        for record in batch.records():
            got.append((now - began, record.member, record.partition, record.offset, record.key or b""))
            delays.append(now - record.timestamp_ms / 1000)
    report = sent.result()
    lab.measure("time of the producers", report.seconds, "s")
    delay_s = median(delays) if delays else inf
    lab.measure("from being sent to being read, median", delay_s, "s")
    lab.check("records acknowledged", count * producers, report.acknowledged)
    pauses = count * lab.p.pause_ms / 1000
    lab.check("the pauses were made", between(pauses, pauses * 1.5 + 10, "s"), report.seconds, timing=True)

    lab.step("Who read what")
    places = Counter((partition, offset) for _, _, partition, offset, _ in got)
    lab.check("records read", count * producers, len(got))
    lab.check("records read more than once", 0, sum(times - 1 for times in places.values()))
    by: dict[tuple[int, int, str], int] = Counter((m, p, key.decode()) for _, m, p, _, key in got)
    lab.table("by member, partition and producer", ["member", "partition", "producer", "records"],
              [(*place, records) for place, records in sorted(by.items())])  # fmt: skip
    owners: dict[int, set[int]] = defaultdict(set)
    for _, member, partition, _, _ in got:
        owners[partition].add(member)
    lab.check("members that read a partition", {1}, {len(members) for members in owners.values()})
    lab.check("a record is read soon after it is sent", at_most(2, "s (median)"), delay_s, timing=True)
    ascending = all(
        [o for _, _, p, o, _ in got if p == partition] == sorted(o for _, _, p, o, _ in got if p == partition)
        for partition in owners
    )
    lab.check("each partition was read in order", True, ascending)
    lab.watch(topic, count * producers, {group: 0})
    lab.figure("reading", "Records read over time, by member", _draw, got, height=2.8)


def _draw(figure: Figure, got: list[tuple[float, int, int, int, bytes]]) -> None:
    axes = figure.subplots()
    for member, colour in zip(sorted({m for _, m, *_ in got}), COLOURS, strict=False):
        times = sorted(at for at, m, *_ in got if m == member)
        axes.step(times, range(1, len(times) + 1), where="post", label=f"member {member}", color=colour)
    axes.set_xlabel("seconds")
    axes.set_ylabel("records read")
    axes.legend()


LAB = Lab(
    "S2",
    ("S2.E",),
    run,
    parameters=(
        Parameter("records", 1000, "records that each producer sends", fast=40, least=5, most=100_000),
        Parameter("producers", 3, "producers at once", least=2, most=20),
        Parameter("pause_ms", 250.0, "pause after each record, in milliseconds", fast=25.0, least=1, most=10_000),
        # Not less in the fast profile: the producers begin when the consumers are there, and on a busy machine it takes
        # some seconds until their first records come.
        Parameter("idle_s", 10.0, "seconds of silence after which the consumers leave", least=2, most=600),
    ),
    # Else the consumers would leave between two records.
    rules={"idle_s is at least twice the pause": lambda p: p.idle_s >= 2 * p.pause_ms / 1000},
    waits=True,
)
