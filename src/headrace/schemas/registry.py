"""A registry of schemas, spoken to in Confluent's REST API: any registry that has it.

    with Registry("http://127.0.0.1:8081") as registry:
        number = registry.register("rides-value", Schema(text))
        print(registry.version("rides-value").schema.text)

What an id means never changes, so it is asked for once and cached: a program that has its schemas goes on while the
registry is away. An id that is not known yet is asked for again for `retry_for_s`, then the error is raised.
A refusal is put into words: which field, the old and the new type, and a change that would pass. Nothing here encodes
or decodes a record.
"""

from __future__ import annotations

import base64
import difflib
import http.client
import json
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal, Self, cast, get_args
from urllib.parse import quote, unquote, urlsplit

from headrace.errors import Failed, HeadraceError, Incompatible, NotFound, Unreachable, UsageError

Kind = Literal["AVRO", "JSON", "PROTOBUF"]
Level = Literal[
    "NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE"
]  # fmt: skip
LEVELS: tuple[Level, ...] = get_args(Level)

_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_TIMEOUT_S = 30.0
_ASK_AGAIN_S = 0.2
# A batch of records with an unknown id asks once, not once per record.
_UNKNOWN_FOR_S = 5.0
# What a proxy answers in the name of a registry that is away.
_AWAY = {502, 503, 504}
_NO_SUBJECT, _NO_VERSION = 40401, 40402


@dataclass(frozen=True)
class Reference:
    """A schema that another one uses by a name: a type's name, a `$ref`, an import."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True)
class Schema:
    """The text of a schema, its kind, and what it refers to."""

    text: str
    kind: Kind = "AVRO"
    references: tuple[Reference, ...] = ()

    def request(self) -> dict[str, Any]:
        """The body of a request; Avro is the API's default."""
        body: dict[str, Any] = {"schema": self.text}
        if self.kind != "AVRO":
            body["schemaType"] = self.kind
        if self.references:
            body["references"] = [vars(reference) for reference in self.references]
        return body

    @classmethod
    def of(cls, answer: dict[str, Any]) -> Schema:
        """The schema in an answer of the API."""
        references = tuple(Reference(r["name"], r["subject"], r["version"]) for r in answer.get("references") or ())
        return cls(answer["schema"], answer.get("schemaType") or "AVRO", references)


@dataclass(frozen=True)
class Version:
    """A schema as a version of a subject."""

    subject: str
    version: int
    id: int
    schema: Schema


@dataclass(frozen=True)
class Verdict:
    """Whether a subject would take a schema, and if not, what breaks and what would pass."""

    compatible: bool
    level: Level
    against: tuple[int, ...]
    breaks: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()


