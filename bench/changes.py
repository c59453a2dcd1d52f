"""Change data into a table of the latest rows: headrace beside a hand-written `foreachBatch` with MERGE.

    python -m bench.changes [--customers 500000] [--changes 500000] [--batch 100000] [--rounds 3]

Both read the same topic (one broker, replication factor 1): a snapshot of all customers, then changes of random ones,
one in ten late, one in twenty a delete. Each runs in a process of its own, from its start to its end, with batches of
the same size. Every row of both tables is compared with a replay in plain Python. They take turns; ratios are taken
within a round.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.contest import Figure, contest, expect, headrace_command, plain_spark_environment, report
from bench.pipeline import timed
from headrace.cluster import Cluster
from headrace.kafka import Kafka, NewTopic
from headrace.kafka.write.inputs import InputOptions, Shape
from headrace.kafka.write.producer import ProduceOptions, produce
from headrace.tables.table import Query, read_table

_TOPIC = "customers"
_PLAIN = "plain pyspark"
_PIPELINE = """
[pipelines.bench]
from = "customers"
decode = { debezium = "id long, name string, city string, street string, points int" }
max_records_per_batch = <batch>
[pipelines.bench.into]
delta = "customers"
select = { id = "id", name = "name", city = "city", street = "street", points = "points", ts_ms = "ts_ms", lsn = "lsn" }
changes = { key = ["id"], sequence = "ts_ms" }
"""
#: The id to points and time of the latest change; None if it deleted.
Latest = dict[int, tuple[int, int] | None]


@dataclass
class Course:
    """The topic, what the table must hold, and a fresh folder for each run."""

    kafka: Cluster
    folder: Path
    batch: int
    latest: Latest
    runs: int = 0

    def run(self, name: str) -> Figure:
        """The contestant has run, and its table is right to the row."""
        self.runs += 1
        place = self.folder / f"run-{self.runs}"
        if name == _PLAIN:
            command = [sys.executable, "-m", "bench.peers.merge_pyspark", self.kafka.bootstrap, _TOPIC]
            figure = timed([*command, str(place), str(self.batch)], plain_spark_environment(self.folder))
        else:
            declared = _PIPELINE.replace("<batch>", str(self.batch))
            figure = timed(headrace_command(place, declared, "bench", self.kafka.bootstrap, "--once"), {})
        where = "deleted = false" if name == _PLAIN else None
        query = Query(columns=("id", "points", "ts_ms"), where=where)
        rows = [row for batch in read_table(place / "customers").batches(query) for row in batch.to_pylist()]
        found = {row["id"]: (row["points"], row["ts_ms"]) for row in rows}
        expect(len(found) == len(rows), f"{name}: {len(rows) - len(found)} keys have several rows")
        expect(found == {key: row for key, row in self.latest.items() if row}, f"{name}: the rows are not right")
        return figure


def _fill(kafka: Cluster, folder: Path, customers: int, changes: int) -> Latest:
    """The topic holds the events, and what is the latest of each customer."""
    Kafka(kafka).create_topics([NewTopic(_TOPIC, 2, 1, {})])
    draw = random.Random(11)
    made = [_event(number, number, "r", draw) for number in range(customers)]
    changed = [_event(draw.randrange(customers), customers + at, "u", draw) for at in range(changes)]
    for at in range(0, changes - 1000, 10):  # one in ten comes late
        changed.insert(at + draw.randrange(1000), changed.pop(at))
    latest: Latest = {}
    with (folder / "events.lines").open("w") as out:
        for event in (*made, *changed):
            out.write(json.dumps(event) + "\n")
    for event in sorted((*made, *changed), key=lambda event: event["ts_ms"]):
        row = event["after"] or event["before"]
        latest[row["id"]] = (row["points"], event["ts_ms"]) if event["op"] != "d" else None
    lines = ProduceOptions(input=InputOptions(shape=Shape.LINES))
    sent = produce(kafka, _TOPIC, folder / "events.lines", options=lines)
    expect(sent.acknowledged == customers + changes, f"{sent.acknowledged} records were produced: {sent.error}")
    return latest


def _event(number: int, at: int, op: str, draw: random.Random) -> dict[str, Any]:
    row = {
        "id": number, "name": f"customer {number}", "city": draw.choice(("Chicago", "Caguas", "Miami")),
        "street": f"{draw.randrange(9999)} Easy Street", "points": draw.randrange(1000),
    }  # fmt: skip
    deletes = op == "u" and draw.random() < 0.05
    before, after, op = (row, None, "d") if deletes else (None, row, op)
    return {"before": before, "after": after, "source": {"lsn": at * 8}, "op": op, "ts_ms": 1_777_636_800_000 + at}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.changes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--customers", type=int, default=500_000)
    parser.add_argument("--changes", type=int, default=500_000)
    parser.add_argument("--batch", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3, help="one more, the first, warms up")
    options = parser.parse_args(words)
    with (
        tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder,
        Cluster(Path(folder, "home"), brokers=1) as kafka,
    ):
        latest = _fill(kafka, Path(folder), options.customers, options.changes)
        course = Course(kafka, Path(folder), options.batch, latest)
        names = ("headrace", _PLAIN)
        report(contest({name: name for name in names}, course.run, options.rounds), options.customers + options.changes)


if __name__ == "__main__":
    main()
