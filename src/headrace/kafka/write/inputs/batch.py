"""What reading an input gives: batches of records, bad pieces, and the places where they stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

import msgspec

from headrace.errors import Failed


class Shape(StrEnum):
    """How records lie in a file."""

    LINES = "lines"
    NDJSON = "ndjson"
    ARRAY = "array"
    CONCATENATED = "concatenated"
    STRINGS = "strings"
    CSV = "csv"
    CSV_NO_HEADER = "csv-no-header"


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the input: a line, counted from 1, or a byte, counted from 0."""

    unit: Literal["line", "byte"]
    number: int

    def __str__(self) -> str:
        return f"{self.unit} {self.number}"


@dataclass(frozen=True, slots=True)
class InputBatch:
    """Records in their order, the place of the first, and their parsed form if that was asked for.

    `text` says that every field is text because the input knows nothing else, as CSV does.
    """

    values: list[bytes]
    first: Place
    objects: list[Any] | None = None
    text: bool = False

    def part(self, begin: int, end: int) -> InputBatch:
        """The records from `begin` up to `end`; their place is counted as if a record were a line."""
        objects = self.objects[begin:end] if self.objects is not None else None
        first = Place("line", self.first.number + begin) if self.first.unit == "line" else self.first
        return InputBatch(self.values[begin:end], first, objects, self.text)


@dataclass(frozen=True, slots=True)
class BadPiece:
    """Bytes that make no record, where they begin, and why they were refused."""

    data: bytes
    place: Place
    reason: str


@dataclass(frozen=True, slots=True)
class InputOptions:
    """How to read. Without a shape it is detected; `columns` names the columns of a CSV file."""

    shape: Shape | None = None
    parsed: bool = False
    on_bad: Literal["stop", "skip", "set-aside"] = "stop"
    set_aside: Callable[[BadPiece], None] | None = None
    columns: Sequence[str] | None = None
    delimiter: str | None = None
    #: CSV cells that are numbers become numbers; without it every cell is text, as it was written.
    numbers: bool = False
    #: So many records at the beginning are left out: those that an earlier run has dealt with.
    skip: int = 0


def field(record: object, path: str) -> Any:
    """The value at a dotted path such as `trip.stops.0`; a name that itself holds dots is found first."""
    if isinstance(record, dict) and path in record:
        return record[path]
    here = record
    for name in path.split("."):
        if isinstance(here, dict) and name in here:
            here = here[name]
        elif isinstance(here, list) and name.isdecimal() and int(name) < len(here):
            here = here[int(name)]
        else:
            names = ", ".join(map(str, record)) if isinstance(record, dict) else type(record).__name__
            raise Failed(f"the record has no field {path}", why=f"it has: {names[:200]}")
    return here


def key_bytes(value: object) -> bytes | None:
    """A field as a record's key: text as UTF-8, null as no key, anything else as its JSON text."""
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)
