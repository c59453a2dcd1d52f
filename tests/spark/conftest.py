"""One Spark session for all tests that need one: a JVM costs seconds, and a process has only one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from headrace.cluster import Cluster
from headrace.pipeline.session import SessionSpec, start_spark, stop_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from headrace.pipeline.flow import SETTINGS

    try:
        yield start_spark(SessionSpec(folder=tmp_path_factory.mktemp("spark") / "driver", conf=SETTINGS))
    finally:
        stop_spark()


@pytest.fixture(scope="session")
def with_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with a schema registry."""
    cluster = Cluster(tmp_path_factory.mktemp("registry") / "home", brokers=1, services=("registry",))
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down(wipe=True)
