"""Brokers: roles, controller, rack, disk, the replicas as a grid, and what can be done to the nodes of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from nicegui import ui

from headrace.console import formatting
from headrace.console.backend import Backend
from headrace.console.forms import button, confirm, select
from headrace.console.pages.overview import BROKER_STATES
from headrace.console.tables import Column, Table
from headrace.console.widgets import (
    Live,
    State,
    Tile,
    box,
    card,
    each,
    element,
    empty,
    json_link,
    page,
    put,
    show_state,
    side_of,
    state,
)
from headrace.kafka import Partition
from headrace.monitor import BrokerView, NodeView, Snapshot

_BROKERS = (
    Column("broker", "Broker", "number", lambda b: b.broker_id),
    Column("state", "State", "state", lambda b: BROKER_STATES[b.state][0], more=lambda b: BROKER_STATES[b.state][1]),
    Column("address", "Address", "mono", lambda b: f"{b.host}:{b.port}", wide=True),
    Column("rack", "Rack", wide=True),
    Column("role", "Role", of=lambda b: "controller" if b.controller else "broker"),
    Column("leaders", "Leads", "meter"),
    Column("replicas", "Replicas", "number"),
    Column("missing", "Out of sync", "number", lambda b: b.out_of_sync, wide=True),
    Column("bytes", "Stored", "number", lambda b: b.size_bytes, formatting.size),
    Column("free", "Disk free", "number", lambda b: b.disk_free_bytes, formatting.size, wide=True),
    Column("latency", "Answers in", "number", lambda b: b.latency_ms, formatting.milliseconds, wide=True),
)
_NODE_STATES: dict[str, State] = {"running": "good", "paused": "warn", "stopped": "none", "dead": "bad"}
_VERBS = {
    "start": "Starts it and waits until it has joined the cluster.",
    "restart": "Stops it gracefully and starts it with the current settings.",
    "stop": "Gracefully: it hands its leaderships over first.",
    "pause": "Freezes it (SIGSTOP), as a long pause of its machine would.",
    "resume": "Resumes it.",
    "kill": "At once (SIGKILL), as a crash would. What was acknowledged is kept by the other replicas.",
}
_MOST_IN_GRID = 200


def show(backend: Backend) -> None:
    live = Live(backend)
    with page("Brokers") as side:
        with side:
            json_link("brokers")
            elect = button("Elect preferred leaders", lambda: _elect(backend), icon="balance")
            elect.set_enabled(not backend.read_only)
        _tiles(live)
        with card("Brokers"):
            Table(_BROKERS, lambda: backend.now.brokers, key=lambda b: b.broker_id).live(live)
        _nodes(backend, live)
        _grid(backend, live)


def _tiles(live: Live) -> None:
    with box("tiles"):
        up, controller = Tile("Brokers up"), Tile("Active controller")
        quorum, spread, disk = Tile("Quorum"), Tile("Leaders, most and fewest"), Tile("Disk free")

    @live
    def show(now: Snapshot) -> None:
        alive = sum(b.state == "up" for b in now.brokers)
        up.show(f"{alive} of {len(now.brokers)}", "", "" if alive == len(now.brokers) else "bad")
        found = now.quorum
        if found:
            lag = max((v.lag for v in found.voters if v.voter), default=0)
            voters = sum(v.voter for v in found.voters)
            controller.show(f"node {found.leader_id}", f"epoch {found.leader_epoch}")
            quorum.show(formatting.plural(voters, "voter"), f"slowest: {formatting.plural(lag, 'record')} behind")
        else:
            controller.show("none", "the metadata quorum has no leader", "bad")
            quorum.show(formatting.DASH, "")
        leaders = [b.leaders for b in now.brokers if b.state == "up"]
        moved = sum(p.leader != p.replicas[0] for topic in now.topics.values() for p in topic.partitions)
        note = (
            f"{formatting.plural(moved, 'partition')} not with the preferred one"
            if moved
            else "all are the preferred ones"
        )
        spread.show(f"{max(leaders)} / {min(leaders)}" if leaders else formatting.DASH, note)
        free = min((b.disk_free_bytes for b in now.brokers if b.disk_free_bytes is not None), default=None)
        total = min((b.disk_total_bytes for b in now.brokers if b.disk_total_bytes is not None), default=None)
        disk.show(
            formatting.size(free), f"of {formatting.size(total)}", "warn" if free is not None and free < 2e9 else ""
        )


def _elect(backend: Backend) -> None:
    confirm(
        "Elect the preferred leaders?",
        "The preferred leader of a partition is the first of its replicas. Clients follow within moments; no record is "
        "moved, and where the preferred one is not in sync the leader stays.",
        backend.commands.elect_preferred(),
        backend.elect_preferred,
        action="Elect",
        done="the preferred leaders lead, where they are in sync",
        kind="primary",
    )


# -- nodes ------------------------------------------------------------------------------------------------------


def _nodes(backend: Backend, live: Live) -> None:
    if backend.target.cluster is None:
        with card("Nodes"):
            empty(
                "cloud", "This cluster runs elsewhere", "Nodes of this machine can be started, stopped and killed here."
            )
        return
    with card("Nodes of this machine"), element("div", "stack tight") as place:
        pass
    each(live, place, lambda now: {node.name: node for node in now.nodes}, lambda node: _NodeLine(backend, node).show)


class _NodeLine:
    """A node with its buttons."""

    def __init__(self, backend: Backend, node: NodeView) -> None:
        self.backend = backend
        self.name = node.name
        self._buttons: dict[str, ui.button] = {}
        with element("div", "row node", data_node=node.name):
            element("span", "mono", node.name, style="min-width: 110px")
            self._state = state("", "none")
            self._note = element("span", "muted grow", "")
            if node.name != "console" and not backend.read_only:
                for verb in _VERBS:
                    made = button(verb, partial(self._act, verb), kind="danger-plain" if verb == "kill" else "plain")
                    self._buttons[verb] = made

    def show(self, node: NodeView) -> None:
        show_state(self._state, node.state, _NODE_STATES.get(node.state, "none"))
        parts = [node.roles]
        if node.pid:
            parts += [
                f"pid {node.pid}",
                *([f"port {node.port}"] if node.port else []),
                f"up for {formatting.span(node.uptime_s)}",
                formatting.size(node.memory_bytes),
            ]
        put(self._note, " · ".join(parts))
        possible = {
            "running": {"stop", "restart", "kill", "pause"},
            "paused": {"resume", "kill"},
        }.get(node.state, {"start"})
        for verb, made in self._buttons.items():
            made.set_visibility(verb in possible)

    def _act(self, verb: str) -> None:
        confirm(
            f"{verb.capitalize()} {self.name}?",
            _VERBS[verb],
            self.backend.commands.node(verb, self.name, self.backend.node(self.name).pid),
            lambda: self.backend.node_action(verb, self.name),
            action=verb.capitalize(),
            done=f"{self.name}: {verb} is done",
            kind="danger" if verb in {"kill", "stop"} else "primary",
        )


# -- replicas ---------------------------------------------------------------------------------------------------


def _grid(backend: Backend, live: Live) -> None:
    """Which broker has which partition: leaders, followers, and those that are not in sync."""
    chosen: dict[str, object] = {"topic": None, "drawn": None}
    with card("Where the replicas are") as made:
        # It scrolls where the table is wider than the page: the keyboard must reach it for that.
        place = element("div", "scroll-x", tabindex=0, role="region", aria_label="Replicas by broker")
        legend = element("div", "row tight faint", style="margin-top: 8px; font-size: 12px")
        with legend:
            element("span", text="L leads · F follows · ✕ is not in sync; brokers are ordered by rack")
    with side_of(made):
        topics = select("Topic", [], None, with_input=True).style("min-width: 240px")

    def draw(now: Snapshot) -> None:
        names = [t.name for t in now.topics.values() if not t.internal]
        if names != topics.options:
            keep = topics.value if topics.value in names else None
            largest = max((now.topics[n] for n in names), key=lambda t: len(t.partitions), default=None)
            topics.set_options(names, value=keep or (largest.name if largest else None))
        topic = now.topics.get(str(topics.value))
        facts = (
            (topic.name, topic.partitions, tuple((b.broker_id, b.rack, b.state) for b in now.brokers))
            if topic
            else None
        )
        if facts == chosen["drawn"]:
            return
        chosen["drawn"] = facts
        place.clear()
        with place:
            if topic is None:
                empty("grid_on", "No topics yet", "Their replicas appear here.")
            else:
                _grid_table(now.brokers, topic.partitions[:_MOST_IN_GRID])

    topics.on_value_change(lambda _: draw(backend.now))
    live(draw)


def _grid_table(brokers: Sequence[BrokerView], partitions: Sequence[Partition]) -> None:
    ordered = sorted(brokers, key=lambda b: (b.rack or "", b.broker_id))
    with element("table", "replicas"):
        with element("tr"):
            element("th", text="partition")
            for p in partitions:
                element("th", text=str(p.partition))
            element("th", text="replicas")
        rack: str | None = None
        for broker in ordered:
            if broker.rack and broker.rack != rack:
                rack = broker.rack
                with element("tr", "rack"):
                    element("th", text=f"rack {rack}")
            with element("tr"):
                element("th", text=f"broker {broker.broker_id}")
                for p in partitions:
                    text, kind = _cell(broker.broker_id, p)
                    element("td", kind, text, title=f"broker {broker.broker_id}, partition {p.partition}")
                element("td", text=str(sum(broker.broker_id in p.replicas for p in partitions)))


def _cell(broker: int, p: Partition) -> tuple[str, str]:
    if broker not in p.replicas:
        return "", ""
    if broker == p.leader:
        return "L", "leader"
    return ("F", "follower") if broker in p.isr else ("✕", "lost")
