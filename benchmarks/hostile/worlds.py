"""Snapshots from a seed: parts that contradict each other, and values that no honest adapter gives.

The record is as a store could hold it. Views are as confused or hostile adapters could give them; they cross the border
of the service as all views do. Every third world has classes and slots from ClassAds (:mod:`benchmarks.hostile.ads`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

from benchmarks.hostile import ads
from provisioner.learned import HORIZONS_S, NOTHING_LEARNED, Delays, Learned, Rise
from provisioner.model import (
    Breaker,
    BreakerState,
    Claim,
    DrainMode,
    Drone,
    DroneId,
    DroneState,
    DroneType,
    EndKind,
    Eviction,
    Fault,
    FaultKind,
    Group,
    Headroom,
    JobClass,
    Misfit,
    Node,
    OperatorRequest,
    OverlayReading,
    OverlayView,
    OwnerLoad,
    Patience,
    Policy,
    RemoteDrone,
    RemoteEnd,
    RemoteState,
    RequestKind,
    Reserve,
    ReserveWhen,
    Sharing,
    SitePolicy,
    SiteReading,
    SiteView,
    Slot,
    SlotState,
    Snapshot,
    TypeKey,
)
from provisioner.service.border import Border

T = TypeVar("T")

NOW = 1_770_000_000.0
PREFIX = "kit-ab12"
SITES = ("a", "b")
LIVE = tuple(state for state in DroneState if not state.ended)
ODD_NUMBERS = (-1, 0, 1, 1 << 31, 1 << 53, (1 << 53) + 1, 1 << 70, float("nan"), float("inf"), -float("inf"), 0.5)
ODD_TEXTS = ("", "a,b", "\x1b[31m", "\u202egnp", "\ud800", "../../etc", "all", "x" * 5000, "drone:kit-ab12-1", "\n")


def world(seed: int) -> Snapshot:
    """Return a small snapshot, the same for the same seed."""
    rng = Random(seed)
    types = _types(rng)
    hostile = rng.random() < 0.4
    classes = tuple(_class(rng, f"c{n}", types) for n in range(rng.randint(0, 6)))
    drones = {drone.id: drone for drone in (_drone(rng, n, types) for n in range(rng.randint(0, 12)))}
    slots = tuple(_slot(rng, drone_id) for drone_id in drones if rng.random() < 0.7)
    if seed % 3 == 0:
        classes, slots = (*classes, *ads.classes(rng)), (*slots[::2], *ads.slots(rng, list(drones)[1::2], PREFIX))
    if hostile:
        classes = tuple(_spoiled(rng, job) for job in classes)
        slots = tuple(_spoiled(rng, slot) for slot in slots)
    evictions = tuple(Eviction(s.drone_id, "j", _past(rng), 1000, 5.0) for s in slots[:2])
    groups = tuple(
        Group(name, _one(rng, None, 0, 2000, 100_000), _one(rng, 0, 1000, 5000), rng.random() < 0.5, rng.uniform(0, 5))
        for name in ("g", "g.h", "k")
        if rng.random() < 0.3
    )
    view = OverlayView(
        NOW - _one(rng, 0.0, 1.0, 500.0), classes, slots, NOW - 5, (), _one(rng, None, (), evictions), None, groups
    )
    overlay = OverlayReading(
        Border().taken_over(view, NOW, 0.0) if rng.random() < 0.97 else None,
        Fault(FaultKind.DOWN, "d", NOW - 1) if rng.random() < 0.1 else None,
    )
    listed = _listings(rng, drones)
    readings = {site: _reading(rng, site, types, listed[site], hostile=hostile) for site in SITES}
    headroom = _one(rng, (), (Headroom("h", _one(rng, 0, 1000), count=rng.randint(1, 5)),))
    policy = Policy(
        max_drones=_one(rng, 0, 5, 1000),
        max_gpu_milli=_one(rng, None, 3000),
        brake_fraction=_one(rng, 0.2, 1.0),
        brake_min=_one(rng, 1, 5, 50),
        sites={site: _site_policy(rng, site) for site in SITES},
        headroom=headroom,
        wait_worth=_one(rng, 0.0, 0.3),
    )
    return Snapshot(
        now=NOW,
        tick=7,
        id_prefix=PREFIX,
        next_serial=42,
        policy=policy,
        types=types,
        overlay=overlay,
        sites=readings,
        drones=drones,
        breakers=_breakers(rng, types, classes),
        requests=_requests(rng),
        gpu_wanted_at=_one(rng, NOW, NOW - 5000),
        patience={"a": Patience("a", _past(rng), rng.randint(0, 3), rng.randint(0, 3))} if rng.random() < 0.2 else {},
        learned=_learned(rng, types),
    )


def large(seed: int, drones: int = 1000, shapes: int = 20) -> Snapshot:
    """Return a snapshot with so many drones, on nodes with so many shapes each, an owner who waits, and jobs."""
    rng = Random(seed)
    types = tuple(
        DroneType("a", f"t{n}", gpus, rng.randint(1, 16), 2048 * rng.randint(1, 10) + n, 0, vram_mib=40960 * (gpus > 0))
        for n in range(shapes)
        for gpus in (_one(rng, 0, 0, 1000, 1000, 2000),)
    )
    nodes = _one(rng, 1, 2, 5, 10, 50)
    made = [_working(rng, n, types[n % shapes], f"n{n // shapes % nodes}") for n in range(drones)]
    slots = tuple(
        Slot(d.id, SlotState.BUSY if d.jobs else SlotState.IDLE, NOW - 1, jobs=d.jobs, jobs_started=d.jobs_started,
             work_gpu_milli=d.work_gpu_milli, work_at=d.work_at)
        for d in made
    )  # fmt: skip
    remotes = {d.id: RemoteDrone(d.id, RemoteState.RUNNING, "r", started_at=d.started_at, node=d.node) for d in made}
    names = tuple(kind.name for kind in types)
    floor = tuple(
        Node(f"n{n}", names, 64_000, 1024, 4 << 20, 0, _one(rng, 0, 2000), 4, 9000, 0) for n in range(nodes)
    )
    claims = tuple(
        Claim(rng.randint(1, 20), 1000 * _one(rng, 0, 1, 4, 8), rng.randint(1, 64), rng.randint(1, 1 << 18), NOW - 500)
        for _ in range(rng.randint(1, 3))
    )
    site = SiteView("a", NOW - 1, remotes, None, floor, claims)
    classes = tuple(_class(rng, f"c{n}", types) for n in range(100))
    return Snapshot(
        now=NOW,
        tick=7,
        id_prefix=PREFIX,
        next_serial=drones + 1,
        policy=Policy(max_drones=10_000, sites={"a": SitePolicy("a", max_drones=10_000, max_pending=1000)}),
        types=types,
        overlay=OverlayReading(OverlayView(NOW - 1, classes, slots, NOW - 5)),
        sites={"a": SiteReading("a", site)},
        drones={d.id: d for d in made},
        gpu_wanted_at=NOW,
        learned=_learned(rng, types),
    )


# ------------------------------------------------------------------------------------------------------------ parts


def _one(rng: Random, *values: T) -> T:
    return rng.choice(values)


def _past(rng: Random) -> float:
    return _one(rng, 0.0, NOW - rng.uniform(0, 100), NOW - rng.uniform(0, 10_000), NOW - rng.uniform(0, 2e5))


def _time(rng: Random) -> float:
    return _past(rng) if rng.random() < 0.8 else NOW + rng.uniform(0, 1000)


def _spoiled(rng: Random, value: T) -> T:
    """Return a slot, class, drone or node with some fields that cannot be."""
    if rng.random() < 0.5:
        return value
    names = list(type(value).__dataclass_fields__)  # type: ignore[attr-defined]
    changes: dict[str, object] = {}
    for name in rng.sample(names, min(3, len(names))):
        now = getattr(value, name)
        if type(now) in (int, float):
            changes[name] = rng.choice(ODD_NUMBERS)
        elif type(now) is str and name not in ("drone_id", "id"):
            changes[name] = rng.choice(ODD_TEXTS)
    return replace(value, **changes)  # type: ignore[type-var]


def _types(rng: Random) -> tuple[DroneType, ...]:
    types = []
    for site in SITES:
        for name in ("x", "y", "cpu")[: rng.randint(1, 3)]:
            milli = 0 if name == "cpu" else _one(rng, 500, 1000, 1000, 2000, 4000)
            shares = _one(rng, 1, 1, 1, 2, 4) if milli >= 1000 else 1
            types.append(
                DroneType(
                    site, name, milli, _one(rng, 1, 8, 64), _one(rng, 1024, 20_480, 262_144),
                    _one(rng, 0, 1024, 102_400), vram_mib=_one(rng, 0, 16_384, 40_960) if milli else 0,
                    capability=_one(rng, 0, 70, 80) if milli else 0, walltime_s=_one(rng, 0.0, 600.0, 7200.0, 86_400.0),
                    sharing=Sharing.EXCLUSIVE if shares == 1 else _one(rng, Sharing.MPS, Sharing.MIG), shares=shares,
                    price=_one(rng, 0.0, 1.0, 2.0), max_drones=_one(rng, None, None, 0, 3),
                    kept_cpus=_one(rng, 0, 0, 1), kept_memory_mib=_one(rng, 0, 512),
                )
            )  # fmt: skip
    return tuple(types)


def _class(rng: Random, name: str, types: Sequence[DroneType]) -> JobClass:
    refuses = {kind.key: Misfit("arch", "a", "b") for kind in types if rng.random() < 0.1}
    return JobClass(
        name, _one(rng, 0, 1, 200, 500, 1000, 1000, 2000, 4000, 1500), _one(rng, 0, 1, 1, 4, 8, 64),
        _one(rng, 0, 1024, 20_480), _one(rng, 0, 0, 1024), _one(rng, 0, 0, 16_384, 40_960), _one(rng, 0, 0, 80),
        waiting=_one(rng, 0, 1, 3, 50), fresh=_one(rng, 0, 0, 2), running=_one(rng, 0, 2), oldest_at=_past(rng),
        owner=_one(rng, "u1", "u2", "", "u,3", "g.u1"), priority=rng.randint(-3, 3),
        walltime_s=_one(rng, 0.0, 0.0, 60.0, 3600.0, 1e5), invalid=_one(rng, "", "", "", "odd"), refuses=refuses,
        group=_one(rng, "", "g", "g.h", "k"), splits=rng.random() < 0.8, idle_at=_past(rng),
    )  # fmt: skip


def _drone(rng: Random, number: int, types: Sequence[DroneType]) -> Drone:
    """Return a drone as a store could hold it: what it reached is in the order of a life."""
    keys = [kind.key for kind in types]
    key = _one(rng, *keys, TypeKey("a/gone"), TypeKey("z/lost")) if rng.random() < 0.2 else rng.choice(keys)
    kind = next((kind for kind in types if kind.key == key), None)
    made = Drone(
        DroneId(f"{PREFIX}-{number}"), key, rng.choice(LIVE), since=_past(rng) or NOW - 5,
        requested_at=_past(rng) or NOW - 50, gpu_milli=kind.gpu_milli if kind else 1000, remote_id=_one(rng, "", "r"),
        submitted_at=_past(rng), started_at=_past(rng), joined_at=_past(rng), busy_at=_past(rng), idle_at=_past(rng),
        heard_at=_past(rng), jobs=_one(rng, 0, 0, 1, 3), jobs_started=_one(rng, 0, 1, 5),
        missing_at=_one(rng, 0.0, 0.0, _past(rng)), unslotted_at=_one(rng, 0.0, 0.0, _past(rng)),
        leaving=_one(rng, None, None, DroneState.DONE, DroneState.WITHDRAWN, DroneState.PREEMPTED, DroneState.LOST),
        asked_at=_past(rng), asked=rng.randint(0, 4), retires_at=_time(rng), node=_one(rng, "", "n1", "n2"),
        notice_at=_one(rng, 0.0, 0.0, _past(rng)), work_gpu_milli=_one(rng, 0, 1000), work_at=_past(rng),
        avoids=_one(rng, "", "", "u1", "u1,u2"), for_class=_one(rng, "c0", "c1", "headroom:h"),
    )  # fmt: skip
    if made.state in (DroneState.JOINED, DroneState.IDLE, DroneState.BUSY):
        at = made.joined_at or NOW - 50
        made = replace(made, joined_at=at, started_at=made.started_at or at, submitted_at=made.submitted_at or at)
    if not made.joined_at:
        return replace(made, jobs=0, jobs_started=0, busy_at=0.0)
    return made


def _working(rng: Random, number: int, kind: DroneType, node: str) -> Drone:
    began = NOW - rng.uniform(100, 9000)
    work_at = _one(rng, 0.0, rng.uniform(began, NOW))
    busy = work_at > 0
    return Drone(
        DroneId(f"{PREFIX}-{number}"), kind.key, DroneState.BUSY if busy else DroneState.IDLE, since=began,
        requested_at=began, gpu_milli=kind.gpu_milli, remote_id="r", submitted_at=began, started_at=began,
        joined_at=began, idle_at=0.0 if busy else NOW - rng.uniform(0, 1000), busy_at=began if busy else 0.0,
        heard_at=NOW - 1, jobs=int(busy), jobs_started=int(busy), node=node,
        work_gpu_milli=1000 if busy else 0, work_at=work_at,
    )  # fmt: skip


def _slot(rng: Random, drone_id: DroneId) -> Slot:
    return Slot(
        drone_id, rng.choice(list(SlotState)), heard_at=_one(rng, NOW - 1, NOW - 60, NOW - 5000, NOW + 100),
        free_gpu_milli=_one(rng, 0, 500, 1000, 4000), free_cpus=_one(rng, 0, 4, 8),
        free_memory_mib=_one(rng, 0, 1024, 20_480), free_disk_mib=_one(rng, 0, 1024), jobs=_one(rng, 0, 0, 1, 2),
        jobs_started=_one(rng, 0, 1, 6), idle_since=_past(rng), retires_at=_time(rng),
        work_gpu_milli=_one(rng, 0, 1000), work_at=_past(rng), owner=_one(rng, "", "u1"), begun_at=_past(rng),
    )  # fmt: skip


def _listings(rng: Random, drones: dict[DroneId, Drone]) -> dict[str, dict[DroneId, RemoteDrone]]:
    """Return what each site lists: most of its own, some of the other's, and strays, perhaps the same in both."""
    listed: dict[str, dict[DroneId, RemoteDrone]] = {site: {} for site in SITES}
    for drone in drones.values():
        if rng.random() < 0.75:
            site = drone.site if drone.site in listed and rng.random() < 0.97 else rng.choice(SITES)
            listed[site][drone.id] = _remote(rng, drone.id)
    for site in SITES:
        for _ in range(_one(rng, 0, 0, 1, 2)):
            stray = DroneId(f"{PREFIX}-{_one(rng, 13, 30, 31, 45, '0x', 9 * '9')}")
            listed[site][stray] = _remote(rng, stray)
    return listed


