"""The registry and the Connect worker as processes of the cluster."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from headrace.cluster import Cluster
from headrace.transport.connectors import Connectors
from tests.conftest import Headrace, processes_of


def ask(url: str, body: Any = None, host: str | None = None) -> tuple[int, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode() if body is not None else None)  # noqa: S310
    request.add_header("Content-Type", "application/vnd.schemaregistry.v1+json")
    if host:
        request.add_header("Host", host)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def avro(name: str, *fields: tuple[str, str]) -> dict[str, str]:
    record = {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields]}
    return {"schema": json.dumps(record)}


def test_status_names_every_address(serviced: Cluster, run: Headrace) -> None:
    found = run("status", "--json", home=serviced.home.root).json()
    assert found["registry"] == serviced.registry
    assert found["connect"] == serviced.connect
    assert {n["name"]: n["state"] for n in found["nodes"]} == {
        "broker-1": "running",
        "registry": "running",
        "connect": "running",
    }


def test_every_service_binds_loopback_only(serviced: Cluster) -> None:
    pids = {process.pid for process in processes_of(serviced.home.root)}
    listening = [
        c.laddr.ip
        for c in psutil.net_connections("tcp")
        if c.pid in pids and c.status == psutil.CONN_LISTEN and c.laddr
    ]
    assert len(listening) >= 5
    assert {ip.removeprefix("::ffff:") for ip in listening} == {"127.0.0.1"}


def test_the_registry_speaks_confluents_api_at_a_short_address(serviced: Cluster) -> None:
    assert ask(f"{serviced.registry}/config") == (200, {"compatibilityLevel": "BACKWARD"})
    status, answer = ask(f"{serviced.registry}/subjects/short-value/versions", avro("R", ("a", "int")))
    assert status == 200
    assert ask(f"{serviced.registry}/schemas/ids/{answer['id']}")[0] == 200
    refused, words = ask(f"{serviced.registry}/subjects/short-value/versions", avro("R", ("a", "string")))
    assert refused == 409
    assert "STRING not compatible with writer type: INT" in words["message"]


def test_a_foreign_host_name_is_not_served(serviced: Cluster) -> None:
    assert ask(f"{serviced.registry}/subjects", host="evil.example")[0] == 421


def test_fifty_registrations_at_once_of_ten_schemas_give_ten_ids(serviced: Cluster) -> None:
    def register(number: int) -> int:
        url = f"{serviced.registry}/subjects/many-{number % 10}/versions"
        status, answer = ask(url, avro(f"R{number % 10}", ("a", "int")))
        assert status == 200, answer
        return int(answer["id"])

    with ThreadPoolExecutor(10) as pool:
        ids = list(pool.map(register, range(50)))
    assert len(set(ids)) == 10
    assert all(ids[n] == ids[n % 10] for n in range(50))


def test_a_killed_registry_says_so_and_comes_back_with_every_id(whole: Cluster, run: Headrace) -> None:
    url = f"{whole.registry}/subjects/kept-value/versions"
    _, answer = ask(url, avro("Kept", ("a", "int")))
    before = ask(f"{whole.registry}/subjects")
    whole.kill("registry")
    status, words = ask(f"{whole.registry}/subjects")
    assert status == 503
    assert "headrace start registry" in words["message"]
    started = run("start", "registry", home=whole.home.root)
    assert started.code == 0, started.err
    assert ask(f"{whole.registry}/subjects") == before
    assert ask(f"{whole.registry}/schemas/ids/{answer['id']}")[0] == 200


def test_a_stopped_registry_holds_no_port_and_up_brings_it_back(whole: Cluster) -> None:
    whole.stop("registry")
    with pytest.raises(urllib.error.URLError):
        ask(f"{whole.registry}/subjects")
    whole.up()
    assert ask(f"{whole.registry}/subjects")[0] == 200


def test_pause_and_logs_work_as_for_brokers(whole: Cluster, run: Headrace) -> None:
    whole.pause("connect")
    assert {n.name: n.state for n in whole.status().nodes}["connect"] == "paused"
    whole.resume("connect")
    assert isinstance(Connectors(whole.connect).names(), list)
    for name in ("registry", "connect"):
        assert run("logs", name, "-n", 3, home=whole.home.root).out.strip()


def test_an_unknown_service_is_named(home: Any, run: Headrace) -> None:
    done = run("up", "--with", "regstry", home=home)
    assert done.code == 2
    assert "there is no service 'regstry'" in done.err


def test_without_a_registry_the_way_to_one_is_said(headrace_cluster: Cluster, run: Headrace) -> None:
    done = run("connector", "list", home=headrace_cluster.home.root)
    assert done.code == 4
    assert "headrace up --with connect" in done.err
