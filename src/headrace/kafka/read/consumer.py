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
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, UsageError
from headrace.kafka.bounds import Place, Start, Until, look_up
from headrace.kafka.client import Connection, HasBootstrap, connect, unreachable
from headrace.kafka.kafka import Kafka
from headrace.kafka.read.member import Member
from headrace.kafka.read.options import Batch, ConsumeOptions, ConsumeReport, OwnershipEvent, Span
from headrace.kafka.read.records import Record

if TYPE_CHECKING:
    import pyarrow

_POLL_S = 0.1
# Partitions of a group that no member here owns belong to members elsewhere, if that lasts longer than a rebalance.
_REBALANCE_GRACE_S = 3.0
_JOIN_TIMEOUT_S = 60.0
# Three of the new protocol's: one to tell the others what to give away, one to tell us, and one to spare.
_HEARTBEATS_S = 15.0
# As long as a producer waits for a broker: records that are known to be there and do not come are no silence.
_SILENCE_TIMEOUT_S = 120.0
# Members wait for each other before the first record, else the first one there reads a short topic alone.
_COMPANY_TIMEOUT_S = 5.0

__all__ = [
    "Batch",
    "ConsumeOptions",
    "ConsumeReport",
    "OwnershipEvent",
    "Reading",
    "Span",
    "consume",
    "consume_arrow",
    "reading",
]


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
    from headrace.kafka.read.outputs import arrow_batch

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
        #: Wanted records that members have taken, handed on or not: with `count:N` no more than N.
        self.promised = 0
        self.start = options.start or Start("committed" if options.group else "beginning")
        with Kafka(connection) as admin:
            self.places = self._wanted_places(admin)
            self.starts = self._offsets_at_start(admin)
            self.ends = self._offsets_at_end(admin)
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

    def batches(self) -> Generator[Batch, None, None]:
        """Batch after batch until the end that was asked for. Closing the iterator ends the reading cleanly."""
        try:
            yield from self._one_member() if self.options.members == 1 else self._many_members()
        finally:
            self.report.seconds = time.monotonic() - self.began
            self.report.seconds_to_last = self.last_record - self.began

    def stop(self) -> None:
        """The reading ends, as if its end had been reached, when the batch in hand was handed on."""
        self.stopping.set()

    # -- what is to be read -------------------------------------------------------------------------------------

    def _wanted_places(self, admin: Kafka) -> list[Place]:
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

    def _offsets_at_start(self, admin: Kafka) -> dict[Place, int]:
        """Where each partition begins, unless the group knows better."""
        kind = self.start.kind
        new_group = Start("end" if self.new_group_at_end else "beginning")
        at = new_group if kind == "committed" else self.start
        found = look_up(admin, self.places, at)
        if kind == "offset":
            self._clamp(found, admin)
        return found

    @property
    def new_group_at_end(self) -> bool:
        """True if a group without an offset is to begin at the end, by the native property."""
        given = {**self.connection.properties, **self.options.settings}
        return given.get("auto.offset.reset") in {"latest", "largest", "end"}

    def _clamp(self, offsets: dict[Place, int], admin: Kafka) -> None:
        first = look_up(admin, self.places, Start("beginning"))
        last = look_up(admin, self.places, Start("end"))
        for place, wanted in offsets.items():
            offsets[place] = min(max(wanted, first[place]), last[place])
            if offsets[place] != wanted:
                self.report.notes.append(
                    f"{place[0]}/{place[1]} has offsets {first[place]} to {last[place]}: reading from {offsets[place]}"
                )

    def _offsets_at_end(self, admin: Kafka) -> dict[Place, int] | None:
        until = self.options.until
        if until.kind == "end":
            return look_up(admin, self.places, Start("end"), self.options.isolation)
        if until.kind == "time" and until.value <= time.time() * 1000:
            return look_up(admin, self.places, Start("time", int(until.value)), self.options.isolation)
        return None

    # -- running ------------------------------------------------------------------------------------------------

    def _one_member(self) -> Iterator[Batch]:
        member = Member(self, 1)
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
        ready: queue.Queue[tuple[Member, Batch, threading.Event] | HeadraceError] = queue.Queue()
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

    def _work(self, number: int, ready: queue.Queue[object]) -> None:
        try:
            member = Member(self, number)
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
        waited_s = now - self.unassigned_since
        # That it has nothing for us, the new protocol (KIP-848) does not say: the group is asked.
        may_be_idle = self.options.protocol != "classic" and waited_s > _HEARTBEATS_S
        if may_be_idle and self._have_gone_to_others(self.places, now):
            self.assigned[1] = set()
        if self.assigned or waited_s <= _JOIN_TIMEOUT_S:
            return
        if self.options.protocol == "classic":
            raise unreachable(self.connection.bootstrap, f"no partitions were assigned in {_JOIN_TIMEOUT_S:.0f} s")
        look_up(self.connection, self.places[:1], Start("end"))
        self.assigned[1] = set()  # the brokers answer, so there is nothing for us

    def _nothing_is_left(self, now: float) -> bool:
        """True if the brokers say so too: one that hangs or is gone is as silent as a topic without writers."""
        ours = sorted(self._ours())
        try:
            ends = look_up(self.connection, ours, Start("end"), self.options.isolation) if ours else {}
        except HeadraceError:
            if now - self.last_record > _SILENCE_TIMEOUT_S:
                raise
            return False
        left = self._unread(ends)
        self._check_silence(left, ends, now)
        return not left

    def _unread(self, ends: Mapping[Place, int]) -> list[Place]:
        return [place for place in ends if self.positions.get(place, self.starts[place]) < ends[place]]

    def _check_silence(self, left: Sequence[Place], ends: Mapping[Place, int], now: float) -> None:
        if left and now - self.last_record > _SILENCE_TIMEOUT_S + self.options.until.value * (self.ends is None):
            topic, partition = place = left[0]
            stands = self.positions.get(place, self.starts[place])
            raise unreachable(
                self.connection.bootstrap,
                f"{topic}/{partition} ends at {ends[place]}, and nothing came after {stands}"
                f" for {_SILENCE_TIMEOUT_S:.0f} s",
            )

    def _ours(self) -> set[Place]:
        with self.lock:
            return set().union(*self.assigned.values())

    def everybody_is_here(self) -> bool:
        """True once all members have joined. The new protocol (KIP-848) tells only those who own something."""
        options = self.options
        expected = options.members if options.protocol == "classic" else min(options.members, len(self.places))
        return len(self.assigned) >= expected or time.monotonic() - self.began > _COMPANY_TIMEOUT_S

    def _all_read(self, ends: Mapping[Place, int], now: float) -> bool:
        open_places = self._unread(ends)
        if not open_places:
            return True
        ours = self._ours().intersection(open_places)
        # Between two assignments of a classic group it is not known yet what is ours.
        unsettled = self.options.protocol == "classic" and len(self.assigned) < self.options.members
        if ours or unsettled:
            self._foreign_since = None
            self._check_silence(sorted(ours), ends, now)
            return False
        return self._have_gone_to_others(open_places, now)

    def _have_gone_to_others(self, places: Sequence[Place], now: float) -> bool:
        """True if they are none of ours for a while, and the group says whose they are; it is asked now and then."""
        if self._foreign_since is None:
            self._foreign_since = now
        if now - self._foreign_since <= _REBALANCE_GRACE_S:
            return False
        self._foreign_since = now
        return self._others_own(places, now)

    def _others_own(self, places: Sequence[Place], now: float) -> bool:
        """True if the group says so: a partition without an owner is about to be assigned, perhaps to us."""
        try:
            with Kafka(self.connection) as kafka:
                members = kafka.groups.describe(self.options.group or "").members or ()
        except HeadraceError:
            if now - self.last_record > _SILENCE_TIMEOUT_S:
                raise
            return False
        others = [member for member in members if member.member_id not in self.member_ids]
        return set(places) <= {place for member in others for place in member.partitions}
