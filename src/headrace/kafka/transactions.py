"""Transactions: records of one or several topics that become visible together, or not at all.

    with transaction(cluster, "transfer-1") as tx:
        tx.send("debits", {"amount": 5})
        tx.send("credits", {"amount": 5})

A transaction that Kafka wants aborted is aborted and tried again; one whose producer was fenced by a newer one with the
same id stops, because going on would fence that one in turn. Where the outcome of a commit cannot be known (the
coordinator died while it answered), it is reported as unknown and never guessed.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from headrace.errors import Failed, Fenced, HeadraceError, Unreachable, UsageError
from headrace.kafka.client import Connection, HasBootstrap, connect, produce_when_room, unreachable
from headrace.kafka.kafka import Kafka
from headrace.kafka.model import NewTopic
from headrace.kafka.write import (
    BadPiece,
    Input,
    InputBatch,
    InputOptions,
    Outgoing,
    Shaper,
    Shaping,
    TransactionalProducer,
    Undeliverable,
    encode_value,
    is_fenced,
)

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

    from headrace.kafka.client import Message, Producer

#: A transaction that was to be committed and had to be aborted has failed.
Outcome = Literal["committed", "aborted", "failed", "fenced", "unknown"]

_ATTEMPTS = 3
_ANSWER_S = 30.0


@dataclass(frozen=True)
class TransactionPlan:
    """How records are put into transactions, and how each one ends."""

    size: int = 4
    wait_s: float = 0.0
    commit_probability: float = 1.0
    seed: int | None = None
    #: With several topics each transaction has `per_topic` records of each, and `size` is not used.
    topics: Sequence[str] = ()
    per_topic: int = 2
    transactional_id: str | None = None

    def check(self) -> None:
        if self.size < 1 or self.per_topic < 1:
            raise UsageError("a transaction needs at least one record")
        if not 0 <= self.commit_probability <= 1:
            raise UsageError(
                f"invalid value for the commit probability: {self.commit_probability}",
                hint="0 (always abort) to 1 (always commit)",
            )

    def places(self, topic: str) -> list[str]:
        """The topic of each record of a transaction, in order."""
        return [name for name in self.topics for _ in range(self.per_topic)] if self.topics else [topic] * self.size


@dataclass(frozen=True)
class TransactionResult:
    """One transaction: how it ended, and where its records lie (topic, partition, offset)."""

    number: int
    outcome: Outcome
    records: int
    offsets: tuple[tuple[str, int, int], ...] = ()
    attempts: int = 1
    reason: str | None = None


@dataclass
class TransactionReport:
    """All transactions of one run."""

    transactional_id: str
    transactions: list[TransactionResult] = field(default_factory=list)
    seconds: float = 0.0
    #: Pieces of the input that are no record, or do not fit their schema: in no transaction.
    bad: int = 0
    #: How many records of the input, from its beginning, are dealt with: `InputOptions.skip` of a run that goes on.
    #: None if that cannot be said, because records were routed. Those of a transaction that was fenced are not.
    position: int | None = None
    interrupted: bool = False
    error: HeadraceError | None = None
    #: Whether the error lies in the input, and not in Kafka.
    input_is_bad: bool = False

    def records(self, outcome: Outcome) -> int:
        """How many records are in transactions that ended so."""
        return sum(t.records for t in self.transactions if t.outcome == outcome)


class Transaction:
    """An open transaction: records can be sent in it."""

    def __init__(self, producer: Producer, require: Callable[[str], None]) -> None:
        self._producer = producer
        self._require = require
        self.offsets: list[tuple[str, int, int]] = []
        self.sent = 0
        #: Topic, partition and the client's words of the first record that was not delivered.
        self.undelivered: tuple[str, int, str] | None = None

    def send(
        self, topic: str, value: object, *, key: str | bytes | None = None, partition: int = -1, **extras: object
    ) -> None:
        """The record is part of the transaction, after waiting for room. Objects become JSON, as with `produce`.

        `extras` are `timestamp` (milliseconds since 1970) and `headers`.
        """
        from confluent_kafka import KafkaError, KafkaException

        self._require(topic)
        encoded = encode_value(value)
        try:
            produce_when_room(self._producer, topic, encoded, key, partition, on_delivery=self._delivered, **extras)
        except KafkaException as exception:
            error = exception.args[0]
            if is_fenced(error):
                raise _fenced(error.str()) from None
            # A record fails with "Erroneous state" after an earlier one has failed in the transaction.
            if error.txn_requires_abort() or error.code() == KafkaError._STATE:
                raise _MustAbort(error.str()) from None
            raise Failed(f"a record for {topic} was refused", why=error.str()) from None
        self.sent += 1

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.offsets.append((message.topic(), message.partition(), message.offset()))
        elif self.undelivered is None:
            self.undelivered = (message.topic(), message.partition(), error.str())


@contextmanager
def transaction(
    where: HasBootstrap | str,
    transactional_id: str | None = None,
    settings: Mapping[str, object] | None = None,
    *,
    create: bool = False,
) -> Iterator[Transaction]:
    """A transaction around the block: committed at its end, aborted if it raises.

    A topic that does not exist is an error, or is created with `create`.
    """
    name = transactional_id or f"headrace-{uuid.uuid4().hex[:12]}"
    producer = _Transactional(connect(where), name, settings, create=create)
    opened = producer.begin()
    try:
        yield opened
    except BaseException:
        producer.recover()
        raise
    try:
        producer.commit()
    except _MustAbort:
        # Left open, it would hold up every read_committed reader until its timeout.
        producer.recover()
        raise


def produce_in_transactions(
    where: HasBootstrap | str,
    topic: str,
    source: str | Path | BinaryIO | Iterable[object],
    plan: TransactionPlan,
    *,
    shaping: Shaping | None = None,
    input_options: InputOptions | None = None,
    settings: Mapping[str, object] | None = None,
    on_result: Callable[[TransactionResult], None] | None = None,
) -> TransactionReport:
    """Every record of `source` was in a transaction; the report lists each one as committed or aborted."""
    plan.check()
    shaper = Shaper(shaping or Shaping(), topic)
    if plan.topics and shaper.wanted.route:
        raise UsageError("a route and several topics contradict each other", hint="give one of them")
    connection = connect(where)
    with Kafka(connection) as admin:
        for name in dict.fromkeys(plan.places(topic)):
            admin.topic(name)
    run = _Run(connection, plan, settings, on_result)
    began = time.monotonic()
    try:
        run.all(topic, run.records(source, input_options or InputOptions(), shaper))
    except KeyboardInterrupt:
        run.report.interrupted = True
    except HeadraceError as error:
        run.report.error = error
    run.report.seconds = time.monotonic() - began
    return run.report


class _Run:
    """One call of `produce_in_transactions`."""

    def __init__(
        self,
        connection: Connection,
        plan: TransactionPlan,
        settings: Mapping[str, object] | None,
        on_result: Callable[[TransactionResult], None] | None,
    ) -> None:
        self.plan = plan
        self.on_result = on_result
        self.coin = random.Random(plan.seed)  # noqa: S311 - a coin for an experiment, not for a secret
        name = plan.transactional_id or f"headrace-{uuid.uuid4().hex[:12]}"
        self.report = TransactionReport(name)
        self.producer = _Transactional(connection, name, settings)
        #: Records of the input up to the last one that was handed out, with those that were rejected before it.
        self.taken = 0
        self.routed = False

    def records(
        self, source: str | Path | BinaryIO | Iterable[object], options: InputOptions, shaper: Shaper
    ) -> Iterator[Outgoing]:
        """The records one by one, with key, partition, timestamp and headers."""

        def reject(batch: InputBatch, error: Failed) -> None:
            if options.on_bad == "stop":
                raise error
            self.taken += 1
            self.report.bad += 1
            if options.on_bad == "set-aside" and options.set_aside:
                options.set_aside(BadPiece(batch.values[0], batch.first, error.problem))

        self.taken, self.routed = options.skip, shaper.wanted.route is not None
        self._reach()
        batches = Input(source, options, shaper.wanted)
        try:
            for batch in batches:
                for shaped in shaper.shape_fitting(batch, reject):
                    for at in range(len(shaped)):
                        self.taken += 1
                        yield shaped.slice(at, at + 1)
        finally:
            self.report.bad += batches.bad

    def all(self, topic: str, records: Iterator[Outgoing]) -> None:
        places = self.plan.places(topic)
        number = 0
        while chunk := self._chunk(records, len(places)):
            number += 1
            wants_commit = self.coin.random() < self.plan.commit_probability
            if self.plan.topics:
                chunk = [replace(record, topic=name) for record, name in zip(chunk, places, strict=False)]
            result = self._one(number, chunk, wants_commit=wants_commit)
            self.report.transactions.append(result)
            if result.outcome != "fenced":
                self._reach()
            if self.on_result:
                self.on_result(result)
            if self.report.interrupted:
                raise KeyboardInterrupt
            if result.outcome == "fenced":
                raise Failed(
                    f"transaction {number} was fenced",
                    why=f"another producer with the transactional id {self.report.transactional_id!r} has taken over",
                    hint="give each producer an id of its own: --transactional-id",
                )
        self._reach()

    def _reach(self) -> None:
        """All that was taken so far is dealt with. What a route takes is no beginning of the input."""
        self.report.position = None if self.routed else self.taken

    def _chunk(self, records: Iterator[Outgoing], size: int) -> list[Outgoing]:
        try:
            return list(islice(records, size))
        except HeadraceError:
            self.report.input_is_bad = True
            raise

    def _one(self, number: int, records: list[Outgoing], *, wants_commit: bool) -> TransactionResult:
        reason: str | None = None
        for attempt in range(1, _ATTEMPTS + 1):
            opened: Transaction | None = None
            deciding = False
            try:
                opened = self.producer.begin()
                for record in records:
                    _send(opened, record)
                # On disk before the coin falls: an aborted record is in the log too, only never visible.
                self.producer.flush()
                time.sleep(self.plan.wait_s)
                deciding = wants_commit
                (self.producer.commit if wants_commit else self.producer.abort)()
            except _MustAbort as error:
                reason = error.why
                self.producer.recover()
                continue
            except Fenced as error:
                return TransactionResult(number, "fenced", len(records), reason=error.why, attempts=attempt)
            except _OutcomeUnknown as error:
                self.producer.recover()
                return TransactionResult(number, "unknown", len(records), reason=error.why, attempts=attempt)
            except Failed as error:
                # Nothing that another attempt would mend, such as a record that is too large.
                reason = error.why or error.problem
                self.producer.recover()
                break
            except KeyboardInterrupt:
                self.producer.recover()
                if not deciding:
                    raise
                # It may have been committed before Python took notice of the Ctrl-C.
                self.report.interrupted = True
                why = "interrupted while it was committed"
                return TransactionResult(number, "unknown", len(records), reason=why, attempts=attempt)
            outcome: Outcome = "committed" if wants_commit else "aborted"
            return TransactionResult(number, outcome, len(records), tuple(sorted(opened.offsets)), attempt, reason)
        outcome = "failed" if wants_commit else "aborted"
        return TransactionResult(number, outcome, len(records), reason=reason, attempts=attempt)


def _send(opened: Transaction, record: Outgoing) -> None:
    (value,) = record.values
    (key,) = record.keys or (None,)
    partition = record.partition if isinstance(record.partition, int) else record.partition[0]
    extras: dict[str, object] = {}
    if record.timestamps_ms:
        extras["timestamp"] = record.timestamps_ms[0]
    if record.headers:
        extras["headers"] = list(record.headers[0])
    opened.send(record.topic, value, key=key, partition=partition, **extras)


class _MustAbort(Failed):
    """The transaction cannot be committed any more, a new one can be begun."""

    def __init__(self, why: str) -> None:
        hint = "send the records again in a new transaction"
        super().__init__("the transaction was aborted: none of its records is visible", why=why, hint=hint)


def _fenced(why: str) -> Fenced:
    hint = "give each producer a transactional id of its own"
    return Fenced("the transaction was fenced by another producer with its id", why=why, hint=hint)


class _OutcomeUnknown(Failed):
    """The commit was asked for, and no answer came whether it took place."""

    def __init__(self, why: str) -> None:
        hint = "read the topics (isolation committed) before sending the records again"
        super().__init__("the transaction may be committed or not: no answer came", why=why, hint=hint)


class _Transactional(TransactionalProducer):
    """A transactional producer that goes on after a transaction that failed."""

    def __init__(
        self, connection: Connection, name: str, settings: Mapping[str, object] | None, *, create: bool = False
    ) -> None:
        self._create = create
        self._known_topics: set[str] = set()
        self._opened: Transaction | None = None
        super().__init__(connection, name, {"transaction.timeout.ms": 60_000, **(settings or {})}, 2 * _ANSWER_S)

    def begin(self) -> Transaction:
        self._call(self._producer.begin_transaction)
        self._opened = Transaction(self._producer, self._require)
        return self._opened

    def _require(self, topic: str) -> None:
        """The topic exists. librdkafka would wait for it, and then abort the transaction without its name."""
        if topic not in self._known_topics:
            with Kafka(self._connection) as admin:
                if self._create:
                    admin.ensure_topic(NewTopic(topic))
                else:
                    admin.topic(topic)
            self._known_topics.add(topic)

    def flush(self) -> None:
        """Every record is in the log. Why one is not, the next call of the transaction tells."""
        self._call(lambda: self._producer.flush(_ANSWER_S))

    def commit(self) -> None:
        self._call(lambda: self._producer.commit_transaction(_ANSWER_S), partial(self._failure, deciding=True))

    def abort(self) -> None:
        self._call(lambda: self._producer.abort_transaction(_ANSWER_S))

    def recover(self) -> None:
        """The open transaction is aborted; if the client cannot do even that, a new one takes its place.

        A new producer under the same id makes the coordinator end whatever the old one left open.
        """
        try:
            self.abort()
        except Failed:
            self._open()

    def _why(self, said: str) -> str:
        """The client's words, with what the cluster says about a record that timed out."""
        topic, partition, reason = (self._opened and self._opened.undelivered) or ("", -1, "")
        found = Undeliverable(self._connection, topic, self._settings).reason(partition, reason)
        return f"{said}: {found}" if found != reason else said

    def _no_end(self, said: str) -> HeadraceError:
        """Kafka cannot even abort where it cannot write: the end of a transaction is a record, too."""
        why = self._why(said)
        if why == said:
            return unreachable(self._connection.bootstrap, said)
        return Unreachable("the transaction can be neither committed nor aborted now", why=why)

    def _fenced(self, error: KafkaError) -> Failed:
        return _fenced(error.str())

    def _failure(self, error: KafkaError | None, *, deciding: bool = False) -> HeadraceError:
        said = error.str() if error is not None else "no reason was given"
        if error is not None and error.txn_requires_abort():
            return _MustAbort(self._why(said))
        if deciding:
            return _OutcomeUnknown(said)
        if error is not None and (error.fatal() or not error.retriable()):
            return Failed("the transaction failed", why=f"{said} ({error.name()})")
        return self._no_end(said)
