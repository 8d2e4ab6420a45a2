"""Scenarios in which nearly all is drawn from a seed: sites, types, jobs, owners, and all that goes wrong at once.

A plain world is drawn first, and what makes it wilder with numbers of its own: so the plain worlds
of old seeds stay as they were.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from provisioner.model import DroneType, Headroom, Policy, Sharing, SitePolicy
from provisioner.simulator.drones import OVERLAY, HardwareFault, HardwareFaultKind, SiteBehaviour
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.loop import Fixed, LogNormal, Uniform, rng_for
from provisioner.simulator.owner import VictimRule
from provisioner.simulator.sites import Facility, GpuPool
from provisioner.simulator.world import START_EPOCH
from tests.simulator.crashing import CrashScenario, crashes
from tests.simulator.faults import ServiceFault, ServiceFaultKind
from tests.simulator.owner_queue import Owner, OwnerJob, OwnerSteps
from tests.simulator.worlds import Shape, burst, drone_type, poisson_mix, unreliable_network

BUSY_S = 900.0
"""Jobs come, and things go wrong, for so long."""
VICTIMS = VictimRule.YOUNGEST, VictimRule.RANDOM
NEXT_HOUR = int(START_EPOCH % 86400 // 3600) + 1
"""Headroom is kept until then: it would keep drones for ever."""


def wild(seed: int) -> CrashScenario:
    """A plain world, and by chance: sites whose owner's jobs wait one by one, GPUs in shares, types
    that are slow and dear, jobs of many sizes from several groups, drones kept warm."""
    rng, base = rng_for(seed, "wilder"), plain(seed)
    facilities = tuple(
        _dear(_shared(_owned(facility, rng), rng), rng) for facility in base.facilities
    )
    warm = (
        (Headroom("warm", cpus=2, count=rng.randint(1, 2), to_h=NEXT_HOUR),)
        if rng.random() < 0.15
        else ()
    )
    return replace(
        base,
        facilities=facilities,
        jobs=base.jobs + _of_groups(seed, rng),
        policy=replace(base.policy, headroom=warm),
    )


def plain(seed: int) -> CrashScenario:
    """One to three sites; lies are shorter than ``missing``, so that no cap may be broken because of them."""
    rng = rng_for(seed, "wild")
    facilities = tuple(_facility(f"s{n}", rng) for n in range(rng.randint(1, 3)))
    return CrashScenario(
        facilities=facilities,
        jobs=_jobs(seed, rng),
        seed=seed,
        policy=Policy(
            idle_timeout_s=60.0,
            max_drones=rng.randint(4, 12),
            max_gpu_milli=rng.choice([None, 4000]),
            slot_max_age_s=rng.choice([120.0, 900.0]),
            interval_s=10.0,
            active_interval_s=3.0,
        ),
        service_faults=_lies(facilities, rng)
        + (unreliable_network(seed, chance=0.2) if rng.random() < 0.7 else ()),
        hardware_faults=_hardware_faults(facilities, rng),
        crashes=crashes(seed, rng.randint(0, 2), furthest=200),
        limit_s=4 * 3600.0,
    )


def _facility(name: str, rng: Random) -> Facility:
    policy = SitePolicy(
        name,
        max_drones=rng.randint(1, 6),
        max_gpu_milli=rng.choice([None, 2000, 3000]),
        max_pending=rng.randint(1, 6),
        max_starts_per_tick=rng.randint(1, 4),
        grace_s=rng.choice([2.0, 10.0]),
        queue_when_full=rng.random() < 0.4,
        queued_s=rng.choice([900.0, 86400.0]),
        booting_s=200.0,
        joining_s=60.0,
    )
    pool = GpuPool("pool", gpus_per_node=rng.randint(2, 4), nodes=2)
    owner = OwnerSteps(
        _owner(rng), "pool", victim=rng.choice(VICTIMS), notice_s=rng.choice([0.0, 20.0])
    )
    return Facility(
        policy,
        types=tuple(_type(name, f"t{n}", rng) for n in range(rng.randint(1, 3))),
        pools=(pool,),
        owner=owner,
        behaviour=_behaviour(rng),
        quota=rng.choice([None, None, 3]),
        queues=rng.random() < 0.7,
        reports_free=rng.random() < 0.6,
        retain_finished_s=rng.choice([0.0, 25.0, 3600.0]),
    )


def _type(site: str, name: str, rng: Random) -> DroneType:
    return drone_type(
        site,
        name,
        gpu_milli=rng.choice([250, 500, 1000, 2000]),
        vram_mib=rng.choice([16000, 40960, 81920]),
        capability=rng.choice([70, 80, 90]),
        max_drones=rng.choice([None, None, 2]),
        walltime_s=rng.choice([0.0, 0.0, 1200.0]),
        price=rng.choice([1.0, 2.0]),
    )


def _behaviour(rng: Random) -> SiteBehaviour:
    return SiteBehaviour(
        queue=rng.choice([Fixed(0.0), Uniform(0.0, 60.0), LogNormal(60.0, 1.0, 600.0)]),
        boot=Uniform(2.0, 60.0),
        check=Uniform(0.5, 10.0),
        release=Uniform(0.5, 20.0),
        lifetime=rng.choice([None, None, Uniform(60.0, 900.0)]),
        dies_young=rng.choice([0.0, 0.0, 0.2]),
        never_joins=rng.choice([0.0, 0.0, 0.1]),
        hangs_in_check=rng.choice([0.0, 0.0, 0.1]),
        matches_nothing=rng.choice([0.0, 0.0, 0.1]),
    )


def _owned(facility: Facility, rng: Random) -> Facility:
    """The owner's load is of jobs, which ask for places on nodes and are seen to wait."""
    if rng.random() < 0.65:
        return facility
    (pool,) = facility.pools
    assert isinstance(facility.owner, OwnerSteps)
    jobs = (
        OwnerJob(
            rng.uniform(0.0, BUSY_S),
            rng.uniform(60.0, 400.0),
            gpus=rng.randint(1, pool.gpus_per_node),
            cpus=8,
        )
        for _ in range(rng.randint(1, 6))
    )
    owner = Owner(
        tuple(sorted(jobs, key=lambda job: job.submit_s)),
        preempts_after_s=rng.choice([0.0, 60.0]),
        grace_s=facility.policy.grace_s,
        victim=facility.owner.victim,
        pslot_preemption=rng.random() < 0.5,
    )
    seen = replace(pool, cpus_per_node=64, memory_mib_per_node=512 << 10)
    return replace(facility, pools=(seen,), owner=owner, reports_nodes=rng.random() < 0.7)


