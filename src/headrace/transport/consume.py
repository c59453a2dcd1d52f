"""Records out of topics: by a group or without one, from here to there, by one member or several at once.

    for record in consume(cluster, "breadcrumbs", group="mine"):
        print(record.key, record.value)

An offset is committed only after its record was handed on, that is when the caller asks for the next one: a consumer
that dies resumes without loss. What was read by whom is counted in the `ConsumeReport`.
"""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import CodecError, Failed, HeadraceError, UsageError
from headrace.transport.admin import Admin
from headrace.transport.client import Connection, HasBootstrap, connect, unreachable
from headrace.transport.offsets import Isolation, Place, Start, Until, look_up
from headrace.transport.records import Filter, Record, one_line

if TYPE_CHECKING:
    import pyarrow

    from headrace.transport.codec import Codec

# librdkafka pauses a full second whenever its queue is full, and fetches 1 MB at a time: fine for a trickle,
# a third of the speed on a backlog.
_TUNED: Mapping[str, Any] = {
    "fetch.queue.backoff.ms": 5,
    "max.partition.fetch.bytes": 8_388_608,
    "fetch.max.bytes": 67_108_864,
    "queued.min.messages": 200_000,
    "queued.max.messages.kbytes": 131_072,
}
_BATCH = 10_000
_SAMPLES = 5
_POLL_S = 0.1
_COMMIT_EVERY_S = 1.0
# Partitions of a group that nobody here owns belong to members elsewhere, if that lasts longer than a rebalance.
_REBALANCE_GRACE_S = 3.0
_JOIN_PATIENCE_S = 60.0
# As long as a producer waits for a broker: records that are known to be there and do not come are no silence.
_SILENCE_PATIENCE_S = 120.0
# Members wait for each other before the first record, else the first one there reads a short topic alone.
_COMPANY_PATIENCE_S = 5.0


@dataclass(frozen=True)
class ConsumeOptions:
    """How to read. Without a group nothing is committed and every partition is read."""

    group: str | None = None
    start: Start | None = None
    until: Until = field(default_factory=lambda: Until("end"))
    partitions: Sequence[int] = ()
    filter: Filter = field(default_factory=Filter)
    isolation: Isolation = "committed"
    protocol: Literal["classic", "consumer"] = "classic"
    members: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    #: Read values, and keys, as their schemas say.
    value_codec: Codec | None = None
    key_codec: Codec | None = None
    #: Called when the last record was handed on; with it nothing is committed before it has returned.
    on_finish: Callable[[], None] | None = None

    def check(self) -> None:
        """The wishes do not contradict each other."""
        if self.start and self.start.kind == "committed" and not self.group:
            raise UsageError("only a group has committed offsets", hint="--group NAME, or --from beginning")
        if self.members < 1:
            raise UsageError(f"{self.members} members cannot read")
        if self.members > 1 and not self.group:
            raise UsageError("several members need a group to share the partitions", hint="--group NAME")
        if self.members > 1 and self.on_finish:
            raise UsageError("a file that is whole only at its end is written by one member", hint="--members 1")
        if self.members > 1 and self.partitions:
            raise UsageError("chosen partitions are read by one member", hint="--members 1, or no --partition")


@dataclass
class Span:
    """What one member read of one partition."""

    records: int = 0
    first_offset: int = -1
    last_offset: int = -1


@dataclass(frozen=True)
class OwnershipEvent:
    """A member was given partitions, or gave them up, at a time."""

    at: float
    member: int
    what: Literal["assigned", "revoked", "lost"]
    places: tuple[Place, ...]


@dataclass
class ConsumeReport:
    """What was read, by whom, and who owned what when."""

    read: int = 0
    matched: int = 0
    bytes: int = 0
    seconds: float = 0.0
    spans: dict[tuple[int, str, int], Span] = field(default_factory=dict)
    ownership: list[OwnershipEvent] = field(default_factory=list)
    #: Keys and values that their codec could not read, and the first few of them in words.
    undecodable: int = 0
    undecodable_samples: list[str] = field(default_factory=list)
    #: Facts that somebody should know, like records that expired before this group read them.
    notes: list[str] = field(default_factory=list)


