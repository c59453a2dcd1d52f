"""Kafka's own command line tools, to compare with: the classes behind `kafka-dump-log.sh` and its like."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from headrace.cluster import Cluster
from headrace.errors import Failed
from headrace.runtime.jars import JarCache, default_cache
from headrace.runtime.java import find_java
from headrace.runtime.process import plain_environment

DUMP_LOG = "kafka.tools.DumpLogSegments"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
CONSOLE_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"

_QUIET = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=OFF", "-Xmx256m")


def kafka_tool(
    cluster: Cluster, tool: str, *words: object, timeout_s: float = 60, flags: Sequence[str] = _QUIET
) -> str:
    """What the tool printed; that it failed is an error with its words."""
    runtime = cluster.config.runtime
    java = find_java(runtime.java_home)
    jars = JarCache(runtime.cache or default_cache(), ivy_settings=runtime.ivy_settings)
    classpath = [*jars.classpath("tools", java), *jars.classpath("kafka", java)]
    argv = [str(java.executable), *flags, "-cp", os.pathsep.join(map(str, classpath)), tool, *map(str, words)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False, env=plain_environment())
    if done.returncode:
        raise Failed(f"Kafka's tool {tool} failed", why=(done.stderr or done.stdout).strip()[-300:])
    return done.stdout
