"""The account of a pipeline: of every record that was read, what became of it.

    read = written + dead + late + filtered + duplicates          records, per batch and topic-partition
    rows = taken + skipped                                        rows, per batch and sink

It is counted in three places that do not know of each other: Spark counts what the source delivered, the sorted-out
batch is counted by outcome and by which sink wants it, and each sink counts the rows that it took. An entry balances
when they agree; no part of a batch that does not is called balanced.
The ledger is one SQLite file in the pipeline's folder. A batch that is replayed after a crash replaces its entry, so it
is never counted twice. Reading it needs no Spark. One that an earlier version made lacks tables: to a reader they are
empty, and what they would tell is None.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
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
create table if not exists sink_rows (
  epoch integer, batch integer, sink text, given integer, skipped integer, watermark integer,
  primary key (epoch, batch, sink));
create table if not exists rows (
  epoch integer, batch integer, topic text, partition integer, rows integer,
  primary key (epoch, batch, topic, partition));
create table if not exists windows (
  epoch integer, batch integer, sink text, ends integer, rows integer, primary key (epoch, batch, sink, ends));
"""
_OF_A_BATCH = ("batches", "counts", "spans", "sinks", "sink_rows", "rows", "windows")


@dataclass(frozen=True)
class SinkCount:
    """How many rows a sink should have got and how many it took; `replayed`: an earlier attempt had written them."""

    sink: str
    expected: int
    records: int
    replayed: bool = False
    #: The rows of the batch, and how many of them the sink's own `where` left out.
    given: int | None = None
    skipped: int = 0
    #: Of a sink behind a watermark, both in milliseconds: up to where windows are closed, and by the end of the last
    #: window that a row belongs to how many rows came.
    watermark: int | None = None
    windows: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, sink: str, expected: int, records: int | None, given: int | None = None, skipped: int = 0) -> SinkCount:
        """None taken: an earlier attempt has done it, and the count of then was checked then."""
        taken = expected if records is None else records
        return cls(sink, expected, taken, records is None, given, skipped)


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
    #: (topic, partition) to the rows that its written records became.
    rows: dict[tuple[str, int], int] = field(default_factory=dict)
    #: Of sinks that do not take every row, by column: how many rows they want, and how many become of those.
    wanted: dict[str, tuple[int, int]] = field(default_factory=dict)
    sinks: list[SinkCount] = field(default_factory=list)

    @property
    def counted(self) -> int:
        """Records that have an outcome."""
        return sum(self.counts.values())

    @property
    def written_rows(self) -> int:
        return sum(self.rows.values()) if self.rows else self.total("written")

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
    #: Records; `rows` are those that the written ones became.
    read: int
    written: int
    dead: int
    late: int
    filtered: int
    duplicate: int
    rows: int
    #: Every batch that it is made of balances as a whole: a partition alone cannot tell.
    balanced: bool


@dataclass(frozen=True)
class SinkLine:
    """What one run has brought to one sink."""

    run: str
    sink: str
    #: The rows of its batches; None where an earlier version kept no count.
    rows: int | None
    #: Left out by the sink's own `where`.
    skipped: int | None
    #: Rows that the sink took: written, or added to its aggregate. Of one behind a watermark: finished windows.
    taken: int
    #: Rows in windows that were open when the run ended; None where there are none, or that cannot be known.
    waiting: int | None
    balanced: bool


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
    #: That the written records became.
    rows: int
    unbalanced: tuple[str, ...]

    @property
    def balanced(self) -> bool:
        return not self.unbalanced

    def document(self) -> dict[str, Any]:
        return {**asdict(self), "balanced": self.balanced}


_Batch = tuple[int, int]


def _complete(db: sqlite3.Connection) -> None:
    """Tables that a ledger of an earlier version lacks are there, and empty, for as long as the connection is."""
    known = {name for (name,) in db.execute("select name from sqlite_master where type = 'table'")}
    for table in _TABLES.split(";")[:-1] if "batches" in known else ():
        name = table.split("(")[0].split()[-1]
        if name not in known:
            db.execute(table.replace("create table", "create temp table"))


def _waiting(db: sqlite3.Connection, sink: str, batch: int, watermark: int | None) -> int | None:
    """Rows up to that batch in windows that the watermark has not closed; None if not all of them were counted.

    Of a batch that was repeated after a rewind the latest epoch counts: its rows are those in the state.
    """
    if watermark is None:
        return None
    (unknown,) = db.execute(
        """with latest as (select batch, max(epoch) as epoch from batches where batch <= ? group by batch)
           select count(*) from latest left join (select * from sink_rows where sink = ?) using (epoch, batch)
           where watermark is null""",
        (batch, sink),
    ).fetchone()
    (rows,) = db.execute(
        """with latest as (select batch, max(epoch) as epoch from batches where batch <= ? group by batch)
           select coalesce(sum(rows), 0) from latest join windows using (epoch, batch) where sink = ? and ends > ?""",
        (batch, sink, watermark),
    ).fetchone()
    return None if unknown else int(rows)


