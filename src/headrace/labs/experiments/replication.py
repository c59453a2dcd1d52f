"""A broker dies, and nothing is lost.

Three brokers hold three copies of every partition. One of them is killed with SIGKILL, as a power cut would, while
records are written. Expected: the partitions that it led get another leader within seconds, its name leaves the ISR
(the replicas that have everything), writing goes on, and every record that was ever acknowledged can be read. When the
broker comes back it copies what it has missed, and the ISR is whole again.

The time of each of these is measured. Kafka of today needs no ZooKeeper for this: the controllers are brokers too, and
decide among themselves (KRaft).
"""

from __future__ import annotations

import time

from headrace.labs.background import Poll
from headrace.labs.expect import at_least, at_most
from headrace.labs.figures import BLUE, GREY, ORANGE, Figure
from headrace.labs.lab import Lab, Needs, Parameter
from headrace.labs.workbench import Workbench
from headrace.labs.writer import Writer, account_of


def run(lab: Workbench) -> None:
    lab.step("A cluster of three brokers", "Each with an id, a port and a data folder of its own.")
    lab.shows("headrace up --brokers 3", "headrace status")
    status = lab.cluster.status()
    nodes = [(node.name, node.roles, str(node.port), node.state) for node in status.nodes]
    lab.table("nodes", ["node", "roles", "port", "state"], nodes)
    lab.check("running brokers", 3, sum(node.state == "running" for node in status.nodes if node.node_id is not None))

    lab.step("A topic with three copies of each partition")
    topic = lab.topic("replicated", partitions=3, replication=3)
    _describe(lab, topic)

    lab.step(
        "The leader of partition 0 is killed while records are written",
        "The producer asks for acks=all: a record counts as written when every replica in the ISR has it.",
    )
    lab.numbers(1_000_000)
    victim = lab.kafka.topic(topic).partitions[0].leader
    lab.shows(f"headrace produce {topic} numbers.txt --rate {lab.p.rate} --acks all & writer=$!",
              f"headrace kill {victim}")  # fmt: skip
    with Writer(lab.connection, topic, rate=lab.p.rate) as writer, _IsrWatch(lab, topic) as watch:
        lab.wait(lab.p.before_s)
        killed = time.monotonic()
        lab.cluster.kill(victim)
        moved = lab.seconds_until(lambda: _nobody_led_by(lab, topic, victim), 30, "the move of the leaders")
        shrunk = lab.seconds_until(lambda: _isr_sizes(lab, topic) == [2, 2, 2], 30, "the shrinking of the ISR") + moved
        lab.wait(lab.p.after_s)
        back = time.monotonic()
        lab.shows(f"headrace start {victim}")
        lab.cluster.start(victim)
        lab.until(lambda: _isr_sizes(lab, topic) == [3, 3, 3], 60, "the return into the ISR")
        whole = time.monotonic() - back
        lab.wait(lab.p.before_s / 2)
    lab.measure("until other brokers led", moved, "s", f"after SIGKILL, as clients see it; {lab.timers()}")
    lab.measure("until the ISR had shrunk", shrunk, "s")
    lab.measure("longest gap between acknowledgements", writer.longest_gap_s(), "s")
    lab.measure("until the ISR was whole again", whole, "s", "after the start")
    lab.check("time until other brokers led", at_most(10, "s"), moved, look=f"headrace logs {victim}", timing=True)
    lab.check("replicas in sync after the death", [2, 2, 2], watch.smallest())
    lab.check("replicas in sync after the return", [3, 3, 3], _isr_sizes(lab, topic))
    meanwhile = sum(killed + moved < each.at < back for each in writer.acknowledged.values())
    lab.check("acknowledged while the broker was dead", at_least(1), meanwhile)

    lab.step("Everything that was acknowledged is there", "Read from the beginning, and compared number by number.")
    lab.shows("kill $writer", f"headrace consume {topic} --from beginning")
    found = account_of(lab.connection, writer)
    lab.table(
        "the account",
        ["sent", "acknowledged", "refused", "read", "lost", "twice"],
        [(writer.sent, found.acknowledged, len(writer.refused), found.read, len(found.lost), len(found.doubled))],
    )
    lab.check("records sent and acknowledged", writer.sent, found.acknowledged)
    lab.check("acknowledged records that cannot be read", 0, len(found.lost), look=f"numbers {found.lost[:5]}")
    lab.check("records that are there twice", 0, len(found.doubled))
    lab.figure("failover", "Acknowledgements, and how many replicas of partition 0 are in sync",
               _draw, writer, watch, (killed, back))  # fmt: skip


