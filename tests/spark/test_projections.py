"""What the driver makes of a batch without a job is what Spark makes of it with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.pipeline.spark.internals import projections

_OF_ALL_KINDS = [
    "id", "cast(id as string) as text", "cast(null as int) as none", "id % 2 = 0 as even", "id / 3 as third",
    "cast(id as decimal(20, 4)) as exact", "cast(concat('ü', id) as binary) as bytes", "sequence(0, id) as many",
    "named_struct('a', id, 'b', array(named_struct('key', 'k', 'value', cast('v' as binary)))) as deep",
    "from_json(concat('{\"n\":', id, '}'), 'n long') as parsed", "to_json(struct(id)) as json",
    "date_add(date'2020-02-28', cast(id as int)) as day", "if(id > 2, repeat('x', 30000), null) as large",
]  # fmt: skip


def _batch(spark: SparkSession, first: int, after: int) -> DataFrame:
    """Rows behind which Spark sees no plan any more, as those of a streaming batch are."""
    rows = spark.range(first, after, numPartitions=2)._jdf
    session = spark._jsparkSession
    return DataFrame(session.internalCreateDataFrame(rows.queryExecution().toRdd(), rows.schema(), False), spark)


def test_the_rows_are_those_of_a_job(spark: SparkSession, tmp_path: Path) -> None:
    first = _batch(spark, 0, 4)
    made = projections(first.selectExpr(*_OF_ALL_KINDS).withColumn("later", F.expr("text || day")), tmp_path / "rows")
    assert made is not None
    for batch, count in ((first, 4), (_batch(spark, 4, 900), 896), (_batch(spark, 5, 5), 0)):
        table, read = made.table(batch)
        by_job = batch.selectExpr(*_OF_ALL_KINDS).withColumn("later", F.expr("text || day")).toArrow()
        assert table.to_pylist() == by_job.to_pylist()
        assert table.num_rows == read == count
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "made",
    [
        "current_timestamp()", "cast(now() as string) || id", "current_date()", "rand()", "uuid()",
        "(select max(r.id) from range(3) r)", "explode(sequence(0, id))", "row_number() over (order by id)",
    ],
)  # fmt: skip
def test_what_differs_between_batches_or_needs_more_is_left_to_jobs(
    spark: SparkSession, tmp_path: Path, made: str
) -> None:
    assert projections(_batch(spark, 0, 3).selectExpr(f"{made} as made"), tmp_path / "rows") is None


def test_python_functions_are_left_to_jobs(spark: SparkSession, tmp_path: Path) -> None:
    same = F.udf(lambda number: number, "long", useArrow=False)
    assert projections(_batch(spark, 0, 3).select(same("id")), tmp_path / "rows") is None


def test_rows_that_are_left_out_or_counted_are_left_to_jobs(spark: SparkSession, tmp_path: Path) -> None:
    batch = _batch(spark, 0, 3)
    assert projections(batch.where("id > 1"), tmp_path / "rows") is None
    assert projections(batch.groupBy("id").count(), tmp_path / "rows") is None


def test_a_batch_that_fails_leaves_nothing_behind(spark: SparkSession, tmp_path: Path) -> None:
    made = projections(_batch(spark, 0, 3).selectExpr("cast(6 div id as long) as n"), tmp_path / "rows")
    assert made is not None
    with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"):
        made.table(_batch(spark, 0, 3))
    jvm: Any = spark._jvm
    assert jvm.org.apache.spark.TaskContext.get() is None
    assert not list(tmp_path.iterdir())
    table, read = made.table(_batch(spark, 1, 4))
    assert (table.to_pylist(), read) == ([{"n": 6}, {"n": 3}, {"n": 2}], 3)
