"""The pipelines of a home as views: read from declaration, checkpoint and ledger, without Spark.

Their files are read at every poll of the cluster and compared with the ends of the topics that the poll has. What needs
more requests to Kafka or a walk over many files (when the next unread record was written, recreated topics, records
about to expire, the size of the state) is polled less often, in a thread of its own.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from headrace.errors import HeadraceError, UsageError
from headrace.home import Home
from headrace.kafka import Connection, Topic, TopicPartition
from headrace.monitor.snapshot import LedgerView, PipelineOffsetView, PipelineView, Snapshot, TopicView
from headrace.pipeline import PartitionStatus, Pipeline, PipelineStatus
from headrace.runtime import Periodic

_REST_S = 20.0

#: How long ago the record of that partition and offset was written, as far as the watch knows.
Age = Callable[[TopicPartition, int], float | None]


@dataclass(frozen=True)
class _Known:
    """What was asked for in the background."""

    status: PipelineStatus
    state_bytes: int | None

    def age(self, place: TopicPartition, offset: int) -> float | None:
        """How long the record at that offset has been waiting, if it was the next one then already."""
        for p in self.status.partitions:
            if (p.topic, p.partition) == place and p.lag and p.lag_s is not None:
                return p.lag_s + time.time() - self.status.at if p.first_unread == offset else None
        return None


class PipelineWatch(Periodic):
    """Reads the pipelines of one home. A pipeline that is declared wrongly is shown with what is wrong."""

    def __init__(self, home: Home, connection: Connection) -> None:
        super().__init__("pipelines")
        self.home = home
        self.connection = connection
        self._known: dict[str, _Known] = {}
        self._declared: tuple[object, dict[str, Pipeline | HeadraceError]] = (None, {})

    def __call__(self, now: Snapshot, age: Age) -> tuple[PipelineView, ...]:
        """The pipelines by their files, compared with the topics of the snapshot."""
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
            names = Pipeline.names(file)
        except HeadraceError as error:
            yield file.name, error
            return
        for name in names:
            try:
                yield name, Pipeline.from_file(file, name, self.home)
            except HeadraceError as error:
                yield name, error

    # -- what is asked for seldom ---------------------------------------------------------------------------------

    def poll(self) -> float:
        for name, found in self.declared().items():
            if isinstance(found, Pipeline):
                try:
                    self._known[name] = self._ask(found)
                except (HeadraceError, OSError):
                    self._known.pop(name, None)
        return _REST_S

    def _ask(self, found: Pipeline) -> _Known:
        state_bytes = found.checkpoint.state_bytes if _is_local(found) else None
        return _Known(found.status(self.connection), state_bytes)

    # -- a view ---------------------------------------------------------------------------------------------------

    def _view(self, pipeline: Pipeline, now: Snapshot, age: Age) -> PipelineView:
        view = _of_declaration(pipeline)
        try:
            found = pipeline.status(extents={name: _held(now.topics.get(name)) for name in view.sources})
            watermark = pipeline.declaration.watermark and _is_local(pipeline)
            view = replace(view, watermark_ms=pipeline.checkpoint.watermark_ms if watermark else None)
        except (HeadraceError, OSError) as error:
            return replace(view, state="failed", problem=str(error))
        known = self._known.get(pipeline.name)
        found = dataclasses.replace(found, partitions=tuple(_aged(p, known, age) for p in found.partitions))
        warnings = known.status.warnings if known else found.warnings
        return replace(
            _with_account(view, found),
            state_bytes=known.state_bytes if known else None,
            warnings=tuple(w.text for w in warnings),
        )


def _is_local(pipeline: Pipeline) -> bool:
    """Whether its checkpoint is on this machine."""
    try:
        return pipeline.checkpoint is not None
    except UsageError:
        return False


def _of_declaration(pipeline: Pipeline) -> PipelineView:
    declaration = pipeline.declaration
    dead = pipeline.dead_letter_queue
    return PipelineView(
        name=pipeline.name,
        state="never run",
        sources=declaration.all_topics,
        sinks=tuple(f"{sink.kind} {sink.name}" for sink in declaration.sinks),
        steps=_steps(pipeline),
        dead_letters=f"{dead.kind} {dead.target}",
    )


def _steps(pipeline: Pipeline) -> tuple[str, ...]:
    """What is done to a record, in short."""
    declaration = pipeline.declaration
    steps = [f"decode {declaration.decode.format if declaration.decode.step is None else 'by a function'}"]
    if declaration.select:
        steps.append(f"select {len(declaration.select)} columns")
    steps += [lookup.rule for lookup in declaration.lookups]
    if declaration.where or declaration.where_step:
        steps.append("filter rows")
    if declaration.rules:
        steps.append(f"check {len(declaration.rules)} rule{'s' if len(declaration.rules) > 1 else ''}")
    if declaration.deduplicate:
        steps.append("drop duplicates")
    if declaration.join:
        steps.append(f"join on {', '.join(declaration.join.on)}")
    return tuple(steps)


def _held(topic: TopicView | None) -> Topic | None:
    return Topic(topic.name, topic.partitions) if topic else None


def _aged(p: PartitionStatus, known: _Known | None, age: Age) -> PartitionStatus:
    """With how long its next unread record has been waiting, as far as that is known."""
    if not p.lag:
        return p
    place = (p.topic, p.partition)
    lag_s = (known.age(place, p.first_unread) if known else None) or age(place, p.first_unread)
    return dataclasses.replace(p, lag_s=lag_s)


def _offset(p: PartitionStatus) -> PipelineOffsetView:
    return PipelineOffsetView(
        topic=p.topic, partition=p.partition, offset=p.processed, end=p.end, lag=p.lag, lag_s=p.lag_s, lost=p.lost
    )


def _with_account(view: PipelineView, found: PipelineStatus) -> PipelineView:
    """The view with offsets and lag, the last batch and the totals of the ledger."""
    last, totals = found.last_batch, found.totals
    ledger = LedgerView(read=totals.read, balanced=totals.balanced, **totals.outcomes)
    return replace(
        view,
        state=found.state,
        trigger=found.trigger,
        offsets=tuple(map(_offset, found.partitions)),
        lag=found.lag,
        lag_s=found.lag_s,
        catch_up_s=found.catch_up_s if found.rate else None,
        rate_per_s=found.rate,
        batch=last.batch if last else None,
        batch_s=last.seconds if last else None,
        batch_records=last.records if last else None,
        batch_ended=last.ended if last else None,
        ledger=ledger if totals.read or last else None,
        problem=found.why if found.state in {"failed", "waiting"} else None,
    )
