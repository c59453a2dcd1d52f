"""Records out of topics: where reading begins and ends, groups and their members, filters, forms."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pyarrow.parquet as pq
import pytest
from confluent_kafka import KafkaError
from kafka import KafkaProducer

from headrace.cluster import Cluster
from headrace.errors import Failed, UsageError
from headrace.kafka import Kafka
from headrace.kafka.batches import headers_in
from headrace.kafka.bounds import Start, Until
from headrace.kafka.browse.browser import Browser, Query
from headrace.kafka.client import Connection
from headrace.kafka.read import member
from headrace.kafka.read.consumer import ConsumeOptions, consume, consume_arrow, reading
from headrace.kafka.read.records import Filter
from headrace.kafka.write.producer import ProduceOptions, produce
from headrace.kafka.write.shaping import Shaping
from headrace.runtime.waiting import eventually
from tests.conftest import Headrace

MakeTopic = Callable[..., str]


@pytest.fixture
def thousand(headrace_cluster: Cluster, headrace_topic: MakeTopic) -> str:
    """A topic of three partitions with 1,000 numbers and random keys 1 to 5."""
    topic = headrace_topic(partitions=3)
    options = ProduceOptions(shaping=Shaping(random_key=(1, 5), seed=1))
    assert produce(headrace_cluster, topic, ({"n": n} for n in range(1000)), options=options).complete
    return topic


def test_everything_once_without_a_group(headrace_cluster: Cluster, thousand: str) -> None:
    values = [json.loads(r.value or b"")["n"] for r in consume(headrace_cluster, thousand)]
    assert sorted(values) == list(range(1000))


def test_a_group_goes_on_where_it_stands(headrace_cluster: Cluster, thousand: str) -> None:
    assert len(list(consume(headrace_cluster, thousand, group=f"{thousand}-g"))) == 1000
    assert list(consume(headrace_cluster, thousand, group=f"{thousand}-g")) == []
    produce(headrace_cluster, thousand, [{"n": -1}])
    assert [r.value for r in consume(headrace_cluster, thousand, group=f"{thousand}-g")] == [b'{"n":-1}']
    assert len(list(consume(headrace_cluster, thousand, group=f"{thousand}-other"))) == 1001


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_share_the_partitions(
    headrace_cluster: Cluster, thousand: str, protocol: Literal["classic", "consumer"]
) -> None:
    options = ConsumeOptions(group=f"{thousand}-{protocol}", members=5, protocol=protocol)
    run = reading(headrace_cluster, [thousand], options=options)
    places = Counter((m.partition(), m.offset()) for batch in run.batches() for m in batch.messages)
    assert len(places) == 1000
    assert max(places.values()) == 1
    owners = {(topic, partition): member for member, topic, partition in run.report.spans}
    assert len(owners) == 3, "three partitions, each read by one member"
    # The classic protocol tells also those who got nothing; the new one has nothing to tell them.
    assert len({event.member for event in run.report.ownership}) == (5 if protocol == "classic" else 3)


def test_a_killed_member_loses_nothing(headrace_cluster: Cluster, thousand: str, run: Headrace) -> None:
    """SIGKILL in the middle: what was written out before and after makes the whole, at least once."""
    group = ("--group", f"{thousand}-killed", "--bootstrap", headrace_cluster.bootstrap)
    out = run.folder / "first.txt"
    process = run.start(
        "consume", thousand, *group, "-f", "-o", out, "--set", "session.timeout.ms=6000"
    )  # fmt: skip
    eventually(lambda: out.exists() and out.stat().st_size > 0, 60)
    process.kill()
    process.communicate()
    second = run("consume", thousand, *group, "--until", "idle:12s")
    assert second.code == 0
    lines = out.read_text().splitlines() + second.out.splitlines()
    assert {json.loads(line)["n"] for line in lines} == set(range(1000))


def test_from_an_offset_and_from_a_time(headrace_cluster: Cluster, headrace_topic: MakeTopic) -> None:
    topic = headrace_topic()
    shaping = ProduceOptions(shaping=Shaping(timestamp_field="at"))
    produce(headrace_cluster, topic, [{"at": 1_600_000_000 + n} for n in range(100)], options=shaping)
    assert [r.offset for r in consume(headrace_cluster, topic, start="95")] == [95, 96, 97, 98, 99]
    at = ConsumeOptions(start=Start("time", 1_600_000_090_000), until=Until("time", 1_600_000_093_000))
    assert [r.offset for r in consume(headrace_cluster, topic, options=at)] == [90, 91, 92]
    assert list(consume(headrace_cluster, topic, start="end")) == []
    clamped = reading(headrace_cluster, [topic], start="500")
    assert list(clamped.batches()) == []
    assert clamped.report.notes == [f"{topic}/0 has offsets 0 to 100: reading from 100"]


def test_only_chosen_partitions(headrace_cluster: Cluster, thousand: str) -> None:
    options = ConsumeOptions(partitions=[1])
    assert {r.partition for r in consume(headrace_cluster, thousand, options=options)} == {1}
    with pytest.raises(UsageError, match="has no partition 9"):
        list(consume(headrace_cluster, thousand, options=ConsumeOptions(partitions=[9])))


def test_keys_are_chosen_and_a_key_that_is_not_there_gives_nothing(
    headrace_cluster: Cluster, thousand: str, run: Headrace
) -> None:
    where = ("--bootstrap", headrace_cluster.bootstrap)
    counts = Counter(r.key for r in consume(headrace_cluster, thousand))
    two = run("consume", thousand, *where, "--key", "1", "--key", "3", "--check-order", "n")
    assert len(two.out.splitlines()) == counts[b"1"] + counts[b"3"]
    assert f"n ascends within each key: {counts[b'1'] + counts[b'3']} records checked" in two.err
    none = run("consume", thousand, *where, "--key", "99")
    assert (none.code, none.out) == (0, "")
    assert "0 of them matched" in none.err


def test_header_and_value_filters(headrace_cluster: Cluster, headrace_topic: MakeTopic) -> None:
    topic = headrace_topic()
    for colour in (b"red", b"blue"):
        options = ProduceOptions(shaping=Shaping(headers=[("colour", colour)]))
        produce(headrace_cluster, topic, ["apple", "plum"], options=options)
    wanted = ConsumeOptions(filter=Filter(headers={"colour": b"red"}, contains=[b"pp"]))
    (record,) = consume(headrace_cluster, topic, options=wanted)
    assert (record.value, record.headers) == (b"apple", (("colour", b"red"),))


def test_count_is_exact_and_commits_only_what_was_handed_on(headrace_cluster: Cluster, thousand: str) -> None:
    group = f"{thousand}-count"
    first = [(r.partition, r.offset) for r in consume(headrace_cluster, thousand, group=group, until="count:7")]
    rest = [(r.partition, r.offset) for r in consume(headrace_cluster, thousand, group=group)]
    assert len(first) == 7
    assert len(rest) == 993
    assert not set(first) & set(rest)


class _BehindAtFirst:
    """A consumer whose first broker has not heard of the topic yet."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._told = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def consume(self, *words: Any) -> list[Any]:
        if self._told:
            return list(self._consumer.consume(*words))
        self._told = True
        error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART, "Subscribed topic not available")
        return [SimpleNamespace(error=lambda: error, topic=lambda: "t", partition=lambda: -1, offset=lambda: -1001)]


