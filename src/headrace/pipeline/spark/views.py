"""Views: tables made from tables by SQL, kept up to date by the keys that changed.

An update pins the newest version of each table that the view reads, and compares it with the version that the last
update read. The rows between the two name the keys (`affected.py`); the query is run for those keys only, and their
rows are replaced by one commit, which also says what was read (`books/view_updates.py`). So an update happens once or
not at all, and rows may be as late as they like. Where the keys cannot be known, the view is computed in full.

Before a commit the rows are checked: a key that is null or not unique ends the update, and nothing is changed.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from headrace.errors import Failed
from headrace.pipeline.books.view_updates import SourceVersion, ViewUpdate
from headrace.pipeline.declare.declaration import View
from headrace.pipeline.spark import internals
from headrace.pipeline.spark.affected import ChangeTracker, NotIncremental, TableState, check_repeatable
from headrace.pipeline.spark.aggregate import DATA_HINT, data_error
from headrace.pipeline.spark.classify import SETTINGS, message_of, nothing
from headrace.pipeline.spark.sinks.delta import replace_keys

#: A few replaced rows do not make Delta write a whole file again; after so many commits its small files are joined.
_PROPERTIES = {"delta.enableDeletionVectors": "true"}
_COMPACT_EVERY = 50
_SHOWN_KEYS = 3
#: As many keys are sent to all workers.
_BROADCAST = 200_000
_UNCOMPARABLE = ("map<", "variant")
_Frame = Callable[[], DataFrame]


@dataclass(frozen=True)
class ViewCheck:
    """What is known of a view before it is computed: its columns, and why it cannot be updated by keys, if so."""

    schema: StructType
    full_because: str = ""


def check_view(spark: SparkSession, view: View, tables: Mapping[str, StructType]) -> ViewCheck:
    """The query fits such tables. What is wrong with it is an error with its line."""
    session = _session(spark)
    for name, schema in tables.items():
        nothing(session, schema).createOrReplaceTempView(f"`{name}`")
    frame = _query(session, view)
    try:
        _tracker(frame, view)
    except NotIncremental as reason:
        return ViewCheck(frame.schema, str(reason))
    return ViewCheck(frame.schema)


def update_view(spark: SparkSession, view: View, tables: Mapping[str, str], *, full: bool = False) -> ViewUpdate:
    """The view's table holds what its query says of the newest versions of those tables (by name: their paths)."""
    with _explained(view):
        return _Update(_session(spark), view, tables).make(full)


