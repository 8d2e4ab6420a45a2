"""An owner's jobs in their own cluster: they wait, the site makes matches now and then, and drones give way to them.

As HTCondor does it with a ``RANK`` that prefers the owner: a job that finds no room takes the place of one drone, if
it fits into that drone's slot; with notice, and it starts there as soon as the drone is gone. A job larger than any
slot is served only where the site has ``ALLOW_PSLOT_PREEMPTION``, and then the drones of one node go without notice.

How much of a job's wait is our doing: at each of the site's cycles the waiting jobs are also placed, in thought, on the
nodes as they would be without drones. From the first cycle at which a job would have run like that, its wait is ours:
*blocked* while its room is not there, and *late* once the room is there and the site's next cycle is not. What it waits
before that cycle (the site's own interval, the owner's own other jobs) would be there without us, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from provisioner.model import EndKind, OwnerDemand, OwnerLoad
from provisioner.simulator.drones import ResourceVector, SimulatedDrone, SimulatedNode
from provisioner.simulator.loop import rng_for
from provisioner.simulator.results import Metrics, OwnerWait


class VictimRule(StrEnum):
    """Choice of the drone that the owner's jobs preempt."""

    YOUNGEST = "youngest"
    RANDOM = "random"


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
    def amount(self) -> ResourceVector:
        return ResourceVector(self.gpus * 1000, self.cpus, self.memory_mib)


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


@dataclass(slots=True, eq=False)
class QueuedOwnerJob:
    """An owner's job with what became of it. Times are those of the loop."""

    serial: int
    job: OwnerJob
    since_s: float
    """Since when it waits."""
    amount: ResourceVector
    promised: SimulatedDrone | None = None
    """The drone whose place it gets."""
    alone: bool = False
    """It would run if no drone held anything, by the newest cycle."""
    room: bool = False
    """There is room for it, which the site's next cycle will give it."""
    booked_s: float = 0.0
    blocked_s: float = 0.0
    late_s: float = 0.0

    def book(self, now_s: float) -> None:
        """Enter the time since the last entry."""
        if self.alone:
            if self.room:
                self.late_s += now_s - self.booked_s
            else:
                self.blocked_s += now_s - self.booked_s
        self.booked_s = now_s