def _shared(facility: Facility, rng: Random) -> Facility:
    """One more type, whose GPUs are offered in shares."""
    if rng.random() < 0.65:
        return facility
    sharing = rng.choice([Sharing.TIME_SLICED, Sharing.MPS, Sharing.MIG])
    kind = drone_type(
        facility.name, "shared", sharing=sharing, shares=rng.choice([2, 4, 7]), capability=90
    )
    return replace(facility, types=(*facility.types, kind))


def _dear(facility: Facility, rng: Random) -> Facility:
    """One more type, that takes minutes to come and costs more, that any job fits, and that does
    not break down: it may be the only one that a job fits, and then hours would pass until it lasts
    for that long."""
    if rng.random() < 0.65:
        return facility
    kind = drone_type(
        facility.name, "dear", gpu_milli=2000, vram_mib=81920, capability=90, price=4.0
    )
    slow = replace(facility.behaviour, boot=Uniform(120.0, 300.0), lifetime=None)
    return replace(
        facility,
        types=(*facility.types, kind),
        behaviour_of={"dear": slow},
        policy=replace(facility.policy, booting_s=400.0),
    )


def _owner(rng: Random) -> tuple[tuple[float, int], ...]:
    if rng.random() < 0.6:
        return ()
    return (*sorted((rng.uniform(0.0, BUSY_S), rng.randint(0, 4)) for _ in range(4)), (1200.0, 0))


