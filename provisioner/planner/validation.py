"""Independent validation of plans: it shares no code with the planner and names the actions that break a promise.

It works from the snapshot and the plan alone, by counting. What it names is left out of the plan
(:mod:`provisioner.planner.safeguards`); the rest is carried out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

from provisioner import model
from provisioner.keys import Scope, site_of
from provisioner.model import (
    BreakerState,
    Drain,
    DrainMode,
    DroneState,
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
        "seen-at-site",
    }
)
_cap_key = attrgetter("type", "gpu_milli", "state")
_amounts = attrgetter("gpu_milli", "cpus", "memory_mib", "disk_mib")
_QUEUED_STATES = (DroneState.SUBMITTED, DroneState.QUEUED)
_MAY_DRAIN_BUSY = _MAY_STOP_BUSY | {
    "type-removed",
    "demand-returned",
    "drain-at-risk",
    "node-reserved",
    "black-hole",
    "optional-jobs-only",
}

Action = Start | Drain | Stop | model.StopOrphan


@frozen
class Breach:
    """A promise that a plan breaks, and the actions without which it would keep it; none if none is to blame."""

    text: str
    actions: tuple[Action, ...] = ()

    def __str__(self) -> str:
        return self.text


def validate_plan(snapshot: Snapshot, plan: Plan) -> tuple[Breach, ...]:
    """Return the promises that a plan breaks; empty if it keeps them all."""
    if not plan.acts:  # it asks nobody for anything
        return ()
    return tuple(breach for promise in PROMISES for breach in promise(snapshot, plan))


def _duplicates(snapshot: Snapshot, plan: Plan) -> Iterator[Breach]:
    """Yield drones that are asked for two things, and ids that are used or unknown."""
    asked: dict[tuple[str, str], list[Action]] = defaultdict(list)
    for action in plan.asks:
        asked[action.drone.id, ""].append(action)
    # Two sites may list the same stray by mistake: each is asked to end its own.
    for orphan in plan.orphans:
        key = orphan.drone_id, orphan.site
        asked.setdefault(key, list(asked.get((orphan.drone_id, ""), ()))).append(orphan)
    for (drone_id, _), actions in asked.items():
        if len(actions) > 1:
            kept = next((n for n, action in enumerate(actions) if _by_operator(action)), 0)
            others = (*actions[:kept], *actions[kept + 1 :])
            yield Breach(f"{drone_id} is asked for {len(actions)} things at once", others)
    for start in plan.starts:
        if start.drone.id in snapshot.drones:
            yield Breach(f"{start.drone.id} is started but is on record already", (start,))
        serial = start.drone.id.rpartition("-")[2]
        if not serial.isdigit() or int(serial) < snapshot.next_serial:
            text = f"{start.drone.id} may have been used before: serials from {snapshot.next_serial} on are free"
            yield Breach(text, (start,))
        if start.drone.state is not DroneState.REQUESTED:
            yield Breach(f"{start.drone.id} starts its life as {start.drone.state}", (start,))
    ended = {m.drone.id for m in plan.moves if m.drone.state.ended}
    for action in plan.leaves:
        if action.drone.id not in snapshot.drones:
            yield Breach(f"{action.drone.id} is asked to leave but is not on record", (action,))
        if action.drone.id in ended:
            yield Breach(f"{action.drone.id} has ended and is asked to leave", (action,))
    for orphan in plan.orphans:
        if orphan.drone_id in snapshot.drones and orphan.drone_id not in ended:
            yield Breach(f"{orphan.drone_id} is stopped as a stray but is on record", (orphan,))


def _caps(snapshot: Snapshot, plan: Plan) -> Iterator[Breach]:
    """Yield limits that the plan's starts exceed. A start that adds nothing to a limit does not exceed it."""
    if not plan.starts:
        return
    drones: Counter[str] = Counter()
    milli: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    pending: Counter[str] = Counter()
    live = {**snapshot.drones, **{m.drone.id: m.drone for m in plan.moves}}
    for drone_id in [m.drone.id for m in plan.moves if m.drone.state.ended]:
        del live[drone_id]
    for (key, gpu_milli, state), count in Counter(map(_cap_key, live.values())).items():
        site = site_of(key)
        drones[site] += count
        kinds[key] += count
        milli[site] += count * gpu_milli
        pending[site] += (
            count if state.value in ("requested", "submitted", "queued", "booting") else 0
        )
    for site, polled in snapshot.sites.items():
        if polled.view is not None and polled.fault is None:
            listed = polled.view.drones
            unknown = sum(listed[i].state is not RemoteState.ENDED for i in listed if i not in live)
            # Of which type they are is not known for sure: each counts as the largest.
            largest = max((t.gpu_milli for t in snapshot.types if t.site == site), default=0)
            drones[site] += unknown
            milli[site] += unknown * largest
    policy, types = snapshot.policy, {t.key: t for t in snapshot.types}
    every = [(start, 1) for start in plan.starts]
    gpus = [(start, start.drone.gpu_milli) for start in plan.starts]
    yield from _beyond("drones in all", every, policy.max_drones, drones.total())
    yield from _beyond("GPUs in all", gpus, policy.max_gpu_milli, milli.total(), 1000)
    for site in dict.fromkeys(start.drone.site for start in plan.starts):
        limits = policy.sites.get(site)
        mine = [ask for ask in every if ask[0].drone.site == site]
        if limits is None or not limits.enabled or site in snapshot.disabled:
            yield Breach(
                f"{len(mine)} starts at {site}, which is not enabled",
                tuple(start for start, _ in mine),
            )
            continue
        my_gpus = [ask for ask in gpus if ask[0].drone.site == site]
        yield from _beyond(f"drones at {site}", mine, limits.max_drones, drones[site])
        yield from _beyond(f"GPUs at {site}", my_gpus, limits.max_gpu_milli, milli[site], 1000)
        yield from _beyond(
            f"drones on their way at {site}", mine, limits.max_pending, pending[site]
        )
        yield from _beyond(f"starts at once at {site}", mine, limits.max_starts_per_tick)
    for key in {start.drone.type for start in plan.starts}:
        of_kind = [ask for ask in every if ask[0].drone.type == key]
        if key not in types:
            yield Breach(
                f"{key} is started but is not configured", tuple(start for start, _ in of_kind)
            )
        else:
            yield from _beyond(f"drones of {key}", of_kind, types[key].max_drones, kinds[key])


