"""Simulated drones and nodes: a drone from grant to release, with its durations and its defect drawn at its start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from provisioner.model import DroneId, DroneType, EndKind, Node, RemoteDrone, RemoteEnd, RemoteState, StartOrder
from provisioner.simulator.loop import AT_ONCE, Draw, Fixed, rng_for

if TYPE_CHECKING:
    from provisioner.simulator.pool import SimulatedOverlay
    from provisioner.simulator.sites import SimulatedSite

UNCOUNTED = 1 << 40
"""Stands for CPUs, RAM or disk of a node where a scenario does not count them."""


class ResourceVector(NamedTuple):
    """Resources of a drone, a job or a node: GPUs in thousandths, CPUs, RAM and disk in MiB."""

    gpu_milli: int = 0
    cpus: int = 0
    memory_mib: int = 0
    disk_mib: int = 0

    @classmethod
    def of(cls, kind: DroneType) -> ResourceVector:
        """Return the resources that a drone of this type holds."""
        return cls(kind.gpu_milli, kind.cpus, kind.memory_mib, kind.disk_mib)

    def plus(self, other: ResourceVector) -> ResourceVector:
        return ResourceVector(*(a + b for a, b in zip(self, other, strict=True)))

    def less(self, other: ResourceVector) -> ResourceVector:
        return ResourceVector(*(a - b for a, b in zip(self, other, strict=True)))

    def within(self, room: ResourceVector) -> bool:
        """Return whether it fits into ``room`` in every dimension."""
        return (
            self.gpu_milli <= room.gpu_milli
            and self.cpus <= room.cpus
            and self.memory_mib <= room.memory_mib
            and self.disk_mib <= room.disk_mib
        )

    def goes_into(self, room: ResourceVector) -> int:
        """Return how often it fits; at least one dimension must be requested."""
        return max(0, min(there // each for each, there in zip(self, room, strict=True) if each))


NOTHING = ResourceVector()


class SimulatedNode:
    """One node. Its holders are drones and the owner's jobs."""

    def __init__(self, name: str, pool: str, total: ResourceVector, kept: ResourceVector = NOTHING) -> None:
        self.name = name
        self.pool = pool
        self.total = total
        self.kept = kept
        """Reserve of its site for each free GPU (blocking)."""
        self.outages = 0
        """Failures and downtimes that go on; they may overlap."""
        self.free = total
        self.held: dict[Hashable, ResourceVector] = {}
        """Resources that drones and the owner's jobs hold."""
        self._slots = 0

    @property
    def up(self) -> bool:
        return not self.outages

    def hosts(self, amount: ResourceVector) -> bool:
        """Return whether it has room now."""
        return self.up and self.admits(amount, self.free)

    def admits(self, amount: ResourceVector, room: ResourceVector) -> bool:
        """Return whether it goes into ``room`` and leaves the reserve of the GPUs that are then free."""
        if not amount.within(room):
            return False
        gpus_left = room.gpu_milli - amount.gpu_milli
        return all(
            1000 * each <= keep * amount.gpu_milli or 1000 * (there - each) >= keep * gpus_left
            for each, there, keep in zip(amount[1:], room[1:], self.kept[1:], strict=True)
        )

    def place(self, holder: Hashable, amount: ResourceVector) -> None:
        """Give a drone or an owner's job its part."""
        self.held[holder] = amount
        self.free = self.free.less(amount)

    def left(self, holder: Hashable) -> None:
        self.free = self.free.plus(self.held.pop(holder))

    def new_slot(self) -> str:
        """Return the name of a drone's slot."""
        self._slots += 1
        return f"slot1_{self._slots}@{self.name}"

    @property
    def overfull(self) -> bool:
        """More is held than there is: never true if the site and its owner keep off each other."""
        return min(self.free) < 0

    def recounted(self) -> ResourceVector:
        """Count the free resources anew from all holders."""
        room = self.total
        for amount in self.held.values():
            room = room.less(amount)
        return room

    def listed(self, kinds: Iterable[DroneType]) -> Node:
        """Return the node as its site lists it; ``kinds`` are the drone types that may run in its pool."""
        return Node(
            name=self.name,
            types=tuple(kind.name for kind in kinds if ResourceVector.of(kind).within(self.total)),
            gpu_milli=self.total.gpu_milli,
            cpus=self.total.cpus,
            memory_mib=self.total.memory_mib,
            disk_mib=self.total.disk_mib,
            free_gpu_milli=self.free.gpu_milli,
            free_cpus=self.free.cpus,
            free_memory_mib=self.free.memory_mib,
            free_disk_mib=self.free.disk_mib,
        )


