"""Faults of clouds: a real Nova says no, says yes and means no, says nothing, and
forgets who we are. Each time the right thing is left alone for the right time, a person reads why,
and nothing is left behind."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from provisioner.model import BreakerState, FaultKind, Scope
from provisioner.planner.breakers import BACKOFF_POLICIES
from tests.labs.htcondor import until
from tests.labs.openstack import OpenStack, OpenStackLab, running_openstack
from tests.labs.openstack_stress import KIND, SITE, Drill, drill

pytestmark = pytest.mark.xdist_group("openstack")

CREATES = "/servers$"
TYPE = f"{SITE}/{KIND}"


def creates(cloud: OpenStackLab, after: int) -> list[int]:
    """What creates were answered."""
    return [call.status for call in cloud.nova.calls("POST", CREATES, after=after)]


@contextmanager
def old_limits(cloud: OpenStackLab) -> Iterator[None]:
    """GET /limits tells what holds now, whatever changes: between a look and a create another may come."""
    told = cloud.session()("GET", "nova:/limits")
    headers = {"Content-Type": "application/json"}
    with cloud.nova.failing(
        method="GET", path="/limits", status=200, headers=headers, body=json.dumps(told)
    ):
        yield


def banned(
    lab: Drill, kind: FaultKind, *words: str, scope: str = TYPE, within_s: float = 40
) -> None:
    """The site's note tells that ``scope`` is left alone and why, and it is so for as long as for such a fault."""
    lab.noted(f"{scope} banned", *words, within_s=within_s)
    breaker = lab.controller.record.breakers()[Scope.parse(scope)]
    assert breaker.fault is not None
    assert (breaker.state, breaker.fault.kind) == (BreakerState.BANNED, kind)
    rule = BACKOFF_POLICIES[kind]
    pause_s = rule.base_s * 2 ** (breaker.failures - rule.after)
    assert breaker.until - breaker.since == pytest.approx(min(rule.cap_s, pause_s))


def quiet(lab: Drill, cloud: OpenStackLab, ticks: int = 4) -> None:
    """While it is left alone nothing is asked for, although jobs wait."""
    seen = cloud.nova.seen
    lab.controller.ticks(ticks)
    assert creates(cloud, seen) == []


# -----------------------------------------------------------------------------------------------------------
# Nova's no


def test_the_quota_is_reached_in_the_middle_of_a_batch(openstack: OpenStackLab) -> None:
    slow = {"order_deadline": "60s", "order_confirm": "60s"}
    with drill(openstack, timeouts=slow, options={"parallel": 1}) as lab, old_limits(openstack):
        lab.controller.start()
        openstack.set_quota(instances=3)
        seen = openstack.nova.seen
        # Nova counts a server once its conductor has it: the next create comes after that.
        with openstack.nova.failing(method="POST", path=CREATES, late_s=1.5):
            lab.submit(6)
            until(lambda: len(creates(openstack, seen)) == 6, 60, what="all six were asked for")
        assert creates(openstack, seen) == [202] * 3 + [403] * 3
        banned(lab, FaultKind.QUOTA, "Quota exceeded for instances")
        lab.active(3)
        quiet(lab, openstack)
        assert [each["state"] for each in lab.ended()] == ["failed"] * 3
        assert all("Quota exceeded" in each["site_reason"] for each in lab.ended())
        assert sorted(each["state"] for each in lab.controller.live()) == ["booting"] * 3
        lab.over()


