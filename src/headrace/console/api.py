"""The JSON API: every page's twin, made of the same Snapshot, and every action of the pages.

Answers are encoded by msgspec from the views themselves; their schemas stand in `/api/openapi.json`. A change needs the
token of this start (`Authorization: Bearer …`) or a session with its CSRF token; `safety` sees to that before anything
arrives here. Errors are what the command line says: problem, why, hint.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, FastAPI, Query, Request
from fastapi import Path as PathParameter
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.exceptions import HTTPException

from headrace import __version__
from headrace.console import pipelines, sql, storage
from headrace.console.backend import Backend, NewRecord
from headrace.console.pipelines import DeadLettersView, GraphNodeView
from headrace.console.sql import ResultView
from headrace.console.storage import BatchView, SegmentView
from headrace.errors import HeadraceError, NotFound, Unreachable
from headrace.kafka import NewTopic, Start
from headrace.kafka.browse import Expression, Page
from headrace.kafka.browse import Query as Wanted
from headrace.monitor import (
    PROMETHEUS_TYPE,
    BrokerView,
    ConnectorView,
    Event,
    GroupView,
    PipelineView,
    Snapshot,
    SubjectView,
    TopicView,
    points_as_json,
    prometheus_text,
)
from headrace.schemas import Schema

# FastAPI looks these up by name, so they stand here.
_From = Annotated[str, Query(alias="from", description="beginning, end, an offset, a time or -15min")]
_Minutes = Annotated[float, Query(gt=0, le=130_000)]

_Partition = Annotated[int, Query(ge=0, lt=1 << 31)]
_Number = Annotated[int, PathParameter(ge=0, lt=1 << 31)]
_Offset = Annotated[int, PathParameter(ge=0, lt=1 << 63)]

_DESCRIBED = "/api/openapi.json describes the API"
_MOST_RECORDS = 1000
_MOST_EXPORTED = 1_000_000


def _json(view: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(view), status, {"Cache-Control": "no-store"}, "application/json")


def _described(kind: object, meaning: str) -> dict[int | str, dict[str, object]]:
    """The answer of a route in OpenAPI's words, from the type that is encoded."""
    schema, definitions = msgspec.json.schema_components([kind], ref_template="#/components/schemas/{name}")
    _DEFINITIONS.update(definitions)
    return {200: {"description": meaning, "content": {"application/json": {"schema": schema[0]}}}}


_DEFINITIONS: dict[str, object] = {}


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _has_whole_characters(cls, given: object) -> object:
        """JSON can hold half of a character (a lone surrogate); Kafka's texts cannot, and its client crashes at one."""
        msgspec.json.encode(given)
        return given


class TopicBody(_Body):
    """A topic to be; without numbers the brokers' defaults hold."""

    name: str = Field(max_length=249)
    partitions: int | None = Field(None, ge=1, le=100_000)
    replication: int | None = Field(None, ge=1, le=100)
    configs: dict[str, str] = {}


class AlterBody(_Body):
    """What shall change; a setting that is null goes back to its default."""

    partitions: int | None = Field(None, ge=1, le=100_000)
    configs: dict[str, str | None] = {}


class RecordBody(_Body):
    """A record to be written: texts as UTF-8; null as a value is a tombstone."""

    value: str | None
    key: str | None = None
    headers: dict[str, str] = {}
    partition: int | None = Field(None, ge=0, lt=1 << 31)


class ResetBody(_Body):
    """Where a group shall go on; nothing happens unless `execute`."""

    to: str = Field(examples=["beginning", "end", "1500", "shift:-100", "-1h", "2026-05-01T12:00"])
    topics: list[str] = []
    execute: bool = False


class SchemaBody(_Body):
    """A schema; `check` only tells whether the subject would take it."""

    schema_: str = Field(alias="schema")
    kind: Literal["AVRO", "JSON", "PROTOBUF"] = "AVRO"
    check: bool = False


class SqlBody(_Body):
    """A query that only reads, over the tables of the project and over topics (`topic.NAME`)."""

    query: str = Field(max_length=20_000)


class LevelBody(_Body):
    level: str


class ConnectorBody(_Body):
    """A connector to be."""

    name: str
    config: dict[str, str]


class RedriveBody(_Body):
    """Which dead letters are meant; nothing is sent unless `execute`."""

    rules: list[str] = []
    reasons: list[str] = []
    execute: bool = False


