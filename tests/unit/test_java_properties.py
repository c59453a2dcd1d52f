from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cluster.broker import local_profile, properties
from headrace.cluster.node import java_properties
from headrace.cluster.spec import plan
from headrace.config import load
from headrace.errors import ConfigError
from headrace.home import Home


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("plain", "k=plain"),
        ("with blanks inside ", "k=with blanks inside "),
        (" leading", "k=\\ leading"),
        ("C:\\dir", "k=C:\\\\dir"),
        ("a=b:c#d!e", "k=a=b:c#d!e"),
        ("Größe", "k=Gr\\u00f6\\u00dfe"),
        ("日本", "k=\\u65e5\\u672c"),
        ("🐘", "k=\\ud83d\\udc18"),
        ("tab\tnew\nline", "k=tab\\u0009new\\u000aline"),
        ("", "k="),
    ],
)
def test_a_value_is_written_as_java_reads_it(value: str, line: str) -> None:
    assert java_properties({"k": value}) == line + "\n"


def test_a_name_may_hold_what_separates_names_from_values() -> None:
    assert java_properties({"a b:c=d#e!f": "v"}) == "a\\ b\\:c\\=d\\#e\\!f=v\n"


@pytest.mark.parametrize(
    ("brokers", "replication", "in_sync"), [(1, "1", "1"), (2, "2", "1"), (3, "3", "2"), (9, "3", "2")]
)
def test_internal_topics_fit_the_cluster_size(brokers: int, replication: str, in_sync: str) -> None:
    profile = local_profile(brokers)
    for name in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
        assert profile[f"{name}.replication.factor"] == replication
    assert profile["transaction.state.log.min.isr"] == in_sync
    assert profile["min.insync.replicas"] == in_sync


def test_the_users_settings_win_over_the_profile(tmp_path: Path) -> None:
    spec = plan(load(tmp_path / "none").cluster)
    written = properties(Home(tmp_path), spec, spec.nodes[0], {"auto.create.topics.enable": "true"})
    assert written["auto.create.topics.enable"] == "true"


@pytest.mark.parametrize(
    ("name", "flag"), [("listeners", "--base-port"), ("node.id", "--node-ids"), ("log.dirs", "--home")]
)
def test_what_makes_the_node_is_not_the_users_to_set(tmp_path: Path, name: str, flag: str) -> None:
    spec = plan(load(tmp_path / "none").cluster)
    with pytest.raises(ConfigError, match=f"{name} is set by headrace") as raised:
        properties(Home(tmp_path), spec, spec.nodes[0], {name: "x"})
    assert raised.value.hint == f"headrace up {flag}"


def test_metrics_are_no_jmx_beans_unless_somebody_names_a_reporter(tmp_path: Path) -> None:
    spec = plan(load(tmp_path / "headrace.toml").cluster)
    silent = properties(Home(tmp_path), spec, spec.nodes[0], {})
    assert (silent["metric.reporters"], silent["metrics.jmx.exclude"]) == ("", ".*")
    told = properties(Home(tmp_path), spec, spec.nodes[0], {"metric.reporters": "a.Reporter"})
    assert told["metric.reporters"] == "a.Reporter"
    assert "metrics.jmx.exclude" not in told
