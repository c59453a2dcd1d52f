"""Exported jobs: the same tables, row by row, by plain spark-submit; what cannot be said is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.errors import ConfigError
from headrace.kafka.read.consumer import consume
from headrace.runtime.jars import JarCache, default_cache
from headrace.runtime.java import find_java
from headrace.runtime.spark import pyspark_folder, spark_additions
from headrace.samples import breadcrumbs
from tests.spark.pipelines import Workshop, send, totals
from tests.spark.test_examples import _values, take

if TYPE_CHECKING:
    pass

_TABLES = ("tables/breadcrumbs", "tables/speeds", "tables/trips", "tables/vehicles")


def submitted(job: Path, folder: Path, bootstrap: str) -> None:
    """The job ran to its end, with the jars that PySpark lacks and nothing of this project in reach."""
    java = find_java()
    jars = ",".join(map(str, spark_additions(JarCache(default_cache()), java)))
    settings = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "SPARK_HOME"}}
    # Spark's launcher asks for a module that only MLlib uses and the tests' Java does not have.
    launcher = job.parent / "java" / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(
        f'#!/usr/bin/env bash\nexec "{java.home}/bin/java" "${{@/--add-modules=jdk.incubator.vector/-Dnone=}}"\n'
    )
    launcher.chmod(0o700)
    settings |= {"JAVA_HOME": str(launcher.parents[1]), "PYSPARK_PYTHON": sys.executable}
    small = {
        "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }  # fmt: skip
    words = ["--master", "local[2]", "--jars", jars, *[w for pair in small.items() for w in ("--conf", "=".join(pair))]]
    words += [str(job), "--bootstrap", bootstrap, "--folder", str(folder)]
    done = subprocess.run(
        [pyspark_folder() / "bin" / "spark-submit", *words], env=settings, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def plain(rows: list[dict[str, Any]]) -> list[str]:
    """Rows without headrace's own columns, to be compared."""
    return sorted(str({name: row[name] for name in sorted(row) if not name.startswith("_")}) for row in rows)


@pytest.mark.timeout(600)  # another JVM starts from nothing
def test_the_job_of_an_example_makes_the_same_tables(shop: Workshop, headrace_topic: Callable[..., str]) -> None:
    topic = headrace_topic(partitions=3)
    take("breadcrumbs", shop.folder, breadcrumbs=topic)
    # Several batches, so that aggregates are merged and keys recomputed.
    text = shop.file.read_text().replace('event_time   = "at"', 'event_time   = "at"\nmax_records_per_batch = 300')
    shop.file.write_text(text)
    given = _values(breadcrumbs(records=500, bad=0.08, seed=7))
    send(shop.cluster, topic, given)
    job = shop.pipeline("breadcrumbs").export(shop.folder / "jobs", shop.spark)
    text = job.read_text()
    assert "import headrace" not in text
    assert "No ledger" in text.partition('"""\n\nfrom')[0]
    outcomes = totals(shop.run("breadcrumbs"))
    assert outcomes["dead"] > 20
    dead = sum(1 for _ in consume(shop.cluster, f"{topic}.dead"))
    assert dead == outcomes["dead"]

    elsewhere = shop.folder / "elsewhere"
    submitted(job, elsewhere, shop.cluster.bootstrap)
    for table in _TABLES:
        ours, theirs = shop.rows(table), shop.rows(f"elsewhere/{table}")
        assert plain(theirs) == plain(ours), table
        assert ours
    letters = list(consume(shop.cluster, f"{topic}.dead"))
    assert len(letters) == 2 * dead
    rules = [dict(record.headers) for record in letters]
    assert sum("rule" in headers for headers in rules) == dead


