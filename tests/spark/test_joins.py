"""Two topics joined: compared with a join in plain Python, under disorder, late rows, bad records and kills."""

from __future__ import annotations

import json
import random
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest

from headrace.errors import ConfigError, Failed, UsageError
from headrace.kafka import connect
from headrace.pipeline.books.checkpoint import BatchPlan
from tests.spark.children import kill_at_each
from tests.spark.killed_join import POINTS
from tests.spark.pipelines import Workshop, send, totals

Topic = Callable[..., str]
Row = dict[str, Any]

_BEGIN = 1_767_225_600  # 2026-01-01T00:00:00Z
_WITHIN_S, _DELAY_S = 120, 300

_DECLARED = """
[pipelines.p]
from = "<left>"
decode = { json = "trip long, at timestamp, meters double" }
expect = { "moves forward" = "meters >= 0" }
event_time = "at"
watermark = "5 minutes"
max_records_per_batch = 400

[pipelines.p.join]
topic = "<right>"
decode = { json = "trip long, stop_at timestamp, route string" }
where = "route != 'x'"
event_time = "stop_at"
on = ["trip"]
within = "2 minutes"
kind = "<kind>"

[[pipelines.p.into]]
delta = "rows"
[[pipelines.p.into]]
delta = "far"
where = "meters > 500"
select = { trip = "trip", km = "meters / 1000" }
"""


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(_BEGIN + seconds, UTC).isoformat().replace("+00:00", "Z")


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


def _made(seed: int, begin_s: float, span_s: float, records: int) -> tuple[list[Any], list[Any]]:
    """Records of both topics: out of order, doubled, without keys or times, broken, and some far too late."""
    chance = random.Random(seed)
    left: list[Any] = []
    right: list[Any] = []
    for number in range(records):
        # Whole seconds: Spark's watermark has no fractions of milliseconds.
        at = begin_s + number * span_s // records - chance.choice([0, 0, 0, 5, 60, 250, 2400 if number > 800 else 0])
        trip = None if chance.random() < 0.02 else chance.randrange(60)
        left.append({"trip": trip, "at": _stamp(at), "meters": float(chance.randrange(-20, 1000))})
        if chance.random() < 0.4:
            stop = {"trip": trip, "stop_at": _stamp(at + chance.randrange(-150, 150)), "route": chance.choice("abcx")}
            right += [stop] * chance.choice([1, 1, 2])
    left += [b"{", {"trip": 1, "meters": 1.0}, {"trip": 1, "at": "+294247-01-10T04:00:54Z", "meters": 1.0}]
    right += [b"no", {"trip": 1, "route": "a"}]
    return left, right


@dataclass
class _Side:
    """What the records of one topic are to a join, found without Spark."""

    name: str
    entered: list[Row] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    newest: float | None = None

    def take(self, value: bytes, watermark: float) -> None:
        try:
            row: Row = json.loads(value)
        except ValueError:
            self.outcomes["dead"] += 1
            return
        stamp = row.get("at") or row.get("stop_at")
        if row.get("route") == "x":
            self.outcomes["filtered"] += 1
        elif row.get("meters", 0) < 0 or stamp is None or stamp.startswith("+"):
            self.outcomes["dead"] += 1
        else:
            row["s"] = _seconds(stamp)
            self.newest = max(self.newest or row["s"], row["s"])
            late = row["s"] <= watermark
            self.outcomes["late" if late else "written"] += 1
            if not late:
                self.entered.append(row)


class _Oracle:
    """The join in plain Python: the batches are those of the checkpoint, everything else is computed here."""

    def __init__(self, shop: Workshop, left: str, right: str, batches: list[BatchPlan]) -> None:
        self.sides = {left: _Side(left), right: _Side(right)}
        self.left, self.right = self.sides.values()
        records = {topic: dict(_records(shop, topic)) for topic in self.sides}
        self.watermark, before = 0.0, 0.0
        restarts = _restarts(shop)
        for batch in batches:
            if batch.batch in restarts:
                # Spark keeps the watermark, and not what each topic has brought to it.
                for side in self.sides.values():
                    side.newest = None
            for span in batch.spans:
                for offset in range(span.first or 0, span.next):
                    self.sides[span.topic].take(records[span.topic][span.partition, offset], before)
            before, self.watermark = self.watermark, max(self.watermark, self._next())
        self.watermark = before  # of the last batch, which its own records do not move
        self._pair()

    def _next(self) -> float:
        newest = [side.newest for side in self.sides.values()]
        return min(time for time in newest if time is not None) - _DELAY_S if None not in newest else 0.0

    def _pair(self) -> None:
        self.pairs: list[tuple[Row, Row]] = []
        for one in self.left.entered:
            for other in self.right.entered:
                same = one["trip"] is not None and one["trip"] == other["trip"]
                if same and abs(one["s"] - other["s"]) <= _WITHIN_S:
                    self.pairs.append((one, other))
                    one["matched"] = other["matched"] = True

    def account(self, side: _Side) -> tuple[int, int, int, int]:
        """Entered, matched, unmatched, waiting."""
        matched, alone = sum("matched" in row for row in side.entered), len(self.alone(side))
        return len(side.entered), matched, alone, len(side.entered) - matched - alone

    def alone(self, side: _Side) -> list[Row]:
        """Rows whose time is over, or that have no key."""
        over = [row for row in side.entered if row["trip"] is None or row["s"] + _WITHIN_S + 0.001 <= self.watermark]
        return [row for row in over if "matched" not in row]

    def rows(self, kind: str) -> Counter[Any]:
        alone = [(row, None) for row in self.alone(self.left)] if kind == "left" else []
        return Counter(_joined(one, other) for one, other in [*self.pairs, *alone])


