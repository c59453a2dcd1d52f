"""More consumers read faster, one too many is a spare, and the dead are replaced.

A partition is read by one member of a group. So with four partitions, two members read twice as fast as one and four
read four times as fast, as long as the work on each record is what takes the time (on one machine the work is played by
a pause of a millisecond; without any work the machine's cores are the limit, and that is shown too). A
fifth member gets nothing: it waits. When another member is killed, the group notices after the session timeout, and
the spare takes over. The one that was killed comes back, and is a member of the group again.

Then two partitions and three consumers, of which two are killed: the last one gets everything. Records are written all
the while, and each of them must be read.
"""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from headrace import ConsumeOptions, reading
from headrace.labs.expect import at_least, at_most, between
from headrace.labs.lab import Lab, Parameter
from headrace.labs.ownership import Owners, Ownership, busy, covers, idle
from headrace.labs.processes import end
from headrace.labs.workbench import Workbench
from headrace.labs.writer import Writer


def run(lab: Workbench) -> None:
    _speeds(lab)
    lab.step("Four partitions, five consumers", "Each is a process of its own. Records are written all the while.")
    four = lab.topic("four", partitions=4)
    _drill(lab, four, consumers=5, kills=1)
    lab.step("Two partitions, three consumers, two of them killed")
    two = lab.topic("two", partitions=2)
    _drill(lab, two, consumers=3, kills=2)


def _speeds(lab: Workbench) -> None:
    lab.step("One, two and four consumers", f"Each record takes {lab.p.work_ms:g} ms of work.")
    topic = lab.topic("work", partitions=4)
    lab.produce(topic, pipe=f"seq {lab.p.records}")
    speeds: dict[int, float] = {}
    for count in (1, 2, 4):
        group = lab.group(f"lab-rebalance-{count}")
        lab.shows(f"headrace consume {topic} --group {group} --members {count}")
        speeds[count] = _work(lab, topic, group, count)
    rows = [(n, speed, f"{speed / speeds[1]:.2f}") for n, speed in speeds.items()]
    lab.table("records a second, with work", ["consumers", "records/s", "times one"], rows)
    lab.check("two consumers against one", at_least(1.5, "times as fast"), speeds[2] / speeds[1], timing=True)
    lab.check("four consumers against one", at_least(2.5, "times as fast"), speeds[4] / speeds[1], timing=True)

    lab.step(
        "The same without any work", "Only the reading itself: limited by this machine, not by Kafka's partitions."
    )
    bulk = lab.topic("bulk", partitions=4)
    sent = lab.produce(bulk, pipe=f"seq -f '%0100.0f' {lab.p.bulk_records}")
    plain = {}
    for count in (1, 2, 4):
        group = lab.group(f"lab-rebalance-bulk-{count}")
        run = reading(lab.cluster, [bulk], options=ConsumeOptions(group=group, members=count))
        first = last = 0.0
        read = 0
        for batch in run.batches():
            last = time.monotonic()
            first = first or last
            read += len(batch.messages)
        plain[count] = read / max(last - first, 0.001)
        lab.check(f"{count} without work: records read", sent, read)
    lab.table("records a second, without work", ["consumers", "records/s"], plain.items())


