"""A transactional producer that has its name for itself, and takes records by the column.

Kafka lets whoever initialises a transactional id last commit under it, and fences every other: that is what makes a
writer the only one of its name. It waits as long as its transaction may last for brokers that are away, and then fails
in words; a record that Kafka refuses is named by where it came from. Nothing is repeated here that Kafka does not ask
to have repeated: after an error the writer is of no use, and the next one of its name finds an aborted transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any

from headrace.errors import Failed, HeadraceError
from headrace.transport.client import Connection, unreachable
from headrace.transport.topics import short

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


class Fenced(Failed):
    """Another writer of the same name has been opened since, or the transaction lasted too long."""


class Writer:
    """The one writer of its name: opening it fences every other.

    A transaction is `begin`, `send` as often as need be, `commit`. After any error the writer is of no use: close it.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        self.name = name
        self._connection = connection
        self._patience_s = patience_s(connection)
        self._refused: HeadraceError | None = None
        self._refused_bytes = 0
        self._producer = initialised(connection, name)

    def begin(self) -> None:
        """A transaction is open, as far as the client knows; the brokers hear of it with the first record."""
        self._ask(self._producer.begin_transaction)

    def send(self, records: Records) -> None:
        """The records are on their way, in order; waits while there are too many."""
        produce, told = self._producer.produce, partial(self._told, records)
        extras = (records.headers or repeat(None), records.partitions or repeat(_ANY_PARTITION))
        rows = zip(records.topics, records.values, records.keys, *extras, strict=False)
        at = -1
        with self._in_our_words(lambda: _described(records, at)):
            for at, (topic, value, key, headers, partition) in enumerate(rows):  # noqa: B007 - the lambda looks at it
                while True:
                    try:
                        produce(topic, value, key, partition, told, headers=headers)
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

    def commit(self) -> None:
        """What was sent is visible."""
        self.flush()
        self._ask(self._producer.commit_transaction)

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
            raise self._trouble(_error_in(exception) or self._last_error(), described()) from None

    def _last_error(self) -> Any:
        """Why the client has given up: whatever is asked of it then is answered with that."""
        from confluent_kafka import KafkaError

        try:
            self._producer.abort_transaction(_ABORT_S)
        except _kafka_errors() as exception:
            if error := _error_in(exception):
                return error
        return KafkaError(KafkaError._FATAL, "the client has given up, and its reason was lost")

    def _trouble(self, error: Any, described: str) -> HeadraceError:
        return _fenced(error, self.name) or _refusal(error, described, self._connection)


def initialised(connection: Connection, name: str) -> Any:
    """A producer that has the name for itself; what another one had left open is aborted."""
    settings = {**_TUNED, **connection.properties, **_FIXED, "transactional.id": name}
    producer = connection.producer(settings)
    # librdkafka looks for the coordinator at once, and if no broker is connected yet, again after half a second. The
    # first answer may come by a connection that is given up for it, so it is asked twice.
    with suppress(*_kafka_errors()):
        for _ in range(2):
            producer.list_topics("__transaction_state", timeout=_STEP_S)
    _patiently(connection, name, patience_s(connection), lambda: producer.init_transactions(_STEP_S))
    return producer


def _patiently(
    connection: Connection,
    name: str,
    within_s: float,
    call: Callable[[], object],
    check: Callable[[], None] = lambda: None,
) -> None:
    """The call succeeded, having been repeated while Kafka said that it may be."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            call()
        except _kafka_errors() as exception:
            error = _error_in(exception)
            if error is not None and (fenced := _fenced(error, name)):
                raise fenced from None
            check()
            # Where the reason was lost, the next answer is the reason.
            if error is not None and not error.retriable():
                raise _refusal(error, f"a transaction of {name}", connection) from None
            if time.monotonic() > deadline:
                why = error.str() if error is not None else "no reason was given"
                raise unreachable(connection.bootstrap, f"{why}, for {within_s:g} s") from None
        else:
            return


def _kafka_errors() -> tuple[type[Exception], ...]:
    """What confluent-kafka raises: an exception around an error, and from inside of callbacks the error itself."""
    from confluent_kafka import KafkaError, KafkaException

    return KafkaException, KafkaError, SystemError  # type: ignore[return-value] # that the second is one is not typed


def _error_in(exception: Exception) -> Any:
    """What was said; None where two callbacks failed within one call: confluent-kafka drops what they said."""
    from confluent_kafka import KafkaError, KafkaException

    told = exception.__cause__ if isinstance(exception, SystemError) else exception
    if isinstance(told, KafkaException):
        return told.args[0]
    if told is None or isinstance(told, KafkaError):
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


def patience_s(connection: Connection) -> float:
    """How long brokers may be away in the middle of a transaction."""
    return int({**_TUNED, **connection.properties}["transaction.timeout.ms"]) / 1000
