"""Fixtures of the live tests: HTCondor daemons of each version, an overlay pool per version, drones.

``PROVISIONER_LIVE_SUITES`` (Debian releases, by comma; default trixie,forky) chooses the versions. Missing daemons
fail the tests; ``PROVISIONER_NO_LIVE=1`` skips them instead, but never under CI.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.live.controller import LabController
from tests.live.lab import Condor, LabError, Pool, lab_directory, running_pool

SUITES = os.environ.get("PROVISIONER_LIVE_SUITES", "trixie,forky").split(",")
VERSIONS = {"trixie": "condor23", "forky": "condor25"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.live)


@pytest.fixture(scope="session", params=SUITES, ids=lambda suite: VERSIONS.get(suite, suite))
def condor(request: pytest.FixtureRequest) -> Condor:
    """HTCondor's programs, one version after the other."""
    if os.environ.get("PROVISIONER_NO_LIVE") and not os.environ.get("CI"):
        pytest.skip("PROVISIONER_NO_LIVE is set")
    try:
        return Condor.fetched(request.param)
    except LabError as error:
        pytest.fail(f"{error}\n(PROVISIONER_NO_LIVE=1 leaves the live tests out)", pytrace=False)


@pytest.fixture(scope="session")
def overlay_pool(condor: Condor) -> Iterator[Pool]:
    """One overlay pool per version for the whole session: collector, negotiator, schedd. Leave its queue empty."""
    with running_pool(condor) as pool:
        yield pool


@pytest.fixture
def new_pool(condor: Condor, request: pytest.FixtureRequest) -> Callable[[str], Pool]:
    """Start a pool of the test's own (with extra configuration text): to be broken, stopped, starved."""

    def start(config: str = "") -> Pool:
        context = running_pool(condor, "own", config)
        pool = context.__enter__()
        request.addfinalizer(lambda: context.__exit__(None, None, None))
        return pool

    return start


@pytest.fixture
def lab(condor: Condor, request: pytest.FixtureRequest) -> Iterator[tuple[Pool, LabController]]:
    """A pool and a controller of the test's own, the controller not started yet. Its parameter is configuration text
    for the pool."""
    with running_pool(condor, config=getattr(request, "param", "")) as pool, lab_directory("controller") as directory:
        controller = LabController(pool, directory / "c")
        try:
            yield pool, controller
        finally:
            controller.clean_up()
