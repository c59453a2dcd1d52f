"""The account of a join over hundreds of batches: a record counts as matched once, and what is settled is forgotten."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

from headrace.pipeline.books.ledger import BatchEntry, JoinCount, Ledger

_BATCH_MS, _WAITS_MS = 1000, 5000


def _bits(offsets: set[int]) -> dict[tuple[str, int, int], bytes]:
    """As Spark's bitmap functions have them: buckets of 32,768, the lowest bit first."""
    found: dict[tuple[str, int, int], bytes] = {}
    for bucket in {offset // 32768 for offset in offsets}:
        bits = sum(1 << offset % 32768 for offset in offsets if offset // 32768 == bucket)
        found["t", 0, bucket] = bits.to_bytes(4096, "little")
    return found


def test_records_count_as_matched_once_and_settled_ones_are_forgotten(tmp_path: Path) -> None:
    ledger, chance = Ledger(tmp_path), random.Random(3)
    ledger.prepare()
    ledger.begin("r", "once", "local")
    records: dict[int, int] = {}  # offset to when it is settled
    matched: set[int] = set()
    gone: set[int] = set()
    for batch in range(300):
        watermark = batch * _BATCH_MS
        new = range(30_000 + batch * 20, 30_000 + batch * 20 + 20)
        records |= dict.fromkeys(new, watermark + _WAITS_MS)
        pairs = {offset for offset, ends in records.items() if ends > watermark and chance.random() < 0.1}
        alone = {offset for offset, ends in records.items() if ends <= watermark} - matched - gone
        for attempt in ({*pairs, *new[:5]}, pairs):  # the first attempt was cut off, and is replaced
            entry = BatchEntry(batch, delivered=len(new), counts={("t", 0, "written", ""): len(new)})
            count = JoinCount("t", len(new), len(alone), _bits(attempt), {watermark + _WAITS_MS: len(new)}, watermark)
            entry.joins.append(count)
            ledger.enter("r", entry)
        matched |= pairs
        gone |= alone
    (line,) = ledger.joins()
    assert (line.entered, line.matched, line.unmatched) == (len(records), len(matched), len(gone))
    assert line.waiting == len(records) - len(matched) - len(gone) > 0
    assert line.balanced
    assert ledger.run("r").balanced
    with sqlite3.connect(ledger.file) as db:
        ((kept,),) = db.execute("select count(distinct batch) from matches")
    assert 100 <= kept < 130
    entry.joins[0] = JoinCount("t", len(new), len(alone) + 200, _bits(pairs), {}, watermark)
    ledger.enter("r", entry)  # more were given up than had entered
    assert not ledger.run("r").balanced
