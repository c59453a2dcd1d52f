"""The past in one SQLite file: numbers over time, events, and who owned which partition when.

    history.record(at, {("topic", "orders", "in"): 1250.0})
    history.series("topic", "orders", "in", since=at - 900)

Bounded in every direction: the older, the coarser (see `_TIERS`), and beyond `most_bytes` the oldest goes. A number is
written when it changes, so what stands still costs nothing; the time without samples is a gap, not a line.
One thread writes; any thread may read, by a connection of its own kind, so that neither waits for the other. An event
loop may not read: a look at a long past would stop everything else on it. A file that is damaged is put aside and a new
one begun.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import groupby, pairwise, zip_longest
from pathlib import Path
from typing import NamedTuple

from headrace.home import open_private
from headrace.monitor.events import Event, Owners

#: What is measured: of what, its name, and which number.
SeriesKey = tuple[str, str, str]
#: Milliseconds since 1970 and the value, None where there was no sample.
Point = tuple[int, float | None]

# Older than so many seconds: one point in so many.
_TIERS = ((900, 10), (3 * 3600, 60), (24 * 3600, 600), (14 * 24 * 3600, 3600))
_KEPT_S = 90 * 24 * 3600
_TIDY_EVERY_S = 60.0
_MOST_EVENTS = 20_000
_MOST_OWNERS = 50_000
_FORMAT = 1

# Peaks of these matter more than their mean; of the counters only the last value means anything.
_PEAKS = {"lag", "lag_s", "batch_s"}
_MEANS = {"in", "out", "in_bytes", "read", "rate"}

_TABLES = """
create table if not exists series (
  id integer primary key, kind text, name text, metric text, unique (kind, name, metric));
create table if not exists points (series integer, at integer, value real, primary key (series, at)) without rowid;
create table if not exists compacted (slot integer primary key, until integer);
create table if not exists runs (id integer primary key, began integer, ended integer);
create table if not exists events (
  id integer primary key, at real, kind text, level text, text text, topic text, grp text, minor integer);
create index if not exists events_at on events (at);
create table if not exists owners (
  id integer primary key, grp text, topic text, partition integer, member text, client text, since real, until real);
