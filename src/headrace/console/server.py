"""The console's process: the watch, the gate, the API and the pages, joined and served by uvicorn.

    headrace console                   beside a cluster: a node like the registry, with its files in `console/`
    headrace console --bootstrap …     for any Kafka, in the foreground, until Ctrl-C

It listens on 127.0.0.1 unless told otherwise, and then only with a password.
"""

from __future__ import annotations

import asyncio
import fcntl
import ipaddress
import logging
import logging.handlers
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace import __version__
from headrace.cluster import Cluster
from headrace.connect import Connectors
from headrace.console.access import Access
from headrace.errors import UsageError
from headrace.home import open_private
from headrace.kafka import Connection
from headrace.monitor import History, Sampler, Target
from headrace.schemas import Registry

# A registry or a worker that has not answered by then is shown as away.
_SERVICE_TIMEOUT_S = 4.0
_FIRST_LOOK_S = 3.0
_STATIC = Path(__file__).parent / "static"
_ICON = _STATIC / "headrace.svg"


@dataclass(frozen=True)
class Serving:
    """What is served, where, and to whom.

    `folder` holds the history, the token, the key and the log; if another console has it, `own_folder` is used instead.
    """

    folder: Path
    port: int
    connection: Connection | None = None
    home: Path | None = None
    host: str = "127.0.0.1"
    password: str | None = None
    read_only: bool = False
    registry: str | None = None
    connect: str | None = None

    def check(self) -> None:
        """Nobody gets to it over a network without a password."""
        if self.host == "localhost" or _is_loopback(self.host):
            return
        if not self.password:
            raise UsageError(
                f"the console listens on {self.host} only with a password",
                why="otherwise anyone who can reach it could read and change everything in the cluster",
                hint="HEADRACE_CONSOLE_PASSWORD in the environment, or a file: --password-file FILE",
            )

    def target(self) -> Target:
        """The Kafka that is meant and what stands beside it."""
        cluster = Cluster(self.home) if self.home else None
        connection = self.connection
        registry = self.registry
        if cluster is not None:
            spec = cluster.spec
            connection = connection or Connection(spec.bootstrap)
            registry = registry or spec.url("registry")
        if connection is None:
            raise UsageError("neither a cluster of this machine nor an address was given", hint="--bootstrap HOST:PORT")
        return Target(
            connection,
            cluster,
            Registry(registry, retry_for_s=1.0, timeout_s=_SERVICE_TIMEOUT_S) if registry else None,
            self._connectors(cluster),
        )

    def _connectors(self, cluster: Cluster | None) -> Connectors | None:
        if self.connect:
            return Connectors(self.connect, timeout_s=_SERVICE_TIMEOUT_S)
        if cluster is None or not cluster.spec.service("connect"):
            return None
        return Connectors(cluster.connect, token=cluster.connect_token, timeout_s=_SERVICE_TIMEOUT_S)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _reachable(host: str) -> str:
    """Where a browser of this machine finds it."""
    return "127.0.0.1" if host in {"0.0.0.0", "::"} else f"[{host}]" if ":" in host else host  # noqa: S104


@contextmanager
def own_folder(folder: Path, port: int) -> Iterator[Path]:
    """The folder, for this console alone while the block runs; if another one has it, a folder of its port below it."""
    for own in (folder, folder / f"port-{port}"):
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open_private(own / "lock", "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield own
            return
    raise UsageError(f"another console uses {folder}", hint="--port P names another port")


def serve(serving: Serving, on_start: Callable[[str, Path], None] = lambda _url, _token_file: None) -> None:
    """Serves until the process is asked to end. `on_start` gets the address that lets in, and the token file."""
    serving.check()
    listening = _listening(serving)
    with own_folder(serving.folder, serving.port) as own:
        _serve(replace(serving, folder=own), listening, on_start)


def _serve(serving: Serving, listening: socket.socket, on_start: Callable[[str, Path], None]) -> None:
    _log_to(serving.folder / "server.log")
    # The framework wants a place for what it keeps; we keep nothing there, but it must not be somebody's folder.
    os.environ.setdefault("NICEGUI_STORAGE_PATH", str(serving.folder / "nicegui"))
    import uvicorn

    access = Access(serving.folder, serving.port, serving.password, read_only=serving.read_only)
    on_start(f"http://{_reachable(serving.host)}:{serving.port}/login?token={access.token}", access.token_file)
    config = uvicorn.Config(
        application(serving, access),
        log_config=None,
        access_log=False,
        server_header=False,
        ws_max_size=4_000_000,
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(config).run(sockets=[listening])


def _listening(serving: Serving) -> socket.socket:
    """First of all: whose port is taken must not touch the folder of a console that runs."""
    family = socket.AF_INET6 if ":" in serving.host else socket.AF_INET
    try:
        return socket.create_server((serving.host, serving.port), family=family)
    except OSError as error:
        raise UsageError(
            f"the console cannot listen on {serving.host}:{serving.port}",
            why=os.strerror(error.errno) if error.errno else str(error),
            hint="--port P names another port",
        ) from None


def application(serving: Serving, access: Access) -> Any:
    """The ASGI application, gate and all. The watch begins and ends with it."""
    from fastapi import FastAPI, Request
    from fastapi.responses import FileResponse
    from nicegui import ui
    from starlette.staticfiles import StaticFiles

    from headrace.console.api import add_api
    from headrace.console.backend import Backend
    from headrace.console.frame import add_pages
    from headrace.console.safety import Gate

    history = History(serving.folder / "history.sqlite")
    target = serving.target()
    sampler = Sampler(target, history)
    backend = Backend(target, sampler, history, read_only=serving.read_only)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        began = time.time()
        sampler.start()
        # An early question must not be answered with "nothing". A Kafka that is unreachable is not waited for longer.
        await asyncio.to_thread(sampler.after, began, _FIRST_LOOK_S)
        yield
        await asyncio.to_thread(sampler.stop)
        backend.close()
        history.close()

    def csrf(request: Request) -> str | None:
        session = request.scope.get("headrace.session")
        return access.csrf(session) if session else None

    app = FastAPI(
        title="headrace console", version=__version__, lifespan=life, docs_url=None, redoc_url=None,
        openapi_url="/api/openapi.json",
    )  # fmt: skip
    add_api(app, backend, csrf)
    app.mount("/static", StaticFiles(directory=_STATIC))

    # The framework adds its own route behind ours for all paths, where nobody finds it.
    @app.get("/favicon.ico", include_in_schema=False)
    def icon() -> FileResponse:
        return FileResponse(_ICON)

    add_pages(backend)
    ui.run_with(
        app,
        title="headrace",
        favicon=_ICON,
        language="en-US",
        dark=None,
        binding_refresh_interval=None,
        reconnect_timeout=6.0,
        message_history_length=20,
        gzip_middleware_factory=None,
        tailwind=False,
        show_welcome_message=False,
    )
    return Gate(app, access)


def _log_to(file: Path) -> None:
    handler = logging.handlers.RotatingFileHandler(file, maxBytes=2_000_000, backupCount=3, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    file.chmod(0o600)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    for noisy in ("kafka", "httpx", "asyncio", "watchfiles"):
        logging.getLogger(noisy).setLevel(logging.CRITICAL)
