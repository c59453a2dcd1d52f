"""`vehicle = 1776 and at >= '2020-09-10'`: a condition on rows, as people write it, read into one that Arrow computes.

    comparison    = != <> < <= > >=    between A and B    in (A, B)    like 'bus%'    is null    is not null
    value         17   1.5   'text'   true   false;   times and dates as text: '2020-09-10T06:00:00' is UTC
    joined by     and, or, not, brackets
    column        a name; `a name in backticks` if it is no plain word; window.start is a field of a struct

That is all there is: no functions, no arithmetic, nothing is evaluated but comparisons. Other questions are for SQL.
Nulls are as in SQL: a comparison with a null is neither true nor false, and such a row is not shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from headrace.errors import UsageError

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)|(?P<text>'(?:[^']|'')*')|(?P<quoted>`[^`]+`)"
    r"|(?P<word>[^\W\d][\w.]*)|(?P<sign><=|>=|!=|<>|=|<|>|\(|\)|,))"
)
_DEEPEST = 30
_WORDS = {"and", "or", "not", "in", "is", "null", "between", "like", "true", "false"}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": lambda a, b: a == b, "!=": lambda a, b: a != b, "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}  # fmt: skip


def read_filter(text: str, schema: Any) -> Any:
    """The condition as an Arrow expression on rows of that schema; what is wrong with it is told with its place."""
    return _Reader(text, schema).read()


def field_of(name: str, schema: Any) -> tuple[Any, Any] | None:
    """The column, or the field inside of one, that the name means: an Arrow expression and its type."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if name in schema.names:
        return pc.field(name), schema.field(name).type
    path = name.split(".")
    kind: Any = pa.struct(list(schema))
    for part in path:
        if not pa.types.is_struct(kind) or kind.get_field_index(part) < 0:
            return None
        kind = kind.field(part).type
    return pc.field(*path), kind


def no_such_column(name: str, schema: Any) -> UsageError:
    import difflib

    near = difflib.get_close_matches(name, schema.names, n=1)
    return UsageError(
        f"there is no column {name!r}",
        why=f"the table has {', '.join(schema.names)}",
        hint=f"did you mean {near[0]}?" if near else None,
    )


