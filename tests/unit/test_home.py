from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import SetupError, UsageError
from headrace.home import Home, read_json, write_json
from tests.conftest import Headrace


@pytest.fixture(autouse=True)
def _no_named_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_HOME", raising=False)


def test_the_nearest_folder_upwards_with_a_cluster_or_a_file_is_home(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (tmp_path / "headrace.toml").touch()
    assert Home.find(start=deep).root == tmp_path / ".headrace"
    (tmp_path / "a" / ".headrace").mkdir()
    assert Home.find(start=deep).root == tmp_path / "a" / ".headrace"


def test_a_named_home_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "named"))
    assert Home.find(start=tmp_path).root == tmp_path / "named"
    assert Home.find(tmp_path / "flag", start=tmp_path).root == tmp_path / "flag"


def test_a_named_home_may_hold_its_own_settings(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    assert home.config_file == tmp_path / "headrace.toml"
    home.create()
    (home.root / "headrace.toml").touch()
    assert home.config_file == home.root / "headrace.toml"


def test_the_folder_and_its_files_are_the_owners_alone(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create()
    write_json(home.cluster_file, {"a": "ü"})
    with home.lock("up"):
        assert (home.root / "lock").stat().st_mode & 0o777 == 0o600
    assert home.root.stat().st_mode & 0o777 == 0o700
    assert home.cluster_file.stat().st_mode & 0o777 == 0o600
    assert read_json(home.cluster_file) == {"a": "ü"}


def test_who_holds_the_lock_is_told(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with (
        home.lock("up"),
        pytest.raises(SetupError, match="another headrace command is running") as raised,
        home.lock("x"),
    ):
        pytest.fail("two held the lock")
    assert str(raised.value.why).startswith("`headrace up` runs as pid ")
    with home.lock("again"):
        pass


def test_a_comma_in_the_path_is_refused_before_kafka_stumbles(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has a comma in its name"):
        Home(tmp_path / "a,b").create()


def test_without_a_cluster_every_command_says_so(run: Headrace, tmp_path: Path) -> None:
    assert run("status").out == f"no cluster in {tmp_path / '.headrace'}: headrace up creates one\n"
    assert run("status", "--json").json()["state"] == "absent"
    assert run("status").code == run("status", "--json").code == 4
    for verb in ("start", "stop", "restart", "kill", "pause", "resume", "logs"):
        done = run(verb, "1")
        assert done.code == 4
        assert f"error: there is no cluster in {tmp_path / '.headrace'}" in done.err
        assert "try: headrace up" in done.err
    assert run("down").code == 0
    assert run("down", "--wipe").code == 0
    assert not (tmp_path / ".headrace").exists()
