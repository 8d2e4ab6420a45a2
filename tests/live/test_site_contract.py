"""The HTCondor site keeps the contract of a site, on a real one-node pool of each version."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from adapters.htcondor_site import HTCondorSite
from provisioner.contract import SiteContract, SiteWorld
from provisioner.model import DroneId, DroneType
from tests.live.farm import A100, HERE, HUGE, clear, farm_of, site_config
from tests.live.lab import OWN, Condor, Pool, processes_with
from tests.live.shell_drones import ShellDrones


@pytest.fixture(scope="module")
def farm(condor: Condor) -> Iterator[Pool]:
    with farm_of(condor) as pool:
        yield pool


class FarmWorld(ShellDrones):
    controller = f"kit{OWN}{os.getpid()}"
    kind: DroneType = A100
    impossible: DroneType = HUGE
    grace_s = 3.0
    patience_s = 60.0
    tells_free = False
    tells_exit_codes = True

    def __init__(self, pool: Pool, work: Path) -> None:
        self.pool, self.work = pool, work

    def site(self, controller: str | None = None) -> HTCondorSite:
        return HTCondorSite(HERE, site_config(self.pool, self.work), [A100, HUGE], controller or self.controller)

    async def alive(self, drone_id: DroneId) -> int:
        jobs = [ad for ad in self.pool.jobs() if ad.get("DroneId") == drone_id]
        return len([ad for ad in jobs if ad["JobStatus"] not in (3, 4)])

    async def anything_left(self, drone_id: DroneId) -> bool:
        return bool(processes_with(f"PROVISIONER_DRONE_ID={drone_id}\0"))

    @asynccontextmanager
    async def broken(self) -> AsyncIterator[None]:
        """The schedd hangs."""
        self.pool.signal("schedd", signal.SIGSTOP)
        try:
            yield
        finally:
            self.pool.signal("schedd", signal.SIGCONT)


class TestHTCondorSite(SiteContract):
    @pytest.fixture
    def world(self, farm: Pool, tmp_path: Path) -> Iterator[SiteWorld]:
        world = FarmWorld(farm, tmp_path / "work")
        yield world
        clear(farm, world.controller)
