"""The contract of a site adapter: what the controller relies on, for every kind of site."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Protocol

import pytest

from provisioner.adapter_tests import NotSupportedError, eventually, outcome, skip_unless_supported
from provisioner.interfaces import AdapterError, AuthError, OutcomeUnknownError, RejectedError, Site
from provisioner.model import (
    Bootstrap,
    DroneId,
    DroneType,
    EndKind,
    OrderOutcome,
    OrderResult,
    OrderResults,
    RemoteDrone,
    RemoteState,
    StartOrder,
    StopOrder,
)

_ALIVE = (RemoteState.PENDING, RemoteState.RUNNING, RemoteState.UNKNOWN)


class SiteWorld(Protocol):
    """A site under test, with a view of it that does not use the adapter."""

    controller: str
    """Name of the controller that :meth:`site` belongs to."""
    kind: DroneType
    """A type of which at least three drones can run at once."""
    impossible: DroneType
    """A type that the site rejects at once and for good."""
    grace_s: float
    """Time between SIGTERM and SIGKILL; short."""
    longest_wait_s: float
    """Longest time that the site may need for anything in the suite."""
    reports_free: bool
    """True if its views have ``free``."""
    reports_exit_codes: bool
    """True if it reports the exit status of finished drones."""

    def site(self, controller: str | None = None) -> Site:
        """Return a new adapter object, as a controller (:attr:`controller`, or another) builds it at its start."""

    def living(self) -> Bootstrap:
        """Return a drone that runs until it gets SIGTERM."""

    def stubborn(self) -> Bootstrap:
        """Return a drone that ignores SIGTERM and has further processes."""

    def exiting(self, code: int) -> Bootstrap:
        """Return a drone that exits by itself with this status."""

    async def start_unseen(self, order: StartOrder) -> None:
        """Start a drone as a member does whose listing is older than this drone, if there is one."""

    async def alive(self, drone_id: DroneId) -> int:
        """Return how many copies of a drone run or wait there: 0, 1, or more if it was duplicated."""

    async def anything_left(self, drone_id: DroneId) -> bool:
        """Return whether anything of a drone is left that uses resources."""

    def broken(self) -> AbstractAsyncContextManager[None]:
        """Make the site unreachable, while inside."""

    # Hooks: a lab that cannot do one of these raises NotSupportedError with the reason, and its
    # tests are skipped.

    def lost_replies(self) -> AbstractAsyncContextManager[None]:
        """Carry out each start and lose the reply to it, while inside."""

    def pages(self) -> AbstractAsyncContextManager[None]:
        """Answer each listing in pages of one drone, while inside."""

    def cut_listings(self) -> AbstractAsyncContextManager[None]:
        """Break off the answer to each listing in the middle, while inside."""

    def refused_starts(self) -> AbstractAsyncContextManager[None]:
        """Refuse each start and make nothing, while inside."""

    def refused_stops(self, status: int) -> AbstractAsyncContextManager[None]:
        """Answer each stop with this HTTP status (403, 500 or 503) or its equivalent, and stop nothing."""

    def forgetful_site(self) -> Site:
        """Return a new adapter object like :meth:`site`, which keeps finished drones for a second at most."""

    async def objects(self, drone_id: DroneId) -> Sequence[str]:
        """List the objects of a drone that stay at the site until somebody deletes them."""


class SiteContract:
    """The suite for a site: subclass it as ``TestMySite`` with a fixture ``world``."""

    pytestmark = pytest.mark.asyncio

    async def test_a_drone_is_started_listed_stopped_and_gone(self, world: SiteWorld) -> None:
        """Check the life of a drone: started, listed as running, stopped, and no longer listed."""
        drone_id = _new_id(world)
        async with world.site() as site:
            assert drone_id not in (await site.poll()).drones
            [result] = await site.start([_order(world, drone_id)])
            assert (result.drone_id, result.answer, result.fault) == (
                drone_id,
                OrderOutcome.OK,
                None,
            )
            assert drone_id in (await site.poll()).drones, "a poll after a start lists the drone"
            running = await _listed(world, site, drone_id, RemoteState.RUNNING)
            assert running.type == world.kind.name
            assert running.remote_id == result.remote_id != ""
            await _runs_once(world, drone_id)

            [result] = await site.stop([StopOrder(drone_id, running.remote_id)])
            assert result.answer is OrderOutcome.OK
            await _gone(world, site, drone_id)
            ended = (await site.poll()).drones.get(drone_id)
            if ended is not None:  # a site may forget at once, but not lie
                assert ended.end is not None
                assert ended.end.kind is EndKind.STOPPED

    async def test_starting_the_same_id_again_is_the_same_drone(self, world: SiteWorld) -> None:
        """Check that an order that is repeated, after a restart too, starts no second drone."""
        order = _order(world, _new_id(world))
        async with world.site() as site:
            first, again = [(await site.start([order]))[0] for _ in range(2)]
            assert (first.answer, again.answer) == (OrderOutcome.OK, OrderOutcome.OK)
            assert first.remote_id == again.remote_id
        async with world.site() as restarted:
            [later] = await restarted.start([order])
            assert later.answer is OrderOutcome.OK
            await _listed(world, restarted, order.drone_id, RemoteState.RUNNING)
            await _runs_once(world, order.drone_id)
            await _end(world, restarted, [order.drone_id])

    async def test_of_two_starts_of_one_drone_all_members_keep_the_same(
        self, world: SiteWorld
    ) -> None:
        """Check that each member lists the object that runs, and that the other one is stopped, if there is one."""
        order = _order(world, _new_id(world))
        async with world.site() as site, world.site() as other:
            await world.start_unseen(order)
            running = await _listed(world, site, order.drone_id, RemoteState.RUNNING)
            await world.start_unseen(order)

            async def is_settled() -> bool:
                for member in (other, site):
                    listed = (await member.poll()).drones[order.drone_id]
                    assert listed.remote_id == running.remote_id
                return await world.alive(order.drone_id) == 1

            await eventually("one is left", is_settled, world.longest_wait_s)
            await _listed(world, site, order.drone_id, RemoteState.RUNNING)
            await _end(world, site, [order.drone_id])

    async def test_one_bad_order_does_not_hurt_the_others(self, world: SiteWorld) -> None:
        """Check that an impossible order of a batch is rejected alone, with results in the order of the orders."""
        good, bad, good_too = (_new_id(world) for _ in range(3))
        orders = [
            _order(world, good),
            _order(world, bad, world.impossible),
            _order(world, good_too),
        ]
        async with world.site() as site:
            results = await site.start(orders)
            assert [r.drone_id for r in results] == [good, bad, good_too]
            assert [r.answer for r in results] == [
                OrderOutcome.OK,
                OrderOutcome.REJECTED,
                OrderOutcome.OK,
            ]
            _assert_has_fault(results[1])
            await _listed(world, site, good_too, RemoteState.RUNNING)
            view = await site.poll()
            assert {good, good_too} <= view.drones.keys()
            assert bad not in view.drones
            assert await world.alive(bad) == 0
            await _end(world, site, [good, good_too])

    async def test_stopping_what_is_not_there_is_done(self, world: SiteWorld) -> None:
        """Check that a stop of an unknown or ended drone is ``OK``."""
        never = _new_id(world)
        gone = _new_id(world)
        async with world.site() as site:
            [result] = await site.stop([StopOrder(never, "")])
            assert (result.drone_id, result.answer) == (never, OrderOutcome.OK)
            await site.start([_order(world, gone)])
            await _end(world, site, [gone])
            for kill in (False, True):
                results = await site.stop([StopOrder(gone, "", kill), StopOrder(never, "", kill)])
                assert [(r.drone_id, r.answer) for r in results] == [
                    (gone, OrderOutcome.OK),
                    (never, OrderOutcome.OK),
                ]

    async def test_a_drone_that_ends_by_itself_is_listed_with_its_exit_code(
        self, world: SiteWorld
    ) -> None:
        """Check that a drone that exits is listed as ended, with its exit code where the site reports one."""
        failing = _new_id(world)
        leaving = _new_id(world)
        async with world.site() as site:
            for drone_id, code in ((failing, 3), (leaving, 0)):
                await site.start([_order(world, drone_id, bootstrap=world.exiting(code))])
                ended = await _listed(world, site, drone_id, RemoteState.ENDED)
                assert ended.end is not None
                assert ended.end.kind is EndKind.EXITED
                assert ended.end.exit_code == (code if world.reports_exit_codes else None)
                assert abs(time.time() - ended.end.at) < world.longest_wait_s + 60
                await _gone(world, site, drone_id)

    async def test_a_restarted_controller_lists_the_same_drones(self, world: SiteWorld) -> None:
        """Check that a new connection lists the drones of an earlier one under the same ids."""
        drone_id = _new_id(world)
        async with world.site() as site:
            [before] = await _start(world, site, [drone_id])
        async with world.site() as site:
            after = (await site.poll()).drones[drone_id]
            assert (after.remote_id, after.state) == (before.remote_id, RemoteState.RUNNING)
            await _end(world, site, [drone_id])

    @pytest.mark.parametrize("kill", [False, True], ids=["after its grace", "at once"])
    async def test_a_drone_that_will_not_leave_is_ended_with_all_it_started(
        self, world: SiteWorld, kill: bool
    ) -> None:
        """Check that a drone that ignores signals is killed with all its processes."""
        drone_id = _new_id(world)
        async with world.site() as site:
            await site.start([_order(world, drone_id, bootstrap=world.stubborn())])
            await _listed(world, site, drone_id, RemoteState.RUNNING)
            [result] = await site.stop([StopOrder(drone_id, "", kill)])
            assert result.answer is OrderOutcome.OK
            await _gone(world, site, drone_id)

    async def test_another_controllers_drones_are_neither_listed_nor_touched(
        self, world: SiteWorld
    ) -> None:
        """Check that a controller whose name begins with ours keeps its drones to itself."""
        other = f"{world.controller}-two"  # its ids begin as ours do
        mine = _new_id(world)
        foreign = DroneId(f"{other}-abcd-1")
        async with world.site() as site, world.site(other) as theirs:
            await _start(world, theirs, [foreign])
            await _start(world, site, [mine])
            assert foreign not in (await site.poll()).drones
            assert mine not in (await theirs.poll()).drones
            await _end(world, site, [mine])
            assert await world.alive(foreign) == 1
            await _end(world, theirs, [foreign])

    async def test_free_counts_go_down_and_up(self, world: SiteWorld) -> None:
        """Check that free capacity, where it is reported, follows starts and ends."""
        ids = [_new_id(world) for _ in range(2)]
        name = world.kind.name
        async with world.site() as site:
            before = (await site.poll()).free
            if not world.reports_free:
                assert before is None
                return
            assert before is not None and before[name] >= 3
            await site.start([_order(world, drone_id) for drone_id in ids])
            seen = await site.poll()
            waits = sum(seen.drones[drone_id].state is RemoteState.PENDING for drone_id in ids)
            # the planner promises those that wait their room
            assert seen.free is not None and seen.free[name] == before[name] - (2 - waits)
            await _end(world, site, ids)
            after = (await site.poll()).free
            assert after is not None and after[name] == before[name]

    @pytest.mark.parametrize("after_s", [0.0, 0.001, 0.004, 0.01, 0.03])
    async def test_a_start_cut_short_leaves_what_a_listing_can_settle(
        self, world: SiteWorld, after_s: float
    ) -> None:
        """Check that a batch that was cancelled can be repeated, and starts each drone once."""
        orders = [_order(world, _new_id(world)) for _ in range(3)]
        async with world.site() as site:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(after_s):
                    await site.start(orders)
                    raise TimeoutError  # it was faster: equivalent
            # The controller has no results. It repeats the orders for drones that are not listed,
            # and gets each once.
            results = await site.start(orders)
            _assert_all_done(results)
            for order in orders:
                await _listed(world, site, order.drone_id, RemoteState.RUNNING)
                await _runs_once(world, order.drone_id)
            await _end(world, site, [order.drone_id for order in orders])

    async def test_what_runs_after_a_cut_start_is_listed_by_a_new_controller(
        self, world: SiteWorld
    ) -> None:
        """Check that no drone of a cancelled batch runs unlisted."""
        orders = [_order(world, _new_id(world)) for _ in range(3)]
        async with world.site() as site:
            task = asyncio.ensure_future(site.start(orders))
            await asyncio.sleep(0.002)
            task.cancel()
            await asyncio.wait([task], timeout=world.longest_wait_s)
        async with world.site() as site:
            await asyncio.sleep(min(1.0, world.longest_wait_s / 4))
            shown = {d for d, drone in (await site.poll()).drones.items() if drone.state in _ALIVE}
            running = {o.drone_id for o in orders if await world.alive(o.drone_id)}
            assert running <= shown
            await _end(world, site, [order.drone_id for order in orders])

    async def test_calls_side_by_side_do_not_disturb_each_other(self, world: SiteWorld) -> None:
        """Check that starts and polls may overlap."""
        ids = [_new_id(world) for _ in range(3)]
        async with world.site() as site:
            async with asyncio.TaskGroup() as group:
                starts = [
                    group.create_task(site.start([_order(world, drone_id)])) for drone_id in ids
                ]
                polls = [group.create_task(site.poll()) for _ in range(3)]
            _assert_all_done([start.result()[0] for start in starts])
            assert all(poll.result().site == world.kind.site for poll in polls)
            assert set(ids) <= (await site.poll()).drones.keys()
            await _end(world, site, ids)

    async def test_trouble_comes_as_one_of_the_four_errors_or_as_results(
        self, world: SiteWorld
    ) -> None:
        """Check that an unreachable site raises an adapter error, never returns an empty listing."""
        drone_id = _new_id(world)
        async with world.site() as site:
            async with world.broken():
                # an empty listing would be a lie
                assert isinstance(await outcome(site.poll()), AdapterError)
                await _assert_not_done(site.start([_order(world, drone_id)]))
                # nor is it known to be gone
                await _assert_not_done(site.stop([StopOrder(drone_id, "")]))
            await eventually("the site is back", lambda: _answers(site), world.longest_wait_s)
            # not `OK` while a start without a reply may come
            await site.stop([StopOrder(drone_id, "", kill=True)])
            await _gone(world, site, drone_id)

    async def test_a_start_whose_reply_is_lost_is_unsure_and_never_refused(
        self, world: SiteWorld
    ) -> None:
        """Check that a lost reply is ``UNKNOWN``: the drone may run."""
        await skip_unless_supported(world.lost_replies)
        order = _order(world, _new_id(world))
        async with world.site() as site:
            async with world.lost_replies():
                results = await outcome(site.start([order]))
                if isinstance(results, AdapterError):
                    assert isinstance(results, OutcomeUnknownError), (
                        f"{results!r} claims that nothing was done"
                    )
                else:
                    assert results[0].answer is not OrderOutcome.REJECTED, (
                        "REJECTED claims that nothing was done"
                    )
                    if results[0].answer is OrderOutcome.UNKNOWN:
                        _assert_has_fault(results[0])
            running = await _listed(world, site, order.drone_id, RemoteState.RUNNING)
            [again] = await site.start([order])
            assert (again.answer, again.remote_id) == (OrderOutcome.OK, running.remote_id)
            await _runs_once(world, order.drone_id)
            await _end(world, site, [order.drone_id])

    async def test_all_pages_of_a_listing_are_read(self, world: SiteWorld) -> None:
        """Check that a listing in pages is whole, while drones come and go as well."""
        await skip_unless_supported(world.pages)
        ids = [_new_id(world) for _ in range(3)]
        async with world.site() as site:
            await _start(world, site, ids)

            async def whole() -> bool:
                view = await outcome(site.poll())
                assert isinstance(view, AdapterError) or set(ids) <= view.drones.keys()
                # a change between two pages may be an error, but not always
                return not isinstance(view, AdapterError)

            async def asked() -> bool:
                return len(
                    await _done(site.stop([StopOrder(d, "", kill=True) for d in ids]))
                ) == len(ids)

            async with world.pages():
                await eventually("all pages are read", whole, world.longest_wait_s)
                await eventually("all are asked to leave", asked, world.longest_wait_s)
            for drone_id in ids:  # `not on the first page` is no proof that it is gone
                await _gone(world, site, drone_id)

    async def test_half_a_listing_is_never_taken_for_the_whole(self, world: SiteWorld) -> None:
        """Check that a listing that was cut off is an error."""
        await skip_unless_supported(world.cut_listings)
        ids = [_new_id(world) for _ in range(3)]
        async with world.site() as site:
            await _start(world, site, ids)
            async with world.cut_listings():
                view = await outcome(site.poll())
                assert isinstance(view, AdapterError) or set(ids) <= set(view.drones)
                stopped = await _done(
                    site.stop([StopOrder(drone_id, "", kill=True) for drone_id in ids])
                )
            for drone_id in stopped:  # `not in the listing` is no proof that it is gone
                await _gone(world, site, drone_id)
            await eventually("the site is back", lambda: _answers(site), world.longest_wait_s)
            await _end(world, site, ids)

    async def test_a_rejected_start_makes_nothing(self, world: SiteWorld) -> None:
        """Check that a start that the site refuses is ``REJECTED``, with its fault, and leaves nothing."""
        await skip_unless_supported(world.refused_starts)
        order = _order(world, _new_id(world))
        async with world.site() as site:
            async with world.refused_starts():
                results = await outcome(site.start([order]))
                if isinstance(results, AdapterError):
                    assert isinstance(results, RejectedError | AuthError)
                else:
                    assert results[0].answer is OrderOutcome.REJECTED
                    _assert_has_fault(results[0])
                assert order.drone_id not in (await site.poll()).drones
                assert await world.alive(order.drone_id) == 0
                with suppress(NotSupportedError):
                    assert await world.objects(order.drone_id) == []
            [result] = await site.start([order])  # the same drone may be started once there is room
            assert result.answer is OrderOutcome.OK
            await _listed(world, site, order.drone_id, RemoteState.RUNNING)
            await _end(world, site, [order.drone_id])

    @pytest.mark.parametrize("status", [403, 500, 503])
    async def test_a_stop_that_the_site_does_not_carry_out_is_not_done(
        self, world: SiteWorld, status: int
    ) -> None:
        """Check that a stop that the site refuses is not ``OK``, and the drone runs on."""
        await skip_unless_supported(lambda: world.refused_stops(status))
        drone_id = _new_id(world)
        async with world.site() as site:
            [running] = await _start(world, site, [drone_id])
            async with world.refused_stops(status):
                for kill in (False, True):
                    await _assert_not_done(
                        site.stop([StopOrder(drone_id, running.remote_id, kill)])
                    )
                assert await world.alive(drone_id) == 1
            await _end(world, site, [drone_id])

    async def test_nothing_of_an_ended_drone_is_left_at_the_site(self, world: SiteWorld) -> None:
        """Check that files, ports and volumes of ended drones are removed."""
        stopped = _new_id(world)
        leaving = _new_id(world)
        try:
            assert await world.objects(stopped) == []
            forgetful = world.forgetful_site()
        except NotSupportedError as error:
            pytest.skip(str(error))
        async with forgetful as site:
            orders = [_order(world, stopped), _order(world, leaving, bootstrap=world.exiting(0))]
            _assert_all_done(await site.start(orders))
            await _listed(world, site, stopped, RemoteState.RUNNING)
            await _end(world, site, [stopped])

            async def ask() -> bool:
                await site.poll()  # an adapter deletes after a poll
                return not await world.objects(stopped) and not await world.objects(leaving)

            await eventually(
                "the adapter has deleted what it made", ask, world.longest_wait_s + world.grace_s
            )

    async def test_nothing_asked_for_is_nothing_done(self, world: SiteWorld) -> None:
        """Check that empty batches have empty results, and an empty site an empty view."""
        async with world.site() as site:
            assert list(await site.start([])) == []
            assert list(await site.stop([])) == []
            view = await site.poll()
            assert (view.site, dict(view.drones)) == (world.kind.site, {})
            assert abs(view.taken_at - time.time()) < world.longest_wait_s + 5


_serials = itertools.count(1)


def _new_id(world: SiteWorld) -> DroneId:
    """Return an id that no test has used: a controller never uses one twice, and adapters rely on that."""
    return DroneId(f"{world.controller}-abcd-{next(_serials)}")


def _order(
    world: SiteWorld,
    drone_id: DroneId,
    kind: DroneType | None = None,
    bootstrap: Bootstrap | None = None,
) -> StartOrder:
    return StartOrder(
        drone_id, kind or world.kind, 600.0, world.grace_s, bootstrap or world.living()
    )


def _assert_all_done(results: OrderResults) -> None:
    done = [(OrderOutcome.OK, None)] * len(results)
    assert [(r.answer, r.fault) for r in results] == done  # a failure has its fault in the message


def _assert_has_fault(result: OrderResult) -> None:
    assert result.fault is not None
    assert result.fault.message
    assert abs(result.fault.at - time.time()) < 60


async def _assert_not_done(call: Awaitable[OrderResults]) -> None:
    results = await outcome(call)
    if not isinstance(results, AdapterError):
        assert [result.answer is OrderOutcome.OK for result in results] == [False]
        _assert_has_fault(results[0])


async def _done(call: Awaitable[OrderResults]) -> Sequence[DroneId]:
    """Return the drones whose order was carried out; none if the call raised one of the four errors."""
    results = await outcome(call)
    if isinstance(results, AdapterError):
        return []
    return [result.drone_id for result in results if result.answer is OrderOutcome.OK]


async def _answers(site: Site) -> bool:
    return not isinstance(await outcome(site.poll()), AdapterError)


async def _start(world: SiteWorld, site: Site, drone_ids: Sequence[DroneId]) -> list[RemoteDrone]:
    await site.start([_order(world, drone_id) for drone_id in drone_ids])
    return [await _listed(world, site, drone_id, RemoteState.RUNNING) for drone_id in drone_ids]


async def _listed(
    world: SiteWorld, site: Site, drone_id: DroneId, state: RemoteState
) -> RemoteDrone:
    async def ask() -> RemoteDrone | None:
        drone = (await site.poll()).drones.get(drone_id)
        return drone if drone is not None and drone.state is state else None

    return await eventually(f"{drone_id} is listed as {state}", ask, world.longest_wait_s)


async def _runs_once(world: SiteWorld, drone_id: DroneId) -> None:
    """Wait until exactly one copy of the drone runs."""

    async def ask() -> bool:
        return await world.alive(drone_id) == 1

    await eventually(f"{drone_id} runs exactly once", ask, world.longest_wait_s)


async def _gone(world: SiteWorld, site: Site, drone_id: DroneId) -> None:
    async def ask() -> bool:
        drone = (await site.poll()).drones.get(drone_id)
        listed = drone is not None and drone.state in _ALIVE
        return (
            not listed
            and not await world.alive(drone_id)
            and not await world.anything_left(drone_id)
        )

    await eventually(f"nothing is left of {drone_id}", ask, world.longest_wait_s + world.grace_s)


async def _end(world: SiteWorld, site: Site, drone_ids: Sequence[DroneId]) -> None:
    results = await site.stop([StopOrder(drone_id, "", kill=True) for drone_id in drone_ids])
    _assert_all_done(results)
    for drone_id in drone_ids:
        await _gone(world, site, drone_id)
