"""Tables that Spark wrote, read without Spark: the same rows, the same counts, the same answers to conditions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.errors import Failed, UsageError
from headrace.kafka.client import Connection
from headrace.pipeline.declare.declaration import Declaration, Sink
from headrace.pipeline.spark.sinks.delta import write_delta
from headrace.pipeline.spark.sinks.sinks import Batch, writer_of
from headrace.query import sql
from headrace.tables.table import Query, read_table
from tests.conftest import Headrace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COLUMNS = """
    id, cast(id % 2 as int) as part, concat('bus ', id) as name, cast(id * 1.5 as double) as speed,
    if(id % 5 = 0, null, cast(id as decimal(12, 3))) as fare,
    timestamp'2020-09-10 23:59:59.123456' + make_dt_interval(0, 0, id) as at,
    cast(timestamp'2020-09-10' as timestamp_ntz) as local, date'2020-09-10' + cast(id % 4 as int) as day,
    id % 2 = 0 as even, cast(concat('b', id) as binary) as raw,
    array(named_struct('x', cast(id as int))) as list, map('k', id) as pairs,
    named_struct('start', id, 'end', id + 1) as span
"""


_ROWS = 60
_LEFT = [n for n in range(40) if not 10 <= n <= 15]


def batch(spark: SparkSession, number: int, name: str = "trips") -> Batch:
    declared = Declaration(name, ("topic",), (Sink("delta", "unused"),))
    return Batch(spark, declared, number, "run", "writer", Connection("127.0.0.1:1"), None, replaying=False, tasks=2)


def rows(spark: SparkSession, first: int, after: int) -> DataFrame:
    return spark.range(first, after, 1, 1).selectExpr(*_split(_COLUMNS))


def _split(columns: str) -> list[str]:
    """At commas outside of brackets."""
    found, depth = [""], 0
    for character in columns:
        depth += (character == "(") - (character == ")")
        if character == "," and not depth:
            found.append("")
        else:
            found[-1] += character
    return found


@pytest.fixture(scope="module")
def trips(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Columns of every type, in partitions; the second batch has a column that the first had not."""
    path = tmp_path_factory.mktemp("tables") / "trips"
    write_delta(str(path), rows(spark, 0, 50), batch(spark, 0), ("part",))
    write_delta(str(path), rows(spark, 50, 60).selectExpr("*", "'late' as remark"), batch(spark, 1), ("part",))
    return path


@pytest.fixture(scope="module")
def changed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Appended to, summed up by checkpoints, with files removed and with rows deleted inside of files."""
    path = tmp_path_factory.mktemp("tables") / "changed"
    properties = "'delta.checkpointInterval' = '2', 'delta.enableDeletionVectors' = 'true'"
    columns = "id long, part long"
    spark.sql(f"create table delta.`{path}` ({columns}) using delta partitioned by (part) tblproperties ({properties})")

    def data(first: int, after: int) -> DataFrame:
        return spark.range(first, after, 1, 1).selectExpr("id", "id % 2 as part")

    write_delta(str(path), data(500, 510), batch(spark, 0), ("part",))
    data(0, 30).write.format("delta").mode("overwrite").save(str(path))
    spark.sql(f"delete from delta.`{path}` where id between 10 and 15")
    write_delta(str(path), data(30, 40), batch(spark, 1), ("part",))
    assert list((path / "_delta_log").glob("*.checkpoint*.parquet"))
    assert list(path.glob("deletion_vector_*.bin"))
    return path


def by_id(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(found, key=lambda row: row["id"])


def of_spark(frame: DataFrame) -> list[dict[str, Any]]:
    """Spark's rows as Arrow tells them."""
    return by_id(frame.toArrow().to_pylist())


def test_a_delta_table_row_by_row(spark: SparkSession, trips: Path) -> None:
    table = read_table(trips)
    read = by_id([row for found in table.batches() for row in found.to_pylist()])
    expected = of_spark(spark.read.format("delta").load(str(trips)))
    assert len(read) == _ROWS
    assert read == expected
    assert table.count() == _ROWS
    assert table.schema.names == list(expected[0])
    types = {column.name: column.type for column in table.columns}
    assert types["fare"] == "decimal(12,3)"
    assert types["list"] == "array<struct<x: int>>"
    assert [column.name for column in table.columns if column.partition] == ["part"]


