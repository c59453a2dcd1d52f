"""Classes with state per key and timers: right numbers, an account of every row, exactly once, and what is refused."""

from __future__ import annotations

import io
import json
import random
import re
import sys
import uuid
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from headrace.cluster import Cluster
from headrace.errors import ConfigError, Failed
from headrace.kafka import Kafka, NewTopic
from headrace.kafka.client import connect
from headrace.schemas.codec.wire import prefix
from headrace.schemas.registry import Registry, Schema
from tests.spark.children import kill_at_each
from tests.spark.killed_join import POINTS
from tests.spark.pipelines import Workshop, send, totals
from tests.spark.test_runs import minutes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Topic = Callable[..., str]

_ROOT = Path(__file__).parents[2]
_CLASSES = '''
from helping import added
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor


class Totals(StatefulProcessor):
    """A row for each row: the total of its bus so far."""

    schema = "bus int, n int, total long"

    def init(self, handle):
        self.total = handle.getValueState("total", "meters long")

    def handleInputRows(self, key, rows, timerValues):
        (total,) = self.total.get() or (0,)
        for row in rows:
            if row.meters is None:
                raise ValueError("no meters")
            total = added(total, row)
            yield Row(bus=key[0], n=row.n, total=total)
        self.total.update((total,))


class Misnamed(Totals):
    schema = "bus int, n int, sum long"


class Nameless(Totals):
    schema = None


class Rowless(Totals):
    schema = "bus int,, n"


class Own(Totals):
    schema = "bus int, _offset long"


class Unmade(Totals):
    def __init__(self, factor):
        pass


class Unready(Totals):
    def init(self, handle):
        raise KeyError("depot")


class Other:
    schema = "bus int"


def a_function(rows):
    return rows
'''
_HELPING = """
def added(total, row):
    return total + row.meters
"""
_PAGE = (_ROOT / "docs" / "state.md").read_text(encoding="utf-8")
_DECLARED = """
[pipelines.p]
from = "<topic>"
decode = { json = "bus int, n int, meters int, at timestamp" }
event_time = "at"
watermark = "1 minute"
max_records_per_batch = 1000
[[pipelines.p.into]]
delta = "rows"
where = "n >= 0"
[[pipelines.p.into]]
delta = "copies"
[[pipelines.p.into]]
delta = "made"
where = "bus > 0"
aggregate = { by = ["bus"], mode = "state", python = "stops:<class>" }
"""


