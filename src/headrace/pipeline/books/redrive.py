"""Dead letters sent again to where they came from: original bytes, key and headers, once.

A redriven record says how often it was (`headrace.redriven`) and which letter it comes from (`headrace.redriven.from`);
one that has gone round as often as is allowed stays where it is. Letters and a mark for each go out in one transaction:

    headrace.redriven    compacted    key: PIPELINE/TOPIC/PARTITION/OFFSET/COUNT    value: when, and which letter

so a redrive that is cut off is taken up where it was, and a letter that was redriven is not redriven again unless that
is asked for. Two redrives of one pipeline at a time cannot be: the second fences the first. Letters are held a few
thousand at a time, however many there are. They are never changed or removed here.
"""

from __future__ import annotations

import base64
import binascii
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from headrace.errors import UsageError
from headrace.kafka import Kafka, NewTopic
from headrace.kafka.write import Records, Writer
from headrace.pipeline.books.dead_letters import REDRIVEN, REDRIVEN_FROM, Letter
from headrace.text import text_or_base64

if TYPE_CHECKING:
    from headrace.kafka import Connection

REDRIVEN_MARKS = "headrace.redriven"
#: A letter as it shall be sent, or None if it shall stay where it is.
Edit = Callable[[Letter], Letter | None]

_CHUNK_LETTERS = 5000
_CHUNK_BYTES = 32 << 20
_SAMPLES = 5


@dataclass(frozen=True)
class RedrivePlan:
    """How letters are sent. With `dry` everything is read and nothing sent."""

    #: Also those that were redriven before.
    again: bool = False
    #: A record that died after so many redrives is not sent again.
    max_times: int = 3
    #: Into the original partition; otherwise the key decides, as for any new record.
    keep_partition: bool = False
    #: A function, or the file that `Pipeline.save_dead_letters` wrote, edited.
    edit: Edit | Path | None = None
    dry: bool = False
    #: Let Spark apply the current rules to those that are sent, or would be.
    try_rules: bool = False


@dataclass
class RedriveReport:
    """What happened to the letters that were read; each is counted once."""

    looked_at: int = 0
    sent: int = 0
    bytes: int = 0
    #: Of those sent: how many were changed on the way.
    edited: int = 0
    #: Stayed: redriven before; gone round too often; left out by the edit.
    marked: int = 0
    looping: int = 0
    left_out: int = 0
    topics: dict[str, int] = field(default_factory=dict)
    #: The first few that went round too often, by the place of the original.
    looping_samples: list[str] = field(default_factory=list)
    #: What the current rules say: outcome, rule and number of records. None if they were not tried.
    outcomes: list[tuple[str, str, int]] | None = None

    def document(self) -> dict[str, Any]:
        """Everything but the outcomes."""
        document = asdict(self)
        del document["outcomes"]
        return document


def redrive(
    connection: Connection,
    found: Iterable[Letter],
    plan: RedrivePlan | None = None,
    judge: Callable[[list[Letter]], None] | None = None,
) -> RedriveReport:
    """The letters are in their topics again, except those that the report counts as staying.

    `judge` is shown those that are sent, or would be, as they are sent: a few thousand at a time.
    """
    run = _Redrive(connection, plan or RedrivePlan(), judge)
    try:
        for chunk in _chunks(found):
            run.take(chunk)
    finally:
        run.close()
    return run.report


class _Redrive:
    def __init__(self, connection: Connection, plan: RedrivePlan, judge: Callable[[list[Letter]], None] | None) -> None:
        self.connection = connection
        self.plan = plan
        self.edit = read_edits(plan.edit) if isinstance(plan.edit, Path) else plan.edit
        self.judge = judge
        self.report = RedriveReport()
        self._writers: dict[str, Writer] = {}
        self._has_marks = _prepare_marks(connection, create=not plan.dry)

    def take(self, chunk: list[Letter]) -> None:
        by_pipeline: dict[str, list[Letter]] = {}
        for letter in chunk:
            by_pipeline.setdefault(letter.pipeline, []).append(letter)
        for pipeline, theirs in by_pipeline.items():
            # The writer first: from then on no other redrive can write marks.
            writer = None if self.plan.dry else self._writer(pipeline)
            chosen = self._chosen(theirs)
            if writer is not None and chosen:
                self._send(writer, chosen)
            if self.judge is not None and chosen:
                self.judge(chosen)
            for letter in chosen:
                self._count(letter)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def _writer(self, pipeline: str) -> Writer:
        if pipeline not in self._writers:
            self._writers[pipeline] = Writer(self.connection, f"headrace-redrive/{pipeline}")
        return self._writers[pipeline]

    def _chosen(self, found: list[Letter]) -> list[Letter]:
        """Those that are to be sent, as they are to be sent."""
        self.report.looked_at += len(found)
        marks: dict[str, int] = {}
        if self._has_marks and not self.plan.again:
            marks = _marks(self.connection, {_key(letter) for letter in found})
        chosen: list[Letter] = []
        taken: set[str] = set()
        for letter in found:
            key = _key(letter)
            if letter.redriven >= self.plan.max_times:
                self.report.looping += 1
                if len(self.report.looping_samples) < _SAMPLES:
                    self.report.looping_samples.append(letter.origin)
            # The same offset in a recreated topic is another record.
            elif key in taken or marks.get(key) == letter.timestamp_ms:
                self.report.marked += 1
            else:
                taken.add(key)
                chosen += self._edited(letter)
        return chosen

    def _edited(self, letter: Letter) -> list[Letter]:
        edited = self.edit(letter) if self.edit else letter
        if edited is None:
            self.report.left_out += 1
            return []
        self.report.edited += edited != letter
        return [edited]

    def _send(self, writer: Writer, chosen: list[Letter]) -> None:
        with Kafka(self.connection) as kafka:
            kafka.require_topics(sorted({letter.topic for letter in chosen}))
        now = time.time()
        partitions = [letter.partition for letter in chosen] if self.plan.keep_partition else None
        writer.begin()
        writer.send(
            Records(
                [letter.topic for letter in chosen], [letter.key for letter in chosen],
                [letter.value for letter in chosen], [_headers(letter) for letter in chosen],
                lambda at: f"the dead letter of {chosen[at].origin}", partitions,
            )
        )  # fmt: skip
        writer.flush()
        marks = [json.dumps({"timestamp_ms": n.timestamp_ms, "letter": n.place, "at": now}).encode() for n in chosen]
        keys = [_key(letter).encode() for letter in chosen]
        writer.send(
            Records(
                [REDRIVEN_MARKS] * len(chosen),
                keys,
                marks,
                None,
                lambda _: "the mark of a dead letter",
                [0] * len(chosen),
            )
        )
        writer.commit()

    def _count(self, letter: Letter) -> None:
        report = self.report
        report.sent += 1
        report.bytes += letter.size_bytes
        report.topics[letter.topic] = report.topics.get(letter.topic, 0) + 1


