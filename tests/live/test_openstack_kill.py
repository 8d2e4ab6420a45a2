"""The controller is killed while its creates are under way, again and again: whatever became of them, no server is
forgotten, none is there twice, and there are never too many."""

from __future__ import annotations

import time

import pytest

from tests.labs.htcondor import until
from tests.labs.openstack import OpenStackLab
from tests.labs.openstack_stress import Drill, drill

pytestmark = [pytest.mark.timeout(500), pytest.mark.xdist_group("openstack")]

CAP = 6
MOMENTS_S = (0.0, 0.05, 0.15, 0.4)
"""After its create is on its way: before Nova has looked at it, while it writes it down, when it has."""
NEVER_S = 600


def struck(lab: Drill, moment_s: float) -> None:
    """Kill the controller after it has sent a create and before it has an answer: the front keeps that."""
    with lab.cloud.nova.failing(method="POST", path="/servers$", late_s=NEVER_S, times=1000) as held:
        lab.controller.begin()
        until(lambda: held.times != 1000 or room(lab), 60, what="a create is on its way", every_s=0.01)
        time.sleep(moment_s)
        lab.controller.kill()


def room(lab: Drill) -> None:
    """Where all places are taken the owner takes two back: else no more creates would come."""
    if lab.watch.seen[-1].total() == CAP:
        servers = lab.servers("ACTIVE")
        if not any(each["OS-EXT-STS:task_state"] for each in servers):
            for each in servers[:2]:
                lab.cloud.take_back(each["id"], "delete")
        lab.watch.poll()


@pytest.mark.parametrize("kills", [5, pytest.param(20, marks=pytest.mark.matrix)])
def test_killed_between_create_and_answer(openstack: OpenStackLab, kills: int) -> None:
    quick = {"order_deadline": "5s", "order_confirm": "5s"}
    with drill(openstack, most=CAP, timeouts=quick, options={"create_deadline": "4s"}) as lab:
        lab.controller.write()
        lab.controller.begin()
        until(lab.queue.exists, 30, what="the queue is there", every_s=0.05)
        lab.controller.kill()
        lab.submit(1000)
        began = time.monotonic()
        for number in range(kills):
            struck(lab, MOMENTS_S[number % len(MOMENTS_S)])
        print(f"{kills} kills in {time.monotonic() - began:.0f} s")
        lab.controller.begin()
        lab.active(CAP)
        until(lambda: len(lab.controller.live()) == CAP, 60, what="only they live on record", every_s=0.3)
        lab.controller.ticks(3)
        assert {each["name"] for each in lab.servers()} == {each["id"] for each in lab.controller.live()}
        assert len(lab.watch.ever()) >= kills, "each kill met a create of its own"
        lab.over()
