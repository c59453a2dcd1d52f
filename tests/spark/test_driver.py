"""The Spark driver in the background: pipelines share it, it may be killed, and what was wanted goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.home import Home
from headrace.kafka.read.consumer import consume
from headrace.pipeline.background import Background
from headrace.pipeline.pipeline import Pipeline
from headrace.runtime.waiting import eventually
from headrace.tables.table import read_table
from tests.conftest import Headrace
from tests.spark.pipelines import send

DECLARED = """
[pipelines.one]
from = "<topic>"
trigger = "1 second"
into = { delta = "tables/one" }
[pipelines.two]
from = "<topic>"
trigger = "1 second"
into = { topic = "<topic>-two" }
"""


@pytest.mark.timeout(600)  # two Spark drivers start, and nobody else's work makes way for them
def test_pipelines_share_a_driver_that_may_be_killed(
    run: Headrace, tmp_path: Path, headrace_cluster: Any, headrace_topic: Callable[..., str]
) -> None:
    topic = headrace_topic(partitions=2)
    file, home = tmp_path / "headrace.toml", Home(tmp_path / ".headrace")
    file.write_text(DECLARED.replace("<topic>", topic), encoding="utf-8")
    background = Background(home)

    def ask(*words: str) -> str:
        done = run("pipeline", *words, "--bootstrap", headrace_cluster.bootstrap)
        assert done.code == 0, done.err
        return done.out + done.err

    def have_read(count: int) -> bool:
        ledgers = [Pipeline.from_file(file, name, home).ledger for name in ("one", "two")]
        return all(sum(line.read for line in ledger.runs()) == count for ledger in ledgers)

    try:
        send(headrace_cluster, topic, [f"{n}".encode() for n in range(10)])
        assert "one runs in the background" in ask("start", "one")
        first = background.process.find()
        assert first is not None
        assert "two runs in the background" in ask("start", "two")
        assert background.process.find() == first
        eventually(lambda: have_read(10), 200)
        assert "one was stopped in the middle" in ask("stop", "one", "--now")
        assert background.process.find() != first
        assert "cut off" in ask("list")
        send(headrace_cluster, topic, [f"{n}".encode() for n in range(10, 20)])
        ask("start", "one")  # the other one goes on by itself, because it was never asked to stop
        eventually(lambda: have_read(20), 200)
        said = ask("stop", "--all")
        assert "one has stopped" in said
        assert "two has stopped" in said
        assert background.process.find() is None
        assert ask("list").count("stopped") == 2
    finally:
        background.end()
    expected = Counter(range(20))
    rows = [row for batch in read_table(tmp_path / "tables/one").batches() for row in batch.to_pylist()]
    assert Counter(int(row["value"]) for row in rows) == expected
    copies = consume(headrace_cluster, f"{topic}-two")
    assert sum(1 for _ in copies) == 20
    assert "one: has ended" in ask("logs", "one")
