"""One topic: its partitions, bytes and rates over time, settings, readers, records and segments."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nicegui import ui

from headrace.console import formatting
from headrace.console.backend import Backend
from headrace.console.charts import BLUE, TEAL, VIOLET, Line, TimeChart
from headrace.console.commands import Equal
from headrace.console.forms import Form, SettingFields, Verdict, attempt, button, confirm, number
from headrace.console.pages import records, segments
from headrace.console.pages.topics import health
from headrace.console.tables import Column, Table
from headrace.console.widgets import (
    EventList,
    Live,
    Tile,
    box,
    card,
    element,
    empty,
    group_href,
    json_link,
    no_topic,
    once_known,
    over_time,
    page,
    quoted,
    side_of,
    traces,
)
from headrace.errors import HeadraceError
from headrace.kafka import ConfigValue, Partition, Topic
from headrace.monitor import Snapshot, TopicView

if TYPE_CHECKING:
    from nicegui.events import ValueChangeEventArguments

_PARTITIONS = (
    Column("partition", "Partition", "number"),
    Column("leader", "Leader", "state", show=lambda leader: f"broker {leader}" if leader >= 0 else "none",
           more=lambda p: "bad" if p.leader < 0 else "warn" if p.under_replicated else "good"),
    Column("replicas", "Replicas", "mono", show=lambda ids: ", ".join(map(str, ids))),
    Column("isr", "In sync", "mono", show=lambda ids: ", ".join(map(str, ids))),
    Column("begin", "Begin", "number", show=formatting.count, wide=True),
    Column("end", "End", "number", show=formatting.count),
    Column("offsets", "Offsets", "number", show=formatting.count),
    Column("bytes", "Bytes", "number", lambda p: p.size_bytes, formatting.size),
    Column("copies", "Bytes of each replica", "mono", lambda p: _copies(p), wide=True),
)  # fmt: skip
_TABS = ("Partitions", "Records", "Settings", "Readers", "Segments", "Events")
_READERS = (
    Column("reader", "Reader", "link", lambda r: r.name, more=lambda r: r.href),
    Column("kind", "Kind"),
    Column("state", "State"),
    Column("lag", "Lag", "number", show=formatting.count),
    Column("late", "Behind", "number", lambda r: r.lag_s, formatting.span),
)
_SETTINGS = (
    Column("setting", "Setting", "mono", lambda c: c.name),
    Column("value", "Value", "clip",
           lambda c: "(hidden)" if c.sensitive else formatting.setting(c.name, c.value)),
    Column("source", "Source"),
    Column("default", "Kafka's default", "clip", lambda c: formatting.setting(c.name, c.default), wide=True),
)  # fmt: skip


@dataclass(frozen=True)
class _Reader:
    """A group, a pipeline or a connector that reads the topic."""

    name: str
    href: str
    kind: str
    state: str
    lag: int | None = None
    lag_s: float | None = None


def show(backend: Backend, name: str) -> None:
    live = Live(backend)
    with page(name, crumb=("Topics", "/topics")) as side:

        @once_known(live, lambda now: name in now.topics, lambda: no_topic(name))
        def build() -> None:
            with side:
                _buttons(backend, name)
            _tiles(backend, name, live)
            _tabs(backend, name, live)


def _tabs(backend: Backend, name: str, live: Live) -> None:
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
            _charts(backend, name, live)
            _partitions(backend, name, live)
        with ui.tab_panel("Records"):
            records.browse(backend, name, live)
        with ui.tab_panel("Settings"):
            _settings(backend, name)
        with ui.tab_panel("Readers"):
            _readers(backend, name, live)
        with ui.tab_panel("Segments"):
            segments.show(backend, name)
        with ui.tab_panel("Events"), card():
            events = EventList(most=100, long_time=True, nothing="No events for this topic.")
            live.past(lambda: backend.history.events(topic=name, most=100), events.show)


def _buttons(backend: Backend, name: str) -> None:
    json_link(f"topics/{quoted(name)}")
    writable = not backend.read_only
    button("Produce", lambda: records.produce(backend, name), kind="primary", icon="send").set_enabled(writable)
    button("Alter", lambda: _alter(backend, name), icon="tune").set_enabled(writable)
    button("Clean", lambda: _clean(backend, name), icon="cleaning_services").set_enabled(writable)
    button("Delete", lambda: _delete(backend, name), kind="danger-plain", icon="delete").set_enabled(writable)


def _tiles(backend: Backend, name: str, live: Live) -> None:
    with box("tiles"):
        flow_in, out = Tile("Records in", spark=True), Tile("Records out", spark=True)
        stored, held = Tile("Stored", spark=True), Tile("Offsets")
        replicas = Tile("Replicas")

    counted: dict[int, int | None] = {}

    async def count() -> None:
        topic = backend.now.topics.get(name)
        if topic is not None and topic.offsets not in counted:
            found = await attempt(lambda: backend.count_records(name))
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


def _charts(backend: Backend, name: str, live: Live) -> None:
    with box("columns"):
        with card("Records per second") as rates_card:
            rates = TimeChart("rate", label="Records in and out per second over time")
        with card("Bytes stored"):
            stored = TimeChart("bytes", label="Bytes stored over time")

    def read(range_s: int) -> list[Line]:
        series, since = backend.history.series, time.time() - range_s
        colours = {"in": BLUE, "out": TEAL, "bytes": VIOLET}
        return [Line(metric, series("topic", name, metric, since=since), colour) for metric, colour in colours.items()]

    def draw(lines: list[Line], range_s: int) -> None:
        rates.show(lines[:2], range_s)
        stored.show(lines[2:], range_s)

    over_time(rates_card, live, read, draw)


def _partitions(backend: Backend, name: str, live: Live) -> None:
    def rows() -> Sequence[Partition]:
        topic = backend.now.topics.get(name)
        return topic.partitions if topic else ()

    with card("Partitions"):
        Table(_PARTITIONS, rows, key=lambda p: p.partition).live(live)


def _copies(p: Partition) -> str:
    return "  ".join(f"{b}: {formatting.size(s)}" for b, s in zip(p.replicas, p.replica_bytes, strict=False))


# -- settings ---------------------------------------------------------------------------------------------------


def _settings(backend: Backend, name: str) -> None:
    chosen: dict[str, Any] = {"all": False, "found": None}

    def rows() -> list[ConfigValue]:
        found: Topic | None = chosen["found"]
        return [
            config
            for config in (found.configs.values() if found else ())
            if chosen["all"] or config.source != "default" or config.name in {"cleanup.policy", "retention.ms"}
        ]

    def show_all(event: ValueChangeEventArguments[bool | None]) -> None:
        chosen["all"] = bool(event.value)
        table.refresh()

    with card("Settings") as made:
        verdict = Verdict()
        table = Table(_SETTINGS, rows, key=lambda c: c.name, per_page=100)
    with side_of(made):
        ui.switch("all of them", on_change=show_all).props("dense")

    async def load() -> None:
        found = await attempt(lambda: backend.describe_topic(name))
        if isinstance(found, HeadraceError):
            verdict.problem(found)
            return
        chosen["found"] = found
        table.refresh()

    ui.timer(0.05, load, once=True)
    ui.timer(10.0, load)


def _readers_of(now: Snapshot, name: str) -> list[_Reader]:
    found = []
    for group in now.groups.values():
        if name in group.topics:
            offsets = [o for o in group.offsets or () if o.topic == name]
            lag = sum(o.lag for o in offsets if o.lag is not None)
            lag_s = max((o.lag_s for o in offsets if o.lag_s is not None), default=None)
            found.append(_Reader(group.group, group_href(group.group), "group", group.state, lag, lag_s))
    for pipeline in now.pipelines:
        if name in pipeline.sources:
            lag = sum(o.lag or 0 for o in pipeline.offsets if o.topic == name)
            found.append(_Reader(pipeline.name, "/pipelines", "pipeline", pipeline.state, lag))
    sinks = (c for c in now.connectors or () if c.kind == "sink" and name in c.topics)
    return found + [_Reader(sink.name, "/connectors", "connector", sink.state) for sink in sinks]


def _readers(backend: Backend, name: str, live: Live) -> None:
    with card("Consumers"):
        nothing = empty("groups", "No consumers yet",
                        "Groups, pipelines and sink connectors appear here as soon as they read. For example:",
                        f"headrace consume {name} --group mine")  # fmt: skip
        table = Table(_READERS, lambda: _readers_of(backend.now, name), key=lambda r: f"{r.kind} {r.name}")

    table.live(live, nothing)


# -- changes ----------------------------------------------------------------------------------------------------


def _alter(backend: Backend, name: str) -> None:
    topic = backend.now.topics.get(name)
    had = len(topic.partitions) if topic else 1

    def wanted() -> tuple[int | None, dict[str, str | None]]:
        grown = int(partitions.value or had)
        return (grown if grown != had else None), {key: value or None for key, value in settings.values().items()}

    def changed() -> Equal:
        grown, configs = wanted()
        warning.set_visibility(grown is not None)
        return backend.commands.alter_topic(name, grown, configs)

    with Form(f"Alter {name}", changed) as form:
        with element("div", "fields"):
            partitions = number("Partitions (they can only grow)", had, min=had, max=100_000)
        warning = element("div", "complaints", "Keys map to other partitions from then on: the records of a key are in "
                          "order only within each of the two times.")  # fmt: skip
        settings = SettingFields(form.changed)
        element("div", "muted", "A setting without a value is reset to its default.")
        with element("div", "row"):
            button("Add a setting", settings.add, icon="tune")
    form.action("Alter", lambda: backend.alter_topic(name, *wanted()), lambda _: f"{name} is altered")
    settings.add()
    form.follow(partitions)


def _held(topic: TopicView | None) -> str:
    if topic is None:
        return ""
    return (
        f"{formatting.plural(len(topic.partitions), 'partition')}, up to {formatting.count(topic.offsets)} records, "
        + formatting.size(topic.size_bytes)
    )


def _clean(backend: Backend, name: str) -> None:
    topic = backend.now.topics.get(name)
    numbers = [p.partition for p in topic.partitions] if topic else []
    confirm(
        f"Delete all records of {name}?",
        f"{_held(topic)}: deleted for every reader. The topic and its settings stay; offsets continue from there.",
        backend.commands.clean_topic(name, numbers),
        lambda: backend.clean_topic(name),
        action="Delete the records",
        done=f"{name} is empty",
    )


def _delete(backend: Backend, name: str) -> None:
    confirm(
        f"Delete the topic {name}?",
        f"{_held(backend.now.topics.get(name))}: deleted with the topic. This cannot be undone.",
        backend.commands.delete_topic(name),
        lambda: backend.delete_topic(name),
        action="Delete the topic",
        done=f"{name} is deleted",
        type_in=name,
    )
