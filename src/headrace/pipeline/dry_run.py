"""What the rules of today say of dead letters, as they would be sent: nothing is sent, nothing is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.pipeline.dead_letters import Letter
from headrace.pipeline.session import java_alive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.pipeline.flow import Flow

_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset long, timestamp_ms long, "
    "headers array<struct<key: string, value: binary>>"
)


class Trial:
    """Takes letters a few thousand at a time, as redrive has them; `prepare` is called for the first."""

    def __init__(self, prepare: Callable[[], Flow]) -> None:
        #: How many letters have each outcome, and by which rule.
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self._prepare = prepare
        self._flow: Flow | None = None

    def __call__(self, chosen: Sequence[Letter]) -> None:
        """The letters are counted among the outcomes."""
        from headrace.pipeline import many

        if self._flow is None:
            self._flow = self._prepare()
        with java_alive():
            sorted_out = self._flow.sort_out(originals(self._flow.spark, chosen))
            if self._flow.makes_many:
                sorted_out = many.by_record(sorted_out, ())
            for row in sorted_out.groupBy("_outcome", "_rule").count().collect():
                self.outcomes[row["_outcome"], row["_rule"] or ""] += row["count"]


def originals(spark: SparkSession, found: Sequence[Letter]) -> DataFrame:
    """The original records of the letters, in the columns of Spark's Kafka source: what a pipeline would read."""
    rows = [
        (n.key, n.value, n.topic, n.partition, n.offset, n.timestamp_ms if n.timestamp_ms >= 0 else None, n.headers)
        for n in found
    ]
    return spark.createDataFrame(rows, _COLUMNS).selectExpr(
        "key", "value", "topic", "partition", "offset", "timestamp_millis(timestamp_ms) as timestamp",
        "0 as timestampType", "headers",
    )  # fmt: skip
