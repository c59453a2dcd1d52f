"""Dead letters: records that could not be used, stored so that nothing is lost and each can be sent again.

In a topic a dead letter is the original record, key, value and headers byte for byte, and behind its own headers nine
of ours, always in this order:

    headrace.pipeline .run .outcome .rule .reason        what became of it, and why
    headrace.topic .partition .offset .timestamp         which record it was; milliseconds since 1970

In a table the same facts are columns. Spark writes them (`spark/letters.py`). Reading them needs no JVM and holds one
letter at a time. `diagnosis.py` says more exactly what is wrong with one, `redrive.py` sends them again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from headrace.errors import UsageError
from headrace.pipeline.declare.declaration import DeadLetters

if TYPE_CHECKING:
    from headrace.kafka import Connection
    from headrace.kafka.read import Record

PREFIX = "headrace."
FACTS = ("pipeline", "run", "outcome", "rule", "reason", "topic", "partition", "offset", "timestamp")
LETTER_COLUMNS = (*FACTS, "key", "value", "headers")
#: How often a record was redriven, and which letter it came from; these travel with the record.
REDRIVEN = f"{PREFIX}redriven"
REDRIVEN_FROM = f"{PREFIX}redriven.from"

Headers = tuple[tuple[str, bytes | None], ...]

_NAMES = tuple(PREFIX + fact for fact in FACTS)
HEADERS = "array<struct<key: string, value: binary>>"
_SPAN = re.compile(r"(?P<topic>[\w.-]+)(/(?P<partition>\d+)(/(?P<first>\d+)(-(?P<last>\d+))?)?)?")
_SAMPLE_BYTES = 1000
_MAX_GROUPS = 1000
_ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class Letter:
    """A dead letter: the original record, which one it was, and why it could not be used."""

    key: bytes | None
    value: bytes | None
    #: The original ones, without ours.
    headers: Headers
    pipeline: str
    run: str
    outcome: str
    rule: str
    reason: str
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    #: Where the letter itself is: a topic, partition and offset, or the folder of a table.
    place: str

    @property
    def origin(self) -> str:
        """The original record's place, as `--offset` takes it."""
        return f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def size_bytes(self) -> int:
        return len(self.key or b"") + len(self.value or b"")

    @property
    def redriven(self) -> int:
        """How often this record had been redriven before it died again."""
        count = next((value for name, value in reversed(self.headers) if name == REDRIVEN), None)
        return int(count) if count and count.isdigit() else 0

    @classmethod
    def of(cls, record: Record) -> Letter | None:
        """The letter in a record of a dead-letter topic; None if it is something else."""
        ours = record.headers[-len(FACTS) :]
        if tuple(name for name, _ in ours) != _NAMES:
            return None
        facts = {name.removeprefix(PREFIX): (value or b"").decode(errors="replace") for name, value in ours}
        numbers = [facts[name] for name in ("partition", "offset", "timestamp")]
        if not all(number.removeprefix("-").isdigit() for number in numbers):
            return None
        partition, offset, timestamp_ms = map(int, numbers)
        return cls(
            record.key, record.value, record.headers[: -len(FACTS)], facts["pipeline"], facts["run"], facts["outcome"],
            facts["rule"], facts["reason"], facts["topic"], partition, offset, timestamp_ms,
            f"{record.topic}/{record.partition}/{record.offset}",
        )  # fmt: skip


@dataclass(frozen=True)
class Span:
    """Original records: of a topic, of one of its partitions, from one offset to another, both included."""

    topic: str
    partition: int | None = None
    first: int = 0
    last: int | None = None

    @classmethod
    def parse(cls, text: str) -> Span:
        """`rides`, `rides/3`, `rides/3/17` or `rides/3/17-40`."""
        found = _SPAN.fullmatch(text)
        if not found:
            raise UsageError(
                f"{text!r} names no records", hint="TOPIC, TOPIC/PARTITION, TOPIC/PARTITION/OFFSET or …/FIRST-LAST"
            )
        if found["first"] is None:
            return cls(found["topic"], None if found["partition"] is None else int(found["partition"]))
        first = int(found["first"])
        return cls(found["topic"], int(found["partition"]), first, int(found["last"]) if found["last"] else first)

    def has(self, letter: Letter) -> bool:
        return (
            letter.topic == self.topic
            and self.partition in {None, letter.partition}
            and self.first <= letter.offset <= (letter.offset if self.last is None else self.last)
        )


