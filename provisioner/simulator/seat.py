"""A drone's place in a simulated pool, as it really is: the room left in it and the jobs that run there, each on its
own devices or on shares of one that others are on as well."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import replace

from provisioner.model import Slot, SlotState
from provisioner.sharing import Load, load_of, rates, share_milli, shares_needed
from provisioner.simulator.body import Body
from provisioner.simulator.jobs import Bucket, Ticket, Wants

ROUNDING_S = 1e-3
"""Floating-point sums of times are off by far less."""


class Run:
    """An attempt of a job on a drone. Work is in seconds of a run with a GPU of its own."""

    __slots__ = ("begun_s", "done", "gpu", "rate", "since_s", "ticket", "timer", "work_s", "worked_s")

    def __init__(self, ticket: Ticket, work_s: float, done: bool, now_s: float) -> None:
        self.ticket = ticket
        self.work_s = work_s
        self.done = done
        """Whether the job is done after so much work, or breaks off."""
        self.begun_s = self.since_s = now_s
        self.rate = 1.0
        self.worked_s = 0.0
        """What was done until ``since_s``; at ``rate`` from then on."""
        self.gpu = -1
        """Which of the drone's GPUs it shares with others; -1 if none."""
        self.timer: asyncio.TimerHandle

    def worked(self, now_s: float) -> float:
        return self.worked_s + (now_s - self.since_s) * self.rate

    def saved(self, now_s: float) -> float:
        """Work that its checkpoints have saved."""
        return self.ticket.job.saved_s(self.worked(now_s))

    def kept_s(self, now_s: float) -> float:
        """How much of its time here need not be repeated."""
        saved_s = self.saved(now_s)
        return saved_s * (now_s - self.begun_s) / self.worked(now_s) if saved_s and self.gpu >= 0 else saved_s


Ended = Callable[["Seat", Ticket, bool], None]
"""What is called when a job ends by itself; the last argument says whether it is done."""


