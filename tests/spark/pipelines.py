"""Pipelines in a test's folder: declared as text, run on the shared session, looked at afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.home import Home
from headrace.kafka.client import connect
from headrace.pipeline.pipeline import Pipeline, RunObserver, RunReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Record = tuple[bytes | None, bytes | None] | tuple[bytes | None, bytes | None, int]


class Workshop:
    """A folder with a headrace.toml, a cluster and a session."""

    def __init__(self, folder: Path, cluster: Any, spark: SparkSession, registry: str | None = None) -> None:
        self.folder = folder
        self.cluster = cluster
        self.spark = spark
        self.registry = registry
        self.file = folder / "headrace.toml"
        self.home = Home(folder / ".headrace")
        self.connection = connect(cluster)

    def declare(self, text: str, **names: str) -> None:
        for name, value in names.items():
            text = text.replace(f"<{name}>", value)
        self.file.write_text(text, encoding="utf-8")

    def pipeline(self, name: str = "p") -> Pipeline:
        return Pipeline.from_file(self.file, name, self.home)

    def run(self, name: str = "p", **callbacks: Any) -> RunReport:
        return self.pipeline(name).run(
            self.cluster, once=True, spark=self.spark, registry=self.registry, observer=RunObserver(**callbacks)
        )

    def rows(self, table: str) -> list[dict[str, Any]]:
        found = self.spark.read.format("delta").load(str(self.folder / table))
        return [row.asDict(recursive=True) for row in found.collect()]

    def dead(self, name: str = "p") -> list[dict[str, Any]]:
        """The dead letters of a pipeline that declares no place for them."""
        folder = self.home.root / "pipelines" / name / "dead_letters"
        return self.rows(str(folder)) if folder.exists() else []


def send(cluster: Any, topic: str, values: Iterable[Any], *, key: str | None = None) -> None:
    """Each value as it is if it is bytes or None, else as JSON; all acknowledged."""
    producer = connect(cluster).producer({"message.max.bytes": 10_000_000})
    failed: list[Any] = []

    def told(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error)

    for number, value in enumerate(values):
        data = value if isinstance(value, bytes | None) else json.dumps(value).encode()
        producer.produce(topic, data, key=key or str(number % 7), on_delivery=told)
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not failed, failed


def totals(report: RunReport) -> Mapping[str, int]:
    """What became of the records, without what did not happen."""
    assert report.run.balanced, report.run.unbalanced
    assert all(line.balanced for line in report.ledger)
    return {outcome: count for outcome, count in report.run.outcomes.items() if count}