def test_deleted_rows_are_not_read(spark: SparkSession, changed: Path) -> None:
    table = read_table(changed)
    read = sorted(row["id"] for found in table.batches() for row in found.to_pylist())
    assert read == _LEFT
    assert table.count() == len(_LEFT)
    assert table.count("id between 9 and 17") == len([n for n in _LEFT if 9 <= n <= 17])
    detail = spark.sql(f"describe detail delta.`{changed}`").collect()[0]
    assert (table.file_count, table.size_bytes) == (detail["numFiles"], detail["sizeInBytes"])


def test_a_condition_means_what_it_means_to_spark(spark: SparkSession, trips: Path) -> None:
    conditions = [
        "id = 6", "id != 6 and part = 1", "part in (0, 2) or name like 'bus 4%'", "fare is null", "fare >= 12.500",
        "not (even = true)", "speed between 30 and 45.5", "at > '2020-09-11 00:00:30'", "day <= '2020-09-11'",
        "at < '2020-09-11T00:00:10.123456Z' and id > 3", "id >= 49 and id < 52", "remark = 'late'", "remark is null",
        "name not like '%9' and id not in (1, 2)", "local = '2020-09-10'", "id = 99999", "span.start = 12",
    ]  # fmt: skip
    columns = [f"sort_array(collect_list(if({where}, id, null))) as c{at}" for at, where in enumerate(conditions)]
    (expected,) = spark.read.format("delta").load(str(trips)).selectExpr(*columns).collect()
    table = read_table(trips)
    for where, ids in zip(conditions, expected, strict=True):
        assert table.head(Query(("id",), where, "id", limit=1000)).column("id").to_pylist() == ids, where
        assert table.count(where) == len(ids), where
    assert 0 < len(expected[0]) < len(expected[2])


