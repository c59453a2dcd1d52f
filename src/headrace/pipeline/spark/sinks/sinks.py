"""Rows of a batch into sinks, each exactly once.

A sink is a class, a `SinkWriter`; `declare/sink_kinds.py` says which one a declaration names. Spark may replay the last
batch after a crash, so a writer must recognise a batch that it has written already:

    Delta      the commit contains the writer and the number of the batch (`delta.py`)
    Parquet    a batch is a folder that appears by one rename; if it is there, it is whole (`parquet.py`)
    PostgreSQL one transaction contains the rows and the number of the batch (`postgres.py`)
    topic      one transaction per task contains the rows and the number of the batch (`topic.py`, `kafka.py`)
    console    shows rows; nothing depends on it (`console.py`)

The writer is named after the checkpoint (its query id and epoch): another checkpoint numbers its batches from 0.
Each sink counts the rows that it writes, apart from the ledger's own count of the batch.
"""

from __future__ import annotations

import functools
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.pipeline.books.ledger import BatchEntry, SinkCount
from headrace.pipeline.declare.declaration import Declaration, Sink
from headrace.pipeline.declare.sink_kinds import sink_kind
from headrace.pipeline.spark.classify import IDENTITY, layers
from headrace.pipeline.spark.demands import Limit, column_of, passes_where

if TYPE_CHECKING:
    from headrace.kafka import Connection
    from headrace.pipeline.spark.sinks.kafka import KafkaTarget
    from headrace.schemas import Registry


#: Tasks that write to Kafka: few, and the same number for every batch of a checkpoint.
TASKS = 2


@dataclass
class Batch:
    """What a sink must know of the batch that it is given."""

    spark: SparkSession
    declaration: Declaration
    number: int
    run: str
    #: Unique for this checkpoint: what sinks remember batches by.
    writer: str
    connection: Connection
    registry: Registry | None
    #: The first batch after a start may have been written before; later ones cannot.
    replaying: bool
    tasks: int
    #: The folder of Spark's checkpoint: what a sink keeps there begins and ends with it.
    checkpoint: str = ""
    show: Callable[[str, list[dict[str, object]]], None] | None = None
    #: The rows that are written, and by sink with a `where` of its own: how many it wants, and how many become of them.
    written: int = 0
    wanted: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def expect(self, entry: BatchEntry) -> None:
        """How many rows each sink is to take is known."""
        self.written = entry.written_rows
        columns = {sink.name: column_of(self.declaration, sink) for sink in self.declaration.sinks}
        self.wanted = {name: entry.wanted[column] for name, column in columns.items() if column in entry.wanted}

    def took(self, sink: Sink, records: int | None) -> SinkCount:
        """The account of the sink, which has written so many rows; None: an earlier attempt had written them."""
        wanted, expected = self.wanted.get(sink.name, (self.written, self.written))
        return SinkCount.of(sink.name, expected, records, given=self.written, skipped=self.written - wanted)

    def writer_of(self, what: str) -> str:
        return f"{self.writer}/{what}"

    def into(self, topic: str) -> KafkaTarget:
        """The topic as what this batch is written to, exactly once."""
        from headrace.pipeline.spark.sinks.kafka import KafkaTarget

        return KafkaTarget(self.connection, self.writer_of(topic), self.number, self.tasks, self.replaying)


