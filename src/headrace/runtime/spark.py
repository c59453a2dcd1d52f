"""Spark's class path: which jars a JVM of Spark is started with, and which Java flags it needs.

Most are the jars that PySpark brings; what it lacks (Kafka, Avro, Delta) comes from the lock, and so do newer versions
of some that it brings with known vulnerabilities. PySpark is found here, never imported: that takes half a second. The
order is always the same, because a class archive fits one class path.
"""

from __future__ import annotations

import importlib.util
import os
import re
import tempfile
import zipfile
from pathlib import Path

from headrace.errors import SetupError
from headrace.runtime.jars import JarCache, jar_lock
from headrace.runtime.java import Java

# What a pipeline on this machine never uses, by the beginning of the jars' names. MLlib alone costs a fifth of the
# start: it registers functions with every session, and for that wakes up Scala's reflection.
_MLLIB = ("spark-mllib", "spark-graphx", "breeze", "spire", "cats-kernel", "algebra", "lapack", "arpack", "blas",
          "JTransforms", "JLargeArrays")  # fmt: skip
_HIVE = ("spark-hive", "hive-beeline", "hive-cli", "hive-common", "hive-exec", "hive-jdbc", "hive-metastore",
         "hive-serde", "hive-service", "hive-shims", "datanucleus", "derby", "javax.jdo", "jdo-api", "HikariCP",
         "libthrift", "libfb303", "javolution", "commons-dbcp", "commons-pool-1", "jta-", "transaction-api", "jpam",
         "super-csv", "ST4", "antlr-runtime-3", "opencsv", "stax-api", "json-1.8", "oro-")  # fmt: skip
_CLUSTERS = ("spark-kubernetes", "kubernetes-", "volcano-", "vertx-", "zjsonpatch", "spark-yarn", "curator-",
             "zookeeper")  # fmt: skip
_SHELLS = ("spark-connect_", "spark-repl", "spark-pipelines", "spark-streaming_", "scala-compiler", "jline",
           "java-diff-utils")  # fmt: skip
_LEFT_OUT = (*_MLLIB, *_HIVE, *_CLUSTERS, *_SHELLS)

# Java leaves signed jars out of class archives and checks the signature of each class it loads from them. These two
# compile every query.
_SIGNED = ("commons-compiler-", "janino-")

# The list of Spark's own launcher, less the vector module: only MLlib's linear algebra looks for it, and not every Java
# has it.
_OPENED = (
    "java.base/java.lang", "java.base/java.lang.invoke", "java.base/java.lang.reflect", "java.base/java.io",
    "java.base/java.net", "java.base/java.nio", "java.base/java.util", "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic", "java.base/jdk.internal.ref", "java.base/sun.nio.ch",
    "java.base/sun.nio.cs", "java.base/sun.security.action", "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)  # fmt: skip
#: Flags without which Spark does not run on Java 17 and later.
SPARK_JVM_FLAGS = (
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
)


def spark_class_path(cache: JarCache, java: Java, *, every: bool = False) -> list[Path]:
    """All that a driver needs to run pipelines on this machine; `every`: all that PySpark has besides."""
    locked = {artifact.name for artifact in jar_lock()["spark"]}
    kept = [jar for jar in pyspark_jars() if artifact_name(jar) not in locked]
    chosen = kept if every else [jar for jar in kept if not jar.name.startswith(_LEFT_OUT)]
    return [
        *cache.classpath("spark", java),
        *(_unsigned(jar, cache.root) if jar.name.startswith(_SIGNED) else jar for jar in chosen),
    ]


def spark_additions(cache: JarCache, java: Java) -> list[Path]:
    """What PySpark's jars lack: what another Spark has to be given. Its own copies of the rest come first there."""
    theirs = {artifact_name(jar) for jar in pyspark_jars()}
    return [jar for jar in cache.classpath("spark", java) if artifact_name(jar) not in theirs]


def artifact_name(jar: Path) -> str:
    """The name of a jar without its version: `jackson-core` for `jackson-core-2.21.8.jar`."""
    return re.split(r"-(?=\d+\.)", jar.stem, maxsplit=1)[0]


def pyspark_folder() -> Path:
    """Where PySpark is installed."""
    found = importlib.util.find_spec("pyspark")
    for folder in (found.submodule_search_locations or []) if found else []:
        if Path(folder, "jars").is_dir():
            return Path(folder)
    raise SetupError(
        "the jars that PySpark ships were not found",
        why="pyspark is not installed whole",
        hint="pip install --force-reinstall pyspark",
    )


def pyspark_jars() -> list[Path]:
    """Spark's own jars."""
    return sorted((pyspark_folder() / "jars").glob("*.jar"))


def _unsigned(jar: Path, cache: Path) -> Path:
    """A copy of the jar without its signature, made once."""
    copy = cache / "unsigned" / jar.name
    if copy.is_file():
        return copy
    copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, made = tempfile.mkstemp(dir=copy.parent)
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as target, zipfile.ZipFile(jar) as source:
            for entry in source.infolist():
                if not entry.filename.startswith("META-INF/"):
                    target.writestr(entry, source.read(entry))
        Path(made).replace(copy)
    except BaseException:
        Path(made).unlink(missing_ok=True)
        raise
    return copy
