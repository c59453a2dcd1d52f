"""Groups: state, members, assignment, lag by partition and over time, who owned what when, a reset with preview."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from nicegui import ui

from headrace.console import formatting, widgets
from headrace.console.backend import Desk
from headrace.console.charts import VIOLET, Line, OwnerChart, TimeChart
from headrace.console.pages.topics import sparks
from headrace.console.tables import Column, Row, Table
from headrace.console.widgets import (
    EqualPanel,
    EventList,
    Live,
    State,
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
    group_href,
    once_known,
    over_time,
    page,
    quoted,
    select,
    traces,
)  # fmt: skip
from headrace.errors import HeadraceError
from headrace.monitor import GroupView, OffsetView, Ownership, PipelineOffsetView, Snapshot
from headrace.transport.groups import PlannedOffset

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
    Column("group", "Group", "link"),
    Column("state", "State", "state"),
    Column("type", "Type", wide=True),
    Column("members", "Members", "number"),
    Column("topics", "Topics", "number", wide=True),
    Column("spark", "Lag, last 15 min", "spark", wide=True),
    Column("lag", "Lag", "number"),
    Column("late", "Behind", "number"),
    Column("read", "Reads", "number", wide=True),
)
_OFFSETS = (
    Column("topic", "Topic", "name"),
    Column("partition", "Partition", "number"),
    Column("position", "Committed", "number", wide=True),
    Column("end", "End", "number"),
    Column("lag", "Lag", "meter"),
    Column("late", "Behind", "number", wide=True),
    Column("client", "Member", "clip", wide=True),
)
_MEMBERS = (
    Column("client", "Client", "name"),
    Column("host", "Host", "mono", wide=True),
    Column("partitions", "Partitions", "number"),
    Column("owns", "Owns", "clip"),
    Column("member", "Member id", "clip", wide=True),
)


def show(desk: Desk) -> None:
    live = Live(desk)
    table: Table
    with page("Groups") as side:
        with side:
            widgets.search(live, lambda text: table.search(text))
            element("a", "link", "JSON", href="/api/groups", target="_blank")
        with element("section", "card"):
            nothing = empty("groups", "No groups yet", "A group appears when its first member joins. For example:",
                            "headrace consume TOPIC --group mine")  # fmt: skip
            table = Table(_LIST, lambda: [_row(g) for g in desk.now.groups.values()], key="group", sort="group")
            table.search(live.address.get("filter"))
            sparks(live, table, "group", "lag")

    @live
    def refresh(now: Snapshot) -> None:
        table.refresh()
        nothing.set_visibility(not now.groups)
        table.table.set_visibility(bool(now.groups))


def _row(group: GroupView) -> Row:
    return {
        "group": group.group,
        "group_href": group_href(group.group),
        "state": f"{group.state}, last seen" if group.stale else group.state,
        "state_state": "warn" if group.stale else _STATES.get(group.state, "none"),
        "type": group.type,
        "members": formatting.count(len(group.members)) if group.members is not None else formatting.DASH,
        "_members": len(group.members or ()),
        "topics": len(group.topics),
        "lag": formatting.count(group.lag),
        "_lag": group.lag,
        "late": late(group),
        "_late": group.lag_s,
        "read": formatting.rate(group.read_per_s),
        "_read": group.read_per_s,
    }


def late(group: GroupView) -> str:
    """How far behind in time; more than that where the watch has not been long enough."""
    if group.lag_s is None:
        return formatting.DASH
    return f"{'≥ ' if group.lag_s_at_least else ''}{formatting.span(group.lag_s)}"


def show_one(desk: Desk, name: str = "") -> None:
    live = Live(desk)
    with page(name or "Group", crumb=("Groups", "/groups")) as side:

        @once_known(live, lambda now: name in now.groups, lambda: _no_group(name))
        def build() -> None:
            with side:
                _buttons(desk, name)
            _tiles(name, live)
            with box("columns"):
                _lag_chart(desk, name, live)
                _owners(desk, name, live)
            _offsets(desk, name, live)
            _members(desk, name, live)
            with card("What changed"):
                events = EventList(most=30, long_time=True)
                live.past(lambda: desk.history.events(group=name, most=30), events.show)


def _no_group(name: str) -> ui.element:
    return empty("groups", f"There is no group {name}", "It may have been deleted or have expired.",
                 "headrace group list")  # fmt: skip


def _buttons(desk: Desk, name: str) -> None:
    element("a", "link", "JSON", href=f"/api/groups/{quoted(name)}", target="_blank")
    writable = not desk.read_only
    button("Reset offsets", lambda: reset(desk, name), icon="restart_alt").set_enabled(writable)
    button("Delete", lambda: _delete(desk, name), kind="danger-plain", icon="delete").set_enabled(writable)


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
        members.show(
            formatting.count(len(group.members)) if group.members is not None else formatting.DASH,
            group.assignor or "no assignor",
        )

    traces(live, "group", name, {"lag": lag, "lag_s": behind, "read": read})


def _lag_chart(desk: Desk, name: str, live: Live) -> None:
    with card("Lag") as made:
        chart = TimeChart("count", label="Lag in records over time")

    def read(range_s: int) -> list[Line]:
        return [Line("lag", desk.history.series("group", name, "lag", since=time.time() - range_s), VIOLET)]

    over_time(made, live, read, chart.show)


def _owners(desk: Desk, name: str, live: Live) -> None:
    with card("Partition ownership") as made:
        nothing = empty(
            "compare_arrows", "No ownership recorded yet", "Ownership is recorded while the group has members."
        )
        chart = OwnerChart()

    def read(range_s: int) -> list[Ownership]:
        return desk.history.ownership(name, since=time.time() - range_s)

    def draw(owned: list[Ownership], range_s: int) -> None:
        chart.show(owned, range_s)
        chart.set_visibility(bool(owned))
        nothing.set_visibility(not owned)

    over_time(made, live, read, draw, "owners")


def _offsets(desk: Desk, name: str, live: Live) -> None:
    def rows() -> list[Row]:
        group = desk.now.groups.get(name)
        return offset_rows((group.offsets if group else None) or ())

    with card("Partitions"):
        nothing = empty("pin", "No offsets are known",
                        "The group has committed none, or no Python client supports groups of this type.")  # fmt: skip
        table = Table(_OFFSETS, rows, key="place", sort="topic")

    @live
    def refresh(_: Snapshot) -> None:
        table.refresh()
        has_any = bool(rows())
        nothing.set_visibility(not has_any)
        table.table.set_visibility(has_any)


def offset_rows(offsets: Sequence[OffsetView] | Sequence[PipelineOffsetView]) -> list[Row]:
    """How far a reader is in each partition, a group or a pipeline."""
    most = max((o.lag or 0 for o in offsets), default=0) or 1
    return [_offset_row(o, most) for o in offsets]


def _offset_row(o: OffsetView | PipelineOffsetView, most: int) -> Row:
    position, client = (o.committed, o.client_id) if isinstance(o, OffsetView) else (o.offset, None)
    return {
        "place": f"{o.topic}/{o.partition}",
        "topic": o.topic,
        "_topic": f"{o.topic} {o.partition:06d}",
        "partition": o.partition,
        "position": formatting.count(position),
        "_position": position,
        "end": formatting.count(o.end),
        "_end": o.end,
        "lag": formatting.count(o.lag),
        "_lag": o.lag,
        "lag_share": round(100 * (o.lag or 0) / most),
        "late": formatting.span(o.lag_s),
        "_late": o.lag_s,
        "client": client or formatting.DASH,
    }


def _members(desk: Desk, name: str, live: Live) -> None:
    def rows() -> list[Row]:
        group = desk.now.groups.get(name)
        return [
            {
                "member": m.member_id,
                "client": m.client_id,
                "host": m.host,
                "partitions": len(m.partitions),
                "owns": ", ".join(f"{topic}/{partition}" for topic, partition in m.partitions[:40]) or "none: idle",
            }
            for m in (group.members if group else None) or ()
        ]

    with card("Members"):
        nothing = empty("person_off", "The group has no members", "Its offsets stay; the next member continues there.")
        table = Table(_MEMBERS, rows, key="member", sort="client")

    @live
    def refresh(_: Snapshot) -> None:
        table.refresh()
        has_any = bool(rows())
        nothing.set_visibility(not has_any)
        table.table.set_visibility(has_any)


# -- changes ----------------------------------------------------------------------------------------------------

_WHERE = {
    "beginning": "the beginning",
    "end": "the end",
    "offset": "an offset",
    "shift": "a number of records back or forward",
    "time": "a time",
}


def reset(desk: Desk, name: str) -> None:
    """Where the group shall go on: first a preview, then it is done."""
    group = desk.now.groups[name]
    with dialog(f"Reset the offsets of {name}", wide=True) as asking:
        with element("div", "fields"):
            kind = select("To", _WHERE, "beginning")
            value = widgets.field("Value").props('placeholder="1500, -100, 2026-05-01T12:00 or -1h"')
            topics = select("Topics", list(group.topics), list(group.topics), multiple=True).props("use-chips")
        value.set_enabled(False)
        plan = element("div", "stack tight")
        equal = EqualPanel()
        verdict = Verdict()
        with element("div", "row end"):
            button("Cancel", asking.close)
            look = button("Preview", kind="plain", icon="visibility")
            act = button("Reset", kind="danger")
    act.disable()

    def to() -> str:
        text = (value.value or "").strip()
        return {"beginning": "beginning", "end": "end", "shift": f"shift:{text}"}.get(str(kind.value), text)

    def named() -> list[str]:
        chosen = [topic for topic in topics.value or [] if topic in group.topics]
        return [] if len(chosen) == len(group.topics) else chosen

    def changed() -> None:
        value.set_enabled(kind.value in {"offset", "shift", "time"})
        act.disable()
        plan.clear()
        verdict.clear()
        equal.show(desk.commands.reset_group(name, to() or "VALUE", named(), execute=True))

    async def preview() -> None:
        found = await attempt(lambda: desk.plan_reset(name, to(), named()))
        if isinstance(found, HeadraceError):
            verdict.problem(found)
            return
        verdict.clear()
        plan.clear()
        with plan:
            _plan_table(found)
        act.enable()

    async def run() -> None:
        act.props("loading")
        result = await attempt(lambda: desk.reset_group(name, to(), named()))
        act.props(remove="loading")
        if isinstance(result, HeadraceError):
            verdict.problem(result)
            return
        asking.close()
        ui.notify(f"{name} continues at the new offsets", type="positive", position="bottom-right")

    for widget in (kind, value, topics):
        widget.on_value_change(lambda _: changed())
    look.on("click", preview)
    act.on("click", run)
    changed()


def _plan_table(plan: tuple[PlannedOffset, ...]) -> None:
    columns = (
        Column("topic", "Topic", "name"),
        Column("partition", "Partition", "number"),
        Column("committed", "Now", "number"),
        Column("target", "Then", "number"),
        Column("change", "Change", "number"),
        Column("note", "Note"),
    )

    def change(p: PlannedOffset) -> str:
        return formatting.DASH if p.committed is None else f"{p.target - p.committed:+,}"

    rows: list[dict[str, Any]] = [
        {
            "id": f"{p.topic}/{p.partition}", "topic": p.topic, "partition": p.partition,
            "committed": formatting.count(p.committed), "target": formatting.count(p.target), "change": change(p),
            "note": p.note or "",
        }
        for p in plan
    ]  # fmt: skip
    Table(columns, lambda: rows, key="id", in_order=True, per_page=25)


async def _delete(desk: Desk, name: str) -> None:
    await confirm(
        f"Delete the group {name}?",
        "Its committed offsets are deleted: a new group of this name starts over.",
        desk.commands.delete_group(name),
        lambda: desk.delete_group(name),
        action="Delete the group",
        done=f"{name} is deleted",
    )
