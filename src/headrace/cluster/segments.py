"""What lies on disk of a partition, read from the files themselves: segments, batches, records, indexes.

    partition folder ──▶ segments (00000000000000000000.log, …) ──▶ batches ──▶ records
                                │ .index      offset → position in the log file
                                │ .timeindex  timestamp → offset
                                └ .txnindex   aborted transactions

A segment is named after the first offset that may be in it. Records are stored as the producer sent them, in batches
of magic 2, compressed as a whole; so what one record costs can only be told of its batch. A batch of control records
marks the end of a transaction and is never handed to a consumer.

Nothing here asks Kafka, and nothing is ever written. A file that is being written to may end in the middle of a batch
or be gone at the next look: what is whole is told, and that is no error. A damaged batch is one, and so is one that
would unpack to more than a bound (`unpack`).
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from headrace.cluster.unpack import Codec, unpack
from headrace.errors import Failed, UsageError

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

# base offset, length, leader epoch, magic, checksum, attributes, last offset delta, first and last timestamp,
# producer id and epoch, first sequence number, number of records.
_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH = struct.Struct(">qi")
_MAGIC_AT = 16
_CHECKED_FROM = 21
_INDEX = struct.Struct(">ii")
_TIME_INDEX = struct.Struct(">qi")
_ABORTED = struct.Struct(">hqqqq")
_VARINT_BITS = 63
_CONTROL_KEY = struct.Struct(">hh")
_CONTROL = {0: "abort", 1: "commit"}
# Kafka's own limit of a request; a length beyond it is no length.
_MOST_BYTES = 1 << 30


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


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """The header of a batch: all that can be told without opening it."""

    base_offset: int
    last_offset: int
    #: Where it begins in the log file, and how many bytes it takes there.
    position: int
    size_bytes: int
    records: int
    codec: Codec
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
class IndexEntry:
    """The batch with this offset begins at this position of the log file, or before the next entry's."""

    offset: int
    position: int


@dataclass(frozen=True, slots=True)
class TimeIndexEntry:
    """Up to this offset no record is younger than this."""

    timestamp_ms: int
    offset: int


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    """A transaction that was aborted, and where its records lie."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True)
class Removal:
    """A segment that retention will remove, why, and from when on (milliseconds since 1970; None: at the next look)."""

    segment: Segment
    by: Literal["time", "size"]
    at_ms: int | None


class Segment:
    """One segment: its log file and the indexes beside it."""

    def __init__(self, log: Path) -> None:
        self.log = log
        try:
            self.base_offset = int(log.stem)
        except ValueError:
            raise UsageError(
                f"{log} is not a segment", why="a segment is named after its first offset, and ends in .log"
            ) from None

    def __repr__(self) -> str:
        return f"Segment({str(self.log)!r})"

    @property
    def size_bytes(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    @property
    def next_offset(self) -> int:
        """The offset behind its last record; its own base offset while it is empty."""
        return max((batch.last_offset + 1 for batch in self._tail()), default=self.base_offset)

    @property
    def largest_timestamp_ms(self) -> int | None:
        """The time of its youngest record, by which retention goes; None while it is empty."""
        indexed = [entry.timestamp_ms for entry in self.time_index()[-1:]]
        return max([*indexed, *(batch.max_timestamp_ms for batch in self._tail())], default=None)

    def _tail(self) -> Iterator[StoredBatch]:
        """The last batches: what the indexes do not tell yet, and a little more."""
        # Of a file that was cut off the index may know more than there is, and the batch of its last entry may be half.
        size = self.size_bytes
        known = [entry.position for entry in self.index() if entry.position < size]
        return self.batches(known[-2] if len(known) > 1 else 0)

    def batches(self, begin: int = 0) -> Iterator[StoredBatch]:
        """The headers of the batches, from a position of the file on."""
        if not self.size_bytes:
            return
        with self.log.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            position = begin
            while batch := _batch_at(data, position, self.log):
                yield batch
                position += batch.size_bytes

    def records(self, batch: StoredBatch) -> Iterator[StoredRecord]:
        """The records of a batch, decompressed."""
        yield from records_in(self.data(batch), batch)

    def data(self, batch: StoredBatch) -> bytes:
        """The bytes of a batch as they lie in the file."""
        with self.log.open("rb") as file:
            file.seek(batch.position)
            return file.read(batch.size_bytes)

    def plain_bytes(self, batch: StoredBatch) -> int | None:
        """What the batch would take without compression, header included; None if it cannot be unpacked."""
        try:
            return _HEADER.size + len(_payload(self.data(batch), batch))
        except Failed:
            return None

    def find(self, offset: int) -> StoredBatch | None:
        """The batch with that offset, found as a broker finds it: through the index, then onwards in the file."""
        near = [entry for entry in self.index() if entry.offset <= offset]
        for batch in self.batches(near[-1].position if near else 0):
            if batch.last_offset >= offset:
                return batch
        return None

    def index(self) -> list[IndexEntry]:
        """Offsets and positions, one for about every 4 kB of the log."""
        rows = _rows(self.log.with_suffix(".index"), _INDEX)
        return [IndexEntry(self.base_offset + offset, position) for offset, position in rows]

    def time_index(self) -> list[TimeIndexEntry]:
        """Timestamps and offsets."""
        rows = _rows(self.log.with_suffix(".timeindex"), _TIME_INDEX)
        return [TimeIndexEntry(timestamp, self.base_offset + offset) for timestamp, offset in rows]

    def aborted(self) -> list[AbortedTransaction]:
        """The aborted transactions that end in this segment."""
        return [AbortedTransaction(*row[1:]) for row in _rows(self.log.with_suffix(".txnindex"), _ABORTED)]


def segments_in(folder: Path) -> list[Segment]:
    """The segments of a partition's folder, the oldest first; those being removed are not among them."""
    return sorted((Segment(log) for log in folder.glob("*.log")), key=lambda segment: segment.base_offset)


