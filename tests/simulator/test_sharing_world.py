"""GPUs that jobs share, in the simulated world: how fast they run there, and what is made of that."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from provisioner.model import DroneId, DroneType, EndKind, Plan, Policy, Sharing, SitePolicy, Snapshot, StartOrder
from provisioner.planner import decide
from provisioner.sharing import KIT_SMALL, share_milli
from provisioner.simulator.drones import SiteBehaviour
from provisioner.simulator.faults import HardwareFault, HardwareFaultKind
from provisioner.simulator.jobs import JobRequirements, QueuedJobClass, SimulatedJob
from provisioner.simulator.loop import Fixed, rng_for
from provisioner.simulator.pool import PoolBehaviour, SimulatedOverlay, SimulatedSlot
from provisioner.simulator.sites import Facility, GpuPool
from provisioner.simulator.world import Scenario, SimulationOutcome, World, simulate
from tests.simulator.facilities import drone_type, in_world

AT_ONCE = PoolBehaviour(negotiation_s=0.0, latency=Fixed(0.0))
STEADY = SiteBehaviour(boot=Fixed(30.0), check=Fixed(5.0), release=Fixed(20.0))


def site(*types: DroneType, gpus: int = 8, name: str = "kit", **given: Any) -> Facility:
    """``gpus`` GPUs for each drone type, on nodes with CPUs and memory enough."""
    most = gpus * len(types)
    usual = Facility(
        policy=SitePolicy(name, max_drones=most, max_pending=most, max_starts_per_tick=most, grace_s=5.0),
        types=types,
        pools=tuple(GpuPool(kind.name, gpus) for kind in types),
        serves={kind.name: kind.name for kind in types},
        behaviour=STEADY,
        latency=Fixed(0.0),
    )
    return replace(usual, **given)


def shared(sharing: Sharing, shares: int, **given: Any) -> DroneType:
    return drone_type("kit", str(sharing), sharing=sharing, shares=shares, cpus=64, power_w=400.0, **given)


def shared_world(script: Any, kind: DroneType, jobs: list[SimulatedJob], **given: Any) -> Any:
    """Run a script in a world with one drone of a type."""

    async def started(world: World) -> Any:
        await world.sites["kit"].start([StartOrder(DroneId("d-1"), kind, idle_timeout_s=600.0, grace_s=5.0)])
        return await script(world)

    return in_world(started, [site(kind)], jobs, pool=AT_ONCE, **given)


def with_drone(kind: DroneType, jobs: list[SimulatedJob], **given: Any) -> Any:
    """Make a test of a script that runs in such a world."""
    return lambda script: lambda: shared_world(script, kind, jobs, **given)


def heavy(duration_s: float = 100.0, at_s: float = 0.0, gpu_milli: int = 250, **given: Any) -> SimulatedJob:
    return SimulatedJob(at_s, duration_s, JobRequirements(gpu_milli, duty_milli=1000, width_milli=1000), **given)


# ------------------------------------------------------------------------------------------------------- the world


def test_a_small_job_keeps_its_whole_share_busy() -> None:
    async def script(world: World) -> list[float]:
        await asyncio.sleep(60.0)
        during = world.sample().gpus_busy
        await asyncio.sleep(600.0)
        return [during, world.sample().gpus_busy]

    jobs = [heavy(gpu_milli=100), heavy(gpu_milli=300)]
    assert shared_world(script, shared(Sharing.MPS, 4), jobs) == [0.75, 0.0]


@pytest.mark.parametrize(("sharing", "rate"), [(Sharing.TIME_SLICED, 0.31), (Sharing.MPS, 0.56)])
def test_a_job_that_comes_later_slows_the_first_one_down_from_then_on(sharing: Sharing, rate: float) -> None:
    async def script(world: World) -> list[float]:
        await asyncio.sleep(2000.0)
        return [t.done_s for t in world.overlay.queued_jobs if t.done_s is not None]

    first_s, second_s = shared_world(script, shared(sharing, 4), [heavy(), heavy(at_s=85.0)])
    meet_s, first_left = 85.0, 50.0  # the drone takes jobs from 35 s on
    assert first_s == pytest.approx(meet_s + first_left / rate)
    assert second_s == pytest.approx(first_s + (100.0 - first_left))


@with_drone(shared(Sharing.MPS, 4), [SimulatedJob(0.0, 100.0, JobRequirements(250, duty_milli=200)) for _ in range(4)])
async def test_jobs_of_little_duty_share_a_gpu_at_full_speed(world: World) -> None:
    await asyncio.sleep(200.0)
    assert [t.done_s for t in world.overlay.queued_jobs] == [pytest.approx(135.0)] * 4


def test_a_job_on_a_mig_slice_minds_nobody() -> None:
    async def script(world: World) -> list[float]:
        await asyncio.sleep(5000.0)
        return [t.done_s for t in world.overlay.queued_jobs if t.done_s is not None]

    jobs = [heavy(gpu_milli=142), heavy(gpu_milli=142, at_s=85.0)]
    first_s, second_s = shared_world(script, shared(Sharing.MIG, 7), jobs)
    assert first_s - 35.0 == pytest.approx(second_s - 85.0) == pytest.approx(100 * 2.18 * 1.48 * 1.97 / 0.91)


@with_drone(shared(Sharing.MPS, 4, gpu_milli=2000), [heavy(), heavy()])
async def test_small_jobs_spread_evenly_over_a_drones_gpus(world: World) -> None:
    await asyncio.sleep(300.0)
    assert [t.done_s for t in world.overlay.queued_jobs] == [pytest.approx(135.0)] * 2
    assert world.metrics.energy_kwh == pytest.approx(2 * 400.0 * 100.0 / 3.6e6), "two GPUs were at work"


@with_drone(shared(Sharing.MPS, 4), [heavy(), heavy()])
async def test_a_gpu_at_work_takes_its_power_once_whoever_shares_it(world: World) -> None:
    await asyncio.sleep(1000.0)
    world.close()
    assert world.overlay.done == 2
    assert world.metrics.energy_kwh == pytest.approx(400.0 * (200.0 / 1.12) / 3.6e6)
    spent = world.metrics.gpu_seconds
    assert spent.good == pytest.approx(2 * 0.25 * 200.0 / 1.12), "each had a share of it for as long"
    assert spent.held == pytest.approx(spent.good + spent.boot + spent.release + spent.idle)


def test_what_checkpoints_have_saved_is_counted_in_work_and_what_is_lost_in_time() -> None:
    jobs = [heavy(checkpoint_s=30.0), heavy(checkpoint_s=30.0)]

    async def script(world: World) -> None:
        await asyncio.sleep(35.0 + 100.0)  # 56 s of work in 100 s, of which 30 s are saved
        slot = (await world.overlay.poll(world.types)).slots[0]
        assert slot.jobs == 2
        assert slot.work_at == pytest.approx(slot.heard_at - (slot.heard_at - 35.0) * _lost(slot.heard_at - 35.0))
        await asyncio.sleep(0.1)
        next(iter(world.sites["kit"].drones.values())).perish(EndKind.STOPPED, "killed")
        await asyncio.sleep(100.0)
        assert [t.saved_s for t in world.overlay.queued_jobs] == [30.0, 30.0]
        view = await world.overlay.poll(world.types)
        assert view.evictions is not None
        assert [e.lost_s for e in view.evictions] == [pytest.approx(100.1 * (56.056 - 30.0) / 56.056)] * 2

    shared_world(script, shared(Sharing.MPS, 4), jobs)


def _lost(ran_s: float) -> float:
    worked_s = 0.56 * ran_s
    return worked_s % 30.0 / worked_s


@with_drone(
    shared(Sharing.MPS, 4),
    [SimulatedJob(0.0, 100.0, JobRequirements(250, duty_milli=120, width_milli=100, owner="ann")), heavy(500.0)],
)
async def test_the_view_tells_completions_owners_and_what_jobs_ask_of_a_gpu(world: World) -> None:
    await asyncio.sleep(50.0)
    view = await world.overlay.poll(world.types)
    assert [(c.duty_milli, c.width_milli) for c in view.classes] == [(120, 100), (1000, 1000)]
    (slot,) = view.slots
    assert (slot.owner, slot.begun_at) == ("", 35.0), "of several"
    await asyncio.sleep(200.0)
    view = await world.overlay.poll(world.types)
    assert view.slots[0].owner == "alice"
    assert view.completions is not None
    (done,) = view.completions
    assert (done.owner, done.gpu_milli, done.drone_id, done.submitted_at) == ("ann", 250, "d-1", 0.0)
    assert done.run_s == pytest.approx(done.ended_at - 35.0)
    await asyncio.sleep(3000.0)
    assert (await world.overlay.poll(world.types)).completions == ()


# ------------------------------------------------------------------------------------- matching without negotiation


@with_drone(
    drone_type("kit", "whole"),
    [SimulatedJob(at_s, 60.0, JobRequirements(owner=str(at_s))) for at_s in (0.0, 1.0, 200.0)],
)
async def test_without_negotiation_jobs_are_matched_as_they_come_and_as_slots_open(world: World) -> None:
    await asyncio.sleep(10.0)
    classes = (await world.overlay.poll(world.types)).classes
    assert [(c.waiting, c.fresh) for c in classes] == [(1, 0), (1, 0)], "judged at once"
    await asyncio.sleep(390.0)
    assert [t.first_begun_s for t in world.overlay.queued_jobs] == [35.0, 95.0, 200.0]
    assert world.metrics.first_starts == [(0.0, 35.0), (1.0, 95.0), (200.0, 200.0)]


def test_without_negotiation_a_job_put_back_goes_to_another_drone_at_once() -> None:
    kind = drone_type("kit", "whole")

    async def script(world: World) -> None:
        await asyncio.sleep(10.0)
        await world.sites["kit"].start([StartOrder(DroneId("d-2"), kind, idle_timeout_s=600.0, grace_s=5.0)])
        await asyncio.sleep(90.0)
        (ticket,) = world.overlay.queued_jobs
        world.sites["kit"].drones[DroneId("d-1")].perish(EndKind.FAULT, "gone")
        await asyncio.sleep(100.0)
        assert (ticket.starts, ticket.begun_s) == (2, 100.0 + AT_ONCE.lease_s), "when its lease was over"

    shared_world(script, kind, [SimulatedJob(0.0, 500.0)])


@with_drone(
    drone_type("kit", "whole"),
    [SimulatedJob(20.0, 60.0)],
    hardware_faults=[HardwareFault(HardwareFaultKind.NO_NEGOTIATION, at_s=10.0, for_s=100.0)],
)
async def test_a_pause_of_the_matchmaker_holds_without_cycles_as_well(world: World) -> None:
    await asyncio.sleep(60.0)
    (job,) = (await world.overlay.poll(world.types)).classes
    assert (job.waiting, job.fresh) == (0, 1)
    await asyncio.sleep(200.0)
    assert world.overlay.queued_jobs[0].first_begun_s == 110.0


# ------------------------------------------------------------------------------------------- with the service in it


KIT_RUN_S = 10.56 * 60
KIT_JOBS = 414
EPOCHS_PER_S = 1.94
"""Of 8 GPUs with one job each, by KIT's table."""


