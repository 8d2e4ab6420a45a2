"""Fixtures of the live tests: HTCondor daemons of each version, an overlay pool per version,
drones; Slurm clusters; OpenStack; Kubernetes.

``PROVISIONER_LIVE_SUITES`` (Debian releases, by comma; default trixie,forky) chooses the versions
of HTCondor, ``PROVISIONER_SLURM_SUITES`` (default trixie) those of Slurm, all but the first marked
``matrix``. Missing daemons fail the tests; ``PROVISIONER_NO_LIVE=1`` skips them instead, but never
under CI. A Slurm cluster needs namespaces, and those root: an ordinary user's tests with Slurm are
skipped.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from playwright.sync_api import Browser

from tests.labs import htcondor
from tests.labs.chromium import running_chromium
from tests.labs.controller import LabController
from tests.labs.htcondor import Condor, DroneProcess, Pool, StartDrone
from tests.labs.kubernetes import Kubernetes, KubernetesLab, running_kubernetes
from tests.labs.openstack import OpenStack, OpenStackLab, running_openstack
from tests.labs.slurm import NoNamespaces, Slurm, SlurmLab, running_slurm

SUITES = os.environ.get("PROVISIONER_LIVE_SUITES", "trixie,forky").split(",")
VERSIONS = {"trixie": "condor23", "forky": "condor25"}
SMOKE = "test_idle_jobs_become_drones_run_and_the_drones_go_again"
"""The story that `make test` plays with every version of HTCondor. It plays all others with the
newest one only, and `make test-matrix` plays them with the older ones."""
SLURM_SUITES = os.environ.get("PROVISIONER_SLURM_SUITES", "trixie").split(",")
SLURM_VERSIONS = {"bookworm": "slurm22.05", "trixie": "slurm24.11", "sid": "slurm26.05"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.live)
        if "kubernetes_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kubernetes)
            item.add_marker(pytest.mark.xdist_group("kubernetes"))
        if _param(item, "condor") in SUITES[:-1] and not item.name.startswith(SMOKE):
            item.add_marker(pytest.mark.matrix)
        if _param(item, "slurm_programs") in SLURM_SUITES[1:]:
            item.add_marker(pytest.mark.matrix)  # Slurm with the first


def _param(item: pytest.Item, name: str) -> object:
    return (
        item.callspec.params.get(name)
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        else None
    )


@pytest.fixture(autouse=True)
def _attempt(request: pytest.FixtureRequest) -> None:
    htcondor.attempt(getattr(request.node, "execution_count", 1))  # of pytest-rerunfailures


T = TypeVar("T")


def programs(fetch: Callable[..., T], *words: str) -> T:
    """Return daemons; without them the test fails, or is skipped if the operator wants that."""
    if os.environ.get("PROVISIONER_NO_LIVE") and not os.environ.get("CI"):
        pytest.skip("PROVISIONER_NO_LIVE is set")
    try:
        return fetch(*words)
    except NoNamespaces as error:
        pytest.skip(str(error))
    except htcondor.LabError as error:
        pytest.fail(f"{error}\n(PROVISIONER_NO_LIVE=1 leaves the live tests out)", pytrace=False)


@pytest.fixture(scope="session", params=SUITES, ids=lambda suite: VERSIONS.get(suite, suite))
def condor(request: pytest.FixtureRequest) -> Condor:
    """HTCondor's programs, one version after the other."""
    return programs(Condor.fetched, request.param)


@pytest.fixture(scope="session")
def newest_condor() -> Condor:
    """One version, for what no version is told apart by."""
    return programs(Condor.fetched, SUITES[-1])


@pytest.fixture(scope="session")
def overlay_pool(condor: Condor) -> Iterator[Pool]:
    """One overlay pool per version for the whole session: collector, negotiator, schedd. Leave its queue empty."""
    with htcondor.running_pool(condor) as pool:
        yield pool


