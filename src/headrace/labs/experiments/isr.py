"""In sync or not: committed records, lagging replicas, and too few of them.

The ISR of a partition are the replicas that have everything. A record is committed, and can be read, once all of them
have it: up to the high watermark, and no further.

A replica leaves the ISR when it is dead or silent (the controller misses its heartbeats), or when it lives but has not
caught up for replica.lag.time.max.ms (the leader sees that). What is written then is committed without it, and when it
comes back it copies what it has missed. Both ways are tried: on a cluster that soon counts a silent broker as dead, and
on one that does not, with the document's 10 seconds.

Followers serve neither producers nor consumers: they answer that they do not lead.

min.insync.replicas=2 says that a record for which a producer wants acks=all needs two replicas. With only one left,
the producer gets NotEnoughReplicas and nothing is written; what was committed can still be read. When a second
replica is back, writing goes on.
"""

from __future__ import annotations

import time
from itertools import groupby
from typing import NamedTuple

from headrace import Cluster, Connection, Kafka, NewTopic, Partition, ProduceOptions, consume, produce
from headrace.labs.background import Poll, Sighting
from headrace.labs.expect import at_least, at_most, contains
from headrace.labs.figures import COLOURS, GREY, Figure
from headrace.labs.lab import Lab, Needs, Parameter
from headrace.labs.workbench import FAIL_OVER, Workbench
from headrace.labs.writer import Writer

LAG_TIME = "replica.lag.time.max.ms"


def run(lab: Workbench) -> None:
    # Not the controllers: when two of them are gone, the cluster no longer knows which replicas are in sync.
    voters = {node.node_id for node in lab.cluster.spec.voters}
    replicas = [node.node_id for node in lab.cluster.spec.brokers if node.node_id not in voters][:3]
    topic = lab.topic("guarded", configs={"min.insync.replicas": "2"}, assignment=[replicas])
    _lag(lab, topic)
    _slow_follower(lab)
    _followers_serve_nobody(lab, topic)
    _too_few(lab, topic)


def _whole(lab: Workbench, topic: str) -> Partition:
    """The partition, once it has a leader and all replicas are in sync: on a busy machine that may take a while."""

    def whole() -> Partition | None:
        found = lab.partition(topic)
        return found if found.leader >= 0 and len(found.isr) == len(found.replicas) else None

    found: Partition = lab.until(whole, 90, "all replicas in sync")
    return found


_END_WATCHER = """
import json, os, signal
os.kill(json.load(open("slow/watcher/process.json"))["pid"], signal.SIGKILL)
"""


def _slow_follower(lab: Workbench) -> None:
    limit_ms = int(lab.p.lag_s * 1000)
    settings = {LAG_TIME: str(limit_ms), "broker.session.timeout.ms": "120000", "broker.heartbeat.interval.ms": "2000"}
    lab.step(
        "A follower that lives and does not keep up",
        f"""On a cluster that gives a silent broker two minutes before it counts as dead, a follower is frozen for less
        than that. The watcher beside the nodes, which would report the freeze to the controller, is ended first. So the
        controller leaves the follower alone; the leader takes it out of the ISR by the document's rule, because it has
        not caught up for {LAG_TIME}={limit_ms}.""",
    )
    with lab.cluster_beside("slow", settings, brokers=3) as slow:
        lab.types(f"python - <<'END'\n{_END_WATCHER.strip()}\nEND")
        lab.shows("headrace --home slow topic create lagging --partitions 1 --replication 3",
                  f"seq 1000000 | headrace --home slow produce lagging --rate {lab.p.rate} & writer=$!")  # fmt: skip
        with Kafka(slow) as kafka:
            kafka.create_topics([NewTopic("lagging", 1, 3)])
            place, controller = kafka.topic("lagging").partitions[0], kafka.quorum().leader_id
        follower = next(node for node in place.replicas if node not in (place.leader, controller))
        with Writer(Connection(slow.bootstrap), "lagging", rate=lab.p.rate) as writer:
            lab.until(lambda: len(writer.acknowledged) > lab.p.rate, 60, "the first acknowledgements")
            lab.until(lambda: len(_seen_isr(slow)[0]) == 3, 60, "all replicas in sync")
            lab.shows(f"headrace --home slow pause {follower}")
            slow.pause(follower)
            try:
                left = lab.seconds_until(lambda: follower not in _seen_isr(slow)[0], 100, "its leaving of the ISR")
                _, alive = _seen_isr(slow)
            finally:
                lab.shows(f"headrace --home slow resume {follower}")
                slow.resume(follower)
            back = lab.seconds_until(lambda: len(_seen_isr(slow)[0]) == 3, 90, "the return into the ISR")
            lab.shows("kill $writer")
    lab.measure("from the freeze to leaving the ISR", left, "s",
                f"with {LAG_TIME}={limit_ms}, which the leader checks twice in that time")  # fmt: skip
    lab.measure("from the end of the freeze to being back", back, "s")
    lab.check("the broker counts as alive all the while", contains(follower), alive)
    lab.check("it left after that time, not before", at_least(lab.p.lag_s * 0.8, "s"), left, timing=True)
    lab.check("and within twice that time", at_most(lab.p.lag_s * 2 + 3, "s"), left, timing=True)
    lab.check("records sent and acknowledged all the while", writer.sent, len(writer.acknowledged))


