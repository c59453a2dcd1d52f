"""A full refresh of a pipeline: its tables are made again from the records, and so is what is made from them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from headrace.errors import Failed, UsageError
from headrace.kafka import Kafka
from headrace.kafka.read import consume
from headrace.pipeline.books import rewind
from headrace.pipeline.graph import Graph, GraphObserver
from headrace.pipeline.spark.rebuild import _Emptying
from headrace.tables import read_table
from tests.spark.pipelines import Workshop, send

Topic = Callable[..., str]

DECLARED = """
[pipelines.speeds]
from = "<speeds>"
decode = { json = "trip int, speed int" }
expect = { "not negative" = "speed >= 0" }
deduplicate = ["trip", "speed"]
into = [
  { delta = "tables/speeds" },
  { parquet = "tables/copies" },
  { delta = "tables/means", aggregate = { by = ["trip"], values = { mean = "avg(speed)" } } },
]

[views.fast]
sql = "select trip, max(speed) as speed from speeds group by trip"
key = "trip"
"""
RECORDS = [{"trip": at % 5, "speed": at} for at in range(40)] + [{"trip": 1, "speed": -1}, {"trip": 0, "speed": 0}]


def left(shop: Workshop, topic: str) -> list[dict[str, int]]:
    """The records that the topic still has."""
    return [json.loads(record.value or b"") for record in consume(shop.cluster, topic)]


class Killed(BaseException):
    """The process is gone."""


def then_die(act: Callable[..., Any]) -> Callable[..., Any]:
    def acted(*given: Any, **named: Any) -> Any:
        act(*given, **named)
        raise Killed

    return acted


def test_tables_are_made_again_from_the_records(
    shop: Workshop, headrace_topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = headrace_topic(partitions=2)
    send(shop.cluster, topic, RECORDS)
    shop.declare(DECLARED, speeds=topic)
    said: list[str] = []

    def graph() -> Graph:
        return Graph.from_file(shop.file, shop.home)

    def refresh(**options: Any) -> dict[str, Any]:
        observer = GraphObserver(say=lambda _, text: said.append(text))
        report = graph().refresh("speeds", shop.cluster, spark=shop.spark, observer=observer, **options)
        return {node.name: node for node in report.nodes}

    def check(records: list[dict[str, int]], column: str = "speed") -> None:
        """The tables against the records."""
        good = {(row["trip"], row["speed"]) for row in records if row["speed"] >= 0}
        rows = Counter((row["trip"], int(row[column])) for row in shop.rows("tables/speeds"))
        assert rows == Counter(good)
        copies = shop.spark.read.parquet(str(shop.folder / "tables/copies")).count()
        assert copies == len(good)
        speeds = {trip: [speed for at, speed in good if at == trip] for trip, _ in good}
        means = {row["trip"]: row["mean"] for row in shop.rows("tables/means")}
        assert means == {trip: sum(found) / len(found) for trip, found in speeds.items()}
        fastest = {row["trip"]: int(row[column]) for row in shop.rows("tables/fast")}
        assert fastest == {trip: max(found) for trip, found in speeds.items()}
        assert len(shop.dead("speeds")) == sum(row["speed"] < 0 for row in records)

    assert {node.state for node in graph().run(shop.cluster, once=True, spark=shop.spark).nodes} == {"done"}
    check(RECORDS)

    # Without `full`, what is new is read.
    new = {"trip": 7, "speed": 70}
    send(shop.cluster, topic, [new])
    assert refresh()["speeds"].report.run.read == 1
    records = [*RECORDS, new]
    check(records)

    # Killed behind one step after the other: no run goes on from there, a refresh does. Nothing is there twice.
    before = read_table(shop.folder / "tables/speeds").version or 0
    pipeline = shop.pipeline("speeds")
    steps = ((_Emptying, "_set_aside"), (rewind, "_back_up"), (rewind, "_remove_folder"), (rewind, "remove_progress"))
    for where, name in steps:
        monkeypatch.setattr(where, name, then_die(getattr(where, name)))
        with pytest.raises(Killed):
            pipeline.start_over(shop.cluster, spark=shop.spark)
        monkeypatch.undo()
        with pytest.raises(Failed, match="a full refresh of speeds was cut off"):
            shop.run("speeds")
    assert not {"checkpoint", ".checkpoint.wiped", "seen"} & {path.name for path in pipeline.folder.root.iterdir()}
    done = refresh(full=True)
    (copies,) = (shop.folder / "tables").glob("copies.before-*")
    assert f"tables/copies: its rows of before are in {copies}" in said
    assert done["speeds"].report.run.read == len(records)
    assert done["fast"].update.mode == "full"
    check(records)
    assert not shop.pipeline("speeds").folder.refresh_file.exists()
    assert f"tables/speeds: its rows of before are version {before} of {shop.folder / 'tables/speeds'}" in said
    emptied = next(each for each in read_table(shop.folder / "tables/speeds").history() if each.version == before + 1)
    assert (emptied.operation, emptied.note) == ("DELETE", "speeds refresh")
    old = shop.spark.read.format("delta").option("versionAsOf", before).load(str(shop.folder / "tables/speeds"))
    assert old.count() == len(records) - 2  # one is dead, one a duplicate

    # Kafka has deleted records: they are counted, and nothing is changed unless that is accepted.
    with Kafka(shop.connection) as kafka:
        extent = kafka.extents([topic])[topic]
        assert extent is not None
        begin = {p.partition: min(5, p.end or 0) for p in extent.partitions}
        gone = [TopicPartition(topic, partition, offset) for partition, offset in begin.items()]
        kafka.settle(kafka.client.delete_records(gone), "delete records")
    lost = sum(begin.values())
    assert graph().plan_refresh("speeds", shop.cluster, full=True).lost == lost
    failed = refresh(full=True)
    assert f"Kafka no longer has {lost} records" in str(failed["speeds"].error)
    assert failed["fast"].state == "skipped"
    check(records)

    # Other columns: the old table is set aside, the new one is made in its place.
    select = 'select = { trip = "trip", miles = "cast(speed as double)" }'
    changed = DECLARED.replace("expect =", f"{select}\nexpect =")
    changed = changed.replace('deduplicate = ["trip", "speed"]', 'deduplicate = ["trip", "miles"]')
    changed = changed.replace("avg(speed)", "avg(miles)").replace("max(speed) as speed", "max(miles) as miles")
    shop.declare(changed, speeds=topic)
    done = refresh(full=True, accept_loss=True)
    assert done["speeds"].report.run.read == len(records) - lost
    check(left(shop, topic), "miles")
    (aside,) = (shop.folder / "tables").glob("speeds.before-*")
    assert shop.spark.read.format("delta").load(str(aside)).count() == len(records) - 2

    # What it is made from has to be there, and has to be its own.
    shop.declare(changed.replace("decode", 'start = "end"\ndecode', 1), speeds=topic)
    with pytest.raises(UsageError, match="starts at the end"):
        graph().plan_refresh("speeds", shop.cluster, full=True)
    other = 'from = "<speeds>"\ndecode = { json = "trip int, miles double" }\ninto = { delta = "tables/speeds" }'
    shop.declare(f"{changed}\n[pipelines.more]\n{other}", speeds=topic)
    with pytest.raises(UsageError, match="the table speeds is written by more too"):
        graph().plan_refresh("speeds", shop.cluster, full=True)
