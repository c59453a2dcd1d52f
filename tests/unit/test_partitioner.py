"""The partition of a key, against what librdkafka (murmur2_random) really did with the same keys on a cluster."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.errors import UsageError
from headrace.kafka.write.shaping import partition_of


@pytest.mark.parametrize(
    ("key", "of_seven"),
    [
        (b"", 2),
        (b"a", 5),
        (b"ab", 0),
        (b"abc", 4),
        (b"abcd", 5),
        ("żółć".encode(), 2),
        ("日本語".encode(), 6),
        (b"\xff\xfe\x00", 6),
        (b"1776", 1),
        (b"k" * 1000, 1),
    ],
)
def test_keys_go_where_librdkafka_sent_them(key: bytes, of_seven: int) -> None:
    assert partition_of(key, 7) == of_seven


def test_every_partition_of_a_topic_can_be_reached() -> None:
    assert {partition_of(b"%d" % number, 6) for number in range(100)} == set(range(6))


def test_a_topic_has_at_least_one_partition() -> None:
    with pytest.raises(UsageError):
        partition_of(b"a", 0)


def test_that_kafka_python_is_loaded_warns_nobody() -> None:
    ask = "from headrace import partition_of; partition_of(b'a', 3)"
    subprocess.run([sys.executable, "-W", "error", "-c", ask], check=True)
