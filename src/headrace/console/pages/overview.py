"""Health in one glance: throughput in and out, disk, lag, brokers, pipelines, and what changed lately."""

from __future__ import annotations

import time
from typing import Literal

from nicegui import ui

from headrace.console import formatting
from headrace.console.backend import Desk
from headrace.console.charts import BLUE, TEAL, Line, TimeChart
from headrace.console.pages.topics import sparks
from headrace.console.tables import Column, Row, Table
from headrace.console.widgets import (
    EventList,
    Live,
    State,
    Tile,
    box,
    card,
    element,
    empty,
    flag,
    link,
    over_time,
    page,
    put,
    show_state,
    state,
    topic_href,
    traces,
)  # fmt: skip
from headrace.monitor import Snapshot

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


def show(desk: Desk) -> None:
    live = Live(desk)
    with page("Overview") as side:
        with side:
            element("a", "link", "JSON", href="/api/overview", target="_blank")
        _complaints(live)
        _tiles(live)
        with box("columns wide-left"):
            with box("stack"):
                _throughput(desk, live)
                _busiest(desk, live)
            with box("stack"):
                _brokers(live)
                _pipelines(live)
                _lately(desk, live)


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


def _throughput(desk: Desk, live: Live) -> None:
    with card("Throughput") as made:
        chart = TimeChart("rate", label="Records in and out per second over time")

    def read(range_s: int) -> list[Line]:
        series, since = desk.history.series, time.time() - range_s
        return [
            Line("records in", series("cluster", "", "in", since=since), BLUE),
            Line("records out", series("cluster", "", "out", since=since), TEAL),
        ]

    over_time(made, live, read, chart.show)


def _busiest(desk: Desk, live: Live) -> None:
    columns = [
        Column("topic", "Topic", "link"),
        Column("spark", "Last 15 min", "spark", wide=True),
        Column("in", "In", "number"),
        Column("out", "Out", "number"),
        Column("bytes", "Stored", "number"),
    ]

    def rows() -> list[Row]:
        found = [t for t in desk.now.topics.values() if not t.internal]
        found.sort(key=lambda t: (t.in_per_s or 0, t.out_per_s or 0, t.size_bytes or 0), reverse=True)
        return [
            {
                "topic": t.name, "topic_href": topic_href(t.name), "_in": t.in_per_s, "in": formatting.rate(t.in_per_s),
                "out": formatting.rate(t.out_per_s), "_out": t.out_per_s, "bytes": formatting.size(t.size_bytes),
                "_bytes": t.size_bytes,
            }
            for t in found[:8]
        ]  # fmt: skip

    with card("Busiest topics"):
        nothing = empty("topic", "No topics yet", "Create one here under Topics, or in a terminal:",
                        "headrace topic create orders --partitions 3")  # fmt: skip
        table = Table(columns, rows, key="topic", sort="in", descending=True)
        sparks(live, table, "topic", "in")

    @live
    def show(now: Snapshot) -> None:
        table.refresh()
        nothing.set_visibility(not now.totals.topics and now.reachable)
        table.table.set_visibility(bool(now.totals.topics))


def _brokers(live: Live) -> None:
    with card("Brokers"):
        place = element("div", "stack tight")
    lines: dict[int, tuple[ui.element, ui.element]] = {}

    @live
    def show(now: Snapshot) -> None:
        if lines.keys() != {b.broker_id for b in now.brokers}:
            place.clear()
            lines.clear()
            with place:
                for broker in now.brokers:
                    lines[broker.broker_id] = _line(f"broker {broker.broker_id}", "/brokers")
                if not now.brokers:
                    element("div", "muted", "No broker has answered yet.")
        for broker in now.brokers:
            badge, note = lines[broker.broker_id]
            show_state(badge, *BROKER_STATES[broker.state])
            told = [formatting.plural(broker.leaders, "leader"), formatting.size(broker.size_bytes)]
            put(note, " · ".join([*told, "controller"] if broker.controller else told))


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
    lines: dict[str, tuple[ui.element, ui.element]] = {}

    @live
    def show(now: Snapshot) -> None:
        made.set_visibility(bool(now.pipelines))
        if list(lines) != [p.name for p in now.pipelines]:
            place.clear()
            lines.clear()
            with place:
                lines.update({p.name: _line(p.name, "/pipelines") for p in now.pipelines})
        for pipeline in now.pipelines:
            badge, note = lines[pipeline.name]
            show_state(badge, pipeline.state, PIPELINE_STATES[pipeline.state])
            put(note, f"{formatting.short_count(pipeline.lag)} to read" if pipeline.lag else "nothing to read")


def _lately(desk: Desk, live: Live) -> None:
    with card("What changed lately") as made:
        events = EventList(most=10)
    with made.default_slot.children[0], element("span", "side"):
        link("Timeline", "/timeline")
    live.past(lambda: desk.history.events(most=10), events.show)