def _joined(one: Row, other: Row | None) -> tuple[Any, ...]:
    stop = (other["s"], other["route"]) if other else (None, None)
    return (one["trip"], one["s"], one["meters"], *stop)


def _records(shop: Workshop, topic: str) -> Iterator[tuple[tuple[int, int], bytes]]:
    from headrace import consume

    for record in consume(shop.cluster, topic):
        yield (record.partition, record.offset), record.value or b""


def _restarts(shop: Workshop) -> set[int]:
    """The batches with which a run began."""
    with sqlite3.connect(shop.pipeline().ledger.file) as db:
        runs = db.execute("select batch, run, max(epoch) from batches group by batch order by batch").fetchall()
    return {batch for (_, before, _), (batch, run, _) in pairwise(runs) if run != before}


def _check(shop: Workshop, kind: str, left: str, right: str) -> _Oracle:
    """Tables and ledger are what the oracle says."""
    pipeline = shop.pipeline()
    oracle = _Oracle(shop, left, right, pipeline.checkpoint.batches())
    found = Counter(
        (row["trip"], row["at"].replace(tzinfo=UTC).timestamp(), row["meters"],
         row["stop_at"].replace(tzinfo=UTC).timestamp() if row["stop_at"] else None, row["route"])
        for row in shop.rows("rows")
    )  # fmt: skip
    wanted = oracle.rows(kind)
    assert found == wanted, (len(found), found - wanted, wanted - found)
    far = Counter((row["trip"], row["km"]) for row in shop.rows("far"))
    assert far == Counter((trip, meters / 1000) for trip, _, meters, *_ in wanted.elements() if meters > 500)
    lines, joins = pipeline.ledger.lines(), pipeline.ledger.joins()
    for side in oracle.sides.values():
        mine = [line for line in lines if line.topic == side.name]
        counts = {name: sum(getattr(line, name) for line in mine) for name in ("written", "dead", "late", "filtered")}
        assert counts == {name: side.outcomes[name] for name in counts}, side.name
        runs = [line for line in joins if line.side == side.name]
        sums = [sum(getattr(line, name) for line in runs) for name in ("entered", "matched", "unmatched")]
        assert (*sums, runs[-1].waiting) == oracle.account(side), side.name
    assert all([line.balanced for line in lines] + [line.balanced for line in joins])
    assert not [text for run in pipeline.ledger.runs() for text in run.unbalanced]
    letters = Counter((row["topic"], row["outcome"]) for row in shop.dead())
    assert letters == Counter(
        {(s.name, o): s.outcomes[o] for s in oracle.sides.values() for o in ("dead", "late") if s.outcomes[o]}
    )
    return oracle


@pytest.mark.parametrize("kind", ["inner", "left"])
def test_a_join_against_one_in_plain_python(shop: Workshop, headrace_topic: Topic, kind: str) -> None:
    left, right = headrace_topic(partitions=2), headrace_topic(partitions=1)
    shop.declare(_DECLARED, left=left, right=right, kind=kind)
    for begin_s in (0, 3600) if kind == "left" else (0,):
        made = _made(int(begin_s), begin_s, 3000, 1000)
        for topic, records in zip((left, right), made, strict=True):
            send(shop.cluster, topic, records)
        report = shop.run()
        assert totals(report)["late"] > 20
        oracle = _check(shop, kind, left, right)
    if kind == "left":
        assert all(oracle.account(oracle.left))  # there is something of each
        assert all(oracle.account(oracle.right)[:3])
        _check_state(shop, oracle)
        _rewound(shop, left, right)


def _check_state(shop: Workshop, oracle: _Oracle) -> None:
    """What waits for partners can be looked at while nothing runs."""
    found = shop.pipeline().kept_state(limit=10_000, spark=shop.spark)
    for name, side in zip(("left", "right"), oracle.sides.values(), strict=True):
        held = [row for row in side.entered if row["trip"] is not None and row["s"] + _WITHIN_S >= oracle.watermark]
        assert Counter(entry["key"]["field0"] for entry in found if entry["of"] == name) == Counter(
            row["trip"] for row in held
        )
    trip = oracle.left.entered[-1]["trip"]
    only = shop.pipeline().kept_state(str(trip), limit=10_000, spark=shop.spark)
    assert only == [entry for entry in found if entry["key"]["field0"] == trip]


