"""JSON Schema, Protobuf and Debezium's Avro into rows: every version, every broken record with its reason."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest

from headrace.cluster import Cluster
from headrace.errors import ConfigError
from headrace.pipeline.declare.declaration import Changes, Declaration, Decode, Sink
from headrace.pipeline.spark.decode import Decoder, decoder
from headrace.schemas.codec.schema_codec import compiled
from headrace.schemas.codec.wire import VALUE_HEADER, prefix
from headrace.schemas.registry import Reference, Registry, Schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Headers = list[tuple[str, bytes]]

_RAW = (
    "_topic string, _partition int, _offset long, _timestamp timestamp, _timestamp_type int, _key binary, "
    "_value binary, _headers array<struct<key: string, value: binary>>"
)


@pytest.fixture
def registry(with_registry: Cluster) -> Iterator[Registry]:
    with Registry(with_registry.registry) as registry:
        yield registry


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4().hex[:12]}"


def declared(topic: str, decode: Decode) -> Declaration:
    return Declaration("p", (topic,), (Sink("console", "console"),), decode)


class Reader:
    """A decoder as a run uses it: what it could not decode it may learn about, once, and try again."""

    def __init__(self, spark: SparkSession, made: Decoder) -> None:
        self.spark = spark
        self.decoder = made

    def rows(self, *values: bytes | None, headers: Sequence[Headers | None] = ()) -> list[Any]:
        """Of each value its fields, or the reason why there are none."""
        given = [
            ("t", 0, at, datetime(2020, 1, 1, tzinfo=UTC), 0, None, value, headers[at] if headers else None)
            for at, value in enumerate(values)
        ]
        raw = self.spark.createDataFrame(given, _RAW)
        found = self.decoder.decode(raw)
        if self.decoder.learn(found.withColumnRenamed("_undecoded", "_reason").where("_reason is not null")):
            found = self.decoder.decode(raw)
        assert found.columns == [*raw.columns, "_fields", "_undecoded"]
        rows = found.orderBy("_offset").collect()
        assert [row["_value"] for row in rows] == list(values), "the original stays as it was"
        return [row["_undecoded"] or row["_fields"].asDict(recursive=True) for row in rows]


# -- JSON Schema -------------------------------------------------------------------------------------------------------

_ORDER: dict[str, Any] = {
    "type": "object",
    "required": ["id", "note"],
    "properties": {
        "id": {"type": "integer"},
        "note": {"type": ["string", "null"]},
        "price": {"oneOf": [{"type": "null"}, {"type": "number"}]},
        "paid": {"type": "boolean"},
        "state": {"enum": ["new", "done", None]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "odd `name`.x": {"type": "integer"},
        "buyer": {"$ref": "#/definitions/person"},
        "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
        "any": {"type": ["string", "integer"]},
        "loose": {"type": "object"},
    },
    "definitions": {
        "person": {
            "allOf": [
                {"properties": {"name": {"type": "string"}}},
                {"properties": {"boss": {"$ref": "#/definitions/person"}}},
            ]
        }
    },
}  # fmt: skip


def as_json(number: int, value: Any) -> bytes:
    return prefix(number) + json.dumps(value).encode()


def test_json_schema(spark: SparkSession, registry: Registry, topic: str) -> None:
    number = registry.register(f"{topic}-value", Schema(json.dumps(_ORDER), "JSON"))
    reader = Reader(spark, decoder(spark, declared(topic, Decode("json-schema")), registry))
    whole = {
        "id": 2**62, "note": None, "price": 1.5, "paid": True, "state": "new", "tags": ["a", "b"], "odd `name`.x": 3,
        "buyer": {"name": "Ü", "boss": {"name": "x"}}, "counts": {"a": 1}, "any": 7, "loose": {"k": [1]},
    }  # fmt: skip
    good, least = reader.rows(as_json(number, whole), as_json(number, {"id": 1, "unknown": 2}))
    assert good == {
        **whole, "buyer": {"name": "Ü", "boss": '{"name":"x"}'}, "any": "7", "loose": '{"k":[1]}',
    }  # fmt: skip
    assert least == {**dict.fromkeys(whole), "id": 1}


def test_broken_json_has_a_reason(spark: SparkSession, registry: Registry, topic: str) -> None:
    number = registry.register(f"{topic}-value", Schema(json.dumps(_ORDER), "JSON"))
    reader = Reader(spark, decoder(spark, declared(topic, Decode("json-schema")), registry))
    head = prefix(number)
    broken = {
        None: "the value is null",
        b"\0\0": "too short to name a schema",
        b'{"id": 1}': "the first byte is not 0: not written with a registry",
        prefix(987_654) + b"{}": "unknown schema id 987654",
        head + b'{"id": "one"}': "not a JSON object of the declared fields",
        head + b'{"id": 1': "not a JSON object of the declared fields",
        head + b'{"id": 1}{"id": 2}': "more than one JSON object, or text around it",
        head + b'{"note": "\xff"}': "not UTF-8",
        head + b'{"note": "a"}': "required, and not there: id",
        head: "not a JSON object of the declared fields",
    }
    assert reader.rows(*broken) == list(broken.values())


def test_json_of_several_versions_and_in_the_header(spark: SparkSession, registry: Registry, topic: str) -> None:
    subject = f"{topic}-value"
    first = {"type": "object", "properties": {"id": {"type": "integer"}}}
    second = {**first, "properties": {**first["properties"], "name": {"type": "string"}}}  # type: ignore[dict-item]
    old = registry.register(subject, Schema(json.dumps(first), "JSON"))
    registry.set_compatibility("NONE", subject)
    new = registry.register(subject, Schema(json.dumps(second), "JSON"))
    other = registry.register(f"{topic}-avro", Schema('{"type": "record", "name": "R", "fields": []}'))
    reader = Reader(spark, decoder(spark, declared(topic, Decode("json-schema")), registry))
    headers = [None, None, [(VALUE_HEADER, prefix(new))], None]
    found = reader.rows(
        as_json(old, {"id": 1}), as_json(new, {"id": 2, "name": "b"}), b'{"id": 3}', as_json(other, {}), headers=headers
    )
    assert found == [
        {"id": 1, "name": None}, {"id": 2, "name": "b"}, {"id": 3, "name": None}, f"unknown schema id {other}"
    ]  # fmt: skip


def test_json_schema_with_references(spark: SparkSession, registry: Registry, topic: str) -> None:
    shared = {"type": "object", "properties": {"street": {"type": "string"}}}
    registry.register(f"{topic}-address", Schema(json.dumps(shared), "JSON"))
    person = {"type": "object", "properties": {"at": {"$ref": "address.json"}}}
    reference = Reference("address.json", f"{topic}-address", 1)
    number = registry.register(f"{topic}-value", Schema(json.dumps(person), "JSON", (reference,)))
    reader = Reader(spark, decoder(spark, declared(topic, Decode("json-schema")), registry))
    assert reader.rows(as_json(number, {"at": {"street": "x"}})) == [{"at": {"street": "x"}}]


@pytest.mark.parametrize("kind", ["json-schema", "protobuf"])
def test_a_subject_that_does_not_exist(spark: SparkSession, registry: Registry, topic: str, kind: Any) -> None:
    with pytest.raises(ConfigError, match=f"no subject {topic}-value"):
        decoder(spark, declared(topic, Decode(kind)), registry)


# -- Avro --------------------------------------------------------------------------------------------------------------


def test_avro_of_several_versions_into_a_schema_of_the_readers_own(
    spark: SparkSession, registry: Registry, topic: str, tmp_path: Path
) -> None:
    def schema(*names: str) -> str:
        fields = [{"name": name, "type": "int", "default": 0} for name in names]
        return json.dumps({"type": "record", "name": "R", "fields": fields})

    given = [(Schema(schema("a")), {"a": 1}), (Schema(schema("a", "b")), {"a": 2, "b": 3})]
    values = [
        value for writer, row in given for value in written(writer, registry.register(f"{topic}-value", writer), row)
    ]
    file = tmp_path / "reader.avsc"
    file.write_text(schema("b", "c"), encoding="utf-8")
    reader = Reader(spark, decoder(spark, declared(topic, Decode("avro", reader=str(file))), registry))
    assert reader.rows(*values) == [{"b": 0, "c": 0}, {"b": 3, "c": 0}]


# -- Protobuf ----------------------------------------------------------------------------------------------------------

_V1 = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Order {
  int64 id = 1;
  optional string note = 2;
  double price = 3;
  bool paid = 4;
  State state = 5;
  repeated string tags = 6;
  map<string, int32> counts = 7;
  Person buyer = 8;
  google.protobuf.Timestamp at = 9;
  google.protobuf.Int64Value limit = 10;
  uint64 big = 11;
  bytes raw = 12;
  oneof way { string by = 13; int32 line = 14; }
  enum State { NEW = 0; DONE = 1; }
}
message Person { string name = 1; Person boss = 2; repeated Person friends = 3; }
"""
_V2 = _V1.replace("bool paid = 4;", "bool paid = 4; string channel = 20;")
_WHOLE = {
    "id": str(2**62), "note": "n", "price": 1.5, "paid": True, "state": "DONE", "tags": ["a", "b"], "counts": {"x": 1},
    "buyer": {"name": "Ü", "boss": {"name": "b"}}, "at": "2020-09-10T06:07:08.123Z", "limit": "5",
    "big": str(2**64 - 1), "raw": "/wA=", "line": 3,
}  # fmt: skip


