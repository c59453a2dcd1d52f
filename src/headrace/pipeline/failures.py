"""What goes wrong under a run: what passes and is waited out, and what ends it, in words.

Kafka or a registry that does not answer passes, and so does a Spark cluster that has no room. Records that were deleted
or expired before they were read do not: the run stops before its first batch if it can be known then, and names the
ranges that are lost. A full disk and whatever else fails stops it too; nothing of the batch at work counts as done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.errors import Failed, HeadraceError, Unreachable, UsageError
from headrace.pipeline import groups
from headrace.pipeline.changes import recreated
from headrace.pipeline.checkpoint import Checkpoint, Offsets
from headrace.pipeline.declaration import Declaration
from headrace.pipeline.flow import in_words as spark_in_words
from headrace.pipeline.folder import PipelineFolder
from headrace.pipeline.session import is_local, spark_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.transport.client import Connection
    from headrace.transport.extent import TopicExtent

_AWAY = (
    "TimeoutException", "DisconnectException", "BrokerNotAvailable", "No resolvable bootstrap", "UnknownHost",
    "LeaderNotAvailable", "NotLeaderOrFollower",
)  # fmt: skip
_LOSS = ("data loss", "failOnDataLoss", "OffsetOutOfRange", "UnknownTopicOrPartition", "offset was changed from")
_TOLD_RANGES = 5


def passes(error: Exception) -> bool:
    """Whether it is enough to wait: somebody who is needed does not answer."""
    return isinstance(error, Unreachable) or any(sign in str(error) for sign in _AWAY)


def short(error: Exception) -> str:
    """The error in a line."""
    return error.problem if isinstance(error, HeadraceError) else spark_in_words(error)[:200]


def in_words(
    error: Exception, declaration: Declaration, folder: PipelineFolder, connection: Connection
) -> HeadraceError:
    """What ended the query, for a person."""
    if isinstance(error, HeadraceError):
        return error
    text = str(error)
    if any(sign in text for sign in _LOSS):
        with suppress(Unreachable):
            try:
                check_losses(declaration, folder, held(connection, declaration))
            except Failed as lost:
                return lost
    if "No space left on device" in text:
        return Failed(
            f"pipeline {declaration.name} stopped: the disk is full",
            why="nothing of the batch counts as done; it is taken again at the next start",
            hint="make room, then start it again",
        )
    said = groups.thrown(error)
    if said is not None:
        where = declaration.place("into")
        return Failed(f"{where}: an expression of {declaration.name} cannot be computed", why=said, hint=groups.HINT)
    return Failed(f"pipeline {declaration.name} failed", why=spark_in_words(error)[:500], log=spark_log())


def require_executors(spark: SparkSession) -> None:
    """Spark has somebody to run the job at hand: a cluster that is busy or too small gives nobody, and says nothing."""
    context = spark.sparkContext
    if is_local(context.master) or not context.statusTracker().getActiveJobsIds():
        return
    executors = context._jsc.sc().getExecutorMemoryStatus().size() - 1  # the driver is among them
    if not executors:
        raise Unreachable(
            f"Spark at {context.master} has given no executor",
            why="its workers are busy, or have less than spark.executor.memory and spark.executor.cores ask for",
            hint='"spark.executor.memory" = "512m", in the spark table of the pipeline, asks for less',
        )


def held(connection: Connection, declaration: Declaration) -> dict[str, TopicExtent | None]:
    """What the topics hold now; what a transaction has not committed yet is not lost."""
    from headrace.transport.extent import extents

    return extents(connection, declaration.topics, "uncommitted")


def check_losses(declaration: Declaration, folder: PipelineFolder, found: Mapping[str, TopicExtent | None]) -> None:
    """Every record that the checkpoint has not read is still there; else the error names the ranges."""
    try:
        position = Checkpoint(folder.checkpoint(declaration)).position
    except UsageError:  # it lies on another machine: Spark itself will find out
        position = {}
    hint = (
        f"headrace pipeline checkpoint rewind {folder.name} --to beginning goes on with the first record that is there"
    )
    strange = recreated(folder, {name: extent.topic_id for name, extent in found.items() if extent})
    if strange:
        raise Failed(
            f"the topic {strange[0]} was recreated since pipeline {folder.name} last ran",
            why=f"unread records of the deleted topic are lost: {_told(_unread(strange[0], position))}; the new one's "
            "would be taken for read",
            hint=hint,
        )
    gone = list(_gone(position, found))
    if gone:
        raise Failed(f"records that pipeline {folder.name} has not read are gone", why=_told(gone) or None, hint=hint)


def _unread(topic: str, position: Offsets) -> list[str]:
    return [
        f"{name}/{number} from offset {offset:,} on" for (name, number), offset in position.items() if name == topic
    ]


def _gone(position: Offsets, found: Mapping[str, TopicExtent | None]) -> Iterator[str]:
    """The ranges between where the checkpoint is and where the topics begin or end."""
    for (topic, number), offset in sorted(position.items()):
        extent = found.get(topic)
        if extent is None:
            continue
        begin, end = extent.begins.get(number), extent.ends.get(number)
        if begin is not None and begin > offset:
            yield f"{topic}/{number} offsets {offset:,} to {begin - 1:,} ({begin - offset:,})"
        elif end is not None and end < offset:
            yield f"{topic}/{number} ends at {end:,}, and was read up to {offset:,}"


def _told(ranges: list[str]) -> str:
    more = f" and {len(ranges) - _TOLD_RANGES} more" if len(ranges) > _TOLD_RANGES else ""
    return ", ".join(ranges[:_TOLD_RANGES]) + more
