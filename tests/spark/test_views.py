"""Views against an independent computation: random changes of their tables, bad keys, changed columns, kills."""

from __future__ import annotations

import itertools
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.errors import ConfigError, Failed
from headrace.pipeline.books.view_updates import ViewUpdate, updates
from headrace.pipeline.declare.declaration import View
from headrace.pipeline.spark import views
from headrace.pipeline.spark.views import check_view, update_view

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]


class Tables:
    """Two Delta tables that change, and what is in them, as lists in Python."""

    def __init__(self, spark: SparkSession, folder: Path, seed: int = 7) -> None:
        self.spark = spark
        self.folder = folder
        self.random = random.Random(seed)
        self.speeds: list[Row] = []
        self.stops: list[Row] = []
        self.add_stops(range(60))
        self.add_speeds(200)

    @property
    def paths(self) -> dict[str, str]:
        return {name: str(self.folder / name) for name in ("speeds", "stops")}

    def append(self, table: str, rows: list[Row], schema: str) -> None:
        made = self.spark.createDataFrame([tuple(row.values()) for row in rows], schema).coalesce(1)
        made.write.format("delta").mode("append").option("mergeSchema", "true").save(self.paths[table])
        getattr(self, table).extend(rows)

    def add_stops(self, trips: range) -> None:
        rows = [{"trip": trip, "route": self.random.choice("ABCDEFGHIJKL")} for trip in trips]
        self.append("stops", rows, "trip int, route string")

    def add_speeds(self, count: int) -> None:
        """Some for trips that have no stops, yet or ever."""
        first = max((row["id"] for row in self.speeds), default=0) + 1
        rows = [
            {"id": first + at, "trip": self.random.randrange(80), "speed": self.random.randrange(100)}
            for at in range(count)
        ]
        self.append("speeds", rows, "id int, trip int, speed int")

    def change(self, table: str, verb: str, rest: str) -> None:
        self.spark.sql(f"{verb} delta.`{self.paths[table]}` {rest}")

    def delete_speeds(self, trip: int) -> None:
        self.change("speeds", "delete from", f"where trip = {trip}")
        self.speeds = [row for row in self.speeds if row["trip"] != trip]

    def move_trip(self, trip: int, route: str) -> None:
        self.change("stops", "update", f"set route = '{route}' where trip = {trip}")
        self.stops = [{**row, "route": route} if row["trip"] == trip else row for row in self.stops]

    def remove_stop(self, trip: int) -> None:
        self.change("stops", "delete from", f"where trip = {trip}")
        self.stops = [row for row in self.stops if row["trip"] != trip]

    def joined(self) -> Iterator[tuple[Row, Row]]:
        return ((speed, stop) for speed in self.speeds for stop in self.stops if speed["trip"] == stop["trip"])


def by_route(t: Tables) -> list[Row]:
    found: dict[str, list[int]] = {}
    for speed, stop in t.joined():
        found.setdefault(stop["route"], []).append(speed["speed"])
    return [{"route": r, "total": sum(s), "n": len(s)} for r, s in found.items() if len(s) > 1]


def quiet_routes(t: Tables) -> list[Row]:
    """With stops that have no speeds, and their number."""
    found: dict[str, list[int]] = {}
    seen = Counter(row["trip"] for row in t.speeds if row["speed"] > 50)
    for stop in t.stops:
        found.setdefault(stop["route"], []).append(seen[stop["trip"]])
    return [{"route": r, "fast": sum(n), "quiet": n.count(0)} for r, n in found.items()]


def without_speed(t: Tables) -> list[Row]:
    seen = {row["trip"] for row in t.speeds}
    return [stop for stop in t.stops if stop["trip"] not in seen]


def fastest(t: Tables) -> list[Row]:
    best: dict[int, Row] = {}
    for row in sorted(t.speeds, key=lambda row: (-row["speed"], row["id"])):
        best.setdefault(row["trip"], row)
    return [{"trip": row["trip"], "id": row["id"], "speed": row["speed"]} for row in best.values()]


def above_average(t: Tables) -> list[Row]:
    """Speeds at least as high as the mean of their trip: a table that is joined with itself."""
    of: dict[int, list[int]] = {}
    for row in t.speeds:
        of.setdefault(row["trip"], []).append(row["speed"])
    keys = {("speed", row["id"]) for row in t.speeds if row["speed"] * len(of[row["trip"]]) >= sum(of[row["trip"]])}
    return [{"kind": kind, "id": at} for kind, at in keys | {("stop", stop["trip"]) for stop in t.stops}]