def written(schema: Schema, number: int, *values: Any) -> list[bytes]:
    encoded = compiled(schema, {}).encode(values, prefix(number))
    assert all(isinstance(value, bytes) for value in encoded), encoded
    return encoded  # type: ignore[return-value]


def test_protobuf(spark: SparkSession, registry: Registry, topic: str) -> None:
    schema = Schema(_V1, "PROTOBUF")
    number = registry.register(f"{topic}-value", schema)
    reader = Reader(spark, decoder(spark, declared(topic, Decode("protobuf")), registry))
    good, empty = reader.rows(*written(schema, number, _WHOLE, {}))
    assert good.pop("at").astimezone(UTC) == datetime(2020, 9, 10, 6, 7, 8, 123_000, UTC)
    assert good == {
        "id": 2**62, "note": "n", "price": 1.5, "paid": True, "state": "DONE", "tags": ["a", "b"], "counts": {"x": 1},
        "buyer": {"name": "Ü", "boss": '{"name": "b"}', "friends": []}, "limit": 5, "big": Decimal(2**64 - 1),
        "raw": bytearray(b"\xff\0"), "by": None, "line": 3,
    }  # fmt: skip
    assert empty == {
        "id": 0, "note": None, "price": 0.0, "paid": False, "state": "NEW", "tags": [], "counts": {}, "buyer": None,
        "at": None, "limit": None, "big": Decimal(0), "raw": bytearray(), "by": None, "line": None,
    }  # fmt: skip


