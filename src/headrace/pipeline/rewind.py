"""A pipeline's progress moved: back or forward in its topics, over to another pipeline, or dropped.

Every change is made under the pipeline's lock, after a copy of the checkpoint into `backups/`, and raises the epoch:
sinks remember batches by their numbers, and a number that comes again must count as new. No topic and no table is
changed; what that means for them (rows that come twice, records that never come) is told before.

How a checkpoint is moved depends on whether it has state, which belongs to batches and not to offsets:

    append   without state: a batch that reads nothing is planned and committed; the next begins where it ends
    state    with state, to a batch: that batch and all after it are taken out, and the state that they made
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
from headrace.pipeline.changes import remember, remembered
from headrace.pipeline.checkpoint import MOVED, Checkpoint, Offsets, Place, source_line
from headrace.pipeline.declaration import Declaration, Sink
from headrace.pipeline.folder import PipelineFolder

if TYPE_CHECKING:
    from headrace.transport.client import Connection

Way = Literal["append", "state", "anew"]

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
        from headrace.transport.offsets import parse_time

        try:
            return cls("time", at_ms=parse_time(text))
        except UsageError:
            raise UsageError(
                f"{text!r} is no place to rewind to",
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
    #: None: it is forgotten, and read from its beginning if it is there.
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
    #: What whoever changed it should know.
    warnings: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        position = [{"topic": t, "partition": p, "offset": o} for (t, p), o in sorted(self.position.items())]
        return {
            "pipeline": self.pipeline, "backup": self.backup, "epoch": self.epoch, "position": position,
            "warnings": list(self.warnings),
        }  # fmt: skip


def plan_rewind(
    folder: PipelineFolder, declaration: Declaration, target: Target, connection: Connection | None = None
) -> RewindPlan:
    """What a rewind to that place means. `connection` is needed for all but batches and offsets, and checks those."""
    checkpoint = _existing(folder, declaration, "rewind")
    checkpoint.check_files()
    before, planned = checkpoint.position, checkpoint.last_planned
    after = _resolved(checkpoint, declaration, target, connection)
    identities = {}
    if connection is not None:
        identities = _checked_with_kafka(connection, declaration, after, before)
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
    """The pipeline has no progress and no state any more: its next run begins at `start`. A backup is kept."""
    with folder.lock():
        before = remembered(folder)
        named = before.declaration.get("checkpoint") if before else None
        # The one that was run with last may lie elsewhere than what is declared now.
        old = Checkpoint(declaration.resolve(named) if named else folder.root / "checkpoint")
        checkpoint = old if old.exists else _existing(folder, declaration, "wipe")
        backup = _back_up(folder, checkpoint, {"wipe": True})
        epoch = folder.raise_epoch()
        # Away by one rename: a folder that is half removed would be a damaged checkpoint.
        doomed = checkpoint.root.rename(checkpoint.root.with_name(f".{checkpoint.root.name}.wiped"))
        shutil.rmtree(doomed)
        folder.declaration_file.unlink(missing_ok=True)
        return Moved(folder.name, str(backup), epoch, {})


def fork(
    folder: PipelineFolder, declaration: Declaration, new: PipelineFolder, new_declaration: Declaration | None = None
) -> Moved:
    """Another pipeline goes on from the same place, with a query id of its own: the two are strangers to each other.

    What the new one does not read any more is forgotten in its copy.
    """
    with folder.lock(), new.lock():
        checkpoint = _existing(folder, declaration, "fork")
        checkpoint.check()
        path = new.checkpoint(new_declaration) if new_declaration else str(new.root / "checkpoint")
        copy = Checkpoint(path)
        if copy.exists:
            raise UsageError(
                f"pipeline {new.name} has a checkpoint already",
                why=f"it lies in {copy.root}",
                hint=f"fork to another name, or headrace pipeline checkpoint wipe {new.name}",
            )
        _copied(checkpoint.root, copy.root, new_declaration)
        _take_over(folder, new, new_declaration)
        pending = copy.pending
        shared = f"batch {pending.batch} was begun and not finished: both pipelines will write it" if pending else None
        return Moved(new.name, None, new.epoch, copy.position, (shared,) if shared else ())


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
    """Where each partition is to go on. Partitions and topics that are not in it are forgotten."""
    if target.kind == "batch":
        return _start_of(checkpoint, target.batch)  # partitions that are younger are read from their beginning then
    if target.kind == "offsets":
        known = {topic for topic, _ in checkpoint.position} | set(declaration.topics)
        for topic, _ in target.offsets:
            if topic not in known:
                raise UsageError(
                    f"pipeline {declaration.name} does not read topic {topic!r}", why=f"it reads {', '.join(known)}"
                )
        return {**checkpoint.position, **target.offsets}
    if connection is None:
        raise UsageError(f"where {target.kind} is can only be told by Kafka", hint="--bootstrap HOST:PORT")
    from headrace.transport.admin import Admin
    from headrace.transport.offsets import Start, look_up

    with Admin(connection) as admin:
        topics = admin.require_topics(declaration.topics)
    places = [(topic.name, p.partition) for topic in topics for p in topic.partitions]
    start = Start("time", target.at_ms) if target.kind == "time" else Start(target.kind)
    return look_up(connection, places, start, "committed")


def _start_of(checkpoint: Checkpoint, batch: int) -> Offsets:
    numbers = sorted(checkpoint.numbers("offsets"))
    if batch not in numbers or (batch > 0 and batch - 1 not in numbers):
        first = numbers[0] + (0 if numbers[0] == 0 else 1)
        raise UsageError(
            f"the checkpoint does not know where batch {batch} began",
            why=f"it knows {first} to {numbers[-1]}",
            hint="a time or offsets may be given instead",
        )
    return checkpoint.start_of(batch)


def _checked_with_kafka(
    connection: Connection, declaration: Declaration, after: Offsets, before: Offsets
) -> dict[str, str]:
    """Kafka has what will be read: Spark would stop at the first offset that is not there. Returns the topics' ids."""
    from headrace.transport.extent import extents

    found = extents(connection, {*declaration.topics, *(topic for topic, _ in after)})
    for (topic, partition), offset in sorted(after.items()):
        if before.get((topic, partition)) == offset:
            continue
        extent = found[topic]
        begin = extent.begins.get(partition) if extent else None
        end = extent.ends.get(partition) if extent else None
        if extent is None or partition not in extent.ends:
            raise UsageError(
                f"there is no partition {partition} of topic {topic}", why="the checkpoint or the target names it"
            )
        if begin is None or end is None:
            continue
        if offset < begin:
            raise UsageError(
                f"{topic}/{partition} begins at offset {begin:,}; {offset:,} is gone",
                why="its records have expired or were deleted",
                hint=f"--to beginning goes to what is there, or {topic}:{partition}={begin}",
            )
        if offset > end:
            raise UsageError(f"{topic}/{partition} ends at offset {end:,}, before {offset:,}", hint="--to end")
    return {topic: extent.topic_id for topic, extent in found.items() if extent and extent.topic_id}


