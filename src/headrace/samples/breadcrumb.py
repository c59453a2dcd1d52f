"""Bus breadcrumbs: where each bus of a city was, every five seconds, as a transit agency's day file has them.

    day ──▶ vehicles ──▶ trips ──▶ stops ──▶ breadcrumbs

A vehicle drives between two ends of its line, there and back, along streets that turn at corners. Breadcrumbs come
every five seconds while it moves and not at all while it waits at a stop. METERS is the vehicle's odometer of the day.
The shape of 2020 has 14 fields, all of them strings, many empty; that of 2022 has ten typed ones.

What real files do is done here too: trips are stored hours out of order (about 85 % of the rows are more than ten
minutes behind the newest one seen so far), a trip may begin in its middle, and the service day goes on after
midnight, so ACT_TIME passes 86,400.

Only sums, products and square roots are used on drawn numbers: they are the same on every machine.
"""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from headrace.errors import UsageError
from headrace.samples.damage import ANY_JSON, Kind, Wanted, rates, removed, replaced
from headrace.samples.sample import NULL, Chunk, Column, Format, Sample, require_count

SHAPES = (2020, 2022)
FORMATS = (Format.ARRAY, Format.PRETTY, Format.NDJSON, Format.CONCATENATED, Format.STRINGS, Format.CSV)

FIRST_DAY = {2020: datetime.date(2020, 9, 10), 2022: datetime.date(2022, 12, 17)}
_FIELDS = (
    "EVENT_NO_TRIP", "EVENT_NO_STOP", "OPD_DATE", "VEHICLE_ID", "METERS", "ACT_TIME", "VELOCITY", "DIRECTION",
    "RADIO_QUALITY", "GPS_LONGITUDE", "GPS_LATITUDE", "GPS_SATELLITES", "GPS_HDOP", "SCHEDULE_DEVIATION",
)  # fmt: skip
_ONLY_2020 = {"VELOCITY", "DIRECTION", "RADIO_QUALITY", "SCHEDULE_DEVIATION"}
_COLUMNS = {
    2020: tuple(Column(name, quoted=True) for name in _FIELDS),
    2022: tuple(Column(name, quoted=name == "OPD_DATE") for name in _FIELDS if name not in _ONLY_2020),
}

_DAY_RECORDS = 370_000
_TRIP_RECORDS = 330
_VEHICLE_TRIPS = 10
_LATE_SHARE = 0.85
_LATE_S = 600
_SPAN_S = 8
# Lengths of a degree at 45.5 N; a line stays within 15 km of the centre, far inside 45 to 46 N and 122 to 124 W.
_METERS_PER_LATITUDE = 111_150.0
_METERS_PER_LONGITUDE = 78_020.0
_CENTRE = (45.52, -122.67)


def breadcrumbs(
    records: int = 1000,
    seed: int = 7,
    *,
    shape: int = 2020,
    vehicles: int | None = None,
    bad: float = 0.0,
    damage: Mapping[str, float] | None = None,
    fits: Format | str = Format.NDJSON,
) -> Sample:
    """So many breadcrumbs. `bad` is the share of damaged ones, of kinds that a file in the format `fits` can hold."""
    if shape not in SHAPES:
        raise UsageError(f"invalid shape of breadcrumbs: {shape}", hint="2020 or 2022")
    require_count(records)
    if vehicles is not None and vehicles < 1:
        raise UsageError(f"invalid number of vehicles: {vehicles}", hint="--vehicles 100")
    kinds = KINDS[shape]
    return Sample(
        columns=_COLUMNS[shape],
        chunks=partial(_chunks, records, seed, shape, vehicles),
        seed=seed,
        formats=FORMATS,
        kinds=kinds,
        rates=rates(kinds, Wanted(bad, damage or {}, str(fits))),
    )


@dataclass(frozen=True, slots=True)
class Trip:
    """One trip as it is planned: everything that its breadcrumbs are drawn from. The first `kept` ones are stored."""

    number: int
    vehicle: int
    begins_s: int
    odometer: int
    route: tuple[tuple[float, float], ...]
    records: int
    kept: int
    rotated: bool
    seed: int

    @property
    def ends_s(self) -> int:
        # Five seconds a breadcrumb, and about three more on average for the waits at stops.
        return self.begins_s + self.records * _SPAN_S


