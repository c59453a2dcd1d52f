"""What one sink cannot use of a record is a dead letter that says so; the rest of the batch goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.errors import ConfigError, Failed
from headrace.kafka.read.consumer import consume
from headrace.pipeline.spark.sinks import sinks
from tests.spark.pipelines import Workshop, send, totals

Topic = Callable[..., str]

FRAGILE = """
[pipelines.p]
from = "<topic>"
decode = { json = "id int, shop string, amount int, parts int, text string, at timestamp" }
where = "100 / id > 0"
event_time = "at"
[[pipelines.p.into]]
delta = "tables/selected"
select = { id = "id", share = "amount / parts", number = "cast(text as int)" }
where = "id < 100"
[[pipelines.p.into]]
delta = "tables/wanted"
where = "1000 / (id - 7) > 0"
[[pipelines.p.into]]
delta = "tables/merged"
aggregate = { by = ["shop"], values = { total = "sum(amount / parts)", texts = "sum(text)" } }
[[pipelines.p.into]]
delta = "tables/spared"
where = "id != 9"
aggregate = { by = ["shop"], values = { total = "sum(50 / (id - 9)) filter (where id > 1)" } }
[[pipelines.p.into]]
delta = "tables/windows"
aggregate = { by = ["shop"], window = "1 hour", values = { n = "count(*)" } }
"""


def row(number: int, amount: int = 8, parts: int = 2, text: str = "5", at: int = 1_600_000_000) -> dict[str, Any]:
    return {"id": number, "shop": "a", "amount": amount, "parts": parts, "text": text, "at": at}


def test_an_expression_of_a_sink_that_throws_is_a_dead_letter_with_its_sink(
    shop: Workshop, headrace_topic: Topic
) -> None:
    topic = headrace_topic()
    shop.declare(FRAGILE, topic=topic)
    good = [row(n) for n in (1, 2, 3, 9, 50)]
    bad = [row(0), row(4, parts=0), row(5, text="five"), row(7), row(150, text="x"), row(200, parts=0)]
    # Times that fit into 64 bits of microseconds; the ends of their windows do not.
    bad += [row(80, at=9_223_372_036_854), row(81, at=-9_223_372_036_854)]
    send(shop.cluster, topic, [good[0], *bad, *good[1:], row(-5), row(60, text="1.5")])
    report = shop.run()
    assert totals(report) == {"written": 5, "dead": 9, "filtered": 1}
    assert [(line.sink, line.rows, line.skipped, line.taken) for line in report.sinks] == [
        ("tables/selected", 5, 0, 5), ("tables/wanted", 5, 3, 2), ("tables/merged", 5, 0, 5),
        ("tables/spared", 5, 1, 4), ("tables/windows", 5, 0, 5), ("dead letters", None, None, 9),
    ]  # fmt: skip
    share = "amount / parts"
    assert sorted((letter["value"][6:9], letter["rule"], letter["reason"]) for letter in shop.dead()) == sorted(
        [
            (b" 0,", "where", "the expression failed: 100 / id > 0"),
            (b" 4,", "into", f"tables/selected: an expression of its select failed: {share}"),
            (b" 5,", "into", "tables/selected: an expression of its select failed: cast(text as int)"),
            (b" 7,", "into", "tables/wanted: an expression of its where failed: 1000 / (id - 7) > 0"),
            (b" 15", "into", "tables/merged: an expression of its aggregate failed: cast(text as DOUBLE)"),
            (b" 20", "into", f"tables/merged: an expression of its aggregate failed: {share}"),
            (b" 60", "into", "tables/selected: an expression of its select failed: cast(text as int)"),
            (b" 80", "event_time", "tables/windows: at is outside of all windows"),
            (b" 81", "event_time", "tables/windows: at is outside of all windows"),
        ]
    )  # fmt: skip
    assert sorted(found["id"] for found in shop.rows("tables/selected")) == [1, 2, 3, 9, 50]
    assert sorted(found["id"] for found in shop.rows("tables/wanted")) == [9, 50]
    assert [(found["total"], found["texts"]) for found in shop.rows("tables/merged")] == [(20.0, 25.0)]
    (spared,) = shop.rows("tables/spared")
    assert spared["total"] == pytest.approx(50 / -7 + 50 / -6 + 50 / 41)


def test_a_small_batch_to_a_topic_sets_the_same_aside(shop: Workshop, headrace_topic: Topic) -> None:
    topic = headrace_topic()
    shop.declare(
        """
