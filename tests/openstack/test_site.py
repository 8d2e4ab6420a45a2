"""The OpenStack site against a cloud in this process: what it deletes, asks, tells and leaves alone.

What real Nova does is in tests/live/test_openstack_contract.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from adapters.openstack.site import OpenStackSite
from provisioner.interfaces import AuditFinding, UnavailableError
from provisioner.model import (
    EndKind,
    FaultKind,
    OrderOutcome,
    RemoteDrone,
    RemoteState,
    SitePolicy,
    SiteView,
    StopOrder,
)
from tests.openstack.clouded import USER, Clouded, fault, running
from tests.openstack.stocked import A100, CONTROLLER, SITE, config, created, drone, flavor, has, order, stocked

LAUNCHED = {"OS-SRV-USG:launched_at": "2026-11-21T23:00:01.000000"}
ONE = drone(1)


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUD_SECRET", "s3cret")


@asynccontextmanager
async def site(clouded: Clouded, **options: Any) -> AsyncIterator[OpenStackSite]:
    async with OpenStackSite(SITE, config(clouded, **options), [A100], CONTROLLER) as made:
        yield made


async def looked(made: OpenStackSite, times: int = 1) -> SiteView:
    """The last of some looks, each with what it had left to do."""
    view = await made.poll()
    for _ in range(times - 1):
        if made._housekeeping is not None:
            await asyncio.wait([made._housekeeping])
        view = await made.poll()
    if made._housekeeping is not None:
        await asyncio.wait([made._housekeeping])
    return view


def only(view: SiteView) -> RemoteDrone:
    [found] = view.drones.values()
    return found


def acts(clouded: Clouded) -> list[str]:
    """What was asked for that changes something, without the host."""
    return [each for each in clouded.asked if each.split()[0] in ("POST", "DELETE") and "/auth/" not in each]


# ------------------------------------------------------------------------------------------------------------- looking


async def test_a_look_tells_our_drones_and_changes_nothing() -> None:
    async with running(stocked()) as clouded, site(clouded) as made:
        one = has(clouded, ONE, **LAUNCHED)
        has(clouded, drone(2), status="BUILD")
        has(clouded, drone(1, "kit-two"), "kit-two")
        has(clouded, drone(3), status="SHUTOFF")
        clouded.add("a-persons")
        view = await looked(made)
        assert {d: each.state for d, each in view.drones.items()} == {
            ONE: RemoteState.RUNNING,
            drone(2): RemoteState.PENDING,
            drone(3): RemoteState.STOPPED,
        }
        assert (view.drones[ONE].remote_id, view.drones[ONE].type) == (one, "a100")
        assert (view.free, view.claims, view.owner_runs, view.nodes) == (None, (), None, ())
        assert view.quota == {"a100": 5}
        assert acts(clouded) == [], "who looks but once keeps no house"


@pytest.mark.parametrize(("servers", "pages"), [(1, 1), (99, 1), (250, 3)])
async def test_a_look_costs_two_calls_and_pages_whatever_there_is(servers: int, pages: int) -> None:
    """On the real thing with its own pages: tests/live/test_openstack_scale.py."""
    async with running(stocked(page=100)) as clouded, site(clouded) as made:
        for number in range(servers):
            has(clouded, drone(number + 1), **LAUNCHED)
        assert len((await looked(made)).drones) == servers
        clouded.asked.clear()
        assert len((await looked(made)).drones) == servers
        asked = [each.partition("?")[0].rpartition("/")[2] for each in clouded.asked]
        assert asked == ["detail"] * pages + ["limits"]


async def test_a_cloud_that_fails_is_no_empty_listing() -> None:
    async with running(stocked()) as clouded, site(clouded, deadline="200ms") as made:
        has(clouded, ONE)
        assert ONE in (await looked(made)).drones

        async def down(request: web.Request) -> web.Response:
            return fault(503, "x", "busy")

        clouded.before = down
        with pytest.raises(UnavailableError):
            await made.poll()
        clouded.before = None
        assert ONE in (await looked(made)).drones


async def test_before_it_is_entered_it_is_down() -> None:
    made = OpenStackSite(SITE, config(Clouded(url="http://127.0.0.1:1")), [A100], CONTROLLER)
    with pytest.raises(UnavailableError, match="not connected"):
        await made.poll()


async def test_of_two_servers_of_one_drone_the_one_with_less_to_lose_is_deleted() -> None:
    async with running(stocked()) as clouded, site(clouded) as made:
        runs, waits = has(clouded, ONE, **LAUNCHED), has(clouded, ONE, status="BUILD")
        view = await looked(made, 2)
        assert (only(view).remote_id, only(view).state) == (runs, RemoteState.RUNNING)
        assert view.notices == (f"{ONE} is there twice, as {runs} and {waits}",)
        assert clouded.servers.keys() == {runs}
        assert only(await looked(made)).state is RemoteState.RUNNING


async def test_one_that_failed_before_it_ran_will_never_start() -> None:
    async with running(stocked()) as clouded, site(clouded) as made:
        told = {"code": 500, "message": "No valid host was found. ", "created": "2026-11-21T23:00:02Z"}
        has(clouded, ONE, status="ERROR", fault=told)
        found = only(await looked(made, 3))
        assert (found.state, found.blocked, found.final) == (RemoteState.PENDING, FaultKind.CAPACITY, True)
        assert found.reason == "No valid host was found."
        assert acts(clouded) == [], "it is for the controller to withdraw it"
        [receipt] = await made.stop([StopOrder(ONE, found.remote_id)])
        assert (receipt.answer, clouded.servers) == (OrderOutcome.OK, {})


# ---------------------------------------------------------------------------------------------------------------- ends


def stop_by(user: str | None) -> list[dict[str, Any]]:
    """Nova's record of a server that went off."""
    at = {"start_time": "2026-11-21T23:10:00.000000", "project_id": "p"}
    return [{"action": "stop", "user_id": user, **at}, {"action": "create", "user_id": USER, **at}]


