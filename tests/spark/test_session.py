"""The Spark session and its JVM: what it offers, what it keeps to itself, and that it never stays behind."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from headrace.errors import UsageError
from headrace.pipeline.spark import session
from headrace.pipeline.spark.session import SessionSpec, start_spark
from headrace.runtime.jars import jar_lock
from headrace.runtime.process import Supervised
from headrace.runtime.waiting import eventually
from tests.conftest import processes_of
from tests.spark.children import child, told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_delta_kafka_and_avro_are_there(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql.avro.functions import from_avro, to_avro

    table = str(tmp_path / "table")
    rows = spark.range(100).selectExpr("id", "id % 3 as kind")
    rows.select(to_avro("id").alias("bytes"), "kind").write.format("delta").save(table)
    rows.select(to_avro("id").alias("bytes"), "kind").write.format("delta").mode("append").save(table)
    read = spark.read.format("delta").load(table).select(from_avro("bytes", '"long"').alias("id"), "kind")
    assert read.count() == 200
    assert read.where("kind = id % 3").count() == 200
    assert spark.sql(f"describe history delta.`{table}`").count() == 2
    jvm: Any = spark._jvm
    assert jvm.org.apache.spark.sql.kafka010.KafkaSourceProvider().shortName() == "kafka"


@pytest.mark.parametrize(
    ("artifact", "name"),
    [
        ("snappy-java", "org.xerial.snappy.SnappyInputStream"),
        ("lz4-java", "net.jpountz.lz4.LZ4FrameInputStream"),
        ("jackson-core", "com.fasterxml.jackson.core.JsonFactory"),
        ("jackson-databind", "com.fasterxml.jackson.databind.ObjectMapper"),
        ("jackson-module-scala_2.13", "com.fasterxml.jackson.module.scala.DefaultScalaModule"),
    ],
)
def test_patched_libraries_stand_in_for_sparks_own(spark: SparkSession, artifact: str, name: str) -> None:
    [patched] = [each for each in jar_lock()["spark"] if each.name == artifact]
    jvm: Any = spark._jvm
    loaded = jvm.java.lang.Class.forName(name).getProtectionDomain().getCodeSource().getLocation()
    assert Path(loaded.getPath()).name == patched.file_name


def test_the_patched_codecs_read_and_write(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(1000).selectExpr("id", "to_json(struct(id)) as text")
    for codec in ("snappy", "lz4_raw"):
        rows.write.option("compression", codec).parquet(str(tmp_path / codec))
        read = spark.read.parquet(str(tmp_path / codec)).selectExpr("sum(get_json_object(text, '$.id')) as total")
        assert [row["total"] for row in read.collect()] == [499_500]


def test_times_are_utc_and_tasks_few(spark: SparkSession) -> None:
    assert spark.sql("select cast(timestamp '2020-09-10 00:00:00' as long) as at").collect()[0]["at"] == 1_599_696_000
    assert spark.conf.get("spark.sql.shuffle.partitions") == str(len(os.sched_getaffinity(0)))


def test_python_functions_run_in_this_python(spark: SparkSession) -> None:
    found = spark.sparkContext.parallelize([1], 1).map(lambda _: sys.executable).collect()
    assert found == [sys.executable]


def test_the_driver_listens_on_loopback_only(spark: SparkSession) -> None:
    assert spark.conf.get("spark.authenticate") == "true"
    listening = [
        c.laddr.ip.removeprefix("::ffff:")
        for c in _jvm().net_connections("tcp")
        if c.status == psutil.CONN_LISTEN and c.laddr
    ]
    assert listening
    assert set(listening) == {"127.0.0.1"}


def _jvm() -> psutil.Process:
    assert session._running is not None
    process = session._running.process.find()
    assert process is not None
    return process


def test_one_session_per_process(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has a Spark session already"):
        start_spark(SessionSpec(tmp_path / "second"))
    assert spark.range(3).count() == 3


def test_a_session_comes_and_goes_and_comes_again(tmp_path: Path) -> None:
    folder = tmp_path / "spark"
    first, second, death = told("twice", folder)
    assert (first["rows"], second["rows"]) == (10, 20)
    assert first["jvm"] != second["jvm"]
    assert first["secret"] == "not on the command line"
    assert not psutil.pid_exists(first["jvm"])
    assert not psutil.pid_exists(second["jvm"])
    assert Supervised(folder).state == "stopped"
    assert (folder / "output.log").read_text(encoding="utf-8").splitlines()[0] == "a word for output.log"
    assert death["error"] == "the Java process of Spark has died"
    assert "java.lang.OutOfMemoryError: Java heap space" in death["why"]
    assert "spark.driver.memory" in death["hint"]
    assert (folder / "spark.log").stat().st_mode & 0o077 == 0
    assert not (folder / "gateway").exists()
    assert not processes_of(tmp_path)


def test_the_jvm_dies_with_its_python(tmp_path: Path) -> None:
    folder = tmp_path / "spark"
    with child("wait", folder) as process:
        assert process.stdout
        jvm = psutil.Process(json.loads(process.stdout.readline())["jvm"])
        assert "not on the command line" not in " ".join(jvm.cmdline())

        # A second Python may not work in the folder while the first does ...
        [answer] = told("refused", folder, "local[1]")
        assert answer["error"] == f"another process runs Spark in {folder}"
        assert answer["code"] == 3

        process.send_signal(signal.SIGKILL)
        eventually(lambda: not jvm.is_running(), 60)

    # ... and may when it is dead.
    with child("wait", folder) as process:
        assert process.stdout
        assert json.loads(process.stdout.readline())["jvm"] != jvm.pid
        process.communicate("", timeout=100)  # the end of the script stops what the script did not stop
    assert Supervised(folder).state == "stopped"


@pytest.mark.parametrize(
    ("asked", "problem", "why", "code"),
    [
        ("spark://127.0.0.1:1", "no Spark master answers at spark://127.0.0.1:1", "127.0.0.1:1: Connection refused", 4),
        ("spark://nowhere", "invalid Spark master: 'spark://nowhere'", None, 2),
        ("locl[2]", "invalid Spark master: 'locl[2]'", None, 2),
        (
            "local[1] spark.scheduler.mode=MINE", "Spark refuses to start on local[1]",
            "The value 'MINE' in the config \"spark.scheduler.mode\" is invalid", 2,
        ),
        (
            "local[1] spark.driver.memory=much", "the Spark driver ended while it started",
            "Invalid maximum heap size: -Xmxmuch", 1,
        ),
    ],
)  # fmt: skip
def test_what_spark_refuses_is_told_in_one_line(
    tmp_path: Path, asked: str, problem: str, why: str | None, code: int
) -> None:
    [answer] = told("refused", tmp_path / "spark", *asked.split())
    assert (answer["error"], answer["code"]) == (problem, code)
    assert (why or "") in (answer["why"] or "")
    assert not processes_of(tmp_path)
