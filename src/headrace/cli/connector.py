"""`headrace connector`: connectors of the Connect worker beside the cluster, or of any other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.app import App, F, cli, everywhere, unset_option, yes_option
from headrace.cli.output import print_json, print_table, say
from headrace.cli.values import pairs
from headrace.errors import ConfigError, UsageError
from headrace.text import plural

if TYPE_CHECKING:
    from headrace.connect import Connectors, ConnectorStatus


def _any_worker(command: F) -> F:
    """Adds the option of a command that works against any Connect worker, and those of every command."""

    @wraps(command)
    def of_worker(app: App, *args: object, url: str | None, token_file: Path | None, **options: object) -> object:
        return command(app, _worker(app, url, token_file), *args, **options)

    where = click.option("--connect", "url", metavar="URL", help="Another Connect worker. [default: the cluster's]")
    token = click.option(
        "--token-file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="File with the bearer token for --connect.",
    )
    return where(token(everywhere(click.pass_obj(of_worker))))  # type: ignore[return-value,arg-type]


_given = click.option(
    "--set", "given", multiple=True, callback=pairs, metavar="KEY=VALUE", help="A setting, repeatable."
)
_FILES = (".json", ".properties")


@cli.group()
def connector() -> None:
    """Create, watch, change and delete connectors of Kafka Connect."""


def _worker(app: App, url: str | None, token_file: Path | None) -> Connectors:
    from headrace.connect import Connectors

    if url is None:
        return app.cluster().connectors
    return Connectors(url, token=_text(token_file).strip() if token_file else None)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read", why=str(error)) from None


@connector.command("list")
@_any_worker
def list_(app: App, worker: Connectors) -> None:
    """List the connectors with their state."""
    found = [status for status, _ in worker.everything()]
    app.show(
        [asdict(status) for status in found],
        ("name", "type", "state", "tasks", "running"),
        [(s.name, s.kind, s.shown_state, len(s.tasks), sum(t.state == "RUNNING" for t in s.tasks)) for s in found],
    )
    if not app.json:
        _say_waiting(found)


@connector.command()
@_any_worker
def plugins(app: App, worker: Connectors) -> None:
    """List the connector plugins of the worker.

    headrace connector install adds one that headrace knows; headrace up --with connect --plugins DIR adds your own.
    """
    found = worker.plugins()
    rows = [(p.name, p.kind, p.version) for p in found]
    app.show([asdict(plugin) for plugin in found], ("class", "type", "version"), rows)


@connector.command()
@click.argument("name")
@everywhere
@click.pass_obj
def install(app: App, name: str) -> None:
    """Download a connector plugin, once per user, for the Connect worker of the cluster. It is restarted if it runs.

    \b
    postgres   Debezium: every change of a PostgreSQL database as a record

    \b
    headrace connector install postgres
    """
    restarted = app.cluster().install_connector(name)
    if app.json:
        print_json({"connector": name, "restarted": restarted})
    else:
        app.say(f"installed: {name}" + ("; Connect was restarted" if restarted else ""))


def _settings(file: Path | None, given: dict[str, str]) -> tuple[str | None, dict[str, str]]:
    """The name and the settings in a file, if it has a name, with those of --set above them."""
    from headrace.connect import config_from, properties_in

    if file is None:
        return given.get("name"), given
    text = _text(file)
    try:
        document = properties_in(text) if file.suffix == ".properties" else json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"{file} is not valid JSON", why=str(error), hint="a file in Java's format is named FILE.properties"
        ) from None
    name, settings = config_from(document)
    if "connector.class" not in settings and "bootstrap.servers" in settings:
        raise ConfigError(
            f"{file} holds the settings of a worker, not of a connector",
            why="it has bootstrap.servers and no connector.class",
            hint="headrace up --with connect starts the worker; give the files of the connectors alone",
        )
    return name, {**settings, **given}


@connector.command()
@click.argument("words", nargs=-1, metavar="[NAME] [FILE]...")
@_given
@_any_worker
def create(app: App, worker: Connectors, words: tuple[str, ...], given: dict[str, str]) -> None:
    """Create and start connectors from files (.json, or Java's .properties), from --set, or both.

    The file may contain the name. Source connectors create the topics that they write to.

    \b
    headrace connector create lines --set connector.class=FileStreamSource \\
        --set file=in.txt --set topic=lines
    headrace connector create out out.json
    headrace connector create connect-file-source.properties connect-file-sink.properties
    """  # fmt: skip
    made = [worker.create(name, settings) for name, settings in _wanted(words, given)]
    if app.json:
        print_json(asdict(made[0]) if len(made) == 1 else [asdict(status) for status in made])
    else:
        _print_statuses(made)
    if not all(status.healthy for status in made):
        raise click.exceptions.Exit(1)


@connector.command()
@click.argument("name")
@_any_worker
def config(app: App, worker: Connectors, name: str) -> None:
    """Show the settings of a connector; passwords and other secrets are hidden.

    \b
    headrace connector config lines
    """
    from headrace.connect import without_secrets

    found = without_secrets(worker.config(name))
    app.show(found, ("setting", "value"), found.items())


@connector.command()
@click.argument("name")
@_given
@unset_option
@_any_worker
def alter(app: App, worker: Connectors, name: str, given: dict[str, str], unset: tuple[str, ...]) -> None:
    """Change settings of a connector; it is restarted with them.

    \b
    headrace connector alter lines --set tasks.max=2 --unset transforms
    """
    if not given and not unset:
        raise UsageError("nothing to change", hint="--set KEY=VALUE, --unset KEY")
    _show(app, worker.alter(name, {**dict.fromkeys(unset), **given}))


def _wanted(words: tuple[str, ...], given: dict[str, str]) -> list[tuple[str, dict[str, str]]]:
    """The connectors that are meant by `[NAME] [FILE]...`, each with its settings; all files are read first."""
    names = [word for at, word in enumerate(words) if not word.endswith(_FILES) and not (at and Path(word).is_file())]
    files: list[Path | None] = [Path(word) for word in words if word not in names]
    if len(names) > 1 or (names and len(files) > 1):
        raise UsageError(
            f"which connector is meant by {' '.join(words)}?",
            why="one name with at most one file is expected, or several files that each hold a name",
            hint=f"the names of files end with {' or '.join(_FILES)}",
        )
    wanted: list[tuple[str, dict[str, str]]] = []
    for file in files or [None]:
        name, settings = _settings(file, given)
        name = names[0] if names else name
        if not name:
            raise UsageError(
                "the connector has no name", hint="headrace connector create NAME FILE, or name=… in the file"
            )
        wanted.append((name, settings))
    return wanted


@connector.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@_given
@_any_worker
def validate(app: App, worker: Connectors, file: Path | None, given: dict[str, str]) -> None:
    """Check settings without creating anything; exit code 1 if any is wrong."""
    name, settings = _settings(file, given)
    errors = worker.validate({"name": name or "validated", **settings})
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
def status(app: App, worker: Connectors, name: str) -> None:
    """Show a connector and its tasks, with full error messages."""
    found = worker.status(name)
    _show(app, found)
    if found.state == "FAILED" or any(task.state == "FAILED" for task in found.tasks):
        raise click.exceptions.Exit(1)


@connector.command()
@click.argument("name")
@_any_worker
def offsets(app: App, worker: Connectors, name: str) -> None:
    """Show the offsets of a connector, as the connector stores them."""
    found = worker.offsets(name)
    rows = [(json.dumps(row["partition"]), json.dumps(row["offset"])) for row in found]
    app.show(found, ("partition", "offset"), rows)


@connector.command()
@click.argument("name")
@yes_option
@_any_worker
def delete(app: App, worker: Connectors, name: str, yes: bool) -> None:
    """Delete a connector; the records and files that it wrote stay."""
    found = worker.status(name)
    app.confirm([f"{name}  {found.kind} connector, {plural(len(found.tasks), 'task')}"], yes=yes)
    worker.delete(name)
    app.say(f"deleted: {name}")


def _verb(verb: str, text: str) -> None:
    """Adds the command `verb NAME`, which calls the method of the same name."""

    @connector.command(verb, help=text)
    @click.argument("name")
    @_any_worker
    def command(app: App, worker: Connectors, name: str) -> None:
        found: Any = getattr(worker, verb)(name)
        _show(app, found)


_verb("pause", "Pause a connector; it keeps its offsets.")
_verb("resume", "Resume a paused or stopped connector.")
_verb("stop", "Stop a connector's tasks, but keep the connector.")
_verb("restart", "Restart a connector and all of its tasks.")


def _show(app: App, found: ConnectorStatus) -> None:
    if app.json:
        print_json(asdict(found))
        return
    _print_statuses([found])


def _print_statuses(found: Sequence[ConnectorStatus]) -> None:
    rows: list[tuple[object, ...]] = []
    for status in found:
        rows.append((status.name, status.kind, status.shown_state, status.worker))
        rows += [(f"  task {task.task}", "", task.state, task.worker) for task in status.tasks]
    print_table(("connector", "type", "state", "worker"), rows)
    for trace in (trace for s in found for trace in (s.trace, *(task.trace for task in s.tasks)) if trace):
        say(trace.rstrip())
    _say_waiting(found)


def _say_waiting(found: Sequence[ConnectorStatus]) -> None:
    for status in found:
        if status.waiting:
            say(f"{status.name} is waiting: {status.waiting}; headrace topic create creates a topic")
