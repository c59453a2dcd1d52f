"""Records one by one: Spark's real-time mode, from topics to topics within milliseconds.

Good rows and dead letters leave by the same query; the sink takes the topic from a column. The mode has no
foreachBatch, so nothing can be checked before it is written: it is at least once, and says so. After a crash some
records are written again; each carries where it came from in the header `headrace.source`, by which a repetition is
known. Schemas must be known at the start: a record with another id goes to the dead letters with that reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.pipeline.books.ledger import BatchEntry, SinkCount
from headrace.pipeline.spark import source
from headrace.pipeline.spark.decode import RegisteredDecoder
from headrace.pipeline.spark.sinks.topic import outgoing, sending
from headrace.pipeline.spark.strategies.strategy import RunContext, Strategy

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

SOURCE_HEADER = "headrace.source"
# Spark plans anew at the end of each stretch, and may repeat the last one after a crash. Records that come just then
# wait some tenths of a second: more stretches would be more such records, fewer a longer wait for whoever stops.
_CHECKPOINT_EVERY = "30 seconds"
_WARNING = f"realtime writes at least once: after a crash a record may come twice, with the same header {SOURCE_HEADER}"
_METRICS = "outcomes"
_OUTCOMES = ("written", "dead", "filtered")
_SINK = {"kafka.linger.ms": "0", "kafka.acks": "all", "kafka.max.request.size": str(32 << 20)}


class Realtime(Strategy):
    """Spark's real-time mode. Spark reports what it has done when a stretch of the query ends."""

    def __init__(self, context: RunContext) -> None:
        super().__init__(context)
        #: The partitions that are counted, and the last stretch that was.
        self._places: list[tuple[str, int]] = []
        self._last_stretch = -1
        self._ended_when_asked: int | None = None

    def start(self) -> StreamingQuery:
        context = self.context
        if isinstance(context.classifier.decoder, RegisteredDecoder):
            context.classifier.decoder.know_all()
        context.say(_WARNING)
        rows = self._counted(context.classifier.classify(context.read_stream(latency=True)))
        properties = source.java_properties(context.connection.properties)
        writer = (
            self._records(rows)
            .writeStream.format("kafka")
            .option("kafka.bootstrap.servers", context.connection.bootstrap)
            .options(**_SINK, **{f"kafka.{name}": value for name, value in properties.items()})
            .outputMode("update")
            .trigger(realTime=_CHECKPOINT_EVERY)  # type: ignore[call-overload] # not among its overloads yet
        )
        return context.start(writer)

    def may_stop(self, query: StreamingQuery) -> bool:
        """When another stretch has just begun."""
        ended = query.lastProgress["batchId"] if query.lastProgress else -1
        if self._ended_when_asked is None:
            self._ended_when_asked = ended
        return bool(ended > self._ended_when_asked)

    def entries(self, query: StreamingQuery) -> Iterator[BatchEntry]:
        for progress in query.recentProgress:
            number = int(progress["batchId"])
            if number > self._last_stretch and progress["numInputRows"]:
                self._last_stretch = number
                yield self._entry(json.loads(progress.json))

    def _records(self, rows: DataFrame) -> DataFrame:
        """Each row as a record of the sink's topic or of the dead letters'; filtered rows end here."""
        (sink,) = self.context.declaration.sinks
        origin = F.concat_ws("/", "_topic", "_partition", "_offset").cast("binary")
        header = F.array(F.struct(F.lit(SOURCE_HEADER).alias("key"), origin.alias("value")))
        kept = sending(self.context.declaration, sink, rows.where(F.col("_outcome").isin("written", "dead")))
        letters = self.context.processor.dead_letters.target
        record = outgoing(sink, kept, letters, self.context.letter_headers, header)
        return kept.select(*[column.alias(name) for name, column in record.items()])

    def _counted(self, rows: DataFrame) -> DataFrame:
        """`rows`, counted on their way."""
        from headrace.kafka import Kafka

        with Kafka(self.context.connection) as admin:
            topics = admin.require_topics(self.context.declaration.topics)
        self._places = [(topic.name, partition.partition) for topic in topics for partition in topic.partitions]
        metrics = [
            F.count_if(
                (F.col("_outcome") == outcome) & (F.col("_topic") == topic) & (F.col("_partition") == partition)
            ).alias(f"{outcome}_{at}")
            for at, (topic, partition) in enumerate(self._places)
            for outcome in _OUTCOMES
        ]
        return rows.observe(_METRICS, *metrics)

    def _entry(self, progress: dict[str, Any]) -> BatchEntry:
        entry = BatchEntry(progress["batchId"], self.context.processor.epoch, delivered=progress["numInputRows"])
        entry.seconds = progress["durationMs"].get("triggerExecution", 0) / 1000
        counts = progress["observedMetrics"].get(_METRICS, {})
        (read,) = progress["sources"]
        first, after = read["startOffset"] or {}, read["endOffset"]
        for at, (topic, partition) in enumerate(self._places):
            found = {outcome: int(counts.get(f"{outcome}_{at}", 0)) for outcome in _OUTCOMES}
            entry.counts |= {(topic, partition, outcome, ""): n for outcome, n in found.items() if n}
            begin, end = (int(span.get(topic, {}).get(str(partition), 0)) for span in (first, after))
            entry.spans[topic, partition] = (begin, end, sum(found.values()))
        passed = entry.total("written") + entry.total("dead")
        entry.sinks.append(SinkCount("topics", passed, int(progress["sink"]["numOutputRows"])))
        return entry
