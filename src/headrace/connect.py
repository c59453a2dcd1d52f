"""Kafka Connect, any worker: connectors created, checked, watched, paused, removed, through its REST API.

What Connect refuses is raised with its own words; a wrong setting is explained before anything is created. A worker
that is rebalancing asks to be asked again: that is done here, for a bounded time.
"""

from __future__ import annotations

import difflib
import http.client
import json
import re
import time
import urllib.parse
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import AlreadyExists, ConfigError, Failed, NotFound, Unreachable, UsageError

#: Shown in the place of a secret; given back, it means the secret that is there.
HIDDEN = "(hidden)"

_SECRET = re.compile(r"password|secret|token|credential|passphrase|jaas|private.?key|user\.info", re.IGNORECASE)
_REBALANCE_S = 30.0
_BUSY = {409, 503}
_UNDER_WAY = {"UNASSIGNED", "RESTARTING"}
# A source connector may create its topics only if it says how; -1 leaves it to the brokers.
_TOPIC_CREATION = {"topic.creation.default.replication.factor": "-1", "topic.creation.default.partitions": "-1"}


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
    """A connector, as its worker sees it. `waiting` says what a running one waits for, if it does."""

    name: str
    kind: str
    state: str
    worker: str
    tasks: tuple[Task, ...] = ()
    trace: str | None = None
    waiting: str | None = None

    @property
    def shown_state(self) -> str:
        """WAITING for one that runs and waits: Connect says RUNNING then."""
        return "WAITING" if self.waiting else self.state

    @property
    def healthy(self) -> bool:
        return self.state == "RUNNING" and bool(self.tasks) and all(task.state == "RUNNING" for task in self.tasks)


@dataclass(frozen=True)
class SettingError:
    """A setting that Connect does not accept, and why."""

    name: str
    value: str | None
    reasons: tuple[str, ...]

    @property
    def shown(self) -> str | None:
        return HIDDEN if _SECRET.search(self.name) else self.value


def without_secrets(config: Mapping[str, str]) -> dict[str, str]:
    """The settings as they may be shown: what its name calls a secret is hidden."""
    return {key: HIDDEN if _SECRET.search(key) else value for key, value in sorted(config.items())}


def _with_secrets(wanted: Mapping[str, str | None], known: Mapping[str, str]) -> dict[str, str]:
    """What is wanted, with the known secrets in place of what is hidden; None is left out."""
    lost = sorted(key for key, value in wanted.items() if value == HIDDEN and key not in known)
    if lost:
        raise UsageError(
            f"{lost[0]} is {HIDDEN}, which is not its value",
            why="settings are shown without secrets, and this connector has no such secret to keep",
            hint=f"--set {lost[0]}=VALUE",
        )
    found = {key: known[key] if value == HIDDEN else value for key, value in wanted.items()}
    return {key: value for key, value in found.items() if value is not None}


def _wrong(problem: str, errors: Sequence[SettingError]) -> ConfigError:
    return ConfigError(
        f"{problem}: {'1 setting is' if len(errors) == 1 else f'{len(errors)} settings are'} wrong",
        why="; ".join(f"{e.name}={e.shown}: {' '.join(e.reasons)}" for e in errors),
        hint="headrace connector validate shows each of them",
    )


