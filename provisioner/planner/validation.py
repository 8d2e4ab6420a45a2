"""Independent validation of plans: it shares no code with the planner and names the actions that break a promise.

It works from the snapshot and the plan alone, by counting. A promise is a function of
:data:`PROMISES`. None relies on another one: each can be checked in any plan, whatever else is
wrong with it. The actions that a breach names are left out of the plan
(:mod:`provisioner.planner.safeguards`), and the rest is checked again: so a breach names no more
actions than must go for its promise.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import attrgetter
from typing import NamedTuple, TypeVar

from provisioner import model
from provisioner.descriptions import ClassNames
from provisioner.keys import Scope, site_of
from provisioner.model import (
    BreakerState,
    Drain,
    DrainMode,
    DroneId,
    DroneState,
    DroneType,
    Plan,
    RemoteState,
    Snapshot,
    Start,
    Stop,
)
from provisioner.values import frozen

# The only grounds on which a drone that has a job may be asked to end (by ``kind`` of the reason).
_MAY_STOP_BUSY = frozenset(
    {
        "operator-requested",
        "preempted-for-owner",
        "reserve-reclaimed",
        "state-timeout",
        "left-pool",
        "requeued",
    }
)
_MAY_DRAIN_BUSY = _MAY_STOP_BUSY | {
    "type-removed",
    "demand-returned",
    "drain-at-risk",
    "node-reserved",
    "black-hole",
    "optional-jobs-only",
    "surplus-server",
    "server-yields",
    "server-ends",
}
_STARTS_SERVERS = ("service-requested", "service-announced", "service-minimum")
_QUEUED_STATES = (DroneState.SUBMITTED, DroneState.QUEUED)
_ON_THE_WAY = (DroneState.REQUESTED, *_QUEUED_STATES, DroneState.BOOTING)
_cap_key = attrgetter("type", "gpu_milli", "state")
_amounts = attrgetter("gpu_milli", "cpus", "memory_mib", "disk_mib")
_free = attrgetter("free_gpu_milli", "free_cpus", "free_memory_mib")
_sizes = attrgetter("gpu_milli", "vram_mib", "capability", "cpus", "memory_mib")

Action = Start | Drain | Stop | model.StopOrphan
A = TypeVar("A", bound=Action)


@frozen
class Breach:
    """A promise that a plan breaks, and the actions without which it would keep it; none if none is to blame."""

    text: str
    actions: tuple[Action, ...] = ()

    def __str__(self) -> str:
        return self.text


Breaches = Iterator[Breach]


def validate_plan(snapshot: Snapshot, plan: Plan) -> tuple[Breach, ...]:
    """Return the promises that a plan breaks; empty if it keeps them all."""
    if not plan.acts:  # it asks nobody for anything
        return ()
    check = PlanCheck(snapshot, plan)
    return tuple(breach for promise in PROMISES for breach in promise(check))


class PlanCheck:
    """A plan and its snapshot, with what several promises look up."""

    def __init__(self, snapshot: Snapshot, plan: Plan) -> None:
        self.snapshot = snapshot
        self.plan = plan
        self.types: dict[str, DroneType] = {kind.key: kind for kind in snapshot.types}
        polled = snapshot.sites.items()
        self.views = {name: site.view for name, site in polled if site.view is not None}
        self.moved = {move.drone.id: move.drone for move in plan.moves}
        """Drones whose state the plan changes, as they are afterwards."""
        self.breakers = {**snapshot.breakers, **{each.scope: each for each in plan.breakers}}
        view = snapshot.overlay.view
        self.names = ClassNames(view)
        self.classes = {job.id: job for job in view.classes} if view is not None else {}
        self.starts = [
            (
                start,
                None if start.drone.service else self.classes.get(start.drone.for_class),
                self.types.get(start.drone.type),
            )
            for start in plan.starts
        ]
        """Starts with their job class and drone type, None if these do not exist."""
        self.warm = {f"headroom:{each.name}": each.count for each in snapshot.policy.headroom}
        """Drones that each headroom wants, by the class id of its starts."""

    def has_ended(self, drone_id: DroneId) -> bool:
        return drone_id in self.moved and self.moved[drone_id].state.ended

    @cached_property
    def in_use(self) -> Counter[str]:
        """Amounts that count against limits, after the plan's own changes of state, by the limits' names."""
        live = {**self.snapshot.drones, **self.moved}
        for drone_id in filter(self.has_ended, self.moved):
            del live[drone_id]
        use = Counter[str]()
        # 100,000 drones have few different keys.
        for (key, gpu_milli, state), count in Counter(map(_cap_key, live.values())).items():
            site = site_of(key)
            use[f"drones of {key}"] += count
            use[f"drones on their way at {site}"] += count * (state in _ON_THE_WAY)
            for where in ("in all", f"at {site}"):
                use[f"drones {where}"] += count
                use[f"GPUs {where}"] += count * gpu_milli
        for site, view in self.views.items():
            listed = view.drones if self.snapshot.sites[site].fault is None else {}
            unknown = [listed[drone_id].state for drone_id in listed if drone_id not in live]
            count = sum(state is not RemoteState.ENDED for state in unknown)
            # Of which type they are is not known for sure: each counts as the largest.
            sizes = [kind.gpu_milli for kind in self.snapshot.types if kind.site == site]
            for where in ("in all", f"at {site}"):
                use[f"drones {where}"] += count
                use[f"GPUs {where}"] += count * max(sizes, default=0)
        return use

    @cached_property
    def owners(self) -> list[OwnerCheck]:
        stops = [
            stop
            for stop in self.plan.stops
            if stop.reason.kind == "preempted-for-owner"
            and stop.was not in _QUEUED_STATES
            and stop.drone.type in self.types
        ]
        return [
            OwnerCheck(
                site,
                self.views[site].claims if site in self.views else (),
                _grouped(mine, "drone.node"),
            )
            for site, mine in _grouped(stops, "drone.site").items()
        ]


class OwnerCheck(NamedTuple):
    """Waiting jobs of the owner of a site, and the drones that leave for them, by node."""

    site: str
    claims: Sequence[model.OwnerDemand]
    leaving: Mapping[str, Sequence[Stop]]


def _grouped(actions: Iterable[A], key: str) -> Mapping[str, list[A]]:
    """Return the actions by one of their attributes, in their order."""
    found = defaultdict[str, list[A]](list)
    for action in actions:
        found[attrgetter(key)(action)].append(action)
    return found


def _by_operator(action: Action) -> bool:
    return action.reason.kind == "operator-requested"


def _beyond(
    what: str,
    asks: Sequence[tuple[Start, int]],
    allowed: int | None,
    used: int = 0,
    unit: int = 1,
    who: str = "",
    are: str = "allowed",
) -> Breaches:
    """Yield a breach that names the starts whose amounts, after the earlier ones and ``used``, exceed ``allowed``.

    A start that adds nothing to a limit does not exceed it.
    """
    if allowed is None:
        return
    named: list[Start] = []
    count = used
    for start, amount in asks:
        count += amount
        if amount and count > allowed:
            named.append(start)
    if named:
        asked, limit = (count, allowed) if unit == 1 else (count / unit, allowed / unit)
        yield Breach(f"{who}{asked} {what}, {limit} {are}", tuple(named))


# --- promises about the drones that are asked


def one_order_each(check: PlanCheck) -> Breaches:
    """Ask one thing of a drone. The operator's order is kept, else the first."""
    asked: dict[tuple[str, str], list[Action]] = defaultdict(list)
    for action in check.plan.asks:
        asked[action.drone.id, ""].append(action)
    # Two sites may list the same orphan by mistake: each is asked to end its own.
    for orphan in check.plan.orphans:
        key = orphan.drone_id, orphan.site
        asked.setdefault(key, list(asked.get((orphan.drone_id, ""), ()))).append(orphan)
    for (drone_id, _), actions in asked.items():
        if len(actions) > 1:
            kept = next((n for n, action in enumerate(actions) if _by_operator(action)), 0)
            others = (*actions[:kept], *actions[kept + 1 :])
            yield Breach(f"{drone_id} is asked for {len(actions)} things at once", others)


