"""A transactional producer that has its name for itself, and a writer that gives it records by the column.

Kafka lets the producer that initialised a transactional id last commit under it, and fences every other: that makes a
writer the only one of its name. It waits as long as its transaction may last for brokers that are away, and then fails
in words; a record that Kafka refuses is named by where it came from. Nothing is repeated here that Kafka does not ask
to have repeated: after an error the writer is of no use, and the next one of its name finds an aborted transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING

from headrace.errors import Failed, Fenced, HeadraceError
from headrace.kafka.client import Connection, produce_when_room, unreachable
from headrace.text import short

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

    from headrace.kafka.client import Message

# Underneath the user's own settings. The timeout bounds how long brokers may be away in the middle of a batch, and how
# long a writer that died and does not come back holds up the readers of its topics; brokers allow 15 minutes at most.
_TUNED: dict[str, str | int] = {
    "transaction.timeout.ms": 300_000,
    "linger.ms": 20,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 131_072,
    # The broker knows what its topic takes; librdkafka's own limit is 1 MB, whatever the topic says.
    "message.max.bytes": 100_000_000,
}
_FIXED: dict[str, object] = {"acks": "all", "enable.idempotence": True, "delivery.report.only.error": True}
_STEP_S = 1.0
_ABORT_S = 10.0

_ANY_PARTITION = -1


Headers = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True)
class Records:
    """Records by the column. `came_from` names one of them for the eye, should Kafka refuse it."""

    topics: Sequence[str]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Headers | None] | None
    came_from: Callable[[int], str]
    #: Which partitions they go to; without it the partitioner decides, by the key.
    partitions: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.values)

    def find(self, key: bytes | None, value: bytes | None) -> int | None:
        """The first record that has this key and value."""
        return next((at for at in range(len(self)) if self.values[at] == value and self.keys[at] == key), None)


class TransactionalProducer:
    """A producer under a transactional id; opening it fences every other and aborts what they had left open.

    A call is repeated while Kafka says that it may be, for up to `timeout_s`. Subclasses say what a failure means.
    """

    def __init__(self, connection: Connection, name: str, settings: Mapping[str, object], timeout_s: float) -> None:
        self.name = name
        self._connection = connection
        self._settings = {"transactional.id": name, **settings}
        self._timeout_s = timeout_s
        self._open()

    def _open(self) -> None:
        self._producer = self._connection.producer(self._settings)
        # librdkafka looks for the coordinator at once, and if no broker is connected yet, again after half a second.
        # The first answer may come by a connection that is given up for it, so it is asked twice.
        with suppress(*_kafka_errors()):
            for _ in range(2):
                self._producer.list_topics("__transaction_state", timeout=_STEP_S)
        self._call(lambda: self._producer.init_transactions(_STEP_S))

    def _call(
        self, call: Callable[[], object], failure: Callable[[KafkaError | None], HeadraceError] | None = None
    ) -> None:
        """The call succeeded; `failure` makes the error if it did not."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                call()
            except _kafka_errors() as exception:
                error = _error_in(exception)
                if error is not None and is_fenced(error):
                    raise self._fenced(error) from None
                self._check()
                # Where the reason was lost, the next answer is the reason.
                if (error is None or error.retriable()) and time.monotonic() < deadline:
                    continue
                raise (failure or self._failure)(error) from None
            else:
                return

    def _check(self) -> None:
        """An error that is known already is raised."""

    def _fenced(self, error: KafkaError) -> Failed:
        return Fenced(
            f"writer {self.name} was replaced by another one",
            why=f"{error.str()}: another run has taken over, or the transaction lasted longer than its timeout",
            hint="one run per checkpoint; a longer transaction.timeout.ms if batches take minutes",
        )

    def _failure(self, error: KafkaError | None) -> HeadraceError:
        if error is not None and not error.retriable():
            return _refusal(error, f"a transaction of {self.name}", self._connection)
        why = error.str() if error is not None else "no reason was given"
        return unreachable(self._connection.bootstrap, f"{why}, for {self._timeout_s:g} s")


