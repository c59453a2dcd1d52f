"""How many records a second a producer writes: headrace beside Kafka's own tool for that question.

    python -m bench.writes [--records 5000000] [--size 100] [--rounds 3]

Three brokers on this machine, a topic of six partitions, records of random letters made beforehand. The two million
writes a second that Kafka is known for were measured with three producers, on three machines that the brokers had for
themselves; here brokers and producer share the cores. Kafka's tool is `kafka-producer-perf-test` with its own Java
settings, and its own figure is taken, which leaves out its start but not the making of each record as it goes;
headrace's clock runs from the first record to the last acknowledgement. They take turns, and every record must lie in
its topic.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.contest import expect, spread
from headrace.cluster import Cluster
from headrace.kafka import Kafka, NewTopic
from headrace.kafka.bounds import Start, look_up
from headrace.kafka.write.bulk import BulkSender
from headrace.runtime import plain_environment

_PARTITIONS = 6
# As Kafka's tool makes them; neither side compresses.
_LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_AT_ONCE = 50_000
_WITHIN_S = 600.0
_SETTINGS = {
    "one copy, acks=1": (1, {"acks": "1"}),
    "three copies, acks=1": (3, {"acks": "1"}),
    "three copies, acks=all": (3, {"acks": "all", "enable.idempotence": "true"}),
}
#: Writes so many records of that size to the topic, and tells how many a second.
Write = Callable[[Cluster, str, dict[str, str], int, int], float]


def with_headrace(cluster: Cluster, topic: str, settings: dict[str, str], records: int, size: int) -> float:
    rng = random.Random(4)
    values = [bytes(rng.choices(_LETTERS, k=size)) for _ in range(_AT_ONCE)]
    began = time.perf_counter()
    with BulkSender({"bootstrap.servers": cluster.bootstrap, **settings}, topic) as sender:
        for first in range(0, records, _AT_ONCE):
            sender.send(values[: records - first])
    took_s = time.perf_counter() - began
    expect(sender.tally.acknowledged == records, "a record was not acknowledged")
    return records / took_s


def with_kafkas_tool(cluster: Cluster, topic: str, settings: dict[str, str], records: int, size: int) -> float:
    # Its own batches are of 16 kB and leave at once; with these it writes more.
    tuned = {"batch.size": "200000", "linger.ms": "10", "buffer.memory": str(128 << 20), **settings}
    properties = [f"{name}={value}" for name, value in tuned.items()]
    command = cluster.tool_command(
        "kafka-producer-perf-test", "--topic", topic, "--num-records", records, "--record-size", size,
        "--throughput", -1, "--command-property", *properties,
    )  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=_WITHIN_S, env=plain_environment()
    )
    expect(done.returncode == 0, f"Kafka's tool failed: {(done.stderr or done.stdout).strip()[-300:]}")
    said = done.stdout
    told = re.findall(rf"^{records} records sent, ([\d.]+) records/sec", said, re.MULTILINE)
    expect(bool(told), f"Kafka's tool did not tell its rate: {said[-300:]}")
    return float(told[-1])


_CONTESTANTS: dict[str, Write] = {"headrace": with_headrace, "Kafka's tool": with_kafkas_tool}


def one(cluster: Cluster, write: Write, name: str, records: int, size: int) -> float:
    """Records a second, in a topic that is removed afterwards."""
    replication, settings = _SETTINGS[name]
    topic = f"writes-{time.monotonic_ns()}"
    admin = Kafka(cluster)
    admin.create_topics([NewTopic(topic, _PARTITIONS, replication, {})])
    rate = write(cluster, topic, settings, records, size)
    ends = look_up(admin.connection, [(topic, number) for number in range(_PARTITIONS)], Start("end"))
    expect(sum(ends.values()) == records, f"{sum(ends.values()):,} of {records:,} records are in the topic")
    admin.delete_topics([topic])
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.writes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a record")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder, Cluster(Path(folder), brokers=3) as cluster:
        for write in _CONTESTANTS.values():
            one(cluster, write, "one copy, acks=1", given.records // 10, given.size)
        for name in _SETTINGS:
            rates: dict[str, list[float]] = {contestant: [] for contestant in _CONTESTANTS}
            for _ in range(given.rounds):
                for contestant, write in _CONTESTANTS.items():
                    rates[contestant].append(one(cluster, write, name, given.records, given.size))
            ours, theirs = rates.values()
            ratios = [our / their for our, their in zip(ours, theirs, strict=True)]
            print(name)
            for contestant, found in rates.items():
                most = statistics.median(found)
                print(f"  {contestant:14} {most:11,.0f} records/s  {most * given.size / 1e6:7.1f} MB/s")
            print(f"  headrace writes {spread(ratios, ' times')} as many", flush=True)


if __name__ == "__main__":
    main()