def known_drones_leave(check: PlanCheck) -> Breaches:
    """Ask only drones to leave that are on record and have not ended."""
    for action in check.plan.leaves:
        if action.drone.id not in check.snapshot.drones:
            yield Breach(f"{action.drone.id} is asked to leave but is not on record", (action,))
        if check.has_ended(action.drone.id):
            yield Breach(f"{action.drone.id} has ended and is asked to leave", (action,))


def orphans_have_no_record(check: PlanCheck) -> Breaches:
    """Stop as an orphan only a drone without a live record."""
    for orphan in check.plan.orphans:
        if orphan.drone_id in check.snapshot.drones and not check.has_ended(orphan.drone_id):
            yield Breach(f"{orphan.drone_id} is stopped as an orphan but is on record", (orphan,))


def jobs_are_left_alone(check: PlanCheck) -> Breaches:
    """End a drone with a job only for one of the few good reasons."""
    for action in check.plan.leaves:
        now_known = check.moved.get(action.drone.id) or check.snapshot.drones.get(action.drone.id)
        if now_known is None or not now_known.jobs or action.reason.kind in _grounds(check, action):
            continue
        text = f"{action.drone.id} has {now_known.jobs} jobs and is asked to leave because {action.reason.kind}"
        if not (isinstance(action, Drain) and action.mode is DrainMode.RESUME):
            yield Breach(text, (action,))


