"""Changes by key: late, repeated and shuffled ones, cut into batches in any way, against a replay in plain Python."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from headrace.errors import ConfigError, HeadraceError
from headrace.pipeline.spark import internals
from headrace.samples import changes
from headrace.tables.table import read_table
from tests.spark.pipelines import Workshop, send, totals

Topic = Callable[..., str]
Event = dict[str, Any]

_ROW = "id long, name string, city string, points int"
_DECLARED = """
[pipelines.p]
from = "<topic>"
decode = { debezium = "<row>" }
max_records_per_batch = <batch>
[[pipelines.p.into]]
delta = "latest"
changes = { key = ["id"], sequence = "ts_ms" }
[[pipelines.p.into]]
delta = "history"
select = { id = "id", city = "city", points = "points", lsn = "lsn", ts_ms = "ts_ms" }
changes = { key = ["id"], sequence = ["ts_ms", "lsn"], history = true }
[[pipelines.p.into]]
delta = "highest"
where = "op != 'd'"
select = { city = "city", points = "points", id = "id" }
upsert = { key = ["city"], sequence = ["points", "-id"] }
"""


# -- the oracle --------------------------------------------------------------------------------------------------------


def _row(event: Event) -> Event:
    row = event["before"] if event["op"] == "d" else event["after"]
    return {**row, "op": event["op"], "ts_ms": event["ts_ms"], "lsn": event["source"]["lsn"], "file": None, "pos": None}


def _by_key(events: Iterable[Event]) -> dict[int, list[Event]]:
    """The rows of each customer in the order in which they were made."""
    found: dict[int, dict[int, Event]] = defaultdict(dict)
    for row in map(_row, events):
        found[row["id"]][row["ts_ms"]] = row
    return {key: [rows[at] for at in sorted(rows)] for key, rows in found.items()}


def _latest(events: list[Event]) -> list[Event]:
    return [rows[-1] for rows in _by_key(events).values() if rows[-1]["op"] != "d"]


def _history(events: list[Event]) -> list[Event]:
    found = []
    for rows in _by_key(events).values():
        for row, after in zip(rows, [*rows[1:], None], strict=True):
            if row["op"] != "d":
                kept = {name: row[name] for name in ("id", "city", "points", "lsn", "ts_ms")}
                end = after["ts_ms"] if after else None
                found.append({**kept, "valid_from": row["ts_ms"], "valid_to": end, "current": after is None})
    return found


def _highest(events: list[Event]) -> list[Event]:
    best: dict[str, Event] = {}
    for row in (event["after"] for event in events if event["op"] != "d"):
        known = best.get(row["city"])
        if known is None or (row["points"], -row["id"]) >= (known["points"], -known["id"]):
            best[row["city"]] = {name: row[name] for name in ("city", "points", "id")}
    return list(best.values())


def _sorted(rows: Iterable[Event]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def _require_right(shop: Workshop, events: list[Event]) -> None:
    assert _sorted(shop.rows("latest")) == _sorted(_latest(events))
    assert _sorted(shop.rows("history")) == _sorted(_history(events))
    assert _sorted(shop.rows("highest")) == _sorted(_highest(events))
    # Others see the same, without Spark.
    rows = [row for batch in read_table(shop.folder / "latest").batches() for row in batch.to_pylist()]
    assert _sorted(rows) == _sorted(_latest(events))


# -- tests -------------------------------------------------------------------------------------------------------------


def test_changes_in_any_order_and_any_batches_make_the_same_tables(shop: Workshop, headrace_topic: Topic) -> None:
    events = list(changes(600, seed=5))
    topic = headrace_topic(partitions=3)
    shop.declare(_DECLARED, topic=topic, row=_ROW, batch="1000")
    send(shop.cluster, topic, [*events[:300], None])
    assert totals(shop.run()) == {"written": 300, "filtered": 1}
    assert shop.pipeline().ledger.by_rule() == [("filtered", "tombstone", 1)]
    _require_right(shop, events[:300])
    # The rest comes in another order, and some of the first again.
    chance = random.Random(3)
    rest = [*events[300:], *chance.sample(events[:300], 60)]
    chance.shuffle(rest)
    send(shop.cluster, topic, rest)
    report = shop.run()
    assert totals(report) == {"written": 360}
    _require_right(shop, events)
    latest, history, highest = report.sinks
    assert [(s.taken, s.skipped) for s in (latest, history)] == [(360, 0)] * 2
    deletes = sum(event["op"] == "d" for event in rest)
    assert (highest.taken, highest.skipped) == (360 - deletes, deletes)
    for sink in report.sinks:
        assert (sink.applied or 0) + (sink.deleted or 0) + (sink.superseded or 0) == sink.taken
    assert latest.deleted
    assert latest.superseded
    assert highest.deleted == 0
    # What was deleted is remembered beside the table; no column of it shows that.
    assert {column.name for column in read_table(shop.folder / "latest").columns} == set(_row(events[0]))
    _test_a_replay_counts_and_changes_nothing(shop)


def _test_a_replay_counts_and_changes_nothing(shop: Workshop) -> None:
    """A rewound pipeline reads everything again under new batch numbers: the tables stay what they are."""
    before = {table: _sorted(shop.rows(table)) for table in ("latest", "history", "highest")}
    pipeline = shop.pipeline()
    pipeline.rewind(pipeline.plan_rewind("beginning", shop.cluster))
    report = shop.run()
    assert totals(report) == {"written": 660, "filtered": 1}
    assert {table: _sorted(shop.rows(table)) for table in before} == before


def test_a_batch_that_was_cut_off_is_repeated_with_the_same_outcomes(
    shop: Workshop, headrace_topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletes are committed before the rows; the run ends once between the two, and once behind both."""
    events = list(changes(200, seed=9))
    topic = headrace_topic()
    shop.declare(_DECLARED.rpartition("[[pipelines.p.into]]")[0], topic=topic, row=_ROW, batch="1000")
    send(shop.cluster, topic, events[:120])
    totals(shop.run())
    send(shop.cluster, topic, events[120:])
    replace = internals.replace_in_delta
    for is_written in (False, True):

        def cut_off(path: str, *given: Any, is_written: bool = is_written) -> None:
            if is_written:
                replace(path, *given)
            raise RuntimeError("cut off")

        monkeypatch.setattr(internals, "replace_in_delta", cut_off)
        with pytest.raises(HeadraceError, match="failed"):
            shop.run()
    monkeypatch.undo()
    report = shop.run()
    assert totals(report) == {"written": 80}
    assert _sorted(shop.rows("latest")) == _sorted(_latest(events))
    assert _sorted(shop.rows("history")) == _sorted(_history(events))
    latest, history = report.sinks
    # Nothing of the interrupted attempt counts: each outcome is that of the first time.
    last: dict[int, int] = {}
    for row in map(_row, events[:120]):
        last[row["id"]] = max(last.get(row["id"], 0), row["ts_ms"])
    new = _by_key(events[120:])
    holding = [rows[-1] for key, rows in new.items() if rows[-1]["ts_ms"] >= last.get(key, 0)]
    assert latest.applied == sum(row["op"] != "d" for row in holding)
    assert latest.deleted == sum(row["op"] == "d" for row in holding)
    assert latest.superseded == 80 - len(holding)
    assert history.superseded == 80 - sum(map(len, new.values()))


