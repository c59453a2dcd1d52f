"""Brokers come and go, and the controller that notices dies too.

The controller keeps the list of live brokers and moves leaderships when a broker fails. In the documents ZooKeeper does
this: brokers register under /brokers/ids, and the first to create /controller is the controller. Today's Kafka has no
ZooKeeper. Some of its nodes are controllers and share a log of metadata (KRaft): one of them leads, the others follow,
and when the leader dies the rest elect another, by majority.

    /brokers/ids      headrace status, or the metadata of any broker
    /controller       the leader of the metadata quorum
    controller epoch  the leader's epoch, which grows with every election

A broker is stopped and started again: the list changes. While it is stopped its log directory is deleted, as in the
document; what happens then is tried with all of it and with one partition. Then the active controller is killed: the
time until another one leads is measured, and the longest pause of a producer that writes meanwhile.
"""

from __future__ import annotations

import time
from functools import partial

from headrace import HeadraceError, Kafka, Quorum, consume
from headrace.labs.expect import anything_but, at_least, at_most, contains
from headrace.labs.figures import BLUE, GREY, Figure
from headrace.labs.lab import Lab, Needs, Parameter
from headrace.labs.workbench import Workbench
from headrace.labs.writer import Writer, account_of


def run(lab: Workbench) -> None:
    lab.step("The list of brokers, and who leads the quorum")
    lab.shows("headrace status")
    quorum = _quorum(lab)
    _show(lab, quorum)
    everyone = sorted(node.node_id for node in lab.cluster.spec.brokers)
    lab.check("live brokers", everyone, sorted(lab.kafka.live_brokers()))
    lab.check("voters of the quorum", 3, sum(voter.voter for voter in quorum.voters))

    lab.step("A broker is stopped", "It hands over its leaderships and unregisters, so no timeout has to pass.")
    other = next(node for node in everyone if node != quorum.leader_id)
    lab.shows(f"headrace stop {other}")
    lab.cluster.stop(other)
    gone = lab.seconds_until(lambda: other not in lab.kafka.live_brokers(), 30, "the change of the list")
    lab.check("live brokers without it", [node for node in everyone if node != other], sorted(lab.kafka.live_brokers()))
    lab.measure("until the list had changed", gone, "s", "after the stop was complete")
    lab.shows(f"headrace start {other}")
    lab.cluster.start(other)
    lab.until(lambda: other in lab.kafka.live_brokers(), 60, "the return into the list")
    lab.check("live brokers with it again", everyone, sorted(lab.kafka.live_brokers()))
    _lost_directory(lab, other)
    _kill(lab)


def _lost_directory(lab: Workbench, node: int) -> None:
    lab.step(
        "The log directory of a stopped broker is deleted",
        """In the document: rm -rf /tmp/kafka-logs. What lay there is gone from that broker alone; the other replicas
        have it. A broker without its directory is not started by mistake; one that lacks a partition copies it.""",
    )
    topic = lab.topic("copied", partitions=1)
    lab.numbers(1000)
    lab.check("records acknowledged", 1000, lab.produce(topic, "numbers.txt"))
    name = lab.cluster.name_of(node)
    data = lab.shown_path(lab.cluster.home.node(name) / "data")
    lab.types(f"headrace stop {node}")
    lab.types(f"mv {data} kept-aside")
    output = lab.types(f"headrace start {node}", code=3)
    lab.check(
        "without its directory it is not started, and the reason is said", contains("the folder is gone"), output.err
    )
    lab.check("what it held can be read from the others", 1000, sum(1 for _ in consume(lab.cluster, topic)))
    lab.types(f"mv kept-aside {data}")
    lab.types(f"rm -rf {data}/{topic}-0")
    lab.types(f"headrace start {node}", within_s=300)
    lab.until(lambda: node in lab.kafka.topic(topic).partitions[0].isr, 60, "the return into the ISR")
    segments = lab.cluster.segments(topic)[node, 0]
    lab.until(lambda: any(segment.size_bytes for segment in segments), 30, "the copying of the partition")
    copied = sum(batch.records for segment in segments for batch in segment.batches())
    lab.check("records that it has copied from the leader", 1000, copied)


