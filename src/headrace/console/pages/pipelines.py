"""Pipelines: the flow drawn; rate, lag by partition, batch time, state, watermark; ledger; dead letters with redrive.

Everything is read from the pipelines' files, so a stopped one shows its lag too.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Literal

from nicegui import ui

from headrace.console import formatting, pipelines
from headrace.console.backend import Backend
from headrace.console.charts import VIOLET, FlowChart, FlowNode, Line, TimeChart
from headrace.console.forms import EqualPanel, Verdict, attempt, button, confirm, dialog
from headrace.console.pages.groups import offset_columns
from headrace.console.pages.overview import PIPELINE_STATES
from headrace.console.pipelines import DeadLettersView
from headrace.console.tables import Column, Table
from headrace.console.widgets import (
    Live,
    Tile,
    box,
    card,
    element,
    empty,
    json_link,
    link,
    page,
    pairs,
    put,
    show_state,
    state,
    topic_href,
)
from headrace.errors import HeadraceError
from headrace.monitor import LedgerView, PipelineView, Point, Snapshot

_OFFSETS = offset_columns(Column("offset", "Offset", "number", show=formatting.count))
_OUTCOMES = ("written", "dead", "late", "filtered", "duplicate")


def show(backend: Backend) -> None:
    live = Live(backend)
    with page("Pipelines") as side:
        with side:
            json_link("pipelines")
        nothing = empty(
            "account_tree", "No pipelines yet", "Declare one in headrace.toml, [pipelines.NAME]; then:",
            "headrace pipeline start NAME",
        )  # fmt: skip
        graph = _Graph(backend)
        place = element("div", "stack")
    cards: list[_Card] = []

    @live
    def refresh(now: Snapshot) -> None:
        if [_declared(c.pipeline) for c in cards] != [_declared(p) for p in now.pipelines]:
            place.clear()
            with place:
                cards[:] = [_Card(backend, pipeline) for pipeline in now.pipelines]
        for made, pipeline in zip(cards, now.pipelines, strict=True):
            made.show(pipeline)
        nothing.set_visibility(not now.pipelines)
        graph.refresh()

    def read() -> dict[str, tuple[list[Point], list[Point]]]:
        names, since = [made.pipeline.name for made in cards], time.time() - 900
        lags, rates = (backend.history.many("pipeline", names, metric, since=since) for metric in ("lag", "rate"))
        return {name: (lags[name], rates[name]) for name in names}

    def show_past(found: dict[str, tuple[list[Point], list[Point]]]) -> None:
        for made in cards:
            made.show_past(*found.get(made.pipeline.name, ([], [])))

    live.past(read, show_past)


def _declared(pipeline: PipelineView) -> tuple[object, ...]:
    """What a card is drawn from once: headrace.toml may change while somebody looks."""
    return (pipeline.name, pipeline.sources, pipeline.steps, pipeline.sinks, pipeline.dead_letters)


class _Graph:
    """Pipelines and views as one picture, and the views in words; hidden where no view is declared."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._shown: object = None
        with card("Graph") as self._card:
            self._problem = element("div", "problem", "")
            self._chart = FlowChart()
            self._views = element("div", "muted", "", style="white-space: pre-line")
        self._card.set_visibility(False)

    def refresh(self) -> None:
        try:
            nodes = pipelines.graph(self.backend)
        except HeadraceError as error:
            put(self._problem, error.problem)
            self._problem.set_visibility(True)
            self._card.set_visibility(True)
            return
        self._problem.set_visibility(False)
        views = [node for node in nodes if node.kind == "view"]
        self._card.set_visibility(bool(views))
        if not views or nodes == self._shown:
            return
        self._shown = nodes
        words = [f"{v.name} is made from {', '.join(i.partition(' ')[2] for i in v.inputs)}: {v.state}" for v in views]
        shown = [FlowNode(node.id, node.name, node.kind, node.level, node.inputs) for node in nodes]
        self._chart.show(shown, "Data flow. " + "; ".join(words))
        put(self._views, "\n".join(words))


