"""The background process of a home: one Spark driver, one JVM, all pipelines that are wanted.

`pipelines/NAME/wanted.json` says that a pipeline shall run and against which Kafka. The process polls these files,
starts what is wanted and does not run, stops what runs and is not wanted, and ends when nothing was wanted for a while.
So a command never has to reach the process, and one that was killed and started again continues with what is wanted.
What has ended or failed is not wanted any more.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import Failed, HeadraceError, NodeFailed, TimedOut
from headrace.home import Home, read_json, write_json
from headrace.pipeline.books.folder import PipelineFolder
from headrace.runtime import NotYet, Supervised, eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.pipeline.spark.run import Run

_POLL_EVERY_S = 0.3
_IDLE_FOR_S = 120.0
_START_TIMEOUT_S = 120.0
# For the current batch.
_STOP_TIMEOUT_S = 300.0


class Background:
    """The background process of a home, as commands see it."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.folder = home.root / "driver"
        self.process = Supervised(self.folder)
        self.log = self.folder / "driver.log"

    @property
    def is_running(self) -> bool:
        return self.process.find() is not None

    def start(self, name: str, wanted: dict[str, Any]) -> None:
        """The pipeline runs in the background, or its error is raised."""
        folder = PipelineFolder(self.home, name)
        folder.create()
        asked = time.time()
        write_json(folder.wanted_file, {**wanted, "asked": asked})
        if not self.is_running:
            self._spawn(wanted.get("master"))

        def begun() -> bool:
            state = folder.state
            if not self.is_running:
                raise NodeFailed("the Spark driver ended while it started", log=self.log, log_lines=_tail(self.log))
            return state.get("at", 0) >= asked and state.get("state") in {"running", "failed", "finished", "waiting"}

        try:
            eventually(begun, _START_TIMEOUT_S)
        except NotYet:
            raise TimedOut(
                f"pipeline {name} did not start within {_START_TIMEOUT_S:.0f} s",
                why="the Spark driver is still starting it",
                hint=f"headrace pipeline status {name}, or headrace pipeline logs {name}",
                log=self.log,
            ) from None
        state = folder.state
        if state["state"] == "failed":
            problem, _, why = str(state.get("error")).partition("\n  why: ")
            raise Failed(problem, why=why or None, log=self.log)

    def stop(self, *names: str, timeout_s: float | None = None, now: bool = False) -> list[str]:
        """The pipelines have ended, each after its current batch; the names of those that ran in the background.

        After `TimedOut` they still end after their batch; another call waits on. With `now` they end in the middle of
        it, and their next run repeats it: the process is killed, because a batch may hang anywhere. Pipelines that
        share it start again in a new one.
        """
        ours = self._unwanted(names)
        if not now:
            self._wait_for_batches(ours, _STOP_TIMEOUT_S if timeout_s is None else timeout_s)
        elif any(folder.is_locked for folder in ours):
            self.process.kill()
            others = [read_json(file) or {} for file in wanted_files(self.home)]
            if others:
                self._spawn(others[0].get("master"))
        return [folder.name for folder in ours]

    def end(self) -> None:
        """The process is gone; pipelines end after their batch and stay wanted."""
        if self.process.signal(signal.SIGTERM) and not self.process.wait_gone(_STOP_TIMEOUT_S):
            self.process.kill()
        self.process.forget()

    def logs(self, name: str | None = None) -> Iterator[tuple[Path, list[str]]]:
        """The logs of this process and of Spark, line by line; with a name, of this process only the pipeline's."""
        folders = (self.folder / "spark", self.home.root / "spark", self.home.node("spark") / "jvm")
        for log in (self.log, *(folder / "spark.log" for folder in folders)):
            if log.is_file():
                lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
                yield log, _lines_of(name, lines) if name and log == self.log else lines

    def _unwanted(self, names: Iterable[str]) -> list[PipelineFolder]:
        """Those of the pipelines that run in the background, or shall; none of them is wanted any more."""
        pid = self.process.pid
        folders = [PipelineFolder(self.home, name) for name in names]
        ours = [f for f in folders if f.wanted_file.exists() or (pid is not None and f.holder == pid)]
        for folder in ours:
            folder.wanted_file.unlink(missing_ok=True)
        return ours

    def _wait_for_batches(self, folders: list[PipelineFolder], timeout_s: float) -> None:
        try:
            # A process that is dead holds no locks.
            eventually(lambda: not any(folder.is_locked for folder in folders), timeout_s)
        except NotYet:
            names = [folder.name for folder in folders if folder.is_locked]
            if not names:
                return
            one = names[0] if len(names) == 1 else "--all"
            raise TimedOut(
                f"{', '.join(names)} did not end within {timeout_s:g} s",
                why="a pipeline ends after the current batch, which takes longer; it will end without another command",
                hint=f"headrace pipeline stop {one} --timeout 1h waits on; headrace pipeline stop {one} --now ends it "
                "in the middle of the batch, which the next run repeats",
                log=self.log,
            ) from None

    def _spawn(self, master: str | None) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        module = "headrace.pipeline.background"
        argv = [sys.executable, "-m", module, str(self.home.root), master or "", self.process.marker]
        self.process.spawn(argv, output=self.log, environment=dict(os.environ))


