"""An owner's cluster: what the site does by itself, and what the planner makes of it.

``SIM_OWNER_SEEDS`` sets how many seeds of the trace are played (200 unless set), ``SIM_FIRST_SEED``
where they begin.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from provisioner.job_filter import JobFilter
from provisioner.model import DroneId, EndKind, OwnerLoad, StartOrder, StopOrder
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.sites import Facility, GpuPool
from provisioner.simulator.traces import OwnerLoadSeries, read_loads
from provisioner.simulator.world import SimulationOutcome, World
from tests.simulator.crashing import crashes, simulate
from tests.simulator.owner_queue import Owner, OwnerJob
from tests.simulator.owner_world import (
    SPAN_S,
    TICK_S,
    Chooser,
    load_of,
    owned,
    trace_file,
    waits_alone,
)
from tests.simulator.worlds import (
    STEADY,
    drone_type,
    in_world,
    played,
    topas,
    unreliable_network,
    until,
)

SEEDS = int(os.environ.get("SIM_OWNER_SEEDS", "200"))
FIRST = int(os.environ.get("SIM_FIRST_SEED", "0"))
TRACE = trace_file(Path(__file__).parents[2])
CYCLE_S = 20.0


def cluster(*jobs: OwnerJob, nodes: int = 1, given: Any = None, **owner: Any) -> Facility:
    """Nodes of 4 GPUs, 32 CPUs and 128 GiB; drones of 1 GPU, 8 CPUs and 20 GiB."""
    usual = topas(Owner(jobs, **{"negotiation_s": CYCLE_S, **owner}))
    pool = GpuPool("gpus", 4, nodes, cpus_per_node=32, memory_mib_per_node=131072)
    drone = drone_type("topas", "gpu", memory_mib=20480)
    return replace(
        usual,
        **{"types": (drone,), "pools": (pool,), "serves": {}, "behaviour": STEADY, **(given or {})},
    )


def orders(count: int, first: int = 0, facility: Facility = cluster()) -> list[StartOrder]:  # noqa: B008 (a constant)
    ids = [DroneId(f"d-{n}") for n in range(first, first + count)]
    return [
        StartOrder(drone_id, facility.types[0], idle_timeout_s=3600.0, grace_s=10.0)
        for drone_id in ids
    ]


def long_jobs(count: int, **given: Any) -> tuple[SimulatedJob, ...]:
    return (SimulatedJob(0.0, 5000.0, JobRequirements(cpus=4, memory_mib=8192), **given),) * count


@played(cluster(OwnerJob(5.0, 9000.0, cpus=12, memory_mib=65536), nodes=2))
async def test_nodes_and_places_are_told_and_cpus_run_out_before_gpus(world: World) -> None:
    site = world.sites["topas"]
    await until(25.0)
    await site.start(orders(8))
    await until(50.0)
    view = await site.poll()
    told = [(n.name, n.types, n.free_gpu_milli, n.free_cpus, n.free_memory_mib) for n in view.nodes]
    # beside the owner's 12 CPUs and 64 GiB two drones fit by their CPUs, three by their RAM and
    # GPUs
    assert told == [
        ("gpus-0", ("gpu",), 1000, 4, 131072 - 65536 - 2 * 20480),
        ("gpus-1", ("gpu",), 0, 0, 49152),
    ]
    assert (view.free, view.owner_runs) == ({"gpu": 0}, OwnerLoad(1, 1000, 12, 65536))
    seats = sorted((d.node, d.slot) for d in view.drones.values() if d.node)
    assert [node for node, _ in seats] == ["gpus-0"] * 2 + ["gpus-1"] * 4
    assert len({slot for _, slot in seats}) == 6
    assert (world.metrics.accepted_without_room, world.metrics.overfull) == ({"topas": 2}, [])


async def filled(world: World) -> None:
    """Start four drones on one node, the youngest d-3, which are busy at 100 s."""
    for n in range(4):
        await world.sites["topas"].start(orders(1, n))
        await until(25.0 * (n + 1))


async def ends(world: World) -> dict[str, float]:
    drones = (await world.sites["topas"].poll()).drones.values()
    return {d.drone_id: d.end.at for d in drones if d.end}


SMALL, LARGE = OwnerJob(205.0, 600.0, cpus=8), OwnerJob(205.0, 600.0, gpus=2, cpus=16)
UNSEEN = {"reports_claims": False}


@pytest.mark.parametrize(
    ("facility", "until_s", "ended", "waited"),
    [
        # submitted 205; first cycle 220; 10 s of grace, 2 s to let go; it starts there at once, not
        # at the next cycle
        pytest.param(
            cluster(SMALL, grace_s=10.0, given=UNSEEN),
            240.0,
            {"d-3": 232.0},
            [(27, 12, 0)],
            id="youngest",
        ),
        # the second finds the first one's place free at 260 s (the drone that waited for it comes
        # after the owner)
        pytest.param(
            cluster(OwnerJob(0.0, 240.0, cpus=8), SMALL, preempts_after_s=100.0, given=UNSEEN),
            300.0,
            {},
            [(20, 0, 0), (55, 40, 0)],
            id="a site that waits first does nothing if room comes by itself",
        ),
        pytest.param(
            cluster(LARGE, given=UNSEEN), 600.0, {}, [(395.2, 380.2, 0)], id="larger than a slot"
        ),
        pytest.param(
            cluster(LARGE, pslot_preemption=True, given=UNSEEN),
            230.0,
            {"d-3": 220.0, "d-2": 220.0},
            [(15, 0, 0)],
            id="larger than a slot, without notice",
        ),
    ],
)
def test_the_site_makes_room_for_its_owner(
    facility: Facility,
    until_s: float,
    ended: dict[str, float],
    waited: list[tuple[float, float, float]],
) -> None:
    async def script(world: World) -> None:
        await filled(world)
        await until(until_s)
        assert await ends(world) == ended
        world.close()
        assert [(w.wait_s, w.blocked_s, w.late_s) for w in world.metrics.owner_waits] == [
            pytest.approx(each) for each in waited
        ]
        assert world.metrics.ends == ({("topas", EndKind.PREEMPTED): len(ended)} if ended else {})
        assert world.metrics.overfull == []

    in_world(script, [facility], long_jobs(4))


@played(cluster(*(OwnerJob(at_s, 300.0, gpus=4, cpus=8) for at_s in (5.0, 6.0))))
async def test_what_the_owner_waits_for_their_own_jobs_is_not_our_doing(world: World) -> None:
    """Two jobs want the whole node; the second waits for the first."""
    await until(700.0)
    assert [(w.wait_s, w.blocked_s, w.late_s) for w in world.metrics.owner_waits] == [
        (15.0, 0, 0),
        (314.0, 0, 0),
    ]


@played(
    cluster(),
    [SimulatedJob(0.0, 1000.0, JobRequirements(cpus=4, memory_mib=8192), checkpoint_s=100.0)],
)
async def test_work_since_the_last_checkpoint_is_told_and_lost(world: World) -> None:
    site, pool = world.sites["topas"], world.overlay
    await site.start(orders(1))
    await until(390.0)
    (slot,) = (await pool.poll(world.types)).slots
    # granted 20, serving 55, matched 60; the newest sign of life is of 350, the newest checkpoint
    # of then of 260
    assert (slot.heard_at, slot.work_gpu_milli, slot.work_at) == (350.0, 1000, 260.0)
    await site.stop([StopOrder(DroneId("d-0"), "")])
    await until(500.0)
    (eviction,) = (await pool.poll(world.types)).evictions or ()
    assert (eviction.drone_id, eviction.gpu_milli) == ("d-0", 1000)
    assert eviction.lost_s == pytest.approx(40.3)  # left at 400.3, having saved until 360
    assert world.metrics.gpu_seconds.badput == pytest.approx(40.3)
    assert world.metrics.gpu_seconds.good == pytest.approx(300.0)
    await site.start(orders(1, 1))
    await until(2000.0)
    assert (pool.done, world.metrics.gpu_seconds.good) == (1, pytest.approx(1000.0))
    assert (await pool.poll(world.types)).evictions == ()


ANN, BEN = (
    replace(long_jobs(1)[0], wants=replace(long_jobs(1)[0].wants, owner=owner))
    for owner in ("ann", "ben")
)


@played(cluster(), [ANN, BEN])
async def test_a_drone_takes_no_jobs_of_excluded_users(world: World) -> None:
    first, second = orders(2)
    await world.sites["topas"].start([replace(first, job_filter=JobFilter(("ann", "carl")))])
    await until(200.0)
    view = await world.overlay.poll(world.types)
    assert {job.owner: (job.waiting, job.running) for job in view.classes} == {
        "ann": (1, 0),
        "ben": (0, 1),
    }
    (slot,) = view.slots
    assert (slot.owner, slot.job_gpu_milli, slot.job_cpus, slot.job_memory_mib) == (
        "ben",
        1000,
        4,
        8192,
    )
    await world.sites["topas"].start([second])
    await until(400.0)
    assert [job.running for job in (await world.overlay.poll(world.types)).classes] == [1, 1]


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

    @property
    def blocked_s(self) -> float:
        """Mean over the owner's jobs of the time for which our drones held their room."""
        return statistics.fmean([wait.blocked_s for wait in self.ours.metrics.owner_waits] or [0.0])


