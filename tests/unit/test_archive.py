from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.runtime.archive import ClassArchive, build
from headrace.runtime.java import Java, bundled, find_java


@pytest.fixture
def java() -> Java:
    return find_java()


def named(cache: Path, java: Java, *jars: str) -> Path:
    return ClassArchive(cache, "kafka", java, [Path(jar) for jar in jars]).file


def test_another_java_or_other_jars_mean_another_archive(tmp_path: Path, java: Java) -> None:
    same = named(tmp_path, java, "a.jar", "b.jar")
    assert same == named(tmp_path, java, "a.jar", "b.jar")
    others = {
        named(tmp_path, java, "b.jar", "a.jar"),
        named(tmp_path, java, "a.jar"),
        named(tmp_path, replace(java, version="17.0.1"), "a.jar", "b.jar"),
        named(tmp_path, replace(java, home=tmp_path), "a.jar", "b.jar"),
    }
    assert same not in others
    assert len(others) == 4


def test_without_archive_the_classes_are_written_down(tmp_path: Path, java: Java) -> None:
    archive = ClassArchive(tmp_path, "kafka", java, [Path("a.jar")])
    recording = archive.jvm_flags(tmp_path / "classes.lst")
    assert f"-XX:DumpLoadedClassList={tmp_path / 'classes.lst'}" in recording
    archive.file.parent.mkdir()
    archive.file.touch()
    assert f"-XX:SharedArchiveFile={archive.file}" in archive.jvm_flags(tmp_path / "classes.lst")


def test_a_built_archive_is_whole_and_replaces_the_oldest(tmp_path: Path, java: Java) -> None:
    classes = tmp_path / "classes.lst"
    classes.write_text("java/lang/Object id: 0\njava/lang/Str", encoding="utf-8")  # as if it were still written
    folder = tmp_path / "archives"
    (folder / "build-killed").mkdir(parents=True)
    for age, name in enumerate(["kafka-new", "kafka-older", "kafka-oldest", "spark-oldest"]):
        (folder / f"{name}.jsa").touch()
        os.utime(folder / f"{name}.jsa", (1_000_000 - age, 1_000_000 - age))

    assert build(str(java.executable), "", classes, folder / "kafka-made.jsa") == 0

    assert (folder / "kafka-made.jsa").stat().st_size > 1_000_000
    names = {path.name for path in folder.iterdir()}
    assert names == {"kafka-made.jsa", "kafka-made.lst", "kafka-new.jsa", "kafka-older.jsa", "spark-oldest.jsa", "lock"}


def test_an_archive_holds_objects_too(tmp_path: Path) -> None:
    java = bundled()
    assert java
    archive = ClassArchive(tmp_path, "kafka", java, [])
    classes = tmp_path / "classes.lst"
    classes.write_text((java.home / "lib" / "classlist").read_text(encoding="utf-8"), encoding="utf-8")
    assert build(str(java.executable), "", classes, archive.file) == 0

    flags = ["-XX:+UseSerialGC", *archive.jvm_flags(classes), "-Xlog:cds=info", "-version"]
    said = subprocess.run([java.executable, *flags], capture_output=True, text=True, check=True).stdout
    assert "Loaded heap" in said


def test_an_archive_that_another_has_made_is_not_made_again(tmp_path: Path) -> None:
    made = tmp_path / "kafka-made.jsa"
    made.write_text("made", encoding="utf-8")
    assert build("no such java", "", tmp_path / "no such list", made) == 0
    assert made.read_text(encoding="utf-8") == "made"


def test_an_archive_of_a_process_that_did_little_is_made_anew_from_a_better_list(tmp_path: Path, java: Java) -> None:
    def spark() -> ClassArchive:
        return ClassArchive(tmp_path, "spark", java, [], telling=("java/util/BitSet",))

    archive = spark()
    little, much = tmp_path / "little.lst", tmp_path / "much.lst"
    little.write_text("java/lang/Object id: 0\njava/util/UUID id: 1\n", encoding="utf-8")
    much.write_text("java/util/BitSet id: 0\njava/lang/Object id: 1\nGone id: 2 source: x.jar\n", encoding="utf-8")

    assert build(str(java.executable), "", little, archive.file, archive.telling) == 0
    assert archive.exists
    assert not archive.whole
    recording = archive.jvm_flags(tmp_path / "classes.lst")
    assert f"-XX:SharedArchiveFile={archive.file}" in recording
    assert f"-XX:DumpLoadedClassList={tmp_path / 'classes.lst'}" in recording
    assert not archive.build_in_background(little, tmp_path / "builder")

    assert build(str(java.executable), "", much, archive.file, archive.telling) == 0
    assert spark().whole
    assert not any("DumpLoadedClassList" in flag for flag in archive.jvm_flags(tmp_path / "classes.lst"))
    listed = archive.file.with_suffix(".lst").read_text(encoding="utf-8").split()
    assert listed == ["java/lang/Object", "java/util/UUID", "java/util/BitSet"]


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    classes = tmp_path / "classes.lst"
    classes.write_text("java/lang/Object id: 0\n", encoding="utf-8")
    assert build("/bin/false", "", classes, tmp_path / "archives" / "kafka-x.jsa") != 0
    assert [path.name for path in (tmp_path / "archives").iterdir()] == ["lock"]
