"""Records to rows with an outcome: what is written, dead, filtered or late, and by which rule.

`Classifier.classify` takes a batch as Kafka's source gives it and returns it with the declared columns and

    _topic _partition _offset _timestamp      which record it is
    _row                                      which of its rows
    _outcome                                  written, filtered, dead, late, failed
    _rule, _reason                            what decided that
    _warnings                                 rules with action warn that do not hold
    _key _value _headers _timestamp_type      the original, of dead and late records: the others need no room for it

Every record of the batch comes out, once unless `explode` (`generate.py`) or a Python function make more or less of it;
a record has one outcome all the same (`outcomes.py`). An expression that throws (a cast, a division) makes one dead
record, not a dead pipeline: it is evaluated inside Spark's `TryEval`, as a struct, because no struct (a failure) is not
the same as a struct with a null. That holds only if Spark does not pull common parts out of it, see `SETTINGS`.
"""

from __future__ import annotations

import functools
import logging
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StructType, TimestampNTZType, TimestampType

from headrace.pipeline.declare.declaration import Declaration, Rule
from headrace.pipeline.spark import internals
from headrace.pipeline.spark.decode import TOMBSTONE, Decoder, struct_of
from headrace.pipeline.spark.demands import Demands, quoted
from headrace.pipeline.spark.generate import EMPTY, Generator, generator

if TYPE_CHECKING:
    from headrace.pipeline.spark.joined import Joined
    from headrace.pipeline.spark.lookups import Lookups

T = TypeVar("T")

#: What the session must be set to for classification to be right.
SETTINGS = {
    "spark.sql.ansi.enabled": "true",
    # A field METERS and a column meters made from it are two things.
    "spark.sql.caseSensitive": "true",
    # A part that occurs twice would be computed outside of the TryEval around it, and throw there.
    "spark.sql.subexpressionElimination.enabled": "false",
}
IDENTITY = ("_topic", "_partition", "_offset", "_timestamp")
_ORIGINAL = ("_key", "_value", "_headers", "_timestamp_type")
RECORD = {
    "topic": "_topic", "partition": "_partition", "offset": "_offset", "timestamp": "_timestamp",
    "timestampType": "_timestamp_type", "key": "_key", "value": "_value", "headers": "_headers",
}  # fmt: skip
#: What was found wrong with a record so far, null if nothing was.
_PROBLEMS = ("_undecoded", "_unselected", "_unmatched", "_unfit")
RAW_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)


