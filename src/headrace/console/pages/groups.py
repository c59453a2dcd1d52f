"""Groups: state, members, assignment, lag by partition and over time, who owned what when, a reset with preview."""

from __future__ import annotations

import time
from collections.abc import Sequence

from nicegui import ui

from headrace.console import formatting, forms
from headrace.console.backend import Backend
from headrace.console.charts import VIOLET, Line, OwnerChart, TimeChart
from headrace.console.commands import Equal
from headrace.console.forms import Form, button, confirm, select
from headrace.console.pages.topics import sparks
from headrace.console.tables import Column, Table
from headrace.console.widgets import (
    EventList,
    Live,
    State,
    Tile,
    box,
    card,
    element,
    empty,
    group_href,
    json_link,
    once_known,
    over_time,
    page,
    quoted,
    traces,
)
from headrace.kafka import Offset, PlannedOffset
from headrace.monitor import GroupView, Ownership, Snapshot

_STATES: dict[str, State] = {
    "Stable": "good",
    "Empty": "none",
    "Dead": "bad",
    "PreparingRebalance": "warn",
    "CompletingRebalance": "warn",
    "Assigning": "warn",
    "Reconciling": "warn",
}
_LIST = (
    Column("group", "Group", "link", more=lambda g: group_href(g.group)),
    Column("state", "State", "state", lambda g: f"{g.state}, last seen" if g.stale else g.state,
           more=lambda g: "warn" if g.stale else _STATES.get(g.state, "none")),
    Column("type", "Type", wide=True),
    Column("members", "Members", "number", lambda g: _members_of(g), formatting.count),
    Column("topics", "Topics", "number", lambda g: len(g.topics), wide=True),
    Column("spark", "Lag, last 15 min", "spark", wide=True),
    Column("lag", "Lag", "number", show=formatting.count),
    Column("late", "Behind", "number", lambda g: late(g), sort=lambda g: g.lag_s),
    Column("read", "Reads", "number", lambda g: g.read_per_s, formatting.rate, wide=True),
)  # fmt: skip


def offset_columns(position: Column, *more: Column) -> tuple[Column, ...]:
    """How far a reader is in each partition, a group or a pipeline."""
    return (
        Column("topic", "Topic", "name", sort=lambda o: f"{o.topic} {o.partition:06d}"),
        Column("partition", "Partition", "number"),
        position,
        Column("end", "End", "number", show=formatting.count),
        Column("lag", "Lag", "meter", show=formatting.count),
        Column("late", "Behind", "number", lambda o: o.lag_s, formatting.span, wide=True),
        *more,
    )


_OFFSETS = offset_columns(
    Column("committed", "Committed", "number", show=formatting.count, wide=True),
    Column("client_id", "Member", "clip", show=lambda client: client or formatting.DASH, wide=True),
)
_MEMBERS = (
    Column("client_id", "Client", "name"),
    Column("host", "Host", "mono", wide=True),
    Column("partitions", "Partitions", "number", lambda m: len(m.partitions)),
    Column("owns", "Owns", "clip", lambda m: ", ".join(f"{t}/{p}" for t, p in m.partitions[:40]) or "none: idle"),
    Column("member_id", "Member id", "clip", wide=True),
)
_PLAN = (
    Column("topic", "Topic", "name"),
    Column("partition", "Partition", "number"),
    Column("committed", "Now", "number", show=formatting.count),
    Column("target", "Then", "number", show=formatting.count),
    Column("change", "Change", "number", lambda p: None if p.committed is None else p.target - p.committed,
           lambda change: formatting.DASH if change is None else f"{change:+,}"),
    Column("note", "Note", show=lambda note: note or ""),
)  # fmt: skip


def _place(row: Offset | PlannedOffset) -> str:
    return f"{row.topic}/{row.partition}"


def show(backend: Backend) -> None:
    live = Live(backend)
    table: Table
    with page("Groups") as side:
        with side:
            forms.search(live, lambda text: table.search(text))
            json_link("groups")
        with element("section", "card"):
            nothing = empty("groups", "No groups yet", "A group appears when its first member joins. For example:",
                            "headrace consume TOPIC --group mine")  # fmt: skip
            table = Table(_LIST, lambda: list(backend.now.groups.values()), key=lambda g: g.group)
            table.search(live.address.get("filter"))
            sparks(live, table, "group", "lag")
            table.live(live, nothing)


def _members_of(group: GroupView) -> int | None:
    return None if group.members is None else len(group.members)


def late(group: GroupView) -> str:
    """How far behind in time; more than that where the watch has not been long enough."""
    if group.lag_s is None:
        return formatting.DASH
    return f"{'≥ ' if group.lag_s_at_least else ''}{formatting.span(group.lag_s)}"


def show_one(backend: Backend, name: str = "") -> None:
    live = Live(backend)
    with page(name or "Group", crumb=("Groups", "/groups")) as side:

        @once_known(live, lambda now: name in now.groups, lambda: _no_group(name))
        def build() -> None:
            with side:
                _buttons(backend, name)
            _tiles(name, live)
            with box("columns"):
                _lag_chart(backend, name, live)
                _owners(backend, name, live)
            _offsets(backend, name, live)
            _members(backend, name, live)
            with card("What changed"):
                events = EventList(most=30, long_time=True)
                live.past(lambda: backend.history.events(group=name, most=30), events.show)


