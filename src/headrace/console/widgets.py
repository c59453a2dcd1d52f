"""What pages are built of: tiles, cards, states, sparklines, events, and how they stay live.

Everything that a person or a record has named is shown as text or as an attribute; nothing here makes HTML of it, and
no value is ever put into a script.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

from nicegui import ui

from headrace.console import formatting
from headrace.monitor import Event, Point, Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.console.backend import Backend

K = TypeVar("K")
T = TypeVar("T")
State = Literal["good", "warn", "bad", "none"]

_TICK_S = 0.5


class Address:
    """What the address of the page says behind its `?`: tab, filter, range. Whoever opens it later sees the same."""

    def __init__(self) -> None:
        self._router = ui.context.client.sub_pages_router
        self._path, _, query = self._router.current_path.partition("?")
        self._said = dict(parse_qsl(query))

    def get(self, name: str, otherwise: str = "") -> str:
        return self._said.get(name, otherwise)

    def put(self, **said: str | None) -> None:
        """The address says so from now on; what is empty is left out."""
        wanted = {name: value for name, value in {**self._said, **said}.items() if value}
        # A browser that is on its way to another page would be called back.
        if wanted == self._said or self._router.current_path.partition("?")[0] != self._path:
            return
        self._said = wanted
        query = urlencode(self._said)
        address = json.dumps(f"{self._path}?{query}" if query else self._path)
        self._router.current_path = json.loads(address)
        ui.run_javascript(f'history.replaceState({{page: {address}}}, "", {address})')


class Live:
    """Calls what is registered with every new snapshot, and once at the beginning, as long as the page is open."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.address = Address()
        self._shown: list[Callable[[Snapshot], object]] = []
        self._looks: list[Callable[[], Awaitable[None]]] = []
        self._at = 0.0
        ui.timer(_TICK_S, self._tick)

    def __call__(self, show: Callable[[Snapshot], object]) -> None:
        self._shown.append(show)
        show(self.backend.now)

    def past(self, read: Callable[[], T], show: Callable[[T], None]) -> Callable[[], Awaitable[None]]:
        """With every snapshot `read` looks into the past, in a thread, and `show` gets what it found.

        Returns what does so at once.
        """

        async def look() -> None:
            show(await asyncio.to_thread(read))

        self._looks.append(look)
        return look

    async def _tick(self) -> None:
        now = self.backend.now
        if now.at == self._at:
            return
        self._at = now.at
        for show in self._shown:
            show(now)
        for look in self._looks:
            await look()


# -- text -------------------------------------------------------------------------------------------------------


def element(tag: str, classes: str = "", text: str | None = None, **attributes: object) -> ui.element:
    """An HTML element with plain text in it."""
    made = ui.element(tag)
    if classes:
        made.classes(classes)
    if text is not None:
        put(made, text)
    for name, value in attributes.items():
        made._props[name.rstrip("_").replace("_", "-")] = value
    return made


def put(target: ui.element, text: str) -> None:
    """The element shows this text; nothing is sent if it does already."""
    if target._text != text:
        target._text = text
        target.update()


def attribute(target: ui.element, name: str, value: object) -> None:
    if target._props.get(name) != value:
        target._props[name] = value
        target.update()


def flag(target: ui.element, name: str, on: bool) -> None:
    """The class is there, or not."""
    if on != (name in target._classes):
        target.classes(add=name) if on else target.classes(remove=name)


def link(text: str, href: str, classes: str = "link") -> ui.element:
    return element("a", classes, text, href=href)


def quoted(name: str) -> str:
    return quote(name, safe="")


def topic_href(name: str) -> str:
    return f"/topics/{quoted(name)}"


def group_href(name: str) -> str:
    return f"/group?name={quoted(name)}"


def state(text: str, kind: State) -> ui.element:
    return element("span", "state", text, data_state=kind)


def show_state(target: ui.element, text: str, kind: State) -> None:
    put(target, text)
    attribute(target, "data-state", kind)


# -- boxes ------------------------------------------------------------------------------------------------------


@contextmanager
def box(classes: str, tag: str = "div") -> Iterator[ui.element]:
    with element(tag, classes) as made:
        yield made


@contextmanager
def card(title: str | None = None, classes: str = "") -> Iterator[ui.element]:
    """A card; what stands beside its title is built in `side_of` it."""
    with element("section", f"card {classes}") as made:
        if title is not None:
            with element("h2", "title"):
                element("span", text=title)
        yield made


