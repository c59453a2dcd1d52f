"""The language of conditions on records: its grammar and its parser.

    value.trip > 1000 and "bus" in key
    comparison    = == != <> < <= > >=    between A and B    in (A, B)    like 'bus%'    is null    is not null
    joined by     and, or, not, brackets; a < b < c is allowed
    value         17   1.5   'text'   "text"   true   false   null   [A, B];   + - * / % between numbers
    name          a word; `a name in backticks`; window.start, items[0], headers["source"] are parts of a value
    function      lower(value.city)

Words such as `and` may be in capitals. In 'text' a quote is doubled, as in SQL; in "text" \\n, \\" and the like are
escapes, as in JSON. The parser builds nodes and evaluates nothing: what a name, a function or null means is up to
`kafka.browse.expression`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import UsageError

_TOKEN = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][-+]?\d+)?)"
    r"|(?P<text>'(?:[^']|'')*'|\"(?:[^\"\\]|\\.)*\")|(?P<quoted>`[^`]+`)|(?P<word>[^\W\d]\w*)"
    r"|(?P<sign><=|>=|!=|<>|==|[=<>()\[\],.+*/%-]))",
    re.DOTALL,
)
_KEYWORDS = {"and", "or", "not", "in", "is", "between", "like"}
_COMPARISONS = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_CONSTANTS = {"null": None, "true": True, "false": False}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'"}
_DIGITS = tuple(".0123456789")
_DEEPEST = 30


@dataclass(frozen=True)
class Node:
    """A piece of a condition, by its kind:

    literal       value: a number, text, true, false or null; `text` is how it was written
    name          value: the name
    part          parts: an object or array, and the name or number of the part
    list          parts: its elements
    call          value: the name of the function; parts: what it is given
    arithmetic    value: + - * / or %; parts: two operands
    negative, not     parts: the operand
    compare       value: comparisons, each between a part and the next; all of them have to hold. They are
                  = != < <= > >= is "is not", and in like between (whose right side is a list of two), also with "not "
    all, any      parts: the conditions
    """

    kind: str
    value: Any = None
    parts: Sequence[Node] = ()
    text: str = ""


def parse(text: str, example: str) -> Node:
    """The condition as nodes; an error names the place, and shows the example."""
    parser = _Parser(text, example)
    made = parser.either()
    parser.need_end()
    return made


class _Parser:
    def __init__(self, text: str, example: str) -> None:
        self.text = text
        self.example = example
        #: Kind, text and place of each.
        self.tokens = self._tokens()
        self.at = 0
        self.depth = 0

    def need_end(self) -> None:
        if self.at < len(self.tokens):
            raise self._expected("the end, and or or")

    def _tokens(self) -> list[tuple[str, str, int]]:
        found, at = [], 0
        while self.text[at:].strip():
            token = _TOKEN.match(self.text, at)
            if token is None:
                raise self._wrong(f"{self.text[at:].strip()[:20]!r} is neither a name, a value nor a comparison")
            kind = str(token.lastgroup)
            found.append((kind, token[kind], token.start(kind)))
            at = token.end()
        return found

    # -- conditions ----------------------------------------------------------------------------------------------

    def either(self) -> Node:
        return self._joined("or", "any", lambda: self._joined("and", "all", self._negation))

    def _joined(self, word: str, kind: str, part: Callable[[], Node]) -> Node:
        parts = [part()]
        while self._take(word):
            parts.append(part())
        return Node(kind, parts=parts) if len(parts) > 1 else parts[0]

    def _negation(self) -> Node:
        if self._take("not"):
            return Node("not", parts=[self._deeper(self._negation)])
        operands, comparisons = [self._sum()], []
        while comparison := self._comparison():
            operands.append(self._between() if comparison.endswith("between") else self._sum())
            if comparison.endswith("in") and self.tokens[self.at - 1][1] == ")" and operands[-1].kind == "literal":
                operands[-1] = Node("list", parts=[operands[-1]])  # `in (1)`, as in SQL
            comparisons.append(comparison)
        return Node("compare", comparisons, operands) if comparisons else operands[0]

    def _comparison(self) -> str | None:
        if self._take("is"):
            return "is not" if self._take("not") else "is"
        if self._take("not"):
            word = self._take("between", "in", "like")
            if not word:
                raise self._expected("between, in or like")
            return f"not {word}"
        found = self._take("between", "in", "like", *_COMPARISONS)
        return _COMPARISONS.get(found, found) if found else None

    def _between(self) -> Node:
        low = self._sum()
        self._need("and")
        return Node("list", parts=[low, self._sum()])

    # -- values --------------------------------------------------------------------------------------------------

    def _sum(self) -> Node:
        return self._operations(("+", "-"), lambda: self._operations(("*", "/", "%"), self._signed))

    def _operations(self, signs: tuple[str, ...], operand: Callable[[], Node]) -> Node:
        made, count = operand(), 0
        while sign := self._take(*signs):
            count += 1
            self._check(count)
            made = Node("arithmetic", sign, [made, operand()])
        return made

    def _signed(self) -> Node:
        if not (sign := self._take("-", "+")):
            return self._parts()
        operand = self._deeper(self._signed)
        if operand.kind == "literal" and operand.text[:1] in _DIGITS:
            return Node("literal", -operand.value if sign == "-" else operand.value, text=sign + operand.text)
        if sign == "+":
            raise self._wrong("only - is allowed before a value that is not a number")
        return Node("negative", parts=[operand])

    def _parts(self) -> Node:
        made, count = self._primary(), 0
        while sign := self._take(".", "["):
            count += 1
            self._check(count)
            made = Node("part", parts=[made, self._field() if sign == "." else self._deeper(self.either)])
            if sign == "[":
                self._need("]")
        return made

    def _field(self) -> Node:
        kind, text, _ = self._next()
        if kind not in {"word", "quoted"}:
            raise self._expected("the name of a field", back=1)
        return Node("literal", text.strip("`"), text=text)

    def _primary(self) -> Node:
        kind, text, _ = self._next()
        word = text.lower() if kind == "word" else None
        if kind == "number":
            return self._number(text)
        if kind == "text":
            return Node("literal", _unquoted(text), text=text)
        if text == "(":
            items = self._items(")")
            is_list = len(items) != 1 or self.tokens[self.at - 2][1] == ","
            return Node("list", parts=items) if is_list else items[0]
        if text == "[":
            return Node("list", parts=self._items("]"))
        if word in _CONSTANTS:
            return Node("literal", _CONSTANTS[word], text=word)
        if kind == "quoted" or (word and word not in _KEYWORDS and not self._take("(")):
            return Node("name", text.strip("`"))
        if word and word not in _KEYWORDS:
            return Node("call", text, self._items(")"))
        raise self._expected("a name or a value", back=1)

    def _items(self, end: str) -> list[Node]:
        items: list[Node] = []
        while not self._take(end):
            items.append(self._deeper(self.either))
            if not self._take(","):
                self._need(end)
                break
        return items

    def _number(self, text: str) -> Node:
        written = text.replace("_", "")
        try:
            whole = written.isdecimal() or written[1:2] in {"x", "X"}
            value = int(written, 10 if written.isdecimal() else 16) if whole else float(written)
        except ValueError:
            raise self._wrong(f"{text[:20]} is not a number") from None
        return Node("literal", value, text=written)

    # -- tokens --------------------------------------------------------------------------------------------------

    def _deeper(self, parse: Callable[[], Node]) -> Node:
        self.depth += 1
        self._check(self.depth)
        made = parse()
        self.depth -= 1
        return made

    def _check(self, depth: int) -> None:
        if depth > _DEEPEST:
            raise UsageError(f"the condition has more than {_DEEPEST} brackets, nots or operations within each other")

    def _next(self) -> tuple[str, str, int]:
        self.at += 1
        return self.tokens[self.at - 1] if self.at <= len(self.tokens) else ("end", "", 0)

    def _take(self, *texts: str) -> str | None:
        """The next token, if it is one of these words or signs."""
        kind, text, _ = self._next()
        if kind in {"word", "sign"} and text.lower() in texts:
            return text.lower()
        self.at -= 1
        return None

    def _need(self, text: str) -> None:
        if not self._take(text):
            raise self._expected(text)

    def _expected(self, what: str, back: int = 0) -> UsageError:
        self.at -= back
        _, text, at = self._next()
        return self._wrong(f"{what} is expected where {f'{text} (character {at + 1})' if text else 'the end'} stands")

    def _wrong(self, why: str) -> UsageError:
        return UsageError(f"the condition {self.text[:200]!r} cannot be parsed", why=why, hint=self.example)


def _unquoted(text: str) -> str:
    if text[0] == "'":
        return text[1:-1].replace("''", "'")
    return _ESCAPE.sub(_unescaped, text[1:-1])


def _unescaped(found: re.Match[str]) -> str:
    code = found[1] or found[2]
    return chr(int(code, 16)) if code else _ESCAPED.get(found[3], found[0])
