"""A simulated overlay pool: jobs, matchmaking on a negotiation interval, slots with what is left in them."""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from operator import is_
from typing import Generic, Self, TypeVar

from provisioner.model import (
    Bootstrap,
    CompletedJob,
    DrainMode,
    DroneId,
    DroneType,
    Eviction,
    JobClass,
    JobFailure,
    OrderOutcome,
    OrderResult,
    OverlayView,
    Slot,
    SlotState,
    StartOrder,
)
from provisioner.sharing import Load, load_of, rates, share_milli, shares_needed
from provisioner.simulator.drones import DroneDefect, SimulatedDrone
from provisioner.simulator.faults import (
    OVERLAY,
    HardwareFaultKind,
    Network,
    ServiceFault,
    ServiceFaultKind,
)
from provisioner.simulator.jobs import JobRequirements, QueuedJob, QueuedJobClass, SimulatedJob, SimulatedJobQueue
from provisioner.simulator.loop import Draw, Fixed, rng_for
from provisioner.simulator.results import Conditions

ROUNDING_S = 1e-3
"""Floating-point sums of times are off by far less."""


@dataclass(slots=True, eq=False)
class SimulatedAttempt:
    """An attempt of a job on a drone. Work is in seconds of a run with a GPU of its own."""

    queued: QueuedJob
    work_s: float
    done: bool
    """True if the job is done after this work, False if it breaks off."""
    begun_s: float
    since_s: float
    worked_s: float = 0.0
    """Work done until ``since_s``; it goes on at ``rate``."""
    rate: float = 1.0
    gpu: int = -1
    """Index of the drone's GPU that it shares with others; -1 if none."""
    timer: asyncio.TimerHandle = field(init=False)

    def worked(self, now_s: float) -> float:
        return self.worked_s + (now_s - self.since_s) * self.rate

    def saved(self, now_s: float) -> float:
        """Work that its checkpoints have saved."""
        return self.queued.job.saved_s(self.worked(now_s))

    def kept_s(self, now_s: float) -> float:
        """Return the part of its time here that need not be repeated."""
        saved_s = self.saved(now_s)
        return saved_s * (now_s - self.begun_s) / self.worked(now_s) if saved_s and self.gpu >= 0 else saved_s


Ended = Callable[["SimulatedSlot", QueuedJob, bool], None]
"""Callback for a job that ends by itself; the last argument says whether it is done."""


