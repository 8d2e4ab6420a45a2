"""Ids that are never given twice, orders whose answer is late or missing, and looks that are repeated or left out."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest

from provisioner import model
from provisioner.controller.actuation import OrderBatch, OrderTerms, Pools, carry_out
from provisioner.controller.compute_thread import ComputeThread
from provisioner.controller.leadership import Leadership
from provisioner.controller.loop import Controller
from provisioner.controller.polling import Poller, PollTarget
from provisioner.controller.serials import SERIAL_MARGIN, SERIALS_MISSED
from provisioner.controller.view_doubts import UNKNOWN_SLOTS
from provisioner.interfaces import OutcomeUnknownError, UnavailableError
from provisioner.planner import decide
from provisioner.services.pool import ServerPool
from provisioner.simulator.loop import VirtualClock
from tests.controller.world import EPOCH, GPU, Place, Pool, in_virtual_time, run_for, serving
from tests.store.story import TemporaryStore

S = model.DroneState


def busy(drone_id: str, at: float) -> model.Slot:
    return model.Slot(model.DroneId(drone_id), model.SlotState.BUSY, at, jobs=1)


def listed(drone_id: str, ended: bool = False) -> model.RemoteDrone:
    end = model.RemoteEnd(model.EndKind.EXITED, EPOCH - 500, 0) if ended else None
    state = model.RemoteState.ENDED if ended else model.RemoteState.RUNNING
    return model.RemoteDrone(model.DroneId(drone_id), state, f"r-{drone_id}", end=end)


def spied(controller: Controller) -> list[model.Snapshot]:
    """The snapshots that the controller decides on from now on."""
    seen: list[model.Snapshot] = []
    controller.planner = lambda snapshot: seen.append(snapshot) or decide(snapshot)
    return seen


@pytest.mark.parametrize("ended", [False, True])
@in_virtual_time
async def test_after_a_restored_backup_no_id_is_given_twice_and_the_controller_goes_on(
    ended: bool,
) -> None:
    """Drones 1 and 2 were started after the backup was taken; a new drone would have their ids."""
    here, store = Place(), TemporaryStore("kit", 1e9, 10)
    for number in (1, 2):
        drone_id = model.DroneId(f"kit-mem0-{number}")
        here.running[drone_id] = listed(drone_id, ended)
    async with serving(here, store=store) as controller:
        report = await controller.tick()
        assert report.faults == ()
        await run_for(controller, 30)
    first = 3 + SERIAL_MARGIN
    assert [line for line in here.told if line.startswith("start")] == [f"start kit-mem0-{first}"]
    assert not [line for line in here.told if line.startswith("stop")], (
        "their jobs run on until an operator decides"
    )
    assert store.drones.keys() == {f"kit-mem0-{first}"}
    assert store.next_serial == first + 1
    found = [] if ended else ["orphan.found"]
    assert sorted(e.name for e in store.reader().events()) == [*found, "store.outdated"]


class ForgedSlots(Pool):
    """A pool with one slot, of a drone that a user invented."""

    drone_id = ""

    async def poll(self, types: object) -> model.OverlayView:
        view = await super().poll([])
        return replace(view, slots=(busy(self.drone_id, view.taken_at),))


class ForgedListing(Place):
    """A site with one ended drone that a user invented."""

    drone_id = ""

    async def poll(self) -> model.SiteView:
        view, over = await super().poll(), listed(self.drone_id, ended=True)
        return replace(view, drones={**view.drones, over.drone_id: over})


@pytest.mark.parametrize("forger", [ForgedSlots, ForgedListing])
@pytest.mark.parametrize("prefix", ["kit-mem0", "kit-othr", "other-mem0"])
@in_virtual_time
async def test_forged_ids_raise_the_serial_numbers_once_and_only_with_our_prefix(
    forger: type[ForgedSlots | ForgedListing], prefix: str
) -> None:
    """Each forged id was believed up to a million beyond the last: a new one at each tick raised them for ever."""
    forging, store = forger(), TemporaryStore("kit", 1e9, 10)
    here = forging if isinstance(forging, Place) else Place()
    async with serving(
        here, store=store, pool=forging if isinstance(forging, Pool) else None
    ) as controller:
        for _ in range(5):
            forging.drone_id = f"{prefix}-{store.next_serial + SERIALS_MISSED - 1}"
            await controller.tick()
            await asyncio.sleep(10.0)
    ours = prefix == "kit-mem0"
    started = [line for line in here.told if line.startswith("start")]
    assert started[0] == f"start kit-mem0-{1 + SERIALS_MISSED + SERIAL_MARGIN if ours else 1}"
    assert store.next_serial <= (1 + SERIALS_MISSED + SERIAL_MARGIN if ours else 1) + 5
    assert [e.name for e in store.reader().events()].count("store.outdated") == ours


@in_virtual_time
async def test_slots_of_thousands_of_unknown_drones_are_left_out_of_the_view() -> None:
    real = model.DroneId("kit-mem0-1")

    class Forger(Pool):
        async def poll(self, types: object) -> model.OverlayView:
            view = await super().poll([])
            ids = (*(f"kit-x-{n}" for n in range(UNKNOWN_SLOTS + 500)), real)
            return replace(view, slots=tuple(busy(each, view.taken_at) for each in ids))

    here = Place(running={real: listed(real)})
    async with serving(here, pool=Forger()) as controller:
        seen = spied(controller)
        await controller.tick()
    view = seen[-1].overlay.view
    assert view is not None
    assert len(view.slots) == UNKNOWN_SLOTS + 1
    assert real in {slot.drone_id for slot in view.slots}
    assert any(
        notice.startswith("500 slots of unknown drones are left out") for notice in view.notices
    )


@in_virtual_time
async def test_an_order_that_was_long_under_way_is_not_written_off_when_its_answer_does_not_come() -> (
    None
):
    """``settle`` counts from the answer, or from when it was clear that none comes, not from the plan."""

    class Slow(Place):
        """Takes an order, answers too late, and lists the drone 30 s after that."""

        async def start(self, orders: Sequence[model.StartOrder]) -> Sequence[model.OrderResult]:
            self.told += [f"start {order.drone_id}" for order in orders]
            for each in orders:
                later = asyncio.get_running_loop().call_later
                later(100.0, self.running.__setitem__, each.drone_id, listed(each.drone_id))
            await asyncio.sleep(70.0)
            return [model.OrderResult(order.drone_id, model.OrderOutcome.OK) for order in orders]

    stray, store = model.DroneId("kit-old1-9"), TemporaryStore("kit", 1e9, 10)
    here = Slow(running={stray: listed(stray)}, stop_wire=lambda: asyncio.sleep(58.0))
    async with serving(
        here, store=store, pool=Pool(admission_wire=lambda: asyncio.sleep(28.0))
    ) as controller:
        await run_for(controller, 320)
    assert [line for line in here.told if line.startswith("start")] == ["start kit-mem0-1"]
    assert store.drones[model.DroneId("kit-mem0-1")].state is S.BOOTING


@in_virtual_time
async def test_an_order_without_a_receipt_may_have_been_carried_out() -> None:
    class Mute(Place):
        async def start(self, orders: object) -> list[model.OrderResult]:
            return []

    order = model.StartOrder(model.DroneId("kit-mem0-1"), GPU, 60.0, 30.0)
    answers = await carry_out(
        OrderBatch("here", (order,)),
        Mute(),
        Pools(Pool()),
        OrderTerms(VirtualClock(), Leadership()),
    )
    assert [(r.drone_id, r.answer) for r in answers.starts] == [
        (order.drone_id, model.OrderOutcome.UNKNOWN)
    ]


@pytest.mark.parametrize(
    ("fault", "looks"), [(None, 1), (model.Fault(model.FaultKind.DOWN, "no route", EPOCH), 0)]
)
@in_virtual_time
async def test_a_banned_site_rests_only_if_it_cannot_be_looked_at(
    fault: model.Fault | None, looks: int
) -> None:
    asked = []

    async def poll() -> model.SiteView:
        asked.append("here")
        return model.SiteView("here", EPOCH)

    async def pool() -> model.OverlayView:
        return model.OverlayView(EPOCH)

    banned = model.Breaker(model.Scope("here"), model.BreakerState.BANNED, until=EPOCH + 100)
    async with asyncio.TaskGroup() as group:
        sites = {"here": PollTarget("here", poll, 5.0, fault=fault)}
        overlay, inline = PollTarget("overlay", pool, 5.0), ComputeThread(threaded=False)
        await Poller(group, VirtualClock(), inline, overlay, sites).poll({"here": banned})
    assert len(asked) == looks


HERE = model.SiteView("here", EPOCH)
DOWN, DOWN_STILL = UnavailableError("no route"), UnavailableError("no route, still")
SLOW_DOWN = UnavailableError("too many requests", model.FaultKind.THROTTLED)
UNSURE = OutcomeUnknownError("connection reset")


@pytest.mark.parametrize(
    ("answers", "pauses", "fault", "view"),
    [
        pytest.param((HERE,), [], None, HERE, id="an answer"),
        pytest.param((DOWN, HERE), [0.2], None, HERE, id="an answer at the second attempt"),
        pytest.param(
            (HERE, DOWN, DOWN_STILL),
            [0, 0.2],
            "no route, still",
            HERE,
            id="the newest error, and the view stays",
        ),
        # The deadline of all attempts does not say why there was no answer.
        pytest.param(
            (DOWN, None), [0.2], "no route", None, id="the error before an attempt that hangs"
        ),
        pytest.param((SLOW_DOWN,), [], "too many requests", None, id="a site that asks to wait"),
        pytest.param((UNSURE,), [], "connection reset", None, id="an error of another kind"),
    ],
)
@in_virtual_time
async def test_a_poll_without_an_answer_is_repeated_once_within_its_deadline(
    answers: tuple[model.SiteView | Exception | None, ...],
    pauses: list[float],
    fault: str | None,
    view: model.SiteView | None,
) -> None:
    left, asked_s = list(answers), list[float]()

    async def poll() -> model.SiteView:
        asked_s.append(asyncio.get_running_loop().time())
        answer = left.pop(0)
        if answer is None:
            await asyncio.sleep(60)
        if isinstance(answer, Exception):
            raise answer
        return HERE

    target = PollTarget("here", poll, 5.0)
    while left:
        await target.once(VirtualClock(), ComputeThread(threaded=False))
    assert (target.fault and target.fault.message, target.view) == (fault, view)
    assert [b - a for a, b in itertools.pairwise(asked_s)] == pytest.approx(pauses)


async def test_drones_for_jobs_get_the_address_of_services_and_servers_do_not() -> None:
    servers = ServerPool()
    servers.job_environment = {"DRONE_INFERENCE": "*=10.0.0.1:8001"}
    pools = Pools(Pool(), servers)
    order = model.StartOrder(model.DroneId("kit-mem0-1"), GPU, 60.0, 30.0)
    server = model.InferenceServer(service="cms", models=("deepmet:3",), command="true")

    of_jobs = await pools.bootstrap(order)
    of_server = await pools.bootstrap(replace(order, type=replace(GPU, server=server)))

    assert of_jobs.env["DRONE_INFERENCE"] == "*=10.0.0.1:8001"
    assert "DRONE_INFERENCE" not in of_server.env
