"""A snapshot in Prometheus' text format (version 0.0.4): cluster, topics, groups, pipelines.

Names follow Prometheus' habits: base units, `_total` for what only grows. What is not known is left out, not zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from headrace.monitor.snapshot import Snapshot

PROMETHEUS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, object]
Sample = tuple[Labels, float | int | None]
#: The name of a metric, its meaning, and its value for one of the things that have it.
Metric = tuple[str, str, Callable[[Any], float | int | None]]

_CLUSTER: Sequence[Metric] = (
    ("up", "1 if a broker answers.", lambda s: int(s.reachable)),
    ("sample_seconds", "Duration of the last poll of the cluster.", lambda s: s.took_s),
)
_REACHABLE: Sequence[Metric] = (
    ("partitions_under_replicated", "Partitions with fewer in-sync replicas than replicas.",
     lambda s: s.totals.under_replicated),
    ("partitions_offline", "Partitions without a leader.", lambda s: s.totals.offline),
    ("controller_epoch", "Epoch of the metadata quorum.", lambda s: s.quorum.leader_epoch if s.quorum else None),
)  # fmt: skip
_BROKERS: Sequence[Metric] = (
    ("broker_up", "1 if the broker answers.", lambda b: int(b.state == "up")),
    ("broker_controller", "1 for the active controller.", lambda b: int(b.controller)),
    ("broker_leaders", "Partitions that the broker leads.", lambda b: b.leaders),
    ("broker_replicas", "Replicas on the broker.", lambda b: b.replicas),
    ("broker_bytes", "Bytes of all replicas on the broker.", lambda b: b.size_bytes),
    ("broker_disk_free_bytes", "Free bytes of the broker's disk.", lambda b: b.disk_free_bytes),
)
_TOPICS: Sequence[Metric] = (
    ("topic_partitions", "Partitions of the topic.", lambda t: len(t.partitions)),
    ("topic_bytes", "Bytes of one replica of the topic.", lambda t: t.size_bytes),
    ("topic_offsets", "Offsets in use.", lambda t: t.offsets),
    ("topic_end_offset_total",
     "Sum of the end offsets: grows by one with every record and every marker of a transaction.",
     lambda t: sum(p.end or 0 for p in t.partitions)),
    ("topic_partitions_under_replicated", "Under-replicated partitions of the topic.",
     lambda t: t.under_replicated or None),
)  # fmt: skip
_GROUPS: Sequence[Metric] = (
    ("group_members", "Members of the group.", lambda g: None if g.members is None else len(g.members)),
    ("group_lag_seconds", "Age of the oldest record that the group has not read.", lambda g: g.lag_s),
)
_GROUP_OFFSETS: Sequence[Metric] = (
    ("group_lag", "Records that the group has not read.", lambda o: o.lag),
    ("group_committed_offset", "Offset at which the group continues.", lambda o: o.committed),
)
_CONNECTORS: Sequence[Metric] = (
    ("connector_running", "1 if the connector and all its tasks run.",
     lambda c: int(c.state == "RUNNING" and all(t.state == "RUNNING" for t in c.tasks))),
)  # fmt: skip
_PIPELINES: Sequence[Metric] = (
    ("pipeline_running", "1 if the pipeline runs.", lambda p: int(p.state == "running")),
    ("pipeline_rate", "Recent records per second.", lambda p: p.rate_per_s),
    ("pipeline_batch_seconds", "Duration of the last batch.", lambda p: p.batch_s),
    ("pipeline_lag_seconds", "Age of the oldest record that the pipeline has not read.", lambda p: p.lag_s),
    ("pipeline_state_bytes", "Bytes of the state on disk.", lambda p: p.state_bytes),
    ("pipeline_watermark_seconds", "Event time up to which windows are closed, since 1970.",
     lambda p: p.watermark_ms / 1000 if p.watermark_ms else None),
)  # fmt: skip
_PIPELINE_OFFSETS: Sequence[Metric] = (("pipeline_lag", "Records that the pipeline has not read.", lambda o: o.lag),)
_PIPELINE_RECORDS: Sequence[Metric] = (
    ("pipeline_records_total", "What became of the records that the pipeline has read.", lambda count: count),
)
_LEDGERS: Sequence[Metric] = (
    ("pipeline_balanced", "1 if the pipeline's ledger balances.", lambda ledger: int(ledger.balanced)),
)
_OUTCOMES = ("read", "written", "dead", "late", "filtered", "duplicate")


def prometheus_text(snapshot: Snapshot) -> str:
    """The page that Prometheus reads."""
    lines: list[str] = []
    for metrics, things in _families(snapshot):
        for name, meaning, value_of in metrics:
            values = [(labels, value_of(thing)) for labels, thing in things]
            known = [(labels, value) for labels, value in values if value is not None]
            if known:
                kind = "counter" if name.endswith("_total") else "gauge"
                lines += [f"# HELP headrace_{name} {meaning}", f"# TYPE headrace_{name} {kind}"]
                lines += [f"headrace_{name}{_labelled(labels)} {_number(value)}" for labels, value in known]
    return "\n".join(lines) + "\n"


def _families(s: Snapshot) -> Iterator[tuple[Sequence[Metric], list[tuple[Labels, object]]]]:
    """The metrics, and the things that have them, with their labels."""
    yield _CLUSTER, [({}, s)]
    if not s.reachable:
        return
    ledgers = [(p.name, p.ledger) for p in s.pipelines if p.ledger]
    yield _REACHABLE, [({}, s)]
    yield _BROKERS, [({"broker": b.broker_id}, b) for b in s.brokers]
    yield _TOPICS, [({"topic": t.name}, t) for t in s.topics.values()]
    yield _GROUPS, [({"group": g.group}, g) for g in s.groups.values()]
    yield _GROUP_OFFSETS, _offsets("group", ((g.group, g.offsets or ()) for g in s.groups.values()))
    yield _CONNECTORS, [({"connector": c.name}, c) for c in s.connectors or ()]
    yield _PIPELINES, [({"pipeline": p.name}, p) for p in s.pipelines]
    yield _PIPELINE_OFFSETS, _offsets("pipeline", ((p.name, p.offsets) for p in s.pipelines))
    yield (
        _PIPELINE_RECORDS,
        [({"pipeline": name, "outcome": o}, getattr(ledger, o)) for name, ledger in ledgers for o in _OUTCOMES],
    )
    yield _LEDGERS, [({"pipeline": name}, ledger) for name, ledger in ledgers]


def _offsets(kind: str, readers: Iterable[tuple[str, Iterable[Any]]]) -> list[tuple[Labels, object]]:
    return [({kind: name, "topic": o.topic, "partition": o.partition}, o) for name, offsets in readers for o in offsets]


def _labelled(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.12g}"
