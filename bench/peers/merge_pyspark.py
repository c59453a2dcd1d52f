"""Change data with PySpark as its guides have it: `foreachBatch`, the last change of each key, one MERGE.

Deleted rows stay in the table, marked, so that a late change does not bring them back.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from bench.peers.plain_pyspark import plain_session

ROW = "id long, name string, city string, street string, points int"
EVENT = f"before struct<{ROW}>, after struct<{ROW}>, op string, ts_ms long, source struct<lsn long>"


def main(bootstrap: str, topic: str, place: str, batch: str) -> None:
    folder = Path(place)
    folder.mkdir()
    os.chdir(folder)  # where PySpark leaves its warehouse
    spark = plain_session()
    table = str(folder / "customers")
    columns = f"{ROW}, op string, ts_ms long, lsn long, deleted boolean"
    spark.createDataFrame([], columns).write.format("delta").save(table)
    settings = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    settings["maxOffsetsPerTrigger"] = batch

    def write(rows: DataFrame, _: int) -> None:
        events = rows.select("offset", F.from_json(F.col("value").cast("string"), EVENT).alias("e"))
        row = F.when(F.col("e.op") == "d", F.col("e.before")).otherwise(F.col("e.after")).alias("row")
        deleted = (F.col("e.op") == "d").alias("deleted")
        flat = events.select("offset", row, "e.op", "e.ts_ms", "e.source.lsn", deleted).select("*", "row.*").drop("row")
        latest = Window.partitionBy("id").orderBy(F.desc("ts_ms"), F.desc("offset"))
        last = flat.withColumn("n", F.row_number().over(latest)).where("n = 1").drop("n", "offset")
        last.createOrReplaceTempView("changes")
        last.sparkSession.sql(f"""
            merge into delta.`{table}` t using changes s on t.id = s.id
            when matched and s.ts_ms >= t.ts_ms then update set *
            when not matched then insert *""")

    reading = spark.readStream.format("kafka").options(**settings).load()
    writing = reading.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint"))
    writing.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
