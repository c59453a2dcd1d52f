"""When records are sent: at a rate, with pauses, flushed now and then, or replayed by the data's own times.

Only arithmetic: it says how many records may go and how long to wait; waiting and sending are `produce`'s.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    """When records are sent. Without wishes: as fast as the cluster takes them, flushed at the end."""

    rate: float | None = None
    pause_s: float = 0.0
    pause_every: tuple[int, float] | None = None
    flush_every: int | None = None
    flush_at_end: bool = True
    #: 1.0: as fast as the data's own timestamps say; 60: an hour in a minute.
    replay: float | None = None

    @property
    def free(self) -> bool:
        return not (self.rate or self.pause_s or self.pause_every or self.flush_every or self.replay)

    def step(self, sent: int) -> int:
        """How many records may go at once after `sent` have gone, so that no pause or flush is stepped over."""
        if self.pause_s or self.replay:
            return 1
        steps = [1 << 30]
        if self.rate:
            steps.append(max(1, int(self.rate / 50)))
        rhythms = (self.flush_every, self.pause_every[0] if self.pause_every else None)
        steps += [every - sent % every for every in rhythms if every]
        return min(steps)


@dataclass
class Clock:
    """Where a paced sending stands: how long to wait before the next records."""

    pace: Pace
    began: float
    first_timestamp_ms: int | None = None

    def before(self, timestamp_ms: int | None, now: float) -> float:
        """Seconds until the record with that timestamp is due, for a replay by the data's own times."""
        if not self.pace.replay or timestamp_ms is None:
            return 0.0
        if self.first_timestamp_ms is None:
            self.first_timestamp_ms = timestamp_ms
        due = (timestamp_ms - self.first_timestamp_ms) / 1000 / self.pace.replay
        return max(0.0, self.began + due - now)

    def after(self, sent: int, now: float) -> float:
        """Seconds to wait after `sent` records in all have gone."""
        wait = self.pace.pause_s
        if self.pace.pause_every and sent % self.pace.pause_every[0] == 0:
            wait += self.pace.pause_every[1]
        if self.pace.rate:
            wait = max(wait, self.began + sent / self.pace.rate - now)
        return wait
