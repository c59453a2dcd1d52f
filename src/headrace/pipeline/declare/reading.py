"""A `[pipelines.NAME]` table of headrace.toml, read into a `Declaration`; a `[views.NAME]` table, into a `View`.

Unknown keys and values of a wrong type are errors that name the line of the file. Whether the parts fit together is
checked by `checks.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

from headrace.config import place, read_document, unknown_key
from headrace.errors import ConfigError, NotFound
from headrace.pipeline.declare.checks import check
from headrace.pipeline.declare.declaration import (
    DEBEZIUM_DELETES,
    Action,
    Aggregate,
    Changes,
    DeadLetters,
    Declaration,
    Decode,
    Deduplicate,
    Format,
    Join,
    JoinKind,
    Keys,
    Lookup,
    Mode,
    Rule,
    Sink,
    Step,
    Timers,
    Trigger,
    Unmatched,
    View,
    Window,
    span_s,
)
from headrace.pipeline.declare.sink_kinds import all_keys, kind_names, sink_kind


def declared(file: Path) -> tuple[str, ...]:
    """The names of the pipelines in the file."""
    return tuple(read_document(file).get("pipelines", {}))


def read(file: Path, name: str) -> Declaration:
    """The declaration of that pipeline."""
    tables = read_document(file).get("pipelines", {})
    if name not in tables:
        raise _no_such(file, name, tuple(tables))
    declaration = _Reader(file, name, tables[name]).read()
    check(declaration)
    return declaration


def declared_views(file: Path) -> tuple[str, ...]:
    """The names of the views in the file."""
    return tuple(read_document(file).get("views", {}))


def read_view(file: Path, name: str) -> View:
    """The declaration of that view; whether its tables exist is not known yet."""
    return _Reader(file, name, read_document(file)["views"][name], section="views").read_view()


def _no_such(file: Path, name: str, known: tuple[str, ...]) -> NotFound:
    near = difflib.get_close_matches(name, known, n=1)
    if name in declared_views(file):
        return NotFound(
            f"{name} is a view, not a pipeline", why="a view has neither records nor a checkpoint of its own",
            hint=f"headrace pipeline run {name}, explain, ledger, status and refresh",
        )  # fmt: skip
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


class _Reader:
    """Reads one table, key by key; every error names the line."""

    def __init__(self, file: Path, name: str, table: object, section: str = "pipelines", at: Keys = ()) -> None:
        self.file = file
        self.name = name
        self.section = section
        self.at = at
        self.table = self._table(table, ())

    def read(self) -> Declaration:
        known = (
            "from", "start", "decode", "select", "where", "lookup", "expect", "event_time", "watermark",
            "deduplicate", "aggregate", "into", "dead_letters", "trigger", "max_records_per_batch", "spark", "kafka",
            "checkpoint", "join",
        )  # fmt: skip
        self._only(self.table, (), known)
        for needed in ("from", "into"):
            if needed not in self.table:
                raise self._error((), f"{needed} is missing", hint='from = "TOPIC" and into = { delta = "FOLDER" }')
        if isinstance(self.table["from"], dict):
            raise self._error(
                ("from",), "a pipeline reads topics", why="a table is read by a view, which follows its changes",
                hint='[views.NAME] with sql = "select … from TABLE" and key = ["COLUMN"]',
            )  # fmt: skip
        if self.table["from"] == []:
            raise self._error(("from",), "from names no topic", hint='from = "TOPIC"')
        return Declaration(
            name=self.name,
            topics=self._words(self.table["from"], ("from",), "a topic, or a list of topics"),
            start=str(self.table.get("start", "beginning")),
            **self._rows(),
            lookups=self._lookups(),
            join=self._join(),
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

    def read_view(self) -> View:
        self._only(self.table, (), ("sql", "key", "into", "partition_by"))
        sql = self._text(self.table, ("sql",)) or ""
        if not sql.strip():
            raise self._error(("sql",), "sql is missing", hint='sql = "select … from TABLE"')
        if not (key := self._words(self.table.get("key", ()), ("key",))):
            raise self._error(
                ("key",), "key is missing", why="rows of a view are replaced by their key", hint='key = ["COLUMN"]'
            )
        into = self._text(self.table, ("into",)) or f"tables/{self.name}"
        partition_by = self._words(self.table.get("partition_by", ()), ("partition_by",))
        return View(self.name, sql.strip().rstrip(";"), key, into, partition_by, self.file)

    # -- the parts ---------------------------------------------------------------------------------------------------

    def _own_decode(self) -> Decode:
        return self._decode(self.table.get("decode", "text"), ("decode",))

    def _rows(self) -> dict[str, Any]:
        """How records become rows: the same for both sides of a join."""
        (select, select_step), where = self._select(), self.table.get("where")
        return {
            "decode": self._own_decode(), "select": select, "select_step": select_step,
            "where": None if isinstance(where, dict) else self._text(self.table, ("where",)),
            "where_step": self._step(("where",), where) if isinstance(where, dict) else None,
            "rules": self._rules(), "event_time": self._text(self.table, ("event_time",)),
        }  # fmt: skip

    def _join(self) -> Join | None:
        if "join" not in self.table:
            return None
        return _Reader(self.file, self.name, self._table(self.table["join"], ("join",)), at=("join",)).join()

    def join(self) -> Join:
        """The table as a join."""
        known = ("topic", "on", "within", "kind", "decode", "select", "where", "expect", "event_time")
        self._only(self.table, (), known)
        for needed in ("topic", "on", "within"):
            if not self.table.get(needed):
                hint = 'join = { topic = "TOPIC", on = ["COLUMN"], within = "20 minutes" }'
                raise self._error((), f"{needed} is missing", hint=hint)
        kind: JoinKind = self._choice(self.table, "kind", get_args(JoinKind), "inner", ())
        topic = self._text(self.table, ("topic",))
        assert topic is not None
        other = Declaration(self.name, (topic,), (), **self._rows(), file=self.file, part=self.at)
        on = self._words(self.table["on"], ("on",))
        return Join(other, on, str(self._span(self.table, ("within",))), kind)

    def _decode(self, given: object, at: Keys) -> Decode:
        if isinstance(given, str):
            given = {given: None}
        table = self._table(given, at)
        if "python" in table:
            return Decode(step=self._step(at, table))
        formats = get_args(Format)
        self._only(table, at, (*formats, "options", "reader", "python"))
        kind = cast(Format, self._only_one(table, formats, at, "decode names {} formats"))
        schema = table[kind]
        if kind in {"json", "csv"} and not isinstance(schema, str):
            raise self._error(
                at, f"{kind} needs to know the fields",
                hint=f'decode = {{ {kind} = "id long, name string" }}, in Spark\'s DDL',
            )  # fmt: skip
        if schema is not None and not isinstance(schema, str):
            raise self._error((*at, kind), f"{kind} is {schema!r}", hint="a subject of the registry, as text")
        return Decode(kind, schema, self._properties(table, (*at, "options")), self._text(table, (*at, "reader")))

    def _select(self) -> tuple[dict[str, str], Step | None]:
        given = self._table(self.table.get("select", {}), ("select",))
        if set(given) == {"python"}:
            return {}, self._step(("select",), given)
        return self._expressions(given, ("select",)), None

    def _lookups(self) -> tuple[Lookup, ...]:
        given = self.table.get("lookup", [])
        listed = given if isinstance(given, list) else [given]
        return tuple(self._lookup(entry, ("lookup", at)) for at, entry in enumerate(listed))

    def _lookup(self, given: object, at: Keys) -> Lookup:
        table = self._table(given, at)
        self._only(table, at, ("table", "topic", "on", "select", "unmatched", "schema", "decode"))
        kind = self._only_one(table, ("table", "topic"), at, "a lookup names {} places")
        target = table[kind]
        if not isinstance(target, str) or not target:
            raise self._error((*at, kind), f"{kind} is {target!r}", hint="a path or a name, as text")
        other = "schema" if kind == "topic" else "decode"
        if other in table:
            fields = '"id long, name string"'
            hint = f"decode = {{ json = {fields} }}" if kind == "topic" else f"schema = {fields}, for a CSV file"
            raise self._error((*at, other), f"{other} does not belong to a {kind}", hint=hint)
        select = self._expressions(self._table(table.get("select", {}), (*at, "select")), (*at, "select"))
        if not select:
            raise self._error(at, "the lookup selects nothing", hint='select = { borough = "borough" }')
        return Lookup(
            cast(Literal["table", "topic"], kind), target, self._key(table, (*at, "on")), select,
            unmatched=self._choice(table, "unmatched", get_args(Unmatched), "null", at),
            schema=self._text(table, (*at, "schema")),
            decode=self._decode(table.get("decode", "text"), (*at, "decode")),
        )  # fmt: skip

    def _key(self, table: Mapping[str, object], at: Keys) -> dict[str, str]:
        """`["zone"]`: the same name here and there; or `{ zone = "LocationID" }`: a column here, SQL of that there."""
        given = table.get("on")
        if isinstance(given, dict):
            on = {name: text for name, text in given.items() if isinstance(text, str) and text.strip()}
            if len(on) < len(given):
                raise self._error(at, f"on is {given!r}", hint='{ zone = "LocationID" }: a column here, one there')
        else:
            on = {name: f"`{name}`" for name in self._words(given or (), at)}
        if not on:
            raise self._error(at[:-1], "the lookup has no key", hint='on = ["zone"], or on = { zone = "LocationID" }')
        return on

    def _rules(self) -> tuple[Rule, ...]:
        rules = []
        for name, given in self._table(self.table.get("expect", {}), ("expect",)).items():
            table = {"rule": given} if isinstance(given, str) else self._table(given, ("expect", name))
            self._only(table, ("expect", name), ("rule", "action"))
            if not isinstance(table.get("rule"), str):
                raise self._error(("expect", name), f"expectation {name!r} has no rule", hint='"name" = "amount > 0"')
            action = self._choice(table, "action", get_args(Action), "dead", ("expect", name))
            rules.append(Rule(name, table["rule"], action))
        return tuple(rules)

    def _sinks(self) -> tuple[Sink, ...]:
        given = self.table["into"]
        listed = given if isinstance(given, list) else [given]
        if not listed:
            raise self._error(("into",), "into names no sink")
        sinks = [self._sink(self._table(entry, ("into", at)), ("into", at)) for at, entry in enumerate(listed)]
        if "aggregate" in self.table:
            if len(sinks) != 1 or sinks[0].aggregate:
                raise self._error(
                    ("aggregate",), "an aggregate beside several sinks does not say which one it is for",
                    hint="write the aggregate into the sink: [[pipelines.NAME.into]] delta = … aggregate = …",
                )  # fmt: skip
            sinks = [replace(sinks[0], aggregate=self._aggregate(self.table["aggregate"], ("aggregate",)))]
        return tuple(sinks)

    def _sink(self, table: dict[str, object], at: Keys) -> Sink:
        kinds = kind_names(table)
        self._only(table, at, (*kinds, "select", "where", "aggregate", *all_keys()))
        kind = self._only_one(table, kinds, at, "a sink names {} places")
        target = table[kind] if sink_kind(kind).has_target else kind
        if not isinstance(target, str) or not target:
            raise self._error((*at, kind), f"{kind} is {target!r}", hint="a path or a name, as text")
        shape = self._choice(table, "format", ("json", "avro"), "json", at)
        for key in all_keys():
            if key in table and key not in sink_kind(kind).keys:
                owners = " or ".join(name for name in kinds if key in sink_kind(name).keys)
                raise self._error((*at, key), f"{key} belongs to a {owners}", hint=f"the sink is a {kind}")
        if kind == "postgres":
            database, target = target, self._table_name(table, at)
        return Sink(
            kind, target,
            select=self._expressions(self._table(table.get("select", {}), (*at, "select")), (*at, "select")),
            where=self._text(table, (*at, "where")),
            aggregate=self._aggregate(table["aggregate"], (*at, "aggregate")) if "aggregate" in table else None,
            changes=self._changes(table, at),
            partition_by=self._words(table.get("partition_by", ()), (*at, "partition_by")),
            key=self._text(table, (*at, "key")) if kind != "postgres" else None, format=shape,
            database=database if kind == "postgres" else "",
            keys=self._words(table.get("key", ()), (*at, "key")) if kind == "postgres" else (),
            password_file=self._text(table, (*at, "password_file")),
        )  # fmt: skip

    def _changes(self, sink: dict[str, object], at: Keys) -> Changes | None:
        """`changes`, or `upsert`: the same without deletes and history."""
        kinds = [kind for kind in ("changes", "upsert") if kind in sink]
        if len(kinds) == 2:
            raise self._error((*at, "upsert"), "a sink has either changes or upsert", hint="changes can also delete")
        if not kinds:
            return None
        path = (*at, kinds[0])
        table = self._table(sink[kinds[0]], path)
        more = ("delete_when", "history") if kinds[0] == "changes" else ()
        self._only(table, path, ("key", "sequence", *more))
        history = table.get("history", False)
        if not isinstance(history, bool):
            raise self._error((*path, "history"), f"history is {history!r}", hint="true or false is expected")
        # Each change of Debezium's says what it is.
        said = DEBEZIUM_DELETES if kinds[0] == "changes" and self._own_decode().format == "debezium" else None
        return Changes(
            self._words(table.get("key", ()), (*path, "key")),
            self._words(table.get("sequence", ()), (*path, "sequence"), "an SQL expression, or a list of them"),
            self._text(table, (*path, "delete_when")) or said, history,
        )  # fmt: skip

    def _table_name(self, table: dict[str, object], at: Keys) -> str:
        name = self._text(table, (*at, "table"))
        if not name:
            raise self._error(
                at,
                "a postgres sink needs a table",
                hint='into = { postgres = "postgresql://HOST/DATABASE", table = "NAME" }',
            )
        return name

    def _aggregate(self, given: object, at: Keys) -> Aggregate:
        table = self._table(given, at)
        self._only(table, at, ("by", "values", "window", "slide", "session", "mode", "python", "timers"))
        by = self._words(table.get("by", ()), (*at, "by"))
        step = self._step(at, table) if "python" in table else None
        default = "state" if isinstance(step, type) else "recompute" if step else "merge"
        mode: Mode = self._choice(table, "mode", get_args(Mode), default, at)
        values = self._expressions(self._table(table.get("values", {}), (*at, "values")), (*at, "values"))
        if not values and step is None:
            raise self._error(at, "the aggregate has no values", hint='values = { revenue = "sum(total)" }')
        timers: Timers = self._choice(table, "timers", get_args(Timers), "event time", at)
        if "timers" in table and mode != "state":
            raise self._error((*at, "timers"), "timers belong to mode state", hint='mode = "state"')
        return Aggregate(by, values, self._window(table, at), mode, step, timers)

    def _window(self, table: dict[str, object], at: Keys) -> Window | None:
        spans = {key: self._span(table, (*at, key)) for key in ("window", "slide", "session")}
        if spans["session"]:
            if spans["window"]:
                raise self._error((*at, "session"), "window and session exclude each other")
            return Window(spans["session"], session=True)
        if spans["slide"] and not spans["window"]:
            raise self._error((*at, "slide"), "slide needs a window")
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
            raise self._error(("dead_letters",), "dead letters go to one place", hint='"TOPIC" or { table = "FOLDER" }')
        ((kind, target),) = table.items()
        if not isinstance(target, str) or not target:
            raise self._error(("dead_letters",), f"the {kind} is {target!r}", hint="a topic or a folder, as text")
        return DeadLetters(cast(Literal["topic", "table"], kind), target)

    def _trigger(self) -> Trigger:
        given = self.table.get("trigger", "once")
        if given in ("once", "realtime"):
            return Trigger(given)
        return Trigger("every", span_s(str(self._span(self.table, ("trigger",)))))

    # -- kinds of value ----------------------------------------------------------------------------------------------

    def _error(self, path: Keys, problem: str, *, why: str | None = None, hint: str | None = None) -> ConfigError:
        where = place(self.file, (self.section, self.name, *self.at, *path))
        return ConfigError(f"{where}: {problem}", why=why, hint=hint)

    def _only(self, table: Mapping[str, object], path: Keys, known: tuple[str, ...]) -> None:
        for key in table:
            if key not in known:
                raise unknown_key(self.file, (self.section, self.name, *self.at, *path, key), known)

    def _only_one(self, table: Mapping[str, object], known: tuple[str, ...], path: Keys, problem: str) -> str:
        """The one key of those known that the table has."""
        named = [name for name in table if name in known]
        if len(named) != 1:
            raise self._error(path, problem.format(len(named) or "no"), hint=f"one of {', '.join(known)}")
        return named[0]

    def _choice(self, table: Mapping[str, object], key: str, known: tuple[str, ...], default: str, path: Keys) -> Any:
        given = table.get(key, default)
        if given not in known:
            raise self._error((*path, key), f"unknown {key} {given!r}", hint=f"one of {', '.join(known)}")
        return given

    def _table(self, given: object, path: Keys) -> dict[str, Any]:
        if not isinstance(given, dict):
            raise self._error(path, f"{_dotted(path) or self.name} is {given!r}", hint="a table is expected")
        return given

    def _text(self, table: Mapping[str, object], path: Keys) -> str | None:
        """The last part of the path is the key in the table."""
        given = table.get(str(path[-1]))
        if given is not None and not isinstance(given, str):
            raise self._error(path, f"{_dotted(path)} is {given!r}", hint="text is expected")
        return given

    def _words(self, given: object, path: Keys, hint: str = "a column, or a list of columns") -> tuple[str, ...]:
        words = (given,) if isinstance(given, str) else given
        if not isinstance(words, list | tuple) or not all(isinstance(word, str) and word for word in words):
            raise self._error(path, f"{_dotted(path)} is {given!r}", hint=f"{hint} is expected, as text")
        if len(set(words)) < len(words):
            raise self._error(path, f"{_dotted(path)} names something twice: {', '.join(words)}")
        return tuple(words)

    def _expressions(self, given: Mapping[str, Any], path: Keys) -> dict[str, str]:
        for name, expression in given.items():
            if not isinstance(expression, str) or not expression.strip():
                raise self._error(
                    (*path, name), f"{_dotted((*path, name))} is {expression!r}", hint="a SQL expression, as text"
                )
            if any(part.strip().startswith("_") for part in name.split(",")):
                raise self._error(
                    (*path, name), f"{_dotted((*path, name))} begins with an underscore",
                    why="such names are the record's own: _topic, _partition, _offset, _timestamp, _key, _headers",
                )  # fmt: skip
        return dict(given)

    def _whole(self, key: str, default: int) -> int:
        given = self.table.get(key, default)
        if not isinstance(given, int) or isinstance(given, bool) or given < 1:
            raise self._error((key,), f"{key} is {given!r}", hint="a whole number above 0 is expected")
        return given

    def _span(self, table: Mapping[str, object], path: Keys) -> str | None:
        """The last part of the path is the key in the table."""
        given = table.get(str(path[-1]))
        if given is None:
            return None
        try:
            span_s(str(given))
        except ValueError as error:
            raise self._error(path, f"{_dotted(path)}: {error}") from None
        return str(given)

    def _properties(self, table: Mapping[str, object], path: Keys) -> dict[str, str]:
        """The last part of the path is the key in the table."""
        properties = dict(_flat(self._table(table.get(str(path[-1]), {}), path)))
        for name, value in properties.items():
            if isinstance(value, list):
                raise self._error((*path, name), f"{name} is {value!r}", hint='text is expected: "one,two"')
            properties[name] = str(value).lower() if isinstance(value, bool) else str(value)
        return properties

    def _step(self, path: Keys, table: Mapping[str, object]) -> Step:
        """`{ python = "module:function" }`: the module is beside headrace.toml, or installed."""
        import importlib
        import sys

        named = str(table.get("python", ""))
        module, _, function = named.partition(":")
        if not module or not function:
            raise self._error(path, f"python is {named!r}", hint='"module:function" is expected')
        folder = str(self.file.parent)
        sys.path.insert(0, folder)
        try:
            found = getattr(importlib.import_module(module), function)
        except Exception as cause:
            why = f"{type(cause).__name__}: {cause}"
            raise self._error(path, f"{named} cannot be loaded", why=why) from cause
        finally:
            sys.path.remove(folder)
        if not callable(found):
            raise self._error(path, f"{named} cannot be loaded", why=f"{function} is not a function")
        return cast(Step, found)


def _dotted(path: Keys) -> str:
    return ".".join(part for part in path if isinstance(part, str))


def _flat(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """An unquoted a.b = 1 arrives as nested tables."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
