"""What sinks demand of a row, looked at before anything is written: what one of them could not use is a dead letter.

An expression of a sink that throws (its `where`, its `select`, what its aggregate is computed from) would end the run,
and the same batch would end the next one. So each is tried with the row, inside of `TryEval` as the declared columns
are (`flow.py`), and the record is set aside with the sink and the expression. A row without an event time belongs to no
window: Spark would leave it out without a word.

A name alone cannot throw and is not tried: most pipelines pay nothing for this.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.pipeline.declaration import Declaration, Sink

Tried = Callable[[str], Column]

_NAME = re.compile(r"\w+|`[^`]+`")
_WINDOWED = re.compile(r"\bover\s*\(", re.IGNORECASE)


def wants(declaration: Declaration, sink: Sink) -> Column:
    """Whether the sink wants a row that has passed `Demands`."""
    filters = any(step.where for step in way(declaration, sink))
    return F.col(column_of(declaration, sink)).isNotNull() if filters else F.lit(True)


def column_of(declaration: Declaration, sink: Sink) -> str:
    """The column that says how many rows one becomes in the sink."""
    return f"_into{declaration.sinks.index(sink)}"


class Demands:
    """Of all sinks of a declaration. `tried` makes a column of an SQL expression: null where it throws."""

    def __init__(self, declaration: Declaration, tried: Tried) -> None:
        self._sinks = [_Demand(declaration, sink, tried) for sink in declaration.sinks]
        #: Of sinks that do not take every row: how many rows one becomes there, null where it is not wanted.
        self.counts = [demand.name for demand in self._sinks if demand.filters]

    def look(self, frame: DataFrame) -> DataFrame:
        """`frame`, whose declared columns are in `_columns`, with `_unfit` (rule and reason) and those of `counts`."""
        kept = frame.columns
        found = [F.lit(None).cast("struct<_rule: string, _reason: string>")]
        for demand in self._sinks:
            frame, unfit = demand.look(frame)
            found += unfit
        return frame.withColumn("_unfit", F.coalesce(*found)).select(*kept, "_unfit", *self.counts)


class _Demand:
    """Of one sink."""

    def __init__(self, declaration: Declaration, sink: Sink, tried: Tried) -> None:
        self.sink = sink
        self.name = column_of(declaration, sink)
        #: The sinks by whose `where` and `select` a row goes: to compute anew, by those of the rows' table first.
        self._way = way(declaration, sink)
        self.filters = any(step.where for step in self._way)
        # What a window function makes of a row depends on the others.
        self._windowed = any(_WINDOWED.search(text) for step in self._way for text in step.select.values())
        self._tried = tried
        aggregate = sink.aggregate
        timed = aggregate is not None and (aggregate.window is not None or aggregate.mode == "watermark")
        self._time = declaration.event_time if timed else None
        self._inputs: list[str] | None = None

    def look(self, frame: DataFrame) -> tuple[DataFrame, list[Column]]:
        """`frame` with what was tried, and why the sink cannot use the row: null where it can."""
        from headrace.pipeline.flow import layers

        wanted, columns, unfit = F.lit(True), "_columns", []
        for at, step in enumerate(self._way):
            name = f"{self.name}_{at}"
            if step.where:
                frame, failed = self._try(frame, columns, f"{name}_where", {"where": step.where}, wanted)
                wanted = wanted & F.coalesce(F.col(f"{name}_where.where"), F.lit(False))
                unfit.append(failed)
            plain = self._windowed or (not self.sink.aggregate and all(map(_NAME.fullmatch, step.select.values())))
            for number, layer in enumerate(layers(step.select) if step.select and not plain else ()):
                frame, failed = self._try(frame, columns, f"{name}{number}_select", layer, wanted)
                frame = _with(frame, columns, f"{name}{number}_select", layer)
                columns = f"{name}{number}_select"
                unfit.append(failed)
                wanted = wanted & F.col(columns).isNotNull()
        if self.filters:
            frame = frame.withColumn(self.name, F.when(wanted, 1))
            wanted = F.col(self.name).isNotNull()
        if self._time:
            missing = wanted & F.col(f"{columns}.`{self._time}`").isNull()
            unfit.append(F.when(missing, self._unfit("event_time", F.lit(f"{self._time} is null: it has no window"))))
        inputs = self._inputs_of(frame, columns)
        if inputs:
            given = {str(at): text for at, text in enumerate(inputs)}
            frame, failed = self._try(frame, columns, f"{self.name}_aggregate", given, wanted)
            unfit.append(failed)
        return frame, unfit

    def _try(
        self, frame: DataFrame, columns: str, made: str, given: Mapping[str, str], when: Column
    ) -> tuple[DataFrame, Column]:
        """`frame` with the expressions as a struct, computed over those columns; without one if any of them threw."""
        kept = frame.columns
        parts = ", ".join(f"{quoted(name)}, {text}" for name, text in given.items())
        # The whole first: which of them it was is looked for only where it has failed.
        alone = [F.when(self._tried(f"named_struct('x', {text})").isNull(), text) for text in given.values()]
        what = made.rpartition("_")[2]
        reason = F.concat(F.lit(f"the expression failed of its {what}: "), F.concat_ws(", ", *alone))
        scoped = frame.select(*kept, f"{columns}.*")
        computed = scoped.withColumn(made, F.when(when, self._tried(f"named_struct({parts})")))
        failed = F.when(when & F.col(made).isNull(), self._unfit("into", reason))
        told = computed.withColumn(f"{made}_failed", failed)
        return told.select(*kept, made, f"{made}_failed"), F.col(f"{made}_failed")

    def _unfit(self, rule: str, reason: Column) -> Column:
        return F.struct(F.lit(rule).alias("_rule"), F.concat(F.lit(f"{self.sink.name}: "), reason).alias("_reason"))

    def _inputs_of(self, frame: DataFrame, columns: str) -> list[str]:
        """What the aggregate computes of each row; the same for every batch."""
        if self._inputs is None:
            values = self.sink.aggregate.values.values() if self.sink.aggregate and not self._windowed else ()
            rows = frame.select(f"{columns}.*")
            self._inputs = list(dict.fromkeys(part for text in values for part in inputs(rows, text)))
        return self._inputs


def way(declaration: Declaration, sink: Sink) -> list[Sink]:
    """The sinks by whose `where` and `select` a row goes to this one; to recompute, by those of the rows first."""
    anew = sink.aggregate is not None and sink.aggregate.mode == "recompute"
    return [declaration.base, sink] if anew else [sink]


def _with(frame: DataFrame, columns: str, made: str, layer: Mapping[str, str]) -> DataFrame:
    """`frame`, in which the struct `made` has those of `columns` too that it does not have itself."""
    before = [name for name in frame.select(f"{columns}.*").columns if name not in layer]
    all_of = [*[F.col(f"{columns}.`{name}`") for name in before], *[F.col(f"{made}.`{name}`") for name in layer]]
    return frame.withColumn(made, F.when(F.col(made).isNotNull(), F.struct(*all_of)))


def quoted(name: str) -> str:
    """The name as a literal of SQL."""
    escaped = name.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


# -- what an aggregate computes of each row ----------------------------------------------------------------------------


def inputs(rows: DataFrame, text: str) -> Iterator[str]:
    """The arguments of aggregate functions in the expression, with the casts that Spark adds, if they compute anything.

    What stands around those functions is computed of whole groups, and has no record to blame.
    """
    from headrace.pipeline.aggregate import calls

    for call in calls(rows.sparkSession, text):
        taken = None if call.node.filter().isEmpty() else call.node.filter().get()
        condition = _text(taken, text) if taken is not None else None
        if condition:
            yield condition
        arguments, casts = _listed(call.node.arguments()), _casts(rows, text[call.start : call.end])
        for at, argument in enumerate(arguments):
            plain = argument.getClass().getSimpleName() in {"UnresolvedAttribute", "UnresolvedStar", "Literal"}
            cast = casts[at] if len(casts) == len(arguments) else None
            if not plain or (cast and argument.getClass().getSimpleName() != "Literal"):
                part = _text(argument, text)
                part = f"cast({part} as {cast})" if cast else part
                yield f"if({condition}, {part}, null)" if condition else part


def _casts(rows: DataFrame, call: str) -> list[str | None]:
    """To which type each argument of the call is cast before the function sees it."""
    plan = rows.agg(F.expr(call))._jdf.queryExecution().analyzed()
    made = plan.aggregateExpressions().head().child()
    if made.getClass().getSimpleName() != "AggregateExpression":
        return []
    arguments = _listed(made.aggregateFunction().children())
    return [a.dataType().sql() if a.getClass().getSimpleName() == "Cast" else None for a in arguments]


def _text(node: Any, text: str) -> str:
    """What was written of that part of the expression."""
    origin = node.origin()
    return text[origin.startIndex().get() : origin.stopIndex().get() + 1]


def _listed(nodes: Any) -> list[Any]:
    return [nodes.apply(at) for at in range(nodes.size())]
