"""An independent judge of plans. It shares no code with the planner: a plan that it faults is not acted on.

It works from the snapshot and the plan alone, by counting, and knows nothing of how the plan came about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from operator import attrgetter

from provisioner.model import (
    BreakerState,
    Claim,
    Drain,
    DrainMode,
    DroneState,
    Plan,
    RemoteState,
    Snapshot,
)

# The only grounds on which a drone that has a job may be asked to end (by ``kind`` of the reason).
_MAY_STOP_BUSY = frozenset(
    {"operator-asked", "owner-claim", "reserve-wanted", "stage-too-long", "out-of-pool", "seen-at-site"}
)
_counted = attrgetter("type", "gpu_milli", "state")
_WAITS = (DroneState.SUBMITTED, DroneState.QUEUED)
_MAY_DRAIN_BUSY = _MAY_STOP_BUSY | {"type-gone", "wanted-again", "exposed"}


def check(snapshot: Snapshot, plan: Plan) -> tuple[str, ...]:
    """What is wrong with a plan, a line each; empty if nothing is."""
    if not plan.acts:  # it asks nobody for anything
        return ()
    return tuple(
        (
            *_identities(snapshot, plan),
            *_caps(snapshot, plan),
            *_blindness(snapshot, plan),
            *_cruelty(snapshot, plan),
            *_owners(snapshot, plan),
            *_sense(snapshot, plan),
        )
    )


def _identities(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    asked = Counter(a.drone.id for a in plan.asks)
    asked.update(o.drone_id for o in plan.orphans)
    for drone_id, times in asked.items():
        if times > 1:
            yield f"{drone_id} is asked for {times} things at once"
    for start in plan.starts:
        if start.drone.id in snapshot.drones:
            yield f"{start.drone.id} is started but is on record already"
        serial = start.drone.id.rpartition("-")[2]
        if not serial.isdigit() or int(serial) < snapshot.next_serial:
            yield f"{start.drone.id} may have been used before: serials from {snapshot.next_serial} on are free"
        if start.drone.state is not DroneState.REQUESTED:
            yield f"{start.drone.id} starts its life as {start.drone.state}"
    for action in plan.leaves:
        if action.drone.id not in snapshot.drones:
            yield f"{action.drone.id} is asked to leave but is not on record"
    ended = {m.drone.id for m in plan.moves if m.drone.state.ended}
    for action in plan.leaves:
        if action.drone.id in ended:
            yield f"{action.drone.id} has ended and is asked to leave"
    for orphan in plan.orphans:
        if orphan.drone_id in snapshot.drones and orphan.drone_id not in ended:
            yield f"{orphan.drone_id} is stopped as a stray but is on record"


def _caps(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    if not plan.starts:
        return
    drones: Counter[str] = Counter()
    milli: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    pending: Counter[str] = Counter()
    waits = ("requested", "submitted", "queued", "booting")
    live = {**snapshot.drones, **{m.drone.id: m.drone for m in plan.moves}}
    for drone_id in [m.drone.id for m in plan.moves if m.drone.state.ended]:
        del live[drone_id]
    for (key, gpu_milli, state), count in Counter(map(_counted, live.values())).items():
        site = key.partition("/")[0]
        drones[site] += count
        kinds[key] += count
        milli[site] += count * gpu_milli
        pending[site] += count if state.value in waits else 0
    for site, reading in snapshot.sites.items():
        if reading.view is not None and reading.fault is None:
            listed = reading.view.drones
            unknown = [i for i in listed if i not in live]
            drones[site] += sum(listed[i].state is not RemoteState.ENDED for i in unknown)
    starts = Counter(s.drone.site for s in plan.starts)
    for start in plan.starts:
        drones[start.drone.site] += 1
        kinds[start.drone.type] += 1
        milli[start.drone.site] += start.drone.gpu_milli
    policy = snapshot.policy
    if drones.total() > policy.max_drones:
        yield f"{drones.total()} drones in all, {policy.max_drones} allowed"
    if policy.max_gpu_milli is not None and milli.total() > policy.max_gpu_milli:
        yield f"{milli.total() / 1000} GPUs in all, {policy.max_gpu_milli / 1000} allowed"
    for site, count in starts.items():
        limits = policy.sites.get(site)
        if limits is None or not limits.enabled:
            yield f"{count} starts at {site}, which is not enabled"
            continue
        if drones[site] > limits.max_drones:
            yield f"{drones[site]} drones at {site}, {limits.max_drones} allowed"
        if limits.max_gpu_milli is not None and milli[site] > limits.max_gpu_milli:
            yield f"{milli[site] / 1000} GPUs at {site}, {limits.max_gpu_milli / 1000} allowed"
        if pending[site] + count > limits.max_pending:
            yield f"{pending[site] + count} drones on their way at {site}, {limits.max_pending} allowed"
        if count > limits.max_starts_per_tick:
            yield f"{count} starts at once at {site}, {limits.max_starts_per_tick} allowed"
    types = {t.key: t for t in snapshot.types}
    for key in {s.drone.type for s in plan.starts}:
        kind = types.get(key)
        if kind is None:
            yield f"{key} is started but is not configured"
        elif kind.max_drones is not None and kinds[key] > kind.max_drones:
            yield f"{kinds[key]} drones of {key}, {kind.max_drones} allowed"


def _blindness(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    """Nothing starts or stops where we do not see."""
    view, now = snapshot.overlay.view, snapshot.now
    blind = (
        view is None or snapshot.overlay.fault is not None or now - view.taken_at > snapshot.policy.overlay_max_age_s
    )
    if blind and (plan.starts or plan.drains):
        yield f"{len(plan.starts)} starts and {len(plan.drains)} drains without a fresh view of the overlay"
    touched = Counter(a.drone.site for a in plan.asks if not _by_operator(a.reason))
    touched.update(o.site for o in plan.orphans)
    for site, count in touched.items():
        reading, limits = snapshot.sites.get(site), snapshot.policy.sites.get(site)
        if reading is None or reading.view is None or limits is None:
            yield f"{count} actions at {site}, which was never seen"
        elif reading.fault is not None or now - reading.view.taken_at > limits.view_max_age_s:
            yield f"{count} actions at {site} without a fresh view of it"
    known = {**snapshot.breakers, **{b.scope: b for b in plan.breakers}}
    for start in plan.starts:
        for scope in (start.drone.site, str(start.drone.type)):
            breaker = known.get(scope)
            if breaker is not None and breaker.state is BreakerState.BANNED:
                yield f"{start.drone.id} is started although {scope} is banned until {breaker.until:.0f}"


def _by_operator(reason: object) -> bool:
    return getattr(reason, "kind", "") == "operator-asked"


def _cruelty(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    """No drone with a job is ended without one of the few good grounds."""
    after = {m.drone.id: m.drone for m in plan.moves}
    for action in plan.leaves:
        grounds = _MAY_STOP_BUSY
        if isinstance(action, Drain):
            if action.mode is DrainMode.RESUME:
                continue
            grounds = _MAY_DRAIN_BUSY
        now_known = after.get(action.drone.id) or snapshot.drones.get(action.drone.id)
        if now_known is not None and now_known.jobs > 0 and action.reason.kind not in grounds:
            yield f"{action.drone.id} has {now_known.jobs} jobs and is asked to leave because {action.reason.kind}"


def _owners(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    """Drones leave for owners where owners wait, not for more than they wait for; and starts stay within what is free
    on the nodes, the reserve kept."""
    types = {t.key: t for t in snapshot.types}
    views = {n: r.view for n, r in snapshot.sites.items() if r.view is not None}
    for site in {a.drone.site for a in plan.stops if a.reason.kind == "owner-claim"}:
        claims = views[site].claims if site in views else ()
        jobs = sum(c.count for c in claims)
        freed: dict[str, list[tuple[int, int, int, int]]] = {}
        for stop in plan.stops:
            kind = types.get(stop.drone.type)
            if stop.drone.site == site and stop.reason.kind == "owner-claim" and stop.was not in _WAITS and kind:
                amounts = (kind.gpu_milli, kind.cpus, kind.memory_mib, kind.disk_mib)
                freed.setdefault(stop.drone.node, []).append(amounts)
        if len(freed) > jobs:
            yield f"drones on {len(freed)} nodes of {site} leave for {jobs} waiting jobs of its owner"
        wanted = [sum(c.count * amount for c, amount in zip(claims, a, strict=True)) for a in _amounts(claims)]
        for node, drones in freed.items():
            spared = [sum(d[i] for d in drones) - max(d[i] for d in drones) for i in range(4)]
            blocked = snapshot.policy.sites[site].blocking  # then freed GPUs keep some of what is freed
            if not blocked and all(there >= want for there, want in zip(spared, wanted, strict=True)):
                yield f"{len(drones)} drones leave {node} of {site}, more than all of its owner's waiting jobs need"
    for site, view in views.items():
        limits = snapshot.policy.sites.get(site)
        if not view.nodes or limits is None or limits.queue_when_full:
            continue
        mine = Counter(s.drone.type for s in plan.starts if s.drone.site == site)
        starts = [(types[key], count) for key, count in mine.items() if key in types]
        free = [(n.free_gpu_milli, n.free_cpus, n.free_memory_mib) for n in view.nodes]
        for i, what in enumerate(("milli-GPU", "CPUs", "MiB of memory")):
            asked = sum(n * (k.gpu_milli, k.cpus, k.memory_mib)[i] for k, n in starts)
            there = sum(f[i] for f in free)
            if asked > there:
                yield f"starts at {site} ask for {asked} {what}, {there} are free"
        if all(rule.when.value == "always" and "*" in rule.nodes for rule in limits.blocking) and limits.blocking:
            kept = limits.blocking[0].cpus
            rest = sum(max(0, cpus - kept * milli // 1000) for milli, cpus, _ in free)
            asked = sum(n * k.cpus for k, n in starts if not k.gpu_milli)
            if asked > rest:
                yield f"CPU drones at {site} ask for {asked} CPUs, {rest} are not kept for free GPUs"


def _amounts(claims: Sequence[Claim]) -> tuple[list[int], ...]:
    return (
        [c.gpu_milli for c in claims],
        [c.cpus for c in claims],
        [c.memory_mib for c in claims],
        [c.disk_mib for c in claims],
    )


def _sense(snapshot: Snapshot, plan: Plan) -> Iterator[str]:
    """Every start is for jobs that wait, or for headroom; every step has a reason of the right kind."""
    waiting = {c.id: c for c in snapshot.overlay.view.classes} if snapshot.overlay.view else {}
    warm = {f"headroom:{h.name}": h.count for h in snapshot.policy.headroom}
    types = {t.key: t for t in snapshot.types}
    starts: Counter[str] = Counter(s.drone.for_class for s in plan.starts)
    for class_id, count in starts.items():
        job = waiting.get(class_id)
        if class_id in warm:
            if count > warm[class_id]:
                yield f"{count} drones are started for {class_id}, which wants {warm[class_id]}"
        elif job is None or job.waiting <= 0:
            yield f"{count} drones are started for class {class_id}, of which nothing waits"
        elif count > job.waiting:
            yield f"{count} drones are started for {job.waiting} waiting jobs of class {class_id}"
    for start in plan.starts:
        job, kind = waiting.get(start.drone.for_class), types.get(start.drone.type)
        if job is not None and kind is not None and (
            job.invalid
            or kind.key in job.refuses
            or job.gpu_milli > kind.gpu_milli
            or job.vram_mib > kind.vram_mib
            or job.capability > kind.capability
            or job.cpus > kind.cpus
            or job.memory_mib > kind.memory_mib
        ):
            yield f"{start.drone.id} of {kind.key} cannot run class {job.id}"
        if job is not None and job.owner and job.owner in start.drone.avoids.split(","):
            yield f"{start.drone.id} is started for class {job.id} and avoids its user"
        reading = snapshot.sites.get(start.drone.site)
        down_at = reading.view.downtime_at if reading is not None and reading.view is not None else 0.0
        lives_s = start.walltime_s or (kind.walltime_s if kind is not None else 0.0)
        if down_at > snapshot.now and not 0 < lives_s <= down_at - snapshot.now:
            yield f"{start.drone.id} is started to live into the downtime of {start.drone.site}"
        if start.reason.kind != ("warm-headroom" if start.drone.for_class in warm else "jobs-wait"):
            yield f"{start.drone.id} is started because {start.reason.kind}"