def add_api(app: FastAPI, backend: Backend, csrf: Callable[[Request], str | None]) -> None:
    """The routes below /api, /metrics, and how errors are answered."""
    router = APIRouter(prefix="/api")
    _add_looks(router, backend, csrf)
    _add_topics(router, backend)
    _add_storage(router, backend)
    _add_records(router, backend)
    _add_groups(router, backend)
    _add_beside(router, backend)
    _answer_the_rest(router)
    app.include_router(router)
    app.add_api_route("/metrics", _metrics(backend), methods=["GET"], tags=["metrics"], summary="For Prometheus")
    for kind in (HeadraceError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _refused)
    _describe(app)


def _describe(app: FastAPI) -> None:
    """What msgspec says about its types joins what FastAPI says about its own."""
    made = app.openapi

    def openapi() -> dict[str, object]:
        document = made()
        document.setdefault("components", {}).setdefault("schemas", {}).update(_DEFINITIONS)
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _problem(problem: str, status: int, why: str | None = None, hint: str | None = None) -> Response:
    """What every answer that is an error looks like."""
    body = {"problem": problem, "why": why, "hint": hint}
    return _json({k: v.encode(errors="backslashreplace").decode() for k, v in body.items() if v}, status)


async def _refused(_: Request, error: Exception) -> Response:
    if isinstance(error, HeadraceError):
        return _problem(error.problem, error.http_status, error.why, error.hint)
    if isinstance(error, RequestValidationError):
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        return _problem("the request is not valid", 422, wrong, _DESCRIBED)
    if isinstance(error, HTTPException):
        return _problem(error.detail, error.status_code)
    return _problem("the console failed", 500, f"{type(error).__name__}: {error}", "headrace logs console")


def _answer_the_rest(router: APIRouter) -> None:
    """Behind all other routes: what is not there is an error like any other, not a page of the console."""
    known = [route for route in router.routes if isinstance(route, APIRoute)]

    @router.api_route("", methods=["GET"], include_in_schema=False)
    @router.api_route(
        "/{_:path}", methods=["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"], include_in_schema=False
    )
    def unknown(request: Request) -> Response:
        path = request.scope["path"]
        methods = sorted({m for route in known if route.path_regex.match(path) for m in route.methods or ()})
        if not methods:
            return _problem(f"there is no {path}", 404, hint=_DESCRIBED)
        answer = _problem(f"{path} takes no {request.method}", 405, f"it takes {', '.join(methods)}", _DESCRIBED)
        answer.headers["Allow"] = ", ".join(methods)
        return answer


def _metrics(backend: Backend) -> Callable[[], Response]:
    def read() -> Response:
        return Response(prometheus_text(backend.now), media_type=PROMETHEUS_TYPE)

    return read


# -- looking ----------------------------------------------------------------------------------------------------


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """Health in one glance."""

    title: str
    health: str
    complaints: tuple[str, ...]
    read_only: bool
    snapshot: Snapshot


def _add_looks(router: APIRouter, backend: Backend, csrf: Callable[[Request], str | None]) -> None:
    @router.get("/health", tags=["console"], summary="Health check, without a token")
    def health() -> Response:
        return _json({"status": "ok", "version": __version__})

    @router.get("/session", tags=["console"], summary="The CSRF token of this session")
    def session(request: Request) -> Response:
        return _json({"csrf": csrf(request), "read_only": backend.read_only})

    @router.get("/overview", tags=["cluster"], responses=_described(Overview, "Everything, as of the last poll."))
    def overview() -> Response:
        now = backend.now
        return _json(
            Overview(
                title=backend.title,
                health=now.health,
                complaints=now.complaints(),
                read_only=backend.read_only,
                snapshot=now,
            )
        )

    @router.get("/brokers", tags=["cluster"], responses=_described(tuple[BrokerView, ...], "The brokers."))
    def brokers() -> Response:
        now = backend.now
        return _json({"brokers": now.brokers, "quorum": now.quorum, "nodes": now.nodes})

    @router.post("/brokers/elect", tags=["cluster"], summary="Elect the preferred leaders")
    def elect() -> Response:
        return _json(backend.elect_preferred().as_json())

    @router.post("/nodes/{name}/{verb}", tags=["cluster"], summary="start, stop, restart, kill, pause or resume a node")
    def node_action(name: str, verb: str) -> Response:
        backend.node_action(verb, name)
        return _json({"node": name, "done": verb})

    @router.get("/events", tags=["cluster"], responses=_described(list[Event], "What changed, the newest first."))
    def events(
        since: float = 0,
        topic: str | None = None,
        group: str | None = None,
        limit: Annotated[int, Query(ge=1, le=5000)] = 200,
    ) -> Response:
        return _json(backend.history.events(since=since, topic=topic, group=group, most=limit))

    @router.get("/history", tags=["cluster"], summary="Numbers over time")
    def history(
        metric: str,
        kind: Literal["cluster", "topic", "group", "broker", "pipeline"] = "cluster",
        name: str = "",
        minutes: _Minutes = 60,
        points: Annotated[int, Query(ge=2, le=5000)] = 400,
    ) -> Response:
        found = backend.history.series(kind, name, metric, since=time.time() - minutes * 60, most=points)
        return _json({"kind": kind, "name": name, "metric": metric, "data": points_as_json(found)})


