"""From topics to a topic: batches that the driver carries while they are small.

A batch of some hundred records costs Spark more to plan than to read. So where all that a pipeline writes is one topic,
the driver computes such a batch itself, without a job if it can (`pipeline/jobless.py`), and writes it: it has the
writers open already. That holds for batches that are small for certain: the checkpoint says how many offsets they span,
and large values are not brought along but counted. Every other batch takes the way of all pipelines.

Which way a batch takes is told by nothing that it leaves behind: writers and marks have the same names either way, so
one that was cut off here may be repeated there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.pipeline import dead_letters, many, sinks
from headrace.pipeline.checkpoint import Checkpoint
from headrace.pipeline.counted import Counted
from headrace.pipeline.declaration import LETTERS, Declaration, Sink
from headrace.pipeline.decode import Learnt
from headrace.pipeline.demands import wants
from headrace.pipeline.jobless import Projections
from headrace.pipeline.kafka_sink import SinkResult, task_of, write_here
from headrace.pipeline.ledger import BatchEntry, SinkCount

if TYPE_CHECKING:
    import pyarrow

    from headrace.pipeline.flow import Flow
    from headrace.pipeline.run import Run

# At most a hundred megabytes together.
_SMALL_RECORDS = 5_000
_SMALL_BYTES = 20_000
# They are read one after the other; tasks read more of them sooner, side by side.
_FEW_PARTITIONS = 8
_PARTS = ("topic", "key", "value", "headers")
_COUNTED = ("_topic", "_partition", "_offset", "_outcome", "_rule")


def fits(declaration: Declaration, flow: Flow, checkpoint: str) -> bool:
    """Whether the rows of the pipeline become records of one topic, by the same steps for every batch."""
    alone = len(declaration.sinks) == 1 and declaration.sinks[0].kind == "topic"
    plain = alone and declaration.sinks[0].format == "json" and declaration.sinks[0].aggregate is None
    steps = declaration.select_step or declaration.where_step or declaration.decode.step or flow.makes_many
    kept = declaration.deduplicate or declaration.watermark
    return plain and not steps and not kept and isinstance(flow.decoder, Learnt) and "://" not in checkpoint


class Relay:
    """The small batches of one query."""

    def __init__(self, run: Run) -> None:
        (self.sink,) = run.declaration.sinks
        self.run = run
        self._checkpoint = Checkpoint(run.folder.checkpoint(run.declaration))
        self._sums = many.sums(run.flow.demands.counts)
        self._projections: Projections | None = None
        self._is_prepared = False

    def carry(self, raw: DataFrame, batch: sinks.Batch) -> BatchEntry | None:
        """The batch was written from here; None if it is none for the driver."""
        import pyarrow.compute as pc

        plan = self._checkpoint.plan(batch.number)
        if plan.records is None or plan.records > _SMALL_RECORDS:
            return None
        few = sum(span.records != 0 for span in plan.spans) <= _FEW_PARTITIONS
        table, read = self._rows(raw, self._prepared(raw) if few else None)
        if pc.any(table["_large"]).as_py():
            return None
        entry = self.run.account(_groups(table, self._sums), batch)
        entry.delivered = read
        self.run.complete(entry, raw)
        self.run.object_to(entry)
        batch.expect(entry)
        letters, place = entry.total("dead"), self.run.dead_letters
        if letters and place.kind != "topic":
            return None
        good, dead = (table.filter(pc.equal(table["_which"], which)) for which in ("good", "dead"))
        if batch.written:
            made = write_here(good, batch.into(self.sink.target)) if good.num_rows else SinkResult(0, replayed=False)
            entry.sinks.append(batch.took(self.sink, _records(made)))
        if letters:
            made = write_here(dead, batch.into(place.target))
            entry.sinks.append(SinkCount.of(LETTERS, letters, _records(made)))
        return entry

    def _prepared(self, raw: DataFrame) -> Projections | None:
        if not self._is_prepared:
            self._projections = Projections.of(self._sent(raw), self.run.folder.root / "batch.arrow")
            self._is_prepared = True
        return self._projections

    def _rows(self, raw: DataFrame, projections: Projections | None) -> tuple[pyarrow.Table, int]:
        """What the records become, without a job if there are projections, and how many Spark's source has read."""
        if projections is not None:
            return projections.table(raw)
        read = Counted(raw)
        return self._sent(read.frame).toArrow(), read.rows

    def _sent(self, raw: DataFrame) -> DataFrame:
        rows = self.run.flow.sort_out(raw).withColumns(self._sums)
        rows = sending(self.run.declaration, self.sink, rows)
        made = rows.select("*", *_columns(self.run, self.sink, rows)).withColumn("_large", _is_large())
        parts = [_unless_large(part) for part in _PARTS]
        return made.select(*_COUNTED, *self._sums, "_which", "_task", "_large", *parts)


def _columns(run: Run, sink: Sink, rows: DataFrame) -> list[Column]:
    """What a row becomes, beside what it is."""
    good, dead = F.col("_good"), F.col("_outcome") == "dead"
    record = outgoing(run, sink, rows, F.lit(None).cast(dead_letters.HEADERS))
    return [
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


def sending(declaration: Declaration, sink: Sink, rows: DataFrame) -> DataFrame:
    """Sorted-out rows with the columns that the sink selects, and `_good`: whether the row goes to the sink."""
    good = (F.col("_outcome") == "written") & wants(declaration, sink)
    return sinks.selected(sink, rows.withColumn("_good", good), F.col("_good"))


def outgoing(run: Run, sink: Sink, rows: DataFrame, headers: Column) -> dict[str, Column]:
    """The record that such a row becomes: the sink's, with those headers, or the dead letters'."""
    good = F.col("_good")
    columns = {name: F.col(f"`{name}`") for name in sinks.names(sink, rows)}
    key = columns[sink.key].cast("string").cast("binary") if sink.key else F.lit(None).cast("binary")
    value = F.to_json(F.struct(*columns.values())).cast("binary")
    letter = dead_letters.letter_headers(run.declaration.name, run.name)
    return {
        "topic": F.when(good, sink.target).otherwise(run.dead_letters.target),
        "key": F.when(good, key).otherwise(F.col("_key")),
        "value": F.when(good, value).otherwise(F.col("_value")),
        "headers": F.when(good, headers).otherwise(letter),
    }


def _records(made: SinkResult) -> int | None:
    return None if made.replayed else made.records


def _groups(table: pyarrow.Table, sums: Iterable[str]) -> Iterator[dict[str, Any]]:
    """As `Run.count` has them from Spark."""
    grouped = table.group_by(["_topic", "_partition", "_outcome", "_rule"]).aggregate(
        [("_offset", "count"), ("_offset", "min"), ("_offset", "max"), *[(name, "sum") for name in sums]]
    )
    names = {"_offset_count": "records", "_offset_min": "first", "_offset_max": "last"}
    names |= {f"{name}_sum": name for name in sums}
    for row in grouped.to_pylist():
        yield {names.get(name, name): value for name, value in row.items()}
