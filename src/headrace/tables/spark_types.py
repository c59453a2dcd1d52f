"""Spark's types, as its schemas (JSON) and its DDL write them, in Arrow's words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headrace.errors import UsageError

_SIMPLE = {
    "string": "string", "long": "int64", "integer": "int32", "short": "int16", "byte": "int8", "float": "float32",
    "double": "float64", "boolean": "bool_", "binary": "binary", "date": "date32", "void": "null",
}  # fmt: skip


def words_of(kind: Any) -> str:
    """A type of Spark's schema as its DDL writes it."""
    if isinstance(kind, str):
        return {"integer": "int", "short": "smallint", "byte": "tinyint"}.get(kind, kind)
    if kind["type"] == "array":
        return f"array<{words_of(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{words_of(kind['keyType'])}, {words_of(kind['valueType'])}>"
    inner = ", ".join(f"{f['name']}: {words_of(f['type'])}" for f in kind["fields"])
    return f"struct<{inner}>"


def arrow_schema(schema: Mapping[str, Any]) -> Any:
    """The columns of a schema of Spark's."""
    import pyarrow as pa

    return pa.schema([pa.field(f["name"], _arrow_type(f["type"])) for f in schema["fields"]])


def _arrow_type(kind: Any) -> Any:
    import pyarrow as pa

    if isinstance(kind, str):
        if kind == "timestamp":
            return pa.timestamp("us", "UTC")
        if kind == "timestamp_ntz":
            return pa.timestamp("us")
        if number := re.fullmatch(r"decimal\((\d+),\s*(-?\d+)\)", kind):
            return pa.decimal128(int(number[1]), int(number[2]))
        if kind in _SIMPLE:
            return getattr(pa, _SIMPLE[kind])()
        raise UsageError(f"columns of type {kind} cannot be read without Spark")
    if kind["type"] == "array":
        return pa.list_(_arrow_type(kind["elementType"]))
    if kind["type"] == "map":
        return pa.map_(_arrow_type(kind["keyType"]), _arrow_type(kind["valueType"]))
    return pa.struct([pa.field(f["name"], _arrow_type(f["type"])) for f in kind["fields"]])


# -- DDL ---------------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|('(?:[^'\\]|\\.)*')|([<>(),:]))")
_OTHER_NAMES = {
    "int": "integer", "bigint": "long", "smallint": "short", "tinyint": "byte", "real": "float", "bool": "boolean",
    "varchar": "string", "char": "string", "timestamp_ltz": "timestamp",
}  # fmt: skip


def ddl_schema(text: str) -> Any:
    """The columns that DDL declares, `id bigint, tags array<string>` or `struct<…>`, as an Arrow schema."""
    reader = _Ddl(text)
    whole = reader.peek() == "struct" and reader.tokens[1:2] == ["<"]
    fields = reader.type()["fields"] if whole else reader.fields("")
    return arrow_schema({"fields": fields})


class _Ddl:
    """Reads DDL into the form in which Spark writes schemas as JSON."""

    def __init__(self, text: str) -> None:
        self.text = text
        found = list(_TOKEN.finditer(text))
        self.names = [(t[1] or "").replace("``", "`") or t[2] or "" for t in found]
        self.tokens = [t[3] or t[4] or name.lower() for t, name in zip(found, self.names, strict=True)]
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def fields(self, end: str) -> list[dict[str, Any]]:
        found = []
        while self.peek() != end:
            name = self.names[self.at] if self.at < len(self.names) else ""
            self.at += 1
            self._take(":")
            found.append({"name": name, "type": self.type()})
            while self.peek() in {"not", "null", "comment"} or self.peek().startswith("'"):
                self.at += 1
            if not self._take(","):
                break
        if not found or self.peek() != end or not all(field["name"] for field in found):
            raise self._wrong()
        return found

    def type(self) -> Any:
        word = self.peek()
        self.at += 1
        if word in {"array", "map", "struct"}:
            return self._nested(word)
        if word in {"decimal", "dec", "numeric"}:
            precision, scale = [*self._numbers(), 0][:2] if self.peek() == "(" else (10, 0)
            return f"decimal({precision},{scale})"
        if not re.fullmatch(r"\w+", word):
            raise self._wrong()
        if self.peek() == "(":
            self._numbers()
        return _OTHER_NAMES.get(word, word)

    def _nested(self, word: str) -> Any:
        self._need("<")
        if word == "struct":
            made: dict[str, Any] = {"type": "struct", "fields": self.fields(">")}
        elif word == "array":
            made = {"type": "array", "elementType": self.type()}
        else:
            key = self.type()
            self._need(",")
            made = {"type": "map", "keyType": key, "valueType": self.type()}
        self._need(">")
        return made

    def _numbers(self) -> list[int]:
        self._need("(")
        found = []
        while self.peek().isdecimal():
            found.append(int(self.peek()))
            self.at += 1
            self._take(",")
        self._need(")")
        return found

    def _take(self, sign: str) -> bool:
        taken = self.peek() == sign
        self.at += taken
        return taken

    def _need(self, sign: str) -> None:
        if not self._take(sign):
            raise self._wrong()

    def _wrong(self) -> UsageError:
        return UsageError(f"the columns {self.text[:200]!r} cannot be read", why=f"near {self.peek() or 'the end'}")
