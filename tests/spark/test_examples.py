"""The examples, as their files stand, checked row by row against computations that know nothing of Spark."""

from __future__ import annotations

import datetime
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.cluster import Cluster
from headrace.kafka import Kafka, NewTopic
from headrace.kafka.read.consumer import consume
from headrace.runtime.waiting import eventually
from headrace.samples import Sample, breadcrumbs, iris, ride_schema, stops, taxi, zones
from headrace.schemas.registry import Registry, Schema
from headrace.tables.table import read_table
from tests.conftest import processes_of
from tests.postgres import Server
from tests.spark.children import PATIENCE_S, told
from tests.spark.pipelines import Workshop, send, totals
from tests.spark.standalone import standalone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"


def take(name: str, folder: Path, **topics: str) -> None:
    """The example in the test's folder, on topics of the test."""
    text = (EXAMPLES / name / "headrace.toml").read_text(encoding="utf-8")
    for old, new in topics.items():
        text = text.replace(f'"{old.replace("__", ".")}', f'"{new}').replace(f"'{old}'", f"'{new}'")
    (folder / "headrace.toml").write_text(text, encoding="utf-8")


def test_breadcrumbs(shop: Workshop, headrace_topic: Callable[..., str]) -> None:
    topic = headrace_topic(partitions=3)
    take("breadcrumbs", shop.folder, breadcrumbs=topic)
    name = next(iter(shop.file.read_text().split("[pipelines.")[1:])).split("]")[0]
    old = _values(breadcrumbs(records=600, bad=0.05, seed=3))
    new = _values(breadcrumbs(records=400, bad=0.05, seed=4, shape=2022))
    expected: list[dict[str, Any]] = []
    dead = 0
    for batch in (old[:300] + new[:200], old[300:] + new[200:]):
        send(shop.cluster, topic, batch)
        rows = [row for row in map(_independent, batch) if row is not None]
        expected += rows
        dead += len(batch) - len(rows)
        assert totals(shop.run(name)) == {"written": len(rows), "dead": len(batch) - len(rows)}
    found = shop.rows("tables/breadcrumbs")
    assert _sorted(found) == _sorted(expected)
    assert dead > 20
    _check_trips(shop, expected)
    _check_speeds(shop, expected)


#: A view of the example's table, and a pipeline that looks it up.
_BEHIND = """
[views.per_vehicle]
sql = "select vehicle, count(*) as n from breadcrumbs group by vehicle"
key = "vehicle"

[pipelines.again]
from   = "<topic>"
decode = { json = "VEHICLE_ID string" }
select = { vehicle = "cast(VEHICLE_ID as int)" }
lookup = { table = "tables/per_vehicle", on = ["vehicle"], select = { n = "n" }, unmatched = "dead" }
into   = { delta = "tables/again" }
"""


@pytest.mark.timeout(PATIENCE_S)  # six JVMs start from nothing: on a busy machine that takes its time
def test_breadcrumbs_on_a_cluster_of_two_workers(
    tmp_path: Path, headrace_cluster: Any, headrace_topic: Callable[..., str]
) -> None:
    topic = headrace_topic(partitions=2)
    take("breadcrumbs", tmp_path, breadcrumbs=topic)
    with (tmp_path / "headrace.toml").open("a", encoding="utf-8") as file:
        file.write(_BEHIND.replace("<topic>", topic))
    given = _values(breadcrumbs(records=300, bad=0.1, seed=5))
    send(headrace_cluster, topic, given)
    with standalone(tmp_path / "cluster") as master:
        [refusal] = told("crowded", tmp_path, master, "breadcrumbs", headrace_cluster.bootstrap)
        [answer] = told("cluster", tmp_path, master, "breadcrumbs", headrace_cluster.bootstrap)
    rows = [row for row in map(_independent, given) if row is not None]
    assert (refusal["error"], refusal["code"]) == (f"Spark at {master} has given no executor", 4)
    assert "spark.executor.memory" in refusal["why"]
    assert answer["states"] == dict.fromkeys(("breadcrumbs", "per_vehicle", "again"), "done")
    again = [row for batch in read_table(tmp_path / "tables/again").batches() for row in batch.to_pylist()]
    assert {row["vehicle"]: row["n"] for row in again} == Counter(row["vehicle"] for row in rows)
    assert answer["balanced"]
    assert (answer["outcomes"]["written"], answer["outcomes"]["dead"]) == (len(rows), len(given) - len(rows))
    found = [row for batch in read_table(tmp_path / "tables/breadcrumbs").batches() for row in batch.to_pylist()]
    assert _sorted([{**row, "at": row["at"].replace(tzinfo=None)} for row in found]) == _sorted(rows)
    assert sum(1 for _ in consume(headrace_cluster, f"{topic}.dead")) == len(given) - len(rows)
    assert answer["executors"] == 2
    assert answer["total"] == sum(range(100))
    assert not answer["here"]
    assert all("headrace.zip" in package for package in answer["packages"])
    eventually(lambda: not processes_of(tmp_path), 120)


