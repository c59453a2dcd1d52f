"""Transactions: all of it or nothing, decided by a coin.

Four records are sent in a transaction, then nothing happens for two seconds, then a coin decides: commit or abort. The
records are in the topic's log from the first moment on, whatever the coin says. A consumer that reads committed records
only gets those of committed transactions, and not before they are committed; one that reads uncommitted records gets
every single one, at once.

Then the same over two topics, two records in each: both topics get their two, or neither does.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Literal

from headrace import ConsumeOptions, TransactionPlan, TransactionReport, consume, produce_in_transactions
from headrace.labs.background import Sighting
from headrace.labs.expect import at_least, at_most, between
from headrace.labs.figures import BLUE, GREEN, GREY, ORANGE, RED, Figure
from headrace.labs.lab import Lab, Parameter
from headrace.labs.workbench import Workbench

_SIZE = 4
_HALF = 0.5


@dataclass
class _Watched:
    """A run of transactions, and what two consumers saw of it and when."""

    report: TransactionReport
    ended: dict[int, float]
    committed: dict[int, float]
    uncommitted: dict[int, float]
    zero: float

    def numbers(self, *outcomes: str) -> set[int]:
        """The records of the transactions that ended so. A record's number gives its transaction."""
        chosen = [t for t in self.report.transactions if t.outcome in outcomes]
        return {(t.number - 1) * _SIZE + at for t in chosen for at in range(t.records)}


def run(lab: Workbench) -> None:
    lab.step(
        f"{lab.p.transactions} transactions of {_SIZE} records, {lab.p.wait_s:g} s open each",
        "Two consumers read: one committed records only, one everything.",
    )
    topic = lab.topic("ledger", partitions=1)
    sent = lab.p.transactions * _SIZE
    lab.numbers(sent, "numbers.ndjson")
    seed = falls_both_ways(lab.seed, lab.p.transactions)
    lab.shows(f"headrace produce {topic} numbers.ndjson --transaction {_SIZE} --wait {lab.p.wait_s:g}s "
              f"--commit-probability {_HALF} --seed {seed}")  # fmt: skip
    plan = TransactionPlan(size=_SIZE, wait_s=lab.p.wait_s, commit_probability=_HALF, seed=seed)
    watched = _watch(lab, [topic], plan)
    _show(lab, watched)
    committed = watched.numbers("committed")
    lab.check("transactions", lab.p.transactions, len(watched.report.transactions))
    outcomes = [t.outcome for t in watched.report.transactions]
    lab.check("the coin fell both ways", between(1, lab.p.transactions - 1, "committed"), outcomes.count("committed"))
    lab.check("read committed: exactly the committed ones", committed, set(watched.committed))
    lab.check("read uncommitted: every one", set(range(sent)), set(watched.uncommitted))
    _check_times(lab, watched)
    lab.figure("transactions", "Transactions over time, and when the two consumers saw their records",
               _draw, watched)  # fmt: skip

    lab.step("Read again afterwards", "The aborted ones are still in the log, and still invisible.")
    lab.shows(f"headrace consume {topic}", f"headrace consume {topic} --isolation uncommitted")
    lab.check("committed", committed, _read(lab, [topic], "committed"))
    lab.check("uncommitted", set(range(sent)), _read(lab, [topic], "uncommitted"))
    note = "Every record that was sent, of whatever transaction; the markers that end transactions are not counted."
    lab.watch(topic, sent, note=note)
    _two_topics(lab)


def falls_both_ways(seed: int, throws: int) -> int:
    """The first seed from this one on with which so many throws of the coin are not all alike."""
    for each in count(seed):
        coin = random.Random(each)  # noqa: S311 - the same coin that the transactions will throw
        if len({coin.random() < _HALF for _ in range(throws)}) == 2:
            return each
    raise AssertionError


