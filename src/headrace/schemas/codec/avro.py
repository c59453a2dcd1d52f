"""Avro bodies, by fastavro, with the checks that fastavro does not make.

fastavro writes 2**40 into an `int` and drops fields that the schema does not have; readers then fail, or data is lost
without a word. So values are first checked by msgspec against a type made from the schema, at a tenth of the price of
writing them. Both are done for many values at once; where one of them does not fit, each is taken by itself, so that
the error names the field.
"""

from __future__ import annotations

import copy
import datetime
import decimal
import io
import json
import os
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NotRequired, TypedDict, Union

import fastavro
import msgspec

from headrace.errors import CodecError, UsageError
from headrace.schemas.evolution import PRIMITIVES, Names, full_name, type_text
from headrace.schemas.registry import Schema
from headrace.text import field_number, integral, short

_AT_ONCE = 512
_PATH = re.compile(r" - at `\$(.*)`$")
_MISSING = re.compile(r"missing required field `(.+?)`")
_RANGES = {"int": 31, "long": 63}
_NUMERIC = {"int", "long", "float", "double"}
_LOGICAL: Mapping[str, Any] = {
    "timestamp-millis": datetime.datetime | int,
    "timestamp-micros": datetime.datetime | int,
    "local-timestamp-millis": datetime.datetime | int,
    "local-timestamp-micros": datetime.datetime | int,
    "date": datetime.date | int,
    "time-millis": datetime.time | int,
    "time-micros": datetime.time | int,
    "decimal": decimal.Decimal,
    "uuid": uuid.UUID,
}
_PLAIN: Mapping[str, Any] = {
    "null": None, "boolean": bool, "float": float, "double": float, "string": str, "bytes": bytes,
    **{name: Annotated[int, msgspec.Meta(ge=-(2**bits), le=2**bits - 1)] for name, bits in _RANGES.items()},
}  # fmt: skip

_AS_THEY_ARE = (bytes, datetime.datetime, datetime.date, datetime.time, decimal.Decimal, uuid.UUID)