class SimulatedOwnerQueue:
    """The owner's jobs at one site, as they really are."""

    def __init__(
        self,
        owner: Owner,
        machines: Sequence[SimulatedNode],
        drones: Callable[[], Iterator[SimulatedDrone]],
        place_drones: Callable[[], None],
        metrics: Metrics,
        *,
        seed: int,
        start_epoch: float,
    ) -> None:
        self.waiting: list[QueuedOwnerJob] = []
        """First come, first served."""
        self.running: dict[QueuedOwnerJob, tuple[SimulatedNode, asyncio.TimerHandle]] = {}
        self._owner = owner
        self._machines = machines
        self._bodies = drones
        self._place_drones = place_drones
        self._metrics = metrics
        self._seed = seed
        self._epoch = start_epoch
        self._promises: dict[SimulatedDrone, QueuedOwnerJob] = {}

    def begin(self) -> None:
        """Set the timers of arrivals and of the site's cycles."""
        loop = asyncio.get_running_loop()
        for serial, job in enumerate(self._owner.jobs):
            loop.call_at(job.submit_s, self._arrive, QueuedOwnerJob(serial, job, job.submit_s, job.amount))
        loop.call_later(self._owner.negotiation_s, self._negotiate)

    @property
    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    # ---------------------------------------------------------------------------------------------- what is told

    def claims(self) -> tuple[OwnerDemand, ...]:
        """Return the waiting jobs, grouped by shape."""
        shapes: dict[tuple[str, ResourceVector], list[QueuedOwnerJob]] = {}
        for queued in self.waiting:
            shapes.setdefault((queued.job.pool, queued.amount), []).append(queued)
        return tuple(
            OwnerDemand(
                count=len(queued_jobs),
                gpu_milli=amount.gpu_milli,
                cpus=amount.cpus,
                memory_mib=amount.memory_mib,
                since=self._epoch + queued_jobs[0].since_s,
                nodes=self._could_host(queued_jobs[0]),
                who=self._owner.who,
            )
            for (_, amount), queued_jobs in shapes.items()
        )

    def _could_host(self, queued: QueuedOwnerJob) -> tuple[str, ...]:
        able = [m.name for m in self._allowed(queued) if queued.amount.within(m.total)]
        return () if len(able) == len(self._machines) else tuple(able) or ("none",)

    def load(self) -> OwnerLoad:
        """Return the load of the running jobs."""
        held = [queued.amount for queued in self.running]
        return OwnerLoad(
            len(held), sum(a.gpu_milli for a in held), sum(a.cpus for a in held), sum(a.memory_mib for a in held)
        )

    # ---------------------------------------------------------------------------------------- one cycle of the site

    def _arrive(self, queued: QueuedOwnerJob) -> None:
        queued.booked_s = self._now_s
        self.waiting.append(queued)

    def _negotiate(self) -> None:
        asyncio.get_running_loop().call_later(self._owner.negotiation_s, self._negotiate)
        now_s = self._now_s
        for queued in self.waiting:
            queued.book(now_s)
        self._imagine()
        for queued in [t for t in self.waiting if t.promised is None]:
            machine = _fullest(m for m in self._allowed(queued) if m.hosts(queued.amount))
            if machine is not None:
                self._start(queued, machine)
        for queued in [t for t in self.waiting if t.promised is None]:
            if now_s - queued.since_s >= self._owner.preempts_after_s:
                self._preempt(queued)
        self._place_drones()
        self._look_for_room()
        self._metrics.nodes_counted(now_s, self._machines)

    def _allowed(self, queued: QueuedOwnerJob) -> Iterator[SimulatedNode]:
        pool = queued.job.pool
        return (m for m in self._machines if not pool or m.pool == pool)

    def _imagine(self) -> None:
        """Mark the waiting jobs that would start now if no drone held anything."""
        if not self.waiting:
            return
        room = {m: m.free_of_drones for m in self._machines if m.up}
        for queued in self.waiting:
            fitting = [m for m in self._allowed(queued) if m in room and m.admits(queued.amount, room[m])]
            queued.alone = bool(fitting)
            if fitting:
                machine = min(fitting, key=lambda m: room[m].gpu_milli)
                room[machine] = room[machine].less(queued.amount)

    def _look_for_room(self) -> None:
        """Mark the waiting jobs that the site's next cycle would start; enter the time until now."""
        if not self.waiting:
            return
        now_s, room = self._now_s, {m: m.free for m in self._machines if m.up}
        for queued in self.waiting:
            queued.book(now_s)
            if queued.promised is not None:
                continue
            fitting = [m for m in self._allowed(queued) if m in room and m.admits(queued.amount, room[m])]
            queued.room = bool(fitting)
            if fitting:
                machine = min(fitting, key=lambda m: room[m].gpu_milli)
                room[machine] = room[machine].less(queued.amount)

    def _start(self, queued: QueuedOwnerJob, machine: SimulatedNode) -> None:
        now_s = self._now_s
        queued.book(now_s)
        self.waiting.remove(queued)
        machine.place_owner_job(queued, queued.amount)
        self._metrics.node_filled(now_s, machine)
        self._metrics.owner_waits.append(self._wait_of(queued, now_s))
        timer = asyncio.get_running_loop().call_later(queued.job.duration_s, self._ended, queued)
        self.running[queued] = machine, timer

    def _wait_of(self, queued: QueuedOwnerJob, now_s: float) -> OwnerWait:
        return OwnerWait(queued.job.gpus, now_s - queued.since_s, queued.blocked_s, queued.late_s)

    def _ended(self, queued: QueuedOwnerJob) -> None:
        machine, _ = self.running.pop(queued)
        machine.owner_left(queued)
        self._look_for_room()

    # ------------------------------------------------------------------------------------------- drones give way

    def _preempt(self, queued: QueuedOwnerJob) -> None:
        """Preempt drones for a job that has waited long enough."""
        allowed = {m for m in self._allowed(queued) if m.up}
        standing = [
            b
            for b in self._bodies()
            if b.machine in allowed and b.granted_s is not None and b.alive and not b.is_leaving
        ]
        ranked = sorted(standing, key=self._order())
        victim = next((b for b in ranked if queued.amount.within(ResourceVector.of(b.type))), None)
        if victim is not None:
            queued.promised = victim
            self._promises[victim] = queued
            victim.leave(EndKind.PREEMPTED, None, "preempted by the owner", self._owner.grace_s)
        elif self._owner.pslot_preemption:
            self._clear_node(queued, ranked)

    def _order(self) -> Callable[[SimulatedDrone], tuple[float, str]]:
        now_s = self._now_s
        if self._owner.victim is VictimRule.RANDOM:
            return lambda b: (rng_for(self._seed, "victim", now_s, b.id).random(), b.id)
        return lambda b: (-(b.granted_s or 0.0), b.id)

    def _clear_node(self, queued: QueuedOwnerJob, ranked: Sequence[SimulatedDrone]) -> None:
        """Preempt several drones of one node at once.

        Chooses the node whose drones have run for the shortest time in all, as HTCondor's own PREEMPTION_RANK does, or
        any, if the rule is random.
        """
        now_s, found = self._now_s, []
        for machine in self._machines:
            room, leaving = machine.free, []
            for drone in (b for b in ranked if b.machine is machine):
                if queued.amount.within(room):
                    break
                room = room.plus(ResourceVector.of(drone.type))
                leaving.append(drone)
            if leaving and queued.amount.within(room):
                age_s = sum(now_s - (b.granted_s or 0.0) for b in leaving)
                chance = rng_for(self._seed, "node", now_s, machine.name).random()
                found.append(
                    (chance if self._owner.victim is VictimRule.RANDOM else age_s, machine.name, machine, leaving)
                )
        if found:
            _, _, machine, leaving = min(found, key=lambda f: f[:2])
            for drone in leaving:
                drone.perish(EndKind.PREEMPTED, "preempted by the owner")
            self._start(queued, machine)

    def left(self, drone: SimulatedDrone) -> None:
        """Free the room of a drone that left; the job that it was promised to starts there at once."""
        queued = self._promises.pop(drone, None)
        if queued is not None:
            queued.promised = None
            if drone.machine is not None and drone.machine.hosts(queued.amount):
                self._start(queued, drone.machine)
        self._look_for_room()

    def fell(self) -> None:
        """Nodes are down: the jobs that ran there wait again."""
        now_s = self._now_s
        for queued in [t for t, (machine, _) in self.running.items() if not machine.up]:
            machine, timer = self.running.pop(queued)
            timer.cancel()
            machine.owner_left(queued)
            queued.since_s = queued.booked_s = now_s
            queued.alone = queued.room = False
            queued.blocked_s = queued.late_s = 0.0
            self.waiting.append(queued)

    def close(self) -> None:
        """Enter the waits of those that still wait."""
        now_s = self._now_s
        for queued in self.waiting:
            queued.book(now_s)
            self._metrics.owner_waits.append(self._wait_of(queued, now_s))


