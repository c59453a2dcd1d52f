"""The ledger of a pipeline: what happened to every record that was read.

    read = written + dead + late + filtered + duplicates          records, per batch and topic-partition
    rows = taken + skipped                                        rows, per batch and sink
    taken = applied + deleted + superseded                        rows, of a sink that takes changes by key
    written = matched + unmatched + waiting                       records, per side of a join

Three independent counts must agree: Spark counts what the source delivered, the classified batch is counted by outcome
and by which sink wants it, and each sink counts the rows that it took. If they do not, no part of the batch is called
balanced.
The ledger is one SQLite file in the pipeline's folder. A batch that is replayed after a crash replaces its entry, so it
is never counted twice. Reading it needs no Spark. A ledger of an earlier version lacks tables: to a reader they are
empty, and what they would contain is None.
"""

from __future__ import annotations

import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import Any

# So many batches back a checkpoint can be rewound with its state: what Spark keeps of them.
_KEPT_BATCHES = 100

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
create table if not exists changes (
  epoch integer, batch integer, sink text, applied integer, deleted integer, superseded integer,
  primary key (epoch, batch, sink));
create table if not exists joins (
  epoch integer, batch integer, side text, entered integer, matched integer, unmatched integer, watermark integer,
  primary key (epoch, batch, side));
create table if not exists matches (
  epoch integer, batch integer, topic text, partition integer, bucket integer, offsets blob,
  primary key (epoch, batch, topic, partition, bucket));
create table if not exists windows (
  epoch integer, batch integer, sink text, ends integer, rows integer, primary key (epoch, batch, sink, ends));
create table if not exists steps (
  epoch integer, batch integer, sink text, made integer, kept integer, primary key (epoch, batch, sink));
create table if not exists lookups (
  epoch integer, batch integer, lookup text, version text, primary key (epoch, batch, lookup));
