"""A run of labs that is ended from outside leaves nothing behind, and one that is killed is cleaned up after."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from headrace.runtime.process import MARKER
from headrace.runtime.waiting import eventually
from tests.conftest import Headrace, processes_of

_NODES = 4  # three brokers and the watcher


def ended(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=120)
    return process.returncode


def test_a_lab_run_leaves_nothing_behind_however_it_ends(run: Headrace, home: Path) -> None:
    lab = run.start("lab", "run", "quickstart", "--profile", "fast", home=home)
    eventually(lambda: len(processes_of(home)) == _NODES, 120)
    second = run("lab", "run", "quickstart", home=home)
    assert (second.code, f"pid {lab.pid}" in second.err) == (3, True)
    lab.kill()
    ended(lab)
    old = {process.pid for process in processes_of(home)}
    assert len(old) == _NODES
    assert f"{_NODES} running" in json.loads(run("status", "--json", home=home).out)["labs"]
    assert "left by a lab run that was killed" in run("doctor", home=home).out

    # The next run removes it, and is itself ended by SIGTERM while its brokers run.
    lab = run.start("lab", "run", "flush", "concurrent", "--param", "records=1000", home=home)
    eventually((home / "labs" / "concurrent" / "files" / "bcsample.json").is_file, 120)
    assert not old & {process.pid for process in processes_of(home)}
    lab.terminate()
    assert ended(lab) == 130
    assert not processes_of(home)
    assert not list(home.glob("labs/cluster-*"))
    # What was interrupted is red, says so, and is counted as such; also what ran beside the others, for minutes.
    told = [json.loads(line) for line in run("lab", "report", "--json", home=home).out.splitlines()]
    interrupted = ("red", "it was interrupted")
    assert {one["name"]: (one["verdict"], one["reason"]) for one in told} == {
        "concurrent": interrupted,
        "flush": interrupted,
    }
    assert all(one["seconds"] for one in told), "a lab was given up, it did not stop by itself"
    assert re.search("not all checks were made by .*flush", (home / "labs" / "report.html").read_text())


def test_down_removes_what_a_killed_lab_run_has_left(run: Headrace, home: Path) -> None:
    folder = home / "labs" / "groups" / "files"
    folder.mkdir(parents=True)
    (home / "labs" / "cluster-3").mkdir()
    consumer = subprocess.Popen([sys.executable, "-X", f"{MARKER}{folder}", "-c", "import time; time.sleep(600)"])
    eventually(lambda: processes_of(home), 20)
    told = run("status", home=home).out
    assert "labs: 1 running" in told
    done = run("down", home=home)
    assert (done.code, "left by a lab run that was killed" in done.err) == (0, True), done.err
    assert consumer.wait(20) == -9
    assert not list(home.glob("labs/cluster-*"))
