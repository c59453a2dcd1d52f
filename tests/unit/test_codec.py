"""Objects to bytes and back without a registry: what fits, what does not, and how that is said."""

from __future__ import annotations

import datetime
import decimal
import io
import json
import uuid
from typing import Any

import fastavro
import numpy
import pytest

from headrace.errors import CodecError, UsageError
from headrace.schemas import Decoded, SchemaCodec
from headrace.schemas.codec.avro import Avro
from headrace.schemas.registry import Kind, Reference, Schema

RIDE: dict[str, Any] = {
    "type": "record",
    "name": "Ride",
    "namespace": "taxi",
    "fields": [
        {"name": "vendor", "type": "int"},
        {"name": "distance", "type": "double"},
        {"name": "stops", "type": {"type": "array", "items": {"type": "record", "name": "Stop", "fields": [
            {"name": "name", "type": "string"}, {"name": "kind", "type": {
                "type": "enum", "name": "Kind", "symbols": ["START", "END"]}}]}}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}  # fmt: skip
GOOD: dict[str, Any] = {"vendor": 1, "distance": 2.5, "stops": [{"name": "a", "kind": "START"}], "note": None}


class Shelf:
    """A registry for tests: what lies on it is known, by id or guid."""

    def __init__(self, schemas: dict[int | str, Schema], named: dict[str, Schema] | None = None) -> None:
        self.schemas = schemas
        self.named = named or {}
        self.asked: list[int | str] = []

    def schema(self, number: int | str) -> Schema | None:
        self.asked.append(number)
        return self.schemas.get(number)

    def versions_of(self, number: int) -> tuple[tuple[str, int], ...]:
        return (("other", 9), ("rides-value", number * 10))

    def referred(self, schema: Schema) -> dict[str, Schema]:
        return {reference.name: self.named[reference.name] for reference in schema.references}


def codec(document: Any, kind: Kind = "AVRO") -> SchemaCodec:
    schema = Schema(json.dumps(document), kind)
    return SchemaCodec(Shelf({1: schema}), written=(1, schema), subject="rides-value")


def one(document: Any, value: Any, **how: Any) -> bytes:
    data = codec(document).encode_many([value], **how)[0]
    assert isinstance(data, bytes), data
    return data


def field(name: str, kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind}]}


def test_records_in_bulk_are_what_fastavro_writes_one_by_one() -> None:
    rows = [{**GOOD, "vendor": n, "stops": GOOD["stops"] * (n % 4)} for n in range(1500)]
    parsed = fastavro.parse_schema(json.loads(json.dumps(RIDE)))
    expected = []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, row)
        expected.append(b"\0\0\0\0\1" + out.getvalue())
    ours = codec(RIDE)
    assert ours.encode_many(rows) == expected
    decoded = ours.decode_many(expected)
    assert [found.value for found in decoded if isinstance(found, Decoded)] == rows
    assert decoded[0] == Decoded(rows[0], 1, 10)


def test_a_text_that_is_the_mark_between_records_does_no_harm() -> None:
    schema = Schema(json.dumps(field("text", "string")))
    avro = Avro(schema, {})
    assert avro._marked is not None
    mark = avro._marked._end.decode()
    rows = [{"text": f"a{mark}b"}, {"text": "c"}]
    encoded = [data for data in avro.encode(rows, b"") if isinstance(data, bytes)]
    assert avro.decode(encoded) == rows


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vendor": "two"}, "field vendor: 'two' is not an int"),
        ({"vendor": "2"}, "field vendor: '2' is not an int"),
        ({"vendor": 2.5}, "field vendor: 2.5 is not an int"),
        ({"vendor": True}, "field vendor: True is not an int"),
        ({"vendor": None}, "field vendor: null is not an int"),
        ({"vendor": 2**31}, "field vendor: 2147483648 is out of the range of an int"),
        ({"distance": "far"}, "field distance: 'far' is not a double"),
        ({"note": 5}, "field note: 5 is not a null or string"),
        ({"stops": {}}, "field stops: {} is not an array of record Stop"),
        ({"stops": [{"name": "a"}]}, "field stops[0].kind is missing, and has no default"),
        ({"stops": [{"name": "a", "kind": "LOST"}]}, "field stops[0].kind: 'LOST' is not an enum Kind (START, END)"),
        ({"stops": [{"name": "a", "kind": "END", "x": 1}]}, "field stops[0].x is not in the schema"),
        ({"tip": 1}, "field tip is not in the schema"),
    ],
)
def test_what_does_not_fit_is_named_and_the_others_are_written(change: dict[str, Any], words: str) -> None:
    first, second, third = codec(RIDE).encode_many([GOOD, {**GOOD, **change}, GOOD])
    assert isinstance(second, CodecError)
    assert second.problem == words
    assert first == third == one(RIDE, GOOD)


