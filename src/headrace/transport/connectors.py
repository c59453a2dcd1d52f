"""Kafka Connect, any worker: connectors created, checked, watched, paused, removed, through its REST API.

What Connect refuses is raised with its own words; a wrong setting is explained before anything is created. A worker
that is rebalancing asks to be asked again: that is done here, for a bounded time.
"""

from __future__ import annotations

import difflib
import http.client
import json
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import ConfigError, Failed, Unreachable, UsageError

_REBALANCE_PATIENCE_S = 30.0
_BUSY = {409, 503}


@dataclass(frozen=True)
class Plugin:
    """A kind of connector that the worker knows."""

    name: str
    kind: str
    version: str | None


@dataclass(frozen=True)
class Task:
    """A task of a connector; a failed one has its trace."""

    task: int
    state: str
    worker: str
    trace: str | None = None


@dataclass(frozen=True)
class ConnectorStatus:
    """A connector, as its worker sees it."""

    name: str
    kind: str
    state: str
    worker: str
    tasks: tuple[Task, ...] = ()
    trace: str | None = None

    @property
    def healthy(self) -> bool:
        return self.state == "RUNNING" and bool(self.tasks) and all(task.state == "RUNNING" for task in self.tasks)


@dataclass(frozen=True)
class SettingError:
    """A setting that Connect does not accept, and why."""

    name: str
    value: str | None
    reasons: tuple[str, ...]