def _grounds(check: PlanCheck, action: Drain | Stop) -> frozenset[str]:
    """Return the kinds of reasons for which a drone with a job may get an order."""
    if not isinstance(action, Drain):
        return _MAY_STOP_BUSY
    was = check.snapshot.drones.get(action.drone.id)
    repeats = was is not None and was.state is DroneState.DRAINING
    if was is not None and repeats and was.drain_mode is action.mode:
        return _MAY_DRAIN_BUSY | {"drain-repeated"}
    return _MAY_DRAIN_BUSY


# --- promises about views


def fresh_view_of_the_pool(check: PlanCheck) -> Breaches:
    """Start and drain nothing without a fresh view of its pool: the overlay, or the services."""
    snapshot = check.snapshot
    pools = (("overlay", snapshot.overlay, False), ("services", snapshot.services, True))
    for name, polled, of_services in pools:
        seen_at = polled.view.taken_at if polled.view is not None and not polled.fault else None
        max_age_s = snapshot.policy.overlay_max_age_s
        is_fresh = seen_at is not None and snapshot.now - seen_at <= max_age_s
        starts = [a for a in check.plan.starts if bool(a.drone.service) is of_services]
        drains = [a for a in check.plan.drains if bool(a.drone.service) is of_services]
        if not is_fresh and (starts or drains):
            text = (
                f"{len(starts)} starts and {len(drains)} drains without a fresh view of the {name}"
            )
            yield Breach(text, (*starts, *drains))


def fresh_views_of_sites(check: PlanCheck) -> Breaches:
    """Ask nothing of a site without a fresh view of it, but for operators."""
    touched: dict[str, list[Action]] = defaultdict(list)
    for action in check.plan.asks:
        if not _by_operator(action):
            touched[action.drone.site].append(action)
    for orphan in check.plan.orphans:
        touched[orphan.site].append(orphan)
    for site, actions in touched.items():
        view = check.views.get(site)
        limits = check.snapshot.policy.sites.get(site)
        if view is None or limits is None:
            yield Breach(f"{len(actions)} actions at {site}, which was never seen", tuple(actions))
            continue
        is_old = check.snapshot.now - view.taken_at > limits.view_max_age_s
        if is_old or check.snapshot.sites[site].fault is not None:
            text = f"{len(actions)} actions at {site} without a fresh view of it"
            yield Breach(text, tuple(actions))


# --- promises about limits


def limits_of_all(check: PlanCheck) -> Breaches:
    """Keep the limits of the policy."""
    starts = check.plan.starts
    policy = check.snapshot.policy
    yield from _beyond_limit(check, starts, "drones in all", policy.max_drones)
    yield from _beyond_limit(check, starts, "GPUs in all", policy.max_gpu_milli, of_gpus=True)


def limits_of_sites(check: PlanCheck) -> Breaches:
    """Keep the limits of each site, and start nothing at one that is not enabled."""
    for site, starts in _grouped(check.plan.starts, "drone.site").items():
        limits = check.snapshot.policy.sites.get(site)
        if limits is None or not limits.enabled or site in check.snapshot.disabled:
            yield Breach(f"{len(starts)} starts at {site}, which is not enabled", tuple(starts))
            continue
        for what, allowed in (
            ("drones", limits.max_drones),
            ("drones on their way", limits.max_pending),
            ("starts at once", limits.max_starts_per_tick),
        ):
            yield from _beyond_limit(check, starts, f"{what} at {site}", allowed)
        milli = limits.max_gpu_milli
        yield from _beyond_limit(check, starts, f"GPUs at {site}", milli, of_gpus=True)