VIEWS: dict[str, tuple[str, tuple[str, ...], Callable[[Tables], list[Row]]]] = {
    "by_route": (
        "select route, sum(speed) as total, count(*) as n from speeds join stops using (trip) group by route "
        "having count(*) > 1",
        ("route",), by_route,
    ),
    "quiet_routes": (
        "select s.route, count(v.id) as fast, count_if(v.id is null) as quiet "
        "from stops s left join (select * from speeds where speed > 50) v on s.trip = v.trip group by s.route",
        ("route",), quiet_routes,
    ),
    "without_speed": (
        "select s.trip, s.route from stops s left anti join speeds using (trip)", ("trip",), without_speed
    ),
    "fastest": (
        "select trip, id, speed from (select *, row_number() over (partition by trip order by speed desc, id) as place "
        "from speeds) where place = 1",
        ("trip",), fastest,
    ),
    "above_average": (
        "with mean as (select trip, sum(speed) as total, count(*) as n from speeds group by trip) "
        "select 'speed' as kind, s.id from speeds s join mean m on s.trip = m.trip where s.speed * m.n >= m.total "
        "union all select 'stop', trip from stops",
        ("kind", "id"), above_average,
    ),
}  # fmt: skip


def rows_of(spark: SparkSession, view: View) -> list[Row]:
    return [row.asDict() for row in spark.read.format("delta").load(view.path).collect()]


def ordered(rows: list[Row]) -> list[tuple[Any, ...]]:
    return sorted(tuple(sorted(row.items())) for row in rows)


def test_views_are_right_whatever_changes(spark: SparkSession, tmp_path: Path) -> None:
    """Late rows, deletes and rewritten keys in both tables between two updates."""
    tables = Tables(spark, tmp_path)
    declared = {name: View(name, sql, key, str(tmp_path / name)) for name, (sql, key, _) in VIEWS.items()}

    def update(full: bool = False) -> dict[str, ViewUpdate]:
        with ThreadPoolExecutor(3) as threads:
            made = {
                name: threads.submit(update_view, spark, view, tables.paths, full=full)
                for name, view in declared.items()
            }
            return {name: each.result() for name, each in made.items()}

    def compare() -> None:
        for name, (_, _, expected) in VIEWS.items():
            assert ordered(rows_of(spark, declared[name])) == ordered(expected(tables)), name

    assert {made.mode for made in update().values()} == {"full"}
    compare()

    tables.add_speeds(5)
    tables.add_stops(range(60, 64))
    tables.move_trip(3, "A")
    tables.delete_speeds(5)
    made = update()
    assert {name: each.mode for name, each in made.items()} == dict.fromkeys(VIEWS, "incremental")
    assert 0 < (made["fastest"].keys or 0) <= 6
    compare()

    tables.remove_stop(7)
    tables.move_trip(11, "Z")
    tables.delete_speeds(12)
    tables.change("speeds", "optimize", "")
    tables.add_speeds(2)
    made = update()
    assert {each.mode for each in made.values()} == {"incremental"}
    compare()
    # Files that were only written again name no key: one trip was deleted, two rows were added.
    assert made["fastest"].keys == len({12, *[row["trip"] for row in tables.speeds[-2:]]})

    view = declared["fastest"]
    assert update_view(spark, view, tables.paths).why == "up to date"
    before = ordered(rows_of(spark, view))
    assert update_view(spark, view, tables.paths, full=True).why == "it was asked for"
    assert ordered(rows_of(spark, view)) == before
    account = updates(view.path)
    assert [each.mode for each in account] == ["full", "incremental", "incremental", "full"]
    assert all(
        later.sources["speeds"].before == earlier.sources["speeds"].version
        for later, earlier in itertools.pairwise(account)
    )


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("select trip, speed from speeds order by speed limit 3", "it has LIMIT"),
        ("select trip, speed from speeds where trip in (select trip from stops)", "it has a subquery in an expression"),
        ("select max(trip) as trip from speeds", "an aggregate without GROUP BY"),
        ("select id as trip, max(trip) over (order by id) from speeds", "a window without PARTITION BY"),
        ("select max(trip) as trip, speed from speeds group by speed", "its keys depend on trip, which is computed"),
        ("select trip, current_date() as today from stops", "not the same every time"),
        ("select trip from stops intersect select trip from speeds", "it has INTERSECT"),
    ],
)
def test_what_cannot_be_updated_by_keys_says_why(spark: SparkSession, sql: str, why: str) -> None:
    from headrace.pipeline.spark.decode import struct_of

    tables = {"speeds": struct_of("id int, trip int, speed int"), "stops": struct_of("trip int, route string")}
    assert why in check_view(spark, View("v", sql, ("trip",), "v"), tables).full_because


