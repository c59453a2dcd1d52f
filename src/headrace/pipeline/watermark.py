"""Aggregates by Spark's own stateful operator, with the rows that it drops kept and counted.

The operator holds one state per key and open window. A window's row comes out once, when the watermark (the newest
event time seen, less the declared delay) has passed its end; a row that comes later is dropped without a word.
So each batch is looked at a second time, as plain rows of the same offsets and with the watermark that Spark wrote into
its checkpoint: what is dead or late is set aside, and the ledger balances. That costs a second read of the batch; the
other modes of aggregation do not need it.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.pipeline import sinks, source
from headrace.pipeline.aggregate import computed
from headrace.pipeline.checkpoint import Offsets, parse_offsets
from headrace.pipeline.declaration import Declaration, Sink, span_s
from headrace.pipeline.demands import wants
from headrace.pipeline.ledger import SinkCount

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

    from headrace.pipeline.run import Run


def start(run: Run, stream: DataFrame) -> StreamingQuery:
    """The stateful query runs."""
    declaration = run.declaration
    sink = declaration.streaming_aggregate
    assert sink is not None
    assert sink.aggregate is not None
    assert declaration.event_time is not None
    assert declaration.watermark is not None
    rows = run.flow.sort_out(stream).where("_outcome = 'written'").where(wants(declaration, sink))
    aged = sinks.shape(sink, rows).withWatermark(declaration.event_time, declaration.watermark)
    made = computed(aged, declaration, sink.aggregate)
    writer = made.writeStream.outputMode("append").foreachBatch(lambda found, number: _take(run, sink, found, number))
    return run.start_writer(writer)


def _take(run: Run, sink: Sink, made: DataFrame, number: int) -> None:
    began = time.monotonic()
    batch = run.batch(made.sparkSession, number)
    log = _Log(made.sparkSession, run.folder.checkpoint(run.declaration))
    with run.culprit():
        late = _is_late(run.declaration, sink, log.watermark_ms(number - 1))
        windows = _Windows(run.declaration, sink, log.watermark_ms(number))
        entry = run.process(_same_records(run, log, number, made.sparkSession), batch, late, windows.look)
        entry.sinks.append(_write(sink, made, batch, windows))
    entry.seconds = time.monotonic() - began
    run.enter(entry)


def _write(sink: Sink, made: DataFrame, batch: sinks.Batch, windows: _Windows) -> SinkCount:
    """Finished windows: how many there are is the operator's business, so what came is what was expected."""
    identity = {"_topic": F.lit(""), "_partition": F.lit(0), "_offset": F.lit(0), "_timestamp": F.current_timestamp()}
    written = sinks.write_rows(sink, made.withColumns(identity), batch)
    took, rows = batch.took(sink, written), written or 0
    return replace(took, expected=rows, records=rows, watermark=windows.watermark_ms, windows=windows.rows)


class _Windows:
    """To which windows the rows of a batch went, and up to where windows are closed behind it."""

    def __init__(self, declaration: Declaration, sink: Sink, watermark_ms: int) -> None:
        self._declaration = declaration
        self._sink = sink
        self._ends = _window_end(declaration, sink)
        # A session ends when none of its rows is followed by another: that cannot be told of a row.
        session = sink.aggregate is not None and sink.aggregate.window is not None and sink.aggregate.window.session
        self.watermark_ms = None if session else watermark_ms
        self.rows: dict[int, int] = {}

    def look(self, kept: DataFrame) -> None:
        """The rows of the batch that go to the sink are counted by the end of the last window that they belong to."""
        if self.watermark_ms is not None:
            rows = kept.where("_outcome = 'written'").where(wants(self._declaration, self._sink))
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


def _same_records(run: Run, log: _Log, number: int, spark: SparkSession) -> DataFrame:
    """The records of the batch, read by their offsets."""
    first, after = log.offsets(number - 1) if number else log.initial(), log.offsets(number)
    spans = {place: (first.get(place, 0), offset) for place, offset in after.items()}
    return source.read_again(spark, run.declaration, run.connection, spans)


class _Log:
    """Spark's own notes on its batches, wherever the checkpoint lies."""

    def __init__(self, spark: SparkSession, checkpoint: str) -> None:
        self._spark = spark
        self._checkpoint = checkpoint

    def _lines(self, path: str) -> list[str]:
        (row,) = self._spark.read.text(f"{self._checkpoint}/{path}", wholetext=True).collect()
        return str(row[0]).splitlines()

    def offsets(self, number: int) -> Offsets:
        return parse_offsets(self._lines(f"offsets/{number}")[2])

    def initial(self) -> Offsets:
        return parse_offsets(self._lines("sources/0/0")[-1].lstrip("\x00v1"))

    def watermark_ms(self, number: int) -> int:
        """The watermark of a batch: it closes windows in that batch, and rows are late by it in the next."""
        if number < 0:
            return 0
        note: dict[str, Any] = json.loads(self._lines(f"offsets/{number}")[1])
        return int(note.get("batchWatermarkMs", 0))
