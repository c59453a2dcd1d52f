"""The columns of a registered schema in Spark's words (DDL), and Protobuf's bodies as rows of them.

A record of the schema is a row, its fields are the columns. Pipelines decode into these types, and SQL reads topics
with them. What has no type of Spark's is text. Nothing here needs Spark or a Kafka.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC
from decimal import Decimal
from typing import Any

from headrace.errors import CodecError, UsageError
from headrace.schemas.registry import Schema

_ANY = "string"  # Spark's JSON reader keeps whatever stands there as its text


# -- Avro --------------------------------------------------------------------------------------------------------------

_AVRO = {
    "null": "void", "boolean": "boolean", "int": "int", "long": "bigint", "float": "float", "double": "double",
    "bytes": "binary", "string": "string",
}  # fmt: skip
_LOGICAL = {
    "date": "date", "timestamp-millis": "timestamp", "timestamp-micros": "timestamp",
    "local-timestamp-millis": "timestamp_ntz", "local-timestamp-micros": "timestamp_ntz",
}  # fmt: skip


def avro_columns(schema: Schema, referred: Mapping[str, Schema]) -> str:
    """The columns of an Avro record."""
    from headrace.schemas.codec.avro import whole

    document = whole(schema, referred)
    if not isinstance(document, dict) or document.get("type") != "record":
        raise UsageError("the Avro schema is not a record", why="the fields of a row are the fields of a record")
    return _AvroTypes().columns(document, "", " ")


class _AvroTypes:
    """Named types are known by their full names from where they first stand."""

    def __init__(self) -> None:
        self._named: dict[str, str] = {}

    def columns(self, record: dict[str, Any], namespace: str, between: str = ": ") -> str:
        inside = self._name(record, namespace).rpartition(".")[0]
        return _joined([(field["name"], self.of(field["type"], inside)) for field in record["fields"]], between)

    def of(self, node: Any, namespace: str) -> str:
        if isinstance(node, list):
            kinds = [part for part in node if part != "null"]
            return self.of(kinds[0], namespace) if len(kinds) == 1 else _ANY
        if isinstance(node, str):
            full = node if "." in node or not namespace else f"{namespace}.{node}"
            return _AVRO.get(node) or self._named.get(full) or self._named.get(node, _ANY)
        if logical := self._logical(node):
            return logical
        if node["type"] == "array":
            return f"array<{self.of(node['items'], namespace)}>"
        if node["type"] == "map":
            return f"map<string, {self.of(node['values'], namespace)}>"
        if node["type"] in {"record", "error"}:
            name = self._name(node, namespace)
            self._named[name] = _ANY  # of a record in itself
            self._named[name] = f"struct<{self.columns(node, namespace)}>"
            return self._named[name]
        if node["type"] in {"enum", "fixed"}:
            made = self._named[self._name(node, namespace)] = "string" if node["type"] == "enum" else "binary"
            return made
        return self.of(node["type"], namespace)

    def _logical(self, node: dict[str, Any]) -> str | None:
        kind = node.get("logicalType")
        if kind == "decimal" and node.get("precision", 39) <= 38:
            made = f"decimal({node['precision']}, {node.get('scale', 0)})"
            if node["type"] == "fixed":
                self._named[self._name(node, "")] = made
            return made
        return "string" if kind == "uuid" else _LOGICAL.get(str(kind))

    @staticmethod
    def _name(node: dict[str, Any], namespace: str) -> str:
        space = node.get("namespace", namespace)
        return node["name"] if "." in node["name"] or not space else f"{space}.{node['name']}"


# -- JSON Schema -------------------------------------------------------------------------------------------------------


class JsonColumns:
    """A JSON Schema's. Where it allows several kinds of value, or none is named, it is text."""

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
        return _joined((name, self._type(node, home, ())) for name, (node, home) in properties.items())

    def required(self) -> tuple[str, ...]:
        """Properties of the root that must be there and are not allowed to be null."""
        properties = self._properties(self._root, self._home)
        nodes = [self._root, *(self._resolved(part, self._home)[0] for part in self._root.get("allOf", ()))]
        names = dict.fromkeys(name for node in nodes for name in node.get("required", ()))
        return tuple(n for n in names if n in properties and not self._nullable(*properties[n]))

    def _resolved(self, node: object, home: object) -> tuple[dict[str, Any], object]:
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

    def _properties(self, node: dict[str, Any], home: object) -> dict[str, tuple[object, object]]:
        found = {name: (part, home) for name, part in node.get("properties", {}).items()}
        for part in node.get("allOf", ()):
            found |= self._properties(*self._resolved(part, home))
        return found

    def _type(self, given: object, at: object, above: tuple[int, ...]) -> str:
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

    def _object(self, node: dict[str, object], home: object, above: tuple[int, ...]) -> str:
        properties = self._properties(node, home)
        if properties:
            parts = ((name, self._type(part, at, above)) for name, (part, at) in properties.items())
            return f"struct<{_joined(parts, ': ')}>"
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

    def _is_null(self, given: object, home: object) -> bool:
        return self._resolved(given, home)[0].get("type") == "null"

    def _nullable(self, given: object, at: object) -> bool:
        node, home = self._resolved(given, at)
        kinds = node.get("type")
        branches = [part for word in ("oneOf", "anyOf") for part in node.get(word, ())]
        if kinds is None and not branches:
            return None in node.get("enum", [None]) and "const" not in node
        listed = [kinds] if isinstance(kinds, str) else kinds or ()
        return "null" in listed or any(self._nullable(part, home) for part in branches)


def _kind_of(value: object) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _is_schema(given: object) -> bool:
    return isinstance(given, dict)


def _joined(parts: Iterable[tuple[str, str]], between: str = " ") -> str:
    return ", ".join(f"`{_escaped(name)}`{between}{kind}" for name, kind in parts)


def _escaped(name: str) -> str:
    return name.replace("`", "``")


# -- Protobuf ----------------------------------------------------------------------------------------------------------


class ProtobufColumns:
    """A compiled .proto's: the type of its first message, and bodies to rows of it."""

    def __init__(self, schema: Schema, referred: Mapping[str, Schema]) -> None:
        from headrace.schemas.codec.protobuf import Protobuf

        self._codec = Protobuf(schema, referred)
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
            return {
                "fields": None,
                "reason": f"the bytes do not match the Protobuf schema that they name: {message.why}",
            }
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

    return f"struct<{_joined(((name, ddl) for name, _, ddl, _ in compiled), ': ')}>", values


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


def _as_it_is(found: object) -> object:
    return found


def _as_json(found: object) -> str:
    from google.protobuf.json_format import MessageToJson

    return str(MessageToJson(found, indent=None, preserving_proto_field_name=True))
