"""A declaration as a document, and what a changed one means for a checkpoint that is already there.

`declaration.json` in a pipeline's folder is what it was last run with, and the ids of the topics it read. A run
compares it with what is declared now. Most changes hold for the rows to come, and are told; some would make a
checkpoint or a table wrong (positions in topics that are no longer read, state under other keys), and are refused with
a way out.
Secrets among the client properties are not written down.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import ConfigError
from headrace.home import read_json, write_json
from headrace.pipeline.declaration import Aggregate, Declaration, Sink
from headrace.pipeline.folder import PipelineFolder

Document = Mapping[str, Any]

_SECRET = re.compile(r"password|secret|jaas|token|credential|\.key$|keystore\.key|user\.info", re.IGNORECASE)
_HIDDEN = "(not written down)"


@dataclass(frozen=True)
class Change:
    """One difference between two declarations. `way_out` is told for what is refused."""

    field: str
    old: Any
    new: Any
    allowed: bool
    effect: str
    way_out: str | None = None

    def document(self) -> dict[str, Any]:
        return asdict(self)

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
    """The declaration as JSON can hold it, in the words of headrace.toml; Python functions by their names."""
    decode, trigger = declaration.decode, declaration.trigger
    rules = {rule.name: {"rule": rule.condition, "action": rule.action} for rule in declaration.rules}
    dedupe, dead = declaration.deduplicate, declaration.dead_letters
    return {
        "name": declaration.name,
        "from": list(declaration.topics),
        "start": declaration.start,
        "decode": {"python": _name(decode.step)} if decode.step else {
            "format": decode.format, "schema": decode.schema, "reader": decode.reader, "options": dict(decode.options)
        },
        "select": {"python": _name(declaration.select_step)} if declaration.select_step else dict(declaration.select),
        "where": {"python": _name(declaration.where_step)} if declaration.where_step else declaration.where,
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
    }  # fmt: skip


def _sink(sink: Sink) -> dict[str, Any]:
    return {
        "kind": sink.kind, "target": sink.target, "select": dict(sink.select), "where": sink.where,
        "partition_by": list(sink.partition_by), "key": sink.key, "format": sink.format,
        "aggregate": _aggregate(sink.aggregate) if sink.aggregate else None,
    }  # fmt: skip


def _aggregate(aggregate: Aggregate) -> dict[str, Any]:
    window = aggregate.window
    return {
        "mode": aggregate.mode, "by": list(aggregate.by), "values": dict(aggregate.values),
        "window": asdict(window) if window else None, "python": _name(aggregate.step) if aggregate.step else None,
    }  # fmt: skip


def _name(step: Callable[..., Any]) -> str:
    kind = step if hasattr(step, "__qualname__") else type(step)
    return f"{getattr(step, '__module__', '?')}:{kind.__qualname__}"


def _properties(given: Mapping[str, str]) -> dict[str, str]:
    return {name: _HIDDEN if _SECRET.search(name) else value for name, value in given.items()}


# -- what a change means -----------------------------------------------------------------------------------------------


def compare(old: Document, new: Document) -> list[Change]:
    """Every difference, what it means, and whether the checkpoint can stay."""
    name = new.get("name") or "NAME"
    found = [*_topics(old, new, name)]
    for key, effect in _FROM_NOW_ON.items():
        if old.get(key) != new.get(key):
            found.append(Change(key, old.get(key), new.get(key), True, effect))
    found += [*_deduplication(old, new, name), *_sinks(old, new, name)]
    if old.get("checkpoint") != new.get("checkpoint"):
        found.append(
            Change(
                "checkpoint", old.get("checkpoint"), new.get("checkpoint"), False,
                "progress lies in the old place; at the new one everything would be read again",
                "move the folder to its new place first, or begin anew, with a backup: "
                f"headrace pipeline checkpoint wipe {name}",
            )
        )  # fmt: skip
    return found


_FROM_NOW_ON = {
    "start": "it has no effect: the checkpoint knows where to go on (headrace pipeline checkpoint rewind moves it)",
    "decode": "records are decoded so from now on",
    "select": "rows are made so from now on; those in the tables stay as they are",
    "where": "it holds from now on; rows that were left out stay out",
    "expect": "the rules hold from now on (headrace pipeline redrive tries dead letters again)",
    "event_time": "times are taken from there from now on",
    "watermark": "lateness is judged so from now on",
    "dead_letters": "they go there from now on; the earlier ones stay where they are",
    "trigger": "it runs so from now on",
    "max_records_per_batch": "it holds from the next batch on",
    "spark": "it holds from now on, except what Spark fixed with the checkpoint (such as shuffle partitions of state)",
    "kafka": "it holds from now on",
}


def _topics(old: Document, new: Document, name: str) -> list[Change]:
    before, now = set(old.get("from") or ()), set(new.get("from") or ())
    found = []
    if gone := sorted(before - now):
        found.append(
            Change(
                "from", sorted(before), sorted(now), False,
                f"the checkpoint knows how far {', '.join(gone)} was read, and Spark would take it for lost",
                "declare a pipeline of another name with the new topics, and take the progress over: "
                f"headrace pipeline checkpoint fork {name} NEW_NAME",
            )
        )  # fmt: skip
    if added := sorted(now - before):
        found.append(
            Change("from", sorted(before), sorted(now), True, f"{', '.join(added)} is read from its beginning")
        )
    return found


def _deduplication(old: Document, new: Document, name: str) -> list[Change]:
    before, now = old.get("deduplicate"), new.get("deduplicate")
    if before == now:
        return []
    if before and now and before["by"] != now["by"]:
        return [
            Change(
                "deduplicate", before, now, False, "what was seen is remembered by the old columns",
                f"declare a pipeline of another name: headrace pipeline checkpoint fork {name} NEW_NAME; it remembers "
                "anew what it has seen",
            )
        ]  # fmt: skip
    effect = "rows of before are not known, so they are no reason to set one aside" if not before else "from now on"
    return [Change("deduplicate", before, now, True, effect)]


def _sinks(old: Document, new: Document, name: str) -> list[Change]:
    before = {(sink["kind"], sink["target"]): sink for sink in old.get("into") or ()}
    now = {(sink["kind"], sink["target"]): sink for sink in new.get("into") or ()}
    found: list[Change] = []
    for place, sink in now.items():
        if place not in before:
            found.append(_added(sink, name))
    for place, sink in before.items():
        if place not in now:
            found.append(_removed(sink, name))
        else:
            found += _sink_changes(sink, now[place], name)
    return found


def _label(sink: Document, what: str = "") -> str:
    return f"into[{sink['target']}]{'.' + what if what else ''}"


def _is_stateful(sink: Document) -> bool:
    return bool(sink.get("aggregate")) and sink["aggregate"]["mode"] == "watermark"


def _added(sink: Document, name: str) -> Change:
    if _is_stateful(sink):
        return _other_state(_label(sink), None, sink, name)
    effect = (
        "it gets the rows from now on; for those of before, a pipeline of another name that begins at the beginning"
    )
    return Change(_label(sink), None, sink, True, effect)


def _removed(sink: Document, name: str) -> Change:
    if _is_stateful(sink):
        return _other_state(_label(sink), sink, None, name)
    return Change(_label(sink), sink, None, True, "it gets no more rows; those in it stay")


def _sink_changes(old: Document, new: Document, name: str) -> list[Change]:
    found = []
    if old.get("aggregate") != new.get("aggregate"):
        found += _aggregate_changes(old, new, name)
    if old.get("partition_by") != new.get("partition_by"):
        found.append(
            Change(
                _label(new, "partition_by"), old.get("partition_by"), new.get("partition_by"), False,
                "the folders of the table that is there are kept apart otherwise",
                "name another folder for the table; it gets the rows from now on",
            )
        )  # fmt: skip
    for key in ("select", "where", "key", "format"):
        if old.get(key) != new.get(key):
            effect = "rows go there so from now on; those in it stay as they are"
            found.append(Change(_label(new, key), old.get(key), new.get(key), True, effect))
    return found


def _aggregate_changes(old: Document, new: Document, name: str) -> list[Change]:
    before, now = old.get("aggregate"), new.get("aggregate")
    label = _label(new, "aggregate")
    if _is_stateful(old) or _is_stateful(new):
        return [_other_state(label, before, now, name)]
    if before is None or now is None:
        return [_other_table(label, before, now, "the table holds rows of another kind")]
    keys = [key for key in ("mode", "by", "window") if before[key] != now[key]]
    if keys:
        return [
            _other_table(f"{label}.{key}", before[key], now[key], "the table's rows stand for other keys")
            for key in keys
        ]
    if now["mode"] == "recompute":
        effect = "a key is computed so when rows of it come; the others stay as they are"
        return [Change(label, before, now, True, effect)]
    return [
        _other_table(f"{label}.values", before["values"], now["values"], "the results of before cannot be added to")
    ]


def _other_table(label: str, old: Any, new: Any, why: str) -> Change:
    return Change(
        label, old, new, False, why,
        "name another folder for the table, in a pipeline of another name that begins at the beginning",
    )  # fmt: skip


def _other_state(label: str, old: Any, new: Any, name: str) -> Change:
    return Change(
        label, old, new, False, "Spark's state in the checkpoint belongs to the aggregate that it was made for",
        "declare a pipeline of another name that begins at the beginning, or drop progress and state, with a backup: "
        f"headrace pipeline checkpoint wipe {name}",
    )  # fmt: skip


def _short(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
