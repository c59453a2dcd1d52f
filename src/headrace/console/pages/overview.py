"""Health in one glance: throughput in and out, disk, lag, brokers, pipelines, and what changed lately."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from nicegui import ui

from headrace.console import formatting
from headrace.console.backend import Backend
from headrace.console.charts import BLUE, TEAL, Line, TimeChart
from headrace.console.pages.topics import BUSY, sparks
from headrace.console.tables import Table
from headrace.console.widgets import (
    EventList,
    Live,
    State,
    Tile,
    box,
    card,
    each,
    element,
    empty,
    flag,
    json_link,
    link,
    over_time,
    page,
    put,
    show_state,
    side_of,
    state,
    traces,
)
from headrace.monitor import BrokerView, PipelineView, Snapshot, TopicView

BROKER_STATES: dict[str, tuple[str, State]] = {
    "up": ("up", "good"),
    "quiet": ("not answering", "warn"),
    "down": ("down", "bad"),
}
PIPELINE_STATES: dict[str, State] = {
    "running": "good",
    "waiting": "warn",
    "stopped": "none",
    "never run": "none",
    "failed": "bad",
}


def show(backend: Backend) -> None:
    live = Live(backend)
    with page("Overview") as side:
        with side:
            json_link("overview")
        _complaints(live)
        _tiles(live)
        with box("columns wide-left"):
            with box("stack"):
                _throughput(backend, live)
                _busiest(backend, live)
            with box("stack"):
                _brokers(live)
                _pipelines(live)
                _lately(backend, live)


def _complaints(live: Live) -> None:
    place = element("div", "complaints", role="alert")
    shown: list[tuple[str, ...]] = []

    @live
    def show(now: Snapshot) -> None:
        found = now.complaints()
        if shown and shown[0] == found:
            return
        shown[:] = [found]
        place.clear()
        flag(place, "is-bad", now.health in {"down", "critical"})
        with place:
            for complaint in found[:6]:
                element("div", text=complaint)
            if len(found) > 6:
                element("div", text=f"and {len(found) - 6} more")
        place.set_visibility(bool(found))


def _tiles(live: Live) -> None:
    with box("tiles"):
        read_in, out = Tile("Records in", spark=True), Tile("Records out", spark=True)
        stored, lag = Tile("Stored", spark=True), Tile("Lag of all groups", spark=True)
        topics, replicas = Tile("Topics"), Tile("Replicas")

    @live
    def show(now: Snapshot) -> None:
        totals = now.totals
        read_in.show(formatting.rate(totals.in_per_s), formatting.byte_rate(totals.in_bytes_per_s))
        out.show(formatting.rate(totals.out_per_s), "read by groups")
        free = min((b.disk_free_bytes for b in now.brokers if b.disk_free_bytes is not None), default=None)
        stored.show(
            formatting.size(totals.stored_bytes),
            f"{formatting.size(free)} free" if free is not None else "all replicas",
        )
        late = max((g.lag_s for g in now.groups.values() if g.lag_s), default=None)
        lag.show(
            formatting.short_count(totals.lag),
            f"up to {formatting.span(late)} behind" if late else "no group is behind",
        )
        topics.show(formatting.count(totals.topics), formatting.plural(totals.partitions, "partition"))
        level: Literal["", "warn", "bad"] = "bad" if totals.offline else "warn" if totals.under_replicated else ""
        whole = "in sync" if not totals.under_replicated else f"{totals.under_replicated:,} behind"
        replicas.show(whole, f"{totals.offline:,} without a leader", level)

    traces(live, "cluster", "", {"in": read_in, "out": out, "bytes": stored, "lag": lag})


def _throughput(backend: Backend, live: Live) -> None:
    with card("Throughput") as made:
        chart = TimeChart("rate", label="Records in and out per second over time")

    def read(range_s: int) -> list[Line]:
        series, since = backend.history.series, time.time() - range_s
        return [
            Line("records in", series("cluster", "", "in", since=since), BLUE),
            Line("records out", series("cluster", "", "out", since=since), TEAL),
        ]

    over_time(made, live, read, chart.show)


def _busiest(backend: Backend, live: Live) -> None:
    def rows() -> list[TopicView]:
        found = [t for t in backend.now.topics.values() if not t.internal]
        found.sort(key=lambda t: (t.in_per_s or 0, t.out_per_s or 0, t.size_bytes or 0), reverse=True)
        return found[:8]

    with card("Busiest topics"):
        nothing = empty("topic", "No topics yet", "Create one here under Topics, or in a terminal:",
                        "headrace topic create orders --partitions 3")  # fmt: skip
        table = Table(BUSY, rows, key=lambda t: t.name, sort="in", descending=True)
        sparks(live, table, "topic", "in")

    @live
    def show(now: Snapshot) -> None:
        table.refresh()
        nothing.set_visibility(not now.totals.topics and now.reachable)
        table.table.set_visibility(bool(now.totals.topics))


def _brokers(live: Live) -> None:
    with card("Brokers"):
        nothing = element("div", "muted", "No broker has answered yet.")
        place = element("div", "stack tight")

    def build(broker: BrokerView) -> Callable[[BrokerView], None]:
        badge, note = _line(f"broker {broker.broker_id}", "/brokers")

        def show(now: BrokerView) -> None:
            show_state(badge, *BROKER_STATES[now.state])
            parts = [formatting.plural(now.leaders, "leader"), formatting.size(now.size_bytes)]
            put(note, " · ".join([*parts, "controller"] if now.controller else parts))

        return show

    each(live, place, lambda now: {b.broker_id: b for b in now.brokers}, build)
    live(lambda now: nothing.set_visibility(not now.brokers))


def _line(name: str, href: str) -> tuple[ui.element, ui.element]:
    """A name with a note and a state, to be filled in."""
    with element("div", "row one-line"):
        link(name, href)
        note = element("span", "muted grow", "")
        badge = state("", "none")
    return badge, note


def _pipelines(live: Live) -> None:
    """Only where there are some."""
    with card("Pipelines") as made:
        place = element("div", "stack tight")

    def build(pipeline: PipelineView) -> Callable[[PipelineView], None]:
        badge, note = _line(pipeline.name, "/pipelines")

        def show(now: PipelineView) -> None:
            show_state(badge, now.state, PIPELINE_STATES[now.state])
            put(note, f"{formatting.short_count(now.lag)} to read" if now.lag else "nothing to read")

        return show

    each(live, place, lambda now: {p.name: p for p in now.pipelines}, build)
    live(lambda now: made.set_visibility(bool(now.pipelines)))


def _lately(backend: Backend, live: Live) -> None:
    with card("What changed lately") as made:
        events = EventList(most=10)
    with side_of(made):
        link("Timeline", "/timeline")
    live.past(lambda: backend.history.events(most=10), events.show)
