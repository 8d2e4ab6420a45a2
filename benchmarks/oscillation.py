"""What is started, withdrawn and let go for nothing, by job, over random worlds in which much goes wrong at once; and
whether any of them has broken a promise (``tests/simulator/wild.py`` makes them, ``tests/simulator/witness.py``
watches).

    python -m benchmarks.oscillation [--seeds N] [--first SEED] [--jobs N] [--markdown]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import reduce

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.simulator.wild import wild
from tests.simulator.witness import WORLDS_DOING, Course, watched


@dataclass(frozen=True, slots=True)
class Row:
    """One world."""

    seed: int
    jobs: int
    """That are done."""
    attempts: int
    lost: int
    """Attempts that were cut short."""
    courses: Counter[Course]
    ours: int
    most: int
    causes: Counter[str]
    violations: tuple[str, ...]

    @property
    def asked(self) -> int:
        return self.courses.total()


def play(seed: int) -> Row:
    seen = watched(wild(seed))
    tally = seen.outcome.metrics
    return Row(
        seed=seed,
        jobs=seen.outcome.jobs_done,
        attempts=tally.attempts,
        lost=tally.attempts_lost,
        courses=seen.courses,
        ours=seen.ours,
        most=seen.most,
        causes=seen.causes,
        violations=seen.violations,
    )


FIGURES: dict[str, Callable[[Row], float]] = {
    "drones asked for, per job": lambda row: row.asked / row.jobs,
    "of them met a fault of the world, per job": lambda row: (
        sum(row.courses[c] for c in WORLDS_DOING) / row.jobs
    ),
    "withdrawn before they had a place, per job": lambda row: (
        row.courses[Course.CANCELLED] / row.jobs
    ),
    "had a place, never a job, and left, per job": lambda row: row.courses[Course.VAIN] / row.jobs,
    "attempts, per job": lambda row: row.attempts / row.jobs,
    "starts that met no fault, per attempt (bound: 1)": lambda row: row.ours / row.most,
}


def spread(
    rows: Sequence[Row], figure: Callable[[Row], float]
) -> tuple[float, float, float, float, int]:
    """Mean, median, 95th percentile, the most, and in which world that was."""
    ordered = sorted((figure(row), row.seed) for row in rows)
    values = [value for value, _ in ordered]
    worst, seed = ordered[-1][0], min(seed for value, seed in ordered if value == ordered[-1][0])
    return (
        sum(values) / len(values),
        values[len(values) // 2],
        values[int(0.95 * (len(values) - 1))],
        worst,
        seed,
    )


def tables(rows: Sequence[Row]) -> list[tuple[list[str], list[list[str]]]]:
    """Head and lines of each table."""
    worked = [row for row in rows if row.jobs]
    per_job = [
        [name, *(f"{value:.2f}" for value in found[:4]), str(found[4])]
        for name, found in ((name, spread(worked, figure)) for name, figure in FIGURES.items())
    ]
    courses = reduce(Counter.__add__, (row.courses for row in rows), Counter[Course]())
    causes = reduce(Counter.__add__, (row.causes for row in rows), Counter[str]())
    return [
        (
            [f"{len(worked)} worlds in which jobs ran", "mean", "median", "95 %", "most", "seed"],
            per_job,
        ),
        (["what became of the drones asked for", ""], [[c.value, str(courses[c])] for c in Course]),
        (
            ["who ended a drone under a job", "jobs cut short"],
            [[who, str(n)] for who, n in causes.most_common()],
        ),
    ]


def show(rows: Sequence[Row], *, markdown: bool) -> None:
    jobs, attempts, lost = (
        sum(getattr(row, part) for row in rows) for part in ("jobs", "attempts", "lost")
    )
    print(
        f"{len(rows)} worlds: {jobs} jobs done in {attempts} attempts, of which {lost} were cut short\n"
    )
    console = Console(width=None if sys.stdout.isatty() else 140)
    for head, lines in tables(rows):
        if markdown:
            print(f"| {' | '.join(head)} |\n|---|{'---:|' * (len(head) - 1)}")
            print("\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n")
            continue
        table = Table(*head, box=None, pad_edge=False)
        for column in table.columns[1:]:
            column.justify = "right"
        for line in lines:
            table.add_row(*line)
        console.print(table, "")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1000, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="worlds at a time")
    parser.add_argument("--markdown", action="store_true")
    wanted = parser.parse_args()
    seeds = range(wanted.first, wanted.first + wanted.seeds)
    with ProcessPoolExecutor(wanted.jobs) as pool:
        played = pool.map(play, seeds, chunksize=4)
        rows = list(track(played, "worlds", len(seeds), console=Console(stderr=True)))
    if any(row.jobs for row in rows):
        show(rows, markdown=wanted.markdown)
    broken = [(row.seed, line) for row in rows for line in row.violations]
    print(
        f"{len({seed for seed, _ in broken})} worlds in which a promise was broken",
        end=":\n" if broken else "\n",
    )
    for seed, line in broken:
        print(f"  seed {seed}: {line}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
