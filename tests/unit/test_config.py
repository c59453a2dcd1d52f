from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace.config import KEYS, Config, load
from headrace.errors import ConfigError
from tests.conftest import Headrace


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "headrace.toml"


def loaded(file: Path, text: str, **more: Mapping[str, object]) -> Config:
    file.write_text(text, encoding="utf-8")
    return load(file, more.get("flags"), more.get("remembered"))


def test_a_value_comes_from_the_first_place_that_has_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags, remembered = {"cluster.brokers": 5}, {"cluster.brokers": 2}
    monkeypatch.setenv("HEADRACE_BROKERS", "4")
    file.write_text("[cluster]\nbrokers = 6\n", encoding="utf-8")
    seen = [load(file, flags, remembered), load(file, {}, remembered)]
    monkeypatch.delenv("HEADRACE_BROKERS")
    seen.append(load(file, {}, remembered))
    file.unlink()
    seen += [load(file, {}, remembered), load(file)]

    assert [(c.cluster.brokers, c.origins["cluster.brokers"]) for c in seen] == [
        (5, "flag"),
        (4, "environment (HEADRACE_BROKERS)"),
        (6, "headrace.toml"),
        (2, "this cluster"),
        (3, "default"),
    ]


def test_kafka_properties_of_all_places_add_up(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_KAFKA", 'a=environment b=environment c="two words, quoted" d=')
    config = loaded(
        file,
        '[cluster.kafka]\nb = "file"\nd = "file"\ne = "file"\n',
        flags={"cluster.kafka": {"a": "flag"}},
        remembered={"cluster.kafka": {"e": "remembered", "f": "remembered"}},
    )
    assert config.cluster.kafka == {
        "a": "flag", "b": "environment", "c": "two words, quoted", "e": "file", "f": "remembered",
    }  # fmt: skip
    assert config.origins["cluster.kafka"] == "this cluster + headrace.toml + environment (HEADRACE_KAFKA) + flag"

    monkeypatch.setenv("HEADRACE_KAFKA", "no pairs")
    with pytest.raises(ConfigError, match="environment variable HEADRACE_KAFKA is 'no pairs'"):
        loaded(file, "", flags={"cluster.kafka": {"a": "flag"}})


def test_every_key_has_a_value_and_an_origin(file: Path) -> None:
    config = load(file)
    for key in KEYS:
        assert config.value(key.name) == key.default
        assert config.origins[key.name] == "default"


def test_an_unknown_key_is_named_with_its_line_and_the_nearest_name(file: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        loaded(file, "[cluster]\nbrokers = 3\n\nbrokrs = 4\n")
    assert raised.value.problem == "headrace.toml, line 4: unknown setting cluster.brokrs"
    assert raised.value.hint == "did you mean cluster.brokers?"


def test_an_unknown_table_is_named_with_its_line(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"headrace.toml, line 1: unknown setting clusters") as raised:
        loaded(file, "[clusters]\nbrokers = 3\n")
    assert raised.value.hint == "did you mean cluster?"


def test_a_table_given_as_a_value_is_refused_in_words(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"headrace.toml, line 1: cluster is not a table") as raised:
        loaded(file, "cluster = 3\n")
    assert raised.value.hint == "write [cluster], then a line for each setting"


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("brokers = 'three'", "a whole number is expected"),
        ("brokers = true", "a whole number is expected"),
        ("brokers = 2.5", "a whole number is expected"),
        ("racks = ['a', '']", "the list contains an empty name"),
        ("racks = 5", "a list is expected"),
        ("node_ids = [1, 'two']", "a whole number is expected"),
        ("node_ids = 7", "a list is expected"),
        ("kafka = 'log.retention.ms'", "pairs name=value, separated by spaces, are expected"),
        ("kafka = 3", "a table of Kafka properties is expected"),
    ],
)
def test_a_wrong_value_is_named_with_its_line(file: Path, line: str, why: str) -> None:
    with pytest.raises(ConfigError) as raised:
        loaded(file, f"# a comment\n[cluster]\n{line}\n")
    assert raised.value.problem.startswith(f"headrace.toml, line 3: cluster.{line.split(' ')[0]} is ")
    assert raised.value.why == why