# -- topics -----------------------------------------------------------------------------------------------------


def _require_topic(backend: Backend, name: str) -> None:
    if name not in backend.now.topics:
        raise NotFound(f"there is no topic {name!r}", hint="headrace topic list")


def _add_topics(router: APIRouter, backend: Backend) -> None:
    @router.get("/topics", tags=["topics"], responses=_described(list[TopicView], "All topics."))
    def topics(internal: bool = False) -> Response:
        return _json([topic for topic in backend.now.topics.values() if internal or not topic.internal])

    @router.post("/topics", tags=["topics"], status_code=201)
    def create(body: TopicBody) -> Response:
        backend.create_topic(NewTopic(body.name, body.partitions, body.replication, body.configs))
        return _json({"topic": body.name}, 201)

    @router.get("/topics/{name}", tags=["topics"], summary="A topic in detail, with its settings")
    def topic(name: str) -> Response:
        described = backend.describe_topic(name)
        now = backend.now
        return _json(
            {
                "now": now.topics.get(name),
                "described": {**described.to_json(), "records": backend.browser.count(described)},
                "groups": [group.group for group in now.groups.values() if name in group.topics],
                "pipelines": [p.name for p in now.pipelines if name in p.sources],
                "connectors": [c.name for c in now.connectors or () if name in c.topics],
            }
        )

    @router.patch("/topics/{name}", tags=["topics"])
    def alter(name: str, body: AlterBody) -> Response:
        backend.alter_topic(name, body.partitions, body.configs)
        return _json({"topic": name})

    @router.delete("/topics/{name}", tags=["topics"])
    def delete(name: str) -> Response:
        backend.delete_topic(name)
        return _json({"topic": name})

    @router.post("/topics/{name}/clean", tags=["topics"], summary="Delete all records; the topic stays")
    def clean(name: str) -> Response:
        return _json(asdict(backend.clean_topic(name)))

    @router.get("/topics/{name}/bytes", tags=["topics"], summary="Bytes stored over time, the last point is now")
    def stored(name: str, minutes: _Minutes = 60) -> Response:
        _require_topic(backend, name)
        found = backend.history.series("topic", name, "bytes", since=time.time() - minutes * 60)
        return _json({"topic": name, "data": points_as_json(found)})

    @router.get("/topics/{name}/rates", tags=["topics"], summary="Records per second in and out, over time")
    def rates(name: str, minutes: _Minutes = 60) -> Response:
        _require_topic(backend, name)
        since = time.time() - minutes * 60
        found = {m: points_as_json(backend.history.series("topic", name, m, since=since)) for m in ("in", "out")}
        return _json({"topic": name, **found})


def _add_storage(router: APIRouter, backend: Backend) -> None:
    @router.get("/topics/{name}/segments", tags=["topics"], responses=_described(list[SegmentView], "Files on disk."))
    def segments(name: str, partition: _Partition = 0) -> Response:
        return _json(storage.segments(backend, name, backend.describe_topic(name), partition))

    @router.get("/topics/{name}/batches", tags=["topics"], responses=_described(list[BatchView], "Batches."))
    def batches(name: str, partition: _Partition = 0, segment: int | None = None) -> Response:
        if segment is None:
            return _json(storage.travelling_batches(backend, name, partition))
        return _json(storage.batches(backend, name, partition, segment))


# -- records ----------------------------------------------------------------------------------------------------


def wanted(
    topic: str,
    start: str,
    limit: int,
    partition: int | None = None,
    key: str | None = None,
    contains: str | None = None,
    header: str | None = None,
    where: str | None = None,
) -> Wanted:
    """The query that these words stand for."""
    return Wanted(
        topic,
        start=Start.parse(start),
        limit=limit,
        partitions=() if partition is None else (partition,),
        key=key or None,
        contains=contains or None,
        header=header or None,
        expression=Expression(where) if where else None,
    )


