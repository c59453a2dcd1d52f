"""A producer that writes without pause and remembers what was acknowledged, and when."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from itertools import count, pairwise
from types import TracebackType
from typing import Any

from headrace.kafka.client import HasBootstrap, connect

_KEYS_PER_PARTITION = 4


class Writer:
    """Writes records `key → sequence number` to all partitions in turn until the block is left.

    Idempotent, acks=all, with time enough to outlive any fault: what is not acknowledged in the end has failed.
    """

    def __init__(self, cluster: HasBootstrap, topic: str, partitions: int) -> None:
        self.topic = topic
        self.partitions = partitions
        self.acknowledged: dict[int, list[tuple[bytes, bytes]]] = {number: [] for number in range(partitions)}
        self.times: dict[int, list[float]] = {number: [] for number in range(partitions)}
        self.failures: list[str] = []
        self._producer = connect(cluster).producer({"linger.ms": 5, "message.timeout.ms": 120_000})
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._enough.set()
        self._thread.join()
        left = self._producer.flush(120)
        if left:
            self.failures.append(f"{left} records were neither acknowledged nor refused")

    def _write(self) -> None:
        sequence: dict[bytes, int] = defaultdict(int)
        for number in count():
            partition = number % self.partitions
            key = b"%d-%d" % (partition, number // self.partitions % _KEYS_PER_PARTITION)
            value = b"%d" % sequence[key]
            sequence[key] += 1
            self._producer.produce(self.topic, value, key, partition=partition, on_delivery=self._delivered)
            self._producer.poll(0.002)
            if self._enough.is_set():
                return

    def _delivered(self, error: Any, record: Any) -> None:
        if error is not None:
            self.failures.append(f"{record.key()} {record.value()} on {record.partition()}: {error}")
            return
        self.acknowledged[record.partition()].append((record.key(), record.value()))
        self.times[record.partition()].append(time.monotonic())

    def has_written(self, records: int, since: float = 0.0) -> bool:
        """True once every partition has had that many acknowledgements after the moment `since`."""
        return all(sum(at > since for at in times) >= records for times in self.times.values())

    def longest_gap_s(self) -> float:
        """The longest time in which some partition acknowledged nothing."""
        return max(after - before for times in self.times.values() for before, after in pairwise(times))
