"""A file of customers is read by a group of two, and by a group of five.

Three brokers, each with an id, a port and a log directory of its own; a topic with three partitions, each of which lies
on one of them, as a folder named after topic and partition. 12,434 customers are piped in from a CSV file without a
header row. A group of two consumers reads all of them between them: one gets two partitions, the other one. With five
consumers for three partitions, two are idle.
"""

from __future__ import annotations

from collections import Counter

from headrace import ConsumeOptions, reading
from headrace.labs.expect import at_least
from headrace.labs.lab import Lab, Parameter
from headrace.labs.workbench import Workbench


def run(lab: Workbench) -> None:
    lab.step("The brokers", "An id, a port and a log directory for each.")
    lab.shows("headrace up --brokers 3", "headrace status")
    nodes = lab.cluster.spec.brokers
    lab.table("brokers", ["id", "port", "log directory"],
              [(n.node_id, str(n.port), f"{n.name}/data") for n in nodes])  # fmt: skip
    lab.check("ids", len(nodes), len({node.node_id for node in nodes}))
    lab.check("ports", len(nodes), len({node.port for node in nodes}))
    lab.check("log directories", len(nodes), len({lab.cluster.home.node(node.name) for node in nodes}))

    lab.step("A topic with three partitions, one copy of each")
    topic = lab.topic("customers", partitions=3, replication=1)
    leaders = {p.partition: p.leader for p in lab.kafka.topic(topic).partitions}
    lab.table("which broker holds which", ["partition", "broker", "folder"],
              [(p, broker, f"broker-{broker}/data/{topic}-{p}") for p, broker in leaders.items()])  # fmt: skip
    found = sorted(lab.cluster.segments(topic))
    on_disk = {node.node_id: [partition for broker, partition in found if broker == node.node_id] for node in nodes}
    lab.check("folders on disk, by broker", {broker: [p] for p, broker in leaders.items()}, on_disk)

    lab.step(
        f"{lab.p.customers:,} customers are piped in", "Each line of the file is a record; there is no header row."
    )
    lab.sample("customers", lab.p.customers, "customers.csv")
    lab.check("records acknowledged", lab.p.customers, lab.produce(topic, "--input lines < customers.csv"))
    counts = [(p.partition, p.offsets) for p in lab.describe(topic).partitions]
    lab.table("records by partition", ["partition", "records"], counts)
    lab.check("partitions that got some", 3, sum(bool(records) for _, records in counts))

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
    # What each had at last, before it left.
    assigned = [event for event in run.report.ownership if event.what == "assigned"]
    owned = {event.member: {partition for _, partition in event.places} for event in assigned}
    lab.table(group, ["member", "partitions", "records"], [(m, owned[m], read[m]) for m in sorted(owned)])
    return read, owned


LAB = Lab(
    "S4",
    ("S4.1",),
    run,
    parameters=(Parameter("customers", 12_434, "customers in the file", least=300),),
)
