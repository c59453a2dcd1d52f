"""`sql`: one read-only query over the tables of a project and over topics.

The query is parsed first: it may only read, and it names what is to be read. Those tables and topics, and no others,
are given to a DuckDB that is closed off (`tables.Engine`). Its rows come while they are asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from headrace.errors import HeadraceError, NotAllowed, NotFound, SetupError, UsageError
from headrace.home import Home
from headrace.pipeline import KnownTable, known_decodes, known_tables
from headrace.tables import Engine, Limits, plain_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.kafka import Connection, HasBootstrap
    from headrace.query.topics import Notes
    from headrace.schemas import Registry

_TOPIC = "topic"
_EXPLAIN = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*explain\b(?:\s+analyze\b)?(?:\s*\([^)]*\))?", re.I | re.S)


def sql(
    query: str,
    cluster: HasBootstrap | str | None = None,
    *,
    home: Home | Path | str | None = None,
    registry: Registry | str | None = None,
    limits: Limits | None = None,
) -> Result:
    """The rows of a query over the tables of a project, by their names, and over topics, as `topic.NAME`.

    The tables are those of the headrace.toml that belongs to `home`. Topics are read from `cluster`, by default the one
    of that home. The query only reads; nothing runs until the rows are asked for.

        for row in sql("select vehicle, count(*) as n from breadcrumbs group by vehicle").rows(): ...
    """
    made = Result(_Project(cluster, home, registry), limits)
    try:
        made._start(query)
    except BaseException:
        made.close()
        raise
    return made


class Result:
    """Rows of a query; they can be taken once. Close it, or use it as a context, if not all rows are taken."""

    def __init__(self, project: _Project, limits: Limits | None) -> None:
        self._project = project
        self._engine = Engine(limits)
        self._rows: Iterator[pa.RecordBatch] = iter(())
        #: The names and types of the columns.
        self.schema: pa.Schema = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The query ends, if it still runs."""
        self._engine.close()
        self._project.close()

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know, such as how many records could not be decoded. Complete after the last row."""
        return tuple(self._project.notes.lines.values())

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow record batches, computed while they are taken."""
        with self:
            yield from self._rows

    def arrow(self) -> pa.Table:
        """All rows as an Arrow table."""
        import pyarrow as pa

        return pa.Table.from_batches(list(self.batches()), self.schema)

    def rows(self) -> list[dict[str, Any]]:
        """All rows as dicts with Python's own types."""
        found: list[dict[str, Any]] = self.arrow().to_pylist()
        return found

    def plain_rows(self) -> Iterator[dict[str, Any]]:
        """The rows one by one, with values that JSON can hold."""
        for batch in self.batches():
            yield from plain_rows(batch)

    def pandas(self) -> Any:
        """All rows as a pandas DataFrame, if pandas is installed."""
        try:
            return self.arrow().to_pandas()
        except ModuleNotFoundError:
            raise SetupError("pandas is not installed", hint="pip install pandas, or use rows() or arrow()") from None

    def _start(self, query: str) -> None:
        statement, names = _read(self._engine, query)
        self._project.add(self._engine, names)
        self.schema, self._rows = self._engine.run('from "tables"' if names.all_tables else statement)


# -- what a query names ------------------------------------------------------------------------------------------------


@dataclass
class _Names:
    """What a query reads, by the names in it, and whether a column of some name may be meant."""

    paths: list[tuple[str, ...]] = field(default_factory=list)
    #: Names that the query defines itself, by `with`.
    defined: set[str] = field(default_factory=set)
    all_tables: bool = False
    #: The columns that it names, and the names that it gives; all columns may be meant where that is not known.
    columns: set[str] = field(default_factory=set)
    aliases: set[str] = field(default_factory=set)
    tables: set[str] = field(default_factory=set)
    any_column: bool = False

    def of(self, columns: set[str]) -> set[str] | None:
        """Which of the columns are meant; None if that is not certain: a star, a whole row, a name that is none."""
        if self.any_column or self.columns & self.tables or self.columns - self.aliases - columns:
            return None
        return self.columns & columns


def _read(engine: Engine, query: str) -> tuple[str, _Names]:
    """The statement, which only reads, and what it names."""
    import duckdb

    statements = engine.parsed(query)
    if len(statements) != 1:
        raise UsageError(f"{len(statements) or 'no'} queries were given", hint="one select at a time")
    (statement,) = statements
    kinds = duckdb.StatementType
    if statement.type not in {kinds.SELECT, kinds.EXPLAIN}:
        raise NotAllowed(
            f"{statement.type.name.lower()} is not allowed: the query may only read",
            hint="select, with, from, describe, summarize, show or explain; -o FILE writes the result",
        )
    text = _EXPLAIN.sub("", statement.query, count=1) if statement.type == kinds.EXPLAIN else statement.query
    ((document,),) = engine.facts("select json_serialize_sql(?)", text)
    found = json.loads(document)
    if found.get("error"):
        raise UsageError(f"the SQL cannot be run: {found.get('error_message')}")
    names = _Names()
    _collect(found["statements"], names)
    return statement.query, names


def _collect(node: Any, names: _Names) -> None:
    """Walks through the parsed query."""
    if isinstance(node, list):
        for part in node:
            _collect(part, names)
    elif isinstance(node, dict):
        _take(node, node.get("type"), names)
        for part in node.values():
            _collect(part, names)


