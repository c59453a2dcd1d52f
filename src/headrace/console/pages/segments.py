"""The segments of a topic: files, batches, codec and ratio, what a record costs."""

from __future__ import annotations

from headrace.console.desk import Desk
from headrace.console.pieces import empty


def show(desk: Desk, name: str) -> None:
    empty("folder", "Segments", f"{desk.title} {name}")
