"""Commands as a person types them.

Most run inside the test's process: the same parser, the same error boundary, no start-up. Where a broker is gone they
run outside: kafka-python does not close the socket of a refused connection, and Python's warning of that would fail
whichever test happens to run when the socket is collected.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main


@dataclass(frozen=True)
class Ran:
    """What a command did: its exit code, its data, its words."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Shell:
    """`shell("topic", "list")` runs `headrace topic list` against the address."""

    bootstrap: str

    def __call__(self, *words: object, typed: str = "", bootstrap: str | None = None) -> Ran:
        """`typed` is what the person answers; the address can be another, or none if it is empty."""
        address = self.bootstrap if bootstrap is None else bootstrap
        argv = ["headrace", *(["--bootstrap", address] if address else []), *map(str, words)]
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as process, redirect_stdout(out), redirect_stderr(err):
            process.setattr(sys, "argv", argv)
            process.setattr(sys, "stdin", io.StringIO(typed))
            with pytest.raises(SystemExit) as ended:
                main()
        assert "inside headrace" not in err.getvalue(), err.getvalue()
        return Ran(int(ended.value.code or 0), out.getvalue(), err.getvalue())

    def outside(self, *words: object) -> Ran:
        """The same through the console script."""
        script = Path(sys.executable).with_name("headrace")
        ran = subprocess.run(
            [script, "--bootstrap", self.bootstrap, *map(str, words)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "Traceback" not in ran.stderr, ran.stderr
        assert "inside headrace" not in ran.stderr, ran.stderr
        return Ran(ran.returncode, ran.stdout, ran.stderr)
