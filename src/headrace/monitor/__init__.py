"""WATCH: the state of a Kafka and of the services beside it, now and over time.

    Sampler ──▶ Snapshot ──▶ History (series, ownership) and events (what changed)
       ▲                          │
    Survey, registry,          metrics (Prometheus)
    Connect, nodes, pipelines

One sampler makes one immutable Snapshot every two seconds; pages, API and metrics show it and ask no broker.
This room changes nothing in a cluster, and nothing in it waits for a broker that does not answer.
"""

from headrace.monitor.events import Event
from headrace.monitor.history import History, Ownership, Point, points_as_json
from headrace.monitor.metrics import PROMETHEUS_TYPE, prometheus_text
from headrace.monitor.poller import Target
from headrace.monitor.sampler import Sampler
from headrace.monitor.snapshot import (
    BrokerView,
    ConnectorView,
    GroupView,
    LedgerView,
    NodeView,
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
    "Ownership",
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
