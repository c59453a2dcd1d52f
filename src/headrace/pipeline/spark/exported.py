"""The functions of exported jobs, in PySpark alone: `export.py` copies the source of those that a job needs.

A row that cannot be used has a `_problem`: an outcome, the rule and the reason. Expressions are tried with each row, so
one that fails sets a record aside and does not end the job.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.pipeline.spark.internals import try_eval


def records(raw: DataFrame) -> DataFrame:
    """Kafka's columns, by names that no field of a record has."""
    names = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
    return raw.select(*[F.col(name).alias(f"_{name}") for name in names])


def tried(text: str) -> Column:
    """The SQL expression as a struct with a field x: no struct where the expression fails, a null where it is null."""
    return try_eval(SparkSession.active(), f"named_struct('x', {text})")


def problem(outcome: str, rule: str, reason: Column) -> Column:
    return F.struct(F.lit(outcome).alias("outcome"), F.lit(rule).alias("rule"), reason.alias("reason"))


def unless_known(found: Column) -> Column:
    """The first problem of a row counts."""
    return F.coalesce(F.col("_problem"), found)


def undecoded(rows: DataFrame, reason: Column) -> DataFrame:
    return rows.withColumn("_problem", F.when(reason.isNotNull(), problem("dead", "decode", reason)))


def no_text() -> Column:
    not_text = ~F.is_valid_utf8(F.col("_value").cast("string"))
    return F.when(F.col("_value").isNull(), "the value is null").when(not_text, "not UTF-8")


def decoded_text(rows: DataFrame) -> DataFrame:
    """The value as text, in a field of that name."""
    return undecoded(rows, no_text()).withColumn("value", F.col("_value").cast("string"))


def decoded_json(rows: DataFrame, schema: str, options: Mapping[str, str]) -> DataFrame:
    """The fields of JSON objects. Spark's reader stops behind the first object, so what follows is looked for here."""
    text = F.col("_value").cast("string")
    made = F.from_json(text, f"{schema}, _corrupt string", {"columnNameOfCorruptRecord": "_corrupt", **options})
    stripped = F.trim(text, F.lit(" \t\r\n"))
    several = stripped.rlike(r"\}\s*\{") & F.json_array_length(F.concat(F.lit("["), text, F.lit("]"))).isNull()
    whole = stripped.startswith("{") & stripped.endswith("}") & ~several
    broken = F.col("_made").isNull() | F.col("_made._corrupt").isNotNull()
    reason = no_text().when(broken, "not a JSON object of the declared fields")
    reason = reason.when(~whole, "more than one JSON object, or text around it")
    return undecoded(rows.withColumn("_made", made), reason).select("*", "_made.*").drop("_made", "_corrupt")


def decoded_csv(rows: DataFrame, schema: str, options: Mapping[str, str]) -> DataFrame:
    """The fields of lines of CSV."""
    text = F.col("_value").cast("string")
    made = F.from_csv(text, f"{schema}, _corrupt string", {"columnNameOfCorruptRecord": "_corrupt", **options})
    broken = F.col("_made").isNull() | F.col("_made._corrupt").isNotNull()
    reason = no_text().when(broken, "not a CSV line of the declared fields")
    return undecoded(rows.withColumn("_made", made), reason).select("*", "_made.*").drop("_made", "_corrupt")


def step(rows: DataFrame, rule: str, expressions: Mapping[str, str], wanted: Column | None = None) -> DataFrame:
    """The columns, as SQL over those that are there; a wanted row for which one of them fails has a problem."""
    made = {f"_made{at}": tried(text) for at, text in enumerate(expressions.values())}
    rows = rows.withColumns(made)
    failed = functools.reduce(operator.or_, [F.col(name).isNull() for name in made])
    names = [F.when(F.col(name).isNull(), column) for column, name in zip(expressions, made, strict=True)]
    reason = F.concat(F.lit("the expression failed of "), F.concat_ws(", ", *names))
    found = F.when(failed if wanted is None else failed & wanted, problem("dead", rule, reason))
    columns = {column: F.col(f"{name}.x") for column, name in zip(expressions, made, strict=True)}
    return rows.withColumn("_problem", unless_known(found)).withColumns(columns).drop(*made)


def judged(rows: DataFrame, where: str | None, rules: Sequence[tuple[str, str, str]]) -> DataFrame:
    """Rows that `where` does not want, and rows that break a rule, have a problem. Null is not true."""
    if where:
        rows = rows.withColumn("_wanted", tried(where))
        failed = F.when(F.col("_wanted").isNull(), problem("dead", "where", F.lit("the expression failed")))
        unwanted = ~F.coalesce(F.col("_wanted.x"), F.lit(False))
        found = F.coalesce(failed, F.when(unwanted, problem("filtered", "where", F.lit(None).cast("string"))))
        rows = rows.withColumn("_problem", unless_known(found)).drop("_wanted")
    for name, condition, outcome in rules:
        broken = ~F.coalesce(tried(condition)["x"].cast("boolean"), F.lit(False))
        found = F.when(broken, problem(outcome, name, F.lit(f"not so: {condition}")))
        rows = rows.withColumn("_problem", unless_known(found))
    return rows


def fits(rows: DataFrame, where: str | None, select: Sequence[Mapping[str, str]]) -> DataFrame:
    """What an expression of one table fails for goes to no table."""
    kept = [name for name in rows.columns if name != "_problem"]
    rows = rows.withColumn("_kept", F.struct(*[F.col(f"`{name}`") for name in kept]))
    rows = step(rows, "into", {"_wanted": where or "true"})
    for layer in select:
        rows = step(rows, "into", layer, F.coalesce(F.col("_wanted").cast("boolean"), F.lit(False)))
    return rows.select("_problem", "_kept.*")