class _Reader:
    def __init__(self, text: str, schema: Any) -> None:
        self.text = text
        self.schema = schema
        self.tokens = self._tokens()
        self.at = 0
        self.depth = 0

    def read(self) -> Any:
        made = self._either()
        if self.at < len(self.tokens):
            raise self._wrong("the end, and or or")
        return made

    def _tokens(self) -> list[tuple[str, str, int]]:
        found, at = [], 0
        while self.text[at:].strip():
            token = _TOKEN.match(self.text, at)
            if token is None:
                raise self._unreadable(at)
            kind, value = str(token.lastgroup), token[str(token.lastgroup)]
            if kind == "word" and value.lower() in _WORDS:
                kind, value = "key", value.lower()
            found.append((kind, value, token.start(kind if kind != "key" else "word")))
            at = token.end()
        return found

    # -- conditions ----------------------------------------------------------------------------------------------------

    def _either(self) -> Any:
        made = self._all()
        while self._take("key", "or"):
            made = made | self._all()
        return made

    def _all(self) -> Any:
        made = self._one()
        while self._take("key", "and"):
            made = made & self._one()
        return made

    def _one(self) -> Any:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise UsageError(f"the condition has more than {_DEEPEST} brackets or nots within each other")
        if self._take("key", "not"):
            made = ~self._one()
        elif self._take("sign", "("):
            made = self._either()
            self._need("sign", ")")
        else:
            made = self._comparison()
        self.depth -= 1
        return made

    def _comparison(self) -> Any:
        column, kind, name = self._column()
        if self._take("key", "is"):
            negated = self._take("key", "not")
            self._need("key", "null")
            return column.is_valid() if negated else column.is_null()
        negated = self._take("key", "not")
        if self._take("key", "between"):
            low = self._value(kind, name)
            self._need("key", "and")
            made = (column >= low) & (column <= self._value(kind, name))
        elif self._take("key", "in"):
            made = self._listed(column, kind, name)
        elif self._take("key", "like"):
            made = self._like(column, kind, name)
        elif not negated and (sign := self._sign()):
            made = _COMPARE[sign](column, self._value(kind, name))
        else:
            raise self._wrong("a comparison such as =, <, between, in, like or is null")
        return ~made if negated else made

    def _listed(self, column: Any, kind: Any, name: str) -> Any:
        self._need("sign", "(")
        made = column == self._value(kind, name)
        while self._take("sign", ","):
            made = made | (column == self._value(kind, name))
        self._need("sign", ")")
        return made

    def _like(self, column: Any, kind: Any, name: str) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        if not pa.types.is_string(kind):
            raise UsageError(f"like is for text, and {name} is a {kind}")
        return pc.match_like(column, self._value(kind, name).as_py())

    def _column(self) -> tuple[Any, Any, str]:
        token = self._peek()
        if token is None or token[0] not in {"word", "quoted"}:
            raise self._wrong("a column")
        self.at += 1
        name = token[1].strip("`")
        found = field_of(name, self.schema)
        if found is None:
            raise no_such_column(name, self.schema)
        return *found, name

    # -- values --------------------------------------------------------------------------------------------------------

    def _value(self, kind: Any, name: str) -> Any:
        import pyarrow as pa

        token = self._peek()
        if token is None or not (token[0] in {"number", "text"} or token[1] in {"true", "false"}):
            raise self._wrong("a value: a number, 'text', true or false")
        self.at += 1
        try:
            return _scalar(token[0], token[1], kind)
        except (pa.ArrowException, ValueError, TypeError, ArithmeticError) as error:
            raise UsageError(f"{name} is a {kind}, and {token[1]} is none", why=str(error)) from None

    def _sign(self) -> str | None:
        token = self._peek()
        if token is None or token[1] not in _COMPARE or token[0] != "sign":
            return None
        self.at += 1
        return token[1]

    def _peek(self) -> tuple[str, str, int] | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def _take(self, kind: str, value: str) -> bool:
        token = self._peek()
        if token is None or token[:2] != (kind, value):
            return False
        self.at += 1
        return True

    def _need(self, kind: str, value: str) -> None:
        if not self._take(kind, value):
            raise self._wrong(value)

    def _wrong(self, expected: str) -> UsageError:
        token = self._peek()
        here = f"{token[1]} (character {token[2] + 1})" if token else "the end"
        return UsageError(
            f"the condition {self.text!r} cannot be read",
            why=f"{expected} is expected where {here} stands",
            hint="vehicle = 1776 and (speed > 20.5 or route like '1%')",
        )

    def _unreadable(self, at: int) -> UsageError:
        rest = self.text[at:].strip()[:20]
        return UsageError(
            f"the condition {self.text!r} cannot be read",
            why=f"{rest!r} is neither a column, a value nor a comparison",
            hint="text stands in single quotes, unusual column names in `backticks`",
        )


def _scalar(what: str, text: str, kind: Any) -> Any:
    import pyarrow as pa

    if what == "key":
        return _checked(pa.scalar(text == "true"), pa.types.is_boolean(kind))
    if what == "number":
        if pa.types.is_decimal(kind):
            return pa.scalar(Decimal(text))
        number = int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)
        return _checked(pa.scalar(number), pa.types.is_integer(kind) or pa.types.is_floating(kind))
    plain = text[1:-1].replace("''", "'")
    if pa.types.is_timestamp(kind):
        return _moment(plain, kind)
    if pa.types.is_binary(kind):
        return pa.scalar(plain.encode())
    return _checked(pa.scalar(plain).cast(kind), not pa.types.is_boolean(kind))


def _checked(value: Any, fits: bool) -> Any:
    if not fits:
        raise ValueError(f"the column takes no {value.type}")
    return value


def _moment(text: str, kind: Any) -> Any:
    """ISO 8601, in UTC unless it says otherwise."""
    from datetime import UTC, datetime

    import pyarrow as pa

    found = datetime.fromisoformat(text)
    if kind.tz is None:
        return pa.scalar(found.replace(tzinfo=None), kind)
    return pa.scalar(found if found.tzinfo else found.replace(tzinfo=UTC), kind)
