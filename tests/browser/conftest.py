"""One cluster, one console, one browser for all tests of the console."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from headrace.cluster import Cluster
from tests.browser import driving
from tests.browser.driving import ConsoleUnderTest, Window


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with driving.chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def console(headrace_cluster: Cluster) -> Iterator[ConsoleUnderTest]:
    with driving.running_console("--home", str(headrace_cluster.home.root)) as console:
        yield console


@pytest.fixture
def window(browser: Browser, console: ConsoleUnderTest) -> Iterator[Window]:
    with driving.window(browser, console) as window:
        yield window


@pytest.fixture
def phone(browser: Browser, console: ConsoleUnderTest) -> Iterator[Window]:
    size = {"width": 390, "height": 844}
    with driving.window(browser, console, viewport=size, color_scheme="dark", has_touch=True) as window:
        yield window
