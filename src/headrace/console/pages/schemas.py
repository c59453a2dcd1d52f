"""Schemas: subjects, versions side by side, compatibility, check and register."""

from __future__ import annotations

import difflib
import json
from typing import Any

from nicegui import ui

from headrace.console import formatting, widgets
from headrace.console.backend import Desk
from headrace.console.tables import Column, Row, Table
from headrace.console.widgets import (
    EqualPanel,
    Live,
    Verdict,
    attempt,
    button,
    card,
    confirm,
    dialog,
    element,
    empty,
    page,
    quoted,
    select,
)  # fmt: skip
from headrace.errors import HeadraceError
from headrace.monitor import Snapshot
from headrace.transport.schemas import LEVELS, Schema, Version

_LIST = (
    Column("subject", "Subject", "link"),
    Column("kind", "Type", "tag"),
    Column("versions", "Versions", "number"),
    Column("id", "Latest id", "number", wide=True),
    Column("level", "Compatibility"),
)
_KINDS = {"AVRO": "Avro", "JSON": "JSON Schema", "PROTOBUF": "Protobuf"}
_EXAMPLE = '{"type": "record", "name": "Ride", "fields": [{"name": "id", "type": "int"}]}'


def show(desk: Desk) -> None:
    live = Live(desk)
    table: Table

    def rows() -> list[Row]:
        return [
            {
                "subject": s.subject,
                "subject_href": f"/schema?name={quoted(s.subject)}",
                "kind": _KINDS.get(s.kind or "", s.kind or ""),
                "versions": len(s.versions) if s.versions is not None else formatting.DASH,
                "id": s.schema_id if s.schema_id is not None else formatting.DASH,
                "level": s.level or formatting.DASH,
            }
            for s in desk.now.subjects or ()
        ]

    with page("Schemas", desk.now.registry) as side:
        if desk.target.registry is None:
            empty("schema", "There is no schema registry here", "Start one beside the cluster:",
                  "headrace up --with registry")  # fmt: skip
            return
        with side:
            widgets.search(live, lambda text: table.search(text))
            element("a", "link", "JSON", href="/api/schemas", target="_blank")
            button("Register schema", lambda: register(desk, ""), kind="primary", icon="add").set_enabled(
                not desk.read_only
            )
        with element("section", "card"):
            nothing = empty("schema", "No subjects yet", "Register the first schema with the button above, or:",
                            "headrace schema register rides-value ride.avsc")  # fmt: skip
            away = empty("cloud_off", "The registry does not answer", "Its schemas are shown when it is back:",
                         "headrace start registry")  # fmt: skip
            table = Table(_LIST, rows, key="subject", sort="subject")
            table.search(live.address.get("filter"))

    @live
    def refresh(now: Snapshot) -> None:
        table.refresh()
        away.set_visibility(now.subjects is None)
        nothing.set_visibility(now.subjects == ())
        table.table.set_visibility(bool(now.subjects))


def show_one(desk: Desk, name: str = "") -> None:
    versions: dict[int, Version] = {}
    with page(name or "Schema", crumb=("Schemas", "/schemas")) as side:
        with side:
            if not desk.read_only:
                button("Check or register", lambda: register(desk, name), kind="primary", icon="add")
                button("Compatibility", lambda: _level(desk, name), icon="rule")
                button("Delete", lambda: _delete(desk, name), kind="danger-plain", icon="delete")
        verdict = Verdict()
        with card("Versions side by side") as made:
            diff = element("div")
        with made.default_slot.children[0], element("span", "side"):
            left = select("Left", [], None).style("min-width: 110px")
            right = select("Right", [], None).style("min-width: 110px")

    def draw() -> None:
        diff.clear()
        with diff:
            if left.value in versions and right.value in versions:
                _diff(versions[left.value], versions[right.value])

    async def load() -> None:
        found = await attempt(lambda: [desk.registry.version(name, number) for number in desk.registry.versions(name)])
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


def register(desk: Desk, subject: str) -> None:
    """A form that checks a schema against the subject, and registers it."""
    with dialog("Check or register a schema", wide=True) as asking:
        with element("div", "fields"):
            name = widgets.field("Subject", subject).props('placeholder="TOPIC-value"')
            kind = select("Type", _KINDS, "AVRO")
        text = (
            ui.textarea("Schema").props(f"outlined dense stack-label rows=12 placeholder='{_EXAMPLE}'").classes("mono")
        )
        equal = EqualPanel()
        verdict = Verdict()
        with element("div", "row end"):
            button("Close", asking.close)
            check = button("Check", icon="rule")
            act = button("Register", kind="primary")

    def schema() -> Schema:
        return Schema(text.value or "", kind.value if kind.value in _KINDS else "AVRO")

    def changed() -> None:
        equal.show(desk.commands.register_schema(name.value or "SUBJECT", str(kind.value)))

    async def try_it() -> None:
        found = await attempt(lambda: desk.check_schema((name.value or "").strip(), schema()))
        if isinstance(found, HeadraceError):
            verdict.problem(found)
        elif found.compatible:
            against = f"version {', '.join(map(str, found.against))}" if found.against else "a new subject"
            verdict.good(f"the subject would accept it: {found.level} compatible with {against}")
        else:
            why = "; ".join(found.breaks) or None
            hint = "; or ".join(found.remedies) or None
            problem = f"the subject would refuse it: it is not {found.level} compatible"
            verdict.problem(HeadraceError(problem, why=why, hint=hint))

    async def run() -> None:
        act.props("loading")
        found = await attempt(lambda: desk.register_schema((name.value or "").strip(), schema()))
        act.props(remove="loading")
        if isinstance(found, HeadraceError):
            verdict.problem(found)
        else:
            verdict.good(f"registered with the id {found}")

    name.on_value_change(lambda _: changed())
    kind.on_value_change(lambda _: changed())
    check.on("click", try_it)
    act.on("click", run)
    changed()


def _level(desk: Desk, subject: str) -> None:
    known = next((s for s in desk.now.subjects or () if s.subject == subject), None)
    with dialog(f"Compatibility of {subject}") as asking:
        level = select("Level", list(LEVELS), known.level if known and known.level in LEVELS else "BACKWARD")
        element("div", "muted", "BACKWARD: readers with the new schema read old records. FORWARD: readers with the old "
                "one read new records. TRANSITIVE: with all versions, not only the last.")  # fmt: skip
        equal = EqualPanel()
        verdict = Verdict()
        with element("div", "row end"):
            button("Cancel", asking.close)
            act = button("Set", kind="primary")

    def changed(_: Any = None) -> None:
        equal.show(desk.commands.set_compatibility(subject, str(level.value)))

    async def run() -> None:
        found = await attempt(lambda: desk.set_compatibility(subject, str(level.value)))
        if isinstance(found, HeadraceError):
            verdict.problem(found)
            return
        asking.close()
        ui.notify(f"{subject} is {level.value} from now on", type="positive", position="bottom-right")

    level.on_value_change(changed)
    act.on("click", run)
    changed()


async def _delete(desk: Desk, subject: str) -> None:
    await confirm(
        f"Delete the subject {subject}?",
        "A soft delete: its ids stay valid, so records stay readable; the subject accepts a new first version.",
        desk.commands.delete_subject(subject),
        lambda: desk.delete_subject(subject),
        action="Delete the subject",
        done=f"{subject} is deleted",
    )
