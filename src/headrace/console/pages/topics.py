"""The list of topics, and the form that creates one."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from nicegui import ui

from headrace.console import formatting
from headrace.console.backend import Desk
from headrace.console.tables import Column, Row, Table
from headrace.console.widgets import (
    EqualPanel,
    Live,
    State,
    Verdict,
    attempt,
    button,
    dialog,
    element,
    empty,
    field,
    number,
    page,
    pairs,
    search,
    spark_path,
    topic_href,
)  # fmt: skip
from headrace.errors import HeadraceError
from headrace.monitor import Snapshot, TopicView
from headrace.transport.topics import NewTopic, is_topic_name

_COLUMNS = (
    Column("topic", "Topic", "link"),
    Column("health", "Replicas", "state"),
    Column("partitions", "Partitions", "number", wide=True),
    Column("replication", "Copies", "number", wide=True),
    Column("spark", "In, last 15 min", "spark", wide=True),
    Column("in", "In", "number"),
    Column("out", "Out", "number", wide=True),
    Column("offsets", "Offsets", "number", wide=True),
    Column("bytes", "Stored", "number"),
)

#: What the summary of a new topic tells, and what can be set in the form.
SUMMARY = ("min.insync.replicas", "cleanup.policy", "retention.ms", "retention.bytes")


def health(topic: TopicView) -> tuple[str, State]:
    """The state of a topic's replicas in a word."""
    if topic.offline:
        return f"{topic.offline} offline", "bad"
    if topic.under_replicated:
        return f"{topic.under_replicated} behind", "warn"
    return "in sync", "good"


def show(desk: Desk) -> None:
    live = Live(desk)
    chosen = {"internal": live.address.get("internal") == "yes"}
    table: Table

    def rows() -> list[Row]:
        return [_row(t) for t in desk.now.topics.values() if chosen["internal"] or not t.internal]

    def show_internal(event: Any) -> None:
        chosen["internal"] = bool(event.value)
        live.address.put(internal="yes" if event.value else None)
        table.refresh()

    with page("Topics") as side:
        with side:
            search(live, lambda text: table.search(text))
            ui.switch("Kafka's own", value=chosen["internal"], on_change=show_internal).props("dense")
            element("a", "link", "JSON", href="/api/topics", target="_blank")
            create = button("Create topic", lambda: create_topic(desk), kind="primary", icon="add")
            create.set_enabled(not desk.read_only)
        with element("section", "card"):
            nothing = empty(
                "topic", "No topics yet", "Create the first one with the button above, or in a terminal:",
                "headrace topic create orders --partitions 3",
            )  # fmt: skip
            table = Table(_COLUMNS, rows, key="topic", sort="topic")
            table.search(live.address.get("filter"))
            sparks(live, table, "topic", "in")

    @live
    def refresh(now: Snapshot) -> None:
        table.refresh()
        has_any = bool(now.totals.topics) or chosen["internal"]
        nothing.set_visibility(not has_any)
        table.table.set_visibility(has_any)


def sparks(live: Live, table: Table, kind: str, metric: str) -> None:
    """The rows that are shown have their last quarter of an hour beside them."""

    def read() -> dict[str, str]:
        found = live.desk.history.many(kind, table.shown, metric, since=time.time() - 900, most=40)
        return {name: spark_path(points) for name, points in found.items()}

    def show(found: dict[str, str]) -> None:
        table.sparks = found
        table.refresh()

    table.on_turn = live.past(read, show)


def _row(topic: TopicView) -> Row:
    text, kind = health(topic)
    return {
        "topic": topic.name,
        "topic_href": topic_href(topic.name),
        "health": text,
        "health_state": kind,
        "_health": topic.offline * 10_000 + topic.under_replicated,
        "partitions": len(topic.partitions),
        "replication": topic.replication,
        "in": formatting.rate(topic.in_per_s),
        "_in": topic.in_per_s,
        "out": formatting.rate(topic.out_per_s),
        "_out": topic.out_per_s,
        "offsets": formatting.count(topic.offsets),
        "_offsets": topic.offsets,
        "bytes": formatting.size(topic.size_bytes),
        "_bytes": topic.size_bytes,
    }


def create_topic(desk: Desk) -> None:
    """The form: a name, numbers, the brokers' defaults or settings of one's own; then the summary."""
    brokers = sum(b.state == "up" for b in desk.now.brokers)
    configs: list[tuple[ui.input, ui.input]] = []
    with dialog("Create a topic") as asking:
        with element("div", "fields"):
            name = field("Name", validation=_name_problem).props("autofocus").classes("whole")
            partitions = number("Partitions", 3, min=1, max=100_000)
            replication = number("Replicas of each (replication)", min(3, brokers) or 1, min=1, max=max(1, brokers))
        custom = element("div", "stack tight")
        with element("div", "row"):
            button("Add a setting", lambda: add_setting(), icon="tune")
            element("span", "muted", "Without settings, the brokers' defaults apply.")
        equal = EqualPanel()
        verdict = Verdict()
        with element("div", "row end"):
            button("Cancel", asking.close)
            act = button("Create", kind="primary")

    def settings() -> dict[str, str]:
        return {key.value.strip(): value.value for key, value in configs if (key.value or "").strip()}

    def changed() -> None:
        equal.show(
            desk.commands.create_topic(
                (name.value or "NAME").strip(), _whole(partitions.value), _whole(replication.value), settings()
            )
        )

    def add_setting() -> None:
        with custom, element("div", "row"):
            key = field("Setting", on_change=changed).props('placeholder="retention.ms"')
            value = field("Value", on_change=changed)
        configs.append((key, value))

    async def run() -> None:
        if not name.validate():
            return
        topic = NewTopic(name.value.strip(), _whole(partitions.value), _whole(replication.value), settings())
        act.props("loading")
        result = await attempt(lambda: desk.create_topic(topic))
        act.props(remove="loading")
        if isinstance(result, HeadraceError):
            verdict.problem(result)
            return
        asking.close()
        await _summary(desk, topic.name)

    for widget in (name, partitions, replication):
        widget.on_value_change(lambda _: changed())
    act.on("click", run)
    name.on("keydown.enter", run)
    changed()


def _name_problem(text: str) -> str | None:
    name = (text or "").strip()
    if not name:
        return "a topic needs a name"
    if len(name) > 249:
        return "at most 249 characters"
    return None if is_topic_name(name) else "letters, digits, . _ and - only"


def _whole(value: float | None) -> int | None:
    return int(value) if value else None


async def _summary(desk: Desk, name: str) -> None:
    """What was made, as the cluster tells it."""
    found = await asyncio.to_thread(desk.describe_topic, name)

    def go() -> None:
        told.close()
        ui.navigate.to(topic_href(name))

    with dialog(f"{name} is created") as told:
        rows = [
            ("Partitions", str(len(found.partitions))),
            ("Replication", str(found.replication)),
            *((key, formatting.setting(key, found.configs[key].value)) for key in SUMMARY if key in found.configs),
        ]
        pairs(rows)
        with element("div", "row end"):
            button("Close", told.close)
            button("Open", go, kind="primary")
