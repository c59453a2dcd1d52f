"""Rows of a batch into a folder of Parquet files, exactly once: a batch is a folder that appears by one rename."""

from __future__ import annotations

import zlib

from pyspark.sql import DataFrame

from headrace.pipeline.declare.declaration import Sink
from headrace.pipeline.spark.internals import Counted, HadoopFiles
from headrace.pipeline.spark.sinks.sinks import Batch, SinkWriter, without_identity


class ParquetWriter(SinkWriter):
    """Parquet files in the target folder. A reader sees the whole batch or none of it."""

    def write(self, sink: Sink, rows: DataFrame, batch: Batch) -> int | None:
        folder = batch.declaration.resolve(sink.target)
        # The writer is part of the name: another checkpoint's batch of the same number is another batch.
        name = f"{zlib.crc32(batch.writer.encode()):08x}-{batch.number}"
        final, staging = f"{folder}/batch={name}", f"{folder}/_writing-{name}"
        files = HadoopFiles(batch.spark, folder)
        if batch.replaying and files.exists(final):
            return None
        counted = Counted(without_identity(rows))
        counted.frame.write.mode("overwrite").partitionBy(*sink.partition_by).parquet(staging)
        files.rename(staging, final)
        return counted.rows
