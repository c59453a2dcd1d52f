"""Dead and late rows of a batch as dead letters: the records of a topic, or the rows of a table.

`books/dead_letters.py` says what a letter consists of, and reads them.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from headrace.pipeline.books.dead_letters import FACTS, HEADERS, LETTER_COLUMNS, PREFIX
from headrace.pipeline.books.ledger import SinkCount
from headrace.pipeline.declare.declaration import LETTERS, DeadLetters
from headrace.pipeline.spark.sinks.delta import write_delta
from headrace.pipeline.spark.sinks.kafka import write_exactly_once
from headrace.pipeline.spark.sinks.sinks import Batch


def write_dead_letters(kept: DataFrame, expected: int, place: DeadLetters, batch: Batch) -> list[SinkCount]:
    """The dead and late records of a classified batch are in their topic or table, once."""
    if not expected:
        return []
    rows, pipeline = kept.where("_outcome in ('dead', 'late')"), batch.declaration.name
    if place.kind == "topic":
        letters = as_letters(rows, place.target, pipeline, batch.run)
        written = write_exactly_once(letters, batch.into(place.target)).new_records
    else:
        written = write_delta(place.target, as_rows(rows, pipeline, batch.run), batch)
    return [SinkCount.of(LETTERS, expected, written)]


def as_letters(rows: DataFrame, topic: str, pipeline: str, run: str) -> DataFrame:
    """Dead and late rows of a classified batch as the records of the dead-letter topic."""
    return rows.select(
        "_topic", "_partition", "_offset", F.lit(topic).alias("topic"), F.col("_key").alias("key"),
        F.col("_value").alias("value"), letter_headers(pipeline, run).alias("headers"),
    )  # fmt: skip


def letter_headers(pipeline: str, run: str) -> Column:
    """The original headers, and behind them what became of the record and why."""
    facts = {
        "pipeline": F.lit(pipeline), "run": F.lit(run), "outcome": F.col("_outcome"), "rule": F.col("_rule"),
        "reason": F.col("_reason"), "topic": F.col("_topic"), "partition": F.col("_partition"),
        "offset": F.col("_offset"), "timestamp": F.unix_millis("_timestamp"),
    }  # fmt: skip
    ours = [
        F.struct(F.lit(PREFIX + name).alias("key"), facts[name].cast("string").cast("binary").alias("value"))
        for name in FACTS
    ]
    return F.concat(F.coalesce(F.col("_headers"), F.array().cast(HEADERS)), F.array(*ours))


def as_rows(rows: DataFrame, pipeline: str, run: str) -> DataFrame:
    """The same as rows of the dead-letter table."""
    return rows.select(
        F.lit(pipeline).alias("pipeline"), F.lit(run).alias("run"),
        *[F.col(f"_{name}").alias(name) for name in LETTER_COLUMNS[2:]],
    )  # fmt: skip
