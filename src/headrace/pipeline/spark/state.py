"""What Spark's stateful operators keep of a pipeline, read from its checkpoint, whether the pipeline runs or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from headrace.errors import UsageError
from headrace.pipeline.books.checkpoint import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_SIDES = ("left", "right")


def kept(spark: SparkSession, checkpoint: Checkpoint, key: str | None, limit: int) -> Iterator[dict[str, Any]]:
    """Entries of the state behind the last batch, at most so many of each part; with `key`, those that have it."""
    batch = checkpoint.last_committed
    if batch is None or not checkpoint.is_stateful:
        raise UsageError(
            f"there is no state in {checkpoint.root}",
            why="joins and aggregates of mode watermark keep some; other pipelines keep none",
        )
    conf = checkpoint.plan_file(batch)[0].get("conf") or {}
    session = spark.newSession()
    if _PROVIDER in conf:  # the reader takes the one of the session
        session.conf.set(_PROVIDER, conf[_PROVIDER])
    for name, found in _parts(session, checkpoint):
        values = F.map_values(F.from_json(F.to_json("key"), "map<string, string>"))
        wanted = found.where(F.array_contains(values, key)) if key is not None else found
        # Field by field: of a join, the row that Spark's reader gives has one more than its schema.
        shown = [F.to_json(F.struct(f"{part}.*")) for part in ("key", "value")]
        for row in wanted.select(*shown).limit(limit).collect():
            yield {"of": name, "key": json.loads(row[0]), "value": json.loads(row[1])}


def _parts(spark: SparkSession, checkpoint: Checkpoint) -> Iterator[tuple[str, DataFrame]]:
    """Each part of the state by its name: a join has two sides."""
    root = str(checkpoint.root)
    operators = spark.read.format("state-metadata").load(root).select("operatorId", "operatorName").distinct()
    for number, name in operators.orderBy("operatorId").collect():
        reader = spark.read.format("statestore").option("operatorId", number)
        if name == "symmetricHashJoin":
            yield from ((side, reader.option("joinSide", side).load(root)) for side in _SIDES)
        else:
            yield name, reader.load(root)
