"""A step of the user's own with state per key and timers: Spark's `transformWithState`, with an account of its rows.

The class is Spark's own `StatefulProcessor`; its attribute `schema` (DDL) says which columns the rows have that it
gives. `Accounted` stands between the class and Spark. It gives the rows of a key in an order that a repeated batch has
too, counts what the class was given, says for which key and record it raised, and lets no row pass that Spark would
write with nulls because its columns have other names.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, StructField, StructType

from headrace.errors import ConfigError, Failed
from headrace.pipeline.declare.declaration import Declaration, Sink, interval
from headrace.pipeline.spark import internals
from headrace.pipeline.spark.classify import message_of, nothing
from headrace.pipeline.spark.session import spark_log

#: Of a row that the class did not give: how many rows of a key it was given in the batch.
TAKEN = "_taken"
_TIME_MODES = {"event time": "eventTime", "processing time": "processingTime"}
_RAISED = "a step with state raised: "


def made(rows: DataFrame, declaration: Declaration, sink: Sink) -> DataFrame:
    """No rows, with the columns of those that the class gives; what is wrong with the class is an error."""
    _processor(declaration, sink)
    rows.select(*_keys(sink))
    return nothing(rows.sparkSession, _schema(declaration, sink))


def applied(rows: DataFrame, declaration: Declaration, sink: Sink) -> DataFrame:
    """What the class makes of the stream, with a row for each key and batch that has `TAKEN`."""
    aggregate, schema = sink.aggregate, _schema(declaration, sink)
    assert aggregate is not None
    time = declaration.event_time if declaration.event_time in rows.columns else "_timestamp"
    step = Accounted(_processor(declaration, sink), aggregate.by, tuple(schema.names), str(time))
    if aggregate.has_watermark:
        rows = rows.withWatermark(str(declaration.event_time), interval(str(declaration.watermark)))
    whole = StructType([*schema.fields, StructField(TAKEN, LongType())])
    return internals.transform_with_state(rows, _keys(sink), step, whole, _TIME_MODES[aggregate.timers])


def _keys(sink: Sink) -> list[Any]:
    assert sink.aggregate is not None
    return [F.col(f"`{name}`") for name in sink.aggregate.by]


def _processor(declaration: Declaration, sink: Sink) -> StatefulProcessor:
    """An instance of the class, which Spark's workers can load without its module."""
    given = sink.aggregate.step if sink.aggregate else None
    if not isinstance(given, type) or not issubclass(given, StatefulProcessor):
        raise _wrong(
            declaration, sink, f"{_name(given)} is no StatefulProcessor",
            hint="class …(StatefulProcessor), from pyspark.sql.streaming",
        )  # fmt: skip
    try:
        processor = given()
    except Exception as error:
        raise _wrong(declaration, sink, f"{_name(given)}() raised {_said(error)}") from error
    _carry(given, declaration.folder)
    return processor


def _schema(declaration: Declaration, sink: Sink) -> StructType:
    """The columns that the class declares. All can be null, as those of a row that only has `TAKEN` are."""
    given = sink.aggregate.step if sink.aggregate else None
    said, hint = getattr(given, "schema", None), 'schema = "vehicle long, at timestamp", in the class: what it gives'
    try:
        found = StructType.fromDDL(said) if isinstance(said, str) else said
    except PySparkException as error:
        raise _wrong(declaration, sink, f"the schema of {_name(given)}: {message_of(error)}", hint=hint) from None
    if not isinstance(found, StructType):
        raise _wrong(declaration, sink, f"{_name(given)} has no schema", hint=hint)
    own = next((name for name in found.names if name.startswith("_")), None)
    if own is not None:
        raise _wrong(
            declaration, sink, f"the schema of {_name(given)} has a column {own}",
            why="names that begin with an underscore are those of records",
        )  # fmt: skip
    return StructType([StructField(field.name, field.dataType) for field in found.fields])


def _carry(given: type, folder: Path) -> None:
    """The class travels with the query, and so does what it uses of files beside headrace.toml."""
    for module in [sys.modules[given.__module__], *sys.modules.values()]:
        file = getattr(module, "__file__", None)
        if module.__name__ == given.__module__ or (file and Path(file).parent == folder):
            cloudpickle.register_pickle_by_value(module)


def _wrong(
    declaration: Declaration, sink: Sink, problem: str, why: str | None = None, hint: str | None = None
) -> ConfigError:
    return declaration.wrong(problem, *declaration.path_of(sink), "aggregate", "python", why=why, hint=hint)


