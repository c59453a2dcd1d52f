"""The language for choosing records: what it can say, and all that it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import UsageError
from headrace.kafka.browse.expression import Expression

FACTS: dict[str, Any] = {
    "key": "bus-7",
    "value": {"trip": 1700, "city": "Porto", "items": [{"price": 9.5}, {"price": 20}], "deleted": False, "none": None},
    "headers": {"source": "import", "empty": None},
    "offset": 41,
    "partition": 2,
    "timestamp": 1_700_000_000_000,
    "size": 120,
}


@pytest.mark.parametrize(
    "text",
    [
        "value.trip > 1000",
        'value.trip > 1000 and "bus" in key',
        'headers["source"] == "import"',
        "value.items[0].price <= 9.5 and value.items[-1].price == 20",
        'startswith(lower(value.city), "por")',
        "not value.deleted",
        "value.none == null and value.missing is None",
        "offset % 2 == 1 and partition in [1, 2]",
        "1000 < value.trip < 2000",
        'len(key) == 5 and endswith(key, "7")',
        'number("12.5") + 1 > 13',
        "size >= 100 or value.trip / 0 == 1",
        'contains(value.items, "x") or true',
        'value["city"] != "Oslo"',
        "value.city <> 'Oslo' AND value.trip = 1700",
        "value.city like 'P%t_' and value.city not like 'P' and key like '%-%'",
        "value.trip between 1700 and 1800 and offset not between 1 and 40",
        "value.missing is null and value.city IS NOT NULL and not value.missing is not None",
        "partition in (2) and partition in (1, 2,) and 'bus' in (key)",
        "`value`.`city` = 'Porto' and value.items[0x0].price > -1_000",
        '"\\u0062us\\t" == "bus\t" and \'it\'\'s\' == "it\'s"',
    ],
)
def test_what_matches(text: str) -> None:
    assert Expression(text).matches(FACTS)


@pytest.mark.parametrize(
    "text",
    [
        "value.missing > 1",
        "value.missing < 1",
        "value.city > 5",
        'value.trip == "1700"',
        "value.items[9].price > 0",
        "key.upper",
        "value.trip / 0 > 1",
        '"x" in value.missing',
        "value.city.missing == 1",
        "value.missing like '%'",
        "value.trip like '%'",
        "value.trip between 'a' and 'z'",
        f"'{'a' * 200}' like '{'%a' * 100}%b'",
    ],
)
def test_what_does_not_match_and_does_not_fail(text: str) -> None:
    assert not Expression(text).matches(FACTS)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "value.__class__.__mro__",
        "().__class__",
        "open('/etc/passwd')",
        "(lambda: 1)()",
        "[x for x in value.items]",
        "value.trip if True else 0",
        "f'{value}'",
        "value.items.append(1)",
        "exec('1')",
        "globals()",
        "print",
        "key * 100000000",
        "2 ** 1000000",
        "value.trip and",
        "b'bytes'",
        "1j",
        "...",
        "(x := 5)",
        "lower(key, key)",
        "lower(*key)",
        "value.trip not 5",
        "value.trip = ",
        "+key",
        "'open",
        "import os",
        "[" * 200 + "1" + "]" * 200,
        "not " * 400 + "true",
        "1" * 5000,
        "value" + ".a" * 400,
        "",
    ],
)
def test_what_is_not_in_the_language_is_refused_or_harmless(text: str) -> None:
    try:
        expression = Expression(text)
    except UsageError:
        return
    assert not expression.matches(FACTS), "it was taken, so it must be harmless and mean nothing"


def test_attributes_are_fields_of_json_and_never_of_python() -> None:
    assert Expression("value.__class__ == null").matches(FACTS)
    assert Expression("key.format == null").matches(FACTS)
