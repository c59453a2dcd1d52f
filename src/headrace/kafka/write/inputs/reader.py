"""`RecordReader`: the records of an input, once, in batches."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import BinaryIO, Self

from headrace.errors import Failed, HeadraceError, UsageError
from headrace.kafka.write.inputs.batch import BadPiece, InputBatch, InputOptions, Place, Shape
from headrace.kafka.write.inputs.detection import detect_shape
from headrace.kafka.write.inputs.elements import ElementStream
from headrace.kafka.write.inputs.source import Source
from headrace.kafka.write.inputs.table import Table
from headrace.kafka.write.inputs.values import ANY, NOT_JSON, fault, refuse_giant, validate

_BLOCKS_PER_BATCH = 8
_EXCERPT = 60


class RecordReader:
    """The records of a path, of `-` (standard input) or of a binary stream, once, in batches.

    `shape` is what was detected or asked for; `records` and `bad` count what was handed out so far.
    With `on_bad="stop"` the records before the bad one are handed out, then `Failed` is raised.
    """

    def __init__(self, source: str | Path | BinaryIO, options: InputOptions | None = None) -> None:
        self._options = options or InputOptions()
        self._source = Source(source)
        self.name = self._source.name
        self.records = 0
        self.bad = 0
        #: Records of the input up to where it is parsed; those handed out may be fewer.
        self._parsed = 0
        if self._options.shape is None:
            self._source.refuse_utf16()
        self.shape = self._options.shape or detect_shape(self._source.head())
        if self.shape is Shape.LINES and self._options.parsed:
            self.close()
            raise UsageError(
                f"{self.name} holds plain lines, which have no fields",
                hint="name its shape: ndjson, array, concatenated, strings, csv or csv-no-header",
            )

    def __iter__(self) -> Iterator[InputBatch]:
        batches = self._batches()
        due = self._options.skip
        for batch in _grouped(batches) if self._source.is_file else batches:
            self.records += len(batch.values)
            left = batch.part(due, len(batch.values)) if due else batch
            due -= len(batch.values) - len(left.values)
            if left.values:
                yield left

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The file is closed, if it was opened here."""
        self._source.close()

    def _batches(self) -> Iterator[InputBatch]:
        if self.shape is Shape.LINES:
            return (InputBatch(lines, Place("line", first)) for first, _, lines in self._line_chunks())
        if self.shape is Shape.NDJSON:
            return self._ndjson_batches()
        if self.shape in (Shape.CSV, Shape.CSV_NO_HEADER):
            return self._table_batches()
        return ElementStream(self._source, self.shape, self._options.parsed, self._reject).batches()

    def _reject(self, piece: BadPiece, before: int) -> HeadraceError | None:
        """The piece, behind so many records, is counted and set aside, or the error to stop with is returned.

        A piece among those that are left out was dealt with by the run that has sent them.
        """
        if before < self._options.skip:
            return None
        if self._options.on_bad == "stop":
            excerpt = piece.data[:_EXCERPT].decode(errors="replace")
            return Failed(
                f"{self.name}, {piece.place}: the input cannot be parsed as {self.shape}",
                why=f"{piece.reason}: {excerpt}{'…' if len(piece.data) > _EXCERPT else ''}",
                hint="--on-bad skip leaves such pieces out, --on-bad set-aside keeps them in a file",
            )
        self.bad += 1
        if self._options.on_bad == "set-aside" and self._options.set_aside:
            self._options.set_aside(piece)
        return None

    def _line_chunks(self) -> Iterator[tuple[int, bytes, list[bytes]]]:
        """Complete lines: the number of the first, the text they were cut from, and the lines."""
        number = 1
        pieces: list[bytes] = []
        for block in self._source.blocks():
            end = block.rfind(b"\n") + 1
            pieces.append(block[:end] if end else block)
            if not end:
                refuse_giant(sum(map(len, pieces)), self.name, Place("line", number))
                continue
            chunk = b"".join(pieces)
            pieces = [block[end:]]
            lines = (chunk.replace(b"\r\n", b"\n") if b"\r" in chunk else chunk).split(b"\n")
            lines.pop()
            yield number, chunk, lines
            number += len(lines)
        if last := b"".join(pieces):
            yield number, last, [last]

    def _ndjson_batches(self) -> Iterator[InputBatch]:
        for first, chunk, lines in self._line_chunks():
            place = Place("line", first)
            try:
                objects = validate(chunk, lines, self._options.parsed)
            except NOT_JSON:
                values, error = self._sift(lines, first)
                objects = list(map(ANY.decode, values)) if self._options.parsed else None
            else:
                values, error = lines, None
            self._parsed += len(values)
            if values:
                yield InputBatch(values, place, objects)
            if error:
                raise error

    def _sift(self, lines: list[bytes], first: int) -> tuple[list[bytes], HeadraceError | None]:
        """The good lines, up to the bad one if that one is to stop everything."""
        good = []
        for number, line in enumerate(lines, first):
            if not line.strip():
                continue
            reason = fault(line, self._options.parsed)
            if reason is None:
                good.append(line)
            elif error := self._reject(BadPiece(line, Place("line", number), reason), self._parsed + len(good)):
                return good, error
        return good, None

    def _table_batches(self) -> Iterator[InputBatch]:
        table = Table(self.shape, self._options, self._source.head(), self.name)
        # A row whose quotes carry it over the end of a chunk stays here until the next one.
        held: list[str] = []
        first = 1
        for _, _, lines in self._line_chunks():
            held += b"\n".join(lines).decode(errors="surrogateescape").split("\n")
            done = yield from self._table_batch(table, held, first, final=False)
            first += done
            del held[:done]
        yield from self._table_batch(table, held, first, final=True)

    def _table_batch(
        self, table: Table, lines: list[str], first: int, *, final: bool
    ) -> Generator[InputBatch, None, int]:
        """Yields the rows that are complete, if any, and returns how many lines they took."""
        values: list[bytes] = []
        done, place, error = 0, first, None
        for start, end, row in table.rows(lines, final=final):
            done = end
            made = row if isinstance(row, str) else table.value(row)
            if isinstance(made, bytes):
                place = place if values else first + start
                values.append(made)
            elif made is not None:
                data = "\n".join(lines[start:end]).encode(errors="surrogateescape")
                piece = BadPiece(data, Place("line", first + start), made)
                if error := self._reject(piece, self._parsed + len(values)):
                    break
        self._parsed += len(values)
        if values:
            objects = list(map(ANY.decode, values)) if self._options.parsed else None
            yield InputBatch(values, Place("line", place), objects, text=True)
        if error:
            raise error
        return done


def _grouped(batches: Iterator[InputBatch]) -> Iterator[InputBatch]:
    """Fewer and larger batches, because each one costs its reader some 50 microseconds."""
    group: InputBatch | None = None
    members = 0
    try:
        for batch in batches:
            if group is None:
                group, members = batch, 1
                continue
            group.values.extend(batch.values)
            if group.objects is not None:
                group.objects.extend(batch.objects or ())
            members += 1
            if members == _BLOCKS_PER_BATCH:
                yield group
                group = None
    except HeadraceError:
        if group:
            yield group
        raise
    if group:
        yield group
