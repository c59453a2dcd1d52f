"""Record batches as they lie in the log and travel on the wire (format 2, KIP-98): their headers and their records.

A header is never compressed, so batches can be separated, measured and attributed to their producers and transactions
without any codec; who wants the records decompresses them first. Older formats (before Kafka 0.11) are not read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headrace.errors import Failed
from headrace.kafka.client import kafka_python

if TYPE_CHECKING:
    from mmap import mmap

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

# base offset, length, leader epoch, magic, checksum, attributes, last offset delta, first and last timestamp,
# producer id and epoch, first sequence number, number of records.
_HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = _HEADER.size
_LENGTH_BYTES = 12  # the base offset and the length itself, which it does not count
_MAGIC = 2
# Kafka's own limit of a request; a length beyond it is no length.
_MOST_BYTES = 1 << 30
_CHECKED_FROM = 21
_CONTROL_KEY = struct.Struct(">hh")
_DECISIONS: dict[int, Literal["abort", "commit"]] = {0: "abort", 1: "commit"}
_VARINT_BITS = 63


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The header of a batch: all that is known without decompressing it."""

    base_offset: int
    last_offset: int
    #: Where it begins in the bytes or in the log file, and how many bytes it takes there.
    position: int
    size_bytes: int
    records: int
    codec: str
    first_timestamp_ms: int
    max_timestamp_ms: int
    timestamp_type: Literal["create", "append"]
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool
    control: bool
    checksum: int

    @property
    def bytes_per_record(self) -> float | None:
        """What one record of the batch costs on disk, header and compression included. Compaction may leave none."""
        return self.size_bytes / self.records if self.records else None


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as it is stored. A control record tells how a transaction ended."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    #: Bytes inside the batch before compression.
    size_bytes: int
    control: str | None = None


def batch_at(data: bytes | memoryview | mmap, position: int) -> BatchHeader | None:
    """The header of the batch that begins there; None where the bytes end, be it in the middle of the batch.

    What cannot be a header is a ValueError.
    """
    if position + HEADER_BYTES > len(data):
        return None
    base, length, epoch, magic, checksum, attributes, last, first_ms, max_ms, producer, epoch_of, sequence, count = (
        _HEADER.unpack_from(data, position)
    )
    size = length + _LENGTH_BYTES
    if length <= 0 or size > _MOST_BYTES:
        if not any(data[position : position + HEADER_BYTES]):
            return None  # zeros: the file was made longer than what was written
        raise ValueError(f"invalid batch length: {length} bytes")
    if magic != _MAGIC:
        raise ValueError(f"magic {magic}; batches have had 2 since Kafka 0.11")
    if position + size > len(data):
        return None
    codec = attributes & 7
    return BatchHeader(
        base, base + last, position, size, count, CODECS[codec] if codec < len(CODECS) else f"unknown ({codec})",
        first_ms, max_ms, "append" if attributes & 8 else "create", epoch, producer, epoch_of, sequence,
        bool(attributes & 16), bool(attributes & 32), checksum,
    )  # fmt: skip


def headers_in(data: bytes | memoryview | mmap) -> Iterator[BatchHeader]:
    """The headers of the batches in the bytes; what is cut off at the end or damaged ends them."""
    at = 0
    with suppress(ValueError):
        while batch := batch_at(data, at):
            yield batch
            at += batch.size_bytes


def decision(data: bytes | memoryview | mmap, batch: BatchHeader) -> Literal["commit", "abort"] | None:
    """What a control batch says about the transaction of its producer; the bytes are those that it was found in."""
    if not batch.control:
        return None
    body = bytes(data[batch.position + HEADER_BYTES : batch.position + batch.size_bytes])
    try:
        key = _record_at(body, 0, batch)[0].key or b""
        return _DECISIONS.get(_CONTROL_KEY.unpack_from(key)[1])
    except (IndexError, ValueError, struct.error):
        return None


def checksum_holds(data: bytes, batch: BatchHeader) -> bool:
    """True if the bytes of the batch are those that its checksum (CRC-32C) was made of. Slow: some MB/s."""
    kafka_python()
    from kafka.record.util import calc_crc32c

    return bool(calc_crc32c(data[_CHECKED_FROM:]) == batch.checksum)


def records_in(payload: bytes, batch: BatchHeader) -> Iterator[StoredRecord]:
    """The records of a batch in what stands behind its header, decompressed."""
    at = 0
    for number in range(batch.records):
        try:
            record, at = _record_at(payload, at, batch)
        except (IndexError, ValueError):
            raise Failed(
                f"record {number + 1} of {batch.records:,} in the batch is damaged",
                why="its lengths do not fit into each other",
            ) from None
        yield record


def _record_at(payload: bytes, begin: int, batch: BatchHeader) -> tuple[StoredRecord, int]:
    """The record that begins there, and where it ends."""
    length, at = _varint(payload, begin)
    end = at + length
    at += 1  # attributes, of which there are none yet
    timestamp, at = _varint(payload, at)
    offset, at = _varint(payload, at)
    key, at = _bytes(payload, at)
    value, at = _bytes(payload, at)
    headers, at = _headers(payload, at)
    if not at <= end <= len(payload):
        raise ValueError
    stamped = batch.max_timestamp_ms if batch.timestamp_type == "append" else batch.first_timestamp_ms + timestamp
    control = _control(key) if batch.control else None
    return StoredRecord(batch.base_offset + offset, stamped, key, value, headers, end - begin, control), end


def _control(key: bytes | None) -> str:
    number = _CONTROL_KEY.unpack_from(key)[1] if key and len(key) >= _CONTROL_KEY.size else -1
    return _DECISIONS.get(number, f"control {number}")


def _headers(data: bytes, at: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, at = _varint(data, at)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, at = _bytes(data, at)
        value, at = _bytes(data, at)
        headers.append(((name or b"").decode(errors="replace"), value))
    return tuple(headers), at


def _bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _varint(data, at)
    return (None, at) if length < 0 else (data[at : at + length], at + length)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number in Protobuf's zigzag form, and where the next thing begins."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7
        if shift > _VARINT_BITS:
            raise ValueError
