"""One record, many rows or none: a record has one outcome, and its rows are written together or not at all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from headrace.errors import ConfigError, Failed
from tests.spark.pipelines import Workshop, send, totals

Topic = Callable[..., str]

ORDERS = """
[pipelines.p]
from = "<topic>"
decode = { json = "id int, items array<struct<sku: string, price: int>>" }
where = "price < 1000"
deduplicate = ["sku"]
[pipelines.p.select]
id = "id"
"pos, item" = "posexplode(items)"
sku = "item.sku"
price = "item.price"
share = "cast(100 / price as int)"
offset = "_offset"
[pipelines.p.expect]
"costs something" = "price > 0"
[[pipelines.p.into]]
delta = "tables/items"
[[pipelines.p.into]]
delta = "tables/cheap"
where = "price < 5"
[[pipelines.p.into]]
delta = "tables/orders"
aggregate = { by = ["id"], values = { total = "sum(price)", items = "count(*)" } }
"""


def order(number: int, *prices: int, sku: str = "") -> dict[str, Any]:
    items = [{"sku": sku or f"{number}-{at}", "price": price} for at, price in enumerate(prices)]
    return {"id": number, "items": items}


def test_a_record_becomes_a_row_for_each_element_and_dies_as_a_whole(shop: Workshop, headrace_topic: Topic) -> None:
    topic = headrace_topic()
    shop.declare(ORDERS, topic=topic)
    bad: list[Any] = [order(4, 8, 0, 8), order(5, 8, -1, -2), b"junk"]
    none = [order(2), {"id": 3, "items": None}, order(7, 5000)]
    send(shop.cluster, topic, [order(1, 4, 5, 4), *none, *bad, order(6, 2, 5000), order(8, 2, 2, 2, sku="same")])
    report = shop.run()
    assert totals(report) == {"written": 3, "dead": 3, "filtered": 3}
    (line,) = report.ledger
    assert (report.run.read, report.run.rows, line.written, line.rows) == (9, 5, 3, 5)
    assert {(o, rule): n for o, rule, n in shop.pipeline().ledger.by_rule()} == {
        ("dead", "decode"): 1, ("dead", "select"): 1, ("dead", "costs something"): 1,
        ("filtered", "posexplode(items)"): 2, ("filtered", "where"): 1,
    }  # fmt: skip
    assert [(found.sink, found.rows, found.skipped, found.taken) for found in report.sinks] == [
        ("tables/items", 5, 0, 5), ("tables/cheap", 5, 1, 4), ("tables/orders", 5, 0, 5),
        ("dead letters", None, None, 3),
    ]  # fmt: skip
    rows = [(row["id"], row["pos"], row["price"], row["share"], row["offset"]) for row in shop.rows("tables/items")]
    assert sorted(rows) == [(1, 0, 4, 25, 0), (1, 1, 5, 20, 0), (1, 2, 4, 25, 0), (6, 0, 2, 50, 7), (8, 0, 2, 50, 8)]
    assert {row["id"]: (row["total"], row["items"]) for row in shop.rows("tables/orders")} == {
        1: (13, 3), 6: (2, 1), 8: (2, 1)
    }  # fmt: skip
    assert Counter(bytes(letter["value"]) for letter in shop.dead()) == Counter(
        value if isinstance(value, bytes) else json.dumps(value).encode() for value in bad
    )


STEPS = """
from pyspark.sql import functions as F

def many(frame):
    return frame.withColumn("n", F.explode(F.expr("filter(array(1, 2, 3), x -> x <= id)")))

def odd(frame):
    return frame.where("n % 2 = 1")

def inventive(frame):
    return frame.union(frame.withColumn("_offset", F.col("_offset") + 1000))
"""


def test_a_function_may_drop_and_multiply_rows_but_not_invent_records(shop: Workshop, headrace_topic: Topic) -> None:
    topic = headrace_topic()
    module = f"many_{abs(hash(topic))}"
    (shop.folder / f"{module}.py").write_text(STEPS)
    text = """
[pipelines.p]
from = "<topic>"
decode = { json = "id int" }
select = { python = "<module>:<select>" }
<where>
into = { delta = "tables/t" }
"""
    send(shop.cluster, topic, [{"id": n} for n in (0, 1, 2, 3)] + [b"junk"])
    shop.declare(text, topic=topic, module=module, select="inventive", where="")
    with pytest.raises(Failed, match="line 5: batch 0 does not balance") as caught:
        shop.run()
    assert "5 records were read, 9 have an outcome; nothing was written" in str(caught.value)
    assert not (shop.folder / "tables").exists()
    where = f'where = {{ python = "{module}:odd" }}'
    shop.declare(text, topic=topic, module=module, select="many", where=where)
    report = shop.run()
    # A record that could not be decoded is a dead letter, although both functions would leave it out.
    assert totals(report) == {"written": 3, "filtered": 1, "dead": 1}
    assert [bytes(letter["value"]) for letter in shop.dead()] == [b"junk"]
    assert report.run.rows == 4
    assert set(shop.pipeline().ledger.by_rule()) == {("filtered", "select, where", 1), ("dead", "decode", 1)}
    assert sorted((row["id"], row["n"]) for row in shop.rows("tables/t")) == [(1, 1), (2, 1), (3, 1), (3, 3)]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('select = { a = "explode(xs)", b = "explode(ys)" }', r"line 4: select has explode\(xs\) and explode\(ys\)"),
        ('select = { a = "explode(id)" }', r"line 4: explode\(id\): id is int"),
        ('select = { "a, b" = "explode(xs)" }', r"line 4: a, b are 2 names for explode\(xs\)"),
        ('select = { a = "explode(xs)", b = "a + nothing" }', r"line 4: .*nothing"),
        ('select = { a = "explode(xs)" }\ntrigger = "realtime"\ndead_letters = "d"', r"line 4: explode\(xs\) may make"),
    ],
)
def test_what_cannot_be_exploded_is_said_with_its_line(
    shop: Workshop, headrace_topic: Topic, lines: str, said: str
) -> None:
    into = 'topic = "out"' if "realtime" in lines else 'delta = "t"'
    decode = '{ json = "id int, xs array<int>, ys array<int>" }'
    shop.declare(f'[pipelines.p]\nfrom = "{headrace_topic()}"\ndecode = {decode}\n{lines}\ninto = {{ {into} }}\n')
    with pytest.raises(ConfigError, match=said):
        shop.pipeline().explain(shop.spark)