@contextmanager
def page(title: str, sub: str | None = None, *, crumb: tuple[str, str] | None = None) -> Iterator[ui.element]:
    """A page with its heading; yields the place for buttons at the right of it."""
    ui.page_title(f"{title} · headrace")
    # The framework's own element around it is the main landmark.
    with element("div", "page", id="content"):
        with element("div", "head"):
            with element("div", "grow"):
                if crumb:
                    link(crumb[0], crumb[1], "crumb link")
                element("h1", text=title)
                if sub:
                    element("div", "sub", sub)
            side = element("div", "row tight")
        yield side


@contextmanager
def side_of(of_card: ui.element) -> Iterator[None]:
    """What is built in the block stands at the right of the card's title."""
    with of_card.default_slot.children[0], element("span", "side"):
        yield


def json_link(path: str) -> None:
    """A link to the same as JSON."""
    element("a", "link", "JSON", href=f"/api/{path}", target="_blank")


def each(
    live: Live,
    place: ui.element,
    found: Callable[[Snapshot], Mapping[K, T]],
    build: Callable[[T], Callable[[T], None]],
) -> None:
    """The place holds one part for each thing that is found: `build` makes it and returns what keeps it up to date."""
    updates: dict[K, Callable[[T], None]] = {}

    @live
    def refresh(now: Snapshot) -> None:
        things = found(now)
        if list(updates) != list(things):
            place.clear()
            with place:
                updates.clear()
                updates.update({key: build(thing) for key, thing in things.items()})
        for key, thing in things.items():
            updates[key](thing)


def once_known(
    live: Live, is_known: Callable[[Snapshot], bool], nothing: Callable[[], ui.element]
) -> Callable[[Callable[[], None]], None]:
    """Decorates what builds this part of the page: it is called as soon as the watch knows what it shows.

    Whoever makes a topic may be here before the watch has seen it.
    """
    place = ui.context.slot.parent

    def decorate(build: Callable[[], None]) -> None:
        missing = None if is_known(live.backend.now) else nothing()
        built = False

        @live
        def look(now: Snapshot) -> None:
            nonlocal built
            if built or not is_known(now):
                return
            built = True
            if missing is not None:
                missing.delete()
            with place:
                build()

    return decorate


class Tile:
    """A number at a glance, with what it was lately behind it."""

    def __init__(self, label: str, *, spark: bool = False) -> None:
        with element("div", "tile") as self.box:
            element("div", "label", label)
            self._value = element("div", "value", formatting.DASH)
            self._note = element("div", "note", "")
            self._spark = Spark() if spark else None

    def show(self, value: str, note: str = "", level: Literal["", "warn", "bad"] = "") -> None:
        put(self._value, value)
        put(self._note, note)
        for name in ("warn", "bad"):
            flag(self.box, f"is-{name}", level == name)

    def trace(self, points: Sequence[Point]) -> None:
        if self._spark:
            self._spark.show(points)


class Spark:
    """A line without axes."""

    def __init__(self) -> None:
        svg = element("svg", "spark", viewBox="0 0 100 24", preserveAspectRatio="none", aria_hidden="true")
        with svg:
            self._area = element("path", "area", d="")
            self._line = element("path", d="")

    def show(self, points: Sequence[Point]) -> None:
        path = spark_path(points)
        attribute(self._line, "d", path)
        attribute(self._area, "d", _filled(path))


def spark_path(points: Sequence[Point]) -> str:
    """The points as an SVG path in a box of 100 by 24; a gap stays a gap."""
    known = [(at, value) for at, value in points if value is not None]
    if len(known) < 2:
        return ""
    first, last = known[0][0], known[-1][0]
    top = max(value for _, value in known) or 1.0
    parts, pen = [], "M"
    for at, value in points:
        if value is None:
            pen = "M"
            continue
        x = 100 * (at - first) / max(1, last - first)
        parts.append(f"{pen}{x:.1f} {22.5 - 21 * value / top:.1f}")
        pen = "L"
    return " ".join(parts)


def _filled(path: str) -> str:
    """The area below each piece of the line."""
    pieces = [piece.strip() for piece in path.split("M") if "L" in piece]
    return " ".join(f"M{p.split()[0]} 24 L{p} L{p.rsplit('L', 1)[1].split()[0]} 24 Z" for p in pieces)


