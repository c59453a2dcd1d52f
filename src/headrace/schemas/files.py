"""A schema from a file, checked before it is sent anywhere: an error names the position.

Text that cannot be parsed as JSON is refused with line and column; JSON that is not a schema with the path of the wrong
part and, for a misspelt type, the nearest one that exists. Registries report much less: Apicurio only that it could not
discover what it was given.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from headrace.errors import UsageError
from headrace.schemas.evolution import PRIMITIVES, full_name
from headrace.schemas.registry import Kind, Reference, Schema

_BY_SUFFIX: dict[str, Kind] = {".avsc": "AVRO", ".proto": "PROTOBUF"}
_COMPLEX = ("record", "enum", "array", "map", "fixed", "error")
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_NEEDS = {"record": "fields", "error": "fields", "enum": "symbols", "fixed": "size", "array": "items", "map": "values"}
_FITS: dict[str, type | tuple[type, ...]] = {
    "int": int, "long": int, "float": (int, float), "double": (int, float), "string": str, "bytes": str,
    "boolean": bool, "null": type(None),
}  # fmt: skip


def read_schema(path: Path, kind: Kind | None = None, references: tuple[Reference, ...] = ()) -> Schema:
    """The schema in a file. Its kind is what the suffix says, else what its content looks like."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the schema file {path} cannot be read", why=error.strerror) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"the schema file {path} is not UTF-8", why=f"byte {error.start}") from None
    schema = Schema(text, kind or _BY_SUFFIX.get(path.suffix) or _guess(text), references)
    check_schema(schema, str(path))
    return schema


def _guess(text: str) -> Kind:
    try:
        document = json.loads(text)
    except ValueError:
        return "PROTOBUF" if re.search(r"^\s*(syntax|message|package)\b", text, re.MULTILINE) else "AVRO"
    if isinstance(document, dict) and document.get("type") not in {*_COMPLEX, *(PRIMITIVES - {"string", "null"})}:
        return "JSON"
    # "string" and "null" are types of both; a JSON Schema says something more about itself.
    return "JSON" if isinstance(document, dict) and {"$schema", "properties", "$ref"} & document.keys() else "AVRO"


def check_schema(schema: Schema, where: str = "the schema") -> None:
    """The text is a schema of its kind, as far as can be checked here; else the error names the position."""
    if schema.kind == "PROTOBUF":
        _check_protobuf(schema.text, where)
        return
    try:
        document = json.loads(schema.text)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{where} is not a valid schema: line {error.lineno}, column {error.colno}", why=error.msg
        ) from None
    if schema.kind == "JSON":
        _check_json_schema(document, where)
        return
    known = {reference.name for reference in schema.references}
    for path, words in _avro_faults(document, "", "", known):
        raise UsageError(f"{where} is not a valid Avro schema: at {path or '/'}", why=words)


def _check_protobuf(text: str, where: str) -> None:
    from headrace.schemas.codec.proto_text import parse_proto

    try:
        parse_proto(text, where)
    except UsageError as error:
        raise UsageError(f"{where} is {error.problem}", why=error.why) from None


def _check_json_schema(document: object, where: str) -> None:
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for

    try:
        validator_for(document).check_schema(document)
    except SchemaError as error:
        path = "/" + "/".join(map(str, error.absolute_path))
        raise UsageError(f"{where} is not a valid JSON Schema: at {path}", why=error.message[:300]) from None
    if (
        isinstance(document, dict)
        and set(document) <= {"$ref", "$schema", "definitions", "$defs"}
        and "$ref" in document
    ):
        raise UsageError(
            f"{where} is refused by registries: its root is only a $ref",
            hint='put the type at the root: "type": "object", "properties": …',
        )


Faults = Iterator[tuple[str, str]]


def _avro_faults(node: object, path: str, namespace: str, known: set[str]) -> Faults:
    """Path and words of what is wrong, in the order of the text; `known` grows by the names that are defined."""
    if isinstance(node, str):
        if node not in PRIMITIVES and not {node, full_name(node, namespace)} & known:
            yield path, _unknown_type(node, known)
    elif isinstance(node, list):
        for at, branch in enumerate(node):
            if isinstance(branch, list):
                yield f"{path}/{at}", "a union cannot stand directly inside a union"
            else:
                yield from _avro_faults(branch, f"{path}/{at}", namespace, known)
    elif not isinstance(node, dict):
        yield path, f"{json.dumps(node)} is not an Avro type"
    elif "type" not in node:
        yield path, f"no type is given; there are only {', '.join(node) or 'no properties'}"
    elif node["type"] in _COMPLEX:
        yield from _complex_faults(node, path, namespace, known)
    else:
        yield from _avro_faults(node["type"], f"{path}/type", namespace, known)


def _complex_faults(node: dict[str, Any], path: str, namespace: str, known: set[str]) -> Faults:
    kind, needs = node["type"], _NEEDS[node["type"]]
    if needs not in node:
        yield path, f"type {kind} needs {needs}"
        return
    if kind in {"array", "map"}:
        yield from _avro_faults(node[needs], f"{path}/{needs}", namespace, known)
        return
    name = node.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield f"{path}/name", f"type {kind} needs a name of letters, digits and _" + (f", not {name!r}" if name else "")
        return
    full = full_name(name, node.get("namespace", namespace))
    if full in known:
        yield f"{path}/name", f"{full} is defined twice"
    known.add(full)
    if kind in {"record", "error"}:
        yield from _field_faults(node["fields"], f"{path}/fields", full.rpartition(".")[0], known)
    elif kind == "enum" and (not node["symbols"] or len(set(node["symbols"])) != len(node["symbols"])):
        yield f"{path}/symbols", "an enum needs symbols, each of them once"
    elif kind == "fixed" and (not isinstance(node["size"], int) or node["size"] < 0):
        yield f"{path}/size", f"{node['size']!r} is not a valid size"


def _field_faults(fields: object, path: str, namespace: str, known: set[str]) -> Faults:
    if not isinstance(fields, list):
        yield path, "fields have to be a list"
        return
    seen: set[str] = set()
    for at, field in enumerate(fields):
        here = f"{path}/{at}"
        name = field.get("name") if isinstance(field, dict) else None
        if not isinstance(name, str) or not _NAME.fullmatch(name) or "." in name:
            yield here, f"a field needs a name of letters, digits and _{f', not {name!r}' if name else ''}"
        elif name in seen:
            yield here, f"field {name} is there twice"
        elif "type" not in field:
            yield here, f"field {name} has no type"
        else:
            seen.add(name)
            yield from _avro_faults(field["type"], f"{here}/type", namespace, known)
            yield from _default_faults(field, f"{here}/default")


def _default_faults(field: dict[str, object], path: str) -> Faults:
    if "default" not in field:
        return
    kind = field["type"]
    kind = kind.get("type") if isinstance(kind, dict) else kind
    # Any branch of a union is taken as good: Avro 1.12 allows that, older ones want the first.
    fits = [_FITS.get(one) for one in (kind if isinstance(kind, list) else [kind]) if isinstance(one, str)]
    if not fits or None in fits or (isinstance(kind, list) and len(fits) != len(kind)):
        return
    default = field["default"]
    if not any(isinstance(default, one) and (not isinstance(default, bool) or one is bool) for one in fits if one):
        yield path, f"field {field['name']}: the default {json.dumps(default)} is not of type {kind}"


def _unknown_type(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, [*PRIMITIVES, *_COMPLEX, *known], n=1)
    return f"{name!r} is not an Avro type" + (f"; the nearest is {near[0]}" if near else "")
