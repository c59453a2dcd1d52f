"""Moves the progress of a pipeline: back or forward in its topics, to another pipeline, or away.

Every change is made under the pipeline's lock, after a backup of the checkpoint into `backups/`, and raises the epoch:
sinks identify batches by their numbers, and a number that is used again must count as new. No topic and no table is
changed; the consequences for them (duplicated rows, records that are never read) are shown before.

How a checkpoint is moved depends on whether it has state, which belongs to batches and not to offsets:

    append   without state: a batch that reads nothing is planned and committed; the next begins where it ends
    state    with state, to a batch: that batch, all later ones and their state are removed
    anew     with state, elsewhere: no batch, no state, and these offsets for the first batch
"""

from __future__ import annotations

import json
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import SetupError, UsageError
from headrace.home import read_json, write_json, write_private
from headrace.pipeline.books.checkpoint import MOVED, Checkpoint, Offsets, Place, listed, source_line
from headrace.pipeline.books.folder import PipelineFolder
from headrace.pipeline.declare.changes import remember, remembered
from headrace.pipeline.declare.declaration import Declaration, Sink
from headrace.text import parse_time

if TYPE_CHECKING:
    from headrace.kafka import Connection

Way = Literal["append", "state", "anew"]

_KAFKA_TIMEOUT_S = 5.0
_STATE_FILE = re.compile(r"\.?(\d+)(?:_[^.]*)?\.(?:delta|snapshot|zip|changelog)(?:\.crc)?")

# -- where to ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """Where a checkpoint is to be moved."""

    kind: Literal["beginning", "end", "batch", "time", "offsets"]
    batch: int = 0
    at_ms: int = 0
    offsets: Mapping[Place, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Target:
        """`beginning`, `end`, `batch:7`, `2026-05-01T12:00`, `-15min`, `TOPIC:0=1500,TOPIC:1=1700`."""
        if text in {"beginning", "end"}:
            return cls(text)  # type: ignore[arg-type]
        if found := re.fullmatch(r"batch[: ](\d+)", text):
            return cls("batch", batch=int(found[1]))
        if "=" in text:
            return cls("offsets", offsets=dict(map(_place_and_offset, text.split(","))))
        try:
            return cls("time", at_ms=parse_time(text))
        except UsageError:
            raise UsageError(
                f"invalid rewind target: {text!r}",
                hint="beginning, end, batch:7, 2026-05-01T12:00, -15min, or TOPIC:0=1500,TOPIC:1=1700",
            ) from None


def _place_and_offset(text: str) -> tuple[Place, int]:
    found = re.fullmatch(r"\s*([^\s:=]+):(\d+)=(\d+)\s*", text)
    if not found:
        raise UsageError(f"{text!r} is not of the form TOPIC:PARTITION=OFFSET", hint="breadcrumbs:0=1500")
    return (found[1], int(found[2])), int(found[3])


@dataclass(frozen=True)
class Move:
    """One partition: where the next batch would have begun, and where it will."""

    topic: str
    partition: int
    before: int | None
    #: None: it is removed from the checkpoint, and read from its beginning if it exists.
    after: int | None

    @property
    def again(self) -> int:
        """Offsets that will be read once more."""
        return max(0, (self.before or 0) - (self.after or 0))

    @property
    def skipped(self) -> int:
        """Offsets that will never be read."""
        return max(0, (self.after or 0) - self.before) if self.before is not None else 0


@dataclass(frozen=True)
class RewindPlan:
    """What a rewind would do: nothing is done yet. `planned` is the batch that the checkpoint stood at."""

    pipeline: str
    checkpoint: str
    planned: int | None
    moves: tuple[Move, ...]
    way: Way
    #: The number of the next batch.
    batch: int
    consequences: tuple[str, ...] = ()
    #: Of the topics as they are now, if Kafka was asked where to go.
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def again(self) -> int:
        return sum(move.again for move in self.moves)

    @property
    def skipped(self) -> int:
        return sum(move.skipped for move in self.moves)

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "again": self.again, "skipped": self.skipped}


@dataclass(frozen=True)
class Moved:
    """What a change of a checkpoint left behind."""

    pipeline: str
    backup: str | None
    epoch: int
    position: Offsets
    #: For the person who changed it.
    warnings: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        return {**vars(self), "position": listed(self.position), "warnings": list(self.warnings)}


