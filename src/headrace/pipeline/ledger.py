"""The account of a pipeline: of every record that was read, what became of it.

    read = written + dead + late + filtered + duplicates          per batch and topic-partition

It is counted in three places that do not know of each other: Spark counts what the source delivered, the sorted-out
batch is counted by outcome, and each sink counts the rows that it took. An entry balances when they agree.
The ledger is one SQLite file in the pipeline's folder. A batch that is replayed after a crash replaces its entry, so it
is never counted twice. Reading it needs no Spark.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

OUTCOMES = ("written", "dead", "late", "filtered", "duplicate")

_TABLES = """
create table if not exists runs (
  run text primary key, started real, ended real, state text, error text, trigger text, master text);
create table if not exists batches (
  epoch integer, batch integer, run text, at real, seconds real, delivered integer, warnings integer,
  primary key (epoch, batch));
create table if not exists counts (
  epoch integer, batch integer, topic text, partition integer, outcome text, rule text, records integer,
  primary key (epoch, batch, topic, partition, outcome, rule));
create table if not exists spans (
  epoch integer, batch integer, topic text, partition integer, first integer, next integer, records integer,
  primary key (epoch, batch, topic, partition));
create table if not exists sinks (
  epoch integer, batch integer, sink text, expected integer, records integer, replayed integer,
  primary key (epoch, batch, sink));
