"""The pages in a real browser: their numbers are the cluster's, and what is done in them is done."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import expect

from headrace.cluster import Cluster
from headrace.kafka import Kafka
from headrace.kafka.client import connect
from headrace.kafka.read.consumer import consume
from headrace.kafka.write.pace import Pace
from headrace.kafka.write.producer import ProduceOptions, produce
from headrace.runtime.waiting import eventually
from tests.browser.driving import ConsoleUnderTest, Window

MakeTopic = Callable[..., str]


def new_name(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex[:8]}"


@contextmanager
def flowing(cluster: Cluster, topic: str, rate: float = 200) -> Iterator[list[int]]:
    """Records are written while the block runs; the list holds how many were acknowledged in the end."""
    stop, counted = threading.Event(), [0]

    def numbers() -> Iterator[str]:
        number = 0
        while not stop.is_set():
            yield str(number)
            number += 1

    def write() -> None:
        report = produce(cluster, topic, numbers(), options=ProduceOptions(pace=Pace(rate=rate)))
        counted[0] = report.acknowledged

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield counted
    finally:
        stop.set()
        thread.join()


def number_in(text: str | None) -> int:
    return int(re.sub(r"\D", "", text or "") or 0)


def test_the_overview_counts_what_there_is(
    window: Window, headrace_cluster: Cluster, headrace_topic: MakeTopic
) -> None:
    headrace_topic(partitions=4)
    page = window.open("/")
    expect(page.locator(".bar .state")).to_have_text(re.compile("healthy|degraded|critical"))
    with Kafka(headrace_cluster) as admin:
        expect(window.tile("Topics")).to_have_text(f"{len(admin.topics()):,}")
    for broker in (1, 2, 3):
        expect(page.get_by_role("link", name=f"broker {broker}")).to_be_visible()
    expect(page.locator(".event").first).to_be_visible()


def test_the_numbers_of_a_topic_are_kafkas_while_records_flow(
    window: Window, headrace_cluster: Cluster, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic(partitions=3)
    page = window.open(f"/topics/{topic}")
    with flowing(headrace_cluster, topic) as written:
        expect(window.tile("Records in")).not_to_have_text(re.compile("^(\N{EN DASH}|0 /s)$"))
        first = number_in(window.tile("Offsets").text_content())
        eventually(lambda: number_in(window.tile("Offsets").text_content()) > first, 30)
    expect(window.tile("Offsets")).to_have_text(f"{written[0]:,}")
    rows = page.locator(".grid tbody tr")

    def shown() -> list[list[str]]:
        cells: list[list[str]] = rows.evaluate_all(
            "rows => rows.map(row => [...row.cells].map(c => c.innerText.trim()))"
        )
        return [[row[0], row[1], row[5], row[6]] for row in cells]

    def kafkas() -> list[list[str]]:
        return [
            [f"{p.partition}", f"broker {p.leader}", f"{p.end:,}", f"{p.offsets:,}"]
            for p in admin.describe(topic).partitions
        ]

    with Kafka(headrace_cluster) as admin:
        eventually(lambda: shown() == kafkas(), 30)
        assert admin.describe(topic).offsets == written[0]


def test_a_topic_is_created_through_the_form(window: Window, headrace_cluster: Cluster) -> None:
    name = new_name("made")
    page = window.open("/topics")
    page.get_by_role("button", name="Create topic").click()
    page.get_by_label("Name").fill("not a name!")
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.get_by_text("letters, digits, . _ and - only")).to_be_visible()
    page.get_by_label("Name").fill(name)
    page.get_by_label("Partitions").fill("5")
    page.get_by_role("button", name="Add a setting").click()
    page.get_by_label("Setting").fill("retention.ms")
    page.get_by_label("Value").fill("3600000")
    command = f"headrace topic create {name} --partitions 5 --replication 3 --set retention.ms=3600000"
    expect(page.locator(".equal pre")).to_have_text(command)
    page.get_by_role("tab", name="Kafka's tools").click()
    expect(page.locator(".equal pre")).to_contain_text("kafka-topics.sh")
    page.get_by_role("button", name="Create", exact=True).click()
    summary = page.get_by_role("dialog").filter(has_text=f"{name} is created")
    for word in ("Partitions", "5", "Replication", "3", "min.insync.replicas", "cleanup.policy", "3600000 (1 h 0 min)"):
        expect(summary).to_contain_text(word)
    expect(summary).to_contain_text("retention.bytes")
    with Kafka(headrace_cluster) as admin:
        described = admin.describe(name)
    assert len(described.partitions) == 5
    assert described.configs["retention.ms"].value == "3600000"
    summary.get_by_role("button", name="Open").click()
    expect(page.get_by_role("heading", name=name)).to_be_visible()


def test_what_kafka_refuses_is_said_in_words(
    window: Window, headrace_cluster: Cluster, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic()
    page = window.open("/topics")
    page.get_by_role("button", name="Create topic").click()
    page.get_by_label("Name").fill(topic)
    page.get_by_role("button", name="Create", exact=True).click()
    expect(page.locator(".problem")).to_contain_text(f"the topic {topic!r} exists already")


def test_a_topic_is_altered_cleaned_and_deleted(
    window: Window, headrace_cluster: Cluster, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic(partitions=2)
    produce(headrace_cluster, topic, ["a", "b", "c"])
    page = window.open(f"/topics/{topic}")
    page.get_by_role("button", name="Alter").click()
    page.get_by_label("Partitions (they can only grow)").fill("4")
    expect(page.get_by_text("Keys map to other partitions")).to_be_visible()
    page.get_by_role("dialog").get_by_role("button", name="Alter").click()
    with Kafka(headrace_cluster) as admin:
        eventually(lambda: len(admin.topic(topic).partitions) == 4, 30)
        page.get_by_role("button", name="Clean").click()
        page.get_by_role("button", name="Delete the records").click()
        eventually(lambda: admin.describe(topic).offsets == 0, 30)
        page.get_by_role("button", name="Delete", exact=True).click()
        act = page.get_by_role("button", name="Delete the topic")
        expect(act).to_be_disabled()
        page.get_by_label(f"Type {topic} to confirm").fill(topic)
        act.click()
        eventually(lambda: topic not in {t.name for t in admin.topics()}, 30)


def test_settings_and_readers_stand_beside_the_topic(
    window: Window, headrace_cluster: Cluster, headrace_topic: MakeTopic
) -> None:
    topic, group = headrace_topic(retention_ms="7200000"), new_name("reader")
    produce(headrace_cluster, topic, ["a"])
    consumer = connect(headrace_cluster).consumer({"group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    try:
        eventually(lambda: consumer.poll(0.5), 60)
        consumer.commit(asynchronous=False)
        page = window.open(f"/topics/{topic}")
        page.get_by_role("tab", name="Settings").click()
        expect(window.row("retention.ms")).to_contain_text("7200000 (2 h 0 min)")
        page.get_by_role("tab", name="Readers").click()
        expect(page.get_by_role("link", name=group)).to_be_visible()
        page.get_by_role("tab", name="Segments").click()
        expect(window.row("00000000000000000000.log")).to_be_visible()
    finally:
        consumer.close()


def test_records_are_browsed_with_their_fate(
    window: Window, headrace_cluster: Cluster, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic()
    produce(headrace_cluster, topic, ({"n": n} for n in range(30)))
    producer = connect(headrace_cluster).producer({"transactional.id": new_name("tx")})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "taken back", partition=0)
    producer.flush(10)
    page = window.open(f"/records/{topic}")
    expect(window.row("taken back").locator(".mark")).to_have_text("open")
    expect(page.locator(".log .open")).to_contain_text("1 behind an open transaction")
    producer.abort_transaction(30)

    def marker_is_there() -> bool:
        page.get_by_role("button", name="Search").click()
        return window.row("abort marker").count() > 0

    eventually(marker_is_there, 30)  # it is written behind the answer
    expect(window.row("taken back").locator(".mark")).to_have_text("aborted")
    expect(window.row("abort marker").locator(".mark")).to_have_text("control")
    page.get_by_label("Expression").fill("value.n in [3, 5]")
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".grid tbody tr")).to_have_count(2)
    expect(page.get_by_text("2 records of 31 scanned")).to_be_visible()
    page.get_by_label("Expression").fill("__import__('os')")
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".problem")).to_contain_text("unknown function")
    page.get_by_label("Expression").fill("value.n == 5")
    page.get_by_role("button", name="Search").click()
    page.locator("button.opener").first.click()
    expect(page.get_by_role("dialog").locator(".payload").nth(1)).to_have_text(re.compile(r'\{\s+"n": 5\s+\}'))


def test_records_of_any_bytes_can_be_opened(
    window: Window, headrace_cluster: Cluster, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic()
    values = (b"[" * 5000 + b"]" * 5000, b"[" + b"9" * 6000 + b"]", b'["\\ud800"]', b"\xed\xa0\x80")
    producer = connect(headrace_cluster).producer()
    for value in values:
        producer.produce(topic, value, key=value, headers=[("h", value)], partition=0)
    assert producer.flush(10) == 0
    page = window.open(f"/records/{topic}")
    for number, beginning in enumerate(("ed a0 80", '["\\ud800"]', "[999", "[[[[")):
        page.locator("button.opener").nth(number).click()
        expect(page.get_by_role("dialog").locator(".payload").last).to_contain_text(beginning)
        page.get_by_role("button", name="Close").click()
        expect(page.get_by_role("dialog")).to_have_count(0)


def test_a_tail_shows_records_as_they_are_written(
    window: Window, headrace_cluster: Cluster, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic(partitions=2)
    page = window.open(f"/records/{topic}")
    expect(page.get_by_text("No records", exact=True)).to_be_visible()
    page.get_by_role("button", name="Follow").click()
    expect(page.get_by_text("following: 0 written since")).to_be_visible()
    with flowing(headrace_cluster, topic, rate=20):
        expect(page.locator(".grid tbody tr").nth(10)).to_be_visible()
        expect(page.locator(".grid .mark").first).to_have_text("committed")
        newest = number_in(page.locator(".grid tbody tr").first.locator("td").nth(6).text_content())
        eventually(
            lambda: number_in(page.locator(".grid tbody tr").first.locator("td").nth(6).text_content()) > newest, 15
        )
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Follow")).to_be_visible()


def test_a_record_is_produced_through_the_form(
    window: Window, headrace_cluster: Cluster, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic(partitions=3)
    page = window.open(f"/topics/{topic}")
    page.get_by_role("button", name="Produce").click()
    page.get_by_label("Key").fill("bus-7")
    page.get_by_label("Value").fill('{"trip": 5}')
    page.get_by_label("Headers").fill("source=form")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".good-news")).to_contain_text("written to partition")
    record = next(iter(consume(headrace_cluster, topic)))
    assert (record.key, record.value, record.headers) == (b"bus-7", b'{"trip": 5}', (("source", b"form"),))


def test_a_group_with_its_lag_members_and_a_reset(
    window: Window, headrace_cluster: Cluster, headrace_topic: MakeTopic
) -> None:
    topic, group = headrace_topic(partitions=2), new_name("group")
    for partition in range(2):
        produce(headrace_cluster, topic, (str(n) for n in range(50)), options=_to(partition))
    consumer = connect(headrace_cluster).consumer(
        {"group.id": group, "client.id": "reader-1", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.subscribe([topic])
    first = eventually(lambda: consumer.poll(0.5), 60)
    consumer.commit(first, asynchronous=False)
    page = window.open("/groups")
    page.get_by_role("link", name=group).click()
    with Kafka(headrace_cluster) as kafka:
        expect(window.tile("Lag")).to_have_text(f"{kafka.groups.describe(group).lag:,}")
        expect(window.tile("State")).to_have_text("Stable")
        expect(window.card("Members")).to_contain_text("reader-1")
        page.get_by_role("button", name="Reset offsets").click()
        page.get_by_role("button", name="Preview").click()
        expect(page.get_by_role("dialog").locator(".problem")).to_contain_text("has 1 member: reader-1")
        consumer.close()
        eventually(lambda: kafka.groups.describe(group).state == "Empty", 20)
        page.get_by_role("button", name="Preview").click()
        plan = page.get_by_role("dialog").locator(".grid tbody tr")
        expect(plan).to_have_count(2)
        reset = page.get_by_role("dialog").get_by_role("button", name="Reset", exact=True)
        reset.click()
        eventually(lambda: {o.committed for o in kafka.groups.describe(group).offsets or ()} == {0}, 30)
    expect(window.tile("Lag")).to_have_text("100")


def _to(partition: int) -> ProduceOptions:
    from headrace.kafka.write.shaping import Shaping

    return ProduceOptions(shaping=Shaping(partition=partition))


def test_the_grid_shows_where_the_replicas_are(
    window: Window, headrace_cluster: Cluster, headrace_topic: MakeTopic
) -> None:
    topic = headrace_topic(partitions=6)
    page = window.open("/brokers")
    page.get_by_label("Topic").click()
    page.get_by_label("Topic").fill(topic)
    page.get_by_role("option", name=topic).click()
    cells = page.locator("table.replicas td[title]")

    def drawn() -> dict[str, str]:
        return dict(cells.evaluate_all("cells => cells.map(cell => [cell.title, cell.textContent])"))

    def kafkas() -> dict[str, str]:
        return {
            f"broker {broker}, partition {p.partition}": "L" if broker == p.leader else "F" if broker in p.isr else "✕"
            for p in admin.topic(topic).partitions
            for broker in p.replicas
        }

    with Kafka(headrace_cluster) as admin:
        eventually(lambda: drawn() == kafkas(), 30)  # a busy broker may leave the ISR for a moment
        assert len(drawn()) == 18


def test_a_broker_is_killed_turns_red_and_comes_back(
    window: Window, headrace_faults: Cluster, headrace_topic: MakeTopic, console: ConsoleUnderTest
) -> None:
    topic = headrace_topic(partitions=6)
    page = window.open("/brokers")
    line = page.locator('.node[data-node="broker-2"]')
    asked = page.get_by_role("dialog")
    # Only who has seen the leaders of before can tell that they are others.
    eventually(lambda: console.get(f"/api/events?topic={topic}"), 60)
    line.get_by_role("button", name="kill").click()
    expect(page.locator(".equal pre")).to_have_text("headrace kill broker-2")
    asked.get_by_role("button", name="Kill").click()
    expect(line.locator(".state")).to_have_text("dead")
    broker = page.locator(".grid tbody tr").nth(1).locator(".state")
    expect(broker).to_have_text("down")
    expect(broker).to_have_attribute("data-state", "bad")
    expect(page.locator(".bar .state")).to_have_text("critical")
    expect(page.locator(".bar .state")).to_have_attribute("data-state", "bad")
    # A process is seen to be dead before the cluster has missed it.
    eventually(lambda: console.get("/api/overview")["snapshot"]["totals"]["under_replicated"], 60)
    line.get_by_role("button", name="start").click()
    asked.get_by_role("button", name="Start").click()
    expect(page.get_by_text("broker-2: start is done")).to_be_visible(timeout=60_000)
    expect(line.locator(".state")).to_have_text("running")
    expect(broker).to_have_text("up")
    eventually(lambda: not console.get("/api/overview")["snapshot"]["totals"]["under_replicated"], 60)
    expect(page.locator(".bar .state")).to_have_text("healthy")
    page = window.open("/timeline")
    told = page.locator(".events")
    for words in ("broker 2 is down", "broker 2 is up", "broker-2 is to be killed from the console"):
        expect(told).to_contain_text(words)
    events = [event["text"] for event in console.get(f"/api/events?topic={topic}")]
    assert any("leader of" in text for text in events)
    assert any("ISR of" in text for text in events)


def test_on_a_phone_everything_is_found_dark_and_not_wider_than_the_screen(phone: Window) -> None:
    page = phone.open("/")
    expect(page.locator("body")).to_have_class(re.compile("body--dark"))
    for name in ("Topics", "Records", "Groups", "Pipelines", "Brokers", "Schemas", "Connectors", "Timeline"):
        assert page.evaluate("document.scrollingElement.scrollWidth") <= 390, page.url
        page.get_by_role("button", name="Menu").click()
        page.get_by_role("navigation").get_by_role("link", name=name).click()
        expect(page.get_by_role("heading", name=name, exact=True, level=1)).to_be_visible()
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 390, page.url


def test_the_keyboard_alone_is_enough(window: Window, headrace_topic: MakeTopic) -> None:
    topic = headrace_topic()
    page = window.open("/topics")
    page.get_by_label("Filter").focus()
    page.keyboard.type(topic)
    expect(page.locator(".grid tbody tr")).to_have_count(1)
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == topic:
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name=topic)).to_be_visible()
    page.get_by_role("button", name="Produce").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).not_to_be_visible()


def test_light_and_dark_are_remembered(window: Window) -> None:
    page = window.open("/")
    was_dark = "body--dark" in (page.locator("body").get_attribute("class") or "")
    page.get_by_role("button", name="Dark or light").click()
    wanted: Any = re.compile("body--light" if was_dark else "body--dark")
    expect(page.locator("body")).to_have_class(wanted)
    page = window.open("/topics")
    expect(page.locator("body")).to_have_class(wanted)
    page.context.clear_cookies(name="headrace_theme")  # the next test's window follows the system again
