"""Dead letters as Spark writes them, in a topic and in a table: nothing of the original is lost, all can be read."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from headrace.kafka import Kafka, NewTopic
from headrace.kafka.client import Connection, HasBootstrap
from headrace.kafka.read.consumer import consume
from headrace.pipeline.books.dead_letters import REDRIVEN, Letter, Span, Wanted, letters
from headrace.pipeline.books.redrive import RedrivePlan, redrive
from headrace.pipeline.declare.declaration import DeadLetters
from headrace.pipeline.spark.dry_run import originals
from headrace.pipeline.spark.letters import as_letters, as_rows
from headrace.pipeline.spark.sinks.kafka import KafkaTarget, prepare, write_exactly_once
from tests.records import wait_settled

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SCHEMA = (
    "_topic string, _partition int, _offset long, _timestamp timestamp, _timestamp_type int, _key binary, "
    "_value binary, _headers array<struct<key: string, value: binary>>, _outcome string, _rule string, _reason string"
)
_AT = datetime(2020, 9, 10, 6, 7, 8, 123_000, UTC)


@pytest.fixture(scope="module")
def connection(headrace_cluster: HasBootstrap) -> Connection:
    made = Connection(headrace_cluster.bootstrap)
    prepare(made)
    return made


def dead_rows(spark: SparkSession, source: str) -> DataFrame:
    """What `Classifier.classify` gives of dead and late records, with all that a record may hold."""
    rows: list[tuple[Any, ...]] = [
        (source, 0, 1, _AT, 0, b"k", b"\xff\xfe", None, "dead", "decode", "not UTF-8"),
        (source, 0, 2, _AT, 0, None, None, [], "dead", "decode", "the value is null"),
        (source, 1, 3, _AT, 0, b"", b"{}", [("a", b"\xfd"), ("a", None)], "dead", "is fast", "not so: speed > 3"),
        (source, 1, 4, _AT, 0, b"k", b"{}", [(REDRIVEN, b"2")], "late", "watermark", "an hour behind"),
    ]
    return spark.createDataFrame(rows, _SCHEMA)


@pytest.fixture(scope="module", params=["topic", "table"])
def place(
    request: pytest.FixtureRequest, spark: SparkSession, connection: Connection, source: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> DeadLetters:  # fmt: skip
    """The letters of `dead_rows` in a topic, or in a table."""
    rows = dead_rows(spark, source)
    if request.param == "table":
        folder = str(tmp_path_factory.mktemp("letters") / "dead")
        as_rows(rows, "rides", "run-1").write.format("delta").save(folder)
        return DeadLetters("table", folder)
    topic = make_topic(connection)
    target = KafkaTarget(connection, f"writer-{uuid.uuid4().hex}", 0, tasks=2)
    assert write_exactly_once(as_letters(rows, topic, "rides", "run-1"), target).records == 4
    wait_settled(connection.bootstrap, topic)
    return DeadLetters("topic", topic)


@pytest.fixture(scope="module")
def source(connection: Connection) -> str:
    return make_topic(connection)


def make_topic(connection: Connection) -> str:
    name = f"test-{uuid.uuid4().hex[:12]}"
    with Kafka(connection) as admin:
        admin.create_topics([NewTopic(name, 2)])
    return name


def read(connection: Connection, place: DeadLetters, wanted: Wanted | None = None) -> list[Letter]:
    return sorted(letters(connection, place, wanted), key=lambda letter: letter.offset)


def test_nothing_of_the_original_is_lost(connection: Connection, place: DeadLetters, source: str) -> None:
    found = read(connection, place)
    assert [(letter.key, letter.value, letter.headers) for letter in found] == [
        (b"k", b"\xff\xfe", ()),
        (None, None, ()),
        (b"", b"{}", (("a", b"\xfd"), ("a", None))),
        (b"k", b"{}", ((REDRIVEN, b"2"),)),
    ]
    assert [letter.origin for letter in found] == [f"{source}/0/1", f"{source}/0/2", f"{source}/1/3", f"{source}/1/4"]
    assert {letter.timestamp_ms for letter in found} == {1_599_718_028_123}
    assert {(letter.pipeline, letter.run) for letter in found} == {("rides", "run-1")}
    assert [(letter.outcome, letter.rule, letter.reason) for letter in found][2:] == [
        ("dead", "is fast", "not so: speed > 3"),
        ("late", "watermark", "an hour behind"),
    ]
    assert [letter.redriven for letter in found] == [0, 0, 0, 2]


def test_spark_reads_the_originals(
    spark: SparkSession, connection: Connection, place: DeadLetters, source: str
) -> None:
    frame = originals(spark, read(connection, place))
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    found = {row["offset"]: row for row in frame.collect()}
    letter_of = {letter.offset: letter for letter in read(connection, place)}
    assert found.keys() == letter_of.keys()
    for offset, row in found.items():
        letter = letter_of[offset]
        headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
        assert (row["key"], row["value"], headers) == (letter.key, letter.value, letter.headers)
        assert (row["topic"], row["partition"]) == (source, letter.partition)
        assert row["timestamp"].astimezone(UTC) == _AT


def test_letters_are_chosen(connection: Connection, place: DeadLetters, source: str) -> None:
    for wanted, offsets in (
        (Wanted(pipeline="rides", rules=("decode",)), [1, 2]),
        (Wanted(reasons=("speed", "UTF"), spans=(Span(source, 0), Span(source, 1, 4, 9))), [1]),
        (Wanted(outcomes=("late",), runs=("run-1",), spans=(Span(source, 1, 4),)), [4]),
    ):
        assert [letter.offset for letter in read(connection, place, wanted)] == offsets


def test_letters_go_back_to_where_they_came_from(connection: Connection, place: DeadLetters, source: str) -> None:
    before = {(record.partition, record.offset) for record in consume(connection, source)}
    # The topic and the table hold letters of the same records: for whichever comes second they are marked.
    assert redrive(connection, letters(connection, place), RedrivePlan(again=True)).sent == 4
    assert redrive(connection, letters(connection, place)).marked == 4
    wait_settled(connection.bootstrap, source)
    sent = [record for record in consume(connection, source) if (record.partition, record.offset) not in before]
    found = {(record.key, record.value, dict(record.headers)[REDRIVEN]) for record in sent}
    assert found == {(b"k", b"\xff\xfe", b"1"), (None, None, b"1"), (b"", b"{}", b"1"), (b"k", b"{}", b"3")}
    assert len(sent) == 4
