"""Owners of a site beside the series of the product: jobs in their own cluster, and steps of one pool.

The jobs of :class:`Owner`: they wait, the site makes matches now and then, and drones give way to
them.

As HTCondor does it with a ``RANK`` that prefers the owner: a job that finds no room takes the place
of one drone, if it fits into that drone's slot; with notice, and it starts there as soon as the
drone is gone. A job larger than any slot is served only where the site has
``ALLOW_PSLOT_PREEMPTION``, and then the drones of one node go without notice.

How much of a job's wait is our doing: at each of the site's cycles the waiting jobs are also
placed, in thought, on the nodes as they would be without drones. From the first cycle at which a
job would have run like that, its wait is ours: *blocked* while its room is not there, and *late*
once the room is there and the site's next cycle is not. What it waits before that cycle (the site's
own interval, the owner's own other jobs) would be there without us, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from provisioner.model import OwnerDemand, OwnerLoad
from provisioner.resources import Resources
from provisioner.simulator.drones import SimulatedDrone, SimulatedNode
from provisioner.simulator.loop import after, at, now_s, rng_for, start_epoch
from provisioner.simulator.owner import SimulatedOwner, VictimRule
from provisioner.simulator.results import OwnerWait
from provisioner.simulator.sites import SimulatedSite


@dataclass(frozen=True, slots=True)
class OwnerJob:
    """It arrives ``submit_s`` after the start of the scenario and runs for ``duration_s``."""

    submit_s: float
    duration_s: float
    gpus: int = 1
    cpus: int = 1
    memory_mib: int = 1024
    pool: str = ""
    """Runs in this GPU pool only; empty: in any."""

    @property
    def amount(self) -> Resources:
        return Resources(self.gpus * 1000, self.cpus, self.memory_mib)


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a site, and how the site serves them."""

    jobs: tuple[OwnerJob, ...] = ()
    negotiation_s: float = 30.0
    """Between two cycles of the site. Drones get their places in them, too, after the owner's jobs."""
    preempts_after_s: float = 0.0
    """Wait of a job before drones are preempted for it."""
    grace_s: float = 10.0
    """Between notice and kill."""
    victim: VictimRule = VictimRule.YOUNGEST
    pslot_preemption: bool = False
    """Several drones of a node go, without notice, for one job larger than a slot."""
    who: str = "owner"

    def at(self, site: SimulatedSite) -> SimulatedOwner:
        return SimulatedOwnerQueue(self, site)


@dataclass(slots=True, eq=False)
class QueuedOwnerJob:
    """An owner's job with what became of it. Times are those of the loop."""

    job: OwnerJob
    since_s: float
    """Since when it waits."""
    amount: Resources
    promised: SimulatedDrone | None = None
    """The drone whose place it gets."""
    alone: bool = False
    """It would run if no drone held anything, by the newest cycle."""
    room: bool = False
    """There is room for it, which the site's next cycle will give it."""
    booked_s: float = 0.0
    blocked_s: float = 0.0
    late_s: float = 0.0

    def book(self) -> None:
        """Enter the time since the last entry."""
        if self.alone:
            if self.room:
                self.late_s += now_s() - self.booked_s
            else:
                self.blocked_s += now_s() - self.booked_s
        self.booked_s = now_s()


