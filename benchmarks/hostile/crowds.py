"""Snapshots with 1,000 drones and 20 shapes on a node: what costs a decision most, each alone and several at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from benchmarks.hostile import trouble
from benchmarks.hostile.trouble import NOW, PREFIX, one
from benchmarks.hostile.worlds import random_class
from provisioner.controller.sanitize import Sanitizer
from provisioner.estimates import HORIZONS_S, Estimates, OwnerGrowth, StartDelays
from provisioner.model import (
    Breaker,
    DrainMode,
    Drone,
    DroneId,
    DroneState,
    DroneType,
    FaultKind,
    Group,
    Headroom,
    JobClass,
    Node,
    OperatorRequest,
    OverlayView,
    OwnerDemand,
    Policy,
    PolledOverlay,
    PolledSite,
    RemoteDrone,
    RemoteState,
    RequestKind,
    Reserve,
    Scope,
    SitePolicy,
    SiteView,
    Slot,
    SlotState,
    Snapshot,
)

SITE = "a"
CLASSES = 100
STATES = tuple(state for state in DroneState if not state.ended)


@dataclass(frozen=True, slots=True)
class Load:
    """Loads of a large world. Each is there or not, by chance."""

    owner: bool
    """The owner's jobs wait for the places of drones."""
    blocking: bool
    """Free GPUs keep CPUs and memory."""
    eaters: bool
    """A thousand failed jobs, and as many that went well."""
    breakers: bool
    """Breakers of all types, of classes on types, and of nodes, in each state."""
    mixed: bool
    """Drones in each state of their life, not only in the pool."""
    news: bool
    """The views tell something new of each drone, as after a restart of the controller."""
    idle: bool
    """All drones are past their idle time-out."""
    strays: bool
    """A thousand drones that are not on record."""
    requests: bool
    """Operators ask for all drones at once."""
    groups: bool
    """Quotas of accounting groups."""
    warm: bool
    """Headroom."""
    owned: bool
    """An owner who comes back at one site, and a safer site."""

    @classmethod
    def of(cls, rng: Random) -> Load:
        """Draw which loads there are."""
        chance = one(rng, 0.1, 0.3, 0.6)
        return cls(rng.random() < 0.7, *(rng.random() < chance for _ in range(11)))


def crowd(seed: int, drones: int = 1000, shapes: int = 20) -> Snapshot:
    """Return a snapshot with so many drones, on nodes with so many shapes each, the same for the same seed."""
    rng = Random(seed)
    load = Load.of(rng)
    types = _types(rng, shapes)
    node_count = one(rng, 1, 2, 5, 10, 50)
    made = [
        _drone(rng, load, n, types[n % shapes], f"n{n // shapes % node_count}")
        for n in range(drones)
    ]
    classes = tuple(random_class(rng, f"c{n}", types) for n in range(CLASSES))
    ids = [drone.id for drone in made]
    blocking = _blocking(rng) if load.blocking else ()
    policy = Policy(
        max_drones=10_000,
        max_unhealthy_fraction=1.0,
        idle_timeout_s=60.0 if load.idle else 600.0,
        sites={
            SITE: SitePolicy(SITE, max_drones=10_000, max_pending=2000, blocking=blocking),
            "safe": SitePolicy("safe", max_drones=10_000, max_pending=2000),
        },
        headroom=_headroom(rng) if load.warm else (),
    )
    site = _site_view(rng, load, made, types, node_count)
    pool = OverlayView(
        NOW - 1,
        classes,
        tuple(_slot(rng, load, drone) for drone in made if drone.joined_at),
        NOW - 5,
        groups=_groups(rng) if load.groups else (),
        mishaps=trouble.mishaps(rng, ids, 1000) if load.eaters else (),
        completions=trouble.completions(rng, ids, 1000) if load.eaters else None,
    )
    sites = {SITE: PolledSite(SITE, Sanitizer().sanitized(site, NOW, 0.0))}
    if load.owned:
        safe = SiteView("safe", NOW - 1, {}, {"s": 5})
        types = (
            *types,
            DroneType("safe", "s", 1000, 16, 32_768, 0, vram_mib=40_960, capability=80, price=2.0),
        )
        sites["safe"] = PolledSite("safe", Sanitizer().sanitized(safe, NOW, 0.0))
    return Snapshot(
        now=NOW,
        tick=7,
        id_prefix=PREFIX,
        next_serial=drones + 1,
        policy=policy,
        types=types,
        overlay=PolledOverlay(Sanitizer().sanitized(pool, NOW, 0.0)),
        sites=sites,
        drones={drone.id: drone for drone in made},
        breakers=_breakers(rng, types, classes, node_count) if load.breakers else {},
        requests=_requests(rng, ids) if load.requests else (),
        estimates=_learned(rng, load, types),
    )


