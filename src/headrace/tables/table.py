"""Tables that pipelines write, looked at without Spark: their columns, rows, counts and history.

`read_table(path)` opens a Delta or Parquet table of this machine; rows come in Arrow batches, so the size of a table
does not matter. What a table is made of is asked of those who wrote it: Delta's log; for Parquet the folders of
finished batches. A batch that is being written, or was cut off, is never seen.
Nothing here changes a table or starts a JVM.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from headrace.errors import Failed, HeadraceError, UsageError
from headrace.tables import delta_log
from headrace.tables.delta_log import Commit, Deletion
from headrace.tables.engine import Engine, Stream, quoted
from headrace.tables.spark_types import arrow_schema, words_of

TableKind = Literal["delta", "parquet"]

_BATCH_FOLDER = re.compile(r"batch=(?P<writer>[0-9a-f]{8})-(?P<number>\d+)")
_NULL = "__HIVE_DEFAULT_PARTITION__"
#: Where Spark notes its own schema in a Parquet file.
_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"


def is_table(path: Path) -> bool:
    """Whether a table lies there: Delta's log, or Parquet files."""
    if not path.is_dir():
        return False
    return delta_log.is_delta(path) or next(path.glob("**/*.parquet"), None) is not None


@dataclass(frozen=True)
class Column:
    """A column in Spark's words."""

    name: str
    type: str
    nullable: bool = True
    #: The table's files are kept apart by its values.
    partition: bool = False


@dataclass(frozen=True)
class Query:
    """What of a table is wanted: columns (all), rows that a condition in SQL holds for (all), in which order (any)."""

    columns: Sequence[str] = ()
    where: str | None = None
    order_by: str | None = None
    limit: int | None = None


@dataclass(frozen=True)
class _File:
    path: str
    size_bytes: int
    rows: int | None = None
    values: Mapping[str, str | None] = field(default_factory=dict)
    stats: Mapping[str, Any] = field(default_factory=dict)
    deletion: Deletion | None = None


def read_table(path: str | Path) -> Table:
    """The Delta or Parquet table in that folder, as it is now, read without Spark.

    Rows come as Arrow batches:

        for batch in read_table("tables/trips").batches(Query(columns=("trip", "speed"))): ...
    """
    if "://" in str(path) and not str(path).startswith("file://"):
        raise UsageError(
            f"{path} is not on this machine",
            why="only tables in local folders can be looked at without Spark",
            hint="read it with Spark",
        )
    root = Path(str(path).removeprefix("file://")).absolute()
    if delta_log.is_delta(root):
        return DeltaTable(root)
    if is_table(root):
        return ParquetTable(root)
    raise UsageError(f"there is no table in {root}", why="neither Delta's log nor a Parquet file lies there")


