"""headrace: a real Kafka cluster, records in and out, and Spark pipelines over it, from Python.

    file or producer ──▶ Kafka cluster ──▶ Spark pipeline ──▶ table, topic
         transport          cluster           pipeline
                               │
                               └──▶ consumer (transport)

These names are the public API; docs/api.md describes each. They load nothing heavy until they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

_MODULES = {
    "Cluster": "headrace.cluster",
    "AlreadyExists": "headrace.errors",
    "CodecError": "headrace.errors",
    "ConfigError": "headrace.errors",
    "Failed": "headrace.errors",
    "HeadraceError": "headrace.errors",
    "Incompatible": "headrace.errors",
    "NodeFailed": "headrace.errors",
    "NotAllowed": "headrace.errors",
    "NotFound": "headrace.errors",
    "SetupError": "headrace.errors",
    "TimedOut": "headrace.errors",
    "Unreachable": "headrace.errors",
    "UsageError": "headrace.errors",
    "Pipeline": "headrace.pipeline.pipeline",
    "RunReport": "headrace.pipeline.pipeline",
    "Query": "headrace.pipeline.tables",
    "read_table": "headrace.pipeline.tables",
    "Admin": "headrace.transport.admin",
    "Connection": "headrace.transport.client",
    "open_codec": "headrace.transport.codec",
    "Connectors": "headrace.transport.connectors",
    "consume": "headrace.transport.consume",
    "consume_arrow": "headrace.transport.consume",
    "Groups": "headrace.transport.groups",
    "ResetTo": "headrace.transport.groups",
    "InputOptions": "headrace.transport.inputs",
    "Start": "headrace.transport.offsets",
    "Until": "headrace.transport.offsets",
    "Pace": "headrace.transport.pace",
    "partition_of": "headrace.transport.partitioner",
    "Scatter": "headrace.transport.plot",
    "Series": "headrace.transport.plot",
    "ProduceOptions": "headrace.transport.produce",
    "ProduceReport": "headrace.transport.produce",
    "produce": "headrace.transport.produce",
    "ConsumeOptions": "headrace.transport.reading",
    "Filter": "headrace.transport.records",
    "Record": "headrace.transport.records",
    "Registry": "headrace.transport.schemas",
    "Schema": "headrace.transport.schemas",
    "Shaping": "headrace.transport.shaping",
    "NewTopic": "headrace.transport.topics",
    "transaction": "headrace.transport.transactions",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")
