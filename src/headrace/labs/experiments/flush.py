"""What flush does, and what it does not do.

A producer does not send a record at once: it puts it into a buffer, and a background thread sends what is there, in
batches. A delivery report says what became of a record; it is handed over only when the program asks
for it, by poll or flush. So four ways of flushing are tried:

    none      nothing is asked for: no report ever comes, and a program that ends at once loses what is in the buffer
    end       once, after the last record: all reports come then
    each      after every record: each report comes before the next record is sent, and everything is slow
    paced     a pause of 2 s after every 5th record, a flush after every 15th

While they run, a consumer notes when it sees each record. Expected: it sees them soon after they were sent, with or
without a flush; only the reports wait for the flush.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from headrace.labs.background import Sighting
from headrace.labs.expect import at_least, at_most
from headrace.labs.figures import BLUE, GREY, ORANGE, Figure
from headrace.labs.lab import Lab, Parameter
from headrace.labs.workbench import Workbench, quoted

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass
class _Timeline:
    """When each record was sent, reported and seen, in seconds since the first was sent."""

    mode: str
    sent: dict[int, float] = field(default_factory=dict)
    reported: dict[int, float] = field(default_factory=dict)
    seen: dict[int, float] = field(default_factory=dict)
    flushes: list[tuple[float, float]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return max([*self.sent.values(), *self.reported.values()])

    def delays(self) -> list[float]:
        return [self.seen[number] - at for number, at in self.sent.items() if number in self.seen]


def run(lab: Workbench) -> None:
    lab.step("A topic, and numbers to send")
    topic = lab.topic("flushed", partitions=1)
    lab.numbers(max(lab.p.records, lab.p.paced_records))
    lab.step("No flush", "The program sends and never asks. The producer lives on for a while; then it is dropped.")
    # What it has no report of when it ends counts as failed.
    lab.shows(f"headrace produce {topic} numbers.txt --flush none", code=1)
    none = _run(lab, topic, "none", lab.p.records)
    lab.check("delivery reports", 0, len(none.reported))
    lab.check("records that the consumer saw all the same", lab.p.records, len(none.seen))
    _lost(lab, topic)

    lab.step("Flush at the end")
    lab.shows(f"headrace produce {topic} numbers.txt --flush end")
    end = _run(lab, topic, "end", lab.p.records)
    begin, _ = end.flushes[0]
    lab.check("delivery reports", lab.p.records, len(end.reported))
    lab.check("the first of them came after the flush began", at_least(begin, "s"), min(end.reported.values()))

    lab.step("Flush after each record")
    lab.shows(f"headrace produce {topic} numbers.txt --flush each")
    each = _run(lab, topic, "each", lab.p.records)
    late = sum(each.reported[n] > each.sent[n + 1] for n in range(lab.p.records - 1))
    lab.check("delivery reports", lab.p.records, len(each.reported))
    lab.check("reports that came after the next record was sent", 0, late)
    speeds = {line.mode: lab.p.records / line.seconds for line in (end, each)}
    lab.table("records a second", ["flush", "records/s"], speeds.items())
    lab.check("flushing at the end is faster", at_least(3, "times"), speeds["end"] / speeds["each"], timing=True)
    paced = _paced(lab, topic)

    lab.step("When the consumer saw them")
    lines = (none, end, each, paced)
    rows = [
        (line.mode, len(line.sent), len(line.reported), median(line.delays()), _median_report(line)) for line in lines
    ]
    lab.table("from sending, in seconds, median", ["flush", "sent", "reported", "until seen", "until reported"], rows)
    sent = sum(len(line.sent) for line in lines)
    # One more record of each line was for warming up.
    lab.watch(topic, sent + len(lines), note="Whether a program has asked for reports or not: these were delivered.")
    lab.figure("timeline", "When records were sent, seen by the consumer, and reported as delivered",
               _draw, lines, height=6.2)  # fmt: skip


def _paced(lab: Workbench, topic: str) -> _Timeline:
    every, pause, flush = lab.p.pause_every, lab.p.pause_s, lab.p.flush_every
    lab.step(
        f"Pause {pause:g} s every {every} records, flush every {flush}",
        "Does the consumer get each record at once, or only after a flush?",
    )
    lab.shows(f"headrace produce {topic} numbers.txt --pause-every {every}:{pause:g}s --flush every:{flush}")
    paced = _run(lab, topic, "paced", lab.p.paced_records)
    lab.check("delivery reports", lab.p.paced_records, len(paced.reported))
    ends = [end for _, end in paced.flushes]
    bunches = {next(i for i, end in enumerate(ends) if at <= end + 0.001) for at in paced.reported.values()}
    lab.check("reports come in as many bunches as there are flushes", len(ends), len(bunches), timing=True)
    lab.check("the consumer sees a record soon", at_most(pause / 2, "s (median)"), median(paced.delays()), timing=True)
    # The last few before a flush are reported as soon as they are seen; the first ones of a round wait for pauses.
    early = [n for n in paced.sent if n % flush < every]
    waited = median(paced.reported[n] - paced.seen[n] for n in early)
    lab.check(
        "the first records of a round are seen long before they are reported",
        at_least(pause, "s earlier"),
        waited,
        timing=True,
    )
    return paced


def _run(lab: Workbench, topic: str, mode: str, records: int) -> _Timeline:
    line = _Timeline(mode)
    with Sighting(lab.connection, [topic]) as sighting:
        producer = lab.connection.producer({"linger.ms": 5})
        # Connected and known to the brokers before the clock starts: that is not what is to be seen.
        producer.produce(topic, "-1")
        producer.flush(30)
        before = lab.describe(topic).offsets or 0
        sighting.wait_for(before)
        zero = time.monotonic()
        for number in range(records):
            _send(producer, topic, number, line, zero)
            _after(lab, producer, number + 1, line, zero)
        if mode == "end" or (mode == "paced" and records % lab.p.flush_every):
            _flush(producer, line, zero)
        sighting.wait_for(before + records)
        if mode == "none":
            # Nobody polls it, so its reports are dropped with it.
            del producer
        line.seen = {int(s.record.value or b""): s.at - zero for s in sighting.seen[before:]}
    return line


def _send(producer: Any, topic: str, number: int, line: _Timeline, zero: float) -> None:
    def delivered(error: object, _: object) -> None:
        if error is None:
            line.reported[number] = time.monotonic() - zero

    line.sent[number] = time.monotonic() - zero
    producer.produce(topic, str(number), on_delivery=delivered)


def _after(lab: Workbench, producer: Any, count: int, line: _Timeline, zero: float) -> None:
    if line.mode == "each" or (line.mode == "paced" and count % lab.p.flush_every == 0):
        _flush(producer, line, zero)
    if line.mode == "paced" and count % lab.p.pause_every == 0:
        lab.wait(lab.p.pause_s)


def _flush(producer: Any, line: _Timeline, zero: float) -> None:
    begin = time.monotonic() - zero
    producer.flush(30)
    line.flushes.append((begin, time.monotonic() - zero))


_ENDS_AT_ONCE = """
import sys
from headrace import Cluster, Connection
producer = Connection(Cluster().bootstrap).producer({"linger.ms": 1000})
for number in range(int(sys.argv[2])):
    producer.produce(sys.argv[1], str(number))