def _add_records(router: APIRouter, backend: Backend) -> None:
    @router.get(
        "/topics/{name}/records", tags=["records"], responses=_described(Page, "Records, with their visibility.")
    )
    def records(
        name: str,
        start: _From = "end",
        partition: _Partition | None = None,
        limit: Annotated[int, Query(ge=1, le=_MOST_RECORDS)] = 50,
        key: str | None = None,
        contains: str | None = None,
        header: str | None = None,
        where: Annotated[str | None, Query(description='value.trip > 1000 and "bus" in key')] = None,
    ) -> Response:
        return _json(backend.browser.page(wanted(name, start, limit, partition, key, contains, header, where)))

    @router.get("/topics/{name}/records/{partition}/{offset}", tags=["records"], summary="One record, whole")
    def record(name: str, partition: _Number, offset: _Offset) -> Response:
        return _json(backend.browser.record(name, partition, offset)[0])

    @router.get("/topics/{name}/records/{partition}/{offset}/value", tags=["records"], summary="Its value as bytes")
    def value(name: str, partition: _Number, offset: _Offset) -> Response:
        found = backend.browser.record(name, partition, offset)[1]
        if found is None:
            raise NotFound(f"there is no value at {name}/{partition}/{offset}: it is null")
        # As a file and as nothing that a browser would show: the value is anybody's.
        file = f'attachment; filename="{name}-{partition}-{offset}.bin"'
        return Response(found, headers={"Content-Disposition": file}, media_type="application/octet-stream")

    @router.get("/topics/{name}/export", tags=["records"], summary="Records as lines of JSON")
    def export(
        name: str,
        start: _From = "beginning",
        partition: _Partition | None = None,
        limit: Annotated[int, Query(ge=1, le=_MOST_EXPORTED)] = 10_000,
        key: str | None = None,
        contains: str | None = None,
        header: str | None = None,
        where: str | None = None,
    ) -> Response:
        query = wanted(name, start, limit, partition, key, contains, header, where)
        backend.admin.topic(name)
        return StreamingResponse(
            backend.browser.lines(query),
            media_type="application/x-ndjson",
            headers={"Content-Disposition": f'attachment; filename="{name}.ndjson"'},
        )

    @router.post("/topics/{name}/records", tags=["records"], status_code=201)
    def produce(name: str, body: RecordBody) -> Response:
        partition, offset = backend.produce(NewRecord.of(name, body.value, body.key, body.headers, body.partition))
        return _json({"topic": name, "partition": partition, "offset": offset}, 201)


# -- groups -----------------------------------------------------------------------------------------------------


def _add_groups(router: APIRouter, backend: Backend) -> None:
    @router.get("/groups", tags=["groups"], responses=_described(list[GroupView], "All groups."))
    def groups() -> Response:
        return _json(list(backend.now.groups.values()))

    @router.get("/groups/{name:path}/ownership", tags=["groups"], summary="Partition ownership over time")
    def ownership(name: str, minutes: Annotated[float, Query(gt=0)] = 60) -> Response:
        found = backend.history.ownership(name, since=time.time() - minutes * 60)
        return _json([owned._asdict() for owned in found])

    @router.post("/groups/{name:path}/reset", tags=["groups"], summary="Preview, or apply with execute")
    def reset(name: str, body: ResetBody) -> Response:
        act = backend.reset_group if body.execute else backend.plan_reset
        return _json({"executed": body.execute, "plan": [asdict(p) for p in act(name, body.to, body.topics)]})

    @router.get("/groups/{name:path}", tags=["groups"], responses=_described(GroupView, "One group."))
    def group(name: str) -> Response:
        found = backend.now.groups.get(name)
        if found is None:
            raise NotFound(f"there is no group {name!r}", hint="headrace group list")
        return _json(found)

    @router.delete("/groups/{name:path}", tags=["groups"])
    def delete(name: str) -> Response:
        backend.delete_group(name)
        return _json({"group": name})


# -- what stands beside -----------------------------------------------------------------------------------------


def _add_beside(router: APIRouter, backend: Backend) -> None:
    _add_schemas(router, backend)
    _add_connectors(router, backend)
    _add_sql(router, backend)

    _add_pipelines(router, backend)


