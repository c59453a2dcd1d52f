"""What a full refresh of a pipeline would do, found without Spark: which records are still there, and which tables go.

A pipeline's tables are made from records. To make them again, Kafka must still have these; the ledger knows which
offsets were read, so what is gone since is known before anything is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import UsageError
from headrace.pipeline.books.folder import PipelineFolder
from headrace.pipeline.books.ledger import Ledger
from headrace.pipeline.books.rewind import last_checkpoint
from headrace.pipeline.declare.changes import recreated
from headrace.pipeline.declare.declaration import Declaration, Sink
from headrace.tables import is_delta, read_table

if TYPE_CHECKING:
    from headrace.kafka import Connection, Topic

_KAFKA_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Gone:
    """Offsets that the pipeline has read and Kafka no longer has, the last one included."""

    topic: str
    partition: int
    first: int
    last: int

    @property
    def records(self) -> int:
        """At most so many."""
        return self.last - self.first + 1

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition} offsets {self.first:,} to {self.last:,}"


@dataclass(frozen=True)
class RebuildPlan:
    """What making the tables of a pipeline again means: nothing is done yet."""

    pipeline: str
    #: What will happen, for the person who has to agree.
    steps: tuple[str, ...]
    #: Records that were read and cannot be read again.
    gone: tuple[Gone, ...] = ()

    @property
    def lost(self) -> int:
        return sum(each.records for each in self.gone)

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "lost": self.lost}


def plan_rebuild(
    folder: PipelineFolder, declaration: Declaration, connection: Connection, emptied: Mapping[str, str]
) -> RebuildPlan:
    """What a full refresh would do; `emptied` is what it means for sinks that headrace cannot read, by their names.

    A pipeline that begins at the end of its topics has nothing to be made from.
    """
    if declaration.start in {"end", "latest"}:
        raise UsageError(
            f"{declaration.place('start')}: {declaration.name} starts at the end of its topics",
            why="a full refresh reads from `start` on, and would find no records",
            hint='start = "beginning", or a time',
        )
    last_checkpoint(folder, declaration)  # one that is not on this machine is an error
    gone = tuple(_gone(folder, connection, declaration))
    return RebuildPlan(declaration.name, tuple(_steps(folder, declaration, gone, emptied)), gone)


def _gone(folder: PipelineFolder, connection: Connection, declaration: Declaration) -> Iterator[Gone]:
    read = Ledger(folder.root).extent()
    found = _extents(connection, declaration)
    other = recreated(folder, {name: topic.topic_id for name, topic in found.items() if topic})
    for (topic, number), (first, after) in sorted(read.items()):
        if topic not in declaration.all_topics:
            continue
        held = extent.partition(number) if (extent := found.get(topic)) and topic not in other else None
        begin = held.begin if held and held.begin is not None else after
        if begin > first:
            yield Gone(topic, number, first, min(begin, after) - 1)


def _extents(connection: Connection, declaration: Declaration) -> dict[str, Topic | None]:
    from headrace.kafka import Kafka

    with Kafka(connection, timeout_s=_KAFKA_TIMEOUT_S) as kafka:
        return kafka.extents(declaration.all_topics, "uncommitted")


def _steps(
    folder: PipelineFolder, declaration: Declaration, gone: tuple[Gone, ...], emptied: Mapping[str, str]
) -> Iterator[str]:
    for each in gone:
        yield f"{each}: Kafka no longer has them, so the rows that were made from them will be missing"
    for sink in declaration.sinks:
        yield f"{sink.name}: {emptied.get(sink.name) or _emptied(declaration, sink)}"
    letters = folder.dead_letters(declaration)
    again = "are written to the topic again" if letters.kind == "topic" else "are removed, and written again"
    yield f"dead letters: those of {declaration.name} {again}"
    yield f"{declaration.name} reads its records from {declaration.start} on; its checkpoint is backed up"


def _emptied(declaration: Declaration, sink: Sink) -> str:
    path = declaration.resolve(sink.target)
    if sink.type.table == "parquet":
        return "its folder is set aside, under another name"
    if sink.type.table != "delta":
        return sink.type.again
    if "://" in path:
        return "it is emptied; its rows stay in the version of before"
    if not is_delta(Path(path)):
        return "it has not been written yet"
    return f"it is emptied; its rows stay in version {read_table(path).version}, or set aside if its columns changed"