def _no_group(name: str) -> ui.element:
    return empty("groups", f"There is no group {name}", "It may have been deleted or have expired.",
                 "headrace group list")  # fmt: skip


def _buttons(backend: Backend, name: str) -> None:
    json_link(f"groups/{quoted(name)}")
    writable = not backend.read_only
    button("Reset offsets", lambda: reset(backend, name), icon="restart_alt").set_enabled(writable)
    button("Delete", lambda: _delete(backend, name), kind="danger-plain", icon="delete").set_enabled(writable)


def _tiles(name: str, live: Live) -> None:
    with box("tiles"):
        state, lag = Tile("State"), Tile("Lag", spark=True)
        behind, read = Tile("Behind", spark=True), Tile("Reads", spark=True)
        members = Tile("Members")

    @live
    def show(now: Snapshot) -> None:
        group = now.groups.get(name)
        if group is None:
            return
        if group.stale:
            state.show(group.state, f"as last seen: coordinator {group.coordinator} does not answer", "warn")
        else:
            state.show(group.state, f"{group.type} protocol, coordinator {group.coordinator}")
        lag.show(formatting.short_count(group.lag), "records to read")
        behind.show(late(group), "oldest unread record")
        read.show(formatting.rate(group.read_per_s), "by committed offsets")
        members.show(formatting.count(_members_of(group)), group.assignor or "no assignor")

    traces(live, "group", name, {"lag": lag, "lag_s": behind, "read": read})


def _lag_chart(backend: Backend, name: str, live: Live) -> None:
    with card("Lag") as made:
        chart = TimeChart("count", label="Lag in records over time")

    def read(range_s: int) -> list[Line]:
        return [Line("lag", backend.history.series("group", name, "lag", since=time.time() - range_s), VIOLET)]

    over_time(made, live, read, chart.show)


def _owners(backend: Backend, name: str, live: Live) -> None:
    with card("Partition ownership") as made:
        nothing = empty(
            "compare_arrows", "No ownership recorded yet", "Ownership is recorded while the group has members."
        )
        chart = OwnerChart()

    def read(range_s: int) -> list[Ownership]:
        return backend.history.ownership(name, since=time.time() - range_s)

    def draw(owned: list[Ownership], range_s: int) -> None:
        chart.show(owned, range_s)
        chart.set_visibility(bool(owned))
        nothing.set_visibility(not owned)

    over_time(made, live, read, draw, "owners")


def _offsets(backend: Backend, name: str, live: Live) -> None:
    def rows() -> Sequence[Offset]:
        group = backend.now.groups.get(name)
        return (group.offsets if group else None) or ()

    with card("Partitions"):
        nothing = empty("pin", "No offsets are known",
                        "The group has committed none, or no Python client supports groups of this type.")  # fmt: skip
        table = Table(_OFFSETS, rows, key=_place)
        table.live(live, nothing)


def _members(backend: Backend, name: str, live: Live) -> None:
    def rows() -> Sequence[object]:
        group = backend.now.groups.get(name)
        return (group.members if group else None) or ()

    with card("Members"):
        nothing = empty("person_off", "The group has no members", "Its offsets stay; the next member continues there.")
        table = Table(_MEMBERS, rows, key=lambda m: m.member_id)
        table.live(live, nothing)


# -- changes ----------------------------------------------------------------------------------------------------

_WHERE = {
    "beginning": "the beginning",
    "end": "the end",
    "offset": "an offset",
    "shift": "a number of records back or forward",
    "time": "a time",
}


def reset(backend: Backend, name: str) -> None:
    """Where the group shall go on: first a preview, then it is done."""
    group = backend.now.groups[name]

    def to() -> str:
        text = (value.value or "").strip()
        return {"beginning": "beginning", "end": "end", "shift": f"shift:{text}"}.get(str(kind.value), text)

    def named() -> list[str]:
        chosen = [topic for topic in topics.value or [] if topic in group.topics]
        return [] if len(chosen) == len(group.topics) else chosen

    def changed() -> Equal:
        value.set_enabled(kind.value in {"offset", "shift", "time"})
        act.disable()
        plan.clear()
        return backend.commands.reset_group(name, to() or "VALUE", named(), execute=True)

    def show_plan(found: tuple[PlannedOffset, ...]) -> None:
        plan.clear()
        with plan:
            Table(_PLAN, lambda: found, key=_place, in_order=True, per_page=25)
        act.enable()

    with Form(f"Reset the offsets of {name}", changed, wide=True) as form:
        with element("div", "fields"):
            kind = select("To", _WHERE, "beginning")
            value = forms.field("Value").props('placeholder="1500, -100, 2026-05-01T12:00 or -1h"')
            topics = select("Topics", list(group.topics), list(group.topics), multiple=True).props("use-chips")
        plan = element("div", "stack tight")
    form.action("Preview", lambda: backend.plan_reset(name, to(), named()), show_plan,
                kind="plain", icon="visibility", closes=False)  # fmt: skip
    act = form.action("Reset", lambda: backend.reset_group(name, to(), named()),
                      lambda _: f"{name} continues at the new offsets", kind="danger").button  # fmt: skip
    form.follow(kind, value, topics)


def _delete(backend: Backend, name: str) -> None:
    confirm(
        f"Delete the group {name}?",
        "Its committed offsets are deleted: a new group of this name starts over.",
        backend.commands.delete_group(name),
        lambda: backend.delete_group(name),
        action="Delete the group",
        done=f"{name} is deleted",
    )
