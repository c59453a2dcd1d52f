"""Rows of a batch into Kafka, each exactly once, from as many tasks as there are.

A row always falls to the task that its source partition belongs to, also when the batch is computed again. Each task
is a writer of its own (`kafka/write/exactly_once.py`): its rows and the mark of the batch become visible by one commit,
and a task that finds its batch marked writes nothing. So a batch may be cut off anywhere, in a task, between tasks,
before Spark has noted that it is done, and be repeated: every row is there once.

Writers are kept in Spark's Python workers from batch to batch, because opening one costs round trips. A worker cannot
know whether its writer was opened elsewhere since; Kafka says so to the first rows, which are still at hand then.

Spark may have given up a task whose worker is still on its way: if that one opens the writer after the task that
repeats it, Kafka fences the wrong one of the two. Then the batch is repeated once more: both were of the same rows.

What a task cannot do is in its result, not raised: Spark would wrap it in two stack traces.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace import errors
from headrace.errors import Failed, Fenced, HeadraceError
from headrace.kafka import Connection
from headrace.kafka.write import Mark, MarkedWriter, Records, prepare, settle

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import Column, DataFrame

__all__ = ["KafkaTarget", "SinkResult", "prepare", "raisable", "task_of", "write_exactly_once", "write_here"]

_COLUMNS = ("topic", "key", "value", "headers", "_topic", "_partition")
_RESULT = "records long, replayed boolean, kind string, problem string, why string, hint string"
# A worker that Spark has no use for ends after a minute; a writer of a pipeline that stopped shall not stay longer.
_IDLE_S = 60.0
# Workers left behind come to an end; two runs that fence each other must not be kept at it for ever.
_REPEATS = 2


@dataclass(frozen=True)
class KafkaTarget:
    """Where a batch goes and under which name.

    `writer` is unique for the pipeline, the sink and the numbering of batches; `tasks` never changes for a writer.
    `replaying`: an attempt at this batch may have been made before this process began.
    """

    connection: Connection
    writer: str
    batch: int
    tasks: int = 1
    replaying: bool = False

    def name_of(self, task: int) -> str:
        """The transactional id of a task."""
        return f"{self.writer}-{task}"


@dataclass(frozen=True)
class SinkResult:
    """How many records of the batch are in Kafka; `replayed`: an earlier attempt had written some or all of them."""

    records: int
    replayed: bool

    @property
    def new_records(self) -> int | None:
        """How many this attempt has written; None if there was an earlier one."""
        return None if self.replayed else self.records


def write_exactly_once(rows: DataFrame, target: KafkaTarget, *, shuffled: bool = False) -> SinkResult:
    """Every row is in its topic, once. `rows` has topic, key, value, headers, and _topic, _partition of its source.

    A column `_offset` is used to name a record that Kafka refuses; rows that were shuffled are put in its order again.
    """
    from pyspark.sql import functions as F

    from headrace.pipeline.spark.internals import map_in_arrow

    offset = F.col("_offset") if "_offset" in rows.columns else F.lit(None).cast("long")
    wanted = rows.select(*_COLUMNS, offset.alias("_offset"), task_of(target.tasks).alias("_task"))
    spread = wanted.repartitionById(target.tasks, F.col("_task"))
    spread = spread.sortWithinPartitions("_topic", "_partition", "_offset") if shuffled else spread
    written = map_in_arrow(spread, partial(_write_task, target), _RESULT)
    return _result(target, lambda: [_Outcome(**row.asDict()) for row in written.collect()])


def write_here(rows: pyarrow.Table, target: KafkaTarget) -> SinkResult:
    """The same for rows that were brought here, with their `_task`: by this process, in the place of every worker."""
    import pyarrow.compute as pc

    def chunks(task: int) -> Iterator[pyarrow.RecordBatch]:
        return iter(rows.filter(pc.equal(rows["_task"], task)).to_batches())

    return _result(target, lambda: [_outcome(target, task, chunks(task)) for task in range(target.tasks)])


def task_of(tasks: int) -> Column:
    """To which of so many tasks a row falls, by where it came from."""
    from pyspark.sql import functions as F

    source = "crc32(cast(coalesce(_topic, '') as binary)) + coalesce(_partition, 0)"
    return F.expr(f"cast(pmod({source}, {tasks}) as int)")


def _result(target: KafkaTarget, attempt: Callable[[], list[_Outcome]]) -> SinkResult:
    """What the tasks have done, having been overtaken a few times at most."""
    names = [target.name_of(task) for task in range(target.tasks)]
    if target.replaying:
        settle(target.connection, names)
    outcomes = attempt()
    for _ in range(_REPEATS):
        if {outcome.kind for outcome in outcomes} - {None} != {Fenced.__name__}:
            break
        settle(target.connection, names)
        outcomes = attempt()
    for outcome in outcomes:
        if outcome.kind is not None:
            raise raisable(outcome.kind, outcome.problem or "", outcome.why, outcome.hint)
    return SinkResult(sum(outcome.records for outcome in outcomes), any(outcome.replayed for outcome in outcomes))


# -- in a task ---------------------------------------------------------------------------------------------------------


@dataclass
class _Outcome:
    records: int = 0
    replayed: bool = False
    kind: str | None = None
    problem: str | None = None
    why: str | None = None
    hint: str | None = None


def _write_task(target: KafkaTarget, chunks: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow
    from pyspark import TaskContext

    task = TaskContext.get()
    assert task is not None, "runs inside a task only"
    outcome = _outcome(target, task.partitionId(), chunks)
    text = pyarrow.string()
    types = (pyarrow.int64(), pyarrow.bool_(), text, text, text, text)
    schema = pyarrow.schema(list(zip(asdict(outcome), types, strict=True)))
    yield pyarrow.RecordBatch.from_pylist([asdict(outcome)], schema)


def _outcome(target: KafkaTarget, task: int, chunks: Iterator[pyarrow.RecordBatch]) -> _Outcome:
    """What the task has done, or why not."""
    try:
        return write_chunks(target, task, chunks)
    except HeadraceError as error:
        # Spark ends a worker that leaves its input unread, and the other writers in it would have to be opened anew.
        for _ in chunks:
            continue
        return _Outcome(0, False, type(error).__name__, error.problem, error.why, error.hint)


def write_chunks(target: KafkaTarget, task: int, chunks: Iterator[pyarrow.RecordBatch]) -> _Outcome:
    """The rows of the task are in Kafka, by this attempt or an earlier one."""
    first = next((chunk for chunk in chunks if chunk.num_rows), None)
    if first is None:
        return _Outcome()
    name = target.name_of(task)
    try:
        writer = _begun(target, name, task, first)
        if writer.has(target.batch):
            return _skipped(writer.mark, target, first, chunks)
        count = first.num_rows
        for chunk in chunks:
            writer.send(_records(chunk, task))
            count += chunk.num_rows
        writer.commit_batch(Mark(target.batch, count, target.tasks))
    except BaseException:
        _forget(name)
        raise
    return _Outcome(count)


def _begun(target: KafkaTarget, name: str, task: int, first: pyarrow.RecordBatch) -> MarkedWriter:
    """A writer that has either the batch already or a transaction with the first rows in it."""
    writer, is_new = _writer(target.connection, name)
    if not is_new and not writer.has(target.batch):
        try:
            _begin(writer, first, task)
        except Failed:  # opened elsewhere since, or forgotten by Kafka
            _forget(name)
            writer, is_new = _writer(target.connection, name)
    if is_new and not writer.has(target.batch):
        _begin(writer, first, task)
    return writer


def _begin(writer: MarkedWriter, first: pyarrow.RecordBatch, task: int) -> None:
    writer.begin()
    writer.send(_records(first, task))
    writer.flush()


def _skipped(
    mark: Mark | None, target: KafkaTarget, first: pyarrow.RecordBatch, rest: Iterator[pyarrow.RecordBatch]
) -> _Outcome:
    """The rows are read for their number only; of the marked batch it is known."""
    count = first.num_rows + sum(chunk.num_rows for chunk in rest)
    if mark is None or mark.batch != target.batch:
        return _Outcome(count, replayed=True)
    if mark.parts != target.tasks:
        raise Failed(
            f"batch {target.batch} was begun by {mark.parts} tasks and is repeated by {target.tasks}",
            why="its rows fall to other tasks now: some would be written twice, some not at all",
            hint=f"finish it with {mark.parts} tasks",
        )
    return _Outcome(mark.records, replayed=True)


_writers: dict[str, tuple[MarkedWriter, float]] = {}


def _writer(connection: Connection, name: str) -> tuple[MarkedWriter, bool]:
    """The writer of this worker, and whether it was opened just now."""
    now = time.monotonic()
    for other, (_, used) in list(_writers.items()):
        if now - used > _IDLE_S:
            _forget(other)
    kept = _writers.get(name)
    writer = kept[0] if kept else MarkedWriter(connection, name)
    _writers[name] = writer, now
    return writer, kept is None


def _forget(name: str) -> None:
    kept = _writers.pop(name, None)
    if kept:
        kept[0].close()


def _records(chunk: pyarrow.RecordBatch, task: int) -> Records:
    """The columns as lists. All rows must be of this task: rows that wander between tasks would be written twice."""
    import pyarrow.compute as pc

    if pc.any(pc.not_equal(chunk.column("_task"), task)).as_py():
        raise Failed(f"rows of another task came to task {task}", why="Spark did not keep the partitioning asked for")

    def came_from(at: int) -> str:
        topic, partition, offset = (chunk.column(name)[at].as_py() for name in ("_topic", "_partition", "_offset"))
        return f"made of {topic}/{partition}" + (f" offset {offset}" if offset is not None else "")

    return Records(
        chunk.column("topic").to_pylist(), chunk.column("key").to_pylist(), chunk.column("value").to_pylist(),
        _headers(chunk.column("headers")), came_from,
    )  # fmt: skip


def _headers(column: Any) -> list[list[tuple[str, bytes | None]] | None] | None:
    """Lists of pairs, cut from one flat list: Arrow's own way makes a dictionary of each header."""
    if column.null_count == len(column):
        return None
    flat = column.flatten()
    pairs = list(zip(flat.field(0).to_pylist(), flat.field(1).to_pylist(), strict=True))
    sizes = column.value_lengths().to_pylist()
    cut: list[list[tuple[str, bytes | None]] | None] = []
    at = 0
    for size in sizes:
        cut.append(None if size is None else pairs[at : at + size])
        at += size or 0
    return cut


def raisable(kind: str, problem: str, why: str | None, hint: str | None) -> HeadraceError:
    """The error that a task has put into its result."""
    known = getattr(errors, kind, Failed)
    with suppress(TypeError):
        if issubclass(known, HeadraceError):
            return known(problem, why=why, hint=hint)
    return Failed(problem, why=why, hint=hint)
