"""A record's bytes to typed fields, inside the JVM, and the reason when that fails.

A decoder adds two columns: `_fields`, a struct, and `_undecoded`, the reason why there is none (null when there is).
Spark's own readers lose records quietly: `from_json` gives nulls, stops at the end of the first object and takes
anything for a string; `from_avro` does not know a registry's frame. So what they leave open is asked beside them.
"""

from __future__ import annotations

import json
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType, TimestampType

from headrace.errors import ConfigError, UsageError
from headrace.pipeline.declare.declaration import Declaration, Decode
from headrace.schemas import PREFIX_SIZE, VALUE_HEADER, read_schema

if TYPE_CHECKING:
    from headrace.schemas import Kind, Registry, Schema

_CORRUPT = "_corrupt"
NULL_VALUE = "the value is null"
NOT_UTF8 = "not UTF-8"
#: Why a record without a value is filtered, not dead: Kafka's way to say that a key is gone.
TOMBSTONE = "tombstone"
UNKNOWN_SCHEMA = "unknown schema id"
# Spark counts microseconds in 64 bits.
_LAST_SECOND = (2**63 - 1) // 1_000_000


class Decoder(Protocol):
    """Bytes to fields. `learn` gets what could not be decoded and returns whether it now knows more."""

    def decode(self, raw: DataFrame) -> DataFrame:
        """`raw` with `_fields` and `_undecoded`."""

    def learn(self, undecoded: DataFrame) -> bool:
        """True if a batch that was decoded so far should be decoded again."""


def decoder(spark: SparkSession, declaration: Declaration, registry: Registry | None) -> Decoder:
    """The decoder that the declaration asks for."""
    given = declaration.decode
    if given.step is not None:
        return _Step(given)
    if given.format == "text":
        return _Text()
    if given.format in {"json", "csv"}:
        return Parsed(given)
    if given.format == "debezium" and not given.is_framed:
        from headrace.pipeline.spark.debezium import DebeziumJson

        return DebeziumJson(declaration)
    if registry is None:
        raise declaration.wrong(
            f"decode {given.format} needs a schema registry", "decode",
            hint="headrace up --with registry, or --registry URL",
        )  # fmt: skip
    if given.format == "avro":
        return AvroDecoder(spark, declaration, registry)
    if given.format == "debezium":
        from headrace.pipeline.spark.debezium import DebeziumAvro

        return DebeziumAvro(spark, declaration, registry)
    from headrace.pipeline.spark.registry_decoders import json_schema_decoder, protobuf_decoder

    make = json_schema_decoder if given.format == "json-schema" else protobuf_decoder
    return make(spark, declaration, registry)


def struct_of(ddl: str) -> StructType:
    """The fields of a schema in Spark's DDL."""
    return cast("StructType", StructType.fromDDL(ddl))


class Learnt:
    """A decoder that knows all there is to know from the start."""

    def learn(self, undecoded: DataFrame) -> bool:  # noqa: ARG002 - the protocol's signature
        """Nothing about the data changes how they are decoded."""
        return False


class _Step(Learnt):
    """A Python function that makes the columns; records that it leaves out count as filtered."""

    def __init__(self, given: Decode) -> None:
        assert given.step is not None
        self._step = given.step

    def decode(self, raw: DataFrame) -> DataFrame:
        made: DataFrame = self._step(raw)
        lost = [name for name in raw.columns if name not in made.columns]
        if lost:
            raise ConfigError(
                f"the decode function dropped {', '.join(lost)}",
                why="the columns that begin with an underscore say which record a row is",
                hint="add columns with withColumn, or select('*', …)",
            )
        fields = [F.col(f"`{name}`") for name in made.columns if name not in raw.columns]
        reason = F.lit(None).cast("string")
        return made.select(*raw.columns, F.struct(*fields).alias("_fields"), reason.alias("_undecoded"))


class _Text(Learnt):
    """The value as text, in a field of that name."""

    def decode(self, raw: DataFrame) -> DataFrame:
        fields = F.struct(F.col("_value").cast("string").alias("value"))
        return raw.withColumns({"_fields": fields, "_undecoded": _no_text()})


class Parsed(Learnt):
    """JSON objects or CSV lines, typed by Spark's DDL."""

    def __init__(self, given: Decode) -> None:
        self._given = given

    def decode(self, raw: DataFrame) -> DataFrame:
        made, columns = self._columns
        return raw.withColumn("_made", made).withColumns(columns).drop("_made")

    @cached_property
    def _columns(self) -> tuple[Column, dict[str, Column]]:
        return _parsed(self._given)


