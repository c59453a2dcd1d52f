"""The registry and the Connect worker as processes of the cluster."""

from __future__ import annotations

import json
import socket
import stat
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil
import pytest

from headrace.cluster import Cluster, ports, proxy
from headrace.cluster import spec as plans
from headrace.cluster.launch import Launch
from headrace.cluster.planning import with_services
from headrace.cluster.services import Registry, ServiceStarter
from headrace.cluster.spec import ServiceSpec
from headrace.config import load
from headrace.errors import Unreachable
from headrace.home import Home
from headrace.runtime.jars import default_cache
from headrace.runtime.waiting import eventually
from tests.conftest import Headrace, processes_of


def ask(url: str, body: Any = None, *, method: str | None = None, **headers: str) -> tuple[int, Any]:
    """Status and answer; headers by their names, `content_type` for Content-Type."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, method=method)  # noqa: S310
    request.add_header("Content-Type", "application/vnd.schemaregistry.v1+json")
    for name, value in headers.items():
        request.add_header(name.replace("_", "-").title(), value)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
            return answer.status, _document(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, _document(error.read())


def _document(answer: bytes) -> Any:
    try:
        return json.loads(answer)
    except ValueError:
        return answer


def listening_ports(cluster: Cluster, name: str) -> set[int]:
    pids = {node.pid for node in cluster.node_states() if node.name == name}
    listening = [c for c in psutil.net_connections("tcp") if c.pid in pids and c.status == psutil.CONN_LISTEN]
    return {connection.laddr.port for connection in listening if connection.laddr}


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
        "console": "running",
    }
    # In a new home the console begins before the worker has ever run, and does not die of that.
    since = {n["name"]: n["uptime_s"] for n in found["nodes"]}
    assert since["console"] > since["connect"]


def test_a_worker_that_has_never_run_has_a_token(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "home", services=("connect",))
    cluster.home.create()
    plan = plans.plan(cluster.config.cluster).with_ports(tuple(range(1, 7)))
    try:
        with_services(cluster.home, plan, Launch(cluster.config))
        assert len(cluster.connect_token) > 30
        assert cluster.connectors
    finally:
        ports.release(cluster.home, default_cache())
    (cluster.home.root / "connect" / "token").unlink()
    with pytest.raises(Unreachable, match="has no token"):
        _ = cluster.connect_token


class _Upstream(BaseHTTPRequestHandler):
    """A service that names the path it was asked for; one path it never answers."""

    enough = Event()

    def do_GET(self) -> None:
        if self.path == "/slow":
            self.enough.wait(30)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.path.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Nothing."""


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[tuple[proxy.Proxy, Path]]:
    """A proxy before a small server of ours, and the file of its token."""
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), _Upstream)
    token, credentials = tmp_path / "token", tmp_path / "credentials"
    token.write_text("secret", encoding="ascii")
    credentials.write_text("Basic x", encoding="ascii")
    route = proxy.Route("connect", 0, upstream.server_port, str(credentials), token=str(token))
    front = proxy.Proxy(route)
    for server in (upstream, front):
        Thread(target=server.serve_forever, daemon=True).start()
    yield front, token
    _Upstream.enough.set()
    for server in (upstream, front):
        server.shutdown()
        server.server_close()


