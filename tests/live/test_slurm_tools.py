"""Slurm's command-line tools, here and over ssh, at a real cluster: questions are answered, and orders carried out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

import pytest

from adapters.slurm.records import SlurmJob
from adapters.slurm.settings import SlurmSiteConfig
from adapters.slurm.tools import SlurmToolsClient
from provisioner.interfaces import RejectedError, UnavailableError
from provisioner.model import FaultKind
from tests.labs.htcondor import OWN
from tests.labs.slurm import SlurmLab
from tests.labs.slurm_sites import lab_job

pytestmark = [pytest.mark.xdist_group("slurm"), pytest.mark.timeout(180)]

STUBBORN = """\
trap 'echo told' TERM
srun --export=ALL /bin/sh -c 'trap "" TERM; echo begun; while :; do sleep 1; done' &
wait
wait
echo cleaned up"""


@pytest.fixture(params=["here", "over ssh"])
async def cluster(slurm: SlurmLab, request: pytest.FixtureRequest) -> AsyncIterator[SlurmToolsClient]:
    ssh = {
        "host": "127.0.0.1",
        "port": slurm.ssh_port,
        "user": "drone",
        "key": str(slurm.key),
        "known_hosts": str(slurm.known_hosts),
        "retry": "100ms",
    }
    tools = {"bin": str(slurm.tools)} if request.param == "here" else {"ssh": ssh}
    async with SlurmToolsClient(SlurmSiteConfig.model_validate({"tools": tools}), "horeka") as entered:
        yield entered
    await asyncio.to_thread(slurm.empty)


async def listed(cluster: SlurmToolsClient, number: int) -> dict[str, SlurmJob]:
    ours = await cluster.own_jobs()
    return {job.remote_id: job for job in ours if job.remote_id.partition("_")[0] == str(number)}


async def reaches(cluster: SlurmToolsClient, number: int, *states: str, count: int = 1) -> dict[str, SlurmJob]:
    """Until ``count`` jobs of this number are in one of these states."""
    limit = time.monotonic() + 60
    while True:
        found = {key: job for key, job in (await listed(cluster, number)).items() if job.state in states}
        if len(found) >= count:
            return found
        assert time.monotonic() < limit, await listed(cluster, number)
        await asyncio.sleep(0.3)


async def accounted(cluster: SlurmToolsClient, remote_ids: Sequence[str]) -> Sequence[SlurmJob]:
    """Until all of them are in the accounts, where 22.05 writes them some seconds later."""
    limit = time.monotonic() + 60
    while True:
        found = await cluster.ended_jobs(remote_ids, 0)
        assert found is not None
        if {job.remote_id for job in found} == set(remote_ids):
            return found
        assert time.monotonic() < limit, found
        await asyncio.sleep(0.3)


async def test_drones_come_and_go(slurm: SlurmLab, cluster: SlurmToolsClient) -> None:
    before = time.time()
    array = await cluster.submit(lab_job(f"kit-a1-7+.a100.horeka-{OWN}", tasks=(0, 1, 3)))
    held = await cluster.submit(lab_job(f"kit-a1-17+.a100.horeka-{OWN}", tasks=range(4), hold=True))
    begun = await reaches(cluster, array, "RUNNING", count=3)

    assert set(begun) == {f"{array}_0", f"{array}_1", f"{array}_3"}
    for job in begun.values():
        assert (job.name, job.user) == (f"kit-a1-7+.a100.horeka-{OWN}", "drone")
        assert job.nodes[0] in ("hkn0801", "hkn0802")
        assert (job.limit_s, job.ends_at - job.started_at, job.exit_code) == (300, 300, None)
        assert abs(job.submitted_at - before) < 30
    waiting = await listed(cluster, held)
    assert {(job.state, job.reason, job.started_at) for job in waiting.values()} == {("PENDING", "JobHeldUser", 0.0)}

    others = [job for job in await cluster.active_jobs(["accelerated"]) if job.remote_id in begun]
    assert {(job.node_count, job.cpus, job.memory_mib, *job.gpus.items()) for job in others} == {
        (1, 8, 2048, ("a100", 1))
    }
    nodes = {node.name: node for node in await cluster.nodes()}
    assert dict(nodes["hkn0801"].gpus) == {"a100": 4}
    assert sum(node.used_gpus.get("a100", 0) for node in nodes.values()) == 3
    assert sum(node.used_cpus for node in nodes.values()) == 24

    await cluster.cancel([f"{held}_{task}" for task in (0, 2)])
    assert sorted(await listed(cluster, held)) == [f"{held}_1", f"{held}_3"]
    await cluster.cancel([f"{array}_0", f"{array}_1", f"{held}_1", "999999"])
    assert set(await reaches(cluster, array, "CANCELLED", count=2)) == {f"{array}_0", f"{array}_1"}
    assert (await listed(cluster, array))[f"{array}_3"].state == "RUNNING"
    ended = await accounted(cluster, [f"{array}_0", f"{array}_1", f"{array}_3"])
    assert {job.remote_id: job.nodes for job in ended} == {key: job.nodes for key, job in begun.items()}
    since = await cluster.ended_jobs([], before - 5)
    assert since is not None and set(begun) <= {job.remote_id for job in since}
    assert await cluster.ended_jobs(["999999"], 0) == []
    await cluster.cancel([f"{array}_0", f"{array}_3", f"{held}_3"], kill=True)
    await reaches(cluster, array, "CANCELLED", count=3)


async def test_the_rest_of_the_cluster(slurm: SlurmLab, cluster: SlurmToolsClient) -> None:
    partitions = {each.name: each for each in await cluster.partitions()}
    assert partitions["accelerated"].default and partitions["backfill"].grace_s == 6
    assert partitions["backfill"].tier < partitions["accelerated"].tier
    assert await cluster.reservations() == []
    start = int(time.time()) + 7200
    made = ["reservationname=dark", "starttime=now+2hours", "duration=60", "nodes=hkn0901", "flags=maint", "users=root"]
    slurm.run("scontrol", "create", "reservation", *made, user="root")
    try:
        (dark,) = await cluster.reservations()
    finally:
        slurm.run("scontrol", "delete", "reservationname=dark", user="root")
    assert (dark.name, dark.nodes, "MAINT" in dark.flags) == ("dark", ("hkn0901",), True)
    assert abs(dark.starts_at - start) < 60 and dark.ends_at - dark.starts_at == 3600
    version = (await cluster.configuration())["SLURM_VERSION"]
    assert tuple(int(part) for part in version.split(".")[:2]) == slurm.slurm.version


async def test_a_drone_that_does_not_listen_is_killed_and_its_script_cleans_up(
    slurm: SlurmLab, cluster: SlurmToolsClient
) -> None:
    output = slurm.shared / f"stubborn-{OWN}"
    output.unlink(missing_ok=True)
    number = await cluster.submit(lab_job(f"stubborn-{OWN}", STUBBORN, output=str(output)))
    limit = time.monotonic() + 60
    while not output.exists() or "begun" not in output.read_text():
        assert time.monotonic() < limit, slurm.story()
        await asyncio.sleep(0.2)
    await cluster.cancel([str(number)], kill=True)
    await reaches(cluster, number, "CANCELLED", "FAILED", "COMPLETED")
    assert "cleaned up" in output.read_text()


async def test_what_is_refused_is_no_drone(slurm: SlurmLab, cluster: SlurmToolsClient) -> None:
    for more in ({"gres": "gpu:h100:9"}, {"partition": "nosuch"}, {"reservation": "nosuch"}, {"constraint": "nosuch"}):
        with pytest.raises(RejectedError) as refused:
            await cluster.submit(lab_job(f"refused-{OWN}", **more))
        assert refused.value.kind is FaultKind.CONFIG
    jobs = [job for job in await cluster.own_jobs() if job.name == f"refused-{OWN}"]
    assert {(job.state, job.nodes) for job in jobs} <= {("FAILED", ())}


async def test_a_controller_that_is_away_is_no_empty_queue(slurm: SlurmLab) -> None:
    config = SlurmSiteConfig.model_validate({"tools": {"bin": str(slurm.tools)}, "deadline": "12s"})
    async with SlurmToolsClient(config, "horeka") as cluster:
        await asyncio.to_thread(slurm.stop_daemon, "slurmctld")
        try:
            calls = (cluster.own_jobs(), cluster.nodes(), cluster.submit(lab_job(f"away-{OWN}")), cluster.cancel(["1"]))
            answers = await asyncio.gather(*calls, return_exceptions=True)
        finally:
            await asyncio.to_thread(slurm.restart, "slurmctld")
        assert [isinstance(answer, UnavailableError) for answer in answers] == [True] * 4, answers
        assert [job for job in await cluster.own_jobs() if job.name == f"away-{OWN}"] == []
