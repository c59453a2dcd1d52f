"""The JSON API as a script uses it, against independent counts."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from headrace.cluster import Cluster
from headrace.kafka import Kafka
from headrace.kafka.client import connect
from headrace.kafka.write.producer import produce
from headrace.runtime.waiting import eventually
from tests.broker.test_segments import send
from tests.browser import driving
from tests.browser.driving import ConsoleUnderTest
from tests.conftest import Headrace
from tests.records import oversized_batch

MakeTopic = Callable[..., str]


def test_a_script_creates_fills_reads_and_deletes_a_topic(console: ConsoleUnderTest, headrace_cluster: Cluster) -> None:
    name = f"script-{uuid.uuid4().hex[:8]}"
    made = console.ask("POST", "/api/topics", {"name": name, "partitions": 2, "configs": {"retention.ms": "3600000"}})
    assert made.status == 201
    wrote = console.ask("POST", f"/api/topics/{name}/records", {"value": "v", "key": "k", "headers": {"h": "x"}}).json()
    # A broker may not have heard yet who leads the new partitions: they are told as silent meanwhile.
    record = eventually(lambda: console.get(f"/api/topics/{name}/records")["records"], 20)[0]
    assert (record["key"]["text"], record["value"]["text"], record["headers"][0][0]) == ("k", "v", "h")
    assert (record["partition"], record["offset"], record["mark"]) == (wrote["partition"], wrote["offset"], "committed")
    altered = console.ask("PATCH", f"/api/topics/{name}", {"configs": {"retention.ms": None}})
    assert altered.status == 200
    found = console.get(f"/api/topics/{name}")["described"]
    assert found["configs"]["retention.ms"]["source"] == "default"
    assert console.ask("POST", f"/api/topics/{name}/clean").json()["offsets"] == 1
    assert console.ask("DELETE", f"/api/topics/{name}").status == 200
    with Kafka(headrace_cluster) as admin:
        assert name not in {topic.name for topic in admin.topics()}


def test_records_without_a_key_are_spread_over_the_partitions(
    console: ConsoleUnderTest, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic(partitions=3)
    wrote = [console.ask("POST", f"/api/topics/{topic}/records", {"value": str(n)}).json() for n in range(20)]
    assert len({record["partition"] for record in wrote}) > 1


def test_bytes_over_time_end_with_what_the_brokers_tell(
    console: ConsoleUnderTest, headrace_cluster: Cluster, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic(partitions=2)
    produce(headrace_cluster, topic, ("x" * 100 for _ in range(2000)))
    with Kafka(headrace_cluster) as admin:
        stored = admin.topic_sizes([topic])[0].size_bytes

    def last() -> float | None:
        data = console.ask("GET", f"/api/topics/{topic}/bytes").json().get("data")
        return data[-1]["value"] if data else None

    eventually(lambda: last() == stored, 30)
    assert {"timestamp", "value"} == set(console.get(f"/api/topics/{topic}/bytes")["data"][0])


def test_a_batch_that_claims_too_much_is_shown_without_its_plain_size(
    console: ConsoleUnderTest, headrace_cluster: Cluster, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic()
    produce(headrace_cluster, topic, ["plain"])
    send(headrace_cluster, topic, oversized_batch())
    path = f"/api/topics/{topic}/batches?segment=0"
    eventually(lambda: console.ask("GET", path).status == 200, 30)
    plain, oversized = console.get(path)
    assert plain["plain_bytes"] == plain["size_bytes"]
    assert (oversized["codec"], oversized["records"], oversized["plain_bytes"]) == ("gzip", 1, None)


def test_groups_lag_and_a_reset_with_preview(
    console: ConsoleUnderTest, headrace_cluster: Cluster, headrace_topic: MakeTopic
) -> None:
    topic, group = headrace_topic(), f"a/b?c {uuid.uuid4().hex[:6]}"
    produce(headrace_cluster, topic, (str(n) for n in range(40)))
    consumer = connect(headrace_cluster).consumer({"group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    eventually(lambda: consumer.poll(0.5), 60)
    consumer.commit(asynchronous=False)
    consumer.close()
    path = f"/api/groups/{group.replace('/', '%2F').replace('?', '%3F').replace(' ', '%20')}"
    eventually(lambda: console.ask("GET", path).status == 200 and console.get(path)["state"] == "Empty", 30)
    preview = console.ask("POST", f"{path}/reset", {"to": "10"}).json()
    assert (preview.get("executed"), [p["target"] for p in preview.get("plan", ())]) == (False, [10]), preview
    done = console.ask("POST", f"{path}/reset", {"to": "10", "execute": True})
    assert done.status == 200
    eventually(lambda: console.get(path)["lag"] == 30, 20)
    assert console.ask("DELETE", path).status == 200


def test_an_export_is_every_record(
    console: ConsoleUnderTest, headrace_cluster: Cluster, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic(partitions=3)
    produce(headrace_cluster, topic, ({"n": n} for n in range(1500)))
    lines = console.ask("GET", f"/api/topics/{topic}/export?where=value.n%20%3E=%201000").body.splitlines()
    assert sorted(json.loads(json.loads(line)["value"])["n"] for line in lines) == list(range(1000, 1500))


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/api", None, 404),
        ("GET", "/api/nothing/here", None, 404),
        ("GET", "/api/topics/%00", None, 404),
        ("GET", "/api/topics/%00/records", None, 404),
        ("GET", "/api/topics/a%20b/segments", None, 404),
        ("GET", "/api/topics/%ED%A0%80", None, 404),
        ("DELETE", "/api/topics/%00", None, 404),
        ("DELETE", "/api/groups/%00", None, 404),
        ("POST", "/api/nodes/%00/kill", None, 404),
        ("GET", "/api/schemas/x/versions/1", None, 404),
        ("GET", "/api/connectors", None, 404),
        ("POST", "/api/pipelines/nope/start", None, 404),
        ("PUT", "/api/topics/x", None, 405),
        ("OPTIONS", "/api/topics", None, 405),
        ("GET", "/api/topics/x/records/0/99999999999999999999", None, 422),
        ("GET", "/api/topics/__consumer_offsets/records?from=%C2%B2", None, 400),
        ("GET", "/api/topics/__consumer_offsets/records?from=@99999999999999999999999", None, 400),
        ("GET", "/api/topics/__consumer_offsets/records?from=-99999999999999999d", None, 400),
        ("GET", "/api/history?metric=x&minutes=-1", None, 422),
        ("POST", "/api/topics", {"name": "x", "unknown": 1}, 422),
        ("POST", "/api/topics/x/records", {"value": "v", "headers": {"\ud800": "x"}}, 422),
        ("DELETE", "/api/topics/__consumer_offsets", None, 403),
        ("POST", "/api/topics", {"name": "a b"}, 400),
    ],
)  # fmt: skip
def test_every_error_has_one_shape(console: ConsoleUnderTest, method: str, path: str, body: Any, status: int) -> None:
    answer = console.ask(method, path, body)
    assert answer.status == status
    assert answer.json()["problem"]
    assert answer.json().keys() <= {"problem", "why", "hint"}


def test_errors_are_those_of_the_command_line(console: ConsoleUnderTest) -> None:
    missing = console.ask("GET", "/api/topics/nope/records")
    assert missing.status == 404
    assert missing.json()["hint"] == "headrace topic create nope"
    wrong = console.ask("GET", "/api/topics/nope/records?where=value.x%20%3E")
    assert wrong.status == 400
    assert "the condition 'value.x >' cannot be parsed" in wrong.json()["problem"]
    assert wrong.json()["why"] == "a name or a value is expected where the end stands"
    assert console.ask("POST", "/api/nodes/broker-9/kill").status == 404
    assert console.ask("GET", "/api/schemas").json()["hint"] == "headrace up --with registry"


def test_the_api_describes_itself(console: ConsoleUnderTest) -> None:
    document = console.get("/api/openapi.json")
    for path in ("/api/overview", "/api/topics", "/api/topics/{name}/records", "/api/groups", "/api/brokers",
                 "/api/schemas", "/api/connectors", "/api/pipelines", "/api/events", "/metrics"):  # fmt: skip
        assert path in document["paths"], path
    assert "TopicView" in document["components"]["schemas"]
    text = json.dumps(document)
    for reference in {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}:
        assert reference in document["components"]["schemas"], reference


def test_prometheus_reads_the_same_numbers(
    console: ConsoleUnderTest, headrace_cluster: Cluster, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic()
    produce(headrace_cluster, topic, ["a"] * 7)
    wanted = f'headrace_topic_end_offset_total{{topic="{topic}"}} 7'
    eventually(lambda: wanted in console.ask("GET", "/metrics").body.decode().splitlines(), 20)


def test_whoever_asks_first_is_told_of_the_brokers(headrace_cluster: Cluster) -> None:
    """As soon as a console answers at all, it knows the cluster."""
    home = str(headrace_cluster.home.root)
    with driving.running_console("--home", home, until=driving.answers_at_all) as console:
        assert {broker["state"] for broker in console.get("/api/brokers")["brokers"]} == {"up"}


def test_a_console_whose_port_is_taken_says_so_and_leaves_the_other_alone(
    headrace_cluster: Cluster, console: ConsoleUnderTest, run: Headrace
) -> None:
    words = ("console", "--foreground", "--no-open", "--port", console.port)
    token_file = headrace_cluster.home.root / "console" / "foreground" / "token"
    assert token_file.read_text().strip() == console.token
    second = run(*words, home=headrace_cluster.home.root)
    assert second.code == 2
    assert "/login" not in second.out
    assert f"the console cannot listen on 127.0.0.1:{console.port}" in second.err
    assert token_file.read_text().strip() == console.token
