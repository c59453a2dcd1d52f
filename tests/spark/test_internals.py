"""Where this Spark or Delta lacked an internal, the public way would give the same result; nothing is lacking."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

from headrace.pipeline.spark import internals
from headrace.pipeline.spark.internals import Counted, DeltaCommit, append_to_delta, has_committed, is_delta_table
from headrace.tables.table import read_table
from tests.spark.pipelines import Workshop, send, totals

Topic = Callable[..., str]

_SALES = """
[pipelines.p]
from = "<topic>"
decode = { json = "shop string, amount int" }
into = [{ delta = "tables/sales", partition_by = "shop" }, { parquet = "tables/files" }]
[pipelines.p.expect]
"is positive" = "amount > 0"
"""


def _lacking(*_: Any) -> Any:
    raise AttributeError("it is not there")


@pytest.fixture(autouse=True)
def counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "missing", set())


@pytest.fixture
def public(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The inside of Spark is out of reach."""
    for name in ("_jvm", "_java_session", "_java_frame"):
        monkeypatch.setattr(internals, name, _lacking)
    return monkeypatch


def _commit(number: int, *, may_exist: bool = False) -> DeltaCommit:
    return DeltaCommit("us", number, f"buses batch {number}", may_exist=may_exist)


def _committed(table: Path, version: int) -> dict[str, Any]:
    lines = (table / "_delta_log" / f"{version:020}.json").read_text().splitlines()
    return {name: action for line in lines for name, action in json.loads(line).items()}


