"""Records as text and files: values, tables, NDJSON, format strings, CSV, Parquet.

A writer takes batches and never half a batch: when the disk is full or the pipe is closed, what a file holds ends with
the last whole batch, which is also the last whose offsets may be committed. Bytes that are no text are shown escaped.
"""

from __future__ import annotations

import csv
import errno
import fcntl
import io
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import msgspec

from headrace.errors import Failed, HeadraceError, UsageError
from headrace.kafka.read.records import DecodedJsonRecord, JsonRecord, Record
from headrace.kafka.write import field
from headrace.text import short

if TYPE_CHECKING:
    import pyarrow

    from headrace.kafka.read.consumer import Batch

_JSON = msgspec.json.Encoder()
_TAIL_BYTES = 65_536
_CSV_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")


class Writer(Protocol):
    """Where batches go."""

    #: True if the file is of use only after `close`: then nothing may be committed before.
    whole_at_close: bool

    def write(self, batch: Batch) -> None:
        """The batch is written, or (on any failure) no part of it stays in the file."""

    def close(self) -> None:
        """Everything that was written is in the file."""


class StreamWriter:
    """Writes each batch as one piece of bytes."""

    whole_at_close = False

    def __init__(self, stream: BinaryIO, encode: Callable[[Batch], bytes], *, heading: bytes = b"") -> None:
        self._stream = stream
        self._encode = encode
        self._heading = heading

    def write(self, batch: Batch) -> None:
        data = self._encode(batch)
        if self._heading:
            data, self._heading = self._heading + data, b""
        # Not `tell`: a file opened for appending stands at 0 until its first write, whatever it holds already.
        before = self._stream.seek(0, io.SEEK_END) if self._stream.seekable() else None
        try:
            self._write_all(data)
        except BrokenPipeError:
            raise
        except BaseException as error:
            if before is not None:
                self._cut_back(before)
            if isinstance(error, OSError):
                raise cannot_write(error) from error
            raise

    def _write_all(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._stream.write(left) :]  # an unbuffered file may take a part only
        self._stream.flush()

    def _cut_back(self, size: int) -> None:
        with suppress(OSError):  # a device has no length
            self._stream.seek(size)
            self._stream.truncate(size)

    def close(self) -> None:
        if self._heading:
            self._stream.write(self._heading)
        self._stream.flush()


def end_with_a_whole_line(path: Path) -> int:
    """Half a line at the end of the file, left by a writer that was killed, has gone to `FILE.torn`; its bytes.

    The record in it was not committed, so the group reads it again. Behind half a line it would be damaged too.
    """
    with path.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return 0  # another consumer is writing: what looks torn is on its way
        end = begin = file.seek(0, io.SEEK_END)
        tail = b""
        while begin and b"\n" not in tail:
            begin = max(0, begin - _TAIL_BYTES)
            file.seek(begin)
            tail = file.read(end - begin)
        torn = tail[tail.rfind(b"\n") + 1 :]
        if torn:
            with path.with_name(f"{path.name}.torn").open("ab") as aside:
                aside.write(torn + b"\n")
            file.truncate(end - len(torn))
    return len(torn)


def cannot_write(error: OSError) -> Failed:
    """The error for an output that does not take what it is given."""
    full = error.errno in {errno.ENOSPC, errno.EDQUOT}
    return Failed(
        "the disk is full" if full else "the output cannot be written",
        why=error.strerror or str(error),
        hint="make room and repeat the command: with a group it continues after the last record that was written",
    )


def values_encoder(separator: bytes = b"\n") -> Callable[[Batch], bytes]:
    """Values only, each followed by the separator; a null value is an empty one."""

    def encode(batch: Batch) -> bytes:
        if batch.with_codec:
            return separator.join([r.value_shown or b"" for r in batch.records()]) + separator
        return separator.join([m.value() or b"" for m in batch.messages]) + separator

    return encode


def encode_ndjson(batch: Batch) -> bytes:
    """One JSON object a line, with everything that Kafka says about the record."""
    if batch.with_codec:
        return _JSON.encode_lines([
            DecodedJsonRecord.of_decoded(message, batch.member, value, key) for message, value, key in batch.parts()
        ])  # fmt: skip
    return _JSON.encode_lines([JsonRecord.of(message, batch.member) for message in batch.messages])


def encode_csv(batch: Batch) -> bytes:
    """Rows of topic, partition, offset, timestamp, key, value, headers (as JSON)."""
    text = io.StringIO()
    rows = csv.writer(text)
    for record in batch.records():
        headers = json.dumps({name: shown(value) for name, value in record.headers}) if record.headers else ""
        rows.writerow([
            record.topic, record.partition, record.offset, iso(record.timestamp_ms),
            shown(record.key_shown), shown(record.value_shown), headers,
        ])  # fmt: skip
    return text.getvalue().encode()


CSV_HEADING = (",".join(_CSV_COLUMNS) + "\r\n").encode()


