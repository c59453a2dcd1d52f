"""Every exception that headrace raises on purpose.

    HeadraceError                 exit code, HTTP status
    ├── UsageError                2  400   the request is invalid
    │   ├── ConfigError           2  400   headrace.toml, a flag or an environment variable is wrong
    │   ├── AlreadyExists         2  409   what was to be created exists
    │   ├── NotFound              2  404   a topic, a group, a subject … of that name does not exist
    │   └── NotAllowed            2  403   it exists, but must not be changed here
    ├── SetupError                3  409   this machine is not ready: Java, port, disk, jars, permissions
    ├── Unreachable               4  503   no cluster answers at the address
    └── Failed                    1  409   the operation failed
        ├── NodeFailed            1  409   a process of the cluster did not start, or died
        ├── TimedOut              1  409   the operation takes longer than its timeout; it goes on
        ├── Fenced                1  409   another producer has taken over the transactional id
        ├── Incompatible          1  409   a registry refuses a schema: it breaks readers of the subject
        └── CodecError            1  409   a record does not fit its schema, or its bytes are damaged

Each has four parts: the problem, its cause, what to try, and where to look. Exit code and HTTP status follow from the
class: the command line's error boundary (`cli/app.py`) and the console's API (`console/api.py`) never read the words.
"""

from __future__ import annotations

from pathlib import Path


class HeadraceError(Exception):
    """The base class: catch it to catch every error that headrace raises on purpose."""

    exit_code = 1
    http_status = 409

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
    """The request is invalid."""

    exit_code = 2
    http_status = 400


class ConfigError(UsageError):
    """A setting in headrace.toml, a flag or the environment is wrong."""


class NotFound(UsageError):
    """What was named does not exist."""

    http_status = 404


class NotAllowed(UsageError):
    """It exists, but must not be changed here."""

    http_status = 403


class AlreadyExists(UsageError):
    """What was to be created exists."""

    http_status = 409


class SetupError(HeadraceError):
    """This machine is not ready: Java, a port, the disk, the jars, permissions."""

    exit_code = 3


class Unreachable(HeadraceError):
    """No cluster answers at the address."""

    exit_code = 4
    http_status = 503


class Failed(HeadraceError):
    """The operation failed."""


class NodeFailed(Failed):
    """A process of the cluster did not start, or died."""


class TimedOut(Failed):
    """The operation takes longer than its timeout. It goes on: ask again."""


class Fenced(Failed):
    """Another producer with the same transactional id has been opened since, or the transaction lasted too long."""


class Incompatible(Failed):
    """A registry refuses a schema because readers of the subject would break."""


class CodecError(Failed):
    """A record does not fit its schema, or its bytes are damaged."""
