"""Tables that several pipelines of a file write: they agree on the columns, or none of them runs.

Delta would take both: it adds the columns that a table does not have, and rows of the other pipeline have nulls there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.config import read_document
from headrace.errors import HeadraceError
from headrace.pipeline.declaration import Declaration, Keys, Sink, read

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: What each table of a pipeline holds; None where that cannot be known beforehand.
Columns = Mapping[str, "StructType | None"]


def check(declaration: Declaration, written: Columns, columns_of: Callable[[Declaration], Columns]) -> None:
    """No other pipeline of the file writes a table of this one with other columns, or with files of another kind."""
    for other in _others(declaration):
        theirs_at, shared = tables(other), {p: s for p, s in tables(other).items() if p in written}
        if (place := _letters(other)) in written:
            raise _clash(declaration, place, other, "its dead letters go there")
        if (place := _letters(declaration)) in theirs_at:
            raise _clash(declaration, place, other, "the dead letters of this one go there")
        if not shared:
            continue
        try:
            theirs = columns_of(other)
        except Exception:  # Python of its own may raise anything
            theirs = {}  # it cannot run as it is, or not here; before it does, it compares them itself
        for place, sink in shared.items():
            difference = _difference(tables(declaration)[place], sink, written[place], theirs.get(place))
            if difference:
                raise _clash(declaration, place, other, difference)


def tables(declaration: Declaration) -> dict[str, Sink]:
    """The sinks that are tables, by what they write to."""
    found = [sink for sink in declaration.sinks if sink.kind in {"delta", "parquet"}]
    return {declaration.location(sink.kind, sink.target): sink for sink in found}


def _letters(declaration: Declaration) -> str:
    """The table that the dead letters go to, if one is declared."""
    letters = declaration.dead_letters
    return declaration.location("table", letters.target) if letters and letters.kind == "table" else ""


def _others(declaration: Declaration) -> Iterator[Declaration]:
    """The pipelines that name one of the tables, perhaps; only those are read, because that runs their Python."""
    if declaration.file is None:
        return
    letters = [declaration.dead_letters.target] if declaration.dead_letters else []
    ours = {Path(target).name for target in (*[sink.target for sink in tables(declaration).values()], *letters)}
    for name, table in read_document(declaration.file).get("pipelines", {}).items():
        if name == declaration.name or not ours & {Path(text).name for text in _texts(table)}:
            continue
        try:
            yield read(declaration.file, name)
        except HeadraceError:
            continue  # it is told when that one is to run


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def _difference(ours: Sink, theirs: Sink, mine: StructType | None, other: StructType | None) -> str:
    if ours.kind != theirs.kind:
        return f"as {theirs.kind}, not {ours.kind}"
    if ours.partition_by != theirs.partition_by:
        return f"partitioned by {', '.join(theirs.partition_by) or 'nothing'}"
    if mine is None or other is None:
        return ""
    here, there = (
        {f"{field.name} {field.dataType.simpleString()}" for field in found.fields} for found in (mine, other)
    )
    words = [
        f"only {where}: {', '.join(sorted(some))}"
        for where, some in (("here", here - there), ("there", there - here))
        if some
    ]
    return "; ".join(words)


def _clash(declaration: Declaration, place: str, other: Declaration, why: str) -> HeadraceError:
    sink = tables(declaration).get(place)
    at: Keys = declaration.path_of(sink) if sink else ("dead_letters",)
    written = sink or declaration.dead_letters
    assert written is not None
    return declaration.wrong(
        f"pipeline {other.name} writes the table {written.target} too, and otherwise", *at,
        why=why, hint="another table for one of the two, or the same columns for both",
    )  # fmt: skip