def _parsed(given: Decode) -> tuple[Column, dict[str, Column]]:
    """What values hold as JSON or CSV; and the fields of that, and the reason why there are none."""
    text = F.col("_value").cast("string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT, **given.options}
    ddl = f"{given.schema}, {_CORRUPT} string"
    csv = given.format == "csv"
    made = F.from_csv(text, ddl, options) if csv else F.from_json(text, ddl, options)
    broken = F.col("_made").isNull() | F.col(f"_made.{_CORRUPT}").isNotNull()
    what = "not a CSV line of the declared fields" if csv else "not a JSON object of the declared fields"
    reason = _no_text().when(broken, what)
    if not csv:
        reason = reason.when(~(_is_flat(text) | _is_one(text)), "more than one JSON object, or text around it")
        wraps = _wraps(text, struct_of(str(given.schema)), options)
        reason = reason if wraps is None else reason.when(wraps, "a number too large for a timestamp, in seconds")
    return made, {"_fields": F.col("_made").dropFields(_CORRUPT), "_undecoded": reason}


def _is_flat(text: Column) -> Column:
    """True of an object with one closing brace, at its end, and nothing around it: most are, and it is soon seen.

    Bytes are cut off and searched: where characters are counted, this takes as long as half of the parsing.
    """
    before_end = F.substring(text.cast("binary"), F.lit(1), F.octet_length(text) - 1).cast("string")
    return text.startswith("{") & text.endswith("}") & ~before_end.contains("}")


def _is_one(text: Column) -> Column:
    """True of one object and nothing else: the parser stops behind the first, and what follows would vanish."""
    stripped = F.trim(text, F.lit(" \t\r\n"))
    several = stripped.rlike(r"\}\s*\{") & F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))).isNull()
    return stripped.startswith("{") & stripped.endswith("}") & ~several


def _wraps(text: Column, schema: StructType, options: dict[str, str]) -> Column | None:
    """Whether a number stands for a timestamp and is too large: Spark's reader multiplies it into another time.

    None of a schema without timestamps. Only text with that many digits in a row is read again, with the numbers kept.
    """
    if not _times(schema):
        return None
    kept = F.from_json(text, _with_text(schema), options)
    too_large = _any_time(kept, schema, lambda n: F.abs(n.try_cast("decimal(38, 0)")) > _LAST_SECOND)
    return text.rlike(r"\d{13}") & F.coalesce(too_large, F.lit(False))