def test_other_sinks_in_the_session_of_the_test(shop: Workshop, headrace_topic: Callable[..., str]) -> None:
    topic, out = headrace_topic(partitions=2), headrace_topic()
    shop.declare(
        """
[pipelines.p]
from   = "<topic>"
decode = { csv = "shop string, amount string, note string", options = { sep = ";" } }
where  = "shop <> 'test'"
select = { shop = "shop", amount = "cast(amount as int)", double = "amount * 2" }
[pipelines.p.expect]
"positive" = "amount > 0"
"small"    = { rule = "amount < 1000", action = "drop" }
[[pipelines.p.into]]
parquet = "tables/rows"
where   = "amount > 10"
select  = { shop = "upper(shop)", part = "100 / (amount - 13)" }
partition_by = "shop"
[[pipelines.p.into]]
topic = "<out>"
key   = "shop"
[[pipelines.p.into]]
delta = "tables/shops"
aggregate = { by = ["shop"], values = { total = "sum(amount)", mean = "avg(double)", n = "max(amount) - min(amount)" } }
""",
        topic=topic, out=out,
    )  # fmt: skip
    lines = [b"a;5;x", b"b;20;", b"a;x;", b"test;1;", b"a;-1;", b"b;2000;", b"a;13;", b"c", b"a;30;y", None, b"\xff;1;"]
    send(shop.cluster, topic, lines)
    job = shop.pipeline().export(shop.folder / "jobs", shop.spark)
    code: dict[str, Any] = {"__name__": "job"}
    exec(compile(job.read_text(), str(job), "exec"), code)  # noqa: S102 - what was just written
    kafka = {"kafka.bootstrap.servers": shop.cluster.bootstrap}
    raw = shop.spark.read.format("kafka").options(subscribe=topic, includeHeaders="true", **kafka).load()
    elsewhere = str(shop.folder / "elsewhere")
    for number, where in enumerate(("partition = 0", "partition = 1", "partition = 1")):  # the last batch is repeated
        code["write_batch"](raw.where(where), min(number, 1), elsewhere, kafka)
    sent = [record.value for record in consume(shop.cluster, out)]
    outcomes = totals(shop.run())
    assert outcomes == {"written": 3, "dead": 6, "filtered": 2}
    rows = shop.spark.read.parquet(f"{shop.folder}/tables/rows").drop("batch").collect()
    theirs = shop.spark.read.parquet(f"{elsewhere}/tables/rows").drop("batch").collect()
    assert sorted(map(str, theirs)) == sorted(map(str, rows))
    assert plain(shop.rows("elsewhere/tables/shops")) == plain(shop.rows("tables/shops"))
    letters = shop.rows(f"{elsewhere}/p.dead_letters")
    assert sorted((letter["value"] or b"", letter["rule"]) for letter in letters) == sorted(
        (letter["value"] or b"", letter["rule"]) for letter in shop.dead()
    )
    ours = [record.value for record in consume(shop.cluster, out)][len(sent) :]
    assert set(sent) == set(ours)


def test_secrets_stay_out_of_the_job(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.declare("""
[pipelines.p]
from  = "any"
into  = { delta = "tables/rows" }
spark = { "spark.hadoop.fs.s3a.secret.key" = "mine 1" }
[pipelines.p.kafka]
"ssl.truststore.location" = "/etc/trust.jks"
"ssl.truststore.password" = "mine 2"
"sasl.jaas.config"        = "org.Login required password='mine 3';"
""")
    job = shop.pipeline().export(shop.folder / "jobs", shop.spark).read_text()
    variables = ("SPARK_HADOOP_FS_S3A_SECRET_KEY", "KAFKA_SSL_TRUSTSTORE_PASSWORD", "KAFKA_SASL_JAAS_CONFIG")
    assert "mine" not in job
    assert f"Secrets:       not in this file; set {', '.join(variables)}\n" in job
    for name in variables:
        monkeypatch.setenv(name, f"value of {name}")
    code: dict[str, Any] = {"__name__": "job"}
    exec(compile(job, "job", "exec"), code)  # noqa: S102 - what was just written
    assert code["SETTINGS"]["spark.hadoop.fs.s3a.secret.key"] == f"value of {variables[0]}"
    assert code["SOURCE"]["kafka.ssl.truststore.password"] == f"value of {variables[1]}"
    assert code["SOURCE"]["kafka.sasl.jaas.config"] == f"value of {variables[2]}"
    assert code["SOURCE"]["kafka.ssl.truststore.location"] == "/etc/trust.jks"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('deduplicate = ["a"]', "deduplicate is done by headrace"),
        ('select = { b = "explode(split(a, \\",\\"))" }', "explode keeps a record together"),
        ('trigger = "realtime"\ndead_letters = "dead"\ninto = { topic = "out" }', "realtime"),
        ('decode = { avro = "s" }', "avro of a registry"),
        ('decode = { debezium = "id int, n int" }', "decode debezium\n"),
        ('decode = { json = "id int" }\ninto = { delta = "t", changes = { key = "id" } }', "changes of a delta is"),
    ],
)
def test_what_cannot_be_said_is_refused(shop: Workshop, more: str, said: str) -> None:
    into = "" if "into" in more else 'into = { delta = "t" }\n'
    decode = "" if "decode" in more else 'decode = { json = "a string" }\n'
    shop.file.write_text(f'[pipelines.p]\nfrom = "t"\n{decode}{into}{more}\n')
    with pytest.raises(ConfigError) as refused:
        shop.pipeline().export(shop.folder / "jobs", shop.spark)
    assert said in str(refused.value)
    assert "headrace.toml, line" in str(refused.value)
    assert not (shop.folder / "jobs").exists()
