"""headrace: a real Kafka cluster, records in and out, and Spark pipelines over it, from Python.

    file or producer ──▶ Kafka cluster ──▶ Spark pipeline ──▶ table, topic
        kafka.write          cluster           pipeline          tables
                               │
                               └──▶ consumer (kafka.read)

These names are the public API; docs/api.md describes each. They load nothing heavy until they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from headrace import samples
    from headrace.cluster import Cluster, Segment
    from headrace.connect import Connectors
    from headrace.errors import (
        AlreadyExists,
        CodecError,
        ConfigError,
        Failed,
        Fenced,
        HeadraceError,
        Incompatible,
        NodeFailed,
        NotAllowed,
        NotFound,
        SetupError,
        TimedOut,
        Unreachable,
        UsageError,
    )
    from headrace.home import Home
    from headrace.kafka import (
        Connection,
        Kafka,
        NewTopic,
        Partition,
        Quorum,
        ResetTo,
        Start,
        Topic,
        TransactionPlan,
        TransactionReport,
        Until,
        produce_in_transactions,
        transaction,
    )
    from headrace.kafka.read import ConsumeOptions, Filter, Record, Scatter, Series, consume, consume_arrow, reading
    from headrace.kafka.write import (
        InputOptions,
        Pace,
        ProduceOptions,
        ProduceReport,
        Shape,
        Shaping,
        partition_of,
        produce,
    )
    from headrace.pipeline import (
        Graph,
        GraphReport,
        Pipeline,
        RedrivePlan,
        RunObserver,
        RunReport,
        SinkWriter,
        ViewUpdate,
        Wanted,
        example,
        register_sink,
        spark_session,
    )
    from headrace.query import Result, sql
    from headrace.runtime import NotYet, eventually
    from headrace.schemas import Decoded, Registry, Schema, SchemaCodec, open_codec
    from headrace.tables import Limits, Query, read_table
else:
    from headrace.lazy import lazy_exports

    __getattr__, _ = lazy_exports(__name__, {
        "cluster": ["Cluster", "Segment"],
        "errors": ["AlreadyExists", "CodecError", "ConfigError", "Failed", "Fenced", "HeadraceError", "Incompatible",
            "NodeFailed", "NotAllowed", "NotFound", "SetupError", "TimedOut", "Unreachable", "UsageError"],
        "home": ["Home"],
        "kafka": ["Connection", "Kafka", "NewTopic", "Partition", "Quorum", "ResetTo", "Start", "Topic",
            "TransactionPlan", "TransactionReport", "Until", "produce_in_transactions", "transaction"],
        "kafka.read": ["ConsumeOptions", "Filter", "Record", "Scatter", "Series", "consume", "consume_arrow",
            "reading"],
        "kafka.write": ["InputOptions", "Pace", "ProduceOptions", "ProduceReport", "Shape", "Shaping",
            "partition_of", "produce"],
        "pipeline": ["Graph", "GraphReport", "Pipeline", "RedrivePlan", "RunObserver", "RunReport", "SinkWriter",
            "ViewUpdate", "Wanted", "example", "register_sink", "spark_session"],
        "query": ["Result", "sql"],
        "runtime": ["NotYet", "eventually"],
        "samples": [],
        "connect": ["Connectors"],
        "schemas": ["Decoded", "Registry", "Schema", "SchemaCodec", "open_codec"],
        "tables": ["Limits", "Query", "read_table"],
    })  # fmt: skip

__all__ = [
    "AlreadyExists",
    "Cluster",
    "CodecError",
    "ConfigError",
    "Connection",
    "Connectors",
    "ConsumeOptions",
    "Decoded",
    "Failed",
    "Fenced",
    "Filter",
    "Graph",
    "GraphReport",
    "HeadraceError",
    "Home",
    "Incompatible",
    "InputOptions",
    "Kafka",
    "Limits",
    "NewTopic",
    "NodeFailed",
    "NotAllowed",
    "NotFound",
    "NotYet",
    "Pace",
    "Partition",
    "Pipeline",
    "ProduceOptions",
    "ProduceReport",
    "Query",
    "Quorum",
    "Record",
    "RedrivePlan",
    "Registry",
    "ResetTo",
    "Result",
    "RunObserver",
    "RunReport",
    "Scatter",
    "Schema",
    "SchemaCodec",
    "Segment",
    "Series",
    "SetupError",
    "Shape",
    "Shaping",
    "SinkWriter",
    "Start",
    "TimedOut",
    "Topic",
    "TransactionPlan",
    "TransactionReport",
    "Unreachable",
    "Until",
    "UsageError",
    "ViewUpdate",
    "Wanted",
    "__version__",
    "consume",
    "consume_arrow",
    "eventually",
    "example",
    "open_codec",
    "partition_of",
    "produce",
    "produce_in_transactions",
    "read_table",
    "reading",
    "register_sink",
    "samples",
    "spark_session",
    "sql",
    "transaction",
]
