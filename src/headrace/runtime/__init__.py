"""What every process that headrace starts stands on: a Java, verified jars, class archives, process care.

Both the cluster and the pipelines start JVMs; neither may know the other, so what they share lives here. The names load
when they are used: who only waits needs neither psutil nor the lock of the jars.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.runtime.archive import ClassArchive
    from headrace.runtime.jars import JarCache, default_cache, jar_lock, locked_version
    from headrace.runtime.java import Java, find_java, java_warning
    from headrace.runtime.periodic import Periodic
    from headrace.runtime.process import (
        MARKER,
        ProcessHandle,
        ProcessRecord,
        ProcessState,
        Supervised,
        end_stray,
        ended_like_ctrl_c,
        marked_processes,
        memory_bytes,
        plain_environment,
        strays,
    )
    from headrace.runtime.spark import SPARK_JVM_FLAGS, pyspark_folder, pyspark_jars, spark_additions, spark_class_path
    from headrace.runtime.waiting import NotYet, eventually
else:
    from headrace.lazy import lazy_exports

    __getattr__, __all__ = lazy_exports(__name__, {
        "archive": ["ClassArchive"],
        "jars": ["JarCache", "default_cache", "jar_lock", "locked_version"],
        "java": ["Java", "find_java", "java_warning"],
        "periodic": ["Periodic"],
        "process": ["MARKER", "ProcessHandle", "ProcessRecord", "ProcessState", "Supervised", "end_stray",
            "ended_like_ctrl_c", "marked_processes", "memory_bytes", "plain_environment", "strays"],
        "spark": ["SPARK_JVM_FLAGS", "pyspark_folder", "pyspark_jars", "spark_additions", "spark_class_path"],
        "waiting": ["NotYet", "eventually"],
    })  # fmt: skip
