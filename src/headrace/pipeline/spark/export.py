"""A way out: a pipeline as a plain PySpark job that needs no headrace.

The job is one file: what was declared as constants and calls, and the functions that they need (`exported.py`), copied.
What cannot be expressed without headrace is refused, and named. The declaration has been checked before.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from pprint import pformat
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigError
from headrace.pipeline.declare.changes import is_secret
from headrace.pipeline.declare.declaration import Aggregate, DeadLetters, Declaration, Sink
from headrace.pipeline.spark import aggregate, exported, internals, source
from headrace.pipeline.spark.classify import SETTINGS, layers
from headrace.pipeline.spark.decode import struct_of
from headrace.pipeline.spark.generate import generator
from headrace.runtime import jar_lock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SINKS = ("delta", "parquet", "topic", "console")
#: What of a declaration is carried over, or decided below; all else must be as it is by default.
_KNOWN: Mapping[type, set[str]] = {
    Declaration: {
        "name", "topics", "sinks", "decode", "start", "select", "where", "rules", "event_time", "dead_letters",
        "trigger", "max_records_per_batch", "spark", "kafka", "checkpoint", "file", "watermark",
    },
    Sink: {"kind", "target", "select", "where", "aggregate", "partition_by", "key"},
    Aggregate: {"by", "values", "window", "mode"},
}  # fmt: skip
_KEYS = {"select_step": "select", "where_step": "where", "lookups": "lookup"}
_PACKAGES = ("delta-spark", "spark-sql-kafka")
_LOST = """No ledger: nothing counts what became of each record, and nothing checks that the counts agree.
No redrive: dead letters are stored, but sending them again is up to you.
Exactly once holds for Delta tables only. A topic gets a batch again if the job dies in the middle of it.
The job does not wait for a Kafka that is away, and does not say which offsets were lost: it stops with Spark's error.
An aggregate whose input fails (a cast inside of sum) stops the job; headrace makes the record a dead letter.
A number too large for a JSON timestamp field is not noticed. Rules with the action warn are not counted.
Its checkpoint is its own: it starts from the beginning, so give it a folder without tables that headrace wrote."""


def export(spark: SparkSession, declaration: Declaration, dead_letters: DeadLetters, folder: Path) -> Path:
    """The job is in the folder, as NAME.py. Returns the file."""
    _require_expressible(spark, declaration)
    job = _Job(spark, declaration, dead_letters)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{re.sub(r'[^A-Za-z0-9_]', '_', declaration.name)}.py"
    path.write_text(job.text(path.name), encoding="utf-8")
    return path


# -- what is refused ---------------------------------------------------------------------------------------------------


def _require_expressible(spark: SparkSession, declaration: Declaration) -> None:
    for path, what in _refused(spark, declaration):
        raise _no(declaration, what, *path)


def _no(declaration: Declaration, what: str, *path: str | int) -> ConfigError:
    return declaration.wrong(
        f"a plain PySpark job cannot do the same: {what}", *path, hint="leave it out, or run the pipeline with headrace"
    )


def _refused(spark: SparkSession, declaration: Declaration) -> Iterator[tuple[tuple[str | int, ...], str]]:
    for name in _unknown(declaration):
        key = _KEYS.get(name, name)
        yield (key,), f"{key} {'by a Python function' if name.endswith('_step') else 'is done by headrace'}"
    if declaration.decode.step is not None or declaration.decode.format not in {"json", "csv", "text"}:
        given = declaration.decode
        what = "by a Python function" if given.step else f"{given.format}{' of a registry' if given.is_framed else ''}"
        yield ("decode",), f"decode {what}"
    if declaration.trigger.kind == "realtime":
        yield ("trigger",), "realtime with dead letters"
    made_by = generator(spark, declaration)
    if made_by is not None:
        yield ("select", made_by.key), f"{made_by.function} keeps a record together, with one outcome for all its rows"
    for at, sink in enumerate(declaration.sinks):
        for path, what in _refused_of(sink):
            yield ("into", at, *path), what


def _refused_of(sink: Sink) -> Iterator[tuple[tuple[str, ...], str]]:
    if sink.kind not in _SINKS:
        yield (sink.kind,), f"a sink of kind {sink.kind}"
    for name in _unknown(sink):
        yield (name,), f"{name} of a {sink.kind} is headrace's own"
    if sink.aggregate is not None:
        for name in _unknown(sink.aggregate):
            yield ("aggregate", name), "an aggregate by a Python function" if name == "step" else name
        if sink.aggregate.is_streaming:
            yield ("aggregate", "mode"), f"mode {sink.mode} with late rows as dead letters"


def _unknown(given: Any) -> Iterator[str]:
    """The parts that are not as by default, and that this module does not know."""
    for part in fields(given):
        default = part.default_factory() if part.default_factory is not MISSING else part.default
        if part.name not in _KNOWN[type(given)] and getattr(given, part.name) != default:
            yield part.name


# -- the text ----------------------------------------------------------------------------------------------------------


class _Job:
    """Writes one job. `use` notes which functions it needs."""

    def __init__(self, spark: SparkSession, declaration: Declaration, dead_letters: DeadLetters) -> None:
        self.spark = spark
        self.declaration = declaration
        self.dead_letters = dead_letters
        self._used: dict[str, Callable[..., Any]] = {}
        #: The environment variables that the job reads.
        self._secrets: list[str] = []

    def text(self, file: str) -> str:
        classified, written, constants = self._classified(), self._write_batch(), self._constants()
        head = f"{self._head(file)}\n\n{constants}"
        return "\n\n\n".join([head, *self._functions(), classified, written, self._main()]) + "\n"

    def use(self, function: Callable[..., Any], *arguments: str) -> str:
        """A call of a function of `exported`, whose source the job then has."""
        self._used[function.__name__] = function
        return f"{function.__name__}({', '.join(arguments)})"

    def _functions(self) -> list[str]:
        """The sources, each behind those that it calls."""
        found: dict[str, str] = {}

        def add(function: Callable[..., Any]) -> None:
            text = inspect.getsource(function).rstrip()
            for name in re.findall(r"\b(\w+)\(", text):
                other = getattr(exported, name, None) or getattr(internals, name, None)
                if inspect.isfunction(other) and name != function.__name__ and name not in found and _is_ours(other):
                    add(other)
            found.setdefault(function.__name__, text)

        for function in self._used.values():
            add(function)
        return list(found.values())

    def _head(self, file: str) -> str:
        declaration = self.declaration
        packages = ",".join(
            artifact.coordinates for artifact in jar_lock()["spark"] if artifact.name.startswith(_PACKAGES)
        )
        lost = "\n".join(f"- {line}" for line in _LOST.splitlines())
        secrets = f"Secrets:       not in this file; set {', '.join(self._secrets)}\n" if self._secrets else ""
        imported = "import os\n" if self._secrets else ""
        return f'''r"""{declaration.name}: a plain PySpark job, exported by headrace.

    pip install pyspark=={_pyspark_version()}
    spark-submit --packages {packages} \\
        {file} --bootstrap HOST:PORT --folder .{" [--once]" if declaration.trigger.kind == "every" else ""}

