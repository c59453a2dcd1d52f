"""What of a declaration does not fit together, found without Spark. Each mistake is an error that names its place."""

from __future__ import annotations

import json
from urllib.parse import parse_qs, urlsplit

from headrace.pipeline.declare.declaration import (
    LETTERS,
    WINDOW,
    Aggregate,
    Changes,
    Declaration,
    Join,
    Keys,
    Sink,
    span_s,
)


def check(declaration: Declaration) -> None:
    """Raise an error if parts of the declaration contradict each other."""
    _check_places(declaration)
    for sink in declaration.sinks:
        _check_sink(declaration, sink)
    if declaration.deduplicate and not declaration.deduplicate.by:
        raise declaration.wrong(
            "deduplicate names no column", "deduplicate", why="all rows would be duplicates",
            hint='deduplicate = ["id"]: rows with the same id are the same',
        )  # fmt: skip
    if declaration.watermark and not declaration.event_time:
        raise declaration.wrong("a watermark needs event_time", "watermark", hint='event_time = "COLUMN"')
    _check_lookups(declaration)
    if declaration.join:
        _check_join(declaration, declaration.join)
    if declaration.trigger.kind == "realtime":
        _check_realtime(declaration)


def _check_places(declaration: Declaration) -> None:
    """Each table and topic is written once, and not read."""
    letters = declaration.dead_letters
    outputs: list[tuple[Keys, str, str]] = [
        ((*declaration.path_of(sink), sink.kind), sink.kind, sink.target) for sink in declaration.sinks
    ]
    if letters is not None:
        outputs.append((("dead_letters",), letters.kind, letters.target))
    known: dict[str, str] = {}
    for at, kind, target in outputs:
        if kind == "topic" and target in declaration.all_topics:
            raise declaration.wrong(
                f"the topic {target} is read and written", *at,
                why="the pipeline would read its own output again, forever", hint=f'another topic: "{target}.out"',
            )  # fmt: skip
        if target == LETTERS and at[0] == "into":
            raise declaration.wrong(
                f"a sink is called {target}", *at,
                why="the ledger uses this name for the dead letters", hint=f'"./{target}", or another name',
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


def _check_lookups(declaration: Declaration) -> None:
    """A batch is seen as a whole, and what is looked up is not what the pipeline itself writes."""
    written = {declaration.location(sink.kind, sink.target) for sink in declaration.sinks}
    if letters := declaration.dead_letters:
        written.add(declaration.location(letters.kind, letters.target))
    for at, lookup in enumerate(declaration.lookups):
        if declaration.location(lookup.kind, lookup.target) in written:
            raise declaration.wrong(
                f"the pipeline looks up {lookup.target}, which it writes", "lookup", at, lookup.kind,
                why="what a row becomes would depend on how records are cut into batches",
                hint="another pipeline that writes it, or reads it",
            )  # fmt: skip
        if lookup.decode.format == "debezium":
            raise declaration.wrong(
                "a lookup does not read events of Debezium", "lookup", at, "decode",
                why="an event may be a deletion, and still have the row that is gone",
                hint="a pipeline with `changes` writes them to a Delta table, which can be looked up",
            )  # fmt: skip
        streaming = declaration.streaming_aggregate
        if declaration.trigger.kind == "realtime" or streaming is not None:
            mode = "realtime" if streaming is None else f"an aggregate of mode {streaming.mode}"
            raise declaration.wrong(
                f"a lookup does not go together with {mode}", "lookup", at,
                why="a lookup is made once for a whole batch, and such rows are not seen as a batch",
                hint='trigger = "1 second"' if mode == "realtime" else 'mode = "merge" or mode = "recompute"',
            )  # fmt: skip


def _check_sink(declaration: Declaration, sink: Sink) -> None:
    if sink.changes is not None:
        _check_changes(declaration, sink, sink.changes)
    if sink.kind == "postgres":
        _check_database(declaration, sink)
    if sink.aggregate is not None:
        _check_aggregate(declaration, sink, sink.aggregate)


def _check_aggregate(declaration: Declaration, sink: Sink, aggregate: Aggregate) -> None:
    at = declaration.path_of(sink)
    if aggregate.mode in {"merge", "recompute"} and not sink.type.replaces:
        raise declaration.wrong(
            f"an aggregate of mode {aggregate.mode} cannot go to a {sink.kind}", *at,
            why="its rows change as more records come",
            hint="a delta table, a table of PostgreSQL, or mode = \"watermark\"",
        )  # fmt: skip
    if sink.kind == "postgres" and aggregate.mode != "state":
        _check_aggregate_key(declaration, sink, aggregate)
    if aggregate.mode == "state" or isinstance(aggregate.step, type):
        _check_state(declaration, sink, aggregate)
    if aggregate.window and not declaration.event_time:
        raise declaration.wrong("windows need event_time", *at, hint='event_time = "COLUMN"')
    if aggregate.mode == "merge" and aggregate.window and aggregate.window.session:
        raise declaration.wrong(
            "session windows cannot be merged", *at,
            why="a late row may join two sessions into one", hint='mode = "watermark" or mode = "recompute"',
        )  # fmt: skip
    if aggregate.has_watermark and not declaration.watermark:
        other = ', or timers = "processing time"' if aggregate.mode == "state" else ""
        raise declaration.wrong(
            f"mode {aggregate.mode} needs a watermark", *at,
            hint=f'event_time = "COLUMN" and watermark = "10 minutes"{other}',
        )  # fmt: skip
    if aggregate.has_watermark and sink.select and sink.select.get(str(time := declaration.event_time)) != time:
        raise declaration.wrong(
            f"the select of a sink with a watermark does not keep {time}", *at, "select",
            why="lateness is judged by the event time", hint=f'select = {{ {time} = "{time}", … }}',
        )  # fmt: skip
    if aggregate.mode == "recompute":
        _check_recompute(declaration, sink, aggregate)
    if len([s for s in declaration.sinks if s.aggregate and s.aggregate.is_streaming]) > 1:
        raise declaration.wrong("only one sink can have an aggregate of mode watermark or state", *at)


def _check_state(declaration: Declaration, sink: Sink, aggregate: Aggregate) -> None:
    """What the class must be is seen by Spark (`spark/stateful.py`)."""
    at = (*declaration.path_of(sink), "aggregate")
    if aggregate.mode != "state":
        raise declaration.wrong(
            f"mode {aggregate.mode} takes a function, and python names a class", *at, hint='mode = "state"'
        )
    if aggregate.step is None or aggregate.values or aggregate.window:
        raise declaration.wrong(
            "mode state needs a class, and nothing beside it", *at,
            why="what it keeps and computes is up to the class", hint='python = "module:Class", by = ["COLUMN"]',
        )  # fmt: skip
    if not aggregate.by:
        raise declaration.wrong("mode state needs by", *at, why="state is kept per key", hint='by = ["COLUMN"]')
    if declaration.deduplicate:
        raise declaration.wrong(
            "deduplicate does not go together with mode state", "deduplicate",
            why="duplicates are found in a whole batch, and the class sees rows before that",
            hint="deduplicate in a pipeline before, into a topic",
        )  # fmt: skip


def _check_aggregate_key(declaration: Declaration, sink: Sink, aggregate: Aggregate) -> None:
    """The key of a table in PostgreSQL says which row is replaced when the aggregate changes."""
    at, window = declaration.path_of(sink), WINDOW if aggregate.window else ()
    whole = [*aggregate.by, *window[:1]]
    hint = f"key = {json.dumps(whole)}" if whole else 'by = ["COLUMN"], and key = ["COLUMN"]'
    if not sink.keys and not aggregate.is_streaming:
        raise declaration.wrong(
            f"an aggregate of mode {aggregate.mode} in PostgreSQL needs a key", *at,
            why="its rows change as more records come: by the key, the row to update is found", hint=hint,
        )  # fmt: skip
    # With window functions, or Python, a group has several rows, and other columns that tell them apart.
    by_groups = aggregate.mode == "merge" or (aggregate.step is None and not aggregate.has_window_functions)
    missing = [name for name in aggregate.by if name not in sink.keys]
    more = [name for name in sink.keys if name not in {*aggregate.by, *window}]
    if sink.keys and (missing or (by_groups and (more or (window and not {*window} & {*sink.keys})))):
        raise declaration.wrong(
            f"the key of {sink.name} is not that of the aggregate", *at, "key",
            why=f"there is a row for each {' and '.join([*aggregate.by, *(['window'] if window else [])])}", hint=hint,
        )  # fmt: skip


def _check_changes(declaration: Declaration, sink: Sink, changes: Changes) -> None:
    at = declaration.path_of(sink)
    if sink.aggregate is not None:
        raise declaration.wrong(
            "a sink has either an aggregate or changes", *at,
            why="both say what the rows of the table are", hint="declare a table for each",
        )  # fmt: skip
    if not changes.key:
        raise declaration.wrong("changes need a key", *at, hint='key = ["id"]: the table has one row for each id')
    if changes.history and not changes.sequence:
        raise declaration.wrong(
            "a history needs a sequence", *at,
            why="versions are valid from their sequence to the next one", hint='sequence = ["ts_ms", "lsn"]',
        )  # fmt: skip


def _check_database(declaration: Declaration, sink: Sink) -> None:
    """The address can be shown to anybody; none of these errors repeats it."""
    at = (*declaration.path_of(sink), "postgres")
    try:
        address = urlsplit(sink.database)
    except ValueError:  # of a host in brackets
        raise declaration.wrong("the address of the database cannot be read", *at) from None
    if address.scheme not in {"postgresql", "postgres"}:
        raise declaration.wrong(
            "the address of the database does not begin with postgresql://", *at,
            hint='postgres = "postgresql://HOST/DATABASE", as psql takes it',
        )  # fmt: skip
    if address.password is not None or {"password", "sslpassword"} & set(parse_qs(address.query)):
        raise declaration.wrong(
            "there is a password in the address of the database", *at,
            why="everyone who can read the file can read the password",
            hint='password_file = "FILE", or ~/.pgpass, PGPASSFILE, PGPASSWORD, as for psql',
        )  # fmt: skip


def _check_recompute(declaration: Declaration, sink: Sink, aggregate: Aggregate) -> None:
    at = declaration.path_of(sink)
    if not aggregate.by:
        raise declaration.wrong(
            "mode recompute needs by", *at, "aggregate",
            why="keys that get new rows are recomputed", hint='by = ["COLUMN"]',
        )  # fmt: skip
    if not any(s.has_every_row for s in declaration.sinks):
        raise declaration.wrong(
            "mode recompute needs the rows themselves", *at,
            why="a key is recomputed from all its rows", hint='another sink before it: delta = "FOLDER" of the rows',
        )  # fmt: skip
    if declaration.path_of(declaration.base) > at:
        raise declaration.wrong(
            f"{sink.target} is computed from the rows in {declaration.base.target}, which is declared below it", *at,
            why="sinks are written in the order in which they are declared", hint="change the order of the two",
        )  # fmt: skip


def _check_realtime(declaration: Declaration) -> None:
    why = "Spark's real-time mode has neither shuffles nor tables: rows go from topic to topic, one by one"
    if any(not sink.type.is_topic or sink.aggregate for sink in declaration.sinks):
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
            why="the record is sent before the run could be stopped", hint="action dead, or another trigger",
        )  # fmt: skip


