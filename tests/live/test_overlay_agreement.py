"""What the adapter says of a job and a drone type is what the pool's own negotiator does with a real drone of it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

import classad2
import pytest

from adapters.htcondor.classads import holds
from adapters.htcondor.overlay import matching
from adapters.htcondor.overlay.pool import numbers_fit
from provisioner import drone
from provisioner.model import DroneId, DroneType, JobClass, SlotState
from tests.htcondor_overlay.live import A100, overlay_on
from tests.labs.htcondor import DroneProcess, Pool, gpu_job, own, start_drone, until

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
CPU = DroneType(site="lab", name="cpu", gpu_milli=0, cpus=4, memory_mib=512, disk_mib=1024, walltime_s=3600.0)
SIMULATED: Mapping[str, str] = {"a100": "4,1", "v100s": "2,2", "keeps": "2,2", "cpu": ""}
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
    "either": ("require_gpus = Capability >= 8.0 || GlobalMemoryMb < 30000", frozenset({"a100", "v100s"})),
    "software": ("requirements = TARGET.HasCVMFS", frozenset()),
    "no transfer": ("should_transfer_files = NO\nwhen_to_transfer_output =", frozenset()),
    "long": ("allowed_job_duration = 7200", frozenset()),
    "half a gpu": ("request_gpus = 0.5", frozenset()),
    "own attribute": ('+Wish = "topas"\nrequirements = MY.Wish == TARGET.SiteName', frozenset()),
}

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
    own = next((line.partition("=")[2] for line in more.splitlines() if line.startswith("requirements")), "true")
    return gpu_job(0, more="\n".join([*lines, f"requirements = ({own}) && ({wants})"]))


@pytest.fixture
def two_drones(overlay_pool: Pool) -> Iterator[list[DroneProcess]]:
    made: list[DroneProcess] = []
    yield made
    for each in made:
        each.stop()
        overlay_pool.forget(f'DroneId == "{each.id}"')


def start(pool: Pool, kind: DroneType) -> DroneProcess:
    return start_drone(
        pool,
        own(f"kit-{kind.name}"),
        drone.script("condor_drone.sh"),
        env={
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
        },
        directory=pool.root / "drones" / f"agreement-{kind.name}-{time.monotonic_ns()}",
    )


@pytest.mark.parametrize(("kinds", "jobs"), [([A100, V100S], JOBS), ([A100, CPU], CPU_JOBS)], ids=["gpus", "cpus"])
async def test_the_verdict_is_the_negotiators(
    overlay_pool: Pool,
    two_drones: list[DroneProcess],
    kinds: list[DroneType],
    jobs: Mapping[str, tuple[str, frozenset[str]]],
) -> None:
    clusters = {
        (name, kind.name): overlay_pool.submit(description(more, kind))
        for name, (more, _) in jobs.items()
        for kind in kinds
    }
    try:
        async with overlay_on(overlay_pool) as overlay:
            # before any drone: the template's word
            foretold = {int(c.job_ids.partition(".")[0]): c for c in (await overlay.poll(kinds)).classes}
            verdicts = {
                (name, kind.name): fits(foretold[clusters[name, kind.name]], kind) for name in jobs for kind in kinds
            }
            two_drones += [start(overlay_pool, kind) for kind in kinds]
            for each in two_drones:
                until(lambda each=each: overlay_pool.drone_slots(each.id), 60, what=f"{each.id} is in the pool")  # type: ignore[misc]
            ran = await settled(overlay_pool, clusters)
            view = await overlay.poll(kinds)
            # after: with what really arrived
            left = {int(c.job_ids.partition(".")[0]): c for c in view.classes if c.waiting}
            for (name, kind_name), cluster in clusters.items():
                kind = next(k for k in kinds if k.name == kind_name)
                if not ran[name, kind_name]:
                    assert not fits(left[cluster], kind), f"{name} on {kind_name}: still waiting, said to fit"
            states = {slot.drone_id: slot.state for slot in view.slots if slot.drone_id.startswith("kit-")}
            for kind in kinds:
                assert states[DroneId(own(f"kit-{kind.name}"))] is SlotState.IDLE, "nothing that waits could run there"
        expected = {(name, kind.name): kind.name in runs_on for name, (_, runs_on) in jobs.items() for kind in kinds}
        assert ran == expected, "the lab itself is not what this test thinks"
        assert verdicts == ran
    finally:
        for cluster in clusters.values():
            overlay_pool.remove(cluster)


async def settled(pool: Pool, clusters: Mapping[tuple[str, str], int]) -> dict[tuple[str, str], bool]:
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
    V100S, name="keeps", cpus=6, memory_mib=2048, disk_mib=4096, kept_cpus=2, kept_memory_mib=512, kept_disk_mib=1000
)


async def test_what_the_template_takes_is_what_the_drone_takes(
    overlay_pool: Pool, two_drones: list[DroneProcess]
) -> None:
    """START, clause by clause: a real drone's, put to jobs of many sizes, against the template's."""
    for kind in (KEEPS, CPU):
        two_drones.append(start(overlay_pool, kind))
        which = f'DroneId == "{two_drones[-1].id}"'
        asked = ("condor_status", "-constraint", which, "-af:r", "Start")
        words = until(lambda asked=asked: overlay_pool.run(*asked).strip(), 60, what=f"{kind.name} is in the pool")  # type: ignore[misc]
        slot = matching.template(kind)
        real, told = classad2.ExprTree(words), classad2.ExprTree(matching.start(kind))
        now = int(time.time())
        slot["DroneRetiresAt"], slot["DroneEndsAt"] = now + 3000, now + 3600
        taken = 0
        for gpus, cpus, memory_mib, disk_mib in itertools.product(
            (None, 0, 1, 2), (1, 4, 5), (100, 1536, 1537), (1, 3097)
        ):
            job = classad2.ClassAd({"RequestCpus": cpus, "RequestMemory": memory_mib, "RequestDisk": disk_mib * 1024})
            if gpus is not None:
                job["RequestGPUs"] = gpus
            takes = holds(told, slot, job)
            assert holds(real, slot, job) is takes, f"{kind.name}: {job}"
            taken += takes
        assert 0 < taken < 72
