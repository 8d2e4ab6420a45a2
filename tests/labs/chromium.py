"""A real Chromium for the tests of the web pages, driven by Playwright."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    expect,
    sync_playwright,
)

from tests.labs.htcondor import fetched

WIDTHS = (320, 1280, 1920)
"""Widths in which each page is looked at, in pixels: a telephone, a laptop, a desk."""
PAGE_LIMIT_MS = 120_000.0
"""A step of a page may take this long on a busy host."""


@contextmanager
def running_chromium(suite: str = "trixie") -> Iterator[Browser]:
    """Start it without a window. Raises :class:`LabError` where it cannot be had."""
    program = fetched("get-chromium.sh", suite)
    no_sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    expect.set_options(timeout=PAGE_LIMIT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=no_sandbox)
        yield browser
        browser.close()


def context(browser: Browser, width: int, **more: Any) -> BrowserContext:
    made = browser.new_context(viewport={"width": width, "height": 900}, **more)
    made.set_default_timeout(PAGE_LIMIT_MS)
    return made


def complaints(page: Page) -> list[str]:
    """Return the list to which everything is added that the page complains about."""
    found: list[str] = []

    def add(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            found.append(f"{page.url}: {message.text}")

    page.on("console", add)
    page.on("pageerror", lambda error: found.append(f"{page.url}: {error}"))
    return found


def assert_fits(page: Page, width: int) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= width, page.url


def assert_fits_and_is_accessible(page: Page, width: int) -> None:
    """Check a page with all that can be unfolded in it."""
    for details in page.locator("summary").all():
        details.click()
    assert_fits(page, width)
    checked = Axe().run(page)
    assert checked.violations_count == 0, f"{page.url}: {checked.generate_report()}"
