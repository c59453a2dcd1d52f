"""Which tables there are: those that the pipelines and views of a home declare, found by name, path or pipeline.

`tables` reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from headrace.errors import ConfigError, NotFound, UsageError
from headrace.pipeline.books.folder import PipelineFolder
from headrace.pipeline.declare.declaration import Declaration, Decode
from headrace.pipeline.declare.reading import declared, declared_views, read, read_view
from headrace.tables import Table, TableKind, is_delta, is_table, read_table

if TYPE_CHECKING:
    from headrace.home import Home


@dataclass(frozen=True)
class KnownTable:
    """A table that a pipeline or a view declares, whether it has been written or not. `name` is what commands take."""

    name: str
    pipeline: str
    kind: TableKind
    path: str
    role: Literal["rows", "aggregate", "view", "dead letters"]

    @property
    def is_remote(self) -> bool:
        return "://" in self.path

    @property
    def is_written(self) -> bool:
        return not self.is_remote and is_table(Path(self.path))

    def open(self) -> Table:
        """The table; if it was never written, the error names the command that writes it."""
        if not self.is_remote and not self.is_written:
            raise UsageError(
                f"the table {self.name} has not been written yet",
                why=f"{self.pipeline} has written nothing to {self.path}",
                hint=f"headrace pipeline run {self.pipeline}"
                if self.role != "dead letters"
                else "there are no dead letters yet; headrace pipeline ledger counts them",
            )
        return read_table(self.path)


def known_tables(home: Home) -> tuple[list[KnownTable], list[ConfigError]]:
    """The tables of every pipeline and view in headrace.toml, and what is wrong with those that cannot be read."""
    found: list[KnownTable] = []
    wrong: list[ConfigError] = []
    for name in declared(home.config_file):
        try:
            found += tables_of(home, read(home.config_file, name))
        except ConfigError as error:
            wrong.append(error)
    for name in declared_views(home.config_file):
        try:
            view = read_view(home.config_file, name)
            found.append(KnownTable(_last_part(view.target), name, "delta", view.path, "view"))
        except ConfigError as error:
            wrong.append(error)
    return _named_apart(found), wrong


def known_decodes(home: Home) -> dict[str, tuple[Decode, Path]]:
    """How the pipelines in headrace.toml decode topics, each with its folder; typed fields before plain text."""
    found: dict[str, tuple[Decode, Path]] = {}
    for name in declared(home.config_file):
        with suppress(ConfigError):
            declaration = read(home.config_file, name)
            for topic, decode in _decodes_of(declaration):
                if topic not in found or found[topic][0].format == "text":
                    found[topic] = (decode, declaration.folder)
    return found


def _decodes_of(declaration: Declaration) -> Iterator[tuple[str, Decode]]:
    """Its topics, that of its join, those that it looks up."""
    for side in (declaration, *([declaration.join.other] if declaration.join else [])):
        yield from ((topic, side.decode) for topic in side.topics)
    yield from ((lookup.target, lookup.decode) for lookup in declaration.lookups if lookup.kind == "topic")


def tables_of(home: Home, declaration: Declaration) -> list[KnownTable]:
    """The tables of one pipeline: its sinks, then its dead letters."""
    name = declaration.name
    found = [
        KnownTable(
            _last_part(sink.target), name, sink.type.table, declaration.resolve(sink.target),
            "aggregate" if sink.aggregate else "rows",
        )
        for sink in declaration.sinks
        if sink.type.table
    ]  # fmt: skip
    dead = PipelineFolder(home, name).dead_letters(declaration)
    if dead.kind == "table":
        target = declaration.dead_letters.target if declaration.dead_letters else f"{name}.dead_letters"
        found.append(KnownTable(_last_part(target), name, "delta", dead.target, "dead letters"))
    return found


def find_table(home: Home, name: str) -> KnownTable:
    """The table that is meant: by its name, its path, its pipeline. None of these is an error that lists the known."""
    known, wrong = known_tables(home)
    folder = home.config_file.parent
    wanted = {name.rstrip("/"), str((folder / name).absolute()), str(Path(name).absolute())}
    for matches in (
        [table for table in known if table.path in wanted],
        [table for table in known if table.name == name],
        [table for table in known if _last_part(table.path) == name],
        [table for table in known if table.pipeline == name and table.role != "dead letters"],
    ):
        if len({table.path for table in matches}) == 1:
            return matches[0]
        if matches:
            raise UsageError(
                f"{name!r} is ambiguous",
                why=f"pipeline {matches[0].pipeline} writes {', '.join(table.name for table in matches)}"
                if len({table.pipeline for table in matches}) == 1
                else f"it is the name of {', '.join(table.path for table in matches)}",
                hint=f"headrace table head {matches[0].name}",
            )
    for path in (Path(name), folder / name):
        if is_table(path):
            kind: TableKind = "delta" if is_delta(path) else "parquet"
            return KnownTable(path.name, "", kind, str(path.absolute()), "rows")
    raise _no_such_table(name, known, wrong, home.config_file)


def _named_apart(tables: list[KnownTable]) -> list[KnownTable]:
    """Two tables of the same name get their pipeline's before it."""
    paths: dict[str, set[str]] = {}
    for table in tables:
        paths.setdefault(table.name, set()).add(table.path)
    return [
        table if len(paths[table.name]) == 1 else KnownTable(
            f"{table.pipeline}.{table.name}", table.pipeline, table.kind, table.path, table.role
        )
        for table in tables
    ]  # fmt: skip


def _no_such_table(name: str, known: list[KnownTable], wrong: list[ConfigError], file: Path) -> NotFound:
    import difflib

    names = list(dict.fromkeys(table.name for table in known))
    near = difflib.get_close_matches(name, names, n=1)
    if names:
        why = f"known are {', '.join(names)}"
    elif wrong:
        why = wrong[0].problem
    else:
        why = f"{file.name} declares no pipeline that writes one" if file.is_file() else f"there is no file {file}"
    return NotFound(
        f"there is no table {name!r}", why=why, hint=f"did you mean {near[0]}?" if near else "headrace table list"
    )


def _last_part(target: str) -> str:
    return target.rstrip("/").rsplit("/", 1)[-1]
