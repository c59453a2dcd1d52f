"""What can be wrong with a record, by name, and putting it into a sample at a given rate.

A kind of damage takes a sound record and gives the damaged value, or bytes where the result is no JSON. What was done
to which record is reported as `Damage`, so that a test knows the truth without working it out from the data.

Invariant: the choice of records depends on the seed and their position alone, so every format is damaged alike.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import UsageError

Value = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of damage. `spoils`: the formats in which one such record makes the whole file unreadable."""

    name: str
    says: str
    apply: Callable[[Value, random.Random], object]
    field: str | None = None
    spoils: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Damage:
    """What was done to one record. `of` is the record that a duplicate repeats."""

    record: int
    kind: str
    field: str | None = None
    of: int | None = None


DUPLICATE = "duplicate"


_DOCUMENTS = frozenset({"array", "pretty", "concatenated"})
_CSV = frozenset({"csv"})


def replaced(name: str, says: str, field: str, value: object | Callable[[Any], object]) -> Kind:
    """A kind that puts another value into one field."""

    def apply(record: Value, _: random.Random) -> Value:
        return {**record, field: value(record.get(field)) if callable(value) else value}

    return Kind(name, says, apply, field)


def removed(name: str, says: str, field: str) -> Kind:
    """A kind that takes one field away."""
    return Kind(name, says, lambda record, _: {n: v for n, v in record.items() if n != field}, field)


def _truncated(record: Value, draw: random.Random) -> bytes:
    text = json.dumps(record).encode()
    return text[: draw.randrange(1, len(text) - 1)]


def _invalid_utf8(record: Value, draw: random.Random) -> bytes:
    text = json.dumps(record).encode()
    # Inside the first quoted name or value that is drawn, so that only the encoding is wrong.
    quotes = [at for at, byte in enumerate(text) if byte == ord('"')]
    at = quotes[draw.randrange(0, len(quotes) // 2) * 2] + 1
    return text[:at] + b"\xff\xfe" + text[at:]


ANY_JSON = (
    Kind("not-json", "words where JSON is expected", lambda record, _: _words(record), spoils=_DOCUMENTS | _CSV),
    Kind("truncated", "JSON that stops in the middle", _truncated, spoils=_DOCUMENTS | _CSV),
    Kind("invalid-utf8", "bytes that are not UTF-8", _invalid_utf8, spoils=_DOCUMENTS | _CSV | {"strings"}),
    Kind("null", "the JSON value null", lambda _, __: None, spoils=_CSV),
    Kind("not-an-object", "a list instead of an object", lambda record, _: list(record.values()), spoils=_CSV),
    Kind(DUPLICATE, "a copy of an earlier record in this one's place", lambda record, _: record),
)


def _words(record: Value) -> bytes:
    return ("lost contact with " + " ".join(map(str, list(record.values())[:2]))).encode()


@dataclass(frozen=True, slots=True)
class Wanted:
    """How much damage: a share of `bad` records of any kind that leaves a file in `fits` readable, and by name."""

    bad: float = 0.0
    named: Mapping[str, float] = field(default_factory=dict)
    fits: str = "ndjson"


def rates(kinds: Mapping[str, Kind], wanted: Wanted) -> dict[str, float]:
    """The rate of each kind, checked."""
    bad, named = wanted.bad, wanted.named
    if not 0 <= bad <= 1:
        raise UsageError(f"invalid rate of bad records: {bad}", hint="a share between 0 and 1, like 0.01")
    for name, rate in named.items():
        if name not in kinds:
            raise UsageError(f"unknown kind of damage: {name!r}", hint="one of " + ", ".join(kinds))
        if not 0 <= rate <= 1:
            raise UsageError(f"invalid rate for {name}: {rate}", hint="a share between 0 and 1, like 0.01")
        if wanted.fits == "csv" and "csv" in kinds[name].spoils:
            raise UsageError(f"a CSV file cannot hold this kind of damage: {name}", hint="--format ndjson")
    fitting = [name for name, kind in kinds.items() if wanted.fits not in kind.spoils]
    shared = {name: bad / len(fitting) for name in fitting} if bad else {}
    total = {name: shared.get(name, 0.0) + named.get(name, 0.0) for name in {**shared, **named}}
    if sum(total.values()) > 1:
        raise UsageError(f"the rates add up to {sum(total.values()):g}", hint="together they are at most 1")
    return {name: rate for name, rate in sorted(total.items()) if rate}


class Injector:
    """Draws, for each record in turn, whether it is damaged and how."""

    def __init__(self, kinds: Mapping[str, Kind], chosen: Mapping[str, float], seed: int) -> None:
        self._draw = random.Random(f"damage {seed}")  # noqa: S311 - example data
        self._kinds = [kinds[name] for name in chosen]
        self._bounds: list[float] = []
        for rate in chosen.values():
            self._bounds.append((self._bounds[-1] if self._bounds else 0.0) + rate)

    def damaged(self, first: int, count: int, value: Callable[[int], Value]) -> Iterator[tuple[Damage, object]]:
        """The damaged ones among `count` records of which the first has the number `first`."""
        top = self._bounds[-1]
        touched: set[int] = set()
        for at in range(count):
            drawn = self._draw.random()
            if drawn >= top:
                continue
            kind = next(kind for kind, bound in zip(self._kinds, self._bounds, strict=True) if drawn < bound)
            if kind.name != DUPLICATE:
                touched.add(at)
                yield Damage(first + at, kind.name, kind.field), kind.apply(value(at), self._draw)
            elif (of := self._earlier(at, touched)) is not None:
                touched.add(at)
                yield Damage(first + at, kind.name, of=first + of), value(of)

    def _earlier(self, at: int, touched: set[int]) -> int | None:
        """A sound record of the same chunk, some way back; None if there is none."""
        for _ in range(8):
            of = at - self._draw.randrange(1, 40)
            if of >= 0 and of not in touched:
                return of
        return None
