"""Rows through a class of the user's own with state per key and timers, with a second look at each batch.

As with an aggregate behind a watermark (`watermark.py`), the operator drops late rows without a word, and the second
look says which. How many rows the class was given is counted beside the class: it must be what the second look found
for it, else the run ends before its rows are written. What it gave is computed once, and kept until it is written.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.errors import Failed
from headrace.pipeline.books.ledger import Ledger, SinkCount
from headrace.pipeline.spark import stateful
from headrace.pipeline.spark.sinks import sinks
from headrace.pipeline.spark.strategies.strategy import keep_in_rocksdb
from headrace.pipeline.spark.strategies.watermark import Watermark

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

_EMPTY_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"


class Stateful(Watermark):
    """Spark's `transformWithState`."""

    _noted = -1

    def start(self) -> StreamingQuery:
        aggregate, context = self.sink.aggregate, self.context
        assert aggregate is not None
        keep_in_rocksdb(context)
        if context.trigger.kind == "once" and not aggregate.has_watermark:
            # A timer of processing time may always expire in another batch: Spark would make them for ever.
            context.spark.conf.set(_EMPTY_BATCHES, "false")
        return super().start()

    def made(self, rows: DataFrame) -> DataFrame:
        return stateful.applied(rows, self.context.declaration, self.sink)

    def write(self, made: DataFrame, batch: sinks.Batch) -> SinkCount:
        """The rows that the class gave; those that it took are what the ledger compares."""
        kept = made.persist()
        try:
            taken, given = kept.agg(F.coalesce(F.sum(stateful.TAKEN), F.lit(0)), F.count(F.lit(1))).collect()[0]
            given -= kept.where(F.col(stateful.TAKEN).isNotNull()).count()
            took = replace(batch.took(self.sink, taken), made=given)
            if took.expected != taken:
                raise self._unbalanced(took, batch)
            rows = sinks.with_identity(kept.where(F.col(stateful.TAKEN).isNull()).drop(stateful.TAKEN))
            # Among the rows of a key in a batch, the last one is the latest.
            ordered = rows.withColumn("_offset", F.monotonically_increasing_id())
            written = sinks.writer_of(self.sink.kind).write(self.sink, ordered, batch)
        finally:
            kept.unpersist()
        return replace(took, replayed=written is None)

    def entries(self, query: StreamingQuery) -> tuple[()]:
        self._note_state(query)
        return ()

    def ended(self, query: StreamingQuery) -> None:
        self._note_state(query)

    def _note_state(self, query: StreamingQuery) -> None:
        """The ledger knows how large the state is behind each batch: Spark says so when the batch is over."""
        for progress in query.recentProgress:
            number = int(progress["batchId"])
            operators = json.loads(progress.json)["stateOperators"]
            if number > self._noted and operators:
                self._noted = number
                rows = sum(operator["numRowsTotal"] for operator in operators)
                Ledger(self.context.folder).note_state(self.context.processor.epoch, number, self.sink.name, rows)

    def _unbalanced(self, took: SinkCount, batch: sinks.Batch) -> Failed:
        declaration = self.context.declaration
        return Failed(
            f"{declaration.place(*declaration.path_of(self.sink), 'aggregate')}: the step does not balance",
            why=f"batch {batch.number}: it was given {took.records:,} rows of {took.expected:,}; none were written",
            hint="expressions that differ at each call, such as rand() and now(), cannot be before it",
        )
