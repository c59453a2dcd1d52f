"""A file of customers is read by a group of two, and by a group of five.

Three brokers, each with an id, a port and a log directory of its own; a topic with three partitions, each of which lies
on one of them, as a folder named after topic and partition. 12,434 customers are piped in from a CSV file without a
header row. A group of two consumers reads all of them between them: one gets two partitions, the other one. With five
consumers for three partitions, two are idle.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from headrace import ConsumeOptions, InputOptions, ProduceOptions, produce
from headrace.cluster import partitions_in
from headrace.labs.expect import at_least
from headrace.labs.lab import Lab, Parameter
from headrace.labs.workbench import Workbench
from headrace.transport.consume import Reading, reading
from headrace.transport.inputs import Shape


def run(lab: Workbench) -> None:
    lab.step("The brokers", "An id, a port and a log directory for each.")
    lab.shows("headrace up --brokers 3", "headrace status")
    nodes = lab.cluster.spec.brokers
    folders = {node.node_id: lab.cluster.home.node(node.name) / "data" for node in nodes}
    lab.table("brokers", ["id", "port", "log directory"],
              [(n.node_id, str(n.port), f"{n.name}/data") for n in nodes])  # fmt: skip
    lab.check("ids", len(nodes), len({node.node_id for node in nodes}))
    lab.check("ports", len(nodes), len({node.port for node in nodes}))
    lab.check("log directories", len(nodes), len(set(folders.values())))

    lab.step("A topic with three partitions, one copy of each")
    topic = lab.topic("customers", partitions=3, replication=1)
    leaders = {p.partition: p.leader for p in lab.admin.topic(topic).partitions}
    lab.table("which broker holds which", ["partition", "broker", "folder"],
              [(p, broker, f"broker-{broker}/data/{topic}-{p}") for p, broker in leaders.items()])  # fmt: skip
    lab.check("folders on disk, by broker", {broker: [p] for p, broker in leaders.items()}, _on_disk(folders, topic))

    lab.step(
        f"{lab.p.customers:,} customers are piped in", "Each line of the file is a record; there is no header row."
    )
    file = lab.sample("customers", lab.p.customers, "customers.csv")
    lab.shows(f"headrace produce {topic} --input lines < customers.csv")
    report = produce(lab.cluster, topic, file, options=ProduceOptions(input=InputOptions(shape=Shape.LINES)))
    lab.check("records acknowledged", lab.p.customers, report.acknowledged)
    spans = report.partitions[topic]
    lab.table("records by partition", ["partition", "records"], [(p, s.records) for p, s in sorted(spans.items())])
    lab.check("partitions that got some", 3, sum(span.records > 0 for span in spans.values()))

    lab.step("A group of two reads all of them between them")
    two = _group(lab, topic, "customer-group", 2)
    lab.check("records read together", lab.p.customers, sum(two[0].values()))
    lab.check("partitions of the two", [1, 2], sorted(len(owned) for owned in two[1].values()))
    lab.check("what the smaller part has at least", at_least(1), min(two[0].values()), timing=True)

    lab.step("Five consumers for three partitions")
    five = _group(lab, topic, "customer-group-5", 5)
    lab.check("records read together", lab.p.customers, sum(five[0].values()))
    lab.check("consumers with a partition", 3, sum(bool(owned) for owned in five[1].values()))
    lab.check("consumers that are idle", 2, sum(not owned for owned in five[1].values()))


def _group(lab: Workbench, topic: str, name: str, members: int) -> tuple[Counter[int], dict[int, set[int]]]:
    """Records and partitions of each member of a new group."""
    group = lab.group(name)
    lab.shows(f"headrace consume {topic} --group {group} --members {members}")
    run = reading(lab.cluster, [topic], options=ConsumeOptions(group=group, members=members))
    for _ in run.batches():
        continue
    read: Counter[int] = Counter()
    for (member, _, _), span in run.report.spans.items():
        read[member] += span.records
    owned = _owned(run)
    lab.table(group, ["member", "partitions", "records"], [(m, owned[m], read[m]) for m in sorted(owned)])
    return read, owned


def _owned(run: Reading) -> dict[int, set[int]]:
    """The partitions that each member had at last, before it left."""
    owned: dict[int, set[int]] = {}
    for event in run.report.ownership:
        if event.what == "assigned":
            owned[event.member] = {partition for _, partition in event.places}
    return owned


def _on_disk(folders: dict[int, Path], topic: str) -> dict[int, list[int]]:
    return {broker: list(partitions_in(data, topic)) for broker, data in sorted(folders.items())}


LAB = Lab(
    "S4",
    ("S4.1",),
    run,
    parameters=(Parameter("customers", 12_434, "customers in the file", least=300),),
)
