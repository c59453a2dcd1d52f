"""Columns that are looked up: of a table, or of the latest records of a topic, as of a batch.

What is looked up is read again only when it has changed. Its rows are keyed: each key once, with the number of rows
that have it, so a record never becomes several rows. Keyed rows are stored in the pipeline's folder and cached; Spark
joins them to the batch, by broadcast if they are small.

Which version a batch uses is noted before anything of the batch is written. If the batch is repeated after a crash, it
gets the same rows, though the table may have changed since: else a record could be written by one attempt and be a dead
letter of the other.
"""

from __future__ import annotations

import functools
import hashlib
import json
import operator
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegralType, StructType

from headrace.errors import ConfigError, Failed, HeadraceError, Unreachable
from headrace.home import read_json, write_json
from headrace.kafka import Kafka
from headrace.pipeline.declare import changes
from headrace.pipeline.declare.declaration import Declaration, Lookup
from headrace.pipeline.spark import internals, source
from headrace.pipeline.spark.classify import RAW_SCHEMA, RECORD, errors_at, message_of, nothing
from headrace.pipeline.spark.decode import decoder, struct_of
from headrace.text import plural

if TYPE_CHECKING:
    from headrace.kafka import Connection
    from headrace.pipeline.spark.decode import Decoder
    from headrace.pipeline.spark.sinks.sinks import Batch
    from headrace.schemas import Registry

_NOTES = "used.json"
_EARLIEST = -2
_HIDDEN = re.compile(r"/(\.|_(?![^/]*=))")
# A file that is replaced while it is read is read again.
_READS = 3
_REASON_CHARACTERS = 100
_KAFKA_TIMEOUT_S = 5.0


class Lookups:
    """The lookups of one declaration. `check` before anything else, `begin` before the rows of a batch are joined."""

    def __init__(
        self, spark: SparkSession, declaration: Declaration, connection: Connection, registry: Registry | None,
        to_come: Mapping[str, StructType | None],
    ) -> None:  # fmt: skip
        self._all = [
            _Lookup(_source(spark, declaration, at, connection, registry, to_come), declaration, at)
            for at in range(len(declaration.lookups))
        ]

    def __bool__(self) -> bool:
        return bool(self._all)

    @property
    def names(self) -> list[str]:
        """The columns that lookups add."""
        return [name for each in self._all for name in each.lookup.select]

    def check(self, frame: DataFrame) -> DataFrame:
        """`frame` joined to nothing: the columns and their types. What does not fit is an error with its line."""
        for each in self._all:
            each.check(frame)
            frame = each.joined(frame)
        return frame

    def join(self, frame: DataFrame) -> DataFrame:
        """`frame` with the looked up columns in `_columns`, and `_unmatched`: rule and reason, where there is one."""
        for each in self._all:
            frame = each.joined(frame)
        return frame

    def begin(self, batch: Batch, folder: Path) -> dict[str, str]:
        """The rows are those of now; of a batch that was begun before, those of then. The version of each, by name."""
        if not self._all:
            return {}
        notes = read_json(folder / _NOTES) or {}
        known: dict[str, Any] = notes.get("used", {})
        again = (notes.get("writer"), notes.get("batch")) == (batch.writer, batch.number)
        versions: dict[str, _Version] = {}
        for each in self._all:
            then = known.get(each.identity) if again else None
            if then is not None:
                each.hold_stored(folder, _Version(then["version"], then["key"]))
                continue
            target = each.lookup.target
            versions[target] = versions.get(target) or each.version()
            if known.get(each.identity, {}).get("key") == versions[target].key:
                each.hold_stored(folder, versions[target])
            else:
                each.hold(versions[target], folder)
        used = {each.identity: {"version": each.held.text, "key": each.held.key} for each in self._all}
        write_json(folder / _NOTES, {"writer": batch.writer, "batch": batch.number, "used": used})
        _remove_except(folder, {each.stored_name(each.held) for each in self._all})
        return {each.lookup.target: each.held.text for each in self._all}

    def load(self) -> None:
        """The rows are those of now, for a look that leaves nothing behind."""
        for each in self._all:
            each.hold(each.version())

    def close(self) -> None:
        """Nothing is cached any more."""
        for each in self._all:
            each.close()


@dataclass(frozen=True)
class _Version:
    """What a lookup is made of: for a person, and as a text that is another one if anything is different."""

    text: str
    key: str


