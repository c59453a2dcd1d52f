"""A console under test, and windows of a real browser that look at it.

One console process and one browser serve all tests. A window fails its test if the page logs an error, if a script that
is not ours runs, or if anything is asked of another origin than the console's.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Dialog,
    Error,
    Locator,
    Page,
    Request,
    expect,
    sync_playwright,
)

from headrace.runtime.waiting import eventually

_SCRIPT = Path(sys.executable).with_name("headrace")
SCHEMES: tuple[Literal["dark", "light"], ...] = ("dark", "light")
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# A page is there within a second; a machine that runs ten other things at once may need longer.
_PATIENCE_MS = 30_000
expect.set_options(timeout=_PATIENCE_MS)


@dataclass(frozen=True)
class Answer:
    """An answer over HTTP."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class ConsoleUnderTest:
    """A console that runs: its address and its token."""

    url: str
    token: str

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    def ask(
        self, method: str, path: str, body: Any = None, *, token: bool = True, headers: dict[str, str] | None = None
    ) -> Answer:
        """Over HTTP, with the token unless told otherwise."""
        sent = {"Authorization": f"Bearer {self.token}"} if token else {}
        if body is not None:
            sent["Content-Type"] = "application/json"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            data = json.dumps(body) if body is not None else None
            connection.request(method, path, data, {**sent, **(headers or {})})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        answer = self.ask("GET", path)
        assert answer.status == 200, answer.body
        return answer.json()


def answers_at_all(console: ConsoleUnderTest) -> bool:
    """True as soon as somebody listens."""
    try:
        return bool(console.ask("GET", "/api/overview", token=False).status)
    except OSError:
        return False


def shows_the_cluster(console: ConsoleUnderTest) -> bool:
    """True when it has looked at the cluster."""
    try:
        answer = console.ask("GET", "/api/overview")
        return answer.status == 200 and bool(answer.json()["snapshot"]["reachable"])
    except (OSError, http.client.HTTPException):
        return False


@contextmanager
def running_console(
    *words: str,
    environment: dict[str, str] | None = None,
    until: Callable[[ConsoleUnderTest], bool] = shows_the_cluster,
) -> Iterator[ConsoleUnderTest]:
    """`headrace console` in the foreground, ended when the block ends."""
    process = subprocess.Popen(
        [_SCRIPT, "console", "--foreground", "--no-open", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        assert "/login?token=" in line, line
        url, _, token = line.partition("/login?token=")
        console = ConsoleUnderTest(url, token)
        eventually(lambda: until(console), 60)
        yield console
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(15)
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def chromium() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.fail("these tests need a Chromium: apt-get install chromium (make test does it if it may)")
    with sync_playwright() as playwright:
        # As root Chromium has no sandbox; what it opens is our own console.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=found, args=arguments)
        yield browser
        browser.close()


class Window:
    """A page of the console in a browser, with what went wrong in it."""

    def __init__(self, page: Page, console: ConsoleUnderTest) -> None:
        self.page = page
        self.console = console
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(f"script error: {error}"))
        page.on("dialog", self._asked)
        page.on("console", self._said)
        page.on("request", self._requested)

    def _asked(self, dialog: Dialog) -> None:
        self.complaints.append(f"a dialog: {dialog.message}")
        dialog.dismiss()

    def _said(self, said: ConsoleMessage) -> None:
        if said.type == "error":
            self.complaints.append(f"{said.text} {said.location.get('url', '')}")

    def _requested(self, request: Request) -> None:
        url = request.url
        if not url.startswith((self.console.url, self.console.url.replace("http", "ws"), "data:", "about:")):
            self.complaints.append(f"asked elsewhere: {url}")

    def open(self, path: str) -> Page:
        """The page below that path, with its content."""
        self.page.goto(self.console.url + path)
        self.page.locator("main .page").wait_for()
        return self.page

    def accessible(self) -> None:
        """axe-core finds nothing wrong with what is shown now; in the dark, nothing with its colours."""
        # What is behind a dialog is dimmed. The framework's line at the top shows for moments and has no name.
        dialog = self.page.locator(".q-dialog").count()
        place = {"include": [[".q-dialog"]]} if dialog else {"exclude": [["#q-loading-bar"]]}
        for scheme in SCHEMES:
            self.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            expect(self.page.locator("body")).to_have_class(re.compile(f"body--{scheme}"))
            for moving in (".q-spinner", "[class*=-enter-active]", "[class*=-leave-active]"):
                expect(self.page.locator(moving)).to_have_count(0)
            rules = {"runOnly": ["color-contrast"]} if scheme == "dark" else {}
            found = self._violations(place, rules)
            wrong = [f"{v['id']}: {node['html'][:200]}" for v in found for node in v["nodes"]]
            assert not wrong, f"{self.page.url}, {scheme}:\n" + "\n".join(wrong)

    def _violations(self, place: dict[str, Any], rules: dict[str, Any]) -> Any:
        for tries_left in (1, 0):
            try:
                return Axe().run(self.page, place, {**rules, "resultTypes": ["violations"]}).response["violations"]
            except Error as error:
                # A page that missed its server's heartbeats, on a machine that is too busy, loads itself again.
                if "Execution context was destroyed" not in str(error) or not tries_left:
                    raise
                self.page.locator("main .page").wait_for()
        return None

    def tile(self, label: str) -> Locator:
        """The value of the tile with that label."""
        return tile(self.page.locator("main .page"), label)

    def card(self, title: str) -> Locator:
        """The card with that title."""
        return self.page.locator(".card", has=self.page.locator("h2.title", has_text=re.compile(f"^{title}"))).first

    def row(self, text: str) -> Locator:
        """The row of a table that has the text."""
        return self.page.locator(".grid tbody tr", has_text=text).first


def tile(place: Locator, label: str) -> Locator:
    """The value of the tile with that label, in a part of a page."""
    named = place.page.locator(".label", has_text=re.compile(f"^{re.escape(label)}$"))
    return place.locator(".tile", has=named).locator(".value")


@contextmanager
def logged_in(browser: Browser, console: ConsoleUnderTest, **settings: Any) -> Iterator[BrowserContext]:
    """Windows of one person, who came by the address that `headrace console` prints."""
    context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **settings})
    try:
        context.set_default_timeout(_PATIENCE_MS)
        page = context.new_page()
        page.goto(f"{console.url}/login?token={console.token}")
        page.locator("main .page").wait_for()
        page.close()
        yield context
    finally:
        context.close()


@contextmanager
def window(context: BrowserContext, console: ConsoleUnderTest) -> Iterator[Window]:
    """A window of its own; what went wrong in it fails the test."""
    made = Window(context.new_page(), console)
    try:
        yield made
        assert not made.complaints, made.complaints
    finally:
        made.page.close()
