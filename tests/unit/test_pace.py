"""When records are sent."""

from __future__ import annotations

import pytest

from headrace.kafka.write.pace import Clock, Pace


def test_without_wishes_everything_goes_at_once() -> None:
    assert Pace().free
    assert Pace().step(0) > 1_000_000


def test_no_flush_and_no_pause_is_stepped_over() -> None:
    pace = Pace(pause_every=(5, 2.0), flush_every=15)
    steps, sent = [], 0
    while sent < 30:
        step = min(pace.step(sent), 30 - sent)
        steps.append(step)
        sent += step
    assert steps == [5, 5, 5, 5, 5, 5]


def test_pause_comes_after_every_fifth() -> None:
    clock = Clock(Pace(pause_every=(5, 2.0)), began=100.0)
    assert [clock.after(sent, 100.0) for sent in (4, 5, 6, 10)] == [0.0, 2.0, 0.0, 2.0]


def test_rate_waits_for_the_time_that_is_due() -> None:
    clock = Clock(Pace(rate=100), began=10.0)
    assert clock.after(50, now=10.2) == pytest.approx(0.3)
    assert clock.after(50, now=11.0) <= 0


def test_replay_keeps_the_distances_of_the_data() -> None:
    clock = Clock(Pace(replay=60), began=0.0)
    assert clock.before(1_000_000, now=0.0) == 0.0
    assert clock.before(1_000_000 + 120_000, now=0.5) == 1.5
    assert clock.before(1_000_000 + 60_000, now=5.0) == 0.0
