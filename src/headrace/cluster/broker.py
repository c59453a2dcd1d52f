"""One Kafka process: its configuration, its formatted data folder, its command line, its log.

The local profile differs from Kafka's defaults in three ways, each for a reason that stands beside the value: a failed
broker is noticed within two seconds, internal topics fit the cluster's size, and the JVM is tuned to start fast and
stay small. Whatever the user sets wins over the profile, but not over what makes the node this node.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from headrace.cluster.launch import Launch
from headrace.cluster.node import NodeProcess, cause, java_properties
from headrace.cluster.spec import ClusterSpec, Node, new_uuid
from headrace.errors import ConfigError, SetupError
from headrace.home import Home, write_private
from headrace.runtime import plain_environment

# What makes a node the node it is: set by headrace alone.
_OWN = {
    "process.roles", "node.id", "broker.id", "broker.rack", "controller.quorum.voters",
    "controller.quorum.bootstrap.servers", "controller.listener.names", "listeners", "advertised.listeners",
    "listener.security.protocol.map", "inter.broker.listener.name", "log.dir", "log.dirs", "metadata.log.dir",
}  # fmt: skip
_HOW_TO_SET_OWN = {
    "node.id": "--node-ids",
    "broker.id": "--node-ids",
    "broker.rack": "--racks",
    "process.roles": "--controllers",
    "listeners": "--base-port",
    "log.dirs": "--home",
    "log.dir": "--home",
}

# C1 only and the serial collector: 3.0 s instead of 5.6 s until three brokers take writes on two cores. A second
# compiler thread would compile more, not sooner. The heap is small on purpose: a broker's cache is the system's page
# cache, not its heap; but young objects have room for a whole start, which else stops five times to collect them.
# Java does not exit on OutOfMemoryError: a record that claims to be larger than the heap is a request that fails, and
# a few bytes can claim that.
_JVM = (
    "-Xms96m", "-XX:NewSize=48m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:CICompilerCount=1",
    "-XX:-UsePerfData", "-Xss512k", "-Djava.awt.headless=true", "-Dfile.encoding=UTF-8",
    # There is but one class loader, so no logger need look for the one it was called from.
    "-Dlog4j2.contextSelector=org.apache.logging.log4j.core.selector.BasicContextSelector",
)  # fmt: skip
# Every metric as a JMX bean: thousands of them, which take 4 % of a start and are rarely looked at.
_NO_JMX = {"metric.reporters": "", "metrics.jmx.exclude": ".*"}


#: How long a node may be silent before the others take it for gone. The election timeout is short because every first
#: start waits for it; it says nothing about nodes that are alive.
TIMERS = {
    "broker.session.timeout.ms": "18000",
    "controller.quorum.fetch.timeout.ms": "12000",
    "controller.quorum.election.timeout.ms": "500",
    "controller.quorum.request.timeout.ms": "2000",
}


def local_profile(brokers: int) -> dict[str, str]:
    """Settings for a cluster of `brokers` brokers on one machine, before the user's own."""
    replication = str(min(3, brokers))
    majority = "2" if brokers >= 3 else "1"
    return {
        # Topics appear when somebody creates them, not when somebody misspells one.
        "auto.create.topics.enable": "false",
        "default.replication.factor": replication,
        "min.insync.replicas": majority,
        # Internal topics survive one dead broker when there are three.
        "offsets.topic.replication.factor": replication,
        "transaction.state.log.replication.factor": replication,
        "transaction.state.log.min.isr": majority,
        "share.coordinator.state.topic.replication.factor": replication,
        "share.coordinator.state.topic.min.isr": majority,
        # Fifty partitions per internal topic are for hundreds of groups; each costs files and start-up time.
        "offsets.topic.num.partitions": "6",
        "transaction.state.log.num.partitions": "6",
        "share.coordinator.state.topic.num.partitions": "3",
        # Silence is not death: on a machine that is far too busy, a broker that is alive says nothing for seconds. So
        # these are as long as Kafka's own or longer. Who has really died is reported by the watcher, at once.
        **TIMERS,
        "broker.heartbeat.interval.ms": "500",
        "replica.fetch.backoff.ms": "200",
        # A broker that is slow to register is slow, not dead; how long to wait is for `up` to say.
        "initial.broker.registration.timeout.ms": "3600000",
        # A broker reserves room for a request as soon as its size is announced, and 512 MB of heap are soon announced
        # away. A request may be as large as the largest dead letter; of those not yet answered there may be as many as
        # half the heap holds, for the brokers' and the controllers' listener each. Who announces and sends nothing is
        # disconnected, and so many connections still leave room for work.
        "socket.request.max.bytes": str(40 << 20),
        "queued.max.request.bytes": str(64 << 20),
        "connections.max.idle.ms": "180000",
        "max.connections": "2000",
        # The first consumer of a group need not wait three seconds for company.
        "group.initial.rebalance.delay.ms": "0",
        # The 128 MB that a compaction of huge topics wants are a quarter of our heap.
        "log.cleaner.dedupe.buffer.size": "16777216",
    }


def properties(home: Home, spec: ClusterSpec, node: Node, settings: Mapping[str, str]) -> dict[str, str]:
    """All that stands in the node's server.properties."""
    for name in settings:
        if name in _OWN:
            raise ConfigError(
                f"the Kafka property {name} is set by headrace",
                why="it identifies the node within its cluster",
                hint=f"headrace up {_HOW_TO_SET_OWN.get(name, '--help')}",
            )
    listeners = [f"PLAINTEXT://127.0.0.1:{node.port}"] if node.broker else []
    if node.controller:
        listeners.append(f"CONTROLLER://127.0.0.1:{node.controller_port}")
    own = {
        "process.roles": node.roles,
        "node.id": str(node.node_id),
        "controller.quorum.voters": ",".join(
            f"{voter.node_id}@127.0.0.1:{voter.controller_port}" for voter in spec.voters
        ),
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "listeners": ",".join(listeners),
        "log.dirs": str(data_folder(home, node)),
    }
    if node.rack:
        own["broker.rack"] = node.rack
    beans = {} if "metric.reporters" in settings else _NO_JMX
    return {**local_profile(len(spec.brokers)), **beans, **settings, **own}


