"""Rows of a batch as records of a topic: the key's column as text, the value as JSON or as the registry's Avro."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.errors import UsageError
from headrace.pipeline.books.dead_letters import HEADERS
from headrace.pipeline.declare.declaration import Declaration, Sink
from headrace.pipeline.spark import internals
from headrace.pipeline.spark.demands import passes_where
from headrace.pipeline.spark.sinks import kafka
from headrace.pipeline.spark.sinks.sinks import Batch, SinkWriter, columns_of, names, selected, without_identity

if TYPE_CHECKING:
    from headrace.kafka import Connection


class TopicWriter(SinkWriter):
    """Records of the target topic, by transactions that contain the number of the batch."""

    def check(self, sink: Sink, rows: DataFrame) -> None:
        if sink.format == "json":
            as_records(sink, rows, _json(columns_of(rows)))

    def prepare(self, connection: Connection) -> None:
        kafka.prepare(connection)

    def write(self, sink: Sink, rows: DataFrame, batch: Batch) -> int | None:
        value = _avro(sink, rows, batch) if sink.format == "avro" else _json(columns_of(rows))
        records, shuffled = as_records(sink, rows, value), bool(batch.declaration.lookups)
        return kafka.write_exactly_once(records, batch.into(sink.target), shuffled=shuffled).new_records


def as_records(sink: Sink, rows: DataFrame, value: Column) -> DataFrame:
    """The rows as records with that value."""
    if sink.key and sink.key not in rows.columns:
        raise UsageError(
            f"the key of topic {sink.target} is {sink.key!r}, but there is no such column",
            why=f"the columns are {', '.join(columns_of(rows))}",
        )
    return rows.select(
        "_topic", "_partition", "_offset",
        F.lit(sink.target).alias("topic"), _key(sink).alias("key"), value.alias("value"),
        F.lit(None).cast(HEADERS).alias("headers"),
    )  # fmt: skip


def sending(declaration: Declaration, sink: Sink, rows: DataFrame) -> DataFrame:
    """Classified rows with the columns that the sink selects, and `_good`: whether the row goes to the sink."""
    good = (F.col("_outcome") == "written") & passes_where(declaration, sink)
    return selected(sink, rows.withColumn("_good", good), F.col("_good"))


def outgoing(sink: Sink, rows: DataFrame, letters: str, letter_headers: Column, headers: Column) -> dict[str, Column]:
    """The record that such a row becomes: the sink's, with those headers, or a dead letter in the topic `letters`."""
    good, columns = F.col("_good"), names(sink, rows)
    return {
        "topic": F.when(good, sink.target).otherwise(letters),
        "key": F.when(good, _key(sink)).otherwise(F.col("_key")),
        "value": F.when(good, _json(columns)).otherwise(F.col("_value")),
        "headers": F.when(good, headers).otherwise(letter_headers),
    }


def _key(sink: Sink) -> Column:
    return F.col(f"`{sink.key}`").cast("string").cast("binary") if sink.key else F.lit(None).cast("binary")


def _json(columns: list[str]) -> Column:
    return F.to_json(_struct(columns)).cast("binary")


def _avro(sink: Sink, rows: DataFrame, batch: Batch) -> Column:
    """The row in Avro behind the id of its schema, which is registered for the topic."""
    from pyspark.sql.avro.functions import to_avro

    from headrace.pipeline.spark.decode import head_of
    from headrace.schemas import Schema

    if batch.registry is None:
        raise UsageError(f"topic {sink.target} is to get Avro, which needs a schema registry", hint="--registry URL")
    namespace = "".join(c if c.isalnum() or c == "_" else "_" for c in sink.target)
    avro = internals.avro_schema(without_identity(rows), namespace)
    number = batch.registry.register(f"{sink.target}-value", Schema(avro))
    return F.concat(F.lit(head_of(number)), to_avro(_struct(columns_of(rows)), avro))


def _struct(columns: list[str]) -> Column:
    return F.struct(*[F.col(f"`{name}`") for name in columns])
