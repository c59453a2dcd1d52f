"""What sinks demand of a row, looked at before anything is written: what one of them could not use is a dead letter.

An expression of a sink that throws (its `where`, its `select`, what its aggregate is computed from) would end the run,
and the same batch would end the next one. So each is tried with the row, inside of `TryEval` as the declared columns
are (`flow.py`), and the record is set aside with the sink and the expression. A row without an event time belongs to no
window: Spark would leave it out without a word. One at the end of all times has a window that ends behind it, and there
Spark's arithmetic throws.

What a window function makes of a row depends on other rows: such a column is not tried, nor is what is made of it. What
the function is given is.

A name alone cannot throw and is not tried: most pipelines pay nothing for this.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.pipeline.declaration import Declaration, Sink, span_s

if TYPE_CHECKING:
    from headrace.pipeline.aggregate import Call

Tried = Callable[[str], Column]

_NAME = re.compile(r"\w+|`[^`]+`")
_WINDOWED = re.compile(r"\bover\s*\(", re.IGNORECASE)
# Spark counts time in microseconds, in 64 bits.
_LAST_MICROSECOND = 2**63 - 1


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
        self._declaration = declaration
        #: The sinks by whose `where` and `select` a row goes: to compute anew, by those of the rows' table first.
        self._way = way(declaration, sink)
        self.filters = any(step.where for step in self._way)
        self._tried = tried
        aggregate = sink.aggregate
        timed = aggregate is not None and (aggregate.window is not None or aggregate.mode == "watermark")
        self._time = declaration.event_time if timed else None
        self._inputs: list[str] | None = None

    def look(self, frame: DataFrame) -> tuple[DataFrame, list[Column]]:
        """`frame` with what was tried, and why the sink cannot use the row: null where it can."""
        from headrace.pipeline.flow import layers

        wanted, columns, unfit = F.lit(True), "_columns", []
        unknown: set[str] = set()
        for at, step in enumerate(self._way):
            name = f"{self.name}_{at}"
            if step.where:
                self._require_known(step, unknown)
                frame, failed = self._try(frame, columns, f"{name}_where", {"where": step.where}, wanted)
                wanted = wanted & F.coalesce(F.col(f"{name}_where.where"), F.lit(False))
                unfit.append(failed)
            plain = not self.sink.aggregate and all(map(_NAME.fullmatch, step.select.values()))
            for number, whole in enumerate(layers(step.select) if step.select and not plain else ()):
                unknown |= {made for made, text in whole.items() if _of_others(text, unknown)}
                layer = {made: text for made, text in whole.items() if made not in unknown}
                if not layer:
                    continue
                frame, failed = self._try(frame, columns, f"{name}{number}_select", layer, wanted)
                frame = _with(frame, columns, f"{name}{number}_select", layer)
                columns = f"{name}{number}_select"
                unfit.append(failed)
                wanted = wanted & F.col(columns).isNotNull()
        if self.filters:
            frame = frame.withColumn(self.name, F.when(wanted, 1))
            wanted = F.col(self.name).isNotNull()
        if self._time and self._time not in unknown:
            unfit += self._without_window(columns, wanted)
        inputs = self._inputs_of(frame, columns, unknown)
        if inputs:
            given = {str(at): text for at, text in enumerate(inputs)}
            frame, failed = self._try(frame, columns, f"{self.name}_aggregate", given, wanted)
            unfit.append(failed)
        return frame, unfit

    def _require_known(self, step: Sink, unknown: set[str]) -> None:
        if step.where and _of_others(step.where, unknown):
            at = self._declaration.path_of(step)
            raise self._declaration.wrong(
                f"the where of {self.sink.name} goes by what a window function makes", *at, "where",
                why="whether a sink wants a row must be known by that row alone",
                hint="name columns that are computed without a window function",
            )  # fmt: skip

    def _without_window(self, columns: str, wanted: Column) -> list[Column]:
        """Why a row has no window: it has no time, or one too near to the end of all times."""
        at = F.col(f"{columns}.`{self._time}`")
        missing = self._unfit("event_time", F.lit(f"{self._time} is null: it has no window"))
        unfit = [F.when(wanted & at.isNull(), missing)]
        window = self.sink.aggregate.window if self.sink.aggregate else None
        if window is not None:
            # Spark looks at windows on both sides of the one that it is.
            last = _LAST_MICROSECOND - 2 * int(span_s(window.size) * 1_000_000)
            fits = self._tried(f"abs(unix_micros(cast({columns}.`{self._time}` as timestamp))) <= {last}")
            outside = self._unfit("event_time", F.lit(f"{self._time} is outside of all windows"))
            unfit.append(F.when(wanted & at.isNotNull() & ~F.coalesce(fits, F.lit(False)), outside))
        return unfit

    def _try(
        self, frame: DataFrame, columns: str, made: str, given: Mapping[str, str], when: Column
    ) -> tuple[DataFrame, Column]:
        """`frame` with the expressions as a struct, computed over those columns; without one if any of them threw."""
        kept = frame.columns
        parts = ", ".join(f"{quoted(name)}, {text}" for name, text in given.items())
        # The whole first: which of them it was is looked for only where it has failed.
        alone = [F.when(self._tried(f"named_struct('x', {text})").isNull(), text) for text in given.values()]
        what = made.rpartition("_")[2]
        reason = F.concat(F.lit(f"an expression of its {what} failed: "), F.concat_ws(", ", *alone))
        scoped = frame.select(*kept, f"{columns}.*")
        computed = scoped.withColumn(made, F.when(when, self._tried(f"named_struct({parts})")))
        failed = F.when(when & F.col(made).isNull(), self._unfit("into", reason))
        told = computed.withColumn(f"{made}_failed", failed)
        return told.select(*kept, made, f"{made}_failed"), F.col(f"{made}_failed")

    def _unfit(self, rule: str, reason: Column) -> Column:
        return F.struct(F.lit(rule).alias("_rule"), F.concat(F.lit(f"{self.sink.name}: "), reason).alias("_reason"))

    def _inputs_of(self, frame: DataFrame, columns: str, unknown: set[str]) -> list[str]:
        """What the aggregate computes of each row; the same for every batch."""
        if self._inputs is None:
            values = list(self.sink.aggregate.values.values()) if self.sink.aggregate else []
            # Beside a window function, what has none is computed row by row.
            by_row = any(map(_WINDOWED.search, values))
            rows, found = frame.select(f"{columns}.*"), []
            for text in values:
                if by_row and not _WINDOWED.search(text):
                    found += [] if _NAME.fullmatch(text) else [text]
                else:
                    found += inputs(rows, text) if not _mentioned(text, unknown) else []
            self._inputs = [part for part in dict.fromkeys(found) if not _mentioned(part, unknown)]
        return self._inputs


def way(declaration: Declaration, sink: Sink) -> list[Sink]:
    """The sinks by whose `where` and `select` a row goes to this one; to recompute, by those of the rows first."""
    anew = sink.aggregate is not None and sink.aggregate.mode == "recompute"
    return [declaration.base, sink] if anew else [sink]


def _of_others(text: str, unknown: set[str]) -> bool:
    """Whether the expression depends on other rows: it has a window function, or names a column that has one."""
    return bool(_WINDOWED.search(text)) or _mentioned(text, unknown)


def _mentioned(text: str, names: set[str]) -> bool:
    from headrace.pipeline.flow import mentions

    return any(mentions(text, name) for name in names)


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
    """What aggregate and window functions in the expression compute of a row, with the casts that Spark adds.

    What stands around those functions is computed of whole groups, and has no record to blame.
    """
    from headrace.pipeline.aggregate import calls

    for call in calls(rows.sparkSession, text):
        taken = None if call.node.filter().isEmpty() else call.node.filter().get()
        condition = _text(taken, text) if taken is not None else None
        if condition:
            yield condition
        if call.over is not None:
            order = [each.child() for each in _listed(call.over.orderSpec())]
            yield from (_text(node, text) for node in [*_listed(call.over.partitionSpec()), *order] if not _plain(node))
        arguments, casts = _listed(call.node.arguments()), _casts(rows, _without_over(call, text))
        if call.function in {"lag", "lead"}:
            arguments = arguments[:1]  # the last is computed only where there is no such row
        for at, argument in enumerate(arguments):
            plain = _plain(argument)
            cast = casts[at] if len(casts) == len(arguments) else None
            if not plain or (cast and argument.getClass().getSimpleName() != "Literal"):
                part = _text(argument, text)
                part = f"cast({part} as {cast})" if cast else part
                yield f"if({condition}, {part}, null)" if condition else part


def _casts(rows: DataFrame, call: str) -> list[str | None]:
    """To which type each argument of the call is cast before the function sees it."""
    try:
        plan = rows.agg(F.expr(call))._jdf.queryExecution().analyzed()
    except PySparkException:  # a function that needs a window casts nothing
        return []
    made = plan.aggregateExpressions().head().child()
    if made.getClass().getSimpleName() != "AggregateExpression":
        return []
    arguments = _listed(made.aggregateFunction().children())
    return [a.dataType().sql() if a.getClass().getSimpleName() == "Cast" else None for a in arguments]


def _without_over(call: Call, text: str) -> str:
    if call.over is None:
        return text[call.start : call.end]
    return re.sub(r"\s*\bover\s*$", "", text[call.start : call.over.origin().startIndex().get()], flags=re.IGNORECASE)


def _plain(node: Any) -> bool:
    """A name or a constant: there is nothing to compute."""
    return node.getClass().getSimpleName() in {"UnresolvedAttribute", "UnresolvedStar", "Literal"}


def _text(node: Any, text: str) -> str:
    """What was written of that part of the expression."""
    origin = node.origin()
    return text[origin.startIndex().get() : origin.stopIndex().get() + 1]


def _listed(nodes: Any) -> list[Any]:
    return [nodes.apply(at) for at in range(nodes.size())]