[pipelines.p]
from = "<topic>"
decode = { json = "id int" }
dead_letters = "<topic>-dead"
into = { topic = "<topic>-out", select = { share = "100 / id" }, where = "10 / (id - 3) is not null" }
""",
        topic=topic,
    )
    send(shop.cluster, topic, [{"id": n} for n in range(6)])
    assert totals(shop.run()) == {"written": 4, "dead": 2}
    assert sorted((record.value or b"") for record in consume(shop.cluster, f"{topic}-out")) == [
        b'{"share":100.0}', b'{"share":20.0}', b'{"share":25.0}', b'{"share":50.0}'
    ]  # fmt: skip
    told = [dict(record.headers)["headrace.reason"] or b"" for record in consume(shop.cluster, f"{topic}-dead")]
    where = b"-out: an expression of its where failed: 10 / (id - 3) is not null"
    select = b"-out: an expression of its select failed: 100 / id"
    assert sorted(told) == sorted([topic.encode() + select, topic.encode() + where])


BESIDE = """
[pipelines.p]
from = "<topic>"
decode = { json = "id int, shop string, amount int, parts int, text string" }
[[pipelines.p.into]]
delta = "tables/rows"
[[pipelines.p.into]]
delta = "tables/ranked"
select = { id = "id", share = "100 / amount", place = "row_number() over (order by id)", next = "place + 1" }
[[pipelines.p.into]]
delta = "tables/anew"
[pipelines.p.into.aggregate]
mode = "recompute"
by = ["shop"]
[pipelines.p.into.aggregate.values]
speed = "amount / parts"
running = "sum(text) over (partition by shop order by id)"
before = "lag(50 / (id - 9)) over (partition by shop order by 10 / (id - 5) desc)"
"""


def test_what_stands_beside_and_inside_of_a_window_function_is_tried_with_each_row(
    shop: Workshop, headrace_topic: Topic
) -> None:
    topic = headrace_topic()
    shop.declare(BESIDE, topic=topic)
    bad = [row(4, parts=0), row(5), row(6, text="x"), row(7, amount=0), row(9)]
    send(shop.cluster, topic, [row(1), *bad, row(2)])
    assert totals(shop.run()) == {"written": 2, "dead": 5}
    anew = "tables/anew: an expression of its aggregate failed"
    assert sorted((letter["value"][7:8], letter["reason"]) for letter in shop.dead()) == [
        (b"4", f"{anew}: amount / parts"),
        (b"5", f"{anew}: 10 / (id - 5)"),
        (b"6", f"{anew}: cast(text as DOUBLE)"),
        (b"7", "tables/ranked: an expression of its select failed: 100 / amount"),
        (b"9", f"{anew}: 50 / (id - 9)"),
    ]
    found = {r["id"]: (r["speed"], r["running"], r["before"]) for r in shop.rows("tables/anew")}
    assert found == {1: (4.0, 5.0, None), 2: (4.0, 10.0, -6.25)}
    assert sorted((r["id"], r["share"], r["next"]) for r in shop.rows("tables/ranked")) == [(1, 12.5, 2), (2, 12.5, 3)]


def test_whether_a_sink_wants_a_row_is_known_by_that_row(shop: Workshop) -> None:
    rows = 'delta = "tables/rows"\nselect = { shop = "shop", id = "sum(id) over (partition by shop)" }'
    text = BESIDE[: BESIDE.index("speed")].replace('delta = "tables/rows"', rows) + 'n = "count(*)"'
    shop.declare(text.replace('delta = "tables/anew"', 'delta = "tables/anew"\nwhere = "id > 5"'), topic="any")
    with pytest.raises(ConfigError, match=r"line 13: the where of tables/anew goes by what a window function makes"):
        shop.pipeline().explain(shop.spark)


RATIO = "amount / (lag(amount) over (partition by shop order by id) - amount)"


@pytest.mark.parametrize(("how", "value"), [("", "total = sum(amount)"), ('mode = "recompute", ', f"total = {RATIO}")])
def test_a_group_that_cannot_be_computed_is_named_with_its_line_and_value(
    shop: Workshop, headrace_topic: Topic, how: str, value: str
) -> None:
    topic = headrace_topic()
    shop.declare(
        """
[pipelines.p]
from = "<topic>"
decode = { json = "id int, shop string, amount long" }
[[pipelines.p.into]]
delta = "tables/rows"
[[pipelines.p.into]]
delta = "tables/shops"
aggregate = { by = ["shop"], <how>values = { n = "count(*)", <value> } }
""",
        topic=topic, how=how, value=value.replace(" = ", ' = "', 1) + '"',
    )  # fmt: skip
    if how:
        shop.file.write_text(shop.file.read_text().replace('n = "count(*)", ', ""))
    send(shop.cluster, topic, [{"id": 1, "shop": name, "amount": 2**62} for name in "abcdefgh"])
    shop.run()
    send(shop.cluster, topic, [{"id": 2, "shop": name, "amount": 2**62 if name == "e" else 5} for name in "cdefg"])
    with pytest.raises(Failed) as caught:
        shop.run()
    said = str(caught.value)
    assert said.startswith("headrace.toml, line 9: tables/shops cannot be computed for shop = e"), said
    assert value in said
    assert "try_" in (caught.value.hint or "")


@pytest.mark.parametrize("where", ["", 'where = "n > 2"'])
def test_a_row_that_a_sink_loses_makes_the_run_red(
    shop: Workshop, headrace_topic: Topic, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Also if the sink has a `where` of its own: what it should take is counted before it is written."""
    topic = headrace_topic()
    text = '[pipelines.p]\nfrom = "<topic>"\ndecode = { json = "n int" }\n[[pipelines.p.into]]\ndelta = "tables/t"\n'
    shop.declare(text + where, topic=topic)
    send(shop.cluster, topic, [{"n": n} for n in range(6)])
    whole = sinks.shape
    monkeypatch.setattr(sinks, "shape", lambda sink, rows: whole(sink, rows).where("n != 3"))
    with pytest.raises(Failed, match="the ledger of p does not balance") as caught:
        shop.run()
    assert f"tables/t took {2 if where else 5} rows of {3 if where else 6}" in str(caught.value)
