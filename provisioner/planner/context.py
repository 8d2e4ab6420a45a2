"""The planning context: one snapshot, and what is derived from it before any rule runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import filterfalse

from provisioner import model, reasons
from provisioner.descriptions import ClassNames
from provisioner.model import (
    Breakers,
    Drone,
    DroneId,
    DroneState,
    DroneType,
    Policy,
    SiteView,
    Slot,
    Snapshot,
    TypeKey,
)
from provisioner.planner.blame import ExclusiveUsers
from provisioner.planner.breakers import ClassBackoffs
from provisioner.planner.costs import JobCost, StartCosts
from provisioner.planner.demand import headroom_classes
from provisioner.planner.matching import CompatibleTypes, compatibility_cache
from provisioner.planner.settled import SeenDrone, SettledDrones
from provisioner.planner.states import NO_END
from provisioner.reasons import Reason
from provisioner.values import factory, frozen

_UNKNOWN_SITE = object()
VANISHED_MIN_DRONES = 3
VANISHED_FRACTION = 0.5
VANISHED_WAIT_FACTOR = 10
"""When at least this many drones, and this fraction of a site's drones, vanish at once, the planner
waits this many times longer before it believes it: an empty listing is far more often a broken
listing."""


@frozen
class ViewValidity:
    """Validity of the views. Nothing is started or stopped where a view is doubted."""

    overlay: Reason | None
    sites: Mapping[str, Reason | None]
    slots: Mapping[DroneId, Slot]
    """Slots of drones for jobs with a recent sign of life; none if the overlay's view is doubted."""
    views: Mapping[str, SiteView]
    """Fresh views of sites, even if many drones vanished from them."""
    news: Sequence[SeenDrone]
    """The drones on record but those that are settled."""
    settled: SettledDrones
    services: Reason | None = None
    """Doubt about the view of the services; None without services."""
    servers: Mapping[DroneId, Slot] = factory(dict)
    """Slots of drones with servers; none if the view of the services is doubted."""

    def slot_of(self, drone: Drone) -> Slot | None:
        """Return the slot of a drone in the pool that it joins, or None."""
        return (self.servers if drone.service else self.slots).get(drone.id)

    def pool_doubt(self, drone: Drone) -> Reason | None:
        """Return the doubt about the view of the pool that a drone joins: that of the services, or the overlay."""
        return self.services if drone.service else self.overlay


def check_views(snapshot: Snapshot, settled: SettledDrones | None = None) -> ViewValidity:
    """Check each view for age and faults, and each listing for vanished drones.

    Drones that are no longer ``settled`` are removed from there.
    """
    now = snapshot.now
    policy = snapshot.policy
    view = snapshot.overlay.view
    overlay = _stale("overlay", view, snapshot.overlay.fault, now, policy.overlay_max_age_s)
    slots: dict[DroneId, Slot] = {}
    if view is not None and overlay is None:
        oldest = now - policy.slot_max_age_s
        slots = {slot.drone_id: slot for slot in view.slots if slot.heard_at >= oldest}
    services = None
    servers: dict[DroneId, Slot] = {}
    if policy.services:
        polled_services = snapshot.services
        seen = polled_services.view
        services = _stale("services", seen, polled_services.fault, now, policy.overlay_max_age_s)
        if seen is not None and services is None:
            servers = {slot.drone_id: slot for slot in seen.slots}
        # a job with a drone's token can advertise a slot of any name
        for drone in snapshot.drones.values():
            if drone.service:
                slots.pop(drone.id, None)
    sites: dict[str, Reason | None] = {}
    views: dict[str, SiteView] = {}
    for name, site_policy in policy.sites.items():
        polled = snapshot.sites.get(name) or model.PolledSite(name)
        doubt = _stale(f"site:{name}", polled.view, polled.fault, now, site_policy.view_max_age_s)
        if polled.view is not None and doubt is None:
            if polled.busy:
                age_s = now - polled.view.taken_at
                limit_s = site_policy.view_max_age_s
                doubt = reasons.StaleView(
                    f"site:{name}", age_s, limit_s, "its last orders are still under way"
                )
            else:
                views[name] = polled.view
        sites[name] = doubt
    known = SettledDrones() if settled is None else settled
    news = known.others(snapshot, {**slots, **servers} if servers else slots, views)
    vanished = _vanished(snapshot, views, news)
    return ViewValidity(
        overlay, {**sites, **vanished}, slots, views, news, known, services, servers
    )