class Connectors:
    """The connectors of one worker. `token` is sent as `Authorization: Bearer TOKEN`.

    With `topics`, which lists the topics of the worker's Kafka, a status says whether a connector waits for one.

    Connectors("http://127.0.0.1:8083", token="…").create("lines", {"connector.class": "FileStreamSource", …})
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        topics: Callable[[], Collection[str]] | None = None,
        timeout_s: float = 30.0,
        retry_s: float = _REBALANCE_S,
    ) -> None:
        parts = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise UsageError(f"invalid address of a Connect worker: {url!r}", hint="http://127.0.0.1:8083")
        self.url = url
        self.timeout_s = timeout_s
        self.retry_s = retry_s
        self._topics = topics
        self._parts = parts
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"

    def names(self) -> list[str]:
        """The names of all connectors."""
        return sorted(self._ask("GET", "/connectors"))

    def plugins(self) -> tuple[Plugin, ...]:
        """What the worker can make connectors of."""
        found = self._ask("GET", "/connector-plugins")
        return tuple(sorted((Plugin(p["class"], p["type"], p.get("version")) for p in found), key=lambda p: p.name))

    def status(self, name: str) -> ConnectorStatus:
        """The connector and its tasks, with the errors of those that failed."""
        found = self._status(name)
        return _judged(found, self.config(name), self._known_topics()) if found.state == "RUNNING" else found

    def _status(self, name: str) -> ConnectorStatus:
        return _status(self._ask("GET", f"/connectors/{_quoted(name)}/status", about=name))

    def _known_topics(self) -> Collection[str] | None:
        """None if they are unknown: Connect may answer while no broker does."""
        try:
            return self._topics() if self._topics else None
        except Unreachable:
            return None

    def everything(self) -> tuple[tuple[ConnectorStatus, dict[str, str]], ...]:
        """All connectors with their status and settings, by one question."""
        found = self._ask("GET", "/connectors?expand=status&expand=info")
        known = [(_status(found[name]["status"]), found[name]["info"]["config"]) for name in sorted(found)]
        topics = self._known_topics() if known else None
        return tuple((_judged(status, config, topics), config) for status, config in known)

    def config(self, name: str) -> dict[str, str]:
        """The settings of a connector."""
        found: dict[str, str] = self._ask("GET", f"/connectors/{_quoted(name)}/config", about=name)
        return found

    def validate(self, config: Mapping[str, str]) -> tuple[SettingError, ...]:
        """What Connect would not accept of these settings; nothing is created."""
        return self._checked(config)[0]

    def _checked(self, config: Mapping[str, str]) -> tuple[tuple[SettingError, ...], bool]:
        """What Connect would not accept, and whether it is a source connector."""
        kind = config.get("connector.class")
        if not kind:
            return (SettingError("connector.class", None, ("it is missing: which connector is it?",)),), False
        try:
            found = self._ask("PUT", f"/connector-plugins/{_quoted(kind)}/config/validate", dict(config))
        except Failed as error:
            if "Failed to find any class" not in (error.why or ""):
                raise
            return (SettingError("connector.class", kind, (self._nearest_plugin(kind),)),), False
        values = [setting["value"] for setting in found["configs"]]
        errors = tuple(SettingError(v["name"], v.get("value"), tuple(v["errors"])) for v in values if v["errors"])
        return errors, any(value["name"] == "topic.creation.groups" for value in values)

    def _nearest_plugin(self, kind: str) -> str:
        names = [plugin.name for plugin in self.plugins()]
        short = {name.rsplit(".", 1)[-1]: name for name in names}
        near = difflib.get_close_matches(kind.rsplit(".", 1)[-1], short, n=1, cutoff=0.4)
        meant = f"; did you mean {short[near[0]]}?" if near else ""
        return f"the worker has no such connector: it has {', '.join(names)}{meant}"

    def alter(self, name: str, changes: Mapping[str, str | None]) -> ConnectorStatus:
        """The connector runs with the changed settings; one that is None goes back to its default."""
        known = self.config(name)
        wanted = _with_secrets({**known, **changes}, known)
        errors, _ = self._checked(wanted)
        if errors:
            raise _wrong(f"the connector {name!r} was not altered", errors)
        self._ask("PUT", f"/connectors/{_quoted(name)}/config", wanted, about=name)
        return self._settled(name)

    def create(self, name: str, config: Mapping[str, str]) -> ConnectorStatus:
        """The connector exists with these settings and was started. An existing one of the name is an error.

        A source connector that does not say how its topics are made gets the brokers' defaults for them.
        """
        wanted = _with_secrets({**config, "name": name}, {})
        errors, is_source = self._checked(wanted)
        if errors:
            raise _wrong(f"the connector {name!r} was not created", errors)
        if is_source and not any(key.startswith("topic.creation.") for key in wanted):
            wanted |= _TOPIC_CREATION
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
        found: list[dict[str, object]] = self._ask("GET", f"/connectors/{_quoted(name)}/offsets", about=name)["offsets"]
        return found

    def delete(self, name: str) -> None:
        """The connector and its tasks are gone; what they wrote stays."""
        self._ask("DELETE", f"/connectors/{_quoted(name)}", about=name)
        deadline = time.monotonic() + self.retry_s
        while self._still_known(name):  # Connect forgets it in the background
            if time.monotonic() > deadline:
                raise Failed(f"the connector {name!r} is still there {self.retry_s:.0f} s after its removal")
            time.sleep(0.1)

    def _still_known(self, name: str) -> bool:
        status, _ = self._send("GET", f"/connectors/{_quoted(name)}/status", None)
        return status != http.client.NOT_FOUND

    # -- how it is asked ----------------------------------------------------------------------------------------

    def _settled(self, name: str) -> ConnectorStatus:
        def is_settled(status: ConnectorStatus) -> bool:
            states = {status.state, *(task.state for task in status.tasks)}
            return status.state in {"FAILED", "STOPPED"} or (bool(status.tasks) and not states & _UNDER_WAY)

        return self._until(name, is_settled)

    def _until(self, name: str, condition: Callable[[ConnectorStatus], bool]) -> ConnectorStatus:
        """The status once the condition holds, or as it is when the time is over: Connect works in the background."""
        deadline = time.monotonic() + self.retry_s
        while True:
            try:
                found = self._status(name)
                if condition(found) or time.monotonic() > deadline:
                    return self.status(name)
            except UsageError:
                # Created a moment ago, and not yet assigned to a worker.
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def _ask(self, method: str, path: str, body: object = None, about: str | None = None) -> Any:
        deadline = time.monotonic() + self.retry_s
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
        if about is not None and status in {http.client.NOT_FOUND, http.client.BAD_REQUEST}:
            names = self.names()
            # The worker's web server refuses a name with, say, a null character before Connect sees it.
            if status == http.client.NOT_FOUND or about not in names:
                near = difflib.get_close_matches(about, names, n=1)
                return NotFound(
                    f"there is no connector {about!r}",
                    why=f"the nearest name is {near[0]!r}" if near else f"the worker has {', '.join(names) or 'none'}",
                    hint="headrace connector list",
                )
        if status == http.client.UNAUTHORIZED:
            return UsageError(
                f"the Connect worker at {self.url} requires a token",
                why=words,
                hint="--home names the folder of its cluster; for another worker, --token-file FILE",
            )
        if "already exists" in words:
            return AlreadyExists("a connector of that name exists", why=words, hint="headrace connector delete NAME")
        return Failed("Connect refused", why=f"{words} (HTTP {status})")

    def _send(self, method: str, path: str, body: object) -> tuple[int, object]:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=self.timeout_s)
        text = json.dumps(body) if body is not None else None
        try:
            connection.request(method, self._parts.path.rstrip("/") + path, text, self._headers)
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


def _judged(status: ConnectorStatus, config: Mapping[str, str], topics: Collection[str] | None) -> ConnectorStatus:
    if topics is None or status.state != "RUNNING":
        return status
    return replace(status, waiting=waiting(status.kind, config, topics))


def topics_of(config: Mapping[str, str]) -> tuple[str, ...]:
    """The topics that a connector's settings name."""
    named = ",".join(config.get(key) or "" for key in ("topic", "topics"))
    return tuple(name.strip() for name in named.split(",") if name.strip())


