"""Failures of a run: which are temporary, so that the run waits, and how to describe those that end it.

A Kafka or a registry that does not answer is temporary, and so is a Spark cluster without a free executor. Records that
were deleted or expired before they were read are not: the run stops, before its first batch if possible, and names the
ranges that are lost. A full disk and every other failure stops it too; nothing of the current batch counts as done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.errors import Failed, HeadraceError, Unreachable, UsageError
from headrace.pipeline.books.checkpoint import Checkpoint, Offsets
from headrace.pipeline.books.folder import PipelineFolder
from headrace.pipeline.declare.changes import recreated
from headrace.pipeline.declare.declaration import Declaration
from headrace.pipeline.spark import internals, stateful
from headrace.pipeline.spark.aggregate import DATA_HINT, data_error
from headrace.pipeline.spark.classify import message_of
from headrace.pipeline.spark.session import is_local, spark_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.kafka import Connection, Topic

_AWAY = (
    "TimeoutException", "DisconnectException", "BrokerNotAvailable", "No resolvable bootstrap", "UnknownHost",
    "LeaderNotAvailable", "NotLeaderOrFollower",
)  # fmt: skip
_LOSS = ("data loss", "failOnDataLoss", "OffsetOutOfRange", "UnknownTopicOrPartition", "offset was changed from")
_LISTED_RANGES = 5
_KAFKA_TIMEOUT_S = 5.0


def is_temporary(error: Exception) -> bool:
    """Whether waiting is enough: Kafka, the registry or Spark's cluster does not answer."""
    return isinstance(error, Unreachable) or any(sign in str(error) for sign in _AWAY)


def one_line(error: Exception) -> str:
    """The error in a line."""
    return error.problem if isinstance(error, HeadraceError) else message_of(error)[:200]


def describe(
    error: Exception, declaration: Declaration, folder: PipelineFolder, connection: Connection
) -> HeadraceError:
    """What ended the query, for a person."""
    if isinstance(error, HeadraceError):
        return error
    text = str(error)
    if any(sign in text for sign in _LOSS):
        with suppress(Unreachable):
            try:
                check_losses(declaration, folder, topic_extents(connection, declaration))
            except Failed as lost:
                return lost
    if "No space left on device" in text:
        return Failed(
            f"pipeline {declaration.name} stopped: the disk is full",
            why="nothing of the batch counts as done; it is taken again at the next start",
            hint="make room, then start it again",
        )
    raised = stateful.failure(text, declaration)
    if raised is not None:
        return raised
    said = data_error(error)
    if said is not None:
        where = declaration.place("into")
        return Failed(f"{where}: an expression of {declaration.name} cannot be computed", why=said, hint=DATA_HINT)
    return Failed(f"pipeline {declaration.name} failed", why=message_of(error)[:500], log=spark_log())


def require_executors(spark: SparkSession) -> None:
    """Spark has an executor for the job at hand: a cluster that is busy or too small gives none, without a message."""
    context = spark.sparkContext
    if is_local(str(context.master)) or not context.statusTracker().getActiveJobsIds():
        return
    if not internals.executor_count(context):
        raise Unreachable(
            f"Spark at {context.master} has given no executor",
            why="its workers are busy, or have less than spark.executor.memory and spark.executor.cores ask for",
            hint='"spark.executor.memory" = "512m", in the spark table of the pipeline, asks for less',
        )


def topic_extents(connection: Connection, declaration: Declaration) -> dict[str, Topic | None]:
    """What the topics hold now; what a transaction has not committed yet is not lost."""
    from headrace.kafka import Kafka

    with Kafka(connection, timeout_s=_KAFKA_TIMEOUT_S) as kafka:
        return kafka.extents(declaration.all_topics, "uncommitted")


def check_losses(declaration: Declaration, folder: PipelineFolder, found: Mapping[str, Topic | None]) -> None:
    """Every record that the checkpoint has not read is still there; else the error names the ranges."""
    try:
        position = Checkpoint(folder.checkpoint(declaration)).position
    except UsageError:  # it lies on another machine: Spark itself will find out
        position = {}
    rewind = f"headrace pipeline checkpoint rewind {folder.name} --to beginning"
    hint = f"{rewind} continues with the first record that still exists"
    new_topics = recreated(folder, {name: extent.topic_id for name, extent in found.items() if extent})
    if new_topics:
        raise Failed(
            f"the topic {new_topics[0]} was recreated since pipeline {folder.name} last ran",
            why=f"unread records of the deleted topic are lost: {_listed(_unread(new_topics[0], position))}; "
            "offsets of the new topic mean other records",
            hint=hint,
        )
    gone = list(_gone(position, found))
    if gone:
        raise Failed(f"records that pipeline {folder.name} has not read are gone", why=_listed(gone) or None, hint=hint)


def _unread(topic: str, position: Offsets) -> list[str]:
    return [
        f"{name}/{number} from offset {offset:,} on" for (name, number), offset in position.items() if name == topic
    ]


def _gone(position: Offsets, found: Mapping[str, Topic | None]) -> Iterator[str]:
    """The ranges between where the checkpoint is and where the topics begin or end."""
    for (topic, number), offset in sorted(position.items()):
        extent = found.get(topic)
        if extent is None:
            continue
        held = extent.partition(number)
        begin, end = (held.begin, held.end) if held else (None, None)
        if begin is not None and begin > offset:
            yield f"{topic}/{number} offsets {offset:,} to {begin - 1:,} ({begin - offset:,})"
        elif end is not None and end < offset:
            yield f"{topic}/{number} ends at {end:,}, and was read up to {offset:,}"


def _listed(ranges: list[str]) -> str:
    more = f" and {len(ranges) - _LISTED_RANGES} more" if len(ranges) > _LISTED_RANGES else ""
    return ", ".join(ranges[:_LISTED_RANGES]) + more
