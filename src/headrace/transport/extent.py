"""How far the logs of topics reach: ids, first and last offsets, how long records are kept, when a record was written.

Whoever reads topics asks here how far it is behind. One question for the topics, one for each end of all partitions,
one for the settings, one for the sizes where they are limited; nothing is asked partition by partition. Nothing here
moves a consumer or a group.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.transport.admin import Admin
from headrace.transport.client import Connection
from headrace.transport.offsets import Isolation, Place

# A question here is asked again soon: whoever looks at a status must not wait long for a Kafka that is away.
_PATIENCE_S = 5.0


@dataclass(frozen=True)
class TopicExtent:
    """A topic as it is now. Offsets are None where no leader answers; `end` is what a reader can reach."""

    topic: str
    topic_id: str | None
    begins: Mapping[int, int | None]
    ends: Mapping[int, int | None]
    #: How long records are kept; None: for ever, or as long as their key has no newer one.
    retention_ms: int | None
    #: How many bytes of a partition are kept; None: all.
    retention_bytes: int | None = None
    #: The bytes of the partitions; known only where there is such a limit.
    sizes: Mapping[int, int | None] = field(default_factory=dict)

    @property
    def partitions(self) -> tuple[int, ...]:
        return tuple(sorted(self.ends))


def extents(
    connection: Connection, topics: Iterable[str], isolation: Isolation = "committed"
) -> dict[str, TopicExtent | None]:
    """The extent of each topic; None where there is none. With "committed", open transactions are not there."""
    wanted = list(dict.fromkeys(topics))
    with Admin(connection, timeout_s=_PATIENCE_S) as admin:
        described = _described(admin, wanted)
        places = [(name, p) for name, (_, partitions) in described.items() for p in partitions]
        begins, ends = _ask(admin, places, isolation)
        kept = _retention(admin, list(described))
        sizes = _sizes(admin, [name for name, (_, limit) in kept.items() if limit is not None])
    found: dict[str, TopicExtent | None] = dict.fromkeys(wanted)
    for name, (identity, partitions) in described.items():
        found[name] = TopicExtent(
            name, identity, {p: begins[name, p] for p in partitions}, {p: ends[name, p] for p in partitions},
            *kept.get(name, (None, None)), sizes.get(name, {}),
        )  # fmt: skip
    return found


def topic_ids(connection: Connection, topics: Iterable[str]) -> dict[str, str | None]:
    """Kafka's ids of the topics that exist; a topic that was deleted and made again has another one."""
    with Admin(connection, timeout_s=_PATIENCE_S) as admin:
        return {name: identity for name, (identity, _) in _described(admin, list(topics)).items()}


def next_records(
    connection: Connection, positions: Mapping[Place, int], isolation: Isolation = "committed", within_s: float = 3.0
) -> dict[Place, tuple[int, int]]:
    """Offset and timestamp (ms) of the first record at or after each position; those that have none are missing."""
    from confluent_kafka import TopicPartition

    if not positions:
        return {}
    consumer = connection.consumer(
        {
            "group.id": "headrace-extent",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": f"read_{isolation}",
            # One record of each partition is wanted, so little is asked for at a time.
            "fetch.message.max.bytes": 1024,
            "queued.min.messages": 1,
            "fetch.wait.max.ms": 50,
        }
    )
    found: dict[Place, tuple[int, int]] = {}
    waiting = set(positions)
    deadline = time.monotonic() + within_s
    try:
        consumer.assign([TopicPartition(*place, offset) for place, offset in positions.items()])
        while waiting and time.monotonic() < deadline:
            for record in consumer.consume(len(waiting), timeout=0.1):
                place = (record.topic(), record.partition())
                if place not in waiting or (record.error() is not None and not _is_end(record.error())):
                    continue
                waiting.discard(place)
                consumer.pause([TopicPartition(*place)])
                if record.error() is None:
                    found[place] = (record.offset(), record.timestamp()[1])
    finally:
        consumer.close()
    return found


def _is_end(error: Any) -> bool:
    from confluent_kafka import KafkaError

    return bool(error.code() == KafkaError._PARTITION_EOF)


def _described(admin: Admin, topics: list[str]) -> dict[str, tuple[str | None, list[int]]]:
    """Id and partitions of the topics that exist."""
    from confluent_kafka import KafkaError, KafkaException, TopicCollection

    futures = admin.client.describe_topics(TopicCollection(topics), request_timeout=admin.timeout_s) if topics else {}
    found: dict[str, tuple[str | None, list[int]]] = {}
    there = {}
    for name, future in futures.items():
        try:
            future.result(timeout=admin.timeout_s + 1)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                continue
        except TimeoutError:
            pass
        there[name] = future
    for name, described in admin.settle(there, "describe topic {name}").items():
        # librdkafka writes the id in plain base64, Kafka's own tools in the form that is safe in URLs.
        identity = str(described.topic_id).replace("+", "-").replace("/", "_") or None
        found[name] = (identity, sorted(p.id for p in described.partitions))
    return found


def _ask(
    admin: Admin, places: list[Place], isolation: Isolation
) -> tuple[dict[Place, int | None], dict[Place, int | None]]:
    """The first offsets and the ends, asked for side by side."""
    from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    level = IsolationLevel.READ_COMMITTED if isolation == "committed" else IsolationLevel.READ_UNCOMMITTED
    asked = [
        admin.client.list_offsets(
            {TopicPartition(*place): spec for place in places}, isolation_level=level, request_timeout=_PATIENCE_S
        )
        if places
        else {}
        for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
    ]
    answers: list[dict[Place, int | None]] = []
    for futures in asked:
        found: dict[Place, int | None] = dict.fromkeys(places)
        for partition, future in futures.items():
            try:
                offset = future.result(timeout=_PATIENCE_S + 1).offset
            except (KafkaException, TimeoutError):
                continue
            found[partition.topic, partition.partition] = offset if offset >= 0 else None
        answers.append(found)
    return answers[0], answers[1]


def _retention(admin: Admin, topics: list[str]) -> dict[str, tuple[int | None, int | None]]:
    """How long and how many bytes of records are kept, of topics that delete. Who may not see settings is told none."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import ConfigResource, ResourceType

    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    futures = admin.client.describe_configs(resources, request_timeout=admin.timeout_s) if resources else {}
    found: dict[str, tuple[int | None, int | None]] = {}
    for resource, future in futures.items():
        try:
            settings = future.result(timeout=admin.timeout_s + 1)
        except (KafkaException, TimeoutError):
            continue
        if "delete" in settings["cleanup.policy"].value:
            kept = (int(settings[name].value) for name in ("retention.ms", "retention.bytes"))
            kept_ms, kept_bytes = (limit if limit >= 0 else None for limit in kept)
            found[resource.name] = (kept_ms, kept_bytes)
    return found


def _sizes(admin: Admin, topics: list[str]) -> dict[str, dict[int, int | None]]:
    asked = admin.topic_sizes(topics) if topics else ()
    return {size.topic: {p.partition: p.size_bytes for p in size.partitions} for size in asked}
