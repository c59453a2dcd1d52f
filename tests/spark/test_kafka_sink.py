"""Batches from Spark into Kafka, each row once: whatever is killed, at whichever point, however often."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import cloudpickle

from headrace.errors import Failed
from headrace.kafka.client import Connection, HasBootstrap
from headrace.kafka.read.consumer import consume
from headrace.kafka.write.exactly_once import Mark, MarkedWriter
from headrace.kafka.write.producer import produce
from headrace.kafka.write.writer import Records
from headrace.pipeline.spark.sinks import kafka as kafka_sink
from headrace.pipeline.spark.sinks.kafka import KafkaTarget, SinkResult, prepare, write_exactly_once
from tests.records import wait_settled
from tests.spark import faults

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MakeTopic = Callable[..., str]
_PARTITIONS = 5


@pytest.fixture
def connection(headrace_cluster: HasBootstrap) -> Connection:
    made = Connection(headrace_cluster.bootstrap, {"transaction.timeout.ms": "60000"})
    prepare(made)
    return made


@pytest.fixture
def writer() -> str:
    return f"writer-{uuid.uuid4().hex[:12]}"


def numbers(spark: SparkSession, topic: str, batch: int, count: int = 100) -> DataFrame:
    """`count` rows of the batch from five source partitions: keys and values are their numbers."""
    return spark.range(batch * count, (batch + 1) * count).selectExpr(
        f"'{topic}' as topic", "cast(cast(id % 7 as string) as binary) as key",
        "cast(cast(id as string) as binary) as value",
        "cast(null as array<struct<key: string, value: binary>>) as headers",
        "'source' as _topic", f"cast(id % {_PARTITIONS} as int) as _partition", "id as _offset",
    )  # fmt: skip


def seen(connection: Connection, topic: str) -> Counter[int]:
    wait_settled(connection.bootstrap, topic)
    return Counter(int(record.value or b"-1") for record in consume(connection, topic))


def test_every_row_of_every_batch_once(
    spark: SparkSession, connection: Connection, headrace_topic: MakeTopic, writer: str
) -> None:
    topic = headrace_topic(partitions=3)
    for batch in range(3):
        target = KafkaTarget(connection, writer, batch, tasks=2, replaying=batch == 0)
        assert write_exactly_once(numbers(spark, topic, batch), target) == SinkResult(100, replayed=False)
    again = KafkaTarget(connection, writer, 2, tasks=2, replaying=True)
    assert write_exactly_once(numbers(spark, topic, 2), again) == SinkResult(100, replayed=True)
    assert seen(connection, topic) == Counter(range(300))


def test_what_a_record_may_hold(
    spark: SparkSession, connection: Connection, headrace_topic: MakeTopic, writer: str
) -> None:
    first, second = headrace_topic(), headrace_topic()
    rows = spark.createDataFrame(
        [
            (first, None, None, None, "s", 0),
            (first, b"\xff\x00", b"", [], "s", 1),
            (second, b"", b"v", [("a", b"1"), ("a", None), ("ü", b"\xfe")], "s", 2),
        ],
        "topic string, key binary, value binary, headers array<struct<key: string, value: binary>>, "
        "_topic string, _partition int",
    )
    assert write_exactly_once(rows, KafkaTarget(connection, writer, 0, tasks=4)) == SinkResult(3, replayed=False)
    wait_settled(connection.bootstrap, first, second)
    found = {(r.key, r.value, r.headers) for r in consume(connection, first)}
    assert found == {(None, None, ()), (b"\xff\x00", b"", ())}
    assert [(r.key, r.value, r.headers) for r in consume(connection, second)] == [
        (b"", b"v", (("a", b"1"), ("a", None), ("ü", b"\xfe")))
    ]


def test_a_batch_without_rows(spark: SparkSession, connection: Connection, headrace_topic: MakeTopic) -> None:
    rows = numbers(spark, headrace_topic(), 0).where("false")
    assert write_exactly_once(rows, KafkaTarget(connection, "nothing", 0, tasks=2)) == SinkResult(0, replayed=False)


def test_the_order_of_a_source_partition_is_kept(
    spark: SparkSession, connection: Connection, headrace_topic: MakeTopic, writer: str
) -> None:
    source, topic = headrace_topic(partitions=3), headrace_topic()
    assert produce(connection, source, (f"{n}" for n in range(30_000))).complete
    rows = (
        spark.read.format("kafka")
        .options(**{"kafka.bootstrap.servers": connection.bootstrap, "subscribe": source})
        .load()
        .selectExpr(
            f"'{topic}' as topic", "cast(cast(partition as string) as binary) as key", "value",
            "cast(null as array<struct<key: string, value: binary>>) as headers",
            "topic as _topic", "partition as _partition", "offset as _offset",
        )
    )  # fmt: skip
    assert write_exactly_once(rows, KafkaTarget(connection, writer, 0, tasks=2)).records == 30_000
    wait_settled(connection.bootstrap, topic)
    kept: dict[bytes | None, list[bytes | None]] = {}
    for record in consume(connection, topic):
        kept.setdefault(record.key, []).append(record.value)
    original = {str(p).encode(): [r.value for r in consume(connection, source) if r.partition == p] for p in range(3)}
    assert kept == original


def test_a_batch_of_which_one_task_was_done(
    spark: SparkSession, connection: Connection, headrace_topic: MakeTopic, writer: str
) -> None:
    """Its rows are not looked at; the other task's are written."""
    topic = headrace_topic()
    target = KafkaTarget(connection, writer, 4, tasks=2, replaying=True)
    done = MarkedWriter(connection, target.name_of(0))
    done.begin()
    done.send(Records([topic], [None], [b"1000"], None, str))
    done.commit_batch(Mark(4, 1, 2))
    result = write_exactly_once(numbers(spark, topic, 0), target)
    found = seen(connection, topic)
    assert found.pop(1000) == 1
    assert result == SinkResult(1 + found.total(), replayed=True)
    assert {n % _PARTITIONS for n in found} < set(range(_PARTITIONS)), "one task's partitions, not all"
    assert set(found.values()) == {1}