Reads:         {", ".join(declaration.topics)}
Writes:        {", ".join(sink.name for sink in declaration.sinks)}
Dead letters:  {self.dead_letters.kind} {self._letters_target}
{secrets}Relative paths begin at --folder; the checkpoint is in it, too.

What headrace does and this job does not:
{lost}
"""

from __future__ import annotations

import argparse
import functools
import operator
{imported}from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F'''

    @property
    def _letters_target(self) -> str:
        declared = self.declaration.dead_letters
        return declared.target if declared else f"{self.declaration.name}.dead_letters"

    def _constants(self) -> str:
        declaration = self.declaration
        settings = {
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            **SETTINGS, **{name: value for name, value in declaration.spark.items() if "headrace" not in name},
        }  # fmt: skip
        read = {
            "subscribe": ",".join(declaration.topics), **source.start_options(declaration),
            "maxOffsetsPerTrigger": str(declaration.max_records_per_batch), "includeHeaders": "true",
            "failOnDataLoss": "true", "kafka.isolation.level": "read_committed",
            **{f"kafka.{name}": value for name, value in declaration.kafka.items()},
        }  # fmt: skip
        rules = [
            (rule.name, rule.condition, {"dead": "dead", "drop": "filtered", "fail": "failed"}[rule.action])
            for rule in declaration.rules
            if rule.action != "warn"
        ]
        constants = {
            "NAME": declaration.name, "SETTINGS": self._without_secrets(settings),
            "SOURCE": self._without_secrets(read), "COLUMNS": self._columns, "RULES": rules,
        }  # fmt: skip
        return "\n".join(f"{name} = {_literal(value)}" for name, value in constants.items())

    def _without_secrets(self, given: Mapping[str, str]) -> dict[str, str]:
        """Whoever can read the job cannot read its passwords."""
        variables = {name: _Variable(re.sub(r"\W", "_", name).upper()) for name in given if is_secret(name)}
        self._secrets += variables.values()
        return {**given, **variables}

    @property
    def _columns(self) -> list[str]:
        """The names of the declared columns."""
        declaration = self.declaration
        if declaration.select:
            return list(declaration.select)
        return struct_of(str(declaration.decode.schema)).names if declaration.decode.format != "text" else ["value"]

    def _classified(self) -> str:
        declaration, decode = self.declaration, self.declaration.decode
        raw = self.use(exported.records, "raw")
        if decode.format == "text":
            lines = [f"rows = {self.use(exported.decoded_text, raw)}"]
        else:
            reader = exported.decoded_json if decode.format == "json" else exported.decoded_csv
            given = (_literal(decode.schema), _literal(dict(decode.options)))
            lines = [f"rows = {self.use(reader, raw, *given)}"]
        lines += [
            f"rows = {self.use(exported.step, 'rows', _literal('select'), _literal(layer))}"
            for layer in layers(declaration.select)
            if layer
        ]
        lines.append(f"rows = {self.use(exported.judged, 'rows', _literal(declaration.where), 'RULES')}")
        for sink in declaration.sinks:
            if sink.where or sink.select:
                lines.append(f"rows = {self.use(exported.fits, 'rows', *self._shape(sink))}")
            if sink.aggregate and sink.aggregate.window:
                lines.append(f"rows = {self.use(exported.has_time, 'rows', _literal(declaration.event_time))}")
        lines.append(
            'record = [f"_{name}" for name in ("topic", "partition", "offset", "timestamp", "key", "value", "headers")]'
        )
        lines.append('return rows.select("_problem", *record, *[F.col(f"`{name}`") for name in COLUMNS])')
        doc = '"""Records as rows with the declared columns; those that cannot be used have a `_problem`."""'
        return _function("classified(raw: DataFrame) -> DataFrame", [doc, *lines])

    def _shape(self, sink: Sink) -> tuple[str, str]:
        """The sink's own where and select."""
        return _literal(sink.where), _literal([layer for layer in layers(sink.select) if layer])

    def _chosen(self, sink: Sink, rows: str) -> str:
        names = _literal(list(sink.select)) if sink.select else "COLUMNS"
        return self.use(exported.chosen, rows, *self._shape(sink), names)

    def _write_batch(self) -> str:
        lines = []
        if any(rule.action == "fail" for rule in self.declaration.rules):
            lines.append(self.use(exported.fail_on_rules, "rows"))
        lines.append('good = rows.where("_problem is null")')
        for sink in self.declaration.sinks:
            lines += self._written(sink)
        lines.append("dead = rows.where(\"_problem.outcome = 'dead'\")")
        if self.dead_letters.kind == "topic":
            lines.append(self.use(exported.letters_to_topic, "dead", _literal(self.dead_letters.target), "kafka"))
        else:
            place = _place(self._letters_target)
            lines.append(self.use(exported.letters_to_table, "dead", place, "number"))
        body = [
            '"""What becomes of a batch. Spark repeats a batch that was interrupted, with the same number."""',
            "rows = classified(batch).persist()", "try:", *map(_indented, lines),
            "finally:", "    rows.unpersist()",
        ]  # fmt: skip
        arguments = "batch: DataFrame, number: int, folder: str, kafka: Mapping[str, str]"
        return _function(f"write_batch({arguments}) -> None", body)

    def _written(self, sink: Sink) -> list[str]:
        if sink.aggregate is not None:
            return self._aggregated(sink, sink.aggregate)
        rows = self._chosen(sink, "good")
        partitions = _literal(list(sink.partition_by))
        if sink.kind == "delta":
            return [self.use(exported.append_delta, rows, _place(sink.target), "number", partitions)]
        if sink.kind == "parquet":
            return [self.use(exported.write_parquet, rows, _place(sink.target), "number", partitions)]
        if sink.kind == "topic":
            return [self.use(exported.write_topic, rows, _literal(sink.target), _literal(sink.key), "kafka")]
        return [f"{rows}.show(20, truncate=False)"]

    def _aggregated(self, sink: Sink, given: Aggregate) -> list[str]:
        if given.mode == "recompute":
            return self._recomputed(sink, given)
        plan = aggregate.merge_plan(self.spark, self.declaration, sink)
        parts = {part.column: part.text for part in plan.parts}
        made = [f"rows_of = {self._chosen(sink, 'good')}", *self._grouped(given, parts)]
        if plan.finals:
            made.append(f"made = made.withColumns({_expressions(plan.finals)})")
        keys = [*given.by, *(("window_start", "window_end") if given.window else ())]
        names = [*keys, *given.values, *[part for part in parts if part.startswith("_")]]
        made.append(f"made = made.select({', '.join(map(_literal, names))})")
        update = ", ".join(f"t.`{column}` = {text}" for column, text in plan.merged.items())
        same = " and ".join(f"t.`{key}` <=> s.`{key}`" for key in keys) or "true"
        clauses = f"on {same} when matched then update set {update} when not matched then insert *"
        partitions = _literal(list(sink.partition_by))
        call = self.use(exported.merge_delta, "made", _place(sink.target), "number", _literal(clauses), partitions)
        return [*made, call]

    def _grouped(self, given: Aggregate, values: Mapping[str, str]) -> list[str]:
        keys = [f'F.col("`{name}`")' for name in given.by]
        if given.window is not None:
            keys.append(self._window(given))
        made = f"made = rows_of.groupBy({', '.join(keys)}).agg({_aliased(values)}\n)"
        if given.window is None:
            return [made]
        return [made, f"made = {self.use(exported.window_apart, 'made', _literal(list(given.by)))}"]

    def _window(self, given: Aggregate) -> str:
        window = given.window
        assert window is not None
        at = f'F.col("`{self.declaration.event_time}`")'
        if window.session:
            return f'F.session_window({at}, {_literal(window.size)}).alias("window")'
        return f'F.window({at}, {_literal(window.size)}, {_literal(window.slide)}).alias("window")'

    def _recomputed(self, sink: Sink, given: Aggregate) -> list[str]:
        base = self.declaration.base
        by = ", ".join(f'F.col("`{name}`")' for name in given.by)
        names = _literal(list(sink.select) or list(base.select)) if sink.select or base.select else "COLUMNS"
        kept = self._chosen(base, "good") if base.where or base.select else "good"
        rows = self.use(exported.chosen, kept, *self._shape(sink), names)
        table = f'batch.sparkSession.read.format("delta").load({_place(base.target)})'
        lines = [
            f"touched = {rows}.select({by}).distinct().persist()",
            f"rows_of = {self.use(exported.chosen, table, *self._shape(sink), names)}",
            "same = [rows_of[key].eqNullSafe(touched[key]) for key in touched.columns]",
            'rows_of = rows_of.join(touched, same, "left_semi")',
        ]
        if any(re.search(r"\bover\s*\(", text, re.IGNORECASE) for text in given.values.values()):
            lines.append(f'made = rows_of.select(\n    "*",{_aliased(given.values)}\n)')
        else:
            lines += self._grouped(given, given.values)
        partitions = _literal(list(sink.partition_by))
        lines.append(self.use(exported.recompute_delta, "touched", "made", _place(sink.target), "number", partitions))
        return [*lines, "touched.unpersist()"]

    def _main(self) -> str:
        trigger, now = self.declaration.trigger, '{"availableNow": True}'
        once = argument = ""
        if trigger.kind == "every":
            argument = (
                '\n    parser.add_argument("--once", action="store_true", help="read what is there now, then stop")'
            )
            once = f' if given.once else {{"processingTime": "{trigger.seconds:g} seconds"}}'
        return f"""def main() -> None:
    parser = argparse.ArgumentParser(description=NAME)
    parser.add_argument("--bootstrap", required=True, help="the brokers: HOST:PORT,…")
    parser.add_argument("--folder", default=".", help="where the tables and the checkpoint are"){argument}
    given = parser.parse_args()
    folder = str(Path(given.folder).absolute())
    builder = SparkSession.builder.appName(NAME)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    kafka = {{"kafka.bootstrap.servers": given.bootstrap}}
    trigger: dict[str, Any] = {now}{once}
    query = (
        spark.readStream.format("kafka").options(**SOURCE, **kafka).load()
        .writeStream.foreachBatch(lambda batch, number: write_batch(batch, number, folder, kafka))
        .option("checkpointLocation", f"{{folder}}/checkpoints/{{NAME}}")
        .trigger(**trigger)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()"""


class _Variable(str):
    """The name of an environment variable; in the text of a job, its value."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f'os.environ["{self}"]'


def _is_ours(function: Any) -> bool:
    return function.__module__ in {exported.__name__, internals.__name__}


def _place(target: str) -> str:
    """Relative paths begin at the job's folder."""
    return _literal(target) if "://" in target or target.startswith("/") else f'f"{{folder}}/{target}"'


def _literal(value: object) -> str:
    """The value as Python writes it, over several lines if it is long."""
    made = pformat(value, width=100, sort_dicts=False)
    return f"({made})" if isinstance(value, str) and "\n" in made and not made.startswith("(") else made


def _expressions(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{name!r}: F.expr({text!r})" for name, text in values.items()) + "}"


def _aliased(values: Mapping[str, str]) -> str:
    return "".join(f"\n    F.expr({_literal(text)}).alias({name!r})," for name, text in values.items())


def _function(signature: str, lines: list[str]) -> str:
    return "\n".join([f"def {signature}:", *map(_indented, lines)])


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.split("\n"))


def _pyspark_version() -> str:
    import pyspark

    return pyspark.__version__
