"""Example data: true to the rates of real files, the same for the same seed, and its damage is known."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import fastavro
import pytest

from headrace.errors import UsageError
from headrace.kafka.write.inputs import InputOptions, RecordReader, Shape
from headrace.samples import (
    RIDE_VERSIONS,
    Sample,
    breadcrumbs,
    changes,
    customers,
    iris,
    ride_schema,
    stops,
    taxi,
    zones,
)
from headrace.samples.breadcrumb import KINDS
from headrace.samples.sample import Format
from tests.conftest import Headrace


def written(sample: Sample, layout: str | None = None) -> bytes:
    file = io.BytesIO()
    report = sample.write(file, layout)
    assert report.size_bytes == len(file.getvalue())
    return file.getvalue()


def number(text: Any) -> int:
    return int(text)


@pytest.mark.parametrize("sample", [breadcrumbs, taxi, zones, customers, changes])
def test_the_same_seed_gives_the_same_bytes(sample: Any) -> None:
    assert written(sample(500, 3)) == written(sample(500, 3))
    assert written(sample(500, 3)) != written(sample(500, 4))
    assert len(list(sample(500, 3))) == 500
    assert list(sample(0)) == []


def test_breadcrumbs_of_2020_are_strings_with_the_empty_ones_of_real_files() -> None:
    records = list(breadcrumbs(20_000))
    assert all(len(record) == 14 and all(isinstance(v, str) for v in record.values()) for record in records)
    empty = Counter(name for record in records for name, value in record.items() if not value)
    assert empty["RADIO_QUALITY"] == 20_000
    assert 0.002 < empty["VELOCITY"] / 20_000 < 0.007
    assert 0.07 < empty["SCHEDULE_DEVIATION"] / 20_000 < 0.11
    assert set(empty) == {"RADIO_QUALITY", "VELOCITY", "DIRECTION", "SCHEDULE_DEVIATION"}
    assert {record["OPD_DATE"] for record in records} == {"10-SEP-20"}


def test_breadcrumbs_of_2022_are_typed_and_a_few_have_no_place() -> None:
    records = list(breadcrumbs(60_000, shape=2022))
    assert all(len(record) == 10 for record in records)
    assert {type(record["METERS"]) for record in records} == {int}
    lost = [record for record in records if record["GPS_LATITUDE"] is None]
    assert 2 <= len(lost) <= 30
    assert all(record["GPS_LONGITUDE"] is None and record["GPS_HDOP"] >= 4 for record in lost)
    assert {record["OPD_DATE"] for record in records} == {"17DEC2022:00:00:00"}


def test_buses_drive_inside_the_city_forwards_and_past_midnight() -> None:
    trips: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for record in breadcrumbs(30_000):
        assert 45 < float(record["GPS_LATITUDE"]) < 46
        assert -124 < float(record["GPS_LONGITUDE"]) < -122
        trips[record["EVENT_NO_TRIP"]].append((number(record["ACT_TIME"]), number(record["METERS"])))
    for places in trips.values():
        meters = [meters for _, meters in sorted(places)]
        assert meters == sorted(meters)
    assert max(at for places in trips.values() for at, _ in places) > 86_400


def test_stop_events_belong_to_the_breadcrumbs_of_the_same_seed() -> None:
    seen: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for record in breadcrumbs(60_000, 5):
        seen[number(record["EVENT_NO_TRIP"])].add((number(record["EVENT_NO_STOP"]), number(record["VEHICLE_ID"])))
    events: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in stops(60_000, 5):
        events[event["trip_id"]].append(event)
    assert written(stops(60_000, 5)) == written(stops(60_000, 5)) != written(stops(60_000, 6))
    assert list(stops(0)) == []
    for trip, places in seen.items():
        if trip in events:
            assert places <= {(event["stop_id"], event["vehicle_number"]) for event in events[trip]}
    assert 0.01 < len(seen.keys() - events.keys()) / len(seen) < 0.12
    assert 0.01 < len(events.keys() - seen.keys()) / len(seen) < 0.15
    whole = [{(e["route_number"], e["direction"], e["service_key"]) for e in trip} for trip in events.values()]
    assert all(len(ways) == 1 for ways in whole)
    assert {direction for ways in whole for _, direction, _ in ways} == {0, 1}
    services = Counter(service for ways in whole for *_, service in ways)
    assert services["W"] > 0.6 * len(whole)
    assert len(services) > 2
    for driven in events.values():
        assert [event["sequence"] for event in driven] == list(range(1, len(driven) + 1))
        assert all(a["leave_time"] <= b["arrive_time"] <= b["leave_time"] for a, b in pairwise(driven))


def test_trips_are_stored_out_of_order_but_time_ascends_within_them() -> None:
    newest = late = pairs = ascending = 0
    last: dict[str, int] = {}
    for record in breadcrumbs(60_000):
        at, trip = number(record["ACT_TIME"]), record["EVENT_NO_TRIP"]
        late += at < newest - 600
        newest = max(newest, at)
        pairs += trip in last
        ascending += at >= last.get(trip, at + 1)
        last[trip] = at
    assert 0.80 < late / 60_000 < 0.90
    assert 0.997 < ascending / pairs < 0.9995


def test_more_than_a_day_fills_further_days() -> None:
    counted = Counter(chunk[2][0] for chunk in breadcrumbs(400_000).chunks() for _ in chunk[0])
    assert counted == {"10-SEP-20": 370_000, "11-SEP-20": 30_000}


def test_as_many_vehicles_as_asked() -> None:
    assert len({record["VEHICLE_ID"] for record in breadcrumbs(1000, vehicles=40)}) == 40


@pytest.mark.parametrize("layout", ["array", "pretty", "ndjson", "concatenated", "strings", "csv"])
def test_every_format_is_read_back_alike(layout: str, tmp_path: Path) -> None:
    sample = breadcrumbs(700, bad=0.1, fits="csv" if layout == "csv" else "array")
    file = tmp_path / "sample"
    file.write_bytes(written(sample, layout))
    shape = None if layout != "pretty" else Shape.ARRAY
    with RecordReader(file, InputOptions(shape=shape, parsed=True)) as reader:
        read = [record for batch in reader for record in batch.objects or ()]
    assert len(read) == 700
    if layout != "csv":
        assert read == list(sample)


def test_the_days_file_is_one_line() -> None:
    text = written(breadcrumbs(1000))
    assert text.count(b"\n") == 1
    assert len(json.loads(text)) == 1000


def test_every_kind_of_damage_is_known_and_is_there() -> None:
    for shape, kinds in KINDS.items():
        sound = list(breadcrumbs(2000, shape=shape))
        sample = breadcrumbs(2000, shape=shape, damage=dict.fromkeys(kinds, 0.01))
        seen: Counter[str] = Counter()
        for at, made in enumerate(sample.made()):
            if made.damage is None:
                assert made.value == sound[at]
                continue
            assert made.damage.record == at
            seen[made.damage.kind] += 1
            if made.damage.of is not None:
                assert made.value == sound[made.damage.of]
            assert made.value != sound[at]
        assert set(seen) == set(kinds)
        assert all(5 <= count <= 45 for count in seen.values())


def test_damage_by_name() -> None:
    for made in breadcrumbs(2000, damage={"truncated": 0.01, "invalid-utf8": 0.01, "missing-trip": 0.01}).made():
        kind = made.damage.kind if made.damage else None
        if kind == "truncated":
            with pytest.raises(ValueError, match="line 1"):
                json.loads(made.text)
        if kind == "invalid-utf8":
            with pytest.raises(UnicodeDecodeError):
                made.text.decode()
        if kind == "missing-trip":
            assert "EVENT_NO_TRIP" not in made.value


def test_a_share_of_bad_records_leaves_the_file_readable() -> None:
    assert len(json.loads(written(breadcrumbs(3000, bad=0.2, fits="array"), "array"))) == 3000


@pytest.mark.parametrize(
    ("wrong", "word"),
    [({"bad": 1.5}, "1.5"), ({"damage": {"rust": 0.1}}, "rust"), ({"shape": 1999}, "1999"),
     ({"damage": {"null": 0.7, "duplicate": 0.7}}, "1.4")],
)  # fmt: skip
def test_what_cannot_be_made_is_said(wrong: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        breadcrumbs(**wrong)


def test_taxi_rides_have_the_oddities_of_real_files() -> None:
    rides = list(csv.DictReader(io.StringIO(written(taxi(20_000)).decode())))
    assert len(rides) == 20_000
    assert 0.03 < sum(float(ride["trip_distance"]) == 0 for ride in rides) / 20_000 < 0.05
    assert 0.001 < sum(float(ride["total_amount"]) < 0 for ride in rides) / 20_000 < 0.004
    backwards = sum(ride["tpep_pickup_datetime"] > ride["tpep_dropoff_datetime"] for ride in rides)
    assert 0.001 < backwards / 20_000 < 0.004
    assert any(ride["passenger_count"] == "" for ride in rides)
    assert any(a["tpep_pickup_datetime"] > b["tpep_pickup_datetime"] for a, b in pairwise(rides))


@pytest.mark.parametrize("writer", RIDE_VERSIONS)
@pytest.mark.parametrize("reader", RIDE_VERSIONS)
def test_each_version_of_a_ride_is_read_with_each_schema(writer: int, reader: int) -> None:
    wrote, reads = (fastavro.parse_schema(json.loads(ride_schema(version))) for version in (writer, reader))
    for ride in taxi(50, shape=f"v{writer}"):
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, wrote, ride)
        buffer.seek(0)
        back: Any = fastavro.schemaless_reader(buffer, wrote, reads)
        assert back["vendorId"] == ride["vendorId"]
        assert len(back) == 4 + reader
        assert back["total_amount"] == pytest.approx(ride["total_amount"])


def test_customers_have_no_header_row_and_nine_columns() -> None:
    text = written(customers()).decode()
    rows = list(csv.reader(io.StringIO(text)))
    assert len(rows) == 12_434
    assert {len(row) for row in rows} == {9}
    assert [row[0] for row in rows] == [str(at) for at in range(1, 12_435)]
    assert any(row[5].endswith(" ") for row in rows)
    assert ' ",' in text


def test_zones_are_a_table_in_which_most_rides_are_found() -> None:
    table = {zone["LocationID"]: zone for zone in zones()}
    assert list(table) == list(range(1, 261))
    assert len({zone["Zone"] for zone in zones(3000)}) == 3000
    assert list(zones(50)) == list(zones())[:50]
    missing = [ride for ride in taxi(5000) if ride["PULocationID"] not in table]
    assert 20 < len(missing) < 120


def test_iris_is_the_table_of_1936() -> None:
    rows = list(iris())
    assert Counter(row["class"] for row in rows) == {"setosa": 50, "versicolor": 50, "virginica": 50}
    means = {
        name: round(sum(row["sepal_length"] for row in rows if row["class"] == name) / 50, 3)
        for name in ("setosa", "versicolor", "virginica")
    }
    assert means == {"setosa": 5.006, "versicolor": 5.936, "virginica": 6.588}
    assert rows[34]["petal_width"] == 0.2
    assert written(iris(), Format.CSV).splitlines()[0] == b"sepal_length,sepal_width,petal_length,petal_width,class"


def test_the_command_writes_a_file_and_the_truth_about_it(run: Headrace, tmp_path: Path) -> None:
    file, truth = tmp_path / "day.json", tmp_path / "truth.ndjson"
    done = run("sample", "breadcrumbs", "-n", "1000", "--bad", "0.05", "-o", str(file), "--truth", str(truth), "--json")
    assert done.code == 0
    told = [json.loads(line) for line in truth.read_text().splitlines()]
    assert json.loads(done.out)["damaged"] == Counter(each["kind"] for each in told)
    assert 20 < len(told) < 100
    assert len(json.loads(file.read_bytes())) == 1000


def test_the_command_streams_to_standard_output(run: Headrace) -> None:
    done = run("sample", "iris", "--format", "ndjson")
    assert [json.loads(line)["class"] for line in done.out.splitlines()].count("virginica") == 50
    assert run("sample", "breadcrumbs", "--damage", "rust=1").code == 2
    assert run("sample", "breadcrumbs", "--damage", "rust").code == 2
    refused = run("sample", "breadcrumbs", "--format", "csv", "--damage", "null=0.1")
    assert refused.code == 2
    assert "ndjson" in refused.err


def test_changes_come_late_twice_and_in_disorder_with_the_deletes_of_rows_that_were_there() -> None:
    events = list(changes(20_000, seed=2))
    places = [event["source"]["lsn"] for event in events]
    late = sum(at < max(places[max(0, n - 400) : n], default=0) for n, at in enumerate(places))
    assert 0.05 < late / 20_000 < 0.2
    assert 0.02 < 1 - len(set(places)) / 20_000 < 0.05
    assert 0.03 < sum(event["op"] == "d" for event in events) / 20_000 < 0.1
    # Put in order, they are the life of each customer.
    living: set[int] = set()
    for event in {event["source"]["lsn"]: event for event in sorted(events, key=lambda e: number(e["ts_ms"]))}.values():
        row, op = event["before"] if event["op"] == "d" else event["after"], event["op"]
        assert (row["id"] in living) == (op != "c")
        (living.discard if op == "d" else living.add)(row["id"])
    assert [event["ts_ms"] for event in sorted(events, key=lambda e: number(e["source"]["lsn"]))] == sorted(
        event["ts_ms"] for event in events
    )
