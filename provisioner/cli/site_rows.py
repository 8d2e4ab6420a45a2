"""Sites as rows: view, breaker, drones, limits, the owner's jobs, and how often the site takes places back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from provisioner import formatting
from provisioner.cli.cells import span_s, text, time_at, whole, words
from provisioner.cli.listing import Cell, Column
from provisioner.model import WHOLE_GPU, Breaker, BreakerState, Drone, DroneState, PolledSite, SitePolicy, SiteView
from provisioner.store import Hazard, Views

_CLASSES_NAMED = 3
"""Job classes that back off at a site and are named in its note."""

SCHEMA = "provisioner.sites/1"

WEEK_S, DAY_S = 7 * 86400.0, 86400.0
"""How far back the hazard of a site is looked at in lists, and on the one screen of `status`."""

BREAKER_TINTS = {BreakerState.BANNED: "red", BreakerState.DEGRADED: "yellow", BreakerState.PROBING: "yellow"}


@dataclass(frozen=True, slots=True)
class SiteRow:
    """All that is on record of one site."""

    name: str
    policy: SitePolicy | None
    """None: it is not in the configuration of the newest tick, but has drones."""
    reading: PolledSite | None
    breaker: Breaker
    type_breakers: tuple[Breaker, ...]
    """Of its drone types, where not active."""
    states: Mapping[DroneState, int]
    gpu_milli: int
    hazard: Hazard | None = None
    """None: no drone has run there of late."""
    hazard_s: float = WEEK_S
    """How far back that looks."""

    @property
    def view(self) -> SiteView | None:
        return self.reading.view if self.reading else None

    @property
    def live(self) -> int:
        return sum(self.states.values())

    @property
    def taken_at(self) -> float:
        return self.view.taken_at if self.view else 0.0

    @property
    def free(self) -> Mapping[str, int] | None:
        return self.view.free if self.view else None


def site_rows(
    views: Views | None,
    breakers: Mapping[str, Breaker],
    live: Sequence[Drone],
    hazards: Sequence[Hazard] = (),
    hazard_s: float = WEEK_S,
) -> list[SiteRow]:
    """One row per site that is configured or has live drones. ``hazards``: of the last ``hazard_s`` seconds."""
    states: dict[str, Counter[DroneState]] = {}
    milli: Counter[str] = Counter()
    for drone in live:
        states.setdefault(drone.site, Counter())[drone.state] += 1
        milli[drone.site] += drone.gpu_milli
    policies = views.policy.sites if views else {}
    readings = views.sites if views else {}
    measured = {hazard.scope: hazard for hazard in hazards}
    return [
        SiteRow(
            name=name,
            policy=policies.get(name),
            reading=readings.get(name),
            breaker=breakers.get(name) or Breaker(name),
            type_breakers=tuple(
                b
                for scope, b in sorted(breakers.items())
                if scope.startswith((f"{name}/", f"{name}@")) and b.state is not BreakerState.ACTIVE
            ),
            states=states.get(name, {}),
            gpu_milli=milli[name],
            hazard=measured.get(name),
            hazard_s=hazard_s,
        )
        for name in sorted({*policies, *states})
    ]


def columns(now: float) -> tuple[Column[SiteRow], ...]:
    """Of sites at ``now``."""
    return (
        text("site", lambda s: s.name, "Site.", level=0, least=12, tail=True),
        Column[SiteRow](
            "enabled",
            lambda s: bool(s.policy and s.policy.enabled),
            "May drones be started there?",
            kind="boolean",
            level=1,
        ),
        Column[SiteRow](
            "breaker",
            lambda s: s.breaker.state.value,
            "State of the circuit breaker.",
            level=0,
            tint=lambda s: BREAKER_TINTS.get(s.breaker.state, ""),
            choices=tuple(BreakerState),
        ),
        time_at("until_at", lambda s: s.breaker.until, "While banned: when it may be tried again."),
        whole("failures", lambda s: s.breaker.failures, "Failures in a row.", level=1),
        whole("drones", lambda s: s.live, "Live drones: asked for and not confirmed gone.", level=0),
        Column[SiteRow](
            "max_drones",
            lambda s: s.policy.max_drones if s.policy else None,
            "Limit on drones.",
            kind="integer",
            null=True,
            level=0,
            head="MAX",
            right=True,
        ),
        whole(
            "gpu_milli",
            lambda s: s.gpu_milli,
            "Thousandths of GPUs in live drones.",
            level=0,
            head="GPUS",
            show=formatting.gpus,
        ),
        Column[SiteRow](
            "max_gpu_milli",
            lambda s: s.policy.max_gpu_milli if s.policy else None,
            "Limit on thousandths of GPUs; null: none.",
            kind="integer",
            null=True,
        ),
        Column[SiteRow](
            "states",
            lambda s: {k.value: v for k, v in s.states.items()},
            "Live drones by state.",
            kind="object",
            show=_states,
        ),
        Column[SiteRow](
            "free",
            lambda s: dict(s.free) if s.free is not None else None,
            "How many drones of each type could start now (alternatives); null: the site does not tell.",
            kind="object",
            null=True,
            level=0,
            least=8,
            show=_free,
        ),
        words(
            "owner",
            lambda s: owner_words(s.view) if s.view else "",
            "The owner's jobs: what waits and what runs, in words; empty: none, or not told.",
            least=12,
            spare=1,
        ),
        whole(
            "claims",
            lambda s: sum(c.count for c in s.view.claims) if s.view else 0,
            "Jobs of the owner that wait there.",
        ),
        whole(
            "claims_gpu_milli",
            lambda s: sum(c.count * c.gpu_milli for c in s.view.claims) if s.view else 0,
            "Thousandths of GPUs that these want.",
        ),
        Column[SiteRow](
            "owner_jobs",
            lambda s: s.view.owner_runs.jobs if s.view and s.view.owner_runs else None,
            "Jobs of the owner that run; null: the site does not tell.",
            kind="integer",
            null=True,
        ),
        Column[SiteRow](
            "owner_gpu_milli",
            lambda s: s.view.owner_runs.gpu_milli if s.view and s.view.owner_runs else None,
            "Thousandths of GPUs that these hold; null: the site does not tell.",
            kind="integer",
            null=True,
        ),
        Column[SiteRow](
            "free_gpu_milli",
            lambda s: sum(n.free_gpu_milli for n in s.view.nodes) if s.view and s.view.nodes else None,
            "Thousandths of GPUs that nobody holds; null: the site does not tell node by node.",
            kind="integer",
            null=True,
        ),
        Column[SiteRow](
            "node_gpu_milli",
            lambda s: sum(n.gpu_milli for n in s.view.nodes) if s.view and s.view.nodes else None,
            "Thousandths of GPUs of all its nodes; null: the site does not tell node by node.",
            kind="integer",
            null=True,
        ),
        words(
            "taken_back",
            lambda s: in_brief(s.hazard) + f" in {formatting.age(s.hazard_s)}" if s.hazard else "",
            "How often it took places of drones back of late, and what that cost, in words; empty: none ran.",
            head="TAKEN BACK",
            least=14,
            spare=2,
        ),
        span_s("hazard_s", lambda s: s.hazard_s, "How far back the following figures look, seconds."),
        *map(_of_hazard, hazard_columns()),
        time_at("taken_at", lambda s: s.taken_at, "When the newest good view was taken."),
        span_s(
            "view_age_s",
            lambda s: max(0.0, now - s.taken_at) if s.taken_at else None,
            "Age of the newest good view, seconds; null: there never was one.",
            level=0,
            head="VIEW",
        ),
        text(
            "fault",
            lambda s: s.reading.fault.kind.value if s.reading and s.reading.fault else "",
            "Kind of fault of the newest look; empty: it succeeded.",
        ),
        words("note", lambda s: site_note(s, now), "What is wrong, if anything.", level=0, least=16),
    )


def _states(row: SiteRow) -> str:
    return ", ".join(f"{n} {state.value}" for state, n in row.states.items())


def owner_words(view: SiteView) -> str:
    """The owner's jobs there: ``3 jobs wait for 8 GPUs, 2 jobs run on 4 GPUs``; empty: none, or not told."""
    waiting = sum(c.count for c in view.claims)
    wanted_milli, runs = sum(c.count * c.gpu_milli for c in view.claims), view.owner_runs
    parts = [f"{_jobs(waiting, 'wait')}{_on(wanted_milli, 'for')}"] if waiting else []
    parts += [f"{_jobs(runs.jobs, 'run')}{_on(runs.gpu_milli, 'on')}"] if runs and runs.jobs else []
    return ", ".join(parts)


