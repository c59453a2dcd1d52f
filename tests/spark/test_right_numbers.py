"""Numbers that a pipeline writes, against those that its declaration says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.pipeline.books.dead_letters import Letter
from headrace.pipeline.spark.dry_run import originals
from headrace.pipeline.spark.run import Run
from headrace.pipeline.spark.sinks import sinks, topic
from tests.spark.pipelines import Workshop, send, totals

Topic = Callable[..., str]

_SHOPS = """
[pipelines.p]
from = "<topic>"
decode = { json = "shop string, amount int" }
[[pipelines.p.into]]
delta = "rows"
select = { shop = "shop", amount = "amount", net = "amount - 1" }
[[pipelines.p.into]]
delta = "merged"
where = "amount > 0"
select = { shop = "shop", amount = "amount * 2", most = "amount + 1" }
partition_by = "shop"
aggregate = { by = ["shop"], values = { total = "sum(amount)", most = "max(most)" } }
[[pipelines.p.into]]
delta = "recomputed"
where = "net >= 0"
select = { shop = "upper(shop)", net = "net * 10" }
partition_by = ["shop"]
aggregate = { by = ["shop"], mode = "recompute", values = { total = "sum(net)", rows = "count(distinct net)" } }
"""
_AMOUNTS = {"a": [3, -5, 8, 8], "b": [1, 0, 6], "c": [-7, 0]}


def _partitioning(shop: Workshop, table: str) -> list[str]:
    (row,) = shop.spark.sql(f"describe detail delta.`{shop.folder / table}`").collect()
    return list(row["partitionColumns"])


def test_an_aggregate_takes_what_its_sink_selects_and_wants(shop: Workshop, headrace_topic: Topic) -> None:
    topic = headrace_topic(partitions=2)
    shop.declare(_SHOPS, topic=topic)
    send(shop.cluster, topic, [{"shop": name, "amount": n} for name, given in _AMOUNTS.items() for n in given])
    assert totals(shop.run()) == {"written": 9}
    wanted = {name: [n for n in given if n > 0] for name, given in _AMOUNTS.items() if max(given) > 0}
    merged = {row["shop"]: (row["total"], row["most"]) for row in shop.rows("merged")}
    assert merged == {name: (2 * sum(given), 2 * max(given) + 1) for name, given in wanted.items()}
    found = {row["shop"]: (row["total"], row["rows"]) for row in shop.rows("recomputed")}
    assert found == {n.upper(): (10 * sum(v - 1 for v in g), len(set(g))) for n, g in wanted.items()}
    for table in ("merged", "recomputed"):
        assert _partitioning(shop, table) == ["shop"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('select = { shop = "shop", amount = "amount * 2", most', 'select = { amount = "amount * 2", most',
         r"line 13: .*`shop` cannot be resolved"),
        ('where = "net >= 0"', 'where = "missing >= 0"', r"line 16: .*`missing` cannot be resolved"),
        ('select = { shop = "upper(shop)", net', 'select = { at = "_offset", shop = "upper(shop)", net',
         r"line 17: .*`_offset` cannot be resolved"),
        ('partition_by = ["shop"]\naggregate = { by = ["shop"], mode = "recompute"',
         'partition_by = ["net"]\naggregate = { by = ["shop"], mode = "recompute"', r"line 18: .*net"),
        ('delta = "rows"\n', 'delta = "rows"\npartition_by = "day"\n', "line 7: .*day"),
    ],
)  # fmt: skip
def test_what_a_sink_cannot_take_is_said_with_its_own_line(shop: Workshop, old: str, new: str, words: str) -> None:
    assert old in _SHOPS
    shop.declare(_SHOPS.replace(old, new), topic="any")
    with pytest.raises(ConfigError, match=words):
        shop.pipeline().explain(shop.spark)


_TWO = """
[pipelines.p]
from = "a"
decode = { json = "n int, at timestamp" }
into = { delta = "t/shared" }
[pipelines.q]
from = "b"
decode = { json = "at timestamp, n int" }
into = [{ topic = "c" }, { delta = "./t/shared/" }]
"""


_ONE_WRITER = (
    "changes by key are compared with the rows that are there; two that do so at once would each miss what the "
    "other writes"
)


def test_pipelines_that_write_one_table_agree_on_its_columns(shop: Workshop) -> None:
    def explain(old: str = "", new: str = "") -> None:
        shop.declare(_TWO.replace(old, new))
        shop.pipeline().explain(shop.spark)

    explain()
    for old, new, words in (
        ("timestamp, n int", "timestamp, n long", "only here: n int; only there: n bigint"),
        ("timestamp, n int", "timestamp", "only here: n int"),
        ('{ delta = "./', '{ parquet = "./', "as parquet, not delta"),
        ('./t/shared/"', './t/shared/", partition_by = "n"', "partitioned by n"),
        ('./t/shared/"', './t/shared/", upsert = { key = "n" }', _ONE_WRITER),
        ("{ delta", '{ changes = { key = "n", sequence = "at" }, delta', _ONE_WRITER),
        ('{ delta = "./t/shared/" }]', ']\ndead_letters = { table = "t/shared" }', "its dead letters go there"),
    ):
        with pytest.raises(ConfigError, match="line 5: pipeline q writes the table t/shared too") as told:
            explain(old, new)
        assert told.value.why == words
    explain("at timestamp, n int", "at nonsense")  # that one cannot run anyway
    (shop.folder / "neighbours.py").write_text("def raising(frame):\n    raise RuntimeError('not today')\n")
    explain('from = "b"', 'from = "b"\nselect = { python = "neighbours:raising" }')  # nor that one
    with pytest.raises(ConfigError, match="line 6: pipeline q writes the table t/shared too") as told:
        explain('{ delta = "t/shared" }', '{ delta = "t/mine" }\ndead_letters = { table = "t/shared" }')
    assert told.value.why == "the dead letters of this one go there"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('event_time = "text"', "line 5: event_time text is not a timestamp but a string"),
        ('event_time = "day"\nselect = { day = "now()::date" }\nwatermark = "1 day"', "line 5: event_time day is not"),
        ('kafka = { nonsense = 1 }', "line 5: Kafka's consumer has no property nonsense"),
        ('kafka = { "fetch.max.byte" = 1 }', "line 5: Kafka's consumer has no property fetch.max.byte"),
        ('kafka.fetch.max.bytes = "abc"', "line 5: Invalid value abc for configuration fetch.max.bytes"),
        ('[pipelines.p.kafka]\n"fetch.max.bytes" = -5', "line 6: Invalid value -5 for configuration fetch.max.bytes"),
        ('kafka."key.deserializer" = "x.Y"', "line 5: Invalid value x.Y for configuration key.deserializer"),
        ('kafka = { "auto.offset.reset" = "earliest" }', "line 5: Kafka option 'auto.offset.reset' is not supported"),
    ],
)  # fmt: skip
def test_what_kafka_and_windows_cannot_take_is_refused_with_its_line(shop: Workshop, text: str, words: str) -> None:
    shop.declare(f'[pipelines.p]\nfrom = "a"\ninto = {{ delta = "t" }}\ndecode = {{ json = "text string" }}\n{text}')
    with pytest.raises(ConfigError) as told:
        shop.pipeline().explain(shop.spark)
    assert told.value.problem.startswith(f"headrace.toml, {words}")


_ABOVE = """
[pipelines.p]
from = "any"
decode = { json = '''amount int, at timestamp, times map<string, array<timestamp>>, text string, timestamp long,
  named struct<timestamp: array<long>, n: int>''' }
