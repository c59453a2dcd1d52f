"""The timeline: what changed beside what flowed, to look at after a failure."""

from __future__ import annotations

import time

from nicegui import ui

from headrace.console import pieces
from headrace.console.charts import AMBER, BLUE, RED, TEAL, VIOLET, Line, TimeChart
from headrace.console.desk import Desk
from headrace.console.pieces import EventList, Live, box, card, element, over_time, page
from headrace.monitor.events import Event

_KINDS = {
    "broker": "brokers", "controller": "controller", "leader": "leaders", "isr": "ISR", "topic": "topics",
    "group": "groups", "member": "members", "ownership": "ownership", "connector": "connectors", "schema": "schemas",
    "pipeline": "pipelines", "node": "nodes", "console": "the watch",
}  # fmt: skip
_COLOURS = {"error": RED, "warning": AMBER, "good": TEAL}


def show(desk: Desk) -> None:
    live = Live(desk)
    with page("Timeline") as side:
        with side:
            element("a", "link", "JSON", href="/api/events", target="_blank")
        with card("Throughput, with what happened") as made:
            flow = TimeChart("rate", label="Records in and out per second, with events as lines")
        with box("columns"):
            with card("Lag of all groups"):
                lag = TimeChart("count", label="Lag over time")
            with card("Under-replicated partitions"):
                behind = TimeChart("count", label="Under-replicated partitions over time")
        with card("Events") as listed:
            events = EventList(most=300, long_time=True, nothing="Nothing has changed in this time.")
    with listed.default_slot.children[0], element("span", "side"):
        words = pieces.field("Filter").props("clearable debounce=200").style("min-width: 160px")
        kinds = (
            ui.select(_KINDS, multiple=True, label="Kinds", value=[])
            .props("outlined dense stack-label options-dense use-chips clearable")
            .style("min-width: 200px")
        )

    def draw(range_s: int) -> None:
        since = time.time() - range_s
        wanted = [kind for kind in kinds.value or [] if kind in _KINDS]
        found = desk.history.events(since=since, kinds=wanted, most=300)
        text = (words.value or "").lower()
        if text:
            found = [event for event in found if text in event.text.lower()]
        series = desk.history.series
        flow.show(
            [
                Line("records in", series("cluster", "", "in", since=since), BLUE),
                Line("records out", series("cluster", "", "out", since=since), TEAL),
            ],
            range_s,
            _marks(found),
        )
        lag.show([Line("lag", series("cluster", "", "lag", since=since), VIOLET)], range_s)
        behind.show([Line("partitions", series("cluster", "", "under_replicated", since=since), RED)], range_s)
        events.show(found)

    redraw = over_time(made, live, draw)
    words.on_value_change(lambda _: redraw())
    kinds.on_value_change(lambda _: redraw())


def _marks(events: list[Event]) -> list[tuple[float, str, str]]:
    """The events that are worth a line in the chart."""
    return [(e.at, _COLOURS[e.level], e.text) for e in events if e.level in _COLOURS][:60]
