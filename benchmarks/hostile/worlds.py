"""Snapshots from a seed: parts that contradict each other, and values that no honest adapter gives.

The record is as a store could hold it. Views are as confused or hostile adapters could give them;
they cross the border of the service as all views do. Every third world has classes and slots from
ClassAds (:mod:`benchmarks.hostile.ads`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

from benchmarks.hostile import ads, trouble
from benchmarks.hostile.trouble import NODES, NOW, PREFIX, odd_time, one, past
from provisioner.controller.sanitize import Sanitizer
from provisioner.estimates import HORIZONS_S, NO_ESTIMATES, Estimates, OwnerGrowth, StartDelays
from provisioner.job_filter import JobFilter
from provisioner.model import (
    ENDS,
    WHOLE_GPU,
    DrainMode,
    Drone,
    DroneId,
    DroneState,
    DroneType,
    EndKind,
    Fault,
    FaultKind,
    Group,
    Headroom,
    JobClass,
    Node,
    OverlayView,
    OwnerClaimBackoff,
    OwnerDemand,
    OwnerLoad,
    Policy,
    PolledOverlay,
    PolledSite,
    RemoteDrone,
    RemoteEnd,
    RemoteState,
    Reserve,
    Sharing,
    SitePolicy,
    SiteView,
    Slot,
    SlotState,
    Snapshot,
    TypeKey,
    UnmetRequirement,
)

T = TypeVar("T")

SITES = ("a", "b")
LIVE = tuple(state for state in DroneState if not state.ended)
ODD_NUMBERS = (
    -1,
    0,
    1,
    1 << 31,
    1 << 53,
    (1 << 53) + 1,
    1 << 70,
    float("nan"),
    float("inf"),
    -float("inf"),
    0.5,
)
ODD_TEXTS = (
    "",
    "a,b",
    "\x1b[31m",
    "\u202egnp",
    "\ud800",
    "../../etc",
    "all",
    "x" * 5000,
    "drone:kit-ab12-1",
    "\n",
)


def world(seed: int) -> Snapshot:
    """Return a small snapshot, the same for the same seed."""
    rng = Random(seed)
    types = random_types(rng)
    hostile = rng.random() < 0.4
    # all views can be believed, and limits leave room: else hardly anything is done
    calm = rng.random() < 0.7
    classes = tuple(random_class(rng, f"c{n}", types) for n in range(rng.randint(0, 6)))
    drones = {
        drone.id: drone
        for drone in (random_drone(rng, n, types) for n in range(rng.randint(0, 12)))
    }
    slots = tuple(random_slot(rng, drone_id) for drone_id in drones if rng.random() < 0.7)
    if seed % 3 == 0:
        classes, slots = (
            (*classes, *ads.classes(rng)),
            (*slots[::2], *ads.slots(rng, list(drones)[1::2], PREFIX)),
        )
    if rng.random() < 0.1:  # told twice, and not the same
        slots = (*slots, *(random_slot(rng, slot.drone_id) for slot in slots[:3]))
        classes = (*classes, *(random_class(rng, job.id, types) for job in classes[:2]))
    if calm:
        classes = (*classes, *(modest(job, types) for job in classes))
    listed = random_listings(rng, drones)
    seen = random_pool(rng, classes, slots, list(drones), hostile=hostile, calm=calm)
    overlay = PolledOverlay(
        Sanitizer().sanitized(seen, NOW, one(rng, 0.0, 0.0, 0.0, 3600.0, -500.0, 1e7))
        if rng.random() < 0.97
        else None,
        Fault(FaultKind.DOWN, "d", NOW - 1) if not calm and rng.random() < 0.1 else None,
    )
    # its drones are on record all the same
    configured = SITES if rng.random() < 0.97 else SITES[:1]
    ended = [
        drone_id for listing in listed.values() for drone_id in listing if drone_id not in drones
    ]
    return Snapshot(
        now=NOW,
        tick=7,
        id_prefix=PREFIX,
        next_serial=100,  # as the controller sets it: above all that a view shows
        policy=random_policy(rng, configured, calm=calm),
        types=tuple(kind for kind in types if kind.site in configured),
        overlay=overlay,
        sites={
            site: random_reading(rng, site, types, listed[site], hostile=hostile, calm=calm)
            for site in configured
        },
        drones=drones,
        breakers=trouble.breakers(
            rng, SITES, types, classes, one(rng, 0.0, 0.02, 0.1) if calm else 0.5
        ),
        requests=trouble.requests(rng, SITES, list(drones), 3) if rng.random() < 0.3 else (),
        ended={drone_id: rng.choice(list(ENDS)) for drone_id in ended if rng.random() < 0.5},
        patience={"a": OwnerClaimBackoff("a", odd_time(rng), rng.randint(0, 3), rng.randint(0, 3))}
        if rng.random() < 0.2
        else {},
        estimates=random_learned(rng, types),
        drift_s=one(rng, 0.0, 5000.0, -1e6),
    )


# ------------------------------------------------------------------------------------------------------------
# parts


def _time(rng: Random) -> float:
    return past(rng) if rng.random() < 0.8 else NOW + rng.uniform(0, 1000)


def spoiled(rng: Random, value: T) -> T:
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


def random_pool(
    rng: Random,
    classes: tuple[JobClass, ...],
    slots: tuple[Slot, ...],
    drones: list[DroneId],
    *,
    hostile: bool,
    calm: bool,
) -> OverlayView:
    """Return a view of the overlay with these classes and slots, and with jobs that failed or ended in ``drones``."""
    groups = tuple(
        Group(
            name,
            one(rng, None, 0, 2000, 100_000),
            one(rng, 0, 1000, 5000),
            rng.random() < 0.5,
            rng.uniform(0, 5),
        )
        for name in ("g", "g.h", "k", "G", "", ".", "g..h")
        if rng.random() < 0.2
    )
    failed = trouble.mishaps(rng, drones, 30) if rng.random() < 0.5 else ()
    done = one(rng, None, (), trouble.completions(rng, drones, 20))
    left = one(rng, None, (), trouble.evictions(rng, drones, 5))
    if hostile:
        classes, slots = (
            tuple(spoiled(rng, job) for job in classes),
            tuple(spoiled(rng, slot) for slot in slots),
        )
        failed, groups = (
            tuple(spoiled(rng, each) for each in failed),
            tuple(spoiled(rng, each) for each in groups),
        )
        done = done and tuple(spoiled(rng, each) for each in done)
        left = left and tuple(spoiled(rng, each) for each in left)
    taken_at = one(rng, NOW, NOW - 1, NOW - 500, odd_time(rng), float("nan") if hostile else NOW)
    taken_at = NOW - 1 if calm else taken_at
    negotiated_at = one(rng, NOW - 5, NOW - 5, 0.0, odd_time(rng))
    return OverlayView(
        taken_at, classes, slots, negotiated_at, (), left, done, groups=groups, mishaps=failed
    )


def random_policy(rng: Random, sites: Sequence[str], *, calm: bool) -> Policy:
    """Return limits of all kinds, also such as stop everything."""
    headroom = tuple(
        Headroom(
            f"h{n}" if n else "h",
            one(rng, 0, 200, 1000),
            one(rng, 0, 1, 8),
            one(rng, 0, 1024),
            one(rng, 0, 1024),
            one(rng, 0, 16_384),
            count=rng.randint(0, 5),
            site=one(rng, "", "", "a", "zz"),
            types=one(rng, (), ("x",), ("none",)),
            from_h=rng.randint(0, 23),
            to_h=rng.randint(0, 24),
        )
        for n in range(one(rng, 0, 0, 1, 3))
    )
    found = Policy(
        idle_timeout_s=one(rng, 1.0, 60.0, 600.0, 1e6),
        max_drones=one(rng, 0, 5, 1000),
        max_gpu_milli=one(rng, None, 0, 3000),
        overlay_max_age_s=one(rng, 1.0, 120.0, 120.0, 1e5),
        slot_max_age_s=one(rng, 900.0, 900.0, 10.0),
        max_unhealthy_fraction=one(rng, 0.2, 1.0),
        min_unhealthy=one(rng, 1, 5, 50),
        sites={site: random_site_policy(rng, site) for site in sites},
        headroom=headroom,
        waiting_cost=one(rng, 0.0, 0.3),
        idle_fixed=rng.random() < 0.2,
    )
    if not calm:
        return found
    room = {"enabled": True, "max_drones": 100, "max_gpu_milli": None, "max_pending": 20}
    roomy = {name: replace(each, **room) for name, each in found.sites.items()}  # type: ignore[arg-type]
    most = one(rng, None, 9000)
    return replace(
        found,
        max_drones=1000,
        overlay_max_age_s=120.0,
        max_unhealthy_fraction=1.0,
        sites=roomy,
        max_gpu_milli=most,
    )


def random_types(rng: Random) -> tuple[DroneType, ...]:
    types = []
    for site in SITES:
        for name in ("x", "y", "cpu")[: rng.randint(1, 3)]:
            milli = 0 if name == "cpu" else one(rng, 500, 1000, 1000, 2000, 4000)
            shares = one(rng, 1, 1, 1, 2, 4) if milli >= 1000 else 1
            types.append(
                DroneType(
                    site,
                    name,
                    milli,
                    one(rng, 1, 8, 64),
                    one(rng, 1024, 20_480, 262_144),
                    one(rng, 0, 1024, 102_400),
                    vram_mib=one(rng, 0, 16_384, 40_960) if milli else 0,
                    capability=one(rng, 0, 70, 80) if milli else 0,
                    walltime_s=one(rng, 0.0, 600.0, 7200.0, 86_400.0),
                    sharing=Sharing.EXCLUSIVE
                    if shares == 1
                    else one(rng, Sharing.MPS, Sharing.MIG),
                    shares=shares,
                    price=one(rng, 0.0, 1.0, 2.0),
                    max_drones=one(rng, None, None, 0, 3),
                    kept_cpus=one(rng, 0, 0, 1),
                    kept_memory_mib=one(rng, 0, 512),
                    kept_disk_mib=one(rng, 0, 0, 512),
                    driver=one(rng, 0, 12_040) if milli else 0,
                    arch=one(rng, "X86_64", "X86_64", "aarch64"),
                    margin_s=one(rng, 0.0, 120.0, 1e6),
                )
            )
    return tuple(types)


def random_class(rng: Random, name: str, types: Sequence[DroneType]) -> JobClass:
    refuses = {kind.key: UnmetRequirement("arch", "a", "b") for kind in types if rng.random() < 0.1}
    return JobClass(
        name,
        one(rng, 0, 1, 200, 500, 1000, 1000, 2000, 4000, 1500),
        one(rng, 0, 1, 1, 4, 8, 64),
        one(rng, 0, 1024, 20_480),
        one(rng, 0, 0, 1024),
        one(rng, 0, 0, 16_384, 40_960),
        one(rng, 0, 0, 80),
        waiting=one(rng, 0, 1, 3, 50),
        fresh=one(rng, 0, 0, 2),
        running=one(rng, 0, 2),
        oldest_at=past(rng),
        owner=one(rng, "u1", "u2", "", "u,3", "g.u1"),
        priority=rng.randint(-3, 3),
        walltime_s=one(rng, 0.0, 0.0, 60.0, 3600.0, 1e5),
        invalid=one(rng, "", "", "", "odd"),
        refuses=refuses,
        group=one(rng, "", "g", "g.h", "k"),
        splits=rng.random() < 0.8,
        idle_at=past(rng),
        driver=one(rng, 0, 0, 0, 12_040),
        arch=one(rng, "", "", "", "X86_64", "aarch64"),
        held=one(rng, 0, 3),
        duty_milli=one(rng, 0, 0, 100, 1000),
        width_milli=one(rng, 0, 0, 100, 1000),
        limited=one(rng, 0, 0, 0, 1, 100),
        limit=one(rng, "", "limit"),
    )


def modest(job: JobClass, types: Sequence[DroneType]) -> JobClass:
    """Return a class like ``job`` whose jobs wait and fit the first type."""
    kind = types[0]
    return replace(
        job,
        id=f"{job.id}-modest",
        gpu_milli=min(WHOLE_GPU, kind.gpu_milli),
        cpus=1,
        memory_mib=512,
        disk_mib=0,
        vram_mib=0,
        capability=0,
        driver=0,
        arch="",
        walltime_s=0.0,
        invalid="",
        refuses={},
        limited=0,
        waiting=max(1, job.waiting),
        oldest_at=NOW - 5000,
        idle_at=0.0,
    )


def random_drone(rng: Random, number: int, types: Sequence[DroneType]) -> Drone:
    """Return a drone as a store could hold it: what it reached is in the order of a life."""
    keys = [kind.key for kind in types]
    key = (
        one(rng, *keys, TypeKey("a/gone"), TypeKey("z/lost"))
        if rng.random() < 0.2
        else rng.choice(keys)
    )
    kind = next((kind for kind in types if kind.key == key), None)
    made = Drone(
        DroneId(f"{PREFIX}-{number}"),
        key,
        rng.choice(LIVE),
        since=past(rng) or NOW - 5,
        requested_at=past(rng) or NOW - 50,
        gpu_milli=kind.gpu_milli if kind else 1000,
        remote_id=one(rng, "", "r"),
        submitted_at=past(rng),
        started_at=past(rng),
        joined_at=past(rng),
        busy_at=past(rng),
        idle_at=past(rng),
        heard_at=past(rng),
        jobs=one(rng, 0, 0, 1, 3),
        jobs_started=one(rng, 0, 1, 5),
        missing_at=one(rng, 0.0, 0.0, past(rng)),
        unslotted_at=one(rng, 0.0, 0.0, past(rng)),
        leaving=one(
            rng,
            None,
            None,
            DroneState.DONE,
            DroneState.CANCELLED,
            DroneState.PREEMPTED,
            DroneState.LOST,
        ),
        asked_at=past(rng),
        asked=rng.randint(0, 4),
        retires_at=_time(rng),
        node=one(rng, "", *NODES),
        notice_at=one(rng, 0.0, 0.0, past(rng)),
        work_gpu_milli=one(rng, 0, 1000),
        work_at=past(rng),
        job_filter=JobFilter(one(rng, (), (), ("u1",), ("u1", "u2"))),
        for_class=one(rng, "", "c0", "c1", "headroom:h", "headroom:gone"),
        drain_mode=rng.choice(list(DrainMode)),
        drain_refusal=one(rng, "", "", "no"),
        slot=one(rng, "", "slot1@x"),
    )
    if made.state in (DroneState.JOINED, DroneState.IDLE, DroneState.BUSY):
        at = made.joined_at or NOW - 50
        made = replace(
            made,
            joined_at=at,
            started_at=made.started_at or at,
            submitted_at=made.submitted_at or at,
        )
    if not made.joined_at:
        return replace(made, jobs=0, jobs_started=0, busy_at=0.0)
    return made


def random_slot(rng: Random, drone_id: DroneId) -> Slot:
    return Slot(
        drone_id,
        rng.choice(list(SlotState)),
        heard_at=one(rng, NOW - 1, NOW - 60, NOW - 5000, odd_time(rng)),
        free_gpu_milli=one(rng, 0, 500, 1000, 4000),
        free_cpus=one(rng, 0, 4, 8),
        free_memory_mib=one(rng, 0, 1024, 20_480),
        free_disk_mib=one(rng, 0, 1024),
        jobs=one(rng, 0, 0, 1, 2),
        jobs_started=one(rng, 0, 1, 6),
        idle_since=past(rng),
        retires_at=_time(rng),
        work_gpu_milli=one(rng, 0, 1000),
        work_at=past(rng),
        owner=one(rng, "", "u1"),
        begun_at=past(rng),
        name=one(rng, "", "slot1@x"),
        vram_mib=one(rng, 0, 16_384),
        capability=one(rng, 0, 80),
        job_gpu_milli=one(rng, 0, 1000),
        job_cpus=one(rng, 0, 4),
        job_memory_mib=one(rng, 0, 1024),
        job_ids=one(rng, "", "1.0", "1.0,2.0"),
    )


def random_listings(
    rng: Random, drones: dict[DroneId, Drone]
) -> dict[str, dict[DroneId, RemoteDrone]]:
    """Return what each site lists: most of its own, some of the other's, and strays, perhaps the same in both."""
    listed: dict[str, dict[DroneId, RemoteDrone]] = {site: {} for site in SITES}
    for drone in drones.values():
        if rng.random() < 0.75:
            site = drone.site if drone.site in listed and rng.random() < 0.97 else rng.choice(SITES)
            listed[site][drone.id] = random_remote(rng, drone.id)
    for site in SITES:
        for _ in range(one(rng, 0, 0, 1, 2, 30)):
            stray = DroneId(
                f"{PREFIX}-{one(rng, 13, 30, 31, 45, '0x', 9 * '9', rng.randint(20, 99))}"
            )
            listed[site][stray] = random_remote(rng, stray)
    return listed


