"""Periodic work: a thread that polls until it is stopped."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self


class Periodic(ABC):
    """Calls `poll` in a thread of its own, from `start` to `stop`, or as long as a `with` block lasts."""

    def __init__(self, name: str) -> None:
        self._awake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def poll(self) -> float:
        """One poll. Returns how many seconds to wait before the next."""

    def start(self) -> None:
        """The thread runs."""
        self._thread.start()

    def stop(self, within_s: float | None = None) -> None:
        """The last poll has ended, or is left alone after that time."""
        self._stopping = True
        self._awake.set()
        if self._thread.is_alive():
            self._thread.join(within_s)

    def poll_now(self) -> None:
        """The next poll begins at once: something has changed."""
        self._awake.set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._stopping:
            self._awake.clear()
            rest_s = self.poll()
            if not self._stopping:  # `poll_now` may have come before `clear`
                self._awake.wait(rest_s)
