"""How pages ask and answer: buttons, dialogs, forms and their fields, and what went wrong or well."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

from nicegui import ui

from headrace.console.commands import Equal
from headrace.console.widgets import Live, attribute, element, put
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nicegui.elements.mixins.value_element import ValueElement
    from nicegui.events import ValueChangeEventArguments

T = TypeVar("T")


async def attempt(work: Callable[[], T]) -> T | HeadraceError:
    """The result of work that may take a while, or the error that it ended with."""
    try:
        return await asyncio.to_thread(work)
    except HeadraceError as error:
        return error


class Verdict:
    """A place for what went wrong or well, in words."""

    def __init__(self) -> None:
        self.box = element("div", role="status")
        self.box.set_visibility(False)

    def clear(self) -> None:
        self.box.set_visibility(False)

    def problem(self, error: HeadraceError) -> None:
        lines = [error.problem]
        lines += [f"why: {error.why}"] if error.why else []
        lines += [f"try: {error.hint}"] if error.hint else []
        self._show("problem", "\n".join(lines))

    def good(self, text: str) -> None:
        self._show("good-news", text)

    def _show(self, kind: str, text: str) -> None:
        self.box.classes(replace=kind)
        put(self.box, text)
        self.box.set_visibility(True)


class EqualPanel:
    """The same action as a command, for Kafka's tools, and in Python."""

    def __init__(self, equal: Equal | None = None) -> None:
        self._equal = equal
        self._chosen = "headrace"
        self._buttons: dict[str, ui.element] = {}
        with element("div", "equal"):
            with element("div", "tabs", role="tablist"):
                for name, label in (("headrace", "headrace"), ("kafka", "Kafka's tools"), ("python", "Python")):
                    button = element("button", text=label, role="tab", type="button")
                    button.on("click", lambda name=name: self._choose(name))
                    self._buttons[name] = button
                element("span", "hint", "the same, typed")
            self._text = element("pre", tabindex="0")
        self._choose("headrace")

    def show(self, equal: Equal) -> None:
        self._equal = equal
        self._choose(self._chosen)

    def _choose(self, name: str) -> None:
        self._chosen = name
        for each, button in self._buttons.items():
            attribute(button, "aria-selected", "true" if each == name else "false")
        put(self._text, getattr(self._equal, name) if self._equal else "")


def button(
    text: str, on_click: Callable[[], object] | None = None, *, kind: str = "plain", icon: str | None = None
) -> ui.button:
    return (
        ui.button(text, on_click=on_click, icon=icon, color=None)
        .props("no-caps unelevated dense")
        .classes(f"{kind} q-px-md")
    )


@contextmanager
def dialog(title: str, *, wide: bool = False) -> Iterator[ui.dialog]:
    """A dialog that is open, and gone for good when it is closed.

    It belongs to the page, not to what opened it: that may be a dialog too, which is gone before.
    """
    with _page_here(), ui.dialog() as made, element("q-card", f"dialog{' wide' if wide else ''}"):
        element("h2", text=title)
        made._props["aria-label"] = title
        yield made
    made.on("hide", lambda: made.delete())
    made.open()


def _page_here() -> ui.element:
    """The page that is being built, or that whoever was clicked stands on."""
    found = ui.context.slot.parent
    while "page" not in found._classes and found.parent_slot is not None:
        found = found.parent_slot.parent
    return found


@dataclass(frozen=True)
class Action:
    """A button of a form, and what it does."""

    button: ui.button
    run: Callable[[], Awaitable[None]]


