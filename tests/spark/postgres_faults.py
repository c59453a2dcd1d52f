"""Tasks of the PostgreSQL sink that die at a chosen point. Sent to Spark's workers by value."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.pipeline.spark.sinks import postgres as postgres_sink

_COPY_TASK = postgres_sink._copy_task


@dataclass(frozen=True)
class Killed:
    """In the place of the function that each task runs: the first task to reach the point dies. A flag says so."""

    point: str
    flag: Path

    def __call__(self, target: Any, chunks: Iterator[Any]) -> Iterator[Any]:
        done = list(_COPY_TASK(target, self._passing(chunks)))
        if done[0].column(1)[0].as_py():
            self._die_at("copied")
        yield from done

    def _passing(self, chunks: Iterator[Any]) -> Iterator[Any]:
        for chunk in chunks:
            yield chunk
            self._die_at("copying")

    def _die_at(self, here: str) -> None:
        if here != self.point:
            return
        try:
            os.close(os.open(self.flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)
