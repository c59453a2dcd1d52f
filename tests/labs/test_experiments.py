"""Labs on the shared cluster, with small values and the same checks; and labs that must notice sabotage."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from headrace import Admin, consume
from headrace.cluster import Cluster
from headrace.home import Home
from headrace.labs import every_lab, find_lab
from headrace.labs.clusters import Clusters
from headrace.labs.lab import Lab
from headrace.labs.result import Entry, LabResult
from headrace.labs.runner import RunOptions, run_labs
from headrace.labs.workbench import Workbench
from headrace.runtime.waiting import eventually
from headrace.transport import client
from headrace.transport.groups import Groups
from headrace.transport.topics import NewTopic
from tests.labs.commands import files_that_nothing_made, require_real

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The first test waits for all labs of the fixture.
pytestmark = pytest.mark.timeout(900)

# Some that need neither services nor dead brokers, the waiting ones beside the others; `make labs` runs them all.
_SHARED = ("quickstart", "iris", "storage", "concurrent", "keys", "flush", "transactions", "customers")
# A machine that is too busy says nothing about times; everything else must hold there too.
_NOT_RED = {"green", "inconclusive"}


class _Silent:
    """Listens to labs and says nothing."""

    def began(self, lab: Lab) -> None: ...

    def told(self, lab: Lab, entry: Entry) -> None: ...

    def ended(self, lab: Lab, result: LabResult) -> None: ...


class _Killer(_Silent):
    """Kills a broker when a lab begins a step."""

    def __init__(self, cluster: Cluster, broker: int, step: str) -> None:
        self.cluster, self.broker, self.step = cluster, broker, step

    def told(self, lab: Lab, entry: Entry) -> None:  # noqa: ARG002 - one lab only
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


@pytest.fixture(scope="module")
def results(headrace_cluster: Cluster, spark: SparkSession) -> dict[str, LabResult]:
    return run(headrace_cluster, *_SHARED, spark=spark)


@pytest.mark.parametrize("name", _SHARED)
def test_the_lab_is_green(results: dict[str, LabResult], name: str) -> None:
    result = results[name]
    assert result.verdict in _NOT_RED, (result.reason, result.trouble and result.trouble.trace)
    assert len(result.checks) >= 5
    assert not result.cluster["own"]


def test_what_is_shown_can_be_typed(results: dict[str, LabResult]) -> None:
    lines = [e.facts["line"] for result in results.values() for e in result.entries if e.kind == "command"]
    assert len(lines) > 40
    for line in lines:
        require_real(line)


def test_files_are_made_by_a_command_before_they_are_named(results: dict[str, LabResult]) -> None:
    for result in results.values():
        lines = [entry.facts["line"] for entry in result.entries if entry.kind == "command"]
        assert not files_that_nothing_made(lines), result.name
    for line in ("headrace produce t a.csv", "headrace produce t ./a.avro", "headrace produce t d/a.parquet"):
        assert len(files_that_nothing_made([line])) == 1
    assert not files_that_nothing_made(["headrace sample iris -o ./a.parquet", "headrace produce t a.parquet"])
    assert not files_that_nothing_made(["seq 9 > a.txt", "headrace lab files avro", "cat a.txt ride.avsc"])


def test_what_a_lab_prints_is_what_a_student_gets(
    headrace_cluster: Cluster, results: dict[str, LabResult], tmp_path: Path
) -> None:
    """The commands of a lab are typed again, in an empty folder; each box is what its command prints."""
    entries = [e for e in results["quickstart"].entries if e.kind in {"command", "output"}]
    student = Workbench("student", headrace_cluster, SimpleNamespace(), tmp_path)
    for at, entry in enumerate(entries):
        if entry.kind == "output":
            assert entries[at - 1].kind == "command"
            continue
        done = student._typed(entry.facts["line"], 120)
        assert done.code == 0, (entry.facts["line"], done.err)
        if at + 1 < len(entries) and entries[at + 1].kind == "output":
            # Three things differ from run to run: the topic's id, which broker has it, and how long it took.
            boxes = [_steady(text) for text in (done.out + done.err, entries[at + 1].facts["text"])]
            assert boxes[0] == boxes[1], entry.facts["line"]
    Admin(headrace_cluster).delete_topics(["quickstart-events"])
    with Groups(headrace_cluster) as groups:
        groups.delete(["lab-quickstart"])


def _steady(text: str) -> str:
    text = re.sub(r"[\w-]{22}", "ID", text)
    text = re.sub(r"(?m)^ +0 +\d+ +\d+ +\d+ ", " 0 ONE ONE ONE ", text)
    return re.sub(r"[\d.,]+ (s|ms|records/s|MB/s|B|kB)\b", "N", text).strip()


def test_nothing_is_left_on_the_cluster(headrace_cluster: Cluster, results: dict[str, LabResult]) -> None:
    assert results
    names = {topic.name for topic in Admin(headrace_cluster).topics()}
    assert not names & {"virginicasetosa", "versicolor", "stored", "keyed", "concurrent", "ledger", "debits", "flushed"}
    with Groups(headrace_cluster) as groups:
        assert not [g.group for g in groups.list() if g.group.startswith("lab-")]


def test_reports_lie_under_the_home(headrace_cluster: Cluster, results: dict[str, LabResult]) -> None:
    folder = headrace_cluster.home.labs
    page = (folder / "report.html").read_text()
    assert all(f'id="{name}"' in page for name in results)
    assert (folder / "iris" / "scatter.light.svg").is_file()


def test_a_wrong_partitioner_turns_keys_red(headrace_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {**client.PRODUCER_DEFAULTS, "partitioner": "consistent_random"}
    monkeypatch.setattr(client, "PRODUCER_DEFAULTS", wrong)
    monkeypatch.setattr("headrace.transport.produce.PRODUCER_DEFAULTS", wrong)
    red = run(headrace_cluster, "keys")["keys"]
    assert red.verdict == "red"
    assert any(check["what"].startswith("partition of key") for check in red.failed)
    assert red.logs


# kafka-python does not close the socket of a broker that refuses it.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_killed_broker_turns_storage_red(headrace_faults: Cluster) -> None:
    red = run(headrace_faults, "storage", listener=_Killer(headrace_faults, 2, "Where are they?"))["storage"]
    assert red.verdict == "red"
    assert any(check["what"] == "what brokers say is what lies on disk" for check in red.failed)
    assert "broker-2" in red.logs


def test_a_changed_constant_turns_the_lab_red(headrace_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.labs.experiments.quickstart._LINES", ("one", "two", "two words\nand a line"))
    red = run(headrace_cluster, "quickstart")["quickstart"]
    assert (red.verdict, red.failed[0]["what"]) == ("red", "records acknowledged")


def test_a_lab_leaves_a_topic_of_the_users_alone(headrace_cluster: Cluster) -> None:
    admin = Admin(headrace_cluster)
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
    Admin(headrace_cluster).create_topics([NewTopic(topic, 1)])
    bench = Workbench("customers", headrace_cluster, SimpleNamespace(), tmp_path)
    try:
        for group in ("customer-group", "lab-customers"):
            list(consume(headrace_cluster, topic, group=group))
        assert bench.group("customer-group") == "customer-group-2"
        # Those are the labs' own, left by a run that was killed or by somebody who typed its commands.
        assert bench.group("lab-customers") == "lab-customers"
        bench.tidy()
        with Groups(headrace_cluster) as groups:
            assert "customer-group" in {group.group for group in groups.list()}
            groups.delete(["customer-group"])
    finally:
        Admin(headrace_cluster).delete_topics([topic])


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
