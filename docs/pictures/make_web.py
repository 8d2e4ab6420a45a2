"""Photograph the web pages for the documents, in Chromium: docs/pictures/web-*.png."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from provisioner.store.writer import SqlStore
from tests.labs.chromium import running_chromium
from tests.web import records
from tests.web.service import serving

HERE = Path(__file__).parent
PICTURES = {
    "web-now": ("/", "light", 1120, 1060),
    "web-waste": ("/waste", "dark", 1120, 760),
    "web-job": ("/job/8831.2", "light", 1000, 810),
    "web-drone": ("/drone/74", "light", 390, 1230),
}
"""Path, colour scheme, width and height by the name of the picture."""


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "provisioner.db"
        reader = records.write(path)
        loop = asyncio.new_event_loop()
        store = SqlStore(path, records.CONTROLLER, 1e9, 10)  # a controller that runs
        loop.run_until_complete(store.__aenter__())
        try:
            photograph(reader)
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


if __name__ == "__main__":
    main()