def test_commits_to_delta_are_the_same(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "table"
    rows = spark.range(6).selectExpr("id", "id % 2 as part")
    assert append_to_delta(str(table), rows, _commit(0), ("part",)) == 6
    assert append_to_delta(str(table), rows.limit(4), _commit(1), ("part",)) == 4
    assert internals.missing == set()
    for name in ("_jvm", "_java_session", "_java_frame"):
        monkeypatch.setattr(internals, name, _lacking)
    assert append_to_delta(str(table), rows.limit(4), _commit(2), ("part",)) == 4
    assert append_to_delta(str(table), rows, _commit(1, may_exist=True), ("part",)) is None
    assert append_to_delta(str(table), rows.where("id > 9"), _commit(3), ("part",)) == 0
    assert internals.missing == {"append_to_delta", "has_committed"}
    ours, theirs = _committed(table, 1), _committed(table, 2)
    assert ours.keys() == theirs.keys()
    assert [(found["txn"]["appId"], found["txn"]["version"]) for found in (ours, theirs)] == [("us", 1), ("us", 2)]
    for what in ("operation", "isolationLevel", "isBlindAppend", "engineInfo"):
        assert ours["commitInfo"][what] == theirs["commitInfo"][what]


def _replaced(spark: SparkSession, table: Path) -> list[tuple[Any, ...]]:
    """The rows after two batches have replaced some, the second one also twice."""
    internals.create_for_replacing(
        str(table), spark.range(0).selectExpr("id", "'' as text", "id % 2 as part"), ("part",)
    )
    rows = spark.range(0, 8, 1, 1).selectExpr("id", "'old' as text", "id % 2 as part")
    append_to_delta(str(table), rows, _commit(0), ("part",))
    for number, gone in ((1, "id in (2, 4)"), (2, "part = 0"), (2, "id > 0")):
        rows = spark.read.format("delta").load(str(table)).withColumn("_old", internals.row_address())
        old = rows.where(gone).selectExpr("id", f"'{number}' as text", "part", "_old", "id != 4 as _new")
        more = spark.range(20, 22).selectExpr("id", "'more' as text", "id % 2 as part", "null as _old", "true as _new")
        changed = old.union(more).persist()
        internals.replace_in_delta(str(table), changed, _commit(number, may_exist=True), ("part",))
        changed.unpersist()
    return sorted(tuple(row) for row in spark.read.format("delta").load(str(table)).collect())


def test_rows_of_delta_are_replaced_alike(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _replaced(spark, tmp_path / "vectors")
    even = [(id_, "2", 0) for id_ in (0, 2, 6, 20)] + [(20, "more", 0)]
    odd = [(id_, "old", 1) for id_ in (1, 3, 5, 7)] + [(21, "more", 1)] * 2
    assert rows == sorted(even + odd)
    assert list((tmp_path / "vectors").glob("deletion_vector_*"))
    assert read_table(tmp_path / "vectors").count() == len(rows)
    assert internals.missing == set()
    monkeypatch.setattr(internals, "_jvm", _lacking)
    assert _replaced(spark, tmp_path / "public") == rows
    assert "replace_in_delta" in internals.missing


def _answers(spark: SparkSession, table: str) -> list[object]:
    tables = [is_delta_table(spark, path) for path in (table, f"{table}/_delta_log", f"{table}-none")]
    batches = [has_committed(spark, table, writer, number) for writer in ("us", "they") for number in (0, 11, 12)]
    version = internals.delta_version(spark, table)
    return [*tables, *batches, has_committed(spark, f"{table}-none", "us", 0), version[1], version]


def test_questions_to_delta_are_answered_alike(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of commits that lie in a checkpoint of the log only."""
    table = tmp_path / "table"
    spark.sql(f"create table delta.`{table}` (id long) using delta tblproperties ('delta.checkpointInterval' = '10')")
    for number in range(12):
        append_to_delta(str(table), spark.range(1), _commit(number))
    assert list((table / "_delta_log").glob("*.checkpoint.parquet"))
    answers = _answers(spark, str(table))
    assert answers[:6] == [True, False, False, True, True, False]
    assert answers[-2] == 12
    monkeypatch.setattr(internals, "_jvm", _lacking)
    assert _answers(spark, str(table)) == answers
    for old in sorted((table / "_delta_log").glob("*.json"))[:10]:
        old.unlink()
    assert has_committed(spark, str(table), "us", 8)
    assert internals.missing == {"is_delta_table", "has_committed", "delta_version"}


def test_rows_are_counted_alike(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def count(rows: DataFrame) -> int:
        counted = Counted(rows)
        counted.frame.collect()
        return counted.rows

    frames = [spark.range(7), spark.range(7).where("id > 3"), spark.range(7).where("false"), spark.range(0)]
    assert [count(frame) for frame in frames] == [7, 3, 0, 0]
    public = internals._public_count
    monkeypatch.setattr(internals, "_observed_count", public)
    assert [count(frame) for frame in frames] == [7, 3, 0, 0]


@pytest.mark.usefixtures("public")
def test_without_plans_steps_may_drop_rows_and_batches_are_jobs(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(3)
    assert internals.only_projects(rows.selectExpr("id + 1 as id"), rows) is False
    assert internals.projections(rows, tmp_path / "rows") is None
    assert internals.missing == {"only_projects", "projections"}


def test_what_java_throws_is_not_taken_for_missing(spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    append_to_delta(table, spark.range(3), _commit(0))
    with pytest.raises(Py4JError, match="DIVIDE_BY_ZERO"):
        append_to_delta(table, spark.range(3).selectExpr("cast(1 div id as long) as id"), _commit(1))
    with pytest.raises(Exception, match="No FileSystem for scheme"):
        is_delta_table(spark, "nonsense://nowhere/table")
    assert internals.missing == set()


def test_a_class_or_a_method_that_java_lacks_is_missing(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    calls: list[Callable[[], Any]] = [
        lambda: jvm.org.apache.spark.sql.delta.NoSuchCommand(),
        lambda: jvm.org.apache.spark.sql.SaveMode.Nonsense,
        lambda: jvm.java.util.ArrayList().nonsense(1),
        lambda: jvm.java.util.ArrayList("a", "b"),
        lambda: spark._nonsense,  # type: ignore[attr-defined]
    ]
    for call in calls:
        with pytest.raises((AttributeError, TypeError, Py4JError)) as caught:
            call()
        assert internals._is_missing(caught.value)


def test_a_run_comes_to_the_same_without_the_inside(
    shop: Workshop, headrace_topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = headrace_topic()
    shop.declare(_SALES, topic=topic)
    send(shop.cluster, topic, [{"shop": "a", "amount": n} for n in range(5)] + [b"{"])
    assert totals(shop.run()) == {"written": 4, "dead": 2}
    assert internals.missing == set()
    monkeypatch.setattr(internals, "_java_frame", _lacking)
    send(shop.cluster, topic, [{"shop": "b", "amount": n} for n in range(5)] + [b"{"])
    assert totals(shop.run()) == {"written": 4, "dead": 2}
    assert internals.missing == {"append_to_delta"}
    rows = sorted((row["shop"], row["amount"]) for row in shop.rows("tables/sales"))
    assert rows == [(name, n) for name in "ab" for n in range(1, 5)]
    assert len(shop.dead()) == 4
