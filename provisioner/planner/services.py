"""Inference services: how many servers each one needs, the drones that start for them, and those that leave.

A service needs as many servers as its requests keep at work (Little: rate times time of a request),
measured at the balancer and announced by jobs that wait or run. Servers are started for the demand
of this tick; they are kept for what was needed within a hold time, since a server that returns has
to load its models again. The drone of a server is like any other: its start keeps all limits,
breakers and reservations, by the rules of :class:`provisioner.planner.placement.Allocation`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter

from provisioner import reasons
from provisioner.keys import Subject
from provisioner.model import (
    ON_THE_WAY,
    WHOLE_GPU,
    Drone,
    DroneId,
    DroneState,
    DroneType,
    JobClass,
    Refusal,
    Service,
    ServiceState,
    ServiceView,
)
from provisioner.planner.context import DOWNTIME_MARGIN_S, PlanningContext, downtime_at
from provisioner.planner.matching import CompatibleTypes
from provisioner.planner.placement import Allocation, StartCandidate
from provisioner.planner.risk import free_gpus_at
from provisioner.planner.states import NO_END
from provisioner.reasons import Reason
from provisioner.values import define, factory, frozen

HOLD_FACTOR = 1.0
"""Servers without demand are kept for this many start times of another one, and stopped within ``Service.idle_s``."""
SERVER_STOP_S = 5.0
"""Time in which a server is withdrawn and stopped, beside the pauses between ticks."""
CATCH_UP_S = 60.0
"""Time in which a backlog is worked off, or the start time of a server if that is longer."""
LEARN_S = 300.0
"""Interval at which the requests of announcing jobs are measured."""
LEAST_RATE = 1e-4
"""Smallest learned rate: 0 stands for an unknown one."""
NOTABLE_CHANGE = 0.1
"""A time of a request that differs by less than this part is the known one: states stay equal from tick to tick."""
END_MARGIN_S = 120.0
"""A successor is started this much earlier than the time that it needs."""
WITHDRAWN_S = 60.0
"""A server is withdrawn this long before the grace period at its end, with or without a successor: at most a
quarter of its life."""


@frozen
class Announced:
    """Jobs that announce models of one service."""

    waiting: int = 0
    running: int = 0

    def __bool__(self) -> bool:
        return self.waiting + self.running > 0


NO_JOBS = Announced()
NO_DEMAND = ServiceView("")


def has_model(models: Iterable[str], wanted: str) -> bool:
    """Return True if a model is among ``models``, in any version if it is announced without one."""
    return wanted in models or wanted in {each.partition(":")[0] for each in models}


def learned_state(
    before: ServiceState, view: ServiceView, running: int, now: float
) -> ServiceState:
    """Return the state with what the view shows of the work of a request, and of the requests of a running job."""
    each_s = before.request_s
    if view.request_s and abs(view.request_s - each_s) > NOTABLE_CHANGE * each_s:
        each_s = view.request_s
    rate = before.job_requests_per_s
    learned_at = before.learned_at if running else 0.0
    measured_jobs = min(running, before.measured_jobs)
    if running and not learned_at:
        learned_at = now
    elif running and now - learned_at >= LEARN_S:
        measured = view.requests_per_s / running
        rate = max(LEAST_RATE, (rate + measured) / 2 if rate else measured)
        learned_at = now
        measured_jobs = running
    return replace(
        before,
        request_s=each_s,
        job_requests_per_s=rate,
        learned_at=learned_at,
        measured_jobs=measured_jobs,
    )


def needed_servers(
    service: Service,
    state: ServiceState,
    view: ServiceView,
    announced: Announced,
    start_s: float,
) -> int:
    """Return the servers that the demand needs now, whatever the limits.

    Requests that wait are worked off beside those that come, within the time that another server
    takes to start. What jobs will request is predicted until it was measured once.
    """
    each_s = state.request_s or 1.0 / service.server_rate
    per_job = state.job_requests_per_s or service.job_rate
    used = view.requests_per_s or view.in_flight or view.queued
    needed = max(service.at_least, int(bool(announced or used)))
    per_s = view.requests_per_s
    has_new_jobs = announced.running > state.measured_jobs
    predicted_per_s = announced.running * per_job if has_new_jobs else 0.0
    backlog = view.queued * each_s / max(CATCH_UP_S, start_s)
    work = max(
        per_s * each_s / service.load,
        per_s * each_s + backlog,
        predicted_per_s * each_s / service.load,
    )
    return max(needed, math.ceil(round(work, 6)))


def held_state(
    before: ServiceState, needed: int, at_most: int, hold_s: float, now: float, until: float
) -> ServiceState:
    """Return the state in which as many servers are wanted as were needed at any time within ``hold_s``.

    It stays the same for as long as ``needed`` does and nothing expires. ``until``: time of the
    newest demand.
    """
    peaks = [(at, count) for at, count in before.peaks if count > max(needed, before.needed)]
    if before.needed > needed:
        peaks = [(min(at, until), count) for at, count in (*peaks, (now, before.needed))]
    held = tuple((at, count) for at, count in peaks if now - at < hold_s)
    most = max([needed, *(count for _, count in held)])
    return replace(before, needed=needed, wanted=min(most, at_most), peaks=held)


@define
class ServerGroup:
    """Drones of one service, without those that leave for good."""

    ready: list[Drone] = factory(list)
    coming: list[Drone] = factory(list)
    late: list[Drone] = factory(list)
    """Delayed at their site (:func:`provisioner.planner.context.delayed_drones`)."""
    ending: dict[DroneId, float] = factory(dict)
    """Drones whose end is near, with its time: others are started in their place."""
    withdrawn: list[Drone] = factory(list)
    """Drones that leave for want of demand, and may be taken back."""

    @property
    def supply(self) -> int:
        return len(self.ready) + len(self.coming)


@dataclass
class ServicePlan:
    """States, starts and leaving servers of one plan. Mutable, local to it."""

    allocation: Allocation
    states: list[ServiceState] = factory(list)
    refusals: list[Refusal] = factory(list)
    leaving: dict[DroneId, Reason] = factory(dict)
    returning: dict[DroneId, Reason] = factory(dict)
    """Withdrawn servers that are taken back."""

    @property
    def context(self) -> PlanningContext:
        return self.allocation.context

    @cached_property
    def types(self) -> Mapping[str, Sequence[DroneType]]:
        """Drone types with a server, by service."""
        found: dict[str, list[DroneType]] = {}
        for kind in self.context.types.values():
            if kind.service:
                found.setdefault(kind.service, []).append(kind)
        return found

    @cached_property
    def announced(self) -> Mapping[str, Announced]:
        """Return the jobs that announce models, by service, and refuse models that no service has.

        A view of the overlay that is too old for other decisions counts: servers stay for its jobs.
        """
        snapshot = self.context.snapshot
        view = snapshot.overlay.view
        names = {service.name for service in snapshot.policy.services}
        models = {
            name: {model for kind in kinds if kind.server for model in kind.server.models}
            for name, kinds in self.types.items()
            if name in names
        }
        found: dict[str, Announced] = {}
        for job in view.classes if view is not None else ():
            called = set[str]()
            for model in job.inference:
                having = {name for name, served in models.items() if has_model(served, model)}
                called |= having
                if not having:
                    self._refuse(Subject("class", job.id), 0, reasons.ModelUnknown(model))
            waiting = job.idle if called and self._may_start(job) else 0
            for name in called:
                known = found.get(name, NO_JOBS)
                found[name] = Announced(known.waiting + waiting, known.running + job.running)
        return found

    def _may_start(self, job: JobClass) -> bool:
        """Return True if drones exist, or may be started, that run waiting jobs of a class, or if that is unknown."""
        compatible = self.context.compatible.get(job.id)
        limits = self.allocation.limits
        return compatible is None or any(
            limits.drones[key] or limits.for_type(key)[0] for key in compatible.jobs
        )

    def plan(self, service: Service, view: ServiceView) -> None:
        """Note the state of a service, start servers that it lacks, and choose those that leave."""
        context = self.context
        kinds = self.types.get(service.name, ())
        costs = [context.costs.of_types[kind.key] for kind in kinds]
        start_s = min((each.boot_s for each in costs), default=0.0)
        group = self.groups.get(service.name) or ServerGroup()
        before = context.snapshot.service_states.get(service.name) or ServiceState(service.name)
        announced = self.announced.get(service.name, NO_JOBS)
        state = learned_state(before, view, announced.running, context.now)
        needed = needed_servers(service, state, view, announced, start_s)
        # the poll after the last request comes a pause later, and the tick that withdraws may, too
        idle_s = service.idle_s - 2 * context.snapshot.policy.interval_s - SERVER_STOP_S
        hold_s = min(idle_s, HOLD_FACTOR * start_s)
        until = context.now
        if not (needed or before.announced):
            until = view.requested_at or context.now
        state = held_state(state, needed, service.at_most, hold_s, context.now, until)
        state = replace(state, announced=announced.running)
        self.states.append(state)
        if needed > service.at_most:
            scope = f"service {service.name}"
            why = reasons.LimitReached("at_most", scope, group.supply, service.at_most)
            self._refuse(Subject("service", service.name), needed - service.at_most, why)
        lack = min(needed, service.at_most - len(group.late)) - group.supply
        if lack > 0:
            demand = StartDemand(service, view, announced, needed, group.supply)
            lack -= self._take_back(demand, group.withdrawn[:lack])
            self._start(demand, kinds, lack, len(group.late))
        self._choose_surplus(state, group)
        self._choose_ending(state, group)

    @cached_property
    def groups(self) -> Mapping[str, ServerGroup]:
        """Drones by service. One that its site preempts is no supply."""
        context = self.context
        found: dict[str, ServerGroup] = {}
        for drone in context.drones.values():
            kind = context.types.get(drone.type)
            if not drone.service or kind is None or kind.service != drone.service:
                continue
            group = found.setdefault(drone.service, ServerGroup())
            ends_at = self._end_at(drone, kind)
            ends = ends_at - context.now <= self._lead_s(kind)
            if drone.is_leaving:
                if not ends and self._may_return(drone):
                    group.withdrawn.append(drone)
            elif ends:
                group.ending[drone.id] = ends_at
            elif drone.id in context.late:
                group.late.append(drone)
            else:
                (group.coming if drone.state in ON_THE_WAY else group.ready).append(drone)
        return found

    def _may_return(self, drone: Drone) -> bool:
        """Return True if a leaving server is still ready, and neither a person nor a fault ends it."""
        by_plan = drone.leaving in (DroneState.DONE, DroneState.UNUSED)
        is_there = self.context.validity.slot_of(drone) is not None
        return drone.state is DroneState.DRAINING and by_plan and is_there

    def _end_at(self, drone: Drone, kind: DroneType) -> float:
        """Return the time by which a drone has to end: that of its site's notice, its walltime or a downtime."""
        if drone.notice_at:
            return drone.notice_at
        has_end = drone.started_at and kind.walltime_s
        own_at = drone.started_at + kind.longest_job_s if has_end else NO_END
        return min(own_at, downtime_at(self.context, kind.site) - DOWNTIME_MARGIN_S)

    def _lead_s(self, kind: DroneType) -> float:
        """Return the time that a successor needs, at most half of a drone's life."""
        cost = self.context.costs.of_types[kind.key]
        grace_s = self.context.snapshot.policy.of_site(kind.site).grace_s
        lead_s = cost.queue_s + cost.boot_s + grace_s + END_MARGIN_S
        return min(lead_s, kind.longest_job_s / 2) if kind.walltime_s else lead_s

    def _take_back(self, demand: StartDemand, withdrawn: Sequence[Drone]) -> int:
        """Take back withdrawn servers, within the share of the services. Return their number."""
        before = demand.servers
        for drone in withdrawn:
            if self._within_share(self.context.types[drone.type], 1, None)[0]:
                why = reasons.ServerReturns(demand.service.name, demand.needed, demand.servers)
                self.returning[drone.id] = why
                demand.servers += 1
        return demand.servers - before

    def _start(
        self, demand: StartDemand, kinds: Sequence[DroneType], lack: int, delayed: int
    ) -> None:
        """Start servers for a lack, the cheapest first. Delayed ones count where another might wait as well."""
        allocation = self.allocation
        ranking = allocation.ranking
        subject = Subject("service", demand.service.name)
        if not kinds:
            nothing = reasons.NothingFits("", "server", demand.service.name, "")
            self._refuse(subject, lack, nothing)
            return
        compatible = CompatibleTypes(tuple(kinds), {k.key: 1 for k in kinds}, ())
        job = JobClass(str(subject), 0, 0, 0)
        held_back: Reason | None = None
        for kind in sorted(kinds, key=lambda kind: self._rank(kind, demand)):
            if kind.key not in ranking.sure:
                lack -= delayed
                delayed = 0
            if lack <= 0:
                return
            candidate = StartCandidate(job, compatible, kind, lack)
            count, why = self._within_share(kind, *allocation.allowed(candidate))
            why = why or allocation.limits.for_type(kind.key)[1]
            if count > 0:
                allocation.book(kind, count)
                allocation.record(kind, count, "", demand.reason(count))
                demand.servers += count
                lack -= count
            if lack > 0:
                held_back = held_back or why
        if lack > 0 and held_back is not None:
            self._refuse(subject, lack, held_back)

    def _rank(self, kind: DroneType, demand: StartDemand) -> tuple[float, ...]:
        """Return the order of a type: where it may start now, by its cost with the preemptions that clients suffer."""
        cost = self.context.costs.of_types[kind.key]
        waits_s = demand.clients * (cost.queue_s + cost.boot_s)
        hazard = self.allocation.risk.preempted_per_s(kind)
        per_s = cost.per_s + hazard * waits_s * self.context.snapshot.policy.waiting_cost
        return self.allocation.ranking.wait_h[kind.key], per_s, kind.vram_mib

    def _within_share(
        self, kind: DroneType, count: int, why: Reason | None
    ) -> tuple[int, Reason | None]:
        """Return how many of ``count`` servers the share of the GPUs allows that services have while jobs wait."""
        view = self.context.snapshot.overlay.view
        classes = view.classes if view is not None else ()
        if not any(job.waiting and job.gpu_milli and not job.invalid for job in classes):
            return count, why
        share = self.context.snapshot.policy.services_share
        held = self.held_milli
        total = self.total_milli(kind)
        most = max(0, int(share * total) - held) // kind.gpu_milli if kind.gpu_milli else count
        if most >= count:
            return count, why
        held += most * kind.gpu_milli
        return most, reasons.ServicesShare(held / WHOLE_GPU, total / WHOLE_GPU, share)

    @property
    def held_milli(self) -> int:
        """Milli-GPUs of all servers, with those that this plan starts or takes back."""
        started = (start.drone for start in self.allocation.starts)
        live = (
            drone
            for drone in self.context.drones.values()
            if not drone.is_leaving or drone.id in self.returning
        )
        return sum(d.gpu_milli for each in (started, live) for d in each if d.service)

    def total_milli(self, wanted: DroneType | None = None) -> int:
        """Return the milli-GPUs of all drones, and those that are free: where unknown, what the site's limits leave."""
        context = self.context
        total = sum(drone.gpu_milli for drone in context.drones.values())
        for site, limits in context.snapshot.policy.sites.items():
            free = free_gpus_at(context, site)
            if free is None and wanted is not None and wanted.site == site:
                mine = sum(drone.site == site for drone in context.drones.values())
                free = max(0, limits.max_drones - mine) * wanted.gpu_milli
            total += free or 0
        return total

    def _choose_surplus(self, state: ServiceState, group: ServerGroup) -> None:
        """Let servers beyond the wanted ones leave: coming ones first, then those with fewest requests, the newest."""
        excess = group.supply - state.wanted
        # the order of a requested drone is under way
        idle = [drone for drone in group.coming if drone.state is not DroneState.REQUESTED]
        idle.sort(key=lambda drone: (-drone.requested_at, drone.id))
        ready = sorted(group.ready, key=lambda drone: (drone.jobs, -drone.joined_at, drone.id))
        spare = [*idle, *ready][: max(0, excess)]
        if len(group.ready) >= state.wanted:
            spare += group.late
        why = reasons.SurplusServer(state.name, group.supply + len(group.late), state.wanted)
        self.leaving.update((drone.id, why) for drone in spare)

    def _choose_ending(self, state: ServiceState, group: ServerGroup) -> None:
        """Let servers near their end leave once enough others are ready, or in time for their last requests."""
        ready = len(group.ready)
        for drone_id, ends_at in group.ending.items():
            kind = self.context.types[self.context.drones[drone_id].type]
            last_s = self.context.snapshot.policy.of_site(kind.site).grace_s + WITHDRAWN_S
            if kind.walltime_s:
                last_s = min(last_s, kind.longest_job_s / 4)
            if ends_at - self.context.now <= last_s or ready >= state.wanted:
                self.leaving[drone_id] = reasons.ServerEnds(ends_at, ready, state.wanted)

    def over_share(self) -> Iterator[tuple[Drone, Reason]]:
        """Yield a server that leaves for waiting jobs that lack room, where servers have more than their share."""
        share = self.context.snapshot.policy.services_share
        held = self.held_milli
        total = self.total_milli()
        if held <= share * total:
            return
        spare = list[Drone]()
        for service in self.context.snapshot.policy.services:
            group = self.groups.get(service.name) or ServerGroup()
            staying = [each for each in group.ready if each.id not in self.leaving]
            if len(staying) > service.at_least:
                spare += filter(attrgetter("gpu_milli"), staying)
        least = min(spare, key=lambda d: (d.jobs, -d.joined_at, d.id), default=None)
        if least is not None:
            why = reasons.ServerYields(held / WHOLE_GPU, total / WHOLE_GPU, share)
            yield least, why

    def _refuse(self, subject: Subject, count: int, why: Reason) -> None:
        self.refusals.append(Refusal(subject, count, why))


