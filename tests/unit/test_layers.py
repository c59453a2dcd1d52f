from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import Headrace

_HEAVY = ("confluent_kafka", "kafka", "pyspark", "psutil", "cryptography", "rich")
_SHOW_HELP = f"""
import sys
sys.argv = ["headrace", *sys.argv[1:]]
from headrace.cli import main
try:
    main()
finally:
    print("loaded:", *[name for name in {_HEAVY} if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize("words", [["--help"], ["up", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", _SHOW_HELP, *words], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "loaded:"


def test_every_command_explains_itself(run: Headrace) -> None:
    listing = run("--help").out
    commands = [line.split()[0] for line in listing.partition("Commands:")[2].splitlines() if line.strip()]
    assert {"up", "down", "status", "start", "stop", "restart", "kill", "pause", "resume", "logs", "doctor",
            "config"} <= set(commands)  # fmt: skip
    for command in commands:
        done = run(command, "--help")
        assert done.code == 0
        assert done.out.startswith(f"Usage: headrace {command}")


def test_the_package_opens_without_its_rooms() -> None:
    code = "import sys, headrace; print([m for m in sys.modules if m.startswith('headrace.')], headrace.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[] ")
