"""Records to rows with an outcome: what is written, dead, filtered or late, and by which rule.

`Flow.sort_out` takes a batch as Kafka's source gives it and returns it with the declared columns and

    _topic _partition _offset _timestamp      which record it is
    _outcome                                  written, filtered, dead, late, failed
    _rule, _reason                            what decided that
    _warnings                                 rules with action warn that do not hold
    _key _value _headers _timestamp_type      the original, of dead and late records: the others need no room for it

Every record of the batch comes out exactly once. An expression that throws (a cast, a division) makes one dead record,
not a dead pipeline: it is evaluated inside Spark's `TryEval`, as a struct, so that a failure (no struct) can be told
from a null (a struct with a null). That holds only if Spark does not pull common parts out of it, see `SETTINGS`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.errors import ConfigError
from headrace.pipeline.declaration import Declaration, Rule
from headrace.pipeline.decode import Decoder

T = TypeVar("T")

#: What the session must be set to for a flow to be right.
SETTINGS = {
    "spark.sql.ansi.enabled": "true",
    # A field METERS and a column meters made from it are two things.
    "spark.sql.caseSensitive": "true",
    # A part that occurs twice would be computed outside of the TryEval around it, and throw there.
    "spark.sql.subexpressionElimination.enabled": "false",
}
IDENTITY = ("_topic", "_partition", "_offset", "_timestamp")
_ORIGINAL = ("_key", "_value", "_headers", "_timestamp_type")
_RECORD = {
    "topic": "_topic", "partition": "_partition", "offset": "_offset", "timestamp": "_timestamp",
    "timestampType": "_timestamp_type", "key": "_key", "value": "_value", "headers": "_headers",
}  # fmt: skip
_VERDICT = ("_outcome", "_rule", "_reason", "_warnings")
RAW_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)


class Flow:
    """The steps of one declaration, applied to batches."""

    def __init__(self, spark: SparkSession, declaration: Declaration, decoder: Decoder) -> None:
        self.spark = spark
        self.declaration = declaration
        self.decoder = decoder
        self._made: dict[str, Any] = {}

    def check(self) -> list[tuple[str, Any]]:
        """The schema after each step, found without data; what is wrong is told with its line."""
        empty = nothing(self.spark, StructType.fromDDL(RAW_SCHEMA))
        with self._told("decode"):
            decoded = self.decoder.decode(self._record(empty))
            fields = decoded.select("_fields.*")
        steps = [("decode", fields.schema)]
        selected = self._selected(decoded, careful=True)
        steps.append(("select", self._columns(selected).schema))
        for rule in self.declaration.rules:
            with self._told("expect", rule.name):
                self._scope(selected, *IDENTITY).select(self._tried(rule.condition).cast("boolean"))
        if self.declaration.where:
            with self._told("where"):
                self._scope(selected, *IDENTITY).where(self.declaration.where)
        for key, names in self._named_columns():
            for name in names:
                with self._told(key):
                    self._columns(selected).select(f"`{name}`")
        return steps

    def sort_out(self, raw: DataFrame, late: Column | None = None) -> DataFrame:
        """Each record of the batch with its outcome; `late` tells of a good row whether it comes too late."""
        decoded = self.decoder.decode(self._record(raw))
        return self._judged(self._selected(decoded), late)

    # -- steps -------------------------------------------------------------------------------------------------------

    def _selected(self, decoded: DataFrame, *, careful: bool = False) -> DataFrame:
        """`decoded` with the declared columns in `_columns`, and `_unselected`: whether an expression threw."""
        declaration = self.declaration
        if declaration.select_step is not None:
            return self._stepped(decoded, declaration.select_step, "select")
        if not declaration.select:
            return decoded.withColumns({"_columns": F.col("_fields"), "_unselected": F.lit(None).cast("string")})
        if careful:
            try:
                return self._selected(decoded)
            except PySparkException:  # one by one, so that the line of the wrong one can be told
                self._check_select(decoded)
        frame = decoded
        made: dict[str, str] = {}
        for number, layer in enumerate(_layers(declaration.select, self._fields(decoded))):
            frame = self._with_layer(frame, made, f"_layer{number}", layer)
            made |= dict.fromkeys(layer, f"_layer{number}")

        def joined() -> dict[str, Column]:
            failed = F.coalesce(*[F.col(f"{layer}_failed") for layer in dict.fromkeys(made.values())])
            columns = F.struct(*[F.col(f"{column}.`{name}`").alias(name) for name, column in made.items()])
            return {"_columns": columns, "_unselected": failed}

        return frame.withColumns(self._once("layers", joined))

    def _with_layer(
        self, frame: DataFrame, before: Mapping[str, str], name: str, layer: Mapping[str, str]
    ) -> DataFrame:
        """`frame` with a struct of the layer's columns, computed where the fields and what came before can be named."""
        columns = self._once(f"before {name}", lambda: frame.columns)

        def scope() -> list[Column | str]:
            kept = [F.col(f"_fields.`{field}`") for field in self._fields(frame) if field not in before]
            earlier = [F.col(f"{column}.`{known}`").alias(known) for known, column in before.items()]
            return [*columns, *kept, *earlier]

        def made() -> Column:
            parts = ", ".join(f"{_quoted(column)}, {text}" for column, text in layer.items())
            return self._tried(f"named_struct({parts})")

        def failed() -> Column:
            # Looked at one by one only where the whole has failed.
            tried = {column: self._tried(f"named_struct('x', {text})") for column, text in layer.items()}
            guilty = [F.when(expression.isNull(), column) for column, expression in tried.items()]
            reason = F.concat(F.lit("the expression failed of "), F.concat_ws(", ", *guilty))
            return F.when(F.col(name).isNull(), reason)

        scoped = frame.select(*self._once(f"scope of {name}", scope))
        computed = scoped.withColumn(name, self._once(name, made))
        told = computed.withColumn(f"{name}_failed", self._once(f"{name} failed", failed))
        return told.select(*columns, name, f"{name}_failed")

    def _check_select(self, decoded: DataFrame) -> None:
        frame = decoded.select("*", "_fields.*")
        for name, text in self.declaration.select.items():
            with self._told("select", name):
                frame.select(self._tried(text).alias(name))
                frame = frame.withColumn(name, self._tried(text)) if name not in frame.columns else frame

    def _stepped(self, decoded: DataFrame, step: Any, what: str) -> DataFrame:
        """A Python function in the place of a step: it sees the fields and the record's own columns."""
        carried = [name for name in decoded.columns if name.startswith("_") and name != "_fields"]
        made = step(decoded.select(*carried, "_fields.*"))
        lost = [name for name in carried if name not in made.columns]
        if lost:
            raise self.declaration.wrong(
                f"the {what} function dropped {', '.join(lost)}", what,
                why="the columns that begin with an underscore say which record a row is",
                hint="add columns with withColumn, or select('*', …)",
            )  # fmt: skip
        columns = F.struct(*[F.col(f"`{name}`") for name in made.columns if not name.startswith("_")])
        return made.withColumns({"_columns": columns, "_fields": columns, "_unselected": F.lit(None).cast("string")})

    def _judged(self, frame: DataFrame, late: Column | None) -> DataFrame:
        # One struct first, its parts afterwards: written as one column each, Spark would judge once per column.
        names = self._once("names", lambda: self._columns(frame).columns)
        judged = self._scope(frame, *IDENTITY, *_ORIGINAL, "_undecoded", "_unselected")
        if self.declaration.where_step is not None:
            judged = self.declaration.where_step(judged)
        verdict = self._once("verdict", lambda: self._verdict(None)) if late is None else self._verdict(late)

        def parts() -> list[Column | str]:
            dead = F.col("_verdict._outcome").isin("dead", "late")
            return [
                *IDENTITY,
                F.col("_verdict._outcome"), F.col("_verdict._rule"), F.col("_verdict._reason"), self._warnings(),
                *[F.when(dead, F.col(name)).alias(name) for name in _ORIGINAL],
                *[F.col(f"`{name}`") for name in names],
            ]  # fmt: skip

        return judged.withColumn("_verdict", verdict).select(*self._once("parts", parts))

    def _verdict(self, late: Column | None) -> Column:
        """The first thing that is wrong decides."""

        def verdict(outcome: str, rule: Any, reason: Any) -> Column:
            return F.struct(
                F.lit(outcome).alias("_outcome"), _text(rule).alias("_rule"), _text(reason).alias("_reason")
            )

        found = F.when(F.col("_undecoded").isNotNull(), verdict("dead", "decode", F.col("_undecoded")))
        found = found.when(F.col("_unselected").isNotNull(), verdict("dead", "select", F.col("_unselected")))
        if self.declaration.where:
            wanted = self._tried(self.declaration.where)
            found = found.when(wanted.isNull() | ~wanted, verdict("filtered", "where", None))
        for rule in self.declaration.rules:
            if rule.action != "warn":
                outcome = {"dead": "dead", "drop": "filtered", "fail": "failed"}[rule.action]
                found = found.when(self._broken(rule), verdict(outcome, rule.name, f"not so: {rule.condition}"))
        if late is not None:
            found = found.when(late, verdict("late", "watermark", f"later than {self.declaration.watermark}"))
        return found.otherwise(verdict("written", None, None))

    def _warnings(self) -> Column:
        names = [F.when(self._broken(rule), rule.name) for rule in self.declaration.rules if rule.action == "warn"]
        if not names:
            return F.lit(None).cast("array<string>").alias("_warnings")
        return F.when(F.col("_verdict._outcome") == "written", F.array_compact(F.array(*names))).alias("_warnings")

    def _broken(self, rule: Rule) -> Column:
        """True unless the rule is true: null is not true, and neither is an error."""
        return ~F.coalesce(self._tried(rule.condition).cast("boolean"), F.lit(False))

    # -- small things ------------------------------------------------------------------------------------------------

    def _columns(self, frame: DataFrame, *more: str) -> DataFrame:
        return frame.select(*more, "_columns.*")

    def _scope(self, frame: DataFrame, *more: str) -> DataFrame:
        """The columns, and the fields whose names are not taken by them: both can be named in a rule."""

        def fields() -> list[Column]:
            names = self._columns(frame).columns
            return [F.col(f"_fields.`{name}`") for name in frame.select("_fields.*").columns if name not in names]

        return frame.select(*more, *self._once("fields beside columns", fields), "_columns.*")

    def _fields(self, frame: DataFrame) -> list[str]:
        """The names of what was decoded."""
        return self._once("fields", lambda: frame.select("_fields.*").columns)

    def _record(self, raw: DataFrame) -> DataFrame:
        """Kafka's columns by our names: they stay beside the fields, and fields may be named topic or key."""
        return raw.select(*self._once("record", lambda: [F.col(n).alias(ours) for n, ours in _RECORD.items()]))

    def _once(self, what: str, make: Callable[[], T]) -> T:
        """What is the same for every batch is made for the first: each part of an expression is a call to the JVM."""
        if what not in self._made:
            self._made[what] = make()
        made: T = self._made[what]
        return made

    def _tried(self, text: str) -> Column:
        """The SQL expression, null where it throws."""
        jvm: Any = self.spark._jvm
        bridge = jvm.org.apache.spark.sql.classic.ExpressionUtils
        expression = bridge.expression(F.expr(text)._jc)
        return Column(bridge.column(jvm.org.apache.spark.sql.catalyst.expressions.TryEval(expression)))

    def _named_columns(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        declaration = self.declaration
        if declaration.event_time:
            yield "event_time", (declaration.event_time,)
        if declaration.deduplicate:
            yield "deduplicate", declaration.deduplicate.by

    @contextmanager
    def _told(self, *path: str) -> Iterator[None]:
        """What Spark says about a mistake, in a line and with its place."""
        try:
            yield
        except ConfigError:
            raise
        except PySparkException as error:
            raise self.declaration.wrong(in_words(error), *path) from None


def nothing(spark: SparkSession, schema: StructType) -> DataFrame:
    """No rows of that schema. `createDataFrame` would do, by way of an RDD: that takes half a second the first time."""
    return spark.range(0).select(F.lit(None).cast(schema).alias("none")).select("none.*")


def in_words(error: Exception) -> str:
    """Spark's message without its class, its plan and its stack."""
    text = _java_cause(str(error)).split("== SQL")[0].split("\nJVM stacktrace")[0].split(";\n'")[0]
    text = re.sub(r"SQLSTATE: \w+", "", text)
    text = re.sub(r"^\[[\w.]+\]\s*", "", text)
    text = re.sub(r";\s*line \d+ pos \d+.*", "", text, flags=re.DOTALL)
    return " ".join(text.split()).rstrip(" ;.")


def _java_cause(text: str) -> str:
    """Of an exception in a call to Java, what the first cause of it says."""
    called = re.match(r"An error occurred while calling \S+\n: ", text)
    if called is None:
        return text
    thrown, *lines = text[called.end() :].splitlines()
    cause = next((line for line in reversed(lines) if line.startswith("Caused by: ")), thrown)
    name, _, said = cause.removeprefix("Caused by: ").partition(": ")
    return said or name


# PySpark writes what it raises to standard error as well, as JSON; whoever catches it has the words.
for _name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
    PySparkLogger.getLogger(_name).setLevel(logging.CRITICAL + 1)


def _layers(select: Mapping[str, str], fields: list[str]) -> list[dict[str, str]]:
    """An expression may name columns selected above it: those must be there before it is computed."""
    layers: list[dict[str, str]] = [{}]
    for name, text in select.items():
        words = set(re.findall(r"\w+", text))
        if any(earlier in words and earlier not in fields for earlier in layers[-1]):
            layers.append({})
        layers[-1][name] = text
    return layers


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _text(given: Any) -> Column:
    return given.cast("string") if isinstance(given, Column) else F.lit(given).cast("string")
