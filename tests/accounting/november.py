"""A record with one drone in November 2026, for tests of accounting."""

from __future__ import annotations

import asyncio
import calendar
from dataclasses import replace
from pathlib import Path

from provisioner import model as m
from provisioner.reasons import JobsWaiting
from provisioner.store.writer import SqlStore
from tests.store.story import A100, drone, seen, starts

NOVEMBER = float(calendar.timegm((2026, 11, 1, 0, 0, 0)))
HOUR, DAY = 3600.0, 86400.0
S = m.DroneState
SCORED = replace(
    A100,
    gpu_model="A100",
    power_w=400.0,
    price=2.0,
    benchmark=(m.Benchmark("MLPERF", 3.0, "2026-11-01", per="gpu"),),
)
POLICY = m.Policy(
    sites={"topas": m.SitePolicy("topas")},
    accounting=m.AccountingPolicy(
        weight="MLPERF",
        pledges={"cms": 20.0, "lhcb": 5.0},
        budgets=(m.GpuBudget("topas", 100.0, "2026-11-01", "2027-10-31"),),
    ),
)
WHY = JobsWaiting("c", "c", waiting=1, covered=0, starts=1)


def run(job: str, vo: str, begin_h: float, hours: float, **more: object) -> m.CompletedJob:
    end = NOVEMBER + DAY + (begin_h + hours) * HOUR
    made = m.CompletedJob(
        job, end, end - DAY, hours * HOUR, 1000, 1, 100, owner="ann", group="grp", vo=vo
    )
    return replace(made, drone_id=m.DroneId("kit-ab12-1"), **more)  # type: ignore[arg-type]


def write_november(path: Path) -> None:
    """Write a record: a drone of 20 hours on 2 November, half an hour of boot, runs of 10, 4 and 2 hours."""
    began = NOVEMBER + DAY
    one = drone(1, S.IDLE, at=began, started_at=began, joined_at=began + HOUR / 2)
    ended = replace(one, state=S.PREEMPTED, since=began + 20 * HOUR, ended_at=began + 20 * HOUR)
    runs = [
        run("s#1.0", "cms", 1, 10, used_milli=500, energy_j=3_600_000),
        run("s#2.0", "cms", 11, 4, failed=True),
        run("s#3.0", "atlas", 18, 2, unfinished=True),
    ]

    async def fill() -> None:
        async with SqlStore(path, "kit", 30 * DAY, 3, threaded=False) as store:
            plan = starts(1, one, at=began)
            await store.record(plan, seen(store, plan, types=(SCORED,), policy=POLICY))
            await store.record_completed(runs)
            await store.record_results(1, (m.StateChange(ended, S.IDLE, WHY),), ())
            while await store.prune(NOVEMBER + 3 * DAY):
                pass

    asyncio.run(fill())
