"""Simulated drones, nodes and failures of hardware; a drone's durations and its defect are drawn at its start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from provisioner.model import (
    DroneId,
    EndKind,
    RemoteDrone,
    RemoteEnd,
    RemoteState,
    StartOrder,
)
from provisioner.resources import NO_RESOURCES, Resources
from provisioner.simulator.loop import AT_ONCE, Draw, Fixed, after, now, now_s, rng_for, start_epoch
from provisioner.values import frozen, setting

if TYPE_CHECKING:
    from provisioner.simulator.sites import SimulatedSite

OVERLAY = "overlay"
"""Name of the overlay in ``where``; sites go by their names."""


class SimulatedNode:
    """One node. Its holders are drones and the owner's jobs."""

    def __init__(
        self, name: str, pool: str, total: Resources, kept: Resources = NO_RESOURCES
    ) -> None:
        self.name = name
        self.pool = pool
        self.total = total
        self.kept = kept
        """Reserve of its site for each free GPU (blocking)."""
        self.outages = 0
        """Failures and downtimes that go on; they may overlap."""
        self.free = total
        self.slots = 0
        """Drones that it has ever had."""
        self._held: dict[Hashable, Resources] = {}

    @property
    def up(self) -> bool:
        return not self.outages

    def hosts(self, amount: Resources) -> bool:
        return self.up and self.admits(amount, self.free)

    def admits(self, amount: Resources, room: Resources) -> bool:
        """Return whether it goes into ``room`` and leaves the reserve of the GPUs that are then free."""
        if not amount.within(room):
            return False
        gpus_left = room.gpu_milli - amount.gpu_milli
        return all(
            1000 * each <= keep * amount.gpu_milli or 1000 * (there - each) >= keep * gpus_left
            for each, there, keep in zip(amount[1:], room[1:], self.kept[1:], strict=True)
        )

    def place(self, holder: Hashable, amount: Resources) -> None:
        self._held[holder] = amount
        self.free = self.free.plus(amount, -1)

    def left(self, holder: Hashable) -> None:
        self.free = self.free.plus(self._held.pop(holder))


class HardwareFaultKind(StrEnum):
    NODE_FAILS = "node-fails"
    """A node takes its drones with it and is away for ``for_s``."""
    DOWNTIME = "downtime"
    """The whole site is away for ``for_s``; announced ``notice_s`` before."""
    NO_NEGOTIATION = "no-negotiation"
    """The pool makes no matches for ``for_s``."""


@frozen
class HardwareFault:
    """Fault of hardware or pool."""

    kind: HardwareFaultKind = setting(example="downtime")
    """Kind of the fault."""
    at_s: float = setting(zero=True, example="2d")
    """Begin, in the time of the simulation."""
    for_s: float = setting(example="6h")
    """Duration."""
    where: str = OVERLAY
    """Name of the site, or `overlay`."""
    node: int = setting(default=0, ge=0)
    """Number of the node that fails, in the first pool of the site."""
    notice_s: float = setting(default=0.0, zero=True)
    """Time from the announcement of a downtime to its begin."""


class DroneDefect(StrEnum):
    """Defect of a drone. :class:`SiteBehaviour` has the chance of each under its name."""

    NONE = ""
    DIES_YOUNG = "dies_young"
    """Its script ends with exit code 71 within a second."""
    NEVER_JOINS = "never_joins"
    HANGS_IN_CHECK = "hangs_in_check"
    """Joins and never accepts jobs."""
    MATCHES_NOTHING = "matches_nothing"
    """Accepts jobs, but its START refuses them all."""
    EATS_JOBS = "eats_jobs"
    """A black hole: each job on it breaks off after seconds."""


@frozen
class SiteBehaviour:
    """Behaviour of a site towards drones. The five chances are exclusive and add up to 1 at most."""

    queue: Draw = AT_ONCE
    boot: Draw = field(default_factory=lambda: Fixed(30.0))
    check: Draw = field(default_factory=lambda: Fixed(5.0))
    """From joining the pool to accepting jobs."""
    release: Draw = field(default_factory=lambda: Fixed(2.0))
    """From the moment that an empty drone may leave until its GPUs are free again: its exit, then the site's part."""
    lifetime: Draw | None = None
    """If set: every drone breaks down this long after its grant."""
    retire_s: float | None = None
    """If set: a drone takes no further job when it has served so long, and leaves after its last one."""
    dies_young: float = 0.0
    never_joins: float = 0.0
    hangs_in_check: float = 0.0
    matches_nothing: float = 0.0
    eats_jobs: float = 0.0