def random_remote(rng: Random, drone_id: DroneId) -> RemoteDrone:
    state = rng.choice(list(RemoteState))
    end = RemoteEnd(
        rng.choice(list(EndKind)),
        past(rng),
        one(rng, None, 0, 73, 1),
        "m",
        one(rng, None, FaultKind.NODE, FaultKind.DOWN, FaultKind.CONFIG),
    )
    told = rng.random() < (0.8 if state is RemoteState.ENDED else 0.05)
    return RemoteDrone(
        drone_id,
        state,
        one(rng, "", "r", "q"),
        one(rng, "x", "", "odd"),
        started_at=past(rng),
        reason=one(rng, "", "why"),
        expected_start_at=_time(rng),
        end=end if told else None,
        node=one(rng, "", *NODES, "nx"),
        notice_at=one(rng, 0.0, 0.0, past(rng)),
        blocked=one(rng, None, None, FaultKind.QUOTA, FaultKind.CONFIG, FaultKind.CAPACITY),
        final=rng.random() < 0.1,
        slot=one(rng, "", "s1"),
    )


def random_reading(
    rng: Random,
    site: str,
    types: Sequence[DroneType],
    listed: dict[DroneId, RemoteDrone],
    *,
    hostile: bool,
    calm: bool,
) -> PolledSite:
    """Return the newest view of a site: whole, without some of its parts, of long ago, or none."""
    names = tuple(kind.name for kind in types if kind.site == site)
    nodes = (
        tuple(random_node(rng, name, names) for name in NODES if rng.random() < 0.8)
        if rng.random() < 0.5
        else ()
    )
    claims = tuple(
        OwnerDemand(
            one(rng, 0, 1, 3, 20),
            one(rng, 0, 1000, 2000, 8000),
            one(rng, 0, 1, 32),
            one(rng, 0, 1024, 262_144),
            past(rng),
            one(rng, 0, 1024),
            one(rng, (), ("n1",), ("n1", "n2"), ("zz",)),
            one(rng, "", "boss"),
        )
        for _ in range(one(rng, 0, 1, 2, 6))
    )
    if hostile:
        nodes, claims = (
            tuple(spoiled(rng, n) for n in nodes),
            tuple(spoiled(rng, c) for c in claims),
        )
        listed = {drone_id: spoiled(rng, remote) for drone_id, remote in listed.items()}
    view = SiteView(
        one(rng, site, site, "other"),
        one(rng, NOW, NOW - 1, NOW - 10, NOW - 500, odd_time(rng)),
        listed,
        _counts(rng, names, hostile=hostile),
        nodes,
        claims,
        one(rng, None, OwnerLoad(1, 1000, 1, 1)),
        one(rng, 0.0, 0.0, NOW + 100, NOW + 4000, NOW - 100, NOW + 1e6),
        (),
        _counts(rng, names, hostile=hostile),
        one(rng, None, 0, 5000, -1 if hostile else 0),
        {name: "cpus 8 > 2 free" for name in names if rng.random() < 0.3},
        {name: "cpus 8 > 2" for name in names if rng.random() < 0.1},
    )
    if calm:
        view = replace(
            view, taken_at=NOW - 1, downtime_at=one(rng, 0.0, 0.0, 0.0, view.downtime_at)
        )
        return PolledSite(site, Sanitizer().sanitized(view, NOW, 0.0))
    fault = Fault(rng.choice(list(FaultKind)), "f", NOW - 2) if rng.random() < 0.1 else None
    ahead_s = one(rng, 0.0, 0.0, 0.0, 3600.0, -500.0)
    seen = Sanitizer().sanitized(view, NOW, ahead_s) if rng.random() < 0.95 else None
    return PolledSite(site, seen, fault, rng.random() < 0.1)


