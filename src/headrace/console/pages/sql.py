"""SQL: type a query, see its rows, and see them drawn. The address of the page keeps the query."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from headrace.console import formatting
from headrace.console.backend import Backend
from headrace.console.charts import ResultChart
from headrace.console.forms import EqualPanel, Verdict, attempt, button, text_area
from headrace.console.sql import ResultView, ask
from headrace.console.tables import Column, Kind, Table
from headrace.console.widgets import Live, box, card, element, link, page, put
from headrace.errors import HeadraceError

_LONGEST_CELL = 200


def show(backend: Backend) -> None:
    _Sql(backend)


class _Sql:
    """One visit."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.live = Live(backend)
        with page("SQL", "Tables by their names, topics as topic.NAME. Queries only read."):
            with card(), box("stack"):
                first = self.live.address.get("q") or _example(backend)
                self.query = text_area("Query", 5, first).props("spellcheck=false")
                self.query.style("width: 100%").on("keydown.ctrl.enter", self.run)
                with box("row"):
                    self.start = button("Run", self.run, kind="primary", icon="play_arrow")
                    self.summary = element("span", "faint", "Ctrl+Enter runs it", role="status")
                    element("span", "grow")
                    link("Tables", "/sql?q=show+tables")
                with box("mono"):  # a mark below the query stands below its place
                    self.verdict = Verdict()
            self.drawn = element("div")
            self.found = element("div")
            self.equal = EqualPanel(backend.commands.sql(first))
        if self.live.address.get("q"):
            ui.timer(0.05, self.run, once=True)

    async def run(self) -> None:
        """The query that stands there is run; the address says which."""
        query = self.query.value or ""
        self.live.address.put(q=query)
        self.equal.show(self.backend.commands.sql(query))
        self.start.disable()
        put(self.summary, "running …")
        try:
            found = await attempt(lambda: ask(self.backend, query))
        finally:
            self.start.enable()
        self.drawn.clear()
        self.found.clear()
        if isinstance(found, HeadraceError):
            put(self.summary, "")
            self.verdict.problem(found)
            return
        self._say(found)
        self._draw(found)

    def _say(self, found: ResultView) -> None:
        self.verdict.clear()
        rows = f"the first {len(found.rows):,} rows" if found.more else formatting.plural(len(found.rows), "row")
        put(self.summary, f"{rows} in {formatting.span(found.seconds)}")
        if found.notes:
            self.verdict.problem(HeadraceError("; ".join(found.notes)))

    def _draw(self, found: ResultView) -> None:
        if ResultChart.can_show(found):
            with self.drawn, card("Chart"):
                ResultChart(found)
        with self.found, card("Rows"):
            Table(_columns(found), lambda: list(enumerate(found.rows)), key=lambda row: row[0], in_order=True)


def _columns(found: ResultView) -> list[Column]:
    def of(at: int) -> Any:
        return lambda row: row[1][at]

    kinds: dict[str, Kind] = {"number": "number", "time": "mono"}
    return [
        Column(f"c{at}", column.name, kinds.get(column.kind, "text"), of(at), show=_cell)
        for at, column in enumerate(found.columns)
    ]  # fmt: skip


def _cell(value: object) -> str:
    if value is None:
        return formatting.DASH
    if isinstance(value, float):
        return f"{value:,.6g}"
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL]}…"


def _example(backend: Backend) -> str:
    """A query that works here, to begin with."""
    topics = [topic.name for topic in backend.now.topics.values() if not topic.internal]
    name = min(topics, default="")
    return f'select * from topic."{name}" limit 20' if name else "show tables"  # noqa: S608 - to be read, then run
