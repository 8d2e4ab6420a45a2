"""The web pages of a real controller in a real browser: each of them, in every size, and across restarts."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from adapters.embedded import queue
from provisioner.model import DroneId, DroneState
from tests.labs.chromium import (
    WIDTHS,
    assert_fits,
    assert_fits_and_is_accessible,
    complaints,
    context,
)
from tests.labs.demo import DemoHost, running_demo

pytestmark = pytest.mark.xdist_group("demo")
SMALL, LARGE, HUGE = ({"vram_mib": gib * 1024} for gib in (8, 36, 80))
"""Requests that fit each GPU of the demo, its two A100 only, and none."""
REMEMBER_EVENTS = """
window.heard = [];
window.EventSource = class extends EventSource {
  constructor(...given) {
    super(...given);
    for (const kind of ["step", "event"])
      this.addEventListener(kind, (message) => heard.push([message.lastEventId, JSON.parse(message.data)]));
  }
};
"""


@dataclass(frozen=True)
class LivePool:
    """The demo with drones that run jobs, a drone that has ended, jobs that wait, and one that can never start."""

    host: DemoHost
    running: int
    waiting: int
    impossible: int

    def drone(self, state: DroneState) -> DroneId:
        return self.host.reader.drones(ended=None, states=[state])[0].id

    @property
    def pages(self) -> dict[str, str]:
        """A text on each page by its path."""
        busy, done = self.drone(DroneState.BUSY), self.drone(DroneState.DONE)
        return {
            "/": "classes that can never start",
            "/why": "what happens next?",
            f"/why?q={self.waiting}": f"Job {self.waiting} waits",
            f"/why?q={busy}": "runs jobs",
            "/owner": "Drones that leave for the owner",
            "/use": "GPU-hours of drones in the last 7 days",
            "/use?since=1d&by=user": "Lowest use",
            "/waste": "GPU-hours by site",
            "/sites": "All sites",
            "/sites/local": "Taken back",
            "/drones": "local/v100",
            "/drones?show=all": done,
            "/plan": "no drone type fits",
            f"/job/{self.waiting}": "waits",
            f"/job/{self.impossible}": "no drone type fits",
            f"/job/{self.running}": "runs in drone",
            f"/drone/{busy}": "in the pool, busy with 1 job",
            f"/drone/{done}": "exit code 0",
        }


@pytest.fixture(scope="module")
def live_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivePool]:
    with running_demo(tmp_path_factory.mktemp("demo")) as host:
        host.submit(1, run_s=1, **SMALL)
        host.until(lambda: host.reader.drones(ended=True), 120)
        running, *_, waiting = host.submit(5, run_s=36000, **LARGE)
        host.submit(1, run_s=36000, **SMALL)
        [impossible] = host.submit(1, **HUGE)
        yield LivePool(host, running, waiting, impossible)


@pytest.fixture
def pool(live_pool: LivePool) -> LivePool:
    """The pool with its three drones only: those of a test before it have ended, and a plan says why jobs wait."""
    host = live_pool.host
    host.start_all()
    host.until(lambda: [each.state for each in host.reader.drones()] == [DroneState.BUSY] * 3, 120)
    host.until(
        lambda: "no free capacity" in str(host.get(f"/api/v1/jobs/{live_pool.waiting}")), 120
    )
    return live_pool


def running_v100(page: Page) -> Locator:
    """Return the number of drones of that type that run jobs, on the page Now."""
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name="v100", exact=True))
    return row.locator("td.running")


def steps(page: Page, drone: DroneId) -> list[str]:
    """Return the states of a drone that the stream has told the page."""
    return [row["name"] for _, row in page.evaluate("heard") if row["drone"] == drone]


def visited(page: Page, pool: LivePool) -> Iterator[str]:
    """Open one page after the other, check its text, and yield its path."""
    for path, text in pool.pages.items():
        page.goto(pool.host.url + path)
        assert text in (page.locator("main").text_content() or ""), path
        yield path


def test_the_page_renews_itself_across_restarts_without_being_loaded_again(
    browser: Browser, pool: LivePool
) -> None:
    host, jobs = pool.host, list[int]()

    def submit() -> None:
        jobs.extend(host.submit(1, run_s=36000, **SMALL))

    def new_drone(known: set[DroneId]) -> DroneId:
        """Return the drone that runs the newest job, once the page has heard of all its steps."""
        host.until(
            lambda: {each.id for each in host.reader.drones(states=[DroneState.BUSY])} - known, 120
        )
        [drone] = {each.id for each in host.reader.drones()} - known
        host.until(
            lambda: steps(page, drone) == [each.state.value for each in host.reader.history(drone)]
        )
        known.add(drone)
        return drone

    with context(browser, 1280) as opened:
        opened.add_init_script(REMEMBER_EVENTS)
        page = opened.new_page()
        page.clock.install()
        page.goto(host.url)
        page.evaluate("window.first = true")
        try:
            expect(running_v100(page)).to_have_text("1")
            known = {each.id for each in host.reader.drones()}
            submit()
            new_drone(known)
            expect(running_v100(page)).to_have_text("2")

            host.stop("run", signal.SIGKILL)
            tick = host.reader.position().tick
            expect(page.locator(".verdict")).to_have_class(re.compile("critical"))
            age = page.locator("#age").inner_text()

            def has_aged() -> bool:
                page.clock.fast_forward(30_000)
                return age != page.locator("#age").inner_text()

            host.until(has_aged)  # no event comes
            submit()
            host.start("run")
            new_drone(known)
            expect(running_v100(page)).to_have_text("3")
            expect(page.locator(".verdict")).to_have_class(re.compile("note"))
            host.until(
                lambda: (
                    int(page.locator("#age").inner_text().split("tick ")[1].split(",")[0])
                    > tick + 1
                )
            )

            assert host.stop("serve") == 0
            expect(page.locator("#age")).to_contain_text("does not answer")
            submit()
            host.until(lambda: len(host.reader.drones(states=[DroneState.BUSY])) == 6, 120)
            host.start("serve")
            new_drone(known)
            expect(running_v100(page)).to_have_text("4")
            expect(page.locator("#age")).to_contain_text("as of tick")
            assert page.evaluate("window.first"), "it was not loaded again"
            told = [json.dumps(row) for row in page.evaluate("heard")]
            assert len(told) == len(set(told)), "nothing twice"
        finally:
            queue.remove(host.queue, jobs)


def test_waste_has_the_time_of_real_drones_by_what_they_did(
    browser: Browser, pool: LivePool
) -> None:
    with context(browser, 1280) as opened:
        page = opened.new_page()

        def is_drawn() -> bool:
            page.goto(f"{pool.host.url}/waste")
            return page.locator("figure").is_visible()

        pool.host.until(is_drawn, 180)  # a sample a minute
        shares = dict(re.findall(r"(\w+) (\d+)%", page.locator(".lead").inner_text()))
        assert int(shares["good"]) > 0 and sum(map(int, shares.values())) == pytest.approx(
            100, abs=3
        )


NARROWEST, *WIDER = WIDTHS
"""The first is where the most does not fit. Pages of a record of the tests are looked at in all of them."""


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (NARROWEST, "light"),
        pytest.param(NARROWEST, "dark", marks=pytest.mark.matrix),
        *(pytest.param(width, "light", marks=pytest.mark.matrix) for width in WIDER),
    ],
)
def test_every_page_fits_and_axe_finds_nothing(
    browser: Browser, pool: LivePool, width: int, scheme: Any
) -> None:
    with context(browser, width, color_scheme=scheme) as opened:
        page = opened.new_page()
        found = complaints(page)
        for _ in visited(page, pool):
            assert_fits_and_is_accessible(page, width)
        assert not found


@pytest.mark.parametrize(
    "width", [NARROWEST, *(pytest.param(width, marks=pytest.mark.matrix) for width in WIDER)]
)
def test_every_page_says_the_same_without_scripts(
    browser: Browser, pool: LivePool, width: int
) -> None:
    with context(browser, width, java_script_enabled=False) as opened:
        page = opened.new_page()
        found = complaints(page)
        for _ in visited(page, pool):
            assert_fits(page, width)
        page.fill("input[name=q]", str(pool.impossible))
        page.press("input[name=q]", "Enter")
        links = page.get_by_role("link", name=f"Job {pool.impossible} waits")
        if links.count():  # a drone or a class has the same number
            links.click()
        expect(page.locator("h1")).to_have_text(f"Job {pool.impossible} waits")
        assert not found
