"""The frame of Confluent's wire format: which schema the bytes were written with.

In front of the bytes stand a zero and the id in four bytes; newer serializers put the same into a header instead, or a
one and the schema's guid in sixteen bytes, and leave the bytes alone. Protobuf adds which message of the file it is.
"""

from __future__ import annotations

import struct
import uuid

from headrace.errors import CodecError

VALUE_HEADER = "__value_schema_id"
KEY_HEADER = "__key_schema_id"
PREFIX_SIZE = 5

_ID = struct.Struct(">bI")
_GUID_SIZE = 17


def prefix(schema_id: int) -> bytes:
    """What stands in front of the bytes."""
    return _ID.pack(0, schema_id)


def id_in_prefix(head: bytes) -> int:
    """The id in the first five bytes of a record."""
    if len(head) < PREFIX_SIZE:
        raise CodecError(f"it has {len(head)} bytes, too few to carry the id of a schema")
    magic, number = _ID.unpack_from(head)
    if magic != 0:
        raise CodecError(
            f"it was not written with a registry: its first byte is {head[0]:#04x}, not 0",
            hint="consume it without --value, or write it with --value",
        )
    return int(number)


def id_in_header(data: bytes) -> tuple[int | str, bytes]:
    """The id or guid in a header, and what follows it."""
    if len(data) >= PREFIX_SIZE and data[0] == 0:
        return int(_ID.unpack_from(data)[1]), data[PREFIX_SIZE:]
    if len(data) >= _GUID_SIZE and data[0] == 1:
        return str(uuid.UUID(bytes=data[1:_GUID_SIZE])), data[_GUID_SIZE:]
    raise CodecError("the header with the id of its schema is damaged", why=f"it is {data.hex()}")
