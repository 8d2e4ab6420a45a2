"""The sites keep the contract of a site, on real daemons, by each way to them.

Slurm over ssh only in the matrix: what is said there is the same, and test_drones.py goes all four
ways.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import ClassVar

import pytest

from provisioner.adapter_tests import SiteContract, SiteWorld
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


@pytest.mark.parametrize("transport", ["bindings", "tools"])
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


IN_THE_MATRIX = [pytest.param(way, marks=pytest.mark.matrix) for way in ("ssh", "socket")]


@pytest.mark.parametrize("way", ["tools", "rest", *IN_THE_MATRIX])
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
