"""Columns that are looked up in tables and topics, compared with plain dictionaries row by row."""

from __future__ import annotations

import csv
import json
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrameWriter

from headrace.cluster import Cluster
from headrace.errors import ConfigError, Failed
from headrace.kafka import Kafka, NewTopic
from headrace.kafka.read.consumer import consume
from headrace.pipeline.books.redrive import RedrivePlan
from headrace.schemas.codec.avro import Avro
from headrace.schemas.registry import Registry, Schema
from tests.conftest import Headrace
from tests.spark.children import PATIENCE_S, child
from tests.spark.pipelines import Workshop, send, totals
from tests.spark.test_redrive import tried

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Topic = Callable[..., str]

_RIDES = """
[pipelines.p]
from   = "<topic>"
decode = { json = "id int, zone int, vendor string, fee int" }
select = { id = "id", pickup = "zone", vendor = "vendor" }
where  = "id >= 0"
max_records_per_batch = 1000

[[pipelines.p.lookup]]
table     = "tables/zones"
on        = { pickup = "LocationID" }
select    = { borough = "upper(Borough)", rate = "100 / divisor" }
unmatched = "dead"

[[pipelines.p.lookup]]
table  = "tables/vendors.csv"
on     = ["vendor"]
select = { company = "company", founded = "founded" }

[[pipelines.p.lookup]]
topic  = "<fees>"
decode = { json = "fee long, dollars double" }
on     = { fee = "fee" }
select = { dollars = "dollars", fee_key = "cast(_key as string)" }

[[pipelines.p.lookup]]
table  = "file://<here>/tables/heads"
on     = { borough = "name", company = "of" }
select = { head = "head" }

[pipelines.p.expect]
"is known" = "company is null or company != 'Nobody'"

[[pipelines.p.into]]
delta = "tables/rides"
[[pipelines.p.into]]
delta = "tables/queens"
where = "borough = 'QUEENS'"
"""


def zones(shop: Workshop, rows: Iterable[tuple[int | None, str, int]], mode: str = "overwrite") -> None:
    frame = shop.spark.createDataFrame(list(rows), "LocationID long, Borough string, divisor int")
    frame.write.format("delta").mode(mode).save(str(shop.folder / "tables/zones"))


def vendors(shop: Workshop, rows: Iterable[tuple[str, str, int]]) -> None:
    file = shop.folder / "tables/vendors.csv"
    with Path(f"{file}.new").open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([("vendor", "company", "founded"), *rows])
    Path(f"{file}.new").replace(file)


def keyed(shop: Workshop, topic: str, values: dict[str, Any]) -> None:
    for key, value in values.items():
        send(shop.cluster, topic, [value], key=key)


ZONES = {1: "Queens", 2: "Bronx", 3: "Queens", 8: "Twice", 9: "Nil"}
VENDORS = {"a": ("Able", 1990), "b": ("Baker, Inc.", 2001), "n": ("Nobody", 1)}
FEES: dict[str, Any] = {"f1": (1, 2.5), "f2": (2, 3.5), "f3": (3, 9.0)}
HEADS = {("QUEENS", "Able"): "Ann", ("BRONX", "Able"): "Bob"}


def independent(ride: dict[str, Any], zones: dict[int, str], fees: dict[str, Any]) -> dict[str, Any] | str:
    """What the ride should become: a row, or the rule that it breaks."""
    if ride["zone"] not in zones or zones[ride["zone"]] in {"Twice", "Nil"}:
        return "lookup zones"
    borough = zones[ride["zone"]].upper()
    company, founded = VENDORS.get(ride["vendor"], (None, None))
    if company == "Nobody":
        return "is known"
    fee = {number: (dollars, key) for key, (number, dollars) in fees.items()}.get(ride["fee"], (None, None))
    return {
        "id": ride["id"], "pickup": ride["zone"], "vendor": ride["vendor"], "borough": borough, "rate": 50.0,
        "company": company, "founded": founded, "dollars": fee[0], "fee_key": fee[1],
        "head": HEADS.get((borough, str(company))),
    }  # fmt: skip


def rides(first: int, count: int) -> list[dict[str, Any]]:
    numbers = range(first, first + count)
    zone = [1, 2, 3, 4, 8, 9, None, 2**31 - 1]
    vendor, fee = ["a", "b", "n", "zz", None], [1, 2, 3, None]
    return [
        {"id": n, "zone": zone[n % len(zone)], "vendor": vendor[n % len(vendor)], "fee": fee[n % len(fee)]}
        for n in numbers
    ]


