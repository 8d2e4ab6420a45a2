"""The OpenStack site against a cloud in this process: what it deletes, asks, tells and leaves alone.

tests/live/test_contracts.py shows the behaviour of real Nova.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from adapters.openstack.site import OpenStackSite as Site
from provisioner import model
from tests.openstack.fake_openstack import (
    A100,
    CONTROLLER,
    SITE,
    USER,
    FakeCloud,
    busy,
    drone,
    fault,
    flavor,
    has,
    order,
    site_config,
)

LAUNCHED = {"OS-SRV-USG:launched_at": "2026-11-21T23:00:01.000000"}
ONE, OK = drone(1), model.OrderOutcome.OK


@asynccontextmanager
async def site(fake: FakeCloud, **options: Any) -> AsyncIterator[Site]:
    async with Site(SITE, site_config(fake, **options), [A100], CONTROLLER) as made:
        yield made


@pytest.fixture
async def made(fake: FakeCloud) -> AsyncIterator[Site]:
    async with site(fake) as found:
        yield found


async def looked(made: Site, times: int = 1) -> model.SiteView:
    """The last of some looks, each with what it had left to do."""
    view = await made.poll()
    for _ in range(times - 1):
        if made._housekeeping._round is not None:
            await asyncio.wait([made._housekeeping._round])
        view = await made.poll()
    if made._housekeeping._round is not None:
        await asyncio.wait([made._housekeeping._round])
    return view


def only(view: model.SiteView) -> model.RemoteDrone:
    [found] = view.drones.values()
    return found


def end_of(view: model.SiteView, drone_id: model.DroneId = ONE) -> model.RemoteEnd:
    end = view.drones[drone_id].end
    assert end is not None
    return end


def acts(fake: FakeCloud) -> list[str]:
    """What was asked for that changes something, without the host."""
    return [
        each
        for each in fake.asked
        if each.split()[0] in ("POST", "DELETE") and "/auth/" not in each
    ]


async def test_a_look_tells_our_drones_and_changes_nothing(fake: FakeCloud, made: Site) -> None:
    one = has(fake, ONE, **LAUNCHED)
    has(fake, drone(2), status="BUILD")
    has(fake, drone(1, "kit-two"), "kit-two")
    has(fake, drone(3), status="SHUTOFF")
    fake.add("a-persons")
    view = await looked(made)
    states = {
        ONE: model.RemoteState.RUNNING,
        drone(2): model.RemoteState.PENDING,
        drone(3): model.RemoteState.STOPPED,
    }
    assert {d: each.state for d, each in view.drones.items()} == states
    assert (view.drones[ONE].remote_id, view.drones[ONE].type) == (one, "a100")
    assert (view.free, view.claims, view.owner_runs, view.nodes) == (None, (), None, ())
    assert view.quota == {"a100": 5}
    assert acts(fake) == [], "who looks but once keeps no house"


async def test_of_two_servers_the_one_with_less_to_lose_is_deleted(
    fake: FakeCloud, made: Site
) -> None:
    runs, waits = has(fake, ONE, **LAUNCHED), has(fake, ONE, status="BUILD")
    view = await looked(made, 2)
    assert (only(view).remote_id, only(view).state) == (runs, model.RemoteState.RUNNING)
    assert view.notices == (f"{ONE} exists twice, as {runs} and {waits}: the first is kept",)
    assert fake.servers.keys() == {runs}
    assert only(await looked(made)).state is model.RemoteState.RUNNING


def stop_by(user: str | None) -> list[dict[str, Any]]:
    """Nova's record of a server that went off."""
    at = {"start_time": "2026-11-21T23:10:00.000000", "project_id": "p"}
    return [{"action": "stop", "user_id": user, **at}, {"action": "create", "user_id": USER, **at}]


async def test_one_that_has_shut_down_is_asked_how_it_ended_and_deleted(fake: FakeCloud) -> None:
    async with site(fake, console_lines=2) as made:
        last = f"=== drone {ONE} exit=3 reason=broken why=no%20GPU ==="
        told = {"console": f"boots\nit says\n{last}\n", "OS-EXT-STS:power_state": 4, **LAUNCHED}
        server = has(fake, ONE, status="SHUTOFF", **told)
        fake.lists["os-instance-actions"] = stop_by(None)
        assert only(await looked(made)).state is model.RemoteState.STOPPED
        end = only(await looked(made, 2)).end
        assert end is not None
        assert (end.kind, end.exit_code, end.message) == (model.EndKind.EXITED, 3, "broken: no GPU")
        assert end.at == 1795302600.0, "when Nova found it off"
        assert fake.servers == {}
        assert made.console_output() == {ONE: f"it says\n{last}"}
        assert made.console_output() == {}, "told once"
        consoles = [each for each in acts(fake) if each.endswith("/action")]
        assert (len(consoles), f"DELETE /compute/v2.1/servers/{server}" in acts(fake)) == (1, True)


