"""Numbers as people and spreadsheets write them into CSV files, for `--numbers` and for the fields of a schema."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

# Python's \d takes the digits of every script. More digits than a long can hold make an identifier: it stays text.
_NUMBER = re.compile(r"-?(?:(?:0|[1-9]\d{0,17})(?:\.\d{0,17})?|\.\d{1,17})(?:[eE][+-]?\d{1,3})?", re.ASCII)
# Where a schema wants a number, none is too long.
_ANY_LENGTH = re.compile(r"-?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
# Up to here a float holds every whole number; JSON and Avro go on to 64 bits.
_EXACT = 2**53
_WHOLE = range(-(2**63), 2**64)


def number_in(cell: str) -> int | float | None:
    """`5.1`, `-3`, `.73`, `5.` and `1e3` are numbers; `007`, `+49`, `5 ` and `1e999` are not."""
    if not _NUMBER.fullmatch(cell):
        return None
    if cell.removeprefix("-").isdecimal():
        return int(cell)
    number = float(cell)
    return number if abs(number) < _EXACT else _number(cell)


def field_number(cell: str) -> int | float | None:
    """The same where a number is wanted: it may be of any length, and is an int if it is whole, as `12.0` is."""
    return _number(cell) if _ANY_LENGTH.fullmatch(cell) else None


def _number(cell: str) -> int | float | None:
    """By way of Decimal: as a float, 9007199254740993.0 would be another number."""
    exact = Decimal(cell)
    if _WHOLE.start <= exact < _WHOLE.stop and exact == exact.to_integral_value():
        return int(exact)
    number = float(exact)
    return number if math.isfinite(number) else None


def integral(value: Any) -> Any:
    """The value with 12 in place of 12.0, also inside of it: a whole number fits wherever a fraction does."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: integral(item) for name, item in value.items()}
    return [integral(item) for item in value] if isinstance(value, list) else value
