"""PySpark as its guides have it: a streaming query, `foreachBatch`, one write for the good rows and one for the bad."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headrace.runtime.jars import JarCache, default_cache
from headrace.runtime.java import find_java

FIELDS = (
    "EVENT_NO_TRIP string, EVENT_NO_STOP string, OPD_DATE string, VEHICLE_ID string, METERS string, ACT_TIME string, "
    "VELOCITY string, DIRECTION string, GPS_LONGITUDE string, GPS_LATITUDE string, GPS_SATELLITES string, "
    "GPS_HDOP string, SCHEDULE_DEVIATION string"
)
COLUMNS = {
    "trip": "try_cast(r.EVENT_NO_TRIP as long)",
    "vehicle": "try_cast(r.VEHICLE_ID as int)",
    "day": "to_date(r.OPD_DATE, 'dd-MMM-yy')",
    "act_time": "try_cast(r.ACT_TIME as int)",
    "meters": "try_cast(r.METERS as int)",
    "velocity": "try_cast(nullif(r.VELOCITY, '') as int)",
    "direction": "try_cast(nullif(r.DIRECTION, '') as int)",
    "latitude": "try_cast(nullif(r.GPS_LATITUDE, '') as double)",
    "longitude": "try_cast(nullif(r.GPS_LONGITUDE, '') as double)",
    "satellites": "try_cast(r.GPS_SATELLITES as int)",
    "hdop": "try_cast(r.GPS_HDOP as double)",
}


def plain_session() -> SparkSession:
    """A session as Delta's documents start one, with jars that are here already."""
    jars = JarCache(default_cache()).classpath("spark", find_java())
    return (
        SparkSession.builder.master("local[*]")
        .config("spark.jars", ",".join(map(str, jars)))
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .getOrCreate()
    )


def main(bootstrap: str, topic: str, place: str, records: str) -> None:
    folder = Path(place)
    folder.mkdir()
    os.chdir(folder)  # where PySpark leaves its warehouse
    spark = plain_session()
    good, bad = str(folder / "good"), str(folder / "bad")
    settings = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    settings["maxOffsetsPerTrigger"] = str(min(int(records), 1_000_000))

    def write(batch: DataFrame, _: int) -> None:
        typed = batch.withColumn("r", F.from_json(F.col("value").cast("string"), FIELDS))
        typed = typed.select("value", "partition", "offset", *(F.expr(sql).alias(n) for n, sql in COLUMNS.items()))
        fits = F.expr("coalesce(trip is not null and vehicle is not null and act_time >= 0, false)")
        typed.where(fits).drop("value", "partition", "offset").write.format("delta").mode("append").save(good)
        typed.where(~fits).select("value", "partition", "offset").write.format("delta").mode("append").save(bad)

    reading = spark.readStream.format("kafka").options(**settings).load()
    writing = reading.writeStream.foreachBatch(write).option("checkpointLocation", str(folder / "checkpoint"))
    writing.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
