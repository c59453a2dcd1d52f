"""A live tail: what is written to a topic from now on, as much of it as a person can look at.

A thread of its own reads; the page takes the newest every now and then and learns how many went by unseen. A
flood costs no more than a brook: where records come faster than they can be read here, the tail skips to the newest.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.kafka.bounds import Start, look_up
from headrace.kafka.browse.browser import READING, Query, shown
from headrace.kafka.browse.render import Renderer
from headrace.kafka.browse.visibility import BrowsedRecord
from headrace.kafka.client import HasBootstrap, connect
from headrace.kafka.ranges import assign, reader_at
from headrace.kafka.read import is_damage

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

    from headrace.kafka.client import Consumer, Message

_KEPT = 100
_KEPT_BYTES = 8_000_000
_AT_ONCE = 1000
_PAUSE_S = 0.1
_FAR_BEHIND = 5000


@dataclass(frozen=True)
class Taken:
    """The newest records, the oldest of them first; how many were seen and how many matched since the tail began."""

    records: tuple[BrowsedRecord, ...]
    seen: int
    matched: int
    problem: str | None = None


class Tail:
    """Follows a topic until it is stopped."""

    def __init__(
        self, where: HasBootstrap | str, query: Query, partitions: tuple[int, ...], renderer: Renderer
    ) -> None:
        self._connection = connect(where)
        self._query = query
        self._partitions = partitions
        self._renderer = renderer
        self._lock = threading.Lock()
        self._kept: deque[Message] = deque()
        self._kept_bytes = 0
        self._seen = self._matched = 0
        self._problem: str | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tail", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Nothing is read any more; the thread ends by itself within moments."""
        self._stopping.set()

    def take(self) -> Taken:
        """What has come since the last call."""
        with self._lock:
            messages, self._kept, self._kept_bytes = list(self._kept), deque(), 0
        records = tuple(shown(self._renderer, message) for message in messages)
        return Taken(records, self._seen, self._matched, self._problem)

    def _run(self) -> None:
        places = [(self._query.topic, number) for number in self._partitions]
        try:
            positions = look_up(self._connection, places, Start("end"))
            with reader_at(self._connection, positions, READING) as consumer:
                while not self._stopping.is_set():
                    self._take_in(consumer, positions)
        except HeadraceError as error:
            self._problem = error.problem

    def _take_in(self, consumer: Consumer, positions: dict[tuple[str, int], int]) -> None:
        messages = consumer.consume(_AT_ONCE, _PAUSE_S)
        for message in messages:
            error = message.error()
            if error is not None:
                self._on_error(consumer, message, error, positions)
            else:
                positions[message.topic(), message.partition()] = message.offset() + 1
                self._seen += 1
                if self._query.matches(self._renderer, message):
                    self._matched += 1
                    self._keep(message)
        if len(messages) == _AT_ONCE:
            self._skip(consumer, positions)
            time.sleep(_PAUSE_S)

    def _on_error(
        self, consumer: Consumer, message: Message, error: KafkaError, positions: dict[tuple[str, int], int]
    ) -> None:
        """Behind a damaged batch the tail goes on with the newest: it would wait there for ever."""
        from confluent_kafka import TopicPartition

        place = (message.topic(), message.partition())
        if place in positions and is_damage(error):
            self._problem = f"a batch of {place[0]}/{place[1]} is damaged: the tail continues after it"
            _, end = consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
            positions[place] = max(end, positions[place] + 1)
            assign(consumer, positions)

    def _keep(self, message: Message) -> None:
        with self._lock:
            self._kept.append(message)
            self._kept_bytes += len(message)
            while len(self._kept) > _KEPT or (self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1):
                self._kept_bytes -= len(self._kept.popleft())

    def _skip(self, consumer: Consumer, positions: dict[tuple[str, int], int]) -> None:
        """To the newest, where reading has fallen far behind."""
        from confluent_kafka import TopicPartition

        behind = {}
        for place, at in positions.items():
            _, end = consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
            if end - at > _FAR_BEHIND:
                behind[place] = end
                self._seen += end - at
        if behind:
            positions.update(behind)
            assign(consumer, positions)
