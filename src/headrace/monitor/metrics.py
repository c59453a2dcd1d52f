"""A snapshot in Prometheus' text format (version 0.0.4): cluster, topics, groups, pipelines.

Names follow Prometheus' habits: base units, `_total` for what only grows. What is not known is left out, not zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from headrace.monitor.snapshot import Snapshot

PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, object]
Sample = tuple[Labels, float | int | None]


def prometheus_text(snapshot: Snapshot) -> str:
    """The page that Prometheus reads."""
    lines: list[str] = []
    for name, kind, meaning, samples in _families(snapshot):
        known = [(labels, value) for labels, value in samples if value is not None]
        if known:
            lines += [f"# HELP headrace_{name} {meaning}", f"# TYPE headrace_{name} {kind}"]
            lines += [f"headrace_{name}{_labelled(labels)} {_number(value)}" for labels, value in known]
    return "\n".join(lines) + "\n"


def _families(s: Snapshot) -> Iterator[tuple[str, str, str, Iterable[Sample]]]:
    yield "up", "gauge", "1 if a broker answers.", [({}, int(s.reachable))]
    yield "sample_seconds", "gauge", "Duration of the last poll of the cluster.", [({}, s.took_s)]
    if not s.reachable:
        return
    totals = s.totals
    yield (
        "partitions_under_replicated",
        "gauge",
        "Partitions with fewer in-sync replicas than replicas.",
        [({}, totals.under_replicated)],
    )
    yield "partitions_offline", "gauge", "Partitions without a leader.", [({}, totals.offline)]
    yield (
        "controller_epoch",
        "gauge",
        "Epoch of the metadata quorum.",
        [({}, s.quorum.leader_epoch if s.quorum else None)],
    )
    yield from _brokers(s)
    yield from _topics(s)
    yield from _groups(s)
    yield from _connectors(s)
    yield from _pipelines(s)


def _brokers(s: Snapshot) -> Iterator[tuple[str, str, str, Iterable[Sample]]]:
    brokers = [({"broker": b.broker_id}, b) for b in s.brokers]
    yield "broker_up", "gauge", "1 if the broker answers.", [(at, int(b.state == "up")) for at, b in brokers]
    yield "broker_controller", "gauge", "1 for the active controller.", [(at, int(b.controller)) for at, b in brokers]
    yield "broker_leaders", "gauge", "Partitions that the broker leads.", [(at, b.leaders) for at, b in brokers]
    yield "broker_replicas", "gauge", "Replicas on the broker.", [(at, b.replicas) for at, b in brokers]
    yield "broker_bytes", "gauge", "Bytes of all replicas on the broker.", [(at, b.size_bytes) for at, b in brokers]
    yield (
        "broker_disk_free_bytes",
        "gauge",
        "Free bytes of the broker's disk.",
        [(at, b.disk_free_bytes) for at, b in brokers],
    )


def _topics(s: Snapshot) -> Iterator[tuple[str, str, str, Iterable[Sample]]]:
    topics = [({"topic": t.name}, t) for t in s.topics.values()]
    yield "topic_partitions", "gauge", "Partitions of the topic.", [(at, len(t.partitions)) for at, t in topics]
    yield "topic_bytes", "gauge", "Bytes of one replica of the topic.", [(at, t.size_bytes) for at, t in topics]
    yield "topic_offsets", "gauge", "Offsets in use.", [(at, t.offsets) for at, t in topics]
    yield (
        "topic_end_offset_total",
        "counter",
        "Sum of the end offsets: grows by one with every record and every marker of a transaction.",
        [(at, sum(p.end or 0 for p in t.partitions)) for at, t in topics],
    )
    yield (
        "topic_partitions_under_replicated",
        "gauge",
        "Under-replicated partitions of the topic.",
        [(at, t.under_replicated) for at, t in topics if t.under_replicated],
    )


def _groups(s: Snapshot) -> Iterator[tuple[str, str, str, Iterable[Sample]]]:
    groups = [({"group": g.group}, g) for g in s.groups.values()]
    yield (
        "group_members",
        "gauge",
        "Members of the group.",
        [(at, len(g.members) if g.members is not None else None) for at, g in groups],
    )
    yield (
        "group_lag_seconds",
        "gauge",
        "Age of the oldest record that the group has not read.",
        [(at, g.lag_s) for at, g in groups],
    )
    places = [
        ({"group": g.group, "topic": o.topic, "partition": o.partition}, o)
        for g in s.groups.values()
        for o in g.offsets or ()
    ]
    yield "group_lag", "gauge", "Records that the group has not read.", [(at, o.lag) for at, o in places]
    yield (
        "group_committed_offset",
        "gauge",
        "Offset at which the group continues.",
        [(at, o.committed) for at, o in places],
    )


def _connectors(s: Snapshot) -> Iterator[tuple[str, str, str, Iterable[Sample]]]:
    connectors = [({"connector": c.name}, c) for c in s.connectors or ()]
    yield (
        "connector_running",
        "gauge",
        "1 if the connector and all its tasks run.",
        [(at, int(c.state == "RUNNING" and all(t.state == "RUNNING" for t in c.tasks))) for at, c in connectors],
    )


def _pipelines(s: Snapshot) -> Iterator[tuple[str, str, str, Iterable[Sample]]]:
    pipelines = [({"pipeline": p.name}, p) for p in s.pipelines]
    yield (
        "pipeline_running",
        "gauge",
        "1 if the pipeline runs.",
        [(at, int(p.state == "running")) for at, p in pipelines],
    )
    yield "pipeline_rate", "gauge", "Recent records per second.", [(at, p.rate_per_s) for at, p in pipelines]
    yield "pipeline_batch_seconds", "gauge", "Duration of the last batch.", [(at, p.batch_s) for at, p in pipelines]
    yield (
        "pipeline_lag_seconds",
        "gauge",
        "Age of the oldest record that the pipeline has not read.",
        [(at, p.lag_s) for at, p in pipelines],
    )
    yield "pipeline_state_bytes", "gauge", "Bytes of the state on disk.", [(at, p.state_bytes) for at, p in pipelines]
    yield (
        "pipeline_watermark_seconds",
        "gauge",
        "Event time up to which windows are closed, since 1970.",
        [(at, p.watermark_ms / 1000 if p.watermark_ms else None) for at, p in pipelines],
    )
    yield (
        "pipeline_lag",
        "gauge",
        "Records that the pipeline has not read.",
        [
            ({"pipeline": p.name, "topic": o.topic, "partition": o.partition}, o.lag)
            for p in s.pipelines
            for o in p.offsets
        ],
    )
    yield (
        "pipeline_records_total",
        "counter",
        "What became of the records that the pipeline has read.",
        [
            ({"pipeline": p.name, "outcome": outcome}, getattr(p.ledger, outcome))
            for p in s.pipelines
            if p.ledger
            for outcome in ("read", "written", "dead", "late", "filtered", "duplicate")
        ],
    )
    yield (
        "pipeline_balanced",
        "gauge",
        "1 if the pipeline's ledger balances.",
        [({"pipeline": p.name}, int(p.ledger.balanced)) for p in s.pipelines if p.ledger],
    )


def _labelled(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.12g}"