print(len(producer))
"""


def _lost(lab: Workbench, topic: str) -> None:
    lab.step(
        "A program that ends at once", "It sends and ends. With a linger of a second nothing has left its buffer yet."
    )
    before = lab.describe(topic).offsets or 0
    words = quoted(topic, lab.p.records)
    output = lab.types(f"python - {words} <<'END'\n{_ENDS_AT_ONCE.strip()}\nEND")
    lab.check("records in the buffer when it ended", str(lab.p.records), output.out.strip())
    lab.wait(1.5)
    lab.check("of these in the topic afterwards", 0, (lab.describe(topic).offsets or 0) - before)


def _median_report(line: _Timeline) -> float | None:
    return median(line.reported[n] - line.sent[n] for n in line.reported) if line.reported else None


def _draw(figure: Figure, lines: Sequence[_Timeline]) -> None:
    grid = figure.subplot_mosaic([[line.mode for line in lines[:3]], [lines[3].mode] * 3], height_ratios=[1, 2])
    for line in lines:
        _panel(grid[line.mode], line, 40 if line.mode != "paced" else len(line.sent))
    grid["paced"].legend(loc="upper left", markerscale=1.6)
    grid["none"].set_ylabel("record")
    grid["paced"].set_ylabel("record")
    grid["paced"].set_xlabel("seconds")


def _panel(axes: Axes, line: _Timeline, most: int) -> None:
    axes.set_title(f"flush: {line.mode}")
    for what, times, colour, marker in (
        ("sent", line.sent, GREY, "|"),
        ("seen by the consumer", line.seen, ORANGE, "o"),
        ("reported", line.reported, BLUE, "x"),
    ):
        shown = {number: at for number, at in times.items() if number < most}
        axes.scatter(list(shown.values()), list(shown), s=14, color=colour, marker=marker, label=what, linewidths=1)


LAB = Lab(
    "S2",
    ("S2.G",),
    run,
    parameters=(
        Parameter("records", 1000, "records that are sent in the first three ways", fast=150, least=50, most=20_000),
        Parameter("paced_records", 90, "records that are sent with pauses", fast=30, least=30, most=2000),
        Parameter("pause_every", 5, "records between two pauses", least=2, most=100),
        Parameter("pause_s", 2.0, "length of a pause in seconds", fast=0.5, least=0.3, most=60),
        Parameter("flush_every", 15, "records between two flushes", least=5, most=500),
    ),
    # Else no record would wait for its report through the pauses.
    rules={
        "flush_every is more than twice pause_every": lambda p: p.flush_every > 2 * p.pause_every,
        "flush_every is at most paced_records": lambda p: p.flush_every <= p.paced_records,
    },
    waits=True,
)
