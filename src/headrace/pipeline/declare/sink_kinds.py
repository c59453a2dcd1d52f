"""The kinds of sinks: what is known of each without Spark, and which class writes its rows.

A kind is a name in `into`, as `delta` in `into = { delta = "FOLDER" }`. The class is loaded when a run writes
(`spark/sinks/sinks.py` says what it has to do). `register_sink` adds a kind to this process; a package adds one to all
processes by an entry point of the group `headrace.sinks`: NAME = "module:Class".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from headrace.errors import NotFound, UsageError

_GROUP = "headrace.sinks"


@dataclass(frozen=True)
class SinkKind:
    """What the rest of headrace asks of a kind of sink."""

    name: str
    #: The class that writes rows, or `module:Class`.
    writer: type | str
    #: The keys of a declared sink that not every kind has.
    keys: tuple[str, ...] = ()
    #: Of a folder that headrace can read as a table: its format.
    table: Literal["delta", "parquet"] | None = None
    is_topic: bool = False
    #: Whether rows that it has can be replaced: an aggregate changes as more records come.
    replaces: bool = False
    #: False where there is one target only, which has no name.
    has_target: bool = True
    #: What happens when the same records are read again.
    again: str = "its rows are written again"


_TWICE = "its rows are written again and will be duplicated; to rebuild the table, remove it first"
_DELTA = ("partition_by", "changes", "upsert")
_WRITERS = "headrace.pipeline.spark.sinks"
_BUILT_IN = (
    SinkKind("delta", f"{_WRITERS}.delta:DeltaWriter", _DELTA, table="delta", replaces=True, again=_TWICE),
    SinkKind("parquet", f"{_WRITERS}.parquet:ParquetWriter", ("partition_by",), table="parquet", again=_TWICE),
    SinkKind(
        "topic", f"{_WRITERS}.topic:TopicWriter", ("key", "format"), is_topic=True,
        again="its rows are sent again, and consumers get them twice",
    ),
    SinkKind(
        "postgres", f"{_WRITERS}.postgres:PostgresWriter", ("table", "key", "password_file"), replaces=True,
        again="its rows are written again: they replace the rows with the same key; without a key they are duplicated",
    ),
    SinkKind("console", f"{_WRITERS}.console:ConsoleWriter", has_target=False, again="rows are shown again"),
)  # fmt: skip
_known = {kind.name: kind for kind in _BUILT_IN}


def register_sink(name: str, writer: type | str) -> None:
    """Pipelines of this process can name the sink in `into`; `writer` is a `SinkWriter`, or `module:Class` of one."""
    if any(name == kind.name for kind in _BUILT_IN):
        raise UsageError(f"cannot register a sink {name!r}", why="headrace has a sink of that name")
    _known[name] = SinkKind(name, writer)


def kind_names(keys: Iterable[str]) -> tuple[str, ...]:
    """The known kinds. Other packages are asked only if one of the keys is neither a kind nor a key of one."""
    if not set(keys) <= {*_known, "select", "where", "aggregate", *all_keys()}:
        from importlib.metadata import entry_points

        for point in entry_points(group=_GROUP):
            _known.setdefault(point.name, SinkKind(point.name, point.value))
    return tuple(_known)


def all_keys() -> tuple[str, ...]:
    """The keys that only some kinds have."""
    return tuple(dict.fromkeys(key for kind in _BUILT_IN for key in kind.keys))


def sink_kind(name: str) -> SinkKind:
    """What is known of that kind."""
    if name not in _known and name not in kind_names([name]):
        raise NotFound(f"there is no sink {name!r}", why=f"known are {', '.join(_known)}")
    return _known[name]