def _take(node: dict[str, Any], kind: str | None, names: _Names) -> None:
    """What one node of the parsed query says."""
    if kind == "BASE_TABLE":
        given = (node["catalog_name"], node["schema_name"], node["table_name"])
        names.paths.append(tuple(part for part in given if part))
        names.tables |= {node["table_name"].lower(), node["alias"].lower()}
    elif kind == "COLUMN_REF":
        names.columns.add(node["column_names"][-1].lower())
        names.aliases.add(node["alias"].lower())
    elif kind == "SHOW_REF" and not node.get("query"):
        names.all_tables = True
    elif isinstance(node.get("alias"), str):
        names.aliases.add(node["alias"].lower())
    names.columns |= {name.lower() for name in node.get("using_columns", ())}
    # What means columns without their names.
    if kind in {"STAR", "POSITIONAL_REFERENCE", "PIVOT", "SHOW_REF"} or node.get("ref_type") == "NATURAL":
        names.any_column = True
    if isinstance(node.get("cte_map"), dict):
        names.defined |= {str(part["key"]).lower() for part in node["cte_map"].get("map", ())}


# -- what can be read --------------------------------------------------------------------------------------------------


class _Project:
    """The tables of a home, and the topics of a Kafka; opened when they are named."""

    def __init__(
        self, cluster: HasBootstrap | str | None, home: Home | Path | str | None, registry: Registry | str | None
    ) -> None:
        given = home if home is not None else getattr(cluster, "home", None)
        self._home = given if isinstance(given, Home) else Home.find(given)
        self._cluster = cluster
        self._given_registry = registry
        self._opened = ExitStack()

    @cached_property
    def notes(self) -> Notes:
        from headrace.query.topics import Notes

        return Notes()

    def close(self) -> None:
        self._opened.close()

    def add(self, engine: Engine, names: _Names) -> None:
        """The engine knows what the query names; what does not exist is an error that lists what does."""
        for path in dict.fromkeys(names.paths):
            if len(path) == 2 and path[0].lower() == _TOPIC:
                self._add_topic(engine, path, names)
            elif not (len(path) == 1 and path[0].lower() in names.defined):
                self._table(path).open().add_to(engine, path)
        if names.all_tables:
            engine.add(("tables",), [self._listing()])

    @cached_property
    def _tables(self) -> list[KnownTable]:
        found, wrong = known_tables(self._home)
        for error in wrong:
            self.notes.say(error.problem, f"left out: {error.problem}")
        return found

    def _listing(self) -> pa.Table:
        """What `show tables` shows."""
        import pyarrow as pa

        known = [(table.name, table.pipeline, table.role, table.kind) for table in self._tables]
        columns = ("table", "pipeline", "holds", "kind")
        return pa.table({name: pa.array([row[at] for row in known], pa.string()) for at, name in enumerate(columns)})

    def _table(self, path: tuple[str, ...]) -> KnownTable:
        name = ".".join(path).lower()
        for matches in (
            [table for table in self._tables if table.name.lower() == name],
            [table for table in self._tables if Path(table.path).name.lower() == name],
        ):
            if len({table.path for table in matches}) == 1:
                return matches[0]
        raise self._no_such_table(".".join(path))

    def _no_such_table(self, name: str) -> HeadraceError:
        import difflib

        if "/" in name or re.search(r"\.(csv|json|ndjson|parquet|txt)$", name):
            return NotAllowed(
                f"files cannot be read: {name}", why="a query reads the tables of headrace.toml and topics",
                hint="headrace produce TOPIC FILE sends a file to a topic",
            )  # fmt: skip
        known = list(dict.fromkeys(table.name for table in self._tables))
        near = difflib.get_close_matches(name, known, n=1)
        return NotFound(
            f"there is no table {name!r}",
            why=f"known are {', '.join(known)}" if known else f"{self._home.config_file} declares no table",
            hint=f"did you mean {near[0]}?" if near else f"a topic is {_TOPIC}.NAME; headrace table list",
        )

    # -- topics --------------------------------------------------------------------------------------------------------

    def _add_topic(self, engine: Engine, path: tuple[str, ...], names: _Names) -> None:
        from headrace.query.topics import TopicSource, decoder_of

        topic = path[1]
        registry = None
        with suppress(HeadraceError):
            registry = self._registry
        decoder = decoder_of(topic, known_decodes(self._home).get(topic), registry, self.notes)
        source = TopicSource(self._connection, topic, decoder, engine.stopped, self.notes)
        source.narrow(names.of({name.lower() for name in source.schema.names}))
        engine.add((path[0].lower(), topic), [source.stream])

    @cached_property
    def _where(self) -> HasBootstrap | str:
        from headrace.cluster import Cluster

        return self._cluster if self._cluster is not None else Cluster(self._home.root)

    @property
    def _connection(self) -> Connection:
        from headrace.kafka import connect

        return connect(self._where)

    @cached_property
    def _registry(self) -> Registry | None:
        """The given one, else that of the cluster, if it has one."""
        from headrace.schemas import Registry

        given = self._given_registry
        if isinstance(given, Registry):
            return given
        url = given or getattr(self._where, "registry", None)
        return self._opened.enter_context(Registry(url)) if url else None