def _stale(
    name: str,
    view: model.OverlayView | SiteView | model.ServicesView | None,
    fault: model.Fault | None,
    now: float,
    limit_s: float,
) -> reasons.StaleView | None:
    age_s = -1.0 if view is None else max(0.0, now - view.taken_at)
    if fault is not None:
        return reasons.StaleView(name, age_s, limit_s, fault.message)
    if view is None:
        return reasons.StaleView(name, age_s, limit_s, "never seen")
    return reasons.StaleView(name, age_s, limit_s, "too old") if age_s > limit_s else None


def _should_be_there(drone: Drone) -> bool:
    """Return True if site and pool should know a drone: they may not know a new one, or have ended one that leaves."""
    return not drone.is_leaving and drone.state not in (DroneState.REQUESTED, DroneState.SUBMITTED)


def _vanished(
    snapshot: Snapshot, views: Mapping[str, SiteView], news: Iterable[SeenDrone]
) -> Mapping[str, Reason]:
    """Return the sites whose listing lacks so many drones at once that it is doubted."""
    missing: Counter[str] = Counter()
    for drone, *_ in news:
        site = drone.site
        if site not in views or drone.id in views[site].drones or not _should_be_there(drone):
            continue
        limit_s = snapshot.policy.sites[site].missing_s * VANISHED_WAIT_FACTOR
        missing_s = views[site].taken_at - drone.missing_at
        missing[site] += not drone.missing_at or missing_s < limit_s
    if max(missing.values(), default=0) < VANISHED_MIN_DRONES:
        return {}
    known = Counter(drone.site for drone in snapshot.drones.values() if _should_be_there(drone))
    return {
        site: reasons.AllVanished(site, count)
        for site, count in missing.items()
        if count >= VANISHED_MIN_DRONES and count >= VANISHED_FRACTION * known[site]
    }


MAX_JOBS_COUNTED = 1000
"""Jobs of one slot that count at most: its ad may report any number."""
RunShape = tuple[str, int, int, int]
"""User and request (GPUs in thousandths, CPUs, memory in MiB) of the jobs of a slot; empty and 0 if unknown."""


def run_shape(slot: Slot) -> RunShape:
    return slot.owner, slot.job_gpu_milli, slot.job_cpus, slot.job_memory_mib


def begun_of(slot: Slot) -> tuple[float, ...]:
    """Return a start time for each job of a slot: that of the first one, infinity if unknown."""
    return (slot.begun_at or NO_END,) * min(slot.jobs, MAX_JOBS_COUNTED)


def delayed_drones(
    snapshot: Snapshot, validity: ViewValidity, costs: StartCosts, drones: Iterable[Drone]
) -> frozenset[DroneId]:
    """Return the drones that wait at their site and will not start soon: no reason to wait where there is room now.

    A drone is delayed if its further wait is expected to cost more than a second start where the
    site shows room. The expected start that the site tells decides, else its limit, else the usual
    delay of the type. Where the free capacity of the site goes to drones ahead of it, its wait is
    unknown: it is delayed once its wait beyond the usual one has cost as much as a second start
    (rent or buy).
    """
    found: set[DroneId] = set()
    unreported: dict[TypeKey, list[Drone]] = {}
    waiting = [
        (drone, view)
        for drone in drones
        if drone.waits_at_site and (view := validity.views.get(drone.site))
    ]
    if not waiting:
        return frozenset()
    quickest_s = _second_start_s(snapshot, validity, costs)
    for drone, view in waiting:
        remote = view.drones.get(drone.id)
        if remote is None:
            continue
        if remote.blocked is not None:
            delayed = True
        elif remote.expected_start_at:
            delayed = remote.expected_start_at > snapshot.now + quickest_s
        elif drone.type not in costs.types:
            delayed = False
        else:
            delayed = costs.of_types[drone.type].queue_s > quickest_s
            if not delayed and drone.awaits_room:
                unreported.setdefault(drone.type, []).append(drone)
        if delayed:
            found.add(drone.id)
    for key, unplaced in unreported.items():
        kind = costs.types[key]
        view = validity.views.get(kind.site)
        free = _free_places(view, kind) if view is not None else None
        if free is not None:
            too_long_s = costs.of_types[key].queue_s + quickest_s
            behind = sorted(unplaced, key=lambda d: (d.requested_at, d.id))[free:]
            found |= {
                drone.id for drone in behind if snapshot.now - drone.requested_at > too_long_s
            }
    return frozenset(found)


