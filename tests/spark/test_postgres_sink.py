"""Rows into a real PostgreSQL: every value, each row once whatever dies, and what does not fit is a dead letter."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pyspark import cloudpickle
from pyspark.sql import types as T

from headrace.errors import ConfigError, Failed, SetupError
from headrace.pipeline.declare.declaration import Declaration, Sink
from headrace.pipeline.declare.reading import read
from headrace.pipeline.graph import Graph, GraphObserver
from headrace.pipeline.spark import internals
from headrace.pipeline.spark.sinks import postgres as postgres_sink
from headrace.pipeline.spark.sinks.postgres import PostgresWriter, _Attempt
from headrace.runtime.waiting import eventually
from tests.postgres import PASSWORD, Server
from tests.spark import postgres_faults
from tests.spark.pipelines import Workshop, send, totals

Topic = Callable[..., str]
_ROOT = Path(__file__).parents[2]


@pytest.fixture
def table() -> str:
    return f"t_{uuid.uuid4().hex[:8]}"


@pytest.fixture
def declare(shop: Workshop, headrace_topic: Topic, postgres: Server, table: str) -> Callable[..., str]:
    """Writes a declaration; gives the topic that it reads."""

    def make(text: str, **topic_settings: Any) -> str:
        topic = headrace_topic(**topic_settings)
        shop.declare(text, topic=topic, url=postgres.url(), password=str(postgres.password_file), table=table)
        return topic

    return make


_INTO = 'postgres = "<url>"\ntable = "<table>"\npassword_file = "<password>"\n'
_UPSERTS = f"""
[pipelines.p]
from = "<topic>"
decode = {{ json = "id long, n int, name string, at timestamp, amount decimal(9,2), tags array<string>, more struct<a: int, b: string>" }}
spark = {{ "spark.sql.session.timeZone" = "Europe/Berlin" }}
[pipelines.p.select]
id = "id"
n = "n"
"name of it" = "name"
at = "at"
day = "cast(at as date)"
amount = "amount"
half = "n / 2D"
even = "n % 2 = 0"
raw = "cast(name as binary)"
tags = "tags"
more = "more"
[[pipelines.p.into]]
{_INTO}
key = ["id"]
[[pipelines.p.into]]
{_INTO.replace("<table>", "<table>_all")}
where = "n % 3 != 0"
select = {{ n = "n", twice = "2 * n" }}
"""  # noqa: E501
_NAMES = ("plain", "", "tab\there", "line\nbreak\r", 'quote"\\N\\', "ünï €😀", "{a,b}", "NULL", None)


def _record(n: int) -> dict[str, Any]:
    name = _NAMES[n % len(_NAMES)]
    # An hour that Europe's clocks show twice, and one that is on another day there.
    at = f"2026-10-25T{(0, 1, 23)[n % 3]:02}:{n % 60:02}:00.123456Z" if n % 5 else None
    return {
        "id": n % 40, "n": n, "name": name, "at": at, "amount": n + 0.25, "tags": [name, None, "x"] if n % 4 else None,
        "more": {"a": n, "b": name},
    }  # fmt: skip


def _expected(n: int) -> tuple[Any, ...]:
    record = _record(n)
    at = datetime.fromisoformat(record["at"]) if record["at"] else None
    name, day = record["name"], at.astimezone(ZoneInfo("Europe/Berlin")).date() if at else None
    return (
        n % 40, n, name, at, day, Decimal(f"{n}.25"), n / 2, n % 2 == 0,
        None if name is None else name.encode(), record["tags"], record["more"],
    )  # fmt: skip


def test_rows_are_upserted_and_inserted_value_by_value(
    shop: Workshop, postgres: Server, declare: Callable[..., str], table: str
) -> None:
    topic = declare(_UPSERTS, partitions=3)
    kept: dict[int, int] = {}
    for first, after in ((0, 150), (150, 390)):
        # A key's records are in one partition: their order is theirs.
        for n in range(first, after):
            kept[n % 40] = n
        producer = shop.connection.producer()
        for n in range(first, after):
            producer.produce(topic, json.dumps(_record(n)), key=str(n % 40))
        assert producer.flush(60) == 0
        report = shop.run()
        assert totals(report) == {"written": after - first}
        skipped = len([n for n in range(first, after) if n % 3 == 0])
        assert [(line.sink, line.taken, line.skipped) for line in report.sinks] == [
            (table, after - first, 0), (f"{table}_all", after - first - skipped, skipped)
        ]  # fmt: skip
        assert sorted(postgres.rows(f"select * from {table}")) == sorted(map(_expected, kept.values()))
    every = [(n, 2 * n) for n in range(390) if n % 3]
    assert sorted(postgres.rows(f"select * from {table}_all")) == every
    assert postgres.rows("select tablename from pg_tables where tablename like 'headrace_staging%'") == []
    types = dict(postgres.rows(
        f"select attname, format_type(atttypid, atttypmod) from pg_attribute "
        f"where attrelid = '{table}'::regclass and attnum > 0"
    ))  # fmt: skip
    assert types == {
        "id": "bigint", "n": "integer", "name of it": "text", "at": "timestamp with time zone", "day": "date",
        "amount": "numeric(9,2)", "half": "double precision", "even": "boolean", "raw": "bytea", "tags": "text[]",
        "more": "jsonb",
    }  # fmt: skip


_NARROW = f"""
[pipelines.p]
from = "<topic>"
decode = {{ json = "id string, small long, price decimal(9,2), name string, code string, day string, more map<string,string>" }}
select = {{ id = "id", small = "small", price = "price", name = "name", code = "code", day = "to_date(day)", more = "more" }}
[[pipelines.p.into]]
{_INTO}
key = ["id"]
[[pipelines.p.into]]
delta = "tables/all"
"""  # noqa: E501


def test_a_value_that_does_not_fit_the_table_is_a_dead_letter(
    shop: Workshop, postgres: Server, declare: Callable[..., str], table: str
) -> None:
    postgres.rows(
        f"create table {table} (id text primary key, small smallint, price numeric(5,2), name varchar(5) not null, "
        "code uuid, day date, more jsonb, extra int default 7)"
    )
    code = str(uuid.uuid4())
    good = {"id": "a", "small": 32767, "price": 999.99, "name": "fünf5", "code": code, "day": "2026-01-02", "more": {}}
    bad: list[tuple[dict[str, Any], str]] = [
        ({"small": 32768}, "small is out of range for smallint"),
        ({"price": -1000}, "price is out of range for numeric(5,2)"),
        ({"name": "sechs6"}, "name is too long for character varying(5)"),
        ({"name": "\0"}, "name has a NUL or bytes that are not UTF-8"),
        ({"name": None}, "name is null, and must not be"),
        ({"code": "no"}, "code is not a uuid"),
        ({"day": "10000-01-01"}, "day is outside of the years 1 to 9999"),
        ({"more": {"a": "\0"}}, "more has a NUL in a text"),
        ({"id": None}, "id is null: it belongs to the key"),
        ({"id": "x" * 2501}, "the key is longer than 2,500 bytes"),
    ]
    harmless = {**good, "id": "b", "more": {"a": "\\u0000"}, "small": None}
    send(shop.cluster, declare(_NARROW), [good, *({**good, "id": "c", **change} for change, _ in bad), harmless])
    report = shop.run()
    assert totals(report) == {"written": 2, "dead": len(bad)}
    assert {(letter["rule"], letter["reason"]) for letter in shop.dead()} == {
        ("into", f"{table}: {reason}") for _, reason in bad
    }
    assert len(shop.rows("tables/all")) == 2
    assert sorted(postgres.rows(f"select * from {table}")) == [
        ("a", 32767, Decimal("999.99"), "fünf5", uuid.UUID(code), date(2026, 1, 2), {}, 7),
        ("b", None, Decimal("999.99"), "fünf5", uuid.UUID(code), date(2026, 1, 2), {"a": "\\u0000"}, 7),
    ]


_COLUMNS = T.StructType([T.StructField("id", T.LongType()), T.StructField("NAME", T.StringType())])
_ID = "id bigint unique"


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (f"table <table> ({_ID}, name text)", "has no column NAME"),
        (f"table <table> ({_ID})", 'add column "NAME" text'),
        (f'table <table> ({_ID}, "NAME" int)', "NAME is a string in Spark, but in table public.<table> it is integer"),
        ('table <table> (id bigint, "NAME" text)', "has no unique index on id"),
        (f'table <table> ({_ID}, "NAME" text, more int not null)', "requires more, which the sink does not write"),
        ('table <table> (id bigint unique generated always as identity, "NAME" text)', "computes id itself"),
        ("view <table> as select 1::bigint as id, '' as \"NAME\"", "is not a table"),
        ("table other (id int)", "there is no schema nowhere for the table <table>"),
        (f'table <table> ({_ID}, "NAME" varchar(3), more int)', ""),
    ],
)
def test_a_table_that_exists_is_checked_before_the_run(postgres: Server, table: str, made: str, said: str) -> None:
    postgres.rows(f"create {made}".replace("<table>", table))
    name = f"nowhere.{table}" if "schema" in said else table
    sink = Sink("postgres", name, database=postgres.url(), password_file=str(postgres.password_file), keys=("id",))
    declaration = Declaration("p", ("t",), (sink,))
    if not said:
        limits = PostgresWriter().limits(declaration, sink, _COLUMNS, asked=True)
        assert [limit.reason for limit in limits if "varying" in limit.reason] == [
            "NAME is too long for character varying(3)"
        ]
        return
    with pytest.raises(ConfigError) as caught:
        PostgresWriter().limits(declaration, sink, _COLUMNS, asked=True)
    assert said.replace("<table>", table) in str(caught.value)
    assert caught.value.hint


def test_mistakes_are_found_before_anything_runs(
    shop: Workshop, postgres: Server, declare: Callable[..., str], table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres.rows(f"create table {table} (id text, n int)")
    declare(f'[pipelines.p]\nfrom = "<topic>"\ndecode = {{ json = "id long, n int" }}\n[[pipelines.p.into]]\n{_INTO}')
    with pytest.raises(ConfigError, match=r"headrace.toml, line 4: id is a bigint in Spark.*it is text"):
        shop.run()
    away = replace(shop.pipeline().declaration.sinks[0], database="postgresql://nobody@127.0.0.1:1/none")
    shop.declare(shop.file.read_text().replace(postgres.url(), away.database))
    said: list[str] = []
    listening: Any = SimpleNamespace(say=said.append)
    steps = shop.pipeline().explain(shop.spark, progress=listening)
    assert [name for name, _ in steps] == ["decode", "select"], "without a database"
    text = shop.file.read_text().replace(away.database, postgres.url())
    shop.declare(text.replace("password_file", "# password_file"))
    assert len(shop.pipeline().explain(shop.spark, progress=listening)) == 2, "without its password"
    unknown = f"headrace.toml, line 4: whether {table} can take the rows is not known: PostgreSQL at "
    assert [line.startswith(unknown) for line in said] == [True, True]
    assert ("does not answer" in said[0], "refuses the connection" in said[1]) == (True, True)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(SetupError, match=r"line 4: a postgres sink needs psycopg") as caught:
        shop.run()
    assert caught.value.hint == "pip install 'headrace[postgres]'"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("sslmode=bogus", 'invalid sslmode value: "bogus"'),
        ("connect_timeout=abc", "bad value for connect_timeout: 'abc'"),
        ("keepalives_idle=soon", 'invalid integer value "soon" for connection option "keepalives_idle"'),
    ],
)
def test_a_wrong_setting_of_the_address_is_not_waited_for(setting: str, said: str) -> None:
    sink = Sink("postgres", "t", database=f"postgresql://me@127.0.0.1:1/db?{setting}", keys=("id",))
    declaration = Declaration("p", ("t",), (sink,))
    for step in (
        lambda: PostgresWriter().limits(declaration, sink, _COLUMNS, asked=False),
        lambda: PostgresWriter().require(declaration, sink),
    ):
        with pytest.raises(ConfigError, match=r"p, into\.0\.postgres: the address of the .* cannot be") as caught:
            step()
        assert said in str(caught.value.why)


# -- the password ------------------------------------------------------------------------------------------------------

_PLAIN = f"""
[pipelines.p]
from = "<topic>"
decode = {{ json = "n int" }}
max_records_per_batch = 100
[[pipelines.p.into]]
{_INTO}
"""


def test_the_password_is_nowhere(
    shop: Workshop, postgres: Server, declare: Callable[..., str], table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = declare(_PLAIN.replace('password_file = "<password>"\n', ""))
    send(shop.cluster, topic, [{"n": 1}])
    with pytest.raises(Failed, match="refuses the connection") as caught:
        shop.run()
    assert "password_file" in str(caught.value)
    passes = shop.folder / "passes"
    passes.write_text(f"127.0.0.1:{postgres.port}:*:headrace:{PASSWORD}\n")
    passes.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(passes))
    plans: list[str] = []
    made = internals.map_in_arrow

    def seen(*given: Any) -> Any:
        frame = made(*given)
        plans.append(frame._jdf.queryExecution().toString())
        return frame

    monkeypatch.setattr(internals, "map_in_arrow", seen)
    assert totals(shop.run()) == {"written": 1}
    monkeypatch.delenv("PGPASSFILE")
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    send(shop.cluster, topic, [{"n": 2}])
    assert totals(shop.run()) == {"written": 1}
    assert sorted(postgres.rows(f"select n from {table}")) == [(1,), (2,)]
    passes.unlink()
    context = shop.spark.sparkContext
    driver = Path(context.getConf().get("spark.local.dir", "")).parent
    files = [path for folder in (shop.folder, driver) for path in folder.rglob("*") if path.is_file()]
    assert len(plans) == 2
    assert len(files) > 20, "logs, checkpoint, ledger"
    secret = PASSWORD.encode()
    assert [path for path in files if secret in path.read_bytes()] == []
    assert not any(PASSWORD in text for text in (*plans, context.getConf().toDebugString()))


@pytest.mark.parametrize("where", ["//me:{}@127.0.0.1/db", "//me@127.0.0.1/db?sslmode=require&password={}"])
def test_a_password_in_the_file_is_refused(tmp_path: Path, where: str) -> None:
    file, url = tmp_path / "headrace.toml", "postgresql:" + where.format(PASSWORD)
    file.write_text(f'[pipelines.p]\nfrom = "t"\n[pipelines.p.into]\npostgres = "{url}"\ntable = "t"\n')
    with pytest.raises(ConfigError, match="line 4: there is a password in the address") as caught:
        read(file, "p")
    assert PASSWORD not in str(caught.value)


# -- whatever dies -----------------------------------------------------------------------------------------------------


@pytest.fixture
def struck(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int, Callable[[_Attempt], None]], list[int]]:
    """Something happens, once, behind a step of the attempt at a batch; gives the numbers of all attempts."""

    def arrange(step: str, number: int, strike: Callable[[_Attempt], None]) -> list[int]:
        original = getattr(_Attempt, step)
        attempts: list[int] = []

        def then(attempt: _Attempt, *given: Any) -> Any:
            done = original(attempt, *given)
            attempts.append(attempt.batch.number)
            if attempt.batch.number == number and attempts.count(number) == 1:
                strike(attempt)
            return done

        monkeypatch.setattr(_Attempt, step, then)
        return attempts

    return arrange


def test_the_server_is_killed(
    shop: Workshop, postgres: Server, declare: Callable[..., str], table: str, struck: Callable[..., list[int]]
) -> None:
    """Behind COPY, inside the transaction, and behind its commit: the run waits, says so, and goes on."""
    topic = declare(_PLAIN)
    send(shop.cluster, topic, [{"n": n} for n in range(400)])
    said: list[str] = []

    def kill(_: _Attempt) -> None:
        postgres.kill()
        threading.Timer(1.5, postgres.start).start()

    copied, inserted = struck("_copied", 0, kill), struck("_insert", 1, kill)
    moved = struck("_move", 2, kill)
    try:
        assert totals(shop.run(say=said.append)) == {"written": 400}
    finally:
        eventually(lambda: postgres.process is not None, 10)
        postgres.start()
    assert (copied.count(0), inserted.count(1), moved.count(2)) == (2, 2, 1)
    assert sorted(postgres.rows(f"select n from {table}")) == [(n,) for n in range(400)]
    assert len([line for line in said if line.startswith("cut off: PostgreSQL at")]) >= 2
    assert [line for line in said if "does not answer" in line and line.startswith("waiting: PostgreSQL at")]
    assert postgres.rows("select tablename from pg_tables where tablename like 'headrace_staging%'") == []


def test_a_server_that_is_away_is_waited_for(
    shop: Workshop, postgres: Server, declare: Callable[..., str], table: str
) -> None:
    send(shop.cluster, declare(_PLAIN), [{"n": 1}])
    said: list[str] = []
    postgres.stop()
    try:
        run = threading.Thread(target=lambda: shop.run(say=said.append))
        run.start()
        eventually(lambda: any(line.startswith("waiting: PostgreSQL at") for line in said), 60)
        assert shop.pipeline().state == "waiting"
    finally:
        postgres.start()
    run.join(60)
    assert postgres.rows(f"select n from {table}") == [(1,)]
    assert "there is an answer again: going on" in said


def test_what_is_in_the_staging_table_is_not_trusted(
    shop: Workshop, postgres: Server, declare: Callable[..., str], table: str, struck: Callable[..., list[int]]
) -> None:
    """Rows of a task that Spark has given up are not moved; rows that are gone are noticed, and copied again."""
    send(shop.cluster, declare(_PLAIN), [{"n": n} for n in range(250)])

    def change(attempt: _Attempt) -> None:
        staging = f'"{attempt.staging}"'
        postgres.rows(f"insert into {staging} (n, _attempt) select n, -7 from {staging}")
        if attempt.batch.number == 1:
            postgres.rows(f"delete from {staging} where n = (select min(n) from {staging})")

    struck("_copied", 0, change)
    copied = struck("_copied", 1, change)
    said: list[str] = []
    assert totals(shop.run(say=said.append)) == {"written": 250}
    assert copied == [0, 1, 1, 2]
    assert sorted(postgres.rows(f"select n from {table}")) == [(n,) for n in range(250)]
    assert any("has lost rows of the batch" in line for line in said)


def test_a_server_that_refuses_stops_the_run_and_gets_the_batch_at_the_next_start(
    shop: Workshop, postgres: Server, declare: Callable[..., str], table: str
) -> None:
    send(shop.cluster, declare(_PLAIN), [{"n": n} for n in range(150)])
    postgres.rows(f"create table {table} (n int check (n < 120))")
    with pytest.raises(Failed, match="refuses the batch") as caught:
        shop.run()
    assert "violates check constraint" in str(caught.value)
    # What PostgreSQL says when its disk is full, by its own code.
    postgres.rows(
        f"alter table {table} drop constraint {table}_n_check; create or replace function full_disk() returns trigger "
        "language plpgsql as $$ begin raise exception 'could not extend file' using errcode = '53100'; end $$; "
        f"create trigger full_disk before insert on {table} execute function full_disk()"
    )
    with pytest.raises(Failed, match=r"the disk of PostgreSQL at .* is full") as caught:
        shop.run()
    assert "written at the next start" in str(caught.value)
    postgres.rows(f"drop trigger full_disk on {table}")
    assert totals(shop.run()) == {"written": 50}
    assert sorted(postgres.rows(f"select n from {table}")) == [(n,) for n in range(150)]


def test_a_locked_table_is_waited_for(
    shop: Workshop, postgres: Server, declare: Callable[..., str], table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_sink, "_LOCK_TIMEOUT", "300ms")
    postgres.rows(f"create table {table} (n int)")
    send(shop.cluster, declare(_PLAIN), [{"n": 1}])
    said: list[str] = []
    with postgres.connect() as other, other.transaction():
        other.execute(f"lock table {table} in exclusive mode".encode())
        run = threading.Thread(target=lambda: shop.run(say=said.append))
        run.start()
        eventually(lambda: any("another session has locked the table" in line for line in said), 60)
    run.join(60)
    assert postgres.rows(f"select n from {table}") == [(1,)]


@pytest.fixture
def by_value() -> Iterator[None]:
    cloudpickle.register_pickle_by_value(postgres_faults)
    yield
    cloudpickle.unregister_pickle_by_value(postgres_faults)


@pytest.mark.usefixtures("by_value")
def test_a_worker_is_killed(
    shop: Workshop, postgres: Server, declare: Callable[..., str], table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of COPY, and behind its commit before Spark knows."""
    send(shop.cluster, declare(_PLAIN, partitions=2), [{"n": n} for n in range(500)])
    for point in ("copying", "copied"):
        flag = shop.folder / point
        monkeypatch.setattr(postgres_sink, "_copy_task", postgres_faults.Killed(point, flag))
        with pytest.raises(Failed, match="pipeline p failed"):
            shop.run()
        assert flag.exists()
    monkeypatch.undo()
    shop.run()
    assert sorted(postgres.rows(f"select n from {table}")) == [(n,) for n in range(500)]
    assert postgres.rows("select tablename from pg_tables where tablename like 'headrace_staging%'") == []
    entries = [line.read for line in shop.pipeline().ledger.runs() if line.read]
    assert sum(entries) == 500