def kit_burst(kind: DroneType, gpu_milli: int) -> SimulationOutcome:
    wants = JobRequirements(
        gpu_milli,
        cpus=1,
        memory_mib=1024,
        duty_milli=round(1000 * KIT_SMALL.duty),
        width_milli=round(1000 * KIT_SMALL.width),
    )
    return simulate(
        Scenario(
            facilities=(site(kind, gpus=8, behaviour=replace(STEADY, queue=Fixed(10.0))),),
            jobs=tuple(SimulatedJob(0.0, KIT_RUN_S, wants) for _ in range(KIT_JOBS)),
            policy=Policy(idle_timeout_s=60.0),
            interval_s=15.0,
            pool=PoolBehaviour(negotiation_s=0.0),
            limit_s=86400.0,
        )
    )


def epochs_per_s(outcome: SimulationOutcome) -> float:
    """Of the 8 GPUs while jobs wait, that is until the last has begun: those of its own wave have just begun, too."""
    starts_s = [start_s for _, start_s in outcome.metrics.first_starts]
    last_s = max(starts_s)
    done = sum(start_s < last_s - 60.0 for start_s in starts_s)
    return EPOCHS_PER_S * done * KIT_RUN_S / (last_s - min(starts_s)) / 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sharing", "shares", "published"),
    [(Sharing.EXCLUSIVE, 1, 1.94), (Sharing.TIME_SLICED, 12, 10.06), (Sharing.MPS, 12, 18.16), (Sharing.MIG, 7, 14.14)],
)
def test_a_cold_burst_of_kits_small_jobs(sharing: Sharing, shares: int, published: float) -> None:
    kind = shared(sharing, shares)
    outcome = kit_burst(kind, share_milli(shares))
    assert outcome.violations == ()
    first_s = min(start_s for _, start_s in outcome.metrics.first_starts)
    assert first_s <= 10.0 + 35.0 + 15.0
    assert epochs_per_s(outcome) == pytest.approx(published, rel=0.10)