async def test_one_that_has_shut_down_is_asked_how_it_ended_and_deleted() -> None:
    async with running(stocked()) as clouded, site(clouded, console_lines=2) as made:
        last = f"=== drone {ONE} exit=3 reason=broken why=no%20GPU ==="
        told = {"console": f"boots\nit says\n{last}\n", "OS-EXT-STS:power_state": 4, **LAUNCHED}
        server = has(clouded, ONE, status="SHUTOFF", **told)
        clouded.lists["os-instance-actions"] = stop_by(None)
        assert only(await looked(made)).state is RemoteState.STOPPED
        end = only(await looked(made, 2)).end
        assert end is not None
        assert (end.kind, end.exit_code, end.message) == (EndKind.EXITED, 3, "broken: no GPU")
        assert end.at == 1795302600.0, "when Nova found it off"
        assert clouded.servers == {}
        assert made.last_words() == {ONE: f"it says\n{last}"}
        assert made.last_words() == {}, "told once"
        consoles = [each for each in acts(clouded) if each.endswith("/action")]
        assert (len(consoles), f"DELETE /compute/v2.1/servers/{server}" in acts(clouded)) == (1, True)


async def test_one_that_somebody_at_the_cloud_stopped_was_preempted() -> None:
    async with running(stocked()) as clouded, site(clouded) as made:
        has(clouded, ONE, status="SHUTOFF", **LAUNCHED)
        clouded.lists["os-instance-actions"] = stop_by("an-operator")
        end = only(await looked(made, 3)).end
        assert end is not None
        assert (end.kind, end.message) == (
            EndKind.PREEMPTED,
            "somebody at the cloud stopped it: stop by user an-operator",
        )


async def test_how_it_ended_is_found_out_before_it_is_deleted() -> None:
    async with running(stocked()) as clouded, site(clouded, deadline="200ms") as made:
        server = has(clouded, ONE, status="SHUTOFF", **LAUNCHED)

        async def silent(request: web.Request) -> web.Response | None:
            return fault(503, "x", "busy") if "os-instance-actions" in request.path else None

        clouded.before = silent
        view = await looked(made, 3)
        assert only(view).state is RemoteState.STOPPED
        assert view.notices[0].startswith("housekeeping: ")
        assert clouded.servers.keys() == {server}
        clouded.before = None
        clouded.lists["os-instance-actions"] = stop_by(None)
        assert only(await looked(made, 3)).state is RemoteState.ENDED
        assert (await looked(made)).notices == ()


async def test_an_end_is_remembered_for_who_asks_again() -> None:
    async with running(stocked()) as clouded, site(clouded) as made:
        has(clouded, ONE, status="SHUTOFF", **LAUNCHED)
        clouded.lists["os-instance-actions"] = stop_by(None)
        first = only(await looked(made, 3)).end
        clouded.lists["os-instance-actions"] = stop_by("another")
        assert only(await looked(made, 2)).end == first


# ------------------------------------------------------------------------------------------------------------ stopping


async def test_it_is_shut_down_first_and_deleted_once_it_is_off() -> None:
    async with running(stocked()) as clouded, site(clouded) as made:
        server = has(clouded, ONE, **LAUNCHED)
        await looked(made)
        [receipt] = await made.stop([StopOrder(ONE, server)])
        assert (receipt.answer, receipt.remote_id) == (OrderOutcome.OK, server)
        assert {"os-stop": None} in clouded.bodies
        found = only(await looked(made, 2))
        assert (found.state, found.notice_at) == (RemoteState.RUNNING, 0.0), "our own request is no notice"
        [again] = await made.stop([StopOrder(ONE, server)])
        assert again.answer is OrderOutcome.OK
        assert clouded.bodies.count({"os-stop": None}) == 1, "it would only be cut short"
        clouded.servers[server] |= {"status": "SHUTOFF", "OS-EXT-STS:task_state": None, "OS-EXT-STS:power_state": 4}
        end = only(await looked(made, 3)).end
        assert end is not None
        assert (end.kind, clouded.servers) == (EndKind.STOPPED, {})


