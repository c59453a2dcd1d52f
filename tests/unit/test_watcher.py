"""What the watcher reads from logs, what it says to whom, and when it stops to start a node again."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.cluster import controllers, watcher
from headrace.cluster.node import NodeProcess, _ending, last_words
from headrace.cluster.services import meant
from headrace.cluster.spec import ClusterSpec, Node
from headrace.home import Home
from headrace.runtime.process import ProcessHandle, ProcessRecord, plain_environment

_LINE = (
    "[2026-11-17T19:11:5{0},457] INFO [BrokerLifecycleManager id=1] Successfully registered broker 1 with broker epoch"
    " 1{0} (BrokerLifecycleManager)\n"
)


def test_the_last_registration_is_found_in_a_log_that_grows_and_rotates(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    (tmp_path / "server.log.1").write_text(_LINE.format(1), encoding="utf-8")
    log.write_text("nothing of the kind\n", encoding="utf-8")
    found = watcher.Registrations(log)

    def epoch() -> int | None:
        last = found.last()
        return last[1] if last else None

    assert epoch() == 11
    with log.open("a", encoding="utf-8") as more:
        more.write(_LINE.format(2)[:60])
        more.flush()
        assert epoch() == 11  # half a line is none
        more.write(_LINE.format(2)[60:])
    assert epoch() == 12
    with log.open("a", encoding="utf-8") as more:
        more.write(_LINE.format(3))
    log.rename(tmp_path / "server.log.2")  # before anybody has read it
    log.write_text("nothing of the kind\n", encoding="utf-8")
    assert epoch() == 13


def test_the_newest_of_the_rotated_logs_has_the_highest_number(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / f"server.log.{number}").write_text(_LINE.format(number), encoding="utf-8")
    assert (watcher.Registrations(tmp_path / "server.log").last() or (0, 0))[1] == 13


def test_a_registration_is_read_long_before_it_is_needed(tmp_path: Path) -> None:
    log = tmp_path / "broker-1" / "server.log"
    log.parent.mkdir()
    log.write_text(_LINE.format(1), encoding="utf-8")
    watched = watcher._Watched(Home(tmp_path), _NODES[0].name, _NODES[0])
    watched.handle = ProcessHandle(os.getpid())
    watcher.Watcher(Home(tmp_path))._look(watched)
    watched.handle.close()
    log.write_text("all that was said before is gone\n", encoding="utf-8")
    assert watched.epoch() == 11


_NODES = [Node(f"broker-{n}", n, broker=True, controller=True, controller_port=n) for n in (1, 2, 3)]


class Voters(controllers.Controllers):
    """Controllers that answer as they are asked to, and remember who was told of which end of an epoch."""

    def answering(self, leaders: dict[int, tuple[int, int]], heartbeat: int = 0) -> Voters:
        self.__dict__.update(leaders=leaders, heartbeat=heartbeat, ends=[])
        return self

    def _ask(self, voter: Node, key: int, body: bytes, *, flexible: bool = True) -> bytes:  # noqa: ARG002
        known: Any = self
        if key == 63:  # a heartbeat
            return struct.pack(">ih", 0, known.heartbeat)
        topic = b"__cluster_metadata"
        at = body.index(topic) + len(topic) + 8  # behind the number of partitions and that of the one
        leader, epoch, successors = struct.unpack_from(">3i", body, at)
        if epoch:
            known.ends.append((voter.node_id, leader, epoch, *struct.unpack_from(f">{successors}i", body, at + 12)))
        head = struct.pack(">hih", 0, 1, len(topic)) + topic + struct.pack(">iih", 1, 0, 0)
        return head + struct.pack(">ii", *known.leaders[voter.node_id])


def ends_of(voters: Voters) -> Sequence[tuple[int, ...]]:
    ends: Sequence[tuple[int, ...]] = voters.__dict__["ends"]
    return ends


def test_each_follower_is_told_once_that_the_epoch_has_ended_and_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock: Any = SimpleNamespace(monotonic=lambda: clock.now, now=100.0)
    monkeypatch.setattr(controllers, "time", clock)
    voters = Voters("id", _NODES).answering({2: (1, 7), 3: (1, 7)})
    asked: controllers.Asked = {}
    for expected in ([2], [2, 3], [2, 3]):
        assert voters.report_silent(_NODES[0], 5, asked) is None
        assert [(voter, 1, 7, voter) for voter in expected] == ends_of(voters)
        clock.now += 0.5
    clock.now += 1.5
    voters.report_silent(_NODES[0], 5, asked)
    assert len(ends_of(voters)) == 3


def test_the_controllers_know_of_a_broker_only_if_they_have_fenced_it() -> None:
    def reported(heartbeat: int = 0, epoch: int | None = 5, nodes: Sequence[Node] = _NODES) -> bool | None:
        voters = Voters("id", nodes).answering({2: (2, 8), 3: (2, 8)}, heartbeat)
        return voters.report_silent(_NODES[0], epoch, {})

    stale, not_controller = 77, 41
    assert reported() is True
    assert reported(stale) is False
    assert reported(epoch=None) is False
    assert reported(nodes=_NODES[:1]) is False
    assert reported(not_controller) is None


def test_a_voter_that_knows_no_leader_yet_does_not_hide_the_one_that_does() -> None:
    for leaders in ({2: (-1, 8), 3: (3, 8)}, {2: (3, 8), 3: (-1, 8)}):
        assert Voters("id", _NODES).answering(leaders).report_silent(_NODES[0], 5, {}) is True
    assert Voters("id", _NODES).answering({2: (1, 7), 3: (-1, 8)}).report_silent(_NODES[0], 5, {}) is None


def test_a_busy_controller_gets_more_time_with_each_try(tmp_path: Path) -> None:
    watched = watcher._Watched(Home(tmp_path), "broker-1", _NODES[0])
    waits = []
    for _ in range(8):
        watched.retry(done=False)
        waits.append(watched.answer_within_s)
    assert (waits[0], waits[-1]) == (2, 10)


def test_a_start_that_fails_counts_unless_another_command_is_at_work(tmp_path: Path) -> None:
    home = Home(tmp_path)
    (tmp_path / watcher.FOLDER).mkdir()
    one = watcher.Watcher(home)
    one.spec = ClusterSpec("id", "4.2.2", (_NODES[0],), {}, restart="on-failure")
    watched = watcher._Watched(home, "broker-1", _NODES[0])
    ended: Any = SimpleNamespace(poll=lambda: 3)
    with home.lock("up"):
        watched.restarting = ended
        one._restart(watched)
    assert (len(watched.failures), watched.restart_at is not None) == (0, True)
    for failures in range(1, watcher.MOST_RESTARTS + 2):  # a foreign process on the port
        watched.restart_at, watched.restarting = None, ended
        one._restart(watched)
        assert len(watched.failures) == failures
    assert watched.restart_at is None


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM, errno.ESRCH])
def test_without_descriptors_of_processes_they_are_watched_nevertheless(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(_: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    if number == errno.ESRCH:
        with pytest.raises(ProcessLookupError):
            ProcessHandle(os.getpid())
    else:
        assert ProcessHandle(os.getpid()).descriptor is None


def test_a_node_that_fails_again_and_again_stays_dead(tmp_path: Path) -> None:
    home = Home(tmp_path)
    (tmp_path / watcher.FOLDER).mkdir()
    node = Node("broker-1", 1, broker=True, controller=True)
    one = watcher.Watcher(home)
    one.spec = ClusterSpec("id", "4.2.2", (node,), {}, restart="on-failure")
    watched = watcher._Watched(home, node.name, node)
    waits = []
    for _ in range(watcher.MOST_RESTARTS):
        one._plan_restart(watched)
        assert watched.restart_at is not None
        waits.append(round(watched.restart_at - watched.failures[-1]))
    assert waits == [1, 2, 4, 8, 16]
    one._plan_restart(watched)
    assert watched.restart_at is None
    assert watcher.restarts_of(home) == {"broker-1": {"failures": 6, "given_up": True}}


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["Terminating due to java.lang.OutOfMemoryError: Java heap space"], "out of memory: Java heap space"),
        (["# A fatal error", "#  SIGSEGV (0xb) at pc=0x00, pid=1"], "the Java machine crashed: SIGSEGV (0xb)"),
        (
            ["ERROR Error while appending (LogDirFailureChannel)", "java.io.IOException: No space left on device",
             "ERROR Shutdown broker because all log dirs in /x have failed (LogManager)"],
            "the disk is full: No space left on device",
        ),
        (["ERROR Exiting Kafka due to fatal exception (Kafka$)", "a.b.KafkaException: no"], "no (KafkaException)"),
        (["INFO all is well", "a.b.SomeException: caught"], None),
        (["INFO [broker-1] shutting down (KafkaServer)", "java.io.IOException: Connection reset"], None),
        (["java.io.IOException: Connection reset", "ERROR Exiting Kafka (Kafka$)"], None),
    ],
)  # fmt: skip
def test_last_words_name_the_reason(lines: list[str], reason: str | None) -> None:
    assert last_words(lines) == reason


def test_a_wait_status_in_words() -> None:
    assert _ending(3 << 8) == "exit code 3"
    assert _ending(signal.SIGKILL) == "killed by signal 9 (SIGKILL)"
    assert _ending(signal.SIGABRT | 0x80) == "killed by signal 6 (SIGABRT)"
    assert _ending(None) is None


def test_all_services_means_the_console_too() -> None:
    assert meant(("all",)) == ("registry", "connect", "console")


def test_all_services_are_those_that_take_little_memory() -> None:
    assert "spark" not in meant(("all",))
    assert meant(("spark", "all")) == ("registry", "connect", "console", "spark")
    assert meant(("spark",)) == ("spark",)


def test_a_registration_of_the_process_before_is_not_one_of_this_process(tmp_path: Path) -> None:
    log = tmp_path / "broker-1" / "server.log"
    log.parent.mkdir()
    log.write_text(_LINE.format(1), encoding="utf-8")
    watched = watcher._Watched(Home(tmp_path), "broker-1", None)
    registered = watched.registrations.last()
    assert registered
    # It started in the very second in which the one before had registered.
    watched.record = ProcessRecord(4711, registered[0] + 0.3, "marker")
    watched.last_epoch = 11
    assert not watched.is_registered()
    log.write_text(_LINE.format(1) + _LINE.format(2), encoding="utf-8")
    assert watched.is_registered()


def test_a_full_disk_explains_a_log_without_last_words(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node could not log why it ended: that it was killed would be a guess."""
    node = NodeProcess(Home(home), "broker-1")
    node.folder.mkdir(parents=True)
    process = node.process.spawn(
        [sys.executable, "-c", "", node.process.marker], output=node.output, environment=plain_environment()
    )
    process.wait(20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    assert "the disk is full" in str(node.death())
