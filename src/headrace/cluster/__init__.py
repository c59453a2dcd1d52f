"""RUN real Kafka here: `Cluster` and its verbs (up, down, status; start, stop, restart, kill, pause, resume a node)."""

from headrace.cluster.cluster import Cluster
from headrace.cluster.status import ClusterStatus, NodeStatus

__all__ = ["Cluster", "ClusterStatus", "NodeStatus"]
