"""What Spark's stateful operators keep of a pipeline, read from its checkpoint, whether the pipeline runs or not."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from headrace.errors import UsageError
from headrace.pipeline.books.checkpoint import Checkpoint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_SIDES = ("left", "right")
_TIMERS = "TimerState"


def kept(spark: SparkSession, checkpoint: Checkpoint, key: str | None, limit: int) -> Iterator[dict[str, Any]]:
    """Entries of the state behind the last batch, at most so many of each part; with `key`, those that have it."""
    batch = checkpoint.last_committed
    if batch is None or not checkpoint.is_stateful:
        raise UsageError(
            f"there is no state in {checkpoint.root}",
            why="joins and aggregates of the modes watermark and state keep some; other pipelines keep none",
        )
    conf = checkpoint.plan_file(batch)[0].get("conf") or {}
    session = spark.newSession()
    if PROVIDER in conf:  # the reader takes the one of the session
        session.conf.set(PROVIDER, conf[PROVIDER])
    # The reader asks a part of Spark that only begins with a session's queries.
    _ = session.streams
    for name, found in _parts(session, checkpoint):
        values = F.map_values(F.from_json(F.to_json("key"), "map<string, string>"))
        wanted = found.where(F.array_contains(values, key)) if key is not None else found
        # Field by field: of a join, the row that Spark's reader gives has one more than its schema.
        shown = [F.to_json(F.struct(f"{part}.*")) for part in ("key", "value")]
        for row in wanted.select(*shown).limit(limit).collect():
            yield {"of": name, "key": json.loads(row[0]), "value": json.loads(row[1])}


def _parts(spark: SparkSession, checkpoint: Checkpoint) -> Iterator[tuple[str, DataFrame]]:
    """Each part of the state by its name: a join has two sides, a class has variables and timers."""
    root = str(checkpoint.root)
    metadata = spark.read.format("state-metadata").load(root)
    operators = metadata.select("operatorId", "operatorName", "operatorProperties").distinct()
    for number, name, properties in operators.orderBy("operatorId").collect():
        read = functools.partial(_read, spark, root, number)
        if name == "symmetricHashJoin":
            yield from ((side, read(joinSide=side)) for side in _SIDES)
        elif name.startswith("transformWithState"):
            yield from _variables(read, json.loads(properties)["stateVariables"])
        else:
            yield name, read()


def _read(spark: SparkSession, root: str, operator: int, **options: str) -> DataFrame:
    return spark.read.format("statestore").options(operatorId=operator, **options).load(root)


def _variables(read: Callable[..., DataFrame], variables: list[dict[str, str]]) -> Iterator[tuple[str, DataFrame]]:
    """What a class keeps, by the names of its variables, and when its timers expire."""
    for variable in sorted(variables, key=lambda each: (each["stateVariableType"] == _TIMERS, each["stateName"])):
        name, kind = variable["stateName"], variable["stateVariableType"]
        if kind == _TIMERS:
            found = read(readRegisteredTimers="true")
            value = F.struct(F.timestamp_millis("expiration_timestamp_ms").alias("expires"))
            yield "timers", found.select("key", value.alias("value"))
            continue
        found = read(stateVarName=name, flattenCollectionTypes="true")
        if kind == "MapState":
            value = F.struct(F.col("user_map_key").alias("key"), F.col("user_map_value").alias("value"))
        else:
            value = F.col("list_element" if kind == "ListState" else "value")
        yield name, found.select("key", value.alias("value"))
