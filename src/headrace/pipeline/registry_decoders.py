"""JSON Schema and Protobuf with a registry's ids: the schema gives the types, Spark's or Google's reader the values.

JSON is read inside the JVM, typed by DDL that is derived from the schema; what a schema says beyond types is not looked
at, except which fields are required. For Protobuf there is no reader in the JVM here: bodies go to Python in Arrow
batches, are parsed by Google's library and come back as typed columns. Fields of Protobuf are known by their numbers,
so one reader takes what every version has written.

A record that cannot be read is a reason in its row, in both, never an exception.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.errors import CodecError, UsageError
from headrace.pipeline.declaration import Declaration
from headrace.pipeline.decode import Parsed, RegisteredDecoder, framed_columns
from headrace.transport.schemas import Schema

if TYPE_CHECKING:
    from headrace.transport.schemas import Registry

_ANY = "string"  # Spark's JSON reader keeps whatever stands there as its text


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
        types = _JsonTypes(schema, self._registry.referred(schema) if schema.references else {})
        return _JsonFields(types.ddl(), types.required())

    def decode(self, raw: DataFrame) -> DataFrame:
        framed = framed_columns(raw)
        # The reader looks at the value; behind the frame it is the body.
        body = framed.withColumns({"_whole": F.col("_value"), "_value": F.col("_body")})
        read = self._text.decode(body)
        reason = self.unknown().when(F.col("_undecoded").isNotNull(), F.col("_undecoded"))
        for name in self._reader.required:
            reason = reason.when(F.col(f"_fields.`{_escaped(name)}`").isNull(), f"required, and not there: {name}")
        told = read.withColumn("_value", F.col("_whole")).withColumn("_undecoded", reason)
        return told.drop("_whole", "_head", "_body")

    @cached_property
    def _text(self) -> Parsed:
        return Parsed(replace(self._declaration.decode, format="json", schema=self._reader.ddl))


class _JsonTypes:
    """Spark's types for a JSON Schema. Where it allows several kinds of value, or none is named, it is text."""

    def __init__(self, schema: Schema, referred: Mapping[str, Schema]) -> None:
        self._document = json.loads(schema.text)
        self._referred = {name: json.loads(found.text) for name, found in referred.items()}
        self._root, self._home = self._resolved(self._document, self._document)

    def ddl(self) -> str:
        properties = self._properties(self._root, self._home)
        if not properties:
            raise UsageError(
                "the JSON Schema names no properties",
                why="the fields of a row are the properties of an object",
                hint="give a reader schema that has them",
            )
        return _columns((name, self._type(node, home, ())) for name, (node, home) in properties.items())

    def required(self) -> tuple[str, ...]:
        """Properties of the root that must be there and are not allowed to be null."""
        properties = self._properties(self._root, self._home)
        nodes = [self._root, *(self._resolved(part, self._home)[0] for part in self._root.get("allOf", ()))]
        names = dict.fromkeys(name for node in nodes for name in node.get("required", ()))
        return tuple(n for n in names if n in properties and not self._nullable(*properties[n]))

    def _resolved(self, node: Any, home: Any) -> tuple[dict[str, Any], Any]:
        """The schema behind a reference, and the document in which its own references are to be looked up."""
        for _ in range(100):
            target = node.get("$ref") if isinstance(node, dict) else None
            if target is None:
                return node if isinstance(node, dict) else {}, home
            document, _, path = str(target).partition("#")
            home = self._referred.get(document, {}) if document else home
            node = home
            for step in filter(None, path.split("/")):
                step = step.replace("~1", "/").replace("~0", "~")
                node = node.get(step, {}) if isinstance(node, dict) else {}
        return {}, home

    def _properties(self, node: dict[str, Any], home: Any) -> dict[str, tuple[Any, Any]]:
        found = {name: (part, home) for name, part in node.get("properties", {}).items()}
        for part in node.get("allOf", ()):
            found |= self._properties(*self._resolved(part, home))
        return found

    def _type(self, given: Any, at: Any, above: tuple[int, ...]) -> str:
        node, home = self._resolved(given, at)
        if id(node) in above:
            return _ANY
        inside = (*above, id(node))
        kinds = self._kinds(node)
        if len(kinds) > 1:
            return _ANY
        branches = [part for word in ("oneOf", "anyOf") for part in node.get(word, ()) if not self._is_null(part, home)]
        if branches and not kinds:
            return self._type(branches[0], home, inside) if len(branches) == 1 else _ANY
        plain = {"boolean": "boolean", "integer": "bigint", "number": "double"}
        (kind,) = kinds or ("object" if "properties" in node or "allOf" in node else "",)
        if kind == "array":
            return f"array<{self._type(node['items'], home, inside) if _is_schema(node.get('items')) else _ANY}>"
        return self._object(node, home, inside) if kind == "object" else plain.get(kind, _ANY)

    def _object(self, node: dict[str, Any], home: Any, above: tuple[int, ...]) -> str:
        properties = self._properties(node, home)
        if properties:
            parts = ((name, self._type(part, at, above)) for name, (part, at) in properties.items())
            return f"struct<{_columns(parts, ': ')}>"
        more = node.get("additionalProperties")
        return f"map<string, {self._type(more, home, above)}>" if _is_schema(more) else _ANY

    @staticmethod
    def _kinds(node: dict[str, Any]) -> list[str]:
        given = node.get("type", [])
        kinds = [given] if isinstance(given, str) else list(given)
        if not kinds and ("enum" in node or "const" in node):
            kinds = sorted({_kind_of(value) for value in node.get("enum", [node.get("const")])})
        kinds = [kind for kind in kinds if kind != "null"]
        return ["number"] if set(kinds) == {"integer", "number"} else kinds

    def _is_null(self, given: Any, home: Any) -> bool:
        return self._resolved(given, home)[0].get("type") == "null"

    def _nullable(self, given: Any, at: Any) -> bool:
        node, home = self._resolved(given, at)
        kinds = node.get("type")
        branches = [part for word in ("oneOf", "anyOf") for part in node.get(word, ())]
        if kinds is None and not branches:
            return None in node.get("enum", [None]) and "const" not in node
        listed = [kinds] if isinstance(kinds, str) else kinds or ()
        return "null" in listed or any(self._nullable(part, home) for part in branches)