@frozen
class DroneScript:
    """Durations and defect of one drone."""

    queue_s: float
    boot_s: float
    check_s: float
    release_s: float
    defect: DroneDefect
    lifetime_s: float | None
    retire_s: float | None

    @classmethod
    def drawn(
        cls, behaviour: SiteBehaviour, seed: int, site: str, drone_id: DroneId
    ) -> DroneScript:
        """Draw the script, which depends on nothing but seed, site and id."""
        rng = rng_for(seed, "fate", site, drone_id)
        drawn = (behaviour.queue, behaviour.boot, behaviour.check, behaviour.release)
        queue_s, boot_s, check_s, release_s = (each.draw(rng) for each in drawn)
        chance = rng.random()
        defect = DroneDefect.NONE
        for candidate in list(DroneDefect)[1:]:
            share = getattr(behaviour, candidate)
            if 0.0 <= chance < share:
                defect = candidate
            chance -= share
        lifetime_s = None if behaviour.lifetime is None else behaviour.lifetime.draw(rng)
        return cls(queue_s, boot_s, check_s, release_s, defect, lifetime_s, behaviour.retire_s)


class DroneStage(StrEnum):
    QUEUED = "queued"
    BOOTING = "booting"
    CHECKING = "checking"
    SERVING = "serving"
    LEAVING = "leaving"
    """Out of the pool, GPUs not free yet."""
    GONE = "gone"


class DronePool(Protocol):
    """Pool that drones join: the overlay, or the services."""

    def join(self, drone: SimulatedDrone) -> None: ...
    def serve(self, drone: SimulatedDrone) -> None: ...
    def withdraw(self, drone: SimulatedDrone) -> None: ...
    def part(self, drone: SimulatedDrone, orderly: bool) -> None: ...


