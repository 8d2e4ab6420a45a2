"""A large world that goes on: tick after tick nearly every drone is busy and as it was, a few come and a few end.

More jobs wait than there is room for. What is asked for boots, joins and works; one drone in five
hundred ends in each tick, as if jobs took two hours. Every poll creates its values anew; the
service keeps equal values of the previous poll (:mod:`provisioner.controller.sanitize`), and so
does the world, unless ``anew`` is set. Drones report every two minutes, each at a moment of its own, as by
the ``UPDATE_INTERVAL`` of their startds; the numbers of waiting jobs change in every tick.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from benchmarks.world import NOW, drone_types, drones, job_classes, slot_of
from provisioner.model import (
    Drone,
    DroneId,
    DroneState,
    DroneType,
    EndKind,
    JobClass,
    OverlayView,
    Plan,
    Policy,
    PolledOverlay,
    PolledSite,
    RemoteDrone,
    RemoteEnd,
    RemoteState,
    SitePolicy,
    SiteView,
    Slot,
    SlotState,
    Snapshot,
    TypeKey,
)

TICK_S = 15.0
ENDS_EVERY = 500
"""One drone in so many ends in a tick."""
BOOT_S = 60.0
UPDATE_INTERVAL_S = 120.0
"""As ``condor_drone.sh`` sets it."""


@dataclass(slots=True)
class World:
    """Sites, pool and record as they are between two ticks."""

    types: tuple[DroneType, ...]
    classes: tuple[JobClass, ...]
    drones: dict[DroneId, Drone]
    places: Counter[TypeKey]
    """How many drones of each type there is room for."""
    now: float = NOW
    tick: int = 1000
    serial: int = 0
    ends: set[DroneId] = field(default_factory=set)
    by_key: dict[TypeKey, DroneType] = field(default_factory=dict)
    policy: Policy = field(default_factory=Policy)
    anew: bool = False
    """The service keeps no values from poll to poll."""
    seen: dict[DroneId, tuple[Slot | None, RemoteDrone]] = field(default_factory=dict)

    @classmethod
    def of(cls, jobs: int, classes: int, types: int, alive: int) -> World:
        kinds = drone_types(types)
        begun = {i: _settled(d, n) for n, (i, d) in enumerate(drones(alive, kinds).items())}
        places = Counter(d.type for d in begun.values())
        known = {k.key: k for k in kinds}
        names = {kind.site for kind in kinds}
        sites = {
            s: SitePolicy(s, max_drones=2 * alive, max_pending=500, max_starts_per_tick=200)
            for s in names
        }
        policy = Policy(max_drones=2 * alive, sites=sites)
        return cls(
            kinds,
            job_classes(classes, jobs, kinds),
            begun,
            places,
            serial=alive,
            by_key=known,
            policy=policy,
        )

    def snapshot(self) -> Snapshot:
        """What the service would hand to the planner now."""
        seen: dict[str, dict[DroneId, RemoteDrone]] = {kind.site: {} for kind in self.types}
        taken: Counter[TypeKey] = Counter()
        now = {drone.id: self._polled(drone) for drone in self.drones.values()}
        self.seen = {} if self.anew else now
        for drone in self.drones.values():
            taken[drone.type] += 1
            seen[drone.site][drone.id] = now[drone.id][1]
        free: dict[str, dict[str, int]] = {site: {} for site in seen}
        for kind in self.types:
            free[kind.site][kind.name] = max(0, self.places[kind.key] - taken[kind.key])
        slots = tuple(slot for slot, _ in now.values() if slot is not None)
        classes = tuple(
            replace(c, waiting=c.waiting + (self.tick + n) % 3) for n, c in enumerate(self.classes)
        )
        return Snapshot(
            now=self.now,
            tick=self.tick,
            id_prefix="bench-abcd",
            next_serial=self.serial,
            policy=self.policy,
            types=self.types,
            overlay=PolledOverlay(
                OverlayView(self.now - 3, classes, slots, negotiated_at=self.now - 20)
            ),
            sites={s: PolledSite(s, SiteView(s, self.now - 3, seen[s], free[s])) for s in seen},
            drones=dict(self.drones),
        )

    def carry_out(self, plan: Plan) -> None:
        """What the plan says happens, and fifteen seconds pass."""
        for move in plan.moves:
            if move.drone.state.ended:
                del self.drones[move.drone.id]
            else:
                self.drones[move.drone.id] = move.drone
        for start in plan.starts:
            self.drones[start.drone.id] = replace(
                start.drone,
                state=DroneState.SUBMITTED,
                submitted_at=self.now,
                remote_id=start.drone.id,
            )
        for leave in plan.leaves:
            self.drones[leave.drone.id] = leave.drone
        self.serial += len(plan.starts)
        self.follow(self.drones, self.now + TICK_S)

    def follow(self, drones: Mapping[DroneId, Drone], now: float) -> None:
        """The next tick is at ``now``, with these drones on record; some of them end."""
        self.drones = dict(drones)
        gone = [
            d.id
            for d in self.drones.values()
            if d.state in (DroneState.STOPPING, DroneState.DRAINING)
        ]
        busy = [d.id for d in self.drones.values() if d.state is DroneState.BUSY]
        self.ends = {*gone, *busy[self.tick % ENDS_EVERY :: ENDS_EVERY]}
        self.now = now
        self.tick += 1

    def _polled(self, drone: Drone) -> tuple[Slot | None, RemoteDrone]:
        """Return what pool and site report of a drone: the values of the last poll where they are equal."""
        there = drone.started_at and self.now - drone.started_at > BOOT_S
        now = (self._slot(drone) if there else None), self._remote(drone)
        before = self.seen.get(drone.id, (None, None))
        return tuple(old if old == new else new for old, new in zip(before, now, strict=True))  # type: ignore[return-value]

    def _remote(self, drone: Drone) -> RemoteDrone:
        name = self.by_key[drone.type].name
        if drone.id in self.ends:
            over = RemoteEnd(EndKind.EXITED, self.now - 5, 0)
            return RemoteDrone(
                drone.id, RemoteState.ENDED, drone.remote_id, name, drone.started_at, end=over
            )
        return RemoteDrone(
            drone.id, RemoteState.RUNNING, drone.remote_id, name, drone.started_at or self.now - 5
        )

    def _slot(self, drone: Drone) -> Slot:
        kind = self.by_key[drone.type]
        if not drone.joined_at:  # its first jobs come at once
            drone = replace(
                drone, state=DroneState.BUSY, jobs=1, jobs_started=1, slot=f"slot1@{drone.id}"
            )
            return replace(slot_of(drone, kind), heard_at=self.now - 5)
        busy = drone.state is not DroneState.IDLE
        return replace(
            slot_of(drone, kind),
            state=SlotState.BUSY if busy else SlotState.IDLE,
            heard_at=self.now
            - 5
            - (self.now - 5 + 7 * int(drone.id.rpartition("-")[2])) % UPDATE_INTERVAL_S,
            free_gpu_milli=0 if busy else kind.gpu_milli,
            work_gpu_milli=drone.work_gpu_milli,
            work_at=drone.work_at,
        )


def _settled(drone: Drone, number: int) -> Drone:
    """One in a hundred is idle, one in forty boots, all others work and are younger than they may become."""
    age_s = 600.0 + number % 70_000
    began = {
        "since": NOW - 30,
        "requested_at": NOW - age_s - 120,
        "submitted_at": NOW - age_s - 119,
    }
    if drone.state is DroneState.BOOTING:
        return drone
    busy = number % 100 != 18
    return replace(
        drone,
        state=DroneState.BUSY if busy else DroneState.IDLE,
        started_at=NOW - age_s - 60,
        joined_at=NOW - age_s,
        busy_at=NOW - age_s + 1,
        idle_at=0.0 if busy else NOW - 30,
        jobs=1 if busy else 0,
        work_gpu_milli=drone.gpu_milli if busy else 0,
        work_at=NOW - age_s + 1 if busy else 0.0,
        **began,
    )
