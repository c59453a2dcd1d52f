"""How many rows pass a place in a plan, counted while they pass."""

from __future__ import annotations

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F


class Counted:
    """The rows of one frame that the first action on it has seen."""

    def __init__(self, rows: DataFrame) -> None:
        self._seen = Observation()
        self.frame = rows.observe(self._seen, F.count(F.lit(1)))

    @property
    def rows(self) -> int:
        # Where Spark can see beforehand that no row will come, it leaves the counting out, and `get` would fail.
        row = self._seen._jo.getRow()
        return int(row.getLong(0)) if row.length() else 0
