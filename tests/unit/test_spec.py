from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.cluster import spec as plans
from headrace.cluster.spec import ClusterSpec, plan
from headrace.config import ClusterConfig, load
from headrace.errors import ConfigError, SetupError, UsageError
from headrace.home import Home


def configured(**changes: Any) -> ClusterConfig:
    return replace(load(Path("no such file")).cluster, **changes)


def planned(**changes: Any) -> ClusterSpec:
    spec = plan(configured(**changes))
    return spec.with_ports(tuple(range(9092, 9092 + len(spec.brokers) + len(spec.voters))))


@pytest.mark.parametrize("brokers", [0, -1, 10, 100])
def test_a_number_of_brokers_that_cannot_be_is_refused(brokers: int) -> None:
    with pytest.raises(UsageError, match=f"invalid number of brokers: {brokers}") as raised:
        planned(brokers=brokers)
    assert raised.value.why == "1 to 9 are possible on one machine"


@pytest.mark.parametrize("controllers", [-1, 10])
def test_a_number_of_controllers_that_cannot_be_is_refused(controllers: int) -> None:
    with pytest.raises(UsageError, match=f"invalid number of separate controllers: {controllers}"):
        planned(controllers=controllers)


@pytest.mark.parametrize(("brokers", "voters"), [(1, 1), (2, 1), (3, 3), (4, 3), (9, 3)])
def test_the_first_brokers_are_the_voters(brokers: int, voters: int) -> None:
    spec = planned(brokers=brokers)
    assert [node.node_id for node in spec.brokers] == list(range(1, brokers + 1))
    assert [node.node_id for node in spec.voters] == list(range(1, voters + 1))


def test_separate_controllers_are_the_only_voters() -> None:
    spec = planned(brokers=2, controllers=3)
    assert [node.name for node in spec.voters] == ["controller-1", "controller-2", "controller-3"]
    assert [node.roles for node in spec.nodes] == ["controller"] * 3 + ["broker"] * 2


def test_ids_of_controllers_never_meet_ids_of_brokers() -> None:
    spec = planned(brokers=2, controllers=2, node_ids=(1001, 1005))
    assert [node.node_id for node in spec.nodes] == [1006, 1007, 1001, 1005]


def test_node_ids_name_the_brokers() -> None:
    spec = planned(node_ids=(101, 205, 7))
    assert [node.name for node in spec.brokers] == ["broker-101", "broker-205", "broker-7"]
    assert spec.node(205) is spec.node("205") is spec.node("broker-205")


@pytest.mark.parametrize("node_ids", [(1, 2), (1, 1, 2), (-1, 2, 3)])
def test_node_ids_that_do_not_fit_are_refused(node_ids: tuple[int, ...]) -> None:
    with pytest.raises(UsageError):
        planned(node_ids=node_ids)


def test_brokers_are_spread_over_the_racks_in_turn() -> None:
    assert [node.rack for node in planned(brokers=5, racks=("a", "b")).brokers] == ["a", "b", "a", "b", "a"]
    assert [node.rack for node in planned(brokers=2).brokers] == [None, None]


@pytest.mark.parametrize("racks", [("a", "b"), ("a", "a", "b"), ("a", "b", "c", "d"), ("one",)])
def test_the_same_racks_may_be_asked_for_again(racks: tuple[str, ...], tmp_path: Path) -> None:
    spec = planned(racks=racks)
    home = Home(tmp_path)
    plans.require_same_topology(spec, configured(racks=racks, node_ids=(1, 2, 3)), home)
    remembered = load(tmp_path / "none", {}, spec.remembered).cluster
    plans.require_same_topology(spec, remembered, home)
    with pytest.raises(ConfigError, match="cannot be changed to racks = x,y,x"):
        plans.require_same_topology(spec, replace(remembered, racks=("x", "y")), home)


@pytest.mark.parametrize("rack", ["a b", "", "ä/b", "r" * 61])
def test_a_rack_that_kafka_would_not_take_is_refused(rack: str) -> None:
    with pytest.raises(UsageError, match="invalid rack name"):
        planned(racks=(rack,))


def test_ports_go_to_the_clients_first() -> None:
    spec = planned(brokers=2, controllers=1)
    assert {node.name: node.ports for node in spec.nodes} == {
        "controller-1": (9094,),
        "broker-1": (9092,),
        "broker-2": (9093,),
    }
    assert spec.bootstrap == "127.0.0.1:9092,127.0.0.1:9093"


def test_an_unknown_node_is_refused_with_those_that_exist() -> None:
    with pytest.raises(UsageError, match="there is no node 'broker-9'") as raised:
        planned(brokers=2).node("broker-9")
    assert raised.value.why == "its nodes are broker-1, broker-2"


def test_a_plan_comes_back_from_disk_as_it_was(tmp_path: Path) -> None:
    spec = replace(planned(racks=("a", "b")), kafka={"num.partitions": "4"})
    plans.save(Home(tmp_path), spec)
    assert plans.read(Home(tmp_path)) == spec


@pytest.mark.parametrize("text", ["{}", "[]", "not json", '{"format": 99}', '{"format": 1, "nodes": [{"x": 1}]}'])
def test_a_damaged_plan_is_an_error_never_a_guess(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text, encoding="utf-8")
    with pytest.raises(SetupError, match=r"cluster\.json"):
        plans.read(Home(tmp_path))


def test_cluster_ids_are_never_taken_for_flags() -> None:
    ids = {plans.new_uuid() for _ in range(500)}
    assert len(ids) == 500
    assert all(len(text) == 22 and not text.startswith("-") for text in ids)
