"""headrace: a real Kafka cluster, records in and out, and Spark pipelines over it, from Python.

    file or producer ──▶ Kafka cluster ──▶ Spark pipeline ──▶ table, topic
         transport          cluster           pipeline
                               │
                               └──▶ consumer (transport)

The public names are few and load nothing heavy until they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from headrace.cluster import Cluster
    from headrace.errors import HeadraceError
    from headrace.pipeline.pipeline import Pipeline
    from headrace.transport.admin import Admin
    from headrace.transport.consume import consume, consume_arrow
    from headrace.transport.produce import produce
    from headrace.transport.transactions import transaction

__all__ = [
    "Admin",
    "Cluster",
    "HeadraceError",
    "Pipeline",
    "__version__",
    "consume",
    "consume_arrow",
    "produce",
    "transaction",
]

_HOMES = {
    "Admin": "headrace.transport.admin",
    "Cluster": "headrace.cluster",
    "HeadraceError": "headrace.errors",
    "Pipeline": "headrace.pipeline.pipeline",
    "consume": "headrace.transport.consume",
    "consume_arrow": "headrace.transport.consume",
    "produce": "headrace.transport.produce",
    "transaction": "headrace.transport.transactions",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")
