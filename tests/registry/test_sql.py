"""SQL over topics whose values a registry describes: Avro of several versions, JSON Schema, Protobuf."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka import Producer

import headrace
from headrace.cluster import Cluster
from headrace.kafka.write.producer import ProduceOptions, produce
from headrace.kafka.write.shaping import Shaping
from headrace.schemas import Kind
from headrace.schemas.codec.schema_codec import SchemaCodec
from headrace.schemas.registry import Registry, Schema

_MOMENT = datetime(2020, 9, 10, 6, 0, tzinfo=UTC)
_FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "fare", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}]},
    {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["BUS", "TRAIN"]}},
    {"name": "stop", "type": {"type": "record", "name": "Stop", "fields": [{"name": "name", "type": "string"}]}},
    {"name": "next", "type": ["null", "Stop"], "default": None},
    {"name": "pairs", "type": {"type": "map", "values": "int"}},
    {"name": "either", "type": ["string", "long"]},
]
_PROTO = """syntax = "proto3"; import "google/protobuf/timestamp.proto";
message Ride { int64 id = 1; google.protobuf.Timestamp at = 2; repeated string tags = 3; map<string, int32> pairs = 4;
  optional double fare = 5; Kind kind = 6; enum Kind { BUS = 0; TRAIN = 1; } }"""
_JSON = {
    "type": "object", "required": ["id"],
    "properties": {
        "id": {"type": "integer"}, "fare": {"type": ["number", "null"]},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
}  # fmt: skip


def avro(fields: list[Any]) -> str:
    return json.dumps({"type": "record", "name": "Ride", "namespace": "taxi", "fields": fields})


def avro_ride(n: int) -> dict[str, Any]:
    return {
        "id": n, "at": _MOMENT, "day": date(2020, 9, 10), "fare": None if n % 2 else Decimal("12.50"), "kind": "TRAIN",
        "stop": {"name": f"s{n}"}, "next": {"name": "n"} if n % 2 else None, "pairs": {"a": n},
        "either": n if n % 2 else "text",
    }  # fmt: skip


def send(cluster: Cluster, registry: Registry, topic: str, text: str, kind: Kind, rows: list[Any]) -> None:
    schema = Schema(text, kind)
    codec = SchemaCodec(registry, written=(registry.register(f"{topic}-value", schema), schema))
    report = produce(cluster, topic, rows, options=ProduceOptions(shaping=Shaping(value_codec=codec)))
    assert report.complete, report


def damage(cluster: Cluster, topic: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for value in (b"plain", b"", b"\0\0\0\xff\xffxxxx", None):
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def fields(cluster: Cluster, topic: str, *names: str) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    result = headrace.sql(f'select {", ".join(names)} from topic."{topic}" order by "offset"', cluster)
    return result.rows(), result.notes


def test_avro_of_two_versions(cluster: Cluster, registry: Registry, topic: str) -> None:
    send(cluster, registry, topic, avro(_FIELDS), "AVRO", [avro_ride(n) for n in range(4)])
    tip: dict[str, Any] = {"name": "tip", "type": "float", "default": 0.5}
    send(cluster, registry, topic, avro([*_FIELDS, tip]), "AVRO", [{**avro_ride(n), "tip": 1.5} for n in range(4, 6)])
    damage(cluster, topic)
    names = [field["name"] for field in [*_FIELDS, tip]]
    rows, notes = fields(cluster, topic, *names)
    expected = [
        {
            **avro_ride(n), "pairs": [("a", n)], "tip": 0.5 if n < 4 else 1.5,
            "either": str(avro_ride(n)["either"]),
        }
        for n in range(6)
    ]  # fmt: skip
    assert rows == [*expected, *[dict.fromkeys(names)] * 4]
    assert notes == (f"3 records of topic {topic} could not be decoded: their fields are null",)


def test_json_schema(cluster: Cluster, registry: Registry, topic: str) -> None:
    rides = [{"id": n, "fare": n / 4 if n % 2 else None, "tags": [str(n)]} for n in range(10)]
    send(cluster, registry, topic, json.dumps(_JSON), "JSON", rides)
    damage(cluster, topic)
    rows, notes = fields(cluster, topic, "id", "fare", "tags")
    assert rows == [*rides, *[{"id": None, "fare": None, "tags": None}] * 4]
    assert "3 records" in notes[0]


def test_protobuf(cluster: Cluster, registry: Registry, topic: str) -> None:
    rides = [
        {"id": n, "at": "2020-09-10T06:00:00Z", "tags": ["a", "b"], "pairs": {"x": n}, "kind": "TRAIN"}
        | ({"fare": 1.5} if n % 2 else {})
        for n in range(10)
    ]
    send(cluster, registry, topic, _PROTO, "PROTOBUF", rides)
    damage(cluster, topic)
    rows, notes = fields(cluster, topic, "id", "at", "tags", "pairs", "fare", "kind")
    expected = [{**ride, "at": _MOMENT, "pairs": [("x", ride["id"])], "fare": ride.get("fare")} for ride in rides]
    assert rows == [*expected, *[dict.fromkeys(expected[0])] * 4]
    assert "3 records" in notes[0]


def test_without_a_registry_the_bytes_are_there(cluster: Cluster, registry: Registry, topic: str) -> None:
    send(cluster, registry, topic, json.dumps(_JSON), "JSON", [{"id": 1}])
    (row,) = headrace.sql(f'select * from topic."{topic}"', cluster.bootstrap, home=cluster.home).rows()
    assert (set(row) >= {"key", "value", "headers"}, "id" in row) == (True, False)
    result = headrace.sql(f'select * from topic."{topic}"', cluster.bootstrap, registry="http://127.0.0.1:9")
    assert len(result.rows()) == 1
    assert "is read without its fields" in result.notes[0]


@pytest.mark.parametrize("kind", ["avro"])
def test_a_declared_subject(cluster: Cluster, registry: Registry, topic: str, kind: str, tmp_path: Any) -> None:
    """The subject of the declaration counts, also with a reader's schema."""
    send(cluster, registry, topic, avro(_FIELDS), "AVRO", [avro_ride(1)])
    (tmp_path / "few.avsc").write_text(avro(_FIELDS[:2]))
    (tmp_path / "headrace.toml").write_text(
        f'[pipelines.p]\nfrom = "{topic}"\ninto = {{ delta = "t" }}\n'
        f'decode = {{ {kind} = "{topic}-value", reader = "few.avsc" }}\n'
    )
    (row,) = headrace.sql(f'select * from topic."{topic}"', cluster, home=tmp_path).rows()
    assert (row["id"], row["at"], "fare" in row) == (1, _MOMENT, False)


