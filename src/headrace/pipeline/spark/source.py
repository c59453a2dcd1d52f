"""Kafka as Spark's source: where to begin, how much at a time, and librdkafka's properties in Java's names."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import UsageError
from headrace.pipeline.books.checkpoint import Place, source_line
from headrace.pipeline.declare.declaration import Declaration
from headrace.text import parse_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.kafka import Connection

# Spark's Kafka source reads 2.5 times faster with these than with the client's defaults: a fetch brings megabytes.
# There is no fetch.min.bytes among them: a small batch would wait for bytes that are not there yet.
_TUNED = {
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(16 << 20),
    "kafka.fetch.max.bytes": str(64 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
    # A consumer asks for more as soon as it has something, and the question waits at the broker until records come. A
    # batch would first wait for that answer, half a second by default, although its own records are there.
    "kafka.fetch.max.wait.ms": "20",
}
# To read a partition in two tasks costs a second start: not for partitions that are a little larger than others.
_UNEVEN = 1.25
# A record of an aborted transaction was never written, as far as anybody may know.
_COMMITTED = {"kafka.isolation.level": "read_committed"}
_SAME_NAMES = (
    "security.protocol", "ssl.key.password", "ssl.endpoint.identification.algorithm", "client.id", "client.rack",
    "request.timeout.ms", "metadata.max.age.ms", "reconnect.backoff.ms", "reconnect.backoff.max.ms",
)  # fmt: skip


def check(spark: SparkSession, declaration: Declaration, connection: Connection) -> None:
    """Kafka's consumer and Spark's source take what is declared; neither is asked for records."""
    from headrace.pipeline.spark import internals
    from headrace.pipeline.spark.classify import errors_at

    known = internals.consumer_properties(spark)
    for name in declaration.kafka:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            example = 'the names are those of Java\'s client: "fetch.max.bytes" = 1000000'
            raise declaration.wrong(
                f"Kafka's consumer has no property {name}", "kafka", name,
                hint=f"did you mean {near[0]}?" if near else example,
            )  # fmt: skip
    for name, reason in internals.invalid_consumer_properties(spark, declaration.kafka):
        raise declaration.wrong(reason, "kafka", name)
    with errors_at(declaration, "kafka" if declaration.kafka else "start"):
        stream(spark, declaration, connection)


def stream(
    spark: SparkSession, declaration: Declaration, connection: Connection, *, latency: bool = False
) -> DataFrame:
    """The topics, batch by batch; with `latency` as records come, for real-time mode."""
    in_batches = {"maxOffsetsPerTrigger": str(declaration.max_records_per_batch), **_tasks(spark, declaration)}
    given = {
        "subscribe": ",".join(declaration.topics),
        **start_options(declaration),
        **({} if latency else in_batches),
        **_kafka(declaration, connection),
    }
    return spark.readStream.format("kafka").options(**given).load()


def read_again(
    spark: SparkSession, declaration: Declaration, connection: Connection, spans: Mapping[Place, tuple[int, int]]
) -> DataFrame:
    """The records of a batch as plain rows: from the first offset of each place to before the second."""
    assigned: dict[str, list[int]] = {}
    for topic, partition in sorted(spans):
        assigned.setdefault(topic, []).append(partition)
    given = {
        "assign": json.dumps(assigned),
        "startingOffsets": source_line({place: first for place, (first, _) in spans.items()}),
        "endingOffsets": source_line({place: after for place, (_, after) in spans.items()}),
        **_tasks(spark, declaration),
        **_kafka(declaration, connection),
    }
    return spark.read.format("kafka").options(**given).load()


def _kafka(declaration: Declaration, connection: Connection) -> dict[str, str]:
    """Whose records, and which of them; what the user has set comes last."""
    return {
        "kafka.bootstrap.servers": connection.bootstrap,
        "includeHeaders": "true",
        # Expired or deleted offsets stop the query; they must not shrink a batch without a word.
        "failOnDataLoss": "true",
        **_COMMITTED,
        **{f"kafka.{name}": value for name, value in java_properties(connection.properties).items()},
        **{f"kafka.{name}": value for name, value in declaration.kafka.items()},
    }


def _tasks(spark: SparkSession, declaration: Declaration) -> dict[str, str]:
    """A topic with fewer partitions than there are slots keeps all of them busy, unless its order is to be kept."""
    keeps_order = any(sink.type.is_topic for sink in declaration.sinks)
    tasks = 1 if keeps_order else spark.sparkContext.defaultParallelism
    return {"maxRecordsPerPartition": str(int(_UNEVEN * declaration.max_records_per_batch / tasks) + 1), **_TUNED}


def start_options(declaration: Declaration) -> dict[str, str]:
    """Holds for a new checkpoint only."""
    start = declaration.start
    if start in {"beginning", "earliest"}:
        return {"startingOffsets": "earliest"}
    if start in {"end", "latest"}:
        return {"startingOffsets": "latest"}
    if start.isdigit() and len(start) < 10:
        raise declaration.wrong(
            f"start is {start!r}", "start", hint='"beginning", "end", a time, or {"topic": {"0": 17}} as JSON'
        )
    if start.lstrip().startswith("{"):
        try:
            json.loads(start)
        except ValueError as error:
            raise declaration.wrong(f"start is {start!r}", "start", why=str(error)) from None
        return {"startingOffsets": start}
    try:
        moment = parse_time(start)
    except (UsageError, ValueError) as error:
        raise declaration.wrong(
            f"start is {start!r}", "start", why=str(error), hint='"beginning", "end", or a time: 2020-09-10T06:00:00Z'
        ) from None
    return {"startingTimestamp": str(int(moment)), "startingOffsetsByTimestampStrategy": "latest"}


def java_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """librdkafka's client properties as Java's client names them."""
    found = {name: properties[name] for name in _SAME_NAMES if name in properties}
    mechanism = properties.get("sasl.mechanisms") or properties.get("sasl.mechanism")
    if mechanism:
        found["sasl.mechanism"] = mechanism
        found["sasl.jaas.config"] = _jaas(mechanism, properties)
    if "ssl.ca.location" in properties:
        found["ssl.truststore.type"] = "PEM"
        found["ssl.truststore.location"] = str(Path(properties["ssl.ca.location"]).absolute())
    if "ssl.certificate.location" in properties:
        certificate = Path(properties["ssl.certificate.location"]).read_text(encoding="utf-8")
        key = Path(properties["ssl.key.location"]).read_text(encoding="utf-8")
        found |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": certificate, "ssl.keystore.key": key}
    if properties.get("enable.ssl.certificate.verification", "true").lower() == "false":
        found["ssl.endpoint.identification.algorithm"] = ""
    return found


def _jaas(mechanism: str, properties: Mapping[str, str]) -> str:
    modules = {"PLAIN": "plain.PlainLoginModule"}
    module = modules.get(mechanism) or ("scram.ScramLoginModule" if mechanism.startswith("SCRAM") else None)
    if module is None:
        raise UsageError(
            f"sasl.mechanism {mechanism} is not supported for Spark",
            why="PLAIN and SCRAM are translated",
            hint='give Java\'s own property in [pipelines.NAME.kafka]: "sasl.jaas.config" = "…"',
        )
    user, password = properties.get("sasl.username", ""), properties.get("sasl.password", "")
    quoted = [text.replace("\\", "\\\\").replace('"', '\\"') for text in (user, password)]
    return f'org.apache.kafka.common.security.{module} required username="{quoted[0]}" password="{quoted[1]}";'
