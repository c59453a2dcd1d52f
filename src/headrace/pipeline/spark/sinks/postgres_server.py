"""A PostgreSQL server and the tables in it: connections, what an error means, what a table takes.

libpq reads the address and its own places for the password (PGPASSWORD, PGPASSFILE, ~/.pgpass); headrace adds the file
that a sink names. The password is in memory only. Tasks get the settings of a connection that works, because another
machine has neither the files nor the environment; they are never shown.

A server that does not answer, or stops in the middle, is `Unreachable`: the run waits. Anything else is an answer and
ends the run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from headrace.errors import ConfigError, Failed, HeadraceError, SetupError, Unreachable
from headrace.pipeline.declare.declaration import Declaration, Sink

if TYPE_CHECKING:
    import psycopg

    Connection = psycopg.Connection[tuple[Any, ...]]

#: What libpq does not do by itself: give up on a server that does not answer, or is gone without a word.
_DEFAULTS = {
    "connect_timeout": "5", "keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3",
    "tcp_user_timeout": "30000", "fallback_application_name": "headrace", "client_encoding": "UTF8",
}  # fmt: skip
#: Places where only this machine finds something; what was found there is among the other settings.
_ONLY_HERE = {"passfile", "service", "servicefile"}
#: The server stops or starts, has no connection left, or has chosen our transaction to end a deadlock.
_AWAY = {"57P01", "57P02", "57P03", "53300", "40001", "40P01"}
_LOCKED, _DISK_FULL = "55P03", "53100"
#: What a statement that is refused leaves behind, unless it says something else.
_BATCH = ("the batch", "nothing of the batch is in the table; it is written at the next start")
#: Numbers are read when libpq connects, so a ping takes a wrong one for a server that is away.
_WRONG_NUMBER = ("for connection option", "invalid port number")
_LOGIN_HINT = 'password_file = "FILE" in the sink, or ~/.pgpass, PGPASSFILE, PGPASSWORD, as for psql'


@dataclass(frozen=True)
class Database:
    """The database of a sink. The settings may hold the password and are never shown."""

    #: The address without its settings.
    shown: str
    settings: Mapping[str, Any] = field(repr=False)
    #: Where it is declared.
    place: str = ""

    @classmethod
    def of(cls, declaration: Declaration, sink: Sink) -> Database:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict

        at = declaration.path_of(sink)
        try:
            settings = {**_DEFAULTS, **conninfo_to_dict(sink.database)}
        except psycopg.ProgrammingError as error:
            why = _one_line(error)
            raise declaration.wrong("the address of the database cannot be used", *at, "postgres", why=why) from None
        if sink.password_file is not None:
            settings["password"] = _password(declaration, sink)
        shown = f"PostgreSQL at {urlunsplit((*urlsplit(sink.database)[:3], '', ''))}"
        return cls(shown, settings, declaration.place(*at, "postgres"))

    def connect(self) -> Connection:
        """A connection on which each statement is a transaction of its own, unless one is begun."""
        try:
            return connect(self.settings, self.shown)
        except ConfigError as error:
            raise ConfigError(f"{self.place}: {error.problem}", why=error.why) from None

    @contextmanager
    def errors(self, what: str = _BATCH[0], left: str = _BATCH[1]) -> Iterator[None]:
        """What PostgreSQL says, as an error of headrace: `what` it refuses, and what is `left` then."""
        with translated(self.shown, what, left):
            yield


def _password(declaration: Declaration, sink: Sink) -> str:
    """What the sink's password file holds."""
    file = declaration.folder / Path(str(sink.password_file)).expanduser()
    try:
        return file.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or "it is not text"
        at = (*declaration.path_of(sink), "password_file")
        raise declaration.wrong(f"the password file {sink.password_file} cannot be read", *at, why=said) from None


def connect(settings: Mapping[str, Any], shown: str) -> Connection:
    """A connection with those settings."""
    import psycopg

    try:
        return psycopg.connect(autocommit=True, **settings)
    except psycopg.ProgrammingError as error:  # what psycopg itself reads of the settings
        raise _unusable(error) from None
    except psycopg.OperationalError as error:
        raise _no_connection(error, settings, shown) from None


def _no_connection(error: psycopg.OperationalError, settings: Mapping[str, Any], shown: str) -> HeadraceError:
    """A wrong setting, or a server that answers and refuses us: waiting mends neither."""
    from psycopg import pq
    from psycopg.conninfo import make_conninfo

    said = _one_line(error)
    asked = pq.PGconn.ping(make_conninfo(**settings).encode())
    if asked == pq.Ping.NO_ATTEMPT or any(words in said for words in _WRONG_NUMBER):
        return _unusable(error)
    if asked != pq.Ping.OK or "too many clients" in said or "connection slots" in said:
        return Unreachable(f"{shown} does not answer", why=said, hint="start it; the pipeline goes on by itself")
    hint = _LOGIN_HINT if "password" in said else None
    return Failed(f"{shown} refuses the connection", why=said, hint=hint)


def _unusable(error: psycopg.Error) -> ConfigError:
    said = _one_line(error).removeprefix("connection is bad: ")
    return ConfigError("the address of the database cannot be used", why=said)


def settings_of(connection: Connection) -> dict[str, str]:
    """All that makes such a connection from anywhere, the password too."""
    found = {o.keyword.decode(): o.val.decode() for o in connection.pgconn.info if o.val}
    password = connection.info.password
    known = {name: value for name, value in found.items() if name not in _ONLY_HERE}
    return known | ({"password": password} if password else {})


