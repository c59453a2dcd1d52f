"""What the console does with pipelines: start, stop, look at dead letters, redrive them. None of it needs a JVM here.

At most so many dead letters are read; to redrive more, use the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from headrace.console.backend import Backend
from headrace.errors import Failed, NotFound
from headrace.kafka.browse import Renderer, Shown
from headrace.pipeline import Graph, Group, Pipeline, RedrivePlan, RedriveReport, Wanted

_MOST_LETTERS = 100_000
_SAMPLES = 3


class SampleView(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter to look at: where its original was, and what is wrong with it."""

    origin: str
    timestamp_ms: int
    size_bytes: int
    key: Shown
    value: Shown
    words: str


class DeadLettersView(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters that died of the same."""

    outcome: str
    rule: str
    reason: str
    records: int
    size_bytes: int
    first_ms: int | None
    last_ms: int | None
    redriven: int
    samples: tuple[SampleView, ...]


class GraphNodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A topic, a pipeline, a table or a view, and what data flows into it. `level`: how many steps from a topic."""

    name: str
    kind: Literal["topic", "pipeline", "table", "view"]
    inputs: tuple[str, ...] = ()
    level: int = 0
    #: Of a view: how its last update ended.
    state: str | None = None

    @property
    def id(self) -> str:
        """Unlike a name, no other node has it."""
        return f"{self.kind} {self.name}"


def graph(backend: Backend) -> tuple[GraphNodeView, ...]:
    """All that headrace.toml declares, each node behind its inputs; nothing without a cluster on this machine."""
    cluster = backend.target.cluster
    if cluster is None or not cluster.home.config_file.is_file():
        return ()
    declared = Graph.from_file(cluster.home.config_file, cluster.home)
    found: dict[str, GraphNodeView] = {}

    def add(kind: Literal["topic", "pipeline", "table", "view"], name: str, inputs: tuple[str, ...]) -> str:
        node = GraphNodeView(
            name=name, kind=kind, inputs=inputs, level=max((found[each].level + 1 for each in inputs), default=0),
            state=declared.state(name) if kind == "view" else None,
        )  # fmt: skip
        if known := found.get(node.id):  # a topic that is read twice, a table that two pipelines write
            both = tuple(dict.fromkeys((*known.inputs, *inputs)))
            node = msgspec.structs.replace(node, inputs=both, level=max(node.level, known.level))
        found[node.id] = node
        return node.id

    tables: dict[str, str] = {}
    for node in declared.nodes:
        if node.kind == "view":
            made = add("view", node.name, tuple(tables[table] for table in node.reads))
            tables |= dict.fromkeys(node.writes, made)
            continue
        read = [add("topic", topic, ()) for topic in node.reads]
        looked_up = [tables.get(table) or add("table", table, ()) for table in node.looks_up]
        made = add("pipeline", node.name, (*read, *looked_up))
        tables |= {table: add("table", table, (made,)) for table in node.writes}
        for table in node.elsewhere:
            add("table", table, (made,))
        for topic in node.sends:
            add("topic", topic, (made,))
    return tuple(found.values())


def find(backend: Backend, name: str) -> Pipeline:
    cluster = backend.target.cluster
    if cluster is None:
        raise NotFound("the console shows pipelines only for a cluster on this machine")
    return Pipeline.from_file(cluster.home.config_file, name, cluster.home)


def start(backend: Backend, name: str) -> None:
    """The pipeline runs in the background; one that runs already is an error."""
    found = find(backend, name)

    def begin() -> None:
        if not found.start(backend.target.connection, registry=backend.target.registry):
            raise Failed(f"{name} runs already", hint="stop it first; one in a terminal stops with Ctrl-C")

    backend.change(begin)


def stop(backend: Backend, name: str) -> None:
    """The pipeline has ended after the current batch."""
    backend.change(find(backend, name).stop)


def dead_letters(backend: Backend, name: str) -> list[DeadLettersView]:
    """The records that the pipeline could not use, by rule and reason."""
    wanted = Wanted(limit=_MOST_LETTERS)
    found = find(backend, name).dead_letters(
        backend.target.connection, wanted, samples=_SAMPLES, registry=backend.target.registry
    )
    return [_view(group) for group in found]


def send_again(
    backend: Backend, name: str, rules: Sequence[str], reasons: Sequence[str], *, dry: bool
) -> RedriveReport:
    """The chosen dead letters are in their topics again; with `dry` it is only counted what would be sent."""
    found = find(backend, name)
    wanted = Wanted(rules=tuple(rules), reasons=tuple(reasons), limit=_MOST_LETTERS)

    def send() -> RedriveReport:
        return found.redrive(backend.target.connection, wanted, RedrivePlan(dry=dry))

    return send() if dry else backend.change(send)


def _view(group: Group) -> DeadLettersView:
    look = Renderer()
    return DeadLettersView(
        outcome=group.outcome,
        rule=group.rule,
        reason=group.reason,
        records=group.records,
        size_bytes=group.bytes,
        first_ms=group.first_ms,
        last_ms=group.last_ms,
        redriven=group.redriven,
        samples=tuple(
            SampleView(
                origin=s.origin,
                timestamp_ms=s.timestamp_ms,
                size_bytes=s.size_bytes,
                key=look.one(s.key, None, None),
                value=look.one(s.value, None, None),
                words=s.words,
            )
            for s in group.samples
        ),
    )
