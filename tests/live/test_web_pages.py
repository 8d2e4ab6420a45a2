"""The web pages in a real browser: every page in every size, light and dark, with and without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.labs.chromium import WIDTHS, assert_fits_and_is_accessible, complaints, context
from tests.web import records
from tests.web.service import PageService, serving

PATHS = (
    "/",
    "/why",
    "/why?q=41",
    "/class/47",
    "/sites",
    "/sites/topas",
    "/sites/nemo",
    "/drones?show=all",
    "/owner",
    "/use",
    "/waste",
    "/plan",
    "/drone/41",
    "/drone/74",
    "/job/8812.1",
    "/job/8790.3",
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageService]:
    with serving(records.write(tmp_path_factory.mktemp("record") / "provisioner.db")) as found:
        yield found


LOOKS = tuple(zip(WIDTHS, ("light", "dark", "light"), strict=True))
"""Each width and each scheme of colours once; the matrix has the others."""
OTHER_LOOKS = sorted({*product(WIDTHS, ("light", "dark"))} - {*LOOKS})


@pytest.mark.parametrize(
    ("width", "scheme"),
    [*LOOKS, *(pytest.param(*look, marks=pytest.mark.matrix) for look in OTHER_LOOKS)],
)
def test_every_page_fits_and_axe_finds_nothing(
    browser: Browser, service: PageService, width: int, scheme: Any
) -> None:
    with context(browser, width, color_scheme=scheme) as opened:
        page = opened.new_page()
        found = complaints(page)
        for path in PATHS:
            page.goto(service.address + path)
            assert_fits_and_is_accessible(page, width)
        assert not found


@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_is_the_same_without_scripts(
    browser: Browser, service: PageService, width: int
) -> None:
    with context(browser, width, java_script_enabled=False) as opened:
        page = opened.new_page()
        for path in PATHS:
            page.goto(service.address + path)
            assert page.locator("h1").is_visible() and page.locator("main").inner_text().strip()
        page.goto(service.address)
        page.fill("input[name=q]", "8831.2")
        page.press("input[name=q]", "Enter")
        assert "no drone type fits" in (page.locator("main").text_content() or "")
        if width > 320:  # a narrow screen has cards without a head
            page.goto(f"{service.address}/drones")
            page.get_by_role("columnheader", name="Age").get_by_role("link").click()
            assert "sort=-age_s" in page.url


def test_the_keyboard_reaches_the_content_first_and_sees_where_it_is(
    browser: Browser, service: PageService
) -> None:
    with context(browser, 1280) as opened:
        page = opened.new_page()
        page.goto(service.address)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "To the content"
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        assert page.evaluate("document.querySelector('main').contains(document.activeElement)")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_a_page_prints_without_its_menu(browser: Browser, service: PageService) -> None:
    with context(browser, 1280) as opened:
        page = opened.new_page()
        page.goto(service.address)
        page.emulate_media(media="print")
        assert not page.locator("nav").is_visible() and page.locator("#table-1").is_visible()
        assert page.pdf(format="A4").startswith(b"%PDF")


def test_the_page_renews_itself_and_survives_a_restart_of_the_service(
    browser: Browser, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def reader(name: str, **more: str) -> records.SeriesReader:
        return records.write(tmp_path_factory.mktemp(name) / "provisioner.db", **more)

    with context(browser, 1280) as opened:
        page = opened.new_page()
        with serving(reader("first")) as service:
            page.goto(service.address)
            page.get_by_text("theory/kim").first.wait_for()
            service.reader = reader("second", strange="somebody else")
            service.tell("step")
            page.get_by_text("somebody else").first.wait_for()
            port = service.port
        page.get_by_text("The service does not answer").wait_for()
        with serving(reader("third"), port):
            page.get_by_text("theory/kim").first.wait_for()
            page.get_by_text("as of tick 3").wait_for()
