"""A Python process with a Spark session of its own, for tests that need one more or one to kill.

    python -m tests.spark.session_child WHAT FOLDER [MASTER]

It says on standard output what it found, one JSON object a line, and nothing else anywhere.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError
from headrace.home import Home
from headrace.pipeline.graph import Graph
from headrace.pipeline.pipeline import Pipeline, spark_session
from headrace.pipeline.spark import session
from headrace.pipeline.spark.classify import SETTINGS
from headrace.pipeline.spark.session import SessionSpec, start_spark, stop_spark

# Executors on the machine that runs everything else: small, and quick to start rather than quick to run.
_SMALL_CLUSTER = {
    "spark.executor.memory": "500m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.pyspark.python": sys.executable,
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
}


def tell(**found: object) -> None:
    print(json.dumps(found), flush=True)


def jvm() -> int | None:
    return session._running.process.pid if session._running else None


def twice(folder: Path) -> None:
    """Two sessions, one after the other; the second one's JVM dies."""
    for rows in (10, 20):
        spark = start_spark(SessionSpec(folder, conf={"spark.headrace.secret": "not on the command line"}))
        context: Any = spark.sparkContext
        context._jvm.java.lang.System.err.println("a word for output.log")
        tell(rows=spark.range(rows).count(), jvm=jvm(), secret=spark.conf.get("spark.headrace.secret"))
        if rows == 20:
            try:
                with session.java_alive():
                    context._gateway.new_array(context._jvm.long, 2**30)  # 8 GB
            except HeadraceError as error:
                tell(error=error.problem, why=error.why, hint=error.hint)
        stop_spark()


def wait(folder: Path) -> None:
    """A session at work, until somebody ends this process or its standard input."""
    spark = start_spark(SessionSpec(folder))
    spark.readStream.format("rate").load().writeStream.format("noop").start()
    tell(jvm=jvm())
    sys.stdin.read()


def cluster(folder: Path, master: str, name: str, bootstrap: str) -> None:
    """The graph of the folder on the executors of another Spark; where they found this package."""
    spark = start_spark(SessionSpec(folder / "spark", master, conf={**SETTINGS, **_SMALL_CLUSTER}))
    nodes = {node.name: node for node in Graph.from_file(folder).run(bootstrap, once=True, spark=spark).nodes}
    report = nodes[name].report
    assert report is not None, nodes

    def who(rows: Iterable[int]) -> Iterator[tuple[int, str, int]]:
        import headrace

        yield os.getpid(), headrace.__file__, sum(rows)

    found = spark.sparkContext.parallelize(range(100), 4).mapPartitions(who).collect()
    executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    tell(states={name: node.state for name, node in nodes.items()}, outcomes=report.run.outcomes,
         balanced=report.run.balanced, executors=executors,
         packages=sorted({file for _, file, _ in found}), total=sum(total for _, _, total in found),
         here=os.getpid() in {pid for pid, _, _ in found})  # fmt: skip
    stop_spark()


def crowded(folder: Path, master: str, name: str, bootstrap: str) -> None:
    """The same with executors that no worker has room for; the error as an impatient user gets it."""
    conf = {**SETTINGS, **_SMALL_CLUSTER, "spark.executor.memory": "900g"}
    spark = start_spark(SessionSpec(folder / "spark", master, conf=conf))
    try:
        Pipeline.from_file(folder, name).run(bootstrap, once=True, spark=spark, retry_for_s=1)
    except HeadraceError as error:
        tell(error=error.problem, why=error.why, code=error.exit_code)
    stop_spark()


def of_home(folder: Path, *settings: str) -> None:
    """A session of that home with those settings; a Python worker says what it has got from this process."""
    conf = dict(setting.split("=", 1) for setting in settings)
    with spark_session(Home(folder), conf=conf) as spark:
        word = spark.sparkContext.parallelize([1], 1).map(lambda _: os.environ.get("WORD")).collect()
        names = [*conf, "spark.sql.globalTempDatabase", "spark.sql.shuffle.partitions"]
        tell(jvm=jvm(), word=word, settings={name: spark.conf.get(name) for name in names})
        spark.range(3).createOrReplaceGlobalTempView("numbers")


def interrupted(folder: Path) -> None:
    """A session of that home that ends in the middle of what it does."""
    with suppress(KeyboardInterrupt), spark_session(Home(folder)):
        tell(jvm=jvm())
        raise KeyboardInterrupt


def refused(folder: Path, master: str, *settings: str) -> None:
    """A session that cannot be had; the error as a user gets it."""
    try:
        start_spark(SessionSpec(folder, master, conf=dict(setting.split("=", 1) for setting in settings)))
    except HeadraceError as error:
        tell(error=error.problem, why=error.why, code=error.exit_code)


def killed(folder: Path, bootstrap: str) -> None:
    """A pipeline `p` of the folder; this process is killed when the first sink has the batch, and no other one has."""
    from headrace.pipeline.spark.sinks import sinks

    write = sinks.write_sink

    def write_and_die(*given: Any) -> None:
        write(*given)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(sinks, "write_sink", write_and_die)  # noqa: B010
    spark = start_spark(SessionSpec(folder / "spark", conf=SETTINGS))
    Pipeline.from_file(folder, "p").run(bootstrap, once=True, spark=spark)


_ALL = {
    "twice": twice, "wait": wait, "cluster": cluster, "crowded": crowded, "refused": refused, "of_home": of_home,
    "interrupted": interrupted,
    "killed": killed,
}  # fmt: skip


if __name__ == "__main__":
    _ALL[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])  # type: ignore[operator]
