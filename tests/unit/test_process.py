"""Who may be signalled: only a process whose pid, start time and marker are those of the record."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from headrace.home import Home, write_json
from headrace.runtime.process import Supervised, plain_environment, strays
from headrace.runtime.waiting import eventually
from tests.conftest import Headrace

_PAUSE = "import signal; signal.pause()"


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    """A process under care, started the way nodes are."""
    one = Supervised(tmp_path)
    argv = [sys.executable, "-c", _PAUSE, one.marker]
    process = one.spawn(argv, output=tmp_path / "out.log", environment=plain_environment())
    eventually(process.cmdline, 30)  # a program that has just begun has none yet
    yield one
    if process.is_running():
        process.kill()


@pytest.fixture
def foreign() -> Iterator[subprocess.Popen[bytes]]:
    """A process that headrace did not start."""
    with subprocess.Popen(["sleep", "300"]) as process:
        yield process
        process.kill()


def test_a_process_is_seen_through_its_life(supervised: Supervised) -> None:
    states = [supervised.state]
    assert supervised.signal(signal.SIGSTOP)
    eventually(lambda: supervised.state == "paused", 10)
    assert supervised.kill()
    states.append(supervised.state)
    assert not supervised.kill()
    supervised.forget()
    states.append(supervised.state)
    assert states == ["running", "dead", "stopped"]


def test_its_children_die_with_it(tmp_path: Path) -> None:
    one = Supervised(tmp_path)
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{_PAUSE}'])"
    process = one.spawn([sys.executable, "-c", parent, one.marker], output=tmp_path / "o", environment={})
    [child] = eventually(process.children, 20)
    one.kill()
    try:
        eventually(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, 10)
    finally:
        with suppress(psutil.NoSuchProcess):
            child.kill()


@pytest.mark.parametrize("shift_s", [-3600, 3600])
def test_a_pid_that_was_handed_out_again_is_left_alone(supervised: Supervised, shift_s: float) -> None:
    process = supervised.find()
    assert process is not None
    record = {"pid": process.pid, "started": process.create_time() + shift_s, "marker": supervised.marker}
    write_json(supervised.record_file, record)
    assert supervised.state == "dead"
    assert not supervised.kill()
    assert process.is_running()


@pytest.mark.parametrize("marker", ["its own", "300", "sleep"])
def test_a_forged_record_harms_nobody(tmp_path: Path, foreign: subprocess.Popen[bytes], marker: str) -> None:
    one = Supervised(tmp_path)
    started = psutil.Process(foreign.pid).create_time()
    word = one.marker if marker == "its own" else marker
    write_json(one.record_file, {"pid": foreign.pid, "started": started, "marker": word})
    assert one.find() is None
    assert not one.signal(signal.SIGKILL)
    assert foreign.poll() is None


@pytest.mark.parametrize("text", ["", "garbage", "[]", "{}", '{"pid": "x", "started": 0, "marker": ""}'])
def test_a_damaged_record_is_no_record(supervised: Supervised, text: str) -> None:
    process = supervised.find()
    supervised.record_file.write_text(text, encoding="utf-8")
    assert supervised.state == "stopped"
    assert (process, supervised.folder) in list(strays())


def test_a_process_without_record_is_a_stray(supervised: Supervised) -> None:
    process = supervised.find()
    assert process not in [found for found, _ in strays()]
    supervised.forget()
    assert (process, supervised.folder) in list(strays())


def test_a_command_line_without_marker_is_not_started(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="lacks its marker"):
        Supervised(tmp_path).spawn(["sleep", "300"], output=tmp_path / "out", environment={})


def test_java_gets_no_options_behind_our_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xmx1m")
    monkeypatch.setenv("LC_ALL", "C")
    environment = plain_environment()
    assert "JAVA_TOOL_OPTIONS" not in environment
    assert environment["LC_ALL"] == "C.UTF-8"


def test_the_doctor_leaves_a_running_lab_of_another_home_alone(tmp_path: Path, run: Headrace) -> None:
    labs = Home(tmp_path / "theirs" / "labs")
    labs.create()
    console = Supervised(labs.root / "console")
    console.folder.mkdir()
    (tmp_path / "ours").mkdir()
    process = console.spawn(
        [sys.executable, "-c", _PAUSE, console.marker],
        output=tmp_path / "out.log", environment=plain_environment(),
    )  # fmt: skip
    try:
        eventually(process.cmdline, 30)
        console.forget()
        with labs.lock("running labs"):
            assert f"pid {process.pid}" not in run("doctor", home=tmp_path / "ours").out
        assert f"pid {process.pid} runs without a record" in run("doctor", home=tmp_path / "ours").out
    finally:
        process.kill()
