"""Forty shapes of poison at a tenth of the stream: the pipeline goes on, and each original is kept byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.spark.pipelines import Workshop, send, totals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DECLARED = """
[pipelines.p]
from = "<topic>"
decode = { json = "id long, amount double, tags array<string>, inner struct<a: int>" }
into = { delta = "tables/t" }
[pipelines.p.select]
id = "id"
amount = "amount"
half = "cast(100 / id as int)"
[pipelines.p.expect]
"has an id" = "id is not null"
"has an amount" = "amount is not null and not isnan(amount) and abs(amount) < 1e300"
"""
GOOD = {"id": 7, "amount": 1.5, "tags": ["a"], "inner": {"a": 1}}
TEXT = json.dumps(GOOD)
POISON: list[bytes | None] = [
    None, b"", b" ", b"\n", b"{", b"}", b"{}", b"[]", b"null", b"true", b"1", b'"text"', b"not json", b"{'id': 1}",
    b"\xff\xfe", b"\xef\xbb\xbf", b"\x00", TEXT.encode("utf-16"), b"\xc3\x28" + TEXT.encode(),
    TEXT[:-1].encode(), TEXT.encode() * 2, TEXT.encode() + b" x", b"x " + TEXT.encode(), b"[" + TEXT.encode() + b"]",
    b'{"id": 9223372036854775808, "amount": 1}', b'{"id": 1e400, "amount": 1}', b'{"id": "seven", "amount": 1}',
    b'{"id": 1.5, "amount": 1}', b'{"id": true, "amount": 1}', b'{"id": [1], "amount": 1}', b'{"id": 1}',
    b'{"id": 1, "amount": "much"}', b'{"id": 1, "amount": NaN}', b'{"id": 1, "amount": 1e999}',
    b'{"id": 1, "amount": 1, "tags": "a"}', b'{"id": 1, "amount": 1, "inner": 5}', b'{"id": 0, "amount": 1}',
    b'{"id": ' + b"[" * 10_000 + b"]" * 10_000 + b', "amount": 1}', b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    b'{"id": null, "amount": 1}', b'{"amount": 1, "id": 1, "amount": null}',
    b'{"id": "' + b"x" * 900_000 + b'", "amount": 1}',
]  # fmt: skip


def test_nothing_stops_the_pipeline_and_nothing_is_lost(
    tmp_path: Path, headrace_cluster: Any, spark: SparkSession, headrace_topic: Callable[..., str]
) -> None:
    assert len(POISON) >= 40
    shop = Workshop(tmp_path, headrace_cluster, spark)
    topic = headrace_topic(partitions=2)
    shop.declare(DECLARED, topic=topic)
    mixed: list[Any] = []
    for bad in POISON:
        mixed += [bad, *[GOOD] * 9]
    send(headrace_cluster, topic, mixed)
    assert totals(shop.run()) == {"written": 9 * len(POISON), "dead": len(POISON)}
    assert len(shop.rows("tables/t")) == 9 * len(POISON)
    kept = [row["value"] for row in shop.dead()]
    assert sorted(bytes(v) if v is not None else b"null!" for v in kept) == sorted(
        b if b is not None else b"null!" for b in POISON
    )
    assert all(row["reason"] for row in shop.dead())