def _beyond(
    what: str,
    asks: Sequence[tuple[Start, int]],
    allowed: int | None,
    used: int = 0,
    unit: int = 1,
    who: str = "",
    are: str = "allowed",
) -> Iterator[Breach]:
    """Yield a breach that names the starts whose amounts, after the earlier ones and ``used``, exceed ``allowed``."""
    named, count = [], used
    for start, amount in asks:
        count += amount
        if allowed is not None and amount and count > allowed:
            named.append(start)
    if named and allowed is not None:
        asked, limit = (count, allowed) if unit == 1 else (count / unit, allowed / unit)
        yield Breach(f"{who}{asked} {what}, {limit} {are}", tuple(named))


def _unseen(snapshot: Snapshot, plan: Plan) -> Iterator[Breach]:
    """Yield actions that rest on no fresh view, and starts against a ban."""
    view, now = snapshot.overlay.view, snapshot.now
    seen = view is not None and snapshot.overlay.fault is None
    fresh = seen and view is not None and now - view.taken_at <= snapshot.policy.overlay_max_age_s
    if not fresh and (plan.starts or plan.drains):
        text = f"{len(plan.starts)} starts and {len(plan.drains)} drains without a fresh view of the overlay"
        yield Breach(text, (*plan.starts, *plan.drains))
    touched: dict[str, list[Action]] = defaultdict(list)
    for action in plan.asks:
        if not _by_operator(action):
            touched[action.drone.site].append(action)
    for orphan in plan.orphans:
        touched[orphan.site].append(orphan)
    for site, actions in touched.items():
        polled, limits = snapshot.sites.get(site), snapshot.policy.sites.get(site)
        if polled is None or polled.view is None or limits is None:
            yield Breach(f"{len(actions)} actions at {site}, which was never seen", tuple(actions))
        elif polled.fault is not None or now - polled.view.taken_at > limits.view_max_age_s:
            yield Breach(
                f"{len(actions)} actions at {site} without a fresh view of it", tuple(actions)
            )
    known = {**snapshot.breakers, **{b.scope: b for b in plan.breakers}}
    for start in plan.starts:
        kind = Scope.parse(start.drone.type)
        of_class = replace(kind, class_id=start.drone.for_class)
        for scope in (Scope(kind.site), kind, of_class):
            breaker = known.get(scope)
            if breaker is not None and breaker.state is BreakerState.BANNED:
                text = f"{start.drone.id} is started although {scope} is banned until {breaker.until:.0f}"
                yield Breach(text, (start,))


