"""A Kafka that refuses: the record is kept with the reason, and the words say who may not do what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from headrace.cluster import Cluster
from headrace.kafka import Kafka, NewTopic
from headrace.kafka.client import connect
from headrace.kafka.write.librdkafka import TIMED_OUT
from headrace.kafka.write.producer import produce
from headrace.kafka.write.undelivered import Undeliverable
from tests.conftest import Headrace

_AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


def rule(
    bootstrap: str,
    name: str,
    operation: AclOperation,
    permission: AclPermissionType,
    resource: ResourceType = ResourceType.TOPIC,
) -> None:
    binding = AclBinding(resource, name, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", operation, permission)
    client = AdminClient({"bootstrap.servers": bootstrap})
    for future in client.create_acls([binding]).values():
        future.result(timeout=20)


@pytest.fixture
def cluster(home: Path) -> Cluster:
    guarded = Cluster(home, brokers=1, kafka=_AUTHORIZER)
    guarded.up()
    return guarded


def test_a_refused_record_is_kept_with_the_reason(cluster: Cluster, home: Path, run: Headrace) -> None:
    Kafka(cluster).create_topics([NewTopic("secret")])
    rule(cluster.bootstrap, "secret", AclOperation.WRITE, AclPermissionType.DENY)
    hidden = run("produce", "secret", home=home, stdin="hi")
    assert hidden.code == 1
    assert "does not let you see the topic 'secret'" in hidden.err
    rule(cluster.bootstrap, "secret", AclOperation.DESCRIBE, AclPermissionType.ALLOW)
    refused = run("produce", "secret", home=home, stdin="hi")
    assert refused.code == 1
    assert "0 records acknowledged, 1 failed, of 1 read" in refused.err
    kept = json.loads((run.folder / "secret.failed.ndjson").read_text())
    assert (kept["value"], kept["reason"]) == ("hi", "Broker: Topic authorization failed")
    # The right to write is not the right to see settings: that refusal is not why a record timed out.
    rule(cluster.bootstrap, "secret", AclOperation.DESCRIBE_CONFIGS, AclPermissionType.DENY)
    assert Undeliverable(connect(cluster), "secret").reason(0, TIMED_OUT) == TIMED_OUT


def test_a_refused_reading_ends_and_says_so(cluster: Cluster, home: Path, run: Headrace) -> None:
    assert produce(cluster, "secret", ["a", "b"], create=True).complete
    assert run("consume", "secret", home=home).out.split() == ["a", "b"]
    rule(cluster.bootstrap, "readers", AclOperation.READ, AclPermissionType.DENY, ResourceType.GROUP)
    refused = run("consume", "secret", "--group", "readers", home=home)
    assert (refused.code, refused.out) == (1, "")
    assert "GROUP_AUTHORIZATION_FAILED" in refused.err

    rule(cluster.bootstrap, "secret", AclOperation.DESCRIBE, AclPermissionType.ALLOW)
    rule(cluster.bootstrap, "secret", AclOperation.READ, AclPermissionType.DENY)
    for words in ((), ("--group", "others"), ("--group", "others", "--members", 2), ("--until", "idle:1s")):
        refused = run("consume", "secret", *words, home=home)
        assert (refused.code, refused.out) == (1, ""), words
        assert "error: Kafka refused to go on reading" in refused.err
        assert "TOPIC_AUTHORIZATION_FAILED" in refused.err
        assert "processed a total of 0 records" in refused.err
