"""Pipelines on real Kafka and real Spark: every record has one outcome, and every table holds what an independent
computation says it must."""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.errors import ConfigError, Failed, SetupError
from headrace.pipeline.sinks import write as write_sink
from tests.spark.pipelines import Workshop, send, totals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Topic = Callable[..., str]


@pytest.fixture
def shop(tmp_path: Path, headrace_cluster: Any, spark: SparkSession) -> Workshop:
    return Workshop(tmp_path, headrace_cluster, spark)


SALES = """
[pipelines.p]
from = "<topic>"
decode = { json = "shop string, amount int, at timestamp" }
where = "shop != 'test'"
[pipelines.p.expect]
"is positive" = "amount > 0"
"is small"    = { rule = "amount < 1000", action = "drop" }
"has a time"  = { rule = "at is not null", action = "warn" }
[[pipelines.p.into]]
delta = "tables/sales"
[[pipelines.p.into]]
parquet = "tables/parquet"
[[pipelines.p.into]]
delta = "tables/shops"
[pipelines.p.into.aggregate]
by = ["shop"]
values = { total = "sum(amount)", sales = "count(*)", mean = "avg(amount)", spread = "max(amount) - min(amount)" }
"""


def sale(shop: str, amount: Any, **more: Any) -> dict[str, Any]:
    return {"shop": shop, "amount": amount, **more}


def test_each_record_has_one_outcome_and_every_sink_its_rows(shop: Workshop, headrace_topic: Topic) -> None:
    topic = headrace_topic(partitions=3)
    shop.declare(SALES, topic=topic)
    draw = random.Random(5)
    good = [sale(draw.choice("abc"), draw.randint(1, 999), at="2026-01-01T00:00:00Z") for _ in range(300)]
    other = [sale("test", 5), sale("a", 0), sale("b", 5000), sale("c", "many"), b"{", None, b"\xff", sale("a", 7)]
    send(shop.cluster, topic, [*good, *other])
    report = shop.run()
    assert totals(report) == {"written": 301, "dead": 5, "filtered": 2}
    assert report.run.warnings == 1
    assert {(row["shop"], row["amount"]) for row in shop.rows("tables/sales")} >= {("a", 7)}
    assert len(shop.rows("tables/sales")) == 301
    assert shop.spark.read.parquet(str(shop.folder / "tables/parquet")).count() == 301
    assert {row["rule"] for row in shop.dead()} == {"decode", "is positive"}
    assert sorted(row["value"] or b"" for row in shop.dead())[:2] == [b"", b"{"]
    _check_shops(shop, [*good, sale("a", 7)])

    more = [sale(draw.choice("abd"), draw.randint(1, 999)) for _ in range(100)]
    send(shop.cluster, topic, more)
    assert totals(shop.run()) == {"written": 100}
    _check_shops(shop, [*good, sale("a", 7), *more])
    assert totals(shop.run()) == {}


def _check_shops(shop: Workshop, sales: list[dict[str, Any]]) -> None:
    amounts: dict[str, list[int]] = {}
    for row in sales:
        amounts.setdefault(row["shop"], []).append(row["amount"])
    found = {row["shop"]: row for row in shop.rows("tables/shops")}
    assert set(found) == set(amounts)
    for name, values in amounts.items():
        row = found[name]
        assert (row["total"], row["sales"], row["spread"]) == (sum(values), len(values), max(values) - min(values))
        assert row["mean"] == pytest.approx(sum(values) / len(values))


def test_a_batch_that_failed_in_its_last_sink_is_not_written_twice_to_the_others(
    shop: Workshop, headrace_topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = headrace_topic(partitions=2)
    shop.declare(SALES, topic=topic)
    send(shop.cluster, topic, [sale("a", n) for n in range(1, 51)] + [sale("a", -1)])

    def broken(sink: Any, *rest: Any) -> Any:
        if sink.target == "tables/shops":
            raise OSError("the lights went out")
        return write_sink(sink, *rest)

    with monkeypatch.context() as patched:
        patched.setattr("headrace.pipeline.sinks.write", broken)
        with pytest.raises(Failed, match="failed") as caught:
            shop.run()
    assert "the lights went out" in str(caught.value)
    assert totals(shop.run()) == {"written": 50, "dead": 1}
    assert len(shop.rows("tables/sales")) == 50
    assert shop.spark.read.parquet(str(shop.folder / "tables/parquet")).count() == 50
    assert len(shop.dead()) == 1
    (row,) = shop.rows("tables/shops")
    assert (row["total"], row["sales"]) == (sum(range(1, 51)), 50)


def test_a_rule_that_must_hold_stops_the_run_before_anything_is_written(shop: Workshop, headrace_topic: Topic) -> None:
    topic = headrace_topic()
    shop.declare(
        """
[pipelines.p]
from = "<topic>"
decode = { json = "amount int" }
into = { delta = "tables/t" }
[pipelines.p.expect]
"is positive" = { rule = "amount > 0", action = "fail" }
""",
        topic=topic,
    )
    send(shop.cluster, topic, [{"amount": 1}, {"amount": -1}])
    with pytest.raises(Failed, match=r"headrace.toml, line 7: expectation 'is positive' does not hold"):
        shop.run()
    assert not (shop.folder / "tables").exists()


def test_duplicates_are_set_aside_within_a_batch_and_across_batches(shop: Workshop, headrace_topic: Topic) -> None:
    topic = headrace_topic(partitions=2)
    shop.declare(
        """
[pipelines.p]
from = "<topic>"
decode = { json = "id int, word string" }
deduplicate = ["id"]
into = { delta = "tables/t" }
""",
        topic=topic,
    )
    send(shop.cluster, topic, [{"id": n % 10, "word": "first"} for n in range(30)])
    assert totals(shop.run()) == {"written": 10, "duplicate": 20}
    send(shop.cluster, topic, [{"id": n, "word": "second"} for n in range(5, 15)])
    assert totals(shop.run()) == {"written": 5, "duplicate": 5}
    assert sorted(row["id"] for row in shop.rows("tables/t")) == list(range(15))


LATE = """
[pipelines.p]
from = "<topic>"
decode = { json = "bus int, at timestamp" }
event_time = "at"
watermark = "10 minutes"
into = { delta = "tables/windows" }
aggregate = { by = ["bus"], window = "5 minutes", mode = "watermark", values = { seen = "count(*)" } }
"""


def test_rows_behind_the_watermark_are_kept_and_counted(shop: Workshop, headrace_topic: Topic) -> None:
    topic = headrace_topic()
    shop.declare(LATE, topic=topic)
    noon = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)

    def at(minutes: float) -> dict[str, Any]:
        return {"bus": 1, "at": (noon + datetime.timedelta(minutes=minutes)).isoformat()}

    send(shop.cluster, topic, [at(0), at(1), at(60)])
    assert totals(shop.run()) == {"written": 3}
    send(shop.cluster, topic, [at(2), at(61), b"junk"])  # the first of them belongs to a window that was closed
    assert totals(shop.run()) == {"written": 1, "late": 1, "dead": 1}
    send(shop.cluster, topic, [at(200)])
    assert totals(shop.run()) == {"written": 1}
    windows = {
        row["window_start"].hour * 60 + row["window_start"].minute: row["seen"] for row in shop.rows("tables/windows")
    }
    assert windows == {720: 2, 780: 2}
    late = [row for row in shop.dead() if row["outcome"] == "late"]
    assert [json.loads(row["value"]) for row in late] == [at(2)]


