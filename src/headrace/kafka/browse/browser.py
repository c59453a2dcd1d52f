"""Look at records without taking part: pages, searches and a live tail, each record with what became of it.

    with Browser("127.0.0.1:9092") as browser:
        page = browser.page(Query("orders", start=Start("end"), limit=50))
        for record in page.records: print(record.offset, record.mark)

Nothing is committed and no group is joined. Values are read by librdkafka, which knows every codec. What became of a
record is found in the headers of the batches around it, which are fetched beside: below the last stable offset the
broker names the aborted transactions; above it the marker that ends a transaction is looked for up to the high
watermark, and a transaction without one is open. That needs no access to files, so it holds for any Kafka.
Memory is bounded: by records, by bytes, and by what is kept of a large value.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import Failed, NotFound, UsageError
from headrace.kafka.batches import BatchHeader
from headrace.kafka.bounds import Start
from headrace.kafka.browse.expression import Expression
from headrace.kafka.browse.render import Renderer
from headrace.kafka.browse.visibility import BrowsedRecord, Mark, Visibility
from headrace.kafka.client import HasBootstrap, connect
from headrace.kafka.kafka import Kafka
from headrace.kafka.model import Topic
from headrace.kafka.ranges import assign, is_end, make_reader
from headrace.kafka.read import DamagedBatch, JsonRecord, find, headers_of, is_damage
from headrace.kafka.survey import Survey, leaders_of

if TYPE_CHECKING:
    from headrace.kafka.client import Consumer, Message

_MOST_BYTES = 16_000_000
_MOST_PAGE_BYTES = 32_000_000
_MOST_COUNTED_BYTES = 16_000_000
_SEARCHED_AT_ONCE, _SEARCHED_AT_MOST = 5_000, 200_000
_SEARCH_S = 4.0
_READ_TIMEOUT_S = 10.0
# Somebody waits for this answer: a broker may be busy for longer than a watch would wait for it.
_ANSWER_WITHIN_S = 8.0
_TOPIC_KNOWN_S = 3.0

READING: Mapping[str, object] = {
    "isolation.level": "read_uncommitted",
    # Without it a damaged batch that is not compressed gives wrong records, or fewer, and no error.
    "check.crcs": True,
    # A page is small: no more is fetched ahead than it can use.
    "queued.min.messages": 2000,
    "queued.max.messages.kbytes": 8192,
    "fetch.message.max.bytes": 1_048_576,
    "fetch.max.bytes": 8_388_608,
    "fetch.wait.max.ms": 50,
    "fetch.queue.backoff.ms": 5,
    "client.id": "headrace-browser",
}


class PartitionSpan(msgspec.Struct, frozen=True, kw_only=True):
    """What a partition holds, and what of it was looked at. Open transactions lie between the last stable offset and
    the high watermark."""

    partition: int
    begin: int
    last_stable_offset: int
    high_watermark: int
    first: int | None = None
    next: int | None = None


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Some records. `looked_at` counts those that were read to find them; `complete` is false if time ended first.

    Of the `silent` partitions nothing is known: they have no leader that answers. What is `damaged` was left out.
    """

    records: tuple[BrowsedRecord, ...]
    spans: tuple[PartitionSpan, ...]
    looked_at: int
    complete: bool
    silent: tuple[int, ...] = ()
    damaged: tuple[DamagedBatch, ...] = ()


@dataclass(frozen=True)
class Query:
    """Which records are wanted. `start` holds for every partition; `positions` name an offset for each instead.

    From the end, the last `limit` records are meant, the newest first; from anywhere else the first that follow.
    """

    topic: str
    start: Start = field(default_factory=lambda: Start("end"))
    limit: int = 50
    partitions: tuple[int, ...] = ()
    positions: Mapping[int, int] = field(default_factory=dict)
    key: str | None = None
    contains: str | None = None
    header: str | None = None
    expression: Expression | None = None

    @property
    def filtered(self) -> bool:
        return bool(self.key or self.contains or self.header or self.expression)

    def matches(self, renderer: Renderer, message: Message) -> bool:
        """True if the confluent-kafka Message is wanted."""
        if not self.filtered:
            return True
        if self.key and self.key.encode() != (message.key() or b""):
            return False
        if self.contains and self.contains.encode() not in (message.value() or b""):
            return False
        if self.header and not _has_header(message, self.header):
            return False
        return self.expression is None or self.expression.matches(renderer.facts(message))


