"""Rows of a batch into a Delta table, exactly once.

A commit of the table holds the rows and, as Delta's own transaction of the writer, the number of the batch. So a batch
that may have been written before, the first after a start, is looked up; later ones cannot have been.

Delta's `DataFrameWriter` would look every batch up, and for that goes through the log of the table with Spark: that
takes four times as long as to write a small batch. So rows are given to the command behind it, which makes the same
commit. Looked up or not, the commit depends on the writer's last batch: of two drivers that write the same one, say
because the first was taken for dead, Delta refuses the second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from headrace.pipeline.counted import Counted

if TYPE_CHECKING:
    from headrace.pipeline.sinks import Batch


def write_delta(path: str, rows: DataFrame, batch: Batch, partition_by: tuple[str, ...] = ()) -> int | None:
    """The rows are appended; None if this batch was in the table already. Returns how many."""
    spark, writer = rows.sparkSession, batch.writer_of(path)
    jvm: Any = spark._jvm
    session, sql, scala = spark._jsparkSession, jvm.org.apache.spark.sql, jvm.PythonUtils
    delta, append, none = sql.delta, sql.SaveMode.Append, jvm.scala.Option.empty()
    sql.SparkSession.setActiveSession(session)
    log = delta.DeltaLog.forTable(session, path)
    transaction = log.startTransaction()
    if not batch.replaying:
        transaction.readTxn().addOne(writer)  # as the lookup would note
    elif transaction.txnVersion(writer) >= batch.number:
        return None
    counted = Counted(rows)
    given = {"mergeSchema": "true", "txnAppId": writer, "txnVersion": str(batch.number), "userMetadata": note_of(batch)}
    options = delta.DeltaOptions(scala.toScalaMap(given), session.sessionState().conf())
    columns = scala.toSeq(list(partition_by))
    command = delta.commands.WriteIntoDelta(
        log, append, options, columns, scala.toScalaMap({}), counted.frame._jdf, none, none, False
    )
    made = command.writeAndReturnCommitData(transaction, session, none, False)
    operation = getattr(delta, "DeltaOperations$Write")(
        append, jvm.scala.Option.apply(columns), none, options.userMetadata(), none, none, none, none, none
    )
    transaction.commit(made.actions(), operation)
    return counted.rows


def note_of(batch: Batch) -> str:
    """What the history of a table says of a commit."""
    return f"{batch.declaration.name} batch {batch.number}"


def is_table(spark: SparkSession, path: str) -> bool:
    """Whether a Delta table lies there."""
    jvm: Any = spark._jvm
    return bool(jvm.io.delta.tables.DeltaTable.isDeltaTable(spark._jsparkSession, path))


def has_written(spark: SparkSession, path: str, writer: str, batch: int) -> bool:
    """Whether the table's log says that this writer has finished this batch."""
    jvm: Any = spark._jvm
    log = jvm.org.apache.spark.sql.delta.DeltaLog.forTableWithSnapshot(spark._jsparkSession, path)
    last = log._2().transactions().get(writer)
    return bool(last.isDefined() and last.get() >= batch)
