"""Numbers as people and spreadsheets write them into CSV files: one rule for `--numbers` and for every schema."""

from __future__ import annotations

import math
import re
from typing import Any

# Not more digits than a double or a long can hold: what is longer is an identifier, and stays whole as text.
_NUMBER = re.compile(r"-?(?:(?:0|[1-9]\d{0,17})(?:\.\d{0,17})?|\.\d{1,17})(?:[eE][+-]?\d{1,3})?")


def number_in(cell: str) -> int | float | None:
    """`5.1`, `-3`, `.73`, `5.` and `1e3` are numbers; `007`, `+49`, `5 ` and `1e999` are not."""
    if not _NUMBER.fullmatch(cell):
        return None
    if cell.removeprefix("-").isdecimal():
        return int(cell)
    number = float(cell)
    return number if math.isfinite(number) else None


def integral(value: Any) -> Any:
    """The value with 12 in place of 12.0, also inside of it: a whole number fits wherever a fraction does."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: integral(item) for name, item in value.items()}
    return [integral(item) for item in value] if isinstance(value, list) else value