class _Lookup:
    """One lookup: its keyed rows of one version, and how they are joined."""

    def __init__(self, given: _Source, declaration: Declaration, at: int) -> None:
        self.lookup = declaration.lookups[at]
        self.held = _Version("", "")
        self._source = given
        self._declaration = declaration
        self._at = at
        self._spark = given.spark
        #: The keyed rows, and the same with names that no other lookup has.
        self._rows: DataFrame | None = None
        self._named: DataFrame | None = None
        self._here: list[Column] = []
        self._key_types: list[str] = []
        self._schema = StructType()
        #: What the join makes: the same for every batch, and each part of it is a call to Java.
        self._same: Column | None = None
        self._made: list[Column | str] = []

    # -- checks ------------------------------------------------------------------------------------------------------

    def check(self, frame: DataFrame) -> None:
        """Keys and columns exist and fit; what is joined until rows are held has none."""
        lookup, names = self.lookup, frame.select("_columns.*").columns
        self._here, self._key_types = [], []
        with self._errors_at(lookup.kind):
            rows = self._source.example()
        for here, there in lookup.on.items():
            self._check_key(frame, rows, here, there, "_columns" if here in names else "_fields")
        for name, text in lookup.select.items():
            if name in names:
                raise self._declaration.wrong(
                    f"the lookup makes a column {name}, which is there already", "lookup", self._at, "select", name,
                    hint=f'{lookup.rule.split()[-1]}_{name} = "{text}"',
                )  # fmt: skip
            with self._errors_at("select", name):
                rows.select(F.expr(text))
        with self._errors_at("select"):
            keyed = self._keyed(rows)
            self._schema = keyed.schema
        self._use(nothing(self._spark, keyed.schema))
        mine = [F.col(f"{self._name('found')}.c{at}").alias(name) for at, name in enumerate(lookup.select)]
        columns = F.struct(*[F.col(f"_columns.`{name}`") for name in names], *mine).alias("_columns")
        kept = [name for name in frame.columns if name not in {"_columns", "_unmatched"}]
        earlier = [F.col("_unmatched")] if "_unmatched" in frame.columns else []
        self._made = [*kept, columns, F.coalesce(*earlier, self._problem()).alias("_unmatched")]
        same = [here == F.col(self._name(f"key{at}")) for at, here in enumerate(self._here)]
        self._same = functools.reduce(operator.and_, same)

    def _check_key(self, frame: DataFrame, rows: DataFrame, here: str, there: str, struct: str) -> None:
        with self._errors_at("on", here):
            mine = frame.select(f"{struct}.`{here}`").schema[0].dataType
            theirs = rows.select(F.expr(there)).schema[0].dataType
        integral = isinstance(mine, IntegralType) and isinstance(theirs, IntegralType)
        if mine != theirs and not integral:
            mine_is, theirs_is = mine.simpleString(), theirs.simpleString()
            raise self._declaration.wrong(
                f"{here} is {mine_is} here, and {there.strip('`')} is {theirs_is} in {self.lookup.target}",
                "lookup", self._at, "on", here, why="keys of different types are never equal",
                hint=f'on = {{ {here} = "cast({there} as {mine_is})" }}',
            )  # fmt: skip
        self._here.append(F.col(f"{struct}.`{here}`"))
        self._key_types.append(mine.simpleString())

    # -- rows --------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def identity(self) -> str:
        """The same as long as the same rows are made of the same version."""
        said = changes.document(self._declaration)["lookup"][self._at]
        return _digest(json.dumps([said, self._key_types, self._schema.json()], sort_keys=True))

    def version(self) -> _Version:
        """That of now; an error if there is nothing to look up any more."""
        try:
            return self._source.version()
        except ConfigError as error:
            raise Failed(
                error.problem, why=f"{error.why or 'it was there before'}; nothing of the batch was written",
                hint="restore it and start again: the run continues with this batch",
            ) from None  # fmt: skip

    def hold(self, version: _Version, folder: Path | None = None) -> None:
        """The keyed rows of that version are cached; with a folder, they are stored there first."""
        if version.key == self.held.key:
            return
        for _ in range(_READS):
            try:
                keyed = internals.Counted(self._keyed_now(version))
                if folder is None:
                    self._cache(keyed.frame, version)
                else:
                    keyed.frame.write.mode("overwrite").parquet(str(folder / self.stored_name(version)))
                now = self.version() if self._source.may_change else version
                if now == version:
                    break
            except PySparkException as error:
                now = self.version()
                if now == version:
                    raise self._unreadable(error) from error
            version = now
        else:
            raise Failed(
                f"{self._place}: {self.lookup.target} changes while it is read", why=f"{_READS} times in a row",
                hint="write a new file beside it and rename it; a Delta table can be changed at any time",
            )  # fmt: skip
        if folder is not None and self.hold_stored(folder, version) not in (None, keyed.rows):
            raise Failed(
                f"{self._place}: the rows of {self.lookup.target} were stored, and are not there to be read",
                why=f"executors write to their own disks where the machines of a Spark cluster do not share {folder}",
                hint="--home FOLDER: one that all of its machines see",
            )

    def hold_stored(self, folder: Path, version: _Version) -> int | None:
        """The keyed rows that were stored there are cached. Returns how many; None if they were before."""
        if version.key == self.held.key:
            return None
        rows = self._spark.read.schema(self._schema).parquet(str(folder / self.stored_name(version)))
        return self._cache(rows, version)

    def stored_name(self, version: _Version) -> str:
        return f"{self.identity}-{_digest(version.key)}"

    def _cache(self, rows: DataFrame, version: _Version) -> int:
        # Counted, so that Spark knows the size when it decides how to join.
        kept = rows.persist()
        count = kept.count()
        self.close()
        self._use(kept)
        self.held = version
        return count

    def _use(self, rows: DataFrame) -> None:
        self._rows = rows
        self._named = rows.select([F.col(name).alias(self._name(name.strip("_"))) for name in rows.columns])

    def close(self) -> None:
        if self._rows is not None and self.held.key:
            self._rows.unpersist()
        self.held = _Version("", "")
        self._source.close()

    def _keyed_now(self, version: _Version) -> DataFrame:
        rows = self._source.rows(version)
        with self._errors_at("select"):
            keyed = self._keyed(rows)
        was, now = (schema["_found"].dataType.simpleString() for schema in (self._schema, keyed.schema))
        if now != was:
            raise Failed(
                f"{self._place}: the types of {self.lookup.target} have changed",
                why=f"what is selected was {was}, and is {now}; nothing of the batch was written",
                hint="start again to use the new types",
            )  # fmt: skip
        return keyed

    def _keyed(self, rows: DataFrame) -> DataFrame:
        """Each key once, with the number of rows that have it and the selected columns of one; null where they fail."""
        tried = functools.partial(internals.try_eval, self._spark)
        texts = zip(self.lookup.on.values(), self._key_types, strict=True)
        # A number that is too large for the column here equals none of its values.
        keys = {f"_key{at}": tried(text).try_cast(kind) for at, (text, kind) in enumerate(texts)}
        parts = ", ".join(f"'c{at}', {text}" for at, text in enumerate(self.lookup.select.values()))
        found = tried(f"named_struct({parts})").alias("_found")
        made = rows.select(*[key.alias(name) for name, key in keys.items()], found)
        whole = functools.reduce(operator.and_, [F.col(name).isNotNull() for name in keys])
        grouped = made.where(whole).groupBy(*keys)
        return grouped.agg(F.count(F.lit(1)).alias("_matches"), F.first("_found").alias("_found"))

    # -- the join ----------------------------------------------------------------------------------------------------

    def joined(self, frame: DataFrame) -> DataFrame:
        """`frame` with the columns, a row for each row."""
        assert self._named is not None
        return frame.join(self._named, self._same, "left").select(*self._made)

    def _problem(self) -> Column:
        """Why the row there cannot be used, null where it can."""
        lookup, matches = self.lookup, F.coalesce(F.col(self._name("matches")), F.lit(0))
        key = F.concat_ws(", ", *[_said(name, here) for name, here in zip(lookup.on, self._here, strict=True)])
        where = f" of {lookup.target} "

        def problem(*reason: object) -> Column:
            parts = [part if isinstance(part, Column) else F.lit(part) for part in reason]
            return F.struct(F.lit(lookup.rule).alias("_rule"), F.concat(*parts).alias("_reason"))

        found = F.when(matches > 1, problem(matches.cast("string"), f" rows{where}have ", key))
        failed = problem(f"an expression of select failed for the row{where}with ", key)
        found = found.when((matches == 1) & F.col(self._name("found")).isNull(), failed)
        if lookup.unmatched == "dead":
            found = found.when(matches == 0, problem(f"no row{where}has ", key))
        return found

    def _name(self, what: str) -> str:
        """A column of the keyed rows, where several lookups are joined to the same rows."""
        return f"_lookup{self._at}_{what}"

    # -- errors ------------------------------------------------------------------------------------------------------

    @property
    def _place(self) -> str:
        return self._declaration.place("lookup", self._at, self.lookup.kind)

    def _errors_at(self, *path: str) -> AbstractContextManager[None]:
        return errors_at(self._declaration, "lookup", self._at, *path)

    def _unreadable(self, error: Exception) -> Exception:
        if self.lookup.kind == "topic":
            return error  # Kafka may be unreachable for a while: the run knows what to do
        return Failed(
            f"{self._place}: {self.lookup.target} cannot be read",
            why=f"{message_of(error)[:300]}; nothing of the batch was written",
        )


