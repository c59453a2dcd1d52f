"""Records with schemas through a real topic: ours and those of Confluent's own client, in both directions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from headrace.cluster import Cluster
from headrace.errors import CodecError, Unreachable
from headrace.kafka.read.consumer import ConsumeOptions, consume
from headrace.kafka.read.records import Record
from headrace.kafka.write.producer import ProduceOptions, produce
from headrace.kafka.write.shaping import Shaping
from headrace.schemas import VALUE_HEADER, Decoded, SchemaCodec, open_codec
from headrace.schemas.codec.proto_text import parse_proto
from headrace.schemas.registry import Registry, Schema
from tests.conftest import Done
from tests.records import read
from tests.registry.conftest import RIDE, RIDE_KEY, RIDE_WITH_TEXT, RIDE_WITH_TIP, avro, ride

Shell = Callable[..., Done]
Write = Callable[[str, Any], Path]


def codec_of(registry: Registry, topic: str, document: Any) -> SchemaCodec:
    schema = avro(document)
    return SchemaCodec(
        registry, written=(registry.register(f"{topic}-value", schema), schema), subject=f"{topic}-value"
    )


def send(cluster: Cluster, topic: str, rows: Iterable[Any], codec: SchemaCodec) -> None:
    report = produce(cluster, topic, list(rows), options=ProduceOptions(shaping=Shaping(value_codec=codec)))
    assert report.complete, report


def values(records: Iterable[Record]) -> list[Any]:
    found = [record.decoded for record in records]
    assert all(isinstance(one, Decoded) for one in found), found
    return [one.value for one in found if isinstance(one, Decoded)]


def send_theirs(cluster: Cluster, topic: str, serialize: Any, rows: Iterable[Any]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    context = SerializationContext(topic, MessageField.VALUE)
    for row in rows:
        producer.produce(topic, serialize(row, context))
    assert producer.flush(30) == 0


def test_the_client_of_confluent_reads_what_we_write(
    cluster: Cluster, registry: Registry, theirs: SchemaRegistryClient, topic: str
) -> None:
    rows = [ride(n) for n in range(1000)]
    send(cluster, topic, rows, codec_of(registry, topic, RIDE))
    decode = AvroDeserializer(theirs)
    context = SerializationContext(topic, MessageField.VALUE)
    assert [decode(record.value, context) for record in read(cluster.bootstrap, topic)] == rows


def test_we_read_what_the_client_of_confluent_writes(
    cluster: Cluster, registry: Registry, theirs: SchemaRegistryClient, topic: str
) -> None:
    rows = [ride(n) for n in range(1000)]
    serializer = AvroSerializer(theirs, json.dumps(RIDE))
    send_theirs(cluster, topic, serializer, rows)
    codec = open_codec("registry", registry, topic, reading=True)
    found = list(consume(cluster, topic, options=ConsumeOptions(value_codec=codec)))
    assert values(found) == rows
    assert {
        (one.decoded.schema_id, one.decoded.schema_version) for one in found if isinstance(one.decoded, Decoded)
    } == {(registry.version(f"{topic}-value").id, 1)}


def test_json_schema_goes_both_ways_with_the_client_of_confluent(
    cluster: Cluster, registry: Registry, theirs: SchemaRegistryClient, topic: str
) -> None:
    schema = {
        "title": "Ride",
        "type": "object",
        "properties": {"vendorId": {"type": "integer"}},
        "required": ["vendorId"],
    }
    text = json.dumps(schema)
    rows = [{"vendorId": n} for n in range(50)]
    written = (registry.register(f"{topic}-value", Schema(text, "JSON")), Schema(text, "JSON"))
    ours = SchemaCodec(registry, written=written)
    send(cluster, topic, rows, ours)
    context = SerializationContext(topic, MessageField.VALUE)
    decode = JSONDeserializer(text, schema_registry_client=theirs)
    assert [decode(record.value, context) for record in read(cluster.bootstrap, topic)] == rows
    send_theirs(cluster, topic, JSONSerializer(text, theirs), rows)
    assert values(consume(cluster, topic, options=ConsumeOptions(value_codec=ours))) == rows + rows
    refused = ours.encode_many([{"vendorId": "one"}])[0]
    assert isinstance(refused, CodecError)
    assert refused.problem == "field vendorId: 'one' is not of type 'integer'"


def test_protobuf_goes_both_ways_with_the_client_of_confluent(
    cluster: Cluster, registry: Registry, theirs: SchemaRegistryClient, topic: str
) -> None:
    text = 'syntax = "proto3";\npackage taxi;\nmessage Ride { int32 vendor_id = 1; string note = 2; }\n'
    rows = [{"vendor_id": n, "note": f"n{n}"} for n in range(50)]
    pool = DescriptorPool()
    pool.AddSerializedFile(parse_proto(text, "ride.proto").SerializeToString())
    message = GetMessageClass(pool.FindMessageTypeByName("taxi.Ride"))
    schema = Schema(text, "PROTOBUF")
    ours = SchemaCodec(registry, written=(registry.register(f"{topic}-value", schema), schema))
    send(cluster, topic, rows, ours)
    context = SerializationContext(topic, MessageField.VALUE)
    decode = ProtobufDeserializer(message, {"use.deprecated.format": False})
    read_by_them = [decode(record.value, context) for record in read(cluster.bootstrap, topic)]
    assert [{"vendor_id": one.vendor_id, "note": one.note} for one in read_by_them] == rows
    # They register the descriptor in base64, which is another version of the subject.
    registry.set_compatibility("NONE", f"{topic}-value")
    serialize = ProtobufSerializer(message, theirs, {"use.deprecated.format": False})
    send_theirs(cluster, topic, serialize, [message(**row) for row in rows])
    assert values(consume(cluster, topic, options=ConsumeOptions(value_codec=ours))) == rows + rows


def test_old_readers_read_new_records_and_new_readers_old_ones(
    cluster: Cluster, registry: Registry, topic: str
) -> None:
    send(cluster, topic, [ride(n) for n in range(10)], codec_of(registry, topic, RIDE))
    send(cluster, topic, [ride(n, tip=n / 8) for n in range(10)], codec_of(registry, topic, RIDE_WITH_TIP))
    with Registry(cluster.registry) as another:
        as_written = SchemaCodec(another, subject=f"{topic}-value")
        found = list(consume(cluster, topic, options=ConsumeOptions(value_codec=as_written)))
        versions = [one.decoded.schema_version for one in found if isinstance(one.decoded, Decoded)]
        assert versions == [1] * 10 + [2] * 10
        old = ConsumeOptions(value_codec=SchemaCodec(another, reader=avro(RIDE)))
        assert values(consume(cluster, topic, options=old)) == [ride(n) for n in range(10)] * 2
        new = ConsumeOptions(value_codec=SchemaCodec(another, reader=avro(RIDE_WITH_TIP)))
        expected = [ride(n, tip=0.5) for n in range(10)] + [ride(n, tip=n / 8) for n in range(10)]
        assert values(consume(cluster, topic, options=new)) == expected


def test_an_incompatible_change_by_two_topics_side_by_side(shell: Shell, write: Write, topic: str) -> None:
    write("old.avsc", RIDE), write("new.avsc", RIDE_WITH_TEXT)
    write("old.ndjson", [ride(n) for n in range(30)])
    write("new.ndjson", [ride(n, payment_type=str(n % 5)) for n in range(30)])
    assert shell("produce", topic, "old.ndjson", "--value", "avro:old.avsc").code == 0
    refused = shell("produce", topic, "new.ndjson", "--value", "avro:new.avsc")
    assert refused.code == 1
    assert "payment_type was int and would be string" in refused.err
    assert "use a new topic" in refused.err
    created = shell("produce", f"{topic}.v2", "new.ndjson", "--create", "--value", "avro:new.avsc")
    assert created.code == 0, created.err
    read_both = {
        name: [
            json.loads(line)["value"]["payment_type"]
            for line in shell("consume", name, "--value", "registry", "--group", "readers", "--json").out.splitlines()
        ]
        for name in (topic, f"{topic}.v2")
    }
    assert read_both == {topic: [n % 5 for n in range(30)], f"{topic}.v2": [str(n % 5) for n in range(30)]}


def test_keys_and_values_from_the_shell(shell: Shell, write: Write, topic: str) -> None:
    write("ride.avsc", RIDE), write("key.avsc", RIDE_KEY)
    rows = [ride(n) for n in range(100)]
    write("rides.csv", "\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]) + "\n")
    sent = shell("produce", topic, "rides.csv", "--value", "avro:ride.avsc", "--key-codec", "avro:key.avsc")
    assert sent.code == 0, sent.err
    found = shell("consume", topic, "--value", "registry", "--key-codec", "registry", "--json")
    records = [json.loads(line) for line in found.out.splitlines()]
    assert [record["value"] for record in records] == rows
    assert [record["key"] for record in records] == [{"vendorId": row["vendorId"]} for row in rows]
    assert {record["schema_version"] for record in records} == {1}
    again = shell("produce", topic, "rides.csv", "--value", f"avro:{topic}-value")
    assert again.code == 0, again.err
    plain = shell("consume", topic, "--value", "avro:ride.avsc", "--from", "100")
    assert [json.loads(line) for line in plain.out.splitlines()] == rows


def test_records_in_transactions_have_their_schema_too(shell: Shell, write: Write, topic: str) -> None:
    write("ride.avsc", RIDE)
    rows = [ride(n) for n in range(12)]
    write("rides.ndjson", [*rows[:5], {**rows[5], "vendorId": "two"}, *rows[5:]])
    flags = ("--value", "avro:ride.avsc", "--transaction", "4")
    stopped = shell("produce", topic, "rides.ndjson", *flags)
    assert stopped.code == 1
    assert "vendorId" in stopped.err
    aside = shell("produce", topic, "rides.ndjson", *flags, "--on-bad", "set-aside", "--json")
    assert aside.code == 0, aside.err
    assert (aside.json()["records"]["committed"], aside.json()["bad"]) == (12, 1)
    found = shell("consume", topic, "--value", "registry", "--json", "--isolation", "committed")
    assert [json.loads(line)["value"] for line in found.out.splitlines()] == [*rows[:4], *rows]


def test_records_that_do_not_fit_stop_or_are_set_aside(shell: Shell, write: Write, topic: str, tmp_path: Path) -> None:
    write("ride.avsc", RIDE)
    rows = [ride(n) for n in range(40)]
    rows[16]["passenger_count"] = "two"
    del rows[30]["payment_type"]
    write("rides.ndjson", rows)
    stopped = shell("produce", topic, "rides.ndjson", "--value", "avro:ride.avsc", "--json")
    assert stopped.code == 1
    assert "record 17: field passenger_count: 'two' is not an int" in stopped.err
    assert stopped.json()["acknowledged"] == 16
    aside = shell("produce", topic, "rides.ndjson", "--value", "avro:ride.avsc", "--on-bad", "set-aside", "--json")
    assert (aside.json()["acknowledged"], aside.json()["bad"]) == (38, 2)
    kept = [json.loads(line) for line in (tmp_path / "rides.ndjson.bad.ndjson").read_text().splitlines()]
    assert [(piece["place"], piece["reason"]) for piece in kept] == [
        ("line 17", "field passenger_count: 'two' is not an int"),
        ("line 31", "field payment_type is missing, and has no default"),
    ]


def test_damaged_records_are_shown_with_their_error_and_the_rest_is_read(
    cluster: Cluster, registry: Registry, shell: Shell, topic: str
) -> None:
    codec = codec_of(registry, topic, RIDE)
    good = codec.encode_many([ride(1)])[0]
    assert isinstance(good, bytes)
    produce(cluster, topic, [good, good[:-1], b"plain text", b"\0\0\x0f\x42\x3f" + good[5:], None, good])
    found = shell("consume", topic, "--value", "registry", "--json")
    assert found.code == 1
    records = [json.loads(line) for line in found.out.splitlines()]
    assert [record.get("error") for record in records] == [
        None,
        "value: its bytes do not fit its schema (they end too early)",
        "value: it was not written with a registry: its first byte is 0x70, not 0",
        "value: its schema's id 999999 is not known to the registry",
        None,
        None,
    ]
    assert [record["value"] for record in records[-2:]] == [None, ride(1)]
    assert records[2]["value"] == {"base64": "cGxhaW4gdGV4dA=="}
    assert "not decoded: 3 records" in found.err
    lines = shell("consume", topic, "--value", "registry").out.splitlines()
    assert json.loads(lines[2])["base64"] == "cGxhaW4gdGV4dA=="


def test_an_id_in_the_header_is_read(cluster: Cluster, registry: Registry, topic: str) -> None:
    codec = codec_of(registry, topic, RIDE)
    framed = codec.encode_many([ride(7)])[0]
    assert isinstance(framed, bytes)
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce(topic, framed[5:], headers=[(VALUE_HEADER, framed[:5])])
    producer.produce(topic, framed)
    assert producer.flush(30) == 0
    assert values(consume(cluster, topic, options=ConsumeOptions(value_codec=codec))) == [ride(7)] * 2


def test_known_schemas_go_on_without_the_registry_and_unknown_ones_fail_loudly(cluster: Cluster, topic: str) -> None:
    with Registry(cluster.registry, retry_for_s=0.5) as registry, Registry(cluster.registry, retry_for_s=0.5) as empty:
        codec = codec_of(registry, topic, RIDE)
        send(cluster, topic, [ride(1)], codec)
        options = ConsumeOptions(value_codec=codec)
        assert values(consume(cluster, topic, options=options)) == [ride(1)]
        cluster.kill("registry")
        try:
            send(cluster, topic, [ride(2)], codec)
            assert values(consume(cluster, topic, options=options)) == [ride(1), ride(2)]
            lost = ConsumeOptions(value_codec=SchemaCodec(empty), group=f"{topic}-group")
            with pytest.raises(Unreachable, match="no schema registry answers"):
                list(consume(cluster, topic, options=lost))
        finally:
            cluster.start("registry")
        assert values(consume(cluster, topic, options=lost)) == [ride(1), ride(2)]
