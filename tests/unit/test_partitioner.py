"""The partition of a key, against what librdkafka (murmur2_random) really did with the same keys on a cluster."""

from __future__ import annotations

import pytest

from headrace.errors import UsageError
from headrace.transport.partitioner import murmur2, partition_of


@pytest.mark.parametrize(
    ("key", "hashed", "of_seven"),
    [
        (b"", 275646681, 2),
        (b"a", 2731586172, 5),
        (b"ab", 316155434, 0),
        (b"abc", 479470107, 4),
        (b"abcd", 2971317748, 5),
        ("żółć".encode(), 475252577, 2),
        ("日本語".encode(), 1431860170, 6),
        (b"\xff\xfe\x00", 3662153412, 6),
        (b"1776", 1167883977, 1),
        (b"k" * 1000, 2719246288, 1),
    ],
)
def test_keys_go_where_librdkafka_sent_them(key: bytes, hashed: int, of_seven: int) -> None:
    assert murmur2(key) == hashed
    assert partition_of(key, 7) == of_seven


def test_every_partition_of_a_topic_can_be_reached() -> None:
    assert {partition_of(b"%d" % number, 6) for number in range(100)} == set(range(6))


def test_a_topic_has_at_least_one_partition() -> None:
    with pytest.raises(UsageError):
        partition_of(b"a", 0)