def _remote(rng: Random, drone_id: DroneId) -> RemoteDrone:
    state = rng.choice(list(RemoteState))
    end = RemoteEnd(
        rng.choice(list(EndKind)), _past(rng), _one(rng, None, 0, 73, 1), "m",
        _one(rng, None, FaultKind.NODE, FaultKind.DOWN, FaultKind.CONFIG),
    )  # fmt: skip
    told = rng.random() < (0.8 if state is RemoteState.ENDED else 0.05)
    return RemoteDrone(
        drone_id, state, _one(rng, "", "r", "q"), _one(rng, "x", "", "odd"), started_at=_past(rng),
        reason=_one(rng, "", "why"), expected_start_at=_time(rng), end=end if told else None,
        node=_one(rng, "", "n1", "n2", "nx"), notice_at=_one(rng, 0.0, 0.0, _past(rng)),
        blocked=_one(rng, None, None, FaultKind.QUOTA, FaultKind.CONFIG, FaultKind.CAPACITY),
        final=rng.random() < 0.1,
    )  # fmt: skip


def _reading(
    rng: Random, site: str, types: Sequence[DroneType], listed: dict[DroneId, RemoteDrone], *, hostile: bool
) -> SiteReading:
    names = tuple(kind.name for kind in types if kind.site == site)
    nodes = tuple(_node(rng, name, names) for name in ("n1", "n2")) if rng.random() < 0.5 else ()
    claims = tuple(
        Claim(_one(rng, 0, 1, 3, 20), _one(rng, 0, 1000, 2000, 8000), _one(rng, 0, 1, 32), _one(rng, 0, 1024, 262_144),
              _past(rng), _one(rng, 0, 1024), _one(rng, (), ("n1",), ("n1", "n2"), ("zz",)))
        for _ in range(rng.randint(0, 2))
    )  # fmt: skip
    if hostile:
        nodes, claims = tuple(_spoiled(rng, n) for n in nodes), tuple(_spoiled(rng, c) for c in claims)
        listed = {drone_id: _spoiled(rng, remote) for drone_id, remote in listed.items()}
    view = SiteView(
        site, NOW - _one(rng, 0.0, 1.0, 10.0, 500.0), listed,
        _one(rng, None, {name: _one(rng, 0, 1, 5, 100) for name in names}), nodes, claims,
        _one(rng, None, OwnerLoad(1, 1000, 1, 1)),
        _one(rng, 0.0, 0.0, NOW + 100, NOW + 4000, NOW - 100, NOW + 1e6), (),
        _one(rng, None, None, {name: _one(rng, 0, 2) for name in names}), _one(rng, None, 0, 5000),
    )  # fmt: skip
    fault = Fault(rng.choice(list(FaultKind)), "f", NOW - 2) if rng.random() < 0.1 else None
    seen = Border().taken_over(view, NOW, 0.0) if rng.random() < 0.95 else None
    return SiteReading(site, seen, fault, rng.random() < 0.1)


