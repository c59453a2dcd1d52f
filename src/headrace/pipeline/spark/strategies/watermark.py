"""Aggregates by Spark's own stateful operator, with the rows that it drops kept and counted.

The operator holds one state per key and open window. A window's row comes out once, when the watermark (the newest
event time seen, less the declared delay) has passed its end; a row that comes later is dropped without a word.
So each batch is looked at a second time, as plain rows of the same offsets and with the watermark that Spark wrote into
its checkpoint: what is dead or late is set aside, and the ledger balances. That costs a second read of the batch; the
other modes of aggregation do not need it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.pipeline.books.ledger import BatchEntry, SinkCount
from headrace.pipeline.declare.declaration import Declaration, Sink, interval, span_s
from headrace.pipeline.spark import source
from headrace.pipeline.spark.aggregate import computed
from headrace.pipeline.spark.demands import passes_where
from headrace.pipeline.spark.sinks import sinks
from headrace.pipeline.spark.strategies.batch_log import BatchLog
from headrace.pipeline.spark.strategies.strategy import RunContext, Strategy

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery


class Watermark(Strategy):
    """Spark's stateful operator, and a second look at each batch."""

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        sink = context.declaration.streaming_aggregate
        assert sink is not None
        self.sink = sink

    def start(self) -> StreamingQuery:
        self.know_schemas()
        rows = self.context.classifier.classify(self.context.read_stream()).where("_outcome = 'written'")
        wanted = sinks.shape(self.sink, rows.where(passes_where(self.context.declaration, self.sink)))
        each = self.context.each_batch(self.process)
        return self.context.start(self.made(wanted).writeStream.outputMode("append").foreachBatch(each))

    def made(self, rows: DataFrame) -> DataFrame:
        """What the operator makes of the stream of rows."""
        declaration, aggregate = self.context.declaration, self.sink.aggregate
        assert aggregate is not None
        assert declaration.event_time is not None
        assert declaration.watermark is not None
        aged = rows.withWatermark(declaration.event_time, interval(declaration.watermark))
        return computed(aged, declaration, aggregate)

    def process(self, made: DataFrame, batch: sinks.Batch) -> BatchEntry:
        """What the operator made of the batch, and its records, are written."""
        declaration, number = self.context.declaration, batch.number
        log = BatchLog(made.sparkSession, self.context.checkpoint)
        late = _is_late(declaration, self.sink, log.watermark_ms(number - 1))
        windows = _Windows(declaration, self.sink, log.watermark_ms(number))
        spans = log.spans(number)
        records = source.read_again(batch.spark, declaration, self.context.connection, spans)
        known = self.known_schemas
        entry = self.context.processor.process(records, batch, late, windows.count)
        self.require_known_schemas(known)
        took = self.write(made, batch)
        entry.sinks.append(replace(took, watermark=windows.watermark_ms, windows=windows.rows))
        return entry

    def write(self, made: DataFrame, batch: sinks.Batch) -> SinkCount:
        """Finished windows: only the operator knows how many there are, so what came is what was expected."""
        written = sinks.writer_of(self.sink.kind).write(self.sink, sinks.with_identity(made), batch)
        return replace(batch.took(self.sink, written), expected=written or 0, records=written or 0)


class _Windows:
    """To which windows the rows of a batch went, and up to where windows are closed behind it."""

    def __init__(self, declaration: Declaration, sink: Sink, watermark_ms: int) -> None:
        self._declaration = declaration
        self._sink = sink
        self._ends = _window_end(declaration, sink)
        # A session ends when none of its rows is followed by another: a row does not show that. A class has no windows.
        session = sink.aggregate is not None and sink.aggregate.window is not None and sink.aggregate.window.session
        self.watermark_ms = None if session or sink.mode == "state" else watermark_ms
        self.rows: dict[int, int] = {}

    def count(self, kept: DataFrame) -> None:
        """The rows of the batch that go to the sink are counted by the end of the last window that they belong to."""
        if self.watermark_ms is not None:
            rows = kept.where("_outcome = 'written'").where(passes_where(self._declaration, self._sink))
            grouped = rows.groupBy((self._ends / 1000).cast("long").alias("ends")).count()
            self.rows = {row["ends"]: row["count"] for row in grouped.collect()}


def _is_late(declaration: Declaration, sink: Sink, watermark_ms: int) -> Column | None:
    """Whether the last window that a row belongs to had ended before the watermark."""
    return _window_end(declaration, sink) <= watermark_ms * 1000 if watermark_ms > 0 else None


def _window_end(declaration: Declaration, sink: Sink) -> Column:
    """When the last window that a row belongs to ends, in microseconds."""
    window = sink.aggregate.window if sink.aggregate else None
    at = F.unix_micros(F.col(f"`{declaration.event_time}`"))
    if window is None:
        return at
    if window.session:
        return at + _micros(window.size)
    # Not with Spark's window(): that takes rows without a time out of the batch, and their outcome with them.
    return at - F.pmod(at, F.lit(_micros(window.slide or window.size))) + _micros(window.size)


def _micros(span: str) -> int:
    return int(span_s(span) * 1_000_000)
