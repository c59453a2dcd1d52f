"""The pipelines of a home as views: read from declaration, checkpoint and ledger, without Spark.

Their files are looked at with every look at the cluster, and held against the ends that the watch knows anyway. What
only a question to Kafka or a walk over many files can tell (when the next unread record was written, topics that were
made anew, records about to expire, the size of the state) is asked for more seldom, in a thread of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from headrace.errors import HeadraceError
from headrace.home import Home, size_bytes
from headrace.monitor.snapshot import LedgerView, PipelineOffsetView, PipelineView, Snapshot, TopicView
from headrace.pipeline.checkpoint import Checkpoint
from headrace.pipeline.declaration import Declaration, declared
from headrace.pipeline.pipeline import Pipeline
from headrace.pipeline.status import PartitionStatus, PipelineStatus, Totals, partitions_of, status
from headrace.runtime import Rounds
from headrace.transport.client import Connection
from headrace.transport.extent import TopicExtent
from headrace.transport.topics import TopicPartition

_REST_S = 20.0

#: How long ago the record of that partition and offset was written, as far as the watch knows.
Age = Callable[[TopicPartition, int], float | None]


@dataclass(frozen=True)
class _Told:
    """What was asked for in the background."""

    status: PipelineStatus
    state_bytes: int | None

    def age(self, place: TopicPartition, offset: int) -> float | None:
        """How long the record at that offset has been waiting, if it was the next one then already."""
        for p in self.status.partitions:
            if (p.topic, p.partition) == place and p.lag and p.lag_s is not None:
                first = max(p.processed or 0, p.begin or 0)
                return p.lag_s + time.time() - self.status.at if first == offset else None
        return None


class PipelineWatch(Rounds):
    """Reads the pipelines of one home. A pipeline that is declared wrongly is shown with what is wrong."""

    def __init__(self, home: Home, connection: Connection) -> None:
        super().__init__("pipelines")
        self.home = home
        self.connection = connection
        self._told: dict[str, _Told] = {}
        self._declared: tuple[object, dict[str, Pipeline | HeadraceError]] = (None, {})

    def __call__(self, now: Snapshot, age: Age) -> tuple[PipelineView, ...]:
        """The pipelines as their files tell them, held against the topics of the snapshot."""
        return tuple(
            self._view(found, now, age)
            if isinstance(found, Pipeline)
            else PipelineView(name=name, state="failed", sources=(), sinks=(), problem=str(found))
            for name, found in self.declared().items()
        )

    def declared(self) -> dict[str, Pipeline | HeadraceError]:
        """What headrace.toml declares, or what is wrong with it; read again when it has changed."""
        file = self.home.config_file
        try:
            version = (file, file.stat().st_mtime_ns)
        except OSError:
            return {}
        if self._declared[0] != version:
            self._declared = (version, dict(self._read(file)))
        return self._declared[1]

    def _read(self, file: Path) -> Iterator[tuple[str, Pipeline | HeadraceError]]:
        try:
            names = declared(file)
        except HeadraceError as error:
            yield file.name, error
            return
        for name in names:
            try:
                yield name, Pipeline.from_file(file, name, self.home)
            except HeadraceError as error:
                yield name, error

    # -- what is asked for seldom ---------------------------------------------------------------------------------

    def look(self) -> float:
        for name, found in self.declared().items():
            if isinstance(found, Pipeline):
                try:
                    self._told[name] = self._ask(found)
                except (HeadraceError, OSError):
                    self._told.pop(name, None)
        return _REST_S

    def _ask(self, found: Pipeline) -> _Told:
        checkpoint = _checkpoint(found)
        stateful = checkpoint is not None and checkpoint.is_stateful
        state_bytes = size_bytes(checkpoint.root / "state") if checkpoint and stateful else None
        return _Told(status(self.connection, self.home, found.declaration), state_bytes)

    # -- a view ---------------------------------------------------------------------------------------------------

    def _view(self, pipeline: Pipeline, now: Snapshot, age: Age) -> PipelineView:
        view = _of_declaration(pipeline)
        try:
            found = status(None, self.home, pipeline.declaration)
            view = replace(view, watermark_ms=_watermark_ms(pipeline))
        except (HeadraceError, OSError) as error:
            return replace(view, state="failed", problem=str(error))
        told = self._told.get(pipeline.name)
        offsets = tuple(_offset(p, told, age) for p in _held_against(now, pipeline.declaration, found))
        warnings = told.status.warnings if told else found.warnings
        return replace(
            _with_account(view, found),
            offsets=offsets,
            state_bytes=told.state_bytes if told else None,
            warnings=tuple(w.text for w in warnings),
            **_behind(offsets, found.rate),
        )


def _checkpoint(pipeline: Pipeline) -> Checkpoint | None:
    """The checkpoint, if it lies on this machine."""
    path = pipeline.folder.checkpoint(pipeline.declaration)
    return None if "://" in path and not path.startswith("file://") else Checkpoint(path)


def _watermark_ms(pipeline: Pipeline) -> int | None:
    """The event time up to which windows are closed, as of the last batch; Spark writes it into each batch's plan."""
    checkpoint = _checkpoint(pipeline) if pipeline.declaration.watermark else None
    planned = checkpoint.last_planned if checkpoint else None
    if checkpoint is None or planned is None:
        return None
    return int(checkpoint.plan_file(planned)[0].get("batchWatermarkMs", 0)) or None