class Writer(TransactionalProducer):
    """The one writer of its name: opening it fences every other.

    A transaction is `begin`, `send` as often as need be, `commit`. After any error the writer is of no use: close it.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        self._refused: HeadraceError | None = None
        self._refused_bytes = 0
        settings = {**_TUNED, **connection.properties, **_FIXED, "transactional.id": name}
        super().__init__(connection, name, settings, timeout_s(connection))

    def begin(self) -> None:
        """A transaction is open, as far as the client knows; the brokers hear of it with the first record."""
        self._call(self._producer.begin_transaction)

    def send(self, records: Records) -> None:
        """The records are on their way, in order; waits while there are too many."""
        producer, report = self._producer, partial(self._on_delivery, records)
        extras = (records.headers or repeat(None), records.partitions or repeat(_ANY_PARTITION))
        rows = zip(records.topics, records.values, records.keys, *extras, strict=False)
        at = -1
        with self._in_our_words(lambda: _described(records, at)):
            for at, (topic, value, key, headers, partition) in enumerate(rows):  # noqa: B007 - the lambda looks at it
                produce_when_room(producer, topic, value, key, partition, report, headers=headers)
            producer.poll(0)
        self._check()

    def flush(self) -> None:
        """Every record sent so far lies in its topic, invisible yet."""
        deadline = time.monotonic() + self._timeout_s
        with self._in_our_words(lambda: f"a transaction of {self.name}"):
            while self._producer.flush(_STEP_S):
                self._check()
                if time.monotonic() > deadline:
                    raise unreachable(self._connection.bootstrap, f"no acknowledgement in {self._timeout_s:g} s")
        self._check()

    def commit(self) -> None:
        """What was sent is visible."""
        self.flush()
        self._call(self._producer.commit_transaction)

    def close(self) -> None:
        """What was open is aborted; if no answer comes, the next writer of the name, or the timeout, aborts it."""
        with suppress(*_kafka_errors()):
            self._producer.abort_transaction(_ABORT_S)

    def _check(self) -> None:
        if self._refused is not None:
            raise self._refused

    def _on_delivery(self, records: Records, error: KafkaError | None, message: Message) -> None:
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
            self._refused = self._refusal(error, _described(records, -1 if at is None else at))

    @contextmanager
    def _in_our_words(self, described: Callable[[], str]) -> Iterator[None]:
        try:
            yield
        except _kafka_errors() as exception:
            self._check()
            raise self._refusal(_error_in(exception) or self._last_error(), described()) from None

    def _last_error(self) -> KafkaError:
        """Why the client has given up: whatever is asked of it then is answered with that."""
        from confluent_kafka import KafkaError

        try:
            self._producer.abort_transaction(_ABORT_S)
        except _kafka_errors() as exception:
            if error := _error_in(exception):
                return error
        return KafkaError(KafkaError._FATAL, "the client has given up, and its reason was lost")

    def _refusal(self, error: KafkaError, described: str) -> HeadraceError:
        return self._fenced(error) if is_fenced(error) else _refusal(error, described, self._connection)


def _kafka_errors() -> tuple[type[Exception], ...]:
    """What confluent-kafka raises: an exception around an error, and from inside of callbacks the error itself."""
    from confluent_kafka import KafkaError, KafkaException

    return KafkaException, KafkaError, SystemError  # type: ignore[return-value] # that the second is one is not typed


def _error_in(exception: Exception) -> KafkaError | None:
    """What was said; None where two callbacks failed within one call: confluent-kafka drops what they said."""
    from confluent_kafka import KafkaError, KafkaException

    cause = exception.__cause__ if isinstance(exception, SystemError) else exception
    if isinstance(cause, KafkaException):
        found: KafkaError = cause.args[0]
        return found
    if cause is None or isinstance(cause, KafkaError):
        return cause
    raise exception


def is_fenced(error: KafkaError) -> bool:
    """True if another producer has the transactional id now."""
    from confluent_kafka import KafkaError

    return error.code() in {
        KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
    }  # fmt: skip


def _refusal(error: KafkaError, described: str, connection: Connection) -> HeadraceError:
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
    """The record by its size, key and origin; -1 stands for an unknown one of them."""
    if at < 0:
        return f"one of {len(records):,} records for {', '.join(dict.fromkeys(records.topics))}"
    key = records.keys[at]
    shown = f" with the key {short(key.decode(errors='replace'))!r}" if key is not None else ""
    return (
        f"a record of {len(records.values[at] or b''):,} bytes for {records.topics[at]}{shown}, {records.came_from(at)}"
    )


def timeout_s(connection: Connection) -> float:
    """How long brokers may be away in the middle of a transaction."""
    return int({**_TUNED, **connection.properties}["transaction.timeout.ms"]) / 1000