def _kill(lab: Workbench) -> None:
    lab.step("The active controller is killed", "Again and again, while records are written all the time.")
    topic = lab.topic("steady", partitions=3)
    rows: list[tuple[int, int, int, int, float, float]] = []
    with Writer(lab.connection, topic, rate=lab.p.rate) as writer:
        for number in range(1, lab.p.kills + 1):
            before = _quorum(lab)
            lab.wait(lab.p.before_s)
            killed = time.monotonic()
            lab.shows(f"headrace kill {before.leader_id}")
            lab.cluster.kill(before.leader_id)
            after = lab.until(partial(_another, lab, before), 30, "the election", every_s=0.02)
            took = time.monotonic() - killed
            lab.wait(lab.p.before_s)
            gap = writer.longest_gap_s(since=killed - 0.5)
            rows.append((number, before.leader_id, after.leader_id, after.leader_epoch, took, gap))
            lab.check(f"round {number}: another controller leads", anything_but(before.leader_id), after.leader_id)
            lab.check(f"round {number}: in a later epoch", at_least(before.leader_epoch + 1), after.leader_epoch)
            lab.shows(f"headrace start {before.leader_id}")
            lab.cluster.start(before.leader_id)
            lab.until(partial(_follows, lab, before.leader_id), 60, "the return of the killed one")
    found = account_of(lab.connection, writer)
    lab.check("records sent and acknowledged", writer.sent, found.acknowledged)
    lab.check("acknowledged records that cannot be read", 0, len(found.lost))
    headings = ["round", "killed", "then leads", "epoch", "until it leads, s", "longest pause of the writer, s"]
    lab.table("elections", headings, rows)
    lab.measure(
        "election time",
        sorted(row[4] for row in rows)[len(rows) // 2],
        "s",
        f"median, as a client sees it; {lab.timers()}",
    )
    lab.check("slowest election", at_most(15, "s"), max(row[4] for row in rows), timing=True)
    _show(lab, _quorum(lab))
    lab.figure("elections", "How long the election of another controller took, and how long the writer had to wait",
               _draw, rows, height=2.8)  # fmt: skip


def _quorum(lab: Workbench) -> Quorum:
    found: Quorum = lab.until(lambda: _asked(lab), 30, "an answer about the quorum")
    return found


def _asked(lab: Workbench) -> Quorum | None:
    try:
        with Kafka(lab.cluster, timeout_s=2) as kafka:
            return kafka.quorum()
    except HeadraceError:
        return None


def _another(lab: Workbench, old: Quorum) -> Quorum | None:
    found = _asked(lab)
    return found if found and found.leader_id >= 0 and found.leader_id != old.leader_id else None


def _follows(lab: Workbench, node: int) -> bool:
    found = _asked(lab)
    return bool(found and any(v.node_id == node and v.voter and v.lag < 50 for v in found.voters))


def _show(lab: Workbench, quorum: Quorum) -> None:
    rows = []
    for voter in sorted(quorum.voters, key=lambda each: each.node_id):
        role = "leader" if voter.node_id == quorum.leader_id else "voter" if voter.voter else "observer"
        rows.append((voter.node_id, role, voter.log_end_offset, voter.lag))
    title = f"the quorum: node {quorum.leader_id} leads in epoch {quorum.leader_epoch}"
    lab.table(title, ["node", "role", "records of the metadata log", "behind"], rows)


def _draw(figure: Figure, rows: list[tuple[int, int, int, int, float, float]]) -> None:
    axes = figure.subplots()
    places = [row[0] for row in rows]
    axes.bar([place - 0.2 for place in places], [row[4] for row in rows], width=0.38, color=BLUE, label="election")
    axes.bar(
        [place + 0.2 for place in places], [row[5] for row in rows], width=0.38, color=GREY, label="pause of the writer"
    )
    axes.set_xticks(places, [f"{row[1]} killed,\n{row[2]} leads" for row in rows])
    axes.set_ylabel("seconds")
    figure.legend(ncols=2, loc="outside lower center")


LAB = Lab(
    "S4",
    ("S4.3",),
    run,
    needs=Needs(faults=True),
    parameters=(
        Parameter("kills", 3, "how often the active controller is killed", fast=1, most=20),
        Parameter("rate", 200, "records a second meanwhile", least=20, most=5000),
        Parameter("before_s", 3.0, "seconds of writing before and after each kill", fast=1.0, least=0.5, most=60),
    ),
)
