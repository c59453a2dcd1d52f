"""Pipelines and views of a file, checked and run as one graph on a real Kafka."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.pipeline.graph import Graph, GraphObserver, NodeResult
from headrace.runtime import eventually
from tests.conftest import Headrace
from tests.spark.pipelines import Workshop, send

Topic = Callable[..., str]

DECLARED = """
[pipelines.speeds]
from = "<speeds>"
decode = { json = "trip int, speed int" }
into = { delta = "tables/speeds" }

[pipelines.stops]
from = "<stops>"
decode = { json = "trip int, route string" }
into = { delta = "tables/stops" }

[views.busy]
sql = "select route, n from by_route where n > 1"
key = "route"

[views.by_route]
sql = "select route, count(*) as n, sum(speed) as total from speeds join stops using (trip) group by route"
key = "route"
"""
BROKEN = """
[pipelines.strict]
from = "<stops>"
decode = { json = "trip int, route string" }
expect = { "has a route" = { rule = "route is not null", action = "fail" } }
into = { delta = "tables/strict" }

[views.of_strict]
sql = "select route, count(*) as n from strict group by route"
key = "route"
"""

SPEEDS = [{"trip": trip % 9, "speed": trip} for trip in range(60)]
STOPS: list[dict[str, Any]] = [{"trip": trip, "route": "ABC"[trip % 3]} for trip in range(8)]


def by_route(speeds: list[dict[str, Any]], stops: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    routes = {stop["trip"]: stop["route"] for stop in stops}
    known = [row for row in speeds if row["trip"] in routes]
    count = Counter(routes[row["trip"]] for row in known)
    return {r: (n, sum(row["speed"] for row in known if routes[row["trip"]] == r)) for r, n in count.items()}


def test_a_graph_runs_in_order_and_a_failed_branch_stops_only_itself(shop: Workshop, headrace_topic: Topic) -> None:
    topics = {"speeds": headrace_topic(partitions=2), "stops": headrace_topic(partitions=1)}
    send(shop.cluster, topics["speeds"], SPEEDS)
    send(shop.cluster, topics["stops"], [*STOPS, {"trip": 99}])
    shop.declare(DECLARED + BROKEN, **topics)
    graph = Graph.from_file(shop.file, shop.home)

    # Before anything was written, columns are those that the pipelines will make.
    explained = {node.name: node for node in graph.explain(shop.spark)}
    columns = explained["busy"].document()["columns"]
    assert columns == {"busy": {"route": "string", "n": "bigint"}}
    assert explained["busy"].needs == ("by_route",)
    assert not explained["by_route"].full_because

    report = graph.run(shop.cluster, once=True, spark=shop.spark)
    states = {node.name: node.state for node in report.nodes}
    done = dict.fromkeys(("speeds", "stops", "by_route", "busy"), "done")
    assert states == {**done, "strict": "failed", "of_strict": "skipped"}
    assert [node.because for node in report.nodes if node.state == "skipped"] == ["it depends on strict"]
    assert "has a route" in str(report.failed[0].error)

    def compare(speeds: list[dict[str, Any]]) -> None:
        expected = by_route(speeds, STOPS)
        assert {row["route"]: (row["n"], row["total"]) for row in shop.rows("tables/by_route")} == expected
        assert {row["route"]: row["n"] for row in shop.rows("tables/busy")} == {r: n for r, (n, _) in expected.items()}

    compare(SPEEDS)
    late = [{"trip": 1, "speed": 1000}]
    send(shop.cluster, topics["speeds"], late)
    shop.declare(DECLARED, **topics)
    graph = Graph.from_file(shop.file, shop.home)
    # Without `once`, views follow their pipelines until the last of them has ended.
    updated = {node.name: node.update for node in graph.run(shop.cluster, spark=shop.spark).nodes}
    compare([*SPEEDS, *late])
    made = graph.updates("by_route")
    assert [(each.mode, each.keys) for each in made] == [("incremental", 1), ("full", None)]
    assert updated["busy"] is not None
    assert graph.updates("busy")[0].keys == 1
    status = graph.status("by_route")
    assert (status.state, status.behind) == ("finished", {"speeds": 0, "stops": 0})

    plan = shop.pipeline("speeds").plan_rewind("beginning", shop.connection)
    assert plan.consequences[-1] == "views made from its tables follow at their next update: by_route, busy"
    refreshed = graph.refresh("by_route", full=True, spark=shop.spark).nodes
    modes = [(each.name, each.update and each.update.mode) for each in refreshed]
    assert modes == [
        ("by_route", "full"),
        ("busy", "full"),
    ]


@pytest.mark.parametrize("once", [True, False])
def test_a_pipeline_runs_behind_the_tables_that_it_looks_up(shop: Workshop, headrace_topic: Topic, once: bool) -> None:
    topics = {"speeds": headrace_topic(partitions=2), "stops": headrace_topic(partitions=1)}
    send(shop.cluster, topics["speeds"], SPEEDS)
    send(shop.cluster, topics["stops"], STOPS)
    looks_up = """
