"""A record of a busy pool: four sites, their owners, drones of all kinds, jobs that wait for several reasons."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import cos, tau
from pathlib import Path
from random import Random
from typing import Any

from provisioner import model as m, reasons as r
from provisioner.planner.safeguards import safe_plan
from provisioner.store.reader import Reader
from provisioner.store.writer import SqlStore
from tests.cli.conftest import forget_moment

CONTROLLER, BIRTH = "etp", "k7f2"
GIB = 1024
HOSTILE = "<script>alert('x')</script>\"'&amp;\x1b[31m\u202e"
"""A name that a hostile user or site gives to whatever it may name."""

TYPES = (
    m.DroneType(
        "topas",
        "a100",
        1000,
        8,
        60 * GIB,
        100 * GIB,
        40 * GIB,
        "A100",
        80,
        12040,
        walltime_s=172800.0,
    ),
    m.DroneType("topas", "cpu", 0, 16, 32 * GIB, 50 * GIB, price=0.1),
    m.DroneType(
        "horeka", "h100", 1000, 19, 190 * GIB, 200 * GIB, 94 * GIB, "H100", 90, 12040, price=2.0
    ),
    m.DroneType(
        "nemo", "l40s", 1000, 12, 48 * GIB, 100 * GIB, 46 * GIB, "L40S", 89, 12040, price=1.2
    ),
    m.DroneType(
        "nemo",
        "l40s-quarter",
        1000,
        12,
        48 * GIB,
        100 * GIB,
        46 * GIB,
        "L40S",
        89,
        12040,
        sharing=m.Sharing.MPS,
        shares=4,
    ),
    m.DroneType("cloud", "t4", 1000, 4, 16 * GIB, 40 * GIB, 15 * GIB, "T4", 75, 12040, price=0.7),
)
POLICY = m.Policy(
    max_drones=120,
    max_gpu_milli=100_000,
    sites={
        "topas": m.SitePolicy(
            "topas", max_drones=40, blocking=(m.Reserve(("topas-*",), 4, 16 * GIB),)
        ),
        "horeka": m.SitePolicy("horeka", max_drones=30, price=2.0, queue_when_full=True),
        "nemo": m.SitePolicy("nemo", max_drones=24, grace_s=120.0),
        "cloud": m.SitePolicy("cloud", max_drones=6),
    },
)
LIVE: Mapping[str, Mapping[m.DroneState, int]] = {
    "topas/a100": {
        m.DroneState.BUSY: 17,
        m.DroneState.IDLE: 2,
        m.DroneState.BOOTING: 3,
        m.DroneState.DRAINING: 1,
    },
    "topas/cpu": {m.DroneState.BUSY: 4},
    "horeka/h100": {m.DroneState.BUSY: 5, m.DroneState.QUEUED: 2},
    "nemo/l40s": {m.DroneState.BUSY: 6, m.DroneState.DRAINING: 3, m.DroneState.JOINED: 1},
    "nemo/l40s-quarter": {m.DroneState.BUSY: 2, m.DroneState.IDLE: 1},
    "cloud/t4": {m.DroneState.BUSY: 4, m.DroneState.STOPPING: 1, m.DroneState.SUBMITTED: 1},
}
ENDED: Mapping[str, Sequence[m.DroneState]] = {
    "topas/a100": (m.DroneState.DONE,) * 9 + (m.DroneState.PREEMPTED,),
    "nemo/l40s": (m.DroneState.DONE,) * 4 + (m.DroneState.PREEMPTED,) * 6,
    "horeka/h100": (m.DroneState.FAILED,) * 4,
    "cloud/t4": (
        m.DroneState.DONE,
        m.DroneState.LOST,
        m.DroneState.JOIN_TIMEOUT,
        m.DroneState.UNUSED,
    ),
}


@dataclass(frozen=True, slots=True)
class MadeSeries:
    """Values of a counter, as the record keeps them."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]
    step_s: float


USES = {
    "provisioner_gpu_seconds_total": {"busy": 0.78, "idle": 0.13, "boot": 0.06, "draining": 0.03},
    "provisioner_lost_gpu_seconds_total": {"": 0.04},
}
"""Part of the GPU time by metric and use."""


