"""What the adapter says of a job and a drone type is what the pool's own negotiator does with a real drone of it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping
from dataclasses import replace

import classad2
import pytest

from adapters.htcondor.classads import holds
from adapters.htcondor.overlay import matching
from adapters.htcondor.overlay.pool import numbers_fit
from provisioner.model import DroneType, JobClass, Sharing, SlotState
from tests.htcondor_overlay.live import A100, in_state, overlay_on
from tests.labs.htcondor import Pool, StartDrone, gpu_job

V100S = replace(
    A100,
    name="v100s",
    gpu_milli=2000,
    cpus=1,
    memory_mib=1024,
    vram_mib=24220,
    capability=70,
    gpu_model="Tesla V100-PCIE-16GB",
)
CPU = DroneType(
    site="lab", name="cpu", gpu_milli=0, cpus=4, memory_mib=512, disk_mib=1024, walltime_s=3600.0
)
SIMULATED = {
    "a100": "4,1",
    "v100s": "2,2",
    "keeps": "2,2",
    "cpu": "",
    "thirds": "4,1",
    "six-thirds": "4,2",
}
"""condor_gpu_discovery's own fakes: device kind, number."""

JOBS: Mapping[str, tuple[str, frozenset[str]]] = {
    # what it asks for, and which types run it
    "plain": ("", frozenset({"a100", "v100s"})),
    "two cpus": ("request_cpus = 2", frozenset({"a100"})),
    "memory": ("request_memory = 700MB", frozenset({"v100s"})),
    "disk": ("request_disk = 100GB", frozenset()),
    "two gpus": ("request_gpus = 2", frozenset({"v100s"})),
    "vram": ("gpus_minimum_memory = 35000", frozenset({"a100"})),
    "capability": ("gpus_minimum_capability = 7.5", frozenset({"a100"})),
    "too new": ("require_gpus = Capability >= 9.5", frozenset()),
    "old only": ("gpus_maximum_capability = 7.0", frozenset({"v100s"})),
    "model": ('require_gpus = regexp("V100", DeviceName)', frozenset({"v100s"})),
    "either": (
        "require_gpus = Capability >= 8.0 || GlobalMemoryMb < 30000",
        frozenset({"a100", "v100s"}),
    ),
    "software": ("requirements = TARGET.HasCVMFS", frozenset()),
    "no transfer": ("should_transfer_files = NO\nwhen_to_transfer_output =", frozenset()),
    "long": ("allowed_job_duration = 7200", frozenset()),
    "half a gpu": ("request_gpus = 0.5", frozenset()),
    "own attribute": ('+Wish = "topas"\nrequirements = MY.Wish == TARGET.SiteName', frozenset()),
}

ODD_JOBS: Mapping[str, tuple[str, frozenset[str]]] = {
    "all cpus": ("request_cpus = TARGET.Cpus", frozenset({"a100", "v100s"})),
    "all gpus": ("request_gpus = TARGET.TotalGPUs", frozenset({"a100", "v100s"})),
    "twice the cpus": ("request_cpus = 2 * TARGET.Cpus", frozenset()),
    "resizable": (
        "+MostCpus = 2\n+Resized = Cpus > MostCpus ? MostCpus : Cpus\n+RequestCpus = MY.Resized",
        frozenset({"a100", "v100s"}),
    ),
    "of another attribute": ("+RequestMemory = TARGET.Missing * 2", frozenset()),
    "negative memory": ("+RequestMemory = -400", frozenset({"a100", "v100s"})),
    "negative cpus": ("+RequestCpus = -1", frozenset({"a100", "v100s"})),
    "negative disk": ("+RequestDisk = -1", frozenset({"a100", "v100s"})),
    "negative gpus": ("+RequestGPUs = -1", frozenset()),
    "no cpus": ("+RequestCpus = 0", frozenset({"a100", "v100s"})),
    "no memory": ("+RequestMemory = 0", frozenset({"a100", "v100s"})),
    "beyond 64 bit": ("+RequestDisk = 99999999999999999999", frozenset({"a100", "v100s"})),
    "a string": ('+RequestMemory = "128"', frozenset()),
    "undefined": ("+RequestMemory = undefined", frozenset()),
    "true": ("+RequestCpus = true", frozenset({"a100", "v100s"})),
}
"""Requests that look at the slot, and numbers that no slot has. HTCondor reads a number beyond 64 bit as 0."""

