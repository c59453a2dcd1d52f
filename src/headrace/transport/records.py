"""A record that was read, and which records are wanted."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# The numbers of confluent-kafka's Message.timestamp().
_TIMESTAMP_TYPES = {0: "none", 1: "create", 2: "append"}


@dataclass(frozen=True, slots=True)
class Record:
    """One record with everything that Kafka says about it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    member: int = 1

    @classmethod
    def of(cls, message: Any, member: int = 1) -> Record:
        """The record in a confluent-kafka Message."""
        kind, timestamp = message.timestamp()
        return cls(
            message.topic(),
            message.partition(),
            message.offset(),
            timestamp,
            _TIMESTAMP_TYPES.get(kind, "none"),
            message.key(),
            message.value(),
            tuple(message.headers() or ()),
            member,
        )

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON: text where the bytes are UTF-8, else `{"base64": …}`."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "timestamp": self.timestamp_ms,
            "timestamp_type": self.timestamp_type,
            "key": text_or_base64(self.key),
            "value": text_or_base64(self.value),
            "headers": [{"name": name, "value": text_or_base64(value)} for name, value in self.headers],
            "member": self.member,
        }


def text_or_base64(data: bytes | None) -> str | dict[str, str] | None:
    """Bytes as JSON can hold them without loss."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


@dataclass(frozen=True)
class Filter:
    """Which records are wanted; every condition that is given must hold."""

    keys: frozenset[bytes] = frozenset()
    headers: Mapping[str, bytes] = field(default_factory=dict)
    contains: Sequence[bytes] = ()

    @property
    def everything(self) -> bool:
        return not (self.keys or self.headers or self.contains)

    def matches(self, message: Any) -> bool:
        """True if the confluent-kafka Message is wanted."""
        if self.keys and message.key() not in self.keys:
            return False
        if self.contains:
            value = message.value() or b""
            if not all(part in value for part in self.contains):
                return False
        if self.headers:
            has = dict(message.headers() or ())
            return all(has.get(name) == value for name, value in self.headers.items())
        return True
