"""A consumer goes back, skips forward, and finds a point in time.

An offset is a record's number within its partition, given once and never changed. Because Kafka keeps records whether
they were read or not, where a group reads next is a number that can be set: to the beginning, to the end, by so many
records back, or to the first record of a moment in time.

Here the records carry timestamps one second apart, so it can be said beforehand, to the record, what each move must
give.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from headrace import ResetTo, consume
from headrace.labs.lab import Lab, Parameter
from headrace.labs.workbench import Workbench

_PARTITIONS = 3


def run(lab: Workbench) -> None:
    records = lab.p.records // _PARTITIONS * _PARTITIONS
    each = records // _PARTITIONS
    begin_ms = int(time.time() // 60 * 60 - 7200) * 1000
    lab.step("Records one second apart", f"{each} in each of {_PARTITIONS} partitions, the n-th of them n seconds old.")
    topic = lab.topic("timeline", partitions=_PARTITIONS)
    line = r"{\"n\":%d,\"part\":%d,\"at\":%.0f}\n"
    lab.types(f"seq 0 {records - 1} | awk '{{printf \"{line}\", $1, $1 % {_PARTITIONS}, "
              f"{begin_ms} + int($1 / {_PARTITIONS}) * 1000}}' > timeline.ndjson")  # fmt: skip
    route = ",".join(f"{number}={topic}/{number}" for number in range(_PARTITIONS))
    sent = lab.produce(topic, "timeline.ndjson", f"--timestamp-field at --route part:{route}")
    lab.check("records acknowledged", records, sent)

    lab.step(
        "A group reads all of it, and the second time nothing",
        "Its committed offsets are at the end.",
    )
    group = lab.group("lab-offsets")
    lab.check("records read the first time", records, lab.count(topic, group))
    lab.check("records read the second time", 0, lab.count(topic, group))

    middle = begin_ms + each // 2 * 1000
    moment = datetime.fromtimestamp(middle / 1000, UTC).isoformat()
    moves = [
        ("beginning", "rewound to the beginning", records),
        ("shift:-10", "ten records back in each partition", 10 * _PARTITIONS),
        (str(each - 25), f"to offset {each - 25} of each partition", 25 * _PARTITIONS),
        (moment, "to the first record of a moment", (each - each // 2) * _PARTITIONS),
        ("end", "skipped to the end", 0),
    ]
    lab.step("The group is moved", "Each move is planned, shown, committed, and then the group reads on.")
    rows = []
    for to, words, expected in moves:
        lab.shows(f"headrace group reset {group} --to {to} --topic {topic} --yes")
        plan = lab.kafka.groups.plan_reset(group, ResetTo.parse(to), [(topic, None)])
        lab.kafka.groups.reset(group, plan)
        seen = lab.count(topic, group)
        rows.append((words, [p.target for p in plan], seen))
        lab.check(words, expected, seen, look=f"headrace group describe {group}")
    lab.table("where each move led", ["move", "offsets", "records read"], rows)

    lab.step("Without a group", "Such a consumer names the offset where it begins, and changes no group.")
    lab.shows(f"headrace consume {topic} --from {each - 5}", f"headrace consume {topic} --from {moment}")
    from_offset = list(consume(lab.cluster, topic, start=str(each - 5)))
    lab.check("from an offset", 5 * _PARTITIONS, len(from_offset))
    lab.check("the lowest offset then", each - 5, min(record.offset for record in from_offset))
    from_time = list(consume(lab.cluster, topic, start=moment))
    lab.check("from a moment", (each - each // 2) * _PARTITIONS, len(from_time))
    lab.check("the oldest timestamp then", middle, min(record.timestamp_ms for record in from_time))


# More records would reach beyond the hour that Kafka lets a timestamp be ahead.
_MOST = 30_000
LAB = Lab(
    "S1", ("S1.5",), run, parameters=(Parameter("records", 1000, "records in all", fast=300, least=90, most=_MOST),)
)
