"""What runs beside an experiment, in a thread of its own, as long as a block lasts: polls and a consumer."""

from __future__ import annotations

import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from headrace import Connection, Record, eventually


class Background(ABC):
    """Work that begins with a block and has ended behind it."""

    def __init__(self, name: str) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    @abstractmethod
    def _work(self) -> None:
        """Returns soon after `_stopping` is set."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """The work has ended."""
        self._stopping.set()
        self._thread.join()


class Poll(Background):
    """Calls `look` every so many seconds."""

    def __init__(self, name: str, every_s: float) -> None:
        super().__init__(name)
        self._every_s = every_s

    @abstractmethod
    def poll(self) -> None:
        """One poll."""

    def _work(self) -> None:
        while not self._stopping.is_set():
            self.poll()
            self._stopping.wait(self._every_s)


@dataclass(frozen=True, slots=True)
class Seen:
    """A record, and when it came out of Kafka (of `time.monotonic()`)."""

    at: float
    record: Record


class Sighting(Background):
    """A consumer that notes when it saw each record of the topics, from their beginning, to the millisecond."""

    def __init__(
        self,
        connection: Connection,
        topics: Sequence[str],
        *,
        isolation: Literal["committed", "uncommitted"] = "committed",
    ) -> None:
        super().__init__("sighting")
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
        self._consumer.subscribe(list(topics), on_assign=lambda *_: self._assigned.set())

    def __enter__(self) -> Self:
        super().__enter__()
        eventually(self._assigned.is_set, 30)
        return self

    def _work(self) -> None:
        while not self._stopping.is_set():
            # One by one: `consume` would wait for many.
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.seen.append(Seen(time.monotonic(), Record.of(message)))
        self._consumer.close()

    def wait_for(self, count: int, within_s: float = 20.0) -> None:
        """So many records have been seen."""
        eventually(lambda: len(self.seen) >= count, within_s, every_s=0.01)