"""


@dataclass(frozen=True)
class SinkCount:
    """How many rows a sink should have got and how many it took; `replayed`: an earlier attempt had written them."""

    sink: str
    expected: int
    records: int
    replayed: bool = False


@dataclass
class BatchEntry:
    """One batch, as it is entered."""

    batch: int
    epoch: int = 0
    seconds: float = 0.0
    #: What the source delivered, counted by Spark on the way in.
    delivered: int = 0
    warnings: int = 0
    #: (topic, partition) to (first offset, next offset, records).
    spans: dict[tuple[str, int], tuple[int, int, int]] = field(default_factory=dict)
    #: (topic, partition, outcome, rule) to records.
    counts: dict[tuple[str, int, str, str], int] = field(default_factory=dict)
    sinks: list[SinkCount] = field(default_factory=list)

    def total(self, outcome: str) -> int:
        return sum(records for (_, _, found, _), records in self.counts.items() if found == outcome)


@dataclass(frozen=True)
class Line:
    """What became of the records of one topic-partition, in one run or in all."""

    run: str
    topic: str
    partition: int
    first: int
    next: int
    read: int
    written: int
    dead: int
    late: int
    filtered: int
    duplicate: int

    @property
    def balanced(self) -> bool:
        return self.read == self.written + self.dead + self.late + self.filtered + self.duplicate


@dataclass(frozen=True)
class RunLine:
    """One run as a whole."""

    run: str
    state: str
    started: float
    ended: float | None
    error: str | None
    batches: int
    read: int
    warnings: int
    outcomes: dict[str, int]
    unbalanced: tuple[str, ...]

    @property
    def balanced(self) -> bool:
        return not self.unbalanced

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "balanced": self.balanced}


class Ledger:
    """The account of one pipeline. Safe to read while a run writes it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "ledger.sqlite"

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self.file, timeout=10)
        try:
            with connection:
                yield connection
        finally:
            connection.close()

    def prepare(self) -> None:
        """The file is there, for its owner alone."""
        self.file.touch(mode=0o600)
        with self._open() as db:
            # All tables at once, and only then the first change of the file that readers could mistake for a ledger.
            db.executescript(f"begin; {_TABLES} commit;")
            db.execute("pragma journal_mode=wal")

    def begin(self, run: str, trigger: str, master: str) -> None:
        """A run has begun; one that never ended was cut off."""
        with self._open() as db:
            db.execute("update runs set state = 'cut off' where state = 'running'")
            db.execute(
                "insert into runs (run, started, state, trigger, master) values (?, ?, 'running', ?, ?)",
                (run, time.time(), trigger, master),
            )

    def end(self, run: str, state: str, error: str | None = None) -> None:
        with self._open() as db:
            db.execute(
                "update runs set ended = ?, state = ?, error = ? where run = ?", (time.time(), state, error, run)
            )

    def enter(self, run: str, entry: BatchEntry) -> None:
        """The batch is in the account, in the place of an earlier attempt at it."""
        key = (entry.epoch, entry.batch)
        with self._open() as db:
            for table in ("batches", "counts", "spans", "sinks"):
                db.execute(f"delete from {table} where epoch = ? and batch = ?", key)  # noqa: S608 - our own names
            db.execute(
                "insert into batches values (?, ?, ?, ?, ?, ?, ?)",
                (*key, run, time.time(), entry.seconds, entry.delivered, entry.warnings),
            )
            db.executemany(
                "insert into counts values (?, ?, ?, ?, ?, ?, ?)", [(*key, *k, n) for k, n in entry.counts.items()]
            )
            db.executemany(
                "insert into spans values (?, ?, ?, ?, ?, ?, ?)", [(*key, *k, *span) for k, span in entry.spans.items()]
            )
            db.executemany(
                "insert into sinks values (?, ?, ?, ?, ?, ?)",
                [(*key, s.sink, s.expected, s.records, s.replayed) for s in entry.sinks],
            )

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        return self.file.is_file() and self.file.stat().st_size > 0

    def runs(self, run: str | None = None) -> list[RunLine]:
        """Every run, the latest last; or that one. A handful of questions, however many runs there are."""
        if not self.exists:
            return []
        with self._open() as db:
            known = db.execute(
                "select run, state, started, ended, error from runs where ?1 is null or run = ?1 order by started",
                (run,),
            ).fetchall()
            batches = db.execute(
                """select run, count(*), sum(delivered), sum(warnings) from batches where ?1 is null or run = ?1
                   group by run""",
                (run,),
            ).fetchall()
            counts = db.execute(
                """select run, outcome, sum(records) from batches join counts using (epoch, batch)
                   where ?1 is null or run = ?1 group by run, outcome""",
                (run,),
            ).fetchall()
            wrong = list(self._unbalanced(db, run))
        read = {name: (number, delivered, warnings) for name, number, delivered, warnings in batches}
        outcomes = {name: dict.fromkeys(OUTCOMES, 0) for name, *_ in known}
        for name, outcome, records in counts:
            outcomes[name][outcome] = records
        unbalanced: dict[str, tuple[str, ...]] = {}
        for name, text in wrong:
            unbalanced[name] = (*unbalanced.get(name, ()), text)
        return [
            RunLine(
                name, state, started, ended, error, *read.get(name, (0, 0, 0)), outcomes[name], unbalanced.get(name, ())
            )
            for name, state, started, ended, error in known
        ]  # fmt: skip

    def run(self, run: str) -> RunLine:
        """The run of that name."""
        (found,) = self.runs(run)
        return found

    def _unbalanced(self, db: sqlite3.Connection, run: str | None) -> Iterator[tuple[str, str]]:
        """Of which run what does not add up, in words."""
        found = db.execute(
            """select run, batch, delivered, coalesce(sum(records), 0) as counted
               from batches left join counts using (epoch, batch) where ?1 is null or run = ?1
               group by epoch, batch having delivered != counted""",
            (run,),
        ).fetchall()
        for name, batch, delivered, counted in found:
            yield name, f"batch {batch}: {delivered:,} records were read, {counted:,} have an outcome"
        found = db.execute(
            """select run, batch, sink, expected, records from sinks join batches using (epoch, batch)
               where expected != records and (?1 is null or run = ?1)""",
            (run,),
        ).fetchall()
        for name, batch, sink, expected, records in found:
            yield name, f"batch {batch}: {sink} took {records:,} rows of {expected:,}"

    def lines(self, run: str | None = None) -> list[Line]:
        """Per run and topic-partition."""
        if not self.exists:
            return []
        with self._open() as db:
            spans = db.execute(
                """select run, topic, partition, min(first), max(next), sum(records)
                   from spans join batches using (epoch, batch) where ? is null or run = ?
                   group by run, topic, partition order by min(at), topic, partition""",
                (run, run),
            ).fetchall()
            counts = db.execute(
                """select run, topic, partition, outcome, sum(records)
                   from counts join batches using (epoch, batch) where ? is null or run = ?
                   group by run, topic, partition, outcome""",
                (run, run),
            ).fetchall()
        found = {(r, topic, partition, outcome): n for r, topic, partition, outcome, n in counts}
        return [
            Line(r, topic, partition, first, after, read,
                 *(found.get((r, topic, partition, outcome), 0) for outcome in OUTCOMES))
            for r, topic, partition, first, after, read in spans
        ]  # fmt: skip

    def by_rule(self, run: str | None = None) -> list[tuple[str, str, int]]:
        """(outcome, rule, records) of whatever was not written."""
        if not self.exists:
            return []
        with self._open() as db:
            return db.execute(
                """select outcome, rule, sum(records) from counts join batches using (epoch, batch)
                   where outcome != 'written' and (? is null or run = ?) group by outcome, rule order by 3 desc""",
                (run, run),
            ).fetchall()

    def recent_rate(self, within_s: float = 30.0) -> float | None:
        """Records per second of the batches of late, None if there were none."""
        if not self.exists:
            return None
        with self._open() as db:
            read, first, last = db.execute(
                "select sum(delivered), min(at - seconds), max(at) from batches where at > ?", (time.time() - within_s,)
            ).fetchone()
        return read / max(last - first, 0.001) if read else None
