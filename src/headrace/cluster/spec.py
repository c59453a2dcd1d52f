"""What a cluster is: its nodes, ids, roles, racks and ports, planned once and remembered in `cluster.json`.

Topology is fixed when the cluster is made (KRaft's quorum and the data on disk depend on it); Kafka properties may
change from one `up` to the next.
"""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from headrace.config import ClusterConfig
from headrace.errors import ConfigError, NotFound, SetupError, UsageError
from headrace.home import Home, read_json, write_json
from headrace.runtime import locked_version

MOST_NODES = 9
# Three voters survive the loss of one; more would only slow every metadata change down.
_COMBINED_VOTERS = 3
_FILE_FORMAT = 1


@dataclass(frozen=True)
class Node:
    """One Kafka process: a broker, a controller, or both."""

    name: str
    node_id: int
    broker: bool
    controller: bool
    rack: str | None = None
    port: int = 0
    controller_port: int = 0

    @property
    def roles(self) -> str:
        return ",".join(role for role, has in (("broker", self.broker), ("controller", self.controller)) if has)

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(port for port in (self.port, self.controller_port) if port)


@dataclass(frozen=True)
class ServiceSpec:
    """A process beside the brokers. `inner_port` is behind the address that people use; `host` is the console's.

    `files` are the folders whose files connectors may use; empty: the folder that the home is in.
    """

    name: str
    port: int
    inner_port: int = 0
    storage: str = "h2"
    plugins: str | None = None
    host: str | None = None
    files: tuple[str, ...] = ()

    @property
    def ports(self) -> tuple[int, ...]:
        return tuple(port for port in (self.port, self.inner_port) if port)


@dataclass(frozen=True)
class ClusterSpec:
    """The plan of one cluster."""

    cluster_id: str
    kafka_version: str
    nodes: tuple[Node, ...]
    kafka: Mapping[str, str]
    services: tuple[ServiceSpec, ...] = ()
    restart: str = "no"

    @property
    def brokers(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.broker)

    @property
    def voters(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.controller)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self.brokers)

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports of the nodes; those of the services are their own."""
        return tuple(port for node in self.nodes for port in node.ports)

    def node(self, name: str | int) -> Node:
        """The node meant by `2`, `broker-2` or `controller-1`."""
        wanted = str(name)
        for node in self.nodes:
            if wanted in {node.name, str(node.node_id)}:
                return node
        raise NotFound(
            f"there is no node {wanted!r} in this cluster",
            why=f"its nodes are {', '.join([n.name for n in self.nodes] + [s.name for s in self.services])}",
            hint="headrace status lists them",
        )

    def service(self, name: str) -> ServiceSpec | None:
        """The service of that name, if this cluster has it."""
        return next((service for service in self.services if service.name == name), None)

    def url(self, name: str) -> str | None:
        """The address of a service, if this cluster has it and it has one: Spark's has none."""
        found = self.service(name)
        return f"http://127.0.0.1:{found.port}" if found and found.port else None

    def with_ports(self, ports: tuple[int, ...]) -> ClusterSpec:
        """The same cluster on other ports: client ports of the brokers first, then the controllers' own."""
        left = iter(ports)
        brokers = {node.name: next(left) for node in self.brokers}
        controllers = {node.name: next(left) for node in self.voters}
        return replace(
            self,
            nodes=tuple(
                replace(n, port=brokers.get(n.name, 0), controller_port=controllers.get(n.name, 0)) for n in self.nodes
            ),
        )

    @property
    def remembered(self) -> dict[str, object]:
        """The settings that an existing cluster answers for itself, keyed like `cluster.brokers`."""
        separate = [node for node in self.nodes if not node.broker]
        racks = tuple(node.rack for node in self.brokers if node.rack)
        return {
            "cluster.brokers": len(self.brokers),
            "cluster.controllers": len(separate),
            "cluster.racks": racks,
            "cluster.node_ids": tuple(node.node_id for node in self.brokers),
            "cluster.base_port": self.brokers[0].port,
            "cluster.services": tuple(service.name for service in self.services),
            "cluster.kafka": dict(self.kafka),
            "cluster.restart": self.restart,
        }


def plan(config: ClusterConfig) -> ClusterSpec:
    """A new cluster as configured, without ports."""
    _check_counts(config)
    ids = config.node_ids or tuple(range(1, config.brokers + 1))
    voters = config.brokers if config.brokers < _COMBINED_VOTERS else _COMBINED_VOTERS
    if config.brokers == 2:
        voters = 1  # two voters stop when either is lost; one stops only when that one is
    if config.controllers:
        voters = 0
    racks = _rack_of_each(config.racks, config.brokers) or (None,) * config.brokers
    brokers = [
        Node(f"broker-{node_id}", node_id, broker=True, controller=at < voters, rack=racks[at])
        for at, node_id in enumerate(ids)
    ]
    first = max(max(ids) + 1, 1001)
    controllers = [
        Node(f"controller-{at + 1}", first + at, broker=False, controller=True) for at in range(config.controllers)
    ]
    return ClusterSpec(new_uuid(), locked_version("kafka_2.13"), (*controllers, *brokers), {})