@pytest.mark.parametrize("value", ["text", None, 5, [GOOD]])
def test_what_is_no_record_at_all(value: Any) -> None:
    found = codec(RIDE).encode_many([value])[0]
    assert isinstance(found, CodecError)
    assert "is not a record Ride" in found.problem


def test_a_missing_field_with_a_default_is_filled_and_one_without_is_named() -> None:
    short = {name: value for name, value in GOOD.items() if name != "note"}
    assert one(RIDE, short) == one(RIDE, GOOD)
    found = codec(RIDE).encode_many([{"vendor": 1}])[0]
    assert isinstance(found, CodecError)
    assert found.problem == "field distance is missing, and has no default"


@pytest.mark.parametrize(
    ("kind", "given", "read"),
    [
        ({"type": "long", "logicalType": "timestamp-millis"}, "2026-05-01T12:00:00Z",
         datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC)),
        ({"type": "long", "logicalType": "timestamp-millis"}, 5,
         datetime.datetime(1970, 1, 1, 0, 0, 0, 5000, tzinfo=datetime.UTC)),
        ({"type": "int", "logicalType": "date"}, "2026-05-01", datetime.date(2026, 5, 1)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "1.25", decimal.Decimal("1.25")),
        ({"type": "string", "logicalType": "uuid"}, "12345678-1234-5678-1234-567812345678",
         uuid.UUID("12345678-1234-5678-1234-567812345678")),
        ("bytes", "aGVsbG8=", b"hello"),
        ("bytes", b"hello", b"hello"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", b"ab"),
        ({"type": "map", "values": "long"}, {"a": 2**40}, {"a": 2**40}),
        (["null", "long", "string"], "x", "x"),
        (["null", {"type": "record", "name": "A", "fields": [{"name": "a", "type": "int"}]},
          {"type": "record", "name": "B", "fields": [{"name": "b", "type": "int"}]}], {"b": 1}, {"b": 1}),
        ({"type": "record", "name": "T", "fields": [{"name": "next", "type": ["null", "T"]}]},
         {"next": {"next": None}}, {"next": {"next": None}}),
    ],
)  # fmt: skip
def test_every_type_comes_back(kind: Any, given: Any, read: Any) -> None:
    document = field("f", kind)
    found = codec(document).decode_many([one(document, {"f": given})])[0]
    assert isinstance(found, Decoded), found
    assert found.value == {"f": read}


def test_numbers_and_arrays_of_numpy_are_what_they_hold() -> None:
    assert one(field("f", "int"), {"f": numpy.int64(7)}) == one(field("f", "int"), {"f": 7})
    assert one(field("f", "double"), {"f": numpy.float32(0.5)}) == one(field("f", "double"), {"f": 0.5})
    array = {"type": "array", "items": "long"}
    assert one(field("f", array), {"f": numpy.arange(3)}) == one(field("f", array), {"f": [0, 1, 2]})
    (refused,) = codec(field("f", "int")).encode_many([{"f": numpy.int64(2**40)}])
    assert "out of the range" in str(refused)


