"""What a pipeline is to do: a `[pipelines.NAME]` table of headrace.toml, read into frozen dataclasses.

    from, start        where records come from           into           where rows go, one sink or several
    decode             bytes to typed fields             dead_letters   where records go that cannot be used
    select, where      the columns, the rows wanted      trigger        "once", "5 seconds", "realtime"
    expect             what must hold of each row        event_time, watermark, deduplicate, aggregate

Whatever is written is checked here as far as words go: unknown keys, wrong kinds of value, what cannot stand together,
each with its line. What needs Spark to judge (SQL, columns) is checked by `flow.py`, against no data, before a run.
A Python function `DataFrame -> DataFrame` may stand for `decode`, `select`, `where` or a sink's `aggregate`.
This module never imports Spark: `pipeline list` answers at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args
from urllib.parse import unquote, urlsplit

from headrace.config import place, read_document, unknown_key
from headrace.errors import ConfigError, NotFound

Action = Literal["dead", "drop", "warn", "fail"]
Format = Literal["json", "csv", "text", "avro", "json-schema", "protobuf"]
Kind = Literal["delta", "parquet", "topic", "console"]
Mode = Literal["merge", "watermark", "recompute"]
#: A step in Python: gets a DataFrame, gives a DataFrame.
Step = Callable[[Any], Any]
#: Where something stands in a declaration; a number says which one of several sinks.
Keys = tuple[str | int, ...]

#: What the ledger calls the place of dead letters.
LETTERS = "dead letters"

_SPAN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|millisecond|s|second|min|minute|h|hour|d|day|week)s?\s*")
_SECONDS = {
    "ms": 0.001, "millisecond": 0.001, "s": 1, "second": 1, "min": 60, "minute": 60,
    "h": 3600, "hour": 3600, "d": 86400, "day": 86400, "week": 604800,
}  # fmt: skip


@dataclass(frozen=True)
class Decode:
    """How a record's value becomes fields. `schema` is DDL for json and csv, a subject or a file for the registry's."""

    format: Format = "text"
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    #: A reader schema (a file): every version of the writers' is read into it. Without it, the latest version counts.
    reader: str | None = None
    step: Step | None = None


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
    stateful operator: bounded state, final rows, late rows set apart. `recompute` computes a key's rows anew from the
    first table of rows whenever new ones come: any SQL, window functions too.
    """

    by: tuple[str, ...]
    values: Mapping[str, str] = field(default_factory=dict)
    window: Window | None = None
    mode: Mode = "merge"
    step: Step | None = None


@dataclass(frozen=True)
class Sink:
    """One place that rows go to."""

    kind: Kind
    target: str
    select: Mapping[str, str] = field(default_factory=dict)
    where: str | None = None
    aggregate: Aggregate | None = None
    partition_by: tuple[str, ...] = ()
    #: Of a topic: which column is the key, and whether values are JSON or Avro of the registry.
    key: str | None = None
    format: Literal["json", "avro"] = "json"

    @property
    def name(self) -> str:
        return self.target if self.kind != "console" else "console"


@dataclass(frozen=True)
class DeadLetters:
    """Where records go that cannot be used: a topic, or a Delta table. Undeclared: a table in the pipeline's folder."""

    kind: Literal["topic", "table"]
    target: str


@dataclass(frozen=True)
class Trigger:
    """`once`: all that is there, then stop. `every`: a batch each `seconds`. `realtime`: record by record."""

    kind: Literal["once", "every", "realtime"] = "once"
    seconds: float = 0.0


@dataclass(frozen=True)
class Deduplicate:
    """Rows whose columns `by` were seen before are set aside; with `within` only those seen within that event time."""

    by: tuple[str, ...]
    within: str | None = None


