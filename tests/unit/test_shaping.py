"""How input records become Kafka records."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from headrace.errors import Failed, UsageError
from headrace.kafka.write.inputs import InputBatch, Place
from headrace.kafka.write.shaping import (
    Dealer,
    Outgoing,
    Route,
    Shaper,
    Shaping,
    encode_value,
    parse_route,
    timestamp_ms,
)


def batch(*objects: Any) -> InputBatch:
    return InputBatch([msgspec.json.encode(o) for o in objects], Place("line", 1), list(objects))


def shaped(wanted: Shaping, *objects: Any) -> list[Outgoing]:
    return list(Shaper(wanted, "t").shape(batch(*objects)))


def test_key_comes_from_a_nested_field() -> None:
    (out,) = shaped(Shaping(key_field="a.b"), {"a": {"b": "x"}}, {"a": {"b": 7}}, {"a": {"b": None}})
    assert out.keys == [b"x", b"7", None]


def test_random_keys_repeat_with_the_seed_and_cover_the_range() -> None:
    wanted = Shaping(random_key=(1, 5), seed=3)
    rows: list[dict[str, str]] = [{} for _ in range(200)]
    first, second = shaped(wanted, *rows)[0].keys, shaped(wanted, *rows)[0].keys
    assert first == second
    assert set(first or ()) == {b"1", b"2", b"3", b"4", b"5"}


def test_an_echo_names_fields_and_the_value_that_is_sent_wherever_a_record_goes() -> None:
    route = Route("class", {"setosa": ("a", (1,)), "*": ("b", ())})
    wanted = Shaping(route=route, value_fields=("length", "width"), echo=("class",))
    flowers = [{"class": name, "length": 5.1, "width": at} for at, name in enumerate(("setosa", "virginica", "setosa"))]
    one, two = shaped(wanted, *flowers)
    assert one.echoes == ["setosa [5.1,0]", "setosa [5.1,2]"]
    assert two.echoes == ["virginica [5.1,1]"]
    assert one.slice(1, 2).echoes == ["setosa [5.1,2]"]
    assert shaped(Shaping(echo=(), null_value=b'"gone"'), "gone")[0].echoes == ["null"]
    assert shaped(Shaping(value_fields=("length",)), flowers[0])[0].echoes is None


def test_only_one_source_of_the_key_is_taken() -> None:
    with pytest.raises(UsageError, match="only one key"):
        Shaper(Shaping(key=b"k", key_field="f"), "t")


def test_route_by_a_field_is_exact_and_takes_partitions_in_turn() -> None:
    route = parse_route("species:virginica=vs/0,setosa=vs/1,versicolor=v/0+1", "t")
    rows = [{"species": name} for name in ["setosa", "versicolor", "virginica", "versicolor", "setosa", "versicolor"]]
    out = {o.topic: o for o in shaped(Shaping(route=route), *rows)}
    assert out["vs"].partition == [1, 0, 1]
    assert out["v"].partition == [0, 1, 0]


def test_route_without_an_entry_is_an_error_unless_there_is_a_star() -> None:
    rows = [{"kind": "c"}]
    with pytest.raises(Failed, match="no entry for kind = 'c'"):
        shaped(Shaping(route=Route("kind", {"a": ("x", ())})), *rows)
    (out,) = shaped(Shaping(route=parse_route("kind:a=x,*=rest/2", "t")), *rows)
    assert (out.topic, out.partition) == ("rest", [2])


def test_route_by_a_function_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "route.py").write_text("def by_size(record):\n    return ('big' if record['n'] > 5 else 'small', 1)\n")
    route = parse_route(f"{tmp_path}/route.py:by_size", "t")
    out = shaped(Shaping(route=route), {"n": 9}, {"n": 1})
    assert [(o.topic, o.partition) for o in out] == [("big", [1]), ("small", [1])]


@pytest.mark.parametrize("text", ["species", "species:", "species:a", "missing.py:f", "s:a=t/x"])
def test_route_that_cannot_be_read(text: str) -> None:
    with pytest.raises(UsageError):
        parse_route(text, "t")


def test_value_fields_and_tombstones() -> None:
    (out,) = shaped(Shaping(value_fields=("a", "b")), {"a": 1.5, "b": "x", "c": 0})
    assert out.values == [b'[1.5,"x"]']
    (out,) = shaped(Shaping(null_value=b'"-"'), "-", "kept")
    assert out.values == [None, b'"kept"']


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (1_600_000_000, 1_600_000_000_000),
        ("1600000000123", 1_600_000_000_123),
        ("2020-09-13T12:26:40Z", 1_600_000_000_000),
        ("2020-09-13 12:26:40", 1_600_000_000_000),
        ("2020-09-13T14:26:40+02:00", 1_600_000_000_000),
    ],
)
def test_timestamps(given: Any, expected: int) -> None:
    assert timestamp_ms(given) == expected


def test_what_is_no_time_is_said() -> None:
    with pytest.raises(Failed, match="invalid time: 'soon'"):
        timestamp_ms("soon")


def test_numpy_values_serialise() -> None:
    assert encode_value([np.float64(5.1), np.int32(3)]) == b"[5.1,3]"
    assert encode_value(np.array([[1, 2], [3, 4]])) == b"[[1,2],[3,4]]"
    assert encode_value({"a": np.bool_(True)}) == b'{"a":true}'


def test_bytes_and_text_are_sent_as_they_are() -> None:
    assert encode_value(b"\xff\x00") == b"\xff\x00"
    assert encode_value("grün") == "grün".encode()
    assert encode_value(None) is None


def test_what_cannot_be_json_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="cannot be sent as JSON"):
        encode_value(object())


def test_a_slice_keeps_its_columns_together() -> None:
    out = Outgoing("t", [b"a", b"b", b"c"], [b"1", b"2", b"3"], [0, 1, 2], [10, 20, 30])
    part = out.slice(1, 3)
    assert (part.values, part.keys, part.partition, part.timestamps_ms) == (
        [b"b", b"c"],
        [b"2", b"3"],
        [1, 2],
        [20, 30],
    )


def test_records_without_a_key_are_dealt_out_evenly() -> None:
    dealer = Dealer(3)
    assert dealer.deal(7) == [0, 0, 0, 1, 1, 1, 2]
    assert dealer.deal(3, one_by_one=True) == [0, 1, 2]
    counts = Counter(Dealer(6).deal(12_435))
    assert max(counts.values()) - min(counts.values()) <= Dealer.LONGEST_RUN
    assert set(counts) == set(range(6))
