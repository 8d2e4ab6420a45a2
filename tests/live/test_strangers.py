"""One user's jobs, or one stranger's schedd, never stop what others get: with real daemons and the whole controller."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from provisioner.model import OverlayView
from tests.live.controller import BIG, LabController
from tests.live.lab import Condor, Pool, gpu_job, lab_directory, running_pool, until
from tests.overlay_htcondor.live import A100, classes_of, overlay_on

pytestmark = pytest.mark.timeout(420)

ONLY_THE_TEMPLATE = 'requirements = TARGET.Name == "slot1@template"'
"""True for what the planner believes a slot to be, and for no slot."""


def test_jobs_that_match_no_drone_leave_the_type_to_all_others(lab: tuple[Pool, LabController]) -> None:
    """A parallel job, a job of the scheduler universe as DAGMan is one, and a job that only the template takes."""
    pool, controller = lab
    controller.sites = [replace(BIG, most=3)]
    controller.idle_s = 4
    odd = [
        pool.submit("universe = parallel\nmachine_count = 2\n" + gpu_job(600)),
        pool.submit("universe = scheduler\n" + gpu_job(600)),
        pool.submit(gpu_job(600, more=ONLY_THE_TEMPLATE, n=2), identity="admin"),
    ]
    controller.start()

    def reasons() -> set[str]:
        rows = controller.json("demand")["items"]
        return {reason["kind"] for row in rows for reason in row["reasons"]}

    until(lambda: {"bad-request", "unmatched"} <= reasons(), 150, what="both reasons", every_s=1)
    plain = [pool.submit(gpu_job(1, n=3)), pool.submit(gpu_job(1, n=2), identity="admin")]
    until(lambda: not any(map(pool.jobs, plain)), 180, what="plain jobs of two users done", every_s=1)
    site = controller.json("sites")["items"][0]
    assert site["breaker"] == "active" and "banned" not in site["note"], site["note"]
    assert "backs off on big/a100" in site["note"], site["note"]
    assert not {"failed", "lost", "never-joined"} & set(controller.states()), controller.states()
    for cluster, user in zip(odd, ("alice", "alice", "admin"), strict=True):
        pool.remove(cluster, user)


FLOCKS = """
NETWORK_HOSTNAME = login.etp.test
SCHEDD_NAME = login@etp.test
FLOCK_TO = {collector}
FLOCK_INCREMENT = 2
"""


async def test_a_schedd_of_others_that_flocks_here_and_denies_reading_is_left_out(condor: Condor) -> None:
    with running_pool(condor, "own") as pool, lab_directory("etp") as root:
        identities = {"condor": (), "admin": (), "alice": ()}
        other = Pool(root, condor, "etp", config=FLOCKS.format(collector=pool.collector), identities=identities)
        token = other.dir / "etc/tokens/own"
        token.touch(mode=0o600)
        token.write_text(pool.token("condor") + "\n")
        other.account.give(token.parent)
        pool.submit(gpu_job(n=2))
        other.start()
        try:
            other.submit(gpu_job(n=5))
            names = ("condor_status", "-schedd", "-af", "Name")
            await asyncio.to_thread(until, lambda: "login@etp.test" in pool.run(*names), 120, what="the other schedd")
            async with overlay_on(pool) as overlay:
                view: OverlayView = await overlay.look([A100])
                assert sum(each.waiting + each.fresh for each in classes_of(view)) == 2
                (notice,) = [each for each in view.notices if "login@etp.test" in each and "left out" in each]
                assert "`schedds`" in notice
        finally:
            await asyncio.to_thread(other.stop, at_once=True)