_TWO = f"""
[pipelines.p]
from = "<topic>"
decode = {{ json = "id int, n int" }}
where = "n >= 0"
[[pipelines.p.into]]
{_INTO}
key = ["id"]
[[pipelines.p.into]]
{_INTO.replace("<table>", "<table>_all")}
[[pipelines.p.into]]
delta = "tables/rows"
"""


class Killed(BaseException):
    """The process is gone."""


def test_a_full_refresh_makes_the_rows_again_once(
    shop: Workshop, postgres: Server, declare: Callable[..., str], table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(shop.cluster, declare(_TWO), [{"id": n % 20, "n": n} for n in range(50)])

    def numbers(name: str) -> list[int]:
        return [n for (n,) in postgres.rows(f"select n from {name} order by n")]

    assert f"{table}: it has no rows yet" in shop.pipeline().plan_rebuild(shop.cluster).steps
    shop.run()
    assert (numbers(table), numbers(f"{table}_all")) == (list(range(30, 50)), list(range(50)))

    # What is not its own is not removed, and nothing else is either.
    mark = f"'headrace/other/id/0/public.{table}_all'"
    others = (
        (f"insert into headrace_batches values ({mark}, 0, 1, now())", "is written by other too"),
        (f"create table {table}_more (id int references {table}(id))", f"are referred to by {table}_more"),
    )
    for statement, refused in others:
        postgres.rows(statement)
        with pytest.raises(ConfigError, match=refused):
            shop.pipeline().start_over(shop.cluster, spark=shop.spark)
        postgres.rows(f"delete from headrace_batches where writer = {mark}; drop table if exists {table}_more")
    user, text = f"{table}_user", shop.file.read_text()
    postgres.rows(
        f"create role {user} login password '{PASSWORD}'; grant select on {table}, headrace_batches to {user}"
    )
    shop.file.write_text(text.replace("//headrace@", f"//{user}@"))
    with pytest.raises(ConfigError, match=f"{user} may not delete rows of public.{table}"):
        shop.pipeline().start_over(shop.cluster, spark=shop.spark)
    shop.file.write_text(text)
    assert numbers(table) == list(range(30, 50))
    assert len(shop.rows("tables/rows")) == 50

    # Killed behind the first table. Of some keys, there is no row any more.
    shop.file.write_text(shop.file.read_text().replace("n >= 0", "id < 5"))

    def move_and_die(*given: Any) -> None:
        move_aside(*given)
        raise Killed

    move_aside = postgres_sink._move_aside
    monkeypatch.setattr(postgres_sink, "_move_aside", move_and_die)
    with pytest.raises(Killed):
        shop.pipeline().start_over(shop.cluster, spark=shop.spark)
    monkeypatch.undo()
    assert numbers(table) == []
    with pytest.raises(Failed, match="a full refresh of p was cut off"):
        shop.run()
    said: list[str] = []
    observer = GraphObserver(say=lambda _, text: said.append(text))
    graph = Graph.from_file(shop.file, shop.home)
    assert graph.refresh("p", shop.cluster, full=True, spark=shop.spark, observer=observer).failed == ()
    wanted = [n for n in range(50) if n % 20 < 5]
    assert (numbers(table), numbers(f"{table}_all")) == ([n for n in wanted if n + 20 not in wanted], wanted)
    assert sorted(row["n"] for row in shop.rows("tables/rows")) == wanted
    like = f"select tablename from pg_tables where tablename like '{table}%_before_%'"
    copies = [name for (name,) in postgres.rows(like)]
    assert sorted(map(numbers, copies), key=len) == [list(range(30, 50)), list(range(50))]
    assert all(any(f"its rows of before are in the table public.{name}" in text for text in said) for name in copies)


def test_the_driver_is_killed(
    shop: Workshop, postgres: Server, declare: Callable[..., str], table: str, headrace_topic: Topic
) -> None:
    """Behind COPY, then behind the commit before Spark knows of it, then left alone."""
    send(shop.cluster, declare(_PLAIN, partitions=2), [{"n": n} for n in range(500)])
    for step, number, ended in (("_copied", 1, -9), ("_move", 2, -9), ("never", 0, 0)):
        words = [str(shop.folder), shop.cluster.bootstrap, step, str(number)]
        script = [sys.executable, "-m", "tests.spark.killed_postgres", *words]
        assert subprocess.run(script, cwd=_ROOT, check=False, timeout=250).returncode == ended
    assert sorted(postgres.rows(f"select n from {table}")) == [(n,) for n in range(500)]
    assert postgres.rows("select tablename from pg_tables where tablename like 'headrace_staging%'") == []


_WINDOWS = f"""
[pipelines.p]
from = "<topic>"
decode = {{ json = "shop string, amount int, at timestamp" }}
event_time = "at"
watermark = "1 minute"
[[pipelines.p.into]]
{_INTO}
key = ["shop", "window_start"]
aggregate = {{ by = ["shop"], window = "1 minute", mode = "watermark", values = {{ total = "sum(amount)" }} }}
"""


def test_finished_windows_go_into_a_table(
    shop: Workshop, postgres: Server, declare: Callable[..., str], table: str
) -> None:
    topic = declare(_WINDOWS)
    start = int(time.time()) // 60 * 60 - 3600
    sales = [(("a", "b")[n % 2], n, start + n * 7) for n in range(100)]
    send(shop.cluster, topic, [{"shop": s, "amount": a, "at": at} for s, a, at in sales])
    shop.run()
    send(shop.cluster, topic, [{"shop": "a", "amount": 0, "at": start + 3000}])
    shop.run()
    sums: dict[tuple[str, int], int] = {}
    for name, amount, at in sales:
        sums[name, at // 60 * 60] = sums.get((name, at // 60 * 60), 0) + amount
    found = postgres.rows(f"select shop, extract(epoch from window_start)::bigint, total from {table}")
    assert {(name, at): total for name, at, total in found} == sums