@pytest.fixture
def pool(overlay_pool: Pool) -> Iterator[Pool]:
    """The overlay pool, with an empty queue before and after."""
    yield overlay_pool
    for cluster in {int(ad["ClusterId"]) for ad in overlay_pool.jobs()}:
        overlay_pool.remove(cluster)
    htcondor.until(lambda: not overlay_pool.jobs(), what="the queue is empty")


@pytest.fixture
def new_pool(condor: Condor) -> Iterator[Callable[..., Pool]]:
    """Start a pool of the test's own (with extra configuration text): to be broken, stopped, starved."""
    with ExitStack() as stack:
        yield lambda config="": stack.enter_context(htcondor.running_pool(condor, "own", config))


@pytest.fixture
def drone_on() -> Iterator[StartDrone]:
    """Start a drone in a pool; whatever the test does to it, in the end no process and no slot of it is left."""
    started: list[tuple[Pool, DroneProcess]] = []

    def start(pool: Pool, name: str, **how: Any) -> DroneProcess:
        started.append((pool, htcondor.start_drone(pool, htcondor.own(name), **how)))
        return started[-1][1]

    yield start
    for _, drone in started:
        drone.stop()
    for pool, drone in started:
        assert not drone.leftovers(), drone.story()
        # a test may have stopped its collector, or all of it
        with suppress(subprocess.TimeoutExpired, htcondor.LabError, OSError):
            pool.run("condor_status", "-limit", "1", timeout_s=5)
            pool.forget(f'DroneId == "{drone.id}"')


@pytest.fixture
def lab(condor: Condor, request: pytest.FixtureRequest) -> Iterator[tuple[Pool, LabController]]:
    """A pool and a controller of the test's own, the controller not started yet. Its parameter is
    configuration text for the pool."""
    config = getattr(request, "param", "")
    with (
        htcondor.running_pool(condor, config=config) as pool,
        htcondor.lab_directory("controller") as directory,
    ):
        controller = LabController(pool, directory / "c")
        try:
            yield pool, controller
        finally:
            controller.clean_up()


@pytest.fixture(
    scope="session", params=SLURM_SUITES, ids=lambda suite: SLURM_VERSIONS.get(suite, suite)
)
def slurm_programs(request: pytest.FixtureRequest) -> Slurm:
    """Slurm's programs, one version after the other."""
    return programs(Slurm.fetched, request.param)


@pytest.fixture(scope="session")
def slurm(slurm_programs: Slurm) -> Iterator[SlurmLab]:
    """One cluster per version for the whole session, with accounting, slurmrestd and sshd. Leave it
    as it was: no job, all daemons up. Tests that use it are in the group `slurm`, so that there is
    one. It forgets ended jobs after a minute: over REST a new controller looks at each job that is
    remembered, whosever it was."""
    with running_slurm(slurm_programs, min_job_age_s=60) as lab:
        yield lab


@pytest.fixture
def new_slurm(slurm_programs: Slurm) -> Iterator[Callable[..., SlurmLab]]:
    """Start a cluster of the test's own (``Setup``'s fields by name): to be broken, stopped, starved."""
    with ExitStack() as stack:
        yield lambda **knobs: stack.enter_context(running_slurm(slurm_programs, **knobs))


@pytest.fixture(scope="session")
def kubernetes_cluster() -> Iterator[KubernetesLab]:
    """One cluster for the whole session: a real control plane, and a stand-in for the kubelets."""
    try:
        programs_built = Kubernetes.cached()
    except htcondor.LabError as error:
        pytest.skip(str(error))
    with running_kubernetes(programs_built) as lab:
        yield lab


@pytest.fixture
def kubernetes(kubernetes_cluster: KubernetesLab) -> Iterator[KubernetesLab]:
    """The cluster, which is empty again afterwards."""
    yield kubernetes_cluster
    kubernetes_cluster.reset()


@pytest.fixture(scope="session")
def openstack_programs() -> OpenStack:
    """Keystone, Placement, Glance and Nova in an interpreter of their own."""
    return programs(OpenStack.fetched)


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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        with running_chromium() as found:
            yield found
    except htcondor.LabError as error:
        pytest.skip(f"no Chromium: {error}")
