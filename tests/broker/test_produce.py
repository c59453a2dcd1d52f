"""Records into topics, by the library and by the command; read back with a client that is not ours."""

from __future__ import annotations

import json
import re
import signal
import time
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer

from headrace.cluster import Cluster
from headrace.console import backend
from headrace.errors import Failed, UsageError
from headrace.kafka import Kafka, transactions
from headrace.kafka.client import connect
from headrace.kafka.read.consumer import consume
from headrace.kafka.write.inputs import InputOptions
from headrace.kafka.write.librdkafka import TIMED_OUT
from headrace.kafka.write.pace import Pace
from headrace.kafka.write.producer import ProduceOptions, produce
from headrace.kafka.write.shaping import Shaping, partition_of
from headrace.kafka.write.undelivered import Undeliverable
from headrace.monitor.poller import Target
from headrace.runtime.waiting import eventually
from tests.conftest import Headrace
from tests.records import read

MakeTopic = Callable[..., str]


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    path = tmp_path / "numbers.ndjson"
    path.write_text("".join(json.dumps({"n": n, "who": f"v{n % 7}"}) + "\n" for n in range(1000)))
    return path


def test_a_file_arrives_byte_for_byte_and_keys_go_where_java_sends_them(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, numbers: Path
) -> None:
    topic = headrace_topic(partitions=6)
    report = produce(headrace_cluster, topic, numbers, key_field="who")
    assert (report.read, report.acknowledged, report.failed, report.shape) == (1000, 1000, 0, "ndjson")
    found = read(headrace_cluster.bootstrap, topic)
    assert sorted(r.value for r in found) == sorted(numbers.read_bytes().splitlines())
    assert all(r.partition == partition_of(r.key or b"", 6) for r in found)
    spans = report.partitions[topic]
    assert {p: (s.first_offset, s.last_offset, s.records) for p, s in spans.items()} == {
        p: (0, count - 1, count) for p, count in Counter(r.partition for r in found).items()
    }


def test_order_is_kept_within_a_key(headrace_cluster: Cluster, headrace_topic: MakeTopic, numbers: Path) -> None:
    topic = headrace_topic(partitions=3)
    produce(headrace_cluster, topic, numbers, key_field="who")
    by_key: dict[bytes | None, list[int]] = {}
    for record in read(headrace_cluster.bootstrap, topic):
        by_key.setdefault(record.key, []).append(json.loads(record.value)["n"])
    assert len(by_key) == 7
    assert all(values == sorted(values) for values in by_key.values())


