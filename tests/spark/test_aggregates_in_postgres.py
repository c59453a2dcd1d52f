"""Aggregates that change as late events come, in Delta and in PostgreSQL, against a computation in plain Python."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from headrace.errors import ConfigError, Failed
from headrace.pipeline.declare.reading import read
from headrace.pipeline.spark.sinks import postgres as postgres_sink
from tests.postgres import Server
from tests.spark.pipelines import Workshop, send, totals

Topic = Callable[..., str]
Event = dict[str, Any]

_START = datetime(2026, 5, 1, 12, tzinfo=UTC)
_ZONES = {1: "Queens", 2: "Bronx", 3: "Queens"}
_GAP, _MINUTE = timedelta(minutes=5), timedelta(minutes=1)


def _into(table: str, key: str, aggregate: str) -> str:
    return (
        f'[[pipelines.p.into]]\npostgres = "<url>"\ntable = "<name>_{table}"\nkey = [{key}]\n'
        f'password_file = "<password>"\naggregate = {{ {aggregate} }}\n'
    )


_MONEY = (
    'values = { rides = "count(*)", money = "sum(total)", mean = "avg(total)", spread = "max(total) - min(total)" }'
)
_KEY = '"borough", "window_start"'
_RIDES = f"""
[pipelines.p]
from = "<topic>"
decode = {{ json = "zone int, total int, at timestamp" }}
event_time = "at"
[pipelines.p.lookup]
table = "zones.csv"
schema = "id int, borough string"
on = {{ zone = "id" }}
select = {{ borough = "borough" }}
[[pipelines.p.into]]
delta = "tables/rides"
[[pipelines.p.into]]
delta = "tables/tumbling"
aggregate = {{ by = ["borough"], window = "10 minutes", {_MONEY} }}
{_into("tumbling", _KEY, f'by = ["borough"], window = "10 minutes", {_MONEY}')}
{_into("sliding", _KEY, f'by = ["borough"], window = "10 minutes", slide = "5 minutes", {_MONEY}')}
{_into("sessions", _KEY, f'by = ["borough"], session = "5 minutes", mode = "recompute", {_MONEY}')}
{_into("ranks", '"borough", "at", "total"', 'by = ["borough"], mode = "recompute", values = { place = "rank() over (partition by borough order by at, total)" }')}
"""  # noqa: E501


def _events(rng: random.Random, count: int) -> list[Event]:
    """Rides of two hours in no order; none has the time and the money of another."""
    chosen = rng.sample(range(120 * 6), count)
    return [
        {"zone": rng.choice([1, 2, 3]), "total": 1 + at % 97, "at": _START + timedelta(seconds=10 * at)}
        for at in chosen
    ]


def _said(events: list[Event]) -> list[dict[str, Any]]:
    return [{**event, "at": event["at"].isoformat()} for event in events]


def _windows(at: datetime, size: int, slide: int) -> list[tuple[datetime, datetime]]:
    first = at - timedelta(minutes=size)
    starts = (_START + n * slide * _MINUTE for n in range(-size // slide - 1, 200))
    return [(start, start + timedelta(minutes=size)) for start in starts if first < start <= at]


def _grouped(events: list[Event], size: int, slide: int) -> set[tuple[Any, ...]]:
    groups: dict[Any, list[int]] = defaultdict(list)
    for event in events:
        for window in _windows(event["at"], size, slide):
            groups[_ZONES[event["zone"]], *window].append(event["total"])
    return {_row(key, totals) for key, totals in groups.items()}


def _sessions(events: list[Event]) -> set[tuple[Any, ...]]:
    """To Spark, an event that comes exactly at the end of a session belongs to it."""
    found: dict[str, list[list[Event]]] = defaultdict(list)
    for event in sorted(events, key=lambda event: event["at"]):
        sessions = found[_ZONES[event["zone"]]]
        if not sessions or event["at"] > sessions[-1][-1]["at"] + _GAP:
            sessions.append([])
        sessions[-1].append(event)
    return {
        _row((borough, some[0]["at"], some[-1]["at"] + _GAP), [event["total"] for event in some])
        for borough, sessions in found.items() for some in sessions
    }  # fmt: skip


def _row(key: Any, found: list[int]) -> tuple[Any, ...]:
    return (*key, len(found), sum(found), round(sum(found) / len(found), 9), max(found) - min(found))


def _rounded(rows: list[tuple[Any, ...]]) -> set[tuple[Any, ...]]:
    rounded = {tuple(round(value, 9) if isinstance(value, float) else value for value in row) for row in rows}
    assert len(rounded) == len(rows)
    return rounded


def _compare(shop: Workshop, postgres: Server, events: list[Event]) -> None:
    def found(table: str) -> set[tuple[Any, ...]]:
        return _rounded(postgres.rows(f"select * from rides_{table}"))

    tumbling = _grouped(events, 10, 10)
    assert found("tumbling") == tumbling
    delta = [
        tuple(
            value.replace(tzinfo=UTC) if isinstance(value, datetime) else value
            for name, value in row.items()
            if name[0] != "_"
        )
        for row in shop.rows("tables/tumbling")
    ]
    assert _rounded(delta) == tumbling
    assert found("sliding") == _grouped(events, 10, 5)
    assert found("sessions") == _sessions(events)
    ranked: dict[str, list[Event]] = defaultdict(list)
    for event in sorted(events, key=lambda event: (event["at"], event["total"])):
        ranked[_ZONES[event["zone"]]].append(event)
    places = {(b, e["at"], e["total"], place) for b, some in ranked.items() for place, e in enumerate(some, 1)}
    assert {tuple(row) for row in postgres.rows("select borough, at, total, place from rides_ranks")} == places


def test_windows_of_late_events_are_upserted(
    shop: Workshop, postgres: Server, headrace_topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, rng = headrace_topic(partitions=2), random.Random(5)
    (shop.folder / "zones.csv").write_text("id,borough\n1,Queens\n2,Bronx\n3,Queens\n9,\n")
    shop.declare(_RIDES, topic=topic, url=postgres.url(), password=str(postgres.password_file), name="rides")
    events = _events(rng, 130)
    # A row without a borough has no key; a window at the end of all times does not fit.
    wrong = [{"zone": 9, "total": 1, "at": _START.isoformat()}, {"zone": 1, "total": 1, "at": "+60000-01-01T00:00:00Z"}]
    send(shop.cluster, topic, [*_said(events[:90]), *wrong])
    assert totals(shop.run()) == {"written": 90, "dead": 2}
    _compare(shop, postgres, events[:90])
    reasons = sorted(letter["reason"] for letter in shop.dead())
    assert [reason.partition(": ")[2] for reason in reasons] == [
        "at is outside of the years 1 to 9999", "borough is null: it belongs to the key"
    ]  # fmt: skip

    # A batch that breaks off between two tables is repeated: what was merged is not merged twice.
    send(shop.cluster, topic, _said(events[90:]))
    moved = postgres_sink._Attempt._move

    def broken(attempt: Any, copied: Any) -> Any:
        if attempt.sink.target == "rides_sliding":
            raise Failed("the test breaks off here")
        return moved(attempt, copied)

    with monkeypatch.context() as patched:
        patched.setattr(postgres_sink._Attempt, "_move", broken)
        with pytest.raises(Failed, match="breaks off"):
            shop.run()
    assert totals(shop.run()) == {"written": 40}
    _compare(shop, postgres, events)


_STREAMED = f"""
[pipelines.p]
from = "<topic>"
decode = {{ json = "borough string, total int, at timestamp" }}
event_time = "at"
watermark = "20 minutes"
{_into("<kind>", _KEY, f'by = ["borough"], <window>, mode = "watermark", {_MONEY}')}
"""


@pytest.mark.parametrize(
    ("kind", "window"),
    [
        ("streamed_sessions", 'session = "5 minutes"'),
        ("streamed_sliding", 'window = "10 minutes", slide = "5 minutes"'),
    ],
)
def test_finished_sessions_and_sliding_windows_are_upserted(
    shop: Workshop, postgres: Server, headrace_topic: Topic, kind: str, window: str
) -> None:
    topic = headrace_topic()
    names = {"topic": topic, "url": postgres.url(), "password": str(postgres.password_file), "name": "rides"}
    shop.declare(_STREAMED.replace("<kind>", kind).replace("<window>", window), **names)
    events = _events(random.Random(6), 120)
    first, last = (
        [e for e in events if e["at"] < _START + 60 * _MINUTE],
        [e for e in events if e["at"] >= _START + 60 * _MINUTE],
    )

    def sent(some: list[Event]) -> list[dict[str, Any]]:
        return [{"borough": _ZONES[e["zone"]], "total": e["total"], "at": e["at"].isoformat()} for e in some]

    late = {"zone": 1, "total": 1, "at": _START}
    send(shop.cluster, topic, sent(first))
    shop.run()
    send(shop.cluster, topic, sent(last))
    shop.run()
    send(shop.cluster, topic, sent([late, {"zone": 2, "total": 1, "at": _START + timedelta(hours=9)}]))
    assert totals(shop.run()) == {"written": 1, "late": 1}
    expected = _sessions(events) if "session" in window else _grouped(events, 10, 5)
    assert _rounded(postgres.rows(f"select * from rides_{kind}")) == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("key = []", "line 5: an aggregate of mode merge in PostgreSQL needs a key"),
        ('key = ["at"]', "line 5: the key of t is not that of the aggregate"),
        ('key = ["shop"]', "line 5: the key of t is not that of the aggregate"),
    ],
)
def test_the_key_must_be_that_of_the_aggregate(tmp_path: Any, given: str, said: str) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(
        '[pipelines.p]\nfrom = "t"\ndecode = { json = "shop string, at timestamp" }\nevent_time = "at"\n'
        'into = { postgres = "postgresql:///x", table = "t", ' + given + ", "
        'aggregate = { by = ["shop"], window = "1 hour", values = { n = "count(*)" } } }\n'
    )
    with pytest.raises(ConfigError) as caught:
        read(file, "p")
    assert said in str(caught.value)
    assert json.dumps(["shop", "window_start"]) in str(caught.value.hint)
