"""What changed between two schemas, and which readers that breaks. Pure: nothing here asks a registry.

`diff` names fields that were added, removed or changed, for Avro, JSON Schema and Protobuf. `explain` puts a registry's
refusal into words. For Avro it applies the rules of schema resolution itself, because registries say little (and
Apicurio nothing at all in a dry run); for the others it names the fields whose type or duty changed, and repeats the
registry's message. The verdict is always the registry's: what is found here explains it and never overrules it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headrace.errors import UsageError
from headrace.schemas.registry import Level, Schema

Direction = Literal["backward", "forward"]

# What a reader of the first may find written (Avro specification, "Schema Resolution").
_PROMOTIONS = {
    "long": {"int"},
    "float": {"int", "long"},
    "double": {"int", "long", "float"},
    "string": {"bytes"},
    "bytes": {"string"},
}
_NEUTRAL: Mapping[str, Any] = {
    "int": 0, "long": 0, "float": 0.0, "double": 0.0, "string": "", "bytes": "", "boolean": False, "null": None,
}  # fmt: skip
PRIMITIVES = frozenset(_NEUTRAL)


@dataclass(frozen=True)
class Change:
    """One difference, at a field."""

    what: Literal["added", "removed", "type", "default", "required"]
    field: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        if self.what == "added":
            return f"{self.field}: added, {self.new}"
        if self.what == "removed":
            return f"{self.field}: removed, was {self.old}"
        label = "" if self.what == "type" else f"{self.what} "
        return f"{self.field}: {label}{self.old} became {self.new}"


@dataclass(frozen=True)
class Break:
    """Why readers break, at which field, and a change that would pass."""

    words: str
    remedy: str | None = None


@dataclass(frozen=True)
class _Field:
    type: str
    default: str | None = None
    required: bool | None = None

    def __str__(self) -> str:
        extras = [f"default {self.default}"] if self.default is not None else []
        return ", ".join([self.type, *extras, *(["required"] if self.required else [])])


def diff(old: Schema, new: Schema) -> list[Change]:
    """The differences, field by field: removed ones first, then changed ones, then added ones."""
    if old.kind != new.kind:
        raise UsageError(f"one schema is {old.kind}, the other {new.kind}", hint="compare versions of one subject")
    before, after = _fields(old), _fields(new)
    changes = [Change("removed", name, str(was), None) for name, was in before.items() if name not in after]
    for name, was in before.items():
        now = after.get(name)
        if now is None:
            continue
        if was.type != now.type:
            changes.append(Change("type", name, was.type, now.type))
        if was.default != now.default:
            changes.append(Change("default", name, was.default or "none", now.default or "none"))
        if was.required != now.required:
            changes.append(Change("required", name, str(bool(was.required)), str(bool(now.required))))
    return changes + [Change("added", name, None, str(now)) for name, now in after.items() if name not in before]


def _fields(schema: Schema) -> dict[str, _Field]:
    if schema.kind == "PROTOBUF":
        return _protobuf_fields(schema.text)
    document = json.loads(schema.text)
    return dict(_avro_fields(document, Names(document), "") if schema.kind == "AVRO" else _json_fields(document, ""))


# -- Avro -------------------------------------------------------------------------------------------------------


class Names:
    """The named types of an Avro schema, by full name."""

    def __init__(self, document: object) -> None:
        self.types: dict[str, dict[str, Any]] = {}
        self._collect(document, "")

    def _collect(self, node: object, namespace: str) -> None:
        if isinstance(node, list):
            for branch in node:
                self._collect(branch, namespace)
        elif isinstance(node, dict):
            if "name" in node and node.get("type") in {"record", "error", "enum", "fixed"}:
                full = full_name(node["name"], node.get("namespace", namespace))
                self.types[full] = node
                namespace = full.rpartition(".")[0]
            for part in (node.get("type"), node.get("items"), node.get("values")):
                if isinstance(part, (dict, list)):
                    self._collect(part, namespace)
            for part in node.get("fields") or ():
                self._collect(part.get("type") if isinstance(part, dict) else None, namespace)

    def resolved(self, node: object) -> Any:
        """A named type instead of its name; `{"type": "int"}` as `"int"`; anything else as it is."""
        if isinstance(node, str) and node not in PRIMITIVES:
            short = [found for full, found in self.types.items() if full.rpartition(".")[2] == node.rpartition(".")[2]]
            return self.types.get(node) or (short[0] if short else node)
        if isinstance(node, dict) and isinstance(node.get("type"), (dict, list)):
            return self.resolved(node["type"])
        if isinstance(node, dict) and node.get("type") in PRIMITIVES and "logicalType" not in node:
            return node["type"]
        return node


def full_name(name: str, namespace: str) -> str:
    """A name with its namespace, as Avro puts them together."""
    return name if "." in name or not namespace else f"{namespace}.{name}"


def type_text(node: Any) -> str:
    """An Avro type for a person: `int`, `long (timestamp-millis)`, `array of string`, `null or string`."""
    if isinstance(node, str):
        return node
    if isinstance(node, list):
        return " or ".join(map(type_text, node))
    kind = node.get("type")
    if isinstance(kind, (dict, list)):
        return type_text(kind)
    if kind == "array":
        return f"array of {type_text(node['items'])}"
    if kind == "map":
        return f"map of {type_text(node['values'])}"
    if kind == "enum":
        return f"enum {node['name']} ({', '.join(node['symbols'])})"
    if kind == "fixed":
        return f"fixed of {node['size']} bytes"
    if kind in {"record", "error"}:
        return f"record {node['name']}"
    return f"{kind} ({node['logicalType']})" if "logicalType" in node else str(kind)


def _avro_fields(node: object, names: Names, prefix: str, inside: tuple[int, ...] = ()) -> Iterator[tuple[str, _Field]]:
    node = names.resolved(node)
    if isinstance(node, list):
        for branch in node:
            yield from _avro_fields(branch, names, prefix, inside)
    elif not isinstance(node, dict):
        if not prefix:
            yield "(the value)", _Field(type_text(node))
    elif node.get("type") in {"array", "map"}:
        yield from _avro_fields(node.get("items") or node.get("values"), names, f"{prefix}[]", inside)
    elif node.get("type") in {"record", "error"} and id(node) not in inside:
        for field in node["fields"]:
            name = f"{prefix}.{field['name']}" if prefix else field["name"]
            default = json.dumps(field["default"]) if "default" in field else None
            yield name, _Field(type_text(field["type"]), default)
            yield from _avro_fields(field["type"], names, name, (*inside, id(node)))


@dataclass(frozen=True)
class _Mismatch:
    """A place where data of the writer's schema cannot be read with the reader's."""

    what: Literal["type", "missing", "symbols"]
    field: str
    reader: Any
    writer: Any


class _Resolution:
    """Avro's rules: can a reader with this schema read what was written with that one?"""

    def __init__(self, reader: object, writer: object) -> None:
        self._reader_names, self._writer_names = Names(reader), Names(writer)
        self._under_way: set[tuple[int, int]] = set()
        self.mismatches = list(self._compare(reader, writer, ""))

    def _compare(self, reader: object, writer: object, field: str) -> Iterator[_Mismatch]:
        reader, writer = self._reader_names.resolved(reader), self._writer_names.resolved(writer)
        if isinstance(writer, list):
            for branch in writer:
                if any(self._compare(reader, branch, field)):
                    yield _Mismatch("type", field, reader, writer)
                    return
        elif isinstance(reader, list):
            if all(any(self._compare(branch, writer, field)) for branch in reader):
                yield _Mismatch("type", field, reader, writer)
        elif _base(reader) == _base(writer):
            yield from self._same_kind(reader, writer, field)
        elif _base(writer) not in _PROMOTIONS.get(_base(reader), ()):
            yield _Mismatch("type", field, reader, writer)

    def _same_kind(self, reader: Any, writer: Any, field: str) -> Iterator[_Mismatch]:
        kind = _base(reader)
        if kind == "array":
            yield from self._compare(reader["items"], writer["items"], f"{field}[]")
        elif kind == "map":
            yield from self._compare(reader["values"], writer["values"], f"{field}[]")
        elif kind == "enum":
            gone = [symbol for symbol in writer["symbols"] if symbol not in reader["symbols"]]
            if gone and "default" not in reader:
                yield _Mismatch("symbols", field, reader, ", ".join(gone))
        elif kind == "fixed" and reader["size"] != writer["size"]:
            yield _Mismatch("type", field, reader, writer)
        elif kind == "record":
            yield from self._records(reader, writer, field)

    def _records(self, reader: Any, writer: Any, field: str) -> Iterator[_Mismatch]:
        pair = (id(reader), id(writer))
        if pair in self._under_way:
            return
        self._under_way.add(pair)
        if not _names(reader) & {writer["name"].rpartition(".")[2]}:
            yield _Mismatch("type", field, reader, writer)
        written = {found["name"]: found for found in writer["fields"]}
        for wanted in reader["fields"]:
            path = f"{field}.{wanted['name']}" if field else wanted["name"]
            found = next((written[name] for name in _names(wanted) if name in written), None)
            if found is not None:
                yield from self._compare(wanted["type"], found["type"], path)
            elif "default" not in wanted:
                yield _Mismatch("missing", path, wanted["type"], None)
        self._under_way.discard(pair)


