"""A record that was read, and which records are wanted."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from headrace.errors import CodecError
from headrace.schemas import KEY_HEADER, VALUE_HEADER
from headrace.text import text_or_base64

if TYPE_CHECKING:
    from headrace.kafka.client import Message
    from headrace.schemas import Codec, Decoded

    #: What a codec made of a key or a value: None without a codec, or for a null.
    MaybeDecoded = Decoded | CodecError | None

_ask_for_headers = methodcaller("headers")
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
    #: The objects in key and value, or why there are none, if the reading had a codec for them.
    decoded: Decoded | CodecError | None = None
    decoded_key: Decoded | CodecError | None = None

    @property
    def value_shown(self) -> bytes | None:
        """The value for the eye and for a pipe: what was decoded as JSON, else the bytes as they are."""
        return self.value if self.decoded is None else json_of(self.decoded, self.value)

    @property
    def key_shown(self) -> bytes | None:
        """The key for the eye and for a pipe."""
        return self.key if self.decoded_key is None else json_of(self.decoded_key, self.key)

    @classmethod
    def of(
        cls, message: Message, member: int = 1, decoded: MaybeDecoded = None, decoded_key: MaybeDecoded = None
    ) -> Record:
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
            tuple(headers_of(message)),
            member,
            decoded,
            decoded_key,
        )


def headers_of(message: Message) -> Sequence[tuple[str, bytes | None]]:
    """The headers of a confluent-kafka Message.

    Where a name is not UTF-8, confluent-kafka gives a list with holes, at which Python crashes. `methodcaller` sees the
    error that was set beside it, which a plain call misses once the interpreter has optimised it. Then one header that
    has the name stands for all of them.
    """
    try:
        found: Sequence[tuple[str, bytes | None]] = _ask_for_headers(message) or ()
    except (SystemError, UnicodeDecodeError) as error:
        cause = error.__cause__ or error
        name = (
            cause.object.decode(errors="replace")
            if isinstance(cause, UnicodeDecodeError)
            else "\N{REPLACEMENT CHARACTER}"
        )
        found = [(f"{name} (not UTF-8, so the headers cannot be read)", None)]
        message.set_headers([*found])
    return found


def decode_messages(
    codec: Codec | None, messages: Sequence[Message], part: Literal["key", "value"]
) -> list[MaybeDecoded] | None:
    """The values or keys of confluent-kafka Messages, decoded, or None without a codec."""
    if codec is None:
        return None
    name = VALUE_HEADER if part == "value" else KEY_HEADER
    headers = [next((data for key, data in headers_of(m) if key == name), None) for m in messages]
    data = [m.value() for m in messages] if part == "value" else [m.key() for m in messages]
    return codec.decode_many(data, headers if any(headers) else None)


class JsonRecord(msgspec.Struct):
    """A record as `consume --json` prints it: text where the bytes are UTF-8, else `{"base64": …}`."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: str
    key: str | dict[str, str] | None
    value: str | dict[str, str] | None
    headers: list[dict[str, str | dict[str, str] | None]]
    member: int

    @classmethod
    def of(cls, message: Message, member: int = 1) -> Self:
        """The record in a confluent-kafka Message. Straight from there, because this is done a million times."""
        kind, timestamp = message.timestamp()
        headers = headers_of(message)
        return cls(
            message.topic(),
            message.partition(),
            message.offset(),
            timestamp,
            _TIMESTAMP_TYPES.get(kind, "none"),
            text_or_base64(message.key()),
            text_or_base64(message.value()),
            [{"name": name, "value": text_or_base64(value)} for name, value in headers],
            member,
        )


class DecodedJsonRecord(JsonRecord, omit_defaults=True):
    """The same for a record that was decoded: objects instead of text, and the schema; or the bytes, and the error."""

    key: Any
    value: Any
    schema_id: int | None = None
    schema_version: int | None = None
    error: str | None = None

    @classmethod
    def of_decoded(
        cls, message: Message, member: int, decoded: MaybeDecoded, decoded_key: MaybeDecoded
    ) -> DecodedJsonRecord:
        """The record in a confluent-kafka Message, with what was made of its value and its key."""
        made = cls.of(message, member)
        for part, found in (("key", decoded_key), ("value", decoded)):
            if isinstance(found, CodecError):
                setattr(made, part, {"base64": base64.b64encode(getattr(message, part)()).decode()})
                made.error = f"{part}: {one_line(found)}"
            elif found is not None:
                setattr(made, part, found.value)
                if part == "value":
                    made.schema_id, made.schema_version = found.schema_id, found.schema_version
        return made


def one_line(error: CodecError) -> str:
    return f"{error.problem} ({error.why})" if error.why else error.problem


def json_of(decoded: Decoded | CodecError, data: bytes | None) -> bytes:
    """What was decoded as JSON; bytes that could not be decoded as `{"error": …, "base64": …}`."""
    if isinstance(decoded, CodecError):
        return msgspec.json.encode({"error": one_line(decoded), "base64": data})
    return msgspec.json.encode(decoded.value)


@dataclass(frozen=True)
class Filter:
    """Which records are wanted; every condition that is given must hold."""

    keys: frozenset[bytes] = frozenset()
    headers: Mapping[str, bytes] = field(default_factory=dict)
    contains: Sequence[bytes] = ()

    @property
    def everything(self) -> bool:
        return not (self.keys or self.headers or self.contains)

    def matches(self, message: Message) -> bool:
        """True if the confluent-kafka Message is wanted."""
        if self.keys and message.key() not in self.keys:
            return False
        if self.contains:
            value = message.value() or b""
            if not all(part in value for part in self.contains):
                return False
        if self.headers:
            has = dict(headers_of(message))
            return all(has.get(name) == value for name, value in self.headers.items())
        return True
