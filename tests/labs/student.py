"""A student: a shell in a folder of its own, in which the commands of a lab are typed one after another."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from itertools import count, groupby
from pathlib import Path
from typing import Self

from headrace import eventually
from tests.conftest import Done, environment


class Student:
    """Variables and background jobs live from one command to the next; behind the block nothing of them runs."""

    def __init__(self, folder: Path, home: Path) -> None:
        self._notes = folder / "notes"
        self._desk = folder / "desk"
        for each in (self._notes, self._desk, folder / "bin"):
            each.mkdir(parents=True)
        (self._desk / ".headrace").symlink_to(home)
        for name, program in (("headrace", "-m headrace"), ("python", "")):
            script = folder / "bin" / name
            script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {program} "$@"\n', encoding="utf-8")
            script.chmod(0o700)
        self._shell = subprocess.Popen(
            ["sh"], cwd=self._desk, stdin=subprocess.PIPE, text=True, start_new_session=True,
            env={**environment(), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "COLUMNS": "110"},
        )  # fmt: skip
        self._numbers = count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.communicate()

    def types(self, line: str, within_s: float = 120) -> Done:
        """How the command ended and what it printed."""
        at = self._notes / str(next(self._numbers))
        at.with_suffix(".sh").write_text(line, encoding="utf-8")
        code = at.with_suffix(".code")
        assert self._shell.stdin
        self._shell.stdin.write(
            f'{{ eval "$(cat {at}.sh)"; }} > {at}.out 2> {at}.err < /dev/null; echo $? > {at}.now; mv {at}.now {code}\n'
        )
        self._shell.stdin.flush()
        eventually(code.exists, within_s)
        out, err = (at.with_suffix(end).read_text(encoding="utf-8", errors="replace") for end in (".out", ".err"))
        return Done(int(code.read_text()), out, err)


def _fields(document: object) -> str:
    """The names in a JSON document: which record comes first is chance."""
    if isinstance(document, dict):
        return "{" + ", ".join(f"{name}: {_fields(value)}" for name, value in document.items()) + "}"
    return "[]" if isinstance(document, list) else "…"


_LEFT_OUT = re.compile(r"… [\d,]+ more lines")


def same_shape(box: str, printed: str) -> bool:
    """True if a command printed what the box of the lab shows, but for numbers, times and ids.

    A long output was cut: its beginning must agree. Lines that differ in numbers only count as one: how many partitions
    got records without a key is chance.
    """
    expected, seen = box.splitlines(), printed.splitlines()
    if _LEFT_OUT.fullmatch(expected[-1]):
        expected = expected[:-1]
        seen = seen[: len(expected)]
    return _shapes(expected) == _shapes(seen)


def _shapes(lines: list[str]) -> list[str]:
    return [shape for shape, _ in groupby(map(_shape, lines))]


def _shape(line: str) -> str:
    if line.startswith("{"):
        with suppress(ValueError):
            return _fields(json.loads(line))
    line = re.sub(r"(?<![\w-])[\w-]{22}(?![\w-])", "ID", line)
    line = re.sub(r"\d[\d,.]*", "N", line)
    line = re.sub(r"N (s|ms|min|B|kB|MB|GB)\b", "N UNIT", line)
    line = re.sub(r"N(, N)+", "N", line)
    line = re.sub(r"\brecords\b", "record", line)
    return " ".join(line.split())
