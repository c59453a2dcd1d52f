"""The one way of waiting: ask until it is so, or until the time is up."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class NotYet(AssertionError):
    """The condition did not come true in time."""


def eventually(condition: Callable[[], T | None], within_s: float, *, every_s: float = 0.05) -> T:
    """The first true result of `condition`. Asks at least once; raises NotYet after `within_s`.

    An exception from `condition` is not waited out: it is a fault of the question, not an answer to it.
    """
    deadline = time.monotonic() + within_s
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() >= deadline:
            what = getattr(condition, "__name__", "condition")
            raise NotYet(f"{what} was not true within {within_s:g} s (last answer: {result!r})")
        time.sleep(every_s)