class SimulatedSlot:
    """A drone whose jobs each have what they asked for to themselves."""

    def __init__(self, drone: SimulatedDrone, joined_s: float, ended: Ended) -> None:
        kind = drone.type
        self.drone = drone
        self.joined_s = joined_s
        self.changed_s = joined_s
        self.lost_s: float | None = None
        self.serving = False
        self.draining = False
        self.idle_since_s = joined_s
        self.jobs_started = 0
        self.gpu_milli = kind.gpu_milli
        self.cpus = kind.cpus
        self.memory_mib = kind.memory_mib
        self.disk_mib = kind.disk_mib
        self.avoids = frozenset(filter(None, drone.order.avoids.split(",")))
        """Users whose jobs it does not take."""
        self.running: dict[int, SimulatedAttempt] = {}
        self.idle_timer: asyncio.TimerHandle | None = None
        self._ended = ended
        self._view: Slot | None = None
        self._renews_s = 0.0
        """Until then its view stays as it is, unless something changes."""

    @property
    def open(self) -> bool:
        return self.serving and not self.draining and self.lost_s is None

    @property
    def full(self) -> bool:
        return self.gpu_milli <= 0 if self.drone.type.gpu_milli else self.cpus <= 0

    @property
    def busy_milli(self) -> int:
        """GPUs of the drone that jobs hold, in thousandths."""
        return self.drone.type.gpu_milli - self.gpu_milli

    def fits(self, jobs: QueuedJobClass) -> bool:
        wants = jobs.wants
        return (
            wants.gpu_milli <= self.gpu_milli
            and wants.cpus <= self.cpus
            and wants.memory_mib <= self.memory_mib
            and wants.disk_mib <= self.disk_mib
        )

    def start(self, queued: QueuedJob, work_s: float, done: bool, now_s: float) -> None:
        """Start a job here; there must be room."""
        self._take(queued.wants, self.milli_of(queued.wants), 1)
        self.jobs_started += 1
        run = self.running[queued.serial] = SimulatedAttempt(queued, work_s, done, now_s, now_s)
        self._timed(run)
        self.touched(now_s)

    def end(self, run: SimulatedAttempt, now_s: float) -> float:
        """Remove a job at ``now_s`` (or when the drone was lost).

        Returns for how long, in seconds of one GPU, it kept GPUs busy that no other job used.
        """
        del self.running[run.queued.serial]
        run.timer.cancel()
        self._take(run.queued.wants, self.milli_of(run.queued.wants), -1)
        self.touched(now_s)
        return self.worth(run.queued) / 1000 * (now_s - run.begun_s) if self.drone.type.gpu_milli else 0.0

    def milli_of(self, wants: JobRequirements) -> int:
        """Return the part of the drone's GPUs that one job takes."""
        return wants.gpu_milli

    def _take(self, wants: JobRequirements, gpu_milli: int, sign: int) -> None:
        self.gpu_milli -= sign * gpu_milli
        self.cpus -= sign * wants.cpus
        self.memory_mib -= sign * wants.memory_mib
        self.disk_mib -= sign * wants.disk_mib

    def _timed(self, run: SimulatedAttempt) -> None:
        """Set the timer of a run's end, from ``since_s`` on, which is now."""
        left_s = max(0.0, run.work_s - run.worked_s) / run.rate
        run.timer = asyncio.get_running_loop().call_later(left_s, self._ended, self, run.queued, run.done)

    def touched(self, now_s: float) -> None:
        if self.lost_s is None:
            self.changed_s = now_s
        self._view = None

    def listed(self, now_s: float, update_s: float, start_epoch: float) -> Slot:
        """Return the slot as the collector has it: by its newest change or periodic update."""
        if self._view is not None and now_s < self._renews_s:
            return self._view
        alive_s = now_s if self.lost_s is None else self.lost_s
        periodic_s = self.joined_s + (alive_s - self.joined_s) // update_s * update_s
        heard_s = max(periodic_s, self.changed_s)
        heard_at = start_epoch + heard_s
        self._renews_s = periodic_s + update_s - ROUNDING_S if self.lost_s is None else math.inf
        if self._view is None:
            kind, runs = self.drone.type, self.running.values()
            work_milli, work_s = self._work(heard_s)
            owners = {run.queued.wants.owner for run in runs}
            alone = next(iter(runs)).queued.wants if len(runs) == 1 else None
            self._view = Slot(
                drone_id=self.drone.id,
                state=self._state(),
                heard_at=heard_at,
                free_gpu_milli=self.gpu_milli,
                free_cpus=self.cpus,
                free_memory_mib=self.memory_mib,
                free_disk_mib=self.disk_mib,
                jobs=len(runs),
                jobs_started=self.jobs_started,
                idle_since=0.0 if runs else start_epoch + self.idle_since_s,
                retires_at=self._retires_at(start_epoch),
                name=f"slot1@{self.drone.id}",
                gpu_model=kind.gpu_model,
                vram_mib=kind.vram_mib,
                capability=kind.capability,
                work_gpu_milli=work_milli,
                work_at=start_epoch + work_s if work_milli else 0.0,
                owner=owners.pop() if len(owners) == 1 else "",
                begun_at=start_epoch + min(run.begun_s for run in runs) if runs else 0.0,
                job_gpu_milli=alone.gpu_milli if alone else 0,
                job_cpus=alone.cpus if alone else 0,
                job_memory_mib=alone.memory_mib if alone else 0,
            )
        elif self._view.heard_at != heard_at:
            work_milli, work_s = self._work(heard_s)  # checkpoints made since
            work_at = start_epoch + work_s if work_milli else 0.0
            self._view = replace(self._view, heard_at=heard_at, work_at=work_at)
        return self._view

    def worth(self, queued: QueuedJob) -> int:
        """Return the weight of a job's time here, in thousandths: its GPUs, or its CPUs in a CPU drone."""
        return self.milli_of(queued.wants) if self.drone.type.gpu_milli else queued.wants.cpus * 1000

    def _work(self, now_s: float) -> tuple[int, float]:
        """Return the busy resources, and since when on average there is work that would be lost."""
        milli, weighed_s = 0, 0.0
        for run in self.running.values():
            worth = self.worth(run.queued)
            milli += worth
            weighed_s += worth * (run.begun_s + run.kept_s(now_s))
        return milli, weighed_s / milli if milli else 0.0

    def _state(self) -> SlotState:
        if self.draining:
            return SlotState.DRAINING
        if not self.serving:
            return SlotState.CHECKING
        return SlotState.BUSY if self.running else SlotState.IDLE

    def _retires_at(self, start_epoch: float) -> float:
        walltime_s, granted_s = self.drone.type.walltime_s, self.drone.granted_s
        if not walltime_s or granted_s is None:
            return 0.0
        return start_epoch + granted_s + walltime_s - self.drone.order.grace_s


