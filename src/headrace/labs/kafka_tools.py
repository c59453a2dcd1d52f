"""Kafka's own command line tools, to compare with: what stands behind `kafka-dump-log.sh` and its like."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from headrace import Cluster, Failed, UsageError
from headrace.runtime import JarCache, default_cache, find_java, plain_environment

#: The class behind each tool, and whether it is told the address of a broker by an option of its own.
TOOLS = {
    "kafka-configs": ("kafka.admin.ConfigCommand", True),
    "kafka-console-consumer": ("org.apache.kafka.tools.consumer.ConsoleConsumer", True),
    "kafka-console-producer": ("org.apache.kafka.tools.ConsoleProducer", True),
    "kafka-consumer-groups": ("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", True),
    "kafka-dump-log": ("kafka.tools.DumpLogSegments", False),
    "kafka-producer-perf-test": ("org.apache.kafka.tools.ProducerPerformance", True),
    "kafka-topics": ("org.apache.kafka.tools.TopicCommand", True),
}
_SERVER = "--bootstrap-server"
_SMALL = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m")
# As kafka-run-class.sh starts every tool; where speed is measured, it is measured so.
_AS_KAFKA = ("-Xmx512M", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")


def tool_command(cluster: Cluster, tool: str, words: Sequence[object]) -> list[str]:
    """How the tool is run with the Java and the jars of this cluster; a tool that needs a broker is told this one."""
    if tool not in TOOLS:
        raise UsageError(f"there is no tool {tool!r}", why=f"there are {', '.join(TOOLS)}")
    kind, needs_server = TOOLS[tool]
    runtime = cluster.config.runtime
    java = find_java(runtime.java_home)
    jars = JarCache(runtime.cache or default_cache(), ivy_settings=runtime.ivy_settings)
    classpath = [*jars.classpath("tools", java), *jars.classpath("kafka", java)]
    given = [*map(str, words)]
    if needs_server and not any(word in given for word in (_SERVER, "--bootstrap-controller", "--help", "--version")):
        given = [_SERVER, cluster.bootstrap, *given]
    flags = _AS_KAFKA if tool.endswith("perf-test") else _SMALL
    return [
        str(java.executable), *flags, "-Dlog4j2.level=OFF", "-cp", os.pathsep.join(map(str, classpath)), kind, *given,
    ]  # fmt: skip


def kafka_tool(cluster: Cluster, tool: str, *words: object, timeout_s: float = 120) -> str:
    """What the tool printed; that it failed is an error with its words."""
    done = subprocess.run(
        tool_command(cluster, tool, words), capture_output=True, text=True, timeout=timeout_s, check=False,
        env=plain_environment(),
    )  # fmt: skip
    if done.returncode:
        raise Failed(f"Kafka's tool {tool} failed", why=(done.stderr or done.stdout).strip()[-300:])
    return done.stdout