class Table(ABC):
    """A table as it is when it is first looked at: what is written later is seen when it is opened again."""

    kind: TableKind

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def version(self) -> int | None:
        """Delta's number of this state of the table."""
        return None

    @property
    @abstractmethod
    def columns(self) -> tuple[Column, ...]:
        """Its columns, those that keep its files apart too."""

    @property
    @abstractmethod
    def _files(self) -> Sequence[_File]:
        """What it is made of."""

    @abstractmethod
    def history(self, limit: int = 20) -> list[Commit]:
        """What was done to the table, the newest first."""

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self._files)

    @property
    def file_count(self) -> int:
        return len(self._files)

    @property
    @abstractmethod
    def schema(self) -> Any:
        """The columns as an Arrow schema."""

    def count(self, where: str | None = None) -> int:
        """The number of rows; without a condition from what is written about the files, not from the rows."""
        if where is not None:
            return int(self._chosen(Query(where=where), ["count(*)"]).column(0)[0].as_py())
        with _explained(self.root):
            return sum(
                (_rows(file) if file.rows is None else file.rows) - (file.deletion.rows if file.deletion else 0)
                for file in self._files
            )

    def head(self, query: Query) -> Any:
        """The first rows as an Arrow table. Unordered, no more is read than is shown; ordered, no more is kept."""
        import pyarrow as pa

        limit = 10 if query.limit is None else query.limit
        columns, schema = self._columns_of(query)
        if query.where is not None or query.order_by:
            return self._chosen(replace(query, limit=limit), list(columns.values()))
        found, rows = [], 0
        for batch in self.batches(query):
            found.append(batch)
            rows += batch.num_rows
            if rows >= limit:
                break
        return pa.Table.from_batches(found, schema).slice(0, limit)

    def batches(self, query: Query | None = None) -> Iterator[Any]:
        """All rows that are wanted, as Arrow record batches, file by file; `order_by` and `limit` are for `head`."""
        query = query or Query()
        columns, _ = self._columns_of(query)
        if query.where is not None:
            with Engine() as engine:
                self.add_to(engine, ("rows",))
                yield from engine.select("rows", query.where, list(columns.values()))[1]
            return
        with _explained(self.root):
            for file in self._files:
                yield from self._batches(file, _plan(columns, self.schema))

    def _chosen(self, query: Query, columns: Sequence[str]) -> Any:
        """What SQL is needed for, as an Arrow table."""
        import pyarrow as pa

        with Engine() as engine:
            self.add_to(engine, ("rows",))
            schema, batches = engine.select("rows", query.where, columns, self._order(query.order_by), query.limit)
            return pa.Table.from_batches(list(batches), schema)

    def add_to(self, engine: Engine, path: Sequence[str]) -> None:
        """The engine knows the table by that name. Arrow skips columns, files and row groups that are not needed."""
        import pyarrow.dataset as ds
        import pyarrow.fs as fs

        layout, local = _layout(), fs.LocalFileSystem()
        whole = [self._fragment(file) for file in self._files if file.deletion is None]
        cut = [file for file in self._files if file.deletion is not None]
        sources: list[Any] = [ds.FileSystemDataset(whole, self.schema, layout, local)] if whole or not cut else []
        if cut:
            sources.append(Stream(self.schema, lambda: (batch for file in cut for batch in self._batches(file, None))))
        engine.add(path, sources)

    def _fragment(self, file: _File) -> Any:
        import pyarrow.fs as fs

        known = _known_of(file, self.schema)
        return _layout().make_fragment(file.path, fs.LocalFileSystem(), partition_expression=known)

    def _batches(self, file: _File, columns: Mapping[str, Any] | None) -> Iterator[Any]:
        import pyarrow.dataset as ds
        import pyarrow.fs as fs

        dataset = ds.FileSystemDataset([self._fragment(file)], self.schema, _layout(), fs.LocalFileSystem())
        if file.deletion is not None:
            yield from self._undeleted(file.deletion, dataset, columns)
            return
        scanner = dataset.scanner(columns=columns, batch_size=32_768, batch_readahead=1, fragment_readahead=1)
        yield from (batch for batch in scanner.to_batches() if batch.num_rows)

    def _undeleted(self, deletion: Deletion, dataset: Any, columns: Mapping[str, Any] | None) -> Iterator[Any]:
        """Deleted rows are known by their number in the file."""
        import numpy as np
        import pyarrow as pa

        gone, first = delta_log.deleted_rows(self.root, deletion), 0
        for batch in dataset.scanner(columns=columns, batch_size=32_768, batch_readahead=1).to_batches():
            kept = np.ones(batch.num_rows, bool)
            low, high = np.searchsorted(gone, (first, first + batch.num_rows))
            kept[gone[low:high] - first] = False
            first += batch.num_rows
            left = batch.filter(pa.array(kept))
            if left.num_rows:
                yield left

    def _columns_of(self, query: Query) -> tuple[dict[str, str], Any]:
        """The columns that are wanted, in SQL, and their Arrow schema."""
        import pyarrow as pa

        found = {name: self._column(name) for name in query.columns or self.schema.names}
        columns = {name: f"{sql} as {quoted(name)}" for name, (sql, _) in found.items()}
        return columns, pa.schema([(name, kind) for name, (_, kind) in found.items()])

    def _column(self, name: str) -> tuple[str, Any]:
        """The column, or the field inside of one, that the name means: in SQL, and its type."""
        import pyarrow as pa

        if name in self.schema.names:
            return quoted(name), self.schema.field(name).type
        kind: Any = pa.struct(list(self.schema))
        for part in name.split("."):
            if not pa.types.is_struct(kind) or kind.get_field_index(part) < 0:
                raise _no_such_column(name, self.schema)
            kind = kind.field(part).type
        return ".".join(map(quoted, name.split("."))), kind

    def _order(self, text: str | None) -> str | None:
        """`at`, `at desc`, in SQL."""
        if not text:
            return None
        name, _, way = text.strip().rpartition(" ")
        if way.lower() not in {"asc", "desc"} or not name:
            name, way = text.strip(), "asc"
        return f"{self._column(name.strip().strip('`'))[0]} {way}"

    def document(self) -> dict[str, Any]:
        return {
            "path": str(self.root), "kind": self.kind, "version": self.version, "rows": self.count(),
            "files": self.file_count, "bytes": self.size_bytes, "columns": [asdict(column) for column in self.columns],
        }  # fmt: skip


