"""The values of a topic's records as columns: JSON and CSV as a pipeline declares them, else as a registry knows them.

A `Decoder` has the columns and turns values into rows: a dict, None for a null, `UNDECODED` for what does not fit.
The rules are those of a pipeline's `decode`: a record fits as a whole or not at all.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, TypedDict

import msgspec

from headrace.errors import CodecError, UsageError
from headrace.schemas import (
    PREFIX_SIZE,
    JsonColumns,
    ProtobufColumns,
    Schema,
    SchemaCodec,
    avro_columns,
    id_in_header,
    id_in_prefix,
    read_schema,
)
from headrace.tables import ddl_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.pipeline import Decode
    from headrace.schemas import Kind, Registry

#: In the place of a row: the value does not fit.
UNDECODED: Final = False
Row = dict[str, Any] | None | bool

_KINDS: dict[str, Kind] = {"avro": "AVRO", "json-schema": "JSON", "protobuf": "PROTOBUF", "debezium": "AVRO"}
#: Debezium's place in the log of the database; events that have no row: of nothing known, truncates and messages.
_PLACE, _WITHOUT_ROW = ("lsn", "file", "pos"), (None, "t", "m")
_MISFITS = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, InvalidOperation, RecursionError)


class Decoder(Protocol):
    """Values of records to rows."""

    @property
    def schema(self) -> pa.Schema:
        """The columns."""

    def rows(self, values: Sequence[bytes | None], headers: Sequence[bytes | None]) -> list[Row]:
        """A row for each value; `headers` are the ids of schemas that records carry there."""


def declared_decoder(given: Decode, folder: Path, topic: str, registry: Registry | None) -> Decoder | None:
    """The decoder that a pipeline's `decode` means; None if there is nothing but bytes, or only Spark can do it."""
    if given.format == "text" or given.step is not None:
        return None
    if given.format == "debezium":
        return _Debezium(_framed(given, folder, topic, registry) if given.is_framed else _Json(given.envelope, {}))
    if given.format in {"json", "csv"}:
        return (_Json if given.format == "json" else _Csv)(str(given.schema), given.options)
    return _framed(given, folder, topic, registry)


def _framed(given: Decode, folder: Path, topic: str, registry: Registry | None) -> Decoder:
    if registry is None:
        raise UsageError("a pipeline decodes it with a schema registry, and none is known", hint="--registry URL")
    if given.reader:
        return _registered(read_schema(folder / given.reader, _KINDS[given.format]), registry)
    return registered_decoder(registry, given.schema or f"{topic}-value")


def registered_decoder(registry: Registry, subject: str) -> Decoder:
    """The decoder into the latest version of the subject."""
    return _registered(registry.version(subject).schema, registry)


def _registered(schema: Schema, registry: Registry) -> Decoder:
    referred = registry.referred(schema) if schema.references else {}
    if schema.kind == "AVRO":
        return _Avro(schema, avro_columns(schema, referred), registry)
    if schema.kind == "JSON":
        return _Framed(_Json(JsonColumns(schema, referred).ddl(), {}))
    return _Framed(_Protobuf(ProtobufColumns(schema, referred)))


class _Json:
    """JSON objects, typed by DDL. With options of its own, times and dates stay text: only Spark knows the formats."""

    def __init__(self, ddl: str, options: Mapping[str, str]) -> None:
        self.schema = _untimed(ddl_schema(ddl)) if options else ddl_schema(ddl)
        self._row = _Typed(self.schema)
        self._decoder = msgspec.json.Decoder(self._row.type)

    def rows(self, values: Sequence[bytes | None], headers: Sequence[bytes | None]) -> list[Row]:  # noqa: ARG002
        return [None if value is None else self._one(value) for value in values]

    def _one(self, value: bytes) -> Row:
        try:
            return self._row.converted(self._decoder.decode(value))
        except _MISFITS:
            return UNDECODED


