"""The folder of a pipeline while others look at it: a look neither fails nor stands in the way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.errors import SetupError
from headrace.home import Home
from headrace.pipeline.folder import PipelineFolder
from headrace.pipeline.ledger import BatchEntry, Ledger, SinkCount


@contextmanager
def looking(look: Callable[[], object]) -> Iterator[list[Exception]]:
    """Somebody looks again and again while the block runs; what went wrong is collected."""
    wrong: list[Exception] = []
    ended = threading.Event()

    def go_on() -> None:
        while not ended.is_set() and not wrong:
            try:
                look()
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=go_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield wrong
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_a_look_does_not_keep_a_run_from_starting(tmp_path: Path) -> None:
    folder = PipelineFolder(Home(tmp_path), "p")
    with looking(lambda: folder.is_locked) as wrong:
        for _ in range(50):
            with folder.lock():
                assert folder.is_locked
    assert not wrong
    with folder.lock(), pytest.raises(SetupError, match="pipeline p runs already"), folder.lock():
        pass


def test_a_ledger_can_be_read_while_it_is_made(tmp_path: Path) -> None:
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        ledger = Ledger(folder)
        with looking(ledger.runs) as wrong:
            ledger.prepare()
            ledger.begin("run", "once", "local")
        assert not wrong


def test_every_run_has_its_own_counts_and_its_own_mistakes(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.runs() == []
    ledger.prepare()
    place = ("t", 0)
    for number, name in enumerate(("good", "short", "greedy", "idle")):
        ledger.begin(name, "once", "local")
        counted = 9 if name == "short" else 10
        entry = BatchEntry(
            number, delivered=10, counts={(*place, "written", ""): counted - 1, (*place, "dead", "r"): 1}
        )
        entry.sinks.append(SinkCount("table", 9, 11 if name == "greedy" else 9))
        if name != "idle":
            ledger.enter(name, entry)
    runs = {line.run: line for line in ledger.runs()}
    assert {name: line.unbalanced for name, line in runs.items()} == {
        "good": (),
        "short": ("batch 1: 10 records were read, 9 have an outcome",),
        "greedy": ("batch 2: table took 11 rows of 9",),
        "idle": (),
    }
    assert [(line.read, line.outcomes["written"], line.outcomes["dead"]) for line in runs.values()] == [
        (10, 9, 1), (10, 8, 1), (10, 9, 1), (0, 0, 0)
    ]  # fmt: skip
    assert ledger.run("short") == runs["short"]
