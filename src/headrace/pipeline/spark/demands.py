"""What sinks demand of a row, looked at before anything is written: what one of them could not use is a dead letter.

An expression of a sink that throws (its `where`, its `select`, the inputs of its aggregate) would end the run, and the
same batch would end the next one. So each is tried with the row, inside `TryEval` like the declared columns
(`classify.py`), and the record becomes a dead letter that names the sink and the expression. A row without an event
time belongs to no window: Spark would drop it silently. A row at the end of the range of timestamps has a window that
ends after it, where Spark's arithmetic throws. A change without a key, or without a sequence, changes nothing.

What a window function makes of a row depends on other rows: such a column is not tried, nor is what is made of it. What
the function is given is.

A name alone cannot throw and is not tried: most pipelines pay nothing for this.

Some sinks cannot hold every value (a column of PostgreSQL has a range). Their limits are tested with the row too; of an
aggregate, those of the columns that it groups by.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.pipeline.declare.declaration import LAST_MICROSECOND, WINDOW, Changes, Declaration, Sink, span_s
from headrace.pipeline.spark import internals

if TYPE_CHECKING:
    from headrace.pipeline.spark.aggregate import Call

Tried = Callable[[str], Column]

_NAME = re.compile(r"\w+|`[^`]+`")
_WINDOWED = re.compile(r"\bover\s*\(", re.IGNORECASE)


@dataclass(frozen=True)
class Limit:
    """What must hold of a row that a sink takes: an SQL condition over the sink's columns, never null, never throwing.

    `reason` says what is wrong with a row for which it does not hold.
    """

    condition: str
    reason: str


def passes_where(declaration: Declaration, sink: Sink) -> Column:
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

    def limit(self, sink: Sink, limits: Sequence[Limit]) -> None:
        """Rows of that sink must keep to those limits."""
        next(demand for demand in self._sinks if demand.sink is sink).limits = tuple(limits)

    def check(self, frame: DataFrame) -> DataFrame:
        """`frame`, whose declared columns are in `_columns`, with `_unfit` (rule and reason) and those of `counts`."""
        kept = frame.columns
        found = [F.lit(None).cast("struct<_rule: string, _reason: string>")]
        for demand in self._sinks:
            frame, unfit = demand.check(frame)
            found += unfit
        return frame.withColumn("_unfit", F.coalesce(*found)).select(*kept, "_unfit", *self.counts)


class _Demand:
    """Of one sink."""

    def __init__(self, declaration: Declaration, sink: Sink, tried: Tried) -> None:
        self.sink = sink
        self.name = column_of(declaration, sink)
        self._declaration = declaration
        #: The sinks by whose `where` and `select` a row goes: to recompute, by those of the rows' table first.
        self._way = way(declaration, sink)
        self.filters = any(step.where for step in self._way)
        self._tried = tried
        aggregate = sink.aggregate
        timed = aggregate is not None and (aggregate.window is not None or aggregate.has_watermark)
        self._time = declaration.event_time if timed else None
        self._inputs: list[str] | None = None
        self.limits: tuple[Limit, ...] = ()

    def check(self, frame: DataFrame) -> tuple[DataFrame, list[Column]]:
        """`frame` with what was tried, and why the sink cannot use the row: null where it can."""
        from headrace.pipeline.spark.classify import layers

        wanted, columns, unfit = F.lit(True), "_columns", []
        unknown: set[str] = set()
        for at, step in enumerate(self._way):
            name = f"{self.name}_{at}"
            if step.where:
                self._require_known(step, unknown)
                frame, failed = self._try(frame, columns, f"{name}_where", {"where": step.where}, wanted)
                wanted = wanted & F.coalesce(F.col(f"{name}_where.where"), F.lit(False))
                unfit.append(failed)
            named = all(map(_NAME.fullmatch, step.select.values()))
            plain = named and not (self.sink.aggregate or self.sink.changes or self.limits)
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
        if self.limits:
            # What an aggregate makes is known of a group, not of a row; the columns that it groups by are the row's.
            made = {*self.sink.aggregate.values, *WINDOW} if self.sink.aggregate else set()
            frame, beyond = self._beyond_limits(frame, columns, wanted, unknown | made)
            unfit.append(beyond)
        if self.filters:
            frame = frame.withColumn(self.name, F.when(wanted, 1))
            wanted = F.col(self.name).isNotNull()
        if self._time and self._time not in unknown:
            unfit += self._without_window(columns, wanted)
        if self.sink.changes is not None:
            frame, failed_parts = self._keyed(frame, self.sink.changes, columns, wanted)
            unfit += failed_parts
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

    def _keyed(
        self, frame: DataFrame, changes: Changes, columns: str, wanted: Column
    ) -> tuple[DataFrame, list[Column]]:
        """Why a row cannot be a change of a key: it has none, or nothing says whether it is the latest."""
        unfit = [F.when(wanted & F.col(f"{columns}.`{key}`").isNull(), self._null("key", key)) for key in changes.key]
        if changes.delete_when:
            given = {"delete_when": changes.delete_when}
            frame, failed = self._try(frame, "_columns", f"{self.name}_changes", given, wanted)
            unfit.append(failed)
        if changes.sequence:
            made = f"{self.name}_sequence"
            given = {f"s{at}": text for at, text in enumerate(changes.sequence)}
            frame, failed = self._try(frame, columns, made, given, wanted)
            known = wanted & F.col(made).isNotNull()
            missing = [(F.col(made)[part].isNull(), self._null("sequence", text)) for part, text in given.items()]
            unfit += [failed, *(F.when(known & is_null, reason) for is_null, reason in missing)]
        return frame, unfit

    def _null(self, rule: str, what: str) -> Column:
        return self._unfit(rule, F.lit(f"{what} is null"))

    def _beyond_limits(
        self, frame: DataFrame, columns: str, wanted: Column, unknown: set[str]
    ) -> tuple[DataFrame, Column]:
        """`frame` with the first limit that a row does not keep to, and why the sink cannot use the row."""
        kept, made = frame.columns, f"{self.name}_limit"
        tested = [limit for limit in self.limits if not _mentioned(limit.condition, unknown)]
        cases = " ".join(f"when not ({limit.condition}) then {quoted(limit.reason)}" for limit in tested)
        beyond = F.expr(f"case {cases} end") if tested else F.lit(None).cast("string")
        scoped = frame.select(*kept, f"{columns}.*").withColumn(made, F.when(wanted, beyond))
        return scoped.select(*kept, made), F.when(F.col(made).isNotNull(), self._unfit("into", F.col(made)))

    def _without_window(self, columns: str, wanted: Column) -> list[Column]:
        """Why a row has no window: it has no time, or one too near to the end of all times."""
        at = F.col(f"{columns}.`{self._time}`")
        aggregate = self.sink.aggregate
        lacks = "no timer goes by it" if aggregate and aggregate.mode == "state" else "it has no window"
        missing = self._unfit("event_time", F.lit(f"{self._time} is null: {lacks}"))
        unfit = [F.when(wanted & at.isNull(), missing)]
        window = aggregate.window if aggregate else None
        if window is not None:
            # Spark looks at windows on both sides of the one that it is.
            last = LAST_MICROSECOND - 2 * int(span_s(window.size) * 1_000_000)
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
        marked = computed.withColumn(f"{made}_failed", failed)
        return marked.select(*kept, made, f"{made}_failed"), F.col(f"{made}_failed")

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
    from headrace.pipeline.spark.classify import mentions

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
    from headrace.pipeline.spark.aggregate import calls

    for call in calls(rows.sparkSession, text):
        condition = call.node.filter.text if call.node.filter else None
        if condition:
            yield condition
        if call.over is not None:
            yield from (node.text for node in call.over.window_keys if not _plain(node))
        arguments, casts = call.node.arguments, internals.argument_casts(rows, _without_over(call, text))
        if call.function in {"lag", "lead"}:
            arguments = arguments[:1]  # the last is computed only where there is no such row
        for at, argument in enumerate(arguments):
            cast = casts[at] if len(casts) == len(arguments) else None
            if not _plain(argument) or (cast and argument.kind != "Literal"):
                part = f"cast({argument.text} as {cast})" if cast else argument.text
                yield f"if({condition}, {part}, null)" if condition else part


def _without_over(call: Call, text: str) -> str:
    if call.over is None:
        return call.node.text
    return re.sub(r"\s*\bover\s*$", "", text[call.start : call.over.start], flags=re.IGNORECASE)


def _plain(node: internals.Node) -> bool:
    """A name or a constant: there is nothing to compute."""
    return node.kind in {"UnresolvedAttribute", "UnresolvedStar", "Literal"}