CPU_JOBS: Mapping[str, tuple[str, frozenset[str]]] = {
    "plain": ("", frozenset({"a100"})),
    "no gpu": ("request_gpus = 0", frozenset({"cpu"})),
    "no gpu, all cpus": ("request_gpus = 0\nrequest_cpus = 4", frozenset({"cpu"})),
    "no gpu, too many cpus": ("request_gpus = 0\nrequest_cpus = 5", frozenset()),
    "no gpu, too much memory": ("request_gpus = 0\nrequest_memory = 513MB", frozenset()),
}
"""Apart: 25.14 was seen to negotiate in a cycle for no more than twenty kinds of job that nobody takes."""


def fits(jobs: JobClass, kind: DroneType) -> bool:
    """The verdict as a planner puts it together."""
    return not jobs.invalid and numbers_fit(jobs, kind) and kind.key not in jobs.refuses


def description(more: str, kind: DroneType) -> str:
    """A job of no length that asks for something, and for a drone of this type."""
    wants = f'TARGET.DroneType == "{kind.name}"'
    lines = [line for line in more.splitlines() if not line.startswith("requirements")]
    own = next(
        (line.partition("=")[2] for line in more.splitlines() if line.startswith("requirements")),
        "true",
    )
    return gpu_job(0, more="\n".join([*lines, f"requirements = ({own}) && ({wants})"]))


