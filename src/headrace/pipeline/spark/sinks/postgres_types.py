"""Values of Spark as values of PostgreSQL: which type a column becomes, its text for COPY, and what does not fit.

A column that headrace makes can hold every value of its Spark type, with few exceptions: PostgreSQL has no NUL in
texts, and times are written for the years 1 to 9999. A column that exists may be narrower: then each value is tested
before anything is written (`Limit`), so that a record with one that does not fit is a dead letter. Types of which
PostgreSQL would round or guess are refused: nothing is changed on its way.

All is SQL text for Spark, which makes whole lines of COPY without Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
    VariantType,
)

from headrace.pipeline.spark.demands import Limit

_PLAIN: dict[type[DataType], str] = {
    BooleanType: "boolean", ByteType: "smallint", ShortType: "smallint", IntegerType: "integer", LongType: "bigint",
    FloatType: "real", DoubleType: "double precision", StringType: "text", CharType: "text", VarcharType: "text",
    BinaryType: "bytea", DateType: "date", TimestampType: "timestamp with time zone",
    TimestampNTZType: "timestamp without time zone",
}  # fmt: skip
_BITS = {"smallint": 16, "integer": 32, "bigint": 64}
_WHOLE: dict[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_NUMERIC = re.compile(r"numeric(?:\((\d+),(\d+)\))?")
_TEXTS = re.compile(r"(?:character varying|character)(?:\((\d+)\))?|text")
_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
#: The years that both write alike: PostgreSQL has no year 0, and Spark puts a sign before five digits.
_FIRST, _LAST = "0001-01-01", "9999-12-31"
_FIRST_MICROS, _LAST_MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999
_YEARS = "is outside of the years 1 to 9999"
#: A key must fit into a page of its index, which holds three at least.
_KEY_BYTES = 2_500


def type_for(spark_type: DataType) -> str | None:
    """The type of a column that is made for such values; None where there is none."""
    if isinstance(spark_type, DecimalType):
        return f"numeric({spark_type.precision},{spark_type.scale})"
    if isinstance(spark_type, ArrayType):
        inside = type_for(spark_type.elementType)
        if inside is None or inside == "jsonb" or inside.endswith("[]"):
            return inside and "jsonb"
        return f"{inside}[]"
    if isinstance(spark_type, StructType | MapType | VariantType):
        return "jsonb"
    return _PLAIN.get(type(spark_type))


def fits(name: str, spark_type: DataType, column_type: str) -> list[Limit] | None:
    """What must hold of values so that a column of PostgreSQL takes them; None if the two types do not go together."""
    value = quoted_name(name)
    made = type_for(spark_type)
    if made == "jsonb":
        return list(_json_limits(value, name)) if column_type in {"jsonb", "json"} else None
    if isinstance(spark_type, ArrayType):
        return list(_array_limits(value, name, spark_type)) if column_type == made else None
    if type(spark_type) in _WHOLE:
        return _whole_limits(value, name, _WHOLE[type(spark_type)], column_type)
    if isinstance(spark_type, DecimalType):
        return _decimal_limits(value, name, spark_type, column_type)
    if isinstance(spark_type, StringType | CharType | VarcharType):
        return _text_limits(value, name, column_type)
    if isinstance(spark_type, FloatType):
        return [] if column_type in {"real", "double precision"} else None
    if column_type != made:
        return None
    return [Limit(f"{value} is null or ({fit})", f"{name} {said}") for fit, said in _plain_limits(value, spark_type)]


def key_limits(columns: dict[str, DataType], keys: tuple[str, ...]) -> Iterator[Limit]:
    """What must hold of a key: it is not null, and an index can hold it."""
    for key in keys:
        yield Limit(f"{quoted_name(key)} is not null", f"{key} is null: it belongs to the key")
    wide = [key for key in keys if type_for(columns[key]) in {"text", "bytea"}]
    if wide:
        size = " + ".join(f"coalesce(octet_length({quoted_name(key)}), 0)" for key in wide)
        yield Limit(f"{size} <= {_KEY_BYTES}", f"the key is longer than {_KEY_BYTES:,} bytes")


def window_limits(event_time: str) -> Iterator[Limit]:
    """What must hold of the time of a row so that the ends of its window can be written."""
    yield Limit(f"year({quoted_name(event_time)}) between 2 and 9998", f"{event_time} {_YEARS}")


def quoted_name(name: str) -> str:
    """A column's name in Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"


# -- limits ------------------------------------------------------------------------------------------------------------


def _plain_limits(value: str, spark_type: DataType) -> Iterator[tuple[str, str]]:
    """Conditions on a value that is not null, and what is wrong if one does not hold."""
    if isinstance(spark_type, StringType | CharType | VarcharType):
        yield f"instr({value}, chr(0)) = 0 and is_valid_utf8({value})", "has a NUL or bytes that are not UTF-8"
    elif isinstance(spark_type, DateType):
        yield f"{value} between date'{_FIRST}' and date'{_LAST}'", _YEARS
    elif isinstance(spark_type, TimestampType):
        yield f"unix_micros({value}) between {_FIRST_MICROS} and {_LAST_MICROS}", _YEARS
    elif isinstance(spark_type, TimestampNTZType):
        first, last = f"timestamp_ntz'{_FIRST} 00:00:00'", f"timestamp_ntz'{_LAST} 23:59:59.999999'"
        yield f"{value} between {first} and {last}", _YEARS


