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
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.pipeline.counted import Counted
from headrace.pipeline.declaration import Aggregate, Declaration, Sink
from headrace.pipeline.delta_sink import has_written, is_table, note_of
from headrace.pipeline.ledger import SinkCount
from headrace.pipeline.sinks import Batch, shape, without_identity

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


def check(spark: SparkSession, declaration: Declaration, rows: DataFrame) -> None:
    """Every aggregate of the declaration can be computed from such rows; `rows` is empty."""
    from pyspark.errors import PySparkException

    from headrace.pipeline.flow import in_words

    for sink in declaration.sinks:
        if sink.aggregate is None or sink.aggregate.step is not None:
            continue
        try:
            if sink.aggregate.mode == "merge":
                plan = _plan(spark, declaration, sink.aggregate)
                _partial(rows, declaration, sink.aggregate, plan)
            else:
                computed(rows, declaration, sink.aggregate)
        except PySparkException as error:
            raise declaration.wrong(in_words(error), "into", "aggregate") from None


def write(sink: Sink, rows: DataFrame, batch: Batch) -> SinkCount:
    """The table holds the aggregates with this batch in them, once."""
    aggregate = sink.aggregate
    assert aggregate is not None
    path = batch.declaration.resolve(sink.target)
    writer = batch.writer_of(path)
    if batch.replaying and has_written(batch.spark, path, writer, batch.number):
        return SinkCount(sink.name, batch.written, batch.written, replayed=True)
    wanted = rows.where(sink.where) if sink.where else rows
    counted = Counted(wanted)
    if aggregate.mode == "merge":
        _merge(path, counted.frame, batch, aggregate, writer)
    else:
        _recompute(path, counted.frame, batch, aggregate, writer)
    return SinkCount(sink.name, counted.rows if sink.where else batch.written, counted.rows)


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


def _plan(spark: SparkSession, declaration: Declaration, aggregate: Aggregate) -> _Plan:
    parts: list[_Part] = []
    finals: dict[str, str] = {}
    for name, text in aggregate.values.items():
        calls = _calls(spark, text)
        if not calls:
            raise declaration.wrong(f"{name} = {text!r} aggregates nothing", "into", hint="sum, count, min, max, avg …")
        whole = len(calls) == 1 and (calls[0][1], calls[0][2]) == (0, len(text)) and calls[0][0] in _MERGED
        if whole:
            parts.append(_Part(name, text, calls[0][0]))
            continue
        for function, start, end in reversed(calls):
            made = _parts_of(function, text[start:end], f"_{name}_{len(parts)}", declaration)
            parts.extend(made)
            put = f"`{made[0].column}`" if len(made) == 1 else f"try_divide(`{made[0].column}`, `{made[1].column}`)"
            text = text[:start] + put + text[end:]
        finals[name] = text
    return _Plan(tuple(parts), finals)


def _parts_of(function: str, text: str, column: str, declaration: Declaration) -> list[_Part]:
    if function == "avg":
        inside = text[text.index("(") + 1 : text.rindex(")")]
        return [_Part(f"{column}_sum", f"sum({inside})", "sum"), _Part(f"{column}_count", f"count({inside})", "count")]
    if function not in _MERGED or re.search(r"\(\s*distinct\b", text, re.IGNORECASE):
        raise declaration.wrong(
            f"{text} cannot be merged", "into",
            why="what the table holds and what a batch brings must add up to the result",
            hint=f'mode = "recompute" takes any aggregate; merge takes {", ".join([*_MERGED, "avg"])}',
        )  # fmt: skip
    return [_Part(column, text, function)]


def _calls(spark: SparkSession, text: str) -> list[tuple[str, int, int]]:
    """The aggregate calls in an expression, with where each begins and ends in its text."""
    parser = spark._jsparkSession.sessionState().sqlParser()
    registry = spark._jsparkSession.sessionState().functionRegistry()
    found: list[tuple[str, int, int]] = []

    def visit(node: Any) -> None:
        if node.getClass().getSimpleName() == "UnresolvedFunction":
            name = str(node.nameParts().last()).lower()
            name = _ALIASES.get(name, name)
            if name in _MERGED or name == "avg" or _is_aggregate(spark, registry, name):
                origin = node.origin()
                found.append((name, origin.startIndex().get(), origin.stopIndex().get() + 1))
                return
        children = node.children()
        for at in range(children.size()):
            visit(children.apply(at))

    visit(parser.parseExpression(text))
    return sorted(found, key=lambda call: call[1])


