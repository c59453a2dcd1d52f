"""Batches into a Delta table: whose they are stands in the commit, in both ways that commits are made."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F

from headrace.pipeline.declaration import Declaration, Sink
from headrace.pipeline.delta_sink import write_delta
from headrace.pipeline.sinks import Batch
from headrace.pipeline.tables import read_table
from headrace.runtime.waiting import eventually
from headrace.transport.client import Connection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def _batch(spark: SparkSession, number: int, *, replaying: bool) -> Batch:
    declared = Declaration("buses", ("topic",), (Sink("delta", "unused"),))
    return Batch(spark, declared, number, "run", "us", Connection("127.0.0.1:1"), None, replaying=replaying, tasks=2)


def _commit(table: Path, version: int) -> dict[str, Any]:
    lines = (table / "_delta_log" / f"{version:020}.json").read_text().splitlines()
    return {name: action for line in lines for name, action in json.loads(line).items()}


def test_later_batches_are_committed_as_by_deltas_own_writer(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    for number, replaying in enumerate([True, True, False]):
        assert (
            write_delta(str(table), spark.range(number + 1), _batch(spark, number, replaying=replaying)) == number + 1
        )
    by_writer, by_command = _commit(table, 1), _commit(table, 2)
    assert by_writer["txn"]["appId"] == by_command["txn"]["appId"] == f"us/{table}"
    assert (by_writer["txn"]["version"], by_command["txn"]["version"]) == (1, 2)
    assert by_command["commitInfo"]["userMetadata"] == "buses batch 2"
    assert by_command["commitInfo"]["operationMetrics"]["numOutputRows"] == "3"
    assert by_writer.keys() == by_command.keys()
    for what in ("operation", "isolationLevel", "isBlindAppend", "engineInfo"):
        assert by_writer["commitInfo"][what] == by_command["commitInfo"][what]


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