def _counts(rng: Random, names: tuple[str, ...], *, hostile: bool) -> dict[str, int] | None:
    """Return a number of drones by type, of some types only; or none, where the site does not report it."""
    if rng.random() < 0.4:
        return None
    odd = (-1, 1 << 53, 1 << 70, float("inf")) if hostile else ()
    counts = {name: rng.choice((0, 1, 2, 5, 100, *odd)) for name in names if rng.random() < 0.9}
    return counts | one(rng, {}, {"": 1, "unknown": 3})  # type: ignore[return-value]


def random_node(rng: Random, name: str, types: tuple[str, ...]) -> Node:
    gpus, cpus, memory = (
        one(rng, 0, 4000, 8000),
        one(rng, 0, 64, 128),
        one(rng, 0, 262_144, 1 << 20),
    )
    disk = one(rng, 0, 102_400)
    return Node(
        name,
        types[: rng.randint(0, len(types))],
        gpus,
        cpus,
        memory,
        disk,
        one(rng, 0, gpus, gpus // 2, gpus * 2),
        one(rng, 0, cpus, cpus // 2, cpus * 2),
        one(rng, 0, memory),
        one(rng, 0, disk),
    )


def random_site_policy(rng: Random, site: str) -> SitePolicy:
    whole = Reserve(
        cpus=4,
        memory_mib=1024,
        disk_mib=one(rng, 0, 1024),
    )
    return SitePolicy(
        site,
        enabled=rng.random() < 0.9,
        max_drones=one(rng, 0, 1, 10, 100),
        max_gpu_milli=one(rng, None, 0, 2500, 10_000),
        max_pending=one(rng, 1, 3, 20),
        max_starts_per_tick=one(rng, 1, 3, 10),
        price=one(rng, 0.0, 1.0),
        queue_when_full=rng.random() < 0.4,
        blocking=one(rng, (), (), (whole,), (Reserve(nodes=("n1",), cpus=8), Reserve(cpus=2))),
        preempt_proactively=rng.random() < 0.8,
        min_runtime_s=one(rng, 0.0, 3600.0),
        grace_s=one(rng, 0.0, 30.0),
        idle_timeout_s=one(rng, None, 60.0),
        idle_fixed=one(rng, None, None, True, False),
        missing_s=one(rng, 30.0, 1.0),
        order_confirm_s=one(rng, 120.0, 1.0),
        stopping_s=one(rng, 60.0, 1.0),
    )


def random_learned(rng: Random, types: Sequence[DroneType]) -> Estimates:
    if rng.random() < 0.5:
        return NO_ESTIMATES
    delays = {
        kind.key: StartDelays(one(rng, 1.0, 2000.0), one(rng, 10.0, 600.0))
        for kind in types
        if rng.random() < 0.5
    }
    rise = OwnerGrowth(tuple((0, 1000, 8000) for _ in HORIZONS_S))
    return Estimates(
        {"u1": (10.0, 60.0, 7000.0), "": (30.0,)}, delays, {"a": rise}, {"b": 1e-4}, {"a": 30.0}
    )
