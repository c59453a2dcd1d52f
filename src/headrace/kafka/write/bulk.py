"""Records in bulk into one topic, with every delivery report counted.

Owns the one call that takes lists of records (`BulkSender.send`), the bound on what waits in memory,
and the tally. Two paths lie behind the call: librdkafka directly (`librdkafka.py`, about 1.5 times the
speed), and confluent_kafka's `Producer.produce()` where that cannot be had or where records carry
headers or timestamps, which librdkafka's batch call does not know. `Producer.produce_batch()` is not
used: it drops headers silently, and its callback per record costs as much as `produce()`.
It never opens files, never retries what librdkafka gave up on, and never drops a record: `send` waits.

Records time out together: when nothing was acknowledged for `message.timeout.ms`, all that is pending is given up; and
when one record waits twice as long, because its partition is stuck while others go on, it takes along what is pending.
librdkafka itself would let one after the other time out, begin a new epoch at the first of them, and send the younger
ones again under new numbers, by which a broker cannot tell that it has them already.

The invariant, also after Ctrl-C: accepted = acknowledged + failed + pending, and after `close`
pending is 0. An interrupt is let through between steps, never between an action and its count.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, cast

from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.errors import UsageError
from headrace.kafka.client import make, produce_when_room
from headrace.kafka.write.librdkafka import (
    ANY_PARTITION,
    NO_OFFSET,
    TIMED_OUT,
    UNLIMITED,
    Acknowledged,
    NativeProducer,
    Report,
    Undelivered,
    in_words,
    unusable_because,
)

if TYPE_CHECKING:
    from headrace.kafka.client import Message

__all__ = ["ANY_PARTITION", "BulkSender", "DeliveryTally", "PartitionSpan", "Undelivered"]

Headers = Sequence[tuple[str, bytes | None]]

# Underneath the caller's own settings. A batch of about 1 MB is what a broker takes with its defaults
# (max.message.bytes); 20 ms of linger fill it at 150,000 records/s of 330 bytes.
_TUNED: dict[str, object] = {"linger.ms": 20, "batch.size": 1_000_000, "partitioner": "murmur2_random"}
_MAX_PENDING_RECORDS = 200_000
_MAX_PENDING_KBYTES = 65_536
_STEP_S = 0.1
_PURGE_WITHIN_S = 10.0
_TIMEOUT = "message.timeout.ms"
_OTHER_NAME = "delivery.timeout.ms"  # of the same setting
_TIMEOUT_MS = 300_000  # librdkafka's own default
_LONGEST_MS = 2_147_483_647
# Long enough for what other partitions have under way, shorter than it takes librdkafka to send anything again.
_SETTLE_S = 1.0


@dataclass(slots=True)
class PartitionSpan:
    """What was acknowledged in one partition. The offsets are -1 with acks=0, which reports none."""

    records: int = 0
    first_offset: int = NO_OFFSET
    last_offset: int = NO_OFFSET


@dataclass(slots=True)
class DeliveryTally:
    """The counts so far. Bytes are of keys and values, before compression."""

    acknowledged: int = 0
    failed: int = 0
    accepted_bytes: int = 0
    failed_bytes: int = 0
    #: Failed records that may lie in the log all the same.
    maybe_written: int = 0
    #: How many records failed for which reason.
    reasons: Counter[str] = field(default_factory=Counter)
    partitions: dict[int, PartitionSpan] = field(default_factory=dict)

    def acknowledge(self, run: Acknowledged) -> None:
        """The run is counted in its partition, and its offsets widen the span."""
        self.acknowledged += run.records
        span = self.partitions.setdefault(run.partition, PartitionSpan())
        span.records += run.records
        if run.first_offset == NO_OFFSET:
            return
        if span.first_offset == NO_OFFSET or run.first_offset < span.first_offset:
            span.first_offset = run.first_offset
        span.last_offset = max(span.last_offset, run.last_offset)

    def fail(self, record: Undelivered) -> None:
        """The record is counted as failed."""
        self.failed += 1
        self.maybe_written += record.maybe_written
        self.reasons[record.reason] += 1
        self.failed_bytes += len(record.value or b"") + len(record.key or b"")


class BulkSender:
    """Sends lists of records to one topic; to be used by one thread, in a `with` block.

    `on_failed` is given every record that did not arrive, whole and with the reason; without it they
    are kept in `failures`. With `rich` the records may carry headers and timestamps.
    `native` says which path was taken and `native_refusal` why not the fast one.
    `explain` may know a better reason than the client: it is given the partition and the client's words.
    Once `stop` is set, a wait for room ends as by Ctrl-C, which reaches only the main thread.
    """

    def __init__(
        self,
        config: Mapping[str, object],
        topic: str,
        *,
        on_failed: Callable[[Undelivered], None] | None = None,
        explain: Callable[[int, str], str] | None = None,
        rich: bool = False,
        stop: threading.Event | None = None,
    ) -> None:
        timeout_ms = _timeout_ms(config)
        self._timeout_s = timeout_ms / 1000
        settings = {name: value for name, value in config.items() if name != _OTHER_NAME}
        settings = {**_TUNED, **settings, _TIMEOUT: str(min(2 * timeout_ms, _LONGEST_MS))}
        self.topic = topic
        self.tally = DeliveryTally()
        self.failures: list[Undelivered] = []
        self.native_refusal = "headers or timestamps were asked for" if rich else unusable_because(settings)
        self.native = self.native_refusal is None
        self._rich = rich
        self._on_failed = on_failed or self.failures.append
        self._explain = explain
        self._backlog = _Backlog(settings)
        self._producer: _Path = (NativeProducer if self.native else _ClientProducer)(settings, topic)
        self._closed = False
        self._stop = stop
        self._progress_at = time.monotonic()
        self._given_up = False
        self._stuck = False

    @property
    def pending(self) -> int:
        """Records accepted of which nothing was heard yet."""
        return self._producer.pending

    @property
    def accepted(self) -> int:
        """Records taken over by `send`: each is acknowledged, failed or pending."""
        return self.tally.acknowledged + self.tally.failed + self._producer.pending

    @property
    def last_error(self) -> str | None:
        """The client's latest complaint that belongs to no single record, such as a broker that is down."""
        return self._producer.last_error

    def send(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        partition: int | Sequence[int] = ANY_PARTITION,
        *,
        timestamps_ms: Sequence[int] | None = None,
        headers: Sequence[Headers] | None = None,
    ) -> None:
        """All records are accepted, in order, after waiting for room; an interrupt leaves all or none of them.

        None as a value is a tombstone. A record that the client refuses at once (larger than
        `message.max.bytes`, say) is counted as failed and handed over like any other failure.
        """
        size = _size(values) + (_size(keys) if keys is not None else 0)
        self._check(values, keys, partition, extras=(timestamps_ms, headers))
        extras = (timestamps_ms, headers) if self._rich else ()
        wait_s = 0.0
        while True:
            with _interrupt_deferred():
                self._count(self._producer.reports(wait_s))
                self._give_up_if_stalled()
                if not self._backlog.is_full(self._producer.pending, len(values), size):
                    if not self._producer.pending:
                        self._progress_at = time.monotonic()
                    refused = self._producer.produce(values, keys, partition, *extras)
                    self.tally.accepted_bytes += size
                    self._backlog.add(len(values), size)
                    self._count(refused)
                    return
            if self._stop and self._stop.is_set():
                raise KeyboardInterrupt
            wait_s = _STEP_S

    def flush(self, timeout_s: float | None = None) -> int:
        """Nothing is pending any more, or the time is up; returns what is still pending."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._producer.pending:
            left = _STEP_S if deadline is None else deadline - time.monotonic()
            if left <= 0:
                break
            self._collect(min(left, _STEP_S))
        return self._producer.pending

    def close(self) -> None:
        """The client is gone; what was still pending has been counted as failed, with its reason."""
        if self._closed:
            return
        self._closed = True
        self._purge()
        self._producer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    def _check(
        self,
        values: Sequence[object],
        keys: Sequence[object] | None,
        partition: int | Sequence[int],
        *,
        extras: tuple[Sequence[object] | None, ...],
    ) -> None:
        if not self._rich and any(extra is not None for extra in extras):
            raise UsageError(
                "headers and timestamps cannot be sent on this path",
                hint="make the BulkSender with rich=True",
            )
        columns = [keys, None if isinstance(partition, int) else partition, *extras]
        if any(column is not None and len(column) != len(values) for column in columns):
            raise UsageError(f"{len(values)} values need as many keys, partitions, timestamps and headers")

    def _collect(self, timeout_s: float) -> None:
        with _interrupt_deferred():
            self._count(self._producer.reports(timeout_s))
            self._give_up_if_stalled()

    def _give_up_if_stalled(self) -> None:
        stalled_s = time.monotonic() - self._progress_at
        if self._stuck:
            self._wait_until(time.monotonic() + _SETTLE_S)
        elif not 0 < self._timeout_s < stalled_s:
            return
        if self._producer.pending:
            self._given_up = True
            self._purge()
            self._given_up = False
        self._stuck = False
        self._progress_at = time.monotonic()

    def _purge(self) -> None:
        """Nothing is pending any more: what was has failed."""
        if not self._producer.pending:
            return
        self._producer.purge()
        self._wait_until(time.monotonic() + _PURGE_WITHIN_S)

    def _wait_until(self, deadline: float) -> None:
        while self._producer.pending and time.monotonic() < deadline:
            with _interrupt_deferred():
                self._count(self._producer.reports(_STEP_S))

    def _count(self, found: Sequence[Report]) -> None:
        self._stuck = self._stuck or any(isinstance(r, Undelivered) and r.reason == TIMED_OUT for r in found)
        reports = [self._explained(report) for report in found]
        for report in reports:
            if isinstance(report, Acknowledged):
                self._progress_at = time.monotonic()
                self.tally.acknowledge(report)
            else:
                self.tally.fail(report)
        # Counted first: whatever the callback does, the tally is complete.
        for report in reports:
            if isinstance(report, Undelivered):
                self._on_failed(report)

    def _explained(self, report: Report) -> Report:
        if isinstance(report, Acknowledged):
            return report
        reason = TIMED_OUT if self._given_up else report.reason
        return replace(report, reason=self._explain(report.partition, reason) if self._explain else reason)


def _timeout_ms(config: Mapping[str, Any]) -> int:
    """How long a record may take, by either name of the setting; 0 is for ever."""
    name = _TIMEOUT if _TIMEOUT in config else _OTHER_NAME
    given = config.get(name, _TIMEOUT_MS)
    try:
        found = int(given)
    except (TypeError, ValueError):
        found = -1
    if not 0 <= found <= _LONGEST_MS:
        raise UsageError(f"invalid value for {name}: {given!r}", hint=f"0 (for ever) to {_LONGEST_MS} milliseconds")
    return found


class _Path(Protocol):
    """What a way into librdkafka has to offer; `produce` returns the records it refused."""

    pending: int
    last_error: str | None

    @property
    def produce(self) -> Callable[..., list[Undelivered]]: ...
    def reports(self, timeout_s: float) -> list[Report]: ...
    def purge(self) -> None: ...
    def close(self) -> None: ...


class _ClientProducer:
    """confluent_kafka's Producer: slower, but it knows headers, timestamps and Python callbacks."""

    def __init__(self, config: Mapping[str, object], topic: str) -> None:
        self._topic = topic
        self.pending = 0
        self.last_error: str | None = None
        self._runs: dict[int, Acknowledged] = {}
        self._undelivered: list[Undelivered] = []
        self._producer = make(Producer, {"error_cb": self._on_error, **config, **UNLIMITED})

    def produce(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None = None,
        partition: int | Sequence[int] = ANY_PARTITION,
        timestamps_ms: Sequence[int] | None = None,
        headers: Sequence[Headers] | None = None,
    ) -> list[Undelivered]:
        refused = []
        for index, value in enumerate(values):
            key = keys[index] if keys is not None else None
            where = partition if isinstance(partition, int) else partition[index]
            extras: dict[str, object] = {}
            if timestamps_ms is not None:
                extras["timestamp"] = timestamps_ms[index]
            if headers is not None:
                extras["headers"] = list(headers[index])
            if reason := self._produce_one(value, key, where, extras):
                refused.append(Undelivered(value, key, where, reason))
        return refused

    def _produce_one(
        self, value: bytes | None, key: bytes | None, partition: int, extras: dict[str, object]
    ) -> str | None:
        try:
            produce_when_room(
                self._producer, self._topic, value, key, partition, on_delivery=self._on_delivery, **extras
            )
        except KafkaException as error:
            return str(error.args[0].str())
        self.pending += 1
        return None

    def reports(self, timeout_s: float) -> list[Report]:
        self._producer.poll(timeout_s)
        found: list[Report] = [*self._runs.values(), *self._undelivered]
        self.pending -= sum(run.records for run in self._runs.values()) + len(self._undelivered)
        self._runs, self._undelivered = {}, []
        return found

    def purge(self) -> None:
        self._producer.purge()

    def close(self) -> None:
        self._producer.flush(0)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        partition = message.partition()
        if error is not None:
            # Which of these were on their way once, this client does not say: none is called safe to repeat.
            maybe = error.code() in {KafkaError._MSG_TIMED_OUT, KafkaError._PURGE_INFLIGHT, KafkaError._PURGE_QUEUE}
            failed = Undelivered(message.value(), message.key(), partition, in_words(error.str()), maybe)
            self._undelivered.append(failed)
            return
        offset = message.offset() if message.offset() is not None else NO_OFFSET
        run = self._runs.get(partition)
        first, records = (run.first_offset, run.records) if run else (offset, 0)
        self._runs[partition] = Acknowledged(partition, records + 1, first, offset)

    def _on_error(self, error: KafkaError) -> None:
        self.last_error = error.str()


