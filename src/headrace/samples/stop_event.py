"""Stop events: where the buses of the breadcrumbs stopped, on which route, in which direction, for which service.

They belong to the breadcrumbs of the same number, seed and shape: `trip_id` is their EVENT_NO_TRIP, and `stop_id` their
EVENT_NO_STOP from that stop on. As in real files not everything has a partner: some trips have stop events and no
breadcrumbs, some have breadcrumbs and no stop events. The service key is that of the day (W, S or U: weekday, Saturday,
Sunday) for most vehicles, and another one for some.
"""

from __future__ import annotations

import datetime
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from headrace.errors import UsageError
from headrace.samples.breadcrumb import FIRST_DAY, SHAPES, Trip, days, drive_of, plan_day
from headrace.samples.sample import Chunk, Column, Format, Sample, require_count

FORMATS = (Format.ARRAY, Format.PRETTY, Format.NDJSON, Format.CONCATENATED, Format.STRINGS, Format.CSV)
_NUMBERS = (
    "trip_id", "stop_id", "sequence", "vehicle_number", "route_number", "direction", "location_id", "arrive_time",
    "leave_time", "dwell", "ons", "offs",
)  # fmt: skip
_COLUMNS = (
    *[Column(name) for name in _NUMBERS[:6]],
    Column("service_key", quoted=True),
    Column("service_date", quoted=True),
    *[Column(name) for name in _NUMBERS[6:]],
)
_ROUTES = (2, 4, 6, 8, 9, 12, 14, 15, 17, 20, 33, 35, 44, 54, 57, 70, 72, 75, 77, 99)
_OTHER_SERVICES = ("M", "X", "H", "A")
_WITHOUT_BREADCRUMBS = 0.06
_WITHOUT_STOPS = 0.05


def stops(breadcrumbs: int = 1000, seed: int = 7, *, shape: int = 2020, vehicles: int | None = None) -> Sample:
    """The stop events of the trips of so many breadcrumbs, with the same seed, shape and vehicles."""
    if shape not in SHAPES:
        raise UsageError(f"invalid shape of breadcrumbs: {shape}", hint="2020 or 2022")
    require_count(breadcrumbs)
    return Sample(_COLUMNS, partial(_chunks, breadcrumbs, seed, shape, vehicles), seed=seed, formats=FORMATS)


def _chunks(records: int, seed: int, shape: int, vehicles: int | None) -> Iterator[Chunk]:
    for day, count in enumerate(days(records)):
        date = FIRST_DAY[shape] + datetime.timedelta(days=day)
        trips = plan_day(count, f"{seed} {day}", vehicles)
        ways = _directions(trips)
        for trip in trips:
            draw = random.Random(f"stops {seed} {trip.number}")  # noqa: S311 - example data
            service = _service(f"{seed} {trip.vehicle}", date)
            if draw.random() < _WITHOUT_BREADCRUMBS:
                # Trips are numbered sixty apart at least: this one is no other's.
                ghost = replace(trip, number=trip.number + 31, seed=trip.seed + 1)
                yield _columns(ghost, 1 - ways[trip.number], service, date, draw)
            if draw.random() >= _WITHOUT_STOPS:
                yield _columns(trip, ways[trip.number], service, date, draw)


def _directions(trips: list[Trip]) -> dict[int, int]:
    """There (0) and back (1), in turn, as each vehicle drives."""
    found: dict[int, int] = {}
    turn: dict[int, int] = {}
    for trip in sorted(trips, key=lambda trip: trip.begins_s):
        found[trip.number] = turn.get(trip.vehicle, 0)
        turn[trip.vehicle] = 1 - found[trip.number]
    return found


def _service(who: str, date: datetime.date) -> str:
    draw = random.Random(f"service {who}")  # noqa: S311 - example data
    usual = {5: "S", 6: "U"}.get(date.weekday(), "W")
    return draw.choice(_OTHER_SERVICES) if draw.random() < 0.15 else usual


def _columns(trip: Trip, direction: int, service: str, date: datetime.date, draw: random.Random) -> list[list[object]]:
    """The stops of the trip, in the order in which the bus left them."""
    drive = drive_of(trip, np.random.Generator(np.random.PCG64(trip.seed)))
    first = np.flatnonzero(np.diff(drive.stop, prepend=-1))
    leaves = drive.at_s[first].tolist()
    dwells = np.diff(drive.at_s, prepend=drive.at_s[0])[first].tolist()
    count = len(leaves)
    route = _ROUTES[trip.vehicle % len(_ROUTES)]
    return [
        [trip.number] * count, [trip.number + 2 + at for at in range(count)], list(range(1, count + 1)),
        [trip.vehicle] * count, [route] * count, [direction] * count, [service] * count, [date.isoformat()] * count,
        [1000 * route + (at if direction == 0 else 500 + at) for at in range(count)],
        [at - dwell for at, dwell in zip(leaves, dwells, strict=True)], leaves, dwells,
        [draw.randrange(6) for _ in leaves], [draw.randrange(6) for _ in leaves],
    ]  # fmt: skip
