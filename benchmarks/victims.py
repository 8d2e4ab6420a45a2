"""Who makes room for the owner: our planner, or the site alone, youngest drone first or any. The same worlds for all.

    victims.py [SEEDS]     12 unless told; each seed is an hour of an owner's load on 4 to 7 nodes of 8 GPUs

The load is of the trace in ``PROVISIONER_TRACES`` or ``../shared/traces``; where there is none, made from the seed.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from benchmarks.cost import Figure, cpu_s, tell
from provisioner.model import EndKind
from provisioner.simulator.results import Metrics
from provisioner.simulator.traces import read_loads
from provisioner.simulator.world import simulate
from tests.simulator.owner_world import Chooser, load_of, owned, trace_file

ROOT = Path(__file__).parents[1]
NAMES = {
    Chooser.PLANNER: "the planner",
    Chooser.YOUNGEST: "the site alone, youngest first",
    Chooser.RANDOM: "the site alone, at random",
}


def sent_away(metrics: Metrics) -> int:
    """Drones that left before they had no more to do: for the owner, or (few) that still waited at the site."""
    return sum(
        count
        for (_, end), count in metrics.ends.items()
        if end in (EndKind.PREEMPTED, EndKind.STOPPED)
    )


def figures(tallies: dict[Chooser, list[Metrics]]) -> list[Figure]:
    found = []
    for chooser, name in NAMES.items():
        mine = tallies[chooser]
        waits = [wait for metrics in mine for wait in metrics.owner_waits]
        blocked, late = [wait.blocked_s for wait in waits], [wait.late_s for wait in waits]
        some = [wait_s for wait_s in blocked if wait_s]
        found += [
            Figure(
                f"{name}: work lost", sum(t.gpu_seconds.badput for t in mine) / 3600, "GPU-hours"
            ),
            Figure("  jobs cut short", sum(t.attempts_lost for t in mine), ""),
            Figure("  drones sent away", sum(sent_away(t) for t in mine), ""),
            Figure(
                "  drones held an owner's job's room for, mean of all",
                statistics.mean(blocked),
                "s",
            ),
            Figure("  mean of those blocked at all", statistics.mean(some) if some else 0.0, "s"),
            Figure(
                "  after that until the site's next cycle, mean of all", statistics.mean(late), "s"
            ),
        ]
    for rival in (Chooser.YOUNGEST, Chooser.RANDOM):
        both = zip(tallies[Chooser.PLANNER], tallies[rival], strict=True)
        pairs = [
            (mine.gpu_seconds.badput, theirs.gpu_seconds.badput)
            for mine, theirs in both
            if theirs.gpu_seconds.badput
        ]
        median = statistics.median(mine / theirs for mine, theirs in pairs)
        wanted = "< 0.8 of 200" if rival is Chooser.YOUNGEST else ""
        found += [
            Figure(
                f"work lost, ours to {rival.value}: median of {len(pairs)} seeds",
                median,
                "times",
                wanted,
            ),
            Figure("  in all", sum(a for a, _ in pairs) / sum(b for _, b in pairs), "times"),
        ]
    return found


def main() -> None:
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    trace = trace_file(ROOT)
    loads = read_loads(trace) if trace else None
    tallies: dict[Chooser, list[Metrics]] = {chooser: [] for chooser in Chooser}
    owner_jobs = 0
    for seed in range(seeds):
        load = load_of(seed, loads)
        for chooser in Chooser:
            outcome = simulate(owned(seed, load, chooser, site_waits=chooser is Chooser.PLANNER))
            assert not outcome.violations, f"seed {seed}, {chooser}: {outcome.violations[0]}"
            tallies[chooser].append(outcome.metrics)
        owner_jobs += len(tallies[Chooser.PLANNER][-1].owner_waits)
    of = "of a trace" if loads else "made from seeds"
    tell(
        Figure(f"victims, {seeds} seeds, owner's load {of}: jobs of the owner", owner_jobs, ""),
        *figures(tallies),
        Figure("  processor time of one simulated hour", cpu_s() / seeds / len(Chooser), "s"),
    )


if __name__ == "__main__":
    main()
