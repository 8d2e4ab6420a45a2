"""``make bench``: every measurement in a fresh process, one after the other, and a table.

Nothing is judged: the figures depend on the machine. Ratios to COBalD/TARDIS are of one run on one machine.

    run.py [--only NAME ...]     NAME: decide, loop, steady, victims, rival, query, listing, answers, openstack,
                                 slurm, kubernetes, web, postgresql
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.cost import Figure  # noqa: E402

MODULES = {
    "decide": "benchmarks.decide_scale",
    "loop": "benchmarks.loop",
    "steady": "benchmarks.steady",
    "victims": "benchmarks.victims",
    "rival": "benchmarks.rival",
    "query": "benchmarks.query",
    "listing": "benchmarks.listing",
    "answers": "benchmarks.answers",
    "openstack": "benchmarks.openstack",
    "slurm": "benchmarks.slurm",
    "kubernetes": "benchmarks.kubernetes",
    "web": "benchmarks.web",
    "postgresql": "benchmarks.postgresql",
}
LIMIT_S = 2400


def measure(name: str) -> list[Figure] | str:
    """The figures of one measurement, or why there are none."""
    begin = time.monotonic()
    print(f"{name}: ", end="", flush=True, file=sys.stderr)
    done = subprocess.run(
        [sys.executable, "-m", MODULES[name]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=os.environ
        | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"},
    )
    print(f"{time.monotonic() - begin:.0f} s", file=sys.stderr)
    if done.returncode:
        return (
            done.stderr.strip().splitlines()[-1]
            if done.stderr.strip()
            else f"status {done.returncode}"
        )
    return [Figure(**figure) for figure in json.loads(done.stdout.splitlines()[-1])]


def ratios(found: dict[str, list[Figure] | str]) -> list[Figure]:
    """Theirs divided by ours, where both were measured."""
    ours, theirs = found.get("steady"), found.get("rival")
    if not (isinstance(ours, list) and isinstance(theirs, list)):
        return []

    def value(figures: list[Figure], part: str) -> float:
        return next(f.value for f in figures if part in f.what)

    return [
        Figure(
            f"COBalD/TARDIS to ours: {part}",
            value(theirs, part) / value(ours, part),
            "times",
            "> 5",
        )
        for part in ("seconds per minute", "from request to usable", "to bring them all up")
    ]


def table(found: dict[str, list[Figure] | str]) -> Table:
    shown = Table("what", "value", "", "wanted", box=None, pad_edge=False)
    shown.columns[1].justify = "right"
    for name, figures in found.items():
        if isinstance(figures, str):
            shown.add_row(f"{name}: no figures: {figures}", "-", "", "", style="yellow")
            continue
        for figure in figures:
            shown.add_row(figure.what, number(figure.value), figure.unit, figure.wanted)
    return shown


def number(value: float) -> str:
    """Three digits that mean something."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=MODULES, default=list(MODULES), metavar="NAME")
    wanted = parser.parse_args()
    found: dict[str, list[Figure] | str] = {name: measure(name) for name in wanted.only}
    if ratio := ratios(found):
        found["ratio"] = ratio
    Console(width=None if sys.stdout.isatty() else 140).print(table(found))
    failed = [
        name
        for name, figures in found.items()
        if isinstance(figures, str) and not figures.startswith("not m")
    ]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
