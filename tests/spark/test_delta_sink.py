"""Batches into a Delta table: whose they are stands in the commit, whether they were looked up or not."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from headrace.kafka.client import Connection
from headrace.pipeline.declare.declaration import Declaration, Sink
from headrace.pipeline.spark.sinks.delta import write_delta
from headrace.pipeline.spark.sinks.sinks import Batch
from headrace.runtime.waiting import eventually
from headrace.tables.table import read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def _batch(spark: SparkSession, number: int, *, replaying: bool) -> Batch:
    declared = Declaration("buses", ("topic",), (Sink("delta", "unused"),))
    return Batch(spark, declared, number, "run", "us", Connection("127.0.0.1:1"), None, replaying=replaying, tasks=2)


def _commit(table: Path, version: int) -> dict[str, Any]:
    lines = (table / "_delta_log" / f"{version:020}.json").read_text().splitlines()
    return {name: action for line in lines for name, action in json.loads(line).items()}


@pytest.mark.parametrize("replaying", [True, False])
def test_batches_are_committed_as_by_deltas_own_writer(spark: SparkSession, tmp_path: Path, replaying: bool) -> None:
    table = tmp_path / "table"
    noted = {"txnAppId": f"us/{table}", "txnVersion": "0", "userMetadata": "buses batch 0", "mergeSchema": "true"}
    spark.range(2).write.format("delta").mode("append").options(**noted).save(str(table))
    spark.range(2).write.format("delta").mode("append").options(**noted | {"txnVersion": "1"}).save(str(table))
    assert write_delta(str(table), spark.range(3), _batch(spark, 2, replaying=replaying)) == 3
    theirs, ours = _commit(table, 1), _commit(table, 2)
    assert theirs["txn"]["appId"] == ours["txn"]["appId"]
    assert (theirs["txn"]["version"], ours["txn"]["version"]) == (1, 2)
    assert ours["commitInfo"]["userMetadata"] == "buses batch 2"
    assert ours["commitInfo"]["operationMetrics"]["numOutputRows"] == "3"
    assert theirs.keys() == ours.keys()
    for what in ("operation", "isolationLevel", "isBlindAppend", "engineInfo"):
        assert theirs["commitInfo"][what] == ours["commitInfo"][what]


def test_a_batch_that_was_written_is_not_written_again(spark: SparkSession, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    for number in range(2):
        write_delta(table, spark.range(5), _batch(spark, number, replaying=False))
    assert write_delta(table, spark.range(5), _batch(spark, 1, replaying=True)) is None
    assert write_delta(table, spark.range(5), _batch(spark, 2, replaying=True)) == 5
    assert read_table(Path(table)).count() == 15


@pytest.mark.parametrize("replaying", [True, False])
def test_a_batch_without_rows(spark: SparkSession, tmp_path: Path, replaying: bool) -> None:
    table = str(tmp_path / "table")
    write_delta(table, spark.range(5), _batch(spark, 0, replaying=True))
    assert write_delta(table, spark.range(5).where("false"), _batch(spark, 1, replaying=replaying)) == 0
    assert write_delta(table, spark.range(5).where("id > 7"), _batch(spark, 2, replaying=replaying)) == 0
    assert read_table(Path(table)).count() == 5


@pytest.mark.parametrize("replaying", [True, False])
def test_of_two_who_write_the_same_batch_one_is_refused(spark: SparkSession, tmp_path: Path, replaying: bool) -> None:
    table = str(tmp_path / "table")
    write_delta(table, spark.range(5), _batch(spark, 0, replaying=True))
    with ThreadPoolExecutor(1) as aside:
        first = aside.submit(write_delta, table, _slow(spark, tmp_path), _batch(spark, 1, replaying=replaying))
        try:
            eventually((tmp_path / "begun").exists, 60)
            assert write_delta(table, spark.range(5), _batch(spark, 1, replaying=False)) == 5
        finally:
            (tmp_path / "go on").touch()
    assert "DELTA_CONCURRENT_TRANSACTION" in str(first.exception())
    assert read_table(Path(table)).count() == 10


def _slow(spark: SparkSession, folder: Path) -> DataFrame:
    """Five rows that come when they are told to."""

    def when_told(number: int) -> int:
        (folder / "begun").touch()
        eventually((folder / "go on").exists, 60)
        return number

    return spark.range(0, 5, 1, 1).select(F.udf(when_told, "long", useArrow=False)("id").alias("id"))