class _Update:
    """One update of one view, in a session of its own."""

    def __init__(self, session: SparkSession, view: View, tables: Mapping[str, str]) -> None:
        self.spark = session
        self.view = view
        self.paths = tables
        self.began = time.monotonic()

    def make(self, full: bool) -> ViewUpdate:
        for name, path in self.paths.items():
            if not internals.is_delta_table(self.spark, path):
                return ViewUpdate(self.view.name, "none", f"waits: the table {name} has not been written yet")
        if not full:
            self._require_own_table()
        frame = self._frame
        why = "it was asked for" if full else self._why_full()
        if not full and self._last is not None:
            self._check_columns(frame)
        if why is None:
            assert self._last is not None
            try:
                check_repeatable(frame)
                if all(self.now[name].number == self._last.sources[name].version for name in self.paths):
                    return ViewUpdate(self.view.name, "none", "up to date", self._last.sources)
                return self._replace(_tracker(frame, self.view), frame)
            except NotIncremental as reason:
                why = str(reason)
        return self._rebuild(frame, why)

    # -- what there is -----------------------------------------------------------------------------------------------

    @cached_property
    def now(self) -> dict[str, internals.DeltaVersion]:
        """The version of each table that this update reads."""
        return {name: internals.newest_version(self.spark, path) for name, path in self.paths.items()}

    @cached_property
    def _frame(self) -> DataFrame:
        for name, version in self.now.items():
            self._at(version.path, version.number).createOrReplaceTempView(f"`{name}`")
        return _query(self.spark, self.view)

    def _at(self, path: str, version: int) -> DataFrame:
        return self.spark.read.format("delta").option("versionAsOf", version).load(path)

    @cached_property
    def _last(self) -> ViewUpdate | None:
        """What the last update says of itself, in its commit."""
        if not internals.is_delta_table(self.spark, self.view.path):
            return None
        for limit in ("limit 1", ""):  # whoever else may have changed the table did so rarely
            history = self.spark.sql(f"describe history delta.`{self.view.path}` {limit}")
            for row in history.select("userMetadata").collect():
                if (found := ViewUpdate.from_note(row[0])) is not None:
                    return found
        return None

    def _require_own_table(self) -> None:
        """What lies in the folder of the view is the view's, or nobody's."""
        if self._last is None and internals.is_delta_table(self.spark, self.view.path):
            raise self.view.wrong(
                f"the view {self.view.name} did not write the table that is at {self.view.target}", "into",
                why="the first update would replace all of its rows; nothing was changed",
                hint=f'into = "FOLDER": another one; or headrace pipeline refresh {self.view.name} --full replaces it',
            )  # fmt: skip

    @property
    def _fingerprint(self) -> str:
        return hashlib.sha256(f"{self.view.sql}\n{self.view.key}".encode()).hexdigest()[:16]

    def _why_full(self) -> str | None:
        """Why the last update is nothing to build on; None if it is."""
        last = self._last
        if last is None:
            return "it is the first update"
        if last.fingerprint != self._fingerprint:
            return "its SQL or its key has changed"
        for name, version in self.now.items():
            known = last.sources.get(name)
            if known is None or known.id != version.id or known.version > version.number:
                return f"the table {name} was deleted and written again"
        return None

    def _check_columns(self, frame: DataFrame) -> None:
        """The table of the view has the columns that the query gives."""
        table = self.spark.read.format("delta").load(self.view.path)
        here, there = ([f"{f.name} {f.dataType.simpleString()}" for f in found.schema] for found in (frame, table))
        if here != there:
            new, old = ", ".join(c for c in here if c not in there), ", ".join(c for c in there if c not in here)
            raise self.view.wrong(
                f"the columns of the view {self.view.name} have changed", "sql",
                why=f"its query gives {new or 'another order'}; its table has {old or 'no such column'}",
                hint=f"headrace pipeline refresh {self.view.name} --full",
            )  # fmt: skip

    # -- by keys -----------------------------------------------------------------------------------------------------

    def _replace(self, tracker: ChangeTracker, frame: DataFrame) -> ViewUpdate:
        found = tracker.affected_keys({name: self._state(name, tracker) for name in self.paths})
        with _kept(found if found is not None else frame.select(*self.view.key).limit(0)) as keys:
            count = keys.count()
            if not count:  # what was read is noted all the same: the next update begins there
                report = self._report("incremental", keys=0)
                internals.append_to_delta(self.view.path, nothing(self.spark, frame.schema), self._commit(report))
                return replace(report, rows_removed=0, rows_written=0)
            # Under other names: the keys come from the plan of the same query.
            wanted = keys.toDF(*[f"_key_{at}" for at in range(len(self.view.key))])
            same = [frame[key].eqNullSafe(wanted[f"_key_{at}"]) for at, key in enumerate(self.view.key)]
            with _kept(frame.join(F.broadcast(wanted) if count <= _BROADCAST else wanted, same, "left_semi")) as rows:
                self._check_keys(rows)
                report = self._report("incremental", keys=count)
                removed, written = replace_keys(self.view.path, keys, rows, self._commit(report), numbered=False)
        if internals.newest_version(self.spark, self.view.path).number % _COMPACT_EVERY == 0:
            self.spark.sql(f"optimize delta.`{self.view.path}`").collect()
        return replace(report, rows_removed=removed, rows_written=written)

    def _state(self, name: str, tracker: ChangeTracker) -> TableState:
        """The table as it was and is; the rows between are those of files that only one of the two versions has."""
        assert self._last is not None
        old, new = self._last.sources[name].version, self.now[name]
        before, after = partial(self._at, new.path, old), partial(self._at, new.path, new.number)
        if old == new.number:
            return TableState(before, after, None)
        files = internals.changed_files(self.spark, replace(new, number=old), new)
        if files is None:
            raise NotIncremental(f"version {old} of the table {name} has been cleaned up")
        if files.is_redefined:
            self._check_types(name, before, after, tracker.columns_used(name))
        if files.removed is None and files.added is None:
            return TableState(before, after, None)
        return TableState(before, after, lambda: _difference(files, tracker.columns_used(name)))

    def _check_types(self, name: str, before: _Frame, after: _Frame, columns: list[str]) -> None:
        """The columns that the query uses have the types that they had; new ones may have come."""
        try:
            was, now = ({f.name: f.dataType for f in table().schema} for table in (before, after))
        except PySparkException as error:
            raise NotIncremental(f"an earlier version of {name} cannot be read: {message_of(error)}") from None
        if any(was.get(column, now[column]) != now[column] for column in columns):
            raise NotIncremental(f"the types of columns of the table {name} have changed")

    # -- in full -----------------------------------------------------------------------------------------------------

    def _rebuild(self, frame: DataFrame, why: str) -> ViewUpdate:
        with _kept(frame) as rows:
            self._check_keys(rows)
            written, report = rows.count(), self._report("full", why)
            options = {"overwriteSchema": "true", "userMetadata": report.note, **_PROPERTIES}
            write = rows.write.format("delta").mode("overwrite").partitionBy(*self.view.partition_by)
            write.options(**options).save(self.view.path)
        return replace(report, rows_written=written)

    # -- both --------------------------------------------------------------------------------------------------------

    def _check_keys(self, rows: DataFrame) -> None:
        """No key is null, none is there twice."""
        columns = [F.col(f"`{name}`") for name in self.view.key]
        missing = rows.where(F.exists(F.array(*[column.isNull() for column in columns]), lambda none: none))
        twice = rows.groupBy(*columns).agg(F.count(F.lit(1)).alias("_rows")).where("_rows > 1")
        found = missing.select(*columns, F.lit(0).alias("_rows")).limit(_SHOWN_KEYS).union(twice.limit(_SHOWN_KEYS))
        if bad := found.collect():
            named = ", ".join(f"{name} = {bad[0][name]}" for name in self.view.key)
            what = "is null" if not bad[0]["_rows"] else f"is not unique: {bad[0]['_rows']:,} rows have it"
            raise Failed(
                f"{self.view.place('key')}: the key of the view {self.view.name} {what}",
                why=f"{named}; the table was not changed",
                hint="a key that identifies each row of the query; group by it, or leave such rows out by a where",
            )

    def _report(self, mode: Literal["incremental", "full"], why: str = "", keys: int | None = None) -> ViewUpdate:
        last = self._last.sources if self._last else {}
        sources = {
            name: SourceVersion(now.id, now.number, last[name].version if name in last else None)
            for name, now in self.now.items()
        }
        seconds = round(time.monotonic() - self.began, 3)
        return ViewUpdate(self.view.name, mode, why, sources, keys, fingerprint=self._fingerprint, seconds=seconds)

    def _commit(self, report: ViewUpdate) -> internals.DeltaCommit:
        """The note is what counts; no commit is looked up by its number.

        If another driver has updated the view meanwhile, Delta refuses a commit that overlaps with the other. One that
        is only late brings no harm: it says which versions it was made from, and the next update begins there.
        """
        now_ms = time.time_ns() // 1_000_000
        return internals.DeltaCommit(f"headrace view {self.view.name}", now_ms, report.note, may_exist=False)