def test_all_are_accepted_and_over_the_quota(openstack: OpenStackLab) -> None:
    """Nova's API counts, and its conductor counts again: who comes at the same time finds himself in ERROR."""
    with drill(openstack) as lab, old_limits(openstack):
        lab.controller.start()
        openstack.set_quota(instances=2)
        seen = openstack.nova.seen
        lab.submit(6)
        banned(lab, FaultKind.QUOTA, "Quota exceeded")
        until(
            lambda: not lab.servers("ERROR", "BUILD"),
            60,
            what="those in ERROR are cleared away",
            every_s=0.3,
        )
        until(lambda: len(lab.ended()) >= 4, 30, what="their drones have ended", every_s=0.3)
        assert set(creates(openstack, seen)) <= {202, 403}
        over = {name for name, code in lab.watch.faults if code == 413}
        # one may be gone before the watch comes round: what Nova took beyond the quota was in ERROR
        # all the same
        assert over or creates(openstack, seen).count(202) > 2, "none came into ERROR"
        until(
            lambda: over <= {each["id"] for each in lab.ended()},
            30,
            what="all of those have ended",
            every_s=0.3,
        )
        assert {each["state"] for each in lab.ended()} == {"failed"}
        assert lab.watch.most_active <= 2
        quiet(lab, openstack)
        lab.over()


def test_no_host_is_valid(openstack: OpenStackLab) -> None:
    with drill(openstack, flavor="gpu.absent", gpus=1, most=3) as lab:
        lab.controller.start()
        seen = openstack.nova.seen
        lab.submit(5)
        banned(lab, FaultKind.CAPACITY, "No valid host was found")
        until(lambda: len(lab.ended()) == 3, 60, what="they have gone", every_s=0.3)
        assert not lab.servers()
        assert creates(openstack, seen) == [202] * 3
        # they may be gone before the watch comes round
        assert {code for _, code in lab.watch.faults} <= {500}
        assert all("No valid host" in each["site_reason"] for each in lab.ended()), lab.ended()
        quiet(lab, openstack)
        lab.over()


@pytest.mark.parametrize("what", ["flavour", "image"])
def test_what_drones_are_made_of_is_taken_away(openstack: OpenStackLab, what: str) -> None:
    flavor, image = openstack.new_flavor("mine"), openstack.new_image("mine")
    with drill(openstack, flavor="mine", options={"image": "mine"}) as lab:
        lab.controller.start()
        lab.submit(1)
        lab.active(1)
        seen = openstack.nova.seen
        if what == "flavour":
            openstack.admin("DELETE", f"nova:/flavors/{flavor}")
        else:
            openstack.admin("DELETE", f"glance:/images/{image}")
        lab.submit(2)
        banned(
            lab,
            FaultKind.CONFIG,
            "could not be found" if what == "flavour" else "Can not find requested image",
        )
        assert creates(openstack, seen) == [400] * 2, "each was asked for once"
        quiet(lab, openstack)
        assert [each["state"] for each in lab.controller.live()] == ["booting"], (
            "the one that runs runs on"
        )
        lab.over()


# ----------------------------------------------------------------------------------------------------------
# who we are


@pytest.mark.parametrize("how", ["revoked", pytest.param("expired", marks=pytest.mark.matrix)])
def test_the_credential_is_no_good_any_more(openstack: OpenStackLab, how: str) -> None:
    # a busy host starts in half a minute
    mine = openstack.new_credential(expires_s=45.0 if how == "expired" else None)
    with drill(openstack, mine) as lab:
        lab.controller.start()
        lab.submit(1)
        lab.active(1)
        if how == "revoked":
            openstack.revoke(mine)
        banned(lab, FaultKind.DENIED, "is refused", scope=SITE, within_s=90)
        seen = openstack.keystone.seen
        lab.submit(3)
        lab.controller.ticks(4)
        assert not openstack.keystone.calls("POST", "/auth/tokens", after=seen), (
            "it is not tried again and again"
        )
        assert len(lab.controller.live()) == 1, "nothing is given up, nothing asked for"
        assert "is refused" in lab.controller.prints("status")
        lab.judge()
        # A good one is in the file now. The record is lost, too, so the server is an orphan until
        # an operator decides.
        lab.controller.stop()
        lab.unsubmit()
        lab.site.credential = openstack.credential()
        for file in lab.controller.directory.glob("provisioner.db*"):
            file.unlink()
        lab.controller.start()
        lab.controller.ticks(3)
        assert len(lab.servers()) == 1 and "not on record" in str(lab.controller.json("status"))
        lab.controller.prints("sites", "stop-orphans", SITE, "-r", "its jobs are gone")
        until(lambda: not lab.servers(), 60, what="the orphan is gone", every_s=0.3)
        until(lambda: not lab.leavings(), 30, what="and what it had", every_s=0.3)