def wanted_files(home: Home) -> list[Path]:
    return sorted((home.root / "pipelines").glob("*/wanted.json"))


def _tail(path: Path) -> tuple[str, ...]:
    try:
        return tuple(path.read_text(encoding="utf-8", errors="replace").splitlines()[-5:])
    except OSError:
        return ()


def _lines_of(name: str, lines: list[str]) -> list[str]:
    """What the process logged about that pipeline; indented lines belong to the one above them."""
    kept: list[str] = []
    ours = False
    for line in lines:
        ours = line.partition(" ")[2].startswith(f"{name}: ") if not line.startswith(" ") else ours
        kept += [line] if ours else []
    return kept


class _Keeper:
    """The process from the inside: what is wanted runs, and nothing else."""

    def __init__(self, home: Home, master: str | None) -> None:
        self.home = home
        self.master = master
        self.ended = threading.Event()
        self.runs: dict[str, Run] = {}
        #: When the pipelines that run were asked for.
        self.asked: dict[str, float] = {}

    def keep(self) -> None:
        """Return after SIGTERM, or when nothing was wanted for a while."""
        from headrace.pipeline.pipeline import spark_session

        with spark_session(self.home, self.master, folder="driver/spark") as spark:
            try:
                self._poll(spark)
            finally:
                for run in self.runs.values():
                    run.ask_to_stop()
                for name, run in self.runs.items():
                    run.stop()
                    _say_end(name, run)

    def _poll(self, spark: SparkSession) -> None:
        from headrace.pipeline.spark.session import java_death

        idle_since = time.monotonic()
        while not self.ended.wait(_POLL_EVERY_S):
            wanted, died = self._wanted(), java_death()
            if died is None:
                self._start(spark, wanted)
            self._stop(wanted)
            if self.runs:
                idle_since = time.monotonic()
            elif died or time.monotonic() - idle_since > _IDLE_FOR_S:
                return  # the next start of a pipeline starts another process

    def _wanted(self) -> dict[str, dict[str, object]]:
        found = {}
        for file in wanted_files(self.home):
            try:
                found[file.parent.name] = read_json(file) or {}
            except HeadraceError:
                continue  # it is being written or removed
        return found

    def _start(self, spark: SparkSession, wanted: dict[str, dict[str, Any]]) -> None:
        from headrace.kafka import Connection
        from headrace.pipeline.pipeline import Pipeline, RunObserver

        for name, document in wanted.items():
            if name in self.runs:
                continue
            self.asked[name] = document.get("asked", 0.0)
            try:
                pipeline = Pipeline.from_file(document["file"], name, self.home)
                where = Connection(document["bootstrap"], document.get("properties", {}))
                observer = RunObserver(say=partial(_say_of, name))
                self.runs[name] = pipeline.begin(spark, where, document.get("registry"), observer)
                _say_of(name, "is started")
            except HeadraceError as error:
                self._failed(name, error)
            except Exception as error:
                self._failed(
                    name, Failed(f"pipeline {name} could not be started", why=f"{type(error).__name__}: {error}")
                )

    def _failed(self, name: str, error: HeadraceError) -> None:
        _say_of(name, f"failed: {error}")
        state = {"state": "failed", "at": time.time(), "pid": os.getpid(), "error": str(error)}
        write_json(PipelineFolder(self.home, name).state_file, state)
        self._forget(name)

    def _forget(self, name: str) -> None:
        """What has ended is not wanted any more, unless it was started again meanwhile."""
        file = PipelineFolder(self.home, name).wanted_file
        if (read_json(file) or {}).get("asked") == self.asked.pop(name):
            file.unlink(missing_ok=True)

    def _stop(self, wanted: dict[str, dict[str, object]]) -> None:
        for name, run in list(self.runs.items()):
            if run.is_running:
                if name not in wanted and not run.is_stopping:
                    _say_of(name, "is asked to stop")
                    run.ask_to_stop()
                continue
            _say_end(name, run)
            del self.runs[name]
            self._forget(name)


def _say(text: str) -> None:
    sys.stdout.write(time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()) + text + "\n")
    sys.stdout.flush()


def _say_of(name: str, text: str) -> None:
    _say(f"{name}: {text}")


def _say_end(name: str, run: Run) -> None:
    _say_of(name, f"has ended: {run.error}" if run.error else "has ended")


def main(root: str, master: str) -> None:
    """The process: runs until SIGTERM, or until nothing is wanted."""
    keeper = _Keeper(Home(Path(root)), master or None)
    signal.signal(signal.SIGTERM, lambda *_: keeper.ended.set())
    keeper.keep()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