class Connectors:
    """The connectors of one worker.

    Connectors("http://127.0.0.1:8083").create("lines", {"connector.class": "FileStreamSource", …})
    """

    def __init__(self, url: str, *, timeout_s: float = 30.0) -> None:
        parts = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise UsageError(f"{url!r} is no address of a Connect worker", hint="http://127.0.0.1:8083")
        self.url = url
        self.timeout_s = timeout_s
        self._parts = parts

    def names(self) -> list[str]:
        """The names of all connectors."""
        return sorted(self._ask("GET", "/connectors"))

    def plugins(self) -> tuple[Plugin, ...]:
        """What the worker can make connectors of."""
        found = self._ask("GET", "/connector-plugins")
        return tuple(sorted((Plugin(p["class"], p["type"], p.get("version")) for p in found), key=lambda p: p.name))

    def status(self, name: str) -> ConnectorStatus:
        """The connector and its tasks, with the errors of those that failed."""
        return _status(self._ask("GET", f"/connectors/{_quoted(name)}/status", about=name))

    def everything(self) -> tuple[tuple[ConnectorStatus, dict[str, str]], ...]:
        """All connectors with their status and settings, by one question."""
        found = self._ask("GET", "/connectors?expand=status&expand=info")
        return tuple((_status(found[name]["status"]), found[name]["info"]["config"]) for name in sorted(found))

    def config(self, name: str) -> dict[str, str]:
        """The settings of a connector."""
        found: dict[str, str] = self._ask("GET", f"/connectors/{_quoted(name)}/config", about=name)
        return found

    def validate(self, config: Mapping[str, str]) -> tuple[SettingError, ...]:
        """What Connect would not accept of these settings; nothing is created."""
        kind = config.get("connector.class")
        if not kind:
            return (SettingError("connector.class", None, ("it is missing: which connector is it?",)),)
        try:
            found = self._ask("PUT", f"/connector-plugins/{_quoted(kind)}/config/validate", dict(config))
        except Failed as error:
            if "Failed to find any class" not in (error.why or ""):
                raise
            return (SettingError("connector.class", kind, (self._nearest_plugin(kind),)),)
        return tuple(
            SettingError(c["value"]["name"], c["value"].get("value"), tuple(c["value"]["errors"]))
            for c in found["configs"]
            if c["value"]["errors"]
        )

    def _nearest_plugin(self, kind: str) -> str:
        names = [plugin.name for plugin in self.plugins()]
        short = {name.rsplit(".", 1)[-1]: name for name in names}
        near = difflib.get_close_matches(kind.rsplit(".", 1)[-1], short, n=1, cutoff=0.4)
        meant = f"; did you mean {short[near[0]]}?" if near else ""
        return f"the worker has no such connector: it has {', '.join(names)}{meant}"

    def create(self, name: str, config: Mapping[str, str]) -> ConnectorStatus:
        """The connector exists with these settings and was started. An existing one of the name is an error."""
        wanted = {**config, "name": name}
        errors = self.validate(wanted)
        if errors:
            raise ConfigError(
                f"the connector {name!r} was not created: {len(errors)} settings are wrong",
                why="; ".join(f"{e.name}={e.value}: {' '.join(e.reasons)}" for e in errors),
                hint="headrace connector validate shows each of them",
            )
        self._ask("POST", "/connectors", {"name": name, "config": wanted})
        return self._settled(name)

    def pause(self, name: str) -> ConnectorStatus:
        """The connector and its tasks stand still; they remember where."""
        self._ask("PUT", f"/connectors/{_quoted(name)}/pause", about=name)
        return self._until(name, lambda status: status.state == "PAUSED")

    def resume(self, name: str) -> ConnectorStatus:
        """The connector goes on."""
        self._ask("PUT", f"/connectors/{_quoted(name)}/resume", about=name)
        return self._until(name, lambda status: status.state == "RUNNING")

    def stop(self, name: str) -> ConnectorStatus:
        """The connector has no tasks any more; only then its offsets can be changed."""
        self._ask("PUT", f"/connectors/{_quoted(name)}/stop", about=name)
        return self._until(name, lambda status: status.state == "STOPPED")

    def restart(self, name: str) -> ConnectorStatus:
        """The connector and all of its tasks were started anew."""
        self._ask("POST", f"/connectors/{_quoted(name)}/restart?includeTasks=true", about=name)
        return self._settled(name)

    def offsets(self, name: str) -> list[dict[str, Any]]:
        """How far the connector has got, in its own words."""
        found: list[dict[str, Any]] = self._ask("GET", f"/connectors/{_quoted(name)}/offsets", about=name)["offsets"]
        return found

    def delete(self, name: str) -> None:
        """The connector and its tasks are gone; what they wrote stays."""
        self._ask("DELETE", f"/connectors/{_quoted(name)}", about=name)
        deadline = time.monotonic() + _REBALANCE_PATIENCE_S
        while self._still_known(name):  # Connect forgets it in the background
            if time.monotonic() > deadline:
                raise Failed(f"the connector {name!r} is still there {_REBALANCE_PATIENCE_S:.0f} s after its removal")
            time.sleep(0.1)

    def _still_known(self, name: str) -> bool:
        status, _ = self._send("GET", f"/connectors/{_quoted(name)}/status", None)
        return status != http.client.NOT_FOUND

    # -- how it is asked ----------------------------------------------------------------------------------------

    def _settled(self, name: str) -> ConnectorStatus:
        return self._until(name, lambda status: status.state == "FAILED" or bool(status.tasks))

    def _until(self, name: str, condition: Any) -> ConnectorStatus:
        """The status once the condition holds, or as it is when patience ends: Connect works in the background."""
        deadline = time.monotonic() + _REBALANCE_PATIENCE_S
        while True:
            try:
                found = self.status(name)
                if condition(found) or time.monotonic() > deadline:
                    return found
            except UsageError:
                # Created a moment ago, and not yet assigned to a worker.
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def _ask(self, method: str, path: str, body: Any = None, about: str | None = None) -> Any:
        deadline = time.monotonic() + _REBALANCE_PATIENCE_S
        while True:
            status, answer = self._send(method, path, body)
            if status < 300:
                return answer
            words = answer.get("message", answer) if isinstance(answer, dict) else answer
            if status in _BUSY and "already exists" not in str(words) and time.monotonic() < deadline:
                time.sleep(0.2)
                continue
            raise self._refusal(status, str(words), about)

    def _refusal(self, status: int, words: str, about: str | None) -> Failed | UsageError:
        if status == http.client.NOT_FOUND and about is not None:
            names = self.names()
            near = difflib.get_close_matches(about, names, n=1)
            return UsageError(
                f"there is no connector {about!r}",
                why=f"the nearest name is {near[0]!r}" if near else f"the worker has {', '.join(names) or 'none'}",
                hint="headrace connector list",
            )
        if "already exists" in words:
            return UsageError("a connector of that name exists", why=words, hint="headrace connector delete NAME")
        return Failed("Connect refused", why=f"{words} (HTTP {status})")

    def _send(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=self.timeout_s)
        text = json.dumps(body) if body is not None else None
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        try:
            connection.request(method, self._parts.path.rstrip("/") + path, text, headers)
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(
                f"no Connect worker answers at {self.url}",
                why=str(error) or type(error).__name__,
                hint="headrace up --with connect, or headrace start connect; --connect names another",
            ) from None
        finally:
            connection.close()
        try:
            return response.status, json.loads(answer) if answer else None
        except ValueError:
            return response.status, answer.decode(errors="replace")


def _status(found: Mapping[str, Any]) -> ConnectorStatus:
    tasks = tuple(Task(t["id"], t["state"], t["worker_id"], t.get("trace")) for t in found["tasks"])
    own = found["connector"]
    return ConnectorStatus(found["name"], found["type"], own["state"], own["worker_id"], tasks, own.get("trace"))


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def config_from(document: Any) -> tuple[str | None, dict[str, str]]:
    """The name and the settings in a document: `{"name": …, "config": {…}}`, or the settings alone."""
    if not isinstance(document, dict):
        raise ConfigError("a connector's file holds a JSON object", hint='{"name": "lines", "config": {…}}')
    settings = document.get("config", document)
    if not isinstance(settings, dict):
        raise ConfigError('"config" is not an object')
    name = document.get("name") or settings.get("name")
    return name, {str(key): _text(value) for key, value in settings.items()}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