def test_a_broker_that_has_not_heard_of_the_topic_is_waited_for(
    headrace_cluster: Cluster, thousand: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Connection.consumer
    monkeypatch.setattr(Connection, "consumer", lambda self, settings: _BehindAtFirst(make(self, settings)))
    assert len(list(consume(headrace_cluster, thousand, group=f"{thousand}-early"))) == 1000
    monkeypatch.setattr(member, "_HEARD_WITHIN_S", 0)
    with pytest.raises(Failed, match="refused to go on reading"):
        list(consume(headrace_cluster, thousand, group=f"{thousand}-never"))


def test_an_abandoned_iteration_leaves_the_rest_to_the_next(headrace_cluster: Cluster, thousand: str) -> None:
    """Breaking off in the middle of a batch hands the whole batch to the next reader: twice, rather than never."""
    group = f"{thousand}-broken"
    seen = []
    stream = consume(headrace_cluster, thousand, group=group)
    for record in stream:
        seen.append((record.partition, record.offset))
        if len(seen) == 10:
            break
    stream.close()  # type: ignore[attr-defined]
    rest = {(r.partition, r.offset) for r in consume(headrace_cluster, thousand, group=group)}
    assert len(rest | set(seen)) == 1000


def test_json_lines_have_everything(headrace_cluster: Cluster, headrace_topic: MakeTopic, run: Headrace) -> None:
    topic = headrace_topic()
    producer = KafkaProducer(bootstrap_servers=headrace_cluster.bootstrap)
    producer.send(topic, key=b"\xff", value="grün".encode(), headers=[("h", b"1")], timestamp_ms=1_600_000_000_000)
    producer.close()
    done = run("consume", topic, "--json", "--bootstrap", headrace_cluster.bootstrap)
    assert json.loads(done.out) == {
        "topic": topic, "partition": 0, "offset": 0, "timestamp": 1_600_000_000_000, "timestamp_type": "create",
        "key": {"base64": "/w=="}, "value": "grün", "headers": [{"name": "h", "value": "1"}], "member": 1,
    }  # fmt: skip


def test_forms_by_suffix(headrace_cluster: Cluster, thousand: str, run: Headrace) -> None:
    where = ("--bootstrap", headrace_cluster.bootstrap)
    for name in ("out.csv", "out.parquet", "out.ndjson", "out.txt"):
        assert run("consume", thousand, *where, "-o", name).code == 0
    assert len((run.folder / "out.csv").read_text().splitlines()) == 1001
    assert pq.read_table(run.folder / "out.parquet").num_rows == 1000
    assert "offset" in json.loads((run.folder / "out.ndjson").read_text().splitlines()[0])
    assert json.loads((run.folder / "out.txt").read_text().splitlines()[0]).keys() == {"n"}
    formatted = run("consume", thousand, *where, "--format", r"%p %o\n", "--partition", "2")
    assert formatted.out.splitlines()[:2] == ["2 0", "2 1"]


def test_arrow_batches(headrace_cluster: Cluster, thousand: str) -> None:
    batches = list(consume_arrow(headrace_cluster, thousand))
    assert sum(batch.num_rows for batch in batches) == 1000
    assert batches[0].schema.names == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]