def test_a_batch_that_was_begun_by_other_tasks_is_not_guessed_at(
    spark: SparkSession, connection: Connection, headrace_topic: MakeTopic, writer: str
) -> None:
    topic = headrace_topic()
    write_exactly_once(numbers(spark, topic, 0), KafkaTarget(connection, writer, 0, tasks=2))
    with pytest.raises(Failed, match="begun by 2 tasks and is repeated by 1"):
        write_exactly_once(numbers(spark, topic, 0), KafkaTarget(connection, writer, 0, tasks=1, replaying=True))
    assert write_exactly_once(numbers(spark, topic, 1), KafkaTarget(connection, writer, 1, tasks=1)).records == 100
    assert seen(connection, topic) == Counter(range(200))


def test_a_refused_record_fails_the_batch_and_is_named(
    spark: SparkSession, connection: Connection, headrace_topic: MakeTopic, writer: str
) -> None:
    topic = headrace_topic(max_message_bytes="2000")
    rows = numbers(spark, topic, 0).selectExpr(
        "topic", "key", "if(_offset = 42, cast(repeat('x', 3000) as binary), value) as value", "headers",
        "_topic", "_partition", "_offset",
    )  # fmt: skip
    target = KafkaTarget(connection, writer, 0, tasks=2)
    with pytest.raises(Failed) as refused:
        write_exactly_once(rows, target)
    assert refused.value.problem == (
        f"Kafka refused a record of 3,000 bytes for {topic} with the key '0', made of source/2 offset 42"
    )
    assert "too large" in (refused.value.why or "")
    mended = KafkaTarget(connection, writer, 0, tasks=2, replaying=True)
    assert write_exactly_once(numbers(spark, topic, 0), mended).records == 100
    assert seen(connection, topic) == Counter(range(100))


