"""Rows of a batch into a Delta table, exactly once.

A commit of the table holds the rows and, as Delta's own transaction of the writer, the number of the batch. So a batch
that may have been written before, the first after a start, is looked up first; later ones cannot have been.

Delta's own writer looks every batch up, and for that goes through the log of the table with Spark: that takes four
times as long as to write a small batch. So only the first batch is left to it. Later ones are given to Delta's command
behind the writer, which makes the same commit. In both ways the commit depends on the writer's last batch: of two
drivers that write the same one, say because the first was taken for dead, Delta refuses the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession

from headrace.pipeline.counted import Counted

if TYPE_CHECKING:
    from headrace.pipeline.sinks import Batch


def write_delta(path: str, rows: DataFrame, batch: Batch, partition_by: tuple[str, ...] = ()) -> int | None:
    """The rows are appended; None if this batch was in the table already. Returns how many."""
    writer = batch.writer_of(path)
    if batch.replaying and has_written(batch.spark, path, writer, batch.number):
        return None
    counted = Counted(rows)
    options = {
        "mergeSchema": "true", "txnAppId": writer, "txnVersion": str(batch.number), "userMetadata": note_of(batch)
    }  # fmt: skip
    if batch.replaying:
        write = counted.frame.write.format("delta").mode("append").options(**options)
        (write.partitionBy(*partition_by) if partition_by else write).save(path)
    else:
        _append_unseen(counted.frame, path, options, partition_by)
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


def _append_unseen(data: DataFrame, path: str, options: Mapping[str, str], partition_by: tuple[str, ...]) -> None:
    """What Delta's writer does for such options, without the question whether it has been done."""
    spark = data.sparkSession
    jvm: Any = spark._jvm
    session, delta, scala = spark._jsparkSession, jvm.org.apache.spark.sql.delta, jvm.PythonUtils
    none, append, columns = (
        jvm.scala.Option.empty(),
        jvm.org.apache.spark.sql.SaveMode.Append,
        scala.toSeq(partition_by),
    )
    jvm.org.apache.spark.sql.SparkSession.setActiveSession(session)
    log = delta.DeltaLog.forTable(session, path)
    given = delta.DeltaOptions(scala.toScalaMap(options), session.sessionState().conf())
    command = delta.commands.WriteIntoDelta(
        log, append, given, columns, scala.toScalaMap({}), data._jdf, none, none, False
    )
    transaction = log.startTransaction()
    transaction.readTxn().addOne(options["txnAppId"])
    made = command.writeAndReturnCommitData(transaction, session, none, False)
    operation = getattr(delta, "DeltaOperations$Write")(
        append, jvm.scala.Option.apply(columns), none, given.userMetadata(), none, none, none, none, none
    )
    transaction.commit(made.actions(), operation)
