"""Words to tell stories with: small snapshots, built from what the story is about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace

import pytest

from provisioner import model
from provisioner.planner import decide
from provisioner.planner.validation import validate_plan
from provisioner.reasons import Reason

NOW = 1_000_000.0

A100 = model.DroneType("topas", "a100", 1000, 8, 20480, 0, vram_mib=40960, capability=80, price=2.0)
V100 = model.DroneType("topas", "v100", 1000, 8, 20480, 0, vram_mib=32768, capability=70, price=1.0)
QUAD = model.DroneType(
    "horeka", "quad", 4000, 64, 262144, 0, vram_mib=40960, capability=80, price=2.0
)

SMALL = model.JobClass("small", 1000, 8, 20480, waiting=1, oldest_at=NOW - 100)


def jobs(job: model.JobClass = SMALL, waiting: int = 1, **more: object) -> model.JobClass:
    return replace(job, waiting=waiting, **more)


def drone(
    name: str,
    state: model.DroneState = model.DroneState.IDLE,
    kind: model.DroneType = A100,
    age_s: float = 60.0,
    **more: object,
) -> model.Drone:
    """A recorded drone that has been in its state for ``age_s``."""
    at = NOW - age_s
    made = model.Drone(
        model.DroneId(name), kind.key, state, since=at, requested_at=at, gpu_milli=kind.gpu_milli
    )
    in_pool = state in (model.DroneState.JOINED, model.DroneState.IDLE, model.DroneState.BUSY)
    if state is not model.DroneState.REQUESTED:
        made = replace(made, submitted_at=at, remote_id=f"r-{name}")
    if in_pool or state is model.DroneState.BOOTING:
        made = replace(made, started_at=at - 1 if in_pool else at, joined_at=at if in_pool else 0.0)
    if state is model.DroneState.IDLE:
        made = replace(made, idle_at=at)
    if state is model.DroneState.BUSY:
        made = replace(made, busy_at=at, jobs=1, jobs_started=1)
    return replace(made, **more)


def slot_of(drone: model.Drone, kind: model.DroneType = A100, **more: object) -> model.Slot:
    """The slot that the overlay would show for a recorded drone in its state."""
    busy = drone.state is model.DroneState.BUSY
    made = model.Slot(
        drone.id,
        model.SlotState.BUSY if busy else model.SlotState.IDLE,
        heard_at=NOW - 1,
        free_gpu_milli=0 if busy else kind.gpu_milli,
        free_cpus=0 if busy else kind.cpus,
        free_memory_mib=0 if busy else kind.memory_mib,
        jobs=1 if busy else 0,
        jobs_started=drone.jobs_started,
        idle_since=drone.idle_at,
    )
    return replace(made, **more)


def remote_of(drone: model.Drone) -> model.RemoteDrone:
    """What a site would list for a recorded drone in its state."""
    waits = drone.state in (model.DroneState.SUBMITTED, model.DroneState.QUEUED)
    return model.RemoteDrone(
        drone.id,
        model.RemoteState.PENDING if waits else model.RemoteState.RUNNING,
        remote_id=drone.remote_id or f"r-{drone.id}",
        started_at=drone.started_at,
        node=drone.node,
        notice_at=drone.notice_at,
    )


def node(
    name: str,
    gpus: int,
    cpus: int = 192,
    memory_gib: int = 1024,
    *,
    kinds: tuple[str, ...] = ("a100",),
    **free: int,
) -> model.Node:
    """A node of so much; ``free``: ``gpus``, ``cpus``, ``memory_gib`` that nobody holds (default: all)."""
    left = (
        free.get("free_gpus", gpus) * 1000,
        free.get("free_cpus", cpus),
        free.get("free_gib", memory_gib) * 1024,
    )
    return model.Node(name, kinds, gpus * 1000, cpus, memory_gib * 1024, 0, *left, 0)


def snapshot(
    *,
    classes: Iterable[model.JobClass] = (),
    drones: Iterable[model.Drone] = (),
    types: Iterable[model.DroneType] = (A100,),
    slots: Iterable[model.Slot] | None = None,
    remotes: Iterable[model.RemoteDrone] | None = None,
    free: Mapping[str, int] | None = None,
    quota: Mapping[str, int] | None = None,
    nodes: Iterable[model.Node] = (),
    claims: Iterable[model.OwnerDemand] = (),
    evictions: tuple[model.Eviction, ...] | None = None,
    policy: model.Policy | None = None,
    limits: Mapping[str, object] | None = None,
    breakers: Iterable[model.Breaker] = (),
    requests: Iterable[model.OperatorRequest] = (),
    site_fault: model.Fault | None = None,
    overlay_fault: model.Fault | None = None,
    overlay_age_s: float = 1.0,
    site_age_s: float = 1.0,
    view: bool = True,
) -> model.Snapshot:
    """A snapshot in which views agree with the record, unless the story says otherwise."""
    drones, types = list(drones), tuple(types)
    by_key = {t.key: t for t in types}
    sites = sorted({t.site for t in types} | {d.site for d in drones})
    policy = replace(
        policy or model.Policy(), sites={s: model.SitePolicy(s, **(limits or {})) for s in sites}
    )
    if slots is None:
        joined = (model.DroneState.IDLE, model.DroneState.BUSY)
        slots = [slot_of(d, by_key.get(d.type, A100)) for d in drones if d.state in joined]
    if remotes is None:
        remotes = [remote_of(d) for d in drones if d.state is not model.DroneState.REQUESTED]
    listed = list(remotes)
    site_of = {d.id: d.site for d in drones}

    def polled(site: str) -> model.PolledSite:
        there = {r.drone_id: r for r in listed if site_of.get(r.drone_id, site) == site}
        told = {"nodes": tuple(nodes), "claims": tuple(claims)} if site == types[0].site else {}
        seen = model.SiteView(site, NOW - site_age_s, there, free, quota=quota, **told)
        return model.PolledSite(site, seen, site_fault)

    pool = model.OverlayView(
        NOW - overlay_age_s, tuple(classes), tuple(slots), NOW - 5, (), evictions
    )
    return model.Snapshot(
        now=NOW,
        tick=7,
        id_prefix="kit-ab12",
        next_serial=42,
        policy=policy,
        types=types,
        overlay=model.PolledOverlay(pool if view else None, overlay_fault),
        sites={site: polled(site) for site in sites},
        drones={d.id: d for d in drones},
        breakers={b.scope: b for b in breakers},
        requests=tuple(requests),
    )


def with_pool(snap: model.Snapshot, **news: object) -> model.Snapshot:
    """The same with changes in the view of the overlay, which it has."""
    assert snap.overlay.view is not None
    return replace(snap, overlay=replace(snap.overlay, view=replace(snap.overlay.view, **news)))


def with_site(snap: model.Snapshot, site: str = "topas", **news: object) -> model.Snapshot:
    """The same with changes in the view of a site, which it has."""
    polled = snap.sites[site]
    assert polled.view is not None
    return replace(
        snap, sites={**snap.sites, site: replace(polled, view=replace(polled.view, **news))}
    )


def plan_of(snap: model.Snapshot) -> model.Plan:
    """The plan, judged by the independent checker as in production."""
    plan = decide(snap)
    assert validate_plan(snap, plan) == ()
    assert decide(snap) == plan, "same snapshot, same plan"
    return plan


_JOB_FIELDS = {field.name for field in fields(model.JobClass)}


def plan_for(**given: object) -> model.Plan:
    """The plan for a snapshot. Fields of a job class (``waiting``, ``cpus``, ...) make the one class that waits."""
    job = {name: given.pop(name) for name in list(given) if name in _JOB_FIELDS}
    return plan_of(snapshot(**{"classes": [jobs(**job)], **given} if job else given))


def story(
    name: str, kinds: list[model.DroneType], refused: list[object] | None = None, **given: object
) -> object:
    """A row for :func:`tell`: types of the drones that are started, and reasons why others are not (None: any)."""
    return pytest.param(kinds, refused, {"waiting": 1, **given}, id=name)


def tell(
    kinds: list[model.DroneType], refused: list[object] | None, given: dict[str, object]
) -> None:
    """Check what is started for jobs of class ``small`` in the snapshot that ``given`` describes, and why no more."""
    plan = plan_for(**given)
    assert started(plan) == [kind.key for kind in kinds]
    assert refused is None or why(plan, "class:small") == refused


def started(plan: model.Plan) -> list[model.TypeKey]:
    return [s.drone.type for s in plan.starts]


def why(plan: model.Plan, subject: str) -> list[Reason]:
    return [r.reason for r in plan.refusals if str(r.subject) == subject]


DOWN = model.Fault(model.FaultKind.DOWN, "connection refused", NOW - 1)