def has_time(rows: DataFrame, event_time: str) -> DataFrame:
    """A row without a time belongs to no window; Spark would drop it silently."""
    missing = F.when(F.col(f"`{event_time}`").isNull(), problem("dead", "event_time", F.lit("it has no window")))
    return rows.withColumn("_problem", unless_known(missing))


def chosen(
    rows: DataFrame, where: str | None, select: Sequence[Mapping[str, str]], columns: Sequence[str]
) -> DataFrame:
    """The rows and columns that a table takes."""
    rows = rows.where(where) if where else rows
    for layer in select:
        rows = rows.withColumns({name: F.expr(text) for name, text in layer.items()})
    return rows.select(*[F.col(f"`{name}`") for name in columns])


def writer(path: str) -> str:
    """Whose batches these are: the id of the query is in the checkpoint, and stays the same after a restart."""
    return f"{SparkSession.active().sparkContext.getLocalProperty('sql.streaming.queryId')}/{path}"


def append_delta(rows: DataFrame, path: str, number: int, partition_by: Sequence[str] = ()) -> None:
    """The rows are in the table, once: Delta knows the batches of a writer by their numbers."""
    options = {"txnAppId": writer(path), "txnVersion": str(number), "mergeSchema": "true"}
    rows.write.format("delta").mode("append").options(**options).partitionBy(*partition_by).save(path)


def merge_delta(source: DataFrame, path: str, number: int, clauses: str, partition_by: Sequence[str] = ()) -> None:
    """The table is changed by one MERGE, once for each batch."""
    spark = source.sparkSession
    table = spark.createDataFrame([], source.drop("_op").schema)
    table.write.format("delta").mode("ignore").partitionBy(*partition_by).save(path)
    source.createOrReplaceTempView("batch")
    prefix = "spark.databricks.delta.write."
    settings = {f"{prefix}txnAppId": writer(path), f"{prefix}txnVersion": str(number)}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        spark.sql(f"merge into delta.`{path}` t using batch s {clauses}").collect()
    finally:
        for name in settings:
            spark.conf.unset(name)


def window_apart(made: DataFrame, by: Sequence[str]) -> DataFrame:
    """The window as two columns."""
    rest = [F.col(f"`{name}`") for name in made.columns if name not in {"window", *by}]
    start, end = F.col("window.start").alias("window_start"), F.col("window.end").alias("window_end")
    return made.select(*[F.col(f"`{name}`") for name in by], start, end, *rest)


def recompute_delta(touched: DataFrame, made: DataFrame, path: str, number: int, partition_by: Sequence[str]) -> None:
    """The keys that were touched have the rows that were made for them, and no others."""
    gone = touched.withColumn("_op", F.lit("delete"))
    source = made.withColumn("_op", F.lit("insert")).unionByName(gone, allowMissingColumns=True)
    same = " and ".join(f"t.`{key}` <=> s.`{key}`" for key in touched.columns)
    columns = ", ".join(f"`{name}`" for name in made.columns)
    values = ", ".join(f"s.`{name}`" for name in made.columns)
    insert = f"when not matched and s._op = 'insert' then insert ({columns}) values ({values})"
    clauses = f"on s._op = 'delete' and {same} when matched then delete {insert}"
    merge_delta(source, path, number, clauses, partition_by)


def write_parquet(rows: DataFrame, path: str, number: int, partition_by: Sequence[str] = ()) -> None:
    """The batch is a folder, which a repeated batch replaces. A reader may see it while it is being written."""
    folder = f"{path}/batch={writer(path)[:8]}-{number}"
    rows.write.mode("overwrite").partitionBy(*partition_by).parquet(folder)


def write_topic(rows: DataFrame, topic: str, key: str | None, kafka: Mapping[str, str]) -> None:
    """The rows as JSON, at least once: Spark's own Kafka sink writes a repeated batch again."""
    value = F.to_json(F.struct(*[F.col(f"`{name}`") for name in rows.columns])).cast("binary")
    name = F.col(f"`{key}`").cast("string").cast("binary") if key else F.lit(None).cast("binary")
    made = rows.select(F.lit(topic).alias("topic"), name.alias("key"), value.alias("value"))
    made.write.format("kafka").options(**kafka).save()


def letters_to_table(dead: DataFrame, path: str, number: int) -> None:
    """Dead letters: the records byte for byte, and why they could not be used."""
    columns = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
    made = dead.select("_problem.*", *[F.col(f"_{name}").alias(name) for name in columns])
    append_delta(made, path, number)


def letters_to_topic(dead: DataFrame, topic: str, kafka: Mapping[str, str]) -> None:
    """Dead letters: the records as they were, with the reason in their headers; at least once."""
    facts = {name: F.col(f"_problem.{name}") for name in ("outcome", "rule", "reason")}
    facts |= {name: F.col(f"_{name}") for name in ("topic", "partition", "offset")}
    more = [
        F.struct(F.lit(name).alias("key"), fact.cast("string").cast("binary").alias("value"))
        for name, fact in facts.items()
    ]
    none = F.array().cast("array<struct<key: string, value: binary>>")
    headers = F.concat(F.coalesce(F.col("_headers"), none), F.array(*more)).alias("headers")
    made = dead.select(F.lit(topic).alias("topic"), F.col("_key").alias("key"), F.col("_value").alias("value"), headers)
    made.write.format("kafka").option("includeHeaders", "true").options(**kafka).save()


def fail_on_rules(rows: DataFrame) -> None:
    """A rule with the action `fail` that is broken ends the job before anything of the batch is written."""
    broken = rows.where("_problem.outcome = 'failed'").select("_problem.rule").head()
    if broken is not None:
        raise SystemExit(f"the rule {broken[0]!r} does not hold: nothing of the batch was written")
