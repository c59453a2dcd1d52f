"""The account of a view: how each of its updates was made, in the commits of its own table.

A commit of Delta takes a text. An update writes into it which versions of which tables it was computed from, so rows
and progress are one commit: an update that was cut off never happened, one that was made is never made again.
Reading the account needs no Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from headrace.tables import is_delta, read_table
from headrace.text import plural


@dataclass(frozen=True)
class SourceVersion:
    """The version of a table that an update read; `before`: that of the update before it. `id` is the table's own."""

    id: str
    version: int
    before: int | None = None


@dataclass(frozen=True)
class ViewUpdate:
    """One update of a view. Mode `none`: there was nothing to do, and nothing was written."""

    view: str
    mode: Literal["incremental", "full", "none"]
    #: Of a full update, why it was one; of none, why nothing was done.
    why: str = ""
    sources: Mapping[str, SourceVersion] = field(default_factory=dict)
    #: How many keys were recomputed; None: all.
    keys: int | None = None
    rows_removed: int | None = None
    rows_written: int | None = None
    #: Of the query, so that another one is noticed.
    fingerprint: str = ""
    seconds: float = 0.0
    at_ms: int = 0

    @property
    def note(self) -> str:
        """As the table's commit holds it; its counts of rows are Delta's own."""
        kept = ("view", "mode", "why", "keys", "fingerprint", "seconds")
        sources = {name: asdict(version) for name, version in self.sources.items()}
        return json.dumps({**{name: getattr(self, name) for name in kept}, "sources": sources})

    @classmethod
    def from_note(cls, text: str | None, **more: Any) -> ViewUpdate | None:
        """What a commit says; None if it is not the commit of an update."""
        with suppress(ValueError, TypeError, KeyError):
            held = json.loads(text or "")
            sources = {name: SourceVersion(**version) for name, version in held.pop("sources").items()}
            return cls(**held, sources=sources, **more)
        return None

    def document(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {name: value for name, value in asdict(self).items() if name != "fingerprint"}

    def __str__(self) -> str:
        if self.mode == "none":
            return self.why
        if self.keys is None:
            return f"computed in full ({self.why}): {self.rows_written or 0:,} rows"
        changed = f"{self.rows_removed or 0:,} rows removed, {self.rows_written or 0:,} written"
        return f"{plural(self.keys, 'key')} recomputed: {changed}"


def updates(path: str, limit: int = 1000) -> list[ViewUpdate]:
    """The updates of the view in that folder, the latest first; those that Delta has cleaned out of its log are not."""
    if "://" in path or not is_delta(Path(path)):
        return []
    found = []
    for commit in read_table(path).history(limit):
        update = ViewUpdate.from_note(commit.note, at_ms=commit.at_ms)
        if update is not None:
            removed = commit.rows_removed if update.keys is not None else None  # of all rows, Delta counts none
            found.append(replace(update, rows_written=commit.rows_added or 0, rows_removed=removed))
    return found
