"""In sync or not: committed records, lagging replicas, and too few of them.

The ISR of a partition are the replicas that have everything. A record is committed, and can be read, once all of them
have it: up to the high watermark, and no further. A replica that falls behind for too long leaves the ISR; what is
written then is committed without it, and when it comes back it copies what it has missed.

min.insync.replicas=2 says that a record for which a producer wants acks=all needs two replicas. With only one left,
the producer is told NotEnoughReplicas and nothing is written; what was committed can still be read. When a second
replica is back, writing goes on.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from headrace import consume, produce
from headrace.cluster.segments import partitions_in, segments_in
from headrace.labs.expect import at_least, contains
from headrace.labs.figures import COLOURS, GREY
from headrace.labs.lab import Lab, Needs, Parameter
from headrace.labs.sighting import Sighting
from headrace.labs.workbench import Workbench
from headrace.labs.writer import Writer
from headrace.transport.produce import ProduceOptions

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def run(lab: Workbench) -> None:
    # Not the controllers: when two of them are gone, nobody could even tell who is in sync.
    voters = {node.node_id for node in lab.cluster.spec.voters}
    replicas = [node.node_id for node in lab.cluster.spec.brokers if node.node_id not in voters][:3]
    topic = lab.topic("guarded", configs={"min.insync.replicas": "2"}, assignment=[replicas])
    _lag(lab, topic)
    _too_few(lab, topic)


class _Look(NamedTuple):
    """One moment: the end of each replica's log file, what a consumer has read by then, how many are in sync."""

    at: float
    ends: dict[int, int]
    read: int
    isr: int


