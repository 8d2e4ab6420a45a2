"""The owner of a cloud's hosts comes first: drones make room for his servers, and what is taken from us is told so."""

from __future__ import annotations

import pytest

from tests.labs.facilities import GridkaLab, gridka
from tests.labs.htcondor import Condor, until
from tests.labs.openstack import OWNER, OpenStackLab

pytestmark = [pytest.mark.matrix, pytest.mark.xdist_group("openstack")]

VGPU = "gpu.h100.vgpu"


def all_busy(lab: GridkaLab, count: int) -> set[str]:
    """Ids of the drones, once there are so many and the controller knows that each of them works."""
    until(
        lambda: lab.controller.states().get("busy") == count,
        90,
        what=f"{count} busy drones",
        every_s=0.5,
    )
    return {d["id"] for d in lab.controller.live()}


def test_two_servers_of_the_owner_cost_two_drones(
    newest_condor: Condor, openstack: OpenStackLab
) -> None:
    """All eight GPUs are ours. The two youngest have least to lose."""
    with gridka(newest_condor, openstack, owner=True, whole=0, virtual=8) as lab:
        lab.controller.idle_s = 60
        lab.controller.start()
        lab.submit(6)
        first = all_busy(lab, 6)
        lab.submit(2)
        least = all_busy(lab, 8) - first
        assert {d["node"] for d in lab.controller.live()} == {"gpu01", "gpu02"}

        failed = [openstack.boot(f"etp-{number}", VGPU, project=OWNER) for number in (1, 2)]
        for number in failed:
            assert (
                "No valid host" in openstack.reaches(number, "ERROR", "ACTIVE")["fault"]["message"]
            )
        lab.controller.settles({"busy": 6, "preempted": 2}, 90)
        until(
            lambda: len(lab.servers()) == 6, 60, what="and their servers are deleted", every_s=0.5
        )
        left = {d["id"] for d in lab.controller.drones(ended=True)}
        assert left == least, "those with least to lose"
        told = [" ".join(lab.shown(drone_id).split()) for drone_id in sorted(left)]
        assert all("the owner" in each and "stopped by the controller" in each for each in told), (
            told
        )
        here = lab.controller.site_row()
        assert (here["claims"], here["claims_gpu_milli"]) == (2, 2000), here
        lab.controller.ticks(5)
        assert lab.controller.states() == {"busy": 6, "preempted": 2}, (
            "the room is kept for who has to ask again"
        )

        for nth, number in enumerate(failed, 1):
            openstack.session(OWNER)("DELETE", f"nova:/servers/{number}")
            anew = openstack.boot(f"etp-{nth}", VGPU, project=OWNER)
            assert openstack.reaches(anew, "ERROR", "ACTIVE")["status"] == "ACTIVE"
        lab.let_go()
        until(lambda: not lab.overlay.jobs(), 120, what="all eight jobs are done", every_s=0.5)


@pytest.mark.parametrize(
    ("how", "word"), [("os-stop", "stop"), ("delete", "delete"), ("suspend", "suspend")]
)
def test_a_server_that_is_taken_back_is_a_drone_preempted(
    newest_condor: Condor, openstack: OpenStackLab, how: str, word: str
) -> None:
    with gridka(newest_condor, openstack, whole=0, virtual=1) as lab:
        lab.controller.start()
        # HTCondor waits 40 minutes for a machine that is gone without a word, unless a job says
        # otherwise.
        jobs = lab.submit(1, more="job_lease_duration = 20")
        [taken] = all_busy(lab, 1)
        openstack.take_back(lab.servers()[0]["id"], how)

        [over] = until(
            lambda: lab.controller.drones(ended=True), 60, what="the drone has ended", every_s=0.5
        )
        assert (over["id"], over["state"]) == (taken, "preempted")
        shown = " ".join(lab.shown(taken).split())
        assert f"somebody at the cloud ended it: {word}" in shown, shown
        lab.let_go()
        until(
            lambda: not lab.overlay.jobs(jobs), 120, what="its job is done, in another", every_s=0.5
        )
        lab.nothing_left()
