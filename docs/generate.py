"""Writes docs/cli.md from the commands and docs/api.md from the public names: `python docs/generate.py`.

Tests compare the pages with the code.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import click

import headrace
from headrace.cli import cli
from headrace.errors import HeadraceError

PAGE = Path(__file__).with_name("cli.md")
API = Path(__file__).with_name("api.md")


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
    settings = {**cli.context_settings, "terminal_width": 100}
    context: click.Context | None = None
    for name in path[:-1]:
        context = click.Context(cli, info_name=name, parent=context, **settings)
    own = click.Context(command, info_name=path[-1], parent=context, **settings)
    return command.get_help(own)


def page() -> str:
    """The whole page."""
    parts = ["# Every command\n\nWhat `headrace COMMAND --help` says. Written by `python docs/generate.py`.\n"]
    for path, command in commands(cli, ("headrace",)):
        parts.append(f"\n## {' '.join(path)}\n\n```\n{help_text(path, command)}\n```\n")
    return "".join(parts)


def api_page() -> str:
    """Every public name with its signature, its docstring and, for a class, its public methods."""
    parts = [
        "# Python API\n\nEvery name here is imported as `from headrace import NAME`. Other names are internal and may"
        " change.\nWritten by `python docs/generate.py`.\n"
    ]
    public = {name: getattr(headrace, name) for name in headrace.__all__ if not name.startswith("_")}
    errors = {name for name, thing in public.items() if isinstance(thing, type) and issubclass(thing, HeadraceError)}
    parts += [_described(name, public[name]) for name in sorted(set(public) - errors, key=str.lower)]
    parts.append("\n## Errors\n\n| error | exit code | meaning |\n|---|---|---|\n")
    parts += [f"| `{name}` | {public[name].exit_code} | {_first_line(public[name])} |\n" for name in sorted(errors)]
    return "".join(parts)


def _described(name: str, thing: object) -> str:
    parts = [f"\n## {name}\n\n```\n{name}{_signature(thing)}\n```\n\n{_docstring(thing)}\n"]
    methods = _methods(thing) if isinstance(thing, type) else _functions(thing) if inspect.ismodule(thing) else []
    if methods:
        parts.append("\n| method | |\n|---|---|\n")
        parts += [f"| `{method}` | {_first_line(function)} |\n" for method, function in methods]
    return "".join(parts)


def _functions(module: ModuleType) -> list[tuple[str, object]]:
    """The functions that the module exports."""
    exported = [(name, getattr(module, name)) for name in module.__all__]
    return [(f"{name}({', '.join(_parameters(f))})", f) for name, f in exported if inspect.isfunction(f)]


def _methods(thing: type) -> list[tuple[str, object]]:
    """Methods and properties, inherited ones too, that have a docstring."""
    found = []
    for name in dir(thing):
        method = inspect.getattr_static(thing, name)
        plain = method.__func__ if isinstance(method, (classmethod, staticmethod)) else method
        if not name.startswith("_") and (inspect.isfunction(plain) or isinstance(plain, property)) and plain.__doc__:
            arguments = "" if isinstance(plain, property) else f"({', '.join(_parameters(plain))})"
            found.append((f"{name}{arguments}", plain))
    return found


def _parameters(function: object) -> list[str]:
    parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    names = [f"{'*' * (p.kind == p.VAR_POSITIONAL)}{'**' * (p.kind == p.VAR_KEYWORD)}{p.name}" for p in parameters]
    return [name for name in names if name not in {"self", "cls"}]


def _signature(thing: object) -> str:
    try:
        text = str(inspect.signature(thing))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    # Annotations are text already; defaults that are objects would show where they lie in memory.
    return (
        re.sub(r"<[^<>]* at 0x[0-9a-f]+>|<factory>", "…", text)
        .replace("'", "")
        .replace('"', "")
        .replace(") -> None", ")")
    )


def _docstring(thing: object) -> str:
    """As Markdown: what is indented is code."""
    code = re.compile(r"(?:^    [^\n]*\n?(?:\n(?=    ))?)+", re.MULTILINE)
    return code.sub(lambda m: f"```\n{textwrap.dedent(m[0]).strip()}\n```\n", inspect.getdoc(thing) or "").strip()


def _first_line(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0].replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    API.write_text(api_page(), encoding="utf-8")