def _of_declaration(pipeline: Pipeline) -> PipelineView:
    declaration = pipeline.declaration
    dead = pipeline.folder.dead_letters(declaration)
    return PipelineView(
        name=pipeline.name,
        state="never run",
        sources=declaration.topics,
        sinks=tuple(f"{sink.kind} {sink.name}" for sink in declaration.sinks),
        steps=_steps(declaration),
        dead_letters=f"{dead.kind} {dead.target}",
    )


def _steps(declaration: Declaration) -> tuple[str, ...]:
    """What is done to a record on its way, in few words."""
    steps = [f"decode {declaration.decode.format if declaration.decode.step is None else 'by a function'}"]
    if declaration.select:
        steps.append(f"select {len(declaration.select)} columns")
    if declaration.where or declaration.where_step:
        steps.append("filter rows")
    if declaration.rules:
        steps.append(f"check {len(declaration.rules)} rule{'s' if len(declaration.rules) > 1 else ''}")
    if declaration.deduplicate:
        steps.append("drop duplicates")
    return tuple(steps)


def _held_against(now: Snapshot, declaration: Declaration, found: PipelineStatus) -> list[PartitionStatus]:
    extents = {name: _extent(now.topics.get(name)) for name in declaration.topics}
    position = {(p.topic, p.partition): p.processed for p in found.partitions if p.processed is not None}
    return partitions_of(extents, declaration, position)


def _extent(topic: TopicView | None) -> TopicExtent | None:
    if topic is None:
        return None
    begins = {p.partition: p.begin for p in topic.partitions}
    return TopicExtent(topic.name, None, begins, {p.partition: p.end for p in topic.partitions}, None)


def _offset(p: PartitionStatus, told: _Told | None, age: Age) -> PipelineOffsetView:
    lag_s, place = p.lag_s, (p.topic, p.partition)
    if p.lag:
        first = max(p.processed or 0, p.begin or 0)
        lag_s = (told.age(place, first) if told else None) or age(place, first)
    return PipelineOffsetView(
        topic=p.topic, partition=p.partition, offset=p.processed, end=p.end, lag=p.lag, lag_s=lag_s, lost=p.lost
    )


def _behind(offsets: tuple[PipelineOffsetView, ...], rate: float | None) -> dict[str, float | int | None]:
    """What is unread in all; None as long as that of one partition is unknown."""
    lags = [o.lag for o in offsets]
    lag = None if not lags or None in lags else sum(n or 0 for n in lags)
    return {
        "lag": lag,
        "lag_s": max((o.lag_s for o in offsets if o.lag_s is not None), default=None),
        "catch_up_s": lag / rate if lag is not None and rate else None,
    }


def _with_account(view: PipelineView, found: PipelineStatus) -> PipelineView:
    """The view with what the run, its last batch and the ledger tell."""
    last = found.last_batch
    return replace(
        view,
        state=found.state,
        trigger=found.trigger,
        rate_per_s=found.rate,
        batch=last.batch if last else None,
        batch_s=last.seconds if last else None,
        batch_records=last.records if last else None,
        batch_ended=last.ended if last else None,
        ledger=_ledger(found.totals) if found.totals.read or last else None,
        problem=found.why if found.state in {"failed", "waiting"} else None,
    )


def _ledger(totals: Totals) -> LedgerView:
    return LedgerView(read=totals.read, balanced=totals.balanced, **totals.outcomes)
