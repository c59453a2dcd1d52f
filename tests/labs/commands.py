"""Command lines as labs print them, parsed by the command tree itself: what is shown must be what can be typed."""

from __future__ import annotations

import shlex

import click

from headrace.cli import cli

_SHELL = {"|", "<", ">", ">>", "&", "&&", ";"}


def require_real(line: str) -> None:
    """Every `headrace …` in the line is a command with options that exist; other programs are not ours to judge."""
    words: list[str] = []
    for word in [*shlex.split(line.replace("…", "x")), ";"]:
        if word in _SHELL:
            if words and words[0] == "headrace":
                _parse(words[1:])
            words = []
        else:
            words.append(word)


def _parse(words: list[str]) -> None:
    command: click.Command = cli
    context = command.make_context("headrace", list(words))
    while isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        name, found, rest = command.resolve_command(context, rest)
        assert found, words
        command, context = found, found.make_context(name, rest, parent=context)