@dataclass
class Batch:
    """Messages that one member read, in order within each partition."""

    member: int
    messages: list[Any]
    #: What the codecs of the reading made of values and keys, in the same order.
    decoded: list[Any] | None = None
    decoded_keys: list[Any] | None = None

    @property
    def with_codec(self) -> bool:
        return self.decoded is not None or self.decoded_keys is not None

    def parts(self) -> Iterator[tuple[Any, Any, Any]]:
        """Each message with its decoded value and key, None where there is no codec."""
        nothing: list[Any] = [None] * len(self.messages)
        return zip(self.messages, self.decoded or nothing, self.decoded_keys or nothing, strict=True)

    def records(self) -> Iterator[Record]:
        return (Record.of(message, self.member, value, key) for message, value, key in self.parts())


def consume(
    where: HasBootstrap | str,
    *topics: str,
    group: str | None = None,
    start: str | None = None,
    until: str | None = None,
    options: ConsumeOptions | None = None,
) -> Iterator[Record]:
    """The records of the topics, one by one. By default: all that is there now, from the beginning.

    With a group: from where the group stands (a new group begins at the beginning).
    `start` and `until` are written as on the command line: `beginning`, `-15min`, `idle:10s`, `count:100`, `never`.
    """
    for batch in reading(where, topics, group, start, until, options).batches():
        yield from batch.records()


def consume_arrow(
    where: HasBootstrap | str,
    *topics: str,
    group: str | None = None,
    start: str | None = None,
    until: str | None = None,
    options: ConsumeOptions | None = None,
) -> Iterator[pyarrow.RecordBatch]:
    """Like `consume`, as Arrow batches with a column for each of topic, partition, offset, timestamp, key, value."""
    from headrace.transport.outputs import arrow_batch

    for batch in reading(where, topics, group, start, until, options).batches():
        yield arrow_batch(batch)


def reading(
    where: HasBootstrap | str,
    topics: Sequence[str],
    group: str | None = None,
    start: str | None = None,
    until: str | None = None,
    options: ConsumeOptions | None = None,
) -> Reading:
    """The reading that `consume` does, with its report, for callers that want to look at both."""
    chosen = options or ConsumeOptions()
    if group:
        chosen = replace(chosen, group=group)
    if start:
        chosen = replace(chosen, start=Start.parse(start))
    if until:
        chosen = replace(chosen, until=Until.parse(until))
    return Reading(connect(where), topics, chosen)