[pipelines.known]
from = "<stops>"
decode = { json = "trip int, route string" }
lookup = [
  { table = "tables/by_route", on = ["route"], select = { total = "total" } },
  { table = "tables/speeds", on = { trip = "speed" }, select = { of_trip = "trip" } },
]
into = { delta = "tables/known" }
"""
    shop.declare(looks_up + DECLARED, **topics)
    graph = Graph.from_file(shop.file, shop.home)
    # Nothing was written yet, and nothing is wrong.
    explained = {node.name: node for node in graph.explain(shop.spark)}
    columns = {"trip": "int", "route": "string", "total": "bigint", "of_trip": "int"}
    assert explained["known"].document()["columns"]["known"].items() >= columns.items()
    assert explained["known"].looks_up == ("by_route", "speeds")

    report = graph.run(shop.cluster, once=once, spark=shop.spark)
    assert {node.state for node in report.nodes} == {"done"}, report
    totals = {route: total for route, (_, total) in by_route(SPEEDS, STOPS).items()}
    expected = [(stop["trip"], totals[stop["route"]], stop["trip"] % 9) for stop in STOPS]
    assert sorted((row["trip"], row["total"], row["of_trip"]) for row in shop.rows("tables/known")) == expected


def test_a_view_that_failed_follows_again_when_its_tables_have_changed(shop: Workshop, headrace_topic: Topic) -> None:
    topic = headrace_topic(partitions=1)
    send(shop.cluster, topic, [{"trip": 1, "speed": 5}, {"trip": 2, "speed": 0}])
    shop.declare(
        """
[pipelines.speeds]
from = "<speeds>"
trigger = "1 second"
decode = { json = "trip int, speed int" }
into = { delta = "tables/speeds", upsert = { key = ["trip"] } }

[views.times]
sql = "select trip, element_at(array(50, 40, 30, 25, 20), speed) as time from speeds"
key = "trip"

[views.longest]
sql = "select 1 as one, max(time) as time from times"
key = "one"
""",
        speeds=topic,
    )
    ended: list[tuple[str, str]] = []

    def note(result: NodeResult) -> None:
        # Until the first table is written, views have nothing to do.
        if result.state == "failed" or ended:
            ended.append((result.name, result.state))
        if not ended:
            return
        if ended[-1] == ("longest", "skipped"):
            send(shop.cluster, topic, [{"trip": 2, "speed": 4}])
        elif ended[-1] == ("longest", "done"):
            os.kill(os.getpid(), signal.SIGINT)

    graph = Graph.from_file(shop.file, shop.home)
    report = graph.run(shop.cluster, spark=shop.spark, observer=GraphObserver(on_end=note))
    assert [each for each in ended if each[0] != "speeds"] == [
        ("times", "failed"), ("longest", "skipped"), ("times", "done"), ("longest", "done"),
    ]  # fmt: skip
    assert not report.failed, report
    assert {row["trip"]: row["time"] for row in shop.rows("tables/times")} == {1: 20, 2: 25}
    assert [row["time"] for row in shop.rows("tables/longest")] == [25]


def test_ctrl_c_a_second_time_waits_for_no_batch(shop: Workshop, headrace_topic: Topic) -> None:
    topic = headrace_topic(partitions=1)
    send(shop.cluster, topic, SPEEDS)
    (shop.folder / "slow_step.py").write_text(
        "import time\nfrom pyspark.sql.functions import udf\n"
        "def slow(frame):\n"
        "    nap = udf(lambda n: time.sleep(600) or n, 'int', useArrow=False)\n"
        "    return frame.withColumn('trip', nap('trip'))\n",
        encoding="utf-8",
    )
    shop.declare(
        """
