"""Rows of a batch into their places, each exactly once.

A batch may be written again after a crash: Spark replays the last one that it cannot prove finished. So every sink must
recognise a batch that it has taken already:

    Delta      the commit says whose batch it is (delta_sink.py)
    Parquet    a batch is a folder that appears by one rename; if it is there, it is whole
    topic      one transaction per task, with a mark of the batch inside (kafka_sink.py)
    console    is looked at; nothing depends on it

The writer is named after the checkpoint (its query id and epoch): another checkpoint numbers its batches anew.
Each sink counts the rows that pass into it, apart from the ledger's own count of the batch.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.errors import UsageError
from headrace.pipeline.counted import Counted
from headrace.pipeline.declaration import Declaration, Sink
from headrace.pipeline.delta_sink import write_delta
from headrace.pipeline.demands import column_of, wants
from headrace.pipeline.flow import IDENTITY, layers
from headrace.pipeline.ledger import BatchEntry, SinkCount

if TYPE_CHECKING:
    from headrace.pipeline.kafka_sink import KafkaTarget
    from headrace.transport.client import Connection
    from headrace.transport.schemas import Registry

_SHOWN_ROWS = 20


@dataclass
class Batch:
    """What a sink must know of the batch that it is given."""

    spark: SparkSession
    declaration: Declaration
    number: int
    run: str
    #: Unique for this checkpoint: what sinks remember batches by.
    writer: str
    connection: Connection
    registry: Registry | None
    #: The first batch after a start may have been written before; later ones cannot.
    replaying: bool
    tasks: int
    show: Callable[[str, list[dict[str, Any]]], None] | None = None
    #: The rows that are written, and by sink with a `where` of its own: how many it wants, and how many become of them.
    written: int = 0
    wanted: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def expect(self, entry: BatchEntry) -> None:
        """How many rows each sink is to take is known."""
        self.written = entry.written_rows
        columns = {sink.name: column_of(self.declaration, sink) for sink in self.declaration.sinks}
        self.wanted = {name: entry.wanted[column] for name, column in columns.items() if column in entry.wanted}

    def took(self, sink: Sink, records: int | None) -> SinkCount:
        """The account of the sink, which has written so many rows; None: an earlier attempt had written them."""
        wanted, expected = self.wanted.get(sink.name, (self.written, self.written))
        return SinkCount.of(sink.name, expected, records, given=self.written, skipped=self.written - wanted)

    def writer_of(self, what: str) -> str:
        return f"{self.writer}/{what}"

    def into(self, topic: str) -> KafkaTarget:
        """The topic as what this batch is written to, exactly once."""
        from headrace.pipeline.kafka_sink import KafkaTarget

        return KafkaTarget(self.connection, self.writer_of(topic), self.number, self.tasks, self.replaying)


def write(sink: Sink, rows: DataFrame, batch: Batch) -> SinkCount:
    """The sink holds the rows of the batch, once."""
    from headrace.pipeline import aggregate

    if sink.aggregate is not None:
        return aggregate.write(sink, rows, batch)
    return batch.took(sink, write_rows(sink, shape(sink, rows.where(wants(batch.declaration, sink))), batch))


def write_rows(sink: Sink, rows: DataFrame, batch: Batch) -> int | None:
    """The sink holds the rows as they are. Returns how many, None if an earlier attempt has written them."""
    return _WRITERS[sink.kind](sink, rows, batch)


def wanted(sink: Sink, rows: DataFrame) -> DataFrame:
    """The rows that the sink's own `where` lets through."""
    return rows.where(sink.where) if sink.where else rows


def shape(sink: Sink, rows: DataFrame) -> DataFrame:
    """The sink's own columns: those it selects, else all that are declared. Rows of a table have no identity."""
    identity = [name for name in IDENTITY if name in rows.columns]
    return selected(sink, rows).select(*identity, *[F.col(f"`{name}`") for name in names(sink, rows)])


def names(sink: Sink, rows: DataFrame) -> list[str]:
    """The sink's own columns by their names."""
    return list(sink.select) or columns_of(rows)


def selected(sink: Sink, rows: DataFrame, only: Column | None = None) -> DataFrame:
    """`rows` with what the sink selects in the place of their own columns; with `only`, null for other rows."""
    for layer in layers(sink.select):
        made = {name: F.expr(text) for name, text in layer.items()}
        rows = rows.withColumns({n: c if only is None else F.when(only, c) for n, c in made.items()})
    return rows


def columns_of(rows: DataFrame) -> list[str]:
    return [name for name in rows.columns if not name.startswith("_")]


