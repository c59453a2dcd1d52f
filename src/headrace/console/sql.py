"""What the console does with SQL: one read-only query at a time for each, with limits on memory, time and rows."""

from __future__ import annotations

import threading
import time
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from headrace.console.backend import Backend
from headrace.errors import Failed, UsageError
from headrace.query import sql
from headrace.tables import Limits

if TYPE_CHECKING:
    import pyarrow as pa

_LIMITS = Limits(memory="512MB", threads=2, timeout_s=30, spill=False)
_MOST_ROWS = 1000
_LONGEST = 20_000
# The memory of the console is limited by how many queries run at once.
_FREE = threading.BoundedSemaphore(2)


class ColumnView(msgspec.Struct, frozen=True, kw_only=True):
    """A column of a result: its type, and how it can be drawn."""

    name: str
    type: str
    kind: Literal["number", "time", "text", "other"]


class ResultView(msgspec.Struct, frozen=True, kw_only=True):
    """The rows of a query, at most the first thousand, and what the user should know about them."""

    columns: tuple[ColumnView, ...]
    rows: list[list[Any]]
    more: bool
    seconds: float
    notes: tuple[str, ...]


def ask(backend: Backend, query: str) -> ResultView:
    """The result of the query over the tables of the project and the topics of this Kafka."""
    if len(query) > _LONGEST:
        raise UsageError(f"the query is longer than {_LONGEST:,} characters")
    if not _FREE.acquire(blocking=False):
        raise Failed("other queries are running", why="the console runs two at a time", hint="try again in a moment")
    try:
        return _ask(backend, query)
    finally:
        _FREE.release()


def _ask(backend: Backend, query: str) -> ResultView:
    began = time.monotonic()
    cluster = backend.target.cluster
    home = cluster.home if cluster else None
    with sql(query, backend.target.connection, home=home, registry=backend.target.registry, limits=_LIMITS) as result:
        # Two columns may have the same name, so rows are lists.
        rows = [list(row.values()) for row in islice(result.plain_rows(), _MOST_ROWS + 1)]
        columns = tuple(ColumnView(name=f.name, type=str(f.type), kind=_kind(f.type)) for f in result.schema)
        return ResultView(
            columns=columns, rows=rows[:_MOST_ROWS], more=len(rows) > _MOST_ROWS,
            seconds=round(time.monotonic() - began, 3), notes=result.notes,
        )  # fmt: skip


def _kind(given: pa.DataType) -> Literal["number", "time", "text", "other"]:
    import pyarrow as pa

    types = pa.types
    if types.is_integer(given) or types.is_floating(given) or types.is_decimal(given):
        return "number"
    if types.is_timestamp(given) or types.is_date(given):
        return "time"
    return "text" if types.is_string(given) or types.is_dictionary(given) or types.is_boolean(given) else "other"