class DeltaTable(Table):
    """A Delta table, at its newest version."""

    kind: TableKind = "delta"

    @cached_property
    def _snapshot(self) -> delta_log.Snapshot:
        with _explained(self.root):
            return delta_log.read_snapshot(self.root)

    @property
    def version(self) -> int | None:
        return self._snapshot.version

    @property
    def columns(self) -> tuple[Column, ...]:
        keys = self._snapshot.partition_columns
        return tuple(
            Column(column["name"], words_of(column["type"]), column["nullable"], column["name"] in keys)
            for column in self._snapshot.schema["fields"]
        )

    @cached_property
    def schema(self) -> Any:
        return arrow_schema(self._snapshot.schema)

    @cached_property
    def _files(self) -> Sequence[_File]:
        return [
            _File(_absolute(self.root, f.path), f.size_bytes, f.rows, f.values, f.stats, f.deletion)
            for f in self._snapshot.files
        ]

    def history(self, limit: int = 20) -> list[Commit]:
        with _explained(self.root):
            return delta_log.read_history(self.root, limit)


class ParquetTable(Table):
    """A folder of Parquet files, in folders of batches (as pipelines write them), of partitions, or in none."""

    kind: TableKind = "parquet"

    @cached_property
    def _files(self) -> Sequence[_File]:
        found = []
        for path in self.root.glob("**/*.parquet"):
            folders = path.relative_to(self.root).parts[:-1]
            # What begins so is being written, or was cut off while it was.
            if any(part.startswith(("_", ".")) for part in (*folders, path.name)):
                continue
            values = dict(part.split("=", 1) for part in folders if "=" in part and not _BATCH_FOLDER.fullmatch(part))
            found.append((_order(folders, path), _File(str(path), path.stat().st_size, None, _unescaped(values))))
        return [file for _, file in sorted(found, key=lambda pair: pair[0])]

    @cached_property
    def _spark_schema(self) -> dict[str, Any] | None:
        """The newest file knows the newest columns; those of the oldest that it lacks are kept."""
        import pyarrow.parquet as pq

        ends = dict.fromkeys((self._files[-1].path, self._files[0].path))
        found = [(pq.read_schema(path).metadata or {}).get(_SPARK_SCHEMA, b"") for path in ends]
        if not all(found):
            return None
        columns: dict[str, Any] = {}
        for schema in found:
            columns |= {f["name"]: f for f in json.loads(schema)["fields"] if f["name"] not in columns}
        return {"type": "struct", "fields": list(columns.values())}

    @cached_property
    def schema(self) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        with _explained(self.root):
            known = self._spark_schema
            made = arrow_schema(known) if known else pq.read_schema(self._files[-1].path).remove_metadata()
            for name in self._partition_columns:
                if name not in made.names:
                    made = made.append(pa.field(name, self._partition_type(name)))
            return made

    @property
    def _partition_columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for file in self._files for name in file.values))

    def _partition_type(self, name: str) -> Any:
        import pyarrow as pa

        texts = {file.values.get(name) for file in self._files} - {None}
        return pa.int64() if all(re.fullmatch(r"-?\d{1,18}", text or "") for text in texts) else pa.string()

    @property
    def columns(self) -> tuple[Column, ...]:
        types = {f["name"]: words_of(f["type"]) for f in (self._spark_schema or {"fields": []})["fields"]}
        keys = self._partition_columns
        return tuple(Column(f.name, types.get(f.name, str(f.type)), f.nullable, f.name in keys) for f in self.schema)

    def history(self, limit: int = 20) -> list[Commit]:
        """Each batch is a folder; files that no pipeline wrote are one entry each."""
        made: dict[Path, list[_File]] = {}
        for file in self._files:
            top = self.root / Path(file.path).relative_to(self.root).parts[0]
            made.setdefault(top, []).append(file)
        newest = sorted(made, key=lambda top: (top.stat().st_mtime_ns, top.name), reverse=True)[:limit]
        with _explained(self.root):
            return [self._commit(top, made[top]) for top in newest]

    def _commit(self, top: Path, files: list[_File]) -> Commit:
        found = _BATCH_FOLDER.fullmatch(top.name)
        return Commit(
            None, int(top.stat().st_mtime * 1000), "WRITE", sum(map(_rows, files)),
            batch=int(found["number"]) if found else None, note=top.name,
        )  # fmt: skip


