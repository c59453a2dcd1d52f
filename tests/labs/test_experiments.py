"""Labs on the shared cluster, with small values and the same checks; and labs that must notice sabotage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from headrace import Admin
from headrace.cluster import Cluster
from headrace.home import Home
from headrace.labs import every_lab, find_lab
from headrace.labs.lab import Lab
from headrace.labs.result import Entry, LabResult, labs_folder
from headrace.labs.runner import RunOptions, run_labs
from headrace.runtime.waiting import eventually
from headrace.transport import client
from headrace.transport.groups import Groups
from headrace.transport.topics import NewTopic
from tests.labs.commands import require_real

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Some that need neither services nor dead brokers, the waiting ones beside the others; `make labs` runs them all.
_SHARED = ("iris", "storage", "concurrent", "keys", "flush", "transactions")


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
    assert result.verdict == "green", (result.reason, result.trouble and result.trouble.trace)
    assert len(result.checks) >= 5
    assert not result.cluster["own"]


def test_what_is_shown_can_be_typed(results: dict[str, LabResult]) -> None:
    lines = [e.facts["line"] for result in results.values() for e in result.entries if e.kind == "command"]
    assert len(lines) > 40
    for line in lines:
        require_real(line)


def test_nothing_is_left_on_the_cluster(headrace_cluster: Cluster, results: dict[str, LabResult]) -> None:
    assert results
    names = {topic.name for topic in Admin(headrace_cluster).topics()}
    assert not names & {"virginicasetosa", "versicolor", "stored", "keyed", "concurrent", "ledger", "debits", "flushed"}
    with Groups(headrace_cluster) as groups:
        assert not [g.group for g in groups.list() if g.group.startswith("lab-")]


def test_reports_lie_under_the_home(headrace_cluster: Cluster, results: dict[str, LabResult]) -> None:
    folder = labs_folder(Home(headrace_cluster.home.root))
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
    admin.create_topics([NewTopic("two-producers", 1)])
    try:
        red = run(headrace_cluster, "producers")["producers"]
        assert red.trouble
        assert "already there" in red.trouble.problem
        assert len(admin.topic("two-producers").partitions) == 1
    finally:
        admin.delete_topics(["two-producers"])


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
    assert found["producers"].verdict == "green"
