"""What the rules of today say of dead letters, as they would be sent: nothing is sent, nothing is written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from headrace.pipeline.books.dead_letters import Letter
from headrace.pipeline.spark.session import java_alive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.pipeline.spark.classify import Classifier

_COLUMNS = (
    "key binary, value binary, topic string, partition int, offset long, timestamp_ms long, "
    "headers array<struct<key: string, value: binary>>"
)


class DryRun:
    """Takes letters a few thousand at a time, as redrive has them; `prepare` is called for the first."""

    def __init__(self, prepare: Callable[[], Classifier]) -> None:
        #: How many letters have each outcome, and by which rule.
        self.outcomes: Counter[tuple[str, str]] = Counter()
        self._prepare = prepare
        self._classifier: Classifier | None = None

    def __call__(self, chosen: Sequence[Letter]) -> None:
        """The letters are counted among the outcomes."""
        from headrace.pipeline.spark import outcomes

        if self._classifier is None:
            self._classifier = self._prepare()
            self._classifier.lookups.load()
        by_side: dict[Classifier, list[Letter]] = {}
        for letter in chosen:
            by_side.setdefault(self._classifier.of_topic(letter.topic), []).append(letter)
        with java_alive():
            for classifier, letters in by_side.items():
                classified = classifier.classify(originals(classifier.spark, letters))
                if classifier.makes_many:
                    classified = outcomes.by_record(classified, ())
                for row in classified.groupBy("_outcome", "_rule").count().collect():
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
