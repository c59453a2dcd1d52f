"""A pipeline whose driver is killed at random moments: every sink must hold each row once.

    python -m bench.kills [--kills 20] [--batch 300] [--seed 1] [--topic-alone]

One pipeline reads a topic into all kinds of sink at once: a Delta table, Parquet files, a topic, an aggregate,
changes by key (the latest rows and every version) and the dead letters; or into a topic alone, with its dead letters
in another, which goes another way. `headrace pipeline run` is started as a user would; some time after it began to
work it gets SIGKILL, is started again, and so on. There is always something left to read when it is killed. At the
end it runs undisturbed, and what lies in the sinks is compared with what was produced, which no kill can have
touched. Ends with 1 if a row is missing, doubled or changed, or if the ledger does not balance.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.contest import expect
from headrace.cluster import Cluster
from headrace.home import Home
from headrace.kafka.read.consumer import consume
from headrace.kafka.write.producer import produce
from headrace.pipeline.pipeline import Pipeline
from headrace.runtime.waiting import eventually
from headrace.tables.table import Query, read_table

_PIPELINE = """
[topics.orders]
partitions = 3

[pipelines.p]
from = "orders"
decode = { json = "id int, shop string, amount int" }
expect = { "is positive" = "amount > 0" }
max_records_per_batch = <batch>
"""
_TOPIC_ALONE = """
dead_letters = "orders.dead"
into = { topic = "copies", key = "shop" }
"""
_EVERY_SINK = """
[[pipelines.p.into]]
delta = "delta"
[[pipelines.p.into]]
parquet = "parquet"
[[pipelines.p.into]]
topic = "copies"
key = "shop"
[[pipelines.p.into]]
delta = "shops"
aggregate = { by = ["shop"], values = { total = "sum(amount)", orders = "count(*)" } }
[[pipelines.p.into]]
delta = "latest"
changes = { key = ["shop", "amount"], sequence = "id", delete_when = "id % 5 = 0" }
[[pipelines.p.into]]
delta = "versions"
changes = { key = ["shop", "amount"], sequence = "id", delete_when = "id % 5 = 0", history = true }
"""
_START_WITHIN_S = 300.0
_AHEAD = 4


class Drill:
    """The pipeline in its folder, what was produced for it, and the kills."""

    def __init__(self, folder: Path, cluster: Cluster, batch: int, seed: int, *, topic_alone: bool) -> None:
        self.folder = folder
        self.cluster = cluster
        self.batch = batch
        self.topic_alone = topic_alone
        #: Batches that are left to read at each kill; those to a topic alone take some hundredths of a second.
        self.ahead = 100 if topic_alone else _AHEAD
        self.chance = random.Random(seed)
        self.orders: list[dict[str, Any]] = []
        #: How long the first batch of a run takes on this machine; the first kill waits for it.
        self.first_batch_s = 0.0
        text = _PIPELINE.replace("<batch>", str(batch)) + (_TOPIC_ALONE if topic_alone else _EVERY_SINK)
        (folder / "headrace.toml").write_text(text, encoding="utf-8")
        self.pipeline = Pipeline.from_file(folder, "p", Home(folder / ".headrace"))

    def produce(self, count: int) -> None:
        """One order in twenty is bad."""
        first = len(self.orders)
        for number in range(first, first + count):
            amount = -1 if self.chance.random() < 0.05 else self.chance.randint(1, 999)
            self.orders.append({"id": number, "shop": self.chance.choice("abcde"), "amount": amount})
        expect(produce(self.cluster, "orders", self.orders[first:], create=True).complete, "not all was acknowledged")

    @property
    def read(self) -> int:
        return sum(line.read for line in self.pipeline.ledger.runs())

    def run(self) -> subprocess.Popen[bytes]:
        words = ["--home", str(self.folder / ".headrace"), "--bootstrap", self.cluster.bootstrap]
        command = [sys.executable, "-m", "headrace", "pipeline", "run", "p", "--once", *words]
        return subprocess.Popen(command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def kill(self) -> float:
        """How long after the run was ready it died."""
        if len(self.orders) - self.read < self.ahead * self.batch:
            self.produce(2 * self.ahead * self.batch)
        process = self.run()
        state = self.pipeline.folder

        def works() -> bool:
            if process.poll() is not None:
                expect(False, f"it ended by itself: {self._said(process)}")
            return state.state.get("pid") == process.pid and state.state.get("state") == "running"

        eventually(works, _START_WITHIN_S)
        began, before = time.monotonic(), self.read
        # The first batch repeats the one that was cut off: most kills hit it at some point, some a later one.
        if self.first_batch_s:
            dies_after_s = self.chance.uniform(0, 1.3 * self.first_batch_s)
            eventually(lambda: time.monotonic() - began > dies_after_s, _START_WITHIN_S)
        else:
            eventually(lambda: self.read > before, _START_WITHIN_S)
            self.first_batch_s = time.monotonic() - began
        process.send_signal(signal.SIGKILL)
        expect(process.wait() == -signal.SIGKILL, "it ended before it was killed")
        return time.monotonic() - began

    def finish(self) -> None:
        """Everything has been read."""
        process = self.run()
        said = self._said(process)
        expect(process.wait() == 0, said)

    def _said(self, process: subprocess.Popen[bytes]) -> str:
        return process.communicate()[1].decode()

    def wrong(self) -> Iterator[str]:
        """What a sink holds that it should not, or lacks."""
        good = [order for order in self.orders if order["amount"] > 0]
        rows = Counter((order["id"], order["shop"], order["amount"]) for order in good)
        dead = Counter(order["id"] for order in self.orders if order["amount"] < 0)
        copies = Counter(_row(json.loads(record.value or b"{}")) for record in consume(self.cluster, "copies"))
        found: dict[str, tuple[Counter[Any], Counter[Any]]] = {
            "topic": (copies, rows),
            "dead letters": (Counter(self._letters()), dead),
        }
        if not self.topic_alone:
            found |= self._tables(good, rows)
        for name, (held, wanted) in found.items():
            if held != wanted:
                yield f"{name}: {(wanted - held).total():,} missing, {(held - wanted).total():,} too many"
        runs = self.pipeline.ledger.runs()
        if not all(line.balanced for line in runs) or self.read != len(self.orders):
            yield f"the ledger has {self.read:,} of {len(self.orders):,} records"

    def _tables(self, good: list[dict[str, Any]], rows: Counter[Any]) -> dict[str, tuple[Counter[Any], Counter[Any]]]:
        shops = Counter(order["shop"] for order in good)
        sums = Counter({shop: sum(o["amount"] for o in good if o["shop"] == shop) for shop in shops})
        return {
            "delta": (Counter(map(_row, self._rows(self.folder / "delta"))), rows),
            "parquet": (Counter(map(_row, self._rows(self.folder / "parquet"))), rows),
            "orders of a shop": (Counter({r["shop"]: r["orders"] for r in self._rows(self.folder / "shops")}), shops),
            "total of a shop": (Counter({r["shop"]: r["total"] for r in self._rows(self.folder / "shops")}), sums),
            **self._changes(good),
        }

    def _changes(self, good: list[dict[str, Any]]) -> dict[str, tuple[Counter[Any], Counter[Any]]]:
        """The latest row, and each version with its span, of orders by shop and amount."""
        ids: dict[tuple[str, int], list[int]] = {}
        for order in good:
            ids.setdefault((order["shop"], order["amount"]), []).append(order["id"])
        latest = Counter((known[-1], *key) for key, known in ids.items() if known[-1] % 5)
        spans = [(key, at, until) for key, known in ids.items() for at, until in pairwise([*known, None])]
        versions = self._rows(self.folder / "versions")
        found = Counter((_row(row), row["valid_from"], row["valid_to"], row["current"]) for row in versions)
        wanted = Counter(((at, *key), at, until, until is None) for key, at, until in spans if at and at % 5)
        return {
            "latest": (Counter(map(_row, self._rows(self.folder / "latest"))), latest),
            "versions": (found, wanted),
        }

    def _letters(self) -> Iterator[int]:
        """The ids of the orders among the dead letters."""
        if self.topic_alone:
            values = (record.value or b"{}" for record in consume(self.cluster, "orders.dead"))
        else:
            values = (row["value"] for row in self._rows(self.pipeline.folder.root / "dead_letters"))
        for value in values:
            yield json.loads(value)["id"]

    def _rows(self, table: Path) -> Iterator[dict[str, Any]]:
        for batch in read_table(table).batches(Query()):
            yield from batch.to_pylist()


def _row(row: dict[str, Any]) -> tuple[int, str, int]:
    return row["id"], row["shop"], row["amount"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--batch", type=int, default=300, help="records in a batch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--topic-alone", action="store_true", help="no sink but a topic")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, Cluster(Path(name) / "kafka", brokers=1) as cluster:
        drill = Drill(Path(name), cluster, given.batch, given.seed, topic_alone=given.topic_alone)
        for number in range(1, given.kills + 1):
            alive_s = drill.kill()
            print(
                f"kill {number}: after {alive_s:.1f} s at work, {drill.read:,} of {len(drill.orders):,} entered",
                flush=True,
            )
        drill.finish()
        wrong = list(drill.wrong())
        print("\n".join(wrong) or f"{len(drill.orders):,} records, every sink has each row once", flush=True)
        expect(not wrong, f"{len(wrong)} sinks are wrong")


if __name__ == "__main__":
    main()
