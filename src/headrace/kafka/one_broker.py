"""What one broker answers, whether it leads the partition or not: past the rule that clients go to the leader."""

from __future__ import annotations

import time
from typing import Any

from headrace.errors import Unreachable
from headrace.kafka.client import HasBootstrap
from headrace.kafka.survey import Survey

_WITHIN_S = 20.0


def answers_of(where: HasBootstrap, broker: int, topic: str, partition: int) -> tuple[str, str]:
    """Kafka's names for what the broker answers to a producer (which writes one record) and to a consumer."""
    with Survey(where) as survey:
        survey.metadata()
        write = _answer(survey, ("produce", broker), _produce(topic, partition))
        read = _answer(survey, ("fetch", broker), _fetch(topic, partition))
    return _name(write.responses[0].partition_responses[0].error_code), _name(
        read.responses[0].partitions[0].error_code
    )


def _answer(survey: Survey, key: tuple[str, int], request: Any) -> Any:
    found = survey.ask({key: request}, within_s=_WITHIN_S).get(key)
    if found is None:
        raise Unreachable(f"broker {key[1]} does not answer", why=f"it was asked to {key[0]}")
    return found


def _produce(topic: str, partition: int) -> Any:
    from kafka.protocol.producer import ProduceRequest
    from kafka.record.memory_records import MemoryRecordsBuilder

    builder = MemoryRecordsBuilder(magic=2, compression_type=0, batch_size=1000)
    builder.append(int(time.time() * 1000), None, b"asked directly", [])
    builder.close()
    data = ProduceRequest.TopicProduceData
    return ProduceRequest(
        transactional_id=None, acks=-1, timeout_ms=5000,
        topic_data=[data(name=topic, partition_data=[
            data.PartitionProduceData(index=partition, records=bytes(builder.buffer()))])],
        max_version=12,  # later ones name topics by their ids
    )  # fmt: skip


def _fetch(topic: str, partition: int) -> Any:
    from kafka.protocol.consumer import FetchRequest

    topics = FetchRequest.FetchTopic
    return FetchRequest(
        replica_id=-1, max_wait_ms=5, min_bytes=0, max_bytes=100_000, isolation_level=0, session_id=0,
        session_epoch=-1, forgotten_topics_data=[],
        topics=[topics(topic=topic, partitions=[topics.FetchPartition(
            partition=partition, current_leader_epoch=-1, fetch_offset=0, log_start_offset=-1,
            partition_max_bytes=100_000)])],
        # From version 11 on a consumer names its rack, and a follower may answer (KIP-392).
        max_version=10,
    )  # fmt: skip


def _name(code: int) -> str:
    from kafka.errors import for_code

    return {0: "NONE", 6: "NOT_LEADER_OR_FOLLOWER"}.get(code) or str(for_code(code).__name__)
