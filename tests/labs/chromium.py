"""A real Chromium for the tests of the web pages, driven by Playwright."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

from tests.labs.htcondor import fetched


@contextmanager
def running_chromium(suite: str = "trixie") -> Iterator[Browser]:
    """Start it without a window. Raises :class:`LabError` where it cannot be had."""
    program = fetched("get-chromium.sh", suite)
    no_sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=no_sandbox)
        yield browser
        browser.close()
