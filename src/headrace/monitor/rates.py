"""What has to be remembered from one look to the next: rates, and when an offset was written.

A rate is the difference over a short window, so that it neither flickers nor lags far behind. When a record was
written is found without reading it: the ends of its partition are remembered with their times, and the first end behind
the offset dates it. Everything is bounded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Hashable, Iterable

_WINDOW_S = 10.0
_MOST_POINTS = 240


class Rates:
    """Growth per second of any number of counters."""

    def __init__(self, window_s: float = _WINDOW_S) -> None:
        self.window_s = window_s
        self._seen: dict[Hashable, deque[tuple[float, float]]] = {}

    def add(self, name: Hashable, at: float, count: float | None) -> float | None:
        """The counter stands at `count`; its rate, or None until it was seen twice. A shrinking counter has rate 0."""
        if count is None:
            return None
        seen = self._seen.setdefault(name, deque())
        seen.append((at, count))
        # The last point before the window stays: without it a slow pace would leave nothing to compare with.
        while len(seen) > 2 and seen[1][0] <= at - self.window_s:
            seen.popleft()
        began, first = seen[0]
        return max(0.0, (count - first) / (at - began)) if at > began else None

    def keep(self, names: Iterable[Hashable]) -> None:
        """The counters of other names are forgotten."""
        wanted = set(names)
        for name in [name for name in self._seen if name not in wanted]:
            del self._seen[name]


class Trail:
    """The ends of one partition over time."""

    __slots__ = ("ends", "times")

    def __init__(self) -> None:
        self.times: list[float] = []
        self.ends: list[int] = []

    def add(self, at: float, end: int) -> None:
        times, ends = self.times, self.ends
        if ends and end < ends[-1]:  # deleted and created anew
            times.clear()
            ends.clear()
        if len(ends) > 1 and ends[-1] == ends[-2] == end:
            times[-1] = at
            return
        times.append(at)
        ends.append(end)
        if len(times) > _MOST_POINTS:
            # Of the older half every other point goes: what is long ago need not be known to the second.
            half = _MOST_POINTS // 2
            self.times = times[:half:2] + times[half:]
            self.ends = ends[:half:2] + ends[half:]

    def written_at(self, offset: int) -> tuple[float, bool] | None:
        """When the record of that offset was written, and whether it was at that time or before; None: not yet."""
        at = bisect_right(self.ends, offset)
        if at == len(self.ends):
            return None
        if at == 0:
            return self.times[0], False
        before, after = self.ends[at - 1], self.ends[at]
        share = (offset - before) / (after - before)
        return self.times[at - 1] + share * (self.times[at] - self.times[at - 1]), True