def test_the_proxy_passes_any_path_on_and_tells_slow_from_dead(
    proxied: tuple[proxy.Proxy, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    front, token = proxied
    monkeypatch.setattr(proxy, "_ANSWER_WITHIN_S", 0.5)

    def get(path: str, given: str = "Authorization: Bearer secret\r\n") -> bytes:
        with socket.create_connection(("127.0.0.1", front.server_port), 20) as connection:
            head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{given}\r\n"
            connection.sendall(head.encode())
            return b"".join(iter(lambda: connection.recv(4096), b""))

    assert get("/subjects/größe?a=%20b&c=d").endswith(b"/subjects/gr%C3%B6%C3%9Fe?a=%20b&c=d")
    slow = get("/slow")
    assert slow.startswith(b"HTTP/1.1 504")
    assert b"connect has not answered within 0.5 s" in slow
    for text in ("", "\n"):
        token.write_text(text, encoding="ascii")
        for given in ("", "Authorization: Bearer \r\n", "Authorization: Basic Og==\r\n"):
            assert get("/connectors", given).startswith(b"HTTP/1.1 401")


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


def test_foreign_hosts_and_foreign_pages_are_not_served(serviced: Cluster) -> None:
    bearer = f"Bearer {serviced.connect_token}"
    for url in (f"{serviced.registry}/subjects", f"{serviced.connect}/connectors"):
        assert ask(url, authorization=bearer)[0] == 200
        assert ask(url, authorization=bearer, host="evil.example")[0] == 421
        assert ask(url, authorization=bearer, origin="http://evil.example")[0] == 403
        assert ask(url, authorization=bearer, origin=url.rpartition("/")[0])[0] == 200


def test_without_the_secrets_of_the_home_no_port_serves_more_than_the_registry(serviced: Cluster) -> None:
    connect, registry = listening_ports(serviced, "connect"), listening_ports(serviced, "registry")
    assert (len(connect), len(registry)) == (1, 2)  # the registry has a port for its management
    steal = {"name": "steal", "config": {"connector.class": "FileStreamSource", "file": "/etc/passwd", "topic": "t"}}
    addresses = [serviced.connect, *(f"http://127.0.0.1:{port}" for port in connect | registry)]
    wrong = ("", "Bearer ", "Bearer x", "Basic eDp4", "Basic !", f"Bearer {serviced.connect_token}x")
    for address in addresses:
        for path in ("/", "/connectors", "/connector-plugins", "/admin/loggers", "/apis/ccompat/v7/subjects"):
            assert min(ask(address + path, authorization=given)[0] for given in wrong) >= 400, address + path
        assert ask(f"{address}/connectors", steal, content_type="application/json")[0] in {401, 414}
        # Workers ask each other without a password, but sign what they ask.
        assert ask(f"{address}/connectors/steal/tasks", [{}], content_type="application/json")[0] in {400, 401, 414}
    for secret in ("connect/token", "connect/credentials", "connect/passwords.properties", "registry/credentials"):
        file = serviced.home.root / secret
        assert [stat.S_IMODE(at.stat().st_mode) for at in (file, file.parent, serviced.home.root)] == [
            0o600, 0o700, 0o700,
        ]  # fmt: skip


def test_a_connector_uses_only_files_below_the_folders_that_were_named(
    serviced: Cluster, tmp_path: Path, run: Headrace
) -> None:
    bearer, at = f"Bearer {serviced.connect_token}", f"{serviced.connect}/connectors"
    (tmp_path / "way out").symlink_to("/etc")
    config = {"connector.class": "FileStreamSource", "topic": "never"}
    asked = [("POST", at, True), ("PUT", f"{at}/x/config", False), ("PATCH", f"{at}/x/config", False),
             ("PUT", f"{at};a=b/x/config", False),
             ("PUT", f"{serviced.connect}/connector-plugins/FileStreamSource/config/validate", False)]  # fmt: skip
    outside = ("/etc/passwd", "\t/etc/passwd", f"{tmp_path}/way out/passwd", f"{tmp_path}/../../../../etc/passwd",
               str(serviced.home.root / "connect" / "token"), "../../../etc/passwd", "a\0b", "\ud800")  # fmt: skip
    for file in outside:
        for method, url, wrapped in asked:
            settings = {**config, "file": file}
            body = json.dumps({"name": "x", "config": settings} if wrapped else settings)
            for encoding in ("utf-8", "utf-16"):
                found = ask(url, body.encode(encoding), method=method, authorization=bearer)
                assert found[0] == 400, (method, url, file, found)
                assert "file=" in found[1]["message"]
    done = run("connector", "create", "x", "--set", "connector.class=FileStreamSink", "--set", "topics=never",
               "--set", "file=/etc/motd", home=serviced.home.root)  # fmt: skip
    assert (done.code, "connect_files in headrace.toml" in done.err) == (1, True)
    assert "x" not in serviced.connectors.names()


def test_settings_cannot_read_files_by_a_config_provider(serviced: Cluster) -> None:
    provider = {
        "config.providers": "p",
        "config.providers.p.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
        "connector.class": "FileStreamSource",
        "topic": "${p:/etc/passwd:root}",
    }
    found = serviced.connectors.create("provided", provider)
    assert (found.state, "is not allowed" in (found.trace or "")) == ("FAILED", True)
    serviced.connectors.delete("provided")


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


def test_a_registry_killed_while_it_makes_its_database_makes_a_new_one(tmp_path: Path) -> None:
    home, cache = Home(tmp_path), default_cache()
    config = load(tmp_path / "headrace.toml")
    spec = plans.plan(config.cluster).with_ports(tuple(range(1, 7)))  # none of them runs
    port, inner = ports.choose_for_service(home, cache, 8081, 2)
    registry = Registry(home, spec, ServiceSpec("registry", port, inner))
    starter = ServiceStarter(Launch(replace(config, cluster=replace(config.cluster, ready_timeout_s=120))))
    database = registry.folder / "data/registry.mv.db"
    try:
        starter.spawn([registry])
        eventually(lambda: database.exists() and database.stat().st_size > 100_000, 120, every_s=0.01)
        registry.process.kill()
        starter.spawn([registry])
        starter.wait([registry])
        assert ask(f"{registry.url}/subjects/s/versions", avro("R", ("a", "int")))[0] == 200
        assert not registry.unfinished.exists()  # so what has answered once is never set aside
    finally:
        starter.end()
        ports.release(home, cache)


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
    assert isinstance(whole.connectors.names(), list)
    for name in ("registry", "connect"):
        assert run("logs", name, "-n", 3, home=whole.home.root).out.strip()


def test_an_unknown_service_is_named(home: Any, run: Headrace) -> None:
    done = run("up", "--with", "regstry", home=home)
    assert done.code == 2
    assert "unknown service: 'regstry'" in done.err


def test_without_a_registry_the_way_to_one_is_said(headrace_cluster: Cluster, run: Headrace) -> None:
    done = run("connector", "list", home=headrace_cluster.home.root)
    assert done.code == 4
    assert "headrace up --with connect" in done.err