# ------------------------------------------------------------------------------------------------ jobs of many sizes

GIB = 1024
V100 = drone_type("kit", "v100", vram_mib=32 * GIB, capability=70, price=1.0, sharing=Sharing.MPS, shares=4)
A100 = drone_type("kit", "a100", vram_mib=40 * GIB, capability=80, price=1.2)
H100 = drone_type("kit", "h100", vram_mib=80 * GIB, capability=90, price=2.0)
SMALL = JobRequirements(gpu_milli=250, vram_mib=8 * GIB, cpus=1, owner="small")
MIDDLE = JobRequirements(vram_mib=24 * GIB, cpus=4, owner="middle")
LARGE = JobRequirements(vram_mib=60 * GIB, cpus=4, owner="large")


def mixed(seed: int, count: int = 400) -> tuple[SimulatedJob, ...]:
    """45 % of the jobs need more than 8 GiB, a tenth of all more than 40."""
    rng = rng_for(seed, "vram")
    wants = [SMALL] * (count * 55 // 100) + [MIDDLE] * (count * 35 // 100) + [LARGE] * (count * 10 // 100)
    rng.shuffle(wants)
    return tuple(SimulatedJob(rng.uniform(0.0, 3600.0), rng.uniform(120.0, 900.0), each) for each in wants)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_every_drone_is_of_use_to_its_job_and_small_jobs_leave_large_gpus_alone(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    useless: list[str] = []
    misplaced: list[str] = []

    def watched(snapshot: Snapshot) -> Plan:
        """Our planner; what it starts is judged by what the jobs really want."""
        plan = decide(snapshot)
        assert snapshot.overlay.view is not None or not plan.starts
        classes = {c.id: c.owner for c in snapshot.overlay.view.classes} if snapshot.overlay.view else {}
        types = {t.key: t for t in snapshot.types}
        for start in plan.starts:
            wants = {w.owner: w for w in (SMALL, MIDDLE, LARGE)}[classes[start.drone.for_class]]
            if wants.unmet_requirement(types[start.drone.type]):
                useless.append(f"{start.drone.type} for {wants.label}")
        return plan

    begin = SimulatedOverlay._start

    def seen(pool: SimulatedOverlay, bucket: QueuedJobClass, seat: SimulatedSlot) -> None:
        """As a job begins: where, and where else there was room."""
        if seat.drone.type is H100 and bucket.wants is SMALL:
            spare = [s.drone.id for s in pool._slots.values() if s.drone.type is V100 and s.open and s.fits(bucket)]
            misplaced.extend(f"a share of {name} was free" for name in spare)
        begin(pool, bucket, seat)

    monkeypatch.setattr(SimulatedOverlay, "_start", seen)
    outcome = simulate(
        Scenario(
            facilities=(site(V100, A100, H100, gpus=4),),
            jobs=mixed(seed),
            seed=seed,
            policy=Policy(idle_timeout_s=300.0),
            planner=lambda: watched,
            pool=PoolBehaviour(best_fit=True),
            limit_s=86400.0,
        )
    )
    assert outcome.violations == ()
    assert outcome.jobs_done == len(mixed(seed))
    assert useless == []
    assert misplaced == []
    assert set(outcome.metrics.waits_by_class) == {SMALL.label, MIDDLE.label, LARGE.label}