def _seen_isr(cluster: Cluster) -> tuple[tuple[int, ...], set[int]]:
    """Who is in sync and who is alive; asked anew each time, since a client may have chosen the frozen broker."""
    with Kafka(cluster, timeout_s=2) as kafka:
        return kafka.topic("lagging").partitions[0].isr, set(kafka.live_brokers())


def _followers_serve_nobody(lab: Workbench, topic: str) -> None:
    lab.step(
        "Followers do not serve producers and consumers",
        """A client asks any broker who leads the partition, and then writes to and reads from the leader alone. Here a
        follower is asked all the same, past the client's own rules.""",
    )
    place = _whole(lab, topic)
    answers = {broker: lab.connection.answers_of(broker, topic) for broker in place.replicas}
    lab.table("what each replica answers", ["broker", "role", "to a producer", "to a consumer"],
              [(broker, "leader" if broker == place.leader else "follower", *answers[broker])
               for broker in place.replicas])  # fmt: skip
    for broker, (write, read) in answers.items():
        expected = "NONE" if broker == place.leader else "NOT_LEADER_OR_FOLLOWER"
        lab.check(f"broker {broker}: to a producer", expected, write)
        lab.check(f"broker {broker}: to a consumer", expected, read)


class _Moment(NamedTuple):
    """One moment: the end of each replica's log file, and what a consumer has read by then."""

    at: float
    ends: dict[int, int]
    read: int


class _Watch(Poll):
    """Polls the files of a topic: brokers that are asked may not answer."""

    def __init__(self, lab: Workbench, topic: str, reader: Sighting) -> None:
        super().__init__(f"watch of {topic}", every_s=0.05)
        self.polls: list[_Moment] = []
        self.isr: list[tuple[float, int]] = []
        self.marks: dict[str, float] = {}
        self._lab, self._topic, self._reader = lab, topic, reader
        self._ends = _Ends(lab, topic)
        self._began = time.monotonic()

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    def poll(self) -> None:
        self.polls.append(_Moment(self.now, self._ends.read(), len(self._reader.seen)))

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
    lab.check("records that it lacked, at least", at_least(lab.p.rate / 4), behind, timing=True)
    lab.check("records sent and acknowledged all the while", writer.sent, len(writer.acknowledged))
    lab.check("records that the consumer got, each when it was committed", len(writer.acknowledged), len(reader.seen))
    _tell(lab, watch, partition.leader)
    ends = _Ends(lab, topic)
    lab.until(lambda: len(set(ends.read().values())) == 1, 30, "the same end on all replicas")
    lab.check("ends of the three log files afterwards", 1, len(set(ends.read().values())))


def _freeze(lab: Workbench, watch: _Watch, leader: int, follower: int) -> int:
    """The follower was frozen until it had left the ISR, and is back in it; how many records it lacked."""
    watch.until_isr(3, "all replicas in sync")
    lab.wait(1.5)
    with lab.frozen(follower):
        watch.mark("frozen")
        watch.until_isr(2, "the follower's leaving of the ISR")
        watch.mark("left")
        lab.wait(1.5)
        behind = watch.polls[-1].ends[leader] - watch.polls[-1].ends[follower]
    watch.mark("resumed")
    watch.until_isr(3, "the return into the ISR")
    watch.mark("back")
    lab.wait(1.0)
    return behind


def _tell(lab: Workbench, watch: _Watch, leader: int) -> None:
    at = watch.marks
    lab.measure("until the follower had left the ISR", at["left"] - at["frozen"], "s",
                f"the controller has fenced it; {lab.timers(*FAIL_OVER[:2])}")  # fmt: skip
    lab.measure("until it was back in the ISR", at["back"] - at["resumed"], "s", "having copied what it had missed")
    lab.say("""Frozen, but still in the ISR: what is written now is in the leader's log above the high watermark. It
            is not committed, and no consumer gets it until the frozen one has left.""")
    above, seconds = _longest_wait(watch.polls, leader)
    lab.measure("records above the high watermark meanwhile", above, "", "what the producer sends without an answer")
    lab.check("for so long no consumer could read what the leader had", at_least(0.4, "s"), seconds, timing=True)
    lab.figure("lag", "How far each replica's log file reached while one was frozen, and how far a consumer could read",
               _draw, watch)  # fmt: skip