"""


@dataclass(frozen=True)
class Changed:
    """What became of rows that are changes: they hold, they deleted, or a later one of their key holds instead."""

    applied: int
    deleted: int
    superseded: int

    @property
    def total(self) -> int:
        return self.applied + self.deleted + self.superseded


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
    #: Of a sink that takes changes by key.
    changed: Changed | None = None
    #: Of a sink behind a class with state: the rows that it gave. `records` are those that it was given.
    made: int | None = None

    @classmethod
    def of(cls, sink: str, expected: int, records: int | None, given: int | None = None, skipped: int = 0) -> SinkCount:
        """None taken: an earlier attempt has done it, and the count of then was checked then."""
        taken = expected if records is None else records
        return cls(sink, expected, taken, records is None, given, skipped)


@dataclass(frozen=True)
class JoinCount:
    """What a batch was for one side of a join. `watermark` and `ends` are in milliseconds."""

    side: str
    #: Records that entered the join, and those that left it without ever having found a partner.
    entered: int
    unmatched: int
    #: The records of any batch that are in a pair of this one: (topic, partition, bucket) to a bit for each offset.
    matched: Mapping[tuple[str, int, int], bytes]
    #: When a row finds no more partners, to the rows of the batch for which that is so; and how far that time has come.
    ends: Mapping[int, int]
    watermark: int


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
    #: What was looked up, to the version that was used.
    lookups: dict[str, str] = field(default_factory=dict)
    joins: list[JoinCount] = field(default_factory=list)

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
    #: Every batch of it balances as a whole: one partition alone does not show that.
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
    #: Rows that the sink took: written, or added to its aggregate. Of one behind a watermark: finished windows; of one
    #: behind a class with state: rows that the class was given.
    taken: int
    #: Rows in windows that were open when the run ended; None where there are none, or that cannot be known.
    waiting: int | None
    #: Of the rows taken, where they are changes by key; None of other sinks.
    applied: int | None
    deleted: int | None
    superseded: int | None
    #: Of a class with state: the rows that it gave, and the entries of its state behind the last batch.
    made: int | None
    state: int | None
    balanced: bool


@dataclass(frozen=True)
class LookupLine:
    """Which version of a lookup batches of one run have used."""

    run: str
    lookup: str
    version: str
    first_batch: int
    last_batch: int
    batches: int


@dataclass(frozen=True)
class JoinLine:
    """What one run was for one side of a join: records."""

    run: str
    side: str
    entered: int
    #: That found their first partner in this run, and that left the join without one; they may be of earlier runs.
    matched: int
    unmatched: int
    #: That were without a partner when the run ended, and may still find one.
    waiting: int
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


#: Runs a query of the ledger in which `:run` is the run that is meant, or null for all of them.
_Ask = Callable[..., list[Any]]


class Ledger:
    """The ledger of one pipeline. Safe to read while a run writes it."""

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
        """The file exists, for its owner alone."""
        self.file.touch(mode=0o600)
        with self._open() as db:
            # All tables at once, so that no reader sees a part of them.
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
        """The batch is in the ledger, instead of an earlier attempt at it."""
        key = (entry.epoch, entry.batch)
        tables: dict[str, list[tuple[object, ...]]] = {
            "batches": [(run, time.time(), entry.seconds, entry.delivered, entry.warnings)],
            "counts": [(*k, records) for k, records in entry.counts.items()],
            "spans": [(*k, *span) for k, span in entry.spans.items()],
            "sinks": [(s.sink, s.expected, s.records, s.replayed) for s in entry.sinks],
            "sink_rows": [(s.sink, s.given, s.skipped, s.watermark) for s in entry.sinks if s.given is not None],
            "changes": [(s.sink, *astuple(s.changed)) for s in entry.sinks if s.changed],
            "steps": [(s.sink, s.made, None) for s in entry.sinks if s.made is not None],
            "rows": [(*k, rows) for k, rows in entry.rows.items()],
            "lookups": list(entry.lookups.items()),
            "windows": [
                *[(s.sink, ends, rows) for s in entry.sinks for ends, rows in s.windows.items()],
                *[(j.side, ends, rows) for j in entry.joins for ends, rows in j.ends.items()],
            ],
        }
        with self._open() as db:
            if entry.joins:
                tables |= _joined(db, entry)
            for table, rows in tables.items():
                db.execute(f"delete from {table} where epoch = ? and batch = ?", key)  # noqa: S608 - our own names
                for row in rows:
                    db.execute(f"insert into {table} values (?, ?{', ?' * len(row)})", (*key, *row))  # noqa: S608

    def note_state(self, epoch: int, batch: int, sink: str, kept: int) -> None:
        """How much a class with state keeps behind that batch: this is known when the batch has been entered."""
        with self._open() as db:
            db.execute(
                "update steps set kept = ? where epoch = ? and batch = ? and sink = ?", (kept, epoch, batch, sink)
            )

    # -- reading -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _read(self, run: str | None = None) -> Iterator[_Ask]:
        exists = self.file.is_file() and self.file.stat().st_size > 0
        connection = sqlite3.connect(self.file if exists else ":memory:", timeout=10)
        try:
            _complete(connection)
            yield lambda query, **more: connection.execute(query, {"run": run, **more}).fetchall()
        finally:
            connection.close()

    def runs(self, run: str | None = None) -> list[RunLine]:
        """Every run, the latest last; or that one. A handful of queries, however many runs there are."""
        with self._read(run) as ask:
            known = ask(
                "select run, state, started, ended, error from runs where :run is null or run = :run order by started"
            )
            batches = ask(
                """select run, count(*), sum(delivered), sum(warnings) from batches
                   where :run is null or run = :run group by run"""
            )
            counts = ask(
                """select run, outcome, sum(records) from batches join counts using (epoch, batch)
                   where :run is null or run = :run group by run, outcome"""
            )
            rows = dict(
                ask(
                    """select run, sum(rows) from batches join rows using (epoch, batch)
                       where :run is null or run = :run group by run"""
                )
            )
            wrong = list(_unbalanced(ask))
        totals = {name: (number, delivered, warnings) for name, number, delivered, warnings in batches}
        outcomes = {name: dict.fromkeys(OUTCOMES, 0) for name, *_ in known}
        for name, outcome, records in counts:
            outcomes[name][outcome] = records
        return [
            RunLine(
                name, state, started, ended, error, *totals.get(name, (0, 0, 0)), outcomes[name],
                rows.get(name, outcomes[name]["written"]), tuple(text for of, _, text in wrong if of == name),
            )
            for name, state, started, ended, error in known
        ]  # fmt: skip

    def run(self, run: str) -> RunLine:
        """The run of that name."""
        (found,) = self.runs(run)
        return found

    def lines(self, run: str | None = None) -> list[Line]:
        """Per run and topic-partition."""
        with self._read(run) as ask:
            spans = ask(
                """select run, topic, partition, min(first), max(next), sum(records)
                   from spans join batches using (epoch, batch) where :run is null or run = :run
                   group by run, topic, partition order by min(at), topic, partition"""
            )
            counts = ask(
                """select run, topic, partition, outcome, sum(records)
                   from counts join batches using (epoch, batch) where :run is null or run = :run
                   group by run, topic, partition, outcome"""
            )
            rows = ask(
                """select run, topic, partition, sum(rows) from rows join batches using (epoch, batch)
                   where :run is null or run = :run group by run, topic, partition"""
            )
            wrong = {
                (name, *place)
                for name, (epoch, batch), _ in _unbalanced(ask)
                for place in ask(
                    "select topic, partition from spans where epoch = :epoch and batch = :batch",
                    epoch=epoch, batch=batch,
                )
            }  # fmt: skip
        records = {tuple(key): count for *key, count in counts}
        became = {tuple(key): count for *key, count in rows}
        found = []
        for name, topic, partition, first, after, read in spans:
            place = (name, topic, partition)
            outcomes = {outcome: records.get((*place, outcome), 0) for outcome in OUTCOMES}
            balanced = read == sum(outcomes.values()) and place not in wrong
            made = became.get(place, outcomes["written"])
            found.append(Line(*place, first, after, read, **outcomes, rows=made, balanced=balanced))
        return found

    def extent(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Per topic and partition: the first offset that any run has read, and the one behind the last."""
        with self._read() as ask:
            found = ask("select topic, partition, min(first), max(next) from spans group by topic, partition")
        return {(topic, partition): (first, after) for topic, partition, first, after in found}

    def sinks(self, run: str | None = None) -> list[SinkLine]:
        """Per run and sink: what happened to the rows."""
        with self._read(run) as ask:
            found = ask(
                """select run, sink, case when count(given) = count(*) then sum(given) end,
                          case when count(given) = count(*) then sum(skipped) end, sum(records),
                          max(batch), max(watermark), sum(applied), sum(deleted), sum(superseded), sum(made),
                          sum(expected != records or records != coalesce(applied + deleted + superseded, records)) = 0
                   from sinks join batches using (epoch, batch) left join sink_rows using (epoch, batch, sink)
                   left join changes using (epoch, batch, sink) left join steps using (epoch, batch, sink)
                   where :run is null or run = :run group by run, sink order by min(at), min(sinks.rowid)"""
            )
            return [
                SinkLine(
                    name,
                    sink,
                    given,
                    skipped,
                    taken,
                    _waiting(ask, sink, batch, watermark),
                    applied,
                    deleted,
                    superseded,
                    made,
                    _kept(ask, sink, batch) if made is not None else None,
                    bool(balanced),
                )
                for name, sink, given, skipped, taken, batch, watermark, applied, deleted, superseded, made, balanced
                in found
            ]  # fmt: skip

    def lookups(self, run: str | None = None) -> list[LookupLine]:
        """Per run, lookup and version."""
        with self._read(run) as ask:
            found = ask(
                """select run, lookup, version, min(batch), max(batch), count(*) from lookups
                   join batches using (epoch, batch) where :run is null or run = :run
                   group by run, lookup, version order by min(at), lookup"""
            )
        return [LookupLine(*row) for row in found]

    def joins(self, run: str | None = None) -> list[JoinLine]:
        """Per run and side of its join."""
        with self._read(run) as ask:
            found = ask(
                """select run, side, sum(entered), sum(matched), sum(unmatched), max(batch)
                   from joins join batches using (epoch, batch)
                   where :run is null or run = :run group by run, side order by min(at), min(joins.rowid)"""
            )
            ends = [_join_waiting(ask, side, batch) for _, side, *_, batch in found]
        return [
            JoinLine(name, side, entered, matched, unmatched, waiting, 0 <= waiting <= still_open)
            for (name, side, entered, matched, unmatched, _), (waiting, still_open) in zip(found, ends, strict=True)
        ]

    def by_rule(self, run: str | None = None) -> list[tuple[str, str, int]]:
        """(outcome, rule, records) of what was not written."""
        with self._read(run) as ask:
            return ask(
                """select outcome, rule, sum(records) from counts join batches using (epoch, batch)
                   where outcome != 'written' and (:run is null or run = :run) group by outcome, rule order by 3 desc"""
            )

    def recent_rate(self, within_s: float = 30.0) -> float | None:
        """Records per second of the recent batches, None if there were none."""
        with self._read() as ask:
            ((read, first, last),) = ask(
                "select sum(delivered), min(at - seconds), max(at) from batches where at > :since",
                since=time.time() - within_s,
            )
        return read / max(last - first, 0.001) if read else None