def test_sql_answers_as_spark_does(spark: SparkSession, trips: Path, changed: Path, tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text(
        "".join(f'[pipelines.{p.name}]\nfrom = "t"\ninto = {{ delta = "{p}" }}\n' for p in (trips, changed))
    )
    for path in (trips, changed):
        spark.read.format("delta").load(str(path)).createOrReplaceTempView(path.name)
    for query in (
        "select part, count(*) as n, sum(fare) as fare, min(at) as first, max(day) as day, avg(speed) as speed,"
        " count(remark) as late from trips group by part order by part",
        "select id, name, fare, at, local, day, even, raw, list, pairs, span, remark from trips where id % 7 = 0"
        " and at > '2020-09-11 00:10:00' order by id",
        "select t.id, c.part, span.start + 1 as n from trips t join changed c on t.id = c.id where not even"
        " order by t.id",
        "select count(*) as n, sum(id) as total from changed where part = 1",
        "select id, lag(id) over (partition by part order by id) as before from changed order by id",
        "with few as (select * from changed where id < 20) select max(id) as id, count(distinct part) as n from few",
    ):
        assert sql(query, home=tmp_path).rows() == spark.sql(query).toArrow().to_pylist(), query


def test_the_history_tells_batches_and_rows(spark: SparkSession, changed: Path) -> None:
    commits = read_table(changed).history(100)
    expected = spark.sql(f"describe history delta.`{changed}`").collect()
    assert [(c.version, c.operation) for c in commits] == [(row["version"], row["operation"]) for row in expected]
    assert [(c.batch, c.rows_added) for c in commits if c.batch is not None] == [(1, 10), (0, 10)]
    assert [c.rows_removed for c in commits if c.operation == "DELETE"] == [6]
    assert read_table(changed).history(1) == commits[:1]


def test_no_more_is_read_than_is_shown(trips: Path, tmp_path: Path) -> None:
    table = read_table(shutil.copytree(trips, tmp_path / "copy"))
    first, *others = table._files
    for file in others:
        Path(file.path).unlink()
    assert first.rows is not None
    assert table.head(Query(limit=first.rows)).num_rows == first.rows
    assert table.count() == _ROWS
    # Files that cannot hold such a row are not opened either.
    shown = table.head(Query(limit=1)).column("id")[0].as_py()
    assert table.count(f"id = {shown}") == 1
    with pytest.raises(Failed, match="is gone"):
        table.head(Query(limit=first.rows + 1))


def test_what_cannot_be_read_is_refused_by_name(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "mapped"
    properties = "'delta.columnMapping.mode' = 'name'"
    spark.sql(f"create table delta.`{path}` (a long) using delta tblproperties ({properties})")
    with pytest.raises(UsageError, match="cannot be read without Spark: columnMapping"):
        read_table(path).count()
    with pytest.raises(UsageError, match="no table"):
        read_table(tmp_path)
    with pytest.raises(UsageError, match="not on this machine"):
        read_table("s3://bucket/table")


def test_a_damaged_log_is_told(changed: Path, tmp_path: Path) -> None:
    log = shutil.copytree(changed, tmp_path / "copy") / "_delta_log"
    newest = sorted(log.glob("*.checkpoint*.parquet"))[-1]
    newest.write_bytes(b"PAR1, cut off")
    with pytest.raises(Failed, match="cannot be read") as cut:
        read_table(log.parent).count()
    assert newest.name in str(cut.value)
    newest.unlink()
    assert read_table(log.parent).count() == len(_LEFT)  # from the one before it
    third = log / "00000000000000000003.json"
    text = third.read_text()
    third.write_text(text[: len(text) // 2])
    with pytest.raises(Failed, match="cannot be read") as cut:
        read_table(log.parent).count()
    assert third.name in str(cut.value)
    third.unlink()
    with pytest.raises(Failed, match="the log has no version 3"):
        read_table(log.parent).count()


def test_a_parquet_table_holds_finished_batches_only(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "rows"
    sink = Sink("parquet", str(path), partition_by=("part",))
    for number, (first, after) in enumerate([(0, 20), (20, 30)]):
        writer_of(sink.kind).write(sink, rows(spark, first, after), batch(spark, number))
    # A batch that was cut off lies there too.
    rows(spark, 500, 510).write.parquet(str(path / "_writing-00000000-7"))
    table = read_table(path)
    read = by_id([row for found in table.batches() for row in found.to_pylist()])
    expected = of_spark(spark.read.parquet(str(path)).drop("batch"))
    assert [{name: row[name] for name in expected[0]} for row in read] == expected
    assert table.count() == 30
    assert table.count("part = 1 and id >= 20") == len([n for n in range(20, 30) if n % 2 == 1])
    commits = table.history()
    assert [(c.batch, c.rows_added) for c in commits] == [(1, 10), (0, 20)]
    assert {c.name: c.type for c in table.columns}["at"] == "timestamp"


def test_the_commands(spark: SparkSession, trips: Path, tmp_path: Path, run: Headrace) -> None:
    (tmp_path / "headrace.toml").write_text(
        f"""
[pipelines.trips]
from = "trips"
into = {{ delta = "{trips}" }}
[pipelines.two]
from = "trips"
into = [{{ delta = "tables/new" }}, {{ parquet = "tables/other" }}]
[pipelines.broken]
from = "trips"
into = {{ delt = "tables/x" }}
"""
    )
    listed = run("table", "list", "--json")
    found = {table["table"]: table for table in listed.json()}
    assert set(found) == {"trips", "trips.dead_letters", "new", "other", "two.dead_letters"}
    assert (found["trips"]["rows"], found["trips"]["written"]) == (_ROWS, True)
    assert found["new"]["written"] is False
    assert "unknown setting" in listed.err

    head = run("table", "head", "trips", "-c", "id,at,fare,raw", "-w", "id between 4 and 5", "--order-by", "id desc")
    assert head.out.splitlines() == [
        "ID  AT                            FARE  RAW",
        " 5  2020-09-11T00:04:59.123456Z      -  b5",
        " 4  2020-09-11T00:03:59.123456Z  4.000  b4",
    ]
    lines = run("table", "head", "trips", "-n", "2", "--order-by", "id", "--json").out.splitlines()
    first = json.loads(lines[0])
    assert first["list"] == [{"x": 0}]
    assert first["pairs"] == {"k": 0}
    assert first["day"] == "2020-09-10"
    assert len(lines) == 2
    assert run("table", "count", "trips").out == f"{_ROWS}\n"
    assert run("table", "count", str(trips), "-w", "id < 5", "--json").json()["rows"] == 5
    shown = run("table", "schema", "trips").out
    assert f"{_ROWS} in" in shown
    assert "array<struct<x: int>>" in shown
    newest = json.loads(run("table", "history", "trips", "-n", "1", "--json").out)
    assert (newest["batch"], newest["rows_added"], newest["operation"]) == (1, 10, "WRITE")
    assert newest["time"].endswith("Z")

    wrong = {
        ("head", "nothing"): "known are trips, trips.dead_letters, new, other, two.dead_letters",
        ("head", "trip"): "did you mean trips?",
        ("count", "new"): "headrace pipeline run two",
        ("head", "two"): "pipeline two writes new, other",
        ("count", "trips", "-w", "idd = 3"): 'Candidate bindings: "id"',
        ("count", "trips", "-w", "id = 'seven'"): "Could not convert string 'seven' to INT64",
        ("head", "trips", "--order-by", "idd"): "did you mean id?",
    }
    for words, said in wrong.items():
        done = run("table", *words)
        assert done.code == 2, words
        assert said in done.err, words
        assert done.out == ""