class Reading:
    """One reading of topics: what all its members share."""

    def __init__(self, connection: Connection, topics: Sequence[str], options: ConsumeOptions) -> None:
        options.check()
        if not topics:
            raise UsageError("no topic was named", hint="headrace topic list shows them")
        self.connection = connection
        self.options = options
        self.topics = list(dict.fromkeys(topics))
        self.report = ConsumeReport()
        self.places = self._wanted_places()
        self.start = options.start or Start("committed" if options.group else "beginning")
        self.starts = self._offsets_at_start()
        self.ends = self._offsets_at_end()
        self.positions: dict[Place, int] = {}
        self.assigned: dict[int, set[Place]] = {}
        self.member_ids: set[str] = set()
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        self.began = time.monotonic()
        self.last_record = self.began
        self.unassigned_since = self.began
        self._foreign_since: float | None = None
        self._over = False

    def batches(self) -> Iterator[Batch]:
        """Batch after batch until the end that was asked for. Closing the iterator ends the reading cleanly."""
        try:
            yield from self._one_member() if self.options.members == 1 else self._many_members()
        finally:
            self.report.seconds = time.monotonic() - self.began

    # -- what is to be read -------------------------------------------------------------------------------------

    def _wanted_places(self) -> list[Place]:
        admin = Admin(self.connection)
        places: list[Place] = []
        for topic in self.topics:
            has = [p.partition for p in admin.topic(topic).partitions]
            missing = [p for p in self.options.partitions if p not in has]
            if missing:
                raise UsageError(
                    f"topic {topic} has no partition {missing[0]}", why=f"it has {len(has)}: 0 to {len(has) - 1}"
                )
            places += [(topic, p) for p in (self.options.partitions or has)]
        return places

    def _offsets_at_start(self) -> dict[Place, int]:
        """Where each partition begins, unless the group knows better."""
        kind = self.start.kind
        new_group = Start("end" if self.new_group_at_end else "beginning")
        at = new_group if kind == "committed" else self.start
        found = look_up(self.connection, self.places, at)
        if kind == "offset":
            self._clamp(found)
        return found

    @property
    def new_group_at_end(self) -> bool:
        """True if a group without an offset is to begin at the end, by the native property."""
        given = {**self.connection.properties, **self.options.settings}
        return given.get("auto.offset.reset") in {"latest", "largest", "end"}

    def _clamp(self, offsets: dict[Place, int]) -> None:
        first = look_up(self.connection, self.places, Start("beginning"))
        last = look_up(self.connection, self.places, Start("end"))
        for place, wanted in offsets.items():
            offsets[place] = min(max(wanted, first[place]), last[place])
            if offsets[place] != wanted:
                self.report.notes.append(
                    f"{place[0]}/{place[1]} has offsets {first[place]} to {last[place]}: reading from {offsets[place]}"
                )

    def _offsets_at_end(self) -> dict[Place, int] | None:
        until = self.options.until
        if until.kind == "end":
            return look_up(self.connection, self.places, Start("end"), self.options.isolation)
        if until.kind == "time" and until.value <= time.time() * 1000:
            return look_up(self.connection, self.places, Start("time", int(until.value)), self.options.isolation)
        return None

    # -- running ------------------------------------------------------------------------------------------------

    def _one_member(self) -> Iterator[Batch]:
        member = _Member(self, 1)
        try:
            while not self.finished():
                batch = member.poll()
                if batch:
                    yield batch
                    member.handed_on()
            member.settle()
        except KeyboardInterrupt:
            member.settle()
            raise
        finally:
            member.close()

    def _many_members(self) -> Iterator[Batch]:
        """Each member reads in a thread of its own and waits until its batch was handed on."""
        ready: queue.Queue[tuple[_Member, Batch, threading.Event] | HeadraceError] = queue.Queue()
        threads = [
            threading.Thread(target=self._work, args=(number, ready), daemon=True)
            for number in range(1, self.options.members + 1)
        ]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads) or not ready.empty():
                try:
                    item = ready.get(timeout=_POLL_S)
                except queue.Empty:
                    continue
                if isinstance(item, HeadraceError):
                    raise item
                member, batch, taken = item
                yield batch
                member.handed_on()
                taken.set()
        finally:
            self.stopping.set()
            for thread in threads:
                thread.join()

    def _work(self, number: int, ready: queue.Queue[Any]) -> None:
        try:
            member = _Member(self, number)
        except HeadraceError as error:
            ready.put(error)
            return
        try:
            while not self.finished():
                batch = member.poll()
                if batch:
                    taken = threading.Event()
                    ready.put((member, batch, taken))
                    while not taken.wait(_POLL_S) and not self.stopping.is_set():
                        continue
        except HeadraceError as error:
            ready.put(error)
        finally:
            member.close()

    def finished(self) -> bool:
        """True when the end that was asked for is reached, by all members together; from then on it stays so."""
        self._over = self._over or self.stopping.is_set() or self._is_over()
        return self._over

    def _is_over(self) -> bool:
        until, now = self.options.until, time.monotonic()
        if until.kind == "count":
            return self.report.matched >= until.value
        if not self.assigned:
            self._wait_for_partitions(now)
            return False
        if until.kind == "idle":
            return now - self.last_record >= until.value and self._nothing_is_left(now)
        if self.ends is not None:
            return self._all_read(self.ends, now)
        return until.kind == "time" and time.time() * 1000 >= until.value

    def _wait_for_partitions(self, now: float) -> None:
        if now - self.unassigned_since <= _JOIN_PATIENCE_S:
            return
        if self.options.protocol == "classic":
            raise unreachable(self.connection.bootstrap, f"no partitions were assigned in {_JOIN_PATIENCE_S:.0f} s")
        look_up(self.connection, self.places[:1], Start("end"))
        # The brokers answer, so the group has nothing for us; the new protocol (KIP-848) does not say so.
        self.assigned[1] = set()

    def _nothing_is_left(self, now: float) -> bool:
        """True if the brokers say so too: one that hangs or is gone is as silent as a topic without writers."""
        ours = sorted(self._ours())
        try:
            ends = look_up(self.connection, ours, Start("end"), self.options.isolation) if ours else {}
        except HeadraceError:
            if now - self.last_record > _SILENCE_PATIENCE_S:
                raise
            return False
        left = self._unread(ends)
        self._check_patience(left, ends, now)
        return not left

    def _unread(self, ends: Mapping[Place, int]) -> list[Place]:
        return [place for place in ends if self.positions.get(place, self.starts[place]) < ends[place]]

    def _check_patience(self, left: Sequence[Place], ends: Mapping[Place, int], now: float) -> None:
        if left and now - self.last_record > _SILENCE_PATIENCE_S + self.options.until.value * (self.ends is None):
            topic, partition = place = left[0]
            stands = self.positions.get(place, self.starts[place])
            raise unreachable(
                self.connection.bootstrap,
                f"{topic}/{partition} ends at {ends[place]}, and nothing came after {stands}"
                f" for {_SILENCE_PATIENCE_S:.0f} s",
            )

    def _ours(self) -> set[Place]:
        with self.lock:
            return set().union(*self.assigned.values())

    def everybody_is_here(self) -> bool:
        """True once all members have joined. The new protocol (KIP-848) tells only those who own something."""
        options = self.options
        expected = options.members if options.protocol == "classic" else min(options.members, len(self.places))
        return len(self.assigned) >= expected or time.monotonic() - self.began > _COMPANY_PATIENCE_S

    def _all_read(self, ends: Mapping[Place, int], now: float) -> bool:
        open_places = self._unread(ends)
        if not open_places:
            return True
        ours = self._ours().intersection(open_places)
        # Between two assignments of a classic group nobody knows yet what is ours.
        unsettled = self.options.protocol == "classic" and len(self.assigned) < self.options.members
        if ours or unsettled:
            self._foreign_since = None
            self._check_patience(sorted(ours), ends, now)
            return False
        if self._foreign_since is None:
            self._foreign_since = now
        if now - self._foreign_since <= _REBALANCE_GRACE_S:
            return False
        self._foreign_since = now
        return self._others_own(open_places, now)

    def _others_own(self, places: Sequence[Place], now: float) -> bool:
        """True if the group says so: a partition without an owner is on its way to somebody, perhaps to us."""
        from headrace.transport.groups import Groups

        try:
            with Groups(self.connection) as groups:
                members = groups.describe(self.options.group or "").members or ()
        except HeadraceError:
            if now - self.last_record > _SILENCE_PATIENCE_S:
                raise
            return False
        others = [member for member in members if member.member_id not in self.member_ids]
        return set(places) <= {place for member in others for place in member.assignment}


