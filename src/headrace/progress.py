"""How the library tells what it is doing, without printing.

Long work takes a `Progress`; the command line gives one that draws bars, everybody else gets `SILENT`.
"""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """What long work reports to. Both methods return at once and never raise."""

    def say(self, text: str) -> None:
        """A step has begun or a fact is known: one short line."""

    def advance(self, label: str, done: int, total: int) -> None:
        """`done` of `total` bytes of the step `label` are there."""


class _Silent:
    def say(self, text: str) -> None:
        """Nothing is said."""

    def advance(self, label: str, done: int, total: int) -> None:
        """Nothing is drawn."""


SILENT: Progress = _Silent()
