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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from headrace.errors import Failed, HeadraceError, UsageError
from headrace.pipeline import delta_log
from headrace.pipeline.delta_log import Commit, Deletion
from headrace.pipeline.row_filter import field_of, no_such_column, read_filter

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
    """What of a table is wanted: columns (all), rows that a condition holds for (all), in which order (as written)."""

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
    """A table as it is when it is first looked at: what is written later is seen by whoever opens it anew."""

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
            columns = self.schema.names[:1]
            return sum(batch.num_rows for batch in self.batches(Query(columns, where)))
        with _told(self.root):
            return sum(
                (_rows(file) if file.rows is None else file.rows) - (file.deletion.rows if file.deletion else 0)
                for file in self._files
            )

    def head(self, query: Query) -> Any:
        """The first rows as an Arrow table. Unordered, no more is read than is shown; ordered, no more is kept."""
        limit = 10 if query.limit is None else query.limit
        plan = _Plan(self.schema, query)
        found = plan.output.empty_table()
        with _told(self.root):
            for batch in self._batches(plan):
                found = _appended(found, batch)
                if plan.order is None and found.num_rows >= limit:
                    break
                if plan.order is not None:
                    found = _sorted(found, plan.order).slice(0, limit)
        return found.slice(0, limit).select(list(plan.shown))

    def batches(self, query: Query | None = None) -> Iterator[Any]:
        """All rows that are wanted, as Arrow record batches, file by file; `order_by` and `limit` are for `head`."""
        plan = _Plan(self.schema, query or Query())
        with _told(self.root):
            yield from self._batches(plan)

    def _batches(self, plan: _Plan) -> Iterator[Any]:
        import pyarrow.dataset as ds
        import pyarrow.fs as fs

        layout = ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us"))
        local = fs.LocalFileSystem()
        for file in self._files:
            known = _known_of(file, self.schema)
            fragment = layout.make_fragment(file.path, local, partition_expression=known)
            dataset = ds.FileSystemDataset([fragment], self.schema, layout, local)
            if file.deletion is not None:
                yield from self._undeleted(file.deletion, dataset, plan)
                continue
            scanner = dataset.scanner(
                columns=plan.columns, filter=plan.filter, batch_size=32_768, batch_readahead=1, fragment_readahead=1
            )
            yield from (batch for batch in scanner.to_batches() if batch.num_rows)

    def _undeleted(self, deletion: Deletion, dataset: Any, plan: _Plan) -> Iterator[Any]:
        """Deleted rows are known by their number in the file, so the condition can be looked at only afterwards."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.dataset as ds

        gone, first = delta_log.deleted_rows(self.root, deletion), 0
        for batch in dataset.scanner(batch_size=32_768, batch_readahead=1).to_batches():
            kept = np.ones(batch.num_rows, bool)
            low, high = np.searchsorted(gone, (first, first + batch.num_rows))
            kept[gone[low:high] - first] = False
            first += batch.num_rows
            left = pa.Table.from_batches([batch.filter(pa.array(kept))])
            made = ds.dataset(left).to_table(columns=plan.columns, filter=plan.filter)
            yield from (found for found in made.to_batches() if found.num_rows)

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
        with _told(self.root):
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
        return _arrow_schema(self._snapshot.schema)

    @cached_property
    def _files(self) -> Sequence[_File]:
        return [
            _File(_absolute(self.root, f.path), f.size_bytes, f.rows, f.values, f.stats, f.deletion)
            for f in self._snapshot.files
        ]

    def history(self, limit: int = 20) -> list[Commit]:
        with _told(self.root):
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

        with _told(self.root):
            known = self._spark_schema
            made = _arrow_schema(known) if known else pq.read_schema(self._files[-1].path).remove_metadata()
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
        with _told(self.root):
            return [self._commit(top, made[top]) for top in newest]

    def _commit(self, top: Path, files: list[_File]) -> Commit:
        found = _BATCH_FOLDER.fullmatch(top.name)
        return Commit(
            None, int(top.stat().st_mtime * 1000), "WRITE", sum(map(_rows, files)),
            batch=int(found["number"]) if found else None, note=top.name,
        )  # fmt: skip


# -- how rows are read -------------------------------------------------------------------------------------------------


class _Plan:
    """A query against a schema: every name is known, every value fits."""

    def __init__(self, schema: Any, query: Query) -> None:
        import pyarrow as pa

        self.shown = tuple(dict.fromkeys(query.columns)) or tuple(schema.names)
        self.order = _order_by(query.order_by)
        wanted = dict.fromkeys((*self.shown, *([self.order[0]] if self.order else [])))
        fields = {name: _field(name, schema) for name in wanted}
        self.columns = {name: expression for name, (expression, _) in fields.items()}
        self.output = pa.schema([(name, kind) for name, (_, kind) in fields.items()])
        self.filter = read_filter(query.where, schema) if query.where else None
        if self.order and pa.types.is_nested(fields[self.order[0]][1]):
            raise UsageError(f"rows have no order by {self.order[0]}", why=f"it is a {fields[self.order[0]][1]}")


def _field(name: str, schema: Any) -> tuple[Any, Any]:
    found = field_of(name, schema)
    if found is None:
        raise no_such_column(name, schema)
    return found


def _order_by(text: str | None) -> tuple[str, str] | None:
    """`at`, `at desc`."""
    if not text:
        return None
    name, _, way = text.strip().rpartition(" ")
    if way.lower() in {"asc", "desc"} and name:
        return name.strip("` "), "descending" if way.lower() == "desc" else "ascending"
    return text.strip().strip("`"), "ascending"


def _sorted(found: Any, order: tuple[str, str]) -> Any:
    return found.sort_by([order])


def _appended(found: Any, batch: Any) -> Any:
    import pyarrow as pa

    return pa.concat_tables([found, pa.Table.from_batches([batch]).cast(found.schema)])


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


class _told:  # noqa: N801 - reads as a word: `with _told(root):`
    """What Arrow or the system cannot read, in words."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
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


