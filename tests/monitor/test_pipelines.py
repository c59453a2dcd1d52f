"""Pipelines as the watch sees them, from their files alone."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.home import Home
from headrace.kafka import Partition
from headrace.kafka.client import Connection
from headrace.monitor import prometheus_text
from headrace.monitor.pipelines import PipelineWatch
from headrace.monitor.snapshot import PipelineView, Snapshot, TopicView

_RIGHT = """
[pipelines.right]
from   = "orders"
decode = "text"
into   = { delta = "tables/orders" }
"""
_WRONG = """
[pipelines.wrong]
from   = "orders"
decode = "smoke signals"
into   = { delta = "tables/orders" }
"""


def snapshot(*pipelines: PipelineView, ends: tuple[int | None, ...] = (5, 7)) -> Snapshot:
    partitions = tuple(
        Partition(partition=n, leader=1, replicas=(1,), isr=(1,), begin=2, end=end) for n, end in enumerate(ends)
    )
    orders = TopicView(
        name="orders", internal=False, partitions=partitions, replication=1, under_replicated=0, offline=0
    )
    return Snapshot(
        at=0, took_s=0, every_s=2, reachable=True, bootstrap="nowhere", topics={"orders": orders}, pipelines=pipelines
    )


def watch(folder: Path, text: str) -> PipelineWatch:
    (folder / "headrace.toml").write_text(text, encoding="utf-8")
    return PipelineWatch(Home(folder / ".headrace"), Connection("127.0.0.1:1"))


def test_a_pipeline_that_never_ran_has_everything_before_it(tmp_path: Path) -> None:
    watching = watch(tmp_path, _RIGHT)
    (found,) = watching(snapshot(), lambda *_: 12.0)
    assert (found.state, found.lag, found.lag_s, found.ledger) == ("never run", 8, 12.0, None)
    assert [(o.partition, o.offset, o.end, o.lag) for o in found.offsets] == [(0, None, 5, 3), (1, None, 7, 5)]
    assert (found.sources, found.steps, found.sinks) == (("orders",), ("decode text",), ("delta tables/orders",))
    lines = prometheus_text(snapshot(found)).splitlines()
    assert 'headrace_pipeline_lag{pipeline="right",topic="orders",partition="1"} 5' in lines


def test_a_lookup_is_a_step(tmp_path: Path) -> None:
    lookup = 'lookup = { table = "t/zones", on = ["zone"], select = { borough = "borough" } }\n'
    declared = _RIGHT.replace('decode = "text"\n', 'decode = { json = "zone int" }\n' + lookup)
    (found,) = watch(tmp_path, declared)(snapshot(), lambda *_: None)
    assert found.steps == ("decode json", "lookup zones")


def test_the_lag_is_unknown_while_that_of_a_partition_is(tmp_path: Path) -> None:
    (found,) = watch(tmp_path, _RIGHT)(snapshot(ends=(5, None)), lambda *_: None)
    assert found.lag is None


def test_what_is_declared_wrongly_is_shown_with_what_is_wrong(tmp_path: Path) -> None:
    watching = watch(tmp_path, _WRONG + _RIGHT)
    wrong, right = watching(snapshot(), lambda *_: None)
    assert (wrong.name, wrong.state, right.state) == ("wrong", "failed", "never run")
    assert "smoke signals" in (wrong.problem or "")
    file = tmp_path / "headrace.toml"
    file.write_text("[pipelines", encoding="utf-8")
    os.utime(file, ns=(1, 1))
    (broken,) = watching(snapshot(), lambda *_: None)
    assert (broken.name, broken.state) == ("headrace.toml", "failed")
    file.unlink()
    assert watching(snapshot(), lambda *_: None) == ()
