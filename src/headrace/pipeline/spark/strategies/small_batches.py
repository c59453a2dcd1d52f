"""Topics to a topic: batches that the driver writes itself while they are small.

A batch of some hundred records costs Spark more to plan than to read. So where a topic is the only sink of a pipeline,
the driver computes such a batch itself, without a job if it can (`internals.Projections`), and writes it: it has the
writers open already. That holds for batches that are certainly small: the checkpoint says how many offsets they span,
and large values are not loaded but counted. Spark's jobs process every other batch.

Nothing that a batch leaves behind says which way it took: writers and batch numbers have the same names either way, so
a batch that was cut off here may be repeated there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.pipeline.books.checkpoint import Checkpoint
from headrace.pipeline.books.dead_letters import HEADERS
from headrace.pipeline.books.ledger import BatchEntry, SinkCount
from headrace.pipeline.declare.declaration import LETTERS
from headrace.pipeline.spark import internals
from headrace.pipeline.spark.decode import Learnt
from headrace.pipeline.spark.sinks.kafka import SinkResult, task_of, write_here
from headrace.pipeline.spark.sinks.sinks import TASKS, Batch
from headrace.pipeline.spark.sinks.topic import outgoing, sending
from headrace.pipeline.spark.strategies.strategy import Batches, RunContext

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.streaming import StreamingQuery

# At most a hundred megabytes together.
_SMALL_RECORDS = 5_000
_SMALL_BYTES = 20_000
# They are read one after the other; tasks read more of them sooner, side by side.
_FEW_PARTITIONS = 8
_PARTS = ("topic", "key", "value", "headers")
_COUNTED = ("_topic", "_partition", "_offset", "_outcome", "_rule")


def fits(context: RunContext) -> bool:
    """Whether the rows of the pipeline become records of one topic, by the same steps for every batch."""
    declaration, classifier = context.declaration, context.classifier
    alone = len(declaration.sinks) == 1 and declaration.sinks[0].type.is_topic
    plain = alone and declaration.sinks[0].format == "json" and declaration.sinks[0].aggregate is None
    steps = declaration.select_step or declaration.where_step or declaration.decode.step or classifier.makes_many
    state = declaration.deduplicate or declaration.watermark or declaration.lookups
    same_steps = not steps and not state and isinstance(classifier.decoder, Learnt)
    return plain and same_steps and "://" not in context.checkpoint


class SmallBatches(Batches):
    """Small batches from the driver, the others by Spark's jobs."""

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        (self.sink,) = context.declaration.sinks
        self._checkpoint = Checkpoint(context.checkpoint)
        self._projections: internals.Projections | None = None
        self._is_prepared = False

    def start(self) -> StreamingQuery:
        self._is_prepared = False
        return super().start()

    def process(self, raw: DataFrame, batch: Batch) -> BatchEntry:
        return self._written_here(raw, batch) or super().process(raw, batch)

    def _written_here(self, raw: DataFrame, batch: Batch) -> BatchEntry | None:
        """The batch was written by the driver; None if it is not for the driver."""
        import pyarrow.compute as pc

        plan = self._checkpoint.plan(batch.number)
        if plan.records is None or plan.records > _SMALL_RECORDS:
            return None
        few = sum(span.records != 0 for span in plan.spans) <= _FEW_PARTITIONS
        table, read = self._rows(raw, self._prepared(raw) if few else None)
        if pc.any(table["_large"]).as_py():
            return None
        processor = self.context.processor
        entry = processor.entry_of(_groups(table, processor.sums), batch)
        entry.delivered = read
        processor.require_balance(entry, raw)
        processor.fail_on_rules(entry)
        batch.expect(entry)
        letters, place = entry.total("dead"), processor.dead_letters
        if letters and place.kind != "topic":
            return None
        good, dead = (table.filter(pc.equal(table["_which"], which)) for which in ("good", "dead"))
        if batch.written:
            made = write_here(good, batch.into(self.sink.target)) if good.num_rows else SinkResult(0, replayed=False)
            entry.sinks.append(batch.took(self.sink, made.new_records))
        if letters:
            made = write_here(dead, batch.into(place.target))
            entry.sinks.append(SinkCount.of(LETTERS, letters, made.new_records))
        return entry

    def _prepared(self, raw: DataFrame) -> internals.Projections | None:
        if not self._is_prepared:
            self._projections = internals.projections(self._sent(raw), self.context.folder / "batch.arrow")
            self._is_prepared = True
        return self._projections

    def _rows(self, raw: DataFrame, projections: internals.Projections | None) -> tuple[pyarrow.Table, int]:
        """What the records become, without a job if there are projections, and how many Spark's source has read."""
        made = internals.projected(projections, raw) if projections is not None else None
        if made is not None:
            return made
        read = internals.Counted(raw)
        return self._sent(read.frame).toArrow(), read.rows

    def _sent(self, raw: DataFrame) -> DataFrame:
        sums = self.context.processor.sums
        rows = self.context.classifier.classify(raw).withColumns(sums)
        rows = sending(self.context.declaration, self.sink, rows)
        made = rows.select("*", *self._columns(rows)).withColumn("_large", _is_large())
        parts = [_unless_large(part) for part in _PARTS]
        return made.select(*_COUNTED, *sums, "_which", "_task", "_large", *parts)

    def _columns(self, rows: DataFrame) -> list[Column]:
        """What a row becomes, beside what it is."""
        good, dead = F.col("_good"), F.col("_outcome") == "dead"
        letters = self.context.processor.dead_letters.target
        record = outgoing(self.sink, rows, letters, self.context.letter_headers, F.lit(None).cast(HEADERS))
        return [
            F.when(good, "good").when(dead, "dead").alias("_which"),
            task_of(TASKS).alias("_task"),
            *[record[part].alias(f"_out_{part}") for part in _PARTS],
        ]


def _unless_large(part: str) -> Column:
    return F.when(~F.col("_large"), F.col(f"_out_{part}")).alias(part)


def _is_large() -> Column:
    headers = "aggregate(_headers, 0, (sum, h) -> sum + length(h.key) + coalesce(length(h.value), 0))"
    sizes = ("length(_out_key)", "length(_out_value)", headers)
    bulk = " + ".join(f"coalesce({size}, 0)" for size in sizes)
    return F.expr(f"_which is not null and {bulk} > {_SMALL_BYTES}")


def _groups(table: pyarrow.Table, sums: Iterable[str]) -> Iterator[dict[str, object]]:
    """As `outcomes.count` has them from Spark."""
    grouped = table.group_by(["_topic", "_partition", "_outcome", "_rule"]).aggregate(
        [("_offset", "count"), ("_offset", "min"), ("_offset", "max"), *[(name, "sum") for name in sums]]
    )
    names = {"_offset_count": "records", "_offset_min": "first", "_offset_max": "last"}
    names |= {f"{name}_sum": name for name in sums}
    for row in grouped.to_pylist():
        yield {names.get(name, name): value for name, value in row.items()}
