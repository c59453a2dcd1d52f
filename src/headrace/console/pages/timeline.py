"""The timeline: what changed beside what flowed, to look at after a failure."""

from __future__ import annotations

import time

from nicegui import ui

from headrace.console import forms
from headrace.console.backend import Backend
from headrace.console.charts import AMBER, BLUE, RED, TEAL, VIOLET, Line, TimeChart
from headrace.console.widgets import EventList, Live, box, card, json_link, over_time, page, side_of
from headrace.monitor import Event

_KINDS = {
    "broker": "brokers", "controller": "controller", "leader": "leaders", "isr": "ISR", "topic": "topics",
    "group": "groups", "member": "members", "ownership": "ownership", "connector": "connectors", "schema": "schemas",
    "pipeline": "pipelines", "node": "nodes", "console": "console",
}  # fmt: skip
_LINES = (
    ("records in", "in", BLUE),
    ("records out", "out", TEAL),
    ("lag", "lag", VIOLET),
    ("partitions", "under_replicated", RED),
)
_COLOURS = {"error": RED, "warning": AMBER, "good": TEAL}


def show(backend: Backend) -> None:
    live = Live(backend)
    said = [kind for kind in live.address.get("kinds").split(",") if kind in _KINDS]
    with page("Timeline") as side:
        with side:
            json_link("events")
        with card("Throughput, with what happened") as made:
            flow = TimeChart("rate", label="Records in and out per second, with events as lines")
        with box("columns"):
            with card("Lag of all groups"):
                lag = TimeChart("count", label="Lag over time")
            with card("Under-replicated partitions"):
                behind = TimeChart("count", label="Under-replicated partitions over time")
        with card("Events") as listed:
            events = EventList(most=300, long_time=True, nothing="Nothing has changed in this time.")
    with side_of(listed):
        words = (
            forms.field("Filter", live.address.get("filter")).props("clearable debounce=200").style("min-width: 160px")
        )
        kinds = (
            ui.select(_KINDS, multiple=True, label="Kinds", value=said)
            .props("outlined dense stack-label options-dense use-chips clearable")
            .style("min-width: 200px")
        )

    def read(range_s: int) -> tuple[list[Event], list[Line]]:
        since, text = time.time() - range_s, live.address.get("filter").lower()
        wanted = [kind for kind in live.address.get("kinds").split(",") if kind in _KINDS]
        found = backend.history.events(since=since, kinds=wanted, most=300)
        series = backend.history.series
        return [event for event in found if text in event.text.lower()], [
            Line(name, series("cluster", "", metric, since=since), colour) for name, metric, colour in _LINES
        ]

    def draw(found: tuple[list[Event], list[Line]], range_s: int) -> None:
        happened, lines = found
        flow.show(lines[:2], range_s, _marks(happened))
        lag.show(lines[2:3], range_s)
        behind.show(lines[3:], range_s)
        events.show(happened)

    look = over_time(made, live, read, draw)

    async def chosen() -> None:
        live.address.put(filter=words.value, kinds=",".join(kinds.value or ()))
        await look()

    words.on_value_change(chosen)
    kinds.on_value_change(chosen)


def _marks(events: list[Event]) -> list[tuple[float, str, str]]:
    """The events that are worth a line in the chart."""
    return [(e.at, _COLOURS[e.level], e.text) for e in events if e.level in _COLOURS][:60]
