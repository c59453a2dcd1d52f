"""Schemas: subjects, versions side by side, compatibility, check and register."""

from __future__ import annotations

import difflib
import json

from nicegui import ui

from headrace.console import formatting
from headrace.console.backend import Backend
from headrace.console.forms import Form, Verdict, attempt, button, confirm, field, search, select, text_area
from headrace.console.tables import Column, Table
from headrace.console.widgets import Live, card, element, empty, json_link, page, quoted, side_of
from headrace.errors import HeadraceError
from headrace.monitor import Snapshot
from headrace.schemas import LEVELS, Schema, Version
from headrace.schemas import Verdict as CompatibilityCheck

_KINDS = {"AVRO": "Avro", "JSON": "JSON Schema", "PROTOBUF": "Protobuf"}
_LIST = (
    Column("subject", "Subject", "link", more=lambda s: f"/schema?name={quoted(s.subject)}"),
    Column("kind", "Type", "tag", show=lambda kind: _KINDS.get(kind or "", kind or "")),
    Column("versions", "Versions", "number", lambda s: None if s.versions is None else len(s.versions)),
    Column("id", "Latest id", "number", lambda s: s.schema_id, wide=True),
    Column("level", "Compatibility", show=lambda level: level or formatting.DASH),
)
_EXAMPLE = '{"type": "record", "name": "Ride", "fields": [{"name": "id", "type": "int"}]}'


def show(backend: Backend) -> None:
    live = Live(backend)
    table: Table

    with page("Schemas", backend.now.registry) as side:
        if backend.target.registry is None:
            empty("schema", "There is no schema registry here", "Start one beside the cluster:",
                  "headrace up --with registry")  # fmt: skip
            return
        with side:
            search(live, lambda text: table.search(text))
            json_link("schemas")
            button("Register schema", lambda: register(backend, ""), kind="primary", icon="add").set_enabled(
                not backend.read_only
            )
        with element("section", "card"):
            nothing = empty("schema", "No subjects yet", "Register the first schema with the button above, or:",
                            "headrace schema register rides-value ride.avsc")  # fmt: skip
            away = empty("cloud_off", "The registry does not answer", "Its schemas are shown when it is back:",
                         "headrace start registry")  # fmt: skip
            table = Table(_LIST, lambda: backend.now.subjects or (), key=lambda s: s.subject)
            table.search(live.address.get("filter"))

    @live
    def refresh(now: Snapshot) -> None:
        table.refresh()
        away.set_visibility(now.subjects is None)
        nothing.set_visibility(now.subjects == ())
        table.table.set_visibility(bool(now.subjects))


def show_one(backend: Backend, name: str = "") -> None:
    versions: dict[int, Version] = {}
    with page(name or "Schema", crumb=("Schemas", "/schemas")) as side:
        with side:
            if not backend.read_only:
                button("Check or register", lambda: register(backend, name), kind="primary", icon="add")
                button("Compatibility", lambda: _level(backend, name), icon="rule")
                button("Delete", lambda: _delete(backend, name), kind="danger-plain", icon="delete")
        verdict = Verdict()
        with card("Versions side by side") as made:
            diff = element("div")
        with side_of(made):
            left = select("Left", [], None).style("min-width: 110px")
            right = select("Right", [], None).style("min-width: 110px")

    def draw() -> None:
        diff.clear()
        with diff:
            if left.value in versions and right.value in versions:
                _diff(versions[left.value], versions[right.value])

    def read() -> list[Version]:
        registry = backend.registry
        return [registry.version(name, number) for number in registry.versions(name)]

    async def load() -> None:
        found = await attempt(read)
        if isinstance(found, HeadraceError):
            verdict.problem(found)
            return
        versions.update({version.version: version for version in found})
        numbers = sorted(versions)
        options = {number: f"version {number}" for number in numbers}
        left.set_options(options, value=numbers[-2] if len(numbers) > 1 else numbers[-1])
        right.set_options(options, value=numbers[-1])
        draw()

    left.on_value_change(lambda _: draw())
    right.on_value_change(lambda _: draw())
    ui.timer(0.05, load, once=True)


