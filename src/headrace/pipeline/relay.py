"""From topics to a topic: batches that are planned once, and carried by the driver while they are small.

A batch of some hundred records costs Spark more to plan than to read. So where all that a pipeline writes is one topic,
its steps are a part of the query itself, which Spark plans again much sooner than a query that is new to it; and what
is judged comes to the driver, which has the writers open already and writes it. That holds for batches that are small
for certain: the checkpoint says how many offsets they span, and large values are not brought along but counted. Every
other batch is read by its offsets, and takes the way of all pipelines.

Which way a batch takes is told by nothing that it leaves behind: writers and marks have the same names either way, so
one that was cut off here may be repeated there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.pipeline import dead_letters, sinks, source
from headrace.pipeline.checkpoint import Checkpoint
from headrace.pipeline.decode import Learnt
from headrace.pipeline.kafka_sink import SinkResult, task_of, write_here
from headrace.pipeline.ledger import BatchEntry, SinkCount

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.streaming import StreamingQuery

    from headrace.pipeline.declaration import Declaration, Sink
    from headrace.pipeline.flow import Flow
    from headrace.pipeline.run import Run

# At most a hundred megabytes together.
_SMALL_RECORDS = 5_000
_SMALL_BYTES = 20_000
_PARTS = ("topic", "key", "value", "headers")
_COUNTED = ("_topic", "_partition", "_offset", "_outcome", "_rule", "_warned")


def fits(declaration: Declaration, flow: Flow, checkpoint: str) -> bool:
    """Whether the rows of the pipeline become records of one topic, by steps that a query can have in itself."""
    alone = len(declaration.sinks) == 1 and declaration.sinks[0].kind == "topic"
    plain = alone and declaration.sinks[0].format == "json" and declaration.sinks[0].aggregate is None
    steps = declaration.select_step or declaration.where_step or declaration.decode.step
    kept = declaration.deduplicate or declaration.watermark
    return plain and not steps and not kept and isinstance(flow.decoder, Learnt) and "://" not in checkpoint


class Relay:
    """The batches of one query."""

    def __init__(self, run: Run) -> None:
        (self.sink,) = run.declaration.sinks
        self.run = run
        self.checkpoint = Checkpoint(run.folder.checkpoint(run.declaration))
        #: What was counted of batches whose count by Spark is not known yet.
        self._unconfirmed: dict[int, int] = {}

    def start(self, stream: DataFrame) -> StreamingQuery:
        rows = self.run.flow.sort_out(stream)
        made = rows.select("*", *_columns(self.run, self.sink, rows)).withColumn("_large", _is_large())
        sent = made.select(*_COUNTED, "_which", "_task", "_large", *[_unless_large(part) for part in _PARTS])
        return self.run.start_writer(sent.writeStream.foreachBatch(self._take))

    def confirm(self, query: StreamingQuery) -> None:
        """What Spark's source delivered is entered for the batches that it has told of since."""
        waiting = dict(self._unconfirmed)
        told = _told(query, min(waiting)) if waiting else {}
        for number, counted in waiting.items():
            delivered = told.get(number)
            # Spark tells of one after the other: what it passed over had no rows.
            if delivered or number < max(told, default=-1):
                del self._unconfirmed[number]
            if delivered and delivered != counted:
                self.run.ledger.correct(self.run.epoch, number, delivered)

    def _take(self, rows: DataFrame, number: int) -> None:
        self.run.take(rows, number, self._process)

    def _process(self, rows: DataFrame, batch: sinks.Batch) -> BatchEntry:
        plan = self.checkpoint.plan(batch.number)
        if plan.records is not None and plan.records <= _SMALL_RECORDS:
            entry = self._carried(rows, batch)
            if entry is not None:
                self._unconfirmed[batch.number] = entry.delivered
                return entry
        # A partition that the batch before did not know is read from its beginning, as Spark would.
        spans = {(span.topic, span.partition): (span.first or 0, span.next) for span in plan.spans}
        again = source.read_again(batch.spark, self.run.declaration, self.run.connection, spans)
        return self.run.process(again, batch)

    def _carried(self, rows: DataFrame, batch: sinks.Batch) -> BatchEntry | None:
        """The batch was written from here; None if it is none for the driver."""
        import pyarrow.compute as pc

        table = rows.toArrow()
        entry = self.run.account(_groups(table), batch)
        entry.delivered = table.num_rows
        self.run.object_to(entry)
        letters, place = entry.total("dead"), self.run.dead_letters
        if pc.any(table["_large"]).as_py() or (letters and place.kind != "topic"):
            return None
        good, dead = (table.filter(pc.equal(table["_which"], which)) for which in ("good", "dead"))
        if good.num_rows:
            entry.sinks.append(self._took(write_here(good, batch.into(self.sink.target)), entry))
        if letters:
            made = write_here(dead, batch.into(place.target))
            entry.sinks.append(sinks.took("dead letters", None if made.replayed else made.records, letters))
        return entry

    def _took(self, made: SinkResult, entry: BatchEntry) -> SinkCount:
        expected = None if self.sink.where else entry.total("written")
        return sinks.took(self.sink.name, None if made.replayed else made.records, expected)


