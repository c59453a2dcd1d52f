"""What people write on the command line, read into values: pairs, lists, ranges, spans."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

from headrace.errors import UsageError
from headrace.text import parse_span

Value = TypeVar("Value")


def pairs(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """`--set name=value`, any number of times."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{text!r} is not of the form name=value")
        found[name.strip()] = value.strip()
    return found


def words(_: click.Context, __: click.Parameter, given: str | None) -> tuple[str, ...] | None:
    """`a,b,c`."""
    return tuple(word.strip() for word in given.split(",")) if given else None


def numbers(_: click.Context, __: click.Parameter, given: str | None) -> tuple[int, ...] | None:
    """`101,102,103`."""
    try:
        return tuple(int(word) for word in given.split(",")) if given else None
    except ValueError:
        raise click.BadParameter(f"{given!r} is not a list of whole numbers like 101,102,103") from None


def whole_range(_: click.Context, __: click.Parameter, given: str | None) -> tuple[int, int] | None:
    """`1-5`."""
    if given is None:
        return None
    found = re.fullmatch(r"(\d+)-(\d+)", given)
    if not found or int(found[1]) > int(found[2]):
        raise click.BadParameter(f"{given!r} is not a range like 1-5")
    return int(found[1]), int(found[2])


def span(_: click.Context, __: click.Parameter, given: str | None) -> float | None:
    """`250ms`, `2s`, `10min`: seconds."""
    if given is None:
        return None
    try:
        return parse_span(given)
    except UsageError as error:
        raise click.BadParameter(error.problem) from None


def parsed(option: str, parse: Callable[[str], Value], text: str) -> Value:
    """What `parse` makes of the text; an error names the option."""
    try:
        return parse(text)
    except UsageError as error:
        problem = error.problem.replace("invalid value:", f"invalid value for {option}:", 1)
        raise UsageError(problem, why=error.why, hint=error.hint) from None


def every(_: click.Context, __: click.Parameter, given: str | None) -> tuple[int, float] | None:
    """`5:2s`: after every fifth, two seconds."""
    if given is None:
        return None
    count, colon, rest = given.partition(":")
    if not colon or not count.isdecimal() or int(count) < 1:
        raise click.BadParameter(f"{given!r} is not of the form 5:2s")
    seconds: Any = span(_, __, rest)
    return int(count), seconds
