"""What a pipeline is to do: a `[pipelines.NAME]` table of headrace.toml as frozen dataclasses.

    from, start        where records come from           into           where rows go, one sink or several
    decode             bytes to typed fields             dead_letters   where records go that cannot be used
    select, where      the columns, the rows wanted      trigger        "once", "5 seconds", "realtime"
    lookup             columns from tables and topics    event_time, watermark, deduplicate, aggregate
    expect             what must hold of each row        join          records of another topic that belong to a row

`reading.py` reads the file and `checks.py` finds what does not fit together, without Spark. What needs Spark (SQL,
columns) is checked by `spark/check.py`, without data, before a run.
A Python function `DataFrame -> DataFrame` may replace `decode`, `select`, `where` or a sink's `aggregate`; a class with
state per key may be an aggregate, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from headrace.config import place
from headrace.errors import ConfigError, UsageError
from headrace.pipeline.declare.sink_kinds import SinkKind, sink_kind
from headrace.text import parse_span

Action = Literal["dead", "drop", "warn", "fail"]
Format = Literal["json", "csv", "text", "avro", "json-schema", "protobuf", "debezium"]
Mode = Literal["merge", "watermark", "recompute", "state"]
Timers = Literal["event time", "processing time"]
Unmatched = Literal["null", "dead"]
JoinKind = Literal["inner", "left"]
#: A step in Python: gets a DataFrame, gives a DataFrame.
Step = Callable[[Any], Any]
#: Where something stands in a declaration; a number says which one of several sinks.
Keys = tuple[str | int, ...]

#: Which changes delete, as Debezium says it.
DEBEZIUM_DELETES = "op = 'd'"
_ENVELOPE = (
    "before struct<{0}>, after struct<{0}>, op string, ts_ms bigint, source struct<lsn bigint, file string, pos bigint>"
)
#: What the columns of a window are called in tables of aggregates.
WINDOW = ("window_start", "window_end")
#: What the ledger calls the place of dead letters.
LETTERS = "dead letters"
# Spark counts time in microseconds, in 64 bits.
LAST_MICROSECOND = 2**63 - 1


@dataclass(frozen=True)
class Decode:
    """How a record's value becomes fields. `schema` is DDL for json and csv, a subject or a file for the registry's."""

    format: Format = "text"
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    #: A reader schema (a file): every version of the writers' is read into it. Without it, the latest version counts.
    reader: str | None = None
    step: Step | None = None

    @property
    def is_framed(self) -> bool:
        """Whether values name schemas of a registry. Debezium's do, unless fields are declared: then it is JSON."""
        return self.format in {"avro", "json-schema", "protobuf"} or (self.format == "debezium" and not self.is_ddl)

    @property
    def envelope(self) -> str:
        """Of Debezium's JSON with declared fields: the DDL of an event, with or without the schema beside it."""
        parts = _ENVELOPE.format(self.schema)
        return f"{parts}, payload struct<{parts}>"

    @property
    def is_ddl(self) -> bool:
        """Whether `schema` declares fields: a subject of a registry is one word."""
        return self.schema is not None and len(self.schema.split()) > 1


@dataclass(frozen=True)
class Lookup:
    """Columns that a table, or the latest records of a topic, add to rows: from the one row there with the same key.

    `on` is the key: a column here, and what equals it there. Both `on` and `select` are SQL over the columns there.
    """

    kind: Literal["table", "topic"]
    target: str
    on: Mapping[str, str]
    select: Mapping[str, str]
    unmatched: Unmatched = "null"
    #: Of a CSV file: its columns in DDL; without it, types are inferred.
    schema: str | None = None
    #: Of a topic.
    decode: Decode = Decode()

    @property
    def rule(self) -> str:
        """What the ledger and dead letters call it."""
        return f"lookup {self.target if self.kind == 'topic' else Path(self.target).stem}"


@dataclass(frozen=True)
class Rule:
    """What must hold of a row, and what becomes of one for which it does not."""

    name: str
    condition: str
    action: Action = "dead"


@dataclass(frozen=True)
class Window:
    """Windows of event time: tumbling (size), sliding (size and slide), or sessions that end after a gap."""

    size: str
    slide: str | None = None
    session: bool = False


