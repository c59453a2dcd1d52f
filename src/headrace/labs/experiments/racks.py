"""Replicas spread over brokers and racks.

Six brokers stand in two racks, alternating. A topic with 10 partitions and three copies of each makes 30 replicas.
They should be spread evenly (about five on each broker), never two copies of a partition on one broker, and each
partition in both racks, so that neither the loss of a broker nor that of a whole rack takes a partition away.
Leaderships should be spread as well.

The documents describe how Kafka deals them out: over one ordered list of brokers that alternates between the racks,
which gives each broker exactly five. Kafka without ZooKeeper deals each rack's share separately, from random places:
each broker gets five, give or take one. What came out is asked of the cluster and drawn.
"""

from __future__ import annotations

from collections import Counter

from headrace import Topic
from headrace.labs.expect import at_least, at_most
from headrace.labs.figures import BLUE, GREY, ORANGE, Figure
from headrace.labs.lab import Lab, Needs, Parameter
from headrace.labs.workbench import Workbench

_RACKS = ("R1", "R2")
_BROKERS = 6
_REPLICAS = 3


def run(lab: Workbench) -> None:
    lab.step("Six brokers in two racks")
    lab.shows(f"headrace up --brokers {_BROKERS} --racks {','.join(_RACKS)}", "headrace status")
    racks = {broker.broker_id: broker.rack or "" for broker in lab.kafka.brokers()}
    lab.table("brokers", ["broker", "rack"], sorted(racks.items()))
    lab.check("brokers", _BROKERS, len(racks))
    lab.check("brokers in each rack", {"R1": 3, "R2": 3}, dict(sorted(Counter(racks.values()).items())))

    lab.step(f"{lab.p.partitions} partitions with {_REPLICAS} copies: {lab.p.partitions * _REPLICAS} replicas")
    topic = lab.topic("spread", partitions=lab.p.partitions, replication=_REPLICAS)
    lab.shows(f"headrace topic describe {topic}")
    found = lab.kafka.topic(topic)
    rows = [(p.partition, p.leader, p.replicas, sorted({racks[b] for b in p.replicas})) for p in found.partitions]
    lab.table("where they are", ["partition", "leader", "replicas", "racks"], rows)
    _check(lab, found, racks)
    lab.figure("grid", "Where the replicas are: filled for the leader, by rack", _draw, found, racks)

    lab.step(
        "A whole rack goes down", "All three brokers of one rack are killed; every partition must still have a leader."
    )
    _lose_a_rack(lab, topic, racks)


def _check(lab: Workbench, found: Topic, racks: dict[int, str]) -> None:
    load = Counter(broker for p in found.partitions for broker in p.replicas)
    leaders = Counter(p.leader for p in found.partitions)
    lab.table("replicas by broker", ["broker", "rack", "replicas", "of these leader"],
              [(broker, racks[broker], load[broker], leaders[broker]) for broker in sorted(racks)])  # fmt: skip
    total = lab.p.partitions * _REPLICAS
    lab.check("replicas", total, sum(load.values()))
    loads = [load[broker] for broker in racks]
    lab.check("replicas on the emptiest broker", at_least(total // _BROKERS - 1), min(loads))
    lab.check("replicas on the fullest broker", at_most(total // _BROKERS + 1), max(loads))
    doubled = [p for p in found.partitions if len(set(p.replicas)) < len(p.replicas)]
    lab.check("partitions with two replicas on one broker", 0, len(doubled))
    lonely = [p for p in found.partitions if len({racks[broker] for broker in p.replicas}) < len(_RACKS)]
    lab.check("partitions that are in one rack only", 0, len(lonely))
    fair = -(-lab.p.partitions // _BROKERS)
    lab.check("leaderships of the broker with the most", at_most(fair + 1), max(leaders.values()))


def _lose_a_rack(lab: Workbench, topic: str, racks: dict[int, str]) -> None:
    # Three of the six nodes are voters; in the rack with one of them, the other two remain the majority.
    voters = [node.node_id for node in lab.cluster.spec.voters]
    lost = min(_RACKS, key=lambda rack: sum(racks[voter] == rack for voter in voters))
    victims = sorted(broker for broker, rack in racks.items() if rack == lost)
    lab.shows(*(f"headrace kill {broker}" for broker in victims))
    for broker in victims:
        lab.cluster.kill(broker)
    took = lab.seconds_until(lambda: _all_led(lab, topic, victims), 60, "the move of the leaders")
    lab.measure("until every partition was led by the other rack", took, "s", lab.timers())
    after = lab.kafka.topic(topic)
    elsewhere = sum(racks.get(p.leader, lost) != lost for p in after.partitions)
    lab.check("partitions with a leader in the other rack", lab.p.partitions, elsewhere)
    lab.check("replicas in sync, at least", at_least(1), min(len(p.isr) for p in after.partitions))


def _all_led(lab: Workbench, topic: str, victims: list[int]) -> bool:
    return all(p.leader >= 0 and p.leader not in victims for p in lab.kafka.topic(topic).partitions)


def _draw(figure: Figure, topic: Topic, racks: dict[int, str]) -> None:
    axes = figure.subplots()
    brokers = sorted(racks, key=lambda broker: (racks[broker], broker))
    colours = dict(zip(_RACKS, (BLUE, ORANGE), strict=True))
    for partition in topic.partitions:
        for broker in partition.replicas:
            colour = colours[racks[broker]]
            filled = colour if broker == partition.leader else "none"
            axes.scatter(partition.partition, brokers.index(broker), s=230, marker="s", linewidths=1.6,
                         facecolors=filled, edgecolors=colour)  # fmt: skip
    axes.set_yticks(range(len(brokers)), [f"broker {broker}, {racks[broker]}" for broker in brokers])
    axes.set_xticks(range(len(topic.partitions)))
    axes.set_xlabel("partition")
    axes.axhline(len(brokers) / 2 - 0.5, color=GREY, linestyle="--", linewidth=1)
    axes.set_ylim(len(brokers) - 0.5, -0.5)
    axes.grid(visible=False)


LAB = Lab(
    "S4",
    ("S4.4",),
    run,
    needs=Needs(brokers=_BROKERS, racks=_RACKS, faults=True),
    parameters=(Parameter("partitions", 10, "partitions of the topic", least=6, most=200),),
)
