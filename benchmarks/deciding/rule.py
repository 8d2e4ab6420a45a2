"""What all reference rules share: they see what the service sees, and say which drones come and which go.

A rule runs in the place of our planner in the real service. What became of a drone is bookkeeping
and the same for all (``planner/lifecycle.py``); what a rule adds is its decisions. A rule with
memory is an object that is made anew for each run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from provisioner.model import (
    WAITING,
    Drain,
    DrainMode,
    Drone,
    DroneId,
    DroneState,
    DroneType,
    JobClass,
    Plan,
    Slot,
    Snapshot,
    Start,
    StateChange,
    Stop,
    TypeKey,
)
from provisioner.planner.context import check_views
from provisioner.planner.lifecycle import observe_all
from provisioner.planner.matching import unmet_requirement
from provisioner.reasons import IdleTimeout, JobsWaiting, Reason, StateTimeout, Unneeded

COMES = frozenset({DroneState.BOOTING, DroneState.JOINED})
"""Holds a GPU, takes no jobs yet."""
LEAVES = frozenset({DroneState.DRAINING, DroneState.STOPPING})
FOR_EVER_S = 1e9


@dataclass(slots=True)
class Herd:
    """The drones of one type, oldest first, by what they do."""

    kind: DroneType
    quota: int
    """Most that the site gives."""
    wanted: list[Drone] = field(default_factory=list)
    """Those that were not asked to leave, whatever they do."""
    waiting: list[Drone] = field(default_factory=list)
    coming: list[Drone] = field(default_factory=list)
    idle: list[Drone] = field(default_factory=list)
    busy: list[Drone] = field(default_factory=list)
    leaving: list[Drone] = field(default_factory=list)

    @property
    def size(self) -> int:
        return len(self.wanted) + len(self.leaving)

    def enter(self, drone: Drone, *, retires: bool = False) -> None:
        """``retires``: it is old and does its last job. Nobody wants it gone, so it counts as any that is busy."""
        if retires:
            self.wanted.append(drone)
            self.busy.append(drone)
            return
        if drone.leaving is not None or drone.state in LEAVES:
            self.leaving.append(drone)
            return
        self.wanted.append(drone)
        if drone.state in WAITING:
            self.waiting.append(drone)
        elif drone.state in COMES:
            self.coming.append(drone)
        else:
            (self.busy if drone.state is DroneState.BUSY else self.idle).append(drone)


@dataclass(slots=True)
class Sight:
    """The world as a rule sees it at one tick, and what the rule asks for."""

    snapshot: Snapshot
    moves: Sequence[StateChange]
    herds: Mapping[TypeKey, Herd]
    """In the order in which the sites are configured."""
    classes: Sequence[JobClass]
    """With jobs that wait; no drone that is free would take them at once."""
    slots: Mapping[DroneId, Slot]
    retiring: set[DroneId]
    """Drones that do their last job because they are old."""
    starts: list[Start] = field(default_factory=list)
    drains: list[Drain] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    asked: set[DroneId] = field(default_factory=set)

    @classmethod
    def of(cls, snapshot: Snapshot, quotas: Mapping[TypeKey, int], retiring: set[DroneId]) -> Sight:
        trust = check_views(snapshot)
        moves = observe_all(snapshot, trust)
        after = {move.drone.id: move.drone for move in moves}
        herds = {kind.key: Herd(kind, quotas[kind.key]) for kind in snapshot.types}
        for drone_id, drone in snapshot.drones.items():
            now = after.get(drone_id, drone)
            if not now.state.ended:
                herds[now.type].enter(now, retires=drone_id in retiring and drone_id in trust.slots)
        view = snapshot.overlay.view if trust.overlay is None else None
        classes = tuple(c for c in view.classes if c.waiting + c.fresh) if view is not None else ()
        return cls(snapshot, moves, herds, classes, trust.slots, retiring)

    @property
    def now(self) -> float:
        return self.snapshot.now

    @property
    def over(self) -> bool:
        """No job waits and none runs."""
        view = self.snapshot.overlay.view
        return view is not None and not any(c.waiting + c.fresh + c.running for c in view.classes)

    def fitting(self, job: JobClass) -> list[Herd]:
        """Those that can host the class."""
        return [herd for herd in self.herds.values() if unmet_requirement(job, herd.kind) is None]

    def free_now(self, kind: DroneType) -> int | None:
        """Drones that could start now, less ours that wait there already; None where the site does not tell."""
        view = self.snapshot.sites[kind.site].view
        if view is None or view.free is None:
            return None
        return max(0, view.free.get(kind.name, 0) - len(self.herds[kind.key].waiting))

    def idle_s(self, drone: Drone) -> float:
        """How long it has had no job, as its slot says."""
        slot = self.slots.get(drone.id)
        return self.now - slot.idle_since if slot is not None and slot.idle_since else 0.0

    # ------------------------------------------------------------------------------------------------
    # what is asked

    def start(self, herd: Herd, count: int) -> None:
        """Ask for drones. They count as waiting from now on."""
        first = self.snapshot.next_serial + len(self.starts)
        for serial in range(first, first + count):
            drone = Drone(
                id=DroneId(f"{self.snapshot.id_prefix}-{serial}"),
                type=herd.kind.key,
                state=DroneState.REQUESTED,
                since=self.now,
                requested_at=self.now,
                gpu_milli=herd.kind.gpu_milli,
            )
            self.starts.append(Start(drone, JobsWaiting("", "", 0, 0, count)))
            herd.enter(drone)

    def withdraw(self, herd: Herd, count: int) -> None:
        """Take back the newest of those that still wait in the site's queue, ``count`` at most."""
        mine = [drone for drone in herd.waiting if drone.requested_at < self.now]
        for drone in mine[len(mine) - min(count, len(mine)) :]:
            self.release(drone, Unneeded(drone.state.value))
            herd.waiting.remove(drone)

    def release(self, drone: Drone, reason: Reason) -> None:
        """A drone in the pool drains: a job that runs may end. Any other is stopped."""
        if drone.id in self.asked:
            return
        self.asked.add(drone.id)
        if drone.id in self.retiring:
            self.retiring.remove(drone.id)
            return
        leaving = DroneState.DONE if drone.busy_at else DroneState.CANCELLED
        asked = replace(drone, since=self.now, leaving=leaving, asked_at=self.now)
        if drone.state in (DroneState.IDLE, DroneState.BUSY):
            after = replace(asked, state=DroneState.DRAINING, asked=0)
            self.drains.append(Drain(after, drone.state, DrainMode.PEACEFUL, reason))
        else:
            after = replace(asked, state=DroneState.STOPPING, asked=1)
            self.stops.append(Stop(after, drone.state, reason))

    def plan(self) -> Plan:
        return Plan(
            self.snapshot.tick,
            self.now,
            moves=tuple(self.moves),
            starts=tuple(self.starts),
            drains=tuple(self.drains),
            stops=tuple(self.stops),
        )


