"""Retail customers: a CSV file without a header row, as an import into a shop's database would have it.

Columns: number, first name, last name, e-mail and password (both blanked out), street, city, state, postcode. As in
the files one meets, one name and one city are far more frequent than all others, and some streets end in a blank and
are therefore quoted.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from headrace.samples.sample import Chunk, Column, Format, Sample, require_count

COUNT = 12_434
_CHUNK = 2_000
_HIDDEN = "XXXXXXXXX"
_COLUMNS = (
    Column("customer_id"),
    *(
        Column(name, quoted=True, padded=name == "street")
        for name in ("first_name", "last_name", "email", "password", "street", "city", "state", "postcode")
    ),
)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST_NAMES = _words(
    "James Robert John Michael David William Richard Joseph Thomas Charles Linda Patricia Barbara Susan Jessica Sarah "
    "Karen Nancy Lisa Betty Sandra Ashley Kimberly Donna Emily Carol Michelle Amanda Melissa Deborah Stephanie Paul "
    "Kenneth Kevin Brian George Edward Ronald Timothy Jason Jeffrey Ryan Jacob Gary Nicholas Eric Jonathan Stephen "
    "Larry Justin Scott Brandon Samuel Frank Gregory Raymond Patrick Jack Dennis Jerry Tyler Aaron Jose Nathan Henry"
)
LAST_NAMES = _words(
    "Johnson Williams Brown Jones Garcia Miller Davis Rodriguez Martinez Hernandez Lopez Gonzalez Wilson Anderson "
    "Thomas Taylor Moore Jackson Martin Lee Perez Thompson White Harris Sanchez Clark Ramirez Lewis Robinson Walker "
    "Young Allen King Wright Scott Torres Nguyen Hill Flores Green Adams Nelson Baker Hall Rivera Campbell Mitchell "
    "Carter Roberts Gomez Phillips Evans Turner Diaz Parker Cruz Edwards Collins Reyes Stewart Morris Morales Murphy"
)
_STREET = _words(
    "Amber Autumn Birch Broad Clear Copper Crystal Dusty Easy Fallen Foggy Golden Grand Green Hazel High Hidden Iron "
    "Ivory Lazy Little Long Lost Merry Misty Noble Old Pleasant Quiet Red Round Rustic Shady Silent Silver Stony Sunny"
)
_PLACE = _words("Acres Bay Beach Bluff Brook Creek Dale Deer Elm Field Forest Fox Grove Hill Lake Leaf Meadow Oak Pond")
_WAY = _words("Avenue Bend Circle Court Drive Gate Glen Heights Lane Mall Parade Path Plaza Ridge Road Row Run Street")
CITIES = (
    ("Chicago", "IL", "606"), ("Brooklyn", "NY", "112"), ("Los Angeles", "CA", "900"), ("New York", "NY", "100"),
    ("Houston", "TX", "770"), ("Philadelphia", "PA", "191"), ("Miami", "FL", "331"), ("Bronx", "NY", "104"),
    ("San Diego", "CA", "921"), ("Detroit", "MI", "482"), ("Las Vegas", "NV", "891"), ("Dallas", "TX", "752"),
    ("San Antonio", "TX", "782"), ("Phoenix", "AZ", "850"), ("Memphis", "TN", "381"), ("Portland", "OR", "972"),
    ("Columbus", "OH", "432"), ("Baltimore", "MD", "212"), ("Denver", "CO", "802"), ("Atlanta", "GA", "303"),
    ("Honolulu", "HI", "968"), ("Aurora", "CO", "800"), ("Tampa", "FL", "336"), ("Stockton", "CA", "952"),
    ("Bayamon", "PR", "009"), ("Fort Worth", "TX", "761"), ("Fresno", "CA", "937"), ("Tucson", "AZ", "857"),
)  # fmt: skip


def customers(records: int = COUNT, seed: int = 7) -> Sample:
    """So many customers, numbered from 1."""
    require_count(records)
    formats = (Format.CSV, Format.NDJSON, Format.ARRAY)
    return Sample(_COLUMNS, partial(_chunks, records, seed), seed=seed, formats=formats, header=False)


def _chunks(records: int, seed: int) -> Iterator[Chunk]:
    draw = random.Random(f"customers {seed}")  # noqa: S311 - example data
    for first in range(1, records + 1, _CHUNK):
        rows = [_customer(number, draw) for number in range(first, min(first + _CHUNK, records + 1))]
        yield list(zip(*rows, strict=True))


def _customer(number: int, draw: random.Random) -> tuple[object, ...]:
    common = draw.random()
    first = "Mary" if common < 0.38 else draw.choice(FIRST_NAMES)
    last = "Smith" if draw.random() < 0.37 else draw.choice(LAST_NAMES)
    city, state, prefix = ("Caguas", "PR", "007") if draw.random() < 0.37 else draw.choice(CITIES)
    postcode = prefix + ("25" if city == "Caguas" else f"{draw.randrange(1, 100):02}")
    street = f"{draw.randrange(1, 9999)} {draw.choice(_STREET)} {draw.choice(_PLACE)} {draw.choice(_WAY)}"
    return number, first, last, _HIDDEN, _HIDDEN, street + (" " if common < 0.008 else ""), city, state, postcode
