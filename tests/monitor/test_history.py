"""The past in a file: what is kept, how coarse, for how long, and that it survives."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.monitor.events import Event
from headrace.monitor.history import History, Point, points_as_json

NOW = 1_800_000_000.0
KEY = ("topic", "orders", "in")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., History]]:
    made: list[History] = []

    def open_history(**settings: int) -> History:
        made.append(History(tmp_path / "history.sqlite", **settings))
        return made[-1]

    yield open_history
    for history in made:
        try:
            history.close()
        except sqlite3.ProgrammingError:
            continue  # the test has closed it


def values(points: list[Point]) -> list[float | None]:
    return [value for _, value in points]


def fill(history: History, first: float, last: float, *, every_s: float = 2, key: tuple[str, str, str] = KEY) -> None:
    at = first
    while at <= last:
        history.record(at, {key: at % 100})
        at += every_s


def test_what_stands_still_costs_two_points(make: Callable[..., History], tmp_path: Path) -> None:
    history = make()
    for second in range(1000):
        history.record(NOW + second, {KEY: 7.0})
    history.record(NOW + 1000, {KEY: 8.0})
    with sqlite3.connect(tmp_path / "history.sqlite") as db:
        stored = db.execute("select at, value from points order by at").fetchall()
    db.close()
    assert stored == [(NOW * 1000, 7.0), ((NOW + 999) * 1000, 7.0), ((NOW + 1000) * 1000, 8.0)]


def test_a_series_reaches_to_the_last_look(make: Callable[..., History]) -> None:
    history = make()
    history.record(NOW, {KEY: 7.0})
    history.record(NOW + 60, {KEY: 7.0})
    assert history.series(*KEY, since=NOW)[-1] == (int((NOW + 60) * 1000), 7.0)
    assert history.series(*KEY, since=NOW + 30) == [(int((NOW + 30) * 1000), 7.0), (int((NOW + 60) * 1000), 7.0)]


def test_the_time_without_a_watch_is_a_gap(make: Callable[..., History]) -> None:
    history = make()
    history.record(NOW, {KEY: 7.0})
    history.record(NOW + 10, {KEY: 7.0})
    history.close()
    again = make()
    again.record(NOW + 500, {KEY: 9.0})
    again.record(NOW + 510, {KEY: 9.0})
    assert values(again.series(*KEY, since=NOW - 1)) == [7.0, 7.0, None, 9.0, 9.0]


def test_the_older_the_coarser(make: Callable[..., History]) -> None:
    history = make()
    fill(history, NOW, NOW + 2 * 3600)
    found = history.series(*KEY, since=NOW, most=100_000)
    young = [at for at, _ in found if at > (NOW + 2 * 3600 - 800) * 1000]
    old = [at for at, _ in found if at < (NOW + 3600) * 1000]
    assert len(young) > 390, "the last quarter of an hour to the second"
    assert 350 <= len(old) <= 380, "then one point in ten seconds"


def test_of_a_lag_the_peak_is_kept_and_of_a_rate_the_mean(make: Callable[..., History]) -> None:
    history = make()
    lag, rate = ("group", "g", "lag"), ("topic", "t", "in")
    for second in range(0, 3600, 2):
        spike = second == 1000
        history.record(NOW + second, {lag: 5000.0 if spike else 1.0, rate: 100.0 if (second // 2) % 2 else 0.0})
    old = NOW + 1500
    assert max(v or 0 for at, v in history.series(*lag, since=NOW) if at < old * 1000) == 5000
    means = [v or 0 for at, v in history.series(*rate, since=NOW, most=5000) if (NOW + 20) * 1000 < at < old * 1000]
    assert 40 < sum(means) / len(means) < 60


@pytest.mark.parametrize("metric", ["lag", "in"])
def test_what_holds_after_a_peak_is_not_the_peak(make: Callable[..., History], metric: str) -> None:
    history, key = make(), ("group", "g", metric)
    for second, value in ((0, 5.0), (2, 900.0), (4, 0.0), (1800, 0.0), (1900, 0.0), (2000, 3.0)):
        history.record(NOW + second, {key: value})
    for most in (400, 3):
        points = history.series(*key, since=NOW, most=most)
        assert max(value or 0 for _, value in points) > 100
        assert {value for at, value in points if NOW + 4 <= at / 1000 < NOW + 2000} == {0.0}


def test_the_file_stays_below_its_limit(make: Callable[..., History]) -> None:
    history = make(most_bytes=400_000)
    for second in range(0, 1200, 2):
        history.record(NOW + second, {("topic", f"t{n}", "in"): float(second * n) for n in range(60)})
    assert history.size_bytes < 500_000
    assert history.series("topic", "t7", "in", since=NOW)[-1][1] == 1198 * 7, "the newest is there"


def test_readers_and_the_writer_do_not_wait_for_each_other(make: Callable[..., History]) -> None:
    history = make()
    history.record(NOW, {KEY: 1.0})
    history.add_events([Event(at=NOW, kind="topic", level="info", text="made")])
    with history._lock, history._transaction(), ThreadPoolExecutor(1) as thread:
        found = thread.submit(
            lambda: (history.series(*KEY, since=0), history.events(), history.ownership("g", since=0))
        )
        series, events, owned = found.result(30)
    assert [value for _, value in series] == [1.0]
    assert [event.text for event in events] == ["made"]
    assert owned == []


def test_no_event_loop_reads_the_past(make: Callable[..., History]) -> None:
    history = make()

    async def page() -> None:
        history.events()

    with pytest.raises(RuntimeError, match="in a thread"):
        asyncio.run(page())


def test_a_damaged_file_is_put_aside(make: Callable[..., History], tmp_path: Path) -> None:
    (tmp_path / "history.sqlite").write_bytes(b"this is no database" * 1000)
    history = make()
    assert history.damaged
    history.record(NOW, {KEY: 1.0})
    assert values(history.series(*KEY, since=NOW)) == [1.0]
    assert (tmp_path / "damaged-history.sqlite").exists()


def test_only_its_owner_can_read_the_file(make: Callable[..., History], tmp_path: Path) -> None:
    make()
    assert (tmp_path / "history.sqlite").stat().st_mode & 0o077 == 0


def test_events_are_found_by_time_topic_and_kind(make: Callable[..., History]) -> None:
    history = make()
    history.add_events(
        [
            Event(at=NOW, kind="broker", level="error", text="broker 2 is down"),
            Event(at=NOW + 1, kind="leader", level="warning", text="orders: leader", topic="orders", minor=True),
            Event(at=NOW + 2, kind="group", level="info", text="group g is new", group="g"),
        ]
    )
    assert [e.text for e in history.events()] == ["group g is new", "broker 2 is down"]
    assert [e.text for e in history.events(topic="orders")] == ["orders: leader"]
    assert [e.text for e in history.events(group="g")] == ["group g is new"]
    assert [e.text for e in history.events(kinds=["broker"])] == ["broker 2 is down"]
    assert history.events(since=NOW + 3) == []


def test_ownership_is_a_time_with_an_end(make: Callable[..., History]) -> None:
    history = make()
    history.own(NOW, "g", {("t", 0): ("m-1", "one"), ("t", 1): ("m-1", "one")})
    history.own(NOW + 5, "g", {("t", 0): ("m-1", "one"), ("t", 1): ("m-2", "two")})
    found = [(o.partition, o.client_id, o.since, o.until) for o in history.ownership("g", since=NOW)]
    assert found == [(0, "one", NOW, None), (1, "one", NOW, NOW + 5), (1, "two", NOW + 5, None)]


def test_points_as_json_name_their_time() -> None:
    assert points_as_json([(0, 5.0)]) == [{"timestamp": "1970-01-01T00:00:00.000+00:00", "value": 5.0}]
