"""JSON values inside an array of any size, or one after another without anything between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec

from headrace.errors import HeadraceError
from headrace.kafka.write.inputs.batch import BadPiece, InputBatch, Place, Shape
from headrace.kafka.write.inputs.source import BLOCK, Source
from headrace.kafka.write.inputs.values import (
    ANY,
    MAX_RECORD_BYTES,
    NOT_JSON,
    Malformed,
    Unfinished,
    fault,
    on_one_line,
    refuse_giant,
    validate,
    value_end,
)

_RAWS = msgspec.json.Decoder(list[msgspec.Raw])
_STRINGS = msgspec.json.Decoder(list[str])
_SPACE = re.compile(rb"[ \t\r\n]*")
_FIRST_KEY = re.compile(rb'\{[ \t\r\n]*("(?:[^"\\]|\\.)*")[ \t\r\n]*:')


@dataclass(frozen=True, slots=True)
class _Joint:
    """The bytes from the last one of an element over the separator to the first key of the next."""

    tail: bytes
    between: bytes
    head: bytes

    @property
    def whole(self) -> bytes:
        return self.tail + self.between + self.head


class ElementStream:
    """JSON values inside an array, or one after another, found without a look at every byte in Python.

    The fast way (`_many`) guesses where the last whole element of a block ends: at the last occurrence of
    the bytes that joined two earlier elements. The guess needs no trust: if everything before it parses as
    one array, JSON's grammar leaves no other reading. If it does not, the elements are taken one by one,
    and msgspec tells where a value ends by complaining about what follows it.
    After a bad element the search goes on at the next object that begins with the same key as the first
    one did: nested objects rarely do, and a missing bracket or quote cannot hide it.
    """

    def __init__(
        self,
        source: Source,
        shape: Shape,
        parsed: bool,
        reject: Callable[[BadPiece, int], HeadraceError | None],
    ) -> None:
        self._source = source
        self._blocks = source.blocks()
        self._shape = shape
        self._parsed = parsed
        self._rejected = reject
        self._taken = 0
        self._in_array = shape is not Shape.CONCATENATED
        self._expect: Literal["array", "first", "element", "comma", "again"] = "array" if self._in_array else "element"
        self._buffer = b""
        self._position = 0
        self._base = 0
        self._ended = False
        self._error: HeadraceError | None = None
        self._opener = b""
        self._first_key: bytes | None = None
        self._joint: _Joint | None = None
        self._previous_end = 0

    def batches(self) -> Iterator[InputBatch]:
        self._buffer = next(self._blocks, b"")
        self._base = self._source.start
        while True:
            self._skip_space()
            place = self._place(self._position)
            values, objects = self._many()
            self._taken += len(values)
            for start, value, parsed in self._one_by_one():
                self._taken += 1
                place = place if values else self._place(start)
                values.append(value)
                objects.append(parsed)
            if values:
                yield InputBatch(values, place, objects if self._parsed else None)
            if self._error:
                raise self._error
            if self._ended:
                return
            self._refill()

    def _many(self) -> tuple[list[bytes], list[object]]:
        """All elements up to the last joint of the buffer, or none if they are not as expected."""
        joint, start = self._joint, self._position
        cut = self._buffer.rfind(joint.whole, start) if joint else -1
        if joint is None or cut < 0 or self._expect not in ("first", "element"):
            return [], []
        chunk = self._buffer[start : cut + len(joint.tail)]
        try:
            values, objects = self._parse_many(chunk, joint)
        except NOT_JSON:
            self._joint = None
            return [], []
        self._position = cut + len(joint.tail) + len(joint.between)
        self._expect = "element"
        return values, objects

    def _parse_many(self, chunk: bytes, joint: _Joint) -> tuple[list[bytes], list[object]]:
        if not chunk.isascii():
            chunk.decode()
        if self._shape is Shape.STRINGS:
            values = [text.encode() for text in _STRINGS.decode(b"[%b]" % chunk)]
            return on_one_line(values), validate(b"", values, self._parsed) or []
        if self._in_array:
            values = list(map(bytes, _RAWS.decode(b"[%b]" % chunk)))
        else:
            with_commas = chunk.replace(joint.whole, joint.tail + b"," + joint.head)
            values = list(map(bytes, _RAWS.decode(b"[%b]" % with_commas)))
            if joint.between.join(values) != chunk:  # a comma has gone inside a value and mended it
                raise msgspec.DecodeError("a value is not as it was written")
        objects = list(map(ANY.decode, values)) if self._parsed else []
        return (on_one_line(values) if b"\n" in chunk else values), objects

    def _one_by_one(self) -> Iterator[tuple[int, bytes, object]]:
        """Every further element that is complete, until more input is needed or `_error` is set."""
        while self._error is None:
            start = self._skip_space()
            if start == len(self._buffer):
                if self._ended:
                    self._finish()
                return
            try:
                if self._expect in ("first", "element") and not self._closes(start):
                    yield from self._take_element(start)
                else:
                    self._take_mark(start)
            except Malformed as error:
                try:
                    self._skip_bad(start, error)
                except Unfinished:
                    return
            except Unfinished:
                return

    def _take_element(self, start: int) -> Iterator[tuple[int, bytes, object]]:
        self._learn(start)
        try:
            end = value_end(self._buffer, start, self._ended)
        except Unfinished:
            if not self._ended:
                raise
            raise Malformed(len(self._buffer), "the input ends inside this value") from None
        raw = self._buffer[start:end]
        self._position = self._previous_end = end
        self._expect = "comma" if self._in_array else "element"
        value, reason = self._unwrapped(raw)
        reason = reason or fault(value, self._parsed)
        if reason:
            self._error = self._reject(BadPiece(raw, self._place(start), reason))
        else:
            yield start, on_one_line([value])[0], ANY.decode(value) if self._parsed else None

    def _unwrapped(self, raw: bytes) -> tuple[bytes, str | None]:
        """The record inside an element: what a string holds in an array of strings, else the element."""
        if self._shape is not Shape.STRINGS:
            return raw, None
        try:
            return _STRINGS.decode(b"[%b]" % raw)[0].encode(), None
        except msgspec.ValidationError:
            return raw, "it is not a string"
        except NOT_JSON as error:
            return raw, str(error)

    def _take_mark(self, start: int) -> None:
        """A bracket or comma is behind us, and what may follow it is expected."""
        mark = self._buffer[start : start + 1]
        if mark == b"[" and self._expect in ("array", "again"):
            self._expect = "first"
        elif mark == b"," and self._expect == "comma":
            self._expect = "element"
        elif mark == b"]" and self._expect in ("first", "element", "comma"):
            if self._expect == "element":
                self._error = self._reject(BadPiece(b"", self._place(start), "a comma stands before ']'"))
            self._expect = "again"
        else:
            wanted = "',' or ']'" if self._expect == "comma" else "'['"
            raise Malformed(start, f"{wanted} was expected")
        self._position = start + 1

    def _reject(self, piece: BadPiece) -> HeadraceError | None:
        return self._rejected(piece, self._taken)

    def _skip_bad(self, start: int, error: Malformed) -> None:
        """The bytes up to the next plausible element are rejected as one piece."""
        resume = self._next_element(start, error.at)
        closed = False
        if resume is None and not self._ended:
            if len(self._buffer) - start <= MAX_RECORD_BYTES:
                raise Unfinished
            resume = len(self._buffer)
        elif resume is None:
            resume = len(self._buffer.rstrip())
            closed = self._in_array and resume > start + 1 and self._buffer[resume - 1 : resume] == b"]"
            resume -= closed
        data = self._buffer[start:resume].rstrip()
        if self._in_array:
            data = data.removesuffix(b",").rstrip()
        self._error = self._reject(BadPiece(data, self._place(start), error.reason))
        self._position = resume
        if closed:
            self._expect = "comma"
        else:
            # At the very end there is nothing more to complain about.
            self._expect = "again" if self._ended and resume == len(self._buffer.rstrip()) else "element"

    def _next_element(self, start: int, at: int) -> int | None:
        # Where an element was expected and is bad, the search begins behind its first byte.
        behind = start + (self._expect in ("first", "element"))
        if self._first_key is not None:
            begins = re.compile(rb"\{[ \t\r\n]*" + re.escape(self._first_key) + rb"[ \t\r\n]*:")
            if found := begins.search(self._buffer, behind):
                return found.start()
        ends = {b"{": rb"\}\s*,?\s*(?=\{)", b'"': rb'"\s*,\s*(?=")'}.get(self._opener, rb",\s*")
        found = re.compile(ends).search(self._buffer, at)
        return found.end() if found else None

    def _learn(self, start: int) -> None:
        """The first element's first key is known, and how two neighbours are joined."""
        key = _FIRST_KEY.match(self._buffer, start)
        if not self._opener:
            self._opener = self._buffer[start : start + 1]
            self._first_key = key[1] if key else None
        if self._joint or not self._previous_end:
            return
        tail = self._buffer[self._previous_end - 1 : self._previous_end]
        between = self._buffer[self._previous_end : start]
        head = self._buffer[start : key.end(1)] if key else self._buffer[start : start + 1]
        if self._in_array:
            # The bytes of a number vary; brackets and quotes do not.
            tail = tail if tail in b'}]"' else b""
            head = head if head[:1] in b'{["' else b""
        elif not (key and re.match(rb"\w", key[1][1:])):
            # Without commas only a key tells a joint from a string that ends in "}{".
            return
        self._joint = _Joint(tail, between, head)

    def _closes(self, start: int) -> bool:
        return self._in_array and self._buffer[start : start + 1] == b"]"

    def _skip_space(self) -> int:
        found = _SPACE.match(self._buffer, self._position)
        self._position = found.end() if found else self._position
        return self._position

    def _place(self, index: int) -> Place:
        return Place("byte", self._base + index)

    def _refill(self) -> None:
        """The rest of the buffer is followed by more; a long element is met with ever longer reads."""
        pieces = [self._buffer[self._position :]]
        kept = len(pieces[0])
        refuse_giant(kept, self._source.name, self._place(self._position))
        wanted = min(kept, MAX_RECORD_BYTES + 1 - kept) if kept > BLOCK else 1
        while wanted > 0 and not self._ended:
            block = next(self._blocks, b"")
            pieces.append(block)
            wanted -= len(block)
            self._ended = not block
        self._base += self._position
        self._buffer = b"".join(pieces)
        self._position = self._previous_end = 0

    def _finish(self) -> None:
        if self._expect not in ("array", "again") and self._in_array:
            reason = "the input ends before the array does"
            self._error = self._reject(BadPiece(b"", self._place(self._position), reason))
