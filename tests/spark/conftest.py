"""One Spark session for all tests that need one: a JVM costs seconds, and a process has only one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

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
