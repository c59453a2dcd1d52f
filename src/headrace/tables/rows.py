"""Rows of Arrow tables as JSON can hold them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

from headrace.text import plural, text_or_base64


def plain_rows(found: Any) -> Iterator[dict[str, Any]]:
    """The rows of an Arrow table or batch, with values that JSON can hold.

    Times are ISO 8601, in UTC if they have a zone; decimals are text; bytes are text or `{"base64": …}`.
    """
    columns = [_plain_column(found.column(at)) for at in range(found.num_columns)]
    for values in zip(*columns, strict=True) if columns else ():
        yield dict(zip(found.schema.names, values, strict=True))


def _plain_column(column: Any) -> list[object]:
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        # By Arrow, because Python knows no year beyond 9999.
        return [_iso(text) for text in column.cast(pa.string()).to_pylist()]
    return [_plain(value) for value in column.to_pylist()]


def _iso(text: str | None) -> str | None:
    """`2020-09-10T06:00:00Z`, with a fraction only if there is one."""
    if text is None:
        return None
    whole, dot, fraction = text.replace(" ", "T").partition(".")
    zone = "Z" if fraction.endswith("Z") else ""
    fraction = fraction.rstrip("Z").rstrip("0")
    return f"{whole}{dot if fraction else ''}{fraction}{zone}"


def _plain(value: object) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(pair, tuple) for pair in value):  # a map
            return {str(_plain(key)): _plain(inner) for key, inner in value}
        return [_plain(inner) for inner in value]
    if isinstance(value, bytes):
        return text_or_base64(value)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, tuple) and len(value) == 3:
        return _interval(*value)
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    if isinstance(value, Decimal) or (value is not None and not isinstance(value, str | int | float | bool)):
        return str(value)
    return value


def _interval(months: int, days: int, nanoseconds: int) -> str:
    """`1 day 02:03:04.5`, as SQL writes an interval."""
    parts = [plural(count, noun) for count, noun in ((months, "month"), (days, "day")) if count]
    seconds, fraction = divmod(abs(nanoseconds), 1_000_000_000)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}" + f".{fraction:09}".rstrip("0").rstrip(
        "."
    )
    return " ".join([*parts, ("-" if nanoseconds < 0 else "") + clock] if nanoseconds or not parts else parts)
