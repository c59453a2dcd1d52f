"""Everything on disk of one pipeline: `.headrace/pipelines/NAME/`.

checkpoint/         Spark's progress, unless the declaration names another place
ledger.sqlite       what became of every record
declaration.json    what it was last run with
identity.json       the epoch: raised by a rewind, because sinks remember batches by their numbers
lookups/            what the last batch has looked up, keyed, and its version (used.json)
dead_letters/       the table of dead letters, unless the declaration names another place
refresh.json        a full refresh has begun to empty tables and has not moved the checkpoint yet
state.json          what a running query is doing          wanted.json   a background driver shall run it
lock                held by the one run that there may be
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from headrace.errors import SetupError, UsageError
from headrace.home import Home, open_private, read_json, write_json
from headrace.pipeline.declare.declaration import DeadLetters, Declaration
from headrace.runtime import NotYet, eventually

# `is_locked` holds the lock for a moment.
_LOOKED_AT_S = 0.5


class PipelineFolder:
    """Names and the lock; what the files mean is known by the modules that write them."""

    def __init__(self, home: Home, name: str) -> None:
        if not re.fullmatch(r"[\w.-]+", name) or name in {".", ".."}:
            raise UsageError(f"invalid pipeline name: {name!r}", hint="use letters, digits, '_', '-' and '.'")
        self.name = name
        self.root = home.root / "pipelines" / name
        self.declaration_file = self.root / "declaration.json"
        self.identity_file = self.root / "identity.json"
        self.state_file = self.root / "state.json"
        self.wanted_file = self.root / "wanted.json"
        self.refresh_file = self.root / "refresh.json"
        self.lock_file = self.root / "lock"

    def create(self) -> None:
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SetupError(f"{self.root} cannot be created", why=error.strerror or str(error)) from error

    def checkpoint(self, declaration: Declaration) -> str:
        return declaration.resolve(declaration.checkpoint) if declaration.checkpoint else str(self.root / "checkpoint")

    def dead_letters(self, declaration: Declaration) -> DeadLetters:
        """Where they go; a table's path is absolute."""
        named = declaration.dead_letters
        if named is None:
            return DeadLetters("table", str(self.root / "dead_letters"))
        return named if named.kind == "topic" else DeadLetters("table", declaration.resolve(named.target))

    @property
    def epoch(self) -> int:
        return int((read_json(self.identity_file) or {}).get("epoch", 0))

    def raise_epoch(self) -> int:
        """Batch numbers begin to mean something else."""
        epoch = self.epoch + 1
        write_json(self.identity_file, {"epoch": epoch})
        return epoch

    @property
    def state(self) -> dict[str, Any]:
        return read_json(self.state_file) or {}

    @contextmanager
    def lock(self) -> Iterator[None]:
        """This process alone runs or changes the pipeline while the block runs."""
        self.create()
        with open_private(self.lock_file, "a+") as handle:
            try:
                eventually(lambda: _locked(handle), _LOOKED_AT_S, every_s=0.005)
            except NotYet:
                handle.seek(0)
                raise SetupError(
                    f"pipeline {self.name} runs already",
                    why=f"{handle.read().strip() or 'another process'} holds its checkpoint",
                    hint=f"headrace pipeline stop {self.name}, or wait until it has ended",
                ) from None
            handle.truncate(0)
            handle.write(f"pid {os.getpid()}")
            handle.flush()
            try:
                yield
            finally:
                handle.truncate(0)

    @property
    def holder(self) -> int | None:
        """The process that runs or changes the pipeline, if one does."""
        found = re.fullmatch(r"pid (\d+)", self.lock_file.read_text(encoding="utf-8")) if self.is_locked else None
        return int(found[1]) if found else None

    @property
    def is_locked(self) -> bool:
        try:
            with open_private(self.lock_file, "r") as handle:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False


def _locked(handle: IO[str]) -> bool:
    """The lock is ours."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
