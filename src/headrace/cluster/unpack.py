"""The records of a batch without their compression, never more than a bound.

A producer decides what its batches claim: a few bytes can stand for gigabytes. So no size that the
bytes declare is trusted, and nothing is unpacked beyond the bound.
"""

from __future__ import annotations

import zlib
from typing import Literal

from headrace.errors import Failed

Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]

#: Sixty times what brokers take by default, packed.
MOST_BYTES = 64_000_000
_AT_ONCE = 1 << 20
_XERIAL = b"\x82SNAPPY\x00"


class _TooLarge(Exception):
    """The bytes stand for more than the bound."""


def unpack(codec: Codec, packed: bytes, most: int = MOST_BYTES) -> bytes:
    """The bytes that were packed. It is an error if they are damaged, or more than `most`."""
    try:
        match codec:
            case "none":
                return packed
            case "gzip":
                return _gunzip(packed, most)
            case "snappy":
                return _unsnappy(packed, most)
            case _:
                return _streamed(codec, packed, most)
    except _TooLarge:
        raise Failed(
            f"{len(packed):,} bytes of {codec} decompress to more than {most / 1e6:.0f} MB",
            why="this limit holds whatever size a batch declares",
        ) from None
    except (zlib.error, OSError, ValueError, IndexError) as error:  # Arrow raises the two in the middle
        raise Failed(f"{len(packed):,} bytes of {codec} cannot be decompressed", why=str(error)) from None


def _gunzip(packed: bytes, most: int) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    plain = unpacker.decompress(packed, most + 1)
    if len(plain) > most:
        raise _TooLarge
    if not unpacker.eof:
        raise ValueError("the stream is cut off")
    return plain


def _streamed(codec: Codec, packed: bytes, most: int) -> bytes:
    import pyarrow as pa

    plain = bytearray()
    with pa.input_stream(pa.py_buffer(packed), compression=codec) as stream:
        while part := stream.read(_AT_ONCE):
            plain += part
            if len(plain) > most:
                raise _TooLarge
    return bytes(plain)


def _unsnappy(packed: bytes, most: int) -> bytes:
    """Java's clients cut the data into blocks with a frame of their own around them; librdkafka does not."""
    if not packed.startswith(_XERIAL):
        return _unsnappy_block(packed, most)
    at, plain = 16, bytearray()
    while at < len(packed):
        size = int.from_bytes(packed[at : at + 4], "big")
        plain += _unsnappy_block(packed[at + 4 : at + 4 + size], most - len(plain))
        at += 4 + size
    return bytes(plain)


def _unsnappy_block(packed: bytes, most: int) -> bytes:
    import pyarrow as pa

    size = shift = at = 0
    while True:  # a block begins with its size, as a plain varint
        size |= (packed[at] & 0x7F) << shift
        if size > most:
            raise _TooLarge
        if packed[at] < 0x80:
            break
        at, shift = at + 1, shift + 7
    return bytes(pa.Codec("snappy").decompress(packed, decompressed_size=size)) if size else b""
