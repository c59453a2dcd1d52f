"""WATCH: what a Kafka and all that stands beside it is like, now and over time.

    Sampler ──▶ Snapshot ──▶ History (series, ownership) and events (what changed)
       ▲                          │
    Survey, registry,          metrics (Prometheus)
    Connect, nodes, pipelines

One sampler makes one immutable Snapshot every other second; whoever shows something shows the Snapshot and asks nobody.
This room changes nothing in a cluster, and nothing in it waits for a broker that does not answer.
"""

from headrace.monitor.events import Event
from headrace.monitor.history import History, Ownership, Point, points_as_json
from headrace.monitor.look import Target
from headrace.monitor.metrics import PROMETHEUS_TYPE, prometheus_text
from headrace.monitor.sampler import Sampler
from headrace.monitor.snapshot import (
    BrokerView,
    ConnectorView,
    GroupView,
    LedgerView,
    NodeView,
    OffsetView,
    PartitionView,
    PipelineOffsetView,
    PipelineView,
    Snapshot,
    SubjectView,
    TopicView,
)

__all__ = [
    "PROMETHEUS_TYPE",
    "BrokerView",
    "ConnectorView",
    "Event",
    "GroupView",
    "History",
    "LedgerView",
    "NodeView",
    "OffsetView",
    "Ownership",
    "PartitionView",
    "PipelineOffsetView",
    "PipelineView",
    "Point",
    "Sampler",
    "Snapshot",
    "SubjectView",
    "Target",
    "TopicView",
    "points_as_json",
    "prometheus_text",
]