def _values(sample: Sample) -> list[bytes]:
    return [made.text for made in sample.made()]


def _independent(value: bytes, *, transit: bool = False) -> dict[str, Any] | None:
    """What the record should become; None if it should not. `transit` has fewer rules."""
    try:
        record = json.loads(value)
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None

    def text(field: str) -> str | None:
        found = record.get(field)
        return None if found is None or found == "" else found if isinstance(found, str) else json.dumps(found)

    try:
        day = _day(text("OPD_DATE"))
        seconds = int(str(text("ACT_TIME"))) if text("ACT_TIME") is not None else None
        row: dict[str, Any] = {
            "trip": _number(text("EVENT_NO_TRIP")), "vehicle": _number(text("VEHICLE_ID")), "day": day,
            "at": datetime.datetime.combine(day, datetime.time()) + datetime.timedelta(seconds=seconds)
            if day and seconds is not None else None,
            "meters": _number(text("METERS")), "velocity": _number(text("VELOCITY")),
            "direction": _number(text("DIRECTION")), "latitude": _float(text("GPS_LATITUDE")),
            "longitude": _float(text("GPS_LONGITUDE")), "hdop": _float(text("GPS_HDOP")),
        }  # fmt: skip
    except ValueError:
        return None
    inside = row["latitude"] is None or (
        45 <= row["latitude"] <= 46 and row["longitude"] is not None and -124 <= row["longitude"] <= -122
    )
    ahead = row["velocity"] is None or row["velocity"] >= 0
    if transit:
        timed = row["trip"] is not None and row["vehicle"] is not None and row["at"] is not None
        return {key: row[key] for key in ("trip", "vehicle", "at", "meters", "velocity")} if timed and ahead else None
    compass = row["direction"] is None or 0 <= row["direction"] <= 359
    known = row["trip"] is not None and row["vehicle"] is not None and row["at"] is not None and (seconds or 0) >= 0
    return row if known and inside and ahead and compass else None


def _day(text: str | None) -> datetime.date | None:
    if text is None:
        return None
    for form in ("%d-%b-%y", "%d%b%Y:%H:%M:%S"):
        try:
            return datetime.datetime.strptime(text, form).date()
        except ValueError:
            continue
    raise ValueError(text)


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def _float(text: str | None) -> float | None:
    return None if text is None else float(text)


def _sorted(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True, default=str) for row in rows)


