"""A cluster that hides other users' jobs, a leftover line in slurm.conf, and a login shell that greets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.slurm import SlurmSite
from provisioner.model import DroneId, OrderOutcome, SitePolicy, StartOrder, StopOrder
from tests.labs.htcondor import own, processes_of, until
from tests.labs.shell_drones import ShellDrones
from tests.labs.slurm import Slurm, SlurmLab, running_slurm
from tests.labs.slurm_sites import A100, HERE, site_config

pytestmark = pytest.mark.xdist_group("slurm")

LEFTOVER = "ControlMachine"
OWNER = {"owner": {"partitions": ["accelerated"]}}
BATCH = "#!/bin/sh\nsleep 600\n"


@pytest.fixture(scope="module")
def cluster(slurm_programs: Slurm) -> Iterator[SlurmLab]:
    """One with ``PrivateData=jobs`` whose tools complain of a line in slurm.conf, and answer."""
    extra = f"PrivateData=jobs\n{LEFTOVER}=login\n"
    with running_slurm(slurm_programs, a100=1, h100=0, rest=False, extra=extra) as lab:
        for _ in range(2):
            lab.sbatch(BATCH, "-p", "accelerated", "--gres=gpu:a100:4", user="owner")
        until(
            lambda: "R" in lab.run("squeue", "-h", "-o", "%t", user="root"),
            60,
            what="a job of the owner runs",
        )
        yield lab


async def test_an_owner_that_is_hidden_is_told(cluster: SlurmLab, tmp_path: Path) -> None:
    async with SlurmSite(
        HERE, site_config(cluster, "tools", tmp_path, **OWNER), [A100], "kit"
    ) as site:
        view = await site.poll()
        assert (view.claims, view.owner_runs) == ((), None)
        assert [each for each in view.notices if "PrivateData=jobs" in each], view.notices
        gaps = [gap for gap in await site.audit(SitePolicy(HERE)) if gap.dimension == "owner"]
        assert len(gaps) == 1
    cluster.run(
        "sacctmgr", "-i", "modify", "user", "drone", "set", "adminlevel=operator", user="root"
    )
    try:
        until(
            lambda: "owner" in cluster.run("squeue", "-h", "-o", "%u"),
            30,
            what="an operator sees all jobs",
        )
        async with SlurmSite(
            HERE, site_config(cluster, "tools", tmp_path, **OWNER), [A100], "kit"
        ) as site:
            view = await site.poll()
            assert view.owner_runs is not None and view.owner_runs.jobs == 1
            assert sum(claim.count for claim in view.claims) == 1
            assert not [each for each in view.notices if "PrivateData" in each]
    finally:
        cluster.run(
            "sacctmgr", "-i", "modify", "user", "drone", "set", "adminlevel=none", user="root"
        )


@pytest.mark.parametrize("way", ["tools", "ssh"])
async def test_neither_a_leftover_nor_a_greeting_stops_the_site(
    cluster: SlurmLab, tmp_path: Path, way: str
) -> None:
    """The leftover is on stderr of every tool; over ssh the login shell greets on stdout before each answer."""
    assert LEFTOVER in cluster.done("squeue", "--me").stderr
    (cluster.inside("/home/drone") / ".bashrc").write_text("echo Welcome to HoreKa\necho\n")
    drone_id = DroneId(f"{own('kit')}-hunt-{1 + (way == 'ssh')}")
    order = StartOrder(drone_id, A100, 600.0, 3.0, ShellDrones().living())
    async with SlurmSite(HERE, site_config(cluster, way, tmp_path), [A100], own("kit")) as site:
        view = await site.poll()
        assert [node.name for node in view.nodes] == ["hkn0801"]
        assert [each for each in view.notices if LEFTOVER in each], view.notices
        [receipt] = await site.start([order])
        assert receipt.answer is OrderOutcome.OK, receipt
        assert drone_id in (await site.poll()).drones
        [receipt] = await site.stop([StopOrder(drone_id, receipt.remote_id)])
        assert receipt.answer is OrderOutcome.OK, receipt
        until(lambda: not processes_of(drone_id), 60, what="it has left")