STATES = {"busy": 0.8, "idle": 0.08, "booting": 0.1, "draining": 0.04, "queued": 0.12}
"""Part of the GPUs by state."""


class SeriesReader(Reader):
    """The record with the GPU-seconds of four sites, and the GPUs of the last day."""

    def series(self, metric: str, since: float, until: float, step_s: float) -> list[MadeSeries]:
        if metric not in USES:
            return self._gauges(metric, since, until, step_s)
        uses, found = USES[metric], []
        for site, gpus in (("topas", 23), ("horeka", 7), ("nemo", 13), ("cloud", 6)):
            for use, part in uses.items():
                points, rng = [], Random(f"{site}/{use}")
                for n in range(round((until - since) / step_s) - 1):
                    at = since + n * step_s
                    busy = 0.75 + 0.25 * cos((at / 3600 - 15) / 24 * tau)
                    points.append((at, gpus * part * busy * step_s * rng.uniform(0.6, 1.2)))
                found.append(
                    MadeSeries({"site": site} | ({"use": use} if use else {}), points, step_s)
                )
        return found

    def _gauges(self, metric: str, since: float, until: float, step_s: float) -> list[MadeSeries]:
        labels = [
            ({"site": site, "state": state}, gpus * part)
            for site, gpus in (("topas", 23), ("horeka", 7), ("nemo", 13), ("cloud", 6))
            for state, part in STATES.items()
        ]
        waiting = {"category": "waiting-site"}
        wanted = [(waiting, 60.0)] if metric == "provisioner_gpus_wanted" else labels
        found = []
        for labels, most in wanted:
            rng = Random(f"{labels}")
            points, level = [], rng.random()
            for n in range(int((self.now() - since) / step_s) + 1):
                at = since + n * step_s
                level = min(1.0, max(0.0, level + rng.uniform(-0.1, 0.1)))
                busy = 0.75 + 0.25 * cos((at / 3600 - 15) / 24 * tau)
                points.append((at, most * busy * (0.5 + level / 2)))
            found.append(MadeSeries(labels, points, step_s))
        return found


