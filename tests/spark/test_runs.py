"""Pipelines on real Kafka and real Spark: every record has one outcome, and every table holds what an independent
computation says it must."""

from __future__ import annotations

import datetime
import io
import itertools
import json
import os
import random
import signal
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from confluent_kafka import TopicPartition
from pyspark.sql import functions as F

from headrace.cluster import Cluster
from headrace.errors import ConfigError, Failed, SetupError, UsageError
from headrace.kafka import Kafka, NewTopic
from headrace.kafka.read.consumer import consume
from headrace.pipeline.books.ledger import BatchEntry
from headrace.pipeline.books.rewind import Target, plan_rewind, rewind
from headrace.pipeline.declare.declaration import Declaration
from headrace.pipeline.pipeline import RunObserver
from headrace.pipeline.spark.duplicates import _marked_within
from headrace.pipeline.spark.sinks.sinks import write_sink
from headrace.runtime.waiting import eventually
from headrace.schemas.registry import Registry
from tests.spark.pipelines import Workshop, send, totals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Topic = Callable[..., str]


SALES = """
[pipelines.p]
from = "<topic>"
decode = { json = "shop string, amount int, at timestamp" }
where = "shop != 'test'"
[pipelines.p.expect]
"is positive" = "amount > 0"
"is small"    = { rule = "amount < 1000", action = "drop" }
"has a time"  = { rule = "at is not null", action = "warn" }
[[pipelines.p.into]]
delta = "tables/sales"
[[pipelines.p.into]]
parquet = "tables/parquet"
[[pipelines.p.into]]
delta = "tables/shops"
[pipelines.p.into.aggregate]
by = ["shop"]
values = { total = "sum(amount)", sales = "count(*)", mean = "avg(amount)", spread = "max(amount) - min(amount)" }
"""


def sale(shop: str, amount: Any, **more: Any) -> dict[str, Any]:
    return {"shop": shop, "amount": amount, **more}


def test_each_record_has_one_outcome_and_every_sink_its_rows(shop: Workshop, headrace_topic: Topic) -> None:
    topic = headrace_topic(partitions=3)
    shop.declare(SALES, topic=topic)
    draw = random.Random(5)
    good = [sale(draw.choice("abc"), draw.randint(1, 999), at="2026-01-01T00:00:00Z") for _ in range(300)]
    other = [sale("test", 5), sale("a", 0), sale("b", 5000), sale("c", "many"), b"{", None, b"\xff", sale("a", 7)]
    send(shop.cluster, topic, [*good, *other])
    report = shop.run()
    assert totals(report) == {"written": 301, "dead": 5, "filtered": 2}
    assert report.run.warnings == 1
    assert {(row["shop"], row["amount"]) for row in shop.rows("tables/sales")} >= {("a", 7)}
    assert len(shop.rows("tables/sales")) == 301
    assert shop.spark.read.parquet(str(shop.folder / "tables/parquet")).count() == 301
    assert {row["rule"] for row in shop.dead()} == {"decode", "is positive"}
    assert sorted(row["value"] or b"" for row in shop.dead())[:2] == [b"", b"{"]
    _check_shops(shop, [*good, sale("a", 7)])

    more = [sale(draw.choice("abd"), draw.randint(1, 999)) for _ in range(100)]
    send(shop.cluster, topic, more)
    assert totals(shop.run()) == {"written": 100}
    _check_shops(shop, [*good, sale("a", 7), *more])
    assert totals(shop.run()) == {}


def test_a_topic_without_records_and_a_sink_that_wants_none(shop: Workshop, headrace_topic: Topic) -> None:
    topic = headrace_topic(partitions=2)
    shop.declare(SALES + '[[pipelines.p.into]]\ndelta = "tables/none"\nwhere = "false"\n', topic=topic)
    assert totals(shop.run()) == {}
    send(shop.cluster, topic, [sale("a", 7)])
    assert totals(shop.run()) == {"written": 1}
    assert [row["amount"] for row in shop.rows("tables/sales")] == [7]
    assert shop.rows("tables/none") == []


