"""Tasks of the Kafka sink that are struck at a chosen point. Sent to Spark's workers by value."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.kafka.write.exactly_once import MarkedWriter
from headrace.pipeline.spark.sinks import kafka as kafka_sink

POINTS = ("opened", "begun", "sent", "flushed", "marked", "committed")
_WRITE_TASK = kafka_sink._write_task
_WRITER = "MarkedWriter"


@dataclass(frozen=True)
class Killed:
    """In the place of the function that each task runs: the first task to reach the point kills the victim.

    Without a victim it is the worker that the task runs in. A flag on disk says that it was done.
    """

    point: str
    batch: int
    flag: Path
    victim: int | None = None

    def __call__(self, target: Any, chunks: Iterator[Any]) -> Iterator[Any]:
        armed = target.batch >= self.batch
        setattr(kafka_sink, _WRITER, _struck(self) if armed else MarkedWriter)
        kafka_sink._writers.clear()
        try:
            yield from _WRITE_TASK(target, chunks)
        finally:
            setattr(kafka_sink, _WRITER, MarkedWriter)
            kafka_sink._writers.clear()

    def reached(self, here: str, writer: MarkedWriter) -> None:
        if here == self.point and self._is_due():
            self.strike(writer)

    def strike(self, writer: MarkedWriter) -> None:  # noqa: ARG002 - other faults strike at it
        os.kill(self.victim or os.getpid(), signal.SIGKILL)

    def _is_due(self) -> bool:
        try:
            os.close(os.open(self.flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


@dataclass(frozen=True)
class Overtaken(Killed):
    """The writer is opened elsewhere, as by a worker that Spark has given up: once, or each time."""

    always: bool = False

    def strike(self, writer: MarkedWriter) -> None:
        MarkedWriter(writer._connection, writer.name)

    def _is_due(self) -> bool:
        return self.always or super()._is_due()


def _struck(fault: Killed) -> type[MarkedWriter]:
    class Struck(MarkedWriter):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            fault.reached("opened", self)

        def begin(self) -> None:
            super().begin()
            fault.reached("begun", self)

        def send(self, records: Any) -> None:
            super().send(records)
            fault.reached("sent", self)

        def flush(self) -> None:
            super().flush()
            fault.reached("flushed", self)

        def _call(self, call: Any, failure: Any = None) -> None:
            deciding = getattr(call, "__name__", "") == "commit_transaction"
            if deciding:
                fault.reached("marked", self)
            super()._call(call, failure)
            if deciding:
                fault.reached("committed", self)

    return Struck
