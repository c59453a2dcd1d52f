"""Rows of a batch into a Delta table, exactly once.

A commit of the table holds the rows and, as Delta's own transaction of the writer, the number of the batch. So a batch
that may have been written before, the first after a start, is looked up; later ones cannot have been.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from headrace.pipeline.declare.declaration import Sink
from headrace.pipeline.spark import internals
from headrace.pipeline.spark.sinks.sinks import Batch, SinkWriter, without_identity


class DeltaWriter(SinkWriter):
    """A Delta table in the target folder."""

    def write(self, sink: Sink, rows: DataFrame, batch: Batch) -> int | None:
        path = batch.declaration.resolve(sink.target)
        return write_delta(path, without_identity(rows), batch, sink.partition_by)


def write_delta(path: str, rows: DataFrame, batch: Batch, partition_by: tuple[str, ...] = ()) -> int | None:
    """The rows are appended. Returns how many; None if this batch was in the table already."""
    return internals.append_to_delta(path, rows, commit_of(path, batch), partition_by)


def commit_of(path: str, batch: Batch) -> internals.DeltaCommit:
    """What the table's log says of the batch."""
    return internals.DeltaCommit(batch.writer_of(path), batch.number, note_of(batch), may_exist=batch.replaying)


def note_of(batch: Batch) -> str:
    """What the history of a table says of a commit."""
    return f"{batch.declaration.name} batch {batch.number}"


def ensure_table(path: str, like: DataFrame, partition_by: tuple[str, ...] = ()) -> None:
    """The table exists, perhaps without rows."""
    spark = like.sparkSession
    if not internals.is_delta_table(spark, path):
        write = spark.createDataFrame([], like.schema).write.format("delta").partitionBy(*partition_by)
        write.mode("append").save(path)


def replace_keys(
    path: str, keys: DataFrame, rows: DataFrame, commit: internals.DeltaCommit, *, numbered: bool = True
) -> tuple[int, int]:
    """The rows of those keys are gone and `rows` are there, by one commit. Returns how many were and are.

    `keys` are distinct. They are read twice.
    """
    source = rows.withColumn("_op", F.lit("insert")).unionByName(
        keys.withColumn("_op", F.lit("delete")), allowMissingColumns=True
    )
    same = " and ".join(f"t.`{key}` <=> s.`{key}`" for key in keys.columns)
    columns = ", ".join(f"`{name}`" for name in rows.columns)
    values = ", ".join(f"s.`{name}`" for name in rows.columns)
    remove = f"when matched then delete when not matched and s._op = 'insert' then insert ({columns})"
    clauses = f"on s._op = 'delete' and {same} {remove} values ({values})"
    made = merge_into(path, source, clauses, commit, numbered=numbered)
    return (made["num_deleted_rows"], made["num_inserted_rows"]) if made else (0, 0)


def merge_into(
    path: str, source: DataFrame, clauses: str, commit: internals.DeltaCommit, *, numbered: bool = True
) -> Row | None:
    """One MERGE of the source (s) into the table (t), remembered in the table's log under the commit's number.

    Returns Delta's own counts; None if the log has such a commit already, and nothing was done. Not `numbered`: the log
    is not searched for it, which takes Delta a job.
    """
    spark = source.sparkSession
    view = f"headrace_batch_{abs(hash(path))}"
    source.createOrReplaceTempView(view)
    conf = {"spark.databricks.delta.commitInfo.userMetadata": commit.note}
    if numbered:
        conf["spark.databricks.delta.write.txnAppId"] = commit.writer
        conf["spark.databricks.delta.write.txnVersion"] = str(commit.batch)
    for name, value in conf.items():
        spark.conf.set(name, value)
    try:
        return next(iter(spark.sql(f"merge into delta.`{path}` t using {view} s {clauses}").collect()), None)
    finally:
        for name in conf:
            spark.conf.unset(name)
        spark.catalog.dropTempView(view)
