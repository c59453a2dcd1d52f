"""What tests of pipelines work with; the Spark session is shared with other tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.cluster import Cluster
from tests.spark.pipelines import Workshop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def shop(tmp_path: Path, headrace_cluster: Any, spark: SparkSession) -> Workshop:
    """Pipelines in the test's own folder."""
    return Workshop(tmp_path, headrace_cluster, spark)


@pytest.fixture(scope="session")
def with_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with a schema registry."""
    cluster = Cluster(tmp_path_factory.mktemp("registry") / "home", brokers=1, services=("registry",))
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down(wipe=True)