def environment(kind: DroneType) -> dict[str, str]:
    """Return the environment of a drone of a type."""
    return {
        "DRONE_TYPE": kind.name,
        "DRONE_GPUS": str(kind.gpu_milli // 1000),
        "DRONE_GPU_MILLI": str(kind.gpu_milli),
        "DRONE_CPUS": str(kind.cpus),
        "DRONE_MEMORY_MIB": str(kind.memory_mib),
        "DRONE_VRAM_MIB": "0",
        "DRONE_KEPT_CPUS": str(kind.kept_cpus),
        "DRONE_KEPT_MEMORY_MIB": str(kind.kept_memory_mib),
        "DRONE_KEPT_DISK_MIB": str(kind.kept_disk_mib),
        "DRONE_GPU_SIMULATE": SIMULATED[kind.name],
        "CUDA_VISIBLE_DEVICES": ",".join(str(n) for n in range(kind.gpu_milli // 1000)),
        **(
            {"DRONE_SHARING": kind.sharing.value, "DRONE_SHARES": str(kind.shares)}
            if kind.shares > 1
            else {}
        ),
    }


@pytest.mark.parametrize(
    ("kinds", "jobs"),
    [([A100, V100S], JOBS), ([A100, CPU], CPU_JOBS), ([A100, V100S], ODD_JOBS)],
    ids=["gpus", "cpus", "odd"],
)
async def test_the_verdict_is_the_negotiators(
    pool: Pool,
    drone_on: StartDrone,
    kinds: list[DroneType],
    jobs: Mapping[str, tuple[str, frozenset[str]]],
) -> None:
    clusters = {
        (name, kind.name): pool.submit(description(more, kind))
        for name, (more, _) in jobs.items()
        for kind in kinds
    }
    async with overlay_on(pool) as overlay:
        # before any drone: the template's word
        foretold = {
            int(c.job_ids.partition(".")[0]): c for c in (await overlay.poll(kinds)).classes
        }
        verdicts = {
            (name, kind.name): fits(foretold[clusters[name, kind.name]], kind)
            for name in jobs
            for kind in kinds
        }
        drones = [drone_on(pool, f"kit-{kind.name}", env=environment(kind)) for kind in kinds]
        for each in drones:
            each.slot(pool)
        ran = await settled(pool, clusters)
        # after: with what really arrived
        view = await overlay.poll(kinds)
        left = {int(c.job_ids.partition(".")[0]): c for c in view.classes if c.waiting}
        for (name, kind_name), cluster in clusters.items():
            kind = next(k for k in kinds if k.name == kind_name)
            if not ran[name, kind_name]:
                assert not fits(left[cluster], kind), (
                    f"{name} on {kind_name}: still waiting, said to fit"
                )
        assert in_state(SlotState.IDLE, *drones)(view), "nothing that waits could run there"
    expected = {
        (name, kind.name): kind.name in runs_on
        for name, (_, runs_on) in jobs.items()
        for kind in kinds
    }
    assert ran == expected, "the lab itself is not what this test thinks"
    assert verdicts == ran


async def settled(
    pool: Pool, clusters: Mapping[tuple[str, str], int]
) -> dict[tuple[str, str], bool]:
    """Which jobs have run, once nothing has moved for several negotiation cycles (a second each)."""
    limit, quiet_since, last = time.monotonic() + 100, time.monotonic(), -1
    while time.monotonic() < limit:
        waiting = {cluster for ad in pool.jobs() if isinstance(cluster := ad.get("ClusterId"), int)}
        running = any(ad.get("JobStatus") == 2 for ad in pool.jobs())
        if len(waiting) != last or running or len(waiting) == len(clusters):
            last, quiet_since = len(waiting), time.monotonic()
        elif time.monotonic() - quiet_since > 8:
            return {key: cluster not in waiting for key, cluster in clusters.items()}
        await asyncio.sleep(0.5)
    raise AssertionError("the queue does not settle")


KEEPS = replace(
    V100S,
    name="keeps",
    cpus=6,
    memory_mib=2048,
    disk_mib=4096,
    kept_cpus=2,
    kept_memory_mib=512,
    kept_disk_mib=1000,
)


THIRDS = replace(
    A100, name="thirds", cpus=6, vram_mib=47661, sharing=Sharing.TIME_SLICED, shares=3, kept_cpus=2
)
SIX_THIRDS = replace(THIRDS, name="six-thirds", gpu_milli=2000)
SIZES = ((None, 0, 1, 2), (None, 1, 333, 334, 1000), (1, 3, 4, 5), (100, 1536, 1537), (1, 3097))
"""GPUs, thousandths of a GPU, CPUs, MiB of memory and of scratch that jobs ask for."""


@pytest.mark.parametrize("kind", [KEEPS, CPU, THIRDS, SIX_THIRDS], ids=lambda kind: kind.name)
def test_what_the_template_takes_is_what_the_drone_takes(
    pool: Pool, drone_on: StartDrone, kind: DroneType
) -> None:
    """START, clause by clause, and the memory of a share: a real drone's against the template's."""
    if kind.shares > 1 and pool.condor.version.startswith("23."):
        pytest.skip("this HTCondor cannot hand out a GPU several times")
    found = drone_on(pool, f"kit-{kind.name}", env=environment(kind)).slot(pool)
    slot = matching.template(kind)
    if kind.shares > 1:
        each = ("GPUs", "GPUs_GlobalMemoryMb")
        assert (
            [found[name] for name in each]
            == [slot[name] for name in each]
            == [3 * kind.gpu_milli // 1000, 15887]
        )
    real = classad2.ExprTree(str(found["Start"]).strip("/").removeprefix("Expr(")[:-1])
    told = classad2.ExprTree(matching.start(kind))
    now = int(time.time())
    slot["DroneRetiresAt"], slot["DroneEndsAt"] = now + 3000, now + 3600
    verdicts = set()
    for gpus, milli, cpus, memory_mib, disk_mib in itertools.product(*SIZES):
        asked = {"RequestCpus": cpus, "RequestMemory": memory_mib, "RequestDisk": disk_mib * 1024}
        asked |= {"RequestGPUs": gpus} if gpus is not None else {}
        asked |= {"GpuMilli": milli} if milli is not None else {}
        job = classad2.ClassAd(asked)
        verdicts.add(takes := holds(told, slot, job))
        assert holds(real, slot, job) is takes, f"{job}"
    assert verdicts == {True, False}
