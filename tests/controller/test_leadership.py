"""Limits of a leader whose lease runs out, and of a new one that has not seen enough yet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from provisioner import model, reasons
from provisioner.controller.actuation import OrderBatch, OrderTerms, Pools, carry_out
from provisioner.controller.compute_thread import ComputeThread
from provisioner.controller.leadership import Leadership, Membership
from provisioner.controller.standby import Standby
from provisioner.interfaces import OBSERVING, UnavailableError
from provisioner.planner.breakers import update_by_order_results
from provisioner.planner.lifecycle import apply_start_result
from provisioner.simulator.loop import VirtualClock, now_s
from provisioner.store import StoreError
from provisioner.store.lease import LeaseStore, Member
from tests.controller.world import EPOCH, GPU, Place, Pool, in_virtual_time
from tests.simulator.members import Database, LeaseServer

LEASE_S = 10.0
ORDER = model.StartOrder(model.DroneId("kit-mem0-1"), GPU, 60.0, 5.0)


class Thread(ComputeThread):
    """Calls of the database, which may be away."""

    def __init__(self) -> None:
        super().__init__(threaded=False)
        self.is_away = False

    async def run(self, work: Callable[..., Any], *args: Any) -> Any:
        if self.is_away:
            raise StoreError("no route to host")
        return work(*args)


def member(name: str = "one", database: Database | None = None) -> tuple[Membership, Thread]:
    thread = Thread()
    server: Any = LeaseServer(database or Database())
    leases = LeaseStore(server, "kit")
    return Membership(leases, thread, Member(name, json.dumps({})), LEASE_S), thread


async def ordered(place: Place, lead: Leadership) -> model.OrderResult:
    batch = OrderBatch("here", (ORDER,))
    (result,) = (
        await carry_out(batch, place, Pools(Pool()), OrderTerms(VirtualClock(), lead, 60.0))
    ).starts
    return result


@in_virtual_time
async def test_a_call_goes_on_while_the_lease_is_renewed_and_ends_with_it() -> None:
    lead, thread = member()
    beats = asyncio.create_task(lead.run())
    await asyncio.sleep(0.1)

    async def slow() -> None:
        await asyncio.sleep(25.0)

    place = Place(start_wire=slow)
    assert (await ordered(place, lead)).answer is model.OrderOutcome.OK
    begun_s = now_s()
    asyncio.get_running_loop().call_later(5.0, setattr, thread, "is_away", True)
    assert (await ordered(place, lead)).answer is model.OrderOutcome.UNKNOWN
    assert 5.0 + LEASE_S - 2.0 <= now_s() - begun_s <= 5.0 + LEASE_S
    beats.cancel()


@in_virtual_time
async def test_an_order_that_the_lease_does_not_outlast_is_not_given_and_blames_no_site() -> None:
    lead, thread = member()
    await lead.beat()
    thread.is_away = True
    await asyncio.sleep(LEASE_S / 2 + 0.1)
    place = Place()
    batch = OrderBatch("here", (ORDER,))
    terms = OrderTerms(VirtualClock(), lead, 60.0)
    results = await carry_out(batch, place, Pools(Pool()), terms)
    assert place.told == [] and results.starts == ()
    (refused,) = results.admissions
    assert refused.answer is model.OrderOutcome.REJECTED
    drone = model.Drone(ORDER.drone_id, GPU.key, model.DroneState.REQUESTED, 1.0, 1.0, 1000)
    change = apply_start_result(drone, refused, 2.0)
    assert change is not None and change.drone.state is model.DroneState.FAILED
    assert isinstance(change.reason, reasons.OrderRefused) and change.reason.fault == "lease"
    assert update_by_order_results({}, {drone.id: GPU.scope}, [refused], 2.0) == []
    thread.is_away = False
    await lead.beat()
    assert (await ordered(place, lead)).answer is model.OrderOutcome.OK, "it resumes"


@in_virtual_time
async def test_the_time_of_a_renewal_counts_from_before_it_was_sent() -> None:
    lead, thread = member()
    honest = thread.run

    async def late(work: Callable[..., Any], *args: Any) -> Any:
        answer = await honest(work, *args)
        await asyncio.sleep(4.0)
        return answer

    thread.run = late  # type: ignore[method-assign]
    await lead.beat()
    assert lead.left_s == pytest.approx(LEASE_S - 4.0)


@in_virtual_time
async def test_an_order_carries_the_epoch_of_its_leader() -> None:
    lead, _ = member()
    await lead.beat()
    for leadership, epoch in ((Leadership(), 0), (lead, 1)):
        place = Place()
        given: list[int] = []

        async def start(orders: Any, given: list[int] = given) -> list[model.OrderResult]:
            given += [each.epoch for each in orders]
            return []

        place.start = start  # type: ignore[assignment]
        await ordered(place, leadership)
        assert given == [epoch]


@in_virtual_time
async def test_an_epoch_that_was_given_twice_is_noticed() -> None:
    database = Database()
    lead, _ = member("one", database)
    await lead.beat()
    database.sql.execute("UPDATE lease SET nonce = 'x', member = 'other'")
    await lead.beat()
    assert not lead.leads and lead.went_back == "epoch 1 after 1"


@in_virtual_time
@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
async def test_a_clock_of_the_database_that_is_set_changes_no_lease(step_s: float) -> None:
    database = Database()
    one, thread = member("one", database)
    other, _ = member("other", database)
    beats = [asyncio.create_task(each.run()) for each in (one, other)]
    await asyncio.sleep(LEASE_S)
    assert one.leads
    database.clock_off_s = step_s
    await asyncio.sleep(3 * LEASE_S)
    assert one.leads and not other.leads, "it renews its lease"
    thread.is_away = True
    database.clock_off_s = 0.0
    until_s = now_s() + one.left_s
    while not other.leads:
        assert one.left_s == max(0.0, until_s - now_s()) and now_s() < until_s + LEASE_S / 2
        await asyncio.sleep(0.1)
    assert now_s() >= until_s
    for each in beats:
        each.cancel()


@in_virtual_time
async def test_transactions_that_a_fail_over_has_lost_are_noticed() -> None:
    """By the standby, which has seen a later one, and by the leader, which has committed it."""
    database = Database()
    one, _ = member("one", database)
    other, _ = member("other", database)
    await one.beat()
    assert one.term is not None
    for _ in range(3):
        one.term.prove(database.sql)
        one.term.writes += 1
    await other.beat()
    database.sql.execute("UPDATE lease SET writes = 1")
    with pytest.raises(StoreError):
        one.term.prove(database.sql)
    for each in (one, other):
        assert not each.went_back
        await each.beat()
        assert each.went_back == "2 transactions of epoch 1"


@in_virtual_time
async def test_after_a_crash_the_next_leader_waits_and_after_an_orderly_end_it_does_not() -> None:
    database = Database()
    one, _ = member("one", database)
    other, _ = member("other", database)
    await one.beat()
    assert one.leads and not one.takes_over, "nobody led before"
    await other.beat()
    assert not other.leads
    await asyncio.sleep(LEASE_S + 0.1)
    await other.beat()
    assert other.leads and other.takes_over
    await other.leave()
    await one.beat()
    assert not one.leads, "it finds that it was succeeded"
    await one.beat()
    assert one.leads and not one.takes_over


@in_virtual_time
async def test_a_leader_that_resigned_takes_the_lease_back_only_after_another_one() -> None:
    database = Database()
    one, _ = member("one", database)
    other, _ = member("other", database)
    await one.beat()
    await one.leave()
    one.stand_back()
    await one.beat()
    assert not one.leads, "it leaves the lease to others"
    await other.beat()
    await one.beat()
    await other.leave()
    await one.beat()
    assert other.term is None and one.leads, "long before it would have stopped to stand back"


@in_virtual_time
async def test_a_standby_polls_without_a_trace_and_says_what_it_lacks() -> None:
    observed: list[bool] = []

    async def look() -> None:
        observed.append(OBSERVING.get())

    here = Place("here", look_wire=look)
    there = Place("there")
    policy = model.Policy(
        interval_s=5.0,
        sites={
            "here": model.SitePolicy("here"),
            "there": model.SitePolicy("there", standby_polls=False),
        },
    )
    sites: Any = {"here": here, "there": there}
    standby = Standby(policy, [GPU], Pool(), sites, VirtualClock(), threaded=False)  # type: ignore[arg-type]
    servers = model.ServicesView(EPOCH)

    async def poll_services() -> model.ServicesView:
        if len(observed) < 3:
            raise UnavailableError("no such record")
        return servers

    standby.poll_services = poll_services
    assert standby.lacks() and standby.unpolled == ("there",)
    over = asyncio.Event()
    asyncio.get_running_loop().call_later(12.0, over.set)
    lacks: list[tuple[str, ...]] = []
    asyncio.get_running_loop().call_later(8.0, lambda: lacks.append(standby.lacks()))
    await standby.run(over)
    assert lacks == [("services: no such record",)]
    assert observed == [True, True, True] and not OBSERVING.get()
    assert standby.lacks() == () and here.told == []
    assert standby.poller is not None
    view = standby.poller.sites["here"].view
    assert view is not None and view.taken_at >= EPOCH
    assert set(standby.poller.sites) == {"here"}
    assert standby.poller.services is not None and standby.poller.services.view is not None
