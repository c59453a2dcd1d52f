"""The built wheel, installed into an empty environment, is the whole product."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import headrace
from tests.conftest import Headrace, processes_of

_PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command([sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(_PROJECT)])
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An environment into which nothing but the wheel was installed, with the locked versions of what it needs."""
    folder = tmp_path_factory.mktemp("empty")
    command([sys.executable, "-m", "venv", str(folder)])
    locked = (_PROJECT / "requirements.lock").read_text(encoding="utf-8")
    versions = re.findall(r"^[\w.\-\[\]]+==[^\s;\\]+", locked, re.MULTILINE)
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(versions), encoding="utf-8")
    command([str(folder / "bin" / "pip"), "install", "--quiet", "-c", str(constraints), str(wheel)])
    yield folder
    shutil.rmtree(folder)  # a gigabyte, which pytest would keep for three runs


def command(words: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_holds_the_package_with_its_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    data = {"runtime/jars.lock", "cluster/log4j2.properties", "py.typed"}
    assert {f"headrace/{name}" for name in data} <= names
    source = {str(path.relative_to(_PROJECT / "src")) for path in (_PROJECT / "src").rglob("*.py")}
    assert source <= names
    assert not [name for name in names if not name.startswith(("headrace/", "headrace-"))]


@pytest.mark.timeout(600)
def test_the_installed_wheel_runs_a_cluster(installed: Path, make_home: Callable[[str], Path], tmp_path: Path) -> None:
    home = make_home("home")
    run = Headrace(tmp_path, installed / "bin" / "headrace")
    assert run("--version").out == f"headrace, version {headrace.__version__}\n"
    up = run("up", "--brokers", 1, home=home)
    assert up.code == 0, up.err
    status = run("status", "--json", home=home).json()
    assert (status["state"], status["bootstrap"]) == ("up", up.out.strip())
    assert run("doctor", home=home).code == 0
    assert run("down", "--wipe", "--yes", home=home).code == 0
    assert not home.exists()
    assert processes_of(home) == []
