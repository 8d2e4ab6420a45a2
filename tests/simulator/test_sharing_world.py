"""GPUs that jobs share, in the simulated world: how fast they run there, and what is made of that."""

from __future__ import annotations

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
from tests.simulator.worlds import drone_type, in_world, played, until

AT_ONCE = PoolBehaviour(negotiation_s=0.0, latency=Fixed(0.0))
STEADY = SiteBehaviour(boot=Fixed(30.0), check=Fixed(5.0), release=Fixed(20.0))
WHOLE = drone_type("kit", "whole")


def site(*types: DroneType, gpus: int = 8, **given: Any) -> Facility:
    """``gpus`` GPUs for each drone type, on nodes with CPUs and memory enough."""
    most = gpus * len(types)
    usual = Facility(
        policy=SitePolicy("kit", max_drones=most, max_pending=most, max_starts_per_tick=most, grace_s=5.0),
        types=types,
        pools=tuple(GpuPool(kind.name, gpus) for kind in types),
        serves={kind.name: kind.name for kind in types},
        behaviour=STEADY,
        latency=Fixed(0.0),
    )
    return replace(usual, **given)


def shared(sharing: Sharing, shares: int, **given: Any) -> DroneType:
    return drone_type("kit", str(sharing), sharing=sharing, shares=shares, cpus=64, power_w=400.0, **given)


def with_drone(kind: DroneType, *jobs: SimulatedJob, **given: Any) -> Any:
    """Make a test of a script that runs in a world with one drone of a type, which takes jobs from 35 s on."""

    def test_of(script: Any) -> Any:
        async def started(world: World) -> None:
            await world.sites["kit"].start([StartOrder(DroneId("d-1"), kind, idle_timeout_s=600.0, grace_s=5.0)])
            await script(world)

        return played(site(kind), jobs, pool=AT_ONCE, **given)(started)

    return test_of


def heavy(at_s: float = 0.0, gpu_milli: int = 250, duration_s: float = 100.0, **given: Any) -> SimulatedJob:
    return SimulatedJob(at_s, duration_s, JobRequirements(gpu_milli, duty_milli=1000, width_milli=1000), **given)


IDLER = SimulatedJob(0.0, 100.0, JobRequirements(250, duty_milli=200))
MPS_S, SLICED_S = 135.0 + 50.0 / 0.56 - 50.0, 135.0 + 50.0 / 0.31 - 50.0
SLICE_S = 100 * 2.18 * 1.48 * 1.97 / 0.91


@pytest.mark.parametrize(
    ("kind", "jobs", "done_s"),
    [
        pytest.param(shared(Sharing.TIME_SLICED, 4), [heavy(), heavy(85.0)], [SLICED_S, SLICED_S + 50.0], id="sliced"),
        pytest.param(shared(Sharing.MPS, 4), [heavy(), heavy(85.0)], [MPS_S, MPS_S + 50.0], id="mps"),
        pytest.param(shared(Sharing.MPS, 4), [IDLER] * 4, [135.0] * 4, id="jobs of little duty"),
        pytest.param(
            shared(Sharing.MIG, 7), [heavy(0.0, 142), heavy(85.0, 142)], [35.0 + SLICE_S, 85.0 + SLICE_S], id="mig"
        ),
        pytest.param(shared(Sharing.MPS, 4, gpu_milli=2000), [heavy()] * 2, [135.0] * 2, id="spread over two GPUs"),
    ],
)
def test_jobs_on_one_gpu_slow_each_other_down_from_the_moment_they_meet(
    kind: DroneType, jobs: list[SimulatedJob], done_s: list[float]
) -> None:
    @with_drone(kind, *jobs)
    async def ran(world: World) -> None:
        await until(2000.0)
        assert [each.done_s for each in world.overlay.queued_jobs] == [pytest.approx(each) for each in done_s]
        if kind.gpu_milli == 2000:
            assert world.metrics.energy_kwh == pytest.approx(2 * 400.0 * 100.0 / 3.6e6), "two GPUs were at work"

    ran()


@with_drone(shared(Sharing.MPS, 4), heavy(gpu_milli=100), heavy(gpu_milli=300))
async def test_a_small_job_keeps_its_whole_share_busy(world: World) -> None:
    await until(60.0)
    assert world.sample().gpus_busy == 0.75
    await until(660.0)
    assert world.sample().gpus_busy == 0.0


@with_drone(shared(Sharing.MPS, 4), heavy(), heavy())
async def test_a_gpu_at_work_takes_its_power_once_whoever_shares_it(world: World) -> None:
    await until(1000.0)
    world.close()
    assert world.overlay.done == 2
    assert world.metrics.energy_kwh == pytest.approx(400.0 * (200.0 / 1.12) / 3.6e6)
    spent = world.metrics.gpu_seconds
    assert spent.good == pytest.approx(2 * 0.25 * 200.0 / 1.12), "each had a share of it for as long"
    assert spent.held == pytest.approx(spent.good + spent.boot + spent.release + spent.idle)


