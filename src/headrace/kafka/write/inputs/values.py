"""JSON values as text: where one ends, whether it is one, and why not.

Everything here goes through msgspec, which validates at C speed and tells by its complaint where a value ends.
"""

from __future__ import annotations

import re
from collections import deque

import msgspec

from headrace.errors import Failed
from headrace.kafka.write.inputs.batch import Place

MAX_RECORD_BYTES = 64 << 20
_RAW = msgspec.json.Decoder(msgspec.Raw)
ANY = msgspec.json.Decoder()
NOT_JSON = (msgspec.MsgspecError, UnicodeError, RecursionError)
_AT_BYTE = re.compile(r"\(byte (\d+)\)$")


class Unfinished(Exception):
    """More input is needed to tell."""


class Malformed(Exception):
    """No value begins here; `at` is where the grammar breaks."""

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(reason)
        self.at = at
        self.reason = reason


def value_end(buffer: bytes, start: int, ended: bool) -> int:
    """The index behind the JSON value that begins at `start`."""
    try:
        _RAW.decode(memoryview(buffer)[start:])
    except RecursionError:
        raise Malformed(start, "it is nested too deeply") from None
    except msgspec.DecodeError as error:
        text = str(error)
        found = _AT_BYTE.search(text)
        if found is None:
            raise Unfinished from None
        at = start + int(found[1])
        if "trailing characters" in text:
            # The byte it names is the one behind the first that follows the value.
            return start + len(buffer[start : at - 1].rstrip())
        if at >= len(buffer) and not ended:
            raise Unfinished from None
        raise Malformed(at, _AT_BYTE.sub(f"(byte {at - start} of it)", text)) from None
    end = start + len(buffer[start:].rstrip())
    if ended or end < len(buffer) or buffer[end - 1 : end] in (b"}", b"]", b'"'):
        return end
    raise Unfinished  # the rest of a number may still come


def validate(text: bytes, values: list[bytes], parsed: bool) -> list[object] | None:
    """All values are JSON, else an error of `NOT_JSON`; `text` is what they were cut from."""
    if parsed:
        return list(map(ANY.decode, values))
    if not text.isascii():
        text.decode()
    deque(map(_RAW.decode, values), maxlen=0)
    return None


def fault(value: bytes, parsed: bool) -> str | None:
    """Why the value is no JSON record, or None."""
    try:
        value.decode()
        (ANY if parsed else _RAW).decode(value)
    except UnicodeDecodeError as error:
        return f"byte {error.start} of it is not UTF-8"
    except RecursionError:
        return "it is nested too deeply"
    except msgspec.MsgspecError as error:
        return "the JSON is not complete" if "truncated" in str(error) else str(error)
    return None


def on_one_line(values: list[bytes]) -> list[bytes]:
    return [msgspec.json.format(value, indent=-1) if b"\n" in value else value for value in values]


def refuse_giant(size_bytes: int, name: str, place: Place) -> None:
    if size_bytes > MAX_RECORD_BYTES:
        raise Failed(
            f"{name}, {place}: a record longer than {MAX_RECORD_BYTES >> 20} MiB",
            why="no end of it was found, so it would have to be held in memory whole",
            hint="if this is one array or objects without line ends, name that shape: array, concatenated",
        )
