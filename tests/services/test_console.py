"""The console's pages of schemas and connectors, in a browser, against the registry and the worker."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from playwright.sync_api import expect

from headrace.cluster import Cluster
from headrace.runtime.waiting import eventually
from headrace.transport.connectors import Connectors
from headrace.transport.schemas import Registry, Schema
from tests.browser import driving


def order(*more: dict[str, object]) -> Schema:
    fields = [{"name": "id", "type": "long"}, *more]
    return Schema(json.dumps({"type": "record", "name": "Order", "fields": fields}))


def test_schemas_and_connectors_are_shown_checked_and_paused(serviced: Cluster, tmp_path: Path) -> None:
    subject, connector = f"s{uuid.uuid4().hex[:6]}-value", f"c{uuid.uuid4().hex[:6]}"
    (tmp_path / "in.txt").write_text("a\n")
    worker = Connectors(serviced.connect)
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
            page = window.open("/connectors")
            card = page.locator("section.card", has_text=connector)
            expect(card.locator(".state")).to_have_text("running")
            card.get_by_role("button", name="pause").click()
            page.get_by_role("dialog").get_by_role("button", name="Pause").click()
            eventually(lambda: worker.status(connector).state == "PAUSED", 30)
            expect(card.locator(".state")).to_have_text("paused")
    worker.delete(connector)