def _names(node: Mapping[str, Any]) -> set[str]:
    return {name.rpartition(".")[2] for name in (node["name"], *node.get("aliases", ()))}


def _base(node: object) -> str:
    kind = node["type"] if isinstance(node, dict) else node
    return "record" if kind == "error" else str(kind)


def _avro_breaks(new: Schema, old: Schema, direction: Direction) -> Iterator[Break]:
    fresh, known = json.loads(new.text), json.loads(old.text)
    backward = direction == "backward"
    for found in _Resolution(fresh, known).mismatches if backward else _Resolution(known, fresh).mismatches:
        field = f"field {found.field}" if found.field else "the value"
        if found.what == "missing":
            yield _missing(field, found, backward)
        elif found.what == "symbols":
            verb, remedy = ("lost", "keep") if backward else ("gained", "leave out")
            yield Break(f"{field}: the enum {verb} {found.writer}", f"{remedy} {found.writer} in {field}")
        else:
            was, now = (found.writer, found.reader) if backward else (found.reader, found.writer)
            yield _other_type(field, type_text(was), type_text(now), backward)


def _missing(field: str, found: _Mismatch, backward: bool) -> Break:
    kind = type_text(found.reader)
    if not backward:
        return Break(f"{field} ({kind}) is gone, and readers of the old schema have no default for it", f"keep {field}")
    default = json.dumps(None if isinstance(found.reader, list) else _NEUTRAL.get(kind, "…"))
    return Break(
        f"{field} ({kind}) is new and has no default, so old records cannot be read",
        f'give {field} a default, as in "default": {default}',
    )


