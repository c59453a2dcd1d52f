"""`SharedSession`: the one Spark session of a run of labs, started by the first lab that asks for it.

A process has one session at most, and labs run side by side; so they share it, and only the run stops it. One that the
caller has brought along is used and left as it is.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from typing import Any

from headrace import Home, spark_session
from headrace.progress import SILENT, Progress


def _not_of_py4j(record: logging.LogRecord) -> bool:
    # It logs a traceback of the call that Ctrl-C interrupts, and to the root logger.
    return record.module != "java_gateway"


class SharedSession:
    """Safe to be asked by several labs at once."""

    def __init__(self, home: Home, given: object = None, progress: Progress = SILENT) -> None:
        self._home = home
        self._given = given
        self._progress = progress
        self._started: object = None
        self._held = ExitStack()
        self._lock = threading.Lock()

    def get(self) -> Any:
        """The session; the first call takes some seconds."""
        if self._given is not None:
            return self._given
        with self._lock:
            if self._started is None:
                logging.getLogger().addFilter(_not_of_py4j)
                session = spark_session(self._home, progress=self._progress, folder="labs/spark")
                self._started = self._held.enter_context(session)
            return self._started

    def stop(self) -> None:
        """No JVM that was started here is left."""
        with self._lock:
            self._started = None
            self._held.close()
