"""The plans of random worlds and of saved snapshots, in words of their own: they stay when everything is renamed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from provisioner.cli.plan import read_snapshot
from provisioner.model import DrainMode, DroneState, Plan, Snapshot
from provisioner.planner.safeguards import safe_plan
from provisioner.simulator.world import START_EPOCH
from provisioner.store import Store
from tests.simulator.crashing import simulate
from tests.simulator.wild import wild

SNAPSHOTS = Path(__file__).parents[1] / "planner" / "data"
MODES = {
    DrainMode.NONE: "none",
    DrainMode.PEACEFUL: "peaceful",
    DrainMode.GRACEFUL: "graceful",
    DrainMode.FAST: "fast",
    DrainMode.RESUME: "undone",
}
STATES = {state: n for n, state in enumerate(DroneState)}
"""By order of definition, which therefore must stay as it is."""


def actions(plan: Plan) -> Iterator[str]:
    """Yield what a plan does, a line each. Starts are in their order, which chooses their ids."""
    for start in plan.starts:
        drone = start.drone
        rules = drone.job_filter
        yield (
            f"start {drone.id} {drone.type} class={drone.for_class} vram={rules.first_vram_mib} "
            f"walltime={start.walltime_s:.3f} reserve=0 "  # reserve: is gone
            f"avoids={','.join(rules.excluded_users)} min_gpus={rules.min_gpus}"
        )
    yield from sorted(f"drain {d.drone.id} {MODES[d.mode]}" for d in plan.drains)
    yield from sorted(f"{'kill' if s.kill else 'stop'} {s.drone.id}" for s in plan.stops)
    yield from sorted(f"orphan {o.site} {o.drone_id}" for o in plan.orphans)


def steps(plan: Plan) -> Iterator[str]:
    """Yield the states that drones are moved to."""
    yield from sorted(f"step {move.drone.id} {STATES[move.drone.state]}" for move in plan.moves)


def reasons(plan: Plan) -> Counter[str]:
    """Count the reasons of a plan by what they are given for."""
    names = ("start", "drain", "stop", "orphan", "step", "refusal")
    given: tuple[Iterable[Any], ...] = (
        plan.starts,
        plan.drains,
        plan.stops,
        plan.orphans,
        plan.moves,
        plan.refusals,
    )
    return Counter(
        f"{name}:{each.reason.kind}"
        for name, rows in zip(names, given, strict=True)
        for each in rows
    )


class _Plans(Store):
    """The record of a simulated controller that keeps all plans, across its crashes too."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Plan] = []

    async def record(self, plan: Plan, snapshot: Snapshot) -> None:
        await super().record(plan, snapshot)
        self.seen.append(plan)


@cache
def world(seed: int) -> tuple[str, str]:
    """Return the line of the actions and the line of the reasons in the world of ``seed``."""
    store = _Plans()
    outcome = simulate(wild(seed), lambda: store)
    done = [f"{plan.at - START_EPOCH:.3f} {line}" for plan in store.seen for line in actions(plan)]
    moved = [f"{plan.at - START_EPOCH:.3f} {line}" for plan in store.seen for line in steps(plan)]
    by_type = Counter(start.drone.type for plan in store.seen for start in plan.starts)
    verbs = Counter(line.split()[1] for line in done)
    totals = " ".join(
        f"{verb}={verbs[verb]}" for verb in ("start", "drain", "stop", "kill", "orphan")
    )
    types = " ".join(f"{key}={count}" for key, count in sorted(by_type.items()))
    head = f"{seed} {_digest(done)} {_digest(moved)} plans={len(store.seen)} {totals} jobs={outcome.jobs_done}"
    counted = _counted(sum(map(reasons, store.seen), Counter()))
    return f"{head} steps={len(moved)} {types}".rstrip(), f"{seed} {counted}".rstrip()


def saved() -> tuple[str, str]:
    """Return the actions and the reasons of the plan for each saved snapshot."""
    done, why = [], []
    for path in sorted(SNAPSHOTS.glob("*.json")):
        plan = safe_plan(read_snapshot(path)).plan
        done += [path.name, *(f"  {line}" for line in (*actions(plan), *steps(plan)))]
        why.append(f"{path.name} {_counted(reasons(plan))}")
    return "\n".join(done) + "\n", "\n".join(why) + "\n"


def _digest(lines: list[str]) -> str:
    return sha256("\n".join(lines).encode()).hexdigest()[:24]


def _counted(counter: Counter[str]) -> str:
    return " ".join(f"{name}={count}" for name, count in sorted(counter.items()))