def _longest_wait(polls: list[_Moment], leader: int) -> tuple[int, float]:
    """The longest time in which a consumer got nothing although the leader had more: how much more, and how long."""
    longest = (0, 0.0)
    for _, spell in groupby(polls, key=lambda moment: moment.read):
        waiting = [moment for moment in spell if moment.ends[leader] > moment.read]
        if waiting and waiting[-1].at - waiting[0].at > longest[1]:
            longest = (waiting[-1].ends[leader] - waiting[-1].read, waiting[-1].at - waiting[0].at)
    return longest


def _too_few(lab: Workbench, topic: str) -> None:
    lab.step("One replica is left", "The two followers are killed; min.insync.replicas is 2.")
    place = _whole(lab, topic)
    before = sum(1 for _ in consume(lab.cluster, topic))
    others = [broker for broker in place.replicas if broker != place.leader]
    lab.shows(*(f"headrace kill {broker}" for broker in others))
    for broker in others:
        lab.cluster.kill(broker)
    lab.until(lambda: len(lab.partition(topic).isr) == 1, 30, "the shrinking of the ISR")
    lab.check("replicas in sync", 1, len(lab.partition(topic).isr))
    reasons: list[str] = []
    options = ProduceOptions(
        settings={"message.timeout.ms": int(lab.p.timeout_s * 1000)},
        on_failed=lambda _, record: reasons.append(record.reason),
    )
    limit = f"--set message.timeout.ms={int(lab.p.timeout_s * 1000)}"
    lab.shows(rf"printf 'lost 1\nlost 2\n' | headrace produce {topic} --acks all {limit}")
    refused = produce(lab.cluster, topic, ["lost 1", "lost 2"], options=options)
    lab.table("what the producer reports", ["record", "reason"], enumerate(reasons, 1))
    lab.check("acknowledged with one replica", 0, refused.acknowledged)
    lab.check("refused", 2, refused.failed)
    lab.check("what the broker says", contains("NOT_ENOUGH_REPLICAS"), _broker_says(lab, topic))
    lab.check("what was committed can still be read", before, sum(1 for _ in consume(lab.cluster, topic)))

    lab.step("A second replica comes back")
    lab.shows(f"headrace start {others[0]}")
    lab.cluster.start(others[0])
    lab.until(lambda: len(lab.partition(topic).isr) == 2, 60, "the growing of the ISR")
    lab.shows(f"echo 'welcome back' | headrace produce {topic} --acks all")
    lab.check("acknowledged with two replicas", 1, produce(lab.cluster, topic, ["welcome back"]).acknowledged)
    values = [(record.value or b"").decode() for record in consume(lab.cluster, topic)]
    lab.check("records now", before + 1, len(values))
    lab.check("of those that were refused", 0, sum(value.startswith("lost") for value in values))


def _broker_says(lab: Workbench, topic: str) -> str:
    """The broker's own word for it: a producer that does not retry gets it at once."""
    reports: list[str] = []
    producer = lab.connection.producer({"enable.idempotence": False, "retries": 0, "acks": "all"})
    producer.produce(
        topic, "lost 3", on_delivery=lambda error, _: reports.append(error.name() if error else "acknowledged")
    )
    producer.flush(30)
    return reports[0] if reports else "nothing"


class _Ends:
    """Where the log file of each replica ends. Nobody is asked, and what was read once is not read again."""

    def __init__(self, lab: Workbench, topic: str) -> None:
        self._logs = {broker: log for (broker, _), (log,) in lab.cluster.segments(topic).items()}
        self._ends = dict.fromkeys(self._logs, 0)
        self._positions = dict.fromkeys(self._logs, 0)

    def read(self) -> dict[int, int]:
        """The ends as of now, by broker."""
        for broker, log in self._logs.items():
            for batch in log.batches(self._positions[broker]):
                self._positions[broker] = batch.position + batch.size_bytes
                self._ends[broker] = batch.last_offset + 1
        return dict(self._ends)


def _draw(figure: Figure, watch: _Watch) -> None:
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    times = [moment.at for moment in watch.polls]
    for broker, colour in zip(sorted(watch.polls[0].ends), COLOURS, strict=False):
        above.plot(times, [moment.ends[broker] for moment in watch.polls], label=f"broker {broker}", color=colour)
    above.plot(times, [moment.read for moment in watch.polls], label="read by a consumer", color=GREY, linestyle=":")
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
        Parameter("rate", 500, "records a second while a follower is frozen", fast=200, least=50, most=5000),
        Parameter(
            "lag_s",
            10.0,
            "replica.lag.time.max.ms of the slow follower's cluster, in seconds",
            fast=3.0,
            least=1,
            most=50,
        ),
        Parameter("timeout_s", 4.0, "seconds that the producer tries with one replica", fast=2.0, least=1, most=60),
    ),
)