def _complete(db: sqlite3.Connection) -> None:
    """Tables that the ledger lacks exist, empty, as long as the connection does."""
    known = {name for (name,) in db.execute("select name from sqlite_master where type = 'table'")}
    for table in _TABLES.split(";")[:-1]:
        name = table.split("(")[0].split()[-1]
        if name not in known:
            db.execute(table.replace("create table", "create temp table"))


def _unbalanced(ask: _Ask) -> Iterator[tuple[str, tuple[int, int], str]]:
    """The run, the epoch and batch, and what does not add up."""
    found = ask(
        """select run, epoch, batch, delivered, coalesce(sum(records), 0) as counted
           from batches left join counts using (epoch, batch) where :run is null or run = :run
           group by epoch, batch having delivered != counted"""
    )
    for name, epoch, batch, delivered, counted in found:
        yield name, (epoch, batch), f"batch {batch}: {delivered:,} records were read, {counted:,} have an outcome"
    found = ask(
        """select run, epoch, batch, sink, expected, records from sinks join batches using (epoch, batch)
           where expected != records and (:run is null or run = :run)"""
    )
    for name, epoch, batch, sink, expected, records in found:
        yield name, (epoch, batch), f"batch {batch}: {sink} took {records:,} rows of {expected:,}"
    found = ask(
        """select run, epoch, batch, sink, records, applied + deleted + superseded as changed
           from sinks join batches using (epoch, batch) join changes using (epoch, batch, sink)
           where records != changed and (:run is null or run = :run)"""
    )
    for name, epoch, batch, sink, records, changed in found:
        yield name, (epoch, batch), f"batch {batch}: {sink} took {records:,} changes, {changed:,} have an outcome"
    last = ask(
        """select run, side, epoch, max(batch) from joins join batches using (epoch, batch)
           where :run is null or run = :run group by run, side"""
    )
    for name, side, epoch, batch in last:
        waiting, still_open = _join_waiting(ask, side, batch)
        if not 0 <= waiting <= still_open:
            text = f"batch {batch}: {waiting:,} records of {side} are in no pair, {still_open:,} can still be"
            yield name, (epoch, batch), text


