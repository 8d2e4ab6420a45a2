"""Ledger entries of a drone: its life, day by day, as boot, runs of jobs, service, draining and idle time.

Instants are whole seconds and amounts GPU-milliseconds: thousandths of a GPU times seconds. Nothing is
rounded after that, so the amounts of a day add up to the life of the drone on that day.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from math import floor

from provisioner.values import define, factory, frozen

SECONDS_A_DAY = 86400


class Outcome(StrEnum):
    """Ends of a run."""

    COMPLETED = "completed"
    FAILED = "failed"
    """The job ended with a signal, or an exit code other than 0."""
    PREEMPTED = "preempted"
    """The owner of the site took the drone's place."""
    STOPPED = "stopped"
    """The controller, or an operator, had asked the drone to leave."""
    EVICTED = "evicted"
    """Otherwise without an end of the job: held, removed, or its drone failed."""


class Account(StrEnum):
    """Uses of a drone's life other than runs, and the life itself."""

    BOOT = "boot"
    DRAINING = "draining"
    IDLE = "idle"
    """No run on record: no job, one that still runs, or one that no queue reported."""
    SERVICE = "service"
    """A server of an inference service that could take requests."""
    LIFE = "life"


def instant(at: float) -> int:
    """Return a time as a whole second; two times that are whole seconds apart remain so."""
    return floor(at + 0.5)


@frozen
class DroneLife:
    """The life of a drone that is to be booked, up to ``end``."""

    milli: int
    began: int
    joined: int
    """``end``, or later, if it has not joined."""
    end: int
    leaving: Sequence[tuple[int, int]] = ()
    """Times in which it took no new jobs because it was asked to leave."""
    settled_s: int = 0
    """Seconds of its life on settled days."""
    serves: bool = False
    """It runs the server of a service, and no jobs."""


@define
class RunDay:
    """Entry of a run for a day: its part on that day."""

    runs: int = 0
    """1 on the last day of the run."""
    seconds: int = 0
    held: int = 0
    late: int = 0
    """Part of ``held`` from days that had settled before the run was on record."""
    used: int | None = None
    energy_j: int | None = None
    cpu_s: int | None = None


@frozen
class Run:
    """An ended run, with what it used; None: not measured."""

    job_id: str
    begun: int
    ended: int
    milli: int
    outcome: Outcome = Outcome.COMPLETED
    used: int | None = None
    """GPU-milliseconds, as in all entries."""
    energy_j: int | None = None
    cpu_s: int | None = None
    settled: RunDay | None = None
    """Sums of its entries of settled days; None: it has none."""


@define
class DroneDay:
    """Entry of a drone for a day: ``life`` is the sum of the others."""

    life: int = 0
    boot: int = 0
    jobs: int = 0
    draining: int = 0
    idle: int = 0
    service: int = 0

    @property
    def balances(self) -> bool:
        uses = (self.boot, self.jobs, self.draining, self.idle, self.service)
        return self.life == sum(uses)


@define
class DroneEntries:
    """Entries of a drone on open days."""

    days: dict[int, DroneDay] = factory(lambda: defaultdict(DroneDay))
    runs: dict[tuple[int, str, int], RunDay] = factory(lambda: defaultdict(RunDay))
    """By day, id of the job, and end of the run."""