def plan_rewind(
    folder: PipelineFolder, declaration: Declaration, target: Target, connection: Connection | None = None
) -> RewindPlan:
    """What a rewind to that place means. `connection` is needed for all but batches and offsets, and checks those."""
    checkpoint = _existing(folder, declaration, "rewind")
    checkpoint.check_files()
    before, planned = checkpoint.position, checkpoint.last_planned
    after = _resolved(checkpoint, declaration, target, connection)
    identities = _checked_with_kafka(connection, declaration, after, before) if connection is not None else {}
    way: Way = "anew" if checkpoint.is_stateful or planned is None else "append"
    if checkpoint.is_stateful and target.kind == "batch" and target.batch > 0:
        way = "state"
    plan = RewindPlan(
        declaration.name, str(checkpoint.root), planned,
        tuple(Move(*place, before.get(place), after.get(place)) for place in sorted({*before, *after})),
        way, {"append": (planned or 0) + 2, "state": target.batch, "anew": 0}[way],
        topic_ids=identities if target.kind in {"beginning", "end", "time"} else {},
    )  # fmt: skip
    return replace(plan, consequences=tuple(_consequences(plan, declaration, checkpoint)))


def rewind(folder: PipelineFolder, declaration: Declaration, plan: RewindPlan) -> Moved:
    """The next batch begins where the plan says. Refused while the pipeline runs, or if it ran since it was planned."""
    with folder.lock():
        checkpoint = _existing(folder, declaration, "rewind")
        if checkpoint.last_planned != plan.planned:
            raise SetupError(
                f"pipeline {folder.name} has run since the rewind was planned",
                why=f"it was at batch {plan.planned} then, and is at {checkpoint.last_planned} now",
                hint="repeat the command",
            )
        backup = _back_up(folder, checkpoint, {"rewind": plan.document()})
        epoch = folder.raise_epoch()
        after = {(move.topic, move.partition): move.after for move in plan.moves if move.after is not None}
        ways: dict[Way, Callable[[Checkpoint, RewindPlan, Offsets], None]]
        ways = {"append": _append, "state": _cut_back, "anew": _begin_anew}
        ways[plan.way](checkpoint, plan, after)
        _remember_topics(folder, plan.topic_ids)
        return Moved(folder.name, str(backup), epoch, checkpoint.position)


def wipe(folder: PipelineFolder, declaration: Declaration) -> Moved:
    """Delete progress and state: the next run begins at `start`. A backup is kept."""
    with folder.lock():
        if not last_checkpoint(folder, declaration).exists and remembered(folder) is None:
            _existing(folder, declaration, "wipe")
        return remove_progress(folder, declaration)


def last_checkpoint(folder: PipelineFolder, declaration: Declaration) -> Checkpoint:
    """The checkpoint of the last run, which may be elsewhere than the declared one."""
    before = remembered(folder)
    named = before.declaration.get("checkpoint") if before else None
    last = Checkpoint(declaration.resolve(named) if named else folder.root / "checkpoint")
    if last.exists:
        return last
    other = Checkpoint(folder.checkpoint(declaration))
    return other if other.exists else last


def remove_progress(folder: PipelineFolder, declaration: Declaration, *, seen: bool = False) -> Moved:
    """Nothing is known of earlier runs, with `seen` not even which rows there were; what was is in the backup.

    The caller holds the lock. Cut off anywhere, it can be repeated: `declaration.json` goes last.
    """
    checkpoint = last_checkpoint(folder, declaration)
    rows, doomed = folder.root / "seen", checkpoint.root.with_name(f".{checkpoint.root.name}.wiped")
    backup, epoch = None, folder.epoch
    if checkpoint.exists or (seen and rows.is_dir()):
        backup = _back_up(folder, checkpoint, {"wipe": True})
        epoch = folder.raise_epoch()
        if seen and rows.is_dir():
            rows.rename(backup / rows.name)
    _remove_folder(doomed)
    if checkpoint.exists:
        # Away by one rename: a folder that is half removed would be a damaged checkpoint.
        checkpoint.root.rename(doomed)
    _remove_folder(doomed)
    folder.declaration_file.unlink(missing_ok=True)
    return Moved(folder.name, str(backup) if backup else None, epoch, {})


def _remove_folder(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)


