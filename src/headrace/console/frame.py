"""The frame around every page: the bar with the cluster's health, the rail with the ways to go, the two themes.

Pages are parts of one document (`ui.sub_pages`): going from one to another loads nothing anew and nothing jumps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from nicegui import ui
from starlette.exceptions import HTTPException
from starlette.requests import Request

from headrace import __version__
from headrace.console import formatting
from headrace.console.backend import Backend
from headrace.console.pages import (
    brokers,
    connectors,
    groups,
    overview,
    pipelines,
    records,
    schemas,
    sql,
    timeline,
    topics,
)
from headrace.console.pages import topic as topic_page
from headrace.console.widgets import Live, attribute, element, empty, flag, link, page, put, show_state, state
from headrace.monitor import Snapshot

_THEME = "headrace_theme"
# From this width on, in pixels, the rail stands beside the page.
_WIDE = 900
_HEALTH = {
    "up": ("healthy", "good"),
    "degraded": ("degraded", "warn"),
    "critical": ("critical", "bad"),
    "down": ("not reachable", "bad"),
}


def _nothing(_: Snapshot) -> str:
    return ""


# Path, label, icon, and the number beside it.
_WAYS: tuple[tuple[str, str, str, Callable[[Snapshot], object]], ...] = (
    ("/", "Overview", "dashboard", _nothing),
    ("/topics", "Topics", "topic", lambda now: now.totals.topics or ""),
    ("/records", "Records", "receipt_long", _nothing),
    ("/groups", "Groups", "groups", lambda now: len(now.groups) or ""),
    ("/pipelines", "Pipelines", "account_tree", lambda now: len(now.pipelines) or ""),
    ("/sql", "SQL", "terminal", _nothing),
    ("/brokers", "Brokers", "dns", lambda now: len(now.brokers) or ""),
    ("/schemas", "Schemas", "schema", lambda now: len(now.subjects or ()) or ""),
    ("/connectors", "Connectors", "cable", lambda now: len(now.connectors or ()) or ""),
    ("/timeline", "Timeline", "timeline", _nothing),
)


def add_pages(backend: Backend) -> None:
    """The pages of this console, all of them below one frame."""

    def frame(request: Request) -> None:
        if not request.scope.get("headrace.let_in"):
            raise HTTPException(404)
        _frame(backend, request)

    ui.page("/")(frame)
    ui.page("/{_:path}")(frame)


def _frame(backend: Backend, request: Request) -> None:
    ui.add_head_html(f'<link rel="stylesheet" href="/static/console.css?v={__version__}">')
    ui.add_head_html('<meta name="description" content="headrace console">')
    theme = request.cookies.get(_THEME)
    dark = ui.dark_mode({"dark": True, "light": False}.get(theme or ""))
    live = Live(backend)
    link("Skip to content", "#content", "skip")
    rail = ui.left_drawer(value=False, fixed=True, elevated=False).classes("rail")
    rail.props(f"width=208 breakpoint={_WIDE} show-if-above")
    with rail:
        ways = _rail(backend, live)
    # On a narrow screen the rail lies over the page that was just chosen.
    gone = f"() => {{ if (window.innerWidth < {_WIDE}) getElement({rail.id}).hide() }}"
    for way in ways.values():
        way.on("click", js_handler=gone)
    with ui.header(elevated=False).classes("bar"):
        ui.button(icon="menu", on_click=rail.toggle, color=None).props('flat dense round aria-label="Menu"')
        _bar(backend, live, dark)
    routes = _routes(backend)
    pages = _Pages(routes)
    pages.style("width: 100%")
    router = ui.context.client.sub_pages_router
    if pages.has_404:
        ui.context.client.status_code = 404

    def here(path: str) -> None:
        plain = path.partition("?")[0]
        for at, way in ways.items():
            own = plain == at or (at != "/" and plain.startswith((at + "/", at.rstrip("s") + "/")))
            own |= at == "/groups" and plain == "/group"
            flag(way, "here", own)
            attribute(way, "aria-current", "page" if own else None)

    router.on_path_changed(here)
    here(router.current_path)


class _Pages(ui.sub_pages):
    """The pages, with words for the one that is not there."""

    def _render_404(self) -> None:
        with page("Page not found"):
            empty("explore_off", "This page does not exist", "The menu on the left lists all pages.")


def _rail(backend: Backend, live: Live) -> dict[str, ui.element]:
    ways: dict[str, ui.element] = {}
    tallies: list[tuple[ui.element, Callable[[Snapshot], object]]] = []
    with element("nav", "nav", aria_label="Pages"):
        for path, label, icon, tally in _WAYS:
            with element("a", href=path) as way:
                ui.icon(icon)
                element("span", text=label)
                tallies.append((element("span", "tally", ""), tally))
            ways[path] = way
    foot = element("div", "rail-foot", "")

    @live
    def show(now: Snapshot) -> None:
        for target, tally in tallies:
            put(target, str(tally(now)))
        put(foot, f"headrace {__version__}{' · read-only' if backend.read_only else ''}")

    return ways


def _bar(backend: Backend, live: Live, dark: ui.dark_mode) -> None:
    with element("a", "brand", href="/"):
        element("img", src="/static/headrace.svg", alt="", width="26", height="26")
        element("span", text="headrace")
    element("span", "cluster-name", backend.title, title=backend.target.connection.bootstrap)
    health = state("…", "none")
    element("span", "grow")
    asked = element("span", "faint nowrap gt-xs", "")
    chosen = {"dark": dark.value}

    def turn() -> None:
        now_dark = not chosen["dark"] if chosen["dark"] is not None else True
        chosen["dark"] = now_dark
        dark.value = now_dark
        theme = "dark" if now_dark else "light"
        ui.run_javascript(f'document.cookie = "{_THEME}={theme}; path=/; max-age=31536000; samesite=strict"')

    ui.button(icon="contrast", on_click=turn, color=None).props('flat dense round aria-label="Dark or light"')

    @live
    def show(now: Snapshot) -> None:
        word, kind = _HEALTH[now.health]
        show_state(health, word, kind)  # type: ignore[arg-type]
        attribute(health, "title", "; ".join(now.complaints()) or "every broker answers, every replica is in sync")
        put(asked, f"as of {formatting.clock(now.at)} {formatting.zone(now.at)}")


def _routes(backend: Backend) -> dict[str, Callable[..., None]]:
    pages: dict[str, Callable[..., None]] = {
        "/": overview.show,
        "/topics": topics.show,
        "/topics/{name}": topic_page.show,
        "/records": records.show,
        "/records/{name}": records.show,
        "/groups": groups.show,
        "/group": groups.show_one,
        "/pipelines": pipelines.show,
        "/sql": sql.show,
        "/brokers": brokers.show,
        "/schemas": schemas.show,
        "/schema": schemas.show_one,
        "/connectors": connectors.show,
        "/timeline": timeline.show,
    }
    return {path: partial(page, backend) for path, page in pages.items()}