_TIED = """
[pipelines.p]
from = "<topic>"
decode = { json = "id int, at int, n int, gone boolean" }
[[pipelines.p.into]]
delta = "latest"
changes = { key = "id", sequence = "at", delete_when = "gone" }
[[pipelines.p.into]]
delta = "history"
changes = { key = "id", sequence = "at", delete_when = "gone", history = true }
[[pipelines.p.into]]
delta = "both"
changes = { key = "id", sequence = ["at", "n"], delete_when = "gone", history = true }
"""


def test_of_changes_with_one_sequence_the_later_record_holds(shop: Workshop, headrace_topic: Topic) -> None:
    """Whether they come in one batch or in two; the others are superseded. A second column keeps all of them."""
    topic = headrace_topic(partitions=3)
    shop.declare(_TIED, topic=topic)
    tied = [{"id": 1, "at": 7, "n": n} for n in (5, 9, 2)]
    send(shop.cluster, topic, [*tied, {"id": 2, "at": 7, "n": 1}, {"id": 2, "at": 7, "n": 2, "gone": True}], key="k")
    report = shop.run()
    assert [(sink.applied, sink.deleted, sink.superseded) for sink in report.sinks] == [(1, 1, 3), (1, 1, 3), (4, 1, 0)]
    assert [(row["id"], row["n"]) for row in shop.rows("latest")] == [(1, 2)]
    assert [(row["n"], row["valid_from"], row["current"]) for row in shop.rows("history")] == [(2, 7, True)]
    versions = sorted((row["id"], row["n"], row["valid_to"]) for row in shop.rows("both"))
    assert versions == [(1, 2, 7), (1, 5, 7), (1, 9, None), (2, 1, 7)]
    # Later ones replace what is in the table, or bring back what was deleted.
    send(shop.cluster, topic, [{"id": 1, "at": 7, "n": 4}, {"id": 2, "at": 7, "n": 3}], key="k")
    report = shop.run()
    assert [(sink.applied, sink.deleted, sink.superseded) for sink in report.sinks] == [(2, 0, 0)] * 3
    for table in ("latest", "history"):
        assert sorted((row["id"], row["n"]) for row in shop.rows(table)) == [(1, 4), (2, 3)]


_PLAIN = """
[pipelines.p]
from = "<topic>"
decode = { json = "id int, at timestamp, text string, gone boolean" }
[pipelines.p.into]
delta = "t"
select = { id = "id", at = "at", n = "cast(text as int)" }
changes = { key = ["id"], sequence = "at", delete_when = "gone" }
"""


