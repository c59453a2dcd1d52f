"""SPEAK to any Kafka: an address is enough, so everything here works with clusters that headrace does not run.

This door has the connection, the model of what a Kafka holds, and how it is asked and changed. Records go through
`kafka.write`, `kafka.read` and `kafka.browse`. The names load when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.kafka.batches import (
        CODECS,
        HEADER_BYTES,
        BatchHeader,
        StoredRecord,
        batch_at,
        checksum_holds,
        records_in,
    )
    from headrace.kafka.bounds import Isolation, Start, Until
    from headrace.kafka.client import PROBE_TOPIC, Connection, HasBootstrap, connect, read_properties
    from headrace.kafka.groups import PlannedOffset, ResetTo
    from headrace.kafka.kafka import Kafka
    from headrace.kafka.model import (
        Broker,
        Cleaned,
        ConfigValue,
        Disk,
        Elected,
        Group,
        Member,
        NewTopic,
        Offset,
        Partition,
        Quorum,
        Topic,
        TopicPartition,
        is_topic_name,
        known_total,
        whole_topics,
    )
    from headrace.kafka.survey import Metadata, Survey
    from headrace.kafka.transactions import (
        TransactionPlan,
        TransactionReport,
        TransactionResult,
        produce_in_transactions,
        transaction,
    )
else:
    from headrace.lazy import lazy_exports

    __getattr__, __all__ = lazy_exports(__name__, {
        "batches": ["CODECS", "HEADER_BYTES", "BatchHeader", "StoredRecord", "batch_at", "checksum_holds",
            "records_in"],
        "bounds": ["Isolation", "Start", "Until"],
        "client": ["PROBE_TOPIC", "Connection", "HasBootstrap", "connect", "read_properties"],
        "groups": ["PlannedOffset", "ResetTo"],
        "kafka": ["Kafka"],
        "model": ["Broker", "Cleaned", "ConfigValue", "Disk", "Elected", "Group", "Member", "NewTopic",
            "Offset", "Partition", "Quorum", "Topic", "TopicPartition", "is_topic_name", "known_total",
            "whole_topics"],
        "survey": ["Metadata", "Survey"],
        "transactions": ["TransactionPlan", "TransactionReport", "TransactionResult",
            "produce_in_transactions", "transaction"],
    })  # fmt: skip
