"""What a JVM that is kept ready has done before anybody uses it: a stream of JSON into a Delta table, batch by batch.

python -m headrace.pipeline.spark.warm_up HOME
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.home import Home
from headrace.pipeline.spark import session, warm
from headrace.pipeline.spark.classify import SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BATCHES = 3


def warm_up(spark: SparkSession, folder: Path) -> None:
    """The JVM has read, decoded, classified and written some rows."""
    for number in range(_BATCHES):
        Path(folder, f"{number}.txt").write_text("\n".join(json.dumps({"a": str(a), "b": 0.5}) for a in range(100)))
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(f"{folder}/*.txt")
    rows = lines.selectExpr("from_json(value, 'a string, b double') as row", "cast(value as binary) as value")
    table = str(folder / "table")

    def write(batch: DataFrame, number: int) -> None:
        kept = batch.selectExpr("try_cast(row.a as int) as a", "row.b as b").where("a is not null").persist()
        kept.groupBy("b").count().collect()
        kept.write.format("delta").mode("append").option("txnAppId", "a").option("txnVersion", number).save(table)
        kept.unpersist()

    stream = rows.writeStream.trigger(availableNow=True).option("checkpointLocation", str(folder / "checkpoint"))
    stream.foreachBatch(write).start().awaitTermination()
    assert spark.read.format("delta").load(table).count() == _BATCHES * 100


def main(home: Home) -> None:
    """Nothing happens if another process was faster: it warms the JVM up as well."""
    kept = home.node("spark")
    spec = replace(session.SessionSpec.in_home(home, "spark"), conf=SETTINGS, warm=kept)
    found = warm.attach(spec)
    if found is None:
        return
    try:
        with tempfile.TemporaryDirectory(dir=kept) as folder:
            warm_up(found.start(), Path(folder))
    finally:
        found.stop()


if __name__ == "__main__":
    os.nice(5)  # as the JVM
    main(Home(Path(sys.argv[1])))
