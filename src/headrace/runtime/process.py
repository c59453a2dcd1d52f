"""Processes that outlive the command which started them.

A process is known by its pid, its start time and a marker on its command line: a pid alone is handed out again
by the system, and nothing that headrace did not start may ever be signalled. The record lies in `process.json`
beside the process's log; it is written right after the start and removed after a clean stop, so a record whose
process is gone means that the process died.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Literal

import psutil

from headrace.errors import NodeFailed, SetupError
from headrace.home import open_private, read_json, write_json
from headrace.runtime.waiting import NotYet, eventually

ProcessState = Literal["running", "paused", "stopped", "dead"]

#: The JVM system property (or plain argument) that names the owner on the command line.
MARKER = "-Dheadrace.process="

# The kernel's start time is exact, but it is relative to a boot time that a clock correction may move.
_CLOCK_SLACK_S = 2.0

# Linux's question for what it knows of a process that somebody else has waited for, and the part of it that we want.
_PIDFD_GET_INFO, _INFO_EXIT = 0xC040FF0B, 8

# Children of this very interpreter (library use, tests) must be reaped, else a dead one lingers as a zombie.
_children: set[int] = set()


@dataclass(frozen=True)
class ProcessRecord:
    """What is remembered of a started process."""

    pid: int
    started: float
    marker: str
    #: The command that has ended it on purpose, if one has.
    ended_by: str | None = None

    def find(self) -> psutil.Process | None:
        """The live process, or None if it is gone (or if its pid belongs to somebody else by now)."""
        _reap(self.pid)
        try:
            process = psutil.Process(self.pid)
            same = self.marker.startswith(MARKER) and abs(process.create_time() - self.started) < _CLOCK_SLACK_S
            words = _command_line(process)
            return process if same and (self.marker in words or (not words and _is_dying(process))) else None
        except psutil.Error:
            return None


def _reap(pid: int) -> None:
    if pid not in _children:
        return
    try:
        ended, _ = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        ended = pid
    if ended:
        _children.discard(pid)


def _command_line(process: psutil.Process) -> list[str]:
    """Empty as soon as the process begins to end."""
    try:
        return process.cmdline()
    except psutil.ZombieProcess:
        return []


def _is_dying(process: psutil.Process) -> bool:
    """True while threads of a killed process hold its files and ports: the first thread ends before the others."""
    return process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1


class Supervised:
    """One long-lived process with a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record_file = folder / "process.json"
        self._exit_file = folder / "exit.json"
        self.marker = f"{MARKER}{folder}"

    @property
    def record(self) -> ProcessRecord | None:
        """What was written at the start. A damaged record is none: the process is then a stray like any other."""
        try:
            document = read_json(self.record_file)
            if document is None:
                return None
            ended_by = document.get("ended_by")
            return ProcessRecord(int(document["pid"]), float(document["started"]), str(document["marker"]), ended_by)
        except (SetupError, KeyError, TypeError, ValueError):
            return None

    def find(self) -> psutil.Process | None:
        record = self.record
        return record.find() if record else None

    @property
    def state(self) -> ProcessState:
        record = self.record
        if record is None:
            return "stopped"
        process = record.find()
        if process is None:
            return "dead"
        try:
            return "paused" if process.status() == psutil.STATUS_STOPPED else "running"
        except psutil.Error:
            return "dead"

    def spawn(
        self,
        argv: Sequence[str],
        *,
        output: Path,
        environment: Mapping[str, str],
        nice: int = 0,
        stdin: int = subprocess.DEVNULL,
    ) -> psutil.Process:
        """The process runs in a session of its own and its record is written. `argv` must carry the marker."""
        if self.marker not in argv:
            raise ValueError(f"the command line of {self.folder.name} lacks its marker")
        with open_private(output, "ab") as out:
            child = subprocess.Popen(
                argv,
                cwd=self.folder,
                env=dict(environment),
                stdin=stdin,
                stdout=out,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the terminal must reach the command, not the brokers behind it.
                start_new_session=True,
                umask=0o077,
            )
        _children.add(child.pid)
        child.returncode = 0  # not true, but else Popen warns that it still runs when nobody refers to it any more
        try:
            process = psutil.Process(child.pid)
            # Not durable: no process outlives the machine's fall.
            write_json(
                self.record_file,
                {"pid": child.pid, "started": process.create_time(), "marker": self.marker},
                durable=False,
            )
            if nice:
                process.nice(nice)
        except psutil.NoSuchProcess:
            raise NodeFailed(f"{self.folder.name} ended at once", log=output) from None
        return process

    def note_end(self, by: str) -> None:
        """The record says that the command `by` is about to end the process: its end is then no failure."""
        record = self.record
        if record:
            with suppress(OSError):  # a full disk must not keep anything from being stopped
                write_json(self.record_file, asdict(record) | {"ended_by": by}, durable=False)

    def note_exit(self, status: int) -> None:
        """How the process has ended is kept: the wait status, as the system gives it."""
        record = self.record
        if record:
            with suppress(OSError):
                write_json(self._exit_file, {"pid": record.pid, "status": status}, durable=False)

    @property
    def exit_status(self) -> int | None:
        """The wait status of the process of the record, if it has ended and a watcher has seen how."""
        record = self.record
        with suppress(SetupError, KeyError, TypeError, ValueError):
            document = read_json(self._exit_file) or {}
            if record and int(document["pid"]) == record.pid:
                return int(document["status"])
        return None

    def signal(self, number: signal.Signals) -> bool:
        """The signal was sent, to the children of the process too; False if the process is gone."""
        process = self.find()
        if process is None:
            return False
        try:
            os.killpg(process.pid, number)  # it leads a session of its own, see `spawn`
        except ProcessLookupError:
            return False
        return True

    def wait_gone(self, within_s: float) -> bool:
        """True as soon as the process is gone, False if it is still there after `within_s`."""
        try:
            return eventually(lambda: self.find() is None, within_s)
        except NotYet:
            return False

    def kill(self) -> bool:
        """SIGKILL, and the process is gone. The record stays: the process did not end by itself."""
        killed = self.signal(signal.SIGKILL)
        if killed and not self.wait_gone(10):
            raise NodeFailed(f"{self.folder.name} (pid {self.pid}) did not die within 10 s of SIGKILL")
        return killed

    @property
    def pid(self) -> int | None:
        process = self.find()
        return process.pid if process else None

    def forget(self) -> None:
        """The record is removed: the process has ended as it was asked to."""
        self.record_file.unlink(missing_ok=True)

    @property
    def uptime_s(self) -> float | None:
        record = self.record
        return max(0.0, time.time() - record.started) if record and record.find() else None


