"""The rows that a small batch becomes, without a job of Spark's.

To plan a batch and to hand it to tasks takes Spark a tenth of a second, however small it is. Where all that is done to
a record is projections, the thread that has the batch can do itself what a task would do: Spark's own reader fetches
the records, Spark's own compiled expressions turn each into a row. Both stay as they are from batch to batch.

The rows come over by a file: what is more than 8 kB would be held back on the socket between Java and Python, for
40 ms, until the first part of it is acknowledged.

Spark has no public door to that, so its inside is taken, of the version that the lock names: tests compare what comes
out of both ways.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame


class Projections:
    """What is done to each record of a batch, compiled. One thread at a time. `file` is for rows on their way."""

    def __init__(self, rows: DataFrame, steps: list[tuple[Any, Any]], file: Path) -> None:
        jvm: Any = rows.sparkSession._jvm
        spark: Any = jvm.org.apache.spark
        # The settings that hold while expressions are compiled are those of the thread's session.
        spark.sql.SparkSession.setActiveSession(rows.sparkSession._jsparkSession)
        make = spark.sql.catalyst.expressions.UnsafeProjection.create
        projections = [make(expressions, inputs) for expressions, inputs in steps]
        self._row_of = jvm.scala.Function.chain(jvm.PythonUtils.toSeq(projections))
        self._schema = rows._jdf.schema()
        self._contexts = getattr(getattr(spark, "TaskContext$"), "MODULE$")
        self._arrow = getattr(getattr(spark.sql.execution.arrow, "ArrowConverters$"), "MODULE$")
        self._writer = spark.sql.execution.arrow.ArrowBatchStreamWriter
        self._output = jvm.java.io.FileOutputStream
        self._no_error = jvm.scala.Option.empty()
        self._file = file

    @classmethod
    def of(cls, rows: DataFrame, file: Path) -> Projections | None:
        """What `rows` makes of a batch; None if that is more than projections, or not the same for every batch."""
        query = rows._jdf.queryExecution()
        plan = query.optimizedPlan()
        patterns: Any = rows.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        # What is said to be now must be now for every batch; Spark puts a constant there when it plans.
        changes = query.analyzed().containsPattern(patterns.CURRENT_LIKE()) or not plan.deterministic()
        if changes or plan.containsPattern(patterns.PLAN_EXPRESSION()):
            return None
        steps: list[tuple[Any, Any]] = []
        while plan.nodeName() == "Project":
            steps.insert(0, (plan.projectList(), plan.child().output()))
            plan = plan.child()
        return cls(rows, steps, file) if plan.nodeName() == "LogicalRDD" else None

    def table(self, raw: DataFrame) -> tuple[pyarrow.Table, int]:
        """The rows that the batch becomes, and how many records Spark's source has read for them."""
        import pyarrow.ipc

        try:
            read = self._write(raw)
            return pyarrow.ipc.open_stream(self._file.read_bytes()).read_all(), read
        finally:
            self._file.unlink(missing_ok=True)

    def _write(self, raw: DataFrame) -> int:
        records = raw._jdf.queryExecution().executedPlan().collectLeaves().head().rdd()
        output = self._output(str(self._file))
        try:
            writer = self._writer(self._schema, output, "UTC", True, False)
            read = sum(self._write_part(records, partition, writer) for partition in records.partitions())
            writer.end()
        finally:
            output.close()
        return read

    def _write_part(self, records: Any, partition: Any, writer: Any) -> int:
        """The rows of a partition are written; how many records were read for them."""
        context = self._contexts.empty()
        self._contexts.setTaskContext(context)
        try:
            rows = records.iterator(partition, context).map(self._row_of)
            writer.writeBatches(self._arrow.toBatchIterator(rows, self._schema, 0, "UTC", True, False, context))
            return int(context.taskMetrics().inputMetrics().recordsRead())
        finally:
            context.markTaskCompleted(self._no_error)  # the reader is given back
            self._contexts.unset()
