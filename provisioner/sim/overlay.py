"""A simulated overlay pool: jobs, matchmaking on a negotiation interval, slots with what is left in them."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from provisioner.model import (
    Admission,
    Answer,
    DrainMode,
    DroneId,
    DroneType,
    Eviction,
    OverlayView,
    Receipt,
    Slot,
    SlotState,
    StartOrder,
)
from provisioner.sim.body import Body, Verdict
from provisioner.sim.draws import Draw, Fixed, keyed
from provisioner.sim.faults import OVERLAY, Blow, BlowKind, Spell, Trouble
from provisioner.sim.jobs import Bucket, JobQueue, SimJob, Ticket
from provisioner.sim.seam import Wire
from provisioner.sim.tally import Tally

EATEN_S = 5.0
"""How long a job lasts on a drone that eats jobs."""
TELLS_EVICTIONS_S = 900.0
"""How long an eviction is told."""


@dataclass(frozen=True, slots=True)
class PoolHabits:
    """How the overlay behaves."""

    negotiation_s: float = 20.0
    """Between two negotiation cycles."""
    update_s: float = 60.0
    """Between two signs of life of a slot."""
    slot_lifetime_s: float = 900.0
    """How long the slot of a drone that perished stays listed."""
    lease_s: float = 60.0
    """Until the jobs of a drone that perished wait again."""
    latency: Draw = field(default_factory=lambda: Fixed(0.2))
    reuses_claims: bool = True
    """A slot that is done takes the next job of the same class without negotiation."""


class Seat:
    """A drone's place in the pool, as it really is."""

    def __init__(self, body: Body, joined_s: float) -> None:
        kind = body.type
        self.body = body
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
        self.running: dict[int, tuple[Ticket, asyncio.TimerHandle]] = {}
        self.idle_timer: asyncio.TimerHandle | None = None
        self._view: Slot | None = None

    @property
    def open(self) -> bool:
        return self.serving and not self.draining and self.lost_s is None

    def fits(self, bucket: Bucket) -> bool:
        wants = bucket.wants
        return (
            wants.gpu_milli <= self.gpu_milli
            and wants.cpus <= self.cpus
            and wants.memory_mib <= self.memory_mib
            and wants.disk_mib <= self.disk_mib
        )

    def take(self, bucket: Bucket, sign: int) -> None:
        """Take (``sign`` 1) or give back (-1) what one job of a class needs."""
        wants = bucket.wants
        self.gpu_milli -= sign * wants.gpu_milli
        self.cpus -= sign * wants.cpus
        self.memory_mib -= sign * wants.memory_mib
        self.disk_mib -= sign * wants.disk_mib

    def touched(self, now_s: float) -> None:
        if self.lost_s is None:
            self.changed_s = now_s
        self._view = None

    def listed(self, now_s: float, update_s: float, start_epoch: float) -> Slot:
        """The slot as the collector has it: by its newest change or periodic update."""
        alive_s = now_s if self.lost_s is None else self.lost_s
        periodic_s = self.joined_s + (alive_s - self.joined_s) // update_s * update_s
        heard_s = max(periodic_s, self.changed_s)
        heard_at = start_epoch + heard_s
        if self._view is None:
            kind = self.body.type
            work_milli, work_s = self._work(heard_s)
            self._view = Slot(
                drone_id=self.body.id,
                state=self._state(),
                heard_at=heard_at,
                free_gpu_milli=self.gpu_milli,
                free_cpus=self.cpus,
                free_memory_mib=self.memory_mib,
                free_disk_mib=self.disk_mib,
                jobs=len(self.running),
                jobs_started=self.jobs_started,
                idle_since=0.0 if self.running else start_epoch + self.idle_since_s,
                retires_at=self._retires_at(start_epoch),
                name=f"slot1@{self.body.id}",
                gpu_model=kind.gpu_model,
                vram_mib=kind.vram_mib,
                capability=kind.capability,
                work_gpu_milli=work_milli,
                work_at=start_epoch + work_s if work_milli else 0.0,
            )
        elif self._view.heard_at != heard_at:
            work_milli, work_s = self._work(heard_s)  # checkpoints made since
            work_at = start_epoch + work_s if work_milli else 0.0
            self._view = replace(self._view, heard_at=heard_at, work_at=work_at)
        return self._view

    def worth(self, ticket: Ticket) -> int:
        """What a job's time counts here, in thousandths: its GPUs, or its CPUs in a CPU drone."""
        return ticket.wants.gpu_milli if self.body.type.gpu_milli else ticket.wants.cpus * 1000

    def _work(self, now_s: float) -> tuple[int, float]:
        """How much is at work, and since when on average there is work that would be lost."""
        milli, weighed_s = 0, 0.0
        for ticket, _ in self.running.values():
            worth = self.worth(ticket)
            milli += worth
            weighed_s += worth * (ticket.begun_s + ticket.job.saved_s(now_s - ticket.begun_s))
        return milli, weighed_s / milli if milli else 0.0

    def _state(self) -> SlotState:
        if self.draining:
            return SlotState.DRAINING
        if not self.serving:
            return SlotState.CHECKING
        return SlotState.BUSY if self.running else SlotState.IDLE

    def _retires_at(self, start_epoch: float) -> float:
        walltime_s, granted_s = self.body.type.walltime_s, self.body.granted_s
        if not walltime_s or granted_s is None:
            return 0.0
        return start_epoch + granted_s + walltime_s - self.body.order.grace_s


