"""One member of a reading: a consumer that polls, counts, and commits what was handed on.

Nothing is committed before the caller has it; what a rebalance takes away is committed first, what is lost is not.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from headrace.errors import CodecError, Failed, HeadraceError
from headrace.kafka.bounds import Place
from headrace.kafka.kafka import Kafka
from headrace.kafka.read.damage import find, is_damage
from headrace.kafka.read.options import Batch, DamagedBatch, OwnershipEvent, Span
from headrace.kafka.read.records import decode_messages, one_line

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    from headrace.kafka.client import Message
    from headrace.kafka.read.consumer import Reading

# librdkafka pauses a full second whenever its queue is full, and fetches 1 MB at a time: fine for a trickle,
# a third of the speed on a backlog.
_TUNED: Mapping[str, object] = {
    "fetch.queue.backoff.ms": 5,
    "max.partition.fetch.bytes": 2_097_152,
    "fetch.max.bytes": 67_108_864,
    "queued.min.messages": 200_000,
    "queued.max.messages.kbytes": 65_536,
}
_BATCH = 10_000
_SAMPLES = 5
_POLL_S = 0.1
_COMMIT_EVERY_S = 1.0
_HEADER_WITHIN_S = 10.0
# The topic was there a moment ago: a broker that does not know it has not heard of it yet.
_HEARD_WITHIN_S = 30.0


class Member:
    """One consumer. All its methods but `handed_on` are called by one thread."""

    def __init__(self, shared: Reading, number: int) -> None:
        self.shared = shared
        self.number = number
        self.options = shared.options
        self._unhanded: dict[Place, int] = {}
        self._handed: dict[Place, int] = {}
        self._uncounted: tuple[dict[Place, Span], int, int] = ({}, 0, 0)
        self._committed_at = time.monotonic()
        self._error: HeadraceError | None = None
        self._held_back = False
        #: What a broker said that does not know a topic, and until when that is waited out.
        self._unheard: tuple[float, HeadraceError] | None = None
        #: Where the reading goes on behind damaged batches; librdkafka may lose its place and read from elsewhere.
        self._behind: dict[Place, int] = {}
        #: False while what was handed on is not yet safe, so that nothing may be committed.
        self.settled = self.options.on_finish is None
        self.consumer = shared.connection.consumer(self._settings())
        if self.options.group and not self.options.partitions:
            self.consumer.subscribe(
                shared.topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
        else:
            self._assign_all()

    def _settings(self) -> dict[str, object]:
        options, given = self.options, self.shared.connection.properties
        settings = {
            **_TUNED,
            # Without a group nothing is ever committed; librdkafka wants a name all the same.
            "group.id": options.group or f"headrace-{uuid.uuid4().hex[:12]}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            # Without it a damaged batch that is not compressed gives wrong records, or fewer, and no error.
            "check.crcs": True,
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
        if self._unheard and time.monotonic() > self._unheard[0]:
            self._error = self._unheard[1]
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

    def _decoded(self, messages: list[Message]) -> Batch:
        options = self.options
        batch = Batch(self.number, messages)
        if options.value_codec or options.key_codec:
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
        return max(1, min(_BATCH, int(until.value) - self.shared.promised))

    def _take(self, messages: list[Message]) -> list[Message]:
        """The messages that are wanted; all are counted once they are handed on."""
        kept = []
        wanted = None if self.options.filter.everything else self.options.filter.matches
        counting = self.options.until.kind == "count"
        spans: dict[Place, Span] = {}
        size = 0
        for place, message in self._readable(messages, spans):
            is_wanted = wanted is None or wanted(message)
            if counting and not self._has_room(is_wanted):
                break
            offset = message.offset()
            span = spans.get(place)
            if span is None:
                span = spans[place] = Span(first_offset=offset)
            span.records += 1
            span.last_offset = offset
            if is_wanted:
                kept.append(message)
                size += len(message)
        for place, span in spans.items():
            self._unhanded[place] = max(self._unhanded.get(place, 0), span.last_offset + 1)
        self._uncounted = (spans, len(kept), size)
        if spans:
            self.shared.last_record = time.monotonic()
        return kept

    def _readable(self, messages: list[Message], spans: Mapping[Place, Span]) -> Iterator[tuple[Place, Message]]:
        """The messages that are records, errors handled and ends respected. `spans` is what was taken so far."""
        ends = self.shared.ends
        #: Partitions that go on elsewhere: what else came of them belongs to before that.
        moved: set[Place] = set()
        for message in messages:
            place = (message.topic(), message.partition())
            if moved and place in moved:
                continue
            error = message.error()
            if error is not None:
                try:
                    moved.update([place] if self._on_message_error(message, error, spans.get(place)) else [])
                except HeadraceError as failure:
                    self._error = failure  # raised by the next poll: what came before it is handed on
                    return
            elif ends is not None and message.offset() >= ends[place]:
                self._unhanded[place] = max(self._unhanded.get(place, 0), ends[place])
            elif not self._behind or message.offset() >= self._behind.get(place, 0):
                yield place, message

    def _has_room(self, is_wanted: bool) -> bool:
        """With `count:N`, all members together take no more than N wanted records; what lies behind them is left."""
        with self.shared.lock:
            if self.shared.promised >= self.options.until.value:
                return False
            self.shared.promised += is_wanted
        return True

    def _count(self) -> None:
        spans, matched, size = self._uncounted
        self._uncounted = ({}, 0, 0)
        report = self.shared.report
        for (topic, partition), span in spans.items():
            total = report.spans.setdefault((self.number, topic, partition), Span(first_offset=span.first_offset))
            total.records += span.records
            total.last_offset = span.last_offset
            report.read += span.records
        report.matched += matched
        report.bytes += size

    def _on_message_error(self, message: Message, error: KafkaError, span: Span | None) -> bool:
        """True if the partition goes on elsewhere. `span` is what was taken of it just now."""
        from confluent_kafka import KafkaError

        place = (message.topic(), message.partition())
        if error.code() == KafkaError._PARTITION_EOF:
            # Also past control records and compacted gaps, where no record carries the last offset.
            if message.offset() >= self._behind.get(place, 0):
                self._unhanded[place] = message.offset()
        elif is_damage(error) and place[0]:
            return self._on_damage(message, error, place, self._stands(place, span))
        elif not error.retriable() and error.code() not in {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}:
            refused = Failed("Kafka refused to go on reading", why=f"{error.str()} ({error.name()})")
            if error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART or self.shared.assigned.get(self.number):
                raise refused
            self._unheard = self._unheard or (time.monotonic() + _HEARD_WITHIN_S, refused)
        return False

    def _stands(self, place: Place, span: Span | None) -> int:
        """The first offset that was not taken yet."""
        shared = self.shared
        known = (shared.positions.get(place, shared.starts[place]), self._unhanded.get(place, 0))
        return max(*known, span.last_offset + 1 if span else 0)

    def _on_damage(self, message: Message, error: KafkaError, place: Place, stands: int) -> bool:
        """The reading ends with the place of the damaged batch, or goes on behind it: then True."""
        from confluent_kafka import KafkaException, TopicPartition

        if message.offset() >= self._behind.get(place, 0):
            found = self._damaged(message, stands)
            if found is None or self.options.on_bad == "stop":
                raise self._stopped_by_damage(message, error, found)
            with self.shared.lock:
                self.shared.report.damaged.append(found)
            self._behind[place] = self._unhanded[place] = found.last_offset + 1
        try:
            self.consumer.seek(TopicPartition(*place, max(stands, self._behind[place])))
        except KafkaException:  # the partition was revoked, or is not being fetched yet: the error comes again
            return False
        return True

    def _stopped_by_damage(self, message: Message, error: KafkaError, found: DamagedBatch | None) -> Failed:
        where = f"offsets {found.first_offset} to {found.last_offset}" if found else f"offset {message.offset()}"
        can_skip = found is not None and self.options.on_bad == "stop"
        return Failed(
            f"a batch of {message.topic()}/{message.partition()} is damaged: {where}",
            why=error.str(),
            hint="--on-bad skip leaves such batches out and counts them; another replica may have them whole"
            if can_skip
            else None,
        )

    def _damaged(self, message: Message, stands: int) -> DamagedBatch | None:
        from headrace.kafka.survey import Survey

        with (
            Kafka(self.shared.connection) as admin,
            Survey(self.shared.connection, timeout_s=_HEADER_WITHIN_S) as survey,
        ):
            return find(survey, admin.topic(message.topic()), message, stands)

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._error = Failed("the consumer cannot go on", why=f"{error.str()} ({error.name()})")

    # -- offsets ------------------------------------------------------------------------------------------------

    def handed_on(self) -> None:
        """What `poll` returned last is in the caller's hands: it counts, and may be committed."""
        with self.shared.lock:
            self._count()
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
            event = OwnershipEvent(time.time(), self.number, what, places)
            shared.report.ownership.append(event)
            shared.last_record = max(shared.last_record, time.monotonic() if places else 0)
        if self.options.on_ownership:
            self.options.on_ownership(event)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
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
        self._unheard = None if partitions else self._unheard
        self._owns("assigned", places)
        if not self.shared.everybody_is_here():
            consumer.pause(partitions)
            self._held_back = True

    def _on_revoke(self, _: object, partitions: list[TopicPartition]) -> None:
        self._commit(wait=True)
        self._owns("revoked", tuple((p.topic, p.partition) for p in partitions))

    def _on_lost(self, _: object, partitions: list[TopicPartition]) -> None:
        """Somebody else owns them by now: nothing of ours may be committed."""
        with self.shared.lock:
            self._handed.clear()
        self._owns("lost", tuple((p.topic, p.partition) for p in partitions))
