"""Tables emptied for a full refresh, so that what was in them can be had back.

A Delta table is emptied by a commit: its rows stay in the version before, until someone vacuums the table. Where that
does not work, its folder gets another name: Parquet has no versions, and a table whose declared columns have changed
cannot take the new rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from headrace.errors import Failed
from headrace.pipeline.declare.declaration import DeadLetters, Declaration, Sink
from headrace.pipeline.spark import internals


def empty_tables(
    spark: SparkSession,
    declaration: Declaration,
    columns: Mapping[str, StructType | None],
    letters: DeadLetters,
    *,
    redeclared: bool,
) -> list[str]:
    """The tables of the pipeline have no rows; returns where those of before are.

    `columns` are those that it will write, by table; `redeclared`: they are not made as before.
    """
    session = spark.newSession()
    session.conf.set("spark.databricks.delta.commitInfo.userMetadata", f"{declaration.name} refresh")
    kept: list[str] = []
    for sink in declaration.sinks:
        if sink.type.table is not None:
            declared = columns.get(declaration.location(sink.kind, sink.target))
            kept += _empty(session, declaration, sink, declared, redeclared)
    if letters.kind == "table" and internals.is_delta_table(session, letters.target):
        session.sql(f"delete from delta.`{letters.target}` where pipeline = '{declaration.name}'").collect()  # noqa: S608 - checked
    return kept


def _empty(
    spark: SparkSession, declaration: Declaration, sink: Sink, columns: StructType | None, redeclared: bool
) -> Iterator[str]:
    path = declaration.resolve(sink.target).rstrip("/")
    # Beside a table of changes stands one of the keys that were deleted.
    for each in (path, f"{path}.deleted") if sink.changes else (path,):
        is_delta = internals.is_delta_table(spark, each)
        if not is_delta and not Path(each).is_dir():
            continue
        # What an aggregate keeps beside its values is not in the declared columns.
        other = redeclared and not sink.has_every_row
        if not is_delta or other or (each == path and not _fits(spark, each, sink, columns)):
            yield f"{sink.name}: its rows of before are in {_set_aside(each)}"
        else:
            version = internals.newest_version(spark, each).number
            spark.sql(f"delete from delta.`{each}`").collect()  # noqa: S608 - declared
            if each == path:
                yield f"{sink.name}: its rows of before are version {version} of {each}"


def _fits(spark: SparkSession, path: str, sink: Sink, columns: StructType | None) -> bool:
    """Whether the table can take the declared columns, as far as that is known."""
    held = {f.name: f.dataType for f in spark.read.format("delta").load(path).schema if not f.name.startswith("_")}
    (detail,) = spark.sql(f"describe detail delta.`{path}`").select("partitionColumns").collect()
    same = columns is None or held == {f.name: f.dataType for f in columns}
    return same and tuple(detail[0]) == sink.partition_by


def _set_aside(path: str) -> str:
    if "://" in path:
        raise Failed(
            f"the table {path} cannot be set aside", why="it is not on this machine, and its columns have changed",
            hint="name another folder for it in the declaration",
        )  # fmt: skip
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return str(Path(path).rename(f"{path}.before-{stamp}"))