class _Refused(Exception):
    """The registry answered, and the answer is no."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class Registry:
    """A registry at a base URL. May be used by several threads."""

    def __init__(
        self, url: str, *, user_info: str | None = None, retry_for_s: float = 10.0, timeout_s: float = _TIMEOUT_S
    ) -> None:
        self.retry_for_s = retry_for_s
        self._http = _Http(url.rstrip("/"), user_info, timeout_s)
        self.url = self._http.address
        self._schemas: dict[int | str, Schema] = {}
        self._unknown: dict[int | str, float] = {}
        self._versions_of: dict[int, tuple[tuple[str, int], ...]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The connection is closed; the next call opens another."""
        self._http.close()

    # -- what is there ------------------------------------------------------------------------------------------

    def subjects(self, *, deleted: bool = False) -> list[str]:
        """The names of the subjects, also of softly deleted ones if wanted."""
        return sorted(self._http.call("GET", "/subjects?deleted=true" if deleted else "/subjects"))

    def versions(self, subject: str, *, deleted: bool = False) -> list[int]:
        """The numbers of a subject's versions; an unknown subject is an error with the nearest name."""
        return list(self._ask("GET", f"{_at(subject)}/versions{'?deleted=true' if deleted else ''}", subject=subject))

    def version(self, subject: str, number: int | Literal["latest"] = "latest") -> Version:
        """One version of a subject with its schema and id."""
        answer = self._ask("GET", f"{_at(subject)}/versions/{number}", subject=subject, version=number)
        return Version(answer["subject"], answer["version"], answer["id"], Schema.of(answer))

    def schema(self, number: int | str) -> Schema | None:
        """The schema of an id (or of a guid, where the registry knows guids), None if the registry has no such.

        Kept for good once known. While the registry is away: asked for again for `retry_for_s`, then `Unreachable`.
        """
        known = self._schemas.get(number)
        if known is not None or time.monotonic() - self._unknown.get(number, -_UNKNOWN_FOR_S) < _UNKNOWN_FOR_S:
            return known
        try:
            answer = self._with_retries(f"/schemas/{'ids' if isinstance(number, int) else 'guids'}/{number}")
        except _Refused as refused:
            if refused.status != 404:
                raise self._explained(refused) from None
            self._unknown[number] = time.monotonic()
            return None
        self._schemas[number] = Schema.of(answer)
        return self._schemas[number]

    def versions_of(self, number: int) -> tuple[tuple[str, int], ...]:
        """The subjects and versions that have the schema of that id; none if the registry cannot be asked."""
        if number not in self._versions_of:
            try:
                answer = self._http.call("GET", f"/schemas/ids/{number}/versions")
            except (_Refused, Unreachable):
                return ()
            self._versions_of[number] = tuple((found["subject"], found["version"]) for found in answer)
        return self._versions_of[number]

    def referred(self, schema: Schema) -> dict[str, Schema]:
        """Every schema that it refers to, directly or not, by the name of the reference, the deepest first."""
        found: dict[str, Schema] = {}
        for reference in schema.references:
            target = self.version(reference.subject, reference.version).schema
            found |= {**self.referred(target), reference.name: target}
        return found

    # -- changes ------------------------------------------------------------------------------------------------

    def register(self, subject: str, schema: Schema) -> int:
        """The schema is a version of the subject, and this is its id; one that was there already keeps its id."""
        try:
            number: int = self._http.call("POST", f"{_at(subject)}/versions", schema.request())["id"]
        except _Refused as refused:
            if refused.status == 409:
                raise self._incompatible(subject, schema, refused) from None
            raise self._explained(refused, subject) from None
        self._schemas.setdefault(number, schema)
        return number

    def registered(self, subject: str, schema: Schema) -> Version | None:
        """The version of the subject that has exactly this schema, or None."""
        answer = self._ask("POST", _at(subject), schema.request(), subject=subject, good={404})
        return answer and Version(answer["subject"], answer["version"], answer["id"], Schema.of(answer))

    def check(self, subject: str, schema: Schema) -> Verdict:
        """Whether the subject would take the schema. Nothing is registered."""
        level, versions = self.compatibility(subject), self.versions(subject)
        against = tuple(versions) if level.endswith("TRANSITIVE") else tuple(versions[-1:])
        path = f"/compatibility/subjects/{quote(subject, safe='')}/versions"
        answers = [
            self._ask("POST", f"{path}/{number}?verbose=true", schema.request(), subject=subject) for number in against
        ]
        if level == "NONE" or all(answer["is_compatible"] for answer in answers):
            return Verdict(True, level, against)
        words = [word for answer in answers for word in answer.get("messages") or ()]
        return self._verdict(subject, schema, level, against, "; ".join(words))

    def delete(self, subject: str, version: int | None = None, *, hard: bool = False) -> list[int]:
        """The version, or the whole subject, is gone: softly (its ids go on working) or for good."""
        path = f"{_at(subject)}/versions/{version}" if version is not None else _at(subject)
        if hard:
            # The API wants a soft delete before a hard one; where that was done before, it says 404, Apicurio 409.
            self._ask("DELETE", path, subject=subject, version=version, good={404, 409})
        answer = self._ask("DELETE", f"{path}?permanent=true" if hard else path, subject=subject, version=version)
        return list(answer) if isinstance(answer, list) else [answer]

    # -- compatibility ------------------------------------------------------------------------------------------

    def compatibility(self, subject: str | None = None) -> Level:
        """The level in force: of the subject, else the global one."""
        path = f"/config/{quote(subject, safe='')}?defaultToGlobal=true" if subject else "/config"
        return cast(Level, self._ask("GET", path, subject=subject)["compatibilityLevel"])

    def set_compatibility(self, level: Level | None, subject: str | None = None) -> None:
        """The level holds for the subject, or for every subject without one of its own; None takes a subject's away."""
        path = f"/config/{quote(subject, safe='')}" if subject else "/config"
        if level is None:
            self._ask("DELETE", path, subject=subject)
        else:
            self._ask("PUT", path, {"compatibility": level}, subject=subject)

    # -- asking -------------------------------------------------------------------------------------------------

    def _ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        subject: str | None = None,
        version: int | str | None = None,
        good: Collection[int] = (),
    ) -> Any:
        """The answer, None for a refusal with a `good` status; any other refusal is explained."""
        try:
            return self._http.call(method, path, body)
        except _Refused as refused:
            if refused.status in good:
                return None
            raise self._explained(refused, subject, version) from None

    def _with_retries(self, path: str) -> Any:
        deadline = time.monotonic() + self.retry_for_s
        while True:
            try:
                return self._http.call("GET", path)
            except Unreachable as error:
                if time.monotonic() >= deadline:
                    error.problem += f", for {self.retry_for_s:g} s"
                    raise
                time.sleep(_ASK_AGAIN_S)

    def _verdict(self, subject: str, schema: Schema, level: Level, against: tuple[int, ...], words: str) -> Verdict:
        from headrace.schemas.evolution import explain

        olds = [self.version(subject, number).schema for number in against]
        breaks = explain(schema, olds, level, words)
        return Verdict(
            False,
            level,
            against,
            tuple(dict.fromkeys(found.words for found in breaks)),
            tuple(dict.fromkeys(found.remedy for found in breaks if found.remedy)),
        )

    def _incompatible(self, subject: str, schema: Schema, refused: _Refused) -> Incompatible:
        level, versions = self.compatibility(subject), self.versions(subject)
        against = tuple(versions) if level.endswith("TRANSITIVE") else tuple(versions[-1:])
        verdict = self._verdict(subject, schema, level, against, refused.message)
        return incompatible(subject, verdict)

    def _explained(
        self, refused: _Refused, subject: str | None = None, version: int | str | None = None
    ) -> HeadraceError:
        if refused.code == _NO_SUBJECT and subject:
            return self.no_such_subject(subject)
        if refused.code == _NO_VERSION and subject:
            has = ", ".join(map(str, self.versions(subject)))
            return NotFound(f"subject {subject} has no version {version}", why=f"it has {has}")
        if refused.status == 422:
            return UsageError("the registry refuses it", why=f"{refused.message} (HTTP 422)")
        if refused.status in {401, 403}:
            return UsageError(
                f"the registry at {self.url} needs a user name and a password",
                why=f"HTTP {refused.status}",
                hint="http://NAME:PASSWORD@HOST:PORT, or basic.auth.user.info in the file of -F",
            )
        return Failed(f"the registry at {self.url} failed", why=f"HTTP {refused.status}: {refused.message}")

    def no_such_subject(self, subject: str) -> NotFound:
        names = self.subjects()
        near = difflib.get_close_matches(subject, names, n=1)
        why = f"the nearest name is {near[0]}" if near else f"there are {len(names)} others" if names else "it is empty"
        return NotFound(
            f"the registry has no subject {subject}",
            why=why,
            hint=f"headrace schema list shows them; headrace schema register {subject} FILE creates it",
        )


