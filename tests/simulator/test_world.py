"""The world by itself, with a script in the controller's place: what is told and what is true."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from provisioner import model as m
from provisioner.interfaces import OutcomeUnknownError, RejectedError, UnavailableError
from provisioner.simulator.drones import (
    DroneScript,
    HardwareFault,
    HardwareFaultKind,
    SiteBehaviour,
)
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.loop import Uniform
from provisioner.simulator.owner import OwnerSeries
from provisioner.simulator.world import World
from tests.simulator.faults import FaultyScenario, ServiceFault, ServiceFaultKind
from tests.simulator.worlds import STEADY, in_world, played, small, until

KIT = small(behaviour=STEADY)
ONE = m.DroneId("d-1")


def order(name: str, kind: m.DroneType = KIT.types[0], *, idle_s: float = 600.0) -> m.StartOrder:
    return m.StartOrder(m.DroneId(name), kind, idle_timeout_s=idle_s, grace_s=5.0)


def orders(count: int, kind: m.DroneType = KIT.types[0]) -> list[m.StartOrder]:
    return [order(f"d-{n + 1}", kind) for n in range(count)]


def jobs(count: int, *, duration_s: float = 60.0, **wants: Any) -> tuple[SimulatedJob, ...]:
    return (SimulatedJob(0.0, duration_s, JobRequirements(**wants)),) * count


async def drone(world: World) -> m.RemoteDrone:
    return (await world.sites["kit"].poll()).drones[ONE]


async def states(world: World) -> list[m.RemoteState]:
    return [each.state for each in (await world.sites["kit"].poll()).drones.values()]


async def slots(world: World) -> list[m.SlotState]:
    return [slot.state for slot in (await world.overlay.poll(world.types)).slots]


@played(KIT, jobs=jobs(1))
async def test_a_drone_boots_joins_works_and_leaves_when_idle_and_its_gpu_time_is_known(
    world: World,
) -> None:
    (result,) = await world.sites["kit"].start([order("d-1", idle_s=100.0)])
    assert result.answer is m.OrderOutcome.OK
    for until_s, slot in ((33, "checking"), (45, "busy"), (110, "idle")):
        await until(until_s)
        assert (await states(world), await slots(world)) == (["running"], [slot])
    await until(400.0)
    end = (await drone(world)).end
    assert end is not None and (end.kind, end.exit_code, await slots(world)) == (
        m.EndKind.EXITED,
        0,
        [],
    )
    world.close()
    # granted at 0.1; took jobs at 35.1; matched at 40; worked 60 s; idle 100 s; released 2 s later
    spent = world.metrics.gpu_seconds
    assert (spent.held, spent.boot, spent.good) == (
        pytest.approx(201.9),
        pytest.approx(35.0),
        pytest.approx(60.0),
    )
    assert (spent.badput, spent.release, spent.idle) == (
        0.0,
        pytest.approx(2.0),
        pytest.approx(201.9 - 97.0),
    )
    assert world.metrics.waits_s == [pytest.approx(40.0)]
    assert (world.metrics.accepted, world.metrics.ends) == (
        {"kit": 1},
        {("kit", m.EndKind.EXITED): 1},
    )


FITTING = [
    {"owner": "large", "vram_mib": 80000},
    {"owner": "new", "capability": 90},
    {"owner": "plain"},
]


@played(
    KIT,
    jobs=[
        job
        for wants in (*FITTING, {"owner": "picky", "gpu_model": "B200"})
        for job in jobs(1, **wants)
    ],
)
async def test_a_job_goes_only_where_it_fits(world: World) -> None:
    await world.sites["kit"].start(orders(1))
    await until(300.0)
    waits = {c.owner: c for c in (await world.overlay.poll(world.types)).classes if c.waiting}
    assert set(waits) == {"large", "new", "picky"} and world.overlay.done == 1
    assert waits["picky"].refuses[world.types[0].key].dimension == "gpu_model"
    assert not waits["large"].refuses


@pytest.mark.parametrize(
    ("mode", "done", "lost"),
    [(m.DrainMode.PEACEFUL, 1, 0), (m.DrainMode.GRACEFUL, 0, 1), (m.DrainMode.FAST, 0, 1)],
)
def test_drain_modes_differ_in_what_becomes_of_the_job(
    mode: m.DrainMode, done: int, lost: int
) -> None:
    async def script(world: World) -> None:
        await world.sites["kit"].start(orders(1))
        await until(60.0)
        (result,) = await world.overlay.drain([ONE], mode, "a test")
        assert result.answer is m.OrderOutcome.OK
        await until(160.0)
        assert await states(world) == [m.RemoteState.ENDED]
        assert (world.overlay.done, world.metrics.attempts_lost, world.overlay.waiting) == (
            done,
            lost,
            lost,
        )

    in_world(script, [KIT], jobs(1))


@played(KIT, jobs=jobs(1))
async def test_a_stopped_drone_gives_its_job_a_grace_and_the_job_starts_again_from_nothing(
    world: World,
) -> None:
    site = world.sites["kit"]
    await site.start(orders(1))
    await until(60.0)
    await site.stop([m.StopOrder(ONE, "kit-1")])
    assert await states(world) == [m.RemoteState.RUNNING]
    await until(80.0)
    end = (await drone(world)).end
    assert end is not None and end.kind is m.EndKind.STOPPED
    assert world.overlay.waiting == 1
    assert world.metrics.gpu_seconds.badput == pytest.approx(25.1)


@played(KIT)
async def test_stopping_what_is_gone_is_success_and_a_second_start_is_the_same_drone(
    world: World,
) -> None:
    (nobody,) = await world.sites["kit"].stop([m.StopOrder(m.DroneId("never-was"), "")])
    assert nobody.answer is m.OrderOutcome.OK
    assert await world.sites["kit"].start(orders(1)) == await world.sites["kit"].start(orders(1))
    assert (world.metrics.accepted, world.metrics.doubles) == ({"kit": 1}, [])


@played(KIT, jobs=jobs(1, duration_s=600.0))
async def test_a_drone_that_perishes_leaves_a_stale_slot_and_a_job_that_comes_back(
    world: World,
) -> None:
    pool = world.overlay
    await world.sites["kit"].start(orders(1))
    await until(60.0)
    await world.sites["kit"].stop([m.StopOrder(ONE, "kit-1", kill=True)])
    await until(80.0)
    view = await pool.poll(world.types)
    assert [(s.state, s.heard_at < 61.0) for s in view.slots] == [(m.SlotState.BUSY, True)]
    assert (pool.running, pool.waiting) == (1, 0)  # the pool does not know yet
    await until(140.0)
    assert (pool.running, pool.waiting) == (0, 1)
    await until(1040.0)
    assert await slots(world) == []


@pytest.mark.parametrize(
    ("given", "accepted", "fault"),
    [({"queues": False}, 4, m.FaultKind.CAPACITY), ({"quota": 2}, 2, m.FaultKind.QUOTA)],
)
def test_a_site_refuses_what_does_not_fit_or_exceeds_its_quota(
    given: dict[str, Any], accepted: int, fault: m.FaultKind
) -> None:
    async def script(world: World) -> None:
        results = await world.sites["kit"].start(orders(6))
        assert [r.fault.kind if r.fault else None for r in results] == [None] * accepted + [
            fault
        ] * (6 - accepted)
        assert (await world.sites["kit"].poll()).free == {"gpu": 4 - accepted}

    in_world(script, [replace(KIT, **given)])


OWNED = replace(KIT, owner=OwnerSeries(((100.0, 4), (300.0, 0)), notice_s=60.0))


@played(OWNED, jobs=jobs(2, duration_s=1000.0))
async def test_an_owner_that_gives_notice_is_seen_as_a_claim_meanwhile(world: World) -> None:
    site = world.sites["kit"]
    await site.start(orders(2))
    await until(110.0)
    assert [(c.count, c.gpu_milli) for c in (await site.poll()).claims] == [(2, 1000)]
    await until(210.0)
    view = await site.poll()
    assert (view.claims, view.free) == ((), {"gpu": 0})
    assert world.metrics.ends == {("kit", m.EndKind.PREEMPTED): 2}
    await until(310.0)
    assert (await site.poll()).free == {"gpu": 4}


OVERLAPPING = (
    HardwareFault(HardwareFaultKind.DOWNTIME, 1.0, 200.0, "kit"),
    HardwareFault(HardwareFaultKind.DOWNTIME, 60.0, 20.0, "kit"),
    HardwareFault(HardwareFaultKind.NODE_FAILS, 70.0, 20.0, "kit", node=1),
)


@played(KIT, hardware_faults=OVERLAPPING)
async def test_a_short_downtime_within_a_long_one_does_not_bring_the_site_back(
    world: World,
) -> None:
    """`--what-if 'topas down'` was undone by a downtime in the world file: the comparison said nonsense."""
    site = world.sites["kit"]
    for at_s in (50.0, 100.0, 150.0):
        await until(at_s)
        with pytest.raises(UnavailableError):
            await site.poll()
    assert all(not machine.up for machine in site.machines)
    await until(250.0)
    assert (await site.poll()).free == {"gpu": 4}


@pytest.mark.parametrize(
    ("habit", "slot", "remote"),
    [
        ("dies_young", [], m.RemoteState.ENDED),
        ("never_joins", [], m.RemoteState.RUNNING),
        ("hangs_in_check", [m.SlotState.CHECKING], m.RemoteState.RUNNING),
        ("matches_nothing", [m.SlotState.IDLE], m.RemoteState.RUNNING),
        ("eats_jobs", [m.SlotState.BUSY], m.RemoteState.RUNNING),
    ],
)
def test_bad_drones_each_fail_in_their_own_way(
    habit: str, slot: list[m.SlotState], remote: m.RemoteState
) -> None:
    async def script(world: World) -> None:
        await world.sites["kit"].start(orders(1))
        await until(100.0)
        assert (await slots(world), await states(world)) == (slot, [remote])
        assert (world.overlay.done, world.jobs_astray()) == (0, 0)
        assert world.overlay.starts > 5 or habit != "eats_jobs"

    in_world(script, [replace(KIT, behaviour=replace(STEADY, **{habit: 1.0}))], jobs(3))


def test_a_script_depends_on_the_drone_not_on_which_came_before() -> None:
    behaviour = SiteBehaviour(boot=Uniform(1.0, 1000.0), dies_young=0.5)
    alone = DroneScript.drawn(behaviour, 3, "kit", m.DroneId("d-7"))
    crowd = {n: DroneScript.drawn(behaviour, 3, "kit", m.DroneId(f"d-{n}")) for n in (9, 8, 7)}
    assert crowd[7] == alone
    assert len({script.boot_s for script in crowd.values()}) == 3


@pytest.mark.parametrize(
    ("kind", "error", "drones"),
    [
        (ServiceFaultKind.DOWN, UnavailableError, 0),
        (ServiceFaultKind.QUOTA, RejectedError, 0),
        (ServiceFaultKind.ORDER_LOST, OutcomeUnknownError, 0),
        (ServiceFaultKind.REPLY_LOST, OutcomeUnknownError, 1),
        (ServiceFaultKind.ORDER_HANGS, TimeoutError, 0),
        (ServiceFaultKind.REPLY_HANGS, TimeoutError, 1),
        (ServiceFaultKind.LATE, TimeoutError, 1),
        (ServiceFaultKind.TWICE, None, 1),
    ],
)
def test_an_order_that_meets_a_fault_is_carried_out_or_not(
    kind: ServiceFaultKind, error: type[Exception] | None, drones: int
) -> None:
    async def script(world: World) -> None:
        try:
            async with asyncio.timeout(60.0):
                await world.sites["kit"].start(orders(1))
            assert error is None
        except Exception as raised:
            assert type(raised) is error
        assert len(world.drones) == (0 if kind is ServiceFaultKind.LATE else drones)
        await until(150.0)
        assert [each.id for each in world.drones] == [ONE] * drones
        assert isinstance(world.scenario, FaultyScenario)
        assert (world.scenario.faults_met, world.metrics.doubles) == ({kind: 1}, [])

    in_world(script, [KIT], service_faults=(ServiceFault(kind, verb="start", amount=90.0),))


LIES = (
    ServiceFault(ServiceFaultKind.EMPTY, "kit", "poll", 90.0, 110.0),
    ServiceFault(ServiceFaultKind.PARTIAL, "kit", "poll", 190.0, 220.0, amount=0.7),
    ServiceFault(ServiceFaultKind.UNKNOWN_STATES, "kit", "poll", 290.0, 310.0),
    ServiceFault(ServiceFaultKind.STALE, "kit", "poll", 390.0, 420.0),
    ServiceFault(ServiceFaultKind.FREE_WRONG, "kit", "poll", 590.0, 610.0, amount=99),
)


@played(KIT, service_faults=LIES)
async def test_listings_lie_as_told_and_the_truth_stays(world: World) -> None:
    site, seen = world.sites["kit"], {}
    await site.start(orders(4))
    for at_s in (100.0, 200.0, 210.0, 300.0, 400.0, 410.0, 600.0):
        await until(at_s)
        seen[at_s] = await site.poll()
        if at_s == 400.0:
            await site.stop([m.StopOrder(ONE, "", kill=True)])
    assert seen[100.0].drones == {} and 0 < len(seen[200.0].drones) < 4
    assert seen[210.0].drones == seen[200.0].drones
    assert {remote.state for remote in seen[300.0].drones.values()} == {m.RemoteState.UNKNOWN}
    assert seen[410.0] == replace(seen[400.0], taken_at=seen[410.0].taken_at) != seen[400.0]
    assert seen[600.0].free == {"gpu": 99} and seen[600.0].drones[ONE].state is m.RemoteState.ENDED
    assert len(world.drones) == 3


def test_the_metrics_see_a_broken_limit_and_a_doubled_id() -> None:
    halves = replace(KIT.types[0], gpu_milli=500)
    kit = small(max_drones=2, behaviour=STEADY)
    kit = replace(kit, types=(halves,), policy=replace(kit.policy, max_gpu_milli=1000))
    hut = small("hut", max_drones=9, behaviour=STEADY)

    async def script(world: World) -> None:
        await world.sites["kit"].start(orders(2, halves))
        assert world.metrics.caps_broken == []
        await world.sites["kit"].start([order("d-3", halves)])
        assert world.metrics.caps_broken == [
            "cap broken at 0.3 s: kit has 3 drones, limit 2",
            "cap broken at 0.3 s: kit has 1500 milli-GPU, limit 1000",
        ]
        await world.sites["hut"].start([order("d-1", hut.types[0])])
        assert (world.metrics.doubles, world.metrics.peak["kit"], world.metrics.peak["all"]) == (
            [ONE],
            3,
            4,
        )

    in_world(script, [kit, hut])
