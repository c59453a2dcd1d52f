"""Lengths of time, points in time, sizes, counts and numbers as people write them: parsed and printed here only.

Output always has its unit, and what is not known is a dash. Nothing here knows Kafka, Spark, a terminal or a page.
"""

from __future__ import annotations

import base64
import math
import re
import time
from datetime import datetime
from decimal import Decimal

from headrace.errors import UsageError

_SECONDS = {
    "ms": 0.001, "millisecond": 0.001, "s": 1, "second": 1, "m": 60, "min": 60, "minute": 60,
    "h": 3600, "hour": 3600, "d": 86400, "day": 86400, "week": 604800,
}  # fmt: skip
_SPAN = re.compile(rf"(\d+(?:\.\d+)?)\s*(?:({'|'.join(_SECONDS)})s?)?")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?")
# What Kafka's numbers of 64 bits can hold.
_FARTHEST_MS = 2**62

# Python's \d takes the digits of every script. More digits than a long can hold make an identifier: it stays text.
_NUMBER = re.compile(r"-?(?:(?:0|[1-9]\d{0,17})(?:\.\d{0,17})?|\.\d{1,17})(?:[eE][+-]?\d{1,3})?", re.ASCII)
# Where a schema wants a number, none is too long.
_ANY_LENGTH = re.compile(r"-?(?:(?:0|[1-9]\d*)(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
# Up to here a float holds every whole number; JSON and Avro go on to 64 bits.
_EXACT = 2**53
_WHOLE = range(-(2**63), 2**64)


# -- lengths of time, points in time -------------------------------------------------------------------------------


def parse_span(text: str, *, unit: str = "s") -> float:
    """`250ms`, `2s`, `10 minutes`, `1h` in seconds. A number alone is of that unit; with no unit it is an error."""
    found = _SPAN.fullmatch(text.strip())
    named = found and (found[2] or unit)
    if not found or not named:
        raise UsageError(f"invalid value: {text!r} is not a length of time", hint="250ms, 2s, 10min or 1h")
    return float(found[1]) * _SECONDS[named]


def parse_time(text: str, possible: str = "2026-05-01T12:00, or -15min") -> int:
    """Milliseconds since 1970: of ISO 8601 (local time unless it says otherwise), of `-15min` before now.

    An error lists what is `possible` where the text stands.
    """
    try:
        found = _milliseconds(text)
    except (ValueError, OverflowError):
        found = None
    if found is None or abs(found) > _FARTHEST_MS:
        raise UsageError(f"invalid value: {text[:60]!r}", hint=possible)
    return found


def _milliseconds(text: str) -> int:
    if text.startswith("-"):
        return int((time.time() - parse_span(text[1:])) * 1000)
    if re.fullmatch(r"@?\d{12,}", text):
        return int(text.removeprefix("@"))
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def duration(seconds: float | None, *, unknown: str = "-") -> str:
    """`12 s`, `3 min`, `4 h 10 min`, `2 d 3 h`."""
    if seconds is None:
        return unknown
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if hours < 1:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if days < 1 else f"{days} d {hours % 24} h"


# -- sizes and counts -----------------------------------------------------------------------------------------------


def parse_size(text: str) -> int:
    """`2GB`, `500 MB`, `1073741824` in bytes."""
    found = _SIZE.fullmatch(text.strip().lower())
    if not found:
        raise ValueError("a size is expected, like 500MB or 2GB")
    return int(float(found[1]) * 1000 ** " kmgt".index(found[2] or " "))


def size(count: float | None, *, unknown: str = "-") -> str:
    """`12.3 MB`."""
    if count is None:
        return unknown
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def thousands(count: float | None, *, unknown: str = "-") -> str:
    """`1,234`."""
    return unknown if count is None else f"{round(count):,}"


def plural(count: int, noun: str) -> str:
    """`1 record`, `1,000 records`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def text_or_base64(data: bytes | None) -> str | dict[str, str] | None:
    """Bytes as JSON can hold them without loss."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def short(text: str, limit: int = 60) -> str:
    """The text, cut if it is longer than so many characters."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


# -- numbers in CSV files -------------------------------------------------------------------------------------------


def number_in(cell: str) -> int | float | None:
    """`5.1`, `-3`, `.73`, `5.` and `1e3` are numbers; `007`, `+49`, `5 ` and `1e999` are not."""
    if not _NUMBER.fullmatch(cell):
        return None
    if cell.removeprefix("-").isdecimal():
        return int(cell)
    found = float(cell)
    return found if abs(found) < _EXACT else _exact(cell)


def field_number(cell: str) -> int | float | None:
    """The same where a number is wanted: it may be of any length, and is an int if it is whole, as `12.0` is."""
    return _exact(cell) if _ANY_LENGTH.fullmatch(cell) else None


def _exact(cell: str) -> int | float | None:
    """By way of Decimal: as a float, 9007199254740993.0 would be another number."""
    exact = Decimal(cell)
    if _WHOLE.start <= exact < _WHOLE.stop and exact == exact.to_integral_value():
        return int(exact)
    found = float(exact)
    return found if math.isfinite(found) else None


def integral(value: object) -> object:
    """The value with 12 in place of 12.0, also inside of it: a whole number fits wherever a fraction does."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: integral(item) for name, item in value.items()}
    return [integral(item) for item in value] if isinstance(value, list) else value