def _by_operator(action: Action) -> bool:
    return action.reason.kind == "operator-requested"


def _busy_drones(snapshot: Snapshot, plan: Plan) -> Iterator[Breach]:
    """Yield drones with a job that are ended without one of the few good reasons."""
    after = {m.drone.id: m.drone for m in plan.moves}
    for action in plan.leaves:
        grounds = _MAY_STOP_BUSY
        if isinstance(action, Drain):
            if action.mode is DrainMode.RESUME:
                continue
            grounds = _MAY_DRAIN_BUSY
            was = snapshot.drones.get(action.drone.id)
            if (
                was is not None
                and was.state is DroneState.DRAINING
                and was.drain_mode is action.mode
            ):
                grounds |= {"drain-repeated"}
        now_known = after.get(action.drone.id) or snapshot.drones.get(action.drone.id)
        if now_known is not None and now_known.jobs > 0 and action.reason.kind not in grounds:
            text = f"{action.drone.id} has {now_known.jobs} jobs and is asked to leave because {action.reason.kind}"
            yield Breach(text, (action,))


def _owners(snapshot: Snapshot, plan: Plan) -> Iterator[Breach]:
    """Yield stops that no owner's claim justifies, and starts beyond what is free on the nodes and not reserved."""
    types = {t.key: t for t in snapshot.types}
    views = {n: r.view for n, r in snapshot.sites.items() if r.view is not None}
    leave: dict[str, dict[str, list[Stop]]] = defaultdict(lambda: defaultdict(list))
    for stop in plan.stops:
        if stop.reason.kind == "preempted-for-owner":
            of_site = leave[stop.drone.site]
            if stop.was not in _QUEUED_STATES and stop.drone.type in types:
                of_site[stop.drone.node].append(stop)
    for site, nodes in leave.items():
        claims = views[site].claims if site in views else ()
        jobs = sum(claim.count for claim in claims)
        if len(nodes) > jobs:
            text = (
                f"drones on {len(nodes)} nodes of {site} leave for {jobs} waiting jobs of its owner"
            )
            yield Breach(text, tuple(stop for node in list(nodes)[jobs:] for stop in nodes[node]))
        limits = snapshot.policy.sites.get(site)
        # then freed GPUs keep some of what is freed
        blocked = limits is not None and limits.blocking
        wanted = [sum(claim.count * _amounts(claim)[i] for claim in claims) for i in range(4)]
        for node, stops in nodes.items():
            freed = list(zip(*(_amounts(types[stop.drone.type]) for stop in stops), strict=True))
            if not blocked and all(
                sum(row) - max(row) >= want for row, want in zip(freed, wanted, strict=True)
            ):
                text = f"{len(stops)} drones leave {node} of {site}, more than all of its owner's waiting jobs need"
                yield Breach(text, (stops[-1],))
    for site, view in views.items():
        limits = snapshot.policy.sites.get(site)
        mine = [s for s in plan.starts if s.drone.site == site and s.drone.type in types]
        if not view.nodes or limits is None or limits.queue_when_full or not mine:
            continue
        sizes = [(start, types[start.drone.type]) for start in mine]
        free = [(n.free_gpu_milli, n.free_cpus, n.free_memory_mib) for n in view.nodes]
        for i, what in enumerate(("milli-GPU", "CPUs", "MiB of memory")):
            asks = [(start, _amounts(kind)[i]) for start, kind in sizes]
            who = f"starts at {site} ask for "
            yield from _beyond(what, asks, sum(f[i] for f in free), who=who, are="are free")
        if limits.blocking and all("*" in rule.nodes for rule in limits.blocking):
            kept = limits.blocking[0].cpus
            rest = sum(max(0, cpus - kept * milli // 1000) for milli, cpus, _ in free)
            asks = [(start, kind.cpus) for start, kind in sizes if not kind.gpu_milli]
            who = f"CPU drones at {site} ask for "
            yield from _beyond("CPUs", asks, rest, who=who, are="are not kept for free GPUs")


def _start_reasons(snapshot: Snapshot, plan: Plan) -> Iterator[Breach]:
    """Yield starts for neither waiting jobs nor headroom, and starts that do not fit their reason."""
    waiting = {c.id: c for c in snapshot.overlay.view.classes} if snapshot.overlay.view else {}
    warm = {f"headroom:{h.name}": h.count for h in snapshot.policy.headroom}
    types = {t.key: t for t in snapshot.types}
    known = {**snapshot.breakers, **{b.scope: b for b in plan.breakers}}
    starts: dict[str, tuple[Start, ...]] = defaultdict(tuple)
    for start in plan.starts:
        starts[start.drone.for_class] += (start,)
    for class_id, mine in starts.items():
        job, count = waiting.get(class_id), len(mine)
        if class_id in warm:
            if count > warm[class_id]:
                text = f"{count} drones are started for {class_id}, which wants {warm[class_id]}"
                yield Breach(text, mine[warm[class_id] :])
        elif job is None or job.waiting <= 0:
            yield Breach(
                f"{count} drones are started for class {class_id}, of which nothing waits", mine
            )
        elif count > job.waiting:
            text = f"{count} drones are started for {job.waiting} waiting jobs of class {class_id}"
            yield Breach(text, mine[job.waiting :])
    for start in plan.starts:
        job, kind = waiting.get(start.drone.for_class), types.get(start.drone.type)
        if job is not None and kind is not None:
            needs = (job.gpu_milli, job.vram_mib, job.capability, job.cpus, job.memory_mib)
            offers = (kind.gpu_milli, kind.vram_mib, kind.capability, kind.cpus, kind.memory_mib)
            too_small = any(need > offer for need, offer in zip(needs, offers, strict=True))
            for_gpu_jobs = kind.gpu_milli and not job.gpu_milli
            if job.invalid or kind.key in job.refuses or too_small or for_gpu_jobs:
                yield Breach(f"{start.drone.id} of {kind.key} cannot run class {job.id}", (start,))
            user = known.get(Scope(user=job.owner))
            if (
                kind.shares_faults
                and user
                and user.until
                and user.failures >= snapshot.policy.fault_limit
            ):
                yield Breach(
                    f"{start.drone.id} is shared, and the user of class {job.id} may share no GPU",
                    (start,),
                )
        if job is not None and job.owner and job.owner in start.drone.avoids.split(","):
            yield Breach(
                f"{start.drone.id} is started for class {job.id} and avoids its user", (start,)
            )
        if job is not None and job.gpu_milli < start.drone.min_gpus * 1000:
            yield Breach(
                f"{start.drone.id} is started for class {job.id} and refuses jobs of so few GPUs",
                (start,),
            )
        polled = snapshot.sites.get(start.drone.site)
        down_at = polled.view.downtime_at if polled is not None and polled.view is not None else 0.0
        lives_s = start.walltime_s or (kind.walltime_s if kind is not None else 0.0)
        if down_at > snapshot.now and not 0 < lives_s <= down_at - snapshot.now:
            text = f"{start.drone.id} is started to live into the downtime of {start.drone.site}"
            yield Breach(text, (start,))
        if start.reason.kind != (
            "headroom-short" if start.drone.for_class in warm else "jobs-waiting"
        ):
            yield Breach(f"{start.drone.id} is started because {start.reason.kind}", (start,))


PROMISES: tuple[Callable[[Snapshot, Plan], Iterator[Breach]], ...] = (
    _duplicates,
    _caps,
    _unseen,
    _busy_drones,
    _owners,
    _start_reasons,
)
