"""A cluster with a registry and a Connect worker beside it, started once for all tests of services."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cluster import Cluster


@pytest.fixture(scope="session")
def serviced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("serviced") / "home", brokers=1, services=("registry", "connect"))
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down(wipe=True)


@pytest.fixture
def whole(serviced: Cluster) -> Iterator[Cluster]:
    """The same, to kill services of; after the test all of them run again."""
    yield serviced
    serviced.up()


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
