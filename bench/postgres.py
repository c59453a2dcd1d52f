"""How many rows a second a pipeline upserts into PostgreSQL, from a topic of JSON.

    python -m bench.postgres [--records 1000000] [--rounds 3]

One broker, one PostgreSQL (Debian's, default settings but for the port), both on this machine, on the cores of Spark.
Half of the records are updates of a row that was written before. A round is a run of the pipeline on a warm session:
from its first question to Kafka to the last commit, with dead letters, ledger and checkpoint. Every row of the table is
compared with what the last record of its key says. CPU is that of headrace, Spark and PostgreSQL, without the broker:
on a machine that does other things too, it says more than the clock.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
from tests.postgres import Server, running_server

from bench.contest import Figure, expect
from headrace.cluster import Cluster
from headrace.kafka import Kafka, NewTopic
from headrace.kafka.write.producer import produce
from headrace.pipeline import Pipeline

_PIPELINE = """
[pipelines.bench]
from = "positions"
decode = {{ json = "trip long, vehicle string, meters int, speed double, at timestamp" }}
max_records_per_batch = 500000
[pipelines.bench.into]
postgres = "{url}"
password_file = "{password}"
table = "positions"
key = ["trip"]
"""


def records(count: int, number: int) -> Iterator[dict[str, object]]:
    """Every trip twice: the second record counts."""
    for at in range(count):
        trip = number * count + at % (count // 2)
        yield {"trip": trip, "vehicle": f"bus-{at % 900}", "meters": at, "speed": at / 8, "at": 1_700_000_000 + at}


def cpu_s(server: Server) -> float:
    """What this process, all that it started, and the server have used so far."""
    assert server.process is not None
    total = 0.0
    for root in (psutil.Process(), psutil.Process(server.process.pid)):
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
    return total


def one(cluster: Cluster, server: Server, pipeline: Pipeline, spark: object, count: int, number: int) -> Figure:
    """Seconds by the clock and of CPU of one round."""
    sent = produce(cluster, "positions", records(count, number), key_field="trip")
    expect(sent.complete, "not all records were sent")
    began, used_s = time.perf_counter(), cpu_s(server)
    report = pipeline.run(cluster, once=True, spark=spark)  # type: ignore[arg-type]
    took_s, used_s = time.perf_counter() - began, cpu_s(server) - used_s
    expect(report.run.balanced and report.run.outcomes["written"] == count, str(report))
    wrong = server.rows(
        f"select count(*) from generate_series(0, {count // 2 - 1}) n full join (select * from positions "
        f"where trip >= {number * count}) p on p.trip = n + {number * count} where p.trip is null or n is null "
        f"or (vehicle, meters, speed) is distinct from ('bus-' || (n + {count // 2}) % 900, n + {count // 2}, "
        f"(n + {count // 2}) / 8::double precision)"
    )
    expect(wrong == [(0,)], f"{wrong} rows are not what they must be")
    return took_s, used_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_server() as server:
        file = Path(folder, "headrace.toml")
        file.write_text(_PIPELINE.format(url=server.url(), password=server.password_file), encoding="utf-8")
        with Cluster(Path(folder, "kafka"), brokers=1) as cluster:
            Kafka(cluster).create_topics([NewTopic("positions", 2, 1)])
            pipeline = Pipeline.from_file(file, "bench", Path(folder, "home"))
            with pipeline.session() as spark:
                rounds = [one(cluster, server, pipeline, spark, given.records, n) for n in range(given.rounds + 1)]
            cluster.down(wipe=True)
    for took_s, used_s in rounds:
        print(f"{given.records / took_s:10,.0f} rows/s upserted, {took_s:.1f} s, {used_s:.1f} s of CPU")


if __name__ == "__main__":
    main()
