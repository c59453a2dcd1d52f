"""What the watcher reads from logs, and when it stops to start a node again."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from headrace.cluster import watcher
from headrace.cluster.node import _ending, last_words
from headrace.cluster.services import meant
from headrace.cluster.spec import ClusterSpec, Node
from headrace.home import Home
from headrace.runtime.process import ProcessRecord

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
    log.rename(tmp_path / "server.log.0")
    log.write_text(_LINE.format(3), encoding="utf-8")
    assert epoch() == 13


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