class BusyPool:
    """Writes the record. ``strange``: the name of all that users and sites name."""

    def __init__(self, now: float, strange: str = "") -> None:
        self.now, self.strange, self.random = now, strange, Random(4711)

    def word(self, usual: str) -> str:
        return self.strange or usual

    def jobs(
        self,
        id_: str,
        owner: str,
        ids: str,
        age_s: float,
        gpu_milli: int,
        cpus: int,
        gib: int,
        **more: Any,
    ) -> Any:
        at = self.now - age_s
        return m.JobClass(
            id_,
            gpu_milli,
            cpus,
            gib * GIB,
            oldest_at=at,
            owner=self.word(owner),
            job_ids=ids,
            vo=self.word(owner.partition("/")[0]),
            **more,
        )

    def classes(self) -> tuple[m.JobClass, ...]:
        running = {"running": 21, "running_ids": "8790.0-8790.20"}
        return (
            self.jobs(
                "41",
                "cms/ariane",
                "8812.0-8812.37",
                5400,
                1000,
                4,
                16,
                waiting=38,
                vram_mib=24 * GIB,
                **running,
            ),
            self.jobs(
                "44",
                "belle2/tom",
                "8820.0-8820.11",
                32000,
                1000,
                16,
                120,
                waiting=12,
                vram_mib=80 * GIB,
            ),
            self.jobs(
                "47",
                "etp/jonas",
                "8831.0-8831.5",
                260000,
                1000,
                4,
                16,
                waiting=6,
                vram_mib=160 * GIB,
            ),
            self.jobs(
                "52",
                "etp/lena",
                "8833.0-8833.23",
                900,
                250,
                2,
                6,
                waiting=20,
                fresh=4,
                vram_mib=8 * GIB,
            ),
            self.jobs("55", "cms/ariane", "8840.0", 40, 1000, 4, 16, fresh=1),
            self.jobs(
                "58",
                "atlas/mia",
                "8841.0-8841.1",
                7200,
                1500,
                4,
                16,
                waiting=2,
                invalid="1.5 GPUs: write 1 or 2",
            ),
            self.jobs("60", "theory/kim", "8842.0-8842.63", 3000, 0, 8, 24, waiting=64),
        )

    def drones(self) -> list[m.Drone]:
        made = []
        for table in (LIVE, ENDED):
            for key, states in table.items():
                each = (
                    [s for s, n in states.items() for _ in range(n)]
                    if isinstance(states, Mapping)
                    else states
                )
                made += [
                    self.drone(len(made) + n, key, state) for n, state in enumerate(each, start=1)
                ]
        return made

    def drone(self, serial: int, key: str, state: m.DroneState) -> m.Drone:
        kind = next(t for t in TYPES if t.key == key)
        ended_at = self.now - self.random.uniform(600, 3 * 86400) if state.ended else 0.0
        if state is m.DroneState.FAILED:
            ended_at = self.now - self.random.uniform(300, 3000)
        at = (ended_at or self.now) - self.random.uniform(9000, 160000)
        quick = state in (m.DroneState.IDLE, m.DroneState.BOOTING, m.DroneState.JOINED)
        since = ended_at or self.now - self.random.uniform(30, 250 if quick else 3000)
        drone = m.Drone(
            m.DroneId(f"{CONTROLLER}-{BIRTH}-{serial}"),
            kind.key,
            state,
            since,
            at,
            kind.gpu_milli,
            "41",
        )
        if state in (*m.WAITING, m.DroneState.BOOTING):
            drone = replace(drone, requested_at=since - 60)
        drone = replace(drone, remote_id=f"55{serial}.0", submitted_at=drone.requested_at + 3)
        if state in m.WAITING:
            return drone
        node = self.word(f"{kind.site}-{kind.name}-{1 + serial % 9:02}.example.org")
        drone = replace(drone, started_at=drone.requested_at + 40, node=node)
        if state not in (m.DroneState.BOOTING, m.DroneState.FAILED, m.DroneState.JOIN_TIMEOUT):
            drone = replace(
                drone,
                joined_at=at + 95,
                slot=f"slot1@{drone.id}",
                heard_at=self.now - 5,
                jobs_started=serial % 5,
            )
        if state is m.DroneState.BUSY:
            drone = replace(
                drone, jobs=1, jobs_started=2, busy_at=at + 120, work_gpu_milli=1000, work_at=since
            )
        if state is m.DroneState.IDLE:
            drone = replace(drone, idle_at=since)
        if state in (m.DroneState.DRAINING, m.DroneState.STOPPING):
            leaving = m.DroneState.PREEMPTED if kind.site == "nemo" else m.DroneState.DONE
            notice = since if kind.site == "nemo" else 0.0
            drone = replace(
                drone,
                leaving=leaving,
                asked_at=since,
                asked=1,
                notice_at=notice,
                work_gpu_milli=1000,
                work_at=at + 900,
            )
        if state is m.DroneState.PREEMPTED:
            lost_s = self.random.uniform(300, 9000)
            drone = replace(
                drone,
                notice_at=ended_at - self.random.uniform(8, 100),
                lost_jobs=1,
                lost_gpu_s=lost_s,
            )
        if state is m.DroneState.FAILED:
            drone = replace(
                drone,
                site_reason=self.word("drone=x exit=71 reason=gpu-check why=no%20CUDA%20device"),
            )
        return replace(drone, ended_at=ended_at)

    def snapshot(self, store: SqlStore, at: float) -> m.Snapshot:
        live = [drone for drone in store.drones.values() if not drone.state.ended]
        remotes: dict[str, dict[m.DroneId, m.RemoteDrone]] = {site: {} for site in POLICY.sites}
        for d in live:
            state = m.RemoteState.PENDING if d.state in m.WAITING else m.RemoteState.RUNNING
            remotes[d.site][d.id] = m.RemoteDrone(
                d.id,
                state,
                d.remote_id,
                d.type.partition("/")[2],
                started_at=d.started_at,
                node=d.node,
                notice_at=d.notice_at,
            )
        word, gib = self.word, GIB
        nodes = tuple(
            m.Node(
                word(f"topas-a100-{n:02}.example.org"),
                ("a100", "cpu"),
                8000,
                128,
                1024 * gib,
                4096 * gib,
                free * 1000,
                10 * free + 4,
                100 * gib * free,
                900 * gib,
            )
            for n, free in ((1, 0), (2, 1), (3, 0), (4, 2))
        )
        claims = (
            m.OwnerDemand(
                3,
                4000,
                48,
                192 * gib,
                at - 240,
                nodes=("nemo-01", "nemo-02"),
                who=word("physics/anna"),
            ),
            m.OwnerDemand(1, 1000, 12, 48 * gib, at - 30, who=word("physics/ben")),
        )
        denied = m.Fault(
            m.FaultKind.DENIED, word("Authentication failed: token expired at 06:00:00Z"), at - 1
        )
        horeka = m.SiteView("horeka", at - 2900, remotes["horeka"], {"h100": 4})
        nemo = m.SiteView(
            "nemo",
            at - 3,
            remotes["nemo"],
            {"l40s": 0, "l40s-quarter": 0},
            claims=claims,
            owner_runs=m.OwnerLoad(9, 21_000, 250, 900 * gib),
            lacks={"l40s": "gpus 1 > 0 free"},
        )
        cloud = m.SiteView(
            "cloud",
            at - 8,
            remotes["cloud"],
            {"t4": 2},
            quota={"t4": 0},
            remarks=(word("flavor g1.t4 is deprecated"),),
        )
        known = {
            state: m.SlotState(state.value)
            for state in (m.DroneState.BUSY, m.DroneState.IDLE, m.DroneState.DRAINING)
        }

        def slot(n: int, d: m.Drone) -> m.Slot:
            works: dict[str, Any] = {
                "jobs": d.jobs,
                "jobs_started": d.jobs_started,
                "idle_since": d.idle_at,
                "name": d.slot,
            }
            if d.jobs:
                works |= {
                    "owner": word("cms/ariane"),
                    "begun_at": d.since,
                    "work_gpu_milli": 1000,
                    "job_ids": f"8790.{n}",
                }
            return m.Slot(d.id, known.get(d.state, m.SlotState.CHECKING), at - 5, **works)

        slots = tuple(slot(n, d) for n, d in enumerate(d for d in live if d.joined_at))
        topas = m.SiteView(
            "topas",
            at - 4,
            remotes["topas"],
            nodes=nodes,
            owner_runs=m.OwnerLoad(2, 6000, 40, 200 * gib),
        )
        polled = (
            m.PolledSite("topas", topas),
            m.PolledSite("horeka", horeka, denied),
            m.PolledSite("nemo", nemo),
            m.PolledSite("cloud", cloud),
        )
        return m.Snapshot(
            now=at,
            tick=store.tick + 1,
            id_prefix=f"{CONTROLLER}-{BIRTH}",
            next_serial=store.next_serial,
            policy=POLICY,
            types=TYPES,
            overlay=m.PolledOverlay(m.OverlayView(at - 2, self.classes(), slots, at - 20)),
            sites={site.site: site for site in polled},
            drones=dict(store.drones),
            breakers=dict(store.breakers),
        )

    def completed(self) -> tuple[m.CompletedJob, ...]:
        """Runs of three users: one uses its GPUs, one half of them, one hardly at all."""
        found = []
        hosts = [drone for drone in self.drones() if drone.gpu_milli and drone.joined_at]
        for n in range(240):
            owner, use, vram = (
                ("cms/ariane", 0.88, 21),
                ("etp/lena", 0.45, 6),
                ("theory/kim", 0.04, 2),
            )[n % 3]
            milli = round(1000 * min(1.0, max(0.01, self.random.gauss(use, 0.06))))
            host, run_s = hosts[n * 7 % len(hosts)], self.random.uniform(1200, 9000)
            ended_at = self.random.uniform(host.joined_at + 1200, host.ended_at or self.now)
            drawn = {
                "used_milli": milli,
                "peak_vram_mib": round(vram * GIB * self.random.uniform(0.8, 1.05)),
            }
            asked = {"vram_mib": 24 * GIB, "owner": self.word(owner), "drone_id": host.id}
            size = (1000, 4, 16 * GIB)
            found.append(
                m.CompletedJob(
                    f"8600.{n}", ended_at, ended_at - 9000, run_s, *size, **asked, **drawn
                )
            )
        return tuple(found)

    async def write(self, path: Path) -> None:
        made, now = self.drones(), self.now
        banned = m.Fault(m.FaultKind.DENIED, self.word("token expired at 06:00:00Z"), now - 2900)
        breakers = (
            m.Breaker(m.Scope("horeka"), m.BreakerState.BANNED, now - 2900, 5, now + 1500, banned),
            m.Breaker(
                m.Scope("topas", node="topas-a100-03.example.org"), m.BreakerState.BANNED, now - 900, 2, now + 6300,
                m.Fault(m.FaultKind.BLACK_HOLE, self.word("4 jobs failed within 5 s"), now - 900),
            ),
        )  # fmt: skip
        async with SqlStore(path, CONTROLLER, keep_s=1e9, snapshots=10, birth=BIRTH) as store:
            await store.event(
                now - 5000, "config.reloaded", {"changes": self.word("max_drones 100 -> 120")}
            )
            asked = [
                m.Drone(
                    d.id,
                    d.type,
                    m.DroneState.REQUESTED,
                    d.requested_at,
                    d.requested_at,
                    d.gpu_milli,
                    d.for_class,
                )
                for d in made
            ]
            first = replace(self.snapshot(store, now - 90000), next_serial=len(made) + 1)
            starts = tuple(m.Start(d, r.JobsWaiting("41", "41", 38, 21, 17)) for d in asked)
            await store.record(m.Plan(1, first.now, starts=starts), first)
            steps: list[m.StateChange] = []
            for before, d in zip(asked, made, strict=True):
                for state, at, why in self.life(d):
                    after = d if state is d.state else replace(before, state=state, since=at)
                    steps.append(m.StateChange(after, before.state, why))
                    before = after
            await store.record(
                m.Plan(2, now - 60, tuple(steps), breakers=breakers), self.snapshot(store, now - 60)
            )
            await store.record_completed(self.completed())
            seen = self.snapshot(store, now - 4)
            await store.record(safe_plan(seen).plan, seen)
            failed = [d.id for d in made if d.state is m.DroneState.FAILED]
            await store.record_outputs(
                now - 300, dict.fromkeys(failed, self.word("nvidia-smi: No devices were found"))
            )

    def life(self, d: m.Drone) -> list[tuple[m.DroneState, float, r.Reason]]:
        """Return the steps of a drone: state, time, reason."""
        s = m.DroneState
        steps: list[tuple[m.DroneState, float, r.Reason]] = [
            (s.SUBMITTED, d.submitted_at, r.Accepted(d.remote_id))
        ]
        if d.started_at:
            steps.append((s.BOOTING, d.started_at, r.SeenAtSite("running")))
        if d.joined_at:
            steps.append(
                (s.IDLE, d.joined_at, r.SeenInPool("idle", 0, d.joined_at - d.requested_at))
            )
        if d.busy_at:
            steps.append((s.BUSY, d.busy_at, r.SeenInPool("busy", 1, d.busy_at - d.requested_at)))
        last: dict[m.DroneState, r.Reason] = {
            s.FAILED: r.EndedAtSite("exited", 71, self.word("no CUDA device"), 61.0, 0),
            s.PREEMPTED: r.Preempted(
                self.word("PREEMPTED"), 60.0, 120.0, round(d.lost_gpu_s, 1), 1
            ),
            s.DRAINING: r.PreemptedForOwner(3, 240.0, d.node, 4.0, 0.0),
        }
        if d.state not in [state for state, _, _ in steps[-1:]]:
            steps.append((d.state, d.since, last.get(d.state, r.SeenAtSite(d.state.value))))
        return steps


def write(path: Path, *, strange: str = "", now: float | None = None) -> SeriesReader:
    """Write the record to ``path`` and return its reader."""
    pool = BusyPool(now or float(int(time.time())), strange)
    with ThreadPoolExecutor(1) as thread:  # Playwright has an event loop in that of the test
        thread.submit(asyncio.run, pool.write(path)).result()
    forget_moment(path)
    return SeriesReader(path)
