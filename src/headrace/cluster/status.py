"""What a cluster is like right now: its processes as the system sees them, its partitions as Kafka sees them.

The first half never fails and needs no Kafka; the second is asked only of nodes that run, with a short time limit, so
that a paused or dying broker cannot hold up the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from headrace.cluster.broker import Broker
from headrace.cluster.services import Service
from headrace.cluster.spec import ClusterSpec
from headrace.errors import HeadraceError
from headrace.home import Home, size_bytes
from headrace.runtime.process import State, memory_bytes
from headrace.transport.admin import Admin, Quorum, Topic
from headrace.transport.client import Connection


@dataclass(frozen=True)
class NodeStatus:
    """One node, as the operating system sees it."""

    name: str
    node_id: int | None
    roles: str
    state: State
    pid: int | None
    port: int | None
    controller_port: int | None
    rack: str | None
    uptime_s: float | None
    memory_bytes: int | None
    log_dir_bytes: int


@dataclass(frozen=True)
class ClusterStatus:
    """The whole cluster. What Kafka would tell is None while no broker answers."""

    state: Literal["up", "degraded", "down", "absent"]
    home: str
    bootstrap: str | None
    nodes: tuple[NodeStatus, ...] = ()
    cluster_id: str | None = None
    kafka_version: str | None = None
    controller: int | None = None
    quorum: Quorum | None = None
    topics: int | None = None
    partitions: int | None = None
    under_replicated: int | None = None
    offline: int | None = None
    problem: str | None = None
    registry: str | None = None
    connect: str | None = None
    console: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Every address by name, then the rest."""
        addresses = {name: getattr(self, name) for name in ("bootstrap", "registry", "connect", "console")}
        return {**addresses, **{name: value for name, value in asdict(self).items() if name not in addresses}}


def absent(home: Home) -> ClusterStatus:
    return ClusterStatus("absent", str(home.root), None)


def look(home: Home, spec: ClusterSpec, brokers: Sequence[Broker], services: Sequence[Service]) -> ClusterStatus:
    """The status as of now."""
    nodes = node_states(brokers, services, sizes=True)
    known: dict[str, Any] = {
        "home": str(home.root),
        "bootstrap": spec.bootstrap,
        "nodes": nodes,
        "cluster_id": spec.cluster_id,
        "kafka_version": spec.kafka_version,
        "registry": spec.url("registry"),
        "connect": spec.url("connect"),
        "console": spec.url("console"),
    }
    running = [b for b in brokers if b.node.broker and b.process.state == "running"]
    if not running:
        return ClusterStatus("down" if all(n.state in {"stopped", "dead"} for n in nodes) else "degraded", **known)
    admin = Admin(Connection(",".join(f"127.0.0.1:{b.node.port}" for b in running)), timeout_s=3)
    try:
        known.update(_from_kafka(admin))
    except HeadraceError as error:
        return ClusterStatus("degraded", **known, problem=error.why or error.problem)
    finally:
        admin.close()
    whole = all(node.state == "running" for node in nodes) and not known["under_replicated"] + known["offline"]
    return ClusterStatus("up" if whole else "degraded", **known)


def node_states(
    brokers: Sequence[Broker], services: Sequence[Service], *, sizes: bool = False
) -> tuple[NodeStatus, ...]:
    """The processes alone, without a word to Kafka; memory and disk only with `sizes`, because they take time."""
    return (*(_node(broker, sizes) for broker in brokers), *(_service(service, sizes) for service in services))


def _node(broker: Broker, sizes: bool) -> NodeStatus:
    node, process = broker.node, broker.process.find()
    return NodeStatus(
        name=node.name,
        node_id=node.node_id,
        roles=node.roles,
        state=broker.process.state,
        pid=process.pid if process else None,
        port=node.port or None,
        controller_port=node.controller_port or None,
        rack=node.rack,
        uptime_s=broker.process.uptime_s,
        memory_bytes=memory_bytes(process) if process and sizes else None,
        log_dir_bytes=size_bytes(broker.data) if sizes else 0,
    )


def _service(service: Service, sizes: bool) -> NodeStatus:
    process = service.process.find()
    return NodeStatus(
        name=service.name,
        node_id=None,
        roles=service.roles,
        state=service.process.state,
        pid=process.pid if process else None,
        port=service.service.port,
        controller_port=None,
        rack=None,
        uptime_s=service.process.uptime_s,
        memory_bytes=memory_bytes(process) if process and sizes else None,
        log_dir_bytes=service.data_bytes if sizes else 0,
    )


def _from_kafka(admin: Admin) -> dict[str, Any]:
    topics: tuple[Topic, ...] = admin.topics(internal=True)
    partitions = [partition for topic in topics for partition in topic.partitions]
    quorum = admin.quorum()
    return {
        "controller": quorum.leader_id,
        "quorum": quorum,
        "topics": sum(not topic.internal for topic in topics),
        "partitions": sum(len(topic.partitions) for topic in topics if not topic.internal),
        "under_replicated": sum(partition.under_replicated for partition in partitions),
        "offline": sum(partition.leader < 0 for partition in partitions),
    }
