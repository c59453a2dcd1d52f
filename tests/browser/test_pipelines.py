"""A pipeline from its declaration to a redriven dead letter, by the buttons of its page."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, expect

from headrace.cluster import Cluster
from headrace.kafka import Kafka
from headrace.kafka.read.consumer import consume
from headrace.kafka.write.producer import produce
from headrace.pipeline.background import Background
from headrace.pipeline.pipeline import Pipeline
from headrace.runtime.waiting import eventually
from tests.browser.driving import ConsoleUnderTest, Window, tile

MakeTopic = Callable[..., str]

_DECLARED = """
[pipelines.{name}]
from         = "{topic}"
decode       = {{ json = "n int" }}
dead_letters = "{topic}.dead"
trigger      = "1 second"
expect       = {{ "is small" = "n < 100" }}
into         = {{ delta = "tables/{name}" }}

[views.{name}_counts]
sql = "select n, count(*) as records from {name} group by n"
key = "n"
"""


@pytest.fixture
def pipeline(headrace_cluster: Cluster, headrace_topic: MakeTopic) -> Iterator[Pipeline]:
    """A declared pipeline over a topic of eight records, two of which break its rule."""
    home, topic, name = headrace_cluster.home, headrace_topic(partitions=2), f"p{uuid.uuid4().hex[:6]}"
    produce(headrace_cluster, topic, ({"n": n} for n in (1, 2, 3, 4, 5, 6, 100, 200)))
    file = home.root / "headrace.toml"
    file.write_text(_DECLARED.format(name=name, topic=topic), encoding="utf-8")
    try:
        yield Pipeline.from_file(file, name, home)
    finally:
        Background(home).end()
        file.unlink()
        # Beside headrace.toml, and not the cluster's: other tests look at each file of its home.
        shutil.rmtree(home.root / "tables", ignore_errors=True)


def act(card: Locator, verb: str) -> None:
    card.get_by_role("button", name=verb).click()
    asked = card.page.get_by_role("dialog")
    expect(asked.locator(".equal pre")).to_contain_text(f"headrace pipeline {verb.lower()} ")
    asked.get_by_role("button", name=verb).click()


def test_a_pipeline_is_started_redriven_and_stopped(
    window: Window, console: ConsoleUnderTest, headrace_cluster: Cluster, pipeline: Pipeline
) -> None:
    name, (topic,) = pipeline.name, pipeline.declaration.topics
    page = window.open("/pipelines")
    card = page.locator("main .page section.card", has=page.locator(".flow"), has_text=name)
    for word in (topic, "json", "1 rule", name, f"{topic}.dead"):
        expect(card.locator(".flow")).to_contain_text(word)
    expect(card.locator(".state")).to_have_text("never run")
    expect(tile(card, "Lag")).to_have_text("8")
    graph = page.locator("main .page section.card", has_text="Graph")
    expect(graph).to_contain_text(f"{name}_counts is made from {name}: never run")
    expect(graph.get_by_role("img").first).to_have_attribute(
        "aria-label", f"Data flow. {name}_counts is made from {name}: never run"
    )
    nodes = {(node["kind"], node["name"]): node for node in console.get("/api/graph")}
    assert nodes["table", name]["inputs"] == [f"pipeline {name}"]
    assert nodes["view", f"{name}_counts"]["level"] == 3

    act(card, "Start")
    expect(card.locator(".state")).to_have_text("running", timeout=120_000)
    expect(tile(card, "Dead letters")).to_have_text("2", timeout=120_000)
    expect(tile(card, "Ledger")).to_have_text("balances")
    expect(card).to_contain_text("8 read = 6 written + 2 dead")
    expect(tile(card, "Lag")).to_have_text("0")
    window.accessible()

    card.get_by_role("button", name="Dead letters").click()
    letters = page.get_by_role("dialog").locator("section.card")
    expect(letters).to_have_count(1)
    size = sum(len(record.value or b"") for record in consume(headrace_cluster, f"{topic}.dead"))
    for word in ("2 by is small", "not so: n < 100", f"{size} B", '{"n":200}'):
        expect(letters).to_contain_text(word)
    letters.get_by_role("button", name="Redrive").click()
    expect(letters).to_contain_text(f"2 records to {topic}")
    with Kafka(headrace_cluster) as admin:
        assert admin.describe(topic).offsets == 8, "a preview sends nothing"
    letters.get_by_role("button", name="Send them again").click()
    expect(letters.locator(".good-news")).to_have_text("2 records sent again")
    page.get_by_role("button", name="Close").click()
    expect(card).to_contain_text("10 read = 6 written + 4 dead", timeout=60_000)

    act(card, "Stop")
    expect(card.locator(".state")).to_have_text("stopped", timeout=60_000)
    produce(headrace_cluster, topic, ({"n": n} for n in range(5)))
    expect(tile(card, "Lag")).to_have_text("5")
    told = pipeline.status(headrace_cluster)
    rows = {(p.partition, p.processed, p.end, p.lag) for p in told.partitions}
    (view,) = (p for p in console.get("/api/pipelines") if p["name"] == name)
    assert {(o["partition"], o["offset"], o["end"], o["lag"]) for o in view["offsets"]} == rows
    metric = f'headrace_pipeline_records_total{{pipeline="{name}",outcome="dead"}} 4'
    eventually(lambda: metric in console.ask("GET", "/metrics").body.decode().splitlines(), 20)
