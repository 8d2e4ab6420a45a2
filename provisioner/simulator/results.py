"""Results of replays with their key figures, and the metrics that a simulated world collects."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, field
from math import fsum, inf, isfinite, isnan
from operator import attrgetter
from typing import NamedTuple

from provisioner.model import DroneId, DroneType, EndKind, Policy
from provisioner.simulator.drones import SimulatedNode
from provisioner.simulator.loop import now_s
from provisioner.values import define, factory, frozen


@frozen
class WaitStatistics:
    """Waits of jobs in seconds: completion - submission - run time, so that lost work counts as wait."""

    jobs: int = 0
    mean_s: float = 0.0
    p50_s: float = 0.0
    p95_s: float = 0.0


@define
class GpuTime:
    """GPU time of drones by use, in hours or seconds of one GPU: ``held`` is the sum of the others."""

    held: float = 0.0
    """From grant to release."""
    good: float = 0.0
    """Attempts that ended with their job done, and what others had saved by their last checkpoint."""
    badput: float = 0.0
    """Attempts that were cut short: what of them must be done again."""
    boot: float = 0.0
    """From grant until the drone took jobs, or left without."""
    release: float = 0.0
    """From the drone's exit until its GPUs were free again."""
    idle: float = 0.0
    """All else: no job, parts of a GPU left over."""

    @property
    def waste(self) -> float:
        """``(held - good) / good``; infinite where nothing good came out."""
        return (self.held - self.good) / self.good if self.good else inf

    @property
    def hours(self) -> GpuTime:
        """The same in hours, of times in seconds."""
        return GpuTime(*(part / 3600.0 for part in astuple(self)))


@frozen
class Sample:
    """The state of things at one time, for plots. GPUs are whole ones, ``at_s`` counts from the start."""

    at_s: float
    jobs_waiting: int
    jobs_running: int
    gpus_held: float
    gpus_busy: float
    gpus_owner: float
    by_site: Mapping[str, float] = factory(dict)
    queued: Mapping[str, int] = factory(dict)
    """Drones by site that wait for a place there."""
    booting: Mapping[str, int] = factory(dict)
    """Drones by site that have a place and take no job yet."""


@define
class ServiceTotals:
    """Sums of one service."""

    requests: float = 0.0
    refused: float = 0.0
    """Requests that came while no server was ready."""
    waited_s: float = 0.0
    """Time that requests waited at the balancer."""
    work_s: float = 0.0
    """Time in which servers worked."""
    gpu_s: float = 0.0
    """GPU time of the drones of its servers, from grant to release."""
    first_answers_s: list[float] = factory(list)
    """Time from the begin of each burst until a server was ready; infinite if that came after its end."""


@frozen
class ServiceResult:
    """One service in a replay."""

    gpu_hours: float
    """Held by the drones of its servers."""
    busy_share: float
    """Part of that in which they worked."""
    requests: int
    refused: int
    queue_s: float
    """Mean wait of the answered requests at the balancer."""
    first_answer_s: float | None
    """95th percentile of the times from the begin of a burst to its first answer; None: some bursts got none."""

    @classmethod
    def of(cls, totals: ServiceTotals) -> ServiceResult:
        answered = totals.requests - totals.refused
        waits = sorted(totals.first_answers_s)
        most_s = waits[min(len(waits) - 1, int(0.95 * len(waits)))] if waits else inf
        return cls(
            gpu_hours=totals.gpu_s / 3600,
            busy_share=totals.work_s / totals.gpu_s if totals.gpu_s else 0.0,
            requests=round(totals.requests),
            refused=round(totals.refused),
            queue_s=totals.waited_s / answered if answered else 0.0,
            first_answer_s=most_s if isfinite(most_s) else None,
        )


@frozen
class ReplayResult:
    """One replay."""

    policy: str
    trace: str
    seed: int
    days: float
    jobs: int
    jobs_done: int
    jobs_impossible: int
    gpu_hours: GpuTime
    waits: WaitStatistics
    waits_by_class: Mapping[str, WaitStatistics] = factory(dict)
    waits_why: Mapping[str, Mapping[str, float]] = factory(dict)
    """Job-seconds of waiting, by size of the jobs and kind of the planner's reason."""
    requests: int = 0
    """Drones that sites accepted."""
    drones_started: int = 0
    withdrawn: int = 0
    """Requests that were cancelled before they started."""
    hedges: int = 0
    """Second drones that were started for jobs whose first drone was delayed (:class:`HedgeCount`)."""
    hedges_withdrawn: int = 0
    """Pairs of a hedge and a delayed drone of which one was cancelled before it started."""
    preempted: int = 0
    """Attempts of jobs that were cut short."""
    violations: tuple[str, ...] = ()
    """Broken promises, exceeded limits among them: must be none."""
    energy_kwh: float | None = None
    """None where no drone type has a power."""
    co2_kg: float | None = None
    by_site: Mapping[str, GpuTime] = factory(dict)
    services: Mapping[str, ServiceResult] = factory(dict)
    samples: tuple[Sample, ...] = ()


