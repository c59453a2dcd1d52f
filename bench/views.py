"""A view that is updated by the keys that changed, against the same view computed in full.

    python -m bench.views [--rows 10000000] [--keys 200000] [--changed 0.01] [--rounds 3] [--json]

The view joins positions (`rows` of them) with trips (`keys`) and has a row per trip. In each round, late positions of
`changed` of the trips are appended. Then the view is updated by keys, and computed in full, of the same versions of its
tables: both take turns, ratios are taken within a round. Each result is compared with the other, row by row.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.contest import expect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SQL = """
    select trip, max(route) as route, count(*) as positions, sum(speed) as total, max(speed) as fastest,
           min(at) as first, max(at) as last, count(distinct speed) as speeds
    from positions join trips using (trip) group by trip
"""


def measure(rows: int, keys: int, changed: float, rounds: int) -> list[dict[str, float]]:
    """Seconds of both ways, by round; the first round only warms up."""
    from headrace.home import Home
    from headrace.pipeline import spark_session

    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as name,
        spark_session(Home(Path(name, "home"))) as spark,
    ):
        return _measured(spark, Path(name), (rows, keys, changed), rounds)


def _measured(spark: SparkSession, folder: Path, size: tuple[int, int, float], rounds: int) -> list[dict[str, float]]:
    from headrace.pipeline.declare.declaration import View
    from headrace.pipeline.spark.views import update_view

    rows, keys, changed = size
    paths = {table: str(folder / table) for table in ("positions", "trips")}
    view = View("summary", _SQL, ("trip",), str(folder / "summary"))
    _positions(spark, 0, rows, keys).write.format("delta").save(paths["positions"])
    spark.range(keys).selectExpr("id as trip", "concat('route ', id % 97) as route").write.format("delta").save(
        paths["trips"]
    )
    update_view(spark, view, paths)
    found = []
    for number in range(rounds + 1):
        few = max(1, int(keys * changed))
        late = _positions(spark, rows + number * few * 3, few * 3, few)
        late.withColumn("trip", late.trip * (keys // few) + number).write.format("delta").mode("append").save(
            paths["positions"]
        )
        began = time.monotonic()
        made = update_view(spark, view, paths)
        took = time.monotonic() - began
        expect(made.keys == few, f"{made.keys} keys were computed anew, not {few}")
        by_keys = spark.read.format("delta").option("versionAsOf", _version(spark, view.path)).load(view.path)
        began = time.monotonic()
        update_view(spark, view, paths, full=True)
        full = time.monotonic() - began
        expect(not _differences(by_keys, spark.read.format("delta").load(view.path)), "the two results differ")
        print(f"{'round ' + str(number) if number else 'warming up'}: {took:.1f} s by keys, {full:.1f} s in full",
              file=sys.stderr)  # fmt: skip
        found.append({"by_keys": took, "full": full, "ratio": full / took})
    return found[1:]


def _positions(spark: SparkSession, first: int, count: int, trips: int) -> DataFrame:
    return spark.range(first, first + count).selectExpr(
        f"id % {trips} as trip", "cast(xxhash64(id) % 120 as int) as speed", "timestamp_millis(id * 1000) as at",
        "xxhash64(id) / 1e15 as latitude", "xxhash64(id, 1) / 1e15 as longitude",
    )  # fmt: skip


def _version(spark: SparkSession, path: str) -> int:
    return int(spark.sql(f"describe history delta.`{path}` limit 1").collect()[0]["version"])


def _differences(one: DataFrame, other: DataFrame) -> int:
    return one.exceptAll(other).count() + other.exceptAll(one).count()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--changed", type=float, default=0.01)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = measure(given.rows, given.keys, given.changed, given.rounds)
    if given.json:
        print(json.dumps(found))
        return
    for name in ("by_keys", "full", "ratio"):
        values = [each[name] for each in found]
        print(f"{name:8} {statistics.median(values):6.1f}  ({min(values):.1f} to {max(values):.1f})")


if __name__ == "__main__":
    main()
