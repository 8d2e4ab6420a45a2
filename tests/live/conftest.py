"""Fixtures of the live tests: HTCondor daemons of each version, an overlay pool per version, drones; Slurm clusters.

``PROVISIONER_LIVE_SUITES`` (Debian releases, by comma; default trixie,forky) chooses the versions of HTCondor,
``PROVISIONER_SLURM_SUITES`` (default trixie) those of Slurm, all but the first marked ``matrix``. Missing daemons fail
the tests; ``PROVISIONER_NO_LIVE=1`` skips them instead, but never under CI. A Slurm cluster needs namespaces, and those
root: an ordinary user's tests with Slurm are skipped.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.labs.controller import LabController
from tests.labs.htcondor import Condor, LabError, Pool, attempt, lab_directory, running_pool
from tests.labs.openstack import OpenStack, OpenStackLab, running_openstack
from tests.labs.slurm import NoNamespaces, Slurm, SlurmLab, running_slurm

SUITES = os.environ.get("PROVISIONER_LIVE_SUITES", "trixie,forky").split(",")
VERSIONS = {"trixie": "condor23", "forky": "condor25"}
EVERY_VERSION = (
    "test_lab.py",
    "test_overlay_agreement.py",
    "test_idle_jobs_become_drones_run_and_the_drones_go_again",
    "test_a_drone_joins_runs_gpu_jobs_and_leaves_when_idle",
    "test_sigterm_gives_a_job_the_time_that_it_needs",
    "test_a_killed_master_leaves_nothing_behind",
    "test_the_life_of_a_drone_in_the_pool",
    "test_peaceful_lets_the_job_end_and_resume_takes_it_back",
    "test_three_autoclusters_and_what_refuses_them",
    "test_without_a_good_token_it_is_denied_and_says_so",
    "test_hostile_ads_are_notices_at_most",
)
"""Files and tests that `make test` runs with every version of HTCondor. It runs all others with the newest one only,
and `make test-matrix` runs them with the older ones."""
SLURM_SUITES = os.environ.get("PROVISIONER_SLURM_SUITES", "trixie").split(",")
SLURM_VERSIONS = {"bookworm": "slurm22.05", "trixie": "slurm24.11", "sid": "slurm26.05"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.live)
        everywhere = item.path.name in EVERY_VERSION or item.name.startswith(EVERY_VERSION)
        if _param(item, "condor") in SUITES[:-1] and not everywhere:
            item.add_marker(pytest.mark.matrix)
        if _param(item, "slurm_programs") in SLURM_SUITES[1:]:
            item.add_marker(pytest.mark.matrix)  # Slurm with the first


def _param(item: pytest.Item, name: str) -> object:
    return item.callspec.params.get(name) if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None


@pytest.fixture(autouse=True)
def _attempt(request: pytest.FixtureRequest) -> None:
    attempt(getattr(request.node, "execution_count", 1))  # of pytest-rerunfailures


@pytest.fixture(scope="session", params=SUITES, ids=lambda suite: VERSIONS.get(suite, suite))
def condor(request: pytest.FixtureRequest) -> Condor:
    """HTCondor's programs, one version after the other."""
    return programs(str(request.param))


def wanted() -> None:
    """Skip the test if the operator wants that."""
    if os.environ.get("PROVISIONER_NO_LIVE") and not os.environ.get("CI"):
        pytest.skip("PROVISIONER_NO_LIVE is set")


def programs(suite: str) -> Condor:
    """Of one Debian release; without them the test fails, or is skipped if the operator wants that."""
    wanted()
    try:
        return Condor.fetched(suite)
    except LabError as error:
        pytest.fail(f"{error}\n(PROVISIONER_NO_LIVE=1 leaves the live tests out)", pytrace=False)


@pytest.fixture(scope="session")
def newest_condor() -> Condor:
    """One version, for what no version is told apart by."""
    return programs(SUITES[-1])


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


@pytest.fixture(scope="session", params=SLURM_SUITES, ids=lambda suite: SLURM_VERSIONS.get(suite, suite))
def slurm_programs(request: pytest.FixtureRequest) -> Slurm:
    """Slurm's programs, one version after the other."""
    wanted()
    try:
        return Slurm.fetched(str(request.param))
    except NoNamespaces as error:
        pytest.skip(str(error))
    except LabError as error:
        pytest.fail(f"{error}\n(PROVISIONER_NO_LIVE=1 leaves the live tests out)", pytrace=False)


@pytest.fixture(scope="session")
def slurm(slurm_programs: Slurm) -> Iterator[SlurmLab]:
    """One cluster per version for the whole session, with accounting, slurmrestd and sshd. Leave it as it was: no job,
    all daemons up. Tests that use it are in the group `slurm`, so that there is one. It forgets ended jobs after a
    minute: over REST a new controller looks at each job that is remembered, whosever it was."""
    with running_slurm(slurm_programs, min_job_age_s=60) as lab:
        yield lab


@pytest.fixture
def new_slurm(slurm_programs: Slurm, request: pytest.FixtureRequest) -> Callable[..., SlurmLab]:
    """Start a cluster of the test's own (``Setup``'s fields by name): to be broken, stopped, starved."""

    def start(**knobs: Any) -> SlurmLab:
        context = running_slurm(slurm_programs, **knobs)
        lab = context.__enter__()
        request.addfinalizer(lambda: context.__exit__(None, None, None))
        return lab

    return start


@pytest.fixture(scope="session")
def openstack_programs() -> OpenStack:
    """Keystone, Placement, Glance and Nova in an interpreter of their own."""
    wanted()
    try:
        return OpenStack.fetched()
    except LabError as error:
        pytest.fail(f"{error}\n(PROVISIONER_NO_LIVE=1 leaves the live tests out)", pytrace=False)


@pytest.fixture(scope="session")
def openstack_cloud(openstack_programs: OpenStack) -> Iterator[OpenStackLab]:
    """One cloud for the whole session."""
    with running_openstack(openstack_programs) as lab:
        yield lab


@pytest.fixture
def openstack(openstack_cloud: OpenStackLab) -> Iterator[OpenStackLab]:
    """The cloud, which is empty again afterwards."""
    yield openstack_cloud
    openstack_cloud.reset()
