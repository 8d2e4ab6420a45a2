"""Processor time of starting: ``--help`` of each verb, and ``provisioner drones`` with a dozen drones.

``python -m benchmarks.startup [CHECKOUT ...]`` measures the checkouts in turn, in one run.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from provisioner.cli.__main__ import VERBS
from tests.golden.story import write

RUNS = 5


def cost_s(checkout: Path, words: Sequence[str]) -> float:
    """Return the least processor time of several runs of a verb."""
    command = [sys.executable, "-m", "provisioner.cli", *words]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    costs = []
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            command, cwd=checkout, env=environment, check=True, stdout=subprocess.DEVNULL
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        costs.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(costs)


def main() -> None:
    checkouts = [Path(each).absolute() for each in sys.argv[1:]] or [Path.cwd()]
    with tempfile.TemporaryDirectory() as place:
        record = Path(place, "record.db")
        asyncio.run(write(record, decided=True))
        verbs = [["--help"], *([verb, "--help"] for verb in VERBS)]
        for words in [*verbs, ["drones", "--store", str(record)]]:
            costs = "  ".join(f"{cost_s(each, words):.2f} s" for each in checkouts)
            print(f"{' '.join(words[:2]):22} {costs}", flush=True)


if __name__ == "__main__":
    main()