class SimOverlay:
    """Implements :class:`provisioner.sites.Overlay`; the other methods are the world's."""

    def __init__(
        self,
        jobs: Sequence[SimJob],
        tally: Tally,
        *,
        habits: PoolHabits,
        seed: int,
        start_epoch: float,
        spells: Sequence[Spell] = (),
        blows: Sequence[Blow] = (),
    ) -> None:
        self.done = 0
        self.tickets = [Ticket(n, job) for n, job in enumerate(sorted(jobs, key=lambda job: job.submit_s))]
        self._arrived = 0
        self._queue = JobQueue()
        self._seats: dict[DroneId, Seat] = {}
        self._suits: dict[tuple[str, str], bool] = {}
        self._habits = habits
        self._tally = tally
        self._seed = seed
        self._start_epoch = start_epoch
        self._negotiated_s = 0.0
        self._paused_until_s = 0.0
        self._wire = Wire(OVERLAY, seed, habits.latency, spells, tally.troubles)
        self._frozen: dict[int, OverlayView] = {}
        self._evictions: deque[Eviction] = deque()
        self._pauses = [blow for blow in blows if blow.kind is BlowKind.NO_NEGOTIATION]

    @property
    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def waiting(self) -> int:
        """Jobs that have arrived and wait."""
        return sum(bucket.idle for bucket in self._queue.alive())

    @property
    def running(self) -> int:
        return sum(bucket.running for bucket in self._queue.alive())

    @property
    def to_come(self) -> int:
        return len(self.tickets) - self._arrived

    def begin(self) -> None:
        """Set the timers of arrivals and negotiation. To be called once, inside the running loop."""
        loop = asyncio.get_running_loop()
        self._next_arrival()
        loop.call_later(self._habits.negotiation_s, self._negotiate)
        for pause in self._pauses:
            loop.call_at(pause.at_s, self._pause, pause.for_s)

    # ---------------------------------------------------------------------------------------------------- the seam

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None

    async def look(self, types: Sequence[DroneType]) -> OverlayView:
        known = tuple(types)
        return await self._wire.look(lambda: self._view(known), self._lie)

    async def drain(self, drone_ids: Sequence[DroneId], mode: DrainMode, reason: str) -> Sequence[Receipt]:
        return await self._wire.act("drain", lambda: [self._drain(drone_id, mode) for drone_id in drone_ids])

    async def admission(self, order: StartOrder) -> Admission:
        return await self._wire.ask("admission", lambda: Admission(b"#!/bin/sh\n", {"DRONE_ID": order.drone_id}))

    # ----------------------------------------------------------------------------------------------- what is listed

    def _view(self, types: tuple[DroneType, ...]) -> OverlayView:
        now_s, habits = self._now_s, self._habits
        for drone_id in [d for d, seat in self._seats.items() if self._expired(seat, now_s)]:
            del self._seats[drone_id]
        return OverlayView(
            taken_at=self._start_epoch + now_s,
            classes=tuple(bucket.view(types, self._start_epoch) for bucket in self._queue.alive()),
            slots=tuple(seat.listed(now_s, habits.update_s, self._start_epoch) for seat in self._seats.values()),
            negotiated_at=self._start_epoch + self._negotiated_s if self._negotiated_s else 0.0,
            evictions=self._told_evictions(),
        )

    def _told_evictions(self) -> tuple[Eviction, ...]:
        limit = self._start_epoch + self._now_s - TELLS_EVICTIONS_S
        while self._evictions and self._evictions[0].at <= limit:
            self._evictions.popleft()
        return tuple(self._evictions)

    def _expired(self, seat: Seat, now_s: float) -> bool:
        return seat.lost_s is not None and now_s - seat.lost_s >= self._habits.slot_lifetime_s

    def _lie(self, view: OverlayView, spell: Spell) -> OverlayView:
        match spell.trouble:
            case Trouble.EMPTY:
                return replace(view, classes=(), slots=())
            case Trouble.PARTIAL:
                rolls = {s.drone_id: keyed(self._seed, "hidden", spell, s.drone_id).random() for s in view.slots}
                return replace(view, slots=tuple(s for s in view.slots if rolls[s.drone_id] >= spell.amount))
            case Trouble.STALE:
                return replace(self._frozen.setdefault(id(spell), view), taken_at=view.taken_at)
            case _:
                return view

    # ------------------------------------------------------------------------------------------- arrival and matching

    def _next_arrival(self) -> None:
        if self._arrived < len(self.tickets):
            asyncio.get_running_loop().call_at(self.tickets[self._arrived].job.submit_s, self._arrive)

    def _arrive(self) -> None:
        ticket = self.tickets[self._arrived]
        self._arrived += 1
        self._queue.bucket(ticket.wants).add(ticket)
        self._next_arrival()

    def _pause(self, for_s: float) -> None:
        self._paused_until_s = max(self._paused_until_s, self._now_s + for_s)

    def _negotiate(self) -> None:
        """One cycle: jobs by priority, then age, each to the first slot with room."""
        asyncio.get_running_loop().call_later(self._habits.negotiation_s, self._negotiate)
        if self._now_s < self._paused_until_s:
            return
        self._negotiated_s = self._now_s
        idle = self._queue.idle()
        if not idle:
            return
        seats = [seat for seat in self._seats.values() if seat.open]
        # A slot too small for a class stays so for the rest of the cycle: each class goes down the list once.
        rounds = [(-b.wants.priority, *b.first(), n, b, 0) for n, b in enumerate(idle)]
        heapq.heapify(rounds)
        while rounds:
            priority, _, _, n, bucket, place = heapq.heappop(rounds)
            while place < len(seats) and not self._match(bucket, seats[place]):
                place += 1
            if place < len(seats):
                self._start(bucket, seats[place])
                if bucket.idle:
                    heapq.heappush(rounds, (priority, *bucket.first(), n, bucket, place))
        for bucket in idle:
            bucket.judged()

    def _match(self, bucket: Bucket, seat: Seat) -> bool:
        return seat.open and seat.fits(bucket) and self._suitable(bucket, seat) and not self._too_short(bucket, seat)

    def _suitable(self, bucket: Bucket, seat: Seat) -> bool:
        kind = seat.body.type
        key = bucket.name, kind.key
        if key not in self._suits:
            self._suits[key] = bucket.wants.misfit(kind) is None
        return self._suits[key] and seat.body.fate.verdict is not Verdict.MATCHES_NOTHING

    def _too_short(self, bucket: Bucket, seat: Seat) -> bool:
        """The job says that it needs longer than the drone has."""
        walltime_s, granted_s = seat.body.type.walltime_s, seat.body.granted_s
        if not bucket.wants.walltime_s or not walltime_s or granted_s is None:
            return False
        return self._now_s + bucket.wants.walltime_s > granted_s + walltime_s

    # ----------------------------------------------------------------------------------------------- jobs on drones

    def _start(self, bucket: Bucket, seat: Seat) -> None:
        ticket, now_s = bucket.take(), self._now_s
        seat.take(bucket, 1)
        seat.jobs_started += 1
        if seat.idle_timer is not None:
            seat.idle_timer.cancel()
            seat.idle_timer = None
        ticket.starts += 1
        ticket.begun_s = now_s
        ticket.first_begun_s = now_s if ticket.first_begun_s is None else ticket.first_begun_s
        eaten = seat.body.fate.verdict is Verdict.EATS_JOBS
        left_s = ticket.job.duration_s - ticket.saved_s
        ends_s = min(EATEN_S, left_s) if eaten else left_s
        timer = asyncio.get_running_loop().call_later(ends_s, self._ended, seat, ticket, not eaten)
        seat.running[ticket.serial] = ticket, timer
        seat.touched(now_s)

    def _ended(self, seat: Seat, ticket: Ticket, done: bool) -> None:
        """A job ended by itself; the slot takes the next one, or falls idle."""
        bucket = self._close(seat, ticket, done)
        if self._habits.reuses_claims and bucket.idle and self._match(bucket, seat):
            self._start(bucket, seat)
        elif not seat.running:
            self._idle(seat)

    def _close(self, seat: Seat, ticket: Ticket, done: bool) -> Bucket:
        """Book the end of an attempt; a job that is not done waits again."""
        now_s, bucket = self._now_s, self._queue.bucket(ticket.wants)
        _, timer = seat.running.pop(ticket.serial)
        timer.cancel()
        bucket.ran()
        seat.take(bucket, -1)
        seat.touched(now_s)
        until_s = now_s if seat.lost_s is None else seat.lost_s
        ran_s = until_s - ticket.begun_s
        saved_s = ticket.job.saved_s(ran_s)
        self._tally.attempt(ticket.wants.gpu_milli, ran_s, None if done else ran_s - saved_s)
        if done:
            ticket.done_s = now_s
            self.done += 1
            self._tally.waits_s.append(now_s - ticket.job.duration_s - ticket.job.submit_s)
        else:
            ticket.saved_s += saved_s
            bucket.add(ticket)
        return bucket

    def _cut_short(self, seat: Seat) -> None:
        """End all jobs of a seat; they wait again."""
        until_s = self._now_s if seat.lost_s is None else seat.lost_s
        for ticket, _ in list(seat.running.values()):
            ran_s = until_s - ticket.begun_s
            lost_s = ran_s - ticket.job.saved_s(ran_s)
            at, worth = self._start_epoch + self._now_s, seat.worth(ticket)
            self._evictions.append(Eviction(seat.body.id, f"{ticket.serial}.0", at, worth, lost_s))
            self._close(seat, ticket, done=False)

    def _idle(self, seat: Seat) -> None:
        """A seat without jobs: it leaves if it was asked to, and by itself after its own time-out."""
        seat.idle_since_s = self._now_s
        seat.touched(self._now_s)
        if seat.draining:
            seat.body.emptied("drained")
        elif seat.lost_s is None:
            limit_s = seat.body.order.idle_timeout_s
            seat.idle_timer = asyncio.get_running_loop().call_later(limit_s, seat.body.emptied, "idle too long")

    # ------------------------------------------------------------------------------------------- drones come and go

    def join(self, body: Body) -> None:
        """A drone shows itself in the pool, not accepting jobs yet."""
        self._seats[body.id] = Seat(body, self._now_s)

    def serve(self, body: Body) -> None:
        """It accepts jobs from now on."""
        seat = self._seat_of(body)
        if seat is not None:
            seat.serving = True
            self._idle(seat)

    def withdraw(self, body: Body) -> None:
        """It takes no new jobs, and leaves once it has none."""
        seat = self._seat_of(body)
        if seat is not None:
            seat.draining = True
            seat.touched(self._now_s)
        if seat is None or not seat.running:
            body.emptied("drained")

    def _seat_of(self, body: Body) -> Seat | None:
        """Its seat; none where another drone has come under the same id (which the tally calls by its name)."""
        seat = self._seats.get(body.id)
        return seat if seat is not None and seat.body is body else None

    def part(self, body: Body, orderly: bool) -> None:
        """It leaves. Not orderly: nobody tells the pool, whose slot and running jobs go on to be listed for a while."""
        seat = self._seat_of(body)
        if seat is None:
            return
        if seat.idle_timer is not None:
            seat.idle_timer.cancel()
        if orderly:
            self._cut_short(seat)
            del self._seats[body.id]
            return
        seat.lost_s = self._now_s
        for _, timer in seat.running.values():
            timer.cancel()
        asyncio.get_running_loop().call_later(self._habits.lease_s, self._cut_short, seat)

    def _drain(self, drone_id: DroneId, mode: DrainMode) -> Receipt:
        seat = self._seats.get(drone_id)
        if seat is not None and seat.lost_s is None:
            match mode:
                case DrainMode.NONE:
                    pass
                case DrainMode.RESUME:
                    seat.draining = seat.body.told_to_leave
                    seat.touched(self._now_s)
                case DrainMode.PEACEFUL:
                    self.withdraw(seat.body)
                case DrainMode.GRACEFUL:
                    self.withdraw(seat.body)
                    asyncio.get_running_loop().call_later(seat.body.order.grace_s, self._vacate, seat)
                case DrainMode.FAST:
                    self._vacate(seat, at_once=True)
        return Receipt(drone_id, Answer.DONE)

    def _vacate(self, seat: Seat, at_once: bool = False) -> None:
        """End the jobs of a draining drone, which then leaves."""
        seat.draining = seat.draining or at_once
        if seat.draining and seat.lost_s is None:
            self._cut_short(seat)
            seat.body.emptied("drained")