def without_identity(rows: DataFrame) -> DataFrame:
    return rows.select(*[F.col(f"`{name}`") for name in columns_of(rows)])


# -- Delta -----------------------------------------------------------------------------------------------------------


def _write_delta_rows(sink: Sink, rows: DataFrame, batch: Batch) -> int | None:
    path = batch.declaration.resolve(sink.target)
    return write_delta(path, without_identity(rows), batch, sink.partition_by)


# -- Parquet ---------------------------------------------------------------------------------------------------------


def _write_parquet(sink: Sink, rows: DataFrame, batch: Batch) -> int | None:
    """Written beside and renamed: a reader sees the whole batch or none of it."""
    folder = batch.declaration.resolve(sink.target)
    # The writer is part of the name: another checkpoint's batch of the same number is another batch.
    name = f"{zlib.crc32(batch.writer.encode()):08x}-{batch.number}"
    final, staging = f"{folder}/batch={name}", f"{folder}/_writing-{name}"
    files = _Files(batch.spark, folder)
    if batch.replaying and files.exists(final):
        return None
    counted = Counted(without_identity(rows))
    write = counted.frame.write.mode("overwrite")
    if sink.partition_by:
        write = write.partitionBy(*sink.partition_by)
    write.parquet(staging)
    files.rename(staging, final)
    return counted.rows


class _Files:
    """Hadoop's file system: local folders, HDFS and object stores by one name."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._fs = self._path(folder).getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())

    def exists(self, path: str) -> bool:
        return bool(self._fs.exists(self._path(path)))

    def rename(self, old: str, new: str) -> None:
        if not self._fs.rename(self._path(old), self._path(new)):
            raise OSError(f"{old} could not be renamed to {new}")


# -- Kafka -----------------------------------------------------------------------------------------------------------


def _write_topic(sink: Sink, rows: DataFrame, batch: Batch) -> int | None:
    from headrace.pipeline.kafka_sink import write_exactly_once

    made = write_exactly_once(as_records(sink, rows, batch), batch.into(sink.target))
    return None if made.replayed else made.records


def as_records(sink: Sink, rows: DataFrame, batch: Batch | None = None) -> DataFrame:
    """Rows as the records of a topic: the key's column as text, the value as JSON or as the registry's Avro."""
    if sink.key and sink.key not in rows.columns:
        raise UsageError(
            f"the key of topic {sink.target} is {sink.key!r}, which is no column",
            why=f"the columns are {', '.join(columns_of(rows))}",
        )
    key = F.col(f"`{sink.key}`").cast("string").cast("binary") if sink.key else F.lit(None).cast("binary")
    value = F.struct(*[F.col(f"`{name}`") for name in columns_of(rows)])
    return rows.select(
        "_topic", "_partition", "_offset",
        F.lit(sink.target).alias("topic"), key.alias("key"),
        (_avro(sink, rows, batch) if sink.format == "avro" else F.to_json(value).cast("binary")).alias("value"),
        F.lit(None).cast("array<struct<key: string, value: binary>>").alias("headers"),
    )  # fmt: skip


def _avro(sink: Sink, rows: DataFrame, batch: Batch | None) -> Column:
    """The row in Avro behind the id of its schema, which is registered for the topic."""
    from pyspark.sql.avro.functions import to_avro

    from headrace.pipeline.decode import head_of
    from headrace.transport.schemas import Schema

    if batch is None or batch.registry is None:
        raise UsageError(f"topic {sink.target} wants Avro, but there is no schema registry", hint="--registry URL")
    data = without_identity(rows)
    jvm: Any = batch.spark._jvm
    converters = jvm.org.apache.spark.sql.avro.SchemaConverters
    namespace = "".join(c if c.isalnum() or c == "_" else "_" for c in sink.target)
    avro = converters.toAvroType(data._jdf.schema(), False, "Row", namespace).toString()
    number = batch.registry.register(f"{sink.target}-value", Schema(avro))
    return F.concat(F.lit(head_of(number)), to_avro(F.struct(*[F.col(f"`{name}`") for name in data.columns]), avro))


# -- console ---------------------------------------------------------------------------------------------------------


def _write_console(sink: Sink, rows: DataFrame, batch: Batch) -> int | None:
    shown = [row.asDict() for row in without_identity(rows).limit(_SHOWN_ROWS).collect()]
    if batch.show is not None:
        batch.show(f"batch {batch.number}", shown)
    return rows.count() if sink.where else batch.written


_WRITERS = {"delta": _write_delta_rows, "parquet": _write_parquet, "topic": _write_topic, "console": _write_console}
