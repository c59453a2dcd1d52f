"""The whole file as one graph: topics feed pipelines, which write tables and look others up; views are made of tables.

Without Spark: which tables a view reads is found in its SQL by the names behind FROM and JOIN. Cycles, tables that
nothing writes and tables that two write are errors that name the line. What needs Spark (columns, types) is checked by
`spark/views.py`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Literal

from headrace.errors import ConfigError, NotFound
from headrace.pipeline.declare.declaration import Declaration, View
from headrace.pipeline.declare.reading import declared, declared_views, read, read_view


@dataclass(frozen=True)
class TableNode:
    """A table that a pipeline or a view writes. `name` is what SQL calls it: the last part of its folder."""

    name: str
    path: str
    kind: Literal["delta", "parquet"]
    #: The pipelines that write it, or the view.
    writers: tuple[str, ...]


@dataclass(frozen=True)
class DeclaredGraph:
    """What a file declares, and what depends on what."""

    pipelines: dict[str, Declaration] = field(default_factory=dict)
    views: dict[str, View] = field(default_factory=dict)
    file: Path = Path("headrace.toml")

    @cached_property
    def tables(self) -> dict[str, list[TableNode]]:
        """By name; a name that several tables have cannot be used in a view."""
        by_path: dict[str, TableNode] = {}
        for name, kind, path in self._written():
            known = by_path.get(path)
            writers = (*known.writers, name) if known else (name,)
            by_path[path] = TableNode(path.rstrip("/").rsplit("/", 1)[-1], path, kind, writers)
        found: dict[str, list[TableNode]] = {}
        for table in by_path.values():
            found.setdefault(table.name, []).append(table)
        return found

    def _written(self) -> Iterator[tuple[str, Any, str]]:
        for name, declaration in self.pipelines.items():
            for sink in declaration.sinks:
                if sink.type.table:
                    yield name, sink.type.table, declaration.location(sink.kind, sink.target)
        for name, view in self.views.items():
            yield name, "delta", view.location("table", view.target)

    def sources(self, view: str) -> dict[str, TableNode]:
        """The tables that the view reads. One that there is not is an error with the view's line."""
        declared = self.views[view]
        return {name: self._table(declared, name) for name in table_names(declared.sql)}

    def _table(self, view: View, name: str) -> TableNode:
        found = self.tables.get(name, [])
        if not found:
            near = difflib.get_close_matches(name, self.tables, n=1)
            raise view.wrong(
                f"there is no table {name!r}", "sql",
                why=f"pipelines and views of this file write {', '.join(self.tables) or 'none'}",
                hint=f"did you mean {near[0]}?" if near else "a table has the name of its folder",
            )  # fmt: skip
        if len(found) > 1:
            raise view.wrong(
                f"{name!r} is the name of {len(found)} tables", "sql",
                why=", ".join(f"{table.path} of {table.writers[0]}" for table in found),
                hint="another name for one of the folders",
            )  # fmt: skip
        if found[0].kind != "delta":
            raise view.wrong(
                f"a view cannot read {name!r}, a {found[0].kind} table", "sql",
                why="which rows have changed is found by Delta's versions", hint='delta = "FOLDER" in its pipeline',
            )  # fmt: skip
        return found[0]

    def needs(self, name: str) -> set[str]:
        """The pipelines and views that write what this one reads."""
        return self._table_writers(name) | self._topic_writers(name)

    def _topic_writers(self, name: str) -> set[str]:
        topics = self.pipelines[name].read_topics if name in self.pipelines else ()
        return {other for topic in topics for other in self._senders.get(topic, ())} - {name}

    @cached_property
    def _senders(self) -> dict[str, list[str]]:
        """By topic: the pipelines that write to it."""
        found: dict[str, list[str]] = {}
        for name, declaration in self.pipelines.items():
            for sink in declaration.sinks:
                if sink.type.is_topic:
                    found.setdefault(sink.target, []).append(name)
        return found

    @cached_property
    def order(self) -> list[str]:
        """Pipelines and views, each behind what it needs. A circle of tables is an error that names it."""
        before = {name: self._table_writers(name) for name in (*self.pipelines, *self.views)}
        try:
            TopologicalSorter(before).prepare()
        except CycleError as error:
            raise self._circle(error.args[1]) from None
        for name in self.pipelines:
            # Topics may lead in a circle: records that come round again are read by the next run.
            before[name] |= {other for other in self._topic_writers(name) if not _follows(other, name, before)}
        order: dict[str, None] = {}

        def take(name: str) -> None:
            if name not in order:
                for needed in sorted(before[name]):
                    take(needed)
                order[name] = None

        for name in before:
            take(name)
        return list(order)

    def _circle(self, names: list[str]) -> ConfigError:
        """The error for nodes of which each is made from the one before it, and the first from the last."""
        circle = names[:-1]
        first = min(circle, key=[*self.views, *self.pipelines].index)
        at = circle.index(first)
        why = " ← ".join([first, *reversed([*circle[at + 1 :], *circle[:at]]), first])
        hint = "each table of a graph is made from others"
        if first in self.views:
            return self.views[first].wrong(f"the view {first} is made from itself", "sql", why=why, hint=hint)
        problem = f"the pipeline {first} looks up what is made from its own tables"
        return self.pipelines[first].wrong(problem, "lookup", why=why, hint=hint)

    def downstream(self, *names: str) -> list[str]:
        """The pipelines and views that depend on these, directly or by others, in order."""
        return self._behind(names, self.needs)

    def made_from(self, name: str) -> list[str]:
        """What is made from the tables of that pipeline or view, directly or by others, in order."""
        return self._behind((name,), self._table_writers)

    def _behind(self, names: Sequence[str], needs: Callable[[str], set[str]]) -> list[str]:
        touched = set(names)
        # One turn over the order is not enough: topics may lead in a circle.
        while more := {name for name in self.order if needs(name) & touched} - touched:
            touched |= more
        return [name for name in self.order if name in touched and name not in names]

    def _table_writers(self, name: str) -> set[str]:
        """The pipelines and views that write the tables that this one reads, but for a pipeline's own."""
        if name in self.pipelines:
            return {writer for table in self.looked_up(name).values() for writer in table.writers} - {name}
        return {writer for table in self.sources(name).values() for writer in table.writers}

    def looked_up(self, pipeline: str) -> dict[str, TableNode]:
        """By target: the tables of this file that the pipeline looks up."""
        declaration = self.pipelines[pipeline]
        known = {table.path: table for found in self.tables.values() for table in found}
        places = {
            lookup.target: declaration.location("table", lookup.target)
            for lookup in declaration.lookups if lookup.kind == "table"
        }  # fmt: skip
        return {target: known[place] for target, place in places.items() if place in known}

    def check(self) -> DeclaredGraph:
        """The same, in which nothing is wrong that can be known without Spark."""
        for name, view in self.views.items():
            if name in self.pipelines:
                raise view.wrong(f"{name} is a pipeline, too", why="commands know both by their names")
            place = view.location("table", view.target)
            (table,) = (table for found in self.tables.values() for table in found if table.path == place)
            if len(table.writers) > 1:
                raise view.wrong(
                    f"{view.target} is written twice", "into",
                    why=f"by {' and '.join(table.writers)}", hint='into = "FOLDER": a folder of its own',
                )  # fmt: skip
        _ = self.order
        return self

    def view(self, name: str) -> View:
        """The view of that name."""
        if name not in self.views:
            known = ", ".join((*self.pipelines, *self.views)) or "nothing"
            raise NotFound(f"there is no view {name!r}", why=f"{self.file.name} declares {known}")
        return self.views[name]


