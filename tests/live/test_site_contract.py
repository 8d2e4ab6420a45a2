"""The HTCondor site keeps the contract of a site, on a real one-node pool of each version."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from adapters.htcondor.site import HTCondorSite, client
from provisioner.adapter_tests import NotSupportedError, SiteContract, SiteWorld
from provisioner.model import DroneId, DroneType
from tests.labs.htcondor import OWN, Condor, Pool, processes_with, until
from tests.labs.shared_gpu_site import A100, HERE, HUGE, clear, farm_of, site_config
from tests.labs.shell_drones import ShellDrones


@pytest.fixture(scope="module")
def farm(condor: Condor) -> Iterator[Pool]:
    with farm_of(condor) as pool:
        yield pool


class FarmWorld(ShellDrones):
    controller = f"kit{OWN}{os.getpid()}"
    kind: DroneType = A100
    impossible: DroneType = HUGE
    grace_s = 3.0
    longest_wait_s = 60.0
    reports_free = False
    reports_exit_codes = True

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

    @asynccontextmanager
    async def lost_replies(self) -> AsyncIterator[None]:
        """The process that submits dies once the schedd has taken the jobs."""
        before, client.BINDINGS_WORKER = client.BINDINGS_WORKER, "tests.labs.lossy_bindings:ForgetfulSide"
        try:
            yield
        finally:
            client.BINDINGS_WORKER = before

    def pages(self) -> AbstractAsyncContextManager[None]:
        raise NotSupportedError("a schedd answers a query as one stream of ads")

    def cut_listings(self) -> AbstractAsyncContextManager[None]:
        raise NotSupportedError("nothing in this lab can cut a stream of ads from the schedd")

    @asynccontextmanager
    async def refused_starts(self) -> AsyncIterator[None]:
        """The schedd takes no further job."""
        before = self.pool.config.read_text()
        try:
            await self._reconfigured(before + "MAX_JOBS_SUBMITTED = 0\n", "0")
            yield
        finally:
            await self._reconfigured(before + "MAX_JOBS_SUBMITTED = 10000\n", "10000")

    async def _reconfigured(self, text: str, most: str) -> None:
        self.pool.config.write_text(text)
        self.pool.signal("schedd", signal.SIGHUP)
        ask = ("condor_config_val", "-schedd", "MAX_JOBS_SUBMITTED")
        what = f"the schedd takes {most} jobs"
        await asyncio.to_thread(until, lambda: self.pool.run(*ask).strip() == most, 30, what=what)

    def refused_stops(self, status: int) -> AbstractAsyncContextManager[None]:
        raise NotSupportedError("this lab's schedd lets each user remove their own jobs")

    def forgetful_site(self) -> HTCondorSite:
        config = site_config(self.pool, self.work).model_copy(
            update={"retain_finished": 1.0}
        )  # operators: a minute or more
        return HTCondorSite(HERE, config, [A100, HUGE], self.controller)

    async def objects(self, drone_id: DroneId) -> Sequence[str]:
        jobs = await asyncio.to_thread(self.pool.jobs)
        return [f"job {ad['ClusterId']}.{ad['ProcId']}" for ad in jobs if ad.get("DroneId") == drone_id]


class TestHTCondorSite(SiteContract):
    @pytest.fixture
    def world(self, farm: Pool, tmp_path: Path) -> Iterator[SiteWorld]:
        world = FarmWorld(farm, tmp_path / "work")
        yield world
        clear(farm, world.controller)
