"""How far a pipeline has got, whether it runs or not: from its checkpoint, its ledger, and the ends of its topics.

Spark commits nothing to Kafka, so no tool of Kafka's can tell; the checkpoint can, also while nothing runs. What was
not read is held against what the topics hold: records that expired unread are lost, a topic of the same name with
another id is another topic, and a record that is about to expire is told while there is time.
Kafka may be away: what only it knows is None then. A status costs a handful of requests, however many partitions there
are. Nothing here starts a JVM or changes anything.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import HeadraceError, Unreachable, UsageError
from headrace.pipeline.changes import recreated
from headrace.pipeline.checkpoint import Checkpoint, Offsets, Place
from headrace.pipeline.declaration import Declaration
from headrace.pipeline.folder import PipelineFolder
from headrace.pipeline.ledger import OUTCOMES, Ledger

if TYPE_CHECKING:
    from headrace.home import Home
    from headrace.transport.client import Connection
    from headrace.transport.extent import TopicExtent
    from headrace.transport.offsets import Isolation

State = Literal["running", "waiting", "stopped", "failed", "never run"]

# A record that has used up so much of its time, or of the room for it, and is still unread is in danger.
_OLD = 0.8


@dataclass(frozen=True)
class PartitionStatus:
    """One partition: processed up to, and what is left of it. None is what nobody could tell."""

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


@dataclass(frozen=True)
class Warned:
    """What a person should know. `loud`: records are lost, or will not be read."""

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
        """Records that were set aside: dead, or too late."""
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
    #: Records per second of late; None while nothing runs.
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


def status(connection: Connection | None, home: Home, declaration: Declaration) -> PipelineStatus:
    """How far the pipeline has got. Without a connection, or while Kafka is away, what is behind is not known."""
    folder = PipelineFolder(home, declaration.name)
    ledger = Ledger(folder.root)
    warnings: list[Warned] = []
    checkpoint, position = _position(folder, declaration, ledger, warnings)
    state, why, pid = _state(folder, ledger)
    running = state in {"running", "waiting"}
    rate = ledger.recent_rate() if running else None
    now = time.time()
    partitions = _partitions(connection, folder, declaration, position, warnings, now)
    made = PipelineStatus(
        pipeline=declaration.name, state=state, why=why, pid=pid, run=folder.state.get("run"),
        trigger=_trigger(declaration), partitions=partitions, rate=rate, last_batch=_last_batch(checkpoint, warnings),
        totals=_totals(ledger), warnings=(), at=now,
    )  # fmt: skip
    if not made.totals.balanced:
        warnings.append(Warned(f"the ledger does not balance: headrace pipeline ledger {declaration.name}", loud=True))
    warnings += _expiring(made)
    loud_first = sorted(warnings, key=lambda warning: not warning.loud)
    return PipelineStatus(**{**vars(made), "warnings": tuple(loud_first)})


# -- what is on disk ---------------------------------------------------------------------------------------------------


def _position(
    folder: PipelineFolder, declaration: Declaration, ledger: Ledger, warnings: list[Warned]
) -> tuple[Checkpoint | None, Offsets]:
    """How far it was read: by the checkpoint; where that is not on this machine, by the ledger of the last run."""
    try:
        checkpoint = Checkpoint(folder.checkpoint(declaration))
    except UsageError as elsewhere:
        runs = ledger.runs()
        lines = ledger.lines(runs[-1].run) if runs else []
        warnings.append(Warned(f"{elsewhere.problem}: what is processed is told by the ledger of the last run"))
        return None, {(line.topic, line.partition): line.next for line in lines}
    try:
        checkpoint.check()
        position = checkpoint.position
    except HeadraceError as error:
        warnings.append(Warned(f"{error.problem}: {error.why}", loud=True))
        return None, {}
    return checkpoint, position


def _state(folder: PipelineFolder, ledger: Ledger) -> tuple[State, str | None, int | None]:
    """What it does now: the lock tells whether it runs, the state file how it was."""
    told = folder.state
    if folder.is_locked:
        waiting = told.get("state") == "waiting"
        return ("waiting" if waiting else "running"), (told.get("why") if waiting else None), _pid(folder)
    if not told:
        runs = ledger.runs()
        return ("stopped" if runs else "never run"), None, None
    if told.get("state") in {"running", "waiting"}:
        return "failed", f"its process (pid {told.get('pid')}) ended without a word: it was killed", None
    if told.get("state") == "failed":
        return "failed", told.get("error"), None
    return "stopped", None, None


def _pid(folder: PipelineFolder) -> int | None:
    try:
        return int(folder.lock_file.read_text(encoding="utf-8").removeprefix("pid "))
    except (OSError, ValueError):
        return None


def _trigger(declaration: Declaration) -> str:
    trigger = declaration.trigger
    return f"every {trigger.seconds:g} s" if trigger.kind == "every" else trigger.kind


def _last_batch(checkpoint: Checkpoint | None, warnings: list[Warned]) -> LastBatch | None:
    number = checkpoint.last_committed if checkpoint else None
    if checkpoint is None or number is None:
        return None
    try:
        plan = checkpoint.plan(number)
        planned, ended = ((checkpoint.root / kind / str(number)).stat().st_mtime for kind in ("offsets", "commits"))
    except (HeadraceError, OSError) as error:  # a running query cleans up behind itself
        warnings.append(Warned(f"the last batch cannot be read: {error}"))
        return None
    return LastBatch(number, ended, max(0.0, ended - planned), plan.records)


def _totals(ledger: Ledger) -> Totals:
    runs = ledger.runs()
    outcomes = {outcome: sum(run.outcomes[outcome] for run in runs) for outcome in OUTCOMES}
    # A run that was cut off has a batch that was read and not entered; the run after it repeats that batch.
    return Totals(sum(run.read for run in runs), outcomes, all(run.balanced for run in runs))


# -- what Kafka holds --------------------------------------------------------------------------------------------------


def _partitions(
    connection: Connection | None, folder: PipelineFolder, declaration: Declaration, position: Offsets,
    warnings: list[Warned], now: float,
) -> tuple[PartitionStatus, ...]:  # fmt: skip
    unknown = tuple(PartitionStatus(*place, offset, None, None, None, None) for place, offset in position.items())
    if connection is None:
        return unknown
    from headrace.transport.extent import extents, next_records

    isolation: Isolation = "uncommitted" if "read_uncommitted" in declaration.kafka.values() else "committed"
    try:
        found = extents(connection, declaration.topics, isolation)
        _warn_of_topics(found, folder, warnings)
        made = partitions_of(found, declaration, position)
        behind = {(p.topic, p.partition): _first_unread(p) for p in made if p.lag}
        following = next_records(connection, behind, isolation)
    except Unreachable as error:
        warnings.append(Warned(f"{error.problem}: what is behind is not known"))
        return unknown
    warnings += [_lost(p) for p in made if p.lost]
    return tuple(_aged(p, found[p.topic], following.get((p.topic, p.partition)), now) for p in made)


def partitions_of(
    found: Mapping[str, TopicExtent | None], declaration: Declaration, position: Offsets
) -> list[PartitionStatus]:
    """How far the position is behind what the topics hold, also in partitions that were not read yet."""
    there = {(name, number) for name, extent in found.items() if extent for number in extent.partitions}
    return [_partition(place, found, declaration, position) for place in sorted(there | set(position))]


def _partition(
    place: Place, found: Mapping[str, TopicExtent | None], declaration: Declaration, position: Offsets
) -> PartitionStatus:
    extent = found.get(place[0])
    begin = extent.begins.get(place[1]) if extent else None
    end = extent.ends.get(place[1]) if extent else None
    processed = position.get(place)
    # A partition that is not in the checkpoint is read from its beginning; only a first run looks at `start`.
    from_beginning = bool(position) or declaration.start in {"beginning", "earliest"}
    base = processed if processed is not None else begin if from_beginning else None
    lost = max(0, begin - processed) if begin is not None and processed is not None else 0
    lag = max(0, end - max(base, begin or 0)) if end is not None and base is not None else None
    share = _unread_share(extent, place[1], lag) if extent and lag else None
    return PartitionStatus(*place, processed, begin, end, lag, 0.0 if lag == 0 else None, lost, unread_share=share)


def _unread_share(extent: TopicExtent, number: int, lag: int) -> float | None:
    """As if all records of the partition were of one size."""
    size, begin, end = extent.sizes.get(number), extent.begins.get(number), extent.ends.get(number)
    if not extent.retention_bytes or size is None or begin is None or end is None or end <= begin:
        return None
    return size * lag / (end - begin) / extent.retention_bytes


def _first_unread(partition: PartitionStatus) -> int:
    return max(partition.processed or 0, partition.begin or 0)


def _aged(
    partition: PartitionStatus, extent: TopicExtent | None, following: tuple[int, int] | None, now: float
) -> PartitionStatus:
    """How long the next unread record waits, and how long it has left."""
    if following is None or not partition.lag:
        return partition
    written_s = following[1] / 1000
    left = None
    if extent is not None and extent.retention_ms is not None:
        left = written_s + extent.retention_ms / 1000 - now
    return PartitionStatus(**{**vars(partition), "lag_s": max(0.0, now - written_s), "expires_in_s": left})


# -- what a person should know -----------------------------------------------------------------------------------------


def _warn_of_topics(found: dict[str, TopicExtent | None], folder: PipelineFolder, warnings: list[Warned]) -> None:
    for name, extent in found.items():
        if extent is None:
            warnings.append(Warned(f"there is no topic {name} any more: it was deleted, or never made", loud=True))
    for name in recreated(folder, {name: extent.topic_id for name, extent in found.items() if extent}):
        text = (
            f"topic {name} was recreated since the last run: the checkpoint's offsets belong to the deleted one; "
            f"headrace pipeline checkpoint rewind {folder.name} --to beginning reads the new one"
        )
        warnings.append(Warned(text, loud=True))


def _lost(partition: PartitionStatus) -> Warned:
    assert partition.processed is not None
    assert partition.begin is not None
    return Warned(
        f"{partition.topic}/{partition.partition}: offsets {partition.processed:,} to {partition.begin - 1:,} are gone "
        f"unread ({partition.lost:,})",
        loud=True,
    )


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
            when = "any moment" if p.expires_in_s <= 0 else f"in {_span(p.expires_in_s)}"
            text = f"{p.topic}/{p.partition}: retention may delete unread records {when}, {p.lag:,} are unread"
            found.append(Warned(text, loud=p.expires_in_s <= 0))
    return found


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
