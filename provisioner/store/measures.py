"""Counters and gauges of the record as values, by metric and labels: counts of changes, GPU time, and demand.

Names and labels are those of ``docs/reference/metrics.md``. Labels have few values: never an id of
a drone or a job, or a user.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple

from provisioner import model, reasons
from provisioner.keys import site_of, type_name
from provisioner.model import WHOLE_GPU, Drone, DroneId, DroneState, Plan, Snapshot, TypeKey
from provisioner.reasons import Category
from provisioner.store import RecordChange, Views
from provisioner.usage import NO_VO, held_milli

LEAVING_STATES = (DroneState.DRAINING, DroneState.STOPPING)
GPU_USES = {
    DroneState.BOOTING: "boot",
    DroneState.JOINED: "boot",
    DroneState.IDLE: "idle",
    DroneState.BUSY: "busy",
    **dict.fromkeys(LEAVING_STATES, "draining"),
}
"""Use of a GPU by the state of its drone. In other states it counts as boot, from its start on record."""
SERVICE_USE = "service"
"""Use of a GPU whose drone runs a server that is ready."""
NO_REASON = "none"
"""Category of waiting jobs that the newest plan does not mention."""
WAITING_CATEGORIES = (
    *(c.value for c in Category if c not in (Category.LEAVE, Category.STEP)),
    NO_REASON,
)


class MetricKey(NamedTuple):
    """A metric with its labels, in the order in which the metric has them."""

    metric: str
    labels: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, metric: str, **labels: str) -> MetricKey:
        return cls(metric, tuple(labels.items()))

    @classmethod
    def of_type(cls, metric: str, kind: TypeKey, **labels: str) -> MetricKey:
        """Return the key with the labels ``site`` and ``type`` of a drone type before the others."""
        return cls.of(metric, site=site_of(kind), type=type_name(kind), **labels)


MetricValues = Mapping[MetricKey, float]


class MetricCounts(dict[MetricKey, float]):
    """Amounts by which counters have grown."""

    def add(self, key: MetricKey, amount: float = 1.0) -> None:
        self[key] = self.get(key, 0.0) + amount

    def add_duration(self, key: MetricKey, duration_s: float) -> None:
        """Add one duration to the sum and the count of a summary."""
        self.add(MetricKey(f"{key.metric}_sum", key.labels), max(0.0, duration_s))
        self.add(MetricKey(f"{key.metric}_count", key.labels))

    def add_all(self, others: MetricValues) -> None:
        for key, amount in others.items():
            self.add(key, amount)


def counts_of_change(
    change: RecordChange,
    known: Mapping[DroneId, Drone],
    breakers: Mapping[model.Scope, model.Breaker],
) -> MetricCounts:
    """Return the counts of a change of the record in which the live drones ``known`` and ``breakers`` were."""
    counts = MetricCounts()
    of_type = MetricKey.of_type
    for step in change.transitions:
        drone = change.drones[step.drone_id]
        why = step.reason.kind
        if step.was is None:
            counts.add(of_type("provisioner_drones_requested_total", drone.type, reason=why))
        if step.state in LEAVING_STATES and step.was not in LEAVING_STATES:
            counts.add(of_type("provisioner_drones_leaving_total", drone.type, reason=why))
        if step.state.ended:
            counts.add(
                of_type("provisioner_drones_ended_total", drone.type, outcome=step.state.value)
            )
            counts.add(of_type("provisioner_jobs_lost_total", drone.type), drone.lost_jobs)
            lost_gpu_s = drone.lost_gpu_s if drone.gpu_milli else 0.0
            counts.add(of_type("provisioner_lost_gpu_seconds_total", drone.type), lost_gpu_s)
            if drone.notice_at:
                gave_way_s = drone.ended_at - drone.notice_at
                counts.add_duration(of_type("provisioner_give_way_seconds", drone.type), gave_way_s)
    for drone in change.drones.values():
        before = known.get(drone.id)
        if drone.joined_at and (before is None or not before.joined_at):
            start_s = drone.joined_at - drone.requested_at
            counts.add_duration(of_type("provisioner_drone_start_seconds", drone.type), start_s)
    for breaker in change.breakers:
        failures = breaker.failures - (
            breakers[breaker.scope].failures if breaker.scope in breakers else 0
        )
        if failures > 0 and breaker.fault is not None and not breaker.scope.user:
            key = MetricKey.of(
                "provisioner_faults_total",
                scope=breaker.scope.site,
                kind=breaker.fault.kind.value,
            )
            counts.add(key, failures)
    return counts


def counts_of_plan(plan: Plan) -> MetricCounts:
    """Return the counts of a recorded plan that are no changes of drones on record."""
    counts = MetricCounts({MetricKey("provisioner_ticks_total"): 1.0})
    for orphan in plan.orphans:
        counts.add(MetricKey.of("provisioner_orphan_stops_total", site=orphan.site))
    return counts


def counts_of_services(
    view: model.ServicesView | None, before: model.ServicesView | None
) -> MetricCounts:
    """Return the requests and the work of services between two views. A smaller sum began again at 0."""
    known = _service_sums(before)
    counts = MetricCounts()
    for key, value in _service_sums(view).items():
        was = known.get(key, 0.0)
        counts.add(key, value - was if value >= was else value)
    return counts


def _service_sums(view: model.ServicesView | None) -> MetricValues:
    sums = MetricCounts()
    for each in view.services if view else ():
        of = partial(MetricKey.of, service=each.name)
        sums[of("provisioner_service_requests_total")] = each.requests
        sums[of("provisioner_service_refused_total")] = each.refused
        for vo, requests in each.by_vo.items():
            sums[of("provisioner_service_vo_requests_total", vo=vo)] = requests
        for use in each.models:
            of_model = partial(of, model=use.model)
            sums[of_model("provisioner_service_model_requests_total")] = use.requests
            sums[of_model("provisioner_service_model_queue_seconds_total")] = use.queue_s
            sums[of_model("provisioner_service_model_compute_seconds_total")] = use.compute_s
    return sums


def counts_of_run(
    run: model.CompletedJob, drone: Drone, kind: model.DroneType | None
) -> MetricCounts:
    """Return the counts of a run that ended in ``drone``. ``kind`` is the type of the drone, None if unknown."""
    counts = MetricCounts()
    of_type = MetricKey.of_type
    outcome = "unfinished" if run.unfinished else "completed"
    counts.add(of_type("provisioner_jobs_ended_total", drone.type, outcome=outcome))
    if not run.unfinished:
        waited_s = run.ended_at - run.run_s - run.submitted_at
        counts.add_duration(of_type("provisioner_job_wait_seconds", drone.type), waited_s)
    if run.used_milli is not None and run.gpu_milli and drone.gpu_milli:
        milli = min(held_milli(run.gpu_milli, run.vram_mib, run.splits, kind), drone.gpu_milli)
        for part, amount in (("held", milli), ("used", run.used_milli)):
            key = of_type(f"provisioner_measured_gpu_seconds_{part}_total", drone.type)
            counts.add(key, amount / WHOLE_GPU * run.run_s)
    return counts


def counts_of_time(
    snapshot: Snapshot, after: Mapping[DroneId, Drone], since: float
) -> MetricCounts:
    """Return the GPU time of drones, and the waits of owners, between the plan before, of ``since``, and ``snapshot``.

    ``after``: new records of drones. What they show of a time before ``since``, as a site reports a
    start late, was not counted yet. So the sums over a drone's life are the time from its start to
    its end on record, as in ``usage``.
    """
    counts = MetricCounts()
    for (kind, use), amount in _gpu_seconds(snapshot, after, since).items():
        counts.add(MetricKey.of_type("provisioner_gpu_seconds_total", kind, use=use), amount)
    elapsed_s = max(0.0, snapshot.now - since) if since else 0.0
    notices: dict[str, float] = {}
    for drone in snapshot.drones.values():
        if drone.notice_at:
            notices[drone.site] = min(drone.notice_at, notices.get(drone.site, drone.notice_at))
    for site, notice_at in notices.items():
        polled = snapshot.sites.get(site)
        policy = snapshot.policy.of_site(site)
        if polled is not None and polled.view is not None and polled.view.claims:
            over = snapshot.now - notice_at > policy.grace_s + policy.stopping_s
            grace = "over" if over else "within"
            key = MetricKey.of("provisioner_owner_wait_seconds_total", site=site, grace=grace)
            counts.add(key, elapsed_s)
    return counts


def _gpu_seconds(
    snapshot: Snapshot, after: Mapping[DroneId, Drone], since: float
) -> Mapping[tuple[TypeKey, str], float]:
    """Return the GPU time by drone type and use, as for :func:`counts_of_time`."""
    gpu_s = defaultdict[tuple[TypeKey, str], float](float)
    pool = snapshot.overlay.view
    slots = pool.slots if pool is not None else ()
    free = {slot.drone_id: slot.free_gpu_milli for slot in slots if slot.free_gpu_milli}
    held = Counter[tuple[TypeKey, str, int]]()
    for drone in snapshot.drones.values():
        if not drone.gpu_milli:
            continue
        began = drone.started_at or drone.joined_at
        if 0.0 < began <= since and drone.id not in after and drone.id not in free:
            held[drone.type, _use_of(drone), drone.gpu_milli] += 1  # from since on, like nearly all
            continue
        known = after.get(drone.id, drone)
        began_now = known.started_at or known.joined_at
        if not began_now:
            continue
        counted_from = max(began_now, since) if began else began_now
        held_s = max(0.0, (known.ended_at or snapshot.now) - counted_from) / WHOLE_GPU
        idle = min(free.get(drone.id, 0), drone.gpu_milli) * (drone.state is DroneState.BUSY)
        gpu_s[drone.type, _use_of(drone)] += (drone.gpu_milli - idle) * held_s
        gpu_s[drone.type, GPU_USES[DroneState.IDLE]] += idle * held_s
    elapsed_s = max(0.0, snapshot.now - since) / WHOLE_GPU
    for (kind, use, gpu_milli), number in held.items():
        gpu_s[kind, use] += number * gpu_milli * elapsed_s
        gpu_s[kind, GPU_USES[DroneState.IDLE]] += 0.0
    return gpu_s


def _use_of(drone: Drone) -> str:
    if drone.service and drone.state in (DroneState.IDLE, DroneState.BUSY):
        return SERVICE_USE
    return GPU_USES.get(drone.state, "boot")


class DroneCount(NamedTuple):
    """Live drones of one type in one state."""

    type: TypeKey
    state: DroneState
    drones: int
    gpu_milli: int
    """In all of them."""
    refusing: int = 0
    """Drones among them whose drain the overlay refused."""
    service: str = ""
    """Service of their servers; empty: they take jobs."""

    @property
    def site(self) -> str:
        return site_of(self.type)


def count_drones(drones: Iterable[Drone]) -> list[DroneCount]:
    """Return the numbers of live drones by type, state and size."""
    found = Counter((each.type, each.state, each.gpu_milli, each.service) for each in drones)
    return [
        DroneCount(kind, state, n, n * milli, service=service)
        for (kind, state, milli, service), n in found.items()
    ]


def gauges(
    views: Views | Snapshot, drones: Iterable[DroneCount], plan: Plan | None, now: float
) -> MetricValues:
    """Return the demand, the supply and the owners' claims at ``now``, as far as the views show them."""
    values = MetricCounts()
    for each in drones:
        state = each.state.value
        of_type = MetricKey.of_type
        values.add(of_type("provisioner_drones", each.type, state=state), each.drones)
        gpus = each.gpu_milli / WHOLE_GPU
        values.add(of_type("provisioner_gpus", each.type, state=state), gpus)
        if each.service:
            servers = MetricKey.of("provisioner_service_servers", service=each.service, state=state)
            values.add(servers, each.drones)
    for name, polled in views.sites.items():
        if polled.view is not None:
            waiting = sum(claim.count for claim in polled.view.claims)
            values[MetricKey.of("provisioner_owner_jobs_waiting", site=name)] = waiting
            free = polled.view.free_gpu_milli
            if polled.view.nodes:
                free = sum(node.free_gpu_milli for node in polled.view.nodes)
            if free is not None:
                values[MetricKey.of("provisioner_gpus_free", site=name)] = free / WHOLE_GPU
    if views.overlay.view is not None:
        classes = views.overlay.view.classes
        given = reasons_by_class(plan)
        for job in classes:
            category = Category.CONFIGURATION.value if job.invalid else NO_REASON
            why = given.get(job.id) or given.get("")
            if why and not isinstance(why[0], reasons.ModelUnknown):
                category = why[0].category.value
            jobs = job.waiting + job.fresh
            values.add(MetricKey.of("provisioner_jobs_waiting", category=category), jobs)
            gpus = jobs * job.gpu_milli / WHOLE_GPU
            values.add(MetricKey.of("provisioner_gpus_wanted", category=category), gpus)
        oldest_at = min(
            (c.waits_since for c in classes if c.waiting + c.fresh and c.waits_since), default=now
        )
        values[MetricKey("provisioner_jobs_running")] = sum(c.running for c in classes)
        values[MetricKey("provisioner_oldest_job_wait_seconds")] = max(0.0, now - oldest_at)
    values.add_all(_service_gauges(views.services.view, plan))
    return values