def waiting(kind: str, config: Mapping[str, str], topics: Collection[str]) -> str | None:
    """What a connector with these settings waits for, if `topics` are all that exist.

    Connect itself says RUNNING, and repeats in its log that it does not know the topic.
    """
    if kind == "source" and any(key.startswith("topic.creation.default.") for key in config):
        return None  # it makes them with the first record
    missing = [topic for topic in topics_of(config) if topic not in topics]
    if missing:
        return f"{'topic' if len(missing) == 1 else 'topics'} {', '.join(missing)} not found"
    pattern = config.get("topics.regex")
    try:
        found = pattern is None or any(re.fullmatch(pattern, topic) for topic in topics)
    except re.error:
        return None  # Java's patterns know more than Python's
    return None if found else f"no topic matches {pattern}"


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def config_from(document: object) -> tuple[str | None, dict[str, str]]:
    """The name and the settings in a document: `{"name": …, "config": {…}}`, or the settings alone."""
    if not isinstance(document, dict):
        raise ConfigError("a connector's file holds a JSON object", hint='{"name": "lines", "config": {…}}')
    settings = document.get("config", document)
    if not isinstance(settings, dict):
        raise ConfigError('"config" is not an object')
    name = document.get("name") or settings.get("name")
    return name, {str(key): _text(value) for key, value in settings.items()}


_JAVA_BLANKS = " \t\f"


def properties_in(text: str) -> dict[str, str]:
    """The settings in a Java properties file, with comments, continued lines and escapes as Java reads them."""
    found: dict[str, str] = {}
    lines = iter(re.split(r"\r\n|\r|\n", text))
    for line in lines:
        whole = line.lstrip(_JAVA_BLANKS)
        if not whole or whole[0] in "#!":
            continue
        while re.search(r"(?<!\\)(?:\\\\)*\\$", whole):
            whole = whole[:-1] + next(lines, "").lstrip(_JAVA_BLANKS)
        key, value = re.findall(r"^((?:\\.|[^\\ \t\f=:])*)[ \t\f]*[=:]?[ \t\f]*(.*)$", whole)[0]
        found[_unescaped(key)] = _unescaped(value)
    return found


def _unescaped(text: str) -> str:
    def meant(escape: re.Match[str]) -> str:
        code = escape[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(code, code)

    # Java escapes the halves of a surrogate pair one by one.
    halves = re.sub(r"\\(u[0-9a-fA-F]{4}|.)", meant, text)
    return halves.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
