"""The owner's job takes a drone's place in a real Slurm: what the drone is told, and what is seen from outside.

The drone is a job like a drone's, in a partition that others preempt: a batch script whose work is
a job step.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.slurm.capacity import list_nodes, owner_demands, owner_load, resolve_types
from adapters.slurm.settings import SlurmSiteConfig
from adapters.slurm.tools import SlurmToolsClient
from provisioner.model import DroneType, OwnerDemand, OwnerLoad
from tests.labs.htcondor import until
from tests.labs.slurm import SlurmLab

pytestmark = pytest.mark.xdist_group("slurm")

GPU = "--gres=gpu:h100:1"
NODE, GRACE_S = "hkn0901", 6
SIZE = ("-c8", "--mem=20G", "-o", "/dev/null")

DRONE = """\
#!/bin/bash
trap 'echo "batch TERM $(date +%s)" >>{told}; wait' TERM
srun sh -c 'trap "echo step TERM \\$(date +%s) >>{told}; sleep 2; exit 0" TERM; echo step began >>{told}
    while :; do sleep 0.2; done' &
wait $!
echo "batch done" >>{told}
"""


@pytest.fixture
def cluster(slurm: SlurmLab) -> Iterator[SlurmLab]:
    yield slurm
    slurm.empty()


def drone(lab: SlurmLab) -> tuple[int, Path]:
    """A running one, whose step has begun, and the file in which it says what it was told."""
    told = lab.shared / f"told-{time.time_ns()}"
    text = DRONE.format(told=told)
    number = lab.sbatch(text, "-p", "backfill", "--no-requeue", "-t", "30", GPU, *SIZE)
    until(lambda: told.exists() and "began" in told.read_text(), 30, what="the drone's step runs")
    return number, told


def moment(lab: SlurmLab, number: int, field: str) -> float:
    """By the cluster's clock, which is this host's; 0 if there is none."""
    found = re.search(rf"\b{field}=(\S+)", lab.run("scontrol", "show", "job", str(number), "-o"))
    assert found, field
    return 0.0 if found[1] in ("None", "Unknown") else float(lab.run("date", "-d", found[1], "+%s"))


def owners_job(lab: SlurmLab) -> int:
    """One that needs the whole node."""
    whole = ("-p", "accelerated-h100", "-t", "10", "--gres=gpu:h100:4", *SIZE)
    return lab.sbatch("#!/bin/sh\nsleep 100\n", *whole, user="owner")


def test_the_drones_step_is_told_at_once_and_it_is_seen_from_outside(cluster: SlurmLab) -> None:
    number, told = drone(cluster)
    assert moment(cluster, number, "PreemptTime") == 0
    planned_end = moment(cluster, number, "EndTime")
    asked_at = int(time.time())
    theirs = owners_job(cluster)

    noticed_at = until(
        lambda: moment(cluster, number, "PreemptTime"), 30, what="the notice is seen"
    )
    assert asked_at <= noticed_at
    until(lambda: moment(cluster, number, "EndTime") < planned_end, 30, what="its end falls")
    assert moment(cluster, number, "EndTime") <= noticed_at + GRACE_S + 1
    # It left by itself, within the grace: 22.05 calls that as it calls every other end.
    victim = cluster.reaches(
        number, "PREEMPTED" if cluster.slurm.version > (22, 5) else "COMPLETED"
    )
    assert moment(cluster, number, "PreemptTime") == noticed_at
    cluster.reaches(theirs, "RUNNING")
    assert victim.node == cluster.job(theirs).node == NODE
    lines = told.read_text().splitlines()
    assert list(dict.fromkeys(line.rpartition(" ")[0] for line in lines)) == [
        "step",
        "step TERM",
        "batch",
    ], lines
    # the batch shell heard nothing
    assert asked_at <= int(lines[1].split()[-1]) <= noticed_at + GRACE_S


def owners(lab: SlurmLab) -> tuple[tuple[OwnerDemand, ...], OwnerLoad]:
    """What the owner wants and has, as the site tells it."""
    told = {
        "partition": "backfill",
        "tools": {"bin": str(lab.tools)},
        "owner": {"partitions": ["accelerated", "accelerated-h100"]},
        "types": {"h100": {"gres": "gpu:h100"}},
    }
    config, kind = (
        SlurmSiteConfig.model_validate(told),
        DroneType("horeka", "h100", 1000, 8, 20480, 0, walltime_s=1800),
    )

    async def ask() -> tuple[tuple[OwnerDemand, ...], OwnerLoad]:
        async with SlurmToolsClient(config, "horeka") as cluster:
            slurm_nodes = await cluster.nodes()
            partitions, owner = await cluster.partitions(), config.owner
            assert owner is not None
            kinds = resolve_types([kind], partitions, config)
            here = list_nodes(slurm_nodes, partitions, kinds, config, now=time.time())
            jobs = await cluster.active_jobs(owner.partitions)
            return owner_demands(jobs, slurm_nodes, here, owner), owner_load(jobs, here, owner)

    return asyncio.run(ask())


def test_the_owners_jobs_are_claims_until_they_run(cluster: SlurmLab) -> None:
    sleeper = "#!/bin/sh\nsleep 100\n"
    where = ("-p", "accelerated-h100", "-t", "10", "-o", "/dev/null")
    first = cluster.sbatch(sleeper, *where, "--gres=gpu:h100:3", "-c16", "--mem=10G", user="owner")
    cluster.reaches(first, "RUNNING")
    asked_at = int(time.time())
    waiting = cluster.sbatch(
        sleeper, *where, "--gres=gpu:2", "-c8", "--mem=20G", "--array=0-4", user="owner"
    )
    held = cluster.sbatch(sleeper, *where, GPU, "--hold", user="owner")
    drone_like = cluster.sbatch(
        sleeper, *where, "-J", "kit-a1b2-7.h100.horeka", "--gres=gpu:h100:2", "-c8"
    )
    until(
        lambda: cluster.jobs("-j", str(waiting))[0].reason in ("Resources", "Priority"),
        30,
        what="they wait for room",
    )
    assert cluster.job(held).reason == "JobHeldUser" and cluster.job(drone_like).state == "PENDING"
    wanted, runs = owners(cluster)
    [claim] = wanted
    assert asked_at <= claim.since <= time.time()
    assert claim == OwnerDemand(5, 2000, 8, 20480, claim.since, who="owner")
    assert runs == OwnerLoad(1, 3000, 16, 10240)