@pytest.mark.parametrize("document", ["int", "string", {"type": "array", "items": "int"}])
def test_a_schema_that_is_no_record(document: Any) -> None:
    value: Any = {"int": 7, "string": "seven"}.get(document) if isinstance(document, str) else [7]
    found = codec(document).decode_many([one(document, value)])[0]
    assert isinstance(found, Decoded)
    assert found.value == value


def test_cells_of_a_csv_file_are_read_as_the_schema_says() -> None:
    document = {"type": "record", "name": "R", "fields": [
        {"name": "n", "type": "int"}, {"name": "x", "type": ["null", "double"]}, {"name": "ok", "type": "boolean"},
        {"name": "text", "type": "string"}]}  # fmt: skip
    cells = {"n": "5", "x": "", "ok": "true", "text": "7"}
    expected = {"n": 5, "x": None, "ok": True, "text": "7"}
    assert one(document, cells, text=True) == one(document, expected)
    found = codec(document).encode_many([cells, {**cells, "n": "five"}], text=True)[1]
    assert isinstance(found, CodecError)
    assert found.problem == "field n: 'five' is not an int"


@pytest.mark.parametrize(
    ("cell", "whole", "fraction"),
    [
        (".73", None, 0.73), ("5.", 5, 5.0), ("1e3", 1000, 1000.0), ("12.0", 12, 12.0), ("-.5E1", -5, -5.0),
        ("12.5", None, 12.5), ("one", None, None), ("1\u0663", None, None), ("007", None, None),
        ("1234567890123456789", 1234567890123456789, 1234567890123456789.0),
        ("9007199254740993.0", 9007199254740993, 9007199254740992.0), ("-1e18", -(10**18), -1e18),
        ("0.123456789012345678901", None, 0.12345678901234568), ("1e999", None, None),
        ("12345678901234567890123", None, 12345678901234567890123.0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF"])
def test_numbers_of_csv_files(kind: Kind, cell: str, whole: int | None, fraction: float | None) -> None:
    for (avro, json_type, proto), number in (
        (("long", "integer", "int64"), whole), (("double", "number", "double"), fraction),
    ):  # fmt: skip
        schema = {
            "AVRO": json.dumps({"type": "record", "name": "R", "fields": [
                {"name": "n", "type": ["null", avro]}, {"name": "s", "type": "string"}]}),
            "JSON": json.dumps({"type": "object", "properties": {"n": {"type": json_type}, "s": {"type": "string"}}}),
            "PROTOBUF": f'syntax = "proto3"; message R {{ {proto} n = 1; string s = 2; }}',
        }[kind]  # fmt: skip
        ours = SchemaCodec(Shelf({1: Schema(schema, kind)}), written=(1, Schema(schema, kind)))
        [data] = ours.encode_many([{"n": cell, "s": cell}], text=True)
        if number is None:
            assert isinstance(data, CodecError), (cell, data)
            continue
        assert isinstance(data, bytes), (cell, data)
        [read] = ours.decode_many([data])
        assert isinstance(read, Decoded)
        # Protobuf's JSON has text for 64 bits; a whole number must not have been a float on its way.
        found = type(number)(read.value["n"])
        assert (found, read.value["s"]) == (number, cell)


def test_a_whole_number_may_be_written_with_a_fraction_of_zero() -> None:
    document = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "n", "type": "int"}, {"name": "x", "type": "double"}],
    }
    assert one(document, {"n": 12.0, "x": 2.0}) == one(document, {"n": 12, "x": 2.0})
    found = codec(document).encode_many([{"n": 1, "x": 1.0}, {"n": 12.5, "x": 1.0}])[1]
    assert isinstance(found, CodecError)
    assert found.problem == "field n: 12.5 is not an int"