def by_id(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])


def test_rows_get_the_columns_of_tables_and_topics_as_of_their_batch(
    shop: Workshop, headrace_topic: Topic, run: Headrace
) -> None:
    topic, fees = headrace_topic(partitions=2), headrace_topic(partitions=2, cleanup_policy="compact")
    shop.declare(_RIDES, topic=topic, fees=fees, here=str(shop.folder))
    zones(shop, [*((number, name, 2) for number, name in ZONES.items() if name not in {"Nil"}), (9, "Nil", 0)])
    zones(shop, [(8, "Twice", 2), (None, "Nowhere", 2), (2**40, "Far", 2)], "append")
    vendors(shop, [(name, *more) for name, more in VENDORS.items()])
    heads = [(*key, head) for key, head in HEADS.items()]
    shop.spark.createDataFrame(heads, "name string, of string, head string").write.parquet(
        str(shop.folder / "tables/heads")
    )
    keyed(shop, fees, {"f1": {"fee": 1, "dollars": 0.5}, "f2": {"fee": 2, "dollars": 3.5}, "f4": {"fee": 4}})
    keyed(shop, fees, {"f1": {"fee": 1, "dollars": 2.5}, "f4": None, "f3": {"fee": 3, "dollars": 9.0}})

    given = rides(0, 400)
    send(shop.cluster, topic, [*given, {"id": -1, "zone": 77}])
    report = shop.run()
    outcomes = [(ride, independent(ride, ZONES, FEES)) for ride in given]
    rows = [made for _, made in outcomes if isinstance(made, dict)]
    dead = [(ride["id"], made) for ride, made in outcomes if isinstance(made, str)]
    assert totals(report) == {"written": len(rows), "dead": len(dead), "filtered": 1}
    assert by_id(shop.rows("tables/rides")) == rows
    assert by_id(shop.rows("tables/queens")) == [row for row in rows if row["borough"] == "QUEENS"]
    letters = [(json.loads(letter["value"]), letter["rule"], letter["reason"]) for letter in shop.dead()]
    assert sorted((ride["id"], rule) for ride, rule, _ in letters) == dead
    assert {ride["zone"]: reason for ride, rule, reason in letters if rule == "lookup zones"} == {
        4: "no row of tables/zones has pickup = 4",
        None: "no row of tables/zones has pickup = null",
        2**31 - 1: f"no row of tables/zones has pickup = {2**31 - 1}",
        8: "2 rows of tables/zones have pickup = 8",
        9: "an expression of select failed for the row of tables/zones with pickup = 9",
    }
    used = {line.lookup: line.version for line in report.lookups}
    assert used["tables/zones"] == "version 1"
    assert used["tables/vendors.csv"].startswith("1 file of 20")
    assert used[fees].startswith("offsets 0=")

    # Everything changes: the next batch sees it, in the same run or in the next.
    zones(shop, [(1, "Queens", 2), (2, "Harbour", 2), (3, "Queens", 2), (4, "New", 2)])
    vendors(shop, [(name, *more) for name, more in {**VENDORS, "b": ("Bell", 7)}.items()])
    keyed(shop, fees, {"f2": None, "f5": {"fee": 3, "dollars": 9.0}})
    more = rides(400, 200)
    send(shop.cluster, topic, more)
    later = shop.run()
    now = {1: "Queens", 2: "Harbour", 3: "Queens", 4: "New"}
    found = {row["id"]: row for row in shop.rows("tables/rides")}
    for ride in more:
        made = independent(ride, now, {"f1": (1, 2.5)})
        if isinstance(made, dict) and ride["fee"] != 3:
            made["company"], made["founded"] = {"b": ("Bell", 7)}.get(
                ride["vendor"], (made["company"], made["founded"])
            )
            assert found.pop(ride["id"]) == made
        else:  # two records of the topic have the fee 3
            assert ride["id"] not in found
    assert len(found) == len(rows)
    assert {line.lookup: line.version for line in later.lookups}["tables/zones"] == "version 2"
    assert totals(later)["written"] + totals(later)["dead"] == 200

    words = ("--file", str(shop.file), "--home", str(shop.home.root))
    shown = run("pipeline", "ledger", "p", *words).out
    assert [line.split()[1:] for line in shown.splitlines() if "tables/zones" in line] == [
        ["tables/zones", "version", "1", "0"], ["tables/zones", "version", "2", "1"]
    ]  # fmt: skip
    document = json.loads(run("pipeline", "ledger", "p", "--json", *words).out)
    assert {line["lookup"]: line["version"] for line in document["runs"][0]["lookups"]} == used
    # Nothing that a run has cached or stored for earlier batches is left.
    stored = [path for path in (shop.home.root / "pipelines/p/lookups").iterdir() if path.is_dir()]
    assert len(stored) == 4

    assert tried(shop, RedrivePlan())[1][("written", "")] > 0


