"""The world by itself, with a script in the controller's place: what is told and what is true."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from provisioner.interfaces import AuthError, OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.model import (
    DrainMode,
    DroneId,
    DroneType,
    EndKind,
    FaultKind,
    OrderOutcome,
    RemoteState,
    SlotState,
    StartOrder,
    StopOrder,
)
from provisioner.simulator.drones import DroneScript, SiteBehaviour
from provisioner.simulator.faults import OVERLAY, HardwareFault, HardwareFaultKind, ServiceFault, ServiceFaultKind
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.loop import Uniform
from provisioner.simulator.pool import PoolBehaviour
from provisioner.simulator.sites import GpuPool
from provisioner.simulator.world import World
from tests.simulator.facilities import STEADY, in_world, played, small
from tests.simulator.owner_queue import OwnerSteps

KIT = small(behaviour=STEADY)


def order(name: str, kind: DroneType = KIT.types[0], *, idle_s: float = 600.0) -> StartOrder:
    return StartOrder(DroneId(name), kind, idle_timeout_s=idle_s, grace_s=5.0)


def jobs(count: int, *, duration_s: float = 60.0, at_s: float = 0.0, **wants: Any) -> tuple[SimulatedJob, ...]:
    return tuple(SimulatedJob(at_s, duration_s, JobRequirements(**wants)) for _ in range(count))


# ------------------------------------------------------------------------------------------------ the straight way


def test_a_drone_boots_joins_works_and_leaves_when_idle() -> None:
    async def script(world: World) -> list[str]:
        site, pool, seen = world.sites["kit"], world.overlay, []
        receipts = await site.start([order("d-1", idle_s=100.0)])
        assert [r.answer for r in receipts] == [OrderOutcome.OK]
        for until_s in (10, 33, 45, 110, 210, 260):
            await asyncio.sleep(until_s - asyncio.get_running_loop().time())
            remote = (await site.poll()).drones[DroneId("d-1")]
            slots = (await pool.poll(world.types)).slots
            seen.append(f"{remote.state} {slots[0].state if slots else '-'}")
        world.close()
        assert remote.end is not None
        assert (remote.end.kind, remote.end.exit_code) == (EndKind.EXITED, 0)
        return seen

    seen = in_world(script, [KIT], jobs=jobs(1))
    assert seen == ["running -", "running checking", "running busy", "running idle", "ended -", "ended -"]


@played(KIT, jobs=jobs(1))
async def test_the_books_tell_where_the_gpu_time_went(world: World) -> None:
    await world.sites["kit"].start([order("d-1", idle_s=100.0)])
    await asyncio.sleep(400.0)
    world.close()
    metrics, spent = world.metrics, world.metrics.gpu_seconds
    # granted at 0.1; took jobs at 35.1; matched at 40; worked 60 s; idle 100 s; released 2 s later
    assert spent.held == pytest.approx(201.9)
    assert spent.boot == pytest.approx(35.0)
    assert spent.good == pytest.approx(60.0)
    assert spent.badput == 0.0
    assert spent.release == pytest.approx(2.0)
    assert spent.idle == pytest.approx(201.9 - 97.0)
    assert metrics.waits_s == [pytest.approx(40.0)]
    assert metrics.accepted == {"kit": 1}
    assert metrics.ends == {("kit", EndKind.EXITED): 1}


@played(KIT, jobs=jobs(3) + jobs(2, gpu_milli=500))
async def test_jobs_of_one_kind_are_one_class_and_fresh_until_negotiated(world: World) -> None:
    early = await world.overlay.poll(world.types)
    assert [(c.fresh, c.waiting, c.running) for c in early.classes] == [(3, 0, 0), (2, 0, 0)]
    assert early.negotiated_at == 0.0
    await asyncio.sleep(30.0)
    later = await world.overlay.poll(world.types)
    assert [(c.fresh, c.waiting, c.running) for c in later.classes] == [(0, 3, 0), (0, 2, 0)]
    assert later.negotiated_at == 20.0
    assert [c.gpu_milli for c in later.classes] == [1000, 500]


@played(KIT, jobs=jobs(5, gpu_milli=300, duration_s=500.0))
async def test_small_jobs_share_a_gpu_and_what_is_left_is_told(world: World) -> None:
    await world.sites["kit"].start([order("d-1")])
    await asyncio.sleep(61.0)
    view = await world.overlay.poll(world.types)
    (slot,) = view.slots
    assert (slot.jobs, slot.free_gpu_milli, slot.free_cpus) == (3, 100, 5)
    assert [(c.waiting, c.running) for c in view.classes] == [(2, 3)]


def test_the_oldest_job_goes_first_but_priority_before_age() -> None:
    async def script(world: World) -> list[str]:
        await world.sites["kit"].start([order("d-1")])
        running = []
        for _ in range(3):
            await asyncio.sleep(100.0)
            view = await world.overlay.poll(world.types)
            running += [c.owner for c in view.classes if c.running]
        return running

    three = (
        SimulatedJob(0.0, 90.0, JobRequirements(owner="first")),
        SimulatedJob(1.0, 90.0, JobRequirements(owner="second")),
        SimulatedJob(2.0, 90.0, JobRequirements(owner="urgent", priority=5)),
    )
    assert in_world(script, [KIT], jobs=three) == ["urgent", "first", "second"]


def test_a_job_goes_only_where_it_fits() -> None:
    async def script(world: World) -> None:
        await world.sites["kit"].start([order("d-1")])
        await asyncio.sleep(300.0)
        view = await world.overlay.poll(world.types)
        by_owner = {c.owner: c for c in view.classes}
        assert by_owner["large"].waiting == by_owner["new"].waiting == by_owner["picky"].waiting == 1
        assert by_owner["picky"].refuses[world.types[0].key].dimension == "gpu_model"
        assert not by_owner["large"].refuses
        assert world.overlay.done == 1

    four = (
        SimulatedJob(0.0, 9.0, JobRequirements(owner="large", vram_mib=80000)),
        SimulatedJob(0.0, 9.0, JobRequirements(owner="new", capability=90)),
        SimulatedJob(0.0, 9.0, JobRequirements(owner="picky", gpu_model="B200")),
        SimulatedJob(0.0, 9.0, JobRequirements(owner="plain")),
    )
    in_world(script, [KIT], jobs=four)


# ------------------------------------------------------------------------------------------------------- leaving


@pytest.mark.parametrize(
    ("mode", "done", "lost"), [(DrainMode.PEACEFUL, 1, 0), (DrainMode.GRACEFUL, 0, 1), (DrainMode.FAST, 0, 1)]
)
def test_drain_modes_differ_in_what_becomes_of_the_job(mode: DrainMode, done: int, lost: int) -> None:
    async def script(world: World) -> None:
        await world.sites["kit"].start([order("d-1")])
        await asyncio.sleep(60.0)
        (receipt,) = await world.overlay.drain([DroneId("d-1")], mode, "a test")
        assert receipt.answer is OrderOutcome.OK
        await asyncio.sleep(100.0)
        remote = (await world.sites["kit"].poll()).drones[DroneId("d-1")]
        assert remote.state is RemoteState.ENDED
        assert (world.overlay.done, world.metrics.attempts_lost, world.overlay.waiting) == (done, lost, lost)

    in_world(script, [KIT], jobs=jobs(1))


@played(KIT, jobs=jobs(2))
async def test_a_draining_drone_can_be_taken_back_into_service(world: World) -> None:
    pool, drone = world.overlay, DroneId("d-1")
    await world.sites["kit"].start([order("d-1")])
    await asyncio.sleep(60.0)
    await pool.drain([drone], DrainMode.PEACEFUL, "a test")
    assert (await pool.poll(world.types)).slots[0].state is SlotState.DRAINING
    await pool.drain([drone], DrainMode.RESUME, "wanted again")
    await asyncio.sleep(200.0)
    assert pool.done == 2
    assert (await pool.poll(world.types)).slots[0].state is SlotState.IDLE


@played(KIT, jobs=jobs(1))
async def test_a_job_that_was_cut_short_begins_anew_to_wait_and_is_as_old_as_before(world: World) -> None:
    pool = world.overlay
    await world.sites["kit"].start([order("d-1")])
    before = (await pool.poll(world.types)).classes[0]
    assert before.idle_at == before.oldest_at
    await asyncio.sleep(60.0)
    await pool.drain([DroneId("d-1")], DrainMode.FAST, "a test")
    await asyncio.sleep(60.0)
    after = (await pool.poll(world.types)).classes[0]
    assert after.waiting == 1 and after.oldest_at == before.oldest_at
    assert 60.0 <= after.idle_at - before.idle_at <= 120.0
    await world.sites["kit"].start([order("d-2")])
    await asyncio.sleep(200.0)
    assert pool.done == 1 and not any(each.idle_at for each in (await pool.poll(world.types)).classes)


@played(KIT, jobs=jobs(1))
async def test_a_stopped_drone_gives_its_job_a_grace_and_the_job_starts_again_from_nothing(world: World) -> None:
    site = world.sites["kit"]
    await site.start([order("d-1")])
    await asyncio.sleep(60.0)
    await site.stop([StopOrder(DroneId("d-1"), "kit-1")])
    assert (await site.poll()).drones[DroneId("d-1")].state is RemoteState.RUNNING
    await asyncio.sleep(20.0)
    end = (await site.poll()).drones[DroneId("d-1")].end
    assert end is not None
    assert end.kind is EndKind.STOPPED
    assert world.overlay.waiting == 1
    assert world.metrics.gpu_seconds.badput == pytest.approx(25.3)


@played(KIT)
async def test_stopping_what_is_gone_is_success_and_a_second_start_is_the_same_drone(world: World) -> None:
    site = world.sites["kit"]
    (nobody,) = await site.stop([StopOrder(DroneId("never-was"), "")])
    assert nobody.answer is OrderOutcome.OK
    (first,) = await site.start([order("d-1")])
    (second,) = await site.start([order("d-1")])
    assert first == second
    assert world.metrics.accepted == {"kit": 1}
    assert world.metrics.doubles == []


@played(KIT, jobs=jobs(1, duration_s=600.0))
async def test_a_drone_that_perishes_leaves_a_stale_slot_and_a_job_that_comes_back(world: World) -> None:
    site, pool = world.sites["kit"], world.overlay
    await site.start([order("d-1")])
    await asyncio.sleep(60.0)
    await site.stop([StopOrder(DroneId("d-1"), "kit-1", kill=True)])
    await asyncio.sleep(20.0)
    view = await pool.poll(world.types)
    assert [(s.state, s.heard_at < 61.0) for s in view.slots] == [(SlotState.BUSY, True)]
    assert (pool.running, pool.waiting) == (1, 0)  # the pool does not know yet
    await asyncio.sleep(60.0)
    assert (pool.running, pool.waiting) == (0, 1)
    await asyncio.sleep(900.0)
    assert (await pool.poll(world.types)).slots == ()


def test_a_walltime_ends_a_drone() -> None:
    short = replace(KIT, types=(replace(KIT.types[0], walltime_s=300.0),))

    async def script(world: World) -> None:
        await world.sites["kit"].start([order("d-1", short.types[0])])
        await asyncio.sleep(60.0)
        assert (await world.overlay.poll(world.types)).slots[0].retires_at == pytest.approx(295.1)
        await asyncio.sleep(250.0)
        assert world.drones == []
        assert world.overlay.waiting == 2  # one was cut short, one says that it needs more time than there was

    in_world(script, [short], jobs=jobs(1, duration_s=900.0) + jobs(1, walltime_s=290.0))


# ---------------------------------------------------------------------------------------- hardware, owner, bad drones


def test_what_does_not_fit_waits_in_the_queue_or_is_refused() -> None:
    async def queues(world: World) -> None:
        site = world.sites["kit"]
        await site.start([order(f"d-{n}") for n in range(6)])
        states = [d.state for d in (await site.poll()).drones.values()]
        assert states == [RemoteState.RUNNING] * 4 + [RemoteState.PENDING] * 2
        await site.stop([StopOrder(DroneId("d-0"), "", kill=True)])
        states = [d.state for d in (await site.poll()).drones.values()]
        assert states == [RemoteState.ENDED] + [RemoteState.RUNNING] * 4 + [RemoteState.PENDING]

    async def refuses(world: World) -> None:
        receipts = await world.sites["kit"].start([order(f"d-{n}") for n in range(6)])
        assert [r.answer for r in receipts] == [OrderOutcome.OK] * 4 + [OrderOutcome.REJECTED] * 2
        assert {r.fault.kind for r in receipts if r.fault} == {FaultKind.CAPACITY}
        assert (await world.sites["kit"].poll()).free == {"gpu": 0}

    async def has_a_quota(world: World) -> None:
        receipts = await world.sites["kit"].start([order(f"d-{n}") for n in range(3)])
        assert [r.fault.kind if r.fault else None for r in receipts] == [None, None, FaultKind.QUOTA]

    in_world(queues, [KIT])
    in_world(refuses, [replace(KIT, queues=False)])
    in_world(has_a_quota, [replace(KIT, quota=2)])


def test_the_owner_pushes_out_the_youngest_and_gives_back_later() -> None:
    owned = replace(KIT, pools=(GpuPool("gpus", 4),), owner=OwnerSteps(((100.0, 3), (200.0, 0)), "gpus"))

    async def script(world: World) -> None:
        site = world.sites["kit"]
        for n in range(3):
            await site.start([order(f"d-{n}")])
            await asyncio.sleep(10.0)
        await asyncio.sleep(80.0)
        view = await site.poll()
        ends = {d.drone_id: d.end.kind for d in view.drones.values() if d.end}
        assert ends == {"d-1": EndKind.PREEMPTED, "d-2": EndKind.PREEMPTED}
        assert view.free == {"gpu": 0}
        await asyncio.sleep(100.0)
        assert (await site.poll()).free == {"gpu": 3}

    in_world(script, [owned])


def test_an_owner_that_gives_notice_is_seen_as_a_claim_meanwhile() -> None:
    owned = replace(KIT, pools=(GpuPool("gpus", 4),), owner=OwnerSteps(((100.0, 4),), "gpus", notice_s=60.0))

    async def script(world: World) -> None:
        site = world.sites["kit"]
        await site.start([order("d-0"), order("d-1")])
        await asyncio.sleep(110.0)
        view = await site.poll()
        assert [c.count for c in view.claims] == [2]
        await asyncio.sleep(100.0)
        assert (await site.poll()).claims == ()
        assert world.metrics.ends == {("kit", EndKind.PREEMPTED): 2}

    in_world(script, [owned], jobs=jobs(2, duration_s=1000.0))


def test_a_node_that_fails_takes_its_drones_and_a_downtime_takes_the_site() -> None:
    async def node(world: World) -> None:
        site = world.sites["kit"]
        await site.start([order(f"d-{n}") for n in range(4)])
        await asyncio.sleep(60.0)
        view = await site.poll()
        assert sum(d.state is RemoteState.RUNNING for d in view.drones.values()) == 2
        assert view.free == {"gpu": 0}
        await asyncio.sleep(100.0)
        assert (await site.poll()).free == {"gpu": 2}

    async def downtime(world: World) -> None:
        site = world.sites["kit"]
        await site.start([order("d-1")])
        assert (await site.poll()).downtime_at == 0.0
        await asyncio.sleep(30.0)
        assert (await site.poll()).downtime_at == 50.0
        await asyncio.sleep(30.0)
        with pytest.raises(UnavailableError):
            await site.poll()
        await asyncio.sleep(100.0)
        assert (await site.poll()).drones[DroneId("d-1")].state is RemoteState.ENDED

    in_world(node, [KIT], hardware_faults=[HardwareFault(HardwareFaultKind.NODE_FAILS, 50.0, 100.0, "kit", node=1)])
    in_world(
        downtime, [KIT], hardware_faults=[HardwareFault(HardwareFaultKind.DOWNTIME, 50.0, 100.0, "kit", notice_s=30.0)]
    )


def test_a_short_downtime_within_a_long_one_does_not_bring_the_site_back() -> None:
    """`--what-if 'topas down'` was undone by a downtime in the world file: the comparison said nonsense."""

    async def script(world: World) -> None:
        site = world.sites["kit"]
        for _ in range(3):
            await asyncio.sleep(50.0)
            with pytest.raises(UnavailableError):
                await site.poll()
        assert all(not machine.up for machine in site.machines)
        await asyncio.sleep(100.0)
        assert (await site.poll()).free == {"gpu": 4}

    in_world(
        script,
        [KIT],
        hardware_faults=[
            HardwareFault(HardwareFaultKind.DOWNTIME, 1.0, 200.0, "kit"),
            HardwareFault(HardwareFaultKind.DOWNTIME, 60.0, 20.0, "kit"),
            HardwareFault(HardwareFaultKind.NODE_FAILS, 70.0, 20.0, "kit", node=1),
        ],
    )


@pytest.mark.parametrize(
    ("habit", "slot", "remote"),
    [
        ("dies_young", None, RemoteState.ENDED),
        ("never_joins", None, RemoteState.RUNNING),
        ("hangs_in_check", SlotState.CHECKING, RemoteState.RUNNING),
        ("matches_nothing", SlotState.IDLE, RemoteState.RUNNING),
    ],
)
def test_bad_drones_each_fail_in_their_own_way(habit: str, slot: SlotState | None, remote: RemoteState) -> None:
    bad = replace(KIT, behaviour=replace(STEADY, **{habit: 1.0}))

    async def script(world: World) -> None:
        await world.sites["kit"].start([order("d-1")])
        await asyncio.sleep(100.0)
        slots = (await world.overlay.poll(world.types)).slots
        assert [s.state for s in slots] == ([slot] if slot else [])
        assert (await world.sites["kit"].poll()).drones[DroneId("d-1")].state is remote
        assert world.overlay.done == 0

    in_world(script, [bad], jobs=jobs(1))


def test_a_black_hole_eats_jobs_and_none_is_done() -> None:
    bad = replace(KIT, behaviour=replace(STEADY, eats_jobs=1.0))

    async def script(world: World) -> None:
        await world.sites["kit"].start([order("d-1")])
        await asyncio.sleep(100.0)
        (slot,) = (await world.overlay.poll(world.types)).slots
        assert slot.jobs_started > 5
        assert world.overlay.done == 0
        assert world.jobs_astray() == 0

    in_world(script, [bad], jobs=jobs(3))


def test_a_fate_depends_on_the_drone_not_on_who_came_before() -> None:
    behaviour = SiteBehaviour(boot=Uniform(1.0, 1000.0), dies_young=0.5)
    alone = DroneScript.drawn(behaviour, 3, "kit", DroneId("d-7"))
    crowd = {n: DroneScript.drawn(behaviour, 3, "kit", DroneId(f"d-{n}")) for n in (9, 8, 7)}
    assert crowd[7] == alone
    assert len({script.boot_s for script in crowd.values()}) == 3


# ---------------------------------------------------------------------------------------------------- the bad wire


@pytest.mark.parametrize(
    ("trouble", "error"),
    [
        (ServiceFaultKind.DOWN, UnavailableError),
        (ServiceFaultKind.DENIED, AuthError),
        (ServiceFaultKind.QUOTA, RejectedError),
        (ServiceFaultKind.CAPACITY, RejectedError),
        (ServiceFaultKind.THROTTLED, RejectedError),
        (ServiceFaultKind.ORDER_LOST, OutcomeUnknownError),
        (ServiceFaultKind.BUG, KeyError),
    ],
)
def test_refusals_and_lost_orders_leave_nothing_behind(trouble: ServiceFaultKind, error: type[Exception]) -> None:
    async def script(world: World) -> None:
        with pytest.raises(error):
            await world.sites["kit"].start([order("d-1")])
        await asyncio.sleep(100.0)
        assert world.drones == []
        assert world.metrics.faults_met == {trouble: 1}

    in_world(script, [KIT], service_faults=[ServiceFault(trouble, verb="start")])


@pytest.mark.parametrize(
    ("trouble", "carried_out_s"),
    [(ServiceFaultKind.REPLY_HANGS, 1.0), (ServiceFaultKind.LATE, 90.0), (ServiceFaultKind.ORDER_HANGS, None)],
)
def test_a_caller_that_gave_up_does_not_know_what_happened(
    trouble: ServiceFaultKind, carried_out_s: float | None
) -> None:
    async def script(world: World) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60.0):
                await world.sites["kit"].start([order("d-1")])
        await asyncio.sleep(60.0)
        assert [round(body.accepted_s) <= carried_out_s for body in world.drones] == [True] * bool(carried_out_s)  # type: ignore[operator]

    in_world(script, [KIT], service_faults=[ServiceFault(trouble, verb="start", amount=90.0)])


@played(KIT, service_faults=[ServiceFault(ServiceFaultKind.REPLY_LOST, verb="start")])
async def test_a_lost_reply_is_an_order_carried_out(world: World) -> None:
    with pytest.raises(OutcomeUnknownError):
        await world.sites["kit"].start([order("d-1")])
    assert [drone.id for drone in world.drones] == ["d-1"]


@played(KIT)
async def test_an_order_once_sent_cannot_be_taken_back(world: World) -> None:
    task = asyncio.create_task(world.sites["kit"].start([order("d-1")]))  # type: ignore[arg-type]
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.sleep(1.0)
    assert [drone.id for drone in world.drones] == ["d-1"]


@played(KIT, service_faults=[ServiceFault(ServiceFaultKind.TWICE, verb="start", amount=20.0)])
async def test_a_doubled_delivery_is_still_one_drone(world: World) -> None:
    await world.sites["kit"].start([order("d-1")])
    await asyncio.sleep(100.0)
    assert world.metrics.accepted == {"kit": 1}
    assert world.metrics.doubles == []


def test_listings_lie_as_told_and_the_truth_stays() -> None:
    async def script(world: World) -> None:
        site = world.sites["kit"]
        await site.start([order(f"d-{n}") for n in range(4)])
        await asyncio.sleep(50.0)

        async def listed(at_s: float) -> dict[str, str]:
            await asyncio.sleep(at_s - asyncio.get_running_loop().time())
            view = await site.poll()
            assert view.taken_at == pytest.approx(at_s, abs=1.0)
            return {d: remote.state.value for d, remote in view.drones.items()}

        assert await listed(100.0) == {}
        partial = await listed(200.0)
        assert 0 < len(partial) < 4
        assert await listed(210.0) == partial
        assert set((await listed(300.0)).values()) == {"unknown"}
        before = await listed(400.0)
        await site.stop([StopOrder(DroneId("d-0"), "", kill=True)])
        assert await listed(410.0) == before
        assert (await listed(500.0))["d-0"] == "ended"
        await asyncio.sleep(100.0)
        assert (await site.poll()).free == {"gpu": 99}
        assert len(world.drones) == 3

    lies = [
        ServiceFault(ServiceFaultKind.EMPTY, "kit", "poll", 90.0, 110.0),
        ServiceFault(ServiceFaultKind.PARTIAL, "kit", "poll", 190.0, 220.0, amount=0.5),
        ServiceFault(ServiceFaultKind.UNKNOWN_STATES, "kit", "poll", 290.0, 310.0),
        ServiceFault(ServiceFaultKind.STALE, "kit", "poll", 390.0, 420.0),
        ServiceFault(ServiceFaultKind.FREE_WRONG, "kit", "poll", 590.0, 610.0, amount=99),
    ]
    in_world(script, [KIT], service_faults=lies)


@played(KIT, jobs=jobs(2), service_faults=[ServiceFault(ServiceFaultKind.HANG, OVERLAY, "poll", 40.0, 100.0)])
async def test_a_collector_that_is_silent_does_not_stop_the_jobs(world: World) -> None:
    await world.sites["kit"].start([order("d-1")])
    await asyncio.sleep(50.0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(20.0):
            await world.overlay.poll(world.types)
    await asyncio.sleep(200.0)
    assert world.overlay.done == 2


@played(KIT, jobs=jobs(1), hardware_faults=[HardwareFault(HardwareFaultKind.NO_NEGOTIATION, 10.0, 190.0)])
async def test_without_negotiation_nothing_starts(world: World) -> None:
    await world.sites["kit"].start([order("d-1")])
    await asyncio.sleep(190.0)
    assert (world.overlay.running, world.overlay.waiting) == (0, 1)
    await asyncio.sleep(40.0)
    assert (world.overlay.running, world.overlay.waiting) == (1, 0)


# ---------------------------------------------------------------------------------------------------------- the tally


def test_the_tally_sees_a_broken_cap_and_a_doubled_id() -> None:
    facilities = [small("kit", max_drones=2, behaviour=STEADY), small("hut", max_drones=9, behaviour=STEADY)]

    async def script(world: World) -> None:
        kit, hut = world.sites["kit"], world.sites["hut"]
        await kit.start([order("d-1"), order("d-2")])
        assert world.metrics.caps_broken == []
        await kit.start([order("d-3")])
        assert world.metrics.caps_broken == ["cap broken at 0.3 s: kit has 3 drones, limit 2"]
        await hut.start([order("d-1", facilities[1].types[0])])
        assert world.metrics.doubles == ["d-1"]
        assert world.metrics.peak("kit") == 3
        assert world.metrics.peak("all") == 4

    in_world(script, facilities)


def test_the_tally_sees_a_broken_gpu_budget() -> None:
    halves = replace(KIT, types=(replace(KIT.types[0], gpu_milli=500),), policy=replace(KIT.policy, max_gpu_milli=1000))

    async def script(world: World) -> None:
        await world.sites["kit"].start([order(f"d-{n}", halves.types[0]) for n in range(3)])
        assert [line.partition(": ")[2] for line in world.metrics.caps_broken] == ["kit has 1500 milli-GPU, limit 1000"]

    in_world(script, [halves])


@played(KIT, jobs=jobs(10_000), pool=PoolBehaviour())
async def test_a_pool_of_ten_thousand_jobs_is_not_counted_again_at_each_look(world: World) -> None:
    await asyncio.sleep(25.0)
    first = await world.overlay.poll(world.types)
    second = await world.overlay.poll(world.types)
    assert first.classes[0].waiting == 10_000
    assert first.classes[0] is second.classes[0]
