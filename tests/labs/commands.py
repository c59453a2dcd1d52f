"""Command lines as labs print them, parsed by the command tree itself: what is shown must be what can be typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

import click

from headrace.cli import cli
from headrace.labs import find_lab

_SHELL = {"|", "<", ">", ">>", "&", "&&", ";", "do", "done"}


def require_real(line: str) -> None:
    """Every `headrace …` in the line is a command with options that exist; other programs are not ours to judge."""
    words: list[str] = []
    shell = line.partition("<<")[0]  # the rest is a program
    for word in [*shlex.split(shell.replace("…", "x")), ";"]:
        if word in _SHELL:
            if words and words[0] == "headrace":
                _parse(words[1:])
            words = []
        else:
            words.append(word)


# A name in the folder, also as ./name or in a folder below it; not in the cluster's home, nor behind $PWD.
_FILE = re.compile(
    r"(?<![\w./$-])(?:\./)?((?:[\w-]+/)*[\w-]+(?:\.[\w-]+)*"
    r"\.(?:json|ndjson|txt|csv|avsc|avro|parquet|toml|config|py|png))(?![\w/.])"
)
_MADE = re.compile(r"(?:>>?|-o|--output|--plot|--truth|--failed)[ =](?:\./)?([\w./-]+)")
_SET_ASIDE = re.compile(r"headrace produce \S+ (\S+) .*--on-bad set-aside")


def files_that_nothing_made(lines: Iterable[str]) -> list[str]:
    """The files that some command names although no command before it has made them, each with its command.

    A connector makes the file of its sink; `lab files` those of its lab.
    """
    made: set[str] = set()
    missing: list[str] = []
    for line in lines:
        shell = line.partition("<<")[0]  # the rest is a program
        made |= set(_MADE.findall(shell)) | set(re.findall(r"file=\$PWD/(\S*sink\S*)", shell))
        made |= {f"{file}.bad.ndjson" for file in _SET_ASIDE.findall(shell)}
        if found := re.search(r"headrace lab files (\w+)", shell):
            made |= set(find_lab(found[1]).files)
        missing += [f"{file}: {line}" for file in _FILE.findall(shell) if file not in made]
    return missing


def _parse(words: list[str]) -> None:
    command: click.Command = cli
    context = command.make_context("headrace", list(words))
    while isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        name, found, rest = command.resolve_command(context, rest)
        assert found, words
        command, context = found, found.make_context(name, rest, parent=context)