@dataclass(frozen=True)
class Declaration:
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
    file: Path | None = None

    @property
    def folder(self) -> Path:
        """Relative paths in the declaration begin here."""
        return self.file.parent if self.file else Path.cwd()

    def place(self, *path: str | int) -> str:
        """`headrace.toml, line 7`, or the names alone when the declaration was made in Python."""
        if self.file is None:
            return f"pipeline {self.name}, {'.'.join(map(str, path))}"
        return place(self.file, ("pipelines", self.name, *path))

    def wrong(self, problem: str, *path: str | int, why: str | None = None, hint: str | None = None) -> ConfigError:
        """The error for something in this declaration, with its place."""
        return ConfigError(f"{self.place(*path)}: {problem}", why=why, hint=hint)

    def path_of(self, sink: Sink) -> tuple[str, int]:
        """Where the sink is declared, for `wrong` and `place`."""
        return "into", next(at for at, known in enumerate(self.sinks) if known is sink)

    @property
    def base(self) -> Sink:
        """The sink whose rows an aggregate of mode recompute is computed from: the first table of rows."""
        return next(sink for sink in self.sinks if sink.kind == "delta" and not sink.aggregate)

    def resolve(self, target: str) -> str:
        """A path of the declaration as Spark takes it: absolute, unless it names a file system of its own."""
        return target if "://" in target else str((self.folder / target).absolute())

    def location(self, kind: str, target: str) -> str:
        """What a sink or the dead letters write to, the same text for the same thing."""
        if kind in {"topic", "console"}:
            return f"{kind} {target}"
        target = unquote(urlsplit(target).path) if target.startswith("file://") else target
        return target.rstrip("/") if "://" in target else str(Path(self.resolve(target)).resolve())

    @property
    def needs_registry(self) -> bool:
        """Whether records are read or written by schemas of a registry."""
        framed = self.decode.format in {"avro", "json-schema", "protobuf"}
        return framed or any(sink.format == "avro" for sink in self.sinks)

    @property
    def streaming_aggregate(self) -> Sink | None:
        """The sink that Spark's stateful operator feeds, if there is one."""
        return next((s for s in self.sinks if s.aggregate and s.aggregate.mode == "watermark"), None)


def declared(file: Path) -> tuple[str, ...]:
    """The names of the pipelines in the file."""
    return tuple(read_document(file).get("pipelines", {}))


def read(file: Path, name: str) -> Declaration:
    """The declaration of that pipeline."""
    tables = read_document(file).get("pipelines", {})
    if name not in tables:
        raise _no_such(file, name, tuple(tables))
    return _Reader(file, name, tables[name]).read()


def _no_such(file: Path, name: str, known: tuple[str, ...]) -> NotFound:
    import difflib

    near = difflib.get_close_matches(name, known, n=1)
    if not known:
        return NotFound(
            f"there is no pipeline {name!r}",
            why=f"{file} declares none" if file.is_file() else f"there is no file {file}",
            hint="a [pipelines.NAME] table in headrace.toml declares one; examples are in docs/pipelines.md",
        )
    return NotFound(
        f"there is no pipeline {name!r}",
        why=f"{file.name} declares {', '.join(known)}",
        hint=f"did you mean {near[0]}?" if near else "headrace pipeline list",
    )


def span_s(text: str) -> float:
    """`10 minutes` in seconds."""
    found = _SPAN.fullmatch(text)
    if not found:
        raise ValueError(f"{text!r} is no span of time; 5 seconds, 10 minutes, 1 hour are")
    return float(found[1]) * _SECONDS[found[2]]