create index if not exists owners_grp on owners (grp, until);
"""


class Ownership(NamedTuple):
    """A member had a partition from then until then; `until` is None while it has it."""

    group: str
    topic: str
    partition: int
    member_id: str
    client_id: str
    since: float
    until: float | None


class _Written:
    """What was last written of a series, and until when it has held."""

    __slots__ = ("held_until", "series", "value", "written_at")

    def __init__(self, series: int) -> None:
        self.series = series
        self.value: float | None = None
        self.written_at = 0
        self.held_until = 0


class History:
    """The past of one cluster."""

    def __init__(self, file: Path, *, most_bytes: int = 64_000_000) -> None:
        self.file = file
        self.most_bytes = most_bytes
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._written: dict[SeriesKey, _Written] = {}
        self._tidied = 0.0
        self._run: int | None = None
        self._owned: dict[str, Owners] = {}
        self.damaged = False
        self._db = self._open()
        self._reader = sqlite3.connect(file, check_same_thread=False, isolation_level=None, timeout=10)
        self._reader.execute("pragma query_only=on")

    def _open(self) -> sqlite3.Connection:
        try:
            return self._connected()
        except sqlite3.DatabaseError:
            self.damaged = True
            for path in self.file.parent.glob(f"{self.file.name}*"):
                path.rename(path.with_name(f"damaged-{path.name}"))
            return self._connected()

    def _connected(self) -> sqlite3.Connection:
        open_private(self.file, "ab").close()
        db = sqlite3.connect(self.file, check_same_thread=False, isolation_level=None, timeout=10)
        try:
            # What a crash of the machine may take from a chart is no loss worth waiting for the disk.
            for setting in ("auto_vacuum=incremental", "journal_mode=wal", "synchronous=off",
                            "journal_size_limit=4000000", "cache_size=-2000"):  # fmt: skip
                db.execute(f"pragma {setting}")
            if db.execute("pragma user_version").fetchone()[0] not in (0, _FORMAT):
                raise sqlite3.DatabaseError("written by another headrace")  # noqa: TRY301
            db.executescript(_TABLES)
            db.execute(f"pragma user_version={_FORMAT}")
            # Whoever was watching before is gone: what was owned then may have changed hands since.
            db.execute("update owners set until = (select max(ended) / 1000.0 from runs) where until is null")
        except sqlite3.DatabaseError:
            db.close()
            raise
        return db

    def close(self) -> None:
        with self._lock:
            self._hold()
            self._db.close()
        with self._reading:
            self._reader.close()

    # -- writing ------------------------------------------------------------------------------------------------

    def record(self, at: float, values: Mapping[SeriesKey, float | None]) -> None:
        """These are the numbers of that moment."""
        now = int(at * 1000)
        rows: list[tuple[int, int, float]] = []
        with self._lock, self._transaction():
            self._beat(now)
            for key, value in values.items():
                if value is not None:
                    self._note(key, now, float(value), rows)
            self._db.executemany("insert or replace into points values (?, ?, ?)", rows)
        if at - self._tidied > _TIDY_EVERY_S:
            self._tidied = at
            with self._lock, self._transaction():
                self._tidy(now)
            with self._lock:
                self._shrink()

    def _beat(self, now: int) -> None:
        """Somebody is watching: from when the history was opened until now."""
        if self._run is None:
            self._run = self._db.execute("insert into runs (began, ended) values (?, ?)", (now, now)).lastrowid
        self._db.execute("update runs set ended = ? where id = ?", (now, self._run))

    def _note(self, key: SeriesKey, now: int, value: float, rows: list[tuple[int, int, float]]) -> None:
        written = self._written.get(key)
        if written is None:
            written = self._written[key] = _Written(self._series_id(key))
        elif written.value == value:
            written.held_until = now
            return
        elif written.held_until > written.written_at and written.value is not None:
            rows.append((written.series, written.held_until, written.value))
        written.value, written.written_at, written.held_until = value, now, now
        rows.append((written.series, now, value))

    def _series_id(self, key: SeriesKey) -> int:
        self._db.execute("insert or ignore into series (kind, name, metric) values (?, ?, ?)", key)
        found = self._db.execute("select id from series where kind = ? and name = ? and metric = ?", key).fetchone()
        return int(found[0])

    def _hold(self) -> None:
        rows = [(w.series, w.held_until, w.value) for w in self._written.values() if w.held_until > w.written_at]
        self._db.executemany("insert or replace into points values (?, ?, ?)", rows)

    def add_events(self, events: Iterable[Event]) -> None:
        rows = [(e.at, e.kind, e.level, e.text, e.topic, e.group, e.minor) for e in events]
        with self._lock:
            self._db.executemany(
                "insert into events (at, kind, level, text, topic, grp, minor) values (?, ?, ?, ?, ?, ?, ?)", rows
            )

    def own(self, at: float, group: str, owners: Owners) -> None:
        """The partitions of the group belong to these members now."""
        before = self._owned.get(group, {})
        if before == owners:
            return
        with self._lock, self._transaction():
            for (topic, partition), _ in before.items() - owners.items():
                self._db.execute(
                    "update owners set until = ? where grp = ? and topic = ? and partition = ? and until is null",
                    (at, group, topic, partition),
                )
            self._db.executemany(
                "insert into owners (grp, topic, partition, member, client, since) values (?, ?, ?, ?, ?, ?)",
                [(group, *place, *member, at) for place, member in sorted(owners.items() - before.items())],
            )
        self._owned[group] = dict(owners)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("begin")
        try:
            yield
        except BaseException:
            self._db.execute("rollback")
            raise
        self._db.execute("commit")

    # -- reading ------------------------------------------------------------------------------------------------

    def series(
        self, kind: str, name: str, metric: str, *, since: float, until: float | None = None, most: int = 400
    ) -> list[Point]:
        """The numbers of that time, at most `most` of them, with None between two watches."""
        return self.many(kind, [name], metric, since=since, until=until, most=most)[name]

    def many(
        self,
        kind: str,
        names: Sequence[str],
        metric: str,
        *,
        since: float,
        until: float | None = None,
        most: int = 400,
    ) -> dict[str, list[Point]]:
        """The same number of several things at once."""
        first, last = int(since * 1000), int(until * 1000) if until else 1 << 62
        with self._reads() as db:
            runs = db.execute("select began, ended from runs where ended >= ? order by began", (first,)).fetchall()
            return {name: self._points(db, (kind, name, metric), (first, last), runs, most) for name in names}

    @contextmanager
    def _reads(self) -> Iterator[sqlite3.Connection]:
        """For one reader at a time; the writer goes on meanwhile."""
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("the history is read in a thread, not on an event loop")
        with self._reading:
            yield self._reader

    def _points(
        self,
        db: sqlite3.Connection,
        key: SeriesKey,
        between: tuple[int, int],
        runs: Sequence[tuple[int, int]],
        most: int,
    ) -> list[Point]:
        first, last = between
        found = db.execute("select id from series where kind = ? and name = ? and metric = ?", key).fetchone()
        if found is None:
            return []
        rows: list[tuple[int, float]] = db.execute(
            # The last point before the time counts too: what has not changed since still holds.
            "select at, value from points where series = ? and at <= ? and at >= coalesce("
            "(select max(at) from points where series = ? and at < ?), ?) order by at",
            (found[0], last, found[0], first, first),
        ).fetchall()
        written = self._written.get(key)
        if written and rows and written.held_until > rows[-1][0]:
            rows.append((min(written.held_until, last), rows[-1][1]))
        return _thinned(_with_gaps(rows, runs, first), most, key[2])

    def events(
        self,
        *,
        since: float = 0,
        until: float | None = None,
        topic: str | None = None,
        group: str | None = None,
        kinds: Sequence[str] = (),
        most: int = 200,
    ) -> list[Event]:
        """The events of that time, the newest first; the minor ones only of a topic that is named."""
        where, given = ["at >= ?", "at <= ?"], [since, until if until is not None else 1e12]
        if topic is not None:
            where.append("topic = ?")
            given.append(topic)  # type: ignore[arg-type]
        else:
            where.append("minor = 0")
        if group is not None:
            where.append("grp = ?")
            given.append(group)  # type: ignore[arg-type]
        if kinds:
            where.append(f"kind in ({','.join('?' * len(kinds))})")
            given.extend(kinds)  # type: ignore[arg-type]
        sql = f"select at, kind, level, text, topic, grp, minor from events where {' and '.join(where)}"  # noqa: S608
        with self._reads() as db:
            rows = db.execute(f"{sql} order by at desc, id desc limit ?", (*given, most)).fetchall()
        return [
            Event(at=at, kind=kind, level=level, text=text, topic=t, group=g, minor=bool(minor))
            for at, kind, level, text, t, g, minor in rows
        ]

    def ownership(self, group: str, *, since: float) -> list[Ownership]:
        """Who owned what since then, in the order of topics and partitions."""
        with self._reads() as db:
            rows = db.execute(
                "select grp, topic, partition, member, client, since, until from owners "
                "where grp = ? and (until is null or until >= ?) order by topic, partition, since",
                (group, since),
            ).fetchall()
        return [Ownership(*row) for row in rows]

    @property
    def size_bytes(self) -> int:
        with self._lock:
            return self._size()

    # -- staying small ------------------------------------------------------------------------------------------

    def _size(self) -> int:
        pages, free, page = (
            self._db.execute(f"pragma {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * page)

    def _tidy(self, now: int) -> None:
        for age_s, tier_s in _TIERS:
            self._compact(now - age_s * 1000, tier_s * 1000)
        self._db.execute("delete from points where at < ?", (now - _KEPT_S * 1000,))
        self._db.execute("delete from runs where ended < ?", (now - _KEPT_S * 1000,))
        for table, most in (("events", _MOST_EVENTS), ("owners", _MOST_OWNERS)):
            self._db.execute(f"delete from {table} where id <= (select max(id) from {table}) - ?", (most,))  # noqa: S608

    def _compact(self, cut: int, slot: int) -> None:
        """Points before `cut` are coarser: see `_coarser`. What was done before is not done again."""
        done = self._db.execute("select until from compacted where slot = ?", (slot,)).fetchone()
        began, cut = (done[0] if done else 0), cut - cut % slot
        if began >= cut:
            return
        rows = self._db.execute(
            "select p.series, p.at, p.value, s.metric from points p join series s on s.id = p.series "
            "where p.at >= ? and p.at < ? order by p.series, p.at",
            (began, cut + slot),  # the slot behind tells what holds on until then
        ).fetchall()
        self._db.execute("insert or replace into compacted values (?, ?)", (slot, cut))
        kept: list[tuple[int, int, float]] = []
        for (series, metric), group in groupby(rows, key=lambda row: (row[0], row[3])):
            coarser = _coarser([(at, value) for _, at, value, _ in group], slot, metric)
            kept += [(series, at, value) for at, value in coarser if at < cut]
        self._db.execute("delete from points where at >= ? and at < ?", (began, cut))
        self._db.executemany("insert into points values (?, ?, ?)", kept)

    def _shrink(self) -> None:
        """Below the most that the file may have, by giving up the oldest, a tenth at a time."""
        for _ in range(20):
            if self._size() <= self.most_bytes:
                break
            oldest, newest = self._db.execute("select min(at), max(at) from points").fetchone()
            if oldest is None:
                break
            self._db.execute("delete from points where at <= ?", (oldest + (newest - oldest) // 10 + 1,))
            self._db.execute("delete from events where id <= (select min(id) + count(*) / 10 from events)")
        in_use = {written.series for written in self._written.values()}
        orphans = self._db.execute("select id from series where id not in (select distinct series from points)")
        self._db.executemany("delete from series where id = ?", [r for r in orphans.fetchall() if r[0] not in in_use])
        self._db.execute("pragma incremental_vacuum")


def _coarser(points: Sequence[tuple[int, float]], slot: int, metric: str) -> list[tuple[int, float]]:
    """One point for every `slot` milliseconds that have some.

    A value holds until the next point, so one that holds beyond its slot is kept beside the slot's peak or mean.
    """
    out: list[tuple[int, float]] = []
    slots = [list(group) for _, group in groupby(points, key=lambda point: point[0] // slot)]
    for found, after in zip_longest(slots, slots[1:]):
        at, last = found[-1]
        value = _summary(found, metric)
        holds_on = after is None or after[0][0] // slot > at // slot + 1
        if holds_on and value != last:
            out += [(found[0][0], value), (at, last)]
        else:
            out.append((at, value))
    return out


def _summary(points: Sequence[tuple[int, float]], metric: str) -> float:
    if metric in _PEAKS:
        return max(value for _, value in points)
    if metric in _MEANS:
        # A value holds until the next one: a plateau counts for as long as it was one.
        held = [(value, after - at) for (at, value), (after, _) in pairwise(points)]
        total = sum(span for _, span in held)
        return sum(value * span for value, span in held) / total if total else points[-1][1]
    return points[-1][1]


def _with_gaps(rows: Sequence[tuple[int, float]], runs: Sequence[tuple[int, int]], first: int) -> list[Point]:
    """The points with the last of each watch held until its end, and None behind it."""
    points: list[Point] = []
    at = 0
    for number, (began, ended) in enumerate(runs):
        of_run: list[Point] = []
        while at < len(rows) and rows[at][0] <= ended:
            if rows[at][0] >= began:
                of_run.append(rows[at])
            at += 1
        if not of_run:
            continue
        is_last = number == len(runs) - 1
        if not is_last:
            of_run += [(ended, of_run[-1][1])] if of_run[-1][0] < ended else []
            of_run.append((ended + 1, None))
        points += of_run
    held = [point for point in points if point[0] < first]
    kept = [point for point in points if point[0] >= first]
    # What held before the time began holds at its beginning.
    return [(first, held[-1][1]), *kept] if held and held[-1][1] is not None else kept


def _thinned(points: list[Point], most: int, metric: str) -> list[Point]:
    if len(points) <= most:
        return points
    slot = (points[-1][0] - points[0][0]) // most + 1
    out: list[Point] = []
    for is_gap, group in groupby(points, key=lambda point: point[1] is None):
        found = list(group)
        known = [(at, value) for at, value in found if value is not None]
        out += [(found[-1][0], None)] if is_gap else _coarser(known, slot, metric)
    return out


def points_as_json(points: Iterable[Point]) -> list[dict[str, object]]:
    """The points as the API gives them: time stamps like those of `headrace topic size --json`."""
    return [
        {"timestamp": datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds"), "value": value}
        for at, value in points
    ]