class _Backlog:
    """How much waits in librdkafka: the records exactly, their bytes as if they left in order of arrival.

    A partition without a leader holds back older records than that, so with records of very unequal
    sizes the bytes are an estimate. It bounds memory only; no record's fate depends on it.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._max_records = int(config.get("queue.buffering.max.messages", _MAX_PENDING_RECORDS))
        self._max_bytes = int(config.get("queue.buffering.max.kbytes", _MAX_PENDING_KBYTES)) * 1024
        self._recent: deque[tuple[int, int]] = deque()
        self._records = 0
        self._bytes = 0

    def add(self, records: int, size_bytes: int) -> None:
        self._recent.append((records, size_bytes))
        self._records += records
        self._bytes += size_bytes

    def is_full(self, pending: int, records: int, size_bytes: int) -> bool:
        """Whether the next batch has to wait. An empty queue takes a batch of any size."""
        while self._recent and self._records - self._recent[0][0] >= pending:
            gone_records, gone_bytes = self._recent.popleft()
            self._records -= gone_records
            self._bytes -= gone_bytes
        if not pending:
            return False
        too_many = self._max_records and pending + records > self._max_records
        return bool(too_many) or self._bytes + size_bytes > self._max_bytes


def _size(parts: Sequence[bytes | None]) -> int:
    try:
        return sum(map(len, cast(Sequence[bytes], parts)))
    except TypeError:  # a null among them; asking for it beforehand costs more than the sum itself
        return sum(len(part) for part in parts if part is not None)


@contextmanager
def _interrupt_deferred() -> Iterator[None]:
    """Ctrl-C or SIGTERM during the block is answered after it, so that nothing happens without being counted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[tuple[int, FrameType | None]] = []
    # Only what Python would answer: a signal that is ignored, or ends the process at once, is left to do so.
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in handlers:
        signal.signal(number, lambda number, frame: caught.append((number, frame)))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for signalled, frame in caught[:1]:
            cast(Callable[[int, FrameType | None], object], handlers[signal.Signals(signalled)])(signalled, frame)
