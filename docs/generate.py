"""Writes docs/cli.md from the command tree itself: `python docs/generate.py`. A test compares the two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from headrace.cli import cli

PAGE = Path(__file__).with_name("cli.md")


def commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """The command and all below it, in the order of the help."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path[-1])
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from commands(below, (*path, name))


def help_text(path: tuple[str, ...], command: click.Command) -> str:
    # As the trunk sets them up; every context below inherits it.
    settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "terminal_width": 100}
    context: click.Context | None = None
    for name in path[:-1]:
        context = click.Context(cli, info_name=name, parent=context, **settings)  # type: ignore[arg-type]
    own = click.Context(command, info_name=path[-1], parent=context, **settings)  # type: ignore[arg-type]
    return command.get_help(own)


def page() -> str:
    """The whole page."""
    parts = ["# Every command\n\nWhat `headrace COMMAND --help` says. Written by `python docs/generate.py`.\n"]
    for path, command in commands(cli, ("headrace",)):
        parts.append(f"\n## {' '.join(path)}\n\n```\n{help_text(path, command)}\n```\n")
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
