"""What one decision costs in processor time, tick by tick in a world that goes on, and how that grows.

``python -m benchmarks.decide_scale --plot FILE.svg`` also measures the growth with classes and
types and draws it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.cost import Figure, peak_mib, tell
from benchmarks.ticks import World
from provisioner.model import Plan, Snapshot
from provisioner.planner import planner
from provisioner.planner.validation import validate_plan

WARM_UP = 6
"""Ticks until the first drones that boot have joined."""
CLASSES = (10, 100, 1_000, 10_000)
TYPES = (5, 20, 100, 500)
DRONES = 10_000
"""At which growth is measured."""


def ticks(world: World, count: int) -> tuple[list[float], list[float]]:
    """Processor seconds of deciding and of checking, in each of so many ticks."""
    deciding, checking, decide = [], [], planner()
    for number in range(WARM_UP + count):
        snapshot = world.snapshot()
        plan, decide_s = _timed(decide, snapshot)
        faults, check_s = _timed(lambda seen, made=plan: validate_plan(seen, made), snapshot)
        assert not faults, faults[0]
        assert plan.refusals, "a plan that does nothing measures nothing"
        if number >= WARM_UP:
            deciding.append(decide_s)
            checking.append(check_s)
        world.carry_out(plan)
    return deciding, checking


def _timed(call: Callable[[Snapshot], Plan | tuple[str, ...]], snapshot: Snapshot):  # type: ignore[no-untyped-def]
    begin = time.process_time()
    result = call(snapshot)
    return result, time.process_time() - begin


def case(
    jobs: int, classes: int, types: int, drones: int, count: int, wanted_ms: float
) -> list[Figure]:
    """One line for each figure of one size."""
    deciding, checking = ticks(World.of(jobs, classes, types, drones), count)
    what = f"decide, {jobs:,} jobs in {classes:,} classes, {types} types, {drones:,} drones: mean of {count} ticks"
    return [
        Figure(what, statistics.mean(deciding) * 1000, "ms", f"<= {wanted_ms:,.0f}"),
        Figure("  best", min(deciding) * 1000, "ms"),
        Figure("  the independent checker, mean", statistics.mean(checking) * 1000, "ms"),
    ]


def growth() -> dict[int, list[float]]:
    """By number of types, the best milliseconds for each number of classes."""
    return {
        types: [min(ticks(World.of(100 * n, n, types, DRONES), 6)[0]) * 1000 for n in CLASSES]
        for types in TYPES
    }


def draw(found: dict[int, list[float]], path: Path) -> None:
    """The picture in ``docs``."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "decide-scale"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for types, cost_ms in found.items():
        axes.loglog(CLASSES, cost_ms, marker="o", label=f"{types} drone types")
    axes.set_xlabel("job classes with waiting jobs")
    axes.set_ylabel("one decision, ms of processor time")
    axes.set_title(f"{DRONES:,} drones, steady state")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path, help="measure the growth too, and draw it here")
    asked = parser.parse_args()
    figures = case(10_000, 100, 20, 1_000, count=200, wanted_ms=1)
    # as many requests as one user may think of
    figures += case(20_000, 20_000, 20, 1_000, count=6, wanted_ms=1000)
    figures += case(1_000_000, 10_000, 500, 100_000, count=6, wanted_ms=500)
    figures.append(Figure("  peak memory of the process, world included", peak_mib(), "MiB"))
    if asked.plot:
        found = growth()
        draw(found, asked.plot)
        figures += [
            Figure(f"decide, {classes:,} classes, {types} types, {DRONES:,} drones: best", ms, "ms")
            for types, row in found.items()
            for classes, ms in zip(CLASSES, row, strict=True)
        ]
    tell(*figures)


if __name__ == "__main__":
    main()
