"""What takes longer than it was given is reported, goes on, and can be waited for or ended by the next command."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cluster import Cluster, nodes
from headrace.cluster import spec as plans
from headrace.config import load
from headrace.errors import TimedOut
from headrace.home import Home
from headrace.pipeline.background import Background
from headrace.pipeline.books.folder import PipelineFolder
from headrace.runtime.process import Supervised
from headrace.runtime.waiting import eventually
from tests.conftest import Headrace

# A driver whose batch at work takes as long as the file `gate` is missing, and then ends.
AT_WORK = """
import pathlib, sys, time
from headrace.home import Home
from headrace.pipeline.books.folder import PipelineFolder
with PipelineFolder(Home(pathlib.Path(sys.argv[1])), "slow").lock():
    while not pathlib.Path("gate").exists():
        time.sleep(0.02)
"""

# A process acts on no SIGSTOP while it waits for its child of vfork.
DEAF = """
import ctypes, signal
libc, stack = ctypes.CDLL(None), ctypes.create_string_buffer(65536)
top = ctypes.c_void_p(ctypes.addressof(stack) + 65536)
VM, VFORK, SIGCHLD = 0x100, 0x4000, 17
libc.clone(ctypes.cast(libc.sleep, ctypes.c_void_p), top, VM | VFORK | SIGCHLD, ctypes.c_void_p(60))
signal.pause()
"""


@pytest.fixture
def background(tmp_path: Path) -> Iterator[Background]:
    """A driver that runs the pipeline `slow`."""
    (tmp_path / "headrace.toml").write_text('[pipelines.slow]\nfrom = "t"\ninto = { delta = "tables/slow" }\n')
    home = Home(tmp_path / ".headrace")
    background, folder = Background(home), PipelineFolder(home, "slow")
    folder.create()
    background.folder.mkdir()
    folder.wanted_file.write_text("{}")
    argv = [sys.executable, "-c", AT_WORK, str(home.root), background.process.marker]
    process = background.process.spawn(argv, output=background.log, environment=dict(os.environ))
    try:
        eventually(lambda: folder.holder == process.pid, 20)
        yield background
    finally:
        background.process.kill()


def test_a_long_batch_can_be_waited_for(background: Background, run: Headrace) -> None:
    late = run("pipeline", "stop", "slow", "--timeout", "200ms")
    assert late.code == 1
    assert "slow did not end within 0.2 s" in late.err
    assert "a pipeline ends after the current batch" in late.err
    assert "headrace pipeline stop slow --timeout 1h waits on" in late.err
    again = run("pipeline", "stop", "slow", "--timeout", "0s")
    assert "slow did not end within 0 s" in again.err
    (background.folder / "gate").touch()
    background.stop("slow")
    assert run("pipeline", "stop", "slow").err == "slow did not run\n"


def test_a_long_batch_can_be_ended(background: Background, run: Headrace) -> None:
    assert run("pipeline", "stop", "--all", "--timeout", "0s").code == 1
    ended = run("pipeline", "stop", "slow", "--now")
    assert (ended.code, ended.err) == (0, "slow was stopped in the middle of a batch: its next run repeats it\n")
    assert background.process.find() is None


def test_a_node_that_cannot_be_paused_yet_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path)
    spec = plans.plan(load(Path("no such file")).cluster)
    plans.save(home, spec.with_ports(tuple(range(20_000, 20_006))))
    node = Supervised(home.node("broker-2"))
    node.folder.mkdir()
    process = node.spawn([sys.executable, "-c", DEAF, node.marker], output=tmp_path / "log", environment=os.environ)
    try:
        eventually(process.children, 20)
        monkeypatch.setattr(nodes, "_SIGNAL_TIMEOUT_S", 0.2)
        with pytest.raises(TimedOut, match=r"broker-2 is not paused yet, 0.2 s after SIGSTOP") as raised:
            Cluster(tmp_path).pause(2)
        assert "headrace status shows when it is paused" in (raised.value.hint or "")
        process.children()[0].kill()
        eventually(lambda: node.state == "paused", 20)
        Cluster(tmp_path).resume(2)
    finally:
        node.kill()