def test_a_topic_of_avro_is_looked_up_by_every_schema_that_it_was_written_with(
    tmp_path: Path, with_registry: Cluster, spark: SparkSession
) -> None:
    shop = Workshop(tmp_path, with_registry, spark, with_registry.registry)
    topic, names = f"rides-{tmp_path.name}", f"names-{tmp_path.name}"
    Kafka(with_registry).create_topics([NewTopic(name, 1, 1) for name in (topic, names)])
    given = f'topic = "{names}", decode = {{ avro = "{names}-value" }}'
    shop.declare(_BOTH.replace('table = "<table>"', given), topic=topic)
    with pytest.raises(ConfigError, match=rf"line 7: .*{names}-value"):
        shop.pipeline().explain(spark, with_registry.registry)
    fields = [{"name": "zone", "type": "int"}, {"name": "name", "type": "string"}]
    for version, rows in enumerate(([(1, "one"), (2, "old")], [(2, "two"), (3, "three")])):
        more = [{"name": "note", "type": "string", "default": ""}] if version else []
        schema = Schema(json.dumps({"type": "record", "name": "Place", "fields": fields + more}))
        with Registry(with_registry.registry) as registry:
            number = registry.register(f"{names}-value", schema)
        for zone, name in rows:
            row = {"zone": zone, "name": name, **({"note": "x"} if version else {})}
            send(with_registry, names, Avro(schema, {}).encode([row], b"\0" + number.to_bytes(4, "big")), key=str(zone))
    send(with_registry, topic, [{"id": n, "zone": n} for n in range(5)], key="k")
    assert totals(shop.run()) == {"written": 3, "dead": 2}
    assert [(row["id"], row["name"]) for row in by_id(shop.rows("tables/rides"))] == [
        (1, "one"), (2, "two"), (3, "three")
    ]  # fmt: skip


_MISTAKES = """
[pipelines.p]
from   = "a"
decode = { json = "id int, zone int, at timestamp" }
into   = { delta = "tables/rides" }
where  = "id > 0"
lookup = [
  { table = "tables/zones", on = { zone = "LocationID" }, select = { borough = "Borough" } },
  { topic = "fees", on = { borough = "cast(_key as string)" }, select = { fee = "value" } },
]
"""


def test_what_does_not_fit_is_found_before_anything_runs(shop: Workshop) -> None:
    mistakes = [
        ("tables/zones", "tables/none", "line 7: there is no table tables/none"),
        ('{ zone = "LocationID" }', '["zone"]', "line 7: A column, variable, or function parameter with name `zone`"),
        ('{ zone = "LocationID" }', '{ place = "LocationID" }', "line 7: .*`place`"),
        ('{ zone = "LocationID" }', '{ zone = "Borough" }', "line 7: zone is int here, and Borough is string in"),
        ('{ zone = "LocationID" }', '{ at = "LocationID" }', "line 7: at is timestamp here, and LocationID is bigint"),
        ('{ borough = "Borough" }', '{ borough = "borough" }', "line 7: .*`borough` cannot be resolved"),
        ('{ borough = "Borough" }', '{ id = "Borough" }', "line 7: the lookup makes a column id, which is there"),
        ('{ borough = "Borough" }', '{ borough = "explode(array(1))" }', "line 7: "),
        ('{ borough = "Borough" }', '{ borough = "upper(" }', "line 7: "),
        ('"cast(_key as string)"', '"_key"', "line 7: borough is string here, and _key is binary in fees"),
        ('where  = "id > 0"', 'where  = "borow > 0"', "line 6: .*`borow` cannot be resolved"),
    ]
    zones(shop, [(1, "Queens", 2)])
    shop.declare(_MISTAKES)
    steps = dict(shop.pipeline().explain(shop.spark))
    assert [f"{field.name} {field.dataType.simpleString()}" for field in steps["lookup"].fields] == [
        "id int", "zone int", "at timestamp", "borough string", "fee string"
    ]  # fmt: skip
    for old, new, words in mistakes:
        assert old in _MISTAKES
        shop.declare(_MISTAKES.replace(old, new, 1))
        with pytest.raises(ConfigError, match=words) as said:
            shop.pipeline().explain(shop.spark)
        assert "\n" not in said.value.problem


