"""Aggregates into Delta tables that stay right however late a row comes.

`merge`      a batch's rows are aggregated by themselves and added to what the table holds for the key: sums add, minima
             and maxima compare, an average is its sum and its count. Only what can be added is taken; the rest is
             refused before anything runs.
`recompute`  every key that the batch touches is computed anew from all its rows, which another sink keeps: any SQL and
             any Python function, at the price of reading those rows again.

Both change the table by one MERGE with the batch's number in it: a replayed batch changes nothing.
The third way, Spark's own stateful operator, lies in `watermark.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.pipeline import groups
from headrace.pipeline.counted import Counted
from headrace.pipeline.declaration import Aggregate, Declaration, Sink
from headrace.pipeline.delta_sink import has_written, is_table, note_of
from headrace.pipeline.demands import wants
from headrace.pipeline.ledger import SinkCount
from headrace.pipeline.sinks import Batch, shape, wanted, without_identity

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
_WINDOW = ("window_start", "window_end")


def taken(sink: Sink, rows: DataFrame, declaration: Declaration) -> DataFrame:
    """The rows that the sink looks at: those of the batch, or, to compute anew, as the table of rows takes them."""
    assert sink.aggregate is not None
    if sink.aggregate.mode != "recompute":
        return rows
    return without_identity(shape(declaration.base, rows))


def made(sink: Sink, rows: DataFrame, declaration: Declaration) -> DataFrame:
    """What becomes of rows that the sink has selected: the columns of its table."""
    assert sink.aggregate is not None
    if sink.aggregate.mode == "merge":
        plan = _plan(rows.sparkSession, declaration, sink)
        return _mergeable(rows, declaration, sink.aggregate, plan)
    return computed(rows, declaration, sink.aggregate)


def write(sink: Sink, rows: DataFrame, batch: Batch) -> SinkCount:
    """The table holds the aggregates with this batch in them, once."""
    aggregate = sink.aggregate
    assert aggregate is not None
    path = batch.declaration.resolve(sink.target)
    writer = batch.writer_of(path)
    if batch.replaying and has_written(batch.spark, path, writer, batch.number):
        return batch.took(sink, None)
    counted = Counted(rows.where(wants(batch.declaration, sink)))
    given = shape(sink, taken(sink, counted.frame, batch.declaration))
    change, suspects = (_merge, _merge_suspects) if aggregate.mode == "merge" else (_recompute, _recompute_suspects)
    try:
        change(sink, given, batch, writer)
    except Exception as error:
        said = groups.thrown(error)
        if said is None:
            raise
        raise groups.failure(sink, batch, said, *suspects(sink, given, batch)) from None
    return batch.took(sink, counted.rows)


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


def _plan(spark: SparkSession, declaration: Declaration, sink: Sink) -> _Plan:
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
    """A call of an aggregate function: where it begins and ends in its expression, and as Spark's parser sees it.

    Behind OVER it may be any function of a window; `over` is that window.
    """

    function: str
    start: int
    end: int
    node: Any
    over: Any = None


def calls(spark: SparkSession, text: str) -> list[Call]:
    """The calls of aggregate and window functions in an expression."""
    parser = spark._jsparkSession.sessionState().sqlParser()
    registry = spark._jsparkSession.sessionState().functionRegistry()
    found: list[Call] = []

    def visit(node: Any, over: Any = None) -> None:
        kind = node.getClass().getSimpleName()
        if kind == "WindowExpression":
            visit(node.windowFunction(), node.windowSpec())
            return
        if kind == "UnresolvedFunction":
            name = str(node.nameParts().last()).lower()
            name = _ALIASES.get(name, name)
            if over is not None or name in _MERGED or name == "avg" or _is_aggregate(spark, registry, name):
                origin = node.origin()
                found.append(Call(name, origin.startIndex().get(), origin.stopIndex().get() + 1, node, over))
                return
        children = node.children()
        for at in range(children.size()):
            visit(children.apply(at))

    visit(parser.parseExpression(text))
    return sorted(found, key=lambda call: call.start)


def _is_aggregate(spark: SparkSession, registry: Any, name: str) -> bool:
    jvm: Any = spark._jvm
    some = jvm.scala.Option.apply
    whole = jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name, some("builtin"), some("system"))
    known = registry.lookupFunction(whole)
    return bool(known.isDefined() and known.get().getGroup() == "agg_funcs")


def _mergeable(rows: DataFrame, declaration: Declaration, aggregate: Aggregate, plan: _Plan) -> DataFrame:
    """The rows aggregated by themselves, with the parts that the next merge needs."""
    grouped = _grouped(rows, declaration, aggregate)
    parts = _window_apart(grouped.agg(*[F.expr(part.text).alias(part.column) for part in plan.parts]), aggregate)
    whole = parts.withColumns({name: F.expr(text) for name, text in plan.finals.items()})
    # What was declared comes first; the parts that only the next merge needs stand at the end.
    hidden = [name for name in whole.columns if name.startswith("_")]
    return whole.select(*[F.col(f"`{name}`") for name in (*_keys(aggregate), *aggregate.values, *hidden)])


def _grouped(rows: DataFrame, declaration: Declaration, aggregate: Aggregate) -> Any:
    keys = [F.col(f"`{name}`") for name in aggregate.by]
    window = aggregate.window
    if window is not None:
        at = F.col(f"`{declaration.event_time}`")
        if window.session:
            keys.append(F.session_window(at, window.size).alias("window"))
        else:
            keys.append(F.window(at, window.size, window.slide).alias("window"))
    return rows.groupBy(*keys)


def _window_apart(made: DataFrame, aggregate: Aggregate) -> DataFrame:
    """The window as two columns, which any reader of the table understands."""
    if aggregate.window is None:
        return made
    rest = [F.col(f"`{name}`") for name in made.columns if name not in {"window", *aggregate.by}]
    start, end = F.col("window.start").alias(_WINDOW[0]), F.col("window.end").alias(_WINDOW[1])
    return made.select(*[F.col(f"`{name}`") for name in aggregate.by], start, end, *rest)


def _keys(aggregate: Aggregate) -> tuple[str, ...]:
    return aggregate.by + (_WINDOW if aggregate.window else ())


def _merge(sink: Sink, rows: DataFrame, batch: Batch, writer: str) -> None:
    assert sink.aggregate is not None
    plan = _plan(batch.spark, batch.declaration, sink)
    source = _mergeable(rows, batch.declaration, sink.aggregate, plan)
    update = ", ".join(f"t.`{column}` = {text}" for column, text in plan.merged.items())
    actions = f"when matched then update set {update} when not matched then insert *"
    _merge_into(sink, source, f"on {_same(sink.aggregate)} {actions}", batch, writer)


def _same(aggregate: Aggregate) -> str:
    """That a row of the table and one of the batch have the same key."""
    return " and ".join(f"t.`{key}` <=> s.`{key}`" for key in _keys(aggregate)) or "true"


def _merge_suspects(sink: Sink, rows: DataFrame, batch: Batch) -> tuple[DataFrame, groups.Computed]:
    """The rows, and what those values of some of them become together with what the table holds."""
    aggregate, path = sink.aggregate, batch.declaration.resolve(sink.target)
    assert aggregate is not None
    plan = _plan(batch.spark, batch.declaration, sink)

    def merged(some: DataFrame, names: tuple[str, ...]) -> DataFrame:
        part, only = plan.only(names), replace(aggregate, values={name: aggregate.values[name] for name in names})
        source = _mergeable(some, batch.declaration, only, part).alias("s")
        if not is_table(batch.spark, path):
            return source
        table = batch.spark.read.format("delta").load(path).alias("t")
        return source.join(table, F.expr(_same(aggregate)), "left").select("s.*", *map(F.expr, part.merged.values()))

    return rows, merged


def _merge_into(sink: Sink, source: DataFrame, clauses: str, batch: Batch, writer: str) -> None:
    """One MERGE, remembered in the table's log under the batch's number."""
    spark, path = source.sparkSession, batch.declaration.resolve(sink.target)
    _ensure_table(path, source.drop("_op"), sink.partition_by)
    view = f"headrace_batch_{abs(hash(path))}"
    source.createOrReplaceTempView(view)
    conf = {
        "spark.databricks.delta.write.txnAppId": writer,
        "spark.databricks.delta.write.txnVersion": str(batch.number),
        "spark.databricks.delta.commitInfo.userMetadata": note_of(batch),
    }
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        spark.sql(f"merge into delta.`{path}` t using {view} s {clauses}").collect()
    finally:
        for name in conf:
            spark.conf.unset(name)
        spark.catalog.dropTempView(view)


def _ensure_table(path: str, like: DataFrame, partition_by: tuple[str, ...]) -> None:
    spark = like.sparkSession
    if not is_table(spark, path):
        write = spark.createDataFrame([], like.schema).write.format("delta").partitionBy(*partition_by)
        write.mode("append").save(path)


# -- recompute -------------------------------------------------------------------------------------------------------


def _recompute(sink: Sink, rows: DataFrame, batch: Batch, writer: str) -> None:
    declaration, aggregate = batch.declaration, sink.aggregate
    assert aggregate is not None
    # Counted and small: the keys of a batch, kept because MERGE looks at them twice.
    touched = rows.select(*aggregate.by).distinct().persist()
    try:
        touched.count()
        made = computed(_rows_of(touched, sink, batch), declaration, aggregate)
        source = made.withColumn("_op", F.lit("insert")).unionByName(
            touched.withColumn("_op", F.lit("delete")), allowMissingColumns=True
        )
        same = " and ".join(f"t.`{key}` <=> s.`{key}`" for key in aggregate.by)
        columns = ", ".join(f"`{name}`" for name in made.columns)
        values = ", ".join(f"s.`{name}`" for name in made.columns)
        remove = f"when matched then delete when not matched and s._op = 'insert' then insert ({columns})"
        clauses = f"on s._op = 'delete' and {same} {remove} values ({values})"
        _merge_into(sink, source, clauses, batch, writer)
    finally:
        touched.unpersist()


def _rows_of(touched: DataFrame, sink: Sink, batch: Batch) -> DataFrame:
    """All rows of those keys, from the table of rows."""
    table = batch.spark.read.format("delta").load(batch.declaration.resolve(batch.declaration.base.target))
    rows = shape(sink, wanted(sink, table))
    return rows.join(touched, [rows[key].eqNullSafe(touched[key]) for key in touched.columns], "left_semi")


def _recompute_suspects(sink: Sink, rows: DataFrame, batch: Batch) -> tuple[DataFrame, groups.Computed]:
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
    if any(re.search(r"\bover\s*\(", text, re.IGNORECASE) for text in aggregate.values.values()):
        return without_identity(rows).select("*", *values)
    return _window_apart(_grouped(rows, declaration, aggregate).agg(*values), aggregate)