def empty(icon: str, title: str, text: str, command: str | None = None) -> ui.element:
    """Nothing is here yet, and what to do next."""
    with element("div", "empty") as made:
        ui.icon(icon)
        element("b", text=title)
        element("div", text=text)
        if command:
            element("code", text=command)
    return made


def no_topic(name: str) -> ui.element:
    return empty("topic", f"There is no topic {name}", "It may have been deleted, or created a moment ago.",
                 "headrace topic list")  # fmt: skip


def pairs(rows: Iterable[tuple[str, str]]) -> None:
    with element("div", "pairs"):
        for name, value in rows:
            element("div", "k", name)
            element("div", "v", value)


# -- events -----------------------------------------------------------------------------------------------------

_ICONS = {
    "broker": "dns", "controller": "hub", "leader": "swap_horiz", "isr": "sync", "topic": "topic", "group": "groups",
    "member": "person", "ownership": "compare_arrows", "connector": "cable", "schema": "schema",
    "pipeline": "account_tree", "node": "memory", "console": "visibility",
}  # fmt: skip


class EventList:
    """The latest events; built anew only when there are new ones."""

    def __init__(self, *, most: int = 12, long_time: bool = False, nothing: str = "Nothing has changed yet.") -> None:
        self.most = most
        self.long_time = long_time
        self.nothing = nothing
        self._shown: list[Event] | None = None
        self.box = element("div", "events", role="log")

    def show(self, events: Sequence[Event]) -> None:
        chosen = list(events[: self.most])
        if chosen == self._shown:
            return
        self._shown = chosen
        self.box.clear()
        with self.box:
            if not chosen:
                element("div", "muted", self.nothing)
            for event in chosen:
                with element("div", "event long-time" if self.long_time else "event", data_level=event.level):
                    at = formatting.clock(event.at) + (f" {formatting.zone(event.at)}" if self.long_time else "")
                    element("span", "at", at, title=formatting.exact(event.at))
                    ui.icon(_ICONS.get(event.kind, "circle"))
                    element("span", "what", event.text)


def toggle(options: Sequence[tuple[str, str]], chosen: str, on_choose: Callable[[str], Awaitable[None]]) -> None:
    """One of a few, always visible."""
    buttons: dict[str, ui.element] = {}

    async def choose(name: str) -> None:
        for each, button in buttons.items():
            attribute(button, "aria-pressed", "true" if each == name else "false")
        await on_choose(name)

    with element("div", "toggle", role="group"):
        for name, label in options:
            pressed = "true" if name == chosen else "false"
            button = element("button", text=label, type="button", aria_pressed=pressed)
            button.on("click", lambda name=name: choose(name))
            buttons[name] = button


def over_time(
    of_card: ui.element, live: Live, read: Callable[[int], T], show: Callable[[T, int], None], name: str = "range"
) -> Callable[[], Awaitable[None]]:
    """A switch at the right of a card's title: `read` gets how many seconds to look back, `show` gets what it found.

    The address of the page says by this name which one was chosen. Returns what looks again at once.
    """
    from headrace.console.charts import FIRST_RANGE, RANGES

    said = live.address.get(name)
    chosen = said if said in RANGES else FIRST_RANGE

    async def choose(wanted: str) -> None:
        nonlocal chosen
        chosen = wanted
        live.address.put(**{name: wanted if wanted != FIRST_RANGE else None})
        await look()

    with side_of(of_card):
        toggle([(name, name) for name in RANGES], chosen, choose)

    def read_chosen() -> tuple[T, int]:
        range_s = RANGES[chosen]
        return read(range_s), range_s

    look = live.past(read_chosen, lambda found: show(*found))
    return look


def traces(live: Live, kind: str, name: str, tiles: Mapping[str, Tile]) -> None:
    """The tiles show what their metrics were in the last quarter of an hour."""

    def read() -> dict[str, list[Point]]:
        series, since = live.backend.history.series, time.time() - 900
        return {metric: series(kind, name, metric, since=since, most=60) for metric in tiles}

    def show(found: dict[str, list[Point]]) -> None:
        for metric, tile in tiles.items():
            tile.trace(found[metric])

    live.past(read, show)