@dataclass
class _Reading:
    """Messages of some ranges of offsets, and how far each partition was read."""

    reached: dict[int, int]
    messages: list[Message] = field(default_factory=list)
    size_bytes: int = 0
    damaged: list[DamagedBatch] = field(default_factory=list)

    @property
    def cut(self) -> bool:
        return self.size_bytes >= _MOST_BYTES

    def take(self, message: Message, at_end: bool, left: dict[int, int]) -> None:
        number, offset = message.partition(), message.offset()
        if self.cut:
            return
        if not at_end and offset < left[number]:
            self.messages.append(message)
            self.size_bytes += len(message)
            self.reached[number] = offset + 1
        if at_end or offset >= left[number] - 1:
            self.reached[number] = left.pop(number)

    def leave_out(self, lost: DamagedBatch, left: dict[int, int]) -> int:
        """Where the partition goes on behind the damaged batch."""
        self.damaged.append(lost)
        number, behind = lost.partition, lost.last_offset + 1
        self.reached[number] = min(behind, left[number])
        if behind >= left[number]:
            del left[number]
        return behind

    def require_whole(self) -> None:
        for lost in self.damaged:
            raise Failed(f"a batch is damaged: {lost}", why=lost.reason)


class Browser:
    """Looks at records of one Kafka. May be used by several threads; they wait for each other."""

    def __init__(self, where: HasBootstrap | str, renderer: Renderer | None = None) -> None:
        self._connection = connect(where)
        self._admin = Kafka(self._connection)
        self._survey = Survey(self._connection, timeout_s=_ANSWER_WITHIN_S)
        self._visibility = Visibility(self._survey)
        self.renderer = renderer or Renderer()
        self._lock = threading.Lock()
        self._consumer: Consumer | None = None
        self._topics: dict[str, tuple[float, Topic]] = {}

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None
            self._survey.close()
            self._admin.close()

    # -- pages --------------------------------------------------------------------------------------------------

    def page(self, query: Query) -> Page:
        """The records that are wanted, with their marks."""
        with self._lock:
            topic = self._topic(query.topic)
            wanted = _chosen(topic, query.partitions)
            spans = self._spans(topic, wanted)
            silent = tuple(number for number in wanted if number not in spans)
            if not spans:
                return Page(records=(), spans=(), looked_at=0, complete=False, silent=silent)
            return msgspec.structs.replace(self._search(topic, query, spans), silent=silent)

    def record(self, topic: str, partition: int, offset: int) -> tuple[BrowsedRecord, bytes | None]:
        """One record with the whole of its value."""
        with self._lock:
            found = self._topic(topic)
            spans = self._spans(found, _chosen(found, (partition,)))
            read = self._read({partition: (offset, offset + 1)}, topic)
            read.require_whole()
            messages = read.messages
            if not messages or messages[0].offset() != offset:
                raise NotFound(
                    f"{topic}/{partition} has no record at offset {offset}",
                    why=f"it holds offsets {spans[partition].begin} to {spans[partition].high_watermark - 1}, "
                    "without transaction markers and compacted records"
                    if partition in spans
                    else None,
                )
            marked = self._marked(found, [shown(self.renderer, messages[0], whole=True)])
            return marked[0], messages[0].value()

    def lines(self, query: Query) -> Iterator[bytes]:
        """The wanted records as lines of JSON like those of `consume --json`, forwards, piece by piece."""
        start = Start("beginning") if query.start.kind == "end" else query.start
        with self._lock:
            topic = self._topic(query.topic)
            wanted = _chosen(topic, query.partitions)
            spans = self._spans(topic, wanted)
            silent = [number for number in wanted if number not in spans]
            if silent:
                raise Failed(
                    f"partition {silent[0]} of {query.topic} has no leader that answers, so nothing was exported",
                    hint=f"headrace topic describe {query.topic}",
                )
            firsts = self._firsts(replace(query, start=start), spans)
        return self._lines(query, spans, {number: (at, at) for number, at in firsts.items()})

    def _lines(
        self, query: Query, spans: Mapping[int, PartitionSpan], covered: dict[int, tuple[int, int]]
    ) -> Iterator[bytes]:
        left = query.limit
        while left > 0:
            ranges = _next_ranges(covered, spans, _SEARCHED_AT_ONCE, backwards=False)
            if not ranges:
                return
            with self._lock:
                read = self._read(ranges, query.topic)
            read.require_whole()
            wanted = [message for message in read.messages if query.matches(self.renderer, message)][:left]
            left -= len(wanted)
            for number, (low, high) in covered.items():
                covered[number] = (low, max(high, read.reached.get(number, high)))
            yield b"".join(msgspec.json.encode(JsonRecord.of(message)) + b"\n" for message in wanted)

    def count(self, topic: Topic) -> int | None:
        """How many records the topic holds, by the headers of its batches; None if they are too large to be read."""
        if topic.size_bytes is None or topic.size_bytes > _MOST_COUNTED_BYTES:
            return None
        with self._lock:
            found = self._topic(topic.name)
            counts = [
                self._visibility.log(found, p.partition, [], (p.begin, p.end)).records(p.begin, p.end)
                for p in topic.partitions
                if p.begin is not None and p.end is not None
            ]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(topic.partitions) else None

    def batches(self, topic: str, partition: int) -> list[BatchHeader]:
        """The headers of the newest batches of a partition, about a megabyte of them."""
        with self._lock:
            found = self._topic(topic)
            span = self._spans(found, _chosen(found, (partition,))).get(partition)
            if span is None or span.high_watermark == span.begin:
                return []
            first = max(span.begin, span.high_watermark - _SEARCHED_AT_ONCE)
            log = self._visibility.log(found, partition, [first], (first, span.high_watermark))
            return [log.batches[base] for base in sorted(log.batches)]

    def marks(self, topic: str, places: Iterable[tuple[int, int]]) -> dict[tuple[int, int], Mark]:
        """What became of the records at these partitions and offsets by now."""
        with self._lock:
            found = self._topic(topic)
            by_partition: dict[int, list[int]] = {}
            for partition, offset in places:
                by_partition.setdefault(partition, []).append(offset)
            out: dict[tuple[int, int], Mark] = {}
            for partition, offsets in by_partition.items():
                log = self._visibility.log(found, partition, offsets)
                out.update({(partition, offset): log.mark(offset)[0] for offset in offsets})
            return out

    def _search(self, topic: Topic, query: Query, spans: Mapping[int, PartitionSpan]) -> Page:
        """Reads piece by piece until there are enough: forwards, or from the end backwards."""
        backwards = query.start.kind == "end"
        covered = {number: (first, first) for number, first in self._firsts(query, spans).items()}
        found: list[BrowsedRecord] = []
        piece = _SEARCHED_AT_ONCE if query.filtered else max(10, query.limit)
        damaged: list[DamagedBatch] = []
        looked, size, deadline = 0, 0, time.monotonic() + _SEARCH_S
        complete = True
        while len(found) < query.limit:
            ranges = _next_ranges(covered, spans, piece, backwards)
            complete = not ranges or (time.monotonic() < deadline and (query.filtered or size < _MOST_PAGE_BYTES))
            if not ranges or not complete:
                break
            read = self._read(ranges, topic.name)
            if read.cut and backwards and piece > 1:
                # The newest of the piece were not reached: a smaller piece nearer to the end is.
                piece = max(1, len(read.messages) // (2 * len(ranges)))
                continue
            looked, size = looked + len(read.messages), size + read.size_bytes
            damaged += read.damaged
            found += [
                shown(self.renderer, message) for message in read.messages if query.matches(self.renderer, message)
            ]
            for number, (first, _) in ranges.items():
                low, high = covered[number]
                covered[number] = (first, high) if backwards else (low, max(high, read.reached[number]))
            piece = min(piece * 4, _SEARCHED_AT_MOST) if not read.cut else piece
        chosen = _ordered(found, backwards)[: query.limit]
        seen = [_span(spans[n], chosen, covered[n], backwards, len(found) > len(chosen)) for n in sorted(spans)]
        marked = self._marked(topic, chosen, () if query.filtered else seen)
        return Page(
            records=tuple(_ordered(marked, backwards)), spans=tuple(seen), looked_at=looked, complete=complete,
            damaged=tuple(dict.fromkeys(damaged)),
        )  # fmt: skip

    def _firsts(self, query: Query, spans: Mapping[int, PartitionSpan]) -> dict[int, int]:
        """Where reading begins in each partition."""
        at = query.start
        if at.kind == "committed":
            raise UsageError("only a group has committed offsets", hint="beginning, end, an offset or a time")
        times = {}
        if at.kind == "time":
            places = [(query.topic, number) for number in spans]
            times = {number: offset for (_, number), offset in self._admin.offsets_at(places, at.value).items()}
        firsts = {}
        for number, span in spans.items():
            wanted = {
                "beginning": span.begin,
                "end": span.high_watermark,
                "offset": at.value,
                "time": times.get(number) if times.get(number) is not None else span.high_watermark,
            }[at.kind]
            wanted = query.positions.get(number, wanted)
            firsts[number] = min(max(int(wanted or 0), span.begin), span.high_watermark)
        return firsts

    # -- reading ------------------------------------------------------------------------------------------------

    def _read(self, ranges: Mapping[int, tuple[int, int]], topic: str) -> _Reading:
        """What lies in these ranges of offsets, as far as it is not too many bytes."""
        if self._consumer is None:
            self._consumer = make_reader(self._connection, READING)
        consumer = self._consumer
        left = {number: end for number, (first, end) in ranges.items() if first < end}
        read = _Reading({number: first for number, (first, _) in ranges.items()})
        deadline = time.monotonic() + _READ_TIMEOUT_S
        assign(consumer, {(topic, number): ranges[number][0] for number in left})
        try:
            while left and not read.cut:
                messages = consumer.consume(min(5000, sum(e - read.reached[n] for n, e in left.items())), 0.05)
                self._take(consumer, messages, read, left)
                if messages:
                    deadline = time.monotonic() + _READ_TIMEOUT_S
                if time.monotonic() > deadline:
                    raise Failed("the records could not be read", why=f"partition {min(left)} of {topic} is silent")
        finally:
            consumer.unassign()
        return read

    def _take(self, consumer: Consumer, messages: Sequence[Message], read: _Reading, left: dict[int, int]) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        moved: set[int] = set()  # what else came of these belongs to before they went on elsewhere
        for message in messages:
            number, error = message.partition(), message.error()
            if number not in left or number in moved:
                continue
            if error is None or is_end(error):
                read.take(message, error is not None, left)
                continue
            topic = message.topic()
            lost = find(self._survey, self._topic(topic), message, read.reached[number]) if is_damage(error) else None
            if lost is None:
                raise Failed("the records could not be read", why=f"{error.str()} ({error.name()})")
            moved.add(number)
            try:
                consumer.seek(TopicPartition(topic, number, read.leave_out(lost, left)))
            except KafkaException as refused:
                raise Failed("the records could not be read", why=refused.args[0].str()) from None

    # -- what became of them ------------------------------------------------------------------------------------

    def _marked(
        self, topic: Topic, records: Sequence[BrowsedRecord], spans: Sequence[PartitionSpan] = ()
    ) -> list[BrowsedRecord]:
        """The records with their marks, and the markers of transactions that lie in the spans."""
        wanted = {span.partition: (span.first or 0, span.next or 0) for span in spans}
        marked: list[BrowsedRecord] = []
        for number in {record.partition for record in records} | wanted.keys():
            own = [record for record in records if record.partition == number]
            log = self._visibility.log(topic, number, [record.offset for record in own], wanted.get(number))
            marked += [log.marked(record) for record in own]
            if number in wanted:
                marked += log.markers(topic.name, number, *wanted[number])
        if spans:
            return marked
        order = {(record.partition, record.offset): at for at, record in enumerate(records)}
        return sorted(marked, key=lambda record: order[record.partition, record.offset])

    # -- what is there ------------------------------------------------------------------------------------------

    def _topic(self, name: str) -> Topic:
        known_at, topic = self._topics.get(name, (0.0, None))
        if topic is None or time.monotonic() - known_at > _TOPIC_KNOWN_S:
            topic = self._admin.topic(name)
            self._topics[name] = (time.monotonic(), topic)
        return topic

    def _spans(self, topic: Topic, wanted: Sequence[int]) -> dict[int, PartitionSpan]:
        """Begin, last stable offset and high watermark of each partition that has a leader which answers."""
        leaders = leaders_of([topic], wanted)
        begins = self._survey.offsets(leaders, Start("beginning"))
        # In this order: neither goes back, so what the last stable offset is behind an earlier high watermark waits for
        # the end of a transaction. The other way round it would be what was written in between.
        highs = self._survey.offsets(leaders, Start("end"))
        stables = self._survey.offsets(leaders, Start("end"), "committed")
        return {
            number: PartitionSpan(
                partition=number,
                begin=begins[place],
                last_stable_offset=min(stables[place], highs[place]),
                high_watermark=highs[place],
            )
            for number in wanted
            if (place := (topic.name, number)) in begins and place in stables and place in highs
        }


def _chosen(topic: Topic, named: tuple[int, ...]) -> tuple[int, ...]:
    """The named partitions, which must exist; all if none is named."""
    known = tuple(p.partition for p in topic.partitions)
    for number in named:
        if number not in known:
            raise NotFound(f"{topic.name} has no partition {number}", why=f"it has {len(known)}")
    return named or known


def shown(renderer: Renderer, message: Message, *, whole: bool = False) -> BrowsedRecord:
    """The record in a confluent-kafka Message, not yet marked."""
    kind, timestamp = message.timestamp()
    key, value, headers = renderer.shown(message, whole=whole)
    return BrowsedRecord(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        timestamp_ms=timestamp,
        timestamp_type={1: "create", 2: "append"}.get(kind, "none"),
        size_bytes=len(message.key() or b"") + len(message.value() or b""),
        key=key,
        value=value,
        headers=headers,
    )


def _ordered(records: Sequence[BrowsedRecord], backwards: bool) -> list[BrowsedRecord]:
    """By time over all partitions, but within each partition always by offset, whatever its records say of the time."""
    latest: dict[int, int] = {}
    keys: dict[tuple[int, int], tuple[int, int, int]] = {}
    for record in sorted(records, key=lambda r: r.offset):
        latest[record.partition] = max(latest.get(record.partition, 0), record.timestamp_ms)
        keys[record.partition, record.offset] = (latest[record.partition], record.partition, record.offset)
    return sorted(records, key=lambda r: keys[r.partition, r.offset], reverse=backwards)


def _next_ranges(
    covered: Mapping[int, tuple[int, int]], spans: Mapping[int, PartitionSpan], piece: int, backwards: bool
) -> dict[int, tuple[int, int]]:
    """The next piece of each partition that has one left."""
    ranges = {}
    for number, (low, high) in covered.items():
        span = spans[number]
        if backwards and low > span.begin:
            ranges[number] = (max(span.begin, low - piece), low)
        elif not backwards and high < span.high_watermark:
            ranges[number] = (high, min(span.high_watermark, high + piece))
    return ranges


def _span(
    span: PartitionSpan, records: Sequence[BrowsedRecord], covered: tuple[int, int], backwards: bool, cut: bool
) -> PartitionSpan:
    """The span with what was looked at: if records were left over, only as far as the last that is shown."""
    low, high = covered
    shown = [record.offset for record in records if record.partition == span.partition]
    if cut and backwards:
        low = min(shown, default=high)
    elif cut:
        high = max(shown, default=low - 1) + 1
    return msgspec.structs.replace(span, first=low, next=high)


def _has_header(message: Message, wanted: str) -> bool:
    """`name` or `name=value`."""
    name, equals, value = wanted.partition("=")
    return any(key == name and (not equals or (data or b"") == value.encode()) for key, data in headers_of(message))