class _Reader:
    """Reads one table, key by key; every mistake is told with its line."""

    def __init__(self, file: Path, name: str, table: Any) -> None:
        self.file = file
        self.name = name
        self.table = self._table(table, ())

    def read(self) -> Declaration:
        known = (
            "from", "start", "decode", "select", "where", "expect", "event_time", "watermark", "deduplicate",
            "aggregate", "into", "dead_letters", "trigger", "max_records_per_batch", "spark", "kafka", "checkpoint",
        )  # fmt: skip
        self._only(self.table, (), known)
        for needed in ("from", "into"):
            if needed not in self.table:
                raise self.error((), f"{needed} is missing", hint='from = "TOPIC" and into = { delta = "FOLDER" }')
        if self.table["from"] == []:
            raise self.error(("from",), "from names no topic", hint='from = "TOPIC"')
        select, select_step = self._select()
        where = self.table.get("where")
        declaration = Declaration(
            name=self.name,
            topics=self._words(self.table["from"], ("from",), "a topic, or a list of topics"),
            start=str(self.table.get("start", "beginning")),
            decode=self._decode(),
            select=select,
            select_step=select_step,
            where=None if isinstance(where, dict) else self._text(self.table, ("where",)),
            where_step=self._step(("where",), where) if isinstance(where, dict) else None,
            rules=self._rules(),
            event_time=self._text(self.table, ("event_time",)),
            watermark=self._span(self.table, ("watermark",)),
            deduplicate=self._deduplicate(),
            sinks=self._sinks(),
            dead_letters=self._dead_letters(),
            trigger=self._trigger(),
            max_records_per_batch=self._whole("max_records_per_batch", 1_000_000),
            spark=self._properties(self.table, ("spark",)),
            kafka=self._properties(self.table, ("kafka",)),
            checkpoint=self._text(self.table, ("checkpoint",)),
            file=self.file,
        )
        check(declaration)
        return declaration

    # -- the parts ---------------------------------------------------------------------------------------------------

    def _decode(self) -> Decode:
        given = self.table.get("decode", "text")
        if isinstance(given, str):
            given = {given: None}
        table = self._table(given, ("decode",))
        if "python" in table:
            return Decode(step=self._step(("decode",), table))
        formats = get_args(Format)
        self._only(table, ("decode",), (*formats, "options", "reader", "python"))
        named = [name for name in table if name in formats]
        if len(named) != 1:
            raise self.error(
                ("decode",), f"decode names {len(named) or 'no'} formats", hint=f"one of {', '.join(formats)}"
            )
        kind = cast(Format, named[0])
        schema = table[kind]
        if kind in {"json", "csv"} and not isinstance(schema, str):
            raise self.error(
                ("decode",), f"{kind} needs to know the fields",
                hint=f'decode = {{ {kind} = "id long, name string" }}, in Spark\'s DDL',
            )  # fmt: skip
        if schema is not None and not isinstance(schema, str):
            raise self.error(("decode", kind), f"{kind} is {schema!r}", hint="a subject of the registry, as text")
        return Decode(
            kind, schema, self._properties(table, ("decode", "options")), self._text(table, ("decode", "reader"))
        )

    def _select(self) -> tuple[dict[str, str], Step | None]:
        given = self._table(self.table.get("select", {}), ("select",))
        if set(given) == {"python"}:
            return {}, self._step(("select",), given)
        return self._expressions(given, ("select",)), None

    def _rules(self) -> tuple[Rule, ...]:
        rules = []
        for name, given in self._table(self.table.get("expect", {}), ("expect",)).items():
            table = {"rule": given} if isinstance(given, str) else self._table(given, ("expect", name))
            self._only(table, ("expect", name), ("rule", "action"))
            action = table.get("action", "dead")
            if not isinstance(table.get("rule"), str):
                raise self.error(("expect", name), f"expectation {name!r} has no rule", hint='"name" = "amount > 0"')
            if action not in get_args(Action):
                raise self.error(
                    ("expect", name), f"unknown action {action!r}", hint=f"one of {', '.join(get_args(Action))}"
                )
            rules.append(Rule(name, table["rule"], cast(Action, action)))
        return tuple(rules)

    def _sinks(self) -> tuple[Sink, ...]:
        given = self.table["into"]
        listed = given if isinstance(given, list) else [given]
        if not listed:
            raise self.error(("into",), "into names no sink")
        sinks = [self._sink(self._table(entry, ("into", at)), ("into", at)) for at, entry in enumerate(listed)]
        if "aggregate" in self.table:
            if len(sinks) != 1 or sinks[0].aggregate:
                raise self.error(
                    ("aggregate",), "an aggregate beside several sinks does not say which one it is for",
                    hint="write the aggregate into the sink: [[pipelines.NAME.into]] delta = … aggregate = …",
                )  # fmt: skip
            sinks = [replace(sinks[0], aggregate=self._aggregate(self.table["aggregate"], ("aggregate",)))]
        return tuple(sinks)

    def _sink(self, table: dict[str, Any], at: Keys) -> Sink:
        kinds = get_args(Kind)
        self._only(table, at, (*kinds, "select", "where", "aggregate", "partition_by", "key", "format"))
        named = [name for name in table if name in kinds]
        if len(named) != 1:
            raise self.error(at, f"a sink names {len(named) or 'no'} places", hint=f"one of {', '.join(kinds)}")
        kind = cast(Kind, named[0])
        target = table[kind]
        if kind == "console":
            target = "console"
        if not isinstance(target, str) or not target:
            raise self.error((*at, kind), f"{kind} is {target!r}", hint="a path or a name, as text")
        shape = table.get("format", "json")
        if shape not in ("json", "avro") or ("format" in table and kind != "topic"):
            raise self.error((*at, "format"), f"format is {shape!r}", hint="json or avro, of a topic")
        for key, owners in (("key", ("topic",)), ("partition_by", ("delta", "parquet"))):
            if key in table and kind not in owners:
                raise self.error((*at, key), f"{key} belongs to a {' or '.join(owners)}", hint=f"the sink is a {kind}")
        return Sink(
            kind, target,
            select=self._expressions(self._table(table.get("select", {}), (*at, "select")), (*at, "select")),
            where=self._text(table, (*at, "where")),
            aggregate=self._aggregate(table["aggregate"], (*at, "aggregate")) if "aggregate" in table else None,
            partition_by=self._words(table.get("partition_by", ()), (*at, "partition_by")),
            key=self._text(table, (*at, "key")), format=shape,
        )  # fmt: skip

    def _aggregate(self, given: Any, at: Keys) -> Aggregate:
        table = self._table(given, at)
        self._only(table, at, ("by", "values", "window", "slide", "session", "mode", "python"))
        by = self._words(table.get("by", ()), (*at, "by"))
        step = self._step(at, table) if "python" in table else None
        mode: Mode = table.get("mode", "recompute" if step else "merge")
        if mode not in get_args(Mode):
            raise self.error((*at, "mode"), f"unknown mode {mode!r}", hint=f"one of {', '.join(get_args(Mode))}")
        values = self._expressions(self._table(table.get("values", {}), (*at, "values")), (*at, "values"))
        if not values and step is None:
            raise self.error(at, "the aggregate has no values", hint='values = { revenue = "sum(total)" }')
        return Aggregate(by, values, self._window(table, at), mode, step)

    def _window(self, table: dict[str, Any], at: Keys) -> Window | None:
        spans = {key: self._span(table, (*at, key)) for key in ("window", "slide", "session")}
        if spans["session"]:
            if spans["window"]:
                raise self.error((*at, "session"), "window and session exclude each other")
            return Window(spans["session"], session=True)
        if spans["slide"] and not spans["window"]:
            raise self.error((*at, "slide"), "slide needs a window")
        return Window(spans["window"], spans["slide"]) if spans["window"] else None

    def _deduplicate(self) -> Deduplicate | None:
        given = self.table.get("deduplicate")
        if given is None:
            return None
        table = given if isinstance(given, dict) else {"by": given}
        self._only(table, ("deduplicate",), ("by", "within"))
        by = self._words(table.get("by", ()), ("deduplicate", "by"))
        return Deduplicate(by, self._span(table, ("deduplicate", "within")))

    def _dead_letters(self) -> DeadLetters | None:
        given = self.table.get("dead_letters")
        if given is None:
            return None
        table = {"topic": given} if isinstance(given, str) else self._table(given, ("dead_letters",))
        self._only(table, ("dead_letters",), ("topic", "table"))
        if len(table) != 1:
            raise self.error(("dead_letters",), "dead letters go to one place", hint='"TOPIC" or { table = "FOLDER" }')
        ((kind, target),) = table.items()
        if not isinstance(target, str) or not target:
            raise self.error(("dead_letters",), f"the {kind} is {target!r}", hint="a topic or a folder, as text")
        return DeadLetters(cast(Literal["topic", "table"], kind), target)

    def _trigger(self) -> Trigger:
        given = self.table.get("trigger", "once")
        if given in ("once", "realtime"):
            return Trigger(given)
        return Trigger("every", span_s(str(self._span(self.table, ("trigger",)))))

    # -- kinds of value ----------------------------------------------------------------------------------------------

    def error(self, path: Keys, problem: str, *, why: str | None = None, hint: str | None = None) -> Any:
        where = place(self.file, ("pipelines", self.name, *path))
        return ConfigError(f"{where}: {problem}", why=why, hint=hint)

    def _only(self, table: Mapping[str, Any], path: Keys, known: tuple[str, ...]) -> None:
        for key in table:
            if key not in known:
                raise unknown_key(self.file, ("pipelines", self.name, *path, key), known)

    def _table(self, given: Any, path: Keys) -> dict[str, Any]:
        if not isinstance(given, dict):
            raise self.error(path, f"{_dotted(path) or self.name} is {given!r}", hint="a table is expected")
        return given

    def _text(self, table: Mapping[str, Any], path: Keys) -> str | None:
        """The last part of the path is the key in the table."""
        given = table.get(str(path[-1]))
        if given is not None and not isinstance(given, str):
            raise self.error(path, f"{_dotted(path)} is {given!r}", hint="text is expected")
        return given

    def _words(self, given: Any, path: Keys, hint: str = "a column, or a list of columns") -> tuple[str, ...]:
        words = (given,) if isinstance(given, str) else given
        if not isinstance(words, list | tuple) or not all(isinstance(word, str) and word for word in words):
            raise self.error(path, f"{_dotted(path)} is {given!r}", hint=f"{hint} is expected, as text")
        if len(set(words)) < len(words):
            raise self.error(path, f"{_dotted(path)} names something twice: {', '.join(words)}")
        return tuple(words)

    def _expressions(self, given: Mapping[str, Any], path: Keys) -> dict[str, str]:
        for name, expression in given.items():
            if not isinstance(expression, str) or not expression.strip():
                raise self.error(
                    (*path, name), f"{_dotted((*path, name))} is {expression!r}", hint="a SQL expression, as text"
                )
            if any(part.strip().startswith("_") for part in name.split(",")):
                raise self.error(
                    (*path, name), f"{_dotted((*path, name))} begins with an underscore",
                    why="such names are the record's own: _topic, _partition, _offset, _timestamp, _key, _headers",
                )  # fmt: skip
        return dict(given)

    def _whole(self, key: str, default: int) -> int:
        given = self.table.get(key, default)
        if not isinstance(given, int) or isinstance(given, bool) or given < 1:
            raise self.error((key,), f"{key} is {given!r}", hint="a whole number above 0 is expected")
        return given

    def _span(self, table: Mapping[str, Any], path: Keys) -> str | None:
        """The last part of the path is the key in the table."""
        given = table.get(str(path[-1]))
        if given is None:
            return None
        try:
            span_s(str(given))
        except ValueError as error:
            raise self.error(path, f"{_dotted(path)}: {error}") from None
        return str(given)

    def _properties(self, table: Mapping[str, Any], path: Keys) -> dict[str, str]:
        """The last part of the path is the key in the table."""
        given = self._table(table.get(str(path[-1]), {}), path)
        for name, value in _flat(given):
            if isinstance(value, list):
                raise self.error((*path, name), f"{name} is {value!r}", hint='text is expected: "one,two"')
        return {name: _plain(value) for name, value in _flat(given)}

    def _step(self, path: Keys, table: Mapping[str, Any]) -> Step:
        """`{ python = "module:function" }`: the module lies beside headrace.toml, or is installed."""
        named = str(table.get("python", ""))
        module, _, function = named.partition(":")
        if not module or not function:
            raise self.error(path, f"python is {named!r}", hint='"module:function" is expected')
        return load_step(self.file.parent, module, function, self.error(path, f"{named} cannot be loaded"))


