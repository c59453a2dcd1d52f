"""How long until three brokers take writes: `headrace up` against Kafka as it comes.

    python -m bench.startup [--rounds 5] [--json]

Both sides run the same Kafka on the same Java from the same jars, start in an empty folder, and are done when an
acks=all write was acknowledged by each of the three brokers with replication factor 3. The clock of headrace runs from
the start of the command to its end, Python included. The stock side does what Kafka's documents say: format each node
with the storage tool, one after another, then start all three with the flags of Kafka's own scripts and the values of
its own server.properties. The two sides take turns, so that a busy machine is busy for both, and the ratio is taken
round by round; the machine's load is told because it is part of the figure. CPU seconds are those of the three brokers,
read when the write was acknowledged, and suffer least from what else runs. Memory is proportional (PSS: shared pages
split among their users). Python's bytecode is compiled, as an installed package has it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from headrace.cluster import ports
from headrace.cluster.node import java_properties
from headrace.cluster.spec import new_uuid
from headrace.errors import HeadraceError
from headrace.home import Home
from headrace.kafka import Kafka, NewTopic
from headrace.kafka.write.probe import write_to_all
from headrace.runtime.jars import JarCache, default_cache
from headrace.runtime.java import Java, find_java
from headrace.runtime.process import plain_environment
from headrace.runtime.waiting import eventually

_BROKERS = (1, 2, 3)
_HEADRACE = [sys.executable, "-m", "headrace"]
_READY_WITHIN_S = 180
# The flags of kafka-run-class.sh and kafka-server-start.sh, less JMX, which would listen beyond loopback.
_STOCK_JVM = (
    "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-XX:MaxInlineLevel=15", "-Djava.awt.headless=true",
)  # fmt: skip
_STOCK_HEAP = ("-Xmx1G", "-Xms1G")
_STOCK_GC_LOG = "-Xlog:gc*:file={file}:time,tags:filecount=10,filesize=100M"
# Kafka's config/log4j2.yaml: everything from INFO up, to the console and to a rolling file.
_STOCK_LOGGING = """\
status = error
appender.console.type = Console
appender.console.name = STDOUT
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d] %p %m (%c)%n
appender.file.type = RollingFile
appender.file.name = KafkaAppender
appender.file.fileName = ${sys:kafka.logs.dir}/server.log
appender.file.filePattern = ${sys:kafka.logs.dir}/server.log.%d{yyyy-MM-dd-HH}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = [%d] %p %m (%c)%n
appender.file.policies.type = TimeBasedTriggeringPolicy
rootLogger.level = info
rootLogger.appenderRef.console.ref = STDOUT
rootLogger.appenderRef.file.ref = KafkaAppender
"""
_STOCK_TOOL_HEAP = ("-Xmx256M",)
# Kafka's config/server.properties, less what names one node.
_STOCK_SETTINGS = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "num.network.threads": "3",
    "num.io.threads": "8",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "socket.request.max.bytes": "104857600",
    "num.partitions": "1",
    "num.recovery.threads.per.data.dir": "2",
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.retention.hours": "168",
    "log.segment.bytes": "1073741824",
    "log.retention.check.interval.ms": "300000",
}


@dataclass(frozen=True)
class Start:
    """One start of three brokers."""

    seconds: float
    format_seconds: float
    cpu_seconds: float
    pss_bytes: int
    load: float


@dataclass(frozen=True)
class Report:
    """All starts of one run."""

    headrace: tuple[Start, ...]
    stock: tuple[Start, ...]
    first_ever: Start

    @property
    def ratio(self) -> float:
        """How many times faster headrace is: the median of the rounds."""
        pairs = zip(self.stock, self.headrace, strict=True)
        return statistics.median(stock.seconds / own.seconds for stock, own in pairs)

    @property
    def ratio_without_format(self) -> float:
        """The same if the stock side had found formatted folders, while headrace still makes its own."""
        pairs = zip(self.stock, self.headrace, strict=True)
        return statistics.median((stock.seconds - stock.format_seconds) / own.seconds for stock, own in pairs)

    @property
    def cpu_ratio(self) -> float:
        """How many times more CPU the stock brokers took, formatting not counted."""
        pairs = zip(self.stock, self.headrace, strict=True)
        return statistics.median(stock.cpu_seconds / own.cpu_seconds for stock, own in pairs)

    def to_json(self) -> dict[str, object]:
        ratios = {name: getattr(self, name) for name in ("ratio", "ratio_without_format", "cpu_ratio")}
        return {**asdict(self), **ratios}


def measure(rounds: int) -> Report:
    """The two sides in turn, after a start that makes sure the class archive is there."""
    java = find_java()
    classpath = JarCache(default_cache()).classpath("kafka", java)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name:
        work = Path(name)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(work / "bytecode")
        _headrace(work / "warm", {}, "config")
        first_ever = _headrace_start(work / "first", {"HEADRACE_CACHE": str(_jars_only(work / "cache", classpath))})
        _warm_up(work / "warm")
        ours: list[Start] = []
        theirs: list[Start] = []
        for number in range(rounds):
            _say(f"round {number + 1} of {rounds}")
            ours.append(_headrace_start(work / f"headrace-{number}", {}))
            theirs.append(_stock_start(work / f"stock-{number}", java, classpath))
    return Report(tuple(ours), tuple(theirs), first_ever)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


# -- headrace -------------------------------------------------------------------------------------------------------


def _headrace_start(home: Path, environment: dict[str, str]) -> Start:
    load = os.getloadavg()[0]
    began = time.monotonic()
    _headrace(home, environment, "up", "--brokers", str(len(_BROKERS)))
    seconds = time.monotonic() - began
    records = [json.loads(file.read_text(encoding="utf-8")) for file in home.glob("broker-*/process.json")]
    pids = [record["pid"] for record in records]
    start = Start(seconds, 0.0, _cpu(pids), _pss(pids), load)
    _headrace(home, environment, "down", "--wipe", "--yes")
    return start


def _headrace(home: Path, environment: dict[str, str], *words: str) -> None:
    command = [*_HEADRACE, "--home", str(home), "-q", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **environment})


def _warm_up(home: Path) -> None:
    """The class archive is there: a start that finds none has one made in the background."""
    _headrace(home, {}, "up", "--brokers", str(len(_BROKERS)))
    eventually(lambda: not (home / "archive" / "process.json").exists(), _READY_WITHIN_S)
    _headrace(home, {}, "down", "--wipe", "--yes")


def _jars_only(cache: Path, classpath: Sequence[Path]) -> Path:
    """A cache as the first start on a machine finds it once the jars are fetched: no archive, nothing formatted."""
    (cache / "jars").mkdir(parents=True)
    for jar in classpath:
        (cache / "jars" / jar.name).symlink_to(jar)
    verified = default_cache() / "jars" / "verified.json"
    (cache / "jars" / "verified.json").write_bytes(verified.read_bytes())
    return cache


def _cpu(pids: Sequence[int]) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(taken.user + taken.system for taken in times)


def _pss(pids: Sequence[int]) -> int:
    return sum(psutil.Process(pid).memory_full_info().pss for pid in pids)


# -- Kafka as it comes ----------------------------------------------------------------------------------------------


def _stock_start(folder: Path, java: Java, classpath: Sequence[Path]) -> Start:
    home = Home(folder)
    home.create()
    with _reserved(home) as free:
        clients, controllers = free[: len(_BROKERS)], free[len(_BROKERS) :]
        files = [_write_settings(folder, at, clients, controllers) for at in range(len(_BROKERS))]
        load = os.getloadavg()[0]
        began = time.monotonic()
        _format(folder, files, controllers, java, classpath)
        formatted = time.monotonic()
        with _running(folder, files, java, classpath) as brokers:
            _wait_for_write(",".join(f"127.0.0.1:{port}" for port in clients), brokers)
            seconds, pids = time.monotonic() - began, [broker.pid for broker in brokers]
            return Start(seconds, formatted - began, _cpu(pids), _pss(pids), load)


@contextmanager
def _reserved(home: Home) -> Iterator[tuple[int, ...]]:
    try:
        yield ports.choose(home, default_cache(), 2 * len(_BROKERS), None)
    finally:
        ports.release(home, default_cache())


def _write_settings(folder: Path, at: int, clients: Sequence[int], controllers: Sequence[int]) -> Path:
    listeners = f"PLAINTEXT://127.0.0.1:{clients[at]},CONTROLLER://127.0.0.1:{controllers[at]}"
    own = {
        "node.id": str(_BROKERS[at]),
        "listeners": listeners,
        "advertised.listeners": listeners,
        "controller.quorum.bootstrap.servers": ",".join(f"127.0.0.1:{port}" for port in controllers),
        "log.dirs": str(folder / f"data-{_BROKERS[at]}"),
    }
    file = folder / f"server-{_BROKERS[at]}.properties"
    file.write_text(java_properties({**_STOCK_SETTINGS, **own}), encoding="latin-1")
    return file


def _format(
    folder: Path, files: Sequence[Path], controllers: Sequence[int], java: Java, classpath: Sequence[Path]
) -> None:
    voters = ",".join(
        f"{broker}@127.0.0.1:{port}:{new_uuid()}" for broker, port in zip(_BROKERS, controllers, strict=True)
    )
    cluster_id = new_uuid()
    for file in files:
        words = ["format", "--cluster-id", cluster_id, "--initial-controllers", voters, "--config", str(file)]
        command = [*_java(folder / "tool", java, classpath, _STOCK_TOOL_HEAP), "kafka.tools.StorageTool", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=plain_environment())


@contextmanager
def _running(
    folder: Path, files: Sequence[Path], java: Java, classpath: Sequence[Path]
) -> Iterator[list[subprocess.Popen[bytes]]]:
    brokers: list[subprocess.Popen[bytes]] = []
    try:
        for file in files:
            logs = folder / file.stem
            flags = [*_STOCK_HEAP, _STOCK_GC_LOG.format(file=logs / "kafkaServer-gc.log")]
            command = [*_java(logs, java, classpath, flags), "kafka.Kafka", str(file)]
            brokers.append(
                subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=plain_environment())
            )
        yield brokers
    finally:
        for broker in brokers:
            broker.kill()
            broker.wait()


def _java(logs: Path, java: Java, classpath: Sequence[Path], flags: Sequence[str]) -> list[str]:
    logs.mkdir(exist_ok=True)
    logging = logs / "log4j2.properties"
    logging.write_text(_STOCK_LOGGING, encoding="utf-8")
    return [
        str(java.executable), *flags, *_STOCK_JVM, f"-Dkafka.logs.dir={logs}",
        f"-Dlog4j2.configurationFile={logging.as_uri()}", "-cp", os.pathsep.join(map(str, classpath)),
    ]  # fmt: skip


def _wait_for_write(bootstrap: str, brokers: Sequence[subprocess.Popen[bytes]]) -> None:
    """Each broker has led a write that all replicas took: what `headrace up` waits for."""
    admin = Kafka(bootstrap, timeout_s=2)
    ring = [*_BROKERS, *_BROKERS]
    topic = NewTopic("probe", assignment=[ring[at : at + len(_BROKERS)] for at in range(len(_BROKERS))])
    clients = [int(address.rsplit(":", 1)[1]) for address in bootstrap.split(",")]

    def registered() -> bool:
        if any(broker.poll() is not None for broker in brokers):
            raise RuntimeError("a stock broker died")
        try:
            return not any(map(ports.is_free, clients)) and set(_BROKERS) <= set(admin.live_brokers(1))
        except HeadraceError:
            return False

    def written() -> bool:
        try:
            if topic.name not in {found.name for found in admin.topics()}:
                admin.create_topics([topic])
            write_to_all(bootstrap, topic.name, len(_BROKERS), within_s=30)
        except HeadraceError:
            return False
        return True

    eventually(registered, _READY_WITHIN_S, every_s=0.03)
    eventually(written, _READY_WITHIN_S, every_s=0.1)
    admin.close()


# -- what it says ---------------------------------------------------------------------------------------------------


def _table(report: Report) -> str:
    formatting = statistics.median(start.format_seconds for start in report.stock)
    rows = [
        ["three brokers until an acks=all write", "median", "min", "max", "cpu", "memory", "load"],
        _row("headrace up, warm", report.headrace),
        _row("Kafka as it comes", report.stock),
        ["  of which the storage tool", f"{formatting:.1f} s", "", "", "", "", ""],
        _row("headrace up, first ever (jars there)", [report.first_ever]),
    ]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    words = f"{report.ratio:.1f} times faster ({report.ratio_without_format:.1f} without formatting)"
    return "\n".join([*lines, f"{words}, {report.cpu_ratio:.1f} times less CPU in the brokers"])


def _row(name: str, starts: Sequence[Start]) -> list[str]:
    seconds = [start.seconds for start in starts]
    times = [f"{value:.1f} s" for value in (statistics.median(seconds), min(seconds), max(seconds))]
    cpu, load = (statistics.median(getattr(start, name) for start in starts) for name in ("cpu_seconds", "load"))
    memory = statistics.median(start.pss_bytes for start in starts) / 1e6
    return [name, *times, f"{cpu:.1f} s", f"{memory:.0f} MB", f"{load:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.startup", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    report = measure(options.rounds)
    print(json.dumps(report.to_json(), indent=2) if options.json else _table(report))


if __name__ == "__main__":
    main()
