"""`Writer`: numbered records at a steady rate, and when each was acknowledged or refused.

It runs in a thread of its own while the experiment does something to the cluster. Because every record carries its
number, a reader of the topic can find out what is missing and what is there twice.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from headrace import Connection, Record, consume
from headrace.labs.background import Background


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Where a record lies, and when that was known."""

    at: float
    partition: int
    offset: int


class Writer(Background):
    """Writes until it is stopped; then it is known what became of every record. Times are of `time.monotonic()`."""

    def __init__(
        self,
        connection: Connection,
        topic: str,
        *,
        rate: float = 200,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(f"writer of {topic}")
        self.topic = topic
        self.sent = 0
        self.sent_at: list[float] = []
        self.acknowledged: dict[int, Acknowledged] = {}
        self.refused: dict[int, str] = {}
        #: Why it stopped by itself, if it did.
        self.trouble: str | None = None
        self._rate = rate
        self._producer = connection.producer({"message.timeout.ms": 30_000, **(settings or {})})

    def _work(self) -> None:
        try:
            self._write()
            while self._producer.flush(1):
                continue
        except Exception as error:
            # An idempotent producer gives up for good when the broker no longer has what it acknowledged.
            self.trouble = str(error)
            self._give_up()

    def _write(self) -> None:
        began = time.monotonic()
        while not self._stopping.is_set():
            self._send(self.sent)
            due = began + self.sent / self._rate
            self._producer.poll(max(0.0, due - time.monotonic()))

    def _give_up(self) -> None:
        """What was not sent yet is reported as refused; each call may raise the same error again."""
        self._producer.purge()
        deadline = time.monotonic() + 30
        while len(self._producer) and time.monotonic() < deadline:
            with contextlib.suppress(Exception):
                self._producer.poll(0.1)

    def _send(self, number: int) -> None:
        def report(error: Any, message: Any) -> None:
            if error is None:
                place = Acknowledged(time.monotonic(), message.partition(), message.offset())
                self.acknowledged[number] = place
            else:
                self.refused[number] = error.name()

        while True:
            try:
                # Keyed by its number: spread over all partitions, and the same number always in the same one.
                self._producer.produce(self.topic, str(number), str(number), on_delivery=report)
            except BufferError:
                self._producer.poll(0.05)
                if self._stopping.is_set():
                    return
            else:
                break
        self.sent_at.append(time.monotonic())
        self.sent += 1

    def longest_gap_s(self, since: float = 0.0) -> float:
        """The longest time in which some partition acknowledged nothing, after a moment."""
        times: dict[int, list[float]] = {}
        for each in sorted(self.acknowledged.copy().values(), key=lambda one: one.at):
            if each.at >= since:
                times.setdefault(each.partition, []).append(each.at)
        return max((b - a for of_one in times.values() for a, b in pairwise(of_one)), default=0.0)


@dataclass(frozen=True)
class Account:
    """What was acknowledged against what can be read."""

    acknowledged: int
    read: int
    lost: tuple[int, ...]
    doubled: tuple[int, ...]


def account(writer: Writer, records: Iterable[Record]) -> Account:
    """The balance of a writer and what was read of its topic."""
    counts = Counter(int(record.value or b"-1") for record in records)
    promised = set(writer.acknowledged)
    return Account(
        len(promised),
        sum(counts.values()),
        tuple(sorted(promised - set(counts))),
        tuple(sorted(number for number, count in counts.items() if count > 1)),
    )


def account_of(connection: Connection, writer: Writer) -> Account:
    """The balance after the topic was read from its beginning to its end."""
    return account(writer, consume(connection, writer.topic))