class OwnerWait(NamedTuple):
    """Wait of an owner's job, and the parts of it that drones caused (see :mod:`provisioner.simulator.owner`)."""

    gpus: int
    wait_s: float
    blocked_s: float
    """Drones held its room."""
    late_s: float
    """Its room was free again, and the site's next cycle had still to come."""


class FinishedJob(NamedTuple):
    """One finished job: time in seconds from the start of the scenario, GPU time in GPU-seconds."""

    submit_s: float
    wait_s: float
    """Completion - submission - run time with a GPU of its own, so that lost work counts as wait,
    and so does what others on a shared GPU have slowed it down by."""
    gpu_s: float
    """GPU time of the work."""
    lost_gpu_s: float
    """GPU time of attempts that had to be repeated."""
    gpus: float = 1.0
    """Requested GPUs."""


@define
class Metrics:
    """Counts of a world. Limits are checked at every instant at which a count rises."""

    policy: Policy
    types: Sequence[DroneType]
    accepted: Counter[str] = factory(Counter)
    """Drones accepted, by site."""
    started: int = 0
    """Drones that were given a place."""
    withdrawn: int = 0
    """Drones that ended before that."""
    ends: Counter[tuple[str, EndKind]] = factory(Counter)
    finished: list[FinishedJob] = factory(list)
    waits_by_class: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Waits of finished jobs in seconds, by size of the jobs (:attr:`JobRequirements.label`)."""
    first_starts: list[tuple[float, float]] = factory(list)
    """Submission and first start of each job that has ever begun, in that order."""
    owner_waits: list[OwnerWait] = factory(list)
    """Per owner's job that has started, or still waits at the end."""
    accepted_without_room: Counter[str] = factory(Counter)
    """Drones accepted for which there was no room at that moment, by site."""
    overfull: list[str] = factory(list)
    """Nodes on which more was held than there is, a line each."""
    attempts: int = 0
    attempts_lost: int = 0
    caps_broken: list[str] = factory(list)
    """More drones, or GPUs, lived at one instant than the operator allowed: a line each."""
    doubles: list[DroneId] = factory(list)
    """Ids under which two drones lived at once."""
    by_site: defaultdict[str, GpuTime] = field(default_factory=lambda: defaultdict(GpuTime))
    """GPU-seconds."""
    _energy_kwh: float = 0.0
    peak: Counter[str] = factory(Counter)
    """Most drones alive at once at a site, of a type (by key), and of ``all``."""
    _drones: Counter[str] = factory(Counter)
    _gpu_milli: Counter[str] = factory(Counter)
    _ids: Counter[DroneId] = factory(Counter)
    _limits: dict[str, tuple[int | None, int | None]] = factory(dict)

    def __post_init__(self) -> None:
        self._limits["all"] = (self.policy.max_drones, self.policy.max_gpu_milli)
        for name, site in self.policy.sites.items():
            self._limits[name] = (site.max_drones, site.max_gpu_milli)
        for kind in self.types:
            self._limits[kind.key] = (kind.max_drones, None)

    def born(self, drone_id: DroneId, kind: DroneType) -> None:
        """Count a drone whose order a site has accepted."""
        self.accepted[kind.site] += 1
        self._ids[drone_id] += 1
        if self._ids[drone_id] > 1:
            self.doubles.append(drone_id)
        for scope in ("all", kind.site, kind.key):
            self._drones[scope] += 1
            self._gpu_milli[scope] += kind.gpu_milli
            self.peak[scope] = max(self.peak[scope], self._drones[scope])
            held = self._drones[scope], self._gpu_milli[scope]
            limits = self._limits.get(scope, (None, None))
            for unit, has, limit in zip(("drones", "milli-GPU"), held, limits, strict=True):
                if limit is not None and has > limit:
                    self.caps_broken.append(
                        f"cap broken at {now_s():.1f} s: {scope} has {has} {unit}, limit {limit}"
                    )

    def gone(self, drone_id: DroneId, kind: DroneType, end: EndKind) -> None:
        self.ends[kind.site, end] += 1
        self._ids[drone_id] -= 1
        for scope in ("all", kind.site, kind.key):
            self._drones[scope] -= 1
            self._gpu_milli[scope] -= kind.gpu_milli

    def held(self, kind: DroneType, held_s: float, boot_s: float, release_s: float) -> None:
        """Enter the GPU time of a drone: held in all, before it took jobs, and after its exit."""
        account = self.by_site[kind.site]
        gpus = kind.gpu_milli / 1000
        account.held += held_s * gpus
        account.boot += boot_s * gpus
        account.release += release_s * gpus

    def attempt(
        self, kind: DroneType, gpu_milli: int, ran_s: float, lost_s: float | None, busy_s: float
    ) -> None:
        """Enter an attempt of ``ran_s``: the job is done (None), or must repeat ``lost_s`` of it.

        ``busy_s``: GPU-seconds for which it alone kept GPUs at work, for their energy.
        """
        account = self.by_site[kind.site]
        self.attempts += 1
        self.attempts_lost += lost_s is not None
        account.good += (ran_s - (lost_s or 0.0)) * gpu_milli / 1000
        account.badput += (lost_s or 0.0) * gpu_milli / 1000
        self._energy_kwh += kind.power_w * busy_s / 3.6e6

    def node_filled(self, machine: SimulatedNode) -> None:
        if min(machine.free) < 0:
            self.overfull.append(
                f"{machine.name} is overfull at {now_s():.1f} s: {machine.free} left"
            )

    def close(self) -> None:
        """Enter the idle time, when all else is entered."""
        for time in self.by_site.values():
            time.idle = time.held - time.good - time.badput - time.boot - time.release

    @property
    def waits_s(self) -> list[float]:
        """Waits of finished jobs in seconds."""
        return [job.wait_s for job in self.finished]

    @property
    def gpu_seconds(self) -> GpuTime:
        return GpuTime(
            *(sum(column) for column in zip(*map(astuple, self.by_site.values()), strict=True))
        )

    @property
    def energy_kwh(self) -> float | None:
        """Energy of busy GPUs; None if no drone type has a power."""
        return self._energy_kwh if any(kind.power_w for kind in self.types) else None


