"""`Workbench`: what an experiment works with. It does, it shows, it checks, and it tidies up.

Everything that is shown here becomes an `Entry` of the result, in order, and goes to the listener at once. Topics and
groups that an experiment asks for are removed at its end, newest first, whatever happened in between.

Invariants: `check` compares with what was seen on the live cluster; it is the only way to a green lab. What stands in a
box below a command is what `types` saw that command print. A file that a command names was made by a command before it.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from headrace import (
    Cluster,
    Connection,
    Failed,
    HeadraceError,
    Kafka,
    NewTopic,
    NotYet,
    Partition,
    Topic,
    Unreachable,
    UsageError,
    consume,
    eventually,
)
from headrace.labs.expect import holds, shown
from headrace.labs.figures import render
from headrace.labs.load import Load
from headrace.labs.processes import end, start
from headrace.labs.result import Entry

if TYPE_CHECKING:
    from headrace.labs.consoles import ConsoleApi

T = TypeVar("T")

_CELL = 100
# Where a person who has typed `headrace up` finds the cluster's files.
_HOME = ".headrace"
_COLUMNS = 110
_CONSOLE_WITHIN_S = 60.0
#: What decides on the time until a dead broker, or a dead controller, is replaced.
FAIL_OVER = (
    "broker.heartbeat.interval.ms", "broker.session.timeout.ms",
    "controller.quorum.fetch.timeout.ms", "controller.quorum.election.timeout.ms",
)  # fmt: skip
# Exit codes of a command that timed out or reached no broker: a slow machine can cause these.
_GAVE_UP = (1, 4)
# A killed member of a group is missed after its session timeout, 45 s by default.
_MEMBERS_GONE_S = 60.0


class Stopped(Exception):
    """The run was interrupted."""


class TooBusy(Failed):
    """Something took too long on a machine on which others used most of the CPU."""


@dataclass(frozen=True)
class Typed:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


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
        spark: Callable[[], object] | None = None,
        consoles: Callable[[str], ConsoleApi] | None = None,
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
        self._consoles = consoles
        self._load: Load | None = None
        self._children: list[tuple[subprocess.Popen[bytes], Path]] = []
        self._tidy = ExitStack()

    # -- reporting ----------------------------------------------------------------------------------------------

    def step(self, title: str, why: str = "") -> None:
        """A new step begins: what is done, and why."""
        self.stop_if_asked()
        self._load = Load(node.pid for node in self.cluster.node_states() if node.pid)
        self._add("step", title=title, why=" ".join(why.split()))

    def say(self, text: str) -> None:
        """A sentence for the report."""
        self._add("say", text=" ".join(text.split()))

    def shows(self, *lines: str, code: int = 0) -> None:
        """The command lines that a person would type for what is done next, or in another terminal meanwhile.

        They end with that exit code.
        """
        self.stop_if_asked()
        for line in lines:
            self._add("command", line=line, **({"code": code} if code else {}))

    def types(self, line: str, *, most: int = 12, code: int = 0, within_s: float = 120.0) -> Typed:
        """The command line is typed in the folder of this run, and what it prints stands below it.

        Another exit code than `code` ends the lab.
        """
        self.shows(line, code=code)
        if " lab tool " in line:
            self.cluster.tool_command("kafka-topics")  # what is fetched once per user is not output of this command
        done = self._typed(line, within_s)
        lines = [*done.out.splitlines(), *done.err.splitlines()]
        more = [f"… {len(lines) - most:,} more lines"] if len(lines) > most + 1 else []
        if lines:
            self._add("output", text="\n".join((lines[:most] if more else lines) + more))
        if done.code != code:
            problem = f"`{line}` ended with code {done.code}"
            late = done.code in _GAVE_UP and self.excuse
            raise TooBusy(problem, why=late) if late else Failed(problem, why="; ".join(lines[-4:]))
        return done

    def _typed(self, line: str, within_s: float) -> Typed:
        # As in a shell of the user's, whose nearest cluster is this one, and whatever `headrace` is on the path.
        python = shlex.quote(sys.executable)
        shell = f'headrace() {{ {python} -m headrace "$@"; }}; python() {{ {python} "$@"; }}; {line}'
        place = {"HEADRACE_HOME": str(self.cluster.home.root), "COLUMNS": str(_COLUMNS)}
        child = subprocess.Popen(
            ["sh", "-c", shell], cwd=self.files, env={**os.environ, **place}, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        deadline = time.monotonic() + within_s
        while True:
            try:
                out, err = child.communicate(timeout=0.5)
            except subprocess.TimeoutExpired:
                if self._stopping.is_set() or time.monotonic() > deadline:
                    end(child, signal.SIGKILL)
                    child.communicate()
                    self.stop_if_asked()
                    raise self._late(f"`{line}` did not end within {within_s:g} s", "") from None
            else:
                return Typed(child.returncode, out, err)

    def lay_out(self) -> None:
        """The files that this lab's commands need are in its folder, by the command that gives them to a person."""
        self.types(f"headrace lab files {self.name}")

    def sample(self, kind: str, records: int, file: str, *options: str) -> Path:
        """A file of example data, made by the command that is shown."""
        seed = () if kind == "iris" else ("--records", records, "--seed", self.seed)
        self.types(quoted("headrace", "sample", kind, *seed, *options, "-o", file))
        return self.files / file

    def numbers(self, count: int, file: str = "numbers.txt") -> Path:
        """A file of the numbers from 0, one a line; as `{"n": 0}` if its name ends in ndjson."""
        as_json = """ | sed 's/.*/{"n": &}/'""" if file.endswith(".ndjson") else ""
        self.types(f"seq 0 {count - 1}{as_json} > {file}")
        return self.files / file

    def produce(self, topic: str, file: str = "", options: str = "", *, pipe: str = "") -> int:
        """A file, or what a command prints, was sent by the command that is shown; how many were acknowledged."""
        line = " ".join(word for word in (pipe and f"{pipe} |", "headrace produce", topic, file, options) if word)
        output = self.types(line)
        said = re.search(r"([\d,]+) records? acknowledged", output.err)
        return int(said[1].replace(",", "")) if said else 0

    def count(self, topic: str, group: str | None = None) -> int:
        """How many records the command that is shown reads: all of them, or what the group has not read yet."""
        self.shows(f"headrace consume {topic}" + (f" --group {group}" if group else ""))
        return sum(1 for _ in consume(self.cluster, topic, group=group))

    def check(
        self, what: str, expected: object, seen: object, *, look: str = "", needed: bool = False, timing: bool = False
    ) -> bool:
        """Whether what is seen is what was expected. `look` says where to look if not; `needed` then ends the lab.

        With `timing` it depends on how fast this machine is: a busy one makes it inconclusive, not red.
        """
        good = holds(expected, seen)
        facts = {"what": what, "expected": _cell(expected), "seen": _cell(seen), "holds": good, "look": look}
        if timing and not good:
            facts["excuse"] = self.excuse
        self._add("check", **facts)
        if needed and not good:
            raise Failed(f"{what}: expected {_cell(expected)}, seen {_cell(seen)}", hint=look or None)
        return good

    @property
    def excuse(self) -> str:
        """Why a measurement of time says nothing on this machine now; empty if it does."""
        return self._load.excuse if self._load else ""

    def measure(self, what: str, value: float, unit: str, note: str = "") -> None:
        """A number for the report, without a check."""
        self._add("measure", what=what, value=value, unit=unit, note=note)

    def table(self, title: str, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """A table of the report."""
        body = [[shown(cell) if cell is not None else "" for cell in row] for row in rows]
        self._add("table", title=title, headings=list(headings), rows=body)

    def figure(self, name: str, caption: str, draw: Callable[..., None], *drawn: object, height: float = 3.6) -> None:
        """A picture, drawn once for light and once for dark. `draw` gets an empty figure and what is drawn."""
        rendered = render(self._folder, name, lambda figure: draw(figure, *drawn), height)
        self._add("figure", caption=caption, **rendered)

    def _add(self, kind: Any, **facts: object) -> None:
        entry = Entry(kind, facts)
        self.entries.append(entry)
        self._listen(entry)

    # -- doing --------------------------------------------------------------------------------------------------

    @cached_property
    def kafka(self) -> Kafka:
        kafka = Kafka(self.cluster)
        self._tidy.callback(kafka.close)
        return kafka

    @cached_property
    def connection(self) -> Connection:
        return Connection(self.cluster.bootstrap)

    @property
    def spark(self) -> Any:
        """The session that all labs of a run share."""
        if self._spark is None:
            raise Failed("this run has no Spark")
        return self._spark()

    @property
    def console(self) -> ConsoleApi:
        """The console of this cluster, which all labs of a run share."""
        if self._consoles is None:
            raise Failed("this run has no console")
        return self._consoles(self.cluster.bootstrap)

    def watch(self, topic: str, records: int, lags: Mapping[str, int] | None = None, *, note: str = "") -> None:
        """What the console shows of the topic is what was sent to it, what is stored, and what groups have not read."""
        self.step(f"What the console shows of {topic}", note)
        self.shows("headrace console")
        self.say(f"The page /topics/{topic}, and what its API says:")
        (size,) = self.kafka.topic_sizes([topic])
        wanted = {"records": records, "bytes stored": size.size_bytes}
        wanted |= {f"lag of {group}": lag for group, lag in (lags or {}).items()}
        seen: dict[str, object] = {}

        def agrees() -> bool:
            seen.update(self._shown(topic, lags or {}))
            return seen == wanted

        # It polls every two seconds, and bytes less often.
        with contextlib.suppress(NotYet):
            eventually(agrees, _CONSOLE_WITHIN_S, every_s=0.2)
        for name, value in wanted.items():
            look = f"{self.console.address}/topics/{topic}"
            self.check(f"the console: {name}", value, seen.get(name), look=look, timing=True)

    def _shown(self, topic: str, groups: Iterable[str]) -> dict[str, object]:
        status, answer = self.console("GET", f"/api/topics/{quote(topic)}")
        now, described = (answer.get(part) or {} if status == 200 else {} for part in ("now", "described"))
        # Offsets count the markers of transactions too; the records of a large topic are not counted one by one.
        counted = described.get("records")
        records = now.get("offsets") if counted is None else counted
        shown = {"records": records, "bytes stored": now.get("size_bytes")}
        for group in groups:
            status, answer = self.console("GET", f"/api/groups/{quote(group)}")
            shown[f"lag of {group}"] = answer.get("lag") if status == 200 else None
        return shown

    def timers(self, *names: str) -> str:
        """What decides how long a fail-over takes, with the settings of a broker: the note of a measurement."""
        answer = self.kafka.broker_configs(min(self.kafka.live_brokers()))
        held = ", ".join(f"{name}={answer[name].value}" for name in names or FAIL_OVER if name in answer)
        return f"{self.cluster.reports}; with {held}"

    @cached_property
    def files(self) -> Path:
        """A folder for the files of this run. One that a killed run has left is gone with its result."""
        made = self._folder / "files"
        made.mkdir(mode=0o700, parents=True)
        # As in the folder in which a person has typed `headrace up`.
        (made / _HOME).symlink_to(self.cluster.home.root)
        self._tidy.callback(shutil.rmtree, made, ignore_errors=True)
        return made

    def shown_path(self, file: Path) -> str:
        """Where a person finds a file of the cluster, from the folder in which the commands are typed."""
        return f"{_HOME}/{file.relative_to(self.cluster.home.root)}"

    def topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int | None = None,
        configs: Mapping[str, str] | None = None,
        *,
        assignment: Sequence[Sequence[int]] | None = None,
        fixed: bool = False,
    ) -> str:
        """The topic exists, empty; at the end it is gone. An assignment names the replicas of each partition.

        A topic of that name which no lab has made is the user's and stays as it is: the name is then another one, or
        with `fixed` that is an error.
        """
        if not fixed:
            name = unused(name, self._users_topics())
        replicas = replication or min(3, len(self.cluster.spec.brokers))
        wanted = NewTopic(name, partitions, replicas, dict(configs or {}))
        shape = f"--partitions {partitions} --replication {replicas}"
        if assignment:
            wanted = NewTopic(name, configs=wanted.configs, assignment=assignment)
            shape = "--assignment " + ",".join(":".join(map(str, brokers)) for brokers in assignment)
        settings = "".join(f" --set {key}={value}" for key, value in wanted.configs.items())
        self.shows(f"headrace topic create {name} {shape}{settings}")
        self.claim_topic(name)
        self.kafka.create_topics([wanted])
        return name

    def claim_topic(self, name: str) -> str:
        """No topic has that name, and the one that the experiment will make is gone at the end."""
        if name in self._users_topics():
            raise UsageError(f"the topic {name!r} exists already", why="no lab of this cluster has made it",
                             hint=f"headrace lab run {self.name} --fresh takes a cluster of its own")  # fmt: skip
        if name in {found.name for found in self.kafka.topics()}:
            self.kafka.delete_topics([name])
        self.topics.append(name)
        self._tidy.callback(self._drop_topic, name)
        return name

    def _users_topics(self) -> set[str]:
        return {found.name for found in self.kafka.topics() if not self._may_replace(found.name)}

    def _drop_topic(self, name: str) -> None:
        with contextlib.suppress(HeadraceError):
            self.kafka.delete_topics([name])

    @cached_property
    def _hasty_kafka(self) -> Kafka:
        kafka = Kafka(self.cluster, timeout_s=1)
        self._tidy.callback(kafka.close)
        return kafka

    def describe(self, topic: str) -> Topic:
        """All that is known of the topic. A leader that is late on a busy machine is asked again for its offsets."""

        def answered() -> Topic | None:
            found = self.kafka.describe(topic)
            return found if found.offsets is not None else None

        return self.until(answered, 60, f"an answer of every leader of {topic}")

    def partition(self, topic: str, number: int = 0) -> Partition:
        """A partition as of now, while brokers may be frozen: one that does not answer at once is not waited for."""
        for _ in range(20):
            self.stop_if_asked()
            try:
                return self._hasty_kafka.topic(topic).partitions[number]
            except Unreachable:
                # A client stays with the broker that it has reached, also when that one is frozen: another client may
                # reach another broker.
                del self._hasty_kafka
        return self.kafka.topic(topic).partitions[number]

    def group(self, name: str) -> str:
        """A group that has neither members nor offsets, of that name if it can be had; at the end it is gone."""
        if name.startswith("lab-"):  # only labs have such groups; another one is the user's, with offsets
            self._drop_group(name)
        # One that still has members, of a run that was killed, is left alone.
        free = unused(name, {group.group for group in self.kafka.groups.list()})
        self._tidy.callback(self._drop_group, free, _MEMBERS_GONE_S)
        return free

    def _drop_group(self, name: str, within_s: float = 0.0) -> None:
        """The group is gone, if its members are within that time: a killed one stays until its session expires."""

        def gone() -> bool:
            with contextlib.suppress(HeadraceError):
                self.kafka.groups.delete([name])
            return name not in {group.group for group in self.kafka.groups.list()}

        with contextlib.suppress(HeadraceError, NotYet):
            eventually(gone, within_s, every_s=0.5)

    @contextmanager
    def cluster_beside(self, name: str, kafka: Mapping[str, str], *, brokers: int = 1) -> Iterator[Cluster]:
        """A small cluster with settings of its own, for as long as the block runs."""
        # Beside the labs' other clusters, where it is found if this run is killed.
        home = self._folder.parent / f"cluster-{name}"
        cluster = Cluster(home, brokers=brokers, kafka=dict(kafka))
        flags = " ".join(f"--set {key}={value}" for key, value in kafka.items())
        self.shows(f"headrace --home {name} up --brokers {brokers} {flags}")
        try:
            cluster.up()
            # As where a person has typed that.
            (self.files / name).symlink_to(home)
            yield cluster
            self.shows(f"headrace --home {name} down --wipe --yes")
        finally:
            (self.files / name).unlink(missing_ok=True)
            cluster.down(wipe=True)
            shutil.rmtree(home, ignore_errors=True)

    @contextmanager
    def frozen(self, *nodes: int) -> Iterator[None]:
        """The nodes are paused as long as the block runs; behind it they run again, whatever happened."""
        self.shows(*(f"headrace pause {node}" for node in nodes))
        try:
            for node in nodes:
                self.cluster.pause(node)
            yield
        finally:
            for node in nodes:
                self.cluster.resume(node)
        self.shows(*(f"headrace resume {node}" for node in nodes))

    def process(self, *words: object, output: Path | None = None) -> subprocess.Popen[bytes]:
        """`headrace WORDS` runs as a process of its own, to be ended or killed; at the end it is gone."""
        said = self.files / f"said-{len(self._children)}.txt"
        with (output or Path(os.devnull)).open("wb") as out, said.open("wb") as err:
            child = start(self.files, *words, "--bootstrap", self.cluster.bootstrap, stdout=out, stderr=err)
        self._children.append((child, said))
        return child

    def finally_(self, call: Callable[..., object], *words: object) -> None:
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

    def until(self, condition: Callable[[], T | None], within_s: float, what: str, *, every_s: float = 0.05) -> T:
        """The first true answer and when it came; that it never came ends the lab."""

        def asked() -> T | None:
            self.stop_if_asked()
            try:
                return condition()
            except Unreachable:
                return None  # a broker that was frozen or killed on purpose was asked

        try:
            return eventually(asked, within_s, every_s=every_s)
        except NotYet as error:
            raise self._late(f"{what} did not happen within {within_s:g} s", str(error)) from None

    def _late(self, problem: str, why: str) -> Failed:
        """What takes too long on a busy machine is no proof that it would never happen."""
        if self.excuse:
            return TooBusy(problem, why=self.excuse)
        return Failed(problem, why=self._last_words() or why)

    def _last_words(self) -> str:
        """What the processes said that have ended by themselves with an error."""
        failed = [(child, said) for child, said in self._children if child.poll() not in (None, 0, -signal.SIGKILL)]
        return "; ".join(
            f"{' '.join(map(str, child.args[4:7]))} ended with code {child.returncode}: "  # type: ignore[index]
            f"{said.read_text(errors='replace').strip()[-300:]}"
            for child, said in failed
        )

    def seconds_until(self, condition: Callable[[], object], within_s: float, what: str) -> float:
        """How long it took until the condition came true."""
        began = time.monotonic()
        self.until(condition, within_s, what, every_s=0.02)
        return time.monotonic() - began

    def stop_if_asked(self) -> None:
        """Raises if the run was interrupted: a loop that takes long asks each time."""
        if self._stopping.is_set():
            raise Stopped


def unused(name: str, taken: Container[str]) -> str:
    """The name, or the first with a number behind it that is not taken."""
    return next(each for each in chain([name], (f"{name}-{at}" for at in count(2))) if each not in taken)


def quoted(*words: object) -> str:
    """A command line of these words, as a shell takes it."""
    return shlex.join(map(str, words))


def _cell(value: object) -> str:
    text = shown(value)
    return text if len(text) <= _CELL else text[: _CELL - 1] + "…"
