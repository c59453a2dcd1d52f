"""`SchemaCodec`: bytes with the ids of a registry around what the formats write and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from headrace.errors import CodecError, UsageError
from headrace.schemas.codec.wire import PREFIX_SIZE, id_in_header, id_in_prefix, prefix
from headrace.schemas.files import read_schema
from headrace.schemas.registry import Kind, Schema

Part = Literal["value", "key"]

_KINDS: dict[str, Kind] = {"avro": "AVRO", "json-schema": "JSON", "protobuf": "PROTOBUF"}
_FILE_SUFFIXES = (".avsc", ".json", ".proto")


class Decoded(msgspec.Struct, frozen=True):
    """An object that was read, and the schema that it was written with."""

    value: Any
    schema_id: int | None = None
    schema_version: int | None = None


class Codec(Protocol):
    """Objects to bytes and back, many at once; what does not fit is an error in its place."""

    @property
    def field_names(self) -> tuple[str, ...] | None:
        """The fields that a record of the written schema has; None where there is none, or it is no record."""

    def encode_many(self, values: Sequence[object], *, text: bool = False) -> list[bytes | CodecError]:
        """With `text`, numbers may stand as text, as in a CSV file."""

    def decode_many(
        self, values: Sequence[bytes | None], headers: Sequence[bytes | None] | None = None
    ) -> list[Decoded | CodecError | None]:
        """`headers` are the ids that records carry there instead; null stays null."""


class SchemaSource(Protocol):
    """What a codec needs of a registry."""

    def schema(self, number: int | str) -> Schema | None: ...

    def versions_of(self, number: int) -> tuple[tuple[str, int], ...]: ...

    def referred(self, schema: Schema) -> dict[str, Schema]: ...


class Format(Protocol):
    """What is inside the frame."""

    @property
    def field_names(self) -> tuple[str, ...] | None: ...

    def encode(self, values: Sequence[object], head: bytes, *, text: bool = False) -> list[bytes | CodecError]: ...

    def decode(self, bodies: Sequence[bytes]) -> list[Any]: ...


class _Known(msgspec.Struct, frozen=True):
    """A schema by its id, ready to read with."""

    format: Format
    schema_id: int | None
    schema_version: int | None


class SchemaCodec:
    """Writes with one schema, reads with whichever a record names.

    `written` is the id and the schema to write with; `reader` is the schema as which records are wanted, if not as
    they were written; `subject` is whose versions are meant when a version is reported.
    """

    def __init__(
        self,
        source: SchemaSource,
        *,
        written: tuple[int, Schema] | None = None,
        reader: Schema | None = None,
        subject: str | None = None,
    ) -> None:
        self._source = source
        self._subject = subject
        self._head = prefix(written[0]) if written else b""
        self._format = self._compiled(written[1]) if written else None
        self._reader_kind = reader.kind if reader else None
        self._reader = self._compiled(reader) if reader else None
        self._known: dict[int | str, _Known | CodecError] = {}

    @property
    def field_names(self) -> tuple[str, ...] | None:
        return self._format.field_names if self._format else None

    def encode_many(self, values: Sequence[object], *, text: bool = False) -> list[bytes | CodecError]:
        """The values in the registry's wire format, each or its error."""
        if self._format is None:
            raise UsageError("there is no schema to write with", hint="avro:FILE or avro:SUBJECT")
        return self._format.encode(values, self._head, text=text)

    def decode_many(
        self, values: Sequence[bytes | None], headers: Sequence[bytes | None] | None = None
    ) -> list[Decoded | CodecError | None]:
        """The objects in the bytes, each with its schema's id, or its error. Asks the registry once per new id."""
        out: list[Decoded | CodecError | None] = [None] * len(values)
        for head, places in _by_head(values, headers).items():
            known, skipped = self._schema_of(head)
            if isinstance(known, CodecError):
                for at in places:
                    out[at] = known
                continue
            number, version = known.schema_id, known.schema_version
            found = known.format.decode([values[at][skipped:] for at in places])  # type: ignore[index]
            for at, value in zip(places, found, strict=True):
                out[at] = value if isinstance(value, CodecError) else Decoded(value, number, version)
        return out

    def _schema_of(self, head: tuple[bytes, bool]) -> tuple[_Known | CodecError, int]:
        """The schema that a prefix or a header names, and how many bytes the body begins behind."""
        data, in_header = head
        try:
            number: int | str = id_in_header(data)[0] if in_header else id_in_prefix(data)
        except CodecError as error:
            return error, 0
        known = self._known.get(number)
        if known is None:
            known = self._look_up(number)
            if isinstance(known, _Known):
                self._known[number] = known
        return known, 0 if in_header else PREFIX_SIZE

    def _look_up(self, number: int | str) -> _Known | CodecError:
        schema = self._source.schema(number)
        if schema is None:
            return CodecError(f"its schema's id {number} is not known to the registry")
        if self._reader_kind and schema.kind != self._reader_kind:
            return CodecError(f"it was written with a schema of type {schema.kind}, not {self._reader_kind}")
        try:
            compiled = self._compiled(schema, self._reader)
        except UsageError as error:
            return CodecError(f"the schema with the id {number} cannot be used: {error.problem}", why=error.why)
        version = None
        if isinstance(number, int):
            versions = self._source.versions_of(number)
            mine = [found for subject, found in versions if subject == self._subject]
            version = max(mine, default=versions[0][1] if versions and not self._subject else None)
        return _Known(compiled, number if isinstance(number, int) else None, version)

    def _compiled(self, schema: Schema, reader: Format | None = None) -> Format:
        return compiled(schema, self._source.referred(schema) if schema.references else {}, reader)