def _jobs(number: int, do: str) -> str:
    return f"1 job {do}s" if number == 1 else f"{number} jobs {do}"


def _on(gpu_milli: int, how: str) -> str:
    return f" {how} {gpu_count(gpu_milli)}" if gpu_milli else ""


def gpu_count(milli: int) -> str:
    """``1 GPU``, ``0.5 GPUs``, ``8 GPUs``."""
    return "1 GPU" if milli == WHOLE_GPU else f"{formatting.gpus(milli)} GPUs"


def in_brief(hazard: Hazard) -> str:
    """``12 (35 per 1000 h), 4.2 GPU-hours lost``; ``none``."""
    if not hazard.preempted and not hazard.lost_jobs:
        return "none"
    rate = f" ({formatting.number(round(hazard.per_1000_h, 1))} per 1000 h)" if hazard.per_1000_h is not None else ""
    return f"{hazard.preempted}{rate}" + "".join(f", {part} lost" for part in lost_work(hazard))


def lost_work(hazard: Hazard) -> list[str]:
    """Work that was lost, in hours of what did it."""
    lost = (("GPU", hazard.lost_gpu_s), ("CPU", hazard.lost_cpu_s))
    return [f"{formatting.number(round(spent_s / 3600, 1))} {unit}-hours" for unit, spent_s in lost if spent_s]