def _types(rng: Random, shapes: int) -> tuple[DroneType, ...]:
    """Return types of which no two are alike, in any dimension that a shape has."""
    types = []
    for number in range(shapes):
        milli = one(rng, 0, 0, 500, 1000, 1000, 2000, 4000)
        types.append(
            DroneType(
                SITE,
                f"t{number}",
                milli,
                rng.randint(1, 16),
                2048 * rng.randint(1, 10) + number,
                one(rng, 0, 1024 * rng.randint(1, 50)),
                vram_mib=one(rng, 16_384, 40_960) * (milli > 0),
                capability=one(rng, 0, 70, 80) * (milli > 0),
                driver=one(rng, 0, 12_040) * (milli > 0),
                walltime_s=one(rng, 0.0, 86_400.0),
                price=rng.uniform(0.5, 2.0),
                shares=one(rng, 1, 1, 1, 4) if milli == 1000 else 1,
            )
        )
    return tuple(types)


def _drone(rng: Random, load: Load, number: int, kind: DroneType, node: str) -> Drone:
    state = rng.choice(STATES) if load.mixed and rng.random() < 0.7 else DroneState.BUSY
    began = NOW - rng.uniform(100, 9000)
    if state is DroneState.BUSY and rng.random() < 0.5:
        state = DroneState.IDLE
    there = state not in (DroneState.REQUESTED, DroneState.SUBMITTED, DroneState.QUEUED)
    joined = there and state is not DroneState.BOOTING
    busy = joined and (
        state is DroneState.BUSY or (state is DroneState.DRAINING and rng.random() < 0.5)
    )
    work_at = rng.uniform(began, NOW) if busy else 0.0
    return Drone(
        DroneId(f"{PREFIX}-{number}"),
        kind.key,
        state,
        since=began,
        requested_at=began,
        gpu_milli=kind.gpu_milli,
        remote_id="r",
        submitted_at=began if state is not DroneState.REQUESTED else 0.0,
        started_at=began if there else 0.0,
        joined_at=began if joined else 0.0,
        idle_at=0.0 if busy else NOW - rng.uniform(0, 1000),
        busy_at=began if busy else 0.0,
        heard_at=NOW - 1 if joined else 0.0,
        jobs=int(busy),
        jobs_started=int(busy),
        node=node if there else "",
        work_gpu_milli=1000 if busy else 0,
        work_at=work_at,
        for_class=f"c{number % CLASSES}",
        leaving=DroneState.DONE if state in (DroneState.DRAINING, DroneState.STOPPING) else None,
        asked_at=began if state in (DroneState.DRAINING, DroneState.STOPPING) else 0.0,
    )


def _slot(rng: Random, load: Load, drone: Drone) -> Slot:
    state = {DroneState.BUSY: SlotState.BUSY, DroneState.DRAINING: SlotState.DRAINING}.get(
        drone.state, SlotState.IDLE
    )
    new = load.news and rng.random() < 0.8
    return Slot(
        drone.id,
        state,
        NOW - 1,
        free_gpu_milli=one(rng, 0, 500, 1000),
        free_cpus=rng.randint(0, 16),
        free_memory_mib=rng.randint(0, 1 << 15),
        jobs=drone.jobs,
        jobs_started=drone.jobs_started + (rng.randint(0, 5) if new or load.eaters else 0),
        work_gpu_milli=drone.work_gpu_milli,
        work_at=drone.work_at + new * bool(drone.work_at),
        begun_at=drone.work_at,
        owner="u1" if drone.jobs else "",
        retires_at=NOW + 1e5 if new else 0.0,
    )


