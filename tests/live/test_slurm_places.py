"""As many drones start as were counted free at a real cluster: untyped GPUs, shares of GPUs, nodes that are not shared.

Drones are jobs of a drone's shape that sleep; they are counted by the site's view and by the
planner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from adapters.slurm import SlurmSite
from provisioner.model import DroneType, Node, SitePolicy
from provisioner.planner.owner import FreeResources
from tests.labs.htcondor import until
from tests.labs.slurm import Slurm, SlurmLab, running_slurm
from tests.labs.slurm_sites import site_config, speaks

pytestmark = pytest.mark.xdist_group("slurm")

NODE = "hkn0801"
DRONE = DroneType("hk", "any", 1000, 8, 20480, 0, walltime_s=1800)
LARGE = DroneType("hk", "large", 4000, 152, 409600, 0, walltime_s=1800)
SLEEP = "#!/bin/sh\nsleep 600\n"
UNSHARED = """\
PartitionName=whole Nodes=hkn0801 MaxTime=60 DefaultTime=10 State=UP OverSubscribe=EXCLUSIVE
PartitionName=single-user Nodes=hkn0801 MaxTime=60 DefaultTime=10 State=UP ExclusiveUser=YES
PartitionName=several Nodes=hkn0801 MaxTime=60 DefaultTime=10 State=UP MinNodes=2
"""
SHARES = {
    "gres_types": "gpu,shard",
    "gres": "gpu:{gpu}:4,shard:16",
    "gres_conf": "NodeName={name} Name=gpu Type={gpu} File=/dev/lab/gpu[0-3]\nNodeName={name} Name=shard Count=16\n",
}
UNTYPED = {
    "gres": "gpu:4",
    "gres_conf": (
        "NodeName={name} Name=gpu File=/dev/lab/gpu[0-1] Cores=0-37\n"
        "NodeName={name} Name=gpu File=/dev/lab/gpu[2-3] Cores=38-75\n"
    ),
}


@pytest.fixture(scope="module", params=["untyped", "shares"])
def cluster(request: pytest.FixtureRequest, slurm_programs: Slurm) -> Iterator[SlurmLab]:
    if request.param == "shares" and slurm_programs.version < (22, 5):
        pytest.skip("this Slurm has no shards")
    gres = {"untyped": UNTYPED, "shares": SHARES}[request.param]
    with running_slurm(
        slurm_programs, a100=1, h100=0, accounting=False, ssh=False, extra=UNSHARED, **gres
    ) as lab:
        yield lab


@pytest.fixture(params=["tools", "rest"])
def way(request: pytest.FixtureRequest, cluster: SlurmLab) -> Iterator[str]:
    speaks(cluster, request.param)
    yield request.param
    cluster.empty()
    until(
        lambda: cluster.nodes()[NODE] == "idle",
        60,
        what="nothing is planned for jobs that have gone",
    )


def view_of(lab: SlurmLab, way: str, work: Path, partition: str, *kinds: DroneType) -> Node:
    async def ask() -> Node:
        config = site_config(lab, way, work, partition=partition, types={})
        async with SlurmSite("hk", config, kinds or [DRONE], "kit") as site:
            [node] = (await site.poll()).nodes
            return node

    return asyncio.run(ask())


def places(
    lab: SlurmLab, way: str, work: Path, partition: str = "accelerated", *kinds: DroneType
) -> int:
    node = view_of(lab, way, work, partition, *kinds)
    count = FreeResources.of([node], ()).count((kinds or (DRONE,))[0])
    assert kinds or count == node.free_gpu_milli // 1000
    return count


def submit(
    lab: SlurmLab, partition: str, *, gres: str = "gpu:1", count: int = 1, user: str = "drone"
) -> list[int]:
    size = (f"--gres={gres}", "-c8", "--mem=20480M", "-t", "30", "-o", "/dev/null", "-p", partition)
    return [lab.sbatch(SLEEP, *size, user=user) for _ in range(count)]


def occupy(lab: SlurmLab, partition: str, gres: str, user: str = "owner") -> None:
    [job] = submit(lab, partition, gres=gres, user=user)
    lab.reaches(job, "RUNNING")


def started(lab: SlurmLab, numbers: Sequence[int]) -> int:
    """Return how many run once the scheduler has looked at all of them and left the others."""

    def is_decided() -> bool:
        jobs = [lab.job(number) for number in numbers]
        waiting = {job.reason for job in jobs if job.state == "PENDING"}
        return (
            any(job.state == "RUNNING" for job in jobs)
            and waiting <= {"Resources", "Priority"}
            and bool(waiting)
        )

    until(is_decided, 60, what="the rest waits for room")
    return sum(lab.job(number).state == "RUNNING" for number in numbers)


def test_as_many_drones_start_as_gpus_are_free(cluster: SlurmLab, way: str, tmp_path: Path) -> None:
    assert places(cluster, way, tmp_path) == 4
    shares = "shard" in cluster.setup.gres
    occupy(cluster, "accelerated", "shard:2" if shares else "gpu:3")
    left = 3 if shares else 1
    until(lambda: places(cluster, way, tmp_path) == left, 30, what="the GPUs in use are seen")
    assert started(cluster, submit(cluster, "accelerated", count=left + 2)) == left
    assert places(cluster, way, tmp_path) == 0


def test_a_whole_node_is_one_place(cluster: SlurmLab, way: str, tmp_path: Path) -> None:
    assert places(cluster, way, tmp_path, "whole") == 1
    assert places(cluster, way, tmp_path, "whole", DRONE, LARGE) == 1
    assert places(cluster, way, tmp_path, "whole", LARGE) == 1
    assert started(cluster, submit(cluster, "whole", count=3)) == 1
    for partition in ("whole", "accelerated"):
        assert places(cluster, way, tmp_path, partition) == 0


def test_a_node_in_use_is_no_place_for_a_drone_that_gets_it_whole(
    cluster: SlurmLab, way: str, tmp_path: Path
) -> None:
    occupy(cluster, "accelerated", "gpu:1")
    until(lambda: places(cluster, way, tmp_path) == 3, 30, what="the job is seen")
    assert places(cluster, way, tmp_path, "whole") == 0
    [waits] = submit(cluster, "whole")
    until(lambda: cluster.job(waits).reason == "Resources", 30, what="it waits for the node")


def test_a_node_for_one_user_is_free_for_drones_beside_ours(
    cluster: SlurmLab, way: str, tmp_path: Path
) -> None:
    if way == "rest" and cluster.slurm.version < (26, 5):
        pytest.skip("this slurmrestd does not report ExclusiveUser")
    occupy(cluster, "single-user", "gpu:1")
    until(lambda: places(cluster, way, tmp_path) == 3, 30, what="the job is seen")
    assert places(cluster, way, tmp_path, "single-user") == 0
    [waits] = submit(cluster, "single-user")
    until(lambda: cluster.job(waits).reason == "Resources", 30, what="it waits for the node")
    cluster.empty()
    until(lambda: cluster.nodes()[NODE] == "idle", 60, what="the node is empty")
    occupy(cluster, "single-user", "gpu:1", user="drone")
    until(lambda: places(cluster, way, tmp_path, "single-user") == 3, 30, what="our job is seen")
    assert started(cluster, submit(cluster, "single-user", count=4)) == 3


def test_check_tells_of_types_that_are_smaller_and_of_min_nodes(
    cluster: SlurmLab, way: str, tmp_path: Path
) -> None:
    async def gaps(partition: str, kind: DroneType) -> dict[str, str]:
        config = site_config(cluster, way, tmp_path, partition=partition, types={})
        async with SlurmSite("hk", config, [kind], "kit") as site:
            found = await site.audit(SitePolicy("hk", grace_s=5))
            return {
                gap.dimension: gap.message
                for gap in found
                if gap.dimension in ("exclusive", "partition")
            }

    assert "gets the node as a whole" in asyncio.run(gaps("whole", DRONE))["exclusive"]
    assert asyncio.run(gaps("whole", LARGE)) == asyncio.run(gaps("accelerated", DRONE)) == {}
    assert "MinNodes is 2" in asyncio.run(gaps("several", DRONE))["partition"]
    assert places(cluster, way, tmp_path, "several") == 0
