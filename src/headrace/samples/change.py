"""Changes of a shop's customers, as Debezium reports them of a PostgreSQL table, after a long way through a network.

A change is an envelope: `before` and `after` of the row, `op` (c, u, d), `ts_ms` and the place in the database's log,
`source.lsn`. Both grow with every change. Of a deleted row only the key is known, PostgreSQL's default. One record
in ten comes late, by up to some hundred places; one in thirty comes a second time; customers that were deleted may be
created again. So the last record of a customer is often not the latest one.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterator
from functools import partial

from headrace.samples.customer import CITIES, FIRST_NAMES, LAST_NAMES
from headrace.samples.sample import NULL, Chunk, Column, Format, Sample, require_count

COUNT = 1000
_CHUNK = 2_000
_MOST_CUSTOMERS = 100_000
_RECORDS_PER_CUSTOMER = 5
_LATE, _DOUBLED, _DELETED = 0.1, 0.03, 0.08
_LATEST_BY = 400
#: 1 May 2026, noon.
_BEGIN_MS = 1_777_636_800_000
_COLUMNS = (Column("before"), Column("after"), Column("source"), Column("op", quoted=True), Column("ts_ms"))


def changes(records: int = COUNT, seed: int = 7) -> Sample:
    """So many change events, late, repeated and out of order."""
    require_count(records)
    return Sample(_COLUMNS, partial(_chunks, records, seed), seed=seed, formats=(Format.NDJSON, Format.ARRAY))


def _chunks(records: int, seed: int) -> Iterator[Chunk]:
    draw = random.Random(f"changes {seed}")  # noqa: S311 - example data
    arriving = _disordered(records, draw)
    while rows := list(itertools.islice(arriving, _CHUNK)):
        yield list(zip(*rows, strict=True))


def _disordered(records: int, draw: random.Random) -> Iterator[tuple[object, ...]]:
    """So many records in the order in which they arrive; only those under way are in memory."""
    under_way: list[tuple[int, int, tuple[object, ...]]] = []
    customers = max(1, min(records // _RECORDS_PER_CUSTOMER, _MOST_CUSTOMERS))
    sent = 0
    for at, change in enumerate(_made(customers, draw)):
        for again in (False, True):
            if sent < records and (not again or draw.random() < _DOUBLED):
                late = draw.randrange(_LATEST_BY) if again or draw.random() < _LATE else 0
                heapq.heappush(under_way, (at + late, sent, change))
                sent += 1
        while under_way and (under_way[0][0] <= at or sent == records):
            yield heapq.heappop(under_way)[2]
        if sent == records:
            return


def _made(customers: int, draw: random.Random) -> Iterator[tuple[object, ...]]:
    """The changes in the order in which they were made, without end."""
    living: set[int] = set()
    lsn, ts_ms = 20_000_000, _BEGIN_MS
    while True:
        lsn, ts_ms = lsn + draw.randrange(8, 400), ts_ms + draw.randrange(1, 2000)
        number = draw.randrange(1, customers + 1)
        if number in living and draw.random() < _DELETED:
            living.remove(number)
            op, before, after = "d", f'{{"id": {number}, "name": null, "city": null, "points": null}}', NULL
        else:
            op, before, after = "u" if number in living else "c", NULL, _customer(number, draw)
            living.add(number)
        yield before, after, f'{{"connector": "postgresql", "table": "customers", "lsn": {lsn}}}', op, ts_ms


def _customer(number: int, draw: random.Random) -> str:
    name, city = f"{draw.choice(FIRST_NAMES)} {draw.choice(LAST_NAMES)}", draw.choice(CITIES)[0]
    return f'{{"id": {number}, "name": "{name}", "city": "{city}", "points": {draw.randrange(1000)}}}'