class Form:
    """A dialog to fill in: the fields that the block builds, the same action typed, the verdict, the buttons.

    `on_change` is called for every change of a field; it returns the commands that do the same, and may raise why the
    fields make no sense.
    """

    def __init__(
        self, title: str, on_change: Callable[[], Equal], *, wide: bool = False, cancel: str = "Cancel"
    ) -> None:
        self._dialog = dialog(title, wide=wide)
        self._on_change = on_change
        self._cancel = cancel

    def __enter__(self) -> Self:
        self.made = self._dialog.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._equal = EqualPanel()
        self.verdict = Verdict()
        with element("div", "row end") as self._buttons:
            button(self._cancel, self.made.close)
        self._dialog.__exit__(*error)

    def action(
        self, text: str, work: Callable[[], T], then: Callable[[T], str | None], *, kind: str = "primary",
        icon: str | None = None, closes: bool = True, ready: Callable[[], bool] = lambda: True,
    ) -> Action:  # fmt: skip
        """A button that does the work if the form is ready for it; what `then` makes of the result is said.

        If it is done the form closes, unless it is told not to; an error is shown, and the form stays.
        """

        async def run() -> None:
            if not ready():
                return
            made.props("loading")
            result = await attempt(work)
            made.props(remove="loading")
            if isinstance(result, HeadraceError):
                self.verdict.problem(result)
                return
            self.verdict.clear()
            if closes:
                self.made.close()
            message = then(result)
            if message and closes:
                ui.notify(message, type="positive", position="bottom-right")
            elif message:
                self.verdict.good(message)

        with self._buttons:
            made = button(text, run, kind=kind, icon=icon)
        return Action(made, run)

    def follow(self, *fields: ValueElement[Any]) -> None:
        """The commands follow what is in the fields, from now on."""
        for each_field in fields:
            each_field.on_value_change(lambda _: self.changed())
        self.changed()

    def changed(self) -> None:
        try:
            equal = self._on_change()
        except HeadraceError as error:
            self.verdict.problem(error)
        else:
            self.verdict.clear()
            self._equal.show(equal)


def confirm(
    title: str, text: str, equal: Equal, work: Callable[[], object], *, action: str, done: str,
    type_in: str | None = None, kind: str = "danger",
) -> None:  # fmt: skip
    """Asks before something that matters; with `type_in` its name has to be typed."""
    with Form(title, lambda: equal) as form:
        if text:
            element("div", text=text)
        typed = field(f"Type {type_in} to confirm") if type_in is not None else None
    act = form.action(action, work, lambda _: done, kind=kind).button
    form.changed()
    if typed is not None:
        act.disable()
        typed.on_value_change(lambda event: act.set_enabled(event.value == type_in))


class SettingFields:
    """Pairs of fields for settings, as many as somebody adds."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._fields: list[tuple[ui.input, ui.input]] = []
        self._place = element("div", "stack tight")

    def add(self) -> None:
        with self._place, element("div", "row"):
            name = field("Setting", on_change=self._on_change).props('placeholder="retention.ms"')
            value = field("Value", on_change=self._on_change)
        self._fields.append((name, value))

    def values(self) -> dict[str, str]:
        return {name.value.strip(): value.value or "" for name, value in self._fields if (name.value or "").strip()}


def text_area(label: str, rows: int, value: str = "") -> ui.textarea:
    return ui.textarea(label, value=value).props(f"outlined dense stack-label rows={rows}").classes("mono")


def field(label: str, value: str = "", **settings: Any) -> ui.input:
    return (
        ui.input(label, value=value, **settings).props("outlined dense stack-label hide-bottom-space").classes("grow")
    )


def search(live: Live, on_search: Callable[[str], None]) -> ui.input:
    """A field that filters a list; the address of the page says by what."""

    def changed(event: ValueChangeEventArguments[str]) -> None:
        live.address.put(filter=event.value)
        on_search(event.value or "")

    made = field("Filter", live.address.get("filter"), on_change=changed)
    return made.props('clearable debounce=200 data-filter="1"')


def number(label: str, value: float | None = None, **settings: Any) -> ui.number:
    return (
        ui.number(label, value=value, format="%d", **settings)
        .props("outlined dense stack-label hide-bottom-space")
        .classes("grow")
    )


def select(label: str, options: Any, value: object = None, **settings: Any) -> ui.select:
    return (
        ui.select(options, label=label, value=value, **settings)
        .props("outlined dense stack-label options-dense hide-bottom-space")
        .classes("grow")
    )