def _second_start_s(snapshot: Snapshot, validity: ViewValidity, costs: StartCosts) -> float:
    """Return the wait of one job that costs as much as the cheapest start at a site that may have room."""
    cost = snapshot.policy.waiting_cost
    found = NO_END
    for kind in costs.types.values() if cost else ():
        view = validity.views.get(kind.site)
        queues = snapshot.policy.of_site(kind.site).queue_when_full
        if view is not None and (queues or _free_places(view, kind) != 0):
            found = min(found, costs.start(kind, 1, JobCost(0.0, cost)) / cost)
    return found


def _free_places(view: SiteView, kind: DroneType) -> int | None:
    if view.nodes and kind.gpu_milli:
        return (
            sum(node.free_gpu_milli for node in view.nodes if kind.name in node.types)
            // kind.gpu_milli
        )
    return view.free.get(kind.name, 0) if view.free is not None and not view.nodes else None


DOWNTIME_MARGIN_S = 300.0
"""A drone ends this long before a downtime, since it may wait a little before it starts."""
MIN_LIFE_S = 1800.0
"""Shortest life that is worth a start. For types with a shorter walltime, their walltime."""


def downtime_at(context: PlanningContext, site: str) -> float:
    """Return the start of the site's next downtime by its newest view, however old; infinity if none is known."""
    polled = context.snapshot.sites.get(site)
    at = polled.view.downtime_at if polled is not None and polled.view is not None else 0.0
    return at if at > context.now else NO_END


def drone_end_at(context: PlanningContext, kind: DroneType) -> float:
    """Return the time by which a drone of the type, started now, has to end."""
    own = context.now + kind.walltime_s if kind.walltime_s else NO_END
    return min(own, downtime_at(context, kind.site) - DOWNTIME_MARGIN_S)


def dead_credential(snapshot: Snapshot, used_by: str) -> reasons.CredentialUnusable | None:
    """Return the first credential of the overlay or of a site that cannot be used, or None."""
    now = snapshot.now + snapshot.drift_s
    for each in snapshot.credentials:
        if each.used_by == used_by and each.is_dead(now):
            expired_at = 0.0 if each.problem else each.not_after
            return reasons.CredentialUnusable(
                used_by, each.name, each.identity, expired_at, each.problem
            )
    return None


def shortened_life_s(context: PlanningContext, kind: DroneType) -> float:
    """Return how long a drone may live, in whole seconds, if a downtime shortens its life, else 0."""
    left_s = drone_end_at(context, kind) - context.now
    return float(int(left_s)) if left_s < (kind.walltime_s or NO_END) else 0.0


def life_too_short(
    context: PlanningContext, kind: DroneType, wanted_s: float = 0.0, start_in_s: float = 0.0
) -> reasons.Downtime | None:
    """Return the downtime that forbids a start in ``start_in_s`` for jobs of ``wanted_s``, or None."""
    until_s = downtime_at(context, kind.site) - DOWNTIME_MARGIN_S - context.now
    left_s = min(kind.walltime_s or NO_END, until_s - start_in_s)
    least_s = max(wanted_s, min(MIN_LIFE_S, kind.walltime_s or MIN_LIFE_S))
    if left_s >= least_s or (kind.walltime_s and wanted_s > kind.walltime_s):
        return None
    return reasons.Downtime(kind.site, downtime_at(context, kind.site), max(0.0, left_s), least_s)


