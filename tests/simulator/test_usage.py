"""A simulated month of mixed classes: who uses little of their GPUs, what that would fit, and sums that add up."""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from dataclasses import replace
from random import Random

import pytest

from provisioner.model import Policy, Sharing, SitePolicy
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.loop import Fixed
from provisioner.simulator.pool import PoolBehaviour
from provisioner.simulator.sites import Facility, GpuPool
from provisioner.usage import usage_report
from tests.cli.conftest import process
from tests.simulator.crashing import CrashScenario, simulate
from tests.simulator.worlds import STEADY, drone_type
from tests.store.story import TemporaryStore

DAY_S, TICK_S = 86400.0, 840.0
WHOLE = drone_type("kit", "whole", cpus=8, walltime_s=8 * 3600.0)
HALF = drone_type("kit", "half", sharing=Sharing.TIME_SLICED, shares=2, cpus=16)
EIGHTH = drone_type("kit", "eighth", sharing=Sharing.MPS, shares=8, cpus=32, memory_mib=163840)
# user: duty in thousandths, VRAM in MiB (the jobs ask for what they use), smallest type,
# thousandths held there. The embedded queue gives a job several shares of one GPU.
CLASSES = {
    "asleep": (10, 1024, "kit/eighth", 125),
    "reader": (40, 2048, "kit/eighth", 125),
    "small": (90, 5120, "kit/eighth", 125),
    "eighth": (125, 4096, "kit/eighth", 125),
    "sixth": (160, 8000, "kit/eighth", 250),
    "quarter": (250, 10240, "kit/eighth", 250),
    "third": (330, 15000, "kit/eighth", 375),
    "large-vram": (60, 18000, "kit/half", 500),
    "two-fifths": (400, 20480, "kit/eighth", 500),
    "half": (500, 12000, "kit/eighth", 500),
    "full-vram": (100, 40000, "kit/whole", 1000),
    "busy": (800, 20000, "kit/eighth", 875),
    "burner": (980, 39000, "kit/whole", 1000),
}


def jobs() -> list[SimulatedJob]:
    rng, found = Random("a month"), []
    for number, (user, (duty, vram, _, _)) in enumerate(CLASSES.items()):
        wants = JobRequirements(
            1000, 2, 4096, owner=user, vram_mib=vram, duty_milli=duty, width_milli=500
        )
        for day in range(30):
            for _ in range(1 + number % 3):
                at_s = day * DAY_S + rng.uniform(0.0, 6 * 3600.0)
                found.append(SimulatedJob(at_s, rng.uniform(1800.0, 3 * 3600.0), wants))
    return found


def test_a_month_names_the_worst_classes_and_adds_up() -> None:
    store, month = TemporaryStore("sim", snapshots=0), jobs()
    types = (WHOLE, HALF, EIGHTH)
    site = Facility(
        policy=SitePolicy(
            "kit", max_drones=12, max_pending=12, max_starts_per_tick=12, view_max_age_s=2 * TICK_S
        ),
        types=types,
        pools=tuple(GpuPool(kind.name, 12) for kind in types),
        serves={kind.name: kind.name for kind in types},
        behaviour=STEADY,
        latency=Fixed(0.0),
    )
    policy = Policy(
        idle_timeout_s=3 * TICK_S, overlay_max_age_s=2 * TICK_S, slot_max_age_s=2 * TICK_S
    )
    scenario = CrashScenario(
        (site,),
        tuple(month),
        policy=replace(policy, interval_s=TICK_S, active_interval_s=TICK_S),
        pool=PoolBehaviour(negotiation_s=0.0, latency=Fixed(0.0)),
        limit_s=31 * DAY_S,
    )
    outcome = simulate(scenario, lambda: store)
    assert outcome.jobs_done == len(month) and outcome.violations == ()

    # the simulation began in the past of this host's clock
    ran = process("usage", "--since", "3650d", "-o", "json", "--store", store.path)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    held: dict[str, float] = defaultdict(float)
    for row in found["items"]:
        user = row["name"].partition(":")[0]
        held[user] = row["held_gpu_s"]
        duty, vram, kind, milli = CLASSES[user]
        assert row["fits"] == [kind], row
        assert row["mean"] == pytest.approx(duty / 1000, abs=0.002)
        assert row["use_p50"] == row["use_p95"] == pytest.approx(duty / 1000, abs=0.002)
        assert row["vram_p95_mib"] == vram
        assert row["saved_gpu_s"] == pytest.approx(row["held_gpu_s"] * (1 - milli / 1000), rel=1e-6)
    good = {
        user: sum(job.duration_s for job in month if job.wants.owner == user) for user in CLASSES
    }
    assert all(held[user] >= good[user] - 1.0 for user in CLASSES), (
        "attempts that were cut short count as well"
    )
    order = [row["name"].partition(":")[0] for row in found["items"]]
    saved = {row["name"].partition(":")[0]: row["saved_gpu_s"] for row in found["items"]}
    assert set(order[:10]) == {user for user in CLASSES if CLASSES[user][3] <= 500}, "the ten worst"
    assert order[:10] == sorted(order[:10], key=lambda user: -saved[user])

    parts = [found[f"{part}_gpu_s"] for part in ("measured", "unmeasured", "running", "idle")]
    assert sum(parts) == pytest.approx(found["total_gpu_s"], abs=0.01)
    assert sum(held.values()) == pytest.approx(found["measured_gpu_s"], abs=0.1) and parts[1:3] == [
        0.0,
        0.0,
    ]
    world = outcome.metrics.by_site["kit"]
    assert found["measured_gpu_s"] == pytest.approx(world.good + world.badput, rel=1e-6), (
        "what the world has counted"
    )
    assert found["total_gpu_s"] == pytest.approx(world.held, rel=0.05) and not math.isnan(
        world.held
    )

    for by in ("user", "site", "type", "drone"):
        same = usage_report(
            store.reader().use(0.0, time.time(), by_drone=by == "drone"),
            types,
            0.0,
            time.time(),
            by,
        )
        assert sum(row.held_s for row in same.rows) == pytest.approx(
            found["measured_gpu_s"], abs=0.1
        )
        assert same.saved_s == pytest.approx(found["saved_gpu_s"], abs=0.1)
    table = process("usage", "--since", "3650d", "--store", store.path)
    assert (
        table.stdout.count("kit/") == 10
        and "13 classes" in table.stderr
        and "10 shown" in table.stderr
    )
