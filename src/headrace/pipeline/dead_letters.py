"""Records that could not be used, kept so that nothing of them is lost and each can be sent again.

In a topic a dead letter is the original record, key, value and headers byte for byte, with our headers behind its own;
in a table the same facts are columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PREFIX = "headrace."


def as_letters(rows: DataFrame, topic: str, pipeline: str, run: str) -> DataFrame:
    """Dead and late rows of a sorted-out batch as the records of the dead-letter topic."""
    from pyspark.sql import functions as F

    return rows.select(
        "_topic", "_partition", F.lit(topic).alias("topic"), F.col("_key").alias("key"), F.col("_value").alias("value"),
        letter_headers(pipeline, run).alias("headers"),
    )  # fmt: skip


def letter_headers(pipeline: str, run: str) -> Column:
    """The original headers, and behind them what became of the record and why."""
    from pyspark.sql import functions as F

    facts = {
        "pipeline": F.lit(pipeline), "run": F.lit(run), "outcome": F.col("_outcome"), "rule": F.col("_rule"),
        "reason": F.col("_reason"), "topic": F.col("_topic"), "partition": F.col("_partition"),
        "offset": F.col("_offset"), "timestamp": F.unix_millis("_timestamp"),
    }  # fmt: skip
    ours = [
        F.struct(F.lit(PREFIX + name).alias("key"), value.cast("string").cast("binary").alias("value"))
        for name, value in facts.items()
    ]
    none = F.array().cast("array<struct<key: string, value: binary>>")
    return F.concat(F.coalesce(F.col("_headers"), none), F.array(*ours))


def as_rows(rows: DataFrame, pipeline: str, run: str) -> DataFrame:
    """The same as rows of the dead-letter table."""
    from pyspark.sql import functions as F

    return rows.select(
        F.lit(pipeline).alias("pipeline"), F.lit(run).alias("run"), F.col("_outcome").alias("outcome"),
        F.col("_rule").alias("rule"), F.col("_reason").alias("reason"), F.col("_topic").alias("topic"),
        F.col("_partition").alias("partition"), F.col("_offset").alias("offset"),
        F.col("_timestamp").alias("timestamp"), F.col("_key").alias("key"), F.col("_value").alias("value"),
        F.col("_headers").alias("headers"),
    )  # fmt: skip