class Classifier:
    """The steps of one declaration, applied to batches."""

    def __init__(self, spark: SparkSession, declaration: Declaration, decoder: Decoder, lookups: Lookups) -> None:
        self.spark = spark
        self.declaration = declaration
        self.decoder = decoder
        self.lookups = lookups
        self.demands = Demands(declaration, self.tried)
        #: Python functions that may leave rows out or make more of them: all but those that only project.
        self.loose_steps: tuple[str, ...] = ()
        #: What becomes of its rows in a join with those of another topic.
        self.joined: Joined | None = None
        self._made: dict[str, Any] = {}

    def check(self) -> list[tuple[str, StructType]]:
        """The schema after each step, found without data; what is wrong is an error with its line."""
        empty = nothing(self.spark, struct_of(RAW_SCHEMA))
        with self._errors_at("decode"):
            record = self._record(empty)
            decoded = self.decoder.decode(record)
            fields = decoded.select("_fields.*")
        steps = [("decode", fields.schema)]
        selected = self._selected(decoded, careful=True)
        steps.append(("select", self._columns(selected).schema))
        joined = self.lookups.check(selected)
        if self.lookups:
            steps.append(("lookup", self._columns(joined).schema))
        declaration, before = self.declaration, self._scope(joined, *IDENTITY, *_ORIGINAL, "_undecoded")
        stepped = [
            ("decode", declaration.decode.step, record, decoded),
            ("select", declaration.select_step, decoded, selected),
            ("where", declaration.where_step, before, self._chosen(before)),
        ]
        self.loose_steps = tuple(
            name for name, step, given, made in stepped if step and not internals.only_projects(made, given)
        )
        for key, names in self._named_columns():
            for name in names:
                with self._errors_at(key):
                    self._columns(joined).select(f"`{name}`")
        self._check_event_time(steps[-1][1])
        for rule in self.declaration.rules:
            with self._errors_at("expect", rule.name):
                self._scope(joined, *IDENTITY).select(self.tried(rule.condition).cast("boolean"))
        if self.declaration.where:
            with self._errors_at("where"):
                self._scope(joined, *IDENTITY).where(self.declaration.where)
        return [*steps, *self.joined.check(steps[-1][1])] if self.joined else steps

    def check_demands(self) -> None:
        """What sinks demand of a row can be asked of one; what is wrong with a sink by itself was found before."""
        record = self._record(nothing(self.spark, struct_of(RAW_SCHEMA)))
        with self._errors_at("into"):
            self.demands.check(self.lookups.join(self._selected(self.decoder.decode(record))))
        if self.joined:
            self.joined.check_demands()

    def of_topic(self, topic: str) -> Classifier:
        """The classifier of the records of that topic."""
        other = self.joined.right if self.joined else self
        return other if topic in other.declaration.topics else self

    def _check_event_time(self, columns: StructType) -> None:
        name = self.declaration.event_time
        within = self.declaration.deduplicate.within if self.declaration.deduplicate else None
        # Windows take any of these; spans between two times are measured between timestamps only.
        measured = self.declaration.watermark or within
        times = (TimestampType,) if measured else (TimestampType, TimestampNTZType, DateType)
        if name and not isinstance(columns[name].dataType, times):
            raise self.declaration.wrong(
                f"event_time {name} is not a timestamp but a {columns[name].dataType.simpleString()}", "event_time",
                hint=f'{name} = "to_timestamp({name})" in select makes one',
            )  # fmt: skip

    @property
    def makes_many(self) -> bool:
        """Whether a record may become several rows."""
        return bool(self.loose_steps) or self.generator is not None

    @property
    def generator(self) -> Generator | None:
        """What multiplies rows, in `select`."""
        return self._once("generator", lambda: generator(self.spark, self.declaration))

    def classify(self, raw: DataFrame, late: Column | None = None) -> DataFrame:
        """Each record of the batch with its outcome; `late` tells of a good row whether it comes too late."""
        decoded = self.decoder.decode(self._record(raw))
        return self._with_outcome(self.lookups.join(self._selected(decoded)), late)

    # -- steps -------------------------------------------------------------------------------------------------------

    def _selected(self, decoded: DataFrame, *, careful: bool = False) -> DataFrame:
        """`decoded` with the declared columns in `_columns`, and `_unselected`: whether an expression threw."""
        declaration = self.declaration
        if declaration.select_step is not None:
            return self._by_function(decoded, declaration.select_step, "select")
        if not declaration.select:
            return decoded.withColumns({"_columns": F.col("_fields"), "_unselected": F.lit(None).cast("string")})
        if careful:
            try:
                return self._selected(decoded)
            except PySparkException:  # one by one, to find the line of the wrong one
                self._check_select(decoded)
        return self._layered(decoded, declaration.select)

    def _layered(self, decoded: DataFrame, select: Mapping[str, str]) -> DataFrame:
        frame = decoded
        made: dict[str, str] = {}
        for number, layer in enumerate(self._layers(select)):
            name = f"_layer{number}"
            if self.generator and self.generator.key in layer:
                frame = self._with_rows(frame, made, name, self.generator)
                made |= dict.fromkeys(self.generator.names, name)
            else:
                frame = self._with_layer(frame, made, name, layer)
                made |= dict.fromkeys(layer, name)

        def joined() -> dict[str, Column]:
            failed = F.coalesce(*[F.col(f"{layer}_failed") for layer in dict.fromkeys(made.values())])
            columns = F.struct(*[F.col(f"{column}.`{name}`").alias(name) for name, column in made.items()])
            return {"_columns": columns, "_unselected": failed}

        return frame.withColumns(self._once("layers", joined))

    def _layers(self, select: Mapping[str, str]) -> list[dict[str, str]]:
        """The columns in steps; what multiplies rows is a step of its own."""
        if self.generator is None or self.generator.key not in select:
            return layers(select)
        items = list(select.items())
        at = list(select).index(self.generator.key)
        parts = [layers(dict(items[:at])), [dict(items[at : at + 1])], layers(dict(items[at + 1 :]))]
        return [layer for part in parts for layer in part if layer]

    def _with_rows(self, frame: DataFrame, before: Mapping[str, str], name: str, made_by: Generator) -> DataFrame:
        """`frame` with a row for each element, and the struct of what they are."""
        tried = self._with_layer(frame, before, name, {made_by.key: made_by.argument})
        rows, made = made_by.rows(self.declaration, tried, f"{name}.`{made_by.key}`")
        whole = F.when(F.col(f"{name}_failed").isNull(), made)
        return rows.withColumn(name, whole).select(*[n for n in tried.columns if n != EMPTY], EMPTY)

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
            parts = ", ".join(f"{quoted(column)}, {text}" for column, text in layer.items())
            return self.tried(f"named_struct({parts})")

        def failed() -> Column:
            # Looked at one by one only where the whole has failed.
            tried = {column: self.tried(f"named_struct('x', {text})") for column, text in layer.items()}
            failing = [F.when(expression.isNull(), column) for column, expression in tried.items()]
            reason = F.concat(F.lit("the expression failed of "), F.concat_ws(", ", *failing))
            return F.when(F.col(name).isNull(), reason)

        scoped = frame.select(*self._once(f"scope of {name}", scope))
        computed = scoped.withColumn(name, self._once(name, made))
        marked = computed.withColumn(f"{name}_failed", self._once(f"{name} failed", failed))
        return marked.select(*columns, name, f"{name}_failed")

    def _check_select(self, decoded: DataFrame) -> None:
        items = list(self.declaration.select.items())
        for number, (name, _) in enumerate(items, 1):
            self._made.clear()
            with self._errors_at("select", name):
                self._layered(decoded, dict(items[:number]))

    def _by_function(self, decoded: DataFrame, step: Callable[[DataFrame], DataFrame], what: str) -> DataFrame:
        """A Python function in the place of a step: it sees the fields and the record's own columns."""
        carried = [name for name in decoded.columns if name.startswith("_") and name != "_fields"]
        made = self._step(decoded.select(*carried, "_fields.*"), step, what)
        columns = F.struct(*[F.col(f"`{name}`") for name in made.columns if not name.startswith("_")])
        no_problem = F.lit(None).cast("string").alias("_unselected")
        # Nothing else of what it made: beside `_columns`, the same name would stand for two things.
        return made.select(*carried, columns.alias("_columns"), columns.alias("_fields"), no_problem)

    def _step(self, given: DataFrame, step: Callable[[DataFrame], DataFrame], what: str) -> DataFrame:
        """What the function makes of the rows. One that may leave rows out gets only those that are good so far."""
        loose = what in self.loose_steps and not given.isStreaming  # of a stream, good rows are all that is wanted
        problems = [name for name in _PROBLEMS if name in given.columns]
        bad = functools.reduce(operator.or_, [F.col(name).isNotNull() for name in problems])
        made: DataFrame = step(given.where(~bad) if loose else given)
        lost = [name for name in given.columns if name.startswith("_") and name not in made.columns]
        if lost:
            raise self.declaration.wrong(
                f"the {what} function dropped {', '.join(lost)}", what,
                why="the columns that begin with an underscore say which record a row is",
                hint="add columns with withColumn, or select('*', …)",
            )  # fmt: skip
        if not loose:
            return made
        kept = [
            F.col(field.name) if field.name.startswith("_") else F.lit(None).cast(field.dataType).alias(field.name)
            for field in made.schema
        ]
        return made.union(given.where(bad).select(*kept))

    def _chosen(self, rows: DataFrame) -> DataFrame:
        """Those that the function in the place of `where` leaves."""
        step = self.declaration.where_step
        return rows if step is None else self._step(rows, step, "where")

    def _with_outcome(self, frame: DataFrame, late: Column | None) -> DataFrame:
        # One struct first, its parts afterwards: written as one column each, Spark would judge once per column.
        names = self._once("names", lambda: self._columns(frame).columns)
        fit = self.demands.check(frame)
        problems = self._once("problems", lambda: [name for name in _PROBLEMS if name in fit.columns])
        more = [*problems, *self.demands.counts, *([EMPTY] if self.generator else [])]
        judged = self._scope(fit, *IDENTITY, *_ORIGINAL, *more)
        verdict = self._once("verdict", lambda: self._verdict(None)) if late is None else self._verdict(late)

        def parts() -> list[Column | str]:
            dead = F.col("_verdict._outcome").isin("dead", "late")
            row = F.monotonically_increasing_id() if self.makes_many else F.lit(0).cast("long")
            return [
                *IDENTITY, row.alias("_row"),
                F.col("_verdict._outcome"), F.col("_verdict._rule"), F.col("_verdict._reason"), self._warnings(),
                *[F.when(dead, F.col(name)).alias(name) for name in _ORIGINAL],
                *self.demands.counts,
                *[F.col(f"`{name}`") for name in names],
            ]  # fmt: skip

        return self._chosen(judged).withColumn("_verdict", verdict).select(*self._once("parts", parts))

    def _verdict(self, late: Column | None) -> Column:
        """The first thing that is wrong decides."""

        def verdict(outcome: str, rule: object, reason: object) -> Column:
            return F.struct(
                F.lit(outcome).alias("_outcome"), _text(rule).alias("_rule"), _text(reason).alias("_reason")
            )

        nothing_new = (F.col("_undecoded") == TOMBSTONE) & F.lit(self.declaration.decode.format == "debezium")
        found = F.when(nothing_new, verdict("filtered", TOMBSTONE, None))
        found = found.when(F.col("_undecoded").isNotNull(), verdict("dead", "decode", F.col("_undecoded")))
        found = found.when(F.col("_unselected").isNotNull(), verdict("dead", "select", F.col("_unselected")))
        if self.generator:
            found = found.when(F.col(EMPTY), verdict("filtered", self.generator.text, None))
        unmatched, where = F.col("_unmatched"), self.declaration.where
        # What is filtered need not have a match, unless the filter goes by what was looked up.
        lookups_first = where is None or any(mentions(where, name) for name in self.lookups.names)
        is_bad = unmatched.isNotNull() & ~self._is_delete()
        without_match = is_bad, verdict("dead", unmatched["_rule"], unmatched["_reason"])
        if self.lookups and lookups_first:
            found = found.when(*without_match)
        if where:
            wanted = self.tried(f"named_struct('x', {where})")
            found = found.when(wanted.isNull(), verdict("dead", "where", f"the expression failed: {where}"))
            found = found.when(~F.coalesce(wanted["x"], F.lit(False)), verdict("filtered", "where", None))
        if self.lookups and not lookups_first:
            found = found.when(*without_match)
        for rule in self.declaration.rules:
            if rule.action != "warn":
                outcome = {"dead": "dead", "drop": "filtered", "fail": "failed"}[rule.action]
                found = found.when(self._violated(rule), verdict(outcome, rule.name, f"not so: {rule.condition}"))
        unfit = F.col("_unfit")
        found = found.when(unfit.isNotNull(), verdict("dead", unfit["_rule"], unfit["_reason"]))
        if late is not None:
            found = found.when(late, verdict("late", "watermark", f"later than {self.declaration.watermark}"))
        return found.otherwise(verdict("written", None, None))

    def _warnings(self) -> Column:
        names = [F.when(self._violated(rule), rule.name) for rule in self.declaration.rules if rule.action == "warn"]
        if not names:
            return F.lit(None).cast("array<string>").alias("_warnings")
        return F.when(F.col("_verdict._outcome") == "written", F.array_compact(F.array(*names))).alias("_warnings")

    def _violated(self, rule: Rule) -> Column:
        """True unless the rule is true: null is not true, and neither is an error. A delete violates none."""
        return ~(self._holds(rule.condition) | self._is_delete())

    def _is_delete(self) -> Column:
        """Whether the row deletes another one: its columns beside the key may be null, and nobody will read them."""
        ways = [sink.changes.delete_when for sink in self.declaration.sinks if sink.changes]
        deletes = [self._holds(way) for way in dict.fromkeys(ways) if way]
        return functools.reduce(operator.or_, deletes, F.lit(False))

    def _holds(self, condition: str) -> Column:
        """True or false, never null: false where the condition throws."""
        return F.coalesce(self.tried(condition).cast("boolean"), F.lit(False))

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
        return raw.select(*self._once("record", lambda: [F.col(n).alias(ours) for n, ours in RECORD.items()]))

    def _once(self, what: str, make: Callable[[], T]) -> T:
        """What is the same for every batch is made for the first: each part of an expression is a call to the JVM."""
        if what not in self._made:
            self._made[what] = make()
        made: T = self._made[what]
        return made

    def tried(self, text: str) -> Column:
        """The SQL expression, null where it throws."""
        return internals.try_eval(self.spark, text)

    def _named_columns(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        declaration = self.declaration
        if declaration.event_time:
            yield "event_time", (declaration.event_time,)
        if declaration.deduplicate:
            yield "deduplicate", declaration.deduplicate.by

    def _errors_at(self, *path: str) -> AbstractContextManager[None]:
        return errors_at(self.declaration, *path)


@contextmanager
def errors_at(declaration: Declaration, *path: str | int, hint: str | None = None) -> Iterator[None]:
    """What Spark says about a mistake, in a line and with its place."""
    try:
        yield
    except PySparkException as error:
        raise declaration.wrong(message_of(error), *path, hint=hint) from None


def nothing(spark: SparkSession, schema: StructType) -> DataFrame:
    """No rows of that schema. `createDataFrame` would do, by way of an RDD: that takes half a second the first time."""
    return spark.range(0).select(F.lit(None).cast(schema).alias("none")).select("none.*")


def message_of(error: Exception) -> str:
    """Spark's message without its class, its plan and its stack."""
    text = _java_cause(str(error)).split("== SQL")[0].split("\nJVM stacktrace")[0].split(";\n'")[0]
    text = re.sub(r"^(\[\w+\] )?Query .* terminated with exception: ", "", text.split("=== Streaming Query ===")[0])
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


def layers(select: Mapping[str, str]) -> list[dict[str, str]]:
    """The columns in steps: in an expression, a name means the column above it if there is one, else the field.

    So what an expression may name of the columns above must be there before it is computed.
    """
    found: list[dict[str, str]] = [{}]
    for name, text in select.items():
        if any(mentions(text, above) for above, made in found[-1].items() if made.strip("` ") != above):
            found.append({})
        found[-1][name] = text
    return found


def mentions(text: str, name: str) -> bool:
    """Whether the expression may name the column. A word in a text that it quotes counts too, and costs a step."""
    return name in re.findall(r"\w+", text) if re.fullmatch(r"\w+", name) else name.replace("`", "``") in text


def _text(given: object) -> Column:
    return given.cast("string") if isinstance(given, Column) else F.lit(given).cast("string")
