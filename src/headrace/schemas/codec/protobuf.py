"""Protobuf bodies, by Google's library, from the text of the schema alone.

Objects are in Protobuf's own JSON form: names as in the .proto, 64-bit numbers as text, times as ISO 8601. Behind the
id stands which message of the file it is; written is always the first one.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.errors import CodecError, UsageError
from headrace.schemas.codec.proto_text import parse_proto
from headrace.schemas.registry import Schema
from headrace.text import field_number

_FIRST_MESSAGE = b"\0"
_NUMERIC = range(1, 7)  # FieldDescriptor's CPPTYPE_INT32 to CPPTYPE_FLOAT
_NO_DIGITS = ("NaN", "Infinity", "-Infinity")


class Protobuf:
    """One .proto, compiled. A reader's schema needs no resolving: fields are known by their numbers."""

    def __init__(self, schema: Schema, referred: Mapping[str, Schema], reader: Protobuf | None = None) -> None:
        from google.protobuf.descriptor_pool import DescriptorPool

        pool = DescriptorPool()
        for name, found in referred.items():
            _add(pool, descriptor_of(found.text, name))
        self._reader = reader
        self._messages = _add(pool, descriptor_of(schema.text, "schema.proto"))
        if not self._messages:
            raise UsageError("the .proto has no message")

    @property
    def field_names(self) -> tuple[str, ...] | None:
        return tuple(field.name for field in self._messages[0].fields)

    def encode(self, values: Sequence[object], head: bytes, *, text: bool = False) -> list[bytes | CodecError]:
        """The values as bytes behind `head`. With `text`, numbers may stand as text, as in a CSV file."""
        rows = [self._untexted(value) for value in values] if text else values
        return [v if isinstance(v, CodecError) else self._encode_one(v, head + _FIRST_MESSAGE) for v in rows]

    def _untexted(self, value: object) -> Any:
        """Protobuf's JSON takes numbers as text as Python reads them: 007 and digits of any script, but not 12.0."""
        if not isinstance(value, dict):
            return value
        numeric = [field.name for field in self._messages[0].fields if field.cpp_type in _NUMERIC]
        cells = {name: value[name] for name in numeric if isinstance(value.get(name), str)}
        numbers = {name: cell if cell in _NO_DIGITS else field_number(cell) for name, cell in cells.items()}
        if wrong := next((name for name, number in numbers.items() if number is None), None):
            return CodecError(f"field {wrong}: {cells[wrong]!r:.60} is not a number")
        return {**value, **numbers}

    def _encode_one(self, value: object, head: bytes) -> bytes | CodecError:
        from google.protobuf.json_format import ParseDict, ParseError

        message = _class_of(self._messages[0])()
        try:
            ParseDict(value, message)
            return head + bytes(message.SerializeToString(deterministic=True))
        except ParseError as error:
            return CodecError(f"it does not fit the schema: {' '.join(str(error).split())}")
        except (TypeError, AttributeError, ValueError):
            return CodecError(f"{value!r:.60} is not a message {self._messages[0].name}")

    def decode(self, bodies: Sequence[bytes]) -> list[Any]:
        """The objects in the bytes, a `CodecError` for those that cannot be read."""
        return [self._decode_one(body) for body in bodies]

    def _decode_one(self, body: bytes) -> object:
        from google.protobuf.json_format import MessageToDict

        message = self.parse(body)
        if isinstance(message, CodecError):
            return message
        try:
            return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
        except ValueError as error:  # a time out of range, an Any of an unknown type
            return CodecError("its bytes do not fit its schema", why=str(error))

    @property
    def first_message(self) -> Any:
        """The descriptor of the message that is written."""
        return self._messages[0]

    def parse(self, body: bytes) -> Any:
        """The message in the bytes, or the `CodecError` that says why there is none."""
        from google.protobuf.message import DecodeError

        try:
            path, at = _indexes(body)
            message = _class_of((self._reader or self)._message_at(path))()
            message.ParseFromString(body[at:])
        except (DecodeError, IndexError, ValueError) as error:
            return CodecError("its bytes do not fit its schema", why=str(error))
        return message

    def _message_at(self, path: Sequence[int]) -> Any:
        found = self._messages[path[0]]
        for index in path[1:]:
            found = found.nested_types[index]
        return found


def descriptor_of(text: str, name: str) -> Any:
    """The descriptor in a schema: the text of a .proto, or (as some clients register it) the descriptor in base64."""
    if re.fullmatch(r"[A-Za-z0-9+/=\s]+", text):
        from google.protobuf.descriptor_pb2 import FileDescriptorProto
        from google.protobuf.message import DecodeError

        try:
            found = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
        except (DecodeError, binascii.Error) as error:
            raise UsageError("the schema cannot be parsed as Protobuf", why=str(error)) from None
        found.name = name
        return found
    return parse_proto(text, name)


def _add(pool: Any, file: Any) -> list[Any]:
    """The file is in the pool, with what it imports of Google's; its messages in their order."""
    for name in file.dependency:
        if name.startswith("google/protobuf/"):
            module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
            pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    try:
        added = pool.AddSerializedFile(file.SerializeToString())
        # What the pool does not know is found only when it is asked for.
        found = added or pool.FindFileByName(file.name)
        return [found.message_types_by_name[message.name] for message in file.message_type]
    except (TypeError, KeyError) as error:
        raise UsageError("the schema cannot be parsed as Protobuf", why=str(error)) from None


def _class_of(descriptor: object) -> Any:
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(descriptor)


def _indexes(body: bytes) -> tuple[list[int], int]:
    """Which message it is, as a path of indexes, and where the bytes of the message begin."""
    count, at = _zigzag(body, 0)
    if not count:
        return [0], at
    path = []
    for _ in range(count):
        index, at = _zigzag(body, at)
        path.append(index)
    return path, at


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
