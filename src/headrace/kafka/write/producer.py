"""Records from a file, a stream or Python objects into topics, and an honest account of what happened to each.

    report = produce(cluster, "breadcrumbs", "day.json", key_field="VEHICLE_ID")
    print(report.acknowledged, report.failed)

The account always adds up: read = acknowledged + failed. A record that could not be delivered is handed to `on_failed`
with its reason; Ctrl-C stops the reading, flushes what was accepted, and reports. Memory does not grow with the input.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace.errors import Failed, HeadraceError, UsageError
from headrace.kafka.client import PRODUCER_DEFAULTS, Connection, HasBootstrap, connect
from headrace.kafka.kafka import Kafka
from headrace.kafka.model import NewTopic
from headrace.kafka.write.bulk import BulkSender, PartitionSpan, Undelivered
from headrace.kafka.write.inputs import BadPiece, InputBatch, InputOptions, require_readable
from headrace.kafka.write.pace import Clock, Pace
from headrace.kafka.write.shaping import (
    ANY_PARTITION,
    OBJECTS_AT_ONCE,
    Dealer,
    Input,
    Outgoing,
    Route,
    Shaper,
    Shaping,
    Source,
)
from headrace.kafka.write.undelivered import Undeliverable

OnFailed = Callable[[str, Undelivered], None]

_PROGRESS_EVERY_S = 0.1
_REPORTS_WORTH_S = 0.02
# Long enough to live through an election or a restart, short enough for a person to wait for the answer.
_TIMEOUT_MS = 120_000
# A broker that hangs answers neither records nor the question who leads now; librdkafka would wait for a minute. What
# is sent again then is written once, because idempotent records are numbered; without numbers it would be doubled.
_ANSWER_WITHIN_MS = 10_000


@dataclass
class ProduceReport:
    """What became of the records of one call of `produce`."""

    read: int = 0
    acknowledged: int = 0
    failed: int = 0
    bad: int = 0
    bytes: int = 0
    seconds: float = 0.0
    #: Failed records that may lie in the log all the same: they were sent, and the answer did not come in time.
    maybe_written: int = 0
    #: How many records failed for which reason, the most frequent first.
    reasons: dict[str, int] = field(default_factory=dict)
    shape: str | None = None
    interrupted: bool = False
    #: How many records of the input, from its beginning, are dealt with: `InputOptions.skip` of a run that goes on.
    #: None if that cannot be said, because records were routed or several producers sent them.
    position: int | None = None
    partitions: dict[str, dict[int, PartitionSpan]] = field(default_factory=dict)
    #: What stopped the reading before the end of the input, if anything did.
    error: HeadraceError | None = None

    @property
    def complete(self) -> bool:
        """True if the whole input was read and every record of it acknowledged."""
        return not (self.failed or self.bad or self.error or self.interrupted)

    def add(self, other: ProduceReport) -> None:
        """What another producer did at the same time is counted in."""
        for name in ("read", "acknowledged", "failed", "maybe_written", "bad", "bytes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.seconds = max(self.seconds, other.seconds)
        self.reasons = dict((Counter(self.reasons) + Counter(other.reasons)).most_common())
        self.shape = self.shape or other.shape
        self.interrupted |= other.interrupted
        self.error = self.error or other.error
        for topic, spans in other.partitions.items():
            for partition, span in spans.items():
                _widen(self.partitions.setdefault(topic, {}).setdefault(partition, PartitionSpan()), span)


def _widen(span: PartitionSpan, other: PartitionSpan) -> None:
    span.records += other.records
    known = [offset for offset in (span.first_offset, other.first_offset) if offset >= 0]
    span.first_offset = min(known, default=-1)
    span.last_offset = max(span.last_offset, other.last_offset)


@dataclass(frozen=True)
class ProduceOptions:
    """Everything that can be said about a producing, beyond what and where to."""

    shaping: Shaping = field(default_factory=Shaping)
    pace: Pace = field(default_factory=Pace)
    input: InputOptions = field(default_factory=InputOptions)
    settings: Mapping[str, object] = field(default_factory=dict)
    producers: int = 1
    key_per_producer: bool = False
    on_failed: OnFailed | None = None
    #: Is given a line for each record as it is sent, if `shaping.echo` names what shall stand in it.
    on_echo: Callable[[str], None] | None = None
    on_progress: Callable[[ProduceReport], None] | None = None


def produce(
    where: HasBootstrap | str,
    topic: str,
    source: Source,
    *,
    key_field: str | None = None,
    key: str | bytes | None = None,
    headers: Mapping[str, str | bytes] | None = None,
    create: bool = False,
    options: ProduceOptions | None = None,
) -> ProduceReport:
    """The records of `source` are in `topic`, or accounted for in the report.

    `source` is a path, `-` for standard input, a binary stream, or any iterable of Python objects (bytes and text as
    they are, None as a tombstone, everything else as JSON, NumPy values too). Each record gets the `headers`. With
    `create` a topic that does not exist is created, as the brokers' defaults have it.

        produce("127.0.0.1:9092", "numbers", ({"n": n} for n in range(10)), key_field="n", create=True)
        produce("127.0.0.1:9092", "numbers", [{"n": 1}], headers={"source": "import"})
    """
    chosen = options or ProduceOptions()
    shaping = chosen.shaping
    if key_field is not None or key is not None:
        shaping = replace(shaping, key_field=key_field or shaping.key_field, key=_encoded(key))
    if headers is not None:
        shaping = replace(shaping, headers=[(name, _encoded(value)) for name, value in headers.items()])
    chosen = replace(chosen, shaping=shaping)
    producing = _Producing(connect(where), topic, chosen)
    with Kafka(where) as admin:
        if create:
            require_readable(source)
            admin.ensure_topic(NewTopic(topic))
        producing.check(admin)
    return producing.run(source)


def _encoded(text: object) -> Any:
    return text.encode() if isinstance(text, str) else text


class _Producing:
    """One call of `produce`."""

    def __init__(self, connection: Connection, topic: str, options: ProduceOptions) -> None:
        self.connection = connection
        self.topic = topic
        self.options = options
        #: Set by the first Ctrl-C: no more is read. By the second: what is under way is given up too.
        self.stop = threading.Event()
        self.give_up = threading.Event()
        #: How many partitions each topic has.
        self._partitions: dict[str, int] = {}
        options.shaping.check()
        if options.pace.replay and not options.shaping.timestamp_field:
            raise UsageError("a replay needs the field that contains the time", hint="--timestamp-field FIELD")

    def check(self, admin: Kafka) -> None:
        """The topics and partitions that are named exist."""
        shaping = self.options.shaping
        partitions = self._partitions[self.topic] = len(admin.topic(self.topic).partitions)
        if shaping.partition is not None and not 0 <= shaping.partition < partitions:
            raise UsageError(
                f"topic {self.topic} has no partition {shaping.partition}",
                why=f"it has {partitions}: 0 to {partitions - 1}",
            )
        if isinstance(shaping.route, Route):
            for name, wanted in shaping.route.table.values():
                has = self._partitions[name] = len(admin.topic(name).partitions)
                if any(not 0 <= partition < has for partition in wanted):
                    raise UsageError(f"the route names a partition which topic {name} lacks", why=f"it has {has}")

    def partitions(self, topic: str) -> int:
        """How many the topic has; a route may name any."""
        if topic not in self._partitions:
            with Kafka(self.connection) as admin:
                self._partitions[topic] = len(admin.topic(topic).partitions)
        return self._partitions[topic]

    @property
    def partitioner_is_chosen(self) -> bool:
        """True if the user has a wish of their own for records without a key."""
        given = {**self.connection.properties, **self.options.settings}
        return "partitioner" in given or "sticky.partitioning.linger.ms" in given

    def run(self, source: Source) -> ProduceReport:
        count = self.options.producers
        began = time.monotonic()
        # One producer works in this thread, so that Ctrl-C also ends the wait for a slow pipe.
        report = _OneProducer(self, 1).run(source) if count == 1 else self._run_many(source, count)
        report.seconds = time.monotonic() - began
        return report

    def _run_many(self, source: Source, count: int) -> ProduceReport:
        """Each of the producers sends the whole input."""
        if source == "-" or not isinstance(source, (str, Path, Sequence)):
            raise UsageError("several producers cannot share one stream", hint="give them a file")
        ones = [_OneProducer(self, number) for number in range(1, count + 1)]
        with ThreadPoolExecutor(count) as pool:
            running = [pool.submit(one.run, source) for one in ones]
            while not all(future.done() for future in running):
                try:
                    time.sleep(_PROGRESS_EVERY_S)
                    self.progress(ones)
                except KeyboardInterrupt:
                    (self.give_up if self.stop.is_set() else self.stop).set()
            total = ProduceReport()
            for future in running:
                total.add(future.result())
        return total

    def progress(self, ones: Sequence[_OneProducer]) -> None:
        if self.options.on_progress:
            total = ProduceReport()
            for one in ones:
                total.add(one.report())
            self.options.on_progress(total)


class _OneProducer:
    """One producer: reads, shapes, paces, sends, and counts. Used by one thread."""

    def __init__(self, producing: _Producing, number: int) -> None:
        self.producing = producing
        self.options = producing.options
        shaping = self.options.shaping
        if self.options.key_per_producer:
            shaping = replace(shaping, key=str(number).encode())
        if shaping.seed is not None:
            shaping = replace(shaping, seed=shaping.seed + number - 1)
        self.shaper = Shaper(shaping, producing.topic)
        self.senders: dict[str, BulkSender] = {}
        self.dealers: dict[str, Dealer] = {}
        self.input: Input | None = None
        self.read = 0
        self.unshaped = 0
        self.error: HeadraceError | None = None
        self.interrupted = False
        self.began = time.monotonic()
        self.clock = Clock(self.options.pace, self.began)
        self._shown = 0.0

    def run(self, source: Source) -> ProduceReport:
        try:
            self._send_all(source)
            if self.options.pace.flush_at_end:
                self._flush()
        except KeyboardInterrupt:
            self.interrupted = True
            self._flush_unless_interrupted()
        except HeadraceError as error:
            self.error = error
            self._flush_unless_interrupted()
        finally:
            for sender in self.senders.values():
                sender.close()
        return self.report()

    def report(self) -> ProduceReport:
        tallies = [sender.tally for sender in list(self.senders.values())]
        return ProduceReport(
            # By the senders' count: an interrupt may fall between sending and counting here.
            read=sum(sender.accepted for sender in list(self.senders.values())),
            acknowledged=sum(t.acknowledged for t in tallies),
            failed=sum(t.failed for t in tallies),
            maybe_written=sum(t.maybe_written for t in tallies),
            bad=self.unshaped + (self.input.bad if self.input else 0),
            bytes=sum(t.accepted_bytes - t.failed_bytes for t in tallies),
            seconds=time.monotonic() - self.began,
            reasons=dict(sum((t.reasons for t in tallies), Counter[str]()).most_common()),
            shape=self.input.shape if self.input else None,
            interrupted=self.interrupted,
            position=self._position(),
            partitions={topic: dict(sorted(s.tally.partitions.items())) for topic, s in list(self.senders.items())},
            error=self.error,
        )

    def _position(self) -> int | None:
        accepted = sum(sender.accepted for sender in list(self.senders.values()))
        # Ctrl-C may fall between the topics that a batch was routed to: then what was sent is not a beginning.
        if self.options.producers > 1 or (self.interrupted and self.options.shaping.route):
            return None
        return self.options.input.skip + accepted + self.unshaped

    def _send_all(self, source: Source) -> None:
        at_once = OBJECTS_AT_ONCE if self.options.pace.free else 1
        self.input = Input(source, self.options.input, self.shaper.wanted, at_once)
        for batch in self.input:
            for outgoing in self.shaper.shape_fitting(batch, self._reject):
                self._send(outgoing)
            if self.producing.stop.is_set():
                raise KeyboardInterrupt

    def _reject(self, batch: InputBatch, error: Failed) -> None:
        """The one record of the batch is counted and set aside, or the error stops the reading."""
        wanted = self.options.input
        if wanted.on_bad == "stop":
            error.problem = f"record {wanted.skip + self.read + self.unshaped + 1}: {error.problem}"
            raise error
        self.unshaped += 1
        if wanted.on_bad == "set-aside" and wanted.set_aside:
            wanted.set_aside(BadPiece(batch.values[0], batch.first, error.problem))

    def _send(self, outgoing: Outgoing) -> None:
        self._spread(outgoing)
        at = 0
        while at < len(outgoing):
            part = outgoing.slice(at, at + self.options.pace.step(self.read))
            if part.timestamps_ms:
                self._wait(self.clock.before(part.timestamps_ms[0], time.monotonic()))
            self._sender(part.topic).send(
                part.values, part.keys, part.partition, timestamps_ms=part.timestamps_ms, headers=part.headers
            )
            if part.echoes and self.options.on_echo:
                for line in part.echoes:
                    self.options.on_echo(line)
            at += len(part)
            self.read += len(part)
            self._after()

    def _spread(self, outgoing: Outgoing) -> None:
        """Records without key and partition are dealt out to all partitions, in runs that still make good batches.

        librdkafka alone would put a whole file that is sent within 10 ms into one partition.
        """
        if outgoing.keys is not None or outgoing.partition != ANY_PARTITION or self.producing.partitioner_is_chosen:
            return
        if outgoing.topic not in self.dealers:
            self.dealers[outgoing.topic] = Dealer(self.producing.partitions(outgoing.topic))
        outgoing.partition = self.dealers[outgoing.topic].deal(len(outgoing), one_by_one=not self.options.pace.free)

    def _after(self) -> None:
        """Flush and wait as the pace says; tell the progress."""
        pace = self.options.pace
        if not pace.free:
            if pace.flush_every and self.read % pace.flush_every == 0:
                self._flush()
            self._wait(self.clock.after(self.read, time.monotonic()))
        now = time.monotonic()
        if self.options.producers == 1 and now - self._shown > _PROGRESS_EVERY_S:
            self._shown = now
            self.producing.progress([self])

    def _wait(self, seconds: float) -> None:
        """Time passes, and delivery reports are taken in while it does."""
        until = time.monotonic() + seconds
        # Reports are waited for in milliseconds; a shorter wait would only spin, and `send` takes them in anyway.
        for sender in self.senders.values() if seconds > _REPORTS_WORTH_S else ():
            sender.flush(max(0.0, until - time.monotonic()))
        left = until - time.monotonic()
        if left > 0 and self.producing.stop.wait(left):
            raise KeyboardInterrupt

    def _flush(self) -> None:
        """All that was accepted is acknowledged or failed; the progress goes on while that takes time."""
        for sender in self.senders.values():
            while sender.flush(_PROGRESS_EVERY_S):
                if self.producing.give_up.is_set():
                    raise KeyboardInterrupt
                if self.options.producers == 1:
                    self.producing.progress([self])

    def _flush_unless_interrupted(self) -> None:
        """The same, but a further Ctrl-C gives up what is still under way: closing its sender counts it as failed."""
        try:
            self._flush()
        except KeyboardInterrupt:
            self.interrupted = True

    def _sender(self, topic: str) -> BulkSender:
        if topic not in self.senders:
            given = {**self.producing.connection.properties, **self.options.settings}
            ours = {} if "delivery.timeout.ms" in given else {"message.timeout.ms": _TIMEOUT_MS}
            if str(given.get("enable.idempotence", True)).lower() == "true":
                ours["socket.timeout.ms"] = _ANSWER_WITHIN_MS
            settings = self.producing.connection.settings(ours, given)
            report = self.options.on_failed
            self.senders[topic] = BulkSender(
                {**PRODUCER_DEFAULTS, **settings},
                topic,
                on_failed=(lambda record: report(topic, record)) if report else None,
                explain=Undeliverable(self.producing.connection, topic, given).reason,
                rich=self.shaper.wanted.rich,
                stop=self.producing.stop,
            )
        return self.senders[topic]
