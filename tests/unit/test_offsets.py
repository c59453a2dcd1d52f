"""Places in a log as people write them."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from headrace.errors import UsageError
from headrace.kafka import ResetTo
from headrace.kafka.bounds import Start, Until


def test_starts() -> None:
    assert Start.parse("beginning") == Start("beginning")
    assert Start.parse("1500") == Start("offset", 1500)
    when = Start.parse("2026-05-01T12:00")
    assert when == Start("time", int(datetime(2026, 5, 1, 12).timestamp() * 1000))
    ago = Start.parse("-15min")
    assert abs(ago.value / 1000 - (time.time() - 900)) < 60


def test_untils() -> None:
    assert Until.parse("end") == Until("end")
    assert Until.parse("idle:10s") == Until("idle", 10.0)
    assert Until.parse("count:100") == Until("count", 100)


@pytest.mark.parametrize("text", ["soon", "idle:", "idle:x", "count:x", "12.5.2026"])
def test_what_is_no_place_is_said(text: str) -> None:
    with pytest.raises(UsageError, match="invalid value"):
        Until.parse(text)


@pytest.mark.parametrize(
    "text", ["²", "@99999999999999999999999", "-99999999999999999d", "-" + "9" * 400 + "d", "9" * 5000]
)
def test_numbers_that_kafka_cannot_hold_are_refused(text: str) -> None:
    for parse in (Start.parse, ResetTo.parse, lambda text: Until.parse(f"count:{text}")):
        with pytest.raises(UsageError, match="invalid value"):
            parse(text)
