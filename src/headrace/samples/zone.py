"""Taxi zones: the table that a city publishes beside its rides, to look their zones up in.

Columns: LocationID, Borough, Zone, service_zone. All names are invented. Rides (`taxi`) begin and end in zones 1 to
263, and the table has 260 unless more are asked for: as with real files, some rides have a zone that the table lacks.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from headrace.samples.sample import Chunk, Column, Format, Sample, require_count

COUNT = 260
_CHUNK = 1_000
_COLUMNS = (Column("LocationID"), *(Column(name, quoted=True) for name in ("Borough", "Zone", "service_zone")))
_BOROUGHS = ("Northbank", "Kingsfield", "Eastmere", "Harbourside", "Old Mill", "Long Reach")
_FIRST = (
    "Alder", "Amber", "Bell", "Bishop", "Brook", "Canal", "Castle", "Cedar", "Chapel", "Clay", "Cliff", "Copper",
    "Crown", "Drover", "Elm", "Fair", "Ferry", "Foundry", "Garden", "Glass", "Granary", "Heron", "Hollow", "Lantern",
)  # fmt: skip
_SECOND = (
    "Bridge", "Common", "Corner", "Cross", "Fields", "Gate", "Green", "Heights", "Hill", "Market", "Park", "Quay",
    "Row", "Square", "Terrace", "Wharf",
)  # fmt: skip
_SIDES = ("", " North", " South", " East", " West")


def zones(records: int = COUNT, seed: int = 7) -> Sample:
    """So many zones, numbered from 1."""
    require_count(records)
    formats = (Format.CSV, Format.NDJSON, Format.ARRAY)
    return Sample(_COLUMNS, partial(_chunks, records, seed), seed=seed, formats=formats)


def _chunks(records: int, seed: int) -> Iterator[Chunk]:
    draw = random.Random(f"zones {seed}")  # noqa: S311 - example data
    names = [f"{first} {second}{side}" for side in _SIDES for first in _FIRST for second in _SECOND]
    draw.shuffle(names)
    for first in range(1, records + 1, _CHUNK):
        rows = [_zone(number, names, draw) for number in range(first, min(first + _CHUNK, records + 1))]
        yield list(zip(*rows, strict=True))


def _zone(number: int, names: list[str], draw: random.Random) -> tuple[object, ...]:
    name = names[(number - 1) % len(names)]
    again = (number - 1) // len(names)
    if number in {1, 132, 138}:
        return number, "Outlying", f"{name.split()[0]} Airport", "Airports"
    borough = draw.choice(_BOROUGHS)
    service = "Yellow Zone" if borough == _BOROUGHS[0] else "Boro Zone"
    return number, borough, f"{name} {again + 1}" if again else name, service
