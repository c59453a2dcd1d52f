"""Every lab, with small values and the same checks; its commands, typed again; and labs that must notice sabotage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from headrace import Kafka, consume
from headrace.cluster import Cluster
from headrace.home import Home
from headrace.kafka import client
from headrace.kafka.model import NewTopic
from headrace.labs import NAMES, every_lab, find_lab
from headrace.labs.clusters import OWN_SETTINGS, Clusters
from headrace.labs.lab import Lab
from headrace.labs.result import Entry, LabResult
from headrace.labs.runner import RunOptions, run_labs
from headrace.labs.workbench import Workbench
from headrace.runtime.waiting import eventually
from tests.conftest import take_down
from tests.labs.commands import files_that_nothing_made, require_real
from tests.labs.student import Student, same_shape

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The first test of a cluster waits for all labs that run on it.
pytestmark = pytest.mark.timeout(900)

_SHARED = [lab.name for lab in every_lab() if not lab.needs.faults]
_FAULTS = [lab.name for lab in every_lab() if lab.needs.faults]
# A machine that is too busy says nothing about times; everything else must hold there too.
_NOT_RED = {"green", "inconclusive"}

# Why the commands of a lab are not typed again by `test_what_a_lab_prints_is_what_a_student_gets`.
_NOT_TYPED = {
    **dict.fromkeys(_FAULTS, "which node it kills, and when, depends on which one leads"),
    "breadcrumbs": "its commands start Spark; tests/e2e types those of the same example",
    "connect": "it waits for the worker between commands",
    "console": "a browser and curl ask the console; tests/browser and tests/monitor do",
    "iris": "its commands start Spark and a second cluster",
    "rebalance": "consumers are killed when the group has settled, which no command waits for",
    "taxi": "its commands start Spark",
}
# Commands that are part of a lab and not typed again, with the reason.
_NOT_TYPED_COMMANDS = {
    "headrace console": "opens a browser",
    "headrace up --brokers 3": "the cluster runs",
}


class _Silent:
    """Listens to labs and says nothing."""

    def began(self, lab: Lab) -> None: ...

    def entry(self, lab: Lab, entry: Entry) -> None: ...

    def ended(self, lab: Lab, result: LabResult) -> None: ...


class _Killer(_Silent):
    """Kills a broker when a lab begins a step."""

    def __init__(self, cluster: Cluster, broker: int, step: str) -> None:
        self.cluster, self.broker, self.step = cluster, broker, step

    def entry(self, lab: Lab, entry: Entry) -> None:  # noqa: ARG002 - one lab only
        if entry.facts.get("title") == self.step:
            self.cluster.kill(self.broker)


def run(
    cluster: Cluster, *names: str, spark: SparkSession | None = None, listener: _Silent | None = None
) -> dict[str, LabResult]:
    # Tests before this one may have killed a broker: labs take the running cluster only if it is whole.
    eventually(lambda: cluster.status().state == "up", 60)
    options = RunOptions(profile="fast", spark=spark)
    results = run_labs(Home(cluster.home.root), every_lab(names), options, listener or _Silent())
    return {result.name: result for result in results}


def selected(request: pytest.FixtureRequest, names: Sequence[str]) -> list[str]:
    """Those of the labs whose tests will run: `pytest -k keys` runs one."""
    calls = [item.callspec for item in request.session.items if hasattr(item, "callspec")]
    wanted = {call.params.get("name") for call in calls}
    return [name for name in names if name in wanted]


def require_not_red(result: LabResult) -> None:
    """It holds what it says, and its commands can be typed, in order."""
    assert result.verdict in _NOT_RED, (result.reason, result.trouble and result.trouble.trace)
    assert len(result.checks) >= 5
    lines = [entry.facts["line"] for entry in result.entries if entry.kind == "command"]
    for line in lines:
        require_real(line)
    assert not files_that_nothing_made(lines)


@pytest.fixture(scope="class")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with all services, for labs."""
    home = tmp_path_factory.mktemp("labs") / ".headrace"
    cluster = Cluster(home, brokers=3, kafka=OWN_SETTINGS, services=("registry", "connect", "console"))
    try:
        cluster.up()
        yield cluster
    finally:
        take_down(home)


@pytest.fixture(scope="class")
def results(request: pytest.FixtureRequest, cluster: Cluster, spark: SparkSession) -> dict[str, LabResult]:
    return run(cluster, *selected(request, _SHARED), spark=spark)


class TestOnOneCluster:
    """Every lab that kills nothing, on one cluster with all services, and then its commands as a student types them."""

    @pytest.mark.parametrize("name", _SHARED)
    def test_the_lab_is_not_red(self, results: dict[str, LabResult], name: str) -> None:
        require_not_red(results[name])
        assert not results[name].cluster["own"]

    def test_nothing_is_left_on_the_cluster(self, cluster: Cluster, results: dict[str, LabResult]) -> None:
        assert results
        with Kafka(cluster) as kafka:
            left = [topic.name for topic in kafka.topics()]
            # The writers of pipelines keep their marks there for good.
            assert not [name for name in left if not name.startswith(("connect-", "headrace."))]
            assert not [group.group for group in kafka.groups.list() if group.group.startswith("lab-")]

    def test_reports_lie_under_the_home(self, cluster: Cluster, results: dict[str, LabResult]) -> None:
        folder = cluster.home.labs
        page = (folder / "report.html").read_text()
        assert all(f'id="{name}"' in page for name in results)
        assert (folder / "iris" / "scatter.light.svg").is_file()

    @pytest.mark.parametrize("name", [name for name in NAMES if name not in _NOT_TYPED])
    def test_what_a_lab_prints_is_what_a_student_gets(
        self, cluster: Cluster, results: dict[str, LabResult], tmp_path: Path, name: str
    ) -> None:
        """The commands of a lab are typed again, in an empty folder; each box is what its command prints."""
        entries = [e for e in results[name].entries if e.kind in {"command", "output"}]
        with Student(tmp_path, cluster.home.root) as student:
            for entry, following in pairwise([*entries, Entry("say", {})]):
                if entry.kind == "output" or (line := entry.facts["line"]) in _NOT_TYPED_COMMANDS:
                    continue
                done = student.types(line)
                assert done.code == entry.facts.get("code", 0), (line, done.err)
                if following.kind == "output":
                    assert same_shape(following.facts["text"], done.out + done.err), (line, done, following)