class _Watch:
    """Looks at a topic of one partition, again and again, and remembers when what happened."""

    def __init__(self, lab: Workbench, topic: str, reader: Sighting) -> None:
        self.looks: list[_Look] = []
        self.marks: dict[str, float] = {}
        self._lab, self._topic, self._reader = lab, topic, reader
        self._began = time.monotonic()

    def isr(self) -> int:
        """How many replicas are in sync now."""
        ends, at, read = _ends(self._lab, self._topic), time.monotonic() - self._began, len(self._reader.seen)
        self.looks.append(_Look(at, ends, read, len(self._lab.partition(self._topic).isr)))
        return self.looks[-1].isr

    def until_isr(self, size: int, what: str) -> None:
        self._lab.until(lambda: self.isr() == size, 60, what, every_s=0.1)

    def during(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.isr()
            self._lab.wait(0.1)

    def mark(self, words: str) -> None:
        self.marks[words] = time.monotonic() - self._began


def _lag(lab: Workbench, topic: str) -> None:
    lab.step(
        "A follower is frozen while records are written",
        "SIGSTOP: it is alive and silent. The ends of the three log files are read from disk meanwhile.",
    )
    partition = lab.partition(topic)
    follower = next(broker for broker in partition.replicas if broker != partition.leader)
    with Sighting(lab.connection, [topic]) as reader, Writer(lab.connection, topic, rate=lab.p.rate) as writer:
        watch = _Watch(lab, topic, reader)
        watch.during(1.5)
        lab.shows(f"headrace pause {follower}")
        lab.cluster.pause(follower)
        watch.mark("frozen")
        try:
            watch.until_isr(2, "the follower's leaving of the ISR")
            watch.mark("left")
            watch.during(1.5)
            behind = watch.looks[-1].ends[partition.leader] - watch.looks[-1].ends[follower]
        finally:
            lab.shows(f"headrace resume {follower}")
            lab.cluster.resume(follower)
        watch.mark("resumed")
        watch.until_isr(3, "the return into the ISR")
        watch.mark("back")
        watch.during(1.0)
        writer.stop()
        lab.until(lambda: len(reader.seen) >= len(writer.acknowledged), 30, "the reading of all records")
    lab.measure("how far it had fallen behind", behind, "records")
    lab.check("records that it lacked, at least", at_least(lab.p.rate / 4), behind)
    lab.check("records sent and acknowledged all the while", writer.sent, len(writer.acknowledged))
    lab.check("records that the consumer got, each when it was committed", len(writer.acknowledged), len(reader.seen))
    _tell(lab, watch, partition.leader)
    lab.until(lambda: len(set(_ends(lab, topic).values())) == 1, 30, "the same end on all replicas")
    lab.check("ends of the three log files afterwards", 1, len(set(_ends(lab, topic).values())))


def _tell(lab: Workbench, watch: _Watch, leader: int) -> None:
    at = watch.marks
    lab.measure("until the follower had left the ISR", at["left"] - at["frozen"], "s")
    lab.measure("until it was back in the ISR", at["back"] - at["resumed"], "s", "having copied what it had missed")
    lab.say("""Frozen, but still in the ISR: what is written now lies in the leader's log above the high watermark. It
            is not committed, and no consumer gets it until the frozen one has left.""")
    uncommitted = max(look.ends[leader] - look.read for look in watch.looks if at["frozen"] < look.at < at["left"])
    lab.check("records above the high watermark then", at_least(lab.p.rate / 4), uncommitted)
    lab.figure("lag", "How far each replica's log file reached while one was frozen, and how far a consumer could read",
               lambda figure: _draw(figure, watch))  # fmt: skip


def _too_few(lab: Workbench, topic: str) -> None:
    lab.step("One replica is left", "The two followers are killed; min.insync.replicas is 2.")
    before = sum(1 for _ in consume(lab.cluster, topic))
    place = lab.partition(topic)
    others = [broker for broker in place.replicas if broker != place.leader]
    lab.shows(*(f"headrace kill {broker}" for broker in others))
    for broker in others:
        lab.cluster.kill(broker)
    lab.until(lambda: len(lab.partition(topic).isr) == 1, 30, "the shrinking of the ISR")
    lab.check("replicas in sync", 1, len(lab.partition(topic).isr))
    reasons: list[str] = []
    options = ProduceOptions(
        settings={"message.timeout.ms": int(lab.p.patience_s * 1000)},
        on_failed=lambda _, record: reasons.append(record.reason),
    )
    lab.shows(f"headrace produce {topic} more.txt --acks all")
    refused = produce(lab.cluster, topic, ["lost 1", "lost 2"], options=options)
    lab.output(reasons)
    lab.check("acknowledged with one replica", 0, refused.acknowledged)
    lab.check("refused", 2, refused.failed)
    lab.check("what the broker says", contains("NOT_ENOUGH_REPLICAS"), _broker_says(lab, topic))
    lab.check("what was committed can still be read", before, sum(1 for _ in consume(lab.cluster, topic)))

    lab.step("A second replica comes back")
    lab.shows(f"headrace start {others[0]}")
    lab.cluster.start(others[0])
    lab.until(lambda: len(lab.partition(topic).isr) == 2, 60, "the growing of the ISR")
    lab.check("acknowledged with two replicas", 1, produce(lab.cluster, topic, ["welcome back"]).acknowledged)
    values = [(record.value or b"").decode() for record in consume(lab.cluster, topic)]
    lab.check("records now", before + 1, len(values))
    lab.check("of those that were refused", 0, sum(value.startswith("lost") for value in values))


def _broker_says(lab: Workbench, topic: str) -> str:
    """The broker's own word for it: a producer that does not retry is told at once."""
    told: list[str] = []
    producer = lab.connection.producer({"enable.idempotence": False, "retries": 0, "acks": "all"})
    producer.produce(
        topic, "lost 3", on_delivery=lambda error, _: told.append(error.name() if error else "acknowledged")
    )
    producer.flush(30)
    return told[0] if told else "nothing"


def _ends(lab: Workbench, topic: str) -> dict[int, int]:
    """Where the log file of each replica ends, by broker; nobody is asked."""
    ends: dict[int, int] = {}
    for node in lab.cluster.spec.brokers:
        for folder in partitions_in(lab.cluster.home.node(node.name) / "data", topic).values():
            found = segments_in(folder)
            ends[node.node_id] = found[-1].next_offset if found else 0
    return ends


def _draw(figure: Figure, watch: _Watch) -> None:
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    times = [look.at for look in watch.looks]
    for broker, colour in zip(sorted(watch.looks[0].ends), COLOURS, strict=False):
        above.plot(times, [look.ends[broker] for look in watch.looks], label=f"broker {broker}", color=colour)
    above.plot(times, [look.read for look in watch.looks], label="read by a consumer", color=GREY, linestyle=":")
    below.step(times, [look.isr for look in watch.looks], where="post", color=GREY)
    for word in ("frozen", "resumed"):
        for axes in (above, below):
            axes.axvline(watch.marks[word], color=GREY, linestyle="--", linewidth=1)
        above.annotate(word, (watch.marks[word], 0.02), xycoords=("data", "axes fraction"), xytext=(4, 2),
                       textcoords="offset points", color=GREY, fontsize=8.5)  # fmt: skip
    above.set_ylabel("records in the log file")
    above.legend()
    below.set_ylabel("in sync")
    below.set_yticks([2, 3])
    below.set_ylim(1.7, 3.3)
    below.set_xlabel("seconds")


LAB = Lab(
    "S4",
    ("S4.5",),
    run,
    needs=Needs(brokers=6, racks=("R1", "R2"), faults=True),
    parameters=(
        Parameter("rate", 500, "records a second while a follower is frozen", fast=200),
        Parameter("patience_s", 4.0, "seconds that the producer tries with one replica", fast=2.0),
    ),
)
