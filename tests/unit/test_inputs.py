"""Files and streams as records: every shape, however the bytes arrive, and whatever is broken in them."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import Failed, UsageError
from headrace.kafka.write.inputs import (
    BadPiece,
    InputOptions,
    Place,
    RecordReader,
    Shape,
    detect_shape,
    field,
    key_bytes,
)

ROWS: list[dict[str, Any]] = [
    {"TRIP": 1, "at": "10-SEP-20", "where": {"lat": 45.5, "note": 'a "quoted" }{ ],[ thing'}},
    {"TRIP": 2, "at": "", "stops": [{"TRIP": 0}, {"TRIP": 0}], "gone": None},
    {"TRIP": 123456789012345678901234567890, "name": "Straße 東京 \\ \n"},
]


class Trickle(io.RawIOBase):
    """A stream that gives a few bytes per read, like a pipe whose other end is slow."""

    def __init__(self, data: bytes, sizes: Callable[[], int]) -> None:
        self._rest = data
        self._sizes = sizes

    def read(self, size: int = -1) -> bytes:
        count = min(self._sizes(), size)
        piece, self._rest = self._rest[:count], self._rest[count:]
        return piece


def read(data: bytes, options: InputOptions | None = None) -> tuple[Shape, list[bytes]]:
    reader = RecordReader(io.BytesIO(data), options)
    return reader.shape, [value for batch in reader for value in batch.values]


def read_aside(data: bytes, shape: Shape, **more: Any) -> tuple[list[bytes], list[BadPiece]]:
    pieces: list[BadPiece] = []
    options = InputOptions(shape=shape, on_bad="set-aside", set_aside=pieces.append, **more)
    reader = RecordReader(io.BytesIO(data), options)
    values = [value for batch in reader for value in batch.values]
    assert reader.bad == len(pieces)
    assert reader.records == len(values)
    return values, pieces


def written_as(shape: Shape, rows: list[Any], *, indent: int | None = None, escape: bool = True) -> bytes:
    texts = [json.dumps(row, indent=indent, ensure_ascii=escape) for row in rows]
    if shape is Shape.STRINGS:
        return json.dumps(texts, ensure_ascii=escape).encode()
    if shape is Shape.ARRAY:
        return json.dumps(rows, indent=indent, ensure_ascii=escape).encode()
    return ("" if shape is Shape.CONCATENATED else "\n").join(texts).encode()


JSON_SHAPES = [Shape.NDJSON, Shape.ARRAY, Shape.CONCATENATED, Shape.STRINGS]


@pytest.mark.parametrize("shape", JSON_SHAPES)
def test_each_json_shape_is_detected_and_gives_back_the_rows(shape: Shape) -> None:
    found, values = read(written_as(shape, ROWS))
    assert found is shape
    assert [json.loads(value) for value in values] == ROWS


@pytest.mark.parametrize("shape", [Shape.ARRAY, Shape.CONCATENATED])
def test_a_record_over_several_lines_becomes_one_line_and_keeps_its_tokens(shape: Shape) -> None:
    data = b'[{\n  "a": 1.50,\n  "b": "x\\u00e9  y"\n}]'
    if shape is Shape.CONCATENATED:
        data = data[1:-1]
    assert read(data) == (shape, [b'{"a":1.50,"b":"x\\u00e9  y"}'])


def test_a_record_on_one_line_keeps_its_bytes() -> None:
    record = b'{ "a" :1.50, "n":1e400, "i":123456789012345678901234567890, "a":2 }'
    for data in (record + b"\n" + record, b"[" + record + b",\n\t" + record + b" ]", record + record):
        assert read(data)[1] == [record, record]


@pytest.mark.parametrize(
    ("head", "shape"),
    [
        (b"", Shape.LINES),
        (b"hello\nworld\n", Shape.LINES),
        (b"Dear Sir, how are you?\nFine, thank you.\n", Shape.LINES),
        (b"one, two, three\nfour, five, six\n", Shape.LINES),
        (b"[INFO] it started\n[INFO] it works\n", Shape.LINES),
        (b"[2024-01-01 10:00] started\n", Shape.LINES),
        (b"[17] pid first\n[18] and another\n", Shape.LINES),
        (b"{braces} are not JSON\n", Shape.LINES),
        (b"\x00\x01\xff\xfe\n\x02", Shape.LINES),
        (b'{"a":1}', Shape.NDJSON),
        (b'\xef\xbb\xbf{"a":1}\r\n{"a":2}\r\n', Shape.NDJSON),
        (b'{"a":1,}\n{"a":2}\n{"a":3}\n', Shape.NDJSON),
        (b"[1,2]\n[3,4]\n", Shape.NDJSON),
        (b'{"a":1}{"a":2}', Shape.CONCATENATED),
        (b'{"a":1}{"a":2}\n{"a":3}{"a":4}\n', Shape.CONCATENATED),
        (b'{\n "a": 1\n}\n{\n "a": 2\n}\n', Shape.CONCATENATED),
        (b'{"a":"' + b"x" * 300_000, Shape.CONCATENATED),
        (b"[]", Shape.ARRAY),
        (b"[1, 2, 3]", Shape.ARRAY),
        (b'["a", "b"]', Shape.ARRAY),
        (b'\n [\n {"a":1},\n {"a":2}\n]\n', Shape.ARRAY),
        (b'[{"a":1},{"a":', Shape.ARRAY),
        (b'["{\\"a\\":1}"]', Shape.STRINGS),
        (b"id,name,score\n1,Ann,3\n2,Bob,4\n", Shape.CSV),
        (b"id;name\n1;Ann\n2;Bob", Shape.CSV),
        (b"name\tcity\tcode\nAnn\tParis\tF\n", Shape.CSV),
        (b"1,Ann,XX,Paris\n2,Bob,XX,Rome\n", Shape.CSV_NO_HEADER),
        (b"Ann,Hernandez,Paris\nBob,Barrett,Rome\n", Shape.CSV_NO_HEADER),
    ],
)
def test_detection(head: bytes, shape: Shape) -> None:
    assert detect_shape(head) is shape


def test_lines_are_left_as_they_are() -> None:
    shape, values = read(b"\xef\xbb\xbfone\r\n\r\ntw\ro\n\xff\x00\xfe\n last without end ")
    assert shape is Shape.LINES
    assert values == [b"one", b"", b"tw\ro", b"\xff\x00\xfe", b" last without end "]


def test_ndjson_ends_lines_with_crlf_and_steps_over_blank_ones() -> None:
    assert read(b'{"a":1}\r\n\r\n{"a":2}\r\n  \n{"a":3}')[1] == [b'{"a":1}', b'{"a":2}', b'{"a":3}']


def test_arrays_one_after_another_are_read_as_one() -> None:
    assert read(b"[1,2]\n\n[ ] [3]", InputOptions(shape=Shape.ARRAY))[1] == [b"1", b"2", b"3"]


def test_parsed_objects_stand_beside_their_bytes() -> None:
    for shape in JSON_SHAPES:
        reader = RecordReader(io.BytesIO(written_as(shape, ROWS)), InputOptions(parsed=True))
        batches = list(reader)
        assert [row for batch in batches for row in batch.objects or []] == ROWS
        assert sum(len(batch.values) for batch in batches) == len(ROWS)


def test_plain_lines_have_no_fields() -> None:
    with pytest.raises(UsageError, match="plain lines"):
        RecordReader(io.BytesIO(b"hello\n"), InputOptions(parsed=True))


# -- CSV ---------------------------------------------------------------------------------------------


def test_csv_rows_become_objects_of_strings() -> None:
    data = b'id,name,score\r\n1,"Ann ""A"" Lee",\r\n\r\n2,"two\nlines",4.50\r\n'
    shape, values = read(data)
    assert shape is Shape.CSV
    assert [json.loads(value) for value in values] == [
        {"id": "1", "name": 'Ann "A" Lee', "score": ""},
        {"id": "2", "name": "two\nlines", "score": "4.50"},
    ]


def test_csv_without_a_header_gives_arrays_or_the_named_columns() -> None:
    data = b"1,Ann,Paris\n2,Bob,Rome"
    assert read(data)[1] == [b'["1","Ann","Paris"]', b'["2","Bob","Rome"]']
    options = InputOptions(shape=Shape.CSV_NO_HEADER, columns=["id", "name", "city"])
    assert read(data, options)[1][1] == b'{"id":"2","name":"Bob","city":"Rome"}'


def test_bad_csv_rows_name_their_line_and_cost_only_themselves() -> None:
    data = b'id,name\n1,Ann\n2,Bob,extra\n3,"never closed\n4,\xff\n5,Eve\n'
    values, pieces = read_aside(data, Shape.CSV)
    assert [json.loads(value)["id"] for value in values] == ["1", "5"]
    assert [(piece.place.number, piece.data) for piece in pieces] == [
        (3, b"2,Bob,extra"),
        (4, b'3,"never closed'),
        (5, b"4,\xff"),
    ]
    with pytest.raises(Failed, match="line 3"):
        read(data)


@pytest.mark.parametrize(
    ("shape", "data"),
    [
        ("ndjson", b'{"a":1}\n{"a":\n{"a":2}\n{"b":\n{"a":3}\n{"c":\n'),
        ("array", b'[{"a":1},{"a":},{"a":2},{"b":},{"a":3},{"c":}]'), ("csv", b"a,b\n1,1\n2\n2,2\n3\n3,3\n4\n"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("on_bad", ["set-aside", "stop"])
def test_bad_pieces_among_what_is_left_out_were_dealt_with_before(shape: str, data: bytes, on_bad: Any) -> None:
    pieces: list[BadPiece] = []
    options = InputOptions(Shape(shape), on_bad=on_bad, set_aside=pieces.append, skip=2)
    reader = RecordReader(io.BytesIO(data), options)
    if on_bad == "stop":
        with pytest.raises(Failed, match=r"(line 4|line 5|byte 24): the input cannot be parsed"):
            list(reader)
        return
    (last,) = [value for batch in reader for value in batch.values]
    assert b"3" in last
    assert (len(pieces), reader.bad) == (2, 2)


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="one name: a"):
        read(b"a,b,a\n1,2,3\n", InputOptions(shape=Shape.CSV))


# -- what is broken ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        b'{"a":1}{"b":2}',
        b'{"a":NaN}',
        b'{"a":1',
        b'{"a":01}',
        b'{"a":"\xff"}',
        b'{"a":"tab\there"}',
        b'{"a":"\\ud800"}',
        b"[" * 100_000 + b"]" * 100_000,
        b"oops",
    ],
)
def test_a_line_that_is_not_json_is_named_and_stops_after_the_good_ones(line: bytes) -> None:
    data = b'{"a":0}\n\n' + line + b'\n{"a":2}\n'
    batches = iter(RecordReader(io.BytesIO(data), InputOptions(shape=Shape.NDJSON)))
    assert next(batches).values == [b'{"a":0}']
    with pytest.raises(Failed, match="line 3") as caught:
        next(batches)
    assert caught.value.why is not None
    assert line[:10].decode(errors="replace") in caught.value.why
    values, pieces = read_aside(data, Shape.NDJSON)
    assert values == [b'{"a":0}', b'{"a":2}']
    assert [(piece.data, piece.place) for piece in pieces] == [(line, Place("line", 3))]


@pytest.mark.parametrize(
    "bad",
    [
        b'{"a":oops}',
        b'{"a":1,"l":[{"n":1},{"n":2}],"b":oops}',
        b'{"a":1',
        b'{"a":"never closed}',
        b'{"a":"\xff"}',
        b'{"a":1}}',
        b"oops",
    ],
)
@pytest.mark.parametrize("shape", [Shape.ARRAY, Shape.CONCATENATED])
def test_a_bad_element_costs_only_itself(shape: Shape, bad: bytes) -> None:
    comma, around = (b",", b"[%b]") if shape is Shape.ARRAY else (b"", b"%b")
    good = [b'{"a":%d,"l":[{"n":1}]}' % number for number in range(4)]
    data = around % comma.join([*good[:2], bad, *good[2:]])
    values, pieces = read_aside(data, shape)
    assert values == good or (bad == b'{"a":1}}' and values == [*good[:2], b'{"a":1}', *good[2:]])
    (piece,) = pieces
    assert data[piece.place.number :].startswith(piece.data)
    assert piece.data == (b"}" if bad.endswith(b"}}") else bad)
    with pytest.raises(Failed, match=f"byte {piece.place.number}"):
        read(data, InputOptions(shape=shape))


@pytest.mark.parametrize("bad", [b'{"a":oops}', b'{"a":"x'])
def test_a_bad_last_element_leaves_the_array_closed(bad: bytes) -> None:
    values, pieces = read_aside(b'[{"a":1},' + bad + b"]\n", Shape.ARRAY)
    assert values == [b'{"a":1}']
    assert [piece.data for piece in pieces] == [bad]


@pytest.mark.parametrize(
    ("data", "values", "pieces"),
    [
        (b'["{\\"a\\":1}", "{oops", 7, "{\\"a\\":2}"]', [b'{"a":1}', b'{"a":2}'], [b'"{oops"', b"7"]),
        (b'["{\\"a\\":1}", "bad \\x escape", "{\\"a\\":2}"]', [b'{"a":1}', b'{"a":2}'], [b'"bad \\x escape"']),
    ],
)
def test_an_array_of_strings_is_validated_inside(data: bytes, values: list[bytes], pieces: list[bytes]) -> None:
    found, bad = read_aside(data, Shape.STRINGS)
    assert found == values
    assert [piece.data for piece in bad] == pieces


@pytest.mark.parametrize(
    ("data", "values", "reason"),
    [
        (b'[{"a":1},{"a":2}', [b'{"a":1}', b'{"a":2}'], "ends before the array does"),
        (b'[{"a":1},', [b'{"a":1}'], "ends before the array does"),
        (b'[{"a":1},{"a"', [b'{"a":1}'], "ends inside this value"),
        (b'[{"a":1},]', [b'{"a":1}'], "a comma stands before"),
        (b'[{"a":1} {"a":2}]', [b'{"a":1}', b'{"a":2}'], "was expected"),
        (b'[{"a":1}] trailing', [b'{"a":1}'], "was expected"),
        (b"[1, x2, 3]", [b"1", b"3"], "malformed"),
    ],
)
def test_a_broken_array_says_how(data: bytes, values: list[bytes], reason: str) -> None:
    found, pieces = read_aside(data, Shape.ARRAY)
    assert found == values
    assert [reason in piece.reason for piece in pieces] == [True]


def test_a_missing_comma_inside_a_value_is_not_mended() -> None:
    good = b'{"k":1}' * 3
    mended_by_a_naive_reader = b'{"k":[{"k":1}{"k":2}]}'
    values, pieces = read_aside(good + mended_by_a_naive_reader + good, Shape.CONCATENATED)
    assert b'{"k":[{"k":1},{"k":2}]}' not in values
    assert values.count(b'{"k":1}') >= 6
    assert pieces


# -- whatever arrives, in whatever pieces ------------------------------------------------------------


def random_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(9 if depth < 3 else 6)
    if kind < 2:
        return rng.choice([0, -1, 1.5, 10**30, 1e-7, rng.randrange(10**9)])
    if kind < 5:
        return "".join(rng.choice('ab"\\{}[],: \né東\U0001f600') for _ in range(rng.randrange(12)))
    if kind < 6:
        return rng.choice([True, False, None])
    if kind < 7:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice("abcde"): random_value(rng, depth + 1) for _ in range(rng.randrange(5))}


@pytest.mark.parametrize("seed", range(60))
def test_any_json_arriving_in_any_pieces_is_read_as_the_json_module_reads_it(seed: int) -> None:
    rng = random.Random(seed)
    rows = [{rng.choice(["id", "id", "other"]): n, "v": random_value(rng)} for n in range(rng.randrange(1, 60))]
    shape = rng.choice(JSON_SHAPES)
    indent = rng.choice([None, None, 2]) if shape is not Shape.NDJSON else None
    data = written_as(shape, rows, indent=indent, escape=rng.random() < 0.5)
    largest = rng.choice([1, 3, 50, 5000])
    stream = Trickle(data, lambda: rng.randrange(1, largest + 1))
    reader = RecordReader(stream, InputOptions(shape=shape, parsed=rng.random() < 0.5))  # type: ignore[arg-type]
    values = [value for batch in reader for value in batch.values]
    assert [json.loads(value) for value in values] == rows
    assert not any(b"\n" in value for value in values)


@pytest.mark.parametrize("seed", range(150))
def test_damage_anywhere_loses_no_byte(seed: int) -> None:
    rng = random.Random(seed)
    rows = [{"id": n, "v": random_value(rng, 2)} for n in range(40)]
    shape = rng.choice([Shape.ARRAY, Shape.CONCATENATED, Shape.NDJSON])
    data = bytearray(written_as(shape, rows))
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(3)] = rng.choice([b"", b'"', b"{", b"}", b"]", b"\\", b"\xff", b",", b"x"])
    values, pieces = read_aside(bytes(data), shape)
    kept = b"".join([*values, *(piece.data for piece in pieces)])
    separators = b" ,[]\n"
    assert sorted(kept.translate(None, separators)) == sorted(bytes(data).translate(None, separators))
    assert len(values) >= 20 or shape is not Shape.NDJSON
    for value in values:
        json.loads(value)


def test_a_line_is_handed_on_before_the_next_one_comes() -> None:
    out, into = os.pipe()
    with os.fdopen(out, "rb") as stream:
        os.write(into, b'{"a":1}\n{"a":')
        batches = iter(RecordReader(stream))
        assert next(batches).values == [b'{"a":1}']
        os.write(into, b"2}\n")
        assert next(batches).values == [b'{"a":2}']
        os.close(into)
        assert list(batches) == []


def test_an_element_is_handed_on_before_the_next_one_comes() -> None:
    out, into = os.pipe()
    with os.fdopen(out, "rb") as stream:
        os.write(into, b'[\n{"a":1}')
        reader = RecordReader(stream, InputOptions(shape=Shape.ARRAY))
        batches = iter(reader)
        assert next(batches).values == [b'{"a":1}']
        os.write(into, b',{"a":2},')
        assert next(batches).values == [b'{"a":2}']
        os.write(into, b"3]")
        os.close(into)
        assert [batch.values for batch in batches] == [[b"3"]]


# -- files -------------------------------------------------------------------------------------------


def test_a_gzip_file_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "rows.json.gz"
    path.write_bytes(gzip.compress(written_as(Shape.ARRAY, ROWS)))
    with RecordReader(path) as reader:
        assert [json.loads(value) for batch in reader for value in batch.values] == ROWS
    path.write_bytes(path.read_bytes()[:-12])
    with RecordReader(path, InputOptions(shape=Shape.LINES)) as reader, pytest.raises(Failed, match="to its end"):
        list(reader)


@pytest.mark.parametrize("parsed", [False, True])
def test_a_file_comes_in_few_batches_and_whole_before_the_error_at_its_end(tmp_path: Path, parsed: bool) -> None:
    path = tmp_path / "rows.ndjson"
    lines = [b'{"id":%d,"fill":"%b"}' % (number, b"x" * 300) for number in range(10_000)]
    path.write_bytes(b"\n".join([*lines, b"oops"]))
    with RecordReader(path, InputOptions(parsed=parsed)) as reader:
        seen: list[bytes] = []
        numbers: list[int] = []
        sizes: list[int] = []
        with pytest.raises(Failed, match="line 10001"):  # noqa: PT012 - what came before the error counts here
            for batch in reader:
                assert batch.first.number == len(seen) + 1
                seen += batch.values
                numbers += [row["id"] for row in batch.objects or ()]
                sizes.append(len(batch.values))
    assert seen == lines
    assert numbers == (list(range(10_000)) if parsed else [])
    assert len(sizes) < 6


@pytest.mark.parametrize("name", ["absent.json", "no/such/dir.json", "."])
def test_what_cannot_be_opened_is_a_usage_error_with_a_hint(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        RecordReader(tmp_path / name)
    assert caught.value.hint


def test_utf16_is_refused_unless_sent_as_lines() -> None:
    data = "hello\n".encode("utf-16")
    with pytest.raises(UsageError, match="UTF-16"):
        read(data)
    assert read(data, InputOptions(shape=Shape.LINES))[1][0] == data[: data.index(b"\n")]


def test_positions_count_from_the_start_of_the_file() -> None:
    record = b'{"a":"' + b"x" * 500 + b'"}'
    data = b"\xef\xbb\xbf[" + b",".join([record] * 2000) + b"]"
    reader = RecordReader(io.BytesIO(data))
    batches = list(reader)
    assert len(batches) > 3
    for batch in batches:
        assert batch.first.unit == "byte"
        assert data[batch.first.number :].startswith(batch.values[0])


# Not `ru_maxrss`: it starts with the size of the process that started this one.
MEMORY = r"""
import pathlib, re, sys
from headrace.kafka.write.inputs import InputOptions, RecordReader
most = lambda: int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())[1])
before = most()
reader = RecordReader(sys.argv[1], InputOptions(parsed=sys.argv[2] == "parsed"))
for batch in reader:
    pass