def _check_join(declaration: Declaration, join: Join) -> None:
    (topic,) = join.other.topics
    if topic in declaration.topics:
        raise declaration.wrong(
            f"the topic {topic} is joined with itself", "join", "topic",
            why="a record would be on both sides, and have two outcomes", hint="join it with another topic",
        )  # fmt: skip
    for key, given in (("event_time", declaration.event_time), ("watermark", declaration.watermark)):
        if given is None:
            raise declaration.wrong(
                f"a join needs {key}", "join",
                why="rows wait for partners until event time has passed them",
                hint='event_time = "COLUMN" and watermark = "10 minutes", beside from',
            )  # fmt: skip
    if span_s(join.within) <= 0:
        raise declaration.wrong(f"within is {join.within}", "join", "within", hint='within = "20 minutes"')
    if declaration.start.lstrip().startswith("{"):
        raise declaration.wrong(
            "a join cannot start at given offsets",
            "start",
            hint='"beginning", "end", or a time; both topics start there',
        )
    streaming = declaration.streaming_aggregate
    unfit = [
        ("deduplicate", declaration.deduplicate is not None, "a join cannot follow deduplicate",
         "deduplicate in a pipeline before, into a topic"),
        ("lookup", bool(declaration.lookups), "a lookup does not go together with a join",
         "look up in a pipeline before, into a topic"),
        ("into", any(sink.changes for sink in declaration.sinks), "changes by key cannot follow a join",
         "join into a topic, and take the changes from there"),
        ("into", streaming is not None, f"an aggregate of mode {streaming and streaming.mode} cannot follow a join",
         'mode = "merge" or mode = "recompute"'),
        ("trigger", declaration.trigger.kind == "realtime", "realtime keeps no state, and a join does",
         'trigger = "1 second"'),
    ]  # fmt: skip
    for key, is_so, problem, hint in unfit:
        if is_so:
            raise declaration.wrong(problem, key, hint=hint)