# -- types -------------------------------------------------------------------------------------------------------------

_SIMPLE = {
    "string": "string", "long": "int64", "integer": "int32", "short": "int16", "byte": "int8", "float": "float32",
    "double": "float64", "boolean": "bool_", "binary": "binary", "date": "date32", "void": "null",
}  # fmt: skip


def words_of(kind: Any) -> str:
    """A type of Spark's schema as its DDL writes it."""
    if isinstance(kind, str):
        return {"integer": "int", "short": "smallint", "byte": "tinyint"}.get(kind, kind)
    if kind["type"] == "array":
        return f"array<{words_of(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{words_of(kind['keyType'])}, {words_of(kind['valueType'])}>"
    inner = ", ".join(f"{f['name']}: {words_of(f['type'])}" for f in kind["fields"])
    return f"struct<{inner}>"


def _arrow_schema(schema: Mapping[str, Any]) -> Any:
    import pyarrow as pa

    return pa.schema([pa.field(f["name"], _arrow_type(f["type"])) for f in schema["fields"]])


def _arrow_type(kind: Any) -> Any:
    import pyarrow as pa

    if isinstance(kind, str):
        if kind == "timestamp":
            return pa.timestamp("us", "UTC")
        if kind == "timestamp_ntz":
            return pa.timestamp("us")
        if number := re.fullmatch(r"decimal\((\d+),\s*(-?\d+)\)", kind):
            return pa.decimal128(int(number[1]), int(number[2]))
        if kind in _SIMPLE:
            return getattr(pa, _SIMPLE[kind])()
        raise UsageError(f"columns of type {kind} cannot be read without Spark")
    if kind["type"] == "array":
        return pa.list_(_arrow_type(kind["elementType"]))
    if kind["type"] == "map":
        return pa.map_(_arrow_type(kind["keyType"]), _arrow_type(kind["valueType"]))
    return pa.struct([pa.field(f["name"], _arrow_type(f["type"])) for f in kind["fields"]])
