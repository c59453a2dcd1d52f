"""The watcher: a small process beside the nodes of a home that knows at once when one of them has died.

Kafka fences a broker and replaces a controller after a time of silence. A short time makes fail-over fast, but on a
busy machine it also fences brokers that are alive. So Kafka's timeouts are long here, and the watcher, which holds a
descriptor of every process, reports a death to the controllers within milliseconds. A paused process is as silent as a
dead one: it is reported after a second.

It keeps how a process has ended for `status`, and starts it again if the cluster says so (`restart = "on-failure"`) and
no command has ended it. It ends nothing, and it never takes slow for dead. Without it everything works, only later.

    python -m headrace.cluster.watcher HOME MARKER
"""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from typing import IO

import psutil

from headrace.cluster import spec as plans
from headrace.cluster.controllers import Asked, Controllers
from headrace.cluster.spec import ClusterSpec, Node
from headrace.errors import HeadraceError
from headrace.home import Home, read_json, write_json
from headrace.runtime import MARKER, ProcessHandle, ProcessRecord, Supervised, plain_environment

FOLDER = "watcher"

# How often records of processes are looked at; a death is noticed without that.
_LOOK_EVERY_S = 0.2
_RETRY_S = (0.03, 2.0)
# What a controller is given to answer; on a machine that is far too busy it needs more than at first.
_ANSWER_S, _ANSWER_PER_PAUSE = 2.0, 5
#: A paused process may be resumed in a moment.
PAUSED_S = 1.0
# Nothing has run for so long: there is nothing to watch over.
_IDLE_S = 120.0

#: A node that fails more often than this within that time stays dead.
MOST_RESTARTS, WITHIN_S = 5, 600.0
_LONGEST_BACKOFF_S = 60.0
_SETUP_ERROR = 3  # the exit code of a command that found the lock held, among others
# Kafka's log is followed by older ones: `.1` is the oldest.
_ROTATED = (".3", ".2", ".1")

_REGISTERED = re.compile(rb"^\[([\d:T,-]+)\] INFO .*Successfully registered broker \d+ with broker epoch (\d+)", re.M)