_BOTH = """
[pipelines.p]
from   = "<topic>"
decode = { json = "id int, zone int" }
max_records_per_batch = 50
dead_letters = "<topic>.dead"
lookup = [{ table = "<table>", on = ["zone"], select = { name = "name" }, unmatched = "dead" }]
[[pipelines.p.into]]
delta = "tables/rides"
[[pipelines.p.into]]
topic = "<topic>.out"
"""


def places(shop: Workshop, table: str, names: dict[int, str]) -> None:
    rows = shop.spark.createDataFrame(list(names.items()), "zone int, name string").coalesce(1)
    if table.endswith(".csv"):
        file = shop.folder / table
        file.parent.mkdir(exist_ok=True)
        lines = ["zone,name", *[f"{zone},{name}" for zone, name in names.items()]]
        Path(f"{file}.new").write_text("\n".join(lines), encoding="utf-8")
        Path(f"{file}.new").replace(file)
    else:
        rows.write.format("delta").mode("overwrite").save(str(shop.folder / table))


def ids(shop: Workshop, topic: str) -> list[int]:
    return [json.loads(record.value or b"")["id"] for record in consume(shop.cluster, topic)]


def test_a_table_that_is_gone_stops_the_run_which_continues_once_it_is_back(
    shop: Workshop, headrace_topic: Topic
) -> None:
    topic = headrace_topic()
    shop.declare(_BOTH, topic=topic, table="tables/zones")
    places(shop, "tables/zones", {1: "one", 2: "two"})
    send(shop.cluster, topic, [{"id": n, "zone": n % 4} for n in range(120)], key="k")
    here, away = shop.folder / "tables/zones", shop.folder / "tables/away"
    with pytest.raises(Failed, match=r"line 7: there is no table tables/zones") as said:
        shop.run(on_batch=lambda entry: entry.batch or here.rename(away))
    assert "nothing of the batch was written" in str(said.value.why)
    with pytest.raises(ConfigError, match=r"line 7: there is no table tables/zones"):
        shop.run()
    assert len(shop.rows("tables/rides")) == 25
    away.rename(here)
    assert totals(shop.run()) == {"written": 35, "dead": 35}
    good = [n for n in range(120) if n % 4 in {1, 2}]
    assert [row["id"] for row in by_id(shop.rows("tables/rides"))] == good
    assert ids(shop, f"{topic}.out") == good
    assert sorted(ids(shop, f"{topic}.dead")) == [n for n in range(120) if n % 4 not in {1, 2}]


def test_a_batch_that_is_repeated_after_a_kill_looks_up_what_it_did_before(
    shop: Workshop, headrace_topic: Topic
) -> None:
    """The driver dies when the table has the batch and the topics do not; meanwhile the looked up table changes."""
    topic = headrace_topic()
    shop.declare(_BOTH, topic=topic, table="tables/zones.csv")
    places(shop, "tables/zones.csv", {1: "one", 2: "two"})
    send(shop.cluster, topic, [{"id": n, "zone": n % 4} for n in range(50)], key="k")
    with child("killed", shop.folder, shop.cluster.bootstrap) as process:
        assert process.wait(PATIENCE_S) == -signal.SIGKILL
    written = by_id(shop.rows("tables/rides"))
    assert len(written) == 25
    # What was unmatched is not any more, and the other way round.
    places(shop, "tables/zones.csv", {0: "nought", 2: "other", 3: "three"})
    send(shop.cluster, topic, [{"id": n, "zone": n % 4} for n in range(50, 90)], key="k")
    report = shop.run()
    assert totals(report) == {"written": 25 + 30, "dead": 25 + 10}
    names = [(n, {1: "one", 2: "two"}.get(n % 4)) for n in range(50)]
    names += [(n, {0: "nought", 2: "other", 3: "three"}.get(n % 4)) for n in range(50, 90)]
    good = [(n, name) for n, name in names if name]
    assert [(row["id"], row["name"]) for row in by_id(shop.rows("tables/rides"))] == good
    assert ids(shop, f"{topic}.out") == [n for n, _ in good]
    assert sorted(ids(shop, f"{topic}.dead")) == [n for n, name in names if not name]
    assert len({line.version for line in report.lookups}) == 2