def _site_view(
    rng: Random, load: Load, made: Sequence[Drone], types: Sequence[DroneType], node_count: int
) -> SiteView:
    remotes = {}
    for drone in made:
        if drone.state is not DroneState.REQUESTED:
            state = RemoteState.RUNNING if drone.started_at else RemoteState.PENDING
            blocked = (
                one(rng, None, None, FaultKind.CONFIG)
                if load.mixed and not drone.started_at
                else None
            )
            remotes[drone.id] = RemoteDrone(
                drone.id,
                state,
                "r",
                started_at=drone.started_at,
                node=drone.node,
                blocked=blocked,
                reason=f"reason {rng.random()}" if load.news else "",
            )
    for number in range(5000, 6000) if load.strays else ():
        stray = DroneId(f"{PREFIX}-{number}")
        remotes[stray] = RemoteDrone(
            stray, RemoteState.RUNNING, "r", started_at=NOW - 100, node="n0"
        )
    names = tuple(kind.name for kind in types)
    nodes = tuple(
        Node(
            f"n{n}",
            names,
            64_000,
            1024,
            4 << 20,
            0,
            one(rng, 0, 2000, 8000),
            one(rng, 0, 4, 64),
            one(rng, 0, 9000, 1 << 18),
            0,
        )
        for n in range(node_count)
    )
    claims = tuple(
        OwnerDemand(
            rng.randint(1, 20),
            1000 * one(rng, 0, 1, 4, 8),
            rng.randint(1, 64),
            rng.randint(1, 1 << 18),
            NOW - 500,
            nodes=one(rng, (), (), ("n0",)),
        )
        for _ in range(rng.randint(1, 4) if load.owner else 0)
    )
    return SiteView(SITE, NOW - 1, remotes, None, nodes, claims)


def _blocking(rng: Random) -> tuple[Reserve, ...]:
    return one(
        rng,
        (Reserve(cpus=4, memory_mib=10_240),),
        (Reserve(("n0",), 8, 20_480, 1024), Reserve(cpus=1)),
    )


def _headroom(rng: Random) -> tuple[Headroom, ...]:
    return tuple(Headroom(f"h{n}", one(rng, 0, 1000), count=rng.randint(1, 50)) for n in range(3))


def _groups(rng: Random) -> tuple[Group, ...]:
    names = ("g", "g.h", "k", *(f"other{n}" for n in range(50)))
    return tuple(
        Group(name, one(rng, None, 0, 5000, 100_000), 1000, rng.random() < 0.5, 1.0)
        for name in names
    )


def _breakers(
    rng: Random, types: Sequence[DroneType], classes: Sequence[JobClass], node_count: int
) -> dict[Scope, Breaker]:
    scopes = [str(kind.key) for kind in types] + [f"{SITE}@n{n}" for n in range(node_count)]
    scopes += [f"{kind.key}#{job.id}" for kind in types for job in classes]
    share = one(rng, 0.1, 0.5)
    return {
        scope: trouble.breaker(rng, scope)
        for scope in map(Scope.parse, scopes)
        if rng.random() < share
    }


def _requests(rng: Random, ids: Sequence[DroneId]) -> tuple[OperatorRequest, ...]:
    parts = (
        [tuple(ids)]
        if rng.random() < 0.5
        else [tuple(ids[n : n + 100]) for n in range(0, len(ids), 100)]
    )
    kinds = (RequestKind.DRAIN, RequestKind.KILL)
    return tuple(
        OperatorRequest(
            n, NOW - 5, rng.choice(kinds), part, "why", "me", rng.choice(list(DrainMode))
        )
        for n, part in enumerate(parts)
    )


def _learned(rng: Random, load: Load, types: Sequence[DroneType]) -> Estimates:
    runs = {f"u{n}": tuple(sorted(rng.uniform(10, 1e5) for _ in range(50))) for n in range(3)}
    delays = {kind.key: StartDelays(rng.uniform(1, 2000), rng.uniform(10, 600)) for kind in types}
    rise = OwnerGrowth(
        tuple(tuple(sorted(1000 * rng.randint(0, 64) for _ in range(100))) for _ in HORIZONS_S)
    )
    estimates = Estimates(runs, delays, {SITE: rise} if load.owned else {}, {}, {SITE: 30.0})
    return estimates if rng.random() < 0.8 else replace(estimates, runs={}, delays={})
