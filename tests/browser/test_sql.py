"""The page of SQL and its twin in the API: rows, a chart, errors, limits, and an address that keeps the query."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.parquet as pq
from playwright.sync_api import expect

from headrace.cluster import Cluster
from headrace.kafka.write.producer import produce
from tests.browser.driving import ConsoleUnderTest, Window

MakeTopic = Callable[..., str]


def test_a_query_is_typed_run_and_drawn(window: Window, headrace_cluster: Cluster, headrace_topic: MakeTopic) -> None:
    topic = headrace_topic(partitions=3)
    produce(headrace_cluster, topic, (f"line {n} <b>" for n in range(60)))
    query = f'select partition::varchar as p, count(*) as records, max(offset) as last from topic."{topic}" group by 1'
    page = window.open("/sql")
    page.get_by_label("Query").fill(f"{query} order by p")
    page.get_by_role("button", name="Run").click()
    rows = page.locator(".grid tbody tr")
    expect(rows).to_have_count(3)
    expect(page.get_by_role("img", name="records, last by p")).to_be_visible()
    expect(page.get_by_text("3 rows in")).to_be_visible()
    assert sum(int(rows.nth(at).locator("td").nth(1).inner_text()) for at in range(3)) == 60
    window.accessible()
    # Whoever opens the address sees the same.
    address = page.url
    assert quote_plus("count(*)") in address
    page = window.open("/topics")
    page.goto(address)
    expect(page.locator(".grid tbody tr")).to_have_count(3)
    # A mistake is shown with its place; markup in records is text.
    page.get_by_label("Query").fill("select nonsense from topic.nowhere")
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".problem")).to_contain_text("nowhere")
    expect(page.locator(".grid")).to_have_count(0)
    page.get_by_label("Query").fill(f'select value from topic."{topic}"')
    page.get_by_label("Query").press("Control+Enter")
    expect(page.locator(".grid tbody tr").first).to_contain_text("<b>")
    page.get_by_label("Query").fill("select * from read_text('/etc/passwd')")
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".problem")).to_contain_text("disabled")


def test_the_api_has_the_same_limits(
    console: ConsoleUnderTest, headrace_cluster: Cluster, headrace_topic: MakeTopic, tmp_path: Path
) -> None:
    def ask(query: str) -> tuple[int, dict[str, object]]:
        answer = console.ask("POST", "/api/sql", {"query": query})
        return answer.status, answer.json()

    topic = headrace_topic()
    produce(headrace_cluster, topic, (str(n) for n in range(1200)))
    status, found = ask(f'select "offset" as n, value from topic."{topic}" order by n')
    assert status == 200
    rows = found["rows"]
    assert rows == [[n, str(n)] for n in range(1000)]
    assert found["more"] is True
    assert found["columns"] == [
        {"name": "n", "type": "int64", "kind": "number"},
        {"name": "value", "type": "binary", "kind": "other"},
    ]
    pq.write_table(pa.table({"a": [1]}), tmp_path / "secret.parquet")
    for query, expected in {
        f"from '{tmp_path}/secret.parquet'": 403,
        f"from read_parquet('{tmp_path}/secret.parquet')": 400,
        "drop table x": 403,
        "selec 1": 400,
        "from nothing": 404,
        "select list(repeat('x', 1000) || range) from range(10000000)": 409,
        "x" * 30_000: 400,
    }.items():
        status, found = ask(query)
        assert (status in {expected, 422}, bool(found["problem"])) == (True, True), (query[:80], status, found)
    status, found = ask("select current_setting('memory_limit') as m, current_setting('threads') as t")
    assert found["rows"] == [["488.2 MiB", 2]]
