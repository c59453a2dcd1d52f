"""A topic of JSON into a table of typed rows, bad records apart: headrace beside plain PySpark and other tools.

    python -m bench.pipeline [--records 1000000] [--rounds 3] [--with bytewax,pathway,quix --python PYTHON]

All read the same topic (one broker, replication factor 1, a hundredth of the records damaged), each in a process of its
own, from its start to its end. headrace writes a Delta table, dead letters with their reasons and a ledger; plain
PySpark two Delta tables; the others Parquet files, and the bad records as lines. Every row is counted afterwards. They
take turns; ratios are taken within a round. CPU is that of the process and of all that it started, without the broker.
The other tools are installed in an environment of their own, whose Python is given by `--python`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.contest import Figure, contest, expect, headrace_command, plain_spark_environment, report, write_file
from headrace.cluster import Cluster
from headrace.kafka import Kafka, NewTopic
from headrace.kafka.write.inputs import InputOptions, Shape
from headrace.kafka.write.producer import ProduceOptions, produce
from headrace.runtime.process import plain_environment
from headrace.tables.table import read_table

_TOPIC = "breadcrumbs"
_PLAIN = "plain pyspark"
_PARTITIONS = 2
_BAD_EVERY = 100
_PIPELINE = """
[pipelines.bench]
from = "breadcrumbs"
decode = { json = "EVENT_NO_TRIP string, EVENT_NO_STOP string, OPD_DATE string, VEHICLE_ID string, METERS string, ACT_TIME string, VELOCITY string, DIRECTION string, GPS_LONGITUDE string, GPS_LATITUDE string, GPS_SATELLITES string, GPS_HDOP string, SCHEDULE_DEVIATION string" }
dead_letters = { table = "bad" }
into = { delta = "good" }
[pipelines.bench.select]
trip       = "cast(EVENT_NO_TRIP as long)"
vehicle    = "cast(VEHICLE_ID as int)"
day        = "to_date(OPD_DATE, 'dd-MMM-yy')"
act_time   = "cast(ACT_TIME as int)"
meters     = "cast(METERS as int)"
velocity   = "cast(nullif(VELOCITY, '') as int)"
direction  = "cast(nullif(DIRECTION, '') as int)"
latitude   = "cast(nullif(GPS_LATITUDE, '') as double)"
longitude  = "cast(nullif(GPS_LONGITUDE, '') as double)"
satellites = "cast(GPS_SATELLITES as int)"
hdop       = "cast(GPS_HDOP as double)"
[pipelines.bench.expect]
"has a trip" = "trip is not null and vehicle is not null"
"has a time" = "act_time >= 0"
"""  # noqa: E501 - a line of headrace.toml


@dataclass
class Course:
    """The topic, and a fresh folder for each run."""

    kafka: Cluster
    folder: Path
    records: int
    python: Path | None
    runs: int = 0

    def run(self, name: str) -> Figure:
        """The contestant has run, and every record is in one of its two places."""
        self.runs += 1
        place = self.folder / f"run-{self.runs}"
        environment = plain_spark_environment(self.folder) if name == _PLAIN else {}
        figure = timed(self._command(name, place), environment)
        bad = self.records // _BAD_EVERY
        expect(_rows(place / "good") == self.records - bad, f"{name}: {_rows(place / 'good')} good rows")
        expect(_rows(place / "bad") == bad, f"{name}: {_rows(place / 'bad')} bad ones")
        return figure

    def _command(self, name: str, place: Path) -> Sequence[str]:
        if name == "headrace":
            return headrace_command(place, _PIPELINE, "bench", self.kafka.bootstrap, "--once")
        python, program = (sys.executable, "plain_pyspark") if name == _PLAIN else (str(self.python), f"on_{name}")
        return [python, "-m", f"bench.peers.{program}", self.kafka.bootstrap, _TOPIC, str(place), str(self.records)]


def timed(command: Sequence[str], environment: dict[str, str]) -> Figure:
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        process = psutil.Popen(command, env=plain_environment(environment), stdout=subprocess.DEVNULL, stderr=said)
        spent: dict[int, float] = {}
        while process.poll() is None:
            _note_cpu(process, spent)
            with suppress(psutil.TimeoutExpired):
                process.wait(0.25)
        took_s = time.monotonic() - began
        said.seek(0)
        expect(process.returncode == 0, f"{command[1:4]} ended with {process.returncode}: {_reason(said.read())}")
    return took_s, sum(spent.values())


def _note_cpu(process: psutil.Process, spent: dict[int, float]) -> None:
    """What each process has used so far; a JVM may outlive the one that started it, so that nobody adds it up."""
    with suppress(psutil.NoSuchProcess):
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = one.cpu_times()
                spent[one.pid] = times.user + times.system


def _reason(said: str) -> str:
    """Of all that a failed process said, what names an error."""
    return "\n".join(line for line in said.splitlines() if "rror" in line or "xception" in line)[:2000]


def _rows(place: Path) -> int:
    """Rows of a Delta table, of Parquet files, or lines."""
    if (place / "_delta_log").exists():
        return read_table(place).count()
    if list(place.glob("**/*.parquet")):
        from pyarrow import dataset

        return dataset.dataset(place, format="parquet").count_rows()  # type: ignore[no-any-return]
    return sum(file.read_bytes().count(b"\n") for file in place.glob("**/*") if file.is_file())


def _fill(kafka: Cluster, folder: Path, records: int) -> None:
    """The topic holds so many records; of a hundred one is torn, or has no number where one should be."""
    Kafka(kafka).create_topics([NewTopic(_TOPIC, _PARTITIONS, 1, {})])
    write_file(folder / "good.ndjson", records)
    with (folder / "good.ndjson").open("rb") as lines, (folder / "all.lines").open("wb") as out:
        for number, line in enumerate(lines):
            if number % _BAD_EVERY:
                out.write(line)
            elif number % (2 * _BAD_EVERY):
                out.write(line[: len(line) // 2] + b"\n")
            else:
                out.write(line.replace(b'"ACT_TIME": "', b'"ACT_TIME": "x'))
    sent = produce(kafka, _TOPIC, folder / "all.lines", options=ProduceOptions(input=InputOptions(shape=Shape.LINES)))
    expect(sent.acknowledged == records, f"{sent.acknowledged} of {records} records were produced: {sent.error}")


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="one more, the first, warms up")
    parser.add_argument("--with", dest="others", default="", metavar="NAMES", help="of bytewax, pathway, quix")
    parser.add_argument("--python", type=Path, help="the Python that has them")
    options = parser.parse_args(words)
    names = ["headrace", _PLAIN, *(name for name in options.others.split(",") if name)]
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        Cluster(Path(folder, "home"), brokers=1) as kafka,
    ):
        _fill(kafka, Path(folder), options.records)
        course = Course(kafka, Path(folder), options.records, options.python)
        report(contest({name: name for name in names}, course.run, options.rounds), options.records)


if __name__ == "__main__":
    main()
