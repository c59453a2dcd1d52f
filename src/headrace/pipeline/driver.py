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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import Failed, HeadraceError, NodeFailed
from headrace.home import Home, read_json, write_json
from headrace.pipeline.folder import PipelineFolder
from headrace.runtime.process import Supervised
from headrace.runtime.waiting import NotYet, eventually

if TYPE_CHECKING:
    from headrace.pipeline.run import Run

_LOOK_EVERY_S = 0.3
_IDLE_FOR_S = 120.0
_START_WITHIN_S = 120.0
_STOP_WITHIN_S = 300.0


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
            raise Failed(f"pipeline {folder.name} did not start within {_START_WITHIN_S:.0f} s", log=self.log) from None
        state = folder.state
        if state["state"] == "failed":
            problem, _, why = str(state.get("error")).partition("\n  why: ")
            raise Failed(problem, why=why or None, log=self.log)

    def stop(self, *folders: PipelineFolder) -> list[str]:
        """The pipelines have ended, each after its batch at work; the names of those that ran in the background."""
        wanted = [folder for folder in folders if folder.wanted_file.exists()]
        for folder in wanted:
            folder.wanted_file.unlink(missing_ok=True)
        # A driver that is dead holds no locks.
        eventually(lambda: not any(folder.is_locked for folder in wanted), _STOP_WITHIN_S)
        return [folder.name for folder in wanted]

    def end(self) -> None:
        """The driver is gone; pipelines end after their batch and stay wanted."""
        if self.process.signal(signal.SIGTERM) and not self.process.wait_gone(_STOP_WITHIN_S):
            self.process.kill()
        self.process.forget()

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
        from headrace.pipeline.session import stop_spark

        spark = start_session(self.home, self.master, folder="driver/spark")
        idle_since = time.monotonic()
        try:
            while not self.ended.wait(_LOOK_EVERY_S):
                wanted = self._wanted()
                self._start(spark, wanted)
                self._stop(wanted)
                if self.runs:
                    idle_since = time.monotonic()
                elif time.monotonic() - idle_since > _IDLE_FOR_S:
                    break
        finally:
            for run in self.runs.values():
                run.ask_to_stop()
            for name, run in self.runs.items():
                run.stop()
                _say_end(name, run)
            stop_spark()

    def _wanted(self) -> dict[str, dict[str, Any]]:
        found = {}
        for file in sorted((self.home.root / "pipelines").glob("*/wanted.json")):
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