def _other_type(field: str, was: str, now: str, backward: bool) -> Break:
    who = f"readers of the new schema cannot read {was}" if backward else f"readers of the old schema cannot read {now}"
    # The union lets new readers read both; readers of the old schema would still meet the new type.
    union = f"make it the union of {was} and {now}, or " if backward else ""
    return Break(
        f"{field} was {was} and would be {now}: {who}",
        f"keep {was} in {field}, or {union}add a new field with a default beside it",
    )


# -- JSON Schema and Protobuf -----------------------------------------------------------------------------------


def _json_fields(node: object, prefix: str) -> Iterator[tuple[str, _Field]]:
    if not isinstance(node, dict):
        return
    if isinstance(node.get("items"), dict):
        yield from _json_fields(node["items"], f"{prefix}[]")
    required = node.get("required") or ()
    for name, part in (node.get("properties") or {}).items():
        path = f"{prefix}.{name}" if prefix else name
        yield path, _Field(_json_type(part), required=name in required)
        yield from _json_fields(part, path)


def _json_type(node: object) -> str:
    if not isinstance(node, dict):
        return json.dumps(node)
    facets = {key: value for key, value in node.items() if key not in {"type", "properties", "required", "description"}}
    kind = node.get("type") or ("object" if "properties" in node else "any")
    text = " or ".join(kind) if isinstance(kind, list) else str(kind)
    return f"{text} {json.dumps(facets)}" if facets else text


def _protobuf_fields(text: str) -> dict[str, _Field]:
    from headrace.schemas.codec.proto_text import fields_in
    from headrace.schemas.codec.protobuf import descriptor_of

    return {name: _Field(declared) for name, declared in fields_in(descriptor_of(text, "the schema")).items()}