@frozen
class PlanningContext:
    """A snapshot after its state changes, with what all rules need."""

    snapshot: Snapshot
    validity: ViewValidity
    breakers: Breakers
    drones: Mapping[DroneId, Drone]
    """Live drones, after the state changes."""
    unsettled: Sequence[Drone]
    """Drones but the settled ones, in the same order: few of a large site."""
    types: Mapping[TypeKey, DroneType]
    classes: tuple[model.JobClass, ...]
    """Job classes with waiting or fresh jobs; empty without a fresh view."""
    headroom: tuple[model.JobClass, ...]
    """Headroom as classes of virtual jobs, which are served last."""
    compatible: Mapping[str, CompatibleTypes]
    """By class id: the drone types that can run its jobs, without those on which the class or its user backs off."""
    class_backoffs: ClassBackoffs
    exclusive: ExclusiveUsers
    orphan_counts: Mapping[str, int]
    """By site: listed drones without a live record. They count against the limits until they are gone."""
    too_unhealthy: Reason | None
    costs: StartCosts
    late: frozenset[DroneId]
    """Drones that are delayed at their site (:func:`delayed_drones`)."""
    names: ClassNames

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        validity: ViewValidity,
        moves: Sequence[model.StateChange],
        breakers: Breakers,
    ) -> PlanningContext:
        """Derive the context from a snapshot."""
        live = dict(snapshot.drones)
        for move in moves:
            if move.drone.state.ended:
                del live[move.drone.id]
            else:
                live[move.drone.id] = move.drone
        unsettled = [live[drone.id] for drone, *_ in validity.news if drone.id in live]
        view = snapshot.overlay.view if validity.overlay is None else None
        # What the overlay's own limits hold back is no demand.
        classes = tuple(
            replace(job, waiting=max(0, job.waiting - job.limited)) if job.limited else job
            for job in (view.classes if view else ())
            if job.waiting > 0 or job.fresh > 0
        )
        headroom = headroom_classes(snapshot.policy, snapshot.types, snapshot.now) if view else ()
        known = compatibility_cache(snapshot.types, snapshot.policy)
        class_backoffs = ClassBackoffs.of(breakers, unsettled)
        compatible = dict(known.table((*classes, *headroom)))
        for class_id, banned in class_backoffs.banned.items():
            if fits := compatible.get(class_id):
                compatible[class_id] = fits.only(
                    kind for kind in fits.kinds if kind.key not in banned
                )
        costs = StartCosts.of(snapshot.policy, snapshot.estimates, known.by_key)
        exclusive = ExclusiveUsers.of(snapshot.policy, breakers, classes, compatible)
        compatible |= exclusive.compatible
        return cls(
            snapshot=snapshot,
            validity=validity,
            breakers=breakers,
            drones=live,
            unsettled=unsettled,
            types=known.by_key,
            classes=classes,
            headroom=headroom,
            compatible=compatible,
            class_backoffs=class_backoffs,
            exclusive=exclusive,
            orphan_counts=_orphan_counts(snapshot, live),
            too_unhealthy=_too_many_unhealthy(snapshot.policy, unsettled, len(live)),
            costs=costs,
            late=delayed_drones(snapshot, validity, costs, unsettled),
            names=ClassNames(snapshot.overlay.view, headroom),
        )

    @property
    def now(self) -> float:
        return self.snapshot.now

    @property
    def slots(self) -> Mapping[DroneId, Slot]:
        """Alive slots of drones for jobs in a fresh view; empty without one."""
        return self.validity.slots

    def can_act_on(self, drone: Drone) -> bool:
        """Return True if the view of the drone's site is valid, so that orders may be given there."""
        return self.validity.sites.get(drone.site, _UNKNOWN_SITE) is None

    def remote(self, drone: Drone) -> model.RemoteDrone | None:
        """Return the drone in the valid view of its site, or None."""
        view = self.validity.views.get(drone.site)
        return view.drones.get(drone.id) if view is not None else None


def _orphan_counts(snapshot: Snapshot, live: Mapping[DroneId, Drone]) -> Mapping[str, int]:
    """Count listed drones without a live record by site, in the newest good view, however old.

    Drones whose records this plan ends for an operator (:mod:`retirement`) count already, if
    another site lists them.
    """
    kills = (
        i
        for request in snapshot.requests
        if request.kind is model.RequestKind.KILL
        for i in request.drone_ids
    )
    written_off = {i for i in kills if i in live and live[i].site not in snapshot.policy.sites}
    count: dict[str, int] = {}
    for name, polled in snapshot.sites.items():
        if polled.view is not None:
            listed = polled.view.drones
            unknown = (
                *filterfalse(live.__contains__, listed),
                *(i for i in written_off if i in listed),
            )
            count[name] = sum(1 for i in unknown if listed[i].state is not model.RemoteState.ENDED)
    return count


def _too_many_unhealthy(policy: Policy, drones: Iterable[Drone], of: int) -> Reason | None:
    """Return the reason to pause if more drones are unhealthy than can be their own fault."""
    unseen = [drone for drone in drones if drone.missing_at or drone.unslotted_at]
    ill = sum(map(_should_be_there, unseen))
    if ill < policy.min_unhealthy or ill <= policy.max_unhealthy_fraction * of:
        return None
    return reasons.TooManyUnhealthy(ill, of, policy.max_unhealthy_fraction)
