"""Connectors: status, tasks with their errors, create, pause, restart, delete."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial

from nicegui import ui

from headrace.connect import HIDDEN
from headrace.console import formatting
from headrace.console.backend import Backend
from headrace.console.commands import Equal
from headrace.console.forms import Form, attempt, button, confirm, field, text_area
from headrace.console.widgets import (
    Live,
    State,
    each,
    element,
    empty,
    json_link,
    page,
    put,
    show_state,
    state,
    topic_href,
)
from headrace.errors import HeadraceError, UsageError
from headrace.monitor import ConnectorView, Snapshot

STATES: dict[str, State] = {
    "RUNNING": "good",
    "WAITING": "warn",
    "PAUSED": "warn",
    "STOPPED": "none",
    "UNASSIGNED": "warn",
    "FAILED": "bad",
}
_EXAMPLE = {"connector.class": "FileStreamSource", "file": "in.txt", "topic": "lines"}


def show(backend: Backend) -> None:
    live = Live(backend)
    with page("Connectors", backend.now.connect) as side:
        if backend.target.connectors is None:
            empty(
                "cable",
                "There is no Connect worker here",
                "Start one beside the cluster:",
                "headrace up --with connect",
            )
            return
        with side:
            json_link("connectors")
            make = button("Create connector", lambda: create(backend), kind="primary", icon="add")
            make.set_enabled(not backend.read_only)
        nothing = empty("cable", "No connectors yet", "Create the first one with the button above, or:",
                        "headrace connector create lines --set connector.class=FileStreamSource --set file=in.txt "
                        "--set topic=lines")  # fmt: skip
        away = empty("cloud_off", "The Connect worker does not answer", "Its connectors are shown when it is back:",
                     "headrace start connect")  # fmt: skip
        place = element("div", "columns")
    each(live, place, lambda now: {c.name: c for c in now.connectors or ()}, lambda c: _Card(backend, c).show)

    @live
    def refresh(now: Snapshot) -> None:
        away.set_visibility(now.connectors is None)
        nothing.set_visibility(now.connectors == ())


class _Card:
    """One connector."""

    def __init__(self, backend: Backend, connector: ConnectorView) -> None:
        self.backend = backend
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
                if not backend.read_only:
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
        found = await attempt(lambda: self.backend.connector_config(self.name))
        if isinstance(found, HeadraceError):
            ui.notify(found.problem, type="negative", position="bottom-right")
        else:
            settings(self.backend, self.name, found)

    def _act(self, verb: str) -> None:
        deletes = verb == "delete"
        confirm(
            f"Delete the connector {self.name}?" if deletes else f"{verb.capitalize()} {self.name}?",
            "The records and files that it wrote stay." if deletes else "",
            self.backend.commands.connector(verb, self.name),
            lambda: self.backend.connector_action(verb, self.name),
            action="Delete the connector" if deletes else verb.capitalize(),
            done=f"{self.name} is deleted" if deletes else f"{self.name}: {verb} is done",
            kind="danger" if deletes else "primary",
        )


def settings_in(text: str) -> dict[str, str]:
    """The settings that somebody has typed as JSON."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError("the settings are not valid JSON", why=str(error)) from None
    if not isinstance(found, dict):
        raise UsageError("the settings are not a JSON object")
    return {str(key): value if isinstance(value, str) else json.dumps(value) for key, value in found.items()}


def settings(backend: Backend, name: str, config: Mapping[str, str]) -> None:
    """The settings of a connector as JSON, to look at and to change."""

    def changes() -> dict[str, str | None]:
        wanted = settings_in(text.value or "{}")
        gone = dict.fromkeys(config.keys() - wanted.keys())
        return {**gone, **{key: value for key, value in wanted.items() if value != config.get(key)}}

    def changed() -> Equal:
        act.disable()
        wanted = changes()
        act.set_enabled(bool(wanted) and not backend.read_only)
        commands = backend.commands
        return commands.alter_connector(name, wanted) if wanted else commands.connector_config(name)

    with Form(f"Settings of {name}", changed, wide=True, cancel="Close") as form:
        text = _settings_field(config)
        element("div", "muted", f"A setting that you remove is reset to its default; {HIDDEN} keeps its value.")
    text.set_enabled(not backend.read_only)
    act = form.action("Save and restart", lambda: backend.alter_connector(name, changes()),
                      lambda found: f"{name} is {found.shown_state.lower()}").button  # fmt: skip
    form.follow(text)


def _settings_field(config: Mapping[str, str]) -> ui.textarea:
    return text_area("Settings", 9, json.dumps(config, indent=2, ensure_ascii=False))


def create(backend: Backend) -> None:
    """A form: a name and settings as JSON, checked by the worker before anything is made."""

    def settings() -> dict[str, str]:
        return settings_in(text.value or "{}")

    def check() -> None:
        found = backend.validate_connector({"name": name.value or "checked", **settings()})
        if found:
            why = "; ".join(f"{e.name}={e.value}: {' '.join(e.reasons)}" for e in found)
            raise UsageError(f"{formatting.plural(len(found), 'setting')} would not be accepted", why=why)

    async def show_plugins() -> None:
        found = await attempt(lambda: backend.connectors.plugins())
        if not isinstance(found, HeadraceError):
            put(plugins, "The worker has " + ", ".join(p.name.rsplit(".", 1)[-1] for p in found))

    with Form(
        "Create a connector",
        lambda: backend.commands.create_connector(name.value or "NAME", settings()),
        wide=True,
        cancel="Close",
    ) as form:
        name = field("Name").props("autofocus")
        text = _settings_field(_EXAMPLE)
        plugins = element("div", "muted", "")
        ui.timer(0.05, show_plugins, once=True)
    form.action("Check", check, lambda _: "the settings would be accepted", kind="plain", icon="rule", closes=False)
    form.action("Create", lambda: backend.create_connector((name.value or "").strip(), settings()),
                lambda found: f"{name.value} is {found.state.lower()}")  # fmt: skip
    form.follow(name, text)