def fork(
    folder: PipelineFolder, declaration: Declaration, new: PipelineFolder, new_declaration: Declaration | None = None
) -> Moved:
    """Another pipeline continues from the same offsets, with a query id of its own.

    Topics that the new one does not read are removed from its copy.
    """
    with folder.lock(), new.lock():
        checkpoint = _existing(folder, declaration, "fork")
        checkpoint.check()
        if declaration.join or (new_declaration and new_declaration.join):
            raise UsageError(
                f"the checkpoint of {folder.name} cannot be forked",
                why="a join keeps rows that wait for partners, and the ledger knows which of them have found one",
                hint=f"{new.name} needs no fork: it begins at its `start`",
            )
        path = new.checkpoint(new_declaration) if new_declaration else str(new.root / "checkpoint")
        copy = Checkpoint(path)
        if copy.exists:
            raise UsageError(
                f"pipeline {new.name} has a checkpoint already",
                why=f"it is in {copy.root}",
                hint=f"fork to another name, or headrace pipeline checkpoint wipe {new.name}",
            )
        _copied(checkpoint.root, copy.root, new_declaration)
        _take_over(folder, new, new_declaration)
        warnings: tuple[str, ...] = ()
        if pending := copy.pending:
            warnings = (f"batch {pending.batch} was started and not finished: both pipelines will write it",)
        return Moved(new.name, None, new.epoch, copy.position, warnings)


# -- how it is moved ---------------------------------------------------------------------------------------------------


def _existing(folder: PipelineFolder, declaration: Declaration, doing: str) -> Checkpoint:
    checkpoint = Checkpoint(folder.checkpoint(declaration))
    if not checkpoint.exists:
        raise UsageError(
            f"pipeline {folder.name} has no checkpoint to {doing}",
            why=f"it has not run yet: there is nothing in {checkpoint.root}",
            hint=f"headrace pipeline run {folder.name} begins at its `start`: {declaration.start}",
        )
    return checkpoint


def _resolved(
    checkpoint: Checkpoint, declaration: Declaration, target: Target, connection: Connection | None
) -> Offsets:
    """Where each partition is to continue. Partitions and topics that are not in it are removed from the checkpoint."""
    if target.kind == "batch":
        return _start_of(checkpoint, target.batch)  # partitions that are younger are read from their beginning then
    if target.kind == "offsets":
        known = {topic for topic, _ in checkpoint.position} | set(declaration.all_topics)
        for topic, _ in target.offsets:
            if topic not in known:
                raise UsageError(
                    f"pipeline {declaration.name} does not read topic {topic!r}", why=f"it reads {', '.join(known)}"
                )
        return {**checkpoint.position, **target.offsets}
    if connection is None:
        raise UsageError(
            f"a rewind to {target.kind if target.kind != 'time' else 'a time'} needs Kafka",
            hint="--bootstrap HOST:PORT",
        )
    from headrace.kafka import Kafka, Start

    start = Start("time", target.at_ms) if target.kind == "time" else Start(target.kind)
    with Kafka(connection) as kafka:
        topics = kafka.require_topics(declaration.all_topics)
        places = [(topic.name, p.partition) for topic in topics for p in topic.partitions]
        return kafka.look_up(places, start, "committed")


def _start_of(checkpoint: Checkpoint, batch: int) -> Offsets:
    numbers = sorted(checkpoint.numbers("offsets"))
    if batch not in numbers or (batch > 0 and batch - 1 not in numbers):
        first = numbers[0] + (0 if numbers[0] == 0 else 1)
        raise UsageError(
            f"the checkpoint does not know where batch {batch} began",
            why=f"it knows {first} to {numbers[-1]}",
            hint="rewind to a time or to offsets instead",
        )
    return checkpoint.start_of(batch)


def _checked_with_kafka(
    connection: Connection, declaration: Declaration, after: Offsets, before: Offsets
) -> dict[str, str]:
    """Kafka has what will be read: Spark would stop at the first offset that is not there. Returns the topics' ids."""
    from headrace.kafka import Kafka

    with Kafka(connection, timeout_s=_KAFKA_TIMEOUT_S) as kafka:
        found = kafka.extents({*declaration.all_topics, *(topic for topic, _ in after)})
    for (topic, partition), offset in sorted(after.items()):
        if before.get((topic, partition)) == offset:
            continue
        extent = found[topic]
        held = extent.partition(partition) if extent else None
        if held is None:
            raise UsageError(
                f"there is no partition {partition} of topic {topic}", why="the checkpoint or the target names it"
            )
        begin, end = held.begin, held.end
        if begin is None or end is None:
            continue
        if offset < begin:
            raise UsageError(
                f"{topic}/{partition} begins at offset {begin:,}; {offset:,} is gone",
                why="its records have expired or were deleted",
                hint=f"--to beginning goes to the first record that exists, or {topic}:{partition}={begin}",
            )
        if offset > end:
            raise UsageError(f"{topic}/{partition} ends at offset {end:,}, before {offset:,}", hint="--to end")
    return {topic: extent.topic_id for topic, extent in found.items() if extent and extent.topic_id}


