"""The Spark driver in the background: one process, one JVM, all pipelines that are wanted.

What is wanted lies in files: `pipelines/NAME/wanted.json` says that a pipeline shall run and against which Kafka. The
driver looks at them again and again, starts what is wanted and does not run, stops what runs and is not wanted, and
ends itself when nothing was wanted for a while. So a command never has to reach the driver, and a driver that was
killed and started again goes on with what is wanted. What has ended or failed is not wanted any more.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import Failed, HeadraceError, NodeFailed, TimedOut
from headrace.home import Home, read_json, write_json
from headrace.pipeline.folder import PipelineFolder
from headrace.runtime import NotYet, Supervised, eventually

if TYPE_CHECKING:
    from headrace.pipeline.run import Run

_LOOK_EVERY_S = 0.3
_IDLE_FOR_S = 120.0
_START_WITHIN_S = 120.0
#: How long a batch at work is waited for.
STOP_WITHIN_S = 300.0


class Driver:
    """The background driver of a home, as commands see it."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.folder = home.root / "driver"
        self.process = Supervised(self.folder)
        self.log = self.folder / "driver.log"

    def start(self, folder: PipelineFolder, wanted: dict[str, Any]) -> None:
        """The pipeline runs in the background, or its error is raised."""
        folder.create()
        asked = time.time()
        write_json(folder.wanted_file, {**wanted, "asked": asked})
        if self.process.find() is None:
            self._spawn(wanted.get("master"))

        def begun() -> bool:
            state = folder.state
            if self.process.find() is None:
                raise NodeFailed("the Spark driver ended while it started", log=self.log, log_lines=_tail(self.log))
            return state.get("at", 0) >= asked and state.get("state") in {"running", "failed", "finished", "waiting"}

        try:
            eventually(begun, _START_WITHIN_S)
        except NotYet:
            raise TimedOut(
                f"pipeline {folder.name} did not start within {_START_WITHIN_S:.0f} s",
                why="the Spark driver is still starting it",
                hint=f"headrace pipeline status {folder.name}, or headrace pipeline logs {folder.name}",
                log=self.log,
            ) from None
        state = folder.state
        if state["state"] == "failed":
            problem, _, why = str(state.get("error")).partition("\n  why: ")
            raise Failed(problem, why=why or None, log=self.log)

    def stop(self, *folders: PipelineFolder, within_s: float = STOP_WITHIN_S) -> list[str]:
        """The pipelines have ended, each after its batch at work; the names of those that ran in the background.

        After `TimedOut` they still end after their batch; another call waits on.
        """
        ours = self._unwanted(folders)
        try:
            # A driver that is dead holds no locks.
            eventually(lambda: not any(folder.is_locked for folder in ours), within_s)
        except NotYet:
            if left := [folder.name for folder in ours if folder.is_locked]:
                raise self._batch_at_work(left, within_s) from None
        return [folder.name for folder in ours]

    def cut_off(self, *folders: PipelineFolder) -> list[str]:
        """The pipelines have ended, in the middle of a batch: their next run repeats it. Their names.

        The driver is killed, because a batch may hang anywhere. Pipelines that share it start again in a new one.
        """
        ours = self._unwanted(folders)
        if any(folder.is_locked for folder in ours):
            self.process.kill()
            others = [read_json(file) or {} for file in wanted_files(self.home)]
            if others:
                self._spawn(others[0].get("master"))
        return [folder.name for folder in ours]

    def end(self) -> None:
        """The driver is gone; pipelines end after their batch and stay wanted."""
        if self.process.signal(signal.SIGTERM) and not self.process.wait_gone(STOP_WITHIN_S):
            self.process.kill()
        self.process.forget()

    def _unwanted(self, folders: Iterable[PipelineFolder]) -> list[PipelineFolder]:
        """Those of the pipelines that run in the background, or shall; none of them is wanted any more."""
        driver = self.process.pid
        ours = [f for f in folders if f.wanted_file.exists() or (driver is not None and f.holder == driver)]
        for folder in ours:
            folder.wanted_file.unlink(missing_ok=True)
        return ours

    def _batch_at_work(self, names: list[str], within_s: float) -> TimedOut:
        one = names[0] if len(names) == 1 else "--all"
        return TimedOut(
            f"{', '.join(names)} did not end within {within_s:g} s",
            why="a pipeline ends after the batch at work, and that takes longer; it will end without another command",
            hint=f"headrace pipeline stop {one} --timeout 1h waits on; headrace pipeline stop {one} --now ends it in "
            "the middle of the batch, which the next run repeats",
            log=self.log,
        )

    def _spawn(self, master: str | None) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        argv = [
            sys.executable,
            "-m",
            "headrace.pipeline.driver",
            str(self.home.root),
            master or "",
            self.process.marker,
        ]
        self.process.spawn(argv, output=self.log, environment=dict(os.environ))


