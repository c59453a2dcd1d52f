"""Taxi rides in Avro through Spark: three schema versions, revenue per vendor and hour.

Rides are written in the registry's wire format (a zero, four bytes that name the schema, then Avro), first with version
1 of their schema, then with 2 and 3, as programs are updated one after another. The pipeline of examples/taxi reads
each record with the schema that it was written with, whatever version that is, and sums up what each vendor took in
every hour. Damaged records are put among them: they become dead letters and do not stop the pipeline.

The same sums are computed in plain Python from what a consumer reads, and must agree to the cent.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from datetime import UTC, datetime
from functools import partial
from typing import Any

from headrace import CodecError, ConsumeOptions, Decoded, Record, Registry, SchemaCodec, consume, samples
from headrace.labs.examples import Example, declaration_of
from headrace.labs.expect import contains
from headrace.labs.experiments.avro import TOPIC, own_subject
from headrace.labs.figures import COLOURS, Figure
from headrace.labs.lab import Lab, Needs, Parameter
from headrace.labs.workbench import Workbench

_SUBJECT, _DEAD = f"{TOPIC}-value", "taxi.dead"
# As `printf` of any shell understands them, in octal.
_DAMAGED = (r"\000\000\000\377\377an id that nobody has", r"\001not framed at all", r"\000\000\000\000")

#: Vendor and hour (in seconds since 1970) to revenue and rides.
Revenue = dict[tuple[int, int], tuple[float, int]]


def run(lab: Workbench) -> None:
    lab.step("Three versions of a ride in one topic", "Version 2 has a tip, version 3 a time of its own.")
    lab.topic(TOPIC, partitions=4, fixed=True)
    lab.topic(_DEAD, fixed=True)
    own_subject(lab, _SUBJECT)
    with Registry(lab.cluster.registry) as registry:
        _write(lab, registry)
        read = _as_read(lab, registry)
    paid = [(ride, record) for ride, record in read if ride["total_amount"] >= 0]

    lab.step("The pipeline", "Each record is read with its own schema, into the newest one.")
    flow = Example(lab, "taxi")
    report = flow.run(len(read) + len(_DAMAGED))
    lab.check("written and dead, as plain Python says", [len(paid), len(read) - len(paid) + len(_DAMAGED)],
              [report.run.outcomes["written"], report.run.outcomes["dead"]])  # fmt: skip
    rules = flow.dead_by_rule()
    lab.table("dead letters by rule", ["rule", "records"], rules.items())
    lab.check("refunds among the dead letters", len(read) - len(paid), rules.get("is paid, not owed", 0))
    lab.check("records in the topic of dead letters", report.run.outcomes["dead"],
              sum(1 for _ in consume(lab.cluster, _DEAD)))  # fmt: skip
    _compare(lab, _revenue(paid), flow)


def _write(lab: Workbench, registry: Registry) -> None:
    lab.lay_out()
    for version in samples.RIDE_VERSIONS:
        file = f"rides.v{version}.ndjson"
        lab.sample("taxi", lab.p.rides, file, "--shape", f"v{version}", "--format", "ndjson")
        sent = lab.produce(TOPIC, file, f"--value avro:ride.v{version}.avsc")
        lab.check(f"version {version}: records acknowledged", lab.p.rides, sent)
    lab.check("versions of the subject", list(samples.RIDE_VERSIONS), registry.versions(_SUBJECT))
    lab.say("And some damaged records: an unknown schema id, no frame, a frame cut short.")
    lines = "".join(rf"{record}\n" for record in _DAMAGED)
    output = lab.types(f"printf '{lines}' | headrace produce {TOPIC} --input lines")
    lab.check("damaged records acknowledged", contains(f"{len(_DAMAGED)} records acknowledged"), output.err)


def _as_read(lab: Workbench, registry: Registry) -> list[tuple[dict[str, Any], Record]]:
    """The rides as a consumer in Python reads them."""
    codec = SchemaCodec(registry, subject=_SUBJECT)
    records = list(consume(lab.cluster, TOPIC, options=ConsumeOptions(value_codec=codec)))
    rides = [(r.decoded, r) for r in records if isinstance(r.decoded, Decoded)]
    versions = Counter(decoded.schema_version for decoded, _ in rides)
    lab.table("records by schema version", ["version", "records"], sorted(versions.items()))
    lab.check(
        "records of each version", dict.fromkeys(samples.RIDE_VERSIONS, lab.p.rides), dict(sorted(versions.items()))
    )
    lab.check("records that cannot be decoded", len(_DAMAGED), sum(isinstance(r.decoded, CodecError) for r in records))
    return [(decoded.value, record) for decoded, record in rides]


def _revenue(rides: list[tuple[dict[str, Any], Record]]) -> Revenue:
    """What each vendor took in each hour; a ride without a time of its own counts when it was written."""
    totals: dict[tuple[int, int], list[float]] = defaultdict(list)
    for ride, record in rides:
        picked_up = ride.get("picked_up")
        at = picked_up.timestamp() if isinstance(picked_up, datetime) else record.timestamp_ms / 1000
        totals[ride["vendorId"], int(at // 3600 * 3600)].append(ride["total_amount"])
    return {place: (math.fsum(amounts), len(amounts)) for place, amounts in totals.items()}


def _compare(lab: Workbench, expected: Revenue, flow: Example) -> None:
    lab.step("Revenue per vendor and hour", "Computed by Spark, and a second time in plain Python.")
    found: Revenue = {
        (row["vendor"], int(row["window_start"].timestamp())): (row["revenue"], row["rides"])
        for row in flow.rows("revenue")
    }
    lab.table(
        "revenue", ["vendor", "hour", "by Spark", "in plain Python", "rides"],
        [(vendor, f"{datetime.fromtimestamp(hour, UTC):%Y-%m-%d %H:%M}", f"{found[vendor, hour][0]:.2f}",
          f"{expected.get((vendor, hour), (0.0, 0))[0]:.2f}", found[vendor, hour][1])
         for vendor, hour in sorted(found)[:12]],
    )  # fmt: skip
    lab.check("vendors and hours", len(expected), len(found))
    differing = [place for place in expected if not _same(expected[place], found.get(place))]
    lab.check("sums that differ by a cent, or in rides", 0, len(differing), look=str(differing[:3]))
    lab.check("rides in all windows", sum(rides for _, rides in expected.values()), sum(r for _, r in found.values()))
    lab.figure("revenue", "Revenue per vendor and hour, of the rides with a time",
               _draw, found, height=3.0)  # fmt: skip


def _same(one: tuple[float, int], two: tuple[float, int] | None) -> bool:
    return two is not None and abs(one[0] - two[0]) < 0.005 and one[1] == two[1]


def _draw(figure: Figure, found: Revenue) -> None:
    axes = figure.subplots()
    # Rides of versions 1 and 2 count when they were written, which is today: months away from the others.
    first = min(hour for _, hour in found)
    near = {place: revenue for place, (revenue, _) in found.items() if place[1] - first < 48 * 3600}
    vendors = sorted({vendor for vendor, _ in near})
    for at, (vendor, colour) in enumerate(zip(vendors, COLOURS, strict=False)):
        hours = sorted(hour for one, hour in near if one == vendor)
        places = [(hour - first) / 3600 + 0.4 * at - 0.2 for hour in hours]
        axes.bar(places, [near[vendor, hour] for hour in hours], width=0.38, color=colour, label=f"vendor {vendor}")
    starts = sorted({hour for _, hour in near})
    axes.set_xticks([(hour - first) / 3600 for hour in starts],
                    [f"{datetime.fromtimestamp(hour, UTC):%H:%M}" for hour in starts])  # fmt: skip
    axes.grid(visible=False, axis="x")
    axes.set_xlabel(f"hour, from {datetime.fromtimestamp(first, UTC):%Y-%m-%d} on")
    axes.set_ylabel("dollars")
    axes.legend()


LAB = Lab(
    "S3",
    ("S3.9",),
    run,
    needs=Needs(services=("registry",), topics=(TOPIC, _DEAD)),
    parameters=(Parameter("rides", 1000, "rides of each schema version", fast=300, least=50, most=100_000),),
    files={
        "headrace.toml": lambda: declaration_of("taxi"),
        **{f"ride.v{version}.avsc": partial(samples.ride_schema, version) for version in samples.RIDE_VERSIONS},
    },
)
