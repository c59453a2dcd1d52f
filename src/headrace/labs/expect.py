"""What a check may expect beyond a plain value: bounds, members, properties. Each says itself in words."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Expectation:
    """A condition on what is seen, in words."""

    words: str
    holds: Callable[[Any], bool]

    def __str__(self) -> str:
        return self.words


def at_most(bound: float, unit: str = "") -> Expectation:
    return Expectation(f"at most {shown(bound)} {unit}".rstrip(), lambda seen: seen is not None and seen <= bound)


def at_least(bound: float, unit: str = "") -> Expectation:
    return Expectation(f"at least {shown(bound)} {unit}".rstrip(), lambda seen: seen is not None and seen >= bound)


def between(low: float, high: float, unit: str = "") -> Expectation:
    words = f"{shown(low)} to {shown(high)} {unit}".rstrip()
    return Expectation(words, lambda seen: seen is not None and low <= seen <= high)


def contains(part: object) -> Expectation:
    return Expectation(f"with {shown(part)} in it", lambda seen: seen is not None and part in seen)


def one_of(values: Collection[object]) -> Expectation:
    return Expectation("one of " + ", ".join(map(shown, values)), lambda seen: seen in values)


def anything_but(value: object) -> Expectation:
    return Expectation(f"not {shown(value)}", lambda seen: seen != value)


def holds(expected: object, seen: object) -> bool:
    """Whether what is seen is what was expected."""
    if isinstance(expected, Expectation):
        return bool(expected.holds(seen))
    return bool(expected == seen)


def shown(value: object) -> str:
    """A value for the eye: thousands separated, fractions to three digits, collections on one line."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        case bytes():
            return value.decode(errors="replace")
        case dict():
            return ", ".join(f"{shown(name)}: {shown(each)}" for name, each in value.items()) or "none"
        case list() | tuple():
            return ", ".join(map(shown, value)) or "none"
        case set() | frozenset():
            numbers = all(isinstance(each, (int, float)) for each in value)
            return ", ".join(map(shown, sorted(value, key=None if numbers else str))) or "none"
    return str(value)
