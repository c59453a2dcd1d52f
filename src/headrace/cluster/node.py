"""What every process of a cluster has: a folder, a log, a record, and a way to say why it failed."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from importlib import resources
from pathlib import Path

from headrace.errors import ConfigError, NodeFailed, TimedOut
from headrace.home import Home, write_private
from headrace.runtime import Supervised

_CORE_DUMPED = 0x80
#: Bytes that a dying process needs to log why.
_ROOM_FOR_LAST_WORDS = 100_000


class NodeProcess:
    """One process of the cluster: a broker or a service."""

    def __init__(self, home: Home, name: str) -> None:
        self.home = home
        self.name = name
        self.folder = home.node(name)
        self.log = self.folder / "server.log"
        self.output = self.folder / "output.log"
        self.settings_file = self.folder / "server.properties"
        self.class_list = self.folder / "classes.lst"
        self.process = Supervised(self.folder)

    @property
    def may_be_killed(self) -> bool:
        """True once a stopping process has put everything in order, however long it still lingers."""
        return False

    def has_ended(self) -> None:
        """The process was asked to end and has: its record and whatever ran only for its sake are gone."""
        self.process.forget()

    def write_folder(self) -> None:
        """The folder is there, with the settings of its log and a place for temporary files."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        shutil.rmtree(self.folder / "tmp", ignore_errors=True)
        (self.folder / "tmp").mkdir(mode=0o700)
        text = resources.files("headrace.cluster").joinpath("log4j2.properties").read_text(encoding="utf-8")
        write_private(self.folder / "log4j2.properties", text, durable=False)

    def own_flags(self) -> list[str]:
        """JVM flags that keep what the process writes in its folder: its log, and what it unpacks for itself."""
        return [
            f"-Djava.io.tmpdir={self.folder / 'tmp'}",
            f"-Dlog4j2.configurationFile={(self.folder / 'log4j2.properties').as_uri()}",
            "-Dheadrace.log=server.log",
        ]

    def failure(self, problem: str, hint: str | None = None) -> NodeFailed | ConfigError:
        """The error for this node, with the cause from its log and the log's last lines."""
        lines = self.tail(400)
        kind = ConfigError if any("ConfigException: " in line for line in lines) else NodeFailed
        return kind(
            problem,
            why=cause(lines),
            hint=hint,
            log=self.log if self.log.exists() else self.output,
            log_lines=tuple(line[:200] for line in _without_stack_traces(lines)[-5:]),
        )

    def late(self, within_s: float, awaited: str) -> TimedOut:
        """The error for a node that runs but takes its time."""
        return TimedOut(
            f"{self.name} is not ready after {within_s:g} s; it is still starting",
            why=awaited,
            hint="headrace up continues to wait; a slow machine may need HEADRACE_READY_TIMEOUT_S=300",
            log=self.log if self.log.exists() else self.output,
        )

    def death(self) -> str | None:
        """Why the process is dead, as far as its log and its exit status say; None if it is not dead."""
        record = self.process.record
        if record is None or record.find():
            return None
        if record.ended_by:
            return f"ended by `{record.ended_by}`"
        ending = _ending(self.process.exit_status)
        reason = last_words([*last_lines(self.output, 100), *_since(last_lines(self.log, 400), record.started)])
        if not reason and shutil.disk_usage(self.folder).free < _ROOM_FOR_LAST_WORDS:
            reason = "the disk is full, so its log may lack the reason"
        return "; ".join(part for part in (reason, ending) if part) or "killed: its log reports no shutdown"

    def tail(self, count: int) -> list[str]:
        """The last lines that this node said: to its log, or before it could log."""
        for path in (self.log, self.output):
            lines = last_lines(path, count)
            if lines:
                return lines
        return []


def java_properties(values: Mapping[str, str]) -> str:
    """The text of a Java properties file: Latin-1 with escapes, whatever letters the values have."""

    def escaped(text: str, specials: str) -> str:
        out = []
        for unit in text.encode("utf-16-be").hex(" ", 2).split():
            code = int(unit, 16)
            char = chr(code)
            if char in specials:
                out.append("\\" + char)
            elif 0x20 <= code < 0x7F:
                out.append(char)
            else:
                out.append(f"\\u{code:04x}")
        return "".join(out)

    def value_text(value: str) -> str:
        text = escaped(value, "\\")
        return "\\" + text if text.startswith(" ") else text

    return "".join(f"{escaped(name, ' :=#!')}={value_text(value)}\n" for name, value in values.items())


def last_lines(path: Path, count: int) -> list[str]:
    """The last `count` lines, without reading a large file whole."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            size = file.tell()
            file.seek(max(0, size - 400 * count))
            return file.read().decode("utf-8", errors="replace").splitlines()[-count:]
    except OSError:
        return []


def _without_stack_traces(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if not re.match(r"\s+(at |\.\.\. \d+ more)", line)]


def cause(lines: Sequence[str]) -> str | None:
    """The last exception that was logged, in one line, with the innermost reason if there is one."""
    found: str | None = None
    for line in lines:
        match = re.match(r"(?:Caused by: )?(?:[\w$]+\.)+(\w*(?:Exception|Error)): (.*)", line)
        if match:
            found = f"{match[2]} ({match[1]})"
    return found


def _ending(status: int | None) -> str | None:
    """A wait status in words."""
    if status is None:
        return None
    code = os.waitstatus_to_exitcode(status & ~_CORE_DUMPED)
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"killed by signal {-code} ({signal.Signals(-code).name})"
    return f"killed by signal {-code}"


def _since(lines: Sequence[str], started: float) -> list[str]:
    """The lines from the first one on that a process of that start can have written."""
    for number, line in enumerate(lines):
        found = re.match(r"\[?(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)[,.](\d{3})", line)
        if found and datetime.fromisoformat(f"{found[1]}T{found[2]}.{found[3]}").timestamp() > started - 1:
            return list(lines[number:])
    return []


# What a process says about its own end, and what that is called here; the first that is found counts.
_LAST_WORDS = (
    (r"OutOfMemoryError: (.*)", "out of memory: {}"),
    (r"#\s+(SIG[A-Z]+ \(0x[0-9a-f]+\))", "the Java machine crashed: {}"),
    (r"(No space left on device|Disk quota exceeded)", "the disk is full: {}"),
    (r"(Address already in use.*|.*BindException.*)", "a port is taken: {}"),
    (r"Terminating process due to signal (SIG\w+|\w+)", "terminated by {}, which no headrace command sent"),
    (r"^FATAL (.*)", "{}"),
    (r"(Shutdown broker because .*?)(?: \(\w+\))?$", "{}"),
)


def last_words(lines: Sequence[str]) -> str | None:
    """The reason for an end that a process has written down, in one line."""
    for pattern, words in _LAST_WORDS:
        for line in reversed(lines):
            if found := re.search(pattern, line):
                return words.format(found[1].strip())
    # An exception that was caught is no reason, nor is one before the error that ended the process.
    fatal = [at for at, line in enumerate(lines) if re.search(r"\bFATAL\b|\bERROR .*(Exiting|shutting down)", line)]
    return cause(lines[fatal[-1] :]) if fatal else None
