"""Batches of records that are written once, however often the writing is tried.

A writer has a name, which is its transactional id. Its records and a mark that says which batch they were are sent in
one transaction. The mark lies in a compacted topic under the writer's name:

    headrace.batches    key: the transactional id    value: {"batch": 17, "records": 1000}

The order makes it right: whoever opens a writer first initialises the id, which ends whatever an earlier one left open
and takes from it the power to commit (Kafka fences it), and then reads the last mark. From then on that mark can change
only by this writer's own commits: a batch up to the mark was written, a later one was not. Where a commit was asked for
and nobody answered, the writer is closed; the next one to open finds out from the mark.

The mark is sent last, when the records have been acknowledged: an open transaction keeps readers from what follows it
in a partition, and others read their marks there too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

from headrace.errors import Failed, HeadraceError, UsageError
from headrace.transport.admin import Admin, NewTopic
from headrace.transport.client import Connection, unreachable
from headrace.transport.offsets import Start, look_up
from headrace.transport.partitioner import partition_of
from headrace.transport.topics import short

MARKS = "headrace.batches"
# Part of where a mark is found, so it never changes: with more partitions keys would move away from their marks.
_PARTITIONS = 12
_REPLICAS = 3
# What is not compacted yet is read whenever a writer is opened: small segments keep that short.
_CONFIGS = {"cleanup.policy": "compact", "segment.bytes": str(4 << 20), "min.cleanable.dirty.ratio": "0.2"}

# Underneath the user's own settings. The timeout bounds how long brokers may be away in the middle of a batch, and how
# long a writer that died and does not come back holds up the readers of its topics; brokers allow 15 minutes at most.
_TUNED: dict[str, Any] = {
    "transaction.timeout.ms": 300_000,
    "linger.ms": 20,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 131_072,
    # The broker knows what its topic takes; librdkafka's own limit is 1 MB, whatever the topic says.
    "message.max.bytes": 100_000_000,
}
_FIXED: dict[str, Any] = {"acks": "all", "enable.idempotence": True, "delivery.report.only.error": True}
_STEP_S = 1.0
_ROOM_S = 0.1
_ABORT_S = 10.0

Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True)
class Mark:
    """The last batch that a writer has committed, and how many records it had."""

    batch: int
    records: int


@dataclass(frozen=True)
class Records:
    """Records by the column. `came_from` names one of them for the eye, should Kafka refuse it."""

    topics: Sequence[str]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Headers | None] | None
    came_from: Callable[[int], str]

    def __len__(self) -> int:
        return len(self.values)

    def find(self, key: bytes | None, value: bytes | None) -> int | None:
        """The first record that has this key and value."""
        return next((at for at in range(len(self)) if self.values[at] == value and self.keys[at] == key), None)


class Fenced(Failed):
    """Another writer of the same name has been opened since, or the transaction lasted too long."""


def prepare(connection: Connection) -> None:
    """The topic of the marks is there."""
    admin = Admin(connection)
    replicas = min(_REPLICAS, len(admin.brokers()))
    with admin:
        try:
            admin.ensure_topic(NewTopic(MARKS, _PARTITIONS, replicas, _CONFIGS))
        except HeadraceError:  # somebody else may have made it this very moment
            if MARKS not in {topic.name for topic in admin.topics()}:
                raise
        found = len(admin.topic(MARKS).partitions)
    if found < _PARTITIONS:
        raise UsageError(
            f"topic {MARKS} has {found} partitions",
            why=f"writers look for their marks in {_PARTITIONS}",
            hint=f"headrace topic alter {MARKS} --partitions {_PARTITIONS}, before anything is written by pipelines",
        )


def settle(connection: Connection, names: Iterable[str]) -> None:
    """No writer of those names has an open transaction, if marks of some transaction are held up at all."""
    wanted = list(names)
    places = {(MARKS, _partition(name)) for name in wanted}
    stable = look_up(connection, places, Start("end"), "committed")
    if stable == look_up(connection, places, Start("end")):
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(partial(_initialised, connection), wanted):
            pass


class MarkedWriter:
    """The one writer of its name: opening it fences every other.

    A batch is `begin`, `send` as often as need be, `commit`. After any error the writer is of no use: close it.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        self.name = name
        self._connection = connection
        self._patience_s = _patience_s(connection)
        self._refused: HeadraceError | None = None
        self._refused_bytes = 0
        self._producer = _initialised(connection, name)
        #: What is committed. It is read after the initialising, not before: see above.
        self.mark = read_mark(connection, name)

    def has(self, batch: int) -> bool:
        """True if that batch was committed."""
        return self.mark is not None and self.mark.batch >= batch

    def begin(self) -> None:
        """A transaction is open, as far as the client knows; the brokers hear of it with the first record."""
        self._ask(self._producer.begin_transaction)

    def send(self, records: Records) -> None:
        """The records are on their way, in order; waits while there are too many."""
        produce, told = self._producer.produce, partial(self._told, records)
        rows = zip(records.topics, records.values, records.keys, records.headers or repeat(None), strict=False)
        at = -1
        with self._in_our_words(lambda: _described(records, at)):
            for at, (topic, value, key, headers) in enumerate(rows):  # noqa: B007 - the lambda looks at it
                while True:
                    try:
                        produce(topic, value, key, -1, told, headers=headers)
                    except BufferError:
                        self._producer.poll(_ROOM_S)
                    else:
                        break
            self._producer.poll(0)
        self._check()

    def flush(self) -> None:
        """Every record sent so far lies in its topic, invisible yet."""
        deadline = time.monotonic() + self._patience_s
        with self._in_our_words(lambda: f"a transaction of {self.name}"):
            while self._producer.flush(_STEP_S):
                self._check()
                if time.monotonic() > deadline:
                    raise unreachable(self._connection.bootstrap, f"no acknowledgement in {self._patience_s:g} s")
        self._check()

    def commit(self, mark: Mark) -> None:
        """The records are visible, and the mark says so."""
        self.flush()
        value = json.dumps({"batch": mark.batch, "records": mark.records}).encode()
        marking = Records([MARKS], [self.name.encode()], [value], None, lambda _: f"the mark of {self.name}")
        with self._in_our_words(lambda: _described(marking, 0)):
            self._producer.produce(
                MARKS, value, self.name.encode(), _partition(self.name), partial(self._told, marking)
            )
        self.flush()
        self._ask(self._producer.commit_transaction)
        self.mark = mark

    def close(self) -> None:
        """What was open is aborted; if nobody answers, the next writer of the name, or the timeout, aborts it."""
        with suppress(*_kafka_errors()):
            self._producer.abort_transaction(_ABORT_S)

    def _ask(self, call: Callable[[], object]) -> None:
        _patiently(self._connection, self.name, self._patience_s, call, self._check)

    def _check(self) -> None:
        if self._refused is not None:
            raise self._refused

    def _told(self, records: Records, error: Any, message: Any) -> None:
        """The record that was refused first; those behind it are refused because of it.

        A broker refuses records by the batch that they came in: the largest is the one that was too large.
        """
        from confluent_kafka import KafkaError

        aftermath = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT, KafkaError._STATE}
        if error is None or error.code() in aftermath:
            return
        size = len(message.value() or b"") if error.code() == KafkaError.MSG_SIZE_TOO_LARGE else 0
        if self._refused is None or size > self._refused_bytes:
            at = records.find(message.key(), message.value())
            self._refused_bytes = size
            self._refused = self._trouble(error, _described(records, -1 if at is None else at))

    @contextmanager
    def _in_our_words(self, described: Callable[[], str]) -> Iterator[None]:
        try:
            yield
        except _kafka_errors() as exception:
            self._check()
            raise self._trouble(_error_in(exception), described()) from None

    def _trouble(self, error: Any, described: str) -> HeadraceError:
        return _fenced(error, self.name) or _refusal(error, described, self._connection)


