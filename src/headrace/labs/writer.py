"""`Writer`: numbered records at a steady rate, and when each was acknowledged or refused.

It runs in a thread of its own while the experiment does something to the cluster. Because every record carries its
number, whoever reads the topic afterwards can tell what is missing and what is there twice.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

from headrace import consume
from headrace.transport.client import Connection
from headrace.transport.records import Record


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Where a record lies, and when that was known."""

    at: float
    partition: int
    offset: int


class Writer:
    """Writes until it is stopped. Times are of `time.monotonic()`."""

    def __init__(
        self,
        connection: Connection,
        topic: str,
        *,
        rate: float = 200,
        settings: Mapping[str, Any] | None = None,
        most: int | None = None,
    ) -> None:
        self.topic = topic
        self.sent = 0
        self.sent_at: list[float] = []
        self.acknowledged: dict[int, Acknowledged] = {}
        self.refused: dict[int, str] = {}
        self._rate = rate
        self._most = most
        self._producer = connection.producer({"message.timeout.ms": 30_000, **(settings or {})})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"writer of {topic}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """No further record is sent, and of every one it is known what became of it."""
        self._stop.set()
        self._thread.join()

    def wait(self) -> None:
        """So many records as were wanted at most have been sent, and it is known what became of each."""
        self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stop.is_set() and (self._most is None or self.sent < self._most):
            self._send(self.sent)
            due = began + self.sent / self._rate
            self._producer.poll(max(0.0, due - time.monotonic()))
        while self._producer.flush(1):
            continue

    def _send(self, number: int) -> None:
        def told(error: Any, message: Any) -> None:
            if error is None:
                place = Acknowledged(time.monotonic(), message.partition(), message.offset())
                self.acknowledged[number] = place
            else:
                self.refused[number] = error.name()

        while True:
            try:
                # Keyed by its number: spread over all partitions, and the same number always in the same one.
                self._producer.produce(self.topic, str(number), str(number), on_delivery=told)
            except BufferError:
                self._producer.poll(0.05)
                if self._stop.is_set():
                    return
            else:
                break
        self.sent_at.append(time.monotonic())
        self.sent += 1

    @property
    def longest_gap_s(self) -> float:
        """The longest time between two acknowledgements."""
        times = sorted(each.at for each in self.acknowledged.values())
        return max((b - a for a, b in pairwise(times)), default=0.0)


@dataclass(frozen=True)
class Account:
    """What was acknowledged against what can be read."""

    acknowledged: int
    read: int
    lost: tuple[int, ...]
    doubled: tuple[int, ...]
    #: Nobody promised these, and they are there all the same: the acknowledgement was lost, not the record.
    unpromised: tuple[int, ...]


def account(writer: Writer, records: Iterable[Record]) -> Account:
    """The balance of a writer and what was read of its topic."""
    counts = Counter(int(record.value or b"-1") for record in records)
    promised = set(writer.acknowledged)
    return Account(
        len(promised),
        sum(counts.values()),
        tuple(sorted(promised - set(counts))),
        tuple(sorted(number for number, count in counts.items() if count > 1)),
        tuple(sorted(set(counts) - promised)),
    )


def account_of(connection: Connection, writer: Writer) -> Account:
    """The balance after the topic was read from its beginning to its end."""
    return account(writer, consume(connection, writer.topic))
