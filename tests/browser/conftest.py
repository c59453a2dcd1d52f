"""One cluster, one console, one browser for all tests of the console.

Browser and console end with this folder: Playwright leaves an event loop behind in its thread as long as it is open.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext

from headrace.cluster import Cluster
from tests.browser import driving
from tests.browser.driving import ConsoleUnderTest, Window


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with driving.chromium() as browser:
        yield browser


@pytest.fixture(scope="package")
def console(headrace_cluster: Cluster) -> Iterator[ConsoleUnderTest]:
    with driving.running_console("--home", str(headrace_cluster.home.root)) as console:
        yield console


@pytest.fixture(scope="package")
def laptop(browser: Browser, console: ConsoleUnderTest) -> Iterator[BrowserContext]:
    with driving.logged_in(browser, console) as context:
        yield context


@pytest.fixture
def window(laptop: BrowserContext, console: ConsoleUnderTest) -> Iterator[Window]:
    with driving.window(laptop, console) as window:
        yield window


@pytest.fixture
def phone(browser: Browser, console: ConsoleUnderTest) -> Iterator[Window]:
    size = {"width": 390, "height": 844}
    with (
        driving.logged_in(browser, console, viewport=size, color_scheme="dark", has_touch=True) as context,
        driving.window(context, console) as window,
    ):
        yield window