def _two_topics(lab: Workbench) -> None:
    topics = [lab.topic("debits", partitions=1), lab.topic("credits", partitions=1)]
    lab.step("Over two topics, two records in each")
    seed = falls_both_ways(lab.seed + 1, lab.p.transactions)
    lab.shows(f"headrace produce {topics[0]} numbers.ndjson --transaction {_SIZE} --topics {','.join(topics)} "
              f"--per-topic 2 --wait {lab.p.wait_s:g}s --commit-probability {_HALF} --seed {seed}")  # fmt: skip
    plan = TransactionPlan(
        wait_s=lab.p.wait_s, commit_probability=_HALF, seed=seed, topics=topics, per_topic=_SIZE // 2
    )
    watched = _watch(lab, topics, plan)
    _show(lab, watched)
    lab.check(
        "read committed from both topics: exactly the committed ones",
        watched.numbers("committed"),
        set(watched.committed),
    )
    for at, topic in enumerate(topics):
        halves = {n for n in watched.numbers("committed") if n % _SIZE // 2 == at}
        lab.check(f"{topic}: its half of each committed transaction", halves, _read(lab, [topic], "committed"))
    lab.check("read uncommitted: every one", watched.numbers("committed", "aborted"), _read(lab, topics, "uncommitted"))


def _watch(lab: Workbench, topics: Sequence[str], plan: TransactionPlan) -> _Watched:
    ended: dict[int, float] = {}

    def note(number: int) -> None:
        lab.stop_if_asked()
        ended[number] = time.monotonic()

    write = partial(produce_in_transactions, on_result=lambda result: note(result.number))

    records = ({"n": n} for n in range(lab.p.transactions * _SIZE))
    with (
        Sighting(lab.connection, topics) as committed,
        Sighting(lab.connection, topics, isolation="uncommitted") as uncommitted,
    ):
        zero = time.monotonic()
        report = write(lab.cluster, topics[0], records, plan)
        uncommitted.wait_for(lab.p.transactions * _SIZE)
        committed.wait_for(report.records("committed"))
    when = [
        {json.loads(s.record.value or b"")["n"]: s.at for s in sighting.seen} for sighting in (committed, uncommitted)
    ]
    return _Watched(report, ended, when[0], when[1], zero)


def _show(lab: Workbench, watched: _Watched) -> None:
    rows = [(t.number, t.outcome, t.records, t.attempts) for t in watched.report.transactions]
    lab.table("transactions", ["number", "outcome", "records", "attempts"], rows[:12])
    lab.measure("records in committed transactions", watched.report.records("committed"), "")
    lab.measure("records in aborted transactions", watched.report.records("aborted"), "")


def _check_times(lab: Workbench, watched: _Watched) -> None:
    """Committed records appear at the commit, uncommitted ones long before."""
    waited = [
        watched.committed[n] - watched.uncommitted[n] for n in watched.numbers("committed") if n in watched.committed
    ]
    lab.check(
        "a committed record is visible later than an uncommitted one",
        at_least(lab.p.wait_s * 0.9, "s"),
        min(waited),
        timing=True,
    )
    late = [
        watched.committed[(t.number - 1) * _SIZE] - watched.ended[t.number]
        for t in watched.report.transactions
        if t.outcome == "committed"
    ]
    lab.measure("from the end of a commit to seeing its records", sorted(late)[len(late) // 2], "s", "median")
    lab.check("and soon after the commit", at_most(2, "s"), max(late), timing=True)


def _read(lab: Workbench, topics: Sequence[str], isolation: Literal["committed", "uncommitted"]) -> set[int]:
    records = consume(lab.cluster, *topics, options=ConsumeOptions(isolation=isolation))
    return {json.loads(record.value or b"")["n"] for record in records}


def _draw(figure: Figure, watched: _Watched) -> None:
    axes = figure.subplots()
    for each in watched.report.transactions:
        numbers = [(each.number - 1) * _SIZE + at for at in range(each.records)]
        begun = min(watched.uncommitted[n] for n in numbers) - watched.zero
        ended = watched.ended[each.number] - watched.zero
        colour = GREEN if each.outcome == "committed" else RED
        axes.barh(numbers[0] + 1.5, ended - begun, left=begun, height=3.4, color=colour, alpha=0.25)
    for seen, colour, word in (
        (watched.uncommitted, ORANGE, "read uncommitted"),
        (watched.committed, BLUE, "read committed"),
    ):
        axes.scatter([at - watched.zero for at in seen.values()], list(seen), s=12, color=colour, label=word, zorder=3)
    axes.barh(0, 0, color=GREEN, alpha=0.25, label="committed")
    axes.barh(0, 0, color=RED, alpha=0.25, label="aborted")
    axes.set_xlabel("seconds")
    axes.set_ylabel("record")
    axes.legend(loc="upper left")
    axes.grid(color=GREY, alpha=0.2)


LAB = Lab(
    "S2",
    ("S2.I",),
    run,
    parameters=(
        Parameter("transactions", 20, "transactions of each kind", fast=8, least=8, most=1000),
        Parameter("wait_s", 2.0, "seconds that a transaction stays open", fast=0.3, least=0.2, most=60),
    ),
    waits=True,
)