def _rack_of_each(racks: tuple[str, ...], brokers: int) -> tuple[str, ...]:
    """The racks spread over the brokers in turn; none if there are none."""
    return tuple(racks[at % len(racks)] for at in range(brokers)) if racks else ()


def _check_counts(config: ClusterConfig) -> None:
    if not 1 <= config.brokers <= MOST_NODES:
        raise UsageError(
            f"invalid number of brokers: {config.brokers}",
            why=f"1 to {MOST_NODES} are possible on one machine",
            hint="headrace up --brokers 3",
        )
    if not 0 <= config.controllers <= MOST_NODES:
        raise UsageError(
            f"invalid number of separate controllers: {config.controllers}",
            why=f"0 (brokers are controllers too) to {MOST_NODES} are possible",
            hint="headrace up --controllers 3",
        )
    ids = config.node_ids
    if ids and len(ids) != config.brokers:
        raise UsageError(
            f"{len(ids)} node ids were given for {config.brokers} brokers",
            hint=f"headrace up --brokers {len(ids)} --node-ids {','.join(map(str, ids))}",
        )
    if len(set(ids)) != len(ids) or any(node_id < 0 or node_id > 999_999_999 for node_id in ids):
        raise UsageError("node ids must be different whole numbers from 0 upwards", why=f"given were {ids}")
    bad = [rack for rack in config.racks if not re.fullmatch(r"[\w.-]{1,60}", rack)]
    if bad:
        raise UsageError(f"invalid rack name: {bad[0]!r}", why="letters, digits, . _ - are possible")


def new_uuid() -> str:
    """An id as Kafka writes them: 22 characters, not beginning with a dash (its tools would take it for a flag)."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def save(home: Home, spec: ClusterSpec) -> None:
    document = {
        "format": _FILE_FORMAT,
        "cluster_id": spec.cluster_id,
        "kafka_version": spec.kafka_version,
        "kafka": dict(spec.kafka),
        "restart": spec.restart,
        "bootstrap": spec.bootstrap,
        "nodes": [asdict(node) for node in spec.nodes],
        "services": [asdict(service) for service in spec.services],
    }
    write_json(home.cluster_file, document)


def read(home: Home) -> ClusterSpec | None:
    """The cluster of this home, or None if it has none yet."""
    hint = "headrace down --wipe removes the cluster with its data; or restore the file"
    document = read_json(home.cluster_file, hint)
    if document is None:
        return None
    try:
        if document["format"] != _FILE_FORMAT:
            raise ValueError(f"it has format {document['format']}, this headrace reads {_FILE_FORMAT}")  # noqa: TRY301
        nodes = tuple(Node(**node) for node in document["nodes"])
        services = tuple(
            ServiceSpec(**{**service, "files": tuple(service.get("files", ()))})
            for service in document.get("services", ())
        )
        restart = document.get("restart", "no")
        return ClusterSpec(
            document["cluster_id"], document["kafka_version"], nodes, document["kafka"], services, restart
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SetupError(
            f"{home.cluster_file} is damaged or was written by another headrace",
            why=f"{type(error).__name__}: {error}",
            hint=hint,
        ) from error


def require_same_topology(spec: ClusterSpec, config: ClusterConfig, home: Home) -> None:
    """What was asked for is what the existing cluster is."""
    asked = {
        "brokers": config.brokers,
        "controllers": config.controllers,
        "racks": _rack_of_each(config.racks, config.brokers),
        "node_ids": config.node_ids,
    }
    for name, wanted in asked.items():
        has = spec.remembered[f"cluster.{name}"]
        if wanted != has:
            raise ConfigError(
                f"the cluster in {home.root} cannot be changed to {name} = {_shown(wanted)}",
                why=f"it was made with {name} = {_shown(has)}, and its data depend on that",
                hint="headrace --home OTHER up …, or remove it with its data: headrace down --wipe",
            )


def _shown(value: object) -> str:
    return (",".join(map(str, value)) or "none") if isinstance(value, tuple) else str(value)


def require_version(spec: ClusterSpec, home: Home) -> None:
    """The folder was written by the Kafka that will read it."""
    ours = locked_version("kafka_2.13")
    if spec.kafka_version != ours:
        raise SetupError(
            f"the cluster in {home.root} was written by Kafka {spec.kafka_version}, this headrace runs {ours}",
            why="Kafka's metadata can be upgraded only deliberately, and never be downgraded",
            hint="use the headrace that made it, or another --home, or remove it: headrace down --wipe",
        )