async def test_how_it_ended_is_found_out_before_it_is_deleted(fake: FakeCloud) -> None:
    async with site(fake, deadline="200ms") as made:
        server = has(fake, ONE, status="SHUTOFF", **LAUNCHED)

        fake.fail("os-instance-actions", busy)
        view = await looked(made, 3)
        assert only(view).state is model.RemoteState.STOPPED
        assert view.notices[0].startswith("housekeeping: ")
        assert fake.servers.keys() == {server}
        fake.heal()
        fake.lists["os-instance-actions"] = stop_by(None)
        assert only(await looked(made, 3)).state is model.RemoteState.ENDED
        assert (await looked(made)).notices == ()


async def test_it_is_shut_down_first_and_deleted_once_it_is_off(
    fake: FakeCloud, made: Site
) -> None:
    server = has(fake, ONE, **LAUNCHED)
    await looked(made)
    [result] = await made.stop([model.StopOrder(ONE, server)])
    assert (result.answer, result.remote_id) == (OK, server)
    assert {"os-stop": None} in fake.bodies
    found = only(await looked(made, 2))
    assert (found.state, found.notice_at) == (model.RemoteState.RUNNING, 0.0), (
        "our own request is no notice"
    )
    [again] = await made.stop([model.StopOrder(ONE, server)])
    assert again.answer is OK
    assert fake.bodies.count({"os-stop": None}) == 1, "it would only be cut short"
    fake.servers[server] |= {
        "status": "SHUTOFF",
        "OS-EXT-STS:task_state": None,
        "OS-EXT-STS:power_state": 4,
    }
    end = end_of(await looked(made, 3))
    assert (end.kind, fake.servers) == (model.EndKind.STOPPED, {})


@pytest.mark.parametrize("kill", [False, True])
async def test_what_has_no_guest_to_tell_is_deleted(
    fake: FakeCloud, made: Site, kill: bool
) -> None:
    has(fake, ONE, status="ACTIVE" if kill else "BUILD")
    other = has(fake, drone(2))
    [result] = await made.stop([model.StopOrder(ONE, "", kill)])
    assert result.answer is OK
    assert fake.servers.keys() == {other}
    assert {"os-stop": None} not in fake.bodies


async def test_all_servers_of_a_drone_are_stopped(fake: FakeCloud, made: Site) -> None:
    for _ in range(2):
        has(fake, ONE, status="BUILD")
    foreign = has(fake, drone(1, "kit-two"), "kit-two")
    [result] = await made.stop([model.StopOrder(ONE, "")])
    assert result.answer is OK
    assert fake.servers.keys() == {foreign}


async def test_a_stop_that_fails_is_told_and_hurts_no_other(fake: FakeCloud, made: Site) -> None:
    locked, lost, good = (has(fake, drone(n), **LAUNCHED) for n in (1, 2, 3))

    fake.fail(
        f"{locked}/action",
        lambda _: fault(409, "conflictingRequest", f"Instance {locked} is locked"),
    )
    fake.fail(f"{lost}/action", lambda _: web.Response(status=504))
    results = await made.stop([model.StopOrder(drone(n), "") for n in (1, 2, 3, 4)])
    assert [each.answer for each in results] == [
        model.OrderOutcome.REJECTED,
        model.OrderOutcome.UNKNOWN,
        OK,
        OK,
    ]
    assert results[0].fault is not None and results[0].fault.kind is model.FaultKind.DENIED
    assert fake.servers[good]["OS-EXT-STS:task_state"] == "powering-off"


async def test_leaving_waits_for_creates_that_are_under_way(fake: FakeCloud) -> None:
    asked, release = asyncio.Event(), asyncio.Event()

    async def slow(_: web.Request) -> None:
        asked.set()
        await release.wait()

    fake.fail("/servers", slow, "POST")
    async with site(fake) as made:
        task = asyncio.create_task(made.start([order(1)]))  # type: ignore[arg-type]
        await asked.wait()
        task.cancel()
        asyncio.get_running_loop().call_later(0.05, release.set)
    assert [each["name"] for each in fake.servers.values()] == [ONE]


async def test_an_audit_says_what_does_not_fit(fake: FakeCloud, made: Site) -> None:
    fake.quota = 4
    fake.lists["flavors"] = [flavor(vcpus=4)]
    found = await made.audit(model.SitePolicy(SITE, max_drones=10))
    assert [(gap.node, gap.dimension) for gap in found] == [
        ("type a100", "cpus"),
        ("project", "quota"),
    ]
