"""DuckDB, closed off: conditions on rows, what a query may not do, and when it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import Failed, HeadraceError, Unreachable, UsageError
from headrace.tables.engine import Engine, Limits, Stream
from headrace.tables.rows import plain_rows
from headrace.tables.spark_types import ddl_schema

_TABLE = pa.table(
    {
        "id": [1, 2, 3, None],
        "name": ["a", "it's", None, "and"],
        "odd name": [True, False, True, None],
        "at": pa.array([datetime(2020, 9, d, tzinfo=UTC) for d in (10, 11, 12, 13)], pa.timestamp("us", "UTC")),
        "span": pa.array([{"end": n} for n in range(4)]),
    }
)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as engine:
        engine.add(("rows",), [_TABLE])
        yield engine


def rows(found: tuple[Any, Iterator[Any]]) -> list[dict[str, Any]]:
    schema, batches = found
    made: list[dict[str, Any]] = pa.Table.from_batches(list(batches), schema).to_pylist()
    return made


@pytest.mark.parametrize(
    ("where", "days"),
    [
        ("id = 1 or id = 2 and name = 'a'", [10]),
        ("(id = 1 or id = 2) and name = 'it''s'", [11]),
        ("NOT id = 1", [11, 12]),
        ("not id in (1, 2) and not name is null", []),
        ("id is null", [13]),
        ("name IN ('a', 'and')", [10, 13]),
        ('"odd name" = false', [11]),
        ("at >= '2020-09-12'", [12, 13]),
        ("at = '2020-09-11T02:00:00+02:00'", [11]),
        ("at between '2020-09-11' and '2020-09-12' -- at", [11, 12]),
        ("hour(at at time zone 'UTC') = 0 and at < '2020-09-11'", [10]),
        ("span.end >= 2", [12, 13]),
        ("id between -1 and 1.5", [10]),
        ("id <> 1", [11, 12]),
        ("id not between 2 and 3", [10]),
        ("name == 'it''s' or name not in ('a', 'it''s')", [11, 13]),
        ("name like 'an%' or name not like '%s'", [10, 13]),
        ("length(name) = 1 or id + 1 = 3", [10, 11]),
    ],
)
def test_rows_are_chosen_as_in_sql(engine: Engine, where: str, days: list[int]) -> None:
    assert [row["at"].day for row in rows(engine.select("rows", where, ["*"]))] == days


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("", "the SQL cannot be run"),
        ("id = 1 and", 'syntax error at or near "and"'),
        ("id = 'x'", "Could not convert string 'x' to INT64"),
        ("id = 1; drop table x", "the SQL cannot be run"),
        ("nome = 'a'", 'Candidate bindings: "name"'),
        ("span.start = 1", "start"),
        ("id in (select * from read_csv('/etc/passwd'))", "file system operations are disabled"),
    ],
)
def test_a_wrong_condition_is_explained(engine: Engine, where: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        rows(engine.select("rows", where, ["*"]))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("select at, offset from t where offset > 3 order by at, offset limit 1 offset 2", 'select "at", "offset" '),
        ("select window.start, window.end from t", 'select "window".start'),
    ],
)
def test_names_of_columns_that_sql_reserves_need_no_quotes(engine: Engine, query: str, words: str) -> None:
    (statement,) = engine.parsed(query)
    assert statement.query.startswith(words)
    assert statement.query.replace('"', "") == query
    untouched = "select case when true then 1 end, max(x) over w from t at (version => 3) window w as (partition by y)"
    assert engine.parsed(untouched)[0].query == untouched
    with pytest.raises(UsageError, match='near "selec"'):
        engine.parsed("selec at from t")


@pytest.mark.parametrize(
    "query",
    [
        "select * from '/etc/passwd'", "from read_csv('/etc/passwd')", "from read_text('/etc/passwd')",
        "from glob('/*')", "from read_parquet('https://127.0.0.1:1/x.parquet')", "set threads = 1", "install httpfs",
        "load httpfs", "copy (select 1) to '/tmp/headrace-was-here.csv'", "attach '/tmp/headrace-was-here.db'",
        "set enable_external_access = true", "reset lock_configuration", "from sniff_csv('/etc/passwd')",
        "from _TABLE", "export database '/tmp/headrace-was-here'", "select getenv('HOME')",
        "explain analyze copy (select 1) to '/tmp/headrace-was-here.csv'",
    ],
)  # fmt: skip
def test_nothing_outside_can_be_reached(engine: Engine, query: str) -> None:
    with pytest.raises(HeadraceError):
        rows(engine.run(query))
    assert not list(Path("/tmp").glob("headrace-was-here*"))  # noqa: S108 - must not be written


def endless(wait_s: float = 0.0) -> Stream:
    def batches() -> Iterator[Any]:
        for number in range(1 << 40):
            time.sleep(wait_s)
            yield pa.record_batch({"n": [number]})

    return Stream(pa.schema([("n", pa.int64())]), batches)


@pytest.mark.parametrize("query", ["select count(*) from range(1000000000000)", "select sum(n) from waits"])
def test_a_query_ends_in_time(query: str) -> None:
    with Engine(Limits(timeout_s=0.3)) as engine:
        engine.add(("waits",), [endless(0.01)])
        began = time.monotonic()
        with pytest.raises(Failed, match="took longer than"):
            rows(engine.run(query))
    assert time.monotonic() - began < 5


def test_no_more_is_read_than_is_needed_and_a_failure_is_passed_on(engine: Engine) -> None:
    engine.add(("topic", "waits"), [endless()])
    assert [row["n"] for row in rows(engine.run("from topic.waits limit 3"))] == [0, 1, 2]

    def broken() -> Iterator[Any]:
        yield pa.record_batch({"n": [1]})
        raise Unreachable("no Kafka answers")

    engine.add(("topic", "broken"), [Stream(pa.schema([("n", pa.int64())]), broken)])
    with pytest.raises(Unreachable, match="no Kafka answers"):
        rows(engine.run("select sum(n) from topic.broken"))


def test_memory_is_limited() -> None:
    with Engine(Limits(memory="100MB", spill=False, threads=1)) as engine:
        with pytest.raises(Failed, match="more memory than it may use"):
            rows(engine.run("select list(repeat('x', 1000) || range) from range(1000000)"))
        assert rows(engine.run("select 1 as one")) == [{"one": 1}]


def test_a_query_can_be_ended_from_another_thread(engine: Engine) -> None:
    engine.add(("waits",), [endless(0.01)])
    threading.Timer(0.2, engine.stop).start()
    with pytest.raises(Failed, match="ended before it was done"):
        rows(engine.run("select sum(n) from waits"))


def test_values_as_json_holds_them(engine: Engine) -> None:
    query = """select rows.at, interval '1 day 2 hours' as took, 1.50::decimal(5, 2) as fare, 'x'::blob as raw,
        date '2020-01-02' as day, '\\xFF'::blob as bytes, [1, null] as list, map {'a': 1} as pairs,
        'nan'::double as nan, span from rows limit 1"""
    schema, batches = engine.run(query)
    assert list(plain_rows(pa.Table.from_batches(list(batches), schema))) == [
        {
            "at": "2020-09-10T00:00:00Z", "took": "1 day 02:00:00", "fare": "1.50", "raw": "x", "day": "2020-01-02",
            "bytes": {"base64": "/w=="}, "list": [1, None], "pairs": {"a": 1}, "nan": "NaN", "span": {"end": 0},
        }
    ]  # fmt: skip


def test_columns_of_the_same_name_are_told_apart(engine: Engine) -> None:
    schema, batches = engine.run("select 1 as a, 2 as a, 3 as a_1, 4 as a")
    assert schema.names == ["a", "a_1", "a_1_1", "a_2"]
    assert [batch.to_pylist() for batch in batches] == [[{"a": 1, "a_1": 2, "a_1_1": 3, "a_2": 4}]]


def test_ddl_as_arrow() -> None:
    ddl = """id bigint not null comment 'the, id', `odd ``name` array<struct<a: int, `b c`: decimal(12,3)>>,
        pairs map<string, double>, at TIMESTAMP, local timestamp_ntz, day date, v varchar(10), d decimal, t tinyint"""
    struct = pa.struct([("a", pa.int32()), ("b c", pa.decimal128(12, 3))])
    assert ddl_schema(ddl) == pa.schema(
        [
            ("id", pa.int64()), ("odd `name", pa.list_(struct)), ("pairs", pa.map_(pa.string(), pa.float64())),
            ("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us")), ("day", pa.date32()), ("v", pa.string()),
            ("d", pa.decimal128(10, 0)), ("t", pa.int8()),
        ]
    )  # fmt: skip
    assert ddl_schema("struct<a: int>").names == ["a"]
    for wrong in ("", "id", "id array<int", "id interval", "id map<int>"):
        with pytest.raises(UsageError):
            ddl_schema(wrong)
