"""Rows of a batch into a table of PostgreSQL, exactly once: inserted, or by a key inserted and updated.

Tasks copy their rows side by side into a staging table of this attempt (COPY; Spark makes the lines). Then one
transaction moves the rows into the table and writes the mark of the batch: the table `headrace_batches` holds the last
batch of each writer. A batch whose mark is there is not written again, so it may be cut off anywhere and be repeated.

Rows of the staging table name the attempt of the task that copied them. Only those of tasks that Spark counts as done
are moved: what a killed task had copied stays behind. A server that crashes empties the staging table, which is not
logged; the rows are counted again inside the transaction, and a batch with less than was copied is repeated.

Of several rows with the same key in a batch, the last one counts by the position of its record. A staging table that a
killed driver left is removed by the next attempt.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructType

from headrace.errors import Failed, HeadraceError, SetupError, Unreachable
from headrace.pipeline.declare.declaration import Declaration, Sink
from headrace.pipeline.spark import internals
from headrace.pipeline.spark.demands import Limit
from headrace.pipeline.spark.sinks import postgres_types
from headrace.pipeline.spark.sinks.kafka import raisable
from headrace.pipeline.spark.sinks.postgres_server import (
    Database,
    Table,
    connect,
    encoding_of,
    has_rows,
    identifier,
    look_up,
    may_delete,
    referring,
    require_psycopg,
    settings_of,
    statement,
    translated,
)
from headrace.pipeline.spark.sinks.sinks import Batch, SinkWriter, columns_of

if TYPE_CHECKING:
    import pyarrow
    from psycopg.sql import Composable

    from headrace.pipeline.spark.sinks.postgres_server import Connection

MARKS = "headrace_batches"
_STAGING = "headrace_staging"
#: Connections at once: a server has a hundred for everybody.
_TASKS = 8
_NAME_BYTES = 63
#: How long the table may be locked by others before the batch is given up and repeated.
_LOCK_TIMEOUT = "30s"
#: Where a row comes from, in the staging table of a table with a key; by this, one of several is the last.
_POSITION: dict[str, DataType] = {
    "_topic": StringType(), "_partition": IntegerType(), "_offset": LongType(), "_row": LongType()
}  # fmt: skip
_RESULT = "attempt long, records long, kind string, problem string, why string, hint string"


class PostgresWriter(SinkWriter):
    """A table of a database."""

    def limits(self, declaration: Declaration, sink: Sink, columns: StructType, *, asked: bool) -> Sequence[Limit]:
        require_psycopg(declaration, sink)
        kinds = {kind.name: kind.dataType for kind in columns}
        _check_columns(declaration, sink, kinds)
        try:
            database = Database.of(declaration, sink)
            with database.connect() as connection, database.errors():
                table, encoding = look_up(connection, sink.target), encoding_of(connection)
        except (Unreachable, Failed):  # away, or it refuses the login
            if asked:
                raise
            table, encoding = Table("", sink.target), "UTF8"
        if encoding != "UTF8":
            raise declaration.wrong(
                f"the database stores texts as {encoding}", *declaration.path_of(sink), "postgres",
                why="it could not hold every text", hint="create database NAME encoding 'UTF8' template template0",
            )  # fmt: skip
        limits = [*_table_limits(declaration, sink, table, kinds), *postgres_types.key_limits(kinds, sink.keys)]
        if sink.aggregate is not None and sink.aggregate.window is not None:
            limits += postgres_types.window_limits(str(declaration.event_time))
        return limits

    def require(self, declaration: Declaration, sink: Sink) -> None:
        require_psycopg(declaration, sink)
        Database.of(declaration, sink).connect().close()

    def write(self, sink: Sink, rows: DataFrame, batch: Batch) -> int | None:
        return _written(sink, rows, batch)

    def replace(self, sink: Sink, keys: DataFrame, rows: DataFrame, batch: Batch) -> int | None:
        return _written(sink, rows, batch, keys)

    def plan_empty(self, declaration: Declaration, sink: Sink) -> str | None:
        require_psycopg(declaration, sink)
        database = Database.of(declaration, sink)
        with database.connect() as connection, database.errors("to show the table", "nothing was changed"):
            table = look_up(connection, sink.target)
            if not has_rows(connection, table):
                return "it has no rows yet"
            _require_own(connection, declaration, sink, table)
        return f"all of its rows are moved into a new table, {_name_before(table, 'TIME')}"

    def empty(self, declaration: Declaration, sink: Sink, note: Callable[[str], None]) -> None:
        database = Database.of(declaration, sink)
        with database.connect() as connection, database.errors(f"to empty {sink.target}", "it has its rows still"):
            table = look_up(connection, sink.target)
            if has_rows(connection, table):
                before = _name_before(table, time.strftime("%Y%m%d_%H%M%S", time.gmtime()))
                note(f"in the table {table.schema}.{before}")
                _move_aside(connection, table, before)


# -- before a run ------------------------------------------------------------------------------------------------------


def _check_columns(declaration: Declaration, sink: Sink, kinds: Mapping[str, DataType]) -> None:
    """The columns can be columns of PostgreSQL, and those of the key are among them."""
    at = declaration.path_of(sink)
    for key in sink.keys:
        if key not in kinds:
            raise declaration.wrong(
                f"the key of {sink.name} names {key!r}, but there is no such column", *at, "key",
                why=f"the columns are {', '.join(kinds)}",
            )  # fmt: skip
    for name, kind in kinds.items():
        if postgres_types.type_for(kind) is None:
            raise declaration.wrong(
                f"{name} is a {kind.simpleString()}, which has no type in PostgreSQL", *at,
                hint=f'select = {{ {name} = "cast({name} as string)", … }}',
            )  # fmt: skip
    for name in (*kinds, *sink.target.rpartition(".")[::2]):
        if len(name.encode()) > _NAME_BYTES:
            raise declaration.wrong(
                f"the name {name} is too long for PostgreSQL", *at, why=f"it takes {_NAME_BYTES} bytes"
            )


def _table_limits(declaration: Declaration, sink: Sink, table: Table, kinds: Mapping[str, DataType]) -> Iterator[Limit]:
    """What the columns of the table can hold; those of a table that is made are made for the values."""
    if not table.has_schema:
        raise declaration.wrong(
            f"there is no schema {table.schema} for the table {table.name}", *declaration.path_of(sink), "table",
            hint=f"create schema {table.schema}",
        )  # fmt: skip
    if table.columns:
        _check_table(declaration, sink, table, kinds)
    for name, kind in kinds.items():
        column = table.columns.get(name)
        column_type = column.type if column else str(postgres_types.type_for(kind))
        limits = postgres_types.fits(name, kind, column_type)
        if limits is None:
            made = postgres_types.type_for(kind)
            raise declaration.wrong(
                f"{name} is {_a(kind)}, but in table {table.shown} it is {column_type}", *declaration.path_of(sink),
                why=f"values would be changed on their way, or do not go in at all; {made} takes them as they are",
                hint=f"a cast in select, or: alter table {table.shown} alter column {name} type {made}",
            )  # fmt: skip
        yield from limits
        if column and column.is_required and name not in sink.keys:
            yield Limit(f"{postgres_types.quoted_name(name)} is not null", f"{name} is null, and must not be")


def _check_table(declaration: Declaration, sink: Sink, table: Table, kinds: Mapping[str, DataType]) -> None:
    """A table that exists has the columns, needs no others, and knows the key."""
    at = declaration.path_of(sink)
    if table.kind not in {"r", "p"}:
        raise declaration.wrong(f"{table.shown} is not a table", *at, "table", hint="the name of a table")
    for name, kind in kinds.items():
        if name not in table.columns:
            near = next((known for known in table.columns if known.lower() == name.lower()), None)
            made = postgres_types.type_for(kind)
            raise declaration.wrong(
                f"table {table.shown} has no column {name}", *at, why=f"it has {', '.join(table.columns)}",
                hint=f'select = {{ {near} = "{name}", … }}: PostgreSQL knows it as {near}' if near
                else f'alter table {table.shown} add column "{name}" {made}; or a select without it',
            )  # fmt: skip
        if table.columns[name].is_generated:
            raise declaration.wrong(f"table {table.shown} computes {name} itself", *at, hint="a select without it")
    for name, column in table.columns.items():
        if name not in kinds and column.is_required and not column.has_default:
            raise declaration.wrong(
                f"table {table.shown} requires {name}, which the sink does not write", *at,
                why="it is not null and has no default", hint=f"a select with {name}, or a default in the table",
            )  # fmt: skip
    if sink.keys and frozenset(sink.keys) not in table.unique:
        names = ", ".join(f'"{key}"' for key in sink.keys)
        raise declaration.wrong(
            f"table {table.shown} has no unique index on {', '.join(sink.keys)}", *at, "key",
            why="by it, PostgreSQL finds the row to update", hint=f"create unique index on {table.shown} ({names})",
        )  # fmt: skip


def _a(kind: DataType) -> str:
    return f"a {kind.simpleString()} in Spark"


# -- for a full refresh ------------------------------------------------------------------------------------------------


def _require_own(connection: Connection, declaration: Declaration, sink: Sink, table: Table) -> None:
    """As far as is known, no row of the table is of others, or would take rows of others with it."""
    others = _pipelines_of(connection, table) - {declaration.name}
    if others:
        other = min(others)
        raise declaration.wrong(
            f"the table {table.shown} is written by {', '.join(sorted(others))} too", *declaration.path_of(sink),
            why=f"a full refresh of {declaration.name} would remove rows that it cannot make again",
            hint="a table of its own for each pipeline; if that one is gone: "
            f"delete from {table.schema}.{MARKS} where starts_with(writer, 'headrace/{other}/')",
        )  # fmt: skip
    if not may_delete(connection, table):
        raise declaration.wrong(
            f"{connection.info.user} may not delete rows of {table.shown}", *declaration.path_of(sink),
            why="a full refresh removes rows and makes them again",
            hint=f"grant delete on {table.shown} to {connection.info.user}",
        )  # fmt: skip
    if tables := referring(connection, table):
        raise declaration.wrong(
            f"rows of {table.shown} are referred to by {', '.join(tables)}", *declaration.path_of(sink),
            why="a full refresh removes rows and makes them again; foreign keys forbid that, or remove rows there, too",
            hint="drop the foreign key and make it again behind the refresh",
        )  # fmt: skip


def _pipelines_of(connection: Connection, table: Table) -> set[str]:
    """The pipelines that have written to the table, by the marks of their batches: headrace/PIPELINE/ID/EPOCH/TABLE."""
    marks = look_up(connection, f"{table.schema}.{MARKS}")
    if not marks.columns:
        return set()
    text = statement("select writer from {marks} where batch >= 0", marks=identifier(marks.schema, marks.name))
    writers = [writer.split("/", 4) for (writer,) in connection.execute(text)]
    return {parts[1] for parts in writers if parts[4:] == [table.shown]}


def _name_before(table: Table, at: str) -> str:
    ending = f"_before_{at}"
    return table.name.encode()[: _NAME_BYTES - len(ending)].decode(errors="ignore") + ending


def _move_aside(connection: Connection, table: Table, before: str) -> None:
    """All rows are in a new table: this one keeps what it is known by, its indexes and rights."""
    names = {"table": identifier(table.schema, table.name), "before": identifier(table.schema, before)}
    with connection.transaction():
        for text in (
            f"set local lock_timeout = '{_LOCK_TIMEOUT}'",
            "lock table {table} in share row exclusive mode",
            "create table {before} as table {table}",
            "delete from {table}",
        ):
            connection.execute(statement(text, **names))


# -- a batch -----------------------------------------------------------------------------------------------------------


def _written(sink: Sink, rows: DataFrame, batch: Batch, replaced: DataFrame | None = None) -> int | None:
    database = Database.of(batch.declaration, sink)
    with database.connect() as connection, database.errors():
        return _Attempt(sink, rows, batch, database, connection, replaced).write()


class _Attempt:
    """One attempt to write a batch; rows of the keys `replaced` that the batch does not have are removed."""

    def __init__(
        self, sink: Sink, rows: DataFrame, batch: Batch, database: Database, connection: Connection,
        replaced: DataFrame | None = None,
    ) -> None:  # fmt: skip
        self.sink = sink
        self.batch = batch
        self.database = database
        self.connection = connection
        self.rows = rows
        self.replaced = replaced
        self.columns: dict[str, DataType] = {name: rows.schema[name].dataType for name in columns_of(rows)}
        self.table = self._ready_table()
        self.writer = batch.writer_of(self.table.shown)
        # Found again by the next attempt, and never one of another writer's.
        self.prefix = f"{_STAGING}_{hashlib.sha256(self.writer.encode()).hexdigest()[:12]}_"
        self.staging = f"{self.prefix}{batch.number}_{uuid.uuid4().hex[:8]}"

    def write(self) -> int | None:
        """The table holds the rows. How many; None if an earlier attempt had written them."""
        self._ready_marks()
        if self._last_batch() >= self.batch.number:
            return None
        self._remove_left_behind()
        more = {**self._position, "_attempt": LongType()}
        added = ", ".join(f"null::{postgres_types.type_for(kind)} as {name}" for name, kind in more.items())
        self._execute(f"create unlogged table {{staging}} as select {{columns}}, {added} from {{table}} with no data")
        default = "current_setting('headrace.attempt')::bigint"
        self._execute(f"alter table {{staging}} alter column _attempt set default {default}")
        try:
            return self._move(self._copied())
        except BaseException:
            with suppress(Exception):  # of a server that is gone: the next attempt removes it
                self._drop(self.staging)
            raise

    @property
    def _position(self) -> dict[str, DataType]:
        return _POSITION if self.sink.keys else {}

    def _execute(self, text: str, given: Mapping[str, object] | None = None) -> list[tuple[Any, ...]]:
        """The rows that the statement gives; it may name the tables and columns of this attempt."""
        from psycopg import sql

        def names(some: Sequence[str]) -> Composable:
            return sql.SQL(", ").join(map(sql.Identifier, some))

        def same(some: Sequence[str]) -> Composable:
            return sql.SQL(" and ").join(statement("s.{c} = t.{c}", c=identifier(name)) for name in some)

        rest = [name for name in self.columns if name not in self.sink.keys]
        whole = statement(
            text,
            table=identifier(self.table.schema, self.table.name),
            staging=identifier(self.table.schema, self.staging),
            marks=identifier(self.table.schema, MARKS),
            columns=names(list(self.columns)),
            keys=names(self.sink.keys),
            same_key=same(self.sink.keys),
            same_group=same(self.replaced.columns if self.replaced is not None else ()),
            updates=sql.SQL(", ").join(statement("{c} = excluded.{c}", c=identifier(name)) for name in rest),
        )
        done = self.connection.execute(whole, given)
        return done.fetchall() if done.description else []

    # -- tables ------------------------------------------------------------------------------------------------------

    def _ready_table(self) -> Table:
        """The table, made if it was missing, and able to take the columns."""
        table = look_up(self.connection, self.sink.target)
        if not table.columns:
            self._create(table)
            table = look_up(self.connection, self.sink.target)
        for _ in _table_limits(self.batch.declaration, self.sink, table, self.columns):
            continue  # it was looked at before the run, and may have been changed since
        return table

    def _create(self, table: Table) -> None:
        """Two pipelines may do so at once: the second one waits, and finds it."""
        from psycopg import sql

        kinds = [(name, postgres_types.type_for(kind)) for name, kind in self.columns.items()]
        parts = [statement(f"{{name}} {kind}", name=identifier(name)) for name, kind in kinds]
        if self.sink.keys:
            keys = sql.SQL(", ").join(map(sql.Identifier, self.sink.keys))
            parts.append(statement("primary key ({keys})", keys=keys))
        text = "create table if not exists {table} ({parts})"
        name = identifier(table.schema, table.name)
        with self.connection.transaction():
            self.connection.execute("select pg_advisory_xact_lock(hashtext('headrace'))")
            self.connection.execute(statement(text, table=name, parts=sql.SQL(", ").join(parts)))

    def _ready_marks(self) -> None:
        if not look_up(self.connection, f"{self.table.schema}.{MARKS}").columns:
            with self.connection.transaction():
                self.connection.execute("select pg_advisory_xact_lock(hashtext('headrace'))")
                self._execute(
                    "create table if not exists {marks} (writer text primary key, batch bigint not null, "
                    "rows bigint not null, at timestamp with time zone not null)"
                )
        self._execute(
            "insert into {marks} values (%(writer)s, -1, 0, now()) on conflict do nothing", {"writer": self.writer}
        )

    def _last_batch(self, *, held: bool = False) -> int:
        """The last batch of the writer; `held`: nobody else changes it before the end of the transaction."""
        text = "select batch from {marks} where writer = %(writer)s" + (" for update" if held else "")
        ((number,),) = self._execute(text, {"writer": self.writer})
        return int(number)

    def _remove_left_behind(self) -> None:
        """Staging tables of attempts that were killed are gone, unless one of their tasks still writes."""
        found = self.connection.execute(
            "select tablename from pg_tables where schemaname = %s and starts_with(tablename, %s)",
            (self.table.schema, self.prefix),
        ).fetchall()
        for (name,) in found:
            with suppress(Unreachable), translated(self.database.shown):
                self._drop(name)

    def _drop(self, staging: str) -> None:
        """A task that was given up may still be writing to it: that is not waited for."""
        with self.connection.transaction():
            self.connection.execute("set local lock_timeout = '1s'")
            name = identifier(self.table.schema, staging)
            self.connection.execute(statement("drop table if exists {name}", name=name))

    # -- rows --------------------------------------------------------------------------------------------------------

    def _copied(self) -> list[_Copied]:
        """The rows are in the staging table; what each task has done."""
        names = {**self.columns, **self._position}
        listed = ", ".join(identifier(name).as_string(self.connection) for name in names)
        staging = identifier(self.table.schema, self.staging).as_string(self.connection)
        target = _Target(settings_of(self.connection), self.database.shown, f"copy {staging} ({listed}) from stdin")
        rows = self.rows
        if self.replaced is not None:
            # In the staging table, a key that is replaced has no position.
            rows = rows.unionByName(self.replaced, allowMissingColumns=True)
        rows = rows.withColumn("_row", F.monotonically_increasing_id()) if self.sink.keys else rows
        lines = rows.select(F.expr(postgres_types.line(names)).cast("binary").alias("line"))
        copied = internals.map_in_arrow(lines.coalesce(_TASKS), partial(_copy_task, target), _RESULT)
        done = [_Copied(**row.asDict()) for row in copied.collect()]
        for each in done:
            if each.kind is not None:
                raise raisable(each.kind, each.problem or "", each.why, each.hint)
        return done

    def _move(self, copied: list[_Copied]) -> int | None:
        """One transaction moves the rows into the table and marks the batch."""
        count, chosen = sum(each.records for each in copied), ", ".join(str(each.attempt) for each in copied)
        with self.connection.transaction():
            self.connection.execute(statement(f"set local lock_timeout = '{_LOCK_TIMEOUT}'"))
            self.connection.execute("set local work_mem = '64MB'")  # rows are sorted by their key, once
            if self._last_batch(held=True) >= self.batch.number:
                self._execute("drop table {staging}")
                return None
            ((found,),) = self._execute(f"select count(*) from {{staging}} where _attempt in ({chosen})")
            if found != count:
                raise Unreachable(
                    f"{self.database.shown} has lost rows of the batch before they were in the table",
                    why=f"{count:,} were copied, {found:,} are there; the server was restarted meanwhile",
                )
            if self.replaced is not None:
                self._remove_stale(f"_attempt in ({chosen})")
            is_row = "" if self.replaced is None else " and _offset is not null"
            self._execute(self._insert(f"from {{staging}} where _attempt in ({chosen}){is_row}"))
            mark = {"writer": self.writer, "batch": self.batch.number, "rows": count}
            self._execute(
                "update {marks} set batch = %(batch)s, rows = %(rows)s, at = now() where writer = %(writer)s", mark
            )
            self._execute("drop table {staging}")
        return count

    def _remove_stale(self, copied: str) -> None:
        """Rows of replaced keys that the batch does not have are gone. The others stay: they may have more columns."""
        self._execute(
            f"delete from {{table}} t where exists (select from {{staging}} s where {copied} and _offset is null "
            f"and {{same_group}}) and not exists "
            f"(select from {{staging}} s where {copied} and _offset is not null and {{same_key}})"
        )

    def _insert(self, chosen: str) -> str:
        if not self.sink.keys:
            return f"insert into {{table}} ({{columns}}) select {{columns}} {chosen}"
        last = ", ".join(f"{name} desc" for name in _POSITION)
        action = "update set {updates}" if len(self.columns) > len(self.sink.keys) else "nothing"
        return (
            f"insert into {{table}} ({{columns}}) select distinct on ({{keys}}) {{columns}} {chosen} "
            f"order by {{keys}}, {last} on conflict ({{keys}}) do {action}"
        )


# -- in a task ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Target:
    """Where tasks copy their rows to. The settings hold the password and are never shown."""

    settings: Mapping[str, str] = field(repr=False)
    shown: str
    copy: str


@dataclass
class _Copied:
    """What a task has done, or why not: raised, Spark would wrap it in two stack traces."""

    attempt: int
    records: int = 0
    kind: str | None = None
    problem: str | None = None
    why: str | None = None
    hint: str | None = None


def _copy_task(target: _Target, chunks: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None, "runs inside a task only"
    attempt = task.taskAttemptId()
    try:
        copied = _Copied(attempt, _copy(target, attempt, chunks))
    except HeadraceError as error:
        for _ in chunks:  # Spark ends a worker that leaves its input unread
            continue
        copied = _Copied(attempt, 0, type(error).__name__, error.problem, error.why, error.hint)
    text = pyarrow.string()
    schema = pyarrow.schema(list(zip(asdict(copied), (pyarrow.int64(), pyarrow.int64(), *[text] * 4), strict=True)))
    yield pyarrow.RecordBatch.from_pylist([asdict(copied)], schema)


def _copy(target: _Target, attempt: int, chunks: Iterator[pyarrow.RecordBatch]) -> int:
    """The rows of the task are in the staging table, in one transaction. How many."""
    first = next((chunk for chunk in chunks if chunk.num_rows), None)
    if first is None:
        return 0
    try:
        connection = connect(target.settings, target.shown)
    except ImportError as error:
        raise SetupError(
            "a worker of Spark has no psycopg", why=str(error), hint="pip install 'headrace[postgres]' on each machine"
        ) from None
    count = int(first.num_rows)
    with connection, translated(target.shown), connection.transaction(), connection.cursor() as cursor:
        cursor.execute("select set_config('headrace.attempt', %s, true)", (str(attempt),))
        with cursor.copy(target.copy.encode()) as copy:
            copy.write(_bytes(first))
            for chunk in chunks:
                copy.write(_bytes(chunk))
                count += chunk.num_rows
        if cursor.rowcount != count:
            raise Failed(
                f"{target.shown} took {cursor.rowcount:,} rows of {count:,}", why="a line was not what COPY expects"
            )
    return count


def _bytes(chunk: pyarrow.RecordBatch) -> bytes:
    return b"".join(chunk.column(0).to_pylist())
