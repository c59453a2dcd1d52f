"""What became of records: committed, aborted, open, or no records at all but markers of transactions.

The headers of the batches around a record tell it. Below the last stable offset the broker itself names the aborted
transactions (that is how read_committed consumers leave them out). Above it, the marker that ends a transaction is
looked for up to the high watermark; a transaction without one is open. Needs no access to files: any Kafka will do.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from headrace.errors import HeadraceError
from headrace.kafka.batches import BatchHeader, decision, headers_in
from headrace.kafka.browse.render import NULL, Shown
from headrace.kafka.model import Topic
from headrace.kafka.ranges import fetch_batches
from headrace.kafka.survey import Survey

#: What became of a record: read_committed consumers get the committed ones and no others.
Mark = Literal["committed", "aborted", "open", "control", "unknown"]

# How far a transaction's end is looked for behind the last stable offset before it is called open.
_LOOK_AHEAD_BYTES = 16_000_000
_MOST_FETCHES = 8


class BrowsedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record as it is shown. `sure` is false where the end of its transaction was not looked for far enough."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: str
    size_bytes: int
    key: Shown
    value: Shown
    headers: tuple[tuple[str, Shown], ...]
    mark: Mark = "unknown"
    sure: bool = True
    transactional: bool = False
    producer_id: int | None = None
    producer_epoch: int | None = None
    codec: str | None = None
    batch: tuple[int, int] | None = None
    batch_bytes: int | None = None


class Visibility:
    """Fetches what is needed to tell what became of records. Used by one thread at a time."""

    def __init__(self, survey: Survey) -> None:
        self._survey = survey

    def log(self, topic: Topic, partition: int, offsets: Sequence[int], whole: tuple[int, int] | None = None) -> Log:
        """The batches around these offsets, and all in a span. What no broker answers now stays unknown."""
        leader = next((p.leader for p in topic.partitions if p.partition == partition), -1)
        log = Log()
        try:
            for offset in sorted(offsets):
                if not log.knows(offset):
                    self._fetch_headers(log, topic.name, partition, leader, offset)
            at, end = whole or (0, 0)
            for _ in range(_MOST_FETCHES):
                at = log.known_from(at)
                if at >= end:
                    break
                self._fetch_headers(log, topic.name, partition, leader, at)
                if not log.knows(at):
                    break
            self._look_ahead(log, topic.name, partition, leader)
        except HeadraceError:
            return log
        return log

    def _fetch_headers(self, log: Log, topic: str, partition: int, leader: int, offset: int) -> None:
        committed = log.stable is None or offset < log.stable
        answer = fetch_batches(self._survey, topic, partition, leader, offset, committed=committed)
        if answer is None:
            return
        if committed:
            log.add_stable(answer)
            if offset >= answer.last_stable_offset:
                again = fetch_batches(self._survey, topic, partition, leader, offset, committed=False)
                log.add_unstable(again)
        else:
            log.add_unstable(answer)

    def _look_ahead(self, log: Log, topic: str, partition: int, leader: int) -> None:
        """Looks for the ends of the transactions that are undecided as far as is known."""
        budget = _LOOK_AHEAD_BYTES
        at = log.unstable_until
        while log.undecided and at is not None and at < log.high_watermark and budget > 0:
            answer = fetch_batches(self._survey, topic, partition, leader, at, committed=False)
            if answer is None or not answer.records:
                break
            budget -= len(answer.records)
            log.add_unstable(answer)
            if log.unstable_until == at:
                break
            at = log.unstable_until
        log.searched_to_the_end = at is not None and at >= log.high_watermark


class Log:
    """Batches of one partition, and which transactions were aborted."""

    def __init__(self) -> None:
        self.batches: dict[int, BatchHeader] = {}
        #: What the control batches say, by their first offsets.
        self._decisions: dict[int, str | None] = {}
        self.stable: int | None = None
        self.high_watermark = 0
        self.unstable_until: int | None = None
        self.searched_to_the_end = False
        self._aborted: set[int] = set()
        self._order: list[int] = []

    @property
    def undecided(self) -> bool:
        """True if a transactional batch behind the last stable offset has no end yet, as far as was looked."""
        return any(self._end_of(batch) is None for batch in self.batches.values() if self._is_unstable(batch))

    def add_stable(self, answer: Any) -> None:
        self.stable, self.high_watermark = answer.last_stable_offset, answer.high_watermark
        open_aborts = sorted((t.first_offset, t.producer_id) for t in answer.aborted_transactions or ())
        aborting: set[int] = set()
        for batch in self._add_all(answer):
            while open_aborts and open_aborts[0][0] <= batch.last_offset:
                aborting.add(open_aborts.pop(0)[1])
            if self._decisions.get(batch.base_offset) == "abort":
                aborting.discard(batch.producer_id)
            elif batch.transactional and batch.producer_id in aborting:
                self._aborted.add(batch.base_offset)

    def add_unstable(self, answer: Any) -> None:
        if answer is None:
            return
        self.high_watermark = answer.high_watermark
        for batch in self._add_all(answer):
            self.unstable_until = max(self.unstable_until or 0, batch.last_offset + 1)

    def knows(self, offset: int) -> bool:
        return self.batch(offset) is not None

    def known_from(self, offset: int) -> int:
        """The first offset from there on of which nothing is known."""
        while True:
            batch = self.batch(offset)
            if batch is None:
                return offset
            offset = batch.last_offset + 1

    def records(self, first: int, end: int) -> int | None:
        """How many records lie between these offsets; None if not all of the batches there are known."""
        if self.known_from(first) < end:
            return None
        inside = [b for b in self.batches.values() if not b.control and first <= b.last_offset and b.base_offset < end]
        return sum(min(b.records, min(b.last_offset, end - 1) - max(b.base_offset, first) + 1) for b in inside)

    def batch(self, offset: int) -> BatchHeader | None:
        """Offsets that compaction has left empty belong to the batch before them."""
        at = bisect_right(self._order, offset) - 1
        found = self.batches[self._order[at]] if at >= 0 else None
        return found if found and offset <= found.last_offset else None

    def _add_all(self, answer: Any) -> list[BatchHeader]:
        """The batches of the answer; they are known from now on."""
        data = answer.records or b""
        found = list(headers_in(data))
        for batch in found:
            if batch.base_offset not in self.batches:
                self.batches[batch.base_offset] = batch
                insort(self._order, batch.base_offset)
                if batch.control:
                    self._decisions[batch.base_offset] = decision(data, batch)
        return found

    def markers(self, topic: str, partition: int, first: int, end: int) -> list[BrowsedRecord]:
        """The markers of transactions there, as rows of their own."""
        return [
            self.marked(
                BrowsedRecord(
                    topic=topic,
                    partition=partition,
                    offset=batch.base_offset,
                    timestamp_ms=batch.max_timestamp_ms,
                    timestamp_type="create",
                    size_bytes=0,
                    key=NULL,
                    value=Shown(
                        kind="text", text=f"{self._decisions.get(batch.base_offset) or 'control'} marker", size_bytes=0
                    ),
                    headers=(),
                )
            )
            for batch in self.batches.values()
            if batch.control and first <= batch.base_offset < end
        ]

    def _is_unstable(self, batch: BatchHeader) -> bool:
        return (
            batch.transactional and not batch.control and self.stable is not None and batch.base_offset >= self.stable
        )

    def _end_of(self, batch: BatchHeader) -> BatchHeader | None:
        """The marker that ends the batch's transaction: the first of its producer behind it."""
        ends = [
            b
            for b in self.batches.values()
            if b.control and b.producer_id == batch.producer_id and b.base_offset > batch.last_offset
        ]
        return min(ends, key=lambda b: b.base_offset, default=None)

    def mark(self, offset: int) -> tuple[Mark, bool]:
        """What became of the record, and whether that is sure."""
        batch = self.batch(offset)
        if batch is None:
            return "unknown", False
        if batch.control:
            return "control", True
        if not batch.transactional:
            return "committed", True
        if not self._is_unstable(batch):
            return ("aborted" if batch.base_offset in self._aborted else "committed"), True
        end = self._end_of(batch)
        if end is None:
            return "open", self.searched_to_the_end
        return ("committed" if self._decisions.get(end.base_offset) == "commit" else "aborted"), True

    def marked(self, record: BrowsedRecord) -> BrowsedRecord:
        batch = self.batch(record.offset)
        mark, sure = self.mark(record.offset)
        if batch is None:
            return record
        return msgspec.structs.replace(
            record,
            mark=mark,
            sure=sure,
            transactional=batch.transactional,
            producer_id=batch.producer_id if batch.producer_id >= 0 else None,
            producer_epoch=batch.producer_epoch if batch.producer_id >= 0 else None,
            codec=batch.codec,
            batch=(batch.base_offset, batch.last_offset),
            batch_bytes=batch.size_bytes,
        )
