"""A real PostgreSQL for tests and measurements: Debian's, in a folder of its own, on loopback, with a password."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg

from headrace.runtime.waiting import eventually

PASSWORD = "swordfish-7Qx"
_USER = "headrace"
#: A process that is gone already is as good as ended.
_GONE = (psutil.NoSuchProcess, ProcessLookupError)
#: What is written is written when the tests have seen it; a machine that loses its power is not among them.
_SETTINGS = ("fsync=off", "wal_level=logical", "listen_addresses=127.0.0.1", "unix_socket_directories=")


class Server:
    """Starts, stops and dies. The data outlives each of these."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = _free_port()
        self.password_file = folder / "password"
        self.process: subprocess.Popen[bytes] | None = None
        self._bin = max(Path("/usr/lib/postgresql").glob("*/bin"))
        # PostgreSQL refuses to run as root.
        self._account = pwd.getpwnam("postgres") if os.getuid() == 0 else None

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{_USER}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "postgres") -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.url(database), password=PASSWORD, autocommit=True, connect_timeout=5)

    def rows(self, query: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        with self.connect(database) as connection:
            done = connection.execute(query.encode())
            return done.fetchall() if done.description else []

    def create(self) -> None:
        """There is a data folder, with a user who has a password."""
        self.password_file.write_text(PASSWORD)
        if self._account:
            for path in (self.folder, self.password_file):
                os.chown(path, self._account.pw_uid, self._account.pw_gid)
        words = ["-U", _USER, "--auth=scram-sha-256", f"--pwfile={self.password_file}", "--no-sync", "-E", "UTF8"]
        self._start("initdb", "-D", str(self.folder / "data"), *words, "--locale=C.UTF-8").wait()

    def start(self, **settings: str) -> None:
        """It answers."""
        given = [*_SETTINGS, f"port={self.port}", *[f"{name}={value}" for name, value in settings.items()]]
        words = [word for setting in given for word in ("-c", setting)]

        def answers() -> bool:
            # The shared memory of one that was killed is in use until its last child has noticed.
            if self.process is None or self.process.poll() is not None:
                self.process = self._start("postgres", "-D", str(self.folder / "data"), *words)
            try:
                self.connect().close()
            except psycopg.OperationalError:
                return False
            return True

        eventually(answers, 60)

    def stop(self) -> None:
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """All of its processes die at once."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        with suppress(*_GONE):
            children = psutil.Process(self.process.pid).children(recursive=True)
            self.process.send_signal(number)
            for child in children if number == signal.SIGKILL else ():
                with suppress(*_GONE):
                    child.kill()
            psutil.wait_procs(children, timeout=30)
        self.process.wait(30)
        self.process = None

    def _start(self, program: str, *words: str) -> subprocess.Popen[bytes]:
        account: dict[str, Any] = {"user": "postgres", "group": "postgres", "extra_groups": []} if self._account else {}
        with (self.folder / "log").open("ab") as log:
            command = [str(self._bin / program), *words]
            return subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, **account)


@contextmanager
def running_server() -> Iterator[Server]:
    """A new server, gone behind the block."""
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    server = Server(folder)
    try:
        server.create()
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