def partitions_in(data: Path, topic: str) -> dict[int, Path]:
    """The folders of a topic's partitions in a broker's data folder."""
    found = {}
    for folder in data.glob(f"{topic}-*"):
        name, _, number = folder.name.rpartition("-")
        if name == topic and number.isdigit() and folder.is_dir():
            found[int(number)] = folder
    return dict(sorted(found.items()))


def removals(segments: Sequence[Segment], retention_ms: int, retention_bytes: int) -> list[Removal]:
    """What retention will remove, and when. -1 means without limit, as in Kafka's settings.

    By time a segment goes when its youngest record is old enough. By size the oldest go, as long as what is left is
    still at least the limit; the newest segment never goes by size.
    """
    found: list[Removal] = []
    over = sum(segment.size_bytes for segment in segments) - retention_bytes
    for at, segment in enumerate(segments):
        if retention_bytes >= 0 and at < len(segments) - 1 and over >= segment.size_bytes > 0:
            found.append(Removal(segment, "size", None))
            over -= segment.size_bytes
            continue
        over = -1  # Kafka removes from the old end on, and stops at the first that may stay
        youngest = segment.largest_timestamp_ms
        if retention_ms >= 0 and youngest is not None:
            found.append(Removal(segment, "time", youngest + retention_ms))
    return found


# -- batches ----------------------------------------------------------------------------------------------------


def _batch_at(data: mmap.mmap, position: int, log: Path) -> StoredBatch | None:
    """The batch that begins there; None where the file ends, be it in the middle of a batch."""
    if position + _HEADER.size > len(data):
        return None
    base, length = _LENGTH.unpack_from(data, position)
    size = length + _LENGTH.size
    if length <= 0 or size > _MOST_BYTES:
        if not any(data[position : position + _HEADER.size]):
            return None  # zeros: the file was made longer than what was written
        raise _damaged(log, position, f"invalid batch length: {length} bytes")
    if data[position + _MAGIC_AT] != 2:
        raise _damaged(log, position, f"magic {data[position + _MAGIC_AT]}; batches have had 2 since Kafka 0.11")
    if position + size > len(data):
        return None
    _, _, epoch, _, checksum, attributes, last, first_ms, max_ms, producer, producer_epoch, sequence, count = (
        _HEADER.unpack_from(data, position)
    )
    return StoredBatch(
        base, base + last, position, size, count, _codec(attributes, log, position), first_ms, max_ms,
        "append" if attributes & 8 else "create", epoch, producer, producer_epoch, sequence,
        bool(attributes & 16), bool(attributes & 32), checksum,
    )  # fmt: skip


def _codec(attributes: int, log: Path, position: int) -> Codec:
    number = attributes & 7
    if number >= len(CODECS):
        raise _damaged(log, position, f"unknown compression {number}")
    return CODECS[number]  # type: ignore[return-value]


def _damaged(log: Path, position: int, why: str) -> Failed:
    return Failed(f"{log} is damaged at byte {position}", why=why, log=log)


def checksum_holds(data: bytes, batch: StoredBatch) -> bool:
    """True if the bytes of the batch are those that its checksum (CRC-32C) was made of. Slow: some MB/s."""
    return crc32c(data[_CHECKED_FROM:]) == batch.checksum


@cache
def _crc_table() -> tuple[int, ...]:
    table = []
    for number in range(256):
        value = number
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return tuple(table)


def crc32c(data: bytes) -> int:
    """The Castagnoli checksum, which Python's zlib does not have."""
    table, value = _crc_table(), 0xFFFFFFFF
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


# -- records ----------------------------------------------------------------------------------------------------


def records_in(data: bytes, batch: StoredBatch) -> Iterator[StoredRecord]:
    """The records in the bytes of a batch."""
    payload = _payload(data, batch)
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


def _record_at(payload: bytes, begin: int, batch: StoredBatch) -> tuple[StoredRecord, int]:
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
    return _CONTROL.get(number, f"control {number}")


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


def _payload(data: bytes, batch: StoredBatch) -> bytes:
    return unpack(batch.codec, data[_HEADER.size :])


def _rows(file: Path, row: struct.Struct) -> list[tuple[int, ...]]:
    """The rows of an index file, up to where Kafka has written: the file is made with 10 MB of zeros."""
    try:
        with file.open("rb") as rows:
            data = rows.read(_written(rows.fileno()))
    except FileNotFoundError:
        return []
    # The last row may itself end in zeros.
    count = -(-len(data.rstrip(b"\0")) // row.size)
    return list(row.iter_unpack(data[: count * row.size]))


def _written(file: int) -> int:
    """How much of a file was written from its beginning on: zeros behind that take no room, and need not be read."""
    if not hasattr(os, "SEEK_HOLE"):
        return -1
    try:
        end = os.lseek(file, 0, os.SEEK_HOLE)
    except OSError:  # it is empty, or its file system cannot tell
        return -1
    os.lseek(file, 0, os.SEEK_SET)
    return end