def test_damaged_bytes_are_errors_in_their_place() -> None:
    good = one(RIDE, GOOD)
    unknown = b"\0\0\0\0\7" + good[5:]
    found = codec(RIDE).decode_many([good, b"", good[:-2], None, good + b"x", b"{}" + good, unknown, good])
    words = [f"{e.problem}: {e.why}" if isinstance(e, CodecError) else type(e).__name__ for e in found]
    assert words == [
        "Decoded",
        "it has 0 bytes, too few to carry the id of a schema: None",
        "its bytes do not fit its schema: they end too early",
        "NoneType",
        "its bytes do not fit its schema: some are left over",
        "it was not written with a registry: its first byte is 0x7b, not 0: None",
        "its schema's id 7 is not known to the registry: None",
        "Decoded",
    ]


def test_no_bytes_whatever_end_the_run() -> None:
    good = one(RIDE, GOOD)
    bent = [good[:at] + bytes([byte]) + good[at + 1 :] for at in range(5, len(good)) for byte in (0, 0x7F, 0x80, 0xFF)]
    found = codec(RIDE).decode_many([*bent, good])
    assert len(found) == len(bent) + 1
    assert isinstance(found[-1], Decoded)
    assert all(isinstance(one_of, (Decoded, CodecError)) for one_of in found)


def test_versions_side_by_side_are_read_by_their_ids_and_each_is_asked_for_once() -> None:
    old, new = Schema(json.dumps(field("a", "int"))), Schema(json.dumps(field("b", "string")))
    shelf = Shelf({1: old, 2: new})
    first = SchemaCodec(shelf, written=(1, old)).encode_many([{"a": n} for n in range(3)])
    second = SchemaCodec(shelf, written=(2, new)).encode_many([{"b": str(n)} for n in range(3)])
    mixed: Any = [data for pair in zip(first, second, strict=True) for data in pair]
    reading = SchemaCodec(shelf)
    found = [
        (one_of.schema_id, one_of.value) for one_of in reading.decode_many(mixed * 2) if isinstance(one_of, Decoded)
    ]
    assert found == [(1, {"a": 0}), (2, {"b": "0"}), (1, {"a": 1}), (2, {"b": "1"}), (1, {"a": 2}), (2, {"b": "2"})] * 2
    assert sorted(map(str, shelf.asked)) == ["1", "2"]


def test_a_reader_with_another_schema() -> None:
    old = Schema(json.dumps(field("a", "int")))
    new = json.loads(old.text)
    new["fields"] = [{"name": "a", "type": "long"}, {"name": "b", "type": "string", "default": "x"}]
    data: Any = SchemaCodec(Shelf({}), written=(1, old)).encode_many([{"a": 1}])
    assert SchemaCodec(Shelf({1: old}), reader=Schema(json.dumps(new))).decode_many(data) == [
        Decoded({"a": 1, "b": "x"}, 1, 9)
    ]
    other = SchemaCodec(Shelf({1: old}), reader=Schema(json.dumps(field("a", "string")))).decode_many(data)[0]
    assert isinstance(other, CodecError)
    assert "reader's schema" in other.problem
    kind = SchemaCodec(Shelf({1: old}), reader=Schema('{"type": "object"}', "JSON")).decode_many(data)[0]
    assert isinstance(kind, CodecError)
    assert kind.problem == "it was written with a schema of type AVRO, not JSON"


def test_the_id_or_the_guid_may_stand_in_a_header() -> None:
    schema, guid = Schema(json.dumps(field("a", "int"))), uuid.uuid4()
    shelf = Shelf({1: schema, str(guid): schema})
    body = one(field("a", "int"), {"a": 5})[5:]
    found = SchemaCodec(shelf).decode_many([body, body, b"\0\0\0\0\1" + body, body], [
        b"\0\0\0\0\1", b"\1" + guid.bytes, None, b"\7"])  # fmt: skip
    assert [one_of.value for one_of in found[:3] if isinstance(one_of, Decoded)] == [{"a": 5}] * 3
    assert isinstance(found[3], CodecError)


