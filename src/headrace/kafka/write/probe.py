"""Prove that a topic takes writes: one record to each partition, acknowledged by all in-sync replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import Failed
from headrace.kafka.client import HasBootstrap, connect

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

    from headrace.kafka.client import Message


def load_client() -> None:
    """Kafka's client library is in memory: it can be loaded while something else is waited for."""
    import confluent_kafka.admin  # noqa: F401


def write_to_all(where: HasBootstrap | str, topic: str, partitions: int, *, within_s: float) -> None:
    """Every partition has taken a record with acks=all; else the error names those that did not and why."""
    reasons = dict.fromkeys(range(partitions), "no answer in time")

    def delivered(error: KafkaError | None, record: Message) -> None:
        if error is None:
            reasons.pop(record.partition(), None)
        else:
            reasons[record.partition()] = error.str()

    # No idempotence: a probe may be written twice, and a producer id costs a round trip more.
    producer = connect(where).producer(
        {
            "acks": "all",
            "enable.idempotence": False,
            "linger.ms": 0,
            "message.timeout.ms": int(within_s * 1000),
        }
    )
    for partition in range(partitions):
        producer.produce(topic, b"probe", partition=partition, on_delivery=delivered)
    producer.flush(within_s + 1)
    if reasons:
        partition, reason = next(iter(reasons.items()))
        raise Failed(
            f"{len(reasons)} of {partitions} partitions of {topic} accepted no write",
            why=f"{partition}: {reason}",
        )
