"""Lengths of time, sizes and counts as people write and read them."""

from __future__ import annotations

import pytest

from headrace.errors import UsageError
from headrace.text import duration, parse_size, parse_span, plural, short, size, thousands


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("2s", 2), ("10min", 600), ("1h", 3600), ("1.5", 1.5), ("10 minutes", 600), (" 1 hour ", 3600),
     ("2 weeks", 1_209_600), ("5m", 300)],
)  # fmt: skip
def test_spans(text: str, seconds: float) -> None:
    assert parse_span(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "5 parsecs", "-5s", "1,5s"])
def test_what_is_not_a_length_of_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a length of time"):
        parse_span(text)


def test_where_a_unit_is_required_a_number_alone_is_refused() -> None:
    assert parse_span("5 seconds", unit="") == 5
    with pytest.raises(UsageError, match="'5' is not a length of time"):
        parse_span("5", unit="")


def test_durations() -> None:
    assert [duration(s) for s in (None, 0, 59.4, 600, 15_000, 180_000)] == [
        "-", "0 s", "59 s", "10 min", "4 h 10 min", "2 d 2 h",
    ]  # fmt: skip


def test_sizes() -> None:
    assert [size(n) for n in (None, 0, 999, 12_345, 12_345_678, 5 * 10**12)] == [
        "-", "0 B", "999 B", "12.3 kB", "12.3 MB", "5.0 TB",
    ]  # fmt: skip
    assert [parse_size(text) for text in ("2GB", "500 MB", "17")] == [2 * 10**9, 5 * 10**8, 17]


def test_counts() -> None:
    assert plural(1, "record") == "1 record"
    assert plural(1000, "record") == "1,000 records"
    assert (thousands(None), thousands(1234)) == ("-", "1,234")
    assert (short("abcd", 4), short("abcde", 4)) == ("abcd", "abc…")
