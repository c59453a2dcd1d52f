"""The command tree's trunk: options that hold everywhere, and the one error boundary."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import click

from headrace import __version__
from headrace.cli.output import TerminalProgress, print_json, print_table, say, show_error
from headrace.cli.values import pairs
from headrace.errors import Failed, HeadraceError, UsageError

if TYPE_CHECKING:
    from headrace.cluster import Cluster
    from headrace.kafka import Connection
    from headrace.schemas import Registry

F = TypeVar("F", bound=Callable[..., object])
_REGISTRY_PROPERTIES = ("schema.registry.", "basic.auth.")


@dataclass
class App:
    """What was said before or after the command's name and holds for every command."""

    home: Path | None = None
    bootstrap: str | None = None
    properties: Path | None = None
    registry_url: str | None = None
    json: bool = False
    quiet: bool = False
    verbose: bool = False

    @property
    def progress(self) -> TerminalProgress:
        return TerminalProgress(quiet=self.quiet or self.json)

    def cluster(self, **flags: Any) -> Cluster:
        from headrace.cluster import Cluster

        return Cluster(self.home, progress=self.progress, **flags)

    def connection(self) -> Connection:
        """The Kafka that is meant: --bootstrap, else the file of -F, else the cluster of this home."""
        from headrace.kafka import Connection

        named, properties = self._client_properties()
        return Connection(named or self.cluster().bootstrap, properties)

    def foreign(self) -> Connection | None:
        """The Kafka that --bootstrap or the file of -F names; None when the cluster of this home is meant."""
        from headrace.kafka import Connection

        named, properties = self._client_properties()
        return Connection(named, properties) if named else None

    def _client_properties(self) -> tuple[str | None, dict[str, str]]:
        """The address that was given, if any, and the client properties of -F."""
        from headrace.kafka import read_properties

        properties = read_properties(self.properties) if self.properties else {}
        # The registry's settings may stand in the same file; librdkafka would refuse them.
        properties = {n: v for n, v in properties.items() if not n.startswith(_REGISTRY_PROPERTIES)}
        named = properties.pop("bootstrap.servers", None) or properties.pop("metadata.broker.list", None)
        return self.bootstrap or named, properties

    def registry(self) -> Registry:
        """The registry that is meant: --registry, else the environment, else the file of -F, else this cluster's."""
        from headrace.kafka import read_properties
        from headrace.schemas import Registry

        properties = read_properties(self.properties) if self.properties else {}
        url = self.registry_url or os.environ.get("HEADRACE_REGISTRY") or properties.get("schema.registry.url")
        if not url and self.bootstrap:
            raise UsageError(
                "no schema registry is given for this Kafka",
                why="neither --registry, nor HEADRACE_REGISTRY, nor schema.registry.url in a file given with -F",
                hint="--registry http://127.0.0.1:8081",
            )
        url = url or self.cluster().registry
        user_info = properties.get("schema.registry.basic.auth.user.info") or properties.get("basic.auth.user.info")
        return Registry(url, user_info=user_info)

    def say(self, text: str) -> None:
        if not self.quiet:
            say(text)

    def show(self, document: object, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """The data: as JSON if that is wanted, else as a table."""
        if self.json:
            print_json(document)
        else:
            print_table(headings, rows)

    def confirm(self, doomed: Sequence[str], *, yes: bool, verb: Literal["delete", "remove"] = "delete") -> None:
        """Whoever is there has read what will go and agreed; else the command ends, and nothing has been done."""
        for line in (f"this will be {verb}d:", *(f"  {line}" for line in doomed)):
            # Whoever is asked must see what about, however quiet it shall be.
            self.say(line) if yes else say(line)
        if yes:
            return
        self.require_yes(f"{verb} it?", f"nothing was {verb}d", hint=f"--yes {verb}s without asking")

    def require_yes(self, question: str, refusal: str, *, hint: str) -> None:
        """The user has answered yes; else the command ends with the refusal."""
        try:
            agreed = click.confirm(question, err=True)
        except click.Abort:
            if sys.stdin.isatty():
                raise
            raise UsageError(f"{refusal}: the command cannot ask without a terminal", hint=hint) from None
        if not agreed:
            raise Failed(f"{refusal}: the answer was no")


def _remember(name: str) -> Callable[[click.Context, click.Parameter, object], object]:
    def callback(context: click.Context, _: click.Parameter, value: object) -> object:
        if value not in (None, False):
            setattr(context.ensure_object(App), name, value)
        return value

    return callback


def _option(*names: str, keeps: str, **settings: Any) -> Callable[[F], F]:
    """An option whose value goes to the App, not to the command."""
    return click.option(*names, expose_value=False, callback=_remember(keeps), **settings)


_EVERYWHERE = (
    _option("--home", keeps="home", type=click.Path(path_type=Path),
            help="Folder of the cluster. [default: the nearest .headrace here or in a parent, else ./.headrace]"),
    _option("--json", keeps="json", is_flag=True, help="Print JSON for scripts."),
    _option("-q", "--quiet", keeps="quiet", is_flag=True, help="Print errors only."),
    _option("-v", "--verbose", keeps="verbose", is_flag=True, help="Show tracebacks."),
)  # fmt: skip
_ANY_KAFKA = (
    _option("--bootstrap", keeps="bootstrap", metavar="HOST:PORT,…",
            help="Bootstrap servers of any Kafka. [default: the cluster of --home]"),
    _option("-F", keeps="properties", metavar="FILE", type=click.Path(path_type=Path),
            help="File of client properties, with librdkafka's names."),
)  # fmt: skip
client_settings = click.option(
    "--set",
    "settings",
    multiple=True,
    callback=pairs,
    metavar="KEY=VALUE",
    help="A native librdkafka property, repeatable.",
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
unset_option = click.option(
    "--unset", multiple=True, metavar="KEY", help="A setting to reset to its default, repeatable."
)
registry_option = _option(
    "--registry", keeps="registry_url", metavar="URL", help="Address of a schema registry. [default: the cluster's]"
)


def everywhere(command: F) -> F:
    """Adds the options that every command takes, in front of its name or behind it."""
    for option in reversed(_EVERYWHERE):
        command = option(command)
    return command


def any_kafka(command: F) -> F:
    """Adds the options of a command that works against any Kafka, and those of every command."""
    command = everywhere(command)
    for option in reversed(_ANY_KAFKA):
        command = option(command)
    return command


def any_registry(command: F) -> F:
    """Adds the options of a command that works against any schema registry, and those of every command."""
    return registry_option(_ANY_KAFKA[1](everywhere(command)))


class Trunk(click.Group):
    """Commands in the order in which a newcomer needs them, not by the alphabet."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Whoever read our output has enough: that is no failure. Python must not complain while closing it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise click.exceptions.Exit(0) from None

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)


class Root(Trunk):
    """The trunk itself. The files behind a command are loaded when it is called, to start fast."""

    #: Sections of `headrace --help`, in its order: each command with the files that define it or a part of it.
    sections: ClassVar[dict[str, dict[str, tuple[str, ...]]]] = {}
    #: Every command with its files.
    files: ClassVar[dict[str, tuple[str, ...]]] = {}

    @classmethod
    def add_section(cls, title: str, commands: dict[str, tuple[str, ...]]) -> None:
        cls.sections[title] = commands
        cls.files.update(commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        for file in self.files.get(cmd_name, ()):
            import_module(f"headrace.cli.{file}")
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.files)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.files))
        room = formatter.width - 6 - width
        for title, names in self.sections.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(width), command.get_short_help_str(room)) for name, command in commands if command]
                )


_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}


@click.group(cls=Root, context_settings=_SETTINGS)
@click.version_option(__version__, prog_name="headrace")
@any_kafka
@click.pass_context
def cli(context: click.Context) -> None:
    """Run a real Apache Kafka cluster on this machine, move records through it, and turn topics into tables on Spark.

    No Docker and no Java to install. With --bootstrap or -F the same commands work on any Kafka.

    \b
    headrace up                            start three brokers here
    headrace produce lines --create FILE   send each line of a file as a record
    headrace consume lines                 read them
    headrace console                       watch it in the browser
    headrace down                          stop; the data stay
    """
    context.ensure_object(App)


def main() -> None:
    """The console script: runs a command and turns whatever happens into words and an exit code."""
    app = App()
    try:
        # Not standalone, click hands a wanted exit code back instead of raising it.
        sys.exit(cli.main(prog_name="headrace", standalone_mode=False, obj=app))
    except HeadraceError as error:
        if app.verbose:
            raise
        show_error(error)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        say("interrupted")
        sys.exit(130)
    except OSError as error:
        if app.verbose:
            raise
        # Almost always the output: a full disk behind standard output, a terminal that is gone.
        show_error(
            HeadraceError(
                "the operating system reported an error", why=error.strerror or str(error), hint="is the disk full?"
            )
        )
        sys.exit(1)
    except Exception as error:
        if app.verbose:
            raise
        show_error(
            HeadraceError(
                f"something went wrong inside headrace: {type(error).__name__}: {error}",
                why="this is a bug, not your mistake",
                hint="repeat the command with -v and report what it prints",
            )
        )
        sys.exit(1)


def console() -> None:
    """`main`, and out at once: Python would wait a fifth of a second for idle threads of Kafka's client to end."""
    try:
        main()
    except SystemExit as wanted:
        code = wanted.code if isinstance(wanted.code, int) else int(wanted.code is not None)
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:
            code = code or 1
        os._exit(code)
