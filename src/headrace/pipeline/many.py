"""Records that became several rows, or none.

A record has one outcome, however many rows it became. Is one of them dead, late or not as it must be, so is the record,
and none of its rows is written: redriven, it would bring them a second time. Is one of them written, so is the record;
rows beside it that are filtered or duplicates are not written and count no further. A record that a Python function has
left without a row is filtered, by that function.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

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


def delivered(raw: DataFrame) -> list[Mapping[str, Any]]:
    """What Kafka delivered, by partition, counted by itself: a function may leave rows out before they are counted."""
    grouped = raw.groupBy("topic", "partition").agg(
        F.count(F.lit(1)).alias("records"), F.min("offset").alias("first"), F.max("offset").alias("last")
    )
    return [row.asDict() for row in grouped.collect()]


def _rank() -> Column:
    return F.array_position(F.array(*map(F.lit, _OUTCOMES)), F.col("_outcome"))
