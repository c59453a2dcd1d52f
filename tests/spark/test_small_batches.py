"""Topic to topic: a small batch is written by the driver, another one by the workers, and nobody can tell which."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from headrace.errors import Failed
from headrace.kafka.read.consumer import consume
from headrace.kafka.transactions import transaction
from headrace.pipeline.books.ledger import Ledger
from headrace.pipeline.spark.classify import Classifier
from headrace.pipeline.spark.internals import Projections
from headrace.pipeline.spark.sinks.kafka import write_here
from headrace.pipeline.spark.strategies import small_batches
from tests.spark.pipelines import Workshop, send, totals

Topic = Callable[..., str]

_COPY = """
[pipelines.<name>]
from         = "<source>"
decode       = { json = "id long, amount int, text string" }
where        = "amount != 0"
dead_letters = <letters>
[pipelines.<name>.select]
id     = "id"
half   = "amount / 2"
text   = "text"
[pipelines.<name>.expect]
"is positive" = "amount > 0"
"is round"    = { rule = "amount % 10 = 0", action = "warn" }
[[pipelines.<name>.into]]
topic  = "<target>"
key    = "name"
select = { name = "concat('n', id)", half = "half", text = "text" }
where  = "id != 13"
"""


class _Carried(list[int]):
    """The sizes of what the driver wrote."""


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch) -> _Carried:
    seen = _Carried()

    def spy(table: Any, target: Any) -> Any:
        seen.append(table.num_rows)
        return write_here(table, target)

    monkeypatch.setattr("headrace.pipeline.spark.strategies.small_batches.write_here", spy)
    return seen


def _records(count: int = 60) -> list[Any]:
    rows = [{"id": n, "amount": n % 9, "text": "ü" * n} for n in range(count)]
    return [*rows, {"id": 1, "amount": -5}, b"{torn", None, b'{"id": 9.5}']


def _declared(shop: Workshop, topic: Topic, letters: str = '"{dead}"', name: str = "p") -> tuple[str, str, str]:
    source, target, dead = topic(partitions=3), topic(), topic()
    shop.declare(_COPY, source=source, target=target, name=name, letters=letters.replace("{dead}", dead))
    return source, target, dead


def _read(shop: Workshop, topic: str) -> Counter[tuple[Any, ...]]:
    """Everything of each record but its offset and what names the run."""
    return Counter(
        (record.key, record.value, *(pair for pair in record.headers if pair[0] not in _OF_THE_RUN))
        for record in consume(shop.connection, topic)
    )


_OF_THE_RUN = {
    "headrace.run",
    "headrace.pipeline",
    "headrace.topic",
    "headrace.offset",
    "headrace.partition",
    "headrace.timestamp",
}


def test_both_ways_write_the_same(
    shop: Workshop, headrace_topic: Topic, carried: _Carried, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for name, small in (("p", small_batches._SMALL_RECORDS), ("q", 0)):
        monkeypatch.setattr(small_batches, "_SMALL_RECORDS", small)
        source, target, dead = _declared(shop, headrace_topic, name=name)
        send(shop.cluster, source, _records())
        report = shop.run(name)
        by_rule = sorted(shop.pipeline(name).ledger.by_rule(report.run.run))
        found.append((totals(report), report.run.warnings, by_rule, _read(shop, target), _read(shop, dead)))
    here, by_workers = found
    assert here == by_workers
    assert carried == [52, 4]
    assert here[0] == {"written": 53, "dead": 4, "filtered": 7}
    assert sum(here[3].values()) == 52
    assert here[3][b"n3", '{"name":"n3","half":1.5,"text":"üüü"}'.encode()] == 1


def test_a_large_value_goes_by_the_workers(shop: Workshop, headrace_topic: Topic, carried: _Carried) -> None:
    source, target, _ = _declared(shop, headrace_topic)
    send(shop.cluster, source, [{"id": 1, "amount": 2, "text": "x" * 30_000}, {"id": 2, "amount": 2}])
    assert totals(shop.run()) == {"written": 2}
    assert carried == []
    assert sorted(len(record.value or b"") > 30_000 for record in consume(shop.connection, target)) == [False, True]


def test_letters_for_a_table_go_by_the_workers(shop: Workshop, headrace_topic: Topic, carried: _Carried) -> None:
    source, target, _ = _declared(shop, headrace_topic, '{ table = "letters" }')
    send(shop.cluster, source, [{"id": 1, "amount": 2}])
    assert totals(shop.run()) == {"written": 1}
    assert carried == [1]
    send(shop.cluster, source, [{"id": 2, "amount": 2}, b"{torn"])
    assert totals(shop.run()) == {"written": 1, "dead": 1}
    assert carried == [1]
    assert [bytes(row["value"]) for row in shop.rows("letters")] == [b"{torn"]
    assert sum(_read(shop, target).values()) == 2


@pytest.mark.parametrize("repeated_by", ["the driver", "workers"])
def test_a_batch_that_was_cut_off_is_there_once(
    shop: Workshop, headrace_topic: Topic, carried: _Carried, monkeypatch: pytest.MonkeyPatch, repeated_by: str
) -> None:
    source, target, dead = _declared(shop, headrace_topic)
    send(shop.cluster, source, _records())

    def cut_off(*_: Any) -> None:
        raise OSError("cut off between the sink and the ledger")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "enter", cut_off)
        with pytest.raises(Failed, match="cut off"):
            shop.run()
    assert carried == [52, 4]
    if repeated_by == "workers":
        monkeypatch.setattr(small_batches, "_SMALL_RECORDS", 0)
    assert totals(shop.run()) == {"written": 53, "dead": 4, "filtered": 7}
    send(shop.cluster, source, [{"id": 100, "amount": 2}])
    assert totals(shop.run()) == {"written": 1}
    assert set(_read(shop, target).values()) == {1}
    assert sum(_read(shop, target).values()) == 53
    assert sum(_read(shop, dead).values()) == 4


@pytest.mark.parametrize("small", [small_batches._SMALL_RECORDS, 0])
def test_records_of_a_partition_stay_in_their_order(
    shop: Workshop, headrace_topic: Topic, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(small_batches, "_SMALL_RECORDS", small)
    source, target = headrace_topic(partitions=1), headrace_topic(partitions=1)
    text = 'max_records_per_batch = 300\ndecode = { json = "id long" }\ninto = { topic = "<target>" }\n'
    shop.declare(f'[pipelines.p]\nfrom = "<source>"\n{text}', source=source, target=target)
    send(shop.cluster, source, [{"id": number} for number in range(900)])
    assert totals(shop.run()) == {"written": 900}
    assert [json.loads(record.value or b"")["id"] for record in consume(shop.connection, target)] == list(range(900))


@pytest.mark.parametrize("small", [small_batches._SMALL_RECORDS, 0])
def test_a_topic_without_records(
    shop: Workshop, headrace_topic: Topic, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(small_batches, "_SMALL_RECORDS", small)
    source, target, _ = _declared(shop, headrace_topic)
    assert totals(shop.run()) == {}
    send(shop.cluster, source, [{"id": 1, "amount": 10}])
    assert totals(shop.run()) == {"written": 1}
    assert sum(_read(shop, target).values()) == 1


@pytest.mark.parametrize("small", [small_batches._SMALL_RECORDS, 0])
def test_a_row_that_is_lost_on_the_way_makes_the_run_red(
    shop: Workshop, headrace_topic: Topic, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(small_batches, "_SMALL_RECORDS", small)
    source, *_ = _declared(shop, headrace_topic)
    send(shop.cluster, source, _records())
    whole = Classifier.classify
    monkeypatch.setattr(Classifier, "classify", lambda classifier, *raw: whole(classifier, *raw).where("_offset != 3"))
    with pytest.raises(Failed, match="does not balance"):
        shop.run()


def test_now_is_another_one_for_each_batch(shop: Workshop, headrace_topic: Topic, carried: _Carried) -> None:
    source, target = headrace_topic(partitions=1), headrace_topic(partitions=1)
    text = 'decode = { json = "id long" }\nselect = { at = "cast(now() as double)" }\ninto = { topic = "<target>" }\n'
    shop.declare(f'[pipelines.p]\nfrom = "<source>"\nmax_records_per_batch = 1\n{text}', source=source, target=target)
    send(shop.cluster, source, [{"id": number} for number in range(3)])
    assert totals(shop.run()) == {"written": 3}
    assert carried == [1, 1, 1]
    times = [json.loads(record.value or b"")["at"] for record in consume(shop.connection, target)]
    assert times[0] < times[1] < times[2]


@pytest.mark.parametrize(("partitions", "without_a_job"), [(8, True), (9, False)])
def test_many_partitions_are_read_side_by_side(
    shop: Workshop, headrace_topic: Topic, carried: _Carried, monkeypatch: pytest.MonkeyPatch, *,
    partitions: int, without_a_job: bool,
) -> None:  # fmt: skip
    source, target = headrace_topic(partitions=partitions), headrace_topic(partitions=1)
    shop.declare(
        '[pipelines.p]\nfrom = "<source>"\ndecode = { json = "id long" }\ninto = { topic = "<target>" }\n',
        source=source, target=target,
    )  # fmt: skip
    with transaction(shop.connection) as writing:
        for number in range(5 * partitions):
            writing.send(source, {"id": number}, partition=number % partitions)
    batches, whole = list[Any](), Projections.table

    def table(projections: Projections, raw: Any) -> Any:
        batches.append(raw)
        return whole(projections, raw)

    monkeypatch.setattr(Projections, "table", table)
    assert totals(shop.run()) == {"written": 5 * partitions}
    assert carried == [5 * partitions]
    assert bool(batches) == without_a_job
    found = [json.loads(record.value or b"")["id"] for record in consume(shop.connection, target)]
    assert sorted(found) == list(range(5 * partitions))


class _TakenBack(Exception):
    """The transaction is aborted."""


def test_what_a_transaction_took_back_is_not_carried(shop: Workshop, headrace_topic: Topic, carried: _Carried) -> None:
    source, target, _ = _declared(shop, headrace_topic)
    send(shop.cluster, source, [{"id": 1, "amount": 2}])
    with suppress(_TakenBack), transaction(shop.connection, "taken-back") as writing:
        writing.send(source, b'{"id": 2, "amount": 2}')
        raise _TakenBack
    assert totals(shop.run()) == {"written": 1}
    assert carried == [1]
    assert sum(_read(shop, target).values()) == 1


def test_a_rule_that_fails_keeps_everything_back(shop: Workshop, headrace_topic: Topic, carried: _Carried) -> None:
    source, target, _ = _declared(shop, headrace_topic)
    rule = '"is positive" = '
    text = shop.file.read_text().replace(f'{rule}"amount > 0"', f'{rule}{{ rule = "amount > 0", action = "fail" }}')
    shop.file.write_text(text)
    send(shop.cluster, source, _records())
    with pytest.raises(Failed, match="expectation 'is positive' does not hold"):
        shop.run()
    assert carried == []
    assert not _read(shop, target)
