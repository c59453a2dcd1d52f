"""A cluster with a registry for the tests of pipelines; the Spark session is shared with other tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.cluster import Cluster


@pytest.fixture(scope="session")
def with_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with a schema registry."""
    cluster = Cluster(tmp_path_factory.mktemp("registry") / "home", brokers=1, services=("registry",))
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down(wipe=True)
