"""A black hole among good drones: the rule lets it go, and the queue is worked off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from provisioner.model import DroneId, OverlayView, Plan, Snapshot
from provisioner.planner import decide
from provisioner.reasons import BlackHoleDrone
from provisioner.simulator.drones import DroneDefect, DroneScript, SiteBehaviour
from provisioner.simulator.jobs import JobRequirements, SimulatedJob
from provisioner.simulator.loop import Fixed
from provisioner.simulator.world import Scenario, SimulationOutcome, simulate
from tests.simulator.worlds import BRISK, small

HABITS = SiteBehaviour(boot=Fixed(20.0), check=Fixed(5.0), release=Fixed(2.0), eats_jobs=0.3)


@dataclass
class Watched:
    """The planner, and which drones it let go because they ate jobs."""

    sees: Callable[[Snapshot], Snapshot] = lambda snapshot: snapshot
    gone: dict[DroneId, BlackHoleDrone] = field(default_factory=dict)

    def __call__(self, snapshot: Snapshot) -> Plan:
        plan = decide(self.sees(snapshot))
        self.gone |= {
            d.drone.id: d.reason for d in plan.drains if isinstance(d.reason, BlackHoleDrone)
        }
        return plan


def played(watched: Watched, seed: int) -> SimulationOutcome:
    work = tuple(
        SimulatedJob(1.0, 120.0, JobRequirements(owner=owner))
        for owner in ("ann", "bob")
        for _ in range(60)
    )
    return simulate(
        Scenario(
            facilities=(small(gpus=8, max_drones=8, behaviour=HABITS),),
            jobs=work,
            seed=seed,
            policy=replace(BRISK, interval_s=10.0),
            limit_s=4 * 3600.0,
            planner=lambda: watched,
        )
    )


def blind(snapshot: Snapshot) -> Snapshot:
    """The same without failed jobs, as at 23f334d."""
    view = snapshot.overlay.view
    bare: OverlayView | None = replace(view, mishaps=()) if view is not None else None
    return replace(snapshot, overlay=replace(snapshot.overlay, view=bare))


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.matrix) for seed in (7, 8))]
)
def test_drones_that_eat_jobs_are_let_go_and_no_others(seed: int) -> None:
    """One, three and six drones eat jobs; without the rule some jobs are never done."""
    watched, before = Watched(), Watched(blind)
    outcome, without = played(watched, seed), played(before, seed)
    assert outcome.violations == () and without.violations
    assert before.gone == {} and watched.gone
    fates = {each: DroneScript.drawn(HABITS, seed, "kit", each).defect for each in watched.gone}
    assert set(fates.values()) == {DroneDefect.EATS_JOBS}
    assert outcome.metrics.attempts_lost < without.metrics.attempts_lost / 10
