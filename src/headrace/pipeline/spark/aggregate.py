"""Aggregates into tables that stay right however late a row comes.

`merge`      a batch's rows are aggregated by themselves and added to what the table holds for the key: sums add, minima
             and maxima compare, an average is its sum and its count. Only what can be added is taken; the rest is
             refused before anything runs.
`recompute`  every key that the batch touches is recomputed from all its rows, which another sink keeps: any SQL and
             any Python function, at the price of reading those rows again.

Both change a Delta table by one MERGE with the batch's number in it: a replayed batch changes nothing. A database gets
the rows of the keys that a batch touches. What is merged for it is in a Delta table of the checkpoint, so it is written
before the database, and a replayed batch that finds it written still gives the database its rows.
The other ways, Spark's own stateful operators, lie in `watermark.py` and `stateful.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from urllib.parse import quote

from pyspark.sql import DataFrame, GroupedData, SparkSession
from pyspark.sql import functions as F

from headrace.errors import Failed
from headrace.pipeline.books.ledger import SinkCount
from headrace.pipeline.declare.declaration import WINDOW, Aggregate, Declaration, Sink, interval
from headrace.pipeline.spark import internals, stateful
from headrace.pipeline.spark.demands import passes_where
from headrace.pipeline.spark.sinks.delta import ensure_table, merge_into, note_of, replace_keys
from headrace.pipeline.spark.sinks.sinks import Batch, filtered, shape, with_identity, without_identity, writer_of

#: How a partial result of the table (t) and of the batch (s) become one.
_MERGED = {
    "sum": "coalesce(t.{0} + s.{0}, t.{0}, s.{0})",
    "count": "t.{0} + s.{0}",
    "count_if": "t.{0} + s.{0}",
    "min": "least(t.{0}, s.{0})",
    "max": "greatest(t.{0}, s.{0})",
    "bool_or": "coalesce(t.{0} or s.{0}, t.{0}, s.{0})",
    "bool_and": "coalesce(t.{0} and s.{0}, t.{0}, s.{0})",
}
_ALIASES = {"any": "bool_or", "some": "bool_or", "every": "bool_and", "mean": "avg"}
#: SQL's class of errors in data: overflow, division by zero, a text that is not a number.
_DATA = re.compile(r"\[[A-Z_.]+\]\s*((?:(?!\[[A-Z_.]+\]).)*?)\s*SQLSTATE: 22", re.DOTALL)
_HASH_BITS = 40
DATA_HINT = (
    "try_sum, try_divide, try_cast and a larger type (cast(amount as decimal(38))) do not throw; "
    "a rule in expect sets records aside before they come here"
)

#: The aggregate of those rows, by those of its values.
_Computed = Callable[[DataFrame, tuple[str, ...]], DataFrame]


def taken(sink: Sink, rows: DataFrame, declaration: Declaration) -> DataFrame:
    """The rows that the sink looks at: those of the batch, or, to recompute, as the table of rows takes them."""
    assert sink.aggregate is not None
    if sink.aggregate.mode != "recompute":
        return rows
    return without_identity(shape(declaration.base, rows))


def made(sink: Sink, rows: DataFrame, declaration: Declaration) -> DataFrame:
    """What becomes of rows that the sink has selected: the columns of its table."""
    assert sink.aggregate is not None
    if sink.aggregate.mode == "merge":
        plan = merge_plan(rows.sparkSession, declaration, sink)
        return _mergeable(rows, declaration, sink.aggregate, plan)
    if sink.mode == "state":
        return stateful.made(rows, declaration, sink)
    return computed(rows, declaration, sink.aggregate)


def write(sink: Sink, rows: DataFrame, batch: Batch) -> SinkCount:
    """The sink holds the aggregates with this batch in them, once."""
    aggregate = sink.aggregate
    assert aggregate is not None
    counted = internals.Counted(rows.where(passes_where(batch.declaration, sink)))
    given = shape(sink, taken(sink, counted.frame, batch.declaration))
    try:
        written = (_change_table if sink.type.table else _change_rows)(sink, given, batch)
    except Exception as error:
        said = data_error(error)
        if said is None:
            raise
        suspects = _merge_suspects if aggregate.mode == "merge" else _recompute_suspects
        raise _failure(sink, batch, said, *suspects(sink, given, batch)) from None
    return batch.took(sink, counted.rows if written else None)


def _change_table(sink: Sink, rows: DataFrame, batch: Batch) -> bool:
    """The Delta table of the aggregate has the batch in it. False if it had it before."""
    assert sink.aggregate is not None
    path = _path(sink, batch)
    writer = batch.writer_of(path)
    if batch.replaying and internals.has_committed(batch.spark, path, writer, batch.number):
        return False
    (_merge if sink.aggregate.mode == "merge" else _recompute)(sink, rows, batch, writer)
    return True


def _change_rows(sink: Sink, rows: DataFrame, batch: Batch) -> bool:
    """The sink has the rows of the keys that the batch touches as they are now. False if it had them before."""
    aggregate = sink.aggregate
    assert aggregate is not None
    merged, writer = aggregate.mode == "merge", writer_of(sink.kind)
    keyed = _window_apart(_grouped(rows, batch.declaration, aggregate).count(), aggregate) if merged else rows
    touched = keyed.select(*[F.col(f"`{name}`") for name in (_keys(aggregate) if merged else aggregate.by)]).distinct()
    touched = touched.persist()
    try:
        touched.count()
        if merged:
            _change_table(sink, rows, batch)
            table = batch.spark.read.format("delta").load(_path(sink, batch))
            done = writer.write(sink, with_identity(without_identity(_rows_with(table, touched))), batch)
        else:
            made = computed(_rows_of(touched, sink, batch), batch.declaration, aggregate)
            done = writer.replace(sink, touched, with_identity(without_identity(made)), batch)
    finally:
        touched.unpersist()
    return done is not None


def _path(sink: Sink, batch: Batch) -> str:
    """The Delta table that holds the aggregate: the sink itself, or one that lives as long as the checkpoint."""
    if sink.type.table:
        return batch.declaration.resolve(sink.target)
    return f"{batch.checkpoint}/aggregates/{quote(sink.target, safe='')}"


# -- merge -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """One aggregate call: its column, what it is made by, and how it is merged."""

    column: str
    text: str
    function: str

    @property
    def merged(self) -> str:
        return _MERGED[self.function].format(f"`{self.column}`")


@dataclass(frozen=True)
class _Plan:
    parts: tuple[_Part, ...]
    #: The declared values that are no part by themselves, as expressions over the parts.
    finals: dict[str, str]

    @property
    def merged(self) -> dict[str, str]:
        """Each column of the table, as what it holds (t) and what the batch brings (s) make it."""
        parts = {part.column: part.merged for part in self.parts}
        finals = dict(self.finals)
        for name in finals:
            for column, formula in parts.items():
                finals[name] = finals[name].replace(f"`{column}`", f"({formula})")
        return {**parts, **finals}

    def only(self, names: tuple[str, ...]) -> _Plan:
        """What is needed for those values."""
        finals = {name: text for name, text in self.finals.items() if name in names}
        needed = [p for p in self.parts if p.column in names or any(f"`{p.column}`" in t for t in finals.values())]
        return _Plan(tuple(needed), finals)


def merge_plan(spark: SparkSession, declaration: Declaration, sink: Sink) -> _Plan:
    """How the values of the sink's aggregate are added up."""
    assert sink.aggregate is not None
    parts: list[_Part] = []
    finals: dict[str, str] = {}
    at = (*declaration.path_of(sink), "aggregate", "values")
    for name, text in sink.aggregate.values.items():
        found = calls(spark, text)
        if not found:
            raise declaration.wrong(
                f"{name} = {text!r} aggregates nothing", *at, name, hint="sum, count, min, max, avg …"
            )
        whole = len(found) == 1 and (found[0].start, found[0].end) == (0, len(text))
        if whole and found[0].function in _MERGED and found[0].over is None:
            parts.append(_Part(name, text, found[0].function))
            continue
        for call in reversed(found):
            column, said = f"_{name}_{len(parts)}", text[call.start : call.end]
            new = _parts_of(call.function, said, column) if call.over is None else []
            if not new:
                raise declaration.wrong(
                    f"{said} cannot be merged", *at, name,
                    why="what the table holds and what a batch brings must add up to the result",
                    hint=f'mode = "recompute" takes any aggregate; merge takes {", ".join([*_MERGED, "avg"])}',
                )  # fmt: skip
            parts.extend(new)
            put = f"`{new[0].column}`" if len(new) == 1 else f"try_divide(`{new[0].column}`, `{new[1].column}`)"
            text = text[: call.start] + put + text[call.end :]
        finals[name] = text
    return _Plan(tuple(parts), finals)