def incompatible(subject: str, verdict: Verdict, *, dry_run: bool = False) -> Incompatible:
    """The refusal of a schema in words."""
    verb = "would not accept this schema" if dry_run else "does not accept this schema (HTTP 409)"
    versions = f"version{'s' if len(verdict.against) > 1 else ''} {', '.join(map(str, verdict.against))}"
    return Incompatible(
        f"{subject} {verb}: it is not {verdict.level} compatible with {versions}",
        why="; ".join(verdict.breaks) or "the registry does not say why",
        hint="; or ".join((*verdict.remedies, "use a new topic and move its readers one by one")),
    )


def _at(subject: str) -> str:
    return f"/subjects/{quote(subject, safe='')}"


class _Http:
    """One connection that is kept open; calls wait for each other."""

    def __init__(self, url: str, user_info: str | None, timeout_s: float) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise UsageError(f"invalid address of a schema registry: {url!r}", hint="http://127.0.0.1:8081")
        self._root = parts.path.rstrip("/")
        #: Without the name and the password that may stand in the URL.
        self.address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{self._root}"
        self._connection: http.client.HTTPConnection = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )(parts.hostname, parts.port, timeout=timeout_s)
        self._headers = {"Content-Type": _MEDIA_TYPE, "Accept": f"{_MEDIA_TYPE}, application/json"}
        if parts.username:
            user_info = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        if user_info:
            self._headers["Authorization"] = "Basic " + base64.b64encode(user_info.encode()).decode()
        self._lock = threading.Lock()

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The answer as data; `_Refused` if it is an error, `Unreachable` if there is none."""
        data = json.dumps(body).encode() if body is not None else None
        with self._lock:
            status, raw = self._exchange(method, self._root + path, data)
        try:
            document = json.loads(raw) if raw else {}
        except ValueError:
            document = {"message": raw[:200].decode(errors="replace")}
        if status in _AWAY:
            raise self._unreachable(f"HTTP {status}")
        if status >= 400:
            refusal = document if isinstance(document, dict) else {}
            raise _Refused(status, refusal.get("error_code", status), refusal.get("message") or f"HTTP {status}")
        return document

    def _exchange(self, method: str, path: str, data: bytes | None) -> tuple[int, bytes]:
        fresh = self._connection.sock is None
        try:
            self._connection.request(method, path, data, self._headers)
            response = self._connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            # A connection that was kept may have been closed by the other side meanwhile. Every call of this API can
            # be repeated without harm.
            if not fresh and isinstance(error, (ConnectionError, http.client.HTTPException)):
                return self._exchange(method, path, data)
            raise self._unreachable(str(error) or type(error).__name__) from None

    def _unreachable(self, why: str) -> Unreachable:
        return Unreachable(
            f"no schema registry answers at {self.address}",
            why=why,
            hint="headrace start registry, or headrace up --with registry; --registry names another",
        )
