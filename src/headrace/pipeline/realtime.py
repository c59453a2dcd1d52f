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

from headrace.pipeline import source
from headrace.pipeline.decode import RegisteredDecoder
from headrace.pipeline.ledger import BatchEntry, SinkCount
from headrace.pipeline.small_batches import outgoing, sending

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

    from headrace.pipeline.run import Run

SOURCE_HEADER = "headrace.source"
# Spark plans anew at the end of each stretch, and may repeat the last one after a crash. Records that come just then
# wait some tenths of a second: more stretches would be more such records, fewer a longer wait for whoever stops.
_CHECKPOINT_EVERY = "30 seconds"
_METRICS = "outcomes"
_OUTCOMES = ("written", "dead", "filtered")
_SINK = {"kafka.linger.ms": "0", "kafka.acks": "all", "kafka.max.request.size": str(32 << 20)}


def start(run: Run) -> StreamingQuery:
    """The real-time query runs."""
    if isinstance(run.flow.decoder, RegisteredDecoder):
        run.flow.decoder.know_all()
    run.options.say(
        f"realtime writes at least once: after a crash a record may come twice, with the same header {SOURCE_HEADER}"
    )
    rows = _counted(run, run.flow.sort_out(run.read_stream(latency=True)))
    properties = source.java_properties(run.connection.properties)
    writer = (
        _records(run, rows)
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", run.connection.bootstrap)
        .options(**_SINK, **{f"kafka.{name}": value for name, value in properties.items()})
        .outputMode("update")
        .trigger(realTime=_CHECKPOINT_EVERY)
    )
    return run.start_writer(writer)


def _records(run: Run, rows: DataFrame) -> DataFrame:
    """Each row as the record that it becomes, of the sink's topic or of the dead letters'; filtered rows end here."""
    (sink,) = run.declaration.sinks
    origin = F.concat_ws("/", "_topic", "_partition", "_offset").cast("binary")
    mark = F.array(F.struct(F.lit(SOURCE_HEADER).alias("key"), origin.alias("value")))
    kept = sending(run.declaration, sink, rows.where(F.col("_outcome").isin("written", "dead")))
    record = outgoing(run, sink, kept, mark)
    return kept.select(*[column.alias(name) for name, column in record.items()])


# -- the account -----------------------------------------------------------------------------------------------------


def _counted(run: Run, rows: DataFrame) -> DataFrame:
    """`rows`, counted on their way: real-time mode tells its counts when a stretch of it ends."""
    from headrace.transport.admin import Admin

    with Admin(run.connection) as admin:
        topics = admin.require_topics(run.declaration.topics)
    run.places = [(topic.name, partition.partition) for topic in topics for partition in topic.partitions]
    metrics = [
        F.count_if(
            (F.col("_outcome") == outcome) & (F.col("_topic") == topic) & (F.col("_partition") == partition)
        ).alias(f"{outcome}_{at}")
        for at, (topic, partition) in enumerate(run.places)
        for outcome in _OUTCOMES
    ]
    return rows.observe(_METRICS, *metrics)


def entries(run: Run, query: StreamingQuery) -> Iterator[BatchEntry]:
    """The stretches that the query has finished since it was last asked."""
    for progress in query.recentProgress:
        number = int(progress["batchId"])
        if number > run.last_stretch and progress["numInputRows"]:
            run.last_stretch = number
            yield _entry(run, json.loads(progress.json))


def _entry(run: Run, progress: dict[str, Any]) -> BatchEntry:
    entry = BatchEntry(progress["batchId"], run.epoch, delivered=progress["numInputRows"])
    entry.seconds = progress["durationMs"].get("triggerExecution", 0) / 1000
    counts = progress["observedMetrics"].get(_METRICS, {})
    (told,) = progress["sources"]
    first, after = told["startOffset"] or {}, told["endOffset"]
    for at, (topic, partition) in enumerate(run.places):
        found = {outcome: int(counts.get(f"{outcome}_{at}", 0)) for outcome in _OUTCOMES}
        entry.counts |= {(topic, partition, outcome, ""): n for outcome, n in found.items() if n}
        begin, end = (int(span.get(topic, {}).get(str(partition), 0)) for span in (first, after))
        entry.spans[topic, partition] = (begin, end, sum(found.values()))
    passed = entry.total("written") + entry.total("dead")
    entry.sinks.append(SinkCount("topics", passed, int(progress["sink"]["numOutputRows"])))
    return entry