def _is_aggregate(spark: SparkSession, registry: Any, name: str) -> bool:
    jvm: Any = spark._jvm
    some = jvm.scala.Option.apply
    whole = jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name, some("builtin"), some("system"))
    known = registry.lookupFunction(whole)
    return bool(known.isDefined() and known.get().getGroup() == "agg_funcs")


def _partial(rows: DataFrame, declaration: Declaration, aggregate: Aggregate, plan: _Plan) -> DataFrame:
    grouped = _grouped(rows, declaration, aggregate)
    return _window_apart(grouped.agg(*[F.expr(part.text).alias(part.column) for part in plan.parts]), aggregate)


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


def _merge(path: str, rows: DataFrame, batch: Batch, aggregate: Aggregate, writer: str) -> None:
    plan = _plan(batch.spark, batch.declaration, aggregate)
    source = _partial(rows, batch.declaration, aggregate, plan)
    source = source.withColumns({name: F.expr(text) for name, text in plan.finals.items()})
    keys = _keys(aggregate)
    # What was declared comes first; the parts that only the next merge needs stand at the end.
    hidden = [name for name in source.columns if name.startswith("_")]
    source = source.select(*[F.col(f"`{name}`") for name in (*keys, *aggregate.values, *hidden)])
    on = " and ".join(f"t.`{key}` <=> s.`{key}`" for key in keys) or "true"
    merged = {part.column: part.merged for part in plan.parts}
    update = [f"t.`{column}` = {text}" for column, text in merged.items()]
    for name, text in plan.finals.items():
        for column, formula in merged.items():
            text = text.replace(f"`{column}`", f"({formula})")
        update.append(f"t.`{name}` = {text}")
    actions = f"when matched then update set {', '.join(update)} when not matched then insert *"
    _merge_into(path, source, f"on {on} {actions}", batch, writer)


def _merge_into(path: str, source: DataFrame, clauses: str, batch: Batch, writer: str) -> None:
    """One MERGE, remembered in the table's log under the batch's number."""
    spark = source.sparkSession
    _ensure_table(path, source.drop("_op"), spark)
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


def _ensure_table(path: str, like: DataFrame, spark: SparkSession) -> None:
    if not is_table(spark, path):
        spark.createDataFrame([], like.schema).write.format("delta").mode("append").save(path)


# -- recompute -------------------------------------------------------------------------------------------------------


def _recompute(path: str, rows: DataFrame, batch: Batch, aggregate: Aggregate, writer: str) -> None:
    declaration = batch.declaration
    base = next(sink for sink in declaration.sinks if sink.kind == "delta" and not sink.aggregate)
    # Counted and small: the keys of a batch, kept because MERGE looks at them twice.
    touched = shape(base, rows).select(*aggregate.by).distinct().persist()
    try:
        touched.count()
        all_rows = batch.spark.read.format("delta").load(declaration.resolve(base.target))
        on = [all_rows[key].eqNullSafe(touched[key]) for key in aggregate.by]
        made = computed(all_rows.join(touched, on, "left_semi"), declaration, aggregate)
        source = made.withColumn("_op", F.lit("insert")).unionByName(
            touched.withColumn("_op", F.lit("delete")), allowMissingColumns=True
        )
        same = " and ".join(f"t.`{key}` <=> s.`{key}`" for key in aggregate.by)
        columns = ", ".join(f"`{name}`" for name in made.columns)
        values = ", ".join(f"s.`{name}`" for name in made.columns)
        remove = f"when matched then delete when not matched and s._op = 'insert' then insert ({columns})"
        clauses = f"on s._op = 'delete' and {same} {remove} values ({values})"
        _merge_into(path, source, clauses, batch, writer)
    finally:
        touched.unpersist()


def computed(rows: DataFrame, declaration: Declaration, aggregate: Aggregate) -> DataFrame:
    """The aggregate of those rows: by a function, by window functions, or by groups."""
    if aggregate.step is not None:
        made: DataFrame = aggregate.step(rows)
        return made
    values = [F.expr(text).alias(name) for name, text in aggregate.values.items()]
    if any(re.search(r"\bover\s*\(", text, re.IGNORECASE) for text in aggregate.values.values()):
        return without_identity(rows).select("*", *values)
    return _window_apart(_grouped(rows, declaration, aggregate).agg(*values), aggregate)
