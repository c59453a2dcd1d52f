"""Checkpoints that Spark itself wrote, read and moved here, and then given back to Spark: it goes on exactly there."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from headrace.errors import Failed, UsageError
from headrace.home import Home
from headrace.kafka import Kafka, NewTopic
from headrace.kafka.client import Connection, HasBootstrap
from headrace.pipeline.books.checkpoint import Checkpoint
from headrace.pipeline.books.folder import PipelineFolder
from headrace.pipeline.books.ledger import BatchEntry, Ledger
from headrace.pipeline.books.rewind import Target, fork, plan_rewind, rewind, wipe
from headrace.pipeline.books.status import PipelineStatus, Warned, status
from headrace.pipeline.declare.changes import remember
from headrace.pipeline.declare.declaration import Aggregate, Declaration, Sink
from headrace.pipeline.spark.failures import check_losses, topic_extents
from headrace.runtime.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MakeTopic = Callable[..., str]
_FIRST_MS = 1_600_000_000_000
# The records are from 2020: by default Kafka would soon delete them.
_KEPT = {"retention.ms": "-1"}


@pytest.fixture
def connection(headrace_cluster: HasBootstrap) -> Connection:
    return Connection(headrace_cluster.bootstrap)


def write(connection: Connection, topic: str, counts: Mapping[int, int], first: int = 0) -> None:
    """So many records to each partition, a minute apart by their timestamps."""
    producer = connection.producer()
    for partition, count in counts.items():
        for number in range(first, first + count):
            at = _FIRST_MS + number * 60_000
            producer.produce(topic, str(number).encode(), partition=partition, timestamp=at)
    assert producer.flush(20) == 0


@dataclass
class Reader:
    """A query of Spark over topics, which notes what it is given: batch, topic, partition, offset."""

    spark: SparkSession
    connection: Connection
    folder: PipelineFolder
    declaration: Declaration
    seen: list[tuple[int, str, int, int]] = field(default_factory=list)

    def run(self, per_batch: int = 1000, fail_at: int | None = None) -> Any:
        """Takes all that is there; `fail_at` is a batch that breaks after it was looked at."""
        self.seen.clear()

        def take(frame: DataFrame, number: int) -> None:
            self.seen.extend((number, row.topic, row.partition, row.offset) for row in frame.collect())
            if number == fail_at:
                raise RuntimeError("as it was asked to")

        stream = self.stream(per_batch).select("topic", "partition", "offset")
        query = self.start(stream.writeStream.foreachBatch(take))
        query.awaitTermination()
        return query

    def stream(self, per_batch: int = 1000) -> DataFrame:
        return (
            self.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.connection.bootstrap)
            .option("subscribe", ",".join(self.declaration.topics))
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", per_batch)
            .load()
        )

    def start(self, writer: Any) -> Any:
        path = self.folder.checkpoint(self.declaration)
        return writer.option("checkpointLocation", path).trigger(availableNow=True).start()

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.folder.checkpoint(self.declaration))

    @property
    def offsets(self) -> dict[int, list[int]]:
        """What was seen of each partition, in order."""
        found: dict[int, list[int]] = {}
        for _, _, partition, offset in sorted(self.seen, key=lambda s: s[3]):
            found.setdefault(partition, []).append(offset)
        return found

    def move(self, to: str) -> int:
        """Rewinds; returns the number that the next batch shall have."""
        plan = plan_rewind(self.folder, self.declaration, Target.parse(to), self.connection)
        rewind(self.folder, self.declaration, plan)
        return plan.batch


def declaration(name: str, *topics: str, sinks: tuple[Sink, ...] = (Sink("delta", "tables/rows"),)) -> Declaration:
    return Declaration(name, topics, sinks)


def topic_ids(connection: Connection, topic: str) -> dict[str, str | None]:
    with Kafka(connection) as kafka:
        return {topic: kafka.describe(topic).topic_id}


def reader(spark: SparkSession, connection: Connection, home: Path, declared: Declaration) -> Reader:
    folder = PipelineFolder(Home(home), declared.name)
    folder.create()
    return Reader(spark, connection, folder, declared)


def test_spark_goes_on_exactly_where_it_was_put(
    spark: SparkSession, connection: Connection, headrace_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = headrace_topic(partitions=2, **_KEPT)
    write(connection, topic, {0: 30, 1: 20})
    query = reader(spark, connection, tmp_path, declaration("rows", topic))
    started = query.run(per_batch=20)
    found = query.checkpoint
    last = found.last_committed
    assert last is not None
    assert last >= 2
    assert found.query_id == str(started.id)
    assert found.position == {(topic, 0): 30, (topic, 1): 20}
    assert found.initial == {(topic, 0): 0, (topic, 1): 0}
    assert found.pending is None
    found.check()
    batches = found.batches()
    assert [batch.batch for batch in batches] == list(range(last + 1))
    assert sum(batch.records or 0 for batch in batches) == 50
    by_batch = Counter(number for number, *_ in query.seen)
    assert {b.batch: b.records for b in batches} == {b.batch: by_batch[b.batch] for b in batches}

    # to offsets: one partition moves, the other stays; batch numbers go on
    before = sorted(path.name for path in (found.root / "offsets").iterdir())
    assert query.move(f"{topic}:0=27") == last + 2
    (backup,) = (query.folder.root / "backups").iterdir()
    assert sorted(path.name for path in (backup / "checkpoint" / "offsets").iterdir()) == before
    assert query.folder.epoch == 1
    assert query.checkpoint.position == {(topic, 0): 27, (topic, 1): 20}
    query.run()
    assert query.offsets == {0: [27, 28, 29]}
    assert {number for number, *_ in query.seen} == {last + 2}
    moved = query.checkpoint.plan(last + 1)
    assert moved.moved
    assert moved.records is None

    # to a time
    query.move("2020-09-13T12:46:40+00:00")  # 20 minutes after the first record
    query.run()
    assert query.offsets == {0: list(range(20, 30))}

    # to a batch: its records and those of all after it
    start = query.checkpoint.start_of(1)
    query.move("batch:1")
    query.run()
    assert query.offsets == {0: list(range(start[topic, 0], 30)), 1: list(range(start[topic, 1], 20))}

    # forward: what is skipped is never read
    write(connection, topic, {0: 5, 1: 5}, first=100)
    query.move("end")
    query.run()
    assert query.seen == []

    query.move("beginning")
    query.run()
    assert query.offsets == {0: list(range(35)), 1: list(range(25))}
    assert query.folder.epoch == 5


def test_a_batch_that_was_begun_is_pending_and_can_be_moved_over(
    spark: SparkSession, connection: Connection, headrace_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = headrace_topic(partitions=1, **_KEPT)
    write(connection, topic, {0: 30})
    query = reader(spark, connection, tmp_path, declaration("rows", topic))
    with pytest.raises(PySparkException, match="as it was asked to"):
        query.run(per_batch=10, fail_at=1)
    pending = query.checkpoint.pending
    assert pending is not None
    assert (pending.batch, pending.records, pending.committed) == (1, 10, False)
    assert query.checkpoint.position == {(topic, 0): 10}
    plan = plan_rewind(query.folder, query.declaration, Target.parse(f"{topic}:0=4"), connection)
    assert any("batch 1 was started and not finished" in line for line in plan.consequences)
    rewind(query.folder, query.declaration, plan)
    query.run()
    assert query.offsets == {0: list(range(4, 30))}
    assert {number for number, *_ in query.seen} == {3}


def test_a_first_batch_that_never_finished_can_be_moved(
    spark: SparkSession, connection: Connection, headrace_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = headrace_topic(partitions=1, **_KEPT)
    write(connection, topic, {0: 10})
    query = reader(spark, connection, tmp_path, declaration("rows", topic))
    with pytest.raises(PySparkException, match="as it was asked to"):
        query.run(fail_at=0)
    assert query.checkpoint.position == {(topic, 0): 0}
    query.move(f"{topic}:0=8")
    query.run()
    assert query.offsets == {0: [8, 9]}


def test_where_kafka_has_nothing_is_no_place_to_go(
    spark: SparkSession, connection: Connection, headrace_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = headrace_topic(partitions=1, **_KEPT)
    write(connection, topic, {0: 10})
    query = reader(spark, connection, tmp_path, declaration("rows", topic))
    query.run()
    expire(connection, topic, 0, 4)
    for target, problem in {
        f"{topic}:0=3": "begins at offset 4; 3 is gone",
        f"{topic}:0=11": "ends at offset 10, before 11",
        f"{topic}:7=0": "there is no partition 7",
        "other:0=1": "does not read topic 'other'",
        "batch:99": "does not know where batch 99 began",
        "batch:0": "0 is gone",
    }.items():
        with pytest.raises(UsageError, match=problem):
            query.move(target)
    assert query.folder.epoch == 0
    assert not (query.folder.root / "backups").exists()
    query.move("beginning")
    query.run()
    assert query.offsets == {0: list(range(4, 10))}


def expire(connection: Connection, topic: str, partition: int, before: int) -> None:
    """The records before that offset are gone, as after retention."""
    from confluent_kafka import TopicPartition

    with Kafka(connection) as admin:
        admin.settle(admin.client.delete_records([TopicPartition(topic, partition, before)]), "delete records")


def test_a_fork_goes_on_from_the_same_place_and_forgets_topics_it_does_not_read(
    spark: SparkSession, connection: Connection, headrace_topic: MakeTopic, tmp_path: Path
) -> None:
    one, two, three = (headrace_topic(partitions=1, **_KEPT) for _ in range(3))
    for topic in (one, two, three):
        write(connection, topic, {0: 10})
    query = reader(spark, connection, tmp_path, declaration("rows", one, two))
    started = query.run()
    other = reader(spark, connection, tmp_path, declaration("other", two, three))
    fork(query.folder, query.declaration, other.folder, other.declaration)
    assert other.checkpoint.position == {(two, 0): 10}
    assert other.checkpoint.query_id != query.checkpoint.query_id == str(started.id)
    write(connection, one, {0: 1}, first=50)
    write(connection, two, {0: 2}, first=50)
    forked = other.run()
    # A topic that the checkpoint does not know is read from its beginning.
    assert Counter(topic for _, topic, *_ in other.seen) == {two: 2, three: 10}
    assert str(forked.id) == other.checkpoint.query_id
    with pytest.raises(UsageError, match="has a checkpoint already"):
        fork(query.folder, query.declaration, other.folder, other.declaration)
    # The first one knows nothing of it.
    query.run()
    assert Counter(topic for _, topic, *_ in query.seen) == {one: 1, two: 2}


def test_a_wiped_pipeline_begins_anew_and_its_backup_can_be_put_back(
    spark: SparkSession, connection: Connection, headrace_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = headrace_topic(partitions=1, **_KEPT)
    write(connection, topic, {0: 10})
    query = reader(spark, connection, tmp_path, declaration("rows", topic))
    query.run()
    done = wipe(query.folder, query.declaration)
    assert not query.checkpoint.exists
    query.run()
    assert len(query.seen) == 10
    wipe(query.folder, query.declaration)
    assert done.backup is not None
    Path(done.backup, "checkpoint").rename(query.checkpoint.root)
    query.run()
    assert query.seen == []


class Counting(Reader):
    """A query with state: how many records of each partition there were so far."""

    def run(self, per_batch: int = 1000, fail_at: int | None = None) -> Any:
        self.counts: dict[int, dict[int, int]] = {}

        def take(frame: DataFrame, number: int) -> None:
            self.counts[number] = {row["partition"]: row["count"] for row in frame.collect()}
            if number == fail_at:
                raise RuntimeError("as it was asked to")

        counted = self.stream(per_batch).groupBy("partition").count()
        query = self.start(counted.writeStream.outputMode("complete").foreachBatch(take))
        query.awaitTermination()
        return query


def test_state_goes_back_with_the_batches_and_is_dropped_for_other_places(
    spark: SparkSession, connection: Connection, headrace_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = headrace_topic(partitions=1, **_KEPT)
    write(connection, topic, {0: 40})
    sink = Sink("delta", "tables/counts", aggregate=Aggregate(("partition",), {"n": "count(*)"}, mode="watermark"))
    declared = declaration("counts", topic, sinks=(sink,))
    folder = PipelineFolder(Home(tmp_path), declared.name)
    query = Counting(spark, connection, folder, declared)
    query.run(per_batch=10)
    assert query.checkpoint.is_stateful
    first = dict(query.counts)
    assert first[3] == {0: 40}

    plan = plan_rewind(folder, declared, Target.parse("batch:1"), connection)
    assert plan.way == "state"
    assert plan.again == 30
    rewind(folder, declared, plan)
    assert query.checkpoint.position == {(topic, 0): 10}
    query.run(per_batch=15)
    # Batch 1 found the state of batch 0; nothing is counted twice, and stale state of later batches is not met.
    assert query.counts[1] == {0: 25}
    assert query.counts[2] == {0: 40}
    write(connection, topic, {0: 1}, first=90)
    query.run()
    assert list(query.counts.values())[-1] == {0: 41}

    plan = plan_rewind(folder, declared, Target.parse(f"{topic}:0=38"), connection)
    assert plan.way == "anew"
    assert any("state of open windows is deleted" in line for line in plan.consequences)
    rewind(folder, declared, plan)
    assert not list(query.checkpoint.root.glob("state/*"))
    query.run()
    assert query.counts == {0: {0: 3}}


def test_status_of_a_stopped_pipeline(
    spark: SparkSession, connection: Connection, headrace_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = headrace_topic(partitions=2, **_KEPT)
    declared = declaration("rows", topic)
    home = Home(tmp_path)

    def look() -> PipelineStatus:
        return status(connection, home, declared)

    write(connection, topic, {0: 10, 1: 5})
    fresh = look()
    assert (fresh.state, fresh.lag, fresh.last_batch) == ("never run", 15, None)
    query = reader(spark, connection, tmp_path, declared)
    query.run()
    remember(query.folder, declared, topic_ids(connection, topic))
    caught_up = look()
    assert [(p.processed, p.begin, p.end, p.lag, p.lag_s) for p in caught_up.partitions] == [
        (10, 0, 10, 0, 0.0), (5, 0, 5, 0, 0.0),
    ]  # fmt: skip
    assert caught_up.warnings == ()
    assert caught_up.catch_up_s == 0
    assert caught_up.last_batch is not None
    assert caught_up.last_batch.records == 15

    write(connection, topic, {0: 7}, first=10)
    behind = look()
    assert [p.lag for p in behind.partitions] == [7, 0]
    waiting_s = behind.at - (_FIRST_MS / 1000 + 10 * 60)
    assert behind.partitions[0].lag_s == pytest.approx(waiting_s, abs=5)
    assert behind.lag_s == behind.partitions[0].lag_s
    assert behind.warnings == ()
    json.dumps(behind.document())

    expire(connection, topic, 0, 12)
    lost = look()
    assert lost.lost == 2
    assert lost.partitions[0].lag == 5
    assert lost.warnings[0].loud
    assert "offsets 10 to 11 were deleted unread (2)" in lost.warnings[0].text


def test_status_tells_when_retention_is_about_to_overtake(
    spark: SparkSession, connection: Connection, headrace_topic: MakeTopic, tmp_path: Path
) -> None:
    import time

    topic = headrace_topic(partitions=1, **{"retention.ms": "100000", "segment.ms": "100000000"})
    declared = declaration("rows", topic)
    query = reader(spark, connection, tmp_path, declared)
    producer = connection.producer()
    now = time.time()
    producer.produce(topic, b"young", timestamp=int(now * 1000))
    producer.flush(20)
    query.run()
    for age_s in (95, 1):
        producer.produce(topic, b"x", timestamp=int((now - age_s) * 1000))
        producer.flush(20)
    found = status(connection, Home(tmp_path), declared)
    (partition,) = found.partitions
    assert partition.lag == 2
    assert partition.expires_in_s == pytest.approx(100 - partition.lag_s if partition.lag_s else 0, abs=1)
    assert "retention may delete unread records" in found.warnings[0].text
    with Kafka(connection) as admin:
        admin.alter_topic(topic, configs={**_KEPT, "retention.bytes": "10"})

    def of_bytes() -> list[Warned]:
        found = status(connection, Home(tmp_path), declared).warnings
        return [warned for warned in found if "of what retention.bytes keeps" in warned.text]

    (full,) = eventually(of_bytes, 20)
    assert full.loud
    assert f"{topic}/0: unread records fill" in full.text


def test_a_topic_of_the_same_name_is_another_topic(
    spark: SparkSession, connection: Connection, headrace_topic: MakeTopic, tmp_path: Path
) -> None:
    topic = headrace_topic(partitions=2, **_KEPT)
    write(connection, topic, {0: 5, 1: 5})
    declared = declaration("rows", topic)
    query = reader(spark, connection, tmp_path, declared)
    query.run()
    remember(query.folder, declared, topic_ids(connection, topic))
    with Kafka(connection) as admin:
        admin.delete_topics([topic])
        gone = status(connection, Home(tmp_path), declared)
        assert gone.warnings[0].loud
        assert f"topic {topic} does not exist" in gone.warnings[0].text
        assert [p.processed for p in gone.partitions] == [5, 5]
        admin.create_topics([NewTopic(topic, 1, 1, _KEPT)])
    write(connection, topic, {0: 8})
    found = status(connection, Home(tmp_path), declared)
    assert found.warnings[0].loud
    assert f"topic {topic} was recreated" in found.warnings[0].text
    with pytest.raises(Failed, match="was recreated") as refused:
        check_losses(declared, query.folder, topic_extents(connection, declared))
    assert f"{topic}/0 from offset 5 on, {topic}/1 from offset 5 on" in str(refused.value)
    query.move("beginning")
    assert query.checkpoint.position == {(topic, 0): 0}
    check_losses(declared, query.folder, topic_extents(connection, declared))
    assert status(connection, Home(tmp_path), declared).warnings == ()
    query.run()
    assert query.offsets == {0: list(range(8))}


def test_status_of_a_pipeline_at_work_and_of_one_that_was_killed(
    spark: SparkSession, connection: Connection, headrace_topic: MakeTopic, tmp_path: Path
) -> None:
    from headrace.home import write_json

    topic = headrace_topic(partitions=1, **_KEPT)
    write(connection, topic, {0: 10})
    declared = declaration("rows", topic)
    query = reader(spark, connection, tmp_path, declared)
    query.run()
    write(connection, topic, {0: 30}, first=10)
    ledger = Ledger(query.folder.root)
    ledger.prepare()
    ledger.begin("run-1", "once", "local[2]")
    entry = BatchEntry(0, seconds=2.0, delivered=10, counts={(topic, 0, "written", ""): 9, (topic, 0, "dead", "r"): 1})
    ledger.enter("run-1", entry)
    with query.folder.lock():
        write_json(query.folder.state_file, {"state": "running", "run": "run-1", "pid": 1, "at": 0})
        running = status(connection, Home(tmp_path), declared)
        assert running.state == "running"
        assert running.rate is not None
        assert running.catch_up_s == pytest.approx(30 / running.rate)
        with pytest.raises(Exception, match="runs already"):
            query.move("beginning")
    assert running.totals.dead_letters == 1
    assert running.totals.balanced
    killed = status(connection, Home(tmp_path), declared)
    assert killed.state == "failed"
    assert "killed" in (killed.why or "")
    assert killed.rate is None
    away = status(Connection("127.0.0.1:1", {"socket.connection.setup.timeout.ms": "1000"}), Home(tmp_path), declared)
    assert [p.processed for p in away.partitions] == [10]
    assert away.lag is None
    assert "no Kafka answers" in away.warnings[0].text
