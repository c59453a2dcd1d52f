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
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from headrace.cluster import ports, settings, status
from headrace.cluster import spec as plans
from headrace.cluster.broker import Broker, initial_metadata
from headrace.cluster.readiness import require_alive, wait_until_ready
from headrace.cluster.spec import ClusterSpec
from headrace.config import Config, load
from headrace.errors import Failed, HeadraceError, SetupError, Unreachable, UsageError
from headrace.home import Home, size_bytes, write_private
from headrace.progress import SILENT, Progress
from headrace.runtime.archive import ClassArchive
from headrace.runtime.jars import JarCache, default_cache
from headrace.runtime.java import Java, find_java
from headrace.runtime.process import Supervised, strays
from headrace.runtime.waiting import NotYet, eventually
from headrace.transport.admin import Admin

# A broker that has a quorum to say goodbye to needs about one second.
_STOP_PATIENCE_S = 20.0
# When all go down at once the last ones lose their quorum and would wait for it in vain.
_DOWN_PATIENCE_S = 4.0


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
                why="none was made there yet, or it was wiped",
                hint="headrace up makes and starts one; --home names another folder",
            )
        return found

    @property
    def bootstrap(self) -> str:
        """The address for clients: `127.0.0.1:9092,…`."""
        return self.spec.bootstrap

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of all nodes."""
        return tuple(node.name for node in self.spec.nodes)

    @property
    def config(self) -> Config:
        """The settings that hold here, each with its origin."""
        existing = plans.read(self.home)
        return load(self.home.config_file, self._flags, existing.remembered if existing else None)

    def status(self) -> status.ClusterStatus:
        """What runs, and what Kafka says about itself."""
        existing = plans.read(self.home)
        return status.look(self.home, existing, self._brokers(existing)) if existing else status.absent(self.home)

    def log(self, node: str | int) -> Path:
        """The log file of a node."""
        broker = self._broker(node)
        return broker.log if broker.log.exists() else broker.output

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
            java = find_java(config.runtime.java_home)
            classpath = self._jars(config).classpath("kafka", java)
            spec = self._prepare(config, existing, java, classpath)
            archive = ClassArchive(_cache(config), "kafka", java, classpath)
            self._converge(spec, config, java, archive)
            plans.save(self.home, replace(spec, kafka=self._remembered_properties(existing)))

    def down(self, *, wipe: bool = False) -> None:
        """No process of this cluster runs, no port is held. With `wipe` its data are gone too."""
        existing = plans.read(self.home) if not wipe else self._readable_spec()
        if not self.home.root.is_dir():
            return
        with self.home.lock("down"):
            self._stop_all(self._brokers(existing) if existing else ())
            self._end_strays()
            builder = Supervised(self.home.node("archive"))
            builder.kill()
            builder.forget()
        if wipe:
            self._wipe()

    def wipeable(self) -> list[tuple[Path, int]]:
        """What `down(wipe=True)` removes, with its size in bytes. Only what headrace made is in it."""
        made = [*self.home.root.glob("broker-*"), *self.home.root.glob("controller-*")]
        made += [self.home.root / name for name in ("archive", "cluster.json", "lock")]
        return [(p, size_bytes(p) if p.is_dir() else p.stat().st_size) for p in sorted(made) if p.exists()]

    # -- one node -----------------------------------------------------------------------------------------------

    def start(self, node: str | int) -> None:
        """The node runs; if the cluster has a quorum, the node is part of it again."""
        with self.home.lock("start"):
            self._start(self._broker(node))

    def stop(self, node: str | int) -> None:
        """The node has handed its leaderships over and ended."""
        with self.home.lock("stop"):
            self._stop(self._broker(node))

    def restart(self, node: str | int) -> None:
        """The node was stopped and runs again, with today's settings."""
        with self.home.lock("restart"):
            broker = self._broker(node)
            self._stop(broker)
            self._start(broker)

    def kill(self, node: str | int) -> None:
        """The node died at once, by SIGKILL."""
        broker = self._broker(node)
        if not broker.process.kill():
            raise self._not_running(broker, "killed")

    def pause(self, node: str | int) -> None:
        """The node is frozen by SIGSTOP: alive for the system, silent for the cluster."""
        broker = self._broker(node)
        if not broker.process.signal(signal.SIGSTOP):
            raise self._not_running(broker, "paused")
        eventually(lambda: broker.process.state == "paused", 5)

    def resume(self, node: str | int) -> None:
        """A paused node runs on."""
        broker = self._broker(node)
        if broker.process.state != "paused" or not broker.process.signal(signal.SIGCONT):
            raise UsageError(f"{broker.node.name} is not paused: it is {broker.process.state}")
        eventually(lambda: broker.process.state == "running", 5)

    # -- how `up` gets there ------------------------------------------------------------------------------------

    def _prepare(
        self, config: Config, existing: ClusterSpec | None, java: Java, classpath: Sequence[Path]
    ) -> ClusterSpec:
        """The plan with ports; a new cluster's data folders are formatted."""
        if existing:
            spec = self._moved(existing, config)
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
        return spec

    def _moved(self, spec: ClusterSpec, config: Config) -> ClusterSpec:
        """The plan on the ports it is asked to have: its own, unless a base port names others."""
        base = config.cluster.base_port
        runs = any(broker.process.find() for broker in self._brokers(spec))
        if base is None or base == spec.brokers[0].port:
            if not runs:
                ports.require_free(spec.ports)
            return spec
        if runs:
            raise UsageError(
                "the ports of a running cluster cannot be changed",
                hint=f"headrace down, then headrace up --base-port {base}",
            )
        moved = spec.with_ports(ports.choose(self.home, _cache(config), len(spec.ports), base))
        plans.save(self.home, moved)
        return moved

    def _converge(self, spec: ClusterSpec, config: Config, java: Java, archive: ClassArchive) -> None:
        """From whatever runs to what is wanted: resume, restart what is configured otherwise, start the rest."""
        wanted = config.cluster.kafka
        brokers = self._brokers(spec)
        self._end_strays()
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
            wait_until_ready(spec, brokers, within_s=config.cluster.ready_timeout_s, progress=self.progress)
            for broker in stale:
                self._roll_out(broker, brokers, config, java, archive)
            settings.require_in_force(spec, wanted)
        except BaseException:
            # Half a cluster helps nobody: what this call has started ends with it, what ran before goes on.
            for broker in started:
                broker.process.kill()
                broker.process.forget()
            raise
        archive.build_in_background(brokers[-1].class_list, self.home.node("archive"))

    def _roll_out(
        self, broker: Broker, brokers: Sequence[Broker], config: Config, java: Java, archive: ClassArchive
    ) -> None:
        """The running broker was restarted with today's settings; if it does not take them, with its old ones."""
        self.progress.say(f"restarting {broker.node.name}: its settings have changed")
        before = broker.settings_file.read_text(encoding="utf-8")
        self._stop(broker)
        broker.write_files(config.cluster.kafka)
        broker.spawn(java, archive)
        within_s = config.cluster.ready_timeout_s
        try:
            wait_until_ready(broker.spec, brokers, within_s=within_s, progress=self.progress)
        except BaseException:
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
        how = "" if archive.exists else " (first start on this machine: later ones are faster)"
        self.progress.say(f"starting {', '.join(b.node.name for b in missing)}{how}")
        for broker in missing:
            broker.write_files(config.cluster.kafka)
            started.append(broker)
            broker.spawn(java, archive)

    def _remembered_properties(self, existing: ClusterSpec | None) -> dict[str, str]:
        """Properties given by flag, now or at an earlier `up`; those of headrace.toml are read from there."""
        given = {**(existing.kafka if existing else {}), **(self._flags["cluster.kafka"] or {})}
        return {name: str(value) for name, value in given.items() if str(value) != ""}

    def _require_disk(self, config: Config) -> None:
        free = shutil.disk_usage(self.home.root).free
        if free < config.runtime.min_free_disk:
            raise SetupError(
                f"not enough disk for a cluster in {self.home.root}",
                why=f"{free / 1e9:.1f} GB are free, {config.runtime.min_free_disk / 1e9:.1f} GB are wanted",
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

    def _broker(self, name: str | int) -> Broker:
        spec = self.spec
        return Broker(self.home, spec, spec.node(name))

    def _not_running(self, broker: Broker, verb: str) -> UsageError:
        return UsageError(
            f"{broker.node.name} cannot be {verb}: it is {broker.process.state}",
            hint=f"headrace start {broker.node.name}",
        )

    def _start(self, broker: Broker) -> None:
        if broker.process.find():
            raise UsageError(f"{broker.node.name} runs already", hint=f"headrace restart {broker.node.name}")
        config = self.config
        plans.require_version(broker.spec, self.home)
        broker.check_data()
        ports.require_free(broker.node.ports)
        java = find_java(config.runtime.java_home)
        classpath = self._jars(config).classpath("kafka", java)
        broker.write_files(config.cluster.kafka)
        broker.spawn(java, ClassArchive(_cache(config), "kafka", java, classpath))
        self._wait_joined(broker, config.cluster.ready_timeout_s)

    def _wait_joined(self, broker: Broker, within_s: float) -> None:
        """The node answers as a member; without a quorum it cannot, and then it is enough that it lives."""
        voters = [Supervised(self.home.node(node.name)) for node in broker.spec.voters]
        has_quorum = 2 * sum(v.state == "running" for v in voters) > len(voters)
        if not has_quorum or not broker.node.broker:
            self._wait_listening(broker, within_s)
            return
        admin = Admin(f"127.0.0.1:{broker.node.port}", timeout_s=2)

        def joined() -> bool:
            require_alive([broker])
            try:
                return not ports.is_free(broker.node.port) and broker.node.node_id in admin.live_brokers(1)
            except Unreachable:
                return False

        self._wait(joined, broker, within_s)

    def _wait_listening(self, broker: Broker, within_s: float) -> None:
        def listening() -> bool:
            require_alive([broker])
            return not ports.is_free(broker.node.controller_port or broker.node.port)

        if broker.node.controller:
            self._wait(listening, broker, within_s)
        self.progress.say(f"{broker.node.name} runs; it joins when most controllers do")

    def _wait(self, condition: Callable[[], bool], broker: Broker, within_s: float) -> None:
        try:
            eventually(condition, within_s)
        except NotYet:
            raise broker.failure(f"{broker.node.name} did not become ready within {within_s:g} s") from None

    def _stop(self, broker: Broker, patience_s: float = _STOP_PATIENCE_S) -> None:
        self._stop_all([broker], patience_s)

    def _stop_all(self, brokers: Sequence[Broker], patience_s: float = _DOWN_PATIENCE_S) -> None:
        """All of them ended: by themselves, or by SIGKILL once their log is closed or patience is."""
        left = [broker for broker in brokers if broker.process.find()]
        for broker in left:
            broker.process.signal(signal.SIGTERM)
            broker.process.signal(signal.SIGCONT)  # a paused process cannot act on anything else
        deadline = time.monotonic() + patience_s
        while left:
            time.sleep(0.05)
            out_of_time = time.monotonic() > deadline
            for broker in list(left):
                # A controller without a broker has no such mark; its log is flushed at every write.
                if out_of_time or (broker.node.broker and broker.shut_down_cleanly):
                    broker.process.kill()
                if not broker.process.find():
                    left.remove(broker)
        for broker in brokers:
            broker.process.forget()

    def _end_strays(self) -> None:
        """Processes of this home that no record knows (a command was killed between start and record) are ended."""
        for process, folder in strays():
            if folder.parent != self.home.root:
                continue
            try:
                process.kill()
                process.wait(10)
            except psutil.NoSuchProcess:
                continue
            except psutil.TimeoutExpired:
                raise Failed(f"pid {process.pid}, left over from {folder.name}, does not end") from None

    def _readable_spec(self) -> ClusterSpec | None:
        """The plan if it can be read: wiping must also work for a damaged home."""
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
        ports.release(self.home, _cache(self.config))
        if not any(self.home.root.iterdir()):
            self.home.root.rmdir()


def _cache(config: Config) -> Path:
    return config.runtime.cache or default_cache()