def read_graph(file: Path, *, lenient: bool = False) -> DeclaredGraph:
    """What the file declares, checked. `lenient`: without pipelines that cannot be read, and not checked."""
    pipelines: dict[str, Declaration] = {}
    for name in declared(file):
        try:
            pipelines[name] = read(file, name)
        except ConfigError:
            if not lenient:
                raise
    graph = DeclaredGraph(pipelines, {name: read_view(file, name) for name in declared_views(file)}, file)
    return graph if lenient else graph.check()


def _follows(name: str, other: str, before: dict[str, set[str]]) -> bool:
    """Whether `other` is among those before `name`, directly or not."""
    return other in before[name] or any(_follows(each, other, before) for each in before[name])


# -- the tables that a query names -------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`(?P<quoted>(?:[^`]|``)+)`|(?P<word>[^\W\d]\w*)|(?P<mark>\S)",
    re.DOTALL,
)
#: Functions with a FROM of their own: extract(year from at).
_WITH_FROM = {"extract", "trim", "substring", "substr", "overlay", "position"}
_ENDS_FROM = {"where", "by", "having", "limit", "union", "intersect", "except", "select", "window", "view"}
_NOT_TABLES = {"values", "select", "from"}
_BEGINS_QUERY = {"select", "with", "from", "values", "("}


