"""Other people's clients, unchanged: kafka-python, and Kafka's own tools."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest

from headrace.cluster import Cluster
from headrace.runtime.jars import JarCache, default_cache
from headrace.runtime.java import Java, find_java
from headrace.runtime.process import plain_environment

MakeTopic = Callable[..., str]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # kafka-python reads its files in a deprecated way
def test_kafka_python_writes_and_reads(headrace_cluster: Cluster, headrace_topic: MakeTopic) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    topic = headrace_topic(partitions=3)
    servers = headrace_cluster.bootstrap.split(",")
    producer = KafkaProducer(bootstrap_servers=servers, acks="all")
    acknowledgements = [producer.send(topic, b"%d" % number, key=b"%d" % (number % 7)) for number in range(1000)]
    assert {each.get(30).topic for each in acknowledgements} == {topic}
    producer.close()

    consumer = KafkaConsumer(
        topic, bootstrap_servers=servers, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=30_000
    )
    found = [record.value for _, record in zip(range(1000), consumer, strict=False)]
    consumer.commit()
    consumer.close()
    assert sorted(map(int, found)) == list(range(1000))


@pytest.fixture(scope="module")
def java() -> Java:
    return find_java()


@pytest.fixture(scope="module")
def tool(java: Java, headrace_cluster: Cluster) -> Callable[..., str]:
    """Runs a class of Kafka's own tools against the cluster; what it printed."""
    jars = JarCache(default_cache())
    classpath = os.pathsep.join(map(str, [*jars.classpath("kafka", java), *jars.classpath("tools", java)]))

    def use(name: str, *words: str, stdin: str = "") -> str:
        command = [str(java.executable), "-cp", classpath, f"org.apache.kafka.tools.{name}",
                   "--bootstrap-server", headrace_cluster.bootstrap, *words]  # fmt: skip
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=120, check=False, env=plain_environment()
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return use


def test_kafkas_own_tools_create_write_and_read(tool: Callable[..., str], headrace_topic: MakeTopic) -> None:
    topic = f"{headrace_topic()}-by-tool"
    tool("TopicCommand", "--create", "--topic", topic, "--partitions", "2", "--replication-factor", "3")
    described = tool("TopicCommand", "--describe", "--topic", topic)
    assert f"Topic: {topic}" in described
    assert "PartitionCount: 2" in described
    assert "ReplicationFactor: 3" in described
    tool("ConsoleProducer", "--topic", topic, stdin="one\ntwo\nthree\n")
    read = tool(
        "consumer.ConsoleConsumer", "--topic", topic, "--from-beginning", "--max-messages", "3", "--timeout-ms", "60000"
    )
    assert sorted(read.split()) == ["one", "three", "two"]
