"""`Workbench`: what an experiment works with. It does, it shows, it checks, and it tidies up.

Everything that is said here becomes an `Entry` of the result, in order, and is told at once to whoever listens. Topics
and groups that an experiment asks for are removed at its end, newest first, whatever happened in between.

Invariant: `check` compares with what was seen on the live cluster; it is the only way to a green lab.
"""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from headrace.errors import Failed, HeadraceError, Unreachable, UsageError
from headrace.labs.expect import holds, shown
from headrace.labs.result import Entry
from headrace.runtime.waiting import NotYet, eventually
from headrace.transport.admin import Admin
from headrace.transport.client import Connection
from headrace.transport.groups import Groups
from headrace.transport.topics import NewTopic, Partition

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headrace.cluster import Cluster

_CELL = 100


class Stopped(Exception):
    """The run was interrupted."""


class Workbench:
    """One run of one lab, from the inside."""

    def __init__(
        self,
        name: str,
        cluster: Cluster,
        parameters: SimpleNamespace,
        folder: Path,
        *,
        seed: int = 7,
        may_replace: Callable[[str], bool] = lambda _: False,
        listen: Callable[[Entry], None] = lambda _: None,
        stopping: threading.Event | None = None,
        spark: Callable[[], Any] | None = None,
    ) -> None:
        self.name = name
        self.cluster = cluster
        self.p = parameters
        self.seed = seed
        self.random = random.Random(seed)  # noqa: S311 - experiments must be repeatable
        self.entries: list[Entry] = []
        self.topics: list[str] = []
        self._folder = folder
        self._may_replace = may_replace
        self._listen = listen
        self._stopping = stopping or threading.Event()
        self._spark = spark
        self._children: list[tuple[subprocess.Popen[bytes], Path]] = []
        self._tidy = ExitStack()

    # -- telling ------------------------------------------------------------------------------------------------

    def step(self, title: str, why: str = "") -> None:
        """A new step begins: what is done, and why."""
        self._stop_if_asked()
        self._add("step", title=title, why=" ".join(why.split()))

    def say(self, text: str) -> None:
        """A sentence for the report."""
        self._add("say", text=" ".join(text.split()))

    def shows(self, *lines: str) -> None:
        """The command lines that a person would type for what is done next."""
        self._stop_if_asked()
        for line in lines:
            self._add("command", line=line)

    def output(self, text: str | Iterable[object], *, most: int = 12) -> None:
        """What came out, or the beginning of it."""
        lines = text.splitlines() if isinstance(text, str) else [str(line) for line in text]
        more = [f"… {len(lines) - most:,} more lines"] if len(lines) > most + 1 else []
        self._add("output", text="\n".join((lines[:most] if more else lines) + more))

    def check(self, what: str, expected: object, seen: object, *, look: str = "", needed: bool = False) -> bool:
        """Whether what is seen is what was expected. `look` tells where to look if not; `needed` then ends the lab."""
        good = holds(expected, seen)
        self._add("check", what=what, expected=_cell(expected), seen=_cell(seen), holds=good, look=look)
        if needed and not good:
            raise Failed(f"{what}: expected {_cell(expected)}, seen {_cell(seen)}", hint=look or None)
        return good

    def measure(self, what: str, value: float, unit: str, note: str = "") -> None:
        """A figure that the report tells, without a judgement."""
        self._add("measure", what=what, value=value, unit=unit, note=note)

    def table(self, title: str, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """A table of the report."""
        body = [[shown(cell) if cell is not None else "" for cell in row] for row in rows]
        self._add("table", title=title, headings=list(headings), rows=body)

    def figure(self, name: str, caption: str, draw: Callable[[Figure], None], *, height: float = 3.6) -> None:
        """A picture, drawn once for light and once for dark. `draw` gets an empty figure and fills it."""
        from headrace.labs.figures import render

        self._add("figure", caption=caption, **render(self._folder, name, draw, height))

    def _add(self, kind: Any, **facts: Any) -> None:
        entry = Entry(kind, facts)
        self.entries.append(entry)
        self._listen(entry)

    # -- doing --------------------------------------------------------------------------------------------------

    @cached_property
    def admin(self) -> Admin:
        admin = Admin(self.cluster)
        self._tidy.callback(admin.close)
        return admin

    @cached_property
    def connection(self) -> Connection:
        return Connection(self.cluster.bootstrap)

    @property
    def spark(self) -> Any:
        """The session that all labs of a run share."""
        if self._spark is None:
            raise Failed("this run has no Spark")
        return self._spark()

    @cached_property
    def files(self) -> Path:
        """A folder for the files of this run. One that a killed run has left is gone with its result."""
        made = self._folder / "files"
        made.mkdir(mode=0o700, parents=True)
        self._tidy.callback(shutil.rmtree, made, ignore_errors=True)
        return made

    def topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int | None = None,
        configs: Mapping[str, str] | None = None,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        quietly: bool = False,
    ) -> str:
        """The topic exists, empty; at the end it is gone. An assignment names the replicas of each partition."""
        replicas = replication or min(3, len(self.cluster.spec.brokers))
        wanted = NewTopic(name, partitions, replicas, dict(configs or {}))
        shape = f"--partitions {partitions} --replication {replicas}"
        if assignment:
            wanted = NewTopic(name, configs=wanted.configs, assignment=assignment)
            shape = "--assignment " + ",".join(":".join(map(str, brokers)) for brokers in assignment)
        if not quietly:
            settings = "".join(f" --set {key}={value}" for key, value in wanted.configs.items())
            self.shows(f"headrace topic create {name} {shape}{settings}")
        self.claim_topic(name)
        self.admin.create_topics([wanted])
        return name

    def claim_topic(self, name: str) -> str:
        """No topic has that name, and the one that the experiment will make is gone at the end."""
        if name in {found.name for found in self.admin.topics()}:
            if not self._may_replace(name):
                raise UsageError(f"the topic {name!r} is already there", why="no lab of this cluster has made it",
                                 hint=f"headrace lab run {self.name} --fresh takes a cluster of its own")  # fmt: skip
            self.admin.delete_topics([name])
        self.topics.append(name)
        self._tidy.callback(self._drop_topic, name)
        return name

    def _drop_topic(self, name: str) -> None:
        with contextlib.suppress(HeadraceError):
            self.admin.delete_topics([name])

    @cached_property
    def _hasty_admin(self) -> Admin:
        admin = Admin(self.cluster, timeout_s=1)
        self._tidy.callback(admin.close)
        return admin

    def partition(self, topic: str, number: int = 0) -> Partition:
        """A partition as of now, while brokers may be frozen: whoever does not answer at once is not waited for."""
        for _ in range(20):
            self._stop_if_asked()
            try:
                return self._hasty_admin.topic(topic).partitions[number]
            except Unreachable:
                # A client stays with the broker that it has reached, also when that one is frozen: another client may
                # reach another broker.
                del self._hasty_admin
        return self.admin.topic(topic).partitions[number]

    def group(self, name: str) -> str:
        """A group that has neither members nor offsets, of that name if it can be had; at the end it is gone."""
        self._drop_group(name)
        with Groups(self.cluster) as groups:
            taken = {group.group for group in groups.list()}
        # One that still has members, of a run that was killed, is left alone.
        free = name if name not in taken else next(n for n in (f"{name}-{at}" for at in count(2)) if n not in taken)
        self._tidy.callback(self._drop_group, free)
        return free

    def _drop_group(self, name: str) -> None:
        with contextlib.suppress(HeadraceError), Groups(self.cluster) as groups:
            groups.delete([name])

    def process(self, *words: object, output: Path | None = None) -> subprocess.Popen[bytes]:
        """`headrace WORDS` runs as a process of its own, to be ended or killed; at the end it is gone."""
        argv = [sys.executable, "-m", "headrace", *map(str, words), "--bootstrap", self.cluster.bootstrap]
        said = self.files / f"said-{len(self._children)}.txt"
        with (output or Path(os.devnull)).open("wb") as out, said.open("wb") as err:
            child = subprocess.Popen(argv, stdout=out, stderr=err, start_new_session=True)
        self._children.append((child, said))
        return child

    def finally_(self, call: Callable[..., object], *words: Any) -> None:
        """The call is made at the end, whatever happens."""
        self._tidy.callback(call, *words)

    def tidy(self, *, keep: bool = False) -> None:
        """No process of this run is left, and no topic, group or file either, unless they shall stay."""
        for child, _ in self._children:
            end(child, signal.SIGKILL)
        if keep:
            self._tidy.pop_all()
        self._tidy.close()

    # -- waiting ------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Time passes, as the document has it."""
        if self._stopping.wait(seconds):
            raise Stopped

    def until(self, condition: Callable[[], Any], within_s: float, what: str, *, every_s: float = 0.05) -> Any:
        """The first true answer and when it came; that it never came ends the lab."""

        def asked() -> Any:
            self._stop_if_asked()
            try:
                return condition()
            except Unreachable:
                return None  # a broker that was frozen or killed on purpose was asked

        try:
            return eventually(asked, within_s, every_s=every_s)
        except NotYet as error:
            why = self._last_words() or str(error)
            raise Failed(f"{what} did not happen within {within_s:g} s", why=why) from None

    def _last_words(self) -> str:
        """What the processes said that have ended by themselves with an error."""
        failed = [(child, said) for child, said in self._children if child.poll() not in (None, 0, -signal.SIGKILL)]
        return "; ".join(
            f"{' '.join(map(str, child.args[2:5]))} ended with code {child.returncode}: "  # type: ignore[index]
            f"{said.read_text(errors='replace').strip()[-300:]}"
            for child, said in failed
        )

    def seconds_until(self, condition: Callable[[], Any], within_s: float, what: str) -> float:
        """How long it took until the condition came true."""
        began = time.monotonic()
        self.until(condition, within_s, what, every_s=0.02)
        return time.monotonic() - began

    def _stop_if_asked(self) -> None:
        if self._stopping.is_set():
            raise Stopped


def end(child: subprocess.Popen[Any], how: signal.Signals = signal.SIGTERM) -> None:
    """The process has ended."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, how)
    child.wait(30)


def quoted(*words: object) -> str:
    """A command line of these words, as a shell takes it."""
    return shlex.join(map(str, words))


def _cell(value: object) -> str:
    text = shown(value)
    return text if len(text) <= _CELL else text[: _CELL - 1] + "…"