_LATEST = "latest as (select batch, max(epoch) as epoch from batches where batch <= :batch group by batch)"


def _joined(db: sqlite3.Connection, entry: BatchEntry) -> dict[str, list[tuple[object, ...]]]:
    """The tables of a join. Of the records that are in a pair, those count that were in none before this batch."""
    _forget_settled(db, entry)
    joins: list[tuple[object, ...]] = []
    matches: list[tuple[object, ...]] = []
    for side in entry.joins:
        matched = 0
        for place, offsets in side.matched.items():
            new = int.from_bytes(offsets, "little") & ~_known(db, entry.batch, place)
            matched += new.bit_count()
            if new:
                matches.append((*place, zlib.compress(new.to_bytes(len(offsets), "little"))))
        joins.append((side.side, side.entered, matched, side.unmatched, side.watermark))
    return {"joins": joins, "matches": matches}


def _known(db: sqlite3.Connection, batch: int, place: tuple[str, int, int]) -> int:
    """The offsets that were in a pair of an earlier batch, as bits."""
    topic, partition, bucket = place
    found = db.execute(
        f"""with {_LATEST} select offsets from latest join matches using (epoch, batch)
            where topic = :topic and partition = :partition and bucket = :bucket""",  # noqa: S608 - our own words
        {"batch": batch - 1, "topic": topic, "partition": partition, "bucket": bucket},
    )
    known = 0
    for (offsets,) in found:
        known |= int.from_bytes(zlib.decompress(offsets), "little")
    return known