def _array_limits(value: str, name: str, spark_type: ArrayType) -> Iterator[Limit]:
    for fit, said in _plain_limits("x", spark_type.elementType):
        yield Limit(f"{value} is null or forall({value}, x -> x is null or ({fit}))", f"an element of {name} {said}")


def _json_limits(value: str, name: str) -> Iterator[Limit]:
    # A NUL is \u0000 in JSON; behind a backslash that is one itself, it is only those letters.
    yield Limit(
        rf"{value} is null or not ({_json(value)} rlike r'(?<!\\)(?:\\\\)*\\u0000')", f"{name} has a NUL in a text"
    )


def _whole_limits(value: str, name: str, bits: int, column_type: str) -> list[Limit] | None:
    if column_type in _BITS:
        room = _BITS[column_type]
        least, most = -(2 ** (room - 1)), 2 ** (room - 1) - 1
        return [] if room >= bits else [_between(value, name, str(least), str(most), column_type)]
    if column_type == "double precision":
        return [] if bits <= 32 else None  # it holds 53 bits exactly
    numeric = _NUMERIC.fullmatch(column_type)
    if numeric is None:
        return None
    digits = int(numeric[1]) - int(numeric[2]) if numeric[1] else 38
    if digits >= len(str(2 ** (bits - 1))):
        return []
    return [_between(value, name, f"-{'9' * digits or 0}", "9" * digits or "0", column_type)]


def _decimal_limits(value: str, name: str, spark_type: DecimalType, column_type: str) -> list[Limit] | None:
    numeric = _NUMERIC.fullmatch(column_type)
    if numeric is None or (numeric[1] and int(numeric[2]) < spark_type.scale):
        return None
    digits = int(numeric[1]) - int(numeric[2]) if numeric[1] else spark_type.precision
    if digits >= spark_type.precision - spark_type.scale:
        return []
    most = f"{'9' * digits or 0}.{'9' * spark_type.scale}BD".replace(".BD", "BD")
    return [_between(value, name, f"-{most}", most, column_type)]


def _text_limits(value: str, name: str, column_type: str) -> list[Limit] | None:
    conditions = list(_plain_limits(value, StringType()))
    found = _TEXTS.fullmatch(column_type)
    if column_type == "uuid":
        conditions = [(f"{value} rlike '{_UUID}'", "is not a uuid")]
    elif found is None:
        return None
    elif found[1] or column_type == "character":
        conditions.append((f"char_length({value}) <= {found[1] or 1}", f"is too long for {column_type}"))
    return [Limit(f"{value} is null or ({fit})", f"{name} {said}") for fit, said in conditions]


def _between(value: str, name: str, least: str, most: str, column_type: str) -> Limit:
    return Limit(f"{value} is null or {value} between {least} and {most}", f"{name} is out of range for {column_type}")


# -- text for COPY -----------------------------------------------------------------------------------------------------


def line(columns: dict[str, DataType]) -> str:
    """A row as a line of COPY's text format, which ends with a newline."""
    values = ", ".join(f"coalesce({_field(quoted_name(name), kind)}, r'\\N')" for name, kind in columns.items())
    return f"concat(concat_ws(chr(9), {values}), chr(10))"


def _field(value: str, spark_type: DataType) -> str:
    text = _text(value, spark_type)
    simple = not isinstance(spark_type, StringType | CharType | VarcharType | BinaryType)
    if simple and not isinstance(spark_type, ArrayType) and type_for(spark_type) != "jsonb":
        return text
    for at, code in ((92, r"r'\\'"), (9, r"r'\t'"), (10, r"r'\n'"), (13, r"r'\r'")):
        text = f"replace({text}, chr({at}), {code})"
    return text


def _text(value: str, spark_type: DataType) -> str:
    """The value as PostgreSQL's input reads it; null if it is null."""
    if type_for(spark_type) == "jsonb":
        return _json(value)
    if isinstance(spark_type, ArrayType):
        inside = rf"""replace(replace({_text("x", spark_type.elementType)}, r'\', r'\\'), '"', r'\"')"""
        listed = f"""transform({value}, x -> coalesce(concat('"', {inside}, '"'), 'NULL'))"""
        return f"concat('{{', array_join({listed}, ','), '}}')"
    if isinstance(spark_type, BinaryType):
        return rf"concat(r'\x', hex({value}))"
    if isinstance(spark_type, TimestampType):
        # In UTC, whatever the session's zone: there, an hour of each autumn stands for two.
        utc = f"timestampadd(microsecond, unix_micros({value}), timestamp_ntz'1970-01-01 00:00:00')"
        return f"concat(cast({utc} as string), '+00')"
    return f"cast({value} as string)"


def _json(value: str) -> str:
    return f"to_json({value}, map('ignoreNullFields', 'false'))"
