"""Photograph the report on a day of jobs at two sites under three idle time-outs: docs/pictures/report.png."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from provisioner.model import Policy, SitePolicy
from provisioner.simulator.drones import SiteBehaviour
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.loop import Fixed, Uniform
from provisioner.simulator.pool import PoolBehaviour
from provisioner.simulator.replay import Replay, run
from provisioner.simulator.report import html_page
from provisioner.simulator.sites import Facility, GpuPool
from provisioner.simulator.world_file import WorldPlan
from tests.labs.chromium import running_chromium
from tests.simulator.worlds import Shape, drone_type, small


def cloud() -> Facility:
    """An OpenStack cloud: 12 GPUs, slow to boot, refuses what does not fit now."""
    name = "cloud"
    return Facility(
        policy=SitePolicy(name, max_drones=12, max_pending=12, max_starts_per_tick=6, price=2.0),
        types=(drone_type(name, "l40s", vram_mib=46068, capability=89, gpu_model="L40S"),),
        pools=(GpuPool("l40s", 4, nodes=3),),
        behaviour=SiteBehaviour(boot=Uniform(180.0, 300.0), release=Fixed(20.0)),
        queues=False,
    )


def day(*, count: int, seed: int, shapes: Sequence[Shape]) -> tuple[SimulatedJob, ...]:
    """Exactly ``count`` jobs over 24 hours: half spread evenly, half in ten bursts between 8 and 20 o'clock."""
    rng = Random(f"{seed}/day")
    peaks_s = [rng.uniform(8 * 3600.0, 20 * 3600.0) for _ in range(10)]
    weights = [shape.weight for shape in shapes]
    jobs = []
    for n in range(count):
        at_s = (
            rng.uniform(0, 86400.0)
            if n % 2
            else min(86400.0, rng.choice(peaks_s) + rng.uniform(0, 120.0))
        )
        shape = rng.choices(shapes, weights)[0]
        jobs.append(SimulatedJob(at_s, shape.duration.draw(rng), shape.wants))
    return tuple(sorted(jobs, key=lambda job: job.submit_s))


JOBS = 150
SEEDS = (1, 2, 3)
TIMEOUTS_S = {"30 s": 30.0, "5 min": 300.0, "30 min": 1800.0}
WORLD = WorldPlan((small(gpus=4), cloud()), PoolBehaviour(negotiation_s=60.0))


def main() -> None:
    runs = {
        f"idle for {name}": [run(replay(name, seed), seed) for seed in SEEDS] for name in TIMEOUTS_S
    }
    with running_chromium() as browser:
        page = browser.new_page(viewport={"width": 1120, "height": 1040})
        page.set_content(html_page(runs))
        page.screenshot(path=Path(__file__).parent / "report.png")


def replay(name: str, seed: int) -> Replay:
    return Replay(
        policy=name,
        trace="a day",
        jobs=day(count=JOBS, seed=seed, shapes=(Shape(JobRequirements(), Uniform(120.0, 1800.0)),)),
        world=WORLD,
        rules=Policy(idle_timeout_s=TIMEOUTS_S[name], interval_s=30.0),
    )


if __name__ == "__main__":
    main()
