"""Records as text and files."""

from __future__ import annotations

import io
import json
import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow.parquet as pq
import pytest

from headrace.cli.output import print_table
from headrace.errors import Failed, UsageError
from headrace.kafka.read.consumer import Batch
from headrace.kafka.read.outputs import (
    CSV_HEADING,
    OrderCheck,
    ParquetWriter,
    StreamWriter,
    encode_csv,
    encode_ndjson,
    end_with_a_whole_line,
    format_encoder,
    shown,
    table,
    values_encoder,
)

if TYPE_CHECKING:
    from headrace.kafka.client import Message


class Read:
    """A record as the client hands it over: our own seam to confluent-kafka's Message."""

    def __init__(self, value: bytes | None, key: bytes | None = None, offset: int = 0, headers: Any = None) -> None:
        self._parts = (value, key, offset, headers)

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return self._parts[2]

    def timestamp(self) -> tuple[int, int]:
        return (1, 1_600_000_000_000)

    def key(self) -> bytes | None:
        return self._parts[1]

    def value(self) -> bytes | None:
        return self._parts[0]

    def headers(self) -> Any:
        return self._parts[3]


def batch(*messages: Read) -> Batch:
    return Batch(1, cast("list[Message]", list(messages)))


def test_ndjson_holds_everything_and_any_bytes() -> None:
    line = json.loads(encode_ndjson(batch(Read(b"\xff\x00", "ü".encode(), 7, [("h", b"v"), ("n", None)]))))
    assert line == {
        "topic": "t", "partition": 3, "offset": 7, "timestamp": 1_600_000_000_000, "timestamp_type": "create",
        "key": "ü", "value": {"base64": "/wA="}, "headers": [{"name": "h", "value": "v"}, {"name": "n", "value": None}],
        "member": 1,
    }  # fmt: skip


def test_format_strings() -> None:
    encode = format_encoder(r"%t/%p@%o %k=%v 100%%\n")
    assert encode(batch(Read(b"v", b"k", 5))) == b"t/3@5 k=v 100%\n"
    with pytest.raises(UsageError, match="unknown field %x"):
        format_encoder("%x")


def test_values_and_table_show_bytes_safely() -> None:
    assert values_encoder()(batch(Read(b"a"), Read(None))) == b"a\n\n"
    assert shown(b"tab\there \xff\x1b[31m") == "tab\\there \\xff\\x1b[31m"
    heading, encode = table(80, ["t"])
    line = encode(batch(Read(b"x" * 500, b"key"))).decode()
    assert len(line) == 81
    assert line.endswith("…\n")
    assert line.count("x") > 40
    assert heading.decode().index("VALUE") == line.index("x")


def test_a_table_wraps_between_words_when_the_terminal_is_narrow(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("node-1", "what it is for, in words", 7), ("node-2", "broker,controller", 12)]
    print_table(("name", "meaning", "n"), rows, terminal_width=22)
    assert capsys.readouterr().out.splitlines() == [
        "NAME    MEANING      N",
        "node-1  what it is   7",
        "        for, in",
        "        words",
        "node-2  broker,     12",
        "        controller",
    ]
    names = [("orders-of-the-day", 7), ("short", 12)]
    print_table(("topic", "under-replicated"), names, terminal_width=23)
    assert capsys.readouterr().out.splitlines() == [
        "TOPIC            UNDER-",
        "             REPLICATED",
        "orders-of-            7",
        "the-day",
        "short                12",
    ]
    print_table(("node", "roles"), [("broker-1", "broker,controller")], terminal_width=12)
    assert "broker-1  broker," in capsys.readouterr().out  # a number stays with its name, whatever the width
    print_table(("name", "meaning", "n"), rows)  # a pipe has no width
    assert "node-1  what it is for, in words   7" in capsys.readouterr().out


def test_csv_quotes_what_it_must() -> None:
    out = io.BytesIO()
    writer = StreamWriter(out, encode_csv, heading=CSV_HEADING)
    writer.write(batch(Read(b'{"a":"x,y"}', b"k", 1)))
    writer.close()
    assert out.getvalue().decode().splitlines() == [
        "topic,partition,offset,timestamp,key,value,headers",
        't,3,1,2020-09-13T12:26:40.000+00:00,k,"{""a"":""x,y""}",',
    ]


def test_a_full_disk_is_said() -> None:
    with Path("/dev/full").open("wb", buffering=0) as full, pytest.raises(Failed, match="disk is full"):
        StreamWriter(full, values_encoder()).write(batch(Read(b"x")))


def test_a_file_that_cannot_grow_keeps_whole_batches_only(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = tmp_path / "out"
    with path.open("wb", buffering=0) as stream:
        writer = StreamWriter(stream, values_encoder())
        writer.write(batch(Read(b"x" * 600)))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        try:
            with pytest.raises(Failed, match="cannot be written"):
                writer.write(batch(Read(b"y" * 600)))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == b"x" * 600 + b"\n"


@pytest.mark.parametrize(
    ("held", "kept", "torn"),
    [
        (b"", b"", None),
        (b"one\ntwo\n", b"one\ntwo\n", None),
        (b"one\ntw", b"one\n", b"tw\n"),
        (b"half", b"", b"half\n"),
        (b"one\n" + b"x" * 200_000, b"one\n", b"x" * 200_000 + b"\n"),
    ],
)
def test_half_a_line_at_the_end_is_set_aside(tmp_path: Path, held: bytes, kept: bytes, torn: bytes | None) -> None:
    path, aside = tmp_path / "out.ndjson", tmp_path / "out.ndjson.torn"
    path.write_bytes(held)
    assert end_with_a_whole_line(path) == (len(torn) - 1 if torn else 0)
    assert path.read_bytes() == kept
    assert (aside.read_bytes() if aside.exists() else None) == torn


def test_a_closed_pipe_is_left_to_the_error_boundary() -> None:
    reader, writing = os.pipe()
    os.close(reader)
    with os.fdopen(writing, "wb", buffering=0) as stream:
        writer = StreamWriter(stream, values_encoder())
        with pytest.raises(BrokenPipeError):
            writer.write(batch(Read(b"x")))


def test_parquet_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    writer = ParquetWriter(path)
    writer.write(batch(Read(b"\xff", b"k", 1, [("h", b"v")]), Read(None, None, 2)))
    assert not path.exists()
    writer.close()
    table = pq.read_table(path).to_pylist()
    assert [(row["offset"], row["key"], row["value"], row["headers"]) for row in table] == [
        (1, b"k", b"\xff", [("h", b"v")]),
        (2, None, None, []),
    ]


def test_order_is_checked_within_a_key_and_numbers_are_numbers() -> None:
    check = OrderCheck("n")
    check.see(batch(Read(b"[" * 5000 + b"]" * 5000, b"a")))
    check.see(batch(Read(b'{"n":"9"}', b"a"), Read(b'{"n":"10"}', b"a"), Read(b'{"n":"1"}', b"b")))
    assert (check.checked, check.violations) == (3, 0)
    check.see(batch(Read(b'{"n":"3"}', b"a", offset=12)))
    assert check.violations == 1
    assert check.first == "key a: n = 3.0 after 10.0 (t/3 at 12)"
