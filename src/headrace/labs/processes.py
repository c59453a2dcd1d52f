"""Processes of a lab: `headrace …` in a process of its own, which is found and ended if the run is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from headrace.cluster import LabRuns

__all__ = ["LabRuns", "end", "start"]


def start(folder: Path, *words: object, **options: Any) -> subprocess.Popen[Any]:
    """`headrace WORDS` runs as a process of the lab that has this folder; `options` are those of `Popen`."""
    return subprocess.Popen(LabRuns.command(folder, *words), start_new_session=True, **options)


def end(child: subprocess.Popen[bytes] | subprocess.Popen[str], how: signal.Signals = signal.SIGTERM) -> None:
    """The process has ended."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, how)
    child.wait(30)