def entries(life: DroneLife, runs: Sequence[Run], open_day: int) -> DroneEntries:
    """Return the entries of a drone from the first open day on.

    What belongs to a settled day and was not booked there is booked on the first open day.
    """
    made = DroneEntries()
    start = life.began + life.settled_s
    if start > life.end:  # its clock was set back after days had settled
        _add_rest(made, life, open_day, life.milli * (life.end - start), life.end)
        start = life.end
    order = sorted(runs, key=lambda run: (run.begun, run.job_id))
    for begin, end, active in _segments(life, order, start):
        day = max(begin // SECONDS_A_DAY, open_day)
        left = life.milli
        for run in active:
            milli = min(run.milli, left)
            left -= milli
            entry = made.runs[day, run.job_id, run.ended]
            entry.seconds += end - begin
            entry.held += milli * (end - begin)
        made.days[day].jobs += (life.milli - left) * (end - begin)
        _add_rest(made, life, day, left * (end - begin), begin)
        made.days[day].life += (life.milli - left) * (end - begin)
    for run in order:
        _book_late(made, life, run, start, open_day)
    days: dict[tuple[str, int], list[int]] = defaultdict(list)
    for day, job_id, ended in made.runs:
        days[job_id, ended].append(day)
    for run in order:
        _spread_amounts(made, run, sorted(days[run.job_id, run.ended]), open_day)
    return made


def _segments(
    life: DroneLife, runs: Sequence[Run], start: int
) -> Sequence[tuple[int, int, Sequence[Run]]]:
    """Return the stretches of a life in which nothing changes, with the runs in each."""
    cuts = {
        start,
        life.end,
        *range((start // SECONDS_A_DAY + 1) * SECONDS_A_DAY, life.end, SECONDS_A_DAY),
    }
    marks = [life.joined, *(at for span in life.leaving for at in span)]
    begins: dict[int, list[Run]] = defaultdict(list)
    for run in runs:
        # one that took no time has no end in a stretch that it begins
        if max(run.begun, start) < min(run.ended, life.end):
            begins[max(run.begun, start)].append(run)
            marks += [run.begun, run.ended]
    cuts.update(at for at in marks if start < at < life.end)
    found = []
    active: list[Run] = []
    for begin, end in pairwise(sorted(cuts)):
        active = [run for run in active if run.ended > begin] + begins.get(begin, [])
        found.append((begin, end, tuple(active)))
    return found


def _add_rest(made: DroneEntries, life: DroneLife, day: int, amount: int, at: int) -> None:
    """Add time without a run."""
    entry = made.days[day]
    entry.life += amount
    if at < life.joined:
        entry.boot += amount
    elif any(begin <= at < end for begin, end in life.leaving):
        entry.draining += amount
    elif life.serves:
        entry.service += amount
    else:
        entry.idle += amount


def _book_late(made: DroneEntries, life: DroneLife, run: Run, start: int, open_day: int) -> None:
    """Book what a run held on days that had settled before it was on record, against idle."""
    before_s = min(run.ended, start) - max(run.begun, life.began)
    late_s = before_s - (run.settled.seconds if run.settled else 0)
    if late_s <= 0:
        return
    amount = min(run.milli, life.milli) * late_s
    entry = made.runs[open_day, run.job_id, run.ended]
    entry.seconds += late_s
    entry.held += amount
    entry.late += amount
    made.days[open_day].jobs += amount
    made.days[open_day].idle -= amount


def _spread_amounts(made: DroneEntries, run: Run, days: Sequence[int], open_day: int) -> None:
    """Spread what a run used, less what is settled, over its open days by its seconds on each; the sum is exact."""
    settled = run.settled or RunDay()
    if not days and not settled.runs:  # outside the life of its drone, as clocks differ
        days = [max(run.ended // SECONDS_A_DAY, open_day)]
    parts = [made.runs[day, run.job_id, run.ended] for day in days]
    for entry in parts[-1:]:
        entry.runs = 1 - settled.runs
    seconds = [entry.seconds for entry in parts]
    for name in ("used", "energy_j", "cpu_s"):
        total = getattr(run, name)
        if total is not None:
            left = total - (getattr(settled, name) or 0)
            for entry, part in zip(parts, spread(left, seconds), strict=True):
                setattr(entry, name, part)


def spread(amount: int, weights: Sequence[int]) -> list[int]:
    """Return whole parts of an amount by weight; they add up to it. Without a weight the last gets all."""
    total = sum(weights)
    found = []
    before = passed = 0
    for weight in weights:
        passed += weight
        upto = amount * passed // total if total else 0
        found.append(upto - before)
        before = upto
    if found:
        found[-1] += amount - before
    return found


Amounts = tuple[int, ...]
"""Runs, held, used, held by runs whose use was measured, energy (J), held by runs whose energy was, CPU time (s)."""
NO_AMOUNTS: Amounts = (0,) * 7


def amounts_of(entry: RunDay) -> Amounts:
    """Return the amounts of a run's entry."""
    used, energy_j = entry.used, entry.energy_j
    return (
        entry.runs,
        entry.held,
        used or 0,
        0 if used is None else entry.held,
        energy_j or 0,
        0 if energy_j is None else entry.held,
        entry.cpu_s or 0,
    )


def accounts_of(day: DroneDay) -> Mapping[Account, int]:
    """Return the amounts of a drone's entry by account, without that of its runs."""
    return {
        Account.BOOT: day.boot,
        Account.DRAINING: day.draining,
        Account.IDLE: day.idle,
        Account.SERVICE: day.service,
        Account.LIFE: day.life,
    }
