"""Every exception that headrace raises on purpose.

    HeadraceError                 exit code
    ├── UsageError                2    what was asked for cannot be asked for
    │   └── ConfigError           2    headrace.toml, a flag or an environment variable is wrong
    ├── SetupError                3    this machine is not ready: Java, port, disk, jars, permissions
    ├── Unreachable               4    no cluster answers at the address
    └── Failed                    1    it was tried and did not work
        ├── NodeFailed            1    a process of the cluster did not start, or died
        ├── Incompatible          1    a registry refuses a schema: it breaks readers of the subject
        └── CodecError            1    a record does not fit its schema, or its bytes are damaged

Each one says four things: the problem, why it is so, what to try, and where to look.
They are printed in one place, the error boundary of the command line.
"""

from __future__ import annotations

from pathlib import Path


class HeadraceError(Exception):
    """The base of all: catch this one to catch whatever headrace raises on purpose."""

    exit_code = 1

    def __init__(
        self,
        problem: str,
        *,
        why: str | None = None,
        hint: str | None = None,
        log: Path | None = None,
        log_lines: tuple[str, ...] = (),
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.why = why
        self.hint = hint
        self.log = log
        self.log_lines = log_lines

    def __str__(self) -> str:
        parts = [self.problem]
        if self.why:
            parts.append(f"why: {self.why}")
        if self.hint:
            parts.append(f"try: {self.hint}")
        if self.log:
            parts.append(f"log: {self.log}")
        return "\n  ".join(parts)


class UsageError(HeadraceError):
    """What was asked for cannot be asked for."""

    exit_code = 2


class ConfigError(UsageError):
    """A setting in headrace.toml, a flag or the environment is wrong."""


class SetupError(HeadraceError):
    """This machine is not ready: Java, a port, the disk, the jars, permissions."""

    exit_code = 3


class Unreachable(HeadraceError):
    """No cluster answers at the address."""

    exit_code = 4


class Failed(HeadraceError):
    """It was tried, and it did not work."""


class NodeFailed(Failed):
    """A process of the cluster did not start, or died."""


class Incompatible(Failed):
    """A registry refuses a schema because readers of the subject would break."""


class CodecError(Failed):
    """A record does not fit its schema, or its bytes are damaged."""
