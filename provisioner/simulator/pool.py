"""A simulated overlay pool: jobs, matchmaking on a negotiation interval, slots with what is left in them."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from provisioner import model
from provisioner.interfaces import AlwaysOpen
from provisioner.model import (
    Bootstrap,
    CompletedJob,
    DrainMode,
    DroneId,
    DroneType,
    Eviction,
    JobFailure,
    OrderOutcome,
    OrderResult,
    OrderResults,
    OverlayView,
    Slot,
    SlotState,
)
from provisioner.resources import Resources
from provisioner.sharing import rates, share_milli, shares_needed
from provisioner.simulator.drones import (
    OVERLAY,
    DroneDefect,
    HardwareFaultKind,
    SimulatedDrone,
)
from provisioner.simulator.jobs import JobRequirements, QueuedJob, QueuedJobClass, SimulatedJobQueue
from provisioner.simulator.loop import Draw, Fixed, after, at, now, now_s, start_epoch
from provisioner.simulator.results import FinishedJob
from provisioner.values import T, define, factory, frozen, setting

if TYPE_CHECKING:
    from provisioner.simulator.world import World


BLACK_HOLE_JOB_S = 5.0
EVENT_RETENTION_S = 900.0
"""Time for which an eviction or a completion is listed."""


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

    def worked(self, at_s: float) -> float:
        return self.worked_s + (at_s - self.since_s) * self.rate

    def kept_s(self, at_s: float) -> float:
        """Return the part of its time here that need not be repeated."""
        saved_s = self.queued.job.saved_s(self.worked(at_s))
        return (
            saved_s * (at_s - self.begun_s) / self.worked(at_s)
            if saved_s and self.gpu >= 0
            else saved_s
        )


Ended = Callable[["SimulatedSlot", QueuedJob, bool], None]
"""Called when a job ends by itself; the last argument says whether it is done."""


class SimulatedSlot:
    """A drone whose jobs each have what they asked for to themselves."""

    def __init__(self, drone: SimulatedDrone, ended: Ended) -> None:
        self.drone = drone
        self.joined_s = self.changed_s = self.idle_since_s = now_s()
        self.lost_s: float | None = None
        self.serving = False
        self.first_jobs_until_s = 0.0
        self.draining = False
        self.jobs_started = 0
        self.free = Resources.of(drone.type)
        # The simulated pool keeps no drone for jobs of much VRAM.
        self.job_filter = replace(drone.order.job_filter, first_vram_mib=0)
        self.running: dict[int, SimulatedAttempt] = {}
        self.idle_timer: asyncio.TimerHandle | None = None
        self._ended = ended
        self._view: Slot | None = None
        self._renews_s = 0.0

    @property
    def open(self) -> bool:
        return self.serving and not self.draining and self.lost_s is None

    @property
    def full(self) -> bool:
        return self.free.gpu_milli <= 0 if self.drone.type.gpu_milli else self.free.cpus <= 0

    @property
    def until_s(self) -> float:
        """The present, or the time at which the drone was lost."""
        return now_s() if self.lost_s is None else self.lost_s

    def fits(self, jobs: QueuedJobClass) -> bool:
        amount = self._taken_by(jobs.wants) if jobs.wants.gpu_optional else jobs.amount
        return amount.within(self.free)

    def start(self, queued: QueuedJob, work_s: float, done: bool) -> None:
        """Start a job here; there must be room."""
        self.free = self.free.plus(self._taken_by(queued.wants), -1)
        self.jobs_started += 1
        run = self.running[queued.serial] = SimulatedAttempt(queued, work_s, done, now_s(), now_s())
        self._set_timer(run)
        self.touched()

    def end(self, run: SimulatedAttempt) -> float:
        """Remove a job; return for how long, in seconds of one GPU, it kept GPUs busy that no other job used."""
        del self.running[run.queued.serial]
        run.timer.cancel()
        self.free = self.free.plus(self._taken_by(run.queued.wants))
        self.touched()
        return (
            self.weight_of(run.queued) / 1000 * (self.until_s - run.begun_s)
            if self.drone.type.gpu_milli
            else 0.0
        )

    def milli_of(self, wants: JobRequirements) -> int:
        """Return the part of the drone's GPUs that one job takes."""
        return wants.gpu_milli if self.drone.type.gpu_milli else 0

    def room_by_eviction(self, jobs: QueuedJobClass) -> SimulatedAttempt | None:
        """Return an attempt of a job with an optional GPU in whose place a job that needs the GPU fits, or None."""
        for run in self.running.values():
            if run.queued.wants.gpu_optional and jobs.amount.within(
                self.free.plus(self._taken_by(run.queued.wants))
            ):
                return run
        return None

    def _taken_by(self, wants: JobRequirements) -> Resources:
        return wants.resources._replace(gpu_milli=self.milli_of(wants))

    def _set_timer(self, run: SimulatedAttempt) -> None:
        left_s = max(0.0, run.work_s - run.worked_s) / run.rate
        run.timer = after(left_s, self._ended, self, run.queued, run.done)

    def stop_idle_timer(self) -> None:
        if self.idle_timer is not None:
            self.idle_timer.cancel()

    def touched(self) -> None:
        if self.lost_s is None:
            self.changed_s = now_s()
        self._view = None

    def listed(self, at_s: float, update_s: float) -> Slot:
        """Return the slot as the collector has it: by its newest change or periodic update."""
        if self._view is not None and at_s < self._renews_s:
            return self._view
        until_s = at_s if self.lost_s is None else self.lost_s
        periodic_s = self.joined_s + (until_s - self.joined_s) // update_s * update_s
        self._renews_s = periodic_s + update_s - ROUNDING_S
        heard_s = max(periodic_s, self.changed_s)
        epoch = start_epoch()
        if self._view is None or self._view.heard_at != epoch + heard_s:
            kind = self.drone.type
            runs = self.running.values()
            work_milli = 0
            work_s = 0.0
            for run in runs:
                weight = self.weight_of(run.queued)
                work_milli += weight
                work_s += weight * (run.begun_s + run.kept_s(heard_s))
            owners = {run.queued.wants.owner for run in runs}
            alone = next(iter(runs)).queued.wants if len(runs) == 1 else None
            retires_s = self.drone.walltime_end_s
            self._view = Slot(
                drone_id=self.drone.id,
                state=self._state(),
                heard_at=epoch + heard_s,
                free_gpu_milli=self.free.gpu_milli,
                free_cpus=self.free.cpus,
                free_memory_mib=self.free.memory_mib,
                free_disk_mib=self.free.disk_mib,
                jobs=len(runs),
                jobs_started=self.jobs_started,
                idle_since=0.0 if runs else epoch + self.idle_since_s,
                retires_at=0.0
                if retires_s is None
                else epoch + retires_s - self.drone.order.grace_s,
                name=f"slot1@{self.drone.id}",
                gpu_model=kind.gpu_model,
                vram_mib=kind.vram_mib,
                capability=kind.capability,
                work_gpu_milli=work_milli,
                work_at=epoch + work_s / work_milli if work_milli else 0.0,
                owner=owners.pop() if len(owners) == 1 else "",
                begun_at=epoch + min(run.begun_s for run in runs) if runs else 0.0,
                job_gpu_milli=alone.gpu_milli if alone and kind.gpu_milli else 0,
                job_cpus=alone.cpus if alone else 0,
                job_memory_mib=alone.memory_mib if alone else 0,
                optional_jobs=sum(run.queued.wants.gpu_optional for run in runs),
            )
        return self._view

    def weight_of(self, queued: QueuedJob) -> int:
        """Return the weight of a job's time here, in thousandths: its GPUs, or its CPUs in a CPU drone."""
        return (
            self.milli_of(queued.wants) if self.drone.type.gpu_milli else queued.wants.cpus * 1000
        )

    def _state(self) -> SlotState:
        if self.draining:
            return SlotState.DRAINING
        if not self.serving:
            return SlotState.CHECKING
        return SlotState.BUSY if self.running else SlotState.IDLE


