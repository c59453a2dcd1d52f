"""Rates and dates that are told from counters alone."""

from __future__ import annotations

from headrace.monitor.rates import Rates, Trail


def test_a_rate_is_the_growth_over_the_window() -> None:
    rates = Rates(window_s=10)
    assert rates.add("a", 0, 100) is None
    assert rates.add("a", 2, 300) == 100
    for at in range(4, 31, 2):
        last = rates.add("a", at, 300 + (at - 2) * 7)
    assert last == 7, "what lies before the window does not count"


def test_a_counter_that_shrinks_or_is_unknown_has_no_negative_rate() -> None:
    rates = Rates()
    rates.add("a", 0, 100)
    assert rates.add("a", 1, 40) == 0
    assert rates.add("a", 2, None) is None


def test_counters_that_are_gone_are_forgotten() -> None:
    rates = Rates()
    rates.add("gone", 0, 1)
    rates.keep([])
    assert rates.add("gone", 5, 100) is None


def test_an_offset_is_dated_by_the_ends_around_it() -> None:
    trail = Trail()
    for at, end in ((100, 0), (110, 1000), (120, 1000), (130, 1000), (140, 3000)):
        trail.add(at, end)
    assert trail.written_at(500) == (105, True)
    assert trail.written_at(1000) == (130, True), "nothing was written between 110 and 130"
    assert trail.written_at(2000) == (135, True)
    assert trail.written_at(3000) is None, "not written yet"


def test_what_was_written_before_the_watch_is_at_least_that_old() -> None:
    trail = Trail()
    trail.add(100, 5000)
    trail.add(110, 6000)
    assert trail.written_at(10) == (100, False)


def test_a_trail_is_bounded_and_still_finds_what_is_old() -> None:
    trail = Trail()
    for at in range(10_000):
        trail.add(at, at * 10)
    assert len(trail.times) <= 240
    found = trail.written_at(50_000)
    assert found is not None
    assert abs(found[0] - 5000) < 1


def test_a_topic_that_was_deleted_and_made_anew_begins_anew() -> None:
    trail = Trail()
    trail.add(1, 100)
    trail.add(2, 200)
    trail.add(3, 5)
    assert trail.ends == [5]
