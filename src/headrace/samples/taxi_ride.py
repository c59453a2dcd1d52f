"""Taxi rides: the columns of a city's monthly files, and the same rides as records of three Avro schema versions.

    rides       18 columns, with the oddities of real files: distances of nought, empty passenger counts, refunds,
                drop-offs before pick-ups; ordered roughly, not strictly, by time
    v1          vendorId, passenger_count, trip_distance, payment_type, total_amount
    v2          v1 and tip_amount, which has a default
    v3          v2 and picked_up, a time or null, null by default

Each version can be read with the schema of each other one. The schemas are files beside this one.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.resources import files
from typing import Any

import numpy as np

from headrace.errors import UsageError
from headrace.samples.damage import ANY_JSON, Kind, Wanted, rates, removed, replaced
from headrace.samples.sample import NULL, Chunk, Column, Format, Sample, require_count

RIDE_VERSIONS = (1, 2, 3)
SHAPES = ("rides", "v1", "v2", "v3")
_COLUMNS = {
    "rides": tuple(
        Column(name, quoted=quoted)
        for name, quoted in (
            ("VendorID", False), ("tpep_pickup_datetime", True), ("tpep_dropoff_datetime", True),
            ("passenger_count", False), ("trip_distance", False), ("RatecodeID", False),
            ("store_and_fwd_flag", True), ("PULocationID", False), ("DOLocationID", False), ("payment_type", False),
            ("fare_amount", False), ("extra", False), ("mta_tax", False), ("tip_amount", False),
            ("tolls_amount", False), ("improvement_surcharge", False), ("total_amount", False),
            ("congestion_surcharge", False),
        )
    ),
}  # fmt: skip
_RIDE = ("vendorId", "passenger_count", "trip_distance", "payment_type", "total_amount")
_COLUMNS["v1"] = tuple(Column(name) for name in _RIDE)
_COLUMNS["v2"] = (*_COLUMNS["v1"], Column("tip_amount"))
_COLUMNS["v3"] = (*_COLUMNS["v2"], Column("picked_up"))
_CHUNK = 5_000
_BEGIN = datetime.datetime(2020, 7, 1)


def ride_schema(version: int = 1) -> str:
    """The Avro schema of a ride's value, as text."""
    if version not in RIDE_VERSIONS:
        raise UsageError(f"invalid version of a taxi ride: {version}", hint="1, 2 or 3")
    return files("headrace.samples").joinpath(f"taxi_ride.v{version}.avsc").read_text(encoding="utf-8")


def ride_key_schema() -> str:
    """The Avro schema of a ride's key, as text."""
    return files("headrace.samples").joinpath("taxi_ride_key.avsc").read_text(encoding="utf-8")


def taxi(
    records: int = 1000,
    seed: int = 7,
    *,
    shape: str = "rides",
    bad: float = 0.0,
    damage: Mapping[str, float] | None = None,
    fits: Format | str = Format.NDJSON,
) -> Sample:
    """So many rides, as columns of the monthly file or as records of a schema version."""
    if shape not in SHAPES:
        raise UsageError(f"invalid shape of taxi rides: {shape!r}", hint=", ".join(SHAPES))
    require_count(records)
    kinds = KINDS[shape]
    csv_first = (Format.CSV, Format.NDJSON, Format.ARRAY, Format.CONCATENATED, Format.STRINGS)
    formats = csv_first if shape == "rides" else (Format.NDJSON, Format.ARRAY, Format.CSV)
    return Sample(
        columns=_COLUMNS[shape],
        chunks=partial(_chunks, records, seed, shape),
        seed=seed,
        formats=formats,
        kinds=kinds,
        rates=rates(kinds, Wanted(bad, damage or {}, str(fits))),
    )


def _chunks(records: int, seed: int, shape: str) -> Iterator[Chunk]:
    draw = np.random.Generator(np.random.PCG64(seed))
    began_s = 0.0
    for first in range(0, records, _CHUNK):
        # Always a whole chunk is drawn, so that a longer sample begins as a shorter one does.
        luck = draw.random((16, _CHUNK))
        rides = _rides(luck, began_s)
        began_s += float(np.sum(luck[0] * 18))
        columns = rides if shape == "rides" else _versioned(rides, int(shape[1:]))
        count = min(_CHUNK, records - first)
        yield [column[:count] for column in columns]


