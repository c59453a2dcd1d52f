"""What a person or a script sees. Standard output carries data only; words and progress go to standard error."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

import click

from headrace.errors import HeadraceError
from headrace.text import short

_WIDEST_CELL = 60

_STATE_COLOURS = {
    "running": "green", "up": "green", "ok": "green",
    "paused": "yellow", "fenced": "yellow", "degraded": "yellow", "warning": "yellow",
    "dead": "red", "problem": "red", "down": "red",
}  # fmt: skip


# Where a line of a table may end: behind a blank, a comma, a slash; where that is not enough, inside of names too, but
# never before a number: broker-1 and 0.5 are read in one piece.
_BETWEEN_WORDS = re.compile(r"(?<=[ ,/])")
_INSIDE_WORDS = re.compile(r"(?<=[ ,/._-])(?!\d)|(?<=[ ,/])")
_WAYS_TO_CUT = ((_BETWEEN_WORDS, _BETWEEN_WORDS), (_INSIDE_WORDS, _BETWEEN_WORDS), (_INSIDE_WORDS, _INSIDE_WORDS))


def say(text: str) -> None:
    """A line of words, to standard error."""
    click.echo(text, err=True)


def print_json(document: object) -> None:
    """One JSON document, to standard output: indented for a person, on one line for a pipe."""
    indent = 2 if sys.stdout.isatty() else None
    click.echo(json.dumps(document, indent=indent, ensure_ascii=False, default=str))


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], *, terminal_width: int | None = None
) -> None:
    """Aligned columns, to standard output; numbers to the right, states coloured on a terminal.

    On a terminal that is too narrow, long cells go on in the next line, between words.
    """
    body = [["" if cell is None else str(cell) for cell in row] for row in rows]
    numeric = [
        bool(body) and all(_is_number(row[at]) or row[at] in {"", "-"} for row in body) for at in range(len(headings))
    ]
    columns = [[heading, *(row[at] for row in body)] for at, heading in enumerate(headings)]
    widths = [max(map(len, column)) for column in columns]
    if terminal_width is None and sys.stdout.isatty():
        terminal_width = shutil.get_terminal_size().columns
    if terminal_width is not None:
        widths = _narrowed(widths, columns, numeric, terminal_width)

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, numeric, strict=True)
        ]
        return "  ".join(_coloured(cell) for cell in padded).rstrip()

    for number, row in enumerate([[heading.upper() for heading in headings], *body]):
        wrapped = [_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
        for cells in zip_longest(*wrapped, fillvalue=""):
            click.echo(click.style(line(cells), bold=True) if number == 0 else line(cells))


def _narrowed(widths: Sequence[int], columns: Sequence[Sequence[str]], numeric: Sequence[bool], room: int) -> list[int]:
    """The widths made smaller, the widest first, until the table fits or no line may end earlier.

    Headings are cut inside of words before names are; numbers are never cut from their units.
    """
    narrow = list(widths)
    for of_heading, of_cells in _WAYS_TO_CUT:
        least = [
            _longest(
                [*of_heading.split(heading), *(cells if right else chain.from_iterable(map(of_cells.split, cells)))]
            )
            for (heading, *cells), right in zip(columns, numeric, strict=True)
        ]
        while sum(narrow) + 2 * (len(narrow) - 1) > room:
            at = max(range(len(narrow)), key=lambda at: narrow[at] - least[at])
            if narrow[at] <= least[at]:
                break
            narrow[at] -= 1
    return narrow


def _longest(words: Iterable[str]) -> int:
    return max(len(word.rstrip()) for word in words)


def _wrapped(text: str, width: int) -> list[str]:
    words = _BETWEEN_WORDS.split(text)
    if _longest(words) > width:
        words = _INSIDE_WORDS.split(text)
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1] + word.rstrip()) > width:
            lines.append("")
        lines[-1] += word
    return [line.rstrip() for line in lines]


def _is_number(text: str) -> bool:
    return bool(text) and text.split(" ")[0].replace(".", "", 1).replace(",", "").lstrip("-").isdigit()


def _coloured(padded: str) -> str:
    colour = _STATE_COLOURS.get(padded.strip())
    return click.style(padded, fg=colour) if colour else padded


def cell(value: object) -> str:
    """A value of a row on one line of bounded width: what a table holds must not steer the terminal."""
    if value is None:
        return "-"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return short(text, _WIDEST_CELL if sys.stdout.isatty() else 4 * _WIDEST_CELL)


def print_pairs(pairs: Mapping[str, object]) -> None:
    """`name   value` lines, to standard output."""
    width = max(map(len, pairs), default=0)
    for name, value in pairs.items():
        click.echo(f"{name.ljust(width)}  {value}")


def show_error(error: HeadraceError) -> None:
    """The one place where errors are printed: problem, why, what to try, where to look."""
    say(click.style("error: ", fg="red", bold=True) + error.problem)
    for label, text in (("why", error.why), ("try", error.hint)):
        if text:
            say(f"  {label}: {text}")
    if error.log:
        tail = f" (last {len(error.log_lines)} lines follow)" if error.log_lines else ""
        say(f"  log: {error.log}{tail}")
        for line in error.log_lines:
            say(f"    {line}")


class TerminalProgress:
    """Words as they come; on a terminal a bar for what has a length."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.quiet = quiet
        self._bar: Any = None
        self._task: object = None

    def say(self, text: str) -> None:
        if not self.quiet:
            say(click.style("· ", dim=True) + text)

    def advance(self, label: str, done: int, total: int) -> None:
        if self.quiet or not sys.stderr.isatty():
            return
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

            self._bar = Progress(
                TextColumn("  {task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(),
                console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task(label, total=total)
        self._bar.update(self._task, completed=done)
        if done >= total:
            self._bar.stop()
            self._bar = None