def _node(rng: Random, name: str, types: tuple[str, ...]) -> Node:
    gpus, cpus, memory = _one(rng, 0, 4000, 8000), _one(rng, 0, 64, 128), _one(rng, 0, 262_144, 1 << 20)
    disk = _one(rng, 0, 102_400)
    return Node(
        name, types[: rng.randint(0, len(types))], gpus, cpus, memory, disk, _one(rng, 0, gpus, gpus // 2, gpus * 2),
        _one(rng, 0, cpus, cpus // 2, cpus * 2), _one(rng, 0, memory), _one(rng, 0, disk),
    )  # fmt: skip


def _site_policy(rng: Random, site: str) -> SitePolicy:
    whole = Reserve(cpus=4, memory_mib=1024, when=rng.choice(list(ReserveWhen)))
    return SitePolicy(
        site, rng.random() < 0.9, _one(rng, 0, 1, 10, 100), _one(rng, None, 0, 2500, 10_000), _one(rng, 1, 3, 20),
        _one(rng, 1, 3, 10), _one(rng, 0.0, 1.0), rng.random() < 0.4,
        blocking=_one(rng, (), (), (whole,), (Reserve(nodes=("n1",), cpus=8), Reserve(cpus=2))),
        ask_for_owner=rng.random() < 0.8, min_run_s=_one(rng, 0.0, 3600.0), grace_s=_one(rng, 0.0, 30.0),
        idle_timeout_s=_one(rng, None, 60.0),
    )  # fmt: skip


def _breakers(rng: Random, types: Sequence[DroneType], classes: Sequence[JobClass]) -> dict[str, Breaker]:
    scopes = ["overlay", *SITES, *(str(kind.key) for kind in types)]
    scopes += [f"{kind.key}#{job.id}" for kind in types for job in classes[:2]]
    breakers = {}
    for scope in scopes:
        if rng.random() < 0.2:
            state = rng.choice(list(BreakerState))
            if scope == "overlay":
                state = _one(rng, BreakerState.DEGRADED, BreakerState.ACTIVE)
            fault = Fault(rng.choice(list(FaultKind)), "x", _past(rng), rng.random() < 0.5, rng.random() < 0.5)
            until = _one(rng, 0.0, NOW - 10, NOW + 50)
            known = fault if rng.random() < 0.8 else None
            breakers[scope] = Breaker(scope, state, _past(rng), rng.randint(0, 5), until, known, _past(rng))
    return breakers


def _requests(rng: Random) -> tuple[OperatorRequest, ...]:
    count = rng.randint(0, 2) if rng.random() < 0.3 else 0
    return tuple(
        OperatorRequest(
            n, NOW - 5, rng.choice(list(RequestKind)),
            tuple(DroneId(f"{PREFIX}-{rng.randint(0, 14)}") for _ in range(rng.randint(1, 3))), "w", "me",
            rng.choice(list(DrainMode)),
        )
        for n in range(count)
    )  # fmt: skip


def _learned(rng: Random, types: Sequence[DroneType]) -> Learned:
    if rng.random() < 0.5:
        return NOTHING_LEARNED
    delays = {kind.key: Delays(_one(rng, 1.0, 2000.0), _one(rng, 10.0, 600.0)) for kind in types if rng.random() < 0.5}
    rise = Rise(tuple((0, 1000, 8000) for _ in HORIZONS_S))
    return Learned({"u1": (10.0, 60.0, 7000.0), "": (30.0,)}, delays, {"a": rise}, {"b": 1e-4}, {"a": 30.0})
