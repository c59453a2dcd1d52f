"""A small language for choosing records, parsed and evaluated here: nothing that a person types is ever run as code.

    value.trip > 1000 and "bus" in key
    headers["source"] == "import" or value.items[0].price <= 9.99
    startswith(lower(value.city), "port") and not value.deleted

Names: key, value, headers, offset, partition, timestamp (milliseconds), size (bytes of the value). A field that is not
there is null, and null is neither smaller nor larger than anything, so a record without it does not match.
Python's parser reads the text; what it makes of it is checked node by node against the few kinds that are known here,
and turned into closures. There are no loops, no attributes of Python objects, no names but the above, and all sizes are
bounded.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.errors import UsageError

#: What a record offers: `key`, `value`, `headers`, `offset`, `partition`, `timestamp`, `size`.
Facts = Mapping[str, Any]
Evaluate = Callable[[Facts], Any]

NAMES = ("key", "value", "headers", "offset", "partition", "timestamp", "size")
_LONGEST = 1000
_DEEPEST = 30
_WORDS = {"null": None, "none": None, "true": True, "false": False}
_HINT = 'value.trip > 1000 and "bus" in key; functions: contains, startswith, endswith, lower, len, number, text'


class Expression:
    """A condition on records. Wrong text is a `UsageError` with the place."""

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > _LONGEST:
            raise UsageError(f"the expression is longer than {_LONGEST} characters", hint=_HINT)
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            place = f" at character {error.offset}" if isinstance(error, SyntaxError) and error.offset else ""
            reason = error.msg if isinstance(error, SyntaxError) else "it cannot be read"
            raise UsageError(f"the expression is wrong{place}: {reason}", hint=_HINT) from None
        self._evaluate = _compiled(tree.body, 0)

    def matches(self, facts: Facts) -> bool:
        """True if the condition holds for the record."""
        return bool(self._evaluate(facts))


def _compiled(node: ast.AST, depth: int) -> Evaluate:
    if depth > _DEEPEST:
        raise UsageError("the expression is nested too deeply", hint=_HINT)
    make = _KINDS.get(type(node))
    if make is None:
        raise UsageError(f"the expression has something unsupported: {_named(node)}", hint=_HINT)
    return make(node, depth + 1)


def _named(node: ast.AST) -> str:
    names = {"Lambda": "lambda", "ListComp": "a comprehension", "JoinedStr": "an f-string", "NamedExpr": ":=",
             "Await": "await", "Starred": "*", "IfExp": "if … else", "Dict": "a dictionary"}  # fmt: skip
    return names.get(type(node).__name__, type(node).__name__)


def _constant(node: Any, _: int) -> Evaluate:
    value = node.value
    if value is not None and not isinstance(value, str | int | float | bool):
        raise UsageError(f"unsupported value in the expression: {value!r}", hint=_HINT)
    return lambda _: value


def _name(node: Any, _: int) -> Evaluate:
    name = node.id
    if name.lower() in _WORDS:
        word = _WORDS[name.lower()]
        return lambda _: word
    if name not in NAMES:
        raise UsageError(f"unknown name in the expression: {name!r}", why=f"known are {', '.join(NAMES)}", hint=_HINT)
    return lambda facts: facts.get(name)


def _attribute(node: Any, depth: int) -> Evaluate:
    inner, field = _compiled(node.value, depth), node.attr
    return lambda facts: _field(inner(facts), field)


def _subscript(node: Any, depth: int) -> Evaluate:
    inner, index = _compiled(node.value, depth), _compiled(node.slice, depth)
    return lambda facts: _field(inner(facts), index(facts))


def _field(value: Any, name: Any) -> Any:
    """A member of a JSON object, an element of a JSON array; else null. Never an attribute of a Python object."""
    if isinstance(value, dict):
        return value.get(name) if isinstance(name, str | int) else None
    if isinstance(value, list) and isinstance(name, int) and not isinstance(name, bool):
        return value[name] if -len(value) <= name < len(value) else None
    return None


def _all_or_any(node: Any, depth: int) -> Evaluate:
    parts = [_compiled(part, depth) for part in node.values]
    if isinstance(node.op, ast.And):
        return lambda facts: all(part(facts) for part in parts)
    return lambda facts: any(part(facts) for part in parts)


def _unary(node: Any, depth: int) -> Evaluate:
    inner = _compiled(node.operand, depth)
    if isinstance(node.op, ast.Not):
        return lambda facts: not inner(facts)
    if isinstance(node.op, ast.USub):
        return lambda facts: -value if _is_number(value := inner(facts)) else None
    raise UsageError("only `not` and `-` are allowed before a value", hint=_HINT)


_ARITHMETIC: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
}


def _binary(node: Any, depth: int) -> Evaluate:
    """Arithmetic of numbers only: texts multiplied by numbers grow without bound."""
    operate = _ARITHMETIC.get(type(node.op))
    if operate is None:
        raise UsageError("only + - * / % are known between numbers", hint=_HINT)
    left, right = _compiled(node.left, depth), _compiled(node.right, depth)

    def evaluate(facts: Facts) -> Any:
        a, b = left(facts), right(facts)
        if not (_is_number(a) and _is_number(b)) or max(abs(a), abs(b)) > 1e30:
            return None
        try:
            return operate(a, b)
        except ZeroDivisionError:
            return None

    return evaluate


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    """Numbers compare with numbers, texts with texts; all else compares as false."""

    def evaluate(a: Any, b: Any) -> bool:
        alike = (_is_number(a) and _is_number(b)) or (isinstance(a, str) and isinstance(b, str))
        return alike and compare(a, b)

    return evaluate


def _contains(whole: Any, part: Any) -> bool:
    if isinstance(whole, str):
        return isinstance(part, str) and part in whole
    if isinstance(whole, list | tuple | dict):
        return part in whole if isinstance(part, str | int | float | bool) else False
    return False


_COMPARISONS: Mapping[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.eq,
    ast.IsNot: operator.ne,
    ast.Lt: _ordered(operator.lt),
    ast.LtE: _ordered(operator.le),
    ast.Gt: _ordered(operator.gt),
    ast.GtE: _ordered(operator.ge),
    ast.In: lambda a, b: _contains(b, a),
    ast.NotIn: lambda a, b: not _contains(b, a),
}


def _compare(node: Any, depth: int) -> Evaluate:
    values = [_compiled(part, depth) for part in (node.left, *node.comparators)]
    compares = [_COMPARISONS[type(op)] for op in node.ops]

    def evaluate(facts: Facts) -> bool:
        found = [value(facts) for value in values]
        return all(compare(a, b) for compare, a, b in zip(compares, found, found[1:], strict=False))

    return evaluate


def _elements(node: Any, depth: int) -> Evaluate:
    parts = [_compiled(part, depth) for part in node.elts]
    return lambda facts: [part(facts) for part in parts]


def _number(value: Any) -> float | int | None:
    """The number in a text, as many producers write them."""
    if _is_number(value):
        return value  # type: ignore[no-any-return]
    try:
        return float(value) if isinstance(value, str) and len(value) < 100 else None
    except ValueError:
        return None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else str(value) if _is_number(value) else None


_FUNCTIONS: Mapping[str, tuple[int, Callable[..., Any]]] = {
    "contains": (2, _contains),
    "startswith": (2, lambda a, b: isinstance(a, str) and isinstance(b, str) and a.startswith(b)),
    "endswith": (2, lambda a, b: isinstance(a, str) and isinstance(b, str) and a.endswith(b)),
    "lower": (1, lambda a: a.lower() if isinstance(a, str) else None),
    "len": (1, lambda a: len(a) if isinstance(a, str | list | dict) else None),
    "number": (1, _number),
    "text": (1, _text),
}


def _call(node: Any, depth: int) -> Evaluate:
    name = node.func.id if isinstance(node.func, ast.Name) else None
    if name is None or name not in _FUNCTIONS or node.keywords:
        known = ", ".join(_FUNCTIONS)
        raise UsageError("unknown function in the expression", why=f"known are {known}", hint=_HINT)
    wanted, function = _FUNCTIONS[name]
    if len(node.args) != wanted:
        raise UsageError(f"{name} takes {wanted} value{'s' if wanted > 1 else ''}", hint=_HINT)
    arguments: Sequence[Evaluate] = [_compiled(argument, depth) for argument in node.args]
    return lambda facts: function(*[argument(facts) for argument in arguments])


_KINDS: Mapping[type, Callable[[Any, int], Evaluate]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.BoolOp: _all_or_any,
    ast.UnaryOp: _unary,
    ast.BinOp: _binary,
    ast.Compare: _compare,
    ast.List: _elements,
    ast.Tuple: _elements,
    ast.Call: _call,
}
