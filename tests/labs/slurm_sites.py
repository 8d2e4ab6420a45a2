"""A site on the lab's Slurm, by each way to it, and a look at its drones past all of them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, patch

import pytest

from adapters.slurm import SlurmSite
from adapters.slurm.records import SlurmSubmission
from adapters.slurm.settings import SlurmSiteConfig
from provisioner.adapter_tests import NotSupportedError
from provisioner.model import DroneId, DroneType, StartOrder
from tests.labs.htcondor import processes_of
from tests.labs.shell_drones import ShellDrones, hanging
from tests.labs.slurm import SlurmLab

HERE = "hk"
A100 = DroneType(
    HERE,
    "a100",
    gpu_milli=1000,
    cpus=8,
    memory_mib=2048,
    disk_mib=10,
    vram_mib=40960,
    gpu_model="A100",
    capability=80,
    walltime_s=3600.0,
)
HUGE = DroneType(
    HERE, "huge", gpu_milli=9000, cpus=8, memory_mib=2048, disk_mib=10, walltime_s=3600.0
)
_NAME = re.compile(r"(?P<prefix>[a-z0-9-]+)-(?P<serial>\d+)(?P<array>\+?)\..*")


def ways(lab: SlurmLab, work: Path) -> Mapping[str, Mapping[str, Any]]:
    """Options of the site for each way to the cluster. ``work``: a directory for secrets."""
    token = work / "token"
    token.touch(mode=0o600)
    token.write_text(lab.token())
    login = {
        "host": "127.0.0.1",
        "port": lab.ssh_port,
        "user": "drone",
        "known_hosts": str(lab.known_hosts),
        "key": str(lab.key),
    }
    return {
        "tools": {"tools": {"bin": str(lab.tools)}},
        "ssh": {"tools": {"ssh": login}},
        "rest": {
            "transport": "rest",
            "rest": {"url": lab.rest_url, "user": "drone", "token": {"file": str(token)}},
        },
        "socket": {"transport": "rest", "rest": {"url": f"unix:{lab.rest_socket}", "ssh": login}},
        # on the cluster's own hosts only: the Python there is for the test to say
        "native": {"transport": "native"},
    }


def site_config(lab: SlurmLab, way: str, work: Path, **more: Any) -> SlurmSiteConfig:
    return SlurmSiteConfig.model_validate(
        {
            "partition": "accelerated",
            "types": {"a100": {"gres": "gpu:a100"}, "huge": {"gres": "gpu:a100"}},
            "deadline": "15s",
            **ways(lab, work)[way],
            **more,
        }
    )


def lab_job(
    name: str,
    script: str = "exec sleep 600",
    tasks: Sequence[int] = (),
    output: str = "/dev/null",
    **options: Any,
) -> SlurmSubmission:
    """A job of one A100 for five minutes. ``options``: of sbatch, by their long names."""
    text = f"#!/bin/sh\nexport PATH=/usr/bin:/bin\n{script}\n".encode()
    chosen = {"partition": "accelerated", "gres": "gpu:a100:1", **options}
    return SlurmSubmission(name, text, tuple(tasks), 8, 2048, 5, 60, output, chosen)


def speaks(lab: SlurmLab, way: str) -> None:
    """Skip the test where slurmrestd speaks v0.0.38 at most, and we v0.0.40 and later."""
    if lab.slurm.version < (23, 11) and way in ("rest", "socket"):
        pytest.skip("this slurmrestd is too old")


class SlurmWorld(ShellDrones):
    """The contract's view of it."""

    kind: DroneType = A100
    impossible: DroneType = HUGE
    grace_s = 3.0
    longest_wait_s = 60.0
    reports_free = False
    reports_exit_codes = True

    def __init__(self, lab: SlurmLab, way: str, work: Path, controller: str) -> None:
        self.lab, self.way, self.controller = lab, way, controller
        self.config = site_config(lab, way, work)

    def site(self, controller: str | None = None) -> SlurmSite:
        return SlurmSite(HERE, self.config, [A100, HUGE], controller or self.controller)

    async def start_unseen(self, order: StartOrder) -> None:
        """A second job waits: the nodes of the lab are one host, where a drone that ends takes its processes along."""
        async with self._closed():
            await super().start_unseen(order)
            _, *others = sorted(int(each) for each in await self._jobs_of(order.drone_id))
            for job in others:
                self.lab.run("scontrol", "hold", str(job), user="root")

    @asynccontextmanager
    async def _closed(self) -> AsyncIterator[None]:
        """No job starts in the partition."""
        update = ("scontrol", "update", "PartitionName=accelerated")
        self.lab.run(*update, "State=DOWN", user="root")
        try:
            yield
        finally:
            self.lab.run(*update, "State=UP", user="root")

    def unseeing(self, member: Any) -> AbstractContextManager[object]:
        return patch.object(member._cluster, "own_jobs", AsyncMock(return_value=()))

    async def alive(self, drone_id: DroneId) -> int:
        return len(await self._jobs_of(drone_id))

    async def _jobs_of(self, drone_id: DroneId) -> list[str]:
        jobs = self.lab.jobs("-u", "drone")
        return [job.id for job in jobs if job.alive and drone_of(job.id, job.name) == drone_id]

    async def anything_left(self, drone_id: DroneId) -> bool:
        directories = self.lab.inside("/tmp").glob(f"drone.{drone_id}.*")
        return bool(processes_of(drone_id)) or any(directories)

    def broken(self) -> AbstractAsyncContextManager[None]:
        return hanging(self.lab.signal, "slurmctld")

    @asynccontextmanager
    async def _tool(self, name: str, script: str) -> AsyncIterator[None]:
        """Run ``script`` in the place of one of the tools, which it finds as ``$real``."""
        if self.way != "tools":
            raise NotSupportedError("only the tools of this host can be replaced")
        tool, real = self.lab.tools / name, self.lab.tools / f"{name}.real"
        tool.rename(real)
        tool.write_text(f"#!/bin/sh\nreal={real}\n{script}")
        tool.chmod(0o755)
        try:
            yield
        finally:
            real.rename(tool)

    def lost_replies(self) -> AbstractAsyncContextManager[None]:
        """Whoever runs sbatch dies once it is done."""
        return self._tool("sbatch", '"$real" "$@" >/dev/null\nkill -KILL $$\n')

    def pages(self) -> AbstractAsyncContextManager[None]:
        raise NotSupportedError("Slurm tells all jobs at once")

    def cut_listings(self) -> AbstractAsyncContextManager[None]:
        return self._tool(
            "squeue", 'out=$("$real" "$@")\nprintf %s "$out" | head -c $((${#out} / 2))\n'
        )

    @asynccontextmanager
    async def refused_starts(self) -> AsyncIterator[None]:
        """The partition takes no further job."""
        update = ("scontrol", "update", "PartitionName=accelerated")
        self.lab.run(*update, "State=DRAIN", user="root")
        try:
            yield
        finally:
            self.lab.run(*update, "State=UP", user="root")

    def refused_stops(self, status: int) -> AbstractAsyncContextManager[None]:
        said = {
            403: "echo 'scancel: error: Kill job error on job id 1: Access/permission denied' >&2; exit 1",
            500: "kill -KILL $$",
            503: "echo 'scancel: error: Unable to contact slurm controller (connect failure)' >&2; exit 1",
        }
        return self._tool("scancel", said[status] + "\n")

    def forgetful_site(self) -> SlurmSite:
        raise NotSupportedError("Slurm forgets ended jobs by itself")

    async def objects(self, drone_id: DroneId) -> Sequence[str]:
        raise NotSupportedError("Slurm forgets ended jobs by itself")


def drone_of(job_id: str, name: str) -> str:
    """Which drone a job is, by its name and the number of its task."""
    found = _NAME.fullmatch(name)
    if found is None:
        return ""
    task = int(job_id.partition("_")[2] or 0) if found["array"] else 0
    return f"{found['prefix']}-{int(found['serial']) + task}"