class Avro:
    """One Avro schema, compiled; a reader's schema if records shall be read as that one says."""

    def __init__(self, schema: Schema, referred: Mapping[str, Schema], reader: Avro | None = None) -> None:
        self.document = whole(schema, referred)
        try:
            self._parsed: Any = fastavro.parse_schema(copy.deepcopy(self.document))
        except Exception as error:  # fastavro raises several kinds, without a common one
            raise UsageError("the schema cannot be parsed as Avro", why=str(error)) from None
        self._reader = reader._parsed if reader else None
        self._names = Names(self.document)
        fields = self.document["fields"] if _is_record(self.document) else ()
        self._numeric = {field["name"] for field in fields if _is_numeric(field["type"], self._names)}
        self._longs = {field["name"] for field in fields if _is_numeric(field["type"], self._names, "long")}
        self._types = _Types(self._names)
        self._type = self._types.of(self.document)
        self._list_type = list[self._type]  # type: ignore[name-defined]
        self._marked = _Marked(self.document) if _is_record(self.document) else None

    @property
    def field_names(self) -> tuple[str, ...] | None:
        """The fields of a record; None if the schema is something else."""
        return tuple(field["name"] for field in self.document["fields"]) if _is_record(self.document) else None

    def encode(self, values: Sequence[object], head: bytes, *, text: bool = False) -> list[bytes | CodecError]:
        """The values as bytes behind `head`. With `text`, numbers may stand as text, as in a CSV file."""
        out: list[bytes | CodecError] = []
        for at in range(0, len(values), _AT_ONCE):
            chunk = values[at : at + _AT_ONCE]
            try:
                out += self._encode_many(chunk, head, text)
            except Exception:  # whatever it was: value by value it is found, and named
                out += [self._encode_one(value, head, text) for value in chunk]
        return out

    def _encode_many(self, values: Sequence[object], head: bytes, text: bool) -> list[bytes]:
        if self._marked is None:
            raise CodecError("only records can be written at once")
        rows: Any = [self._untexted(value) for value in values] if text else values
        try:
            fitting = msgspec.convert(rows, self._list_type, strict=not text)
        except msgspec.ValidationError:
            rows = [self._renumbered(value, text) for value in rows]
            fitting = msgspec.convert(rows, self._list_type, strict=not text)
        if text or self._types.converting:
            if any(_lost(value, kept) for value, kept in zip(rows, fitting, strict=True)):
                raise CodecError("a field is not in the schema")
            rows = fitting
        return self._marked.write(rows, head)

    def _encode_one(self, value: object, head: bytes, text: bool) -> bytes | CodecError:
        value = self._untexted(value) if text else value
        try:
            value = msgspec.to_builtins(value, builtin_types=_AS_THEY_ARE, enc_hook=_plain)
            fitting = msgspec.convert(self._renumbered(value, text), self._type, strict=not text)
            if lost := _lost(value, fitting):
                return CodecError(f"field {lost} is not in the schema", hint=f"the schema has {self._fields_text()}")
            out = io.BytesIO()
            out.write(head)
            fastavro.schemaless_writer(out, self._parsed, fitting)
        except msgspec.ValidationError as error:
            return CodecError(self._misfit(str(error), value))
        except Exception as error:  # what fastavro raises depends on the type that does not fit
            return CodecError(f"it does not fit the schema: {error}")
        return out.getvalue()

    def decode(self, bodies: Sequence[bytes]) -> list[Any]:
        """The values in the bytes, a `CodecError` for those that cannot be read."""
        out: list[Any] = []
        read, writer, reader = fastavro.schemaless_reader, self._parsed, self._reader
        for body in bodies:
            stream = io.BytesIO(body)
            value: Any
            try:
                value = read(stream, writer, reader)
            except fastavro.read.SchemaResolutionError as error:
                value = CodecError("it cannot be read with the reader's schema", why=str(error) or None)
            except Exception as error:  # damaged bytes can break the reading anywhere
                why = "they end too early" if isinstance(error, EOFError) else f"{type(error).__name__}: {error}"
                value = CodecError("its bytes do not fit its schema", why=why)
            else:
                if stream.read(1):
                    value = CodecError("its bytes do not fit its schema", why="some are left over")
            out.append(value)
        return out

    def _untexted(self, value: object) -> Any:
        """An empty cell is null where the schema allows null and a text would not do.

        msgspec reads a whole number that is not written as digits alone by way of a float: not for a long.
        """
        if not isinstance(value, dict):
            return value
        if written := {n: c for n in self._longs if isinstance(c := value.get(n), str) and c and not c.isdecimal()}:
            value = {**value, **{name: _number(cell) for name, cell in written.items()}}
        if "" not in value.values():
            return value
        types = {field["name"]: field["type"] for field in self.document.get("fields", ())}
        return {name: None if cell == "" and _nullable(types.get(name)) else cell for name, cell in value.items()}

    def _renumbered(self, value: object, text: bool) -> object:
        """Numbers that msgspec does not take as they are written: 12.0 for a whole one, and `.73` in a cell."""
        if not text:
            return integral(value)
        if isinstance(value, dict):
            return {name: _number(cell) if name in self._numeric else cell for name, cell in value.items()}
        return _number(value) if _is_numeric(self.document, self._names) else value

    def _fields_text(self) -> str:
        return ", ".join(self.field_names or ())

    def _misfit(self, message: str, value: object) -> str:
        """msgspec's complaint in our words: the field, the value there, and the type that was expected."""
        found = _PATH.search(message)
        path = (found[1] if found else "").removeprefix(".")
        if missing := _MISSING.search(message):
            return f"field {f'{path}.' if path else ''}{missing[1]} is missing, and has no default"
        steps = re.findall(r"\w+|\[\d+\]|\[\.\.\.\]", path)
        given: Any = value
        for step in steps:
            given = _step(given, step)
        wanted = type_text(_type_at(self.document, steps, self._names))
        where = f"field {path}: " if path else ""
        article = "an" if wanted[0] in "aeiou" else "a"
        if isinstance(given, int) and wanted in _RANGES and not isinstance(given, bool):
            return f"{where}{given} is out of the range of {article} {wanted}"
        return f"{where}{_short(given)} is not {article} {wanted}"