@dataclass(frozen=True)
class Aggregate:
    """Rows to one row per key and window.

    `merge` adds each batch's partial results to the table: right for rows however late. `watermark` is Spark's own
    stateful operator: bounded state, final rows, late rows rejected. `recompute` recomputes a key from the first
    table of rows whenever it gets new ones: any SQL, window functions too. `state` is a class of the user's own, a
    `StatefulProcessor` of Spark's: what it keeps per key, and when it gives rows, is up to it.
    """

    by: tuple[str, ...]
    values: Mapping[str, str] = field(default_factory=dict)
    window: Window | None = None
    mode: Mode = "merge"
    step: Step | None = None
    #: Of mode state: what the timers of the class go by.
    timers: Timers = "event time"

    @property
    def is_streaming(self) -> bool:
        """Whether Spark's stateful operator makes its rows."""
        return self.mode in {"watermark", "state"}

    @property
    def has_watermark(self) -> bool:
        """Whether rows can be too late for it."""
        return self.mode == "watermark" or (self.mode == "state" and self.timers == "event time")

    @property
    def has_window_functions(self) -> bool:
        """Whether rows stay rows: each gets what `over (…)` makes of those around it."""
        return any(re.search(r"\bover\s*\(", text, re.IGNORECASE) for text in self.values.values())


@dataclass(frozen=True)
class Changes:
    """Rows are changes of a table with one row per key: of all changes of a key the one with the last `sequence` holds.

    `sequence` is computed of the table's own columns, so the table itself says how recent each of its rows is. Without
    it, the last record holds. With `history` the table has a row per version, with the span in which it held.
    """

    key: tuple[str, ...]
    sequence: tuple[str, ...] = ()
    #: Which rows delete, by the columns before the sink's `select`.
    delete_when: str | None = None
    history: bool = False


@dataclass(frozen=True)
class Sink:
    """One place that rows go to."""

    kind: str
    target: str
    select: Mapping[str, str] = field(default_factory=dict)
    where: str | None = None
    aggregate: Aggregate | None = None
    changes: Changes | None = None
    partition_by: tuple[str, ...] = ()
    #: Of a topic: which column is the key, and whether values are JSON or Avro of the registry.
    key: str | None = None
    format: Literal["json", "avro"] = "json"
    #: Of a table in PostgreSQL, which the target names: its database, its key, and a file with the password.
    database: str = ""
    keys: tuple[str, ...] = ()
    password_file: str | None = None

    @property
    def name(self) -> str:
        return self.target if self.type.has_target else self.kind

    @property
    def type(self) -> SinkKind:
        """What is known of its kind."""
        return sink_kind(self.kind)

    @property
    def mode(self) -> str:
        """Of its aggregate, if it has one."""
        return self.aggregate.mode if self.aggregate else ""

    @property
    def has_every_row(self) -> bool:
        """Whether it is a table of all rows, from which others can be computed."""
        return self.type.table == "delta" and self.aggregate is None and self.changes is None


@dataclass(frozen=True)
class DeadLetters:
    """Where records go that cannot be used: a topic, or a Delta table. Undeclared: a table in the pipeline's folder."""

    kind: Literal["topic", "table"]
    target: str


@dataclass(frozen=True)
class Trigger:
    """`once`: all records that exist now, then stop. `every`: a batch each `seconds`. `realtime`: record by record."""

    kind: Literal["once", "every", "realtime"] = "once"
    seconds: float = 0.0


@dataclass(frozen=True)
class Deduplicate:
    """A row whose columns `by` were seen before is a duplicate; with `within` only if seen within that event time."""

    by: tuple[str, ...]
    within: str | None = None


class Declared:
    """What pipelines and views share: a name, and the file that declares them."""

    name: str
    file: Path | None
    #: The table of the file that it stands in.
    section = "pipelines"
    #: Of a part that is read like a pipeline: where it stands in the pipeline's table.
    part: Keys = ()

    @property
    def folder(self) -> Path:
        """Relative paths in the declaration begin here."""
        return self.file.parent if self.file else Path.cwd()

    def place(self, *path: str | int) -> str:
        """`headrace.toml, line 7`, or the names alone when the declaration was made in Python."""
        path = (*self.part, *path)
        if self.file is None:
            return f"{self.section.removesuffix('s')} {self.name}, {'.'.join(map(str, path))}"
        return place(self.file, (self.section, self.name, *path))

    def wrong(self, problem: str, *path: str | int, why: str | None = None, hint: str | None = None) -> ConfigError:
        """The error for something in this declaration, with its place."""
        return ConfigError(f"{self.place(*path)}: {problem}", why=why, hint=hint)

    def resolve(self, target: str) -> str:
        """A path of the declaration as Spark takes it: absolute, unless it names a file system of its own."""
        return target if "://" in target else str((self.folder / target).absolute())

    def location(self, kind: str, target: str) -> str:
        """What a sink or the dead letters write to, the same text for the same thing."""
        if kind != "table" and sink_kind(kind).table is None:
            return f"{kind} {target}"
        target = unquote(urlsplit(target).path) if target.startswith("file://") else target
        return target.rstrip("/") if "://" in target else str(Path(self.resolve(target)).resolve())


@dataclass(frozen=True)
class View(Declared):
    """A table made from tables by SQL and kept up to date; `key` names the columns that identify its rows."""

    section = "views"

    name: str
    sql: str
    key: tuple[str, ...]
    #: The folder of its table.
    target: str
    partition_by: tuple[str, ...] = ()
    file: Path | None = None

    @property
    def path(self) -> str:
        return self.resolve(self.target)


