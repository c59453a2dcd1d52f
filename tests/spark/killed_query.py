"""A streaming query from topic to topic that kills its own driver at a point of a batch.

    killed_query.py BOOTSTRAP SOURCE TOPIC FOLDER POINT BATCH

Every start has another Spark; only the checkpoint and Kafka outlive it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark import cloudpickle

from headrace.kafka.client import Connection
from headrace.pipeline.spark.session import SessionSpec, start_spark, stop_spark
from headrace.pipeline.spark.sinks import kafka as kafka_sink
from headrace.pipeline.spark.sinks.kafka import KafkaTarget, prepare, write_exactly_once
from tests.spark import faults


def main() -> None:
    bootstrap, source, topic, folder, point, batch = sys.argv[1:]
    connection = Connection(bootstrap)
    home, kill_batch = Path(folder), int(batch)
    home.mkdir(exist_ok=True)
    prepare(connection)
    spark = start_spark(SessionSpec(folder=home / "spark"))
    cloudpickle.register_pickle_by_value(faults)
    flag = home / f"killed-{os.getpid()}"
    setattr(kafka_sink, "_write_task", faults.Killed(point, kill_batch, flag, os.getpid()))  # noqa: B010
    writer = f"{topic}-{(home / 'checkpoint').name}"
    first: list[int] = []

    def write(rows: Any, number: int) -> None:
        replaying = not first
        first.append(number)
        shaped = rows.selectExpr(
            f"'{topic}' as topic", "key", "value", "cast(null as array<struct<key: string, value: binary>>) as headers",
            "topic as _topic", "partition as _partition", "offset as _offset",
        )  # fmt: skip
        write_exactly_once(shaped, KafkaTarget(connection, writer, number, tasks=2, replaying=replaying))
        if point == "written" and number >= kill_batch:
            os.kill(os.getpid(), signal.SIGKILL)

    query = (
        spark.readStream.format("kafka")
        .options(**{"kafka.bootstrap.servers": bootstrap, "subscribe": source, "startingOffsets": "earliest"})
        .option("maxOffsetsPerTrigger", 300)
        .load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    stop_spark()


main()