def _rides(luck: Any, began_s: float) -> list[list[object]]:
    count = luck.shape[1]
    distance = np.round(0.4 + 2.4 * luck[1] / (1.02 - luck[1]) * 0.6, 2)
    distance[luck[2] < 0.04] = 0
    # Taxis report a ride when it is over, so pick-ups are only roughly in order.
    pickup = (began_s + np.cumsum(luck[0] * 18) + (luck[3] - 0.5) * 2400).astype(np.int64)
    seconds = (120 + distance * (150 + 200 * luck[4])).astype(np.int64)
    seconds[luck[5] < 0.002] *= -1
    cash = luck[6] < 0.38
    payment = np.where(cash, 2, np.where(luck[6] > 0.995, 4, np.where(luck[6] > 0.985, 3, 1)))
    fare = np.round(2.5 + distance * 2.5 + np.abs(seconds) / 200, 1)
    tip = np.where(payment == 1, np.round(fare * 0.3 * luck[7], 2), 0.0)
    tolls = np.where(luck[8] < 0.04, 6.12, 0.0)
    sign = np.where(luck[9] < 0.002, -1.0, 1.0)
    total = np.round(sign * (fare + 0.5 + 0.5 + 0.3 + 2.5 + tip + tolls), 2)
    people = np.array(["1"] * 32 + ["2"] * 5 + ["3"] * 2 + ["4", "5", "6"])[(luck[10] * 42).astype(np.int64)].tolist()
    for at in np.flatnonzero(luck[11] < 0.05).tolist():
        people[at] = "0" if luck[11][at] < 0.02 else NULL
    return [
        np.where(luck[12] < 0.33, 1, 2).tolist(),
        [_moment(at) for at in pickup.tolist()],
        [_moment(at) for at in (pickup + seconds).tolist()],
        people,
        distance.tolist(),
        np.where(luck[13] < 0.97, 1, 2 + (luck[13] * 100).astype(np.int64) % 4).tolist(),
        ["Y" if chance < 0.008 else "N" for chance in luck[14].tolist()],
        (1 + (luck[14] * 263).astype(np.int64)).tolist(),
        (1 + (luck[15] * 263).astype(np.int64)).tolist(),
        payment.tolist(), (sign * fare).tolist(), [0.5] * count, [0.5] * count, (sign * tip).tolist(),
        tolls.tolist(), [0.3] * count, total.tolist(), [2.5] * count,
    ]  # fmt: skip


def _moment(seconds: int) -> str:
    return str(_BEGIN + datetime.timedelta(seconds=seconds))


def _versioned(rides: list[list[Any]], version: int) -> list[list[object]]:
    """The rides as a schema version has them. Its passenger count knows no null: an empty one is nought there."""
    vendor, pickup, people, distance, payment, tip, total = (rides[at] for at in (0, 1, 3, 4, 9, 13, 16))
    columns = [vendor, [0 if count == NULL else count for count in people], distance, payment, total]
    if version >= 2:
        columns.append(tip)
    if version >= 3:
        columns.append([_millis(moment) for moment in pickup])
    return columns


def _millis(moment: str) -> int:
    return int(datetime.datetime.fromisoformat(moment).replace(tzinfo=datetime.UTC).timestamp() * 1000)


def _kinds(shape: str) -> dict[str, Kind]:
    vendor = "VendorID" if shape == "rides" else "vendorId"
    own = [
        replaced("wrong-type", "total_amount is a word", "total_amount", "free"),
        removed("missing-vendor", f"no {vendor}", vendor),
        replaced("negative-distance", "a distance below zero", "trip_distance", -1.5),
        replaced("unknown-payment", "a payment type that does not exist", "payment_type", 99),
        replaced("huge-total", "a total of more than a million", "total_amount", 1_000_003.6),
    ]
    return {kind.name: kind for kind in (*ANY_JSON, *own)}


KINDS = {shape: _kinds(shape) for shape in SHAPES}
