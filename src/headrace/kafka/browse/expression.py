"""Conditions on records, in the language of `headrace.filters`, compiled to closures.

    value.trip > 1000 and "bus" in key
    headers["source"] == "import" or value.items[0].price <= 9.99
    startswith(lower(value.city), "port") and not value.deleted

Names: key, value, headers, offset, partition, timestamp (milliseconds), size (bytes of the value). A field that is not
there is null, and null is neither smaller nor larger than anything, so a record without it does not match.
Nothing that a person types is ever run as code: there are no loops, no attributes of Python objects, no names but the
above, and all sizes are bounded.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.errors import UsageError
from headrace.filters import Node, parse
from headrace.text import plural

#: What a record offers: `key`, `value`, `headers`, `offset`, `partition`, `timestamp`, `size`.
Facts = Mapping[str, object]
Evaluate = Callable[[Facts], Any]

NAMES = ("key", "value", "headers", "offset", "partition", "timestamp", "size")
_LONGEST = 1000
_HINT = 'value.trip > 1000 and "bus" in key; functions: contains, startswith, endswith, lower, len, number, text'


class Expression:
    """A condition on records. Wrong text is a `UsageError` with the place."""

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > _LONGEST:
            raise UsageError(f"the condition is longer than {_LONGEST} characters", hint=_HINT)
        self._evaluate = _compiled(parse(text, _HINT))

    def matches(self, facts: Facts) -> bool:
        """True if the condition holds for the record."""
        return bool(self._evaluate(facts))


def _compiled(node: Node) -> Evaluate:
    return _KINDS[node.kind](node, [_compiled(part) for part in node.parts])


def _literal(node: Node, _: Sequence[Evaluate]) -> Evaluate:
    value = node.value
    return lambda _: value


def _name(node: Node, _: Sequence[Evaluate]) -> Evaluate:
    name = node.value
    if name.lower() == "none":
        return lambda _: None
    if name not in NAMES:
        raise UsageError(f"unknown name in the condition: {name!r}", why=f"known are {', '.join(NAMES)}", hint=_HINT)
    return lambda facts: facts.get(name)


def _field(value: object, name: object) -> object:
    """A member of a JSON object, an element of a JSON array; else null. Never an attribute of a Python object."""
    if isinstance(value, dict):
        return value.get(name) if isinstance(name, str | int) else None
    if isinstance(value, list) and isinstance(name, int) and not isinstance(name, bool):
        return value[name] if -len(value) <= name < len(value) else None
    return None


_ARITHMETIC: Mapping[str, Callable[[object, object], object]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "%": operator.mod,
}  # fmt: skip


def _arithmetic(node: Node, parts: Sequence[Evaluate]) -> Evaluate:
    """Of numbers only: texts multiplied by numbers grow without bound."""
    operate, (left, right) = _ARITHMETIC[node.value], parts

    def evaluate(facts: Facts) -> object:
        a, b = left(facts), right(facts)
        if not (_is_number(a) and _is_number(b)) or max(abs(a), abs(b)) > 1e30:
            return None
        try:
            return operate(a, b)
        except ZeroDivisionError:
            return None

    return evaluate


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[object, object], bool]:
    """Numbers compare with numbers, texts with texts; all else compares as false."""

    def evaluate(a: object, b: object) -> bool:
        alike = (_is_number(a) and _is_number(b)) or (isinstance(a, str) and isinstance(b, str))
        return alike and compare(a, b)

    return evaluate


def _contains(whole: object, part: object) -> bool:
    if isinstance(whole, str):
        return isinstance(part, str) and part in whole
    if isinstance(whole, list | tuple | dict):
        return part in whole if isinstance(part, str | int | float | bool) else False
    return False


def _like(text: object, pattern: object) -> bool:
    """SQL's like: % stands for any text, _ for one character. In a time that grows with the product of both lengths."""
    if not isinstance(text, str) or not isinstance(pattern, str):
        return False
    at = wanted = 0
    star, star_at = -1, 0  # where to go on if what followed the last % does not fit
    while at < len(text):
        if wanted < len(pattern) and pattern[wanted] == "%":
            star, star_at = wanted, at
            wanted += 1
        elif wanted < len(pattern) and pattern[wanted] in ("_", text[at]):
            at, wanted = at + 1, wanted + 1
        elif star >= 0:
            star_at += 1
            at, wanted = star_at, star + 1
        else:
            return False
    return not pattern[wanted:].strip("%")


_at_most = _ordered(operator.le)
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "is": operator.eq,
    "is not": operator.ne,
    "<": _ordered(operator.lt),
    "<=": _at_most,
    ">": _ordered(operator.gt),
    ">=": _ordered(operator.ge),
    "in": lambda a, b: _contains(b, a),
    "not in": lambda a, b: not _contains(b, a),
    "like": _like,
    "not like": lambda a, b: not _like(a, b),
    "between": lambda a, b: _at_most(b[0], a) and _at_most(a, b[1]),
    "not between": lambda a, b: not (_at_most(b[0], a) and _at_most(a, b[1])),
}


def _compare(node: Node, parts: Sequence[Evaluate]) -> Evaluate:
    compares = [_COMPARISONS[comparison] for comparison in node.value]

    def evaluate(facts: Facts) -> bool:
        found = [part(facts) for part in parts]
        return all(compare(a, b) for compare, a, b in zip(compares, found, found[1:], strict=False))

    return evaluate


def _number(value: Any) -> float | int | None:
    """The number in a text, as many producers write them."""
    if _is_number(value):
        return value  # type: ignore[no-any-return]
    try:
        return float(value) if isinstance(value, str) and len(value) < 100 else None
    except ValueError:
        return None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else str(value) if _is_number(value) else None


_FUNCTIONS: Mapping[str, tuple[int, Callable[..., object]]] = {
    "contains": (2, _contains),
    "startswith": (2, lambda a, b: isinstance(a, str) and isinstance(b, str) and a.startswith(b)),
    "endswith": (2, lambda a, b: isinstance(a, str) and isinstance(b, str) and a.endswith(b)),
    "lower": (1, lambda a: a.lower() if isinstance(a, str) else None),
    "len": (1, lambda a: len(a) if isinstance(a, str | list | dict) else None),
    "number": (1, _number),
    "text": (1, _text),
}


def _call(node: Node, parts: Sequence[Evaluate]) -> Evaluate:
    if node.value not in _FUNCTIONS:
        known = ", ".join(_FUNCTIONS)
        raise UsageError(f"unknown function in the condition: {node.value!r}", why=f"known are {known}", hint=_HINT)
    wanted, function = _FUNCTIONS[node.value]
    if len(parts) != wanted:
        raise UsageError(f"{node.value} takes {plural(wanted, 'value')}", hint=_HINT)
    return lambda facts: function(*[part(facts) for part in parts])


_KINDS: Mapping[str, Callable[[Node, Sequence[Evaluate]], Evaluate]] = {
    "literal": _literal,
    "name": _name,
    "part": lambda _, parts: lambda facts: _field(parts[0](facts), parts[1](facts)),
    "list": lambda _, parts: lambda facts: [part(facts) for part in parts],
    "call": _call,
    "arithmetic": _arithmetic,
    "negative": lambda _, parts: lambda facts: -value if _is_number(value := parts[0](facts)) else None,
    "compare": _compare,
    "not": lambda _, parts: lambda facts: not parts[0](facts),
    "all": lambda _, parts: lambda facts: all(part(facts) for part in parts),
    "any": lambda _, parts: lambda facts: any(part(facts) for part in parts),
}
