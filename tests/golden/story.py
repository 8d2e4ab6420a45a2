"""A record with fixed content: drones in every state, every reason, troubles, requests, estimates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from docs.make_reference import REASON_EXAMPLES
from provisioner import model as m
from provisioner.estimates import (
    HORIZONS_S,
    UNKNOWN,
    Estimates,
    EstimateSamples,
    OwnerGrowth,
    SiteSamples,
    StartDelays,
)
from provisioner.planner.safeguards import safe_plan
from provisioner.reasons import (
    Category,
    JobsWaiting,
    OperatorRequested,
    Orphan,
    OwnerWaits,
    Unneeded,
)
from provisioner.store.reader import Reader
from provisioner.store.writer import SqlStore

NOW = 1_770_000_000.0
"""The story ends then."""
CONTROLLER, BIRTH = "kit", "ab12"
GIB = 1024

TYPES = (
    m.DroneType(
        "topas",
        "a100",
        1000,
        8,
        20 * GIB,
        50 * GIB,
        40 * GIB,
        "A100",
        80,
        12040,
        walltime_s=86400.0,
    ),
    m.DroneType("topas", "cpu", 0, 16, 32 * GIB, 50 * GIB),
    m.DroneType("horeka", "h100", 4000, 64, 256 * GIB, 200 * GIB, 95 * GIB, "H100", 90, price=3.0),
    m.DroneType(
        "cloud",
        "t4",
        1000,
        4,
        8 * GIB,
        20 * GIB,
        16 * GIB,
        "T4",
        75,
        sharing=m.Sharing.TIME_SLICED,
        shares=4,
    ),
)
KEEPS = m.Reserve(("topas-*",), 8, 20 * GIB)
POLICY = m.Policy(
    max_drones=50,
    max_gpu_milli=60000,
    sites={
        "topas": m.SitePolicy("topas", max_drones=30, blocking=(KEEPS,), min_runtime_s=600.0),
        "horeka": m.SitePolicy("horeka", max_drones=8, price=2.0, queue_when_full=True),
        "cloud": m.SitePolicy("cloud", max_drones=4, idle_timeout_s=120.0, idle_fixed=True),
        "closed": m.SitePolicy("closed", enabled=False),
    },
    headroom=(m.Headroom("day-shift", cpus=2, count=2, site="topas"),),
)


def _jobs(
    id_: str, gpu_milli: int, cpus: int, gib: int, age_s: float, owner: str, ids: str, **more: Any
) -> m.JobClass:
    return m.JobClass(
        id_, gpu_milli, cpus, gib * GIB, oldest_at=NOW - age_s, owner=owner, job_ids=ids, **more
    )


RUNNING = {"running": 2, "running_ids": "203.1-203.2", "group": "physics.atlas"}
REFUSES = {TYPES[2].key: m.UnmetRequirement("requirements", 'Site == "topas"', "horeka")}
LIMITED = {"limited": 3, "limit": "concurrency limit licence is used up"}
CLASSES = (
    _jobs(
        "7f3a91c07be4d856", 1000, 2, 4, 7200, "alice", "204.0-204.3, 207.1", waiting=5, **RUNNING
    ),
    _jobs(
        "9be20c55d1f0a347",
        1000,
        2,
        4,
        90000,
        "bob",
        "205.0-205.41",
        waiting=40,
        fresh=2,
        vram_mib=200000,
    ),
    _jobs("11c9d04be2a7f683", 500, 1, 1, 5, "eve", "207.2-207.4", fresh=3, held=1, held_ids="9.0"),
    _jobs(
        "12e6a8f03b5cd917",
        1500,
        1,
        1,
        60,
        "eve",
        "208.0-208.1",
        waiting=2,
        invalid="1.5 GPUs: write 1 or 2",
    ),
    _jobs(
        "13a4f7c2906be8d5",
        4000,
        8,
        64,
        900,
        "bob",
        "209.0",
        waiting=1,
        vram_mib=80 * GIB,
        walltime_s=7200.0,
        refuses=REFUSES,
    ),
    _jobs("14d2b90c6ef731a8", 0, 4, 8, 300, "carol", "210.0-210.7", waiting=8, **LIMITED),
)
GONE = _jobs(
    "5c0f7d1e94ab3268", 1000, 4, 8, 9000, "carol", "201.0-201.1", waiting=2, vram_mib=40 * GIB
)
"""It leaves the queue before the last tick."""
SIZE = (8000, 192, 1024 * GIB, 2048 * GIB)
NODES = tuple(
    m.Node(
        f"topas-a100-{n}",
        ("a100", "cpu"),
        *SIZE,
        free * 1000,
        24 * free,
        90 * GIB * free,
        1024 * GIB,
    )
    for n, free in ((1, 3), (2, 0), (3, 1))
)
BANNED, DEGRADED, PROBING = m.BreakerState.BANNED, m.BreakerState.DEGRADED, m.BreakerState.PROBING


def _fault(kind: m.FaultKind, message: str, ago_s: float) -> m.Fault:
    return m.Fault(kind, message, NOW - ago_s)


BREAKERS = (
    m.Breaker(
        m.Scope("horeka"),
        BANNED,
        NOW - 60,
        2,
        NOW + 600,
        _fault(m.FaultKind.DENIED, "token expired", 60),
    ),
    m.Breaker(
        m.Scope("topas", "a100"),
        DEGRADED,
        NOW - 90,
        1,
        0.0,
        _fault(m.FaultKind.DRONE, "exit=71", 90),
    ),
    m.Breaker(
        m.Scope("cloud", "t4"),
        PROBING,
        NOW - 9,
        3,
        NOW,
        _fault(m.FaultKind.QUOTA, "quota of 4 GPUs", 900),
    ),
    m.Breaker(
        m.Scope("topas", "a100", "9be20c55d1f0a347"),
        BANNED,
        NOW - 9,
        1,
        NOW + 60,
        _fault(m.FaultKind.JOBS, "no job came", 9),
    ),
    m.Breaker(
        m.Scope("topas", node="topas-a100-2"),
        BANNED,
        NOW - 9,
        2,
        NOW + 60,
        _fault(m.FaultKind.BLACK_HOLE, "held", 9),
    ),
)
EVENTS: tuple[tuple[str, dict[str, str | float]], ...] = (
    ("config.rejected", {"problems": "topas.yaml:3:1: unknown key"}),
    ("config.reloaded", {"changes": "max_drones 40 -> 50"}),
    (
        "plan.rejected",
        {"faults": "41 drones at horeka, 40 allowed", "left_out": "start of a drone"},
    ),
    ("clock.stepped", {"drift_s": 600.0}),
    ("clock.caught_up", {"drift_s": 0.0}),
    ("clock.doubted", {"drift_s": 7200.0, "advice": "set the clock"}),
    ("store.outdated", {"newest_serial": 99, "next_serial": 13, "advice": "restore a newer copy"}),
    ("drone.black_hole", {"drone": f"{CONTROLLER}-{BIRTH}-7", "why": "held"}),
    ("slots.not_removed", {"why": "denied"}),
    ("keep.failed", {"why": "disk full"}),
    ("drain.rejected", {"drone": f"{CONTROLLER}-{BIRTH}-7", "why": "not authorized"}),
)
ESTIMATES = Estimates(
    rises={
        "topas": OwnerGrowth(
            tuple((0,) * 8 + (2000, 3000 + 1000 * n) for n in range(len(HORIZONS_S)))
        )
    },
    idle_s={"topas": 60.0},
)
RUNS = tuple(100.0 + n for n in range(20))
SAMPLES = EstimateSamples(
    NOW - 95,
    {"": (*RUNS, 7200.0), "etp/anna": RUNS, "etp/anna/1000/8/20480": RUNS, "bob": (7200.0,)},
    {"topas/a100": StartDelays(12.5, 61.0)},
    {
        "topas": SiteSamples(
            (8000,) * 700 + (UNKNOWN,) * 90 + (0,) * 20, NOW - 95, (5.0, 40.0, 900.0)
        ),
        "horeka": SiteSamples(taken=3.0, run_s=7200.0),
    },
)


def drones() -> list[m.Drone]:
    """Return a drone in each state, of all types in turn."""
    return [_drone(n, state) for n, state in enumerate(m.DroneState, start=1)]


def _drone(serial: int, state: m.DroneState) -> m.Drone:
    kind, at = TYPES[serial % len(TYPES)], NOW - 5000 - 100 * serial
    made = m.Drone(
        m.DroneId(f"{CONTROLLER}-{BIRTH}-{serial}"),
        kind.key,
        state,
        NOW - 10 * serial,
        at,
        kind.gpu_milli,
        "7f3a91c07be4d856",
    )
    if state is m.DroneState.REQUESTED:
        return replace(made, since=NOW - serial)
    made = replace(made, remote_id=f"881{serial}.0", submitted_at=at + 3)
    if state in (*m.WAITING, m.DroneState.CANCELLED):
        return replace(made, ended_at=made.since if state.ended else 0.0)
    node = f"{kind.site}-{kind.name}-{1 + serial % 3}"
    made = replace(made, started_at=at + 60, node=node, site_slot=f"slot1_{serial}@{node}")
    if state not in (m.DroneState.BOOTING, m.DroneState.FAILED, m.DroneState.JOIN_TIMEOUT):
        made = replace(
            made,
            joined_at=at + 90,
            slot=f"slot1@{made.id}",
            heard_at=NOW - 5,
            jobs_started=serial % 3,
        )
    if state is m.DroneState.BUSY:
        made = replace(
            made, jobs=1, busy_at=at + 100, work_gpu_milli=1000, work_at=NOW - 120, jobs_started=3
        )
    if state is m.DroneState.IDLE:
        made = replace(made, idle_at=NOW - 100)
    if state in (m.DroneState.DRAINING, m.DroneState.STOPPING):
        refused = "condor_drain: exit 1" if state is m.DroneState.DRAINING else ""
        made = replace(
            made, leaving=m.DroneState.DONE, asked_at=NOW - 50, asked=1, drain_refusal=refused
        )
    if state.ended:
        words = f"drone={made.id} exit=74 reason=no-condor why=condor_master%20is%20missing"
        made = replace(
            made, ended_at=made.since, lost_jobs=serial % 2, lost_gpu_s=960.0 * (serial % 2)
        )
        made = replace(made, site_reason=words, notice_at=made.since - 4)
    return made


def snapshot(store: SqlStore, at: float) -> m.Snapshot:
    """Return what the controller sees: topas node by node, a site that denies, one that counts, one never seen."""
    live = [drone for drone in store.drones.values() if drone.started_at and not drone.state.ended]
    remotes: dict[str, dict[str, m.RemoteDrone]] = {site: {} for site in POLICY.sites}
    for d in live:
        place = {"started_at": d.started_at, "node": d.node, "slot": d.site_slot}
        kind = d.type.partition("/")[2]
        remotes[d.site][d.id] = m.RemoteDrone(
            d.id, m.RemoteState.RUNNING, d.remote_id, kind, **place
        )
    states = {m.DroneState.BUSY: m.SlotState.BUSY, m.DroneState.IDLE: m.SlotState.IDLE}
    states[m.DroneState.DRAINING] = m.SlotState.DRAINING

    def slot(d: m.Drone) -> m.Slot:
        state, owner = states.get(d.state, m.SlotState.CHECKING), "alice" if d.jobs else ""
        counts = (d.jobs, d.jobs_started)
        size = (1000, 8, 20 * GIB, 50 * GIB)
        return m.Slot(
            d.id, state, at - 5, *size, *counts, idle_since=d.idle_at, name=d.slot, owner=owner
        )

    slots = tuple(slot(d) for d in live if d.joined_at)
    claims = (
        m.OwnerDemand(
            2, 3000, 24, 100 * GIB, at - 95, nodes=tuple(n.name for n in NODES), who="etp/anna"
        ),
    )
    groups = (m.Group("physics.atlas", 8000, 2000, False, 3.5),)
    topas = m.SiteView(
        "topas",
        at - 1,
        remotes["topas"],
        nodes=NODES,
        claims=claims,
        owner_runs=m.OwnerLoad(3, 7000, 9, 9),
        downtime_at=at + 86400,
        remarks=("job 7.0 fits no node",),
        unfit={"cpu": "cpus 16 > 8"},
    )
    cloud = m.SiteView(
        "cloud",
        at - 2,
        remotes["cloud"],
        {"t4": 0},
        quota={"t4": 2},
        lacks={"t4": "gpus 1 > 0 free"},
    )
    odd = ("an ad named `x; rm -rf /` has no drone id of ours",)
    denied = m.Fault(m.FaultKind.DENIED, "token has \x1b[31mexpired\x1b[0m", at - 1)
    classes = (*CLASSES, GONE) if at <= NOW - 1000 else CLASSES
    polled = (
        m.PolledSite("topas", topas),
        m.PolledSite("horeka", None, denied),
        m.PolledSite("cloud", cloud),
        m.PolledSite("closed"),
    )
    return m.Snapshot(
        now=at,
        tick=store.tick + 1,
        id_prefix=f"{CONTROLLER}-{BIRTH}",
        next_serial=store.next_serial,
        policy=POLICY,
        types=TYPES,
        overlay=m.PolledOverlay(m.OverlayView(at - 2, classes, slots, at - 20, odd, groups=groups)),
        sites={site.site: site for site in polled},
        drones=dict(store.drones),
        breakers=dict(store.breakers),
        requests=(),
        estimates=ESTIMATES,
    )


async def write(path: Path, *, decided: bool) -> None:
    """Write the record to ``path``; its newest plan is the planner's own, or has each reason once."""
    of_drones = (Category.STEP, Category.LEAVE)
    steps = [e for e in REASON_EXAMPLES if e.category in of_drones]
    others = [e for e in REASON_EXAMPLES if e.category not in (*of_drones, Category.START)]
    async with SqlStore(path, CONTROLLER, keep_s=1e9, snapshots=10, birth=BIRTH) as store:
        for n, (name, fields) in enumerate(EVENTS):
            await store.event(NOW - 2000 + 60 * n, name, fields)
        made = drones()
        asked = m.DroneState.REQUESTED
        first = [
            m.Drone(d.id, d.type, asked, d.requested_at, d.requested_at, d.gpu_milli, d.for_class)
            for d in made
        ]
        seen = replace(snapshot(store, NOW - 4000), next_serial=len(made) + 1)
        starts = tuple(
            m.Start(d, JobsWaiting("7f3a91c07be4d856", "alice: 1 GPU (7f3a)", 5, 0, 5))
            for d in first
        )
        await store.record(m.Plan(1, seen.now, starts=starts), seen)
        rounds = [made[n % len(made)] for n in range(max(len(made), len(steps)))]
        moves = [m.StateChange(d, asked, steps[n % len(steps)]) for n, d in enumerate(rounds)]
        full = m.Refusal(m.Subject("class", GONE.id), 2, OwnerWaits("topas", 3, 4))
        plan = m.Plan(2, NOW - 1000, tuple(moves), breakers=BREAKERS, refusals=(full,))
        await store.record(plan, snapshot(store, NOW - 1000))
        at = NOW - 30
        if decided:
            await store.record_estimates(SAMPLES)
            jobs = (
                m.CompletedJob(
                    f"200.{n}",
                    NOW - 900 + n,
                    NOW - 4000 + 40 * n,
                    300.0 + n,
                    1000,
                    2,
                    4096,
                    owner="alice",
                )
                for n in range(12)
            )
            await store.record_completed(tuple(jobs))
            await store.record_outputs(
                NOW - 300, {d.id: "reason=gpu-check why=no%20device" for d in made if d.state.ended}
            )
            seen = snapshot(store, at)
            await store.record(safe_plan(seen).plan, seen)
            reader, mode = Reader(path), m.DrainMode.FAST
            reader.ask(
                m.RequestKind.DRAIN,
                [made[6].id],
                reason="new fan",
                by="alice",
                at=NOW - 9,
                mode=mode,
            )
            reader.ask_estimate_reset("user:bob", reason="new code", by="alice", at=NOW - 8)
            return
        wish = OperatorRequested("alice", "node needs a new fan")
        busy, idle = made[6], made[5]
        refusals = [
            m.Refusal(
                m.Subject("class", "7f3a91c07be4d856") if n % 3 else m.Subject("site", "topas"),
                n + 1,
                e,
            )
            for n, e in enumerate(others)
        ]
        plan = m.Plan(
            3,
            at,
            drains=(
                m.Drain(
                    replace(busy, state=m.DroneState.DRAINING),
                    busy.state,
                    m.DrainMode.PEACEFUL,
                    wish,
                ),
            ),
            stops=(
                m.Stop(
                    replace(idle, state=m.DroneState.STOPPING),
                    idle.state,
                    Unneeded("idle"),
                    kill=True,
                ),
            ),
            orphans=(
                m.StopOrphan(
                    "topas", m.DroneId(f"{CONTROLLER}-{BIRTH}-999"), "99.0", Orphan("lost")
                ),
            ),
            refusals=tuple(refusals),
        )
        await store.record(plan, snapshot(store, at))
