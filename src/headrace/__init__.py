"""headrace: a real Kafka cluster, records in and out, and Spark pipelines over it, from Python.

    file or producer ──▶ Kafka cluster ──▶ Spark pipeline ──▶ table, topic
         transport          cluster           pipeline
                               │
                               └──▶ consumer (transport)

These names are the public API; docs/api.md describes each. They load nothing heavy until they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from headrace.cluster import Cluster
    from headrace.errors import (
        AlreadyExists,
        CodecError,
        ConfigError,
        Failed,
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
    from headrace.pipeline.pipeline import Pipeline, RunReport
    from headrace.pipeline.tables import Query, read_table
    from headrace.transport.admin import Admin
    from headrace.transport.client import Connection
    from headrace.transport.codec import open_codec
    from headrace.transport.connectors import Connectors
    from headrace.transport.consume import consume, consume_arrow
    from headrace.transport.groups import Groups, ResetTo
    from headrace.transport.inputs import InputOptions
    from headrace.transport.offsets import Start, Until
    from headrace.transport.pace import Pace
    from headrace.transport.partitioner import partition_of
    from headrace.transport.plot import Scatter, Series
    from headrace.transport.produce import ProduceOptions, ProduceReport, produce
    from headrace.transport.reading import ConsumeOptions
    from headrace.transport.records import Filter, Record
    from headrace.transport.schemas import Registry, Schema
    from headrace.transport.shaping import Shaping
    from headrace.transport.topics import NewTopic
    from headrace.transport.transactions import transaction
else:
    from headrace.lazy import lazy_exports

    __getattr__ = lazy_exports(__name__, {
        "cluster": ["Cluster"],
        "errors": ["AlreadyExists", "CodecError", "ConfigError", "Failed", "HeadraceError", "Incompatible",
            "NodeFailed", "NotAllowed", "NotFound", "SetupError", "TimedOut", "Unreachable", "UsageError"],
        "pipeline.pipeline": ["Pipeline", "RunReport"],
        "pipeline.tables": ["Query", "read_table"],
        "transport.admin": ["Admin"],
        "transport.client": ["Connection"],
        "transport.codec": ["open_codec"],
        "transport.connectors": ["Connectors"],
        "transport.consume": ["consume", "consume_arrow"],
        "transport.groups": ["Groups", "ResetTo"],
        "transport.inputs": ["InputOptions"],
        "transport.offsets": ["Start", "Until"],
        "transport.pace": ["Pace"],
        "transport.partitioner": ["partition_of"],
        "transport.plot": ["Scatter", "Series"],
        "transport.produce": ["ProduceOptions", "ProduceReport", "produce"],
        "transport.reading": ["ConsumeOptions"],
        "transport.records": ["Filter", "Record"],
        "transport.schemas": ["Registry", "Schema"],
        "transport.shaping": ["Shaping"],
        "transport.topics": ["NewTopic"],
        "transport.transactions": ["transaction"],
    })  # fmt: skip

__all__ = [
    "Admin",
    "AlreadyExists",
    "Cluster",
    "CodecError",
    "ConfigError",
    "Connection",
    "Connectors",
    "ConsumeOptions",
    "Failed",
    "Filter",
    "Groups",
    "HeadraceError",
    "Incompatible",
    "InputOptions",
    "NewTopic",
    "NodeFailed",
    "NotAllowed",
    "NotFound",
    "Pace",
    "Pipeline",
    "ProduceOptions",
    "ProduceReport",
    "Query",
    "Record",
    "Registry",
    "ResetTo",
    "RunReport",
    "Scatter",
    "Schema",
    "Series",
    "SetupError",
    "Shaping",
    "Start",
    "TimedOut",
    "Unreachable",
    "Until",
    "UsageError",
    "__version__",
    "consume",
    "consume_arrow",
    "open_codec",
    "partition_of",
    "produce",
    "read_table",
    "transaction",
]