def _jobs(seed: int, rng: Random) -> tuple[SimulatedJob, ...]:
    shapes = [
        Shape(
            JobRequirements(
                gpu_milli=rng.choice([250, 500, 1000]),
                cpus=rng.choice([1, 2]),
                vram_mib=rng.choice([0, 20000, 60000]),
                capability=rng.choice([0, 75, 85]),
                priority=rng.choice([0, 5]),
                owner=owner,
            ),
            Uniform(10.0, rng.choice([60.0, 300.0])),
        )
        for owner in ("ann", "bob", "eve")
    ]
    steady = poisson_mix(shapes, per_hour=rng.choice([40.0, 120.0]), span_s=BUSY_S, seed=seed)
    return steady + burst(rng.randint(0, 10), shapes[0], at_s=rng.uniform(0.0, 600.0), seed=seed)


def _of_groups(seed: int, rng: Random) -> tuple[SimulatedJob, ...]:
    """Jobs of several sizes and groups, some of which say how they use a GPU, in bursts and one by one."""
    if rng.random() < 0.3:
        return ()
    shapes = [
        Shape(
            JobRequirements(
                gpu_milli=gpu_milli,
                owner=group,
                group=f"physics.{group}",
                duty_milli=rng.choice([0, 300]),
                priority=rng.choice([0, 5]),
            ),
            Uniform(10.0, rng.choice([60.0, 300.0])),
        )
        for gpu_milli, group in zip(
            rng.sample([100, 250, 1000, 2000], 3), ("atlas", "cms", "theory"), strict=True
        )
    ]
    bursts = tuple(
        job
        for n, shape in enumerate(shapes)
        for job in burst(rng.randint(0, 8), shape, at_s=rng.uniform(0.0, BUSY_S), seed=seed + n)
    )
    return bursts + poisson_mix(
        shapes, per_hour=rng.choice([0.0, 40.0]) + 1e-6, span_s=BUSY_S, seed=seed + 1
    )


def _lies(facilities: tuple[Facility, ...], rng: Random) -> tuple[ServiceFault, ...]:
    of_sites = map(ServiceFaultKind, ("empty", "partial", "stale", "unknown-states", "free-wrong"))
    of_overlay = map(ServiceFaultKind, ("empty", "partial", "stale", "hang"))
    chosen = [(t, rng.choice(facilities).name, 25.0) for t in of_sites if rng.random() < 0.4]
    chosen += [(t, OVERLAY, 60.0) for t in of_overlay if rng.random() < 0.3]
    service_faults = []
    for trouble, where, for_s in chosen:
        from_s = rng.uniform(30.0, BUSY_S)
        service_faults.append(
            ServiceFault(trouble, where, "poll", from_s, from_s + for_s, amount=0.5)
        )
    return tuple(service_faults)


def _hardware_faults(facilities: tuple[Facility, ...], rng: Random) -> tuple[HardwareFault, ...]:
    hardware_faults = []
    if rng.random() < 0.3:
        at_s, node = rng.uniform(0.0, BUSY_S), rng.randint(0, 1)
        hardware_faults.append(
            HardwareFault(HardwareFaultKind.NODE_FAILS, at_s, 200.0, facilities[0].name, node=node)
        )
    if rng.random() < 0.2:
        at_s, notice_s = rng.uniform(0.0, BUSY_S), rng.choice([0.0, 60.0])
        hardware_faults.append(
            HardwareFault(
                HardwareFaultKind.DOWNTIME, at_s, 200.0, facilities[-1].name, notice_s=notice_s
            )
        )
    return tuple(hardware_faults)
