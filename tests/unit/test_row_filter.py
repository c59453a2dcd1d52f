"""Conditions on rows: what they choose, and what is said about those that cannot be read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from headrace.errors import UsageError
from headrace.pipeline.row_filter import read_filter

_TABLE = pa.table(
    {
        "id": [1, 2, 3, None],
        "name": ["a", "it's", None, "and"],
        "odd name": [True, False, True, None],
        "at": pa.array([datetime(2020, 9, d, tzinfo=UTC) for d in (10, 11, 12, 13)], pa.timestamp("us", "UTC")),
        "span": pa.array([{"end": n} for n in range(4)]),
    }
)


def chosen(where: str) -> list[Any]:
    found: list[Any] = ds.dataset(_TABLE).to_table(filter=read_filter(where, _TABLE.schema)).column("at").to_pylist()
    return [moment.day for moment in found]


@pytest.mark.parametrize(
    ("where", "days"),
    [
        ("id = 1 or id = 2 and name = 'a'", [10]),
        ("(id = 1 or id = 2) and name = 'it''s'", [11]),
        ("NOT id = 1", [11, 12]),
        ("not id in (1, 2) and not name is null", []),
        ("id is null", [13]),
        ("name IN ('a', 'and')", [10, 13]),
        ("`odd name` = false", [11]),
        ("at >= '2020-09-12'", [12, 13]),
        ("at = '2020-09-11T02:00:00+02:00'", [11]),
        ("span.end >= 2", [12, 13]),
        ("id between -1 and 1.5", [10]),
        ("id <> 1", [11, 12]),
    ],
)
def test_rows_are_chosen_as_in_sql(where: str, days: list[int]) -> None:
    assert chosen(where) == days


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("", "a column is expected where the end stands"),
        ("id", "a comparison such as ="),
        ("id = 1 and", "a column is expected where the end stands"),
        ("id = 1 name = 'a'", "the end, and or or is expected where name"),
        ("id = name", "a value: a number"),
        ("id = 'x'", "id is a int64"),
        ("name = 3", "name is a string"),
        ("`odd name` = 1", "odd name is a bool"),
        ("at > 'soon'", "'soon' is none"),
        ("id = 1; drop table x", "'; drop table x' is neither"),
        ("nome = 'a'", "did you mean name?"),
        ("span.start = 1", "there is no column 'span.start'"),
        ("__import__('os') = 1", "there is no column '__import__'"),
        ("(" * 500 + "id = 1" + ")" * 500, "within each other"),
        ("id = 1" + "0" * 30, "is none"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(where: str, said: str) -> None:
    with pytest.raises(UsageError) as told:
        read_filter(where, _TABLE.schema)
    assert said in str(told.value)