def _said(name: str, value: Column) -> Column:
    text = F.coalesce(F.substring(value.cast("string"), 1, _REASON_CHARACTERS), F.lit("null"))
    return F.concat(F.lit(f"{name} = "), text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _remove_except(folder: Path, names: set[str]) -> None:
    for stored in folder.iterdir():
        if stored.is_dir() and stored.name not in names:
            shutil.rmtree(stored, ignore_errors=True)


# -- where rows come from ----------------------------------------------------------------------------------------------


class _Source(ABC):
    """A table or a topic: which version there is now, and the rows of a version."""

    #: Whether the rows of a version are other ones if it changes while it is read.
    may_change = False

    def __init__(self, spark: SparkSession, declaration: Declaration, lookup: Lookup, at: int) -> None:
        self.spark = spark
        self.lookup = lookup
        self.declaration = declaration
        self.at = at

    @abstractmethod
    def version(self) -> _Version:
        """That of now. If there is nothing, a `ConfigError`."""

    @abstractmethod
    def rows(self, version: _Version) -> DataFrame:
        """All rows of that version."""

    @abstractmethod
    def example(self) -> DataFrame:
        """The columns and their types, for checks."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Connections are closed."""

    def missing(self, problem: str, why: str, hint: str | None = None) -> HeadraceError:
        return self.declaration.wrong(problem, "lookup", self.at, self.lookup.kind, why=why, hint=hint)


def _source(
    spark: SparkSession, declaration: Declaration, at: int, connection: Connection, registry: Registry | None,
    to_come: Mapping[str, StructType | None],
) -> _Source:  # fmt: skip
    lookup = declaration.lookups[at]
    if lookup.kind == "table":
        return _Table(spark, declaration, lookup, at, to_come.get(declaration.location("table", lookup.target)))
    return _Topic(spark, declaration, at, connection, registry)


class _Table(_Source):
    """A Delta table, Parquet files or CSV files: what lies there decides. `to_come`: the columns that it will have."""

    def __init__(
        self, spark: SparkSession, declaration: Declaration, lookup: Lookup, at: int, to_come: StructType | None
    ) -> None:
        super().__init__(spark, declaration, lookup, at)
        self._to_come = to_come

    def version(self) -> _Version:
        path = self._path
        if internals.is_delta_table(self.spark, path):
            self.may_change = False
            table, number = internals.delta_version(self.spark, path)
            return _Version(f"version {number}", f"{table} {number}")
        self.may_change = True
        files = self._files()
        if not files:
            raise self.missing(
                f"there is no table {self.lookup.target}", f"there is nothing to read at {path}",
                "a Delta table, a folder or a file of Parquet, or a CSV file",
            )  # fmt: skip
        digest = _digest(json.dumps(files))
        newest = datetime.fromtimestamp(max(file.modified_ms for file in files) / 1000, UTC)
        said = newest.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return _Version(f"{plural(len(files), 'file')} of {said} ({digest[:8]})", digest)

    def rows(self, version: _Version) -> DataFrame:
        reader, path = self.spark.read, self._path
        if not self.may_change:
            number = version.key.rpartition(" ")[2]
            return reader.format("delta").option("versionAsOf", number).load(path)
        files = self._files()
        if any(file.path.endswith(".parquet") for file in files):
            return reader.parquet(path)
        if not any(".csv" in Path(file.path).suffixes for file in files):
            raise self.missing(
                f"{self.lookup.target} cannot be looked up", "it is neither a Delta table nor files .parquet or .csv"
            )
        # A line that does not fit stops the run: by default Spark would make nulls of it.
        strict = reader.option("header", "true").option("mode", "FAILFAST").option("enforceSchema", "false")
        if self._csv_schema is None:
            self._csv_schema = struct_of(self.lookup.schema) if self.lookup.schema else _inferred(strict, path)
        return strict.schema(self._csv_schema).csv(path)

    #: What was inferred first: another type in the middle of a run would be another column.
    _csv_schema: StructType | None = None

    def example(self) -> DataFrame:
        if self._to_come is not None and not internals.is_delta_table(self.spark, self._path) and not self._files():
            return nothing(self.spark, self._to_come)
        return self.rows(self.version())

    def _files(self) -> list[internals.HadoopFile]:
        """The files that Spark would read: not those whose names, or whose folders' names, begin with _ or a dot."""
        path = self._path
        # Hadoop takes a few calls to Java for each file.
        found = internals.HadoopFiles(self.spark, path).files(path) if "://" in path else _local_files(Path(path))
        return sorted(file for file in found if not _HIDDEN.search(file.path[len(path) :]))

    @property
    def _path(self) -> str:
        return self.declaration.resolve(self.lookup.target).rstrip("/")


def _local_files(root: Path) -> Iterator[internals.HadoopFile]:
    for path in [root] if root.is_file() else root.rglob("*"):
        with suppress(FileNotFoundError):  # it is replaced just now
            stat = path.stat()
            if S_ISREG(stat.st_mode):
                yield internals.HadoopFile(str(path), stat.st_size, stat.st_mtime_ns // 1_000_000)


def _inferred(reader: Any, path: str) -> StructType:
    found: StructType = reader.option("inferSchema", "true").csv(path).schema
    return found


class _Topic(_Source):
    """The latest record of each key, up to the ends of the partitions; a record without a value deletes its key."""

    def __init__(
        self, spark: SparkSession, declaration: Declaration, at: int, connection: Connection, registry: Registry | None
    ) -> None:
        super().__init__(spark, declaration, declaration.lookups[at], at)
        self._connection = connection
        self._part = declaration.lookup_topic(at)
        self._decoder: Decoder = decoder(spark, self._part, registry)
        self._kafka: Kafka | None = None

    def version(self) -> _Version:
        self._kafka = self._kafka or Kafka(self._connection, timeout_s=_KAFKA_TIMEOUT_S)
        topic = self._kafka.extents([self.lookup.target])[self.lookup.target]
        if topic is None:
            raise self.missing(f"there is no topic {self.lookup.target}", "Kafka does not know it")
        ends = {partition.partition: partition.end for partition in topic.partitions}
        if None in ends.values():
            raise Unreachable(f"the ends of {self.lookup.target} are not known", why="a leader has not answered")
        said = ",".join(f"{number}={end}" for number, end in sorted(ends.items()))
        return _Version(f"offsets {said}", f"{topic.topic_id} {said}")

    def rows(self, version: _Version) -> DataFrame:
        latest = self._latest(version)
        while True:
            decoded = self._decoded(latest)
            bad = decoded.where("_reason is not null")
            row = bad.select("_partition", "_offset", "_reason").first()
            if row is None:
                return decoded
            if not self._decoder.learn(bad):
                at = f"{self.lookup.target}/{row['_partition']}/{row['_offset']}"
                raise Failed(
                    f"{self.declaration.place('lookup', self.at, 'topic')}: the record {at} cannot be looked up",
                    why=f"{row['_reason']}; nothing of the batch was written",
                    hint="send a good record with the same key, or one without a value, which deletes the key",
                )

    def example(self) -> DataFrame:
        raw = nothing(self.spark, struct_of(RAW_SCHEMA))
        return self._decoded(raw.select(*[F.col(name).alias(ours) for name, ours in RECORD.items()]))

    def _latest(self, version: _Version) -> DataFrame:
        ends = dict(pair.split("=") for pair in version.key.rpartition(" ")[2].split(",") if pair)
        spans = {(self.lookup.target, int(number)): (_EARLIEST, int(end)) for number, end in ends.items()}
        raw = source.read_again(self.spark, self._part, self._connection, spans)
        record = raw.select(*[F.col(name).alias(ours) for name, ours in RECORD.items()])
        last = F.max_by(F.struct(*record.columns), F.col("_offset")).alias("_last")
        by_partition = record.groupBy("_key", "_partition").agg(last)
        # A key may be in two partitions, if some were added or clients partition differently.
        newest = F.max_by("_last", F.struct("_last._timestamp", "_last._partition")).alias("_last")
        return by_partition.groupBy("_key").agg(newest).select("_last.*").where("_value is not null")

    def _decoded(self, latest: DataFrame) -> DataFrame:
        decoded = self._decoder.decode(latest)
        reason = F.when(F.col("_key").isNull(), "it has no key").otherwise(F.col("_undecoded"))
        kept = [name for name in RECORD.values() if name != "_value"]
        return decoded.select(*kept, reason.alias("_reason"), "_fields.*")

    def close(self) -> None:
        if self._kafka is not None:
            self._kafka.close()
            self._kafka = None
