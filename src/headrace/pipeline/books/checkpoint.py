"""Spark's checkpoint of a pipeline, read without Spark.

    metadata        the query's id                     offsets/N     up to where batch N reads; written before it runs
    sources/0/0     where the first batch began        commits/N     batch N is done
    state/          what a stateful operator keeps: version N+1 is the state after batch N

A query continues after its last planned batch if that one is committed, else it runs that batch again. So what is
processed is what the last committed batch reaches to, also while nothing runs.
This module reads; `rewind.py` moves. Both are for checkpoints in folders of this machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headrace.errors import Failed, UsageError
from headrace.home import size_bytes

#: A partition of a topic; and how far each one was read.
Place = tuple[str, int]
Offsets = dict[Place, int]

#: A setting of batches that a rewind added: such a batch reads nothing, the next one begins where it ends.
MOVED = "headrace.moved"
_VERSIONS = {"v1"}


@dataclass(frozen=True)
class Span:
    """What a batch reads of one partition. `first` is None where the batch before it is no longer known."""

    topic: str
    partition: int
    first: int | None
    next: int

    @property
    def records(self) -> int | None:
        """Offsets, which is at most so many records."""
        return None if self.first is None else self.next - self.first


@dataclass(frozen=True)
class BatchPlan:
    """A batch of the checkpoint. `moved`: a rewind added it, and its number of records is unknown."""

    batch: int
    at_ms: int
    committed: bool
    spans: tuple[Span, ...]
    moved: bool = False

    @property
    def records(self) -> int | None:
        counts = [span.records for span in self.spans]
        return None if self.moved or None in counts else sum(count or 0 for count in counts)

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "records": self.records}


class Checkpoint:
    """A checkpoint folder of this machine. Read again at every call: a running query may change it."""

    def __init__(self, path: str | Path) -> None:
        text = str(path)
        if "://" in text and not text.startswith("file://"):
            raise UsageError(
                f"the checkpoint {text} is not on this machine",
                why="only checkpoints in local folders can be read and moved without Spark",
                hint="use the tools of that file system; headrace pipeline ledger shows what was processed",
            )
        self.root = Path(text.removeprefix("file://")).absolute()

    @property
    def exists(self) -> bool:
        return (self.root / "metadata").is_file() or bool(self.numbers("offsets"))

    @property
    def query_id(self) -> str | None:
        """The query's own id: it stays when the query is started again."""
        try:
            return str(json.loads((self.root / "metadata").read_text(encoding="utf-8"))["id"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise self._damaged("metadata", error) from None

    @property
    def last_planned(self) -> int | None:
        return max(self.numbers("offsets"), default=None)

    @property
    def last_committed(self) -> int | None:
        return max(self.numbers("commits"), default=None)

    @property
    def is_stateful(self) -> bool:
        """Whether a stateful operator keeps something that belongs to the batches."""
        return any((self.root / "state").glob("*/*/*"))

    @property
    def state_bytes(self) -> int | None:
        """The size of the state of a stateful operator; None if there is none."""
        return size_bytes(self.root / "state") if self.is_stateful else None

    @property
    def watermark_ms(self) -> int | None:
        """The event time up to which windows are closed, as of the last batch."""
        planned = self.last_planned
        return None if planned is None else int(self.plan_file(planned)[0].get("batchWatermarkMs", 0)) or None

    def offsets(self, batch: int) -> Offsets:
        """Up to where the batch reads, per partition."""
        return self.plan_file(batch)[1]

    @property
    def initial(self) -> Offsets:
        """Where the first batch began; empty if that is not known."""
        return {place: offset for began in self.sources.values() for place, offset in began.items()}

    @property
    def sources(self) -> dict[int, Offsets]:
        """The same by source: a join has two."""
        found: dict[int, Offsets] = {}
        for path in sorted((self.root / "sources").glob("*/0")):
            try:
                # A zero byte stands first: early versions of Spark wrote a string with its length there.
                text = path.read_bytes().removeprefix(b"\0").decode()
                version, _, line = text.partition("\n")
                self._check_version(f"sources/{path.parent.name}/0", version)
                found[int(path.parent.name)] = parse_offsets(line)
            except (ValueError, AttributeError, OSError) as error:
                raise self._damaged(f"sources/{path.parent.name}/0", error) from None
        return found

    @property
    def position(self) -> Offsets:
        """How far the topics are processed: where the next batch, or a batch to be repeated, begins."""
        committed = self.last_committed
        return self.initial if committed is None else self.offsets(committed)

    @property
    def pending(self) -> BatchPlan | None:
        """The batch that was planned and not finished; it is run again, with the same records."""
        planned = self._unfinished
        return None if planned is None else self.plan(planned)

    @property
    def is_pending(self) -> bool:
        """Whether there is such a batch."""
        return self._unfinished is not None

    @property
    def _unfinished(self) -> int | None:
        committed, planned = self.last_committed, self.last_planned  # in this order: a running query plans first
        return planned if planned is not None and (committed is None or committed < planned) else None

    def plan(self, batch: int) -> BatchPlan:
        """What that batch reads."""
        metadata, until = self.plan_file(batch)
        before = self.start_of(batch)
        spans = tuple(Span(*place, before.get(place), offset) for place, offset in sorted(until.items()))
        moved = MOVED in (metadata.get("conf") or {})
        return BatchPlan(
            batch, int(metadata.get("batchTimestampMs", 0)), batch in self.numbers("commits"), spans, moved
        )

    def batches(self, limit: int | None = None) -> list[BatchPlan]:
        """The batches that the checkpoint still knows (Spark keeps a hundred), the oldest first."""
        numbers = sorted(self.numbers("offsets"))
        return [self.plan(number) for number in (numbers if limit is None else numbers[-limit:])]

    @property
    def size_bytes(self) -> int:
        return size_bytes(self.root)

    def check(self) -> None:
        """A query can continue from here: no file that it needs is missing or damaged, and no rewind was cut off."""
        self.check_files()
        pending = self.pending
        if pending is not None and pending.moved:
            raise self._damaged(f"commits/{pending.batch}", "a rewind was cut off before it was finished: repeat it")

    def check_files(self) -> None:
        """The files that a restart needs are whole; the first that is not is an error with its name."""
        if not self.exists:
            return
        if self.query_id is None:
            raise self._damaged("metadata", "it is missing")
        committed, planned = self.last_committed, self.last_planned  # in this order: a running query plans first
        if committed is not None:
            self.commit_file(committed)
            if planned is None or planned < committed:
                raise self._damaged(f"offsets/{committed}", "it is missing, and commits has it")
        else:
            _ = self.initial
        if planned is None:
            return
        if planned > 0 and planned - 1 not in self.numbers("offsets"):
            raise self._damaged(f"offsets/{planned - 1}", "it is missing, and the query begins with it")
        for number in {planned, max(planned - 1, 0)}:
            self.offsets(number)

    def document(self) -> dict[str, Any]:
        pending = self.pending
        return {
            "path": str(self.root), "query_id": self.query_id, "last_planned": self.last_planned,
            "last_committed": self.last_committed, "stateful": self.is_stateful, "bytes": self.size_bytes,
            "position": listed(self.position),
            "pending": pending.document() if pending else None,
            "batches": [batch.document() for batch in self.batches()],
        }  # fmt: skip

    # -- files ---------------------------------------------------------------------------------------------------------

    def numbers(self, folder: str) -> set[int]:
        """The batches in `offsets` or `commits`."""
        try:
            return {int(path.name) for path in (self.root / folder).iterdir() if path.name.isdigit()}
        except FileNotFoundError:
            return set()

    def start_of(self, batch: int) -> Offsets:
        """Where the batch begins; empty if that is no longer known."""
        if batch == 0:
            return self.initial
        return self.offsets(batch - 1) if batch - 1 in self.numbers("offsets") else {}

    def _lines(self, name: str) -> list[str]:
        try:
            version, *lines = (self.root / name).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            raise self._damaged(name, "it is missing") from None
        except (ValueError, OSError) as error:
            raise self._damaged(name, "it is empty" if isinstance(error, ValueError) else error) from None
        self._check_version(name, version)
        return lines

    def _check_version(self, name: str, version: str) -> None:
        if version not in _VERSIONS:
            raise self._damaged(name, f"it begins with {version[:20]!r}; {', '.join(sorted(_VERSIONS))} is supported")

    def plan_file(self, batch: int) -> tuple[dict[str, Any], Offsets]:
        """The settings and the offsets in `offsets/N`."""
        name = f"offsets/{batch}"
        lines = self._lines(name)
        try:
            metadata = json.loads(lines[0])
            if not isinstance(metadata, dict) or len(lines) < 2:
                raise ValueError("it does not name a source")  # noqa: TRY301
            return metadata, parse_sources(lines[1:])
        except (ValueError, IndexError, AttributeError, TypeError) as error:
            raise self._damaged(name, error) from None

    def commit_file(self, batch: int) -> dict[str, object]:
        """What `commits/N` says."""
        name = f"commits/{batch}"
        lines = self._lines(name)
        if not lines:
            raise self._damaged(name, "it ends after its first line")
        try:
            return dict(json.loads(lines[0]))
        except (ValueError, TypeError) as error:
            raise self._damaged(name, error) from None

    def _damaged(self, name: str, why: object) -> Failed:
        return Failed(
            f"the checkpoint {self.root} is damaged",
            why=f"{name}: {why}",
            hint="put a backup in its place (backups/ of the pipeline), or headrace pipeline checkpoint wipe NAME",
        )


def parse_offsets(line: str) -> Offsets:
    """Offsets as Spark writes them."""
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in json.loads(line).items()
        for partition, offset in partitions.items()
    }


def parse_sources(sources: Iterable[str]) -> Offsets:
    """Those of several sources; a dash means one that has read nothing yet."""
    found: Offsets = {}
    for line in sources:
        found |= parse_offsets(line) if line.strip() != "-" else {}
    return found


def listed(offsets: Offsets) -> list[dict[str, Any]]:
    """Offsets for a JSON document."""
    return [{"topic": topic, "partition": p, "offset": offset} for (topic, p), offset in sorted(offsets.items())]


def source_line(offsets: Mapping[Place, int]) -> str:
    """The reverse."""
    by_topic: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        by_topic.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(by_topic, separators=(",", ":"))