def limits_of_types(check: PlanCheck) -> Breaches:
    """Keep the limit of each drone type, and start none that is not configured."""
    for key, starts in _grouped(check.plan.starts, "drone.type").items():
        if key in check.types:
            yield from _beyond_limit(check, starts, f"drones of {key}", check.types[key].max_drones)
        else:
            yield Breach(f"{key} is started but is not configured", tuple(starts))


def _beyond_limit(
    check: PlanCheck,
    starts: Sequence[Start],
    what: str,
    allowed: int | None,
    *,
    of_gpus: bool = False,
) -> Breaches:
    if starts:
        asks = [(start, start.drone.gpu_milli if of_gpus else 1) for start in starts]
        unit = 1000 if of_gpus else 1
        yield from _beyond(what, asks, allowed, check.in_use[what], unit)


# --- promises to owners


def nodes_for_owner(check: PlanCheck) -> Breaches:
    """Free no more nodes for the owner of a site than their jobs wait."""
    for site, claims, leaving in check.owners:
        jobs = sum(claim.count for claim in claims)
        nodes = list(leaving)
        if len(nodes) > jobs:
            text = (
                f"drones on {len(nodes)} nodes of {site} leave for {jobs} waiting jobs of its owner"
            )
            yield Breach(text, tuple(stop for node in nodes[jobs:] for stop in leaving[node]))


def drones_for_owner(check: PlanCheck) -> Breaches:
    """Let no drone leave a node if the others that leave it free enough for all of the owner's waiting jobs."""
    for site, claims, leaving in check.owners:
        limits = check.snapshot.policy.sites.get(site)
        if limits is not None and limits.blocking:
            continue  # then freed GPUs keep some of what is freed
        wanted = [sum(claim.count * _amounts(claim)[i] for claim in claims) for i in range(4)]
        for node, stops in leaving.items():
            freed = zip(*(_amounts(check.types[stop.drone.type]) for stop in stops), strict=True)
            spared = [sum(amounts) - max(amounts) for amounts in freed]
            if all(left >= want for left, want in zip(spared, wanted, strict=True)):
                text = f"{len(stops)} drones leave {node} of {site}, more than all of its owner's waiting jobs need"
                yield Breach(text, (stops[-1],))


def room_on_nodes(check: PlanCheck) -> Breaches:
    """Start no more at a site without a queue than is free on its nodes."""
    for site, nodes, starts in _on_nodes(check):
        for i, what in enumerate(("milli-GPU", "CPUs", "MiB of memory")):
            asks = [(start, _amounts(kind)[i]) for start, kind in starts]
            free = sum(_free(node)[i] for node in nodes)
            who = f"starts at {site} ask for "
            yield from _beyond(what, asks, free, who=who, are="are free")