def test_idle_leaves_after_the_silence(headrace_cluster: Cluster, thousand: str) -> None:
    run = reading(headrace_cluster, [thousand], until="idle:1s")
    assert sum(len(batch.messages) for batch in run.batches()) == 1000
    assert run.report.seconds - run.report.seconds_to_last >= 1, "the silence is no part of the speed"


def test_follow_shows_new_records_and_ctrl_c_ends_it(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, run: Headrace
) -> None:
    topic = headrace_topic()
    process = run.start("consume", topic, "-f", "--bootstrap", headrace_cluster.bootstrap)
    assert process.stdout
    produce(headrace_cluster, topic, ["now"])
    assert process.stdout.readline() == "now\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "processed a total of 1 record " in err


def test_a_reader_that_has_enough_is_no_error(headrace_cluster: Cluster, thousand: str, run: Headrace) -> None:
    """`headrace consume … | head -1`: the closed pipe is not an error, and no count is claimed that is not known."""
    process = run.start("consume", thousand, "-f", "--bootstrap", headrace_cluster.bootstrap)
    assert process.stdout
    assert process.stderr
    process.stdout.readline()
    process.stdout.close()
    produce(headrace_cluster, thousand, ["x" * 100_000])
    assert process.wait(30) == 0
    said = process.stderr.read()
    process.stderr.close()
    assert process.stdin
    process.stdin.close()
    assert "Traceback" not in said
    assert "error" not in said
    assert "stopped: the reader closed the pipe" in said


def test_expired_records_are_not_passed_over_in_silence(headrace_cluster: Cluster, thousand: str) -> None:
    group = f"{thousand}-late"
    list(consume(headrace_cluster, thousand, group=group, until="count:1"))
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    client = AdminClient({"bootstrap.servers": headrace_cluster.bootstrap})
    partitions = [p.partition for p in Kafka(headrace_cluster).topic(thousand).partitions]
    for future in client.delete_records([TopicPartition(thousand, p, 100) for p in partitions]).values():
        future.result()
    run = reading(headrace_cluster, [thousand], group=group)
    read = sum(len(batch.messages) for batch in run.batches())
    assert read == 1000 - 100 * len(partitions)
    assert any("records expired before group" in note for note in run.report.notes)