def _work(lab: Workbench, topic: str, group: str, count: int) -> float:
    """Records a second that so many members of a group work off, from the first record to the last."""
    workers = [_Worker(lab, topic, group) for _ in range(count)]
    # All begin together, when the group has settled: a rebalance is not what is measured here.
    lab.until(lambda: sorted(len(w.owned) for w in workers) == [4 // count] * count, 60, "the settling of the group")
    for worker in workers:
        worker.go.set()
    within_s = 60 + 2 * lab.p.records * lab.p.work_ms / 1000
    lab.until(lambda: sum(len(w.times) for w in workers) >= lab.p.records, within_s, "the processing of all records")
    for worker in workers:
        worker.done.set()
        worker.join()
    times = [at for worker in workers for at in worker.times]
    lab.check(f"{count}: records worked off", lab.p.records, len(times), needed=True)
    return len(times) / (max(times) - min(times))


class _Worker(threading.Thread):
    """A member of a group that spends some time on each record."""

    def __init__(self, lab: Workbench, topic: str, group: str) -> None:
        super().__init__(daemon=True)
        self.owned: list[Any] = []
        self.times: list[float] = []
        self.go = threading.Event()
        self.done = threading.Event()
        self._work_s = lab.p.work_ms / 1000
        self._consumer = lab.connection.consumer(
            {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        )
        self._consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked)
        self.start()

    def _assigned(self, _: object, places: list[Any]) -> None:
        self._consumer.assign(places)
        self._consumer.pause(places)
        self.owned = places

    def _revoked(self, *_: object) -> None:
        self.owned = []

    def run(self) -> None:
        while not self.go.is_set():
            self._consumer.poll(0.05)
        self._consumer.resume(self.owned)
        while not self.done.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                time.sleep(self._work_s)  # the work
                self.times.append(time.monotonic())
        self._consumer.close()


def _drill(lab: Workbench, topic: str, *, consumers: int, kills: int) -> None:
    group = lab.group(f"lab-rebalance-{topic}")
    partitions = [p.partition for p in lab.kafka.topic(topic).partitions]
    names = [f"c{number}" for number in range(1, consumers + 1)]
    lab.shows(f"seq 1000000 | headrace produce {topic} --rate {lab.p.rate} & writer=$!",
              *(_shown(lab, topic, group, name) for name in names))  # fmt: skip
    with Writer(lab.connection, topic, rate=lab.p.rate) as writer, Ownership(lab.cluster, group) as watch:
        running = {name: _consumer(lab, topic, group, name) for name in names}
        lab.until(lambda: _settled(watch.now, consumers, partitions), 90, "the settling of the group")
        settled = dict(watch.now)
        lab.table("who owns what", ["consumer", "partitions"], sorted((n, list(p)) for n, p in settled.items()))
        lab.check("consumers that own something", len(partitions), len(busy(settled)))
        lab.check("consumers that are idle", consumers - len(partitions), len(idle(settled)))
        for _ in range(kills):
            lab.wait(lab.p.calm_s)
            killed = _kill_one(lab, watch, running, partitions)
        lab.wait(lab.p.calm_s)
        last = dict(watch.now)
        _comes_back(lab, topic, group, killed, running, watch)
    lab.check("each partition has one owner at the end", True, covers(last, partitions))
    if kills > 1:
        lab.check("the last consumer owns everything", partitions, list(last[next(iter(last))]))
    _ends(lab, topic, group, running, writer)
    lab.figure(f"owners-{topic}", f"Who owned which partition of {topic} over time", watch.draw, height=2.6)


def _settled(owners: Owners, consumers: int, partitions: list[int]) -> bool:
    """True if all have joined, each partition has an owner, and no member has two while others have none."""
    spread = len(busy(owners)) == min(consumers, len(partitions))
    return len(owners) == consumers and spread and covers(owners, partitions)


def _kill_one(
    lab: Workbench, watch: Ownership, running: dict[str, subprocess.Popen[bytes]], partitions: list[int]
) -> str:
    """A member that owns something is dead, and others have its partitions; its name."""
    victim = busy(watch.now)[-1]
    before: Owners = dict(watch.now)
    lab.shows(f"kill -9 ${victim}")
    end(running.pop(victim), signal.SIGKILL)
    watch.mark(f"{victim} killed")
    took = lab.seconds_until(
        lambda: victim not in watch.now and _settled(watch.now, len(running), partitions),
        lab.p.session_s * 3 + 30,
        "the take-over",
    )
    heirs = [name for name, owned in watch.now.items() if set(owned) & set(before[victim])]
    lab.measure(
        f"until the partitions of {victim} had another owner",
        took,
        "s",
        f"now with {', '.join(heirs)}; the consumers' session.timeout.ms={int(lab.p.session_s * 1000)}",
    )
    lab.check(
        "it is noticed after the session timeout",
        between(lab.p.session_s * 0.5, lab.p.session_s * 2 + 6, "s"),
        took,
        timing=True,
    )
    spares = idle(before)
    if spares:
        lab.check("the spare has taken over", True, bool(set(spares) & set(busy(watch.now))))
    lab.check("no other consumer is idle", at_most(max(0, len(spares) - 1)), len(idle(watch.now)))
    return victim


def _comes_back(
    lab: Workbench, topic: str, group: str, name: str, running: dict[str, subprocess.Popen[bytes]], watch: Ownership
) -> None:
    """The consumer that was killed last is started again and is a member like the others."""
    lab.shows(_shown(lab, topic, group, name, into=">>"))
    watch.mark(f"{name} back")
    running[name] = _consumer(lab, topic, group, name, again=True)
    partitions = sorted(p for owned in watch.now.values() for p in owned)
    lab.until(lambda: _settled(watch.now, len(running), partitions), 90, f"the return of {name}")
    back = dict(watch.now)
    lab.check(f"{name} comes back: members of the group", sorted(running), sorted(back))
    lab.check(f"{name} comes back: consumers that own something", min(len(running), len(partitions)), len(busy(back)))


def _ends(lab: Workbench, topic: str, group: str, running: dict[str, subprocess.Popen[bytes]], writer: Writer) -> None:
    """Every record that was written was read, also those that a killed consumer left behind."""
    lab.until(
        lambda: len(_read(lab.files, topic)) >= len(writer.acknowledged), 60, "the reading of all records", every_s=0.5
    )
    lab.shows(f"kill $writer {' '.join(f'${name}' for name in sorted(running))}")
    for child in running.values():
        end(child)
    counts = _read(lab.files, topic)
    lab.check("records written", writer.sent, len(writer.acknowledged))
    lab.check("records that were not read", 0, len(set(map(str, writer.acknowledged)) - set(counts)))
    lab.measure(
        "records read twice", sum(n - 1 for n in counts.values()), "", "read and not yet committed by the killed"
    )
    lab.check("records read", at_least(len(writer.acknowledged)), sum(counts.values()))
    lab.say(f"The group {group} is left with {len(running)} of its consumers, which are stopped now.")


def _consumer(lab: Workbench, topic: str, group: str, name: str, *, again: bool = False) -> subprocess.Popen[bytes]:
    file = f"{topic}-{name}{'-again' if again else ''}.ndjson"
    return lab.process(
        "consume", topic, "--group", group, "--follow", "--json", "--set", f"client.id={name}",
        "--set", f"session.timeout.ms={int(lab.p.session_s * 1000)}", output=lab.files / file,
    )  # fmt: skip


def _shown(lab: Workbench, topic: str, group: str, name: str, into: str = ">") -> str:
    """The same for another terminal, whose shell remembers the process by the consumer's name."""
    session = f"--set session.timeout.ms={int(lab.p.session_s * 1000)}"
    return (f"headrace consume {topic} --group {group} --follow --json --set client.id={name} {session} "
            f"{into} {topic}-{name}.ndjson & {name}=$!")  # fmt: skip


def _read(folder: Path, topic: str) -> Counter[str]:
    """How often each record was printed by the consumers of the topic."""
    counts: Counter[str] = Counter()
    for file in folder.glob(f"{topic}-*.ndjson"):
        for line in file.read_bytes().splitlines():
            try:
                counts[json.loads(line)["value"]] += 1
            except ValueError:  # cut off by the kill
                continue
    return counts


LAB = Lab(
    "S3",
    ("S3.1",),
    run,
    parameters=(
        Parameter("records", 4000, "records that are worked off", fast=1000, least=400, most=100_000),
        Parameter("work_ms", 1.0, "work on each record, in milliseconds", fast=2.0, least=1, most=100),
        Parameter(
            "bulk_records", 400_000, "records that are read without work", fast=50_000, least=1000, most=10_000_000
        ),
        Parameter("rate", 200, "records a second while consumers are killed", fast=100, least=20, most=5000),
        Parameter(
            "calm_s",
            2.0,
            "seconds between two kills, so that the figure shows the group at rest",
            fast=0.5,
            least=0.1,
            most=60,
        ),
        Parameter("session_s", 6.0, "session timeout of the consumers", fast=6.0, least=6, most=60),
    ),
)