# Types that are written alike: a reader of one reads the other.
_ALIKE = (
    {"int32", "int64", "uint32", "uint64", "bool"}, {"sint32", "sint64"}, {"fixed32", "sfixed32"},
    {"fixed64", "sfixed64"}, {"string", "bytes"},
)  # fmt: skip


def _changed_fields(new: Schema, old: Schema) -> Iterator[Break]:
    """Fields of a JSON Schema or a Protobuf that old records do not fit: of another type, or required of late."""
    for change in diff(old, new):
        field = f"field {change.field}"
        if change.what == "type" and not _is_read_alike(new, str(change.old), str(change.new)):
            remedy = f"keep {change.old} in {field}, or add a new field beside it"
            yield Break(f"{field} was {change.old} and would be {change.new}", remedy)
        elif change.what == "required" and change.new == str(True):
            yield Break(
                f"{field} was optional and would be required: old records may lack it", f"keep {field} optional"
            )
        elif change.what == "added" and str(change.new).endswith("required"):
            yield Break(f"{field} is new and required: old records lack it", f"make {field} optional")


def _is_read_alike(schema: Schema, was: str, now: str) -> bool:
    if schema.kind == "JSON":
        return (was, now) == ("integer", "number")
    (was_type, _, was_number), (now_type, _, now_number) = was.partition(" = "), now.partition(" = ")
    return was_number == now_number and any({was_type, now_type} <= group for group in _ALIKE)


# -- a refusal in words -----------------------------------------------------------------------------------------

_DIFFS = re.compile(r"list of diff types: \[(.*)\]", re.DOTALL)
_ONE_DIFF = re.compile(r"(.+?) at (/\S*?)(?:, (?=\S)|$)", re.DOTALL)
_TYPES = re.compile(r"reader type: (\w+) not compatible with writer type: (\w+)")


def explain(new: Schema, olds: Sequence[Schema], level: Level, message: str) -> list[Break]:
    """What breaks at this level; where our own rules see nothing, what the registry's message says.

    Of JSON Schema and Protobuf we know the fields and not all of the rules: both are reported.
    """
    reported = reported_breaks(new, message)
    if new.kind != "AVRO":
        try:
            found = list(dict.fromkeys(each for old in olds for each in _changed_fields(new, old)))
            return found + reported or _changes(new, olds)
        except UsageError:  # a registry may hold Protobuf that is not parsed here, such as groups
            return reported
    found = []
    for old in olds:
        if level.startswith(("BACKWARD", "FULL")):
            found += _avro_breaks(new, old, "backward")
        if level.startswith(("FORWARD", "FULL")):
            found += _avro_breaks(new, old, "forward")
    return found or reported or _changes(new, olds)


def reported_breaks(new: Schema, message: str) -> list[Break]:
    """The differences that a registry lists in its message, each with the name of the field at its path."""
    listed = _DIFFS.search(message)
    if not listed:
        return [Break(message)] if message else []
    breaks = []
    for words, path in _ONE_DIFF.findall(listed[1]):
        field = field_at(new, path)
        if types := _TYPES.search(words):
            breaks.append(_other_type(f"field {field}", types[2].lower(), types[1].lower(), backward=True))
        else:
            breaks.append(Break(f"{words.strip()} (at {path}{f', field {field}' if field else ''})"))
    return breaks


def field_at(schema: Schema, path: str) -> str:
    """The dotted name of the field that a path such as `/fields/1/type/fields/0/type` leads to."""
    if schema.kind == "PROTOBUF":
        return path.strip("/").replace("/", ".")
    here: Any = json.loads(schema.text)
    names: list[str] = []
    before = ""
    for step in path.strip("/").split("/"):
        try:
            here = here[int(step)] if isinstance(here, list) else here[step]
        except (KeyError, IndexError, ValueError, TypeError):
            break
        if before == "fields" and isinstance(here, dict):
            names.append(str(here.get("name")))
        elif before == "properties":
            names.append(step)
        before = step
    return ".".join(names)


def _changes(new: Schema, olds: Sequence[Schema]) -> list[Break]:
    return [Break(str(change)) for old in olds[-1:] for change in diff(old, new)]