# -- how rows are read -------------------------------------------------------------------------------------------------


def _layout() -> Any:
    import pyarrow.dataset as ds

    return ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us"))


def _plan(columns: Iterable[str], schema: Any) -> dict[str, Any]:
    """The columns as Arrow expressions."""
    import pyarrow.compute as pc

    return {name: pc.field(name) if name in schema.names else pc.field(*name.split(".")) for name in columns}


def _no_such_column(name: str, schema: Any) -> UsageError:
    import difflib

    near = difflib.get_close_matches(name, schema.names, n=1)
    return UsageError(
        f"there is no column {name!r}",
        why=f"the table has {', '.join(schema.names)}",
        hint=f"did you mean {near[0]}?" if near else None,
    )


def _known_of(file: _File, schema: Any) -> Any:
    """What holds of every row of the file: its partition's values, the least and greatest of its numbers and times.

    Arrow skips a file of which a condition cannot be true, and fills in columns that the file does not hold.
    """
    import pyarrow.compute as pc

    known = pc.scalar(True)
    for name, text in file.values.items():
        if name in schema.names:
            value = _partition_value(text, schema.field(name).type)
            known = known & (pc.field(name).is_null() if text is None else pc.field(name) == value)
    low, high = file.stats.get("minValues", {}), file.stats.get("maxValues", {})
    nulls = file.stats.get("nullCount", {})
    for name in schema.names:
        # A column with nulls is not known to lie between two values.
        if name in low and name in high and nulls.get(name) == 0 and _is_bounded(schema.field(name).type):
            known = known & (pc.field(name) >= low[name]) & (pc.field(name) <= high[name])
    return known


def _is_bounded(kind: Any) -> bool:
    """Whole numbers only: texts and times are cut short in Delta's statistics, and a NaN is not in them."""
    import pyarrow as pa

    return bool(pa.types.is_integer(kind))


def _partition_value(text: str | None, kind: Any) -> Any:
    """Delta and Spark write partition values as text; times without a zone are UTC."""
    import pyarrow as pa

    if text is None:
        return pa.scalar(None, kind)
    if pa.types.is_timestamp(kind) and kind.tz is not None and not re.search(r"(Z|[+-]\d\d:?\d\d)$", text):
        text += "Z"
    return pa.scalar(text).cast(kind)


def _rows(file: _File) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_metadata(file.path).num_rows)


def _absolute(root: Path, path: str) -> str:
    return path.removeprefix("file://") if path.startswith(("file:/", "/")) else str(root / path)


def _order(folders: tuple[str, ...], path: Path) -> tuple[Any, ...]:
    """Batches in the order in which they were written."""
    found = _BATCH_FOLDER.fullmatch(folders[0]) if folders else None
    when = (path.parents[len(folders) - 1] if folders else path).stat().st_mtime_ns
    return (when, int(found["number"]) if found else 0, str(path))


def _unescaped(values: Mapping[str, str]) -> dict[str, str | None]:
    from urllib.parse import unquote

    return {name: None if text == _NULL else unquote(text) for name, text in values.items()}


class _explained:  # noqa: N801 - reads as a word: `with _explained(root):`
    """What Arrow or the system cannot read, in words."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        import pyarrow as pa

        if error is None or isinstance(error, HeadraceError):
            return
        if isinstance(error, FileNotFoundError):
            raise Failed(
                f"a file of the table {self.root} is gone",
                why=str(error),
                hint="the table was cleaned or wiped meanwhile: repeat the command",
            ) from None
        if isinstance(error, pa.ArrowException | OSError):
            raise Failed(f"the table {self.root} cannot be read", why=str(error).splitlines()[0]) from error
