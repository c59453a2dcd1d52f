"""Our own clients while the cluster goes away and comes back, and the cluster when they do.

A reading "until the end" must not take an outage for the end: a group that lost its partitions with the brokers gets
them back with the brokers, so every record that was acknowledged is read before the reading says that it is done. And
a leader that hangs is as silent as a topic without writers, which is no reason to leave its records unread.
"""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import ElectionType
from confluent_kafka.admin import AdminClient

from headrace.cluster import Cluster
from headrace.kafka import Kafka
from headrace.kafka.bounds import Start, Until, look_up
from headrace.kafka.client import connect, make
from headrace.kafka.read.consumer import ConsumeOptions, Reading, consume, reading
from headrace.kafka.write.pace import Pace
from headrace.kafka.write.producer import ProduceOptions, produce
from headrace.runtime.waiting import eventually
from tests.conftest import Headrace
from tests.records import leaders, read

MakeTopic = Callable[..., str]

_RECORDS = 60_000
# Small steps, so that most records are still at the brokers when something happens to these.
_SMALL = {"session.timeout.ms": 6000, "max.partition.fetch.bytes": 5000, "queued.min.messages": 10}


def test_a_restart_of_the_whole_cluster_is_not_the_end(headrace_faults: Cluster, headrace_topic: MakeTopic) -> None:
    cluster = headrace_faults
    topic = headrace_topic(partitions=3, replication=3)
    _fill(cluster, topic)
    run = reading(cluster, [topic], options=ConsumeOptions(group=f"{topic}-g", settings=_SMALL))
    batches = run.batches()
    seen = {int(message.value() or b"") for message in next(batches).messages}
    for node in cluster.nodes:
        cluster.kill(node)
    down = time.monotonic()
    eventually(lambda: time.monotonic() - down > 7, 20)
    cluster.up()
    for batch in batches:
        seen |= {int(message.value() or b"") for message in batch.messages}
    assert seen == set(range(_RECORDS))


def test_a_hanging_leader_is_not_idle(headrace_faults: Cluster, headrace_topic: MakeTopic) -> None:
    cluster = headrace_faults
    topic = headrace_topic(replication=1)
    _fill(cluster, topic)
    run = reading(cluster, [topic], options=ConsumeOptions(until=Until("idle", 1.0), settings=_SMALL))
    seen: set[int] = set()
    reader = threading.Thread(target=_collect, args=(run, seen))
    leader = leaders(cluster.bootstrap, topic)[0]
    reader.start()
    eventually(lambda: bool(seen), 60)
    cluster.pause(leader)
    eventually(lambda: time.monotonic() - run.last_record > 4, 60)
    assert len(seen) < _RECORDS
    assert reader.is_alive(), "four times the silence, and the records are still there to be read"
    cluster.resume(leader)
    reader.join(120)
    assert seen == set(range(_RECORDS))


def _fill(cluster: Cluster, topic: str) -> None:
    assert produce(cluster, topic, (f"{n:0100}" for n in range(_RECORDS))).complete


def _collect(run: Reading, seen: set[int]) -> None:
    for batch in run.batches():
        seen.update(int(message.value() or b"") for message in batch.messages)


def test_a_hanging_leader_is_replaced_while_it_hangs(headrace_faults: Cluster, headrace_topic: MakeTopic) -> None:
    """Its connections stay open and no request fails: the producer has to find out by itself that another leads."""
    topic = headrace_topic(replication=3)
    leader = leaders(headrace_faults.bootstrap, topic)[0]
    paused = threading.Event()

    def source() -> Iterator[str]:
        yield "before"
        paused.wait(60)
        yield from map(str, range(100))

    options = ProduceOptions(pace=Pace(flush_every=1), settings={"message.timeout.ms": 45_000})
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(produce, headrace_faults, topic, source(), options=options)
        eventually(lambda: look_up(connect(headrace_faults), [(topic, 0)], Start("end"))[topic, 0] == 1, 60)
        headrace_faults.pause(leader)
        paused.set()
        try:
            report = sent.result(200)
        finally:
            headrace_faults.resume(leader)
    assert (report.acknowledged, report.failed) == (101, 0)