class ProcessHandle:
    """A process that can be waited for by whoever is not its parent, on Linux by a descriptor of it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        #: Readable once the process has ended; None where the system gives no such descriptors.
        self.descriptor = self._open(pid)

    @staticmethod
    def _open(pid: int) -> int | None:
        try:
            return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
        except ProcessLookupError:
            raise
        except OSError:  # an old kernel, or a container that forbids it
            return None

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)

    def exit_status(self) -> int | None:
        """The wait status of the process, which has ended; None where the system does not tell it to strangers."""
        with suppress(OSError, IndexError, ValueError):
            # Nobody has waited for it yet. The name, in brackets, may hold blanks.
            words = Path(f"/proc/{self.pid}/stat").read_text(encoding="latin-1").rpartition(")")[2].split()
            return int(words[49]) if words[0] == "Z" else None
        if self.descriptor is None:
            return None
        info = bytearray(struct.pack("=QQ", _INFO_EXIT, 0) + bytes(48))
        with suppress(OSError):  # before Linux 6.15
            fcntl.ioctl(self.descriptor, _PIDFD_GET_INFO, info)
            if struct.unpack_from("=Q", info)[0] & _INFO_EXIT:
                return int(struct.unpack_from("=i", info, 60)[0])
        return None


def memory_bytes(process: psutil.Process) -> int | None:
    """Proportional memory (shared pages split among their users), or resident where that is unknown.

    Counted with what the process has started.
    """
    try:
        own, started = _memory_of(process), process.children(recursive=True)
    except (psutil.Error, OSError):
        return None
    for child in started:
        with suppress(psutil.Error, OSError):  # it has ended meanwhile
            own += _memory_of(child)
    return own


def _memory_of(process: psutil.Process) -> int:
    return int(process.memory_full_info().pss if psutil.LINUX else process.memory_info().rss)


def marked_processes() -> Iterator[tuple[psutil.Process, Path]]:
    """Every process that headrace started, with the folder that its command line names."""
    for process in psutil.process_iter():
        try:
            named = [word for word in process.cmdline() if word.startswith(MARKER)]
        except psutil.Error:
            continue
        if named:
            yield process, Path(named[0].removeprefix(MARKER))


def strays() -> Iterator[tuple[psutil.Process, Path]]:
    """Processes that headrace started but no longer has a record of, with the folder they name."""
    for process, folder in marked_processes():
        record = Supervised(folder).record
        if record is None or record.pid != process.pid:
            yield process, folder


def end_stray(process: psutil.Process, folder: Path) -> None:
    """A process that no record knows has ended, by SIGKILL."""
    try:
        process.kill()
        # A zombie holds nothing; only its parent can remove it.
        eventually(lambda: not process.is_running() or not _is_dying(process), 10)
    except psutil.NoSuchProcess:
        return
    except NotYet:
        raise NodeFailed(f"pid {process.pid}, left over from {folder.name}, does not end") from None


@contextmanager
def ended_like_ctrl_c(*signals: signal.Signals) -> Iterator[None]:
    """During the block these signals end it as Ctrl-C does: no process that it started stays behind.

    The first one counts; a second must not cut the clean-up short. A signal that somebody else handles is left to them.
    """
    ours: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():  # only there may signals be taken
        ours = [number for number in signals if signal.getsignal(number) == signal.SIG_DFL]

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in ours:
            signal.signal(each, signal.SIG_IGN)
        signal.default_int_handler(number, frame)

    for number in ours:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def plain_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a JVM: the user's, less what would change Java behind our back."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in {"_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "CLASSPATH", "KAFKA_OPTS"}
    }
    # Java takes the encoding of file names from the locale; under "C" it cannot open non-ASCII paths.
    environment["LC_ALL"] = "C.UTF-8"
    environment.update(extra or {})
    return environment


def describe(process: psutil.Process) -> dict[str, object]:
    """Pid and name, as far as the system lets us see them."""
    try:
        return {"pid": process.pid, "name": process.name()}
    except psutil.Error:
        return {"pid": process.pid, "name": "?"}