def _forget_settled(db: sqlite3.Connection, entry: BatchEntry) -> None:
    """Offsets of records that can be in no more pairs are removed, unless a rewind could bring them back."""
    db.execute(
        """delete from matches where batch < (
             select min(batch) from windows
             where ends > (select min(watermark) from joins where epoch = :epoch and batch = :kept))""",
        {"epoch": entry.epoch, "kept": entry.batch - _KEPT_BATCHES},
    )


def _join_waiting(ask: _Ask, side: str, batch: int) -> tuple[int, int]:
    """The records without a partner behind that batch; and those that can still find one, counted by their times."""
    ((waiting,),) = ask(
        f"""with {_LATEST} select sum(entered - matched - unmatched) from latest join joins using (epoch, batch)
            where side = :side""",  # noqa: S608 - our own words
        batch=batch, side=side,
    )  # fmt: skip
    ((still_open,),) = ask(
        f"""with {_LATEST} select coalesce(sum(rows), 0) from latest join windows using (epoch, batch)
            where sink = :side and ends > (
              select watermark from latest join joins using (epoch, batch) where side = :side and batch = :batch)""",  # noqa: S608
        batch=batch, side=side,
    )  # fmt: skip
    return int(waiting), int(still_open)


def _kept(ask: _Ask, sink: str, batch: int) -> int | None:
    """The entries of the state behind that batch; None if the run was killed before it could note them."""
    ((kept,),) = ask(
        "select kept from steps where sink = :sink and batch = :batch order by epoch desc limit 1",
        sink=sink, batch=batch,
    )  # fmt: skip
    return None if kept is None else int(kept)


def _waiting(ask: _Ask, sink: str, batch: int, watermark: int | None) -> int | None:
    """Rows up to that batch in windows that the watermark has not closed; None if not all of them were counted.

    Of a batch that was repeated after a rewind the latest epoch counts: its rows are those in the state.
    """
    if watermark is None:
        return None
    ((unknown,),) = ask(
        f"""with {_LATEST}
           select count(*) from latest left join (select * from sink_rows where sink = :sink) using (epoch, batch)
           where watermark is null""",  # noqa: S608 - our own words
        batch=batch, sink=sink,
    )  # fmt: skip
    ((rows,),) = ask(
        f"""with {_LATEST}
           select coalesce(sum(rows), 0) from latest join windows using (epoch, batch)
           where sink = :sink and ends > :watermark""",  # noqa: S608 - our own words
        batch=batch, sink=sink, watermark=watermark,
    )  # fmt: skip
    return None if unknown else int(rows)