def test_a_schema_that_refers_to_another() -> None:
    vendor = Schema(json.dumps({"type": "record", "name": "Vendor", "namespace": "taxi", "fields": [
        {"name": "id", "type": "int"}]}))  # fmt: skip
    ride = Schema(
        json.dumps({"type": "record", "name": "R", "namespace": "taxi", "fields": [
            {"name": "v", "type": "Vendor"}, {"name": "w", "type": ["null", "taxi.Vendor"]}]}),
        references=(Reference("taxi.Vendor", "vendor", 1),),
    )  # fmt: skip
    ours = SchemaCodec(Shelf({1: ride}, {"taxi.Vendor": vendor}), written=(1, ride))
    value = {"v": {"id": 1}, "w": {"id": 2}}
    data: Any = ours.encode_many([value, {"v": {"id": "x"}, "w": None}])
    assert ours.decode_many(data[:1]) == [Decoded(value, 1, 9)]
    assert data[1].problem == "field v.id: 'x' is not an int"


def test_json_schema_is_checked_both_ways() -> None:
    document = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    ours = codec(document, "JSON")
    good, bad = ours.encode_many([{"n": 1}, {"n": "x"}])
    assert good == b'\0\0\0\0\1{"n":1}'
    assert isinstance(bad, CodecError)
    assert bad.problem == "field n: 'x' is not of type 'integer'"
    found = ours.decode_many([good, b'\0\0\0\0\1{"m":1}', b"\0\0\0\0\1{"])
    assert found[0] == Decoded({"n": 1}, 1, 10)
    assert [str(error).splitlines()[0] for error in found[1:]] == [
        "'n' is a required property",
        "its bytes cannot be parsed as JSON",
    ]
    assert ours.encode_many([{"n": "7"}], text=True) == [b'\0\0\0\0\1{"n":7}']


def test_without_a_schema_nothing_can_be_written() -> None:
    with pytest.raises(UsageError, match="no schema to write with"):
        SchemaCodec(Shelf({})).encode_many([{}])


PROTO = """
syntax = "proto3";  // comments are passed over
package taxi;
import "google/protobuf/timestamp.proto";
option java_package = "com.example";
message Ride {
  int32 vendor_id = 1;
  optional float tip = 2;
  repeated Stop stops = 3 [deprecated = true];
  map<string, int64> extra = 4;
  oneof pay { string card = 5; bool cash = 6; }
  google.protobuf.Timestamp at = 7;
  Kind kind = 8;
  enum Kind { UNKNOWN = 0; GOOD = 1; }
  message Stop { string name = 1; }
  reserved 9, 10;
}
message Other { Ride.Stop stop = 1; }
service Rides { rpc Get(Ride) returns (Other) {} }
"""


def test_protobuf_from_the_text_of_its_schema() -> None:
    schema = Schema(PROTO, "PROTOBUF")
    ours = SchemaCodec(Shelf({1: schema}), written=(1, schema))
    ride = {"vendor_id": 1, "tip": 0.5, "stops": [{"name": "a"}], "extra": {"a": "1099511627776"}, "card": "x",
            "at": "2026-01-01T00:00:00Z", "kind": "GOOD"}  # fmt: skip
    good, bad, unknown, none = ours.encode_many([ride, {"vendor_id": "x"}, {"nope": 1}, 5])
    assert isinstance(good, bytes)
    assert good.startswith(b"\0\0\0\0\1\0\x08\x01")
    assert all(isinstance(one_of, CodecError) for one_of in (bad, unknown, none))
    assert "vendor_id" in str(bad)
    assert 'no field named "nope"' in str(unknown)
    other = b"\0\0\0\0\1" + b"\x02\x02" + b"\x0a\x03\x0a\x01z"
    found = ours.decode_many([good, other, good[:-1], b"\0\0\0\0\1", b"\0\0\0\0\1\x02\x08"])
    assert [one_of.value for one_of in found if isinstance(one_of, Decoded)] == [ride, {"stop": {"name": "z"}}]
    assert [type(one_of) for one_of in found[2:]] == [CodecError] * 3
