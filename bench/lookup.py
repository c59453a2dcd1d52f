"""What a lookup costs: the same records into the same kind of table, without a lookup and with one.

    python -m bench.lookup [--records 1000000] [--rounds 4] [--rows 90,66000,1000000]

One session and one broker; the pipelines take turns, and ratios are taken within a round. The first round warms up. A
lookup of 90 or 66,000 rows is broadcast by Spark, one of 1,000,000 is shuffled. A run reads the table once, because it
does not change between its batches. Every row is counted and compared with what it should have found.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.contest import Figure, contest, expect, spread, write_file
from headrace.cluster import Cluster
from headrace.home import Home
from headrace.kafka import Kafka, NewTopic
from headrace.kafka.write.producer import produce
from headrace.pipeline.pipeline import Pipeline, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TOPIC = "breadcrumbs"
_PARTITIONS = 2
_BATCHES = 4
_PIPELINE = """
[pipelines.bench]
from = "breadcrumbs"
decode = { json = "EVENT_NO_TRIP string, VEHICLE_ID string, METERS string, ACT_TIME string, VELOCITY string, DIRECTION string, GPS_LONGITUDE string, GPS_LATITUDE string" }
into = { delta = "rows" }
max_records_per_batch = BATCH
LOOKUP
[pipelines.bench.select]
trip       = "cast(EVENT_NO_TRIP as long)"
vehicle    = "cast(VEHICLE_ID as int)"
meters     = "cast(METERS as int)"
act_time   = "cast(ACT_TIME as int)"
velocity   = "cast(nullif(VELOCITY, '') as int)"
direction  = "cast(nullif(DIRECTION, '') as int)"
latitude   = "cast(nullif(GPS_LATITUDE, '') as double)"
longitude  = "cast(nullif(GPS_LONGITUDE, '') as double)"
[pipelines.bench.expect]
"has a trip" = "trip is not null and vehicle is not null"
"""  # noqa: E501 - a line of headrace.toml
_LOOKUP = """
lookup = { table = "TABLE", on = { KEY = "id" }, select = { name = "name" }, unmatched = "dead" }
"""
# What `write_file` makes: the first value of a key, and how many there are.
_VEHICLE, _VEHICLES = 1_700, 90
_ACT_TIME, _ACT_TIMES = 20_000, 66_000


@dataclass
class Course:
    """The topic, the tables, and a fresh folder for each run."""

    kafka: Cluster
    spark: SparkSession
    folder: Path
    records: int
    runs: int = 0

    def table(self, rows: int) -> Path:
        """A Delta table of so many rows."""
        path = self.folder / f"lookup-{rows}"
        if not path.exists():
            first = _ACT_TIME if rows >= _ACT_TIMES else _VEHICLE
            numbers = self.spark.range(rows).selectExpr(f"cast({first} + id as int) as id")
            numbers.selectExpr("id", "concat('a name ', id) as name").write.format("delta").save(str(path))
        return path

    def run(self, rows: int) -> Figure:
        """The pipeline has run with a lookup of so many rows (0: none), and every record is where it belongs."""
        self.runs += 1
        place = self.folder / f"run-{self.runs}"
        place.mkdir()
        lookup = _LOOKUP.replace("TABLE", str(self.table(rows))).replace("KEY", _key(rows)) if rows else ""
        declared = _PIPELINE.replace("LOOKUP", lookup).replace("BATCH", str(self.records // _BATCHES))
        (place / "headrace.toml").write_text(declared, encoding="utf-8")
        pipeline = Pipeline.from_file(place, "bench", Home(place / "home"))
        began = time.monotonic()
        made = pipeline.run(self.kafka, once=True, spark=self.spark)
        took_s = time.monotonic() - began
        self._check(place, rows, made.run.outcomes)
        return took_s, 0.0  # the session is shared: its CPU time is nobody's own

    def _check(self, place: Path, rows: int, outcomes: dict[str, int]) -> None:
        expect(outcomes["written"] == self.records, f"{outcomes['written']:,} rows of {self.records:,} with {rows:,}")
        written = self.spark.read.format("delta").load(str(place / "rows"))
        right = written.where(f"name = concat('a name ', {_key(rows)})") if rows else written
        expect(right.count() == self.records, f"{right.count():,} rows of {self.records:,} are right with {rows:,}")


def _key(rows: int) -> str:
    """By what such a lookup is made, so that each record finds a row."""
    expect(rows == 0 or rows >= _VEHICLES, f"a table needs {_VEHICLES} rows, or {_ACT_TIMES:,}")
    return "act_time" if rows >= _ACT_TIMES else "vehicle"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.lookup", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=4, help="one more, the first, warms up")
    parser.add_argument("--rows", default="90,66000,1000000", help="of the tables that are looked up")
    options = parser.parse_args(words)
    sizes = [int(rows) for rows in options.rows.split(",")]
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        Cluster(Path(folder, "home"), brokers=1) as kafka,
        spark_session(Home(Path(folder, "spark"))) as spark,
    ):
        Kafka(kafka).create_topics([NewTopic(_TOPIC, _PARTITIONS, 1, {})])
        write_file(Path(folder, "all.ndjson"), options.records)
        sent = produce(kafka, _TOPIC, Path(folder, "all.ndjson"))
        expect(sent.acknowledged == options.records, f"{sent.acknowledged} of {options.records} were produced")
        course = Course(kafka, spark, Path(folder), options.records)
        _report(contest({rows: rows for rows in (0, *sizes)}, course.run, options.rounds), options.records)


def _report(figures: Mapping[int, list[Figure]], records: int) -> None:
    """Times, and the ratio to the run without a lookup in the same round."""
    for rows, theirs in figures.items():
        clock = [took_s for took_s, _ in theirs]
        ratios = [their / alone for their, (alone, _) in zip(clock, figures[0], strict=True)]
        name, rate = f"a lookup of {rows:,} rows" if rows else "without a lookup", records / statistics.median(clock)
        print(f"{name:28} {spread(clock, ' s')}  {rate:9,.0f} records/s  {spread(ratios, 'x')}")


if __name__ == "__main__":
    main()