def _chunks(records: int, seed: int, shape: int, vehicles: int | None) -> Iterator[Chunk]:
    for day, count in enumerate(days(records)):
        date = FIRST_DAY[shape] + datetime.timedelta(days=day)
        opd = date.strftime("%d-%b-%y" if shape == 2020 else "%d%b%Y:00:00:00").upper()
        for trip in plan_day(count, f"{seed} {day}", vehicles):
            yield _columns(trip, opd, shape)


def days(records: int) -> Iterator[int]:
    """How many records each day has; a day is never much fuller than a real one."""
    while records > 0:
        count = min(records, _DAY_RECORDS)
        records -= count
        yield count


def plan_day(records: int, seed: str, vehicles: int | None) -> list[Trip]:
    """The day's trips in the order in which they are stored."""
    draw = random.Random(f"day {seed}")  # noqa: S311 - example data
    trips_wanted = max(1, math.ceil(records / _TRIP_RECORDS))
    fleet = vehicles or max(1, trips_wanted // _VEHICLE_TRIPS)
    number = 160_000_000 + draw.randrange(10_000_000)
    trips: list[Trip] = []
    for index in range(fleet):
        share = records * (index + 1) // fleet - records * index // fleet
        driven = _shift(draw, share, 1700 + 7 * index, number, late=index % 10 == 9 or index == fleet - 1 > 0)
        number = driven[-1].number + 150 if driven else number
        trips += driven
    return _stored(draw, trips)


def _shift(draw: random.Random, records: int, vehicle: int, number: int, *, late: bool) -> list[Trip]:
    """What one vehicle drives that day: there and back between the ends of its line."""
    route = _route(draw)
    lengths: list[int] = []
    while sum(lengths) < records:
        # Some 37 metres between two breadcrumbs: 27 km/h with its stops.
        lengths.append(min(520, max(200, round(_length(route) / 37 * draw.uniform(0.9, 1.1)))))
    breaks = [draw.randrange(180, 900) for _ in lengths]
    busy = sum(lengths) * _SPAN_S + sum(breaks)
    # A shift that is longer than the day is squeezed by beginning early; who asks for that gets a very late evening.
    begins = max(14_400, 92_000 - busy) if late else max(14_400, draw.randrange(16_000, max(16_001, 80_000 - busy)))
    odometer = draw.randrange(20, 400)
    trips: list[Trip] = []
    for length, pause in zip(lengths, breaks, strict=True):
        kept = min(length, records)
        records -= kept
        rotated, seed = draw.random() < 0.6, draw.randrange(2**32)
        trips.append(Trip(number, vehicle, begins, odometer, route, length, kept, rotated, seed))
        begins = trips[-1].ends_s + pause
        odometer += round(_length(route)) + draw.randrange(30, 90)
        route = route[::-1]
        number += draw.randrange(60, 110)
    return trips


def _route(draw: random.Random) -> tuple[tuple[float, float], ...]:
    """Corners of a line, in metres east and north of the centre: streets run along the compass."""
    east, north = draw.uniform(-9000, 9000), draw.uniform(-7000, 7000)
    corners = [(east, north)]
    for turn in range(draw.randrange(4, 8)):
        # Towards the middle of the city and across it.
        stretch = draw.uniform(900, 3600)
        if turn % 2:
            north += -stretch if north > 0 else stretch
        else:
            east += -stretch if east > 0 else stretch
        corners.append((east, north))
    return tuple(corners)


def _length(route: tuple[tuple[float, float], ...]) -> float:
    return sum(
        abs(b[0] - a[0]) + abs(b[1] - a[1])  # one of the two is nought: streets run along the compass
        for a, b in pairwise(route)
    )


def _stored(draw: random.Random, trips: list[Trip]) -> list[Trip]:
    """By their ends, but so many held back for hours that the wanted share of breadcrumbs comes late."""
    luck = [(draw.random(), draw.randrange(4_000, 56_000)) for _ in trips]

    def order(held_share: float) -> list[Trip]:
        arrivals = [
            trip.ends_s + (delay if chance < held_share else 0)
            for trip, (chance, delay) in zip(trips, luck, strict=True)
        ]
        return [trips[at] for at in sorted(range(len(trips)), key=arrivals.__getitem__)]

    # How many must be held back depends on how many drive at the same time: it is tried out, trip by trip.
    tried = [order(step / 16) for step in range(17)]
    return min(tried, key=lambda stored: abs(_late_share(stored) - _LATE_SHARE))


def _late_share(trips: list[Trip]) -> float:
    """About which share of the breadcrumbs is far behind the newest one that is stored before it."""
    newest, late = 0, 0.0
    for trip in trips:
        late += trip.kept * min(1.0, max(0, newest - _LATE_S - trip.begins_s) / (trip.ends_s - trip.begins_s))
        newest = max(newest, trip.ends_s)
    return late / max(1, sum(trip.kept for trip in trips))


Floats = npt.NDArray[np.float64]
Wholes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Drive:
    """A trip in numbers, one entry per breadcrumb."""

    at_s: Wholes
    meters: Wholes
    speed: Floats
    stop: Wholes
    latitude: Floats
    longitude: Floats
    direction: Wholes


def drive_of(trip: Trip, draw: np.random.Generator) -> Drive:
    count = trip.records
    noise = draw.random((4, count))
    stop_every = 6 + (noise[0] * 9).astype(np.int64)
    # Breadcrumbs at which the bus leaves a stop.
    leaves = np.cumsum(stop_every)
    leaves = leaves[leaves < count - 1]
    stop = np.zeros(count, np.int64)
    stop[leaves] = 1
    stop = np.cumsum(stop)
    # Between two stops it speeds up and slows down: a parabola with its top halfway.
    edges = np.concatenate(([0], leaves, [count]))
    length = np.diff(edges)
    inside = (np.arange(count) - edges[:-1][stop] + 0.5) / length[stop]
    speed = 4 * inside * (1 - inside) * (0.6 + 0.8 * noise[1][stop])
    step = np.full(count, 5, np.int64)
    step[leaves] += 5 * (1 + (noise[2][leaves] * 10).astype(np.int64))
    uneven = noise[3] < 0.05
    step[uneven] += np.where(noise[3][uneven] < 0.025, -1, 1)
    step[0] = 0
    scale = _length(trip.route) / speed.sum()
    along = np.cumsum(speed * scale)
    latitude, longitude, direction = _positions(trip.route, along, noise)
    return Drive(
        trip.begins_s + np.cumsum(step), trip.odometer + along.astype(np.int64), speed * scale / 5, stop,
        latitude, longitude, direction,
    )  # fmt: skip


def _positions(route: tuple[tuple[float, float], ...], along: Floats, noise: Floats) -> tuple[Floats, Floats, Wholes]:
    """Where the bus is after so many metres, and where it is heading, in degrees."""
    corners = np.array(route)
    leg = np.diff(corners, axis=0)
    reach = np.concatenate(([0.0], np.cumsum(np.abs(leg).sum(axis=1))))
    which = np.minimum(np.searchsorted(reach, along, side="right") - 1, len(leg) - 1)
    share = (along - reach[which]) / (reach[which + 1] - reach[which])
    place = corners[which] + leg[which] * share[:, None]
    east = place[:, 0] + (noise[1] - 0.5) * 6
    north = place[:, 1] + (noise[2] - 0.5) * 6
    compass = np.where(leg[:, 0] > 0, 90, np.where(leg[:, 0] < 0, 270, np.where(leg[:, 1] > 0, 0, 180)))
    direction = (compass[which] + (noise[0] * 9).astype(np.int64) - 4) % 360
    return (
        np.round(_CENTRE[0] + north / _METERS_PER_LATITUDE, 6),
        np.round(_CENTRE[1] + east / _METERS_PER_LONGITUDE, 6),
        direction,
    )


def _columns(trip: Trip, opd: str, shape: int) -> list[list[object]]:
    """The trip's breadcrumbs as columns, as they are stored: some trips begin in their middle."""
    draw = np.random.Generator(np.random.PCG64(trip.seed))
    drive = drive_of(trip, draw)
    luck = draw.random((5, trip.records))
    order = np.arange(trip.records)
    if trip.rotated and drive.stop[-1] > 1:
        order = np.roll(order, -int(np.searchsorted(drive.stop, 1 + drive.stop[-1] // 3)))
    order = order[: trip.kept]
    count = len(order)
    common = [
        [trip.number] * count,
        (trip.number + 2 + drive.stop[order]).tolist(),
        [opd] * count,
        [trip.vehicle] * count,
        drive.meters[order].tolist(),
        drive.at_s[order].tolist(),
    ]
    make = _of_2020 if shape == 2020 else _of_2022
    return make(common, drive, luck, order)


def _of_2020(common: list[list[object]], drive: Drive, luck: Floats, order: Wholes) -> list[list[object]]:
    count = len(order)
    velocity = np.rint(drive.speed[order]).astype(np.int64).tolist()
    direction = drive.direction[order].tolist()
    # The first breadcrumb of a trip knows no speed yet, and now and then one in between does not.
    for at in np.flatnonzero((order == 0) | (luck[0][order] < 0.001)).tolist():
        velocity[at] = direction[at] = ""
    deviation = (np.cumsum(luck[1] * 7 - 3.4) - 40).astype(np.int64)[order].tolist()
    # A bus is neither early nor late before its first timing point.
    for at in np.flatnonzero(order < 0.09 * len(drive.at_s)).tolist():
        deviation[at] = ""
    return [
        *common, velocity, direction, [""] * count,
        drive.longitude[order].tolist(), drive.latitude[order].tolist(),
        (8 + (luck[2][order] * 5).astype(np.int64)).tolist(),
        [_HDOP_2020[at] for at in (luck[3][order] * len(_HDOP_2020)).astype(np.int64).tolist()],
        deviation,
    ]  # fmt: skip


def _of_2022(common: list[list[object]], drive: Drive, luck: Floats, order: Wholes) -> list[list[object]]:
    longitude: list[object] = drive.longitude[order].tolist()
    latitude: list[object] = drive.latitude[order].tolist()
    hdop: list[object] = [_HDOP_2022[at] for at in (luck[3][order] * len(_HDOP_2022)).astype(np.int64).tolist()]
    chance = luck[4][order]
    for at in np.flatnonzero(chance < 0.0034).tolist():
        hdop[at] = 2.1 + round(float(luck[3][order[at]]) * 1.7, 1)
        if chance[at] < 0.0002:
            hdop[at] = 4 + round(float(luck[3][order[at]]) * 16, 1)
            longitude[at] = latitude[at] = NULL
    satellites = [_SATELLITES_2022[at] for at in (luck[2][order] * len(_SATELLITES_2022)).astype(np.int64).tolist()]
    return [*common, longitude, latitude, satellites, hdop]


_HDOP_2020 = ["0.8"] * 4 + ["0.9"] * 9 + ["1"] * 3 + ["1.1"] * 2 + ["1.2", "1.4"]
_HDOP_2022 = ["0.7"] * 15 + ["0.8"] * 13 + ["0.9"] * 6 + ["1.0"] * 3 + ["0.6"] * 2 + ["1.1"]
_SATELLITES_2022 = ["12.0"] * 16 + ["11.0"] * 2 + ["10.0", "9.0"]


def _kinds(shape: int) -> dict[str, Kind]:
    """The kinds of damage that a breadcrumb of this shape can have, by name."""
    strings = shape == 2020

    def put(number: float) -> float | str:
        return str(number) if strings else number

    def day(of_month: str, month: str, later: int = 0) -> str:
        year = shape + later
        return f"{of_month}-{month}-{year % 100}" if strings else f"{of_month}{month}{year}:00:00:00"

    speed = (
        replaced("negative-speed", "a speed below zero", "VELOCITY", "-7")
        if strings
        else replaced("negative-speed", "METERS far behind the breadcrumbs around it", "METERS", lambda m: m - 5000)
    )
    own = [
        replaced("wrong-type", "METERS is an object", "METERS", lambda meters: {"value": meters, "unit": "m"}),
        replaced("not-a-number", "ACT_TIME is a word", "ACT_TIME", "noon"),
        replaced("negative-time", "ACT_TIME is below zero", "ACT_TIME", put(-60)),
        removed("missing-trip", "no EVENT_NO_TRIP", "EVENT_NO_TRIP"),
        replaced("empty-trip", "EVENT_NO_TRIP is empty", "EVENT_NO_TRIP", "" if strings else None),
        replaced("outside-city", "a latitude far to the north", "GPS_LATITUDE", put(47.606209)),
        Kind("empty-coordinates", "neither longitude nor latitude", partial(_without_place, strings), "GPS_LATITUDE"),
        speed,
        replaced("bad-date", "a day that no calendar has", "OPD_DATE", day("31", "FEB")),
        replaced("far-future", "a day half a century ahead", "OPD_DATE", day("10", "SEP", 48)),
        *([replaced("bad-direction", "a direction above 359", "DIRECTION", "451")] if strings else []),
    ]  # fmt: skip
    return {kind.name: kind for kind in (*ANY_JSON, *own)}


def _without_place(strings: bool, record: dict[str, object], _: random.Random) -> dict[str, object]:
    nothing = "" if strings else None
    return {**record, "GPS_LONGITUDE": nothing, "GPS_LATITUDE": nothing}


KINDS = {shape: _kinds(shape) for shape in SHAPES}