def test_contradictions_are_usage_errors(headrace_cluster: Cluster, thousand: str) -> None:
    for options in (ConsumeOptions(members=2), ConsumeOptions(start=Start("committed"))):
        with pytest.raises(UsageError):
            reading(headrace_cluster, [thousand], options=options)


def test_no_kafka_at_the_address(run: Headrace, tmp_path: Path) -> None:
    done = run("consume", "t", "--bootstrap", "127.0.0.1:1")
    assert done.code == 4
    assert "no Kafka answers at 127.0.0.1:1" in done.err


def test_from_the_end_moves_a_group_there(headrace_cluster: Cluster, thousand: str) -> None:
    group = f"{thousand}-skips"
    assert list(consume(headrace_cluster, thousand, group=group, start="end")) == []
    assert list(consume(headrace_cluster, thousand, group=group)) == []


def test_where_a_new_group_begins_can_be_said_natively(headrace_cluster: Cluster, thousand: str) -> None:
    latest = ConsumeOptions(settings={"auto.offset.reset": "latest"})
    group = f"{thousand}-latest"
    assert list(consume(headrace_cluster, thousand, group=group, options=latest)) == []
    produce(headrace_cluster, thousand, ["new"])
    assert [r.value for r in consume(headrace_cluster, thousand, group=group, options=latest)] == [b"new"]


def test_a_slow_caller_is_no_silence(headrace_cluster: Cluster, headrace_topic: MakeTopic) -> None:
    """`idle` is the topic's silence: time that the caller spends on a batch does not count."""
    topic = headrace_topic()
    produce(headrace_cluster, topic, map(str, range(25_000)))
    run = reading(headrace_cluster, [topic], until="idle:500ms")
    read = 0
    for batch in run.batches():
        read += len(batch.messages)
        _be_busy(0.6)
    assert read == 25_000


def _be_busy(seconds: float) -> None:
    until = time.monotonic() + seconds
    eventually(lambda: time.monotonic() > until, seconds + 5)


def test_a_group_adds_to_its_file(headrace_cluster: Cluster, thousand: str, run: Headrace) -> None:
    words = ("--group", f"{thousand}-file", "--until", "count:500", "--bootstrap", headrace_cluster.bootstrap)
    for _ in range(2):
        assert run("consume", thousand, *words, "-o", "out.csv").code == 0
    lines = (run.folder / "out.csv").read_text().splitlines()
    assert lines[0].startswith("topic,partition,offset")
    assert len(set(lines)) == len(lines) == 1001
    (run.folder / "out.parquet").touch()
    refused = run("consume", thousand, *words, "-o", "out.parquet")
    assert refused.code == 2
    assert "error: out.parquet exists already" in refused.err


@pytest.mark.parametrize("suffix", ["txt", "parquet"])
def test_sigterm_is_a_clean_stop(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, run: Headrace, suffix: str
) -> None:
    topic = headrace_topic()
    produce(headrace_cluster, topic, map(str, range(1000)))
    group = ("--group", f"{topic}-g", "--bootstrap", headrace_cluster.bootstrap)
    out = run.folder / f"out.{suffix}"
    process = run.start("consume", topic, *group, "-f", "-o", out)
    begun = out if suffix == "txt" else out.with_name("out.parquet.part")
    eventually(lambda: begun.exists() and begun.stat().st_size > 1000, 60)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "processed a total of" in err
    written = len(out.read_text().splitlines()) if suffix == "txt" else pq.read_table(out).num_rows
    rest = run("consume", topic, *group)
    assert written > 0
    assert written + len(rest.out.splitlines()) == 1000


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_what_others_own_is_left_to_them(
    headrace_cluster: Cluster, thousand: str, run: Headrace, protocol: str
) -> None:
    """Reading to the end is over for a member without partitions, once the group says that others have them all."""
    words = ("--group", f"{thousand}-others", "--protocol", protocol, "--bootstrap", headrace_cluster.bootstrap)
    others = run.start("consume", thousand, *words, "-f", "--members", 3, "-o", "others.txt")
    written = run.folder / "others.txt"
    eventually(lambda: written.exists() and len(written.read_text().splitlines()) == 1000, 60)
    late = run("consume", thousand, *words, "--until", "end")
    others.send_signal(signal.SIGTERM)
    others.communicate(timeout=60)
    assert late.code == 0
    assert late.out.splitlines() == []
    assert len(written.read_text().splitlines()) == 1000