def read_mark(connection: Connection, name: str) -> Mark | None:
    """The last committed mark of the writer, None if there is none."""
    from confluent_kafka import TopicPartition

    place, key = (MARKS, _partition(name)), name.encode()
    # Up to the high watermark, not just to where a transaction is open: our mark may lie behind somebody else's.
    end = look_up(connection, [place], Start("end"))[place]
    consumer = connection.consumer(
        {
            "group.id": "headrace-marks",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.assign([TopicPartition(*place, 0)])
        found = _last(consumer, key, end, time.monotonic() + _patience_s(connection) + _STEP_S)
    finally:
        consumer.close()
    if found is None:
        return None
    told = json.loads(found)
    return Mark(int(told["batch"]), int(told["records"]))


def _last(consumer: Any, key: bytes, end: int, deadline: float) -> bytes | None:
    """The last value of the key before `end`."""
    from confluent_kafka import KafkaError

    found, position = None, 0
    while position < end:
        message = consumer.poll(_ROOM_S)
        if time.monotonic() > deadline:
            raise Failed(
                f"the marks in {MARKS} could not be read",
                why=f"they end at {end}, and nothing came after {position}: a broker is away, or a transaction is open",
                hint="headrace topic describe headrace.batches; an abandoned transaction is ended by its timeout",
            )
        if message is None:
            continue
        error = message.error()
        if error is None:
            position = message.offset() + 1
            found = message.value() if message.key() == key else found
        elif error.code() == KafkaError._PARTITION_EOF:
            position = message.offset()
        elif not error.retriable():
            raise Failed(f"the marks in {MARKS} could not be read", why=f"{error.str()} ({error.name()})")
    return found


def _initialised(connection: Connection, name: str) -> Any:
    """A producer that has the name for itself; what another one had left open is aborted."""
    settings = {**_TUNED, **connection.properties, **_FIXED, "transactional.id": name}
    producer = connection.producer(settings)
    _patiently(connection, name, _patience_s(connection), lambda: producer.init_transactions(_STEP_S))
    return producer


def _patiently(
    connection: Connection,
    name: str,
    patience_s: float,
    call: Callable[[], object],
    check: Callable[[], None] = lambda: None,
) -> None:
    """The call succeeded, having been repeated while Kafka said that it may be."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            call()
        except _kafka_errors() as exception:
            error = _error_in(exception)
            if fenced := _fenced(error, name):
                raise fenced from None
            check()
            if not error.retriable():
                raise _refusal(error, f"a transaction of {name}", connection) from None
            if time.monotonic() > deadline:
                raise unreachable(connection.bootstrap, f"{error.str()}, for {patience_s:g} s") from None
        else:
            return


def _kafka_errors() -> tuple[type[Exception], ...]:
    """What confluent-kafka raises: an exception around an error, and from inside of callbacks the error itself."""
    from confluent_kafka import KafkaError, KafkaException

    return KafkaException, KafkaError, SystemError


def _error_in(exception: Exception) -> Any:
    from confluent_kafka import KafkaError, KafkaException

    told = exception.__cause__ if isinstance(exception, SystemError) else exception
    if isinstance(told, KafkaException):
        return told.args[0]
    if isinstance(told, KafkaError):
        return told
    raise exception


def _fenced(error: Any, name: str) -> Fenced | None:
    from confluent_kafka import KafkaError

    codes = {
        KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
    }  # fmt: skip
    if error.code() not in codes:
        return None
    return Fenced(
        f"writer {name} was replaced by another one",
        why=f"{error.str()}: another run has taken over, or the transaction lasted longer than its timeout",
        hint="one run per checkpoint; a longer transaction.timeout.ms if batches take minutes",
    )


def _refusal(error: Any, described: str, connection: Connection) -> HeadraceError:
    from confluent_kafka import KafkaError

    why = f"{error.str()} ({error.name()})"
    if error.code() in {KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN}:
        return unreachable(connection.bootstrap, f"{described}: {error.str()}")
    hints = {
        KafkaError.MSG_SIZE_TOO_LARGE: "headrace topic alter TOPIC --set max.message.bytes=BYTES; if records are "
        "smaller than that, give this client a batch.size below it",
        KafkaError.INVALID_RECORD: "a compacted topic takes no record without a key",
        KafkaError.INVALID_TRANSACTION_TIMEOUT: "at most the brokers' transaction.max.timeout.ms",
        KafkaError.UNKNOWN_TOPIC_OR_PART: "headrace topic create TOPIC",
        KafkaError._UNKNOWN_TOPIC: "headrace topic create TOPIC",
    }
    return Failed(f"Kafka refused {described}", why=why, hint=hints.get(error.code()))


def _described(records: Records, at: int) -> str:
    """The record by its size, key and origin; -1 stands for one of them, nobody knows which."""
    if at < 0:
        return f"one of {len(records):,} records for {', '.join(dict.fromkeys(records.topics))}"
    key = records.keys[at]
    shown = f" with the key {short(key.decode(errors='replace'))!r}" if key is not None else ""
    return (
        f"a record of {len(records.values[at] or b''):,} bytes for {records.topics[at]}{shown}, {records.came_from(at)}"
    )


def _partition(name: str) -> int:
    return partition_of(name.encode(), _PARTITIONS)


def _patience_s(connection: Connection) -> float:
    return int({**_TUNED, **connection.properties}["transaction.timeout.ms"]) / 1000
