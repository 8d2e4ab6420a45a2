"""Draw docs/pictures/report.svg: a day of jobs at two sites under three idle time-outs, as the report shows it."""

from __future__ import annotations

from pathlib import Path

from provisioner.model import Policy
from provisioner.simulator.jobs import JobRequirements
from provisioner.simulator.loop import Uniform
from provisioner.simulator.pool import PoolBehaviour
from provisioner.simulator.replay import Replay, run
from provisioner.simulator.report import hours_by_policy, svg
from provisioner.simulator.world_file import WorldPlan
from tests.simulator.worlds import Shape, cloud, day, small

JOBS = 150
SEEDS = (1, 2, 3)
TIMEOUTS_S = {"30 s": 30.0, "5 min": 300.0, "30 min": 1800.0}
WORLD = WorldPlan((small(gpus=4), cloud()), PoolBehaviour(negotiation_s=60.0))


def main() -> None:
    runs = {f"idle for {name}": [run(replay(name, seed), seed) for seed in SEEDS] for name in TIMEOUTS_S}
    (Path(__file__).parent / "report.svg").write_bytes(svg(hours_by_policy, runs))


def replay(name: str, seed: int) -> Replay:
    return Replay(
        policy=name,
        trace="a day",
        jobs=day(count=JOBS, seed=seed, shapes=(Shape(JobRequirements(), Uniform(120.0, 1800.0)),)),
        world=WORLD,
        rules=Policy(idle_timeout_s=TIMEOUTS_S[name]),
        interval_s=30.0,
    )


if __name__ == "__main__":
    main()