def test_bad_keys_and_changed_columns_change_nothing(spark: SparkSession, tmp_path: Path) -> None:
    tables = Tables(spark, tmp_path)
    view = View("v", "select * from stops", ("trip",), str(tmp_path / "v"))
    assert update_view(spark, view, tables.paths).rows_written == 60

    tables.append("stops", [{"trip": None, "route": "X"}], "trip int, route string")
    with pytest.raises(Failed, match=r"the key of the view v is null\n  why: trip = None; the table was not changed"):
        update_view(spark, view, tables.paths)
    tables.change("stops", "delete from", "where trip is null")
    tables.append("stops", [{"trip": 3, "route": "X"}], "trip int, route string")
    with pytest.raises(Failed, match=r"is not unique: 2 rows have it\n  why: trip = 3"):
        update_view(spark, view, tables.paths)
    assert len(updates(view.path)) == 1
    tables.remove_stop(3)
    assert update_view(spark, view, tables.paths).mode == "incremental"

    # Another column is another view; whoever wants it says so.
    other = View("w", "select trip, upper(route) as route from stops", ("trip",), str(tmp_path / "w"))
    update_view(spark, other, tables.paths)
    tables.append("stops", [{"trip": 100, "route": "q", "stop": 1}], "trip int, route string, stop int")
    with pytest.raises(ConfigError) as caught:
        update_view(spark, view, tables.paths)
    assert "the columns of the view v have changed" in str(caught.value)
    assert "its query gives stop int" in str(caught.value)
    assert caught.value.hint == "headrace pipeline refresh v --full"
    assert update_view(spark, view, tables.paths, full=True).rows_written == 60
    assert update_view(spark, other, tables.paths).keys == 1  # a column more does not touch the others
    assert {"trip": 100, "route": "Q"} in rows_of(spark, other)

    for sql, words in (
        ("select trp from stops", "trp"), ("select route from stops", "the query gives no column 'trip'"),
        ("select trip, trip from stops", "two columns 'trip'"),
        (f"drop table delta.`{tables.paths['stops']}`", "error"),
        ("select trip, cast(route as int) as route from stops", "cannot be computed"),
    ):  # fmt: skip
        with pytest.raises((ConfigError, Failed), match=words):
            update_view(spark, View("x", sql, ("trip",), str(tmp_path / "x")), tables.paths)
    assert not (tmp_path / "x").exists()

    # A table that was deleted and written again has other versions.
    shutil.rmtree(tables.paths["stops"])
    tables.stops = []
    tables.add_stops(range(5))
    made = update_view(spark, other, tables.paths)
    assert (made.mode, made.why) == ("full", "the table stops was deleted and written again")
    assert len(rows_of(spark, other)) == 5


def test_a_table_that_a_view_did_not_write_is_not_replaced_unasked(spark: SparkSession, tmp_path: Path) -> None:
    tables = Tables(spark, tmp_path)
    folder = tmp_path / "theirs"
    spark.range(3).write.format("delta").save(str(folder))
    view = View("v", "select * from stops", ("trip",), str(folder))
    with pytest.raises(ConfigError, match=r"the view v did not write the table that is at .*theirs\n") as caught:
        update_view(spark, view, tables.paths)
    assert "refresh v --full" in str(caught.value.hint)
    assert len(rows_of(spark, view)) == 3
    assert update_view(spark, view, tables.paths, full=True).rows_written == 60
    assert update_view(spark, view, tables.paths).why == "up to date"


def test_deletions_that_vacuum_has_removed_mean_a_full_computation(spark: SparkSession, tmp_path: Path) -> None:
    """Of a file with deleted rows the next deletion writes another vector: VACUUM removes the old one, not the file."""
    tables = Tables(spark, tmp_path)
    view = View("v", "select * from stops", ("trip",), str(tmp_path / "v"))
    update_view(spark, view, tables.paths)
    tables.change("stops", "alter table", "set tblproperties ('delta.enableDeletionVectors' = 'true')")
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    for trip in (7, 8):
        tables.remove_stop(trip)
        made = update_view(spark, view, tables.paths)
        tables.change("stops", "vacuum", "retain 0 hours")
    assert made.mode == "incremental"
    tables.remove_stop(9)
    tables.change("stops", "vacuum", "retain 0 hours")
    spark.conf.unset("spark.databricks.delta.retentionDurationCheck.enabled")
    made = update_view(spark, view, tables.paths)
    assert (made.mode, made.why.partition(" of ")[2]) == ("full", "the table stops has been cleaned up")
    assert ordered(rows_of(spark, view)) == ordered(tables.stops)


@pytest.mark.parametrize("point", ["merging", "committed"])
def test_an_update_that_is_killed_happens_once_or_never(spark: SparkSession, tmp_path: Path, point: str) -> None:
    tables = Tables(spark, tmp_path)
    sql, key, expected = VIEWS["by_route"]
    view = View("by_route", sql, key, str(tmp_path / "by_route"))
    update_view(spark, view, tables.paths)
    tables.add_speeds(20)
    tables.move_trip(4, "B")
    child = [sys.executable, "-m", "tests.spark.killed_view", str(tmp_path), point]
    done = subprocess.run(child, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == -9, done.stderr

    if point == "committed":
        assert len(updates(view.path)) == 2
        assert update_view(spark, view, tables.paths).mode == "none"
    tables.add_speeds(3)
    update_view(spark, view, tables.paths)
    assert ordered(rows_of(spark, view)) == ordered(expected(tables))
    account = updates(view.path)
    assert all(later.sources[name].before == earlier.sources[name].version
               for later, earlier in itertools.pairwise(account) for name in later.sources)  # fmt: skip
    assert views.update_view(spark, view, tables.paths).mode == "none"