def _back_up(folder: PipelineFolder, checkpoint: Checkpoint, why: Mapping[str, object]) -> Path:
    """A copy of the checkpoint and of its files, complete before it gets its name."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    backups = folder.root / "backups"
    try:
        backups.mkdir(mode=0o700, parents=True, exist_ok=True)
        final = next(path for n in range(1000) if not (path := backups / (f"{stamp}-{n}" if n else stamp)).exists())
        staging = backups / f".{final.name}"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(mode=0o700)
        if checkpoint.exists:
            shutil.copytree(checkpoint.root, staging / "checkpoint")
        for file in (folder.identity_file, folder.declaration_file):
            if file.is_file():
                shutil.copy2(file, staging / file.name)
        write_json(staging / "change.json", {"at": time.time(), **why})
        staging.rename(final)
    except OSError as error:
        raise SetupError(
            f"the checkpoint of {folder.name} could not be backed up, so nothing was changed",
            why=error.strerror or str(error),
            hint="is the disk full?",
        ) from error
    return final


def _write(root: Path, name: str, text: str) -> None:
    """Spark's file, whole; a checksum of what was there before would make it unreadable."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    write_private(path, text)


def _write_plan(root: Path, batch: int, metadata: Mapping[str, object], offsets: Offsets) -> None:
    _write(root, f"offsets/{batch}", f"v1\n{_compact(metadata)}\n{source_line(offsets)}")


def _compact(document: Mapping[str, object]) -> str:
    return json.dumps(document, separators=(",", ":"))


def _append(checkpoint: Checkpoint, plan: RewindPlan, after: Offsets) -> None:
    """A batch that reads nothing is planned and committed: the next one begins where it ends."""
    last = plan.planned or 0
    metadata, _ = checkpoint.plan_file(last)
    now_ms = int(time.time() * 1000)
    metadata["conf"] = {**(metadata.get("conf") or {}), MOVED: str(now_ms)}
    metadata["batchTimestampMs"] = now_ms
    committed = checkpoint.last_committed
    commit = checkpoint.commit_file(committed) if committed is not None else {"nextBatchWatermarkMs": 0}
    _write_plan(checkpoint.root, last + 1, metadata, after)
    _write(checkpoint.root, f"commits/{last + 1}", f"v1\n{_compact(commit)}")


def _cut_back(checkpoint: Checkpoint, plan: RewindPlan, _: Offsets) -> None:
    """Remove the batch and all later ones: their plans, their commits, and their state."""
    # State first: cut off here, the query misses it and says so; with state of batches that never were it would not.
    for path in (checkpoint.root / "state").rglob("*"):
        found = _STATE_FILE.fullmatch(path.name)
        if found and int(found[1]) > plan.batch:
            path.unlink()
    for number in sorted(checkpoint.numbers("offsets") | checkpoint.numbers("commits"), reverse=True):
        if number >= plan.batch:
            _remove(checkpoint.root / "commits" / str(number))
            _remove(checkpoint.root / "offsets" / str(number))


def _begin_anew(checkpoint: Checkpoint, _: RewindPlan, after: Offsets) -> None:
    """No batch, no state; the query takes these offsets for its first."""
    # Read only if there is no batch, so it comes first; then in an order that is never silently wrong.
    for source, offsets in _by_source(checkpoint, after).items():
        _write(checkpoint.root, f"sources/{source}/0", f"\0v1\n{source_line(offsets)}")
    for folder in ("state", "commits", "offsets"):
        shutil.rmtree(checkpoint.root / folder, ignore_errors=True)


def _by_source(checkpoint: Checkpoint, after: Offsets) -> dict[int, Offsets]:
    """The offsets of each source: a join has two. Topics that none of them knows belong to the first."""
    of_topic = {topic: source for source, began in checkpoint.sources.items() for topic, _ in began}
    found: dict[int, Offsets] = {source: {} for source in {0, *of_topic.values()}}
    for place, offset in after.items():
        found[of_topic.get(place[0], 0)][place] = offset
    return found


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)