@define
class StartDemand:
    """Demand for servers of one service, for the reason of their starts."""

    service: Service
    view: ServiceView
    announced: Announced
    needed: int
    servers: int
    """Servers there or coming."""

    @property
    def clients(self) -> int:
        """Number of those that a preempted server keeps waiting: jobs or requests, whichever are more."""
        return max(1, self.announced.running, self.view.in_flight + self.view.queued)

    def reason(self, starts: int) -> Reason:
        view = self.view
        name = self.service.name
        if view.requests_per_s or view.in_flight or view.queued:
            return reasons.ServiceRequested(
                name, round(view.requests_per_s, 1), view.queued, self.needed, self.servers, starts
            )
        if self.announced:
            jobs = self.announced
            return reasons.ServiceAnnounced(
                name, jobs.waiting, jobs.running, self.needed, self.servers, starts
            )
        return reasons.ServiceMinimum(name, self.service.at_least, self.servers, starts)


def serve(allocation: Allocation) -> ServicePlan:
    """Plan the servers of all services. Without a valid view of them, nothing starts or leaves."""
    plan = ServicePlan(allocation)
    context = allocation.context
    snapshot = context.snapshot
    services = snapshot.policy.services
    if not services:
        return plan
    doubt = context.validity.services
    if doubt is not None:
        plan.refusals += [Refusal(Subject("service", each.name), 0, doubt) for each in services]
    if doubt is not None or context.too_unhealthy is not None or snapshot.twins:
        known = snapshot.service_states
        plan.states += [known[each.name] for each in services if each.name in known]
        return plan
    view = snapshot.services.view
    views = {each.name: each for each in view.services} if view is not None else {}
    for service in services:
        plan.plan(service, views.get(service.name, NO_DEMAND))
    return plan
