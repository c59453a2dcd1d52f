"""What can be wrong with a declaration, found before a record is read: Spark is asked about frames without rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.config import read_document
from headrace.errors import Failed, HeadraceError, Unreachable
from headrace.pipeline.declare.declaration import Declaration, Keys, Sink, Trigger
from headrace.pipeline.declare.reading import read
from headrace.pipeline.spark import aggregate, change_data, source
from headrace.pipeline.spark.classify import SETTINGS, Classifier, errors_at, nothing
from headrace.pipeline.spark.decode import decoder, struct_of
from headrace.pipeline.spark.joined import Joined
from headrace.pipeline.spark.lookups import Lookups
from headrace.pipeline.spark.sinks import sinks

if TYPE_CHECKING:
    from headrace.kafka import Connection
    from headrace.schemas import Registry

_IDENTITY = "_topic string, _partition int, _offset long, _timestamp timestamp"

#: What each table of a pipeline holds; None where that cannot be known beforehand.
_Columns = Mapping[str, StructType | None]
_NOTHING: _Columns = MappingProxyType({})


def checked_classifier(
    spark: SparkSession, declaration: Declaration, connection: Connection, registry: Registry | None, trigger: Trigger
) -> Classifier:
    """The classifier of a declaration in which nothing is wrong."""
    return checked(spark, declaration, connection, registry, trigger)[0]


def checked(
    spark: SparkSession,
    declaration: Declaration,
    connection: Connection,
    registry: Registry | None,
    trigger: Trigger,
    to_come: _Columns = _NOTHING,
) -> tuple[Classifier, dict[str, StructType | None]]:
    """The same, and the columns of the tables that it writes, by their locations; None if Python makes them.

    `to_come`: tables that it looks up and that others will have written before it runs.
    """
    for name, value in {**SETTINGS, **declaration.spark}.items():
        with suppress(PySparkException):  # a setting of the whole session was given when it started
            spark.conf.set(name, value)
    for side in declaration.sides if declaration.join else (declaration,):
        source.check(spark, side, connection)
    classifier, written = _checked(spark, declaration, connection, registry, to_come)
    _check_row_counts(classifier, trigger)
    _check_shared(declaration, written, lambda other: _checked(spark, other, connection, registry)[1])
    return classifier, written


def _checked(
    spark: SparkSession,
    declaration: Declaration,
    connection: Connection,
    registry: Registry | None,
    to_come: _Columns = _NOTHING,
) -> tuple[Classifier, dict[str, StructType | None]]:
    """The classifier of the declaration, and the columns of the tables that it writes."""
    sides = declaration.sides if declaration.join else (declaration,)
    classifier, *right = [
        Classifier(spark, side, decoder(spark, side, registry), Lookups(spark, side, connection, registry, to_come))
        for side in sides
    ]
    if right:
        classifier.joined = Joined(declaration, classifier, *right)
    steps = classifier.check()
    rows = nothing(spark, StructType([*struct_of(_IDENTITY), *steps[-1][1]]))
    made = {id(sink): _check_sink(declaration, sink, rows) for sink in declaration.sinks}
    for sink in declaration.sinks:
        columns = made[id(sink)]
        if columns is not None:
            # Without an address of Kafka, nobody is to be asked: the declaration is explained.
            writer, asked = sinks.writer_of(sink.kind), bool(connection.bootstrap)
            (classifier.joined or classifier).demands.limit(
                sink, writer.limits(declaration, sink, columns, asked=asked)
            )
    classifier.check_demands()
    return classifier, {place: made[id(sink)] for place, sink in _tables(declaration).items()}


def _check_sink(declaration: Declaration, sink: Sink, rows: DataFrame) -> StructType | None:
    """The sink can take such rows; the columns that it writes, unless Python makes them."""
    at = declaration.path_of(sink)
    given = aggregate.taken(sink, rows, declaration) if sink.aggregate else rows
    with errors_at(declaration, *at, "where"):
        given = sinks.filtered(sink, given)
    with errors_at(declaration, *at, "select"):
        given = sinks.shape(sink, given)
    if sink.aggregate is not None:
        if sink.aggregate.step is not None and sink.mode != "state":
            return None
        hint = "the aggregate sees the columns of this sink's select" if sink.select else None
        with errors_at(declaration, *at, "aggregate", hint=hint):
            given = aggregate.made(sink, given, declaration)
    if sink.changes is not None:
        with errors_at(declaration, *at, "changes", "delete_when"):
            rows.where(sink.changes.delete_when or "true")
        with errors_at(declaration, *at, "changes", hint="the table has the columns of key and sequence"):
            given = change_data.made(sink, given, declaration)
    with errors_at(declaration, *at, "partition_by"):
        given.select(*[F.col(f"`{name}`") for name in sink.partition_by])
    with errors_at(declaration, *at, "key"):
        sinks.writer_of(sink.kind).check(sink, given)
    return sinks.without_identity(given).schema


def unasked(declaration: Declaration) -> Iterator[str]:
    """Of sinks that could not be asked: what is not known without them, and why."""
    for sink in declaration.sinks:
        try:
            sinks.writer_of(sink.kind).require(declaration, sink)
        except (Unreachable, Failed) as error:
            at, why = declaration.place(*declaration.path_of(sink)), f": {error.why}" if error.why else ""
            yield f"{at}: whether {sink.name} can take the rows is not known: {error.problem}{why}"


def _check_row_counts(classifier: Classifier, trigger: Trigger) -> None:
    """Where a batch is not seen as a whole, rows are judged one by one: a record must be one row there."""
    hints = {
        "realtime": 'another trigger, as "1 second"',
        "a join": "make the rows in a pipeline before, into a topic",
        "an aggregate of mode watermark": 'mode = "merge" or mode = "recompute"',
        "an aggregate of mode state": "make the rows in a pipeline before, into a topic",
    }
    streaming = classifier.declaration.streaming_aggregate
    modes = [streaming is not None and streaming.mode == mode for mode in ("watermark", "state")]
    found = (trigger.kind == "realtime", classifier.joined is not None, *modes)
    judge = next((name for name, is_so in zip(hints, found, strict=True) if is_so), None)
    for side in [classifier, *([classifier.joined.right] if classifier.joined else [])] if judge else ():
        loose = () if any(modes) else side.loose_steps
        what = side.generator.text if side.generator else f"the {loose[0]} function" if loose else None
        if what is not None:
            raise side.declaration.wrong(
                f"{what} may make several rows of a record, or none", "select" if side.generator else loose[0],
                why=f"{judge} sees rows, not records: "
                "one that is set aside could not take the others of its record with it",
                hint=hints[str(judge)],
            )  # fmt: skip


# -- tables that several pipelines of a file write: Delta would add the columns that one of them lacks -----------------


def _check_shared(declaration: Declaration, written: _Columns, columns_of: Callable[[Declaration], _Columns]) -> None:
    """No other pipeline of the file writes a table of this one with other columns, or with files of another kind."""
    for other in _others(declaration):
        theirs_at, shared = _tables(other), {p: s for p, s in _tables(other).items() if p in written}
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
            _check_one_writer(declaration, _tables(declaration)[place], other, sink)
            difference = _difference(_tables(declaration)[place], sink, written[place], theirs.get(place))
            if difference:
                raise _clash(declaration, place, other, difference)


def _tables(declaration: Declaration) -> dict[str, Sink]:
    """The sinks that are tables, by what they write to."""
    found = [sink for sink in declaration.sinks if sink.type.table]
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
    ours = {Path(target).name for target in (*[sink.target for sink in _tables(declaration).values()], *letters)}
    for name, table in read_document(declaration.file).get("pipelines", {}).items():
        if name == declaration.name or not ours & {Path(text).name for text in _texts(table)}:
            continue
        try:
            yield read(declaration.file, name)
        except HeadraceError:
            continue  # it is reported when that one is to run


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def _check_one_writer(declaration: Declaration, ours: Sink, other: Declaration, theirs: Sink) -> None:
    """A table of changes has one writer: it compares a batch with the table, which must not change meanwhile."""
    if ours.changes or theirs.changes:
        both = json.dumps([*declaration.topics, *other.topics])
        raise declaration.wrong(
            f"pipeline {other.name} writes the table {ours.target} too", *declaration.path_of(ours),
            why="changes by key are compared with the rows that are there; "
            "two that do so at once would each miss what the other writes",
            hint=f"one pipeline of both: from = {both}; or a table for each",
        )  # fmt: skip


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
    sink = _tables(declaration).get(place)
    at: Keys = declaration.path_of(sink) if sink else ("dead_letters",)
    written = sink or declaration.dead_letters
    assert written is not None
    return declaration.wrong(
        f"pipeline {other.name} writes the table {written.target} too, and otherwise", *at,
        why=why, hint="another table for one of the two, or the same columns for both",
    )  # fmt: skip