def _copied(source: Path, target: Path, new: Declaration | None) -> None:
    """The checkpoint with another query id, complete before it gets its name."""
    staging = target.parent / f".{target.name}.fork"
    shutil.rmtree(staging, ignore_errors=True)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        shutil.copytree(source, staging)
        _write(staging, "metadata", json.dumps({"id": str(uuid.uuid4())}))
        if new is not None:
            _forget_others(Checkpoint(staging), set(new.topics))
        if target.is_dir():
            target.rmdir()
        staging.rename(target)
    except OSError as error:
        raise SetupError(f"the checkpoint could not be copied to {target}", why=error.strerror or str(error)) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _forget_others(copy: Checkpoint, topics: set[str]) -> None:
    """Positions in topics that are no longer read are taken out: Spark would look for those topics."""
    for number in copy.numbers("offsets"):
        metadata, offsets = copy.plan_file(number)
        kept = {place: offset for place, offset in offsets.items() if place[0] in topics}
        if not kept:
            raise UsageError(
                "the new pipeline reads none of the topics that the checkpoint knows",
                why=f"it reads {', '.join(sorted(topics))}",
                hint="a pipeline of other topics needs no fork: it begins at its `start`",
            )
        if len(kept) < len(offsets):
            _write_plan(copy.root, number, metadata, kept)
    began = copy.initial
    kept = {place: offset for place, offset in began.items() if place[0] in topics}
    if len(kept) < len(began):
        _write(copy.root, "sources/0/0", f"\0v1\n{source_line(kept)}")


def _remember_topics(folder: PipelineFolder, topic_ids: Mapping[str, str]) -> None:
    """The checkpoint belongs to the topics as they are now, even if they were recreated since the last run."""
    known = read_json(folder.declaration_file)
    if known is not None and topic_ids:
        write_json(folder.declaration_file, {**known, "topic_ids": dict(topic_ids)})


def _take_over(folder: PipelineFolder, new: PipelineFolder, new_declaration: Declaration | None) -> None:
    """The new pipeline remembers what the old one was run with, except what a fork is for."""
    before = remembered(folder)
    if before is not None and new_declaration is None:
        document_before = {**before.declaration, "name": new.name, "checkpoint": None}
        known = {"at": before.at, "topic_ids": dict(before.topic_ids), "declaration": document_before}
        write_json(new.declaration_file, known)
    elif before is not None and new_declaration is not None:
        remember(new, new_declaration, {t: i for t, i in before.topic_ids.items() if t in new_declaration.topics})
    seen = folder.root / "seen"
    columns = (before.declaration.get("deduplicate") or {}).get("by") if before else None
    wanted = new_declaration.deduplicate if new_declaration else None
    if seen.is_dir() and (new_declaration is None or (wanted and list(wanted.by) == columns)):
        shutil.copytree(seen, new.root / "seen", dirs_exist_ok=True)


# -- what it means -----------------------------------------------------------------------------------------------------


def _consequences(plan: RewindPlan, declaration: Declaration, checkpoint: Checkpoint) -> Iterable[str]:
    """What to know before agreeing to it."""
    if plan.skipped:
        yield f"{plan.skipped:,} records will never be read"
    if plan.way == "anew" and checkpoint.is_stateful:
        yield (
            "the rows that wait for partners are deleted" if declaration.join
            else "the state of open windows is deleted: they start empty"
        )  # fmt: skip
    if plan.way == "state":
        yield f"batches and state are restored to what they were before batch {plan.batch}"
    pending = checkpoint.pending
    if pending is not None and not pending.moved:
        yield f"batch {pending.batch} was started and not finished: sinks may get its rows again"
    if not plan.again:
        return
    yield f"{plan.again:,} records are read again"
    for sink in declaration.sinks:
        yield f"{sink.name}: {_written_again(sink)}"
    yield "dead letters: those of these records are written again"


def _written_again(sink: Sink) -> str:
    if sink.changes is not None:
        return (
            "its rows stay right" if sink.changes.sequence else "its rows are those of older records until it is done"
        )
    if sink.aggregate is None or not sink.type.replaces:
        return sink.type.again
    if sink.aggregate.mode == "merge" and sink.type.table is None:
        return "the records are added again, so sums and counts will be too high; checkpoint wipe begins with nothing"
    if sink.aggregate.mode == "merge":
        return "the records are added again, so sums and counts will be too high; remove the table first"
    if sink.aggregate.mode == "recompute":
        return "keys are recomputed from the table of rows: duplicated rows count twice"
    return "windows that were closed since then are written again"