Runs = Mapping[str, Sequence[ReplayResult]]
"""Policy to its replays, one for each seed."""


def amount(value: float | None) -> str:
    """Return three significant digits, from a thousand on all before the point: ``1,234``, ``12.3``, ``0.00123``."""
    if value is None or isnan(value):
        return "-"
    if abs(value) < 1e-9:  # sums of the same parts in another order
        return "0"
    if not isfinite(value):
        return "∞" if value > 0 else "-∞"
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def change(value: float) -> str:
    return f"+{amount(value)}" if value > 0 else amount(value)


@frozen
class KeyFigure:
    name: str
    unit: str
    of: Callable[[ReplayResult], float | None]
    """None where it is not known."""
    better: int = 0
    """1: more is better, -1: less is, 0: neither."""
    detail: bool = False
    """Left out of brief tables."""


@frozen
class SeedStatistics:
    """Mean and deviation of one figure over seeds."""

    count: int
    mean: float
    deviation: float
    """Sample standard deviation; 0 for a single seed."""


@frozen
class PairedDifference:
    """Difference of one figure between two policies, seed by seed, so that common effects cancel."""

    spread: SeedStatistics
    improved: int
    """Seeds in which the second policy is the better one."""


def spread(values: Iterable[float | None]) -> SeedStatistics | None:
    """Return mean and deviation of the known values; None without any."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    if not all(map(isfinite, known)):
        return SeedStatistics(len(known), inf, 0.0)
    return SeedStatistics(
        len(known), statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else 0.0
    )


def paired(
    figure: KeyFigure, first: Sequence[ReplayResult], second: Sequence[ReplayResult]
) -> PairedDifference | None:
    """Return ``second`` less ``first`` over the seeds of both; None where no pair has finite values."""
    before = {(result.trace, result.seed): figure.of(result) for result in first}
    changes: list[float] = []
    for result in second:
        a = before.get((result.trace, result.seed))
        b = figure.of(result)
        if a is not None and b is not None and isfinite(a) and isfinite(b):
            changes.append(b - a)
    over = spread(changes)
    return (
        PairedDifference(over, sum(change * figure.better > 0 for change in changes))
        if over
        else None
    )


def waste(hours: GpuTime) -> float | None:
    """Return waste in percent; infinite without good hours, None if none were held."""
    return 100 * hours.waste if hours.held else None


def _per_job(amount: float | None, result: ReplayResult, factor: float = 1.0) -> float | None:
    return None if amount is None or not result.jobs_done else factor * amount / result.jobs_done


def _figure(name: str, unit: str, path: str, better: int = 0, *, detail: bool = False) -> KeyFigure:
    """Return a figure that a replay has under this path of attributes."""
    return KeyFigure(name, unit, attrgetter(path), better, detail)


def _of_services(
    name: str, unit: str, field: str, of: Callable[[Iterable[float]], float], better: int = -1
) -> KeyFigure:
    """Return the sum, or the greatest, of a figure of all services."""

    def value(result: ReplayResult) -> float | None:
        known = [getattr(each, field) for each in result.services.values()]
        return None if not known or None in known else of(known)

    return KeyFigure(name, unit, value, better)


FIGURES: Mapping[str, tuple[KeyFigure, ...]] = {
    "GPU-hours": (
        _figure("Held", "GPU-h", "gpu_hours.held", detail=True),
        _figure("Good", "GPU-h", "gpu_hours.good", 1),
        _figure("Idle", "GPU-h", "gpu_hours.idle", -1),
        KeyFigure(
            "Boot and release", "GPU-h", lambda r: r.gpu_hours.boot + r.gpu_hours.release, -1
        ),
        _figure("Badput", "GPU-h", "gpu_hours.badput", -1),
    ),
    "Waste, of the good GPU-hours": (KeyFigure("Waste", "%", lambda r: waste(r.gpu_hours), -1),),
    "Waits": (
        KeyFigure("Mean wait", "s", lambda r: r.waits.mean_s if r.waits.jobs else None, -1),
        KeyFigure("Median wait", "s", lambda r: r.waits.p50_s if r.waits.jobs else None, -1),
        KeyFigure(
            "95th percentile of waits", "s", lambda r: r.waits.p95_s if r.waits.jobs else None, -1
        ),
    ),
    "Jobs and drones": (
        _figure("Jobs", "", "jobs", detail=True),
        _figure("Jobs done", "", "jobs_done", 1),
        _figure("Jobs that fit no drone", "", "jobs_impossible"),
        _figure("Requests", "drones", "requests", -1),
        _figure("Started", "drones", "drones_started", detail=True),
        _figure("Withdrawn", "drones", "withdrawn", -1, detail=True),
        _figure("Second drones", "drones", "hedges", detail=True),
        _figure("Second drones withdrawn", "drones", "hedges_withdrawn", detail=True),
        _figure("Preempted", "attempts", "preempted", -1),
        KeyFigure("Violations", "", lambda r: len(r.violations), -1),
    ),
    "Inference services": (
        _of_services("Held by servers", "GPU-h", "gpu_hours", fsum),
        _of_services("Requests", "", "requests", fsum, better=0),
        _of_services("Refused requests", "", "refused", fsum),
        _of_services("Mean wait at the balancer", "s", "queue_s", max),
        _of_services("95th percentile of first answers", "s", "first_answer_s", max),
    ),
    "Energy": (
        _figure("Energy", "kWh", "energy_kwh", -1, detail=True),
        KeyFigure("Energy per job", "kJ", lambda r: _per_job(r.energy_kwh, r, 3600.0), -1),
        KeyFigure("CO2 per job", "kg", lambda r: _per_job(r.co2_kg, r), -1, detail=True),
    ),
}
"""By heading. Those that are not known of any replay are left out of a report."""


class WaitRow(NamedTuple):
    """Waits of jobs of one size under one policy; means over the seeds."""

    label: str
    policy: str
    jobs: float
    mean_s: float
    p50_s: float
    p95_s: float
    why: str
    """Main reasons for the waits."""


_WAIT_MEANS = ("jobs", "mean_s", "p50_s", "p95_s")


def wait_rows(runs: Runs) -> Iterator[WaitRow]:
    """Yield the waits by size of the jobs and policy."""
    for label in sorted(
        {label for results in runs.values() for r in results for label in r.waits_by_class}
    ):
        for policy, results in runs.items():
            waits = [r.waits_by_class[label] for r in results if label in r.waits_by_class]
            if waits:
                jobs, mean_s, p50_s, p95_s = (
                    statistics.fmean(getattr(w, key) for w in waits) for key in _WAIT_MEANS
                )
                why = _main_reasons(r.waits_why.get(label, {}) for r in results)
                yield WaitRow(label, policy, jobs, mean_s, p50_s, p95_s, why)


def _main_reasons(waits_why: Iterable[Mapping[str, float]]) -> str:
    """Return the reasons for most of the waiting, with their shares: ``node-reserved 60 %, site-full 35 %``."""
    total: dict[str, float] = {}
    for each in waits_why:
        for kind, part_s in each.items():
            total[kind] = total.get(kind, 0.0) + part_s
    parts = sorted(
        ((100 * part_s / sum(total.values()), kind) for kind, part_s in total.items() if part_s),
        reverse=True,
    )
    return ", ".join(f"{kind} {percent:.0f} %" for percent, kind in parts[:3])