def _check_shops(shop: Workshop, sales: list[dict[str, Any]]) -> None:
    amounts: dict[str, list[int]] = {}
    for row in sales:
        amounts.setdefault(row["shop"], []).append(row["amount"])
    found = {row["shop"]: row for row in shop.rows("tables/shops")}
    assert set(found) == set(amounts)
    for name, values in amounts.items():
        row = found[name]
        assert (row["total"], row["sales"], row["spread"]) == (sum(values), len(values), max(values) - min(values))
        assert row["mean"] == pytest.approx(sum(values) / len(values))


def test_a_batch_that_failed_in_its_last_sink_is_not_written_twice_to_the_others(
    shop: Workshop, headrace_topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = headrace_topic(partitions=2)
    shop.declare(SALES, topic=topic)
    send(shop.cluster, topic, [sale("a", n) for n in range(1, 51)] + [sale("a", -1)])

    def broken(sink: Any, *rest: Any) -> Any:
        if sink.target == "tables/shops":
            raise OSError("the lights went out")
        return write_sink(sink, *rest)

    with monkeypatch.context() as patched:
        patched.setattr("headrace.pipeline.spark.sinks.sinks.write_sink", broken)
        with pytest.raises(Failed, match="failed") as caught:
            shop.run()
    assert "the lights went out" in str(caught.value)
    assert totals(shop.run()) == {"written": 50, "dead": 1}
    assert len(shop.rows("tables/sales")) == 50
    assert shop.spark.read.parquet(str(shop.folder / "tables/parquet")).count() == 50
    assert len(shop.dead()) == 1
    (row,) = shop.rows("tables/shops")
    assert (row["total"], row["sales"]) == (sum(range(1, 51)), 50)


def test_a_rule_that_must_hold_stops_the_run_before_anything_is_written(shop: Workshop, headrace_topic: Topic) -> None:
    topic = headrace_topic()
    shop.declare(
        """
[pipelines.p]
from = "<topic>"
decode = { json = "amount int" }
into = { delta = "tables/t" }
[pipelines.p.expect]
"is positive" = { rule = "amount > 0", action = "fail" }
""",
        topic=topic,
    )
    send(shop.cluster, topic, [{"amount": 1}, {"amount": -1}])
    with pytest.raises(Failed, match=r"headrace.toml, line 7: expectation 'is positive' does not hold"):
        shop.run()
    assert not (shop.folder / "tables").exists()


def test_duplicates_are_set_aside_within_a_batch_and_across_batches(shop: Workshop, headrace_topic: Topic) -> None:
    topic = headrace_topic(partitions=2)
    shop.declare(
        """
[pipelines.p]
from = "<topic>"
decode = { json = "id int, word string" }
deduplicate = ["id"]
into = { delta = "tables/t" }
""",
        topic=topic,
    )
    send(shop.cluster, topic, [{"id": n % 10, "word": "first"} for n in range(30)])
    assert totals(shop.run()) == {"written": 10, "duplicate": 20}
    send(shop.cluster, topic, [{"id": n, "word": "second"} for n in range(5, 15)])
    assert totals(shop.run()) == {"written": 5, "duplicate": 5}
    assert sorted(row["id"] for row in shop.rows("tables/t")) == list(range(15))


@pytest.mark.parametrize("within", ["", ', within = "1 hour"'])
def test_a_rewind_finds_the_same_duplicates_as_often_as_it_is_done(
    shop: Workshop, headrace_topic: Topic, within: str
) -> None:
    topic = headrace_topic(partitions=2)
    shop.declare(
        """
[pipelines.p]
from = "<topic>"
decode = { json = "id int, at timestamp" }
event_time = "at"
deduplicate = <duplicates>
into = { delta = "tables/t" }
""",
        topic=topic,
        duplicates=f'{{ by = ["id"]{within} }}' if within else '["id"]',
    )
    producer = shop.connection.producer()

    def write(partition: int, ids: range) -> None:
        for n in ids:
            value = json.dumps({"id": n, "at": f"2026-05-01T12:0{n % 10}:00Z"})
            producer.produce(topic, value.encode(), partition=partition)
        assert producer.flush(60) == 0

    # The rows of partition 0 come before those of partition 1 only when all are read again.
    write(1, range(10))
    assert totals(shop.run()) == {"written": 10}
    write(0, range(5, 15))
    assert totals(shop.run()) == {"written": 5, "duplicate": 5}
    for _ in range(2):
        shop.pipeline().rewind(shop.pipeline().plan_rewind("beginning", shop.cluster))
        assert totals(shop.run()) == {"written": 15, "duplicate": 5}
    write(0, range(15))
    assert totals(shop.run()) == {"duplicate": 15}
    assert Counter(row["id"] for row in shop.rows("tables/t")) == dict.fromkeys(range(15), 3)
    seen = shop.spark.read.format("delta").load(str(shop.pipeline().folder.root / "seen"))
    assert seen.count() == 15


def test_two_rows_at_both_ends_of_time_are_no_duplicates(spark: SparkSession) -> None:
    last, hour = 2**63 - 1, 3_600_000_000
    times = {0: last, 1: -last, 2: last - hour, 3: last - hour - 1}
    rows = spark.sql(" union all ".join(
        f"select 't' _topic, 0 _partition, {n}L _offset, 0L _row, 'written' _outcome, 1 id, timestamp_micros({at}L) at"
        for n, at in times.items()
    ))  # fmt: skip
    seen = rows.where("_offset = 0").withColumn("_at", F.col("at"))
    declaration = Declaration("p", ("t",), (), event_time="at")
    for before in (None, seen):
        marked = _marked_within(rows, before, declaration, ("id",), hour).orderBy("_offset")
        assert [row[0] for row in marked.select("_again").collect()] == [False, False, True, False]


NOON = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


def minutes(given: float) -> datetime.datetime:
    return NOON + datetime.timedelta(minutes=given)


def seen_at(given: float, bus: int = 1, **more: Any) -> dict[str, Any]:
    return {"bus": bus, "at": minutes(given).isoformat(), **more}


LATE = """
[pipelines.p]
from = "<topic>"
decode = { json = "bus int, at timestamp" }
event_time = "at"
watermark = "10m"
into = { delta = "tables/windows", select = { line = "bus + 1", at = "at" }, where = "bus > 0", partition_by = "line" }
aggregate = { by = ["line"], <window>, mode = "watermark", values = { seen = "count(*)" } }
"""
SLIDING = {(-5, 5): 2, (0, 10): 2, (55, 65): 2, (60, 70): 2}
SESSIONS = {(0, 6): 2, (60, 66): 2}


@pytest.mark.parametrize(
    ("window", "expected"),
    [('window = "600s", slide = "5 min"', SLIDING), ('session = "5 minutes"', SESSIONS)],
)
def test_rows_behind_the_watermark_are_kept_and_counted(
    shop: Workshop, headrace_topic: Topic, window: str, expected: dict[tuple[int, int], int]
) -> None:
    topic = headrace_topic()
    shop.declare(LATE, topic=topic, window=window)
    send(shop.cluster, topic, [seen_at(0), seen_at(1), seen_at(60)])
    reports = [shop.run()]
    assert totals(reports[0]) == {"written": 3}
    # The first of them belongs to windows that were closed, the last to none.
    send(shop.cluster, topic, [seen_at(2), seen_at(61), b"junk", {"bus": 1, "at": None}])
    reports.append(shop.run())
    assert totals(reports[1]) == {"written": 1, "late": 1, "dead": 2}
    send(shop.cluster, topic, [seen_at(200)])
    reports.append(shop.run())
    assert totals(reports[2]) == {"written": 1}
    waiting = [(line.rows, line.waiting) for report in reports for line in report.sinks if "windows" in line.sink]
    # When a session ends cannot be said of a row.
    assert waiting == ([(3, 1), (1, 2), (1, 1)] if "window" in window else [(3, None), (1, None), (1, None)])
    untimed = [row["reason"] for row in shop.dead() if row["rule"] == "event_time"]
    assert untimed == ["tables/windows: at is null: it has no window"]
    assert _windows(shop.rows("tables/windows"), "seen", "line") == {(2, *s): n for s, n in expected.items()}
    late = [row for row in shop.dead() if row["outcome"] == "late"]
    assert [json.loads(row["value"]) for row in late] == [seen_at(2)]


def _windows(rows: list[dict[str, Any]], value: str, by: str = "bus") -> dict[tuple[int, int, int], Any]:
    """By bus or line, and by the minutes after noon where a window begins and ends."""
    after = datetime.timedelta(minutes=1)
    ends = ("window_start", "window_end")
    return {
        (row[by], *[(row[end].replace(tzinfo=datetime.UTC) - NOON) // after for end in ends]): row[value]
        for row in rows
    }


EVERYWHERE = """
[pipelines.p]
from = "<topic>"
decode = { json = "id int, bus int, at timestamp" }
event_time = "at"
deduplicate = { by = ["id"], within = "10 minutes" }
[[pipelines.p.into]]
delta = "tables/rows"
[[pipelines.p.into]]
delta = "tables/sliding"
aggregate = { by = ["bus"], window = "10 minutes", slide = "5 minutes", values = { seen = "count(*)" } }
[[pipelines.p.into]]
delta = "tables/sessions"
aggregate = { by = ["bus"], session = "3 minutes", mode = "recompute", values = { seen = "count(*)" } }
[[pipelines.p.into]]
topic = "<topic>-avro"
key = "bus"
format = "avro"
[[pipelines.p.into]]
console = true
"""


def test_windows_duplicates_and_sinks_against_a_computation_of_their_own(
    tmp_path: Path, with_registry: Cluster, spark: SparkSession
) -> None:
    topic = f"everywhere-{uuid.uuid4().hex[:8]}"
    Kafka(with_registry).create_topics([NewTopic(topic, 1, 1)])
    shop = Workshop(tmp_path, with_registry, spark, with_registry.registry)
    shop.declare(EVERYWHERE, topic=topic)
    draw = random.Random(11)
    kept: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []
    for _ in range(2):
        drawn = [(draw.randrange(25), draw.randrange(3), draw.randrange(0, 90)) for _ in range(60)]
        given = [{"id": number, "bus": bus, "minute": minute} for number, bus, minute in drawn]
        before = len(kept)
        for row in given:
            if not any(row["id"] == old["id"] and abs(row["minute"] - old["minute"]) <= 10 for old in kept):
                kept.append(row)
        send(with_registry, topic, [seen_at(row["minute"], row["bus"], id=row["id"]) for row in given])
        report = shop.run(show=lambda _, rows: shown.extend(rows))
        assert totals(report) == {"written": len(kept) - before, "duplicate": 60 - (len(kept) - before)}
        assert len(shown) == min(20, len(kept) - before)
        shown.clear()
    expected = sorted((row["id"], row["bus"], minutes(row["minute"])) for row in kept)
    found = [(row["id"], row["bus"], row["at"].replace(tzinfo=datetime.UTC)) for row in shop.rows("tables/rows")]
    assert sorted(found) == expected
    assert _windows(shop.rows("tables/sliding"), "seen") == _sliding(kept)
    assert _windows(shop.rows("tables/sessions"), "seen") == _sessions(kept)
    with Registry(with_registry.registry) as registry:
        schema = fastavro.parse_schema(json.loads(registry.version(f"{topic}-avro-value").schema.text))
    records = list(consume(with_registry, f"{topic}-avro"))
    values: list[Any] = [
        fastavro.schemaless_reader(io.BytesIO((record.value or b"")[5:]), schema, None) for record in records
    ]
    assert sorted((row["id"], row["bus"], row["at"]) for row in values) == expected
    assert [record.key for record in records] == [str(row["bus"]).encode() for row in values]


def _sliding(rows: list[dict[str, Any]]) -> dict[tuple[int, int, int], int]:
    starts = [(row["bus"], row["minute"] // 5 * 5 - shift) for row in rows for shift in (0, 5)]
    return {(bus, start, start + 10): count for (bus, start), count in Counter(starts).items()}


def _sessions(rows: list[dict[str, Any]]) -> dict[tuple[int, int, int], int]:
    found: dict[tuple[int, int, int], int] = {}
    for bus in {row["bus"] for row in rows}:
        times = sorted(row["minute"] for row in rows if row["bus"] == bus)
        cuts = [0, *[at for at in range(1, len(times)) if times[at] - times[at - 1] > 3], len(times)]
        found |= {(bus, times[a], times[b - 1] + 3): b - a for a, b in itertools.pairwise(cuts)}
    return found


def test_a_trip_is_computed_anew_when_rows_come_late(shop: Workshop, headrace_topic: Topic) -> None:
    topic = headrace_topic()
    shop.declare(
        """
[pipelines.p]
from = "<topic>"
decode = { json = "trip int, second int, meters int" }
[[pipelines.p.into]]
delta = "tables/rows"
[[pipelines.p.into]]
delta = "tables/speeds"
[pipelines.p.into.aggregate]
mode = "recompute"
by = ["trip"]
[pipelines.p.into.aggregate.values]
speed = '''
  (meters - lag(meters) over (partition by trip order by second))
  / (second - lag(second) over (partition by trip order by second))'''
""",
        topic=topic,
    )
    points = [{"trip": 1, "second": s, "meters": s * s} for s in range(10)]
    send(shop.cluster, topic, [p for p in points if p["second"] % 2] + [{"trip": 2, "second": 0, "meters": 5}])
    shop.run()
    send(shop.cluster, topic, [p for p in points if p["second"] % 2 == 0])
    shop.run()
    speeds = {row["second"]: row["speed"] for row in shop.rows("tables/speeds") if row["trip"] == 1}
    assert speeds == {0: None, **{s: float(2 * s - 1) for s in range(1, 10)}}
    assert len(shop.rows("tables/speeds")) == 11


def test_steps_can_be_python_functions(shop: Workshop, headrace_topic: Topic) -> None:
    topic = headrace_topic()
    module = f"steps_{abs(hash(topic))}"
    (shop.folder / f"{module}.py").write_text(
        "from pyspark.sql import functions as F\n"
        "def shout(frame):\n"
        "    return frame.withColumn('loud', F.upper('value')).drop('value')\n"
        "def careless(frame):\n"
        "    return frame.select('value')\n"
    )
    text = '[pipelines.p]\nfrom = "<topic>"\nselect = { python = "<module>:<name>" }\ninto = [\n'
    text += '{ delta = "tables/t", where = "length(loud) > 4", select = { loud = "loud", size = "length(loud)" } },\n'
    text += '{ delta = "tables/n", aggregate = { by = ["loud"], values = { n = "sum(length(loud) + 1)" } } }]\n'
    send(shop.cluster, topic, [b"quiet", b"calm"])
    shop.declare(text, topic=topic, module=module, name="careless")
    with pytest.raises(ConfigError, match="dropped _topic"):
        shop.run()
    shop.declare(text, topic=topic, module=module, name="shout")
    assert totals(shop.run()) == {"written": 2}
    assert shop.rows("tables/t") == [{"loud": "QUIET", "size": 5}]
    assert sorted((row["loud"], row["n"]) for row in shop.rows("tables/n")) == [("CALM", 5), ("QUIET", 6)]


def test_the_second_run_on_a_checkpoint_is_refused(shop: Workshop, headrace_topic: Topic) -> None:
    shop.declare(SALES, topic=headrace_topic())
    with (
        shop.pipeline().folder.lock(),
        pytest.raises(SetupError, match="pipeline p runs already"),
    ):
        shop.run()


def test_ctrl_c_ends_a_run_after_the_batch_at_work(shop: Workshop, headrace_topic: Topic) -> None:
    topic = headrace_topic()
    shop.declare(
        '[pipelines.p]\nfrom = "<topic>"\ninto = { delta = "tables/t" }\nmax_records_per_batch = 5\n', topic=topic
    )
    send(shop.cluster, topic, [f"{n}".encode() for n in range(40)])
    done: list[int] = []

    def interrupt(entry: BatchEntry) -> None:
        done.append(entry.batch)
        if len(done) == 1:
            os.kill(os.getpid(), signal.SIGINT)

    first = shop.run(on_batch=interrupt)
    assert first.run.state == "stopped"
    assert first.run.read == 5 * len(done) < 40
    rest = shop.run()
    assert first.run.read + rest.run.read == 40
    assert Counter(row["value"] for row in shop.rows("tables/t")) == Counter(f"{n}" for n in range(40))


LARGE = """
[topics.<topic>-copy]
partitions = 2
kafka = { "max.message.bytes" = 10485760 }
[pipelines.p]
from = "<topic>"
into = [{ delta = "tables/t" }, { topic = "<topic>-copy" }]
"""


def test_values_of_five_megabytes_topics_as_declared_and_records_that_expired_unread(
    shop: Workshop, headrace_topic: Topic
) -> None:
    topic = headrace_topic(max_message_bytes="10485760")
    shop.declare(LARGE, topic=topic)
    text, bad = b"x" * 5_000_000, b"\xff" * 5_000_000
    send(shop.cluster, topic, [text, bad])
    assert totals(shop.run()) == {"written": 1, "dead": 1}
    assert [row["value"].encode() for row in shop.rows("tables/t")] == [text]
    assert [bytes(row["value"]) for row in shop.dead()] == [bad]
    assert [json.loads(record.value or b"{}") for record in consume(shop.cluster, f"{topic}-copy")] == [
        {"value": text.decode()}
    ]
    send(shop.cluster, topic, [b"a", b"b", b"c"])
    with Kafka(shop.cluster) as admin:
        assert len(admin.topic(f"{topic}-copy").partitions) == 2
        admin.settle(admin.client.delete_records([TopicPartition(topic, 0, 4)]), "delete records")
    with pytest.raises(Failed, match="has not read are gone") as lost:
        shop.run()
    assert f"{topic}/0 offsets 2 to 3 (2)" in str(lost.value)
    plan = plan_rewind(shop.pipeline().folder, shop.pipeline().declaration, Target.parse("beginning"), shop.connection)
    rewind(shop.pipeline().folder, shop.pipeline().declaration, plan)
    assert totals(shop.run()) == {"written": 1}
    assert sorted(len(row["value"]) for row in shop.rows("tables/t")) == [1, 5_000_000]


def test_a_missing_topic_is_told_with_the_command_that_makes_it_as_declared(shop: Workshop) -> None:
    shop.declare('[topics.nowhere]\npartitions = 6\n[pipelines.p]\nfrom = "nowhere"\ninto = { delta = "t" }\n')
    with pytest.raises(UsageError, match="no topic 'nowhere'") as missing:
        shop.run()
    assert missing.value.hint == "headrace topic create nowhere --partitions 6"


@pytest.mark.parametrize("who", ["Kafka", "schema registry"])
def test_a_run_waits_for_those_who_are_away_and_can_be_stopped_meanwhile(
    shop: Workshop, headrace_topic: Topic, who: str
) -> None:
    nowhere = "127.0.0.1:1"
    decode = "avro" if who == "schema registry" else "text"
    shop.declare(f'[pipelines.p]\nfrom = "{headrace_topic()}"\ndecode = "{decode}"\ninto = {{ delta = "t" }}\n')
    said: list[str] = []
    kafka = nowhere if who == "Kafka" else shop.cluster
    run = shop.pipeline().begin(shop.spark, kafka, f"http://{nowhere}", RunObserver(said.append))
    folder = shop.pipeline().folder
    eventually(lambda: folder.state.get("state") == "waiting", 60)
    assert said[0].startswith(f"waiting: no {who} answers at ")
    run.stop()
    assert folder.state["state"] == "stopped"
    assert not folder.is_locked
    assert shop.pipeline().report(run.name).run.read == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('select = { n = "amuont + 1" }', r"line 4: .*amuont"),
        ('select = { n = "amount +" }', r"line 4: .*[Ss]yntax error"),
        ('expect = { "x" = "amount ~ 1 2" }', r"line 4: "),
        ('where = "nothing = 1"', r"line 4: .*nothing"),
        ('event_time = "when"', r"line 4: .*when"),
        ('aggregate = { by = ["amount"], values = { x = "median(amount)" } }', r"median\(amount\) cannot be merged"),
        ('aggregate = { by = ["nobody"], values = { x = "sum(amount)" } }', r"nobody"),
    ],
)
def test_what_is_wrong_is_told_with_its_line_before_anything_runs(
    shop: Workshop, headrace_topic: Topic, line: str, said: str
) -> None:
    topic = headrace_topic()
    shop.declare(
        f'[pipelines.p]\nfrom = "{topic}"\ndecode = {{ json = "amount int" }}\n{line}\ninto = {{ delta = "t" }}\n'
    )
    with pytest.raises(ConfigError, match=said):
        shop.run()
    assert not (shop.home.root / "pipelines" / "p" / "checkpoint").exists()
