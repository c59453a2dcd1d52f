"""What a strategy is, and the plain one: each batch as a whole, by Spark's jobs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import Column, DataFrame, SparkSession

from headrace.errors import Unreachable
from headrace.pipeline.books.ledger import BatchEntry
from headrace.pipeline.declare.declaration import Declaration, Trigger
from headrace.pipeline.spark import source, state
from headrace.pipeline.spark.decode import Decoder, RegisteredDecoder
from headrace.pipeline.spark.letters import letter_headers
from headrace.pipeline.spark.process import BatchProcessor
from headrace.pipeline.spark.sinks.sinks import Batch

if TYPE_CHECKING:
    from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

    from headrace.kafka import Connection
    from headrace.pipeline.spark.classify import Classifier

#: Writes a batch; the entry says what became of its records.
Process = Callable[[DataFrame, Batch], BatchEntry]


@dataclass(frozen=True)
class RunContext:
    """What a strategy knows of its run."""

    spark: SparkSession
    declaration: Declaration
    connection: Connection
    processor: BatchProcessor
    trigger: Trigger
    #: The name of the run, Spark's checkpoint, and the folder of the pipeline.
    run: str
    checkpoint: str
    folder: Path
    #: Messages for a person.
    say: Callable[[str], None]
    #: What Spark calls with each batch: `Process`, with the batch recorded in the ledger behind it.
    each_batch: Callable[[Process], Callable[[DataFrame, int], None]]

    @property
    def classifier(self) -> Classifier:
        return self.processor.classifier

    @property
    def letter_headers(self) -> Column:
        """The headers of a dead letter of this run."""
        return letter_headers(self.declaration.name, self.run)

    def read_stream(self, of: Declaration | None = None, *, latency: bool = False) -> DataFrame:
        """The records of the pipeline's topics, or of those of a side of its join."""
        return source.stream(self.spark, of or self.declaration, self.connection, latency=latency)

    def start(self, writer: DataStreamWriter) -> StreamingQuery:
        """The query of that writer, with the checkpoint, name and trigger of the pipeline."""
        if self.trigger.kind == "once":
            writer = writer.trigger(availableNow=True)
        elif self.trigger.kind == "every":
            writer = writer.trigger(processingTime=f"{self.trigger.seconds} seconds")
        named = writer.option("checkpointLocation", self.checkpoint).queryName(self.declaration.name)
        query: StreamingQuery = named.start()
        return query


def keep_in_rocksdb(context: RunContext) -> None:
    """State is in RocksDB. The default keeps all of it in the heap of the JVM, and two versions of it."""
    if state.PROVIDER not in context.declaration.spark:
        context.spark.conf.set(state.PROVIDER, state.ROCKSDB)


class Strategy(ABC):
    """How a run takes records. One per run; `start` is called again when the query was cut off."""

    def __init__(self, context: RunContext) -> None:
        self.context = context

    @abstractmethod
    def start(self) -> StreamingQuery:
        """The query runs."""

    # -- schemas of a registry, where the query itself decodes -------------------------------------------------------

    @property
    def decoders(self) -> list[Decoder]:
        return [self.context.classifier.decoder]

    def know_schemas(self) -> None:
        """Every version is known: a query that was started cannot learn on the way."""
        for decoder in self.decoders:
            if isinstance(decoder, RegisteredDecoder):
                decoder.know_all()

    @property
    def known_schemas(self) -> int:
        return sum(decoder.known for decoder in self.decoders if isinstance(decoder, RegisteredDecoder))

    def require_known_schemas(self, before: int) -> None:
        """A batch has brought no schema that the query was planned without; else it starts again, with the batch."""
        if self.known_schemas > before:
            raise Unreachable("a record names a schema that is new", why="the query starts again with it")

    # -- on the way --------------------------------------------------------------------------------------------------

    def may_stop(self, query: StreamingQuery) -> bool:
        """Whether the query can be stopped now: between two batches, where nothing has to be replayed."""
        status = query.status
        # While Kafka is unreachable, Spark asks it for offsets for minutes. A batch that begins after all does nothing.
        return not status["isTriggerActive"] or status["message"].startswith("Getting offsets")

    def entries(self, query: StreamingQuery) -> Iterable[BatchEntry]:  # noqa: ARG002 - for those who need it
        """What the query has done since it was last asked, unless `each_batch` records it."""
        return ()

    def ended(self, query: StreamingQuery) -> None:  # noqa: B027 - for those who have something to check
        """Called when the query has ended by itself or was stopped."""


class Batches(Strategy):
    """Each batch as a whole."""

    def start(self) -> StreamingQuery:
        stream = self.context.read_stream()
        return self.context.start(stream.writeStream.foreachBatch(self.context.each_batch(self.process)))

    def process(self, raw: DataFrame, batch: Batch) -> BatchEntry:
        """The batch is written."""
        return self.context.processor.process(raw, batch)
