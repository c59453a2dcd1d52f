"""CSV rows as JSON records."""

from __future__ import annotations

import csv
from collections.abc import Iterator

import msgspec

from headrace.errors import UsageError
from headrace.kafka.write.inputs.batch import InputOptions, Shape
from headrace.kafka.write.inputs.detection import shape_of_table
from headrace.text import number_in


class Table:
    """The rows of a CSV file as JSON: objects if the columns have names, arrays if not."""

    def __init__(self, shape: Shape, options: InputOptions, head: bytes, name: str) -> None:
        self._delimiter = options.delimiter or shape_of_table(head.lstrip())[1]
        self._names = list(options.columns) if options.columns else None
        self._header_is_due = shape is Shape.CSV
        self._file = name
        self._numbers = options.numbers

    def rows(self, lines: list[str], *, final: bool) -> Iterator[tuple[int, int, list[str] | str]]:
        """First line, line after the last, and the cells, or the reason why they cannot be parsed.

        A broken row costs one line: reading starts again on the next, so that a quote that is never
        closed does not swallow the rows behind it (the csv module gives up on it after 128 KB).
        """
        start = 0
        while start < len(lines):
            origin = start
            # Without its line end a quoted cell would lose the breaks inside it.
            reader = csv.reader((line + "\n" for line in lines[origin:]), delimiter=self._delimiter, strict=True)
            try:
                for row in reader:
                    yield start, origin + reader.line_num, row
                    start = origin + reader.line_num
            except csv.Error as error:
                if "unexpected end of data" in str(error) and not final:
                    return
                yield start, start + 1, str(error)
                start += 1

    def value(self, row: list[str]) -> bytes | str | None:
        """The record, or None for a row that is none, or the reason why this one is bad."""
        if not row:
            return None
        if self._header_is_due:
            self._header_is_due = False
            self._names = self._names or self._name_columns(row)
            return None
        if self._names and len(row) != len(self._names):
            return f"it has {len(row)} columns instead of {len(self._names)}"
        cells: list[object] = [_number_or_text(cell) for cell in row] if self._numbers else list(row)
        try:
            return msgspec.json.encode(dict(zip(self._names, cells, strict=True)) if self._names else cells)
        except UnicodeEncodeError:
            return "it is not UTF-8"

    def _name_columns(self, row: list[str]) -> list[str]:
        names = [cell.strip() or f"column_{number}" for number, cell in enumerate(row, 1)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(
                f"{self._file} has two columns of one name: {', '.join(twice)}",
                hint="name the columns yourself",
            )
        return names


def _number_or_text(cell: str) -> int | float | str:
    number = number_in(cell)
    return cell if number is None else number
