"""A site of one node with 8 simulated GPUs that drones share, and an HTCondor site adapter for it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, patch

from adapters.htcondor.site import HTCondorSite, HTCondorSiteConfig, client
from provisioner.adapter_tests import NotSupportedError
from provisioner.model import DroneId, DroneType
from tests.labs.htcondor import (
    LOOPBACK,
    ONE_SLOT,
    Condor,
    LabError,
    Pool,
    processes_of,
    processes_with,
    running_pool,
    until,
)
from tests.labs.shell_drones import ShellDrones, hanging

HERE = "farm"
SITE = """
NUM_CPUS = 32
MEMORY = 65536
DISK = 100000000
GPU_DISCOVERY_EXTRA = -extra -simulate:4,8
MACHINEMAXVACATETIME = 3
PERIODIC_EXPR_INTERVAL = 2
SUBMIT_REQUIREMENT_NAMES = Gpus
SUBMIT_REQUIREMENT_Gpus = (RequestGPUs ?: 0) <= 8
SUBMIT_REQUIREMENT_Gpus_REASON = "no node has more than 8 GPUs"
"""
A100 = DroneType(
    HERE,
    "a100",
    gpu_milli=1000,
    cpus=4,
    memory_mib=2048,
    disk_mib=10,
    vram_mib=40960,
    gpu_model="A100",
    capability=80,
    walltime_s=3600.0,
)
HUGE = DroneType(HERE, "huge", gpu_milli=9000, cpus=4, memory_mib=2048, disk_mib=10)


def site_config(pool: Pool, work: Path, **more: object) -> HTCondorSiteConfig:
    token = pool.dir / "clients" / "alice" / "tokens" / "alice"
    return HTCondorSiteConfig.model_validate(
        {
            "collector": pool.collector,
            "token": {"file": str(token)},
            "client_config": LOOPBACK,
            "work_directory": str(work),
            "deadline": "12s",
            **more,
        }
    )


@contextmanager
def one_host(condor: Condor, config: str, nodes: int = 1) -> Iterator[Pool]:
    """A site whose startds are daemons of its pool."""
    daemons = "COLLECTOR NEGOTIATOR SCHEDD STARTD"
    with running_pool(condor, "site", ONE_SLOT + config, daemons=daemons) as pool:
        until(
            lambda: len(pool.slots('SlotType == "Partitionable"')) == nodes,
            60,
            what="the nodes are in the pool",
        )
        yield pool


def farm_of(condor: Condor, more: str = "") -> AbstractContextManager[Pool]:
    """The site with ``more`` configuration."""
    return one_host(condor, SITE + more)


def clear(pool: Pool, controller: str) -> None:
    """End all drones of a controller, those too that are kept to be listed."""
    pool.empty("-constraint", "DroneId isnt undefined")
    until(
        lambda: not processes_with(f"PROVISIONER_DRONE_ID={controller}"),
        30,
        what="no drone is left",
    )


class FarmWorld(ShellDrones):
    """The contract's view of it. ``options``: of the site."""

    kind: DroneType = A100
    impossible: DroneType = HUGE
    grace_s = 3.0
    longest_wait_s = 60.0
    reports_free = False
    reports_exit_codes = True

    def __init__(self, pool: Pool, work: Path, controller: str, **options: object) -> None:
        self.pool, self.controller = pool, controller
        self.config = site_config(pool, work, **options)

    def site(self, controller: str | None = None) -> HTCondorSite:
        return HTCondorSite(HERE, self.config, [A100, HUGE], controller or self.controller)

    def unseeing(self, member: Any) -> AbstractContextManager[object]:
        return patch.object(member, "_queued", AsyncMock(return_value=()))

    async def alive(self, drone_id: DroneId) -> int:
        jobs = [ad for ad in self.pool.jobs() if ad.get("DroneId") == drone_id]
        return len([ad for ad in jobs if ad["JobStatus"] not in (3, 4)])

    async def anything_left(self, drone_id: DroneId) -> bool:
        return bool(processes_of(drone_id))

    def broken(self) -> AbstractAsyncContextManager[None]:
        return hanging(self.pool.signal, "schedd")

    @asynccontextmanager
    async def lost_replies(self) -> AsyncIterator[None]:
        """The process that submits dies once the schedd has taken the jobs."""
        before, client.BINDINGS_WORKER = (
            client.BINDINGS_WORKER,
            "tests.labs.lossy_bindings:ForgetfulSide",
        )
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
            # HTCondor 23.9 answers the first submission after a rejected one with its error
            with suppress(LabError):
                job = await asyncio.to_thread(
                    self.pool.submit, "executable = /bin/true\nhold = true\nqueue\n", "admin"
                )
                await asyncio.to_thread(self.pool.run, "condor_rm", str(job))

    async def _reconfigured(self, text: str, most: str) -> None:
        self.pool.config.write_text(text)
        self.pool.signal("schedd", signal.SIGHUP)
        ask = ("condor_config_val", "-schedd", "MAX_JOBS_SUBMITTED")
        what = f"the schedd takes {most} jobs"
        await asyncio.to_thread(until, lambda: self.pool.run(*ask).strip() == most, 30, what=what)

    def refused_stops(self, status: int) -> AbstractAsyncContextManager[None]:
        raise NotSupportedError("this lab's schedd lets each user remove their own jobs")

    def forgetful_site(self) -> HTCondorSite:
        # operators: a minute or more
        config = self.config.model_copy(update={"retain_finished": 1.0})
        return HTCondorSite(HERE, config, [A100, HUGE], self.controller)

    async def objects(self, drone_id: DroneId) -> Sequence[str]:
        jobs = await asyncio.to_thread(self.pool.jobs)
        return [
            f"job {ad['ClusterId']}.{ad['ProcId']}" for ad in jobs if ad.get("DroneId") == drone_id
        ]
