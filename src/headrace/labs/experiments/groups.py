"""Groups read independently of each other, and share the work within.

Each group reads everything. The members of one group divide the partitions between them: each reads a part, together
they read all, and no record is read by two of them. A group that is new to an old topic reads its backlog first. A
member that is killed in the middle is missed for the session timeout; when it comes back, the group goes on where it
was: what counts is the committed offset, not the process.
"""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

from headrace import ConsumeOptions, HeadraceError, reading
from headrace.labs.expect import between
from headrace.labs.lab import Lab, Parameter
from headrace.labs.processes import end
from headrace.labs.workbench import Workbench
from headrace.labs.writer import Writer

_PARTITIONS = 6


def run(lab: Workbench) -> None:
    count = lab.p.records
    lab.step("An empty topic, and the sample as a file")
    topic = lab.topic("shared", partitions=_PARTITIONS)
    one, two = lab.group("lab-groups-one"), lab.group("lab-groups-two")
    lab.sample("breadcrumbs", count, "bcsample.json")

    lab.step("Two groups with one member each")
    lab.check("records acknowledged", count, lab.produce(topic, "bcsample.json"))
    for group in (one, two):
        lab.check(f"{group}: records read", count, lab.count(topic, group))

    lab.step("A second member in one of them", "The records are sent once more; both groups read on.")
    lab.check("records acknowledged", count, lab.produce(topic, "bcsample.json"))
    lab.check(f"{one}, one member: records read", count, lab.count(topic, one))
    lab.shows(f"headrace consume {topic} --group {two} --members 2")
    run = reading(lab.cluster, [topic], options=ConsumeOptions(group=two, members=2))
    places = Counter((record.partition, record.offset) for batch in run.batches() for record in batch.records())
    members = Counter[int]()
    owned: dict[int, list[int]] = {1: [], 2: []}
    for (member, _, partition), span in sorted(run.report.spans.items()):
        members[member] += span.records
        owned[member].append(partition)
    lab.table(f"{two}", ["member", "partitions", "records"], [(m, owned[m], n) for m, n in sorted(members.items())])
    lab.check(f"{two}, two members: records read together", count, sum(members.values()))
    lab.check("records that both have read", 0, sum(times - 1 for times in places.values()))
    lab.check("records of the smaller part", between(1, count / 2), min(members.values()), timing=True)

    lab.step("A third group, new to an old topic", "It has no offsets yet, so it begins with the backlog.")
    three = lab.group("lab-groups-three")
    lab.check(f"{three}: records of the backlog", 2 * count, lab.count(topic, three))
    lab.watch(topic, 2 * count, {one: 0, two: 0, three: 0})
    _killed(lab, topic)


def _killed(lab: Workbench, topic: str) -> None:
    lab.step(
        "A consumer is killed and comes back", "SIGKILL while records come in; another process of the group goes on."
    )
    group = lab.group("lab-groups-killed")
    first, second = lab.files / "first.ndjson", lab.files / "second.ndjson"
    lab.numbers(100_000)
    words = ("consume", topic, "--group", group, "--set", "session.timeout.ms=6000", "--json")
    lab.shows(
        f"headrace produce {topic} numbers.txt --rate {lab.p.rate} & writer=$!",
        f"headrace consume {topic} --group {group} --set session.timeout.ms=6000 --follow --json > first.ndjson & "
        "first=$!",
        "kill -9 $first",
        f"sleep {lab.p.writing_s:g} && kill $writer &",
        f"headrace consume {topic} --group {group} --set session.timeout.ms=6000 --until idle:8s --json "
        "> second.ndjson",
    )
    with Writer(lab.connection, topic, rate=lab.p.rate):
        child = lab.process(*words, "--follow", output=first)
        lab.until(lambda: _committed(lab, group) > 2 * lab.p.records, 60, "a commit of what comes in")
        end(child, signal.SIGKILL)
        committed = _committed(lab, group)
        begun = _places(first)
        back = lab.process(*words, "--until", "idle:8s", output=second)
        lab.wait(lab.p.writing_s)
    back.wait(120)
    total = lab.describe(topic).offsets or 0
    resumed = _places(second)
    lab.say(f"""When it was killed it had printed {len(begun):,} records, and its group had committed {committed:,}. The
        second process read {len(resumed):,}.""")
    lab.check("records that were never read", 0, total - len(begun | resumed))
    look = f"headrace group describe {group}"
    lab.check("the second begins at the committed offsets", total - committed, len(resumed), look=look)
    twice = len(begun & resumed)
    lab.measure("records read twice", twice, "", "printed by the first, not yet committed when it died")
    lab.check("records read twice: those not yet committed, no others", len(begun) - committed, twice)
    lab.check("the group's committed offsets now", total, _committed(lab, group))


def _committed(lab: Workbench, group: str) -> int:
    try:
        offsets = lab.kafka.groups.describe(group).offsets or ()
    except HeadraceError:
        return 0
    return sum(offset.committed or 0 for offset in offsets)


def _places(file: Path) -> set[tuple[int, int]]:
    """Partition and offset of each whole line; the last one may have been cut by the kill."""
    found = set()
    for line in file.read_bytes().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        found.add((record["partition"], record["offset"]))
    return found


LAB = Lab(
    "S2",
    ("S2.H", "S3.2"),
    run,
    parameters=(
        Parameter("records", 1000, "records that are sent each time", least=100, most=100_000),
        Parameter("rate", 1000, "records a second while a consumer is killed", fast=300, least=50, most=10_000),
        Parameter("writing_s", 8.0, "seconds of writing after it was killed", fast=2.0, least=0.5, most=60),
    ),
    waits=True,
)