def _add_pipelines(router: APIRouter, backend: Backend) -> None:
    @router.get("/pipelines", tags=["pipelines"], responses=_described(list[PipelineView], "All pipelines."))
    def pipelines_() -> Response:
        return _json(backend.now.pipelines)

    @router.get(
        "/graph", tags=["pipelines"], responses=_described(list[GraphNodeView], "Pipelines and views, as a graph.")
    )
    def graph() -> Response:
        return _json(pipelines.graph(backend))

    @router.get(
        "/pipelines/{name}/dead-letters",
        tags=["pipelines"],
        responses=_described(list[DeadLettersView], "Dead letters by rule and reason."),
    )
    def dead_letters(name: str) -> Response:
        return _json(pipelines.dead_letters(backend, name))

    @router.post("/pipelines/{name}/redrive", tags=["pipelines"], summary="Count what would be sent, or send it")
    def redrive(name: str, body: RedriveBody) -> Response:
        report = pipelines.send_again(backend, name, body.rules, body.reasons, dry=not body.execute)
        return _json({**report.document(), "executed": body.execute})

    @router.post("/pipelines/{name}/{verb}", tags=["pipelines"], summary="start or stop")
    def act(name: str, verb: Literal["start", "stop"]) -> Response:
        (pipelines.start if verb == "start" else pipelines.stop)(backend, name)
        return _json({"pipeline": name, "done": verb})


def _add_sql(router: APIRouter, backend: Backend) -> None:
    # A change in HTTP's sense only: a query is too long for an address. It reads, also in a read-only console.
    @router.post("/sql", tags=["sql"], responses=_described(ResultView, "The rows, at most the first thousand."))
    def ask(body: SqlBody) -> Response:
        return _json(sql.ask(backend, body.query))


def _add_schemas(router: APIRouter, backend: Backend) -> None:
    @router.get("/schemas", tags=["schemas"], responses=_described(list[SubjectView], "All subjects."))
    def schemas() -> Response:
        subjects = backend.now.subjects
        if subjects is None:
            raise Unreachable(f"the schema registry at {backend.registry.url} does not answer")
        return _json(subjects)

    @router.get("/schemas/{subject:path}/versions/{version}", tags=["schemas"])
    def version(subject: str, version: int) -> Response:
        found = backend.registry.version(subject, version)
        return _json({"subject": subject, "version": found.version, "id": found.id, **asdict(found.schema)})

    @router.post("/schemas/{subject:path}/versions", tags=["schemas"], summary="Register, or only check")
    def register(subject: str, body: SchemaBody) -> Response:
        schema = Schema(body.schema_, body.kind)
        if body.check:
            return _json(asdict(backend.check_schema(subject, schema)))
        return _json({"subject": subject, "id": backend.register_schema(subject, schema)}, 201)

    @router.put("/schemas/{subject:path}/compatibility", tags=["schemas"])
    def compatibility(subject: str, body: LevelBody) -> Response:
        backend.set_compatibility(subject, body.level)
        return _json({"subject": subject, "level": body.level})

    @router.delete("/schemas/{subject:path}", tags=["schemas"])
    def delete(subject: str) -> Response:
        return _json({"subject": subject, "versions": backend.delete_subject(subject)})


def _add_connectors(router: APIRouter, backend: Backend) -> None:
    @router.get("/connectors", tags=["connectors"], responses=_described(list[ConnectorView], "All connectors."))
    def connectors() -> Response:
        found = backend.now.connectors
        if found is None:
            raise Unreachable(f"the Connect worker at {backend.connectors.url} does not answer")
        return _json(found)

    @router.post("/connectors", tags=["connectors"], status_code=201)
    def create(body: ConnectorBody) -> Response:
        return _json(asdict(backend.create_connector(body.name, body.config)), 201)

    @router.get("/connectors/{name}/config", tags=["connectors"], summary="Its settings, without secrets")
    def config(name: str) -> Response:
        return _json(backend.connector_config(name))

    @router.patch("/connectors/{name}/config", tags=["connectors"], summary="Change settings; null unsets one")
    def alter(name: str, body: dict[str, str | None]) -> Response:
        return _json(asdict(backend.alter_connector(name, body)))

    @router.post("/connectors/{name}/{verb}", tags=["connectors"], summary="pause, resume, stop or restart")
    def act(name: str, verb: Literal["pause", "resume", "stop", "restart"]) -> Response:
        found = backend.connector_action(verb, name)
        return _json(asdict(found) if found else {"connector": name})

    @router.delete("/connectors/{name}", tags=["connectors"])
    def delete(name: str) -> Response:
        backend.connector_action("delete", name)
        return _json({"connector": name})