class SinkWriter(ABC):
    """How rows get into sinks of one kind. One instance serves all pipelines of the process.

    Rows have the columns that the sink selects, and before them those of `IDENTITY`: the record that each was made of.
    An exception ends the run before Spark commits the batch; the next start repeats the batch.
    """

    def check(self, sink: Sink, rows: DataFrame) -> None:  # noqa: B027 - most kinds take any columns
        """Called before a run, without rows: raises if the sink cannot take such columns."""

    def limits(self, declaration: Declaration, sink: Sink, columns: StructType, *, asked: bool) -> Sequence[Limit]:  # noqa: ARG002
        """Called before a run: what must hold of a row, so that one that the sink cannot take is a dead letter.

        Raises if the sink cannot take such columns. Unless `asked`, one that does not answer or refuses is no error.
        """
        return ()

    def require(self, declaration: Declaration, sink: Sink) -> None:  # noqa: B027 - most kinds are always there
        """Called before a run and while it waits: raises `Unreachable` if what holds the rows does not answer."""

    def prepare(self, connection: Connection) -> None:  # noqa: B027 - most kinds need nothing
        """Called before the first batch of a run: whatever all sinks of this kind need exists afterwards."""

    @abstractmethod
    def write(self, sink: Sink, rows: DataFrame, batch: Batch) -> int | None:
        """Called for each batch that has rows: the sink holds them, once.

        Returns how many; None if an earlier attempt had written them, which can be where `batch.replaying`.
        """

    def replace(self, sink: Sink, keys: DataFrame, rows: DataFrame, batch: Batch) -> int | None:
        """Called where a kind can do that: of the keys (distinct, of some columns), the sink holds these rows alone."""
        raise NotImplementedError(f"a {sink.kind} cannot replace rows")

    def plan_empty(self, declaration: Declaration, sink: Sink) -> str | None:  # noqa: ARG002
        """Called before a full refresh is agreed to: what `empty` would do. Raises if it must not be done.

        None: the kind cannot empty its sinks, so what is in them stays.
        """
        return None

    def empty(self, declaration: Declaration, sink: Sink, note: Callable[[str], None]) -> None:  # noqa: B027
        """Called for a full refresh: the sink has no rows. Where they are now (`in …`) is noted before they go.

        A refresh that was cut off is repeated, so it may be called for a sink that is empty already.
        """


def writer_of(kind: str) -> SinkWriter:
    """The writer of that kind of sinks."""
    return _instance(sink_kind(kind).writer)


@functools.cache
def _instance(writer: Any) -> SinkWriter:
    if isinstance(writer, str):
        module, _, name = writer.partition(":")
        writer = getattr(importlib.import_module(module), name)
    made: SinkWriter = writer()
    return made


def write_sink(sink: Sink, rows: DataFrame, batch: Batch) -> SinkCount:
    """The sink holds the rows of the batch, once."""
    from headrace.pipeline.spark import aggregate, change_data

    if sink.aggregate is not None:
        return aggregate.write(sink, rows, batch)
    if sink.changes is not None:
        return change_data.write(sink, rows, batch)
    given = shape(sink, rows.where(passes_where(batch.declaration, sink)))
    return batch.took(sink, writer_of(sink.kind).write(sink, given, batch))


def filtered(sink: Sink, rows: DataFrame) -> DataFrame:
    """The rows that the sink's own `where` lets through."""
    return rows.where(sink.where) if sink.where else rows


def shape(sink: Sink, rows: DataFrame) -> DataFrame:
    """The sink's own columns: those it selects, else all that are declared. Rows of a table have no identity."""
    identity = [name for name in IDENTITY if name in rows.columns]
    return selected(sink, rows).select(*identity, *[F.col(f"`{name}`") for name in names(sink, rows)])


def names(sink: Sink, rows: DataFrame) -> list[str]:
    """The sink's own columns by their names."""
    return list(sink.select) or columns_of(rows)


def selected(sink: Sink, rows: DataFrame, only: Column | None = None) -> DataFrame:
    """`rows` with what the sink selects in the place of their own columns; with `only`, null for other rows."""
    for layer in layers(sink.select):
        made = {name: F.expr(text) for name, text in layer.items()}
        rows = rows.withColumns({n: c if only is None else F.when(only, c) for n, c in made.items()})
    return rows


def columns_of(rows: DataFrame) -> list[str]:
    return [name for name in rows.columns if not name.startswith("_")]


def with_identity(rows: DataFrame) -> DataFrame:
    """Rows that were made of many records, with the columns of one: what is written takes them from it."""
    none = {"_topic": F.lit(""), "_partition": F.lit(0), "_offset": F.lit(0).cast("long")}
    return rows.withColumns({**none, "_timestamp": F.current_timestamp()})


def without_identity(rows: DataFrame) -> DataFrame:
    return rows.select(*[F.col(f"`{name}`") for name in columns_of(rows)])
