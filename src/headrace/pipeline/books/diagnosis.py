"""Why a record could not be used, more exactly than the one word that a JVM at full speed has for it.

`diagnose` looks at one dead letter with all the time in the world: at which character the JSON breaks, which declared
field holds what instead of what, which byte is not valid UTF-8, which values broke a rule. It never
decides anything: the reason in the letter is what the pipeline acted on, and is given back where no better is found.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.pipeline.books.dead_letters import Letter
from headrace.pipeline.declare.declaration import Declaration
from headrace.text import short

if TYPE_CHECKING:
    from headrace.schemas import Registry, SchemaCodec

_NEAR = 20
_MOST_FIELDS = 6
_BITS = {"tinyint": 8, "byte": 8, "smallint": 16, "short": 16, "int": 32, "integer": 32, "bigint": 64, "long": 64}
_FRACTIONS = {"float", "real", "double", "decimal", "dec", "numeric"}
_NOT_NUMBERS = {"NaN", "Infinity", "+Infinity", "-Infinity", "INF", "+INF", "-INF"}
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|\w+|[<>(),:])")


def diagnose(letter: Letter, declaration: Declaration, registry: Registry | None = None) -> str:
    """What is wrong with the record, for a person. With a registry also what is inside of its formats."""
    if letter.outcome == "late":
        return letter.reason
    if letter.rule == "decode":
        return _undecoded(letter, declaration, registry) or letter.reason
    fields = _fields(letter, declaration, registry)
    named = re.sub(r"^the expression failed of ", "", letter.reason) if letter.rule == "select" else None
    text = letter.reason
    if named is not None:
        wanted = [name.strip() for name in named.split(",")]
        text = "; ".join(f"{name} = {declaration.select[name]} failed" for name in wanted if name in declaration.select)
    return _with_values(text or letter.reason, declaration, fields)


# -- bytes that could not be decoded ---------------------------------------------------------------------------------


def _undecoded(letter: Letter, declaration: Declaration, registry: Registry | None) -> str | None:
    value, given = letter.value, declaration.decode
    if value is None:
        return "the value is null"
    if given.is_framed:
        return _framed(letter, registry)
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        return f"byte {error.start} (0x{value[error.start]:02x}) is not valid UTF-8: {error.reason}"
    if given.format == "json":
        return _json_fault(text, given.schema or "")
    if given.format == "csv":
        return _csv_fault(text, given.schema or "", given.options)
    return None


def _json_fault(text: str, ddl: str) -> str | None:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            return f"another value begins at character {error.pos}: {_near(text, error.pos)}"
        return f"at character {error.pos}: {error.msg}, near {_near(text, error.pos)}"
    except RecursionError:
        return "it is nested too deeply to be read"
    except ValueError as error:  # a number of thousands of digits
        return str(error)
    if not isinstance(found, dict):
        return f"it is {_kind(found)}, not an object"
    return _misfit(found, parse_ddl(ddl), "")


def _near(text: str, at: int) -> str:
    return repr(text[max(at - _NEAR, 0) : at + _NEAR])


def _csv_fault(text: str, ddl: str, options: Mapping[str, str]) -> str | None:
    cells, fields = _cells(text, options), parse_ddl(ddl)
    if len(cells) != len(fields):
        return f"it has {len(cells)} cells, {len(fields)} fields are declared"
    for cell, (name, kind) in zip(cells, fields.items(), strict=True):
        if cell and (kind.name in _BITS or kind.name in _FRACTIONS):
            try:
                fault = _wrong_number(int(cell) if kind.name in _BITS else float(cell), kind)
            except ValueError:
                fault = f"{cell!r} is not a valid {kind}"
            if fault:
                return f"field {name}: {short(fault)}"
    return None


def _cells(text: str, options: Mapping[str, str]) -> list[str]:
    delimiter = options.get("sep", options.get("delimiter", ","))
    return next(csv.reader([text], delimiter=delimiter[:1] or ","), [])


def _framed(letter: Letter, registry: Registry | None) -> str | None:
    """What the codec of the registry says; without one, at least which schema it would need."""
    from headrace.errors import CodecError, HeadraceError
    from headrace.kafka.read import one_line
    from headrace.schemas import PREFIX_SIZE, VALUE_HEADER, id_in_header, id_in_prefix

    head = next((value for name, value in letter.headers if name == VALUE_HEADER and value), None)
    try:
        number = id_in_header(head)[0] if head else id_in_prefix((letter.value or b"")[:PREFIX_SIZE])
    except CodecError as error:
        return one_line(error)
    if registry is None:
        return f"{letter.reason}; it names the schema with the id {number}"
    try:
        (found,) = _codec(registry).decode_many([letter.value], [head] if head else None)
    except HeadraceError as error:
        return f"{letter.reason}; it names the schema with the id {number}, and {error.problem}"
    if isinstance(found, CodecError):
        return f"schema {number}: {one_line(found)}"
    return f"{letter.reason}; it can be read with its own schema {number}, so it does not fit the reader's"


def _codec(registry: Registry) -> SchemaCodec:
    from headrace.schemas import SchemaCodec

    return SchemaCodec(registry)


# -- values that stood behind a rule ---------------------------------------------------------------------------------


def _fields(letter: Letter, declaration: Declaration, registry: Registry | None) -> dict[str, Any]:
    """The fields of the record as far as they can be read here."""
    from headrace.errors import HeadraceError

    value, given = letter.value or b"", declaration.decode
    try:
        if given.format == "json":
            found = json.loads(value)
        elif given.format == "csv":
            found = dict(zip(parse_ddl(given.schema or ""), _cells(value.decode(), given.options), strict=False))
        elif given.format == "text":
            found = {"value": value.decode()}
        elif registry is not None:
            found = getattr(_codec(registry).decode_many([letter.value])[0], "value", {})
        else:
            found = {}
    except (ValueError, RecursionError, HeadraceError):
        return {}
    return found if isinstance(found, dict) else {}


def _with_values(text: str, declaration: Declaration, fields: Mapping[str, object]) -> str:
    """The text, and what the record holds in the fields that it is about, directly or by way of a selected column."""
    names, queue = [], [text]
    seen: set[str] = set()
    while queue:
        for word in re.findall(r"\w+", queue.pop()):
            if word in seen:
                continue
            seen.add(word)
            if word in declaration.select:
                queue.append(declaration.select[word])
            if word in fields:
                names.append(word)
    shown = ", ".join(f"{name} = {short(json.dumps(fields[name], default=str))}" for name in names[:_MOST_FIELDS])
    return f"{text}, with {shown}" if shown else text


# -- Spark's DDL, as far as values are compared with it --------------------------------------------------------------


@dataclass(frozen=True)
class Type:
    """A type of Spark's DDL: its name, what is between the brackets, and the fields of a struct."""

    name: str
    inner: tuple[Type, ...] = ()
    fields: Mapping[str, Type] | None = None

    def __str__(self) -> str:
        return self.name