[pipelines.p.select]
amount = "abs(amount)"
<more>
"per cent" = "amount * 100"
total = "amount + <one>"
share = "`per cent` / 1000"
text = "text"
[[pipelines.p.into]]
topic = "out"
select = { amount = "-amount", <more> total = "amount + <one>", above = "total * 2", text = "text" }
"""


@pytest.mark.parametrize(("more", "one"), [("", "1"), ('one = "1"', "one")])
def test_a_name_means_the_column_above_it_whatever_else_is_selected(shop: Workshop, more: str, one: str) -> None:
    text = _ABOVE.replace("<more>", more, 1).replace("<more>", more and f"{more},")
    shop.declare(text, one=one)
    found = _classified(shop, [b'{"amount": -10}'])
    assert [(row["amount"], row["total"], row["share"]) for row in found] == [(10, 11, 1.0)]


def test_a_number_too_large_for_a_time_is_a_dead_letter(shop: Workshop) -> None:
    shop.declare(_ABOVE, more="", one="1")
    last = 9_223_372_036_854  # seconds that fit into 64 bits of microseconds
    good = [
        b'{"at": 1600000000}', b'{"at": %d}' % last, b'{"at": -%d}' % last, b'{"text": "99999999999999999"}',
        b'{"timestamp": 99999999999999999, "named": {"timestamp": [99999999999999999]}}',
    ]  # fmt: skip
    bad = [99999999999999999, -99999999999999999, last + 1, 288230376151711744 + 1600000000]
    nested = [b'{"times": {"a": [5], "b": [1, 99999999999999999]}}']
    found = _classified(shop, [*good, *[b'{"at": %d}' % n for n in bad], *nested])
    assert [row["_outcome"] for row in found] == ["written"] * 5 + ["dead"] * 5
    assert {row["_reason"] for row in found[5:]} == {"a number too large for a timestamp, in seconds"}


def _classified(shop: Workshop, values: list[bytes]) -> list[Any]:
    """What becomes of the records; the sink has the same rows by both of its ways."""
    pipeline = shop.pipeline()
    classifier = Run(shop.spark, pipeline.declaration, pipeline.folder, shop.connection).prepare()
    letters = [Letter(b"k", value, (), "p", "", "", "", "", "any", 0, at, 0, "") for at, value in enumerate(values)]
    rows = classifier.classify(originals(classifier.spark, letters)).persist()
    (sink,) = pipeline.declaration.sinks
    good = rows.where("_outcome = 'written'")
    by_jobs = sinks.shape(sink, good)
    by_driver = topic.sending(pipeline.declaration, sink, rows).where("_good").select(*by_jobs.columns)
    made = by_jobs.orderBy("_offset").collect()
    assert made == by_driver.orderBy("_offset").collect()
    for row, given in zip(made, good.orderBy("_offset").collect(), strict=True):
        if given["amount"] is not None:
            assert (row["amount"], row["total"]) == (-given["amount"], 1 - given["amount"])
            assert row["above"] == 2 * row["total"]
    return list(rows.orderBy("_offset").collect())
