"""Debezium's envelope: what became of a row of a database, as columns.

    before, after     the row before and after the change; a delete has the first only, perhaps without all its columns
    op                c (created), r (read for a snapshot), u (updated), d (deleted)
    ts_ms, source     when, and where in the database's log: lsn (PostgreSQL), file and pos (MySQL)

The columns of a record are those of the row, `after` or of a delete `before`; then op, ts_ms and the place. Values are
JSON of declared fields, with or without the schema beside the payload, or Avro of a registry, whatever version wrote
them. Behind each delete Debezium sends a tombstone, a record without a value by which Kafka can forget the key. It says
nothing new: it is filtered, by a rule of that name.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.pipeline.declare.declaration import DEBEZIUM_DELETES, Declaration
from headrace.pipeline.spark.decode import TOMBSTONE, AvroDecoder, Parsed

_PLACE = ("lsn", "file", "pos")
_WITHOUT_ROW = {"t": "a truncate: it does not say which rows are gone", "m": "a message of the database, not a row"}


class DebeziumJson(Parsed):
    """JSON, whose rows have the fields that are declared."""

    def __init__(self, declaration: Declaration) -> None:
        super().__init__(replace(declaration.decode, format="json", schema=declaration.decode.envelope))
        self._declaration = declaration

    def decode(self, raw: DataFrame) -> DataFrame:
        read = super().decode(raw)
        bare = F.col("_fields").dropFields("payload")
        return _opened(read.withColumn("_fields", F.coalesce("_fields.payload", bare)), self._declaration)


class DebeziumAvro(AvroDecoder):
    """Avro, whose rows have the fields of the reader's schema."""

    def decode(self, raw: DataFrame) -> DataFrame:
        return _opened(super().decode(raw), self._declaration)


def _opened(read: DataFrame, declaration: Declaration) -> DataFrame:
    """`read`, whose fields are an envelope, with those of the row instead."""
    read = read.withColumnRenamed("_fields", "_envelope")
    envelope = read.select("_envelope.*").schema
    row_type = _row_type(envelope, declaration)
    op = F.col("_envelope.op")
    row = F.when(op == "d", F.col("_envelope.before")).otherwise(F.col("_envelope.after"))
    about = {"op": op, **_about(envelope)}
    fields = [F.col(f"_row.`{name}`") for name in row_type.fieldNames()]
    fields += [column.alias(_free(name, row_type)) for name, column in about.items()]
    opened = read.withColumn("_row", row).withColumn("_undecoded", _reason(op))
    whole = F.when(F.col("_undecoded").isNull(), F.struct(*fields)).alias("_fields")
    kept = [name for name in read.columns if name not in {"_envelope", "_undecoded"}]
    return opened.select(*kept, whole, "_undecoded")


def _row_type(envelope: StructType, declaration: Declaration) -> StructType:
    """The fields of a row; it is an error if there are none, or if nobody can tell which op is meant."""
    found = _struct(envelope, "after")
    if found is None or "op" not in envelope.fieldNames():
        raise declaration.wrong(
            "the schema is not that of Debezium's envelope", "decode",
            why="it has no op, or no after with the fields of a row",
            hint='decode = { avro = "SUBJECT" } reads other records',
        )  # fmt: skip
    if "op" in found.fieldNames() and DEBEZIUM_DELETES in [
        s.changes.delete_when for s in declaration.sinks if s.changes
    ]:
        raise declaration.wrong(
            "the table has a column op of its own", "into",
            why="what Debezium says of a change is called debezium_op then",
            hint="delete_when = \"debezium_op = 'd'\"",
        )  # fmt: skip
    return found


def _reason(op: Column) -> Column:
    """Why an envelope has no row; null where it has one."""
    reason = F.when(F.col("_value").isNull(), TOMBSTONE).when(F.col("_undecoded").isNotNull(), F.col("_undecoded"))
    reason = reason.when(op.isNull(), "no op: not an event of Debezium")
    for kind, words in _WITHOUT_ROW.items():
        reason = reason.when(op == kind, words)
    reason = reason.when(
        F.col("_row").isNull() & (op == "d"), "a delete without before: nothing says which row is gone"
    )
    return reason.when(F.col("_row").isNull(), "no after: the event has no row")


def _about(envelope: StructType) -> dict[str, Column]:
    """When and where a change was made, of what the envelope has."""
    source = _struct(envelope, "source")
    found = {"ts_ms": F.col("_envelope.ts_ms")} if "ts_ms" in envelope.fieldNames() else {}
    return found | {
        name: F.col(f"_envelope.source.{name}") for name in _PLACE if source and name in source.fieldNames()
    }


def _struct(of: StructType, name: str) -> StructType | None:
    found = of[name].dataType if name in of.fieldNames() else None
    return found if isinstance(found, StructType) else None


def _free(name: str, row: StructType) -> str:
    """The row's own columns keep their names."""
    return name if name not in row.fieldNames() else f"debezium_{name}"
