"""A Kafka that refuses: the record is kept with the reason, and the words say who may not do what."""

from __future__ import annotations

import json
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from headrace.cluster import Cluster
from headrace.transport.admin import Admin, NewTopic
from tests.conftest import Headrace

_AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


def rule(bootstrap: str, topic: str, operation: AclOperation, permission: AclPermissionType) -> None:
    binding = AclBinding(
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", operation, permission
    )
    client = AdminClient({"bootstrap.servers": bootstrap})
    for future in client.create_acls([binding]).values():
        future.result(timeout=20)


def test_a_refused_record_is_kept_with_the_reason(home: Path, run: Headrace) -> None:
    cluster = Cluster(home, brokers=1, kafka=_AUTHORIZER)
    cluster.up()
    Admin(cluster).create_topics([NewTopic("secret")])
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