[pipelines.speeds]
from = "<speeds>"
decode = { json = "trip int, speed int" }
select = { python = "slow_step:slow" }
into = { delta = "tables/speeds" }
""",
        speeds=topic,
    )
    said: list[str] = []

    def interrupt() -> None:
        eventually(lambda: shop.spark.sparkContext.statusTracker().getActiveJobsIds(), 120)
        os.kill(os.getpid(), signal.SIGINT)
        eventually(lambda: any("stopping after" in text for text in said), 30)
        os.kill(os.getpid(), signal.SIGINT)

    graph = Graph.from_file(shop.file, shop.home)
    threading.Thread(target=interrupt, daemon=True).start()
    observer = GraphObserver(say=lambda _, text: said.append(text))
    try:
        with pytest.raises(KeyboardInterrupt):
            graph.run(shop.cluster, once=True, spark=shop.spark, observer=observer)
        assert shop.spark.sparkContext.statusTracker().getActiveJobsIds()
    finally:
        shop.spark.sparkContext.cancelAllJobs()
        for query in shop.spark.streams.active:
            query.stop()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("sum(speed)", "sum(sped)", "line 17: A column, variable, or function parameter with name `sped`"),
        ("sum(speed)", "sum(array(route))", "line 17: "),
        ("select route, n from by_route", "select route, count from by_route", "line 13: "),
        ('sql = "select route, n from', 'sql = "insert into x select route, n from', "line 13: "),
    ],
)
def test_wrong_columns_and_types_are_found_before_anything_runs(shop: Workshop, old: str, new: str, words: str) -> None:
    shop.declare(DECLARED.replace(old, new), speeds="speeds", stops="stops")
    with pytest.raises(ConfigError) as caught:
        Graph.from_file(shop.file, shop.home).explain(shop.spark)
    assert f"headrace.toml, {words}" in str(caught.value)


def test_the_commands_of_a_graph(shop: Workshop, run: Headrace, headrace_topic: Topic) -> None:
    topics = {"speeds": headrace_topic(partitions=2), "stops": headrace_topic(partitions=1)}
    send(shop.cluster, topics["speeds"], SPEEDS)
    send(shop.cluster, topics["stops"], [*STOPS, {"trip": 99}])
    shop.declare(DECLARED + BROKEN, **topics)
    where = ("--file", shop.file, "--bootstrap", shop.cluster.bootstrap)

    drawn = run("pipeline", "explain", *where)
    assert drawn.code == 0, drawn.err
    assert "view by_route\n  │  reads speeds, stops\n  │  updated by the keys that changed\n" in drawn.out
    assert "└─▶ by_route (route string, n bigint, total bigint)\n        └─▶ busy" in drawn.out

    done = run("pipeline", "run", "--once", *where)
    assert done.code == 1
    assert "error: 1 node of 6 failed: strict" in done.err
    assert "of_strict" in done.out

    book = json.loads(run("pipeline", "ledger", "by_route", "--json", *where).out)
    (update,) = book["updates"]
    assert (update["mode"], update["rows_written"], update["why"]) == ("full", 3, "it is the first update")
    assert "by_route: finished, up to date" in run("pipeline", "status", "by_route", *where).err
    listed = {row["name"]: row for row in json.loads(run("pipeline", "list", "--json", *where).out)}
    assert (listed["by_route"]["from"], listed["by_route"]["trigger"]) == ("speeds, stops", "view")
    refused = run("pipeline", "refresh", "speeds", "--full", *where)
    assert refused.code == 2
    assert "nothing was changed: the command cannot ask without a terminal" in refused.err
    assert "· tables/speeds: it is emptied; its rows stay in version 0" in refused.err
    assert "· recomputed afterwards: by_route, busy\nmake them again?" in refused.err
    head = json.loads(run("table", "head", "busy", "--json", home=shop.home.root).out.splitlines()[0])
    assert set(head) == {"route", "n"}