class _Card:
    """One pipeline."""

    def __init__(self, backend: Backend, pipeline: PipelineView) -> None:
        self.backend = backend
        self.pipeline = pipeline
        with card(pipeline.name) as made:
            self._problem = element("div", "problem", "")
            self._warnings = element("div", "complaints", "", style="white-space: pre-line")
            if pipeline.sources:
                _flow(pipeline)
            with box("tiles"):
                self._rate, self._lag = Tile("Reads", spark=True), Tile("Lag", spark=True)
                self._behind, self._batch = Tile("Behind"), Tile("Last batch")
                self._ledger, self._dead = Tile("Ledger"), Tile("Dead letters")
                self._kept, self._watermark = Tile("State"), Tile("Watermark")
            with box("columns"):
                with box("stack tight"):
                    element("div", "muted", "Lag in records, the last 15 minutes")
                    self._chart = TimeChart("count", label="Lag over time")
                    self._account = element("div", "muted", "", title="what became of every record, in all runs")
                shown = _OFFSETS if len(pipeline.sources) > 1 else _OFFSETS[1:]
                self._offsets = Table(shown, lambda: self.pipeline.offsets, key=lambda o: f"{o.topic}/{o.partition}")
        made.style("gap: 12px")
        with made.default_slot.children[0]:
            self._state = state("", "none")
            with element("span", "side"):
                button("Dead letters", self._letters, icon="mark_email_unread")
                self._start = button("Start", partial(self._act, "start"), kind="primary", icon="play_arrow")
                self._stop = button("Stop", partial(self._act, "stop"), icon="stop")

    def show(self, pipeline: PipelineView) -> None:
        self.pipeline = pipeline
        show_state(self._state, pipeline.state, PIPELINE_STATES[pipeline.state])
        put(self._problem, pipeline.problem or "")
        self._problem.set_visibility(bool(pipeline.problem))
        put(self._warnings, "\n".join(pipeline.warnings[:6]))
        self._warnings.set_visibility(bool(pipeline.warnings))
        self._rate.show(formatting.rate(pipeline.rate_per_s), pipeline.trigger or "")
        catch_up = f"caught up in {formatting.span(pipeline.catch_up_s)}" if pipeline.catch_up_s else "records to read"
        self._lag.show(formatting.short_count(pipeline.lag), catch_up)
        self._behind.show(formatting.span(pipeline.lag_s), "oldest unread record")
        number = f"batch {pipeline.batch:,}" if pipeline.batch is not None else "none yet"
        ended = f", {formatting.ago(pipeline.batch_ended)}" if pipeline.batch_ended else ""
        self._batch.show(formatting.span(pipeline.batch_s), number + ended)
        self._show_state_kept(pipeline)
        self._show_ledger(pipeline.ledger)
        self._offsets.refresh()
        runs = pipeline.state in {"running", "waiting"}
        self._start.set_visibility(not runs and not self.backend.read_only)
        self._stop.set_visibility(runs and not self.backend.read_only)

    def show_past(self, lag: list[Point], rate: list[Point]) -> None:
        """The last quarter of an hour."""
        self._chart.show([Line("lag", lag, VIOLET)], 900)
        self._lag.trace(lag)
        self._rate.trace(rate)

    def _show_state_kept(self, pipeline: PipelineView) -> None:
        """Only of pipelines that keep state between batches, or close windows."""
        self._kept.show(formatting.size(pipeline.state_bytes), "kept between batches")
        self._kept.box.set_visibility(pipeline.state_bytes is not None)
        if pipeline.watermark_ms is not None:
            day, _, clock = formatting.moment(pipeline.watermark_ms).partition(" ")
            self._watermark.show(clock[:8], f"{day}, event time")
        self._watermark.box.set_visibility(pipeline.watermark_ms is not None)

    def _show_ledger(self, ledger: LedgerView | None) -> None:
        if ledger is None:
            return
        read = f"{formatting.plural(ledger.read, 'record')} read"
        self._ledger.show("balances" if ledger.balanced else "is wrong", read, "" if ledger.balanced else "bad")
        self._dead.show(formatting.count(ledger.dead + ledger.late), f"{ledger.dead:,} dead, {ledger.late:,} late")
        counts = {outcome: getattr(ledger, outcome) for outcome in _OUTCOMES}
        parts = " + ".join(f"{count:,} {outcome}" for outcome, count in counts.items() if count or outcome == "written")
        put(self._account, f"{ledger.read:,} read {'=' if ledger.balanced else '≠'} {parts}")

    def _act(self, verb: Literal["start", "stop"]) -> None:
        name, backend = self.pipeline.name, self.backend
        text, work, done = {
            "start": (
                "It runs in the background and shares one Spark driver with the others.",
                pipelines.start,
                "runs",
            ),
            "stop": (
                "It stops after the current batch; its next run continues from there.",
                pipelines.stop,
                "stopped",
            ),
        }[verb]
        equal = backend.commands.pipeline(verb, name)
        confirm(
            f"{verb.capitalize()} {name}?", text, equal, lambda: work(backend, name),
            action=verb.capitalize(), done=f"{name} {done}", kind="primary",
        )  # fmt: skip

    async def _letters(self) -> None:
        await show_letters(self.backend, self.pipeline)