def test_what_times_out_while_all_are_away_is_doubled_by_nothing_and_marked(
    headrace_faults: Cluster, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic(partitions=3, replication=3)
    failed: dict[bytes | None, bool] = {}
    over = threading.Event()
    options = ProduceOptions(
        pace=Pace(rate=500),
        settings={"message.timeout.ms": 3000},
        on_failed=lambda _, record: failed.__setitem__(record.value, record.maybe_written),
    )
    numbers = (str(number) for number in itertools.takewhile(lambda _: not over.is_set(), itertools.count()))
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(produce, headrace_faults, topic, numbers, options=options)
        place = (topic, 0)
        eventually(lambda: look_up(connect(headrace_faults), [place], Start("end"))[place] > 100, 60)
        for node in headrace_faults.nodes:
            headrace_faults.pause(node)
        try:
            eventually(lambda: len(failed) > 1000, 60)
        finally:
            for node in headrace_faults.nodes:
                headrace_faults.resume(node)
        over.set()
        report = sent.result(200)
    written = Counter(record.value for record in read(headrace_faults.bootstrap, topic))
    assert report.failed == len(failed)
    assert report.maybe_written == sum(failed.values())
    assert set(written.values()) == {1}
    assert len(written) - report.acknowledged == sum(value in written for value in failed)
    assert not [value for value, maybe in failed.items() if value in written and not maybe]


def test_a_stuck_partition_times_out_while_others_go_on(headrace_faults: Cluster, headrace_topic: MakeTopic) -> None:
    topic = headrace_topic(partitions=3, replication=1)
    # Not that of the active controller: no producer can begin before there is another one.
    controller = Kafka(headrace_faults).quorum().leader_id
    found = leaders(headrace_faults.bootstrap, topic)
    stuck, leader = next((number, leader) for number, leader in found.items() if leader != controller)
    failed: list[int] = []
    began = time.monotonic()
    options = ProduceOptions(
        pace=Pace(rate=100),
        settings={"message.timeout.ms": 10_000},
        on_failed=lambda _, record: failed.append(record.partition),
    )
    numbers = itertools.takewhile(lambda _: not failed and time.monotonic() - began < 40, itertools.count())
    headrace_faults.pause(leader)
    try:
        report = produce(headrace_faults, topic, map(str, numbers), options=options)
    finally:
        headrace_faults.resume(leader)
    assert set(failed) == {stuck}
    assert report.acknowledged > 100
    written = Counter(record.value for record in read(headrace_faults.bootstrap, topic))
    assert set(written.values()) == {1}


def test_offsets_are_told_while_leaders_change(headrace_faults: Cluster, headrace_topic: MakeTopic) -> None:
    cluster = headrace_faults
    topic = headrace_topic(partitions=30, replication=3)
    connection, stop = connect(cluster), threading.Event()
    client = make(AdminClient, connection.settings())

    def ask() -> int:
        asked = 0
        while not stop.wait(0.1):  # each time with a new client: more would only load the machine
            assert len(look_up(connection, [(topic, number) for number in range(30)], Start("end"))) == 30
            asked += 1
        return asked

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask) for _ in range(3)]
        try:
            for broker in (1, 2):
                _leave_and_return(cluster, topic, broker)
                client.elect_leaders(ElectionType.PREFERRED).result(60)
        finally:
            stop.set()
    assert all(asked.result() for asked in asking)


def _leave_and_return(cluster: Cluster, topic: str, broker: int) -> None:
    cluster.kill(broker)
    eventually(lambda: broker not in leaders(cluster.bootstrap, topic).values(), 60)
    cluster.start(broker)
    eventually(lambda: all(len(p.isr) == 3 for p in Kafka(cluster).topic(topic).partitions), 60)


@pytest.mark.parametrize("producers", [1, 2])
def test_a_second_ctrl_c_gives_up_what_is_under_way_and_says_so(
    headrace_faults: Cluster, headrace_topic: MakeTopic, run: Headrace, producers: int
) -> None:
    """The first one flushes, which takes as long as the brokers are silent; the second one ends it at once."""
    cluster = headrace_faults
    topic = headrace_topic(replication=3)
    (run.folder / "in.txt").write_text("".join(f"{n}\n" for n in range(100_000)))
    words = ("--rate", 500, "--producers", producers, "--json", "--bootstrap", cluster.bootstrap)
    sending = run.start("produce", topic, "in.txt", *words)
    eventually(lambda: (Kafka(cluster).describe(topic).offsets or 0) > 100, 60)
    for node in cluster.nodes:
        cluster.pause(node)
    silent = time.monotonic()
    eventually(lambda: time.monotonic() - silent > 1, 5)
    sending.send_signal(signal.SIGINT)
    eventually(lambda: time.monotonic() - silent > 3, 5)
    assert sending.poll() is None
    sending.send_signal(signal.SIGINT)
    again = time.monotonic()
    out, err = sending.communicate(timeout=60)
    took_s = time.monotonic() - again
    for node in cluster.nodes:
        cluster.resume(node)

    assert sending.returncode == 130
    assert took_s < 5
    told = json.loads(out)
    assert (told["interrupted"], told["complete"]) == (True, False)
    assert told["acknowledged"] + told["failed"] == told["read"]
    assert told["acknowledged"] > 100
    kept = [json.loads(line) for line in (run.folder / f"{topic}.failed.ndjson").read_text().splitlines()]
    assert len(kept) == told["failed"] > 100
    assert {record["reason"] for record in kept} <= {
        "given up before it was sent", "given up after it was sent: it may have been written or not",
    }  # fmt: skip
    assert f"{told['failed']:,} undelivered records kept in {topic}.failed.ndjson" in err
    there = Counter(int(record.value or b"") for record in consume(cluster, topic))
    given_up = Counter(int(record["value"]) for record in kept)
    assert not Counter(range(told["read"] // producers)) - there - given_up


_SENDING = """
import itertools, json, sys
from headrace.kafka.write.producer import ProduceOptions, produce

def tell(report):
    print(json.dumps({p: span.last_offset for p, span in report.partitions.get(sys.argv[2], {}).items()}), flush=True)

produce(sys.argv[1], sys.argv[2], map(str, itertools.count()), options=ProduceOptions(on_progress=tell))
"""


def test_what_a_killed_producer_was_told_is_there(headrace_cluster: Cluster, headrace_topic: MakeTopic) -> None:
    topic = headrace_topic(partitions=3, replication=3)
    with subprocess.Popen(
        [sys.executable, "-c", _SENDING, headrace_cluster.bootstrap, topic], stdout=subprocess.PIPE, text=True
    ) as sending:
        assert sending.stdout
        told = next(last for last in map(json.loads, sending.stdout) if sum(last.values()) > 50_000)
        sending.kill()
        told |= json.loads((sending.stdout.read().splitlines() or ["{}"])[-1] or "{}")
    values: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for record in consume(headrace_cluster, topic):
        values[record.partition].append(int(record.value or b""))
    for partition, last_offset in told.items():
        assert len(values[int(partition)]) > last_offset
    every = [value for of_partition in values.values() for value in of_partition]
    assert len(set(every)) == len(every)
    assert all(of_partition == sorted(of_partition) for of_partition in values.values())
