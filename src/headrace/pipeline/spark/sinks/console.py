"""Rows of a batch on the screen of whoever runs the pipeline: the first few of them."""

from __future__ import annotations

from pyspark.sql import DataFrame

from headrace.pipeline.declare.declaration import Sink
from headrace.pipeline.spark.sinks.sinks import Batch, SinkWriter, without_identity

_SHOWN_ROWS = 20


class ConsoleWriter(SinkWriter):
    """Shows rows; a replayed batch is shown again."""

    def write(self, sink: Sink, rows: DataFrame, batch: Batch) -> int | None:
        shown = [row.asDict() for row in without_identity(rows).limit(_SHOWN_ROWS).collect()]
        if batch.show is not None:
            batch.show(f"batch {batch.number}", shown)
        return rows.count() if sink.where else batch.written