print(reader.shape, reader.records, most() - before)
"""


@pytest.mark.parametrize("how", ["raw", "parsed"])
def test_sixty_megabytes_on_one_line_are_read_in_constant_memory(tmp_path: Path, how: str) -> None:
    path = tmp_path / "big.json"
    block = b",".join(b'{"id":%d,"fill":"%b"}' % (number, b"x" * 300) for number in range(10_000))
    with path.open("wb") as file:
        file.write(b"[" + block)
        for _ in range(18):
            file.write(b"," + block)
        file.write(b"]")
    assert path.stat().st_size > 60_000_000
    run = subprocess.run([sys.executable, "-c", MEMORY, path, how], capture_output=True, text=True, check=True)
    shape, records, grown_kb = run.stdout.split()
    assert (shape, records) == ("array", "190000")
    assert int(grown_kb) < 16_000


def test_a_record_without_an_end_is_refused_before_it_fills_the_memory() -> None:
    line = b"x" * (65 << 20)
    with pytest.raises(Failed, match=r"line 1.*longer than 64 MiB"):
        read(line, InputOptions(shape=Shape.LINES))
    with pytest.raises(Failed, match=r"byte 1.*longer than 64 MiB"):
        read(b'["' + line, InputOptions(shape=Shape.ARRAY))


# -- fields ------------------------------------------------------------------------------------------


def test_a_field_is_found_by_its_dotted_path() -> None:
    record = {"a": {"b": [10, {"c": "x"}]}, "a.b": "whole name first", "n": None}
    assert field(record, "a.b.1.c") == "x"
    assert field(record, "a.b") == "whole name first"
    assert field(record, "n") is None
    for path in ("a.x", "a.b.7", "n.m", ""):
        with pytest.raises(Failed, match="no field"):
            field(record, path)


@pytest.mark.parametrize(
    ("value", "key"),
    [(None, None), ("é", "é".encode()), ("", b""), (1776, b"1776"), (True, b"true"), ([1, "a"], b'[1,"a"]')],
)
def test_a_field_as_a_key(value: Any, key: bytes | None) -> None:
    assert key_bytes(value) == key
