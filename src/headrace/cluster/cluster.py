"""`Cluster`: the life of one local Kafka cluster.

    with Cluster("demo", brokers=3) as cluster:      # everything of it lives in the folder "demo"
        print(cluster.bootstrap)

`up` and `down` can be repeated: they bring about a state, whatever the state was. A verb that changes the cluster holds
the home's lock; a verb that only looks takes none. Nothing that headrace did not start is ever touched.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from headrace.cluster import ports, settings, status, watcher
from headrace.cluster import spec as plans
from headrace.cluster.broker import TIMERS, Broker, initial_metadata
from headrace.cluster.losses import losses
from headrace.cluster.node import NodeProcess
from headrace.cluster.readiness import require_alive, wait_until_ready
from headrace.cluster.services import (
    FIRST_CHOICES,
    KINDS,
    Connect,
    Console,
    Service,
    ServiceStarter,
    meant,
    service_of,
)
from headrace.cluster.spec import ClusterSpec, ServiceSpec
from headrace.cluster.status import NodeStatus
from headrace.config import Config, load
from headrace.errors import ConfigError, HeadraceError, NodeFailed, SetupError, TimedOut, Unreachable, UsageError
from headrace.home import Home, size_bytes, write_private
from headrace.progress import SILENT, Progress
from headrace.runtime import (
    ClassArchive,
    JarCache,
    Java,
    NotYet,
    ProcessState,
    Supervised,
    default_cache,
    end_stray,
    eventually,
    find_java,
    strays,
)
from headrace.transport.admin import Admin
from headrace.transport.connectors import Connectors

# A broker that has a quorum to say goodbye to needs about one second.
_STOP_PATIENCE_S = 20.0
# When all go down at once the last ones lose their quorum and would wait for it in vain.
_DOWN_PATIENCE_S = 4.0
_SERVICE_PATIENCE_S = 10.0
_RESIGN_S = 3.0
# A busy machine may take its time; a process that waits for a disk acts on no signal before.
_SIGNAL_WITHIN_S = 15.0


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
        kafka: Mapping[str, Any] | None = None,
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
        with Admin(self.bootstrap, timeout_s=5) as admin:
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
                self._with_services(spec, replace(config, cluster=wanted))
            found = self._node("console")
            if not isinstance(found, Console):
                raise UsageError("the console is not a console")  # a damaged plan
            if not found.process.find():
                self._start_service(found)
        return found.entrance

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
        return status.look(self.home, existing, self._brokers(existing), self._services(existing))

    def node_states(self) -> tuple[NodeStatus, ...]:
        """The processes as the system sees them, within milliseconds: no memory, no disk, no word with Kafka."""
        existing = plans.read(self.home)
        return status.node_states(self._brokers(existing), self._services(existing)) if existing else ()

    def name_of(self, node: str | int) -> str:
        """The full name of the node meant by `2`, `broker-2` or `registry`."""
        return self._node(node).name

    def log(self, node: str | int) -> Path:
        """The log file of a node."""
        found = self._node(node)
        return found.log if found.log.exists() else found.output

    # -- up and down --------------------------------------------------------------------------------------------

    def up(self) -> None:
        """Every broker runs, has the wanted settings and takes acks=all writes."""
        self.home.create()
        with self.home.lock("up"):
            config = self.config
            existing = plans.read(self.home)
            if existing:
                plans.require_version(existing, self.home)
                plans.require_same_topology(existing, config.cluster, self.home)
            self._require_disk(config)
            self._end_strays()  # before the ports are looked at: a stray may hold them
            java = find_java(config.runtime.java_home)
            classpath = self._jars(config).classpath("kafka", java)
            spec = self._prepare(config, existing, java, classpath)
            self._end_changed_services(existing or spec, spec)
            archive = ClassArchive(_cache(config), "kafka", java, classpath)
            starter = ServiceStarter(java, self._jars(config), _cache(config), self.progress)
            try:
                starter.spawn([service for service in self._services(spec) if not service.needs_kafka])
                self._converge(spec, config, java, archive)
                starter.spawn(self._services(spec))
                starter.wait(self._services(spec), config.cluster.ready_timeout_s)
            except (TimedOut, NodeFailed):
                # Slow is not dead, and one dead node is not all: the next `up` goes on from here, as this one began.
                self._remember(spec, existing, config)
                raise
            except BaseException:
                starter.end()
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
                self._stop_all(self._services(existing), patience_s=_SERVICE_PATIENCE_S)
                self._stop_all(self._brokers(existing), patience_s=_DOWN_PATIENCE_S)
            self._end_strays()
            # What else has a record: the archive's builder, and all nodes of a home whose plan is lost.
            for folder in self._folders():
                left = Supervised(folder)
                left.kill()
                left.forget()
            if wipe:
                self._wipe()

    def wipeable(self) -> list[tuple[Path, int]]:
        """What `down(wipe=True)` removes, with its size in bytes. Only what headrace made is in it."""
        made = [*self._folders(), self.home.cluster_file, self.home.root / "lock"]
        return [(p, size_bytes(p) if p.is_dir() else p.stat().st_size) for p in sorted(made) if p.exists()]

    def kept(self) -> list[tuple[Path, int]]:
        """What `down(wipe=True)` leaves in the home, with its size in bytes: tables, checkpoints, whatever is yours."""
        removed = {path for path, _ in self.wipeable()}
        found = (path for path in self.home.root.glob("*") if path not in removed)
        return [(path, size_bytes(path) if path.is_dir() else path.stat().st_size) for path in sorted(found)]

    def _folders(self) -> list[Path]:
        return sorted(folder for folder in self.home.root.glob("*") if folder.is_dir() and _is_of_cluster(folder))

    # -- one node -----------------------------------------------------------------------------------------------

    def start(self, node: str | int) -> None:
        """The node runs; if the cluster has a quorum, the node is part of it again."""
        found = self._node(node)
        with self.home.lock("start"):
            self._start(found)

    def stop(self, node: str | int) -> None:
        """The node has handed its leaderships over and ended."""
        found = self._node(node)
        with self.home.lock("stop"):
            found.process.note_end("headrace stop")
            self._stop(found)

    def restart(self, node: str | int) -> None:
        """The node was stopped and runs again, with today's settings."""
        found = self._node(node)
        with self.home.lock("restart"):
            found.process.note_end("headrace restart")
            self._stop(found)
            self._start(found)

    def kill(self, node: str | int) -> None:
        """The node died at once, by SIGKILL."""
        found = self._node(node)
        found.process.note_end("headrace kill")
        if not found.process.kill():
            raise self._not_running(found, "killed")

    def pause(self, node: str | int) -> None:
        """The node is frozen by SIGSTOP: alive for the system, silent for the cluster."""
        found = self._node(node)
        if not found.process.signal(signal.SIGSTOP):
            raise self._not_running(found, "paused")
        self._wait_state(found, "paused", signal.SIGSTOP)

    def resume(self, node: str | int) -> None:
        """A paused node runs on."""
        found = self._node(node)
        if found.process.state != "paused" or not found.process.signal(signal.SIGCONT):
            raise UsageError(f"{found.name} is not paused: it is {found.process.state}")
        self._wait_state(found, "running", signal.SIGCONT)

    # -- how `up` gets there ------------------------------------------------------------------------------------

    def _prepare(
        self, config: Config, existing: ClusterSpec | None, java: Java, classpath: Sequence[Path]
    ) -> ClusterSpec:
        """The plan with ports; a new cluster's data folders are formatted."""
        if existing:
            spec = self._with_services(self._moved(existing, config), config)
            for broker in self._brokers(spec):
                broker.check_data()
            return spec
        self._require_empty()
        spec = plans.plan(config.cluster)
        count = len(spec.brokers) + len(spec.voters)
        spec = spec.with_ports(ports.choose(self.home, _cache(config), count, config.cluster.base_port))
        checkpoint = initial_metadata(_cache(config), spec, java, classpath)
        for broker in self._brokers(spec):
            broker.write_files(config.cluster.kafka)
            broker.format(checkpoint)
        # From here on the folders count as formatted: one that is not is damaged.
        plans.save(self.home, spec)
        return self._with_services(spec, config)

    def _with_services(self, spec: ClusterSpec, config: Config) -> ClusterSpec:
        """The plan with the services that it had and those that are asked for now, each with ports of its own."""
        services = {service.name: service for service in spec.services}
        for name in meant(config.cluster.services):
            if name not in services:
                first_choice, count = FIRST_CHOICES[name]
                port, *inner = ports.choose_for_service(self.home, _cache(config), first_choice, count)
                services[name] = ServiceSpec(name, port, inner[0] if inner else 0)
        if "registry" in services:
            services["registry"] = replace(services["registry"], storage=config.cluster.registry_storage)
        if "connect" in services:
            services["connect"] = self._planned_connect(services["connect"], config)
            # Before the plan names it: from then on clients ask for its token, also while it has never run.
            Connect(self.home, spec, services["connect"]).make_token()
        if "console" in services:
            services["console"] = replace(services["console"], host=config.cluster.console_host)
        planned = replace(spec, services=tuple(services.values()))
        if planned != spec:
            plans.save(self.home, planned)
        return planned

    def _planned_connect(self, connect: ServiceSpec, config: Config) -> ServiceSpec:
        """With its settings of today; one that was made before it stood behind a proxy gets a second port."""
        for folder in config.cluster.connect_files:
            if not folder.is_dir():
                raise ConfigError(
                    f"the folder {folder} does not exist", why="connect_files names it", hint=f"mkdir -p {folder}"
                )
        inner = connect.inner_port or ports.choose_for_service(self.home, _cache(config), 18083, 1)[0]
        plugins = str(config.cluster.plugins) if config.cluster.plugins else connect.plugins
        files = tuple(map(str, config.cluster.connect_files))
        return replace(connect, inner_port=inner, plugins=plugins, files=files)

    def _end_changed_services(self, before: ClusterSpec, after: ClusterSpec) -> None:
        """What runs with other settings than it is to have has ended; it is started again with the rest."""
        for service in self._services(after):
            old = before.service(service.name)
            if old in {None, service.service}:
                continue
            if old and old.storage != service.service.storage:
                self.progress.say(f"the schemas in {old.storage} stay there and are not migrated")
            if service.process.find():
                self.progress.say(f"restarting {service.name}: its settings have changed")
                self._stop(service)

    def _moved(self, spec: ClusterSpec, config: Config) -> ClusterSpec:
        """The plan on the ports it is asked to have: its own, unless a base port names others."""
        base = config.cluster.base_port
        runs = any(broker.process.find() for broker in self._brokers(spec))
        if base is None or base == spec.brokers[0].port:
            if not runs:
                ports.require_free(self.home, _cache(config), spec.ports)
            return spec
        if runs:
            raise UsageError(
                "the ports of a running cluster cannot be changed",
                hint=f"headrace down, then headrace up --base-port {base}",
            )
        kept = tuple(port for service in spec.services for port in service.ports)
        moved = spec.with_ports(ports.choose(self.home, _cache(config), len(spec.ports), base, kept))
        plans.save(self.home, moved)
        return moved

    def _converge(self, spec: ClusterSpec, config: Config, java: Java, archive: ClassArchive) -> None:
        """From whatever runs to what is wanted: resume, restart what is configured otherwise, start the rest."""
        wanted = config.cluster.kafka
        brokers = self._brokers(spec)
        for broker in brokers:
            if broker.process.state == "paused":
                self.progress.say(f"resuming {broker.node.name}")
                broker.process.signal(signal.SIGCONT)
        stale = [b for b in brokers if b.process.find() and b.configured_otherwise(wanted)]
        if stale:
            settings.require_known(spec, wanted)  # before anything that runs is touched
        started: list[Broker] = []
        try:
            self._start_missing(brokers, started, config, java, archive)
            watcher.start(self.home)
            wait_until_ready(spec, brokers, within_s=config.cluster.ready_timeout_s, progress=self.progress)
            for broker in stale:
                self._roll_out(broker, brokers, config, java, archive)
            settings.require_in_force(spec, wanted)
        except (TimedOut, NodeFailed):
            raise
        except BaseException:
            # Wrong settings, or Ctrl-C: what this call has started ends with it, what ran before goes on.
            for broker in started:
                broker.process.note_end("headrace up")
                broker.process.kill()
                broker.process.forget()
            if len(started) == len(brokers):
                watcher.end(self.home)
            self._end_strays()  # Ctrl-C may fall between a start and its record
            raise
        archive.build_in_background(brokers[-1].class_list, self.home.node("archive"))

    def _roll_out(
        self, broker: Broker, brokers: Sequence[Broker], config: Config, java: Java, archive: ClassArchive
    ) -> None:
        """The running broker was restarted with today's settings; if it does not take them, with its old ones."""
        self.progress.say(f"restarting {broker.node.name}: its settings have changed")
        before = broker.settings_file.read_text(encoding="utf-8")
        broker.process.note_end("headrace up")
        self._stop(broker)
        broker.write_files(config.cluster.kafka)
        broker.spawn(java, archive)
        within_s = config.cluster.ready_timeout_s
        try:
            wait_until_ready(broker.spec, brokers, within_s=within_s, progress=self.progress)
        except TimedOut:
            raise
        except BaseException:
            broker.process.note_end("headrace up")
            broker.process.kill()
            write_private(broker.settings_file, before)
            broker.spawn(java, archive)
            wait_until_ready(broker.spec, brokers, within_s=within_s, progress=self.progress)
            raise

    def _start_missing(
        self,
        brokers: Sequence[Broker],
        started: list[Broker],
        config: Config,
        java: Java,
        archive: ClassArchive,
    ) -> None:
        missing = [broker for broker in brokers if not broker.process.find()]
        if not missing:
            return
        how = "" if archive.exists else " (the first start with this Java: later ones are faster)"
        self.progress.say(f"starting {', '.join(b.node.name for b in missing)}{how}")
        self._look_for_losses(missing, brokers)
        for broker in missing:
            broker.write_files(config.cluster.kafka)
            started.append(broker)
            broker.spawn(java, archive)

    def _look_for_losses(self, starting: Sequence[Broker], brokers: Sequence[Broker]) -> None:
        """Records that were acknowledged and are not in a broker's files any more are named before it starts."""
        folders = {broker.name: broker.data for broker in brokers if broker.node.broker}
        for broker in starting:
            for loss in losses(broker.name, folders) if broker.node.broker else ():
                self.progress.say(f"warning: {loss}")
                broker.must_check_its_log()

    def _remember(self, spec: ClusterSpec, existing: ClusterSpec | None, config: Config) -> None:
        """The plan, with the properties given by flag now or earlier; those of headrace.toml are read from there."""
        given = {**(existing.kafka if existing else {}), **(self._flags["cluster.kafka"] or {})}
        kafka = {name: str(value) for name, value in given.items() if str(value) != ""}
        plans.save(self.home, replace(spec, kafka=kafka, restart=config.cluster.restart))

    def _require_disk(self, config: Config) -> None:
        free = shutil.disk_usage(self.home.root).free
        if free < config.runtime.min_free_disk:
            raise SetupError(
                f"not enough disk for a cluster in {self.home.root}",
                why=f"{free / 1e9:.1f} GB are free, {config.runtime.min_free_disk / 1e9:.1f} GB are required",
                hint="make room, name another --home, or lower runtime.min_free_disk (HEADRACE_MIN_FREE_DISK=200MB)",
            )

    def _require_empty(self) -> None:
        """A home without cluster.json holds no records either: they would be orphaned by a new cluster id."""
        for segment in self.home.root.glob("*/data/*/*.log"):
            raise SetupError(
                f"the home {self.home.root} is damaged",
                why=f"cluster.json is gone, but {segment.parent.parent} still holds records",
                hint="restore cluster.json, or remove the data: headrace down --wipe",
            )

    def _jars(self, config: Config) -> JarCache:
        return JarCache(_cache(config), ivy_settings=config.runtime.ivy_settings, progress=self.progress)

    # -- how nodes start and stop -------------------------------------------------------------------------------

    def _brokers(self, spec: ClusterSpec) -> tuple[Broker, ...]:
        return tuple(Broker(self.home, spec, node) for node in spec.nodes)

    def _services(self, spec: ClusterSpec) -> tuple[Service, ...]:
        return tuple(service_of(self.home, spec, service) for service in spec.services)

    def _node(self, name: str | int) -> Broker | Service:
        spec = self.spec
        service = spec.service(str(name))
        return service_of(self.home, spec, service) if service else Broker(self.home, spec, spec.node(name))

    def _not_running(self, node: NodeProcess, verb: str) -> UsageError:
        return UsageError(
            f"{node.name} cannot be {verb}: it is {node.process.state}", hint=f"headrace start {node.name}"
        )

    def _start(self, node: Broker | Service) -> None:
        if node.process.find():
            raise UsageError(f"{node.name} runs already", hint=f"headrace restart {node.name}")
        if isinstance(node, Broker):
            self._start_broker(node)
        else:
            self._start_service(node)

    def _start_service(self, service: Service) -> None:
        config = self.config
        java = find_java(config.runtime.java_home)
        starter = ServiceStarter(java, self._jars(config), _cache(config), self.progress)
        try:
            starter.spawn([service])
            watcher.start(self.home)
            starter.wait([service], config.cluster.ready_timeout_s)
        except TimedOut:
            raise
        except BaseException:
            starter.end()
            raise

    def _start_broker(self, broker: Broker) -> None:
        config = self.config
        plans.require_version(broker.spec, self.home)
        broker.check_data()
        ports.require_free(self.home, _cache(config), broker.node.ports)
        self._look_for_losses([broker], self._brokers(broker.spec))
        java = find_java(config.runtime.java_home)
        classpath = self._jars(config).classpath("kafka", java)
        broker.write_files(config.cluster.kafka)
        broker.spawn(java, ClassArchive(_cache(config), "kafka", java, classpath))
        watcher.start(self.home)
        self._wait_joined(broker, config.cluster.ready_timeout_s)

    def _wait_joined(self, broker: Broker, within_s: float) -> None:
        """The node answers as a member; without a quorum it cannot, and then it is enough that it lives."""
        voters = [Supervised(self.home.node(node.name)) for node in broker.spec.voters]
        has_quorum = 2 * sum(v.state == "running" for v in voters) > len(voters)
        if not has_quorum or not broker.node.broker:
            self._wait_listening(broker, within_s)
            return

        def joined() -> bool:
            require_alive([broker])
            try:
                return not ports.is_free(broker.node.port) and broker.node.node_id in admin.live_brokers(1)
            except Unreachable:
                return False

        with Admin(f"127.0.0.1:{broker.node.port}", timeout_s=2) as admin:
            self._wait(joined, broker, within_s)

    def _wait_listening(self, broker: Broker, within_s: float) -> None:
        def listening() -> bool:
            require_alive([broker])
            return not ports.is_free(broker.node.controller_port or broker.node.port)

        if broker.node.controller:
            self._wait(listening, broker, within_s)
        self.progress.say(f"{broker.node.name} runs; it joins when a majority of the controllers runs")

    def _wait(self, condition: Callable[[], bool], broker: Broker, within_s: float) -> None:
        try:
            eventually(condition, within_s)
        except NotYet:
            raise broker.late(within_s, "it has not joined the cluster yet") from None

    def _wait_state(self, node: NodeProcess, wanted: ProcessState, sent: signal.Signals) -> None:
        """The signal has had its effect."""
        try:
            state = eventually(lambda: node.process.state in {wanted, "dead"} and node.process.state, _SIGNAL_WITHIN_S)
        except NotYet:
            raise TimedOut(
                f"{node.name} is not {wanted} yet, {_SIGNAL_WITHIN_S:g} s after {sent.name}",
                why="the process waits in a system call, and the signal takes effect when that call returns",
                hint=f"headrace status shows when it is {wanted}; headrace kill {node.name} ends it",
            ) from None
        if state == "dead":
            raise NodeFailed(f"{node.name} died meanwhile", hint="headrace status names the reason")

    def _stop(self, node: NodeProcess) -> None:
        # With time to hand over: a controller that resigns is replaced at once, one that vanishes is missed first.
        self._stop_all([node], patience_s=_STOP_PATIENCE_S, linger_s=_RESIGN_S)

    def _stop_all(self, nodes: Sequence[NodeProcess], *, patience_s: float, linger_s: float = 0.0) -> None:
        """All of them ended: by themselves, or by SIGKILL once all is in order (and they linger) or patience ends."""
        left = [node for node in nodes if node.process.find()]
        for node in left:
            node.process.signal(signal.SIGTERM)
            node.process.signal(signal.SIGCONT)  # a paused process cannot act on anything else
        deadline = time.monotonic() + patience_s
        in_order: dict[str, float] = {}
        while left:
            time.sleep(0.05)
            now = time.monotonic()
            for node in list(left):
                if node.may_be_killed:
                    in_order.setdefault(node.name, now)
                if now > deadline or now - in_order.get(node.name, now + 1) >= linger_s:
                    node.process.kill()
                if not node.process.find():
                    left.remove(node)
        for node in nodes:
            node.has_ended()

    def _end_strays(self) -> None:
        """Processes of this home that no record knows (a command was killed between start and record) are ended."""
        for process, folder in strays():
            if folder.parent == self.home.root and _is_of_cluster(folder):
                end_stray(process, folder)

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
            ports.release(self.home, _cache(self.config))
        if not any(self.home.root.iterdir()):
            self.home.root.rmdir()


def _is_of_cluster(folder: Path) -> bool:
    """Spark's JVM of a pipeline has a folder in the home too; it waits for brokers that are gone."""
    services = {*KINDS, "registry-front", "connect-front", "archive", "archive-connect", watcher.FOLDER}
    return folder.name in services or folder.name.startswith(("broker-", "controller-"))


def _cache(config: Config) -> Path:
    return config.runtime.cache or default_cache()
