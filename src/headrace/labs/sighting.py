"""`Sighting`: a consumer beside the experiment that notes when it saw each record, to the millisecond."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from headrace import Connection, Record
from headrace.runtime import eventually
from headrace.transport.offsets import Isolation


@dataclass(frozen=True, slots=True)
class Seen:
    """A record, and when it came out of Kafka (of `time.monotonic()`)."""

    at: float
    record: Record


class Sighting:
    """Reads the topics from their beginning, in a thread of its own, until the block is left."""

    def __init__(self, connection: Connection, topics: Sequence[str], *, isolation: Isolation = "committed") -> None:
        self.seen: list[Seen] = []
        self._consumer = connection.consumer(
            {
                # A name of its own and no commits: Kafka forgets such a group when its last member leaves.
                "group.id": f"headrace-sighting-{uuid.uuid4().hex[:8]}",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": f"read_{isolation}",
                "fetch.wait.max.ms": 50,
            }
        )
        self._assigned = threading.Event()
        self._stop = threading.Event()
        self._consumer.subscribe(list(topics), on_assign=lambda *_: self._assigned.set())
        self._thread = threading.Thread(target=self._run, name="sighting", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        eventually(self._assigned.is_set, 30)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            # One by one: `consume` would wait for many.
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.seen.append(Seen(time.monotonic(), Record.of(message)))
        self._consumer.close()

    def wait_for(self, count: int, within_s: float = 20.0) -> None:
        """So many records have been seen."""
        eventually(lambda: len(self.seen) >= count, within_s, every_s=0.01)
