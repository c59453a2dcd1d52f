"""Iris: a producer that routes by class, and three consumers.

150 flowers of three classes are sent as JSON arrays of sepal length and width. The class decides on topic and
partition, exactly:

    virginica     virginicasetosa, partition 0
    setosa        virginicasetosa, partition 1
    versicolor    versicolor, both partitions in turn

Consumer 1 reads both topics with all partitions from the beginning, prints a table, leaves after so many seconds of
silence, and draws sepal length against width in three colours. Consumer 2 reads only partition 1 of virginicasetosa
(setosa), consumer 3 only partition 0 (virginica). The value does not name the class, so only the routing does: with one
flower in a wrong partition the picture would be wrong.

Then the document's two questions (settings of producers and consumers, and what ZooKeeper is for) and its topic that
was not created are answered by what a cluster does.

The same flow as a Spark pipeline (examples/iris) takes the class from topic and partition too, and writes a table of
counts and means per class, which is compared with the means of the table that was sent.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from statistics import mean

from headrace import ConsumeOptions, Record, Scatter, Series, Start, Until, consume, partition_of, reading, samples
from headrace.labs.examples import Example, declaration_of
from headrace.labs.expect import at_least, contains, one_of
from headrace.labs.figures import BLUE, GREEN, RED, Figure
from headrace.labs.lab import Lab, Needs, Parameter
from headrace.labs.workbench import Workbench

_TWO, _ONE = "virginicasetosa", "versicolor"
_NOBODYS = "test1"
_FIELDS = ("sepal_length", "sepal_width")
_TABLE = r"%t %v in partition %p\n"
_COLOURS = {"virginica": RED, "setosa": BLUE, "versicolor": GREEN}
_SERIES = (f"virginica:red={_TWO}/0", f"setosa:blue={_TWO}/1", f"versicolor:green={_ONE}")


def run(lab: Workbench) -> None:
    lab.step("Two topics with two partitions each, one copy of everything")
    for topic in (_TWO, _ONE):
        lab.topic(topic, partitions=2, replication=1, fixed=True)
        found = lab.describe(topic)
        lab.check(f"{topic}: partitions and replication", [2, 1], [len(found.partitions), found.replication])
    table = samples.flowers()
    _produce(lab)
    _arrays(lab, table)
    _everything(lab)
    lab.step("Consumers 2 and 3: one partition each")
    for number, partition, name in ((2, 1, "setosa"), (3, 0, "virginica")):
        lab.shows(f"headrace consume {_TWO} --partition {partition} --from beginning --until idle:{lab.p.idle_s:g}s")
        read, _ = _consumer(lab, (_TWO,), partitions=(partition,))
        lab.check(f"consumer {number}: records of partition {partition}", 50, len(read))
        lab.check(f"consumer {number}: all of them {name}", True, sorted(map(_value, read)) == _sorted(table, name))
    _with_spark(lab, table)
    _settings(lab)
    _zookeeper(lab)
    _automatic_topics(lab)


def _produce(lab: Workbench) -> None:
    lab.step("The producer", "It reads the table, prints class and values of each flower, and sends the values.")
    lab.sample("iris", 150, "iris.csv")
    output = lab.types(
        f"headrace produce {_TWO} iris.csv --numbers --value-fields {','.join(_FIELDS)} --echo class "
        f"--route class:virginica={_TWO}/0,setosa={_TWO}/1,versicolor={_ONE}/0+1",
        most=6,
    )
    lab.check("lines that it printed", 150, len(output.out.splitlines()))
    classes = Counter(line.partition(" ")[0] for line in output.out.splitlines())
    lab.check("flowers of each class", dict.fromkeys(sorted(_COLOURS), 50), dict(sorted(classes.items())))
    lab.check("the first line", "setosa [5.1,3.5]", output.out.partition("\n")[0])
    lab.check("records acknowledged", contains("150 records acknowledged"), output.err)


_ARRAYS = """
import numpy, headrace
flowers = [("virginica", numpy.array([6.0, 3.0])), ("setosa", numpy.array([5.1, 3.5], dtype=object))]
for name, values in flowers:
    print((name, values))