def test_headers_timestamps_and_tombstones(headrace_cluster: Cluster, headrace_topic: MakeTopic) -> None:
    topic = headrace_topic()
    shaping = Shaping(headers=[("source", b"test")], timestamp_field="at", null_value=b'{"at":2}', key=b"k")
    rows = [{"at": 1_600_000_000}, {"at": 2}]
    assert produce(headrace_cluster, topic, rows, options=ProduceOptions(shaping=shaping)).complete
    consumer = KafkaConsumer(
        topic, bootstrap_servers=headrace_cluster.bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    first, second = next(consumer), next(consumer)
    consumer.close()
    assert (first.timestamp, first.headers, first.key) == (1_600_000_000_000, [("source", b"test")], b"k")
    assert second.value is None


def test_headers_are_given_in_the_call(headrace_cluster: Cluster, headrace_topic: MakeTopic) -> None:
    topic = headrace_topic()
    report = produce(headrace_cluster, topic, [{"n": 1}, {"n": 2}], headers={"source": "import", "raw": b"\xff"})
    assert report.complete
    found = list(consume(headrace_cluster, topic))
    assert [record.headers for record in found] == [(("source", b"import"), ("raw", b"\xff"))] * 2


def test_the_iris_table_goes_exactly_where_it_is_routed(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, run: Headrace
) -> None:
    two, one = headrace_topic(partitions=2, replication=1), headrace_topic(partitions=2, replication=1)
    rows = [f"{5 + n / 100},{3 + n / 100},{name}" for name in ("setosa", "versicolor", "virginica") for n in range(50)]
    (run.folder / "iris.csv").write_text("sepal_length,sepal_width,species\n" + "\n".join(rows))
    done = run(
        "produce", two, "iris.csv", "--bootstrap", headrace_cluster.bootstrap,
        "--numbers", "--value-fields", "sepal_length,sepal_width",
        "--route", f"species:virginica={two}/0,setosa={two}/1,versicolor={one}/0+1",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert Counter(r.partition for r in read(headrace_cluster.bootstrap, two)) == {0: 50, 1: 50}
    assert Counter(r.partition for r in read(headrace_cluster.bootstrap, one)) == {0: 25, 1: 25}
    assert json.loads(read(headrace_cluster.bootstrap, two)[0].value) == [5.0, 3.0]


def test_a_file_without_keys_is_dealt_out_to_all_partitions(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, numbers: Path
) -> None:
    topic = headrace_topic(partitions=3)
    assert produce(headrace_cluster, topic, numbers).complete
    counts = Counter(r.partition for r in read(headrace_cluster.bootstrap, topic))
    assert sorted(counts.values()) == [332, 334, 334]


def test_two_producers_each_with_its_own_key(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, numbers: Path
) -> None:
    topic = headrace_topic(partitions=2)
    options = ProduceOptions(producers=2, key_per_producer=True)
    report = produce(headrace_cluster, topic, numbers, options=options)
    assert report.acknowledged == 2000
    assert Counter(r.key for r in read(headrace_cluster.bootstrap, topic)) == {b"1": 1000, b"2": 1000}


def test_random_keys_add_up(headrace_cluster: Cluster, headrace_topic: MakeTopic, numbers: Path) -> None:
    topic = headrace_topic(partitions=5)
    options = ProduceOptions(shaping=Shaping(random_key=(1, 5), seed=7))
    produce(headrace_cluster, topic, numbers, options=options)
    counts = Counter(r.key for r in read(headrace_cluster.bootstrap, topic))
    assert set(counts) == {b"1", b"2", b"3", b"4", b"5"}
    assert sum(counts.values()) == 1000


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement_is_counted(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, run: Headrace, numbers: Path, acks: str
) -> None:
    topic = headrace_topic(partitions=2)
    done = run("--bootstrap", headrace_cluster.bootstrap, "--json", "produce", topic, numbers, "--acks", acks)
    assert (done.code, done.json()["acknowledged"]) == (0, 1000)
    assert len(read(headrace_cluster.bootstrap, topic)) == 1000


def test_lines_from_a_pipe_and_what_is_said(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, run: Headrace
) -> None:
    topic = headrace_topic()
    done = run("produce", topic, "--bootstrap", headrace_cluster.bootstrap, stdin="eins\nzwei\ndrei")
    assert done.code == 0
    assert "3 records acknowledged, 0 failed, of 3 read as lines" in done.err
    assert f"{topic}/0: 3 records, offsets 0 to 2" in done.err
    assert [r.value for r in read(headrace_cluster.bootstrap, topic)] == [b"eins", b"zwei", b"drei"]


def test_pace_and_flush_send_everything(headrace_cluster: Cluster, headrace_topic: MakeTopic) -> None:
    topic = headrace_topic()
    seen: list[int] = []
    pace = Pace(pause_every=(5, 0.05), flush_every=15)
    options = ProduceOptions(pace=pace, on_progress=lambda report: seen.append(report.acknowledged))
    report = produce(headrace_cluster, topic, (str(n) for n in range(60)), options=options)
    assert report.acknowledged == 60
    assert report.seconds >= 12 * 0.05
    assert [r.value for r in read(headrace_cluster.bootstrap, topic)] == [str(n).encode() for n in range(60)]


def test_without_a_flush_what_is_left_is_counted_as_failed(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, run: Headrace
) -> None:
    topic = headrace_topic()
    done = run(
        "--json", "--bootstrap", headrace_cluster.bootstrap, "produce", topic,
        "--flush", "none", "--set", "linger.ms=60000", stdin="a\nb",
    )  # fmt: skip
    report = done.json()
    assert (done.code, report["acknowledged"], report["failed"]) == (1, 0, 2)
    kept = [json.loads(line) for line in (run.folder / f"{topic}.failed.ndjson").read_text().splitlines()]
    assert [row["value"] for row in kept] == ["a", "b"]


def test_the_reason_of_failed_deliveries_is_what_the_broker_refused_them_for(
    headrace_faults: Cluster, headrace_topic: MakeTopic, run: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka retries for as long as it may, and then says no more than that the time is over."""
    topic, other_topic = headrace_topic(replication=3, min_insync_replicas=3), headrace_topic(replication=3)
    headrace_faults.kill("broker-3")
    with Kafka(headrace_faults) as admin:
        in_sync = {1, 2}
        eventually(
            lambda: all(set(t.partitions[0].isr) == in_sync for t in admin.require_topics([topic, other_topic])), 60
        )
    (run.folder / "in.txt").write_text("one\ntwo\n" + "x" * 2_000_000 + "\nthree\n")
    where = ("--bootstrap", headrace_faults.bootstrap)
    done = run("produce", topic, "in.txt", *where, "--set", "message.timeout.ms=3000")
    assert done.code == 1
    assert "0 records acknowledged, 4 failed, of 4 read" in done.err
    reason = "not enough replicas in sync: 2 of 3 needed; broker 3 not alive (the record timed out)"
    assert f"  3 failed: {reason}" in done.err
    assert re.search(r"  1 failed: .*large", done.err)
    kept = [json.loads(line)["reason"] for line in (run.folder / f"{topic}.failed.ndjson").read_text().splitlines()]
    assert kept.count(reason) == 3
    # With the setting's other name, in a transaction, and from the console.
    timeout = ("--set", "delivery.timeout.ms=2000", "--set", "linger.ms=0")
    began = time.monotonic()
    other = run("produce", topic, *where, *timeout, stdin="one")
    assert time.monotonic() - began < 60
    assert f"  1 failed: {reason}" in other.err
    monkeypatch.setattr(transactions, "_ANSWER_S", 3.0)
    settings = {"message.timeout.ms": 1000}
    together = transactions.produce_in_transactions(
        headrace_faults, topic, ["one"], transactions.TransactionPlan(), settings=settings
    )
    assert together.error is not None
    assert reason in str(together.error.why)
    monkeypatch.setattr(backend, "_DELIVERY_S", 2.0)
    console = backend.Backend(Target(connect(headrace_faults)), None, None)  # type: ignore[arg-type]
    with pytest.raises(Failed) as refused:
        console._deliver(backend.NewRecord(topic, b"one"))
    assert reason in str(refused.value.why)
    # Who waits for one replica only is not refused for want of the others.
    assert Undeliverable(connect(headrace_faults), topic, {"acks": "1"}).reason(0, TIMED_OUT) == TIMED_OUT
    # With two of three gone there is no controller either, and nothing takes the dead broker out of the ISR.
    headrace_faults.kill("broker-2")
    alone = run("produce", other_topic, *where, *timeout, stdin="one")
    assert "  1 failed: broker 2 in the last known ISR, but not answering (the record timed out)" in alone.err


def test_a_record_over_the_limit_fails_alone_and_is_kept(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, run: Headrace
) -> None:
    topic = headrace_topic()
    (run.folder / "in.txt").write_text("small\n" + "x" * 2_000_000 + "\nlast\n")
    done = run("produce", topic, "in.txt", "--bootstrap", headrace_cluster.bootstrap)
    assert done.code == 1
    assert "2 records acknowledged, 1 failed, of 3 read" in done.err
    (kept,) = (run.folder / f"{topic}.failed.ndjson").read_text().splitlines()
    assert len(json.loads(kept)["value"]) == 2_000_000
    assert "large" in json.loads(kept)["reason"].lower()


def test_invalid_json_is_named_and_can_be_set_aside(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, run: Headrace
) -> None:
    topic = headrace_topic()
    (run.folder / "in.ndjson").write_text('{"a":1}\n{"a":\n{"a":3}\n')
    words = ("produce", topic, "in.ndjson", "--bootstrap", headrace_cluster.bootstrap)
    stopped = run(*words)
    assert stopped.code == 1
    assert "in.ndjson, line 2" in stopped.err
    assert "stopped after record 1 of the input" in stopped.err
    assert "--skip 1" in stopped.err
    went_on = run(*words, "--on-bad", "set-aside", "--skip", 1)
    assert went_on.code == 0
    (piece,) = (run.folder / "in.ndjson.bad.ndjson").read_text().splitlines()
    assert json.loads(piece) == {"place": "line 2", "reason": "the JSON is not complete", "data": '{"a":'}
    assert [json.loads(record.value)["a"] for record in read(headrace_cluster.bootstrap, topic)] == [1, 3]


def test_a_run_that_stops_goes_on_where_it_stopped(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, tmp_path: Path
) -> None:
    """One bad row after the other is corrected until all are sent, each once."""
    topic = headrace_topic()
    file = tmp_path / "rows.csv"
    rows = [f"{number},{number}.5" for number in range(2000)]
    for bad in (5, 700, 1999):
        rows[bad] += ",too many"
    options = ProduceOptions(shaping=Shaping(value_fields=("n",)), input=InputOptions(numbers=True))
    stops = []
    for _ in range(4):
        file.write_text("n,x\n" + "\n".join(rows))
        report = produce(headrace_cluster, topic, file, options=options)
        assert report.position is not None
        if report.error:
            stops.append(report.position)
            rows[report.position] = rows[report.position].removesuffix(",too many")
            options = replace(options, input=replace(options.input, skip=report.position))
    assert stops == [5, 700, 1999]
    assert report.position == 2000
    assert [json.loads(record.value) for record in read(headrace_cluster.bootstrap, topic)] == [
        [n] for n in range(2000)
    ]


def test_csv_numbers_as_spreadsheets_write_them(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, run: Headrace
) -> None:
    topic = headrace_topic()
    (run.folder / "in.csv").write_text("a,b\n.73,5.\n1e3,-.5\n12.0,007\n1e999,0.30000000000000004\n")
    done = run("produce", topic, "in.csv", "--numbers", "--bootstrap", headrace_cluster.bootstrap)
    assert done.code == 0, done.err
    assert [json.loads(record.value) for record in read(headrace_cluster.bootstrap, topic)] == [
        {"a": 0.73, "b": 5.0}, {"a": 1000.0, "b": -0.5}, {"a": 12.0, "b": "007"},
        {"a": "1e999", "b": 0.30000000000000004},
    ]  # fmt: skip


def test_a_record_without_the_key_field_is_named(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, numbers: Path
) -> None:
    topic = headrace_topic()
    report = produce(headrace_cluster, topic, [{"n": 1}, {"m": 2}, {"n": 3}], key_field="n")
    assert report.error is not None
    assert report.error.problem == "record 2: the record has no field n"
    assert report.acknowledged == 1


def test_wrong_names_are_said_with_the_nearest(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, run: Headrace
) -> None:
    topic = headrace_topic(partitions=2)
    where = ("--bootstrap", headrace_cluster.bootstrap)
    missing = run("produce", topic[:-1], *where, stdin="x")
    assert missing.code == 2
    assert f"the nearest name is '{topic}'" in missing.err
    assert f"did you mean {topic}?" in missing.err
    partition = run("produce", topic, *where, "--partition", "7", stdin="x")
    assert partition.code == 2
    assert "it has 2: 0 to 1" in partition.err
    assert run("produce", topic, "nowhere.json", *where).code == 2
    refused = run("produce", topic, *where, "--set", "linger.mss=5", stdin="x")
    assert refused.code == 2
    assert "linger.mss" in refused.err


def test_create_makes_the_topic(headrace_cluster: Cluster, run: Headrace, headrace_topic: MakeTopic) -> None:
    name = headrace_topic() + "-created"
    done = run("produce", name, "--create", "--partitions", 4, "--bootstrap", headrace_cluster.bootstrap, stdin="x")
    assert done.code == 0
    assert f"created topic {name}" in done.err
    wrong = run("produce", f"{name}-too", "typo.csv", "--create", "--bootstrap", headrace_cluster.bootstrap)
    assert (wrong.code, wrong.err.splitlines()[0]) == (2, "error: there is no file typo.csv")
    with pytest.raises(UsageError, match="there is no file"):
        produce(headrace_cluster, f"{name}-too", run.folder / "typo.csv", create=True)
    assert f"{name}-too" not in {topic.name for topic in Kafka(headrace_cluster).topics()}
    assert len(read(headrace_cluster.bootstrap, name)) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_flushes_what_was_accepted(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, run: Headrace, numbers: Path, number: signal.Signals
) -> None:
    topic = headrace_topic()
    process = run.start(
        "--json", "--bootstrap", headrace_cluster.bootstrap, "produce", topic, numbers, "--rate", "100"
    )  # fmt: skip
    eventually(lambda: len(read(headrace_cluster.bootstrap, topic)) >= 20, 30)
    process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    report = json.loads(out)
    assert process.returncode == 130
    assert report["interrupted"]
    assert report["read"] == report["acknowledged"] == len(read(headrace_cluster.bootstrap, topic)) < 1000


def test_contradictions_are_usage_errors(headrace_cluster: Cluster, headrace_topic: MakeTopic) -> None:
    topic = headrace_topic()
    with pytest.raises(UsageError, match="replay needs the field"):
        produce(headrace_cluster, topic, ["x"], options=ProduceOptions(pace=Pace(replay=2)))
    with pytest.raises(UsageError, match="cannot share one stream"):
        produce(headrace_cluster, topic, "-", options=ProduceOptions(producers=2))


def test_undelivered_records_of_an_earlier_run_are_kept_too(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, run: Headrace
) -> None:
    topic = headrace_topic(max_message_bytes="1000")
    for letter in "ab":
        done = run("produce", topic, "--bootstrap", headrace_cluster.bootstrap, stdin=letter * 2000)
        assert done.code == 1
    kept = (run.folder / f"{topic}.failed.ndjson").read_text().splitlines()
    assert [json.loads(line)["value"][:1] for line in kept] == ["a", "b"]


def test_a_file_of_undelivered_records_that_cannot_be_written(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, run: Headrace
) -> None:
    topic = headrace_topic()
    where = ("--bootstrap", headrace_cluster.bootstrap, "--failed", "/dev/full")
    done = run("produce", topic, *where, stdin="x" * 2_000_000 + "\ny\n")
    assert done.code == 1
    assert "1 record acknowledged, 1 failed, of 2 read" in done.err
    assert "error: not all records could be written to /dev/full" in done.err
    assert "why: No space left on device" in done.err


def test_one_admin_client_is_enough_and_none_outlives_the_call(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, made = headrace_topic(), []
    begin = AdminClient.__init__

    def counted(client: AdminClient, *args: Any, **named: Any) -> None:
        begin(client, *args, **named)
        made.append(weakref.ref(client))

    monkeypatch.setattr(AdminClient, "__init__", counted)
    produce(headrace_cluster, topic, ["a", "b"], create=True)
    assert len(made) == 1
    assert len(list(consume(headrace_cluster, topic))) == 2
    assert len(made) == 2
    with pytest.raises(UsageError) as raised:  # as long as an error is held, so is all that its frames hold
        produce(headrace_cluster, topic, ["a"], options=ProduceOptions(shaping=Shaping(partition=99)))
    with pytest.raises(UsageError) as raised_too:
        list(consume(headrace_cluster, f"not-{topic}"))
    assert (raised.value.exit_code, raised_too.value.exit_code) == (2, 2)
    assert [client() for client in made] == [None] * 4