def load_step(folder: Path, module: str, function: str, error: ConfigError) -> Step:
    """The function of that module, looked for in the folder first."""
    import importlib
    import sys

    sys.path.insert(0, str(folder))
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as cause:
        raise ConfigError(error.problem, why=f"{type(cause).__name__}: {cause}") from cause
    finally:
        sys.path.remove(str(folder))
    if not callable(found):
        raise ConfigError(error.problem, why=f"{function} is no function")
    step: Step = found
    return step


def check(declaration: Declaration) -> None:
    """What is said holds together."""
    _check_places(declaration)
    for sink in declaration.sinks:
        _check_sink(declaration, sink)
    if declaration.deduplicate and not declaration.deduplicate.by:
        raise declaration.wrong(
            "deduplicate names no column", "deduplicate", why="all rows would be the same",
            hint='deduplicate = ["id"]: rows with the same id are the same',
        )  # fmt: skip
    if declaration.watermark and not declaration.event_time:
        raise declaration.wrong("a watermark needs event_time", "watermark", hint='event_time = "COLUMN"')
    if declaration.trigger.kind == "realtime":
        _check_realtime(declaration)


def _check_places(declaration: Declaration) -> None:
    """Each thing that is written is written once, and not read."""
    letters = declaration.dead_letters
    outputs: list[tuple[Keys, str, str]] = [
        ((*declaration.path_of(sink), sink.kind), sink.kind, sink.target) for sink in declaration.sinks
    ]
    if letters is not None:
        outputs.append((("dead_letters",), letters.kind, letters.target))
    known: dict[str, str] = {}
    for at, kind, target in outputs:
        if kind == "topic" and target in declaration.topics:
            raise declaration.wrong(
                f"the topic {target} is read and written", *at,
                why="what the pipeline writes it would read again, for ever", hint=f'another topic: "{target}.out"',
            )  # fmt: skip
        if target == LETTERS and at[0] == "into":
            raise declaration.wrong(
                f"a sink is called {target}", *at,
                why="the ledger calls those of the pipeline so", hint=f'"./{target}", or another name',
            )  # fmt: skip
        place = declaration.location(kind, target)
        if place in known:
            raise declaration.wrong(
                f"{target} is written twice", *at,
                why=f"it is the same {kind} as {known[place]} above", hint="another name for one of them",
            )  # fmt: skip
        if target in known.values() and at[0] == "into":
            raise declaration.wrong(
                f"two sinks are called {target}", *at,
                why="the ledger knows sinks by their names", hint=f'the folder can be called "./{target}"',
            )  # fmt: skip
        known[place] = target