def test_a_file_that_is_appended_to_keeps_what_it_held(headrace_cluster: Cluster, thousand: str, run: Headrace) -> None:
    """When the output can take no more, the file is cut back to what it held, not to nothing."""
    held = "mine\n" * 100
    (run.folder / "log").write_text(held)
    words = f"{run.script} consume {thousand} --bootstrap {headrace_cluster.bootstrap}"
    done = subprocess.run(
        ["bash", "-c", f"ulimit -f 2; exec {words} >> log"], cwd=run.folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "error: the output cannot be written" in done.stderr
    log = (run.folder / "log").read_text()
    assert log.startswith(held)
    # What could not be written does not count.
    assert f"processed a total of {len(log.splitlines()) - 100} record" in done.stderr


def test_half_a_record_of_a_killed_consumer_is_set_aside(
    headrace_cluster: Cluster, thousand: str, run: Headrace
) -> None:
    (run.folder / "out.ndjson").write_text('{"whole": 1}\n{"topic": "half a rec')
    done = run(
        "consume",
        thousand,
        "--group",
        f"{thousand}-torn",
        "-o",
        "out.ndjson",
        "--bootstrap",
        headrace_cluster.bootstrap,
    )
    assert done.code == 0
    assert "note: out.ndjson ended in an incomplete line: its 21 bytes went to out.ndjson.torn" in done.err
    lines = (run.folder / "out.ndjson").read_text().splitlines()
    assert len([json.loads(line) for line in lines]) == 1001
    assert (run.folder / "out.ndjson.torn").read_text() == '{"topic": "half a rec\n'


def test_a_scatter_plot_of_classes_that_only_topic_and_partition_know(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, run: Headrace
) -> None:
    two, one = headrace_topic(partitions=2), headrace_topic(partitions=2)
    where = ("--bootstrap", headrace_cluster.bootstrap)
    assert run("sample", "iris", "-o", "iris.csv").code == 0
    route = f"class:virginica={two}/0,setosa={two}/1,versicolor={one}/0+1"
    fields = ("--numbers", "--value-fields", "sepal_length,sepal_width", "--route", route)
    assert run("produce", two, "iris.csv", *fields, *where).code == 0
    series = (f"virginica:red={two}/0", f"setosa:blue={two}/1", f"versicolor:green={one}")
    plot = ("--plot", "iris.png", *(word for text in series for word in ("--plot-series", text)))
    done = run("consume", two, one, "--until", "idle:1s", "--as", "table", *plot, *where)
    assert done.code == 0
    assert len(done.out.splitlines()) == 1 + 150
    assert "plot: iris.png (virginica 50, setosa 50, versicolor 50)" in done.err
    assert (run.folder / "iris.png").read_bytes().startswith(b"\x89PNG")

    nothing = run("consume", two, "--plot", "other.png", "--plot-x", "speed", *where)
    assert nothing.code == 1
    assert "error: there is nothing to draw, so other.png was not created" in nothing.err
    refused = run("consume", two, "--plot", "iris.png", "--plot-series", f"a:red={one}", *where)
    assert (refused.code, "which is not read" in refused.err) == (2, True)


# What is done to a batch: from which byte on, and what it is then.
_PAYLOAD = (61 + 4, b"\xff" * 20)
_HEADERS = {
    "last offset too large": (23, (99 | 0x01000000).to_bytes(4, "big")),
    "last offset too small": (23, (-5).to_bytes(4, "big", signed=True)),
    "unknown format": (16, b"\x09"),
    "no length": (0, b"\0" * 12),
    "no header": (0, b"\0" * 61),
}


# Without compression, other bytes with the right checksum are another record, not a damaged one.
@pytest.mark.parametrize(
    ("codec", "checksum"), [("none", "wrong"), *((c, s) for c in ("gzip", "zstd") for s in ("wrong", "right"))]
)
def test_a_damaged_batch_is_named_and_can_be_left_out(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, run: Headrace, codec: str, checksum: str
) -> None:
    topic = batches(headrace_cluster, headrace_topic(), codec)
    first, last = damage(headrace_cluster, topic, 150, *_PAYLOAD, checksum_is_right=checksum == "right")

    where = ("consume", topic, "--bootstrap", headrace_cluster.bootstrap)
    stopped = run(*where)
    assert stopped.code == 1
    assert f"a batch of {topic}/0 is damaged: offsets {first} to {last}" in stopped.err
    assert "--on-bad skip" in stopped.err
    assert stopped.out.split() == [value(n) for n in range(first)]  # what came before it was not lost
    went_on = run(*where, "--group", topic, "--on-bad", "skip")
    assert went_on.code == 0, went_on.err
    assert went_on.out.split() == [value(n) for n in range(400) if not first <= n <= last]
    assert f"left out: {last - first + 1} records in 1 damaged batch" in went_on.err
    assert f"{topic}/0, offsets {first} to {last}" in went_on.err
    assert run(*where, "--group", topic).out == ""  # the group stands at the end, behind the damage
    with Browser(headrace_cluster) as browser:
        for begin in ("beginning", "end", "150"):
            page = browser.page(Query(topic, start=Start.parse(begin), limit=400))
            assert [(lost.first_offset, lost.last_offset) for lost in page.damaged] == [(first, last)]
            expected = [n for n in range(150 * (begin == "150"), 400) if not first <= n <= last]
            assert sorted(r.offset for r in page.records) == expected
        with pytest.raises(Failed, match=f"damaged: {topic}/0, offsets {first} to {last}"):
            browser.record(topic, 0, 150)
        with pytest.raises(Failed, match="damaged"):
            list(browser.lines(Query(topic, limit=400)))
    counted = run(*where, "--on-bad", "skip", "--until", "count:250")
    assert (counted.code, len(counted.out.split())) == (0, 250)


# librdkafka itself ends the process, by an assertion, where nothing but zeros follow good batches in one answer.
@pytest.mark.parametrize(
    ("what", "start"), [(what, start) for what in _HEADERS for start in (0, 100) if what != "no header" or start]
)
def test_a_damaged_header_loses_what_no_broker_gives_any_more_and_no_more(
    headrace_cluster: Cluster, headrace_topic: MakeTopic, what: str, start: int
) -> None:
    """A broker looks for offsets by the headers: behind one without a length it finds only what its index leads to."""
    topic = batches(headrace_cluster, headrace_topic(), "none")
    damage(headrace_cluster, topic, 150, *_HEADERS[what])
    options = ConsumeOptions(on_bad="skip", group=topic, start=Start("offset", start))
    run = reading(headrace_cluster, [topic], options=options)
    found = [record.offset for batch in run.batches() for record in batch.records()]
    lost = {n for b in run.report.damaged for n in range(b.first_offset, b.last_offset + 1)}
    assert found == [n for n in range(start, 400) if n not in lost and n not in range(100, 200)]
    assert lost <= set(range(100, 299)), run.report.damaged
    assert list(consume(headrace_cluster, topic, group=topic)) == []


def value(number: int) -> str:
    return f"{number:060}"


def batches(cluster: Cluster, topic: str, codec: str) -> str:
    """The topic with four batches of 100 records, each long enough for an entry in the index of the log."""
    options = ProduceOptions(settings={"compression.type": codec})
    for first in range(0, 400, 100):
        assert produce(cluster, topic, map(value, range(first, first + 100)), options=options).complete
    return topic


def damage(
    cluster: Cluster, topic: str, offset: int, at_byte: int, wrong: bytes, *, checksum_is_right: bool = False
) -> tuple[int, int]:
    """The batch with the offset has other bytes on the disk; its first and last offset."""
    from kafka.record.util import calc_crc32c

    [leader] = [p.leader for p in Kafka(cluster).topic(topic).partitions]
    [path] = (cluster.home.node(f"broker-{leader}") / "data" / f"{topic}-0").glob("*.log")
    data = bytearray(path.read_bytes())
    at = 0
    for header in headers_in(bytes(data)):
        if header.base_offset <= offset <= header.last_offset:
            break
        at += header.size_bytes
    data[at + at_byte : at + at_byte + len(wrong)] = wrong
    if checksum_is_right:
        data[at + 17 : at + 21] = calc_crc32c(bytes(data[at + 21 : at + header.size_bytes])).to_bytes(4, "big")
    with path.open("r+b") as file:  # in place: the broker serves what lies in the page cache
        file.seek(at)
        file.write(data[at : at + header.size_bytes])
    return header.base_offset, header.last_offset