def _by_trip(rows: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    trips: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        trips[row["trip"]].append(row)
    return trips


def _check_trips(shop: Workshop, rows: list[dict[str, Any]]) -> None:
    expected = {
        trip: (min(r["at"] for r in found), max(r["at"] for r in found), len(found))
        for trip, found in _by_trip(rows).items()
    }
    found = {row["trip"]: (row["begins"], row["ends"], row["breadcrumbs"]) for row in shop.rows("tables/trips")}
    assert found == expected


def _check_speeds(shop: Workshop, rows: list[dict[str, Any]]) -> None:
    """Where times and metres are unambiguous: a trip's rows all at different times, all with metres."""
    found = {(row["trip"], row["at"]): row["speed"] for row in shop.rows("tables/speeds")}
    looked_at = 0
    for trip, points in _by_trip(rows).items():
        points.sort(key=lambda row: row["at"])
        if len({p["at"] for p in points}) < len(points) or any(p["meters"] is None for p in points) or len(points) < 2:
            continue
        pairs = list(itertools.pairwise(points))
        speeds = [(b["meters"] - a["meters"]) / (b["at"] - a["at"]).total_seconds() for a, b in pairs]
        for point, speed in zip(points, [speeds[0], *speeds], strict=True):
            assert found[trip, point["at"]] == pytest.approx(speed)
            looked_at += 1
    assert looked_at > 50


def test_transit(shop: Workshop, headrace_topic: Callable[..., str], postgres: Server) -> None:
    topics = headrace_topic(partitions=3), headrace_topic(partitions=2)
    take("transit", shop.folder, breadcrumbs=topics[0], stops=topics[1])
    # With the sink that is for those who have a PostgreSQL.
    above, mark, below = shop.file.read_text().partition("# [[")
    sink = (mark + below).replace("# ", "").replace("postgresql://localhost/transit", postgres.url())
    sink = sink.replace('table    = "routes"', f'table = "{topics[0]}"\npassword_file = "{postgres.password_file}"')
    shop.file.write_text(above + sink)
    crumbs, events = _values(breadcrumbs(records=4000, bad=0.02, seed=2, vehicles=3)), list(stops(4000, 2, vehicles=3))
    send(shop.cluster, topics[0], crumbs)
    send(shop.cluster, topics[1], events)
    ways = {e["trip_id"]: (e["route_number"], e["direction"], e["service_key"]) for e in events}
    first = {
        e["trip_id"]: datetime.datetime.fromisoformat(e["service_date"]) + datetime.timedelta(seconds=e["leave_time"])
        for e in events if e["sequence"] == 1
    }  # fmt: skip
    good = [row for crumb in crumbs if (row := _independent(crumb, transit=True)) is not None]
    report = shop.run("transit")
    assert totals(report) == {
        "written": len(good) + len(first), "dead": len(crumbs) - len(good), "filtered": len(events) - len(first)
    }  # fmt: skip
    near = datetime.timedelta(hours=2)
    joined = [
        {**row, "way": ways[row["trip"]]}
        for row in good if row["trip"] in first and abs(row["at"] - first[row["trip"]]) <= near
    ]  # fmt: skip
    found = [
        {key: row[key] for key in ("trip", "vehicle", "at", "meters", "velocity")}
        | {"way": (row["route"], row["direction"], row["service"])}
        for row in shop.rows("tables/positions")
    ]
    assert _sorted(found) == _sorted(joined)
    by_trip: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    by_way: dict[Any, list[int]] = defaultdict(list)
    for row in joined:
        by_trip[row["trip"], row["vehicle"], *row["way"]].append(row)
        by_way[row["way"]].append(row["velocity"])
    keys = ("trip", "vehicle", "route", "direction", "service")
    assert {
        tuple(row[key] for key in keys): (row["begins"], row["ends"], row["breadcrumbs"], row["metres"])
        for row in shop.rows("tables/trips")
    } == {
        key: (
            min(r["at"] for r in rows), max(r["at"] for r in rows), len(rows),
            max(r["meters"] for r in rows) - min(r["meters"] for r in rows),
        )
        for key, rows in by_trip.items()
    }  # fmt: skip
    routes = {(r["route"], r["direction"], r["service"]): r["velocity"] for r in shop.rows("tables/routes")}
    in_postgres = postgres.rows(f'select route, direction, service, velocity from "{topics[0]}"')
    assert {tuple(key): velocity for *key, velocity in in_postgres} == routes
    for row in shop.rows("tables/routes"):
        velocities = by_way.pop((row["route"], row["direction"], row["service"]))
        known = [velocity for velocity in velocities if velocity is not None]
        assert (row["breadcrumbs"], row["fastest"]) == (len(velocities), max(known))
        assert row["velocity"] == pytest.approx(sum(known) / len(known))
    assert not by_way
    matched = [len(joined), len({row["trip"] for row in joined})]
    assert [(line.matched, line.unmatched) for line in report.joins] == [(n, 0) for n in matched]
    assert [line.waiting for line in report.joins] == [len(good) - matched[0], len(first) - matched[1]]


def test_iris(shop: Workshop, headrace_topic: Callable[..., str]) -> None:
    both, one = headrace_topic(partitions=2), headrace_topic(partitions=2)
    take("iris", shop.folder, virginicasetosa=both, versicolor=one)
    text = shop.file.read_text().replace(f"then '{one}'", "then 'versicolor'")
    shop.file.write_text(text)
    producer_rows: dict[str, list[tuple[float, float]]] = defaultdict(list)
    from headrace.kafka.client import connect

    producer = connect(shop.cluster).producer()
    for number, flower in enumerate(iris()):
        kind = flower["class"]
        size = (float(flower["sepal_length"]), float(flower["sepal_width"]))
        producer_rows[kind].append(size)
        place = {"virginica": (both, 0), "setosa": (both, 1)}.get(kind, (one, number % 2))
        producer.produce(place[0], json.dumps(size).encode(), partition=place[1])
    assert producer.flush(30) == 0
    name = shop.file.read_text().split("[pipelines.")[1].split("]")[0]
    assert totals(shop.run(name)) == {"written": 150}
    classes = {row["class"]: row for row in shop.rows("tables/classes")}
    assert {kind: row["flowers"] for kind, row in classes.items()} == dict.fromkeys(producer_rows, 50)
    for kind, sizes in producer_rows.items():
        assert classes[kind]["mean_length"] == pytest.approx(sum(s[0] for s in sizes) / 50)
        assert classes[kind]["mean_width"] == pytest.approx(sum(s[1] for s in sizes) / 50)


def test_taxi(tmp_path: Path, with_registry: Cluster, spark: SparkSession) -> None:
    from headrace.schemas.codec.avro import Avro

    topic = "datatalkclub.yellow_taxi_rides"
    Kafka(with_registry).create_topics([NewTopic(topic, 2, 1)])
    shop = Workshop(tmp_path, with_registry, spark, with_registry.registry)
    take("taxi", tmp_path)
    rides: list[dict[str, Any]] = []
    with Registry(with_registry.registry) as registry:
        for version in (1, 2, 3):
            number = registry.register(f"{topic}-value", Schema(ride_schema(version)))
            records = [json.loads(line) for line in _values(taxi(records=120, seed=version, shape=f"v{version}"))]
            head = b"\0" + number.to_bytes(4, "big")
            encoded = Avro(Schema(ride_schema(version)), {}).encode(records, head)
            send(with_registry, topic, encoded)
            rides += records
    damaged = [b"\0\0\0\xff\xffno such id", b"\1not framed", b"\0\0\0\0", None, bytes(encoded[0])[:7]]  # type: ignore[arg-type]
    send(with_registry, topic, damaged)
    report = shop.run("taxi")
    owed = [ride for ride in rides if ride["total_amount"] < 0]
    paid = len(rides) - len(owed)
    assert totals(report) == {"written": paid, "dead": len(owed) + len(damaged)}
    revenue: dict[int, float] = defaultdict(float)
    for row in shop.rows("tables/revenue"):
        revenue[row["vendor"]] += row["revenue"]
    expected: dict[int, float] = defaultdict(float)
    for ride in rides:
        if ride["total_amount"] >= 0:
            expected[ride["vendorId"]] += ride["total_amount"]
    assert revenue == pytest.approx(expected, rel=1e-5)


def test_taxi_rides_by_borough(shop: Workshop, headrace_topic: Callable[..., str]) -> None:
    topic = headrace_topic(partitions=2)
    take("taxi", shop.folder, taxi__rides=topic)
    table = {zone["LocationID"]: (zone["Borough"], zone["Zone"]) for zone in zones()}
    with (shop.folder / "zones.csv").open("wb") as file:
        zones().write(file, "csv")
    rides = [json.loads(value) for value in _values(taxi(records=1500, seed=5))]
    send(shop.cluster, topic, rides)
    report = shop.run("boroughs")
    good = [ride for ride in rides if ride["PULocationID"] in table and ride["total_amount"] >= 0]
    unknown = [ride for ride in rides if ride["PULocationID"] not in table]
    assert totals(report) == {"written": len(good), "dead": len(rides) - len(good)}
    assert Counter(shop.pipeline("boroughs").ledger.by_rule())["dead", "lookup zones", len(unknown)] == 1
    assert unknown
    expected = []
    for ride in good:
        borough, zone = table[ride["PULocationID"]]
        to_borough, to_zone = table.get(ride["DOLocationID"], (None, None))
        at = datetime.datetime.fromisoformat(ride["tpep_pickup_datetime"])
        expected.append({
            "vendor": ride["VendorID"], "at": at, "distance": float(ride["trip_distance"]),
            "total": float(ride["total_amount"]), "pickup": ride["PULocationID"], "dropoff": ride["DOLocationID"],
            "borough": borough, "zone": zone, "to_borough": to_borough, "to_zone": to_zone,
        })  # fmt: skip
    assert _sorted(shop.rows("tables/zone_rides")) == _sorted(expected)
    by_borough: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in expected:
        by_borough[row["borough"]].append(row)
    found = {row["borough"]: (row["revenue"], row["rides"], row["staying"]) for row in shop.rows("tables/boroughs")}
    assert found == {
        borough: (
            pytest.approx(sum(row["total"] for row in rows)),
            len(rows),
            sum(row["to_borough"] == borough for row in rows),
        )
        for borough, rows in by_borough.items()
    }
