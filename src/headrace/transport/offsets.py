"""Places in a log: the beginning, the end, an offset, a point in time; as people write them, and as Kafka numbers them.

Nothing here moves a consumer or a group: it reads words and asks the brokers which offsets they stand for.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from headrace.errors import Failed, HeadraceError, UsageError
from headrace.transport.admin_clients import AdminClients, refusal
from headrace.transport.client import Connection, unreachable

#: A partition of a topic.
Place = tuple[str, int]
Isolation = Literal["committed", "uncommitted"]

# Longer than a rebalance takes, shorter than patience lasts.
_IDLE_S = 10.0
_CONNECTED_WITHIN_S = 5.0
# A partition has a new leader, and the client or a broker has not heard of it yet.
_CHANGING = {"FENCED_LEADER_EPOCH", "UNKNOWN_LEADER_EPOCH", "NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE",
             "OFFSET_NOT_AVAILABLE", "_NOENT"}  # fmt: skip
_SETTLED_WITHIN_S = 60.0
_ASK_AGAIN_S = 0.1
# What Kafka's numbers of 64 bits can hold.
_DIGITS = 19
_FARTHEST_MS = 2**62
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Start:
    """Where reading begins. `value` is an offset or milliseconds since 1970 for the kinds that need one."""

    kind: Literal["beginning", "end", "committed", "offset", "time"]
    value: int = 0

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


def parse_span(text: str) -> float:
    """`250ms`, `2s`, `10min`, `1h`: seconds."""
    found = _SPAN.fullmatch(text.strip() if not text.strip().replace(".", "", 1).isdecimal() else f"{text.strip()}s")
    if not found:
        raise UsageError(f"invalid value: {text!r} is not a length of time", hint="250ms, 2s, 10min or 1h")
    return float(found[1]) * _SECONDS[found[2]]


def parse_time(text: str, possible: str = "2026-05-01T12:00, or -15min") -> int:
    """Milliseconds since 1970: of ISO 8601 (local time unless it says otherwise), of `-15min` before now.

    An error lists what is `possible` where the text stands.
    """
    try:
        found = _milliseconds(text)
    except (ValueError, OverflowError):
        found = None
    if found is None or abs(found) > _FARTHEST_MS:
        raise UsageError(f"invalid value: {text[:60]!r}", hint=possible)
    return found


def _milliseconds(text: str) -> int:
    if text.startswith("-"):
        return int((time.time() - parse_span(text[1:])) * 1000)
    if re.fullmatch(r"@?\d{12,}", text):
        return int(text.removeprefix("@"))
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def look_up(
    where: Connection | AdminClients, places: Iterable[Place], at: Start, isolation: Isolation = "uncommitted"
) -> dict[Place, int]:
    """The offset of each partition that `at` stands for. A time after the last record is the end.

    With isolation "committed" the end is the last stable offset: what a read_committed consumer can reach.
    """
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import OffsetSpec

    wanted = list(places)
    if at.kind == "offset":
        return dict.fromkeys(wanted, at.value)
    if isinstance(where, Connection):
        with AdminClients(where) as admin:
            return look_up(admin, wanted, at, isolation)
    client, connection = where.client, where.connection
    # librdkafka asks a broker that it is not connected to yet again after one to three seconds only; one time in ten
    # that is so. Asked for a topic first, it waits until it is connected.
    with suppress(KafkaException):
        client.list_topics(wanted[0][0] if wanted else None, timeout=_CONNECTED_WITHIN_S)
    if at.kind == "time":
        spec = OffsetSpec.for_timestamp(at.value)
    else:
        spec = {"beginning": OffsetSpec.earliest(), "end": OffsetSpec.latest()}[at.kind]
    found = _ask(client, connection, wanted, spec, isolation)
    beyond = [place for place, offset in found.items() if offset < 0]
    if beyond:
        found.update(_ask(client, connection, beyond, OffsetSpec.latest(), isolation))
    return found


def _ask(client: Any, connection: Connection, places: list[Place], spec: Any, isolation: Isolation) -> dict[Place, int]:
    """Every partition's answer; those whose leader is just changing are asked again."""
    from confluent_kafka import KafkaException

    found: dict[Place, int] = {}
    deadline = time.monotonic() + _SETTLED_WITHIN_S
    while open_places := [place for place in places if place not in found]:
        found |= _answers(client, connection, open_places, spec, isolation, last=time.monotonic() > deadline)
        if len(found) < len(places):
            time.sleep(_ASK_AGAIN_S)
            with suppress(KafkaException):  # whoever leads now
                client.list_topics(timeout=_CONNECTED_WITHIN_S)
    return found


def _answers(
    client: Any, connection: Connection, places: list[Place], spec: Any, isolation: Isolation, *, last: bool
) -> dict[Place, int]:
    """What the leaders answer at once; the last time, one that does not know yet that it leads is an error."""
    from confluent_kafka import IsolationLevel, KafkaException, TopicPartition

    level = IsolationLevel.READ_COMMITTED if isolation == "committed" else IsolationLevel.READ_UNCOMMITTED
    futures = client.list_offsets(
        {TopicPartition(*place): spec for place in places}, isolation_level=level, request_timeout=15
    )
    found: dict[Place, int] = {}
    for partition, future in futures.items():
        try:
            found[partition.topic, partition.partition] = future.result(timeout=20).offset
        except KafkaException as error:
            if last or error.args[0].name() not in _CHANGING:
                raise _no_answer(client, connection, partition, error.args[0]) from None
        except TimeoutError:
            raise unreachable(connection.bootstrap, "no answer in time") from None
    return found


def _no_answer(client: Any, connection: Connection, partition: Any, error: Any) -> HeadraceError:
    """Why a partition has no offsets to tell, with the broker that would know them."""
    from confluent_kafka import KafkaException

    refused = refusal(error, f"list offsets of {partition.topic}", connection.bootstrap)
    try:
        metadata = client.list_topics(partition.topic, timeout=_CONNECTED_WITHIN_S)
        found = metadata.topics[partition.topic].partitions[partition.partition]
    except (KafkaException, KeyError):
        return refused
    place = f"{partition.topic}/{partition.partition}"
    if found.leader >= 0:
        refused.why = f"broker {found.leader} leads {place}: {refused.why}"
        return refused
    away = [f"broker {replica}" for replica in found.replicas if replica not in metadata.brokers]
    return Failed(
        f"{place} has no leader, so its offsets are unknown",
        why=f"{' and '.join(away) or 'no replica that was in sync'} {'is' if len(away) < 2 else 'are'} down",
        hint="headrace status shows which brokers run, headrace start NODE starts one again",
    )