def _kind_of(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _is_schema(given: Any) -> bool:
    return isinstance(given, dict)


def _columns(parts: Iterable[tuple[str, str]], between: str = " ") -> str:
    return ", ".join(f"`{_escaped(name)}`{between}{kind}" for name, kind in parts)


def _escaped(name: str) -> str:
    return name.replace("`", "``")


# -- Protobuf --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ProtoFile:
    """A .proto with what it imports, as text: it is compiled where it is used."""

    schema: Schema
    referred: tuple[tuple[str, Schema], ...]


class ProtobufDecoder(RegisteredDecoder):
    """Rows are the first message of the reader's file; other messages of it are told apart and set aside."""

    kind = "PROTOBUF"

    def compiled(self, schema: Schema) -> _ProtoFile:
        referred = self._registry.referred(schema) if schema.references else {}
        file = _ProtoFile(schema, tuple(referred.items()))
        _reader_of(file)
        return file

    def decode(self, raw: DataFrame) -> DataFrame:
        from pyspark.sql.pandas.functions import arrow_udf
        from pyspark.sql.pandas.types import to_arrow_type
        from pyspark.sql.types import StructType

        made = StructType.fromDDL(f"fields {_reader_of(self._reader).ddl}, reason string")
        to_rows: Any = arrow_udf(_rows_of(self._reader, to_arrow_type(made, timezone="UTC")), made)
        # A body that names no known schema is not worth the way to Python.
        known = F.when(self.unknown().isNull(), F.col("_body"))
        read = framed_columns(raw).withColumn("_unknown", self.unknown()).withColumn("_made", to_rows(known))
        reason = F.coalesce(F.col("_unknown"), F.col("_made.reason"))
        told = read.withColumns({"_fields": F.col("_made.fields"), "_undecoded": reason})
        return told.drop("_head", "_body", "_unknown", "_made")


def _rows_of(file: _ProtoFile, kind: Any) -> Callable[[Any], Any]:
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
def _reader_of(file: _ProtoFile) -> _ProtoReader:
    return _ProtoReader(file)


class _ProtoReader:
    """A compiled .proto: its type in Spark's words, and bodies to rows of it."""

    def __init__(self, file: _ProtoFile) -> None:
        from headrace.transport.codec.protobuf import Protobuf

        self._codec = Protobuf(file.schema, dict(file.referred))
        self._message = self._codec.first_message
        if not self._message.fields:
            raise UsageError(
                f"message {self._message.name} has no fields", hint="the first message of the file is read"
            )
        self.ddl, self._values = _struct(self._message, ())

    def row(self, body: bytes | None) -> dict[str, Any] | None:
        """The fields, or the reason why there are none; nothing of no body."""
        if body is None:
            return None
        message = self._codec.parse(body)
        if isinstance(message, CodecError):
            return {"fields": None, "reason": f"no Protobuf of the schema that it names: {message.why}"}
        if message.DESCRIPTOR.full_name != self._message.full_name:
            name, wanted = message.DESCRIPTOR.name, self._message.name
            return {"fields": None, "reason": f"a message {name}, not {wanted}"}
        try:
            return {"fields": self._values(message), "reason": None}
        except (ValueError, OverflowError, TypeError) as error:
            return {"fields": None, "reason": f"a value has no place in a row: {error}"}


#: A value as Protobuf has it to a value as Arrow takes it.
_Convert = Callable[[Any], Any]
_Compiled = tuple[str, _Convert]

_SCALARS = {
    "DOUBLE": "double", "FLOAT": "float", "BOOL": "boolean", "STRING": "string", "BYTES": "binary",
    "INT32": "int", "SINT32": "int", "SFIXED32": "int", "UINT32": "bigint", "FIXED32": "bigint",
    "INT64": "bigint", "SINT64": "bigint", "SFIXED64": "bigint",
    "UINT64": "decimal(20, 0)", "FIXED64": "decimal(20, 0)",
}  # fmt: skip
_GOOGLE = "google.protobuf."
_WRAPPERS = {
    f"{_GOOGLE}{name}Value"
    for name in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
}


def _struct(message: Any, above: tuple[str, ...]) -> _Compiled:
    """The message as a struct. A field that can be absent, and is, is null."""
    inside = (*above, message.full_name)
    compiled = [(field.name, field.has_presence, *_field(field, inside)) for field in message.fields]
    fields = [(name, presence, convert) for name, presence, _, convert in compiled]

    def values(found: Any) -> dict[str, Any]:
        return {
            name: None if presence and not found.HasField(name) else convert(getattr(found, name))
            for name, presence, convert in fields
        }

    return f"struct<{_columns(((name, ddl) for name, _, ddl, _ in compiled), ': ')}>", values


def _field(field: Any, above: tuple[str, ...]) -> _Compiled:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        (key, _), (value, convert) = (_field(entry[part], above) for part in ("key", "value"))
        return f"map<{key}, {value}>", lambda found: [(name, convert(item)) for name, item in found.items()]
    ddl, one = _single(field, above)
    if field.is_repeated:
        return f"array<{ddl}>", lambda found: [one(item) for item in found]
    return ddl, one


def _single(field: Any, above: tuple[str, ...]) -> _Compiled:
    if field.message_type is not None:
        return _message(field.message_type, above)
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return "string", lambda found: names.get(found) or str(found)
    kind = next(ddl for name, ddl in _SCALARS.items() if getattr(field, f"TYPE_{name}") == field.type)
    return kind, Decimal if kind.startswith("decimal") else _as_it_is


def _message(kind: Any, above: tuple[str, ...]) -> _Compiled:
    """What has no struct of Spark's is JSON text: Google's own types, messages in themselves, those without fields."""
    if kind.full_name == f"{_GOOGLE}Timestamp":
        return "timestamp", lambda found: found.ToDatetime(tzinfo=UTC)
    if kind.full_name in _WRAPPERS:
        ddl, convert = _field(kind.fields_by_name["value"], above)
        return ddl, lambda found: convert(found.value)
    if kind.full_name.startswith(_GOOGLE) or kind.full_name in above or not kind.fields:
        return _ANY, _as_json
    return _struct(kind, above)


def _as_it_is(found: Any) -> Any:
    return found


def _as_json(found: Any) -> str:
    from google.protobuf.json_format import MessageToJson

    return str(MessageToJson(found, indent=None, preserving_proto_field_name=True))