@with_drone(shared(Sharing.MPS, 4), heavy(checkpoint_s=30.0), heavy(checkpoint_s=30.0))
async def test_what_checkpoints_have_saved_is_counted_in_work_and_what_is_lost_in_time(world: World) -> None:
    await until(135.0)  # 56 s of work in 100 s, of which 30 s are saved
    slot = (await world.overlay.poll(world.types)).slots[0]
    worked_s = 0.56 * (slot.heard_at - 35.0)
    assert (slot.jobs, slot.work_at) == (2, pytest.approx(slot.heard_at - worked_s % 30.0 / 0.56))
    await until(135.1)
    next(iter(world.sites["kit"].drones.values())).perish(EndKind.STOPPED, "killed")
    await until(235.0)
    assert [each.saved_s for each in world.overlay.queued_jobs] == [30.0, 30.0]
    evictions = (await world.overlay.poll(world.types)).evictions or ()
    assert [e.lost_s for e in evictions] == [pytest.approx(100.1 * (56.056 - 30.0) / 56.056)] * 2


SLIGHT = SimulatedJob(0.0, 100.0, JobRequirements(250, duty_milli=120, width_milli=100, owner="ann"))


@with_drone(shared(Sharing.MPS, 4), SLIGHT, heavy(duration_s=500.0))
async def test_the_view_tells_completions_owners_and_what_jobs_ask_of_a_gpu(world: World) -> None:
    await until(50.0)
    view = await world.overlay.poll(world.types)
    assert [(c.duty_milli, c.width_milli) for c in view.classes] == [(120, 100), (1000, 1000)]
    assert [(slot.owner, slot.begun_at) for slot in view.slots] == [("", 35.0)], "of several"
    await until(250.0)
    view = await world.overlay.poll(world.types)
    assert view.slots[0].owner == "alice"
    (done,) = view.completions or ()
    assert (done.owner, done.gpu_milli, done.drone_id, done.submitted_at) == ("ann", 250, "d-1", 0.0)
    assert done.run_s == pytest.approx(done.ended_at - 35.0)
    await until(3250.0)
    assert (await world.overlay.poll(world.types)).completions == ()


# ------------------------------------------------------------------------------------- matching without negotiation


@with_drone(WHOLE, *(SimulatedJob(at_s, 60.0, JobRequirements(owner=str(at_s))) for at_s in (0.0, 1.0, 200.0)))
async def test_without_negotiation_jobs_are_matched_as_they_come_and_as_slots_open(world: World) -> None:
    await until(10.0)
    classes = (await world.overlay.poll(world.types)).classes
    assert [(c.waiting, c.fresh) for c in classes] == [(1, 0), (1, 0)], "judged at once"
    await until(400.0)
    assert world.metrics.first_starts == [(0.0, 35.0), (1.0, 95.0), (200.0, 200.0)]


@with_drone(WHOLE, SimulatedJob(0.0, 500.0))
async def test_without_negotiation_a_job_put_back_goes_to_another_drone_at_once(world: World) -> None:
    await until(10.0)
    await world.sites["kit"].start([StartOrder(DroneId("d-2"), WHOLE, idle_timeout_s=600.0, grace_s=5.0)])
    await until(100.0)
    world.sites["kit"].drones[DroneId("d-1")].perish(EndKind.FAULT, "gone")
    await until(200.0)
    (job,) = world.overlay.queued_jobs
    assert (job.starts, job.begun_s) == (2, 100.0 + AT_ONCE.lease_s), "when its lease was over"


@pytest.mark.parametrize(("negotiation_s", "begun_s"), [(0.0, 110.0), (20.0, 120.0)])
def test_a_pause_of_the_matchmaker_holds_with_cycles_and_without(negotiation_s: float, begun_s: float) -> None:
    async def script(world: World) -> None:
        await world.sites["kit"].start([StartOrder(DroneId("d-1"), WHOLE, idle_timeout_s=600.0, grace_s=5.0)])
        await until(60.0)
        (job,) = (await world.overlay.poll(world.types)).classes
        assert (job.waiting, job.fresh) == (0, 1)
        await until(260.0)
        assert world.overlay.queued_jobs[0].first_begun_s == begun_s

    pause = HardwareFault(HardwareFaultKind.NO_NEGOTIATION, at_s=10.0, for_s=100.0)
    pool = replace(AT_ONCE, negotiation_s=negotiation_s)
    in_world(script, [site(WHOLE)], [SimulatedJob(20.0, 60.0)], pool=pool, hardware_faults=(pause,))


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

    def seen(pool: SimulatedOverlay, jobs: QueuedJobClass, slot: SimulatedSlot) -> None:
        """As a job begins: where, and where else there was room."""
        if slot.drone.type is H100 and jobs.wants is SMALL:
            spare = [s.drone.id for s in pool._slots.values() if s.drone.type is V100 and s.open and s.fits(jobs)]
            misplaced.extend(f"a share of {name} was free" for name in spare)
        begin(pool, jobs, slot)

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
