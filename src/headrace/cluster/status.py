"""What a cluster is like right now: its processes as the system sees them, its partitions as Kafka sees them.

The first half never fails and needs no Kafka; the second is asked only of nodes that run, with a short time limit, so
that a paused or dying broker cannot hold up the answer. A Kafka that runs elsewhere has the second half alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from headrace.cluster import watcher
from headrace.cluster.broker import Broker
from headrace.cluster.node import NodeProcess
from headrace.cluster.services import Connect, Service
from headrace.cluster.spec import ClusterSpec
from headrace.connect import Connectors, ConnectorStatus
from headrace.errors import HeadraceError
from headrace.home import Home, size_bytes
from headrace.kafka import Broker as KafkaBroker
from headrace.kafka import Connection, Kafka, Quorum
from headrace.runtime import ProcessState, Supervised, memory_bytes


@dataclass(frozen=True)
class NodeStatus:
    """One node, as the operating system sees it; of a Kafka elsewhere, as its controller sees it."""

    name: str
    node_id: int | None
    roles: str
    state: ProcessState | Literal["fenced"]
    pid: int | None
    port: int | None
    controller_port: int | None
    rack: str | None
    uptime_s: float | None
    memory_bytes: int | None
    log_dir_bytes: int | None
    host: str = "127.0.0.1"
    #: Why it is dead, if it is.
    reason: str | None = None


@dataclass(frozen=True)
class ClusterStatus:
    """The whole cluster. What Kafka would tell is None while no broker answers."""

    state: Literal["up", "degraded", "down", "absent"]
    home: str | None
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
    #: None: there is no Connect worker here, or it does not answer.
    connectors: tuple[ConnectorStatus, ...] | None = None
    watcher: ProcessState = "stopped"
    restart: str = "no"

    def to_json(self) -> dict[str, object]:
        """Every address by name, then the rest."""
        addresses = {name: getattr(self, name) for name in ("bootstrap", "registry", "connect", "console")}
        return {
            **addresses,
            **{name: value for name, value in msgspec.to_builtins(self).items() if name not in addresses},
        }


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
        "watcher": Supervised(home.node(watcher.FOLDER)).state,
        "restart": spec.restart,
    }
    running = [b for b in brokers if b.node.broker and b.process.state == "running"]
    if not running:
        return ClusterStatus("down" if all(n.state in {"stopped", "dead"} for n in nodes) else "degraded", **known)
    addresses = ",".join(f"127.0.0.1:{b.node.port}" for b in running)
    try:
        with Kafka(addresses, timeout_s=3) as kafka:
            known |= _topics_of(kafka) | _quorum_of(kafka) | {"connectors": _connectors_of(services, kafka)}
    except HeadraceError as error:
        return ClusterStatus("degraded", **known, problem=error.why or error.problem)
    whole = all(node.state == "running" for node in nodes) and not known["under_replicated"] + known["offline"]
    return ClusterStatus("up" if whole else "degraded", **known)


def node_states(
    brokers: Sequence[Broker], services: Sequence[Service], *, sizes: bool = False
) -> tuple[NodeStatus, ...]:
    """The processes alone, without a word to Kafka; memory and disk only with `sizes`, because they take time."""
    return (*(_node(broker, sizes) for broker in brokers), *(_service(service, sizes) for service in services))


def _node(broker: Broker, sizes: bool) -> NodeStatus:
    node = broker.node
    return NodeStatus(
        name=node.name,
        node_id=node.node_id,
        roles=node.roles,
        port=node.port or None,
        controller_port=node.controller_port or None,
        rack=node.rack,
        log_dir_bytes=size_bytes(broker.data) if sizes else 0,
        **_process(broker, sizes),
    )


def _service(service: Service, sizes: bool) -> NodeStatus:
    return NodeStatus(
        name=service.name,
        node_id=None,
        roles=service.roles,
        port=service.service.port or None,
        controller_port=None,
        rack=None,
        log_dir_bytes=service.data_bytes if sizes else 0,
        **_process(service, sizes),
    )


def _process(node: NodeProcess, sizes: bool) -> dict[str, Any]:
    process = node.process.find()
    return {
        "state": node.process.state,
        "pid": process.pid if process else None,
        "uptime_s": node.process.uptime_s,
        "memory_bytes": memory_bytes(process) if process and sizes else None,
        "reason": _reason(node),
    }


def _reason(node: NodeProcess) -> str | None:
    """Why the node is dead, and whether it is started again; None if it is not dead."""
    death = node.death()
    lately = watcher.restarts_of(node.home).get(node.name) if death else None
    if not lately:
        return death
    outcome = "it stays dead" if lately["given_up"] else "it is being restarted"
    return f"{death}; failed {lately['failures']} times lately: {outcome}"


def foreign_status(connection: Connection) -> ClusterStatus:
    """A Kafka that headrace did not start; `Unreachable` if no broker answers."""
    with Kafka(connection) as kafka:
        brokers, known = kafka.brokers(), _topics_of(kafka)
        try:
            known |= _quorum_of(kafka)
        except HeadraceError as error:  # a Kafka before KRaft, or one that does not let us ask
            known["problem"] = f"the quorum is unknown: {error.why or error.problem}"
        known["cluster_id"] = kafka.cluster_id()
    voters = {voter.node_id for voter in known["quorum"].voters if voter.voter} if "quorum" in known else set()
    whole = not any(broker.fenced for broker in brokers) and not known["under_replicated"] + known["offline"]
    nodes = tuple(_foreign_node(broker, broker.broker_id in voters) for broker in brokers)
    return ClusterStatus("up" if whole else "degraded", None, connection.bootstrap, nodes, **known)


def _foreign_node(broker: KafkaBroker, votes: bool) -> NodeStatus:
    return NodeStatus(
        name=f"broker-{broker.broker_id}",
        node_id=broker.broker_id,
        roles="broker,controller" if votes else "broker",
        state="fenced" if broker.fenced else "running",
        pid=None,
        port=broker.port,
        controller_port=None,
        rack=broker.rack,
        uptime_s=None,
        memory_bytes=None,
        log_dir_bytes=None,
        host=broker.host,
    )


def _connectors_of(services: Sequence[Service], kafka: Kafka) -> tuple[ConnectorStatus, ...] | None:
    def topics() -> set[str]:
        return {topic.name for topic in kafka.topics(internal=True)}

    for service in services:
        if isinstance(service, Connect) and service.process.state == "running":
            try:
                worker = Connectors(service.url, token=service.token, topics=topics, timeout_s=3, retry_s=0)
                return tuple(found for found, _ in worker.everything())
            except HeadraceError:
                return None
    return None


def _topics_of(kafka: Kafka) -> dict[str, Any]:
    topics = kafka.topics(internal=True)
    return {
        "topics": sum(not topic.internal for topic in topics),
        "partitions": sum(len(topic.partitions) for topic in topics if not topic.internal),
        "under_replicated": sum(topic.under_replicated for topic in topics),
        "offline": sum(topic.offline for topic in topics),
    }


def _quorum_of(kafka: Kafka) -> dict[str, Any]:
    quorum = kafka.quorum()
    return {"controller": quorum.leader_id, "quorum": quorum}
