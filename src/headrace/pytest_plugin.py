"""pytest fixtures: a real Kafka cluster for anybody's tests, without Docker.

    def test_mine(headrace_cluster, headrace_topic):
        topic = headrace_topic(partitions=3)
        my_producer(headrace_cluster.bootstrap, topic)

The cluster is started once per test run, at the first test that asks for it, in a temporary folder, and removed after
the last. With pytest-xdist all workers share it: the process that distributes the tests owns the folder, and a test
that kills nodes runs while no other test uses the cluster. Topic names are random: nothing is cleaned up between tests.
When a test fails, what every node logged during the test is attached to the report. With `--headrace-bootstrap ADDRESS`
the tests run against a foreign cluster instead, and their topics are deleted there.
"""

from __future__ import annotations

import fcntl
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from headrace.cluster import Cluster
    from headrace.kafka import Connection

_LOG_BYTES_PER_NODE = 20_000
# A pipe ends with the process that holds its other end, also by SIGKILL; its reader then removes the cluster.
_WATCH = """import sys
sys.stdin.read()
from headrace.pytest_plugin import remove
remove(sys.argv[1], keep=bool(sys.argv[2:]))"""
_FOLDER: pytest.StashKey[Path] = pytest.StashKey()
_ENDS: pytest.StashKey[ExitStack] = pytest.StashKey()
_CLUSTER: pytest.StashKey[Any] = pytest.StashKey()
_LOG_SIZES: pytest.StashKey[dict[str, int]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("headrace", "a real Kafka cluster")
    group.addoption("--headrace-brokers", type=int, default=3, help="brokers of the test cluster (default: 3)")
    group.addoption(
        "--headrace-set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="Kafka property of the test cluster",
    )
    group.addoption("--headrace-bootstrap", metavar="ADDRESS", help="use this Kafka instead of starting one")
    group.addoption(
        "--headrace-per-worker", action="store_true", help="a cluster for each worker of pytest-xdist, not one for all"
    )
    group.addoption("--headrace-keep", action="store_true", help="keep the test cluster's folder")


# -- whose cluster it is ------------------------------------------------------------------------------------------


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """pytest-xdist calls this in the process that distributes the tests: the cluster of all workers belongs to it."""
    if not node.config.getoption("--headrace-per-worker"):
        node.workerinput["headrace_folder"] = str(_own_folder(node.config))


def _own_folder(config: pytest.Config) -> Path:
    """The folder of the cluster, made once; when this process of pytest ends, nothing runs there and it is removed."""
    from headrace.runtime import ended_like_ctrl_c

    if _FOLDER not in config.stash:
        config.stash[_FOLDER] = Path(tempfile.mkdtemp(prefix="headrace-test-"))
        ends = ExitStack()
        ends.enter_context(ended_like_ctrl_c(signal.SIGTERM, signal.SIGHUP))
        ends.enter_context(_removed_at_any_end(config.stash[_FOLDER], keep=config.getoption("--headrace-keep")))
        ends.callback(_remove, config)
        config.stash[_ENDS] = ends
        config.add_cleanup(ends.close)
    return config.stash[_FOLDER]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker removes its cluster before it reports its end: pytest-xdist kills it 10 s later."""
    ends = session.config.stash.get(_ENDS, None)
    if ends and hasattr(session.config, "workerinput"):
        ends.close()


def _shared_folder(config: pytest.Config) -> Path | None:
    """The folder of the cluster that all workers share; None outside of a worker."""
    folder = getattr(config, "workerinput", {}).get("headrace_folder")
    return Path(folder) if folder else None


@contextmanager
def _removed_at_any_end(folder: Path, *, keep: bool) -> Iterator[None]:
    """The cluster is removed even if this process is killed meanwhile."""
    words = [sys.executable, "-c", _WATCH, str(folder), *(["keep"] if keep else [])]
    # In a session of its own: a Ctrl-C in the terminal is not for it.
    with subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True):
        yield


def _remove(config: pytest.Config) -> None:
    remove(config.stash[_FOLDER], keep=config.getoption("--headrace-keep"))


def remove(folder: Path | str, *, keep: bool) -> None:
    """Nothing of the test cluster runs, and its folder is gone unless it is to be kept."""
    from headrace.cluster import Cluster

    home = Path(folder) / "home"
    keep = keep or _not_started(Path(folder)).exists()
    if home.exists():
        Cluster(home).down(wipe=not keep)
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)


def _not_started(folder: Path) -> Path:
    """There when the cluster could not be started: the error names logs in the folder, so the folder stays."""
    return folder / "not-started"


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    folder = config.stash.get(_FOLDER, None)
    if folder and (config.getoption("--headrace-keep") or _not_started(folder).exists()):
        terminalreporter.write_line(f"headrace: the folder of the test cluster is kept: {folder}")


@contextmanager
def _locked(file: Path, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    with file.open("a", encoding="utf-8") as handle:
        fcntl.flock(handle, how)
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test that kills nodes of a shared cluster has it for itself."""
    folder, fixtures = _shared_folder(item.config), getattr(item, "fixturenames", ())
    if folder is None or "headrace_cluster" not in fixtures:
        return (yield)
    with _locked(folder / "in-use", fcntl.LOCK_EX if "headrace_faults" in fixtures else fcntl.LOCK_SH):
        return (yield)


# -- fixtures -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def headrace_cluster(request: pytest.FixtureRequest) -> Cluster | Connection:
    """A running cluster with `.bootstrap`; a local one also has the verbs of `headrace.Cluster`."""
    from headrace.cluster import Cluster
    from headrace.errors import HeadraceError
    from headrace.kafka import Connection

    config = request.config
    foreign = config.getoption("--headrace-bootstrap")
    if foreign:
        return Connection(foreign)
    kafka = dict(text.split("=", 1) for text in config.getoption("--headrace-set"))
    folder = _shared_folder(config) or _own_folder(config)
    cluster = Cluster(folder / "home", brokers=config.getoption("--headrace-brokers"), kafka=kafka)
    config.stash[_CLUSTER] = cluster
    with _locked(folder / "starting"):
        try:
            cluster.up()  # by another worker already, perhaps: it can be repeated
        except HeadraceError:
            _not_started(folder).touch()
            raise
    return cluster


@pytest.fixture
def headrace_topic(headrace_cluster: Cluster | Connection) -> Iterator[Callable[..., str]]:
    """Makes a topic with a random name: `headrace_topic(partitions=3, replication=1, **configs)`.

    On a foreign Kafka it is deleted after the test.
    """
    from headrace.kafka import Connection, Kafka, NewTopic

    made: list[str] = []

    def make(partitions: int = 1, replication: int | None = None, **configs: str) -> str:
        name = f"test-{uuid.uuid4().hex[:12]}"
        settings = {key.replace("_", "."): str(value) for key, value in configs.items()}
        with Kafka(headrace_cluster) as admin:
            admin.create_topics([NewTopic(name, partitions, replication, settings)])
        made.append(name)
        return name

    yield make
    if made and isinstance(headrace_cluster, Connection):
        with Kafka(headrace_cluster) as admin:
            if left := [topic.name for topic in admin.topics() if topic.name in made]:
                admin.delete_topics(left)


@pytest.fixture
def headrace_faults(headrace_cluster: Cluster | Connection) -> Iterator[Cluster]:
    """The local cluster, to kill, stop and pause nodes of; after the test every node runs again."""
    from headrace.cluster import Cluster

    if not isinstance(headrace_cluster, Cluster):
        pytest.skip("headrace_faults needs a local cluster: it cannot kill nodes of --headrace-bootstrap")
    yield headrace_cluster
    headrace_cluster.up()


# -- what the nodes logged ----------------------------------------------------------------------------------------


def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[_LOG_SIZES] = {}
    cluster = item.config.stash.get(_CLUSTER, None)
    with suppress(Exception):
        item.stash[_LOG_SIZES] = cluster.log_sizes() if cluster else {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test's report holds what every node logged since the test began."""
    report = yield
    cluster = item.config.stash.get(_CLUSTER, None)
    if not report.failed or cluster is None:
        return report
    with suppress(Exception):
        for name, log in cluster.logged_since(item.stash.get(_LOG_SIZES, {}), _LOG_BYTES_PER_NODE).items():
            report.sections.append((f"headrace {name}", log.decode("utf-8", "replace") or "(nothing was logged)"))
    return report