def wanted_files(home: Home) -> list[Path]:
    return sorted((home.root / "pipelines").glob("*/wanted.json"))


def _tail(path: Path) -> tuple[str, ...]:
    try:
        return tuple(path.read_text(encoding="utf-8", errors="replace").splitlines()[-5:])
    except OSError:
        return ()


class _Keeper:
    """The driver from the inside: what is wanted runs, and nothing else."""

    def __init__(self, home: Home, master: str | None) -> None:
        self.home = home
        self.master = master
        self.ended = threading.Event()
        self.runs: dict[str, Run] = {}
        #: When the pipelines that run were asked for.
        self.asked: dict[str, float] = {}

    def keep(self) -> None:
        from headrace.pipeline.pipeline import start_session
        from headrace.pipeline.session import java_death, stop_spark

        spark = start_session(self.home, self.master, folder="driver/spark")
        idle_since = time.monotonic()
        try:
            while not self.ended.wait(_LOOK_EVERY_S):
                wanted, died = self._wanted(), java_death()
                if died is None:
                    self._start(spark, wanted)
                self._stop(wanted)
                if self.runs:
                    idle_since = time.monotonic()
                elif died or time.monotonic() - idle_since > _IDLE_FOR_S:
                    break  # whoever starts a pipeline next starts another driver
        finally:
            for run in self.runs.values():
                run.ask_to_stop()
            for name, run in self.runs.items():
                run.stop()
                _say_end(name, run)
            stop_spark()

    def _wanted(self) -> dict[str, dict[str, Any]]:
        found = {}
        for file in wanted_files(self.home):
            try:
                found[file.parent.name] = read_json(file) or {}
            except HeadraceError:
                continue  # it is being written or removed
        return found

    def _start(self, spark: Any, wanted: dict[str, dict[str, Any]]) -> None:
        from headrace.pipeline.pipeline import Pipeline
        from headrace.pipeline.run import RunOptions
        from headrace.transport.client import Connection

        for name, document in wanted.items():
            if name in self.runs:
                continue
            self.asked[name] = document.get("asked", 0.0)
            try:
                pipeline = Pipeline.from_file(document["file"], name, self.home)
                where = Connection(document["bootstrap"], document.get("properties", {}))
                options = RunOptions(say=partial(_say_of, name))
                self.runs[name] = pipeline.begin(spark, where, document.get("registry"), options)
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
        """What has ended is not wanted any more, unless it was asked for anew meanwhile."""
        file = PipelineFolder(self.home, name).wanted_file
        if (read_json(file) or {}).get("asked") == self.asked.pop(name):
            file.unlink(missing_ok=True)

    def _stop(self, wanted: dict[str, dict[str, Any]]) -> None:
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
    """The process: runs until it is told to end or nothing is wanted."""
    keeper = _Keeper(Home(Path(root)), master or None)
    signal.signal(signal.SIGTERM, lambda *_: keeper.ended.set())
    keeper.keep()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
