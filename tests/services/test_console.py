"""The console's pages of schemas and connectors, in a browser, against the registry and the worker."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from playwright.sync_api import expect

from headrace.cluster import Cluster
from headrace.runtime.waiting import eventually
from headrace.schemas.registry import Registry, Schema
from tests.browser import driving


def order(*more: dict[str, object]) -> Schema:
    fields = [{"name": "id", "type": "long"}, *more]
    return Schema(json.dumps({"type": "record", "name": "Order", "fields": fields}))


def test_schemas_and_connectors_are_shown_checked_and_paused(serviced: Cluster, tmp_path: Path) -> None:
    subject, connector = f"s{uuid.uuid4().hex[:6]}-value", f"c{uuid.uuid4().hex[:6]}"
    (tmp_path / "in.txt").write_text("a\n")
    worker = serviced.connectors
    with Registry(serviced.registry) as registry:
        registry.register(subject, order())
        registry.register(subject, order({"name": "price", "type": "double", "default": 0}))
        config = {"connector.class": "FileStreamSource", "file": str(tmp_path / "in.txt"), "topic": connector}
        worker.create(connector, config)
        with (
            driving.chromium() as browser,
            driving.running_console("--home", str(serviced.home.root)) as console,
            driving.logged_in(browser, console) as context,
            driving.window(context, console) as window,
        ):
            page = window.open("/schemas")
            page.get_by_role("link", name=subject).click()
            expect(page.locator(".diff .plus").filter(has_text='"price"')).to_be_visible()
            refused = order({"name": "price", "type": "string"})
            answer = console.ask("POST", f"/api/schemas/{subject}/versions", {"schema": refused.text, "check": True})
            assert answer.json()["compatible"] is registry.check(subject, refused).compatible is False
            for missing in ("/api/schemas/nosuch-value/versions/1", f"/api/schemas/{subject}/versions/9"):
                assert console.ask("GET", missing).status == 404
            assert console.ask("POST", "/api/connectors/%00/pause").status == 404
            assert console.ask("POST", "/api/connectors", {"name": connector, "config": config}).status == 409
            window.accessible()
            page = window.open("/schemas")
            window.accessible()
            page = window.open("/connectors")
            window.accessible()
            card = page.locator("section.card", has_text=connector)
            expect(card.locator(".state")).to_have_text("running")
            card.get_by_role("button", name="pause").click()
            page.get_by_role("dialog").get_by_role("button", name="Pause").click()
            eventually(lambda: worker.status(connector).state == "PAUSED", 30)
            expect(card.locator(".state")).to_have_text("paused")
            card.get_by_role("button", name="settings").click()
            asked = page.get_by_role("dialog")
            changed = {**worker.config(connector), "batch.size": "7", "some.password": "x"}
            asked.get_by_label("Settings").fill(json.dumps(changed))
            expect(asked.locator(".equal pre")).to_contain_text(f"headrace connector alter {connector}")
            window.accessible()
            asked.get_by_role("button", name="Save and restart").click()
            eventually(lambda: worker.config(connector).get("batch.size") == "7", 30)
            expect(asked).to_have_count(0)
            shown = console.get(f"/api/connectors/{connector}/config")
            assert (shown["batch.size"], shown["some.password"]) == ("7", "(hidden)")
            undone = console.ask(
                "PATCH", f"/api/connectors/{connector}/config", {"batch.size": None, "some.password": "(hidden)"}
            )
            assert undone.status == 200, undone.body
            assert worker.config(connector).get("batch.size") is None
            assert worker.config(connector)["some.password"] == "x"
            lost = console.ask("PATCH", f"/api/connectors/{connector}/config", {"other.password": "(hidden)"})
            assert (lost.status, "other.password is (hidden)" in lost.json()["problem"]) == (400, True)
            sink = f"{connector}-sink"
            waits = {"connector.class": "FileStreamSink", "file": str(tmp_path / "out"), "topics": "not-there"}
            console.ask("POST", "/api/connectors", {"name": sink, "config": waits})
            card = page.locator(f"[data-connector={sink}]")
            expect(card.locator(".state")).to_have_text("waiting")
            expect(card).to_contain_text("topic not-there not found")
            found = {each["name"]: each for each in console.ask("GET", "/api/connectors").json()}
            assert (found[sink]["state"], found[sink]["waiting"]) == ("RUNNING", "topic not-there not found")
    worker.delete(connector)
    worker.delete(sink)
