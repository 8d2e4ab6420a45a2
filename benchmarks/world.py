"""A large snapshot, the same in every run: many job classes, drone types and drones at ten sites."""

from __future__ import annotations

from provisioner.model import (
    Drone,
    DroneId,
    DroneState,
    DroneType,
    JobClass,
    OverlayView,
    Policy,
    PolledOverlay,
    PolledSite,
    RemoteDrone,
    RemoteState,
    SitePolicy,
    SiteView,
    Slot,
    SlotState,
    Snapshot,
    UnmetRequirement,
)

NOW = 1_795_000_000.0
SITES = 10
GPUS = (
    ("T4", 15_360, 75),
    ("L4", 23_034, 89),
    ("A100", 40_960, 80),
    ("H100", 81_920, 90),
    ("H200", 143_771, 90),
)


def drone_types(count: int) -> tuple[DroneType, ...]:
    """``count`` shapes over ten sites: five GPU models, one to eight GPUs."""
    shapes = []
    for number in range(count):
        model, vram_mib, capability = GPUS[number % len(GPUS)]
        gpus = 2 ** (number // len(GPUS) % 4)
        shapes.append(
            DroneType(
                site=f"site{number % SITES}",
                name=f"{model.lower()}x{gpus}-{number}",
                gpu_milli=gpus * 1000,
                cpus=8 * gpus,
                memory_mib=64 * 1024 * gpus,
                disk_mib=100 * 1024,
                vram_mib=vram_mib,
                gpu_model=model,
                capability=capability,
                driver=12_040,
                walltime_s=86_400.0,
                price=vram_mib / 40_960 * (1 + number % 7 / 10),
            )
        )
    return tuple(shapes)


def job_classes(count: int, jobs: int, types: tuple[DroneType, ...]) -> tuple[JobClass, ...]:
    """``jobs`` idle jobs in ``count`` classes; some accept few types, one in fifty fits nothing."""
    classes = []
    for number in range(count):
        _, vram_mib, capability = GPUS[number % len(GPUS)]
        impossible = number % 50 == 49
        picky = types[number % 3 :: 3] if number % 4 == 0 else ()
        classes.append(
            JobClass(
                id=str(number),
                gpu_milli=1000 * (1 + number % 3),
                cpus=1 + number % 8,
                memory_mib=1024 * (2 + number % 30),
                disk_mib=1024 * (1 + number % 20),
                vram_mib=200_000 if impossible else vram_mib - 2048 * (number % 4),
                capability=capability if number % 2 else 0,
                waiting=jobs // count,
                fresh=number % 3,
                running=number % 10,
                oldest_at=NOW - 60.0 * (number % 500),
                owner=f"group{number % 40}",
                priority=number % 5,
                refuses={t.key: UnmetRequirement("HasCVMFS", "true", "undefined") for t in picky},
                job_ids=f"{number}.0-{number}.{jobs // count - 1}",
            )
        )
    return tuple(classes)


def drones(count: int, types: tuple[DroneType, ...]) -> dict[DroneId, Drone]:
    """``count`` live drones: nine tenths busy, the rest idle, booting or queued."""
    states = (DroneState.BUSY,) * 18 + (DroneState.IDLE, DroneState.BOOTING)
    alive = {}
    for number in range(count):
        kind, state = types[number % len(types)], states[number % len(states)]
        started = NOW - 3600.0 - number
        joined = 0.0 if state is DroneState.BOOTING else started + 60
        drone = Drone(
            id=DroneId(f"bench-abcd-{number}"),
            type=kind.key,
            state=state,
            since=NOW - 30,
            requested_at=started - 30,
            gpu_milli=kind.gpu_milli,
            for_class=str(number % 1000),
            remote_id=f"{number}",
            submitted_at=started - 29,
            started_at=NOW - 30 if state is DroneState.BOOTING else started,
            joined_at=joined,
            busy_at=joined and joined + 1,
            idle_at=NOW - 30 if state is DroneState.IDLE else 0.0,
            heard_at=NOW - 5,
            jobs=1 if state is DroneState.BUSY else 0,
            jobs_started=3,
            slot=f"slot1@bench-{number}",
        )
        alive[drone.id] = drone
    return alive


def slot_of(drone: Drone, kind: DroneType) -> Slot:
    busy = drone.state is DroneState.BUSY
    return Slot(
        drone_id=drone.id,
        state=SlotState.BUSY if busy else SlotState.IDLE,
        heard_at=NOW - 5,
        free_gpu_milli=0 if busy else kind.gpu_milli,
        free_cpus=2 if busy else kind.cpus,
        free_memory_mib=4096 if busy else kind.memory_mib,
        free_disk_mib=4096 if busy else kind.disk_mib,
        jobs=drone.jobs,
        jobs_started=drone.jobs_started,
        idle_since=drone.idle_at,
        name=drone.slot,
        gpu_model=kind.gpu_model,
        vram_mib=kind.vram_mib,
        capability=kind.capability,
    )


def snapshot(jobs: int, classes: int, types: int, drones_alive: int) -> Snapshot:
    """The whole world at :data:`NOW`, all views three seconds old."""
    kinds = drone_types(types)
    by_key = {kind.key: kind for kind in kinds}
    alive = drones(drones_alive, kinds)
    names = sorted({kind.site for kind in kinds})
    seen: dict[str, dict[DroneId, RemoteDrone]] = {name: {} for name in names}
    for drone in alive.values():
        seen[drone.site][drone.id] = RemoteDrone(
            drone.id,
            RemoteState.RUNNING,
            drone.remote_id,
            by_key[drone.type].name,
            drone.started_at,
        )
    slots = tuple(
        slot_of(d, by_key[d.type]) for d in alive.values() if d.state is not DroneState.BOOTING
    )
    view = OverlayView(NOW - 3, job_classes(classes, jobs, kinds), slots, negotiated_at=NOW - 20)
    limits = SitePolicy("", max_drones=5_000, max_pending=500, max_starts_per_tick=200)
    return Snapshot(
        now=NOW,
        tick=1000,
        id_prefix="bench-abcd",
        next_serial=drones_alive,
        policy=Policy(
            max_drones=20_000,
            sites={
                name: SitePolicy(
                    name,
                    max_drones=limits.max_drones,
                    max_pending=limits.max_pending,
                    max_starts_per_tick=limits.max_starts_per_tick,
                )
                for name in names
            },
        ),
        types=kinds,
        overlay=PolledOverlay(view),
        sites={
            name: PolledSite(
                name,
                SiteView(name, NOW - 3, seen[name], {k.name: 20 for k in kinds if k.site == name}),
            )
            for name in names
        },
        drones=alive,
    )