def test_events_of_debezium(cluster: Cluster, registry: Registry, topic: str, tmp_path: Any) -> None:
    """A pipeline says that they are: their columns are those of the row, then what the event says of the change."""
    names = [{"name": "id", "type": "long"}, {"name": "city", "type": ["null", "string"], "default": None}]
    value = {"type": "record", "name": "Value", "fields": names}
    source = {"type": "record", "name": "Source", "fields": [{"name": "lsn", "type": ["null", "long"]}]}
    parts: list[Any] = [
        {"name": "before", "type": ["null", value]}, {"name": "after", "type": ["null", "Value"]},
        {"name": "source", "type": source}, {"name": "op", "type": "string"}, {"name": "ts_ms", "type": "long"},
    ]  # fmt: skip
    about = {"source": {"lsn": 7}, "ts_ms": 5}
    made = {"before": None, "after": {"id": 1, "city": "Oslo"}, "op": "c", **about}
    gone = {"before": {"id": 1, "city": None}, "after": None, "op": "d", **about}
    send(cluster, registry, topic, avro(parts), "AVRO", [made, gone, {**gone, "op": "t"}])
    (tmp_path / "headrace.toml").write_text(
        f'[pipelines.p]\nfrom = "{topic}"\ndecode = "debezium"\ninto = {{ delta = "t" }}\n'
    )
    query = f'select id, city, op, ts_ms, lsn from topic."{topic}" order by "offset"'
    result = headrace.sql(query, cluster, home=tmp_path)
    rows = [tuple(row.values()) for row in result.rows()]
    assert rows == [(1, "Oslo", "c", 5, 7), (1, None, "d", 5, 7), (None, None, None, None, None)]
    assert "1 record " in result.notes[0]
