"""What lies on disk of a partition, read from the files themselves: segments, batches, records, indexes.

    partition folder ──▶ segments (00000000000000000000.log, …) ──▶ batches ──▶ records
                                │ .index      offset → position in the log file
                                │ .timeindex  timestamp → offset
                                └ .txnindex   aborted transactions

A segment is named after the first offset that may be in it. Records are stored as the producer sent them, in batches
of magic 2, compressed as a whole; so what one record costs is known of its batch only. A batch of control records
marks the end of a transaction and is never handed to a consumer.

Nothing here asks Kafka, and nothing is ever written. A file that is being written to may end in the middle of a batch
or be gone at the next poll: what is whole is read, without an error. A damaged batch is an error, and so is one that
would unpack to more than a bound (`unpack`).
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headrace.cluster.unpack import unpack
from headrace.errors import Failed, UsageError
from headrace.kafka import CODECS, HEADER_BYTES, BatchHeader, StoredRecord, batch_at, checksum_holds, records_in

_INDEX = struct.Struct(">ii")
_TIME_INDEX = struct.Struct(">qi")
_ABORTED = struct.Struct(">hqqqq")


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

    def _tail(self) -> Iterator[BatchHeader]:
        """The last batches: what the indexes do not tell yet, and a little more."""
        # Of a file that was cut off the index may know more than there is, and the batch of its last entry may be half.
        size = self.size_bytes
        known = [entry.position for entry in self.index() if entry.position < size]
        return self.batches(known[-2] if len(known) > 1 else 0)

    def batches(self, begin: int = 0) -> Iterator[BatchHeader]:
        """The headers of the batches, from a position of the file on."""
        if not self.size_bytes:
            return
        with self.log.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            position = begin
            while batch := _batch_at(data, position, self.log):
                yield batch
                position += batch.size_bytes

    def records(self, batch: BatchHeader) -> Iterator[StoredRecord]:
        """The records of a batch, decompressed."""
        yield from records_in(_payload(self.data(batch), batch), batch)

    def data(self, batch: BatchHeader) -> bytes:
        """The bytes of a batch as they lie in the file."""
        with self.log.open("rb") as file:
            file.seek(batch.position)
            return file.read(batch.size_bytes)

    def checksum_holds(self, batch: BatchHeader) -> bool:
        """True if the bytes of the batch are those that its checksum (CRC-32C) was made of. Slow: some MB/s."""
        return checksum_holds(self.data(batch), batch)

    def plain_bytes(self, batch: BatchHeader) -> int | None:
        """What the batch would take without compression, header included; None if it cannot be unpacked."""
        try:
            return HEADER_BYTES + len(_payload(self.data(batch), batch))
        except Failed:
            return None

    def find(self, offset: int) -> BatchHeader | None:
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


def _batch_at(data: mmap.mmap, position: int, log: Path) -> BatchHeader | None:
    try:
        batch = batch_at(data, position)
    except ValueError as error:
        raise _damaged(log, position, str(error)) from None
    if batch and batch.codec not in CODECS:
        raise _damaged(log, position, f"compression {batch.codec}")
    return batch


def _damaged(log: Path, position: int, why: str) -> Failed:
    return Failed(f"{log} is damaged at byte {position}", why=why, log=log)


def _payload(data: bytes, batch: BatchHeader) -> bytes:
    return unpack(batch.codec, data[HEADER_BYTES:])  # type: ignore[arg-type] # it was checked


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
