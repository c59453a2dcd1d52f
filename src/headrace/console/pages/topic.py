"""One topic: its partitions, bytes and rates over time, settings, readers, records and segments."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from nicegui import ui

from headrace.console import formatting
from headrace.console.backend import Desk
from headrace.console.charts import BLUE, TEAL, VIOLET, Line, TimeChart
from headrace.console.pages import records, segments
from headrace.console.pages.topics import health
from headrace.console.tables import Column, Row, Table
from headrace.console.widgets import (
    EqualPanel,
    EventList,
    Live,
    Tile,
    Verdict,
    attempt,
    box,
    button,
    card,
    confirm,
    dialog,
    element,
    empty,
    field,
    group_href,
    no_topic,
    number,
    once_known,
    over_time,
    page,
    quoted,
    traces,
)  # fmt: skip
from headrace.errors import HeadraceError
from headrace.monitor import PartitionView, Snapshot, TopicView
from headrace.transport.topics import TopicDescription

_PARTITIONS = (
    Column("partition", "Partition", "number"),
    Column("leader", "Leader", "state"),
    Column("replicas", "Replicas", "mono"),
    Column("isr", "In sync", "mono"),
    Column("begin", "Begin", "number", wide=True),
    Column("end", "End", "number"),
    Column("offsets", "Offsets", "number"),
    Column("bytes", "Bytes", "number"),
    Column("copies", "Bytes of each replica", "mono", wide=True),
)
_TABS = ("Partitions", "Records", "Settings", "Readers", "Segments", "Events")
_READERS = (
    Column("reader", "Reader", "link"),
    Column("kind", "Kind"),
    Column("state", "State"),
    Column("lag", "Lag", "number"),
    Column("late", "Behind", "number"),
)


def show(desk: Desk, name: str) -> None:
    live = Live(desk)
    with page(name, crumb=("Topics", "/topics")) as side:

        @once_known(live, lambda now: name in now.topics, lambda: no_topic(name))
        def build() -> None:
            with side:
                _buttons(desk, name)
            _tiles(desk, name, live)
            _tabs(desk, name, live)


def _tabs(desk: Desk, name: str, live: Live) -> None:
    said = live.address.get("tab")
    with ui.tabs().props("dense align=left no-caps").classes("tabs-line") as tabs:
        for label in _TABS:
            ui.tab(label)
    panels = ui.tab_panels(
        tabs,
        value=said if said in _TABS else _TABS[0],
        on_change=lambda event: live.address.put(tab=event.value if event.value != _TABS[0] else None),
    )
    with panels.props("keep-alive").classes("w-full"):
        with ui.tab_panel("Partitions"), box("stack"):
            _charts(desk, name, live)
            _partitions(desk, name, live)
        with ui.tab_panel("Records"):
            records.browse(desk, name, live)
        with ui.tab_panel("Settings"):
            _settings(desk, name)
        with ui.tab_panel("Readers"):
            _readers(desk, name, live)
        with ui.tab_panel("Segments"):
            segments.show(desk, name)
        with ui.tab_panel("Events"), card():
            events = EventList(most=100, long_time=True, nothing="No events for this topic.")
            live.past(lambda: desk.history.events(topic=name, most=100), events.show)


def _buttons(desk: Desk, name: str) -> None:
    element("a", "link", "JSON", href=f"/api/topics/{quoted(name)}", target="_blank")
    writable = not desk.read_only
    button("Produce", lambda: records.produce(desk, name), kind="primary", icon="send").set_enabled(writable)
    button("Alter", lambda: _alter(desk, name), icon="tune").set_enabled(writable)
    button("Clean", lambda: _clean(desk, name), icon="cleaning_services").set_enabled(writable)
    button("Delete", lambda: _delete(desk, name), kind="danger-plain", icon="delete").set_enabled(writable)


def _tiles(desk: Desk, name: str, live: Live) -> None:
    with box("tiles"):
        flow_in, out = Tile("Records in", spark=True), Tile("Records out", spark=True)
        stored, held = Tile("Stored", spark=True), Tile("Offsets")
        replicas = Tile("Replicas")

    counted: dict[int, int | None] = {}

    async def count() -> None:
        topic = desk.now.topics.get(name)
        if topic is not None and topic.offsets not in counted:
            found = await attempt(lambda: desk.count_records(name))
            if not isinstance(found, HeadraceError):
                counted.clear()
                counted.update([found])

    ui.timer(0.05, count, once=True)
    ui.timer(5.0, count)

    @live
    def show(now: Snapshot) -> None:
        topic = now.topics.get(name)
        if topic is None:
            return
        flow_in.show(formatting.rate(topic.in_per_s), formatting.byte_rate(topic.in_bytes_per_s))
        out.show(formatting.rate(topic.out_per_s), "read by groups")
        stored.show(formatting.size(topic.size_bytes), f"{formatting.size(topic.stored_bytes)} with all replicas")
        held.show(formatting.count(topic.offsets), _in_records(topic, counted))
        text, kind = health(topic)
        note = f"{formatting.plural(len(topic.partitions), 'partition')}, {topic.replication} replicas"
        replicas.show(text, note, kind if kind in {"warn", "bad"} else "")

    traces(live, "topic", name, {"in": flow_in, "out": out, "bytes": stored})


def _in_records(topic: TopicView, counted: Mapping[int, int | None]) -> str:
    """How many records the offsets stand for, if they were counted."""
    records = counted.get(topic.offsets or 0)
    return "of records and markers" if records is None else formatting.plural(records, "record")


def _charts(desk: Desk, name: str, live: Live) -> None:
    with box("columns"):
        with card("Records per second") as rates_card:
            rates = TimeChart("rate", label="Records in and out per second over time")
        with card("Bytes stored"):
            stored = TimeChart("bytes", label="Bytes stored over time")

    def read(range_s: int) -> list[Line]:
        series, since = desk.history.series, time.time() - range_s
        colours = {"in": BLUE, "out": TEAL, "bytes": VIOLET}
        return [Line(metric, series("topic", name, metric, since=since), colour) for metric, colour in colours.items()]

    def draw(lines: list[Line], range_s: int) -> None:
        rates.show(lines[:2], range_s)
        stored.show(lines[2:], range_s)

    over_time(rates_card, live, read, draw)


def _partitions(desk: Desk, name: str, live: Live) -> None:
    def rows() -> list[Row]:
        topic = desk.now.topics.get(name)
        return [_partition_row(p) for p in topic.partitions] if topic else []

    with card("Partitions"):
        table = Table(_PARTITIONS, rows, key="partition")
    live(lambda _: table.refresh())


def _partition_row(p: PartitionView) -> Row:
    return {
        "partition": p.partition,
        "leader": f"broker {p.leader}" if p.leader >= 0 else "none",
        "leader_state": "bad" if p.leader < 0 else "warn" if p.under_replicated else "good",
        "_leader": p.leader,
        "replicas": ", ".join(map(str, p.replicas)),
        "isr": ", ".join(map(str, p.isr)),
        "begin": formatting.count(p.begin),
        "_begin": p.begin,
        "end": formatting.count(p.end),
        "_end": p.end,
        "offsets": formatting.count(p.offsets),
        "_offsets": p.offsets,
        "bytes": formatting.size(p.size_bytes),
        "_bytes": p.size_bytes,
        "copies": "  ".join(f"{b}: {formatting.size(s)}" for b, s in zip(p.replicas, p.replica_bytes, strict=False)),
    }


# -- settings ---------------------------------------------------------------------------------------------------


def _settings(desk: Desk, name: str) -> None:
    columns = (
        Column("setting", "Setting", "mono"),
        Column("value", "Value", "clip"),
        Column("source", "Source"),
        Column("default", "Kafka's default", "clip", wide=True),
    )
    chosen: dict[str, Any] = {"all": False, "found": None}

    def rows() -> list[Row]:
        found: TopicDescription | None = chosen["found"]
        return [
            {
                "setting": key,
                "value": "(hidden)" if config.sensitive else formatting.setting(key, config.value),
                "source": config.source,
                "default": formatting.setting(key, config.default),
            }
            for key, config in (found.configs.items() if found else ())
            if chosen["all"] or config.source not in {"default"} or key in {"cleanup.policy", "retention.ms"}
        ]

    def show_all(event: Any) -> None:
        chosen["all"] = bool(event.value)
        table.refresh()

    with card("Settings") as made:
        verdict = Verdict()
        table = Table(columns, rows, key="setting", per_page=100)
    with made.default_slot.children[0], element("span", "side"):
        ui.switch("all of them", on_change=show_all).props("dense")

    async def load() -> None:
        found = await attempt(lambda: desk.describe_topic(name))
        if isinstance(found, HeadraceError):
            verdict.problem(found)
            return
        chosen["found"] = found
        table.refresh()

    ui.timer(0.05, load, once=True)
    ui.timer(10.0, load)


def _readers(desk: Desk, name: str, live: Live) -> None:
    def rows() -> list[Row]:
        now = desk.now
        found: list[Row] = []
        for group in now.groups.values():
            if name in group.topics:
                lags = [o for o in group.offsets or () if o.topic == name]
                lag = sum(o.lag for o in lags if o.lag is not None)
                late = max((o.lag_s for o in lags if o.lag_s is not None), default=None)
                found.append(
                    {
                        "reader": group.group, "reader_href": group_href(group.group), "kind": "group",
                        "state": group.state, "lag": formatting.count(lag), "_lag": lag, "late": formatting.span(late),
                        "_late": late,
                    }
                )  # fmt: skip
        for pipeline in now.pipelines:
            if name in pipeline.sources:
                lag_of = sum(o.lag or 0 for o in pipeline.offsets if o.topic == name)
                found.append(
                    {"reader": pipeline.name, "reader_href": "/pipelines", "kind": "pipeline", "state": pipeline.state,
                     "lag": formatting.count(lag_of), "_lag": lag_of, "late": formatting.DASH}
                )  # fmt: skip
        found += [
            {"reader": c.name, "reader_href": "/connectors", "kind": "connector", "state": c.state,
             "lag": formatting.DASH, "late": formatting.DASH}
            for c in now.connectors or ()
            if c.kind == "sink" and name in c.topics
        ]  # fmt: skip
        return found

    with card("Consumers"):
        nothing = empty("groups", "No consumers yet",
                        "Groups, pipelines and sink connectors appear here as soon as they read. For example:",
                        f"headrace consume {name} --group mine")  # fmt: skip
        table = Table(_READERS, rows, key="reader")

    @live
    def refresh(_: Snapshot) -> None:
        table.refresh()
        has_any = bool(rows())
        nothing.set_visibility(not has_any)
        table.table.set_visibility(has_any)


# -- changes ----------------------------------------------------------------------------------------------------


def _alter(desk: Desk, name: str) -> None:
    topic = desk.now.topics.get(name)
    had = len(topic.partitions) if topic else 1
    configs: list[tuple[ui.input, ui.input]] = []
    with dialog(f"Alter {name}") as asking:
        with element("div", "fields"):
            partitions = number("Partitions (they can only grow)", had, min=had, max=100_000)
        warning = element("div", "complaints", "Keys map to other partitions from then on: the records of a key are in "
                          "order only within each of the two times.")  # fmt: skip
        warning.set_visibility(False)
        custom = element("div", "stack tight")
        element("div", "muted", "A setting without a value is reset to its default.")
        with element("div", "row"):
            button("Add a setting", lambda: add_setting(), icon="tune")
        equal = EqualPanel()
        verdict = Verdict()
        with element("div", "row end"):
            button("Cancel", asking.close)
            act = button("Alter", kind="primary")

    def wanted() -> tuple[int | None, dict[str, str | None]]:
        grown = int(partitions.value or had)
        return (grown if grown != had else None), {k.value.strip(): v.value or None for k, v in configs if k.value}

    def changed() -> None:
        grown, settings = wanted()
        warning.set_visibility(grown is not None)
        equal.show(desk.commands.alter_topic(name, grown, settings))

    def add_setting() -> None:
        with custom, element("div", "row"):
            key = field("Setting", on_change=changed).props('placeholder="retention.ms"')
            value = field("Value", on_change=changed)
        configs.append((key, value))

    async def run() -> None:
        act.props("loading")
        result = await attempt(lambda: desk.alter_topic(name, *wanted()))
        act.props(remove="loading")
        if isinstance(result, HeadraceError):
            verdict.problem(result)
            return
        asking.close()
        ui.notify(f"{name} is altered", type="positive", position="bottom-right")

    partitions.on_value_change(lambda _: changed())
    act.on("click", run)
    add_setting()
    changed()


def _held(topic: TopicView | None) -> str:
    if topic is None:
        return ""
    return (
        f"{formatting.plural(len(topic.partitions), 'partition')}, up to {formatting.count(topic.offsets)} records, "
        + formatting.size(topic.size_bytes)
    )


async def _clean(desk: Desk, name: str) -> None:
    topic = desk.now.topics.get(name)
    numbers = [p.partition for p in topic.partitions] if topic else []
    await confirm(
        f"Delete all records of {name}?",
        f"{_held(topic)}: deleted for every reader. The topic and its settings stay; offsets continue from there.",
        desk.commands.clean_topic(name, numbers),
        lambda: desk.clean_topic(name),
        action="Delete the records",
        done=f"{name} is empty",
    )


async def _delete(desk: Desk, name: str) -> None:
    def work() -> None:
        desk.delete_topic(name)

    await confirm(
        f"Delete the topic {name}?",
        f"{_held(desk.now.topics.get(name))}: deleted with the topic. This cannot be undone.",
        desk.commands.delete_topic(name),
        work,
        action="Delete the topic",
        done=f"{name} is deleted",
        type_in=name,
    )
