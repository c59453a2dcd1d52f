"""What the tools without tables of their own share: a record becomes a row or is refused; rows go to Parquet."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import orjson
import pyarrow
from pyarrow import parquet

SCHEMA = pyarrow.schema([
    ("trip", pyarrow.int64()), ("vehicle", pyarrow.int32()), ("day", pyarrow.date32()), ("act_time", pyarrow.int32()),
    ("meters", pyarrow.int32()), ("velocity", pyarrow.int32()), ("direction", pyarrow.int32()),
    ("latitude", pyarrow.float64()), ("longitude", pyarrow.float64()), ("satellites", pyarrow.int32()),
    ("hdop", pyarrow.float64()),
])  # fmt: skip
_days: dict[str, datetime.date] = {}


def typed(value: bytes) -> dict[str, Any] | None:
    """The row of a record, None if it does not fit."""
    try:
        record = orjson.loads(value)
        if record["OPD_DATE"] not in _days:
            _days[record["OPD_DATE"]] = datetime.datetime.strptime(record["OPD_DATE"], "%d-%b-%y").date()
        return {
            "trip": int(record["EVENT_NO_TRIP"]),
            "vehicle": int(record["VEHICLE_ID"]),
            "day": _days[record["OPD_DATE"]],
            "act_time": int(record["ACT_TIME"]),
            "meters": int(record["METERS"]),
            "velocity": int(record["VELOCITY"] or 0),
            "direction": int(record["DIRECTION"] or 0),
            "latitude": float(record["GPS_LATITUDE"] or 0),
            "longitude": float(record["GPS_LONGITUDE"] or 0),
            "satellites": int(record["GPS_SATELLITES"]),
            "hdop": float(record["GPS_HDOP"]),
        }
    except (ValueError, KeyError, TypeError):
        return None


class Files:
    """FOLDER/good in Parquet, FOLDER/bad as lines."""

    def __init__(self, folder: str) -> None:
        self._good, self._bad = Path(folder, "good"), Path(folder, "bad")
        self._good.mkdir(parents=True)
        self._bad.mkdir()
        self._writer = parquet.ParquetWriter(self._good / "rows.parquet", SCHEMA)
        self._lines = (self._bad / "records.lines").open("wb")
        self._rows: list[dict[str, Any]] = []

    def add(self, value: bytes, row: dict[str, Any] | None) -> None:
        if row is None:
            self._lines.write(value + b"\n")
            return
        self._rows.append(row)
        if len(self._rows) >= 100_000:
            self._flush()

    def _flush(self) -> None:
        self._writer.write_table(pyarrow.Table.from_pylist(self._rows, SCHEMA))
        self._rows = []

    def close(self) -> None:
        if self._rows:
            self._flush()
        self._writer.close()
        self._lines.close()
