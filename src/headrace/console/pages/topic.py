"""One topic: its partitions, bytes and rates over time, settings, readers, records and segments."""

from __future__ import annotations

import time
from typing import Any

from nicegui import ui

from headrace.console import words
from headrace.console.charts import BLUE, TEAL, VIOLET, Line, TimeChart
from headrace.console.desk import Desk
from headrace.console.pages import records, segments
from headrace.console.pages.topics import health
from headrace.console.pieces import (
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
)  # fmt: skip
from headrace.console.tables import Column, Row, Table
from headrace.errors import HeadraceError
from headrace.monitor.snapshot import PartitionView, Snapshot, TopicView
from headrace.transport.topics import TopicDescription

_PARTITIONS = (
    Column("partition", "Partition", "number"),
    Column("leader", "Leader", "state"),
    Column("replicas", "Replicas", "mono"),
    Column("isr", "In sync", "mono"),
    Column("begin", "Begin", "number", wide=True),
    Column("end", "End", "number"),
    Column("records", "Records", "number"),
    Column("bytes", "Bytes", "number"),
    Column("copies", "Bytes of each copy", "mono", wide=True),
)
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
    with ui.tabs().props("dense align=left no-caps").classes("tabs-line") as tabs:
        for label in ("Partitions", "Records", "Settings", "Readers", "Segments", "Events"):
            ui.tab(label)
    with ui.tab_panels(tabs, value="Partitions").props("keep-alive").classes("w-full"):
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
            events = EventList(most=100, long_time=True, nothing="Nothing has happened to this topic.")
            live(lambda _: events.show(desk.history.events(topic=name, most=100)))


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
        stored, held = Tile("Stored", spark=True), Tile("Records")
        replicas = Tile("Replicas")

    @live
    def show(now: Snapshot) -> None:
        topic = now.topics.get(name)
        if topic is None:
            return
        flow_in.show(words.rate(topic.in_per_s), words.byte_rate(topic.in_bytes_per_s))
        out.show(words.rate(topic.out_per_s), "read by groups")
        each = topic.size_bytes / topic.records if topic.size_bytes and topic.records else None
        stored.show(words.size(topic.size_bytes), f"{words.size(topic.stored_bytes)} with all copies")
        held.show(words.count(topic.records), f"{words.size(each)} each on average" if each else "offsets in use")
        text, kind = health(topic)
        note = f"{words.plural(len(topic.partitions), 'partition')}, {topic.replication} copies"
        replicas.show(text, note, kind if kind in {"warn", "bad"} else "")
        since = time.time() - 900
        for tile, metric in ((flow_in, "in"), (out, "out"), (stored, "bytes")):
            tile.trace(desk.history.series("topic", name, metric, since=since, most=60))


def _charts(desk: Desk, name: str, live: Live) -> None:
    with box("columns"):
        with card("Records per second") as rates_card:
            rates = TimeChart("rate", label="Records in and out per second over time")
        with card("Bytes stored"):
            stored = TimeChart("bytes", label="Bytes stored over time")

    def draw(range_s: int) -> None:
        since = time.time() - range_s
        rates.show(
            [
                Line("in", desk.history.series("topic", name, "in", since=since), BLUE),
                Line("out", desk.history.series("topic", name, "out", since=since), TEAL),
            ],
            range_s,
        )
        stored.show([Line("bytes", desk.history.series("topic", name, "bytes", since=since), VIOLET)], range_s)

    over_time(rates_card, live, draw)


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
        "begin": words.count(p.begin),
        "_begin": p.begin,
        "end": words.count(p.end),
        "_end": p.end,
        "records": words.count(p.records),
        "_records": p.records,
        "bytes": words.size(p.size_bytes),
        "_bytes": p.size_bytes,
        "copies": "  ".join(f"{b}: {words.size(s)}" for b, s in zip(p.replicas, p.replica_bytes, strict=False)),
    }


# -- settings ---------------------------------------------------------------------------------------------------


def _settings(desk: Desk, name: str) -> None:
    columns = (
        Column("setting", "Setting", "mono"),
        Column("value", "Value", "clip"),
        Column("source", "Comes from"),
        Column("default", "Kafka's default", "clip", wide=True),
    )
    chosen: dict[str, Any] = {"all": False, "found": None}

    def rows() -> list[Row]:
        found: TopicDescription | None = chosen["found"]
        return [
            {
                "setting": key,
                "value": "(hidden)" if config.sensitive else words.setting(key, config.value),
                "source": config.source,
                "default": words.setting(key, config.default),
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
                        "state": group.state, "lag": words.count(lag), "_lag": lag, "late": words.span(late),
                        "_late": late,
                    }
                )  # fmt: skip
        for pipeline in now.pipelines:
            if name in pipeline.sources:
                lag_of = sum(o.lag or 0 for o in pipeline.offsets if o.topic == name)
                found.append(
                    {"reader": pipeline.name, "reader_href": "/pipelines", "kind": "pipeline", "state": pipeline.state,
                     "lag": words.count(lag_of), "_lag": lag_of, "late": words.DASH}
                )  # fmt: skip
        found += [
            {"reader": c.name, "reader_href": "/connectors", "kind": "connector", "state": c.state, "lag": words.DASH,
             "late": words.DASH}
            for c in now.connectors or ()
            if c.kind == "sink" and name in c.topics
        ]  # fmt: skip
        return found

    with card("Who reads it"):
        nothing = empty("groups", "Nobody reads this topic yet",
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
        element("div", "muted", "A setting without a value goes back to its default.")
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
    return f"{words.plural(len(topic.partitions), 'partition')}, {words.count(topic.records)} records, " + words.size(
        topic.size_bytes
    )


async def _clean(desk: Desk, name: str) -> None:
    topic = desk.now.topics.get(name)
    numbers = [p.partition for p in topic.partitions] if topic else []
    await confirm(
        f"Delete all records of {name}?",
        f"{_held(topic)}: gone for every reader. The topic and its settings stay; offsets go on from there.",
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
        f"{_held(desk.now.topics.get(name))}: gone, and the topic with them. Nothing brings them back.",
        desk.commands.delete_topic(name),
        work,
        action="Delete the topic",
        done=f"{name} is deleted",
        type_in=name,
    )
