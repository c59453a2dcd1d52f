"""How bytes look to a person: JSON, text, an object of a schema, or hexadecimal; never more of them than can be shown.

The bytes decide how they are shown: a registry's frame is decoded by its schema if there is a registry, else it is JSON
if it can be parsed as JSON, text if it is printable UTF-8, and bytes otherwise. Null is null, not an empty text.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from headrace.errors import CodecError, HeadraceError
from headrace.kafka.read import headers_of, one_line
from headrace.schemas import KEY_HEADER, VALUE_HEADER, Registry, SchemaCodec

if TYPE_CHECKING:
    from headrace.kafka.client import Message

Kind = Literal["null", "json", "schema", "text", "bytes"]

_MOST_SHOWN = 2000
# Larger values are not parsed to find out that they are JSON: a look at their beginning must do.
_MOST_PARSED = 1_000_000
_MOST_WHOLE = 200_000


class Shown(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Bytes as they are shown. `text` is None for null; `cut` if there is more of it than is shown."""

    kind: Kind
    text: str | None
    size_bytes: int
    cut: bool = False
    schema_id: int | None = None
    schema_version: int | None = None
    schema_kind: str | None = None
    error: str | None = None


NULL = Shown(kind="null", text=None, size_bytes=0)


class Renderer:
    """Shows keys, values and headers; with a registry also what was written by a schema."""

    def __init__(self, registry: Registry | None = None) -> None:
        self._registry = registry
        self._codecs: dict[str, SchemaCodec] = {}

    def shown(self, message: Message, *, whole: bool = False) -> tuple[Shown, Shown, tuple[tuple[str, Shown], ...]]:
        """Key, value and headers of a confluent-kafka Message."""
        headers = headers_of(message)
        frames = {name: data for name, data in headers if name in {KEY_HEADER, VALUE_HEADER}}
        most = _MOST_WHOLE if whole else _MOST_SHOWN
        topic = message.topic()
        return (
            self.one(message.key(), f"{topic}-key", frames.get(KEY_HEADER), most),
            self.one(message.value(), f"{topic}-value", frames.get(VALUE_HEADER), most),
            tuple((name, self.one(data, None, None, most)) for name, data in headers),
        )

    def facts(self, message: Message) -> dict[str, object]:
        """What an expression can ask about a confluent-kafka Message."""
        headers = headers_of(message)
        frames = {name: data for name, data in headers if name in {KEY_HEADER, VALUE_HEADER}}
        value = message.value()
        return {
            "key": self._object(message.key(), f"{message.topic()}-key", frames.get(KEY_HEADER)),
            "value": self._object(value, f"{message.topic()}-value", frames.get(VALUE_HEADER)),
            "headers": {name: _text(data) for name, data in headers},
            "offset": message.offset(),
            "partition": message.partition(),
            "timestamp": message.timestamp()[1],
            "size": len(value or b""),
        }

    def one(self, data: bytes | None, subject: str | None, frame: bytes | None, most: int = _MOST_SHOWN) -> Shown:
        """The bytes as they look."""
        if data is None:
            return NULL
        if subject and self._is_framed(data, frame):
            return self._by_schema(data, subject, frame, most)
        return _plain(data, most)

    def _is_framed(self, data: bytes, frame: bytes | None) -> bool:
        return self._registry is not None and (frame is not None or (len(data) >= 5 and data[0] == 0))

    def _decoded(self, data: bytes, subject: str, frame: bytes | None) -> Any:
        codec = self._codecs.get(subject)
        if codec is None:
            codec = self._codecs[subject] = SchemaCodec(self._registry, subject=subject)  # type: ignore[arg-type]
        return codec.decode_many([data], [frame] if frame is not None else None)[0]

    def _by_schema(self, data: bytes, subject: str, frame: bytes | None, most: int) -> Shown:
        try:
            decoded = self._decoded(data, subject, frame)
            if isinstance(decoded, CodecError):
                return msgspec.structs.replace(_plain(data, most), error=one_line(decoded))
            text = msgspec.json.encode(decoded.value).decode()
        except HeadraceError as error:
            return msgspec.structs.replace(_plain(data, most), error=error.problem)
        except (RecursionError, ValueError, TypeError) as error:
            # What its schema allows and JSON cannot hold: a thousand levels, half of a character.
            return msgspec.structs.replace(_plain(data, most), error=f"it cannot be shown as JSON: {error}")
        schema = self._registry.schema(decoded.schema_id) if self._registry and decoded.schema_id is not None else None
        return Shown(
            kind="schema",
            text=text[:most],
            size_bytes=len(data),
            cut=len(text) > most,
            schema_id=decoded.schema_id,
            schema_version=decoded.schema_version,
            schema_kind=schema.kind if schema else None,
        )

    def _object(self, data: bytes | None, subject: str, frame: bytes | None) -> object:
        """The JSON or the object of a schema in the bytes, else their text."""
        if data is None:
            return None
        if self._is_framed(data, frame):
            with suppress(HeadraceError, RecursionError, ValueError, TypeError):
                decoded = self._decoded(data, subject, frame)
                if not isinstance(decoded, CodecError):
                    return msgspec.json.decode(msgspec.json.encode(decoded.value))
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, RecursionError):
            return _text(data)


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", errors="replace")


def _plain(data: bytes, most: int) -> Shown:
    size = len(data)
    head = data[: most * 4]
    try:
        text = head.decode() if size <= len(head) else head.decode(errors="ignore")
    except UnicodeDecodeError:
        return _hexadecimal(data, most)
    if not _is_printable(text[:most]):
        return _hexadecimal(data, most)
    kind: Kind = "json" if _is_json(data, text) else "text"
    return Shown(kind=kind, text=text[:most], size_bytes=size, cut=size > len(head) or len(text) > most)


def _is_printable(text: str) -> bool:
    return all(char.isprintable() or char in "\t\n\r" for char in text)


def _is_json(data: bytes, text: str) -> bool:
    """An object or an array; a bare number or word, and what is nested too deep to be parsed, read better as text."""
    if text.lstrip()[:1] not in {"{", "["}:
        return False
    if len(data) > _MOST_PARSED:
        return True
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _hexadecimal(data: bytes, most: int) -> Shown:
    shown = data[: most // 4]
    return Shown(kind="bytes", text=shown.hex(" "), size_bytes=len(data), cut=len(data) > len(shown))