def pair_of(seed: int, loads: Mapping[str, OwnerLoadSeries] | None) -> Pair:
    load = load_of(seed, loads)
    ours = owned(seed, load, Chooser.PLANNER)
    owner = ours.facilities[0].owner
    assert isinstance(owner, Owner)
    return Pair(
        simulate(ours),
        simulate(owned(seed, load, Chooser.YOUNGEST, site_waits=False)),
        2 * TICK_S + owner.grace_s,
        owner.negotiation_s,
        statistics.mean([w.wait_s for w in waits_alone(ours)] or [0.0]),
    )


def judge(count: int, loads: Mapping[str, OwnerLoadSeries] | None) -> None:
    """Check every promise of an owner's cluster in so many seeds, side by side on all cores.

    Seeds in which the site alone loses nothing say nothing of victims.
    """
    seeds = range(FIRST, FIRST + count)
    spawned = multiprocessing.get_context("spawn")  # a test worker has threads
    with ProcessPoolExecutor(mp_context=spawned) as pool:
        pairs = dict(
            zip(seeds, pool.map(partial(pair_of, loads=loads), seeds, chunksize=4), strict=True)
        )
    for seed, pair in pairs.items():
        assert pair.ours.violations == (), f"seed {seed}"
        assert pair.youngest.violations == (), f"seed {seed}, the site alone"
        assert pair.blocked_s <= pair.bound_s, f"seed {seed}: blocked for {pair.blocked_s:.0f} s"
    ours = [pair.ours.metrics for pair in pairs.values()]
    waits = [wait for metrics in ours for wait in metrics.owner_waits]
    assert len(waits) > 5 * len(pairs), "too few owner's jobs to prove anything"
    blocked_s = statistics.mean([w.blocked_s for w in waits if w.blocked_s] or [0.0])
    means_s = [
        statistics.mean([w.wait_s for w in metrics.owner_waits] or [0.0]) for metrics in ours
    ]
    more_s = statistics.mean(
        mean_s - p.alone_s for mean_s, p in zip(means_s, pairs.values(), strict=True)
    )
    bound_s = statistics.mean(pair.bound_s for pair in pairs.values())
    cycle_s = statistics.mean(pair.cycle_s for pair in pairs.values())
    lost = [
        (p.ours.metrics.gpu_seconds.badput, p.youngest.metrics.gpu_seconds.badput)
        for p in pairs.values()
    ]
    ratios = [mine / theirs for mine, theirs in lost if theirs]
    assert blocked_s <= bound_s, "those that our drones block at all"
    assert more_s <= bound_s + cycle_s
    asked = sum(metrics.accepted.total() for metrics in ours)
    in_vain = sum(metrics.accepted_without_room.total() for metrics in ours)
    assert in_vain <= asked / 100, (
        f"{in_vain} of {asked} drones were asked for where nothing was free"
    )
    assert len(ratios) > len(pairs) / 2
    assert statistics.median(ratios) <= 0.8


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    TRACE is None,
    reason="the owner-load trace is not there: PROVISIONER_TRACES names its directory",
)
def test_the_owner_does_not_wait_because_of_us_under_the_load_of_a_trace() -> None:
    assert TRACE is not None
    judge(SEEDS, read_loads(TRACE))


@pytest.mark.matrix
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_owner_does_not_wait_because_of_us_under_a_made_load() -> None:
    """A fifth of the seeds, trace or not."""
    judge(-(-SEEDS // 5), None)


def test_the_planner_and_not_the_site_makes_room_in_time() -> None:
    """One quick seed for every day."""
    pair = pair_of(3, None)
    ended = pair.ours.metrics.ends
    assert pair.ours.violations == ()
    assert ended["topas", EndKind.PREEMPTED] < ended["topas", EndKind.STOPPED]
    assert pair.ours.metrics.gpu_seconds.badput < 0.8 * pair.youngest.metrics.gpu_seconds.badput
    assert pair.blocked_s <= pair.bound_s
    assert pair.ours.ended_s > SPAN_S


@pytest.mark.parametrize("seed", range(2))
def test_an_owner_network_faults_and_crashes_at_once_break_no_promise(seed: int) -> None:
    calm = owned(seed, load_of(seed), Chooser.PLANNER)
    outcome = simulate(
        replace(
            calm, service_faults=unreliable_network(seed), crashes=crashes(seed, 3, furthest=60)
        )
    )
    assert outcome.violations == (), outcome.lives
    assert len(outcome.lives) == 4
    assert outcome.faults_met