@dataclass
class _Level:
    """What is known inside a pair of parentheses."""

    function: str = ""
    expects_table: bool = False
    in_from: bool = False
    #: The name of the query of WITH that it is, and the names of those that are known in it.
    query: str = ""
    queries: set[str] = field(default_factory=set)


def table_names(sql: str) -> list[str]:
    """The tables behind FROM and JOIN, without the queries of WITH and without table functions."""
    return list(dict.fromkeys(_behind_from(_words(sql))))


def _words(sql: str) -> list[tuple[str, str]]:
    """The names (`word`, `quoted`) and marks of the query, without comments and texts."""
    found = [(match.lastgroup, match[match.lastgroup]) for match in _TOKEN.finditer(sql) if match.lastgroup]
    return [*[(kind, text.replace("``", "`")) for kind, text in found], ("mark", ";")]


def _behind_from(words: list[tuple[str, str]]) -> Iterator[str]:
    levels, before, at = [_Level()], "", 0
    recursive = any(kind == "word" and text.lower() == "recursive" for kind, text in words)
    while at < len(words):
        kind, text = words[at]
        level, lower = levels[-1], text.lower() if kind == "word" else ""
        if kind == "mark":
            _take_mark(text, levels, before, _defined(words, at))
        elif lower == "join" or (lower == "from" and before != "distinct" and level.function not in _WITH_FROM):
            level.expects_table = level.in_from = True
        elif lower in _ENDS_FROM:
            level.expects_table = level.in_from = False
        elif level.expects_table and lower != "lateral":
            level.expects_table = False
            name, at = _dotted(words, at)
            is_query = any(name in known.queries or (recursive and name == known.query) for known in levels)
            if words[at + 1] != ("mark", "(") and lower not in _NOT_TABLES and not is_query:
                yield name
        before = lower
        at += 1


def _take_mark(text: str, levels: list[_Level], before: str, query: str) -> None:
    """Parentheses begin and end a level; a comma may be followed by another table.

    A query of WITH is known behind its end, as far as the level that it is in: inside, its name is that of a table.
    """
    level = levels[-1]
    if text == ",":
        level.expects_table = level.in_from
    elif text == "(":
        level.expects_table = False
        levels.append(_Level(function=before, query=query))
    elif text == ")" and len(levels) > 1:
        levels[-2].queries.add(levels.pop().query)


def _dotted(words: list[tuple[str, str]], at: int) -> tuple[str, int]:
    """A name with all of its parts, and where it ends."""
    name = words[at][1]
    while words[at + 1] == ("mark", ".") and words[at + 2][0] != "mark":
        at += 2
        name += f".{words[at][1]}"
    return name, at


def _defined(words: list[tuple[str, str]], at: int) -> str:
    """The name of the query of WITH that begins there: NAME AS (SELECT …, or NAME (COLUMN, …) AS (SELECT …."""
    if words[at - 1][1].lower() != "as" or words[at + 1][1].lower() not in _BEGINS_QUERY:
        return ""
    name = at - 2
    if words[name] == ("mark", ")"):
        name = max((n for n in range(name) if words[n] == ("mark", "(")), default=1) - 1
    return words[name][1]
