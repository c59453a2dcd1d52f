"""Progress and lag of a pipeline, whether it runs or not: from its checkpoint, its ledger, and the ends of its topics.

Spark commits no offsets to Kafka, so Kafka's tools cannot show the lag; the checkpoint can. It is compared with the
topics: records that expired unread are lost, a topic of the same name with another id is another topic, and there is a
warning before a record expires. If Kafka is unreachable, what only it knows is None. A status costs a handful of
requests, however many partitions there are. Nothing here starts a JVM or changes anything.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import HeadraceError, Unreachable, UsageError
from headrace.pipeline.books.checkpoint import Checkpoint, Offsets, Place
from headrace.pipeline.books.folder import PipelineFolder
from headrace.pipeline.books.ledger import OUTCOMES, Ledger
from headrace.pipeline.declare.changes import recreated
from headrace.pipeline.declare.declaration import Declaration
from headrace.text import duration

if TYPE_CHECKING:
    from headrace.home import Home
    from headrace.kafka import Connection, Isolation, Partition, Topic

State = Literal["running", "waiting", "stopped", "failed", "never run"]

# A record that has used up so much of its time, or of the room for it, and is still unread is in danger.
_OLD = 0.8
# Whoever looks at a status must not wait long for a Kafka that is away.
_KAFKA_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class PartitionStatus:
    """One partition: processed up to, and what is left. None: unknown."""

    topic: str
    partition: int
    processed: int | None
    begin: int | None
    end: int | None
    #: Offsets that are not read yet, which is at most so many records.
    lag: int | None
    #: How long the next unread record has been waiting; 0 when there is none.
    lag_s: float | None
    #: Offsets that expired or were deleted before they were read: from `processed` up to `begin`.
    lost: int = 0
    #: When retention may take the next unread record; negative: it may go any moment.
    expires_in_s: float | None = None
    #: How much of what `retention.bytes` keeps is unread; beyond 1 unread records are deleted. None: there is no limit.
    unread_share: float | None = None

    @property
    def first_unread(self) -> int:
        return max(self.processed or 0, self.begin or 0)


@dataclass(frozen=True)
class Warned:
    """A warning. `loud`: records are lost, or will not be read."""

    text: str
    loud: bool = False


@dataclass(frozen=True)
class LastBatch:
    """The last batch that was finished."""

    batch: int
    ended: float
    seconds: float
    records: int | None


@dataclass(frozen=True)
class Totals:
    """The account of all runs."""

    read: int
    outcomes: dict[str, int]
    balanced: bool

    @property
    def dead_letters(self) -> int:
        """Records that were rejected: dead, or too late."""
        return self.outcomes["dead"] + self.outcomes["late"]


@dataclass(frozen=True)
class PipelineStatus:
    """A pipeline at a moment."""

    pipeline: str
    state: State
    #: Why it failed, or what it waits for.
    why: str | None
    pid: int | None
    run: str | None
    trigger: str
    partitions: tuple[PartitionStatus, ...]
    #: Recent records per second; None while nothing runs.
    rate: float | None
    last_batch: LastBatch | None
    totals: Totals
    warnings: tuple[Warned, ...]
    at: float

    @property
    def lag(self) -> int | None:
        """Of all partitions; None if that of one is unknown."""
        lags = [p.lag for p in self.partitions]
        return None if not lags or None in lags else sum(lag or 0 for lag in lags)

    @property
    def lag_s(self) -> float | None:
        """The longest wait of an unread record."""
        known = [p.lag_s for p in self.partitions if p.lag_s is not None]
        return max(known) if known else None

    @property
    def catch_up_s(self) -> float | None:
        """How long what is unread now will take; None while nothing is read. What is written meanwhile is not in it."""
        if self.lag == 0:
            return 0.0
        return self.lag / self.rate if self.lag is not None and self.rate else None

    @property
    def lost(self) -> int:
        return sum(p.lost for p in self.partitions)

    def document(self) -> dict[str, Any]:
        return {
            **asdict(self), "lag": self.lag, "lag_s": self.lag_s, "catch_up_s": self.catch_up_s, "lost": self.lost,
            "totals": {**asdict(self.totals), "dead_letters": self.totals.dead_letters},
        }  # fmt: skip


def status(
    connection: Connection | None,
    home: Home,
    declaration: Declaration,
    *,
    extents: Mapping[str, Topic | None] | None = None,
) -> PipelineStatus:
    """The progress of the pipeline. The lag is unknown without a connection or extents, or if Kafka is unreachable."""
    return _Status(home, declaration).read(connection, extents)


class _Status:
    """Reads one status; `warnings` are collected on the way."""

    def __init__(self, home: Home, declaration: Declaration) -> None:
        self.declaration = declaration
        self.folder = PipelineFolder(home, declaration.name)
        self.ledger = Ledger(self.folder.root)
        self.runs = self.ledger.runs()
        self.warnings: list[Warned] = []
        self.now = time.time()

    def read(self, connection: Connection | None, extents: Mapping[str, Topic | None] | None) -> PipelineStatus:
        checkpoint, position = self._position()
        state, why = self._state()
        if extents is not None:
            partitions = _compared(extents, self.declaration, position)
        else:
            partitions = self._partitions(connection, position)
        trigger = self.declaration.trigger
        found = PipelineStatus(
            pipeline=self.declaration.name, state=state, why=why, pid=self.folder.holder,
            run=self.folder.state.get("run"),
            trigger=f"every {trigger.seconds:g} s" if trigger.kind == "every" else trigger.kind,
            partitions=tuple(partitions), rate=self.ledger.recent_rate() if state in {"running", "waiting"} else None,
            last_batch=self._last_batch(checkpoint), totals=self._totals(), warnings=(), at=self.now,
        )  # fmt: skip
        if not found.totals.balanced:
            self._warn(f"the ledger does not balance: headrace pipeline ledger {self.declaration.name}", loud=True)
        self.warnings += _expiring(found)
        return replace(found, warnings=tuple(sorted(self.warnings, key=lambda warning: not warning.loud)))

    def _warn(self, text: str, *, loud: bool = False) -> None:
        self.warnings.append(Warned(text, loud))

    # -- what is on disk -----------------------------------------------------------------------------------------------

    def _position(self) -> tuple[Checkpoint | None, Offsets]:
        """From the checkpoint; if that is not on this machine, from the ledger of the last run."""
        try:
            checkpoint = Checkpoint(self.folder.checkpoint(self.declaration))
        except UsageError as elsewhere:
            lines = self.ledger.lines(self.runs[-1].run) if self.runs else []
            self._warn(f"{elsewhere.problem}: the offsets are those of the ledger of the last run")
            return None, {(line.topic, line.partition): line.next for line in lines}
        try:
            checkpoint.check()
            position = checkpoint.position
        except HeadraceError as error:
            self._warn(f"{error.problem}: {error.why}", loud=True)
            return None, {}
        return checkpoint, position

    def _state(self) -> tuple[State, str | None]:
        """The lock says whether it runs, the state file how it was."""
        last = self.folder.state
        state = last.get("state")
        if self.folder.is_locked:
            return ("waiting", last.get("why")) if state == "waiting" else ("running", None)
        if state in {"running", "waiting"}:
            return "failed", f"its process (pid {last.get('pid')}) was killed"
        if state == "failed":
            return "failed", last.get("error")
        return ("stopped" if last or self.runs else "never run"), None

    def _last_batch(self, checkpoint: Checkpoint | None) -> LastBatch | None:
        number = checkpoint.last_committed if checkpoint else None
        if checkpoint is None or number is None:
            return None
        try:
            plan = checkpoint.plan(number)
            planned, ended = ((checkpoint.root / kind / str(number)).stat().st_mtime for kind in ("offsets", "commits"))
        except (HeadraceError, OSError) as error:  # a running query cleans up behind itself
            self._warn(f"the last batch cannot be read: {error}")
            return None
        return LastBatch(number, ended, max(0.0, ended - planned), plan.records)

    def _totals(self) -> Totals:
        outcomes = {outcome: sum(run.outcomes[outcome] for run in self.runs) for outcome in OUTCOMES}
        # A run that was cut off has a batch that was read and not entered; the run after it repeats that batch.
        return Totals(sum(run.read for run in self.runs), outcomes, all(run.balanced for run in self.runs))

    # -- what Kafka has ------------------------------------------------------------------------------------------------

    def _partitions(self, connection: Connection | None, position: Offsets) -> list[PartitionStatus]:
        unknown = [PartitionStatus(*place, offset, None, None, None, None) for place, offset in position.items()]
        if connection is None:
            return unknown
        from headrace.kafka import Kafka

        isolation: Isolation = "uncommitted" if "read_uncommitted" in self.declaration.kafka.values() else "committed"
        try:
            with Kafka(connection, timeout_s=_KAFKA_TIMEOUT_S) as kafka:
                found = kafka.extents(self.declaration.all_topics, isolation)
                self._warn_of_topics(found)
                partitions = _compared(found, self.declaration, position)
                behind = {(p.topic, p.partition): p.first_unread for p in partitions if p.lag}
                following = kafka.next_records(behind, isolation)
        except Unreachable as error:
            self._warn(f"{error.problem}: the lag is unknown")
            return unknown
        for p in partitions:
            if p.lost and p.processed is not None and p.begin is not None:
                gone = f"offsets {p.processed:,} to {p.begin - 1:,} were deleted unread ({p.lost:,})"
                self._warn(f"{p.topic}/{p.partition}: {gone}", loud=True)
        return [self._aged(p, found[p.topic], following.get((p.topic, p.partition))) for p in partitions]

    def _aged(
        self, partition: PartitionStatus, extent: Topic | None, following: tuple[int, int] | None
    ) -> PartitionStatus:
        """With how long the next unread record has been waiting, and how long until it may be deleted."""
        if following is None or not partition.lag:
            return partition
        age_s = self.now - following[1] / 1000
        limit_ms = extent.retention_ms if extent else None
        left_s = None if limit_ms is None else limit_ms / 1000 - age_s
        return replace(partition, lag_s=max(0.0, age_s), expires_in_s=left_s)

    def _warn_of_topics(self, found: dict[str, Topic | None]) -> None:
        for name, extent in found.items():
            if extent is None:
                self._warn(f"topic {name} does not exist: it was deleted, or never created", loud=True)
        for name in recreated(self.folder, {name: extent.topic_id for name, extent in found.items() if extent}):
            self._warn(
                f"topic {name} was recreated since the last run: the checkpoint's offsets belong to the deleted one; "
                f"headrace pipeline checkpoint rewind {self.folder.name} --to beginning reads the new one",
                loud=True,
            )


def _compared(found: Mapping[str, Topic | None], declaration: Declaration, position: Offsets) -> list[PartitionStatus]:
    """The position compared with the topics, also in partitions that were not read yet."""
    existing = {(name, p.partition) for name, extent in found.items() if extent for p in extent.partitions}
    return [_partition(place, found.get(place[0]), declaration, position) for place in sorted(existing | set(position))]


def _partition(place: Place, extent: Topic | None, declaration: Declaration, position: Offsets) -> PartitionStatus:
    held = extent.partition(place[1]) if extent else None
    begin, end = (held.begin, held.end) if held else (None, None)
    processed = position.get(place)
    # A partition that is not in the checkpoint is read from its beginning; only a first run uses `start`.
    from_beginning = bool(position) or declaration.start in {"beginning", "earliest"}
    base = processed if processed is not None else begin if from_beginning else None
    lost = max(0, begin - processed) if begin is not None and processed is not None else 0
    lag = max(0, end - max(base, begin or 0)) if end is not None and base is not None else None
    share = _unread_share(extent.retention_bytes, held, lag) if extent and held and lag else None
    return PartitionStatus(*place, processed, begin, end, lag, 0.0 if lag == 0 else None, lost, unread_share=share)


def _unread_share(limit: int | None, held: Partition, lag: int) -> float | None:
    """As if all records of the partition were of one size."""
    if not limit or held.size_bytes is None or not held.offsets:
        return None
    return held.size_bytes * lag / held.offsets / limit


def _expiring(made: PipelineStatus) -> list[Warned]:
    """Retention is about to overtake the pipeline: the next unread record has little of its time left."""
    catch_up_s = made.catch_up_s or 0.0
    found = []
    for p in made.partitions:
        if p.unread_share is not None and p.unread_share > _OLD:
            text = f"{p.topic}/{p.partition}: unread records fill {p.unread_share:.0%} of what retention.bytes keeps"
            found.append(Warned(text, loud=p.unread_share >= 1))
        if p.expires_in_s is None or p.lag_s is None:
            continue
        kept_s = p.lag_s + p.expires_in_s
        if p.lag_s > _OLD * kept_s or (made.rate and p.expires_in_s < catch_up_s):
            when = "any moment" if p.expires_in_s <= 0 else f"in {duration(p.expires_in_s)}"
            text = f"{p.topic}/{p.partition}: retention may delete unread records {when}, {p.lag:,} are unread"
            found.append(Warned(text, loud=p.expires_in_s <= 0))
    return found