def _name(given: object) -> str:
    return str(getattr(given, "__name__", given))


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


# -- in Spark's workers ------------------------------------------------------------------------------------------------


class Accounted(StatefulProcessor):
    """The user's processor, as Spark calls it."""

    def __init__(self, processor: StatefulProcessor, by: tuple[str, ...], columns: tuple[str, ...], time: str) -> None:
        self._processor = processor
        self._by = by
        self._columns = columns
        self._time = time
        #: The row that the processor has taken last.
        self._row: Row | None = None

    def init(self, handle: Any) -> None:
        with self._blaming("in init"):
            self._processor.init(handle)

    def handleInputRows(self, key: Any, rows: Iterable[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        """Spark has no order of its own: a repeated batch could leave another state than the one that was written."""
        given = sorted(rows, key=self._position)
        with self._blaming(f"for {self._told(key)}"):
            for row in self._processor.handleInputRows(key, self._one_by_one(given), timerValues) or ():
                yield self._checked(row)
        yield Row(**dict.fromkeys(self._columns), **{TAKEN: len(given)})

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        with self._blaming(f"at a timer of {self._told(key)}"):
            for row in self._processor.handleExpiredTimer(key, timerValues, expiredTimerInfo) or ():
                yield self._checked(row)

    def close(self) -> None:
        self._processor.close()

    def _position(self, row: Row) -> tuple[object, ...]:
        at = row[self._time]
        return at is not None, at, row["_topic"], row["_partition"], row["_offset"]

    def _one_by_one(self, rows: list[Row]) -> Iterator[Row]:
        for row in rows:
            self._row = row
            yield row

    def _told(self, key: tuple[object, ...]) -> str:
        return ", ".join(f"{name} = {value}" for name, value in zip(self._by, key, strict=True))

    def _checked(self, row: Any) -> Row:
        names = getattr(row, "__fields__", None) if isinstance(row, Row) else None
        if names is None:
            raise TypeError(f"it gave {row!r:.80}, which is no Row with the names of its columns")
        if set(names) != set(self._columns):
            raise TypeError(f"it gave a row of {', '.join(names)}; its schema has {', '.join(self._columns)}")
        found: Row = row
        return found

    @contextmanager
    def _blaming(self, where: str) -> Iterator[None]:
        """What is raised names the key and the record, in words that find their way through Spark's own."""
        self._row = None
        try:
            yield
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            row = self._row
            told = {
                "class": type(self._processor).__name__, "where": where, "said": _said(error),
                "line": f"{Path(frame.filename).name}, line {frame.lineno}",
                "record": f"{row['_topic']}/{row['_partition']}/{row['_offset']}" if row else None,
            }  # fmt: skip
            raise RuntimeError(f"{_RAISED}{json.dumps(told)}") from error


# -- what Spark says of it ---------------------------------------------------------------------------------------------


def failure(text: str, declaration: Declaration) -> Failed | None:
    """The error for what a step of the user's raised, if `text` is of one."""
    sink, found = declaration.streaming_aggregate, re.search(rf"{_RAISED}(\{{.*\}})", text)
    if sink is None or sink.mode != "state":
        return None
    place = declaration.place(*declaration.path_of(sink), "aggregate", "python")
    if found:
        told = json.loads(found[1])
        record = f" at the record {told['record']}" if told["record"] else ""
        return Failed(
            f"{place}: {told['class']} raised an error {told['where']}{record}",
            why=f"{told['said']} ({told['line']}); the batch is taken again at the next start",
            hint="correct the class; a rule in expect sets records aside before they come to it",
        )
    if "driver worker exited" in text:  # it calls init, to see which variables there are, and cannot say why it failed
        return Failed(
            f"{place}: {_name(sink.aggregate.step)} raised an error in init",  # type: ignore[union-attr]
            why=message_of(Exception(text))[:300],
            log=spark_log(),
        )
    if re.search(r"STATE_STORE_\w*SCHEMA|STATE_STORE_INVALID_\w*AFTER_RESTART|STV_SCHEMA", text):
        return Failed(
            f"{place}: the state in the checkpoint was kept by another version of {_name(sink.aggregate.step)}",  # type: ignore[union-attr]
            why=message_of(Exception(text))[:300],
            hint=f"the class as it was, or without the state, from the start: "
            f"headrace pipeline checkpoint wipe {declaration.name}",
        )
    return None
