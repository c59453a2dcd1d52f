"""The one way of looking again and again: a thread that makes its rounds until it is told to stop."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self


class Rounds(ABC):
    """Calls `look` and rests, in a thread of its own, from `start` to `stop`, or as long as a block lasts."""

    def __init__(self, name: str) -> None:
        self._awake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._make_rounds, name=name, daemon=True)

    @abstractmethod
    def look(self) -> float:
        """One round. Returns how many seconds to rest before the next."""

    def start(self) -> None:
        """The rounds begin."""
        self._thread.start()

    def stop(self, within_s: float | None = None) -> None:
        """The last round has ended, or is left to itself after that time."""
        self._stopping = True
        self._awake.set()
        if self._thread.is_alive():
            self._thread.join(within_s)

    def look_now(self) -> None:
        """The rest is over: something has changed."""
        self._awake.set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _make_rounds(self) -> None:
        while not self._stopping:
            self._awake.clear()
            rest_s = self.look()
            if not self._stopping:  # the waking may have fallen before the clearing
                self._awake.wait(rest_s)