class DroneDefect(StrEnum):
    """Defect of a drone."""

    NONE = "none"
    DIES_YOUNG = "dies-young"
    """Its script ends with exit code 71 within a second."""
    NEVER_JOINS = "never-joins"
    HANGS_IN_CHECK = "hangs-in-check"
    """Joins and never accepts jobs."""
    MATCHES_NOTHING = "matches-nothing"
    """Accepts jobs, but its START refuses them all."""
    EATS_JOBS = "black-hole"
    """A black hole: each job on it breaks off after seconds."""


@dataclass(frozen=True, slots=True)
class SiteBehaviour:
    """Behaviour of a site towards drones. The five chances are exclusive and add up to 1 at most."""

    queue: Draw = AT_ONCE
    boot: Draw = field(default_factory=lambda: Fixed(30.0))
    check: Draw = field(default_factory=lambda: Fixed(5.0))
    """From joining the pool to accepting jobs."""
    release: Draw = field(default_factory=lambda: Fixed(2.0))
    """From the drone's exit until its GPUs are free again."""
    lifetime: Draw | None = None
    """If set: every drone breaks down this long after its grant."""
    retire_s: float | None = None
    """If set: a drone takes no further job when it has served so long, and leaves after its last one."""
    dies_young: float = 0.0
    never_joins: float = 0.0
    hangs_in_check: float = 0.0
    matches_nothing: float = 0.0
    eats_jobs: float = 0.0


@dataclass(frozen=True, slots=True)
class DroneScript:
    queue_s: float
    boot_s: float
    check_s: float
    release_s: float
    lifetime_s: float | None
    defect: DroneDefect
    retire_s: float | None = None

    @classmethod
    def drawn(cls, behaviour: SiteBehaviour, seed: int, site: str, drone_id: DroneId) -> DroneScript:
        """Depends on nothing but seed, site and id."""
        rng = rng_for(seed, "fate", site, drone_id)
        durations = [draw.draw(rng) for draw in (behaviour.queue, behaviour.boot, behaviour.check, behaviour.release)]
        chance, defect = rng.random(), DroneDefect.NONE
        for candidate, share in (
            (DroneDefect.DIES_YOUNG, behaviour.dies_young),
            (DroneDefect.NEVER_JOINS, behaviour.never_joins),
            (DroneDefect.HANGS_IN_CHECK, behaviour.hangs_in_check),
            (DroneDefect.MATCHES_NOTHING, behaviour.matches_nothing),
            (DroneDefect.EATS_JOBS, behaviour.eats_jobs),
        ):
            if 0.0 <= chance < share:
                defect = candidate
            chance -= share
        lifetime_s = None if behaviour.lifetime is None else behaviour.lifetime.draw(rng)
        queue_s, boot_s, check_s, release_s = durations
        return cls(queue_s, boot_s, check_s, release_s, lifetime_s, defect, behaviour.retire_s)


class DroneStage(StrEnum):
    QUEUED = "queued"
    BOOTING = "booting"
    CHECKING = "checking"
    SERVING = "serving"
    LEAVING = "leaving"
    """Out of the pool, GPUs not free yet."""
    GONE = "gone"


