"""`headrace console`: the cluster in a browser."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.app import App, any_kafka, cli, registry_option
from headrace.cli.output import print_json

if TYPE_CHECKING:
    from headrace.console import Serving


@cli.command("console")
@click.option("--open/--no-open", "opens", default=None, help="Open a browser. [default: if there is a display]")
@click.option("--foreground", is_flag=True, help="Run in the foreground until Ctrl-C, not as a node of the cluster.")
@click.option(
    "--port", type=click.IntRange(1024, 65535), metavar="P", help="Port, in the foreground. [default: a free one]"
)
@click.option(
    "--host",
    default="127.0.0.1",
    help="Address to listen on, in the foreground; any but 127.0.0.1 requires a password.",
)
@click.option(
    "--password-file", type=click.Path(path_type=Path), metavar="FILE", help="File whose first line is the password."
)
@click.option("--read-only", is_flag=True, help="Allow no changes, in the foreground.")
@click.option("--connect", metavar="URL", help="A Connect worker. [default: the cluster's]")
@registry_option
@any_kafka
@click.pass_obj
def console(
    app: App,
    opens: bool | None,
    foreground: bool,
    port: int | None,
    host: str,
    password_file: Path | None,
    read_only: bool,
    connect: str | None,
) -> None:
    """Open the console: topics, records, lag, brokers, in a browser.

    The console is a node beside the cluster: the command starts it if it does not run, and it stays up. For any other
    Kafka (--bootstrap or -F) it runs in the foreground. The printed address contains an access token.

    \b
    headrace console
    headrace console --bootstrap kafka.example:9092 --read-only
    """
    if foreground or app.bootstrap or app.properties:
        _serve(app, _serving(app, port, host, password_file, read_only, connect), opens)
        return
    cluster = app.cluster()
    url = cluster.open_console()
    if app.json:
        print_json({"url": url, "address": cluster.console, "token_file": str(cluster.home.node("console") / "token")})
    else:
        click.echo(url)
    _open(url, opens)


def _serving(
    app: App, port: int | None, host: str, password_file: Path | None, read_only: bool, connect: str | None
) -> Serving:
    import hashlib

    from headrace.cluster import free_port
    from headrace.console import Serving, read_password
    from headrace.runtime import default_cache

    foreign = bool(app.bootstrap or app.properties)
    connection = app.connection()
    cluster = None if foreign else app.cluster()
    folder = default_cache() / "consoles" / hashlib.sha256(connection.bootstrap.encode()).hexdigest()[:16]
    return Serving(
        folder=cluster.home.node("console") / "foreground" if cluster else folder,
        port=port or free_port(default_cache(), 8080),
        connection=connection,
        home=cluster.home.root if cluster else None,
        host=host,
        password=read_password(password_file),
        read_only=read_only,
        registry=app.registry_url or os.environ.get("HEADRACE_REGISTRY"),
        connect=connect,
    )


def _serve(app: App, serving: Serving, opens: bool | None) -> None:
    from headrace.console import serve

    serving.check()

    def started(url: str, token_file: Path) -> None:
        click.echo(url)
        app.say(f"the console runs until Ctrl-C; a script finds its token in {token_file}")
        _open(url, opens)

    serve(serving, on_start=started)


def _open(url: str, opens: bool | None) -> None:
    """In a window of its own; a browser inside the terminal would only be in the way."""
    has_screen = sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    if opens or (opens is None and has_screen and sys.stdout.isatty()):
        import webbrowser

        webbrowser.open(url)