def cpus_for_free_gpus(check: PlanCheck) -> Breaches:
    """Leave the CPUs on the nodes of a blocked site that are kept for its free GPUs."""
    for site, nodes, starts in _on_nodes(check):
        rules = check.snapshot.policy.sites[site].blocking
        if rules and all("*" in rule.nodes for rule in rules):
            kept = rules[0].cpus
            left = (node.free_cpus - kept * node.free_gpu_milli // 1000 for node in nodes)
            asks = [(start, kind.cpus) for start, kind in starts if not kind.gpu_milli]
            who = f"CPU drones at {site} ask for "
            yield from _beyond(
                "CPUs",
                asks,
                sum(max(0, cpus) for cpus in left),
                who=who,
                are="are not kept for free GPUs",
            )


def _on_nodes(
    check: PlanCheck,
) -> Iterator[tuple[str, Sequence[model.Node], list[tuple[Start, DroneType]]]]:
    """Yield each site whose nodes are known and that has no queue, with its nodes and the starts there, if any."""
    for site, view in check.views.items():
        limits = check.snapshot.policy.sites.get(site)
        starts = [(start, kind) for start, _, kind in check.starts if kind and kind.site == site]
        if starts and view.nodes and limits is not None and not limits.queue_when_full:
            yield site, view.nodes, starts


# --- promises about starts


def starts_for_demand(check: PlanCheck) -> Breaches:
    """Start no more drones for a class than its jobs wait, or than its headroom wants."""
    for_jobs = [start for start in check.plan.starts if not start.drone.service]
    for class_id, starts in _grouped(for_jobs, "drone.for_class").items():
        job = check.classes.get(class_id)
        text = f"{len(starts)} drones are started for "
        if class_id in check.warm:
            wanted = check.warm[class_id]
            text += f"{class_id}, which wants {wanted}"
        elif job is not None and job.waiting > 0:
            wanted = job.waiting
            text += f"{wanted} waiting jobs of class {check.names.of(class_id)}"
        else:
            wanted = 0
            text += f"class {check.names.of(class_id)}, of which nothing waits"
        if len(starts) > wanted:
            yield Breach(text, tuple(starts[wanted:]))


def new_drones(check: PlanCheck) -> Breaches:
    """Start a drone only under an id that was never used, and record it before it is ordered."""
    first = check.snapshot.next_serial
    for start in check.plan.starts:
        serial = start.drone.id.rpartition("-")[2]
        if start.drone.id in check.snapshot.drones:
            yield _of(start, "is started but is on record already")
        if not serial.isdigit() or int(serial) < first:
            yield _of(start, f"may have been used before: serials from {first} on are free")
        if start.drone.state is not DroneState.REQUESTED:
            yield _of(start, f"starts its life as {start.drone.state}")


def nothing_banned(check: PlanCheck) -> Breaches:
    """Start nothing that is banned: neither at the site, nor of the type, nor of the type for the class."""
    for start in check.plan.starts:
        kind = Scope.parse(start.drone.type)
        of_class = replace(kind, class_id=start.drone.for_class)
        for scope in (Scope(kind.site), kind, of_class):
            breaker = check.breakers.get(scope)
            if breaker is not None and breaker.state is BreakerState.BANNED:
                until = f"{breaker.until:.0f}"
                yield _of(
                    start,
                    f"is started although {check.names.in_key(str(scope))} is banned until {until}",
                )


def able_drones(check: PlanCheck) -> Breaches:
    """Start only drones that can run the jobs for which they are started: with GPUs, only jobs that need one."""
    for start, job, kind in check.starts:
        if job is None or kind is None:
            continue
        pairs = zip(_sizes(job), _sizes(kind), strict=True)
        too_small = any(need > offer for need, offer in pairs)
        for_gpu_jobs = (kind.gpu_milli and not job.gpu_milli) or kind.server is not None
        if job.invalid or kind.key in job.refuses or too_small or for_gpu_jobs:
            yield _of(start, f"of {kind.key} cannot run class {check.names.of(job.id)}")


def users_who_may_share(check: PlanCheck) -> Breaches:
    """Start no drone that shares a GPU for a user whose jobs cause faults."""
    limit = check.snapshot.policy.fault_limit
    for start, job, kind in check.starts:
        if job is not None and kind is not None and kind.shares_faults:
            user = check.breakers.get(Scope(user=job.owner))
            if user is not None and user.until and user.failures >= limit:
                yield _of(
                    start,
                    f"is shared, and the user of class {check.names.of(job.id)} may share no GPU",
                )


def willing_drones(check: PlanCheck) -> Breaches:
    """Start no drone that refuses the jobs for which it is started."""
    for start, job, _ in check.starts:
        rule = start.drone.job_filter.refuses(job, at_first=True) if job is not None else ""
        if job is not None and rule:
            name = check.names.of(job.id)
            yield _of(start, f"is started for class {name} and refuses its jobs: {rule}")


def lives_before_downtimes(check: PlanCheck) -> Breaches:
    """Start no drone that would live into a downtime of its site."""
    for start, _, kind in check.starts:
        site = start.drone.site
        down_at = check.views[site].downtime_at if site in check.views else 0.0
        left_s = down_at - check.snapshot.now
        lives_s = start.walltime_s or (kind.walltime_s if kind is not None else 0.0)
        if left_s > 0 and not 0 < lives_s <= left_s:
            yield _of(start, f"is started to live into the downtime of {site}")


def reasons_of_starts(check: PlanCheck) -> Breaches:
    """Give the reason that the class calls for: waiting jobs, or headroom."""
    for start in check.plan.starts:
        if start.drone.service:
            if start.reason.kind not in _STARTS_SERVERS:
                yield _of(start, f"is started because {start.reason.kind}")
            continue
        is_warm = start.drone.for_class in check.warm
        if start.reason.kind != ("headroom-short" if is_warm else "jobs-waiting"):
            yield _of(start, f"is started because {start.reason.kind}")


# --- promises about inference services


def servers_of_services(check: PlanCheck) -> Breaches:
    """Start a server only for a configured service, of a type that has one of it, and where something calls for it."""
    services = {service.name: service for service in check.snapshot.policy.services}
    for start, _, kind in check.starts:
        name = start.drone.service
        served = kind.server.service if kind is not None and kind.server is not None else ""
        if name != served:
            yield _of(start, f"is started for service {name!r} and is of service {served!r}")
        elif name and name not in services:
            yield _of(start, f"is started for service {name}, which is not configured")
        elif name and not services[name].at_least and not _is_called(check, name):
            yield _of(start, f"is started for service {name}, for which nothing calls")


def _is_called(check: PlanCheck, name: str) -> bool:
    """Return True if requests come to a service, or jobs announce a model of it."""
    view = check.snapshot.services.view
    for each in view.services if view is not None else ():
        if each.name == name and (each.requests_per_s or each.in_flight or each.queued):
            return True
    served = [kind.server for kind in check.types.values() if kind.server is not None]
    models = {model for each in served if each.service == name for model in each.models}
    models |= {model.partition(":")[0] for model in models}
    called = (job for job in check.classes.values() if models.intersection(job.inference))
    return any(job.waiting or job.fresh or job.running for job in called)


def servers_within_bounds(check: PlanCheck) -> Breaches:
    """Keep at most so many servers of a service, and drain none below its least number."""
    for service in check.snapshot.policy.services:
        mine = [
            check.moved.get(drone_id, drone)
            for drone_id, drone in check.snapshot.drones.items()
            if drone.service == service.name
        ]
        live = [each for each in mine if not (each.is_leaving or each.state.ended)]
        # a successor comes before the other has ended
        lasting = [each for each in live if not _is_ending(check, each)]
        starts = [s for s in check.plan.starts if s.drone.service == service.name]
        asks = [(start, 1) for start in starts]
        yield from _beyond(f"servers of {service.name}", asks, service.at_most, len(lasting))
        spare = [
            action
            for action in check.plan.leaves
            if action.drone.service == service.name
            and action.reason.kind in ("surplus-server", "server-yields")
        ]
        if spare and len(live) - len(spare) < service.at_least:
            text = f"{len(spare)} of {len(live)} servers of {service.name} leave, at least {service.at_least} are kept"
            yield Breach(text, tuple(spare[max(0, len(live) - service.at_least) :]))


def _is_ending(check: PlanCheck, drone: model.Drone) -> bool:
    """Return True if less than half of the life of a drone is left, or its site ends it."""
    kind = check.types.get(drone.type)
    walltime_s = kind.walltime_s if kind is not None else 0.0
    view = check.views.get(drone.site)
    over = (
        walltime_s and drone.started_at and check.snapshot.now - drone.started_at > walltime_s / 2
    )
    return bool(over or drone.notice_at or (view is not None and view.downtime_at))


def _of(start: Start, broken: str) -> Breach:
    return Breach(f"{start.drone.id} {broken}", (start,))


PROMISES: tuple[Callable[[PlanCheck], Breaches], ...] = (
    one_order_each,
    new_drones,
    known_drones_leave,
    orphans_have_no_record,
    limits_of_all,
    limits_of_sites,
    limits_of_types,
    fresh_view_of_the_pool,
    fresh_views_of_sites,
    nothing_banned,
    jobs_are_left_alone,
    nodes_for_owner,
    drones_for_owner,
    room_on_nodes,
    cpus_for_free_gpus,
    starts_for_demand,
    able_drones,
    users_who_may_share,
    willing_drones,
    lives_before_downtimes,
    reasons_of_starts,
    servers_of_services,
    servers_within_bounds,
)
"""Promises of a plan, in the order of their messages."""
