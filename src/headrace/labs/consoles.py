"""`ConsoleApi`: the console as a script sees it. `SharedConsoles`: one for each cluster of a run, for all of its labs.

A console of a run is a process of its own that watches the cluster from outside, as `headrace console --bootstrap`
does: it leaves nothing on the cluster, and works beside a console that the user has open.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from headrace import Failed, eventually
from headrace.labs.processes import start

_START_WITHIN_S = 120.0


class ConsoleApi:
    """Asks the pages' twins below /api; the address that lets in carries the token."""

    def __init__(self, entrance: str) -> None:
        parts = urlsplit(entrance)
        self.host, self.port = parts.hostname or "", parts.port or 80
        self.entrance = f"{parts.path}?{parts.query}"
        self.token = parts.query.partition("token=")[2]

    @property
    def address(self) -> str:
        return f"http://{self.host}:{self.port}"

    def __call__(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Status and document of an answer."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        status, _, text = self.ask(method, path, headers, json.dumps(body) if body is not None else None)
        return status, json.loads(text) if text else None

    def get(self, path: str) -> Any:
        return self("GET", path)[1]

    def ask(
        self, method: str, path: str, headers: dict[str, str], body: str | None = None
    ) -> tuple[int, http.client.HTTPMessage, str]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=30)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode(errors="replace")
        finally:
            connection.close()

    def is_up(self) -> bool:
        try:
            return self.ask("GET", "/api/health", {})[0] == 200
        except OSError:
            return False


class SharedConsoles:
    """Safe to be asked by several labs at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, tuple[subprocess.Popen[str], ConsoleApi]] = {}
        self._lock = threading.Lock()

    def get(self, bootstrap: str) -> ConsoleApi:
        """The console of this Kafka; the first call starts it."""
        with self._lock:
            if bootstrap not in self._running:
                self._running[bootstrap] = self._start(bootstrap)
            return self._running[bootstrap][1]

    def _start(self, bootstrap: str) -> tuple[subprocess.Popen[str], ConsoleApi]:
        child = start(
            self._folder, "console", "--quiet", "--no-open", "--bootstrap", bootstrap,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        try:
            return child, _answering(child, bootstrap)
        except BaseException:  # also an interrupt: no other place knows the process
            _end(child)
            raise

    def close(self) -> None:
        """No console that was started here is left."""
        with self._lock:
            for child, _ in self._running.values():
                _end(child)
            self._running.clear()


def _answering(child: subprocess.Popen[str], bootstrap: str) -> ConsoleApi:
    """The console that has just been started, once it answers."""
    address = child.stdout.readline().strip() if child.stdout else ""
    if not address:
        raise Failed("the console could not be started", hint=f"headrace console --bootstrap {bootstrap}")
    api = ConsoleApi(address)
    eventually(api.is_up, _START_WITHIN_S)
    return api


def _end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait(30)
    if child.stdout:
        child.stdout.close()