def _flow(pipeline: PipelineView) -> None:
    """Sources, what is done, and sinks, from left to right; the dead letters leave by another door."""
    with element("div", "flow"):
        with element("div", "stack tight"):
            for topic in pipeline.sources:
                with element("a", "stop link", href=topic_href(topic)):
                    element("div", "kind", "topic")
                    element("div", text=topic)
        for step in pipeline.steps:
            element("div", "arrow", "→")
            verb, _, rest = step.partition(" ")
            with element("div", "stop"):
                element("div", "kind", verb)
                element("div", text=rest or verb)
        element("div", "arrow", "→")
        with element("div", "ends"):
            for sink in pipeline.sinks:
                _stop(sink)
            if pipeline.dead_letters:
                _stop(pipeline.dead_letters, dead=True)


def _stop(text: str, *, dead: bool = False) -> None:
    kind, _, target = text.partition(" ")
    name = target.rsplit("/", 1)[-1] if kind != "topic" else target
    with element("div", "stop dead" if dead else "stop", title=target):
        element("div", "kind", f"dead letters, {kind}" if dead else kind)
        link(name, topic_href(name)) if kind == "topic" else element("div", text=name)


async def show_letters(backend: Backend, pipeline: PipelineView) -> None:
    """The dead letters by rule and reason, each with samples and a way back."""
    name = pipeline.name
    with dialog(f"Dead letters of {name}", wide=True) as made:
        waiting = element("div", "muted", "reading them …")
        place = element("div", "stack")
        verdict = Verdict()
        with element("div", "row end"):
            button("Close", made.close, kind="primary")

    async def load() -> None:
        found = await attempt(lambda: pipelines.dead_letters(backend, name))
        if isinstance(found, HeadraceError):
            verdict.problem(found)
            return
        waiting.set_visibility(False)
        place.clear()
        with place:
            if not found:
                empty("mark_email_read", "No dead letters", f"{name} could use every record that it has read.")
            for group in found:
                _group(backend, name, group)

    with made:
        ui.timer(0.05, load, once=True)


def _group(backend: Backend, name: str, group: DeadLettersView) -> None:
    with element("section", "card"):
        with element("h2", "title"):
            element("span", text=f"{group.records:,} by {group.rule}")
            element("span", "tag", group.outcome)
            with element("span", "side"):
                again = button("Redrive", icon="replay")
                again.set_enabled(not backend.read_only)
        element("div", text=group.reason)
        between = f"{formatting.moment(group.first_ms or -1)} to {formatting.moment(group.last_ms or -1)}"
        redriven = f", {group.redriven:,} already redriven" if group.redriven else ""
        element("div", "muted", f"{formatting.size(group.size_bytes)}, {between}{redriven}")
        for sample in group.samples:
            element("div", "muted", f"{sample.origin}: {sample.words}", style="margin-top: 8px")
            shown = sample.value.text if sample.value.text is not None else "null"
            element("div", "payload", shown[:600], style="max-height: 120px", tabindex="0")
        place = element("div", "stack tight", style="margin-top: 8px")
    again.on("click", lambda: _redrive(backend, name, group, place))


async def _redrive(backend: Backend, name: str, group: DeadLettersView, place: ui.element) -> None:
    """First what would be sent, then it is sent."""
    rules, reasons = [group.rule], [group.reason]
    found = await attempt(lambda: pipelines.send_again(backend, name, rules, reasons, dry=True))
    place.clear()
    with place:
        verdict = Verdict()
        if isinstance(found, HeadraceError):
            verdict.problem(found)
            return
        pairs(
            [
                (
                    "Would be sent",
                    f"{formatting.plural(found.sent, 'record')} to {', '.join(found.topics) or 'no topic'}",
                ),
                ("Stay", f"{found.marked:,} redriven before, {found.looping:,} stopped by the loop guard"),
            ]
        )
        EqualPanel(backend.commands.redrive(name, group.rule, group.reason))
        with element("div", "row end"):
            send = button("Send them again", kind="danger")
            send.set_enabled(found.sent > 0)

    async def run() -> None:
        send.props("loading")
        result = await attempt(lambda: pipelines.send_again(backend, name, rules, reasons, dry=False))
        send.props(remove="loading")
        if isinstance(result, HeadraceError):
            verdict.problem(result)
        else:
            send.disable()
            verdict.good(f"{formatting.plural(result.sent, 'record')} sent again")

    send.on("click", run)