def _session(spark: SparkSession) -> SparkSession:
    """A session of its own: the tables of a view have their names in it, and commits their notes."""
    session = spark.newSession()
    for name, value in SETTINGS.items():
        session.conf.set(name, value)
    return session


def _query(session: SparkSession, view: View) -> DataFrame:
    hint = f"if a table has changed on purpose: mend the SQL, then headrace pipeline refresh {view.name} --full"
    try:
        internals.check_is_query(session, view.sql)
        frame = session.sql(view.sql)
    except PySparkException as error:
        raise view.wrong(message_of(error), "sql", hint=hint) from None
    columns = frame.columns
    for at, names in (("key", view.key), ("partition_by", view.partition_by)):
        for name in names:
            if name not in columns:
                gives = f"it gives {', '.join(columns)}"
                raise view.wrong(f"the query gives no column {name!r}", at, why=gives, hint=hint)
    if twice := sorted({name for name in columns if columns.count(name) > 1}):
        raise view.wrong(f"the query gives two columns {twice[0]!r}", "sql", hint=f"select … as {twice[0]}_2")
    return frame


def _tracker(frame: DataFrame, view: View) -> ChangeTracker:
    return ChangeTracker(check_repeatable(frame), view.key)


def _difference(files: internals.ChangedFiles, columns: list[str]) -> DataFrame:
    """The rows by which two versions of a table differ. Rows that were only written to another file are not among them.

    Where values cannot be compared (maps), they are; some keys are then recomputed in vain.
    """
    names = [F.col(f"`{name}`") for name in columns]
    removed, added = (part.select(*names) if part is not None else None for part in (files.removed, files.added))
    if removed is None or added is None:
        found = removed if removed is not None else added
        assert found is not None
        return found
    if any(kind in added.schema.simpleString() for kind in _UNCOMPARABLE):
        return removed.union(added)
    both = removed.withColumn("_sign", F.lit(-1)).union(added.withColumn("_sign", F.lit(1)))
    return both.groupBy(*names).agg(F.sum("_sign").alias("_sign")).where("_sign != 0").drop("_sign")


@contextmanager
def _kept(frame: DataFrame) -> Iterator[DataFrame]:
    """The rows, computed once."""
    kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield kept
    finally:
        kept.unpersist()


@contextmanager
def _explained(view: View) -> Iterator[None]:
    """What Spark could not do, as an error that names the view."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        said = data_error(error)
        raise Failed(
            f"{view.place('sql')}: the view {view.name} cannot be computed",
            why=f"{said or message_of(error)}; the table was not changed", hint=DATA_HINT if said else None,
        ) from None  # fmt: skip