@dataclass(slots=True)
class Rule(ABC):
    """A planner. Subclasses say what they do at a tick."""

    quotas: Mapping[TypeKey, int]
    last_job_at: float = 0.0
    """When the last job of the trace is submitted: once that is done, all drones go, and the replay
    can end. No rule of those here ends by itself, and what would be counted after the last job says
    nothing of any."""
    retires_after_s: float = 0.0
    """A drone older than this takes no new job; 0: it may live for ever."""
    _retiring: set[DroneId] = field(default_factory=set, init=False)

    interval_s: ClassVar[float]
    """How often it decides, as its source has it."""
    release_s: ClassVar[float] = 20.0
    """From the end of a drone's last job until the site has the GPU back."""
    idle_timeout_s: ClassVar[float] = FOR_EVER_S
    """After which a drone leaves by itself, whatever the rule says."""

    def __call__(self, snapshot: Snapshot) -> Plan:
        self._retiring &= snapshot.drones.keys()
        sight = Sight.of(snapshot, self.quotas, self._retiring)
        if snapshot.now > self.last_job_at and sight.over:
            for herd in sight.herds.values():
                for drone in herd.wanted:
                    sight.release(drone, Unneeded(drone.state.value))
        else:
            self.decide(sight)
            self._retire(sight)
        return sight.plan()

    @abstractmethod
    def decide(self, sight: Sight) -> None:
        """Ask for drones, and let some go."""

    def _retire(self, sight: Sight) -> None:
        """Let drones with a job end it; give an idle one a last job first. (If the
        world sent idle ones home, each day COBalD's last drone in an idle pool would go, and the
        whole pool be filled again.) Retiring is the world's doing, not the rule's: to the rule such
        a drone is busy until its job has ended."""
        if not self.retires_after_s:
            return
        for drone in [d for herd in sight.herds.values() for d in herd.busy]:
            age_s = sight.now - drone.joined_at
            if age_s > self.retires_after_s and drone.id not in self._retiring:
                sight.release(drone, StateTimeout(drone.state.value, age_s, self.retires_after_s))
                self._retiring.add(drone.id)


def release_idle(sight: Sight, herds: Iterable[Herd], limit_s: float) -> None:
    """Drones that have been idle for so long leave."""
    for herd in herds:
        for drone in herd.idle:
            idle_s = sight.idle_s(drone)
            if idle_s >= limit_s:
                sight.release(drone, IdleTimeout(idle_s, limit_s))
