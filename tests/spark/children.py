"""Other Python processes with Spark sessions of their own (`session_child.py`)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE_S = 600
_ROOT = Path(__file__).parents[2]


@contextmanager
def child(what: str, folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Another Python with a session of its own; whatever happens, it is ended behind the block."""
    command = [sys.executable, "-m", "tests.spark.session_child", what, str(folder), *words]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=_ROOT
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def kill_at_each(points: Iterable[str], module: str, *words: str) -> None:
    """The module is run once for each point, and kills itself there."""
    for number, point in enumerate(points, 1):
        done = subprocess.run(
            [sys.executable, "-m", f"tests.spark.{module}", *words, point, str(number)],
            cwd=_ROOT, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == -signal.SIGKILL, done.stderr


def told(what: str, folder: Path, *words: str) -> list[dict[str, Any]]:
    """What the child said on standard output; that it was silent elsewhere."""
    with child(what, folder, *words) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
    assert err == ""
    assert process.returncode == 0
    return [json.loads(line) for line in out.splitlines()]
