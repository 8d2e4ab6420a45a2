"""Photograph the web pages for the documents, in Chromium: docs/pictures/web-*.png.

With the name of a directory, photograph all pages there, at three widths, light and dark.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from itertools import product
from pathlib import Path

from provisioner.store.writer import SqlStore
from provisioner.web.pages import PAGES
from tests.labs.chromium import WIDTHS, running_chromium
from tests.web import records
from tests.web.service import serving

HERE = Path(__file__).parent
PICTURES = {
    "web-now": ("/", "light", 1280, 1240),
    "web-now-wall": ("/", "dark", 1920, 1240),
    "web-now-telephone": ("/", "light", 320, 1100),
    "web-sites": ("/sites", "light", 1280, 1000),
    "web-waste": ("/waste", "dark", 1280, 760),
    "web-job": ("/job/8831.2", "light", 1000, 810),
    "web-drone": ("/drone/74", "light", 1280, 880),
}
"""Path, colour scheme, width and height by the name of the picture."""
ALL = {
    **{path or "now": f"/{path}" for path in PAGES},
    **{name: path for name, (path, *_) in PICTURES.items() if path.count("/") > 1},
    "site": "/sites/topas",
    "class": "/class/41",
}


def main(directory: Path | None) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "provisioner.db"
        reader = records.write(path)
        loop = asyncio.new_event_loop()
        store = SqlStore(path, records.CONTROLLER, 1e9, 10)  # a controller that runs
        loop.run_until_complete(store.__aenter__())
        try:
            photograph_all(reader, directory) if directory else photograph(reader)
        finally:
            loop.run_until_complete(store.__aexit__())
            loop.close()


def photograph(reader: records.SeriesReader) -> None:
    with serving(reader) as service, running_chromium() as browser:
        for name, (path, scheme, width, height) in PICTURES.items():
            page = browser.new_page(
                viewport={"width": width, "height": height}, color_scheme=scheme
            )
            page.goto(service.address + path)
            page.screenshot(path=HERE / f"{name}.png")
            page.close()


def photograph_all(reader: records.SeriesReader, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with serving(reader) as service, running_chromium() as browser:
        for width, scheme in product(WIDTHS, ("light", "dark")):
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            for name, path in ALL.items():
                page.goto(service.address + path)
                page.screenshot(path=directory / f"{name}-{width}-{scheme}.png", full_page=True)
            page.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else None)
