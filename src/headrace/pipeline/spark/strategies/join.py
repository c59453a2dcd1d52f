"""Two topics joined by Spark's stateful operator, with an account of every record of both.

As with an aggregate behind a watermark (`watermark.py`), the operator drops late rows without a word. So each batch is
looked at a second time, as plain rows of the same offsets and with the watermark that Spark wrote into its checkpoint:
what is dead or late is set aside, and what is left has entered the join. What comes out of the operator
(`spark/joined.py`) says which of these records are in a pair, and which have left the join alone. Spark's own count of
what it has dropped must be that of the late records; if it is not, the run ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.errors import Failed
from headrace.pipeline.books.checkpoint import Place
from headrace.pipeline.books.ledger import BatchEntry, JoinCount, SinkCount
from headrace.pipeline.declare.declaration import LETTERS
from headrace.pipeline.spark import source
from headrace.pipeline.spark.classify import RAW_SCHEMA, Classifier, nothing
from headrace.pipeline.spark.decode import Decoder, struct_of
from headrace.pipeline.spark.sinks import sinks
from headrace.pipeline.spark.strategies.batch_log import BatchLog
from headrace.pipeline.spark.strategies.strategy import RunContext, Strategy, keep_in_rocksdb

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

    from headrace.pipeline.spark.joined import Joined
    from headrace.pipeline.spark.process import BatchProcessor

# Of the span of the join: the times of rows are counted by them.
_STEPS = 60


class JoinStreams(Strategy):
    """Spark's join of two streams, and a second look at each batch."""

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        joined = context.classifier.joined
        assert joined is not None
        self.joined = joined
        self._sides: dict[str, BatchProcessor] = {
            "left": context.processor, "right": context.processor.beside(joined.right)
        }  # fmt: skip
        #: Late records by batch, until Spark has said how many it dropped.
        self._late: dict[int, int] = {}

    def start(self) -> StreamingQuery:
        context = self.context
        keep_in_rocksdb(context)
        self.know_schemas()
        self._late.clear()
        left, right = (context.read_stream(side.classifier.declaration) for side in self._sides.values())
        each = context.each_batch(self.process)
        made = self.joined.stream(left, right)
        return context.start(made.writeStream.outputMode("append").foreachBatch(each))

    def entries(self, query: StreamingQuery) -> tuple[()]:
        self._compare_late(query)
        return ()

    def ended(self, query: StreamingQuery) -> None:
        self._compare_late(query)

    def process(self, made: DataFrame, batch: sinks.Batch) -> BatchEntry:
        """The records of the batch have their outcomes, and the rows that came out of the join are written."""
        log = BatchLog(made.sparkSession, self.context.checkpoint, sources=len(self._sides))
        spans, late_ms = log.spans(batch.number), log.watermark_ms(batch.number - 1)
        known = self.known_schemas
        looks = {
            name: _look(self.joined, side, self._records(side.classifier, spans, batch), _of_side(batch, name), late_ms)
            for name, side in self._sides.items()
        }
        self.require_known_schemas(known)
        entry = _together([look.entry for look in looks.values()], batch)
        self._late[batch.number] = entry.total("late")
        rows = self.joined.rows(made).persist()
        try:
            alone = self._count(rows, entry)
            batch.expect(entry)
            if batch.written:
                written = rows.where("_written")
                entry.sinks += [sinks.write_sink(sink, written, batch) for sink in batch.declaration.sinks]
            pairs = _pairs(rows)
        finally:
            rows.unpersist()
        watermark_ms = log.watermark_ms(batch.number)
        entry.joins = [
            JoinCount(look.side, look.entry.total("written"), alone[name], pairs[name], look.ends, watermark_ms)
            for name, look in looks.items()
        ]
        return entry

    @property
    def decoders(self) -> list[Decoder]:
        return [side.classifier.decoder for side in self._sides.values()]

    def _records(self, side: Classifier, spans: Mapping[Place, tuple[int, int]], batch: sinks.Batch) -> DataFrame:
        """The records of the batch from the topics of that side, read by their offsets."""
        own = {place: span for place, span in spans.items() if place[0] in side.declaration.topics}
        if not own:
            return nothing(batch.spark, struct_of(RAW_SCHEMA))
        return source.read_again(batch.spark, side.declaration, self.context.connection, own)

    def _count(self, rows: DataFrame, entry: BatchEntry) -> dict[str, int]:
        """The rows that are written are in the entry. Returns how many records of each side came out alone."""
        counts = self.joined.demands.counts
        wanted = [F.count(name).alias(f"{name}_wanted") for name in counts]
        summed = [F.coalesce(F.sum(name), F.lit(0)).alias(f"{name}_rows") for name in counts]
        unfit = F.count("_unfit").alias("unfit")
        total = F.count(F.lit(1)).alias("rows")
        groups = (
            rows.groupBy("_which", "_written", "_topic", "_partition").agg(total, unfit, *wanted, *summed).collect()
        )
        alone = dict.fromkeys(self._sides, 0)
        entry.rows = dict.fromkeys(entry.spans, 0)
        for group in groups:
            if group["_which"] != "pair":
                alone[group["_which"]] += group["rows"]
            if not group["_written"]:
                continue
            if group["unfit"]:
                raise self._unfit(rows, entry.batch)
            place = (group["_topic"], group["_partition"])
            entry.rows[place] = entry.rows.get(place, 0) + group["rows"]
            for name in counts:
                before = entry.wanted.get(name, (0, 0))
                entry.wanted[name] = before[0] + group[f"{name}_wanted"], before[1] + group[f"{name}_rows"]
        return alone

    def _unfit(self, rows: DataFrame, number: int) -> Failed:
        """A sink cannot use a joined row: it belongs to two records, and neither alone is to blame."""
        row = rows.where("_written and _unfit is not null").first()
        assert row is not None
        records = [f"{r['_topic']}/{r['_partition']}/{r['_offset']}" for r in (row["_left"], row["_right"]) if r]
        return Failed(
            f"{self.context.declaration.place('into')}: a sink cannot use a joined row",
            why=f"{row['_unfit']['_reason']}; the row is of {' and '.join(records)}, in batch {number}",
            hint="try_cast and try_divide give null instead; rules of either side can set such records aside",
        )

    def _compare_late(self, query: StreamingQuery) -> None:
        """Spark has dropped as many rows as the ledger has late records."""
        for progress in query.recentProgress:
            late = self._late.pop(int(progress["batchId"]), None)
            operators = json.loads(progress.json)["stateOperators"] if late is not None else []
            dropped = sum(operator["numRowsDroppedByWatermark"] for operator in operators)
            if late is not None and dropped != late:
                raise Failed(
                    f"the join of {self.context.declaration.name} does not balance",
                    why=f"batch {progress['batchId']}: Spark dropped {dropped:,} rows, and {late:,} records were late",
                    hint="expressions that differ at each call, such as rand() and now(), cannot be before a join",
                )


