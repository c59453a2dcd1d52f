"""A cluster with a schema registry, started once for all tests of schemas."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient

from headrace.cluster import Cluster
from headrace.kafka import Kafka, NewTopic
from headrace.schemas.registry import Registry, Schema
from tests.conftest import Done, Headrace

RIDE: dict[str, Any] = {
    "type": "record",
    "name": "Ride",
    "namespace": "taxi",
    "fields": [
        {"name": "vendorId", "type": "int"},
        {"name": "passenger_count", "type": "int"},
        {"name": "trip_distance", "type": "float"},
        {"name": "payment_type", "type": "int"},
        {"name": "total_amount", "type": "float"},
    ],
}
RIDE_KEY = {
    "type": "record",
    "name": "RideKey",
    "namespace": "taxi",
    "fields": [{"name": "vendorId", "type": "int"}],
}
#: The incompatible change of the course: a payment type that becomes text.
RIDE_WITH_TEXT = {
    **RIDE,
    "fields": [{**f, "type": "string"} if f["name"] == "payment_type" else f for f in RIDE["fields"]],
}
RIDE_WITH_TIP = {**RIDE, "fields": [*RIDE["fields"], {"name": "tip", "type": "float", "default": 0.5}]}


def avro(document: Any) -> Schema:
    return Schema(json.dumps(document))


def ride(n: int, **other: Any) -> dict[str, Any]:
    """Numbers that a float of four bytes holds exactly, so that what is read equals what was written."""
    fixed = {"vendorId": n % 3, "passenger_count": n % 6, "trip_distance": n / 4, "payment_type": n % 5}
    return {**fixed, "total_amount": n / 2, **other}


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("registry") / "home", brokers=1, services=("registry",))
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down(wipe=True)


@pytest.fixture
def registry(cluster: Cluster) -> Iterator[Registry]:
    with Registry(cluster.registry) as registry:
        yield registry


@pytest.fixture
def theirs(cluster: Cluster) -> Iterator[SchemaRegistryClient]:
    """Confluent's own client, closed afterwards."""
    with SchemaRegistryClient({"url": cluster.registry}) as client:
        yield client


@pytest.fixture
def topic(cluster: Cluster) -> str:
    name = f"rides-{uuid.uuid4().hex[:12]}"
    Kafka(cluster).create_topics([NewTopic(name, 1, 1)])
    return name


@pytest.fixture
def subject() -> str:
    return f"subject-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def shell(cluster: Cluster, run: Headrace) -> Callable[..., Done]:
    """`shell("schema", "list")` as a person types it, in the test's folder."""
    return lambda *words, **more: run(*words, home=cluster.home.root, **more)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, Any], Path]:
    """A file of the test's folder: text as it is, a list as NDJSON, anything else as JSON."""

    def file(name: str, content: Any) -> Path:
        lines = "".join(json.dumps(row) + "\n" for row in content) if isinstance(content, list) else None
        (tmp_path / name).write_text(content if isinstance(content, str) else lines or json.dumps(content))
        return tmp_path / name

    return file