class _Member:
    """One consumer. All its methods but `handed_on` are called by one thread."""

    def __init__(self, shared: Reading, number: int) -> None:
        self.shared = shared
        self.number = number
        self.options = shared.options
        self._unhanded: dict[Place, int] = {}
        self._handed: dict[Place, int] = {}
        self._committed_at = time.monotonic()
        self._error: HeadraceError | None = None
        self._held_back = False
        #: False while what was handed on is not yet safe, so that nothing may be committed.
        self.settled = self.options.on_finish is None
        self.consumer = shared.connection.consumer(self._settings())
        if self.options.group and not self.options.partitions:
            self.consumer.subscribe(
                shared.topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
        else:
            self._assign_all()

    def _settings(self) -> dict[str, Any]:
        options, given = self.options, self.shared.connection.properties
        settings = {
            **_TUNED,
            # Without a group nothing is ever committed; librdkafka wants a name all the same.
            "group.id": options.group or f"headrace-{uuid.uuid4().hex[:12]}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": f"read_{options.isolation}",
            "client.id": f"headrace-{self.number}",
        }
        if options.group and options.protocol == "consumer":
            settings["group.protocol"] = "consumer"
        return {**settings, **given, **options.settings, "error_cb": self._on_error}

    def _assign_all(self) -> None:
        """Without a group, or with chosen partitions: take them, from where they begin."""
        from confluent_kafka import TopicPartition

        places = [TopicPartition(topic, partition) for topic, partition in self.shared.places]
        committed: dict[Place, int] = {}
        if self.shared.start.kind == "committed":
            committed = {(p.topic, p.partition): p.offset for p in self.consumer.committed(places, timeout=15)}
        for place in places:
            place.offset = self._first_offset((place.topic, place.partition), committed)
        self.consumer.assign(places)
        self._owns("assigned", tuple(self.shared.places))

    def _first_offset(self, place: Place, committed: Mapping[Place, int]) -> int:
        """Where this reading begins in a partition; what expired before the group came is said aloud."""
        begin = self.shared.starts[place]
        stands = committed.get(place, -1)
        if stands < 0:
            # Where it begins is where the group stands now, also if it reads nothing: `--from end` skips.
            with self.shared.lock:
                self._handed.setdefault(place, begin)
            return begin
        if self.shared.new_group_at_end:
            begin = min(begin, stands)
        if stands < begin:
            self.shared.report.notes.append(
                f"{place[0]}/{place[1]}: {begin - stands} records expired before group {self.options.group} read them"
            )
        offset = max(stands, begin)
        with self.shared.lock:
            self.shared.positions.setdefault(place, offset)
        return offset

    # -- reading ------------------------------------------------------------------------------------------------

    def poll(self) -> Batch | None:
        """The next records that are wanted, or None; commits what was handed on now and then."""
        if self._error:
            raise self._error
        if self._held_back and self.shared.everybody_is_here():
            self.consumer.resume(self.consumer.assignment())
            self._held_back = False
        messages = self.consumer.consume(self._batch_size(), _POLL_S)
        kept = self._take(messages) if messages else []
        if time.monotonic() - self._committed_at > _COMMIT_EVERY_S:
            self._commit(wait=False)
        if not kept:
            self.handed_on()
            return None
        return self._decoded(kept)

    def _decoded(self, messages: list[Any]) -> Batch:
        options = self.options
        batch = Batch(self.number, messages)
        if options.value_codec or options.key_codec:
            from headrace.transport.codec import decode_messages

            batch.decoded = decode_messages(options.value_codec, messages, "value")
            batch.decoded_keys = decode_messages(options.key_codec, messages, "key")
            self._count_undecodable(batch)
        return batch

    def _count_undecodable(self, batch: Batch) -> None:
        failed = [(m, e) for m, *found in batch.parts() for e in found if isinstance(e, CodecError)]
        report = self.shared.report
        with self.shared.lock:
            report.undecodable += len(failed)
            for message, error in failed[: max(0, _SAMPLES - len(report.undecodable_samples))]:
                place = f"{message.topic()}/{message.partition()} at {message.offset()}"
                report.undecodable_samples.append(f"{place}: {one_line(error)}")

    def _batch_size(self) -> int:
        until = self.options.until
        if until.kind != "count" or not self.options.filter.everything:
            return _BATCH
        return max(1, min(_BATCH, int(until.value) - self.shared.report.matched))

    def _take(self, messages: list[Any]) -> list[Any]:
        """Errors handled, ends respected, counts made; the messages that are wanted."""
        shared, ends, kept = self.shared, self.shared.ends, []
        wanted = None if self.options.filter.everything else self.options.filter.matches
        spans: dict[Place, Span] = {}
        size = 0
        for message in messages:
            if message.error() is not None:
                self._on_message_error(message)
                continue
            place, offset = (message.topic(), message.partition()), message.offset()
            if ends is not None and offset >= ends[place]:
                self._unhanded[place] = max(self._unhanded.get(place, 0), ends[place])
                continue
            span = spans.get(place)
            if span is None:
                span = spans[place] = Span(first_offset=offset)
            span.records += 1
            span.last_offset = offset
            if wanted is None or wanted(message):
                kept.append(message)
                size += len(message)
        self._unhanded.update({place: span.last_offset + 1 for place, span in spans.items()})
        with shared.lock:
            kept = self._cut(kept)
            self._count(spans, len(kept), size)
        return kept

    def _cut(self, kept: list[Any]) -> list[Any]:
        """With `count:N` and several members or a filter, no more than N are handed on in all."""
        until = self.options.until
        if until.kind != "count":
            return kept
        room = int(until.value) - self.shared.report.matched
        if len(kept) <= room:
            return kept
        # What is cut off was not handed on, so it must not be committed either.
        for message in reversed(kept[max(0, room) :]):
            self._unhanded[message.topic(), message.partition()] = message.offset()
        return kept[: max(0, room)]

    def _count(self, spans: Mapping[Place, Span], matched: int, size: int) -> None:
        report = self.shared.report
        for (topic, partition), span in spans.items():
            total = report.spans.setdefault((self.number, topic, partition), Span(first_offset=span.first_offset))
            total.records += span.records
            total.last_offset = span.last_offset
            report.read += span.records
        report.matched += matched
        report.bytes += size
        if spans:
            self.shared.last_record = time.monotonic()

    def _on_message_error(self, message: Any) -> None:
        from confluent_kafka import KafkaError

        error = message.error()
        if error.code() == KafkaError._PARTITION_EOF:
            # Also past control records and compacted gaps, where no record carries the last offset.
            self._unhanded[message.topic(), message.partition()] = message.offset()
        elif not error.retriable() and error.code() not in {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}:
            raise Failed("Kafka refused to go on reading", why=f"{error.str()} ({error.name()})")

    def _on_error(self, error: Any) -> None:
        if error.fatal():
            self._error = Failed("the consumer cannot go on", why=f"{error.str()} ({error.name()})")

    # -- offsets ------------------------------------------------------------------------------------------------

    def handed_on(self) -> None:
        """What `poll` returned last is in the caller's hands: it may be committed."""
        with self.shared.lock:
            if self._unhanded:
                # The silence begins when we listen again, not while the caller was busy with the last batch.
                self.shared.last_record = time.monotonic()
            self._handed.update(self._unhanded)
            for place, offset in self._unhanded.items():
                self.shared.positions[place] = max(offset, self.shared.positions.get(place, 0))
            self._unhanded.clear()

    def _commit(self, *, wait: bool) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        self._committed_at = time.monotonic()
        with self.shared.lock:
            offsets = [TopicPartition(*place, offset) for place, offset in self._handed.items()]
        if not offsets or not self.options.group or not self.settled:
            return
        try:
            self.consumer.commit(offsets=offsets, asynchronous=not wait)
        except KafkaException as error:
            # A rebalance may have taken the partitions already: their new owner reads those records again.
            self.shared.report.notes.append(f"member {self.number}: offsets not committed: {error.args[0].str()}")
        if wait:
            self._handed.clear()

    def settle(self) -> None:
        """What was handed on is safe where the caller wanted it, so it may be committed."""
        if self.options.on_finish:
            self.options.on_finish()
            self.settled = True

    def close(self) -> None:
        """What was handed on is committed, and the group knows that this member left."""
        try:
            self._commit(wait=True)
        finally:
            self.consumer.close()

    # -- the group's calls --------------------------------------------------------------------------------------

    def _owns(self, what: Literal["assigned", "revoked", "lost"], places: tuple[Place, ...]) -> None:
        shared = self.shared
        with shared.lock:
            owned = shared.assigned.setdefault(self.number, set())
            owned.update(places) if what == "assigned" else owned.difference_update(places)
            if not owned and (what == "lost" or (what == "revoked" and self.options.protocol == "classic")):
                del shared.assigned[self.number]
                shared.unassigned_since = time.monotonic()
            shared.report.ownership.append(OwnershipEvent(time.time(), self.number, what, places))
            shared.last_record = max(shared.last_record, time.monotonic() if places else 0)

    def _on_assign(self, consumer: Any, partitions: list[Any]) -> None:
        places = tuple((p.topic, p.partition) for p in partitions)
        committed: dict[Place, int] = {}
        if partitions:
            committed = {(p.topic, p.partition): p.offset for p in consumer.committed(partitions, timeout=15)}
        for partition in partitions:
            place = (partition.topic, partition.partition)
            # The wished-for start counts once; a partition that comes back goes on where it was.
            fresh = self.shared.start.kind != "committed" and place not in self.shared.positions
            partition.offset = self._first_offset(place, {} if fresh else committed)
        incremental = self.options.protocol == "consumer" or "cooperative" in str(
            self.options.settings.get("partition.assignment.strategy", "")
        )
        (consumer.incremental_assign if incremental else consumer.assign)(partitions)
        self.shared.member_ids.add(consumer.memberid())
        self._owns("assigned", places)
        if not self.shared.everybody_is_here():
            consumer.pause(partitions)
            self._held_back = True

    def _on_revoke(self, _: Any, partitions: list[Any]) -> None:
        self._commit(wait=True)
        self._owns("revoked", tuple((p.topic, p.partition) for p in partitions))

    def _on_lost(self, _: Any, partitions: list[Any]) -> None:
        """Somebody else owns them by now: nothing of ours may be committed."""
        with self.shared.lock:
            self._handed.clear()
        self._owns("lost", tuple((p.topic, p.partition) for p in partitions))
