"""The list of topics, and the form that creates one."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from nicegui import ui

from headrace.console import formatting
from headrace.console.backend import Backend
from headrace.console.commands import Equal
from headrace.console.forms import Form, SettingFields, button, dialog, field, number, search
from headrace.console.tables import Column, Table
from headrace.console.widgets import Live, State, element, empty, json_link, page, pairs, spark_path, topic_href
from headrace.kafka import NewTopic, Topic, is_topic_name
from headrace.monitor import TopicView

if TYPE_CHECKING:
    from nicegui.events import ValueChangeEventArguments

#: What the summary of a new topic tells, and what can be set in the form.
SUMMARY = ("min.insync.replicas", "cleanup.policy", "retention.ms", "retention.bytes")


def health(topic: TopicView) -> tuple[str, State]:
    """The state of a topic's replicas in a word."""
    if topic.offline:
        return f"{topic.offline} offline", "bad"
    if topic.under_replicated:
        return f"{topic.under_replicated} behind", "warn"
    return "in sync", "good"


_NAME = Column("topic", "Topic", "link", lambda t: t.name, more=lambda t: topic_href(t.name))
_IN = Column("in", "In", "number", lambda t: t.in_per_s, formatting.rate)
_OUT = Column("out", "Out", "number", lambda t: t.out_per_s, formatting.rate)
_STORED = Column("bytes", "Stored", "number", lambda t: t.size_bytes, formatting.size)
#: The columns of the busiest ones.
BUSY = (_NAME, Column("spark", "Last 15 min", "spark", wide=True), _IN, _OUT, _STORED)
_COLUMNS = (
    _NAME,
    Column("health", "Replicas", "state", lambda t: health(t)[0], more=lambda t: health(t)[1],
           sort=lambda t: t.offline * 10_000 + t.under_replicated),
    Column("partitions", "Partitions", "number", lambda t: len(t.partitions), wide=True),
    Column("replication", "Copies", "number", wide=True),
    Column("spark", "In, last 15 min", "spark", wide=True),
    _IN,
    replace(_OUT, wide=True),
    Column("offsets", "Offsets", "number", show=formatting.count, wide=True),
    _STORED,
)  # fmt: skip


def show(backend: Backend) -> None:
    live = Live(backend)
    chosen = {"internal": live.address.get("internal") == "yes"}
    table: Table

    def rows() -> list[TopicView]:
        return [t for t in backend.now.topics.values() if chosen["internal"] or not t.internal]

    def show_internal(event: ValueChangeEventArguments[bool | None]) -> None:
        chosen["internal"] = bool(event.value)
        live.address.put(internal="yes" if event.value else None)
        table.refresh()

    with page("Topics") as side:
        with side:
            search(live, lambda text: table.search(text))
            ui.switch("Kafka's own", value=chosen["internal"], on_change=show_internal).props("dense")
            json_link("topics")
            create = button("Create topic", lambda: create_topic(backend), kind="primary", icon="add")
            create.set_enabled(not backend.read_only)
        with element("section", "card"):
            nothing = empty(
                "topic", "No topics yet", "Create the first one with the button above, or in a terminal:",
                "headrace topic create orders --partitions 3",
            )  # fmt: skip
            table = Table(_COLUMNS, rows, key=lambda t: t.name)
            table.search(live.address.get("filter"))
            sparks(live, table, "topic", "in")
            table.live(live, nothing)


def sparks(live: Live, table: Table, kind: str, metric: str) -> None:
    """The rows that are shown have their last quarter of an hour beside them."""

    def read() -> dict[str, str]:
        found = live.backend.history.many(kind, table.shown, metric, since=time.time() - 900, most=40)
        return {name: spark_path(points) for name, points in found.items()}

    def show(found: dict[str, str]) -> None:
        table.sparks = found
        table.refresh()

    table.on_turn = live.past(read, show)


def create_topic(backend: Backend) -> None:
    """The form: a name, numbers, the brokers' defaults or settings of one's own; then the summary."""
    brokers = sum(b.state == "up" for b in backend.now.brokers)

    def wanted() -> NewTopic:
        return NewTopic(
            (name.value or "NAME").strip(), _whole(partitions.value), _whole(replication.value), settings.values()
        )

    def changed() -> Equal:
        topic = wanted()
        return backend.commands.create_topic(topic.name, topic.partitions, topic.replication, settings.values())

    def work() -> Topic:
        topic = wanted()
        backend.create_topic(topic)
        return backend.describe_topic(topic.name)

    with Form("Create a topic", changed) as form:
        with element("div", "fields"):
            name = field("Name", validation=_name_problem).props("autofocus").classes("whole")
            partitions = number("Partitions", 3, min=1, max=100_000)
            replication = number("Replicas of each (replication)", min(3, brokers) or 1, min=1, max=max(1, brokers))
        settings = SettingFields(form.changed)
        with element("div", "row"):
            button("Add a setting", settings.add, icon="tune")
            element("span", "muted", "Without settings, the brokers' defaults apply.")
    create = form.action("Create", work, _summary, ready=name.validate)
    name.on("keydown.enter", create.run)
    form.follow(name, partitions, replication)


def _name_problem(text: str) -> str | None:
    name = (text or "").strip()
    if not name:
        return "a topic needs a name"
    if len(name) > 249:
        return "at most 249 characters"
    return None if is_topic_name(name) else "letters, digits, . _ and - only"


def _whole(value: float | None) -> int | None:
    return int(value) if value else None


def _summary(found: Topic) -> None:
    """What was made, as the cluster tells it."""
    name = found.name

    def go() -> None:
        created.close()
        ui.navigate.to(topic_href(name))

    with dialog(f"{name} is created") as created:
        rows = [
            ("Partitions", str(len(found.partitions))),
            ("Replication", str(found.replication)),
            *((key, formatting.setting(key, found.configs[key].value)) for key in SUMMARY if key in found.configs),
        ]
        pairs(rows)
        with element("div", "row end"):
            button("Close", created.close)
            button("Open", go, kind="primary")