def data_folder(home: Home, node: Node) -> Path:
    return home.node(node.name) / "data"


class Broker(NodeProcess):
    """A broker, a controller, or both in one. `Cluster` decides when; this class knows how."""

    def __init__(self, home: Home, spec: ClusterSpec, node: Node) -> None:
        super().__init__(home, node.name)
        self.spec = spec
        self.node = node
        self.data = data_folder(home, node)

    def write_files(self, settings: Mapping[str, str]) -> None:
        """The node's folder is there with its configuration as of now."""
        self.write_folder()
        text = java_properties(properties(self.home, self.spec, self.node, settings))
        write_private(self.settings_file, text, durable=False)

    def configured_otherwise(self, settings: Mapping[str, str]) -> bool:
        """True if the running process was started with other settings than these."""
        wanted = java_properties(properties(self.home, self.spec, self.node, settings))
        try:
            return self.settings_file.read_text(encoding="utf-8") != wanted
        except OSError:
            return True

    def format(self, checkpoint: Path) -> None:
        """The data folder is a formatted, empty one of this cluster. Kafka refuses to start in any other."""
        self.data.mkdir(mode=0o700, exist_ok=True)
        first = self.data / "bootstrap.checkpoint"
        shutil.copyfile(checkpoint, first)
        first.chmod(0o600)
        meta = {
            "version": "1",
            "cluster.id": self.spec.cluster_id,
            "node.id": str(self.node.node_id),
            "directory.id": new_uuid(),
        }
        # Last: with meta.properties in place the folder counts as formatted.
        write_private(self.data / "meta.properties", java_properties(meta))

    def check_data(self) -> None:
        """The data folder is this node's; what is wrong with it is said before Kafka stumbles over it."""
        if not self.data.is_dir():
            raise self._damaged("the folder is gone")
        try:
            text = (self.data / "meta.properties").read_text(encoding="latin-1")
        except OSError as error:
            raise self._damaged(f"meta.properties: {error.strerror}") from None
        found = dict(re.findall(r"^([\w.]+)=(.*)$", text, re.MULTILINE))
        for name, wanted in (("cluster.id", self.spec.cluster_id), ("node.id", str(self.node.node_id))):
            if found.get(name) != wanted:
                raise self._damaged(f"meta.properties says {name}={found.get(name)}, expected {wanted}")

    def _damaged(self, why: str) -> SetupError:
        return SetupError(
            f"the data folder of {self.node.name} is damaged",
            why=why,
            hint=f"restore {self.data} from a copy, or remove the cluster with its data: headrace down --wipe",
            log=self.log if self.log.exists() else None,
        )

    def spawn(self, launch: Launch) -> None:
        """The process was started; whether it gets ready is another question."""
        self.output.unlink(missing_ok=True)
        argv = [
            str(launch.java.executable), *_JVM, *launch.kafka.jvm_flags(self.class_list), self.process.marker,
            *self.own_flags(), "-cp", launch.kafka.classpath, "kafka.Kafka", "server.properties",
        ]  # fmt: skip
        self.process.spawn(argv, output=self.output, environment=plain_environment())

    @property
    def may_be_killed(self) -> bool:
        """True once the broker part has closed its log: from here on a kill loses and costs nothing.

        A combined node still lingers for seconds after that, because its controller waits for a successor which
        will never come when the whole cluster goes down.
        """
        # A controller without a broker has no such mark. Kafka makes the file before it writes the broker's epoch into
        # it. A broker that starts without that epoch counts as crashed: the controller takes it out of all its ISRs.
        with suppress(OSError):
            return self.node.broker and self._clean_mark.stat().st_size > 0
        return False

    @property
    def _clean_mark(self) -> Path:
        return self.data / ".kafka_cleanshutdown"

    def must_check_its_log(self) -> None:
        """Kafka reads the logs through at the next start and cuts off what is not whole.

        With the mark of a clean stop it trusts its files, and would write behind half a batch.
        """
        self._clean_mark.unlink(missing_ok=True)


def initial_metadata(spec: ClusterSpec, launch: Launch) -> Path:
    """The file with which Kafka's metadata log begins: the feature levels of this release.

    Kafka's own storage tool writes it, which costs a JVM and more than a second for every node. Its content depends
    on the release alone, so it is made once per release, kept in the cache, and copied into each new node.
    """
    kept = launch.cache / "format" / f"kafka-{spec.kafka_version}.checkpoint"
    if kept.is_file():
        return kept
    kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as work:
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": "1@127.0.0.1:9093",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
            "log.dirs": f"{work}/data",
        }
        file = Path(work, "server.properties")
        file.write_text(java_properties(settings), encoding="latin-1")
        command = [
            str(launch.java.executable), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", launch.kafka.classpath,
            "kafka.tools.StorageTool", "format", "--cluster-id", spec.cluster_id, "--config", str(file),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=plain_environment())
        made = Path(work, "data", "bootstrap.checkpoint")
        if done.returncode or not made.is_file():
            raise SetupError(
                "Kafka's storage tool could not format a data folder",
                why=(cause(done.stderr.splitlines()) or done.stderr.strip()[-300:]) or "it gave no reason",
                hint="headrace doctor",
            )
        made.replace(kept)
    return kept