class SimulatedDrone:
    """One drone. Times are those of the loop; every step after :meth:`grant` sets its own timers."""

    def __init__(
        self, order: StartOrder, remote_id: str, script: DroneScript, site: SimulatedSite
    ) -> None:
        self.order = order
        self.id = order.drone_id
        self.type = order.type
        self.remote_id = remote_id
        self.script = script
        self.stage = DroneStage.QUEUED
        self.machine: SimulatedNode | None = None
        self.slot = ""
        self.granted_s: float | None = None
        self.serving_s: float | None = None
        self.left_s: float | None = None
        self.end: RemoteEnd | None = None
        self._site = site
        self._pool: DronePool = site.services if order.type.service else site.overlay
        self._timers: list[asyncio.TimerHandle] = []
        self._leaving: tuple[EndKind, str, int | None] | None = None
        self._retired = False
        self._notice_s: float | None = None
        self._listed: tuple[object, RemoteDrone] | None = None

    def grant(self, machine: SimulatedNode) -> None:
        machine.slots += 1
        self.machine = machine
        self.slot = f"slot1_{machine.slots}@{machine.name}"
        self.stage, self.granted_s = DroneStage.BOOTING, now_s()
        if self.script.lifetime_s is not None:
            self._after(
                self.script.lifetime_s,
                lambda: self.perish(EndKind.FAULT, "node health check failed"),
            )
        if self.type.walltime_s:
            left_s = max(0.0, self.type.walltime_s - self.order.grace_s)
            self._after(
                left_s, lambda: self.leave(EndKind.EXITED, "end of walltime", self.order.grace_s, 0)
            )
        if self.script.defect is DroneDefect.DIES_YOUNG:
            self._after(
                self.script.boot_s + 1.0,
                lambda: self.perish(EndKind.EXITED, "GPU check failed", 71),
            )
        elif self.script.defect is not DroneDefect.NEVER_JOINS:
            self._after(self.script.boot_s, self._join)

    def _join(self) -> None:
        if self._leaving is None:
            self.stage = DroneStage.CHECKING
            self._pool.join(self)
            if self.script.defect is not DroneDefect.HANGS_IN_CHECK:
                self._after(self.script.check_s, self._serve)

    def _serve(self) -> None:
        if self._leaving is None:
            self.stage, self.serving_s = DroneStage.SERVING, now_s()
            self._pool.serve(self)
            if self.script.retire_s is not None:
                self._after(self.script.retire_s, self._retire)

    def _retire(self) -> None:
        if self.stage is DroneStage.SERVING and self._leaving is None:
            self._retired = True
            self._pool.withdraw(self)

    @property
    def walltime_end_s(self) -> float | None:
        walltime_s = self.type.walltime_s
        return self.granted_s + walltime_s if walltime_s and self.granted_s is not None else None

    @property
    def alive(self) -> bool:
        return self.stage is not DroneStage.GONE

    @property
    def is_leaving(self) -> bool:
        """True if its site or its own end of life makes it leave; a drain by the overlay does not count."""
        return self._leaving is not None

    @property
    def accepts_nothing_more(self) -> bool:
        """True if it will not take jobs again even if the overlay resumes it."""
        return self._retired or self._leaving is not None

    def leave(
        self, kind: EndKind, message: str, within_s: float, exit_code: int | None = None
    ) -> None:
        """Notice to leave: no new jobs; what still runs after ``within_s`` is cut short."""
        if self._leaving is not None or not self.alive:
            return
        self._leaving = kind, message, exit_code
        if kind is EndKind.PREEMPTED:
            self._notice_s = now_s()
        if self.stage is DroneStage.QUEUED:
            self.perish(kind, message)
        elif self.stage is DroneStage.BOOTING:
            self._release()
        else:
            self._after(within_s, self._release)
            self._pool.withdraw(self)

    def preempt(self, notice_s: float) -> None:
        """Make way for the owner of the site, without notice if ``notice_s`` is 0."""
        if notice_s > 0:
            self.leave(EndKind.PREEMPTED, "preempted by the owner", notice_s)
        else:
            self.perish(EndKind.PREEMPTED, "preempted by the owner")

    def leave_empty(self, message: str) -> None:
        if self._leaving is None:
            self._leaving = EndKind.EXITED, message, 0
        self._release()

    def _release(self) -> None:
        leaving = self._leaving
        if self.stage in (DroneStage.LEAVING, DroneStage.GONE) or leaving is None:
            return
        self.stage, self.left_s = DroneStage.LEAVING, now_s()
        self._pool.part(self, orderly=True)
        self._after(self.script.release_s, lambda: self.perish(*leaving))

    def perish(self, kind: EndKind, message: str, exit_code: int | None = None) -> None:
        """End the drone at once and without notice to the pool."""
        if not self.alive:
            return
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        if self.stage in (DroneStage.CHECKING, DroneStage.SERVING):
            self._pool.part(self, orderly=False)
        self.stage = DroneStage.GONE
        self.end = RemoteEnd(kind, now(), exit_code, message)
        self._site.left(self, self.end)

    def listed(self) -> RemoteDrone:
        """Return the drone as its site lists it: the same value for as long as nothing in it changes."""
        changed = self.stage, self._notice_s  # whatever else changes does so with the stage
        if self._listed is None or self._listed[0] != changed:
            epoch = start_epoch()
            state = RemoteState.RUNNING
            if self.stage in (DroneStage.QUEUED, DroneStage.GONE):
                state = (
                    RemoteState.PENDING if self.stage is DroneStage.QUEUED else RemoteState.ENDED
                )
            remote = RemoteDrone(
                drone_id=self.id,
                state=state,
                remote_id=self.remote_id,
                type=self.type.name,
                started_at=0.0 if self.granted_s is None else epoch + self.granted_s,
                reason="Resources" if state is RemoteState.PENDING else "",
                end=self.end,
                node="" if self.machine is None else self.machine.name,
                slot=self.slot,
                notice_at=0.0 if self._notice_s is None else epoch + self._notice_s,
            )
            self._listed = changed, remote
        return self._listed[1]

    def _after(self, delay_s: float, then: Callable[[], None]) -> None:
        self._timers.append(after(delay_s, then))