def _block(language: str) -> str:
    """The first example of the page in that language."""
    found = re.search(rf"^```{language}\n(.*?)^```", _PAGE, re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


def _declare(shop: Workshop, topic: str, name: str, text: str = _DECLARED) -> None:
    classes = _block("python") if name == "Silence" else _CLASSES
    (shop.folder / "stops.py").write_text(classes, encoding="utf-8")
    (shop.folder / "helping.py").write_text(_HELPING, encoding="utf-8")
    for module in ("stops", "helping"):  # each test has its own
        sys.modules.pop(module, None)
    shop.declare(text, topic=topic, **{"class": name})


def _position(bus: int | None, n: int, at: float, meters: int | None = 0) -> dict[str, Any]:
    return {"bus": bus, "n": n, "meters": meters, "at": minutes(at).isoformat()}


def _step(report: Any) -> tuple[int, ...]:
    """Rows, those left out, those that the class was given and those that it gave, and the entries of its state."""
    (line,) = [line for line in report.sinks if line.made is not None]
    assert line.balanced
    return line.rows, line.skipped, line.taken, line.made, line.state


def _said(vehicle: int, at: float) -> dict[str, Any]:
    return {"vehicle": vehicle, "at": minutes(at).isoformat()}


def test_the_example_of_the_page_by_event_time(shop: Workshop, headrace_topic: Topic) -> None:
    topic = headrace_topic(partitions=1)
    _declare(shop, topic, "Silence", _block("toml").replace('from       = "positions"', f'from = "{topic}"'))
    send(shop.cluster, topic, [_said(1, 0), _said(2, 0), _said(1, 4)])
    report = shop.run("silence")
    assert totals(report) == {"written": 3}
    assert _step(report) == (3, 0, 3, 0, 2)
    kept = shop.pipeline("silence").kept_state(spark=shop.spark)
    assert sorted((entry["of"], entry["key"]["vehicle"]) for entry in kept) == [
        ("last", 1), ("last", 2), ("timers", 1), ("timers", 2)
    ]  # fmt: skip
    noon_ms = int(minutes(0).timestamp() * 1000)
    assert shop.pipeline("silence").kept_state("2", spark=shop.spark) == [
        {"of": "last", "key": {"vehicle": 2}, "value": {"ms": noon_ms}},
        {"of": "timers", "key": {"vehicle": 2}, "value": {"expires": "2026-01-01T12:05:00.000Z"}},
    ]
    # The watermark is at three minutes: the first of these is later, and the second has no time.
    send(shop.cluster, topic, [_said(1, 1), {"vehicle": 1}, _said(1, 7), b"junk"])
    report = shop.run("silence")
    assert totals(report) == {"written": 1, "late": 1, "dead": 2}
    assert _step(report) == (1, 0, 1, 1, 1)
    assert shop.rows("tables/silence") == [{"vehicle": 2, "last": minutes(0).replace(tzinfo=None)}]
    reasons = {row["reason"] for row in shop.dead("silence")}
    assert {"tables/silence: at is null: no timer goes by it", "later than 1 minute"} < reasons
    pipeline = shop.pipeline("silence")
    pipeline.rewind(pipeline.plan_rewind("batch:2", shop.cluster))
    report = shop.run("silence")  # with the state of then
    assert totals(report) == {"written": 1, "late": 1, "dead": 2}
    assert _step(report) == (1, 0, 1, 1, 1)
    assert len(shop.rows("tables/silence")) == 2


def _drawn(count: int, seed: int) -> list[dict[str, Any]]:
    """Positions out of order by less than the watermark allows, and some that come far too late."""
    draw = random.Random(seed)
    found = []
    for n in range(count):
        at = n / 100 + draw.uniform(0, 0.5) - (30 if n > count / 2 and draw.random() < 0.02 else 0)
        found.append(_position(draw.choice([0, 1, 2, 3, 4, None]), n, at, draw.randrange(100)))
    return found


def _check_totals(shop: Workshop, drawn: list[dict[str, Any]]) -> None:
    """By the rows that were not late, in the order in which the batches hold them: event time, then offset."""
    rows = {row["n"]: row for row in shop.rows("rows")}
    late = {json.loads(row["value"])["n"] for row in shop.dead() if row["outcome"] == "late"}
    assert len(rows) + len(late) == len(drawn)
    assert late
    assert not rows.keys() & late
    lines = shop.pipeline().ledger.sinks()
    (given,) = {sum(line.taken for line in lines if line.sink == "made")}
    wanted = [row for n, row in rows.items() if drawn[n]["bus"]]
    assert (given, sum(line.made or 0 for line in lines if line.sink == "made")) == (len(wanted), len(wanted))
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row in shop.rows("made"):
        found[row["bus"]].append((row["total"], row["n"]))
    assert sorted(n for made in found.values() for _, n in made) == sorted(row["n"] for row in wanted)
    # In the one partition, offsets are the numbers of the records.
    ends = [batch.spans[0].next for batch in shop.pipeline().checkpoint.batches()]
    for bus, made in found.items():
        total = 0
        for said, n in sorted(made, key=lambda pair: (bisect(ends, pair[1]), drawn[pair[1]]["at"], pair[1])):
            total += drawn[n]["meters"]
            assert said == total, (bus, n)


def test_running_totals_however_often_the_driver_is_killed(shop: Workshop, headrace_topic: Topic) -> None:
    topic = headrace_topic(partitions=1)
    _declare(shop, topic, "Totals")
    drawn = _drawn(4000, 7)
    send(shop.cluster, topic, drawn)
    kill_at_each(POINTS, "killed_join", str(shop.folder), connect(shop.cluster).bootstrap)
    report = shop.run()
    assert report.run.balanced
    assert not [text for run in shop.pipeline().ledger.runs() for text in run.unbalanced]
    _check_totals(shop, drawn)


def test_what_a_class_raises_names_the_key_and_the_record(shop: Workshop, headrace_topic: Topic) -> None:
    topic = headrace_topic(partitions=1)
    _declare(shop, topic, "Totals")
    send(shop.cluster, topic, [_position(3, 0, 0, 5), _position(4, 1, 1, 6), _position(3, 2, 2, None)])
    with pytest.raises(Failed) as told:
        shop.run()
    assert f"line 16: Totals raised an error for bus = 3 at the record {topic}/0/2" in told.value.problem
    assert "ValueError: no meters (stops.py, line 19)" in str(told.value.why)
    _declare(shop, topic, "Misnamed")
    with pytest.raises(ConfigError, match="cannot change while the checkpoint stays") as refused:
        shop.run()
    assert "headrace pipeline checkpoint wipe p" in str(refused.value.hint)
    shop.pipeline().wipe_checkpoint()
    with pytest.raises(Failed, match="Misnamed raised an error for bus") as told:
        shop.run()
    assert "it gave a row of bus, n, total; its schema has bus, n, sum" in str(told.value.why)
    shop.pipeline().wipe_checkpoint()
    _declare(shop, topic, "Unready")
    with pytest.raises(Failed, match="line 16: Unready raised an error in init"):
        shop.run()


def test_timers_of_processing_time_end_with_what_there_is_to_read(shop: Workshop, headrace_topic: Topic) -> None:
    topic = headrace_topic(partitions=1)
    text = _block("toml").replace('mode = "state"', 'timers = "processing time"').replace("watermark ", "# ")
    _declare(shop, topic, "Silence", text.replace('from       = "positions"', f'from = "{topic}"'))
    send(shop.cluster, topic, [_said(1, 0), _said(1, -90)])
    report = shop.run("silence")
    assert totals(report) == {"written": 2}
    # The time of the timer is long over.
    assert _step(report) == (2, 0, 2, 1, 0)
    assert shop.rows("tables/silence") == [{"vehicle": 1, "last": minutes(0).replace(tzinfo=None)}]
    stops = shop.folder / "stops.py"
    stops.write_text(stops.read_text(encoding="utf-8").replace('"ms long"', '"ms string"'), encoding="utf-8")
    del sys.modules["stops"]
    send(shop.cluster, topic, [_said(1, 2)])
    with pytest.raises(Failed, match="the state in the checkpoint was kept by another version of Silence") as told:
        shop.run("silence")
    assert "headrace pipeline checkpoint wipe silence" in str(told.value.hint)


_AVRO: dict[str, Any] = {
    "type": "record", "name": "position", "fields": [
        {"name": "bus", "type": "int"}, {"name": "n", "type": "int"}, {"name": "meters", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}  # fmt: skip
_ADDED = {**_AVRO, "fields": [*_AVRO["fields"], {"name": "route", "type": "int", "default": 0}]}


def _framed(number: int, schema: dict[str, Any], n: int, at: float) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, {"bus": 1, "n": n, "meters": 5, "at": minutes(at)})
    return prefix(number) + out.getvalue()


@pytest.mark.parametrize(
    "aggregate",
    [
        'mode = "state", python = "stops:Totals"',
        'mode = "watermark", window = "1 minute", values = { n = "max(n)" }',
    ],
)
def test_a_stateful_operator_gets_records_of_every_schema(
    tmp_path: Path, with_registry: Cluster, spark: SparkSession, aggregate: str
) -> None:
    """Those that the registry has under the subject, and one that the query meets on its way."""
    topic = f"framed-{uuid.uuid4().hex[:8]}"
    Kafka(with_registry).create_topics([NewTopic(topic, 1, 1)])
    shop = Workshop(tmp_path, with_registry, spark, with_registry.registry)
    text = _DECLARED.replace('json = "bus int, n int, meters int, at timestamp"', f'avro = "{topic}-value"')
    _declare(shop, topic, "Totals", text.replace('mode = "state", python = "stops:<class>"', aggregate))
    with Registry(with_registry.registry) as registry:
        first = registry.register(f"{topic}-value", Schema(json.dumps(_AVRO)))
        other = registry.register(f"{topic}-other", Schema(json.dumps(_ADDED)))
    values = [_framed(first, _AVRO, 0, 0), _framed(other, _ADDED, 1, 0), _framed(first, _AVRO, 2, 60)]
    send(with_registry, topic, values)
    said: list[str] = []
    assert totals(shop.run(say=said.append)) == {"written": 3}
    assert "cut off: a record names a schema that is new" in said
    assert {row["n"] for row in shop.rows("made")} >= {1}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("<class>", "Other", "line 15: Other is no StatefulProcessor"),
        ("<class>", "a_function", "line 15: a_function is no StatefulProcessor"),
        ("<class>", "Nothing", "line 15: stops:Nothing cannot be loaded"),
        ("<class>", "Nameless", "line 15: Nameless has no schema"),
        ("<class>", "Rowless", "line 15: the schema of Rowless: "),
        ("<class>", "Own", "line 15: the schema of Own has a column _offset"),
        ("<class>", "Unmade", r"line 15: Unmade\(\) raised TypeError: "),
        ('["bus"]', '["route"]', "line 15: .*route"),
        ('event_time', 'deduplicate = ["n"]\nevent_time', "line 4: deduplicate does not go together with mode state"),
        ('["bus"]', "[]", "line 15: mode state needs by"),
        ('"state"', '"watermark"', "line 15: mode watermark takes a function, and python names a class"),
        ('mode = "state", python = "stops:<class>"', 'mode = "state", values = { n = "sum(n)" }',
         "line 15: mode state needs a class"),
        ('mode = "state"', 'mode = "state", window = "1 minute"', "line 15: mode state needs a class, and nothing"),
        ('mode = "state"', 'mode = "state", timers = "sun"', "line 15: unknown timers 'sun'"),
        ('"state", python = "stops:<class>"', '"merge", values = { n = "sum(n)" }, timers = "event time"',
         "line 15: timers belong to mode state"),
        ('watermark = "1 minute"\n', "", "line 11: mode state needs a watermark"),
        ('where = "bus > 0"', 'select = { bus = "bus" }', "line 14: the select of a sink with a watermark does not"),
        ('where = "n >= 0"', 'aggregate = { mode = "watermark", values = { n = "sum(n)" } }', "only one sink can have"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_class_is_found_before_it_runs(shop: Workshop, old: str, new: str, said: str) -> None:
    assert old in _DECLARED
    _declare(shop, "t", "Totals", _DECLARED.lstrip("\n").replace(old, new))
    with pytest.raises(ConfigError, match=said):
        shop.pipeline().explain(shop.spark)
