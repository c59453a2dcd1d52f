"""A declaration as a document, and what a changed one means for an existing checkpoint.

`declaration.json` in a pipeline's folder is what it was last run with, and the ids of the topics it read. A run
compares it with what is declared now. Most changes apply to new rows, and are reported; some would make a checkpoint or
a table wrong (offsets of topics that are no longer read, state under other keys), and are refused with a way out.
Secrets among the client properties are not stored.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError
from headrace.home import read_json, write_json
from headrace.pipeline.books.folder import PipelineFolder
from headrace.pipeline.declare.declaration import Aggregate, Changes, Declaration, Decode, Join, Lookup, Sink
from headrace.text import short

Document = Mapping[str, Any]

_SECRET = re.compile(r"password|secret|jaas|token|credential|\.key$|keystore\.key|user\.info", re.IGNORECASE)
_HIDDEN = "(not written down)"


@dataclass(frozen=True)
class Change:
    """One difference between two declarations. It is refused if it has a `way_out`: what to do instead."""

    field: str
    old: object
    new: object
    effect: str
    way_out: str | None = None

    @property
    def allowed(self) -> bool:
        return self.way_out is None

    def __str__(self) -> str:
        return f"{self.field} changed: {self.effect}"


@dataclass(frozen=True)
class Remembered:
    """What a pipeline was last run with."""

    declaration: Document
    #: Kafka's id of each topic: another one under the same name is another topic.
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    at: float = 0.0


def remember(folder: PipelineFolder, declaration: Declaration, topic_ids: Mapping[str, str | None]) -> None:
    """`declaration.json` holds what the pipeline is run with now."""
    known = {topic: identity for topic, identity in topic_ids.items() if identity}
    write_json(folder.declaration_file, {"at": time.time(), "topic_ids": known, "declaration": document(declaration)})


def remembered(folder: PipelineFolder) -> Remembered | None:
    """What the pipeline was last run with; None if it never ran."""
    found = read_json(folder.declaration_file)
    if found is None:
        return None
    return Remembered(found.get("declaration") or {}, found.get("topic_ids") or {}, float(found.get("at") or 0))


def check_changes(folder: PipelineFolder, declaration: Declaration) -> list[Change]:
    """What changed since the last run and is allowed; the first change that is not is an error."""
    before = remembered(folder)
    if before is None:
        return []
    changes = compare(before.declaration, document(declaration))
    for change in changes:
        if change.field == "checkpoint" and Path(folder.checkpoint(declaration), "metadata").is_file():
            continue  # it was moved there
        if not change.allowed:
            key = change.field.split(".")[0].split("[")[0]
            raise ConfigError(
                f"{declaration.place(key)}: {change.field} cannot change while the checkpoint stays",
                why=f"{change.effect} (it was {_short(change.old)}, and is {_short(change.new)})",
                hint=change.way_out,
            )
    return changes


def recreated(folder: PipelineFolder, topic_ids: Mapping[str, str | None]) -> list[str]:
    """The topics that are others than at the last run, under the same names. Offsets of before mean nothing in them."""
    before = remembered(folder)
    known = before.topic_ids if before else {}
    return [name for name, now in topic_ids.items() if now and known.get(name) not in (None, now)]


# -- a declaration as a document ---------------------------------------------------------------------------------------


def document(declaration: Declaration) -> dict[str, Any]:
    """The declaration for JSON, with the keys of headrace.toml; Python functions by their names."""
    decode, trigger = declaration.decode, declaration.trigger
    rules = {rule.name: {"rule": rule.condition, "action": rule.action} for rule in declaration.rules}
    dedupe, dead = declaration.deduplicate, declaration.dead_letters
    return {
        "name": declaration.name,
        "from": list(declaration.topics),
        "start": declaration.start,
        "decode": _decode(decode),
        "select": {"python": _name(declaration.select_step)} if declaration.select_step else dict(declaration.select),
        "where": {"python": _name(declaration.where_step)} if declaration.where_step else declaration.where,
        "lookup": [_lookup(lookup) for lookup in declaration.lookups] or None,
        "expect": rules,
        "event_time": declaration.event_time,
        "watermark": declaration.watermark,
        "deduplicate": {"by": list(dedupe.by), "within": dedupe.within} if dedupe else None,
        "into": [_sink(sink) for sink in declaration.sinks],
        "dead_letters": {dead.kind: dead.target} if dead else None,
        "trigger": f"{trigger.seconds:g} seconds" if trigger.kind == "every" else trigger.kind,
        "max_records_per_batch": declaration.max_records_per_batch,
        "spark": _properties(declaration.spark),
        "kafka": _properties(declaration.kafka),
        "checkpoint": declaration.checkpoint,
        **({"join": _join(declaration.join)} if declaration.join else {}),
    }  # fmt: skip


def _decode(decode: Decode) -> dict[str, object]:
    if decode.step:
        return {"python": _name(decode.step)}
    return {
        "format": decode.format, "schema": decode.schema, "reader": decode.reader, "options": dict(decode.options)
    }  # fmt: skip


def _lookup(lookup: Lookup) -> dict[str, object]:
    return {
        lookup.kind: lookup.target, "on": dict(lookup.on), "select": dict(lookup.select),
        "unmatched": lookup.unmatched, "schema": lookup.schema, "decode": _decode(lookup.decode),
    }  # fmt: skip


def _join(join: Join) -> dict[str, object]:
    other = document(join.other)
    rows = {key: other[key] for key in ("decode", "select", "where", "expect", "event_time")}
    return {"topic": join.other.topics[0], "on": list(join.on), "within": join.within, "kind": join.kind, **rows}


def _sink(sink: Sink) -> dict[str, object]:
    return {
        "kind": sink.kind, "target": sink.target, "select": dict(sink.select), "where": sink.where,
        "partition_by": list(sink.partition_by), "key": sink.key, "format": sink.format,
        "aggregate": _aggregate(sink.aggregate) if sink.aggregate else None,
        "changes": _keyed(sink.changes) if sink.changes else None,
        **({"database": sink.database, "keys": list(sink.keys)} if sink.database else {}),
    }  # fmt: skip


def _aggregate(aggregate: Aggregate) -> dict[str, object]:
    window = aggregate.window
    return {
        "mode": aggregate.mode, "by": list(aggregate.by), "values": dict(aggregate.values),
        "window": asdict(window) if window else None, "python": _name(aggregate.step) if aggregate.step else None,
        **({"timers": aggregate.timers} if aggregate.mode == "state" else {}),
    }  # fmt: skip


def _keyed(changes: Changes) -> dict[str, object]:
    return {
        "key": list(changes.key), "sequence": list(changes.sequence), "history": changes.history,
        "delete_when": changes.delete_when,
    }  # fmt: skip


def _name(step: Callable[..., object]) -> str:
    kind = step if hasattr(step, "__qualname__") else type(step)
    return f"{getattr(step, '__module__', '?')}:{kind.__qualname__}"


def _properties(given: Mapping[str, str]) -> dict[str, str]:
    return {name: _HIDDEN if is_secret(name) else value for name, value in given.items()}


def is_secret(name: str) -> bool:
    """Whether the value of such a property is not to be written down."""
    return bool(_SECRET.search(name))


# -- what a change means -----------------------------------------------------------------------------------------------


def compare(old: Document, new: Document) -> list[Change]:
    """Every difference, what it means, and whether the checkpoint can stay."""
    return list(_changes(old, new, new.get("name") or "NAME"))


_FROM_NOW_ON = {
    "start": "no effect: the checkpoint says where to continue (headrace pipeline checkpoint rewind moves it)",
    "decode": "applies to new records",
    "select": "applies to new rows; rows in the tables do not change",
    "where": "applies to new rows; rows that were filtered stay filtered",
    "lookup": "applies to new rows; rows in the tables do not change",
    "expect": "applies to new records (headrace pipeline redrive sends dead letters again)",
    "event_time": "applies to new rows",
    "watermark": "applies to new rows",
    "dead_letters": "applies to new dead letters; earlier ones stay where they are",
    "trigger": "applies from now on",
    "max_records_per_batch": "applies from the next batch on",
    "spark": "applies from now on, except what the checkpoint fixes (such as the shuffle partitions of state)",
    "kafka": "applies from now on",
}


#: What the rows in the state of a join were made by.
_IN_JOIN = {"decode": "rows of before", "select": "rows of before", "event_time": "rows with another event time"}


def _changes(old: Document, new: Document, name: str) -> Iterator[Change]:
    yield from _joins(old, new, name)
    yield from _topics(old, new, name)
    for key, effect in _FROM_NOW_ON.items():
        if old.get(key) != new.get(key):
            yield Change(key, old.get(key), new.get(key), effect)
    yield from _deduplication(old.get("deduplicate"), new.get("deduplicate"), name)
    yield from _sinks(old, new, name)
    if old.get("checkpoint") != new.get("checkpoint"):
        yield Change(
            "checkpoint", old.get("checkpoint"), new.get("checkpoint"),
            "the progress is in the old folder; with the new one everything would be read again",
            f"move the folder there first, or start over (a backup is kept): headrace pipeline checkpoint wipe {name}",
        )  # fmt: skip


def _topics(old: Document, new: Document, name: str) -> Iterator[Change]:
    before, now = sorted(old.get("from") or ()), sorted(new.get("from") or ())
    if gone := ", ".join(topic for topic in before if topic not in now):
        yield Change(
            "from", before, now, f"the checkpoint has offsets of {gone}, and Spark would report its records as lost",
            "declare a pipeline of another name with the new topics, and copy the progress: "
            f"headrace pipeline checkpoint fork {name} NEW_NAME",
        )  # fmt: skip
    if added := ", ".join(topic for topic in now if topic not in before):
        yield Change("from", before, now, f"{added} is read from its beginning")


def _joins(old: Document, new: Document, name: str) -> Iterator[Change]:
    """A join keeps rows of both topics in the checkpoint: what they are must not change under it."""
    before, now = old.get("join"), new.get("join")
    if before is None or now is None:
        if before != now:
            what = "it has no state of a join" if before is None else "it holds rows that wait for partners"
            yield Change("join", before, now, f"the checkpoint is of the old query: {what}", _start_over(name))
        return
    for key in dict.fromkeys((*before, *now)):
        if before.get(key) == now.get(key):
            continue
        if key in {"where", "expect"}:
            yield Change(f"join.{key}", before.get(key), now.get(key), "applies to new records")
        else:
            effect = "the checkpoint holds rows that wait for partners by the old join"
            yield Change(f"join.{key}", before.get(key), now.get(key), effect, _start_over(name))
    for key, what in _IN_JOIN.items():
        if old.get(key) != new.get(key):
            effect = f"the join holds {what} in the checkpoint"
            yield Change(key, old.get(key), new.get(key), effect, _start_over(name))


def _start_over(name: str) -> str:
    return (
        "declare a pipeline of another name that starts at the beginning, or delete progress and state, with a backup: "
        f"headrace pipeline checkpoint wipe {name}"
    )


def _deduplication(before: Document | None, now: Document | None, name: str) -> Iterator[Change]:
    if before and now and before["by"] != now["by"]:
        yield Change(
            "deduplicate", before, now, "the keys seen so far are stored by the old columns",
            f"declare a pipeline of another name: headrace pipeline checkpoint fork {name} NEW_NAME; it starts "
            "without seen keys",
        )  # fmt: skip
    elif before != now:
        effect = "applies to new rows" if before else "applies to new rows; earlier ones are not known"
        yield Change("deduplicate", before, now, effect)


def _sinks(old: Document, new: Document, name: str) -> Iterator[Change]:
    before = {(sink["kind"], sink["target"]): sink for sink in old.get("into") or ()}
    now = {(sink["kind"], sink["target"]): sink for sink in new.get("into") or ()}
    for place in [*(place for place in now if place not in before), *before]:
        was, is_ = before.get(place), now.get(place)
        label = f"into[{place[1]}]"
        if was is not None and is_ is not None:
            yield from _sink_changes(was, is_, label, name)
        elif _is_stateful(was) or _is_stateful(is_):
            yield _other_state(label, was, is_, name)
        elif was is None:
            effect = "it gets new rows; for the earlier ones, declare another pipeline that starts at the beginning"
            yield Change(label, None, is_, effect)
        else:
            yield Change(label, was, None, "it gets no more rows; its rows stay")


def _is_stateful(sink: Document | None) -> bool:
    aggregate = sink.get("aggregate") if sink else None
    return aggregate is not None and aggregate["mode"] in {"watermark", "state"}


def _sink_changes(old: Document, new: Document, label: str, name: str) -> Iterator[Change]:
    if old.get("aggregate") != new.get("aggregate"):
        if _is_stateful(old) or _is_stateful(new):
            yield _other_state(f"{label}.aggregate", old.get("aggregate"), new.get("aggregate"), name)
        else:
            yield from _aggregate_changes(old.get("aggregate"), new.get("aggregate"), f"{label}.aggregate")
    if old.get("changes") != new.get("changes"):
        yield from _keyed_changes(old.get("changes"), new.get("changes"), f"{label}.changes")
    if old.get("partition_by") != new.get("partition_by"):
        yield Change(
            f"{label}.partition_by", old.get("partition_by"), new.get("partition_by"),
            "the existing table is partitioned by other columns", "name another folder for the table; it gets new rows",
        )  # fmt: skip
    for key in ("select", "where", "key", "format", "database", "keys"):
        if old.get(key) != new.get(key):
            yield Change(f"{label}.{key}", old.get(key), new.get(key), "applies to new rows; its rows do not change")


def _aggregate_changes(before: Document | None, now: Document | None, label: str) -> Iterator[Change]:
    if before is None or now is None:
        yield _other_table(label, before, now, "the existing table has other columns")
        return
    keys = [key for key in ("mode", "by", "window") if before[key] != now[key]]
    for key in keys:
        yield _other_table(f"{label}.{key}", before[key], now[key], "the existing table has other keys")
    if keys:
        return
    if now["mode"] == "recompute":
        yield Change(label, before, now, "a key is recomputed when it gets new rows; other keys do not change")
    else:
        why = "new results cannot be added to the existing ones"
        yield _other_table(f"{label}.values", before["values"], now["values"], why)


def _keyed_changes(before: Document | None, now: Document | None, label: str) -> Iterator[Change]:
    if before is None or now is None:
        yield _other_table(
            label, before, now, "the existing table was not written by key" if now else "its rows change"
        )
        return
    for key in ("key", "sequence", "history"):
        if before[key] != now[key]:
            yield _other_table(f"{label}.{key}", before[key], now[key], "the existing rows were chosen by another one")
    if before["delete_when"] != now["delete_when"]:
        effect = "applies to new rows; rows that were deleted stay deleted"
        yield Change(f"{label}.delete_when", before["delete_when"], now["delete_when"], effect)


def _other_table(label: str, old: object, new: object, why: str) -> Change:
    way_out = "name another folder for the table, in a pipeline of another name that starts at the beginning"
    return Change(label, old, new, why, way_out)


def _other_state(label: str, old: object, new: object, name: str) -> Change:
    return Change(
        label, old, new, "Spark's state in the checkpoint belongs to the old aggregate", _start_over(name)
    )  # fmt: skip


def _short(value: object) -> str:
    return "nothing" if value is None else short(str(value), 80)
