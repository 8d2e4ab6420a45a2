"""Accounting groups of a real negotiator: its quotas limit what is started, and `explain` says so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from provisioner.model import Group
from tests.htcondor_overlay.live import overlay_on
from tests.labs.controller import BIG, LabController
from tests.labs.htcondor import Pool, gpu_job, negotiation_s, until

GROUPS = """
GROUP_NAMES = physics, physics.atlas, guests
GROUP_QUOTA_physics = 12
GROUP_QUOTA_physics.atlas = 4
GROUP_QUOTA_guests = 2
GROUP_ACCEPT_SURPLUS_guests = True
"""
OF_ATLAS = "accounting_group = physics.atlas\naccounting_group_user = bob"
OF_GUESTS = "accounting_group = guests\naccounting_group_user = eve"


async def test_the_pool_tells_its_groups(new_pool: Callable[[str], Pool]) -> None:
    pool = new_pool(GROUPS)
    cluster = pool.submit(gpu_job(n=3, cpus=2, more=OF_ATLAS))
    until(
        lambda: "physics.atlas" in pool.run("condor_status", "-any", "-af", "Name"),
        what="accounting ads",
    )
    async with overlay_on(pool) as overlay:
        view = await overlay.poll([])
        assert [c.group for c in view.classes] == ["physics.atlas"]
        found = {g.name: (g.quota_milli, g.used_milli, g.surplus) for g in view.groups}
        assert found == {
            "guests": (2000, 0, True),
            "physics": (6000, 0, False),  # of CPUs, two for each GPU
            "physics.atlas": (2000, 0, False),
        }
    async with overlay_on(pool, slot_weight="gpus") as overlay:
        told = {g.name: g for g in (await overlay.poll([])).groups}
        assert isinstance(told["physics.atlas"], Group)
        assert told["physics.atlas"].quota_milli == 4000
    pool.remove(cluster)


@pytest.mark.matrix
@pytest.mark.parametrize("lab", [GROUPS], indirect=True)
def test_no_drone_is_started_beyond_a_quota_and_explain_says_why(
    lab: tuple[Pool, LabController],
) -> None:
    pool, controller = lab
    controller.sites = (BIG,)
    flag = pool.root / "atlas-may-end"
    atlas = pool.submit(gpu_job(n=6, cpus=2, more=OF_ATLAS, until_there=flag))
    controller.start()
    until(
        lambda: pool.statuses(atlas).count(2) == 2, 120, what="as many jobs run as the quota lets"
    )

    def explained() -> str:
        return controller.call("explain", "job", f"{atlas}.5").stdout

    until(
        lambda: "group physics.atlas has used its quota (2/2 GPUs)" in explained(),
        what="the reason",
    )
    guests = pool.submit(gpu_job(n=3, cpus=2, more=OF_GUESTS, until_there=flag))
    until(
        lambda: pool.statuses(guests).count(2) == 3,
        120,
        what="a group that takes surplus goes beyond its quota",
    )
    cycles = 3 * negotiation_s(pool)
    controller.ticks(int(cycles) + 1)
    assert pool.statuses(atlas).count(2) == 2, "the negotiator matched no more of them"
    assert len(controller.drones()) == 5, (
        "two for the one group, three for the other, and none in vain"
    )

    flag.touch()
    until(lambda: not pool.jobs(), 240, what="all jobs done", every_s=1)
    until(lambda: not controller.live(), 120, what="all drones gone", every_s=1)
    assert set(controller.states()) == {"done"}, controller.states()
