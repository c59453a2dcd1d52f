"""pytest fixtures: a real Kafka cluster for anybody's tests, without Docker.

    def test_mine(headrace_cluster, headrace_topic):
        topic = headrace_topic(partitions=3)
        my_producer(headrace_cluster.bootstrap, topic)

The cluster is started once per test run, at the first test that asks for it, in a temporary folder, and removed after
the last. Topic names are random: nothing is cleaned up between tests. When a test fails, what every node logged during
the test is attached to the report. With `--headrace-bootstrap ADDRESS` the tests run against a foreign cluster instead.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
import threading
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from headrace.cluster import Cluster
    from headrace.transport.client import Connection

_LOG_BYTES_PER_NODE = 20_000


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
    group.addoption("--headrace-keep", action="store_true", help="keep the test cluster's folder")


@pytest.fixture(scope="session")
def headrace_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster | Connection]:
    """A running cluster with `.bootstrap`; a local one also has the verbs of `headrace.Cluster`."""
    from headrace.cluster import Cluster
    from headrace.transport.client import Connection

    foreign = request.config.getoption("--headrace-bootstrap")
    if foreign:
        yield Connection(foreign)
        return
    kafka = dict(text.split("=", 1) for text in request.config.getoption("--headrace-set"))
    folder = Path(tempfile.mkdtemp(prefix="headrace-test-"))
    cluster = Cluster(folder / "home", brokers=request.config.getoption("--headrace-brokers"), kafka=kafka)
    request.config.stash[_CLUSTER] = cluster
    keep = request.config.getoption("--headrace-keep")
    with _ended_like_ctrl_c(signal.SIGTERM, signal.SIGHUP):
        try:
            cluster.up()
            yield cluster
        finally:
            cluster.down(wipe=not keep)
            if not keep:
                shutil.rmtree(folder)


@contextmanager
def _ended_like_ctrl_c(*signals: signal.Signals) -> Iterator[None]:
    """Whoever ends the test run from outside gets the clean end that Ctrl-C gets: no broker stays behind.

    A signal that somebody else takes care of is left to them.
    """
    ours: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():  # only there may signals be taken
        ours = [number for number in signals if signal.getsignal(number) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def headrace_topic(headrace_cluster: Cluster | Connection) -> Callable[..., str]:
    """Makes a topic with a random name: `headrace_topic(partitions=3, replication=1, **configs)`."""
    from headrace.transport.admin import Admin, NewTopic

    def make(partitions: int = 1, replication: int | None = None, **configs: str) -> str:
        name = f"test-{uuid.uuid4().hex[:12]}"
        settings = {key.replace("_", "."): str(value) for key, value in configs.items()}
        Admin(headrace_cluster).create_topics([NewTopic(name, partitions, replication, settings)])
        return name

    return make


@pytest.fixture
def headrace_faults(headrace_cluster: Cluster | Connection) -> Iterator[Cluster]:
    """The local cluster, to kill, stop and pause nodes of; after the test every node runs again."""
    from headrace.cluster import Cluster

    if not isinstance(headrace_cluster, Cluster):
        pytest.fail("headrace_faults needs a local cluster: it cannot kill nodes of --headrace-bootstrap")
    yield headrace_cluster
    headrace_cluster.up()


_CLUSTER: pytest.StashKey[Any] = pytest.StashKey()
_MARKS: pytest.StashKey[dict[str, tuple[Path, int]]] = pytest.StashKey()


def _log_ends(cluster: Cluster) -> dict[str, tuple[Path, int]]:
    ends: dict[str, tuple[Path, int]] = {}
    try:
        for name in cluster.nodes:
            path = cluster.log(name)
            ends[name] = (path, path.stat().st_size if path.exists() else 0)
    except Exception:
        return ends
    return ends


def pytest_runtest_setup(item: pytest.Item) -> None:
    cluster = item.config.stash.get(_CLUSTER, None)
    item.stash[_MARKS] = _log_ends(cluster) if cluster else {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test's report holds what every node logged since the test began."""
    report = yield
    cluster = item.config.stash.get(_CLUSTER, None)
    if not report.failed or cluster is None:
        return report
    began = item.stash.get(_MARKS, {})
    for name, (path, _) in _log_ends(cluster).items():
        report.sections.append((f"headrace {name}", _since(path, began.get(name, (path, 0))[1])))
    return report


def _since(path: Path, offset: int) -> str:
    try:
        with path.open("rb") as file:
            # A rotated log is shorter than it was; then all of it is new.
            size = path.stat().st_size
            file.seek(max(offset if offset <= size else 0, size - _LOG_BYTES_PER_NODE))
            return file.read().decode("utf-8", errors="replace") or "(nothing was logged)"
    except OSError as error:
        return f"({error})"