@dataclass(frozen=True)
class Join:
    """Rows of another topic with the same columns `on`, and an event time at most `within` away.

    `other` says how the records of that topic become rows. A row without a partner is left out (`inner`), or is
    written with nulls (`left`).
    """

    other: Declaration
    on: tuple[str, ...]
    within: str
    kind: JoinKind = "inner"


@dataclass(frozen=True)
class Declaration(Declared):
    """All that is said about one pipeline."""

    name: str
    topics: tuple[str, ...]
    sinks: tuple[Sink, ...]
    decode: Decode = Decode()
    start: str = "beginning"
    select: Mapping[str, str] = field(default_factory=dict)
    select_step: Step | None = None
    where: str | None = None
    where_step: Step | None = None
    lookups: tuple[Lookup, ...] = ()
    rules: tuple[Rule, ...] = ()
    event_time: str | None = None
    watermark: str | None = None
    deduplicate: Deduplicate | None = None
    dead_letters: DeadLetters | None = None
    trigger: Trigger = Trigger()
    max_records_per_batch: int = 1_000_000
    spark: Mapping[str, str] = field(default_factory=dict)
    kafka: Mapping[str, str] = field(default_factory=dict)
    #: Where Spark keeps its progress; on a Spark cluster a folder that all of its machines see.
    checkpoint: str | None = None
    join: Join | None = None
    file: Path | None = None
    part: Keys = ()

    def path_of(self, sink: Sink) -> tuple[str, int]:
        """Where the sink is declared, for `wrong` and `place`."""
        return "into", next(at for at, known in enumerate(self.sinks) if known is sink)

    @property
    def base(self) -> Sink:
        """The sink whose rows an aggregate of mode recompute is computed from: the first table of rows."""
        return next(sink for sink in self.sinks if sink.has_every_row)

    def lookup_topic(self, at: int) -> Declaration:
        """The topic of that lookup as the source of a pipeline: which records to read, and how to decode them."""
        lookup = self.lookups[at]
        return replace(self, topics=(lookup.target,), decode=lookup.decode, lookups=(), part=("lookup", at))

    @property
    def needs_registry(self) -> bool:
        """Whether records are read or written by schemas of a registry."""
        framed = any(given.is_framed for given in (self.decode, *[lookup.decode for lookup in self.lookups]))
        joined = self.join is not None and self.join.other.needs_registry
        return framed or joined or any(sink.format == "avro" for sink in self.sinks)

    @property
    def all_topics(self) -> tuple[str, ...]:
        """Every topic whose records become rows."""
        return self.topics + (self.join.other.topics if self.join else ())

    @property
    def read_topics(self) -> tuple[str, ...]:
        """Every topic that is read, those that are looked up too."""
        return (*self.all_topics, *[lookup.target for lookup in self.lookups if lookup.kind == "topic"])

    def of_topic(self, topic: str) -> Declaration:
        """What is said about the records of that topic."""
        return self.join.other if self.join and topic in self.join.other.topics else self

    @property
    def sides(self) -> tuple[Declaration, Declaration]:
        """Both sides of the join, each by itself: from records to rows that may enter the join."""
        assert self.join is not None
        left, other = replace(self, sinks=(), join=None), self.join.other
        right = replace(
            left, topics=other.topics, decode=other.decode, select=other.select, select_step=other.select_step,
            where=other.where, where_step=other.where_step, rules=other.rules, event_time=other.event_time,
            part=("join",),
        )  # fmt: skip
        return left._timed(self.join.within), right._timed(self.join.within)

    def _timed(self, within: str) -> Declaration:
        """Only rows whose partners' times can be computed are good."""
        time, last = self.time_column, LAST_MICROSECOND - 2 * int(span_s(within) * 1_000_000)
        known = (f"`{time}` is not null", f"abs(unix_micros(`{time}`)) <= {last}")
        return replace(self, rules=(*self.rules, *[Rule("event_time", condition) for condition in known]))

    @property
    def time_column(self) -> str:
        """The event time of a row in a join: what is declared, else the time of its record."""
        return self.event_time or "_timestamp"

    @property
    def streaming_aggregate(self) -> Sink | None:
        """The sink that Spark's stateful operator feeds, if there is one."""
        return next((s for s in self.sinks if s.aggregate and s.aggregate.is_streaming), None)


def interval(text: str) -> str:
    """The same length of time as Spark reads it: not all that is written here, such as `5m`."""
    return f"{round(span_s(text) * 1_000_000)} microseconds"


def span_s(text: str) -> float:
    """`10 minutes` in seconds."""
    try:
        return parse_span(text, unit="")
    except UsageError:
        raise ValueError(f"{text!r} is not a length of time such as 5 seconds, 10 minutes or 1 hour") from None
