"""What a Spark session is told, by where it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.pipeline.spark.session import SessionSpec, _settings


@pytest.mark.parametrize(
    ("master", "on_loopback"),
    [
        ("local[*]", True),
        ("local-cluster[2,1,1024]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost:7077,127.0.0.1:7078", True),
        ("spark://spark.example:7077", False),
        ("spark://127.0.0.1:7077,spark.example:7077", False),
        ("k8s://https://k8s.example:6443", False),
        ("yarn", False),
    ],
)
def test_a_driver_is_bound_to_loopback_where_its_executors_are_on_this_machine(
    master: str, on_loopback: bool, tmp_path: Path
) -> None:
    conf = _settings(SessionSpec(tmp_path, master), tmp_path)
    assert (conf.get("spark.driver.host") == "127.0.0.1") is on_loopback
    assert (conf.get("spark.driver.bindAddress") == "127.0.0.1") is on_loopback


@pytest.mark.parametrize("master", ["local[2]", "yarn"])
def test_the_users_settings_win(master: str, tmp_path: Path) -> None:
    theirs = {"spark.sql.session.timeZone": "Europe/Rome", "spark.executor.extraJavaOptions": "-Dx=1"}
    conf = _settings(SessionSpec(tmp_path, master, conf=theirs), tmp_path)
    assert {name: conf[name] for name in theirs} == theirs