class SimulatedOwnerQueue(SimulatedOwner):
    """The owner's jobs at one site, as they really are."""

    places_drones = True

    def __init__(self, owner: Owner, site: SimulatedSite) -> None:
        super().__init__(site)
        self.waiting: list[QueuedOwnerJob] = []
        """First come, first served."""
        self.running: dict[QueuedOwnerJob, tuple[SimulatedNode, asyncio.TimerHandle]] = {}
        self._owner = owner
        self._machines = site.machines
        self._promises: dict[SimulatedDrone, QueuedOwnerJob] = {}

    def begin(self) -> None:
        for job in self._owner.jobs:
            at(job.submit_s, self._arrive, QueuedOwnerJob(job, job.submit_s, job.amount))
        after(self._owner.negotiation_s, self._negotiate)

    @property
    def held_milli(self) -> int:
        return sum(queued.amount.gpu_milli for queued in self.running)

    # --------------------------------------------------------------------------------------------
    # what is listed

    def claims(self) -> tuple[OwnerDemand, ...]:
        shapes: dict[tuple[str, Resources], list[QueuedOwnerJob]] = {}
        for queued in self.waiting:
            shapes.setdefault((queued.job.pool, queued.amount), []).append(queued)
        return tuple(
            OwnerDemand(
                count=len(queued_jobs),
                gpu_milli=amount.gpu_milli,
                cpus=amount.cpus,
                memory_mib=amount.memory_mib,
                since=start_epoch() + queued_jobs[0].since_s,
                nodes=self._could_host(queued_jobs[0]),
                who=self._owner.who,
            )
            for (_, amount), queued_jobs in shapes.items()
        )

    def _could_host(self, queued: QueuedOwnerJob) -> tuple[str, ...]:
        able = [m.name for m in self._allowed(queued) if queued.amount.within(m.total)]
        return () if len(able) == len(self._machines) else tuple(able) or ("none",)

    def load(self) -> OwnerLoad:
        held = [queued.amount for queued in self.running]
        return OwnerLoad(
            len(held),
            sum(a.gpu_milli for a in held),
            sum(a.cpus for a in held),
            sum(a.memory_mib for a in held),
        )

    # ---------------------------------------------------------------------------------------- one
    # cycle of the site

    def _arrive(self, queued: QueuedOwnerJob) -> None:
        queued.booked_s = now_s()
        self.waiting.append(queued)

    def _negotiate(self) -> None:
        after(self._owner.negotiation_s, self._negotiate)
        for queued in self.waiting:
            queued.book()
        self._imagine()
        for queued in [t for t in self.waiting if t.promised is None]:
            fitting = (m for m in self._allowed(queued) if m.hosts(queued.amount))
            machine = min(fitting, key=lambda m: m.free.gpu_milli, default=None)
            if machine is not None:
                self._start(queued, machine)
        for queued in [t for t in self.waiting if t.promised is None]:
            if now_s() - queued.since_s >= self._owner.preempts_after_s:
                self._preempt(queued)
        self.site.place_queued()
        self._look_for_room()

    def _allowed(self, queued: QueuedOwnerJob) -> Iterator[SimulatedNode]:
        pool = queued.job.pool
        return (m for m in self._machines if not pool or m.pool == pool)

    def _imagine(self) -> None:
        """Mark the waiting jobs that would start now if no drone held anything."""
        room = {m: m.total for m in self._machines if m.up}
        for queued, (machine, _) in self.running.items():
            if machine in room:
                room[machine] = room[machine].plus(queued.amount, -1)
        for queued in self.waiting:
            queued.alone = self._takes(queued, room)

    def _look_for_room(self) -> None:
        """Mark the waiting jobs that the site's next cycle would start; enter the time until now."""
        room = {m: m.free for m in self._machines if m.up}
        for queued in self.waiting:
            queued.book()
            if queued.promised is None:
                queued.room = self._takes(queued, room)

    def _takes(self, queued: QueuedOwnerJob, room: dict[SimulatedNode, Resources]) -> bool:
        """Take a job's part of the fullest node with room for it; return whether there is one."""
        fitting = [
            m for m in self._allowed(queued) if m in room and m.admits(queued.amount, room[m])
        ]
        if fitting:
            machine = min(fitting, key=lambda m: room[m].gpu_milli)
            room[machine] = room[machine].plus(queued.amount, -1)
        return bool(fitting)

    def _start(self, queued: QueuedOwnerJob, machine: SimulatedNode) -> None:
        queued.book()
        self.waiting.remove(queued)
        machine.place(queued, queued.amount)
        self.site.metrics.node_filled(machine)
        self.site.metrics.owner_waits.append(self._wait_of(queued))
        timer = after(queued.job.duration_s, self._ended, queued)
        self.running[queued] = machine, timer

    def _wait_of(self, queued: QueuedOwnerJob) -> OwnerWait:
        return OwnerWait(queued.job.gpus, now_s() - queued.since_s, queued.blocked_s, queued.late_s)

    def _ended(self, queued: QueuedOwnerJob) -> None:
        machine, _ = self.running.pop(queued)
        machine.left(queued)
        self._look_for_room()

    # -------------------------------------------------------------------------------------------
    # drones give way

    def _preempt(self, queued: QueuedOwnerJob) -> None:
        allowed = {m for m in self._allowed(queued) if m.up}
        standing = [
            b
            for b in self.site.drones.values()
            if b.machine in allowed and b.granted_s is not None and b.alive and not b.is_leaving
        ]
        ranked = sorted(standing, key=self._owner.victim.order(self.site.seed))
        victim = next((b for b in ranked if queued.amount.within(Resources.of(b.type))), None)
        if victim is not None:
            queued.promised = victim
            self._promises[victim] = queued
            victim.preempt(self._owner.grace_s)
        elif self._owner.pslot_preemption:
            self._clear_node(queued, ranked)

    def _clear_node(self, queued: QueuedOwnerJob, ranked: Sequence[SimulatedDrone]) -> None:
        """Preempt several drones of one node at once.

        Chooses the node whose drones have run for the shortest time in all, as HTCondor's own
        PREEMPTION_RANK does, or any, if the rule is random.
        """
        found = []
        for machine in self._machines:
            room, leaving = machine.free, []
            for drone in (b for b in ranked if b.machine is machine):
                if queued.amount.within(room):
                    break
                room = room.plus(Resources.of(drone.type))
                leaving.append(drone)
            if leaving and queued.amount.within(room):
                rank = sum(now_s() - (b.granted_s or 0.0) for b in leaving)
                if self._owner.victim is VictimRule.RANDOM:
                    rank = rng_for(self.site.seed, "node", now_s(), machine.name).random()
                found.append((rank, machine.name, machine, leaving))
        if found:
            _, _, machine, leaving = min(found, key=lambda f: f[:2])
            for drone in leaving:
                drone.preempt(0.0)
            self._start(queued, machine)

    def drone_left(self, drone: SimulatedDrone) -> None:
        """Free the room of a drone that left; the job that it was promised to starts there at once."""
        queued = self._promises.pop(drone, None)
        if queued is not None:
            queued.promised = None
            if drone.machine is not None and drone.machine.hosts(queued.amount):
                self._start(queued, drone.machine)
        self._look_for_room()

    def nodes_failed(self) -> None:
        for queued in [t for t, (machine, _) in self.running.items() if not machine.up]:
            machine, timer = self.running.pop(queued)
            timer.cancel()
            machine.left(queued)
            queued.since_s = queued.booked_s = now_s()
            queued.alone = queued.room = False
            queued.blocked_s = queued.late_s = 0.0
            self.waiting.append(queued)

    def close(self) -> None:
        for queued in self.waiting:
            queued.book()
            self.site.metrics.owner_waits.append(self._wait_of(queued))


