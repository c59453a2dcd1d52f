"""Spark's own notes on the batches of a query, wherever its checkpoint is: their offsets and watermarks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.pipeline.books.checkpoint import Offsets, Place, parse_sources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class BatchLog:
    """`sources` is the number of the query's sources."""

    def __init__(self, spark: SparkSession, checkpoint: str, sources: int = 1) -> None:
        self._spark = spark
        self._checkpoint = checkpoint
        self._sources = sources

    def _lines(self, path: str) -> list[str]:
        if "://" not in self._checkpoint:  # else by Spark, whose job takes longer than many batches
            return Path(self._checkpoint, path).read_text(encoding="utf-8").splitlines()
        (row,) = self._spark.read.text(f"{self._checkpoint}/{path}", wholetext=True).collect()
        return str(row[0]).splitlines()

    def spans(self, number: int) -> dict[Place, tuple[int, int]]:
        """What the batch reads: from the first offset of each place to before the second."""
        first, after = self._offsets(number - 1) if number else self._initial(), self._offsets(number)
        return {place: (first.get(place, 0), offset) for place, offset in after.items()}

    def _offsets(self, number: int) -> Offsets:
        return parse_sources(self._lines(f"offsets/{number}")[2:])

    def _initial(self) -> Offsets:
        notes = [self._lines(f"sources/{source}/0")[-1] for source in range(self._sources)]
        return parse_sources(note.lstrip("\x00v1") for note in notes)

    def watermark_ms(self, number: int) -> int:
        """The watermark of a batch: state is closed by it in that batch, and rows are late by it in the next."""
        if number < 0:
            return 0
        note: dict[str, int] = json.loads(self._lines(f"offsets/{number}")[1])
        return int(note.get("batchWatermarkMs", 0))