def _service_gauges(view: model.ServicesView | None, plan: Plan | None) -> MetricValues:
    """Return the demand for services, and the servers that it needs."""
    values = MetricCounts()
    for state in plan.services if plan else ():
        of = partial(MetricKey.of, service=state.name)
        values[of("provisioner_service_servers_wanted")] = state.wanted
        values[of("provisioner_service_servers_needed")] = state.needed
    for each in view.services if view else ():
        of = partial(MetricKey.of, service=each.name)
        values[of("provisioner_service_requests_in_flight")] = each.in_flight
        values[of("provisioner_service_requests_queued")] = each.queued
        values[of("provisioner_service_request_seconds")] = each.request_s
    return values


MOST_VOS = 20
"""VOs with gauges of their own, those with most jobs; the others are one."""
OTHER_VOS = "other"


def vo_gauges(classes: Iterable[model.JobClass]) -> MetricValues:
    """Return the waiting and running jobs by VO, whose names users may have written."""
    jobs = Counter[tuple[str, str]]()
    totals = Counter[str]()
    for job in classes:
        vo = job.vo or NO_VO
        jobs[vo, "waiting"] += job.idle
        jobs[vo, "running"] += job.running
        totals[vo] += job.idle + job.running
    own = {*sorted(totals, key=lambda vo: (-totals[vo], vo))[:MOST_VOS]}
    values = MetricCounts()
    for (vo, state), count in jobs.items():
        shown = vo if vo in own else OTHER_VOS
        values.add(MetricKey.of("provisioner_vo_jobs", vo=shown, state=state), count)
    return values


def reasons_by_class(plan: Plan | None) -> dict[str, list[reasons.Reason]]:
    """Return the reasons of a plan by class, weightiest first; of starts one per drone type. Under "": of all."""
    found: dict[str, list[reasons.Reason]] = {}
    for refusal in plan.refusals if plan else ():
        if refusal.subject.kind in ("class", "all"):
            found.setdefault(refusal.subject.name, []).append(refusal.reason)
    starts: dict[tuple[str, str], reasons.Reason] = {}
    for start in plan.starts if plan else ():
        if isinstance(start.reason, reasons.JobsWaiting | reasons.HeadroomShort):
            starts.setdefault((start.drone.for_class, start.drone.type), start.reason)
    for (name, _), reason in starts.items():
        found.setdefault(name, []).append(reason)
    weights = list(reasons.Category)

    def weight(reason: reasons.Reason) -> tuple[bool, int]:
        # no job waits for its model
        return isinstance(reason, reasons.ModelUnknown), weights.index(reason.category)

    return {name: sorted(dict.fromkeys(given), key=weight) for name, given in found.items()}