@contextmanager
def translated(shown: str, what: str = _BATCH[0], left: str = _BATCH[1]) -> Iterator[None]:
    """What PostgreSQL says to a statement, as an error of headrace."""
    import psycopg

    try:
        yield
    except psycopg.Error as error:
        raise _translated(error, shown, what, left) from None


def _translated(error: psycopg.Error, shown: str, what: str, left: str) -> HeadraceError:
    import psycopg

    state, said = error.sqlstate or "", _one_line(error)
    lost = not state and isinstance(error, psycopg.OperationalError)
    if lost or state.startswith("08") or state in _AWAY:
        return Unreachable(f"{shown} broke off", why=said)
    if state == _LOCKED:
        return Unreachable(f"{shown}: another session has locked the table", why=said)
    if state == _DISK_FULL:
        return Failed(f"the disk of {shown} is full", why=said, hint=f"make room there, then start again: {left}")
    return Failed(f"{shown} refuses {what}", why=f"{said}; {left}", hint="correct the table, or the declaration")


def _one_line(error: psycopg.Error) -> str:
    """What it says, with the detail and the place that PostgreSQL gives."""
    diag = error.diag
    parts = [diag.message_primary or str(error), diag.message_detail, diag.context]
    return "; ".join(" ".join(part.split()) for part in parts if part)[:500]


def require_psycopg(declaration: Declaration, sink: Sink) -> None:
    """psycopg is installed: it comes with an extra."""
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise SetupError(
            f"{declaration.place(*declaration.path_of(sink))}: a postgres sink needs psycopg, which is not here",
            why=f"{error}, in {sys.executable}",
            hint="pip install 'headrace[postgres]'",
        ) from None


# -- tables ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableColumn:
    """A column of a table that exists."""

    type: str
    is_required: bool = False
    #: It gets a value of its own if none is given; it takes no other at all.
    has_default: bool = False
    is_generated: bool = False


@dataclass(frozen=True)
class Table:
    """A table, by the schema that it is in or will be made in. Without columns it is not there yet."""

    schema: str
    name: str
    columns: Mapping[str, TableColumn] = field(default_factory=dict)
    #: The sets of columns of which no two rows have the same values.
    unique: frozenset[frozenset[str]] = frozenset()
    #: As PostgreSQL calls it: r and p are tables.
    kind: str = "r"
    has_schema: bool = True

    @property
    def shown(self) -> str:
        return f"{self.schema}.{self.name}"


_TABLE = """
select c.oid, n.nspname, c.relkind::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.oid = to_regclass(%s)
"""
_COLUMNS = """
select attname, format_type(atttypid, atttypmod), attnotnull, atthasdef or attidentity <> '',
       attgenerated <> '' or attidentity = 'a'
from pg_attribute where attrelid = %s and attnum > 0 and not attisdropped order by attnum
"""
_UNIQUE = """
select array(select a.attname::text from unnest((i.indkey::int2[])[0:i.indnkeyatts - 1]) k
             join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k)
from pg_index i
where i.indrelid = %s and i.indisunique and i.indisvalid and i.indimmediate and i.indpred is null and i.indexprs is null
"""
_REFERRING = """
select distinct conrelid::regclass::text from pg_constraint
where confrelid = to_regclass(%s) and contype = 'f' and conrelid <> confrelid
"""


def look_up(connection: Connection, name: str) -> Table:
    """The table of that name, `TABLE` or `SCHEMA.TABLE`, whether it is there or not."""
    schema, _, table = name.rpartition(".")
    named = identifier(schema, table) if schema else identifier(table)
    found = connection.execute(_TABLE, (named.as_string(connection),)).fetchone()
    if found is None:
        (default,) = connection.execute("select current_schema()").fetchone() or (None,)
        schema = schema or default or "public"
        known = connection.execute("select 1 from pg_namespace where nspname = %s", (schema,)).fetchone()
        return Table(schema, table, has_schema=known is not None)
    oid, schema, kind = found
    columns = {row[0]: TableColumn(*row[1:]) for row in connection.execute(_COLUMNS, (oid,))}
    unique = frozenset(frozenset(row[0]) for row in connection.execute(_UNIQUE, (oid,)))
    return Table(schema, table, columns, unique, kind)


def referring(connection: Connection, table: Table) -> list[str]:
    """The tables whose rows refer to rows of this one."""
    found = connection.execute(_REFERRING, (identifier(table.schema, table.name).as_string(connection),))
    return [name for (name,) in found]


def may_delete(connection: Connection, table: Table) -> bool:
    """Whether the user of the connection has the right to delete rows of it."""
    name = identifier(table.schema, table.name).as_string(connection)
    found = connection.execute("select has_table_privilege(%s, 'DELETE')", (name,)).fetchone()
    return bool(found and found[0])


def has_rows(connection: Connection, table: Table) -> bool:
    """Whether the table is there and has a row."""
    some = statement("select 1 from {table} limit 1", table=identifier(table.schema, table.name))
    return bool(table.columns) and connection.execute(some).fetchone() is not None


def encoding_of(connection: Connection) -> str:
    """How the database stores texts."""
    return connection.info.parameter_status("server_encoding") or "UTF8"


def identifier(*names: str) -> psycopg.sql.Identifier:
    from psycopg import sql

    return sql.Identifier(*names)


def statement(text: str, **parts: psycopg.sql.Composable) -> psycopg.sql.Composed:
    """The text, which is one of ours, with names and types in it."""
    from psycopg import sql

    return sql.SQL(text).format(**parts)
