"""The process behind `headrace up --with spark`: it keeps a JVM ready, and computes nothing itself.

The JVM is warmed up once by a Python process that uses it as any other does. If the JVM dies, or has to be ended
because a process that used it was killed, another one is started. It ends with this process, whose pipe it reads.

    python -m headrace.pipeline.spark.keep_warm HOME MARKER
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from headrace.errors import HeadraceError, NodeFailed
from headrace.home import Home
from headrace.pipeline.spark.session import Jvm, SessionSpec
from headrace.pipeline.spark.warm import WarmFolder, fitting
from headrace.runtime import ended_like_ctrl_c

_LOOK_EVERY_S = 0.2
_WARM_UP_WITHIN_S = 300.0


class _KeptJvm(Jvm):
    """A JVM for many Python processes, one after the other."""

    _has_worked = True

    def _heap_flags(self, heap: str) -> list[str]:  # noqa: ARG002 - small until somebody needs more, and again afterwards
        return ["-Xms128m", "-XX:MinHeapFreeRatio=20", "-XX:MaxHeapFreeRatio=40"]

    def _environment(self, address: Path) -> dict[str, str]:
        # Where modules are is said by each process that uses it.
        return {name: value for name, value in super()._environment(address).items() if name != "PYTHONPATH"}


class Keeper:
    """Keeps the JVM of a home ready until it is asked to end."""

    def __init__(self, home: Home) -> None:
        self.folder = WarmFolder(home.node("spark"))
        self.spec = SessionSpec.in_home(home, str(self.folder.jvm.folder.relative_to(home.root)))
        self.home = home

    def keep(self) -> None:
        """Returns never."""
        self.folder.retract()
        self.folder.end_abandoned()
        while True:
            jvm = _KeptJvm(self.spec)
            try:
                jvm.launch()
                address = (*jvm.read_address(), fitting(self.spec))
                self.folder.publish(*address, warm=False)
                self._warm_up()
                self.folder.publish(*address, warm=True)
                _say(f"ready: pid {jvm.process.pid}")
                self._watch(jvm)
            finally:
                self.folder.retract()
                jvm.stop()

    def _watch(self, jvm: Jvm) -> None:
        """Returns when the JVM is gone."""
        while jvm.process.find():
            time.sleep(_LOOK_EVERY_S)
            if self.folder.end_abandoned():
                _say("a process that used the JVM was killed: the JVM was ended")
        _say("starting another JVM")

    def _warm_up(self) -> None:
        command = [sys.executable, "-m", "headrace.pipeline.spark.warm_up", str(self.home.root)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, check=False, timeout=_WARM_UP_WITHIN_S)
        if done.returncode:
            raise NodeFailed("the JVM could not be warmed up", log=self.folder.jvm.folder / "spark.log")


def _say(text: str) -> None:
    print(time.strftime("%Y-%m-%dT%H:%M:%SZ ", time.gmtime()) + text, flush=True)


if __name__ == "__main__":
    try:
        with suppress(KeyboardInterrupt), ended_like_ctrl_c(signal.SIGTERM):
            Keeper(Home(Path(sys.argv[1]))).keep()
    except HeadraceError as error:
        sys.exit(f"FATAL {error}")
