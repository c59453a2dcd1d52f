"""Outcomes of records, counted: per partition, outcome and rule, for the ledger.

A record has one outcome, however many rows it became. If one of its rows is dead, late or failed, so is the record, and
none of its rows is written: redriven, it would bring them a second time. If one of them is written, so is the record;
rows beside it that are filtered or duplicates are not written and not counted. A record that a Python function left
without a row is filtered, by that function.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.pipeline.books.ledger import BatchEntry

_RECORD = ("_topic", "_partition", "_offset")
#: The first of them that a row of the record has is the record's.
_OUTCOMES = ("failed", "dead", "late", "written", "duplicate", "filtered")


def sums(counts: Iterable[str]) -> dict[str, Column]:
    """What is summed up of a batch, beside the number of its records; `counts` are the columns of `Demands`."""
    found = {"_rows": F.lit(1), "_warned": F.greatest(F.size("_warnings"), F.lit(0))}
    for name in counts:
        found[f"{name}_wanted"] = F.col(name).isNotNull().cast("int")
        found[f"{name}_rows"] = F.coalesce(F.col(name), F.lit(0))
    return {name: F.when(F.col("_outcome") == "written", column).otherwise(0) for name, column in found.items()}


def by_record(rows: DataFrame, sums: Iterable[str]) -> DataFrame:
    """A row for each record, with its outcome, and of the rows that are written the sums of those columns."""
    first = F.min(F.struct(_rank().alias("rank"), "_outcome", "_rule")).alias("_first")
    grouped = rows.groupBy(*_RECORD).agg(first, *[F.sum(name).alias(name) for name in sums])
    written = F.col("_first._outcome") == "written"
    return grouped.select(
        *_RECORD,
        "_first._outcome",
        "_first._rule",
        *[F.when(written, F.col(name)).otherwise(0).alias(name) for name in sums],
    )


def without_rest(rows: DataFrame) -> DataFrame:
    """`rows`, in which a record that is set aside has one row: the one that decided it."""
    first = F.min(F.struct(_rank().alias("rank"), "_rule", "_reason", "_row")).alias("_first")
    bad = rows.where("_outcome in ('failed', 'dead', 'late')").groupBy(*_RECORD).agg(first)
    joined = rows.join(bad, list(_RECORD), "left")
    return joined.where("_first is null or _first._row = _row").drop("_first")


def delivered(raw: DataFrame) -> list[Mapping[str, object]]:
    """What Kafka delivered, by partition, counted by itself: a function may leave rows out before they are counted."""
    grouped = raw.groupBy("topic", "partition").agg(
        F.count(F.lit(1)).alias("records"), F.min("offset").alias("first"), F.max("offset").alias("last")
    )
    return [row.asDict() for row in grouped.collect()]


def count(rows: DataFrame, summed: Mapping[str, Column], *, several: bool) -> list[Mapping[str, Any]]:
    """The records of classified rows by partition, outcome and rule; `several`: a record may be several rows."""
    rows = rows.withColumns(dict(summed))
    records = by_record(rows, summed) if several else rows
    grouped = records.groupBy("_topic", "_partition", "_outcome", "_rule").agg(
        F.count(F.lit(1)).alias("records"), F.min("_offset").alias("first"), F.max("_offset").alias("last"),
        *[F.sum(name).alias(name) for name in summed],
    )  # fmt: skip
    return [row.asDict() for row in grouped.collect()]


def fill(entry: BatchEntry, groups: Iterable[Mapping[str, Any]], sinks: Iterable[str], *, several: bool) -> None:
    """The groups, as `count` has them, are in the entry. `sinks` are the columns of `Demands`."""
    for row in groups:
        place = (row["_topic"], row["_partition"])
        entry.counts[(*place, row["_outcome"], row["_rule"] or "")] = row["records"]
        entry.warnings += row["_warned"]
        if row["_outcome"] == "written" and several:
            entry.rows[place] = entry.rows.get(place, 0) + row["_rows"]
        for name in sinks:
            wanted, rows = entry.wanted.get(name, (0, 0))
            entry.wanted[name] = wanted + row[f"{name}_wanted"], rows + row[f"{name}_rows"]
        first, after, records = entry.spans.get(place, (row["first"], 0, 0))
        entry.spans[place] = (min(first, row["first"]), max(after, row["last"] + 1), records + row["records"])


def fill_filtered(entry: BatchEntry, read: Iterable[Mapping[str, Any]], steps: str) -> None:
    """Records that a Python function left without a row are filtered, by that function; `read` is what came."""
    entry.delivered = 0
    for row in read:
        place = (row["topic"], row["partition"])
        entry.delivered += row["records"]
        left = row["records"] - entry.spans.get(place, (0, 0, 0))[2]
        if left > 0:
            entry.counts[(*place, "filtered", steps)] = entry.counts.get((*place, "filtered", steps), 0) + left
        entry.spans[place] = (row["first"], row["last"] + 1, row["records"])


def _rank() -> Column:
    return F.array_position(F.array(*map(F.lit, _OUTCOMES)), F.col("_outcome"))