def _check_sink(declaration: Declaration, sink: Sink) -> None:
    aggregate, at = sink.aggregate, declaration.path_of(sink)
    if aggregate is None:
        return
    if aggregate.mode in {"merge", "recompute"} and sink.kind != "delta":
        raise declaration.wrong(
            f"an aggregate of mode {aggregate.mode} cannot go to a {sink.kind}", *at,
            why="its rows change as more records come", hint="a delta table, or mode = \"watermark\"",
        )  # fmt: skip
    if aggregate.window and not declaration.event_time:
        raise declaration.wrong("windows need event_time", *at, hint='event_time = "COLUMN"')
    if aggregate.mode == "merge" and aggregate.window and aggregate.window.session:
        raise declaration.wrong(
            "session windows cannot be merged", *at,
            why="a late row may join two sessions into one", hint='mode = "watermark" or mode = "recompute"',
        )  # fmt: skip
    if aggregate.mode == "watermark" and not declaration.watermark:
        raise declaration.wrong(
            "mode watermark needs a watermark", *at, hint='event_time = "COLUMN" and watermark = "10 minutes"'
        )
    if aggregate.mode == "watermark" and sink.select and sink.select.get(str(time := declaration.event_time)) != time:
        raise declaration.wrong(
            f"the select of a sink with a watermark does not keep {time}", *at, "select",
            why="lateness is judged by the event time", hint=f'select = {{ {time} = "{time}", … }}',
        )  # fmt: skip
    if aggregate.mode == "recompute":
        _check_recompute(declaration, sink, aggregate)
    if len([s for s in declaration.sinks if s.aggregate and s.aggregate.mode == "watermark"]) > 1:
        raise declaration.wrong("only one sink can have an aggregate of mode watermark", *at)


