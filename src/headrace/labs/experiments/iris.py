"""Iris: a producer that routes by class, and three consumers.

150 flowers of three classes are sent as JSON arrays of sepal length and width. The class decides on topic and
partition, exactly:

    virginica     virginicasetosa, partition 0
    setosa        virginicasetosa, partition 1
    versicolor    versicolor, both partitions in turn

Consumer 1 reads both topics with all partitions from the beginning, prints a table, leaves after so many seconds of
silence, and draws sepal length against width in three colours. Consumer 2 reads only partition 1 of virginicasetosa
(setosa), consumer 3 only partition 0 (virginica). Since the value does not name the class, only the routing can tell
it: one flower astray and the picture would be wrong.

The same flow as a Spark pipeline (examples/iris) tells the class from topic and partition too, and writes a table of
counts and means per class, which is compared with the means of the table that was sent.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from statistics import mean
from typing import TYPE_CHECKING

import numpy as np

from headrace import produce
from headrace.labs.examples import Example
from headrace.labs.expect import at_least
from headrace.labs.figures import BLUE, GREEN, RED
from headrace.labs.lab import Lab, Parameter
from headrace.labs.workbench import Workbench
from headrace.samples.iris import Iris, flowers
from headrace.transport.consume import reading
from headrace.transport.offsets import Start, Until
from headrace.transport.plot import Scatter, Series
from headrace.transport.produce import ProduceOptions
from headrace.transport.reading import ConsumeOptions
from headrace.transport.records import Record
from headrace.transport.shaping import Route, Shaping

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TWO, _ONE = "virginicasetosa", "versicolor"
_ROUTE = Route("class", {"virginica": (_TWO, (0,)), "setosa": (_TWO, (1,)), "versicolor": (_ONE, (0, 1))})
_FIELDS = ("sepal_length", "sepal_width")
_COLOURS = {"virginica": RED, "setosa": BLUE, "versicolor": GREEN}
_SERIES = (f"virginica:red={_TWO}/0", f"setosa:blue={_TWO}/1", f"versicolor:green={_ONE}")


def run(lab: Workbench) -> None:
    lab.step("Two topics with two partitions each, one copy of everything")
    for topic in (_TWO, _ONE):
        lab.topic(topic, partitions=2, replication=1)
        found = lab.admin.describe(topic)
        lab.check(f"{topic}: partitions and replication", [2, 1], [len(found.partitions), found.replication])
    table = flowers()
    _produce(lab, table)
    _everything(lab)
    lab.step("Consumers 2 and 3: one partition each")
    for number, partition, name in ((2, 1, "setosa"), (3, 0, "virginica")):
        lab.shows(f"headrace consume {_TWO} --partition {partition} --from beginning --until idle:{lab.p.idle_s:g}s")
        read, _ = _consumer(lab, (_TWO,), partitions=(partition,))
        lab.check(f"consumer {number}: records of partition {partition}", 50, len(read))
        lab.check(f"consumer {number}: all of them {name}", True, sorted(map(_value, read)) == _sorted(table, name))
    _with_spark(lab, table)


def _produce(lab: Workbench, table: list[Iris]) -> None:
    lab.step(
        "The producer", "It reads the table, prints class and values, and sends the values. They are NumPy numbers."
    )
    rows = [{"class": f.name, **dict(zip(_FIELDS, np.array(f[:2]), strict=True))} for f in table]
    lab.shows(
        "headrace sample iris -o iris.csv",
        f"headrace produce {_TWO} iris.csv --numbers --value-fields {','.join(_FIELDS)} "
        f"--route class:virginica={_TWO}/0,setosa={_TWO}/1,versicolor={_ONE}/0+1",
    )
    options = ProduceOptions(shaping=Shaping(route=_ROUTE, value_fields=_FIELDS))
    report = produce(lab.cluster, _TWO, rows, options=options)
    lab.output([f"{row['class']} [{row['sepal_length']}, {row['sepal_width']}]" for row in rows], most=6)
    lab.check("records acknowledged", 150, report.acknowledged)
    lab.check("the numbers are NumPy's", "float64", type(rows[0]["sepal_length"]).__name__)


def _everything(lab: Workbench) -> None:
    lab.step("Consumer 1: everything, from the beginning", f"It leaves after {lab.p.idle_s:g} s of silence, and draws.")
    until = f"--from beginning --until idle:{lab.p.idle_s:g}s"
    colours = " ".join(f"--plot-series {series}" for series in _SERIES)
    lab.shows(f"headrace consume {_TWO} {_ONE} {until} --plot iris.png {colours}")
    read, waited = _consumer(lab, (_TWO, _ONE))
    lab.output([f"{r.topic} {(r.value or b'').decode()} in partition {r.partition}" for r in read], most=9)
    lab.measure("from the last record to leaving", waited, "s")
    lab.check("records read", 150, len(read))
    lab.check("it waited for further records", at_least(lab.p.idle_s, "s"), waited)
    places = Counter((record.topic, record.partition) for record in read)
    lab.check(f"{_TWO}/0", 50, places[_TWO, 0])
    lab.check(f"{_TWO}/1", 50, places[_TWO, 1])
    lab.check(f"{_ONE}, both partitions", [25, 25], [places[_ONE, 0], places[_ONE, 1]])
    astray = _astray(read)
    lab.check("flowers in the wrong place", 0, len(astray), look=f"{astray[:3]}")
    scatter = Scatter("0", "1", [Series.parse(series) for series in _SERIES])
    for record in read:
        scatter.add(record)
    lab.check("points that --plot draws", dict.fromkeys(_COLOURS, 50), scatter.counts)
    lab.figure("scatter", "Sepal length against sepal width; the class is known from topic and partition alone",
               lambda figure: _draw(figure, read))  # fmt: skip


def _with_spark(lab: Workbench, table: list[Iris]) -> None:
    lab.step("The same with Spark", "Both topics, the class from topic and partition, counts and means per class.")
    flow = Example(lab, "iris")
    report = flow.run(len(table))
    lab.check("rows written", len(table), report.run.outcomes["written"])
    classes = {row["class"]: row for row in flow.rows("classes")}
    found = {
        name: (row["flowers"], round(row["mean_length"], 6), round(row["mean_width"], 6))
        for name, row in sorted(classes.items())
    }
    lab.table("from the table", ["class", "flowers", "mean length", "mean width"], [(n, *f) for n, f in found.items()])
    for name in _COLOURS:
        lengths, widths = zip(*_sorted(table, name), strict=True)
        means = (len(lengths), round(mean(lengths), 6), round(mean(widths), 6))
        lab.check(f"{name}: flowers and means", means, found.get(name))


def _consumer(lab: Workbench, topics: tuple[str, ...], partitions: tuple[int, ...] = ()) -> tuple[list[Record], float]:
    """What it read, and how long it stayed after its last record."""
    until = Until("idle", lab.p.idle_s)
    read = reading(
        lab.cluster, topics, options=ConsumeOptions(start=Start("beginning"), until=until, partitions=partitions)
    )
    records: list[Record] = []
    last = time.monotonic()
    for batch in read.batches():
        records += batch.records()
        last = time.monotonic()
    return records, time.monotonic() - last


def _class_of(record: Record) -> str:
    return "versicolor" if record.topic == _ONE else ("virginica", "setosa")[record.partition]


def _value(record: Record) -> tuple[float, float]:
    length, width = json.loads(record.value or b"")
    return length, width


def _sorted(table: list[Iris], name: str) -> list[tuple[float, float]]:
    return sorted((flower.sepal_length, flower.sepal_width) for flower in table if flower.name == name)


def _astray(records: list[Record]) -> list[tuple[str, tuple[float, float]]]:
    """Values that the class of their place does not have, or not so often."""
    seen = Counter((_class_of(record), _value(record)) for record in records)
    known = Counter((flower.name, (flower.sepal_length, flower.sepal_width)) for flower in flowers())
    return list((seen - known).elements())


def _draw(figure: Figure, records: list[Record]) -> None:
    axes = figure.subplots()
    for name, colour in _COLOURS.items():
        points = [_value(record) for record in records if _class_of(record) == name]
        lengths, widths = zip(*points, strict=True)
        axes.scatter(lengths, widths, color=colour, label=name, s=26, alpha=0.8, edgecolors="none")
    axes.set_xlabel("sepal length, cm")
    axes.set_ylabel("sepal width, cm")
    axes.legend()


LAB = Lab(
    "S0",
    ("S0.1", "S0.2", "S0.3", "S0.4", "S0.5", "S0.6"),
    run,
    parameters=(Parameter("idle_s", 10.0, "seconds of silence after which a consumer leaves", fast=1.0),),
    waits=True,
)
