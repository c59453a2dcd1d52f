"""Where a log begins and ends, and where a time lies in it: as people write it, and as offsets that leaders answer.

`ask_offsets` is the only place that asks librdkafka for offsets; a `Survey` asks with its own connections. Nothing here
moves a consumer or a group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headrace.errors import Failed, HeadraceError
from headrace.kafka.client import AdminClients, Connection, refusal, unreachable
from headrace.kafka.model import TopicPartition
from headrace.text import parse_span, parse_time

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

#: A partition of a topic.
Place = TopicPartition
Isolation = Literal["committed", "uncommitted"]

# Longer than a rebalance takes, shorter than a person waits.
_IDLE_S = 10.0
_CONNECTED_WITHIN_S = 5.0
# A partition has a new leader, and the client or a broker has not heard of it yet.
_CHANGING = {"FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE",
             "OFFSET_NOT_AVAILABLE", "_NOENT"}  # fmt: skip
_SETTLED_WITHIN_S = 60.0
_RETRY_S = 0.1
_ANSWER_WITHIN_S = 15.0
# What Kafka's numbers of 64 bits can hold.
_DIGITS = 19


@dataclass(frozen=True)
class Start:
    """Where reading begins. `value` is an offset or milliseconds since 1970 for the kinds that need one."""

    kind: Literal["beginning", "end", "committed", "offset", "time"]
    value: int = 0

    @property
    def timestamp(self) -> int:
        """What a ListOffsets request asks for."""
        return {"end": -1, "beginning": -2}.get(self.kind, self.value)

    @classmethod
    def parse(cls, text: str) -> Start:
        """`beginning`, `end`, `committed`, `1500` (an offset), `2026-05-01T12:00`, `-15min`."""
        if text in {"beginning", "end", "committed"}:
            return cls(text)  # type: ignore[arg-type]
        if text.isdecimal() and len(text) < _DIGITS:
            return cls("offset", int(text))
        return cls("time", parse_time(text, "beginning, end, committed, an offset, 2026-05-01T12:00, or -15min"))


@dataclass(frozen=True)
class Until:
    """Where reading ends. `value` is a number of records, seconds of silence, or milliseconds since 1970."""

    kind: Literal["end", "idle", "count", "time", "never"]
    value: float = 0

    @classmethod
    def parse(cls, text: str) -> Until:
        """`end` (what is there now), `idle` or `idle:10s`, `count:100`, `never`, or a time."""
        kind, _, rest = text.partition(":")
        if text in {"end", "never"}:
            return cls(text)  # type: ignore[arg-type]
        if kind == "idle":
            return cls("idle", _IDLE_S if text == "idle" else parse_span(rest))
        if kind == "count" and rest.isdecimal() and len(rest) < _DIGITS:
            return cls("count", int(rest))
        return cls("time", parse_time(text, "end, idle:10s, count:100, 2026-05-01T12:00, or -15min"))


# -- asking the leaders -----------------------------------------------------------------------------------------


def ask_offsets(
    clients: AdminClients,
    places: Iterable[TopicPartition],
    at: Start,
    isolation: Isolation = "uncommitted",
    within_s: float = _ANSWER_WITHIN_S,
) -> Callable[[], dict[TopicPartition, int | KafkaError | None]]:
    """Asks the leaders at once. The function that is returned waits for their answers.

    An answer is an offset, negative if no record is that young; else Kafka's error, or None if none came in time.
    With isolation "committed" the end is the last stable offset: what a read_committed consumer can reach.
    """
    from confluent_kafka import IsolationLevel, KafkaException
    from confluent_kafka import TopicPartition as Wanted
    from confluent_kafka.admin import OffsetSpec

    if at.kind == "time":
        spec = OffsetSpec.for_timestamp(at.value)
    else:
        spec = {"beginning": OffsetSpec.earliest(), "end": OffsetSpec.latest()}[at.kind]
    level = IsolationLevel.READ_COMMITTED if isolation == "committed" else IsolationLevel.READ_UNCOMMITTED
    wanted = {Wanted(*place): spec for place in places}
    futures = {}
    if wanted:
        futures = clients.client.list_offsets(wanted, isolation_level=level, request_timeout=within_s)

    def answers() -> dict[TopicPartition, int | KafkaError | None]:
        found: dict[TopicPartition, int | KafkaError | None] = {}
        for asked, future in futures.items():
            place = (asked.topic, asked.partition)
            try:
                found[place] = future.result(timeout=within_s + 5).offset
            except KafkaException as error:
                found[place] = error.args[0]
            except TimeoutError:
                found[place] = None
        return found

    return answers


def known_offsets(answers: Mapping[TopicPartition, int | KafkaError | None]) -> dict[TopicPartition, int | None]:
    """The answers of `ask_offsets` that are offsets; None for the others."""
    return {place: offset if isinstance(offset, int) and offset >= 0 else None for place, offset in answers.items()}


def look_up(
    where: Connection | AdminClients, places: Iterable[TopicPartition], at: Start, isolation: Isolation = "uncommitted"
) -> dict[TopicPartition, int]:
    """The offset of each partition that `at` means; a time after the last record means the end.

    A partition whose leader is just changing is asked again; one without an answer is an error.
    """
    from confluent_kafka import KafkaException

    wanted = list(places)
    if at.kind == "offset":
        return dict.fromkeys(wanted, at.value)
    if isinstance(where, Connection):
        with AdminClients(where) as clients:
            return look_up(clients, wanted, at, isolation)
    # librdkafka asks a broker that it is not connected to yet again after one to three seconds only; one time in ten
    # that is so. Asked for a topic first, it waits until it is connected.
    with suppress(KafkaException):
        where.client.list_topics(wanted[0][0] if wanted else None, timeout=_CONNECTED_WITHIN_S)
    found = _retried(where, wanted, at, isolation)
    beyond = [place for place, offset in found.items() if offset < 0]
    return found | (_retried(where, beyond, Start("end"), isolation) if beyond else {})


def _retried(
    clients: AdminClients, places: list[TopicPartition], at: Start, isolation: Isolation
) -> dict[TopicPartition, int]:
    """Every partition's answer; those whose leader is just changing are asked again."""
    from confluent_kafka import KafkaException

    found: dict[TopicPartition, int] = {}
    deadline = time.monotonic() + _SETTLED_WITHIN_S
    while missing := [place for place in places if place not in found]:
        last = time.monotonic() > deadline
        for place, answer in ask_offsets(clients, missing, at, isolation)().items():
            if isinstance(answer, int):
                found[place] = answer
            elif answer is None:
                raise unreachable(clients.connection.bootstrap, "no answer in time")
            elif last or answer.name() not in _CHANGING:
                raise _no_answer(clients, place, answer)
        if len(found) < len(places):
            time.sleep(_RETRY_S)
            with suppress(KafkaException):  # whoever leads now
                clients.client.list_topics(timeout=_CONNECTED_WITHIN_S)
    return found


def _no_answer(clients: AdminClients, place: TopicPartition, error: KafkaError) -> HeadraceError:
    """Why a partition's offsets are unknown, with the broker that would know them."""
    from confluent_kafka import KafkaException

    topic, number = place
    refused = refusal(error, f"list offsets of {topic}", clients.connection.bootstrap)
    try:
        metadata = clients.client.list_topics(topic, timeout=_CONNECTED_WITHIN_S)
        found = metadata.topics[topic].partitions[number]
    except (KafkaException, KeyError):
        return refused
    if found.leader >= 0:
        refused.why = f"broker {found.leader} leads {topic}/{number}: {refused.why}"
        return refused
    away = [f"broker {replica}" for replica in found.replicas if replica not in metadata.brokers]
    return Failed(
        f"{topic}/{number} has no leader, so its offsets are unknown",
        why=f"{' and '.join(away) or 'no replica that was in sync'} {'is' if len(away) < 2 else 'are'} down",
        hint="headrace status shows which brokers run, headrace start NODE starts one again",
    )