class _Csv:
    """Lines of CSV, typed by DDL."""

    def __init__(self, ddl: str, options: Mapping[str, str]) -> None:
        more = dict(options)
        self._separator = more.pop("sep", "") or more.pop("delimiter", ",")
        self.schema = _untimed(ddl_schema(ddl)) if more else ddl_schema(ddl)
        self._row = _Typed(self.schema)

    def rows(self, values: Sequence[bytes | None], headers: Sequence[bytes | None]) -> list[Row]:  # noqa: ARG002
        return [None if value is None else self._one(value) for value in values]

    def _one(self, value: bytes) -> Row:
        try:
            lines = list(csv.reader([value.decode()], delimiter=self._separator))
            cells = dict(zip(self.schema.names, lines[0] if lines else [], strict=True))
            filled = {name: cell for name, cell in cells.items() if cell}
            return self._row.converted(msgspec.convert(filled, self._row.type, strict=False))
        except (csv.Error, *_MISFITS):
            return UNDECODED


class _Avro:
    """Avro, read into the latest version by the writer's schema that each record names."""

    def __init__(self, schema: Schema, ddl: str, registry: Registry) -> None:
        self.schema = ddl_schema(ddl)
        self._row = _Typed(self.schema)
        self._codec = SchemaCodec(registry, reader=schema)

    def rows(self, values: Sequence[bytes | None], headers: Sequence[bytes | None]) -> list[Row]:
        found = self._codec.decode_many(values, headers if any(headers) else None)
        return [None if one is None else self._one(one) for one in found]

    def _one(self, found: Any) -> Row:
        try:
            return UNDECODED if isinstance(found, CodecError) else self._row.converted(found.value)
        except _MISFITS:
            return UNDECODED


class _Protobuf:
    """Bodies of Protobuf: known by the numbers of fields, whichever version wrote them."""

    def __init__(self, columns: ProtobufColumns) -> None:
        self.schema = ddl_schema(columns.ddl)
        self._columns = columns

    def rows(self, values: Sequence[bytes | None], headers: Sequence[bytes | None]) -> list[Row]:  # noqa: ARG002
        found = [self._columns.row(value) for value in values]
        return [None if one is None else one["fields"] or UNDECODED for one in found]


class _Framed:
    """What another decoder reads, behind the id of a schema."""

    def __init__(self, inner: Decoder) -> None:
        self._inner = inner
        self.schema = inner.schema

    def rows(self, values: Sequence[bytes | None], headers: Sequence[bytes | None]) -> list[Row]:
        bodies = [_body(value, header) for value, header in zip(values, headers, strict=True)]
        rows = self._inner.rows([body if isinstance(body, bytes) else None for body in bodies], headers)
        return [UNDECODED if body is UNDECODED else row for body, row in zip(bodies, rows, strict=True)]


class _Debezium:
    """The row of an event of Debezium's, and what it says of the change: the columns that a pipeline sees."""

    def __init__(self, inner: Decoder) -> None:
        import pyarrow as pa

        self._inner, parts = inner, inner.schema
        if not {"op", "after"} <= set(parts.names) or not pa.types.is_struct(parts.field("after").type):
            raise UsageError("its schema is not that of Debezium's envelope", hint="decode = { avro = … } reads others")
        row = list(parts.field("after").type)
        source = list(parts.field("source").type) if "source" in parts.names else []
        about = [parts.field(name) for name in ("op", "ts_ms") if name in parts.names]
        place = [field for field in source if field.name in _PLACE]
        taken = {field.name for field in row}
        #: The columns of the event and of its source: what each is called beside those of the row.
        self._about, self._place = (
            {field.name: f"debezium_{field.name}" if field.name in taken else field.name for field in some}
            for some in (about, place)
        )
        names = {**self._about, **self._place}
        self.schema = pa.schema([*row, *[field.with_name(names[field.name]) for field in (*about, *place)]])

    def rows(self, values: Sequence[bytes | None], headers: Sequence[bytes | None]) -> list[Row]:
        return [self._one(event) if isinstance(event, dict) else event for event in self._inner.rows(values, headers)]

    def _one(self, event: dict[str, Any]) -> Row:
        event = event.get("payload") or event
        row, source = event.get("before" if event.get("op") == "d" else "after"), event.get("source") or {}
        if row is None or event.get("op") in _WITHOUT_ROW:
            return UNDECODED
        about = {ours: event.get(name) for name, ours in self._about.items()}
        return {**row, **about, **{ours: source.get(name) for name, ours in self._place.items()}}


