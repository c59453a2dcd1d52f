"""Which partition a key belongs to, the same for Python, Java and Spark.

Kafka's Java clients hash a key with murmur2 (seed 0x9747b28c) and take the positive part modulo the
number of partitions; librdkafka does the same with `partitioner=murmur2_random`, its default (CRC32)
does not. This module computes that number and never sends anything.
A record without a key belongs to no partition: the client chooses one for it.
"""

from __future__ import annotations

import struct

from headrace.errors import UsageError

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """The hash as an unsigned 32-bit number; Java shows the same bits as a signed one."""
    size = len(key)
    whole = size & ~3
    state = _SEED ^ size
    for (word,) in struct.iter_unpack("<I", key[:whole]):
        word = (word * _MULTIPLIER) & _MASK
        word ^= word >> 24
        state = ((state * _MULTIPLIER) & _MASK) ^ ((word * _MULTIPLIER) & _MASK)
    if whole < size:
        state = ((state ^ int.from_bytes(key[whole:], "little")) * _MULTIPLIER) & _MASK
    state = ((state ^ (state >> 13)) * _MULTIPLIER) & _MASK
    return state ^ (state >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    """The partition that every record with this key goes to, in a topic of so many partitions."""
    if partitions < 1:
        raise UsageError(f"a topic cannot have {partitions} partitions", hint="name an existing topic")
    return (murmur2(key) & 0x7FFFFFFF) % partitions
