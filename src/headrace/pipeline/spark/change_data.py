"""Changes by key into a Delta table: the latest row of each key, or with `history` every version of it.

Which change of a key is the latest is decided by the declared `sequence`, and by the order of the records where that is
the same. It is computed of the table's own columns, so that the table itself says how recent its rows are and has no
columns but the declared ones. What the table no longer has is in another one beside it, TABLE.deleted: the keys that
were deleted and the sequence of each delete. So a change that arrives late brings no deleted row back.

Nothing depends on how changes are cut into batches, nor on how often one comes: a change replaces what has the same
sequence or an earlier one, and that twice is the same as once. A batch that is replayed therefore finds the same
outcomes, and writes nothing if the table's log has its number. The two tables are two commits, the deletes first: if
only they were written, the replayed batch finds its own deletes, which do not supersede it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from headrace.errors import Failed
from headrace.pipeline.books.ledger import Changed, SinkCount
from headrace.pipeline.declare.declaration import Changes, Declaration, Sink
from headrace.pipeline.spark import internals
from headrace.pipeline.spark.classify import message_of
from headrace.pipeline.spark.demands import passes_where
from headrace.pipeline.spark.sinks.delta import commit_of, write_delta
from headrace.pipeline.spark.sinks.sinks import Batch, columns_of, names, selected, without_identity

#: The columns that a history adds.
SPAN = ("valid_from", "valid_to", "current")
_DELETED = "_deleted"
_POSITION = ("_topic", "_partition", "_offset", "_row")
#: Where a version was found: a batch replaces what has the same sequence, a row outlasts a delete of the same sequence.
_GRAVE, _ROW, _BATCH = 0, 1, 2
#: What only one of the things found has that are a version together.
_ONCE = ("_old", "_span", "_events")


def write(sink: Sink, rows: DataFrame, batch: Batch) -> SinkCount:
    """The table holds the changes of the batch, once."""
    assert sink.changes is not None
    wanted = rows.where(passes_where(batch.declaration, sink))
    table = _Table(sink, sink.changes, batch)
    table.ensure(wanted)
    last = table.last_of(_events(sink, wanted))
    decided = (_versions(table, last.persist()) if sink.changes.history else _latest(table, last)).persist()
    try:
        changed = _outcomes(decided)
        counted = replace(batch.took(sink, changed.total), changed=changed)
        table.require_one_row_per_key(counted)
        table.change(decided, changed)
    finally:
        decided.unpersist()
        last.unpersist()
    return counted


def made(sink: Sink, rows: DataFrame, declaration: Declaration) -> DataFrame:
    """The columns of the table, of rows as the sink selects them; raises if they cannot be changes."""
    changes, at = sink.changes, (*declaration.path_of(sink), "changes")
    assert changes is not None
    taken = [name for name in SPAN if changes.history and name in rows.columns]
    if taken:
        raise declaration.wrong(
            f"the rows have a column {taken[0]}", *at, why="a history adds a column of that name to the table",
            hint=f"select it under another name: select = {{ since = \"{taken[0]}\", … }}",
        )  # fmt: skip
    keyed = rows.withColumn("_sequence", _sequence(changes))
    keyed.groupBy(*_columns(changes.key)).agg(F.max("_sequence"))  # both can be compared
    return keyed.withColumns(_span(F.col("_sequence"))).drop("_sequence") if changes.history else rows


def _events(sink: Sink, rows: DataFrame) -> DataFrame:
    """The rows as the sink selects them, with `_sequence`, `_at` (their place in the order of all) and `_deleted`."""
    assert sink.changes is not None
    deletes = F.expr(sink.changes.delete_when) if sink.changes.delete_when else F.lit(False)
    marked = rows.withColumn(_DELETED, F.coalesce(deletes, F.lit(False)))
    shaped = selected(sink, marked).withColumn("_sequence", _sequence(sink.changes))
    at = F.struct("_sequence", *_POSITION).alias("_at")
    return shaped.select(*_columns(names(sink, rows)), "_sequence", _DELETED, at)


def _sequence(changes: Changes) -> Column:
    """Of a row, in a batch or in the table: what decides which change is the latest."""
    parts = [F.expr(text) for text in changes.sequence] or [F.lit(0)]
    return F.struct(*[part.alias(f"s{at}") for at, part in enumerate(parts)])


def _columns(names: Iterable[str]) -> list[Column]:
    return [F.col(f"`{name}`") for name in names]


# -- what becomes of each change ---------------------------------------------------------------------------------------
#
# Both give a row for each change of the batch that is the last of its key (and of its sequence, in a history), and a
# history also the rows of the table whose span changes:
#
#     the table's columns, _sequence, _deleted
#     _events      how many rows of the batch it stands for, itself among them; 0 of a row of the table
#     _applies     whether the table holds it afterwards; otherwise it was superseded
#     _old         the row of the table that it replaces


@dataclass(frozen=True)
class _Table:
    """The table of a sink, and that of its deletes."""

    sink: Sink
    changes: Changes
    batch: Batch

    @property
    def path(self) -> str:
        return self.batch.declaration.resolve(self.sink.target)

    @property
    def graves_path(self) -> str:
        return f"{self.path.rstrip('/')}.deleted"

    @property
    def key(self) -> list[Column]:
        return _columns(self.changes.key)

    def last_of(self, events: DataFrame) -> DataFrame:
        """Of the events of a key, in a history of a key and sequence, the last one, and how many there were."""
        by = [*self.changes.key, *(["_sequence"] if self.changes.history else [])]
        rest = F.struct(*_columns([name for name in events.columns if name not in {*by, "_at"}]))
        last = events.groupBy(*_columns(by)).agg(F.max_by(rest, "_at").alias("_last"), F.count("*").alias("_events"))
        return last.select(*_columns(by), "_last.*", "_events")

    def ensure(self, rows: DataFrame) -> None:
        """The table exists. The deletes of one that was there before are not its own."""
        if not internals.is_delta_table(self.batch.spark, self.path):
            if (graves := self.graves) is not None:
                graves.limit(0).write.format("delta").mode("overwrite").save(self.graves_path)
            like = made(self.sink, _events(self.sink, rows), self.batch.declaration)
            internals.create_for_replacing(self.path, without_identity(like), self.sink.partition_by)

    @property
    def rows(self) -> DataFrame:
        """What is in the table, with `_sequence` and `_old`."""
        table = self.batch.spark.read.format("delta").load(self.path)
        try:
            return table.select("*", _sequence(self.changes).alias("_sequence"), internals.row_address().alias("_old"))
        except AnalysisException as error:
            raise self._unfit(message_of(error)) from None

    def _unfit(self, why: str) -> Failed:
        return Failed(
            f"{self.batch.declaration.place(*self.batch.declaration.path_of(self.sink))}: "
            f"the table {self.sink.target} exists and cannot take changes by key",
            why=f"it has other columns, or no deletion vectors: {why}",
            hint=f"name another table, or: alter table delta.`{self.path}` set tblproperties "
            "('delta.enableDeletionVectors' = 'true')",
        )

    @property
    def graves(self) -> DataFrame | None:
        """The deletes that are remembered: key and `_sequence`; None if there are none."""
        if not self.changes.sequence or not internals.is_delta_table(self.batch.spark, self.graves_path):
            return None
        return self.batch.spark.read.format("delta").load(self.graves_path)

    def change(self, decided: DataFrame, changed: Changed) -> None:
        """Deletes are remembered, then rows are replaced."""
        applied = decided.where("_applies")
        if changed.deleted and self.changes.sequence:
            graves = applied.where(f"{_DELETED} and _events > 0").select(*self.key, "_sequence")
            write_delta(self.graves_path, graves, self.batch)
        if changed.applied or changed.deleted:
            rows = applied.select(*_columns(columns_of(applied)), "_old", (~F.col(_DELETED)).alias("_new"))
            commit = commit_of(self.path, self.batch)
            internals.replace_in_delta(
                self.path, rows.where("_new or _old is not null"), commit, self.sink.partition_by
            )

    def require_one_row_per_key(self, counted: SinkCount) -> None:
        if counted.records > counted.expected:
            raise Failed(
                f"{self.batch.declaration.place(*self.batch.declaration.path_of(self.sink))}: "
                f"the table {self.sink.target} has several rows for a key",
                why=f"key is {', '.join(self.changes.key)}; nothing of batch {self.batch.number} was written",
                hint="remove the rows that are too many, or name another table",
            )


def _outcomes(decided: DataFrame) -> Changed:
    stands = F.when(F.col("_events") > 0, 1).otherwise(0)
    sums = {
        "applied": F.when(F.col("_applies") & ~F.col(_DELETED), stands).otherwise(0),
        "deleted": F.when(F.col("_applies") & F.col(_DELETED), stands).otherwise(0),
        "superseded": F.col("_events") - F.when(F.col("_applies"), stands).otherwise(0),
    }
    row = decided.agg(*[F.coalesce(F.sum(column), F.lit(0)).alias(name) for name, column in sums.items()]).first()
    assert row is not None
    return Changed(**row.asDict())


def _latest(table: _Table, last: DataFrame) -> DataFrame:
    """One row per key."""
    keys = list(table.changes.key)
    known = table.rows.select(*table.key, F.col("_sequence").alias("_known"), "_old")
    joined, applies = last.join(known, keys, "left"), _not_before("_known")
    if (graves := table.graves) is not None:
        deleted = graves.groupBy(*table.key).agg(F.max("_sequence").alias("_grave"))
        joined, applies = joined.join(deleted, keys, "left"), applies & _not_before("_grave")
    return joined.withColumn("_applies", applies).drop("_known", "_grave")


def _not_before(other: str) -> Column:
    return F.coalesce(F.col("_sequence") >= F.col(other), F.lit(True))


def _versions(table: _Table, last: DataFrame) -> DataFrame:
    """Every version of the keys in the batch whose row or span changes."""
    touched = last.select(*table.key).distinct()
    rows = table.rows.withColumns({"_span": F.struct(*_columns(SPAN)), _DELETED: F.lit(False)}).drop(*SPAN)
    parts = [last.withColumn("_from", F.lit(_BATCH)), _of(rows, touched).withColumn("_from", F.lit(_ROW))]
    if (graves := table.graves) is not None:
        deleted = graves.distinct().withColumns({_DELETED: F.lit(True), "_from": F.lit(_GRAVE)})
        parts.append(_of(deleted, touched))
    every = functools.reduce(lambda some, more: some.unionByName(more, allowMissingColumns=True), parts)
    by = [*table.changes.key, "_sequence"]
    rest = F.struct(*_columns([name for name in every.columns if name not in {*by, *_ONCE}]))
    versions = every.groupBy(*_columns(by)).agg(
        F.max_by(rest, "_from").alias("_chosen"), *[F.max(name).alias(name) for name in _ONCE]
    )
    after = F.lead("_sequence").over(Window.partitionBy(*table.key).orderBy("_sequence"))
    spanned = versions.select(*_columns(by), "_chosen.*", *_ONCE).withColumn("_after", after)
    spanned = spanned.withColumns(_span(F.col("_sequence"), F.col("_after")))
    moved = (F.col("_from") == _ROW) & ~F.col("_span").eqNullSafe(F.struct(*_columns(SPAN)))
    return spanned.where(moved | (F.col("_from") == _BATCH)).withColumns({
        "_applies": F.lit(True), "_events": F.coalesce("_events", F.lit(0))
    })  # fmt: skip


def _of(rows: DataFrame, touched: DataFrame) -> DataFrame:
    return rows.join(touched, touched.columns, "left_semi")


def _span(sequence: Column, after: Column | None = None) -> dict[str, Column]:
    """From when to when a version holds, by the first part of the sequence; `after` is that of the next change."""
    start = sequence["s0"]
    end, is_last = (F.when(F.lit(False), start), F.lit(True)) if after is None else (after["s0"], after.isNull())
    return {"valid_from": start, "valid_to": end, "current": is_last}