@dataclass(frozen=True)
class Wanted:
    """Which letters are meant: those for which everything given holds. A reason is meant by any part of it."""

    pipeline: str | None = None
    rules: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()
    #: At most so many.
    limit: int | None = None

    def has(self, letter: Letter) -> bool:
        return (
            self.pipeline in {None, letter.pipeline}
            and (not self.rules or letter.rule in self.rules)
            and (not self.reasons or any(part in letter.reason for part in self.reasons))
            and (not self.outcomes or letter.outcome in self.outcomes)
            and (not self.runs or letter.run in self.runs)
            and (not self.spans or any(span.has(letter) for span in self.spans))
        )


def letters(connection: Connection, place: DeadLetters, wanted: Wanted | None = None) -> Iterator[Letter]:
    """The letters that are there now, one after the other. A place that was never written to has none."""
    found = _in_topic(connection, place.target) if place.kind == "topic" else _in_table(place.target)
    return found if wanted is None else islice(filter(wanted.has, found), wanted.limit)


def _in_topic(connection: Connection, topic: str) -> Iterator[Letter]:
    from headrace.kafka import Kafka
    from headrace.kafka.read import consume

    with Kafka(connection) as admin:
        if topic not in {found.name for found in admin.topics()}:
            return
    for record in consume(connection, topic):
        letter = Letter.of(record)
        if letter is not None:
            yield letter


def _in_table(folder: str) -> Iterator[Letter]:
    from pathlib import Path

    from headrace.tables import Query, is_table, read_table

    if "://" not in folder and not is_table(Path(folder)):
        return
    for batch in read_table(folder).batches(Query(LETTER_COLUMNS)):
        # A row may be megabytes: never many of them as Python objects.
        for at in range(0, batch.num_rows, _ROWS_AT_ONCE):
            for row in batch.slice(at, _ROWS_AT_ONCE).to_pylist():
                yield _of_row(row, folder)


def _of_row(row: dict[str, Any], folder: str) -> Letter:
    text = {name: row[name] or "" for name in ("pipeline", "run", "outcome", "rule", "reason")}
    headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
    moment = row["timestamp"]
    return Letter(
        row["key"], row["value"], headers, **text, topic=row["topic"], partition=row["partition"], offset=row["offset"],
        timestamp_ms=round(moment.timestamp() * 1000) if moment else -1, place=folder,
    )  # fmt: skip


# -- in sum ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """A letter as an example: the beginning of its key and value, and what is wrong with it."""

    origin: str
    place: str
    timestamp_ms: int
    size_bytes: int
    key: bytes | None
    value: bytes | None
    words: str


@dataclass
class Group:
    """Letters that died of the same. The times are those of the original records."""

    outcome: str
    rule: str
    reason: str
    records: int = 0
    bytes: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    #: How many of them had been redriven before.
    redriven: int = 0
    samples: list[Sample] = field(default_factory=list)

    def add(self, letter: Letter) -> None:
        self.records += 1
        self.bytes += letter.size_bytes
        self.first_ms = letter.timestamp_ms if self.first_ms is None else min(self.first_ms, letter.timestamp_ms)
        self.last_ms = letter.timestamp_ms if self.last_ms is None else max(self.last_ms, letter.timestamp_ms)
        self.redriven += letter.redriven > 0


def summary(found: Iterable[Letter], samples: int = 3, explain: Callable[[Letter], str] | None = None) -> list[Group]:
    """The letters by rule and reason, the most frequent first. `explain` says what is wrong with each sample.

    Reasons beyond the first thousand (ids at random, say) are counted together, by their rule.
    """
    groups: dict[tuple[str, str, str], Group] = {}
    for letter in found:
        key = (letter.outcome, letter.rule, letter.reason)
        if key not in groups and len(groups) >= _MAX_GROUPS:
            key = (letter.outcome, letter.rule, "other reasons")
        group = groups.setdefault(key, Group(*key))
        group.add(letter)
        if len(group.samples) < samples:
            group.samples.append(_sample(letter, explain(letter) if explain else letter.reason))
    return sorted(groups.values(), key=lambda group: -group.records)


def _sample(letter: Letter, words: str) -> Sample:
    key, value = (part[:_SAMPLE_BYTES] if part is not None else None for part in (letter.key, letter.value))
    return Sample(letter.origin, letter.place, letter.timestamp_ms, letter.size_bytes, key, value, words)
