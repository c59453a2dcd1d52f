"""`Cluster`: the life of one local Kafka cluster.

    with Cluster("demo", brokers=3) as cluster:      # everything of it lives in the folder "demo"
        print(cluster.bootstrap)

`up` and `down` can be repeated: they bring about a state, whatever the state was. A verb that changes the cluster holds
the home's lock; a verb that only looks takes none. Nothing that headrace did not start is ever touched.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from headrace.cluster import kafka_tools, nodes, planning, ports, status, watcher
from headrace.cluster import spec as plans
from headrace.cluster.broker import TIMERS, Broker
from headrace.cluster.convergence import converge, end_changed_services
from headrace.cluster.launch import Launch
from headrace.cluster.segments import Segment, partitions_in, segments_in
from headrace.cluster.services import CONNECTORS, Connect, Console, Service
from headrace.cluster.spec import ClusterSpec
from headrace.cluster.status import NodeStatus
from headrace.config import Config, load
from headrace.connect import Connectors
from headrace.errors import HeadraceError, NodeFailed, NotFound, TimedOut, Unreachable, UsageError
from headrace.home import Home, size_bytes
from headrace.kafka import Kafka
from headrace.progress import SILENT, Progress
from headrace.runtime import Supervised

# When all go down at once the last ones lose their quorum and would wait for it in vain.
_DOWN_TIMEOUT_S = 4.0
_SERVICE_TIMEOUT_S = 10.0


class Cluster:
    """A local Kafka cluster in one folder."""

    def __init__(
        self,
        home: Path | str | None = None,
        *,
        brokers: int | None = None,
        controllers: int | None = None,
        racks: Sequence[str] | None = None,
        node_ids: Sequence[int] | None = None,
        base_port: int | None = None,
        kafka: Mapping[str, object] | None = None,
        services: Sequence[str] | None = None,
        plugins: Path | None = None,
        connect_files: Sequence[Path | str] | None = None,
        restart: str | None = None,
        progress: Progress = SILENT,
    ) -> None:
        self.home = Home.find(home)
        self.progress = progress
        self._flags: dict[str, Any] = {
            "cluster.brokers": brokers if brokers is not None or not node_ids else len(node_ids),
            "cluster.controllers": controllers,
            "cluster.racks": tuple(racks) if racks else None,
            "cluster.node_ids": tuple(node_ids) if node_ids else None,
            "cluster.base_port": base_port,
            "cluster.kafka": dict(kafka) if kafka else None,
            "cluster.services": tuple(services) if services else None,
            "cluster.plugins": plugins,
            "cluster.connect_files": tuple(connect_files) if connect_files else None,
            "cluster.restart": restart,
        }

    def __enter__(self) -> Cluster:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def __repr__(self) -> str:
        return f"Cluster({str(self.home.root)!r})"

    # -- what it is ---------------------------------------------------------------------------------------------

    @property
    def spec(self) -> ClusterSpec:
        """The plan of the cluster in this home."""
        found = plans.read(self.home)
        if found is None:
            raise Unreachable(
                f"there is no cluster in {self.home.root}",
                why="none was created there yet, or it was wiped",
                hint="headrace up creates and starts one; --home names another folder",
            )
        return found

    @property
    def bootstrap(self) -> str:
        """The address for clients: `127.0.0.1:9092,…`."""
        return self.spec.bootstrap

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of all nodes, services too."""
        spec = self.spec
        return (*(node.name for node in spec.nodes), *(service.name for service in spec.services))

    @property
    def registry(self) -> str:
        """The address of the schema registry: `http://127.0.0.1:8081`."""
        return self._url("registry")

    @property
    def connect(self) -> str:
        """The address of the Connect worker's REST API."""
        return self._url("connect")

    @property
    def connect_token(self) -> str:
        """What a client of Connect sends: `Authorization: Bearer TOKEN`."""
        found = self._node("connect") if self._url("connect") else None
        if not isinstance(found, Connect):
            raise UsageError("the Connect worker is not one")  # a damaged plan
        return found.token

    @property
    def connectors(self) -> Connectors:
        """The connectors of the Connect worker."""
        return Connectors(self.connect, token=self.connect_token, topics=self._topic_names)

    def _topic_names(self) -> set[str]:
        with Kafka(self.bootstrap, timeout_s=5) as admin:
            return {topic.name for topic in admin.topics(internal=True)}

    @property
    def console(self) -> str:
        """The address of the console; `open_console` gives the one that lets in."""
        return self._url("console")

    def open_console(self) -> str:
        """The console runs, also beside brokers that do not, and this address lets its reader in."""
        spec = self.spec
        with self.home.lock("console"):
            if not spec.service("console"):
                config = self.config
                wanted = replace(config.cluster, services=(*(s.name for s in spec.services), "console"))
                planning.with_services(self.home, spec, Launch(replace(config, cluster=wanted), self.progress))
            found = self._node("console")
            if not isinstance(found, Console):
                raise UsageError("the console is not a console")  # a damaged plan
            if not found.process.find():
                nodes.start_service(found, self._launch())
        return found.entrance

    def install_connector(self, name: str) -> bool:
        """The Connect worker has the connector plug-in. True if it runs and was restarted for that."""
        if name not in CONNECTORS:
            raise NotFound(
                f"there is no connector {name!r} to install",
                why=f"headrace knows {', '.join(CONNECTORS)}",
                hint="headrace up --with connect --plugins DIR adds a folder with any other",
            )
        self._url("connect")
        found = self._node("connect")
        assert isinstance(found, Connect)
        with self.home.lock("install"):
            is_new = found.install(name, self._launch())
        if is_new and found.process.find():
            self.restart("connect")
            return True
        return False

    def _url(self, name: str) -> str:
        url = self.spec.url(name)
        if url is None:
            raise Unreachable(f"this cluster has no {name}", hint=f"headrace up --with {name}")
        return url

    @property
    def config(self) -> Config:
        """The settings that hold here, each with its origin."""
        existing = plans.read(self.home)
        return load(self.home.config_file, self._flags, existing.remembered if existing else None)

    #: When the cluster hears of a node that is gone, whatever its timeouts are.
    reports = f"the watcher reports a killed node at once, a paused one after {watcher.PAUSED_S:g} s"

    @property
    def timers(self) -> str:
        """What decides how soon a node that is gone is replaced: to be named wherever such a time is."""
        kafka = self.config.cluster.kafka
        named = ", ".join(f"{name}={kafka.get(name, value)}" for name, value in TIMERS.items())
        return f"{self.reports}; with {named}"

    def status(self) -> status.ClusterStatus:
        """What runs, and what Kafka says about itself."""
        existing = plans.read(self.home)
        if existing is None:
            return status.absent(self.home)
        brokers, services = nodes.brokers_of(self.home, existing), nodes.services_of(self.home, existing)
        return status.look(self.home, existing, brokers, services)

    def node_states(self) -> tuple[NodeStatus, ...]:
        """The processes as the system sees them, within milliseconds: no memory, no disk, no word with Kafka."""
        existing = plans.read(self.home)
        if existing is None:
            return ()
        return status.node_states(nodes.brokers_of(self.home, existing), nodes.services_of(self.home, existing))

    def name_of(self, node: str | int) -> str:
        """The full name of the node meant by `2`, `broker-2` or `registry`."""
        return self._node(node).name

    def log(self, node: str | int) -> Path:
        """The log file of a node."""
        found = self._node(node)
        return found.log if found.log.exists() else found.output

    def log_sizes(self) -> dict[str, int]:
        """The size of each node's log in bytes, for `logged_since`."""
        logs = {node: self.log(node) for node in self.nodes}
        return {node: path.stat().st_size if path.exists() else 0 for node, path in logs.items()}

    def logged_since(self, sizes: Mapping[str, int], most_bytes: int) -> dict[str, bytes]:
        """What each node has logged since its log had that size; at most the last so many bytes."""
        found = {}
        for node, size in self.log_sizes().items():
            begin = sizes.get(node, 0)
            if size:
                with self.log(node).open("rb") as log:
                    # A rotated log is shorter than it was; then all of it is new.
                    log.seek(max(begin if begin <= size else 0, size - most_bytes))
                    found[node] = log.read()
        return found

    def segments(self, topic: str, partition: int | None = None) -> dict[tuple[int, int], list[Segment]]:
        """The segments of the topic on disk, or of one partition, the oldest first, by broker and partition."""
        return {
            (node.node_id, number): segments_in(folder)
            for node in self.spec.brokers
            for number, folder in partitions_in(self.home.node(node.name) / "data", topic).items()
            if partition in {None, number}
        }

    def tool_command(self, tool: str, *words: object) -> list[str]:
        """The command that runs one of Kafka's own tools, such as kafka-topics, against this cluster."""
        launch = self._launch()
        return kafka_tools.command(tool, words, self.bootstrap, launch.java, launch.jars)

    # -- up and down --------------------------------------------------------------------------------------------

    def up(self) -> None:
        """Every broker runs, has the wanted settings and takes acks=all writes."""
        self.home.create()
        with self.home.lock("up"):
            launch = self._launch()
            config = launch.config
            existing = plans.read(self.home)
            if existing:
                plans.require_version(existing, self.home)
                plans.require_same_topology(existing, config.cluster, self.home)
            planning.require_disk(self.home.root, config)
            nodes.end_strays(self.home)  # before the ports are looked at: a stray may hold them
            _ = launch.kafka  # downloaded before anything is planned or started
            spec = planning.prepare(self.home, existing, launch)
            end_changed_services(self.home, existing or spec, spec, launch)
            try:
                converge(self.home, spec, launch)
            except (TimedOut, NodeFailed):
                self._remember(spec, existing, config)  # the next `up` goes on from here, as this one began
                raise
            self._remember(spec, existing, config)

    def down(self, *, wipe: bool = False) -> None:
        """No process of this cluster runs, no port is held. With `wipe` its data are gone too."""
        if not self.home.root.is_dir():
            return
        with self.home.lock("down"):
            watcher.end(self.home)
            existing = self._readable_spec()
            if existing:
                nodes.stop_all(nodes.services_of(self.home, existing), timeout_s=_SERVICE_TIMEOUT_S)
                nodes.stop_all(nodes.brokers_of(self.home, existing), timeout_s=_DOWN_TIMEOUT_S)
            nodes.end_strays(self.home)
            # What else has a record: the archive's builder, and all nodes of a home whose plan is lost.
            for folder in nodes.folders_of(self.home):
                left = Supervised(folder)
                left.kill()
                left.forget()
            if wipe:
                self._wipe()

    def wipeable(self) -> list[tuple[Path, int]]:
        """What `down(wipe=True)` removes, with its size in bytes. Only what headrace made is in it."""
        made = [*nodes.folders_of(self.home), self.home.cluster_file, self.home.root / "lock"]
        return _sized(path for path in made if path.exists())

    def kept(self) -> list[tuple[Path, int]]:
        """What `down(wipe=True)` leaves in the home, with its size in bytes: tables, checkpoints, whatever is yours."""
        removed = {path for path, _ in self.wipeable()}
        return _sized(path for path in self.home.root.glob("*") if path not in removed)

    # -- one node -----------------------------------------------------------------------------------------------

    def start(self, node: str | int) -> None:
        """The node runs; if the cluster has a quorum, the node is part of it again."""
        found = self._node(node)
        with self.home.lock("start"):
            nodes.start(found, self._launch())

    def stop(self, node: str | int) -> None:
        """The node has handed its leaderships over and ended."""
        found = self._node(node)
        with self.home.lock("stop"):
            nodes.stop(found, "headrace stop")

    def restart(self, node: str | int) -> None:
        """The node was stopped and runs again, with today's settings."""
        found = self._node(node)
        with self.home.lock("restart"):
            nodes.stop(found, "headrace restart")
            nodes.start(found, self._launch())

    def kill(self, node: str | int) -> None:
        """The node died at once, by SIGKILL."""
        found = self._node(node)
        found.process.note_end("headrace kill")
        if not found.process.kill():
            raise nodes.not_running(found, "killed")

    def pause(self, node: str | int) -> None:
        """The node is frozen by SIGSTOP: alive for the system, silent for the cluster."""
        nodes.pause(self._node(node))

    def resume(self, node: str | int) -> None:
        """A paused node runs on."""
        nodes.resume(self._node(node))

    # -- how things are found and remembered --------------------------------------------------------------------

    def _launch(self) -> Launch:
        return Launch(self.config, self.progress)

    def _node(self, name: str | int) -> Broker | Service:
        return nodes.node_of(self.home, self.spec, name)

    def _remember(self, spec: ClusterSpec, existing: ClusterSpec | None, config: Config) -> None:
        """The plan, with the properties given by flag now or earlier; those of headrace.toml are read from there."""
        given = {**(existing.kafka if existing else {}), **(self._flags["cluster.kafka"] or {})}
        kafka = {name: str(value) for name, value in given.items() if str(value) != ""}
        plans.save(self.home, replace(spec, kafka=kafka, restart=config.cluster.restart))

    def _readable_spec(self) -> ClusterSpec | None:
        """The plan if it can be read: a damaged home must be possible to stop and to wipe."""
        try:
            return plans.read(self.home)
        except HeadraceError:
            return None

    def _wipe(self) -> None:
        for path, _ in self.wipeable():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        with suppress(OSError):  # the cache may be on a full disk; a reservation of a home that is gone counts nothing
            ports.release(self.home, self._launch().cache)
        if not any(self.home.root.iterdir()):
            self.home.root.rmdir()


def _sized(paths: Iterable[Path]) -> list[tuple[Path, int]]:
    return [(path, size_bytes(path) if path.is_dir() else path.stat().st_size) for path in sorted(paths)]
