"""Which shape an input has, judged by its first bytes; text in doubt is `lines`."""

from __future__ import annotations

import csv
import re

from headrace.kafka.write.inputs.batch import Shape
from headrace.kafka.write.inputs.values import Malformed, Unfinished, fault, value_end

HEAD = 256 * 1024
_SAMPLE_LINES = 200
BOM = b"\xef\xbb\xbf"
_NUMBER_CELL = re.compile(r"\s*[-+$€£]?\.?\d")
_SNAKE_CELL = re.compile(r"[a-z][a-z0-9_]*|[A-Z][A-Z0-9_]*")
_NAME_CELL = re.compile(r"[^\W\d][\w .()/%#:-]*")


def detect_shape(head: bytes) -> Shape:
    """The shape that the first bytes of a file (256 KB are plenty) speak for; text in doubt is `lines`."""
    text = head[:HEAD].removeprefix(BOM).lstrip()
    if text[:1] == b"{":
        return _shape_of_objects(text)
    if text[:1] == b"[":
        return _shape_of_array(text)
    return shape_of_table(text)[0]


def _shape_of_objects(text: bytes) -> Shape:
    lines = _sample(text)
    if sum(map(_is_container, lines)) * 2 >= len(lines):
        return Shape.NDJSON
    return Shape.CONCATENATED if re.match(rb'\{\s*["}]', text) else Shape.LINES


def _shape_of_array(text: bytes) -> Shape:
    lines = _sample(text)
    if len(lines) > 1 and all(map(_is_container, lines[:2])):
        return Shape.NDJSON
    if re.match(rb'\[\s*"\s*[{\[]', text):
        return Shape.STRINGS
    if re.match(rb'\[\s*[{"\]]', text):
        return Shape.ARRAY
    # "[INFO] started" and "[2024-01-01] started" are lines of a log.
    try:
        value_end(text, 0, ended=False)
    except Malformed:
        return Shape.LINES
    except Unfinished:
        return Shape.ARRAY
    return Shape.ARRAY if len(lines) == 1 and _is_container(lines[0]) else Shape.LINES


def shape_of_table(text: bytes) -> tuple[Shape, str]:
    """CSV if nearly all rows have as many cells as the first, by the delimiter that makes the most of them."""
    best: tuple[int, Shape, str] = (0, Shape.LINES, ",")
    lines = [line.decode(errors="replace") + "\n" for line in _sample(text)]
    for delimiter in ",;\t|":
        try:
            rows = [row for row in csv.reader(lines, delimiter=delimiter) if row]
        except csv.Error:
            continue
        alike = [row for row in rows if len(row) == len(rows[0])]
        if len(alike) < 2 or len(alike) * 4 < len(rows) * 3 or len(alike[0]) <= best[0]:
            continue
        prose = any(cell.startswith(" ") for row in alike for cell in row[1:])
        if _has_header(alike):
            best = (len(alike[0]), Shape.CSV, delimiter)
        elif len(alike[0]) > 2 and not prose:
            best = (len(alike[0]), Shape.CSV_NO_HEADER, delimiter)
    return best[1:]


def _has_header(rows: list[list[str]]) -> bool:
    """Names over numbers, or three and more names written as a programmer writes them."""
    names = [cell.strip() for cell in rows[0]]
    blank_first = names[1:] if not names[0] else names  # the nameless index column of a data frame
    if len(names) < 2 or len(set(names)) < len(names) or not all(map(_NAME_CELL.fullmatch, blank_first)):
        return False
    columns = zip(*rows[1:], strict=True)
    if any(all(not cell or _NUMBER_CELL.match(cell) for cell in column) and any(column) for column in columns):
        return True
    return len(names) > 2 and all(map(_SNAKE_CELL.fullmatch, rows[0][-len(blank_first) :]))


def _sample(text: bytes) -> list[bytes]:
    """The first lines that are not blank; the last one of a full head may be cut, so it is left out."""
    lines = text.split(b"\n", _SAMPLE_LINES)
    if len(lines) > _SAMPLE_LINES or (len(lines) > 1 and len(text) >= HEAD // 4):
        lines.pop()
    return [line.rstrip(b"\r") for line in lines if line.strip()]


def _is_container(line: bytes) -> bool:
    return line.lstrip()[:1] in (b"{", b"[") and fault(line, parsed=False) is None


def is_telling(head: bytes) -> bool:
    """Whether the shape can be detected: a line, and for an array also what its first element is."""
    text = head.removeprefix(BOM).strip()
    return b"\n" in head and text not in (b"", b"[")
