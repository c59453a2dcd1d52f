"""The folder of a pipeline while others look at it: a look neither fails nor stands in the way."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.errors import SetupError
from headrace.home import Home
from headrace.pipeline.books.folder import PipelineFolder
from headrace.pipeline.books.ledger import BatchEntry, Ledger, SinkCount


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


def test_no_part_of_a_batch_that_does_not_balance_is_called_balanced(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.prepare()
    ledger.begin("run", "once", "local")
    for batch, sent in enumerate((10, 7)):
        spans = {("t", batch): (0, 10, 10), ("t", 2): (10 * batch, 10 * batch + 10, 10)}
        counts = {(*place, "written", ""): 10 for place in spans}
        entry = BatchEntry(batch, delivered=20, spans=spans, counts=counts, rows={("t", 2): 30})
        entry.sinks.append(SinkCount("table", 10, sent, given=20, skipped=10))
        ledger.enter("run", entry)
    assert sorted((line.partition, line.balanced, line.rows) for line in ledger.lines()) == [
        (0, True, 10), (1, False, 10), (2, False, 60)
    ]  # fmt: skip
    (sink,) = ledger.sinks()
    assert (sink.rows, sink.skipped, sink.taken, sink.waiting, sink.balanced) == (40, 20, 17, None, False)


def test_rows_wait_in_open_windows_and_a_rewind_takes_them_back(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.prepare()
    ledger.begin("run", "once", "local")

    def enter(epoch: int, batch: int, watermark: int, windows: dict[int, int]) -> int | None:
        entry = BatchEntry(batch, epoch)
        entry.sinks.append(SinkCount("w", 0, 0, given=9, watermark=watermark, windows=windows))
        ledger.enter("run", entry)
        return ledger.sinks()[-1].waiting

    assert enter(0, 0, 0, {100: 3, 200: 4}) == 7
    assert enter(0, 1, 100, {200: 1, 300: 2}) == 7
    assert enter(0, 2, 200, {300: 5}) == 7
    ledger.begin("again", "once", "local")
    entry = BatchEntry(1, 1)
    entry.sinks.append(SinkCount("w", 0, 0, given=9, watermark=100, windows={400: 1}))
    ledger.enter("again", entry)
    assert ledger.sinks("again")[-1].waiting == 5


def test_a_ledger_of_an_earlier_version_is_read_and_gone_on_with(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.prepare()
    ledger.begin("old", "once", "local")
    ledger.enter("old", BatchEntry(0, delivered=4, counts={("t", 0, "written", ""): 4}, spans={("t", 0): (0, 4, 4)}))
    with sqlite3.connect(ledger.file) as db:
        db.execute("insert into sinks values (0, 0, 'table', 4, 4, 0)")
        for table in ("sink_rows", "rows", "windows"):
            db.execute(f"drop table {table}")
    (line,) = ledger.lines()
    (sink,) = ledger.sinks()
    assert (line.written, line.rows, line.balanced, ledger.run("old").rows) == (4, 4, True, 4)
    assert (sink.rows, sink.skipped, sink.taken, sink.waiting, sink.balanced) == (None, None, 4, None, True)
    ledger.prepare()
    ledger.begin("new", "once", "local")
    entry = BatchEntry(1, delivered=1, counts={("t", 0, "written", ""): 1}, rows={("t", 0): 3})
    entry.sinks.append(SinkCount("table", 3, 3, given=3))
    ledger.enter("new", entry)
    assert ledger.run("new").rows == ledger.sinks("new")[0].rows == 3
