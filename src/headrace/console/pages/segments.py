"""The segments of a topic: files, batches, codec and ratio, what a record costs, and what retention will remove."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from nicegui import ui

from headrace.console import formatting, storage
from headrace.console.backend import Backend
from headrace.console.forms import Verdict, attempt, select
from headrace.console.storage import BatchView, SegmentView
from headrace.console.tables import Column, Table
from headrace.console.widgets import Tile, box, card, element, empty, put, side_of
from headrace.errors import HeadraceError

_SEGMENTS = (
    Column("base", "First offset", "open", lambda s: f"{s.base_offset:,}", sortable=False),
    Column("next", "Up to", "number", lambda s: f"{s.next_offset:,}", sortable=False),
    Column("file", "File", "mono", sortable=False, wide=True),
    Column("size", "Log", "number", lambda s: formatting.size(s.size_bytes), sortable=False),
    Column("index", "Indexes", "number", lambda s: formatting.size(s.index_bytes), sortable=False, wide=True),
    Column("young", "Youngest record", "mono", lambda s: _youngest(s), sortable=False, wide=True),
    Column("fate", "Retention", of=lambda s: _fate(s), sortable=False),
)
_BATCHES = (
    Column("offsets", "Offsets", "mono", lambda b: f"{b.base_offset:,} to {b.last_offset:,}", sortable=False),
    Column("records", "Records", "number", show=formatting.count, sortable=False),
    Column("size", "Bytes", "number", lambda b: formatting.size(b.size_bytes), sortable=False),
    Column("each", "Bytes per record", "number", lambda b: formatting.size(b.bytes_per_record), sortable=False),
    Column("codec", "Codec", "tag", sortable=False),
    Column("ratio", "Ratio", "number", lambda b: f"{b.ratio:.2f}" if b.ratio else None, sortable=False, wide=True),
    Column("producer", "Producer", "mono", lambda b: _producer(b), sortable=False, wide=True),
    Column("kind", "Kind", of=lambda b: "marker" if b.control else "transactional" if b.transactional else "plain",
           sortable=False),
)  # fmt: skip


def show(backend: Backend, name: str) -> None:
    _Storage(backend, name)


class _Storage:
    """One visit to the files of a topic."""

    def __init__(self, backend: Backend, name: str) -> None:
        self.backend = backend
        self.name = name
        self.segments: list[SegmentView] = []
        self.batches: list[BatchView] = []
        topic = backend.now.topics.get(name)
        numbers = [p.partition for p in topic.partitions] if topic else []
        self.local = storage.has_files(backend)
        with box("stack"):
            with box("tiles"):
                self.files, self.cost = Tile("Segments"), Tile("Bytes per record")
                self.codec, self.size = Tile("Codec"), Tile("Batch")
            with card("Segments" if self.local else "Segments are files of another machine") as made:
                self.verdict = Verdict()
                if self.local:
                    self.table = Table(_SEGMENTS, lambda: self.segments, key=_base, in_order=True, on_open=self._open)
                else:
                    empty(
                        "cloud", "The files cannot be seen from here", "The newest batches, as the broker sends them:"
                    )
            with side_of(made):
                self.partition = select("Partition", numbers, numbers[0] if numbers else None).style("min-width: 110px")
            with card() as batches:
                self.heading = element("h2", "title", "Batches")
                self.batch_table = Table(_BATCHES, lambda: self.batches, key=_base, in_order=True, per_page=25)
            batches.set_visibility(bool(numbers))
        self.partition.on_value_change(lambda _: self.load())
        ui.timer(0.05, self.load, once=True)

    async def load(self) -> None:
        """The segments of the chosen partition, and the batches of its first one."""
        chosen = self.partition.value
        if not isinstance(chosen, int):
            return
        if not self.local:
            await self._take(lambda: storage.travelling_batches(self.backend, self.name, chosen), "The newest batches")
            return
        found = await attempt(
            lambda: storage.segments(self.backend, self.name, self.backend.describe_topic(self.name), chosen)
        )
        if isinstance(found, HeadraceError):
            self.verdict.problem(found)
            return
        self.verdict.clear()
        self.segments = found
        self.table.refresh()
        total = sum(segment.size_bytes for segment in found)
        self.files.show(formatting.count(len(found)), f"{formatting.size(total)} in log files")
        if found:
            await self._batches_of(chosen, found[-1].base_offset)

    async def _open(self, segment: SegmentView) -> None:
        await self._batches_of(int(self.partition.value or 0), segment.base_offset)

    async def _batches_of(self, partition: int, base: int) -> None:
        heading = f"Batches of the segment that begins at {base:,}"
        await self._take(lambda: storage.batches(self.backend, self.name, partition, base), heading)

    async def _take(self, work: Any, heading: str) -> None:
        found = await attempt(work)
        if isinstance(found, HeadraceError):
            self.verdict.problem(found)
            return
        self.batches = found
        put(self.heading, heading)
        self.batch_table.refresh()
        self._sum_up([batch for batch in found if not batch.control])

    def _sum_up(self, batches: Sequence[BatchView]) -> None:
        records = sum(batch.records for batch in batches)
        size = sum(batch.size_bytes for batch in batches)
        if not records:
            return
        self.cost.show(formatting.size(size / records), f"of {formatting.plural(records, 'record')} read")
        self.size.show(formatting.size(size / len(batches)), f"{records / len(batches):,.1f} records each")
        codecs = sorted({batch.codec for batch in batches})
        plain = [batch for batch in batches if batch.plain_bytes]
        ratio = sum(b.plain_bytes or 0 for b in plain) / max(1, sum(b.size_bytes for b in plain)) if plain else None
        self.codec.show(", ".join(codecs), f"{ratio:.2f} times smaller" if ratio else "ratio unknown")


def _base(part: SegmentView | BatchView) -> int:
    return part.base_offset


def _youngest(segment: SegmentView) -> str | None:
    return None if segment.last_timestamp_ms is None else formatting.moment(segment.last_timestamp_ms)


def _producer(batch: BatchView) -> str | None:
    return None if batch.producer_id is None else f"{batch.producer_id}, epoch {batch.producer_epoch}"


def _fate(segment: SegmentView) -> str:
    if segment.removed_by == "size":
        return "goes at the next check: too many bytes"
    if segment.removed_at_ms is None:
        return "stays"
    left = segment.removed_at_ms / 1000 - time.time()
    when = f"in {formatting.span(left)}" if left > 0 else "at the next check"
    return f"goes {when}" + (", once it is rolled" if segment.active else "")
