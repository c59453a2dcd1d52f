"""Delta's transaction log, read without Spark: which files are the table now, and what was done to it.

A table is what its log says, never what lies in its folder: files of a write that was cut off are there too. The log is
a JSON file per version, and now and then a Parquet file that sums up all versions before it. What a table's protocol
demands of readers and this one does not know is refused by name; nothing is ever read wrongly.
This module reads. It changes no table, and needs pyarrow alone.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from headrace.errors import Failed, UsageError

LOG = "_delta_log"
# Features that change nothing for a reader of the newest version, or that are understood here.
_UNDERSTOOD = {"deletionVectors", "timestampNtz", "vacuumProtocolCheck", "appendOnly", "invariants"}
_NAME = re.compile(r"(\d{20})(?:\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet|\.json)")
_NEEDED = (
    "add.path", "add.partitionValues", "add.size", "add.modificationTime", "add.stats", "add.deletionVector",
    "metaData.schemaString", "metaData.partitionColumns", "metaData.configuration", "metaData.createdTime",
    "protocol.minReaderVersion", "protocol.readerFeatures",
)  # fmt: skip


@dataclass(frozen=True)
class Deletion:
    """Where the numbers of a file's deleted rows are written."""

    storage: str
    place: str
    offset: int
    rows: int

    @property
    def key(self) -> str:
        return f"{self.storage}{self.place}@{self.offset}"


@dataclass(frozen=True)
class DeltaFile:
    """One file of the table. `rows` is None where the log does not count them."""

    path: str
    values: Mapping[str, str | None]
    size_bytes: int
    modified_ms: int
    rows: int | None
    stats: Mapping[str, Any]
    deletion: Deletion | None = None


@dataclass(frozen=True)
class Commit:
    """One version of a table: when and by what it came to be. Counts are None where the log does not tell them."""

    version: int | None
    at_ms: int
    operation: str
    rows_added: int | None = None
    rows_updated: int | None = None
    rows_removed: int | None = None
    #: The batch of the pipeline that wrote it.
    batch: int | None = None
    note: str | None = None


@dataclass
class Snapshot:
    """The table as of its newest version."""

    root: Path
    version: int = -1
    schema: dict[str, Any] = field(default_factory=dict)
    partition_columns: tuple[str, ...] = ()
    files: list[DeltaFile] = field(default_factory=list)


def is_delta(path: Path) -> bool:
    return (path / LOG).is_dir() and any(_NAME.fullmatch(entry.name) for entry in (path / LOG).iterdir())


def read_snapshot(root: Path) -> Snapshot:
    """The newest version of the table."""
    commits, checkpoints = _listing(root)
    version, parts = checkpoints[-1] if checkpoints else (-1, [])
    later = [number for number in commits if number > version]
    if later != list(range(version + 1, version + 1 + len(later))):
        raise damaged(root, f"the log has no version {_first_gap(version, later)}")
    state = _State(root)
    for part in parts:
        state.take(_checkpoint_actions(part))
    for number in later:
        state.take(_commit_actions(commits[number]))
    return state.snapshot(later[-1] if later else version)


def read_history(root: Path, limit: int) -> list[Commit]:
    """What was done to the table, the newest first. Versions that Delta has cleaned out of its log are not known."""
    commits, _ = _listing(root)
    return [_commit(number, commits[number]) for number in sorted(commits, reverse=True)[:limit]]


def damaged(root: Path, why: str) -> Failed:
    return Failed(
        f"the Delta table {root} cannot be read", why=why, hint="a table that is being copied or restored comes whole"
    )