class _Marked:
    """Many records of one schema, written by one call and cut apart.

    A last field with a random text as its default is added to each; where that text stands, a record ends. Should it
    ever occur in the data, there are more pieces than records, and the caller writes them one by one.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        mark = f"mark_{os.urandom(8).hex()}"
        fields = [*document["fields"], {"name": mark, "type": "string", "default": mark}]
        self._parsed = fastavro.parse_schema(copy.deepcopy({"type": "array", "items": {**document, "fields": fields}}))
        self._end = _varint(len(mark)) + mark.encode()

    def write(self, values: Sequence[object], head: bytes) -> list[bytes]:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, self._parsed, values, strict_allow_default=True)
        pieces = out.getvalue()[len(_varint(len(values))) :].split(self._end)
        if len(pieces) != len(values) + 1:
            raise CodecError("the mark occurs in the data")
        return [head + piece for piece in pieces[:-1]]


class _Types:
    """The type that msgspec shall check for, made from the schema; `Any` where msgspec has no such type."""

    def __init__(self, names: Names) -> None:
        self._names = names
        self._under_way: set[int] = set()
        #: True if a checked value may differ from the given one: text that became a time, a decimal, bytes.
        self.converting = False

    def of(self, node: Any) -> Any:
        node = self._names.resolved(node)
        if isinstance(node, list):
            return self._union(node)
        if isinstance(node, str):
            self.converting |= node == "bytes"
            return _PLAIN.get(node, Any)
        return self._complex(node)

    def _complex(self, node: dict[str, Any]) -> object:
        kind = node["type"]
        if node.get("logicalType") in _LOGICAL:
            self.converting = True
            return _LOGICAL[node["logicalType"]]
        if kind == "array":
            return list[self.of(node["items"])]  # type: ignore[misc]
        if kind == "map":
            return dict[str, self.of(node["values"])]  # type: ignore[misc]
        if kind == "enum":
            return Literal[tuple(node["symbols"])]
        if kind == "fixed":
            self.converting = True
            return Annotated[bytes, msgspec.Meta(min_length=node["size"], max_length=node["size"])]
        if kind in {"record", "error"}:
            return self._record(node)
        return self.of(kind)

    def _record(self, node: dict[str, Any]) -> object:
        if id(node) in self._under_way:
            return Any
        self._under_way.add(id(node))
        fields = {field["name"]: self._field(field) for field in node["fields"]}
        self._under_way.discard(id(node))
        return TypedDict(node["name"].rpartition(".")[2], fields)  # type: ignore[operator]

    def _field(self, field: dict[str, object]) -> object:
        of = self.of(field["type"])
        return NotRequired[of] if "default" in field else of

    def _union(self, branches: list[object]) -> object:
        union: Any = Union.__getitem__(tuple(self.of(branch) for branch in branches))
        try:
            msgspec.json.Decoder(union)
        except TypeError:  # two records, two kinds of text: fastavro finds out which one is meant
            return Any
        return union


def _is_record(node: Any) -> bool:
    return isinstance(node, dict) and node.get("type") in {"record", "error"}


def whole(schema: Schema, referred: Mapping[str, Schema]) -> Any:
    """The schema with what it refers to put in, where its name is used first."""
    document = json.loads(schema.text)
    missing = {name: json.loads(found.text) for name, found in referred.items()}
    return _put_in(document, missing, "") if missing else document


def _put_in(node: object, missing: dict[str, object], namespace: str) -> object:
    if isinstance(node, str) and node not in PRIMITIVES:
        found = next((name for name in (node, full_name(node, namespace)) if name in missing), None)
        return _put_in(missing.pop(found), missing, "") if found else node
    if isinstance(node, list):
        return [_put_in(branch, missing, namespace) for branch in node]
    if not isinstance(node, dict):
        return node
    if "name" in node:
        namespace = full_name(node["name"], node.get("namespace", namespace)).rpartition(".")[0]
    changed = dict(node)
    for part in ("type", "items", "values"):
        if part in node and not (part == "type" and node[part] in {"record", "error", "enum", "fixed", "array", "map"}):
            changed[part] = _put_in(node[part], missing, namespace)
    if _is_record(node):
        changed["fields"] = [{**field, "type": _put_in(field["type"], missing, namespace)} for field in node["fields"]]
    return changed


def _plain(value: object) -> Any:
    """NumPy's scalars and arrays as the numbers and lists that they hold."""
    if not hasattr(value, "tolist"):
        raise NotImplementedError(f"a {type(value).__name__} has no place in Avro")
    return value.tolist()


def _varint(number: int) -> bytes:
    """A number of at least zero as Avro writes a long."""
    number <<= 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _is_numeric(node: object, names: Names, kind: str | None = None) -> bool:
    """True if the type takes numbers (of that kind, among others), and no text that could look like one."""
    node = names.resolved(node)
    if isinstance(node, list):
        some = kind is None or any(_is_numeric(branch, names, kind) for branch in node)
        return some and all(branch == "null" or _is_numeric(branch, names) for branch in node)
    if kind is not None:
        return node in (kind, {"type": kind})  # neither a time nor a date
    return (node.get("type") if isinstance(node, dict) else node) in _NUMERIC


def _number(cell: object) -> Any:
    number = field_number(cell) if isinstance(cell, str) else None
    return cell if number is None else number


def _nullable(node: object) -> bool:
    return isinstance(node, list) and "null" in node and "string" not in node


def _lost(given: object, kept: object, path: str = "") -> str | None:
    """The first field that was given and that the schema does not have."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for name, value in given.items():
            here = f"{path}.{name}" if path else str(name)
            if name not in kept:
                return here
            if isinstance(value, (dict, list)) and (lost := _lost(value, kept[name], here)):
                return lost
    elif isinstance(given, list) and isinstance(kept, list):
        for at, (value, other) in enumerate(zip(given, kept, strict=False)):
            if lost := _lost(value, other, f"{path}[{at}]"):
                return lost
    return None


def _step(value: Any, step: str) -> Any:
    try:
        return value[int(step[1:-1])] if step.startswith("[") else value[step]
    except (KeyError, IndexError, TypeError, ValueError):
        return value


def _type_at(node: Any, steps: Sequence[str], names: Names) -> Any:
    node = names.resolved(node)
    if not steps:
        return node
    for branch in node if isinstance(node, list) else [node]:
        here = names.resolved(branch)
        kind = here.get("type") if isinstance(here, dict) else None
        if kind in {"array", "map"}:
            return _type_at(here["items" if kind == "array" else "values"], steps[1:], names)
        for field in here["fields"] if _is_record(here) else ():
            if field["name"] == steps[0]:
                return _type_at(field["type"], steps[1:], names)
    return node


def _short(value: object) -> str:
    return "null" if value is None else short(repr(value))
