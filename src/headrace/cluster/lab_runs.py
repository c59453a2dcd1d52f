"""What labs run below a home: clusters of their own, and the consumers and producers of their experiments.

A run of labs holds the lock of the folder `labs/` for as long as it lives. So what runs there while the lock is free
was left behind by a run that was killed, except for clusters that were kept on purpose (`lab run --keep`).
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import psutil

from headrace.cluster.cluster import Cluster
from headrace.home import Home
from headrace.runtime import MARKER, end_stray, marked_processes

_CLUSTERS = "cluster-*"
# The file that marks a cluster which shall outlive its run.
_KEPT = "kept"


@dataclass(frozen=True)
class LabRuns:
    """The labs' part of a home, as the other commands see it."""

    home: Home

    @cached_property
    def folder(self) -> Path:
        return self.home.root / "labs"

    @property
    def at_work(self) -> str | None:
        """The run of labs that is going on, in words."""
        return Home(self.folder).holder()

    def processes(self) -> list[tuple[psutil.Process, Path]]:
        """Every process of labs of this home, with its folder."""
        return [(process, folder) for process, folder in marked_processes() if folder.is_relative_to(self.folder)]

    def clusters(self, *, kept: bool) -> list[Path]:
        """The homes of clusters that were kept on purpose, or of all others."""
        return [
            path for path in sorted(self.folder.glob(_CLUSTERS)) if path.is_dir() and (path / _KEPT).exists() == kept
        ]

    def keep(self, cluster: Path) -> None:
        """The cluster whose home this is outlives its run."""
        (cluster / _KEPT).touch(mode=0o600)

    @staticmethod
    def command(folder: Path, *words: object) -> list[str]:
        """`headrace WORDS` as a process of a lab: by its marker it is found if the run is killed."""
        # Python passes over an -X that it does not know.
        return [sys.executable, "-X", f"{MARKER}{folder}", "-m", "headrace", *map(str, words)]

    def describe(self) -> str | None:
        """What runs or lies there, in a line; None if there is nothing."""
        running, left, kept = self.processes(), self.clusters(kept=False), self.clusters(kept=True)
        if not (running or left):
            return None
        what = f"{len(running)} running in {self.folder}"
        if self.at_work:
            return f"{what}: {self.at_work}"
        if kept and not left:
            return f"{what}: kept by lab run --keep"
        return f"{what}: left by a lab run that was killed"

    def remove(self, *, wipe: bool = False) -> int:
        """Nothing of labs runs here and no cluster of theirs is left; how many processes were ended.

        A cluster that was kept stops and keeps its data, unless `wipe`. A run of labs that is going on is left alone.
        """
        if self.at_work:
            return 0
        running = self.processes()
        for folder in self.clusters(kept=True):
            self._take_down(folder, wipe=wipe)
        self.remove_left()
        return len(running)

    def remove_left(self) -> None:
        """What a killed run has left is gone; clusters that were kept go on."""
        kept = self.clusters(kept=True)
        for folder in self.clusters(kept=False):
            self._take_down(folder, wipe=True)
        for process, folder in self.processes():
            if not any(folder.is_relative_to(home) for home in kept):
                end_stray(process, folder)

    def _take_down(self, folder: Path, *, wipe: bool) -> None:
        Cluster(folder).down(wipe=wipe)
        if wipe:
            shutil.rmtree(folder, ignore_errors=True)


def labs_at_work(folder: Path) -> bool:
    """The folder belongs to a run of labs, of any home, that is going on: what runs there will be ended by that run."""
    return any(parent.name == "labs" and Home(parent).holder() for parent in folder.parents)
