"""`headrace connector`: connectors of the Connect worker beside the cluster, or of any other."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.app import App, F, cli, everywhere
from headrace.cli.output import counted, print_json, print_table, say
from headrace.cli.values import pairs
from headrace.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from headrace.transport.connectors import Connectors, ConnectorStatus


def _any_worker(command: F) -> F:
    """Adds the option of a command that works against any Connect worker, and those of every command."""
    where = click.option("--connect", "url", metavar="URL", help="Another Connect worker. [default: the cluster's]")
    return where(everywhere(click.pass_obj(command)))  # type: ignore[return-value]


def _settings_options(command: F) -> F:
    """Adds the two ways of giving a connector's settings."""
    file = click.argument("file", type=click.Path(path_type=Path), required=False)
    given = click.option(
        "--set", "given", multiple=True, callback=pairs, metavar="KEY=VALUE", help="A setting, repeatable."
    )
    return file(given(command))


@cli.group()
def connector() -> None:
    """Connectors: list, plugins, create, status, pause, resume, stop, restart, offsets, delete, validate."""


def _worker(app: App, url: str | None) -> Connectors:
    from headrace.transport.connectors import Connectors

    return Connectors(url or app.cluster().connect)


@connector.command("list")
@_any_worker
def list_(app: App, url: str | None) -> None:
    """All connectors with their state."""
    worker = _worker(app, url)
    found = [worker.status(name) for name in worker.names()]
    if app.json:
        print_json([asdict(status) for status in found])
        return
    print_table(
        ("name", "type", "state", "tasks", "running"),
        [(s.name, s.kind, s.state, len(s.tasks), sum(t.state == "RUNNING" for t in s.tasks)) for s in found],
    )


@connector.command()
@_any_worker
def plugins(app: App, url: str | None) -> None:
    """What the worker can make connectors of. Your own: headrace up --with connect --plugins DIR."""
    found = _worker(app, url).plugins()
    if app.json:
        print_json([asdict(plugin) for plugin in found])
        return
    print_table(("class", "type", "version"), [(p.name, p.kind, p.version) for p in found])


def _settings(file: Path | None, given: dict[str, str]) -> tuple[str | None, dict[str, str]]:
    from headrace.transport.connectors import config_from

    if file is None:
        return None, given
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file} cannot be read", why=error.strerror) from None
    except ValueError as error:
        raise ConfigError(f"{file} is not valid JSON", why=str(error)) from None
    name, settings = config_from(document)
    return name, {**settings, **given}


@connector.command()
@click.argument("name")
@_settings_options
@_any_worker
def create(app: App, name: str, file: Path | None, given: dict[str, str], url: str | None) -> None:
    """Create and start a connector from a JSON file, from --set, or both.

    \b
    headrace connector create lines --set connector.class=FileStreamSource \\
        --set file=in.txt --set topic=lines
    headrace connector create out out.json
    """  # fmt: skip
    _, settings = _settings(file, given)
    status = _worker(app, url).create(name, settings)
    _show(app, status)
    if not status.healthy:
        raise click.exceptions.Exit(1)


@connector.command()
@_settings_options
@_any_worker
def validate(app: App, file: Path | None, given: dict[str, str], url: str | None) -> None:
    """Check settings without creating anything; exit code 1 if any is wrong."""
    name, settings = _settings(file, given)
    errors = _worker(app, url).validate({"name": name or "validated", **settings})
    if app.json:
        print_json([asdict(error) for error in errors])
    else:
        for error in errors:
            click.echo(f"{error.name} = {error.value}: {' '.join(error.reasons)}")
        app.say("the settings are accepted" if not errors else f"{len(errors)} wrong")
    if errors:
        raise click.exceptions.Exit(1)


@connector.command()
@click.argument("name")
@_any_worker
def status(app: App, name: str, url: str | None) -> None:
    """A connector and its tasks, with the errors in full."""
    found = _worker(app, url).status(name)
    _show(app, found)
    if found.state == "FAILED" or any(task.state == "FAILED" for task in found.tasks):
        raise click.exceptions.Exit(1)


@connector.command()
@click.argument("name")
@_any_worker
def offsets(app: App, name: str, url: str | None) -> None:
    """How far a connector has got, in its own words."""
    found = _worker(app, url).offsets(name)
    if app.json:
        print_json(found)
        return
    print_table(("partition", "offset"), [(json.dumps(row["partition"]), json.dumps(row["offset"])) for row in found])


@connector.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_any_worker
def delete(app: App, name: str, yes: bool, url: str | None) -> None:
    """Delete a connector; the records and files that it wrote stay."""
    worker = _worker(app, url)
    found = worker.status(name)
    app.confirm([f"{name}  {found.kind} connector, {counted(len(found.tasks), 'task')}"], yes=yes)
    worker.delete(name)
    app.say(f"deleted: {name}")


def _verb(verb: str, text: str) -> None:
    """Adds the command `verb NAME`, which calls the method of the same name."""

    @connector.command(verb, help=text)
    @click.argument("name")
    @_any_worker
    def command(app: App, name: str, url: str | None) -> None:
        found: Any = getattr(_worker(app, url), verb)(name)
        _show(app, found)


_verb("pause", "Let a connector stand still; it remembers where it was.")
_verb("resume", "Let a paused or stopped connector go on.")
_verb("stop", "End a connector's tasks, but keep the connector.")
_verb("restart", "Start a connector and all of its tasks anew.")


def _show(app: App, found: ConnectorStatus) -> None:
    if app.json:
        print_json(asdict(found))
        return
    rows: list[tuple[object, ...]] = [(found.name, found.kind, found.state, found.worker)]
    rows += [(f"  task {task.task}", "", task.state, task.worker) for task in found.tasks]
    print_table(("connector", "type", "state", "worker"), rows)
    for trace in [found.trace, *(task.trace for task in found.tasks)]:
        if trace:
            say(trace.rstrip())
