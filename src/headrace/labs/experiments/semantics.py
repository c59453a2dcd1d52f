"""At most once, at least once, exactly once: counted under a real fault.

A producer numbers its records and writes them without pause, with other settings in each cell of a matrix. In every
cell the same happens to the partition:

    a hiccup     both followers are frozen for a moment: the leader has written, but cannot say so in time
    a death      the followers are frozen for a moment, and then the leader is killed: what it alone has is gone

Afterwards the topic is read from the beginning, and every number is accounted for: acknowledged and not there (lost),
there more than once (doubled), refused.

    acks=0, acks=1            records that were acknowledged are lost: only the leader had them
    acks=all, no retries      at most once: nothing acknowledged is lost, nothing doubled, but some are refused
    acks=all, retries         at least once: nothing is lost, but a record whose answer was late is written twice
    acks=all, idempotent      exactly once: the broker knows producer and sequence number, and drops what it has

min.insync.replicas matters when followers are gone for longer, so that the leader is the only one in sync: with 1 it
still acknowledges, and what it acknowledged alone dies with it (if another replica may become leader at all); with 2 it
refuses to. And idempotence knows nothing of an application that sends a record twice by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace import consume
from headrace.labs.expect import Expectation, at_least
from headrace.labs.figures import BLUE, GREY, ORANGE, RED, Figure
from headrace.labs.lab import Lab, Needs, Parameter
from headrace.labs.workbench import Workbench
from headrace.labs.writer import Account, Writer, account_of

_SOME = at_least(1)
_ANY = Expectation("any number", lambda seen: seen is not None)
_MANY_RETRIES = 1000
# More than is sent in any cell.
_ENOUGH = 1_000_000


@dataclass(frozen=True)
class _Cell:
    """One combination of settings, and what must come of it."""

    promise: str
    acks: str
    retries: int
    idempotent: bool
    lost: object
    doubled: object
    refused: object
    min_isr: int = 2
    alone: bool = False

    @property
    def name(self) -> str:
        words = [f"acks={self.acks}"]
        words.append("idempotent" if self.idempotent else "retries" if self.retries else "no retries")
        return ", ".join(words) + (f", min.isr {self.min_isr}, leader alone" if self.alone else "")

    @property
    def settings(self) -> dict[str, object]:
        return {
            "acks": self.acks,
            "enable.idempotence": self.idempotent,
            "retries": self.retries,
            # The leader gives up waiting for its followers after this long, and says so.
            "request.timeout.ms": 250,
            "retry.backoff.ms": 50,
            # Larger batches: while one is waited for, a broker does not handle the next of the same connection.
            "linger.ms": 50,
        }


_CELLS = (
    _Cell("at most once", "0", 0, False, lost=_SOME, doubled=0, refused=_ANY),
    _Cell("at most once", "1", 0, False, lost=_SOME, doubled=0, refused=_ANY),
    _Cell("at least once, if the leader lives", "1", _MANY_RETRIES, False, lost=_SOME, doubled=_ANY, refused=0),
    _Cell("at most once", "all", 0, False, lost=0, doubled=0, refused=_SOME),
    _Cell("at least once", "all", _MANY_RETRIES, False, lost=0, doubled=_SOME, refused=0),
    _Cell("exactly once", "all", _MANY_RETRIES, True, lost=0, doubled=0, refused=0),
    _Cell("lost with the leader", "all", _MANY_RETRIES, True, lost=_SOME, doubled=0, refused=_ANY,
          min_isr=1, alone=True),
    _Cell("exactly once", "all", _MANY_RETRIES, True, lost=0, doubled=0, refused=0, min_isr=2, alone=True),
)  # fmt: skip


@dataclass(frozen=True)
class _Outcome:
    cell: _Cell
    sent: int
    refused: int
    account: Account


def run(lab: Workbench) -> None:
    voters = {node.node_id for node in lab.cluster.spec.voters}
    # Not the controllers: the faults shall hit the partition, not the cluster's memory of it.
    replicas = [node.node_id for node in lab.cluster.spec.brokers if node.node_id not in voters][:3]
    lab.step(
        f"{len(_CELLS)} cells",
        f"In each: {lab.p.rate} records a second into one partition on brokers {', '.join(map(str, replicas))}.",
    )
    lab.numbers(_ENOUGH)
    outcomes = [_run(lab, at, cell, replicas) for at, cell in enumerate(_CELLS, 1)]
    lab.step("What came of it")
    rows = [
        (o.cell.name, o.cell.promise, o.sent, o.account.acknowledged, o.refused,
         len(o.account.lost), len(o.account.doubled))
        for o in outcomes
    ]  # fmt: skip
    lab.table("the matrix", ["settings", "promise", "sent", "acknowledged", "refused", "lost", "doubled"], rows)
    for outcome in outcomes:
        cell, found = outcome.cell, outcome.account
        # That a fault does harm depends on its timing; that none was done does not.
        lab.check(f"{cell.name}: acknowledged and lost", cell.lost, len(found.lost), timing=cell.lost is _SOME)
        lab.check(f"{cell.name}: doubled", cell.doubled, len(found.doubled), timing=cell.doubled is _SOME)
        lab.check(f"{cell.name}: refused", cell.refused, outcome.refused, timing=True)
        lab.check(
            f"{cell.name}: what became of every record is known", outcome.sent, found.acknowledged + outcome.refused
        )
    lab.figure("matrix", "Lost and doubled records, by settings", _draw, outcomes, height=4.2)
    _own_duplicates(lab)


def _run(lab: Workbench, number: int, cell: _Cell, replicas: list[int]) -> _Outcome:
    configs = {"min.insync.replicas": str(cell.min_isr)}
    if cell.alone:
        configs["unclean.leader.election.enable"] = "true"
    topic = lab.topic(f"semantics-{number}", configs=configs, assignment=[replicas])
    lab.until(lambda: len(lab.partition(topic).isr) == 3, 60, "the replicas' being in sync")
    settings = " ".join(f"--set {name}={value}" for name, value in cell.settings.items() if name != "acks")
    lab.shows(f"headrace produce {topic} numbers.txt --acks {cell.acks} --rate {lab.p.rate} {settings} & writer=$!")
    leader, followers = replicas[0], replicas[1:]
    with Writer(lab.connection, topic, rate=lab.p.rate, settings=cell.settings) as writer:
        lab.until(lambda: len(writer.acknowledged) > lab.p.rate, 30, "the first acknowledgements")
        if cell.alone:
            _leader_alone(lab, topic, leader, followers)
        else:
            _hiccup(lab, followers, lab.p.hiccup_s)
            lab.wait(lab.p.between_s)
            _hiccup(lab, followers, lab.p.alone_s, then_dies=leader)
        lab.until(lambda: lab.partition(topic).leader in followers, 60, "the election of another leader")
        lab.wait(lab.p.between_s)
    # The old leader comes back, and cuts off what only it has.
    lab.shows("kill $writer", f"headrace start {leader}")
    lab.cluster.start(leader)
    lab.until(lambda: len(lab.partition(topic).isr) == 3, 90, "the return of the old leader")
    found = account_of(lab.connection, writer)
    lab.say(f"{cell.name}: {len(found.lost)} lost, {len(found.doubled)} doubled, {len(writer.refused)} refused.")
    if writer.trouble:
        lab.say(
            f"The producer has noticed that the broker no longer has what it had, and stopped: {writer.trouble[:200]}"
        )
    return _Outcome(cell, writer.sent, len(writer.refused), found)


def _hiccup(lab: Workbench, followers: list[int], seconds: float, then_dies: int | None = None) -> None:
    """The followers are frozen for a while; at its end the leader may die."""
    with lab.frozen(*followers):
        lab.shows(f"sleep {seconds:g}")
        lab.wait(seconds)
        if then_dies is not None:
            _kill(lab, then_dies)


def _kill(lab: Workbench, node: int) -> None:
    lab.shows(f"headrace kill {node}")
    lab.cluster.kill(node)


def _leader_alone(lab: Workbench, topic: str, leader: int, followers: list[int]) -> None:
    """The followers are frozen until they are out of sync; the leader goes on for a while and is killed."""
    with lab.frozen(*followers):
        lab.shows(f"headrace topic describe {topic}")
        lab.until(lambda: lab.partition(topic).isr == (leader,), 60, "the leader's being alone in sync")
        lab.wait(lab.p.between_s)
        _kill(lab, leader)


def _own_duplicates(lab: Workbench) -> None:
    count = lab.p.own
    lab.step("The application sends twice", f"An idempotent producer, no fault at all; {count} records are sent twice.")
    topic = lab.topic("semantics-own")
    lab.shows(*[f"seq 0 {count - 1} | headrace produce {topic}"] * 2)
    producer = lab.connection.producer()
    for number in [*range(count), *range(count)]:
        producer.produce(topic, str(number))
    producer.flush(30)
    values = [record.value for record in consume(lab.cluster, topic)]
    lab.check("records in the topic", 2 * count, len(values))
    lab.check("numbers that are there twice", count, sum(values.count(value) == 2 for value in set(values)))
    lab.say("To the broker these are different records: each has a sequence number of its own.")


def _draw(figure: Figure, outcomes: list[_Outcome]) -> None:
    axes = figure.subplots()
    rows = range(len(outcomes))
    series = (
        ("acknowledged and lost", [len(o.account.lost) for o in outcomes], RED),
        ("doubled", [len(o.account.doubled) for o in outcomes], ORANGE),
        ("refused", [o.refused for o in outcomes], GREY),
    )
    for at, (label, values, colour) in enumerate(series):
        bars = axes.barh([row + (at - 1) * 0.26 for row in rows], values, height=0.24, color=colour, label=label)
        axes.bar_label(bars, [f" {value}" if value else "" for value in values], fontsize=7.5)
    axes.set_yticks(list(rows), [f"{o.cell.name}\n{o.cell.promise}" for o in outcomes], fontsize=7.5)
    for tick, outcome in zip(axes.get_yticklabels(), outcomes, strict=True):
        if outcome.cell.promise == "exactly once":
            tick.set_color(BLUE)
    axes.invert_yaxis()
    axes.set_xlabel("records")
    axes.grid(visible=False, axis="y")
    axes.legend()


LAB = Lab(
    "S4",
    ("S4.7",),
    run,
    needs=Needs(brokers=6, racks=("R1", "R2"), faults=True),
    parameters=(
        Parameter("rate", 500, "records a second", fast=300, least=100, most=5000),
        Parameter("hiccup_s", 0.7, "seconds for which the followers are frozen", fast=0.6, least=0.4, most=0.9),
        Parameter("alone_s", 0.35, "seconds in which only the leader writes before it dies", least=0.2, most=0.8),
        Parameter("between_s", 1.5, "seconds of writing between faults", fast=1.0, least=0.5, most=60),
        Parameter("own", 100, "records that the application sends twice", fast=20, most=10_000),
    ),
)