def _lines(schema: Schema) -> list[str]:
    if schema.kind == "PROTOBUF":
        return schema.text.splitlines()
    try:
        return json.dumps(json.loads(schema.text), indent=2, ensure_ascii=False).splitlines()
    except ValueError:
        return schema.text.splitlines()


def _diff(old: Version, new: Version) -> None:
    """Both versions, line beside line; what is gone on the left, what has come on the right."""
    a, b = _lines(old.schema), _lines(new.schema)
    with element("div", "diff mono"):
        columns = []
        for version in (old, new):
            with element("div"):
                element("div", "muted", f"version {version.version} · id {version.id} · {_KINDS[version.schema.kind]}")
                columns.append(element("div", "payload", style="max-height: none"))
        for tag, a1, a2, b1, b2 in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
            height = max(a2 - a1, b2 - b1)
            for lines, first, last, column, mark in ((a, a1, a2, columns[0], "minus"), (b, b1, b2, columns[1], "plus")):
                with column:
                    for at in range(height):
                        text = lines[first + at] if first + at < last else ""
                        changed = tag != "equal" and bool(text)
                        element("div", f"line {mark}" if changed else "line", text)


def register(backend: Backend, subject: str) -> None:
    """A form that checks a schema against the subject, and registers it."""

    def wanted() -> tuple[str, Schema]:
        return (name.value or "").strip(), Schema(text.value or "", kind.value if kind.value in _KINDS else "AVRO")

    def check() -> CompatibilityCheck:
        found = backend.check_schema(*wanted())
        if found.compatible:
            return found
        why, hint = "; ".join(found.breaks) or None, "; or ".join(found.remedies) or None
        raise HeadraceError(f"the subject would refuse it: it is not {found.level} compatible", why=why, hint=hint)

    def accepted(found: CompatibilityCheck) -> str:
        against = f"version {', '.join(map(str, found.against))}" if found.against else "a new subject"
        return f"the subject would accept it: {found.level} compatible with {against}"

    with Form(
        "Check or register a schema",
        lambda: backend.commands.register_schema(name.value or "SUBJECT", str(kind.value)),
        wide=True,
        cancel="Close",
    ) as form:
        with element("div", "fields"):
            name = field("Subject", subject).props('placeholder="TOPIC-value"')
            kind = select("Type", _KINDS, "AVRO")
        text = text_area("Schema", 12).props(f"placeholder='{_EXAMPLE}'")
    form.action("Check", check, accepted, kind="plain", icon="rule", closes=False)
    form.action("Register", lambda: backend.register_schema(*wanted()), lambda found: f"registered with the id {found}",
                closes=False)  # fmt: skip
    form.follow(name, kind, text)


def _level(backend: Backend, subject: str) -> None:
    known = next((s for s in backend.now.subjects or () if s.subject == subject), None)
    with Form(
        f"Compatibility of {subject}", lambda: backend.commands.set_compatibility(subject, str(level.value))
    ) as form:
        level = select("Level", list(LEVELS), known.level if known and known.level in LEVELS else "BACKWARD")
        element("div", "muted", "BACKWARD: readers with the new schema read old records. FORWARD: readers with the old "
                "one read new records. TRANSITIVE: with all versions, not only the last.")  # fmt: skip
    form.action("Set", lambda: backend.set_compatibility(subject, str(level.value)),
                lambda _: f"{subject} is {level.value} from now on")  # fmt: skip
    form.follow(level)


def _delete(backend: Backend, subject: str) -> None:
    confirm(
        f"Delete the subject {subject}?",
        "A soft delete: its ids stay valid, so records stay readable; the subject accepts a new first version.",
        backend.commands.delete_subject(subject),
        lambda: backend.delete_subject(subject),
        action="Delete the subject",
        done=f"{subject} is deleted",
    )