def _of_hazard(column: Column[Hazard]) -> Column[SiteRow]:
    """A figure of a site's hazard, for machines."""

    def of(row: SiteRow) -> Cell:
        return column.of(row.hazard) if row.hazard else None

    return Column(column.key, of, column.doc, kind=column.kind, null=True)


def hazard_columns() -> tuple[Column[Hazard], ...]:
    """Of what places were taken back, and what that cost."""
    return (
        whole("ran", lambda h: h.drones, "Drones that ran in that time.", level=0),
        span_s("run_s", lambda h: h.run_s, "How long they ran then, all together, seconds.", level=0, head="FOR"),
        whole(
            "preempted",
            lambda h: h.preempted,
            "Of those, taken back by the site or for the owner.",
            level=0,
            head="TAKEN BACK",
        ),
        Column[Hazard](
            "per_1000_h",
            lambda h: None if h.per_1000_h is None else round(h.per_1000_h, 3),
            "Taken back per 1000 hours of drones; null: none ran.",
            kind="number",
            null=True,
            level=0,
            head="PER 1000 H",
            right=True,
        ),
        span_s(
            "life_mean_s",
            lambda h: h.life_mean_s,
            "Mean life of those, seconds; null: there were none.",
            level=1,
            head="MEAN LIFE",
        ),
        span_s(
            "life_median_s",
            lambda h: h.life_median_s,
            "Median life of those, seconds; null: there were none.",
            level=0,
            head="MEDIAN LIFE",
        ),
        span_s(
            "grace_mean_s",
            lambda h: h.grace_mean_s,
            "Mean time from a notice to the end, seconds; null: there was no notice.",
            level=0,
            head="GRACE USED",
        ),
        Column[Hazard](
            "lost_gpu_s",
            lambda h: round(h.lost_gpu_s, 3),
            "Work of jobs that GPU drones' ends have cost, GPU-seconds.",
            kind="number",
            level=0,
            head="GPU-H LOST",
            right=True,
            show=lambda h: formatting.number(round(h.lost_gpu_s / 3600, 2)),
        ),
        Column[Hazard](
            "lost_cpu_s",
            lambda h: round(h.lost_cpu_s, 3),
            "The same of CPU drones, CPU-seconds.",
            kind="number",
            level=1,
            head="CPU-H LOST",
            right=True,
            show=lambda h: formatting.number(round(h.lost_cpu_s / 3600, 2)),
        ),
        whole("lost_jobs", lambda h: h.lost_jobs, "Jobs that lost it.", level=1, head="JOBS"),
    )


def _free(row: SiteRow) -> str:
    if row.view and row.view.nodes:
        free = sum(n.free_gpu_milli for n in row.view.nodes)
        return f"{formatting.gpus(free)} of {gpu_count(sum(n.gpu_milli for n in row.view.nodes))}"
    return "?" if row.free is None else ", ".join(f"{n} {name}" for name, n in sorted(row.free.items())) or "0"


def site_note(row: SiteRow, now: float) -> str:
    """What is out of the ordinary with a site, trouble first."""
    parts = []
    if row.reading and row.reading.fault:
        parts.append(f"look failed ({row.reading.fault.kind.value}): {formatting.excerpt(row.reading.fault.message)}")
    if row.policy is None:
        parts.append("not in the configuration")
    elif not row.policy.enabled:
        parts.append("disabled")
    elif row.taken_at and now - row.taken_at > row.policy.view_max_age_s:
        parts.append("view too old")
    classes = [breaker for breaker in row.type_breakers if breaker.class_id]
    for breaker in (row.breaker, *row.type_breakers):
        if breaker.state is not BreakerState.ACTIVE and breaker not in classes[_CLASSES_NAMED:]:
            parts.append(_breaker_note(breaker, now))
    if len(classes) > _CLASSES_NAMED:
        parts.append(f"{len(classes) - _CLASSES_NAMED} more job classes back off")
    view = row.view
    if view and view.downtime_at:
        parts.append(f"downtime from {formatting.iso(view.downtime_at)}")
    parts += [formatting.sanitize(n, 120) for n in ((*view.notices, *view.remarks) if view else ())]
    return "; ".join(parts)


def _breaker_note(breaker: Breaker, now: float) -> str:
    left = f" for {formatting.age(breaker.until - now)}" if breaker.until > now else ""
    why = f": {formatting.excerpt(breaker.fault.message)}" if breaker.fault else ""
    if breaker.class_id:  # the type is open to all others
        return f"job class {breaker.class_id} backs off on {breaker.scope.partition('#')[0]}{left}{why}"
    return f"{breaker.scope} {breaker.state.value}{left}{why}"
