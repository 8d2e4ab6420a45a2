"""The sites keep the contract of a site, on real daemons, by each way to them.

One way to each in `make test`, and the others in the matrix: test_site_tools.py, test_drones.py and
test_slurm_transports.py go those ways with other stories.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import ClassVar

import pytest

from provisioner.adapter_tests import SiteContract, SiteWorld
from tests.labs.grid_site import AccessPoint, ElementWorld, through_element
from tests.labs.htcondor import OWN, Condor, Pool
from tests.labs.kubernetes import KubernetesLab
from tests.labs.kubernetes_sites import KubernetesWorld
from tests.labs.openstack import OpenStackLab
from tests.labs.openstack_sites import OpenStackWorld
from tests.labs.shared_gpu_site import FarmWorld, clear, farm_of
from tests.labs.slurm import SlurmLab
from tests.labs.slurm_sites import SlurmWorld, speaks

_NTH = count(1)


@pytest.fixture
def controller() -> str:
    """A name that no other test has: sites remember drones that have ended."""
    return f"kit{OWN}{os.getpid()}x{next(_NTH)}"


@pytest.fixture(scope="module")
def farm(condor: Condor) -> Iterator[Pool]:
    with farm_of(condor) as pool:
        yield pool


@pytest.mark.parametrize("transport", ["bindings", pytest.param("tools", marks=pytest.mark.matrix)])
class TestHTCondorSite(SiteContract):
    @pytest.fixture
    def world(
        self, farm: Pool, tmp_path: Path, controller: str, transport: str
    ) -> Iterator[SiteWorld]:
        tools = {"transport": "tools", "tools": {"path": str(farm.condor.prefix / "usr/bin")}}
        yield FarmWorld(
            farm, tmp_path / "work", controller, **(tools if transport == "tools" else {})
        )
        clear(farm, controller)


@pytest.fixture(scope="module")
def element(newest_condor: Condor) -> Iterator[tuple[AccessPoint, Pool]]:
    with through_element(newest_condor) as pools:
        yield pools


class TestThroughComputingElement(SiteContract):
    """Condor-C and a JobRouter take half a minute for each drone, so the matrix has most of it."""

    pytestmark: ClassVar = [pytest.mark.asyncio, pytest.mark.matrix]

    @pytest.fixture
    def world(
        self, element: tuple[AccessPoint, Pool], tmp_path: Path, controller: str
    ) -> Iterator[SiteWorld]:
        access, behind = element
        yield ElementWorld(access, behind, tmp_path / "work", controller)
        clear(access, controller)


IN_THE_MATRIX = [pytest.param(way, marks=pytest.mark.matrix) for way in ("tools", "ssh", "socket")]


@pytest.mark.parametrize("way", ["rest", *IN_THE_MATRIX])
class TestSlurmSite(SiteContract):
    pytestmark: ClassVar = pytest.mark.xdist_group("slurm")

    @pytest.fixture
    def world(
        self, slurm: SlurmLab, tmp_path: Path, controller: str, way: str
    ) -> Iterator[SiteWorld]:
        speaks(slurm, way)
        yield SlurmWorld(slurm, way, tmp_path, controller)
        slurm.empty()


class TestOpenStackSite(SiteContract):
    """Servers on a network that boot from volumes."""

    pytestmark: ClassVar = pytest.mark.xdist_group("openstack")

    @pytest.fixture
    def world(self, openstack: OpenStackLab, tmp_path: Path, controller: str) -> SiteWorld:
        return OpenStackWorld(openstack, tmp_path, controller)


@pytest.mark.parametrize("kind", ["pod", "job"])
class TestKubernetesSite(SiteContract):
    @pytest.fixture
    def world(self, kubernetes: KubernetesLab, controller: str, kind: str) -> SiteWorld:
        return KubernetesWorld(kubernetes, controller, kind=kind)