rows = [values for _, values in flowers] + [{"length": numpy.float64(6.3), "petals": numpy.int64(3)}]
print(headrace.produce(headrace.Cluster(), %r, rows).acknowledged)
"""


def _arrays(lab: Workbench, table: list[samples.Iris]) -> None:
    lab.step("From Python, with NumPy", "Arrays and single numbers of NumPy become JSON as lists and numbers do.")
    topic = lab.topic("iris-arrays", replication=1)
    program = _ARRAYS.strip() % topic
    output = lab.types(f"python - <<'END'\n{program}\nEND")
    lab.check("what it printed first", "('virginica', array([6., 3.]))", output.out.partition("\n")[0])
    values = [json.loads(record.value or b"") for record in consume(lab.cluster, topic)]
    lab.check("values in the topic", [[6.0, 3.0], [5.1, 3.5], {"length": 6.3, "petals": 3}], values)
    lab.check("the first is a flower of the table", True, (6.0, 3.0) in _sorted(table, "virginica"))


def _settings(lab: Workbench) -> None:
    lab.step(
        "Question: two settings of a producer, two of a consumer",
        """The document names key_serializer and partitioner, group_id and consumer_timeout_ms. What each decides can be
        seen: the bytes of a key, the partition of a key, what is remembered of a reader, and when it leaves.""",
    )
    topic = lab.topic("iris-settings", partitions=2, replication=1)
    lab.types(f"headrace produce {topic} iris.csv --numbers --key-field class", most=5)
    read = list(consume(lab.cluster, topic))
    lab.check("key_serializer: keys are bytes", {b"setosa", b"versicolor", b"virginica"}, {r.key for r in read})
    places = {name: {r.partition for r in read if r.key == name.encode()} for name in sorted(_COLOURS)}
    expected = {name: {partition_of(name.encode(), 2)} for name in sorted(_COLOURS)}
    lab.check("partitioner: a key's partition is hash(key) mod partitions", expected, places)
    group = lab.group("lab-iris")
    for number, (count, why) in enumerate(((150, "new"), (0, "at the end")), 1):
        output = lab.types(f"headrace consume {topic} --group {group}", most=2)
        lab.check(f"group_id: records of run {number}, the group is {why}", count, len(output.out.splitlines()))
    output = lab.types(f"headrace consume {topic}", most=2)
    lab.check("without a group nothing is remembered", 150, len(output.out.splitlines()))
    began = time.monotonic()
    lab.types(f"headrace consume {topic} --group {group} --until idle:{lab.p.idle_s:g}s", most=2)
    waited = time.monotonic() - began
    lab.check("consumer_timeout_ms: it leaves after so much silence", at_least(lab.p.idle_s, "s"), waited)


def _zookeeper(lab: Workbench) -> None:
    lab.step(
        "Question: what is the role of ZooKeeper?",
        """The document: it tracks which brokers live, elects the one controller, and keeps the topics with their
        settings. Today's Kafka has no ZooKeeper: controllers keep all of that in a log of their own (KRaft).""",
    )
    lab.types("headrace status", most=20)
    quorum, spec = lab.kafka.quorum(), lab.cluster.spec
    lab.check("live brokers, from the metadata of any broker", {node.node_id for node in spec.brokers},
              set(lab.kafka.live_brokers()))  # fmt: skip
    voters = {node.node_id for node in spec.voters}
    lab.check("the controller was elected by the voters and is one of them", one_of(voters), quorum.leader_id)
    lab.check("settings of a topic are kept too", "delete", lab.kafka.topic_configs(_TWO)["cleanup.policy"].value)
    roles = {role for node in spec.nodes for role in node.roles.split(",")}
    lab.check("roles of the processes; none is ZooKeeper", {"broker", "controller"}, roles)


