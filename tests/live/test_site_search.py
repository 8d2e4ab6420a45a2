"""The search of the site of documents in a browser: its first hits are pages that help a reader."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.labs.chromium import context

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Build the site and serve it on loopback."""
    site = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "-q", "-b", "html", str(DOCS), str(site)]
    subprocess.run(build, check=True, timeout=300)
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("word", "wanted", "first"),
    [
        ("VRAM", "how-to/submit-a-gpu-job.html", 2),
        ("SIGTERM", "how-to/submit-a-gpu-job.html", 1),
        ("drain", "reference/cli.html", 3),
        ("token", "how-to/first-real-pool.html", 3),
    ],
)
def test_the_first_hits_are_pages_that_help(
    browser: Browser, address: str, word: str, wanted: str, first: int
) -> None:
    page = context(browser, 1280).new_page()
    page.goto(f"{address}/search.html?q={word}")
    page.wait_for_selector("#search-results p.search-summary:has-text('finished')")
    found = page.eval_on_selector_all(
        "#search-results > ul > li > a:first-child", "all => all.map(a => a.getAttribute('href'))"
    )
    assert wanted in found[:first]
    page.context.close()
