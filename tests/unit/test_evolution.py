"""What changed between two schemas, and what that breaks, without a registry."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import UsageError
from headrace.schemas.codec.proto_text import parse_proto
from headrace.schemas.evolution import diff, explain, field_at
from headrace.schemas.files import read_schema
from headrace.schemas.registry import Kind, Schema


def record(*fields: dict[str, Any], name: str = "Ride") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def schema(document: Any, kind: Kind = "AVRO") -> Schema:
    return Schema(document if isinstance(document, str) else json.dumps(document), kind)


def test_the_difference_of_two_versions_in_words() -> None:
    old = record(field("a", "int"), field("b", "string"), field("v", record(field("id", "int"), name="Vendor")))
    new = record(
        field("a", "long", default=1),
        field("v", record(field("id", ["null", "int"]), name="Vendor")),
        field("c", "float"),
    )
    assert list(map(str, diff(schema(old), schema(new)))) == [
        "b: removed, was string",
        "a: int became long",
        "a: default none became 1",
        "v.id: int became null or int",
        "c: added, float",
    ]
    assert diff(schema(old), schema(old)) == []


def test_what_breaks_in_json_schema_and_protobuf_is_told_beside_the_registrys_words() -> None:
    old = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "null"}}}
    new = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "number"}, "c": {"type": "null"},
                                            "d": {"type": "string"}}, "required": ["c", "d"]}  # fmt: skip
    found = explain(schema(new, "JSON"), [schema(old, "JSON")] * 2, "BACKWARD_TRANSITIVE", "refused")
    assert [(each.words, each.remedy) for each in found] == [
        ("field a was integer and would be string", "keep integer in field a, or add a new field beside it"),
        ("field c was optional and would be required: old records may lack it", "keep field c optional"),
        ("field d is new and required: old records lack it", "make field d optional"),
        ("refused", None),
    ]
    before = 'syntax = "proto3"; message Ride { int32 a = 1; int32 b = 2; string c = 3; }'
    after = 'syntax = "proto3"; message Ride { string a = 1; int64 b = 2; string c = 4; }'
    found = explain(schema(after, "PROTOBUF"), [schema(before, "PROTOBUF")], "BACKWARD", "")
    assert [each.words for each in found] == [
        "field Ride.a was int32 = 1 and would be string = 1", "field Ride.c was string = 3 and would be string = 4",
    ]  # fmt: skip


def test_differences_of_json_schema_and_protobuf() -> None:
    old = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}
    new = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}, "required": ["b"]}
    assert list(map(str, diff(schema(old, "JSON"), schema(new, "JSON")))) == [
        "a: integer became string", "a: required True became False", "b: required False became True",
    ]  # fmt: skip
    before = 'syntax = "proto3"; message Ride { int32 a = 1; /* gone */ repeated string b = 2; }'
    after = 'syntax = "proto3";\nmessage Ride {\n  string a = 1; // now text\n  message In { bool c = 1; }\n}'
    assert list(map(str, diff(schema(before, "PROTOBUF"), schema(after, "PROTOBUF")))) == [
        "Ride.b: removed, was repeated string = 2",
        "Ride.a: int32 = 1 became string = 1",
        "Ride.In.c: added, bool = 1",
    ]
    before = 'syntax = "proto3"; message A { oneof one { string d = 3; } map<string, B> m = 2; message B {} }'
    after = 'syntax = "proto3"; message A { optional .A.B d = 3 [deprecated = true]; message B {} }'
    assert list(map(str, diff(schema(before, "PROTOBUF"), schema(after, "PROTOBUF")))) == [
        "A.one.d: removed, was string = 3",
        "A.m: removed, was map<string, B> = 2",
        "A.d: added, optional .A.B = 3",
    ]
    # Some clients register the descriptor in base64, in which types are named in full.
    registered = [base64.b64encode(parse_proto(text, "a").SerializeToString()).decode() for text in (before, after)]
    assert [each.field for each in diff(*(schema(text, "PROTOBUF") for text in registered))] == [
        "A.one.d",
        "A.m",
        "A.d",
    ]
    odd = schema("message A { optional group G = 1 { optional int32 a = 2; } }", "PROTOBUF")
    assert [each.words for each in explain(odd, [odd], "BACKWARD", "no groups")] == ["no groups"]
    with pytest.raises(UsageError, match="one schema is JSON"):
        diff(schema(old, "JSON"), schema(before, "PROTOBUF"))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (field("a", "int"), field("a", "string"), "field a was int and would be string"),
        (field("a", "long"), field("a", "int"), "field a was long and would be int"),
        (field("a", "int"), field("b", "int"), "field b (int) is new and has no default"),
        (field("a", {"type": "enum", "name": "E", "symbols": ["X", "Y"]}),
         field("a", {"type": "enum", "name": "E", "symbols": ["X"]}), "field a: the enum lost Y"),
        (field("a", {"type": "array", "items": "int"}), field("a", {"type": "array", "items": "string"}),
         "field a[] was int and would be string"),
        (field("a", ["null", "int"]), field("a", "int"), "field a was null or int and would be int"),
        (field("a", record(field("q", "int"), name="N")), field("a", record(field("q", "bytes"), name="N")),
         "field a.q was int and would be bytes"),
        (field("a", {"type": "fixed", "name": "F", "size": 2}), field("a", {"type": "fixed", "name": "F", "size": 3}),
         "field a was fixed of 2 bytes and would be fixed of 3 bytes"),
    ],
)  # fmt: skip
def test_what_breaks_readers_of_the_new_schema(old: Any, new: Any, words: str) -> None:
    (found,) = explain(schema(record(new)), [schema(record(old))], "BACKWARD", "")
    assert found.words.startswith(words)
    assert found.remedy


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (field("a", "int"), field("a", "double")),
        (field("a", "int"), field("a", ["null", "int"])),
        (field("a", "int"), field("b", "int", aliases=["a"])),
        (field("a", "string"), field("a", "bytes")),
    ],
)
def test_what_breaks_nobody(old: Any, new: Any) -> None:
    message = "told by the registry"
    (found,) = explain(schema(record(new)), [schema(record(old))], "BACKWARD", message)
    assert found.words == message


def test_the_message_of_the_registry_is_read_where_our_rules_see_nothing() -> None:
    message = (
        "RuleViolationException: Incompatible artifact: r [AVRO], num of incompatible diffs: {2}, list of diff types: "
        "[reader type: STRING not compatible with writer type: INT at /fields/0/type, tip at /fields/1]"
    )
    new = schema(record(field("a", "string"), field("tip", "float")))
    first, second = explain(new, [new], "BACKWARD", message)
    assert first.words.startswith("field a was int and would be string")
    assert second.words == "tip (at /fields/1, field tip)"


def test_a_path_leads_to_a_field() -> None:
    nested = schema(record(field("x", "int"), field("n", record(field("q", "long"), name="N"))))
    assert field_at(nested, "/fields/1/type/fields/0/type") == "n.q"
    assert (
        field_at(schema({"properties": {"a": {"properties": {"b": {}}}}}, "JSON"), "/properties/a/properties/b")
        == "a.b"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"type": "record"', "line 1, column 18"),
        (
            json.dumps(record(field("a", "strng"))),
            "at /fields/0/type\n  why: 'strng' is not an Avro type; the nearest is string",
        ),
        (json.dumps(record(field("a", "int"), field("a", "int"))), "field a is there twice"),
        (json.dumps(record({"name": "a"})), "field a has no type"),
        (json.dumps(record(field("a b", "int"))), "at /fields/0"),
        (json.dumps(record(field("a", "int", default="x"))), 'the default "x" is not of type int'),
        (json.dumps(record(field("a", {"type": "enum", "name": "E", "symbols": []}))), "at /fields/0/type/symbols"),
        (json.dumps(record(field("a", {"type": "array"}))), "type array needs items"),
        (json.dumps(record(field("a", ["null", ["int"]]))), "at /fields/0/type/1"),
        ("5", "5 is not an Avro type"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_position(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "a.avsc"
    path.write_text(text)
    with pytest.raises(UsageError) as refused:
        read_schema(path)
    assert words in str(refused.value)


def test_what_is_wrong_with_a_proto_is_said_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.proto"
    path.write_text('syntax = "proto3";\nmessage X {\n  int32 a = ;\n}\n')
    with pytest.raises(UsageError, match="line 3, column 13"):
        read_schema(path)


def test_the_kind_of_a_file_is_told_by_its_suffix_or_its_content(tmp_path: Path) -> None:
    contents: dict[str, tuple[str, Kind]] = {
        "a.avsc": ('"int"', "AVRO"),
        "b.json": (json.dumps(record(field("a", "int"))), "AVRO"),
        "c.json": ('{"type": "object"}', "JSON"),
        "d.json": ('{"$schema": "http://json-schema.org/draft-07/schema#", "type": "string"}', "JSON"),
        "e.proto": ('syntax = "proto3"; message A {}', "PROTOBUF"),
        "f.txt": ('syntax = "proto3"; message A {}', "PROTOBUF"),
    }
    for name, (text, kind) in contents.items():
        (tmp_path / name).write_text(text)
        assert read_schema(tmp_path / name).kind == kind, name
