"""PySpark as its guides have it: JSON of one topic, parsed, into another, one small batch after the other."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bench.peers.plain_pyspark import plain_session


def main(bootstrap: str, source: str, target: str, place: str) -> None:
    folder = Path(place)
    folder.mkdir()
    os.chdir(folder)
    spark = plain_session()
    settings = {"kafka.bootstrap.servers": bootstrap, "subscribe": source, "startingOffsets": "earliest"}
    rows = spark.readStream.format("kafka").options(**settings).load()
    rows = rows.selectExpr("from_json(cast(value as string), 'id long, sent long') as row")
    rows = rows.where("row.id is not null").selectExpr("to_json(row) as value")
    writing = rows.writeStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", target)
    writing.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