@define
class _SharedGpu:
    free: int
    runs: list[SimulatedAttempt] = factory(list)
    busy_since_s: float = 0.0


class SharedSlot(SimulatedSlot):
    """A slot of a drone whose GPUs are offered in shares: jobs spread evenly over them and slow each other down."""

    def __init__(self, drone: SimulatedDrone, ended: Ended) -> None:
        super().__init__(drone, ended)
        self._shares = drone.type.shares
        self._gpus = [_SharedGpu(self._shares) for _ in range(drone.type.gpu_milli // 1000)]

    def milli_of(self, wants: JobRequirements) -> int:
        return shares_needed(wants.gpu_milli, self._shares) * share_milli(self._shares)

    def fits(self, jobs: QueuedJobClass) -> bool:
        needed = shares_needed(jobs.wants.gpu_milli, self._shares)
        return super().fits(jobs) and needed <= max(gpu.free for gpu in self._gpus)

    @property
    def full(self) -> bool:
        return not any(gpu.free for gpu in self._gpus)

    def start(self, queued: QueuedJob, work_s: float, done: bool) -> None:
        super().start(queued, work_s, done)
        run = self.running[queued.serial]
        run.gpu = max(range(len(self._gpus)), key=lambda n: self._gpus[n].free)
        gpu = self._gpus[run.gpu]
        if not gpu.runs:
            gpu.busy_since_s = now_s()
        gpu.free -= shares_needed(queued.wants.gpu_milli, self._shares)
        gpu.runs.append(run)
        self._set_rates(gpu)

    def end(self, run: SimulatedAttempt) -> float:
        super().end(run)
        gpu = self._gpus[run.gpu]
        gpu.runs.remove(run)
        gpu.free += shares_needed(run.queued.wants.gpu_milli, self._shares)
        if not gpu.runs:
            return self.until_s - gpu.busy_since_s
        self._set_rates(gpu)
        return 0.0

    def _set_rates(self, gpu: _SharedGpu) -> None:
        if self.lost_s is not None:
            return
        loads = [run.queued.wants.load for run in gpu.runs]
        for run, rate in zip(
            gpu.runs, rates(self.drone.type.sharing, loads, self._shares), strict=True
        ):
            if rate != run.rate:
                run.timer.cancel()
                run.worked_s, run.since_s, run.rate = run.worked(now_s()), now_s(), rate
                self._set_timer(run)


ROUNDING_S = 1e-3


@frozen
class PoolBehaviour:
    """Behaviour of the pool: a negotiator's, or without its cycles."""

    negotiation_s: float = setting(default=20.0, zero=True)
    """Between two negotiation cycles. 0: there are none; jobs are matched as they come, and as slots open."""
    update_s: float = 60.0
    """Between two signs of life of a slot."""
    slot_lifetime_s: float = 900.0
    """Time for which the slot of a vanished drone stays listed."""
    lease_s: float = 60.0
    """Until the jobs of a drone that perished wait again."""
    reuses_claims: bool = True
    """A slot that is done takes the next job of the same class without negotiation."""
    best_fit: bool = False
    """Jobs go to the slot with the least VRAM that does (HTCondor: ``NEGOTIATOR_PRE_JOB_RANK =
    -GPUs_GlobalMemoryMb``), else to the first that does."""
    optional_after_s: float = 60.0
    """A drone takes a job with an optional GPU once nothing has changed in it for this long."""
    latency: Draw = field(default_factory=lambda: Fixed(0.2))


def _recent(events: deque[tuple[float, T]]) -> tuple[T, ...]:
    """Forget the events before the last :data:`EVENT_RETENTION_S`, and return the others."""
    while events and events[0][0] <= now() - EVENT_RETENTION_S:
        events.popleft()
    return tuple(event for _, event in events)


def _by_vram(slot: SimulatedSlot) -> tuple[int, int]:
    kind = slot.drone.type
    return kind.vram_mib // kind.shares, kind.capability


class SimulatedOverlay(AlwaysOpen):
    """Implements :class:`provisioner.interfaces.Overlay`; the other methods are the world's."""

    def __init__(self, world: World) -> None:
        jobs = sorted(world.scenario.jobs, key=lambda job: job.submit_s)
        self.done = 0
        self.starts = 0
        """Attempts ever begun."""
        self.queued_jobs = [QueuedJob(n, job) for n, job in enumerate(jobs)]
        self._any_optional = any(job.wants.gpu_optional for job in jobs)
        self._arrived = 0
        self._queue = SimulatedJobQueue()
        self._slots: dict[DroneId, SimulatedSlot] = {}
        """Slots of dead drones, too, for as long as they are listed."""
        self._roomy: dict[DroneId, SimulatedSlot] = {}
        """Without negotiation cycles: slots that may have room."""
        self._matches: dict[tuple[str, str], bool] = {}
        self._behaviour = world.scenario.pool
        self._at_once = self._behaviour.negotiation_s == 0
        self._metrics = world.metrics
        self._negotiated_s = 0.0
        self._paused_until_s = 0.0
        self._network = world.scenario.network(OVERLAY, self._behaviour.latency)
        self._evictions: deque[tuple[float, Eviction]] = deque()
        self._completions: deque[tuple[float, CompletedJob]] = deque()
        self._failures: deque[tuple[float, JobFailure]] = deque()
        self._pauses = [
            f for f in world.scenario.hardware_faults if f.kind is HardwareFaultKind.NO_NEGOTIATION
        ]

    @property
    def waiting(self) -> int:
        return sum(jobs.idle for jobs in self._queue.alive())

    @property
    def running(self) -> int:
        return sum(jobs.running for jobs in self._queue.alive())

    @property
    def busy_milli(self) -> int:
        """GPUs that jobs hold as far as the pool knows, in thousandths."""
        return sum(slot.drone.type.gpu_milli - slot.free.gpu_milli for slot in self._slots.values())

    @property
    def to_come(self) -> int:
        return len(self.queued_jobs) - self._arrived

    def begin(self) -> None:
        self._next_arrival()
        if not self._at_once:
            after(self._behaviour.negotiation_s, self._negotiate)
        for pause in self._pauses:
            at(pause.at_s, self._pause, pause.for_s)

    async def poll(self, types: Sequence[DroneType]) -> OverlayView:
        return await self._network.call("poll", lambda: self._view(types))

    async def drain(
        self, drone_ids: Sequence[DroneId], mode: DrainMode, reason: str
    ) -> OrderResults:
        return await self._network.call(
            "drain", lambda: [self._drain(drone_id, mode) for drone_id in drone_ids]
        )

    async def bootstrap(self, order: model.StartOrder) -> Bootstrap:
        files = Bootstrap(b"#!/bin/sh\n", {"DRONE_ID": order.drone_id})
        return await self._network.call("bootstrap", lambda: files)

    def _view(self, types: Sequence[DroneType]) -> OverlayView:
        behaviour = self._behaviour
        at_s = now_s()
        self._slots = {
            drone_id: slot
            for drone_id, slot in self._slots.items()
            if slot.lost_s is None or at_s - slot.lost_s < behaviour.slot_lifetime_s
        }
        return OverlayView(
            taken_at=now(),
            classes=tuple(jobs.view(types) for jobs in self._queue.alive()),
            slots=tuple(slot.listed(at_s, behaviour.update_s) for slot in self._slots.values()),
            negotiated_at=start_epoch() + self._negotiated_s if self._negotiated_s else 0.0,
            evictions=_recent(self._evictions),
            completions=_recent(self._completions),
            mishaps=_recent(self._failures),
        )

    def _next_arrival(self) -> None:
        if self.to_come:
            at(self.queued_jobs[self._arrived].job.submit_s, self._arrive)

    def _arrive(self) -> None:
        jobs = self._queue.add(self.queued_jobs[self._arrived], now_s())
        self._arrived += 1
        self._offer(jobs)
        self._next_arrival()

    def _pause(self, for_s: float) -> None:
        self._paused_until_s = max(self._paused_until_s, now_s() + for_s)
        if self._at_once:
            at(self._paused_until_s, self._cycle)

    @property
    def _paused(self) -> bool:
        return now_s() < self._paused_until_s

    def _negotiate(self) -> None:
        after(self._behaviour.negotiation_s, self._negotiate)
        if not self._paused:
            self._negotiated_s = now_s()
            self._cycle()

    def _cycle(self) -> None:
        """Match jobs by priority, then age, each to the first slot with room."""
        idle = self._queue.idle()
        if not idle or self._paused:
            return
        open_slots = [slot for slot in self._slots.values() if slot.open]
        if self._behaviour.best_fit:
            open_slots.sort(key=_by_vram)
        # A slot too small for a class stays so for the rest of the cycle: each class goes down the
        # list once.
        rounds = [(-b.wants.priority, *b.first(), n, b, 0) for n, b in enumerate(idle)]
        heapq.heapify(rounds)
        while rounds:
            priority, _, _, n, jobs, place = heapq.heappop(rounds)
            while place < len(open_slots) and not self._match(jobs, open_slots[place]):
                place += 1
            if place == len(open_slots) and self._evict_optional(jobs):
                heapq.heappush(rounds, (priority, *jobs.first(), n, jobs, 0))
                continue
            if place < len(open_slots):
                self._start(jobs, open_slots[place])
                if jobs.idle:
                    heapq.heappush(rounds, (priority, *jobs.first(), n, jobs, place))
        for jobs in idle:
            jobs.mark_judged()

    # Without cycles: no job waits for which some open slot has room, so only what has just changed
    # is looked at.

    def _offer(self, jobs: QueuedJobClass) -> None:
        if not self._at_once or self._paused:
            return
        jobs.mark_judged()
        while jobs.idle and (
            (slot := self._with_room(jobs)) is not None or self._evict_optional(jobs)
        ):
            if slot is not None:
                self._start(jobs, slot)

    def _evict_optional(self, jobs: QueuedJobClass) -> bool:
        """Evict a job with an optional GPU, as the drones' RANK does, for one that needs it; False if none is."""
        if not self._any_optional or jobs.wants.gpu_optional or not jobs.wants.gpu_milli:
            return False
        for slot in self._slots.values():
            run = slot.room_by_eviction(jobs) if slot.drone.type.gpu_milli else None
            if run is not None and self._match(jobs, slot, evicts=True):
                self._cut_short(slot, [run])
                if self._at_once:
                    self._roomy[slot.drone.id] = slot
                return True
        return False

    def _offer_to_all(self, slot: SimulatedSlot) -> None:
        """Without cycles: match jobs once a slot is no longer kept for those that its drone was started for."""
        if slot.lost_s is None and self._slots.get(slot.drone.id) is slot:
            self._opened(slot)

    def _offer_optional(self, slot: SimulatedSlot) -> None:
        """Without cycles: look for jobs with an optional GPU now and then, for as long as the slot is open."""
        self._offer_to_all(slot)
        if slot.lost_s is None and self._slots.get(slot.drone.id) is slot:
            after(self._behaviour.optional_after_s, self._offer_optional, slot)

    def _with_room(self, jobs: QueuedJobClass) -> SimulatedSlot | None:
        self._roomy = {
            drone_id: slot for drone_id, slot in self._roomy.items() if slot.open and not slot.full
        }
        # Among equals HTCondor has a fixed order (NEGOTIATOR_POST_JOB_RANK): drones that come last
        # in it become idle.
        roomy = (slot for drone_id, slot in self._slots.items() if drone_id in self._roomy)
        fitting = (slot for slot in roomy if self._match(jobs, slot))
        return (
            min(fitting, key=_by_vram, default=None)
            if self._behaviour.best_fit
            else next(fitting, None)
        )

    def _opened(self, slot: SimulatedSlot) -> None:
        if not self._at_once or not slot.open:
            return
        self._roomy[slot.drone.id] = slot
        while not self._paused and not slot.full:
            fitting = (jobs for jobs in self._queue.idle() if self._match(jobs, slot))
            jobs = min(fitting, key=lambda b: (-b.wants.priority, b.first()), default=None)
            if jobs is None:
                break
            self._start(jobs, slot)

    def _match(
        self,
        jobs: QueuedJobClass,
        slot: SimulatedSlot,
        *,
        reuses: bool = False,
        evicts: bool = False,
    ) -> bool:
        if not slot.open or not (evicts or slot.fits(jobs)):
            return False
        unchanged = reuses or now_s() - slot.changed_s >= self._behaviour.optional_after_s
        is_new = slot.jobs_started <= len(slot.running)
        at_first = is_new and slot.first_jobs_until_s > now_s()
        if slot.job_filter.refuses(jobs.wants, at_first=at_first):
            return False
        if jobs.wants.gpu_optional and slot.drone.type.gpu_milli and not unchanged:
            return False
        if slot.drone.script.defect is DroneDefect.MATCHES_NOTHING:
            return False
        key = jobs.name, slot.drone.type.key
        if key not in self._matches:
            self._matches[key] = jobs.wants.unmet_requirement(slot.drone.type) is None
        ends_s = slot.drone.walltime_end_s
        asked_s = jobs.wants.walltime_s
        return self._matches[key] and (ends_s is None or not asked_s or now_s() + asked_s <= ends_s)

    def _start(self, jobs: QueuedJobClass, slot: SimulatedSlot) -> None:
        queued = jobs.take()
        slot.stop_idle_timer()
        self.starts += 1
        if not queued.begun:
            queued.begun = True
            self._metrics.first_starts.append((queued.job.submit_s, now_s()))
        eaten = slot.drone.script.defect is DroneDefect.EATS_JOBS
        left_s = queued.job.duration_s - queued.saved_s
        slot.start(queued, min(BLACK_HOLE_JOB_S, left_s) if eaten else left_s, not eaten)

    def _ended(self, slot: SimulatedSlot, queued: QueuedJob, done: bool) -> None:
        """Give the slot of a job that ended by itself the next one, or let it fall idle."""
        jobs = self._close(slot, queued, done)
        if not done:
            failure = JobFailure(
                slot.drone.id, f"{queued.serial}.0", now(), queued.wants.owner, "broke off"
            )
            self._failures.append((now(), failure))
        if self._behaviour.reuses_claims and jobs.idle and self._match(jobs, slot, reuses=True):
            self._start(jobs, slot)
        self._opened(slot)
        if not done:
            self._offer(jobs)
        if not slot.running:
            self._idle(slot)

    def _close(self, slot: SimulatedSlot, queued: QueuedJob, done: bool) -> QueuedJobClass:
        """Book the end of an attempt; a job that is not done waits again."""
        jobs = self._queue.of(queued.wants)
        kind = slot.drone.type
        until_s = slot.until_s
        run = slot.running[queued.serial]
        ran_s = until_s - run.begun_s
        saved_s = queued.job.saved_s(run.worked(until_s))
        lost_s = None if done else ran_s - run.kept_s(until_s)
        gpu_milli = slot.milli_of(queued.wants)
        self._metrics.attempt(kind, gpu_milli, ran_s, lost_s, busy_s=slot.end(run))
        jobs.running -= 1
        gpu_s = (
            max(model.WHOLE_GPU, queued.wants.gpu_milli)
            * queued.wants.load.duty
            * run.worked(until_s)
        )
        ended = CompletedJob(
            job_id=f"{queued.serial}.0",
            ended_at=start_epoch() + until_s,
            submitted_at=start_epoch() + queued.job.submit_s,
            run_s=ran_s,
            drone_id=slot.drone.id,
            unfinished=not done,
            used_milli=round(gpu_s / ran_s) if kind.gpu_milli and ran_s > 0 else None,
            peak_vram_mib=queued.wants.vram_mib or None,
            **queued.wants.completed_fields,
        )
        self._completions.append((now(), ended))
        if not done:
            queued.saved_s += saved_s
            queued.lost_gpu_s += (lost_s or 0.0) * gpu_milli / model.WHOLE_GPU
            self._queue.add(queued, now_s())
            return jobs
        self.done += 1
        queued.done_s = now_s()
        wait_s = queued.done_s - queued.job.duration_s - queued.job.submit_s
        worked_gpu_s = queued.job.duration_s * gpu_milli / model.WHOLE_GPU
        gpus = queued.wants.gpu_milli / model.WHOLE_GPU
        self._metrics.finished.append(
            FinishedJob(queued.job.submit_s, wait_s, worked_gpu_s, queued.lost_gpu_s, gpus)
        )
        self._metrics.waits_by_class[queued.wants.label].append(wait_s)
        return jobs

    def _cut_short(self, slot: SimulatedSlot, runs: Sequence[SimulatedAttempt] = ()) -> None:
        """Evict these jobs from a slot, all of them by default."""
        until_s = slot.until_s
        back: dict[str, QueuedJobClass] = {}
        for run in runs or list(slot.running.values()):
            lost_s = until_s - run.begun_s - run.kept_s(until_s)
            job_id = f"{run.queued.serial}.0"
            weight = slot.weight_of(run.queued)
            self._evictions.append((now(), Eviction(slot.drone.id, job_id, now(), weight, lost_s)))
            jobs = self._close(slot, run.queued, done=False)
            back[jobs.name] = jobs
        for jobs in back.values():
            self._offer(jobs)

    def _idle(self, slot: SimulatedSlot) -> None:
        """Let a drone without jobs leave: at once if it drains, else after its idle time-out."""
        slot.idle_since_s = now_s()
        slot.touched()
        if slot.draining:
            slot.drone.leave_empty("drained")
        elif slot.lost_s is None:
            slot.idle_timer = after(
                slot.drone.order.idle_timeout_s, slot.drone.leave_empty, "idle too long"
            )

    def join(self, drone: SimulatedDrone) -> None:
        """Add a drone to the pool; it does not accept jobs yet."""
        kind = SharedSlot if drone.type.shares > 1 else SimulatedSlot
        self._slots[drone.id] = kind(drone, self._ended)

    def serve(self, drone: SimulatedDrone) -> None:
        slot = self._slot_of(drone)
        if slot is not None:
            slot.serving = True
            if slot.job_filter.first_gpus:
                slot.first_jobs_until_s = now_s() + slot.job_filter.first_s
                after(slot.job_filter.first_s, self._offer_to_all, slot)
            self._idle(slot)
            self._opened(slot)
            if self._at_once and self._any_optional:
                self._offer_optional(slot)

    def withdraw(self, drone: SimulatedDrone) -> None:
        """Give a drone no new jobs; it leaves once it has none."""
        slot = self._slot_of(drone)
        if slot is not None:
            slot.draining = True
            slot.touched()
        if slot is None or not slot.running:
            drone.leave_empty("drained")

    def _slot_of(self, drone: SimulatedDrone) -> SimulatedSlot | None:
        """Return its slot; None where another drone has joined under its id, which the metrics report."""
        slot = self._slots.get(drone.id)
        return slot if slot is not None and slot.drone is drone else None

    def part(self, drone: SimulatedDrone, orderly: bool) -> None:
        """Take a drone out of the pool; if not orderly, its slot and jobs stay listed for a while."""
        slot = self._slot_of(drone)
        if slot is None:
            return
        self._roomy.pop(drone.id, None)
        slot.stop_idle_timer()
        if orderly:
            self._cut_short(slot)
            del self._slots[drone.id]
            return
        slot.lost_s = now_s()
        for run in slot.running.values():
            run.timer.cancel()
        after(self._behaviour.lease_s, self._cut_short, slot)

    def _drain(self, drone_id: DroneId, mode: DrainMode) -> OrderResult:
        slot = self._slots.get(drone_id)
        if slot is not None and slot.lost_s is None:
            if mode is DrainMode.RESUME:
                slot.draining = slot.drone.accepts_nothing_more
                slot.touched()
                self._opened(slot)
                for jobs in self._queue.idle() if self._any_optional else ():
                    self._offer(jobs)
            elif mode is DrainMode.FAST:
                slot.draining = True
                self._vacate(slot)
            elif mode is not DrainMode.NONE:
                self.withdraw(slot.drone)
            if mode is DrainMode.GRACEFUL:
                after(slot.drone.order.grace_s, self._vacate, slot)
        return OrderResult(drone_id, OrderOutcome.OK)

    def _vacate(self, slot: SimulatedSlot) -> None:
        if slot.draining and slot.lost_s is None:
            self._cut_short(slot)
            slot.drone.leave_empty("drained")