def test_protobuf_of_several_versions_and_broken_ones(spark: SparkSession, registry: Registry, topic: str) -> None:
    old = registry.register(f"{topic}-value", Schema(_V1, "PROTOBUF"))
    new = registry.register(f"{topic}-value", Schema(_V2, "PROTOBUF"))
    reader = Reader(spark, decoder(spark, declared(topic, Decode("protobuf")), registry))
    (first,) = written(Schema(_V1, "PROTOBUF"), old, {"id": "1"})
    (second,) = written(Schema(_V2, "PROTOBUF"), new, {"id": "2", "channel": "web"})
    person = prefix(new) + b"\x02\x02" + b"\x0a\x01x"  # one index: the second message of the file
    found = reader.rows(
        first, second, None, b"\0", b"x" + second, prefix(987_654) + b"\0", second[:-1], prefix(new), person
    )
    assert [row["id"] for row in found[:2]] == [1, 2]
    assert [row["channel"] for row in found[:2]] == ["", "web"]
    assert found[2:6] == [
        "the value is null", "too short to name a schema", "the first byte is not 0: not written with a registry",
        "unknown schema id 987654",
    ]  # fmt: skip
    assert all(row.startswith("the bytes do not match the Protobuf schema that they name") for row in found[6:8])
    assert found[8] == "a message Person, not Order"


