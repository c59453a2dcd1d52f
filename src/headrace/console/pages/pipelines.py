"""Pipelines: the flow drawn; rate, lag by partition, batch time, state, watermark; ledger; start and stop.

Everything is read from the pipelines' files, so a stopped one shows its lag too.
"""

from __future__ import annotations

import time

from headrace.console import words
from headrace.console.charts import VIOLET, Line, TimeChart
from headrace.console.desk import Desk
from headrace.console.pieces import (
    Live,
    State,
    Tile,
    box,
    card,
    element,
    empty,
    page,
    put,
    show_state,
    state,
    topic_href,
)  # fmt: skip
from headrace.console.tables import Column, Row, Table
from headrace.monitor.snapshot import PipelineView, Snapshot

_STATES: dict[str, State] = {"running": "good", "stopped": "none", "failed": "bad"}
_OFFSETS = (
    Column("topic", "Topic", "name"),
    Column("partition", "Partition", "number"),
    Column("offset", "Offset", "number"),
    Column("end", "End", "number"),
    Column("lag", "Lag", "number"),
)


def show(desk: Desk) -> None:
    live = Live(desk)
    with page("Pipelines") as side:
        with side:
            element("a", "link", "JSON", href="/api/pipelines", target="_blank")
        nothing = empty("account_tree", "No pipelines yet", "Declare one in headrace.toml, [pipelines.NAME]; then:",
                        "headrace pipeline start NAME")  # fmt: skip
        place = element("div", "stack")
    cards: dict[str, _Card] = {}

    @live
    def refresh(now: Snapshot) -> None:
        if list(cards) != [p.name for p in now.pipelines]:
            place.clear()
            cards.clear()
            with place:
                for pipeline in now.pipelines:
                    cards[pipeline.name] = _Card(desk, pipeline)
        for pipeline in now.pipelines:
            cards[pipeline.name].show(pipeline)
        nothing.set_visibility(not now.pipelines)


class _Card:
    """One pipeline."""

    def __init__(self, desk: Desk, pipeline: PipelineView) -> None:
        self.desk = desk
        self.pipeline = pipeline
        with card(pipeline.name) as made:
            self._problem = element("div", "problem", "")
            _flow(pipeline)
            with box("tiles", "div"):
                self._rate, self._lag = Tile("Reads", spark=True), Tile("Lag", spark=True)
                self._batch, self._ledger = Tile("Last batch"), Tile("Ledger")
                self._state_size = Tile("State")
            with box("columns"):
                self._chart = TimeChart("count", label="Lag over time")
                self._offsets = Table(_OFFSETS, self._rows, key="place", sort="topic")
        with made.default_slot.children[0]:
            self._state = state("", "none")

    def _rows(self) -> list[Row]:
        return [
            {
                "place": f"{o.topic}/{o.partition}", "topic": o.topic, "_topic": f"{o.topic} {o.partition:06d}",
                "partition": o.partition, "offset": words.count(o.offset), "end": words.count(o.end),
                "lag": words.count(o.lag), "_lag": o.lag,
            }
            for o in self.pipeline.offsets
        ]  # fmt: skip

    def show(self, pipeline: PipelineView) -> None:
        self.pipeline = pipeline
        show_state(self._state, pipeline.state, _STATES[pipeline.state])
        put(self._problem, pipeline.problem or "")
        self._problem.set_visibility(bool(pipeline.problem))
        self._rate.show(words.rate(pipeline.rate_per_s), pipeline.trigger or "")
        self._lag.show(words.short_count(pipeline.lag), "records to read")
        number = f"batch {pipeline.batch:,}" if pipeline.batch is not None else ""
        self._batch.show(words.span(pipeline.batch_s), number)
        self._state_size.show(words.size(pipeline.state_bytes), f"watermark {pipeline.watermark or words.DASH}")
        ledger = pipeline.ledger
        if ledger:
            told = f"{ledger.read:,} read, {ledger.written:,} written, {ledger.dead:,} dead"
            self._ledger.show(
                "balances" if ledger.balanced else "does not balance", told, "" if ledger.balanced else "bad"
            )
        self._offsets.refresh()
        since = time.time() - 900
        lag = self.desk.history.series("pipeline", pipeline.name, "lag", since=since)
        self._chart.show([Line("lag", lag, VIOLET)], 900)
        self._lag.trace(lag)
        self._rate.trace(self.desk.history.series("pipeline", pipeline.name, "rate", since=since, most=60))


def _flow(pipeline: PipelineView) -> None:
    """Sources, what is done, and sinks, from left to right."""
    with element("div", "flow"):
        for topic in pipeline.sources:
            with element("a", "stop link", href=topic_href(topic)):
                element("div", "kind", "topic")
                element("div", text=topic)
        for step in pipeline.steps:
            element("div", "arrow", "→")
            with element("div", "stop"):
                element("div", "kind", "step")
                element("div", text=step)
        element("div", "arrow", "→")
        for sink in pipeline.sinks:
            with element("div", "stop"):
                element("div", "kind", "into")
                element("div", text=sink)
        if pipeline.dead_letters:
            with element("a", "stop link", href=topic_href(pipeline.dead_letters)):
                element("div", "kind", "dead letters")
                element("div", text=pipeline.dead_letters)