def parse_ddl(text: str) -> dict[str, Type]:
    """`id long, name string` by the field; what cannot be read as that is left out."""
    tokens = [token for token in _TOKEN.findall(text) if token]
    try:
        return _struct(tokens, None)
    except IndexError:
        return {}


def _struct(tokens: list[str], end: str | None) -> dict[str, Type]:
    fields: dict[str, Type] = {}
    while tokens and tokens[0] != end:
        name = tokens.pop(0).strip("`").replace("``", "`")
        if tokens[0] == ":":
            tokens.pop(0)
        fields[name] = _type(tokens)
        while tokens and tokens[0] not in {",", end}:
            tokens.pop(0)  # NOT NULL, COMMENT '…'
        if tokens and tokens[0] == ",":
            tokens.pop(0)
    if end is not None:
        tokens.pop(0)
    return fields


def _type(tokens: list[str]) -> Type:
    name = tokens.pop(0).lower()
    if tokens and tokens[0] == "(":
        while tokens.pop(0) != ")":
            continue
        return Type(name)
    if not tokens or tokens[0] != "<":
        return Type(name)
    tokens.pop(0)
    if name == "struct":
        return Type(name, fields=_struct(tokens, ">"))
    inner = [_type(tokens)]
    while tokens[0] == ",":
        tokens.pop(0)
        inner.append(_type(tokens))
    tokens.pop(0)
    return Type(name, tuple(inner))


def _misfit(found: Mapping[str, object], fields: Mapping[str, Type], path: str) -> str | None:
    """The first field whose value is of another kind than declared. Names are compared as Spark does, by case."""
    for name, kind in fields.items():
        if found.get(name) is not None:
            fault = _fault(found[name], kind, f"{path}{name}")
            if fault:
                return fault
    return None


def _fault(value: Any, kind: Type, path: str) -> str | None:
    if value is None:
        return None
    where = f"field {path}: "
    if kind.name in _BITS or kind.name in _FRACTIONS:
        fault = _wrong_number(value, kind)
        return where + fault if fault else None
    expected = {"boolean": bool, "array": list, "map": dict, "struct": dict}.get(kind.name)
    if expected is not None and type(value) is not expected:
        return f"{where}{short(json.dumps(value))} is {_kind(value)}, not {_article(kind.name)}"
    if kind.fields is not None:
        return _misfit(value, kind.fields, f"{path}.")
    inside = value if kind.name == "array" else value.values() if kind.name == "map" else ()
    faults = (_fault(item, kind.inner[-1], f"{path}[{at}]") for at, item in enumerate(inside) if kind.inner)
    return next((fault for fault in faults if fault), None)


def _wrong_number(value: object, kind: Type) -> str | None:
    wanted = _article(kind.name)
    if isinstance(value, str) and kind.name not in _BITS and value in _NOT_NUMBERS:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"{short(json.dumps(value))} is {_kind(value)}, not {wanted}"
    bits = _BITS.get(kind.name)
    if bits is None:
        return None
    if isinstance(value, float):
        return f"{value!r} is not a whole number, but the field is {wanted}"
    return None if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) else f"{value} is out of the range of {wanted}"


def _kind(value: object) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    return names.get(type(value), "null")


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