# --------------------------------------------------------------------------------------------------
# no answer, or late


def test_nova_is_away_for_a_while(openstack: OpenStackLab) -> None:
    with drill(openstack, most=4) as lab:
        lab.controller.start()
        lab.submit(2)
        lab.active(2)
        until(
            lambda: {each["state"] for each in lab.controller.live()} == {"booting"},
            30,
            what="both boot",
        )
        before = {each["id"] for each in lab.controller.live()}
        with openstack.nova.failing(status=503, body="<html>503 Service Unavailable</html>"):
            lab.submit(2)
            # A create may be refused before a look fails: then the note tells of that first.
            until(
                lambda: lab.controller.site_row()["fault"] == "down",
                60,
                what="a look has failed",
                every_s=0.3,
            )
            assert "503" in lab.controller.site_row()["note"]
            until(
                lambda: lab.controller.site_row()["breaker"] == "banned",
                60,
                what="it is left alone",
                every_s=0.3,
            )
            time.sleep(10)
            assert {each["id"] for each in lab.controller.live()} == before, (
                "nothing is given up, nothing asked for"
            )
            seen = openstack.nova.seen
        until(lambda: not lab.controller.site_row()["fault"], 60, what="it is back", every_s=0.3)
        lab.active(4)
        assert creates(openstack, seen) == [202] * 2
        assert before < {each["id"] for each in lab.controller.live()}
        lab.over()


def test_creates_are_answered_after_our_deadline(openstack: OpenStackLab) -> None:
    options = {"create_deadline": "1s", "boot_volume": {"size": "1 GiB"}}
    with drill(openstack, most=3, options=options) as lab:
        lab.controller.start()
        seen = openstack.nova.seen
        with openstack.nova.failing(method="POST", path=CREATES, late_s=4):
            lab.submit(5)
            lab.active(3)
            until(
                lambda: {each["state"] for each in lab.controller.live()} == {"booting"},
                30,
                what="they are found",
            )
            until(lambda: len(creates(openstack, seen)) == 3, 30, what="all answers have come")
            lab.controller.ticks(3)
        assert creates(openstack, seen) == [202] * 3, "none was asked for twice"
        assert "reason=accepted" not in lab.controller.log(), (
            "no answer was waited for: the listing showed them"
        )
        assert len(lab.controller.drones()) == 3
        assert len(lab.leavings()) == 6, "a port and a volume each"
        lab.over()


@pytest.mark.matrix
def test_creates_are_lost_on_the_way_and_on_the_way_back(openstack: OpenStackLab) -> None:
    with drill(openstack, most=3) as lab:
        lab.controller.start()
        with openstack.nova.failing(method="POST", path=CREATES, cut="before", times=1):
            with openstack.nova.failing(method="POST", path=CREATES, cut="after", times=1):
                lab.submit(3)
                lab.active(2)
            # The third was never made. It counts until that is certain, and then another comes in
            # its place.
            assert len(lab.controller.live()) == 3
        lab.active(3, within_s=60)
        assert [each["state"] for each in lab.ended()] == ["failed"]
        assert len(lab.controller.drones()) == 4
        lab.over()


def test_what_nova_leaves_behind_is_swept_up(openstack: OpenStackLab) -> None:
    with drill(openstack, most=2, options={"boot_volume": {"size": "1 GiB"}}) as lab:
        lab.controller.start()
        lab.submit(2)
        lab.active(2)
        openstack.network.keep_ports = openstack.volumes.keep_volumes = True
        lab.over()


# -------------------------------------------------------------------------------------------------
# killed in creates

CAP = 6
MOMENTS_S = (0.0, 0.05, 0.15, 0.4)
"""After its create is on its way: before Nova has looked at it, while it writes it down, when it has."""
NEVER_S = 600


