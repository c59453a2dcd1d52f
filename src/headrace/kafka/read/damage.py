"""Batches whose bytes are not those that were written: which errors tell of them, and where reading can go on.

Any byte may be wrong, those of the header too. So nothing is believed but what can be tried: a place behind the damage
is one where a broker, asked for it, begins with a later batch. Mostly that is the batch that follows in the bytes. But
a broker steps from header to header when it looks for an offset, and so may find nothing behind a damaged one that its
index does not lead to. What lies in between no client can reach.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from headrace.kafka.bounds import Start
from headrace.kafka.model import Topic
from headrace.kafka.ranges import fetch_batches
from headrace.kafka.read.options import DamagedBatch
from headrace.kafka.survey import Survey

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

    from headrace.kafka.client import Message

_BEGINNING = struct.Struct(">qi")  # base offset, and the length of what follows
_A_BATCH = 1  # bytes: a broker gives one whole batch however few are asked for


def is_damage(error: KafkaError) -> bool:
    """True if the error of a confluent-kafka Message says that the bytes in the log are damaged."""
    from confluent_kafka import KafkaError

    damage = {KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError._NOT_IMPLEMENTED, KafkaError.INVALID_MSG}
    return error.code() in damage


def find(survey: Survey, topic: Topic, message: Message, stands: int) -> DamagedBatch | None:
    """What a reader at the offset `stands` loses to the damage that the message reports; None if that is unknown.

    The offset of the message is read from the damaged bytes: it counts only if it can be.
    """
    log = _Log(survey, topic, message.partition())
    end = log.end()
    if end is None or stands >= end:
        return None
    at = message.offset() if stands <= message.offset() < end else stands
    bases = log.bases(at)
    first = bases[0] if bases and bases[0] <= at else at
    behind = log.behind(at, bases, end)
    error = message.error()
    reason = error.str() if error is not None else ""
    return DamagedBatch(topic.name, log.partition, first, behind - 1, behind - first, reason)


class _Log:
    """One partition, as its leader gives it."""

    def __init__(self, survey: Survey, topic: Topic, partition: int) -> None:
        self._survey = survey
        self._topic = topic.name
        self.partition = partition
        self._leader = next((p.leader for p in topic.partitions if p.partition == partition), -1)

    def end(self) -> int | None:
        asked = {self._leader: {self._topic: [self.partition]}}
        return self._survey.offsets(asked, Start("end")).get((self._topic, self.partition))

    def bases(self, offset: int, most_bytes: int = 1_000_000) -> list[int]:
        """The first offsets of the batches that the leader gives for this one, by their lengths alone."""
        answer = fetch_batches(
            self._survey, self._topic, self.partition, self._leader, offset, committed=False, most_bytes=most_bytes
        )
        data, found, at = bytes(answer.records or b"") if answer else b"", [], 0
        while at + _BEGINNING.size <= len(data):
            base, length = _BEGINNING.unpack_from(data, at)
            found.append(base)
            if length <= 0:
                break
            at += _BEGINNING.size + length
        return found

    def behind(self, damaged: int, bases: list[int], end: int) -> int:
        """The first offset behind the damaged one from which the leader gives a later batch."""
        following = next((base for base in bases if damaged < base < end), None)
        if following is not None and self.bases(following, _A_BATCH)[:1] == [following]:
            return following
        low, high = damaged, end  # the log can be read from `high` on, and not from `low`
        while high - low > 1:
            middle = (low + high) // 2
            if self._leads_past(damaged, middle):
                high = middle
            else:
                low = middle
        return high

    def _leads_past(self, damaged: int, offset: int) -> bool:
        return any(base > damaged for base in self.bases(offset, _A_BATCH)[:1])
