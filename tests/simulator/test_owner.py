"""An owner's cluster: what the site does by itself, and what the planner makes of it.

``SIM_OWNER_SEEDS`` sets how many seeds of the trace are played (200 unless set), ``SIM_FIRST_SEED`` where they begin.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from provisioner.model import DroneId, EndKind, OwnerLoad, Policy, StartOrder, StopOrder
from provisioner.simulator.drones import ResourceVector, SimulatedNode
from provisioner.simulator.faults import HardwareFault, HardwareFaultKind
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.owner import VictimRule
from provisioner.simulator.results import Metrics
from provisioner.simulator.sites import Facility, GpuPool
from provisioner.simulator.traces import OwnerLoadSeries, read_loads
from provisioner.simulator.world import SimulationOutcome, World
from tests.simulator.crashing import crashes, simulate
from tests.simulator.facilities import STEADY, drone_type, in_world, topas, until
from tests.simulator.owner_jobs import made_load, owner_jobs, rise_of, trace_file, window_of
from tests.simulator.owner_queue import Owner, OwnerJob, OwnerSteps
from tests.simulator.owner_world import SPAN_S, TICK_S, Chooser, load_of, owned, waits_alone
from tests.simulator.workload import unreliable_network

ROOT = Path(__file__).parents[2]
SEEDS = int(os.environ.get("SIM_OWNER_SEEDS", "200"))
FIRST = int(os.environ.get("SIM_FIRST_SEED", "0"))
TRACE = trace_file(ROOT)


def cluster(owner: Owner, *, nodes: int = 1, gpus: int = 4, **given: Any) -> Facility:
    """Nodes of 4 GPUs, 32 CPUs and 128 GiB; drones of 1 GPU, 8 CPUs and 20 GiB."""
    pool = GpuPool("gpus", gpus, nodes=nodes, cpus_per_node=8 * gpus, memory_mib_per_node=131072)
    drone = drone_type("topas", "gpu", memory_mib=20480)
    usual = replace(topas(owner), types=(drone,), pools=(pool,), serves={}, behaviour=STEADY)
    return replace(usual, **given)


def orders(facility: Facility, count: int, first: int = 0) -> list[StartOrder]:
    kind = facility.types[0]
    ids = [DroneId(f"d-{n}") for n in range(first, first + count)]
    return [StartOrder(drone_id, kind, idle_timeout_s=3600.0, grace_s=10.0) for drone_id in ids]


def long_jobs(count: int, **given: Any) -> tuple[SimulatedJob, ...]:
    return tuple(SimulatedJob(0.0, 5000.0, JobRequirements(cpus=4, memory_mib=8192), **given) for _ in range(count))


# --------------------------------------------------------------------------------------------------- node by node


def test_nodes_and_places_are_told_and_cpus_run_out_before_gpus() -> None:
    owner = Owner((OwnerJob(5.0, 9000.0, gpus=1, cpus=12, memory_mib=65536),), negotiation_s=20.0)
    facility = cluster(owner, nodes=2)

    async def script(world: World) -> None:
        site = world.sites["topas"]
        await until(25.0)
        await site.start(orders(facility, 8))
        await until(50.0)
        view = await site.poll()
        told = [(n.name, n.types, n.free_gpu_milli, n.free_cpus, n.free_memory_mib) for n in view.nodes]
        # beside the owner's 12 CPUs and 64 GiB two drones fit by their CPUs, three by their RAM and GPUs
        assert told == [("gpus-0", ("gpu",), 1000, 4, 131072 - 65536 - 2 * 20480), ("gpus-1", ("gpu",), 0, 0, 49152)]
        assert view.free == {"gpu": 0}
        assert view.owner_runs == OwnerLoad(1, 1000, 12, 65536)
        seats = sorted((d.node, d.slot) for d in view.drones.values() if d.node)
        assert [node for node, _ in seats] == ["gpus-0"] * 2 + ["gpus-1"] * 4
        assert len({slot for _, slot in seats}) == 6
        assert world.metrics.accepted_without_room == {"topas": 2}
        assert world.metrics.overfull == []

    in_world(script, [facility])


def test_waiting_jobs_of_one_shape_are_one_claim_that_names_the_nodes_that_could_host_it() -> None:
    small, large = OwnerJob(5.0, 60.0, gpus=1), OwnerJob(3.0, 60.0, gpus=4, cpus=64)
    owner = Owner((small, replace(small, submit_s=4.0), large), negotiation_s=1000.0)

    async def script(world: World) -> list[tuple[int, int, float, tuple[str, ...], str]]:
        await until(10.0)
        view = await world.sites["topas"].poll()
        return [(c.count, c.gpu_milli, c.since, c.nodes, c.who) for c in view.claims]

    claims = in_world(script, [cluster(owner, nodes=2)])
    assert claims == [(1, 4000, 3.0, ("none",), "owner"), (2, 1000, 4.0, (), "owner")]
    assert in_world(script, [cluster(owner, nodes=2, reports_claims=False)]) == []


def test_books_that_do_not_add_up_are_found_out() -> None:
    machine, metrics = SimulatedNode("n", "gpus", ResourceVector(1000, 8, 1024)), Metrics(Policy())
    machine.place("d-1", ResourceVector(1000, 4, 512))
    metrics.node_filled(1.0, machine)
    metrics.nodes_counted(2.0, [machine])
    assert metrics.overfull == []
    machine.place("job", ResourceVector(1000, 1, 1))
    metrics.node_filled(3.0, machine)
    assert len(metrics.overfull) == 1
    machine.free = ResourceVector(0, 0, 0)  # wrong books, though nothing shows
    metrics.nodes_counted(4.0, [machine])
    assert len(metrics.overfull) == 2


def test_a_load_that_is_on_no_certain_node_cannot_be_told_node_by_node() -> None:
    with pytest.raises(ValueError, match="no certain node"):
        replace(cluster(Owner()), owner=OwnerSteps(((10.0, 2),), "gpus"))


# ------------------------------------------------------------------------------------------------- the site alone


def full(owner: Owner, **given: Any) -> Callable[[Callable[[World], Awaitable[None]]], None]:
    """A node with four busy drones, the youngest d-3, at 100 s."""
    facility = cluster(owner, reports_claims=False, **given)

    def play(script: Callable[[World], Awaitable[None]]) -> None:
        async def staged(world: World) -> None:
            for n in range(4):
                await world.sites["topas"].start(orders(facility, 1, n))
                await until(25.0 * (n + 1))
            await script(world)

        in_world(staged, [facility], long_jobs(4))

    return play


async def ends(world: World) -> dict[str, tuple[EndKind, float]]:
    drones = (await world.sites["topas"].poll()).drones.values()
    return {d.drone_id: (d.end.kind, d.end.at) for d in drones if d.end}


def test_the_youngest_goes_with_notice_and_the_job_starts_in_its_place() -> None:
    job = OwnerJob(205.0, 600.0, cpus=8)

    async def script(world: World) -> None:
        await until(225.0)
        view = await world.sites["topas"].poll()
        assert [(d.drone_id, d.notice_at) for d in view.drones.values() if d.notice_at] == [("d-3", 220.0)]
        await until(240.0)
        assert await ends(world) == {"d-3": (EndKind.PREEMPTED, 232.0)}
        (wait,) = world.metrics.owner_waits
        # submitted 205; first cycle 220; 10 s of grace, 2 s to let go; it starts there at once, not at the next cycle
        assert (wait.wait_s, wait.blocked_s, wait.late_s) == (27.0, 12.0, 0.0)
        assert world.metrics.overfull == []

    full(Owner((job,), negotiation_s=20.0, grace_s=10.0))(script)


def test_a_site_that_waits_first_does_nothing_if_room_comes_by_itself() -> None:
    first, second = OwnerJob(0.0, 240.0, cpus=8), OwnerJob(205.0, 600.0, cpus=8)

    async def script(world: World) -> None:
        await until(300.0)
        assert await ends(world) == {}
        blocked = [(w.wait_s, w.blocked_s, w.late_s) for w in world.metrics.owner_waits]
        # the second finds the first one's place free at 260 s (the drone that waited for it comes after the owner)
        assert blocked == [(20.0, 0.0, 0.0), (55.0, 40.0, 0.0)]

    full(Owner((first, second), negotiation_s=20.0, preempts_after_s=100.0))(script)


def test_a_job_larger_than_a_slot_waits_for_ever_or_kills_without_notice() -> None:
    job = OwnerJob(205.0, 600.0, gpus=2, cpus=16)

    async def starves(world: World) -> None:
        await until(600.0)
        assert await ends(world) == {}
        world.close()
        (wait,) = world.metrics.owner_waits
        assert wait == (2, pytest.approx(395.2), pytest.approx(380.2), 0.0)  # the look above took 0.2 s

    async def kills(world: World) -> None:
        await until(230.0)
        assert await ends(world) == {"d-3": (EndKind.PREEMPTED, 220.0), "d-2": (EndKind.PREEMPTED, 220.0)}
        assert [w.blocked_s for w in world.metrics.owner_waits] == [0.0]
        # nobody told the pool: the jobs of both are back after a lease
        assert (await world.overlay.poll(world.types)).evictions == ()
        await until(300.0)
        evictions = (await world.overlay.poll(world.types)).evictions
        assert sorted(e.drone_id for e in evictions or ()) == ["d-2", "d-3"]

    full(Owner((job,), negotiation_s=20.0))(starves)
    full(Owner((job,), negotiation_s=20.0, pslot_preemption=True))(kills)


def test_a_random_victim_is_not_always_the_youngest() -> None:
    gone = set()
    for at_s in range(200, 400, 20):

        async def script(world: World, at_s: int = at_s) -> None:
            await until(at_s + 40.0)
            gone.update(await ends(world))

        full(Owner((OwnerJob(at_s, 60.0, cpus=8),), negotiation_s=20.0, victim=VictimRule.RANDOM))(script)
    assert len(gone) > 1


def test_what_the_owner_waits_for_his_own_jobs_is_not_our_doing() -> None:
    """Two jobs want the whole node; our drone is on it, but the second waits for the first."""
    both = tuple(OwnerJob(at_s, 300.0, gpus=4, cpus=8) for at_s in (5.0, 6.0))

    async def script(world: World) -> None:
        await until(700.0)
        assert [(w.wait_s, w.blocked_s, w.late_s) for w in world.metrics.owner_waits] == [(15.0, 0, 0), (314.0, 0, 0)]

    in_world(script, [cluster(Owner(both, negotiation_s=20.0))])


def test_room_that_came_between_two_cycles_is_late_not_blocked() -> None:
    job = OwnerJob(205.0, 600.0, gpus=2, cpus=16)

    async def script(world: World) -> None:
        site = world.sites["topas"]
        await until(222.0)
        await site.stop([StopOrder(DroneId(f"d-{n}"), "") for n in (0, 1)])
        await until(300.0)
        # asked at 222.1, 10 s of grace and 2 s of release: room at 234.1, found at the cycle of 240
        (wait,) = world.metrics.owner_waits
        assert wait == (2, pytest.approx(35.0), pytest.approx(14.1), pytest.approx(5.9))

    full(Owner((job,), negotiation_s=20.0))(script)


def test_drones_come_after_the_owner_and_a_node_that_fails_sends_his_jobs_back() -> None:
    job = OwnerJob(5.0, 6000.0, gpus=4, cpus=4)
    facility = cluster(Owner((job,), negotiation_s=20.0))

    async def script(world: World) -> None:
        site = world.sites["topas"]
        await site.start(orders(facility, 1))
        await until(30.0)
        assert (await site.poll()).owner_runs == OwnerLoad(1, 4000, 4, 1024)
        await until(60.0)
        down = await site.poll()
        assert (down.nodes, down.owner_runs, [c.count for c in down.claims]) == ((), OwnerLoad(), [1])
        await until(170.0)
        assert (await site.poll()).owner_runs == OwnerLoad(1, 4000, 4, 1024)
        assert world.metrics.overfull == []

    in_world(script, [facility], hardware_faults=[HardwareFault(HardwareFaultKind.NODE_FAILS, 50.0, 100.0, "topas")])


# ------------------------------------------------------------------------------------------------------ lost work


def test_work_since_the_last_checkpoint_is_told_and_lost() -> None:
    facility = cluster(Owner(negotiation_s=20.0))
    job = SimulatedJob(0.0, 1000.0, JobRequirements(cpus=4, memory_mib=8192), checkpoint_s=100.0)

    async def script(world: World) -> None:
        site, pool = world.sites["topas"], world.overlay
        await site.start(orders(facility, 1))
        await until(390.0)
        (slot,) = (await pool.poll(world.types)).slots
        # granted 20, serving 55, matched 60; the newest sign of life is of 350, the newest checkpoint of then of 260
        assert (slot.heard_at, slot.work_gpu_milli, slot.work_at) == (350.0, 1000, 260.0)
        await site.stop([StopOrder(DroneId("d-0"), "")])
        await until(500.0)
        (eviction,) = (await pool.poll(world.types)).evictions or ()
        assert (eviction.drone_id, eviction.gpu_milli) == ("d-0", 1000)
        assert eviction.lost_s == pytest.approx(40.3)  # left at 400.3, having saved until 360
        assert world.metrics.gpu_seconds.badput == pytest.approx(40.3)
        assert world.metrics.gpu_seconds.good == pytest.approx(300.0)
        await site.start(orders(facility, 1, 1))
        await until(2000.0)
        assert pool.done == 1
        assert world.metrics.gpu_seconds.good == pytest.approx(1000.0)
        assert (await pool.poll(world.types)).evictions == ()

    in_world(script, [facility], [job])


def test_a_cpu_drone_counts_its_work_in_cpus() -> None:
    cpus = drone_type("topas", "cpu", gpu_milli=0, cpus=8, memory_mib=20480, vram_mib=0, capability=0)
    facility = replace(cluster(Owner(negotiation_s=20.0)), types=(cpus,))

    async def script(world: World) -> None:
        await world.sites["topas"].start(orders(facility, 1))
        await until(100.0)
        (slot,) = (await world.overlay.poll(world.types)).slots
        assert (slot.jobs, slot.work_gpu_milli, slot.work_at) == (2, 6000, 60.0)

    in_world(script, [facility], [SimulatedJob(0.0, 900.0, JobRequirements(gpu_milli=0, cpus=3)) for _ in range(2)])


# -------------------------------------------------------------------------------------------------- the owner's load


def wanted_at(jobs: Sequence[OwnerJob], at_s: float) -> int:
    return sum(job.gpus for job in jobs if job.submit_s <= at_s < job.submit_s + job.duration_s)


@pytest.mark.parametrize("seed", range(5))
def test_the_jobs_behind_a_series_add_up_to_it(seed: int) -> None:
    load = made_load(seed, gpus=32, span_s=20 * 3600.0)
    jobs = owner_jobs(load, seed, until_s=load.span_s)
    assert jobs == owner_jobs(load, seed, until_s=load.span_s)
    assert {job.gpus for job in jobs} >= {1, 2, 4, 8}
    long = [job for job in jobs if job.duration_s > 60.0]
    for (at_s, gpus), (next_s, _) in zip(load.steps, load.steps[1:], strict=False):
        if next_s - at_s > 60.0:  # no job is shorter than a minute, whatever the series says
            assert gpus - 8 < wanted_at(long, next_s - 0.1) <= gpus + 7
    assert 0.3 < statistics.mean(gpus for _, gpus in load.steps) / 32 < 0.7


def test_a_part_of_a_trace_is_played_faster_and_for_another_cluster(tmp_path: Path) -> None:
    path = tmp_path / "load.csv"
    path.write_text("vc,t_s,total_gpus,busy_gpus,pending_gpus\na,0,8,2,0\nb,0,4,4,0\na,600,8,8,4\na,1200,8,6,0\n")
    loads = read_loads(path)
    assert loads["b"] == OwnerLoadSeries("b", 4, ((0.0, 4),))
    assert loads["a"] == OwnerLoadSeries("a", 8, ((0.0, 2), (600.0, 12), (1200.0, 6)))
    assert window_of(loads["a"], 300.0, 800.0, faster=2.0).steps == ((0.0, 2), (150.0, 12))
    assert loads["a"].scaled(16).steps == ((0.0, 4), (600.0, 16), (1200.0, 12))
    assert rise_of(loads["a"]) == 10


# ----------------------------------------------------------------------------------------- the service, by many seeds


@dataclass(frozen=True)
class Pair:
    """The same world twice: the planner chooses, or the site, youngest first and at once."""

    ours: SimulationOutcome
    youngest: SimulationOutcome
    bound_s: float
    """Two ticks and the grace."""
    cycle_s: float
    """The site's own interval."""
    alone_s: float
    """Mean wait of the owner's jobs if there were no drones."""


