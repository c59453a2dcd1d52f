"""What is wrong with a dead letter, in words that lead to the place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.pipeline.books.dead_letters import Letter, summary
from headrace.pipeline.books.diagnosis import diagnose, parse_ddl
from headrace.pipeline.declare.declaration import Declaration, Decode, Rule, Sink

_FIELDS = (
    "id long NOT NULL COMMENT 'the, id', name string, small tinyint, ratio double, ok boolean, price decimal(10, 2), "
    "`odd name`: int, tags array<string>, at struct<x: int, y: struct<z: double>>, counts map<string, bigint>"
)


def letter(value: bytes | None, rule: str = "decode", reason: str = "not usable", **more: Any) -> Letter:
    given: dict[str, Any] = {"outcome": "dead", "headers": (), **more}
    return Letter(
        None, value, given["headers"], "p", "r", given["outcome"], rule, reason, "topic", 0, 17, 0, "topic.dead/0/3"
    )


def declared(format_: Any = "json", schema: str | None = _FIELDS, **more: Any) -> Declaration:
    return Declaration("p", ("topic",), (Sink("console", "console"),), Decode(format_, schema), **more)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "the value is null"),
        (b'{"name": "a\xffb"}', "byte 11 (0xff) is not valid UTF-8: invalid start byte"),
        (b'{"id": 1,, "name": 2}', "at character 9: "),
        (b'{"id": 1', "at character 8: Expecting ',' delimiter"),
        (b"", "at character 0: Expecting value"),
        (b'{"id": 1} {"id": 2}', "another value begins at character 10"),
        (b"[1, 2]", "it is a list, not an object"),
        (b"null", "it is null, not an object"),
        (b'"text"', "it is text, not an object"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"id": "12"}', 'field id: "12" is text, not a long'),
        (b'{"id": 1.5}', "field id: 1.5 is not a whole number, but the field is a long"),
        (b'{"id": true}', "field id: true is a boolean, not a long"),
        (b'{"id": 9223372036854775808}', "field id: 9223372036854775808 is out of the range of a long"),
        (b'{"small": 128}', "field small: 128 is out of the range of a tinyint"),
        (b'{"ratio": "high"}', 'field ratio: "high" is text, not a double'),
        (b'{"ok": 1}', "field ok: 1 is a number, not a boolean"),
        (b'{"price": []}', "field price: [] is a list, not a decimal"),
        (b'{"odd name": "x"}', 'field odd name: "x" is text, not an int'),
        (b'{"tags": {}}', "field tags: {} is an object, not an array"),
        (b'{"at": {"x": 1, "y": {"z": "far"}}}', 'field at.y.z: "far" is text, not a double'),
        (b'{"counts": {"a": 1, "b": "many"}}', 'field counts[1]: "many" is text, not a bigint'),
    ],
)
def test_json(value: bytes | None, words: str) -> None:
    assert words in diagnose(letter(value), declared())


def test_what_fits_keeps_its_reason() -> None:
    fine = {"id": 2**63 - 1, "name": 7, "small": -128, "ratio": "NaN", "ok": False, "tags": ["a"], "at": {"y": None}}
    assert diagnose(letter(json.dumps(fine).encode(), reason="as Spark says"), declared()) == "as Spark says"


def test_ddl() -> None:
    found = parse_ddl(_FIELDS)
    assert list(found) == ["id", "name", "small", "ratio", "ok", "price", "odd name", "tags", "at", "counts"]
    assert [str(kind) for kind in found.values()][:2] == ["long", "string"]
    assert list(found["at"].fields or ()) == ["x", "y"]
    assert parse_ddl("a array<") == {}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"1,a", "it has 2 cells, 3 fields are declared"),
        (b"1,a,x", "field n: 'x' is not a valid int"),
        (b"1,a,99999999999", "field n: 99999999999 is out of the range of an int"),
    ],
)
def test_csv(line: bytes, words: str) -> None:
    assert diagnose(letter(line), declared("csv", "id long, name string, n int")) == words


def test_a_frame_without_a_registry() -> None:
    framed = declared("avro", None)
    assert "id 17" in diagnose(letter(b"\0\0\0\0\x11body"), framed)
    assert "its first byte is 0x7b" in diagnose(letter(b"{no frame}"), framed)
    assert "too few" in diagnose(letter(b"\0\0"), framed)


def test_the_values_behind_a_rule_are_shown() -> None:
    declaration = declared(
        "json", "LAT string, LON string",
        select={"latitude": "try_cast(nullif(LAT, '') as double)", "north": "latitude > 0"},
        rules=(Rule("is north", "north"),),
    )  # fmt: skip
    value = b'{"LAT": "-45.5", "LON": "12"}'
    assert diagnose(letter(value, "is north", "not so: north"), declaration) == 'not so: north, with LAT = "-45.5"'
    failed = diagnose(letter(value, "select", "the expression failed of latitude"), declaration)
    assert failed == "latitude = try_cast(nullif(LAT, '') as double) failed, with LAT = \"-45.5\""


def test_late_letters_keep_their_reason() -> None:
    assert diagnose(letter(b"{}", "watermark", "an hour behind", outcome="late"), declared()) == "an hour behind"


def test_the_sum_of_many_letters() -> None:
    many = [letter(b"x" * size, "decode", f"kind {size % 2}") for size in range(1, 8)]
    odd, even = summary(many, samples=2, explain=lambda one: f"{one.size_bytes} bytes")
    assert (odd.reason, odd.records, odd.bytes) == ("kind 1", 4, 16)
    assert [sample.words for sample in even.samples] == ["2 bytes", "4 bytes"]


def test_reasons_without_end_are_counted_together() -> None:
    groups = summary(letter(b"x", "decode", f"unknown schema id {n}") for n in range(5000))
    assert len(groups) == 1001
    assert (groups[0].reason, groups[0].records) == ("other reasons", 4000)


def test_a_sample_of_a_huge_letter_is_small() -> None:
    (group,) = summary([letter(b"x" * 5_000_000)])
    assert group.bytes == 5_000_000
    assert len(group.samples[0].value or b"") == 1000