def test_what_cannot_be_a_change_is_a_dead_letter(shop: Workshop, headrace_topic: Topic) -> None:
    topic = headrace_topic()
    shop.declare(_PLAIN, topic=topic)
    at = "2026-05-01T12:00:00Z"
    send(shop.cluster, topic, [
        {"id": 1, "at": at, "text": "1"}, {"id": None, "at": at, "text": "2"}, {"id": 2, "text": "3"},
        {"id": 3, "at": at, "text": "x"}, {"id": 4, "at": at, "gone": True},
    ])  # fmt: skip
    report = shop.run()
    assert totals(report) == {"written": 2, "dead": 3}
    assert {(row["rule"], row["reason"]) for row in shop.dead()} == {
        ("key", "t: id is null"), ("sequence", "t: at is null"),
        ("into", "t: an expression of its select failed: cast(text as int)"),
    }  # fmt: skip
    assert [(row["id"], row["n"]) for row in shop.rows("t")] == [(1, 1)]
    sink = report.sinks[0]
    assert (sink.applied, sink.deleted, sink.superseded) == (1, 1, 0)


_JUDGED = """
[pipelines.p]
from = "<topic>"
decode = { debezium = "id long, city string, points int" }
expect = { "points are counted" = "points > 0", "city is known" = { rule = "city is not null", action = "fail" } }
lookup = { table = "zones.csv", on = "city", select = { zone = "zone" }, unmatched = "dead" }
into = { delta = "judged", changes = { key = "id", sequence = "ts_ms" } }
[pipelines.plain]
from = "<plain>"
decode = { json = "id int, at int, amount int, gone boolean" }
expect = { "an amount" = "amount > 0" }
into = { delta = "plain", changes = { key = "id", sequence = "at", delete_when = "gone" } }
"""


def _event(op: str, at: int, **row: Any) -> Event:
    return {"before" if op == "d" else "after": row, "op": op, "ts_ms": at, "source": {"lsn": at}}


def test_rules_and_lookups_do_not_judge_deletes(shop: Workshop, headrace_topic: Topic) -> None:
    """A delete has its key, and of the other columns whatever the database logs: PostgreSQL nothing."""
    topic, plain = headrace_topic(), headrace_topic()
    (shop.folder / "zones.csv").write_text("city,zone\nOslo,1\n")
    shop.declare(_JUDGED, topic=topic, plain=plain)
    send(shop.cluster, topic, [
        _event("c", 1, id=1, city="Oslo", points=5), _event("c", 2, id=2, city="Oslo", points=-5),
        _event("c", 3, id=3, city="Bonn", points=5), _event("c", 4, id=4, city="Oslo", points=7),
        _event("d", 5, id=1), None, _event("d", 6, id=9, city="Bonn", points=-1),
    ])  # fmt: skip
    report = shop.run()
    assert totals(report) == {"written": 4, "dead": 2, "filtered": 1}
    assert {row["rule"] for row in shop.dead()} == {"points are counted", "lookup zones"}
    assert [(row["id"], row["zone"]) for row in shop.rows("judged")] == [(4, 1)]
    sink = report.sinks[0]
    assert (sink.applied, sink.deleted, sink.superseded) == (1, 2, 1)

    changes_of = [{"id": 1, "at": 1, "amount": 1}, {"id": 1, "at": 2, "gone": True}, {"id": 2, "at": 3}, None]
    send(shop.cluster, plain, changes_of)
    assert totals(shop.run("plain")) == {"written": 2, "dead": 2}  # a null is not a row that says it deletes
    assert shop.rows("plain") == []
    assert {row["rule"] for row in shop.dead("plain")} == {"an amount", "decode"}


def test_a_table_that_cannot_take_changes_is_left_as_it_is(shop: Workshop, headrace_topic: Topic) -> None:
    topic, table = headrace_topic(), str(shop.folder / "t")
    shop.declare(_PLAIN, topic=topic)
    send(shop.cluster, topic, [{"id": 1, "at": "2026-05-01T12:00:00Z", "text": "1"}])
    twice = shop.spark.sql("select 1 as id, timestamp '2026-01-01 00:00:00' as at, 0 as n from range(2)")
    twice.write.format("delta").save(table)
    with pytest.raises(HeadraceError, match="line 5: the table t exists and cannot take changes by key"):
        shop.run()
    shop.spark.sql(f"alter table delta.`{table}` set tblproperties ('delta.enableDeletionVectors' = 'true')")
    with pytest.raises(HeadraceError, match="line 5: the table t has several rows for a key"):
        shop.run()
    assert [row["n"] for row in shop.rows("t")] == [0, 0]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('key = ["id"]', 'key = ["missing"]', "line 8: .*`missing` cannot be resolved"),
        ('sequence = "at"', 'sequence = "text"', "line 8: .*`text` cannot be resolved"),
        ('"gone" }', '"missing" }', "line 8: .*`missing` cannot be resolved"),
        ('n = "cast(text as int)"', 'current = "text"', "line 8: the rows have a column current"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_changes_is_said_with_its_line(shop: Workshop, old: str, new: str, words: str) -> None:
    assert old in _PLAIN
    shop.declare(_PLAIN.replace(old, new).replace("delete_when", "history = true, delete_when"), topic="any")
    with pytest.raises(ConfigError, match=words):
        shop.pipeline().explain(shop.spark)
