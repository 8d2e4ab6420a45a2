"""One decision for 100,000 idle jobs in 1,000 classes, 200 drone types and 10,000 drones: seconds and memory."""

from __future__ import annotations

from benchmarks.cost import Figure, peak_mib, tell, timed
from benchmarks.world import snapshot


def main() -> None:
    from provisioner.decide import check, decide

    world = snapshot(jobs=100_000, classes=1_000, types=200, drones_alive=10_000)
    before_mib = peak_mib()
    plan, seconds = timed(lambda: decide(world))
    peak = peak_mib()
    _, check_s = timed(lambda: check.check(world, plan), 1)
    assert plan.starts and plan.refusals, "a plan that does nothing measures nothing"
    tell(
        Figure("decide, 100,000 jobs in 1,000 classes, 200 types, 10,000 drones: first call", seconds[0], "s", "< 1"),
        Figure("  best of three", min(seconds), "s"),
        Figure("  peak memory of the process, snapshot included", peak, "MiB", "< 300"),
        Figure("  of which before deciding", before_mib, "MiB"),
        Figure("  the independent checker on that plan", check_s[0], "s"),
        Figure("  drones started by the plan", len(plan.starts), ""),
        Figure("  refusals with reasons", len(plan.refusals), ""),
    )


if __name__ == "__main__":
    main()