def _columns(run: Run, sink: Sink, rows: DataFrame) -> list[Column]:
    """What a row becomes, beside what it is."""
    good, dead = wanted(sink), F.col("_outcome") == "dead"
    record = outgoing(run, sink, rows, F.lit(None).cast(dead_letters.HEADERS))
    return [
        F.greatest(F.size("_warnings"), F.lit(0)).alias("_warned"),
        F.when(good, "good").when(dead, "dead").alias("_which"),
        task_of(run.tasks).alias("_task"),
        *[record[part].alias(f"_out_{part}") for part in _PARTS],
    ]


def _unless_large(part: str) -> Column:
    return F.when(~F.col("_large"), F.col(f"_out_{part}")).alias(part)


def _is_large() -> Column:
    headers = "aggregate(_headers, 0, (sum, h) -> sum + length(h.key) + coalesce(length(h.value), 0))"
    sizes = ("length(_out_key)", "length(_out_value)", headers)
    bulk = " + ".join(f"coalesce({size}, 0)" for size in sizes)
    return F.expr(f"_which is not null and {bulk} > {_SMALL_BYTES}")


def wanted(sink: Sink) -> Column:
    """Whether the row goes to the sink."""
    good = F.col("_outcome") == "written"
    return good & F.coalesce(F.expr(sink.where), F.lit(False)) if sink.where else good


def outgoing(run: Run, sink: Sink, rows: DataFrame, headers: Column) -> dict[str, Column]:
    """The record that a sorted-out row becomes: the sink's, with those headers, or the dead letters'."""
    good = wanted(sink)
    columns = {name: F.expr(text) for name, text in sink.select.items()} or {
        name: F.col(f"`{name}`") for name in sinks.columns_of(rows)
    }
    key = columns[sink.key].cast("string").cast("binary") if sink.key else F.lit(None).cast("binary")
    value = F.to_json(F.struct(*[column.alias(name) for name, column in columns.items()])).cast("binary")
    letter = dead_letters.letter_headers(run.declaration.name, run.name)
    return {
        "topic": F.when(good, sink.target).otherwise(run.dead_letters.target),
        "key": F.when(good, key).otherwise(F.col("_key")),
        "value": F.when(good, value).otherwise(F.col("_value")),
        "headers": F.when(good, headers).otherwise(letter),
    }


def _told(query: StreamingQuery, since: int) -> dict[int, int]:
    """How many rows Spark says that it delivered, by batch."""
    found: dict[int, int] = {}
    for progress in reversed(query._jsq.recentProgress()):
        number = int(progress.batchId())
        if number < since:
            break
        # While nothing comes it tells of the batch to come, too, with no rows.
        found[number] = max(found.get(number, 0), int(progress.numInputRows()))
    return found


def _groups(table: pyarrow.Table) -> Iterator[dict[str, Any]]:
    """As `Run.count` has them from Spark."""
    grouped = table.group_by(["_topic", "_partition", "_outcome", "_rule"]).aggregate(
        [("_offset", "count"), ("_offset", "min"), ("_offset", "max"), ("_warned", "sum")]
    )
    names = {"_offset_count": "records", "_offset_min": "first", "_offset_max": "last", "_warned_sum": "warnings"}
    for row in grouped.to_pylist():
        yield {names.get(name, name): value for name, value in row.items()}