def _parts_of(function: str, text: str, column: str) -> list[_Part]:
    """The parts that make up the call; none if it cannot be merged."""
    if function == "avg":
        inside = text[text.index("(") + 1 : text.rindex(")")]
        return [_Part(f"{column}_sum", f"sum({inside})", "sum"), _Part(f"{column}_count", f"count({inside})", "count")]
    if function not in _MERGED or re.search(r"\(\s*distinct\b", text, re.IGNORECASE):
        return []
    return [_Part(column, text, function)]


@dataclass(frozen=True)
class Call:
    """A call of an aggregate function in an expression. Behind OVER it may be any function; `over` is its window."""

    function: str
    node: internals.Node
    over: internals.Node | None = None

    @property
    def start(self) -> int:
        return self.node.start

    @property
    def end(self) -> int:
        return self.node.end


def calls(spark: SparkSession, text: str) -> list[Call]:
    """The calls of aggregate and window functions in an expression."""
    found: list[Call] = []

    def visit(node: internals.Node, over: internals.Node | None = None) -> None:
        kind = node.kind
        if kind == "WindowExpression":
            visit(*node.windowed)
            return
        if kind == "UnresolvedFunction":
            name = _ALIASES.get(node.function, node.function)
            known = over is not None or name in _MERGED or name == "avg"
            if known or internals.is_aggregate_function(spark, name):
                found.append(Call(name, node, over))
                return
        for child in node.children:
            visit(child)

    visit(internals.parse(spark, text))
    return sorted(found, key=lambda call: call.start)


