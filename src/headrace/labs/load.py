"""`Load`: how much of this machine others use while a lab measures.

Programs of the lab (this process, what it has started, the nodes of its cluster) are not counted: a lab that makes the
machine slow by itself is not excused by that. What a hypervisor takes away counts as others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress

import psutil

# With less idle time than this, programs wait for each other; with less foreign work than this, for their own kind.
_IDLE = 0.4
_OTHERS = 0.25


class Load:
    """The use of the CPUs since it was made."""

    def __init__(self, own: Iterable[int] = ()) -> None:
        self._own = tuple(own)
        self._began = time.monotonic()
        self._busy_s = _busy_s()
        self._own_s = self._of_own()

    def _of_own(self) -> float:
        """CPU seconds of the lab's processes, and of those that they have started and outlived."""
        me = psutil.Process()
        processes = {each.pid: each for each in (me, *me.children(recursive=True))}
        for pid in self._own:
            with suppress(psutil.Error):
                processes.setdefault(pid, psutil.Process(pid))
        total = 0.0
        for process in processes.values():
            with suppress(psutil.Error):
                used = process.cpu_times()
                total += used.user + used.system + used.children_user + used.children_system
        return total

    @property
    def shares(self) -> tuple[float, float]:
        """The share of the machine's CPUs that others used, and the idle share; each from 0 to 1."""
        capacity_s = max(time.monotonic() - self._began, 0.01) * (os.cpu_count() or 1)
        busy_s = _busy_s() - self._busy_s
        others_s = busy_s - (self._of_own() - self._own_s)
        return max(0.0, min(1.0, others_s / capacity_s)), max(0.0, 1 - busy_s / capacity_s)

    @property
    def excuse(self) -> str:
        """Why a measurement of time says nothing here; empty if the machine has been quiet enough."""
        others, idle = self.shares
        if idle >= _IDLE or others < _OTHERS:
            return ""
        return f"this machine is too busy for this measurement: other programs use {others:.0%} of its CPU"


def _busy_s() -> float:
    """CPU seconds that were used on this machine since it was booted."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))