@pytest.mark.parametrize("kill", [False, True])
async def test_what_has_no_guest_to_tell_is_deleted(kill: bool) -> None:
    async with running(stocked()) as clouded, site(clouded) as made:
        has(clouded, ONE, status="ACTIVE" if kill else "BUILD")
        other = has(clouded, drone(2))
        [receipt] = await made.stop([StopOrder(ONE, "", kill)])
        assert receipt.answer is OrderOutcome.OK
        assert clouded.servers.keys() == {other}
        assert {"os-stop": None} not in clouded.bodies


async def test_who_was_not_asked_did_not_leave_on_our_request() -> None:
    async with running(stocked()) as clouded, site(clouded) as made:
        has(clouded, ONE, **LAUNCHED)
        other = has(clouded, drone(2), **LAUNCHED)
        await made.stop([StopOrder(ONE, "")])
        clouded.servers[other] |= {"status": "SHUTOFF", "OS-EXT-STS:power_state": 4}
        end = (await looked(made, 3)).drones[drone(2)].end
        assert end is not None
        assert end.kind is EndKind.EXITED


async def test_all_servers_of_a_drone_are_stopped() -> None:
    async with running(stocked()) as clouded, site(clouded) as made:
        for _ in range(2):
            has(clouded, ONE, status="BUILD")
        foreign = has(clouded, drone(1, "kit-two"), "kit-two")
        [receipt] = await made.stop([StopOrder(ONE, "")])
        assert receipt.answer is OrderOutcome.OK
        assert clouded.servers.keys() == {foreign}


async def test_a_stop_that_fails_is_told_and_hurts_no_other() -> None:
    async with running(stocked()) as clouded, site(clouded) as made:
        locked, lost, good = (has(clouded, drone(n), **LAUNCHED) for n in (1, 2, 3))

        async def breaks(request: web.Request) -> web.Response | None:
            if request.path.endswith(f"{locked}/action"):
                return fault(409, "conflictingRequest", f"Instance {locked} is locked")
            return web.Response(status=504) if request.path.endswith(f"{lost}/action") else None

        clouded.before = breaks
        receipts = await made.stop([StopOrder(drone(n), "") for n in (1, 2, 3, 4)])
        assert [each.answer for each in receipts] == [
            OrderOutcome.REJECTED,
            OrderOutcome.UNKNOWN,
            OrderOutcome.OK,
            OrderOutcome.OK,
        ]
        assert receipts[0].fault is not None and receipts[0].fault.kind is FaultKind.DENIED
        assert clouded.servers[good]["OS-EXT-STS:task_state"] == "powering-off"


# ------------------------------------------------------------------------------------------------------------ starting


async def test_what_is_started_is_looked_at_and_a_second_controller_sees_the_same() -> None:
    async with running(stocked()) as clouded:
        async with site(clouded) as made:
            [receipt] = await made.start([order(1)])
            found = only(await looked(made))
            assert (found.remote_id, found.state) == (receipt.remote_id, RemoteState.PENDING)
        async with site(clouded) as made:
            assert only(await looked(made)).remote_id == receipt.remote_id
            [again] = await made.start([order(1)])
            assert (again.remote_id, created(clouded)) == (receipt.remote_id, [ONE])


async def test_leaving_waits_for_creates_that_are_under_way() -> None:
    async with running(stocked()) as clouded:
        asked, release = asyncio.Event(), asyncio.Event()

        async def slow(request: web.Request) -> None:
            if request.method == "POST" and request.path.endswith("/servers"):
                asked.set()
                await release.wait()

        async with site(clouded) as made:
            clouded.before = slow
            task = asyncio.create_task(made.start([order(1)]))  # type: ignore[arg-type]
            await asked.wait()
            task.cancel()
            asyncio.get_running_loop().call_later(0.05, release.set)
        assert [each["name"] for each in clouded.servers.values()] == [ONE]


# ------------------------------------------------------------------------------------------------------------ auditing


async def test_an_audit_of_what_fits_says_nothing() -> None:
    async with running(stocked()) as clouded, site(clouded) as made:
        assert await made.audit(SitePolicy(SITE, max_drones=10)) == []
        assert acts(clouded) == []


async def test_an_audit_says_what_does_not_fit() -> None:
    async with running(stocked(quota=4)) as clouded, site(clouded) as made:
        clouded.lists["flavors"] = [flavor(vcpus=4)]
        assert await made.audit(SitePolicy(SITE, max_drones=10)) == [
            AuditFinding(
                "type a100",
                "cpus",
                "flavour `gpu.a100.1` has 4 CPUs, drone type `a100` 8: change `cpus` or `flavor`",
            ),
            AuditFinding("project", "quota", "the project may have 4 servers, `max_drones` is 10: lower it"),
        ]