def compiled(schema: Schema, referred: Mapping[str, Schema], reader: Any = None) -> Format:
    """The format that writes and reads this schema."""
    if schema.kind == "AVRO":
        from headrace.schemas.codec.avro import Avro

        return Avro(schema, referred, reader)
    if schema.kind == "JSON":
        from headrace.schemas.codec.json_schema import JsonSchema

        return JsonSchema(schema, referred, reader)
    from headrace.schemas.codec.protobuf import Protobuf

    return Protobuf(schema, referred, reader)


def _by_head(
    values: Sequence[bytes | None], headers: Sequence[bytes | None] | None
) -> dict[tuple[bytes, bool], Sequence[int]]:
    """The places of the records that name the same schema, by what names it and whether that stood in a header."""
    if headers is None:
        heads = {value[:PREFIX_SIZE] if value is not None else None for value in values}
        if len(heads) == 1:  # one schema in the whole batch, as nearly always
            head = heads.pop()
            return {(head, False): range(len(values))} if head is not None else {}
    groups: dict[tuple[bytes, bool], list[int]] = {}
    for at, value in enumerate(values):
        if value is None:
            continue
        header = headers[at] if headers else None
        groups.setdefault((header, True) if header is not None else (value[:PREFIX_SIZE], False), []).append(at)
    return dict(groups)


def open_codec(
    wanted: str, registry: Any, topic: str | None, *, part: Part = "value", reading: bool = False
) -> SchemaCodec:
    """The codec that `avro:FILE`, `avro:SUBJECT`, `json-schema:…`, `protobuf:…` or `registry` stands for.

    To write with a FILE it is registered first, as the next version of TOPIC-value or TOPIC-key; of a SUBJECT the
    latest version is taken. For reading, the schema is the reader's; `registry` takes every record as it was written.
    """
    subject = f"{topic}-{part}" if topic else None
    if wanted == "registry":
        if not reading:
            raise UsageError("to write, a schema has to be named", hint="--value avro:FILE or --value avro:SUBJECT")
        return SchemaCodec(registry, subject=subject)
    kind, colon, name = wanted.partition(":")
    if kind not in _KINDS or not colon or not name:
        raise UsageError(
            f"invalid codec: {wanted!r}", hint="avro:FILE, avro:SUBJECT, json-schema:FILE, protobuf:FILE or registry"
        )
    path = Path(name)
    if path.is_file() or name.endswith(_FILE_SUFFIXES) or "/" in name:
        schema = read_schema(path, _KINDS[kind])
        number = 0 if reading else registry.register(subject, schema)
    else:
        version = registry.version(name)
        schema, number = version.schema, version.id
        if schema.kind != _KINDS[kind]:
            raise UsageError(f"subject {name} is of type {schema.kind}", hint="name it by that type")
    if reading:
        return SchemaCodec(registry, reader=schema, subject=subject)
    return SchemaCodec(registry, written=(number, schema), subject=subject)
