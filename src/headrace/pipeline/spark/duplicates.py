"""Rows that were there before: set aside, counted, and the first of them kept.

What was seen lies in a Delta table of the pipeline's own: the columns that make a row the same, and which record had
them first. A row is a duplicate if another record had its columns first, in this batch or before; with `within`, if a
row that was kept has its columns and lies no further away in event time. Records that are read again, by a replayed
batch or after a rewind, find themselves in the table (`_known`): they are not duplicates of themselves, stay the first
even if others are read before them now, and are not put into the table a second time.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from headrace.pipeline.declare.declaration import Declaration, span_s
from headrace.pipeline.spark.internals import is_delta_table
from headrace.pipeline.spark.sinks.delta import write_delta
from headrace.pipeline.spark.sinks.sinks import Batch

_FIRST = ("_topic", "_partition", "_offset")


def mark(kept: DataFrame, path: str, batch: Batch) -> DataFrame:
    """The batch with the outcome `duplicate` where it applies, and `_known`; `path` is the table of what was seen."""
    wanted = batch.declaration.deduplicate
    assert wanted is not None
    seen = batch.spark.read.format("delta").load(path) if is_delta_table(batch.spark, path) else None
    if wanted.within:
        marked = _marked_within(kept, seen, batch.declaration, wanted.by, int(span_s(wanted.within) * 1_000_000))
    else:
        marked = _marked(kept, seen, wanted.by)
    again = F.col("_again")
    return marked.withColumns(
        {
            "_outcome": F.when(again, "duplicate").otherwise(F.col("_outcome")),
            "_rule": F.when(again, "deduplicate").otherwise(F.col("_rule")),
        }
    ).drop("_again")


def remember(path: str, marked: DataFrame, batch: Batch) -> None:
    """The rows are in the table. Written before the sinks: if the batch is replayed, its records find themselves."""
    wanted = batch.declaration.deduplicate
    assert wanted is not None
    new = marked.where("_outcome = 'written' and not _known")
    write_delta(path, new.select(*_columns(wanted.by), *_FIRST, _time(batch.declaration).alias("_at")), batch)


def _marked(rows: DataFrame, seen: DataFrame | None, by: tuple[str, ...]) -> DataFrame:
    """`rows` with `_again`: whether another record had the columns first."""
    written, is_known, others = F.col("_outcome") == "written", F.lit(False), F.lit(False)
    columns = rows.columns
    if seen is not None:
        known = seen.select(*[F.col(f"`{name}`").alias(f"_seen_{name}") for name in (*by, *_FIRST)])
        rows = rows.join(known, [*_same(by), written], "left")
        is_known = F.struct(*_FIRST).eqNullSafe(F.struct(*[f"_seen_{name}" for name in _FIRST]))
        others = F.col("_seen__topic").isNotNull() & ~is_known
    marked = rows.withColumns({"_known": is_known, "_again": others}).select(*columns, "_known", "_again")
    first = Window.partitionBy("_outcome", *_columns(by)).orderBy(~F.col("_known"), *_FIRST, "_row")
    return marked.withColumn("_again", written & (F.col("_again") | (F.row_number().over(first) > 1)))


def _marked_within(
    rows: DataFrame, seen: DataFrame | None, declaration: Declaration, by: tuple[str, ...], span: int
) -> DataFrame:
    """`rows` with `_again`: whether a row that was kept lies within the span, in microseconds.

    The rows of a key are gone through in the order of their records: whether one is kept depends on those before it.
    """
    row = F.struct(*_FIRST, "_row", F.unix_micros(_time(declaration)).alias("at"))
    good = rows.where("_outcome = 'written'").select(*_columns(by), row.alias("_row"))
    grouped = good.groupBy(*_columns(by)).agg(F.array_sort(F.collect_list("_row")).alias("_rows"))
    before = F.filter("_rows", lambda _: F.lit(False))
    if seen is not None:
        bounds = good.agg(F.min("_row.at"), F.max("_row.at")).first()
        earliest, latest = bounds or (None, None)
        known = F.struct(*_FIRST, F.lit(None).cast("long").alias("_row"), F.unix_micros("_at").alias("at"))
        # Neither end may leave the 64 bits that a time has.
        first, last = max((earliest or 0) - span, -(2**63)), min((latest or 0) + span, 2**63 - 1)
        near = seen.where(F.unix_micros("_at").between(first, last))
        held = near.groupBy(*[F.col(f"`{name}`").alias(f"_seen_{name}") for name in by]).agg(
            F.collect_list(known).alias("_before")
        )
        grouped = grouped.join(held, _same(by), "left")
        before = F.coalesce("_before", before)

    def same_record(one: Column, other: Column) -> Column:
        return F.struct(*[one[name] for name in _FIRST]).eqNullSafe(F.struct(*[other[name] for name in _FIRST]))

    def is_known(row: Column) -> Column:
        return F.exists(before, lambda other: same_record(row, other) & row["at"].eqNullSafe(other["at"]))

    def kept_with(kept: Column, row: Column) -> Column:
        def is_near(other: Column) -> Column:
            # What was seen before is known by its record alone: in a batch that is replayed, the row may be that one.
            same = same_record(row, other) & F.coalesce(other["_row"] == row["_row"], F.lit(True))
            apart = F.try_subtract(F.greatest(other["at"], row["at"]), F.least(other["at"], row["at"]))
            return ~same & F.coalesce(apart <= span, F.lit(False))

        return F.when(F.exists(kept, is_near), kept).otherwise(F.array_append(kept, row))

    kept = F.transform(F.aggregate("_rows", before, kept_with), lambda row: row.withField("_known", is_known(row)))
    first = grouped.select(F.explode(kept).alias("_row")).select(
        *[F.col(f"_row.{name}").alias(f"_first{name}") for name in (*_FIRST, "_row")], "_row._known"
    )
    on = [F.col(name) == F.col(f"_first{name}") for name in (*_FIRST, "_row")]
    joined = rows.join(first.distinct(), on, "left")
    again = (F.col("_outcome") == "written") & F.col("_first_topic").isNull()
    return joined.withColumn("_again", again).drop(*[name for name in first.columns if name != "_known"])


def _columns(by: tuple[str, ...]) -> list[Column]:
    return [F.col(f"`{name}`") for name in by]


def _same(by: tuple[str, ...]) -> list[Column]:
    """The columns are those of a row that was seen."""
    return [F.col(f"`{name}`").eqNullSafe(F.col(f"`_seen_{name}`")) for name in by]


def _time(declaration: Declaration) -> Column:
    return F.col(f"`{declaration.event_time or '_timestamp'}`")