def _chunks(found: Iterable[Letter]) -> Iterator[list[Letter]]:
    chunk: list[Letter] = []
    size = 0
    for letter in found:
        chunk.append(letter)
        size += letter.size_bytes
        if len(chunk) >= _CHUNK_LETTERS or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _headers(letter: Letter) -> list[tuple[str, bytes | None]]:
    kept = [(name, value) for name, value in letter.headers if name not in {REDRIVEN, REDRIVEN_FROM}]
    return [*kept, (REDRIVEN, str(letter.redriven + 1).encode()), (REDRIVEN_FROM, letter.place.encode())]


def _key(letter: Letter) -> str:
    return f"{letter.pipeline}/{letter.origin}/{letter.redriven}"


def _marks(connection: Connection, keys: set[str]) -> dict[str, int]:
    """Those of the keys that have a mark, with the timestamp of its record."""
    from headrace.kafka.write import committed

    found: dict[str, int] = {}
    for message in committed(connection, (REDRIVEN_MARKS, 0)):
        key = (message.key() or b"").decode(errors="replace")
        if key in keys:
            found[key] = int(json.loads(message.value() or b"")["timestamp_ms"])
    return found


def _prepare_marks(connection: Connection, *, create: bool) -> bool:
    """Whether the topic of the marks exists; it is created if that is wanted."""
    with Kafka(connection) as kafka:
        exists = REDRIVEN_MARKS in {topic.name for topic in kafka.topics()}
        if create and not exists:
            replicas = min(3, len(kafka.brokers()))
            kafka.ensure_topic(NewTopic(REDRIVEN_MARKS, 1, replicas, {"cleanup.policy": "compact"}))
        return exists or create


# -- edits -----------------------------------------------------------------------------------------------------------


def write_for_editing(found: Iterable[Letter], out: IO[str]) -> int:
    """The letters as lines of JSON: what may be changed (`key`, `value`), and what must stay to know them by."""
    count = 0
    for letter in found:
        line = {
            "origin": letter.origin, "rule": letter.rule, "reason": letter.reason,
            "key": text_or_base64(letter.key), "value": text_or_base64(letter.value),
        }  # fmt: skip
        out.write(json.dumps(line, ensure_ascii=False) + "\n")
        count += 1
    return count


def read_edits(path: Path) -> Edit:
    """The edits of a file that `write_for_editing` wrote. Letters that it lacks are not sent."""
    edits: dict[str, dict[str, bytes | None]] = {}
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    origin, parts = _edit_of(line, f"{path}, line {number}")
                    edits[origin] = parts
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read", why=str(error)) from None

    def edit(letter: Letter) -> Letter | None:
        parts = edits.get(letter.origin)
        return None if parts is None else replace(letter, **parts)  # type: ignore[arg-type]

    return edit


def _edit_of(line: str, where: str) -> tuple[str, dict[str, bytes | None]]:
    expected = 'a line like {"origin": "rides/3/17", "value": "…"} is expected'
    try:
        edit = json.loads(line)
        origin = edit["origin"]
        parts = {name: _bytes(edit[name]) for name in ("key", "value") if name in edit}
    except (ValueError, KeyError, TypeError, binascii.Error) as error:
        raise UsageError(f"{where}: this is not a dead letter", why=str(error), hint=expected) from None
    if not isinstance(origin, str):
        raise UsageError(f"{where}: origin is {origin!r}", hint=expected)
    return origin, parts


def _bytes(given: object) -> bytes | None:
    if given is None:
        return None
    if isinstance(given, Mapping):
        return base64.b64decode(given["base64"], validate=True)
    if not isinstance(given, str):
        raise TypeError(f"{given!r} is neither text nor {{'base64': …}}")
    return given.encode()
