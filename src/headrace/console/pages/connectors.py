"""Connectors: status, tasks with their errors, create, pause, restart, delete."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from nicegui import ui

from headrace.console import formatting, widgets
from headrace.console.backend import Desk
from headrace.console.widgets import (
    EqualPanel,
    Live,
    State,
    Verdict,
    attempt,
    button,
    confirm,
    dialog,
    element,
    empty,
    page,
    put,
    show_state,
    state,
    topic_href,
)  # fmt: skip
from headrace.errors import HeadraceError, UsageError
from headrace.monitor import ConnectorView, Snapshot
from headrace.transport.connectors import HIDDEN

STATES: dict[str, State] = {
    "RUNNING": "good",
    "WAITING": "warn",
    "PAUSED": "warn",
    "STOPPED": "none",
    "UNASSIGNED": "warn",
    "FAILED": "bad",
}
_EXAMPLE = {"connector.class": "FileStreamSource", "file": "in.txt", "topic": "lines"}


def show(desk: Desk) -> None:
    live = Live(desk)
    with page("Connectors", desk.now.connect) as side:
        if desk.target.connectors is None:
            empty(
                "cable",
                "There is no Connect worker here",
                "Start one beside the cluster:",
                "headrace up --with connect",
            )
            return
        with side:
            element("a", "link", "JSON", href="/api/connectors", target="_blank")
            button("Create connector", lambda: create(desk), kind="primary", icon="add").set_enabled(not desk.read_only)
        nothing = empty("cable", "No connectors yet", "Create the first one with the button above, or:",
                        "headrace connector create lines --set connector.class=FileStreamSource --set file=in.txt "
                        "--set topic=lines")  # fmt: skip
        away = empty("cloud_off", "The Connect worker does not answer", "Its connectors are shown when it is back:",
                     "headrace start connect")  # fmt: skip
        place = element("div", "columns")
    cards: dict[str, _Card] = {}

    @live
    def refresh(now: Snapshot) -> None:
        found = now.connectors or ()
        if list(cards) != [c.name for c in found]:
            place.clear()
            cards.clear()
            with place:
                for connector in found:
                    cards[connector.name] = _Card(desk, connector)
        for connector in found:
            cards[connector.name].show(connector)
        away.set_visibility(now.connectors is None)
        nothing.set_visibility(now.connectors == ())


class _Card:
    """One connector."""

    def __init__(self, desk: Desk, connector: ConnectorView) -> None:
        self.desk = desk
        self.name = connector.name
        self._traces: tuple[str, ...] = ()
        self._buttons: dict[str, ui.button] = {}
        with element("section", "card", data_connector=connector.name):
            with element("h2", "title"):
                element("span", text=connector.name)
                self._state = state("", "none")
                with element("span", "side"):
                    element("span", "tag", connector.kind)
            self._note = element("div", "muted", "")
            with element("div", "row tight"):
                for topic in connector.topics[:8]:
                    element("a", "link", topic, href=topic_href(topic))
            self._tasks = element("div", "stack tight", style="margin: 8px 0")
            with element("div", "row tight"):
                button("settings", self._settings)
                if not desk.read_only:
                    for verb in ("pause", "resume", "restart", "delete"):
                        kind = "danger-plain" if verb == "delete" else "plain"
                        self._buttons[verb] = button(verb, partial(self._act, verb), kind=kind)

    def show(self, connector: ConnectorView) -> None:
        shown = connector.shown_state
        show_state(self._state, shown.lower(), STATES.get(shown, "none"))
        running = sum(task.state == "RUNNING" for task in connector.tasks)
        short = (connector.connector_class or "").rsplit(".", 1)[-1]
        put(
            self._note,
            f"{short} · {running} of {formatting.plural(len(connector.tasks), 'task')} running · {connector.worker}",
        )
        for verb, made in self._buttons.items():
            made.set_visibility(not (verb == "pause" and connector.state != "RUNNING")
                                and not (verb == "resume" and connector.state == "RUNNING"))  # fmt: skip
        traces = tuple(
            f"task {task.task} has failed: {task.trace or ''}" for task in connector.tasks if task.state == "FAILED"
        )
        traces = tuple(text for text in (connector.waiting, connector.trace) if text) + traces
        if traces != self._traces:
            self._traces = traces
            self._tasks.clear()
            with self._tasks:
                for trace in traces:
                    element("div", "payload", trace[:4000], style="max-height: 160px", tabindex="0")

    async def _settings(self) -> None:
        found = await attempt(lambda: self.desk.connector_config(self.name))
        if isinstance(found, HeadraceError):
            ui.notify(found.problem, type="negative", position="bottom-right")
        else:
            settings(self.desk, self.name, found)

    async def _act(self, verb: str) -> None:
        if verb == "delete":
            await confirm(
                f"Delete the connector {self.name}?",
                "The records and files that it wrote stay.",
                self.desk.commands.connector("delete", self.name),
                lambda: self.desk.connector_action("delete", self.name),
                action="Delete the connector",
                done=f"{self.name} is deleted",
            )
            return
        with dialog(f"{verb.capitalize()} {self.name}?") as asking:
            EqualPanel(self.desk.commands.connector(verb, self.name))
            verdict = Verdict()
            with element("div", "row end"):
                button("Cancel", asking.close)
                act = button(verb.capitalize(), kind="primary")

        async def run() -> None:
            act.props("loading")
            found = await attempt(lambda: self.desk.connector_action(verb, self.name))
            act.props(remove="loading")
            if isinstance(found, HeadraceError):
                verdict.problem(found)
                return
            asking.close()
            ui.notify(f"{self.name}: {verb} is done", type="positive", position="bottom-right")

        act.on("click", run)


def settings_in(text: str) -> dict[str, str]:
    """The settings that somebody has typed as JSON."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError("the settings are not valid JSON", why=str(error)) from None
    if not isinstance(found, dict):
        raise UsageError("the settings are not a JSON object")
    return {str(key): value if isinstance(value, str) else json.dumps(value) for key, value in found.items()}


