"""Estimated and real losses in front of an owner, by run time: what a forecast from two weeks of use is worth.

    python -m benchmarks.deciding.foresight [OWNER ...]

At moments of a month a job starts on one of the free GPUs of an owner's cluster. The estimate comes from the fortnight
before, as the planner makes it; the loss from what the owner did next. The table shows, for jobs whose estimate lies
between two values, the work that was lost per work completed, with the number of jobs. An estimate is good where the
loss lies between the two values.
"""

from __future__ import annotations

import argparse
from bisect import bisect_right
from collections import defaultdict
from itertools import pairwise

from benchmarks.deciding.worlds import (
    DAY_S,
    OWNED_GPUS,
    OWNER_SPAN_S,
    OWNERS,
    NoTraces,
    owner_of,
    trace_dir,
)
from provisioner.controller.estimation import USE_EVERY_S, USE_KEPT, rise_of
from provisioner.planner.risk import expected_loss

RUNS_S = (900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, DAY_S)
PLACES = (1, 4, 8, 16, 24, 32)
"""A moment's drones, by the number of drones that start before them and themselves."""
EVERY = 173
"""Steps between two moments: no divisor of a day."""
BOUNDS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def use_of(owner: str, days: float) -> list[int]:
    """Return the milli-GPUs that an owner uses, every :data:`USE_EVERY_S`."""
    steps, found, next_step, held = owner_of(owner), [], 0, 0
    for n in range(int(days * DAY_S / USE_EVERY_S)):
        while next_step < len(steps) and steps[next_step][0] <= n * USE_EVERY_S:
            held, next_step = 1000 * steps[next_step][1], next_step + 1
        found.append(held)
    return found


def losses(use: list[int]) -> list[tuple[float, float, float, float]]:
    """Return run time, estimated loss, seconds lost and seconds completed of jobs in the second half of a series."""
    day, found = int(DAY_S / USE_EVERY_S), []
    for now in range(len(use) // 2, len(use) - day, EVERY):
        growth, future = rise_of(use[max(0, now - USE_KEPT) : now]), use[now : now + day]
        for place in PLACES:
            head = 1000 * (OWNED_GPUS - place) - use[now]
            if head < 0:
                break
            taken_s = next(
                (USE_EVERY_S * n for n, used in enumerate(future) if used - use[now] > head),
                DAY_S + 1,
            )
            for run_s in RUNS_S:
                lost = taken_s < run_s
                estimate = expected_loss((run_s,), growth.chances(head))
                found.append((run_s, estimate, taken_s if lost else 0.0, 0.0 if lost else run_s))
    return found


def _owner(name: str) -> str:
    if name not in OWNERS:
        raise argparse.ArgumentTypeError(f"unknown owner `{name}`: choose from {', '.join(OWNERS)}")
    return name


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "owners", nargs="*", type=_owner, metavar="OWNER", help=f"of {', '.join(OWNERS)}"
    )
    owners = parser.parse_args().owners or OWNERS
    try:
        trace_dir()
    except NoTraces as error:
        parser.error(str(error))
    sums: dict[tuple[float, int], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for owner in owners:
        for run_s, estimate, lost_s, done_s in losses(use_of(owner, 2 * OWNER_SPAN_S / DAY_S)):
            cell = sums[run_s, bisect_right(BOUNDS, estimate) - 1]
            for n, more in enumerate((lost_s, done_s, 1.0)):
                cell[n] += more
    names = [f"{low:g} ... {high:g}" for low, high in pairwise(BOUNDS)] + [f"over {BOUNDS[-1]:g}"]
    print(f"{'run time':>10}" + "".join(f"{name:>15}" for name in names))
    for run_s in RUNS_S:
        cells = [sums[run_s, n] for n in range(len(BOUNDS))]
        shown = [f"{lost / done:.3f} ({n:.0f})" if done else "-" for lost, done, n in cells]
        print(f"{run_s / 3600:>8.2f} h" + "".join(f"{cell:>15}" for cell in shown))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