def _times(kind: DataType) -> bool:
    """Whether the type has a timestamp anywhere; its text would not do, because a field may have that name."""
    if isinstance(kind, StructType):
        return any(_times(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _times(kind.elementType)
    return _times(kind.valueType) if isinstance(kind, MapType) else isinstance(kind, TimestampType)


def _with_text(kind: DataType) -> Any:
    """The type with text in the place of timestamps."""
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _with_text(field.dataType)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_with_text(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, _with_text(kind.valueType))
    return StringType() if isinstance(kind, TimestampType) else kind


def _any_time(value: Column, kind: DataType, test: Callable[[Column], Column]) -> Column:
    """Whether the test holds of anything in the value that stands in the place of a timestamp."""
    if isinstance(kind, StructType):
        fields = [(value.getField(field.name), field.dataType) for field in kind.fields if _times(field.dataType)]
        return reduce(operator.or_, [F.coalesce(_any_time(*field, test), F.lit(False)) for field in fields])
    if isinstance(kind, ArrayType):
        return F.exists(value, lambda element: _any_time(element, kind.elementType, test))
    if isinstance(kind, MapType):
        return F.exists(F.map_values(value), lambda element: _any_time(element, kind.valueType, test))
    return test(value)


def _no_text() -> Column:
    return F.when(F.col("_value").isNull(), NULL_VALUE).when(~F.is_valid_utf8(F.col("_value").cast("string")), NOT_UTF8)


class RegisteredDecoder(ABC):
    """What decoders have in common that go by a registry's ids: which ids they know, and whose fields they make.

    The ids of a topic are few but not known beforehand. A batch with ids that are not known yet is decoded again
    after their schemas were fetched; an id that the registry does not know is remembered as such for this run.
    """

    kind: ClassVar[Kind]

    def __init__(self, spark: SparkSession, declaration: Declaration, registry: Registry) -> None:
        self._spark = spark
        self._declaration = declaration
        self._registry = registry
        self._writers: dict[int, Any] = {}
        self._unknown_ids: set[int] = set()
        self._reader = self._reader_schema()

    @abstractmethod
    def compiled(self, schema: Schema) -> Any:
        """What is kept of a schema in order to decode with it."""

    @abstractmethod
    def decode(self, raw: DataFrame) -> DataFrame:
        """`raw` with `_fields` and `_undecoded`."""

    @property
    def known(self) -> int:
        """How many schemas it knows."""
        return len(self._writers)

    def know_all(self) -> None:
        """Every version of the subject is known: a query that was started cannot learn on the way."""
        for number in self._registry.versions(self._subject):
            version = self._registry.version(self._subject, number)
            self._writers[version.id] = self.compiled(version.schema)

    def learn(self, undecoded: DataFrame) -> bool:
        unknown = undecoded.where(F.col("_reason").startswith(UNKNOWN_SCHEMA)).select("_reason").distinct().limit(1000)
        ids = {int(row[0].removeprefix(UNKNOWN_SCHEMA)) for row in unknown.collect()}
        learnt = False
        for number in sorted(ids - self._unknown_ids - set(self._writers)):
            schema = self._registry.schema(number)
            if schema is None or schema.kind != self.kind:
                self._unknown_ids.add(number)
            else:
                self._writers[number] = self.compiled(schema)
                learnt = True
        return learnt

    def unknown(self) -> Column:
        """The reason why a frame cannot be opened: it is none, or it names a schema that is not known (yet)."""
        known = F.col("_head").isin([head_of(number) for number in self._writers])
        return frame_reason().when(~known, F.concat(F.lit(UNKNOWN_SCHEMA + " "), _id()))

    @property
    def _subject(self) -> str:
        return self._declaration.decode.schema or f"{self._declaration.topics[0]}-value"

    def _reader_schema(self) -> Any:
        """The fields that are wanted: those of the reader's file, else of the latest version."""
        given = self._declaration.decode
        try:
            if given.reader:
                return self.compiled(read_schema(Path(self._declaration.folder, given.reader), self.kind))
            latest = self._registry.version(self._subject)
        except UsageError as error:
            raise self._declaration.wrong(
                error.problem, "decode", why=error.why,
                hint=f'decode = {{ {given.format} = "SUBJECT" }}, or {{ {given.format} = "SUBJECT", reader = "FILE" }}',
            ) from None  # fmt: skip
        self._writers[latest.id] = self.compiled(latest.schema)
        return self._writers[latest.id]


class AvroDecoder(RegisteredDecoder):
    """Avro: each id has a branch of its own, from the writer's schema into the reader's, all inside the JVM."""

    kind = "AVRO"

    def compiled(self, schema: Schema) -> str:
        """The schema in one piece: what it refers to stands inside."""
        from headrace.schemas import whole

        return json.dumps(whole(schema, self._registry.referred(schema)))

    def decode(self, raw: DataFrame) -> DataFrame:
        framed = framed_columns(raw)
        # Before the first id is known there is only the type.
        branches = F.when(F.lit(False), from_avro(F.col("_body"), self._reader, {"mode": "PERMISSIVE"}))
        for number, writer in sorted(self._writers.items()):
            made = from_avro(F.col("_body"), writer, {"mode": "PERMISSIVE", "avroSchema": self._reader})
            branches = branches.when(F.col("_head") == F.lit(head_of(number)), made)
        reason = self.unknown().when(F.col("_fields").isNull(), "the bytes do not match the Avro schema that they name")
        return framed.withColumn("_fields", branches).withColumn("_undecoded", reason).drop("_head", "_body")


def head_of(number: int) -> bytearray:
    """The five bytes in front of a value that was written with that schema."""
    from headrace.schemas import prefix

    return bytearray(prefix(number))


def framed_columns(raw: DataFrame) -> DataFrame:
    """`raw` with `_head`, the five bytes that name the schema, and `_body`; newer writers put the head in a header."""
    in_header = F.expr(f"filter(_headers, h -> h.key = '{VALUE_HEADER}')[0].value")
    head = F.coalesce(F.when(F.col("_headers").isNotNull(), in_header), F.substring("_value", 1, PREFIX_SIZE))
    apart = F.col("_headers").isNotNull() & in_header.isNotNull()
    body = F.when(apart, F.col("_value")).otherwise(F.expr(f"substring(_value, {PREFIX_SIZE + 1})"))
    return raw.withColumns({"_head": head, "_body": body})


def frame_reason() -> Column:
    head = F.col("_head")
    return (
        F.when(F.col("_value").isNull(), NULL_VALUE)
        .when(F.length(head) < PREFIX_SIZE, "too short to name a schema")
        .when(F.substring(head, 1, 1) != F.lit(bytearray(1)), "the first byte is not 0: not written with a registry")
    )


def _id() -> Column:
    return F.conv(F.hex(F.substring("_head", 2, 4)), 16, 10)