def _back_up(folder: PipelineFolder, checkpoint: Checkpoint, why: Mapping[str, Any]) -> Path:
    """A copy of the checkpoint and of what belongs to it, made whole before it gets its name."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    backups = folder.root / "backups"
    try:
        backups.mkdir(mode=0o700, parents=True, exist_ok=True)
        final = next(path for n in range(1000) if not (path := backups / (f"{stamp}-{n}" if n else stamp)).exists())
        staging = backups / f".{final.name}"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(mode=0o700)
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


def _append(checkpoint: Checkpoint, plan: RewindPlan, after: Offsets) -> None:
    """A batch that reads nothing is planned and committed: the next one begins where it ends."""
    last = plan.planned or 0
    metadata, _ = checkpoint.plan_file(last)
    metadata["conf"] = {**(metadata.get("conf") or {}), MOVED: str(int(time.time() * 1000))}
    committed = checkpoint.last_committed
    commit = checkpoint.commit_file(committed) if committed is not None else {"nextBatchWatermarkMs": 0}
    metadata["batchTimestampMs"] = int(time.time() * 1000)
    compact = {"separators": (",", ":")}
    lines = ("v1", json.dumps(metadata, **compact), source_line(after))  # type: ignore[arg-type]
    _write(checkpoint.root, f"offsets/{last + 1}", "\n".join(lines))
    _write(checkpoint.root, f"commits/{last + 1}", "v1\n" + json.dumps(commit, **compact))  # type: ignore[arg-type]


def _cut_back(checkpoint: Checkpoint, plan: RewindPlan, _: Offsets) -> None:
    """The batch and all after it never were: their plans, their commits, and the state that they made."""
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
    # Looked at only when there is no batch, so it comes first; then in an order that is never silently wrong.
    _write(checkpoint.root, "sources/0/0", f"\0v1\n{source_line(after)}")
    for folder in ("state", "commits", "offsets"):
        shutil.rmtree(checkpoint.root / folder, ignore_errors=True)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    (path.parent / f".{path.name}.crc").unlink(missing_ok=True)


def _copied(source: Path, target: Path, new: Declaration | None) -> None:
    """The checkpoint under another query's id, made whole before it gets its name."""
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
            head = json.dumps(metadata, separators=(",", ":"))
            _write(copy.root, f"offsets/{number}", f"v1\n{head}\n{source_line(kept)}")
    began = copy.initial
    kept = {place: offset for place, offset in began.items() if place[0] in topics}
    if len(kept) < len(began):
        _write(copy.root, "sources/0/0", f"\0v1\n{source_line(kept)}")


def _remember_topics(folder: PipelineFolder, topic_ids: Mapping[str, str]) -> None:
    """The checkpoint belongs to the topics as they are now, even if they were made anew since the last run."""
    known = read_json(folder.declaration_file)
    if known is not None and topic_ids:
        write_json(folder.declaration_file, {**known, "topic_ids": dict(topic_ids)})


def _take_over(folder: PipelineFolder, new: PipelineFolder, new_declaration: Declaration | None) -> None:
    """The new pipeline knows what the old one was run with, less what a fork is there to change."""
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
    """Plainly, before anybody agrees to it."""
    if plan.skipped:
        yield f"{plan.skipped:,} records will never be read"
    if plan.way == "anew" and checkpoint.is_stateful:
        yield "the state of open windows is dropped: they begin empty"
    if plan.way == "state":
        yield f"batches and state are as they were before batch {plan.batch}"
    pending = checkpoint.pending
    if pending is not None and not pending.moved:
        yield f"batch {pending.batch} was begun and not finished: what sinks have of it, they may get again"
    if not plan.again:
        return
    yield f"{plan.again:,} records are read again"
    for sink in declaration.sinks:
        yield f"{sink.name}: {_written_again(sink)}"
    yield "dead letters: those of these records come again"


def _written_again(sink: Sink) -> str:
    if sink.kind == "console":
        return "rows are shown again"
    if sink.kind == "topic":
        return "their rows are sent again, and readers get them twice"
    if sink.aggregate is None:
        return "their rows are written again and will be there twice; remove the table first if it is to be made anew"
    if sink.aggregate.mode == "merge":
        return "they are added again, so sums and counts come out too high; remove the table first"
    if sink.aggregate.mode == "recompute":
        return "keys are computed anew from the rows' table: what is there twice counts twice"
    return "windows that were closed since then come out again"