def _automatic_topics(lab: Workbench) -> None:
    lab.step(
        "A topic that was not created",
        """In the document the broker makes `test1` when a producer first names it. headrace starts brokers that do not:
        a misspelt name would be a new topic. Both are tried.""",
    )
    output = lab.types(f"printf 'This is a message\\n' | headrace produce {_NOBODYS}", code=2)
    lab.check("refused, with the reason", contains(_NOBODYS), output.err)
    lab.check("and no topic appeared", False, _NOBODYS in {topic.name for topic in lab.kafka.topics()})
    with lab.cluster_beside("automatic", {"auto.create.topics.enable": "true"}):
        lab.types("printf 'This is a message\\nThis is another message\\n' | headrace --home automatic lab tool "
                  f"kafka-console-producer --topic {_NOBODYS}")  # fmt: skip
        output = lab.types(f"headrace --home automatic consume {_NOBODYS}")
        lab.check("records in the topic that the broker made", ["This is a message", "This is another message"],
                  output.out.splitlines())  # fmt: skip


def _everything(lab: Workbench) -> None:
    lab.step("Consumer 1: everything, from the beginning", f"It leaves after {lab.p.idle_s:g} s of silence, and draws.")
    until = f"--from beginning --until idle:{lab.p.idle_s:g}s"
    colours = " ".join(f"--plot-series {series}" for series in _SERIES)
    output = lab.types(f"headrace consume {_TWO} {_ONE} {until} --format '{_TABLE}' --plot iris.png {colours}", most=9)
    lab.check("lines of its table", 150, len(output.out.splitlines()))
    lab.check("it drew a picture", True, (lab.files / "iris.png").stat().st_size > 1000)
    read, waited = _consumer(lab, (_TWO, _ONE))
    lab.measure("from the last record to leaving", waited, "s")
    lab.check("records read", 150, len(read))
    lab.check("it waited for further records", at_least(lab.p.idle_s, "s"), waited)
    places = Counter((record.topic, record.partition) for record in read)
    lab.check(f"{_TWO}/0", 50, places[_TWO, 0])
    lab.check(f"{_TWO}/1", 50, places[_TWO, 1])
    lab.check(f"{_ONE}, both partitions", [25, 25], [places[_ONE, 0], places[_ONE, 1]])
    astray = _astray(read)
    lab.check("flowers in a wrong partition", 0, len(astray), look=f"{astray[:3]}")
    scatter = Scatter("0", "1", [Series.parse(series) for series in _SERIES])
    for record in read:
        scatter.add(record)
    lab.check("points that --plot draws", dict.fromkeys(_COLOURS, 50), scatter.counts)
    lab.figure("scatter", "Sepal length against sepal width; the class is known from topic and partition alone",
               _draw, read)  # fmt: skip


def _with_spark(lab: Workbench, table: list[samples.Iris]) -> None:
    lab.step("The same with Spark", "Both topics, the class from topic and partition, counts and means per class.")
    lab.lay_out()
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


def _sorted(table: list[samples.Iris], name: str) -> list[tuple[float, float]]:
    return sorted((flower.sepal_length, flower.sepal_width) for flower in table if flower.name == name)


def _astray(records: list[Record]) -> list[tuple[str, tuple[float, float]]]:
    """Values that the class of their place does not have, or not so often."""
    seen = Counter((_class_of(record), _value(record)) for record in records)
    known = Counter((flower.name, (flower.sepal_length, flower.sepal_width)) for flower in samples.flowers())
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
    needs=Needs(topics=(_TWO, _ONE, _NOBODYS)),
    parameters=(
        Parameter("idle_s", 10.0, "seconds of silence after which a consumer leaves", fast=1.0, least=1, most=600),
    ),
    files={"headrace.toml": lambda: declaration_of("iris")},
    waits=True,
)
