"""What Spark's JVM is started with, and what `doctor` says about it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from headrace.runtime.jars import JarCache, default_cache, jar_lock
from headrace.runtime.java import find_java
from headrace.runtime.spark import artifact_name, pyspark_folder, pyspark_jars, spark_class_path
from tests.conftest import Headrace


def test_a_pipeline_needs_less_than_all_jars() -> None:
    cache = JarCache(default_cache())
    lean, every = (spark_class_path(cache, find_java(), every=every) for every in (False, True))
    own = [artifact.file_name for artifact in jar_lock()["spark"]]
    assert [jar.name for jar in lean[: len(own)]] == own
    names = [artifact_name(jar) for jar in every]
    for patched in ("lz4-java", "jackson-core", "jackson-databind", "jackson-module-scala_2.13", "snappy-java"):
        assert names.count(patched) == 1, f"Spark's own copy of {patched} is on the class path too"
    assert {artifact_name(jar) for jar in pyspark_jars()} <= set(names)
    assert {jar.name for jar in lean} < {jar.name for jar in every}
    left_out = " ".join(jar.name for jar in every if jar not in lean)
    assert "spark-mllib_" in left_out
    assert "hive-exec" in left_out
    assert "spark-sql_" not in left_out
    assert "hive-storage-api" not in left_out  # Spark's own columns are made of it


def test_no_jar_on_the_class_path_is_signed() -> None:
    for jar in spark_class_path(JarCache(default_cache()), find_java(), every=True):
        with zipfile.ZipFile(jar) as file:
            signatures = [name for name in file.namelist() if name.startswith("META-INF/") and name.endswith(".SF")]
        assert not signatures, f"{jar.name} is signed: it would stay out of class archives"


def test_an_unsigned_copy_has_all_classes() -> None:
    [copy] = [p for p in spark_class_path(JarCache(default_cache()), find_java()) if p.name.startswith("janino-")]
    assert copy.parent != pyspark_folder() / "jars"
    with zipfile.ZipFile(copy) as ours, zipfile.ZipFile(pyspark_folder() / "jars" / copy.name) as theirs:
        for name in theirs.namelist():
            assert name.startswith("META-INF/") or ours.read(name) == theirs.read(name)


def test_naming_the_class_path_does_not_load_pyspark() -> None:
    code = (
        "import sys, headrace.pipeline.spark.session, headrace.runtime.spark\n"
        "headrace.runtime.spark.pyspark_jars(); print('pyspark' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_doctor_finds_another_pyspark_than_the_jars_are_for(tmp_path: Path, run: Headrace) -> None:
    folder = tmp_path / "other" / "pyspark-4.1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: pyspark\nVersion: 4.1.0\n", encoding="utf-8")
    done = run("doctor", env={"PYTHONPATH": str(folder.parent)})
    assert done.code == 3
    assert "problem  pyspark 4.1.0, but the jars for Kafka and Delta are those of Spark 4.2.0" in done.out
    assert "try: pip install 'pyspark==4.2.0'" in done.out


def test_doctor_tells_which_jars_are_missing(tmp_path: Path, run: Headrace) -> None:
    done = run("doctor", env={"HEADRACE_CACHE": str(tmp_path / "cache")})
    count = len(jar_lock()["spark"])
    assert f"warning  {count} of {count} further Spark jars are not in {tmp_path / 'cache'} (26 MB)" in done.out
    assert "try: headrace pipeline run fetches and verifies them" in done.out