def _mergeable(rows: DataFrame, declaration: Declaration, aggregate: Aggregate, plan: _Plan) -> DataFrame:
    """The rows aggregated by themselves, with the parts that the next merge needs."""
    grouped = _grouped(rows, declaration, aggregate)
    parts = _window_apart(grouped.agg(*[F.expr(part.text).alias(part.column) for part in plan.parts]), aggregate)
    whole = parts.withColumns({name: F.expr(text) for name, text in plan.finals.items()})
    # What was declared comes first; the parts that only the next merge needs stand at the end.
    hidden = [name for name in whole.columns if name.startswith("_")]
    return whole.select(*[F.col(f"`{name}`") for name in (*_keys(aggregate), *aggregate.values, *hidden)])


def _grouped(rows: DataFrame, declaration: Declaration, aggregate: Aggregate) -> GroupedData:
    keys = [F.col(f"`{name}`") for name in aggregate.by]
    window = aggregate.window
    if window is not None:
        at = F.col(f"`{declaration.event_time}`")
        if window.session:
            keys.append(F.session_window(at, interval(window.size)).alias("window"))
        else:
            slide = interval(window.slide) if window.slide else None
            keys.append(F.window(at, interval(window.size), slide).alias("window"))
    return rows.groupBy(*keys)


def _window_apart(made: DataFrame, aggregate: Aggregate) -> DataFrame:
    """The window as two columns, which any reader of the table understands."""
    if aggregate.window is None:
        return made
    rest = [F.col(f"`{name}`") for name in made.columns if name not in {"window", *aggregate.by}]
    start, end = F.col("window.start").alias(WINDOW[0]), F.col("window.end").alias(WINDOW[1])
    return made.select(*[F.col(f"`{name}`") for name in aggregate.by], start, end, *rest)


def _keys(aggregate: Aggregate) -> tuple[str, ...]:
    return aggregate.by + (WINDOW if aggregate.window else ())


def _merge(sink: Sink, rows: DataFrame, batch: Batch, writer: str) -> None:
    assert sink.aggregate is not None
    plan = merge_plan(batch.spark, batch.declaration, sink)
    source = _mergeable(rows, batch.declaration, sink.aggregate, plan)
    update = ", ".join(f"t.`{column}` = {text}" for column, text in plan.merged.items())
    actions = f"when matched then update set {update} when not matched then insert *"
    _merge_into(sink, source, f"on {_same(sink.aggregate)} {actions}", batch, writer)


def _same(aggregate: Aggregate) -> str:
    """That a row of the table and one of the batch have the same key."""
    return " and ".join(f"t.`{key}` <=> s.`{key}`" for key in _keys(aggregate)) or "true"


def _merge_suspects(sink: Sink, rows: DataFrame, batch: Batch) -> tuple[DataFrame, _Computed]:
    """The rows, and what those values of some of them become together with what the table holds."""
    aggregate, path = sink.aggregate, _path(sink, batch)
    assert aggregate is not None
    plan = merge_plan(batch.spark, batch.declaration, sink)

    def merged(some: DataFrame, names: tuple[str, ...]) -> DataFrame:
        part, only = plan.only(names), replace(aggregate, values={name: aggregate.values[name] for name in names})
        source = _mergeable(some, batch.declaration, only, part).alias("s")
        if not internals.is_delta_table(batch.spark, path):
            return source
        table = batch.spark.read.format("delta").load(path).alias("t")
        return source.join(table, F.expr(_same(aggregate)), "left").select("s.*", *map(F.expr, part.merged.values()))

    return rows, merged


def _merge_into(sink: Sink, source: DataFrame, clauses: str, batch: Batch, writer: str) -> None:
    """One MERGE, remembered in the table's log under the batch's number."""
    path = _path(sink, batch)
    ensure_table(path, source, sink.partition_by)
    merge_into(path, source, clauses, _commit(batch, writer))


def _commit(batch: Batch, writer: str) -> internals.DeltaCommit:
    return internals.DeltaCommit(writer, batch.number, note_of(batch), may_exist=batch.replaying)


