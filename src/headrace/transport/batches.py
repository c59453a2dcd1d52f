"""Record batches as they lie in the log and travel on the wire (format 2, KIP-98): their headers, not their records.

A header is never compressed, so batches can be told apart, measured and attributed to their producers and transactions
without any codec. Older formats (before Kafka 0.11) have no transactions and are not looked into.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

CODECS = {0: "none", 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}

# base offset, length, leader epoch, magic, crc, attributes, last offset delta, first and largest timestamp,
# producer id, producer epoch, base sequence, number of records
_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH = struct.Struct(">qi")
_CONTROL_KEY = struct.Struct(">hh")
_MAGIC = 2


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """What stands before the records of a batch. `decides` is what a control batch says about its transaction."""

    base_offset: int
    last_offset: int
    size_bytes: int
    leader_epoch: int
    codec: str
    transactional: bool
    control: bool
    producer_id: int
    producer_epoch: int
    first_timestamp_ms: int
    last_timestamp_ms: int
    records: int
    decides: Literal["commit", "abort"] | None = None


def headers_in(data: bytes | memoryview) -> Iterator[BatchHeader]:
    """The headers of the batches in the bytes; a batch that is cut off at the end is left out."""
    view, at = memoryview(data), 0
    while at + _HEADER.size <= len(view):
        _, length = _LENGTH.unpack_from(view, at)
        end = at + _LENGTH.size + length
        fields = _HEADER.unpack_from(view, at)
        if end > len(view) or fields[3] != _MAGIC or length <= 0:
            return
        yield _header(fields, end - at, view[at + _HEADER.size : end])
        at = end


def _header(fields: tuple[int, ...], size_bytes: int, body: memoryview) -> BatchHeader:
    base, _, epoch, _, _, attributes, last_delta, first_ms, last_ms, producer, producer_epoch, _, count = fields
    control = bool(attributes & 0x20)
    return BatchHeader(
        base_offset=base,
        last_offset=base + last_delta,
        size_bytes=size_bytes,
        leader_epoch=epoch,
        codec=CODECS.get(attributes & 0x07, f"unknown ({attributes & 0x07})"),
        transactional=bool(attributes & 0x10),
        control=control,
        producer_id=producer,
        producer_epoch=producer_epoch,
        first_timestamp_ms=first_ms,
        last_timestamp_ms=last_ms,
        records=count,
        decides=_decision(body) if control else None,
    )


def _decision(body: memoryview) -> Literal["commit", "abort"] | None:
    """The key of a control record is a version and a type: 0 aborts, 1 commits."""
    at = 0
    for _ in range(4):  # length, attributes (one byte, read as a varint of one byte), timestamp delta, offset delta
        at = _after_varint(body, at)
    at = _after_varint(body, at)  # length of the key
    if at + _CONTROL_KEY.size > len(body):
        return None
    return {0: "abort", 1: "commit"}.get(_CONTROL_KEY.unpack_from(body, at)[1])  # type: ignore[return-value]


def _after_varint(body: memoryview, at: int) -> int:
    while at < len(body) and body[at] & 0x80:
        at += 1
    return at + 1
