"""Looking at records without taking part: pages, searches, a tail, and what became of each record."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace.errors import UsageError
from headrace.runtime.waiting import eventually
from headrace.transport.browse import Browser, Query
from headrace.transport.client import HasBootstrap, connect
from headrace.transport.expression import Expression
from headrace.transport.groups import Groups
from headrace.transport.looks import Look
from headrace.transport.offsets import Start
from headrace.transport.produce import produce
from headrace.transport.tail import Tail

MakeTopic = Callable[..., str]


@pytest.fixture
def browser(headrace_cluster: HasBootstrap) -> Iterator[Browser]:
    with Browser(headrace_cluster) as browser:
        yield browser


def transaction(where: HasBootstrap, topic: str, values: list[str], end: str | None) -> Any:
    producer = connect(where).producer({"transactional.id": f"tx-{uuid.uuid4().hex[:8]}", "compression.type": "lz4"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=0)
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
    began = time.monotonic()
    shown = [r.value for r in browser.page(Query(topic, start=Start("beginning"))).records]
    assert time.monotonic() - began < 5
    assert [s.kind for s in shown] == ["json", "text", "bytes", "null", "text", "json"]
    assert shown[2].text == "00 01 ff"
    assert shown[3].text is None
    assert shown[5].cut
    assert len(shown[5].text or "") <= 2000
    assert shown[5].size_bytes == len(large)
    assert browser.record(topic, 0, 5)[1] == large


def test_looking_leaves_no_group_behind(
    browser: Browser, headrace_cluster: HasBootstrap, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic()
    produce(headrace_cluster, topic, ["a"])
    browser.page(Query(topic))
    with Groups(headrace_cluster) as groups:
        assert not [g.group for g in groups.list() if g.group.startswith("headrace-")]


def test_what_is_not_there_is_said(browser: Browser, headrace_topic: MakeTopic) -> None:
    topic = headrace_topic()
    with pytest.raises(UsageError, match="has no partition 9"):
        browser.page(Query(topic, partitions=(9,)))
    with pytest.raises(UsageError, match="no record at offset 5"):
        browser.record(topic, 0, 5)
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
    tail = Tail(headrace_cluster, Query(topic, expression=Expression("value != 3")), (0, 1), Look())
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
