"""What all tests share: the command as a user runs it, and homes that leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from headrace.cluster import Cluster
from headrace.runtime.process import MARKER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.postgres import Server

pytest_plugins = ["pytester"]

_SCRIPT = Path(sys.executable).with_name("headrace")

# A shell starts background jobs with Ctrl-C ignored, and their children inherit that: tests that send it would hang.
signal.signal(signal.SIGINT, signal.default_int_handler)


#: Three processes share the tests (`pytest -n 3`), each with one cluster for all of its own: two compute on Spark while
#: one waits, and the other way round. A folder stays together, because its tests share a browser or a Connect; files in
#: `_BY_FILE` share no more than a cluster and a Spark session. The longest folders come first, so that all end at about
#: the same time.
_FOLDERS = ("spark", "labs", "faults", "browser", "e2e", "services", "docs", "broker", "monitor", "registry", "unit")
_BY_FILE = {"broker", "spark", "unit"}
#: The workers that begin with the tests of Spark. The others leave them for the end: each has to warm up a JVM.
_ON_SPARK = {"gw0", "gw1"}


def _folder(nodeid: str) -> str:
    return nodeid.split("/")[1]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class ByFolder(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            folder = _folder(nodeid)
            return nodeid.partition("::")[0] if folder in _BY_FILE else folder

        def _assign_work_unit(self, node: Any) -> None:
            wants_spark = node.gateway.id in _ON_SPARK
            scopes = sorted(self.workqueue, key=lambda scope: scope.startswith("tests/spark/") != wants_spark)
            self.workqueue.move_to_end(scopes[0], last=False)
            super()._assign_work_unit(node)

    config.option.loadscopereorder = False
    return ByFolder(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that kill brokers come first in a folder: a killed broker reads all of its logs when it starts."""
    items.sort(
        key=lambda item: (
            _FOLDERS.index(_folder(item.nodeid)),
            "headrace_faults" not in getattr(item, "fixturenames", ()),
        )
    )


@dataclass(frozen=True)
class Done:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


class Headrace:
    """`headrace …` in a folder of the test. A traceback is a failure of whichever test provokes it."""

    def __init__(self, folder: Path, script: Path = _SCRIPT) -> None:
        self.folder = folder
        self.script = script

    def __call__(
        self,
        *words: object,
        home: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        timeout_s: float = 200,
    ) -> Done:
        with self.start(*words, home=home, env=env) as process:
            out, err = process.communicate(stdin, timeout=timeout_s)
        assert "Traceback" not in err, err
        assert "inside headrace" not in err, err
        return Done(process.returncode, out, err)

    def start(
        self, *words: object, home: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """The command runs; whoever called ends it."""
        where = ["--home", str(home)] if home else []
        return subprocess.Popen(
            [self.script, *where, *map(str, words)],
            cwd=self.folder,
            env={**environment(), **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def environment() -> dict[str, str]:
    """The user's, less the settings of headrace; the cache stays, so that jars are fetched once."""
    kept = {"HEADRACE_CACHE"}
    return {name: value for name, value in os.environ.items() if name in kept or not name.startswith("HEADRACE_")}


@pytest.fixture
def run(tmp_path: Path) -> Headrace:
    return Headrace(tmp_path)


@pytest.fixture
def make_home(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Names a folder for a cluster; what runs there is taken down after the test, however the test ends."""
    made: list[Path] = []

    def make(name: str) -> Path:
        made.append(tmp_path / name)
        return made[-1]

    yield make
    for home in made:
        take_down(home)


@pytest.fixture
def home(make_home: Callable[[str], Path]) -> Path:
    return make_home("home")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL for all tests that need one."""
    from tests.postgres import running_server

    with running_server() as server:
        yield server


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One session for all tests that need one: a JVM costs seconds, and a process has only one."""
    from headrace.pipeline.spark.classify import SETTINGS
    from headrace.pipeline.spark.session import SessionSpec, start_spark, stop_spark

    try:
        yield start_spark(SessionSpec(folder=tmp_path_factory.mktemp("spark") / "driver", conf=SETTINGS))
    finally:
        stop_spark()


def take_down(home: Path) -> None:
    Cluster(home).down(wipe=True)
    left = processes_of(home)
    for process in left:
        process.kill()
    assert not left, f"left behind by headrace down: {left}"


def processes_of(home: Path) -> list[psutil.Process]:
    """Every live process that names `home` as its owner, whatever headrace believes about it."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if any(word.startswith(f"{MARKER}{home}{os.sep}") for word in words):
            found.append(process)
    return found