def _check_recompute(declaration: Declaration, sink: Sink, aggregate: Aggregate) -> None:
    at = declaration.path_of(sink)
    if not aggregate.by:
        raise declaration.wrong(
            "mode recompute needs by", *at, "aggregate",
            why="the keys that get new rows are computed anew", hint='by = ["COLUMN"]',
        )  # fmt: skip
    if not any(s.kind == "delta" and not s.aggregate for s in declaration.sinks):
        raise declaration.wrong(
            "mode recompute needs the rows themselves", *at,
            why="a key is computed anew from all its rows", hint='another sink before it: delta = "FOLDER" of the rows',
        )  # fmt: skip
    if declaration.path_of(declaration.base) > at:
        raise declaration.wrong(
            f"{sink.target} is computed from the rows in {declaration.base.target}, which is declared below it", *at,
            why="sinks are written in the order in which they are declared", hint="change the order of the two",
        )  # fmt: skip


def _check_realtime(declaration: Declaration) -> None:
    why = "Spark's real-time mode has neither shuffles nor tables: rows go from topic to topic, one by one"
    if any(sink.kind != "topic" or sink.aggregate for sink in declaration.sinks):
        raise declaration.wrong("realtime writes to topics only", "into", why=why, hint='into = { topic = "NAME" }')
    if any(sink.where for sink in declaration.sinks):
        hint = "where beside from and select: rows that it leaves out are counted as filtered"
        raise declaration.wrong("the sink of a realtime pipeline has no where of its own", "into", why=why, hint=hint)
    if any(sink.format != "json" for sink in declaration.sinks):
        raise declaration.wrong("realtime writes JSON", "into", why=why, hint='another trigger, as "1 second"')
    if len(declaration.sinks) > 1:
        raise declaration.wrong("realtime has one sink", "into", why=why)
    if declaration.deduplicate or declaration.watermark:
        raise declaration.wrong("realtime keeps no state", "trigger", why=why, hint='trigger = "1 second"')
    if declaration.dead_letters is None or declaration.dead_letters.kind != "topic":
        hint = f'dead_letters = "{declaration.name}.dead"'
        raise declaration.wrong("realtime needs a topic for its dead letters", "dead_letters", why=why, hint=hint)
    if any(rule.action == "fail" for rule in declaration.rules):
        raise declaration.wrong(
            "a rule with action fail cannot stop a realtime pipeline", "expect",
            why="the record is gone before anybody can object", hint="action dead, or another trigger",
        )  # fmt: skip


def _dotted(path: Keys) -> str:
    return ".".join(part for part in path if isinstance(part, str))


def _plain(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _flat(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """An unquoted a.b = 1 arrives as nested tables."""
    found: list[tuple[str, Any]] = []
    for name, value in table.items():
        found.extend(_flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(prefix + name, value)])
    return found