class _SharedGpu:
    """One GPU that is offered in shares: who is on it."""

    def __init__(self, shares: int) -> None:
        self.free = shares
        self.runs: list[SimulatedAttempt] = []
        self.loads: list[Load] = []
        self.busy_since_s = 0.0


class SharedSlot(SimulatedSlot):
    """A slot of a drone whose GPUs are offered in shares.

    Jobs spread evenly over the GPUs and slow each other down. Each arrival and departure sets the others' timers anew.
    """

    def __init__(self, drone: SimulatedDrone, joined_s: float, ended: Ended) -> None:
        super().__init__(drone, joined_s, ended)
        self._shares = drone.type.shares
        self._gpus = [_SharedGpu(self._shares) for _ in range(drone.type.gpu_milli // 1000)]

    def milli_of(self, wants: JobRequirements) -> int:
        return self._shares_of(wants) * share_milli(self._shares)

    def _shares_of(self, wants: JobRequirements) -> int:
        return shares_needed(wants.gpu_milli, self._shares)

    def fits(self, jobs: QueuedJobClass) -> bool:
        return super().fits(jobs) and self._shares_of(jobs.wants) <= max(gpu.free for gpu in self._gpus)

    @property
    def full(self) -> bool:
        return not any(gpu.free for gpu in self._gpus)

    def start(self, queued: QueuedJob, work_s: float, done: bool, now_s: float) -> None:
        super().start(queued, work_s, done, now_s)
        wants, run = queued.wants, self.running[queued.serial]
        run.gpu = max(range(len(self._gpus)), key=lambda n: self._gpus[n].free)
        gpu = self._gpus[run.gpu]
        if not gpu.runs:
            gpu.busy_since_s = now_s
        gpu.free -= self._shares_of(wants)
        gpu.runs.append(run)
        gpu.loads.append(load_of(wants.gpu_milli, wants.duty_milli, wants.width_milli))
        self._retime(gpu, now_s)

    def end(self, run: SimulatedAttempt, now_s: float) -> float:
        super().end(run, now_s)
        gpu = self._gpus[run.gpu]
        place = gpu.runs.index(run)
        del gpu.runs[place], gpu.loads[place]
        gpu.free += self._shares_of(run.queued.wants)
        if not gpu.runs:
            return now_s - gpu.busy_since_s
        self._retime(gpu, now_s)
        return 0.0

    def _retime(self, gpu: _SharedGpu, now_s: float) -> None:
        """Set the timers of a GPU's jobs anew after their number has changed."""
        if self.lost_s is not None:
            return
        for run, rate in zip(gpu.runs, rates(self.drone.type.sharing, gpu.loads, self._shares), strict=True):
            if rate != run.rate:
                run.timer.cancel()
                run.worked_s, run.since_s, run.rate = run.worked(now_s), now_s, rate
                self._timed(run)


T = TypeVar("T")

BLACK_HOLE_JOB_S = 5.0
"""Duration of each job on a black-hole drone."""
EVENT_RETENTION_S = 900.0
"""Time for which an eviction or a completion is listed."""


@dataclass(frozen=True, slots=True)
class PoolBehaviour:
    """Behaviour of the overlay pool."""

    negotiation_s: float = 20.0
    """Between two negotiation cycles. 0: there are none; jobs are matched as they come, and as slots open."""
    update_s: float = 60.0
    """Between two signs of life of a slot."""
    slot_lifetime_s: float = 900.0
    """Time for which the slot of a vanished drone stays listed."""
    lease_s: float = 60.0
    """Until the jobs of a drone that perished wait again."""
    latency: Draw = field(default_factory=lambda: Fixed(0.2))
    reuses_claims: bool = True
    """A slot that is done takes the next job of the same class without negotiation."""
    best_fit: bool = False
    """Jobs go to the slot with the least VRAM that does, shares before whole GPUs (HTCondor:
    ``NEGOTIATOR_PRE_JOB_RANK = -GPUs_GlobalMemoryMb``); else to the first that does."""


class _Recent(Generic[T]):
    """Events of the last :data:`EVENT_RETENTION_S`, as the very same tuple until one comes or expires."""

    def __init__(self) -> None:
        self._events: deque[tuple[float, T]] = deque()
        self._view: tuple[T, ...] | None = ()

    def add(self, at: float, event: T) -> None:
        self._events.append((at, event))
        self._view = None

    def listed(self, now: float) -> tuple[T, ...]:
        while self._events and self._events[0][0] <= now - EVENT_RETENTION_S:
            self._events.popleft()
            self._view = None
        if self._view is None:
            self._view = tuple(event for _, event in self._events)
        return self._view


def _by_vram(slot: SimulatedSlot) -> tuple[int, int]:
    kind = slot.drone.type
    return kind.vram_mib // kind.shares, kind.capability


class SimulatedOverlay:
    """Implements :class:`provisioner.interfaces.Overlay`; the other methods are the world's."""

    def __init__(self, jobs: Sequence[SimulatedJob], behaviour: PoolBehaviour, conditions: Conditions) -> None:
        self.done = 0
        self.starts = 0
        """Attempts ever begun."""
        self.queued_jobs = [QueuedJob(n, job) for n, job in enumerate(sorted(jobs, key=lambda job: job.submit_s))]
        self._arrived = 0
        self._queue = SimulatedJobQueue()
        self._drone_slots: dict[DroneId, SimulatedSlot] = {}
        self._lost: dict[DroneId, SimulatedSlot] = {}
        """Dead drones, for as long as their slots are listed."""
        self._slots: tuple[Slot, ...] = ()
        self._classes: tuple[JobClass, ...] = ()
        """As they were last listed: the very same where nothing has changed."""
        self._roomy: dict[DroneId, SimulatedSlot] = {}
        """Without negotiation cycles: slots that may have room."""
        self._matches: dict[tuple[str, str], bool] = {}
        self._behaviour = behaviour
        self._metrics = conditions.metrics
        self._seed = conditions.seed
        self._start_epoch = conditions.start_epoch
        self._negotiated_s = 0.0
        self._paused_until_s = 0.0
        self._network = Network(OVERLAY, behaviour.latency, conditions)
        self._frozen: dict[int, OverlayView] = {}
        self._evictions = _Recent[Eviction]()
        self._completions = _Recent[CompletedJob]()
        self._mishaps = _Recent[JobFailure]()
        self._pauses = [f for f in conditions.hardware_faults if f.kind is HardwareFaultKind.NO_NEGOTIATION]

    @property
    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def waiting(self) -> int:
        """Jobs that have arrived and wait."""
        return sum(jobs.idle for jobs in self._queue.alive())

    @property
    def running(self) -> int:
        return sum(jobs.running for jobs in self._queue.alive())

    @property
    def busy_milli(self) -> int:
        """GPUs that jobs hold as far as the pool knows, in thousandths; a small job holds its shares of a GPU."""
        return sum(slot.busy_milli for slot in self._drone_slots.values())

    @property
    def to_come(self) -> int:
        return len(self.queued_jobs) - self._arrived

    def begin(self) -> None:
        """Set the timers of arrivals and negotiation. To be called once, inside the running loop."""
        loop = asyncio.get_running_loop()
        self._next_arrival()
        if not self._at_once:
            loop.call_later(self._behaviour.negotiation_s, self._negotiate)
        for pause in self._pauses:
            loop.call_at(pause.at_s, self._pause, pause.for_s)

    # ----------------------------------------------------------------------------------------------- the interface

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    async def poll(self, types: Sequence[DroneType]) -> OverlayView:
        known = tuple(types)
        return await self._network.poll(lambda: self._view(known), self._distort)

    async def drain(self, drone_ids: Sequence[DroneId], mode: DrainMode, reason: str) -> Sequence[OrderResult]:
        return await self._network.act("drain", lambda: [self._drain(drone_id, mode) for drone_id in drone_ids])

    async def bootstrap(self, order: StartOrder) -> Bootstrap:
        return await self._network.ask("bootstrap", lambda: Bootstrap(b"#!/bin/sh\n", {"DRONE_ID": order.drone_id}))

    # ----------------------------------------------------------------------------------------------- what is listed

    def _view(self, types: tuple[DroneType, ...]) -> OverlayView:
        now_s, behaviour = self._now_s, self._behaviour
        for drone_id in [d for d, slot in self._lost.items() if self._expired(slot, now_s)]:
            slot = self._lost.pop(drone_id)
            if self._drone_slots.get(drone_id) is slot:
                del self._drone_slots[drone_id]
        slots = [slot.listed(now_s, behaviour.update_s, self._start_epoch) for slot in self._drone_slots.values()]
        if len(slots) != len(self._slots) or not all(map(is_, slots, self._slots)):
            self._slots = tuple(slots)
        classes = [jobs.view(types, self._start_epoch) for jobs in self._queue.alive()]
        if len(classes) != len(self._classes) or not all(map(is_, classes, self._classes)):
            self._classes = tuple(classes)
        return OverlayView(
            taken_at=self._start_epoch + now_s,
            classes=self._classes,
            slots=self._slots,
            negotiated_at=self._start_epoch + self._negotiated_s if self._negotiated_s else 0.0,
            evictions=self._evictions.listed(self._start_epoch + now_s),
            completions=self._completions.listed(self._start_epoch + now_s),
            mishaps=self._mishaps.listed(self._start_epoch + now_s),
        )

    def _expired(self, slot: SimulatedSlot, now_s: float) -> bool:
        return slot.lost_s is not None and now_s - slot.lost_s >= self._behaviour.slot_lifetime_s

    def _distort(self, view: OverlayView, fault: ServiceFault) -> OverlayView:
        match fault.kind:
            case ServiceFaultKind.EMPTY:
                return replace(view, classes=(), slots=())
            case ServiceFaultKind.PARTIAL:
                begin_s = fault.from_s
                rolls = {s.drone_id: rng_for(self._seed, "hidden", begin_s, s.drone_id).random() for s in view.slots}
                return replace(view, slots=tuple(s for s in view.slots if rolls[s.drone_id] >= fault.amount))
            case ServiceFaultKind.STALE:
                return replace(self._frozen.setdefault(id(fault), view), taken_at=view.taken_at)
            case _:
                return view

    # ------------------------------------------------------------------------------------------- arrival and matching

    def _next_arrival(self) -> None:
        if self._arrived < len(self.queued_jobs):
            asyncio.get_running_loop().call_at(self.queued_jobs[self._arrived].job.submit_s, self._arrive)

    def _arrive(self) -> None:
        queued = self.queued_jobs[self._arrived]
        self._arrived += 1
        jobs = self._queue.of(queued.wants)
        jobs.add(queued, self._now_s)
        if self._at_once:
            self._offer(jobs)
        self._next_arrival()

    def _pause(self, for_s: float) -> None:
        self._paused_until_s = max(self._paused_until_s, self._now_s + for_s)
        if self._at_once:
            asyncio.get_running_loop().call_at(self._paused_until_s, self._cycle)

    @property
    def _paused(self) -> bool:
        return self._now_s < self._paused_until_s

    def _negotiate(self) -> None:
        asyncio.get_running_loop().call_later(self._behaviour.negotiation_s, self._negotiate)
        if not self._paused:
            self._negotiated_s = self._now_s
            self._cycle()

    def _cycle(self) -> None:
        """Jobs by priority, then age, each to the first slot with room."""
        idle = self._queue.idle()
        if not idle or self._paused:
            return
        open_slots = [slot for slot in self._drone_slots.values() if slot.open]
        if self._behaviour.best_fit:
            open_slots.sort(key=_by_vram)
        # A slot too small for a class stays so for the rest of the cycle: each class goes down the list once.
        rounds = [(-b.wants.priority, *b.first(), n, b, 0) for n, b in enumerate(idle)]
        heapq.heapify(rounds)
        while rounds:
            priority, _, _, n, jobs, place = heapq.heappop(rounds)
            while place < len(open_slots) and not self._match(jobs, open_slots[place]):
                place += 1
            if place < len(open_slots):
                self._start(jobs, open_slots[place])
                if jobs.idle:
                    heapq.heappush(rounds, (priority, *jobs.first(), n, jobs, place))
        for jobs in idle:
            jobs.mark_judged()

    # Without cycles: no job waits for which some open slot has room, so only what has just changed is looked at.

    @property
    def _at_once(self) -> bool:
        return self._behaviour.negotiation_s == 0

    def _offer(self, jobs: QueuedJobClass) -> None:
        """Jobs of a class have come, or come back."""
        if self._paused:
            return
        jobs.mark_judged()
        while jobs.idle and (slot := self._with_room(jobs)) is not None:
            self._start(jobs, slot)

    def _with_room(self, jobs: QueuedJobClass) -> SimulatedSlot | None:
        """Return the slot that a job of the class goes to now, if any."""
        full = [drone_id for drone_id, slot in self._roomy.items() if slot.full or not slot.open]
        for drone_id in full:
            del self._roomy[drone_id]
        fitting = (slot for slot in self._roomy.values() if self._match(jobs, slot))
        return min(fitting, key=_by_vram, default=None) if self._behaviour.best_fit else next(fitting, None)

    def _opened(self, slot: SimulatedSlot) -> None:
        """Fill a slot that has room with the first jobs that fit."""
        if not self._at_once or not slot.open:
            return
        self._roomy[slot.drone.id] = slot
        if self._paused:
            return
        while not slot.full:
            fitting = (jobs for jobs in self._queue.idle() if self._match(jobs, slot))
            jobs = min(fitting, key=lambda b: (-b.wants.priority, b.first()), default=None)
            if jobs is None:
                break
            self._start(jobs, slot)

    def _match(self, jobs: QueuedJobClass, slot: SimulatedSlot) -> bool:
        accepted = slot.open and jobs.wants.owner not in slot.avoids
        return accepted and slot.fits(jobs) and self._suitable(jobs, slot) and not self._too_short(jobs, slot)

    def _suitable(self, jobs: QueuedJobClass, slot: SimulatedSlot) -> bool:
        kind = slot.drone.type
        key = jobs.name, kind.key
        if key not in self._matches:
            self._matches[key] = jobs.wants.unmet_requirement(kind) is None
        return self._matches[key] and slot.drone.script.defect is not DroneDefect.MATCHES_NOTHING

    def _too_short(self, jobs: QueuedJobClass, slot: SimulatedSlot) -> bool:
        """Return whether the job's requested time exceeds the drone's remaining walltime."""
        walltime_s, granted_s = slot.drone.type.walltime_s, slot.drone.granted_s
        if not jobs.wants.walltime_s or not walltime_s or granted_s is None:
            return False
        return self._now_s + jobs.wants.walltime_s > granted_s + walltime_s

    # ----------------------------------------------------------------------------------------------- jobs on drones

    def _start(self, jobs: QueuedJobClass, slot: SimulatedSlot) -> None:
        queued, now_s = jobs.take(), self._now_s
        if slot.idle_timer is not None:
            slot.idle_timer.cancel()
            slot.idle_timer = None
        queued.starts += 1
        self.starts += 1
        queued.begun_s = now_s
        if queued.first_begun_s is None:
            queued.first_begun_s = now_s
            self._metrics.first_starts.append((queued.job.submit_s, now_s))
        eaten = slot.drone.script.defect is DroneDefect.EATS_JOBS
        left_s = queued.job.duration_s - queued.saved_s
        slot.start(queued, min(BLACK_HOLE_JOB_S, left_s) if eaten else left_s, not eaten, now_s)

    def _ended(self, slot: SimulatedSlot, queued: QueuedJob, done: bool) -> None:
        """Give the slot of a job that ended by itself the next one, or let it fall idle."""
        jobs = self._close(slot, queued, done)
        if not done:
            at, owner = self._start_epoch + self._now_s, queued.wants.owner
            self._mishaps.add(at, JobFailure(slot.drone.id, f"{queued.serial}.0", at, owner, "broke off"))
        if self._behaviour.reuses_claims and jobs.idle and self._match(jobs, slot):
            self._start(jobs, slot)
        self._opened(slot)
        if self._at_once and not done:
            self._offer(jobs)
        if not slot.running:
            self._idle(slot)

    def _close(self, slot: SimulatedSlot, queued: QueuedJob, done: bool) -> QueuedJobClass:
        """Book the end of an attempt; a job that is not done waits again."""
        now_s, jobs, kind = self._now_s, self._queue.of(queued.wants), slot.drone.type
        until_s = now_s if slot.lost_s is None else slot.lost_s
        run = slot.running[queued.serial]
        ran_s, saved_s = until_s - run.begun_s, run.saved(until_s)
        lost_s = None if done else ran_s - run.kept_s(until_s)
        self._metrics.attempt(kind, slot.milli_of(queued.wants), ran_s, lost_s)
        self._metrics.at_work(kind, slot.end(run, until_s))
        jobs.ran()
        if done:
            self._done(slot, queued, ran_s)
        else:
            queued.saved_s += saved_s
            jobs.add(queued, self._now_s)
        return jobs

    def _done(self, slot: SimulatedSlot, queued: QueuedJob, ran_s: float) -> None:
        job, wants = queued.job, queued.wants
        queued.done_s = self._now_s
        self.done += 1
        self._metrics.waited(self._queue.of(wants).label, queued.done_s - job.duration_s - job.submit_s)
        ended_at = self._start_epoch + queued.done_s
        self._completions.add(
            ended_at,
            CompletedJob(
                job_id=f"{queued.serial}.0",
                ended_at=ended_at,
                submitted_at=self._start_epoch + job.submit_s,
                run_s=ran_s,
                drone_id=slot.drone.id,
                **wants.completed_fields,
            ),
        )

    def _cut_short(self, slot: SimulatedSlot) -> None:
        """End all jobs of a slot; they wait again."""
        until_s = self._now_s if slot.lost_s is None else slot.lost_s
        back: dict[str, QueuedJobClass] = {}
        for run in list(slot.running.values()):
            lost_s = until_s - run.begun_s - run.kept_s(until_s)
            at, worth = self._start_epoch + self._now_s, slot.worth(run.queued)
            self._evictions.add(at, Eviction(slot.drone.id, f"{run.queued.serial}.0", at, worth, lost_s))
            jobs = self._close(slot, run.queued, done=False)
            back[jobs.name] = jobs
        if self._at_once:
            for jobs in back.values():
                self._offer(jobs)

    def _idle(self, slot: SimulatedSlot) -> None:
        """Let a drone without jobs leave: at once if it drains, else after its idle time-out."""
        slot.idle_since_s = self._now_s
        slot.touched(self._now_s)
        if slot.draining:
            slot.drone.leave_empty("drained")
        elif slot.lost_s is None:
            limit_s = slot.drone.order.idle_timeout_s
            slot.idle_timer = asyncio.get_running_loop().call_later(limit_s, slot.drone.leave_empty, "idle too long")

    # ------------------------------------------------------------------------------------------- drones come and go

    def join(self, drone: SimulatedDrone) -> None:
        """Add a drone to the pool; it does not accept jobs yet."""
        kind = SharedSlot if drone.type.shares > 1 else SimulatedSlot
        self._drone_slots[drone.id] = kind(drone, self._now_s, self._ended)

    def serve(self, drone: SimulatedDrone) -> None:
        """Let the drone accept jobs."""
        slot = self._slot_of(drone)
        if slot is not None:
            slot.serving = True
            self._idle(slot)
            self._opened(slot)

    def withdraw(self, drone: SimulatedDrone) -> None:
        """Give a drone no new jobs; it leaves once it has none."""
        slot = self._slot_of(drone)
        if slot is not None:
            slot.draining = True
            slot.touched(self._now_s)
        if slot is None or not slot.running:
            drone.leave_empty("drained")

    def _slot_of(self, drone: SimulatedDrone) -> SimulatedSlot | None:
        """Return its slot; None where another drone has joined under the same id, which the metrics report."""
        slot = self._drone_slots.get(drone.id)
        return slot if slot is not None and slot.drone is drone else None

    def part(self, drone: SimulatedDrone, orderly: bool) -> None:
        """Take a drone out of the pool; if not orderly, its slot and jobs stay listed for a while."""
        slot = self._slot_of(drone)
        if slot is None:
            return
        self._roomy.pop(drone.id, None)
        if slot.idle_timer is not None:
            slot.idle_timer.cancel()
        if orderly:
            self._cut_short(slot)
            del self._drone_slots[drone.id]
            return
        slot.lost_s = self._now_s
        self._lost[drone.id] = slot
        for run in slot.running.values():
            run.timer.cancel()
        asyncio.get_running_loop().call_later(self._behaviour.lease_s, self._cut_short, slot)

    def _drain(self, drone_id: DroneId, mode: DrainMode) -> OrderResult:
        slot = self._drone_slots.get(drone_id)
        if slot is not None and slot.lost_s is None:
            match mode:
                case DrainMode.NONE:
                    pass
                case DrainMode.RESUME:
                    slot.draining = slot.drone.accepts_nothing_more
                    slot.touched(self._now_s)
                    self._opened(slot)
                case DrainMode.PEACEFUL:
                    self.withdraw(slot.drone)
                case DrainMode.GRACEFUL:
                    self.withdraw(slot.drone)
                    asyncio.get_running_loop().call_later(slot.drone.order.grace_s, self._vacate, slot)
                case DrainMode.FAST:
                    self._vacate(slot, at_once=True)
        return OrderResult(drone_id, OrderOutcome.OK)

    def _vacate(self, slot: SimulatedSlot, at_once: bool = False) -> None:
        """End the jobs of a draining drone, which then leaves."""
        slot.draining = slot.draining or at_once
        if slot.draining and slot.lost_s is None:
            self._cut_short(slot)
            slot.drone.leave_empty("drained")