@dataclass(frozen=True, slots=True)
class OwnerSteps:
    """GPUs that the owner wants of one pool, as steps ``(from_s, GPUs)``; it does not matter on which nodes."""

    steps: tuple[tuple[float, int], ...]
    pool: str
    victim: VictimRule = VictimRule.YOUNGEST
    notice_s: float = 0.0
    """Between the owner's wish and the drone's end; 0 is without notice."""

    def at(self, site: SimulatedSite) -> SimulatedOwner:
        return SteppingOwner(self, site)


class SteppingOwner(SimulatedOwner):
    """The owner of steps, who takes GPUs at once, whoever has them."""

    def __init__(self, owner: OwnerSteps, site: SimulatedSite) -> None:
        super().__init__(site)
        self._owner = owner
        self._pool = site.pools[owner.pool]

    def begin(self) -> None:
        for from_s, gpus in self._owner.steps:
            at(from_s, self._want, gpus * 1000)

    def _want(self, milli: int) -> None:
        pool, leaving_milli = self._pool, 0
        pool.wanted_milli = min(milli, sum(m.total.gpu_milli for m in pool.machines if m.up))
        for drone in self.site.victims(self._owner.victim, [pool]):
            if pool.room_milli + leaving_milli >= 0:
                break
            if self._owner.notice_s > 0:
                leaving_milli += drone.type.gpu_milli
            drone.preempt(self._owner.notice_s)
        self.site.place_waiting()