def played(seed: int, loads: Mapping[str, OwnerLoadSeries] | None) -> Pair:
    load = load_of(seed, loads)
    ours = owned(seed, load, Chooser.PLANNER)
    owner = ours.facilities[0].owner
    assert isinstance(owner, Owner)
    waits = [w.wait_s for w in waits_alone(ours)]
    return Pair(
        simulate(ours),
        simulate(owned(seed, load, Chooser.YOUNGEST, site_waits=False)),
        2 * TICK_S + owner.grace_s,
        owner.negotiation_s,
        statistics.mean(waits) if waits else 0.0,
    )


def played_all(count: int, loads: Mapping[str, OwnerLoadSeries] | None) -> Mapping[int, Pair]:
    """So many seeds, side by side on all cores."""
    seeds = range(FIRST, FIRST + count)
    spawned = multiprocessing.get_context("spawn")  # a test worker has threads
    with ProcessPoolExecutor(mp_context=spawned) as pool:
        return dict(zip(seeds, pool.map(partial(played, loads=loads), seeds, chunksize=4), strict=True))


def judge(pairs: Mapping[int, Pair]) -> None:
    """Every promise of an owner's cluster. Seeds in which the site alone loses nothing say nothing of victims."""
    for seed, pair in pairs.items():
        assert pair.ours.violations == (), f"seed {seed}"
        assert pair.youngest.violations == (), f"seed {seed}, the site alone"
        metrics = pair.ours.metrics
        assert metrics.owner_blocked_s <= pair.bound_s, f"seed {seed}: blocked for {metrics.owner_blocked_s:.0f} s"
    ours = [pair.ours.metrics for pair in pairs.values()]
    waits = [wait for metrics in ours for wait in metrics.owner_waits]
    assert len(waits) > 5 * len(pairs), "too few owner's jobs to prove anything"
    blocked = [w.blocked_s for w in waits if w.blocked_s] or [0.0]
    late_s = statistics.mean(w.late_s for w in waits)
    more_s = statistics.mean(
        statistics.mean([w.wait_s for w in pair.ours.metrics.owner_waits] or [0.0]) - pair.alone_s
        for pair in pairs.values()
    )
    bound_s = statistics.mean(pair.bound_s for pair in pairs.values())
    cycle_s = statistics.mean(pair.cycle_s for pair in pairs.values())
    lost = [(p.ours.metrics.gpu_seconds.badput, p.youngest.metrics.gpu_seconds.badput) for p in pairs.values()]
    ratios = [mine / theirs for mine, theirs in lost if theirs]
    print(
        f"\n{len(pairs)} seeds, {len(waits)} owner's jobs: blocked {statistics.mean(w.blocked_s for w in waits):.1f} s"
        f" on average (of those blocked at all, {len(blocked)}: {statistics.mean(blocked):.1f} s), late {late_s:.1f} s,"
        f" {more_s:.1f} s more than without drones; bound {bound_s:.0f} s, the site's cycle {cycle_s:.0f} s;"
        f" lost work, ours to youngest first: median {statistics.median(ratios):.2f} of {len(ratios)} seeds, in all"
        f" {sum(mine for mine, _ in lost) / sum(theirs for _, theirs in lost):.2f}"
    )
    assert statistics.mean(blocked) <= bound_s, "those that our drones block at all"
    assert more_s <= bound_s + cycle_s
    asked, in_vain = (
        sum(sum(c.values()) for c in counts)
        for counts in zip(*((t.accepted, t.accepted_without_room) for t in ours), strict=True)
    )
    assert in_vain <= asked / 100, f"{in_vain} of {asked} drones were asked for where nothing was free"
    assert len(ratios) > len(pairs) / 2
    assert statistics.median(ratios) <= 0.8


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(TRACE is None, reason="the owner-load trace is not there: PROVISIONER_TRACES names its directory")
def test_the_owner_does_not_wait_because_of_us_under_the_load_of_a_trace() -> None:
    assert TRACE is not None
    loads = read_loads(TRACE)
    judge(played_all(SEEDS, loads))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_owner_does_not_wait_because_of_us_under_a_made_load() -> None:
    """A fifth of the seeds: this runs everywhere, trace or not."""
    judge(played_all(-(-SEEDS // 5), None))


def test_the_planner_and_not_the_site_makes_room_in_time() -> None:
    """One quick seed for every day."""
    pair = played(3, None)
    ended = pair.ours.metrics.ends
    assert pair.ours.violations == ()
    assert ended["topas", EndKind.PREEMPTED] < ended["topas", EndKind.STOPPED]
    assert pair.ours.metrics.gpu_seconds.badput < 0.8 * pair.youngest.metrics.gpu_seconds.badput
    assert pair.ours.metrics.owner_blocked_s <= pair.bound_s
    assert pair.ours.ended_s > SPAN_S


@pytest.mark.parametrize("seed", range(2))
def test_an_owner_a_bad_wire_and_crashes_at_once_break_no_promise(seed: int) -> None:
    calm = owned(seed, load_of(seed), Chooser.PLANNER)
    wild = replace(calm, service_faults=unreliable_network(seed), crashes=crashes(seed, 3, furthest=60))
    outcome = simulate(wild)
    assert outcome.violations == (), outcome.lives
    assert len(outcome.lives) == 4
    assert outcome.metrics.faults_met


def test_a_drone_takes_no_jobs_of_users_whom_it_avoids() -> None:
    facility = cluster(Owner(()))
    jobs = [
        SimulatedJob(0.0, 5000.0, JobRequirements(cpus=4, memory_mib=8192, owner=owner)) for owner in ("ann", "ben")
    ]

    async def script(world: World) -> None:
        first, second = orders(facility, 2)
        await world.sites["topas"].start([replace(first, avoids="ann,carl")])
        await until(200.0)
        view = await world.overlay.poll(world.types)
        assert {job.owner: (job.waiting, job.running) for job in view.classes} == {"ann": (1, 0), "ben": (0, 1)}
        (slot,) = view.slots
        assert (slot.owner, slot.job_gpu_milli, slot.job_cpus, slot.job_memory_mib) == ("ben", 1000, 4, 8192)
        await world.sites["topas"].start([second])
        await until(400.0)
        view = await world.overlay.poll(world.types)
        assert {job.owner: job.running for job in view.classes} == {"ann": 1, "ben": 1}

    in_world(script, [facility], jobs)
