"""``make bench-deciding``: rules against traces and owners' loads, seed by seed, each run in a process of its own.

    python -m benchmarks.deciding.run [--traces ...] [--owners ...] [--rules ...] [--seeds 10] [--jobs 2] [--days D]

What is in the results directory is not run again: a series that was broken off goes on. At the end the tables of
``benchmarks.deciding.table``. Pairs of trace and owner can be named as well: ``--pairs 6214e9/vc8Sj openb2023/vchbv``.
COBalD as documented asks for a million drones in a month, each of which has a record: of it the first
:data:`DOCUMENTED_DAYS` days are run, and every other rule over the same days again where it is to be compared with.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from itertools import product
from pathlib import Path

from benchmarks.deciding import frontier, table
from benchmarks.deciding.ablation import ABLATIONS
from benchmarks.deciding.checks import cases_of
from benchmarks.deciding.play import (
    CLAIRVOYANT,
    LIMITS,
    OURS,
    QUOTA,
    RULES,
    WAITING_COST,
    Run,
    play,
)
from benchmarks.deciding.rows import RESULTS, file_of, merged, write
from benchmarks.deciding.worlds import OWNERS, TRACES, NoTraces, trace_dir
from provisioner.simulator.owner import VictimRule

DOCUMENTED = "cobald-documented"
DOCUMENTED_DAYS = 3.0
USUAL = tuple(rule for rule in RULES if rule != DOCUMENTED)
THREE_OWNERS = OWNERS[:2] + OWNERS[3:]


def runs_of(wanted: argparse.Namespace) -> Iterator[Run]:
    """Yield the runs, by seed first: all rules have as many seeds at any time, give or take one."""
    pairs = [tuple(p.split("/")) for p in wanted.pairs] or list(
        product(wanted.traces, wanted.owners)
    )
    worlds = list(product(pairs, wanted.users, wanted.victims))
    for seed, ((trace, owner), users, victims), rule in product(
        range(1, wanted.seeds + 1), worlds, wanted.rules
    ):
        days = min(wanted.days, DOCUMENTED_DAYS) if rule == DOCUMENTED else wanted.days
        run = Run(rule, trace, owner, seed, days, users, victims)
        if rule == OURS:
            without = [*ABLATIONS] if "all" in wanted.without else wanted.without
            for limits in wanted.limits:
                mine = [
                    replace(run, limits=limits, waiting_cost=cost) for cost in wanted.waiting_cost
                ]
                mine += [
                    replace(run, limits=limits, without=each)
                    for each in (("", *without) if without else ())
                ]
                yield from dict.fromkeys(mine)
        elif rule != CLAIRVOYANT or seed == 1:
            yield run  # the clairvoyant schedule has no chance in it, and knows no users


def carried_out(run: Run, place: Path) -> float:
    """Play it and keep the row; processor seconds."""
    begin_s = time.process_time()
    write(place, run, play(run))
    return time.process_time() - begin_s


def run_all(runs: Sequence[Run], place: Path, jobs: int) -> None:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn, max_tasks_per_child=1) as pool:
        futures = {pool.submit(carried_out, run, place): run for run in runs}
        try:
            for number, future in enumerate(as_completed(futures), 1):
                print(
                    f"{number}/{len(runs)} {futures[future]}: {future.result():.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def parser() -> argparse.ArgumentParser:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", nargs="+", choices=TRACES, default=list(TRACES), metavar="NAME")
    parser.add_argument(
        "--owners", nargs="+", choices=OWNERS, default=list(THREE_OWNERS), metavar="NAME"
    )
    parser.add_argument(
        "--pairs", nargs="+", choices=["/".join(p) for p in product(TRACES, OWNERS)], default=[]
    )
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(USUAL), metavar="NAME")
    parser.add_argument(
        "--users",
        nargs="+",
        type=int,
        default=[1],
        metavar="N",
        help="numbers of users in the trace: one world each",
    )
    parser.add_argument(
        "--victims",
        nargs="+",
        choices=[rule.value for rule in VictimRule],
        default=[VictimRule.YOUNGEST.value],
        metavar="RULE",
        help=f"drones that the owner preempts first: {', '.join(VictimRule)}; one world each",
    )
    parser.add_argument(
        "--limits",
        nargs="+",
        choices=LIMITS,
        default=[QUOTA],
        help="limits of our rule: one run each",
    )
    parser.add_argument(
        "--waiting-cost",
        nargs="+",
        type=float,
        default=[WAITING_COST],
        metavar="PRICE",
        help="prices of waiting in our rule: one run each; with several, the frontier is drawn",
    )
    parser.add_argument(
        "--without",
        nargs="+",
        choices=("all", *ABLATIONS),
        default=[],
        metavar="RULE",
        help=f"rules of ours that are switched off, one run each: {', '.join(ABLATIONS)}; all: each of them",
    )
    parser.add_argument("--seeds", type=int, default=10, metavar="N")
    parser.add_argument(
        "--days",
        type=float,
        default=math.inf,
        metavar="D",
        help="days of the trace, from its start",
    )
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="runs at a time")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    return parser


def main() -> int:
    wanted = parser().parse_args()
    try:
        trace_dir()
    except NoTraces as error:
        print(error, file=sys.stderr)
        return 1
    todo = [run for run in runs_of(wanted) if not file_of(wanted.results, run).exists()]
    run_all(todo, wanted.results, wanted.jobs)
    rows = merged([wanted.results])
    table.show(rows)
    if len(wanted.waiting_cost) > 1 and OURS in wanted.rules:
        picture = wanted.results / "frontier.svg"
        frontier.draw(cases_of(rows), picture)
        print(f"\n{picture}: waste against mean wait, over the price of waiting")
    return 0


if __name__ == "__main__":
    sys.exit(main())