def settings(desk: Desk, name: str, config: Mapping[str, str]) -> None:
    """The settings of a connector as JSON, to look at and to change."""
    with dialog(f"Settings of {name}", wide=True) as asking:
        text = _settings_field(config)
        element("div", "muted", f"A setting that you remove is reset to its default; {HIDDEN} keeps its value.")
        equal = EqualPanel()
        verdict = Verdict()
        with element("div", "row end"):
            button("Close", asking.close)
            act = button("Save and restart", kind="primary")
    text.set_enabled(not desk.read_only)

    def changes() -> dict[str, str | None]:
        wanted = settings_in(text.value or "{}")
        gone = dict.fromkeys(config.keys() - wanted.keys())
        return {**gone, **{key: value for key, value in wanted.items() if value != config.get(key)}}

    def changed(_: Any = None) -> None:
        wanted: Mapping[str, str | None] = {}
        try:
            wanted = changes()
        except UsageError as error:
            verdict.problem(error)
        else:
            verdict.clear()
        commands = desk.commands
        equal.show(commands.alter_connector(name, wanted) if wanted else commands.connector_config(name))
        act.set_enabled(bool(wanted) and not desk.read_only)

    async def run() -> None:
        act.props("loading")
        found = await attempt(lambda: desk.alter_connector(name, changes()))
        act.props(remove="loading")
        if isinstance(found, HeadraceError):
            verdict.problem(found)
            return
        asking.close()
        ui.notify(f"{name} is {found.shown_state.lower()}", type="positive", position="bottom-right")

    text.on_value_change(changed)
    act.on("click", run)
    changed()


def _settings_field(config: Mapping[str, str]) -> ui.textarea:
    made = ui.textarea("Settings", value=json.dumps(config, indent=2, ensure_ascii=False))
    return made.props("outlined dense stack-label rows=9").classes("mono")


def create(desk: Desk) -> None:  # noqa: C901 - a form is its fields and what each button does
    """A form: a name and settings as JSON, checked by the worker before anything is made."""
    with dialog("Create a connector", wide=True) as asking:
        name = widgets.field("Name").props("autofocus")
        text = _settings_field(_EXAMPLE)
        plugins = element("div", "muted", "")
        equal = EqualPanel()
        verdict = Verdict()
        with element("div", "row end"):
            button("Close", asking.close)
            check = button("Check", icon="rule")
            act = button("Create", kind="primary")

    def settings() -> dict[str, str]:
        return settings_in(text.value or "{}")

    def changed(_: Any = None) -> None:
        try:
            equal.show(desk.commands.create_connector(name.value or "NAME", settings()))
        except UsageError as error:
            verdict.problem(error)
        else:
            verdict.clear()

    async def try_it() -> None:
        found = await attempt(lambda: desk.validate_connector({"name": name.value or "checked", **settings()}))
        if isinstance(found, HeadraceError):
            verdict.problem(found)
        elif found:
            why = "; ".join(f"{e.name}={e.value}: {' '.join(e.reasons)}" for e in found)
            verdict.problem(UsageError(f"{formatting.plural(len(found), 'setting')} would not be accepted", why=why))
        else:
            verdict.good("the settings would be accepted")

    async def run() -> None:
        act.props("loading")
        found = await attempt(lambda: desk.create_connector((name.value or "").strip(), settings()))
        act.props(remove="loading")
        if isinstance(found, HeadraceError):
            verdict.problem(found)
            return
        asking.close()
        ui.notify(f"{name.value} is {found.state.lower()}", type="positive", position="bottom-right")

    async def known() -> None:
        found = await attempt(lambda: desk.connectors.plugins())
        if not isinstance(found, HeadraceError):
            put(plugins, "The worker has " + ", ".join(p.name.rsplit(".", 1)[-1] for p in found))

    name.on_value_change(changed)
    text.on_value_change(changed)
    check.on("click", try_it)
    act.on("click", run)
    with asking:
        ui.timer(0.05, known, once=True)
    changed()
