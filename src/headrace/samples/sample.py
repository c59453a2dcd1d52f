"""`Sample`: records that can be walked through as values, with what was done to them, or written as a file.

A maker of records gives chunks of columns; this module turns them into text by one template per layout, which is what
makes a day's file a matter of a second or two. Damage is applied here, to the few records that were drawn for it.

Invariant: the n-th record of a sample is the same in every format and on every walk; only its bytes are laid out
differently.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, BinaryIO

import msgspec

from headrace.errors import UsageError
from headrace.samples.damage import Damage, Injector, Kind

_DECODE = msgspec.json.Decoder().decode


class Format(StrEnum):
    """How records lie in a file."""

    ARRAY = "array"  # one JSON array on one line, as the day's file of the bus lab
    PRETTY = "pretty"  # one JSON array, indented
    NDJSON = "ndjson"  # an object a line
    CONCATENATED = "concatenated"  # objects one after another, nothing between them
    STRINGS = "strings"  # one array of strings, each of which is an object: encoded twice
    CSV = "csv"


@dataclass(frozen=True, slots=True)
class Column:
    """A field of a record and how its value is written in JSON: bare, or between quotes.

    `padded`: some values end in a blank, which a CSV file keeps between quotes.
    """

    name: str
    quoted: bool = False
    padded: bool = False


@dataclass(frozen=True, slots=True)
class Made:
    """A record as it was made: its text, and what was done to it (None: it is sound)."""

    text: bytes
    damage: Damage | None

    @property
    def value(self) -> Any:
        """What the text says, or the text itself where it is no JSON."""
        try:
            return _DECODE(self.text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return self.text


@dataclass(slots=True)
class Written:
    """What was written, and what was done to the records that are not sound."""

    records: int = 0
    size_bytes: int = 0
    damaged: dict[str, int] = field(default_factory=dict)


Chunk = Sequence[Sequence[Any]]
"""Columns of equal length: values whose `str` is what stands in the file; NULL is nothing."""

NULL = "null"


@dataclass(frozen=True)
class Sample:
    """Records made on demand. Walking through gives values: objects, or whatever damage made of them."""

    columns: tuple[Column, ...]
    chunks: Callable[[], Iterator[Chunk]]
    seed: int
    formats: tuple[Format, ...]
    header: bool = True
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Any]:
        if not self.rates:
            for chunk in self.chunks():
                template = _object(self.columns)
                yield from (_DECODE(template % row) for row in zip(*chunk, strict=True))
            return
        for made in self.made():
            yield made.value

    def made(self) -> Iterator[Made]:
        """Every record as one line of JSON, with what was done to it."""
        for texts, damages in self._texts(Format.NDJSON):
            done = {damage.record: damage for damage in damages}
            first = texts.first
            for at, text in enumerate(texts.rows):
                yield Made(text if isinstance(text, bytes) else text.encode(), done.get(first + at))

    def write(
        self,
        file: BinaryIO,
        layout: Format | str | None = None,
        on_damage: Callable[[Damage], None] | None = None,
    ) -> Written:
        """The file holds the sample in a format (the sample's first one if none is named)."""
        chosen = self._checked(layout)
        written = Written()
        head, between, tail = _FRAMES[chosen]
        written.size_bytes += file.write(self._heading() if chosen is Format.CSV and self.header else head)
        for texts, damages in self._texts(chosen):
            start = between if written.records else b""
            written.size_bytes += file.write(start + _joined(between, texts.rows))
            written.records += len(texts.rows)
            for damage in damages:
                written.damaged[damage.kind] = written.damaged.get(damage.kind, 0) + 1
                if on_damage:
                    on_damage(damage)
        if tail and (written.records or chosen not in (Format.NDJSON, Format.CSV)):
            written.size_bytes += file.write(tail)
        return written

    def _checked(self, layout: Format | str | None) -> Format:
        chosen = layout or self.formats[0]
        if chosen not in self.formats:
            raise UsageError(f"invalid format for this sample: {layout}", hint="one of " + ", ".join(self.formats))
        return Format(chosen)

    def _heading(self) -> bytes:
        return (",".join(column.name for column in self.columns) + "\n").encode()

    def _texts(self, layout: Format) -> Iterator[tuple[_Texts, list[Damage]]]:
        template = _row_template(self.columns, layout)
        injector = Injector(self.kinds, self.rates, self.seed)
        first = 0
        for chunk in self.chunks():
            laid = _cells(chunk, self.columns) if layout is Format.CSV else chunk
            rows: list[str | bytes] = [template % row for row in zip(*laid, strict=True)]
            damages: list[Damage] = []
            if self.rates:
                plain = _object(self.columns)

                def value(at: int, chunk: Chunk = chunk, plain: str = plain) -> dict[str, Any]:
                    made: dict[str, Any] = _DECODE(plain % tuple(column[at] for column in chunk))
                    return made

                for damage, outcome in injector.damaged(first, len(rows), value):
                    rows[damage.record - first] = _laid_out(outcome, layout, self.columns)
                    damages.append(damage)
            yield _Texts(first, rows), damages
            first += len(rows)


@dataclass(slots=True)
class _Texts:
    first: int
    rows: list[str | bytes]


_FRAMES = {
    Format.ARRAY: (b"[", b", ", b"]\n"),
    Format.PRETTY: (b"[\n", b",\n", b"\n]\n"),
    Format.NDJSON: (b"", b"\n", b"\n"),
    Format.CONCATENATED: (b"", b"", b""),
    Format.STRINGS: (b"[", b", ", b"]\n"),
    Format.CSV: (b"", b"\n", b"\n"),
}


def _object(columns: Sequence[Column]) -> str:
    pairs = (f'"{column.name}": ' + ('"%s"' if column.quoted else "%s") for column in columns)
    return "{" + ", ".join(pairs) + "}"


def _row_template(columns: Sequence[Column], layout: Format) -> str:
    if layout is Format.CSV:
        return ",".join("%s" for _ in columns)
    text = _object(columns)
    if layout is Format.PRETTY:
        pairs = text[1:-1].split(", ")
        return "  {\n    " + ",\n    ".join(pairs) + "\n  }"
    if layout is Format.STRINGS:
        return '"' + text.replace('"', '\\"') + '"'
    return text


def _cells(chunk: Chunk, columns: Sequence[Column]) -> list[Sequence[object]]:
    """The columns as CSV has them: nothing for null, quotes around what ends in a blank."""
    cells: list[Sequence[Any]] = []
    for values, column in zip(chunk, columns, strict=True):
        if column.padded:
            cells.append([f'"{value}"' if value.endswith(" ") else value for value in values])
        elif not column.quoted and NULL in values:
            cells.append(["" if value == NULL else value for value in values])
        else:
            cells.append(values)
    return cells


def _joined(between: bytes, rows: list[str | bytes]) -> bytes:
    if any(type(row) is bytes for row in rows):
        return between.join(row if isinstance(row, bytes) else row.encode() for row in rows)
    return between.decode().join(rows).encode()  # type: ignore[arg-type]


def _laid_out(outcome: Any, layout: Format, columns: Sequence[Column]) -> bytes:
    """A damaged record: bytes that are no JSON stay what they are, a value is written as its neighbours are."""
    if layout is Format.CSV:
        return outcome if isinstance(outcome, bytes) else csv_row([_cell(outcome, column) for column in columns])
    if layout is Format.PRETTY and not isinstance(outcome, bytes):
        lines = json.dumps(outcome, indent=2, ensure_ascii=False).splitlines()
        return "\n".join("  " + line for line in lines).encode()
    text = outcome if isinstance(outcome, bytes) else json.dumps(outcome, ensure_ascii=False).encode()
    if layout is Format.STRINGS:
        return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'
    return text


def _cell(value: Mapping[str, object], column: Column) -> str:
    found = value.get(column.name)
    return "" if found is None else str(found)


def require_count(records: int) -> None:
    if records < 0:
        raise UsageError(f"invalid number of records: {records}", hint="--records 1000")


def csv_row(cells: Sequence[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue().encode()
