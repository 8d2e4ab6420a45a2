"""Photograph the web pages for the documents, in Chromium: docs/pictures/web-*.png.

The pages are those of a simulated day, and the page of a job that of the record of the tests. With
the name of a directory, photograph all pages there, at three widths, light and dark.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from unittest.mock import patch

from playwright.sync_api import Browser

from docs.pictures import day
from provisioner.store.reader import Reader
from provisioner.store.writer import SqlStore
from provisioner.web.pages import PAGES
from tests.cli.conftest import forget_moment
from tests.labs.chromium import WIDTHS, running_chromium
from tests.web import records
from tests.web.service import serving

HERE = Path(__file__).parent
Pictures = Mapping[str, tuple[str, str, int, int]]
"""Path, colour scheme, width and height by the name of the picture."""
OF_THE_DAY: Pictures = {
    "web-now": ("/", "light", 1280, 1240),
    "web-now-wall": ("/", "dark", 1920, 1240),
    "web-now-telephone": ("/", "light", 320, 1100),
    "web-sites": ("/sites", "light", 1280, 1000),
    "web-waste": ("/waste", "dark", 1280, 760),
    "web-drone": ("/drone/5", "light", 1280, 880),
}
OF_THE_TESTS: Pictures = {"web-job": ("/job/8831.2", "light", 1000, 810)}
ALL = {
    **{path or "now": f"/{path}" for path in PAGES},
    "drone": "/drone/5",
    "site": "/sites/topas",
    "class": "/class/c3",
}


def main(directory: Path | None) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "day.db"
        with frozen_day(path), running_chromium() as browser:  # which has an event loop of its own
            if directory:
                photograph_all(browser, Reader(path), directory)
            else:
                photograph(browser, Reader(path), OF_THE_DAY)
                of_tests = records.write(Path(temporary) / "test.db", now=time.time())
                photograph(browser, of_tests, OF_THE_TESTS)


@contextmanager
def frozen_day(path: Path) -> Iterator[None]:
    """Write the record of the day, and set the clock back to its end; a controller holds it."""
    ended_at = float(int(time.time()))
    day.write(path, ended_at)
    forget_moment(path)
    real, late_s = time.time, time.time() - ended_at
    loop = asyncio.new_event_loop()
    store = SqlStore(path, day.CONTROLLER, 1e9, 10)
    with patch("time.time", lambda: real() - late_s):
        loop.run_until_complete(store.__aenter__())
        try:
            yield
        finally:
            loop.run_until_complete(store.__aexit__())
            loop.close()


def photograph(browser: Browser, reader: Reader, pictures: Pictures) -> None:
    with serving(reader) as service:
        for name, (path, scheme, width, height) in pictures.items():
            viewport = {"width": width, "height": height}
            page = browser.new_page(viewport=viewport, color_scheme=scheme)
            page.goto(service.address + path)
            page.screenshot(path=HERE / f"{name}.png")
            page.close()


def photograph_all(browser: Browser, reader: Reader, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with serving(reader) as service:
        for width, scheme in product(WIDTHS, ("light", "dark")):
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            for name, path in ALL.items():
                page.goto(service.address + path)
                page.screenshot(path=directory / f"{name}-{width}-{scheme}.png", full_page=True)
            page.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else None)