def struck(lab: Drill, moment_s: float) -> None:
    """Kill the controller after it has sent a create and before it has an answer: the front keeps that."""
    with lab.cloud.nova.failing(
        method="POST", path="/servers$", late_s=NEVER_S, times=1000
    ) as held:
        lab.controller.begin()
        until(
            lambda: held.times != 1000 or room(lab), 60, what="a create is on its way", every_s=0.01
        )
        time.sleep(moment_s)
        lab.controller.kill()


def room(lab: Drill) -> None:
    """The owner takes two places back where all are taken: else no more creates would come."""
    if lab.watch.seen[-1].total() == CAP:
        servers = lab.servers("ACTIVE")
        if not any(each["OS-EXT-STS:task_state"] for each in servers):
            for each in servers[:2]:
                lab.cloud.take_back(each["id"], "delete")
        lab.watch()


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.matrix)])
def test_killed_between_create_and_answer(openstack: OpenStackLab, kills: int) -> None:
    quick = {"order_deadline": "5s", "order_confirm": "5s"}
    with drill(openstack, most=CAP, timeouts=quick, options={"create_deadline": "4s"}) as lab:
        lab.controller.write()
        lab.controller.begin()
        until(lab.queue.exists, 30, what="the queue is there", every_s=0.05)
        lab.controller.kill()
        lab.submit(1000)
        for number in range(kills):
            struck(lab, MOMENTS_S[number % len(MOMENTS_S)])
        lab.controller.begin()
        lab.active(CAP)
        until(
            lambda: len(lab.controller.live()) == CAP,
            60,
            what="only they live on record",
            every_s=0.3,
        )
        lab.controller.ticks(3)
        assert {each["name"] for each in lab.servers()} == {
            each["id"] for each in lab.controller.live()
        }
        assert len(lab.watch.ever()) >= kills, "each kill met a create of its own"
        lab.over()


# --------------------------------------------------------------------------------------------------------------
# calls

PAGE = 10
STEPS = (5, 20, 40)
LOOKS = 5


NAMES = {
    "changes-since": "changes",
    "tags=": "by tag",
    "/servers/detail": "all",
    "/limits": "limits",
}


def kinds(cloud: OpenStackLab, after: int) -> Counter[str]:
    """Calls of Nova by what they ask for."""
    calls = [call.target for call in cloud.nova.calls("GET", after=after)]
    return Counter(
        next((name for part, name in NAMES.items() if part in target), target) for target in calls
    )


def of_looks(lab: Drill) -> Counter[str]:
    """Calls while nothing happens but some looks."""
    seen = lab.cloud.nova.seen
    until(lambda: kinds(lab.cloud, seen)["limits"] >= LOOKS, 60, what=f"{LOOKS} looks", every_s=0.1)
    return kinds(lab.cloud, seen)


@pytest.mark.matrix
def test_a_look_costs_as_many_calls_as_it_has_pages(openstack_programs: OpenStack) -> None:
    with running_openstack(openstack_programs, page=PAGE) as cloud:
        cloud.set_quota(instances=100)
        with drill(
            cloud, most=STEPS[-1], timeouts={"order_deadline": "60s", "order_confirm": "90s"}
        ) as lab:
            lab.controller.start()
            there = 0
            for servers in STEPS:
                lab.submit(servers - there)
                there = servers
                # While one is built, Nova may leave out pages, and each server on them is asked after.
                lab.active(there)
                until(
                    lambda: lab.controller.states()["requested"] == 0,
                    60,
                    what="all are answered",
                    every_s=0.3,
                )
                lab.controller.ticks(2)
                asked = of_looks(lab)
                # Nova offers another page after a full one, which may be empty.
                pages = there // PAGE + 1
                assert asked.keys() == {"limits", "changes", "all"}, "nothing else is asked for"
                # One look may be cut by the begin of the count, and one by its end.
                assert abs(asked["all"] - pages * asked["limits"]) <= pages
                assert asked["changes"] <= pages * (asked["limits"] + 1)
            assert len(cloud.nova.calls("POST", "/servers$")) == STEPS[-1], "one create for each"
            seen = cloud.nova.seen
            lab.over(within_s=120)
            assert kinds(cloud, seen)["by tag"] <= 2 * (STEPS[-1] // PAGE + 1), (
                "they are asked to go at once"
            )