class Ledger:
    """The account of one pipeline. Safe to read while a run writes it."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "ledger.sqlite"

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self.file, timeout=10)
        try:
            with connection:
                _complete(connection)
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
            for table in _OF_A_BATCH:
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
            db.executemany(
                "insert into sink_rows values (?, ?, ?, ?, ?, ?)",
                [(*key, s.sink, s.given, s.skipped, s.watermark) for s in entry.sinks if s.given is not None],
            )
            db.executemany("insert into rows values (?, ?, ?, ?, ?)", [(*key, *k, n) for k, n in entry.rows.items()])
            db.executemany(
                "insert into windows values (?, ?, ?, ?, ?)",
                [(*key, s.sink, ends, rows) for s in entry.sinks for ends, rows in s.windows.items()],
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
            made = dict(
                db.execute(
                    """select run, sum(rows) from batches join rows using (epoch, batch) where ?1 is null or run = ?1
                       group by run""",
                    (run,),
                ).fetchall()
            )
            wrong = list(self._unbalanced(db, run))
        read = {name: (number, delivered, warnings) for name, number, delivered, warnings in batches}
        outcomes = {name: dict.fromkeys(OUTCOMES, 0) for name, *_ in known}
        for name, outcome, records in counts:
            outcomes[name][outcome] = records
        unbalanced: dict[str, tuple[str, ...]] = {}
        for name, _, text in wrong:
            unbalanced[name] = (*unbalanced.get(name, ()), text)
        return [
            RunLine(
                name, state, started, ended, error, *read.get(name, (0, 0, 0)), outcomes[name],
                made.get(name, outcomes[name]["written"]), unbalanced.get(name, ()),
            )
            for name, state, started, ended, error in known
        ]  # fmt: skip

    def run(self, run: str) -> RunLine:
        """The run of that name."""
        (found,) = self.runs(run)
        return found

    def _unbalanced(self, db: sqlite3.Connection, run: str | None) -> Iterator[tuple[str, _Batch, str]]:
        """Of which run and batch what does not add up, in words."""
        found = db.execute(
            """select run, epoch, batch, delivered, coalesce(sum(records), 0) as counted
               from batches left join counts using (epoch, batch) where ?1 is null or run = ?1
               group by epoch, batch having delivered != counted""",
            (run,),
        ).fetchall()
        for name, epoch, batch, delivered, counted in found:
            yield name, (epoch, batch), f"batch {batch}: {delivered:,} records were read, {counted:,} have an outcome"
        found = db.execute(
            """select run, epoch, batch, sink, expected, records from sinks join batches using (epoch, batch)
               where expected != records and (?1 is null or run = ?1)""",
            (run,),
        ).fetchall()
        for name, epoch, batch, sink, expected, records in found:
            yield name, (epoch, batch), f"batch {batch}: {sink} took {records:,} rows of {expected:,}"

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
            rows = db.execute(
                """select run, topic, partition, sum(rows) from rows join batches using (epoch, batch)
                   where ? is null or run = ? group by run, topic, partition""",
                (run, run),
            ).fetchall()
            wrong = {
                (name, *place)
                for name, batch, _ in self._unbalanced(db, run)
                for place in db.execute("select topic, partition from spans where epoch = ? and batch = ?", batch)
            }
        found = {(r, topic, partition, outcome): n for r, topic, partition, outcome, n in counts}
        became = {(r, topic, partition): n for r, topic, partition, n in rows}
        made = []
        for r, topic, partition, first, after, read in spans:
            outcomes = {outcome: found.get((r, topic, partition, outcome), 0) for outcome in OUTCOMES}
            balanced = read == sum(outcomes.values()) and (r, topic, partition) not in wrong
            some = became.get((r, topic, partition), outcomes["written"])
            made.append(Line(r, topic, partition, first, after, read, **outcomes, rows=some, balanced=balanced))
        return made

    def sinks(self, run: str | None = None) -> list[SinkLine]:
        """Per run and sink: what became of the rows."""
        if not self.exists:
            return []
        with self._open() as db:
            found = db.execute(
                """select run, sink, case when count(given) = count(*) then sum(given) end,
                          case when count(given) = count(*) then sum(skipped) end, sum(records),
                          max(batch), max(watermark), sum(expected != records) = 0
                   from sinks join batches using (epoch, batch) left join sink_rows using (epoch, batch, sink)
                   where ?1 is null or run = ?1 group by run, sink order by min(at), min(sinks.rowid)""",
                (run,),
            ).fetchall()
            return [
                SinkLine(name, sink, given, skipped, taken, _waiting(db, sink, batch, watermark), bool(balanced))
                for name, sink, given, skipped, taken, batch, watermark, balanced in found
            ]

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
