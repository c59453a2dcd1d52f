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
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from headrace import consume, produce
from headrace.cluster.segments import Segment, partitions_in, segments_in
from headrace.labs.expect import at_least, contains
from headrace.labs.figures import COLOURS, GREY
from headrace.labs.lab import Lab, Needs, Parameter
from headrace.labs.sighting import Sighting
from headrace.labs.workbench import Workbench
from headrace.labs.writer import Writer
from headrace.runtime.rounds import Rounds
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
    """One moment: the end of each replica's log file, and what a consumer has read by then."""

    at: float
    ends: dict[int, int]
    read: int


class _Watch(Rounds):
    """Looks at the files of a topic: whoever asks brokers may have to wait."""

    def __init__(self, lab: Workbench, topic: str, reader: Sighting) -> None:
        super().__init__(f"watch of {topic}")
        self.looks: list[_Look] = []
        self.isr: list[tuple[float, int]] = []
        self.marks: dict[str, float] = {}
        self._lab, self._topic, self._reader = lab, topic, reader
        self._ends = _Ends(lab, topic)
        self._began = time.monotonic()

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    def look(self) -> float:
        self.looks.append(_Look(self.now, self._ends.look(), len(self._reader.seen)))
        return 0.05

    def until_isr(self, size: int, what: str) -> None:
        """So many replicas are in sync."""
        self._lab.until(lambda: self._isr() == size, 60, what, every_s=0.1)

    def _isr(self) -> int:
        self.isr.append((self.now, len(self._lab.partition(self._topic).isr)))
        return self.isr[-1][1]

    def mark(self, words: str) -> None:
        self.marks[words] = self.now


def _lag(lab: Workbench, topic: str) -> None:
    lab.step(
        "A follower is frozen while records are written",
        "SIGSTOP: it is alive and silent. The ends of the three log files are read from disk meanwhile.",
    )
    partition = lab.partition(topic)
    follower = next(broker for broker in partition.replicas if broker != partition.leader)
    with Sighting(lab.connection, [topic]) as reader, Writer(lab.connection, topic, rate=lab.p.rate) as writer:
        with _Watch(lab, topic, reader) as watch:
            behind = _freeze(lab, watch, partition.leader, follower)
        writer.stop()
        lab.until(lambda: len(reader.seen) >= len(writer.acknowledged), 30, "the reading of all records")
    lab.measure("how far it had fallen behind", behind, "records")
    lab.check("records that it lacked, at least", at_least(lab.p.rate / 4), behind)
    lab.check("records sent and acknowledged all the while", writer.sent, len(writer.acknowledged))
    lab.check("records that the consumer got, each when it was committed", len(writer.acknowledged), len(reader.seen))
    _tell(lab, watch, partition.leader)
    ends = _Ends(lab, topic)
    lab.until(lambda: len(set(ends.look().values())) == 1, 30, "the same end on all replicas")
    lab.check("ends of the three log files afterwards", 1, len(set(ends.look().values())))


def _freeze(lab: Workbench, watch: _Watch, leader: int, follower: int) -> int:
    """The follower was frozen until it had left the ISR, and is back in it; how many records it lacked."""
    watch.until_isr(3, "all replicas in sync")
    lab.wait(1.5)
    lab.shows(f"headrace pause {follower}")
    lab.cluster.pause(follower)
    watch.mark("frozen")
    try:
        watch.until_isr(2, "the follower's leaving of the ISR")
        watch.mark("left")
        lab.wait(1.5)
        behind = watch.looks[-1].ends[leader] - watch.looks[-1].ends[follower]
    finally:
        lab.shows(f"headrace resume {follower}")
        lab.cluster.resume(follower)
    watch.mark("resumed")
    watch.until_isr(3, "the return into the ISR")
    watch.mark("back")
    lab.wait(1.0)
    return behind


def _tell(lab: Workbench, watch: _Watch, leader: int) -> None:
    at = watch.marks
    lab.measure("until the follower had left the ISR", at["left"] - at["frozen"], "s")
    lab.measure("until it was back in the ISR", at["back"] - at["resumed"], "s", "having copied what it had missed")
    lab.say("""Frozen, but still in the ISR: what is written now lies in the leader's log above the high watermark. It
            is not committed, and no consumer gets it until the frozen one has left.""")
    above, seconds = _longest_wait(watch.looks, leader)
    lab.measure("records above the high watermark meanwhile", above, "", "what the producer sends without an answer")
    lab.check("for so long nobody could read what the leader had", at_least(0.4, "s"), seconds)
    lab.figure("lag", "How far each replica's log file reached while one was frozen, and how far a consumer could read",
               lambda figure: _draw(figure, watch))  # fmt: skip


def _longest_wait(looks: list[_Look], leader: int) -> tuple[int, float]:
    """The longest time in which a consumer got nothing although the leader had more: how much more, and how long."""
    longest = (0, 0.0)
    for _, spell in groupby(looks, key=lambda look: look.read):
        waiting = [look for look in spell if look.ends[leader] > look.read]
        if waiting and waiting[-1].at - waiting[0].at > longest[1]:
            longest = (waiting[-1].ends[leader] - waiting[-1].read, waiting[-1].at - waiting[0].at)
    return longest


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


class _Ends:
    """Where the log file of each replica ends. Nobody is asked, and what was read once is not read again."""

    def __init__(self, lab: Workbench, topic: str) -> None:
        self._logs: dict[int, Segment] = {}
        for node in lab.cluster.spec.brokers:
            for folder in partitions_in(lab.cluster.home.node(node.name) / "data", topic).values():
                (self._logs[node.node_id],) = segments_in(folder)
        self._ends = dict.fromkeys(self._logs, 0)
        self._positions = dict.fromkeys(self._logs, 0)

    def look(self) -> dict[int, int]:
        """The ends as of now, by broker."""
        for broker, log in self._logs.items():
            for batch in log.batches(self._positions[broker]):
                self._positions[broker] = batch.position + batch.size_bytes
                self._ends[broker] = batch.last_offset + 1
        return dict(self._ends)


def _draw(figure: Figure, watch: _Watch) -> None:
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    times = [look.at for look in watch.looks]
    for broker, colour in zip(sorted(watch.looks[0].ends), COLOURS, strict=False):
        above.plot(times, [look.ends[broker] for look in watch.looks], label=f"broker {broker}", color=colour)
    above.plot(times, [look.read for look in watch.looks], label="read by a consumer", color=GREY, linestyle=":")
    moments, sizes = zip(*[*watch.isr, (times[-1], watch.isr[-1][1])], strict=True)
    below.step(moments, sizes, where="post", color=GREY)
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
