"""JSON Schema and Protobuf with a registry's ids: the schema gives the types, Spark's or Google's reader the values.

JSON is read inside the JVM, typed by DDL that is derived from the schema; what a schema says beyond types is not looked
at, except which fields are required. For Protobuf there is no reader in the JVM here: bodies go to Python in Arrow
batches, are parsed by Google's library and come back as typed columns. Fields of Protobuf are known by their numbers,
so one reader takes what every version has written.

A record that cannot be read is a reason in its row, in both, never an exception.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.pipeline.declare.declaration import Declaration
from headrace.pipeline.spark.decode import Parsed, RegisteredDecoder, framed_columns, struct_of
from headrace.schemas import JsonColumns, ProtobufColumns, Schema

if TYPE_CHECKING:
    from headrace.schemas import Registry


def json_schema_decoder(spark: SparkSession, declaration: Declaration, registry: Registry) -> RegisteredDecoder:
    """The decoder of JSON that is framed with the ids of JSON Schemas."""
    return JsonSchemaDecoder(spark, declaration, registry)


def protobuf_decoder(spark: SparkSession, declaration: Declaration, registry: Registry) -> RegisteredDecoder:
    """The decoder of Protobuf that is framed with the ids of .proto files."""
    return ProtobufDecoder(spark, declaration, registry)


# -- JSON Schema -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _JsonFields:
    ddl: str
    required: tuple[str, ...]


class JsonSchemaDecoder(RegisteredDecoder):
    """Whichever version wrote it, the text is read with the fields of the reader's."""

    kind = "JSON"

    def compiled(self, schema: Schema) -> _JsonFields:
        types = JsonColumns(schema, self._registry.referred(schema) if schema.references else {})
        return _JsonFields(types.ddl(), types.required())

    def decode(self, raw: DataFrame) -> DataFrame:
        framed = framed_columns(raw)
        # The reader looks at the value; behind the frame it is the body.
        body = framed.withColumns({"_whole": F.col("_value"), "_value": F.col("_body")})
        read = self._text.decode(body)
        reason = self.unknown().when(F.col("_undecoded").isNotNull(), F.col("_undecoded"))
        for name in self._reader.required:
            found = F.col(f"_fields.`{name.replace('`', '``')}`")
            reason = reason.when(found.isNull(), f"required, and not there: {name}")
        decoded = read.withColumn("_value", F.col("_whole")).withColumn("_undecoded", reason)
        return decoded.drop("_whole", "_head", "_body")

    @cached_property
    def _text(self) -> Parsed:
        return Parsed(replace(self._declaration.decode, format="json", schema=self._reader.ddl))


# -- Protobuf --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ProtoFile:
    """A .proto with what it imports, as text: it is compiled where it is used."""

    schema: Schema
    referred: tuple[tuple[str, Schema], ...]


class ProtobufDecoder(RegisteredDecoder):
    """Rows are the first message of the reader's file; other messages of it are recognised and become dead letters."""

    kind = "PROTOBUF"

    def compiled(self, schema: Schema) -> _ProtoFile:
        referred = self._registry.referred(schema) if schema.references else {}
        file = _ProtoFile(schema, tuple(referred.items()))
        _reader_of(file)
        return file

    def decode(self, raw: DataFrame) -> DataFrame:
        from pyspark.sql.pandas.functions import arrow_udf
        from pyspark.sql.pandas.types import to_arrow_type

        made = struct_of(f"fields {_reader_of(self._reader).ddl}, reason string")
        rows_of = _rows_of(self._reader, to_arrow_type(made, timezone="UTC"))
        to_rows: Any = arrow_udf(rows_of, made)  # type: ignore[call-overload] # without its third argument
        # A body that names no known schema is not worth the way to Python.
        known = F.when(self.unknown().isNull(), F.col("_body"))
        read = framed_columns(raw).withColumn("_unknown", self.unknown()).withColumn("_made", to_rows(known))
        reason = F.coalesce(F.col("_unknown"), F.col("_made.reason"))
        decoded = read.withColumns({"_fields": F.col("_made.fields"), "_undecoded": reason})
        return decoded.drop("_head", "_body", "_unknown", "_made")


def _rows_of(file: _ProtoFile, kind: object) -> Callable[[Any], Any]:
    """The function that Spark's Python workers run on each Arrow batch of bodies."""

    def rows_of(bodies: Any) -> Any:
        import pyarrow

        reader = _reader_of(file)
        return pyarrow.array([reader.row(body) for body in bodies.to_pylist()], type=kind)

    # Spark asks for the types of the arguments, and cannot read them while they are text.
    import pyarrow

    rows_of.__annotations__ = {"bodies": pyarrow.Array, "return": pyarrow.Array}
    return rows_of


@lru_cache(maxsize=64)
def _reader_of(file: _ProtoFile) -> ProtobufColumns:
    return ProtobufColumns(file.schema, dict(file.referred))
