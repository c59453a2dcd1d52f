"""Records: browse, search, follow, look into, produce and export; each with what became of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec
from nicegui import ui

from headrace.console import formatting, forms, widgets
from headrace.console.api import wanted
from headrace.console.backend import Backend, NewRecord
from headrace.console.commands import Equal
from headrace.console.forms import EqualPanel, Form, Verdict, attempt, button, dialog, select
from headrace.console.tables import Column, Table
from headrace.console.widgets import Address, Live, box, element, empty, no_topic, once_known, page, pairs, put, quoted
from headrace.errors import HeadraceError
from headrace.kafka import Start
from headrace.kafka.browse import BrowsedRecord, Page, Query, Shown, Tail
from headrace.monitor import Snapshot

if TYPE_CHECKING:
    from nicegui.events import ValueChangeEventArguments

_COLUMNS = (
    Column("offset", "Offset", "open", show=formatting.count, sortable=False),
    Column("partition", "Partition", "number", sortable=False, wide=True),
    Column("time", "Time", "mono", lambda r: formatting.short_moment(r.timestamp_ms), sortable=False, wide=True),
    Column("mark", "Fate", "mark", lambda r: r.mark if r.sure or r.mark == "unknown" else f"{r.mark}?",
           more=lambda r: r.mark, sortable=False),
    Column("key", "Key", "clip", lambda r: _text(r.key)[:120] if r.mark != "control" else "", sortable=False),
    Column("type", "Type", "tag", lambda r: _type(r.value) if r.mark != "control" else "", sortable=False, wide=True),
    Column("value", "Value", "clip", lambda r: _text(r.value)[:300], sortable=False),
    Column("size", "Size", "number", lambda r: formatting.size(r.size_bytes) if r.mark != "control" else "",
           sortable=False, wide=True),
)  # fmt: skip
_STARTS = {"end": "Newest", "beginning": "Oldest", "offset": "From offset", "time": "From time"}
_FATES = {
    "committed": "read_committed consumers get it",
    "aborted": "its transaction was aborted: read_committed consumers never see it",
    "open": "its transaction has not ended: read_committed consumers wait for it",
    "control": "a marker that ends a transaction: no consumer sees it",
    "unknown": "the broker did not report it",
}
_LIMITS = [25, 50, 100, 250, 500]
_TAIL_ROWS = 200
_TEXTS = ("at", "key", "contains", "header", "where")


def show(backend: Backend, name: str | None = None) -> None:
    """The page for any topic; with a name, of that one."""
    live = Live(backend)
    topics = [topic.name for topic in backend.now.topics.values() if not topic.internal or topic.name == name]

    def choose(event: ValueChangeEventArguments[str]) -> None:
        if event.value in backend.now.topics:
            ui.navigate.to(f"/records/{quoted(event.value)}")

    with page("Records" if not name else f"Records of {name}") as side:
        with side:
            chosen = name if name in topics else None
            select("Topic", topics, chosen, with_input=True, on_change=choose).style("min-width: 260px")
            if name and not backend.read_only:
                button("Produce", lambda: produce(backend, name), kind="primary", icon="send")
        if name is None:
            empty("receipt_long", "Choose a topic", "Its newest records appear here, and new ones as they are written.")
        else:
            found = once_known(live, lambda now: name in now.topics, lambda: no_topic(name))
            found(lambda: browse(backend, name, live))


@dataclass
class _Asked:
    """What the controls say."""

    start: str = "end"
    at: str = ""
    partition: int | None = None
    limit: int = 50
    key: str = ""
    contains: str = ""
    header: str = ""
    where: str = ""

    @classmethod
    def said(cls, address: Address) -> _Asked:
        """What the address of the page says; what makes no sense is as if it were not said."""
        partition, limit = address.get("partition"), address.get("limit")
        return cls(
            start=address.get("start") if address.get("start") in _STARTS else "end",
            partition=int(partition) if partition.isdecimal() and len(partition) < 10 else None,
            limit=int(limit) if limit in map(str, _LIMITS) else 50,
            **{name: address.get(name) for name in _TEXTS},
        )

    def say(self, address: Address) -> None:
        """The address of the page says the same."""
        address.put(
            start=self.start if self.start != "end" else None,
            partition=None if self.partition is None else str(self.partition),
            limit=str(self.limit) if self.limit != 50 else None,
            **{name: getattr(self, name) for name in _TEXTS},
        )

    @property
    def start_text(self) -> str:
        return (self.at.strip() or "0") if self.start in {"offset", "time"} else self.start

    def query(self, topic: str) -> Query:
        return wanted(
            topic, self.start_text, self.limit, self.partition, self.key, self.contains, self.header, self.where
        )

    def export(self, topic: str) -> str:
        given = {"from": "beginning" if self.start == "end" else self.start_text, "key": self.key,
                 "contains": self.contains, "header": self.header, "where": self.where,
                 "partition": "" if self.partition is None else self.partition}  # fmt: skip
        return f"/api/topics/{quoted(topic)}/export?" + urlencode({k: v for k, v in given.items() if v != ""})


def browse(backend: Backend, topic: str, live: Live) -> None:
    """The controls, the log as a bar, and the records."""
    _Browsing(backend, topic, live)


@dataclass
class _Shown:
    """The rows that are on the page, and the records behind them."""

    records: dict[str, BrowsedRecord] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)

    def put(self, records: Sequence[BrowsedRecord]) -> None:
        self.records = {_key(record): record for record in records}
        self.order = list(self.records)

    def push(self, records: Sequence[BrowsedRecord]) -> None:
        """Newer ones on top; the oldest fall off."""
        for record in records:
            self.records[_key(record)] = record
        self.order = [*(_key(r) for r in reversed(records)), *self.order][:_TAIL_ROWS]
        self.records = {key: self.records[key] for key in self.order}

    def rows(self) -> list[BrowsedRecord]:
        return [self.records[key] for key in self.order]


class _Browsing:
    """One visit to the records of a topic."""

    def __init__(self, backend: Backend, topic: str, live: Live) -> None:
        self.backend = backend
        self.topic = topic
        self.address = live.address
        self.asked = _Asked.said(live.address)
        self.shown = _Shown()
        self.page: Page | None = None
        self.tail: Tail | None = None
        with box("stack records"):
            self._controls()
            with element("section", "card"):
                with element("div", "row"):
                    self.summary = element("span", "muted", "")
                    element("span", "grow")
                    self.older = button("Older", lambda: self._turn(backwards=True), icon="chevron_left")
                    self.newer = button("Newer", lambda: self._turn(backwards=False), icon="chevron_right")
                self.log = element("div", "stack tight")
                self.verdict = Verdict()
                self.nothing = empty("receipt_long", "No records", "None match, or none have been written yet.",
                                     f"echo hello | headrace produce {topic}")  # fmt: skip
                self.table = Table(
                    _COLUMNS, self.shown.rows, key=_key, in_order=True, per_page=500, paged=False, on_open=self._open
                )
            self.equal = EqualPanel()
        self.nothing.set_visibility(False)
        live(self._partitions)
        ui.timer(0.05, self.load, once=True)
        ui.timer(0.7, self._follow)
        ui.context.client.on_disconnect(self._stop)

    # -- controls -----------------------------------------------------------------------------------------------

    def _controls(self) -> None:
        asked = self.asked
        with element("section", "card"), element("div", "row"):
            number = "all" if asked.partition is None else str(asked.partition)
            self.partition = select("Partition", {"all": "All", number: number.capitalize()}, number)
            self.partition.style("min-width: 110px; flex: 0 1 120px")
            start = select("Start at", _STARTS, asked.start).style("flex: 0 1 150px")
            at = forms.field("Offset or time", asked.at).props('placeholder="1500, 2026-05-01T12:00, -15min"')
            at.style("flex: 0 1 220px")
            at.set_visibility(asked.start in {"offset", "time"})
            limit = select("Show", _LIMITS, asked.limit).style("flex: 0 0 96px")
            where = forms.field("Expression", asked.where).props("placeholder='value.trip > 1000 and \"bus\" in key'")
            where.style("flex: 1 1 240px")
            with ui.button(icon="filter_list", color=None).props('flat dense round aria-label="More filters"'):
                self._filters()
            self.go = button("Search", self.load, kind="primary", icon="search")
            self.follow = button("Follow", self._toggle_tail, icon="play_arrow")
            self.export = element(
                "a", "link nowrap", "Export", href=asked.export(self.topic), target="_blank", download=""
            )

        def started(event: ValueChangeEventArguments[str]) -> None:
            asked.start = event.value if event.value in _STARTS else "end"
            at.set_visibility(asked.start in {"offset", "time"})

        def chose_partition(event: ValueChangeEventArguments[str]) -> None:
            asked.partition = int(event.value) if str(event.value).isdecimal() else None

        start.on_value_change(started)
        self.partition.on_value_change(chose_partition)
        at.on_value_change(lambda event: setattr(asked, "at", event.value or ""))
        limit.on_value_change(lambda event: setattr(asked, "limit", event.value if event.value in _LIMITS else 50))
        where.on_value_change(lambda event: setattr(asked, "where", event.value or ""))
        for widget in (at, where):
            widget.on("keydown.enter", self.load)

    def _filters(self) -> None:
        asked = self.asked
        with ui.menu().props("no-focus=false"), element("div", "stack", style="padding: 14px; min-width: 290px"):
            for label, name, hint in (
                ("Key is", "key", "the whole key"),
                ("Value contains", "contains", "text in the value's bytes"),
                ("Header", "header", "name, or name=value"),
            ):
                made = forms.field(label, getattr(asked, name)).props(f'placeholder="{hint}" clearable')
                made.on_value_change(lambda event, name=name: setattr(asked, name, event.value or ""))
                made.on("keydown.enter", self.load)

    def _partitions(self, now: Snapshot) -> None:
        topic = now.topics.get(self.topic)
        options = {"all": "All", **{str(p.partition): str(p.partition) for p in (topic.partitions if topic else ())}}
        if options != self.partition.options:
            known = self.partition.value if self.partition.value in options else "all"
            self.partition.set_options(options, value=known)

    # -- pages --------------------------------------------------------------------------------------------------

    async def load(self) -> None:
        """The records that the controls ask for."""
        self._stop()
        self.asked.say(self.address)
        query = self._query()
        if query:
            await self._show(query)

    def _query(self) -> Query | None:
        """What the controls ask for; None if that makes no sense, and the page says why."""
        try:
            return self.asked.query(self.topic)
        except HeadraceError as error:
            self.verdict.problem(error)
            return None

    async def _turn(self, *, backwards: bool) -> None:
        """The page before or after the one that is shown."""
        query = self._query()
        if self.page is None or query is None:
            return
        positions = {s.partition: (s.first if backwards else s.next) or 0 for s in self.page.spans}
        start = Start.parse("end" if backwards else "beginning")
        await self._show(replace(query, start=start, positions=positions))

    async def _show(self, query: Query) -> None:
        self.go.props("loading")
        found = await attempt(lambda: self.backend.browser.page(query))
        self.go.props(remove="loading")
        if isinstance(found, HeadraceError):
            self.verdict.problem(found)
            return
        self.verdict.clear()
        self.page = found
        self.shown.put(found.records)
        self._paint(found, query)

    def _paint(self, found: Page, query: Query) -> None:
        self.table.refresh()
        self.table.table.set_visibility(bool(found.records))
        self.nothing.set_visibility(not found.records)
        summary = formatting.plural(len(found.records), "record")
        if query.filtered:
            summary += f" of {found.looked_at:,} scanned"
            if not found.complete:
                summary += "; timed out: continue with Older or Newer"
        if found.silent:
            summary += f"; partition {', '.join(map(str, found.silent))} has no leader that answers"
        for lost in found.damaged:
            summary += f"; left out, because a batch is damaged: {lost}"
        put(self.summary, summary)
        self._log(found)
        widgets.attribute(self.export, "href", self.asked.export(self.topic))
        begun = any((s.first or 0) > s.begin for s in found.spans)
        ended = any((s.next or 0) < s.high_watermark for s in found.spans)
        self.older.set_enabled(begun)
        self.newer.set_enabled(ended)
        self.equal.show(
            self.backend.commands.consume(self.topic, self.asked.start_text, self.asked.limit, self.asked.partition)
        )

    def _log(self, found: Page) -> None:
        """Where the last stable offset and the high watermark stand."""
        self.log.clear()
        with self.log:
            open_spans = [s for s in found.spans if s.last_stable_offset < s.high_watermark]
            shown = open_spans[:4] or (found.spans if len(found.spans) == 1 else ())
            for span in shown:
                total = max(1, span.high_watermark - span.begin)
                stable = max(4, min(96, round(100 * (span.last_stable_offset - span.begin) / total)))
                with element("div", "row tight"):
                    element("span", "faint nowrap", f"partition {span.partition}")
                    with element("div", "log grow"):
                        element("div", "stable", f"{span.begin:,} … last stable offset {span.last_stable_offset:,}",
                                style="flex: 1 1 0")  # fmt: skip
                        if span.last_stable_offset < span.high_watermark:
                            waiting = span.high_watermark - span.last_stable_offset
                            element(
                                "div",
                                "open",
                                f"{waiting:,} behind an open transaction",
                                style=f"flex: {100 - stable} 1 0",
                            )
                    element("span", "faint nowrap", f"high watermark {span.high_watermark:,}")

    # -- following ----------------------------------------------------------------------------------------------

    def _toggle_tail(self) -> None:
        if self.tail is not None:
            self._stop()
            return
        topic = self.backend.now.topics.get(self.topic)
        query = self._query()
        if query is None:
            return
        partitions = query.partitions or tuple(p.partition for p in (topic.partitions if topic else ()))
        self.tail = Tail(self.backend.target.connection, query, partitions, self.backend.look)
        self.tail.start()
        self.follow.set_text("Stop")
        self.follow.props("icon=stop")
        self.shown.put(())
        self.table.refresh()
        put(self.summary, "following: new records appear here as they are written")

    def _stop(self) -> None:
        if self.tail is not None:
            self.tail.stop()
            self.tail = None
            self.follow.set_text("Follow")
            self.follow.props("icon=play_arrow")

    async def _follow(self) -> None:
        tail = self.tail
        if tail is None:
            return
        taken = await asyncio.to_thread(tail.take)
        if self.tail is not tail:
            return
        if taken.records:
            self.shown.push(taken.records)
        undecided = [(r.partition, r.offset) for r in self.shown.records.values() if r.mark in {"unknown", "open"}]
        if undecided:
            marks = await attempt(lambda: self.backend.browser.marks(self.topic, undecided))
            if not isinstance(marks, HeadraceError):
                self._mark(marks)
        self.table.refresh()
        self.table.table.set_visibility(bool(self.shown.order))
        self.nothing.set_visibility(False)
        filtered = f", {taken.matched:,} match" if taken.matched != taken.seen else ""
        put(self.summary, taken.problem or f"following: {taken.seen:,} written since{filtered}; the newest are shown")

    def _mark(self, marks: Any) -> None:
        for key, record in list(self.shown.records.items()):
            mark = marks.get((record.partition, record.offset))
            if mark is not None:
                self.shown.records[key] = msgspec.structs.replace(record, mark=mark)

    # -- one record ---------------------------------------------------------------------------------------------

    async def _open(self, record: BrowsedRecord) -> None:
        partition, offset = record.partition, record.offset
        if record.mark != "control":
            found = await attempt(lambda: self.backend.browser.record(self.topic, partition, offset))
            if not isinstance(found, HeadraceError):
                record = found[0]
        look_into(record)


def look_into(record: BrowsedRecord) -> None:
    """All that is known of a record."""
    with dialog(f"{record.topic} / {record.partition} / {record.offset:,}", wide=True) as made:
        rows = [
            ("Time", f"{formatting.moment(record.timestamp_ms, with_zone=True)} ({record.timestamp_type} time)"),
            ("Fate", f"{record.mark}: {_FATES[record.mark]}" + ("" if record.sure else " (as far as scanned)")),
            ("Size", f"{formatting.size(record.size_bytes)} ({record.size_bytes:,} bytes of key and value)"),
        ]
        if record.batch is not None:
            first, last = record.batch
            rows.append(
                ("Batch", f"offsets {first:,} to {last:,}, {formatting.size(record.batch_bytes)}, codec {record.codec}")
            )
        if record.producer_id is not None:
            kind = "transactional" if record.transactional else "idempotent"
            rows.append(("Producer", f"id {record.producer_id}, epoch {record.producer_epoch}, {kind}"))
        pairs(rows)
        _part("Key", record.key)
        _part("Value", record.value)
        if record.headers:
            element("div", "muted", "Headers")
            pairs([(header, _text(shown)) for header, shown in record.headers])
        with element("div", "row end"):
            if record.mark != "control" and record.value.text is not None:
                at = f"/api/topics/{quoted(record.topic)}/records/{record.partition}/{record.offset}/value"
                element("a", "link", "Download the value", href=at, target="_blank", download="")
            button("Close", made.close, kind="primary")


def _part(label: str, shown: Shown) -> None:
    kind = _type(shown)
    if shown.cut:
        kind += f", {formatting.size(shown.size_bytes)}: only the beginning is shown"
    element("div", "muted", f"{label} · {kind}")
    if shown.error:
        element("div", "problem", shown.error)
    element("div", "payload", _pretty(shown), tabindex="0")


def _pretty(shown: Shown) -> str:
    if shown.text is None:
        return "null"
    if shown.kind in {"json", "schema"} and not shown.cut:
        try:
            return json.dumps(json.loads(shown.text), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            return shown.text
    return shown.text


def _type(shown: Shown) -> str:
    if shown.kind == "schema":
        name = {"AVRO": "Avro", "PROTOBUF": "Protobuf", "JSON": "JSON Schema"}.get(shown.schema_kind or "", "schema")
        return f"{name} v{shown.schema_version}" if shown.schema_version else f"{name}, id {shown.schema_id}"
    return {"json": "JSON", "text": "text", "bytes": "bytes", "null": "null"}[shown.kind]


def _text(shown: Shown) -> str:
    return "null" if shown.text is None else shown.text


def _key(record: BrowsedRecord) -> str:
    return f"{record.partition}/{record.offset}"


# -- producing --------------------------------------------------------------------------------------------------


def produce(backend: Backend, topic: str) -> None:
    """A form for one record."""
    known = backend.now.topics.get(topic)
    partitions = {"": "by key"} | {str(p.partition): str(p.partition) for p in (known.partitions if known else ())}

    def named() -> dict[str, str]:
        found = (part.partition("=") for part in (headers.value or "").split(",") if part.strip())
        return {name.strip(): text.strip() for name, _, text in found if name.strip()}

    def chosen() -> int | None:
        return int(partition.value) if str(partition.value or "").isdecimal() else None

    def text() -> str | None:
        return None if null.value else value.value or ""

    def changed() -> Equal:
        value.set_enabled(not null.value)
        return backend.commands.produce(topic, key.value or None, text(), named(), chosen())

    with Form(f"Produce to {topic}", changed, cancel="Close") as form:
        with element("div", "fields"):
            key = forms.field("Key").props('placeholder="none"')
            partition = select("Partition", partitions, "")
        value = forms.text_area("Value", 6).props("autofocus")
        headers = forms.field("Headers").props('placeholder="source=console, kind=test"')
        null = ui.switch("null: a tombstone, which deletes the key in a compacted topic").props("dense")
    form.action(
        "Send",
        lambda: backend.produce(NewRecord.of(topic, text(), key.value or None, named(), chosen())),
        lambda at: f"written to partition {at[0]} at offset {at[1]:,}",
        icon="send",
        closes=False,
    )
    form.follow(key, value, headers, null, partition)