class Registrations:
    """The registrations of a broker with the controller, from its own log: when, and the epoch it was given."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self._at = (0, 0)  # which file, and how far it was read
        self._last: tuple[float, int] | None = None

    def last(self) -> tuple[float, int] | None:
        """The latest one, of this process or of an earlier one."""
        with suppress(OSError):
            found = self.log.stat()
            if (found.st_ino, found.st_size) == self._at:
                return self._last
        with ExitStack() as opened:
            files = self._files(opened)
            known, end = self._at
            unread = list(files) if known not in files else list(files)[list(files).index(known) :]
            for inode in unread:
                self._read(files[inode], end if inode == known else 0)
                self._at = (inode, files[inode].tell())
        return self._last

    def _files(self, opened: ExitStack) -> dict[int, IO[bytes]]:
        """The log and those before it by inode, the oldest first. Opened from the newest on: none slips by."""
        found: dict[int, IO[bytes]] = {}
        for name in (self.log, *(self.log.with_name(self.log.name + suffix) for suffix in _ROTATED)):
            with suppress(OSError):
                file = opened.enter_context(name.open("rb"))
                found.setdefault(os.fstat(file.fileno()).st_ino, file)
        return dict(reversed(found.items()))

    def _read(self, file: IO[bytes], begin: int) -> None:
        """Reads on from there, up to where the last whole line ends."""
        size = os.fstat(file.fileno()).st_size
        begin = begin if begin <= size else 0  # another file with the number of one that is gone
        file.seek(begin)
        text = file.read()
        whole = text.rfind(b"\n") + 1
        file.seek(begin + whole)
        for when, epoch in _REGISTERED.findall(text[:whole]):
            moment = datetime.fromisoformat(when.decode().replace(",", ".")).timestamp()
            self._last = (moment, int(epoch))


class _Watched:
    """One node: the process that is known, and what is left to do about the one before."""

    def __init__(self, home: Home, name: str, node: Node | None) -> None:
        self.name = name
        self.node = node
        self.process = Supervised(home.node(name))
        self.registrations = Registrations(home.node(name) / "server.log")
        self.record: ProcessRecord | None = None
        self.last_epoch: int | None = None
        self.handle: ProcessHandle | None = None
        self.paused_since: float | None = None
        self.to_report = False
        self.to_release: int | None = None
        self.next_try = 0.0
        self.pause_s = _RETRY_S[0]
        self.failures: list[float] = []
        self.restart_at: float | None = None
        self.restarting: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> bool:
        return self.handle is not None

    def epoch(self) -> int | None:
        last = self.registrations.last()
        return last[1] if last else None

    def is_registered(self) -> bool:
        """True if the running process has registered itself."""
        last = self.registrations.last()
        if last is None or self.record is None or last[1] == self.last_epoch:
            return False
        # The kernel's start time is rounded, and the log's clock is another one.
        return last[0] > self.record.started - 1

    @property
    def answer_within_s(self) -> float:
        return max(_ANSWER_S, _ANSWER_PER_PAUSE * self.pause_s)

    def retry(self, *, done: bool) -> None:
        self.pause_s = _RETRY_S[0] if done else min(2 * self.pause_s, _RETRY_S[1])
        self.next_try = time.monotonic() + self.pause_s


class Watcher:
    """Watches over the nodes of one home until there is nothing left to watch over."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.spec: ClusterSpec | None = None
        self.nodes: dict[str, _Watched] = {}
        self._plan_read = 0
        self._last_seen = time.monotonic()
        self._poll = select.poll()
        self._of_descriptor: dict[int, _Watched] = {}
        self._asked: Asked = {}

    def run(self) -> None:
        """Returns when the cluster is gone, or nothing of it has run for a while."""
        while self._read_plan() and time.monotonic() - self._last_seen < _IDLE_S:
            for node in self.nodes.values():
                self._look(node)
                self._act(node)
            for descriptor, _ in self._poll.poll(1000 * self._rest_s()):
                self._ended(self._of_descriptor[descriptor])

    def _rest_s(self) -> float:
        """Until the next look, or until something is to be tried again."""
        tries = [n.next_try for n in self.nodes.values() if n.to_report or n.to_release is not None]
        return max(_RETRY_S[0], min([time.monotonic() + _LOOK_EVERY_S, *tries]) - time.monotonic())

    def _read_plan(self) -> bool:
        """True while there is a cluster; its plan is read again when it has changed."""
        try:
            changed = self.home.cluster_file.stat().st_mtime_ns
        except OSError:
            return False
        if changed != self._plan_read:
            with suppress(OSError, HeadraceError):  # a damaged plan changes nothing about what runs
                self.spec, self._plan_read = plans.read(self.home), changed
        if self.spec is None:
            return False
        wanted: dict[str, Node | None] = {node.name: node for node in self.spec.nodes}
        wanted |= {service.name: None for service in self.spec.services}
        for name, node in wanted.items():
            watched = self.nodes.setdefault(name, _Watched(self.home, name, node))
            watched.node = node  # its ports may have changed
        return True

    # -- what happens to processes ------------------------------------------------------------------------------

    def _look(self, node: _Watched) -> None:
        """New processes are found, and those that end without a descriptor; a pause has a beginning and an end."""
        if node.handle is None:
            self._find(node)
        elif node.handle.descriptor is None and (node.record is None or node.record.find() is None):
            self._ended(node)
        if node.handle is None:
            return
        self._last_seen = time.monotonic()
        if node.node and node.node.broker:
            node.registrations.last()  # before the log that says it is rotated away
        with suppress(psutil.Error):
            if psutil.Process(node.handle.pid).status() != psutil.STATUS_STOPPED:
                node.paused_since = None
            elif node.paused_since is None:
                node.paused_since = time.monotonic()
                node.to_report = node.node is not None

    def _find(self, node: _Watched) -> None:
        record = node.process.record
        if record is None or record == node.record or record.find() is None:
            return
        try:
            node.handle = ProcessHandle(record.pid)
        except OSError:
            return  # it has just ended
        node.record, node.paused_since, node.restart_at = record, None, None
        node.to_report = False
        if node.handle.descriptor is not None:
            self._of_descriptor[node.handle.descriptor] = node
            self._poll.register(node.handle.descriptor, select.POLLIN)
        if node.node and node.node.broker and not node.is_registered():
            node.to_release = node.epoch()
            node.retry(done=True)

    def _ended(self, node: _Watched) -> None:
        if node.handle is None:
            return
        status = node.handle.exit_status()
        if node.handle.descriptor is not None:
            self._poll.unregister(node.handle.descriptor)
            del self._of_descriptor[node.handle.descriptor]
        node.handle.close()
        node.handle, node.paused_since, node.to_release = None, None, None
        node.last_epoch = node.epoch()
        if status is not None:
            node.process.note_exit(status)
        node.to_report = node.node is not None
        node.retry(done=True)
        self._act(node)
        record = node.process.record
        by = record.ended_by if record else "headrace"
        _say(f"{node.name} has ended (pid {node.record.pid if node.record else '?'}, {by or 'unexpectedly'})")
        if record and by is None:
            self._plan_restart(node)

    # -- what is done about it ----------------------------------------------------------------------------------

    def _act(self, node: _Watched) -> None:
        now = time.monotonic()
        if now >= node.next_try:
            if node.to_report and (node.paused_since is None or now - node.paused_since >= PAUSED_S):
                self._report(node)
            elif node.to_release is not None:
                self._release(node)
        if node.restarting or (node.restart_at is not None and now >= node.restart_at):
            self._restart(node)

    def _controllers(self, node: _Watched) -> Controllers:
        """Those that can be asked on behalf of the node: a paused one would only be waited for."""
        spec = self.spec
        found = (self.nodes[voter.name] for voter in spec.voters) if spec else ()
        running = [watched.node for watched in found if watched.node and watched.runs and watched.paused_since is None]
        return Controllers(spec.cluster_id if spec else "", running, node.answer_within_s)

    def _report(self, node: _Watched) -> None:
        if node.node is None or self.spec is None or not (node.paused_since or node.handle is None):
            node.to_report = False  # a service, or a node that runs again
            return
        known = self._controllers(node).report_silent(node.node, node.epoch(), self._asked)
        node.to_report = known is None
        node.retry(done=known is not None)
        if known:
            _say(f"the controllers know that {node.name} is {'paused' if node.paused_since else 'gone'}")
        elif known is False:
            _say(f"{node.name} was not registered, or no controller runs that could be notified")

    def _release(self, node: _Watched) -> None:
        if node.node is None or self.spec is None or node.to_release is None or node.is_registered():
            node.to_release = None
            return
        done = self._controllers(node).release_registration(node.node, node.to_release)
        if done:
            node.to_release = None
        node.retry(done=done)

    # -- restarts -----------------------------------------------------------------------------------------------

    def _plan_restart(self, node: _Watched) -> None:
        if self.spec is None or self.spec.restart != "on-failure":
            return
        now = time.monotonic()
        node.failures = [at for at in node.failures if now - at < WITHIN_S] + [now]
        given_up = len(node.failures) > MOST_RESTARTS
        node.restart_at = None if given_up else now + min(2.0 ** (len(node.failures) - 1), _LONGEST_BACKOFF_S)
        if given_up:
            _say(f"{node.name} stays dead: it has failed {len(node.failures)} times within {WITHIN_S / 60:g} minutes")
        self._note_restarts(node, given_up=given_up)

    def _restart(self, node: _Watched) -> None:
        """The command that a person would type, so that it does all that a start does."""
        if node.restarting is None:
            node.restart_at = None
            if node.runs or node.process.record is None:
                return  # somebody was faster, or has stopped it
            _say(f"starting {node.name} again")
            command = [sys.executable, "-m", "headrace", "--home", str(self.home.root), "start", node.name]
            node.restarting = subprocess.Popen(command, env=plain_environment(), stdin=subprocess.DEVNULL)
            return
        code = node.restarting.poll()
        if code is None:
            return
        node.restarting = None
        if code == _SETUP_ERROR and self.home.holder():
            node.restart_at = time.monotonic() + 1.0
        elif code and not node.runs and node.restart_at is None:
            self._plan_restart(node)

    def _note_restarts(self, node: _Watched, *, given_up: bool) -> None:
        restarts = restarts_of(self.home) | {node.name: {"failures": len(node.failures), "given_up": given_up}}
        with suppress(OSError):
            write_json(_state_file(self.home), {"restarts": restarts}, durable=False)