def test_a_trip_is_computed_anew_when_rows_come_late(shop: Workshop, headrace_topic: Topic) -> None:
    topic = headrace_topic()
    shop.declare(
        """
[pipelines.p]
from = "<topic>"
decode = { json = "trip int, second int, meters int" }
[[pipelines.p.into]]
delta = "tables/rows"
[[pipelines.p.into]]
delta = "tables/speeds"
[pipelines.p.into.aggregate]
mode = "recompute"
by = ["trip"]
[pipelines.p.into.aggregate.values]
speed = '''
  (meters - lag(meters) over (partition by trip order by second))
  / (second - lag(second) over (partition by trip order by second))'''
""",
        topic=topic,
    )
    points = [{"trip": 1, "second": s, "meters": s * s} for s in range(10)]
    send(shop.cluster, topic, [p for p in points if p["second"] % 2] + [{"trip": 2, "second": 0, "meters": 5}])
    shop.run()
    send(shop.cluster, topic, [p for p in points if p["second"] % 2 == 0])
    shop.run()
    speeds = {row["second"]: row["speed"] for row in shop.rows("tables/speeds") if row["trip"] == 1}
    assert speeds == {0: None, **{s: float(2 * s - 1) for s in range(1, 10)}}
    assert len(shop.rows("tables/speeds")) == 11


def test_steps_can_be_python_functions(shop: Workshop, headrace_topic: Topic) -> None:
    topic = headrace_topic()
    module = f"steps_{abs(hash(topic))}"
    (shop.folder / f"{module}.py").write_text(
        "from pyspark.sql import functions as F\n"
        "def shout(frame):\n"
        "    return frame.withColumn('loud', F.upper('value')).drop('value')\n"
        "def careless(frame):\n"
        "    return frame.select('value')\n"
    )
    text = '[pipelines.p]\nfrom = "<topic>"\nselect = { python = "<module>:<name>" }\ninto = { delta = "tables/t" }\n'
    send(shop.cluster, topic, [b"quiet", b"calm"])
    shop.declare(text, topic=topic, module=module, name="careless")
    with pytest.raises(ConfigError, match="dropped _topic"):
        shop.run()
    shop.declare(text, topic=topic, module=module, name="shout")
    assert totals(shop.run()) == {"written": 2}
    assert sorted(row["loud"] for row in shop.rows("tables/t")) == ["CALM", "QUIET"]


def test_the_second_run_on_a_checkpoint_is_refused(shop: Workshop, headrace_topic: Topic) -> None:
    shop.declare(SALES, topic=headrace_topic())
    with (
        shop.pipeline().folder.lock(),
        pytest.raises(SetupError, match="pipeline p runs already"),
    ):
        shop.run()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('select = { n = "amuont + 1" }', r"line 4: .*amuont"),
        ('select = { n = "amount +" }', r"line 4: .*[Ss]yntax error"),
        ('expect = { "x" = "amount ~ 1 2" }', r"line 4: "),
        ('where = "nothing = 1"', r"line 4: .*nothing"),
        ('event_time = "when"', r"line 4: .*when"),
        ('aggregate = { by = ["amount"], values = { x = "median(amount)" } }', r"median\(amount\) cannot be merged"),
        ('aggregate = { by = ["nobody"], values = { x = "sum(amount)" } }', r"nobody"),
    ],
)
def test_what_is_wrong_is_told_with_its_line_before_anything_runs(
    shop: Workshop, headrace_topic: Topic, line: str, said: str
) -> None:
    topic = headrace_topic()
    shop.declare(
        f'[pipelines.p]\nfrom = "{topic}"\ndecode = {{ json = "amount int" }}\n{line}\ninto = {{ delta = "t" }}\n'
    )
    with pytest.raises(ConfigError, match=said):
        shop.run()
    assert not (shop.home.root / "pipelines" / "p" / "checkpoint").exists()