@pytest.fixture(scope="module")
def fault_results(request: pytest.FixtureRequest, headrace_cluster: Cluster) -> dict[str, LabResult]:
    return run(headrace_cluster, *selected(request, _FAULTS))


@pytest.mark.parametrize("name", _FAULTS)
def test_a_lab_that_kills_nodes_is_not_red(fault_results: dict[str, LabResult], name: str) -> None:
    require_not_red(fault_results[name])
    assert fault_results[name].cluster["own"]


def test_a_file_that_no_command_has_made_is_found() -> None:
    for line in ("headrace produce t a.csv", "headrace produce t ./a.avro", "headrace produce t d/a.parquet"):
        assert len(files_that_nothing_made([line])) == 1
    assert not files_that_nothing_made(["headrace sample iris -o ./a.parquet", "headrace produce t a.parquet"])
    assert not files_that_nothing_made(["seq 9 > a.txt", "headrace lab files avro", "cat a.txt ride.avsc"])


def test_a_wrong_partitioner_turns_keys_red(headrace_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {**client.PRODUCER_DEFAULTS, "partitioner": "consistent_random"}
    monkeypatch.setattr(client, "PRODUCER_DEFAULTS", wrong)
    monkeypatch.setattr("headrace.kafka.write.producer.PRODUCER_DEFAULTS", wrong)
    red = run(headrace_cluster, "keys")["keys"]
    assert red.verdict == "red"
    assert any(check["what"].startswith("partition of key") for check in red.failed)
    assert red.logs


# kafka-python does not close the socket of a broker that refuses it.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_killed_broker_turns_storage_red(headrace_faults: Cluster) -> None:
    red = run(headrace_faults, "storage", listener=_Killer(headrace_faults, 2, "Where are they?"))["storage"]
    assert red.verdict == "red"
    assert any(check["what"] == "the brokers' sizes are those of the files on disk" for check in red.failed)
    assert "broker-2" in red.logs


def test_a_changed_constant_turns_the_lab_red(headrace_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.labs.experiments.quickstart._LINES", ("one", "two", "two words\nand a line"))
    red = run(headrace_cluster, "quickstart")["quickstart"]
    assert (red.verdict, red.failed[0]["what"]) == ("red", "records acknowledged")


def test_a_lab_leaves_a_topic_of_the_users_alone(headrace_cluster: Cluster) -> None:
    admin = Kafka(headrace_cluster)
    admin.create_topics([NewTopic("two-producers", 1), NewTopic("versicolor", 1)])
    try:
        # A name that cannot be another one: it would run on a cluster of its own.
        clusters = Clusters(Home(headrace_cluster.home.root))
        assert clusters._users(find_lab("iris").needs, ()) is None
        assert clusters._users(find_lab("iris").needs, ["versicolor"]) is not None
        assert clusters._users(find_lab("producers").needs, ()) is not None
        # It takes another name, and removes that one.
        assert run(headrace_cluster, "producers")["producers"].verdict in _NOT_RED
        assert len(admin.topic("two-producers").partitions) == 1
        assert "two-producers-2" not in {topic.name for topic in admin.topics()}
    finally:
        admin.delete_topics(["two-producers", "versicolor"])


def test_a_lab_leaves_a_group_of_the_users_alone(headrace_cluster: Cluster, tmp_path: Path) -> None:
    topic = "of-a-user"
    Kafka(headrace_cluster).create_topics([NewTopic(topic, 1)])
    bench = Workbench("customers", headrace_cluster, SimpleNamespace(), tmp_path)
    try:
        for group in ("customer-group", "lab-customers"):
            list(consume(headrace_cluster, topic, group=group))
        assert bench.group("customer-group") == "customer-group-2"
        # Those are the labs' own, left by a run that was killed or by somebody who typed its commands.
        assert bench.group("lab-customers") == "lab-customers"
        bench.tidy()
        with Kafka(headrace_cluster) as kafka:
            assert "customer-group" in {group.group for group in kafka.groups.list()}
            kafka.groups.delete(["customer-group"])
    finally:
        Kafka(headrace_cluster).delete_topics([topic])


def test_an_exception_inside_a_lab_is_told_and_ends_only_that_lab(
    headrace_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Any) -> None:
        raise ZeroDivisionError("on purpose")

    lab = find_lab("quickstart")
    broken.__module__ = lab.run.__module__
    monkeypatch.setattr("headrace.labs.experiments.quickstart.LAB", Lab(lab.document, lab.rows, broken))
    found = run(headrace_cluster, "quickstart", "producers")
    assert found["quickstart"].trouble
    assert "on purpose" in found["quickstart"].trouble.problem
    assert "test_experiments" in (found["quickstart"].trouble.trace or "")
    assert found["producers"].verdict in _NOT_RED