class Seat:
    """A drone whose jobs each have what they asked for to themselves."""

    def __init__(self, body: Body, joined_s: float, ended: Ended) -> None:
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
        self.avoids = frozenset(filter(None, body.order.avoids.split(",")))
        """Users whose jobs it does not take."""
        self.running: dict[int, Run] = {}
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
        return self.gpu_milli <= 0 if self.body.type.gpu_milli else self.cpus <= 0

    @property
    def busy_milli(self) -> int:
        """What jobs hold of the drone's GPUs."""
        return self.body.type.gpu_milli - self.gpu_milli

    def fits(self, bucket: Bucket) -> bool:
        wants = bucket.wants
        return (
            wants.gpu_milli <= self.gpu_milli
            and wants.cpus <= self.cpus
            and wants.memory_mib <= self.memory_mib
            and wants.disk_mib <= self.disk_mib
        )

    def start(self, ticket: Ticket, work_s: float, done: bool, now_s: float) -> None:
        """A job begins here; there must be room."""
        self._take(ticket.wants, self.milli_of(ticket.wants), 1)
        self.jobs_started += 1
        run = self.running[ticket.serial] = Run(ticket, work_s, done, now_s)
        self._timed(run)
        self.touched(now_s)

    def end(self, run: Run, now_s: float) -> float:
        """A job is here no more, since ``now_s`` (or since the drone was lost). For how long, in seconds of one GPU, it
        has kept GPUs at work that nobody else has."""
        del self.running[run.ticket.serial]
        run.timer.cancel()
        self._take(run.ticket.wants, self.milli_of(run.ticket.wants), -1)
        self.touched(now_s)
        return self.worth(run.ticket) / 1000 * (now_s - run.begun_s) if self.body.type.gpu_milli else 0.0

    def milli_of(self, wants: Wants) -> int:
        """What one job takes of the drone's GPUs."""
        return wants.gpu_milli

    def _take(self, wants: Wants, gpu_milli: int, sign: int) -> None:
        self.gpu_milli -= sign * gpu_milli
        self.cpus -= sign * wants.cpus
        self.memory_mib -= sign * wants.memory_mib
        self.disk_mib -= sign * wants.disk_mib

    def _timed(self, run: Run) -> None:
        """Set the timer of a run's end, from ``since_s`` on, which is now."""
        left_s = max(0.0, run.work_s - run.worked_s) / run.rate
        run.timer = asyncio.get_running_loop().call_later(left_s, self._ended, self, run.ticket, run.done)

    def touched(self, now_s: float) -> None:
        if self.lost_s is None:
            self.changed_s = now_s
        self._view = None

    def listed(self, now_s: float, update_s: float, start_epoch: float) -> Slot:
        """The slot as the collector has it: by its newest change or periodic update."""
        if self._view is not None and now_s < self._renews_s:
            return self._view
        alive_s = now_s if self.lost_s is None else self.lost_s
        periodic_s = self.joined_s + (alive_s - self.joined_s) // update_s * update_s
        heard_s = max(periodic_s, self.changed_s)
        heard_at = start_epoch + heard_s
        self._renews_s = periodic_s + update_s - ROUNDING_S if self.lost_s is None else math.inf
        if self._view is None:
            kind, runs = self.body.type, self.running.values()
            work_milli, work_s = self._work(heard_s)
            owners = {run.ticket.wants.owner for run in runs}
            alone = next(iter(runs)).ticket.wants if len(runs) == 1 else None
            self._view = Slot(
                drone_id=self.body.id,
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
                name=f"slot1@{self.body.id}",
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

    def worth(self, ticket: Ticket) -> int:
        """What a job's time counts here, in thousandths: its GPUs, or its CPUs in a CPU drone."""
        return self.milli_of(ticket.wants) if self.body.type.gpu_milli else ticket.wants.cpus * 1000

    def _work(self, now_s: float) -> tuple[int, float]:
        """How much is at work, and since when on average there is work that would be lost."""
        milli, weighed_s = 0, 0.0
        for run in self.running.values():
            worth = self.worth(run.ticket)
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
        walltime_s, granted_s = self.body.type.walltime_s, self.body.granted_s
        if not walltime_s or granted_s is None:
            return 0.0
        return start_epoch + granted_s + walltime_s - self.body.order.grace_s


class _Gpu:
    """One GPU that is offered in shares: who is on it."""

    def __init__(self, shares: int) -> None:
        self.free = shares
        self.runs: list[Run] = []
        self.loads: list[Load] = []
        self.busy_since_s = 0.0


class SharedSeat(Seat):
    """A drone whose GPUs are offered in shares: jobs spread evenly over them, and each runs as fast as those beside it
    let it. Whoever comes or goes sets the others' timers anew."""

    def __init__(self, body: Body, joined_s: float, ended: Ended) -> None:
        super().__init__(body, joined_s, ended)
        self._shares = body.type.shares
        self._gpus = [_Gpu(self._shares) for _ in range(body.type.gpu_milli // 1000)]

    def milli_of(self, wants: Wants) -> int:
        return self._shares_of(wants) * share_milli(self._shares)

    def _shares_of(self, wants: Wants) -> int:
        return shares_needed(wants.gpu_milli, self._shares)

    def fits(self, bucket: Bucket) -> bool:
        return super().fits(bucket) and self._shares_of(bucket.wants) <= max(gpu.free for gpu in self._gpus)

    @property
    def full(self) -> bool:
        return not any(gpu.free for gpu in self._gpus)

    def start(self, ticket: Ticket, work_s: float, done: bool, now_s: float) -> None:
        super().start(ticket, work_s, done, now_s)
        wants, run = ticket.wants, self.running[ticket.serial]
        run.gpu = max(range(len(self._gpus)), key=lambda n: self._gpus[n].free)
        gpu = self._gpus[run.gpu]
        if not gpu.runs:
            gpu.busy_since_s = now_s
        gpu.free -= self._shares_of(wants)
        gpu.runs.append(run)
        gpu.loads.append(load_of(wants.gpu_milli, wants.duty_milli, wants.width_milli))
        self._retime(gpu, now_s)

    def end(self, run: Run, now_s: float) -> float:
        super().end(run, now_s)
        gpu = self._gpus[run.gpu]
        place = gpu.runs.index(run)
        del gpu.runs[place], gpu.loads[place]
        gpu.free += self._shares_of(run.ticket.wants)
        if not gpu.runs:
            return now_s - gpu.busy_since_s
        self._retime(gpu, now_s)
        return 0.0

    def _retime(self, gpu: _Gpu, now_s: float) -> None:
        """The jobs on a GPU have become more or fewer: the work left of each takes more or less time from now on."""
        if self.lost_s is not None:
            return
        for run, rate in zip(gpu.runs, rates(self.body.type.sharing, gpu.loads, self._shares), strict=True):
            if rate != run.rate:
                run.timer.cancel()
                run.worked_s, run.since_s, run.rate = run.worked(now_s), now_s, rate
                self._timed(run)


def seat_for(body: Body, joined_s: float, ended: Ended) -> Seat:
    """A drone's place in the pool, by how it offers its GPUs."""
    return (SharedSeat if body.type.shares > 1 else Seat)(body, joined_s, ended)