def test_a_wrong_value_in_the_environment_names_the_variable(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_MIN_FREE_DISK", "lots")
    with pytest.raises(ConfigError, match="environment variable HEADRACE_MIN_FREE_DISK is 'lots'") as raised:
        load(file)
    assert raised.value.why == "a size is expected, like 500MB or 2GB"


@pytest.mark.parametrize(
    ("text", "size"), [("2GB", 2 * 10**9), ("500 MB", 5 * 10**8), ("1.5k", 1500), ("1073741824", 1073741824)]
)
def test_sizes_are_read_with_their_units(file: Path, text: str, size: int) -> None:
    assert loaded(file, f"[runtime]\nmin_free_disk = '{text}'\n").runtime.min_free_disk == size


def test_kafka_properties_may_be_quoted_or_not(file: Path) -> None:
    config = loaded(
        file,
        """
        [cluster.kafka]
        "log.retention.ms" = 86400000
        log.segment.bytes = 1048576
        auto.create.topics.enable = true
        """,
    )
    assert config.cluster.kafka == {
        "log.retention.ms": "86400000",
        "log.segment.bytes": "1048576",
        "auto.create.topics.enable": "true",
    }


def test_kafka_properties_add_up_and_an_empty_one_takes_back(file: Path) -> None:
    text = "[cluster.kafka]\nnum.partitions = 2\nlog.retention.ms = 5\n"
    remembered = {"cluster.kafka": {"num.partitions": "9", "num.io.threads": "4", "queued.max.requests": "7"}}
    flags = {"cluster.kafka": {"log.retention.ms": "6", "queued.max.requests": ""}}
    config = loaded(file, text, flags=flags, remembered=remembered)
    assert config.cluster.kafka == {"num.partitions": "2", "num.io.threads": "4", "log.retention.ms": "6"}
    assert config.origins["cluster.kafka"] == "this cluster + headrace.toml + flag"


@pytest.mark.parametrize("content", [b"[cluster\n", b"[cluster]\nbrokers = \xff\n"])
def test_a_file_that_is_not_toml_is_a_configuration_error(file: Path, content: bytes, run: Headrace) -> None:
    file.write_bytes(content)
    done = run("config")
    assert done.code == 2
    assert str(file) in done.err
    assert "why: " in done.err


def test_the_command_shows_every_value_with_its_origin(file: Path, run: Headrace) -> None:
    file.write_text("[cluster]\nbrokers = 2\n[cluster.kafka]\nnum.partitions = 4\n", encoding="utf-8")
    done = run("config", env={"HEADRACE_READY_TIMEOUT_S": "77"})
    assert done.code == 0
    assert f"file {file}" in done.err
    rows = {line.split()[0]: line for line in done.out.splitlines()}
    assert set(rows) == {"SETTING", *(key.name for key in KEYS)}
    assert rows["cluster.brokers"].split()[1:3] == ["2", "headrace.toml"]
    assert rows["cluster.kafka"].split()[1:3] == ["num.partitions=4", "headrace.toml"]
    assert rows["cluster.ready_timeout_s"].split()[1:4] == ["77", "environment", "(HEADRACE_READY_TIMEOUT_S)"]
    assert rows["cluster.racks"].split()[1:3] == ["-", "default"]


def test_the_command_tells_scripts_the_same(file: Path, run: Headrace) -> None:
    file.write_text("[cluster]\nbrokers = 2\n", encoding="utf-8")
    told = run("config", "--json").json()
    assert told["cluster.brokers"] == {"value": 2, "origin": "headrace.toml", "environment": "HEADRACE_BROKERS"}
    assert set(told) == {key.name for key in KEYS}