def _body(value: bytes | None, header: bytes | None) -> bytes | bool | None:
    if value is None:
        return None
    try:
        if header is not None:
            id_in_header(header)
            return value
        id_in_prefix(value[:PREFIX_SIZE])
        return value[PREFIX_SIZE:]
    except CodecError:
        return UNDECODED


# -- values of the declared types --------------------------------------------------------------------------------------

_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


class _Typed:
    """A row of a schema: the type by which msgspec checks it, and what is left to convert."""

    def __init__(self, schema: pa.Schema) -> None:
        self.type = _typed_dict(schema)
        self._convert = [(field.name, convert) for field in schema if (convert := _conversion(field.type))]

    def converted(self, row: Any) -> dict[str, Any]:
        for name, convert in self._convert:
            if (value := row.get(name)) is not None:
                row[name] = convert(value)
        return row  # type: ignore[no-any-return]


def _typed_dict(fields: Any) -> Any:
    return TypedDict("Row", {field.name: _python(field.type) | None for field in fields}, total=False)  # type: ignore[operator]


def _python(kind: Any) -> Any:
    """What msgspec is to find in JSON for a value of the type; `Any` where a conversion follows that checks it."""
    import pyarrow as pa

    if pa.types.is_integer(kind):
        most = 2 ** _BITS[str(kind)]
        return int if most == 2**63 else Annotated[int, msgspec.Meta(ge=-most, le=most - 1)]
    for test, python in ((pa.types.is_floating, float), (pa.types.is_boolean, bool), (pa.types.is_binary, bytes)):
        if test(kind):
            return python
    if pa.types.is_list(kind):
        return list[_python(kind.value_type) | None]  # type: ignore[misc]
    if pa.types.is_map(kind):
        return dict[str, _python(kind.item_type) | None]  # type: ignore[misc]
    return _typed_dict(kind) if pa.types.is_struct(kind) else Any


def _conversion(kind: Any) -> Callable[[Any], Any] | None:
    """What is left to do with a value so that Arrow takes it as that type."""
    import pyarrow as pa

    if pa.types.is_string(kind):
        return _text
    if pa.types.is_timestamp(kind):
        return _moment if kind.tz else lambda value: _moment(value).replace(tzinfo=None)
    if pa.types.is_date(kind):
        return lambda value: value if isinstance(value, date) else date.fromisoformat(value)
    if pa.types.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    if pa.types.is_list(kind) and (inner := _conversion(kind.value_type)):
        return lambda value: [None if item is None else inner(item) for item in value]
    if pa.types.is_map(kind):
        item = _conversion(kind.item_type) or (lambda value: value)
        return lambda value: [(name, None if part is None else item(part)) for name, part in value.items()]
    return _Typed(kind).converted if pa.types.is_struct(kind) else None


def _text(value: object) -> str:
    """What is no text keeps the text that it has in JSON, as with Spark."""
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode() if isinstance(value, bool | dict | list) else str(value)


def _moment(value: Any) -> datetime:
    """ISO 8601, in UTC unless it names a zone; a number counts seconds since 1970."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return datetime.fromtimestamp(value, UTC)
    found = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _decimal(precision: int, scale: int) -> Callable[[Any], Decimal]:
    step, most = Decimal(1).scaleb(-scale), Decimal(10) ** (precision - scale)

    def convert(value: Any) -> Decimal:
        found = Decimal(str(value)).quantize(step, ROUND_HALF_UP)
        if abs(found) >= most:
            raise ValueError(f"{value} has more digits than the column")
        return found

    return convert


def _untimed(schema: pa.Schema) -> pa.Schema:
    """The schema with text in the place of times and dates."""
    import pyarrow as pa

    def text(kind: Any) -> Any:
        if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            return pa.string()
        if pa.types.is_list(kind):
            return pa.list_(text(kind.value_type))
        if pa.types.is_map(kind):
            return pa.map_(kind.key_type, text(kind.item_type))
        if pa.types.is_struct(kind):
            return pa.struct([pa.field(field.name, text(field.type)) for field in kind])
        return kind

    return pa.schema([pa.field(field.name, text(field.type)) for field in schema])
