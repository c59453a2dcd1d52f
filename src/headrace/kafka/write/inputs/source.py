"""Blocks of bytes from wherever they come: a path, standard input, a stream; unpacked if they are gzip."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

from headrace.errors import Failed, UsageError
from headrace.kafka.write.inputs.detection import BOM, HEAD, is_telling

BLOCK = 120 * 1024


def require_readable(source: object) -> None:
    """A path that cannot be read is an error now: before a topic is created for its records."""
    # A pipe can be opened once only.
    if isinstance(source, str | Path) and str(source) != "-" and not Path(source).is_fifo():
        Source(source).close()


class Source:
    """Blocks of bytes from a path, standard input or a stream; gzip is unpacked, a UTF-8 BOM left out."""

    def __init__(self, source: str | Path | BinaryIO) -> None:
        self.name = str(source) if isinstance(source, str | Path) else str(getattr(source, "name", "the stream"))
        self._ours = isinstance(source, str | Path) and str(source) != "-"
        if str(source) == "-":
            self.name = "standard input"
            if sys.stdin is None:
                raise UsageError("standard input is closed", hint="name a file")
            source = sys.stdin.buffer
        self._file = self._open(Path(source)) if isinstance(source, str | Path) else source
        # What follows in a file is there already: taking more of it at once delays nothing.
        self.is_file = self._ours and Path(self.name).is_file()
        self._stream = self._unpacked()
        self._first: bytes | None = None
        self.start = 0

    def head(self) -> bytes:
        """What the input begins with: a line at least, and as much more as one read gives."""
        if self._first is None:
            self._first = self._read()
            while len(self._first) < HEAD and not is_telling(self._first) and (more := self._read()):
                self._first += more
            if self._first.startswith(BOM):
                self._first = self._first[len(BOM) :]
                self.start = len(BOM)
        return self._first

    def blocks(self) -> Iterator[bytes]:
        """The whole input, in order, each block as soon as it is there."""
        block = self.head()
        self._first = b""
        while block:
            yield block
            block = self._read()

    def refuse_utf16(self) -> None:
        if self.head()[:2] in (b"\xff\xfe", b"\xfe\xff"):
            raise UsageError(
                f"{self.name} is written in UTF-16",
                why="Kafka's tools and JSON (RFC 8259) expect UTF-8",
                hint=f"iconv -f UTF-16 -t UTF-8 {self.name}, or name the shape lines to send it untouched",
            )

    def close(self) -> None:
        if self._ours:
            self._file.close()

    def _open(self, path: Path) -> BinaryIO:
        try:
            return path.open("rb")
        except IsADirectoryError as error:
            raise UsageError(f"{path} is a directory", hint="name one file, or - to read standard input") from error
        except FileNotFoundError as error:
            why = None if path.parent.is_dir() else f"there is no directory {path.parent}"
            raise UsageError(f"there is no file {path}", why=why, hint="- reads standard input") from error
        except OSError as error:
            raise UsageError(f"{path} cannot be read", why=error.strerror, hint="check its permissions") from error

    def _unpacked(self) -> BinaryIO:
        peek = getattr(self._file, "peek", None)
        if peek is not None and peek(3)[:3] == b"\x1f\x8b\x08":
            return cast(BinaryIO, gzip.GzipFile(fileobj=self._file))
        return self._file

    def _read(self) -> bytes:
        # read1 returns what a pipe holds now, where read would wait until the block is full.
        read: Callable[[int], bytes | None] = getattr(self._stream, "read1", self._stream.read)
        try:
            return read(BLOCK) or b""
        except (EOFError, zlib.error, OSError) as error:
            raise Failed(f"{self.name} cannot be read to its end", why=str(error)) from error
