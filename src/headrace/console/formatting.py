"""Numbers, sizes and times as people read them, always with their unit. What is not known is a dash."""

from __future__ import annotations

import time
from datetime import datetime

from headrace import text

DASH = "\N{EN DASH}"
plural = text.plural


def count(value: float | None) -> str:
    """`1,234`."""
    return text.thousands(value, unknown=DASH)


def short_count(value: float | None) -> str:
    """`1,234`, `56.7 k`, `8.9 M`: three digits are enough for a glance."""
    if value is None:
        return DASH
    if abs(value) < 10_000:
        return f"{round(value):,}"
    for unit in ("k", "M", "G", "T"):
        value /= 1000
        if abs(value) < 1000:
            return f"{value:.3g} {unit}" if abs(value) < 100 else f"{value:.0f} {unit}"
    return f"{value:.0f} P"


def size(value: float | None) -> str:
    """`12.3 MB`."""
    return text.size(value, unknown=DASH)


def rate(value: float | None) -> str:
    """`1,234 /s`; slow ones with a digit behind the point."""
    if value is None:
        return DASH
    return f"{value:.1f} /s" if 0 < value < 10 else f"{short_count(value)} /s"


def byte_rate(value: float | None) -> str:
    """`12.3 MB/s`."""
    return DASH if value is None else f"{size(value)}/s"


def span(seconds: float | None) -> str:
    """`850 ms`, `12 s`, `3 min`, `4 h 10 min`."""
    if seconds is None or seconds >= 10 or not seconds:
        return text.duration(seconds, unknown=DASH)
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def milliseconds(value: float | None) -> str:
    """A span of so many milliseconds."""
    return span(None if value is None else value / 1000)


def clock(at: float) -> str:
    """`14:03:07`, with the day if it is another one."""
    moment = datetime.fromtimestamp(at)
    today = moment.date() == datetime.now().date()
    return moment.strftime("%H:%M:%S" if today else "%d %b %H:%M:%S")


def zone(at: float) -> str:
    """`UTC`, `CEST`: the time zone in which times are shown here."""
    return datetime.fromtimestamp(at).astimezone().tzname() or "local time"


def exact(at: float) -> str:
    """`2026-05-01 14:03:07 CEST (+02:00)`."""
    moment = datetime.fromtimestamp(at).astimezone()
    offset = moment.strftime("%z")
    return f"{moment:%Y-%m-%d %H:%M:%S} {zone(at)} ({offset[:3]}:{offset[3:]})"


def moment(timestamp_ms: int, *, with_zone: bool = False) -> str:
    """`2026-05-01 14:03:07.123`, local time; `CEST` behind it if wanted."""
    if timestamp_ms < 0:
        return DASH
    try:
        at = datetime.fromtimestamp(timestamp_ms / 1000).astimezone()
        return f"{at:%Y-%m-%d %H:%M:%S}.{timestamp_ms % 1000:03d}" + (f" {at.tzname()}" if with_zone else "")
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"


def short_moment(timestamp_ms: int) -> str:
    """The same, without the day if it is today."""
    whole = moment(timestamp_ms)
    today = datetime.now().strftime("%Y-%m-%d ")
    return whole.removeprefix(today)


def ago(at: float) -> str:
    """`12 s ago`."""
    return f"{span(max(0.0, time.time() - at))} ago"


def setting(name: str, value: str | None) -> str:
    """A Kafka setting with what it means: `604800000 (7 d 0 h)`, `-1 (no limit)`."""
    if value is None:
        return DASH
    if value.lstrip("-").isdecimal():
        number = int(value)
        if number == -1 and name.startswith("retention"):
            return "-1 (no limit)"
        if name.endswith(".ms") and number >= 1000:
            return f"{value} (for ever)" if number > 1 << 50 else f"{value} ({span(number / 1000)})"
        if name.endswith(".bytes") and number >= 1000:
            return f"{value} (no limit)" if number > 1 << 60 else f"{value} ({size(number)})"
    return value
