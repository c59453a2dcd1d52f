"""Kafka's own command line tools, to compare with: what stands behind `kafka-dump-log.sh` and its like."""

from __future__ import annotations

import os
from collections.abc import Sequence

from headrace.errors import UsageError
from headrace.runtime import JarCache, Java

#: The class behind each tool, and whether it takes the address of a broker as an option.
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


def command(tool: str, words: Sequence[object], bootstrap: str, java: Java, jars: JarCache) -> list[str]:
    """The command that runs the tool; one that needs a broker gets `bootstrap`, unless the words name another."""
    if tool not in TOOLS:
        raise UsageError(f"there is no tool {tool!r}", why=f"there are {', '.join(TOOLS)}")
    kind, needs_server = TOOLS[tool]
    given = [*map(str, words)]
    if needs_server and not any(word in given for word in (_SERVER, "--bootstrap-controller", "--help", "--version")):
        given = [_SERVER, bootstrap, *given]
    flags = _AS_KAFKA if tool.endswith("perf-test") else _SMALL
    classpath = os.pathsep.join(map(str, [*jars.classpath("tools", java), *jars.classpath("kafka", java)]))
    return [str(java.executable), *flags, "-Dlog4j2.level=OFF", "-cp", classpath, kind, *given]