def test_a_large_table_is_joined_in_order_without_a_broadcast(shop: Workshop, headrace_topic: Topic) -> None:
    topic = headrace_topic(partitions=2)
    small = 'spark = { "spark.sql.autoBroadcastJoinThreshold" = "-1" }\n[[pipelines.p.into]]'
    declared = _BOTH.replace("= 50", "= 100000").replace("[[pipelines.p.into]]", small, 1)
    declared = declared.replace(
        '.out"', '.out"\nkey = "bucket"\nselect = { id = "id", name = "name", bucket = "id % 7" }'
    )
    shop.declare(declared, topic=topic, table="tables/large")
    large = shop.spark.range(40_000).selectExpr("cast(id as int) as zone", "concat('zone ', id) as name")
    large.write.format("delta").save(str(shop.folder / "tables/large"))
    numbers = [(n * 7919) % 50_000 for n in range(3000)]
    send(shop.cluster, topic, [{"id": n, "zone": number} for n, number in enumerate(numbers)])
    expected = {n: f"zone {number}" for n, number in enumerate(numbers) if number < 40_000}
    assert totals(shop.run()) == {"written": len(expected), "dead": 3000 - len(expected)}
    assert {row["id"]: row["name"] for row in shop.rows("tables/rides")} == expected
    sent = [json.loads(record.value or b"") for record in consume(shop.cluster, f"{topic}.out")]
    assert {made["id"]: made["name"] for made in sent} == expected
    for bucket in range(7):
        order = [made["id"] for made in sent if made["bucket"] == bucket]
        assert order == sorted(order)


def test_a_record_that_cannot_be_looked_up_stops_the_run(shop: Workshop, headrace_topic: Topic) -> None:
    topic, names = headrace_topic(), headrace_topic()
    given = f'topic = "{names}", decode = {{ json = "zone int, name string" }}'
    shop.declare(_BOTH.replace('table = "<table>"', given), topic=topic)
    send(shop.cluster, topic, [{"id": n, "zone": n} for n in range(3)], key="k")
    keyed(shop, names, {"a": {"zone": 1, "name": "one"}, "b": b"{torn"})
    with pytest.raises(Failed, match=rf"line 7: the record {names}/0/1 cannot be looked up") as said:
        shop.run()
    assert "not a JSON object" in str(said.value.why)
    keyed(shop, names, {"b": None, "a": {"zone": 2, "name": "two"}})
    assert totals(shop.run()) == {"written": 1, "dead": 2}
    assert [(row["id"], row["name"]) for row in shop.rows("tables/rides")] == [(2, "two")]


def test_rows_that_executors_stored_on_other_disks_are_missed(
    shop: Workshop, headrace_topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a Spark cluster whose machines do not share the home: the folder is there, and no file is in it."""
    topic, stored = headrace_topic(), DataFrameWriter.parquet
    (shop.folder / "names.csv").write_text("id,name\n1,one\n")
    shop.declare(
        """
[pipelines.p]
from = "<topic>"
decode = { json = "id int" }
lookup = { table = "names.csv", on = "id", select = { name = "name" } }
into = { delta = "t" }
""",
        topic=topic,
    )
    send(shop.cluster, topic, [{"id": 1}])

    def elsewhere(writer: Any, path: str, *more: Any) -> None:
        stored(writer, path, *more)
        for part in Path(path).glob("part-*"):
            part.unlink()

    with monkeypatch.context() as changed:
        changed.setattr(DataFrameWriter, "parquet", elsewhere)
        with pytest.raises(Failed, match=r"the rows of names\.csv were stored, and are not there") as caught:
            shop.run()
    assert "--home" in str(caught.value.hint)
    assert totals(shop.run()) == {"written": 1}
    assert [row["name"] for row in shop.rows("t")] == ["one"]