class SimulatedDrone:
    """One drone. Times are those of the loop; every step after :meth:`grant` sets its own timers."""

    def __init__(
        self, order: StartOrder, remote_id: str, script: DroneScript, site: SimulatedSite, overlay: SimulatedOverlay
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.order = order
        self.id: DroneId = order.drone_id
        self.type: DroneType = order.type
        self.remote_id = remote_id
        self.script = script
        self.stage = DroneStage.QUEUED
        self.machine: SimulatedNode | None = None
        self.slot = ""
        self.accepted_s = self._loop.time()
        self.granted_s: float | None = None
        self.serving_s: float | None = None
        self.left_s: float | None = None
        self.end: RemoteEnd | None = None
        self._site = site
        self._overlay = overlay
        self._timers: list[asyncio.TimerHandle] = []
        self._leaving: tuple[EndKind, int | None, str] | None = None
        self._retired = False
        self._notice_s: float | None = None
        self._view: RemoteDrone | None = None

    # -------------------------------------------------------------------------------------------------- start

    def grant(self, machine: SimulatedNode, slot: str) -> None:
        """Start the drone on a node."""
        self.machine, self.slot = machine, slot
        self.granted_s = self._loop.time()
        self._enter(DroneStage.BOOTING)
        if self.script.lifetime_s is not None:
            self._after(self.script.lifetime_s, lambda: self.perish(EndKind.FAULT, "node health check failed"))
        if self.type.walltime_s:
            left_s = max(0.0, self.type.walltime_s - self.order.grace_s)
            self._after(left_s, lambda: self.leave(EndKind.EXITED, 0, "end of walltime", self.order.grace_s))
        match self.script.defect:
            case DroneDefect.DIES_YOUNG:
                self._after(self.script.boot_s + 1.0, lambda: self._finish(EndKind.EXITED, 71, "GPU check failed"))
            case DroneDefect.NEVER_JOINS:
                pass
            case _:
                self._after(self.script.boot_s, self._join)

    def _join(self) -> None:
        if self._leaving is not None:
            return
        self._enter(DroneStage.CHECKING)
        self._overlay.join(self)
        if self.script.defect is not DroneDefect.HANGS_IN_CHECK:
            self._after(self.script.check_s, self._serve)

    def _serve(self) -> None:
        if self._leaving is None:
            self._enter(DroneStage.SERVING)
            self.serving_s = self._loop.time()
            self._overlay.serve(self)
            if self.script.retire_s is not None:
                self._after(self.script.retire_s, self._retire)

    def _retire(self) -> None:
        if self.stage is DroneStage.SERVING and self._leaving is None:
            self._retired = True
            self._overlay.withdraw(self)

    # -------------------------------------------------------------------------------------------------- end

    @property
    def alive(self) -> bool:
        return self.stage is not DroneStage.GONE

    @property
    def is_leaving(self) -> bool:
        """By its site, or by its own end of life; a drain of the overlay's does not count."""
        return self._leaving is not None

    @property
    def accepts_nothing_more(self) -> bool:
        """Whatever the overlay says, it will not take jobs again."""
        return self._retired or self._leaving is not None

    def leave(self, kind: EndKind, exit_code: int | None, message: str, within_s: float) -> None:
        """Notice to leave: no new jobs; what still runs after ``within_s`` is cut short."""
        if self._leaving is not None or not self.alive:
            return
        self._leaving = kind, exit_code, message
        if kind is EndKind.PREEMPTED:
            self._notice_s = self._loop.time()
            self._changed()
        if self.stage is DroneStage.QUEUED:
            self._finish(kind, None, message)
        elif self.stage is DroneStage.BOOTING:
            self._release()
        else:
            self._after(within_s, self._release)
            self._overlay.withdraw(self)

    def leave_empty(self, message: str) -> None:
        """Let a drone leave that has no job and takes none."""
        if self._leaving is None:
            self._leaving = EndKind.EXITED, 0, message
        self._release()

    def perish(self, kind: EndKind, message: str) -> None:
        """End the drone at once and without notice to the pool."""
        self._finish(kind, None, message)

    def _release(self) -> None:
        if self.stage in (DroneStage.LEAVING, DroneStage.GONE) or self._leaving is None:
            return
        self._enter(DroneStage.LEAVING)
        self.left_s = self._loop.time()
        self._overlay.part(self, orderly=True)
        self._after(self.script.release_s, lambda: self._finish(*(self._leaving or (EndKind.EXITED, 0, ""))))

    def _finish(self, kind: EndKind, exit_code: int | None, message: str) -> None:
        if not self.alive:
            return
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        if self.stage in (DroneStage.CHECKING, DroneStage.SERVING):
            self._overlay.part(self, orderly=False)
        self._enter(DroneStage.GONE)
        self.end = RemoteEnd(kind, self._site.start_epoch + self._loop.time(), exit_code, message)
        self._site.left(self)

    # -------------------------------------------------------------------------------------------------- as listed

    def listed(self) -> RemoteDrone:
        """Return the drone as its site lists it."""
        if self._view is None:
            epoch = self._site.start_epoch
            match self.stage:
                case DroneStage.QUEUED:
                    state, reason = RemoteState.PENDING, "Resources"
                case DroneStage.GONE:
                    state, reason = RemoteState.ENDED, ""
                case _:
                    state, reason = RemoteState.RUNNING, ""
            self._view = RemoteDrone(
                drone_id=self.id,
                state=state,
                remote_id=self.remote_id,
                type=self.type.name,
                started_at=0.0 if self.granted_s is None else epoch + self.granted_s,
                reason=reason,
                end=self.end,
                node="" if self.machine is None else self.machine.name,
                slot=self.slot,
                notice_at=0.0 if self._notice_s is None else epoch + self._notice_s,
            )
        return self._view

    def _enter(self, stage: DroneStage) -> None:
        self.stage = stage
        self._changed()

    def _changed(self) -> None:
        self._view = None
        self._site.listing_changed()

    def _after(self, delay_s: float, then: Callable[[], None]) -> None:
        self._timers.append(self._loop.call_later(delay_s, then))