class _State:
    """Actions, one after the other, until only what holds is left."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files: dict[tuple[str, str], DeltaFile] = {}
        self.meta: Mapping[str, Any] | None = None
        self.protocol: Mapping[str, Any] | None = None

    def take(self, actions: Iterable[Mapping[str, Any]]) -> None:
        added: dict[tuple[str, str], DeltaFile] = {}
        for action in actions:
            # A commit that gives a file a deletion vector removes the file without it and adds it with it.
            if add := action.get("add"):
                made = _file(add)
                added[made.path, made.deletion.key if made.deletion else ""] = made
            elif remove := action.get("remove"):
                gone = _deletion(remove.get("deletionVector"))
                self.files.pop((unquote(remove["path"]), gone.key if gone else ""), None)
            elif action.get("metaData"):
                self.meta = action["metaData"]
            elif action.get("protocol"):
                self.protocol = action["protocol"]
        self.files |= added

    def snapshot(self, version: int) -> Snapshot:
        if self.meta is None or self.protocol is None:
            raise damaged(self.root, "the log does not say what columns it has")
        self._understood(self.protocol)
        files = sorted(self.files.values(), key=lambda file: (file.modified_ms, file.path))
        schema = json.loads(self.meta["schemaString"])
        return Snapshot(self.root, version, schema, tuple(self.meta.get("partitionColumns") or ()), files)

    def _understood(self, protocol: Mapping[str, Any]) -> None:
        version = int(protocol["minReaderVersion"])
        # Before features had names there were numbers: 2 meant column mapping.
        wanted = set(protocol.get("readerFeatures") or ()) if version >= 3 else {"columnMapping"}
        mapped = _pairs((self.meta or {}).get("configuration")).get("delta.columnMapping.mode", "none")
        if mapped == "none":
            wanted -= {"columnMapping"}
        if strange := sorted(wanted - _UNDERSTOOD):
            raise UsageError(
                f"the Delta table {self.root} uses what cannot be read without Spark: {', '.join(strange)}",
                why="another program has turned it on; tables that pipelines write do not use it",
                hint="read the table with Spark, or turn the feature off",
            )


def _listing(root: Path) -> tuple[dict[int, Path], list[tuple[int, list[Path]]]]:
    """The commits by version, and the checkpoints that have all of their parts, the newest last."""
    commits: dict[int, Path] = {}
    parts: dict[tuple[int, int], list[Path]] = {}
    for path in sorted((root / LOG).iterdir()):
        found = _NAME.fullmatch(path.name)
        if not found:
            continue
        if path.suffix == ".json":
            commits[int(found[1])] = path
        else:
            parts.setdefault((int(found[1]), int(found[3] or 1)), []).append(path)
    whole = [(version, paths) for (version, count), paths in sorted(parts.items()) if len(paths) == count]
    return commits, whole


def _first_gap(version: int, later: list[int]) -> int:
    return next((at for at, number in enumerate(later, version + 1) if number != at), version + 1)


def _commit_actions(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise damaged(path.parent.parent, f"{path.name}: {error}") from None


def _checkpoint_actions(path: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        for batch in pq.ParquetFile(path).iter_batches(columns=list(_NEEDED)):
            yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise damaged(path.parent.parent, f"{path.name}: {error}") from None


def _file(add: Mapping[str, Any]) -> DeltaFile:
    stats = json.loads(add["stats"]) if add.get("stats") else {}
    return DeltaFile(
        unquote(add["path"]), _pairs(add.get("partitionValues")), int(add.get("size") or 0),
        int(add.get("modificationTime") or 0), stats.get("numRecords"), stats, _deletion(add.get("deletionVector")),
    )  # fmt: skip


def _pairs(given: Any) -> dict[str, Any]:
    """A map: an object in JSON, pairs in Parquet."""
    return dict(given or {})


def _deletion(given: Mapping[str, Any] | None) -> Deletion | None:
    if not given or not given.get("storageType"):
        return None
    return Deletion(
        given["storageType"], given["pathOrInlineDv"], int(given.get("offset") or 0), int(given.get("cardinality") or 0)
    )


# -- history -----------------------------------------------------------------------------------------------------------

_ADDED = ("numTargetRowsInserted", "numOutputRows")
_UPDATED = ("numTargetRowsUpdated", "numUpdatedRows")
_REMOVED = ("numTargetRowsDeleted", "numDeletedRows")


def _commit(version: int, path: Path) -> Commit:
    info = next((action["commitInfo"] for action in _commit_actions(path) if "commitInfo" in action), None)
    if info is None:
        return Commit(version, int(path.stat().st_mtime * 1000), "unknown")
    metrics = info.get("operationMetrics") or {}
    note = info.get("userMetadata")
    return Commit(
        version, int(info.get("inCommitTimestamp") or info.get("timestamp") or path.stat().st_mtime * 1000),
        info.get("operation", "unknown"), _metric(metrics, _ADDED), _metric(metrics, _UPDATED),
        _metric(metrics, _REMOVED), _batch(note), note,
    )  # fmt: skip


def _metric(metrics: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    return next((int(metrics[name]) for name in names if name in metrics), None)


def _batch(note: str | None) -> int | None:
    found = re.search(r"\bbatch\"?:? (\d+)\b", note or "")
    return int(found[1]) if found else None


# -- deleted rows ------------------------------------------------------------------------------------------------------

_MAGIC = 1681511377
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"


def deleted_rows(root: Path, deletion: Deletion) -> Any:
    """The numbers of the deleted rows of a file, from 0, as a NumPy array in ascending order."""
    if deletion.storage == "i":
        data = _from_z85(deletion.place)
    else:
        path = _vector_file(root, deletion)
        with path.open("rb") as file:
            file.seek(deletion.offset)
            (size,) = struct.unpack(">i", file.read(4))
            data = file.read(size)
    (magic,) = struct.unpack_from("<i", data)
    if magic != _MAGIC:
        raise damaged(root, f"a deletion vector begins with {magic} instead of {_MAGIC}")
    return _bitmaps(memoryview(data)[4:])


def _vector_file(root: Path, deletion: Deletion) -> Path:
    if deletion.storage == "p":
        return Path(unquote(urlsplit(deletion.place).path))
    prefix, encoded = deletion.place[:-20], deletion.place[-20:]
    number = _from_z85(encoded).hex()
    name = "-".join((number[:8], number[8:12], number[12:16], number[16:20], number[20:32]))
    return root / prefix / f"deletion_vector_{name}.bin"


def _from_z85(text: str) -> bytes:
    return base64.b85decode(text.translate(str.maketrans(_Z85, _B85)))


def _bitmaps(data: memoryview) -> Any:
    """Roaring bitmaps of 32 bits each, behind the upper 32 bits of the numbers in them (Roaring's portable format)."""
    import numpy as np

    (count,) = struct.unpack_from("<q", data)
    at, found = 8, [np.empty(0, np.int64)]
    for _ in range(count):
        (upper,) = struct.unpack_from("<I", data, at)
        numbers, at = _bitmap(data, at + 4)
        found.append(numbers + (np.int64(upper) << 32))
    return np.concatenate(found)


def _bitmap(data: memoryview, at: int) -> tuple[Any, int]:
    import numpy as np

    (cookie,) = struct.unpack_from("<I", data, at)
    at += 4
    if cookie & 0xFFFF == 12347:
        count = (cookie >> 16) + 1
        flags = np.unpackbits(np.frombuffer(data, np.uint8, (count + 7) // 8, at), bitorder="little")[:count]
        at += (count + 7) // 8
    else:
        (count,) = struct.unpack_from("<I", data, at)
        flags = np.zeros(count, np.uint8)
        at += 4
    heads = np.frombuffer(data, "<u2", 2 * count, at).reshape(count, 2)
    # The places of the containers follow, unless there are few and some of them are runs.
    at += 4 * count + (0 if flags.any() and count < 4 else 4 * count)
    found = [np.empty(0, np.int64)]
    for (key, cardinality), is_run in zip(heads.tolist(), flags.tolist(), strict=True):
        numbers, at = _container(data, at, cardinality + 1, bool(is_run))
        found.append(numbers.astype(np.int64) + (key << 16))
    return np.concatenate(found), at


def _container(data: memoryview, at: int, cardinality: int, is_run: bool) -> tuple[Any, int]:
    """The lower 16 bits of up to 65,536 numbers: as runs, as a list, or as bits."""
    import numpy as np

    if is_run:
        (runs,) = struct.unpack_from("<H", data, at)
        pairs = np.frombuffer(data, "<u2", 2 * runs, at + 2).reshape(runs, 2).tolist()
        ranges = [np.arange(first, first + length + 1) for first, length in pairs]
        return np.concatenate(ranges), at + 2 + 4 * runs
    if cardinality <= 4096:
        return np.frombuffer(data, "<u2", cardinality, at), at + 2 * cardinality
    bits = np.unpackbits(np.frombuffer(data, np.uint8, 8192, at), bitorder="little")
    return np.flatnonzero(bits), at + 8192