@dataclass(frozen=True)
class _Look:
    """The second look at one side of a batch: what became of its records, and until when those that entered wait."""

    side: str
    entry: BatchEntry
    ends: Mapping[int, int]


def _look(joined: Joined, side: BatchProcessor, records: DataFrame, batch: sinks.Batch, late_ms: int) -> _Look:
    declaration = side.classifier.declaration
    at, ends = F.unix_micros(F.col(f"`{declaration.time_column}`")), dict[int, int]()
    late = at <= late_ms * 1000 if late_ms > 0 else None
    # In steps, and never too early: enough to see that no record was forgotten.
    step = max(joined.within_ms // _STEPS, 1)
    until = (F.ceil((F.ceil(at / 1000) + joined.within_ms + 1) / step) * step).cast("long")

    def count(kept: DataFrame) -> None:
        grouped = kept.where("_outcome = 'written'").groupBy(until.alias("ends")).count()
        ends.update({row["ends"]: row["count"] for row in grouped.collect()})

    entry = side.process(records, batch, late, count)
    return _Look(", ".join(declaration.topics), entry, ends)


def _of_side(batch: sinks.Batch, name: str) -> sinks.Batch:
    """The batch by which the dead letters of that side are known: both sides may have some."""
    return replace(batch, writer=batch.writer if name == "left" else f"{batch.writer}/{name}")


def _together(entries: list[BatchEntry], batch: sinks.Batch) -> BatchEntry:
    """What became of the records of both sides."""
    entry = BatchEntry(batch.number, entries[0].epoch)
    letters: list[SinkCount] = []
    for side in entries:
        entry.delivered += side.delivered
        entry.warnings += side.warnings
        entry.spans |= side.spans
        entry.counts |= side.counts
        letters += side.sinks
    if letters:
        expected, taken = sum(of.expected for of in letters), sum(of.records for of in letters)
        entry.sinks.append(SinkCount(LETTERS, expected, taken, any(of.replayed for of in letters)))
    return entry


def _pairs(rows: DataFrame) -> dict[str, dict[tuple[str, int, int], bytes]]:
    """The records of each side that are in a pair: by partition, a bit for each offset of a bucket of 32,768."""
    sides = F.array(*[F.struct(F.lit(name).alias("side"), F.col(f"_{name}").alias("of")) for name in ("left", "right")])
    offset = F.col("of._offset")
    found = (
        rows.where("_which = 'pair'")
        .select(F.inline(sides))
        .groupBy("side", "of._topic", "of._partition", F.bitmap_bucket_number(offset).alias("bucket"))
        .agg(F.bitmap_construct_agg(F.bitmap_bit_position(offset)).alias("offsets"))
    )
    pairs: dict[str, dict[tuple[str, int, int], bytes]] = {"left": {}, "right": {}}
    for row in found.collect():
        pairs[row["side"]][row["_topic"], row["_partition"], row["bucket"]] = bytes(row["offsets"])
    return pairs
