"""Tables emptied for a full refresh, so that what was in them can be had back.

A Delta table is emptied by a commit: its rows stay in the version before, until someone vacuums the table. Where that
does not work, its folder gets another name: Parquet has no versions, and a table whose declared columns have changed
cannot take the new rows. Sinks of other kinds know themselves whether they can be emptied, and how.

Until all is empty and the progress is deleted, a run would find empty tables and an old checkpoint. While there is
`refresh.json`, runs are refused. It is written before each step, so a refresh that is repeated knows where rows are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from headrace.errors import Failed
from headrace.home import read_json, write_json
from headrace.pipeline.books.folder import PipelineFolder
from headrace.pipeline.declare.declaration import Declaration, Sink
from headrace.pipeline.spark import internals
from headrace.pipeline.spark.sinks.sinks import writer_of


def plans(declaration: Declaration) -> dict[str, str]:
    """What emptying means for sinks that are no folders, by their names, if they can be emptied."""
    others = [sink for sink in declaration.sinks if sink.type.table is None]
    found = {sink.name: writer_of(sink.kind).plan_empty(declaration, sink) for sink in others}
    return {name: text for name, text in found.items() if text}


def empty_tables(
    spark: SparkSession,
    declaration: Declaration,
    columns: Mapping[str, StructType | None],
    folder: PipelineFolder,
    *,
    redeclared: bool,
) -> list[str]:
    """The tables of the pipeline have no rows; returns where those of before are.

    `columns` are those that it will write, by table; `redeclared`: they are not made as before.
    """
    session = spark.newSession()
    session.conf.set("spark.databricks.delta.commitInfo.userMetadata", f"{declaration.name} refresh")
    kept: dict[str, str] = (read_json(folder.refresh_file) or {}).get("kept", {})
    work = _Emptying(session, declaration, columns, redeclared, folder.refresh_file, kept)
    steps = [step for sink in declaration.sinks for step in work.steps(sink)]  # nothing is done before all are known
    write_json(folder.refresh_file, {"kept": kept})
    for step in steps:
        step()
    letters = folder.dead_letters(declaration)
    if letters.kind == "table" and internals.is_delta_table(session, letters.target):
        session.sql(f"delete from delta.`{letters.target}` where pipeline = '{declaration.name}'").collect()  # noqa: S608 - checked
    return [f"{name}: its rows of before are {place}" for name, place in kept.items()]


@dataclass(frozen=True)
class _Emptying:
    spark: SparkSession
    declaration: Declaration
    columns: Mapping[str, StructType | None]
    redeclared: bool
    file: Path
    #: Where the rows of before are, by table.
    kept: dict[str, str]

    def note(self, name: str, place: str) -> None:
        """Before it is done: a refresh that is cut off and repeated finds no rows any more."""
        self.kept[name] = place
        write_json(self.file, {"kept": self.kept})

    def steps(self, sink: Sink) -> Iterator[Callable[[], None]]:
        """What empties the sink; each can be repeated."""
        if sink.type.table is None:
            yield partial(writer_of(sink.kind).empty, self.declaration, sink, partial(self.note, sink.name))
            return
        path = self.declaration.resolve(sink.target).rstrip("/")
        # Beside a table of changes stands one of the keys that were deleted.
        for more in ("", ".deleted") if sink.changes else ("",):
            name, each = f"{sink.name}{more}", f"{path}{more}"
            is_delta = internals.is_delta_table(self.spark, each)
            if not is_delta and not Path(each).is_dir():
                continue
            # What an aggregate keeps beside its values is not in the declared columns.
            other = self.redeclared and not sink.has_every_row
            if is_delta and not other and (more or self._fits(each, sink)):
                yield partial(self._delete, name, each)
            else:
                _require_local(each)
                yield partial(self._set_aside, name, each)

    def _fits(self, path: str, sink: Sink) -> bool:
        """Whether the table can take the declared columns, as far as that is known."""
        columns = self.columns.get(self.declaration.location(sink.kind, sink.target))
        schema = self.spark.read.format("delta").load(path).schema
        held = {f.name: f.dataType for f in schema if not f.name.startswith("_")}
        (detail,) = self.spark.sql(f"describe detail delta.`{path}`").select("partitionColumns").collect()
        same = columns is None or held == {f.name: f.dataType for f in columns}
        return same and tuple(detail[0]) == sink.partition_by

    def _delete(self, name: str, path: str) -> None:
        if name not in self.kept:
            self.note(name, f"version {internals.newest_version(self.spark, path).number} of {path}")
        self.spark.sql(f"delete from delta.`{path}`").collect()  # noqa: S608 - declared

    def _set_aside(self, name: str, path: str) -> None:
        other = f"{path}.before-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
        self.note(name, f"in {other}")
        Path(path).rename(other)


def _require_local(path: str) -> None:
    if "://" in path:
        raise Failed(
            f"the table {path} cannot be set aside", why="it is not on this machine, and its columns have changed",
            hint="name another folder for it in the declaration",
        )  # fmt: skip