def format_encoder(pattern: str) -> Callable[[Batch], bytes]:
    """`%t` topic, `%p` partition, `%o` offset, `%k` key, `%v` value, `%h` headers, `%T` timestamp in ms, `%m` member,
    `%%` a percent sign; backslash escapes as in Python."""
    fields: dict[str, Callable[[Record], bytes]] = {
        "t": lambda r: r.topic.encode(),
        "p": lambda r: b"%d" % r.partition,
        "o": lambda r: b"%d" % r.offset,
        "k": lambda r: r.key_shown or b"",
        "v": lambda r: r.value_shown or b"",
        "s": lambda r: r.value_shown or b"",
        "h": lambda r: b",".join(name.encode() + b"=" + (value or b"") for name, value in r.headers),
        "T": lambda r: b"%d" % r.timestamp_ms,
        "m": lambda r: b"%d" % r.member,
        "%": lambda _: b"%",
    }
    parts = _pattern_parts(pattern, fields)

    def encode(batch: Batch) -> bytes:
        return b"".join(
            part if isinstance(part, bytes) else part(record) for record in batch.records() for part in parts
        )

    return encode


def _pattern_parts(
    pattern: str, fields: dict[str, Callable[[Record], bytes]]
) -> list[bytes | Callable[[Record], bytes]]:
    try:
        text = pattern.encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError as error:
        raise UsageError(f"invalid format: {pattern!r}", why=str(error)) from None
    parts: list[bytes | Callable[[Record], bytes]] = []
    pieces = iter(text.split("%"))
    parts.append(next(pieces).encode())
    for piece in pieces:
        if piece == "":  # a doubled percent sign: this empty piece, then the text behind it
            parts += [b"%", next(pieces, "").encode()]
        elif piece[0] in fields:
            parts += [fields[piece[0]], piece[1:].encode()]
        else:
            raise UsageError(
                f"the format has an unknown field %{piece[0]}", hint="known are " + " ".join(f"%{f}" for f in fields)
            )
    return parts


def table(width: int, topics: Sequence[str]) -> tuple[bytes, Callable[[Batch], bytes]]:
    """The heading and the lines of a table that fits the terminal; long names, keys and values are cut."""
    names = min(24, max(len("TOPIC"), *map(len, topics)))
    keys = 16 if width >= 100 else 8

    def line(topic: str, partition: object, offset: object, key: str, value: str) -> str:
        start = f"{clipped(topic, names)} {partition:>4} {offset:>8}  {clipped(key, keys)}  "
        return start + clipped(value, max(20, width - len(start)), pad=False) + "\n"

    def encode(batch: Batch) -> bytes:
        lines = (
            line(r.topic, r.partition, r.offset, shown(r.key_shown), shown(r.value_shown)) for r in batch.records()
        )
        return "".join(lines).encode()

    return line("TOPIC", "PART", "OFFSET", "KEY", "VALUE").encode(), encode


def clipped(text: str, width: int, *, pad: bool = True) -> str:
    return short(text, width).ljust(width) if pad else short(text, width)


def shown(data: bytes | None) -> str:
    """Bytes for the eye: text without control characters, everything else as \\x escapes; null as `null`."""
    if data is None:
        return "null"
    text = data.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def iso(timestamp_ms: int) -> str:
    """ISO 8601 in UTC; empty where Kafka knows no time."""
    if timestamp_ms < 0:
        return ""
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")


def arrow_batch(batch: Batch) -> pyarrow.RecordBatch:
    """The batch as Arrow columns."""
    import pyarrow as pa

    records = list(batch.records())
    columns = {
        "topic": pa.array([r.topic for r in records], pa.string()),
        "partition": pa.array([r.partition for r in records], pa.int32()),
        "offset": pa.array([r.offset for r in records], pa.int64()),
        "timestamp": pa.array([r.timestamp_ms if r.timestamp_ms >= 0 else None for r in records], pa.timestamp("ms")),
        "key": pa.array([r.key_shown for r in records], pa.binary()),
        "value": pa.array([r.value_shown for r in records], pa.binary()),
        "headers": pa.array([list(r.headers) for r in records], pa.map_(pa.string(), pa.binary())),
    }
    return pa.record_batch(columns)


class ParquetWriter:
    """A Parquet file; it appears under its name only when it is whole."""

    whole_at_close = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(path.name + ".part")
        self._writer: Any = None

    def write(self, batch: Batch) -> None:
        import pyarrow.parquet as pq

        columns = arrow_batch(batch)
        try:
            if self._writer is None:
                self._writer = pq.ParquetWriter(self._part, columns.schema)
            self._writer.write_batch(columns)
        except OSError as error:
            self._part.unlink(missing_ok=True)
            raise cannot_write(error) from error

    def close(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            if self._writer is None:
                pq.write_table(pa.table({}), self._part)
            else:
                self._writer.close()
            self._part.replace(self._path)
        except OSError as error:
            self._part.unlink(missing_ok=True)
            raise cannot_write(error) from error


class OrderCheck:
    """Is a field ascending within each key? Counts, and remembers the first pair that is not."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.checked = 0
        self.violations = 0
        self.first: str | None = None
        self._last: dict[bytes | None, object] = {}

    def see(self, batch: Batch) -> None:
        for record in batch.records():
            try:
                value = _comparable(field(msgspec.json.decode(record.value_shown or b""), self.name))
            except (msgspec.MsgspecError, RecursionError, HeadraceError):
                continue
            self.checked += 1
            before = self._last.get(record.key)
            if before is not None and _before(value, before):
                self.violations += 1
                self.first = self.first or (
                    f"key {shown(record.key)}: {self.name} = {value} after {before} "
                    f"({record.topic}/{record.partition} at {record.offset})"
                )
            self._last[record.key] = value


def _comparable(value: Any) -> object:
    """Numbers in text compare as numbers: "9" comes before "10"."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return value


def _before(value: Any, other: Any) -> bool:
    try:
        return bool(value < other)
    except TypeError:
        return str(value) < str(other)