def _fullest(machines: Iterator[SimulatedNode]) -> SimulatedNode | None:
    return min(machines, key=lambda m: m.free.gpu_milli, default=None)


ONE_GPU = 1000


@dataclass(frozen=True, slots=True)
class OwnerSeries:
    """``steps``: from when on the owner has how many GPUs."""

    steps: tuple[tuple[float, int], ...]
    pools: tuple[str, ...] = ()
    """Names of their GPU pools; empty: all of the site's."""
    victim: VictimRule = VictimRule.YOUNGEST
    notice_s: float = 0.0
    """Between the owner's wish and the drone's end; 0 is without notice."""


class OwnedPool(Protocol):
    """A GPU pool, as far as its owner is concerned."""

    wanted_milli: int

    @property
    def room_milli(self) -> int: ...


class SeriesOwner:
    """The owner at work. ``victims``: drones in some pools, first victim first; ``place``: give out what is free."""

    def __init__(
        self,
        series: OwnerSeries,
        pools: Sequence[OwnedPool],
        victims: Callable[[Sequence[OwnedPool]], Sequence[tuple[SimulatedDrone, OwnedPool]]],
        place: Callable[[], None],
        *,
        seed: int,
        site: str,
    ) -> None:
        self._series = series
        self._pools = pools
        self._victims = victims
        self._place = place
        self._seed = seed
        self._site = site

    def begin(self) -> None:
        """Set the timers of the steps."""
        loop = asyncio.get_running_loop()
        for at_s, gpus in self._series.steps:
            loop.call_at(at_s, self.wants, gpus)

    def wants(self, gpus: int) -> None:
        """From now on the owner has so many GPUs, or as many as there are."""
        rng = rng_for(self._seed, "owner series", self._site, asyncio.get_running_loop().time())
        more = gpus - sum(pool.wanted_milli for pool in self._pools) // ONE_GPU
        for _ in range(more):
            free = [max(0, pool.room_milli) // ONE_GPU for pool in self._pools]
            if any(free):
                rng.choices(self._pools, free)[0].wanted_milli += ONE_GPU
            elif not self._take_from_drones():
                break
        for _ in range(-more):
            rng.choices(self._pools, [pool.wanted_milli for pool in self._pools])[0].wanted_milli -= ONE_GPU
        self._place()

    def _take_from_drones(self) -> bool:
        """One GPU; False where no drone has one to give."""
        for drone, pool in self._victims(self._pools):
            if drone.type.gpu_milli and not self._has_notice(drone):
                pool.wanted_milli += ONE_GPU
                self._make_room(pool)
                return True
        return False

    def _make_room(self, pool: OwnedPool) -> None:
        """Drones of a pool go, first victim first, until nobody has more than there is."""
        drones = [drone for drone, _ in self._victims([pool]) if drone.type.gpu_milli]
        coming_milli = sum(drone.type.gpu_milli for drone in drones if self._has_notice(drone))
        for drone in drones:
            if pool.room_milli + coming_milli >= 0:
                return
            if self._has_notice(drone):
                continue
            if self._series.notice_s > 0:
                coming_milli += drone.type.gpu_milli
                drone.leave(EndKind.PREEMPTED, None, "preempted by the owner", self._series.notice_s)
            else:
                drone.perish(EndKind.PREEMPTED, "preempted by the owner")

    def _has_notice(self, drone: SimulatedDrone) -> bool:
        """Return whether the drone leaves anyway and the owner waits for that."""
        return self._series.notice_s > 0 and drone.is_leaving