def _state_file(home: Home) -> Path:
    return home.node(FOLDER) / "state.json"


def restarts_of(home: Home) -> dict[str, dict[str, int | bool]]:
    """How often each node has failed lately, and whether it is still started again."""
    with suppress(HeadraceError):
        return dict((read_json(_state_file(home)) or {}).get("restarts", {}))
    return {}


def start(home: Home) -> None:
    """The watcher of the home runs."""
    process = Supervised(home.node(FOLDER))
    if process.find():
        return
    process.folder.mkdir(mode=0o700, exist_ok=True)
    _state_file(home).unlink(missing_ok=True)
    argv = [sys.executable, "-m", "headrace.cluster.watcher", str(home.root), process.marker]
    process.spawn(argv, output=process.folder / "server.log", environment=plain_environment())


def end(home: Home) -> None:
    """No watcher of the home runs."""
    process = Supervised(home.node(FOLDER))
    process.kill()
    process.forget()


def _say(text: str) -> None:
    print(f"[{datetime.now().isoformat(timespec='milliseconds')}] {text}", flush=True)


if __name__ == "__main__":
    home = Home(Path(sys.argv[1]))
    Watcher(home).run()
    own = Supervised(home.node(FOLDER))
    if own.pid == os.getpid() and sys.argv[2].startswith(MARKER):
        own.forget()
