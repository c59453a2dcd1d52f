"""Looking at records without taking part: pages, searches, a tail, and what became of each record."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from headrace.cluster import Cluster
from headrace.errors import NotFound
from headrace.kafka import Kafka
from headrace.kafka.bounds import Start
from headrace.kafka.browse.browser import Browser, Query
from headrace.kafka.browse.expression import Expression
from headrace.kafka.browse.render import Renderer
from headrace.kafka.browse.tail import Tail
from headrace.kafka.browse.visibility import Visibility
from headrace.kafka.client import HasBootstrap, connect
from headrace.kafka.survey import Survey
from headrace.kafka.write.producer import produce
from headrace.runtime.waiting import eventually
from tests.records import wait_settled

MakeTopic = Callable[..., str]


@pytest.fixture
def browser(headrace_cluster: HasBootstrap) -> Iterator[Browser]:
    with Browser(headrace_cluster) as browser:
        yield browser


def transaction(where: HasBootstrap, topic: str, values: list[str], end: str | None, partition: int = 0) -> Any:
    producer = connect(where).producer({"transactional.id": f"tx-{uuid.uuid4().hex[:8]}", "compression.type": "lz4"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=partition)
    producer.flush(10)
    if end == "commit":
        producer.commit_transaction(30)
    elif end == "abort":
        producer.abort_transaction(30)
    return producer


def fates(browser: Browser, topic: str, **settings: Any) -> dict[str, str]:
    page = browser.page(Query(topic, start=Start("beginning"), limit=500, **settings))
    return {record.value.text or "": record.mark for record in page.records if record.mark != "control"}


def test_every_record_is_shown_with_what_became_of_it(
    browser: Browser, headrace_cluster: HasBootstrap, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic()
    produce(headrace_cluster, topic, ["plain"])
    transaction(headrace_cluster, topic, ["kept 1", "kept 2"], "commit")
    transaction(headrace_cluster, topic, ["dropped 1", "dropped 2"], "abort")
    still_open = transaction(headrace_cluster, topic, ["waiting"], None)
    # Behind an open transaction the last stable offset stands still, and yet these two have been decided.
    transaction(headrace_cluster, topic, ["kept late"], "commit")
    transaction(headrace_cluster, topic, ["dropped late"], "abort")
    decided = {
        "plain": "committed", "kept 1": "committed", "kept 2": "committed", "dropped 1": "aborted",
        "dropped 2": "aborted", "waiting": "open", "kept late": "committed", "dropped late": "aborted",
    }  # fmt: skip
    eventually(lambda: fates(browser, topic) == decided, 10)
    page = browser.page(Query(topic, start=Start("beginning"), limit=500))
    assert [r.value.text for r in page.records if r.mark == "control"] == [
        "commit marker", "abort marker", "commit marker", "abort marker",
    ]  # fmt: skip
    span = page.spans[0]
    waiting = next(r for r in page.records if r.value.text == "waiting")
    assert span.last_stable_offset == waiting.offset < span.high_watermark
    assert all(r.sure for r in page.records)
    still_open.abort_transaction(30)
    eventually(lambda: browser.marks(topic, [(0, waiting.offset)])[0, waiting.offset] == "aborted", 10)


def test_the_newest_first_and_back_through_all_of_them(
    browser: Browser, headrace_cluster: HasBootstrap, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic(partitions=3)
    produce(headrace_cluster, topic, (str(n) for n in range(200)))
    seen: list[tuple[int, int]] = []
    query = Query(topic, limit=30)
    for _ in range(20):
        page = browser.page(query)
        seen += [(r.partition, r.offset) for r in page.records]
        if not page.records:
            break
        query = Query(topic, limit=30, positions={s.partition: s.first or 0 for s in page.spans})
    assert len(seen) == len(set(seen)) == 200
    for partition in range(3):
        of_partition = [offset for number, offset in seen if number == partition]
        assert of_partition == sorted(of_partition, reverse=True)


def test_from_an_offset_a_time_and_the_beginning(
    browser: Browser, headrace_cluster: HasBootstrap, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic(retention_ms="-1")
    producer = connect(headrace_cluster).producer()
    for number in range(100):
        producer.produce(topic, str(number), timestamp=1_600_000_000_000 + number * 1000)
    assert producer.flush(30) == 0

    def values(start: str) -> list[str | None]:
        return [r.value.text for r in browser.page(Query(topic, start=Start.parse(start), limit=3)).records]

    assert values("beginning") == ["0", "1", "2"]
    assert values("41") == ["41", "42", "43"]
    assert values("@1600000050000") == ["50", "51", "52"]
    assert values("end") == ["99", "98", "97"]
    assert values("5000") == []


def test_filters_look_through_everything(
    browser: Browser, headrace_cluster: HasBootstrap, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic(partitions=2)
    producer = connect(headrace_cluster).producer()
    for number in range(3000):
        headers = [("kind", b"rare")] if number == 1234 else None
        producer.produce(
            topic, json.dumps({"n": number, "even": number % 2 == 0}), key=f"k{number % 7}", headers=headers
        )
    assert producer.flush(30) == 0

    def found(**wanted: Any) -> list[int]:
        page = browser.page(Query(topic, start=Start("beginning"), limit=100, **wanted))
        assert page.complete
        return sorted(json.loads(r.value.text or "")["n"] for r in page.records)

    assert found(expression=Expression("value.n >= 2990 and value.even")) == [2990, 2992, 2994, 2996, 2998]
    assert found(header="kind") == found(header="kind=rare") == [1234]
    assert found(header="kind=common") == []
    assert found(contains='"n": 77,') == [77]
    assert len(found(key="k3", expression=Expression("value.n < 70"))) == 10
    even = Expression("value.even")
    backwards = browser.page(Query(topic, limit=3, partitions=(1,), expression=even))
    of_partition = browser.page(Query(topic, start=Start("beginning"), limit=1000, partitions=(1,), expression=even))
    assert backwards.records == of_partition.records[:-4:-1]


def test_bytes_look_like_what_they_are(
    browser: Browser, headrace_cluster: HasBootstrap, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic(max_message_bytes="8000000")
    producer = connect(headrace_cluster).producer({"message.max.bytes": 8_000_000})
    large = json.dumps({"x": "y" * 5_000_000}).encode()
    for value in (b'{"a": 1}', "grüße".encode(), b"\x00\x01\xff", None, b"", large):
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0
    shown = [r.value for r in browser.page(Query(topic, start=Start("beginning"))).records]
    assert [s.kind for s in shown] == ["json", "text", "bytes", "null", "text", "json"]
    assert shown[2].text == "00 01 ff"
    assert shown[3].text is None
    assert shown[5].cut
    assert len(shown[5].text or "") <= 2000
    assert shown[5].size_bytes == len(large)
    assert browser.record(topic, 0, 5)[1] == large


class Unreadable(str):
    """The name of a header that is not UTF-8: kafka-python writes whatever `encode` gives."""

    def encode(self, *_: Any) -> bytes:
        return b"\xff\xfe\xed\xa0\x80"


def test_whatever_bytes_a_record_holds_it_is_shown(
    browser: Browser, headrace_cluster: HasBootstrap, headrace_topic: MakeTopic
) -> None:
    from kafka import KafkaProducer

    topic = headrace_topic(max_message_bytes="3000000")
    deep = (b"[" * 5000 + b"]" * 5000, b"[" * 5000, b'{"a":' * 3000 + b"1" + b"}" * 3000, b"[" * 2_000_000)
    odd = (
        b"[" + b"9" * 6000 + b"]",
        b"[1e99999, NaN]",
        b'["\\ud800"]',
        b"\xed\xa0\x80",
        b"\x00\x00\x00\x00\x01",
        b"",
        None,
    )
    producer = connect(headrace_cluster).producer({"message.max.bytes": 3_000_000})
    for value in (*deep, *odd):
        key = value if value is None or len(value) < 20_000 else None
        producer.produce(topic, value, key=key, headers=[("odd", key), ("\u202e\n", b"\xff")], partition=0)
    assert producer.flush(30) == 0
    last = len(deep) + len(odd)
    with closing(KafkaProducer(bootstrap_servers=headrace_cluster.bootstrap.split(","))) as other:
        for _ in range(20):  # a process crashes at the list that its client makes of them, but not at the first
            other.send(topic, b"x", headers=[("fine", b"1"), (Unreadable("name"), b"2")], partition=0)
        other.flush(30)
    page = browser.page(Query(topic, start=Start("beginning"), limit=100))
    assert [r.offset for r in page.records] == list(range(last + 20))
    assert all(r.value.text is not None for r in page.records if r.offset != last - 1)
    assert all("not UTF-8" in r.headers[0][0] for r in page.records[last:])
    for where in ("value.a > 1", "key == 1", 'headers["odd"] == "x"'):
        found = browser.page(Query(topic, start=Start("beginning"), limit=100, expression=Expression(where)))
        assert found.looked_at == last + 20
    for offset in range(last + 1):
        assert browser.record(topic, 0, offset)[0].offset == offset
    assert len(b"".join(browser.lines(Query(topic, limit=100))).splitlines()) == last + 20


def test_records_that_flow_are_not_behind_a_transaction(
    browser: Browser, headrace_cluster: HasBootstrap, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic(partitions=2)
    produce(headrace_cluster, topic, ["first"])
    stop = threading.Event()
    writer = threading.Thread(
        target=produce, args=(headrace_cluster, topic, iter(lambda: "x" if not stop.is_set() else None, None))
    )
    writer.start()
    try:
        spans = [span for _ in range(50) for span in browser.page(Query(topic, limit=1)).spans]
    finally:
        stop.set()
        writer.join()
    assert len({span.high_watermark for span in spans}) > 10, "records flowed meanwhile"
    assert all(span.last_stable_offset == span.high_watermark for span in spans)


def test_a_late_answer_about_one_topic_says_nothing_about_another(
    headrace_faults: Cluster, headrace_topic: MakeTopic
) -> None:
    with Kafka(headrace_faults) as admin, Survey(headrace_faults, timeout_s=0.3) as survey:
        kept, dropped = (admin.topic(headrace_topic(partitions=3, replication=1)) for _ in range(2))
        leader = kept.partitions[0].leader
        at = next(p.partition for p in dropped.partitions if p.leader == leader)
        transaction(headrace_faults, kept.name, ["kept"], "commit")
        transaction(headrace_faults, dropped.name, ["dropped"], "abort", partition=at)
        visibility = Visibility(survey)

        def fate_of_kept() -> str:
            return visibility.log(kept, 0, [0]).mark(0)[0]

        def fate_of_dropped() -> str:
            return visibility.log(dropped, at, [0]).mark(0)[0]

        def told(fate: str) -> str | None:
            return None if fate == "unknown" else fate

        survey.metadata()
        eventually(lambda: fate_of_kept() == "committed", 30)
        headrace_faults.pause(leader)
        assert fate_of_kept() == "unknown"
        headrace_faults.resume(leader)
        eventually(lambda: not survey.quiet(leader), 30)
        headrace_faults.pause(leader)
        assert fate_of_dropped() == "unknown"
        assert fate_of_dropped() == "unknown"
        headrace_faults.resume(leader)
        assert eventually(lambda: told(fate_of_dropped()), 30) == "aborted"
        assert eventually(lambda: told(fate_of_kept()), 30) == "committed"


def test_markers_of_transactions_are_not_counted_as_records(
    browser: Browser, headrace_cluster: HasBootstrap, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic(partitions=2)
    producer = connect(headrace_cluster).producer({"transactional.id": f"t-{uuid.uuid4().hex}"})
    producer.init_transactions(30)
    for number in range(15):
        producer.begin_transaction()
        for _ in range(6 if number < 5 else 5):
            producer.produce(topic, b"x", partition=number % 2)
        assert producer.flush(30) == 0  # an abort takes back what was not sent yet
        producer.abort_transaction(30) if number == 7 else producer.commit_transaction(30)
    wait_settled(headrace_cluster.bootstrap, topic)  # the last marker is written behind the answer
    with Kafka(headrace_cluster) as admin:
        described = admin.describe(topic)
        assert (described.offsets, browser.count(described)) == (95, 80)
        admin.clean_topic(topic)
        produce(headrace_cluster, topic, ["a", "b", "c"])
        assert browser.count(admin.describe(topic)) == 3


def test_looking_leaves_no_group_behind(
    browser: Browser, headrace_cluster: HasBootstrap, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic()
    produce(headrace_cluster, topic, ["a"])
    browser.page(Query(topic))
    with Kafka(headrace_cluster) as kafka:
        assert not [g.group for g in kafka.groups.list() if g.group.startswith("headrace-")]


def test_what_is_not_there_is_said(browser: Browser, headrace_topic: MakeTopic) -> None:
    topic = headrace_topic()
    ninth = Query(topic, partitions=(9,))
    for look in (lambda: browser.page(ninth), lambda: browser.record(topic, 9, 0), lambda: list(browser.lines(ninth)),
                 lambda: browser.batches(topic, 9)):  # fmt: skip
        with pytest.raises(NotFound, match="has no partition 9"):
            look()
    with pytest.raises(NotFound, match="no record at offset 5"):
        browser.record(topic, 0, 5)
    for name in ("\0", "a b", "..", "", "x" * 250):
        with pytest.raises(NotFound, match="there is no topic"):
            browser.page(Query(name))
    assert browser.page(Query(topic)).records == ()


def test_lines_are_those_of_consume(
    browser: Browser, headrace_cluster: HasBootstrap, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic(partitions=2)
    produce(headrace_cluster, topic, (str(n) for n in range(500)))
    rows = [json.loads(line) for line in b"".join(browser.lines(Query(topic, limit=1000))).splitlines()]
    assert sorted(int(row["value"]) for row in rows) == list(range(500))
    assert len(b"".join(browser.lines(Query(topic, limit=7))).splitlines()) == 7


def test_a_tail_shows_what_is_written_from_now_on(headrace_cluster: HasBootstrap, headrace_topic: MakeTopic) -> None:
    topic = headrace_topic(partitions=2)
    produce(headrace_cluster, topic, ["before"])
    tail = Tail(headrace_cluster, Query(topic, expression=Expression("value != 3")), (0, 1), Renderer())
    tail.start()
    try:
        # It begins at the end as of its first look; what is written until then belongs to before.
        eventually(lambda: produce(headrace_cluster, topic, ["probe"]).acknowledged and tail.take().seen, 15)
        produce(headrace_cluster, topic, (str(n) for n in range(5)))
        seen: list[str | None] = []

        def all_came() -> bool:
            seen.extend(r.value.text for r in tail.take().records)
            return {"0", "1", "2", "4"} <= set(seen)

        eventually(all_came, 15)
        assert "before" not in seen
        assert "3" not in seen
    finally:
        tail.stop()