@pytest.fixture
def struck(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[[faults.Killed], None]]:
    """Tasks meet with the fault that is given."""
    cloudpickle.register_pickle_by_value(faults)

    def arrange(fault: faults.Killed) -> None:
        monkeypatch.setattr(kafka_sink, "_write_task", fault)

    yield arrange
    cloudpickle.unregister_pickle_by_value(faults)


@pytest.mark.parametrize("point", faults.POINTS)
def test_a_worker_is_killed(
    spark: SparkSession, connection: Connection, headrace_topic: MakeTopic, writer: str,
    struck: Callable[[faults.Killed], None], tmp_path: Path, point: str,
) -> None:  # fmt: skip
    topic = headrace_topic(partitions=2)
    struck(faults.Killed(point, 1, tmp_path / "struck"))
    write_exactly_once(numbers(spark, topic, 0), KafkaTarget(connection, writer, 0, tasks=2))
    with pytest.raises(Py4JJavaError, match="worker exited unexpectedly"):
        write_exactly_once(numbers(spark, topic, 1), KafkaTarget(connection, writer, 1, tasks=2))
    result = write_exactly_once(numbers(spark, topic, 1), KafkaTarget(connection, writer, 1, tasks=2, replaying=True))
    assert result.records == 100
    if point == "committed":
        assert result.replayed
    write_exactly_once(numbers(spark, topic, 2), KafkaTarget(connection, writer, 2, tasks=2))
    assert seen(connection, topic) == Counter(range(300))


@pytest.mark.parametrize("point", ["flushed", "marked"])
def test_a_worker_that_was_given_up_comes_late(
    spark: SparkSession, connection: Connection, headrace_topic: MakeTopic, writer: str,
    struck: Callable[[faults.Killed], None], tmp_path: Path, point: str,
) -> None:  # fmt: skip
    """It takes the writer's name from the task that repeats the batch; the batch is written all the same, once."""
    topic = headrace_topic(partitions=2)
    struck(faults.Overtaken(point, 1, tmp_path / "struck"))
    for batch in range(3):
        target = KafkaTarget(connection, writer, batch, tasks=2)
        assert write_exactly_once(numbers(spark, topic, batch), target).records == 100
    assert seen(connection, topic) == Counter(range(300))


def test_two_runs_that_fence_each_other_are_told(
    spark: SparkSession, connection: Connection, headrace_topic: MakeTopic, writer: str,
    struck: Callable[[faults.Killed], None], tmp_path: Path,
) -> None:  # fmt: skip
    struck(faults.Overtaken("marked", 0, tmp_path / "struck", always=True))
    with pytest.raises(Failed, match="was replaced by another one"):
        write_exactly_once(numbers(spark, headrace_topic(), 0), KafkaTarget(connection, writer, 0, tasks=2))


_RECORDS = 1200
_PROJECT = Path(__file__).parents[2]


def test_the_driver_is_killed(connection: Connection, headrace_topic: MakeTopic, tmp_path: Path) -> None:
    """A streaming query: killed before a batch is decided, then after that and before Spark knows, then left alone.

    Kills at random moments of a whole pipeline are a drill of their own: bench/kills.py.
    """
    source, topic = headrace_topic(partitions=3), headrace_topic(partitions=2)
    assert produce(connection, source, (f"{n}" for n in range(_RECORDS))).complete
    for point, batch, ended in (("marked", 1, -9), ("committed", 2, -9), ("never", 0, 0)):
        script = [sys.executable, "-m", "tests.spark.killed_query", connection.bootstrap, source, topic]
        words = [*script, str(tmp_path / "query"), point, str(batch)]
        assert subprocess.run(words, cwd=_PROJECT, check=False, timeout=200).returncode == ended
    assert seen(connection, topic) == Counter(range(_RECORDS))
