"""Breadcrumbs of buses through Spark: every record typed, checked and accounted for.

A day file of breadcrumbs, with damage on purpose, goes into a topic as it is and from there through the pipeline of
examples/breadcrumbs: texts become numbers, OPD_DATE and ACT_TIME become a time, and what cannot be, or breaks a rule,
leaves as a dead letter with its reason. Delta tables hold the breadcrumbs, the trips, and the speed of every vehicle in
windows of ten minutes. The file comes in two parts, so the second run must mend trips and windows that the first began.

What should come out is computed a second time, in plain Python, from the lines of the file: every row of every table is
compared with it. And the account must balance: read = written + dead + late + filtered + duplicate.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any, TypeVar

from headrace import consume, produce
from headrace.labs.examples import Example, declaration_of
from headrace.labs.figures import COLOURS, Figure
from headrace.labs.lab import Lab, Needs, Parameter
from headrace.labs.workbench import Workbench

K = TypeVar("K")

Row = dict[str, Any]

_TOPIC, _DEAD = "breadcrumbs", "breadcrumbs.dead"
_WINDOW = timedelta(minutes=10)


def run(lab: Workbench) -> None:
    lines, damaged = _day(lab)
    lab.topic(_TOPIC, partitions=6, fixed=True)
    lab.topic(_DEAD, fixed=True)
    flow = Example(lab, "breadcrumbs")
    half = len(lines) // 2
    rows: list[Row] = []
    parts = (("The first half of the day", f"head -n {half}", lines[:half]),
             ("The second half", f"tail -n +{half + 1}", lines[half:]))  # fmt: skip
    for title, cut, part in parts:
        lab.step(title, "It is sent as it is; the pipeline takes what is there and stops.")
        lab.shows(f"{cut} day.ndjson | headrace produce {_TOPIC} --input lines")
        lab.check("records acknowledged", len(part), produce(lab.cluster, _TOPIC, part).acknowledged)
        good = [row for row in map(_row, part) if row]
        report = flow.run(len(part))
        lab.measure("records through Spark", report.run.read / _seconds(report), "records/s", "of this run")
        lab.check("written and dead, as plain Python says", [len(good), len(part) - len(good)],
                  [report.run.outcomes["written"], report.run.outcomes["dead"]])  # fmt: skip
        rows += good
    lab.step("Once more", "The checkpoint remembers: there is nothing left to read.")
    flow.run(0)
    lab.shows(f"headrace pipeline status {flow.name}")
    lab.check("lag of the stopped pipeline, read from its checkpoint", 0, flow.pipeline.status(lab.connection).lag)
    lab.watch(_TOPIC, len(lines))
    lab.watch(_DEAD, len(lines) - len(rows))
    _dead_letters(lab, flow, len(lines) - len(rows), damaged)
    _tables(lab, flow, rows)


def _day(lab: Workbench) -> tuple[list[bytes], dict[str, int]]:
    count = lab.p.records
    lab.step(f"A file of {count:,} breadcrumbs", "One in fifty is damaged on purpose, in one of many ways.")
    file = lab.sample("breadcrumbs", count, "day.ndjson", "--bad", f"{lab.p.bad:g}", "--format", "ndjson",
                      "--truth", "truth.ndjson")  # fmt: skip
    lines = file.read_bytes().removesuffix(b"\n").split(b"\n")
    lab.check("lines in the file", count, len(lines))
    truth = map(json.loads, (lab.files / "truth.ndjson").read_bytes().splitlines())
    lab.lay_out()
    return lines, dict(Counter(each["kind"] for each in truth))


def _seconds(report: Any) -> float:
    return max(float((report.run.ended or 0) - report.run.started), 0.001)


def _dead_letters(lab: Workbench, flow: Example, dead: int, damaged: dict[str, int]) -> None:
    lab.step("The dead letters", "Nothing is thrown away: each is in a topic, with the rule that it broke.")
    lab.shows(f"headrace pipeline dead-letters {flow.name}", f"headrace pipeline ledger {flow.name} --by-rule")
    letters = list(consume(lab.cluster, _DEAD))
    lab.check("records in the topic of dead letters", dead, len(letters))
    rules = flow.dead_by_rule()
    lab.table("dead letters by rule", ["rule", "records"], rules.items())
    lab.table("damage that was done", ["kind", "records"], sorted(damaged.items(), key=itemgetter(1), reverse=True))
    lab.check("every rule's count adds up", dead, sum(rules.values()))


def _tables(lab: Workbench, flow: Example, rows: list[Row]) -> None:
    lab.step("The table of breadcrumbs", "Row by row the same as what plain Python makes of the file.")
    _compare(lab, "breadcrumbs", rows, flow.rows("breadcrumbs"))
    lab.step("Trips and windows", "Both were begun by the first run and mended by the second.")
    _compare(lab, "trips", _trips(rows), flow.rows("trips"))
    windows = flow.rows("vehicles")
    _compare(lab, "vehicles", _windows(rows), windows)
    lab.figure("speed", "Mean speed of each vehicle in windows of ten minutes, from the table",
               _draw, windows)  # fmt: skip


def _compare(lab: Workbench, table: str, expected: Sequence[Row], found: Sequence[Row]) -> None:
    lab.check(f"rows of {table}", len(expected), len(found))
    one, two = _comparable(expected), _comparable(found)
    differing = [pair for pair in zip(one, two, strict=False) if pair[0] != pair[1]]
    lab.check(f"rows of {table} that differ", 0, len(differing), look=" / ".join(differing[0]) if differing else "")


def _comparable(rows: Iterable[Row]) -> list[str]:
    """Rows as texts in order; fractions to nine digits, since sums of them depend on their order."""

    def plain(value: object) -> object:
        return float(f"{value:.9g}") if isinstance(value, float) else value

    return sorted(json.dumps({k: plain(v) for k, v in row.items()}, sort_keys=True, default=str) for row in rows)


# -- the same in plain Python -----------------------------------------------------------------------------------


def _row(line: bytes) -> Row | None:
    """What becomes of a line; None if it must not become a row."""
    try:
        record = json.loads(line)
        row, seconds = _typed(record), int(record["ACT_TIME"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    inside = row["latitude"] is None or (
        45 <= row["latitude"] <= 46 and row["longitude"] is not None and -124 <= row["longitude"] <= -122
    )
    ahead = row["velocity"] is None or row["velocity"] >= 0
    compass = row["direction"] is None or 0 <= row["direction"] <= 359
    known = row["trip"] is not None and row["vehicle"] is not None and seconds >= 0
    return row if known and inside and ahead and compass else None


def _typed(record: Any) -> Row:
    def number(field: str) -> int | None:
        return int(record[field]) if record.get(field) else None

    def fraction(field: str) -> float | None:
        return float(record[field]) if record.get(field) else None

    day = datetime.strptime(record["OPD_DATE"], "%d-%b-%y").replace(tzinfo=UTC)
    return {
        "trip": number("EVENT_NO_TRIP"), "vehicle": number("VEHICLE_ID"), "day": day.date(),
        "at": day + timedelta(seconds=int(record["ACT_TIME"])), "meters": number("METERS"),
        "velocity": number("VELOCITY"), "direction": number("DIRECTION"), "latitude": fraction("GPS_LATITUDE"),
        "longitude": fraction("GPS_LONGITUDE"), "hdop": fraction("GPS_HDOP"),
    }  # fmt: skip


def _grouped(rows: Iterable[Row], key: Callable[[Row], K]) -> dict[K, list[Row]]:
    groups: dict[K, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups


def _trips(rows: list[Row]) -> list[Row]:
    made = []
    for (trip, vehicle), found in _grouped(rows, lambda row: (row["trip"], row["vehicle"])).items():
        times, meters = [row["at"] for row in found], [row["meters"] for row in found if row["meters"] is not None]
        made.append(
            {"trip": trip, "vehicle": vehicle, "begins": min(times), "ends": max(times), "breadcrumbs": len(found),
             "metres": max(meters) - min(meters) if meters else None}
        )  # fmt: skip
    return made


def _windows(rows: list[Row]) -> list[Row]:
    made = []
    for (vehicle, start), found in _grouped(rows, lambda row: (row["vehicle"], _window_of(row["at"]))).items():
        speeds = [row["velocity"] for row in found if row["velocity"] is not None]
        made.append(
            {"vehicle": vehicle, "window_start": start, "window_end": start + _WINDOW, "breadcrumbs": len(found),
             "velocity": sum(speeds) / len(speeds) if speeds else None, "fastest": max(speeds, default=None)}
        )  # fmt: skip
    return made


def _window_of(at: datetime) -> datetime:
    return at - (at - datetime(1970, 1, 1, tzinfo=UTC)) % _WINDOW


def _draw(figure: Figure, windows: list[Row]) -> None:
    axes = figure.subplots()
    day = min(row["window_start"] for row in windows).replace(hour=0, minute=0)
    # Some of the damage is a date half a century ahead: true rows, but far off this picture.
    near = [row for row in windows if row["window_start"] - day < timedelta(hours=30) and row["velocity"] is not None]
    vehicles = sorted(_grouped(near, lambda row: row["vehicle"]).items())
    for (vehicle, found), colour in zip(vehicles, COLOURS, strict=False):
        points = sorted(((row["window_start"] - day).total_seconds() / 3600, row["velocity"]) for row in found)
        hours, speeds = zip(*points, strict=True)
        axes.plot(hours, speeds, marker=".", linewidth=0.8, label=f"vehicle {vehicle}", color=colour)
    axes.set_xlabel("hour of the day")
    axes.set_ylabel("mean VELOCITY, m/s")
    axes.set_ylim(0)
    axes.legend(ncols=2)


LAB = Lab(
    "S2",
    ("S2.J",),
    run,
    needs=Needs(topics=(_TOPIC, _DEAD)),
    parameters=(
        Parameter("records", 20_000, "breadcrumbs of the file", fast=3000, least=500),
        Parameter("bad", 0.02, "share of damaged ones", least=0.005, most=0.5),
    ),
    files={"headrace.toml": lambda: declaration_of("breadcrumbs")},
)
