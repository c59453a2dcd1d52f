"""Every page and the common dialogs by axe-core, light and dark; addresses that say what is shown."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from kafka import TopicPartition
from playwright.sync_api import Browser, expect

from headrace.cluster import Cluster
from headrace.kafka import Kafka
from headrace.kafka.client import connect, kafka_python_client
from headrace.kafka.write.producer import produce
from headrace.runtime.waiting import eventually
from tests.browser import driving
from tests.browser.driving import ConsoleUnderTest, Window, logged_in
from tests.browser.driving import window as open_window

MakeTopic = Callable[..., str]

PAGES = ("Overview", "Topics", "Records", "Groups", "Pipelines", "SQL", "Brokers", "Schemas", "Connectors", "Timeline")
TABS = ("Partitions", "Records", "Settings", "Readers", "Segments", "Events")
DIALOGS = (
    ("/topics", "Create topic"),
    ("/topics/{topic}", "Produce"),
    ("/topics/{topic}", "Delete"),
    ("/group?name={group}", "Reset offsets"),
    ("/brokers", "Elect preferred leaders"),
    ("/records/{topic}", "0"),
)


@pytest.fixture
def read(headrace_cluster: Cluster, headrace_topic: MakeTopic, console: ConsoleUnderTest) -> Iterator[tuple[str, str]]:
    """A topic with records and a group that is reading it, both known to the console."""
    topic, group = headrace_topic(partitions=3), f"group-{uuid.uuid4().hex[:8]}"
    produce(headrace_cluster, topic, ({"n": n} for n in range(6)))
    with closing(connect(headrace_cluster).consumer({"group.id": group, "auto.offset.reset": "earliest"})) as consumer:
        consumer.subscribe([topic])
        eventually(lambda: consumer.poll(0.2), 60)
        consumer.commit(asynchronous=False)
        eventually(lambda: console.get("/api/overview")["snapshot"]["groups"].get(group), 30)
        yield topic, group


@pytest.fixture
def own_window(browser: Browser, console: ConsoleUnderTest) -> Iterator[Window]:
    """A window of nobody else: what is emulated in it stays in it."""
    with logged_in(browser, console) as context, open_window(context, console) as window:
        yield window


def test_every_page_is_accessible(own_window: Window) -> None:
    page = own_window.open("/")
    expect(page.locator("html")).to_have_attribute("lang", "en-US")
    for name in PAGES:
        page.get_by_role("navigation").get_by_role("link", name=name).click()
        _is_accessible(own_window, name)


def test_the_pages_of_a_topic_and_a_group_are_accessible(own_window: Window, read: tuple[str, str]) -> None:
    topic, group = read
    for path, title in ((f"/records/{topic}", f"Records of {topic}"), (f"/group?name={group}", group)):
        own_window.open(path)
        _is_accessible(own_window, title)
    page = own_window.open(f"/topics/{topic}")
    for tab in TABS:
        page.get_by_role("tab", name=tab).click()
        _is_accessible(own_window, topic)


def test_dialogs_are_accessible(own_window: Window, read: tuple[str, str]) -> None:
    topic, group = read
    for path, name in DIALOGS:
        page = own_window.open(path.format(topic=topic, group=group))
        page.get_by_role("button", name=name).first.click()
        expect(page.get_by_role("dialog")).to_be_visible()
        own_window.accessible()


def test_the_way_in_is_accessible(browser: Browser, headrace_cluster: Cluster) -> None:
    """With a password that was wrong: that is where it has the most to show."""
    settings = {"HEADRACE_CONSOLE_PASSWORD": "right"}
    with (
        driving.running_console("--home", str(headrace_cluster.home.root), environment=settings) as console,
        closing(browser.new_page()) as page,
    ):
        page.goto(console.url)
        page.get_by_label("Password").fill("wrong")
        page.get_by_role("button", name="Enter").click()
        expect(page.get_by_text("Wrong password.")).to_be_visible()
        for scheme in driving.SCHEMES:
            page.emulate_media(color_scheme=scheme)
            found = Axe().run(page).response["violations"]
            assert not found, [(v["id"], node["html"], node["any"]) for v in found for node in v["nodes"]]
        answer = page.request.get(f"{console.url}/api/topics", headers={"Accept": "text/html"})
        assert answer.status == 401
        assert answer.json()["problem"] == "a token is required"


def _is_accessible(window: Window, title: str) -> None:
    expect(window.page).to_have_title(f"{title} · headrace")
    expect(window.page.locator("main")).to_have_count(1)
    window.accessible()


def test_the_address_says_what_is_shown(window: Window, headrace_cluster: Cluster, headrace_topic: MakeTopic) -> None:
    topic = headrace_topic(partitions=2)
    produce(headrace_cluster, topic, ({"n": n} for n in range(20)))
    page = window.open(f"/topics/{topic}")
    page.get_by_role("button", name="6 h").click()
    page.get_by_role("tab", name="Records").click()
    page.get_by_label("Expression").fill("value.n == 7")
    page.get_by_role("button", name="Search").click()
    expect(page).to_have_url(re.compile(r"range=6\+h.*tab=Records.*where=value.n"))
    expect(page.locator(".records .grid tbody tr")).to_have_count(1)
    with page.context.expect_page() as opened:
        page.evaluate("window.open(location.href)")
    other = opened.value
    expect(other.get_by_role("tab", name="Records")).to_have_attribute("aria-selected", "true")
    expect(other.get_by_label("Expression")).to_have_value("value.n == 7")
    expect(other.locator(".records .grid tbody tr")).to_have_count(1)
    expect(other.locator(".records .grid tbody tr")).to_contain_text('"n":7')
    other.get_by_role("tab", name="Partitions").click()
    expect(other.get_by_role("button", name="6 h")).to_have_attribute("aria-pressed", "true")
    other.close()
    page = window.open(f"/topics?filter={topic[5:]}")
    expect(page.get_by_label("Filter")).to_have_value(topic[5:])
    expect(page.locator(".grid tbody tr")).to_have_count(1)
    page.get_by_label("Filter").fill("nothing-like-it")
    expect(page).to_have_url(re.compile("filter=nothing-like-it"))
    page = window.open("/timeline?kinds=topic,nonsense&filter=" + topic)
    expect(page.locator(".event").first).to_contain_text(f"{topic} was created")
    expect(page.locator(".event .at").first).to_contain_text(re.compile(r"\d\d:\d\d:\d\d ([A-Z]+|[+-]\d+)"))


def test_the_preferred_leaders_are_elected(
    console: ConsoleUnderTest, headrace_cluster: Cluster, headrace_topic: MakeTopic, window: Window
) -> None:
    topic = headrace_topic(partitions=3)
    with Kafka(headrace_cluster) as admin:

        def preferred() -> set[bool]:
            return {p.leader == p.replicas[0] for p in admin.topic(topic).partitions}

        # Another replica is named first and is the preferred one from then on; the leader stays.
        named = {TopicPartition(topic, p.partition): p.replicas[::-1] for p in admin.topic(topic).partitions}
        with closing(kafka_python_client(connect(headrace_cluster), headrace_cluster.bootstrap.split(","))) as client:
            client.alter_partition_reassignments(named)
        eventually(lambda: preferred() == {False}, 30)
        page = window.open("/brokers")
        expect(window.tile("Leaders, most and fewest").locator("..")).to_contain_text("not with the preferred one")
        page.get_by_role("button", name="Elect preferred leaders").click()
        expect(page.locator(".equal pre")).to_have_text("headrace topic elect")
        page.get_by_role("dialog").get_by_role("button", name="Elect").click()
        eventually(lambda: preferred() == {True}, 60)
    assert console.ask("POST", "/api/brokers/elect").json()["refused"] == []