def _rewound(shop: Workshop, left: str, right: str) -> None:
    """Back to a batch, with its state: from there on the same rows come again."""
    pipeline = shop.pipeline()
    before = [row for row in shop.rows("rows") if row["trip"] is not None]
    plan = pipeline.plan_rewind("batch:2", shop.cluster)
    assert any("state" in text for text in plan.consequences)
    pipeline.rewind(plan)
    assert totals(shop.run())
    after = Counter(str(row) for row in shop.rows("rows"))
    assert all(str(row) in after for row in before)
    lines = shop.pipeline().ledger.joins()
    oracle = _Oracle(shop, left, right, pipeline.checkpoint.batches())
    assert [line.waiting for line in lines[-2:]] == [oracle.account(side)[3] for side in oracle.sides.values()]
    with pytest.raises(UsageError, match="cannot be forked"):
        pipeline.fork_checkpoint("another")


def test_a_join_is_right_however_often_it_is_killed(shop: Workshop, headrace_topic: Topic) -> None:
    left, right = headrace_topic(partitions=2), headrace_topic(partitions=1)
    shop.declare(_DECLARED, left=left, right=right, kind="left")
    for topic, records in zip((left, right), _made(5, 0, 7000, 1500), strict=True):
        send(shop.cluster, topic, records)
    kill_at_each(POINTS, "killed_join", str(shop.folder), connect(shop.cluster).bootstrap)
    shop.run()
    _check(shop, "left", left, right)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({'on = ["trip"]': 'on = ["route"]'}, r"line 14: the join is on route, which .* does not have"),
        ({"trip long, stop_at": "trip string, stop_at"}, "which is bigint in .* and string in"),
        ({"trip long, stop_at": "trip long, meters double, stop_at"}, "both sides of the join have a column meters"),
        ({'event_time = "stop_at"': 'event_time = "route"'}, "line 13: event_time route is not a timestamp"),
        ({"route != 'x'": "rute != 'x'"}, r"line 12: .*rute"),
        ({"meters / 1000": "miles / 1000"}, "miles"),
        ({'watermark = "5 minutes"\n': ""}, "a join needs watermark"),
        ({'event_time = "at"\nwatermark = "5 minutes"\n': ""}, "a join needs event_time"),
        ({'kind = "left"': 'kind = "outer"'}, "unknown kind 'outer'"),
        ({'within = "2 minutes"': 'within = "soon"'}, "is not a length of time"),
        ({'within = "2 minutes"': 'withing = "2 minutes"'}, "withing"),
        ({'on = ["trip"]': 'on = []'}, "on is missing"),
        ({"max_records_per_batch": 'deduplicate = ["trip"]\nmax_records_per_batch'}, "cannot follow deduplicate"),
        ({"max_records_per_batch": 'trigger = "realtime"\nmax_records_per_batch'}, "realtime keeps no state"),
        ({'"rows"': '"rows"\naggregate = { by = "trip", mode = "watermark", values = { n = "sum(1)" } }'},
         "of mode watermark cannot follow a join"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_join_is_found_before_it_runs(shop: Workshop, changed: dict[str, str], said: str) -> None:
    text = _DECLARED
    for old, new in changed.items():
        assert old.replace('"left"', '"<kind>"') in text
        text = text.replace(old.replace('"left"', '"<kind>"'), new)
    shop.declare(text.lstrip(), left="l", right="r", kind="left")
    with pytest.raises(ConfigError, match=said):
        shop.pipeline().explain(shop.spark)


def test_a_changed_join_is_refused_and_a_row_that_a_sink_cannot_use_ends_the_run(
    shop: Workshop, headrace_topic: Topic
) -> None:
    left, right = headrace_topic(), headrace_topic()
    text = _DECLARED.replace("meters / 1000", "meters / (trip - 7)")
    shop.declare(text, left=left, right=right, kind="left")
    send(shop.cluster, left, [{"trip": n, "at": _stamp(0), "meters": 600} for n in (6, 7)])
    send(shop.cluster, right, [{"trip": n, "stop_at": _stamp(0), "route": "a"} for n in (6, 7)])
    with pytest.raises(Failed, match="cannot use a joined row") as failed:
        shop.run()
    assert re.search(rf"far: an expression of its select failed.*of {left}/0/1 and {right}/0/1", str(failed.value))
    shop.declare(_DECLARED, left=left, right=right, kind="left")
    assert totals(shop.run()) == {"written": 4}
    assert [row["trip"] for row in shop.rows("rows")] == [6, 7]
    for old, new in (
        ("2 minutes", "3 minutes"),
        ("route string", "route string, x int"),
        ("at timestamp, m", "at timestamp, n int, m"),
    ):
        shop.declare(_DECLARED.replace(old, new), left=left, right=right, kind="left")
        with pytest.raises(ConfigError, match="cannot change while the checkpoint stays") as refused:
            shop.run()
        assert "headrace pipeline checkpoint wipe p" in str(refused.value.hint)
    pipeline = shop.pipeline()
    pipeline.wipe_checkpoint()
    assert totals(shop.run()) == {"written": 4}
    assert [line.waiting for line in shop.pipeline().ledger.joins()[-2:]] == [0, 0]
