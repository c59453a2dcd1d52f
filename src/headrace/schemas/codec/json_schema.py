"""JSON bodies, checked against a JSON Schema both when they are written and when they are read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from headrace.errors import CodecError
from headrace.schemas.registry import Schema
from headrace.text import field_number


class JsonSchema:
    """One JSON Schema, compiled; a reader's schema is checked as well as the writer's."""

    def __init__(self, schema: Schema, referred: Mapping[str, Schema], reader: JsonSchema | None = None) -> None:
        from jsonschema.validators import validator_for
        from referencing import Registry, Resource
        from referencing.jsonschema import DRAFT7

        self.document = json.loads(schema.text)
        resources = [
            (name, Resource.from_contents(json.loads(found.text), default_specification=DRAFT7))
            for name, found in referred.items()
        ]
        kind = validator_for(self.document)
        self._validator = kind(self.document, registry=Registry().with_resources(resources))
        self._reader = reader

    @property
    def field_names(self) -> tuple[str, ...] | None:
        """The properties of an object; None if none are named."""
        properties = self.document.get("properties") if isinstance(self.document, dict) else None
        return tuple(properties) if properties else None

    def encode(self, values: Sequence[object], head: bytes, *, text: bool = False) -> list[bytes | CodecError]:
        """The values as bytes behind `head`. With `text`, numbers may stand as text, as in a CSV file."""
        rows = [self._untexted(value) for value in values] if text else values
        return [self.fault(value) or head + msgspec.json.encode(value) for value in rows]

    def decode(self, bodies: Sequence[bytes]) -> list[Any]:
        """The values in the bytes, a `CodecError` for those that cannot be read or do not fit."""
        return [self._decode_one(body) for body in bodies]

    def _decode_one(self, body: bytes) -> object:
        try:
            value = msgspec.json.decode(body)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            return CodecError("its bytes cannot be parsed as JSON", why=str(error))
        return self.fault(value) or (self._reader.fault(value) if self._reader else None) or value

    def fault(self, value: object) -> CodecError | None:
        """Why the value does not fit, with the field."""
        from jsonschema.exceptions import best_match

        if self._validator.is_valid(value):
            return None
        error = best_match(self._validator.iter_errors(value))
        path = ".".join(map(str, error.absolute_path))
        return CodecError(f"field {path}: {error.message[:300]}" if path else error.message[:300])

    def _untexted(self, value: object) -> Any:
        properties = self.document.get("properties") if isinstance(self.document, dict) else None
        if not isinstance(value, dict) or not properties:
            return value
        return {name: _from_text(cell, properties.get(name, {}).get("type")) for name, cell in value.items()}


def _from_text(cell: object, kind: object) -> object:
    """A cell of a CSV file as the type that the schema wants, if it can be read as that."""
    kinds = kind if isinstance(kind, list) else [kind]
    if not isinstance(cell, str) or "string" in kinds:
        return cell
    if not cell and "null" in kinds:
        return None
    number = field_number(cell)
    # A whole number of more than 64 bits would lose digits as a float.
    if (number is not None and "number" in kinds) or (isinstance(number, int) and "integer" in kinds):
        return number
    try:
        return msgspec.convert(cell, bool, strict=False) if "boolean" in kinds else cell
    except msgspec.ValidationError:
        return cell
