"""A cluster with all services beside it, started once for all tests of services."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.cluster import Cluster
from headrace.runtime.jars import JarCache, default_cache
from headrace.runtime.java import find_java


@pytest.fixture(scope="session")
def serviced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("serviced")
    plugins = folder / "plugins of mine"
    # Relative to the file: the folder that the folders of all tests are in.
    (folder / "headrace.toml").write_text('[cluster]\nconnect_files = [".."]\nready_timeout_s = 300\n')
    cluster = Cluster(folder / "home", brokers=1, services=("all",), plugins=plugins)
    put_connector(plugins / "streams")
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


def put_connector(folder: Path) -> None:
    """A connector of the user's own lies in the folder: Kafka's for files, under other names of the same length."""
    names = {"org/apache/kafka/connect/file": "com/example/connectors/ofmine", "FileStream": "MineStream"}
    names |= {old.replace("/", "."): new.replace("/", ".") for old, new in names.items()}
    folder.mkdir(parents=True)
    (jar,) = JarCache(default_cache()).classpath("connect-plugins", find_java())
    with zipfile.ZipFile(jar) as theirs, zipfile.ZipFile(folder / "mine.jar", "w") as mine:
        for entry in theirs.namelist():
            name, content = entry, theirs.read(entry)
            for old, new in names.items():
                name, content = name.replace(old, new), content.replace(old.encode(), new.encode())
            mine.writestr(name, content)


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