# -- Debezium ----------------------------------------------------------------------------------------------------------


def _envelope(*more: dict[str, Any]) -> Schema:
    fields = [{"name": "id", "type": "long"}, {"name": "op", "type": ["null", "string"], "default": None}, *more]
    row = {"type": "record", "name": "Value", "fields": fields}
    source = {"type": "record", "name": "Source", "fields": [{"name": "lsn", "type": ["null", "long"]}]}
    parts = [
        {"name": "before", "type": ["null", row], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": source}, {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ]  # fmt: skip
    return Schema(json.dumps({"type": "record", "name": "Envelope", "fields": parts}), "AVRO")


def test_debeziums_avro_is_read_whatever_version_of_the_table_wrote_it(
    spark: SparkSession, registry: Registry, topic: str
) -> None:
    versions = [_envelope(), _envelope({"name": "city", "type": ["null", "string"], "default": None})]
    ids = [registry.register(f"{topic}-value", version) for version in versions]

    def event(version: int, op: str, **rows: Any) -> bytes:
        out = io.BytesIO()
        found = {"op": op, "ts_ms": 5, "source": {"lsn": 7}, **rows}
        fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(versions[version].text)), found)
        return prefix(ids[version]) + out.getvalue()

    reader = Reader(spark, decoder(spark, declared(topic, Decode("debezium")), registry))
    rows = reader.rows(
        event(0, "c", after={"id": 1, "op": "x"}), event(1, "u", after={"id": 1, "city": "Miami"}),
        event(1, "d", before={"id": 1}), None, event(0, "t"), event(1, "d"), event(1, "u"), b"{}",
    )  # fmt: skip
    known = {"op": None, "city": None, "debezium_op": "u", "ts_ms": 5, "lsn": 7}
    assert rows == [
        {**known, "id": 1, "op": "x", "debezium_op": "c"},
        {**known, "id": 1, "city": "Miami"},
        {**known, "id": 1, "debezium_op": "d"},
        "tombstone",
        "a truncate: it does not say which rows are gone",
        "a delete without before: nothing says which row is gone",
        "no after: the event has no row",
        "too short to name a schema",
    ]
    changed = Sink("delta", "t", changes=Changes(("id",), delete_when="op = 'd'"))
    with pytest.raises(ConfigError, match="the table has a column op"):
        decoder(spark, replace(declared(topic, Decode("debezium")), sinks=(changed,)), registry).decode(
            spark.createDataFrame([], _RAW)
        )
    registry.register(f"{topic}-other", Schema('{"type": "record", "name": "R", "fields": []}', "AVRO"))
    with pytest.raises(ConfigError, match="not that of Debezium's envelope"):
        Reader(spark, decoder(spark, declared(topic, Decode("debezium", f"{topic}-other")), registry)).rows(b"")


def test_debeziums_json_is_read_with_and_without_its_schema(spark: SparkSession) -> None:
    reader = Reader(spark, decoder(spark, declared("t", Decode("debezium", "id long, `a name` string")), None))
    event = {
        "before": None,
        "after": {"id": 1, "a name": "x"},
        "op": "r",
        "ts_ms": 5,
        "source": {"file": "b", "pos": 9},
    }
    whole = {"schema": {"type": "struct", "fields": [{"field": "op", "type": "string"}]}, "payload": event}
    wrong = {**event, "after": {"id": "one"}}
    given = [event, whole, wrong, {"id": 1}, {**event, "op": "m"}]
    row = {"id": 1, "a name": "x", "op": "r", "ts_ms": 5, "lsn": None, "file": "b", "pos": 9}
    assert reader.rows(*[json.dumps(value).encode() for value in given], b"{", None) == [
        row, row, "not a JSON object of the declared fields", "no op: not an event of Debezium",
        "a message of the database, not a row", "not a JSON object of the declared fields", "tombstone",
    ]  # fmt: skip
