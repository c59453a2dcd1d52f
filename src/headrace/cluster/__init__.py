"""RUN real Kafka here: `Cluster` and its verbs (up, down, status; start, stop, restart, kill, pause, resume a node).

The names load when they are used: the small processes of this room (`front`, `watcher`) need none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.cluster.cluster import Cluster
    from headrace.cluster.status import ClusterStatus, NodeStatus

__all__ = ["Cluster", "ClusterStatus", "NodeStatus"]

_MODULES = {"Cluster": "cluster", "ClusterStatus": "status", "NodeStatus": "status"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f"headrace.cluster.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'headrace.cluster' has no attribute {name!r}")