# -- recompute -------------------------------------------------------------------------------------------------------


def _recompute(sink: Sink, rows: DataFrame, batch: Batch, writer: str) -> None:
    declaration, aggregate = batch.declaration, sink.aggregate
    assert aggregate is not None
    # Counted and small: the keys of a batch, kept because MERGE looks at them twice.
    touched = rows.select(*aggregate.by).distinct().persist()
    try:
        touched.count()
        made = computed(_rows_of(touched, sink, batch), declaration, aggregate)
        path = declaration.resolve(sink.target)
        ensure_table(path, made, sink.partition_by)
        replace_keys(path, touched, made, _commit(batch, writer))
    finally:
        touched.unpersist()


def _rows_of(touched: DataFrame, sink: Sink, batch: Batch) -> DataFrame:
    """All rows of those keys, from the table of rows."""
    table = batch.spark.read.format("delta").load(batch.declaration.resolve(batch.declaration.base.target))
    return _rows_with(shape(sink, filtered(sink, table)), touched)


def _rows_with(rows: DataFrame, keys: DataFrame) -> DataFrame:
    """Those of the rows that have one of the keys."""
    return rows.join(keys, [rows[key].eqNullSafe(keys[key]) for key in keys.columns], "left_semi")


def _recompute_suspects(sink: Sink, rows: DataFrame, batch: Batch) -> tuple[DataFrame, _Computed]:
    """All rows of the keys, and what those values of some of them are."""
    aggregate = sink.aggregate
    assert aggregate is not None

    def anew(some: DataFrame, names: tuple[str, ...]) -> DataFrame:
        only = {name: aggregate.values[name] for name in names}
        return computed(some, batch.declaration, replace(aggregate, values=only))

    return _rows_of(rows.select(*aggregate.by).distinct(), sink, batch), anew


def computed(rows: DataFrame, declaration: Declaration, aggregate: Aggregate) -> DataFrame:
    """The aggregate of those rows: by a function, by window functions, or by groups."""
    if aggregate.step is not None:
        made: DataFrame = aggregate.step(rows)
        return made
    values = [F.expr(text).alias(name) for name, text in aggregate.values.items()]
    if aggregate.has_window_functions:
        return without_identity(rows).select("*", *values)
    return _window_apart(_grouped(rows, declaration, aggregate).agg(*values), aggregate)


# -- which group failed ----------------------------------------------------------------------------------------------
#
# The inputs of an aggregate were tried with each row (`demands.py`). What can still throw is a sum that overflows, a
# division of sums, a window function: that belongs to a group, not to a record, so there is none to set aside. The run
# stops, and its error names the table, the value and the group.


def data_error(error: Exception) -> str | None:
    """What an expression said when it threw; None of another error."""
    found = _DATA.search(str(error))
    return " ".join(found[1].split()) if found else None


def _failure(sink: Sink, batch: Batch, said: str, rows: DataFrame, computed: _Computed) -> Failed:
    """The error that names table, value and group."""
    aggregate = sink.aggregate
    assert aggregate is not None
    every = tuple(aggregate.values)
    group = _group(rows, aggregate.by, lambda some: _throws(computed(some, every))) if every else None
    key = ", ".join(f"{name} = {value}" for name, value in group.items()) if group else ""
    some = _of(rows, group) if group else rows
    failing = [f"{name} = {aggregate.values[name]}" for name in every if _throws(computed(some, (name,)))]
    return Failed(
        f"{batch.declaration.place(*batch.declaration.path_of(sink), 'aggregate')}: {sink.name} cannot be computed"
        + (f" for {key}" if key else ""),
        why="; ".join([*failing, said]) + f"; batch {batch.number} is taken again at the next start",
        hint=DATA_HINT,
    )


def _group(rows: DataFrame, by: tuple[str, ...], throws: Callable[[DataFrame], bool]) -> dict[str, object] | None:
    """The key of a group that throws: halves of the keys are tried until one is left."""
    keys = [F.col(f"`{name}`") for name in by]
    bits = F.xxhash64(*keys) if by else None
    if bits is None or not throws(rows):
        return None
    for at in range(_HASH_BITS):
        found = rows.select(*keys).distinct().limit(2).collect()
        if len(found) == 1:
            return dict(found[0].asDict())
        half = bits.bitwiseAND(F.lit(1 << at)) == 0
        rows = rows.where(half) if throws(rows.where(half)) else rows.where(~half)
    return None


def _of(rows: DataFrame, group: dict[str, object]) -> DataFrame:
    for name, value in group.items():
        rows = rows.where(F.col(f"`{name}`").eqNullSafe(F.lit(value)))
    return rows


def _throws(made: DataFrame) -> bool:
    try:
        made.write.format("noop").mode("overwrite").save()
    except Exception as error:
        if data_error(error) is None:
            raise
        return True
    return False