def _describe(lab: Workbench, topic: str) -> None:
    found = lab.describe(topic)
    lab.shows(f"headrace topic describe {topic}")
    lab.table(
        f"{topic}: id {found.topic_id}, {len(found.partitions)} partitions, replication {found.replication}",
        ["partition", "leader", "replicas", "ISR"],
        [(p.partition, p.leader, p.replicas, p.isr) for p in found.partitions],
    )
    lab.check("partitions", 3, len(found.partitions))
    lab.check("replication factor", 3, found.replication)
    lab.check("leaders are spread over the brokers", 3, len({p.leader for p in found.partitions}))
    lab.check("every replica is in sync", [3, 3, 3], [len(p.isr) for p in found.partitions])
    lab.check("the topic's min.insync.replicas", "2", found.configs["min.insync.replicas"].value)


def _nobody_led_by(lab: Workbench, topic: str, victim: int) -> bool:
    leaders = [p.leader for p in lab.kafka.topic(topic).partitions]
    return victim not in leaders and -1 not in leaders


def _isr_sizes(lab: Workbench, topic: str) -> list[int]:
    return [len(p.isr) for p in lab.kafka.topic(topic).partitions]


class _IsrWatch(Poll):
    """Looks at the ISR many times a second."""

    def __init__(self, lab: Workbench, topic: str) -> None:
        super().__init__(f"ISR of {topic}", every_s=0.1)
        self.seen: list[tuple[float, list[int]]] = []
        self._lab = lab
        self._topic = topic

    def poll(self) -> None:
        self.seen.append((time.monotonic(), _isr_sizes(self._lab, self._topic)))

    def smallest(self) -> list[int]:
        return [min(column) for column in zip(*(sizes for _, sizes in self.seen), strict=True)]


def _draw(figure: Figure, writer: Writer, watch: _IsrWatch, marks: tuple[float, float]) -> None:
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    zero = writer.sent_at[0]
    times = [each.at - zero for each in writer.acknowledged.values()]
    above.hist(times, bins=int(max(times) * 5) + 1, color=BLUE)
    above.set_ylabel("acknowledged\nper 0.2 s")
    below.step([at - zero for at, _ in watch.seen], [sizes[0] for _, sizes in watch.seen], where="post", color=ORANGE)
    below.set_ylabel("ISR of\npartition 0")
    below.set_yticks([1, 2, 3])
    below.set_ylim(0.7, 3.3)
    below.set_xlabel("seconds")
    for mark, word in zip(marks, ("killed", "started"), strict=True):
        for axes in (above, below):
            axes.axvline(mark - zero, color=GREY, linestyle="--", linewidth=1)
        above.annotate(word, (mark - zero, 1), xycoords=("data", "axes fraction"), xytext=(4, -10),
                       textcoords="offset points", color=GREY, fontsize=8.5)  # fmt: skip


LAB = Lab(
    "S1",
    ("S1.1", "S1.3"),
    run,
    needs=Needs(faults=True),
    parameters=(
        Parameter("rate", 500, "records a second", fast=200, least=20, most=5000),
        Parameter("before_s", 3.0, "seconds of writing before the kill", fast=1.0, least=0.5, most=60),
        Parameter("after_s", 3.0, "seconds of writing while the broker is dead", fast=1.5, least=0.5, most=60),
    ),
)
