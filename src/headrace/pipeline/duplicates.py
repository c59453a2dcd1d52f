"""Rows that were there before: set aside, counted, and the first of them kept.

What was seen lies in a Delta table of the pipeline's own: the columns that make a row the same, and which record had
them first. A row is a duplicate if another record had its columns first, in this batch or before. A replayed batch
finds its own records in the table, and they are not duplicates of themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from headrace.pipeline.declaration import span_s
from headrace.pipeline.ledger import BatchEntry
from headrace.pipeline.sinks import Batch, has_written, is_table

if TYPE_CHECKING:
    from headrace.pipeline.run import Run

_FIRST = ("_topic", "_partition", "_offset")


def set_aside(kept: DataFrame, batch: Batch, run: Run) -> tuple[DataFrame, BatchEntry]:
    """The batch with the outcome `duplicate` where it applies, kept, and its counts."""
    wanted = run.declaration.deduplicate
    assert wanted is not None
    path = str(run.folder.root / "seen")
    keys = [F.col(f"`{name}`") for name in wanted.by]
    first = Window.partitionBy("_outcome", *keys).orderBy(*_FIRST)
    marked = kept.withColumn("_again", (F.col("_outcome") == "written") & (F.row_number().over(first) > 1))
    seen = _seen(batch, path)
    if seen is not None:
        marked = _marked_by(seen, marked, run, wanted.by, wanted.within)
    again = F.col("_again")
    judged = marked.withColumns(
        {
            "_outcome": F.when(again, "duplicate").otherwise(F.col("_outcome")),
            "_rule": F.when(again, "deduplicate").otherwise(F.col("_rule")),
        }
    ).drop("_again")
    found = judged.persist()
    entry = run.count(found, batch)
    kept.unpersist()
    _remember(path, found, batch, run, wanted.by)
    return found, entry


def _seen(batch: Batch, path: str) -> DataFrame | None:
    return batch.spark.read.format("delta").load(path) if is_table(batch.spark, path) else None


def _marked_by(seen: DataFrame, rows: DataFrame, run: Run, by: tuple[str, ...], within: str | None) -> DataFrame:
    known = seen.select(*[F.col(f"`{name}`").alias(f"_seen_{name}") for name in (*by, *_FIRST, "_at")])
    on = [F.col(f"`{name}`").eqNullSafe(F.col(f"`_seen_{name}`")) for name in by]
    other = (
        ~F.col("_offset").eqNullSafe(F.col("_seen__offset"))
        | ~F.col("_partition").eqNullSafe(F.col("_seen__partition"))
        | ~F.col("_topic").eqNullSafe(F.col("_seen__topic"))
    )
    on.append(F.col("_outcome") == "written")
    if within and run.declaration.event_time:
        apart = F.unix_micros(F.col(f"`{run.declaration.event_time}`")) - F.unix_micros(F.col("_seen__at"))
        on.append(F.abs(apart) <= int(span_s(within) * 1_000_000))
    joined = rows.join(known, on, "left")
    # A key is in the table once, unless its rows lie further apart than `within`: one match is enough.
    before = F.col("_seen__topic").isNotNull() & other
    marked = joined.withColumn("_again", F.col("_again") | before)
    if within:
        marked = marked.dropDuplicates(list(_FIRST))
    return marked.drop(*known.columns)


def _remember(path: str, found: DataFrame, batch: Batch, run: Run, by: tuple[str, ...]) -> None:
    """Written before the sinks: if the batch is replayed, its records recognise themselves."""
    writer = batch.writer_of(path)
    if batch.replaying and has_written(batch.spark, path, writer, batch.number):
        return
    at = F.col(f"`{run.declaration.event_time}`") if run.declaration.event_time else F.col("_timestamp")
    new = found.where("_outcome = 'written'").select(*[F.col(f"`{name}`") for name in by], *_FIRST, at.alias("_at"))
    write = new.write.format("delta").mode("append").option("txnAppId", writer).option("txnVersion", batch.number)
    write.save(path)
