"""What the console lets nobody do: hostile records, hostile sites, hostile requests."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import socket
import uuid
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, expect

from headrace.cluster import Cluster
from headrace.kafka import Kafka
from headrace.kafka.client import connect
from headrace.kafka.write.producer import produce
from headrace.runtime.waiting import eventually
from tests.browser.driving import ConsoleUnderTest, Window, logged_in, running_console
from tests.browser.driving import window as open_window
from tests.conftest import Headrace

MakeTopic = Callable[..., str]

HOSTILE = (
    '"><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>{{constructor.constructor("hacked=1")()}}'
)


def session(console: ConsoleUnderTest) -> str:
    answer = console.ask("GET", f"/login?token={console.token}", token=False)
    assert answer.status == 303
    return answer.headers["set-cookie"].partition(";")[0]


def test_hostile_keys_values_headers_groups_and_names_are_only_text(
    window: Window, headrace_cluster: Cluster, headrace_topic: MakeTopic
) -> None:
    topic, group = headrace_topic(), f"{HOSTILE}-{uuid.uuid4().hex[:6]}"
    producer = connect(headrace_cluster).producer()
    producer.produce(topic, HOSTILE, key=HOSTILE, headers=[(HOSTILE, HOSTILE.encode())])
    producer.produce(topic, json.dumps({HOSTILE: HOSTILE}), key="json")
    assert producer.flush(10) == 0
    consumer = connect(headrace_cluster).consumer(
        {"group.id": group, "client.id": HOSTILE, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    try:
        eventually(lambda: consumer.poll(0.5), 60)
        consumer.commit(asynchronous=False)
        page = window.open(f"/records/{topic}")
        expect(page.locator(".grid tbody tr").first).to_contain_text("onerror")
        for number in range(2):
            page.locator("button.opener").nth(number).click()
            expect(page.get_by_role("dialog")).to_contain_text("onerror")
            page.get_by_role("button", name="Close").click()
            expect(page.get_by_role("dialog")).to_have_count(0)  # it fades: the next one must not be taken for it
        page = window.open("/groups")
        eventually(lambda: page.get_by_text(group).count() > 0, 20)
        page.get_by_text(group).first.click()
        expect(page.get_by_role("heading", name=group)).to_be_visible()
        expect(window.card("Members")).to_contain_text("onerror")
        page.mouse.move(700, 450)  # over the charts, whose tooltips are HTML
        window.open("/timeline")
        expect(page.locator(".events")).to_contain_text("onerror")
        for path in (f"/topics/{quote(HOSTILE, safe='')}", f"/records/{quote(HOSTILE, safe='')}",
                     f"/group?name={quote(HOSTILE, safe='')}", f"/schema?name={quote(HOSTILE, safe='')}"):  # fmt: skip
            window.page.goto(window.console.url + path)
            window.page.locator("h1").first.wait_for()
        assert page.evaluate("window.hacked") is None
    finally:
        consumer.close()
    # That there is no page of such a name is told as a failure to load it; an image of that value would be one too.
    window.complaints = [text for text in window.complaints if quote(HOSTILE, safe="") not in text]


def test_a_large_value_does_not_slow_the_page(
    window: Window, headrace_cluster: Cluster, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic(max_message_bytes="8000000")
    producer = connect(headrace_cluster).producer({"message.max.bytes": 8_000_000})
    for _ in range(4):
        producer.produce(topic, b'{"x": "' + b"y" * 5_000_000 + b'"}', partition=0)
    assert producer.flush(30) == 0
    page = window.open(f"/records/{topic}")
    expect(page.locator(".grid tbody tr")).to_have_count(4)
    page.locator("button.opener").first.click()
    expect(page.get_by_role("dialog")).to_contain_text("5.0 MB: only the beginning is shown")
    assert len(page.content()) < 2_000_000


def test_what_is_open_to_everybody_is_never_a_page(console: ConsoleUnderTest) -> None:
    for path in ("/_nicegui/3.18.0/static/nothing", "/_nicegui/x/static/a", "/static/nothing", "/static/../topics",
                 "/_nicegui/3.18.0/static/../../../topics", "/_nicegui/3.18.0/libraries/x"):  # fmt: skip
        answer = console.ask("GET", path, token=False, headers={"Accept": "text/html"})
        assert answer.status in {401, 404}, (path, answer.status)
        assert b"healthy" not in answer.body
        assert b"/topics" not in answer.body


def test_nobody_is_let_in_without_a_token(console: ConsoleUnderTest, browser: Browser) -> None:
    for path in ("/api/overview", "/api/topics", "/metrics", "/api/openapi.json", "/topics", "/"):
        answer = console.ask("GET", path, token=False)
        assert answer.status == 401, path
        assert b"bootstrap" not in answer.body
    assert console.ask("GET", "/api/overview", headers={"Authorization": "Bearer wrong"}).status == 401
    assert console.ask("GET", "/login?token=wrong", token=False).status == 401
    assert console.ask("GET", "/api/health", token=False).json()["status"] == "ok"
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{console.url}/topics")
    expect(page.get_by_text("headrace console", exact=True).last).to_be_visible()
    assert "set-cookie" not in console.ask("GET", "/", token=False).headers
    context.close()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "", "[::1", "0x7f.1"])
def test_another_host_name_is_not_answered(console: ConsoleUnderTest, host: str) -> None:
    for path in ("/api/health", "/api/overview", "/"):
        assert console.ask("GET", path, headers={"Host": host}).status == 421


def test_changes_from_another_site_are_refused(console: ConsoleUnderTest, headrace_cluster: Cluster) -> None:
    name = f"evil-{uuid.uuid4().hex[:8]}"
    cookie = session(console)
    csrf = console.ask("GET", "/api/session", token=False, headers={"Cookie": cookie}).json()["csrf"]
    ours = console.url
    refused = [
        {"Cookie": cookie},
        {"Cookie": cookie, "Origin": "http://evil.example"},
        {"Cookie": cookie, "Origin": "null"},
        {"Cookie": cookie, "Origin": "http://evil.example", "X-CSRF-Token": csrf},
        {"Cookie": cookie, "Origin": ours},
        {"Cookie": cookie, "Origin": ours, "X-CSRF-Token": csrf[:-1]},
        {"Cookie": cookie, "Origin": f"{ours}.evil.example", "X-CSRF-Token": csrf},
    ]
    for headers in refused:
        answer = console.ask("POST", "/api/topics", {"name": name}, token=False, headers=headers)
        assert answer.status == 403, headers
    with Kafka(headrace_cluster) as admin:
        assert name not in {topic.name for topic in admin.topics()}
    allowed = {"Cookie": cookie, "Origin": ours, "X-CSRF-Token": csrf}
    assert console.ask("POST", "/api/topics", {"name": name}, token=False, headers=allowed).status == 201
    assert console.ask("DELETE", f"/api/topics/{name}").status == 200


@pytest.mark.parametrize(
    ("origin", "with_session", "opens"),
    [("ours", True, True), ("http://evil.example", True, False), ("ours", False, False), (None, True, False)],
)
def test_a_websocket_needs_our_origin_and_a_session(
    console: ConsoleUnderTest, origin: str | None, with_session: bool, opens: bool
) -> None:
    key = base64.b64encode(os.urandom(16)).decode()
    lines = [
        "GET /_nicegui_ws/socket.io/?EIO=4&transport=websocket HTTP/1.1", f"Host: 127.0.0.1:{console.port}",
        "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Key: {key}",
    ]  # fmt: skip
    lines += [f"Origin: {console.url if origin == 'ours' else origin}"] if origin else []
    lines += [f"Cookie: {session(console)}"] if with_session else []
    with socket.create_connection(("127.0.0.1", console.port), timeout=10) as connection:
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        status = connection.recv(200).split(b"\r\n")[0]
    assert (b" 101 " in status) is opens, status


def test_polling_in_the_place_of_a_websocket_is_refused(console: ConsoleUnderTest) -> None:
    path = "/_nicegui_ws/socket.io/?EIO=4&transport=polling"
    assert console.ask("GET", path, token=False, headers={"Cookie": session(console)}).status == 403


def test_cookies_and_headers_are_strict(console: ConsoleUnderTest) -> None:
    cookie = console.ask("GET", f"/login?token={console.token}", token=False).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    page = console.ask("GET", "/", headers={"Accept": "text/html"})
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    scripts = re.search(r"script-src ([^;]*)", policy)
    assert scripts
    assert "unsafe-inline" not in scripts[1]
    assert not re.search(r"(https?:|\*)", policy), "no foreign origin"
    nonce = re.search(r"'nonce-([^']+)'", policy)
    assert nonce
    tags = re.findall(rb"<script[^>]*>", page.body)
    assert tags
    assert all(b"src=" in tag or nonce[1].encode() in tag for tag in tags)
    assert page.headers["x-frame-options"] == "DENY"
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "same-origin"


def test_hostile_requests_get_words_and_nothing_else(console: ConsoleUnderTest) -> None:
    for path in ("/static/../server.py", "/static/%2e%2e/server.py", "/_nicegui/3/static/../../../etc/passwd",
                 "/api/topics/..%2f..%2fetc", "/api/history?metric=x&minutes=-1", "/api/topics/x/records?limit=9999999",
                 "/api/topics/x/records?where=__import__", "/api/groups/%00"):  # fmt: skip
        answer = console.ask("GET", path)
        assert answer.status in {400, 404, 422}, (path, answer.status)
        assert b"Traceback" not in answer.body
        assert b"root:" not in answer.body
    assert console.ask("POST", "/api/topics", {"name": "x", "unknown": 1}).status == 422
    too_large = {"Content-Length": "99000000"}
    assert console.ask("POST", "/api/topics", headers=too_large).status == 413
    connection = http.client.HTTPConnection("127.0.0.1", console.port, timeout=10)
    connection.putrequest("GET", "/api/health", skip_host=True)
    connection.endheaders()
    assert connection.getresponse().status in {400, 421}
    connection.close()
    assert console.get("/api/health")["status"] == "ok"


def test_read_only_shows_everything_and_changes_nothing(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, browser: Browser, tmp_path: Path
) -> None:
    topic = headrace_topic()
    produce(headrace_cluster, topic, ["a"])
    cache = {"HEADRACE_CACHE": os.environ.get("HEADRACE_CACHE", "")} if os.environ.get("HEADRACE_CACHE") else {}
    words = ("--bootstrap", headrace_cluster.bootstrap, "--read-only", "--password-file", str(tmp_path / "password"))
    (tmp_path / "password").write_text("open sesame\n")
    with running_console(*words, environment=cache) as console:
        assert console.get(f"/api/topics/{topic}/records")["records"][0]["value"]["text"] == "a"
        for method, path, body in (
            ("POST", "/api/topics", {"name": "never"}),
            ("DELETE", f"/api/topics/{topic}", None),
            ("POST", f"/api/topics/{topic}/records", {"value": "b"}),
            ("POST", "/api/nodes/broker-1/kill", None),
            ("POST", "/api/brokers/elect", None),
            ("PATCH", "/api/connectors/lines/config", {"tasks.max": "2"}),
        ):
            answer = console.ask(method, path, body)
            assert answer.status == 403, (path, answer.status)
        assert "read-only" in console.ask("POST", "/api/topics", {"name": "never"}).json()["problem"]
        with logged_in(browser, console) as context, open_window(context, console) as window:
            page = window.open(f"/topics/{topic}")
            expect(page.get_by_role("button", name="Produce")).to_be_disabled()
            expect(page.get_by_text("read-only")).to_be_visible()
        _log_in_with_a_password(browser, console)


def test_a_session_of_a_read_only_console_is_worthless_at_the_other_of_its_home(
    console: ConsoleUnderTest, headrace_cluster: Cluster
) -> None:
    home, name = headrace_cluster.home.root, f"evil-{uuid.uuid4().hex[:8]}"
    with running_console("--home", str(home), "--read-only") as limited:
        value = session(limited).partition("=")[2]
        csrf = limited.ask("GET", "/api/session", token=False, headers={"Cookie": session(limited)}).json()["csrf"]
        cookie = {"Cookie": f"headrace_{console.port}={value}"}
        assert console.ask("GET", "/api/topics", token=False, headers=cookie).status == 401
        allowed = {**cookie, "Origin": console.url, "X-CSRF-Token": csrf}
        assert console.ask("POST", "/api/topics", {"name": name}, token=False, headers=allowed).status == 401
        assert (
            console.ask(
                "POST", "/api/topics", {"name": name}, headers={"Authorization": f"Bearer {limited.token}"}
            ).status
            == 401
        )
        folder = home / "console" / "foreground"
        assert (folder / "token").read_text().strip() == console.token
        assert (folder / f"port-{limited.port}" / "token").read_text().strip() == limited.token
    with Kafka(headrace_cluster) as admin:
        assert name not in {topic.name for topic in admin.topics()}


def _log_in_with_a_password(browser: Browser, console: ConsoleUnderTest) -> None:
    context = browser.new_context()
    try:
        page = context.new_page()
        page.goto(console.url)
        page.get_by_label("Password").fill("wrong")
        page.get_by_role("button", name="Enter").click()
        expect(page.get_by_text("Wrong password")).to_be_visible()
        page.get_by_label("Password").fill("open sesame")
        page.get_by_role("button", name="Enter").click()
        page.locator("main .page").wait_for()
    finally:
        context.close()


def test_elsewhere_than_loopback_it_wants_a_password(headrace_cluster: Cluster, run: Headrace) -> None:
    done = run("console", "--foreground", "--host", "0.0.0.0", home=headrace_cluster.home.root)  # noqa: S104
    assert done.code == 2
    assert "only with a password" in done.err
